/* experiment_shares.c - see experiment.h: do shares hold?
 *
 * Every flow always has more work than its fixed share, so its entitled time is the share itself.
 * The measured time is what the device computed (watch.h), in every window of ten seconds. */
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

static void set(figures *f, const shares_case *c, uint32_t seed_idx, const run_figures *r,
                const world *w) {
    sched_counters n;
    sched_count(w->core.sched, &n);
    const figure_row rows[] = {
        {"share error, 1 s", "points", 2, experiment_error(r, 0)},
        {"share error, 10 s", "points", 2, experiment_error(r, 1)},
        {"share error, 60 s", "points", 2, experiment_error(r, 2)},
        {"Jain, service / due", "", 4, r->watched.jain_due},
        {"computed again after preemptions", "%", 2,
         100 * (double)n.waste_us / (double)w->device->step_us},
    };
    figures_set(f, c->name, seed_idx, rows, INFERD_COUNT(rows));
    for (uint32_t i = 0; i < c->n; i++) {
        char name[FIGURES_TEXT_BYTES];
        snprintf(name, sizeof name, "has of %u", c->percent[i]);
        if (i > 0 && c->percent[i] == c->percent[i - 1])
            snprintf(name, sizeof name, "has of %u, number %u", c->percent[i], i + 1);
        double had = 100 * w->watch->flows[i].used_us / (r->offered_s * 1e6);
        figures_set(f, c->name, seed_idx, &(figure_row){name, "%", 2, had}, 1);
    }
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
        st = experiment_run(&one, e->seed0 + i, &r, &w, err);
        if (st == INFERD_OK) set(f, c, i, &r, w);
        world_destroy(w);
    }
    return st;
}

inferd_status experiment_shares(const experiment *e, figures *f, inferd_err *err) {
    dedicated base;
    snprintf(f->title, sizeof f->title, "fixed shares, all saturated, %g s", e->seconds);
    inferd_status st = experiment_dedicated(e, f, &base, err);
    for (size_t k = 0; k < INFERD_COUNT(CASES) && st == INFERD_OK; k++)
        st = run_case(e, &CASES[k], base.capacity_per_s, f, err);
    return st;
}
