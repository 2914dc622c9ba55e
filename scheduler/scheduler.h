/* scheduler.h - who computes how many tokens next, and what became of it.
 *
 * Pure policy: integers in, a step out; no clock, no device, no threads.  `now_us` is handed in.
 *
 *     sched_submit, _cancel, _pause, _resume     changes
 *     sched_plan     -> a step                   at most `depth` of them unfinished
 *     sched_commit, _fail, _withdraw  <- the step    in the order they were planned
 *     sched_flush    -> last events              when there is room for them
 *
 * A step belongs to one model.  First every sequence that needs one row gets it, then prompt chunks
 * fill the rest in order: class, rank, arrival.  How many rows fit is known from the rate of
 * earlier steps (rate.h).  Decoding keeps a pace, pace_us or the targets of those that decode, and
 * prompts get all time that the pace leaves (sched_pace.c).
 *
 * A sequence without rows for starvation_us is lifted: it counts as one class more urgent, per such
 * interval, up to GEN_HIGH.  Of waiting sequences a few at a time are lifted (LIFTED_PARTS), or in
 * a queue in which all have waited for long an urgent request would not be urgent.  A lifted
 * sequence keeps its class while it runs; prompts of the same class by right go before its own, but
 * an eighth of the time and rows of prompts is for lifted ones.  A sequence in a batch that had no
 * rows for starvation_us gets some in the next step of its model, and its model the next step of
 * the device, where shares allow it: so no class starves, however much more urgent work there is.
 *
 * A waiting sequence that finds all running_max places taken, some of them by less urgent ones,
 * takes one: a sequence steps aside.  That one runs on without a place, keeps its blocks where
 * pages allow, has a step each starvation_us, and rises by a class with each, until a place is free
 * again.
 *
 * Whoever waits and begins like a prompt that is being computed is held back until those blocks are
 * there, instead of computing them again at the same time.  It waits only for a sequence that is
 * running, not paused and at least as urgent: that one advances before it would, so nobody waits
 * for longer than computing takes.  When that one leaves, the next in line computes.
 *
 * With draft_tokens, and few sequences, steps also compute guesses of what follows (draft.h).
 *
 * Pages: a request is admitted when its known tokens and a small look-ahead fit beside what the
 * running ones still need.  When pages run out nevertheless, cached blocks go first, then the least
 * deserving sequence is preempted: paused ones, then the lowest class, then those not yet preempted
 * three times, then the newest.  It keeps its tokens and is computed again later.  The most
 * deserving one can take from all others, and admission made sure that it fits alone: so somebody
 * always advances.
 *
 * A model has requests from sched_model_open on, and they are planned while it is hot: whether it
 * is brought up is decided elsewhere (residency.h), by what sched_model_demand says.
 *
 * The functions are sched_*; the file cannot be, because libc has a header of that name.
 *
 * Always: every submitted request gives exactly one GEN_EV_DONE, after its other events.
 * Thread: engine. */
#ifndef INFERD_SCHEDULER_H
#define INFERD_SCHEDULER_H

#include "inferd/base.h"
#include "inferd/kv_layout.h"
#include "inferd/status.h"
#include "pool.h"
#include "scheduler/gen.h"
#include "scheduler/kv_disk.h"
#include "scheduler/policy.h"
#include "scheduler/usage.h"
#include "step.h"

typedef struct sched sched;

/* Rows of a step for which no limit was set: on a device that says nothing, and the most of those
 * that say something. */
enum { STEP_TOKENS_DEFAULT = 512, STEP_TOKENS_DEFAULT_MAX = 2048 };

typedef struct sched_limits {
    uint32_t depth; // steps planned ahead, 1 or 2
    uint32_t running_max, step_tokens_max, logits_max, queue_len_max;
    bool step_tokens_by_device; // no limit was set: the device's default, at most step_tokens_max
    uint32_t draft_tokens;      // guessed per sequence and step, at depth 1 only; 0: none
    uint64_t pace_us; // between two tokens of a stream, while prompts are computed: sched_pace.c
    uint64_t starvation_us;
    uint64_t kv_turn_us; // so long without a page: a model takes some of equals; core.h sets it
    uint32_t starvation_percent; // of the time a class waits behind others; 0: none
    policy_objective objective;
    bool no_prefix_cache;
    bool background_copies;     // of blocks of the batch class, to host memory, before it must go
    bool zero_on_tenant_change; // memory of keys and values, before another tenant gets it
} sched_limits;

