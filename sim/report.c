/* report.c - see report.h. */
#include "report.h"

#include <math.h>
#include <string.h>

void *array_grow(void *items, size_t n, size_t *capacity, size_t item_bytes) {
    if (n < *capacity) return items;
    size_t wanted = *capacity == 0 ? 64 : 2 * *capacity;
    void *grown = realloc(items, wanted * item_bytes);
    if (grown != NULL) *capacity = wanted;
    return grown;
}

/* ---- collecting ---- */

static void copy_text(char out[FIGURES_TEXT_BYTES], const char *text) {
    INFERD_CHECK(strlen(text) < FIGURES_TEXT_BYTES);
    strcpy(out, text);
}

void figures_init(figures *f, uint64_t seed0, uint32_t n_seeds) {
    INFERD_CHECK(n_seeds >= FIGURES_SEEDS_MIN && n_seeds <= FIGURES_SEEDS_MAX);
    *f = (figures){.seed0 = seed0, .n_seeds = n_seeds, .notes = json_object()};
    f->failed = f->notes == NULL;
}

void figures_deinit(figures *f) {
    json_decref(f->notes);
    free(f->items);
    *f = (figures){0};
}

static figure *find(const figures *f, const char *group, const char *name) {
    for (size_t i = 0; i < f->n; i++)
        if (strcmp(f->items[i].group, group) == 0 && strcmp(f->items[i].name, name) == 0)
            return &f->items[i];
    return NULL;
}

static figure *add(figures *f, const char *group, const figure_row *row) {
    figure *grown = array_grow(f->items, f->n, &f->capacity, sizeof *grown);
    if (grown == NULL) {
        f->failed = true;
        return NULL;
    }
    f->items = grown;
    figure *new = &f->items[f->n++];
    *new = (figure){.unit = row->unit, .n_digits = row->n_digits};
    copy_text(new->group, group);
    copy_text(new->name, row->name);
    for (int i = 0; i < FIGURES_SEEDS_MAX; i++) new->values[i] = NAN;
    return new;
}

void figures_set(figures *f, const char *group, uint32_t seed_idx, const figure_row *rows,
                 size_t n) {
    INFERD_CHECK(seed_idx < f->n_seeds);
    for (size_t i = 0; i < n; i++) {
        figure *to = find(f, group, rows[i].name);
        if (to == NULL) to = add(f, group, &rows[i]);
        if (to == NULL) return;
        INFERD_CHECK(isnan(to->values[seed_idx]) && strcmp(to->unit, rows[i].unit) == 0);
        to->values[seed_idx] = isfinite(rows[i].value) ? rows[i].value : NAN;
    }
}

/* Whole numbers are written without a point. */
json_t *figures_number(double x) {
    const double exact = 0x1p53;
    if (!isfinite(x)) return json_null();
    return floor(x) == x && fabs(x) < exact ? json_integer((json_int_t)x) : json_real(x);
}

void figures_note(figures *f, const char *section, const char *name, json_t *value) {
    json_t *in = json_object_get(f->notes, section);
    if (in == NULL && json_object_set_new(f->notes, section, json_object()) == 0)
        in = json_object_get(f->notes, section);
    INFERD_CHECK(json_object_get(in, name) == NULL);
    if (json_object_set_new(in, name, value) != 0) f->failed = true;
}

/* ---- summaries ---- */

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

figure_summary figures_summary(const double *values, uint32_t n) {
    double sorted[FIGURES_SEEDS_MAX];
    figure_summary s = {(double)NAN, (double)NAN, (double)NAN, 0};
    for (uint32_t i = 0; i < n; i++)
        if (!isnan(values[i])) sorted[s.n++] = values[i];
    if (s.n == 0) return s;
    qsort(sorted, s.n, sizeof *sorted, by_value);
    s.min = sorted[0], s.max = sorted[s.n - 1];
    s.median = (sorted[(s.n - 1) / 2] + sorted[s.n / 2]) / 2;
    return s;
}

