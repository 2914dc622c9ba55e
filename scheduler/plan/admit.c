/* admit.c - which waiting sequences begin.
 *
 *     plan_admit_first    those that take slots or pages of less urgent ones; then the first of
 * each class below its floor plan_fill           the others, in order with the prompts that run
 * (rows.c)
 *
 * A sequence begins when a batch slot is free for its class, and when its known tokens and a small
 * look-ahead fit beside what the running ones still need, after it took pages where it may.
 *
 * A waiting sequence that begins like a prompt that is being computed is held back until those
 * blocks are there.
 * Thread: engine. */
#include <string.h>

#include "plan.h"

/* Tokens beyond the known ones that an admission keeps room for.  With max_tokens most of the pool
 * would be idle, because most answers end early; too small a look-ahead would preempt at once. */
enum { LOOK_AHEAD_TOKENS = 32 };
enum { CLAIMS_TRIED = 8 }; // claimants of one model in one plan, behind a request without pages

/* ---- candidates ---- */

/* The sequence that q was preempted for could still begin. */
static bool stays_away(const sched *s, const seq *q) {
    const seq *to = q->gave_to;
    return to != NULL && s->clock_us < q->gave_until_us && to->state == SEQ_WAITING &&
           to->arrival_no == q->gave_to_no && !to->paused && s->models[to->model_idx].hot;
}

/* With n_steps > 0 an unfinished step of an earlier run still reads its block table. */
bool sched_can_start(const sched *s, const seq *q) {
    return !q->paused && !stays_away(s, q) && !sched_leaves_room(s, q) && q->n_steps == 0 &&
           q->refused_plan != s->plan_no && q->held_plan != s->plan_no &&
           !s->models[q->model_idx].closed;
}

/* At least one token is computed, to get logits; so are rows with log-probabilities that are still
 * to be reported. */
uint32_t plan_blocks_findable(const seq *q, const kv_layout *l) {
    if (!q->cacheable) return 0;
    uint32_t n = q->n_tokens - 1;
    if (q->scoring) n = u32_min(n, u32_max(q->n_scored, 1) - 1);
    return n / l->block_tokens;
}

/* Is running `r` about to compute a block that waiting `q` could use?  False when r scores its
 * prompt: it gets few rows per step, and q alone may be faster. */
static bool computes_for(const plan *p, const seq *r, const seq *q) {
    const kv_layout *l = &p->m->kv.layout;
    uint32_t n_blocks = r->n_published + 1; // up to the end of the one that r computes
    size_t n_tokens = (size_t)n_blocks * l->block_tokens;
    return !r->paused && !r->displaced && r->cacheable && !r->scoring &&
           r->req->prio <= q->req->prio &&
           (r->req->prio < q->req->prio || r->req->rank <= q->req->rank) &&
           n_blocks <= plan_blocks_findable(q, l) && n_tokens <= r->n_tokens &&
           memcmp(r->req->cache_scope, q->req->cache_scope, sizeof r->req->cache_scope) == 0 &&
           memcmp(seq_tokens(r), seq_tokens(q), n_tokens * sizeof(tok_id)) == 0;
}

/* Hold waiting `q` back while another sequence computes blocks that q can use.  This ends: the
 * other is planned before q would be, and no longer counts once it has those blocks or has left. */
static bool hold(const plan *p, seq *q) {
    LIST_EACH(node, &p->m->running) {
        if (!computes_for(p, LIST_ENTRY(node, seq, mine), q)) continue;
        q->held_plan = p->s->plan_no;
        return true;
    }
    return false;
}

/* `prio`: only of this class (GEN_CLASSES: of all); `claimants`: only sequences that may take
 * memory for their guarantee. */
