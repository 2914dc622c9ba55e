/* charge.c - what a step took, split over its sequences.
 *
 * The microseconds of a step are split by what the rate says each sequence cost, so that they add
 * up exactly.  Rows computed again after a preemption are waste: no tenant is charged for them.
 * What the urgent allowance paid for is charged to the tenant's usage, and to no share.
 * Thread: engine. */
#include "sched_state.h"

/* ---- policies ---- */

void sched_set_share(sched *s, share_bucket *a, const share_spec *share, uint32_t weight,
                     uint64_t now_us) {
    s->n_shares -= a->percent > 0;
    share_set(a, share->policy, share_percent_each(share), weight, sched_share_clock(s, now_us));
    s->n_shares += a->percent > 0;
}

uint32_t sched_weight_of(const sched *s, const seq *q) {
    uint32_t idx = q->req->tenant_idx;
    return idx < s->n_tenants ? u32_max(s->tenants[idx].share.weight, 1) : 1;
}

void sched_set_model_policy(sched *s, uint32_t model_idx, const model_policy *policy,
                            uint64_t now_us) {
    sched_model *m = &s->models[model_idx];
    sched_set_share(s, &m->share, &policy->share, policy->weight, now_us);
    m->ttft_us = (uint64_t)policy->slo_ttft_ms * 1000;
    m->tpot_us = (uint64_t)policy->slo_tpot_ms * 1000;
}

/* ---- charging ---- */

static share_bucket *tenant_of(const sched *s, const seq *q) {
    return q->req->tenant_idx < s->n_tenants ? &s->tenants[q->req->tenant_idx].share : NULL;
}

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

static void charge_item(sched *s, step_item *item, sched_tier tier, uint64_t us) {
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
    uint64_t weight = (uint64_t)u32_max(m->weight, 1) * sched_weight_of(s, q);
    uint32_t part = flow_part(tier);
    p->virtual_rest[part] += us * VIRTUAL_ONE;
    p->virtual_us[part] += p->virtual_rest[part] / weight;
    p->virtual_rest[part] %= weight;
    s->virtual_us[part] = p->virtual_us[part];
    share_charge(m, us, tier == TIER_ENTITLED);
    if (t != NULL) share_charge(t, us, tier == TIER_ENTITLED);
    if (tier == TIER_URGENT) share_charge(&s->urgent, us, true);
    share_charge(&s->floors[q->req->prio], us, true);
}

typedef void takes_part(sched *s, step_item *item, sched_tier tier, uint64_t us);

/* Divides us over the sequences of the step, by what each cost. */
static void divide(sched *s, step *st, uint64_t us, takes_part *take) {
    const rate *r = &s->models[st->model_idx].rate;
    double total = 0, passed = 0;
    uint64_t given = 0;
    for (uint32_t i = 0; i < st->b.n_seqs; i++) total += cost_of(r, &st->items[i], st->b.n_seqs);
    for (uint32_t i = 0; i < st->b.n_seqs; i++) {
        passed += cost_of(r, &st->items[i], st->b.n_seqs);
        uint64_t until = i + 1 == st->b.n_seqs ? us : (uint64_t)((double)us * passed / total);
        if (until < given) until = given;
        if (until > us) until = us;
        take(s, &st->items[i], (sched_tier)st->tier, until - given);
        given = until;
    }
}

static void expect_item(sched *s, step_item *item, sched_tier tier, uint64_t us) {
    share_bucket *t = tenant_of(s, item->q);
    item->expected_us = tier == TIER_ENTITLED ? us : 0;
    share_expect(&seq_model(s, item->q)->share, item->expected_us);
    if (t != NULL) share_expect(t, item->expected_us);
}

void sched_expect(sched *s, step *st) {
    divide(s, st, st->predicted_us, expect_item);
}

void sched_unexpect(sched *s, const step *st) {
    for (uint32_t i = 0; i < st->b.n_seqs; i++) {
        const step_item *item = &st->items[i];
        share_bucket *t = tenant_of(s, item->q);
        share_unexpect(&seq_model(s, item->q)->share, item->expected_us);
        if (t != NULL) share_unexpect(t, item->expected_us);
    }
}

void sched_charge(sched *s, step *st, uint64_t us) {
    sched_unexpect(s, st);
    rate_note_typical(&s->typical_us, us);
    if (st->tier == TIER_URGENT) s->urgent_us += us;
    divide(s, st, us, charge_item);
}

void sched_set_policy(sched *s, const sched_limits *limits, uint64_t now_us) {
    s->limits.urgent_percent = limits->urgent_percent;
    s->limits.pace_us = limits->pace_us;
    share_set(&s->urgent, SHARE_BURST, limits->urgent_percent, 1, now_us);
}
