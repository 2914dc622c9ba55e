/* timeline.h - counts over the time of a run, in a fixed number of bins.
 *
 * A run has no known end: the bins begin narrow (TIMELINE_BIN_NS), and when an event lies behind
 * the last one, pairs of bins are merged and all are twice as wide.  So a day needs the memory of a
 * minute, and a picture of it has as many points.
 *
 * Time 0 is the start of the clock (after the warm-up).
 * Invariant: n <= TIMELINE_BINS; bins behind n are zero.
 * Thread: the owner's. */
#ifndef BENCH_TIMELINE_H
#define BENCH_TIMELINE_H

#include "inferd/base.h"

enum { TIMELINE_BINS = 256, TIMELINE_BIN_NS = 50 * 1000 * 1000 };

typedef struct timeline_bin {
    uint64_t n_chunks;   // with text, that were read in this time
    uint64_t n_started;  // requests by their scheduled start
    uint64_t n_ended;    // requests, with any outcome
    uint64_t gap_max_ns; // the longest gap that ended in this time
} timeline_bin;

typedef struct timeline {
    uint64_t bin_ns; // 0 while empty
    uint32_t n;      // bins up to the last one with an event
    timeline_bin bins[TIMELINE_BINS];
} timeline;

/* The bin of a time; makes the bins wider where needed. */
timeline_bin *timeline_at(timeline *t, uint64_t at_ns);

/* Merges bins until there are at most `n_max` of them and each is at least `bin_ns` wide.  n_max >
 * 0. */
void timeline_widen(timeline *t, uint32_t n_max, uint64_t bin_ns);

#endif
