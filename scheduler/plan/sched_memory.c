/* sched_memory.c - guarantees and ceilings of memory for tenants, beside those of models (pool.h).
 *
 * KV is charged to the model, in pages, and to the tenant, in bytes of the blocks that its
 * sequences use.  A block that several of them share counts once; a block that is only cached
 * counts for no tenant.  (Sequences of two tenants never share a block: the scopes of the prefix
 * cache see to it.)  Weights are charged to the model alone.
 *
 *     below min    its pages are kept free, and sequences above their own min must give them back,
 *                  whatever their class
 *     above max    the newest of its sequences waits until others of it have ended, here or on
 *                  another device
 *     in between   lent
 *
 * A request that could never be finished is not admitted.  When limits change later, requests that
 * cannot be finished any more end at once: they would wait for good, and those behind them, too. */
#include "sched_state.h"

enum { STOPPED_PLANS = 8 }; // then its first waiting sequence is looked at again
enum { ANY_CLASS = -1 };

static uint64_t unfilled(const sched_tenant *t) {
    return t->min_bytes > t->used_bytes ? t->min_bytes - t->used_bytes : 0;
}

/* -- preemption when a ceiling is lowered -- */

typedef bool gives(const sched *s, const seq *v, uint32_t idx);

/* Of the running sequences of a lower class than `prio` with blocks that `may` accepts: the least
 * deserving, or NULL.  ANY_CLASS: of all. */
static seq *least_deserving(const sched *s, gives *may, uint32_t idx, int prio) {
    seq *least = NULL;
    LIST_EACH(node, &s->running) {
        seq *v = LIST_ENTRY(node, seq, link);
        if (v->table.n_blocks > 0 && (int)v->req->prio > prio && may(s, v, idx) &&
            (least == NULL || sched_deserves_less(v, least)))
            least = v;
    }
    return least;
}

static bool is_of_tenant(const sched *s, const seq *v, uint32_t tenant_idx) {
    (void)s;
    return v->req->tenant_idx == tenant_idx;
}

static bool is_of_model(const sched *s, const seq *v, uint32_t model_idx) {
    (void)s;
    return v->model_idx == model_idx;
}

/* Work on other devices needs the tenant's memory: some of its sequences wait until it is free. */
static void give_back(sched *s, uint32_t tenant_idx) {
    const sched_tenant *t = &s->tenants[tenant_idx];
    seq *v;
    while (t->used_bytes > t->here_bytes &&
           (v = least_deserving(s, is_of_tenant, tenant_idx, ANY_CLASS)) != NULL)
        sched_preempt_seq(s, v);
}

