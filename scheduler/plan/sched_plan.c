/* sched_plan.c - plans a step: which sequences compute, and how many tokens each.
 *
 *   expire > trim cache > choose model > batch slots > overdue > one row > prompt chunks, admission
 *
 * A plan is for one model.  A sequence is in a plan at most once.  A sequence that this plan
 * preempted, had no page for, or held back for the blocks of another, is not looked at again before
 * the next plan (planned_plan, refused_plan, held_plan). */
#include <string.h>

#include "sched_state.h"

/* Tokens beyond the known ones that an admission keeps room for.  With max_tokens most of the pool
 * would be idle, because most answers end early; too small a look-ahead would preempt at once. */
enum { LOOK_AHEAD_TOKENS = 32 };
enum { LATE_EVERY = 8 };       // of so many starts one ignores lateness: is_lost
enum { AGED_PARTS = 8 };       // of running_max, and of prompts' time and rows: for aged sequences
enum { OVERDUE_PARTS = 4 };    // of the pace: for prompts of displaced sequences
enum { BRING_BACK_PARTS = 4 }; // of a step: time to swap blocks in
enum { TRIM_BLOCKS_MAX = 8 };  // cached blocks freed per plan when pages are short
enum { CLAIMS_TRIED = 8 };     // claimants of one model in one plan, behind a request without pages
enum { PREEMPTIONS_SPARED = 3 }; // a sequence preempted so often is chosen last in its class

/* The admission window of a plan.  The first waiting sequence that finds no batch slot, or no time,
 * closes it.  The first that finds no pages leaves it open for claimants only: sequences that ask
 * for no more than their guarantee.  A tenant at its own ceiling does not change it. */
typedef struct window {
    bool closed, claimants_only;
    seq *shut_by;       // the first that was refused
    uint32_t n_refused; // claimants refused, at most CLAIMS_TRIED
} window;

typedef struct plan {
    sched *s;
    sched_model *m;
    step *st;
    uint64_t now_us;
    uint32_t n_active; // sequences of the model that hold a batch slot
    uint32_t n_models; // models that have a step between two of this one, itself included
    sched_tier tier;   // of all sequences in the step: see sched_share.c
    uint64_t due_us;   // the earliest deadline of any sequence, of any model; 0: none
    window window;
} plan;

/* ---- time ---- */

static bool too_late(const seq *q, uint64_t now_us) {
    const gen_request *r = q->req;
    return (r->deadline_us != 0 && now_us >= r->deadline_us) ||
           (r->queue_deadline_us != 0 && q->first_plan_us == 0 && now_us >= r->queue_deadline_us);
}

static void expire_list(sched *s, list_node *list, uint64_t now_us) {
    LIST_EACH_SAFE(node, next, list) {
        seq *q = LIST_ENTRY(node, seq, link);
        const gen_request *r = q->req;
        if (too_late(q, now_us)) {
            char why[GEN_TEXT_BYTES];
            snprintf(why, sizeof why, "the deadline passed%s%s",
                     q->first_plan_us == 0 ? " while the request waited" : "",
                     sched_pause_reason(s, q));
            sched_end_seq(s, q, GEN_TIMEOUT, -1, INFERD_ETIMEOUT, why, now_us);
            continue;
        }
        if (r->deadline_us != 0 && r->deadline_us < s->next_deadline_us)
            s->next_deadline_us = r->deadline_us;
        if (r->queue_deadline_us != 0 && q->first_plan_us == 0 &&
            r->queue_deadline_us < s->next_deadline_us)
            s->next_deadline_us = r->queue_deadline_us;
    }
}

static void expire(sched *s, uint64_t now_us) {
    if (now_us < s->next_deadline_us) return;
    s->next_deadline_us = UINT64_MAX;
    expire_list(s, &s->waiting, now_us);
    expire_list(s, &s->running, now_us);
}

/* ---- order ---- */

uint32_t sched_class_now(const sched *s, const seq *q, uint64_t now_us) {
    uint32_t prio = q->req->prio;
    if (s->limits.starvation_us == 0 || prio <= GEN_HIGH || now_us <= q->idle_since_us) return prio;
    if (q->state == SEQ_WAITING && s->n_aged >= u32_max(s->limits.running_max / AGED_PARTS, 1))
        return prio;
    uint64_t n_aged_classes = (now_us - q->idle_since_us) / s->limits.starvation_us;
    return n_aged_classes < prio - GEN_HIGH ? (uint32_t)(prio - n_aged_classes) : GEN_HIGH;
}

/* Inside a batch a sequence keeps the class that it aged to.  Between models it does not: a model
 * would have the device for as long as one of its sequences is aged. */
static uint32_t class_in_batch(const sched *s, const seq *q, uint64_t now_us) {
    uint32_t prio = sched_class_now(s, q, now_us);
    return q->state == SEQ_RUNNING ? u32_min(q->granted, prio) : prio;
}

bool sched_is_overdue(const sched *s, const seq *q, uint64_t now_us) {
    return q->state == SEQ_RUNNING && s->limits.starvation_us != 0 && !q->waits_for_disk &&
           now_us >= q->idle_since_us + s->limits.starvation_us;
}

/* Running, and aged above the class of its request, or overdue: it gets a step in any case. */
static bool is_aged(const sched *s, const seq *q, uint64_t now_us) {
    return q->state == SEQ_RUNNING &&
           (class_in_batch(s, q, now_us) < q->req->prio || sched_is_overdue(s, q, now_us));
}

bool sched_is_blocked(const sched *s, uint64_t now_us) {
    return s->blocked_since_us != 0 && now_us >= s->blocked_since_us + s->limits.starvation_us;
}

/* Estimated time for the prompt of q: every running model has a step between two of its own. */
static uint64_t prompt_us(const plan *p, const seq *q) {
    rate_work work = {0};
    rate_add_rows(&work, 0, q->n_tokens);
    return p->n_models * rate_us(&p->m->rate, &work);
}

/* With the objective `sla`, a request that can no longer meet its TTFT target waits behind those of
 * its class that can, however long: serving it first would make the next one late, too.  For one in
 * LATE_EVERY starts lateness is ignored, so that a late request can begin. */
