/* residency.h - the state of each model of a device between its file and device memory: which model
 * is brought up next, and which is evicted.
 *
 *     NONE --attach--> COLD --stage--> STAGING --staged--> WARM --load--> LOADING --loaded--> HOT
 *       ^               ^  ^------------'cancel   ^ |                                          |
 *       |               |  '----------drop--------|-'                       DRAINING <--drain--'
 *       |               '------------------------ '--release-- DRAINING --resume--> HOT
 *       '--detach-- any                FAILED <--fail-- STAGING, LOADING   FAILED --retry--> COLD
 *
 * Each transition is one function of residency_transitions.c.  WARM weights are complete in host
 * memory and count for the host budget; HOT weights are on the device and count for the device
 * budget. Where both are one memory, the same pages change their budget and nothing is copied; a
 * model that is wanted HOT is staged directly in the device budget.
 *
 * Where host memory is apart, a HOT model may have a copy in it, which is the first thing that is
 * given up when host memory is short; then WARM models, the least valuable first.  A model that is
 * wanted HOT is staged in free host memory, and without any its pieces go on to the device.  A
 * model without a host copy that is evicted stays DRAINING while it is copied to the host, if there
 * is room.  No model leaves the device because host memory is short.
 *
 * Bring-up order: models with waiting requests, the most urgent class first, then the longest wait;
 * then models that an operator asked for or pinned; then, from the start and only into free pages,
 * the other models in slot order (`eager`).  One model is staged at a time, and one loaded.
 *
 * Eviction happens only when pages are short, in this order:
 * - Cached keys and values.
 * - For waiting work: keys and values of running sequences of a lower class, as soon as no more
 * than these is missing.  Until their pages are there, no sequence of a lower class takes any.
 * - Idle models, the lowest value first: weight * time to bring it back / (pages * expected time
 *   until it is wanted again, from its past pauses), times a factor of its class that halves while
 *   it is idle (worth.h).  A model is spared when the others free enough without it.
 * - Models with work of a lower class than the waiting work, the lowest class first.
 * A pinned model stays, and so does one with work of an equal or higher class, except for time
 * slices and guarantees (below).  No model is evicted when all evictions together would not free
 * enough pages, or when its own guarantee would keep all of its pages free.  An evicted model stays
 * away while the work that evicted it is pending, and for one more switch time after that, but no
 * longer than the shortest time slice.
 *
 * A model below its guarantee takes the missing pages back from models above theirs, of any class:
 * running sequences are preempted, and if that is not enough, weights are evicted.
 *
 * When models of one class want more memory than there is, they take *time slices*: a model that
 * has been served for its slice makes room for a waiting one; its work waits and continues later.
 * A time slice is a multiple of the switch before it.  When bringing evicted models back takes more
 * than a part of all time nevertheless, models *thrash*: until that ends, time slices have quotas
 * (feasible_slices_plan), from the cost of a step of each model and from how often its clients want
 * a token.
 *
 * Models with the same content share one set of weights, that of the slot `weights_of`: a weight
 * group.  The weights are handed over to another member when that slot is no longer served, or when
 * its file cannot be read (the file of another name may be readable).  The policy of a weight group
 * is combined from its served members.
 *
 * A slot is FAILED while its guarantee does not fit beside the others.
 *
 * Always: STAGING, WARM, LOADING, HOT and DRAINING own exactly the pages that the state needs, the
 * other states none; a load either ends HOT or gives every page back; one writer, no clock of its
 * own.
 * Thread: engine. */
#ifndef INFERD_RESIDENCY_H
#define INFERD_RESIDENCY_H

#include <stdatomic.h>

#include "device.h"
#include "pool.h"
#include "scheduler/engine.h"
#include "scheduler/policy.h"
#include "scheduler/watch.h"
#include "scheduler/worth.h"

#define RESIDENCY_NONE UINT32_MAX

