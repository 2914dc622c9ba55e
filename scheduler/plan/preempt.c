/* preempt.c - which running sequence gives up its pages, and the kind of each preemption.
 *
 * Pages for keys and values are taken in this order: cached blocks, unused weights (not while a
 * lower class runs), sequences (order.c), weights of models with work that deserves less.
 *
 *     RUNNING, a row was due     --a more urgent step-->  stands still  --rows-->  pause
 *     RUNNING, blocks given back --sched_preempt_seq-->   away          --rows-->  pause, swap,
 *                                                                           recompute or model_out
 *
 * A preempted sequence leaves its blocks to the prefix cache.  The kind depends on where they are
 * when it comes back: all there (up to the unfinished block, which has no name), copied back from
 * host memory or read from the disk, or computed again.  So a preemption is counted when its
 * sequence gets rows; one that ends before is not counted.
 * Thread: engine. */
#include "plan.h"

enum { TRIM_BLOCKS_MAX = 8 }; // cached blocks freed per plan when pages are short

/* ---- the sequence that gives ---- */

/* The sequence to preempt for q, the first by plan_gives_before.  At a ceiling only sequences of
 * the same owner help. */
static seq *pick_victim(const plan *p, const seq *q, bool own_tenant) {
    seq *victim = NULL;
    bool own_model = !own_tenant && sched_model_is_full(p->s, q), claims = plan_claims(p->s, q);
    LIST_EACH(node, &p->s->running) {
        seq *v = LIST_ENTRY(node, seq, link);
        if ((own_model && v->model_idx != q->model_idx) ||
            (own_tenant && v->req->tenant_idx != q->req->tenant_idx))
            continue;
        if (v->table.n_blocks == 0 || v == q || v->planned_plan == p->s->plan_no ||
            !plan_may_take(p->s, q, claims, v))
            continue;
        if (victim == NULL || plan_gives_before(p->s, claims, v, victim)) victim = v;
    }
    return victim;
}

/* Then preempting more would be too early. */
bool sched_relief_is_coming(const sched *s) {
    return s->relief_epoch > s->pool->finished;
}

bool plan_preempt_for_pages(plan *p, seq *q, bool own_tenant) {
    if (!own_tenant && sched_relief_is_coming(p->s)) return false;
    seq *victim = pick_victim(p, q, own_tenant);
    if (victim == NULL) return false;
    if (&p->s->models[victim->model_idx] == p->m && plan_may_join(p, victim))
        p->n_active[victim->req->prio]--;
    sched_preempt_seq(p->s, victim);
    victim->gave_to = q;
    victim->gave_to_no = q->arrival_no;
    victim->gave_until_us = p->now_us + p->s->limits.starvation_us;
    if (sched_relief_is_coming(p->s)) p->s->relief_for = q;
    return true;
}

/* ---- blocks ---- */

/* Does the model compute nothing for want of pages, since short_since_us?  Not while its share, or
 * a model that goes before it, keeps it from trying, and not while some of its sequences go on. */
bool plan_is_short(const plan *p, const sched_model *m) {
    const sched_limits *l = &p->s->limits;
    /* No attempt for longer than a step or an idle device's sleep: it is not for want of pages. */
    uint64_t gap_us = u64_max(u64_max(l->kv_slice_us, 5 * l->pace_us), 4 * p->s->typical_us);
    return p->now_us <= m->short_at_us + gap_us && m->stepped_us < m->short_since_us;
}

/* For a time slice? */
static bool is_starved(const plan *p, const sched_model *m) {
    return plan_is_short(p, m) && p->now_us >= m->short_since_us + p->s->limits.kv_slice_us;
}

static uint64_t short_since_us(const plan *p, sched_model *m) {
    if (!plan_is_short(p, m)) m->short_since_us = p->now_us;
    m->short_at_us = p->now_us;
    return m->short_since_us;
}

/* Weights have no floor in time, so a wait for them ages: one class more urgent for each
 * starvation_us without pages, up to GEN_HIGH. */
