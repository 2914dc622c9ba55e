/* scheduler.h - which sequences compute how many tokens in a step, and what the step changed.
 *
 * Pure policy: integers in, a step out; no clock, no device, no threads.  `now_us` is passed in.
 *
 *     sched_submit, _cancel, _pause, _resume     changes
 *     sched_plan     -> a step                   at most `depth` of them unfinished
 *     sched_commit, _fail, _withdraw  <- the step    in the order they were planned
 *     sched_flush    -> last events              when there is room for them
 *
 * A step belongs to one model.  First every sequence that needs one row gets it, then prompt chunks
 * fill the rest, in the order of order.c, which also says which sequences a batch has and which
 * gives up pages.  The rate of earlier steps predicts how many rows fit (rate.h).  Decoding keeps a
 * pace, which is pace_us or the targets of the decoding sequences; prompts get all time that the
 * pace leaves (sched_pace.c).
 *
 * A waiting request that begins like a prompt that is being computed is held back until those
 * blocks are there, instead of computing them a second time.  It waits only for a sequence that is
 * running, not paused and at least as urgent: that one advances first, so the wait is never longer
 * than computing takes.  When that one leaves, the next in line computes.
 *
 * With draft_tokens, and few sequences, steps also compute draft tokens (draft.h).
 *
 * With a grammar, a sequence draws from the tokens that may come next (constraint.h).  A mask that
 * is late delays its own sequence by a step, and no other.
 *
 * Pages: a request is admitted when its known tokens and a small look-ahead fit beside what the
 * running ones still need.  When pages run out nevertheless, cached blocks go first, then the least
 * deserving sequence is preempted.  It keeps its tokens and is computed again later.  The most
 * deserving sequence can take pages from all others, and admission made sure that it fits alone: so
 * one sequence always advances.
 *
 * The requests of a model are accepted from sched_model_open on, and planned while it is hot.
 * Whether it is brought up is decided elsewhere (residency.h), from its demand (sched_demands).
 *
 * The functions are sched_*; the file has another name because libc has a header sched.h.
 *
 * Always: every submitted request gives exactly one GEN_EV_DONE, after its other events.
 * Thread: engine. */
#ifndef INFERD_SCHEDULER_H
#define INFERD_SCHEDULER_H

#include "inferd/base.h"
#include "inferd/kv_layout.h"
#include "constraint.h"
#include "inferd/status.h"
#include "pool.h"
#include "scheduler/gen.h"
#include "scheduler/kv_disk.h"
#include "scheduler/policy.h"
#include "scheduler/usage.h"
#include "step.h"

typedef struct sched sched;

/* Rows of a step without a configured limit: on a device that gives no default, and the most on one
 * that does. */
enum { STEP_TOKENS_DEFAULT = 512, STEP_TOKENS_DEFAULT_MAX = 2048 };

typedef struct sched_limits {
    uint32_t depth; // steps planned ahead, 1 or 2
    uint32_t running_max, step_tokens_max, logits_max, queue_len_max;
    bool step_tokens_by_device; // no limit was set: the device's default, at most step_tokens_max
    uint32_t draft_tokens;      // drafted per sequence and step, at depth 1 only; 0: none
    uint64_t pace_us; // between two tokens of a stream, while prompts are computed: sched_pace.c
    uint64_t starvation_us;
    uint64_t kv_slice_us; // so long without a page a model takes some of equals; set by core.h
    uint32_t starvation_percent; // of the time that a class waits: its minimum; 0: none
    uint32_t urgent_percent;     // of the time: for urgent requests beside shares; 0: none
    bool zero_on_tenant_change;  // KV memory, before another tenant gets it
} sched_limits;