typedef struct resident {
    model_state state;
    bool served;   // requests may name it; false: it leaves when nothing needs it any more
    bool wanted;   // an operator asked for it: HOT as soon as possible
    bool prefetch; // an operator asked for it: WARM
    bool held;     // an operator took this name out of service (ENGINE_DRAIN), until ENGINE_LOAD
    bool no_guarantee;    // FAILED because its guarantee does not fit beside the others'
    uint32_t n_min_tried; // pool.n_min at the newest attempt
    bool leaving;         // DRAINING to make room, even if requests still wait for it
    bool on_device;       // its pages count for the device budget
    bool host_copy;       // its weights take host memory that is apart from the device
    bool dropped;         // not brought up unasked: it did not fit, or an operator unloaded it
    bool drop_next;       // DRAINING, or evict_next: ends COLD, not WARM
    bool evict_next;   // unloaded by an operator during its bring-up: it leaves once it is unused
    bool staged_now;   // the bring-up under way read the file
    bool staged_ahead; // nothing wanted it when its weights had been read
    bool staged_again; // staged again soon after a cancelled stage: this stage is not cancelled
    model_policy policy;
    device_model about;
    uint32_t weights_of; // a slot: its own, or the one with the same content
    uint32_t n_members;  // slots that use its weights, itself among them
    uint32_t *pages;     // [n_pages] of the pool; owned
    uint32_t n_pages;
    engine_evict_cause cause; // why it is DRAINING
    uint32_t left_for;        // the slot that it makes room for, or RESIDENCY_NONE

    inferd_err why; // FAILED
    uint64_t retry_at_us;
    uint32_t n_failures;                    // in a row
    char stage_note[INFERD_ERR_TEXT_BYTES]; // how its weights were read the last time, for the log
    uint32_t n_tried;                       // names with an unreadable file, in a row

    uint64_t active_us;       // the last time it had work, was loaded or attached
    uint64_t used_us;         // the last time it had work; 0: never
    worth_pauses pauses;      // idle times between such moments
    bool busy, used;          // it had work at the newest look; it ever had work
    uint64_t hot_since_us;    // HOT
    uint64_t wanted_since_us; // since then requests wait for it and it is not HOT; 0: none waits
    uint64_t begun_us;        // STAGING, LOADING
    uint64_t room_wanted_us;  // since then pages are being freed for it; 0: no
    uint64_t kept_until_us;   // running sequences gave pages in vain: until then none does for it
    uint64_t cancelled_us;    // a stage was cancelled because no request waited any more; 0: never
    uint64_t away_until_us;   // at most until then the work that evicted it goes first,
    gen_class away_class;     // unless its own work is more urgent than this:
    uint32_t away_for;        // this slot,
    gen_class away_for_class; // and other waiting work of this class
    uint64_t bring_us;        // what its newest bring-up took; 0: it had none
    uint64_t slice_us;        // quota of its time slices; 0: none
    uint64_t bytes_done, bytes_total;
    engine_switch parts, last; // of the bring-up under way, and of the newest complete one

    /* counters */
    uint64_t n_stages, n_loads, n_failed, n_evictions[ENGINE_EVICT_CAUSES];
    uint64_t n_left;  // DRAINING -> WARM, COLD
    uint64_t n_colds; // any -> COLD
    uint64_t hot_us, load_device_us;
    uint64_t n_saturated; // keys and values of its steps that were too large for their type
    engine_switch parts_sum;
    engine_bring_ups from_file, from_host;
} resident;

typedef struct residency_limits {
    device_limits device;
    uint64_t slice_us; // shortest time slice, when models take time slices
    uint64_t retry_us; // after the first failure; doubles up to retry_max_us
    uint64_t retry_max_us;
    bool eager; // models are brought up before requests wait for them, while there is room
} residency_limits;

