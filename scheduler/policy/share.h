/* share.h - how much of a device's time a tenant or a model may have, and how much it had.
 *
 * Each has a token bucket: percent/100 microseconds per microsecond flow in, and what its entitled
 * steps took flows out.  So it may be negative by a step, which is repaid.  Up to SHARE_CAP_US is
 * saved up while there is no work.  While there is work, what the others' steps keep from it
 * is owed, up to SHARE_OWED_US: with a cap of a step, what flows in during a long step of another
 * would be lost.
 *
 *     fixed       runs only while the bucket is positive; all its steps are charged
 *     burst       is entitled to run while the bucket is positive, and takes part in what is left,
 * which is not charged besteffort  takes part in what is left
 *
 * In any window of W microseconds a tenant or model that always has work gets its entitlement,
 * share * W, with an error of about a step either way: with steps of 20 ms 0.2 points in ten
 * seconds.
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
    SHARE_CAP_US = 25000, // a step
    SHARE_OWED_US = 250000,
    SHARE_WANTED_US = 100000, // for so long after share_want there is still work
    SHARE_PERCENT_MAX = 100
};

typedef struct share_bucket {
    share_policy policy;
    uint32_t percent;                // of this device
    uint32_t weight;                 // of what is left; 0: nothing of it
    uint32_t cap_us;                 // of the bucket; 0: SHARE_CAP_US
    int64_t level;                   // hundredths of a microsecond
    uint64_t expected_us;            // of steps under way: as good as spent
    uint64_t refilled_us, wanted_us; // wanted_us: when there was work last
    uint64_t used_us;                // in all
} share_bucket;

/* A new bucket, full. */
void share_init(share_bucket *a, share_policy policy, uint32_t percent, uint32_t weight,
                uint64_t now_us);
/* A new policy from now on; time received before still counts. */
void share_set(share_bucket *a, share_policy policy, uint32_t percent, uint32_t weight,
               uint64_t now_us);
void share_refill(share_bucket *a, uint64_t now_us);
/* There is work that waits or computes, at the time of the last refill. */
void share_want(share_bucket *a);
/* A step under way will take so long, by what was predicted; before share_charge it is taken back.
 */
void share_expect(share_bucket *a, uint64_t us);
void share_unexpect(share_bucket *a, uint64_t us);
/* The time of a step that it was entitled to, or of the surplus. */
void share_charge(share_bucket *a, uint64_t us, bool entitled);

/* After share_refill. */
bool share_is_entitled(const share_bucket *a); // its guarantee is not used up
/* It may run.  `overdraw_us`: debt that is allowed for now (one step of an urgent request). */
bool share_may_run(const share_bucket *a, uint64_t overdraw_us);
/* When share_may_run becomes true; now_us or before: it is, UINT64_MAX: never by itself. */
uint64_t share_ready_us(const share_bucket *a, uint64_t now_us);
/* What it has and is owed, in hundredths of a microsecond; 0: it is not entitled. */
uint64_t share_owed(const share_bucket *a);
/* Percent of each device for a share over several: 240 on 3 are 80. */
uint32_t share_percent_each(const share_spec *s);

#endif