static bool is_lost(const plan *p, const seq *q) {
    const sched_model *m = &p->s->models[q->model_idx];
    if (p->s->limits.objective != OBJECTIVE_SLA || q->state != SEQ_WAITING || q->n_preempted > 0 ||
        m->n_started % LATE_EVERY == LATE_EVERY - 1)
        return false;
    uint64_t wish_us = (uint64_t)q->req->ttft_target_ms * 1000;
    uint64_t ttft_us = wish_us != 0 ? wish_us : m->ttft_us;
    if (ttft_us == 0) return false;
    return p->now_us + prompt_us(p, q) > q->req->arrival_us + ttft_us;
}

/* The rank of a request orders it within its own class.  In a class that it aged to its rank is 0
 * at first, and falls by 1 (more urgent) with each further starvation_us. */
static int32_t rank_now(const plan *p, const seq *q, uint32_t prio) {
    if (prio >= q->req->prio) return q->req->rank;
    uint64_t n_aged_classes =
        (p->now_us - u64_min(q->idle_since_us, p->now_us)) / u64_max(p->s->limits.starvation_us, 1);
    uint64_t used = q->req->prio - prio;
    return n_aged_classes > used ? -(int32_t)u64_min(n_aged_classes - used, INT32_MAX) : 0;
}

static bool precedes(const plan *p, const seq *a, const seq *b) {
    bool lost_a = is_lost(p, a), lost_b = is_lost(p, b);
    uint32_t class_a = lost_a ? a->req->prio : class_in_batch(p->s, a, p->now_us);
    uint32_t class_b = lost_b ? b->req->prio : class_in_batch(p->s, b, p->now_us);
    if (class_a != class_b) return class_a < class_b;
    if (lost_a != lost_b) return lost_b;
    bool aged_a = is_aged(p->s, a, p->now_us), aged_b = is_aged(p->s, b, p->now_us);
    if (aged_a != aged_b) return aged_b; // it has a part of the time of its own: plan_aged
    int32_t rank_a = rank_now(p, a, class_a), rank_b = rank_now(p, b, class_b);
    if (rank_a != rank_b) return rank_a < rank_b;
    if (p->tier == TIER_ENTITLED && a->flow != b->flow) {
        uint64_t full_a = sched_full_us(p->s, a), full_b = sched_full_us(p->s, b);
        if (full_a != full_b) return full_a < full_b;
    }
    uint64_t virtual_a = p->s->flows[a->flow].virtual_us[p->tier];
    uint64_t virtual_b = p->s->flows[b->flow].virtual_us[p->tier];
    if (a->flow != b->flow && virtual_a != virtual_b) return virtual_a < virtual_b;
    return a->arrival_no < b->arrival_no;
}

/* It runs, and holds a batch slot of its model. */
static bool has_batch_slot(const seq *q) {
    return !q->paused && !q->displaced;
}

static bool is_active(const plan *p, const seq *q) {
    return &p->s->models[q->model_idx] == p->m && has_batch_slot(q);
}

static void count_active(plan *p) {
    p->n_active = 0;
    LIST_EACH(node, &p->m->running) p->n_active += has_batch_slot(LIST_ENTRY(node, seq, mine));
}

/* Once per plan: the number is needed whenever two waiting sequences are compared. */
static void count_models(plan *p) {
    p->n_models = 1;
    for (uint32_t i = 0; i < p->s->n_models; i++)
        p->n_models += &p->s->models[i] != p->m && p->s->models[i].n_running > 0;
}

/* Its share allows it in this step. */
static bool may_join(const plan *p, const seq *q) {
    return sched_tier_of(p->s, q, p->now_us) == p->tier;
}

/* Could it get rows in this step? */
static bool may_compute(const plan *p, const seq *q) {
    return !q->paused && seq_n_wanted(q) > 0 && may_join(p, q);
}

/* The model's sequences with a batch slot that could compute, in order, into s->order. */
static uint32_t collect_running(plan *p) {
    seq **order = p->s->order;
    uint32_t n = 0;
    LIST_EACH(node, &p->m->running) {
        seq *q = LIST_ENTRY(node, seq, mine);
        if (q->displaced || !may_compute(p, q)) continue;
        uint32_t i = n++;
        for (; i > 0 && precedes(p, q, order[i - 1]); i--) order[i] = order[i - 1];
        order[i] = q;
    }
    return n;
}

/* With n_steps > 0 an unfinished step of an earlier run still reads its block table. */
bool sched_can_start(const sched *s, const seq *q) {
    return !q->paused && q->n_steps == 0 && q->refused_plan != s->plan_no &&
           q->held_plan != s->plan_no && !s->models[q->model_idx].closed;
}

/* How many of its first blocks a prefix hit may serve.  At least one token is computed, to get
 * logits; so are rows with log-probabilities that are still to be reported. */
