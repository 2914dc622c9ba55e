/* watch.c - see watch.h. */
#include "watch.h"

#include <math.h>
#include <string.h>

#include "report.h"
#include "scheduler.h"
#include "seq.h"

const uint64_t watch_windows_us[WATCH_WINDOWS] = {1000000, 10000000, 60000000};

inferd_status watch_create(const sim_model *models, uint32_t n_models, uint32_t n_tenants,
                           watch **out, inferd_err *err) {
    uint64_t n = (uint64_t)n_models * n_tenants;
    *out = NULL;
    if (n == 0 || n > WATCH_FLOWS_MAX)
        return inferd_fail(err, INFERD_EINVAL, "%u models of %u tenants, expected 1 to %d in all",
                           n_models, n_tenants, WATCH_FLOWS_MAX);
    watch *w = calloc(1, sizeof *w);
    if (w != NULL)
        *w = (watch){.n_tenants = n_tenants,
                     .n_models = n_models,
                     .n_flows = (uint32_t)n,
                     .models = models,
                     .flows = calloc(n, sizeof *w->flows),
                     .hot = calloc(n_models, sizeof *w->hot)};
    if (w == NULL || w->flows == NULL || w->hot == NULL) {
        watch_destroy(w);
        return inferd_fail(err, INFERD_ENOMEM, "no memory to watch %llu flows",
                           (unsigned long long)n);
    }
    for (uint32_t i = 0; i < w->n_flows; i++)
        w->flows[i].terms =
            (watch_terms){.policy = SHARE_BESTEFFORT, .weight = 1, .prio = GEN_NORMAL};
    *out = w;
    return INFERD_OK;
}

void watch_destroy(watch *w) {
    if (w == NULL) return;
    for (uint32_t i = 0; w->flows != NULL && i < w->n_flows; i++) {
        free(w->flows[i].used.points);
        free(w->flows[i].due.points);
    }
    free(w->flows);
    free(w->hot);
    free(w->begins_us);
    free(w);
}

/* ---- lines ---- */

static void fail(watch *w) {
    if (w->failure.status == INFERD_OK)
        inferd_fail(&w->failure, INFERD_ENOMEM, "no memory for the watched figures");
}

static void line_add(watch *w, watch_line *l, double t, double y) {
    if (l->n > 0 && l->points[l->n - 1].t == t) l->n--; // it replaces that one
    watch_point *grown = array_grow(l->points, l->n, &l->capacity, sizeof *grown);
    if (grown == NULL) {
        fail(w);
        return;
    }
    l->points = grown;
    l->points[l->n++] = (watch_point){t, y};
}

/* y at t; `at` remembers the position, so that calls with ascending t are cheap. */
static double line_at(const watch_line *l, double t, size_t *at) {
    if (l->n == 0) return 0;
    if (t <= l->points[0].t) return l->points[0].y;
    while (*at + 1 < l->n && l->points[*at + 1].t <= t) (*at)++;
    const watch_point *p = &l->points[*at];
    if (*at + 1 == l->n) return p->y;
    return p->y + (p[1].y - p->y) * (t - p->t) / (p[1].t - p->t);
}

/* ---- what is due ---- */

static bool takes_surplus(const watch_flow *f) {
    return f->backlogged && f->terms.policy != SHARE_FIXED && f->terms.weight > 0;
}

/* Divides `amount` by weight among the takers of classes [from, to); returns the rest. */
static double pour(watch *w, uint32_t from, uint32_t to, double amount) {
    const double nothing = 1e-9; // percent: rounding error of the sums
    double weights = 0;
    if (amount <= nothing) return fmax(amount, 0);
    for (int adds = 0; adds < 2; adds++)
        for (uint32_t i = 0; i < w->n_flows; i++) {
            watch_flow *f = &w->flows[i];
            if (!takes_surplus(f) || f->terms.prio < from || f->terms.prio >= to) continue;
            if (adds == 1) f->percent += amount / weights * f->terms.weight;
            if (adds == 0) weights += f->terms.weight;
        }
    return weights > 0 ? 0 : amount;
}

