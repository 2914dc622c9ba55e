/* order.c - which sequence computes first, and which gives up memory.
 *
 * A sequence that could compute in this plan has one key (order.h), made once and compared by one
 * function, for the model of the next step, for batch slots, for admission and for rows.  Each rule
 * decides among sequences that are equal by those before it:
 *
 *   1. Share.  Sequences of a tenant or model with a guaranteed share that is not used up are
 *      entitled; they go before the surplus.  Work of a fixed share that is used up does not run.
 *      Where there are shares, requests of the classes system and high that would wait for the
 *      surplus go before all of them, as long as the urgent allowance lasts: urgent_percent of the
 *      device's time.  A step has sequences of one of these tiers only, or a guarantee would be
 *      spent on waiting for others.
 *   2. Floor.  A class that got less than starvation_percent of the time that it waited behind
 *      others goes first, and so does a running sequence that had no rows for starvation_us.  They
 *      are at most an eighth of a batch, those that stood still longest.
 *   3. Class of the request.
 *   4. Its priority within its class (rank).
 *   5. Late.  A request that cannot have its first token in time any more waits behind those that
 *      can; one in eight starts ignores this.
 *   6. Deadline.  A token is urgent when two more steps would miss its target; the earliest first.
 *      A token that is late by more than its own target is not urgent: hurrying would only make
 *      others late, too.
 *   7. Bucket.  Among entitled sequences the one that is owed most time.
 *   8. Virtual time: time received, divided by weight, for each flow (one tenant's work on one
 *      model); entitled time and surplus apart.
 *   9. Arrival.
 *
 * A batch is the first running_max sequences in this order.  A waiting request finds a slot while
 * fewer than running_max sequences of its class and above run; those that are then behind the
 * running_max-th are displaced: they keep their blocks, and get rows by rule 2, or when others end.
 * A sequence of a flow that is ahead of a flow with more weight by more than a step yields: it has
 * no rows until the other has caught up.  So weights divide time also when all sequences fit.  It
 * does not yield to one that lacks pages.
 *
 * A sequence takes pages of another by one rule (plan_may_take):
 *
 *   a. of one that stands still because its client does not read;
 *   b. of one of a lower class;
 *   c. a running one also of those of its class that came later: newest first, and those that were
 *      preempted three times last;
 *   d. within its own guarantee, of any that is above its guarantee; never of one within its own,
 *      but for a, b and c;
 *   e. of an equal, when its model computes nothing for want of pages and the other's goes on;
 *   f. a running one within its guarantee, of one of its class above its own, when its model
 *      computes nothing for want of pages: the other may take nothing of it.
 *
 * The weights of a model that waiting work needs take pages by rule b alone, and not of a sequence
 * within a guarantee (sched_preempt_lower), before they take those of an idle model.  Until these
 * pages are there, sequences of a lower class neither begin nor take blocks (sched_leaves_room).
 * Thread: engine. */
#include "plan.h"

enum {
    WHOLE_PERCENT = 100,
    URGENT_STEPS = 2,    // of a typical length, before a deadline
    LATE_EVERY = 8,      // of so many starts one ignores lateness
    SLACK_TOKENS = 16,   // the most slack that an early first token leaves
    SLACK_BACK_EVERY = 8 // so many tokens give back the slack of one
};

static share_bucket *tenant_of(const sched *s, const seq *q) {
    return q->req->tenant_idx < s->n_tenants ? &s->tenants[q->req->tenant_idx].share : NULL;
}

/* ---- rule 1: shares ---- */

/* `overdraw_us`: debt that a fixed share may have now. */
static bool may_run(sched *s, const seq *q, uint64_t now_us, uint64_t overdraw_us) {
    share_bucket *t = tenant_of(s, q), *m = &seq_model(s, q)->share;
    share_refill(m, sched_share_clock(s, now_us));
    if (t != NULL) share_refill(t, sched_share_clock(s, now_us));
    share_want(m);
    if (t != NULL) share_want(t);
    if (share_may_run(m, overdraw_us) && (t == NULL || share_may_run(t, overdraw_us))) return true;
    uint64_t ready_us = share_ready_us(m, now_us);
    uint64_t tenant_us = t != NULL ? share_ready_us(t, now_us) : now_us;
    s->share_ready_us = u64_min(s->share_ready_us, u64_max(ready_us, tenant_us));
    return false;
}

