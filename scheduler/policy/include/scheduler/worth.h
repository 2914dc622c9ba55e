/* worth.h - the order of eviction: which model is evicted first.
 *
 * Idle models go before models with work, the lowest value first; models with work go by class, the
 * lowest first (worth_goes_before).  The engine, the answer of `ctl plan` and the simulator ask
 * these functions.
 *
 * A request will want the model again and wait until it is back.  A page of it that stays saves
 *
 *     weight * time to bring it back / (pages * time until it is wanted again)
 *
 * The last of these is unknown.  Two things are known: how long the model has been idle, and how
 * long its past pauses were.  If pauses were exponential, their mean would be the best estimate;
 * real ones are a few long among many short, and one that has lasted for t is likely to last for t
 * more.  The estimate is the sum of both: idle time + geometric mean of the pauses, which a few
 * long ones among many short ones change little (the arithmetic mean of bursts is little more than
 * chance).  The pause under way counts in the mean as WORTH_PRIOR pauses: a model without a history
 * is judged by its idle time alone, as by LRU, and the longer its history, the more that counts.
 *
 * The mean is of about the newest WORTH_PAUSES_MAX pauses: then all sums are halved.  A pause
 * shorter than bringing the model back is not counted: its pages could not have served another
 * model meanwhile.
 *
 * Eviction takes the lowest value first, until there is room.  Then it spares every model that the
 * others make unnecessary, the highest value first (worth_first): one large model that has to go
 * anyway may make enough room without small ones of lower value per page.
 *
 * The class of an idle model is a factor of its value: WORTH_CLASS for each class above the lowest
 * one of the device's models, halved every WORTH_HALVED_MS of idle time, or every mean pause if
 * that is longer, down to 1.  So an urgent model that is used stays, and one that is not used any
 * more is worth as much as any other.
 *
 * Integers; the caller keeps all state.  Thread: any. */
#ifndef INFERD_WORTH_H
#define INFERD_WORTH_H

#include "inferd/base.h"
#include "scheduler/gen.h"

enum {
    WORTH_PAUSES_MAX = 64,
    WORTH_PRIOR = 1,
    WORTH_CLASS = 8,
    WORTH_HALVED_MS = 5000,
    WORTH_LOG_ONE = 65536,
    WORTH_PAUSE_MAX_MS = 1000 * 1000 * 1000 // 11 days; longer ones count as that
};

/* Idle times of one model that ended with new work. */
typedef struct worth_pauses {
    uint64_t sum_ms;
    uint64_t sum_log; // of their binary logarithms, in 1/WORTH_LOG_ONE
    uint32_t n;
} worth_pauses;

/* reload_us: time to bring the model back. */
void worth_note_pause(worth_pauses *p, uint64_t pause_us, uint64_t reload_us);

typedef struct worth_idle {
    uint64_t weight;    // weight of its waiting requests; 0 counts a little
    uint64_t reload_us; // > 0
    uint64_t idle_us;   // so far
    uint32_t n_pages;
    uint32_t n_above; // classes between its own and the lowest one of the device's models
    worth_pauses pauses;
} worth_idle;

uint64_t worth_next_ms(const worth_idle *m); // expected time until it is wanted again
uint64_t worth_of(const worth_idle *m);      // larger is worth more; the unit has no meaning

/* Its class still counts for more than that of models n_above classes lower. */
bool worth_is_urgent(const worth_idle *m);

/* One that may be evicted. */
typedef struct worth_candidate {
    uint32_t idx;
    gen_class prio; // of a model with work; GEN_CLASSES: it is idle
    uint64_t value; // worth_of
} worth_candidate;

/* Is a evicted before b? */
bool worth_goes_before(const worth_candidate *a, const worth_candidate *b);

/* pages[n > 0] of the candidates, in eviction order; `missing` pages are wanted.  Returns the first
 * candidate that has to go after sparing those not needed; 0 when all together are not enough.  A
 * call with the pages still missing after its eviction gives the next one. */
uint32_t worth_first(const uint32_t *pages, uint32_t n, uint64_t missing);

#endif
