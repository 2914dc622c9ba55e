/* interval.h - 95 % intervals of a ratio b / a that need no draws: of parts, and of runs.
 *
 * Files drawn with replacement give intervals that are far too narrow for two to five runs: with 3
 * % between the runs of equal sides, 5 of 20 figures of two runs are outside, and 3 of 20 of three.
 *
 * Thread: any. */
#ifndef BENCH_INTERVAL_H
#define BENCH_INTERVAL_H

#include "bootstrap.h"

/* Of two parts, k_a of n_a and k_b of n_b (n > 0): from Wilson's intervals of both, so that a part
 * of 0 has one too (Donner and Zou 2012, "Closed-form confidence intervals for functions of the
 * normal mean and standard deviation").  k_a = 0: no upper end. */
boot_ratio interval_of_parts(uint64_t k_a, uint64_t n_a, uint64_t k_b, uint64_t n_b);

/* Of two sides of runs, from one figure of each run: t interval (Welch) of the difference of the
 * means of their logarithms, or of the figures themselves where one is 0.  It holds for two runs a
 * side, where it is wide.  The spread of a side of one run is taken from the other; n_a + n_b > 2.
 * `means` gets the geometric means (the arithmetic ones where a figure is 0). */
boot_ratio interval_of_runs(const double *a, size_t n_a, const double *b, size_t n_b,
                            double means[2]);

/* The smallest interval that holds both; the ratio of `r`. */
boot_ratio interval_hull(boot_ratio r, boot_ratio other);

#endif
