/* kv.c - see kv.h.
 *
 * Each page keeps a stack of its free slot numbers, so taking and freeing are a pop and a push.  In
 * the list of partially free pages, those with a passed fence come first: fences only grow, so a
 * page with a new fence goes to the end, and the usable pages stay in front. */
#include "kv.h"

#include <string.h>

uint32_t kv_blocks_in(const kv_layout *l, uint32_t n_pages) {
    uint64_t n = (uint64_t)n_pages * l->slots_per_page / l->n_groups;
    return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX - 1;
}

inferd_status kv_init(kv *k, const kv_layout *layout, pool *p, uint32_t owner, page_state state,
                      inferd_err *err) {
    *k = (kv){.layout = *layout, .pool = p, .owner = owner, .state = state};
    list_node_init(&k->partial);
    size_t n_slots = (size_t)p->n_pages * layout->slots_per_page;
    if (layout->slots_per_page == 0 || layout->n_groups == 0 || layout->block_tokens == 0)
        return inferd_fail(err, INFERD_EUNSUPPORTED,
                           "a slot of %zu bytes does not fit a page of the device",
                           layout->slot_bytes);
    if (layout->slots_per_page > UINT16_MAX || n_slots > INT32_MAX)
        return inferd_fail(err, INFERD_EUNSUPPORTED, "%zu slots of keys and values are too many",
                           n_slots);
    k->n_blocks = kv_blocks_in(layout, p->n_pages);
    k->blocks = calloc(size_max(k->n_blocks, 1), sizeof *k->blocks);
    k->slots = calloc(size_max((size_t)k->n_blocks * layout->n_groups, 1), sizeof *k->slots);
    k->pages = calloc(size_max(p->n_pages, 1), sizeof *k->pages);
    k->slot_stack = calloc(size_max(n_slots, 1), sizeof *k->slot_stack);
    k->marks = calloc(size_max(n_slots, 1), 1);
    if (k->blocks == NULL || k->slots == NULL || k->pages == NULL || k->slot_stack == NULL ||
        k->marks == NULL) {
        kv_deinit(k);
        return inferd_fail(err, INFERD_ENOMEM, "no memory for the state of %zu slots", n_slots);
    }
    for (uint32_t i = 0; i < k->n_blocks; i++)
        k->blocks[i].next = i + 1 < k->n_blocks ? i + 1 : BLOCK_NONE;
    k->block_head = k->n_blocks > 0 ? 0 : BLOCK_NONE;
    for (uint32_t i = 0; i < p->n_pages; i++) list_node_init(&k->pages[i].partial);
    return INFERD_OK;
}

void kv_deinit(kv *k) {
    free(k->blocks);
    free(k->slots);
    free(k->pages);
    free(k->slot_stack);
    free(k->marks);
    free(k->slot_tenants);
    *k = (kv){0};
}

bool kv_table_init(kv_table *t, const kv_layout *layout, uint32_t blocks_max) {
    *t = (kv_table){.capacity = blocks_max, .open_page = PAGE_NONE};
    t->blocks = malloc(size_max(blocks_max, 1) * sizeof *t->blocks);
    t->slots = malloc(size_max((size_t)blocks_max * layout->n_groups, 1) * sizeof *t->slots);
    if (t->blocks != NULL && t->slots != NULL) return true;
    kv_table_deinit(t);
    return false;
}

void kv_table_deinit(kv_table *t) {
    free(t->blocks);
    free(t->slots);
    *t = (kv_table){.open_page = PAGE_NONE};
}

static bool has_usable_slot(const kv *k, uint32_t page) {
    return k->pages[page].n_free > 0 && k->pages[page].fence <= k->pool->finished;
}

/* ---- the tenant of each byte ---- */

inferd_status kv_watch_tenants(kv *k, uint32_t *page_tenants, kv_zero *zero, void *zero_ctx,
                               inferd_err *err) {
    size_t n = (size_t)k->pool->n_pages * k->layout.slots_per_page;
    if (page_tenants == NULL) return INFERD_OK;
    if (k->state != PAGE_SWAPPED) { // slots get their tenants when their page becomes an own page
        k->slot_tenants = malloc(size_max(n, 1) * sizeof *k->slot_tenants);
        if (k->slot_tenants == NULL)
            return inferd_fail(err, INFERD_ENOMEM, "no memory for the tenants of %zu slots", n);
    }
    k->page_tenants = page_tenants;
    k->zero = zero;
    k->zero_ctx = zero_ctx;
    return INFERD_OK;
}

