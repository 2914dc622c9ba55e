/* experiments.c - see experiment.h: models, load, retry, evict, shares. */
#include <math.h>

#include "experiment.h"

/* ---- models ---- */

enum { MODELS_MAX = 128 }; // without --models

/* A cell of the table: each of the three is the command line's, if it has one. */
static const double HOST_GB[] = {64, 128, 1024}, RATES[] = {0.037, 0.1};
static const uint32_t TTFT_MS[] = {0, 500}; // 0: from the dedicated device

/* One cell, with more and more models until nine of ten requests do not attain their targets: the
 * attainment with each number as figures, the largest numbers as notes. */
static inferd_status run_cell(experiment *cell, figures *f, inferd_err *err) {
    char group[FIGURES_TEXT_BYTES], name[FIGURES_TEXT_BYTES];
    uint32_t models_max = cell->n_models > 0 ? cell->n_models : MODELS_MAX, n_99 = 0, n_90 = 0;
    double host_gb = cell->host_gb >= 0 ? cell->host_gb : (double)sim_h100.host_bytes / 1e9;
    int n = snprintf(group, sizeof group, "%g GB", host_gb);
    if (cell->lambda >= 0)
        n += snprintf(group + n, sizeof group - (size_t)n, ", %g/s", cell->lambda);
    snprintf(group + n, sizeof group - (size_t)n, ", TTFT %.0f ms", cell->ttft_us / 1e3);
    for (cell->n_models = 1; cell->n_models <= models_max; cell->n_models++) {
        double percent[FIGURES_SEEDS_MAX];
        snprintf(name, sizeof name, "%u models attain", cell->n_models);
        for (uint32_t i = 0; i < cell->n_seeds; i++) {
            run_figures r;
            inferd_status st = experiment_run(cell, cell->seed0 + i, &r, NULL, err);
            if (st != INFERD_OK) return st;
            percent[i] = 100 * stats_attainment(&r.all.attained);
            figures_set(f, group, i, &(figure_row){name, "%", 2, percent[i]}, 1);
        }
        double median = figures_summary(percent, cell->n_seeds).median;
        if (isnan(median)) // seeds without requests are left out
            return inferd_fail(err, INFERD_EINVAL, "%u models: no requests in %g s", cell->n_models,
                               experiment_seconds(cell));
        if (median >= 99) n_99 = cell->n_models;
        if (median < 90) break;
        n_90 = cell->n_models;
    }
    figures_note(f, group, "models_at_99_percent", figures_number(n_99));
    figures_note(f, group, "models_at_90_percent", figures_number(n_90));
    figures_note(f, group, "models_tried_max", figures_number(models_max));
    figures_note(f, group, "ttft_ms", figures_number(cell->ttft_us / 1e3));
    figures_note(f, group, "tpot_ms", figures_number(cell->tpot_us / 1e3));
    return INFERD_OK;
}

inferd_status experiment_models(const experiment *e, figures *f, inferd_err *err) {
    dedicated base = {0};
    inferd_status st = INFERD_OK;
    bool has_rate = e->mix == WORKLOAD_MIX_M && e->lambda < 0;
    snprintf(f->title, sizeof f->title, "models on %s, %s, %g s", sim_h100.name,
             workload_kind_name(e->mix), e->seconds);
    if (e->slo_ttft_ms == 0 || e->slo_tpot_ms == 0) st = experiment_dedicated(e, f, &base, err);
    for (size_t h = 0; h < (e->host_gb < 0 ? INFERD_COUNT(HOST_GB) : 1); h++)
        for (size_t r = 0; r < (has_rate ? INFERD_COUNT(RATES) : 1); r++)
            for (size_t t = 0; t < (e->slo_ttft_ms == 0 ? INFERD_COUNT(TTFT_MS) : 1); t++) {
                experiment cell = *e;
                if (e->host_gb < 0) cell.host_gb = HOST_GB[h];
                if (has_rate) cell.lambda = RATES[r];
                if (e->slo_ttft_ms == 0) cell.slo_ttft_ms = TTFT_MS[t];
                experiment_targets(&cell, &base);
                if (st == INFERD_OK) st = run_cell(&cell, f, err);
            }
    return st;
}

/* ---- load ---- */

/* Runs every seed; `set` gets the figures of each. */
static inferd_status run_seeds(const experiment *e, figures *f, const char *group,
                               void set(figures *, const char *, uint32_t, const run_figures *),
                               inferd_err *err) {
    for (uint32_t i = 0; i < e->n_seeds; i++) {
        run_figures r;
        inferd_status st = experiment_run(e, e->seed0 + i, &r, NULL, err);
        if (st != INFERD_OK) return st;
        set(f, group, i, &r);
    }
    return INFERD_OK;
}

/* A few models that all fit share a device near its capacity, so that only time is short. */
inferd_status experiment_load(const experiment *e, figures *f, inferd_err *err) {
    static const double PARTS[] = {0.6, 0.8, 1.2}; // of the capacity of a dedicated device
    enum { MODELS = 3, STEP_TOKENS = 2048 };       // all fit; chunks are bounded by time
    experiment one = *e;
    dedicated base = {0};
    inferd_status st = experiment_dedicated(e, f, &base, err);
    experiment_targets(&one, &base);
    experiment_note_targets(&one, f);
    one.world.told = true;
    one.mix = WORKLOAD_MIX_M;
    if (one.step_tokens == 0) one.step_tokens = STEP_TOKENS;
    if (one.n_models == 0) one.n_models = MODELS;
    snprintf(f->title, sizeof f->title, "%u models, steps of up to %u tokens, %g s", one.n_models,
             one.step_tokens, e->seconds);
    for (size_t k = 0; k < INFERD_COUNT(PARTS) && st == INFERD_OK; k++) {
        char group[FIGURES_TEXT_BYTES];
        snprintf(group, sizeof group, "%g of capacity", PARTS[k]);
        one.lambda = base.capacity_per_s * PARTS[k] / one.n_models;
        st = run_seeds(&one, f, group, experiment_set, err);
    }
    return st;
}

