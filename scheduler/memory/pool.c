/* pool.c - see pool.h.  Free lists are stacks: the page given back last is most likely still
 * cached. Quarantine is a list per unfinished epoch: finishing one touches only pages that become
 * free. */
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
    if (p->budget == NULL || x->n_free < p->extent_pages) return;
    p->budget->n_swapped_apart -= p->extent_pages;
    if (p->on_empty != NULL) p->on_empty(p->on_empty_ctx, e * p->extent_pages);
}

/* The broken extent with the fewest free pages, else a whole one.  There must be a free page. */
static uint32_t next_extent(const pool *p) {
    uint32_t n = 1;
    while (p->bucket[n] == PAGE_NONE) n++;
    return p->bucket[n];
}

bool pool_next_is_cold(const pool *p) {
    if (p->n_in[PAGE_FREE] == 0) return false;
    return p->extents[next_extent(p)].free_head >= u32_max(p->n_warm, p->n_used);
}

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
    if (p->budget != NULL && x->n_free == p->extent_pages - 1)
        p->budget->n_swapped_apart += p->extent_pages;
    return page;
}

/* ---- the pool ---- */

static void set_watermarks(pool *p) {
    p->low = p->n_device / 64;
    p->high = p->n_device / 32;
}

/* ---- budgets ---- */

static uint32_t n_in_device(const pool *p) {
    return p->n_in[PAGE_WEIGHT] + p->n_in[PAGE_KV] + p->n_in[PAGE_QUARANTINE];
}

static uint32_t n_in_host(const pool *p) {
    return p->n_in[PAGE_WARM] + p->n_in[PAGE_SWAPPED] + p->n_host_apart + p->n_swapped_apart;
}

void pool_set_budgets(pool *p, uint32_t n_device, uint32_t n_host) {
    p->n_device = n_device;
    p->n_host = n_host;
    set_watermarks(p);
}

uint32_t pool_n_device_free(const pool *p) {
    return u32_min(p->n_in[PAGE_FREE], u32_less(p->n_device, n_in_device(p)));
}

uint32_t pool_n_host_free(const pool *p) {
    if (p->budget != NULL) return pool_n_host_free(p->budget);
    return u32_less(p->n_host, n_in_host(p));
}

bool pool_host_take(pool *p, uint32_t n) {
    if (n > pool_n_host_free(p)) return false;
    p->n_host_apart += n;
    return true;
}

void pool_host_give(pool *p, uint32_t n) {
    INFERD_CHECK(n <= p->n_host_apart);
    p->n_host_apart -= n;
}

void pool_set_host(pool *host, pool *p, void (*on_empty)(void *ctx, uint32_t first_page),
                   void *ctx) {
    INFERD_CHECK(host->n_in[PAGE_FREE] == host->n_pages && host->n_pages % host->extent_pages == 0);
    pool_set_budgets(host, 0, host->n_pages);
    host->budget = p;
    host->on_empty = on_empty;
    host->on_empty_ctx = ctx;
}

static bool is_host(page_state state) {
    return state == PAGE_WARM || state == PAGE_SWAPPED;
}

static bool is_owned(page_state state) {
    return state == PAGE_WEIGHT || state == PAGE_KV || is_host(state);
}

