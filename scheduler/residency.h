/* residency.h - where each model of a device is between its file and its pages: who is brought up
 * next, and who has to make room.
 *
 *     NONE --attach--> COLD --stage--> STAGING --staged--> WARM --load--> LOADING --loaded--> HOT
 *       ^               ^  ^------------'cancel   ^ |                                          |
 *       |               |  '----------drop--------|-'                       DRAINING <--drain--'
 *       |               '------------------------ '--release-- DRAINING --resume--> HOT
 *       '--detach-- any                FAILED <--fail-- STAGING, LOADING   FAILED --retry--> COLD
 *
 * Each arrow is one function of residency_arrows.c.  WARM weights are complete in host memory and
 * count for the host's ledger; HOT ones are on the device and count for the device's.  Where both
 * are one memory the same pages change their ledger and nothing is copied; a model that is wanted
 * while the host's ledger is full is staged on the device's at once.
 *
 * Who comes: models that somebody waits for, the most urgent class first, then who waits longest;
 * then those asked for by hand or pinned; then, at the start and while there is room for nothing
 * but free pages, the others in their order (`eager`).  One is staged at a time, and one loaded.
 *
 * Who goes, only when pages are short: first cached keys and values; then idle models, the lowest
 * class first and in it the least worth keeping: weight * time to bring it back / (pages * time
 * until it is wanted again, as its pauses tell: worth.h), but for those that would go in vain
 * because the others make room enough; then models whose running work is of a lower class than what
 * waits.  Never a model with running work of an equal or higher class, a pinned one, or one that
 * came less than min_residency_us ago for work of an equal or higher class.  Nobody goes when it
 * would not be enough, or whose pages its guarantee would keep free.  Who had to go stays away
 * while the work is there that it left for, and as long again as switching takes, but no longer
 * than a turn.  What a model was guaranteed and has not got it takes back from whoever has more, of
 * whatever class: running sequences wait again, and if that is not enough weights go.  When models
 * of one class want more memory than there is, they take *turns*: who has been served for its turn
 * makes room for who waits, its work waits and goes on later.  A turn is some times as long as the
 * switch before it.  When bringing back who had to make room takes more than a part of all time
 * nevertheless, models *thrash*, and turns have quotas (feasible_turns_plan) by what a step of each
 * costs and how often its readers want a token, until that is over.
 *
 * Models with the same content share one set of weights: that of `weights_of`.  It is handed over
 * to another of them when that slot is served no more, and when its file cannot be read: that of
 * another name may.  What such a group may have and when it goes is what those say who are served.
 *
 * A guarantee that does not fit beside the others' makes a slot FAILED until it does.
 *
 * Always: STAGING, WARM, LOADING, HOT and DRAINING own exactly the pages the state needs, the
 * others none; a load either ends HOT or gives every page back; one writer, no clock of its own.
 * Thread: engine. */
#ifndef INFERD_RESIDENCY_H
#define INFERD_RESIDENCY_H

#include <stdatomic.h>

#include "device.h"
#include "pool.h"
#include "scheduler/engine.h"
#include "scheduler/policy.h"
#include "scheduler/worth.h"

typedef struct resident {
    model_state state;
    bool served;          // requests may name it; false: it leaves when nothing needs it any more
    bool wanted;          // asked for by hand: HOT as soon as it can be
    bool prefetch;        // asked for by hand: WARM
    bool held;            // this name was taken out by hand (ENGINE_DRAIN), until ENGINE_LOAD
    bool unpromised;      // FAILED because its guarantee does not fit beside the others'
    uint32_t n_min_tried; // pool.n_min when it was tried last
    bool leaving;         // DRAINING to make room, whatever still waits for it
    bool on_device;       // its pages count for the device's ledger
    bool host_copy;       // host memory apart from the device holds it
    bool dropped;         // does not come by itself: it did not fit, or was sent away by hand
    bool drop_next;       // DRAINING, or leave_next: to COLD
    bool leave_next;      // it comes, and was sent away by hand meanwhile: goes when nobody uses it
    bool staged_again;    // soon after a stage that nobody waited for any more: this one ends
    model_policy policy;
    device_model about;
    uint32_t weights_of; // a slot: itself, or the one with the same content
    uint32_t n_members;  // slots that use its weights, itself among them
    uint32_t *pages;     // [n_pages] of the pool; owned
    uint32_t n_pages;
    engine_evict_cause cause; // why it is DRAINING

    inferd_err why; // FAILED
    uint64_t retry_at_us;
    uint32_t n_failures;                    // in a row
    char stage_note[INFERD_ERR_TEXT_BYTES]; // how its weights came in the last time, for the log
    uint32_t n_tried;                       // names whose file could not be read, in a row

    uint64_t active_us;       // last moment somebody wanted it
    worth_pauses pauses;      // between such moments
    bool busy, used;          // somebody wanted it at the last look, and ever
    uint64_t hot_since_us;    // HOT
    uint64_t wanted_since_us; // somebody waits for it and it is not HOT; 0: no
    uint64_t begun_us;        // STAGING, LOADING
    uint64_t room_wanted_us;  // since then pages are made free for it; 0: no
    uint64_t cancelled_us;    // a stage ended because nobody waited for it any more; 0: none did
    uint64_t away_until_us;   // who made it leave is served first, no longer than until then,
    gen_class away_class;     // unless its own work is more urgent than this:
    uint32_t away_for;        // this slot,
    gen_class away_for_class; // and whoever else waits for work of this class
    uint64_t bring_us;        // what bringing it up took the last time; 0: never did
    uint64_t turn_us;         // quota of its turns; 0: none
    uint64_t bytes_done, bytes_total;
    engine_switch parts, last; // of the time under way, and of the newest that is over

    /* counters */
    uint64_t n_stages, n_loads, n_failed, n_evictions[ENGINE_EVICT_CAUSES];
    uint64_t n_left;  // DRAINING -> WARM, COLD
    uint64_t n_colds; // any -> COLD
    uint64_t hot_us, load_device_us;
    uint64_t n_saturated; // keys and values of its steps that were too large for their type
    engine_switch parts_sum;
} resident;

