/* sched_state.h - the state of the scheduler, and transitions of sequences for all its files.
 *
 *     sched.c          models, cancellation, ends, last events
 *     submit.c         submission, and requests that do not fit
 *     plan.c           a step: plan.h has its other files
 *     charge.c         which flows are charged for a step
 *     sched_pace.c     how long a step may take
 *     sched_time.c     whether targets can be kept
 *     sched_memory.c   guarantees and ceilings of memory
 *     sched_swap.c     cached blocks in host memory
 *     sched_disk.c     cached blocks on disk
 *     sched_commit.c   the results of a finished step
 *     sched_constraint.c  grammars: questions to the workers, and their answers
 *     sched_verify.c   checks of all of this
 *
 * Thread: engine. */
#ifndef INFERD_SCHED_STATE_H
#define INFERD_SCHED_STATE_H

#include "flow_usage.h"
#include "order.h"
#include "rate.h"
#include "scheduler/feasible.h"
#include "scheduler/guarantee.h"
#include "scheduler.h"
#include "seq.h"
#include "share.h"

/* Virtual units of a microsecond at weight 1: a step still counts at the largest weights, 10^8
 * together, and at the smallest 64 bits last for two years of steps. */
enum { VIRTUAL_ONE = 1 << 18 };
enum { URGENT_CAP_US = 250000 }; // depth of the urgent allowance

/* The model that is planned next, and the key of its first sequence. */
typedef struct sched_choice {
    struct sched_model *m;
    order_key key;
    uint64_t due_us; // the earliest deadline of any sequence, urgent or not; 0: none
} sched_choice;

/* The measured time of one block, as a fading mean; an outlier counts for no more than four times
 * the mean.  An old one is measured again, or one bad measurement could end all copies. */
typedef struct sched_took {
    uint64_t us, at_us; // us 0: never measured; at_us: the last measurement
} sched_took;

typedef struct sched_model {
    bool open, hot, failed;
    bool closed;          // admission window: no waiting sequence starts
    bool limits_changed;  // those of its memory
    inferd_err why;       // failed
    uint64_t retry_at_us; // failed: the time of the next attempt
    sched_model_spec spec;
    struct sched *s; // the scheduler it belongs to
    kv kv;
    prefix prefix;
    bool swaps;            // has the next three
    kv swapped_kv;         // blocks in host memory
    prefix swapped;        // all of them are cached
    kv_table swap_table;   // of one block, scratch
    sched_took move, read; // a block to host memory or back; from the disk
    rate rate;
    list_node waiting, running; // its sequences, by seq.mine
    uint32_t n_seqs;            // waiting and running
    uint32_t n_ended;           // its last event was not sent, or an unfinished step names it
    uint32_t n_running;
    uint32_t n_started;                   // sequences, ever
    uint32_t n_steps;                     // unfinished steps
    uint64_t starved_plan;                // number of the plan in which rules e and f hold for it
    uint64_t stepped_us;                  // start of its newest step
    uint64_t short_since_us, short_at_us; // it found no pages: since when, and last
    uint64_t device_us;                   // of its finished steps
    uint64_t hot_us;                      // when it became hot last; 0: never
    bool first_step;                      // no step has finished since it became hot
    uint64_t first_us, first_us_sum;      // of such steps: the newest, the sum
    uint64_t n_preempts[GEN_PREEMPTS];
    share_bucket share;
    uint32_t weights_of;         // the model that has its weights
    uint32_t pinned_pages;       // of its own weights, that never leave
    uint64_t ttft_us, tpot_us;   // targets of its requests; 0: none
    uint64_t due_us;             // scratch of sched_choose: its earliest deadline,
    uint64_t looked_plan;        // number of the plan that looked at its sequences; 0: look again
    bool floor_step;             // its last step had sequences by rule 2 of order.c
    uint32_t ready, found;       // bits of classes: with a ready sequence, with one that may run,
    order_key best[GEN_CLASSES]; // the first of each,
    uint64_t ready_us;           // and when a sequence with a used-up share may go on
    uint64_t tried_plan;         // number of the plan that last tried it,
    uint32_t tried_tiers;        // and the tiers tried in vain, as bits
} sched_model;

