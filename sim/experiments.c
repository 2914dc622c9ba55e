/* experiments.c - see experiment.h: rate, models, speed. */
#include <math.h>
#include <string.h>

#include "experiment.h"

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

/* Notes "models_at_99_percent" and the like, beside the table. */
static inferd_status note_level(figures *f, const char *what, double level, double value,
                                inferd_err *err) {
    char name[FIGURES_TEXT_BYTES];
    snprintf(name, sizeof name, "%s_at_%.0f_percent", what, 100 * level);
    return figures_note(f, "results", name, value, err);
}

/* Summary of the attainment.  Seeds without requests are left out; fails when no seed has any. */
static inferd_status attained_of(const figures *f, const char *group, double seconds,
                                 figure_summary *out, inferd_err *err) {
    *out = figures_summary(f, figures_find(f, group, "attainment"));
    if (out->n > 0) return INFERD_OK;
    return inferd_fail(err, INFERD_EINVAL, "%s: no requests in %g s", group, seconds);
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
    slo_targets t;
    char title[FIGURES_TEXT_BYTES], group[FIGURES_TEXT_BYTES];
    experiment_print_constants(e);
    inferd_status st = experiment_targets(e, false, &t, err);
    if (st != INFERD_OK) return st;
    snprintf(title, sizeof title, "%s on %u x %s over rates, %g s", workload_kind_name(e->mix),
             e->n_devices, e->preset->name, e->seconds);
    st = experiment_figures(e, &f, title, err);
    if (st == INFERD_OK) st = experiment_note_targets(&f, &t, err);
    for (uint32_t k = 0; k < N_FACTORS && st == INFERD_OK; k++) {
        snprintf(group, sizeof group, "rate x %g", FACTORS[k]);
        double factor = FACTORS[k] * e->rate_factor;
        figure_summary s;
        st = experiment_run_seeds(e, 0, factor, t.ttft_us, t.tpot_us, &f, group, experiment_set,
                                  err);
        if (st == INFERD_OK) st = attained_of(&f, group, experiment_seconds(e, factor), &s, err);
        if (st != INFERD_OK) break;
        c.median[k] = s.median / 100;
        c.lo[k] = s.min / 100;
        c.hi[k] = s.max / 100;
    }
    double rates[INFERD_COUNT(LEVELS)] = {0};
    for (size_t l = 0; l < INFERD_COUNT(LEVELS) && st == INFERD_OK; l++) {
        rates[l] = stats_rate_at(FACTORS, c.median, N_FACTORS, LEVELS[l]);
        st = note_level(&f, "rate", LEVELS[l], rates[l], err);
    }
    if (st == INFERD_OK) st = experiment_tell(e, &f, err);
    if (st == INFERD_OK) st = draw_curve(e, &c, err);
    for (size_t l = 0; l < INFERD_COUNT(LEVELS) && st == INFERD_OK; l++)
        printf("attainment of at least %.0f %% up to rate x %.2f\n", 100 * LEVELS[l], rates[l]);
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
    slo_targets targets;
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
    if (s->n_done == ATTEMPTS_MAX)
        return inferd_fail(err, INFERD_ETOOLONG, "more than %d numbers of models", ATTEMPTS_MAX);
    char group[FIGURES_TEXT_BYTES];
    snprintf(group, sizeof group, "%u models", n_models);
    figure_summary sum;
    inferd_status st = experiment_run_seeds(s->e, n_models, s->e->rate_factor, s->targets.ttft_us,
                                            s->targets.tpot_us, s->f, group, experiment_set, err);
    if (st == INFERD_OK)
        st = attained_of(s->f, group, experiment_seconds(s->e, s->e->rate_factor), &sum, err);
    if (st != INFERD_OK) return st;
    s->done[s->n_done++] = (attempt){n_models, sum.median / 100, sum.min / 100, sum.max / 100};
    *out = sum.median / 100;
    return INFERD_OK;
}

