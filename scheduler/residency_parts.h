/* residency_parts.h - what the files of the residency have for each other.
 *
 *     residency.c          what changed, and what is asked from outside
 *     residency_arrows.c   the arrows
 *     residency_come.c     who comes
 *     residency_evict.c    who has to go
 *     residency_turns.c    how long a turn is
 *
 * `root` is a slot with weights of its own, and a *group* all who compute with these.
 *
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

/* What it says counts for its group. */
static inline bool residency_counts(const residency *r, uint32_t i) {
    return r->slots[i].served && !r->slots[i].unpromised;
}

/* -- residency.c -- */
/* What a group is wanted for, when residency_decide looked last. */
sched_demand group_demand(const residency *r, uint32_t root);
uint32_t group_n_steps(const residency *r, uint32_t root); // unfinished ones, now
bool group_is_pinned(const residency *r, uint32_t root, model_pin at_least);
bool group_is_served(const residency *r, uint32_t root);
bool group_is_held(const residency *r, uint32_t root); // every name was taken out by hand
uint64_t group_keep_alive_us(const residency *r, uint32_t root);
/* Who is let in has to know what never goes, and who was let in may not fit any more. */
void residency_tell_pins(residency *r);

/* -- residency_arrows.c -- */
void residency_enter(residency *r, uint32_t i, model_state state); // that, and what follows from it
/* Of the device and the host: all that it has. */
void residency_give_memory(residency *r, resident *m);
/* What requests are told. */
inferd_err residency_as_told(const inferd_err *why);
void residency_fail(residency *r, uint32_t root, const inferd_err *why, uint64_t now_us);
void residency_fail_promise(residency *r, uint32_t idx, const inferd_err *why, uint64_t now_us);
void residency_keep_promise(residency *r, uint32_t idx);
void residency_retry(residency *r, uint32_t root);
/* Of a slot that is COLD itself: it takes part in what its group is. */
void residency_join(residency *r, uint32_t idx);
/* The names that are served go on with what is another's no more.  True: it was so. */
bool residency_pass_on(residency *r, uint32_t root);
/* Its weights are charged to another name of theirs if that may have them and this one may not, or
 * is guaranteed more, since a guarantee includes them.  True: it was so. */
bool residency_charge_best(residency *r, uint32_t root);
void residency_stage(residency *r, uint32_t root, uint64_t now_us);
void residency_fail_stage(residency *r, uint32_t root, const inferd_err *why, uint64_t now_us);
void residency_cancel_stage(residency *r, uint32_t root);
void residency_staged(residency *r, uint32_t root, uint64_t now_us);
void residency_load(residency *r, uint32_t root, uint64_t now_us);
void residency_loaded(residency *r, uint32_t root, uint64_t now_us);
void residency_resume(residency *r, uint32_t root, uint64_t now_us);
/* What runs ends first, or, to make room (`leaving`), waits again. */
void residency_drain(residency *r, uint32_t root, engine_evict_cause cause, bool leaving,
                     uint64_t now_us);
/* To WARM, or COLD where the host has no room for it.  No step of it is on its way.  `comer`: a
 * WARM model that comes instead, whose pages may change places with its, or RESIDENCY_NONE. */
void residency_release(residency *r, uint32_t root, uint32_t comer, uint64_t now_us);
void residency_drop(residency *r, uint32_t root);
/* It has no sequence, nobody shares its weights, and no step is on its way. */
void residency_detach(residency *r, uint32_t idx);

/* -- residency_come.c -- */
/* Pages that others than this name keep whatever happens: guarantees of models, or of tenants where
 * those are more, and weights that are pinned HOT; on the host copies of what is pinned. */
uint64_t residency_kept_by_others(const residency *r, uint32_t idx, bool host);

typedef enum want_kind {
    WANT_NOTHING,
    WANT_EAGER,    // comes while pages are free
    WANT_PREFETCH, // by hand, or pinned WARM
    WANT_HOT,      // by hand, or pinned HOT
    WANT_WORK      // somebody waits
} want_kind;

typedef struct residency_want {
    want_kind kind;
    gen_class class;
    uint64_t since_us;
} residency_want;

residency_want residency_want_of(const residency *r, uint32_t root, uint64_t now_us);
/* WARM on the device's ledger: it was staged there for somebody.  Its pages are paid for, so it is
 * loaded; or, when nobody wants it now, they count for the host again, or are free. */
bool residency_settle_staged(residency *r, uint64_t now_us);
/* The one that is wanted most, if there is room for it; `owed`: of those who need no more for it
 * than they were guaranteed.  True: something changed. */
bool residency_start_staging(residency *r, bool owed, uint64_t now_us);
bool residency_start_loading(residency *r, bool owed, uint64_t now_us);

/* -- residency_evict.c -- */
/* Room for n pages of `root`, for whom work of this class waits (GEN_CLASSES: nobody; then only
 * idle ones go).  False: not now, and nobody goes in vain. */
bool residency_make_room(residency *r, uint32_t root, uint32_t n, gen_class class, bool turn,
                         uint64_t now_us);
/* The same for n pages of host memory, by dropping WARM models: those that are worth less than
 * `root`, and all that nobody waits for when it is `needed`; never `comer`, for whom `root` goes.
 */
bool residency_make_host_room(residency *r, uint32_t root, uint32_t n, uint32_t comer, bool needed,
                              uint64_t now_us);
/* Where host memory is apart, all that `root` needs: copies of HOT models go with them, when
 * nothing else helps. */
bool residency_make_host_room_apart(residency *r, uint32_t root, gen_class class, bool turn,
                                    uint64_t now_us);

/* Until when it stays away because of whoever made it leave; in the past: it may come. */
uint64_t residency_away_until_us(const residency *r, uint32_t root);
/* n pages more for it are no more than it was guaranteed and has not got. */
bool residency_is_owed(const residency *r, uint32_t root, uint32_t n);

/* -- residency_turns.c -- */
/* What it will take to have it back when it leaves now. */
uint64_t residency_back_us(const residency *r, uint32_t root);
/* How long it is served before others of its class may have its place: several times as long as it
 * takes to have it back, with what its running work holds. */
uint64_t residency_turn_us(const residency *r, uint32_t root);
/* Does coming back take so much of all time that turns need quotas? */
void residency_watch_thrash(residency *r, uint64_t now_us);

#endif
