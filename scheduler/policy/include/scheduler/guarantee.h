/* guarantee.h - pages of a device that others keep in any case: one sum for admission of requests,
 * bring-up of models, and plans of an operator.
 *
 *     pinned weights + max(what guarantees of models keep beside them, guarantees of tenants)
 *
 * Guarantees of models and of tenants are kept free in the same pages, so the larger counts.
 *
 * Pure.  Thread: any. */
#ifndef INFERD_GUARANTEE_H
#define INFERD_GUARANTEE_H

#include "inferd/base.h"

typedef struct guarantee_sum {
    uint64_t pinned, unfilled; // pages; unfilled: of guarantees of models
} guarantee_sum;

/* One other model: its pinned pages, its guarantee, and the pages that already count for it. */
static inline void guarantee_add(guarantee_sum *g, uint32_t pinned, uint32_t min, uint32_t filled) {
    g->pinned += pinned;
    g->unfilled += u32_less(min, filled);
}

/* tenants: pages of the guarantees of other tenants. */
static inline uint64_t guarantee_free(const guarantee_sum *g, uint64_t tenants) {
    return u64_max(g->unfilled, tenants);
}

static inline uint64_t guarantee_kept(const guarantee_sum *g, uint64_t tenants) {
    return g->pinned + guarantee_free(g, tenants);
}

#endif