typedef struct sched_model_spec {
    kv_layout kv;
    uint32_t context, n_vocab; // all ids of a request are below n_vocab
    const tok_id *end_ids;     // [n_end_ids] ascending; borrowed until sched_destroy
    uint32_t n_end_ids;
    uint32_t weight_pages; // of its weights while it is hot
    uint64_t content[2];   // what its KV depends on beside the tokens; 0, 0: unknown
    const tokenizer *tok;  // for text that a grammar forces; borrowed likewise; NULL: none is
} sched_model_spec;

/* The pending work of one model. */
typedef struct sched_demand {
    uint32_t n_waiting, n_running, n_steps; // n_steps: unfinished ones
    gen_class waiting_class, running_class; // the most urgent of them; GEN_CLASSES: none
    gen_class lowest_class;                 // of the running ones; GEN_SYSTEM: none
    uint64_t oldest_us;                     // start of the longest wait in waiting_class
    uint64_t unserved_us; // start of the longest wait without a token yet; 0: none waits
    uint32_t first_pages; // KV pages that the longest-waiting of waiting_class needs to begin
    uint64_t again_us;    // to get the KV of its running sequences back after an eviction
} sched_demand;

typedef struct sched_counters {
    uint32_t n_running, n_waiting, n_paused, n_ended; // n_paused are among the running and waiting
    uint32_t pages_cached;                            // KV pages that only the prefix cache uses
    uint32_t blocks_referenced;                       // blocks that sequences use
    uint64_t n_preemptions, n_recomputed_tokens;
    uint64_t n_swapped_out, n_swapped_in; // blocks swapped out to host memory, and in
    uint32_t blocks_swapped;              // in host memory now
    uint64_t n_copied_ahead;              // blocks copied to host memory while their sequence ran
    uint64_t n_stored, n_fetched;         // blocks given to the disk, and read from it
    uint64_t n_zeroed_pages, n_zeroed_slots;     // before another tenant got them
    engine_times preempts[GEN_PREEMPTS], relief; // of preemptions, by kind; until pages are free
    uint64_t charged_us, waste_us;  // of all steps: charged, and computed again after preemptions
    uint64_t class_us[GEN_CLASSES]; // of charged_us, by class of the request
    uint64_t prefix_queries_tokens, prefix_hits_tokens;
    uint64_t n_drafted, n_drafts_right; // draft tokens, and the accepted ones
    uint64_t n_masks, n_masks_made;     // of grammars; of these not found in a cache
    uint64_t n_masks_late, masks_us;    // draws that waited a step for one; work for all
    uint64_t n_submitted, n_finished[GEN_ERROR + 1];
} sched_counters;

/* Sequences by class of the request, without those that stand still (sched_stands_still). */
typedef struct sched_class {
    uint32_t n_running, n_waiting;
    uint64_t since_us; // start of the longest time without a step; 0: there is no sequence
} sched_class;

/* Numbers of one model. */
typedef struct sched_model_numbers {
    uint32_t n_running, n_waiting, pages_cached;
    uint32_t blocks_used;              // that sequences use
    uint64_t device_us;                // of its steps
    uint64_t n_preempts[GEN_PREEMPTS]; // preemptions of its sequences
    uint32_t cost_error_ppm;           // rate_error_ppm
    uint64_t first_us, first_us_sum;   // of the first step after it became hot: the newest, the sum
} sched_model_numbers;

/* Receives token events, and last events of requests for which no sequence was free. */
typedef void sched_emit(void *ctx, const gen_event *event);

/* Each model is an owner of the pool, which is borrowed.  No step allocates memory later. */
inferd_status sched_create(const sched_limits *limits, pool *p, uint32_t n_models, sched_emit *emit,
                           void *emit_ctx, sched **out, inferd_err *err);
void sched_destroy(sched *s); // accepts NULL
/* Before the first plan: the device takes fewer or smaller steps than the limits said.  Fails if
 * the limits have drafts and it takes more than one step: until a step has drawn its tokens it is
 * unknown which drafts were right, so such a device would idle between two steps. */
inferd_status sched_set_device(sched *s, uint32_t depth, uint32_t step_tokens_max, inferd_err *err);

