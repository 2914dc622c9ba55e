/* sched_swap.c - cached KV blocks that are swapped out to host memory.
 *
 *     device   | prefix cache | --evicted--> host memory --needed again--> | prefix cache |
 *
 * A block that is evicted because its page is needed is first copied to host memory, when copying
 * it there and back is expected to take less time than computing it again.  It keeps its name.  So
 * a preempted sequence, or a prompt for a model that was away, finds its blocks again: on the
 * device, else in host memory; only blocks that are in neither are computed.  (The last, unfinished
 * block of a preempted sequence always is: it has no name.)
 *
 * Swapped-out blocks are dropped, oldest first, when the host's pages are needed; weights of models
 * are dropped before them. */
#include <string.h>

#include "sched_state.h"

enum {
    AHEAD_PERCENT = 2,      // of the time, for copies ahead of time
    AHEAD_US_MAX = 2000,    // the most of that at once
    AHEAD_LEAVES_PARTS = 8, // of the host's pages: left for swapping out
    TOOK_SHIFT = 3,         // an eighth of each deviation moves the mean
    TOOK_CLAMP = 4,         // times the mean: more is an outlier
    TOOK_OLD_US = 10000000, // then it is measured again
    /* Assumed before any copy: bytes per microsecond, both ways of memory or of a bus. */
    MOVE_BYTES_PER_US = 4000
};

void sched_set_swapping(sched *s, pool *host, sched_move *move, void *ctx) {
    s->host = host;
    s->move = move;
    s->move_ctx = ctx;
}

inferd_status sched_open_swap(sched *s, sched_model *m, inferd_err *err) {
    if (s->move == NULL || s->host->n_host == 0) return INFERD_OK;
    inferd_status st =
        kv_init(&m->swapped_kv, &m->kv.layout, s->host, m->kv.owner, PAGE_SWAPPED, err);
    if (st != INFERD_OK) return st;
    st = prefix_init(&m->swapped, &m->swapped_kv, m->prefix.key, err);
    if (st == INFERD_OK && !kv_table_init(&m->swap_table, &m->kv.layout, 1))
        st = inferd_fail(err, INFERD_ENOMEM, "no memory for a block table");
    uint32_t *page_tenants = s->host == s->pool ? s->page_tenants : NULL;
    if (st == INFERD_OK) st = kv_watch_tenants(&m->swapped_kv, page_tenants, NULL, NULL, err);
    m->swaps = true;
    if (st != INFERD_OK) sched_close_swap(m);
    return st;
}

void sched_close_swap(sched_model *m) {
    if (!m->swaps) return;
    while (prefix_evict(&m->swapped)) {
    }
    prefix_deinit(&m->swapped);
    kv_deinit(&m->swapped_kv);
    kv_table_deinit(&m->swap_table);
    m->swaps = false;
}

/* ---- time ---- */

void sched_note_took(sched_took *t, uint64_t us, uint64_t now_us) {
    if (t->us == 0 || sched_is_old(t, now_us)) t->us = us + 1;
    if (us > TOOK_CLAMP * t->us) us = TOOK_CLAMP * t->us;
    t->us += us >> TOOK_SHIFT;
    t->us -= t->us >> TOOK_SHIFT;
    t->at_us = now_us;
}

bool sched_is_old(const sched_took *t, uint64_t now_us) {
    return t->us != 0 && now_us > t->at_us + TOOK_OLD_US;
}

static uint64_t guess_us(const sched_model *m) {
    const kv_layout *l = &m->kv.layout;
    return l->slot_bytes * l->n_groups / MOVE_BYTES_PER_US + 1;
}

static uint64_t move_us(const sched_model *m) {
    return m->move.us != 0 ? m->move.us : guess_us(m);
}

/* For deciding whether to copy: an old measurement must not keep copies from being tried. */
static uint64_t tried_us(const sched *s, const sched_model *m) {
    return sched_is_old(&m->move, s->clock_us) ? guess_us(m) : move_us(m);
}

