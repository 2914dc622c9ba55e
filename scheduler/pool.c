/* pool.c - see pool.h.  Free lists are stacks: the page given back last is the one whose lines are
 * most likely still cached.  Quarantine is one list per unfinished epoch, so finishing an epoch
 * touches only the pages that become free. */
#include "pool.h"

/* ---- extents ---- */

static void unlink_extent(pool *p, uint32_t e) {
    pool_extent *x = &p->extents[e];
    if (x->n_free == 0) return;
    if (x->prev != PAGE_NONE)
        p->extents[x->prev].next = x->next;
    else
        p->bucket[x->n_free] = x->next;
    if (x->next != PAGE_NONE) p->extents[x->next].prev = x->prev;
    if (x->n_free == p->extent_pages) p->n_whole--;
}

static void link_extent(pool *p, uint32_t e) {
    pool_extent *x = &p->extents[e];
    if (x->n_free == 0) return;
    uint32_t *head = &p->bucket[x->n_free];
    x->prev = PAGE_NONE;
    x->next = *head;
    if (*head != PAGE_NONE) p->extents[*head].prev = e;
    *head = e;
    if (x->n_free == p->extent_pages) p->n_whole++;
}

static void push_free(pool *p, uint32_t page) {
    uint32_t e = page / p->extent_pages;
    pool_extent *x = &p->extents[e];
    unlink_extent(p, e);
    p->pages[page] = (pool_page){.state = PAGE_FREE, .next = x->free_head};
    x->free_head = page;
    x->n_free++;
    link_extent(p, e);
    p->n_in[PAGE_FREE]++;
}

/* The fullest broken extent, else a whole one.  There must be a free page. */
static uint32_t next_extent(const pool *p) {
    uint32_t n = 1;
    while (p->bucket[n] == PAGE_NONE) n++;
    return p->bucket[n];
}

bool pool_next_is_cold(const pool *p) {
    if (p->n_in[PAGE_FREE] == 0) return false;
    return p->extents[next_extent(p)].free_head >= u32_max(p->n_warm, p->n_used);
}

/* The newest free page of next_extent. */
static uint32_t pop_free(pool *p) {
    uint32_t e = next_extent(p);
    pool_extent *x = &p->extents[e];
    unlink_extent(p, e);
    uint32_t page = x->free_head;
    x->free_head = p->pages[page].next;
    x->n_free--;
    link_extent(p, e);
    p->n_in[PAGE_FREE]--;
    p->n_used = u32_max(p->n_used, page + 1);
    return page;
}

/* ---- the pool ---- */

static void set_watermarks(pool *p) {
    p->low = p->n_pages / 64;
    p->high = p->n_pages / 32;
}

inferd_status pool_init_extents(pool *p, uint32_t n_pages, uint32_t n_ready, uint32_t extent_pages,
                                uint32_t n_owners, inferd_err *err) {
    INFERD_CHECK(extent_pages <= POOL_EXTENT_MAX && n_ready <= n_pages);
    uint32_t size = u32_max(extent_pages, 1);
    *p = (pool){.n_pages = n_pages,
                .n_owners = n_owners,
                .n_ready = n_ready,
                .n_warm = UINT32_MAX,
                .extent_pages = size,
                .runs = extent_pages == 0,
                .n_extents = n_pages / size + (n_pages % size != 0)};
    p->pages = calloc(size_max(n_pages, 1), sizeof *p->pages);
    p->owners = calloc(size_max(n_owners, 1), sizeof *p->owners);
    p->extents = calloc(size_max(p->n_extents, 1), sizeof *p->extents);
    if (p->pages == NULL || p->owners == NULL || p->extents == NULL) {
        pool_deinit(p);
        return inferd_fail(err, INFERD_ENOMEM, "no memory for the books of %u pages", n_pages);
    }
    for (uint32_t i = 0; i < n_owners; i++) p->owners[i].max = UINT32_MAX;
    for (uint32_t i = 0; i <= POOL_EXTENT_MAX; i++) p->bucket[i] = PAGE_NONE;
    for (uint32_t i = 0; i < p->n_extents; i++) p->extents[i].free_head = PAGE_NONE;
    for (uint32_t i = n_ready; i < n_pages; i++) p->pages[i].state = PAGE_ABSENT;
    p->n_in[PAGE_ABSENT] = n_pages - n_ready;
    for (uint32_t i = n_ready; i-- > 0;) push_free(p, i); // the lowest is taken first
    for (uint32_t i = 0; i <= POOL_DEPTH_MAX; i++) p->quarantine_head[i] = PAGE_NONE;
    set_watermarks(p);
    return INFERD_OK;
}

