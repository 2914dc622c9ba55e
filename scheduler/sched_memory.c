/* sched_memory.c - guarantees and ceilings of memory for tenants, beside those of models (pool.h).
 *
 * Keys and values are charged to the model, in pages, and to the tenant, in bytes of the blocks
 * that its sequences count on; a block that several of them share counts once, one that is only
 * cached counts for nobody.  (Sequences of two tenants never share a block: the prefix cache's
 * scopes see to it.)  Weights are charged to the model alone.
 *
 *     below min    its pages are kept free, and whoever has more than his own min must give them
 *                  back, of whatever class
 *     above max    the newest of its sequences waits until others of it have ended
 *     in between   lent */
#include "sched_state.h"

static uint64_t block_bytes(const sched_model *m) {
    return m->kv.layout.slot_bytes * m->kv.layout.n_groups;
}

static uint64_t unfilled(const sched_tenant *t) {
    return t->min_bytes > t->used_bytes ? t->min_bytes - t->used_bytes : 0;
}

inferd_status sched_set_tenant(sched *s, uint32_t tenant_idx, const tenant_policy *policy,
                               uint64_t now_us, inferd_err *err) {
    if (tenant_idx >= s->n_tenants) {
        uint32_t n = u32_max(tenant_idx + 1, 2 * s->n_tenants);
        sched_tenant *grown = realloc(s->tenants, n * sizeof *grown);
        if (grown == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for %u tenants", n);
        for (uint32_t i = s->n_tenants; i < n; i++) {
            grown[i] = (sched_tenant){.max_bytes = UINT64_MAX};
            share_init(&grown[i].share, SHARE_BESTEFFORT, 0, 1, now_us);
        }
        s->tenants = grown;
        s->n_tenants = n;
    }
    sched_tenant *t = &s->tenants[tenant_idx];
    share_set(&t->share, policy->share.policy, share_percent_each(&policy->share), policy->weight,
              now_us);
    s->unfilled_bytes -= unfilled(t);
    t->min_bytes = policy->min_bytes;
    t->max_bytes = policy->max_bytes != 0 ? policy->max_bytes : UINT64_MAX;
    s->unfilled_bytes += unfilled(t);
    return INFERD_OK;
}

/* Blocks of tenants that nobody described yet are in no ledger; they come into it as they are used
 * again. */
void sched_on_live(void *ctx, uint32_t tenant, bool live) {
    sched_model *m = ctx;
    sched *s = m->s;
    if (tenant >= s->n_tenants) return;
    sched_tenant *t = &s->tenants[tenant];
    uint64_t n_bytes = block_bytes(m);
    s->unfilled_bytes -= unfilled(t);
    if (live)
        t->used_bytes += n_bytes;
    else
        t->used_bytes -= n_bytes < t->used_bytes ? n_bytes : t->used_bytes;
    s->unfilled_bytes += unfilled(t);
}

static const sched_tenant *tenant_of(const sched *s, const seq *q) {
    return q->req->tenant_idx < s->n_tenants ? &s->tenants[q->req->tenant_idx] : NULL;
}

void sched_set_page_bytes(sched *s, uint64_t page_bytes) {
    s->page_bytes = page_bytes;
}

void sched_reserve(sched *s) {
    sched_reserve_for(s, NULL);
}

void sched_reserve_for(sched *s, const seq *q) {
    const sched_tenant *t = q != NULL ? tenant_of(s, q) : NULL;
    uint64_t others = s->unfilled_bytes - (t != NULL ? unfilled(t) : 0);
    s->pool->n_reserved =
        s->page_bytes == 0 ? 0 : (uint32_t)((others + s->page_bytes - 1) / s->page_bytes);
}

bool sched_tenant_is_full(const sched *s, const seq *q, uint32_t n_blocks) {
    const sched_tenant *t = tenant_of(s, q);
    if (t == NULL || t->max_bytes == UINT64_MAX) return false;
    return t->used_bytes + n_blocks * block_bytes(&s->models[q->model_idx]) > t->max_bytes;
}

bool sched_model_is_full(const sched *s, const seq *q) {
    const pool_owner *o = &s->pool->owners[s->models[q->model_idx].kv.owner];
    return o->held[PAGE_WEIGHT] + o->held[PAGE_KV] >= o->max;
}

bool sched_is_owed(const sched *s, const seq *q) {
    const sched_tenant *t = tenant_of(s, q);
    const pool_owner *o = &s->pool->owners[s->models[q->model_idx].kv.owner];
    return (t != NULL && t->used_bytes < t->min_bytes) ||
           o->held[PAGE_WEIGHT] + o->held[PAGE_KV] < o->min;
}

inferd_status sched_admit_tenant(const sched *s, const seq *q, inferd_err *err) {
    const sched_tenant *t = tenant_of(s, q);
    const sched_model *m = &s->models[q->model_idx];
    if (t == NULL || t->max_bytes == UINT64_MAX) return INFERD_OK;
    uint64_t needed = kv_blocks_of(&m->kv.layout, q->req->n_prompt) * block_bytes(m);
    if (q->req->max_tokens != GEN_NO_MAX)
        needed = kv_blocks_of(&m->kv.layout, seq_stored_max(q)) * block_bytes(m);
    if (needed <= t->max_bytes) return INFERD_OK;
    return inferd_fail(err, INFERD_EQUOTA,
                       "the request needs %llu KiB for keys and values, the tenant may have %llu",
                       (unsigned long long)(needed + 1023) / 1024,
                       (unsigned long long)t->max_bytes / 1024);
}
