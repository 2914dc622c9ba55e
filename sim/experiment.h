/* experiment.h - questions that the simulator answers, one command each.
 *
 * Each prints the constants it used and one table; figures are given as the median of the seeds,
 * with least and greatest.  JSON has them all, and constants, targets, options and what follows
 * from all seeds together as notes (report.h).  The same options give the same bytes.
 *
 *     mix      one workload: attainment, goodput, latencies, switches, use of the device
 *              by tenant and model, share error, fairness; ADV: the victim beside itself alone;
 *              PRE: how many steps the urgent ones wait
 *     shares   fixed shares, everybody with more work than his share: the error
 *     rate     the same over rates, with a curve
 *     models   how many models a device serves, attainment 90 and 99 %
 *     evict    reload time of the product's choice beside LRU and who knows the future
 *     objectives  one workload, four objectives: attainment, goodput, throughput, refusals
 *     churn    models that come and go: the largest that can be placed against the theoretical
 *     retry    clients that obey Retry-After: how many succeed at their first retry
 *     speed    how fast the simulator itself is: of this machine, so no two runs give the same
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
    CHURN_DEVICES_MAX = 16 // some minutes; what could be packed is tried exactly
};
/* Bit i of `attacks`. */
extern const char *const experiment_attack_names[EXPERIMENT_ATTACKS];

#define SLO_SCALE_MIN 0.01
#define SLO_SCALE_MAX 1000.0

typedef struct experiment {
    const sim_preset *preset;
    const sim_shape *shape;         // of all models,
    const sim_shape *const *shapes; // [n_shapes] or in turn, when not NULL
    uint32_t n_shapes;
    workload_kind mix;
    workload_lengths lengths;
    trace traces[WORKLOAD_TRACES_MAX]; // owned
    uint32_t n_traces;
    uint32_t n_seeds, n_devices, n_models, running_max;
    uint32_t step_tokens; // rows of a step at most; 0: the daemon's default
    uint64_t seed0;
    double seconds;
    double lambda;      // < 0: the workload's own; so with the next two
    double zipf;        // mix-z, trace
    double cv;          // mix-g
    double rate_factor; // 1: as it is
    double slo_scale;
    uint32_t slo_ttft_ms, slo_tpot_ms; // 0: the base times slo_scale
    double host_gb;                    // < 0: the preset's
    uint32_t n_requests;               // speed
    uint32_t models_max;               // models: no more are tried
    uint32_t verify_turns;             // of world_options
    bool cache_all;
    bool told;          // requests say their targets
    bool obeys;         // clients come back when they are told to
    uint32_t queue_len; // 0: the daemon's default
    policy_objective objective;
    uint32_t tpot_ms; // pace of decoding; 0: the objective's
    world_worth worth;
    const char *json_path, *svg_path; // NULL: none
    double load_percent;              // mix: the rate at which devices compute so much; 0: as given
    bool watched;                     // watch.h: shares and fairness are in the figures
    const tenant_policy *tenants;     // [n_tenants] borrowed; NULL: nobody has a guarantee
    uint32_t n_tenants;               // of the workload; 0: its own
    const share_spec *model_shares;   // [n_models] borrowed; NULL: none
    uint32_t attacks;                 // ADV, of workload_attack
    bool no_backlog;                  // PRE: nothing waits at the start
    uint32_t taken;                   // of options.h: what the command takes
    char *line;                       // the command line, less where figures go; owned; or NULL
} experiment;

typedef struct plot_labels {
    const char *title, *x, *y;
} plot_labels;

/* What a dedicated device gives at half of what it can. */
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
    double ttft_met, tpot_met;     // part of the offered that met this target
    double output_per_s;           // tokens of all that ended, per device
    uint64_t n_told, n_taken; // refused with a Retry-After; of those, taken when they came back
    double told_ms;           // mean
    world_account account;
    double offered_s; // of arrivals
    double seconds;   // until all had ended
    double used;      // part of that in which devices computed
    double machine_s; // of this machine's processor
    /* While requests arrive, when watched; else NAN. */
    double share_points[STATS_WINDOWS]; // the worst of the devices; NAN: shorter than the window
    double jain_weighted, jain_due;     // the least of the devices
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

/* ---- what they share, experiment.c ---- */

/* One run of n_models models with these targets (0: none). */
inferd_status experiment_run(const experiment *e, uint64_t seed, uint32_t n_models,
                             double rate_factor, uint32_t slo_ttft_us, uint32_t slo_tpot_us,
                             run_figures *out, inferd_err *err);
/* The same; the world is the caller's then. */
inferd_status experiment_run_world(const experiment *e, uint64_t seed, uint32_t n_models,
                                   double rate_factor, uint32_t slo_ttft_us, uint32_t slo_tpot_us,
                                   run_figures *out, world **out_world, inferd_err *err);
uint32_t experiment_n_models(const experiment *e);
/* The median, 95th and 99th percentile; sorts.  NAN: there is none. */
void experiment_quantiles(uint64_t *values, size_t n, double out[3]);
/* One request at a time would be no load at all, and more than it can serve no latency: half of
 * what it serves of an endless queue. */
inferd_status experiment_base(const experiment *e, slo_base *out, inferd_err *err);
/* Targets of e: given, or the base times the scale (then the base is measured and printed).
 * `wants_base`: it is measured in any case. */
inferd_status experiment_targets(const experiment *e, bool wants_base, slo_targets *out,
                                 inferd_err *err);
inferd_status experiment_note_targets(figures *f, const slo_targets *t, inferd_err *err);
/* EINVAL: the workload of the mix cannot be, with as many models as e says. */
inferd_status experiment_check_load(const experiment *e, inferd_err *err);
/* Of arrivals: e->seconds, or less when a trace that is not repeated is over by then. */
double experiment_seconds(const experiment *e, double rate_factor);
/* The figures of one run, as one seed of a group. */
inferd_status experiment_set(figures *f, const char *group, uint32_t seed_idx, const run_figures *r,
                             inferd_err *err);
void experiment_print_constants(const experiment *e);
/* The table to stdout, and where the options say. */
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
/* The plot where the options say; nothing when they do not. */
inferd_status experiment_plot(const experiment *e, const plot *p, inferd_err *err);
/* Median, least and most over the seeds, for point i of a series. */
void experiment_point(const figures *f, const char *group, const char *name, size_t i,
                      double *median, double *lo, double *hi);
/* Bars of several series side by side; nothing when the options ask for no plot. */
inferd_status experiment_plot_bars(const experiment *e, const plot_labels *labels,
                                   const plot_series *series, uint32_t n_series,
                                   const char *const *bars, uint32_t n_bars, inferd_err *err);
/* Every seed with this rate and these targets; `set` takes the figures of each. */
typedef inferd_status experiment_set_f(figures *f, const char *group, uint32_t seed_idx,
                                       const run_figures *r, inferd_err *err);
inferd_status experiment_run_seeds(const experiment *e, uint32_t n_models, double rate_factor,
                                   uint32_t slo_ttft_us, uint32_t slo_tpot_us, figures *f,
                                   const char *group, experiment_set_f *set, inferd_err *err);
/* Without figures; device, model and options are noted. */
inferd_status experiment_figures(const experiment *e, figures *f, const char *title,
                                 inferd_err *err);

#endif
