/* report.c - see report.h. */
#include "report.h"

#include "text.h"

enum { COLUMN_NUMBER = 12 }; // characters of a number in the table

/* ---- collecting ---- */

static inferd_status copy_text(char out[FIGURES_TEXT_BYTES], const char *text, inferd_err *err) {
    size_t n = strlen(text);
    if (n >= FIGURES_TEXT_BYTES)
        return inferd_fail(err, INFERD_ETOOLONG, "\"%.20s...\" has %zu bytes, at most %d", text, n,
                           FIGURES_TEXT_BYTES - 1);
    memcpy(out, text, n + 1);
    return INFERD_OK;
}

inferd_status figures_init(figures *f, const char *title, const uint64_t *seeds, uint32_t n_seeds,
                           inferd_err *err) {
    *f = (figures){0};
    if (n_seeds < FIGURES_SEEDS_MIN || n_seeds > FIGURES_SEEDS_MAX)
        return inferd_fail(err, INFERD_EINVAL, "%u seeds, expected %d to %d", n_seeds,
                           FIGURES_SEEDS_MIN, FIGURES_SEEDS_MAX);
    for (uint32_t i = 0; i < n_seeds; i++)
        for (uint32_t k = 0; k < i; k++)
            if (seeds[i] == seeds[k])
                return inferd_fail(err, INFERD_EINVAL, "seed %llu occurs twice",
                                   (unsigned long long)seeds[i]);
    f->n_seeds = n_seeds;
    memcpy(f->seeds, seeds, n_seeds * sizeof *seeds);
    return copy_text(f->title, title, err);
}

void figures_deinit(figures *f) {
    for (uint32_t i = 0; i < f->n_notes; i++) free(f->notes[i].text);
    free(f->notes);
    free(f->items);
    *f = (figures){0};
}

const figure *figures_find(const figures *f, const char *group, const char *name) {
    for (uint32_t i = 0; i < f->n; i++)
        if (strcmp(f->items[i].group, group) == 0 && strcmp(f->items[i].name, name) == 0)
            return &f->items[i];
    return NULL;
}

static inferd_status add(figures *f, const char *group, const char *name, const char *unit,
                         uint32_t n_digits, inferd_err *err) {
    if (f->n == FIGURES_MAX)
        return inferd_fail(err, INFERD_ETOOLONG, "more than %d figures", FIGURES_MAX);
    if (f->n == f->capacity) {
        uint32_t capacity = f->capacity == 0 ? 32 : f->capacity * 2;
        figure *items = realloc(f->items, capacity * sizeof *items);
        if (items == NULL)
            return inferd_fail(err, INFERD_ENOMEM, "no memory for %u figures", capacity);
        f->items = items;
        f->capacity = capacity;
    }
    figure *new = &f->items[f->n];
    *new = (figure){.n_digits = u32_min(n_digits, FIGURES_DIGITS_MAX)};
    inferd_status s = copy_text(new->group, group, err);
    if (s == INFERD_OK) s = copy_text(new->name, name, err);
    if (s == INFERD_OK) s = copy_text(new->unit, unit, err);
    if (s == INFERD_OK) f->n++;
    return s;
}

inferd_status figures_set(figures *f, const char *group, const char *name, const char *unit,
                          uint32_t n_digits, uint32_t seed_idx, double value, inferd_err *err) {
    INFERD_CHECK(seed_idx < f->n_seeds);
    const figure *found = figures_find(f, group, name);
    if (found == NULL) {
        inferd_status s = add(f, group, name, unit, n_digits, err);
        if (s != INFERD_OK) return s;
        found = &f->items[f->n - 1];
    }
    figure *to = &f->items[found - f->items];
    if (strcmp(to->unit, unit) != 0)
        return inferd_fail(err, INFERD_EINVAL, "%s: %s is in \"%s\", not in \"%s\"", group, name,
                           to->unit, unit);
    if ((to->is_set >> seed_idx & 1) != 0)
        return inferd_fail(err, INFERD_EINVAL, "%s: %s of seed %llu is set twice", group, name,
                           (unsigned long long)f->seeds[seed_idx]);
    to->is_set |= (uint64_t)1 << seed_idx;
    to->values[seed_idx] = value;
    return INFERD_OK;
}

