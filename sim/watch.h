/* watch.h - who had one simulated device, who wanted it, and how long he waited for his first step.
 *
 * It looks at the device, not at the scheduler's books: a step's time is divided by what the cost
 * model says its rows take, where the scheduler divides by what it has fitted.  So what the policy
 * believes and what happened are two things, and the share error is the difference between what
 * was due and what happened.
 *
 * A principal is a tenant's work for a model.  It is backlogged while it has a request that has not
 * ended and the model's weights are on the device: while they come, nobody can be served.
 *
 *     watch_arrive, watch_leave   a request                  (the world)
 *     watch_step                  the device computes it     (the device, at its launch)
 *     watch_hot                   weights come and go        (the world, after each turn)
 *
 * Times are microseconds of the device's clock.  Memory: one span per step and principal in it.
 * Thread: that of the world. */
#ifndef SIM_WATCH_H
#define SIM_WATCH_H

#include "sim_device.h"
#include "stats.h"

typedef struct watch_spans {
    stats_span *items; // [n] owned
    size_t n, capacity;
} watch_spans;

typedef struct watch {
    uint32_t n_tenants, n_models, n_principals; // principal: tenant * n_models + model
    const sim_model *models;                    // [n_models] borrowed
    stats_principal *terms;                     // [n_principals] owned
    uint32_t *n_requests;                       // [n_principals] that have not ended; owned
    uint64_t *since_us;                         // [n_principals] backlogged; UINT64_MAX: not; owned
    double *part;                               // [n_principals] of a step; owned
    bool *seen;                                 // [n_principals] a request came; owned
    bool *hot;                                  // [n_models] owned
    watch_spans service, backlog;
    uint64_t *begins_us; // [n_steps] when each step began; owned
    size_t n_steps, steps_capacity;
    bool failed; // no memory; what is here is not all
} watch;

/* What a window of a device says. */
typedef struct watch_figures {
    stats_share_error errors[STATS_WINDOWS];
    double jain_weighted; // of service / weight, of all that ever asked for anything
    double jain_due;      // of service / what was due; 1: everybody got the same part of it
    double *used_us;      // [n_principals] owned
    double *due_us;       // [n_principals] owned
} watch_figures;

/* All is besteffort of weight 1 until somebody says otherwise. */
inferd_status watch_create(const sim_model *models, uint32_t n_models, uint32_t n_tenants,
                           watch **out, inferd_err *err);
void watch_destroy(watch *w); // accepts NULL

void watch_arrive(watch *w, uint32_t tenant_idx, uint32_t model_idx, gen_class class,
                  uint64_t now_us);
void watch_leave(watch *w, uint32_t tenant_idx, uint32_t model_idx, uint64_t now_us);
void watch_hot(watch *w, uint32_t model_idx, bool hot, uint64_t now_us);
void watch_step(watch *w, const step *st, uint64_t begin_us, uint64_t end_us);
/* Steps that began at from_us or later, the newest not counted. */
size_t watch_steps_since(const watch *w, uint64_t from_us);

/* [begin_us, end_us); caller: watch_figures_deinit.  EINVAL: guarantees that add up to too much. */
inferd_status watch_sum(watch *w, uint64_t begin_us, uint64_t end_us, double floor_percent,
                        watch_figures *out, inferd_err *err);
void watch_figures_deinit(watch_figures *f); // accepts a zeroed one

#endif