static uint32_t blocks_findable(const seq *q, const kv_layout *l) {
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
    return is_active(p, r) && r->cacheable && !r->scoring && r->granted <= q->req->prio &&
           (r->granted < q->req->prio || r->req->rank <= q->req->rank) &&
           n_blocks <= blocks_findable(q, l) && n_tokens <= r->n_tokens &&
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

/* May q take memory for its guarantee?  It is the same for all victims, so callers ask once. */
static bool claims_memory(const sched *s, const seq *q) {
    return sched_has_guarantees(s) && sched_may_claim(s, q);
}

typedef bool seq_order(const plan *p, const seq *a, const seq *b);

/* The order of admit_urgent: the class of the request comes first.  Aging changes the order, not
 * the right to preempt, so aged requests must not stand before requests that may preempt. */
static bool outranks(const plan *p, const seq *a, const seq *b) {
    return a->req->prio != b->req->prio ? a->req->prio < b->req->prio : precedes(p, a, b);
}

/* `claimants`: only sequences that may take memory for their guarantee. */
static seq *first_waiting(const plan *p, seq_order *before, bool claimants) {
    seq *first = NULL;
    LIST_EACH(node, &p->m->waiting) {
        seq *q = LIST_ENTRY(node, seq, mine);
        if (!sched_can_start(p->s, q) || !may_join(p, q) || sched_tenant_stopped(p->s, q) ||
            (claimants && !claims_memory(p->s, q)))
            continue;
        if ((first == NULL || before(p, q, first)) && !hold(p, q)) first = q;
    }
    return first;
}

/* ---- preemption ---- */

bool sched_deserves_less(const seq *a, const seq *b) {
    bool spared_a = a->n_preempted >= PREEMPTIONS_SPARED;
    bool spared_b = b->n_preempted >= PREEMPTIONS_SPARED;
    if (a->paused != b->paused) return a->paused;
    if (a->displaced != b->displaced)
        return a->displaced; // else it keeps pages that one with a slot needs
    if (a->granted != b->granted) return a->granted > b->granted;
    if (spared_a != spared_b) return spared_b;
    return a->arrival_no > b->arrival_no;
}

/* May q's model take pages of equals?  It computes nothing for want of pages, the model of `v` goes
 * on without `v`, and `v` has not yet been preempted PREEMPTIONS_SPARED times. */
static bool may_take_from_equal(const sched *s, const seq *q, const seq *v) {
    const sched_model *m = &s->models[q->model_idx], *others = &s->models[v->model_idx];
    return m->starved_plan == s->plan_no && others != m && v->granted == q->req->prio &&
           others->running.next != &v->mine && v->n_preempted < PREEMPTIONS_SPARED;
}

/* May `q` take the pages of `v`?  A running q: of sequences that deserve less; a waiting q only of
 * paused ones and lower classes, or new requests would push out what is nearly done. */
static bool may_preempt(const sched *s, const seq *q, bool claims, const seq *v) {
    /* `less`: v comes before q in the order of preemption.  Pages above v's guarantee go to a q
     * with `less` or `claims`, pages within it only to a q with both, or with `less` to a q of the
     * same owner, which has as much as before then.  q claims no more than its own guarantee:
     * beyond it two owners would take pages from each other again and again. */
    bool less = q->state == SEQ_RUNNING
                    ? sched_deserves_less(v, q)
                    : v->paused || v->granted > q->req->prio || may_take_from_equal(s, q, v);
    if (!sched_has_guarantees(s) || (less && claims)) return less;
    return less ? !sched_is_secure_from(s, v, q) : claims && !sched_is_secure(s, v);
}

/* Is `a` preempted before `b`?  For a q that claims its guarantee, sequences above their own
 * guarantee go first, or owners within their guarantees would take pages from each other. */
static bool gives_before(const sched *s, bool claims, const seq *a, const seq *b) {
    bool secure_a = claims && sched_is_secure(s, a), secure_b = claims && sched_is_secure(s, b);
    return secure_a != secure_b ? secure_b : sched_deserves_less(a, b);
}

typedef enum wanted {
    WANTED_BATCH_SLOT, // a batch slot
    WANTED_PAGES,
    WANTED_OWN // pages of its own tenant, which is at its ceiling
} wanted;

static uint32_t n_active_of(const plan *p, uint32_t tenant_idx) {
    uint32_t n = 0;
    LIST_EACH(node, &p->m->running) {
        const seq *q = LIST_ENTRY(node, seq, mine);
        n += has_batch_slot(q) && q->req->tenant_idx == tenant_idx;
    }
    return n;
}

/* Sequences with a batch slot, of tenants without a share.  One slot stays theirs, for the time
 * that shares leave. */
static uint32_t n_without_share(const plan *p) {
    uint32_t n = 0;
    LIST_EACH(node, &p->m->running) {
        const seq *q = LIST_ENTRY(node, seq, mine);
        n += has_batch_slot(q) && sched_batch_slots_kept(p->s, q->req->tenant_idx) == 0;
    }
    return n;
}

/* A tenant with a share has a part of the batch slots, whatever the class of sequences without a
 * share: without a slot it would get none of its time.  Tenants with shares do not take slots from
 * each other, or each sequence that ends would cost another what it has computed. */
static bool lacks_batch_slot(const plan *p, const seq *q) {
    uint32_t n_kept = sched_batch_slots_kept(p->s, q->req->tenant_idx);
    return n_kept > 0 && n_active_of(p, q->req->tenant_idx) < n_kept && n_without_share(p) > 1;
}

/* v holds a batch slot that is kept for its tenant's share, the tenant of `q` has no share, and
 * sequences without a share hold some slots. */
static bool keeps_batch_slot(const plan *p, const seq *q, const seq *v) {
    uint32_t n_kept = sched_batch_slots_kept(p->s, v->req->tenant_idx);
    return n_kept > 0 && sched_batch_slots_kept(p->s, q->req->tenant_idx) == 0 &&
           n_active_of(p, v->req->tenant_idx) <= n_kept && n_without_share(p) > 0;
}

/* The sequence to preempt for q, the first by gives_before; for a batch slot among those that hold
 * one.  At a ceiling only sequences of the same owner help. */
static seq *pick_victim(const plan *p, const seq *q, wanted what) {
    seq *victim = NULL;
    bool batch_slot = what == WANTED_BATCH_SLOT, own_tenant = what == WANTED_OWN;
    bool own_model = what == WANTED_PAGES && sched_model_is_full(p->s, q);
    bool claims = claims_memory(p->s, q), lacks = batch_slot && lacks_batch_slot(p, q);
    LIST_EACH(node, &p->s->running) {
        seq *v = LIST_ENTRY(node, seq, link);
        bool counts = batch_slot ? is_active(p, v) : v->table.n_blocks > 0;
        if ((own_model && v->model_idx != q->model_idx) ||
            (own_tenant && v->req->tenant_idx != q->req->tenant_idx))
            continue;
        if (!counts || v == q || v->planned_plan == p->s->plan_no ||
            (batch_slot && keeps_batch_slot(p, q, v)))
            continue;
        bool gives = lacks && sched_batch_slots_kept(p->s, v->req->tenant_idx) == 0;
        if (!gives && !may_preempt(p->s, q, claims, v)) continue;
        if (victim == NULL || gives_before(p->s, claims, v, victim)) victim = v;
    }
    return victim;
}

/* Pages of a sequence preempted earlier come free when a step finishes: more would be too early. */
static bool relief_is_coming(const sched *s) {
    return s->relief_epoch > s->pool->finished;
}

static void preempt(plan *p, seq *victim) {
    if (is_active(p, victim)) p->n_active--;
    sched_preempt_seq(p->s, victim);
}

static bool preempt_for_pages(plan *p, seq *q, bool own_tenant) {
    if (!own_tenant && relief_is_coming(p->s)) return false;
    seq *victim = pick_victim(p, q, own_tenant ? WANTED_OWN : WANTED_PAGES);
    if (victim == NULL) return false;
    preempt(p, victim);
    if (relief_is_coming(p->s)) p->s->relief_for = q;
    return true;
}

/* A sequence that loses its batch slot is only displaced: it keeps its blocks as long as no other
 * needs the pages, and gets a step now and then (plan_overdue). */
static void displace(plan *p, seq *q) {
    q->displaced = true;
    p->n_active--;
}

static bool take_batch_slot(plan *p, const seq *q) {
    seq *victim = pick_victim(p, q, WANTED_BATCH_SLOT);
    if (victim == NULL) return false;
    displace(p, victim);
    return true;
}

/* ---- blocks ---- */

/* Does the model compute nothing for want of pages, since short_since_us?  Not while its share, or
 * a model that goes before it, keeps it from trying, and not while some of its sequences go on. */
static bool is_short(const plan *p, const sched_model *m) {
    const sched_limits *l = &p->s->limits;
    /* No attempt for longer than a step or an idle device's sleep: it is not for want of pages. */
    uint64_t gap_us = u64_max(u64_max(l->kv_slice_us, 5 * l->pace_us), 4 * p->s->typical_us);
    return p->now_us <= m->short_at_us + gap_us && m->stepped_us < m->short_since_us;
}

static uint64_t short_since_us(const plan *p, sched_model *m) {
    if (!is_short(p, m)) m->short_since_us = p->now_us;
    m->short_at_us = p->now_us;
    return m->short_since_us;
}

/* Reclaim unused weights, or those of models with work that deserves less than `waiting` (NULL:
 * only unused ones), where the pages may go to this model at all. */
static bool reclaim_weights(const plan *p, sched_model *m, const seq *waiting) {
    sched *s = p->s;
    const pool_owner *o = &s->pool->owners[m->kv.owner];
    uint32_t held = pool_held(o);
    /* At a ceiling of its own, pages of others would not help. */
    if (s->reclaim == NULL || held >= o->max ||
        pool_n_takeable(s->pool, m->kv.owner) >= o->max - held)
        return false;
    if (waiting == NULL)
        return s->reclaim(s->reclaim_ctx, m->kv.owner, GEN_CLASSES, GEN_CLASSES, 0);
    gen_class aged = (gen_class)sched_class_now(s, waiting, p->now_us);
    uint64_t since_us = u64_max(waiting->idle_since_us, short_since_us(p, m));
    if (p->now_us < since_us + s->limits.starvation_us) aged = waiting->req->prio;
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
    return reclaim_weights(p, m, NULL);
}

/* Append a block to q's table; with `must`, preempt others if nothing else helps.  A cached block
 * is evicted to avoid a cold page: it is worth less than the time that a cold page costs. */
static bool take_block(plan *p, seq *q, bool must) {
    sched_reserve_for(p->s, q);
    if (kv_next_is_cold(&p->m->kv, &q->table)) sched_evict_block(p->s, p->m);
    while (sched_tenant_is_full(p->s, q, 1) || !kv_append(&p->m->kv, &q->table)) {
        bool full = sched_tenant_is_full(p->s, q, 1);
        if (!full && evict_for(p, p->m)) continue;
        if (!must || (!preempt_for_pages(p, q, full) && !reclaim_weights(p, p->m, q))) return false;
    }
    return true;
}

static void trim_caches(sched *s) {
    uint32_t budget = TRIM_BLOCKS_MAX;
    for (uint32_t i = 0; i < s->n_models && pool_n_short(s->pool) > 0; i++)
        while (s->models[i].open && budget > 0 && pool_n_short(s->pool) > 0 &&
               sched_evict_block(s, &s->models[i]))
            budget--;
}

/* ---- admission ---- */

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

/* Blocks that no other sequence uses. */
static uint64_t own_blocks(const sched *s, const seq *r) {
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
        uint64_t slots = starved ? own_blocks(s, r) * m->kv.layout.n_groups : slots_to_gain(s, r);
        if (may_preempt(s, q, claims, r))
            whole += slots / m->kv.layout.slots_per_page;
        else
            all = false;
    }
    return all ? s->pool->owners[m->kv.owner].held[PAGE_KV] - m->kv.n_idle_pages : whole;
}

