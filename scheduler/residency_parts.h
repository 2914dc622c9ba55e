/* residency_parts.h - what the files of the residency have for each other.
 *
 *     residency.c          the arrows; who comes; what changed
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
/* HOT -> DRAINING: what runs ends first, or, to make room, waits again. */
void residency_drain(residency *r, uint32_t root, engine_evict_cause cause, bool leaving,
                     uint64_t now_us);
/* DRAINING -> WARM, or COLD where the host has no room for it.  No step of it is on its way.
 * `comer`: a WARM model that comes instead, whose pages may change places with its, or
 * RESIDENCY_NONE. */
void residency_release(residency *r, uint32_t root, uint32_t comer, uint64_t now_us);
/* WARM -> COLD. */
void residency_drop(residency *r, uint32_t root);

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