/* ---- writing ---- */

static void print_number(FILE *out, double x, int n_digits) {
    if (isnan(x)) {
        fprintf(out, "%12s", "-");
        return;
    }
    if (fabs(x) < 0.5 * pow(10, -n_digits)) x = 0; // never "-0.00"
    fprintf(out, " %11.*f", n_digits, x);
}

/* True for the first figure of a group, even if the group's figures are not adjacent. */
static bool opens_group(const figures *f, size_t idx) {
    size_t i = 0;
    while (strcmp(f->items[i].group, f->items[idx].group) != 0) i++;
    return i == idx;
}

static void print_notes(const figures *f, FILE *out) {
    const char *section, *name;
    json_t *in, *value;
    json_object_foreach(f->notes, section, in) {
        const char *before = ": ";
        if (strcmp(section, "options") == 0) continue; // its reader wrote them
        fputs(section, out);
        json_object_foreach(in, name, value) {
            fprintf(out, "%s%s ", before, name);
            if (json_is_string(value)) fputs(json_string_value(value), out);
            if (json_is_number(value)) fprintf(out, "%.6g", json_number_value(value));
            if (json_is_null(value)) fputc('-', out);
            before = ", ";
        }
        fputc('\n', out);
    }
}

void figures_print(const figures *f, FILE *out) {
    size_t name = 0, unit = 0; // widths
    for (size_t i = 0; i < f->n; i++) {
        name = size_max(name, strlen(f->items[i].name));
        unit = size_max(unit, strlen(f->items[i].unit));
    }
    print_notes(f, out);
    fprintf(out, "%s\n%u seeds:", f->title, f->n_seeds);
    for (uint32_t i = 0; i < f->n_seeds; i++)
        fprintf(out, " %llu", (unsigned long long)(f->seed0 + i));
    fputc('\n', out);
    for (size_t g = 0; g < f->n; g++) {
        if (!opens_group(f, g)) continue;
        fprintf(out, "\n%-*s%12s%12s%12s%4s\n", (int)(name + unit + 4), f->items[g].group, "median",
                "min", "max", "n");
        for (size_t i = g; i < f->n; i++) {
            const figure *of = &f->items[i];
            if (strcmp(of->group, f->items[g].group) != 0) continue;
            figure_summary s = figures_summary(of->values, f->n_seeds);
            fprintf(out, "  %-*s%-*s", (int)name + 2, of->name, (int)unit, of->unit);
            print_number(out, s.median, of->n_digits);
            print_number(out, s.min, of->n_digits);
            print_number(out, s.max, of->n_digits);
            fprintf(out, "%4u\n", s.n);
        }
    }
}

static json_t *numbers(const double *x, uint32_t n) {
    json_t *out = json_array();
    for (uint32_t i = 0; i < n; i++) json_array_append_new(out, figures_number(x[i]));
    return out;
}

json_t *figures_json(const figures *f) {
    json_t *all = json_array(), *seeds = json_array();
    for (uint32_t i = 0; i < f->n_seeds; i++)
        json_array_append_new(seeds, json_integer((json_int_t)(f->seed0 + i)));
    for (size_t i = 0; i < f->n; i++) {
        const figure *of = &f->items[i];
        figure_summary s = figures_summary(of->values, f->n_seeds);
        json_array_append_new(all, json_pack("{ss ss ss so so so si so}", "group", of->group,
                                             "name", of->name, "unit", of->unit, "median",
                                             figures_number(s.median), "min", figures_number(s.min),
                                             "max", figures_number(s.max), "n", (int)s.n, "values",
                                             numbers(of->values, f->n_seeds)));
    }
    bool good = json_array_size(all) == f->n && !f->failed;
    json_t *out = json_pack("{ss so}", "title", f->title, "seeds", seeds);
    good &= json_object_update(out, f->notes) == 0;
    good &= json_object_set_new(out, "figures", all) == 0;
    if (good) return out;
    json_decref(out);
    return NULL;
}
