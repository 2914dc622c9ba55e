/* sched_disk.c - cached blocks that are written to a disk, and read back.
 *
 *     device, host memory  --their page is needed-->  put_begin  ...  a file
 *     a file  ...  ask  --later plans-->  host memory, or the device's page
 *
 * A sequence with its next blocks on the disk waits for them, without rows, as long as computing
 * them is expected to take, and then computes.  Other sequences do not wait: the disk works beside
 * the steps.  Blocks are requested some at a time, in their order.
 *
 *     requested   until_us: end of the wait of the sequence that asked, or joined; or the last look
 *     dropped     when it is used; when the sequence that asked leaves, and no other joined;
 *                 READ_KEEP_US behind until_us
 *
 * So no block is dropped while a sequence waits for it, and an unused one is kept only briefly. */
#include <string.h>

#include "sched_state.h"

enum {
    DISK_BYTES_PER_US = 500, // assumed before any read
    DISK_OPEN_US = 100,      // to find a file
    AHEAD_BLOCKS = 16,       // requested at once
    UNKNOWN_US = 20000,      // to compute a block, while nothing was measured
    WAIT_US_MIN = 2000,
    READ_KEEP_US = 1000000 // a block stays so long after the last wait or look
};
#define GIVEN_UP UINT64_MAX // seq.disk_until_us: it waited in vain

void sched_set_disk(sched *s, const kv_disk_ops *ops, kv_disk *disk, bool one_memory,
                    sched_slot *slot, void (*wake)(void *ctx), void *ctx) {
    s->disk_ops = ops;
    s->disk = disk;
    s->one_memory = one_memory;
    s->slot = slot;
    s->disk_wake = wake;
    s->disk_ctx = ctx;
    s->disk_due_us = UINT64_MAX;
}

bool sched_disk_key(const sched *s, const sched_model_spec *spec, uint64_t out[2]) {
    if (s->disk_ops == NULL || (spec->content[0] == 0 && spec->content[1] == 0)) return false;
    s->disk_ops->key(s->disk, spec->content, out);
    return true;
}

bool sched_has_disk(const sched *s, const sched_model *m) {
    return s->disk_ops != NULL && (m->spec.content[0] != 0 || m->spec.content[1] != 0);
}

static kv_disk_block block_of(const sched_model *m, prefix_name name, const uint64_t scope[2],
                              uint32_t depth, const tok_id *tokens) {
    kv_disk_block b = {.depth = depth, .tokens = tokens, .layout = &m->kv.layout};
    memcpy(b.name, name.h, sizeof b.name);
    memcpy(b.model, m->spec.content, sizeof b.model);
    memcpy(b.scope, scope, sizeof b.scope);
    return b;
}

/* ---- time ---- */

static uint64_t read_us(const sched_model *m) {
    const kv_layout *l = &m->kv.layout;
    return m->read.us != 0 ? m->read.us
                           : l->slot_bytes * l->n_groups / DISK_BYTES_PER_US + DISK_OPEN_US;
}

/* Without a measurement, as after a start, or with an old one, reading is tried to measure it. */
static bool pays(const sched *s, const sched_model *m, uint32_t depth) {
    uint64_t us = sched_compute_us(m, depth);
    return us == 0 || sched_is_old(&m->read, s->clock_us) || read_us(m) < us;
}

/* ---- writing ---- */

/* False: the disk does not take it now. */
static bool put(sched *s, sched_model *m, const prefix *p, uint32_t b) {
    const prefix_entry *e = &p->entries[b];
    const kv_layout *l = &m->kv.layout;
    kv_disk_block about = block_of(m, e->name, e->scope, e->depth, prefix_tokens(p, b));
    unsigned char *to;
    void *begun = s->disk_ops->put_begin(s->disk, &about, &to);
    if (begun == NULL) return false;
    const int32_t *slots = p->kv->slots + (size_t)b * l->n_groups;
    for (uint32_t g = 0; g < l->n_groups; g++, to += l->slot_bytes)
        memcpy(to, s->slot(s->disk_ctx, m->kv.owner, slots[g]), l->slot_bytes);
    s->disk_ops->put_end(s->disk, begun);
    s->counters.n_stored++;
    return true;
}

