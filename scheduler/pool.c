/* pool.c - see pool.h.  The free list is a stack: the page given back last is the one whose lines
 * are most likely still cached.  Quarantine is one list per unfinished epoch, so finishing an epoch
 * touches only the pages that become free. */
#include "pool.h"

inferd_status pool_init(pool *p, uint32_t n_pages, uint32_t n_owners, inferd_err *err) {
    *p = (pool){.n_pages = n_pages, .n_owners = n_owners};
    p->pages = calloc(size_max(n_pages, 1), sizeof *p->pages);
    p->owners = calloc(size_max(n_owners, 1), sizeof *p->owners);
    if (p->pages == NULL || p->owners == NULL) {
        pool_deinit(p);
        return inferd_fail(err, INFERD_ENOMEM, "no memory for the books of %u pages", n_pages);
    }
    for (uint32_t i = 0; i < n_owners; i++) p->owners[i].max = UINT32_MAX;
    for (uint32_t i = 0; i < n_pages; i++) p->pages[i].next = i + 1 < n_pages ? i + 1 : PAGE_NONE;
    p->free_head = n_pages > 0 ? 0 : PAGE_NONE;
    for (uint32_t i = 0; i <= POOL_DEPTH_MAX; i++) p->quarantine_head[i] = PAGE_NONE;
    p->n_in[PAGE_FREE] = n_pages;
    p->low = n_pages / 64;
    p->high = n_pages / 32;
    return INFERD_OK;
}

void pool_deinit(pool *p) {
    free(p->pages);
    free(p->owners);
    *p = (pool){0};
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
    uint32_t page = p->free_head;
    p->free_head = p->pages[page].next;
    p->pages[page] = (pool_page){.state = (uint8_t)state, .owner = owner, .next = PAGE_NONE};
    p->n_in[PAGE_FREE]--;
    p->n_in[state]++;
    charge(p, owner, state, true);
    return page;
}

bool pool_take_many(pool *p, uint32_t owner, page_state state, uint32_t n, uint32_t *out) {
    if (pool_n_takeable(p, owner) < n) return false;
    for (uint32_t i = 0; i < n; i++) out[i] = pool_take(p, owner, state);
    return true;
}

static void push_free(pool *p, uint32_t page) {
    p->pages[page] = (pool_page){.state = PAGE_FREE, .next = p->free_head};
    p->free_head = page;
    p->n_in[PAGE_FREE]++;
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
    uint32_t coming = p->n_in[PAGE_FREE] + p->n_in[PAGE_QUARANTINE];
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
    if (list_length(p, p->free_head, PAGE_FREE, 0) != n_in[PAGE_FREE])
        return inferd_fail(err, INFERD_EINVAL,
                           "pool: the free list does not hold the %u free pages", n_in[PAGE_FREE]);
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
