/* share.c - see share.h. */
#include "share.h"

enum { HUNDREDTHS = 100 };

static int64_t cap_of(const share_bucket *a) {
    uint32_t cap_us = a->cap_us != 0 ? a->cap_us : SHARE_CAP_US;
    if (a->wanted_us != 0 && a->refilled_us <= a->wanted_us + SHARE_WANTED_US)
        cap_us = u32_max(cap_us, SHARE_OWED_US);
    return (int64_t)cap_us * HUNDREDTHS;
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

void share_want(share_bucket *a) {
    a->wanted_us = a->refilled_us;
}

void share_expect(share_bucket *a, uint64_t us) {
    a->expected_us += us;
}

void share_unexpect(share_bucket *a, uint64_t us) {
    a->expected_us -= u64_min(us, a->expected_us);
}

static int64_t left(const share_bucket *a) {
    return a->level - (int64_t)a->expected_us * HUNDREDTHS;
}

void share_charge(share_bucket *a, uint64_t us, bool entitled) {
    a->used_us += us;
    if (a->policy == SHARE_FIXED || (a->policy == SHARE_BURST && entitled))
        a->level -= (int64_t)us * HUNDREDTHS;
}

bool share_is_entitled(const share_bucket *a) {
    return a->policy != SHARE_BESTEFFORT && left(a) > 0;
}

bool share_may_run(const share_bucket *a, uint64_t overdraw_us) {
    return a->policy != SHARE_FIXED || left(a) + (int64_t)overdraw_us * HUNDREDTHS > 0;
}

uint64_t share_ready_us(const share_bucket *a, uint64_t now_us) {
    if (share_may_run(a, 0)) return now_us;
    if (a->percent == 0) return UINT64_MAX;
    return now_us + (uint64_t)-left(a) / a->percent + 1;
}

uint64_t share_owed(const share_bucket *a) {
    return share_is_entitled(a) ? (uint64_t)left(a) : 0;
}

uint32_t share_percent_each(const share_spec *s) {
    return s->percent / u32_max(s->n_devices, 1);
}