void sched_store(sched *s, sched_model *m, const prefix *p, uint32_t b) {
    if (!sched_has_disk(s, m) || (p == &m->prefix && !s->one_memory)) return;
    if (pays(s, m, p->entries[b].depth)) put(s, m, p, b);
}

static void drop_read(sched *s, sched_read *r) {
    s->disk_ops->give_back(s->disk, r->ticket);
    *r = (sched_read){.used = false};
    s->n_reads--;
}

/* Newest first: the beginnings of chains are newer than their ends.  A block that does not enter
 * the queue then is there already, or another device took the room. */
static void save_cache(sched *s, sched_model *m, const prefix *p, uint64_t until_us) {
    for (const list_node *node = p->lru.prev; node != &p->lru; node = node->prev) {
        uint32_t b = (uint32_t)(LIST_ENTRY(node, prefix_entry, lru) - p->entries);
        if (!pays(s, m, p->entries[b].depth)) continue;
        if (!s->disk_ops->wait_room(s->disk, &m->kv.layout, until_us)) return;
        put(s, m, p, b);
    }
}

void sched_save(sched *s, uint64_t until_us) {
    for (uint32_t i = 0; s->disk_ops != NULL && i < s->n_models; i++) {
        sched_model *m = &s->models[i];
        if (!m->open || !sched_has_disk(s, m)) continue;
        if (s->one_memory) save_cache(s, m, &m->prefix, until_us);
        if (m->swaps) save_cache(s, m, &m->swapped, until_us);
    }
    for (uint32_t i = 0; i < SCHED_READS_MAX; i++)
        if (s->reads[i].used) drop_read(s, &s->reads[i]);
    s->disk_ops = NULL;
}

/* ---- reading ---- */

static sched_read *find_read(sched *s, uint32_t model_idx, prefix_name name) {
    for (uint32_t i = 0; i < SCHED_READS_MAX; i++) {
        sched_read *r = &s->reads[i];
        if (r->used && r->model_idx == model_idx && r->name.h[0] == name.h[0] &&
            r->name.h[1] == name.h[1])
            return r;
    }
    return NULL;
}

void sched_forget_reads(sched *s, uint32_t model_idx) {
    for (uint32_t i = 0; i < SCHED_READS_MAX; i++)
        if (s->reads[i].used && s->reads[i].model_idx == model_idx) drop_read(s, &s->reads[i]);
}

void sched_leave_disk(sched *s, const seq *q) {
    for (uint32_t i = 0; s->n_reads > 0 && i < SCHED_READS_MAX; i++)
        if (s->reads[i].used && s->reads[i].id == q->req->id) drop_read(s, &s->reads[i]);
}

void sched_drop_reads(sched *s, uint64_t now_us) {
    s->disk_due_us = UINT64_MAX;
    for (uint32_t i = 0; s->n_reads > 0 && i < SCHED_READS_MAX; i++) {
        sched_read *r = &s->reads[i];
        if (!r->used) continue;
        uint64_t goes_us = r->until_us + READ_KEEP_US;
        if (now_us >= goes_us)
            drop_read(s, r);
        else if (goes_us < s->disk_due_us)
            s->disk_due_us = goes_us;
    }
}

static sched_read *take_read(sched *s) {
    for (uint32_t i = 0; i < SCHED_READS_MAX; i++)
        if (!s->reads[i].used) return &s->reads[i];
    return NULL;
}

/* q looks at r: r and the blocks requested for q stay while q waits, and READ_KEEP_US more. */
static void keep_reads(sched *s, const seq *q, sched_read *r, uint64_t now_us) {
    bool waits = q->disk_until_us != GIVEN_UP && q->disk_until_us > now_us;
    uint64_t until_us = waits ? q->disk_until_us : now_us, id = q->req->id;
    if (r->id != id) r->id = 0;
    for (uint32_t i = 0; i < SCHED_READS_MAX; i++) {
        sched_read *other = &s->reads[i];
        if (other->used && (other == r || other->id == id) && other->until_us < until_us)
            other->until_us = until_us;
    }
}

