/* residency_parts.h - what the files of the residency share.
 *
 *     residency.c              what changed, and commands from outside
 *     residency_transitions.c  the transitions
 *     residency_bring_up.c     bring-up: order and pages
 *     residency_evict.c        eviction
 *     residency_slices.c       length of a time slice
 *
 * `root` is a slot with weights of its own; a *weight group* is all slots that compute with them.
 * Thread: engine. */
#ifndef INFERD_RESIDENCY_PARTS_H
#define INFERD_RESIDENCY_PARTS_H

#include "residency.h"
#include "scheduler.h"

#define EACH_MEMBER(r, root, i)                                                                    \
    for (uint32_t i = (r)->slots[root].n_members > 1 ? 0 : (root),                                 \
                  i##_end = (r)->slots[root].n_members > 1 ? (r)->n_used : (root) + 1;             \
         i < i##_end; i++)                                                                         \
        if ((r)->slots[i].state != MODEL_NONE && (r)->slots[i].weights_of == (root))

static inline bool residency_is_root(const residency *r, uint32_t i) {
    return r->slots[i].state != MODEL_NONE && r->slots[i].weights_of == i;
}

/* The policy of this slot counts for its weight group. */
static inline bool residency_counts(const residency *r, uint32_t i) {
    return r->slots[i].served && !r->slots[i].no_guarantee;
}

/* -- residency.c -- */
/* Demand of a weight group at the newest residency_decide. */
sched_demand wgroup_demand(const residency *r, uint32_t root);
uint32_t wgroup_n_steps(const residency *r, uint32_t root); // unfinished ones, now
bool wgroup_is_pinned(const residency *r, uint32_t root, model_pin at_least);
bool wgroup_is_served(const residency *r, uint32_t root);
bool wgroup_is_held(const residency *r, uint32_t root); // every name is out of service
uint64_t wgroup_keep_alive_us(const residency *r, uint32_t root);
/* Pass pinned pages to the scheduler; requests admitted before may not fit any more. */
void residency_tell_pins(residency *r);

/* -- residency_transitions.c -- */
void residency_enter(residency *r, uint32_t i, model_state state); // that, and what follows from it
void residency_give_memory(residency *r, resident *m);
/* The error that its requests end with. */
inferd_err residency_as_told(const inferd_err *why);
void residency_fail(residency *r, uint32_t root, const inferd_err *why, uint64_t now_us);
void residency_fail_guarantee(residency *r, uint32_t idx, const inferd_err *why, uint64_t now_us);
void residency_keep_guarantee(residency *r, uint32_t idx);
void residency_retry(residency *r, uint32_t root);
/* The slot is COLD itself: it takes part in the state of its weight group. */
void residency_join(residency *r, uint32_t idx);
/* Hands the weights of a root that is not served over to a served member.  True: it did. */
bool residency_pass_on(residency *r, uint32_t root);
/* Charge the weights to another member, if that one may have them and this one may not, or if it
 * has the larger guarantee, since a guarantee includes weights.  True: the charge moved. */
bool residency_charge_best(residency *r, uint32_t root);
void residency_stage(residency *r, uint32_t root, uint64_t now_us);
void residency_fail_stage(residency *r, uint32_t root, const inferd_err *why, uint64_t now_us);
void residency_cancel_stage(residency *r, uint32_t root);
void residency_staged(residency *r, uint32_t root, uint64_t now_us);
void residency_load(residency *r, uint32_t root, uint64_t now_us);
void residency_loaded(residency *r, uint32_t root, uint64_t now_us);
void residency_resume(residency *r, uint32_t root, uint64_t now_us);
/* Running work ends first, or, to make room (`leaving`), is preempted. */
void residency_drain(residency *r, uint32_t root, engine_evict_cause cause, bool leaving,
                     uint64_t now_us);
/* To WARM, or COLD where the host has no room for it.  No step of it is on its way.  `incoming`:
 * the incoming WARM model, which may exchange pages with it, or RESIDENCY_NONE.  False: it stays
 * DRAINING until it is copied to the host. */
bool residency_release(residency *r, uint32_t root, uint32_t incoming, uint64_t now_us);
void residency_saved(residency *r, uint32_t root, bool complete);
void residency_drop(residency *r, uint32_t root);
void residency_drop_copy(residency *r, uint32_t root); // HOT stays HOT
/* It has no sequence, no other slot shares its weights, and no step is on its way. */
void residency_detach(residency *r, uint32_t idx);

/* -- residency_bring_up.c -- */
/* Pages that stay with other models in any case: the guarantees of models, or of tenants where
 * those are more, and weights that are pinned HOT. */
uint64_t residency_kept_by_others(const residency *r, uint32_t idx);

typedef enum want_kind {
    WANT_NOTHING,
    WANT_EAGER,    // brought up while pages are free
    WANT_PREFETCH, // asked for by an operator, or pinned WARM
    WANT_HOT,      // asked for by an operator, or pinned HOT
    WANT_WORK      // requests wait
} want_kind;

typedef struct residency_want {
    want_kind kind;
    gen_class prio;
    uint64_t since_us;
} residency_want;

residency_want residency_want_of(const residency *r, uint32_t root, uint64_t now_us);
/* Settles models that are WARM in the device budget, where they were staged for waiting work: they
 * are loaded; if none wants them now, their pages move to the host budget or become free. */
bool residency_settle_staged(residency *r, uint64_t now_us);
/* Start the most wanted model, if there is room for it; `owed`: only models that need
 * no more than their missing guarantee.  True: something changed. */
bool residency_start_staging(residency *r, bool owed, uint64_t now_us);
bool residency_start_loading(residency *r, bool owed, uint64_t now_us);

/* -- residency_evict.c -- */
/* Make room for n pages of `root` and its waiting work of this class (GEN_CLASSES: none waits, and
 * only idle models are evicted).  False: not now.  No model is evicted in vain. */
bool residency_make_room(residency *r, uint32_t root, uint32_t n, gen_class prio, bool may_slice,
                         uint64_t now_us);
/* The same for n pages of host memory: copies of HOT models go first, then WARM models that are
 * worth less than `root`, or, if `needed`, that have no waiting work; never `incoming`, for which
 * `root` leaves. */
bool residency_make_host_room(residency *r, uint32_t root, uint32_t n, uint32_t incoming,
                              bool needed, uint64_t now_us);

/* Until then it stays away because of the work that evicted it; in the past: it may come. */
uint64_t residency_away_until_us(const residency *r, uint32_t root);
/* It is below its guarantee, and n more pages do not exceed the guarantee. */
bool residency_is_owed(const residency *r, uint32_t root, uint32_t n);

/* -- residency_slices.c -- */
/* Time to bring it back if it leaves now. */
uint64_t residency_back_us(const residency *r, uint32_t root);
/* Time slice: how long it is served before others of its class may evict it. */
uint64_t residency_slice_us(const residency *r, uint32_t root);
/* Checks whether bringing models back takes so much of all time that time slices need quotas. */
void residency_watch_thrash(residency *r, uint64_t now_us);

#endif
