/* viewers.c - see viewers.h. */
#include "viewers.h"

#include <string.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

#include "admin.h"
#include "app_tell.h"
#include "inferd/clock.h"
#include "inferd/list.h"
#include "json_out.h"
#include "scheduler/watch.h"
#include "view_rows.h"

/* One row of the state, as it was sent last. */
typedef struct row {
    buf text;
    uint32_t seen; // number of the look that had it
} row;

typedef enum row_kind { ROW_DEVICE, ROW_MODEL, ROW_TENANT, ROW_KINDS } row_kind;
static const char *const row_names[ROW_KINDS] = {"devices", "models", "tenants"};

typedef struct row_list {
    row *rows; // [n] by id; owned
    uint32_t n;
    uint32_t next; // index of the first row of the next look
} row_list;

/* Pages of a device: the newest codes, and those that were sent. */
typedef struct map {
    uint32_t *codes, *sent; // [n], [n_sent] owned
    uint32_t n, n_sent;
    uint32_t next; // the comparison goes on here: a delta may not have room for all changes
} map;

typedef struct viewer {
    list_node link;     // in viewers.all
    bool keyed;         // it came with a key, which the configuration may lose
    uint64_t n_configs; // count_configs when the key was checked
    viewers *of;
    http_request *rq;
    bool fresh;        // it gets everything next
    bool slow;         // it has not read what it was sent
    uint32_t n_behind; // deltas that wait behind that
} viewer;

struct viewers {
    app *app;
    changer *changer;
    list_node all;
    uint32_t n;
    char boot[24];
    uint64_t due_us;
    uint32_t leaving[REGISTRY_SLOTS], n_leaving; // slots of models that leave, at this look
    uint64_t started_us; // when the daemon began, by the clock of the engines
    int64_t offset_ms;   // view_now.offset_ms
    row_list lists[ROW_KINDS];
    row daemon, queue;
    map maps[FLEET_DEVICES_MAX];
    uint32_t n_looks;
    uint64_t history_sent, events_sent; // rows; changes of the journal
};

viewers *viewers_create(app *a, changer *ch) {
    uint64_t random, now_us = clock_now_us();
    int64_t age_ms = app_unix_ms() - a->started_unix_s * 1000;
    viewers *v = calloc(1, sizeof *v);
    if (v == NULL) return NULL;
    v->app = a;
    v->changer = ch;
    v->started_us = now_us - (uint64_t)(age_ms * 1000);
    list_node_init(&v->all);
    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random) random = now_us;
    snprintf(v->boot, sizeof v->boot, "%016llx", (unsigned long long)random);
    return v;
}

/* What was sent is needed no more. */
static void forget(viewers *v) {
    for (int k = 0; k < ROW_KINDS; k++) {
        for (uint32_t i = 0; i < v->lists[k].n; i++) buf_deinit(&v->lists[k].rows[i].text);
        free(v->lists[k].rows);
        v->lists[k] = (row_list){0};
    }
    buf_deinit(&v->daemon.text);
    buf_deinit(&v->queue.text);
    for (uint32_t d = 0; d < FLEET_DEVICES_MAX; d++) {
        free(v->maps[d].codes);
        free(v->maps[d].sent);
        v->maps[d] = (map){0};
    }
}

void viewers_destroy(viewers *v) {
    if (v == NULL) return;
    INFERD_CHECK(list_empty(&v->all));
    forget(v);
    free(v);
}

static void free_viewer(viewer *w) {
    viewers *v = w->of;
    list_remove(&w->link);
    v->n--;
    free(w);
    if (v->n == 0) forget(v);
}

/* ---- looking: what changed ---- */

static bool is_equal(const buf *a, const buf *b) {
    return a->n == b->n && (a->n == 0 || memcmp(a->p, b->p, a->n) == 0);
}

/* Takes the new text if it differs; true: it does. */
static bool renew(row *r, buf *text) {
    if (text->failed || is_equal(&r->text, text)) return false;
    buf old = r->text;
    r->text = *text;
    *text = old;
    return true;
}

static bool grow_list(row_list *l, uint32_t id) {
    if (id < l->n) return true;
    row *grown = realloc(l->rows, (size_t)(id + 1) * sizeof *grown);
    if (grown == NULL) return false;
    memset(grown + l->n, 0, (size_t)(id + 1 - l->n) * sizeof *grown);
    l->rows = grown;
    l->n = id + 1;
    return true;
}

