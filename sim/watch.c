/* watch.c - see watch.h. */
#include "watch.h"

#include <math.h>
#include <string.h>

#include "scheduler.h"
#include "seq.h"

#define NOT_BACKLOGGED UINT64_MAX

inferd_status watch_create(const sim_model *models, uint32_t n_models, uint32_t n_tenants,
                           watch **out, inferd_err *err) {
    uint64_t n = (uint64_t)n_models * n_tenants;
    *out = NULL;
    if (n == 0 || n > STATS_FLOWS_MAX)
        return inferd_fail(err, INFERD_EINVAL, "%u models of %u tenants, expected 1 to %d in all",
                           n_models, n_tenants, STATS_FLOWS_MAX);
    watch *w = calloc(1, sizeof *w);
    if (w != NULL) {
        *w = (watch){.n_tenants = n_tenants,
                     .n_models = n_models,
                     .n_flows = (uint32_t)n,
                     .models = models,
                     .terms = calloc(n, sizeof *w->terms),
                     .n_requests = calloc(n, sizeof *w->n_requests),
                     .since_us = malloc(n * sizeof *w->since_us),
                     .part = calloc(n, sizeof *w->part),
                     .seen = calloc(n, sizeof *w->seen),
                     .hot = calloc(n_models, sizeof *w->hot)};
    }
    if (w == NULL || w->terms == NULL || w->n_requests == NULL || w->since_us == NULL ||
        w->part == NULL || w->seen == NULL || w->hot == NULL) {
        watch_destroy(w);
        return inferd_fail(err, INFERD_ENOMEM, "no memory to watch %llu flows",
                           (unsigned long long)n);
    }
    for (uint32_t i = 0; i < w->n_flows; i++) {
        w->terms[i] = (stats_flow){.policy = SHARE_BESTEFFORT, .weight = 1, .prio = GEN_NORMAL};
        w->since_us[i] = NOT_BACKLOGGED;
    }
    *out = w;
    return INFERD_OK;
}

void watch_destroy(watch *w) {
    if (w == NULL) return;
    free(w->terms);
    free(w->n_requests);
    free(w->since_us);
    free(w->part);
    free(w->seen);
    free(w->hot);
    free(w->service.items);
    free(w->backlog.items);
    free(w->begins_us);
    free(w);
}

static void add(watch *w, watch_spans *to, stats_span span) {
    if (to->n == to->capacity) {
        size_t capacity = to->capacity == 0 ? 1024 : 2 * to->capacity;
        stats_span *items = realloc(to->items, capacity * sizeof *items);
        if (items == NULL) {
            w->failed = true;
            return;
        }
        to->items = items;
        to->capacity = capacity;
    }
    to->items[to->n++] = span;
}

/* ---- backlog ---- */

/* Updates its backlog: it begins, ends or goes on. */
static void look(watch *w, uint32_t idx, uint64_t now_us) {
    bool is = w->n_requests[idx] > 0 && w->hot[idx % w->n_models];
    bool was = w->since_us[idx] != NOT_BACKLOGGED;
    if (is == was) return;
    if (was) add(w, &w->backlog, (stats_span){idx, w->since_us[idx], now_us, 0});
    w->since_us[idx] = is ? now_us : NOT_BACKLOGGED;
}

void watch_arrive(watch *w, uint32_t tenant_idx, uint32_t model_idx, gen_class prio,
                  uint64_t now_us) {
    uint32_t idx = tenant_idx * w->n_models + model_idx;
    INFERD_CHECK(tenant_idx < w->n_tenants && model_idx < w->n_models);
    w->n_requests[idx]++;
    w->seen[idx] = true;
    w->terms[idx].prio = prio;
    look(w, idx, now_us);
}

void watch_leave(watch *w, uint32_t tenant_idx, uint32_t model_idx, uint64_t now_us) {
    uint32_t idx = tenant_idx * w->n_models + model_idx;
    INFERD_CHECK(w->n_requests[idx] > 0);
    w->n_requests[idx]--;
    look(w, idx, now_us);
}

void watch_hot(watch *w, uint32_t model_idx, bool hot, uint64_t now_us) {
    if (w->hot[model_idx] == hot) return;
    w->hot[model_idx] = hot;
    for (uint32_t i = model_idx; i < w->n_flows; i += w->n_models) look(w, i, now_us);
}

/* ---- service ---- */

/* Device time of one sequence: its part of the fixed cost, and its own rows. */
static double item_ns(const sim_cost *c, const step *st, const step_item *item) {
    double kept = (double)item->begin + item->n_rows;
    double attended = (double)item->n_rows * ((double)item->begin + (item->n_rows + 1) / 2.0);
    return (double)c->fixed_ns / st->b.n_seqs + (double)c->row_ns * item->n_rows +
           (double)c->draw_ns * item->n_draws + (double)c->kept_ps * kept / 1e3 +
           (double)c->attended_ps * attended / 1e3;
}

