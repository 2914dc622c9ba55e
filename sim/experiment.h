/* experiment.h - questions that the simulator answers, one command each.
 *
 *     mix      one workload: attainment, goodput, latencies, switches, use of the device by tenant
 *              and model, share error, fairness; ADV: the victim under attack and alone; PRE: how
 *              many steps the urgent requests wait
 *     shares   fixed shares, every flow with more work than its share: the error
 *     models   how many models a device serves, attainment 90 and 99 %, over host memory x rate x
 *              targets
 *     load     a device near its capacity: attainment, goodput, throughput
 *     evict    reload time with the daemon's choice, with LRU, and with knowledge of the future
 *     retry    clients that obey Retry-After: how many succeed at their first retry
 *
 * Each prints the constants and one table per group; figures are medians over the seeds, with
 * minimum and maximum.  JSON has the value of every seed and, as notes, constants, targets, options
 * and results over all seeds (report.h).  The same options give the same bytes.
 *
 * Thread: that of main. */
#ifndef SIM_EXPERIMENT_H
#define SIM_EXPERIMENT_H

#include "report.h"
#include "world.h"

typedef enum experiment_kind {
    EXPERIMENT_MIX,
    EXPERIMENT_SHARES,
    EXPERIMENT_MODELS,
    EXPERIMENT_LOAD,
    EXPERIMENT_EVICT,
    EXPERIMENT_RETRY,
    EXPERIMENTS
} experiment_kind;

const char *experiment_name(int kind);

typedef struct experiment {
    experiment_kind kind;
    workload_kind mix;
    workload_lengths lengths;
    trace rows; // of mix trace; owned
    uint32_t n_seeds;
    uint32_t n_models;    // 0: the workload's; `models`: no more are tried
    uint32_t running_max; // 0: the daemon's default; the same for the next two
    uint32_t queue_len;
    uint32_t step_tokens; // most rows of a step
    uint32_t seed0;
    double seconds;
    double lambda;                     // < 0: the workload's default
    double rate_factor;                // 1: unchanged
    uint32_t slo_ttft_ms, slo_tpot_ms; // 0: five times the dedicated device
    double host_gb;                    // < 0: the preset's
    double load_percent;   // mix: finds the rate at which devices compute that much; 0: given
    const char *json_path; // NULL: none
    char *line;            // the command line without the output file; owned; or NULL

    /* What an experiment sets for one run. */
    uint32_t ttft_us, tpot_us;      // targets of the requests; 0: none
    uint32_t pace_ms;               // of decoding; 0: the daemon's default
    bool mixed;                     // models of all sim_shapes in turn, not of the first
    bool no_backlog;                // PRE: no backlog at the start
    uint32_t attacks;               // ADV: a set of workload_attack
    world_options world;            // n_tenants 0: the workload's; the limits are the daemon's
    const share_spec *model_shares; // [n_models] borrowed; NULL: none
} experiment;

enum { MEDIAN, P95, P99, QUANTILES };

/* Some or all requests of a run. */
typedef struct request_figures {
    stats_attained attained;
    double ttft_us[QUANTILES], tpot_us[QUANTILES]; // of the done ones; NAN: none
    /* Watched: until the first step of those that began, and steps of others before it. */
    double wait_us[QUANTILES], n_steps[QUANTILES];
    uint64_t n_begun;
    /* Refused with a Retry-After; of those, admitted when they came back; mean of the times. */
    uint64_t n_told, n_taken;
    double told_ms;
    double told_per_needed; // median, of what they were told and the wait they needed; NAN: none
} request_figures;

/* Figures of one run. */
typedef struct run_figures {
    request_figures all;
    world_usage usage;
    double offered_s;      // length of the arrivals
    double seconds;        // until all requests had ended
    watch_figures watched; // while requests arrive, when watched
    double busy;           // part of that time in which the device computed; NAN: not watched
} run_figures;

void experiment_init(experiment *e, experiment_kind kind);
void experiment_deinit(experiment *e);
/* Runs the experiment, prints its figures and writes the file that the options ask for. */
inferd_status experiment_do(const experiment *e, inferd_err *err);

/* ---- the command line, options.c ----
 *
 * One table has all options, and with each the commands in which it has an effect.  Elsewhere it is
 * refused: if it were ignored, its user would take the figures for the answer to another question.
 * Every error that can be detected early is reported before anything runs, including an output file
 * that cannot be written. */

/* Reads argv into an initialised experiment of the kind.  EINVAL, EIO: the text names the option
 * and what was expected. */
inferd_status options_read(experiment *e, int argc, char **argv, inferd_err *err);
/* Notes the command line that gives the same figures, and the numbers left at their defaults. */
void options_note(const experiment *e, figures *f);
void options_help(FILE *out); // one line per option

/* ---- the experiments: each sets a title and figures ---- */

typedef inferd_status experiment_f(const experiment *e, figures *f, inferd_err *err);
experiment_f experiment_mix, experiment_shares, experiment_models, experiment_load,
    experiment_evict, experiment_retry;

/* ---- shared by them, experiment.c ---- */

/* One run.  out_world NULL: it is not kept; else the caller owns it afterwards. */
inferd_status experiment_run(const experiment *e, uint64_t seed, run_figures *out,
                             world **out_world, inferd_err *err);
/* Sets the figures of one run. */
void experiment_set(figures *f, const char *group, uint32_t seed_idx, const run_figures *r);
/* Figures of the requests of one tenant, or one model, or all: SIM_ALL. */
enum { SIM_ALL = UINT32_MAX };
inferd_status experiment_requests(const world *w, uint32_t tenant_idx, uint32_t model_idx,
                                  request_figures *out, inferd_err *err);
/* Measures the dedicated device at half of the throughput it has with an endless queue (one request
 * at a time would be almost no load, and more than the capacity would make latency unbounded). */
typedef struct dedicated {
    double capacity_per_s;
    uint64_t ttft_us, tpot_us; // 95th percentiles; tpot: 0 when all outputs have one token
} dedicated;
inferd_status experiment_dedicated(const experiment *e, figures *f, dedicated *out,
                                   inferd_err *err);
/* Sets the targets of e: given ones, or else five times those of `base`. */
void experiment_targets(experiment *e, const dedicated *base);
void experiment_note_targets(const experiment *e, figures *f);
/* EINVAL: the workload of the mix is impossible with e's number of models. */
inferd_status experiment_check_load(const experiment *e, inferd_err *err);
workload_spec experiment_load_of(const experiment *e, uint64_t seed);
/* Length of the arrivals: e->seconds, or less when a trace ends earlier. */
double experiment_seconds(const experiment *e);
/* The share error over a window of watch_windows_us, in points; NAN: the run is shorter. */
double experiment_error(const run_figures *r, int window);
/* 100 a / b; NAN: b is 0. */
double experiment_percent(double a, double b);

#endif
