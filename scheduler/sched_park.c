/* sched_park.c - cached blocks of keys and values that are kept in host memory.
 *
 *     device   | prefix cache | --evicted--> parked --wanted again--> | prefix cache |
 *
 * A block that leaves the device because its page is wanted is copied to host memory first, when
 * copying it there and back is expected to take less time than computing it again.  It keeps its
 * name.  So a preempted sequence, or a prompt whose model was away, finds its blocks again: on the
 * device, else here, and only what is in neither is computed.  (The last, unfinished block of a
 * preempted sequence always is: it has no name.)
 *
 * Parked blocks go, oldest first, when the host's pages are wanted: weights of models go before
 * them. */
#include "sched_state.h"

enum {
    MOVE_SHIFT = 3, // an eighth of each deviation of a block's time
    /* Before any was copied: bytes per microsecond, both ways of memory or of a bus. */
    MOVE_BYTES_PER_US = 4000
};

void sched_set_parking(sched *s, pool *host, sched_move *move, void *ctx) {
    s->host = host;
    s->move = move;
    s->move_ctx = ctx;
}

inferd_status sched_open_park(sched *s, sched_model *m, inferd_err *err) {
    if (s->move == NULL || s->host->n_host == 0 || s->limits.no_prefix_cache) return INFERD_OK;
    inferd_status st =
        kv_init(&m->parked_kv, &m->kv.layout, s->host, m->kv.owner, PAGE_PARKED, err);
    if (st != INFERD_OK) return st;
    st = prefix_init(&m->parked, &m->parked_kv, m->prefix.key, err);
    if (st == INFERD_OK && !kv_table_init(&m->park_table, &m->kv.layout, 1))
        st = inferd_fail(err, INFERD_ENOMEM, "no memory for a block table");
    m->parks = true;
    if (st != INFERD_OK) sched_close_park(m);
    return st;
}

void sched_close_park(sched_model *m) {
    if (!m->parks) return;
    while (prefix_evict(&m->parked)) {
    }
    prefix_deinit(&m->parked);
    kv_deinit(&m->parked_kv);
    kv_table_deinit(&m->park_table);
    m->parks = false;
}

/* ---- time ---- */

static uint64_t move_us(const sched *s, const sched_model *m) {
    const kv_layout *l = &m->kv.layout;
    return s->move_us != 0 ? s->move_us : l->slot_bytes * l->n_groups / MOVE_BYTES_PER_US + 1;
}

static uint64_t compute_us(const sched_model *m, uint32_t depth) {
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

void sched_note_moves(sched *s, uint32_t n, uint64_t us) {
    if (n == 0) return;
    uint64_t each = us / n + 1;
    if (s->move_us == 0) s->move_us = each;
    s->move_us += each >> MOVE_SHIFT;
    s->move_us -= s->move_us >> MOVE_SHIFT;
}

/* ---- out ---- */

/* A parked block of whoever has one that nobody wanted for longest, of this model first. */
static bool drop_one(sched *s, sched_model *m) {
    if (m != NULL && prefix_evict(&m->parked)) return true;
    for (uint32_t i = 0; i < s->n_models; i++)
        if (s->models[i].parks && prefix_evict(&s->models[i].parked)) return true;
    return false;
}

uint32_t sched_drop_parked(sched *s, uint32_t n) {
    if (s->host == NULL) return 0;
    while (pool_n_host_free(s->host) < n && drop_one(s, NULL)) {
    }
    return pool_n_host_free(s->host);
}

static const int32_t *slots_of(const kv *k, uint32_t block) {
    return k->slots + (size_t)block * k->layout.n_groups;
}

static void park(sched *s, sched_model *m, uint32_t b) {
    const prefix_entry *e = &m->prefix.entries[b];
    uint32_t there =
        prefix_lookup(&m->parked, e->name, e->scope, e->depth, prefix_tokens(&m->prefix, b));
    if (there != BLOCK_NONE) {
        prefix_touch(&m->parked, there); // a copy from an earlier time
        return;
    }
    if (2 * move_us(s, m) >= compute_us(m, e->depth)) return;
    while (!kv_append(&m->parked_kv, &m->park_table))
        if (!drop_one(s, m)) return;
    move_block(s, m, slots_of(&m->kv, b), m->park_table.slots, true);
    prefix_adopt(&m->parked, &m->park_table, &m->prefix, b);
    s->counters.n_parked++;
}

bool sched_evict_block(sched *s, sched_model *m) {
    uint32_t b = prefix_oldest(&m->prefix);
    if (b == BLOCK_NONE) return false;
    if (m->parks) park(s, m, b);
    return prefix_evict(&m->prefix);
}

/* ---- and back ---- */

/* A cached block of any model goes, those of this one first. */
static bool evict_any(sched *s, sched_model *m) {
    if (sched_evict_block(s, m)) return true;
    for (uint32_t i = 0; i < s->n_models; i++)
        if (s->models[i].open && &s->models[i] != m && sched_evict_block(s, &s->models[i]))
            return true;
    return false;
}

/* A block for what comes back; cached ones go for it. */
static bool take_place(sched *s, sched_model *m, seq *q) {
    sched_reserve_for(s, q);
    if (sched_tenant_is_full(s, q, 1)) return false;
    while (!kv_append(&m->kv, &q->table))
        if (!evict_any(s, m)) return false;
    return true;
}

uint32_t sched_unpark(sched *s, seq *q, uint32_t n) {
    sched_model *m = seq_model(s, q);
    const uint64_t *scope = q->req->cache_scope;
    uint32_t T = m->kv.layout.block_tokens, done = 0;
    if (!m->parks || !q->cacheable || m->parked.n_published == 0 || q->n_planned != 0 ||
        q->n_computed != q->n_published * T || q->table.n_blocks != q->n_published)
        return 0;
    if (q->n_published == 0) q->name = prefix_root(&m->prefix, scope);
    for (; done < n; done++) {
        uint32_t depth = q->n_published;
        const tok_id *tokens = seq_tokens(q) + (size_t)depth * T;
        prefix_name name = prefix_extend(&m->prefix, q->name, tokens);
        if (prefix_lookup(&m->parked, name, scope, depth, tokens) == BLOCK_NONE ||
            !take_place(s, m, q))
            break;
        uint32_t b = prefix_lookup(&m->parked, name, scope, depth, tokens);
        if (b == BLOCK_NONE) { // it went for what was parked to make the place
            kv_block_free(&m->kv, kv_drop_last(&m->kv, &q->table, 0));
            break;
        }
        move_block(s, m, slots_of(&m->parked_kv, b), slots_of(&m->kv, q->table.blocks[depth]),
                   false);
        prefix_touch(&m->parked, b);
        prefix_publish(&m->prefix, &q->table, depth, name, scope, tokens);
        q->name = name;
        q->n_published++;
        q->n_computed += T;
        q->n_unparked += T;
        s->counters.n_unparked++;
    }
    return done;
}