typedef struct sched_model_spec {
    kv_layout kv;
    uint32_t context, n_vocab; // all ids of a request are below n_vocab
    const tok_id *end_ids;     // [n_end_ids] ascending; borrowed until sched_destroy
    uint32_t n_end_ids;
    uint32_t weight_pages; // that its weights take while it is hot
    uint64_t content[2];   // what its keys and values depend on beside the tokens; 0, 0: unknown
} sched_model_spec;

/* Who wants a model. */
typedef struct sched_demand {
    uint32_t n_waiting, n_running, n_steps; // n_steps: unfinished ones
    gen_class waiting_class, running_class; // the most urgent of them; GEN_CLASSES: none
    uint64_t oldest_us;                     // since when the first of waiting_class waits
    uint64_t unserved_us; // since when the first waits that had no token yet; 0: nobody
    uint32_t first_pages; // of keys and values that this one needs to begin
    uint64_t again_us;    // to have the keys and values back that the running ones hold
} sched_demand;

typedef struct sched_counters {
    uint32_t n_running, n_waiting, n_paused, n_ended; // n_paused are among the running and waiting
    uint32_t pages_cached;                            // KV pages that only the prefix cache uses
    uint32_t blocks_referenced;                       // blocks that sequences hold
    uint64_t n_preemptions, n_recomputed_tokens;
    uint64_t n_parked, n_unparked; // blocks copied to host memory, and back
    uint32_t blocks_parked;        // in host memory now
    uint64_t n_copied_ahead;       // blocks copied to host memory while their sequence ran
    uint64_t n_stored, n_fetched;  // blocks given to the disk, and that came from there
    uint64_t n_zeroed_pages, n_zeroed_slots; // before another tenant got them
    engine_times rungs[GEN_RUNGS], relief;   // of preemptions
    uint64_t charged_us, waste_us;  // of all steps: paid for, and computed again after preemptions
    uint64_t class_us[GEN_CLASSES]; // of charged_us, by the class that requests ask for
    uint64_t prefix_queries_tokens, prefix_hits_tokens;
    uint64_t n_drafted, n_drafts_right; // tokens guessed, and those that were drawn
    uint64_t n_submitted, n_finished[GEN_ERROR + 1];
} sched_counters;

/* Of one model. */
typedef struct sched_model_numbers {
    uint32_t n_running, n_waiting, pages_cached;
    uint32_t blocks_used;            // that sequences count on
    uint64_t device_us;              // that its steps took
    uint64_t n_rungs[GEN_RUNGS];     // preemptions of its sequences
    uint32_t cost_error_ppm;         // rate_error_ppm
    uint64_t first_us, first_us_sum; // of the first step after it became hot: the last time, ever
} sched_model_numbers;

/* Where token events go, and last events of requests that could not even be kept. */
typedef void sched_emit(void *ctx, const gen_event *event);

/* Each model is an owner of the pool, which is borrowed.  Nothing is allocated per step later. */
inferd_status sched_create(const sched_limits *limits, pool *p, uint32_t n_models, sched_emit *emit,
                           void *emit_ctx, sched **out, inferd_err *err);
void sched_destroy(sched *s); // accepts NULL
/* Before the first plan: the device takes fewer steps at once, or smaller ones, than the limits
 * said.  Fails when they have guesses, and it takes more than one: until a step has drawn nobody
 * knows which of its guesses were right, so such a device would stand still between two steps. */
inferd_status sched_set_device(sched *s, uint32_t depth, uint32_t step_tokens_max, inferd_err *err);

/* What the model is; its requests are taken from now on.  Before this (or sched_model_fail) no
 * request may name it. */
inferd_status sched_model_open(sched *s, uint32_t model_idx, const sched_model_spec *spec,
                               inferd_err *err);
/* Shares, weights and targets, from now on. */
void sched_set_model_policy(sched *s, uint32_t model_idx, const model_policy *policy,
                            uint64_t now_us);
/* Tenants nobody said anything about take part in the surplus with weight 1. */
inferd_status sched_set_tenant(sched *s, uint32_t tenant_idx, const tenant_policy *policy,
                               uint64_t now_us, inferd_err *err);
/* A tenant whose keys and values that count became more or less since it was last told, and their
 * bytes now; SCHED_NO_TENANT: none did.  Tenants nobody said anything about are in no ledger. */
