/* world.h - a core with a simulated device, a workload, and the record of each request.
 *
 * The core is that of the daemon: the same object files plan steps, take pages and bring models up.
 * What the daemon's engine does around it (deliver submitted requests, iterate, publish events,
 * sleep) is done here in virtual time:
 *
 *     deliver  every arrival up to the device's clock
 *     iterate  the core
 *     sleep    nothing to do: the clock goes to the next arrival, deadline, or event of the device
 *
 * The same options and workload give the same records, to the byte.
 *
 * Prompts are token ids, and no two begin alike: no request uses or leaves cached blocks.
 *
 * The workload is drawn before the run: one record per offered request.  A request itself exists
 * from its arrival to its end.  Thread: its owner. */
#ifndef SIM_WORLD_H
#define SIM_WORLD_H

#include "../bench/dues.h"
#include "core.h"
#include "scheduler/queue_slots.h"
#include "sim_device.h"
#include "watch.h"
#include "workload.h"

enum {
    WORLD_SETTLE_S_MAX = 3600,     // bring-up of eager models before the first arrival
    WORLD_DRAIN_S_MAX = 600,       // after the last arrival
    WORLD_VERIFY_ITERATIONS = 4096 // iterations between two consistency checks in measuring runs
};

/* The residency's value of an idle model: the daemon's own; by idle time alone (LRU); by its
 * arrival rate over the whole run; by the time of its next arrival.  Only a simulator can know the
 * last two. */
typedef enum world_worth {
    WORLD_WORTH_OWN,
    WORLD_WORTH_LRU,
    WORLD_WORTH_RATE,
    WORLD_WORTH_FUTURE
} world_worth;

typedef struct world_model {
    sim_model sim;
    model_policy policy;
} world_model;

typedef struct world_options {
    const sim_preset *preset;
    const world_model *models; // [n_models] borrowed until world_create returns
    uint32_t n_models;
    const tenant_policy *tenants; // the same, [n_tenants]; NULL: no tenant has a guarantee
    uint32_t n_tenants;           // 0: as one; `watched` needs the true number
    bool watched;                 // with a watch.h
    sched_limits sched;           // depth is the device's own
    residency_limits residency;
    uint32_t verify_iterations; // iterations of a core between two consistency checks; a check also
                                // follows at the end. 0: never
    bool told;      // requests pass their targets to the scheduler; else only the figures use them
    bool obeys;     // refused clients come back once, after their Retry-After (queue_slots.h)
    bool anonymous; // obeys: and do not say that it is a retry
    world_worth worth;
} world_options;

/* Attainment counts every request that was *offered*: a refused, failed or unfinished one is a
 * miss, so that refusing work cannot improve it. */
typedef enum stats_end { STATS_DONE, STATS_REFUSED, STATS_FAILED, STATS_UNFINISHED } stats_end;

typedef struct stats_request {
    uint64_t arrival_us;
    uint64_t first_us, last_us;        // times of the first and the last token; DONE only
    uint32_t n_prompt, n_output;       // n_output: as offered; from its end on, as it had
    uint32_t slo_ttft_us, slo_tpot_us; // 0: no target
    stats_end end;
} stats_request;

typedef struct stats_attained {
    uint64_t n_offered, n_done, n_met;
    uint64_t n_refused, n_failed, n_unfinished;
    /* Of the done ones: missed TTFT, missed TPOT; a request may count in both. */
    uint64_t n_late_first, n_slow;
    uint64_t n_output, n_output_met; // tokens of done requests, and of those that met both
} stats_attained;

/* TTFT <= target, and TPOT = (last - first) / (n_output - 1) <= target; below two tokens no
 * TPOT. */
bool stats_meets(const stats_request *r);
void stats_count(stats_attained *a, const stats_request *r); // one more request
double stats_attainment(const stats_attained *a); // [0, 1]; NAN when no request was offered

/* Nearest rank: the value that a share q in (0, 1] does not exceed.  `sorted` ascending, n > 0. */
uint64_t stats_quantile(const uint64_t *sorted, size_t n, double q);

/* One offered request. */
typedef struct world_record {
    stats_request stats; // times since begin_us
    uint32_t model_idx, tenant_idx, prio;
    uint32_t n_preempted;
    uint32_t n_emitted; // tokens so far
    queue_slot qslot;
    uint32_t n_steps_before; // watched: steps that began between its arrival and its first step
    uint64_t begun_us;       // watched: begin of its first step, as times of stats; 0: none began
    inferd_status status;
    bool is_done;
    uint32_t told_ms; // obeys: Retry-After of its refusal; 0: admitted, or told more than a minute
    bool taken_later; // it was admitted when it came back
    uint64_t refused_us; // of that refusal, since begin_us
    size_t end_idx;      // into world.ends_us: of the end that made room for it (world_needed_s)
} world_record;

typedef struct world_usage {
    uint64_t wall_us, step_us, load_us, idle_us;
    uint64_t n_steps, n_rows, n_loads, n_stages, n_preemptions;
    uint64_t n_evictions[ENGINE_EVICT_CAUSES];
    uint64_t copied_us; // copy engines busy
} world_usage;

typedef struct world {
    world_options options;
    core core;
    sim_device *device; // owned by the core
    uint64_t n_iterations;
    watch *watch;          // owned; NULL: not watched
    size_t *next_arrival;  // [n_models] into the records, for WORLD_WORTH_FUTURE; owned
    world_record *records; // [n_records] in the order of arrival; owned
    size_t n_records, n_arrived, capacity;
    size_t n_unfinished;
    uint64_t begin_us,
        end_us; // of the run: first possible arrival, and the end of the last request
    queue_slots queue_slots;
    size_t n_told_open; // clients that were told a time and have not come back
    uint64_t *ends_us;  // [n_ends] when open slots came free, since begin_us; owned
    size_t n_ends, ends_capacity;
    dues retries;       // clients that come back, times since begin_us; class_idx: the record
    inferd_err failure; // status OK: no failure
    sim_model *sims;    // [n_models] owned
    world_usage before; // sums at begin_us
} world;

/* The daemon's defaults, without a configuration. */
void world_options_init(world_options *o, const sim_preset *preset);
model_policy world_policy(void);

inferd_status world_create(const world_options *options, world **out, inferd_err *err);
void world_destroy(world *w); // accepts NULL
/* Runs until every request of the workload has ended, or WORLD_DRAIN_S_MAX after the last arrival.
 * Once per world. */
inferd_status world_run(world *w, workload *load, inferd_err *err);

void world_sum(const world *w, world_usage *out);
/* The shortest Retry-After that would have been long enough for a client that was told a time:
 * until then slots had come free for it and for all that had been told a time before it and had not
 * come back.  0: there was none within the run. */
uint32_t world_needed_s(const world *w, const world_record *r);

#endif