inferd_status pool_init(pool *p, uint32_t n_pages, uint32_t n_owners, inferd_err *err) {
    return pool_init_extents(p, n_pages, n_pages, 1, n_owners, err);
}

void pool_deinit(pool *p) {
    free(p->pages);
    free(p->owners);
    free(p->extents);
    *p = (pool){0};
}

void pool_set_ready(pool *p, uint32_t n_ready, uint32_t n_pages) {
    INFERD_CHECK(n_ready >= p->n_ready && n_ready <= n_pages && n_pages <= p->n_pages);
    for (uint32_t i = p->n_ready; i < n_ready; i++) push_free(p, i);
    p->n_ready = n_ready;
    p->n_pages = n_pages; // those past it never come
    p->n_in[PAGE_ABSENT] = n_pages - n_ready;
    set_watermarks(p);
}

static uint32_t held_by(const pool_owner *o) {
    return o->held[PAGE_WEIGHT] + o->held[PAGE_KV];
}

static uint32_t unfilled_of(const pool_owner *o) {
    uint32_t held = held_by(o);
    return o->min > held ? o->min - held : 0;
}

inferd_status pool_set_limits(pool *p, uint32_t owner, uint32_t min, uint32_t max,
                              inferd_err *err) {
    INFERD_CHECK(owner < p->n_owners);
    uint64_t sum = min;
    for (uint32_t i = 0; i < p->n_owners; i++) sum += i == owner ? 0 : p->owners[i].min;
    if (min > max)
        return inferd_fail(err, INFERD_EINVAL, "guarantee of %u pages above the ceiling of %u", min,
                           max);
    if (sum > p->n_pages)
        return inferd_fail(err, INFERD_EINVAL,
                           "guarantees of %llu pages together, the device has %u",
                           (unsigned long long)sum, p->n_pages);
    pool_owner *o = &p->owners[owner];
    p->unfilled -= unfilled_of(o);
    o->min = min;
    o->max = max;
    p->unfilled += unfilled_of(o);
    return INFERD_OK;
}

uint32_t pool_n_takeable(const pool *p, uint32_t owner) {
    const pool_owner *o = &p->owners[owner];
    uint32_t held = held_by(o);
    uint32_t promised = p->unfilled - unfilled_of(o); // to the others
    uint32_t n_free = p->n_in[PAGE_FREE] > promised ? p->n_in[PAGE_FREE] - promised : 0;
    return u32_min(n_free, o->max > held ? o->max - held : 0);
}

/* A page enters or leaves its owner's ledger. */
static void charge(pool *p, uint32_t owner, page_state state, bool enters) {
    pool_owner *o = &p->owners[owner];
    p->unfilled -= unfilled_of(o);
    if (enters)
        o->held[state]++;
    else
        o->held[state]--;
    p->unfilled += unfilled_of(o);
}

uint32_t pool_take(pool *p, uint32_t owner, page_state state) {
    INFERD_CHECK(owner < p->n_owners && (state == PAGE_WEIGHT || state == PAGE_KV));
    if (pool_n_takeable(p, owner) == 0) return PAGE_NONE;
    uint32_t page = pop_free(p);
    p->pages[page] = (pool_page){.state = (uint8_t)state, .owner = owner, .next = PAGE_NONE};
    p->n_in[state]++;
    charge(p, owner, state, true);
    return page;
}

bool pool_take_many(pool *p, uint32_t owner, page_state state, uint32_t n, uint32_t *out) {
    if (pool_n_takeable(p, owner) < n) return false;
    for (uint32_t i = 0; i < n; i++) out[i] = pool_take(p, owner, state);
    return true;
}

/* Everything free in the extent goes to `owner`, in order. */
static void take_extent(pool *p, uint32_t owner, uint32_t e, uint32_t *out) {
    unlink_extent(p, e);
    p->extents[e] = (pool_extent){.free_head = PAGE_NONE};
    for (uint32_t i = 0; i < p->extent_pages; i++) {
        uint32_t page = e * p->extent_pages + i;
        p->pages[page] = (pool_page){.state = PAGE_WEIGHT, .owner = owner, .next = PAGE_NONE};
        p->n_in[PAGE_FREE]--;
        p->n_used = u32_max(p->n_used, page + 1);
        p->n_in[PAGE_WEIGHT]++;
        charge(p, owner, PAGE_WEIGHT, true);
        out[i] = page;
    }
}