#define SCHED_NO_TENANT UINT32_MAX
uint32_t sched_next_tenant(sched *s, uint64_t *used_bytes);
/* Pages of its weights that never go (pinned), and whose weights it has.  Guarantees and ceilings
 * of its owner in the pool may have changed, too: the next plan ends who can not be finished any
 * more.
 */
void sched_model_pin(sched *s, uint32_t model_idx, uint32_t weights_of, uint32_t n_pages);
/* From the next plan on starvation_percent, objective, pace_us and background_copies are these; the
 * rest stays as it was. */
void sched_set_policy(sched *s, const sched_limits *limits, uint64_t now_us);
/* The pool became smaller: likewise. */
void sched_pool_shrank(sched *s);
/* For guarantees of tenants. */
void sched_set_page_bytes(sched *s, uint64_t page_bytes);
/* Pages that the guarantees of all tenants are, filled or not. */
uint32_t sched_tenants_min_pages(const sched *s);
/* What follows takes pages for nobody's sequences: guarantees of all tenants are kept free. */
void sched_reserve(sched *s);
/* Nothing of it is left: no sequence, no unfinished step.  Its cached blocks go. */
void sched_model_close(sched *s, uint32_t model_idx);
/* Its weights are there, or go: its requests are planned while they are.  Before they go nothing of
 * it runs (sched_model_preempt). */
void sched_model_hot(sched *s, uint32_t model_idx, bool hot);
/* All its requests, now and later, end with this error; retry_at_us 0: for good. */
void sched_model_fail(sched *s, uint32_t model_idx, const inferd_err *why, uint64_t retry_at_us,
                      uint64_t now_us);
/* Later ones are taken again. */
void sched_model_revive(sched *s, uint32_t model_idx);
/* What runs of it waits again; how many. */
uint32_t sched_model_preempt(sched *s, uint32_t model_idx);
/* Nobody who waits for it starts while the door is closed; what runs goes on. */
void sched_model_close_door(sched *s, uint32_t model_idx, bool closed);
uint32_t sched_model_n_steps(const sched *s, uint32_t model_idx);  // unfinished ones
uint32_t sched_model_n_seqs(const sched *s, uint32_t model_idx);   // waiting, running and ended
uint32_t sched_model_n_cached(const sched *s, uint32_t model_idx); // pages with cached blocks only
/* Nothing could be computed for so long that waiting for better times is of no use. */
bool sched_is_blocked(const sched *s, uint64_t now_us);
/* Of every model at once: out[n_models]. */
void sched_demands(const sched *s, uint64_t now_us, sched_demand *out);
/* What a decode step of all its sequences would take is added to cost_us, and the smallest time per
 * token that they wish for is taken into period_us (0: nobody wishes). */
void sched_add_task(const sched *s, uint32_t model_idx, uint64_t *cost_us, uint64_t *period_us);
/* Pages of the device that only cached blocks of any model use are given up, oldest first per
 * model, until n of them are free or none is left; how many are free. */
uint32_t sched_drop_cached(sched *s, uint32_t n);
/* Cached blocks may be parked in host memory: `move` copies n slots, in order with the steps (those
 * launched before have been computed); `host` is the pool of their pages, the device's own where
 * there is one memory.  Before the first model is opened. */
typedef void sched_move(void *ctx, uint32_t model_idx, uint32_t n, const int32_t *from,
                        const int32_t *to, bool to_host);
void sched_set_parking(sched *s, pool *host, sched_move *move, void *ctx);
/* What n blocks of this model took. */
void sched_note_moves(sched *s, uint32_t model_idx, uint32_t n, uint64_t us);
/* Running sequences wait again, the least deserving first, of models and tenants that have more
 * than was guaranteed to them, until this model could take n pages.  True: it can, or will when
 * cached blocks are given up and the steps on their way have ended; false: nobody has more to give.
 */
bool sched_take_back(sched *s, uint32_t model_idx, uint32_t n);
/* Parked pages are given up until n pages of the host are free, or none is left; how many are
 * free. */
uint32_t sched_drop_parked(sched *s, uint32_t n);
/* Blocks of running sequences of the batch class that are full are copied to host memory ahead of
 * time: for at most AHEAD_PERCENT of the time since it was called last (sched_park.c), and only
 * into pages that nobody else has use for. */
void sched_copy_ahead(sched *s, uint64_t now_us);
/* Blocks that leave host memory, or find no room there, go to this disk (borrowed), and are looked
 * for there.  `slot` gives the address of a slot of a parked block, and where there is one memory
 * of any.  `wake` is called from another thread.  Before the first model is opened. */