inferd_status pool_init_extents(pool *p, uint32_t n_pages, uint32_t n_ready, uint32_t extent_pages,
                                uint32_t n_owners, inferd_err *err) {
    INFERD_CHECK(extent_pages <= POOL_EXTENT_MAX && n_ready <= n_pages);
    uint32_t size = u32_max(extent_pages, 1);
    *p = (pool){.n_pages = n_pages,
                .n_owners = n_owners,
                .n_device = n_pages,
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
        return inferd_fail(err, INFERD_ENOMEM, "no memory for the state of %u pages", n_pages);
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
    p->n_device -= u32_min(p->n_device, p->n_pages - n_pages);
    p->n_pages = n_pages; // later pages never come
    p->n_in[PAGE_ABSENT] = n_pages - n_ready;
    set_watermarks(p);
}

inferd_status pool_set_limits(pool *p, uint32_t owner, uint32_t min, uint32_t max,
                              inferd_err *err) {
    INFERD_CHECK(owner < p->n_owners);
    uint64_t sum = (uint64_t)p->n_min - p->owners[owner].min + min;
    if (min > max)
        return inferd_fail(err, INFERD_EINVAL, "guarantee of %u pages above the ceiling of %u", min,
                           max);
    if (sum > p->n_device)
        return inferd_fail(err, INFERD_EINVAL,
                           "guarantees of %llu pages together, the device has %u",
                           (unsigned long long)sum, p->n_device);
    pool_owner *o = &p->owners[owner];
    p->unfilled -= pool_unfilled(o);
    p->n_min = (uint32_t)sum;
    o->min = min;
    o->max = max;
    p->unfilled += pool_unfilled(o);
    return INFERD_OK;
}

uint32_t pool_n_takeable(const pool *p, uint32_t owner) {
    const pool_owner *o = &p->owners[owner];
    uint32_t held = pool_held(o);
    uint32_t guaranteed = u32_max(p->unfilled - pool_unfilled(o), p->n_reserved); // kept for others
    return u32_min(u32_less(pool_n_device_free(p), guaranteed), u32_less(o->max, held));
}

static void charge(pool *p, uint32_t owner, page_state state, bool enters) {
    pool_owner *o = &p->owners[owner];
    p->unfilled -= pool_unfilled(o);
    if (enters)
        o->held[state]++;
    else
        o->held[state]--;
    p->unfilled += pool_unfilled(o);
}

/* Pages of broken extents count already; whole extents have to fit the budget. */
static uint32_t n_takeable_apart(const pool *p) {
    uint32_t n_payable = u32_min(p->n_whole, pool_n_host_free(p) / p->extent_pages);
    return p->n_in[PAGE_FREE] - (p->n_whole - n_payable) * p->extent_pages;
}

static uint32_t n_takeable_as(const pool *p, uint32_t owner, page_state state) {
    if (!is_host(state)) return pool_n_takeable(p, owner);
    if (p->budget != NULL) return n_takeable_apart(p);
    return u32_min(p->n_in[PAGE_FREE], pool_n_host_free(p));
}

uint32_t pool_take(pool *p, uint32_t owner, page_state state) {
    INFERD_CHECK(owner < p->n_owners && is_owned(state));
    if (n_takeable_as(p, owner, state) == 0) return PAGE_NONE;
    uint32_t page = pop_free(p);
    p->pages[page] = (pool_page){.state = (uint8_t)state, .owner = owner, .next = PAGE_NONE};
    p->n_in[state]++;
    charge(p, owner, state, true);
    return page;
}

static void take_extent(pool *p, uint32_t owner, page_state state, uint32_t e, uint32_t *out) {
    unlink_extent(p, e);
    p->extents[e] = (pool_extent){.free_head = PAGE_NONE};
    for (uint32_t i = 0; i < p->extent_pages; i++) {
        uint32_t page = e * p->extent_pages + i;
        p->pages[page] = (pool_page){.state = (uint8_t)state, .owner = owner, .next = PAGE_NONE};
        p->n_in[PAGE_FREE]--;
        p->n_used = u32_max(p->n_used, page + 1);
        p->n_in[state]++;
        charge(p, owner, state, true);
        out[i] = page;
    }
}

/* First fit; PAGE_NONE: no run is long enough.  Extents are single pages here. */
static uint32_t find_run(const pool *p, uint32_t n) {
    uint32_t length = 0;
    for (uint32_t i = 0; i < p->n_ready; i++) {
        length = p->pages[i].state == PAGE_FREE ? length + 1 : 0;
        if (length == n) return i + 1 - n;
    }
    return PAGE_NONE;
}

uint32_t pool_n_whole_pages(const pool *p) {
    if (!p->runs) return p->n_whole * p->extent_pages;
    uint32_t longest = 0, length = 0;
    for (uint32_t i = 0; i < p->n_ready; i++) {
        length = p->pages[i].state == PAGE_FREE ? length + 1 : 0;
        longest = u32_max(longest, length);
    }
    return longest;
}

bool pool_take_weights(pool *p, uint32_t owner, page_state state, uint32_t n, uint32_t *out) {
    INFERD_CHECK(owner < p->n_owners && n % p->extent_pages == 0 &&
                 (state == PAGE_WEIGHT || state == PAGE_WARM));
    if (n == 0) return true;
    if (n_takeable_as(p, owner, state) < n) return false;
    if (p->runs) {
        uint32_t first = find_run(p, n);
        if (first == PAGE_NONE) return false;
        for (uint32_t i = 0; i < n; i++) take_extent(p, owner, state, first + i, out + i);
        return true;
    }
    uint32_t n_extents = n / p->extent_pages;
    if (p->n_whole < n_extents) return false;
    for (uint32_t i = 0; i < n_extents; i++)
        take_extent(p, owner, state, p->bucket[p->extent_pages], out + i * p->extent_pages);
    return true;
}

/* Pages of an owner that may move to the device budget, beside what is kept for others. */
static uint32_t room_on_device(const pool *p, uint32_t owner) {
    const pool_owner *o = &p->owners[owner];
    uint32_t guaranteed = u32_max(p->unfilled - pool_unfilled(o), p->n_reserved);
    /* The pages are not free ones, so only the budgets count. */
    return u32_min(u32_less(u32_less(p->n_device, n_in_device(p)), guaranteed),
                   u32_less(o->max, pool_held(o)));
}

static void convert(pool *p, const uint32_t *pages, uint32_t n, page_state from, page_state to) {
    for (uint32_t i = 0; i < n; i++) {
        pool_page *g = &p->pages[pages[i]];
        INFERD_CHECK(g->state == from);
        charge(p, g->owner, from, false);
        charge(p, g->owner, to, true);
        g->state = (uint8_t)to;
    }
    p->n_in[from] -= n;
    p->n_in[to] += n;
}

bool pool_convert(pool *p, const uint32_t *pages, uint32_t n, page_state to) {
    INFERD_CHECK(to == PAGE_WEIGHT || to == PAGE_WARM);
    if (n == 0) return true;
    uint32_t room =
        to == PAGE_WARM ? pool_n_host_free(p) : room_on_device(p, p->pages[pages[0]].owner);
    if (room < n) return false;
    convert(p, pages, n, to == PAGE_WEIGHT ? PAGE_WARM : PAGE_WEIGHT, to);
    return true;
}

bool pool_exchange(pool *p, const uint32_t *out, uint32_t n_out, const uint32_t *in,
                   uint32_t n_in) {
    convert(p, out, n_out, PAGE_WEIGHT, PAGE_WARM);
    if (n_in == 0 || room_on_device(p, p->pages[in[0]].owner) >= n_in) {
        convert(p, in, n_in, PAGE_WARM, PAGE_WEIGHT);
        if (n_in_host(p) <= p->n_host) return true;
        convert(p, in, n_in, PAGE_WEIGHT, PAGE_WARM);
    }
    convert(p, out, n_out, PAGE_WARM, PAGE_WEIGHT);
    return false;
}

void pool_hand_over(pool *p, const uint32_t *pages, uint32_t n, uint32_t owner) {
    INFERD_CHECK(owner < p->n_owners);
    for (uint32_t i = 0; i < n; i++) {
        pool_page *g = &p->pages[pages[i]];
        INFERD_CHECK(g->state == PAGE_WEIGHT || g->state == PAGE_WARM);
        charge(p, g->owner, g->state, false);
        charge(p, owner, g->state, true);
        g->owner = owner;
    }
}

void pool_give(pool *p, uint32_t page, uint64_t fence) {
    INFERD_CHECK(page < p->n_pages && fence <= p->launched);
    pool_page *g = &p->pages[page];
    INFERD_CHECK(is_owned(g->state));
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
    coming = u32_min(coming, u32_less(p->n_device, p->n_in[PAGE_WEIGHT] + p->n_in[PAGE_KV]));
    return coming < p->low ? p->high - coming : 0;
}

/* Length of a list of pages that are all in `state` (and of this fence class), or UINT32_MAX. */
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

/* Each free page is in its extent's list, each extent in the bucket of its number of free pages. */
static inferd_status verify_extents(const pool *p, uint32_t n_free, inferd_err *err) {
    uint32_t n_pages = 0, n_linked = 0, n_open = 0;
    for (uint32_t e = 0; e < p->n_extents; e++) {
        const pool_extent *x = &p->extents[e];
        if (list_length(p, x->free_head, PAGE_FREE, 0) != x->n_free || x->n_free > p->extent_pages)
            return inferd_fail(err, INFERD_EINVAL,
                               "pool: the list of extent %u does not hold its %u free pages", e,
                               x->n_free);
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
                           "pool: %u free pages in %u extents, the counters say %u in %u", n_pages,
                           n_linked, n_free, n_open);
    return INFERD_OK;
}

static inferd_status verify_owners(const pool *p, inferd_err *err) {
    uint32_t unfilled = 0, n_min = 0;
    pool_owner *found = calloc(size_max(p->n_owners, 1), sizeof *found);
    if (found == NULL) return inferd_fail(err, INFERD_ENOMEM, "pool: no memory to count pages");
    for (uint32_t i = 0; i < p->n_pages; i++)
        if (is_owned(p->pages[i].state)) found[p->pages[i].owner].held[p->pages[i].state]++;
    inferd_status status = INFERD_OK;
    for (uint32_t o = 0; o < p->n_owners && status == INFERD_OK; o++) {
        const pool_owner *owner = &p->owners[o];
        for (int s = 0; s < PAGE_STATES && status == INFERD_OK; s++)
            if (found[o].held[s] != owner->held[s])
                status = inferd_fail(err, INFERD_EINVAL,
                                     "pool: owner %u has %u pages in state %d, its counter says %u",
                                     o, found[o].held[s], s, owner->held[s]);
        unfilled += pool_unfilled(owner);
        n_min += owner->min;
    }
    free(found);
    if (status == INFERD_OK && n_min != p->n_min)
        return inferd_fail(err, INFERD_EINVAL, "pool: guarantees of %u pages, the counter says %u",
                           n_min, p->n_min);
    if (status == INFERD_OK && unfilled != p->unfilled)
        return inferd_fail(err, INFERD_EINVAL, "pool: unfilled guarantees %u, the counter says %u",
                           unfilled, p->unfilled);
    return status;
}

inferd_status pool_verify(const pool *p, inferd_err *err) {
    uint32_t n_in[PAGE_STATES] = {0};
    for (uint32_t i = 0; i < p->n_pages; i++) {
        const pool_page *g = &p->pages[i];
        if (g->state >= PAGE_STATES)
            return inferd_fail(err, INFERD_EINVAL, "pool: page %u is in state %u", i, g->state);
        if (is_owned(g->state) && g->owner >= p->n_owners)
            return inferd_fail(err, INFERD_EINVAL, "pool: page %u has owner %u of %u", i, g->owner,
                               p->n_owners);
        n_in[g->state]++;
    }
    for (int s = 0; s < PAGE_STATES; s++)
        if (n_in[s] != p->n_in[s])
            return inferd_fail(err, INFERD_EINVAL,
                               "pool: %u pages in state %d, the counter says %u", n_in[s], s,
                               p->n_in[s]);
    inferd_status extents = verify_extents(p, n_in[PAGE_FREE], err);
    if (extents != INFERD_OK) return extents;
    uint32_t n_quarantine = 0;
    for (uint32_t i = 0; i <= POOL_DEPTH_MAX; i++) {
        uint32_t n = list_length(p, p->quarantine_head[i], PAGE_QUARANTINE, i);
        if (n == UINT32_MAX)
            return inferd_fail(err, INFERD_EINVAL, "pool: quarantine list %u is inconsistent", i);
        n_quarantine += n;
    }
    if (n_quarantine != n_in[PAGE_QUARANTINE])
        return inferd_fail(err, INFERD_EINVAL,
                           "pool: %u pages in quarantine lists, %u in the state", n_quarantine,
                           n_in[PAGE_QUARANTINE]);
    uint32_t n_broken = (p->n_extents - p->n_whole) * p->extent_pages;
    if (p->budget != NULL && p->budget->n_swapped_apart != n_broken)
        return inferd_fail(
            err, INFERD_EINVAL,
            "pool: %u pages of the host lie in extents that are in use, the host budget has %u",
            n_broken, p->budget->n_swapped_apart);
    if (n_in_device(p) > p->n_device || n_in_host(p) > p->n_host)
        return inferd_fail(
            err, INFERD_EINVAL,
            "pool: %u pages of the device and %u of the host are taken, the budgets have %u and %u",
            n_in_device(p), n_in_host(p), p->n_device, p->n_host);
    return verify_owners(p, err);
}
