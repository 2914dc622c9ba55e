/* watch.h - the use of one simulated device by flow: device time, what was due, and waits for first
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
 * Entitlement is the device time that each flow should have got.  At any moment the backlogged
 * flows divide the device:
 *
 *     1  fixed and burst get their share
 *     2  the rest (surplus) goes to burst and besteffort by weight, the most urgent class first;
 *        classes after the first together have up to `floor_percent` of it reserved
 *
 * The entitled time of a window is the integral of that.  Entitled and measured time are both kept
 * as lines (points joined by straight segments), so the largest error over *all* windows of a
 * length is at one of finitely many points and is found exactly, not by sampling.
 *
 *     watch_arrive, watch_leave   a request                  (the world)
 *     watch_step                  the device computes it     (the device, at its launch)
 *     watch_hot                   weights come and go        (the world, after each iteration)
 *
 * Times are microseconds of the device's clock, and no call goes back in time.  Memory: a point or
 * two per step and flow in it, and per change of what is due.
 * Thread: that of the world. */
#ifndef SIM_WATCH_H
#define SIM_WATCH_H

#include "sim_device.h"

enum { WATCH_FLOWS_MAX = 1024, WATCH_WINDOWS = 3 };
extern const uint64_t watch_windows_us[WATCH_WINDOWS]; // 1, 10 and 60 s

typedef struct watch_terms {
    share_policy policy;
    double percent;  // of the device; besteffort: ignored
    uint32_t weight; // of the surplus; 0 gets none
    gen_class prio;
} watch_terms;

/* Device time up to t. */
typedef struct watch_point {
    double t, y; // us
} watch_point;

typedef struct watch_line {
    watch_point *points; // [n] t ascending; owned; flat outside
    size_t n, capacity;
} watch_line;

typedef struct watch_flow {
    watch_terms terms;
    uint32_t n_requests; // unfinished ones
    bool seen;           // it had a request
    bool backlogged;
    double percent; // it is entitled to, since the newest change
    double due_sum; // up to then, us
    double part;    // of a step
    watch_line used, due;
    double used_us, due_us; // of the newest watch_sum
} watch_flow;

typedef struct watch {
    uint32_t n_tenants, n_models, n_flows; // flow: tenant * n_models + model
    const sim_model *models;               // [n_models] borrowed
    watch_flow *flows;                     // [n_flows] owned
    bool *hot;                             // [n_models] owned
    double floor_percent;                  // of the surplus, for classes after the first; 0: none
    uint64_t turned_us;                    // the newest change of what is due
    uint64_t *begins_us;                   // [n_steps] when each step began; owned
    size_t n_steps, steps_capacity;
    inferd_err failure; // status OK: no failure
} watch;

typedef struct watch_error {
    double points;             // |measured - entitled| in percent points of the device
    double measured, entitled; // percent, in that window
    uint32_t flow_idx;
    uint64_t window_end_us;
    bool is_known; // false: the run is shorter than the window
} watch_error;

/* The figures of a device in one window.  Jain's index is 1 when all are equal, 1/n when one has
 * everything, NAN when all are 0. */
typedef struct watch_figures {
    watch_error errors[WATCH_WINDOWS]; // the largest over all flows and windows of each length
    double jain_weighted; // of service / weight, over all flows that ever had a request
    double jain_due;      // of service / entitled time; 1: every flow got the same part of it
} watch_figures;

/* All flows are besteffort of weight 1 until their terms say otherwise. */
inferd_status watch_create(const sim_model *models, uint32_t n_models, uint32_t n_tenants,
                           watch **out, inferd_err *err);
void watch_destroy(watch *w); // accepts NULL

void watch_arrive(watch *w, uint32_t tenant_idx, uint32_t model_idx, gen_class prio,
                  uint64_t now_us);
void watch_leave(watch *w, uint32_t tenant_idx, uint32_t model_idx, uint64_t now_us);
void watch_hot(watch *w, uint32_t model_idx, bool hot, uint64_t now_us);
void watch_step(watch *w, const step *st, uint64_t begin_us, uint64_t end_us);
/* A flow used `us` of the device in [begin_us, end_us). */
void watch_serve(watch *w, uint32_t flow_idx, uint64_t begin_us, uint64_t end_us, double us);
/* Steps that began at from_us or later, without the newest. */
size_t watch_steps_since(const watch *w, uint64_t from_us);

/* Sets `percent` of each flow for the flows that are backlogged.  EINVAL: their shares add up to
 * more than the device. */
inferd_status watch_entitle(watch *w, inferd_err *err);
/* Of [begin_us, end_us), after the run; sets used_us and due_us of the flows, too.  EINVAL: see
 * watch_entitle. */
inferd_status watch_sum(watch *w, uint64_t begin_us, uint64_t end_us, watch_figures *out,
                        inferd_err *err);

#endif
