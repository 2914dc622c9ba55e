/* worth.h - what it is worth to keep the weights of an idle model, and who goes when pages are
 * wanted.
 *
 * Somebody will want the model again and wait until it is back.  A page of it that stays saves
 *
 *     weight * time to bring it back / (pages * time until it is wanted again)
 *
 * and nobody knows the last of these.  Two things are known: how long it has been idle, and how
 * long its pauses were so far.  Were pauses exponential, their mean would be all there is to know;
 * real ones are a few long among many short, and one that has lasted for t is about to last for as
 * long again.  The estimate is the sum of both: idle time + mean pause.  The pause under way counts
 * in the mean as WORTH_PRIOR ones: a model without a history is judged by its idle time alone, as
 * the least recently used would be, and the more is known of a model the more that counts.
 *
 * The mean is of about the newest WORTH_PAUSES_MAX pauses: then both sums are halved.  A pause
 * shorter than bringing the model back is none: nobody could have used its pages meanwhile.
 *
 * Who goes: the least worth first, until there is room; then whoever the others do not need is
 * spared, the most worth first (worth_first).  One large model that has to go anyway may make room
 * enough without the small ones that were worth less per page.
 *
 * Integers; nothing is kept but what the caller keeps.  Thread: any. */
#ifndef INFERD_WORTH_H
#define INFERD_WORTH_H

#include "inferd/base.h"

enum {
    WORTH_PAUSES_MAX = 64,
    WORTH_PRIOR = 1,
    WORTH_PAUSE_MAX_MS = 1000 * 1000 * 1000 // 11 days; longer ones count as that
};

/* Idle times of one model that ended because somebody wanted it. */
typedef struct worth_pauses {
    uint64_t sum_ms;
    uint32_t n;
} worth_pauses;

/* reload_us: what bringing it back takes. */
void worth_note_pause(worth_pauses *p, uint64_t pause_us, uint64_t reload_us);

typedef struct worth_idle {
    uint64_t weight;    // how much its waiting counts; 0 counts a little
    uint64_t reload_us; // > 0
    uint64_t idle_us;   // so far
    uint32_t n_pages;
    worth_pauses pauses;
} worth_idle;

/* Until it is wanted again, about. */
uint64_t worth_next_ms(const worth_idle *m);
/* Larger is worth more; the unit means nothing. */
uint64_t worth_of(const worth_idle *m);

/* pages[n] of those who may go, in the order in which they would; `missing` are wanted.  The first
 * who has to go when whoever is not needed is spared; 0 when all together are not enough.  n > 0.
 * Asked again after that one went, with what is missing then, the answer is the next. */
uint32_t worth_first(const uint32_t *pages, uint32_t n, uint64_t missing);

#endif
