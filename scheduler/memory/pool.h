/* pool.h - the pages of one device: the owner of each, and when it may be reused.
 *
 * This module handles page numbers only; the memory behind them belongs to the backend.  Every page
 * is in exactly one state:
 *
 *     ABSENT --pool_set_ready--> FREE --pool_take--> WEIGHT, KV, WARM or SWAPPED
 *                                  ^--pool_finish-- QUARANTINE <--pool_give--'
 *                                                  WEIGHT <--pool_convert--> WARM
 *
 * A device may still be making its pages while it serves; those not made yet are ABSENT.
 *
 * There are two *budgets*.  Pages for computing (WEIGHT, KV, and QUARANTINE after them) count for
 * the device budget, at most n_device pages; pages kept for later (WARM weights, SWAPPED keys and
 * values) count for the host budget, at most n_host.  Where both are one memory, as on the CPU, all
 * of it is pages of the pool, and a page changes its budget without being touched.  Elsewhere host
 * memory is apart: for weights, pool_host_take and pool_host_give only count it; SWAPPED pages are
 * those of a second pool; its broken extents count in this pool's host budget (pool_set_host).
 *
 * Pages are grouped in *extents*, the pieces of physical memory that a device can map (1 page on
 * the CPU, up to 64 on a GPU).  Weights take whole extents; keys and values take single pages, from
 * the fullest broken extent, so that whole ones stay whole.
 *
 * Steps of the device are numbered (epochs).  A page is given back with the epoch of the last step
 * that may touch it (its fence); until that step has finished the page is in quarantine, so no step
 * ever writes a page that another one still reads.  Giving and taking a page is O(1) for extents of
 * a fixed size.
 *
 * The first use of a page may cost time on the device, unless it is *warm*: the device prepared
 * pages [0, n_warm), and pages that were used before are warm, too.  New pages are taken in
 * ascending order, pages given back first, so a cold one is taken only when no other is free;
 * pool_next_is_cold says so beforehand.
 *
 * Each owner (a model) has counts of its pages, a guarantee `min` and a ceiling `max`.  A page is
 * lent to an owner only while free pages still cover the unfilled guarantees of the others.
 *
 * Always true (pool_verify checks it): the states add up to n_pages, each page is in the list of
 * its state, each owner's counts equal the pages that name it.
 * Thread: engine. */
#ifndef INFERD_POOL_H
#define INFERD_POOL_H

#include "inferd/base.h"
#include "inferd/status.h"

typedef enum page_state {
    PAGE_FREE,
    PAGE_WEIGHT,
    PAGE_KV,
    PAGE_WARM,
    PAGE_SWAPPED,
    PAGE_QUARANTINE,
    PAGE_ABSENT,
    PAGE_STATES
} page_state;

#define PAGE_NONE UINT32_MAX

enum {
    POOL_DEPTH_MAX = 3, // steps launched and not finished
    POOL_EXTENT_MAX = 64
};

typedef struct pool_page {
    uint8_t state;
    uint32_t owner; // WEIGHT, KV, WARM, SWAPPED: index of the owner
    uint32_t next;  // FREE, QUARANTINE: next page of the same list, or PAGE_NONE
    uint64_t fence; // QUARANTINE: free when this epoch has finished
} pool_page;

typedef struct pool_extent {
    uint32_t n_free, free_head; // its free pages
    uint32_t prev, next;        // list of extents with the same number of free pages, if any
} pool_extent;

typedef struct pool_owner {
    uint32_t min, max;          // pages; 0 and UINT32_MAX by default
    uint32_t held[PAGE_STATES]; // pages that name this owner; min and max limit WEIGHT and KV
} pool_owner;

/* The pages that min and max limit. */
static inline uint32_t pool_held(const pool_owner *o) {
    return o->held[PAGE_WEIGHT] + o->held[PAGE_KV];
}

static inline uint32_t pool_unfilled(const pool_owner *o) {
    uint32_t held = pool_held(o);
    return o->min > held ? o->min - held : 0;
}

