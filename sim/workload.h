/* workload.h - requests that a simulated daemon is offered, drawn from a seed.
 *
 * An open loop: arrival times do not depend on how earlier requests fared.  A workload is a few
 * *streams* (one per model, tenant or trace), each with its own generator and its own next arrival;
 * a heap merges them, so that a run of a week needs the memory of a run of a minute.
 *
 *     MIX_Z   M models of popularity Zipf(a): model i has weight 1 / (i + 1)^a.  Poisson arrivals
 * with `rate_per_s` in all, each given to a model by weight, so every model sees a thinned process
 *     MIX_M   a market: each model Poisson with `rate_per_s` of its own
 *     MIX_B   each model is ON or OFF and Poisson with `rate_per_s` while ON.  ON and OFF last
 *             exponential times; models of a group tend to be ON together
 *     MIX_G   each model has Gamma gaps with its own `rate_per_s` and coefficient of variation `cv`
 *     ADV     tenant 0 (the victim) sends one request a second to model 0, evenly, class HIGH.
 *             The attackers, by `attacks`: tenant 1 floods with prompts of 8k tokens, tenant 2
 *             sends many requests for one token, tenant 3 asks for the longest outputs (all to
 *             model 0, Poisson), tenant 4 wakes the last 20 models in a second, every 30 s
 *     PRE     model 0 (class BATCH, tenant 0) has a backlog at the start and Poisson arrivals with
 *             `rate_per_s`, enough to keep the device busy; model 1 (class HIGH, tenant 1) wakes
 *             every 30 s, shifted by up to a second so that it meets every phase of a step
 *     TRACE   a trace, once: all of it for model 0 if there is one model, else by Zipf(a)
 *
 * `rate_factor` multiplies every rate, those of traces, too; only the victim of ADV, the storms and
 * the urgent model of PRE keep their pace.  All processes are stationary from the start: ON or OFF
 * and the rest of the first gap are drawn as if the process had been running for ever.
 *
 * Correlation in MIX_B.  In an ON/OFF process with exponential times the state is drawn anew,
 * ON with p = on / (on + off), at the points of a Poisson process of rate 1/on + 1/off.  Members of
 * a group share a part c of these points and the states drawn there; the other points are their
 * own.  Then the process of each single member is unchanged, and the states of two members have
 * correlation c / (2 - c).  With 15 s and 36 s a model is active 29 % of the time and idle 71 times
 * an hour; a group of correlation 1 changes 141 times an hour.
 *
 * Lengths.  An arrival of a trace has its own.  Others have log-normal ones, with the mean
 * and the 99th percentile of the Azure 2023 traces, which matter most for load and memory; their
 * medians differ, as the traces are not log-normal:
 *
 *                      mu       sigma    mean   p99    median   (of the trace)
 *     conv  prompt     6.84933  0.63602  1155   4142    943     1020
 *     conv  output     5.22526  0.50437   211    601    186      129
 *     code  prompt     7.41766  0.64325  2048   7436   1665     1469
 *     code  output     2.45437  1.32184    28    252     12       13
 *
 * Here prompt and output are drawn independently; in the traces their logarithms have a correlation
 * of 0.09 (conv) and 0.00 (code).
 *
 * Everything but the time of a request is drawn from a generator of (seed, stream, index), so it
 * does not change when times do.
 *
 * Thread: its owner. */
#ifndef SIM_WORKLOAD_H
#define SIM_WORKLOAD_H

#include "../bench/trace.h"
#include "scheduler/policy.h"

enum { WORKLOAD_MODELS_MAX = 4096, WORKLOAD_STORM_MODELS = 20, WORKLOAD_FLOOD_PROMPT = 8192 };
#define WORKLOAD_DURATION_US_MAX ((uint64_t)100 * 86400 * 1000000)
/* Limits of a rate per second, and of the factor on all rates; at more, several arrivals would
 * share one microsecond. */
#define WORKLOAD_RATE_MIN 1e-6
#define WORKLOAD_RATE_MAX 1e6

typedef enum workload_kind {
    WORKLOAD_MIX_Z,
    WORKLOAD_MIX_M,
    WORKLOAD_MIX_B,
    WORKLOAD_MIX_G,
    WORKLOAD_ADV,
    WORKLOAD_PRE,
    WORKLOAD_TRACE,
    WORKLOAD_KINDS
} workload_kind;

typedef enum workload_lengths { LENGTHS_CONV, LENGTHS_CODE } workload_lengths;

typedef enum workload_attack {
    ATTACK_FLOOD = 1,
    ATTACK_SHORT = 2,
    ATTACK_LONG = 4,
    ATTACK_STORM = 8,
    ATTACK_ALL = 15
} workload_attack;

/* Models and tenants in ADV and PRE. */
enum {
    ADV_TENANT_VICTIM,
    ADV_TENANT_FLOOD,
    ADV_TENANT_SHORT,
    ADV_TENANT_LONG,
    ADV_TENANT_STORM,
    ADV_TENANTS,
    PRE_MODEL_BATCH = 0,
    PRE_MODEL_URGENT,
    PRE_MODELS
};

typedef struct workload_spec {
    workload_kind kind;
    uint64_t seed;
    uint64_t duration_us; // arrivals are in [0, duration)
    uint32_t n_models;
    uint32_t n_tenants; // requests are spread evenly over them, except in ADV and PRE
    double rate_per_s;  // see the table above
    double rate_factor;
    double zipf; // MIX_Z, TRACE: the exponent a
    double cv;   // MIX_G

    uint32_t group_size;  // MIX_B: neighbouring models per group; 1: each alone
    double correlation;   // MIX_B: between the states of two models of a group, [0, 1]
    uint32_t attacks;     // ADV: a set of workload_attack
    uint32_t pre_backlog; // PRE: requests at time 0

    workload_lengths lengths;
    uint32_t prompt_max, output_max; // cap the drawn lengths
    const trace *rows;               // TRACE; borrowed

    uint32_t slo_ttft_us, slo_tpot_us; // hints put on every request; 0: none
} workload_spec;

typedef struct workload_request {
    uint64_t arrival_us;
    uint64_t idx; // 0, 1, ... in the order of arrival
    uint32_t model_idx, tenant_idx;
    uint32_t n_prompt, n_output; // >= 1
    uint32_t slo_ttft_us, slo_tpot_us;
    uint32_t prio; // gen_class
} workload_request;

typedef struct workload workload;

/* Defaults of a kind: ten minutes, log-normal conv lengths, one tenant, class NORMAL. */
void workload_spec_init(workload_spec *spec, workload_kind kind);

const char *workload_kind_name(workload_kind kind); // "mix-z", "mix-m", ...

/* Copies the spec; the trace stays borrowed.  EINVAL: n_models is wrong for the kind, or there is
 * no trace. */
inferd_status workload_create(const workload_spec *spec, workload **out, inferd_err *err);
void workload_destroy(workload *w); // accepts NULL

/* Requests in the order of their arrival; false: no more. */
bool workload_next(workload *w, workload_request *out);

#endif
