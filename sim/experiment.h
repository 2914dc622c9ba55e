/* experiment.h - questions that the simulator answers, one command each.
 *
 * Each command prints the constants it used and one table; figures are medians over the seeds, with
 * minimum and maximum.  JSON has the value of every seed and, as notes, constants, targets, options
 * and results over all seeds (report.h).  The same options give the same bytes.
 *
 *     mix      one workload: attainment, goodput, latencies, switches, use of the device
 *              by tenant and model, share error, fairness; ADV: the victim under attack and alone;
 *              PRE: how many steps the urgent requests wait
 *     shares   fixed shares, every flow with more work than its share: the error
 *     rate     the same as mix over several rates, with a curve
 *     models   how many models a device serves, attainment 90 and 99 %
 *     evict    reload time with the product's choice, with LRU, and with knowledge of the future
 *     objectives  one workload, four objectives: attainment, goodput, throughput, refusals
 *     churn    models that come and go: the largest that can be placed against the theoretical
 *     retry    clients that obey Retry-After: how many succeed at their first retry
 *     speed    the speed of the simulator itself: depends on this machine, so no two runs agree
 *
 * Thread: that of main. */
#ifndef SIM_EXPERIMENT_H
#define SIM_EXPERIMENT_H

#include "plot.h"
#include "report.h"
#include "world.h"

enum {
    EXPERIMENT_ATTACKS = 4,
    CHURN_DEVICES_MIN = 2,
    CHURN_DEVICES_MAX = 16 // takes minutes: the best packing is searched exactly
};
/* Bit i of `attacks`. */
extern const char *const experiment_attack_names[EXPERIMENT_ATTACKS];

#define SLO_SCALE_MIN 0.01
#define SLO_SCALE_MAX 1000.0

typedef struct experiment {
    const sim_preset *preset;
    const sim_shape *shape;         // of all models,
    const sim_shape *const *shapes; // [n_shapes] used in turn instead, when not NULL
    uint32_t n_shapes;
    workload_kind mix;
    workload_lengths lengths;
    trace traces[WORKLOAD_TRACES_MAX]; // owned
    uint32_t n_traces;
    uint32_t n_seeds, n_devices, n_models, running_max;
    uint32_t step_tokens; // most rows of a step; 0: the daemon's default
    uint64_t seed0;
    double seconds;
    double lambda;      // < 0: the workload's default; the same for the next two
    double zipf;        // mix-z, trace
    double cv;          // mix-g
    double rate_factor; // 1: unchanged
    double slo_scale;
    uint32_t slo_ttft_ms, slo_tpot_ms; // 0: the base times slo_scale
    double host_gb;                    // < 0: the preset's
    uint32_t n_requests;               // speed
    uint32_t models_max;               // models: the most that are tried
    uint32_t verify_iterations;        // of world_options
    bool cache_all;
    bool told;          // requests pass their targets to the scheduler
    bool obeys;         // clients come back after their Retry-After,
    bool anonymous;     // and do not say that it is a retry
    uint32_t queue_len; // 0: the daemon's default
    uint32_t tpot_ms;   // pace of decoding; 0: the default
    world_worth worth;
    const char *json_path, *svg_path; // NULL: none
    double load_percent; // mix: finds the rate at which devices compute that much; 0: uses the
                         // given rate
    bool watched;        // with watch.h: the figures include shares and fairness
    const tenant_policy *tenants;   // [n_tenants] borrowed; NULL: no tenant has a guarantee
    uint32_t n_tenants;             // of the workload; 0: its default
    const share_spec *model_shares; // [n_models] borrowed; NULL: none
    uint32_t attacks;               // ADV: a set of workload_attack
    bool no_backlog;                // PRE: no backlog at the start
    uint32_t taken;                 // options that the command takes, see options.h
    char *line;                     // the command line without output files; owned; or NULL
} experiment;

typedef struct plot_labels {
    const char *title, *x, *y;
} plot_labels;

/* Figures of a dedicated device at half of its capacity. */
typedef struct slo_base {
    double capacity_per_s, rate_per_s;
    uint64_t ttft_us, tpot_us; // 95th percentiles; tpot: 0 when all outputs have one token
} slo_base;

typedef struct slo_targets {
    uint32_t ttft_us, tpot_us; // 0: none
    bool has_base;
    slo_base base;
} slo_targets;

/* Figures of one run. */
typedef struct run_figures {
    stats_attained attained;
    double attainment, goodput, goodput_tokens, offered_per_s;
    double ttft_us[3], tpot_us[3]; // median, 95th and 99th percentile; NAN: none
    double ttft_met, tpot_met;     // part of the offered requests that met this target
    double output_per_s;           // tokens of all finished requests, per device
    uint64_t n_told, n_taken; // refused with a Retry-After; of those, admitted when they came back
    double told_ms;           // mean
    double told_per_needed;   // median, of what they were told and the wait they needed; NAN: none
    world_usage usage;
    double offered_s; // length of the arrivals
    double seconds;   // until all requests had ended
    double used;      // part of that in which devices computed
    double machine_s; // processor time of this machine
    /* While requests arrive, when watched; else NAN. */
    double share_points[STATS_WINDOWS]; // the largest of the devices; NAN: shorter than the window
    double jain_weighted, jain_due;     // the smallest of the devices
    double busy;                        // part of that time in which devices computed
} run_figures;