static gen_class aged_class(const sched *s, const seq *q, uint64_t since_us, uint64_t now_us) {
    uint32_t prio = q->req->prio;
    uint64_t every_us = s->limits.starvation_us;
    if (every_us == 0 || prio <= GEN_HIGH || now_us < since_us + every_us) return (gen_class)prio;
    uint64_t n_classes = (now_us - q->idle_since_us) / every_us;
    return n_classes < prio - GEN_HIGH ? (gen_class)(prio - n_classes) : GEN_HIGH;
}

bool plan_reclaim_weights(const plan *p, sched_model *m, const seq *waiting) {
    sched *s = p->s;
    const pool_owner *o = &s->pool->owners[m->kv.owner];
    uint32_t held = pool_held(o);
    /* At a ceiling of its own, pages of others would not help. */
    if (s->reclaim == NULL || held >= o->max ||
        pool_n_takeable(s->pool, m->kv.owner) >= o->max - held)
        return false;
    if (waiting == NULL)
        return s->reclaim(s->reclaim_ctx, m->kv.owner, GEN_CLASSES, GEN_CLASSES, 0);
    uint64_t since_us = u64_max(waiting->idle_since_us, short_since_us(p, m));
    gen_class aged = aged_class(s, waiting, since_us, p->now_us);
    return s->reclaim(s->reclaim_ctx, m->kv.owner,
                      sched_is_blocked(s, p->now_us) ? aged : waiting->req->prio, aged, since_us);
}

/* Evict one cached block: of this model, or of another if its page may go to this one; else reclaim
 * unused weights.  All of this is tried before any sequence is preempted. */
static bool evict_for(const plan *p, sched_model *m) {
    sched *s = p->s;
    if (sched_evict_block(s, m)) return true;
    const pool_owner *o = &s->pool->owners[m->kv.owner];
    if (pool_held(o) >= o->max) return false;
    for (uint32_t i = 0; i < s->n_models; i++)
        if (s->models[i].open && &s->models[i] != m && sched_evict_block(s, &s->models[i]))
            return true;
    return plan_reclaim_weights(p, m, NULL);
}

/* Append a block to q's table; with `must`, preempt others if nothing else helps.  A cached block
 * is evicted to avoid a cold page: it is worth less than the time that a cold page costs. */
bool plan_take_block(plan *p, seq *q, bool must) {
    if (sched_leaves_room(p->s, q)) return false;
    sched_reserve_for(p->s, q);
    if (kv_next_is_cold(&p->m->kv, &q->table)) sched_evict_block(p->s, p->m);
    p->m->starved_plan = must && is_starved(p, p->m) ? p->s->plan_no : 0;
    while (sched_tenant_is_full(p->s, q, 1) || !kv_append(&p->m->kv, &q->table)) {
        bool full = sched_tenant_is_full(p->s, q, 1);
        if (!full && evict_for(p, p->m)) continue;
        if (!must || (!plan_preempt_for_pages(p, q, full) && !plan_reclaim_weights(p, p->m, q)))
            return false;
    }
    return true;
}

void plan_trim_caches(sched *s) {
    uint32_t budget = TRIM_BLOCKS_MAX;
    for (uint32_t i = 0; i < s->n_models && pool_n_short(s->pool) > 0; i++)
        while (s->models[i].open && budget > 0 && pool_n_short(s->pool) > 0 &&
               sched_evict_block(s, &s->models[i]))
            budget--;
}

/* ---- counting ---- */

const uint32_t engine_preempt_us_bounds[ENGINE_PREEMPT_BUCKETS] = {
    500,    1000,   2000,   5000,    10000,   20000,    50000,
    100000, 200000, 500000, 1000000, 5000000, 20000000, UINT32_MAX};

static void observe(engine_times *t, uint64_t us) {
    uint32_t bucket = 0;
    while (us > engine_preempt_us_bounds[bucket] && bucket + 1 < ENGINE_PREEMPT_BUCKETS) bucket++;
    t->n++;
    t->us += us;
    t->hist[bucket]++;
}

/* Keeps the longest ones, in the order of their begins. */
static void keep_away(seq *q, gen_away a) {
    uint32_t shortest = 0;
    if (q->n_aways == GEN_AWAYS_MAX) {
        for (uint32_t i = 1; i < q->n_aways; i++)
            if (q->aways[i].us < q->aways[shortest].us) shortest = i;
        if (a.us <= q->aways[shortest].us) return;
        q->n_aways--;
        memmove(q->aways + shortest, q->aways + shortest + 1,
                (q->n_aways - shortest) * sizeof q->aways[0]);
    }
    q->aways[q->n_aways++] = a;
}

