/* skinny.h - activations of a few rows (1..64) times weights, on tensor cores.
 *
 * The part of matmul for 5 to 64 rows (matmul.h has the choice).  One launch serves up
 * to three matrices of equal format and columns; every other call is several launches.
 *
 * Splitting K.  The columns are cut into `splits` equal ranges when there would be too few blocks
 * to keep the device busy.  Ranges write float sums to the workspace, and the last of them to
 * arrive adds all of them up in order, so two runs give the same bits.  skinny_plan_of chooses, by
 * shapes and the device only.
 *
 * Thread: engine. */
#ifndef INFERD_CUDA_SKINNY_H
#define INFERD_CUDA_SKINNY_H

#include "cuda/matmul.h"

#ifdef __cplusplus
#define SKINNY_CONST constexpr
#else
#define SKINNY_CONST static inline
#endif

enum {
    SKINNY_WARPS = 4,
    SKINNY_THREADS = 32 * SKINNY_WARPS,
    SKINNY_SPLITS_MAX = 64,
    /* Sums of 8 rows of x over the two groups of 64 columns: per row 4 parts (group, upper and
     * lower), each with -2^bits times it.  Behind two buffers of them lie the factors of x that
     * produce them, 16 bytes for each of 8 rows and for each half of the columns. */
    SKINNY_SUMS_BYTES = 8 * 4 * 8,
    SKINNY_SUM_WEIGHTS_BYTES = 2 * 8 * 16
};

/* The cut of a block of four warps, for a format and a number of 8-row tiles of x.  A warp
 * multiplies `warp_tiles` tiles of 16 weight rows; row_warps of them lie below each other,
 * col_warps beside each other (64 columns each); their sums are joined in shared memory at the
 * end. */
typedef struct skinny_cut {
    uint32_t x_tiles; // 8 rows of x each
    uint32_t row_warps, col_warps, warp_tiles;
    uint32_t rows, cols; // of the weights, per block and stage
    uint32_t stages;     // of the ring
    uint32_t tile_bytes; // of 16 x 64 weights in shared memory
    uint32_t x_bytes, stage_bytes, sums_bytes, shared_bytes;
    uint32_t blocks; // that fit a multiprocessor's registers
} skinny_cut;

SKINNY_CONST bool skinny_is_quant(uint32_t format) {
    return format >= CU_FMT_Q4;
}
SKINNY_CONST bool skinny_has_minima(uint32_t format) {
    return format == CU_FMT_Q4M || format == CU_FMT_Q5M;
}

SKINNY_CONST skinny_cut skinny_cut_of(uint32_t format, uint32_t x_tiles) {
    skinny_cut c = {0};
    c.x_tiles = x_tiles;
    c.row_warps = x_tiles == 1 ? 1 : x_tiles == 2 ? 2 : 4;
    c.col_warps = SKINNY_WARPS / c.row_warps;
    c.warp_tiles = format == CU_FMT_F32 ? 1 : 2;
    c.rows = c.row_warps * c.warp_tiles * TILE_ROWS;
    c.cols = c.col_warps * TILE_COLS;
    c.tile_bytes = format == CU_FMT_F32       ? 4096
                   : !skinny_is_quant(format) ? 2048
                   : format == CU_FMT_Q4      ? 512 + 64
                   : format == CU_FMT_Q4M     ? 512 + 128
                   : format == CU_FMT_Q5      ? 512 + 128 + 64
                   : format == CU_FMT_Q5M     ? 512 + 128 + 128
                   : format == CU_FMT_Q6      ? 512 + 256 + 128
                                              : 1024 + 64;
    c.stages = skinny_is_quant(format) && format != CU_FMT_Q8 ? 5 : 4;
    c.x_bytes = x_tiles * 8 * c.cols * 2;
    c.stage_bytes = c.x_bytes + SKINNY_WARPS * c.warp_tiles * c.tile_bytes;
    c.sums_bytes = skinny_has_minima(format)
                       ? 2 * c.col_warps * x_tiles * SKINNY_SUMS_BYTES + SKINNY_SUM_WEIGHTS_BYTES
                       : 0;
    c.blocks = x_tiles == 8 ? 3 : 4;
    c.shared_bytes = c.stages * c.stage_bytes + c.sums_bytes;
    return c;
}

typedef struct skinny_mat {
    const void *data; // dense: the matrix; quantised: the low plane
    const void *high, *scales;
    const float *bias;
    void *out;
    uint32_t rows, stride; // of the weights
    uint32_t n_row_tiles, n_col_tiles;
    uint32_t out_stride;
    uint32_t block_begin;         // its first block_x
    uint32_t out_float, out_wide; // wide: four neighbours may be stored at once
} skinny_mat;

typedef struct skinny_params {
    skinny_mat mats[MATMUL_FUSED_MAX];
    const void *x;
    float *partials;    // [grid x, splits, rows, weight rows of a block]
    uint32_t *counters; // [grid x] zero before and after
    uint32_t n_mats, rows, cols, x_stride;
    uint32_t n_stages, splits; // stages in all of K; grid is (blocks, splits)
    uint32_t add;
} skinny_params;

typedef struct skinny skinny;

/* Looks up and loads every kernel of `inner`. */
inferd_status skinny_create(const cuda_module *m, const cu_device *d, cu_type inner, skinny **out,
                            inferd_err *err);
void skinny_destroy(skinny *s); // accepts NULL

/* One launch?  rows 1..64, no norm, no glu, all matrices of one format and as many columns. */
bool skinny_can_fuse(const skinny *s, const matmul_args *a);
/* skinny_can_fuse(s, a) is true. */
void skinny_launch(launcher *l, const skinny *s, const matmul_workspace *w, const matmul_args *a);

/* The cut that skinny_launch makes: for tests and benches. */
typedef struct skinny_plan {
    skinny_cut cut;
    uint32_t blocks, splits, n_stages; // grid is (blocks, splits)
} skinny_plan;
skinny_plan skinny_plan_of(const skinny *s, const matmul_workspace *w, const matmul_args *a);

#endif
