/* sched_time.c - can the targets of the running sequences be kept?
 *
 * Each model with running sequences that have a target per token is a periodic task: C is its
 * decode step as the rate predicts it, T the smallest target.  feasible.h has the inequality.  It
 * is asked when targets are configured, and shown in the figures; a request is never refused for
 * it, but waits behind those that can still meet theirs (order.c, rule 5).
 * Thread: engine. */
#include "sched_state.h"

/* A decode step of the sequences of this model that run, and n_more others. */
static uint64_t decode_us(const sched_model *m, uint32_t n_more) {
    rate_work w = {0};
    LIST_EACH(node, &m->running) {
        const seq *q = LIST_ENTRY(node, seq, mine);
        if (q->paused || q->displaced) continue;
        rate_add_rows(&w, q->n_computed, 1);
        w.draws++;
    }
    for (uint32_t i = 0; i < n_more; i++) {
        rate_add_rows(&w, 0, 1);
        w.draws++;
    }
    return w.rows > 0 ? rate_us(&m->rate, &w) : 0;
}

uint64_t sched_tpot_us(const sched *s, const seq *q) {
    return q->req->tpot_target_ms != 0 ? (uint64_t)q->req->tpot_target_ms * 1000
                                       : s->models[q->model_idx].tpot_us;
}

/* The smallest target of the sequences that run; 0: none has one. */
static uint64_t period_of(const sched *s, const sched_model *m) {
    uint64_t least = 0;
    LIST_EACH(node, &m->running) {
        const seq *q = LIST_ENTRY(node, seq, mine);
        if (q->displaced) continue;
        uint64_t us = sched_tpot_us(s, q);
        if (us != 0 && (least == 0 || us < least)) least = us;
    }
    return least;
}

void sched_add_task(const sched *s, uint32_t model_idx, uint64_t *cost_us, uint64_t *period_us) {
    const sched_model *m = &s->models[model_idx];
    uint64_t least_us = period_of(s, m);
    LIST_EACH(node, &m->waiting) {
        uint64_t us = sched_tpot_us(s, LIST_ENTRY(node, seq, mine));
        if (us != 0 && (least_us == 0 || us < least_us)) least_us = us;
    }
    uint32_t n_waiting = m->n_seqs - m->n_running, n_max = s->limits.running_max;
    uint32_t n_more = u32_min(n_waiting, n_max > m->n_running ? n_max - m->n_running : 0);
    *cost_us += decode_us(m, n_more);
    if (least_us != 0 && (*period_us == 0 || least_us < *period_us)) *period_us = least_us;
}

static uint32_t narrow(uint64_t us) {
    return us < UINT32_MAX ? (uint32_t)us : UINT32_MAX;
}

uint32_t sched_attainment_ppm(const sched *s) {
    feasible_load load = {0};
    for (uint32_t i = 0; i < s->n_models; i++) {
        const sched_model *m = &s->models[i];
        if (m->open && m->n_running > 0)
            feasible_load_add(&load, narrow(decode_us(m, 0)), narrow(period_of(s, m)));
    }
    return (uint32_t)feasible_attainment_ppm(&load);
}