/* One who may go. */
typedef struct residency_leaver {
    uint32_t idx;
    gen_class class;
    uint64_t value;
} residency_leaver;

typedef struct residency_limits {
    device_limits device;
    uint64_t min_residency_us;
    uint64_t turn_us;  // shortest turn, when models take turns
    uint64_t retry_us; // after the first failure; doubles up to retry_max_us
    uint64_t retry_max_us;
    bool eager; // models come before somebody waits for them, while there is room
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
    atomic_bool stage_ready;   // the stage need not wait for its file; set from another thread
    uint64_t page_bytes;       // of the pool
    void (*wake)(void *ctx);   // from another thread: a waiting stage can go on
    void *wake_ctx;
    bool dead; // the device is gone: whoever is attached fails with `why`
    inferd_err why;
    inferd_err gone; // INFERD_ELOST: bringing a model up found the device gone; core makes it dead
    uint32_t *departures;      // [n] how often each slot became empty; owned
    residency_leaver *leavers; // [n] scratch: who may go, in order; owned
    uint32_t *leaver_pages;    // [n] of these; owned
    /* What an idle model is worth instead of worth_of, and then nobody is spared unless `spares`;
     * for experiments.  NULL: worth_of. */
    uint64_t (*worth)(void *ctx, const struct residency *r, uint32_t idx, uint64_t now_us);
    void *worth_ctx;
    bool spares;
    uint64_t looked_us;       // newest residency_decide
    uint64_t n_changes;       // grows with every arrow
    uint64_t charged_changes; // when it was last looked at whom weights are charged to
    uint64_t n_turns;         // a model went for another of its class

    /* Bringing back who had to make room, in this part of the window and the one before. */
    bool thrashing;
    uint64_t reload_us, reload_before_us, window_began_us;
    uint64_t turns_planned_us;     // when quotas were made last
    uint64_t turns_attainment_ppm; // part of the tokens that they have on time
    struct feasible_turn *turns;   // [n] scratch; owned
    uint32_t *turn_slots, *quotas; // [n] of those; owned
} residency;

#define RESIDENCY_NONE UINT32_MAX
enum { RESIDENCY_WINDOW_US = ENGINE_THRASH_WINDOW_US };

inferd_status residency_init(residency *r, uint32_t n_slots, const residency_limits *limits,
                             const device *dev, pool *p, struct sched *s, inferd_err *err);
void residency_deinit(residency *r); // accepts a zeroed one; all slots are NONE

/* The slot is NONE.  After a failure it is FAILED with the sentence: for good, unless it is that
 * guarantees do not fit, which may change. */
void residency_attach(residency *r, uint32_t idx, struct model *of, uint32_t same_as,
                      const model_policy *policy, uint64_t now_us);
/* New requests no longer name it: it goes when its work has ended and nobody shares its weights,
 * and is NONE then. */
void residency_remove(residency *r, uint32_t idx);
/* Fails, and changes nothing, when the guarantees of all would exceed the device. */
inferd_status residency_set_policy(residency *r, uint32_t idx, const model_policy *policy,
                                   uint64_t now_us, inferd_err *err);

void residency_do(residency *r, uint32_t idx, engine_command c, uint64_t now_us);
/* Another name computes with the same weights, and is served and not held. */
bool residency_serves_others(const residency *r, uint32_t idx);

/* Decide, and take the arrows that need no time.  False: nothing changed. */
bool residency_decide(residency *r, uint64_t now_us);
/* Of that only: slots that are served no more and have nothing to end become empty.  All that can
 * happen on a dead device. */
bool residency_let_go(residency *r);
/* There is a piece of staging or loading to work on now. */
bool residency_has_work(const residency *r);
/* Work on it for about budget_us; the time it took the device. */
uint64_t residency_work(residency *r, uint64_t budget_us, uint64_t (*clock)(void *ctx), void *ctx);
/* Weights go because keys and values of this model need pages: sched_reclaim. */
bool residency_reclaim(residency *r, uint32_t idx, gen_class waiting, gen_class lifted,
                       uint64_t since_us, uint64_t now_us);
/* The next moment at which residency_decide may change something by itself; UINT64_MAX: none. */
uint64_t residency_next_us(const residency *r);

/* Everybody fails with the same sentence, now and later, for good. */
void residency_fail_all(residency *r, const inferd_err *why, uint64_t now_us);
/* The device lets go of every model, whatever it does; for the end, the pool is not used again.  No
 * step is on its way. */
void residency_close(residency *r);

/* The weights that this slot computes with. */
static inline resident *resident_weights(residency *r, uint32_t idx) {
    return &r->slots[r->slots[idx].weights_of];
}
model_state residency_state(const residency *r, uint32_t idx);
/* What bringing back who had to make room took in the newest window of RESIDENCY_WINDOW_US, about.
 */
uint64_t residency_reload_us(const residency *r);
/* What it would take to have this one back, about; never 0. */
uint64_t resident_reload_us(const resident *m);

inferd_status residency_verify(const residency *r, inferd_err *err);

#endif