/* Before the first plan: masks of grammars are made by these (borrowed with ctx until
 * sched_destroy); without this call, at once.  `before_launch`: the device needs all masks of a
 * step at its launch, so a draw is planned once its mask is there; else sched_refresh looks for it.
 */
void sched_set_constraints(sched *s, const constraint_ops *ops, void *ctx, bool before_launch);

/* Describes the model.  Before this (or sched_model_fail) no request may name it. */
inferd_status sched_model_open(sched *s, uint32_t model_idx, const sched_model_spec *spec,
                               inferd_err *err);
/* Shares, weights and targets, from now on. */
void sched_set_model_policy(sched *s, uint32_t model_idx, const model_policy *policy,
                            uint64_t now_us);
/* Tenants without a policy take part in the surplus with weight 1. */
inferd_status sched_set_tenant(sched *s, uint32_t tenant_idx, const tenant_policy *policy,
                               uint64_t now_us, inferd_err *err);
/* The next tenant with a change of its use since its last report, and that use; SCHED_NO_TENANT:
 * none.  Tenants without a policy are not counted. */
#define SCHED_NO_TENANT UINT32_MAX
typedef struct sched_tenant_use {
    uint64_t n_bytes;              // KV blocks that its sequences use
    uint32_t n_running, n_waiting; // sequences
} sched_tenant_use;
uint32_t sched_next_tenant(sched *s, sched_tenant_use *out);
/* Pinned pages of its weights, and the model that has its weights.  Guarantees and ceilings of its
 * owner in the pool may have changed, too: the next plan ends requests that cannot be finished. */
void sched_model_pin(sched *s, uint32_t model_idx, uint32_t weights_of, uint32_t n_pages);
/* The next plan uses these urgent_percent and pace_us only. */
void sched_set_policy(sched *s, const sched_limits *limits, uint64_t now_us);
/* The pool became smaller: the next plan ends requests that cannot be finished any more. */
void sched_pool_shrank(sched *s);
void sched_set_page_bytes(sched *s, uint64_t page_bytes); // needed for guarantees of tenants
/* Guarantees of all tenants together, filled or not. */
uint32_t sched_tenants_min_pages(const sched *s);
/* The next pages are taken for no sequence: guarantees of all tenants are kept free. */
void sched_reserve(sched *s);
/* It has no sequence and no unfinished step any more.  Its cached blocks are freed. */
void sched_model_close(sched *s, uint32_t model_idx);
/* Its weights are on the device, or leave it: its requests are planned while they are there.
 * Before they leave nothing of it may run (sched_model_preempt). */
void sched_model_hot(sched *s, uint32_t model_idx, bool hot, uint64_t now_us);
/* All its requests, present and later, end with this error; retry_at_us 0: for good. */
void sched_model_fail(sched *s, uint32_t model_idx, const inferd_err *why, uint64_t retry_at_us,
                      uint64_t now_us);
void sched_model_revive(sched *s, uint32_t model_idx); // later requests are accepted again
/* Its running sequences wait again; returns how many. */
uint32_t sched_model_preempt(sched *s, uint32_t model_idx);
/* While its admission window is closed no waiting sequence of it starts; running ones go on. */
void sched_model_close_window(sched *s, uint32_t model_idx, bool closed);
uint32_t sched_model_n_steps(const sched *s, uint32_t model_idx);  // unfinished ones
uint32_t sched_model_n_seqs(const sched *s, uint32_t model_idx);   // waiting, running and ended
uint32_t sched_model_n_cached(const sched *s, uint32_t model_idx); // pages with cached blocks only
/* There is work, and no plan could compute any of it for starvation_us. */
bool sched_is_blocked(const sched *s, uint64_t now_us);
/* Demand of all models: out[n_models]. */
void sched_demands(const sched *s, uint64_t now_us, sched_demand *out);
/* Adds to cost_us what a decode step of all its sequences would take, and takes the smallest of
 * their targets per token into period_us (0: none has a target). */
