/* amx.h - products with 16 rows of activations at a time, in tiles of bytes (AMX-INT8).
 *
 * A tile multiplies bytes, and an activation of 16 bits is two: 256 * high + low, high signed and
 * low unsigned.  For each group of columns that share a scale
 *
 *     dot = 256 * sum of q_w * high + sum of q_w * low
 *
 * is exact in 32 bits, and from there on everything is as in qmatmul.c: the same chain of floats,
 * so a row has the same bits in both.
 *
 * Layout: the rows' bytes are planes of qact.h.  Weights of up to AMX_GROUPS groups of a panel are
 * unpacked into bytes once for all rows of a block: for each vector of lanes and group, four
 * columns of each lane in 32 bits, eight times (four for groups of 16 columns).
 *
 *     part of a panel > groups > 16 rows > vector of 16 lanes > group
 *
 * One 16 x 16 result of a group takes two products of 16 cycles each; its sums leave the tiles
 * through memory, 32 lines, and are scaled in registers, which takes as long.  The products of two
 * groups are in flight while the sums of an earlier one are scaled; otherwise everything would wait
 * for the lines.
 *
 * Bytes moved per 16 rows and panel: the unpacked weights, 64 * cols, and the rows, 32 * cols.
 *
 * Thread: any; a thread's tiles are configured and released by each call. */
#ifndef INFERD_CPU_AMX_H
#define INFERD_CPU_AMX_H

#include "cpu/level.h"
#include "cpu/simd/group.h"
#include "cpu/simd/simd.h"

enum {
    AMX_GROUPS = 24, // unpacked together: 48 KB for a whole panel
    AMX_VECS = PANEL_ROWS / VW,
    AMX_QUADS = 8,  // four columns each, of a group of 32
    AMX_BUFFERS = 4 // of sums in flight
};

typedef struct amx_weights {
    _Alignas(64) vi q[AMX_VECS][AMX_GROUPS][AMX_QUADS];
    vf scale[AMX_VECS][AMX_GROUPS], base[AMX_VECS][AMX_GROUPS];
} amx_weights;

/* Sums of a group: 16 rows of 16 lanes, of the high bytes and of the low ones. */
typedef struct amx_sums {
    _Alignas(64) vi of[2][QACT_PLANE_ROWS];
} amx_sums;

/* The operand of LDTILECFG. */
typedef struct amx_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} amx_config;

/* Tiles 0 to 3 are sums, 4 and 5 high and low bytes of the rows, 6 the weights. */
INLINE void amx_begin(uint32_t cols_of_group) {
    _Alignas(64) amx_config c = {.palette = 1};
    for (int i = 0; i < 4; i++) c.rows[i] = QACT_PLANE_ROWS, c.row_bytes[i] = VW * 4;
    for (int i = 4; i < 6; i++)
        c.rows[i] = QACT_PLANE_ROWS, c.row_bytes[i] = (uint16_t)cols_of_group;
    c.rows[6] = (uint8_t)(cols_of_group / 4), c.row_bytes[6] = VW * 4;
    _tile_loadconfig(&c);
}

INLINE void amx_end(void) {
    _tile_release();
}

/* The products of a group, into tiles 2 * pair and 2 * pair + 1. */
INLINE void amx_multiply(int pair, const vi *weights, const unsigned char *rows) {
    _tile_loadd(6, weights, VW * 4);
    _tile_loadd(4, rows, QACT_PLANE_COLS);
    _tile_loadd(5, rows + QACT_PLANE_BYTES, QACT_PLANE_COLS);
    if (pair == 0) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_dpbssd(0, 4, 6);
        _tile_dpbusd(1, 5, 6);
    } else {
        _tile_zero(2);
        _tile_zero(3);
        _tile_dpbssd(2, 4, 6);
        _tile_dpbusd(3, 5, 6);
    }
}

INLINE void amx_store(int pair, amx_sums *to) {
    if (pair == 0) {
        _tile_stored(0, to->of[0], VW * 4);
        _tile_stored(1, to->of[1], VW * 4);
    } else {
        _tile_stored(2, to->of[0], VW * 4);
        _tile_stored(3, to->of[1], VW * 4);
    }
}

/* The inputs of a 16 x 16 result, by group.  x_sums NULL: the type has no minimum. */
typedef struct amx_result {
    const vi (*weights)[AMX_QUADS]; // [n_groups]
    const vf *scale, *base;         // [n_groups]
    const unsigned char *rows;      // planes of the first group's columns
    uint32_t half;                  // 1: groups have half of the planes' columns
    uint32_t first_half;            // of `rows`, then
    const float (*x_sums)[QACT_PLANE_ROWS];
    uint32_t n_groups;
} amx_result;

INLINE const unsigned char *amx_rows_of(const amx_result *t, uint32_t g) {
    uint32_t at = g + t->first_half;
    return t->half == 0 ? t->rows + (size_t)g * 2 * QACT_PLANE_BYTES
                        : t->rows + (size_t)(at / 2) * 2 * QACT_PLANE_BYTES + at % 2 * 16;
}

INLINE void amx_scale(const amx_result *t, bool has_base, uint32_t g, const amx_sums *s,
                      vf *total) {
    vf scale = t->scale[g], base = has_base ? t->base[g] : vf_set1(0);
    UNROLL
    for (int r = 0; r < QACT_PLANE_ROWS; r++) {
        vi dot = (s->of[0][r] << 8) + s->of[1][r];
        total[r] = vf_fma(scale, vf_of_vi(dot), total[r]);
        if (has_base) total[r] = vf_fma(base, vf_set1(t->x_sums[g][r]), total[r]);
    }
}

/* 16 rows by 16 lanes: `sums` ([16][PANEL_ROWS]) grow by n_groups groups. */
INLINE void amx_tile(const amx_result *t, bool has_base, float *sums) {
    amx_sums buffers[AMX_BUFFERS];
    vf total[QACT_PLANE_ROWS];
    UNROLL
    for (int r = 0; r < QACT_PLANE_ROWS; r++) total[r] = vf_load(sums + r * PANEL_ROWS);
    UNROLL
    for (uint32_t g = 0; g < 2; g++) {
        if (g >= t->n_groups) break;
        amx_multiply((int)g, t->weights[g], amx_rows_of(t, g));
        amx_store((int)g, &buffers[g]);
    }
    ROLLED
    for (uint32_t first = 0; first < t->n_groups; first += 2) UNROLL
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t g = first + i, next = g + 2;
        if (g >= t->n_groups) break;
        if (next < t->n_groups) amx_multiply((int)i, t->weights[next], amx_rows_of(t, next));
        amx_scale(t, has_base, g, &buffers[g % AMX_BUFFERS], total);
        if (next < t->n_groups) amx_store((int)i, &buffers[next % AMX_BUFFERS]);
    }
    UNROLL
    for (int r = 0; r < QACT_PLANE_ROWS; r++) vf_store(sums + r * PANEL_ROWS, total[r]);
}

#endif
