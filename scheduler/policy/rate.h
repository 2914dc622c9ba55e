/* rate.h - predicts how long a step takes on this device, from measured steps.
 *
 *     us = one step + rows * each + draws * each + attended positions * each
 *
 * `attended` is the sum over the rows of the positions they look back at; `draws` are rows with
 * logits (the head, and drawing a token).  The four prices fit the relative error of the steps by
 * least squares, with weights that fade by 1/32 per step.
 *
 * The fit is multiplicative: each round scales a price by the factor by which the steps that
 * contain it are predicted too short.  So no price becomes negative, and prices that the steps
 * cannot distinguish (in pure decoding all steps have as many rows) keep their proportions.  A term
 * that recent steps do not contain keeps its price.  A quarter of a step's deviation counts at once
 * as a change of the machine's speed: all prices, and the steps remembered, are scaled.
 *
 * A single step that took more than twice as long as expected is an outlier and counts as twice;
 * the second in a row counts in full.  A step may have at most twice the rows of the largest one
 * measured, so the fit is never trusted far outside of its data.  Until RATE_DEFAULT_ROWS rows have
 * been measured, steps double, whatever is predicted: small ones alone would never teach anything.
 * Thread: engine. */
#ifndef INFERD_RATE_H
#define INFERD_RATE_H

#include "inferd/base.h"

enum { RATE_DEFAULT_ROWS = 32 }; // before anything was measured
enum { RATE_TERMS = 4 };
enum { RATE_ERROR_MAX_PPM = 10000000 };

/* What a step computes. */
typedef struct rate_work {
    uint32_t rows, draws;
    uint64_t attended;
} rate_work;

typedef struct rate {
    double price[RATE_TERMS];              // us for one step, row, draw, attended position
    double wanted[RATE_TERMS];             // faded sums of x / us ...
    double moment[RATE_TERMS][RATE_TERMS]; // ... and of x x' / us^2
    bool error_known;                      // a step was predicted
    bool slow;                             // the last step took more than twice as long as expected
    uint32_t rows_seen;                    // largest step measured; 0: none
    uint32_t error_ppm;                    // |predicted - us| / us of each step, fading
} rate;

void rate_add(rate *r, const rate_work *w, uint64_t us);
/* Mean absolute relative error of recent predictions, in ppm, with weights that fade by 1/32 per
 * step; at most RATE_ERROR_MAX_PPM for one step.  0 before the second rate_add. */
uint32_t rate_error_ppm(const rate *r);
uint64_t rate_us(const rate *r, const rate_work *w); // 0 before the first rate_add
/* Adds to `w` the work of n rows of a sequence behind its first `begin` positions. */
void rate_add_rows(rate_work *w, uint32_t begin, uint32_t n);
/* How many such rows, at most n_max, may join `w` so that the step takes at most budget_us. */
uint32_t rate_rows(const rate *r, uint64_t budget_us, const rate_work *w, uint32_t begin,
                   uint32_t n_max);

/* A typical length of steps, between their median and their maximum, moved by a sixteenth of the
 * deviation of the step that took `us`; an outlier counts as four times the length. */
void rate_note_typical(uint64_t *typical_us, uint64_t us);

#endif