void sched_add_task(const sched *s, uint32_t model_idx, uint64_t *cost_us, uint64_t *period_us);
/* Frees pages of the device that only cached blocks use, oldest first per model, of all models,
 * until n are free or none is left; returns how many are free. */
uint32_t sched_drop_cached(sched *s, uint32_t n);
/* Cached blocks may be swapped out to host memory.  `move` copies n slots, in order with the steps
 * (those launched before have been computed); `host` is the pool of their pages, the device's own
 * where there is one memory.  Before the first model is opened. */
typedef void sched_move(void *ctx, uint32_t model_idx, uint32_t n, const int32_t *from,
                        const int32_t *to, bool to_host);
void sched_set_swapping(sched *s, pool *host, sched_move *move, void *ctx);
/* How long copying n blocks of this model took. */
void sched_note_moves(sched *s, uint32_t model_idx, uint32_t n, uint64_t us);
/* Preempts running sequences, the least deserving first, of models and tenants above their
 * guarantee, until this model could take n pages.  True: it can, or will when cached blocks are
 * evicted and the unfinished steps have ended; false: no sequence has more to give. */
bool sched_take_back(sched *s, uint32_t model_idx, uint32_t n);
/* Could this model take n pages, now or when steps have ended and cached blocks are evicted? */
bool sched_may_have(sched *s, uint32_t model_idx, uint32_t n);
/* Pages of another model that come free for this one when all running sequences of a lower class
 * than `prio` are preempted, besides cached blocks; those within a guarantee are not. */
uint32_t sched_n_lower(const sched *s, uint32_t of_idx, uint32_t model_idx, gen_class prio);
/* Preempts the least deserving of these, of all models; false: there is none. */
bool sched_preempt_lower(sched *s, uint32_t model_idx, gen_class prio);
/* Pages of preempted sequences come free when an unfinished step ends. */
bool sched_relief_is_coming(const sched *s);
/* Room is being made for work of this class: until the next call sequences of a lower class neither
 * begin nor take blocks.  GEN_CLASSES: none is. */
void sched_make_room(sched *s, gen_class prio);
/* Frees swapped-out blocks until n pages of the host are free, or none; returns how many are. */
uint32_t sched_drop_swapped(sched *s, uint32_t n);
/* Copies full blocks of running sequences of the batch class to host memory ahead of time: at most
 * AHEAD_PERCENT of the time since the last call (sched_swap.c), and only into spare pages. */
void sched_copy_ahead(sched *s, uint64_t now_us);
/* Blocks that leave host memory, or find no room there, go to this disk (borrowed), and are looked
 * up there.  `slot` gives the address of a slot of a swapped-out block; where there is one memory,
 * of any block.  `wake` is called from another thread.  Before the first model is opened. */
typedef unsigned char *sched_slot(void *ctx, uint32_t model_idx, int32_t slot);
void sched_set_disk(sched *s, const kv_disk_ops *ops, kv_disk *disk, bool one_memory,
                    sched_slot *slot, void (*wake)(void *ctx), void *ctx);
/* For the shutdown: writes cached blocks to the disk, one cache after the other, each newest first,
 * until until_us of its clock; then the disk is not used any more.  No step may be unfinished. */
void sched_save(sched *s, uint64_t until_us);
/* Zeroes bytes of a KV page, in order with the steps.  Before the first model is opened. */
typedef void sched_zero(void *ctx, uint32_t page, size_t begin, size_t n_bytes);
inferd_status sched_set_zero(sched *s, sched_zero *zero, void *ctx, inferd_err *err);
/* Called when a sequence of this model needs pages and no cached block is left: it may evict unused
 * weights.  For a request of class `waiting` that waits since since_us it may also evict models
 * with work that deserves less or has had its time slice (GEN_CLASSES: not those); `aged` is the
 * class that the request has aged to.  True: there are more pages now. */