/* First fit; PAGE_NONE: nowhere.  Extents are single pages here. */
static uint32_t find_run(const pool *p, uint32_t n) {
    uint32_t length = 0;
    for (uint32_t i = 0; i < p->n_ready; i++) {
        length = p->pages[i].state == PAGE_FREE ? length + 1 : 0;
        if (length == n) return i + 1 - n;
    }
    return PAGE_NONE;
}

bool pool_take_weights(pool *p, uint32_t owner, uint32_t n, uint32_t *out) {
    INFERD_CHECK(owner < p->n_owners && n % p->extent_pages == 0);
    if (n == 0) return true;
    if (pool_n_takeable(p, owner) < n) return false;
    if (p->runs) {
        uint32_t first = find_run(p, n);
        if (first == PAGE_NONE) return false;
        for (uint32_t i = 0; i < n; i++) take_extent(p, owner, first + i, out + i);
        return true;
    }
    uint32_t n_extents = n / p->extent_pages;
    if (p->n_whole < n_extents) return false;
    for (uint32_t i = 0; i < n_extents; i++)
        take_extent(p, owner, p->bucket[p->extent_pages], out + i * p->extent_pages);
    return true;
}

void pool_give(pool *p, uint32_t page, uint64_t fence) {
    INFERD_CHECK(page < p->n_pages && fence <= p->launched);
    pool_page *g = &p->pages[page];
    INFERD_CHECK(g->state == PAGE_WEIGHT || g->state == PAGE_KV);
    charge(p, g->owner, g->state, false);
    p->n_in[g->state]--;
    if (fence <= p->finished) {
        push_free(p, page);
        return;
    }
    uint32_t *head = &p->quarantine_head[fence % (POOL_DEPTH_MAX + 1)];
    *g = (pool_page){.state = PAGE_QUARANTINE, .next = *head, .fence = fence};
    *head = page;
    p->n_in[PAGE_QUARANTINE]++;
}

uint64_t pool_launch(pool *p) {
    INFERD_CHECK(p->launched - p->finished < POOL_DEPTH_MAX);
    return ++p->launched;
}

void pool_finish(pool *p, uint64_t epoch) {
    INFERD_CHECK(epoch == p->finished + 1 && epoch <= p->launched);
    p->finished = epoch;
    uint32_t *head = &p->quarantine_head[epoch % (POOL_DEPTH_MAX + 1)];
    for (uint32_t page = *head, next; page != PAGE_NONE; page = next) {
        next = p->pages[page].next;
        p->n_in[PAGE_QUARANTINE]--;
        push_free(p, page);
    }
    *head = PAGE_NONE;
}

uint32_t pool_n_short(const pool *p) {
    uint32_t coming = p->n_in[PAGE_FREE] + p->n_in[PAGE_QUARANTINE] + p->n_in[PAGE_ABSENT];
    return coming < p->low ? p->high - coming : 0;
}

uint32_t pool_n_for_kv(const pool *p, uint32_t owner) {
    uint32_t weights = 0, promised = 0;
    for (uint32_t i = 0; i < p->n_owners; i++) {
        const pool_owner *o = &p->owners[i];
        weights += o->held[PAGE_WEIGHT];
        if (i != owner && o->min > o->held[PAGE_WEIGHT]) promised += o->min - o->held[PAGE_WEIGHT];
    }
    uint32_t left = p->n_pages - weights;
    left = left > promised ? left - promised : 0;
    const pool_owner *o = &p->owners[owner];
    return u32_min(left, o->max > o->held[PAGE_WEIGHT] ? o->max - o->held[PAGE_WEIGHT] : 0);
}

/* Length of a list whose pages are all in `state` (and of this fence class), or UINT32_MAX. */
static uint32_t list_length(const pool *p, uint32_t head, page_state state, uint32_t fence_class) {
    uint32_t n = 0;
    for (uint32_t page = head; page != PAGE_NONE; page = p->pages[page].next) {
        if (page >= p->n_pages || p->pages[page].state != state || n == p->n_pages)
            return UINT32_MAX;
        if (state == PAGE_QUARANTINE &&
            (p->pages[page].fence <= p->finished || p->pages[page].fence > p->launched ||
             p->pages[page].fence % (POOL_DEPTH_MAX + 1) != fence_class))
            return UINT32_MAX;
        n++;
    }
    return n;
}

/* Each free page is in its extent's list, each extent with free pages in the bucket of their
 * number. */
