/* sched_state.h - what the files of the scheduler share: its state, and the steps of a sequence's
 * life that more than one of them takes.
 *
 *     sched.c         submission, cancellation, ends, last events
 *     sched_plan.c    who computes what; admission and preemption
 *     sched_commit.c  what a finished step changed
 *     sched_verify.c  the books
 *
 * Thread: engine. */
#ifndef INFERD_SCHED_STATE_H
#define INFERD_SCHED_STATE_H

#include "rate.h"
#include "scheduler.h"
#include "seq.h"

typedef struct sched_model {
    bool open, hot, failed;
    inferd_err why; // failed
    sched_model_spec spec;
    kv kv;
    prefix prefix;
    rate rate;
    uint32_t n_seqs;     // waiting and running
    uint64_t virtual_us; // device time it used; the smallest goes first among equals
    uint64_t tried_plan; // number of the plan that last looked at it
} sched_model;

struct sched {
    sched_limits limits;
    pool *pool; // borrowed
    sched_emit *emit;
    void *emit_ctx;
    sched_model *models; // [n_models] owned
    uint32_t n_models;

    seq *seqs; // [n_seqs] all there are; owned
    uint32_t n_seqs;
    list_node free, waiting, running, ended;
    uint32_t n_waiting, n_running, n_ended, n_unsent;
    seq **order; // [n_seqs] scratch of a plan; owned

    uint64_t plan_no, next_arrival_no;
    uint64_t next_deadline_us; // not later than the earliest deadline of any sequence
    uint64_t relief_epoch;     // newest step that pages of a preempted sequence wait for
    uint64_t virtual_us;       // of the model served last: newcomers start here
    sched_counters counters;   // those that only grow
};

static inline rate_work step_work(const step *st) {
    return (rate_work){st->b.n_rows, st->b.n_logits, st->n_attended};
}

static inline sched_model *seq_model(sched *s, const seq *q) {
    return &s->models[q->model_idx];
}

/* The sequence ends: blocks go back behind its last step, its last event is ready. */
void sched_end_seq(sched *s, seq *q, gen_finish finish, tok_id stop_id, inferd_status status,
                   const char *text, uint64_t now_us);
/* RUNNING -> WAITING: it keeps its tokens and its place in the order. */
void sched_preempt_seq(sched *s, seq *q);

#endif
