/* rate.h - how long a step takes on this device, learned from the steps it did.
 *
 *     us = a + b * rows
 *
 * fitted by least squares with weights that fade by 1/32 per step, in integers.  While all steps
 * had about as many rows, a and b cannot be told apart; then the whole time is charged to the rows
 * (b = mean us / mean rows, a = 0), which never promises too much for a larger step; once told
 * apart, b is kept as long as it is not plainly too large for the steps that come.  Until then
 * steps double up to RATE_DEFAULT_ROWS.  A step may also be at most twice as large as the largest
 * one measured, so the fit is never trusted far outside of what it has seen.  Long contexts make
 * rows slower; the fading weights follow.
 *
 * Thread: engine. */
#ifndef INFERD_RATE_H
#define INFERD_RATE_H

#include "inferd/base.h"

enum { RATE_DEFAULT_ROWS = 32 }; // before anything was measured

typedef struct rate {
    int64_t w, r, y, rr, ry; // weighted sums of 1, rows, us, rows^2, rows * us
    int64_t a_us;
    int64_t b_q16;      // us per row, 16 fractional bits
    bool separated;     // a and b have been told apart at least once
    uint32_t rows_seen; // largest step measured
} rate;

void rate_add(rate *r, uint32_t rows, uint64_t us);
uint64_t rate_us(const rate *r, uint32_t rows); // 0 before the first rate_add
/* Most rows that a step of at most budget_us may have; RATE_DEFAULT_ROWS before the first rate_add.
 * Can be 0: even an empty step takes longer. */
uint32_t rate_rows(const rate *r, uint64_t budget_us);

#endif
