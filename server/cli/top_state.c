/* top_state.c - see top_state.h. */
#include "top_state.h"

#include <math.h>
#include <string.h>

#include "ctl_json.h"

/* ---- rows ---- */

static void clear_rows(top_rows *r) {
    for (uint32_t i = 0; i < r->n; i++) json_decref(r->rows[i]);
    free(r->rows);
    *r = (top_rows){0};
}

void top_state_deinit(top_state *s) {
    clear_rows(&s->devices);
    clear_rows(&s->models);
    clear_rows(&s->tenants);
    clear_rows(&s->events);
    json_decref(s->daemon);
    json_decref(s->queue);
    *s = (top_state){0};
}

static uint64_t id_of(const json_t *row) {
    return (uint64_t)json_integer_value(json_object_get(row, "id"));
}

static uint32_t find(const top_rows *r, uint64_t id) {
    for (uint32_t i = r->n; i > 0; i--)
        if (id_of(r->rows[i - 1]) == id) return i - 1;
    return UINT32_MAX;
}

const json_t *top_rows_find(const top_rows *r, uint64_t id) {
    uint32_t i = find(r, id);
    return i == UINT32_MAX ? NULL : r->rows[i];
}

static void remove_row(top_rows *r, uint32_t i) {
    json_decref(r->rows[i]);
    memmove(r->rows + i, r->rows + i + 1, (r->n - i - 1) * sizeof *r->rows);
    r->n--;
}

static bool set_row(top_rows *r, json_t *row, uint32_t n_max) {
    if (!json_is_object(row)) return true;
    uint32_t i = find(r, id_of(row));
    if (i != UINT32_MAX) {
        json_decref(r->rows[i]);
        r->rows[i] = json_incref(row);
        return true;
    }
    if (r->n == n_max) return true;
    if (r->n == r->capacity) {
        uint32_t capacity = r->capacity == 0 ? 16 : 2 * r->capacity;
        json_t **grown = realloc(r->rows, capacity * sizeof *grown);
        if (grown == NULL) return false;
        r->rows = grown;
        r->capacity = capacity;
    }
    r->rows[r->n++] = json_incref(row);
    return true;
}

static bool set_rows(top_rows *r, const json_t *data, const char *table) {
    const json_t *rows = json_object_get(data, table), *gone = ctl_member(data, "gone");
    bool fine = true;
    for (size_t i = 0; i < json_array_size(rows); i++)
        fine &= set_row(r, json_array_get(rows, i), TOP_ROWS_MAX);
    gone = json_object_get(gone, table);
    for (size_t i = 0; i < json_array_size(gone); i++) {
        uint32_t k = find(r, (uint64_t)json_integer_value(json_array_get(gone, i)));
        if (k != UINT32_MAX) remove_row(r, k);
    }
    return fine;
}

/* The event that makes room for a new one, UINT32_MAX: none has to.  As in the daemon's journal,
 * events of the kinds that come in floods push out those of their kind. */
static uint32_t event_to_remove(const top_rows *r, const json_t *e) {
    const char *kind = ctl_text(e, "kind");
    bool floods = strcmp(kind, "refuse") == 0 || strcmp(kind, "fail") == 0;
    uint32_t oldest = UINT32_MAX, n = 0;
    for (uint32_t i = r->n; floods && i > 0; i--) {
        if (strcmp(ctl_text(r->rows[i - 1], "kind"), kind) != 0) continue;
        oldest = i - 1;
        n++;
    }
    if (n >= TOP_EVENTS_OF_KIND_MAX) return oldest;
    return r->n == TOP_EVENTS_MAX ? 0 : UINT32_MAX;
}

/* An event that is known comes again with a larger n. */
static bool set_events(top_rows *r, const json_t *data) {
    const json_t *events = json_object_get(data, "events");
    bool fine = true;
    for (size_t i = 0; i < json_array_size(events); i++) {
        json_t *e = json_array_get(events, i);
        uint32_t k = find(r, id_of(e)) == UINT32_MAX ? event_to_remove(r, e) : UINT32_MAX;
        if (k != UINT32_MAX) remove_row(r, k);
        fine &= set_row(r, e, TOP_EVENTS_MAX);
    }
    return fine;
}

static void set_object(json_t **at, const json_t *data, const char *name) {
    json_t *v = json_object_get(data, name);
    if (!json_is_object(v)) return;
    json_decref(*at);
    *at = json_incref(v);
}

/* ---- history ---- */

static void add_history(top_state *s, const json_t *row) {
    if (!json_is_array(row)) return;
    if (s->n_history == TOP_HISTORY_ROWS) {
        memmove(s->history[0], s->history[1], sizeof s->history - sizeof s->history[0]);
        s->n_history--;
    }
    for (size_t i = 0; i < TOP_HISTORY_VALUES; i++) {
        const json_t *v = json_array_get(row, i);
        s->history[s->n_history][i] = json_is_number(v) ? json_number_value(v) : NAN;
    }
    s->n_history++;
}

double top_history_mean(const top_state *s, top_history what) {
    double sum = 0;
    for (uint32_t i = 0; i < s->n_history; i++)
        if (!isnan(s->history[i][what])) sum += s->history[i][what];
    return s->n_history == 0 ? 0 : sum / s->n_history;
}

double top_history_newest(const top_state *s, top_history what) {
    for (uint32_t i = s->n_history; i > 0; i--)
        if (!isnan(s->history[i - 1][what])) return s->history[i - 1][what];
    return NAN;
}

/* ---- all ---- */

bool top_state_take(top_state *s, const char *event, const json_t *data, uint64_t now_us) {
    bool all = strcmp(event, "all") == 0;
    if (!json_is_object(data)) return false;
    if (!all && (!s->known || strcmp(event, "delta") != 0)) return true;
    if (all) top_state_deinit(s);
    s->known = true;
    s->now_ms = (int64_t)u64_min(ctl_count(data, "now"), (uint64_t)1 << 52);
    s->heard_us = now_us;
    set_object(&s->daemon, data, "daemon");
    set_object(&s->queue, data, "queue");
    bool fine = set_rows(&s->devices, data, "devices");
    fine &= set_rows(&s->models, data, "models");
    fine &= set_rows(&s->tenants, data, "tenants");
    fine &= set_events(&s->events, data);
    const json_t *history = ctl_member(data, "history.rows");
    for (size_t i = 0; i < json_array_size(history); i++)
        add_history(s, json_array_get(history, i));
    return fine;
}

int64_t top_state_now_ms(const top_state *s, uint64_t now_us) {
    return s->now_ms + (int64_t)(u64_less(now_us, s->heard_us) / 1000);
}
