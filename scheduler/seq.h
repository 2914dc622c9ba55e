/* seq.h - one generation, from its submission to its last event.
 *
 *     (free)  -> WAITING   sched_submit
 *     WAITING -> RUNNING   sched_plan           blocks taken, cached ones first
 *     RUNNING -> WAITING   sched_preempt_seq    blocks given back; tokens and place kept
 *     any     -> ENDED     sched_end_seq        end token, length, cancel, deadline, failure
 *     ENDED   -> (free)    sched_flush          last event written, no unfinished step names it
 *
 * Without phases: a sequence has n_tokens known tokens, the first n_computed of which have keys and
 * values.  Planning 1 row is a decode step, planning more is a prefill chunk.
 *
 *     tokens     |---- prompt ----|-- output --|? promised by an unfinished step
 *                |-- n_computed --|- n_planned -|
 *
 * With drafts (draft.h) an unfinished step computes guesses, too, as if they were known.  They lie
 * behind the known tokens; the token drawn before each of them tells whether it was right:
 *
 *     tokens     |---- prompt ----|-- output --|- n_drafts -|
 *                |------ n_computed ------|---- n_planned --|
 *
 * Always: n_computed + n_planned <= n_tokens + n_promised + n_drafts; WAITING and ENDED hold no
 * block and have n_computed = n_planned = n_promised = n_drafts = 0; RUNNING has blocks for
 * n_computed + n_planned.
 * Thread: engine.  Others know a sequence by its id only. */
#ifndef INFERD_SEQ_H
#define INFERD_SEQ_H

#include "draft.h"
#include "inferd/list.h"
#include "kv.h"
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
    bool aside;     // it runs, and a more urgent one has its place in the batch
    bool scoring;   // the prompt's log-probabilities are wanted
    bool cacheable; // may use and leave prefix blocks

    uint32_t n_tokens;   // known: prompt and output
    uint32_t tokens_max; // it ends with GEN_LENGTH here; also the capacity of the array
    uint32_t n_computed, n_planned;
    uint32_t n_promised;                 // tokens that unfinished steps will bring
    uint32_t promised_logit;             // index of the newest promise among its step's logits
    uint32_t n_drafts;                   // guesses that its unfinished step computes
    draft_habit habit;                   // how well they went
    uint32_t n_scored, n_scored_planned; // prompt tokens reported; being reported

    uint32_t n_steps;    // unfinished steps that name it, of this and earlier runs
    uint32_t run;        // grows when it leaves RUNNING: results of older steps are dropped
    uint64_t last_epoch; // newest step that names it

    kv_table table;
    uint32_t n_published; // blocks named so far (published, or found published)
    prefix_name name;     // of the last of them

    tok_id *banned; // [n_banned] not drawn before min_tokens; owned
    uint32_t n_banned;

    gen_class granted;      // class it was admitted with; decides who is preempted
    uint64_t idle_since_us; // last time it was planned, or its arrival: for the starvation floor
    uint64_t first_plan_us; // 0 = never planned
    uint64_t steps_before;  // that had ended when it arrived
    uint32_t queued_steps;  // that ended later, or had begun, before its first
    uint64_t planned_plan;  // number of the plan that last gave it rows
    uint64_t refused_plan;  // number of the plan that preempted it or had no page for it
    uint64_t held_plan;     // number of the plan in which it waits for the blocks of another
    uint32_t n_cached, n_preempted;

    uint32_t principal;      // its number
    uint64_t urgent_plan;    // number of the plan that found its deadline urgent
    uint64_t first_token_us; // 0 = none yet
    uint64_t device_us;      // that it was charged with
    uint64_t waste_us;       // that computing it again took; nobody's
    uint64_t unpark_us;      // that copying its keys and values back took
    uint64_t away_since_us;  // preempted, and nothing of it was planned since; 0: no
    uint64_t aside_since_us; // RUNNING, and more urgent work was planned instead; 0: no
    uint64_t away_us;        // how long it stood still because of either
    bool away_model_out;     // its model left
    uint32_t n_given_up;     // tokens that it had computed when it was preempted
    uint32_t n_came_back;    // n_unparked then
    uint32_t n_redone;       // tokens computed again
    uint32_t n_rungs[GEN_RUNGS];
    uint32_t n_unparked;    // tokens whose keys and values came back from host memory
    uint32_t redo_until;    // tokens that were computed before it was preempted
    uint32_t n_ahead;       // its first blocks that were looked at for a copy ahead of time
    uint64_t disk_until_us; // it waits for the disk no longer than this; 0: it never did
    uint32_t n_disk_asked;  // its blocks below this were asked for, for that wait
    bool waits_for_disk;    // its next block is on its way

    gen_event done; // ENDED: its last event
    bool done_sent;
    bool counted; // ENDED: among its model's n_ended
} seq;

static inline tok_id *seq_tokens(const seq *q) {
    return q->req->prompt;
}
static inline uint32_t seq_n_output(const seq *q) {
    return q->n_tokens - q->req->n_prompt;
}
/* Positions whose keys and values it may need: the last token drawn is never computed. */
static inline uint32_t seq_stored_max(const seq *q) {
    return q->tokens_max > q->req->n_prompt ? q->tokens_max - 1 : q->req->n_prompt;
}
/* Tokens that a step planned now could compute; none while drafts are being checked. */
static inline uint32_t seq_n_wanted(const seq *q) {
    if (q->n_drafts > 0) return 0;
    uint32_t n_known = q->n_tokens + q->n_promised;
    bool last = n_known >= q->tokens_max && q->tokens_max > q->req->n_prompt;
    return last ? 0 : n_known - q->n_computed - q->n_planned;
}

#endif