/* The largest number of models that attains the level, if attainment falls with the number; 0: even
 * one model does not. */
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
    inferd_status st = experiment_targets(e, false, &s.targets, err);
    if (st != INFERD_OK) return st;
    snprintf(title, sizeof title, "models on %u x %s, %s, %g s", e->n_devices, e->preset->name,
             workload_kind_name(e->mix), e->seconds);
    st = experiment_figures(e, &f, title, err);
    if (st == INFERD_OK) st = experiment_note_targets(&f, &s.targets, err);
    for (size_t l = 0; l < INFERD_COUNT(LEVELS) && st == INFERD_OK; l++) {
        st = bisect(&s, LEVELS[l], &most[l], err);
        if (st == INFERD_OK) st = note_level(&f, "models", LEVELS[l], most[l], err);
    }
    if (st == INFERD_OK) st = figures_note(&f, "results", "models_tried_max", e->models_max, err);
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

/* Traces are repeated, each at its own rate. */
static inferd_status offered_rate(const experiment *e, double *out, inferd_err *err) {
    *out = e->n_traces > 0 ? 0 : e->lambda > 0 ? e->lambda : 1;
    for (uint32_t i = 0; i < e->n_traces; i++) {
        const trace *t = &e->traces[i];
        double period_s = trace_period_s(t);
        if (period_s <= 0)
            return inferd_fail(err, INFERD_EINVAL,
                               "--trace, number %u: it takes no time, so it cannot be repeated",
                               i + 1);
        *out += (double)t->n / period_s;
    }
    return INFERD_OK;
}

static inferd_status set_speed(figures *f, const char *group, uint32_t seed_idx,
                               const run_figures *r, inferd_err *err) {
    const world_usage *a = &r->usage;
    double n = (double)r->attained.n_offered, n_steps = (double)a->n_steps;
    if (n == 0) return inferd_fail(err, INFERD_EINVAL, "no requests in %g s", r->offered_s);
    const experiment_row rows[] = {
        {"requests", "", 0, n},
        {"offered", "1/s", 2, r->offered_per_s},
        {"refused", "requests", 0, (double)r->attained.n_refused},
        {"device computes", "%", 1, 100 * r->used},
        {"TTFT P95", "ms", 0, r->ttft_us[1] / 1e3},
        {"TPOT P95", "ms", 1, r->tpot_us[1] / 1e3},
        {"rows per step", "", 1, (double)a->n_rows / n_steps},
        {"steps per request", "", 1, n_steps / n},
        {"this machine's processor", "s", 2, r->machine_s},
        {"this machine's processor, per step", "us", 2, r->machine_s * 1e6 / n_steps},
        {"requests a minute of this machine's processor", "", 0, n / r->machine_s * 60},
    };
    return experiment_set_rows(f, group, seed_idx, rows, INFERD_COUNT(rows), err);
}

inferd_status experiment_speed(const experiment *e, inferd_err *err) {
    experiment one = *e;
    figures f = {0};
    char title[FIGURES_TEXT_BYTES];
    double rate;
    inferd_status st = offered_rate(e, &rate, err);
    if (st != INFERD_OK) return st;
    /* Without a trace: Poisson arrivals with the lengths of the code trace. */
    one.lengths = LENGTHS_CODE;
    one.mix = e->n_traces > 0 ? WORKLOAD_MIX_Z : WORKLOAD_MIX_M;
    one.n_models = u32_max(e->n_models, 1);
    one.lambda = e->n_traces > 0 ? -1 : rate;
    if (e->n_traces == 0) rate *= one.n_models;
    one.seconds = e->n_requests / (rate * e->rate_factor);
    if (e->verify_iterations != 1)
        one.verify_iterations = 0; // it would count as the simulator's time
    experiment_print_constants(e);
    snprintf(title, sizeof title, "speed of the simulator, %s",
             e->n_traces > 0 ? "traces, again and again" : "Poisson");
    st = experiment_figures(e, &f, title, err);
    if (st == INFERD_OK) st = figures_note(&f, "results", "goal_per_minute", GOAL_PER_MINUTE, err);
    if (st == INFERD_OK)
        st = experiment_run_seeds(&one, 0, e->rate_factor, 0, 0, &f, "speed", set_speed, err);
    if (st == INFERD_OK) st = experiment_tell(e, &f, err);
    if (st == INFERD_OK) printf("the goal is %d requests a minute\n", GOAL_PER_MINUTE);
    figures_deinit(&f);
    return st;
}
