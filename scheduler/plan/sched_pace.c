/* sched_pace.c - how long a step may take, so that streams keep their pace.
 *
 * Between two tokens of a stream every model with work has a step.  Those steps together may take
 * the pace, the smallest among the decoding sequences:
 *
 *     limits.pace_us       of a sequence without a target
 *     2 x the target       of one with a target per token (of the request, else slo.tpot_ms of its
 *                          model): a target is a mean, so a sequence that is ahead of its target
 *                          may wait; its deadlines bound the step, too (rows.c)
 *
 * limits.pace_us is a fifth longer while a request has waited for its first token for LONG_WAIT_US.
 * Twice a target is at most STEP_MOST_US, or the bound of a step while nothing decodes if that is
 * longer; otherwise an urgent request would wait for a step of seconds.  For a target that a
 * request brings it is at least half of limits.pace_us: one client must not slow down the prompts
 * of all others.
 *
 *     0            decode steps of all models          pace
 *     |------------------------------------|-----------|
 *                                           prompts, divided by the models that have some
 *
 * A model takes part when its most urgent work is at least as urgent as that of the model being
 * planned, or when it has a share to use; other models get steps only when those have nothing to
 * do.  Sequences with a paused reader, tenant or model, and displaced ones, take no part: they get
 * no step, so their pace cannot be kept.
 *
 * Prompts get at least a quarter of the time that decoding takes, or decoding requests would keep
 * all others out.  While nothing decodes no stream waits, and a step is bounded only because a more
 * urgent request may arrive meanwhile.
 *
 * Where there are shares the pace is a quarter shorter, and bounds steps without decoding, too: the
 * error of a share is about a step.
 * Thread: engine. */
#include "sched_state.h"

enum {
    TARGET_PACES = 2,       // of a target per token
    WISH_LEAST_PARTS = 2,   // of the pace: the least that a request's own target allows
    PROMPT_LEAST_PARTS = 4, // of the time of decoding
    PROMPT_PACES = 2,       // of a step while nothing decodes
    STEP_MOST_US = 200000,
    LONG_WAIT_US = 1500000,
    LONG_WAIT_PARTS = 5,
    SHARES_LESS_PARTS = 4
};

/* One step of every model that takes part. */
typedef struct rotation {
    uint64_t targets_us;  // the least that sequences with a target allow; UINT64_MAX: none has one
    bool without_target;  // some sequences decode without one
    bool long_wait;       // for a first token
    uint64_t decode_us;   // of the decode steps
    uint32_t n_prompting; // models with prompts to compute
} rotation;

/* A long wait for the first token.  Batch work may wait for as long as it takes. */
static bool waits_for_long(const sched *s, const seq *q) {
    return q->req->prio <= GEN_NORMAL && seq_n_output(q) == 0 &&
           s->clock_us >= q->req->arrival_us + LONG_WAIT_US;
}

static void add_pace(const sched *s, const seq *q, rotation *r) {
    uint64_t target_us = sched_tpot_us(s, q);
    if (target_us == 0) {
        r->without_target = true;
        return;
    }
    uint64_t guaranteed_us = s->models[q->model_idx].tpot_us; // the operator's, for all
    uint64_t least_us = q->req->tpot_target_ms != 0 ? s->limits.pace_us / WISH_LEAST_PARTS : 0;
    if (guaranteed_us != 0) least_us = u64_min(least_us, TARGET_PACES * guaranteed_us);
    uint64_t most_us = u64_max(STEP_MOST_US, PROMPT_PACES * s->limits.pace_us);
    uint64_t pace_us = u64_min(u64_max(TARGET_PACES * target_us, least_us), most_us);
    r->targets_us = u64_min(r->targets_us, pace_us);
}

/* UINT64_MAX: nothing decodes. */
static uint64_t pace_us(const sched *s, const rotation *r) {
    if (!r->without_target) return r->targets_us;
    uint64_t more_us = r->long_wait && s->n_shares == 0 ? s->limits.pace_us / LONG_WAIT_PARTS : 0;
    uint64_t less_us = s->n_shares > 0 ? s->limits.pace_us / SHARES_LESS_PARTS : 0;
    return u64_min(r->targets_us, s->limits.pace_us + more_us - less_us);
}

/* The most urgent of classes as bits: the lowest bit. */
static uint32_t most_urgent(uint32_t classes) {
    return classes & ~(classes - 1);
}

/* Does `other` make steps between those of m? */
static bool takes_part(const sched_model *m, const sched_model *other) {
    if (other == m) return true;
    if (!other->hot || other->ready == 0) return false;
    for (uint32_t prio = 0; prio < GEN_CLASSES; prio++)
        if ((other->found >> prio & 1) != 0 && other->best[prio].tier <= TIER_ENTITLED) return true;
    return m->ready == 0 || most_urgent(other->ready) <= most_urgent(m->ready);
}

/* `work`: what the step already has, drafts included, if m is the model being planned. */
static void add_model(const sched *s, const sched_model *m, const rate_work *work, rotation *r) {
    rate_work decode = {0};
    bool prompts = false;
    uint32_t n_active = 0;
    LIST_EACH(node, &m->running) {
        const seq *q = LIST_ENTRY(node, seq, mine);
        if (q->displaced || sched_stands_still(s, q)) continue;
        n_active++;
        if (seq_n_wanted(q) > 1) {
            prompts = true;
            r->long_wait |= waits_for_long(s, q);
            continue;
        }
        add_pace(s, q, r);
        rate_add_rows(&decode, q->n_computed, 1);
        decode.draws++;
    }
    uint64_t decode_us = decode.rows > 0 ? rate_us(&m->rate, &decode) : 0;
    if (work != NULL && work->rows > 0) decode_us = u64_max(decode_us, rate_us(&m->rate, work));
    r->decode_us += decode_us;
    bool comes = false; // a waiting request could begin
    LIST_EACH(node, &m->waiting) {
        const seq *q = LIST_ENTRY(node, seq, mine);
        if (sched_stands_still(s, q)) continue;
        comes = n_active < s->limits.running_max;
        r->long_wait |= waits_for_long(s, q);
        if (r->long_wait) break;
    }
    r->n_prompting += prompts || comes;
}

uint64_t sched_budget_us(const sched *s, const sched_model *m, const rate_work *work) {
    rotation r = {.targets_us = UINT64_MAX};
    for (uint32_t i = 0; i < s->n_models; i++)
        if (takes_part(m, &s->models[i]))
            add_model(s, &s->models[i], m == &s->models[i] ? work : NULL, &r);
    uint64_t pace = pace_us(s, &r);
    if (pace == UINT64_MAX && s->n_shares == 0) return PROMPT_PACES * s->limits.pace_us;
    if (pace == UINT64_MAX) return s->limits.pace_us - s->limits.pace_us / SHARES_LESS_PARTS;
    uint64_t left_us = pace > r.decode_us ? pace - r.decode_us : 0;
    uint64_t prompts_us = u64_max(left_us, r.decode_us / PROMPT_LEAST_PARTS);
    uint64_t own_us = work->rows > 0 ? rate_us(&m->rate, work) : 0;
    return own_us + prompts_us / u32_max(r.n_prompting, 1);
}

uint64_t sched_typical_us(const sched *s) {
    return s->typical_us;
}

uint32_t sched_decode_us(const sched *s, uint32_t model_idx) {
    rate_work w = {.draws = 1};
    rate_add_rows(&w, 0, 1);
    uint64_t us = rate_us(&s->models[model_idx].rate, &w);
    return us < UINT32_MAX ? (uint32_t)us : UINT32_MAX;
}
