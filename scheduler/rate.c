/* rate.c - see rate.h.  Sums carry 8 fractional bits so that fading by a shift loses nothing that
 * matters; with rows <= 65,535 and us <= 10 s they stay below 2^60, and products use 128 bits. */
#include "rate.h"

enum { FADE_SHIFT = 5, FRACTION_BITS = 8 };
enum { ROWS_MAX = 65535, US_MAX = 10000000 };
/* Variance of rows below which a and b are not told apart: a standard deviation of 4 rows. */
enum { VARIANCE_MIN = 16 };

static void fade(int64_t *sum, int64_t x) {
    *sum += (x << FRACTION_BITS) - (*sum >> FADE_SHIFT);
}

static void fit(rate *r) {
    __int128 spread = (__int128)r->w * r->rr - (__int128)r->r * r->r; // w^2 * variance of rows
    if (spread >= (__int128)r->w * r->w * VARIANCE_MIN) {
        __int128 slope = ((__int128)r->w * r->ry - (__int128)r->r * r->y) * 65536 / spread;
        r->b_q16 = slope < 0 ? 0 : (int64_t)slope;
        r->separated = true;
    } else if (!r->separated || r->y < (int64_t)((__int128)r->b_q16 * r->r / 65536)) {
        /* Or the slope kept from before is too steep even without a fixed part (a hiccup, or long
         * contexts that have left): kept on, it would plan small steps that never correct it. */
        r->b_q16 = (int64_t)((__int128)r->y * 65536 / r->r);
    }
    int64_t a = (int64_t)(((__int128)r->y - (__int128)r->b_q16 * r->r / 65536) / r->w);
    r->a_us = a < 0 ? 0 : a;
}

void rate_add(rate *r, uint32_t rows, uint64_t us) {
    if (rows == 0) return;
    int64_t x = u32_min(rows, ROWS_MAX);
    int64_t y = (int64_t)(us < US_MAX ? us : US_MAX);
    /* A hiccup of the machine (a step eight times slower than expected) counts as eight times. */
    int64_t expected = (int64_t)rate_us(r, rows);
    if (expected > 0 && y > 8 * expected) y = 8 * expected;
    fade(&r->w, 1);
    fade(&r->r, x);
    fade(&r->y, y);
    fade(&r->rr, x * x);
    fade(&r->ry, x * y);
    r->rows_seen = u32_max(r->rows_seen, (uint32_t)x);
    fit(r);
}

uint64_t rate_us(const rate *r, uint32_t rows) {
    return (uint64_t)(r->a_us + (int64_t)(((__int128)r->b_q16 * rows) >> 16));
}

uint32_t rate_rows(const rate *r, uint64_t budget_us) {
    if (r->w == 0) return RATE_DEFAULT_ROWS;
    /* One step as large as a first one may be tells a from b; many small ones never would. */
    if (!r->separated && r->rows_seen < RATE_DEFAULT_ROWS)
        return u32_min(2 * r->rows_seen, RATE_DEFAULT_ROWS);
    uint32_t trusted = u32_max(2 * r->rows_seen, RATE_DEFAULT_ROWS);
    if ((uint64_t)r->a_us >= budget_us) return 0;
    if (r->b_q16 == 0) return trusted;
    uint64_t room_us = budget_us - (uint64_t)r->a_us;
    uint64_t rows = (uint64_t)(((__int128)room_us << 16) / r->b_q16);
    return rows < trusted ? (uint32_t)rows : trusted;
}