/* Bytes of its tenant that come free when all of its sequences go that `q` may preempt: of blocks
 * that no other sequence uses. */
static uint64_t tenant_bytes_to_gain(const sched *s, const seq *q) {
    bool claims = claims_memory(s, q);
    uint64_t n = 0;
    LIST_EACH(node, &s->running) {
        const seq *r = LIST_ENTRY(node, seq, link);
        if (r->req->tenant_idx != q->req->tenant_idx || !may_preempt(s, q, claims, r)) continue;
        const kv_layout *l = &s->models[r->model_idx].kv.layout;
        n += own_blocks(s, r) * l->n_groups * l->slot_bytes;
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
    bool claims = after && claims_memory(s, q);
    sched_reserve_for(p->s, q);
    uint32_t n_found = prefix_find(&p->m->prefix, q->req->cache_scope, seq_tokens(q),
                                   blocks_findable(q, l), &n_uncounted);
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
        if (after && may_preempt(s, q, claims, r)) {
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
    q->granted = (gen_class)sched_class_now(s, q, p->now_us);
    s->n_aged += q->granted < q->req->prio;
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
                                 blocks_findable(q, l), &q->table, &q->name);
    q->n_computed = q->n_published * l->block_tokens;
    q->n_ahead = 0;
    q->disk_until_us = 0;
    p->n_active++;
    if (q->n_preempted == 0) {
        q->n_cached = q->n_computed;
        s->counters.prefix_queries_tokens += q->req->n_prompt;
        s->counters.prefix_hits_tokens += q->n_computed;
    }
}

typedef enum admission {
    ADMITTED,
    ADMIT_NO_BATCH_SLOT, // no batch slot, or its targets could not be kept
    ADMIT_NO_PAGES,
    ADMIT_OWN_CEILING // its tenant may have no more: other tenants are not affected
} admission;

/* Preemption freed too little after all: the model's wait for pages of equals begins anew. */
static admission in_vain(const plan *p, bool full) {
    if (p->m->starved_plan == p->s->plan_no) p->m->short_since_us = p->now_us;
    return full ? ADMIT_OWN_CEILING : ADMIT_NO_PAGES;
}

/* Take pages and a batch slot, from lower classes if needed, and only if that is enough. */
static admission admit(plan *p, seq *q) {
    /* With `sla` no request joins a batch that would then be too slow for its targets. */
    inferd_err unused = {0};
    if (p->s->limits.objective == OBJECTIVE_SLA && p->n_active > 0 &&
        sched_admit_time(p->s, q, &unused) != INFERD_OK)
        return ADMIT_NO_BATCH_SLOT;
    if (p->n_active >= p->s->limits.running_max && pick_victim(p, q, WANTED_BATCH_SLOT) == NULL)
        return ADMIT_NO_BATCH_SLOT;
    uint64_t short_us = u64_max(q->idle_since_us, p->m->short_since_us);
    bool starved = p->m->n_running == 0 && is_short(p, p->m) && p->s->limits.kv_slice_us != 0 &&
                   p->now_us >= short_us + p->s->limits.kv_slice_us;
    p->m->starved_plan = starved ? p->s->plan_no : 0;
    bool full; // its tenant is at its ceiling: no other tenant can help
    bool fits_now = fits(p, q, false, &full);
    while (!fits_now && !fits(p, q, true, &full)) {
        if (full) return ADMIT_OWN_CEILING;
        if (!reclaim_weights(p, p->m, NULL) && !reclaim_weights(p, p->m, q)) return ADMIT_NO_PAGES;
    }
    while (!fits_now && !fits(p, q, false, &full))
        if ((full || !reclaim_weights(p, p->m, NULL)) && !preempt_for_pages(p, q, full))
            return in_vain(p, full);
    if (p->n_active >= p->s->limits.running_max && !take_batch_slot(p, q))
        return ADMIT_NO_BATCH_SLOT;
    start(p, q);
    return ADMITTED;
}

/* The next waiting sequence to admit; NULL: none, or the window is closed. */
static seq *window_next(const plan *p, seq_order *before) {
    const window *d = &p->window;
    if (d->closed || (d->claimants_only && !sched_has_guarantees(p->s))) return NULL;
    return first_waiting(p, before, d->claimants_only);
}

/* True: q was admitted. */
static bool window_try(plan *p, seq *q) {
    window *d = &p->window;
    admission a = admit(p, q);
    if (a == ADMITTED) return true;
    q->refused_plan = p->s->plan_no;
    if (a == ADMIT_OWN_CEILING) {
        sched_tenant_stop(p->s, q);
        return false;
    }
    d->n_refused += d->claimants_only;
    if (!d->claimants_only) d->shut_by = q;
    d->claimants_only = true;
    d->closed = a == ADMIT_NO_BATCH_SLOT || d->n_refused >= CLAIMS_TRIED;
    return false;
}

/* ---- rows ---- */

/* Row i reports prompt token i + 1.  The first is the row of the first token not reported yet. */
static uint32_t first_scored_row(const seq *q) {
    return u32_max(q->n_scored, 1) - 1 + q->n_scored_planned;
}

static uint32_t n_scored_rows(const seq *q, uint32_t begin, uint32_t n) {
    if (!q->scoring) return 0;
    uint32_t from = u32_max(begin, first_scored_row(q));
    uint32_t to = u32_min(begin + n, q->req->n_prompt - 1);
    return to > from ? to - from : 0;
}

/* Do these rows reach the last known or pending token?  Its logits draw the next one. */
static bool draws_next(const seq *q, uint32_t begin, uint32_t n) {
    return q->tokens_max > q->req->n_prompt && begin + n >= q->n_tokens + q->n_pending;
}

static void add_draw(step *st, uint32_t row, const sample_row *draw) {
    uint32_t i = st->b.n_logits++;
    st->b.logit_rows[i] = row;
    st->draws[i] = (step_draw){.row = *draw};
    st->results[i] = (sample_result){.id = -1};
}

static void add_row(step *st, const seq *q, uint32_t pos, uint32_t seq_idx) {
    uint32_t row = st->b.n_rows++;
    bool known = pos < q->n_tokens + q->n_drafts;
    st->n_attended += pos + 1;
    st->b.tokens[row] = known ? seq_tokens(q)[pos] : TOK_PENDING;
    st->b.pending[row] = known ? 0 : q->pending_logit;
    st->b.positions[row] = pos;
    st->b.row_seq[row] = seq_idx;
}

/* The next n rows of q, those of its drafts included. */
static void add_item(plan *p, seq *q, uint32_t n) {
    step *st = p->st;
    const gen_request *r = q->req;
    uint32_t begin = q->n_computed + q->n_planned, seq_idx = st->b.n_seqs++;
    step_item *item = &st->items[seq_idx];
    *item = (step_item){
        .q = q, .run = q->run, .begin = begin, .n_rows = n, .draw_begin = st->b.n_logits};
    st->b.seqs[seq_idx] = (batch_seq){.row_begin = st->b.n_rows,
                                      .n_rows = n,
                                      .pos_begin = begin,
                                      .n_blocks = q->table.n_blocks,
                                      .slots = q->table.slots};
    sample_row draw = {.params = &r->sampling, .tokens = seq_tokens(q), .n_prompt = r->n_prompt};
    uint32_t scored_from = first_scored_row(q), n_scored = n_scored_rows(q, begin, n);
    bool next = draws_next(q, begin, n);
    for (uint32_t pos = begin; pos < begin + n; pos++) {
        uint32_t row = st->b.n_rows;
        add_row(st, q, pos, seq_idx);
        draw.n_tokens = pos + 1;
        if (q->scoring && pos >= scored_from && pos + 1 < r->n_prompt) {
            draw.forced = seq_tokens(q)[pos + 1];
            draw.n_top = r->n_prompt_logprobs;
            add_draw(st, row, &draw);
        } else if (draws_next(q, pos, 1)) {
            bool early = pos + 1 - r->n_prompt < r->min_tokens;
            draw.forced = -1;
            draw.n_top = r->n_logprobs;
            draw.banned = early ? q->banned : NULL;
            draw.n_banned = early ? q->n_banned : 0;
            q->pending_logit = st->b.n_logits;
            add_draw(st, row, &draw);
        }
    }
    q->n_pending += next;
    item->n_draws = st->b.n_logits - item->draw_begin;
    sched_note_rows(p->s, q, p->now_us);
    q->n_planned += n;
    q->n_scored_planned += n_scored;
    q->n_steps++;
    q->planned_plan = p->s->plan_no;
    q->idle_since_us = p->now_us;
    if (q->first_plan_us == 0) {
        q->first_plan_us = p->now_us;
        q->queued_steps = (uint32_t)(p->s->pool->launched - q->steps_before);
    }
}

/* Take blocks for the next n rows of q.  Returns how many of these rows its blocks then hold. */
static uint32_t cover_rows(plan *p, seq *q, uint32_t n, bool must) {
    const kv_layout *l = &p->m->kv.layout;
    uint32_t begin = q->n_computed + q->n_planned, n_blocks = kv_blocks_of(l, begin + n);
    while (q->table.n_blocks < n_blocks)
        if (!take_block(p, q, must && q->table.n_blocks * l->block_tokens <= begin)) break;
    uint32_t covered = q->table.n_blocks * l->block_tokens;
    return u32_min(n, covered > begin ? covered - begin : 0);
}

/* Give q up to n rows, as far as blocks and logits allow; returns how many. */
static uint32_t plan_rows(plan *p, seq *q, uint32_t n) {
    uint32_t begin = q->n_computed + q->n_planned;
    uint32_t logits_left = p->s->limits.logits_max - p->st->b.n_logits;
    while (n > 0 && n_scored_rows(q, begin, n) + draws_next(q, begin, n) > logits_left) n--;
    n = cover_rows(p, q, n, true);
    if (n == 0)
        q->refused_plan = p->s->plan_no;
    else
        add_item(p, q, n);
    return n;
}

/* Draft the tokens behind q's last one, as far as rows, logits and q's own end allow; n_others
 * sequences need a row and logits, too.  No sequence is preempted for a draft.  A block taken for
 * one stays, because q is about to need it. */
static void plan_drafts(plan *p, seq *q, uint32_t n_others) {
    const sched_limits *l = &p->s->limits;
    const batch *b = &p->st->b;
    if (l->draft_tokens == 0 || p->n_active > DRAFT_STREAMS_MAX || q->n_steps > 0 ||
        q->n_tokens < q->habit.rest_until || !draws_next(q, q->n_computed, 1))
        return;
    uint32_t taken = n_others + 1; // of rows, and of logits
    uint32_t rows_left = l->step_tokens_max - b->n_rows, logits_left = l->logits_max - b->n_logits;
    uint32_t n = u32_min(q->habit.n_next, q->tokens_max - q->n_tokens - 1);
    n = u32_min(n, rows_left > taken ? rows_left - taken : 0);
    n = u32_min(n, logits_left > taken ? logits_left - taken : 0);
    n = draft_write(seq_tokens(q), q->n_tokens, n);
    if (n > 0) q->n_drafts = u32_max(cover_rows(p, q, 1 + n, false), 1) - 1;
}

/* It runs, and this plan has neither given it rows nor refused it. */
static bool wants_rows(const plan *p, const seq *q) {
    return q->state == SEQ_RUNNING && q->planned_plan != p->s->plan_no &&
           q->refused_plan != p->s->plan_no;
}

/* Aged sequences that get rows stay aged: a few rows per starvation_us complete no prompt. */
static void keep_age(plan *p, seq *q, uint32_t prio) {
    if (prio >= q->granted) return;
    p->s->n_aged += q->granted == q->req->prio;
    q->granted = (gen_class)prio;
}

/* Swap in q's blocks instead of computing them: all at once when the step is still empty, else for
 * about a quarter of a step's time, and the rest next time.  Blocks on the disk are waited for.
 * False: some are still missing. */
static bool bring_back(plan *p, seq *q) {
    sched *s = p->s;
    uint32_t n_before = q->n_computed, n_max = blocks_findable(q, &p->m->kv.layout);
    n_max -= u32_min(n_max, q->n_published);
    if (n_max == 0 || (!p->m->swaps && !sched_has_disk(s, p->m))) return true;
    uint32_t n = n_max;
    if (p->st->b.n_rows > 0 && p->m->move.us > 0)
        n = u32_min(n, (uint32_t)(s->typical_us / BRING_BACK_PARTS / p->m->move.us) + 1);
    uint32_t done = sched_swap_in(s, q, n, p->now_us), tokens = q->n_computed - n_before;
    if (q->n_preempted == 0) {
        q->n_cached += tokens;
        s->counters.prefix_hits_tokens += tokens;
        if (q->first_plan_us != 0) sched_note_cached(s, q, tokens);
    }
    if (!q->waits_for_disk && (done < n || n == n_max)) return true;
    q->refused_plan = s->plan_no; // no rows for blocks that may still be swapped in
    return false;
}

/* ---- displaced sequences ---- */

/* Batch slots for aged sequences; also the most displaced sequences in a step. */
static uint32_t aged_max(const plan *p) {
    return u32_max(p->s->limits.running_max / AGED_PARTS, 1);
}

/* The first displaced sequence to get a batch slot back.  `aged`: only aged ones, of which there
 * are no more than slots for them; they come before all others. */
static seq *first_displaced(const plan *p, bool aged) {
    seq *first = NULL;
    LIST_EACH(node, &p->m->running) {
        seq *q = LIST_ENTRY(node, seq, mine);
        if (!q->displaced || q->paused || !may_join(p, q) || (aged && q->granted == q->req->prio))
            continue;
        if (first == NULL || precedes(p, q, first)) first = q;
    }
    return first;
}

static void retake_batch_slots(plan *p, bool aged) {
    for (seq *q;
         p->n_active < p->s->limits.running_max && (q = first_displaced(p, aged)) != NULL;) {
        seq *w = aged ? NULL : first_waiting(p, precedes, false);
        bool full;
        if (w != NULL && precedes(p, w, q) && fits(p, w, false, &full)) return; // in plan_chunks
        q->displaced = false;
        p->n_active++;
    }
}

/* When slow readers resume, the batch may have more sequences than slots: displaces the last. */
static void give_up_batch_slots(plan *p) {
    while (p->n_active > p->s->limits.running_max) {
        seq *last = NULL;
        LIST_EACH(node, &p->m->running) {
            seq *q = LIST_ENTRY(node, seq, mine);
            if (has_batch_slot(q) && (last == NULL || precedes(p, last, q))) last = q;
        }
        displace(p, last);
    }
}

/* Of the displaced sequences that had no step for starvation_us, the one that waited longest. */
static seq *longest_overdue(const plan *p) {
    seq *first = NULL;
    LIST_EACH(node, &p->m->running) {
        seq *q = LIST_ENTRY(node, seq, mine);
        if (q->displaced && wants_rows(p, q) && may_compute(p, q) &&
            sched_is_overdue(p->s, q, p->now_us) &&
            (first == NULL || q->idle_since_us < first->idle_since_us))
            first = q;
    }
    return first;
}

/* One row when q decodes.  For a prompt: what fits into a quarter of the pace, for all of them
 * together, and into rows that others of the batch do not need. */
static uint32_t overdue_rows(const plan *p, const seq *q) {
    const sched_limits *l = &p->s->limits;
    rate_work work = step_work(p->st);
    uint32_t taken = work.rows + l->running_max - p->st->b.n_seqs - 1;
    uint32_t n_max =
        u32_min(seq_n_wanted(q), l->step_tokens_max - u32_min(taken, l->step_tokens_max));
    uint32_t n = rate_rows(&p->m->rate, l->pace_us / OVERDUE_PARTS, &work,
                           q->n_computed + q->n_planned, n_max);
    return u32_max(n, 1);
}

/* Some of the displaced sequences get a step, whatever their class; with each a sequence rises by a
 * class, while there is room among the aged ones.  In a batch of one slot they get it every other
 * time.  Returns the prompt rows among them. */
static uint32_t plan_overdue(plan *p) {
    sched *s = p->s;
    uint32_t n_seqs = 0, n_prompt_rows = 0;
    if (s->limits.running_max == 1 && p->m->overdue_step) {
        p->m->overdue_step = false;
        return 0;
    }
    for (seq *q; n_seqs < aged_max(p) && (q = longest_overdue(p)) != NULL;) {
        bool prompt = seq_n_wanted(q) > 1;
        uint32_t n = bring_back(p, q) ? plan_rows(p, q, overdue_rows(p, q)) : 0;
        if (n == 0) continue; // it is refused for this plan
        n_seqs++;
        n_prompt_rows += prompt ? n : 0;
        bool may_rise = q->granted < q->req->prio || s->n_aged < s->limits.running_max / AGED_PARTS;
        if (q->granted > GEN_HIGH && may_rise) keep_age(p, q, q->granted - 1);
    }
    p->m->overdue_step = n_seqs > 0;
    return n_prompt_rows;
}

/* ---- rows of the other sequences ---- */

/* One row for each sequence that decodes.  With guarantees of memory, sequences within theirs go
 * first: those above it are then not in the plan yet, and can still be preempted. */
static void plan_single_rows(plan *p, uint32_t n_order) {
    bool guarantees = sched_has_guarantees(p->s);
    for (int more = 0; more <= guarantees; more++)
        for (uint32_t i = 0; i < n_order && p->st->b.n_seqs < p->s->limits.running_max; i++) {
            seq *q = p->s->order[i];
            if (q->state != SEQ_RUNNING || seq_n_wanted(q) != 1 ||
                q->planned_plan == p->s->plan_no || q->refused_plan == p->s->plan_no ||
                (guarantees && more == 0 && !sched_is_secure(p->s, q)))
                continue;
            plan_drafts(p, q, n_order - i - 1);
            plan_rows(p, q, 1 + q->n_drafts);
        }
}

/* How long the step may take with prompts beside the rows that it already has. */
static uint64_t step_budget_us(const plan *p) {
    rate_work work = step_work(p->st);
    uint64_t budget_us = sched_budget_us(p->s, p->m, &work);
    /* The request with the earliest deadline, of any model, must still get a step before it. */
    if (p->due_us != 0) {
        uint64_t at_us = p->now_us + p->s->typical_us;
        budget_us = u64_min(budget_us, p->due_us > at_us ? p->due_us - at_us : 0);
    }
    if (work.rows == 0) {
        rate_add_rows(&work, 0, 1);
        return u64_max(budget_us, 2 * rate_us(&p->m->rate, &work));
    }
    uint64_t alone_us = rate_us(&p->m->rate, &work);
    return u64_max(budget_us, alone_us + alone_us / 4);
}

/* Bounds of a step: its time, and its rows. */
typedef struct step_bound {
    uint64_t us;
    uint32_t rows;
} step_bound;

/* Rows of a sequence that the step still has time for, at least one, or it would never advance.
 * The first prompt gets at least half as many as decode: even if all time goes with the rows, the
 * step is then half as long again, and the rate learns from steps that differ that much. */
static uint32_t chunk_rows(const plan *p, const seq *q, const step_bound *bound) {
    const step *st = p->st;
    rate_work work = step_work(st);
    uint32_t n_max = u32_min(seq_n_wanted(q), bound->rows - work.rows);
    uint32_t least = u32_max(st->n_prefill_rows == 0 ? work.rows / 2 : 0, 1);
    uint32_t n = rate_rows(&p->m->rate, bound->us, &work, q->n_computed + q->n_planned, n_max);
    return u32_max(n, u32_min(least, n_max));
}

static bool has_rows(const plan *p, uint32_t rows_max) {
    return p->st->b.n_seqs < p->s->limits.running_max && p->st->b.n_rows < rows_max;
}

/* Is there a row left, and time for it?  The first prompt gets some in any case. */
static bool has_room(const plan *p, const step_bound *bound) {
    rate_work work = step_work(p->st);
    return has_rows(p, bound->rows) &&
           (p->st->n_prefill_rows == 0 || rate_rows(&p->m->rate, bound->us, &work, 0, 1) > 0);
}

/* The bound for prompts that are not aged: what the step takes so far, and the time and rows of
 * prompts without the part of aged ones.  On a fast device the rows run out first. */
static step_bound bound_of_others(const plan *p, uint32_t n_order, step_bound all) {
    rate_work work = step_work(p->st);
    uint64_t so_far_us = work.rows > 0 ? rate_us(&p->m->rate, &work) : 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_order; i++)
        n += wants_rows(p, p->s->order[i]) && is_aged(p->s, p->s->order[i], p->now_us);
    if (n == 0) return all;
    uint32_t rows = all.rows - u32_min(work.rows, all.rows);
    step_bound others = all;
    others.rows -= u32_min(rows, u32_max(rows / AGED_PARTS, n));
    if (all.us > so_far_us) others.us -= (all.us - so_far_us) / AGED_PARTS;
    return others;
}

