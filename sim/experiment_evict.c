/* experiment_evict.c - see experiment.h: load time caused by evictions.
 *
 * The daemon's own residency in a world: the same requests, with four values of an idle model: the
 * daemon's own, its idle time (LRU), its arrival rate over the whole run, or its next use
 * (clairvoyant).  Everything else (bring-up order, classes, time slices, keys and values) is the
 * same code.  The last two do not evict a model if the others do not need its memory. */
#include "experiment.h"

typedef struct evict_case {
    const char *name;
    workload_kind mix;
    uint32_t n_models;
    double rate_per_s; // see workload_kind
    bool mixed;        // models of several sizes
} evict_case;

/* About half of the weights needed at the same time fit, and the device is not overloaded. */
static const evict_case CASES[] = {
    {"MIX-M", WORKLOAD_MIX_M, 10, 0.037, false}, {"MIX-M, sizes", WORKLOAD_MIX_M, 12, 0.02, true},
    {"MIX-Z", WORKLOAD_MIX_Z, 12, 0.4, false},   {"MIX-Z, sizes", WORKLOAD_MIX_Z, 14, 0.3, true},
    {"MIX-B", WORKLOAD_MIX_B, 10, 0.1, false},
};
static const char *const WORTH_NAMES[] = {"product", "LRU", "knows the rates", "clairvoyant"};
static const char *const SIZE_NAMES[] = {"8b", "3b", "14b", "1b"};
enum { N_WORTHS = INFERD_COUNT(WORTH_NAMES), N_SIZES = INFERD_COUNT(SIZE_NAMES) };

static inferd_status run_seed(const experiment *e, figures *f, const evict_case *c,
                              uint32_t seed_idx, inferd_err *err) {
    const sim_shape *sizes[N_SIZES];
    for (size_t i = 0; i < N_SIZES; i++) sizes[i] = sim_shape_find(SIZE_NAMES[i]);
    experiment one = *e;
    run_figures r[N_WORTHS];
    one.mix = c->mix;
    one.n_models = c->n_models;
    one.lambda = c->rate_per_s;
    if (c->mixed) one.shapes = sizes, one.n_shapes = N_SIZES;
    for (int k = 0; k < N_WORTHS; k++) {
        one.worth = (world_worth)k;
        inferd_status st = experiment_run(&one, e->seed0 + seed_idx, &r[k], NULL, err);
        if (st != INFERD_OK) return st;
    }
    double best = (double)r[WORLD_WORTH_FUTURE].usage.copied_us;
    for (int k = 0; k < N_WORTHS; k++) {
        char group[FIGURES_TEXT_BYTES];
        double copied_us = (double)r[k].usage.copied_us;
        snprintf(group, sizeof group, "%s, %s", c->name, WORTH_NAMES[k]);
        const figure_row rows[] = {
            {"reload time per request", "s", 4,
             copied_us / 1e6 / (double)r[k].all.attained.n_offered},
            {"above the clairvoyant", "%", 2, 100 * (copied_us / best - 1)},
            {"loads", "", 0, (double)r[k].usage.n_loads},
            {"TTFT P95", "ms", 0, r[k].all.ttft_us[P95] / 1e3},
        };
        figures_set(f, group, seed_idx, rows, INFERD_COUNT(rows));
    }
    return INFERD_OK;
}

inferd_status experiment_evict(const experiment *e, figures *f, inferd_err *err) {
    snprintf(f->title, sizeof f->title, "which model to evict, %g s", e->seconds);
    inferd_status st = INFERD_OK;
    for (size_t c = 0; c < INFERD_COUNT(CASES); c++)
        for (uint32_t i = 0; i < e->n_seeds && st == INFERD_OK; i++)
            st = run_seed(e, f, &CASES[c], i, err);
    return st;
}
