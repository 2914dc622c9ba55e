/* sched_time.c - would the targets still be kept with one request more?
 *
 * Each model with running sequences that have a target per token is a periodic task: C is its
 * decode step as the rate predicts it, T the smallest target.  feasible.h has the inequality.  With
 * the objective `sla` a request that would break it is refused with the numbers; with the others it
 * is admitted, and its model's deadlines are then the first to be missed.
 *
 * A refusal says when enough running sequences will have ended: each has so many tokens left, and
 * a round of all models' steps makes one token of each.  That is an estimate, no reservation. */
#include "sched_state.h"

enum { RETRY_MAX_S = 60 };
#define MS_PER_S  1000u
#define SECOND_US ((uint64_t)1000000)

/* A later time: sequences that will have ended by then are left out.  Zeroed: now. */
typedef struct horizon {
    uint64_t us, token_us; // from now; a token of each sequence takes that
} horizon;

static bool has_ended(const seq *q, const horizon *h) {
    uint64_t n_left = q->tokens_max > q->n_tokens ? q->tokens_max - q->n_tokens : 1;
    return h->us > 0 && n_left * h->token_us <= h->us;
}

/* A decode step of the sequences of this model that run at h, and n_more others. */
static uint64_t decode_us(const sched_model *m, uint32_t n_more, const horizon *h) {
    rate_work w = {0};
    LIST_EACH(node, &m->running) {
        const seq *q = LIST_ENTRY(node, seq, mine);
        if (q->paused || q->displaced || has_ended(q, h)) continue;
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

static const horizon now = {0};

/* The smallest target of the sequences that run at h; 0: none has one. */
static uint64_t period_of(const sched *s, const sched_model *m, const horizon *h) {
    uint64_t least = 0;
    LIST_EACH(node, &m->running) {
        const seq *q = LIST_ENTRY(node, seq, mine);
        if (q->displaced || has_ended(q, h)) continue;
        uint64_t us = sched_tpot_us(s, q);
        if (us != 0 && (least == 0 || us < least)) least = us;
    }
    return least;
}

void sched_add_task(const sched *s, uint32_t model_idx, uint64_t *cost_us, uint64_t *period_us) {
    const sched_model *m = &s->models[model_idx];
    uint64_t least_us = period_of(s, m, &now);
    LIST_EACH(node, &m->waiting) {
        uint64_t us = sched_tpot_us(s, LIST_ENTRY(node, seq, mine));
        if (us != 0 && (least_us == 0 || us < least_us)) least_us = us;
    }
    uint32_t n_waiting = m->n_seqs - m->n_running, n_max = s->limits.running_max;
    uint32_t n_more = u32_min(n_waiting, n_max > m->n_running ? n_max - m->n_running : 0);
    *cost_us += decode_us(m, n_more, &now);
    if (least_us != 0 && (*period_us == 0 || least_us < *period_us)) *period_us = least_us;
}

static uint32_t narrow(uint64_t us) {
    return us < UINT32_MAX ? (uint32_t)us : UINT32_MAX;
}

static void get_load(const sched *s, const seq *newcomer, const horizon *h, feasible_load *out) {
    *out = (feasible_load){0};
    for (uint32_t i = 0; i < s->n_models; i++) {
        const sched_model *m = &s->models[i];
        bool its = newcomer != NULL && newcomer->model_idx == i;
        if (!m->open || (m->n_running == 0 && !its)) continue;
        uint64_t cost_us = decode_us(m, its ? 1 : 0, h), period_us = period_of(s, m, h);
        uint64_t wish_us = its ? sched_tpot_us(s, newcomer) : 0;
        if (wish_us != 0 && (period_us == 0 || wish_us < period_us)) period_us = wish_us;
        feasible_load_add(out, narrow(cost_us), narrow(period_us));
    }
}

void sched_get_load(const sched *s, const seq *newcomer, feasible_load *out) {
    get_load(s, newcomer, &now, out);
}

uint32_t sched_attainment_ppm(const sched *s) {
    feasible_load load;
    sched_get_load(s, NULL, &load);
    return (uint32_t)feasible_attainment_ppm(&load, 0);
}

static bool fits_at(const sched *s, const seq *q, const horizon *h) {
    feasible_load load;
    get_load(s, q, h, &load);
    return feasible_total_ppb(&load, 0) <= FEASIBLE_ONE_PPB;
}

static const horizon nothing_runs = {.us = UINT64_MAX};

uint32_t sched_time_retry_ms(const sched *s, const seq *q) {
    uint32_t low_s = 0, high_s = RETRY_MAX_S; // too soon; late enough, or the most reported
    horizon h = {0};
    if (!fits_at(s, q, &nothing_runs)) return 0;
    for (uint32_t i = 0; i < s->n_models; i++)
        if (s->models[i].open) h.token_us += decode_us(&s->models[i], 0, &now);
    while (high_s - low_s > 1) {
        uint32_t s_between = low_s + (high_s - low_s) / 2;
        h.us = s_between * SECOND_US;
        if (fits_at(s, q, &h))
            high_s = s_between;
        else
            low_s = s_between;
    }
    return high_s * MS_PER_S;
}

inferd_status sched_admit_time(const sched *s, const seq *q, inferd_err *err) {
    feasible_load load;
    if (sched_tpot_us(s, q) == 0) return INFERD_OK;
    sched_get_load(s, q, &load);
    uint64_t total = feasible_total_ppb(&load, 0);
    if (total <= FEASIBLE_ONE_PPB) return INFERD_OK;
    if (!fits_at(s, q, &nothing_runs))
        return inferd_fail(err, INFERD_EBUSY,
                           "its target of %s per token cannot be met even with no other request: a "
                           "step of the model takes %s",
                           feasible_ms(sched_tpot_us(s, q)).text,
                           feasible_ms(decode_us(&s->models[q->model_idx], 1, &nothing_runs)).text);
    uint64_t sum = load.sum_ppb / (FEASIBLE_ONE_PPB / 1000),
             all = total / (FEASIBLE_ONE_PPB / 1000);
    return inferd_fail(err, INFERD_EBUSY,
                       "with this request the targets cannot be met: sum C/T + max C / min T = "
                       "%llu.%03llu + %llu.%03llu > 1",
                       (unsigned long long)sum / 1000, (unsigned long long)sum % 1000,
                       (unsigned long long)(all - sum) / 1000,
                       (unsigned long long)(all - sum) % 1000);
}