/* Prompts of running aged sequences, the oldest first, have an eighth of the time of prompts, or
 * more urgent prompts could starve them for ever.  An overdue one gets a row in any case. */
static void plan_aged(plan *p, uint32_t n_order, step_bound all) {
    sched *s = p->s;
    uint32_t n_rows = 0;
    for (uint32_t i = 0; i < n_order && has_rows(p, all.rows); i++) {
        seq *q = s->order[i];
        if (!wants_rows(p, q) || !is_aged(s, q, p->now_us) || !bring_back(p, q)) continue;
        rate_work work = step_work(p->st);
        uint32_t n_max = u32_min(seq_n_wanted(q), all.rows - work.rows);
        uint32_t n = rate_rows(&p->m->rate, all.us, &work, q->n_computed + q->n_planned, n_max);
        if (sched_is_overdue(s, q, p->now_us)) n = u32_max(n, 1);
        if (n == 0) continue;
        keep_age(p, q, class_in_batch(s, q, p->now_us));
        n_rows += plan_rows(p, q, n);
    }
    p->st->n_prefill_rows += n_rows;
}

static void plan_chunks(plan *p, uint32_t n_order) {
    sched *s = p->s;
    step *st = p->st;
    const step_bound all = {step_budget_us(p), s->limits.step_tokens_max};
    const step_bound others = bound_of_others(p, n_order, all);
    for (uint32_t i = 0; has_rows(p, all.rows);) {
        while (i < n_order && !wants_rows(p, s->order[i])) i++;
        seq *q = i < n_order ? s->order[i] : NULL;
        seq *w = window_next(p, precedes);
        if (q == NULL && w == NULL) break;
        bool comes = w != NULL && (q == NULL || precedes(p, w, q));
        bool aged = !comes && is_aged(s, q, p->now_us);
        const step_bound *its = aged ? &all : &others;
        if (!has_room(p, its)) break;
        if (comes) {
            if (!window_try(p, w)) continue;
            q = w;
        } else {
            i++;
        }
        if (!bring_back(p, q)) continue;
        if (aged) keep_age(p, q, class_in_batch(s, q, p->now_us));
        st->n_prefill_rows += plan_rows(p, q, chunk_rows(p, q, its));
    }
    plan_aged(p, n_order, all);
}

