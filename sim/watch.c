/* watch.c - see watch.h. */
#include "watch.h"

#include <math.h>
#include <string.h>

#include "report.h"
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
    if (w != NULL)
        *w = (watch){.n_tenants = n_tenants,
                     .n_models = n_models,
                     .n_flows = (uint32_t)n,
                     .models = models,
                     .terms = calloc(n, sizeof *w->terms),
                     .flows = calloc(n, sizeof *w->flows),
                     .used_us = calloc(2 * n, sizeof *w->used_us),
                     .hot = calloc(n_models, sizeof *w->hot)};
    if (w == NULL || w->terms == NULL || w->flows == NULL || w->used_us == NULL || w->hot == NULL) {
        watch_destroy(w);
        return inferd_fail(err, INFERD_ENOMEM, "no memory to watch %llu flows",
                           (unsigned long long)n);
    }
    w->due_us = w->used_us + n;
    for (uint32_t i = 0; i < w->n_flows; i++) {
        w->terms[i] = (stats_flow){.policy = SHARE_BESTEFFORT, .weight = 1, .prio = GEN_NORMAL};
        w->flows[i].since_us = NOT_BACKLOGGED;
    }
    *out = w;
    return INFERD_OK;
}

void watch_destroy(watch *w) {
    if (w == NULL) return;
    free(w->terms);
    free(w->flows);
    free(w->used_us);
    free(w->hot);
    free(w->service.items);
    free(w->backlog.items);
    free(w->begins_us);
    free(w);
}

static void add(watch *w, watch_spans *to, stats_span span) {
    stats_span *grown = array_grow(to->items, to->n, &to->capacity, sizeof *grown);
    w->failed |= grown == NULL;
    if (grown == NULL) return;
    to->items = grown;
    to->items[to->n++] = span;
}

/* ---- backlog ---- */

/* Updates its backlog: it begins, ends or goes on. */
static void look(watch *w, uint32_t idx, uint64_t now_us) {
    bool is = w->flows[idx].n_requests > 0 && w->hot[idx % w->n_models];
    bool was = w->flows[idx].since_us != NOT_BACKLOGGED;
    if (is == was) return;
    if (was) add(w, &w->backlog, (stats_span){idx, w->flows[idx].since_us, now_us, 0});
    w->flows[idx].since_us = is ? now_us : NOT_BACKLOGGED;
}

void watch_arrive(watch *w, uint32_t tenant_idx, uint32_t model_idx, gen_class prio,
                  uint64_t now_us) {
    uint32_t idx = tenant_idx * w->n_models + model_idx;
    INFERD_CHECK(tenant_idx < w->n_tenants && model_idx < w->n_models);
    w->flows[idx].n_requests++;
    w->flows[idx].seen = true;
    w->terms[idx].prio = prio;
    look(w, idx, now_us);
}

void watch_leave(watch *w, uint32_t tenant_idx, uint32_t model_idx, uint64_t now_us) {
    uint32_t idx = tenant_idx * w->n_models + model_idx;
    INFERD_CHECK(w->flows[idx].n_requests > 0);
    w->flows[idx].n_requests--;
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
    uint64_t *grown = array_grow(w->begins_us, w->n_steps, &w->steps_capacity, sizeof *grown);
    w->failed |= grown == NULL;
    if (grown == NULL) return;
    w->begins_us = grown;
    w->begins_us[w->n_steps++] = begin_us;
}

void watch_step(watch *w, const step *st, uint64_t begin_us, uint64_t end_us) {
    const sim_cost *cost = &w->models[st->model_idx].cost;
    double total = 0;
    note_begin(w, begin_us);
    for (uint32_t i = 0; i < st->b.n_seqs; i++) {
        const gen_request *r = st->items[i].q->req;
        double ns = item_ns(cost, st, &st->items[i]);
        w->flows[r->tenant_idx * w->n_models + st->model_idx].part += ns;
        total += ns;
    }
    for (uint32_t t = 0; t < w->n_tenants; t++) {
        uint32_t idx = t * w->n_models + st->model_idx;
        if (w->flows[idx].part == 0) continue;
        double us = (double)(end_us - begin_us) * w->flows[idx].part / total;
        add(w, &w->service, (stats_span){idx, begin_us, end_us, us});
        w->flows[idx].part = 0;
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

/* (sum x)^2 / (n sum x^2) of service by weight, or of service by what was due: 1 when all flows are
 * alike, 1/n when one has everything; NAN when there is nothing. */
static double jain(const watch *w, bool of_due) {
    double sum = 0, squares = 0, n = 0;
    for (uint32_t i = 0; i < w->n_flows; i++) {
        double by = of_due ? w->due_us[i] : u32_max(w->terms[i].weight, 1);
        if (!w->flows[i].seen || by <= 0) continue;
        double x = w->used_us[i] / by;
        sum += x, squares += x * x, n++;
    }
    return squares > 0 ? sum * sum / (n * squares) : (double)NAN;
}

inferd_status watch_sum(watch *w, uint64_t begin_us, uint64_t end_us, double floor_percent,
                        watch_figures *out, inferd_err *err) {
    size_t n_closed = w->backlog.n;
    for (uint32_t i = 0; i < w->n_flows; i++) // the backlogs that go on
        if (w->flows[i].since_us < end_us)
            add(w, &w->backlog, (stats_span){i, w->flows[i].since_us, end_us, 0});
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
    w->backlog.n = n_closed;
    if (w->failed) return inferd_fail(err, INFERD_ENOMEM, "no memory for the watched figures");
    inferd_status st = stats_shares(&run, out->errors, w->used_us, w->due_us, err);
    out->jain_weighted = jain(w, false);
    out->jain_due = jain(w, true);
    return st;
}