static void note_begin(watch *w, uint64_t begin_us) {
    if (w->n_steps == w->steps_capacity) {
        size_t capacity = w->steps_capacity == 0 ? 1024 : 2 * w->steps_capacity;
        uint64_t *grown = realloc(w->begins_us, capacity * sizeof *grown);
        if (grown == NULL) {
            w->failed = true;
            return;
        }
        w->begins_us = grown;
        w->steps_capacity = capacity;
    }
    w->begins_us[w->n_steps++] = begin_us;
}

void watch_step(watch *w, const step *st, uint64_t begin_us, uint64_t end_us) {
    const sim_cost *cost = &w->models[st->model_idx].cost;
    double total = 0;
    note_begin(w, begin_us);
    for (uint32_t i = 0; i < st->b.n_seqs; i++) {
        const gen_request *r = st->items[i].q->req;
        double ns = item_ns(cost, st, &st->items[i]);
        w->part[r->tenant_idx * w->n_models + st->model_idx] += ns;
        total += ns;
    }
    for (uint32_t t = 0; t < w->n_tenants; t++) {
        uint32_t idx = t * w->n_models + st->model_idx;
        if (w->part[idx] == 0) continue;
        double us = (double)(end_us - begin_us) * w->part[idx] / total;
        add(w, &w->service, (stats_span){idx, begin_us, end_us, us});
        w->part[idx] = 0;
    }
}

size_t watch_steps_since(const watch *w, uint64_t from_us) {
    size_t lo = 0, hi = w->n_steps; // the first that began at from_us or later
    while (lo < hi) {
        size_t middle = lo + (hi - lo) / 2;
        if (w->begins_us[middle] < from_us)
            lo = middle + 1;
        else
            hi = middle;
    }
    return lo < w->n_steps ? w->n_steps - lo - 1 : 0;
}

/* ---- figures ---- */

void watch_figures_deinit(watch_figures *f) {
    free(f->used_us);
    free(f->due_us);
    *f = (watch_figures){0};
}

static inferd_status fairness(const watch *w, watch_figures *out, inferd_err *err) {
    size_t n = 0, n_due = 0;
    double *weighted = malloc(w->n_flows * sizeof *weighted);
    double *due = malloc(w->n_flows * sizeof *due);
    bool good = weighted != NULL && due != NULL;
    for (uint32_t i = 0; good && i < w->n_flows; i++) {
        if (!w->seen[i]) continue;
        weighted[n++] = out->used_us[i] / u32_max(w->terms[i].weight, 1);
        if (out->due_us[i] > 0) due[n_due++] = out->used_us[i] / out->due_us[i];
    }
    if (good) {
        out->jain_weighted = stats_jain(weighted, n);
        out->jain_due = stats_jain(due, n_due);
    }
    free(weighted);
    free(due);
    return good ? INFERD_OK : inferd_fail(err, INFERD_ENOMEM, "no memory for the fairness");
}

inferd_status watch_sum(watch *w, uint64_t begin_us, uint64_t end_us, double floor_percent,
                        watch_figures *out, inferd_err *err) {
    *out = (watch_figures){.used_us = calloc(w->n_flows, sizeof *out->used_us),
                           .due_us = calloc(w->n_flows, sizeof *out->due_us)};
    size_t n_closed = w->backlog.n;
    for (uint32_t i = 0; i < w->n_flows; i++) // the backlogs that go on
        if (w->since_us[i] < end_us)
            add(w, &w->backlog, (stats_span){i, w->since_us[i], end_us, 0});
    const stats_run run = {.flows = w->terms,
                           .n_flows = w->n_flows,
                           .capacity = 100,
                           .floor_percent = floor_percent,
                           .backlog = w->backlog.items,
                           .n_backlog = w->backlog.n,
                           .service = w->service.items,
                           .n_service = w->service.n,
                           .begin_us = begin_us,
                           .end_us = end_us};
    inferd_status st = INFERD_OK;
    if (w->failed || out->used_us == NULL || out->due_us == NULL)
        st = inferd_fail(err, INFERD_ENOMEM, "no memory for the watched figures");
    if (st == INFERD_OK) st = stats_share_errors(&run, out->errors, err);
    if (st == INFERD_OK) st = stats_entitled_us(&run, out->due_us, err);
    if (st == INFERD_OK) {
        stats_used_us(&run, out->used_us);
        st = fairness(w, out, err);
    }
    w->backlog.n = n_closed;
    if (st != INFERD_OK) watch_figures_deinit(out);
    return st;
}