/* ---- retry ---- */

/* Is Retry-After reliable?  Requests come in bursts (MIX-B: models that are ON and OFF) at more
 * than the device can do during a burst, the queue is short, and the front refuses as the daemon's
 * does, by the estimate of scheduler/queue_slots.h.  Every client comes back once, exactly after
 * its Retry-After: it says that it is a retry, as OpenAI's clients do, or it does not. */
static const double BURSTS[] = {4, 8, 16}; // requests per second of each model while it is ON

static void set_retry(figures *f, const char *group, uint32_t seed_idx, const run_figures *r) {
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
    enum { MODELS = 4, QUEUE_LEN = 64 };
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
        st = run_seeds(&one, f, group, set_retry, err);
    }
    return st;
}

/* ---- evict ---- */

/* The daemon's own residency in a world: the same requests, with four values of an idle model: the
 * daemon's own, its idle time (LRU), its arrival rate over the whole run, or its next use
 * (clairvoyant).  Everything else (bring-up order, classes, time slices, keys and values) is the
 * same code.  The last two do not evict a model if the others do not need its memory. */
typedef struct evict_case {
    const char *name;
    workload_kind mix;
    uint32_t n_models;
    double rate_per_s; // see workload_kind
    bool mixed;        // models of several sizes
} evict_case;

/* About half of the weights needed at the same time fit, and the device is not overloaded. */
static const evict_case EVICT_CASES[] = {
    {"MIX-M", WORKLOAD_MIX_M, 10, 0.037, false}, {"MIX-M, sizes", WORKLOAD_MIX_M, 12, 0.02, true},
    {"MIX-Z", WORKLOAD_MIX_Z, 12, 0.4, false},   {"MIX-Z, sizes", WORKLOAD_MIX_Z, 14, 0.3, true},
    {"MIX-B", WORKLOAD_MIX_B, 10, 0.1, false},
};
static const char *const WORTH_NAMES[] = {"product", "LRU", "knows the rates", "clairvoyant"};
enum { N_WORTHS = INFERD_COUNT(WORTH_NAMES) };

static inferd_status run_evict(const experiment *e, figures *f, const evict_case *c,
                               uint32_t seed_idx, inferd_err *err) {
    experiment one = *e;
    run_figures r[N_WORTHS];
    one.mix = c->mix;
    one.n_models = c->n_models;
    one.lambda = c->rate_per_s;
    one.mixed = c->mixed;
    for (int k = 0; k < N_WORTHS; k++) {
        one.world.worth = (world_worth)k;
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
    for (size_t c = 0; c < INFERD_COUNT(EVICT_CASES); c++)
        for (uint32_t i = 0; i < e->n_seeds && st == INFERD_OK; i++)
            st = run_evict(e, f, &EVICT_CASES[c], i, err);
    return st;
}

/* ---- shares ---- */

/* Every flow always has more work than its fixed share, so its entitled time is the share itself.
 * The measured time is what the device computed (watch.h), in every window of ten seconds. */
enum { PARTS_MAX = 5, QUEUE_LEN = 1 << 16 };
#define OVERLOAD                                                                                   \
    1.2 // times the throughput of a dedicated device in the largest share, offered to each

typedef struct shares_case {
    const char *name;
    bool by_model; // false: by tenant of one model
    uint32_t n, percent[PARTS_MAX];
} shares_case;

static const shares_case SHARES_CASES[] = {
    {"tenant 5", false, 1, {5}},
    {"tenant 50", false, 1, {50}},
    {"tenants 5 95", false, 2, {5, 95}},
    {"tenants 5 10 25 60", false, 4, {5, 10, 25, 60}},
    {"tenants 20 x 5", false, 5, {20, 20, 20, 20, 20}},
    {"models 5 10 25 60", true, 4, {5, 10, 25, 60}},
};

static void set_shares(figures *f, const shares_case *c, uint32_t seed_idx, const run_figures *r,
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

static inferd_status run_shares(const experiment *e, const shares_case *c, double capacity_per_s,
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
    one.world.watched = true;
    one.queue_len = QUEUE_LEN;
    one.n_models = c->by_model ? c->n : 1;
    one.lambda = OVERLOAD * capacity_per_s * largest / 100;
    if (c->by_model) {
        one.model_shares = shares;
    } else {
        one.world.tenants = tenants;
        one.world.n_tenants = c->n;
        one.lambda *= c->n;
    }
    for (uint32_t i = 0; i < e->n_seeds && st == INFERD_OK; i++) {
        run_figures r;
        world *w = NULL;
        st = experiment_run(&one, e->seed0 + i, &r, &w, err);
        if (st == INFERD_OK) set_shares(f, c, i, &r, w);
        world_destroy(w);
    }
    return st;
}

inferd_status experiment_shares(const experiment *e, figures *f, inferd_err *err) {
    dedicated base = {0};
    snprintf(f->title, sizeof f->title, "fixed shares, all saturated, %g s", e->seconds);
    inferd_status st = experiment_dedicated(e, f, &base, err);
    for (size_t k = 0; k < INFERD_COUNT(SHARES_CASES) && st == INFERD_OK; k++)
        st = run_shares(e, &SHARES_CASES[k], base.capacity_per_s, f, err);
    return st;
}
