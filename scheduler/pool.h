/* pool.h - the pages of one device: whose each is, and when it may be used again.
 *
 * Page numbers are the only currency here; the memory behind them belongs to the backend.  Every
 * page is in exactly one state:
 *
 *     ABSENT --pool_set_ready--> FREE --pool_take--> WEIGHT, KV, WARM or PARKED
 *                                  ^--pool_finish-- QUARANTINE <--pool_give--'
 *                                                  WEIGHT <--pool_turn--> WARM
 *
 * A device may still be making its pages while it serves; those not made yet are ABSENT.
 *
 * There are two *ledgers*.  What computes (WEIGHT, KV, and QUARANTINE behind it) counts for the
 * device and is at most n_device pages; what is kept for later (WARM weights, PARKED keys and
 * values) counts for the host and is at most n_host.  Where both are one memory, as on the CPU, all
 * of it are pages of the pool, and a page changes its ledger without being touched.  Elsewhere host
 * memory is apart: pool_host_take and pool_host_give only count it for weights, and PARKED pages
 * are those of a pool of their own, whose broken extents count in this one's ledger
 * (pool_set_host).
 *
 * Pages are grouped in *extents*, the pieces of physical memory that a device can map (1 page on
 * the CPU, up to 64 on a GPU).  Weights take whole extents; keys and values take single pages, from
 * the fullest extent that is broken already, so that whole ones stay whole.
 *
 * Steps of the device are numbered (epochs).  A page is given back with the epoch of the last step
 * that may touch it (its fence); until that step has finished the page is in quarantine, so no
 * step ever writes a page that another one still reads.  Giving and taking a page is O(1) for
 * extents of a fixed size.
 *
 * The first use of a page may cost time on the device, unless it is *warm*: the device saw to pages
 * [0, n_warm), and those that were used before are warm, too.  Pages come in ascending order and
 * those given back are taken first, so a cold one is only taken when no other is free;
 * pool_next_is_cold tells it beforehand.
 *
 * Each owner (a model) has a ledger: pages held, a guarantee `min` and a ceiling `max`.  A page is
 * only lent to an owner when the unfilled guarantees of the others stay covered by free pages.
 *
 * Always true (pool_verify checks it): the states add up to n_pages, each page is in the list of
 * its state, each ledger equals the pages that name its owner.
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
    PAGE_PARKED,
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
    uint32_t owner; // WEIGHT, KV, WARM, PARKED: index of the owner
    uint32_t next;  // FREE, QUARANTINE: next page of the same list, or PAGE_NONE
    uint64_t fence; // QUARANTINE: free when this epoch has finished
} pool_page;

typedef struct pool_extent {
    uint32_t n_free, free_head; // its free pages
    uint32_t prev, next;        // extents with as many free pages, while there are any
} pool_extent;

typedef struct pool_owner {
    uint32_t min, max;          // pages; 0 and UINT32_MAX when nobody said otherwise
    uint32_t held[PAGE_STATES]; // pages that name this owner; min and max are about WEIGHT and KV
} pool_owner;

/* What min and max are about. */
static inline uint32_t pool_held(const pool_owner *o) {
    return o->held[PAGE_WEIGHT] + o->held[PAGE_KV];
}

/* Of its guarantee: what it has not got. */
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
    uint32_t quarantine_head[POOL_DEPTH_MAX + 1]; // by fence modulo the length
    uint64_t launched, finished;                  // epochs; launched - finished are in flight
    uint32_t low, high;                           // watermarks of free pages of the device
    uint32_t n_device, n_host;                    // the ledgers; n_pages and 0 at first
    uint32_t n_host_apart;                        // counted by pool_host_take
    uint32_t n_parked_apart;                      // of the pool that counts here, see pool_set_host
    struct pool *ledger;                          // borrowed: where this pool counts; NULL: itself
    void (*on_empty)(void *ctx, uint32_t first_page); // of this pool's extents; NULL: nobody asks
    void *on_empty_ctx;
    uint32_t unfilled;   // sum over owners of max(0, min - held)
    uint32_t n_min;      // sum over owners of min
    uint32_t n_reserved; // of free pages: not for whoever takes now (guarantees of tenants)
} pool;

