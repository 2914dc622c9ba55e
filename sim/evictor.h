/* evictor.h - how much the choice of the evicted model can matter.
 *
 * Models are active for spans of time and idle between them.  An active model needs its weights and
 * some memory for keys and values; an idle one may keep its weights until the room is needed.  When
 * an activation lacks room, a policy chooses idle models to evict, one after another; the next
 * activation of an evicted model pays for its reload.  There is no earlier eviction: here, giving
 * pages away takes no time.
 *
 *     begin    too little room even without all idle models: refused, by every policy alike
 *              else: evict until there is room, load if the weights are not there
 *     end      keys and values are gone, the weights stay
 *
 * Virtual time does not advance during a load: figures are reload time, not latency.
 *
 * A policy is a callback, so that the daemon's own formula (worth.h) can be measured here.  A
 * policy that spares is asked for an order; a model that turns out not to be needed stays, the last
 * of the order first.
 *
 * The clairvoyant policies know when each model is next served.  Evicting the model needed last is
 * optimal if all sizes and costs are equal; with different sizes the optimum is a hard packing
 * problem, so the best of four heuristics with that knowledge stands for it: a strong bound, not a
 * proof.  Between them and the others is a policy that knows every model's true distribution of
 * pauses, but not the next one: about the best possible without seeing the future.
 *
 * Thread: any. */
#ifndef SIM_EVICTOR_H
#define SIM_EVICTOR_H

#include "../bench/rng.h"
#include "inferd/base.h"
#include "inferd/status.h"
#include "scheduler/worth.h"

enum { EVICT_MODELS_MAX = 4096, EVICT_SPANS_MAX = 10 * 1000 * 1000 };
#define EVICT_NEVER UINT64_MAX

typedef struct evict_model {
    uint64_t bytes;     // of weights
    uint64_t run_bytes; // more, while active
    uint64_t reload_us;
    uint32_t weight;   // weight of its waiting; >= 1
    double off_mean_s; // true mean of its pauses; 0: unknown
} evict_model;

typedef struct evict_span {
    uint32_t model_idx;
    uint64_t begin_us, end_us; // active in [begin, end)
} evict_span;

typedef struct evict_run {
    const evict_model *models; // [n_models]
    uint32_t n_models;
    const evict_span *spans; // [n_spans] by begin; those of one model do not overlap
    size_t n_spans;
    uint64_t memory_bytes;
    uint64_t page_bytes; // pages as the product counts them; 0: single bytes
} evict_run;

/* An idle model with its weights in memory. */
typedef struct evict_candidate {
    uint32_t model_idx, weight;
    uint64_t bytes, reload_us;
    uint64_t idle_us; // since its last activity
    uint32_t n_pages;
    worth_pauses pauses; // its idle times so far
    double hazard_per_s; // rate at which it becomes active now; 0: unknown
    uint64_t
        next_us; // until it is next served; EVICT_NEVER: not again, or this policy may not know
} evict_candidate;

/* An index into c[n]; n > 0, ascending by model_idx. */
typedef uint32_t evict_choose(void *ctx, const evict_candidate *c, uint32_t n);

typedef struct evict_policy {
    const char *name;
    evict_choose *choose;
    void *ctx;
    bool sees_future;
    bool spares;
} evict_policy;

/* Least value first; of equals the lowest model. */
evict_choose evict_lru;           // longest idle
evict_choose evict_product;       // worth_of, as residency_evict.c; spares there
evict_choose evict_knowing;       // weight x reload_us x hazard / bytes
evict_choose evict_random;        // ctx: rng
evict_choose evict_furthest;      // the model needed last; needs sees_future
evict_choose evict_furthest_size; // largest bytes x next_us; needs sees_future

typedef struct evict_result {
    uint64_t n_served, n_refused; // activations
    uint64_t n_loads, n_evicted;
    uint64_t load_us;  // of all loads
    uint64_t first_us; // the part of it for the first load of each model, which no policy can save
    uint64_t weighted_us; // sum of load time * weight of its model
} evict_result;

double evict_seconds(const evict_result *r); // load time per served activation; NAN: none served

/* EINVAL: a span or model is wrong, or a choice is out of range; the text names it. */
inferd_status evict_replay(const evict_run *run, const evict_policy *policy, evict_result *out,
                           inferd_err *err);
/* The best of evict_furthest and evict_furthest_size, with and without sparing, by load_us. */
inferd_status evict_clairvoyant(const evict_run *run, evict_result *out, inferd_err *err);

/* ---- activations from a seed ---- */

/* ON times are exponential.  Each model has its own mean OFF time, log-normal around the median,
 * and its gaps are hyper-exponential around that mean: seven of ten short, three long.  Sizes are
 * log-uniform. */
typedef struct evict_spec {
    uint32_t n_models;
    double seconds;
    double on_mean_s;
    double off_median_s, off_sigma; // of the models' means
    double size_min_gb, size_max_gb;
    double memory_gb, bandwidth_gb_s; // of reloads
    double load_fix_s;                // constant part of every load
    double run_share, run_gb;         // run_bytes = run_share x weights + run_gb
    uint32_t weight_max;              // weights are 1 ... weight_max, with equal probability
} evict_spec;

/* 24 models of 2 to 64 GB on 141 GB, 55 GB/s, two hours; ON 15 s, OFF median 300 s. */
void evict_spec_init(evict_spec *spec);

typedef struct evict_scenario {
    evict_model *models; // owned
    evict_span *spans;   // owned
    evict_run run;       // borrows both
} evict_scenario;

inferd_status evict_scenario_create(evict_scenario *out, const evict_spec *spec, uint64_t seed,
                                    inferd_err *err);
void evict_scenario_destroy(evict_scenario *s); // accepts a zeroed one

#endif
