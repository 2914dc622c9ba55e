/* share.h - how much of a device's time a tenant or a model may have, and how much it had.
 *
 * Each has a token bucket: percent/100 microseconds per microsecond flow in, up to a cap (25 to 50
 * ms), and what its entitled steps took flows out.  So it may be negative by a step, which is
 * repaid.
 *
 *     fixed       runs only while the bucket is positive; all its steps are charged
 *     burst       is entitled to run while the bucket is positive, and takes part in what is left,
 * which is not charged besteffort  takes part in what is left
 *
 * In any window of W microseconds a tenant or model that always has work gets its entitlement,
 * share * W, with an error of at most the cap plus one step either way: with steps of 20 ms at most
 * 0.7 points in ten seconds.
 *
 * What is left is divided by virtual time: microseconds received of it divided by weight, kept for
 * each flow (a pair of tenant and model that has work).  A flow that comes back from having no work
 * starts at the smallest of the others, so idle time is no credit (VTC; Sheng et al., OSDI 2024).
 *
 * Pure; the time is handed in.  Thread: engine. */
#ifndef INFERD_SHARE_H
#define INFERD_SHARE_H

#include "inferd/base.h"
#include "scheduler/policy.h"

enum {
    SHARE_CAP_US = 50000,
    SHARE_CAP_LEAST_US = 25000,  // a step, so that one can be saved up
    SHARE_CAP_PERCENT_US = 1000, // for each percent: what flows in while others compute for 0.1 s
    SHARE_PERCENT_MAX = 100
};

typedef struct share_bucket {
    share_policy policy;
    uint32_t percent; // of this device
    uint32_t weight;  // of what is left; 0: nothing of it
    uint32_t cap_us;  // of the bucket; 0: share_cap_us
    int64_t level;    // hundredths of a microsecond
    uint64_t refilled_us;
    uint64_t used_us; // in all
} share_bucket;

/* A new bucket, full. */
void share_init(share_bucket *a, share_policy policy, uint32_t percent, uint32_t weight,
                uint64_t now_us);
/* A new policy from now on; time received before still counts. */
void share_set(share_bucket *a, share_policy policy, uint32_t percent, uint32_t weight,
               uint64_t now_us);
void share_refill(share_bucket *a, uint64_t now_us);
/* The time of a step that it was entitled to, or of the surplus. */
void share_charge(share_bucket *a, uint64_t us, bool entitled);

/* After share_refill. */
bool share_is_entitled(const share_bucket *a); // its guarantee is not used up
/* It may run.  `overdraw_us`: debt that is allowed for now (one step of an urgent request). */
bool share_may_run(const share_bucket *a, uint64_t overdraw_us);
/* When share_may_run becomes true; now_us or before: it is, UINT64_MAX: never by itself. */
uint64_t share_ready_us(const share_bucket *a, uint64_t now_us);
uint32_t share_cap_us(uint32_t percent);
/* Time until its bucket is full and more is lost; UINT64_MAX: it is not entitled. */
uint64_t share_full_us(const share_bucket *a);
/* Percent of each device for a share over several: 240 on 3 are 80. */
uint32_t share_percent_each(const share_spec *s);

#endif