/* The next note, without its value; NULL: the error is in `err`. */
static figure_note *add_note(figures *f, const char *section, const char *name, inferd_err *err) {
    for (uint32_t i = 0; i < f->n_notes; i++)
        if (strcmp(f->notes[i].section, section) == 0 && strcmp(f->notes[i].name, name) == 0) {
            inferd_fail(err, INFERD_EINVAL, "%s: %s is noted twice", section, name);
            return NULL;
        }
    if (f->n_notes == FIGURES_NOTES_MAX) {
        inferd_fail(err, INFERD_ETOOLONG, "more than %d notes", FIGURES_NOTES_MAX);
        return NULL;
    }
    if (f->notes == NULL) f->notes = calloc(FIGURES_NOTES_MAX, sizeof *f->notes);
    if (f->notes == NULL) {
        inferd_fail(err, INFERD_ENOMEM, "no memory for %d notes", FIGURES_NOTES_MAX);
        return NULL;
    }
    figure_note *note = &f->notes[f->n_notes];
    if (copy_text(note->section, section, err) != INFERD_OK) return NULL;
    if (copy_text(note->name, name, err) != INFERD_OK) return NULL;
    return note;
}

inferd_status figures_note(figures *f, const char *section, const char *name, double value,
                           inferd_err *err) {
    figure_note *note = add_note(f, section, name, err);
    if (note == NULL) return err->status;
    note->value = value;
    f->n_notes++;
    return INFERD_OK;
}

