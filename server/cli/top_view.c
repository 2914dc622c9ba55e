/* top_view.c - see top_view.h. */
#include "top_view.h"

#include <math.h>
#include <string.h>

#include "ctl_json.h"
#include "ctl_show.h"
#include "top_panels.h"
#include "top_text.h"

/* ---- order ---- */

static const char *const states[] = {"hot",  "loading", "staging", "draining",
                                     "warm", "cold",    "failed",  "none"};
static const char *const classes[] = {"system", "high", "normal", "batch"};

static double rank(const char *const *names, size_t n, const char *name) {
    size_t i = 0;
    while (i < n && strcmp(names[i], name) != 0) i++;
    return -(double)i;
}

/* Large ones come first. */
static double value_of(const json_t *m, top_sort sort) {
    switch (sort) {
    case TOP_BY_STATE:
        return rank(states, INFERD_COUNT(states), ctl_text(m, "state"));
    case TOP_BY_CLASS:
        return rank(classes, INFERD_COUNT(classes), ctl_text(m, "class"));
    case TOP_BY_MEMORY:
        return (double)top_model_bytes(m);
    case TOP_BY_USED:
        return ctl_number(m, "used");
    case TOP_BY_TOKENS:
        return ctl_number(m, "in") + ctl_number(m, "out");
    case TOP_BY_LAST_USE: // no moment: in use now, or never there
        if (!json_is_number(json_object_get(m, "wanted_at")))
            return strcmp(ctl_text(m, "state"), "none") == 0 ? 0 : HUGE_VAL;
        return ctl_number(m, "wanted_at");
    default:
        return 0;
    }
}

typedef struct sort_key {
    double value;
    const char *name;
    uint32_t idx;
    bool reverse;
} sort_key;

static int compare(const void *a, const void *b) {
    const sort_key *x = a, *y = b;
    int by = x->value > y->value ? -1 : x->value < y->value ? 1 : 0;
    if (by == 0) by = strcmp(x->name, y->name);
    if (by == 0) by = x->idx < y->idx ? -1 : 1;
    return x->reverse ? -by : by;
}

void top_view_order(const top_view *v, const top_state *s, uint32_t *order) {
    uint32_t n = s->models.n;
    sort_key *keys = calloc(n + (n == 0), sizeof *keys);
    for (uint32_t i = 0; i < n; i++) {
        const json_t *m = s->models.rows[i];
        order[i] = i;
        if (keys == NULL) continue; // no memory: unsorted
        keys[i] = (sort_key){value_of(m, v->sort), ctl_text(m, "name"), i, v->reverse};
    }
    if (keys != NULL) qsort(keys, n, sizeof *keys, compare);
    for (uint32_t i = 0; i < n && keys != NULL; i++) order[i] = keys[i].idx;
    free(keys);
}

const char *top_sort_name(top_sort sort) {
    static const char *const names[TOP_SORTS] = {"name", "state",    "class",   "memory",
                                                 "used", "tokens/s", "last use"};
    return names[sort];
}

/* ---- the selection ---- */

static uint64_t id_at(const top_state *s, uint32_t idx) {
    return ctl_count(s->models.rows[idx], "id");
}

/* The place of the selection among `order`; the place that it had, where its model is gone. */
static void settle(top_view *v, const top_state *s, const uint32_t *order) {
    uint32_t n = s->models.n;
    if (n == 0) {
        v->any = false;
        return;
    }
    for (uint32_t i = 0; i < n && v->any; i++) {
        if (id_at(s, order[i]) != v->selected) continue;
        v->selected_at = i;
        return;
    }
    v->selected_at = u32_min(v->selected_at, n - 1);
    v->selected = id_at(s, order[v->selected_at]);
    v->any = true;
}