static seq *first_waiting(const plan *p, uint32_t prio, bool claimants) {
    seq *first = NULL;
    LIST_EACH(node, &p->m->waiting) {
        seq *q = LIST_ENTRY(node, seq, mine);
        if (!sched_can_start(p->s, q) || !plan_may_join(p, q) || sched_tenant_stopped(p->s, q) ||
            plan_yields(p, q) || (prio != GEN_CLASSES && q->req->prio != prio) ||
            (claimants && !plan_claims(p->s, q)))
            continue;
        if ((first == NULL || order_before(&q->key, &first->key)) && !hold(p, q)) first = q;
    }
    return first;
}

/* ---- memory ---- */

static uint32_t blocks_reserved(const seq *q, const kv_layout *l) {
    uint32_t n = q->n_tokens + q->n_pending + LOOK_AHEAD_TOKENS;
    return kv_blocks_of(l, u32_min(n, seq_stored_max(q)));
}

uint32_t sched_blocks_to_start(const sched *s, const seq *q) {
    return blocks_reserved(q, &s->models[q->model_idx].kv.layout);
}

uint32_t sched_pages_to_start(const sched *s, const seq *q) {
    const kv_layout *l = &s->models[q->model_idx].kv.layout;
    uint64_t slots = (uint64_t)blocks_reserved(q, l) * l->n_groups;
    return (uint32_t)((slots + l->slots_per_page - 1) / l->slots_per_page);
}

/* Slots of its own model that come free when `r` is preempted. */
static uint64_t slots_to_gain(const sched *s, const seq *r) {
    return (uint64_t)r->table.n_blocks * s->models[r->model_idx].kv.layout.n_groups;
}

uint64_t sched_own_blocks(const sched *s, const seq *r) {
    const kv *k = &s->models[r->model_idx].kv;
    uint64_t n = 0;
    for (uint32_t i = 0; i < r->table.n_blocks; i++) n += k->blocks[r->table.blocks[i]].refs == 1;
    return n;
}

/* Pages of another model that come free when all sequences go that `q` may preempt: if those are
 * all that run, every page with blocks in use; else only the pages that are surely whole. */
static uint64_t pages_to_gain(const sched *s, const sched_model *m, const seq *q, bool claims) {
    bool all = true, starved = s->models[q->model_idx].starved_plan == s->plan_no;
    uint64_t whole = 0;
    LIST_EACH(node, &m->running) {
        const seq *r = LIST_ENTRY(node, seq, mine);
        uint64_t slots =
            starved ? sched_own_blocks(s, r) * m->kv.layout.n_groups : slots_to_gain(s, r);
        if (plan_may_take(s, q, claims, r))
            whole += slots / m->kv.layout.slots_per_page;
        else
            all = false;
    }
    return all ? s->pool->owners[m->kv.owner].held[PAGE_KV] - m->kv.n_idle_pages : whole;
}

/* Bytes of its tenant that come free when all of its sequences go that `q` may preempt: of blocks
 * that no other sequence uses. */
static uint64_t tenant_bytes_to_gain(const sched *s, const seq *q) {
    bool claims = plan_claims(s, q);
    uint64_t n = 0;
    LIST_EACH(node, &s->running) {
        const seq *r = LIST_ENTRY(node, seq, link);
        if (r->req->tenant_idx != q->req->tenant_idx || !plan_may_take(s, q, claims, r)) continue;
        const kv_layout *l = &s->models[r->model_idx].kv.layout;
        n += sched_own_blocks(s, r) * l->n_groups * l->slot_bytes;
    }
    return n;
}

/* Do its known tokens and the look-ahead fit beside what running sequences have reserved?  `after`:
 * would they, once every sequence that q may preempt is preempted? */
