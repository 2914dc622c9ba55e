/* experiments.c - see experiment.h: rate, models, speed. */
#include <math.h>
#include <string.h>

#include "experiment.h"

typedef unsigned long long ull; // for printing

static const double LEVELS[] = {0.99, 0.9};

static inferd_status draw_attainment(const experiment *e, const char *title, const char *x_label,
                                     const plot_series *series, inferd_err *err) {
    plot p = {.title = title,
              .x_label = x_label,
              .y_label = "attainment",
              .series = series,
              .n_series = 1,
              .levels = LEVELS,
              .n_levels = INFERD_COUNT(LEVELS),
              .has_y_range = true,
              .y_min = 0,
              .y_max = 1};
    return experiment_plot(e, &p, err);
}

/* ---- rate ---- */

static const double FACTORS[] = {0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 2.5, 3, 4, 6, 8};
enum { N_FACTORS = INFERD_COUNT(FACTORS) };

typedef struct curve {
    double median[N_FACTORS], lo[N_FACTORS], hi[N_FACTORS];
} curve;

static inferd_status draw_curve(const experiment *e, const curve *c, inferd_err *err) {
    plot_series series = {.name = "attainment",
                          .mark = PLOT_LINE,
                          .x = FACTORS,
                          .y = c->median,
                          .lo = c->lo,
                          .hi = c->hi,
                          .n = N_FACTORS};
    return draw_attainment(e, "Attainment over rate", "rate factor", &series, err);
}

inferd_status experiment_rate(const experiment *e, inferd_err *err) {
    figures f = {0};
    curve c;
    uint32_t ttft_us, tpot_us;
    char title[FIGURES_TEXT_BYTES], group[FIGURES_TEXT_BYTES];
    experiment_print_constants(e);
    inferd_status st = experiment_targets(e, &ttft_us, &tpot_us, NULL, err);
    if (st != INFERD_OK) return st;
    snprintf(title, sizeof title, "%s on %u x %s over rates, %g s", workload_kind_name(e->mix),
             e->n_devices, e->preset->name, e->seconds);
    st = experiment_figures(e, &f, title, err);
    for (uint32_t k = 0; k < N_FACTORS && st == INFERD_OK; k++) {
        snprintf(group, sizeof group, "rate x %g", FACTORS[k]);
        st = experiment_run_seeds(e, 0, FACTORS[k] * e->rate_factor, ttft_us, tpot_us, &f, group,
                                  experiment_set, err);
        if (st != INFERD_OK) break;
        figure_summary s = figures_summary(&f, figures_find(&f, group, "attainment"));
        c.median[k] = s.median / 100;
        c.lo[k] = s.min / 100;
        c.hi[k] = s.max / 100;
    }
    if (st == INFERD_OK) st = experiment_tell(e, &f, err);
    if (st == INFERD_OK) st = draw_curve(e, &c, err);
    for (size_t l = 0; l < INFERD_COUNT(LEVELS) && st == INFERD_OK; l++)
        printf("attainment of at least %.0f %% up to rate x %.2f\n", 100 * LEVELS[l],
               stats_rate_at(FACTORS, c.median, N_FACTORS, LEVELS[l]));
    figures_deinit(&f);
    return st;
}

/* ---- models ---- */

typedef struct attempt {
    uint32_t n_models;
    double median, min, max;
} attempt;

enum { ATTEMPTS_MAX = 64 };

typedef struct sweep {
    const experiment *e;
    figures *f;
    uint32_t ttft_us, tpot_us;
    attempt done[ATTEMPTS_MAX];
    uint32_t n_done;
} sweep;

/* The median attainment of so many models; measured once. */
static inferd_status attain(sweep *s, uint32_t n_models, double *out, inferd_err *err) {
    for (uint32_t i = 0; i < s->n_done; i++)
        if (s->done[i].n_models == n_models) {
            *out = s->done[i].median;
            return INFERD_OK;
        }
    if (s->n_done == ATTEMPTS_MAX)
        return inferd_fail(err, INFERD_ETOOLONG, "more than %d numbers of models", ATTEMPTS_MAX);
    char group[FIGURES_TEXT_BYTES];
    snprintf(group, sizeof group, "%u models", n_models);
    inferd_status st = experiment_run_seeds(s->e, n_models, s->e->rate_factor, s->ttft_us,
                                            s->tpot_us, s->f, group, experiment_set, err);
    if (st != INFERD_OK) return st;
    figure_summary sum = figures_summary(s->f, figures_find(s->f, group, "attainment"));
    s->done[s->n_done++] = (attempt){n_models, sum.median / 100, sum.min / 100, sum.max / 100};
    *out = sum.median / 100;
    return INFERD_OK;
}

/* The largest number that attains the level, as if attainment only fell with the number; 0: not
 * even one does. */
static inferd_status bisect(sweep *s, double level, uint32_t *out, inferd_err *err) {
    uint32_t good = 0, bad = s->e->models_max + 1, next = 1;
    double a = 0;
    while (bad - good > 1) {
        inferd_status st = attain(s, next, &a, err);
        if (st != INFERD_OK) return st;
        if (a >= level)
            good = next;
        else
            bad = next;
        next = bad > s->e->models_max ? u32_min(2 * good, s->e->models_max) : (good + bad) / 2;
        if (next == good) next = good + 1;
    }
    *out = good;
    return INFERD_OK;
}