void top_view_move(top_view *v, const top_state *s, int32_t n) {
    uint32_t *order = calloc(s->models.n + 1, sizeof *order);
    if (order == NULL) return;
    top_view_order(v, s, order);
    settle(v, s, order);
    if (v->any) {
        int64_t to = (int64_t)v->selected_at + n, last = (int64_t)s->models.n - 1;
        v->selected_at = (uint32_t)(to < 0 ? 0 : to > last ? last : to);
        v->selected = id_at(s, order[v->selected_at]);
    }
    free(order);
}

const json_t *top_view_selected(top_view *v, const top_state *s) {
    top_view_move(v, s, 0);
    return v->any ? top_rows_find(&s->models, v->selected) : NULL;
}

/* Scrolls so that the selection is among the n_shown models from v->first on. */
static void scroll(top_view *v, uint32_t n_models) {
    uint32_t n = v->n_shown;
    v->first = u32_min(v->first, u32_less(n_models, n));
    if (v->selected_at < v->first) v->first = v->selected_at;
    if (n > 0 && v->selected_at >= v->first + n) v->first = v->selected_at - n + 1;
}

/* ---- the screen ---- */

/* Lines of each part; together the height of the screen. */
typedef struct layout {
    uint32_t head, devices, models, panel, note;
    top_device_form form;
} layout;

static layout lay_out(const top_view *v, const top_state *s, const top_foot *foot,
                      uint32_t n_note) {
    layout l = {.head = 2, .note = n_note};
    uint32_t left = v->height - l.head - l.note - 1, n_devices = s->devices.n;
    uint32_t room = left / 2;
    l.form = v->height >= 40 && n_devices * TOP_DEVICE_LONG <= room / 2 ? TOP_DEVICE_LONG
             : n_devices * TOP_DEVICE_FULL <= room * 2 / 3              ? TOP_DEVICE_FULL
                                                                        : TOP_DEVICE_SHORT;
    l.devices = u32_min(n_devices * l.form, u32_max(left / 3, 1));
    left -= l.devices;
    uint32_t panel_min = foot->panel != NULL ? left * 2 / 3 : left / 3 + (left >= 12);
    l.models = u32_min(s->models.n + 1, left - panel_min);
    l.panel = left - l.models;
    return l;
}

static void draw_models(top_view *v, const top_state *s, uint32_t n_lines, uint64_t now_us,
                        buf *out) {
    uint32_t n = s->models.n, *order = calloc(n + 1, sizeof *order);
    v->n_shown = u32_less(n_lines, 1);
    if (order == NULL) return;
    top_view_order(v, s, order);
    settle(v, s, order);
    scroll(v, n);
    int64_t now_ms = top_state_now_ms(s, now_us);
    if (n_lines > 0) top_add_models_head(v, n, out);
    for (uint32_t i = v->first; i < n && i < v->first + v->n_shown; i++)
        top_add_model(v, s->models.rows[order[i]], v->any && i == v->selected_at, now_ms, out);
    free(order);
}

static uint32_t count_lines(const buf *out, size_t from) {
    uint32_t n = 0;
    for (size_t i = from; i < out->n; i++) n += out->p[i] == '\n';
    return n;
}

/* Empty lines, until there are `n` since byte `from`. */
static void fill(buf *out, size_t from, uint32_t n) {
    for (uint32_t have = count_lines(out, from); have < n && !out->failed; have++)
        buf_add_char(out, '\n');
}

/* Where not all lines have room, the last one says how many do not. */
static void draw_text(top_view *v, const top_foot *foot, uint32_t n_lines, uint32_t width,
                      buf *out) {
    buf all = {0}, last = {0};
    top_add_panel(foot->panel, UINT32_MAX, width, &all);
    uint32_t n = count_lines(&all, 0), n_last = n > n_lines && n_lines > 1;
    v->panel_shown = u32_less(n_lines, n_last);
    v->panel_cut = n > n_lines;
    v->panel_first = u32_min(v->panel_first, u32_less(n, v->panel_shown));
    uint32_t line = 0, end = v->panel_first + v->panel_shown;
    for (size_t i = 0; i < all.n; line += all.p[i++] == '\n')
        if (line >= v->panel_first && line < end) buf_add_char(out, all.p[i]);
    if (n_last) {
        top_add_mark(&last, TOP_WEAK);
        if (end < n)
            buf_add_format(&last, "and %u more lines%s", n - end,
                           foot->scrolls ? ": down, PgDn" : "");
        else
            buf_add_str(&last, "the end; up, PgUp: the lines before");
        top_add_line(out, buf_cstr(&last), width);
    }
    buf_deinit(&all);
    buf_deinit(&last);
}