/* The part of the state that rows are made from. */
typedef struct look {
    viewers *v;
    view_now now;
    app_recent recent;
    buf delta, text;
    bool any;    // the delta holds a change
    size_t room; // of the delta, bytes
} look;

/* The delta has room for the row.  Rows that have none keep their old text, and come next time. */
static bool has_room(const look *k) {
    return k->delta.n < k->room / 4 * 3; // a quarter is for pages
}

/* Begins or continues a list in the delta: `"models":[` or a comma. */
static void begin_item(look *k, bool *first, const char *name) {
    buf_add_format(&k->delta, *first ? ",\"%s\":[" : ",", name);
    *first = false;
    k->any = true;
}

static void find_leaving(viewers *v) {
    v->n_leaving = 0;
    for (uint32_t i = 0; i < REGISTRY_SLOTS; i++)
        if (app_model(v->app, i)->m != NULL && app_model(v->app, i)->leaving)
            v->leaving[v->n_leaving++] = i;
}

static uint32_t n_rows(const viewers *v, row_kind kind) {
    const inferd_config *c = v->app->config->c;
    if (kind == ROW_DEVICE) return fleet_n_devices(v->app->fleet);
    if (kind == ROW_TENANT) return u32_min(c->n_tenants, VIEWERS_TENANTS_MAX);
    return c->n_models + v->n_leaving;
}

static uint32_t id_of(const viewers *v, row_kind kind, uint32_t i) {
    const app_config *c = v->app->config;
    if (kind == ROW_DEVICE) return i;
    if (kind == ROW_TENANT) return c->numbers[i];
    return i < c->c->n_models ? (uint32_t)c->slots[i] : v->leaving[i - c->c->n_models];
}

static void write_row(look *k, row_kind kind, uint32_t i) {
    const app *a = k->v->app;
    const inferd_config *c = a->config->c;
    buf_clear(&k->text);
    if (kind == ROW_DEVICE)
        view_add_device(&k->text, a, i, &k->now);
    else if (kind == ROW_MODEL)
        view_add_model(&k->text, a, id_of(k->v, kind, i), i < c->n_models ? &c->models[i] : NULL,
                       &k->recent, &k->now);
    else
        view_add_tenant(&k->text, a, i, &k->recent);
}

/* Begins where the last delta was full. */
static void look_at_list(look *k, row_kind kind) {
    viewers *v = k->v;
    row_list *l = &v->lists[kind];
    uint32_t n = n_rows(v, kind), from = n > 0 ? l->next % n : 0;
    uint32_t n_written = 0;
    bool first = true, full = false;
    for (uint32_t j = 0; j < n; j++) {
        uint32_t i = (from + j) % n, id = id_of(v, kind, i);
        if (!grow_list(l, id)) break;
        row *r = &l->rows[id];
        r->seen = v->n_looks;
        if (full) continue;
        if (!has_room(k) || (n_written++ == VIEWERS_ROWS_MAX && k->room != SIZE_MAX)) {
            full = true;
            l->next = i;
            continue;
        }
        write_row(k, kind, i);
        if (!renew(r, &k->text)) continue;
        begin_item(k, &first, row_names[kind]);
        buf_add(&k->delta, r->text.p, r->text.n);
    }
    if (!full) l->next = 0;
    if (!first) buf_add_char(&k->delta, ']');
}

/* Rows that were sent, and are no longer in the configuration. */
static void look_for_gone(look *k) {
    bool none = true;
    for (int kind = ROW_MODEL; kind < ROW_KINDS; kind++) {
        row_list *l = &k->v->lists[kind];
        bool first = true;
        for (uint32_t i = 0; i < l->n; i++) {
            row *r = &l->rows[i];
            if (r->text.n == 0 || r->seen == k->v->n_looks) continue;
            buf_deinit(&r->text);
            r->text = (buf){0};
            if (first) buf_add_str(&k->delta, none ? ",\"gone\":{" : ",");
            if (first) buf_add_format(&k->delta, "\"%s\":[", row_names[kind]);
            buf_add_format(&k->delta, first ? "%u" : ",%u", i);
            first = none = false;
            k->any = true;
        }
        if (!first) buf_add_char(&k->delta, ']');
    }
    if (!none) buf_add_char(&k->delta, '}');
}

static void look_at_row(look *k, row *r, const char *name) {
    if (!renew(r, &k->text)) return;
    buf_add_format(&k->delta, ",\"%s\":", name);
    buf_add(&k->delta, r->text.p, r->text.n);
    k->any = true;
}

/* By the clock as it is set now: what has passed since then is the uptime. */
static int64_t started_unix_s(const look *k) {
    return (k->now.offset_ms + (int64_t)(k->v->started_us / 1000) + 500) / 1000;
}