/* Limits and usage of a tenant: time, and KV. */
typedef struct sched_tenant {
    share_bucket share;
    uint64_t used_bytes;           // of blocks that its sequences use
    uint32_t n_seqs, n_running;    // counted sequences (seq.in_tenant)
    bool changed;                  // one of these changed since sched_next_tenant
    uint64_t min_bytes, max_bytes; // guarantee, and ceiling (UINT64_MAX: none)
    uint64_t here_bytes;           // what of max_bytes other devices leave for now, or all of it
    uint64_t stopped_plan; // number of the plan in which its ceiling stopped a sequence; or 0
} sched_tenant;

enum { SCHED_READS_MAX = 32 };
enum { STEP_ENDS = 64 }; // end times remembered

/* A block requested from the disk. */
typedef struct sched_read {
    bool used, noted; // noted: its read time is in the model's mean
    uint32_t ticket, model_idx;
    prefix_name name;
    uint64_t id;                 // of the request that asked; 0: several wait
    uint64_t asked_us, until_us; // until_us: end of the longest wait for it, or the last look
} sched_read;

/* Virtual time is kept apart for time before the surplus and for the surplus. */
#define FLOW_PARTS 2
static inline uint32_t flow_part(sched_tier tier) {
    return tier == TIER_SURPLUS;
}

/* A flow: the work of one tenant on one model. */
typedef struct flow {
    list_node idle; // in sched.idle_flows or sched.active_flows
    uint32_t tenant, model;
    uint32_t n_seqs; // waiting and running
    uint32_t next;   // in its bucket
    /* Of each part: device time it got, by weight; the smallest goes first among equals.
     */
    uint64_t virtual_us[FLOW_PARTS];
    uint64_t virtual_rest[FLOW_PARTS]; // the remainder of dividing by the weight
    uint64_t seen_us[FLOW_PARTS];      // when it last could have had a step of it; 0: never
    flow_usage_ref flow_usage;         // its row of the usage table
    bool used;
} flow;

#define FLOW_NONE UINT32_MAX

struct sched {
    sched_limits limits;
    pool *pool; // borrowed
    sched_emit *emit;
    void *emit_ctx;
    sched_move *move; // NULL: nothing is swapped out
    void *move_ctx;
    pool *host;                  // pool of swapped-out pages; pool itself where there is one memory
    const kv_disk_ops *disk_ops; // NULL: nothing goes to a disk
    kv_disk *disk;               // borrowed
    bool one_memory;             // host and device share it
    sched_slot *slot;
    void (*disk_wake)(void *ctx);
    void *disk_ctx;                    // of slot and disk_wake
    sched_read reads[SCHED_READS_MAX]; // requested and not given back
    uint32_t n_reads;                  // of those
    uint64_t disk_due_us; // when the first wait for the disk ends, or a read is dropped
    const constraint_ops *constraint_ops; // NULL: questions are answered at once
    void *constraint_ctx;
    bool masks_before_launch;
    list_node asked;  // constraints with an answer that was not collected, by `asked`
    sched_zero *zero; // NULL: nothing is zeroed
    void *zero_ctx;
    uint32_t *page_tenants;         // [n_pages of the pool] the tenant with bytes in it; owned
    uint64_t ahead_at_us, ahead_us; // copies ahead: last time, and time they may take
    sched_reclaim *reclaim;         // NULL: none
    uint64_t blocked_since_us;      // plans find nothing to compute, though there is work; 0: not
    void *reclaim_ctx;
    sched_model *models; // [n_slots] owned
    uint32_t n_slots;
    uint32_t n_models; // slots from there on never had a model

    seq *seqs; // [n_seqs] all there are; owned
    uint32_t n_seqs;
    list_node free, waiting, running, ended;
    uint32_t n_waiting, n_running, n_ended, n_unsent;
    uint32_t n_paused; // of those waiting and running
    seq **order;       // [n_seqs] scratch of a plan; owned