static void draw_panel(top_view *v, const top_state *s, const top_foot *foot, uint32_t n_lines,
                       uint32_t width, buf *out) {
    uint32_t n_tenants = s->tenants.n;
    v->panel_shown = 0;
    v->panel_cut = false;
    if (foot->panel != NULL) {
        draw_text(v, foot, n_lines, width, out);
    } else if (n_lines >= 12 && n_tenants > 0) {
        uint32_t n = u32_min(n_tenants + 1, n_lines / 2);
        top_add_tenants(s, n, width, out);
        top_add_events(s, n_lines - n, width, out);
    } else if (v->tenants) {
        top_add_tenants(s, n_lines, width, out);
    } else {
        top_add_events(s, n_lines, width, out);
    }
}

static void draw_note(const top_foot *foot, uint32_t width, buf *out) {
    if (foot->trouble != NULL)
        top_add_wrapped(out, foot->trouble, TOP_BAD, width, TOP_TROUBLE_LINES_MAX);
    if (foot->note != NULL && foot->ask != NULL)
        top_add_wrapped_end(out, foot->note, foot->ask, TOP_STRONG, width, TOP_NOTE_LINES_MAX);
    else if (foot->note != NULL)
        top_add_wrapped(out, foot->note, foot->bad ? TOP_BAD : TOP_STRONG, width,
                        TOP_NOTE_LINES_MAX);
}

bool top_view_note_fits(const top_view *v, const char *note, const char *ask) {
    buf all = {0};
    buf_add_format(&all, "%s  %s", note, ask);
    uint32_t n = top_count_wrapped(buf_cstr(&all), u32_min(v->width, TOP_WIDTH_MAX));
    buf_deinit(&all);
    return n <= TOP_NOTE_LINES_MAX;
}

bool top_view_scroll_panel(top_view *v, int32_t n) {
    int64_t to = (int64_t)v->panel_first + n;
    if (v->panel_cut) v->panel_first = (uint32_t)(to < 0 ? 0 : to); // drawing bounds it
    return v->panel_cut;
}

static uint32_t note_lines(const top_foot *foot, uint32_t width) {
    buf text = {0};
    draw_note(foot, width, &text);
    uint32_t n = count_lines(&text, 0);
    buf_deinit(&text);
    return n;
}

void top_view_draw(top_view *v, const top_state *s, const top_foot *foot, uint64_t now_us,
                   buf *out) {
    uint32_t width = u32_min(v->width, TOP_WIDTH_MAX);
    size_t from = out->n;
    if (width < TOP_WIDTH_MIN || v->height < TOP_HEIGHT_MIN) {
        buf line = {0};
        buf_add_format(&line, "%u x %u: expected %d x %d", v->width, v->height, TOP_WIDTH_MIN,
                       TOP_HEIGHT_MIN);
        top_add_line(out, buf_cstr(&line), width);
        buf_deinit(&line);
        fill(out, from, v->height);
        return;
    }
    layout l = lay_out(v, s, foot, note_lines(foot, width));
    top_add_head(s, now_us, width, out);
    fill(out, from, l.head);
    top_add_devices(s, l.form, l.devices, width, out);
    fill(out, from, l.head + l.devices);
    draw_models(v, s, l.models, now_us, out);
    fill(out, from, l.head + l.devices + l.models);
    draw_panel(v, s, foot, l.panel, width, out);
    fill(out, from, v->height - l.note - 1);
    draw_note(foot, width, out);
    fill(out, from, v->height - 1);
    top_add_mark(out, TOP_WEAK);
    top_add_line(out, foot->keys, width);
}
