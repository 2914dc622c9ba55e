/* share.c - see share.h. */
#include "share.h"

enum { HUNDREDTHS = 100 };

static int64_t cap_of(const share_bucket *a) {
    return (int64_t)(a->cap_us != 0 ? a->cap_us : share_cap_us(a->percent)) * HUNDREDTHS;
}

static void bound(share_bucket *a) {
    if (a->level > cap_of(a)) a->level = cap_of(a);
}

void share_init(share_bucket *a, share_policy policy, uint32_t percent, uint32_t weight,
                uint64_t now_us) {
    *a = (share_bucket){.level = (int64_t)SHARE_CAP_US * HUNDREDTHS, .refilled_us = now_us};
    share_set(a, policy, percent, weight, now_us);
}

void share_set(share_bucket *a, share_policy policy, uint32_t percent, uint32_t weight,
               uint64_t now_us) {
    share_refill(a, now_us);
    a->policy = policy;
    a->percent = policy == SHARE_BESTEFFORT ? 0 : u32_min(percent, SHARE_PERCENT_MAX);
    a->weight = weight;
    bound(a);
}

void share_refill(share_bucket *a, uint64_t now_us) {
    if (now_us <= a->refilled_us) return;
    uint64_t us = now_us - a->refilled_us;
    a->refilled_us = now_us;
    /* Longer than it takes to fill an empty bucket at one percent: no overflow. */
    if (us > (uint64_t)1 << 40) us = (uint64_t)1 << 40;
    a->level += (int64_t)(us * a->percent);
    bound(a);
}

void share_charge(share_bucket *a, uint64_t us, bool entitled) {
    a->used_us += us;
    if (a->policy == SHARE_FIXED || (a->policy == SHARE_BURST && entitled))
        a->level -= (int64_t)us * HUNDREDTHS;
}

bool share_is_entitled(const share_bucket *a) {
    return a->policy != SHARE_BESTEFFORT && a->level > 0;
}

bool share_may_run(const share_bucket *a, uint64_t overdraw_us) {
    return a->policy != SHARE_FIXED || a->level + (int64_t)overdraw_us * HUNDREDTHS > 0;
}

uint64_t share_ready_us(const share_bucket *a, uint64_t now_us) {
    if (share_may_run(a, 0)) return now_us;
    if (a->percent == 0) return UINT64_MAX;
    return now_us + (uint64_t)-a->level / a->percent + 1;
}

uint32_t share_cap_us(uint32_t percent) {
    return u32_max(SHARE_CAP_LEAST_US, u32_min(percent * SHARE_CAP_PERCENT_US, SHARE_CAP_US));
}

uint64_t share_full_us(const share_bucket *a) {
    return share_is_entitled(a) ? (uint64_t)(cap_of(a) - a->level) / u32_max(a->percent, 1)
                                : UINT64_MAX;
}

uint32_t share_percent_each(const share_spec *s) {
    return s->percent / u32_max(s->n_devices, 1);
}