/* 0: it is not entitled. */
static uint64_t owed(const sched *s, const seq *q) {
    const share_bucket *t = tenant_of(s, q);
    uint64_t by_model = share_owed(&s->models[q->model_idx].share);
    return u64_max(by_model, t != NULL ? share_owed(t) : 0);
}

static bool has_allowance(sched *s, const seq *q, uint64_t now_us) {
    if (q->req->prio > GEN_HIGH || s->n_shares == 0 || s->urgent.percent == 0) return false;
    share_refill(&s->urgent, now_us);
    return share_is_entitled(&s->urgent);
}

/* Sets the tier, and what orders entitled sequences. */
static void set_tier(sched *s, seq *q, uint64_t now_us, uint64_t overdraw_us) {
    const share_bucket *t = tenant_of(s, q), *m = &seq_model(s, q)->share;
    q->key.owed = 0;
    q->key.tier = TIER_NONE;
    if (!may_run(s, q, now_us, overdraw_us)) return;
    q->key.owed = owed(s, q);
    q->key.tier = TIER_ENTITLED;
    if (q->key.owed > 0) return;
    q->key.tier = TIER_NONE;
    if (m->weight == 0 || (t != NULL && t->weight == 0)) return;
    q->key.tier = has_allowance(s, q, now_us) ? TIER_URGENT : TIER_SURPLUS;
}

const char *sched_pause_reason(const sched *s, const seq *q) {
    const share_bucket *t = tenant_of(s, q);
    const share_bucket *m = &s->models[q->model_idx].share;
    if (m->policy != SHARE_BESTEFFORT || (t != NULL && t->policy != SHARE_BESTEFFORT)) return "";
    if (m->weight == 0) return ": its model is paused (weight 0)";
    return t != NULL && t->weight == 0 ? ": its tenant is paused (weight 0)" : "";
}

/* ---- rule 2: floors ---- */

static bool is_overdue(const sched *s, const seq *q, uint64_t now_us) {
    return q->state == SEQ_RUNNING && s->limits.starvation_us != 0 && !q->waits_for_disk &&
           now_us >= q->idle_since_us + s->limits.starvation_us;
}

/* A typical step, but at most what a class can save up. */
static int64_t floor_us(const sched *s) {
    return (int64_t)u64_min(s->typical_us, SHARE_CAP_US);
}

/* A class that waits while others run saves up its floor: so much time it may go before them.  What
 * it had while nothing more urgent was ready is a debt of one step at most. */
static void refill_floors(sched *s, uint32_t classes, uint64_t now_us) {
    for (uint32_t c = 0; c < GEN_CLASSES; c++) {
        share_bucket *f = &s->floors[c];
        if ((classes & 1u << c) == 0) f->refilled_us = now_us; // nothing of it is ready
        share_refill(f, now_us);
        if (f->level < -floor_us(s) * WHOLE_PERCENT) f->level = -floor_us(s) * WHOLE_PERCENT;
    }
}

/* Of the classes with a ready sequence, those that are below their floor, as bits. */
static uint32_t below_floor(const sched *s, uint32_t classes) {
    uint32_t below = 0;
    for (uint32_t c = 0; c < GEN_CLASSES && s->limits.starvation_percent > 0; c++)
        if ((classes & ((1u << c) - 1)) != 0 && s->floors[c].level >= floor_us(s) * WHOLE_PERCENT)
            below |= 1u << c;
    return below;
}

uint32_t plan_floor_max(const plan *p) {
    return u32_max(p->s->limits.running_max / FLOOR_PARTS, 1);
}

/* ---- rules 5 and 6: targets ---- */

/* The slack that an early first token leaves to the tokens behind it: at most the time of
 * SLACK_TOKENS, all of it given back over the next tokens, because the target is for the mean of
 * all.  Without slack a stream that has just begun makes each step short, and all prompts wait.
 * Negative after a late first token. */
static int64_t slack_us(const seq *q, uint64_t ttft_us, uint64_t tpot_us, uint64_t n_output) {
    if (ttft_us == 0) return 0;
    int64_t early_us = (int64_t)(q->req->arrival_us + ttft_us) - (int64_t)q->first_token_us;
    uint64_t given_back = n_output / SLACK_BACK_EVERY;
    int64_t most_us =
        given_back < SLACK_TOKENS ? (int64_t)((SLACK_TOKENS - given_back) * tpot_us) : 0;
    return early_us < most_us ? early_us : most_us;
}