/* Does a sequence run that w may preempt? */
static bool outranks_one(const plan *p, const seq *w) {
    bool claims = claims_memory(p->s, w);
    LIST_EACH(node, &p->s->running)
        if (may_preempt(p->s, w, claims, LIST_ENTRY(node, seq, link))) return true;
    return false;
}

/* The batch has a slot and the pool has pages for w, so plan_chunks admits w in order.  Admitted
 * before that, new requests would take each free slot from requests that waited longer, as long as
 * any running sequence, of any model, is less urgent than they are. */
static bool needs_no_victim(const plan *p, const seq *w) {
    bool full;
    return p->n_active < p->s->limits.running_max && fits(p, w, false, &full);
}

/* Admit urgent requests before any sequence has rows, because a plan cannot preempt sequences in
 * it.  Afterwards all waiting requests are tried in another order, also the one refused first. */
static void admit_urgent(plan *p) {
    seq *w;
    p->window = (window){0};
    while ((w = window_next(p, outranks)) != NULL && outranks_one(p, w) && !needs_no_victim(p, w))
        window_try(p, w);
    if (p->window.shut_by != NULL) p->window.shut_by->refused_plan = 0;
    p->window = (window){0};
}

static bool plan_model(plan *p) {
    step *st = p->st;
    st->model_idx = (uint32_t)(p->m - p->s->models);
    st->b.n_rows = st->b.n_seqs = st->b.n_logits = 0;
    st->n_prefill_rows = 0;
    st->n_attended = 0;
    st->charge_us = 0;
    count_active(p);
    count_models(p);
    give_up_batch_slots(p);
    retake_batch_slots(p, true);
    admit_urgent(p);
    retake_batch_slots(p, false);
    uint32_t n_order = collect_running(p);
    uint32_t n_overdue_rows = plan_overdue(p);
    n_order = u32_min(n_order, p->s->limits.running_max - st->b.n_seqs);
    plan_single_rows(p, n_order);
    plan_chunks(p, n_order);
    st->n_prefill_rows += n_overdue_rows;
    return st->b.n_rows > 0;
}

