/* hist.h - a histogram of durations with a bounded relative error.
 *
 * Values are nanoseconds.  Below 2^HIST_SUB_BITS each value has a bucket of its own; above, each
 * power of two is cut into 2^HIST_SUB_BITS equal buckets:
 *
 *     [128, 256) by 1   [256, 512) by 2   [512, 1024) by 4   ...   up to 2^HIST_TOP_BIT
 *
 * A percentile is answered with the middle of its bucket, so it is off by at most half a bucket:
 * 1 / 2^(HIST_SUB_BITS + 1) = 0.39 %.  Count, sum, least and greatest are exact.  The size is fixed
 * (about 41 KiB), whatever the number of values.  Values past 2^HIST_TOP_BIT ns (39 hours) share
 * the last bucket.
 *
 * Always: n is the sum of all buckets; min <= max when n > 0.
 * Thread: that of its owner. */
#ifndef BENCH_HIST_H
#define BENCH_HIST_H

#include "inferd/base.h"

enum {
    HIST_SUB_BITS = 7,
    HIST_TOP_BIT = 47,
    HIST_BUCKETS = (HIST_TOP_BIT - HIST_SUB_BITS + 1) << HIST_SUB_BITS
};

typedef struct hist {
    uint64_t n, min, max;
    double sum;
    uint64_t buckets[HIST_BUCKETS];
} hist;

void hist_add(hist *h, uint64_t value); // a zeroed hist is an empty one

/* The value that a share `q` in (0, 1] of all values does not exceed (nearest rank); 0 if empty.
 * q = 1 is the exact maximum. */
uint64_t hist_at(const hist *h, double q);
double hist_mean(const hist *h); // 0 if empty

#endif