static void look_at_rest(look *k) {
    viewers *v = k->v;
    changer_about about;
    changer_get_about(v->changer, &about);
    buf_clear(&k->text);
    view_add_daemon(&k->text, v->app, &about, v->boot, started_unix_s(k));
    look_at_row(k, &v->daemon, "daemon");
    buf_clear(&k->text);
    view_add_queue(&k->text, v->app);
    look_at_row(k, &v->queue, "queue");
}

/* Rows from number `from` on that are kept. */
static void add_history(buf *out, const history *h, uint64_t from) {
    uint64_t n = history_n(h), oldest = n > HISTORY_ROWS ? n - HISTORY_ROWS : 0;
    buf_add_format(out, ",\"history\":{\"every_ms\":%d,\"rows\":[", HISTORY_EVERY_MS);
    for (uint64_t first = from > oldest ? from : oldest, i = first; i < n; i++) {
        if (i > first) buf_add_char(out, ',');
        view_add_history_row(out, history_at(h, i));
    }
    buf_add_str(out, "]}");
}

static int by_change(const void *a, const void *b) {
    const journal_event *const *x = a, *const *y = b;
    return ((*x)->change > (*y)->change) - ((*x)->change < (*y)->change);
}

static int by_id(const void *a, const void *b) {
    const journal_event *const *x = a, *const *y = b;
    return ((*x)->id > (*y)->id) - ((*x)->id < (*y)->id);
}

/* Events that were written or counted since this number of changes, at most n_max.  Returns the
 * number of changes up to which they were sent. */
static uint64_t add_events(buf *out, const journal *j, uint64_t since, uint32_t n_max) {
    const journal_event *all[JOURNAL_EVENTS];
    uint32_t n = 0;
    for (uint32_t i = 0; i < journal_n(j); i++)
        if (journal_at(j, i)->change > since) all[n++] = journal_at(j, i);
    uint64_t until = journal_n_changes(j);
    if (n > n_max) {
        qsort(all, n, sizeof all[0], by_change);
        n = n_max;
        until = all[n - 1]->change;
        qsort(all, n, sizeof all[0], by_id);
    }
    buf_add_str(out, ",\"events\":[");
    for (uint32_t i = 0; i < n; i++) {
        if (i > 0) buf_add_char(out, ',');
        view_add_event(out, all[i]);
    }
    buf_add_char(out, ']');
    return until;
}

static void look_at_events(look *k) {
    viewers *v = k->v;
    const app *a = v->app;
    uint64_t n = history_n(a->history), n_changes = journal_n_changes(a->journal);
    if (n != v->history_sent) {
        add_history(&k->delta, a->history, v->history_sent);
        k->any = true;
    }
    if (k->room == SIZE_MAX) v->events_sent = n_changes; // every viewer gets all of them
    if (n_changes != v->events_sent) {
        v->events_sent = add_events(&k->delta, a->journal, v->events_sent, VIEWERS_EVENTS_MAX);
        k->any = true;
    }
    v->history_sent = n;
}

/* ---- pages ---- */

/* `sent` has as many pages as `codes`.  False: no memory. */
static bool fit_map(map *m) {
    if (m->n_sent == m->n) return true;
    uint32_t *grown = realloc(m->sent, (size_t)m->n * sizeof *grown);
    if (grown == NULL) return false;
    for (uint32_t i = m->n_sent; i < m->n; i++) grown[i] = PAGE_USE_ABSENT;
    m->sent = grown;
    m->n_sent = m->n;
    return true;
}

static void add_run(buf *out, bool first, uint32_t from, uint32_t n, uint32_t code) {
    buf_add_format(out, first ? "%u,%u,%u" : ",%u,%u,%u", from, n, code);
}

static void begin_map(buf *out, bool *first, uint32_t device_idx, uint32_t n) {
    buf_add_format(out,
                   *first ? ",\"pages\":[{\"device\":%u,\"n\":%u,\"runs\":["
                          : ",{\"device\":%u,\"n\":%u,\"runs\":[",
                   device_idx, n);
    *first = false;
}

