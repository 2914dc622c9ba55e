/* experiment_retry.c - see experiment.h: is Retry-After reliable?
 *
 * Requests come in bursts (MIX-B: models that are ON and OFF) at more than the device can do during
 * a burst, the queue is short, and the front refuses as the daemon's does, by the estimate of
 * scheduler/queue_slots.h.  Every client comes back once, exactly after its Retry-After: it says
 * that it is a retry, as OpenAI's clients do, or it does not. */
#include <math.h>
#include <string.h>

#include "experiment.h"

enum { MODELS = 4, QUEUE_LEN = 64 };
static const double BURSTS[] = {4, 8, 16}; // requests per second of each model while it is ON

static double percent(uint64_t a, uint64_t b) {
    return b > 0 ? 100 * (double)a / (double)b : NAN;
}

static inferd_status set(figures *f, const char *group, uint32_t seed_idx, const run_figures *r,
                         inferd_err *err) {
    const experiment_row rows[] = {
        {"told to come back", "%", 1, percent(r->n_told, r->attained.n_offered)},
        {"told to wait, mean", "s", 1, r->told_ms / 1e3},
        {"told / needed wait, median", "", 2, r->told_per_needed},
        {"told more than a minute", "%", 1,
         percent(r->attained.n_refused - (r->n_told - r->n_taken), r->attained.n_offered)},
        {"taken at the first retry", "%", 1, percent(r->n_taken, r->n_told)},
    };
    return experiment_set_rows(f, group, seed_idx, rows, INFERD_COUNT(rows), err);
}

static void name_group(char *out, size_t n_bytes, size_t burst, bool anonymous) {
    snprintf(out, n_bytes, "%g/s while ON%s", BURSTS[burst],
             anonymous ? ", tries not counted" : "");
}

static inferd_status draw(const experiment *e, const figures *f, inferd_err *err) {
    static const char *const NAMES[] = {"told to come back", "taken at the first retry"};
    enum { N_NAMES = INFERD_COUNT(NAMES), N_BURSTS = INFERD_COUNT(BURSTS) };
    static const double GOAL[] = {80};
    double y[N_NAMES][N_BURSTS], lo[N_NAMES][N_BURSTS], hi[N_NAMES][N_BURSTS];
    char groups[N_BURSTS][FIGURES_TEXT_BYTES];
    const char *bars[N_BURSTS];
    plot_series series[N_NAMES];
    for (size_t i = 0; i < N_NAMES; i++) {
        for (size_t k = 0; k < N_BURSTS; k++) {
            name_group(groups[k], sizeof groups[k], k, false);
            bars[k] = groups[k];
            experiment_point(f, groups[k], NAMES[i], k, y[i], lo[i], hi[i]);
        }
        series[i] = (plot_series){
            .name = NAMES[i], .mark = PLOT_BAR, .y = y[i], .lo = lo[i], .hi = hi[i], .n = N_BURSTS};
    }
    plot p = {.title = "Clients that obey Retry-After",
              .x_label = "requests of each model",
              .y_label = "% (of all; of those told)",
              .series = series,
              .n_series = N_NAMES,
              .bar_names = bars,
              .n_bars = N_BURSTS,
              .levels = GOAL,
              .n_levels = 1,
              .has_y_range = true,
              .y_min = 0,
              .y_max = 100};
    return experiment_plot(e, &p, err);
}

inferd_status experiment_retry(const experiment *e, inferd_err *err) {
    figures f = {0};
    experiment one = *e;
    one.obeys = true;
    one.mix = WORKLOAD_MIX_B;
    if (one.n_models == 0) one.n_models = MODELS;
    if (one.queue_len == 0) one.queue_len = QUEUE_LEN;
    experiment_print_constants(e);
    printf("MIX-B, %u models, a queue of %u; clients obey Retry-After, once\n", one.n_models,
           one.queue_len);
    inferd_status st = experiment_figures(&one, &f, "clients that obey Retry-After", err);
    for (size_t i = 0; i < 2 * INFERD_COUNT(BURSTS); i++) {
        char group[FIGURES_TEXT_BYTES];
        size_t k = i % INFERD_COUNT(BURSTS);
        one.anonymous = i != k;
        name_group(group, sizeof group, k, one.anonymous);
        one.lambda = BURSTS[k];
        if (st == INFERD_OK)
            st = experiment_run_seeds(&one, 0, e->rate_factor, 0, 0, &f, group, set, err);
    }
    if (st == INFERD_OK) st = experiment_tell(e, &f, err);
    if (st == INFERD_OK) st = draw(e, &f, err);
    figures_deinit(&f);
    return st;
}