uint64_t sched_again_us(const sched_model *m, const rate_work *held, uint64_t n_blocks) {
    uint64_t compute_us = held->rows > 0 ? rate_us(&m->rate, held) : 0;
    uint64_t copy_us = 2 * n_blocks * move_us(m);
    return m->swaps && copy_us < compute_us ? copy_us : compute_us;
}

uint64_t sched_compute_us(const sched_model *m, uint32_t depth) {
    uint32_t T = m->kv.layout.block_tokens;
    rate_work with = {0}, without = {0};
    rate_add_rows(&without, 0, 1);
    rate_add_rows(&with, 0, 1);
    rate_add_rows(&with, depth * T, T);
    return rate_us(&m->rate, &with) - rate_us(&m->rate, &without);
}

static void move_block(sched *s, sched_model *m, const int32_t *from, const int32_t *to,
                       bool to_host) {
    s->move(s->move_ctx, m->kv.owner, m->kv.layout.n_groups, from, to, to_host);
}

void sched_note_moves(sched *s, uint32_t model_idx, uint32_t n, uint64_t us) {
    if (n == 0) return;
    s->moved_us += us;
    sched_note_took(&s->models[model_idx].move, us / n, s->clock_us);
}

/* ---- swapping out ---- */

/* Drops the longest unused swapped-out block of m.  drop_one: of m first, then of any model. */
static bool drop_of(sched *s, sched_model *m) {
    uint32_t b = prefix_oldest(&m->swapped);
    if (b == BLOCK_NONE) return false;
    sched_store(s, m, &m->swapped, b);
    return prefix_evict(&m->swapped);
}

static bool drop_one(sched *s, sched_model *m) {
    if (m != NULL && drop_of(s, m)) return true;
    for (uint32_t i = 0; i < s->n_models; i++)
        if (s->models[i].swaps && drop_of(s, &s->models[i])) return true;
    return false;
}

uint32_t sched_drop_swapped(sched *s, uint32_t n) {
    if (s->host == NULL) return 0;
    while (pool_n_host_free(s->host) < n && drop_one(s, NULL)) {
    }
    return pool_n_host_free(s->host);
}

static const int32_t *slots_of(const kv *k, uint32_t block) {
    return k->slots + (size_t)block * k->layout.n_groups;
}

static uint32_t find_swapped(const sched_model *m, uint32_t b) {
    const prefix_entry *e = &m->prefix.entries[b];
    return prefix_lookup(&m->swapped, e->name, e->scope, e->depth, prefix_tokens(&m->prefix, b));
}

/* swap_table has a block for it. */
static void copy_to_host(sched *s, sched_model *m, uint32_t b) {
    move_block(s, m, slots_of(&m->kv, b), m->swap_table.slots, true);
    prefix_adopt(&m->swapped, &m->swap_table, &m->prefix, b);
    s->counters.n_swapped_out++;
}

static bool swapping_pays(const sched *s, const sched_model *m, uint32_t b) {
    return 2 * tried_us(s, m) < sched_compute_us(m, m->prefix.entries[b].depth);
}

static bool take_swap_slot(sched_model *m, uint32_t tenant) {
    m->swap_table.tenant = tenant;
    return kv_append(&m->swapped_kv, &m->swap_table);
}

/* False: host memory has no room for it. */
static bool swap_out(sched *s, sched_model *m, uint32_t b) {
    uint32_t there = find_swapped(m, b);
    if (there != BLOCK_NONE) {
        prefix_touch(&m->swapped, there); // copied out earlier
        return true;
    }
    if (!swapping_pays(s, m, b)) return true; // dropped: a disk is assumed to be slower still
    while (!take_swap_slot(m, m->kv.blocks[b].tenant))
        if (!drop_one(s, m)) return false;
    copy_to_host(s, m, b);
    return true;
}