inferd_status watch_entitle(watch *w, inferd_err *err) {
    const double whole = 100, rounding = 1e-6;
    double left = whole;
    uint32_t first = GEN_CLASSES; // the most urgent class that takes surplus
    for (uint32_t i = 0; i < w->n_flows; i++) {
        watch_flow *f = &w->flows[i];
        f->percent = f->backlogged && f->terms.policy != SHARE_BESTEFFORT ? f->terms.percent : 0;
        left -= f->percent;
        if (takes_surplus(f)) first = u32_min(first, f->terms.prio);
    }
    if (left < -rounding)
        return inferd_fail(err, INFERD_EINVAL, "shares add up to %g percent, the capacity is %g",
                           whole - left, whole);
    double reserved = left * w->floor_percent / 100;
    double unplaced = pour(w, first + 1, GEN_CLASSES, reserved);
    left += unplaced - reserved;
    for (uint32_t prio = first; prio < GEN_CLASSES; prio++) left = pour(w, prio, prio + 1, left);
    return INFERD_OK;
}

/* Adds what was due up to now_us at the old percentages. */
static void catch_up(watch *w, uint64_t now_us) {
    for (uint32_t i = 0; i < w->n_flows; i++)
        w->flows[i].due_sum += w->flows[i].percent / 100 * (double)(now_us - w->turned_us);
    w->turned_us = now_us;
}

/* A backlog may begin or end: then the slopes of what is due change. */
static void look(watch *w, uint32_t idx, uint64_t now_us) {
    watch_flow *f = &w->flows[idx];
    bool backlogged = f->n_requests > 0 && w->hot[idx % w->n_models];
    inferd_err err = {0};
    double before[WATCH_FLOWS_MAX];
    if (backlogged == f->backlogged) return;
    catch_up(w, now_us);
    f->backlogged = backlogged;
    for (uint32_t i = 0; i < w->n_flows; i++) before[i] = w->flows[i].percent;
    if (watch_entitle(w, &err) != INFERD_OK && w->failure.status == INFERD_OK) w->failure = err;
    for (uint32_t i = 0; i < w->n_flows; i++)
        if (w->flows[i].percent != before[i])
            line_add(w, &w->flows[i].due, (double)now_us, w->flows[i].due_sum);
}

