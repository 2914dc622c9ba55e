/* experiment_retry.c - see experiment.h: is Retry-After true?
 *
 * Requests come in bursts (MIX-B: models that are ON and OFF) at more than the device can do while
 * they last, the queue is short, and the front refuses while it is full, with the estimate of
 * scheduler/retry.h.  Every client comes back once, exactly when it was told to. */
#include <math.h>
#include <string.h>

#include "experiment.h"

enum { MODELS = 4, QUEUE_LEN = 64 };
static const double BURSTS[] = {4, 8, 16}; // requests a second of each model while it is ON

static double percent(uint64_t a, uint64_t b) {
    return b > 0 ? 100 * (double)a / (double)b : NAN;
}

static inferd_status set(figures *f, const char *group, uint32_t seed_idx, const run_figures *r,
                         inferd_err *err) {
    const struct {
        const char *name, *unit;
        uint32_t n_digits;
        double value;
    } rows[] = {
        {"told to come back", "%", 1, percent(r->n_told, r->attained.n_offered)},
        {"told to wait, mean", "s", 1, r->told_ms / 1e3},
        {"refused without a time", "%", 1,
         percent(r->attained.n_refused - (r->n_told - r->n_taken), r->attained.n_offered)},
        {"taken at the first retry", "%", 1, percent(r->n_taken, r->n_told)},
    };
    inferd_status st = INFERD_OK;
    for (size_t i = 0; i < INFERD_COUNT(rows) && st == INFERD_OK; i++)
        st = figures_set(f, group, rows[i].name, rows[i].unit, rows[i].n_digits, seed_idx,
                         rows[i].value, err);
    return st;
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
    inferd_status st = experiment_figures(e, &f, "clients that obey Retry-After", err);
    for (size_t k = 0; k < INFERD_COUNT(BURSTS); k++) {
        char group[FIGURES_TEXT_BYTES];
        snprintf(group, sizeof group, "%g/s while ON", BURSTS[k]);
        one.lambda = BURSTS[k];
        for (uint32_t i = 0; i < e->n_seeds && st == INFERD_OK; i++) {
            run_figures r;
            st = experiment_run(&one, e->seed0 + i, 0, e->rate_factor, 0, 0, &r, err);
            if (st == INFERD_OK) st = set(&f, group, i, &r, err);
        }
    }
    if (st == INFERD_OK) st = experiment_tell(e, &f, err);
    figures_deinit(&f);
    return st;
}