bool sched_evict_block(sched *s, sched_model *m) {
    uint32_t b = prefix_oldest(&m->prefix);
    if (b == BLOCK_NONE) return false;
    if (!m->swaps || !swap_out(s, m, b)) sched_store(s, m, &m->prefix, b);
    return prefix_evict(&m->prefix);
}

/* ---- ahead of time ---- */

/* The host has a page to spare, or free slots in one. */
static bool has_room_ahead(const sched *s, const sched_model *m) {
    return m->swapped_kv.n_free_slots >= m->kv.layout.n_groups ||
           pool_n_host_free(s->host) > s->host->n_host / AHEAD_LEAVES_PARTS;
}

/* The next full block of q that is not in host memory yet; false: there is none, or no room. */
static bool copy_one_ahead(sched *s, seq *q) {
    sched_model *m = seq_model(s, q);
    for (; q->n_ahead < q->n_published; q->n_ahead++) {
        uint32_t b = q->table.blocks[q->n_ahead];
        if (!m->prefix.entries[b].published || find_swapped(m, b) != BLOCK_NONE) continue;
        if (!swapping_pays(s, m, b)) continue;
        if (!has_room_ahead(s, m) || !take_swap_slot(m, m->kv.blocks[b].tenant)) return false;
        q->n_ahead++;
        copy_to_host(s, m, b);
        s->counters.n_copied_ahead++;
        return true;
    }
    return false;
}

void sched_copy_ahead(sched *s, uint64_t now_us) {
    if (s->move == NULL) return;
    uint64_t since_us = now_us > s->ahead_at_us ? now_us - s->ahead_at_us : 0;
    s->ahead_at_us = now_us;
    s->ahead_us += since_us * AHEAD_PERCENT;
    if (s->ahead_us > 100 * AHEAD_US_MAX) s->ahead_us = 100 * AHEAD_US_MAX;
    LIST_EACH(node, &s->running) {
        seq *q = LIST_ENTRY(node, seq, link);
        const sched_model *m = seq_model(s, q);
        if (q->req->prio != GEN_BATCH || !m->swaps) continue;
        while (s->ahead_us >= 100 * tried_us(s, m)) {
            uint64_t before_us = s->moved_us;
            if (!copy_one_ahead(s, q)) break;
            uint64_t us = 100 * (s->moved_us - before_us + 1);
            s->ahead_us -= us < s->ahead_us ? us : s->ahead_us;
        }
    }
}

/* ---- swapping in ---- */

/* Evicts a cached block of any model, of this one first. */
static bool evict_any(sched *s, sched_model *m) {
    if (sched_evict_block(s, m)) return true;
    for (uint32_t i = 0; i < s->n_models; i++)
        if (s->models[i].open && &s->models[i] != m && sched_evict_block(s, &s->models[i]))
            return true;
    return false;
}

/* Takes a device block for a swap-in; cached ones are evicted for it. */
static bool take_device_block(sched *s, sched_model *m, seq *q) {
    sched_reserve_for(s, q);
    if (sched_tenant_is_full(s, q, 1) || sched_leaves_room(s, q)) return false;
    while (!kv_append(&m->kv, &q->table))
        if (!evict_any(s, m)) return false;
    return true;
}

/* The block behind q's last is in its table now, and has its content before any later step runs. */
static void arrive(sched *s, seq *q, prefix_name name, const tok_id *tokens) {
    sched_model *m = seq_model(s, q);
    uint32_t T = m->kv.layout.block_tokens;
    prefix_publish(&m->prefix, &q->table, q->n_published, name, q->req->cache_scope, tokens);
    q->name = name;
    q->n_published++;
    q->n_computed += T;
    q->n_swapped_in += T;
}

static void give_device_block(sched_model *m, seq *q) {
    kv_block_free(&m->kv, kv_drop_last(&m->kv, &q->table, 0));
}

