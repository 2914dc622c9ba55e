/* experiment_objectives.c - see experiment.h: what policy.objective changes.
 *
 * The same requests run four times, each passing its targets to the scheduler: with `balanced`,
 * `latency`, `throughput` and `sla`.  Nothing else differs.  A few models that all fit share a
 * device near its capacity, so that only time is short; there the four objectives have to differ,
 * or the setting has no effect. */
#include <string.h>

#include "experiment.h"

static const char *const NAMES[] = {"default"};
static const double FACTORS[] = {0.6, 0.8, 1, 1.2}; // of the capacity of a dedicated device
enum { MODELS = 3, STEP_TOKENS = 2048 };            // all of them fit; chunks are bounded by time
enum { N_OBJECTIVES = INFERD_COUNT(NAMES), N_FACTORS = INFERD_COUNT(FACTORS) };

static inferd_status set(figures *f, const char *group, uint32_t seed_idx, const run_figures *r,
                         inferd_err *err) {
    const experiment_row rows[] = {
        {"attainment", "%", 2, 100 * r->attainment},
        {"TTFT attained", "%", 2, 100 * r->ttft_met},
        {"TPOT attained", "%", 2, 100 * r->tpot_met},
        {"goodput", "1/s", 3, r->goodput},
        {"goodput, output", "tok/s", 0, r->goodput_tokens},
        {"throughput, output", "tok/s", 0, r->output_per_s},
        {"refused", "requests", 0, (double)r->attained.n_refused},
        {"TTFT P95", "ms", 0, r->ttft_us[1] / 1e3},
        {"TPOT median", "ms", 1, r->tpot_us[0] / 1e3},
        {"TPOT P95", "ms", 1, r->tpot_us[1] / 1e3},
        {"until all had ended", "s", 0, r->seconds},
        {"rows per step", "", 1, (double)r->usage.n_rows / (double)r->usage.n_steps},
    };
    return experiment_set_rows(f, group, seed_idx, rows, INFERD_COUNT(rows), err);
}

static void name_group(char *out, size_t n_bytes, int objective, int factor) {
    snprintf(out, n_bytes, "%g of capacity, %s", FACTORS[factor], NAMES[objective]);
}

static inferd_status draw(const experiment *e, const figures *f, inferd_err *err) {
    double y[N_OBJECTIVES][N_FACTORS], lo[N_OBJECTIVES][N_FACTORS], hi[N_OBJECTIVES][N_FACTORS];
    plot_series series[N_OBJECTIVES];
    for (int o = 0; o < N_OBJECTIVES; o++) {
        for (int k = 0; k < N_FACTORS; k++) {
            char group[FIGURES_TEXT_BYTES];
            name_group(group, sizeof group, o, k);
            experiment_point(f, group, "attainment", (size_t)k, y[o], lo[o], hi[o]);
        }
        series[o] = (plot_series){.name = NAMES[o],
                                  .mark = PLOT_LINE,
                                  .x = FACTORS,
                                  .y = y[o],
                                  .lo = lo[o],
                                  .hi = hi[o],
                                  .n = N_FACTORS};
    }
    plot p = {.title = "Attainment by objective",
              .x_label = "offered, part of a dedicated device's capacity",
              .y_label = "attainment, %",
              .series = series,
              .n_series = N_OBJECTIVES,
              .has_y_range = true,
              .y_min = 0,
              .y_max = 100};
    return experiment_plot(e, &p, err);
}

inferd_status experiment_objectives(const experiment *e, inferd_err *err) {
    figures f = {0};
    char group[FIGURES_TEXT_BYTES];
    experiment one = *e;
    slo_targets t;
    one.told = true;
    one.mix = WORKLOAD_MIX_M;
    if (one.step_tokens == 0) one.step_tokens = STEP_TOKENS;
    if (one.n_models == 0) one.n_models = MODELS;
    experiment_print_constants(e);
    inferd_status st = experiment_targets(e, true, &t, err);
    if (st == INFERD_OK)
        printf("%u models, each %.2f requests/s times the part; steps of up to %u tokens\n",
               one.n_models, t.base.capacity_per_s / one.n_models, one.step_tokens);
    if (st == INFERD_OK) st = experiment_figures(&one, &f, "four objectives", err);
    if (st == INFERD_OK) st = experiment_note_targets(&f, &t, err);
    for (int k = 0; k < N_FACTORS; k++)
        for (int o = 0; o < N_OBJECTIVES; o++) {
            name_group(group, sizeof group, o, k);
            if (st == INFERD_OK) one.lambda = t.base.capacity_per_s * FACTORS[k] / one.n_models;
            if (st == INFERD_OK)
                st = experiment_run_seeds(&one, 0, e->rate_factor, t.ttft_us, t.tpot_us, &f, group,
                                          set, err);
        }
    if (st == INFERD_OK) st = experiment_tell(e, &f, err);
    if (st == INFERD_OK) st = draw(e, &f, err);
    figures_deinit(&f);
    return st;
}