bool sched_plan(sched *s, uint64_t now_us, step *st) {
    INFERD_CHECK(s->pool->launched - s->pool->finished < s->limits.depth);
    s->plan_no++;
    s->clock_us = now_us;
    sched_drop_reads(s, now_us);
    expire(s, now_us);
    if (s->limits_changed || s->some_limits_changed) sched_recheck_limits(s, now_us);
    trim_caches(s);
    plan p = {.s = s, .st = st, .now_us = now_us};
    sched_choice choice;
    while (sched_choose(s, now_us, &choice)) {
        p.m = choice.m;
        p.tier = choice.tier;
        st->tier = choice.tier;
        p.due_us = choice.due_us;
        if (p.m->tried_plan != s->plan_no) p.m->tried_tiers = 0;
        p.m->tried_plan = s->plan_no;
        p.m->looked_plan = 0;
        p.m->tried_tiers |= 1u << p.tier;
        if (!plan_model(&p)) continue;
        st->epoch = pool_launch(s->pool);
        p.m->n_steps++;
        p.m->stepped_us = now_us;
        rate_work work = step_work(st);
        sched_note_outranked(s, choice.prio, now_us);
        st->predicted_us = rate_us(&p.m->rate, &work);
        for (uint32_t i = 0; i < st->b.n_seqs; i++) st->items[i].q->last_epoch = st->epoch;
        s->blocked_since_us = 0;
        return true;
    }
    if (s->pool->launched != s->pool->finished || s->n_running + s->n_waiting == 0)
        s->blocked_since_us = 0;
    else if (s->blocked_since_us == 0)
        s->blocked_since_us = now_us;
    return false;
}