/* All pages free; low and high are n_pages / 64 and n_pages / 32. */
inferd_status pool_init(pool *p, uint32_t n_pages, uint32_t n_owners, inferd_err *err);
/* The same with pages that come later and in extents; extent_pages 0: weights are runs of
 * neighbouring pages. */
inferd_status pool_init_extents(pool *p, uint32_t n_pages, uint32_t n_ready, uint32_t extent_pages,
                                uint32_t n_owners, inferd_err *err);
void pool_deinit(pool *p); // accepts a zeroed pool

/* Pages [0, n_ready) are there now, and there will be n_pages: never fewer than are ready, never
 * more than at first. */
void pool_set_ready(pool *p, uint32_t n_ready, uint32_t n_pages);

/* How much counts for the device and for the host; both together may be n_pages at most where they
 * are one memory.  What is taken stays taken. */
void pool_set_ledgers(pool *p, uint32_t n_device, uint32_t n_host);
/* Pages that the device's ledger has room for now, whoever takes them; and the host's, which for a
 * pool of host memory apart is that of the pool where it counts. */
uint32_t pool_n_device_free(const pool *p);
uint32_t pool_n_host_free(const pool *p);
/* Free pages in whole extents (or, where weights need a run, in the longest one). */
uint32_t pool_n_whole_pages(const pool *p);
/* Memory of the host that is no page of the pool.  False: the ledger is full. */
bool pool_host_take(pool *p, uint32_t n);
void pool_host_give(pool *p, uint32_t n);
/* The pages of `host`, of which none is taken yet, are host memory apart.  An extent of it with any
 * page taken counts whole in the host's ledger of `p`, because the host's memory comes and goes in
 * such pieces; `on_empty` (or NULL) is told the first page of each that has none any more.  All of
 * `host` is in extents; one such pool for each `p`, which outlives it. */
void pool_set_host(pool *host, pool *p, void (*on_empty)(void *ctx, uint32_t first_page),
                   void *ctx);

/* Guarantee and ceiling of one owner; EINVAL with the numbers when the guarantees of all would
 * exceed the pool, and nothing changes. */
inferd_status pool_set_limits(pool *p, uint32_t owner, uint32_t min, uint32_t max, inferd_err *err);

/* Pages that this owner could take now. */
uint32_t pool_n_takeable(const pool *p, uint32_t owner);
/* One page, or PAGE_NONE when none can be taken now. */
uint32_t pool_take(pool *p, uint32_t owner, page_state state);
/* The page that pool_take would take, if any, is cold. */
bool pool_next_is_cold(const pool *p);
/* n pages; false: too few, and the pool is unchanged. */
bool pool_take_many(pool *p, uint32_t owner, page_state state, uint32_t n, uint32_t *out);
/* n pages for weights (WEIGHT or WARM): whole extents (n is a multiple of extent_pages), or a run.
 */
bool pool_take_weights(pool *p, uint32_t owner, page_state state, uint32_t n, uint32_t *out);
/* Pages of one owner from WARM to WEIGHT or back.  False: the other ledger, or the owner's ceiling,
 * has no room for all of them; nothing changed. */
bool pool_turn(pool *p, const uint32_t *pages, uint32_t n, page_state to);
/* Back to the pool; usable again when the epoch `fence` has finished (0: at once). */
void pool_give(pool *p, uint32_t page, uint64_t fence);

/* Pages of weights become another owner's, in the same ledger; his ceiling is not asked. */
void pool_hand_over(pool *p, const uint32_t *pages, uint32_t n, uint32_t owner);

/* Both at once, where only together there is room: `out` (of one owner) from WEIGHT to WARM, `in`
 * (of another) from WARM to WEIGHT. */
bool pool_exchange(pool *p, const uint32_t *out, uint32_t n_out, const uint32_t *in, uint32_t n_in);

/* A step begins: its epoch.  Steps finish in the order of their epochs. */
uint64_t pool_launch(pool *p);
void pool_finish(pool *p, uint64_t epoch);

/* Fewer free pages than the low watermark; how many are missing to the high one. */
uint32_t pool_n_short(const pool *p);
/* Pages the owner could have for keys and values beside its n_weights of weights if all others held
 * no more than their guarantees. */
uint32_t pool_n_for_kv(const pool *p, uint32_t owner, uint32_t n_weights);

inferd_status pool_verify(const pool *p, inferd_err *err);

#endif