inferd_status figures_note_text(figures *f, const char *section, const char *name, const char *text,
                                inferd_err *err) {
    figure_note *note = add_note(f, section, name, err);
    if (note == NULL) return err->status;
    note->text = strdup(text);
    if (note->text == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for a note");
    f->n_notes++;
    return INFERD_OK;
}

/* ---- summaries ---- */

static double value_of(const figure *of, uint32_t seed_idx) {
    bool exists = (of->is_set >> seed_idx & 1) != 0 && isfinite(of->values[seed_idx]);
    return exists ? of->values[seed_idx] : (double)NAN;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

figure_summary figures_summary(const figures *f, const figure *of) {
    double sorted[FIGURES_SEEDS_MAX];
    figure_summary s = {(double)NAN, (double)NAN, (double)NAN, 0};
    for (uint32_t i = 0; i < f->n_seeds; i++)
        if (!isnan(value_of(of, i))) sorted[s.n++] = value_of(of, i);
    if (s.n == 0) return s;
    qsort(sorted, s.n, sizeof *sorted, by_value);
    s.min = sorted[0], s.max = sorted[s.n - 1];
    s.median = (sorted[(s.n - 1) / 2] + sorted[s.n / 2]) / 2;
    return s;
}

/* ---- writing ---- */

static void add_spaces(buf *out, size_t n) {
    for (size_t i = 0; i < n; i++) buf_add_char(out, ' ');
}

static void add_left(buf *out, const char *text, size_t width) {
    size_t n = text_columns(text);
    text_add(out, text, TEXT_PLAIN);
    add_spaces(out, n < width ? width - n : 0);
}

static void add_right(buf *out, double x, uint32_t n_digits) {
    size_t begin = out->n;
    buf number;
    buf_init(&number, 0);
    if (isnan(x))
        buf_add_char(&number, '-');
    else
        text_add_fixed(&number, x, (int)n_digits);
    add_spaces(out, number.n < COLUMN_NUMBER ? COLUMN_NUMBER - number.n : 1);
    buf_add(out, number.p, number.n);
    if (number.failed) out->failed = true;
    buf_deinit(&number);
    INFERD_CHECK(out->failed || out->n > begin);
}

/* True for the first figure of a group, even if the group's figures are not adjacent. */
static bool opens_group(const figures *f, uint32_t idx) {
    for (uint32_t i = 0; i < idx; i++)
        if (strcmp(f->items[i].group, f->items[idx].group) == 0) return false;
    return true;
}

void figures_text(const figures *f, buf *out) {
    size_t name_width = 0, unit_width = 0;
    for (uint32_t i = 0; i < f->n; i++) {
        name_width = size_max(name_width, text_columns(f->items[i].name));
        unit_width = size_max(unit_width, text_columns(f->items[i].unit));
    }
    text_add(out, f->title, TEXT_PLAIN);
    buf_add_format(out, "\n%u seeds:", f->n_seeds);
    for (uint32_t i = 0; i < f->n_seeds; i++)
        buf_add_format(out, " %llu", (unsigned long long)f->seeds[i]);
    buf_add_char(out, '\n');
    for (uint32_t g = 0; g < f->n; g++) {
        if (!opens_group(f, g)) continue;
        buf_add_char(out, '\n');
        add_left(out, f->items[g].group, name_width + unit_width + 4);
        buf_add_format(out, "%*s%*s%*s%4s\n", COLUMN_NUMBER, "median", COLUMN_NUMBER, "min",
                       COLUMN_NUMBER, "max", "n");
        for (uint32_t i = g; i < f->n; i++) {
            const figure *of = &f->items[i];
            if (strcmp(of->group, f->items[g].group) != 0) continue;
            figure_summary s = figures_summary(f, of);
            buf_add_str(out, "  ");
            add_left(out, of->name, name_width + 2);
            add_left(out, of->unit, unit_width);
            add_right(out, s.median, of->n_digits);
            add_right(out, s.min, of->n_digits);
            add_right(out, s.max, of->n_digits);
            buf_add_format(out, "%4u\n", s.n);
        }
    }
}

static void add_json_text(buf *out, const char *key, const char *text) {
    buf_add_format(out, "\"%s\": \"", key);
    text_add(out, text, TEXT_JSON);
    buf_add_str(out, "\", ");
}

static void add_json_number(buf *out, const char *key, double x) {
    buf_add_format(out, "\"%s\": ", key);
    text_add_number(out, x, "null");
    buf_add_str(out, ", ");
}

static bool opens_section(const figures *f, uint32_t idx) {
    for (uint32_t i = 0; i < idx; i++)
        if (strcmp(f->notes[i].section, f->notes[idx].section) == 0) return false;
    return true;
}

static void add_json_notes(const figures *f, buf *out) {
    for (uint32_t s = 0; s < f->n_notes; s++) {
        if (!opens_section(f, s)) continue;
        buf_add_str(out, "  \"");
        text_add(out, f->notes[s].section, TEXT_JSON);
        buf_add_str(out, "\": {");
        for (uint32_t i = s; i < f->n_notes; i++) {
            const figure_note *note = &f->notes[i];
            if (strcmp(note->section, f->notes[s].section) != 0) continue;
            buf_add_str(out, i == s ? "\"" : ", \"");
            text_add(out, note->name, TEXT_JSON);
            buf_add_str(out, "\": ");
            if (note->text == NULL) {
                text_add_number(out, note->value, "null");
                continue;
            }
            buf_add_char(out, '"');
            text_add(out, note->text, TEXT_JSON);
            buf_add_char(out, '"');
        }
        buf_add_str(out, "},\n");
    }
}

void figures_json(const figures *f, buf *out) {
    buf_add_str(out, "{\n  \"title\": \"");
    text_add(out, f->title, TEXT_JSON);
    buf_add_str(out, "\",\n  \"seeds\": [");
    for (uint32_t i = 0; i < f->n_seeds; i++)
        buf_add_format(out, "%s%llu", i == 0 ? "" : ", ", (unsigned long long)f->seeds[i]);
    buf_add_str(out, "],\n");
    add_json_notes(f, out);
    buf_add_str(out, "  \"figures\": [");
    for (uint32_t i = 0; i < f->n; i++) {
        const figure *of = &f->items[i];
        figure_summary s = figures_summary(f, of);
        buf_add_format(out, "%s\n    {", i == 0 ? "" : ",");
        add_json_text(out, "group", of->group);
        add_json_text(out, "name", of->name);
        add_json_text(out, "unit", of->unit);
        add_json_number(out, "median", s.median);
        add_json_number(out, "min", s.min);
        add_json_number(out, "max", s.max);
        buf_add_format(out, "\"n\": %u, \"values\": [", s.n);
        for (uint32_t k = 0; k < f->n_seeds; k++) {
            if (k > 0) buf_add_str(out, ", ");
            text_add_number(out, value_of(of, k), "null");
        }
        buf_add_str(out, "]}");
    }
    buf_add_str(out, f->n == 0 ? "]\n}\n" : "\n  ]\n}\n");
}

static void add_csv_text(buf *out, const char *text) {
    bool quoted = strpbrk(text, ",\"") != NULL;
    if (quoted) buf_add_char(out, '"');
    text_add(out, text, TEXT_CSV);
    if (quoted) buf_add_char(out, '"');
    buf_add_char(out, ',');
}

void figures_csv(const figures *f, buf *out) {
    buf_add_str(out, "group,name,unit,n,median,min,max");
    for (uint32_t i = 0; i < f->n_seeds; i++)
        buf_add_format(out, ",seed_%llu", (unsigned long long)f->seeds[i]);
    buf_add_char(out, '\n');
    for (uint32_t i = 0; i < f->n; i++) {
        const figure *of = &f->items[i];
        figure_summary s = figures_summary(f, of);
        add_csv_text(out, of->group);
        add_csv_text(out, of->name);
        add_csv_text(out, of->unit);
        buf_add_format(out, "%u", s.n);
        const double summary[] = {s.median, s.min, s.max};
        for (size_t k = 0; k < INFERD_COUNT(summary); k++)
            buf_add_char(out, ','), text_add_number(out, summary[k], "");
        for (uint32_t k = 0; k < f->n_seeds; k++)
            buf_add_char(out, ','), text_add_number(out, value_of(of, k), "");
        buf_add_char(out, '\n');
    }
}