/* The page becomes an own page, for this tenant first. */
static void clean_page(kv *k, uint32_t page, uint32_t tenant) {
    if (k->page_tenants == NULL || k->state == PAGE_SWAPPED) return;
    uint32_t n = k->layout.slots_per_page, *whose = &k->page_tenants[page];
    bool dirty = *whose != KV_TENANT_NONE && *whose != tenant;
    if (dirty) k->zero(k->zero_ctx, page, 0, SIZE_MAX, true);
    if (dirty) *whose = KV_TENANT_NONE;
    for (uint32_t i = 0; i < n; i++) k->slot_tenants[(size_t)page * n + i] = *whose;
}

/* The slot belongs to this tenant from now on. */
static void clean_slot(kv *k, int32_t slot, uint32_t tenant) {
    if (k->page_tenants == NULL) return;
    uint32_t n = k->layout.slots_per_page, page = (uint32_t)slot / n;
    uint32_t *whose = k->slot_tenants, *page_of = &k->page_tenants[page];
    if (whose != NULL && whose[slot] != KV_TENANT_NONE && whose[slot] != tenant)
        k->zero(k->zero_ctx, page, (uint32_t)slot % n * k->layout.slot_bytes, k->layout.slot_bytes,
                false);
    if (whose != NULL) whose[slot] = tenant;
    *page_of = *page_of == KV_TENANT_NONE || *page_of == tenant ? tenant : KV_TENANT_MANY;
}

/* A fresh page: all slots in its stack, lowest on top. */
static uint32_t open_fresh_page(kv *k, uint32_t tenant) {
    uint32_t page = pool_take(k->pool, k->owner, k->state);
    if (page == PAGE_NONE) return PAGE_NONE;
    clean_page(k, page, tenant);
    uint32_t n = k->layout.slots_per_page;
    kv_page *g = &k->pages[page];
    uint16_t *stack = k->slot_stack + (size_t)page * n;
    for (uint32_t i = 0; i < n; i++) stack[i] = (uint16_t)(n - 1 - i);
    g->n_free = n;
    g->n_live = 0;
    g->fence = 0;
    list_push_front(&k->partial, &g->partial);
    k->n_free_slots += n;
    k->n_idle_pages++;
    return page;
}

/* The first own page with a usable slot, or PAGE_NONE. */
static uint32_t first_partial(const kv *k) {
    if (list_empty(&k->partial)) return PAGE_NONE;
    uint32_t page = (uint32_t)(LIST_ENTRY(k->partial.next, kv_page, partial) - k->pages);
    return has_usable_slot(k, page) ? page : PAGE_NONE;
}

static uint32_t choose_page(kv *k, uint32_t open_page, uint32_t tenant) {
    if (open_page != PAGE_NONE && has_usable_slot(k, open_page)) return open_page;
    uint32_t partial = first_partial(k);
    /* Swapped-out blocks are packed: the end of a sequence frees no whole page of them anyway. */
    if (partial != PAGE_NONE && (k->state == PAGE_SWAPPED || pool_next_is_cold(k->pool)))
        return partial;
    uint32_t fresh = open_fresh_page(k, tenant);
    return fresh != PAGE_NONE ? fresh : partial;
}

bool kv_next_is_cold(const kv *k, const kv_table *t) {
    bool own = t->open_page != PAGE_NONE && has_usable_slot(k, t->open_page);
    return !own && pool_next_is_cold(k->pool) && first_partial(k) == PAGE_NONE;
}

static int32_t pop_slot(kv *k, uint32_t page) {
    kv_page *g = &k->pages[page];
    uint32_t n = k->layout.slots_per_page;
    uint32_t idx = k->slot_stack[(size_t)page * n + --g->n_free];
    k->n_free_slots--;
    if (g->n_free == 0) list_remove(&g->partial);
    return (int32_t)(page * n + idx);
}

