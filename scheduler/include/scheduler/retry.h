/* retry.h - when somebody who was refused because the queue is full had better ask again, so that
 * he is taken then.
 *
 * Places come free one by one, at a rate that is measured.  Whoever is refused is promised the next
 * one that nobody was promised before him:
 *
 *     wait = (promises that are open + places missing) / rate * 2
 *
 * rounded up to whole seconds, as HTTP says it.  A promise that is due keeps its place: newcomers
 * do not get it, for RETRY_GRACE_S after it was due; then it is forgotten.  Besides, one place in
 * RETRY_KEPT_PARTS is for promises only, since the rate may not hold.  So whoever obeys finds a
 * place, and newcomers are told the truth instead of being first by luck.  What would take longer
 * than RETRY_MAX_MS is not promised: there is no answer then, and he had better not come back.
 * While no rate is known it is that bound.
 *
 * The rate is of the newest ends: a mean over windows of RETRY_WINDOW_US, where each new one counts
 * for a quarter.
 *
 * Integers, bounded; the time is handed in.  Who comes for a promise the caller has to know (a mark
 * of the request, or a header that counts tries).  Thread: that of its owner. */
#ifndef INFERD_RETRY_H
#define INFERD_RETRY_H

#include "inferd/base.h"

enum {
    RETRY_MIN_MS = 1000,
    RETRY_MAX_MS = 60000,
    RETRY_WINDOW_US = 2000000,
    RETRY_GRACE_S = 5,
    RETRY_KEPT_PARTS = 2,
    RETRY_SECONDS = 128 // more than the longest promise and its grace
};

/* Of one queue.  Zeroed: empty, and nothing is known. */
typedef struct retry_book {
    uint64_t window_us;          // begin of the window under way; 0: none yet
    uint32_t n_ended;            // in it
    uint64_t per_1000s;          // places that come free in 1000 s; 0: unknown
    uint64_t second;             // now, since the clock began: due[] lies around it
    uint32_t due[RETRY_SECONDS]; // promises, by the second in which they are due
    uint32_t n_open;             // of all of them
} retry_book;

/* One that was in the queue, or computed, has ended. */
void retry_note_end(retry_book *b, uint64_t now_us);
/* May he enter, with n_waiting of n_max places taken?  `promised`: he was told to come now; his
 * promise is used up when he may. */
bool retry_may_enter(retry_book *b, uint64_t now_us, uint32_t n_waiting, uint32_t n_max,
                     bool promised);
/* What to tell whoever may not, in [RETRY_MIN_MS, RETRY_MAX_MS], whole seconds: a promise.  0: none
 * can be made, so no time is told. */
uint32_t retry_promise(retry_book *b, uint64_t now_us, uint32_t n_waiting, uint32_t n_max);

#endif
