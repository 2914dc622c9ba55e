/* seq.h - one sequence, from its submission to its last event.
 *
 *     (free)  -> WAITING   sched_submit
 *     WAITING -> RUNNING   sched_plan           blocks taken, cached ones first
 *     RUNNING -> WAITING   sched_preempt_seq    blocks freed; tokens and position kept
 *     any     -> ENDED     sched_end_seq        end token, length, cancel, deadline, failure
 *     ENDED   -> (free)    sched_flush          last event written, no unfinished step names it
 *
 * There are no phases: a sequence has n_tokens known tokens, the first n_computed of which have
 * keys and values.  Planning 1 row is a decode step, planning more is a prefill chunk.
 *
 *     tokens     |---- prompt ----|-- output --|? pending: an unfinished step draws it
 *                |-- n_computed --|- n_planned -|
 *
 * With drafts (draft.h) an unfinished step computes draft tokens, too, as if they were known.  They
 * lie behind the known tokens; the token drawn before each of them shows whether it is right:
 *
 *     tokens     |---- prompt ----|-- output --|- n_drafts -|
 *                |------ n_computed ------|---- n_planned --|
 *
 * Always: n_computed + n_planned <= n_tokens + n_pending + n_drafts; WAITING and ENDED hold no
 * block and have n_computed = n_planned = n_pending = n_drafts = 0; RUNNING has blocks for
 * n_computed + n_planned.
 * Thread: engine.  Other threads know a sequence by its id only. */
#ifndef INFERD_SEQ_H
#define INFERD_SEQ_H

#include "constraint.h"
#include "draft.h"
#include "inferd/list.h"
#include "kv.h"
#include "order.h"
#include "prefix.h"
#include "scheduler/gen.h"

typedef enum seq_state { SEQ_FREE, SEQ_WAITING, SEQ_RUNNING, SEQ_ENDED } seq_state;

typedef struct seq {
    list_node link; // in the list of its state
    list_node mine; // WAITING, RUNNING: in its model's list of that state, in the same order
    seq_state state;
    gen_request *req; // owned; its prompt was grown to tokens_max and holds the output too
    uint32_t model_idx;
    uint64_t arrival_no; // order of submission; kept through preemption
    bool paused;
    bool displaced; // it runs, behind the running_max sequences of its batch
    bool scoring;   // the prompt's log-probabilities are reported
    bool cacheable; // may use and leave prefix blocks

    uint32_t n_tokens;   // known: prompt and output
    uint32_t tokens_max; // it ends with GEN_LENGTH here; also the capacity of the array
    uint32_t n_computed, n_planned;
    uint32_t n_pending;     // pending tokens: unfinished steps draw them
    uint32_t pending_logit; // index of the newest pending token among its step's logits
    uint32_t n_drafts;      // draft tokens that its unfinished step computes
    draft_habit habit;      // how many drafts were right
    uint32_t n_scored, n_scored_planned; // prompt tokens reported; being reported

    uint32_t n_steps;    // unfinished steps that name it, of this and earlier runs
    uint32_t run;        // grows when it leaves RUNNING: results of older steps are dropped
    uint64_t last_epoch; // newest step that names it

    kv_table table;
    uint32_t n_published; // blocks named so far (published, or found published)
    prefix_name name;     // of the last of them

    tok_id *banned; // [n_banned] not drawn before min_tokens; owned
    uint32_t n_banned;
    uint32_t n_banned_always; // of those, first: end tokens, with a grammar and ignore_eos

    constraint *constraint; // its grammar, or NULL; owned (sched_constraint.c)

    order_key key;          // its place in the order of plan key_plan
    uint64_t key_plan;      // number of the plan that made it
    uint64_t idle_since_us; // last time it was planned, or its arrival
    uint64_t first_plan_us; // 0 = never planned
    uint64_t steps_before;  // steps that had ended when it arrived
    uint32_t queued_steps;  // steps that ended later, or had begun, before its first
    uint64_t planned_plan;  // number of the plan that last gave it rows
    uint64_t refused_plan;  // number of the plan that preempted it or had no page for it
    uint64_t held_plan;     // number of the plan in which it waits for the blocks of another
    uint32_t n_cached, n_preempted;
    /* It was preempted for this one, and stays away until that has begun, for starvation_us at
     * most: one that needs the pages of several would otherwise never have all of them at once. */
    const struct seq *gave_to;
    uint64_t gave_to_no, gave_until_us; // its arrival_no; until then

    uint32_t flow;           // index of its flow
    uint64_t first_token_us; // 0 = none yet
    uint64_t last_token_us;
    uint64_t device_us;          // it was charged with
    uint64_t waste_us;           // to compute it again after preemptions; charged to no tenant
    uint64_t swap_in_us;         // to swap it in
    uint64_t away_since_us;      // preempted, and not planned since then; 0: no
    uint64_t outranked_since_us; // RUNNING, but more urgent work is planned since; 0: no
    uint64_t away_us;            // how long both kept it from computing
    bool away_model_out;         // preempted because its model left
    uint32_t n_given_up;         // tokens that it had computed when it was preempted
    uint32_t n_came_back;        // n_swapped_in then
    uint32_t n_redone;           // tokens computed again
    uint32_t n_preempts[GEN_PREEMPTS];
    uint32_t n_aways;
    gen_away aways[GEN_AWAYS_MAX]; // [n_aways] the longest times in away_us, in order
    bool came_cold;                // its model was not hot when it was submitted
    uint32_t n_swapped_in;         // tokens of swapped-in blocks
    uint32_t redo_until;           // tokens computed before it was preempted
    uint32_t n_ahead;              // its first blocks already considered for a copy ahead of time
    uint64_t disk_until_us;        // end of its wait for the disk; 0: it never waited
    uint32_t n_disk_asked;         // its blocks below this were requested for that wait
    bool waits_for_disk;           // its next block is being read

    gen_event done; // ENDED: its last event
    bool done_sent;
    bool counted;   // ENDED: among its model's n_ended
    bool in_tenant; // WAITING, RUNNING: counted by its tenant, which had a policy when it came
} seq;

static inline tok_id *seq_tokens(const seq *q) {
    return q->req->prompt;
}
static inline uint32_t seq_n_output(const seq *q) {
    return q->n_tokens - q->req->n_prompt;
}
/* Positions that may need KV: the last token drawn is never computed. */
static inline uint32_t seq_stored_max(const seq *q) {
    return q->tokens_max > q->req->n_prompt ? q->tokens_max - 1 : q->req->n_prompt;
}
/* Tokens that a step planned now could compute; none while drafts are being checked.  Without the
 * last one, which draws, while its mask is missing on a device that needs it at launch. */
static inline uint32_t seq_n_wanted(const seq *q) {
    if (q->n_drafts > 0) return 0;
    uint32_t n_known = q->n_tokens + q->n_pending;
    bool last = n_known >= q->tokens_max && q->tokens_max > q->req->n_prompt;
    uint32_t n = last ? 0 : n_known - q->n_computed - q->n_planned;
    bool held = q->constraint != NULL && constraint_holds_back(q->constraint, q->n_pending);
    return n - (n > 0 && held);
}

#endif
