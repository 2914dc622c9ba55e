/* sched_time.c - would the targets still be kept with one request more?
 *
 * Each model with running sequences that wish for a time per token is a periodic task: C is its
 * decode step as the rate predicts it, T the smallest wish.  feasible.h has the inequality.  With
 * the objective `sla` a request that would break it is refused with the numbers; with the others it
 * is let in, and its model's deadlines are then the first to be missed. */
#include "sched_state.h"

/* A decode step of what runs of this model now, and n_more sequences. */
static uint64_t decode_us(const sched_model *m, uint32_t n_more) {
    rate_work w = {0};
    LIST_EACH(node, &m->running) {
        const seq *q = LIST_ENTRY(node, seq, mine);
        if (q->paused) continue;
        rate_add_rows(&w, q->n_computed, 1);
        w.draws++;
    }
    for (uint32_t i = 0; i < n_more; i++) {
        rate_add_rows(&w, 0, 1);
        w.draws++;
    }
    return w.rows > 0 ? rate_us(&m->rate, &w) : 0;
}

static uint64_t tpot_of(const sched *s, const seq *q) {
    return q->req->tpot_target_ms != 0 ? (uint64_t)q->req->tpot_target_ms * 1000
                                       : s->models[q->model_idx].tpot_us;
}

/* The smallest wish of what runs; 0: nobody wishes. */
static uint64_t period_of(const sched *s, const sched_model *m) {
    uint64_t least = 0;
    LIST_EACH(node, &m->running) {
        uint64_t us = tpot_of(s, LIST_ENTRY(node, seq, mine));
        if (us != 0 && (least == 0 || us < least)) least = us;
    }
    return least;
}

void sched_add_task(const sched *s, uint32_t model_idx, uint64_t *cost_us, uint64_t *period_us) {
    const sched_model *m = &s->models[model_idx];
    uint64_t least_us = period_of(s, m);
    LIST_EACH(node, &m->waiting) {
        uint64_t us = tpot_of(s, LIST_ENTRY(node, seq, mine));
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

void sched_get_load(const sched *s, const seq *newcomer, feasible_load *out) {
    *out = (feasible_load){0};
    for (uint32_t i = 0; i < s->n_models; i++) {
        const sched_model *m = &s->models[i];
        bool its = newcomer != NULL && newcomer->model_idx == i;
        if (!m->open || (m->n_running == 0 && !its)) continue;
        uint64_t cost_us = decode_us(m, its ? 1 : 0), period_us = period_of(s, m);
        uint64_t wish_us = its ? tpot_of(s, newcomer) : 0;
        if (wish_us != 0 && (period_us == 0 || wish_us < period_us)) period_us = wish_us;
        feasible_load_add(out, narrow(cost_us), narrow(period_us));
    }
}

uint32_t sched_attainment_ppm(const sched *s) {
    feasible_load load;
    sched_get_load(s, NULL, &load);
    return (uint32_t)feasible_attainment_ppm(&load, 0);
}

inferd_status sched_admit_time(const sched *s, const seq *q, inferd_err *err) {
    feasible_load load;
    if (s->limits.objective != OBJECTIVE_SLA || tpot_of(s, q) == 0) return INFERD_OK;
    sched_get_load(s, q, &load);
    uint64_t total = feasible_total_ppb(&load, 0);
    if (total <= FEASIBLE_ONE_PPB) return INFERD_OK;
    uint64_t sum = load.sum_ppb / (FEASIBLE_ONE_PPB / 1000),
             all = total / (FEASIBLE_ONE_PPB / 1000);
    return inferd_fail(err, INFERD_EBUSY,
                       "with this request the targets could not be kept: sum C/T + max C / min T "
                       "= %llu.%03llu + %llu.%03llu > 1",
                       (unsigned long long)sum / 1000, (unsigned long long)sum % 1000,
                       (unsigned long long)(all - sum) / 1000,
                       (unsigned long long)(all - sum) % 1000);
}
