/* order.h - the place of a sequence in the order of a plan: one key, compared by one function.
 * The rules are listed in order.c.
 *
 * Pure.  Thread: engine. */
#ifndef INFERD_ORDER_H
#define INFERD_ORDER_H

#include "inferd/base.h"

typedef enum sched_tier { TIER_URGENT, TIER_ENTITLED, TIER_SURPLUS, TIER_NONE } sched_tier;

/* Of a sequence that could compute in this plan.  The fields are compared in this order, by the
 * rules of order.c with the same numbers; the smaller goes first, but true in floor,
 * and the larger in owed. */
typedef struct order_key {
    sched_tier tier;      // 1
    bool floor;           // 2: it is owed a step
    uint32_t prio;        // 3: gen_class
    int32_t rank;         // 4
    bool late;            // 5
    uint64_t deadline_us; // 6: UINT64_MAX: not urgent
    uint64_t owed;        // 7: share_owed of its bucket; the most goes first
    uint64_t virtual_us;  // 8
    uint64_t arrival_no;  // 9
} order_key;

static inline int order_by(uint64_t a, uint64_t b) {
    return (a > b) - (a < b);
}

/* Does `a` go before `b`?  A total order: arrival numbers differ. */
static inline bool order_before(const order_key *a, const order_key *b) {
    int by = order_by(a->tier, b->tier);
    if (by == 0) by = order_by(b->floor, a->floor);
    if (by == 0) by = order_by(a->prio, b->prio);
    if (by == 0) by = (a->rank > b->rank) - (a->rank < b->rank);
    if (by == 0) by = order_by(a->late, b->late);
    if (by == 0) by = order_by(a->deadline_us, b->deadline_us);
    if (by == 0) by = order_by(b->owed, a->owed);
    if (by == 0) by = order_by(a->virtual_us, b->virtual_us);
    if (by == 0) by = order_by(a->arrival_no, b->arrival_no);
    return by < 0;
}

#endif