static void count(sched *s, seq *q, gen_preempt preempt, uint64_t since_us, uint64_t now_us) {
    uint64_t us = now_us > since_us ? now_us - since_us : 0;
    observe(&s->counters.preempts[preempt], us);
    seq_model(s, q)->n_preempts[preempt]++;
    q->n_preempts[preempt]++;
    q->away_us += us;
    keep_away(q, (gen_away){since_us, (uint32_t)u64_min(us, UINT32_MAX), preempt});
    engine_flow use = {.away_us = us};
    use.n_preempts[preempt] = 1;
    sched_note_use(s, q, &use);
}

void sched_note_preempted(sched *s, seq *q) {
    bool waits = q->last_epoch > s->pool->finished;
    if (!waits)
        observe(&s->counters.relief, 0);
    else if (s->relief_since_us == 0)
        s->relief_since_us = s->clock_us;
    if (q->first_plan_us == 0) return; // it lost nothing
    if (q->away_since_us == 0) {       // else it was preempted before it had a row
        q->away_since_us = q->outranked_since_us != 0 ? q->outranked_since_us : s->clock_us;
        q->n_given_up = q->n_computed;
        q->n_came_back = q->n_swapped_in;
        q->away_model_out = false;
    }
    q->outranked_since_us = 0;
}

void sched_note_model_out(seq *q) {
    q->away_model_out = q->away_since_us != 0;
}

void sched_note_cached(sched *s, seq *q, uint32_t n_tokens) {
    sched_note_use(s, q, &(engine_flow){.cached_tokens = n_tokens});
}

void sched_note_rows(sched *s, seq *q, uint64_t now_us) {
    uint32_t block_tokens = seq_model(s, q)->kv.layout.block_tokens;
    if (q->away_since_us != 0) {
        uint32_t redone = q->n_given_up > q->n_computed ? q->n_given_up - q->n_computed : 0;
        gen_preempt preempt = q->away_model_out                  ? GEN_PREEMPT_MODEL_OUT
                              : redone >= block_tokens           ? GEN_PREEMPT_RECOMPUTE
                              : q->n_swapped_in > q->n_came_back ? GEN_PREEMPT_SWAP
                                                                 : GEN_PREEMPT_PAUSE;
        count(s, q, preempt, q->away_since_us, now_us);
        q->n_redone += redone;
        s->counters.n_recomputed_tokens += redone;
    } else if (q->outranked_since_us != 0) {
        count(s, q, GEN_PREEMPT_PAUSE, q->outranked_since_us, now_us);
    }
    q->away_since_us = q->outranked_since_us = 0;
    if (q->first_plan_us == 0) sched_note_cached(s, q, q->n_cached);
}

void sched_note_ended_away(sched *s, seq *q, uint64_t now_us) {
    uint64_t since_us = q->away_since_us != 0 ? q->away_since_us : q->outranked_since_us;
    if (since_us == 0) return;
    count(s, q,
          q->away_since_us != 0 && q->away_model_out ? GEN_PREEMPT_MODEL_OUT : GEN_PREEMPT_PAUSE,
          since_us, now_us);
    q->away_since_us = q->outranked_since_us = 0;
}

void sched_note_outranked(sched *s, uint32_t prio, uint64_t now_us) {
    LIST_EACH(node, &s->running) {
        seq *q = LIST_ENTRY(node, seq, link);
        if (q->planned_plan == s->plan_no || q->paused || q->n_steps > 0 || seq_n_wanted(q) == 0 ||
            q->first_plan_us == 0 || q->outranked_since_us != 0 || q->away_since_us != 0)
            continue;
        if (s->models[q->model_idx].hot && q->req->prio > prio) q->outranked_since_us = now_us;
    }
}

void sched_note_relief(sched *s, uint64_t now_us) {
    if (s->relief_since_us == 0 || s->relief_epoch > s->pool->finished) return;
    observe(&s->counters.relief, now_us > s->relief_since_us ? now_us - s->relief_since_us : 0);
    s->relief_since_us = 0;
}
