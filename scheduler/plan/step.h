/* step.h - one step of the device: what it computes, for which sequences, and what it drew.
 *
 * A step is filled by sched_plan, computed by a device (device.h) and accounted for by
 * sched_commit, sched_fail or sched_withdraw.  With depth 2 the next one is planned while the
 * device works; its rows may then use a pending token, which the step before still computes
 * (batch.h, TOK_PENDING).
 *
 * All arrays are sized at start.  Pointers into a sequence (its tokens, its block table) stay valid
 * until the step was committed or failed, whatever happens to the sequence meanwhile.
 * Thread: engine. */
#ifndef INFERD_STEP_H
#define INFERD_STEP_H

#include "inferd/base.h"
#include "inferd/batch.h"
#include "inferd/status.h"
#include "models/sampler.h"

struct seq;

/* One sequence of a step: seqs[i] of the batch. */
typedef struct step_item {
    struct seq *q;
    uint32_t run;   // q->run when planned; if it differs now, q left and the result is dropped
    uint32_t begin; // position of its first row
    uint32_t n_rows;
    uint32_t draw_begin, n_draws;
    uint64_t expected_us; // of the predicted time: kept from its share until the step has ended
} step_item;

/* One wanted row of logits: logit_rows[i] of the batch. */
typedef struct step_draw {
    sample_row row; // all but `logits`, which the device knows
    bool dropped;   // its sequence left while the step was computed, or its mask is missing
} step_draw;

typedef struct step {
    uint64_t epoch;
    uint32_t model_idx;
    uint32_t n_prefill_rows;
    uint64_t n_attended;    // positions that its rows look back at, their own among them
    uint64_t predicted_us;  // 0 while nothing was measured
    uint64_t charge_us;     // charged to its sequences; 0: what the device took
    uint32_t tier;          // sched_tier of all its sequences
    batch b;                // arrays owned
    step_item *items;       // [b.n_seqs] owned
    step_draw *draws;       // [b.n_logits] owned
    sample_result *results; // [b.n_logits] written by the device; owned
    bool masked;            // draws under a grammar have their masks, or are dropped
    uint64_t n_saturated;   // written by the device: be_step_result
} step;

inferd_status step_init(step *st, uint32_t rows_max, uint32_t seqs_max, uint32_t logits_max,
                        inferd_err *err);
void step_deinit(step *st); // accepts a zeroed step

#endif
