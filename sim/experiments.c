/* experiments.c - see experiment.h: models, load. */
#include <math.h>

#include "experiment.h"

/* ---- models ---- */

static const double LEVELS[] = {99, 90}; // percent of the requests
enum { N_LEVELS = INFERD_COUNT(LEVELS), ATTEMPTS_MAX = 64, MODELS_MAX = 128 };

/* A cell of the table: each of the three is the command line's, if it has one. */
static const double HOST_GB[] = {64, 128, 1024}, RATES[] = {0.037, 0.1};
static const uint32_t TTFT_MS[] = {0, 500}; // 0: from the dedicated device

typedef struct attempt {
    uint32_t n_models;
    double percent[FIGURES_SEEDS_MAX], median;
} attempt;

typedef struct sweep {
    experiment e;
    attempt done[ATTEMPTS_MAX];
    uint32_t n_done;
} sweep;

/* The median attainment with n_models; measured only once. */
static inferd_status attain(sweep *s, uint32_t n_models, double *out, inferd_err *err) {
    for (uint32_t i = 0; i < s->n_done; i++)
        if (s->done[i].n_models == n_models) {
            *out = s->done[i].median;
            return INFERD_OK;
        }
    INFERD_CHECK(s->n_done < ATTEMPTS_MAX); // two bisections of 4096 take fewer
    attempt *a = &s->done[s->n_done++];
    a->n_models = s->e.n_models = n_models;
    for (uint32_t i = 0; i < s->e.n_seeds; i++) {
        run_figures r;
        inferd_status st = experiment_run(&s->e, s->e.seed0 + i, &r, NULL, err);
        if (st != INFERD_OK) return st;
        a->percent[i] = 100 * stats_attainment(&r.all.attained);
    }
    *out = a->median = figures_summary(a->percent, s->e.n_seeds).median;
    if (!isnan(*out)) return INFERD_OK; // seeds without requests are left out
    return inferd_fail(err, INFERD_EINVAL, "%u models: no requests in %g s", n_models,
                       experiment_seconds(&s->e));
}

/* The largest number of models that attains the level, if attainment falls with the number; 0: even
 * one model does not. */
static inferd_status bisect(sweep *s, uint32_t models_max, double level, uint32_t *out,
                            inferd_err *err) {
    uint32_t good = 0, bad = models_max + 1, next = 1;
    double a = 0;
    while (bad - good > 1) {
        inferd_status st = attain(s, next, &a, err);
        if (st != INFERD_OK) return st;
        if (a >= level)
            good = next;
        else
            bad = next;
        next = bad > models_max ? u32_min(2 * good, models_max) : (good + bad) / 2;
        if (next == good) next = good + 1;
    }
    *out = good;
    return INFERD_OK;
}

static int by_models(const void *a, const void *b) {
    uint32_t x = ((const attempt *)a)->n_models, y = ((const attempt *)b)->n_models;
    return x < y ? -1 : x > y;
}

/* One cell: its numbers of models as notes, the attainment of every attempt as figures. */
static inferd_status run_cell(const experiment *cell, figures *f, inferd_err *err) {
    sweep s = {.e = *cell};
    char group[FIGURES_TEXT_BYTES], name[FIGURES_TEXT_BYTES];
    uint32_t models_max = cell->n_models > 0 ? cell->n_models : MODELS_MAX;
    double host_gb = cell->host_gb >= 0 ? cell->host_gb : (double)cell->preset->host_bytes / 1e9;
    int n = snprintf(group, sizeof group, "%g GB", host_gb);
    if (cell->lambda >= 0)
        n += snprintf(group + n, sizeof group - (size_t)n, ", %g/s", cell->lambda);
    snprintf(group + n, sizeof group - (size_t)n, ", TTFT %.0f ms", cell->ttft_us / 1e3);
    for (size_t l = 0; l < N_LEVELS; l++) {
        uint32_t most = 0;
        inferd_status st = bisect(&s, models_max, LEVELS[l], &most, err);
        if (st != INFERD_OK) return st;
        snprintf(name, sizeof name, "models_at_%.0f_percent", LEVELS[l]);
        figures_note(f, group, name, figures_number(most));
    }
    figures_note(f, group, "ttft_ms", figures_number(cell->ttft_us / 1e3));
    figures_note(f, group, "tpot_ms", figures_number(cell->tpot_us / 1e3));
    figures_note(f, group, "models_tried_max", figures_number(models_max));
    qsort(s.done, s.n_done, sizeof *s.done, by_models);
    for (uint32_t k = 0; k < s.n_done; k++)
        for (uint32_t i = 0; i < cell->n_seeds; i++) {
            snprintf(name, sizeof name, "%u models attain", s.done[k].n_models);
            figures_set(f, group, i, &(figure_row){name, "%", 2, s.done[k].percent[i]}, 1);
        }
    return INFERD_OK;
}

inferd_status experiment_models(const experiment *e, figures *f, inferd_err *err) {
    dedicated base = {0};
    inferd_status st = INFERD_OK;
    bool has_rate = e->mix == WORKLOAD_MIX_M && e->lambda < 0;
    snprintf(f->title, sizeof f->title, "models on %s, %s, %g s", e->preset->name,
             workload_kind_name(e->mix), e->seconds);
    if (e->slo_ttft_ms == 0 || e->slo_tpot_ms == 0) st = experiment_dedicated(e, f, &base, err);
    for (size_t h = 0; h < (e->host_gb < 0 ? INFERD_COUNT(HOST_GB) : 1); h++)
        for (size_t r = 0; r < (has_rate ? INFERD_COUNT(RATES) : 1); r++)
            for (size_t t = 0; t < (e->slo_ttft_ms == 0 ? INFERD_COUNT(TTFT_MS) : 1); t++) {
                experiment cell = *e;
                if (e->host_gb < 0) cell.host_gb = HOST_GB[h];
                if (has_rate) cell.lambda = RATES[r];
                if (e->slo_ttft_ms == 0) cell.slo_ttft_ms = TTFT_MS[t];
                if (st == INFERD_OK) st = experiment_targets(&cell, NULL, &base, err);
                if (st == INFERD_OK) st = run_cell(&cell, f, err);
            }
    return st;
}

/* ---- load ---- */

/* A few models that all fit share a device near its capacity, so that only time is short. */
inferd_status experiment_load(const experiment *e, figures *f, inferd_err *err) {
    static const double PARTS[] = {0.6, 0.8, 1.2}; // of the capacity of a dedicated device
    enum { MODELS = 3, STEP_TOKENS = 2048 };       // all fit; chunks are bounded by time
    experiment one = *e;
    dedicated base;
    inferd_status st = experiment_dedicated(e, f, &base, err);
    if (st == INFERD_OK) st = experiment_targets(&one, f, &base, err);
    one.told = true;
    one.mix = WORKLOAD_MIX_M;
    if (one.step_tokens == 0) one.step_tokens = STEP_TOKENS;
    if (one.n_models == 0) one.n_models = MODELS;
    snprintf(f->title, sizeof f->title, "%u models, steps of up to %u tokens, %g s", one.n_models,
             one.step_tokens, e->seconds);
    for (size_t k = 0; k < INFERD_COUNT(PARTS) && st == INFERD_OK; k++) {
        char group[FIGURES_TEXT_BYTES];
        snprintf(group, sizeof group, "%g of capacity", PARTS[k]);
        one.lambda = base.capacity_per_s * PARTS[k] / one.n_models;
        st = experiment_run_seeds(&one, f, group, experiment_set, err);
    }
    return st;
}
