/* plan.c - plans a step; plan.h has the way it goes. */
#include "plan.h"

#include <string.h>

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

bool sched_is_blocked(const sched *s, uint64_t now_us) {
    return s->blocked_since_us != 0 && now_us >= s->blocked_since_us + s->limits.starvation_us;
}

/* ---- the plan ---- */

static bool plan_model(plan *p) {
    step *st = p->st;
    st->model_idx = (uint32_t)(p->m - p->s->models);
    st->b.n_rows = st->b.n_seqs = st->b.n_logits = 0;
    st->b.draws_later = st->masked = false;
    st->n_prefill_rows = 0;
    st->n_attended = 0;
    st->charge_us = 0;
    plan_count_active(p);
    plan_admit_first(p);
    plan_fill(p);
    return st->b.n_rows > 0;
}

bool sched_plan(sched *s, uint64_t now_us, step *st) {
    INFERD_CHECK(s->pool->launched - s->pool->finished < s->limits.depth);
    s->plan_no++;
    s->clock_us = now_us;
    sched_drop_reads(s, now_us);
    if (!list_empty(&s->asked)) sched_collect(s, now_us);
    expire(s, now_us);
    if (s->limits_changed || s->some_limits_changed) sched_recheck_limits(s, now_us);
    plan_trim_caches(s);
    plan p = {.s = s, .st = st, .now_us = now_us};
    sched_choice choice;
    while (sched_choose(s, now_us, &choice)) {
        p.m = choice.m;
        p.tier = choice.key.tier;
        st->tier = choice.key.tier;
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
        sched_note_outranked(s, choice.key.prio, now_us);
        st->predicted_us = rate_us(&p.m->rate, &work);
        sched_expect(s, st);
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