static inferd_status verify_extents(const pool *p, uint32_t n_free, inferd_err *err) {
    uint32_t n_pages = 0, n_linked = 0, n_open = 0;
    for (uint32_t e = 0; e < p->n_extents; e++) {
        const pool_extent *x = &p->extents[e];
        if (list_length(p, x->free_head, PAGE_FREE, 0) != x->n_free || x->n_free > p->extent_pages)
            return inferd_fail(err, INFERD_EINVAL,
                               "pool: extent %u does not hold its %u free pages", e, x->n_free);
        for (uint32_t page = x->free_head; page != PAGE_NONE; page = p->pages[page].next)
            if (page / p->extent_pages != e)
                return inferd_fail(err, INFERD_EINVAL, "pool: page %u is in extent %u", page, e);
        n_pages += x->n_free;
        n_open += x->n_free > 0;
    }
    for (uint32_t n = 1; n <= p->extent_pages; n++)
        for (uint32_t e = p->bucket[n]; e != PAGE_NONE && n_linked <= p->n_extents;
             e = p->extents[e].next, n_linked++)
            if (e >= p->n_extents || p->extents[e].n_free != n)
                return inferd_fail(err, INFERD_EINVAL, "pool: extent %u is in bucket %u", e, n);
    if (n_pages != n_free || n_linked != n_open)
        return inferd_fail(err, INFERD_EINVAL,
                           "pool: %u free pages in %u extents, the books say %u in %u", n_pages,
                           n_linked, n_free, n_open);
    return INFERD_OK;
}

inferd_status pool_verify(const pool *p, inferd_err *err) {
    uint32_t n_in[PAGE_STATES] = {0};
    for (uint32_t i = 0; i < p->n_pages; i++) {
        const pool_page *g = &p->pages[i];
        if (g->state >= PAGE_STATES)
            return inferd_fail(err, INFERD_EINVAL, "pool: page %u is in state %u", i, g->state);
        if ((g->state == PAGE_WEIGHT || g->state == PAGE_KV) && g->owner >= p->n_owners)
            return inferd_fail(err, INFERD_EINVAL, "pool: page %u has owner %u of %u", i, g->owner,
                               p->n_owners);
        n_in[g->state]++;
    }
    for (int s = 0; s < PAGE_STATES; s++)
        if (n_in[s] != p->n_in[s])
            return inferd_fail(err, INFERD_EINVAL, "pool: %u pages in state %d, the books say %u",
                               n_in[s], s, p->n_in[s]);
    inferd_status extents = verify_extents(p, n_in[PAGE_FREE], err);
    if (extents != INFERD_OK) return extents;
    uint32_t n_quarantine = 0;
    for (uint32_t i = 0; i <= POOL_DEPTH_MAX; i++) {
        uint32_t n = list_length(p, p->quarantine_head[i], PAGE_QUARANTINE, i);
        if (n == UINT32_MAX)
            return inferd_fail(err, INFERD_EINVAL, "pool: quarantine list %u is wrong", i);
        n_quarantine += n;
    }
    if (n_quarantine != n_in[PAGE_QUARANTINE])
        return inferd_fail(err, INFERD_EINVAL,
                           "pool: %u pages in quarantine lists, %u in the state", n_quarantine,
                           n_in[PAGE_QUARANTINE]);
    uint32_t unfilled = 0;
    for (uint32_t o = 0; o < p->n_owners; o++) {
        uint32_t held[PAGE_STATES] = {0};
        for (uint32_t i = 0; i < p->n_pages; i++)
            if (p->pages[i].owner == o) held[p->pages[i].state]++;
        for (int s = PAGE_WEIGHT; s <= PAGE_KV; s++)
            if (held[s] != p->owners[o].held[s])
                return inferd_fail(err, INFERD_EINVAL,
                                   "pool: owner %u has %u pages in state %d, its ledger says %u", o,
                                   held[s], s, p->owners[o].held[s]);
        if (held_by(&p->owners[o]) > p->owners[o].max)
            return inferd_fail(err, INFERD_EINVAL, "pool: owner %u holds %u pages, at most %u", o,
                               held_by(&p->owners[o]), p->owners[o].max);
        unfilled += unfilled_of(&p->owners[o]);
    }
    if (unfilled != p->unfilled)
        return inferd_fail(err, INFERD_EINVAL, "pool: unfilled guarantees %u, the books say %u",
                           unfilled, p->unfilled);
    return INFERD_OK;
}
