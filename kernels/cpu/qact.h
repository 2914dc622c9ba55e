/* qact.h - the format of activations for the fast matrix products.
 *
 * A weight type is multiplied in one of three ways (level_math): with float activations (the exact
 * way, for every type), with 16-bit integers (the quantised types), or with bf16 pairs (BF16, if
 * the machine multiplies them).  The way is fixed by type, level and mode and never by the batch,
 * so a row's result does not depend on the other rows.
 *
 *     I16    x = scale * q,  scale = max |x| of the row / 32767,  q rounded to nearest even
 *     BF16   two terms: x rounded to bf16, nearest even, and the rest of x, rounded likewise; no
 *            scale
 *
 * Why 16 bits: with one 8-bit scale per 32 columns the log-probabilities of SmolLM2-135M Q4_1 are
 * off by 0.08 in the mean; with 16 bits and one scale per row by 0.003 (float32: 0.001).
 *
 * Why two terms: with the first alone log-probabilities of a BF16 file are off by 0.011 in the
 * mean, fifty times as far as those of Q8_0; with both by 0.00002.  The cost is two products for
 * each pair; it does not slow down a few rows, because they wait for the weights.
 *
 * Rows lie in tiles of QACT_ROWS, the last tile is narrower.  Tile i begins at element
 * i * QACT_ROWS * cols * terms; there are the first terms of the tile, then the second ones.  In a
 * tile of T rows the elements are in the order they are used:
 *
 *     q      [cols / 8][4 pairs][T][2]    pair p of a word of 8 columns: columns p and p + 4
 *     sum    [cols / 32][T]               of q over 32 columns; tile i begins at
 *                                         i * QACT_ROWS * (cols / 32)
 *     sum16  [cols / 16][T]               of q over 16 columns, for types with scales of 16 columns
 *     scale  [row]
 *
 * so one broadcast of 32 bits has two neighbouring factors of one row, and the pairs match those
 * that a nibble word of a panel gives with one shift and one mask (panel.h).  A row of I16 with an
 * element that is not finite has the scale NaN (and q of zeros), so that the result is NaN; bf16
 * has a NaN of its own.  A row with no magnitude of QACT_TINY or more is a row of zeros: its scale
 * would be no normal float.
 *
 * A level that multiplies tiles of bytes (simd/amx.h) reads most rows of I16 from planes, which lie
 * where BF16 has its second terms: high bytes (signed) and low bytes (unsigned) of
 *
 *     planes [row / 16][cols / 32][high, low][16 rows][32 columns]
 *
 * with the columns of each word in the order 0 2 4 6 1 3 5 7, the order in which two masks unpack
 * nibbles.  If the rows after the last whole 16 are more than 8, they are planes, too; up to 8 are
 * an ordinary tile.  Fewer than QACT_PLANES_LEAST rows in all are faster as tiles, because weights
 * are unpacked for planes first.
 *
 * cols of a BF16 matrix need not be a multiple of 8: the rest of the last word is zero, and
 * `cols` above is then rounded up.
 *
 * Thread: any; ranges of one job do not overlap. */
#ifndef INFERD_CPU_QACT_H
#define INFERD_CPU_QACT_H

#include "cpu/panel.h"

enum {
    QACT_ROWS = 8,
    QACT_PLANE_ROWS = 16,
    QACT_PLANES_LEAST = 14,
    QACT_PLANE_COLS = 32,
    QACT_PLANE_BYTES = QACT_PLANE_ROWS * QACT_PLANE_COLS // of one plane of one group of columns
};
#define QACT_TINY 0x1p-100f

typedef enum cpu_math { MATH_F32, MATH_I16, MATH_BF16 } cpu_math;

typedef struct qact {
    uint16_t *q; // int16_t or bf16 bits; 64-byte aligned
    int32_t *sum, *sum16;
    float *scale;
} qact;

/* Bytes of the parts for n rows of cols, one after the other, each 64-byte aligned; and the parts
 * laid out at `at`. */
