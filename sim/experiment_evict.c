/* experiment_evict.c - see experiment.h: load time caused by evictions.
 *
 * In two parts.  First the daemon's own residency in a world: the same requests, with four values
 * of an idle model: the daemon's own, its idle time (LRU), its arrival rate over the whole run, or
 * its next use (clairvoyant).  Everything else (bring-up order, classes, time slices, keys and
 * values) is the same code.  Then activations without steps (evictor.h), which allow one more
 * policy: it knows every model's true distribution of pauses, but not the next one.  With the
 * pauses of those activations, it is about the best possible without seeing the future. */
#include <string.h>

#include "evictor.h"
#include "experiment.h"

/* ---- the daemon's residency ---- */

typedef struct real_case {
    const char *name;
    workload_kind mix;
    uint32_t n_models;
    double rate_per_s; // see workload_kind
    bool mixed;        // models of several sizes
} real_case;

/* About half of the weights needed at the same time fit, and the device is not overloaded. */
static const real_case REAL[] = {
    {"MIX-M", WORKLOAD_MIX_M, 10, 0.037, false}, {"MIX-M, sizes", WORKLOAD_MIX_M, 12, 0.02, true},
    {"MIX-Z", WORKLOAD_MIX_Z, 12, 0.4, false},   {"MIX-Z, sizes", WORKLOAD_MIX_Z, 14, 0.3, true},
    {"MIX-B", WORKLOAD_MIX_B, 10, 0.1, false},
};
static const char *const WORTH_NAMES[] = {"product", "LRU", "knows the rates", "clairvoyant"};
static const char *const SIZE_NAMES[] = {"8b", "3b", "14b", "1b"};
enum { N_WORTHS = INFERD_COUNT(WORTH_NAMES), N_SIZES = INFERD_COUNT(SIZE_NAMES) };

static inferd_status real_seed(const experiment *e, figures *f, const real_case *c,
                               uint32_t seed_idx, inferd_err *err) {
    const sim_shape *sizes[N_SIZES];
    for (size_t i = 0; i < N_SIZES; i++) sizes[i] = sim_shape_find(SIZE_NAMES[i]);
    experiment one = *e;
    one.mix = c->mix;
    one.lambda = c->rate_per_s;
    if (c->mixed) one.shapes = sizes, one.n_shapes = N_SIZES;
    run_figures r[N_WORTHS];
    inferd_status st = INFERD_OK;
    for (int k = 0; k < N_WORTHS && st == INFERD_OK; k++) {
        one.worth = (world_worth)k;
        st = experiment_run(&one, e->seed0 + seed_idx, c->n_models, e->rate_factor, 0, 0, &r[k],
                            err);
    }
    double best = (double)r[WORLD_WORTH_FUTURE].usage.copied_us;
    for (int k = 0; k < N_WORTHS && st == INFERD_OK; k++) {
        char group[FIGURES_TEXT_BYTES];
        const world_usage *a = &r[k].usage;
        snprintf(group, sizeof group, "%s, %s", c->name, WORTH_NAMES[k]);
        const experiment_row rows[] = {
            {"reload time per request", "s", 4,
             (double)a->copied_us / 1e6 / (double)r[k].attained.n_offered},
            {"above the clairvoyant", "%", 2, 100 * ((double)a->copied_us / best - 1)},
            {"loads", "", 0, (double)a->n_loads},
            {"TTFT P95", "ms", 0, r[k].ttft_us[1] / 1e3},
        };
        st = experiment_set_rows(f, group, seed_idx, rows, INFERD_COUNT(rows), err);
    }
    return st;
}

/* ---- activations ---- */

static const uint32_t MODELS[] = {16, 24, 40};
static const double MEDIANS_S[] = {120, 300, 600};
enum { N_MODELS = INFERD_COUNT(MODELS), N_MEDIANS = INFERD_COUNT(MEDIANS_S), N_POLICIES = 4 };

typedef struct sums {
    double load_s, weighted_s, n_served;
} sums;

static void add(sums *s, const evict_result *r) {
    s->load_s += (double)r->load_us / 1e6;
    s->weighted_s += (double)r->weighted_us / 1e6;
    s->n_served += (double)r->n_served;
}

static inferd_status set_sums(figures *f, const char *group, uint32_t seed_idx, const sums *s,
                              const sums *best, inferd_err *err) {
    inferd_status st = figures_set(f, group, "reload time per activation", "s", 4, seed_idx,
                                   s->load_s / s->n_served, err);
    if (st == INFERD_OK)
        st = figures_set(f, group, "above the clairvoyant", "%", 2, seed_idx,
                         100 * (s->load_s / best->load_s - 1), err);
    return st;
}

