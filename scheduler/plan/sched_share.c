/* sched_share.c - chooses the model of the next step, and charges a step to its sequences.
 *
 *     sched_choose    which model is planned next, and for which tier
 *     sched_charge    what a step took, split over its sequences
 *
 * A sequence is in one of three *tiers*: entitled (its tenant or its model has a guarantee that is
 * not used up), surplus, or none (a fixed share is used up, or its weight is 0).  A step has
 * sequences of one tier only, or a guarantee would be spent on waiting for others.  Entitled
 * sequences go first.  The order in a tier, after overdue sequences:
 *
 *     a class that got less than its floor   (starvation_percent of the time it waited)
 *     class
 *     urgent deadlines, the earliest first
 *     the smallest virtual time, of steps of this tier
 *
 * A deadline is urgent when two more steps would miss it.  A deadline that has passed by more than
 * its own target is late: hurrying would only make others late, too.
 *
 * The microseconds of a step are split by what the rate says each sequence cost, so that they add
 * up exactly.  Rows computed again after a preemption are waste: no tenant is charged for them. */
#include <string.h>

#include "sched_state.h"

enum {
    /* Virtual units of a microsecond at weight 1: a step still counts at the largest weights, 10^8
     * together, and at the smallest 64 bits last for two years of steps. */
    VIRTUAL_ONE = 1 << 18,
    WHOLE_PERCENT = 100,
    URGENT_STEPS = 2,      // of a typical length, before a deadline
    FLOOR_DEBT_US = 20000, // more time beyond its floor is not counted against a class
    SLACK_TOKENS = 16,     // the most slack that an early first token leaves
    SLACK_BACK_EVERY = 8   // so many tokens give back the slack of one
};

/* ---- policies ---- */

void sched_set_model_policy(sched *s, uint32_t model_idx, const model_policy *policy,
                            uint64_t now_us) {
    sched_model *m = &s->models[model_idx];
    share_set(&m->share, policy->share.policy, share_percent_each(&policy->share), policy->weight,
              now_us);
    m->ttft_us = (uint64_t)policy->slo_ttft_ms * 1000;
    m->tpot_us = (uint64_t)policy->slo_tpot_ms * 1000;
}

static share_bucket *tenant_of(const sched *s, const seq *q) {
    return q->req->tenant_idx < s->n_tenants ? &s->tenants[q->req->tenant_idx].share : NULL;
}

/* ---- deadlines ---- */

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
    uint64_t tpot = r->tpot_target_ms != 0 ? (uint64_t)r->tpot_target_ms * 1000 : m->tpot_us;
    uint64_t n_output = seq_n_output(q);
    *target_us = n_output == 0 ? ttft : tpot;
    if (*target_us == 0) return 0;
    if (n_output == 0) return r->arrival_us + ttft;
    int64_t slack = slack_us(q, ttft, tpot, n_output);
    return (uint64_t)((int64_t)(q->first_token_us + n_output * tpot) + slack);
}

/* ---- tiers ---- */

static sched_tier tier_now(sched *s, const seq *q, uint64_t now_us, uint64_t overdraw_us) {
    share_bucket *t = tenant_of(s, q), *m = &seq_model(s, q)->share;
    share_refill(m, now_us);
    if (t != NULL) share_refill(t, now_us);
    if (!share_may_run(m, overdraw_us) || (t != NULL && !share_may_run(t, overdraw_us))) {
        uint64_t ready_us = share_ready_us(m, now_us);
        uint64_t tenant_us = t != NULL ? share_ready_us(t, now_us) : now_us;
        if (tenant_us > ready_us) ready_us = tenant_us;
        if (ready_us < s->share_ready_us) s->share_ready_us = ready_us;
        return TIER_NONE;
    }
    if (share_is_entitled(m) || (t != NULL && share_is_entitled(t))) return TIER_ENTITLED;
    return m->weight == 0 || (t != NULL && t->weight == 0) ? TIER_NONE : TIER_SURPLUS;
}