typedef struct pool {
    uint32_t n_pages, n_owners;
    pool_page *pages;   // [n_pages] owned
    pool_owner *owners; // [n_owners] owned
    uint32_t n_in[PAGE_STATES];
    uint32_t n_ready;      // pages [0, n_ready) are not ABSENT
    uint32_t n_warm;       // UINT32_MAX: all
    uint32_t n_used;       // pages [0, n_used) include all that were ever taken
    uint32_t extent_pages; // >= 1
    bool runs;             // weights need neighbouring pages instead of whole extents
    uint32_t n_extents;
    pool_extent *extents;                         // [n_extents] owned
    uint32_t bucket[POOL_EXTENT_MAX + 1];         // first extent with that many free pages
    uint32_t n_whole;                             // extents with all pages free
    uint32_t quarantine_head[POOL_DEPTH_MAX + 1]; // by fence modulo the array length
    uint64_t launched, finished;                  // epochs; launched - finished are under way
    uint32_t low, high;                           // watermarks of free pages of the device
    uint32_t n_device, n_host;                    // the budgets; n_pages and 0 at first
    uint32_t n_host_apart;                        // counted by pool_host_take
    uint32_t n_swapped_apart;                     // in the pool that counts here, see pool_set_host
    struct pool *budget; // borrowed: the pool that this one counts in; NULL: itself
    void (*on_empty)(void *ctx, uint32_t first_page); // of this pool's extents; NULL: no callback
    void *on_empty_ctx;
    uint32_t unfilled;   // sum over owners of max(0, min - held)
    uint32_t n_min;      // sum over owners of min
    uint32_t n_reserved; // of the free pages: kept for guarantees of tenants
} pool;

/* All pages that are ready are free; low and high are n_pages / 64 and n_pages / 32.  extent_pages
 * 0: weights are runs of pages. */
inferd_status pool_init_extents(pool *p, uint32_t n_pages, uint32_t n_ready, uint32_t extent_pages,
                                uint32_t n_owners, inferd_err *err);
void pool_deinit(pool *p); // accepts a zeroed pool

/* Pages [0, n_ready) are there now, and there will be n_pages: never fewer than are ready, never
 * more than at first. */
void pool_set_ready(pool *p, uint32_t n_ready, uint32_t n_pages);

/* Set both budgets, where they are one memory at most n_pages together.  Taken pages stay taken. */
void pool_set_budgets(pool *p, uint32_t n_device, uint32_t n_host);
/* Free room in the device budget, without regard to guarantees; and in the host budget, which for a
 * pool of host memory apart is that of the pool it counts in. */
uint32_t pool_n_device_free(const pool *p);
uint32_t pool_n_host_free(const pool *p);
/* Free pages in whole extents (or, where weights need a run, in the longest one). */
uint32_t pool_n_whole_pages(const pool *p);
/* Host memory that is no page of the pool.  False: the budget is full. */
bool pool_host_take(pool *p, uint32_t n);
void pool_host_give(pool *p, uint32_t n);
/* The pages of `host`, none of them taken yet, are host memory apart.  An extent of it with any
 * page taken counts whole in the host budget of `p`, because host memory is allocated and freed in
 * such pieces; `on_empty` (or NULL) gets the first page of each extent that becomes empty.  All of
 * `host` is in extents; there is one such pool for each `p`, and `p` outlives it. */
void pool_set_host(pool *host, pool *p, void (*on_empty)(void *ctx, uint32_t first_page),
                   void *ctx);

/* Guarantee and ceiling of an owner.  EINVAL, and no change, if all guarantees exceed the pool. */
inferd_status pool_set_limits(pool *p, uint32_t owner, uint32_t min, uint32_t max, inferd_err *err);

uint32_t pool_n_takeable(const pool *p, uint32_t owner);
/* One page, or PAGE_NONE when none can be taken now. */
uint32_t pool_take(pool *p, uint32_t owner, page_state state);
bool pool_next_is_cold(const pool *p); // the page that pool_take would take, if any, is cold
/* n pages for weights (WEIGHT or WARM): whole extents (a multiple of extent_pages), or a run.
 * False: too few, and the pool is unchanged. */
bool pool_take_weights(pool *p, uint32_t owner, page_state state, uint32_t n, uint32_t *out);
/* Pages of one owner from WARM to WEIGHT or back.  False: the other budget, or the owner's ceiling,
 * has no room for all of them; nothing changed. */
bool pool_convert(pool *p, const uint32_t *pages, uint32_t n, page_state to);
/* Back to the pool; usable again when the epoch `fence` has finished (0: at once). */
void pool_give(pool *p, uint32_t page, uint64_t fence);

/* Pages of weights get another owner, in the same budget; its ceiling is not checked. */
void pool_hand_over(pool *p, const uint32_t *pages, uint32_t n, uint32_t owner);

/* Move both at once, for when there is room only for both together: `out` (of one owner) from
 * WEIGHT to WARM, `in` (of another) from WARM to WEIGHT. */
bool pool_exchange(pool *p, const uint32_t *out, uint32_t n_out, const uint32_t *in, uint32_t n_in);

/* A step begins: returns its epoch.  Steps finish in the order of their epochs. */
uint64_t pool_launch(pool *p);
void pool_finish(pool *p, uint64_t epoch);

/* Below the low watermark of free pages: how many are missing to the high one; else 0. */
uint32_t pool_n_short(const pool *p);

inferd_status pool_verify(const pool *p, inferd_err *err);

#endif