static void push_slot(kv *k, int32_t slot, uint64_t fence) {
    uint32_t n = k->layout.slots_per_page;
    uint32_t page = (uint32_t)slot / n;
    kv_page *g = &k->pages[page];
    k->slot_stack[(size_t)page * n + g->n_free++] = (uint16_t)((uint32_t)slot % n);
    k->n_free_slots++;
    if (fence > g->fence) g->fence = fence;
    list_remove(&g->partial);
    if (g->n_free == n) {
        k->n_free_slots -= n;
        k->n_idle_pages--;
        pool_give(k->pool, page, g->fence);
    } else if (g->fence <= k->pool->finished) {
        list_push_front(&k->partial, &g->partial);
    } else {
        list_push_back(&k->partial, &g->partial);
    }
}

/* The pages of a block gain or lose slots of a counted block. */
static void count_live(kv *k, uint32_t block, bool live) {
    const int32_t *slots = k->slots + (size_t)block * k->layout.n_groups;
    for (uint32_t g = 0; g < k->layout.n_groups; g++) {
        kv_page *page = &k->pages[(uint32_t)slots[g] / k->layout.slots_per_page];
        if (live) {
            if (page->n_live++ == 0) k->n_idle_pages--;
        } else if (--page->n_live == 0) {
            k->n_idle_pages++;
        }
    }
    if (live)
        k->n_live++;
    else
        k->n_live--;
    if (k->on_live != NULL) k->on_live(k->on_live_ctx, k->blocks[block].tenant, live);
}

static void append(kv *k, kv_table *t, uint32_t block) {
    INFERD_CHECK(t->n_blocks < t->capacity);
    uint32_t n = k->layout.n_groups;
    t->blocks[t->n_blocks] = block;
    memcpy(t->slots + (size_t)t->n_blocks * n, k->slots + (size_t)block * n, n * sizeof *t->slots);
    t->n_blocks++;
}

bool kv_append(kv *k, kv_table *t) {
    uint32_t block = k->block_head;
    if (block == BLOCK_NONE) return false;
    int32_t *slots = k->slots + (size_t)block * k->layout.n_groups;
    uint32_t open_page = t->open_page;
    for (uint32_t g = 0; g < k->layout.n_groups; g++) {
        uint32_t page = choose_page(k, open_page, t->tenant);
        if (page == PAGE_NONE) {
            while (g > 0) push_slot(k, slots[--g], 0);
            return false;
        }
        slots[g] = pop_slot(k, page);
        open_page = page;
    }
    for (uint32_t g = 0; g < k->layout.n_groups; g++) clean_slot(k, slots[g], t->tenant);
    t->open_page = open_page;
    k->block_head = k->blocks[block].next;
    k->blocks[block] =
        (kv_block){.refs = 1, .next = BLOCK_NONE, .tenant = t->tenant, .taken = true};
    k->n_taken++;
    count_live(k, block, true);
    append(k, t, block);
    return true;
}

void kv_append_shared(kv *k, kv_table *t, uint32_t block) {
    INFERD_CHECK(block < k->n_blocks && k->blocks[block].taken);
    if (k->blocks[block].refs++ == 0) {
        k->blocks[block].tenant = t->tenant;
        count_live(k, block, true);
    }
    append(k, t, block);
}

void kv_continue_page(const kv *k, kv_table *t) {
    if (t->n_blocks == 0) return;
    size_t last = (size_t)t->n_blocks * k->layout.n_groups - 1;
    t->open_page = (uint32_t)t->slots[last] / k->layout.slots_per_page;
}

uint32_t kv_drop_last(kv *k, kv_table *t, uint64_t fence) {
    INFERD_CHECK(t->n_blocks > 0);
    uint32_t block = t->blocks[--t->n_blocks];
    kv_block *b = &k->blocks[block];
    INFERD_CHECK(b->taken && b->refs > 0);
    t->open_page = PAGE_NONE; // it may go with this block
    if (fence > b->fence) b->fence = fence;
    if (--b->refs > 0) return BLOCK_NONE;
    count_live(k, block, false);
    return block;
}

void kv_block_free(kv *k, uint32_t block) {
    kv_block *b = &k->blocks[block];
    INFERD_CHECK(b->taken && b->refs == 0);
    const int32_t *slots = k->slots + (size_t)block * k->layout.n_groups;
    for (uint32_t g = 0; g < k->layout.n_groups; g++) push_slot(k, slots[g], b->fence);
    *b = (kv_block){.next = k->block_head};
    k->block_head = block;
    k->n_taken--;
}