    uint32_t next_drop; // the model at which sched_drop_cached begins next time
    uint64_t plan_no, next_arrival_no;
    uint64_t next_deadline_us;            // not later than the earliest deadline of any sequence
    uint64_t relief_epoch;                // newest step that pages of a preempted sequence wait for
    seq *relief_for;                      // preempted for them, and not considered since; or NULL
    uint32_t room_class;                  // sched_make_room; GEN_CLASSES: no room is being made
    sched_tenant *tenants;                // [n_tenants] by number; owned
    uint64_t unfilled_bytes;              // sum over tenants of max(0, min - used)
    uint64_t min_bytes;                   // sum over tenants of min
    bool limits_changed;                  // admitted requests may not fit any more
    bool some_limits_changed;             // only those of models with limits_changed
    uint64_t page_bytes;                  // 0: no tenant has a guarantee
    uint32_t n_tenants, n_paused_tenants; // paused: those with weight 0
    uint32_t *changed_tenants;            // [n_changed_tenants] of at most n_tenants; owned
    uint32_t n_changed_tenants;
    flow *flows;            // [n_flows] owned
    uint32_t *flow_buckets; // [n_flows] first of each, by hash; owned
    uint32_t n_flows;
    list_node idle_flows, active_flows; // idle: the one idle for longest first
    share_bucket floors[GEN_CLASSES];
    uint32_t below_floor; // of this plan: classes that rule 2 of order.c lets go first, as bits
    share_bucket urgent;  // the allowance of urgent requests beside shares
    uint64_t urgent_us;   // spent of it, ever
    uint32_t n_shares;    // models and tenants with one
    uint32_t n_models_running;       // of this plan: models with running sequences
    uint64_t virtual_us[FLOW_PARTS]; // of the flow served last: new flows start here
    uint64_t typical_us;             // length of a step, fading
    uint64_t share_ready_us; // when a sequence with a used-up share may go on; UINT64_MAX: never
    uint64_t charged_us, waste_us;    // of all steps
    flow_usage flow_usage;            // charged_us, by tenant and model
    uint64_t moved_us;                // all copies of swapped-out blocks together
    uint64_t clock_us;                // the newest time passed in
    uint64_t step_ends_us[STEP_ENDS]; // of the newest steps that ended, by epoch
    uint64_t relief_since_us;         // since when pages wait for relief_epoch; 0: none do
    sched_counters counters;          // those that only grow
};

static inline rate_work step_work(const step *st) {
    return (rate_work){st->b.n_rows, st->b.n_logits, st->n_attended};
}

/* Shares divide the time that the urgent allowance leaves: their buckets run on a clock without it.
 */
static inline uint64_t sched_share_clock(const sched *s, uint64_t now_us) {
    return now_us - u64_min(s->urgent_us, now_us);
}

static inline sched_model *seq_model(sched *s, const seq *q) {
    return &s->models[q->model_idx];
}

/* Called when a step has ended, after the pool's epochs moved on. */
void sched_note_step_end(sched *s, uint64_t now_us);
/* Ends the sequence: its blocks are freed behind its last step, its last event is ready. */
void sched_end_seq(sched *s, seq *q, gen_finish finish, tok_id stop_id, inferd_status status,
                   const char *text, uint64_t now_us);
/* -- order.c -- */
/* The model of the next step; false: nothing can be computed. */
bool sched_choose(sched *s, uint64_t now_us, sched_choice *out);
/* Why it gets no time however long it waits, as the end of an error text; "": it gets some. */
const char *sched_pause_reason(const sched *s, const seq *q);
/* Does running `a` deserve its pages less than `b`?  A total order. */
bool sched_deserves_less(const seq *a, const seq *b);

/* -- charge.c -- */
void sched_charge(sched *s, step *st, uint64_t us);
/* A planned step: what it is predicted to take counts as spent until sched_charge, or
 * sched_unexpect when no sequence is charged. */
void sched_expect(sched *s, step *st);
void sched_unexpect(sched *s, const step *st);
/* Adds `use` to the usage of its tenant for its model. */
void sched_note_use(sched *s, const seq *q, const engine_flow *use);
/* A changed share or weight of a model or tenant. */
void sched_set_share(sched *s, share_bucket *a, const share_spec *share, uint32_t weight,
                     uint64_t now_us);
uint32_t sched_weight_of(const sched *s, const seq *q); // of its tenant, at least 1

/* -- sched.c -- */
/* Sets in the last event when a retry is of use. */
void sched_note_retry(const sched_model *m, seq *q, uint64_t now_us);

/* -- preempt.c -- */
void sched_note_preempted(sched *s, seq *q);
void sched_note_model_out(seq *q); // after sched_note_preempted
/* Adds n_tokens that needed no computing to the usage of its tenant. */
void sched_note_cached(sched *s, seq *q, uint32_t n_tokens);
void sched_note_rows(sched *s, seq *q, uint64_t now_us); // it gets rows: its preemption is over
/* It ends.  If it is preempted now, that counts as model_out or pause: nothing is computed again.
 */
