/* interval.h - 95 % intervals of a ratio b / a that need no draws.
 *
 * Thread: any. */
#ifndef BENCH_INTERVAL_H
#define BENCH_INTERVAL_H

#include "bootstrap.h"

/* Of two parts, k_a of n_a and k_b of n_b (n > 0): normal interval of the logarithm with 1/2 added
 * to each count (Walter), so that a part of 0 has an interval too.  a = 0: no upper end. */
boot_ratio interval_of_parts(uint64_t k_a, uint64_t n_a, uint64_t k_b, uint64_t n_b);

#endif