sched_tier sched_tier_of(sched *s, const seq *q, uint64_t now_us) {
    return tier_now(s, q, now_us, q->urgent_plan == s->plan_no ? s->typical_us : 0);
}

uint64_t sched_full_us(const sched *s, const seq *q) {
    const share_bucket *t = tenant_of(s, q);
    uint64_t model_us = share_full_us(&s->models[q->model_idx].share);
    uint64_t tenant_us = t != NULL ? share_full_us(t) : UINT64_MAX;
    return model_us < tenant_us ? model_us : tenant_us;
}

uint32_t sched_batch_slots_kept(const sched *s, uint32_t tenant_idx) {
    if (tenant_idx >= s->n_tenants) return 0;
    uint32_t percent = s->tenants[tenant_idx].share.percent;
    return percent == 0 ? 0 : u32_max(percent * s->limits.running_max / WHOLE_PERCENT, 1);
}

const char *sched_pause_reason(const sched *s, const seq *q) {
    const share_bucket *t = tenant_of(s, q);
    const share_bucket *m = &s->models[q->model_idx].share;
    if (m->policy != SHARE_BESTEFFORT || (t != NULL && t->policy != SHARE_BESTEFFORT)) return "";
    if (m->weight == 0) return ": its model is paused (weight 0)";
    return t != NULL && t->weight == 0 ? ": its tenant is paused (weight 0)" : "";
}

/* ---- choosing ---- */

/* A class that waits while others run saves up its floor: so much time it may go before them. */
static void refill_floors(sched *s, uint32_t classes, uint64_t now_us) {
    for (uint32_t c = 0; c < GEN_CLASSES; c++) {
        share_bucket *f = &s->floors[c];
        if ((classes & 1u << c) == 0) f->refilled_us = now_us; // nothing of it is ready
        share_refill(f, now_us);
        int64_t least = -(int64_t)FLOOR_DEBT_US * 100;
        if (f->level < least) f->level = least;
    }
}

static bool comes_before(const sched_choice *a, const sched_choice *b) {
    if (a->tier != b->tier) return a->tier < b->tier;
    if (a->overdue != b->overdue) return a->overdue;
    if (a->floor != b->floor) return a->floor;
    if (a->prio != b->prio) return a->prio < b->prio;
    if (a->late != b->late) return b->late;
    if ((a->deadline_us != 0) != (b->deadline_us != 0)) return a->deadline_us != 0;
    if (a->deadline_us != b->deadline_us) return a->deadline_us < b->deadline_us;
    if (a->full_us != b->full_us) return a->full_us < b->full_us;
    if (a->virtual_us != b->virtual_us) return a->virtual_us < b->virtual_us;
    if (a->runs != b->runs) return a->runs;
    return a->arrival_no < b->arrival_no;
}

/* Could this sequence be in a step now, apart from its share? */
static bool is_ready(const sched *s, const seq *q) {
    const sched_model *m = &s->models[q->model_idx];
    if (!m->hot || q->paused) return false;
    if (q->state == SEQ_RUNNING) return seq_n_wanted(q) > 0;
    return sched_can_start(s, q);
}