void sched_note_ended_away(sched *s, seq *q, uint64_t now_us);
/* A step of this class was planned: less urgent running sequences that could compute wait. */
void sched_note_outranked(sched *s, uint32_t prio, uint64_t now_us);
/* A step ended: pages that waited for it are free. */
void sched_note_relief(sched *s, uint64_t now_us);

/* -- sched_constraint.c -- */
bool sched_open_constraint(sched *s, seq *q);  // of a new one with a grammar; false: no memory
void sched_close_constraint(sched *s, seq *q); // accepts one without
/* Its last tokens are new to its grammar: asks what may follow. */
void sched_ask(sched *s, seq *q);
/* Collects answers; ends sequences of which the text is complete, or the grammar failed. */
void sched_collect(sched *s, uint64_t now_us);
bool sched_end_constrained(sched *s, seq *q, uint64_t now_us); // one of them; true: it ended
/* Does its grammar allow nothing behind its last token, which was drawn now?  Then max_tokens cuts
 * nothing.  False without a grammar. */
bool sched_text_is_whole(const seq *q);
/* Writes at most n_max draft tokens behind its tokens. */
uint32_t sched_constrained_drafts(seq *q, uint32_t n_max);
bool sched_drafts_are_forced(const seq *q); // those of its step; also without a grammar
/* The mask of its draw i in this step, and no bans that would leave nothing; false: none. */
bool sched_constrain_row(const seq *q, uint32_t i, sample_row *row);
/* The masks of a computed step, where the device draws afterwards; draws without one are dropped.
 */
void sched_constrain_item(sched *s, step *st, const step_item *item);
inferd_status sched_verify_constraint(const sched *s, const seq *q, inferd_err *err);

/* -- sched_time.c -- */
/* Its target per token: that of the request, else of its model; 0: none. */
uint64_t sched_tpot_us(const sched *s, const seq *q);

/* It computes nothing, however long it waits: its reader, its tenant or its model is paused. */
bool sched_stands_still(const sched *s, const seq *q);

/* -- sched_pace.c -- */
/* How long a step of this model may take with prompts beside the rows that it has. */
uint64_t sched_budget_us(const sched *s, const sched_model *m, const rate_work *work);

/* -- submit.c -- */
uint64_t sched_block_bytes(const sched_model *m); // of one block of KV
/* NULL: a tenant without a policy. */
const sched_tenant *sched_tenant_at(const sched *s, uint32_t idx);
const sched_tenant *sched_tenant_of(const sched *s, const seq *q);
uint32_t sched_pages_of(const sched *s, uint64_t n_bytes); // rounded up
/* Tokens of KV that this tenant could ever have in this model, beside what others keep in any case;
 * its own ceiling is sched_tenant_tokens. */
uint32_t sched_tokens_for(const sched *s, uint32_t model_idx, uint32_t tenant_idx);
uint32_t sched_tenant_tokens(const sched *s, uint32_t model_idx, uint32_t tenant_idx);
/* Guarantees, ceilings or pins changed: a request that can never be finished any more ends with the
 * numbers, instead of waiting for good; a request without max_tokens gets less. */
void sched_recheck_limits(sched *s, uint64_t now_us);
bool sched_init_flows(sched *s); // false: no memory
void sched_leave_flow(sched *s, seq *q);
/* The use of a tenant that has a policy changed: sched_next_tenant will return it. */
void sched_note_tenant(sched *s, uint32_t tenant);
/* Its sequences that are counted: one ended, one runs or waits again. */
void sched_leave_tenant(sched *s, seq *q);
void sched_note_runs(sched *s, const seq *q, bool runs);
/* When a sequence has ended while a step still names it, another flow may have taken the entry. */
flow *sched_flow_of(sched *s, const seq *q);
/* It could have a step of this tier now.  After a time with work in the other part only, its
 * virtual time begins at that of the others. */
void sched_see_flow(sched *s, flow *p, sched_tier tier, uint64_t now_us);

/* -- sched_memory.c -- */
/* Pages are being freed for the weights of a model that more urgent work waits for: q takes none,
 * unless they are kept free for its own guarantee. */
