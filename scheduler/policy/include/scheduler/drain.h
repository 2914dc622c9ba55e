/* drain.h - reservations: when a client that found the queue full should ask again, so that it is
 * admitted then.
 *
 * Queue slots (of sequences that run or wait) come free when sequences end.  The holding time is
 * measured: the slots in use, summed up over the time between two ends, are its average (Little's
 * law), whatever part of them is in use.  With N slots held for D on average, the k-th missing slot
 * is expected free after
 *
 *     k * D / N * 2 * (N + 2) / N + max(D / 2, G)
 *
 * (with few slots the average is less reliable, hence N + 2).  The second term is for ends that
 * come in bursts: G is the longest recent time without an end.  A reservation is put where this
 * holds for all of them, before others when they leave room, so clients that were refused at the
 * same time do not come back at the same time.
 *
 * A reservation keeps its slots: a new client is admitted when enough slots are free for all
 * reservations, or will be, after G and at a third of the usual pace, by the time they are due.
 * When sequences end later than they used to, a client with a due reservation gets one of n_spare
 * slots that only reservations may use; those have to come free before anything new is reserved.  A
 * client is recognized by its mark (gate_mark: of its address and body).  A client that comes early
 * counts as new, and keeps its reservation when it is refused.  A reservation that is not used
 * within DRAIN_GRACE_US after its time is dropped.  When more clients wait than are served in
 * DRAIN_MAX_S, the rest get a longer time and no reservation: clients do not wait that long, so
 * their slots would stay empty.
 *
 * The front runs it, and so does the simulator.  Pure; the time is passed in.  Thread: its
 * owner. */
#ifndef INFERD_DRAIN_H
#define INFERD_DRAIN_H

#include "inferd/base.h"

enum {
    DRAIN_BURSTS_MAX = 64,  // in the ring that the mean is taken over
    DRAIN_BURST_US = 20000, // ends within this time are one burst
    DRAIN_PROMISES_MAX = 1024,
    DRAIN_MIN_S = 1,
    DRAIN_MAX_S = 60,   // of a reservation
    DRAIN_FAR_S = 3600, // the longest Retry-After
    DRAIN_GRACE_US = 1000000
};

typedef struct drain_promise {
    uint64_t mark, due_us;
    uint32_t n; // queue slots
} drain_promise;

/* Zeroed at first.  "Place" in the names is a queue slot. */
typedef struct drain_book {
    uint64_t areas_us[DRAIN_BURSTS_MAX]; // slots * time before each of the newest bursts; a ring
    uint32_t n_ends[DRAIN_BURSTS_MAX];   // of each
    uint64_t sum_us, sum_ends;           // of the ring
    uint64_t n_bursts, burst_us;         // count since the start; begin of the newest
    uint64_t area_us;                    // since the newest end
    uint64_t busy_since_us,
        noted_us;              // since then some slot has been in use; area_us reaches to here
    uint64_t ended_us, gap_us; // newest end; longest time without one, fading
    uint32_t n_used;
    drain_promise promises[DRAIN_PROMISES_MAX]; // [n_promises] by due_us
    uint32_t n_promises;
} drain_book;

/* n_used slots are in use from now on; `n_ended` have come free just now. */
void drain_note(drain_book *b, uint32_t n_used, uint32_t n_ended, uint64_t now_us);

/* May a client that wants n of n_max slots have them?  Those in use are known from drain_note.
 * False: it should come back in *after_s; up to DRAIN_MAX_S, that is a reservation.  mark 0: it
 * cannot be recognized, and gets no reservation.  first_try: it says that it comes for no
 * reservation. */
bool drain_admit(drain_book *b, uint64_t mark, bool first_try, uint32_t n, uint32_t n_max,
                 uint32_t n_spare, uint64_t now_us, uint32_t *after_s);
/* The client got its slots elsewhere: drops its reservation that is due first. */
void drain_forget(drain_book *b, uint64_t mark);
/* The client is refused: returns its Retry-After; above DRAIN_MAX_S it has no reservation. */
uint32_t drain_refuse(drain_book *b, uint64_t mark, uint32_t n, uint32_t n_max, uint64_t now_us);
/* Average holding time of a slot; a guess before the first end. */
uint64_t drain_held_us(const drain_book *b, uint64_t now_us);

#endif
