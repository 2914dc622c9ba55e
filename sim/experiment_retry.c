/* experiment_retry.c - see experiment.h: is Retry-After reliable?
 *
 * Requests come in bursts (MIX-B: models that are ON and OFF) at more than the device can do during
 * a burst, the queue is short, and the front refuses as the daemon's does, by the estimate of
 * scheduler/queue_slots.h.  Every client comes back once, exactly after its Retry-After: it says
 * that it is a retry, as OpenAI's clients do, or it does not. */
#include "experiment.h"

enum { MODELS = 4, QUEUE_LEN = 64 };
static const double BURSTS[] = {4, 8, 16}; // requests per second of each model while it is ON

static void set(figures *f, const char *group, uint32_t seed_idx, const run_figures *r) {
    const request_figures *q = &r->all;
    double n_offered = (double)q->attained.n_offered, n_told = (double)q->n_told;
    double n_longer = (double)(q->attained.n_refused - (q->n_told - q->n_taken));
    const figure_row rows[] = {
        {"told to come back", "%", 1, experiment_percent(n_told, n_offered)},
        {"told to wait, mean", "s", 1, q->told_ms / 1e3},
        {"told / needed wait, median", "", 2, q->told_per_needed},
        {"told more than a minute", "%", 1, experiment_percent(n_longer, n_offered)},
        {"taken at the first retry", "%", 1, experiment_percent((double)q->n_taken, n_told)},
    };
    figures_set(f, group, seed_idx, rows, INFERD_COUNT(rows));
}

inferd_status experiment_retry(const experiment *e, figures *f, inferd_err *err) {
    experiment one = *e;
    inferd_status st = INFERD_OK;
    one.world.obeys = true;
    one.mix = WORKLOAD_MIX_B;
    if (one.n_models == 0) one.n_models = MODELS;
    if (one.queue_len == 0) one.queue_len = QUEUE_LEN;
    snprintf(f->title, sizeof f->title, "Retry-After obeyed, %u models, a queue of %u",
             one.n_models, one.queue_len);
    for (size_t i = 0; i < 2 * INFERD_COUNT(BURSTS) && st == INFERD_OK; i++) {
        char group[FIGURES_TEXT_BYTES];
        size_t k = i % INFERD_COUNT(BURSTS);
        one.world.anonymous = i != k;
        snprintf(group, sizeof group, "%g/s while ON%s", BURSTS[k],
                 one.world.anonymous ? ", tries not counted" : "");
        one.lambda = BURSTS[k];
        st = experiment_run_seeds(&one, f, group, set, err);
    }
    return st;
}