/* Fills in what orders this sequence; false: it may not run in this plan. */
static bool consider(sched *s, seq *q, uint64_t now_us, sched_choice *out) {
    uint64_t target_us, deadline_us = deadline_of(s, q, &target_us);
    uint64_t margin_us = URGENT_STEPS * s->typical_us;
    bool late = deadline_us != 0 && now_us > deadline_us + target_us;
    bool urgent = deadline_us != 0 && !late && now_us + margin_us >= deadline_us;
    if (urgent) q->urgent_plan = s->plan_no;
    *out = (sched_choice){
        .m = seq_model(s, q),
        .tier = sched_tier_of(s, q, now_us),
        .prio = late && s->limits.objective == OBJECTIVE_SLA ? q->req->prio
                                                             : sched_class_now(s, q, now_us),
        .late = late && s->limits.objective == OBJECTIVE_SLA,
        .overdue = sched_is_overdue(s, q, now_us) &&
                   now_us >= seq_model(s, q)->stepped_us + s->limits.starvation_us,
        .deadline_us = urgent ? deadline_us : 0,
        .due_us = late || q->displaced || seq_n_output(q) == 0 ? 0 : deadline_us,
        .runs = q->state == SEQ_RUNNING,
        .arrival_no = q->arrival_no};
    if (out->tier == TIER_NONE) return false;
    sched_see_flow(s, &s->flows[q->flow], out->tier, now_us);
    out->virtual_us = s->flows[q->flow].virtual_us[out->tier];
    out->full_us = out->tier == TIER_ENTITLED ? sched_full_us(s, q) : UINT64_MAX;
    bool tried = out->m->tried_plan == s->plan_no && (out->m->tried_tiers >> out->tier & 1) != 0;
    return !tried;
}