typedef struct residency {
    resident *slots;              // [n] owned
    uint32_t n, n_used;           // slots [n_used, n) are NONE
    struct sched_demand *demands; // [n] at the newest residency_decide; owned
    residency_limits limits;
    const device *dev;   // borrowed
    pool *pool;          // borrowed
    struct sched *sched; // borrowed
    bool one_memory;
    uint32_t staging, loading; // slots, or RESIDENCY_NONE
    uint32_t saving;           // the same: DRAINING, and copied to the host
    atomic_bool stage_ready;   // the stage need not wait for its file; set from another thread
    uint64_t page_bytes;       // of the pool
    void (*wake)(void *ctx);   // from another thread: a waiting stage can go on
    void *wake_ctx;
    bool dead; // the device is gone: every attached model fails with `why`
    inferd_err why;
    inferd_err gone; // INFERD_ELOST: bringing a model up found the device gone; core makes it dead
    uint32_t *departures;        // [n] how often each slot became empty; owned
    worth_candidate *candidates; // [n] scratch: eviction candidates in order; owned
    uint32_t *candidate_pages;   // [n] of these; owned
    /* For experiments: replaces worth_of as the value of an idle model.  With it, worth_first
     * spares no model unless `spares`.  NULL: worth_of. */
    uint64_t (*worth)(void *ctx, const struct residency *r, uint32_t idx, uint64_t now_us);
    void *worth_ctx;
    bool spares;
    uint64_t looked_us;       // newest residency_decide
    uint64_t n_changes;       // grows with every transition
    uint64_t charged_changes; // n_changes when charges of shared weights were last checked
    uint64_t n_slices;        // evictions for a model of the same class
    void (*note)(void *ctx,
                 const engine_note *note); // a model came, left or failed; NULL: not told
    void *note_ctx;

    /* Time spent on bringing evicted models back: this half of the window, and the one before. */
    bool thrashing;
    uint64_t reload_us, reload_before_us, window_began_us;
    uint64_t slices_planned_us;     // when quotas were made last
    uint64_t slices_attainment_ppm; // expected part of the tokens on time with these quotas
    struct feasible_slice *slices;  // [n] scratch; owned
    uint32_t *slice_slots, *quotas; // [n] of those; owned
} residency;

enum { RESIDENCY_WINDOW_US = ENGINE_THRASH_WINDOW_US };

inferd_status residency_init(residency *r, uint32_t n_slots, const residency_limits *limits,
                             const device *dev, pool *p, struct sched *s, inferd_err *err);
void residency_deinit(residency *r); // accepts a zeroed one; all slots are NONE

/* The slot is NONE.  After a failure it is FAILED: for good, unless its guarantee does not fit. */
void residency_attach(residency *r, uint32_t idx, struct model *of, uint32_t same_as,
                      const model_policy *policy, uint64_t now_us);
/* New requests no longer name it.  NONE when its work has ended and no slot shares its weights. */
void residency_remove(residency *r, uint32_t idx);
/* Fails, and changes nothing, when the guarantees of all would exceed the device. */
inferd_status residency_set_policy(residency *r, uint32_t idx, const model_policy *policy,
                                   uint64_t now_us, inferd_err *err);

void residency_do(residency *r, uint32_t idx, engine_command c, uint64_t now_us);
/* Another name computes with the same weights, and is served and not held. */
bool residency_serves_others(const residency *r, uint32_t idx);

/* Decide, and make the transitions that need no time.  False: nothing changed. */
bool residency_decide(residency *r, uint64_t now_us);
/* Only one part of residency_decide: slots that are no longer served and have no work become empty.
 * On a dead device this is all that can happen. */
bool residency_let_go(residency *r);
/* There is staging or loading work that can advance now. */
bool residency_has_work(const residency *r);
/* The class of the work that waits for it; GEN_CLASSES: none waits.  / The most urgent class of
 * running work.  At the newest residency_decide. */
gen_class residency_waiting_class(const residency *r);
gen_class residency_running_class(const residency *r);
/* Work on it for about budget_us; returns the device time it took. */
uint64_t residency_work(residency *r, uint64_t budget_us, uint64_t (*clock)(void *ctx), void *ctx);
/* For sched_reclaim: evicts weights for keys and values of this model.  True: a model left. */
bool residency_reclaim(residency *r, uint32_t idx, gen_class waiting, gen_class aged,
                       uint64_t since_us, uint64_t now_us);
/* The next moment at which residency_decide may change something by itself; UINT64_MAX: none. */
uint64_t residency_next_us(const residency *r);

/* The device is lost: every model fails with this error, now and later, for good. */
void residency_fail_all(residency *r, const inferd_err *why, uint64_t now_us);
/* At the end: the device lets go of every model, whatever its state.  The pool is not used
 * afterwards.  No step is on its way. */
void residency_close(residency *r);

model_state residency_state(const residency *r, uint32_t idx);
/* Time spent on bringing evicted models back in the newest RESIDENCY_WINDOW_US, approximately. */
uint64_t residency_reload_us(const residency *r);
/* Time to bring this model back, approximately; never 0. */
uint64_t resident_reload_us(const resident *m);

inferd_status residency_verify(const residency *r, inferd_err *err);

#endif
