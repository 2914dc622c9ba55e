/* hist.h - a histogram of durations with a bounded relative error.
 *
 * Values are nanoseconds.  Below 2^HIST_SUB_BITS each value has its own bucket; above, each power
 * of two is divided into 2^HIST_SUB_BITS equal buckets:
 *
 *     [128, 256) by 1   [256, 512) by 2   [512, 1024) by 4   ...   up to 2^HIST_TOP_BIT
 *
 * A percentile is the middle of its bucket, so its error is at most half a bucket:
 * 1 / 2^(HIST_SUB_BITS + 1) = 0.39 %.  Count, sum, least and greatest are exact.  The size is fixed
 * (about 41 KiB) and does not depend on the number of values.  Values above 2^HIST_TOP_BIT ns (39
 * hours) are counted in the last bucket.
 *
 * Invariant: n is the sum of all buckets; min <= max when n > 0.
 * Thread: the owner's. */
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
    double sum, squares;
    uint64_t buckets[HIST_BUCKETS];
} hist;

void hist_add(hist *h, uint64_t value); // a zeroed hist is an empty one

/* The quantile `q` in (0, 1] (nearest rank); 0 if empty.  q = 1 is the exact maximum. */
uint64_t hist_at(const hist *h, double q);
/* The value of rank 1 (the least) to n; 0 if empty.  Where a count is known, hist_at(h, count / n)
 * may give the next greater value: 7.0 / 25 * 25 is above 7. */
uint64_t hist_at_rank(const hist *h, uint64_t rank);
double hist_mean(const hist *h);      // 0 if empty
double hist_deviation(const hist *h); // of all values from their mean; 0 if empty

#endif