static bool fits(const plan *p, const seq *q, bool after, bool *tenant_full) {
    const sched *s = p->s;
    const kv *k = &p->m->kv;
    const kv_layout *l = &k->layout;
    uint32_t n_uncounted, n_tenant = 0;
    bool claims = after && plan_claims(s, q);
    sched_reserve_for(p->s, q);
    uint32_t n_found = prefix_find(&p->m->prefix, q->req->cache_scope, seq_tokens(q),
                                   plan_blocks_findable(q, l), &n_uncounted);
    uint64_t pages = pool_n_takeable(s->pool, k->owner);
    uint64_t slots =
        k->n_free_slots + (uint64_t)(p->m->prefix.n_evictable - n_uncounted) * l->n_groups;
    for (uint32_t i = 0; i < s->n_models; i++)
        if (s->models[i].open && &s->models[i] != p->m) pages += s->models[i].kv.n_idle_pages;
    uint64_t blocks = blocks_reserved(q, l) - n_found;
    for (uint32_t i = 0; i < s->n_models && after; i++)
        if (s->models[i].open && &s->models[i] != p->m)
            pages += pages_to_gain(s, &s->models[i], q, claims);
    LIST_EACH(node, &p->m->running) {
        const seq *r = LIST_ENTRY(node, seq, mine);
        if (after && plan_may_take(s, q, claims, r)) {
            slots += slots_to_gain(s, r);
            continue;
        }
        if (r->paused) continue;
        uint32_t reserved = blocks_reserved(r, l);
        uint32_t missing = reserved > r->table.n_blocks ? reserved - r->table.n_blocks : 0;
        blocks += missing;
        if (r->req->tenant_idx == q->req->tenant_idx) n_tenant += missing;
    }
    /* Pages of others are of no use above the model's own ceiling. */
    uint32_t room = sched_model_room(s, q);
    slots += (pages < room ? pages : room) * l->slots_per_page;
    uint64_t n_bytes = (uint64_t)(n_tenant + blocks_reserved(q, l) - n_found + n_uncounted) *
                       l->n_groups * l->slot_bytes;
    uint64_t tenant_room = sched_tenant_room(s, q);
    *tenant_full =
        n_bytes > tenant_room && (!after || n_bytes - tenant_room > tenant_bytes_to_gain(s, q));
    return !*tenant_full && blocks * l->n_groups <= slots;
}

/* WAITING -> RUNNING, with the prefix blocks that are still cached. */
static void start(plan *p, seq *q) {
    sched *s = p->s;
    const kv_layout *l = &p->m->kv.layout;
    list_remove(&q->link);
    s->n_waiting--;
    q->state = SEQ_RUNNING;
    list_remove(&q->mine);
    list_push_back(&s->running, &q->link);
    list_push_back(&p->m->running, &q->mine);
    s->n_running++;
    sched_note_runs(s, q, true);
    p->m->n_running++;
    p->m->n_started++;
    q->n_published = prefix_take(&p->m->prefix, q->req->cache_scope, seq_tokens(q),
                                 plan_blocks_findable(q, l), &q->table, &q->name);
    q->n_computed = q->n_published * l->block_tokens;
    q->n_ahead = 0;
    q->disk_until_us = 0;
    p->n_active[q->req->prio]++;
    if (q->n_preempted == 0) {
        q->n_cached = q->n_computed;
        s->counters.prefix_queries_tokens += q->req->n_prompt;
        s->counters.prefix_hits_tokens += q->n_computed;
    }
}

typedef enum admission {
    ADMITTED,
    ADMIT_NO_BATCH_SLOT,
    ADMIT_NO_PAGES,
    ADMIT_OWN_CEILING // its tenant may have no more: other tenants are not affected
} admission;

/* Preemption freed too little after all: the model's wait for pages of equals begins anew. */
static admission in_vain(const plan *p, bool full) {
    if (p->m->starved_plan == p->s->plan_no) p->m->short_since_us = p->now_us;
    return full ? ADMIT_OWN_CEILING : ADMIT_NO_PAGES;
}

/* Running sequences of this class and above. */
static uint32_t n_active_to(const plan *p, uint32_t prio) {
    uint32_t n = 0;
    for (uint32_t c = 0; c <= prio; c++) n += p->n_active[c];
    return n;
}

static bool is_below_floor(const plan *p, uint32_t prio) {
    return (p->s->below_floor >> prio & 1) != 0 && p->n_active[prio] < plan_floor_max(p);
}