static inline size_t qact_padded(uint32_t cols) {
    return ((size_t)cols + PANEL_WORD - 1) / PANEL_WORD * PANEL_WORD;
}
/* Terms of an element.  There is space for the maximum; unused space is not touched. */
enum { QACT_TERMS_MAX = 2 };
static inline size_t qact_terms(cpu_math math) {
    return math == MATH_BF16 ? 2 : 1;
}
static inline size_t qact_bytes(uint32_t n, uint32_t cols) {
    size_t rows = ((size_t)n + QACT_ROWS - 1) / QACT_ROWS * QACT_ROWS, padded = qact_padded(cols);
    return rows * padded * 2 * QACT_TERMS_MAX + rows * (padded / 32 + padded / 16) * 4 + rows * 4 +
           4 * 64;
}
static inline size_t qact_align(size_t n) {
    return (n + 63) / 64 * 64;
}
static inline qact qact_at(unsigned char *at, uint32_t n, uint32_t cols) {
    size_t rows = ((size_t)n + QACT_ROWS - 1) / QACT_ROWS * QACT_ROWS, padded = qact_padded(cols);
    qact x;
    x.q = (uint16_t *)(void *)at;
    at += qact_align(rows * padded * 2 * QACT_TERMS_MAX);
    x.sum = (int32_t *)(void *)at;
    at += qact_align(rows * (padded / 32) * 4);
    x.sum16 = (int32_t *)(void *)at;
    at += qact_align(rows * (padded / 16) * 4);
    x.scale = (float *)(void *)at;
    return x;
}
/* Rows of tile i of n rows. */
static inline uint32_t qact_tile_rows(uint32_t n, uint32_t i) {
    return u32_min(n - i * QACT_ROWS, QACT_ROWS);
}

/* Tiles of n rows, the unit of work when threads make them.  The rows of one tile lie in the same
 * cache lines: two threads at one tile are four times as slow as one. */
static inline uint32_t qact_tiles(uint32_t n) {
    return (n + QACT_ROWS - 1) / QACT_ROWS;
}

/* How many of n rows are multiplied as planes, on a level that does that; and where they begin. */
static inline uint32_t qact_plane_rows(uint32_t n) {
    uint32_t rest = n % QACT_PLANE_ROWS;
    if (n < QACT_PLANES_LEAST) return 0;
    return rest > QACT_ROWS ? n : n - rest;
}
static inline unsigned char *qact_planes(const qact *x, uint32_t n, uint32_t cols) {
    return (unsigned char *)(x->q + (size_t)qact_tiles(n) * QACT_ROWS * qact_padded(cols));
}

/* Where a term of column k of a row lies in x.q; `padded` is qact_padded(cols). */
static inline size_t qact_index(cpu_math math, uint32_t n, size_t padded, uint32_t row, uint32_t k,
                                uint32_t term) {
    uint32_t tile = row / QACT_ROWS, n_rows = qact_tile_rows(n, tile);
    size_t pair = k / PANEL_WORD * 4 + k % 4;
    return tile * QACT_ROWS * padded * qact_terms(math) + term * padded * n_rows +
           (pair * n_rows + row % QACT_ROWS) * 2 + k % PANEL_WORD / 4;
}

typedef struct qact_job { // range: qact_tiles(n)
    qact out;
    const float *x;    // [n, dim]
    const float *norm; // [dim] RMS norm taken first, with these weights; NULL: none
    float *normed;     // [n, dim] the normed rows as floats, too; NULL: not needed
    uint32_t n, dim;
    float eps;
    cpu_math math;        // I16 or BF16
    const uint32_t *rows; // [n] row i is made of row rows[i] of x; NULL: of row i
} qact_job;

/* out[n, rows] = (add +) x . transpose(w) (+ bias) */
typedef struct qmatmul_job { // range: units of MATMUL_UNIT output features
    qact x;
    const weight *w;
    const float *bias; // [w->rows] or NULL
    const float *add;  // [n, w->rows] or NULL; may be out
    float *out;        // [n, w->rows]
    uint32_t n;
    cpu_math math;
} qmatmul_job;

/* out[n, rows] = fn(x . transpose(gate) + gate_bias) * (x . transpose(up) + up_bias) */
typedef struct qglu_job { // range: units of MATMUL_UNIT output features
    qact x;
    const weight *gate, *up; // of the same shape; their types may differ
    const float *gate_bias, *up_bias;
    act_fn fn;
    float *out;
    uint32_t n;
    cpu_math math;
} qglu_job;

#endif