/* When its next token is due, and how long it may take; 0: no target. */
static uint64_t deadline_of(const sched *s, const seq *q, uint64_t *target_us) {
    const gen_request *r = q->req;
    const sched_model *m = &s->models[q->model_idx];
    uint64_t ttft = r->ttft_target_ms != 0 ? (uint64_t)r->ttft_target_ms * 1000 : m->ttft_us;
    uint64_t tpot = sched_tpot_us(s, q), n_output = seq_n_output(q);
    *target_us = n_output == 0 ? ttft : tpot;
    if (*target_us == 0) return 0;
    if (n_output == 0) return r->arrival_us + ttft;
    int64_t slack = slack_us(q, ttft, tpot, n_output);
    return (uint64_t)((int64_t)(q->first_token_us + n_output * tpot) + slack);
}

/* Can the first token not come by due_us any more?  Its prompt takes a step of every running model
 * between two of its own. */
static bool is_late(const sched *s, const seq *q, uint64_t due_us, uint64_t now_us) {
    const sched_model *m = &s->models[q->model_idx];
    if (due_us == 0 || q->state != SEQ_WAITING || q->n_preempted > 0 ||
        m->n_started % LATE_EVERY == LATE_EVERY - 1)
        return false;
    rate_work prompt = {0};
    rate_add_rows(&prompt, 0, q->n_tokens);
    uint32_t n_models = s->n_models_running + (m->n_running == 0);
    return now_us + n_models * rate_us(&m->rate, &prompt) > due_us;
}

/* ---- the key ---- */

/* Could this sequence be in a step now, apart from its share? */
static bool is_ready(const sched *s, const seq *q) {
    const sched_model *m = &s->models[q->model_idx];
    if (!m->hot || q->paused) return false;
    if (q->state == SEQ_RUNNING) return seq_n_wanted(q) > 0;
    return sched_can_start(s, q);
}

/* Makes the key of a ready sequence; false: it may not run in this plan.  *due_us: when its next
 * token is due, if a step must leave time for it, else 0. */
static bool make_key(sched *s, seq *q, uint64_t now_us, uint64_t *due_us) {
    sched_model *m = seq_model(s, q);
    uint64_t target_us, deadline_us = deadline_of(s, q, &target_us);
    bool too_late = deadline_us != 0 && now_us > deadline_us + target_us;
    bool urgent =
        deadline_us != 0 && !too_late && now_us + URGENT_STEPS * s->typical_us >= deadline_us;
    q->key = (order_key){.floor = is_overdue(s, q, now_us) &&
                                  now_us >= m->stepped_us + s->limits.starvation_us,
                         .prio = q->req->prio,
                         .rank = q->req->rank,
                         .late = is_late(s, q, deadline_us, now_us),
                         .deadline_us = urgent ? deadline_us : UINT64_MAX,
                         .arrival_no = q->arrival_no};
    q->key_plan = s->plan_no;
    set_tier(s, q, now_us, urgent ? s->typical_us : 0);
    *due_us = too_late || q->displaced || seq_n_output(q) == 0 ? 0 : deadline_us;
    if (q->key.tier == TIER_NONE) return false;
    sched_see_flow(s, &s->flows[q->flow], q->key.tier, now_us);
    q->key.virtual_us = s->flows[q->flow].virtual_us[flow_part(q->key.tier)];
    return m->tried_plan != s->plan_no || (m->tried_tiers >> q->key.tier & 1) == 0;
}

/* ---- the model of the next step ---- */

/* The first sequence of each class, from one list of a hot model. */
static void look_at_list(sched *s, sched_model *m, const list_node *list, uint64_t now_us) {
    uint64_t due_us;
    LIST_EACH(node, list) {
        seq *q = LIST_ENTRY(node, seq, mine);
        if (!is_ready(s, q)) continue;
        uint32_t prio = q->req->prio, bit = 1u << prio;
        m->ready |= bit;
        if (!make_key(s, q, now_us, &due_us)) continue;
        if (due_us != 0 && (m->due_us == 0 || due_us < m->due_us)) m->due_us = due_us;
        if ((m->found & bit) == 0 || order_before(&q->key, &m->best[prio])) m->best[prio] = q->key;
        m->found |= bit;
    }
}

