/* pool.h - the pages of one device: whose each is, and when it may be used again.
 *
 * Page numbers are the only currency here; the memory behind them belongs to the backend.  Every
 * page is in exactly one state:
 *
 *     FREE --pool_take--> WEIGHT or KV --pool_give--> QUARANTINE --pool_finish--> FREE
 *
 * Steps of the device are numbered (epochs).  A page is given back with the epoch of the last step
 * that may touch it (its fence); until that step has finished the page is in quarantine, so no
 * step ever writes a page that another one still reads.  Give and take are O(1).
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
    PAGE_QUARANTINE,
    PAGE_STATES
} page_state;

#define PAGE_NONE UINT32_MAX

enum { POOL_DEPTH_MAX = 3 }; // steps launched and not finished

typedef struct pool_page {
    uint8_t state;
    uint32_t owner; // WEIGHT, KV: index of the ledger
    uint32_t next;  // FREE, QUARANTINE: next page of the same list, or PAGE_NONE
    uint64_t fence; // QUARANTINE: free when this epoch has finished
} pool_page;

typedef struct pool_owner {
    uint32_t min, max;          // pages; 0 and UINT32_MAX when nobody said otherwise
    uint32_t held[PAGE_STATES]; // WEIGHT and KV pages that name this owner
} pool_owner;

typedef struct pool {
    uint32_t n_pages, n_owners;
    pool_page *pages;   // [n_pages] owned
    pool_owner *owners; // [n_owners] owned
    uint32_t n_in[PAGE_STATES];
    uint32_t free_head;
    uint32_t quarantine_head[POOL_DEPTH_MAX + 1]; // by fence modulo the length
    uint64_t launched, finished;                  // epochs; launched - finished are in flight
    uint32_t low, high;                           // watermarks of free pages
    uint32_t unfilled;                            // sum over owners of max(0, min - held)
} pool;

/* All pages free; low and high are n_pages / 64 and n_pages / 32. */
inferd_status pool_init(pool *p, uint32_t n_pages, uint32_t n_owners, inferd_err *err);
void pool_deinit(pool *p); // accepts a zeroed pool

/* Guarantee and ceiling of one owner; EINVAL with the numbers when the guarantees of all would
 * exceed the pool, and nothing changes. */
inferd_status pool_set_limits(pool *p, uint32_t owner, uint32_t min, uint32_t max, inferd_err *err);

/* Pages that this owner could take now. */
uint32_t pool_n_takeable(const pool *p, uint32_t owner);
/* One page, or PAGE_NONE when none can be taken now. */
uint32_t pool_take(pool *p, uint32_t owner, page_state state);
/* n pages; false: too few, and the pool is unchanged. */
bool pool_take_many(pool *p, uint32_t owner, page_state state, uint32_t n, uint32_t *out);
/* Back to the pool; usable again when the epoch `fence` has finished (0: at once). */
void pool_give(pool *p, uint32_t page, uint64_t fence);

/* A step begins: its epoch.  Steps finish in the order of their epochs. */
uint64_t pool_launch(pool *p);
void pool_finish(pool *p, uint64_t epoch);

/* Fewer free pages than the low watermark; how many are missing to the high one. */
uint32_t pool_n_short(const pool *p);
/* Pages the owner could have if everything but the weights of all owners were free. */
uint32_t pool_n_for_kv(const pool *p, uint32_t owner);

inferd_status pool_verify(const pool *p, inferd_err *err);

#endif