typedef unsigned char *sched_slot(void *ctx, uint32_t model_idx, int32_t slot);
void sched_set_disk(sched *s, const kv_disk_ops *ops, kv_disk *disk, bool one_memory,
                    sched_slot *slot, void (*wake)(void *ctx), void *ctx);
/* For the end: what is cached goes to the disk, one cache after the other, of each the newest
 * first, until this moment of the disk's clock, and then nothing is asked of it any more.  No step
 * is on its way. */
void sched_save(sched *s, uint64_t until_us);
/* Zero bytes of a page of keys and values, in order with the steps.  Before the first model is
 * opened. */
typedef void sched_zero(void *ctx, uint32_t page, size_t begin, size_t n_bytes);
inferd_status sched_set_zero(sched *s, sched_zero *zero, void *ctx, inferd_err *err);
/* Asked when a sequence of this model needs pages and no cached block is left: weights that nobody
 * uses may go; and for one of this class that waits since then, those of models whose work deserves
 * less, or has had its turn (GEN_CLASSES: not those); `lifted` is the class that waiting has made
 * of its own.  True: there are more pages now. */
typedef bool sched_reclaim(void *ctx, uint32_t model_idx, gen_class waiting, gen_class lifted,
                           uint64_t since_us);
void sched_set_reclaim(sched *s, sched_reclaim *f, void *ctx);

/* Takes the request, whatever happens.  The caller has room for one event. */
void sched_submit(sched *s, gen_request *r, uint64_t now_us);
void sched_cancel(sched *s, uint64_t id, uint64_t now_us);
void sched_pause(sched *s, uint64_t id);
void sched_resume(sched *s, uint64_t id, uint64_t now_us);
void sched_cancel_all(sched *s, uint64_t now_us);

/* End what is too late, then fill `st`.  False: nothing can be computed now. */
bool sched_plan(sched *s, uint64_t now_us, step *st);
/* Mark the draws of sequences that left since the step was planned. */
void sched_refresh(const sched *s, step *st);
/* At most logits + sequences of the step events are emitted. */
void sched_commit(sched *s, step *st, uint64_t device_us, uint64_t now_us);
/* All its sequences end; the status is INFERD_ELOST, INFERD_ENOMEM or else INFERD_EDEVICE. */
void sched_fail(sched *s, step *st, const inferd_err *why, uint64_t now_us);
/* The step was launched behind one that failed: what it brought is dropped, and its sequences
 * compute the same rows again.  No other step is unfinished; its time is waste. */
void sched_withdraw(sched *s, step *st, uint64_t now_us);
/* Emit at most `room` last events; returns how many. */
uint32_t sched_flush(sched *s, uint32_t room);
uint32_t sched_n_unsent(const sched *s); // last events that wait for sched_flush

/* The next moment at which sched_plan would end something; UINT64_MAX: none. */
uint64_t sched_next_deadline(const sched *s);
void sched_count(const sched *s, sched_counters *out);
/* The part of the targets of what runs that could be kept; walks all of it.  sched_time.c */
uint32_t sched_attainment_ppm(const sched *s);
/* A decode step of one sequence, as the rate has learned it; 0: nothing was measured.  sched_cost.c
 */
uint32_t sched_decode_us(const sched *s, uint32_t model_idx);
void sched_count_model(const sched *s, uint32_t model_idx, sched_model_numbers *out);

/* Who was charged for what; changed by nobody but the scheduler and account_next_changed. */
struct account *sched_account(sched *s);

/* Tokens whose keys and values all pages left for this model hold, for a tenant with every
 * guarantee there is. */
uint32_t sched_kv_tokens_max(const sched *s, uint32_t model_idx);
/* Those that the model's own ceiling of pages leaves room for beside its weights; INT32_MAX: it has
 * none. */
uint32_t sched_kv_tokens_ceiling(const sched *s, uint32_t model_idx);
/* Would it ever fit?  The sentence says the numbers.  INFERD_EQUOTA: not below the ceiling, which
 * somebody could raise; INFERD_ETOOLONG: not this model, or not in this machine. */
inferd_status sched_admit(uint32_t context, uint32_t kv_tokens_max, uint32_t kv_tokens_ceiling,
                          uint32_t n_prompt, uint32_t max_tokens, inferd_err *err);

/* Every book of the scheduler and what lies below it.  Heavy; for tests and audits. */
inferd_status sched_verify(const sched *s, inferd_err *err);

#endif