bool sched_leaves_room(const sched *s, const seq *q);
void sched_on_live(void *ctx, uint32_t tenant, bool live); // on_live of a model's kv
/* From now on pages for unfilled guarantees of other tenants are not taken for this sequence. */
void sched_reserve_for(sched *s, const seq *q); // NULL: no tenant
/* The ceiling of its tenant leaves no room for n_blocks more. */
bool sched_tenant_is_full(const sched *s, const seq *q, uint32_t n_blocks);
uint64_t sched_tenant_room(const sched *s, const seq *q); // bytes below its ceiling
/* The tenant's ceiling stopped q: its other sequences wait behind q and are not looked at, for some
 * plans or until something changed for the tenant (go_on). */
void sched_tenant_stop(sched *s, const seq *q);
void sched_tenant_go_on(sched *s, uint32_t tenant_idx);
bool sched_tenant_stopped(const sched *s, const seq *q);
bool sched_model_is_full(const sched *s, const seq *q);
uint32_t sched_model_room(const sched *s, const seq *q); // pages up to its ceiling
/* Holds a lowered ceiling at once: cached blocks are evicted, the newest sequences wait again. */
void sched_trim_to_max(sched *s, sched_model *m);
bool sched_has_guarantees(const sched *s); // of any tenant or model
/* What it needs next is within the guarantee of its tenant, or of its model. */
bool sched_may_claim(const sched *s, const seq *q);
/* All that its tenant, or its model, has is within the guarantee. */
bool sched_is_secure(const sched *s, const seq *q);
/* Does a guarantee keep pages of v from q?  That of an owner of both does not: whatever q takes,
 * the owner has as much as before. */
bool sched_is_secure_from(const sched *s, const seq *v, const seq *q);

/* -- sched_swap.c -- */
inferd_status sched_open_swap(sched *s, sched_model *m, inferd_err *err);
void sched_close_swap(sched_model *m);
/* Evicts one cached block of the model, swapped out first where that pays; false: there is none. */
bool sched_evict_block(sched *s, sched_model *m);
/* Swaps in at most n blocks of a running sequence with whole blocks so far; returns how many. */
uint32_t sched_swap_in(sched *s, seq *q, uint32_t n, uint64_t now_us);
/* Time to get n blocks back, in which the rows of `held` were computed, if they leave the device
 * now: by copying or by computing, whichever takes less. */
uint64_t sched_again_us(const sched_model *m, const rate_work *held, uint64_t n_blocks);
void sched_note_took(sched_took *t, uint64_t us, uint64_t now_us);
/* It was measured so long ago that it may be wrong. */
bool sched_is_old(const sched_took *t, uint64_t now_us);
/* Time to compute a whole block at this depth; 0: not known. */
uint64_t sched_compute_us(const sched_model *m, uint32_t depth);

/* -- sched_disk.c -- */
/* The key of the model's block names; false: nothing of it goes to the disk. */
bool sched_disk_key(const sched *s, const sched_model_spec *spec, uint64_t out[2]);
bool sched_has_disk(const sched *s, const sched_model *m);
/* Writes block b of a cache that the host can reach to the disk, before b is evicted. */
void sched_store(sched *s, sched_model *m, const prefix *p, uint32_t b);
/* The bytes of the next block of a running sequence, valid until sched_fetched; NULL: they are
 * being read (q->waits_for_disk), or do not come from the disk. */
const unsigned char *sched_fetch(sched *s, seq *q, prefix_name name, uint32_t n_max,
                                 uint64_t now_us);
void sched_fetched(sched *s, uint32_t model_idx, prefix_name name, bool used);
/* Drops blocks that were read and not used for a while. */
void sched_drop_reads(sched *s, uint64_t now_us);
void sched_leave_disk(sched *s, const seq *q);         // it waits for none of its blocks any more
void sched_forget_reads(sched *s, uint32_t model_idx); // the model is about to close

/* -- admit.c -- */
/* Blocks, and pages, for its known tokens and the look-ahead of an admission. */
uint32_t sched_blocks_to_start(const sched *s, const seq *q);
uint32_t sched_pages_to_start(const sched *s, const seq *q);
uint64_t sched_own_blocks(const sched *s, const seq *r); // that no other sequence uses
bool sched_can_start(const sched *s, const seq *q); // WAITING, and nothing keeps it from starting

/* RUNNING -> WAITING: it keeps its tokens and its position in the order. */
void sched_preempt_seq(sched *s, seq *q);

#endif