void watch_arrive(watch *w, uint32_t tenant_idx, uint32_t model_idx, gen_class prio,
                  uint64_t now_us) {
    uint32_t idx = tenant_idx * w->n_models + model_idx;
    INFERD_CHECK(tenant_idx < w->n_tenants && model_idx < w->n_models);
    w->flows[idx].n_requests++;
    w->flows[idx].seen = true;
    w->flows[idx].terms.prio = prio;
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

void watch_serve(watch *w, uint32_t flow_idx, uint64_t begin_us, uint64_t end_us, double us) {
    watch_line *l = &w->flows[flow_idx].used;
    double before_us = l->n > 0 ? l->points[l->n - 1].y : 0;
    line_add(w, l, (double)begin_us, before_us);
    line_add(w, l, (double)end_us, before_us + us);
}

void watch_step(watch *w, const step *st, uint64_t begin_us, uint64_t end_us) {
    const sim_cost *cost = &w->models[st->model_idx].cost;
    double total = 0;
    uint64_t *grown = array_grow(w->begins_us, w->n_steps, &w->steps_capacity, sizeof *grown);
    if (grown == NULL) {
        fail(w);
        return;
    }
    w->begins_us = grown;
    w->begins_us[w->n_steps++] = begin_us;
    for (uint32_t i = 0; i < st->b.n_seqs; i++) {
        const gen_request *r = st->items[i].q->req;
        double ns = item_ns(cost, st, &st->items[i]);
        w->flows[r->tenant_idx * w->n_models + st->model_idx].part += ns;
        total += ns;
    }
    for (uint32_t i = st->model_idx; i < w->n_flows; i += w->n_models) {
        double part = w->flows[i].part / total;
        if (part > 0) watch_serve(w, i, begin_us, end_us, (double)(end_us - begin_us) * part);
        w->flows[i].part = 0;
    }
}

/* Looks back from the newest: a request waits for few steps. */
size_t watch_steps_since(const watch *w, uint64_t from_us) {
    size_t n = 0;
    while (n < w->n_steps && w->begins_us[w->n_steps - 1 - n] >= from_us) n++;
    return n > 0 ? n - 1 : 0;
}

/* ---- figures ---- */

/* Positions in the lines for the two ends of a window that only moves forward. */
typedef struct cursor {
    size_t used_old, used_new, due_old, due_new;
} cursor;

static void measure(const watch *w, uint32_t idx, cursor *at, double end_us, double window_us,
                    watch_error *worst) {
    const watch_flow *f = &w->flows[idx];
    double used = line_at(&f->used, end_us, &at->used_new) -
                  line_at(&f->used, end_us - window_us, &at->used_old);
    double due =
        line_at(&f->due, end_us, &at->due_new) - line_at(&f->due, end_us - window_us, &at->due_old);
    double points = 100 * fabs(used - due) / window_us;
    if (worst->is_known && points <= worst->points) return;
    *worst = (watch_error){points, 100 * used / window_us, 100 * due / window_us,
                           idx,    (uint64_t)end_us,       true};
}

/* The slope of the difference over a window changes only where one of its ends meets a point, so
 * the maximum is at such an end: ends at t and t + window for all points t of both lines, and at
 * the two limits.  Four ascending sequences are merged. */
static void find_worst(const watch *w, uint32_t idx, double first, double last, double window_us,
                       watch_error *worst) {
    const watch_line *used = &w->flows[idx].used, *due = &w->flows[idx].due;
    const watch_line *rows[4] = {used, used, due, due};
    const double shifts[4] = {0, window_us, 0, window_us};
    size_t next[4] = {0};
    cursor at = {0};
    if (first > last) return; // the run is shorter than the window
    measure(w, idx, &at, first, window_us, worst);
    for (;;) {
        double end_us = INFINITY;
        int least = 0;
        for (int k = 0; k < 4; k++) {
            if (next[k] == rows[k]->n) continue;
            double t = rows[k]->points[next[k]].t + shifts[k];
            if (t < end_us) end_us = t, least = k;
        }
        if (end_us > last) break;
        next[least]++;
        if (end_us > first) measure(w, idx, &at, end_us, window_us, worst);
    }
    measure(w, idx, &at, last, window_us, worst);
}

static double jain(const watch *w, bool of_due) {
    double sum = 0, squares = 0, n = 0;
    for (uint32_t i = 0; i < w->n_flows; i++) {
        const watch_flow *f = &w->flows[i];
        double by = of_due ? f->due_us : u32_max(f->terms.weight, 1);
        if (!f->seen || by <= 0) continue;
        double x = f->used_us / by;
        sum += x, squares += x * x, n++;
    }
    return squares > 0 ? sum * sum / (n * squares) : (double)NAN;
}

static double between(const watch_line *l, uint64_t begin_us, uint64_t end_us) {
    size_t at = 0;
    double before_us = line_at(l, (double)begin_us, &at);
    return line_at(l, (double)end_us, &at) - before_us;
}

inferd_status watch_sum(watch *w, uint64_t begin_us, uint64_t end_us, watch_figures *out,
                        inferd_err *err) {
    *out = (watch_figures){0};
    catch_up(w, u64_max(w->turned_us, end_us)); // the backlogs that go on
    for (uint32_t i = 0; i < w->n_flows; i++) {
        watch_flow *f = &w->flows[i];
        line_add(w, &f->due, (double)w->turned_us, f->due_sum);
        f->used_us = between(&f->used, begin_us, end_us);
        f->due_us = between(&f->due, begin_us, end_us);
        for (int k = 0; k < WATCH_WINDOWS; k++)
            find_worst(w, i, (double)(begin_us + watch_windows_us[k]), (double)end_us,
                       (double)watch_windows_us[k], &out->errors[k]);
    }
    out->jain_weighted = jain(w, false);
    out->jain_due = jain(w, true);
    if (w->failure.status != INFERD_OK) *err = w->failure;
    return w->failure.status;
}