/* Runs of neighbours that changed alike, as many as the delta has room for. */
static void look_at_map(look *k, uint32_t device_idx, bool *first) {
    map *m = &k->v->maps[device_idx];
    bool none = true;
    uint32_t from = m->next < m->n ? m->next : 0;
    m->next = 0;
    for (uint32_t j = 0, n; j < m->n; j += n) {
        uint32_t i = (from + j) % m->n, end = i < from ? from : m->n, code = m->codes[i];
        for (n = 1; i + n < end && m->codes[i + n] == m->codes[i] &&
                    (m->sent[i + n] != code) == (m->sent[i] != code);)
            n++;
        if (m->sent[i] == code) continue;
        if (k->delta.n > k->room) {
            m->next = i;
            break;
        }
        if (none) begin_map(&k->delta, first, device_idx, m->n);
        add_run(&k->delta, none, i, n, code);
        none = false;
        for (uint32_t p = i; p < i + n; p++) m->sent[p] = code;
    }
    if (!none) buf_add_str(&k->delta, "]}");
    k->any |= !none;
}

/* Another device first each time: the room may be too small for all. */
static void look_at_pages(look *k) {
    viewers *v = k->v;
    bool first = true;
    uint32_t n = fleet_n_devices(v->app->fleet);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t d = (v->n_looks + i) % n;
        engine *e = fleet_engine_to_watch(v->app->fleet, d);
        map *m = &v->maps[d];
        engine_pages_take(e, &m->codes, &m->n);
        engine_pages_ask(e);
        engine_watch_steps(e, k->now.us + 4 * VIEWERS_EVERY_MS * (uint64_t)1000);
        if (m->n > 0 && fit_map(m)) look_at_map(k, d, &first);
    }
    if (!first) buf_add_char(&k->delta, ']');
}

static void add_all_pages(const viewers *v, buf *out) {
    bool first = true;
    for (uint32_t d = 0; d < fleet_n_devices(v->app->fleet); d++) {
        const map *m = &v->maps[d];
        if (m->n_sent == 0) continue;
        begin_map(out, &first, d, m->n_sent);
        for (uint32_t i = 0, n; i < m->n_sent; i += n) {
            for (n = 1; i + n < m->n_sent && m->sent[i + n] == m->sent[i];) n++;
            add_run(out, i == 0, i, n, m->sent[i]);
        }
        buf_add_str(out, "]}");
    }
    buf_add_str(out, first ? ",\"pages\":[]" : "]");
}

/* ---- sending ---- */

static void add_list(const viewers *v, row_kind kind, buf *out) {
    const row_list *l = &v->lists[kind];
    bool first = true;
    buf_add_format(out, ",\"%s\":[", row_names[kind]);
    for (uint32_t i = 0; i < l->n; i++) {
        if (l->rows[i].text.n == 0) continue;
        if (!first) buf_add_char(out, ',');
        first = false;
        buf_add(out, l->rows[i].text.p, l->rows[i].text.n);
    }
    buf_add_char(out, ']');
}

/* Everything as it was sent to the other viewers. */
static void write_all(const viewers *v, int64_t now_ms, buf *out) {
    buf_add_format(out, "event: all\ndata: {\"now\":%lld,\"daemon\":", (long long)now_ms);
    buf_add(out, v->daemon.text.p, v->daemon.text.n);
    for (row_kind kind = 0; kind < ROW_KINDS; kind++) add_list(v, kind, out);
    buf_add_str(out, ",\"queue\":");
    buf_add(out, v->queue.text.p, v->queue.text.n);
    add_history(out, v->app->history, 0);
    add_events(out, v->app->journal, 0, JOURNAL_EVENTS);
    add_all_pages(v, out);
    buf_add_str(out, "}\n\n");
}

static void send_all(viewers *v, int64_t now_ms) {
    buf out = {0};
    LIST_EACH(node, &v->all) {
        viewer *w = LIST_ENTRY(node, viewer, link);
        if (!w->fresh || w->slow) continue;
        if (out.n == 0) write_all(v, now_ms, &out);
        if (out.failed) break;
        w->fresh = false;
        http_stream_write(w->rq, out.p, out.n);
    }
    buf_deinit(&out);
}

static void send_delta(viewers *v, const look *k) {
    LIST_EACH(node, &v->all) {
        viewer *w = LIST_ENTRY(node, viewer, link);
        w->fresh |= k->delta.failed || (w->slow && w->n_behind == VIEWERS_BEHIND_MAX);
        if (!k->any || w->fresh) continue;
        w->n_behind += w->slow;
        http_stream_write(w->rq, k->delta.p, k->delta.n);
    }
}

/* No viewer gets the delta: all of them get everything. */
static bool is_first(const viewers *v) {
    LIST_EACH(node, &v->all)
        if (!LIST_ENTRY(node, viewer, link)->fresh) return false;
    return true;
}