/* Once per plan and model; again after a sequence of it was preempted, or the model was tried. */
static void look_at(sched *s, sched_model *m, uint64_t now_us) {
    m->looked_plan = s->plan_no;
    m->ready = m->found = 0;
    m->due_us = 0;
    s->share_ready_us = UINT64_MAX;
    look_at_list(s, m, &m->running, now_us);
    look_at_list(s, m, &m->waiting, now_us);
    m->ready_us = s->share_ready_us;
}

/* The pages that a sequence preempted another for are free: that sequence is next.  By its share
 * the preempted one could come first and take them back, only to be preempted again. */
static bool takes_relief(sched *s, uint64_t now_us, sched_choice *out) {
    seq *q = s->relief_for;
    uint64_t due_us;
    if (q == NULL || s->relief_epoch > s->pool->finished) return false;
    s->relief_for = NULL;
    if (!is_ready(s, q) || !make_key(s, q, now_us, &due_us)) return false;
    *out = (sched_choice){.m = seq_model(s, q), .key = q->key};
    return true;
}

/* Looks at all hot models.  Returns the classes with a ready sequence, as bits. */
static uint32_t look_at_all(sched *s, uint64_t now_us, uint64_t *due_us) {
    uint32_t classes = 0;
    uint64_t ready_us = UINT64_MAX;
    s->n_models_running = 0;
    for (uint32_t i = 0; i < s->n_models; i++) s->n_models_running += s->models[i].n_running > 0;
    for (uint32_t i = 0; i < s->n_models; i++) {
        sched_model *m = &s->models[i];
        if (!m->hot) continue;
        if (m->looked_plan != s->plan_no) look_at(s, m, now_us);
        ready_us = u64_min(ready_us, m->ready_us);
        if (m->due_us != 0 && (*due_us == 0 || m->due_us < *due_us)) *due_us = m->due_us;
        classes |= m->ready;
    }
    s->share_ready_us = ready_us;
    return classes;
}

bool sched_choose(sched *s, uint64_t now_us, sched_choice *out) {
    uint64_t due_us = 0;
    uint32_t classes = look_at_all(s, now_us, &due_us);
    *out = (sched_choice){0};
    refill_floors(s, classes, now_us);
    s->below_floor = below_floor(s, classes);
    for (uint32_t i = 0; i < s->n_models; i++) {
        sched_model *m = &s->models[i];
        for (uint32_t prio = 0; m->hot && prio < GEN_CLASSES; prio++) {
            if ((m->found >> prio & 1) == 0) continue;
            order_key key = m->best[prio];
            key.floor |= s->below_floor >> prio & 1;
            if (out->m == NULL || order_before(&key, &out->key))
                *out = (sched_choice){.m = m, .key = key};
        }
    }
    sched_choice claimant;
    if (takes_relief(s, now_us, &claimant)) *out = claimant;
    out->due_us = due_us; // prompts leave time for it
    return out->m != NULL;
}

/* ---- the batch ---- */

bool plan_may_join(const plan *p, const seq *q) {
    return q->key_plan == p->s->plan_no && q->key.tier == p->tier;
}

static bool may_compute(const plan *p, const seq *q) {
    return plan_may_join(p, q) && seq_n_wanted(q) > 0;
}

static void note_weight(plan *p, const seq *q) {
    heaviest *h = &p->heaviest[q->req->prio];
    uint32_t weight = sched_weight_of(p->s, q);
    if (weight < h->weight) return;
    if (weight > h->weight) *h = (heaviest){weight, UINT64_MAX};
    h->virtual_us = u64_min(h->virtual_us, q->key.virtual_us);
}

void plan_count_active(plan *p) {
    for (uint32_t c = 0; c < GEN_CLASSES; c++) {
        p->n_active[c] = 0;
        p->heaviest[c] = (heaviest){0};
    }
    LIST_EACH(node, &p->m->running) {
        const seq *q = LIST_ENTRY(node, seq, mine);
        if (!plan_may_join(p, q)) continue;
        p->n_active[q->req->prio]++;
        bool lacks_pages = q->refused_plan > q->planned_plan; // others need not wait for it
        if (seq_n_wanted(q) > 0 && !lacks_pages) note_weight(p, q);
    }
}

bool plan_yields(const plan *p, const seq *q) {
    const heaviest *h = &p->heaviest[q->req->prio];
    uint32_t weight = sched_weight_of(p->s, q);
    return p->tier == TIER_SURPLUS && weight < h->weight &&
           q->key.virtual_us > h->virtual_us + p->s->typical_us * VIRTUAL_ONE / weight;
}