static inferd_status mark_slot(const kv *k, uint32_t slot, inferd_err *err) {
    const pool_page *page = &k->pool->pages[slot / k->layout.slots_per_page];
    if (page->state != k->state || page->owner != k->owner)
        return inferd_fail(err, INFERD_EINVAL,
                           "kv: slot %u lies in a page that the model does not own", slot);
    if (k->marks[slot]++) return inferd_fail(err, INFERD_EINVAL, "kv: slot %u is used twice", slot);
    return INFERD_OK;
}

static inferd_status verify_blocks(const kv *k, inferd_err *err) {
    uint32_t n_taken = 0, n_live = 0, n_unused = 0;
    for (uint32_t b = 0; b < k->n_blocks; b++) {
        if (!k->blocks[b].taken) continue;
        n_taken++;
        n_live += k->blocks[b].refs > 0;
        for (uint32_t g = 0; g < k->layout.n_groups; g++) {
            inferd_status s =
                mark_slot(k, (uint32_t)k->slots[(size_t)b * k->layout.n_groups + g], err);
            if (s != INFERD_OK) return s;
        }
    }
    for (uint32_t b = k->block_head; b != BLOCK_NONE; b = k->blocks[b].next)
        if (++n_unused > k->n_blocks || k->blocks[b].taken)
            return inferd_fail(err, INFERD_EINVAL,
                               "kv: the stack of unused blocks is inconsistent");
    if (n_taken != k->n_taken || n_live != k->n_live || n_taken + n_unused != k->n_blocks)
        return inferd_fail(err, INFERD_EINVAL,
                           "kv: %u blocks taken, %u live, %u unused; the counters say %u, %u, %u",
                           n_taken, n_live, n_unused, k->n_taken, k->n_live,
                           k->n_blocks - k->n_taken);
    return INFERD_OK;
}

static inferd_status verify_pages(const kv *k, inferd_err *err) {
    uint32_t n_free = 0, n_idle = 0, n_partial = 0, n = k->layout.slots_per_page;
    for (uint32_t page = 0; page < k->pool->n_pages; page++) {
        const pool_page *p = &k->pool->pages[page];
        const kv_page *g = &k->pages[page];
        if (p->state != k->state || p->owner != k->owner) {
            if (list_linked(&g->partial))
                return inferd_fail(
                    err, INFERD_EINVAL,
                    "kv: page %u is in the partial list, but the model does not own it", page);
            continue;
        }
        for (uint32_t i = 0; i < g->n_free; i++) {
            inferd_status s = mark_slot(k, page * n + k->slot_stack[(size_t)page * n + i], err);
            if (s != INFERD_OK) return s;
        }
        for (uint32_t i = 0; i < n; i++)
            if (k->marks[(size_t)page * n + i] != 1)
                return inferd_fail(err, INFERD_EINVAL,
                                   "kv: slot %u of page %u is neither free nor in a block", i,
                                   page);
        if (g->n_free == n || (g->n_free > 0) != list_linked(&g->partial))
            return inferd_fail(
                err, INFERD_EINVAL,
                "kv: page %u with %u free slots is wrongly in or not in the partial list", page,
                g->n_free);
        n_free += g->n_free;
        n_idle += g->n_live == 0;
        n_partial += g->n_free > 0;
    }
    uint32_t n_listed = 0;
    LIST_EACH(node, &k->partial) n_listed++;
    if (n_free != k->n_free_slots || n_idle != k->n_idle_pages || n_partial != n_listed)
        return inferd_fail(
            err, INFERD_EINVAL,
            "kv: %u free slots, %u idle pages, %u partial; the counters say %u, %u, %u", n_free,
            n_idle, n_partial, k->n_free_slots, k->n_idle_pages, n_listed);
    return INFERD_OK;
}

inferd_status kv_verify(const kv *k, inferd_err *err) {
    memset(k->marks, 0, (size_t)k->pool->n_pages * k->layout.slots_per_page);
    inferd_status s = verify_blocks(k, err);
    return s == INFERD_OK ? verify_pages(k, err) : s;
}