static bool has_batch_slot(const plan *p, const seq *q) {
    return n_active_to(p, q->req->prio) < p->s->limits.running_max ||
           is_below_floor(p, q->req->prio);
}

/* Take pages, of others if q may, and only if that is enough. */
static admission admit(plan *p, seq *q) {
    if (!has_batch_slot(p, q)) return ADMIT_NO_BATCH_SLOT;
    uint64_t short_us = u64_max(q->idle_since_us, p->m->short_since_us);
    bool starved = p->m->n_running == 0 && plan_is_short(p, p->m) &&
                   p->s->limits.kv_slice_us != 0 &&
                   p->now_us >= short_us + p->s->limits.kv_slice_us;
    p->m->starved_plan = starved ? p->s->plan_no : 0;
    bool full; // its tenant is at its ceiling: no other tenant can help
    bool fits_now = fits(p, q, false, &full);
    while (!fits_now && !fits(p, q, true, &full)) {
        if (full) return ADMIT_OWN_CEILING;
        if (!plan_reclaim_weights(p, p->m, NULL) && !plan_reclaim_weights(p, p->m, q))
            return ADMIT_NO_PAGES;
    }
    while (!fits_now && !fits(p, q, false, &full))
        if ((full || !plan_reclaim_weights(p, p->m, NULL)) && !plan_preempt_for_pages(p, q, full))
            return in_vain(p, full);
    start(p, q);
    return ADMITTED;
}

/* ---- the window ---- */

seq *plan_window_next(const plan *p) {
    const window *w = &p->window;
    if (w->closed || (w->claimants_only && !sched_has_guarantees(p->s))) return NULL;
    return first_waiting(p, GEN_CLASSES, w->claimants_only);
}

bool plan_window_try(plan *p, seq *q) {
    window *w = &p->window;
    admission a = admit(p, q);
    if (a == ADMITTED) return true;
    q->refused_plan = p->s->plan_no;
    if (a == ADMIT_OWN_CEILING) {
        sched_tenant_stop(p->s, q);
        return false;
    }
    w->n_refused += w->claimants_only;
    if (!w->claimants_only) w->shut_by = q;
    w->claimants_only = true;
    w->closed = a == ADMIT_NO_BATCH_SLOT || w->n_refused >= CLAIMS_TRIED;
    return false;
}

/* ---- before the rows ---- */

/* May it take pages of a running sequence? */
static bool outranks_one(const plan *p, const seq *w) {
    bool claims = plan_claims(p->s, w);
    LIST_EACH(node, &p->s->running)
        if (plan_may_take(p->s, w, claims, LIST_ENTRY(node, seq, link))) return true;
    return false;
}

/* The batch has a slot and the pool has pages for w, so plan_fill admits w in order.  Admitted
 * before that, new requests would take each free slot from requests that waited longer, as long as
 * any running sequence, of any model, is less urgent than they are. */
static bool needs_no_victim(const plan *p, const seq *w) {
    bool full;
    return n_active_to(p, GEN_CLASSES - 1) < p->s->limits.running_max && fits(p, w, false, &full);
}

/* A plan cannot preempt sequences that have rows in it.  Afterwards all waiting requests are tried
 * again, also the one refused first. */
static void admit_urgent(plan *p) {
    seq *w;
    p->window = (window){0};
    while ((w = plan_window_next(p)) != NULL && outranks_one(p, w) && !needs_no_victim(p, w))
        plan_window_try(p, w);
    if (p->window.shut_by != NULL) p->window.shut_by->refused_plan = 0;
    p->window = (window){0};
}

void plan_admit_first(plan *p) {
    admit_urgent(p);
    for (uint32_t prio = 0; prio < GEN_CLASSES; prio++) {
        seq *w = is_below_floor(p, prio) ? first_waiting(p, prio, false) : NULL;
        if (w != NULL) plan_window_try(p, w);
    }
}
