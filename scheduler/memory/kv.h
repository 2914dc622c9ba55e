/* kv.h - KV blocks of one model, cut from pages of the pool.
 *
 * The pages of a kv are its own: in state KV, or SWAPPED for blocks in host memory (sched_swap.c).
 *
 * A block is block_tokens positions of a sequence, stored in n_groups slots (kv_layout.h).  Blocks
 * have a reference count, because sequences that begin with the same tokens share them.  A sequence
 * has its blocks in a kv_table, and the slot numbers of that block table are what the device reads.
 *
 * Where a slot comes from, in this order:
 *   1  the page that the sequence is filling, or the one of its last cached block (so its end
 *      returns whole pages)
 *   2  a fresh page of the pool, if it is warm
 *   3  any page of this model that has a free slot
 *   4  a fresh page that is cold
 *
 * A block with a count of zero is either free or *cached*: the prefix cache has it without
 * counting, and gives it up with kv_block_free when its page is needed.
 *
 * A freed slot keeps the fence of its last step.  A page gives no slots before its newest fence has
 * passed; when all its slots are free it goes back to the pool with that fence.
 *
 * Always true (kv_verify checks it): every slot of an own page is in one block or in that page's
 * stack, once; an own page has at least one used slot.
 * Thread: engine.  All operations are O(n_groups). */
#ifndef INFERD_KV_H
#define INFERD_KV_H

#include "inferd/base.h"
#include "inferd/kv_layout.h"
#include "inferd/list.h"
#include "inferd/status.h"
#include "pool.h"

#define BLOCK_NONE     UINT32_MAX
#define KV_TENANT_NONE UINT32_MAX       // no tenant's bytes: fresh, or zeroed
#define KV_TENANT_MANY (UINT32_MAX - 1) // of several tenants

typedef struct kv_page {
    list_node partial; // in kv.partial when it has a free slot; pages with passed fences come first
    uint32_t n_free;   // slots in its stack
    uint32_t n_live;   // slots in blocks with a count; the other used ones are cached
    uint64_t fence;    // newest step that may touch one of its freed slots
} kv_page;

typedef struct kv_block {
    uint32_t refs;   // sequences that have it in their table
    uint32_t next;   // in the stack of unused numbers
    uint64_t fence;  // newest step that used it through a table that dropped it
    uint32_t tenant; // its tenant while it has a count
    bool taken;      // has slots; refs == 0 then means cached
} kv_block;

typedef void kv_zero(void *ctx, uint32_t page, size_t begin, size_t n_bytes, bool whole);

typedef struct kv {
    kv_layout layout;
    pool *pool; // borrowed
    uint32_t owner;
    page_state state;  // of its pages
    uint32_t n_blocks; // block numbers in all: the most that the whole pool could hold
    kv_block *blocks;  // [n_blocks] owned
    int32_t *slots;    // [n_blocks, n_groups] owned
    uint32_t block_head;
    kv_page *pages;       // [n_pages of the pool] owned; valid for own pages
    uint16_t *slot_stack; // [n_pages, slots_per_page] owned
    list_node partial;
    uint32_t n_free_slots; // in own pages
    uint32_t n_taken;      // blocks
    uint32_t n_live;       // blocks with a count
    uint32_t n_idle_pages; // own pages with cached blocks only
    /* A block of a tenant gets its first count, or loses the last; NULL: no callback. */
    void (*on_live)(void *ctx, uint32_t tenant, bool live);
    void *on_live_ctx;
    /* kv_watch_tenants: tenant of the bytes in each page ([n_pages of the pool] borrowed; NULL: not
     * tracked) and slot of own pages ([n_slots of the pool] owned; NULL: likewise, or SWAPPED). */
    uint32_t *page_tenants, *slot_tenants;
    kv_zero *zero;
    void *zero_ctx;
    uint8_t *marks; // [n_pages * slots_per_page] scratch of kv_verify; owned
} kv;

typedef struct kv_table {
    uint32_t n_blocks, capacity;
    uint32_t *blocks;   // [capacity] each of the first n_blocks has a count from this table; owned
    int32_t *slots;     // [capacity, n_groups] owned
    uint32_t open_page; // the page it is filling, or PAGE_NONE
    uint32_t tenant;    // for on_live; the same for all sequences that share a block
} kv_table;

inferd_status kv_init(kv *k, const kv_layout *layout, pool *p, uint32_t owner, page_state state,
                      inferd_err *err);
void kv_deinit(kv *k); // accepts a zeroed kv; gives no pages back
/* Before the first block: track the tenant of the bytes in each page and slot, and zero memory
 * before another tenant gets it: a whole page when it becomes an own page, a slot when it is taken
 * again. page_tenants is valid across models, as long as the page exists (NULL: no tracking).
 * SWAPPED pages are written whole before they are read, so not zeroed: there zero may be NULL. */
inferd_status kv_watch_tenants(kv *k, uint32_t *page_tenants, kv_zero *zero, void *zero_ctx,
                               inferd_err *err);

bool kv_table_init(kv_table *t, const kv_layout *layout, uint32_t blocks_max); // false: no memory
void kv_table_deinit(kv_table *t);

/* Append a fresh block with a count of one.  False: no slot is available now; nothing changed. */
bool kv_append(kv *k, kv_table *t);
/* Would the next kv_append to this table use a cold page? */
bool kv_next_is_cold(const kv *k, const kv_table *t);
/* Append a cached or shared block; its count grows by one. */
void kv_append_shared(kv *k, kv_table *t, uint32_t block);
/* The next blocks go into the page of the last one while it has room, so that the turns of a
 * conversation lie together: with a fresh page for each turn small models fill the pool with pages
 * that are nearly empty. */
void kv_continue_page(const kv *k, kv_table *t);
/* Drop the last block of the table; `fence` is the last step that used it.  Returns it if its count
 * became zero (the caller keeps it cached or calls kv_block_free), else BLOCK_NONE. */
uint32_t kv_drop_last(kv *k, kv_table *t, uint64_t fence);
void kv_block_free(kv *k, uint32_t block); // the slots of an uncounted block become free

uint32_t kv_blocks_in(const kv_layout *l, uint32_t n_pages);

inferd_status kv_verify(const kv *k, inferd_err *err); // heavy: looks at every slot

#endif