void experiment_init(experiment *e);
void experiment_deinit(experiment *e);
/* The commands; each prints to stdout. */
inferd_status experiment_mix(const experiment *e, inferd_err *err);
inferd_status experiment_rate(const experiment *e, inferd_err *err);
inferd_status experiment_models(const experiment *e, inferd_err *err);
inferd_status experiment_evict(const experiment *e, inferd_err *err);
inferd_status experiment_speed(const experiment *e, inferd_err *err);
inferd_status experiment_objectives(const experiment *e, inferd_err *err);
inferd_status experiment_churn(const experiment *e, inferd_err *err);
inferd_status experiment_retry(const experiment *e, inferd_err *err);
inferd_status experiment_shares(const experiment *e, inferd_err *err);

/* ---- shared by the commands, experiment.c ---- */

/* One run of n_models models with these targets (0: none). */
inferd_status experiment_run(const experiment *e, uint64_t seed, uint32_t n_models,
                             double rate_factor, uint32_t slo_ttft_us, uint32_t slo_tpot_us,
                             run_figures *out, inferd_err *err);
/* The same; the caller owns the world afterwards. */
inferd_status experiment_run_world(const experiment *e, uint64_t seed, uint32_t n_models,
                                   double rate_factor, uint32_t slo_ttft_us, uint32_t slo_tpot_us,
                                   run_figures *out, world **out_world, inferd_err *err);
uint32_t experiment_n_models(const experiment *e);
/* Median, 95th and 99th percentile; sorts.  NAN: no values. */
void experiment_quantiles(uint64_t *values, size_t n, double out[3]);
/* Measures the dedicated device at half of the throughput it has with an endless queue: one request
 * at a time would be almost no load, and more than the capacity would make latency unbounded. */
inferd_status experiment_base(const experiment *e, slo_base *out, inferd_err *err);
/* Targets of e: given ones, or the base times the scale (then the base is measured and printed).
 * `wants_base`: the base is measured in any case. */
inferd_status experiment_targets(const experiment *e, bool wants_base, slo_targets *out,
                                 inferd_err *err);
inferd_status experiment_note_targets(figures *f, const slo_targets *t, inferd_err *err);
/* EINVAL: the workload of the mix is impossible with e's number of models. */
inferd_status experiment_check_load(const experiment *e, inferd_err *err);
/* Length of the arrivals: e->seconds, or less when a trace that is not repeated ends earlier. */
double experiment_seconds(const experiment *e, double rate_factor);
/* Set the figures of one run, as one seed of a group. */
inferd_status experiment_set(figures *f, const char *group, uint32_t seed_idx, const run_figures *r,
                             inferd_err *err);
void experiment_print_constants(const experiment *e);
/* Write the table to stdout, and the files that the options ask for. */
inferd_status experiment_tell(const experiment *e, const figures *f, inferd_err *err);
inferd_status experiment_write(const char *path, const buf *text, inferd_err *err);
/* A figure of one seed. */
typedef struct experiment_row {
    const char *name, *unit;
    uint32_t n_digits;
    double value;
} experiment_row;
inferd_status experiment_set_rows(figures *f, const char *group, uint32_t seed_idx,
                                  const experiment_row *rows, size_t n, inferd_err *err);
/* Write the plot if the options ask for one. */
inferd_status experiment_plot(const experiment *e, const plot *p, inferd_err *err);
/* Median, minimum and maximum over the seeds, for point i of a series. */
void experiment_point(const figures *f, const char *group, const char *name, size_t i,
                      double *median, double *lo, double *hi);
/* Bars of several series side by side, if the options ask for a plot. */
inferd_status experiment_plot_bars(const experiment *e, const plot_labels *labels,
                                   const plot_series *series, uint32_t n_series,
                                   const char *const *bars, uint32_t n_bars, inferd_err *err);
/* Runs every seed with this rate and these targets; `set` gets the figures of each. */
typedef inferd_status experiment_set_f(figures *f, const char *group, uint32_t seed_idx,
                                       const run_figures *r, inferd_err *err);
inferd_status experiment_run_seeds(const experiment *e, uint32_t n_models, double rate_factor,
                                   uint32_t slo_ttft_us, uint32_t slo_tpot_us, figures *f,
                                   const char *group, experiment_set_f *set, inferd_err *err);
/* Empty figures, with notes of device, model and options. */
inferd_status experiment_figures(const experiment *e, figures *f, const char *title,
                                 inferd_err *err);

#endif