/* One seed with n_models, over all idle times. */
static inferd_status replay_seed(const experiment *e, figures *f, uint32_t seed_idx,
                                 uint32_t n_models, inferd_err *err) {
    rng random = rng_make(e->seed0 + seed_idx, 1, n_models);
    const evict_policy policies[N_POLICIES] = {
        {"product", evict_product, NULL, false, true},
        {"knows the pauses", evict_knowing, NULL, false, true},
        {"LRU", evict_lru, NULL, false, false},
        {"random", evict_random, &random, false, false}};
    sums best = {0}, of[N_POLICIES] = {0};
    char group[FIGURES_TEXT_BYTES];
    inferd_status st = INFERD_OK;
    for (int m = 0; m < N_MEDIANS && st == INFERD_OK; m++) {
        evict_spec spec;
        evict_scenario scenario = {0};
        evict_result r;
        evict_spec_init(&spec);
        spec.n_models = n_models;
        spec.off_median_s = MEDIANS_S[m];
        st = evict_scenario_create(&scenario, &spec, e->seed0 + seed_idx, err);
        if (st == INFERD_OK) st = evict_clairvoyant(&scenario.run, &r, err);
        if (st == INFERD_OK) add(&best, &r);
        for (int i = 0; i < N_POLICIES && st == INFERD_OK; i++) {
            st = evict_replay(&scenario.run, &policies[i], &r, err);
            if (st == INFERD_OK) add(&of[i], &r);
        }
        evict_scenario_destroy(&scenario);
    }
    snprintf(group, sizeof group, "%u models, clairvoyant", n_models);
    if (st == INFERD_OK) st = set_sums(f, group, seed_idx, &best, &best, err);
    for (int i = 0; i < N_POLICIES && st == INFERD_OK; i++) {
        snprintf(group, sizeof group, "%u models, %s", n_models, policies[i].name);
        st = set_sums(f, group, seed_idx, &of[i], &best, err);
    }
    return st;
}

/* ---- both ---- */

static inferd_status draw(const experiment *e, const figures *f, inferd_err *err) {
    enum { N = INFERD_COUNT(REAL) };
    const char *names[N];
    double y[N_WORTHS][N], lo[N_WORTHS][N], hi[N_WORTHS][N];
    plot_series series[N_WORTHS];
    for (size_t i = 0; i < N; i++) names[i] = REAL[i].name;
    for (int k = 0; k < N_WORTHS; k++) {
        for (size_t i = 0; i < N; i++) {
            char group[FIGURES_TEXT_BYTES];
            snprintf(group, sizeof group, "%s, %s", REAL[i].name, WORTH_NAMES[k]);
            experiment_point(f, group, "reload time per request", i, y[k], lo[k], hi[k]);
        }
        series[k] = (plot_series){
            .name = WORTH_NAMES[k], .mark = PLOT_BAR, .y = y[k], .lo = lo[k], .hi = hi[k], .n = N};
    }
    plot_labels labels = {"Reload time per request", "workload", "s"};
    return experiment_plot_bars(e, &labels, series, N_WORTHS, names, N, err);
}

inferd_status experiment_evict(const experiment *e, inferd_err *err) {
    figures f = {0};
    evict_spec spec;
    evict_spec_init(&spec);
    experiment_print_constants(e);
    printf("with MIX-...: the daemon's residency, %g s; \"sizes\": models of 3b, 8b, 14b and 1b in "
           "rotation.  \"clairvoyant\" evicts the model with the latest next request, \"knows the "
           "rates\" the model with the lowest rate; neither evicts a model if the others do not "
           "need its memory\n",
           e->seconds);
    printf("with numbers of models: activations; ON %.0f s, OFF medians 120, 300 and 600 s (sigma "
           "%.2f), models of %.0f to %.0f GB on %.0f GB, reloads at %.0f GB/s, keys and values "
           "%.0f %% of the weights and %.1f GB, %.0f s.  The clairvoyant is the best of four\n",
           spec.on_mean_s, spec.off_sigma, spec.size_min_gb, spec.size_max_gb, spec.memory_gb,
           spec.bandwidth_gb_s, 100 * spec.run_share, spec.run_gb, spec.seconds);
    inferd_status st = experiment_figures(e, &f, "which model to evict", err);
    for (size_t c = 0; c < INFERD_COUNT(REAL); c++)
        for (uint32_t i = 0; i < e->n_seeds && st == INFERD_OK; i++)
            st = real_seed(e, &f, &REAL[c], i, err);
    for (int m = 0; m < N_MODELS; m++)
        for (uint32_t i = 0; i < e->n_seeds && st == INFERD_OK; i++)
            st = replay_seed(e, &f, i, MODELS[m], err);
    if (st == INFERD_OK) st = experiment_tell(e, &f, err);
    if (st == INFERD_OK) st = draw(e, &f, err);
    figures_deinit(&f);
    return st;
}