static void end_viewer(viewer *w) {
    http_request *rq = w->rq;
    rq->user = NULL;
    rq->on_gone = NULL;
    rq->on_reader = NULL;
    http_stream_end(rq);
    free_viewer(w);
}

/* Reloads and changes that took effect. */
static uint64_t count_configs(const viewers *v) {
    changer_about about;
    changer_get_about(v->changer, &about);
    return about.reloads.n_applied + about.changes.n_applied;
}

/* Another configuration may lack the key that a viewer came with: it has to show it again. */
static void check_keys(viewers *v) {
    uint64_t n_configs = count_configs(v);
    LIST_EACH_SAFE(node, next, &v->all) {
        viewer *w = LIST_ENTRY(node, viewer, link);
        if (w->keyed && w->n_configs != n_configs) end_viewer(w);
    }
}

/* The clocks are read one after the other, and a moment must not change by that. */
static view_now look_at_clocks(viewers *v) {
    enum { SAME_MS = 20 };
    view_now now = {.unix_ms = app_unix_ms(), .us = clock_now_us()};
    int64_t offset_ms = now.unix_ms - (int64_t)(now.us / 1000);
    if (llabs(offset_ms - v->offset_ms) > SAME_MS) v->offset_ms = offset_ms;
    now.offset_ms = v->offset_ms;
    return now;
}

void viewers_tick(viewers *v, uint64_t now_us) {
    if (v == NULL || v->n == 0 || now_us < v->due_us) return;
    check_keys(v);
    if (v->n == 0) return;
    v->due_us = now_us + VIEWERS_EVERY_MS * (uint64_t)1000;
    v->n_looks++;
    find_leaving(v);
    look k = {
        .v = v, .now = look_at_clocks(v), .room = is_first(v) ? SIZE_MAX : VIEWERS_DELTA_BYTES};
    if (app_recent_init(&k.recent, v->app, now_us)) {
        buf_add_format(&k.delta, "event: delta\ndata: {\"now\":%lld", (long long)k.now.unix_ms);
        look_at_rest(&k);
        /* Another kind first each time: the room may be too small for all. */
        for (uint32_t i = 0; i < ROW_KINDS; i++)
            look_at_list(&k, (row_kind)((v->n_looks + i) % ROW_KINDS));
        look_for_gone(&k);
        look_at_events(&k);
        look_at_pages(&k);
        buf_add_str(&k.delta, "}\n\n");
        send_delta(v, &k);
        send_all(v, k.now.unix_ms);
    }
    app_recent_deinit(&k.recent);
    buf_deinit(&k.delta);
    buf_deinit(&k.text);
    if (v->app->http != NULL) http_flush(v->app->http);
    if (v->app->http_admin != NULL) http_flush(v->app->http_admin);
}

/* ---- exchanges ---- */

static void on_gone(http_request *rq) {
    free_viewer(rq->user);
}

static void on_reader(http_request *rq, bool paused) {
    viewer *w = rq->user;
    w->slow = paused;
    w->n_behind = 0;
}

void viewers_add(viewers *v, http_request *rq) {
    if (rq->method == HTTP_HEAD) { // a stream would be its body
        http_answer(rq, 200, "text/event-stream", NULL, "Cache-Control: no-cache\n");
        return;
    }
    viewer *w = v->n < VIEWERS_MAX ? calloc(1, sizeof *w) : NULL;
    if (w == NULL) {
        if (v->n < VIEWERS_MAX)
            admin_refuse(rq, 503, "server_overloaded", NULL, "no memory");
        else
            admin_refuse(rq, 503, "too_many_viewers", NULL, "%u viewers are connected, at most %d",
                         v->n, VIEWERS_MAX);
        return;
    }
    if (!http_stream_begin(rq)) {
        free(w);
        admin_refuse(rq, 503, "server_overloaded", NULL, "no memory"); // nothing, if it left
        return;
    }
    *w = (viewer){.of = v,
                  .rq = rq,
                  .fresh = true,
                  .keyed = !http_is_trusted(rq),
                  .n_configs = count_configs(v)};
    list_push_back(&v->all, &w->link);
    v->n++;
    rq->user = w;
    rq->on_gone = on_gone;
    rq->on_reader = on_reader;
    v->due_us = 0; // everything comes with the next tick
}

void viewers_end(viewers *v) {
    if (v == NULL) return;
    v->due_us = 0;
    viewers_tick(v, clock_now_us()); // why the daemon ends
    LIST_EACH_SAFE(node, next, &v->all) end_viewer(LIST_ENTRY(node, viewer, link));
}