/* False: making room on the device dropped the swapped-out block itself. */
static bool copy_back(sched *s, seq *q, prefix_name name, const tok_id *tokens) {
    sched_model *m = seq_model(s, q);
    uint32_t b = prefix_lookup(&m->swapped, name, q->req->cache_scope, q->n_published, tokens);
    if (b == BLOCK_NONE) return false;
    const int32_t *to = slots_of(&m->kv, q->table.blocks[q->n_published]);
    move_block(s, m, slots_of(&m->swapped_kv, b), to, false);
    prefix_touch(&m->swapped, b);
    arrive(s, q, name, tokens);
    s->counters.n_swapped_in++;
    return true;
}

static void write_slots(sched *s, const sched_model *m, const int32_t *slots,
                        const unsigned char *from) {
    const kv_layout *l = &m->kv.layout;
    for (uint32_t g = 0; g < l->n_groups; g++, from += l->slot_bytes)
        memcpy(s->slot(s->disk_ctx, m->kv.owner, slots[g]), from, l->slot_bytes);
}

/* From the disk into its page, by way of host memory where that is apart; false: no room there. */
static bool write_back(sched *s, seq *q, prefix_name name, const tok_id *tokens,
                       const unsigned char *from) {
    sched_model *m = seq_model(s, q);
    uint32_t b = q->table.blocks[q->n_published];
    if (s->one_memory) {
        write_slots(s, m, slots_of(&m->kv, b), from);
        arrive(s, q, name, tokens);
        return true;
    }
    while (!take_swap_slot(m, q->req->tenant_idx))
        if (!drop_one(s, m)) return false;
    write_slots(s, m, m->swap_table.slots, from);
    move_block(s, m, m->swap_table.slots, slots_of(&m->kv, b), false);
    arrive(s, q, name, tokens);
    if (m->prefix.entries[b].published)
        prefix_adopt(&m->swapped, &m->swap_table, &m->prefix, b);
    else // the same content is there already
        prefix_release(&m->swapped, &m->swap_table, 0);
    return true;
}

/* One block; false: it is neither in host memory nor on disk, is being read, or has no room. */
static bool swap_in_next(sched *s, seq *q, uint32_t n_max, uint64_t now_us) {
    sched_model *m = seq_model(s, q);
    const uint64_t *scope = q->req->cache_scope;
    const tok_id *tokens = seq_tokens(q) + (size_t)q->n_published * m->kv.layout.block_tokens;
    prefix_name name = prefix_extend(&m->prefix, q->name, tokens);
    if (m->swaps && prefix_lookup(&m->swapped, name, scope, q->n_published, tokens) != BLOCK_NONE) {
        if (!take_device_block(s, m, q)) return false;
        if (copy_back(s, q, name, tokens)) return true;
        give_device_block(m, q);
        return false;
    }
    if (!sched_has_disk(s, m) || (!s->one_memory && !m->swaps)) return false;
    const unsigned char *from = sched_fetch(s, q, name, n_max, now_us);
    if (from == NULL || !take_device_block(s, m, q)) return false;
    bool done = write_back(s, q, name, tokens, from);
    if (!done) give_device_block(m, q);
    sched_fetched(s, m->kv.owner, name, done);
    return done;
}

uint32_t sched_swap_in(sched *s, seq *q, uint32_t n, uint64_t now_us) {
    sched_model *m = seq_model(s, q);
    uint32_t done = 0;
    uint64_t moved_us = s->moved_us;
    q->waits_for_disk = false;
    if (!q->cacheable || q->n_planned != 0 ||
        ((!m->swaps || m->swapped.n_published == 0) && !sched_has_disk(s, m)) ||
        q->n_computed != q->n_published * m->kv.layout.block_tokens ||
        q->table.n_blocks != q->n_published)
        return 0;
    if (q->n_published == 0) q->name = prefix_root(&m->prefix, q->req->cache_scope);
    while (done < n && swap_in_next(s, q, n - done, now_us)) done++;
    q->swap_in_us += s->moved_us - moved_us;
    return done;
}
