/* experiment_shares.c - see experiment.h: do shares hold?
 *
 * Every flow always has more work than its fixed share, so its entitled time is the share itself.
 * The measured time is what the device computed (watch.h), in every window of ten seconds. */
#include <math.h>
#include <string.h>

#include "experiment.h"

enum { PARTS_MAX = 5, QUEUE_LEN = 1 << 16 };
#define OVERLOAD                                                                                   \
    1.2 // times the throughput of a dedicated device in the largest share, offered to each

typedef struct shares_case {
    const char *name;
    bool by_model; // false: by tenant of one model
    uint32_t n, percent[PARTS_MAX];
} shares_case;

static const shares_case CASES[] = {
    {"tenant 5", false, 1, {5}},
    {"tenant 50", false, 1, {50}},
    {"tenants 5 95", false, 2, {5, 95}},
    {"tenants 5 10 25 60", false, 4, {5, 10, 25, 60}},
    {"tenants 20 x 5", false, 5, {20, 20, 20, 20, 20}},
    {"models 5 10 25 60", true, 4, {5, 10, 25, 60}},
};
enum { N_CASES = INFERD_COUNT(CASES) };

static inferd_status set(figures *f, const shares_case *c, uint32_t seed_idx, const run_figures *r,
                         const world *w, double seconds, inferd_err *err) {
    char name[FIGURES_TEXT_BYTES];
    watch_figures x;
    uint64_t window_us = (uint64_t)(seconds * 1e6);
    inferd_status st = watch_sum(w->cores[0].watch, w->begin_us, w->begin_us + window_us,
                                 w->options.sched.starvation_percent, &x, err);
    if (st != INFERD_OK) return st;
    static const char *const NAMES[STATS_WINDOWS] = {"share error, 1 s", "share error, 10 s",
                                                     "share error, 60 s"};
    for (int k = 0; k < STATS_WINDOWS && st == INFERD_OK; k++)
        st = figures_set(f, c->name, NAMES[k], "points", 2, seed_idx, r->share_points[k], err);
    if (st == INFERD_OK)
        st = figures_set(f, c->name, "Jain, service / due", "", 4, seed_idx, r->jain_due, err);
    sched_counters n;
    sched_count(w->cores[0].core.sched, &n);
    if (st == INFERD_OK)
        st = figures_set(f, c->name, "computed again after preemptions", "%", 2, seed_idx,
                         100 * (double)n.waste_us / (double)w->cores[0].device->step_us, err);
    for (uint32_t i = 0; i < c->n && st == INFERD_OK; i++) {
        snprintf(name, sizeof name, "has of %u", c->percent[i]);
        if (i > 0 && c->percent[i] == c->percent[i - 1])
            snprintf(name, sizeof name, "has of %u, number %u", c->percent[i], i + 1);
        st = figures_set(f, c->name, name, "%", 2, seed_idx, 100 * x.used_us[i] / (seconds * 1e6),
                         err);
    }
    watch_figures_deinit(&x);
    return st;
}

static inferd_status draw(const experiment *e, const figures *f, inferd_err *err) {
    double y[N_CASES], lo[N_CASES], hi[N_CASES];
    const char *names[N_CASES];
    static const double GOAL[] = {1};
    for (size_t k = 0; k < N_CASES; k++) {
        experiment_point(f, CASES[k].name, "share error, 10 s", k, y, lo, hi);
        names[k] = CASES[k].name;
    }
    plot_series series = {.name = "largest error in 10 s",
                          .mark = PLOT_BAR,
                          .y = y,
                          .lo = lo,
                          .hi = hi,
                          .n = N_CASES};
    plot p = {.title = "Fixed shares",
              .x_label = "shares, percent",
              .y_label = "points",
              .series = &series,
              .n_series = 1,
              .bar_names = names,
              .n_bars = N_CASES,
              .levels = GOAL,
              .n_levels = 1};
    return experiment_plot(e, &p, err);
}

static inferd_status run_case(const experiment *e, const shares_case *c, double capacity_per_s,
                              figures *f, inferd_err *err) {
    uint32_t largest = 0;
    share_spec shares[PARTS_MAX];
    tenant_policy tenants[PARTS_MAX];
    experiment one = *e;
    inferd_status st = INFERD_OK;
    for (uint32_t i = 0; i < c->n; i++) {
        largest = u32_max(largest, c->percent[i]);
        shares[i] = (share_spec){SHARE_FIXED, c->percent[i], 1};
        tenants[i] = (tenant_policy){.weight = 1, .max_class = GEN_HIGH, .share = shares[i]};
    }
    one.n_devices = 1;
    one.mix = WORKLOAD_MIX_M;
    one.watched = true;
    one.queue_len = QUEUE_LEN;
    one.n_models = c->by_model ? c->n : 1;
    one.lambda = OVERLOAD * capacity_per_s * largest / 100;
    if (c->by_model) {
        one.model_shares = shares;
    } else {
        one.tenants = tenants;
        one.n_tenants = c->n;
        one.lambda *= c->n;
    }
    for (uint32_t i = 0; i < e->n_seeds && st == INFERD_OK; i++) {
        run_figures r;
        world *w = NULL;
        st = experiment_run_world(&one, e->seed0 + i, 0, 1, 0, 0, &r, &w, err);
        if (st == INFERD_OK) st = set(f, c, i, &r, w, one.seconds, err);
        world_destroy(w);
    }
    return st;
}

inferd_status experiment_shares(const experiment *e, inferd_err *err) {
    figures f = {0};
    slo_base base;
    experiment_print_constants(e);
    inferd_status st = experiment_base(e, &base, err);
    if (st == INFERD_OK)
        printf("each tenant or model is offered %g times what the largest share completes of %.2f "
               "requests/s\n",
               OVERLOAD, base.capacity_per_s);
    if (st == INFERD_OK) st = experiment_figures(e, &f, "fixed shares, all saturated", err);
    if (st == INFERD_OK)
        st = figures_note(&f, "results", "dedicated_ends_per_s", base.capacity_per_s, err);
    for (size_t k = 0; k < N_CASES && st == INFERD_OK; k++)
        st = run_case(e, &CASES[k], base.capacity_per_s, &f, err);
    if (st == INFERD_OK) st = experiment_tell(e, &f, err);
    if (st == INFERD_OK) st = draw(e, &f, err);
    figures_deinit(&f);
    return st;
}
