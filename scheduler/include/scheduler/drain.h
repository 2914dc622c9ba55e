/* drain.h - when a client that found the queue full should ask again, and that it is let in then.
 *
 * Places (sequences that run or wait) come free when others end.  How long a place is held is
 * measured: the places in use, summed up over the time between two ends, are that on average
 * (Little's law), whatever part of them is in use.  With N places held for D on average, the k-th
 * that is missing comes free in about, and few places keep the average less than many do,
 *
 *     k * D / N * 2 * (N + 2) / N + max(D / 2, G)
 *
 * where the second term waits for ends that come in bursts: G is the longest time without an end
 * that was seen lately.  A promise is put where that holds for
 * all, in front of others when they leave room: so clients that were sent away at once do not come
 * back at once.
 *
 * A promise keeps its place: a newcomer is let in when enough places are free for all promises, or
 * will be, after G and with a third of the usual pace, by the time they are due.  When others end
 * later than they used to, whoever comes for a due promise gets one of n_spare places that are
 * there for that only; those have to come free before anything new is promised.  A client is known
 * by its mark (gate_mark: of its address and body); who comes early is a newcomer, and keeps its
 * promise when it is sent away again.  What is not asked for within DRAIN_GRACE_US is forgotten.
 * When more clients wait than are served in DRAIN_MAX_S, the others are told a longer time and
 * promised nothing: no client waits so long, and whoever was promised a place would not get it.
 *
 * The front runs it, and so does the simulator.  Pure; the time is handed in.  Thread: that of its
 * owner. */
#ifndef INFERD_DRAIN_H
#define INFERD_DRAIN_H

#include "inferd/base.h"

enum {
    DRAIN_BURSTS_MAX = 64,  // of ends, of which the mean is taken
    DRAIN_BURST_US = 20000, // ends so close together are one burst
    DRAIN_PROMISES_MAX = 1024,
    DRAIN_MIN_S = 1,
    DRAIN_MAX_S = 60,   // of a promise
    DRAIN_FAR_S = 3600, // nothing longer is told
    DRAIN_GRACE_US = 1000000
};

typedef struct drain_promise {
    uint64_t mark, due_us;
    uint32_t n; // places
} drain_promise;

/* Zeroed at first. */
typedef struct drain_book {
    uint64_t areas_us[DRAIN_BURSTS_MAX]; // places * time before each of the newest bursts; a ring
    uint32_t n_ends[DRAIN_BURSTS_MAX];   // of each
    uint64_t sum_us, sum_ends;           // of those
    uint64_t n_bursts, burst_us;         // ever; the newest began then
    uint64_t area_us;                    // since the newest end
    uint64_t busy_since_us, noted_us;    // some place has been taken since; area_us reaches to here
    uint64_t ended_us, gap_us;           // newest end; longest time without one, fading
    uint32_t n_used;
    drain_promise promises[DRAIN_PROMISES_MAX]; // [n_promises] by due_us
    uint32_t n_promises;
} drain_book;

/* So many places are in use from now on; `n_ended` of those before have come free just now. */
void drain_note(drain_book *b, uint32_t n_used, uint32_t n_ended, uint64_t now_us);

/* May a client that wants n of n_max places have them?  Those in use are known from drain_note.
 * False: it is told to come back in *after_s, up to DRAIN_MAX_S with a promise.  mark 0: it cannot
 * be known again, and gets no promise.  first_try: it says that it comes for no promise. */
bool drain_admit(drain_book *b, uint64_t mark, bool first_try, uint32_t n, uint32_t n_max,
                 uint32_t n_spare, uint64_t now_us, uint32_t *after_s);
/* It got a place elsewhere: its promise, the one that is due first, is for nobody any more. */
void drain_forget(drain_book *b, uint64_t mark);
/* Sent away: the time it is told, above DRAIN_MAX_S without a promise. */
uint32_t drain_refuse(drain_book *b, uint64_t mark, uint32_t n, uint32_t n_max, uint64_t now_us);
/* How long a place is held, on average; a guess before the first end. */
uint64_t drain_held_us(const drain_book *b, uint64_t now_us);

#endif
