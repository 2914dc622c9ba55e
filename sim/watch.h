/* watch.h - the use of one simulated device by flow: device time, backlog, and waits for first
 * steps.
 *
 * It observes the device, not the scheduler's own counts: a step's time is divided by the cost
 * model of its rows, where the scheduler divides by its fitted rates.  So the policy's estimate and
 * the outcome are independent, and the share error is the difference between the entitled time and
 * the outcome.
 *
 * A flow is one tenant's work on one model.  It is backlogged while it has an unfinished request
 * and the model's weights are on the device: during bring-up no request can be served.
 *
 *     watch_arrive, watch_leave   a request                  (the world)
 *     watch_step                  the device computes it     (the device, at its launch)
 *     watch_hot                   weights come and go        (the world, after each iteration)
 *
 * Times are microseconds of the device's clock.  Memory: one span per step and flow in it.
 * Thread: that of the world. */
#ifndef SIM_WATCH_H
#define SIM_WATCH_H

#include "sim_device.h"
#include "stats.h"

typedef struct watch_spans {
    stats_span *items; // [n] owned
    size_t n, capacity;
} watch_spans;

typedef struct watch_flow {
    uint32_t n_requests; // unfinished ones
    uint64_t since_us;   // begin of the backlog; UINT64_MAX: none
    double part;         // of a step
    bool seen;           // it had a request
} watch_flow;

typedef struct watch {
    uint32_t n_tenants, n_models, n_flows; // flow: tenant * n_models + model
    const sim_model *models;               // [n_models] borrowed
    stats_flow *terms;                     // [n_flows] owned
    watch_flow *flows;                     // [n_flows] owned
    double *used_us, *due_us;              // [n_flows] of the newest watch_sum; one array, owned
    bool *hot;                             // [n_models] owned
    watch_spans service, backlog;
    uint64_t *begins_us; // [n_steps] when each step began; owned
    size_t n_steps, steps_capacity;
    bool failed; // no memory: the spans are incomplete
} watch;

/* The figures of a device in one window. */
typedef struct watch_figures {
    stats_share_error errors[STATS_WINDOWS];
    double jain_weighted; // of service / weight, over all flows that ever had a request
    double jain_due;      // of service / entitled time; 1: every flow got the same part of it
} watch_figures;

/* All flows are besteffort of weight 1 until `terms` says otherwise. */
inferd_status watch_create(const sim_model *models, uint32_t n_models, uint32_t n_tenants,
                           watch **out, inferd_err *err);
void watch_destroy(watch *w); // accepts NULL

void watch_arrive(watch *w, uint32_t tenant_idx, uint32_t model_idx, gen_class prio,
                  uint64_t now_us);
void watch_leave(watch *w, uint32_t tenant_idx, uint32_t model_idx, uint64_t now_us);
void watch_hot(watch *w, uint32_t model_idx, bool hot, uint64_t now_us);
void watch_step(watch *w, const step *st, uint64_t begin_us, uint64_t end_us);
/* Steps that began at from_us or later, without the newest. */
size_t watch_steps_since(const watch *w, uint64_t from_us);

/* Of [begin_us, end_us); sets used_us and due_us, too.  EINVAL: guarantees add up to too much. */
inferd_status watch_sum(watch *w, uint64_t begin_us, uint64_t end_us, double floor_percent,
                        watch_figures *out, inferd_err *err);

#endif