typedef bool sched_reclaim(void *ctx, uint32_t model_idx, gen_class waiting, gen_class aged,
                           uint64_t since_us);
void sched_set_reclaim(sched *s, sched_reclaim *f, void *ctx);

/* Takes the request in any case.  The caller has room for one event. */
void sched_submit(sched *s, gen_request *r, uint64_t now_us);
void sched_cancel(sched *s, uint64_t id, uint64_t now_us);
void sched_pause(sched *s, uint64_t id);
void sched_resume(sched *s, uint64_t id, uint64_t now_us);
void sched_cancel_all(sched *s, uint64_t now_us);

/* Ends requests past their deadline, then fills `st`.  False: nothing can be computed now. */
bool sched_plan(sched *s, uint64_t now_us, step *st);
/* Before tokens are drawn from a step, and when all steps before it are committed: marks the draws
 * of sequences that left since it was planned; gives the others their masks, and marks those
 * without one.  Again before its commit: marks the draws of sequences that left. */
void sched_refresh(sched *s, step *st);
/* At most logits + sequences of the step events are emitted. */
void sched_commit(sched *s, step *st, uint64_t device_us, uint64_t now_us);
/* All sequences of the step end with INFERD_ELOST, INFERD_ENOMEM or else INFERD_EDEVICE. */
void sched_fail(sched *s, step *st, const inferd_err *why, uint64_t now_us);
/* The step was launched behind one that failed: its results are dropped, and its sequences compute
 * the same rows again.  No other step is unfinished.  Its time is waste. */
void sched_withdraw(sched *s, step *st, uint64_t now_us);
/* Emit at most `room` last events; returns how many. */
uint32_t sched_flush(sched *s, uint32_t room);
uint32_t sched_n_unsent(const sched *s); // last events that wait for sched_flush

/* The next moment at which a deadline, a share or the disk may change a plan; UINT64_MAX: none. */
uint64_t sched_next_deadline(const sched *s);
void sched_count_classes(const sched *s, sched_class out[GEN_CLASSES]);
void sched_count(const sched *s, sched_counters *out);
/* The part of the targets of running sequences that can be kept; walks all of them. sched_time.c */
uint32_t sched_attainment_ppm(const sched *s);
/* A typical length of the device's steps (rate.h); 0: nothing was measured. */
uint64_t sched_typical_us(const sched *s);
/* A decode step of one sequence, predicted (sched_pace.c); 0: nothing was measured. */
uint32_t sched_decode_us(const sched *s, uint32_t model_idx);
void sched_count_model(const sched *s, uint32_t model_idx, sched_model_numbers *out);
/* A KV page of this model: is it used by the prefix cache only? */
bool sched_page_is_cached(const sched *s, uint32_t model_idx, uint32_t page);

/* Usage by tenant and model; only the scheduler and flow_usage_next_changed change it. */
struct flow_usage *sched_flow_usage(sched *s);

/* Tokens of KV in all pages left for this model, for a tenant that has every guarantee. */
uint32_t sched_kv_tokens_max(const sched *s, uint32_t model_idx);
/* Tokens of KV below the model's own ceiling, beside its weights; INT32_MAX: no ceiling. */
uint32_t sched_kv_tokens_ceiling(const sched *s, uint32_t model_idx);
/* Could the request ever fit?  The text gives the numbers.  INFERD_EQUOTA: not below the ceiling,
 * which an operator could raise; INFERD_ETOOLONG: not this model, or not on this machine. */
inferd_status sched_admit(uint32_t context, uint32_t kv_tokens_max, uint32_t kv_tokens_ceiling,
                          uint32_t n_prompt, uint32_t max_tokens, inferd_err *err);

/* Checks all data of the scheduler and of what lies below it.  Slow; for tests and audits. */
inferd_status sched_verify(const sched *s, inferd_err *err);

#endif