/* Requests q's next blocks, as many as are on the disk one after the other.  q waits for as long as
 * they are worth; requesting one of them again does not prolong the wait. */
static void ask_ahead(sched *s, seq *q, uint32_t n_max, uint64_t now_us) {
    sched_model *m = seq_model(s, q);
    const uint64_t *scope = q->req->cache_scope;
    uint32_t T = m->kv.layout.block_tokens, n_asked = 0;
    prefix_name name = q->name;
    uint64_t worth_us = 0;
    bool again = q->disk_until_us != 0 && q->n_published < q->n_disk_asked;
    if (again && now_us >= q->disk_until_us) return;
    for (uint32_t i = 0; i < u32_min(n_max, AHEAD_BLOCKS); i++) {
        uint32_t depth = q->n_published + i;
        const tok_id *tokens = seq_tokens(q) + (size_t)depth * T;
        name = prefix_extend(&m->prefix, name, tokens);
        if (find_read(s, m->kv.owner, name) != NULL) continue; // requested already
        if (!pays(s, m, depth) || !s->disk_ops->has(s->disk, name.h)) break;
        sched_read *r = take_read(s);
        if (r == NULL) break;
        kv_disk_block b = block_of(m, name, scope, depth, tokens);
        uint32_t ticket = s->disk_ops->ask(s->disk, &b, s->disk_wake, s->disk_ctx);
        if (ticket == KV_DISK_NO_TICKET) break;
        *r = (sched_read){.used = true,
                          .ticket = ticket,
                          .model_idx = m->kv.owner,
                          .name = name,
                          .id = q->req->id,
                          .asked_us = now_us,
                          .until_us = now_us};
        s->n_reads++;
        n_asked = i + 1;
        uint64_t us = sched_compute_us(m, depth);
        worth_us += us != 0 ? us : UNKNOWN_US;
    }
    if (n_asked == 0 || again) return;
    q->disk_until_us = now_us + (worth_us > WAIT_US_MIN ? worth_us : WAIT_US_MIN);
    q->n_disk_asked = q->n_published + n_asked;
}

/* False: its wait is over without the block, and it computes. */
static bool may_wait(seq *q, const sched_read *r, uint64_t now_us, sched_took *took) {
    if (q->disk_until_us == GIVEN_UP) return false;
    if (q->disk_until_us == 0) { // it joins another's wait, with a bound of its own
        q->disk_until_us = now_us + WAIT_US_MIN;
        q->n_disk_asked = q->n_published + 1;
    }
    if (now_us < q->disk_until_us) return true;
    sched_note_took(took, now_us - r->asked_us, now_us); // at least
    q->disk_until_us = GIVEN_UP;
    return false;
}

const unsigned char *sched_fetch(sched *s, seq *q, prefix_name name, uint32_t n_max,
                                 uint64_t now_us) {
    sched_model *m = seq_model(s, q);
    const unsigned char *from = NULL;
    uint64_t us = 0;
    sched_read *r = find_read(s, m->kv.owner, name);
    if (r == NULL && q->disk_until_us == GIVEN_UP) return NULL;
    if (r == NULL) {
        ask_ahead(s, q, n_max, now_us);
        r = find_read(s, m->kv.owner, name);
        if (r == NULL) return NULL;
    }
    switch (s->disk_ops->look(s->disk, r->ticket, &from, &us)) {
    case KV_DISK_READY:
        if (!r->noted) sched_note_took(&m->read, us, now_us);
        r->noted = true;
        keep_reads(s, q, r, now_us);
        return from;
    case KV_DISK_GONE:
        drop_read(s, r);
        return NULL;
    default:
        if (!may_wait(q, r, now_us, &m->read)) return NULL;
        keep_reads(s, q, r, now_us);
        q->waits_for_disk = true;
        if (q->disk_until_us < s->disk_due_us) s->disk_due_us = q->disk_until_us;
        return NULL;
    }
}

void sched_fetched(sched *s, uint32_t model_idx, prefix_name name, bool used) {
    sched_read *r = find_read(s, model_idx, name);
    if (r != NULL) drop_read(s, r);
    s->counters.n_fetched += used;
}