static int by_models(const void *a, const void *b) {
    uint32_t x = ((const attempt *)a)->n_models, y = ((const attempt *)b)->n_models;
    return x < y ? -1 : x > y;
}

static inferd_status draw_sweep(sweep *s, inferd_err *err) {
    double x[ATTEMPTS_MAX], y[ATTEMPTS_MAX], lo[ATTEMPTS_MAX], hi[ATTEMPTS_MAX];
    for (uint32_t i = 0; i < s->n_done; i++) {
        x[i] = s->done[i].n_models;
        y[i] = s->done[i].median;
        lo[i] = s->done[i].min;
        hi[i] = s->done[i].max;
    }
    plot_series series = {.name = "attainment",
                          .mark = PLOT_LINE,
                          .x = x,
                          .y = y,
                          .lo = lo,
                          .hi = hi,
                          .n = s->n_done};
    return draw_attainment(s->e, "Models on one device", "models", &series, err);
}

inferd_status experiment_models(const experiment *e, inferd_err *err) {
    figures f = {0};
    char title[FIGURES_TEXT_BYTES];
    sweep s = {.e = e, .f = &f};
    uint32_t most[INFERD_COUNT(LEVELS)] = {0};
    experiment_print_constants(e);
    inferd_status st = experiment_targets(e, &s.ttft_us, &s.tpot_us, NULL, err);
    if (st != INFERD_OK) return st;
    snprintf(title, sizeof title, "models on %u x %s, %s, %g s", e->n_devices, e->preset->name,
             workload_kind_name(e->mix), e->seconds);
    st = experiment_figures(e, &f, title, err);
    for (size_t l = 0; l < INFERD_COUNT(LEVELS) && st == INFERD_OK; l++)
        st = bisect(&s, LEVELS[l], &most[l], err);
    if (st == INFERD_OK) st = experiment_tell(e, &f, err);
    if (st == INFERD_OK) {
        qsort(s.done, s.n_done, sizeof *s.done, by_models);
        printf("%8s %12s %8s %8s\n", "models", "attainment %", "least", "most");
        for (uint32_t i = 0; i < s.n_done; i++)
            printf("%8u %12.2f %8.2f %8.2f\n", s.done[i].n_models, 100 * s.done[i].median,
                   100 * s.done[i].min, 100 * s.done[i].max);
    }
    for (size_t l = 0; l < INFERD_COUNT(LEVELS) && st == INFERD_OK; l++)
        printf("attainment of at least %.0f %% with up to %u models%s\n", 100 * LEVELS[l], most[l],
               most[l] == e->models_max ? " (more were not tried)" : "");
    if (st == INFERD_OK) st = draw_sweep(&s, err);
    figures_deinit(&f);
    return st;
}

/* ---- speed ---- */

enum { GOAL_PER_MINUTE = 1000000 };

inferd_status experiment_speed(const experiment *e, inferd_err *err) {
    experiment one = *e;
    run_figures r;
    /* Without a trace: Poisson arrivals with the lengths of the code trace. */
    if (e->n_traces == 0) one.lengths = LENGTHS_CODE;
    one.mix = e->n_traces > 0 ? WORKLOAD_MIX_Z : WORKLOAD_MIX_M;
    double rate = e->lambda > 0 ? e->lambda : 1;
    if (e->n_traces > 0) {
        const trace *t = &e->traces[0];
        uint64_t span_ns = t->rows[t->n - 1].at_ns;
        rate = (double)t->n / ((double)span_ns / 1e9);
    } else {
        one.lambda = rate;
    }
    one.seconds = e->n_requests / (rate * e->rate_factor);
    experiment_print_constants(e);
    inferd_status st =
        experiment_run(&one, e->seed0, u32_max(e->n_models, 1), e->rate_factor, 0, 0, &r, err);
    if (st != INFERD_OK) return st;
    double per_minute = (double)r.attained.n_offered / r.machine_s * 60;
    const world_account *a = &r.account;
    printf("%s, %.2f requests/s for %.0f s: %llu requests, %llu refused; device busy %.1f %%\n",
           e->n_traces > 0 ? "trace, again and again" : "Poisson", r.offered_per_s, r.seconds,
           (ull)r.attained.n_offered, (ull)r.attained.n_refused, 100 * r.used);
    printf("TTFT P95 %.0f ms, TPOT P95 %.1f ms, %.1f rows per step\n", r.ttft_us[1] / 1e3,
           r.tpot_us[1] / 1e3, (double)a->n_rows / (double)a->n_steps);
    printf("%.2f s of this machine's processor: %.0f requests a minute (goal %d), %.2f us a step, "
           "%.1f steps a "
           "request\n",
           r.machine_s, per_minute, GOAL_PER_MINUTE, r.machine_s * 1e6 / (double)a->n_steps,
           (double)a->n_steps / (double)r.attained.n_offered);
    return INFERD_OK;
}
