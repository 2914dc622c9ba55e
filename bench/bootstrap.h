/* bootstrap.h - how far a ratio of two measurements may be off by chance.
 *
 * Percentile bootstrap: values are drawn again, with replacement, as often as there are values, and
 * a statistic of the drawn ones is taken; the interval holds the middle 95 % of BOOT_ROUNDS such
 * statistics.  Neighbours in time depend on each other, because requests queue behind the same long
 * prompt, so values may be drawn in blocks of neighbours (circular block bootstrap); drawn one by
 * one they give intervals that are too narrow.  With several files of one side, values of each file
 * are drawn; differences between runs are no part of the interval, see interval_of_runs
 * (interval.h).
 *
 * Quantiles are nearest-rank.  The same seed gives the same interval on every machine.
 *
 * Thread: the owner's. */
#ifndef BENCH_BOOTSTRAP_H
#define BENCH_BOOTSTRAP_H

#include "inferd/base.h"
#include "rng.h"

enum { BOOT_ROUNDS = 2000, BOOT_FILES_MAX = 32 };

typedef enum boot_stat { BOOT_MEAN, BOOT_P50, BOOT_P90, BOOT_P99, BOOT_STATS } boot_stat;

/* The values of one side. */
typedef struct boot_pool {
    double *sorted;   // [n]; owned
    uint32_t *ranks;  // [n] where the values of file 0, then of file 1, ... are; owned
    uint32_t *counts; // [n] how often each was drawn; owned
    size_t from[BOOT_FILES_MAX + 1]; // of file f: ranks[from[f]] up to ranks[from[f + 1]]
    size_t n, n_files;
    size_t block; // neighbours drawn together; 1 after init, 0: the cube root of their number
} boot_pool;

/* `values` of file f in the order of time: [from[f], from[f + 1]).  Files without values are left
 * out.  No values or no memory: false. */
bool boot_pool_init(boot_pool *p, const double *values, const size_t *from, size_t n_files);
void boot_pool_deinit(boot_pool *p); // accepts a zeroed one

/* Of all values, each once. */
void boot_tell(const boot_pool *p, double out[BOOT_STATS]);
/* Of the values of one file that has some, file < n_files. */
void boot_tell_file(const boot_pool *p, size_t file, double out[BOOT_STATS]);

typedef struct boot_ratio {
    double ratio, lo, hi; // b / a
} boot_ratio;

/* All statistics of b over those of a.  False: no memory. */
bool boot_ratios(boot_pool *a, boot_pool *b, uint64_t seed, boot_ratio out[BOOT_STATS]);

#endif