/* The first sequence of each class (of the requests), from one list of a hot model. */
static void look_at_list(sched *s, sched_model *m, const list_node *list, uint64_t now_us) {
    sched_choice c;
    LIST_EACH(node, list) {
        seq *q = LIST_ENTRY(node, seq, mine);
        if (!is_ready(s, q)) continue;
        uint32_t prio = q->req->prio, bit = 1u << prio;
        m->ready |= bit;
        if (!consider(s, q, now_us, &c)) continue;
        if (c.due_us != 0 && (m->due_us == 0 || c.due_us < m->due_us)) m->due_us = c.due_us;
        if ((m->found & bit) == 0 || comes_before(&c, &m->best[prio])) m->best[prio] = c;
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
    if (q == NULL || s->relief_epoch > s->pool->finished) return false;
    s->relief_for = NULL;
    return is_ready(s, q) && consider(s, q, now_us, out);
}

/* A typical step, but at most what a class can save up. */
static int64_t floor_us(const sched *s) {
    uint32_t cap_us = share_cap_us(s->limits.starvation_percent);
    return (int64_t)(s->typical_us < cap_us ? s->typical_us : cap_us);
}

bool sched_choose(sched *s, uint64_t now_us, sched_choice *out) {
    uint32_t classes = 0, found = 0; // as bits: a sequence is ready; one may run
    bool any = false;
    sched_choice best[GEN_CLASSES];
    uint64_t ready_us = UINT64_MAX, due_us = 0; // due: the earliest, of all models
    for (uint32_t i = 0; i < s->n_models; i++) {
        sched_model *m = &s->models[i];
        if (!m->hot) continue;
        if (m->looked_plan != s->plan_no) look_at(s, m, now_us);
        if (m->ready_us < ready_us) ready_us = m->ready_us;
        if (m->due_us != 0 && (due_us == 0 || m->due_us < due_us)) due_us = m->due_us;
        classes |= m->ready;
        for (uint32_t prio = 0; prio < GEN_CLASSES; prio++) {
            if ((m->found >> prio & 1) == 0) continue;
            if ((found >> prio & 1) == 0 || comes_before(&m->best[prio], &best[prio]))
                best[prio] = m->best[prio];
        }
        found |= m->found;
    }
    s->share_ready_us = ready_us;
    refill_floors(s, classes, now_us);
    for (uint32_t prio = 0; prio < GEN_CLASSES; prio++) {
        sched_choice *c = &best[prio];
        if ((found >> prio & 1) == 0) continue;
        c->floor = s->limits.starvation_percent > 0 && (classes & ((1u << prio) - 1)) != 0 &&
                   s->floors[prio].level >= floor_us(s) * WHOLE_PERCENT;
        if (!any || comes_before(c, out)) *out = *c;
        any = true;
    }
    sched_choice claimant;
    if (takes_relief(s, now_us, &claimant)) {
        *out = claimant;
        any = true;
    }
    if (any) out->due_us = due_us; // prompts leave time for it
    return any;
}

/* ---- charging ---- */

flow_usage *sched_flow_usage(sched *s) {
    return &s->flow_usage;
}

static double cost_of(const rate *r, const step_item *item, uint32_t n_items) {
    rate_work w = {.draws = item->n_draws};
    rate_add_rows(&w, item->begin, item->n_rows);
    double known = r->price[1] + r->price[2] + r->price[3];
    if (known <= 0) return w.rows;
    return r->price[0] / n_items + r->price[1] * w.rows + r->price[2] * w.draws +
           r->price[3] * (double)w.attended;
}

/* Rows that it had computed before, when it was preempted. */
static uint32_t rows_redone(const step_item *item) {
    uint32_t end = item->begin + item->n_rows, until = item->q->redo_until;
    if (item->begin >= until) return 0;
    return u32_min(end, until) - item->begin;
}

/* Rows of its prompt that are computed for the first time. */
static uint32_t prompt_rows(const step_item *item) {
    uint32_t end = u32_min(item->begin + item->n_rows, item->q->req->n_prompt);
    uint32_t begin = u32_max(item->begin, item->q->redo_until);
    return end > begin ? end - begin : 0;
}

void sched_note_use(sched *s, const seq *q, const engine_flow *use) {
    flow *p = sched_flow_of(s, q);
    flow_usage_charge(&s->flow_usage, &p->flow_usage, p->tenant, p->model, use);
}

static void charge_item(sched *s, const step_item *item, sched_tier tier, uint64_t us) {
    seq *q = item->q;
    flow *p = sched_flow_of(s, q);
    share_bucket *t = tenant_of(s, q), *m = &seq_model(s, q)->share;
    uint64_t waste_us = us * rows_redone(item) / item->n_rows;
    q->waste_us += waste_us;
    s->waste_us += waste_us;
    us -= waste_us;
    q->device_us += us;
    s->charged_us += us;
    s->counters.class_us[q->req->prio] += us;
    engine_flow use = {.device_us = us, .prompt_tokens = prompt_rows(item)};
    sched_note_use(s, q, &use);
    uint64_t weight = (uint64_t)u32_max(m->weight, 1) * (t != NULL ? u32_max(t->weight, 1) : 1);
    p->virtual_rest[tier] += us * VIRTUAL_ONE;
    p->virtual_us[tier] += p->virtual_rest[tier] / weight;
    p->virtual_rest[tier] %= weight;
    s->virtual_us[tier] = p->virtual_us[tier];
    share_charge(m, us, tier == TIER_ENTITLED);
    if (t != NULL) share_charge(t, us, tier == TIER_ENTITLED);
    share_charge(&s->floors[q->req->prio], us, true);
}

void sched_charge(sched *s, const step *st, uint64_t us) {
    const rate *r = &s->models[st->model_idx].rate;
    double total = 0, passed = 0;
    uint64_t given = 0;
    rate_note_typical(&s->typical_us, us);
    for (uint32_t i = 0; i < st->b.n_seqs; i++) total += cost_of(r, &st->items[i], st->b.n_seqs);
    for (uint32_t i = 0; i < st->b.n_seqs; i++) {
        passed += cost_of(r, &st->items[i], st->b.n_seqs);
        uint64_t until = i + 1 == st->b.n_seqs ? us : (uint64_t)((double)us * passed / total);
        if (until < given) until = given;
        if (until > us) until = us;
        charge_item(s, &st->items[i], (sched_tier)st->tier, until - given);
        given = until;
    }
}

void sched_set_policy(sched *s, const sched_limits *limits, uint64_t now_us) {
    s->limits.starvation_percent = limits->starvation_percent;
    s->limits.objective = limits->objective;
    s->limits.pace_us = limits->pace_us;
    s->limits.background_copies = limits->background_copies;
    for (uint32_t c = 0; c < GEN_CLASSES; c++)
        share_set(&s->floors[c], SHARE_BURST, limits->starvation_percent, 1, now_us);
}
