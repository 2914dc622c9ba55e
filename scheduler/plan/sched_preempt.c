/* sched_preempt.c - the kind of each preemption, and how long it lasted: counted here, chosen by
 * pick_victim in sched_plan.c, done by sched_preempt_seq in sched.c.
 *
 *     RUNNING, a row was due     --a more urgent step-->  stands still  --rows-->  pause
 *     RUNNING, blocks given back --sched_preempt_seq-->   away          --rows-->  pause, swap,
 *                                                                           recompute or model_out
 *
 * A preempted sequence leaves its blocks to the prefix cache.  The kind depends on where they are
 * when it comes back: all there (up to the unfinished block, which has no name), copied back from
 * host memory or read from the disk, or computed again.  So a preemption is counted when its
 * sequence gets rows; one that ends before is not counted. */
#include "sched_state.h"

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

static void count(sched *s, seq *q, gen_preempt preempt, uint64_t since_us, uint64_t now_us) {
    uint64_t us = now_us > since_us ? now_us - since_us : 0;
    observe(&s->counters.preempts[preempt], us);
    seq_model(s, q)->n_preempts[preempt]++;
    q->n_preempts[preempt]++;
    q->away_us += us;
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

void sched_note_outranked(sched *s, uint32_t prio, uint64_t now_us) {
    LIST_EACH(node, &s->running) {
        seq *q = LIST_ENTRY(node, seq, link);
        if (q->planned_plan == s->plan_no || q->paused || q->n_steps > 0 || seq_n_wanted(q) == 0 ||
            q->first_plan_us == 0 || q->outranked_since_us != 0 || q->away_since_us != 0)
            continue;
        if (s->models[q->model_idx].hot && sched_class_now(s, q, now_us) > prio)
            q->outranked_since_us = now_us;
    }
}

void sched_note_relief(sched *s, uint64_t now_us) {
    if (s->relief_since_us == 0 || s->relief_epoch > s->pool->finished) return;
    observe(&s->counters.relief, now_us > s->relief_since_us ? now_us - s->relief_since_us : 0);
    s->relief_since_us = 0;
}