/* Of the running sequences that rule 2 lets go first and that are not marked yet, the one that
 * stood still longest. */
static seq *longest_owed(const plan *p) {
    seq *first = NULL;
    LIST_EACH(node, &p->m->running) {
        seq *q = LIST_ENTRY(node, seq, mine);
        if (!may_compute(p, q) || q->key.floor) continue;
        if (((p->s->below_floor >> q->req->prio & 1) != 0 || is_overdue(p->s, q, p->now_us)) &&
            (first == NULL || q->idle_since_us < first->idle_since_us))
            first = q;
    }
    return first;
}

/* Marks the sequences of rule 2.  In a batch of one slot they get it every other time. */
static void mark_owed(plan *p) {
    uint32_t n = 0;
    LIST_EACH(node, &p->m->running) LIST_ENTRY(node, seq, mine)->key.floor = false;
    if (p->s->limits.running_max > 1 || !p->m->floor_step)
        for (seq *q; n < plan_floor_max(p) && (q = longest_owed(p)) != NULL; n++)
            q->key.floor = true;
    p->m->floor_step = n > 0;
}

uint32_t plan_order_running(plan *p) {
    seq **order = p->s->order;
    uint32_t n = 0, n_max = p->s->limits.running_max;
    mark_owed(p);
    LIST_EACH(node, &p->m->running) {
        seq *q = LIST_ENTRY(node, seq, mine);
        if (!may_compute(p, q) || (!q->key.floor && plan_yields(p, q))) continue;
        uint32_t i = n++;
        for (; i > 0 && order_before(&q->key, &order[i - 1]->key); i--) order[i] = order[i - 1];
        order[i] = q;
    }
    for (uint32_t i = 0; i < n; i++) order[i]->displaced = i >= n_max;
    return u32_min(n, n_max);
}

/* ---- taking pages ---- */

bool plan_claims(const sched *s, const seq *q) {
    return sched_has_guarantees(s) && sched_may_claim(s, q);
}

bool sched_deserves_less(const seq *a, const seq *b) {
    bool spared_a = a->n_preempted >= PREEMPTIONS_SPARED;
    bool spared_b = b->n_preempted >= PREEMPTIONS_SPARED;
    if (a->paused != b->paused) return a->paused;
    if (a->req->prio != b->req->prio) return a->req->prio > b->req->prio;
    if (a->displaced != b->displaced) return a->displaced;
    if (spared_a != spared_b) return spared_b;
    return a->arrival_no > b->arrival_no;
}

/* Rule e.  The model of `v` goes on without `v`, and `v` is not spared. */
static bool may_take_from_equal(const sched *s, const seq *q, const seq *v) {
    const sched_model *m = &s->models[q->model_idx], *others = &s->models[v->model_idx];
    return m->starved_plan == s->plan_no && others != m && v->req->prio == q->req->prio &&
           others->running.next != &v->mine && v->n_preempted < PREEMPTIONS_SPARED;
}

/* Rule f.  Both wait for a page, and only v can give one. */
static bool may_take_from_stuck(const sched *s, const seq *q, const seq *v) {
    return s->models[q->model_idx].starved_plan == s->plan_no && v->req->prio == q->req->prio &&
           sched_is_secure_from(s, q, v) && !sched_is_secure(s, v);
}

bool plan_may_take(const sched *s, const seq *q, bool claims, const seq *v) {
    /* `less`: rules a, b, c, e and f.  Pages above v's guarantee go to a q with `less` or `claims`,
     * pages within it only to a q with both, or with `less` to a q of the same owner, which has as
     * much as before then.  q claims no more than its own guarantee: beyond it two owners would
     * take pages from each other again and again. */
    bool less = q->state == SEQ_RUNNING
                    ? sched_deserves_less(v, q) || may_take_from_stuck(s, q, v)
                    : v->paused || v->req->prio > q->req->prio || may_take_from_equal(s, q, v);
    if (!sched_has_guarantees(s) || (less && claims)) return less;
    return less ? !sched_is_secure_from(s, v, q) : claims && !sched_is_secure(s, v);
}

bool plan_gives_before(const sched *s, bool claims, const seq *a, const seq *b) {
    bool secure_a = claims && sched_is_secure(s, a), secure_b = claims && sched_is_secure(s, b);
    return secure_a != secure_b ? secure_b : sched_deserves_less(a, b);
}