inferd_status sched_set_tenant(sched *s, uint32_t tenant_idx, const tenant_policy *policy,
                               uint64_t now_us, inferd_err *err) {
    if (tenant_idx >= s->n_tenants) {
        uint32_t n = u32_max(tenant_idx + 1, 2 * s->n_tenants);
        sched_tenant *grown = realloc(s->tenants, n * sizeof *grown);
        if (grown == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for %u tenants", n);
        for (uint32_t i = s->n_tenants; i < n; i++) {
            grown[i] = (sched_tenant){.max_bytes = UINT64_MAX, .here_bytes = UINT64_MAX};
            share_init(&grown[i].share, SHARE_BESTEFFORT, 0, 1, sched_share_clock(s, now_us));
        }
        s->tenants = grown;
        uint32_t *changed = realloc(s->changed_tenants, n * sizeof *changed);
        if (changed == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for %u tenants", n);
        s->changed_tenants = changed;
        s->n_tenants = n;
    }
    sched_tenant *t = &s->tenants[tenant_idx];
    t->stopped_plan = 0;
    s->n_paused_tenants -= t->share.weight == 0;
    s->n_paused_tenants += policy->weight == 0;
    sched_set_share(s, &t->share, &policy->share, policy->weight, now_us);
    s->unfilled_bytes -= unfilled(t);
    s->min_bytes += policy->min_bytes - t->min_bytes;
    uint64_t max = policy->max_bytes != 0 ? policy->max_bytes : UINT64_MAX;
    s->limits_changed =
        s->limits_changed || t->min_bytes != policy->min_bytes || t->max_bytes != max;
    t->min_bytes = policy->min_bytes;
    t->max_bytes = max;
    s->unfilled_bytes += unfilled(t);
    t->here_bytes = policy->here_bytes != 0 && policy->here_bytes < max ? policy->here_bytes : max;
    if (policy->here_bytes != 0) give_back(s, tenant_idx);
    return INFERD_OK;
}

/* Blocks of tenants without a policy are not counted; with one they count when used again. */
void sched_on_live(void *ctx, uint32_t tenant, bool live) {
    sched_model *m = ctx;
    sched *s = m->s;
    if (tenant >= s->n_tenants) return;
    sched_tenant *t = &s->tenants[tenant];
    uint64_t n_bytes = sched_block_bytes(m);
    s->unfilled_bytes -= unfilled(t);
    if (live)
        t->used_bytes += n_bytes;
    else
        t->used_bytes -= n_bytes < t->used_bytes ? n_bytes : t->used_bytes;
    if (!live) t->stopped_plan = 0;
    s->unfilled_bytes += unfilled(t);
    sched_note_tenant(s, tenant);
}

uint32_t sched_next_tenant(sched *s, sched_tenant_use *out) {
    if (s->n_changed_tenants == 0) return SCHED_NO_TENANT;
    uint32_t i = s->changed_tenants[--s->n_changed_tenants];
    sched_tenant *t = &s->tenants[i];
    t->changed = false;
    *out = (sched_tenant_use){t->used_bytes, t->n_running, t->n_seqs - t->n_running};
    return i;
}

uint32_t sched_tenants_min_pages(const sched *s) {
    return sched_pages_of(s, s->min_bytes);
}

void sched_set_page_bytes(sched *s, uint64_t page_bytes) {
    s->page_bytes = page_bytes;
}

void sched_reserve(sched *s) {
    sched_reserve_for(s, NULL);
}

void sched_reserve_for(sched *s, const seq *q) {
    const sched_tenant *t = q != NULL ? sched_tenant_of(s, q) : NULL;
    uint64_t others = s->unfilled_bytes - (t != NULL ? unfilled(t) : 0);
    s->pool->n_reserved = sched_pages_of(s, others);
}

uint64_t sched_tenant_room(const sched *s, const seq *q) {
    const sched_tenant *t = sched_tenant_of(s, q);
    if (t == NULL || t->here_bytes == UINT64_MAX) return UINT64_MAX;
    return t->here_bytes > t->used_bytes ? t->here_bytes - t->used_bytes : 0;
}

bool sched_tenant_is_full(const sched *s, const seq *q, uint32_t n_blocks) {
    return n_blocks * sched_block_bytes(&s->models[q->model_idx]) > sched_tenant_room(s, q);
}

void sched_tenant_stop(sched *s, const seq *q) {
    if (q->req->tenant_idx < s->n_tenants) s->tenants[q->req->tenant_idx].stopped_plan = s->plan_no;
}

void sched_tenant_go_on(sched *s, uint32_t tenant_idx) {
    if (tenant_idx < s->n_tenants) s->tenants[tenant_idx].stopped_plan = 0;
}

bool sched_tenant_stopped(const sched *s, const seq *q) {
    const sched_tenant *t = sched_tenant_of(s, q);
    return t != NULL && t->stopped_plan != 0 && s->plan_no - t->stopped_plan < STOPPED_PLANS;
}

uint32_t sched_model_room(const sched *s, const seq *q) {
    const pool_owner *o = &s->pool->owners[s->models[q->model_idx].kv.owner];
    uint32_t held = pool_held(o);
    return held < o->max ? o->max - held : 0;
}

bool sched_model_is_full(const sched *s, const seq *q) {
    return sched_model_room(s, q) == 0;
}

bool sched_has_guarantees(const sched *s) {
    return s->min_bytes > 0 || s->pool->n_min > 0;
}

bool sched_may_claim(const sched *s, const seq *q) {
    const sched_tenant *t = sched_tenant_of(s, q);
    const sched_model *m = &s->models[q->model_idx];
    const pool_owner *o = &s->pool->owners[m->kv.owner];
    bool waits = q->state == SEQ_WAITING;
    uint64_t n_bytes = (waits ? sched_blocks_to_start(s, q) : 1) * sched_block_bytes(m);
    uint64_t n_pages = waits ? sched_pages_to_start(s, q) : 1;
    return (t != NULL && t->min_bytes > 0 && t->used_bytes + n_bytes <= t->min_bytes) ||
           pool_held(o) + n_pages <= o->min;
}

static bool tenant_is_secure(const sched *s, const seq *q) {
    const sched_tenant *t = sched_tenant_of(s, q);
    return t != NULL && t->min_bytes > 0 && t->used_bytes <= t->min_bytes;
}

static bool model_is_secure(const sched *s, const seq *q) {
    const pool_owner *o = &s->pool->owners[s->models[q->model_idx].kv.owner];
    return o->min > 0 && pool_held(o) <= o->min;
}

bool sched_is_secure(const sched *s, const seq *q) {
    return tenant_is_secure(s, q) || model_is_secure(s, q);
}

bool sched_is_secure_from(const sched *s, const seq *v, const seq *q) {
    return (v->req->tenant_idx != q->req->tenant_idx && tenant_is_secure(s, v)) ||
           (v->model_idx != q->model_idx && model_is_secure(s, v));
}

/* ---- taking lent pages back ---- */

/* Pages of a model above its guarantee, without those that only cached blocks keep. */
static uint32_t n_lent(const sched_model *m) {
    const pool_owner *o = &m->kv.pool->owners[m->kv.owner];
    uint64_t kept = (uint64_t)o->min + m->kv.n_idle_pages;
    return pool_held(o) > kept ? (uint32_t)(pool_held(o) - kept) : 0;
}

bool sched_may_have(sched *s, uint32_t model_idx, uint32_t n) {
    const pool *p = s->pool;
    const pool_owner *o = &p->owners[model_idx];
    sched_reserve(s);
    uint32_t own = pool_unfilled(o);
    uint64_t there = (uint64_t)pool_n_device_free(p) + p->n_in[PAGE_QUARANTINE];
    for (uint32_t i = 0; i < s->n_models; i++) {
        const pool_owner *other = &p->owners[i];
        uint32_t above = pool_held(other) > other->min ? pool_held(other) - other->min : 0;
        if (s->models[i].open) there += u32_min(s->models[i].kv.n_idle_pages, above);
    }
    return there >= (uint64_t)n + u32_max(p->unfilled - own, p->n_reserved);
}

/* v is of another model, which is above its guarantee, and so is v's tenant, or it has none. */
static bool is_lent_to(const sched *s, const seq *v, uint32_t model_idx) {
    return v->model_idx != model_idx && n_lent(&s->models[v->model_idx]) > 0 &&
           !tenant_is_secure(s, v);
}

bool sched_take_back(sched *s, uint32_t model_idx, uint32_t n) {
    while (!sched_may_have(s, model_idx, n)) {
        seq *v = least_deserving(s, is_lent_to, model_idx, ANY_CLASS);
        if (v == NULL) return false;
        sched_preempt_seq(s, v);
    }
    return true;
}

/* ---- pages of less urgent sequences ---- */

/* Pages that are surely whole, of blocks that no other sequence uses. */
static uint32_t own_pages(const sched *s, const seq *v) {
    const kv_layout *l = &s->models[v->model_idx].kv.layout;
    return (uint32_t)(sched_own_blocks(s, v) * l->n_groups / l->slots_per_page);
}

uint32_t sched_n_lower(const sched *s, uint32_t of_idx, uint32_t model_idx, gen_class prio) {
    const sched_model *m = &s->models[of_idx];
    uint32_t n = 0;
    bool all = true;
    if (!m->open || of_idx == model_idx || n_lent(m) == 0) return 0;
    LIST_EACH(node, &m->running) {
        const seq *v = LIST_ENTRY(node, seq, mine);
        if (v->req->prio > prio && is_lent_to(s, v, model_idx))
            n += own_pages(s, v);
        else
            all = false;
    }
    if (all) n = s->pool->owners[m->kv.owner].held[PAGE_KV] - m->kv.n_idle_pages;
    return u32_min(n, n_lent(m));
}

bool sched_preempt_lower(sched *s, uint32_t model_idx, gen_class prio) {
    seq *v = least_deserving(s, is_lent_to, model_idx, (int)prio);
    if (v != NULL) sched_preempt_seq(s, v);
    return v != NULL;
}

void sched_make_room(sched *s, gen_class prio) {
    s->room_class = prio;
}

bool sched_leaves_room(const sched *s, const seq *q) {
    return q->req->prio > s->room_class && !(sched_has_guarantees(s) && sched_may_claim(s, q));
}

void sched_trim_to_max(sched *s, sched_model *m) {
    const pool_owner *o = &s->pool->owners[m->kv.owner];
    while (pool_held(o) > o->max) {
        if (sched_evict_block(s, m)) continue;
        seq *v = least_deserving(s, is_of_model, (uint32_t)(m - s->models), ANY_CLASS);
        if (v == NULL || pool_held(o) - o->max <= m->kv.n_idle_pages) break; // steps free them
        sched_preempt_seq(s, v);
    }
    s->limits_changed |= pool_held(o) > o->max && m->kv.n_taken > 0;
}

void sched_model_pin(sched *s, uint32_t model_idx, uint32_t weights_of, uint32_t n_pages) {
    sched_model *m = &s->models[model_idx];
    m->weights_of = weights_of;
    m->pinned_pages = n_pages;
    s->limits_changed = true;
}

void sched_pool_shrank(sched *s) {
    s->limits_changed = true;
}
