/* gemv.h - activations of 1 to 8 rows times weights that are read once: the kernel of decoding.
 *
 * The part of matmul for few rows (matmul.h has the choice).  One launch can include the
 * neighbouring operations of a product: the norm of x before it, up to three matrices of one format
 * (or two formats that often occur together) that read the same x, bias, the sum into the residual
 * stream, or the gated activation of a gate/up pair after it.
 *
 * Work is cut into row tiles (16 weight rows) and column tiles (64 columns).  A block's 8 warps are
 * `slot_warps` warps along the columns of one row tile, times 8 / slot_warps row tiles ("slots"):
 * one unit of work.  Blocks take units round-robin.  Grid y cuts the columns into `splits` slices;
 * the block that arrives last adds their sums from the workspace, in order.
 * gemv_plan_of chooses from shapes and device alone, so the same product is summed the same way
 * every time.
 *
 * Thread: engine. */
#ifndef INFERD_CUDA_GEMV_H
#define INFERD_CUDA_GEMV_H

#include "cuda/matmul.h"

enum {
    GEMV_WARPS = 8,
    GEMV_THREADS = 32 * GEMV_WARPS,
    GEMV_ROWS_LIMIT = 8, // one side of a tensor core product; matmul.h may use fewer
    GEMV_SPLITS_MAX = 64
};

/* ---- for kernels ---- */

typedef struct gemv_mat {
    const void *low; // of quantised tiles; dense: the matrix
    const void *high, *scales;
    const float *bias; // [rows] or NULL
    void *out;
    uint32_t rows;       // true ones
    uint32_t first_tile; // of its row tiles in the launch's list of row tiles; unused with glu
    uint32_t out_stride;
    uint32_t out_float; // else inner
} gemv_mat;

typedef struct gemv_params {
    gemv_mat mats[MATMUL_FUSED_MAX];
    const void *x;
    const float *norm; // [cols] or NULL
    const uint32_t *gather;
    float *partials;    // [unit, split, slot, row of x, 16] with splits > 1
    uint32_t *counters; // [unit]
    float norm_eps;
    uint32_t n_mats, rows, cols, x_stride;
    uint32_t x_float;     // else inner
    uint32_t w_stride;    // dense
    uint32_t n_col_tiles; // of every matrix
    uint32_t n_row_tiles; // of the list: matrices one after the other; glu: gate and up alternate
    uint32_t n_units;
    uint32_t slot_warps;  // 8, 4, 2, 1
    uint32_t slice_tiles; // column tiles of a slice, the last may have fewer
    uint32_t warp_tiles;  // of a warp, the last may have fewer
    uint32_t splits;      // grid y
    // Two formats: the first row tile of the list, unit and block of the second one.
    uint32_t second_tile, second_unit, second_block;
    uint32_t add, glu, act;
} gemv_params;

/* The layout of shared memory, in bytes from its base, for host and kernel. */
typedef struct gemv_shared {
    uint32_t x_row; // from one row of x to the next: odd multiples of 64, so rows 0 and 1 differ in
                    // banks
    uint32_t groups;     // sums of x by groups of 32 columns, 16 bytes per tile
    uint32_t groups_row; // from one row of x to the next: an odd multiple of 16, as for x
    uint32_t sums;       // of warps, twice
    uint32_t warp_sums;  // floats of one warp
    uint32_t squares;    // 8 warps x 8 rows, then 8 rows
    uint32_t bytes;
} gemv_shared;

#ifdef __CUDACC__
#define GEMV_BOTH static __host__ __device__ constexpr
#elif defined(__cplusplus)
#define GEMV_BOTH static constexpr
#else
#define GEMV_BOTH static inline
#endif

GEMV_BOTH gemv_shared gemv_shared_of(uint32_t rows, uint32_t slice_tiles, bool minima) {
    gemv_shared s = {0, 0, 0, 0, 0, 0, 0};
    s.x_row = slice_tiles * 128 + 64;
    s.groups = (rows * s.x_row + 127) / 128 * 128;
    s.groups_row = minima ? (slice_tiles | 1) * 16 : 0;
    s.sums = (s.groups + rows * s.groups_row + 127) / 128 * 128;
    s.warp_sums = (rows + rows % 2) * 20; // 16, and 4 that keep lanes in different banks
    s.squares = s.sums + 2 * GEMV_WARPS * s.warp_sums * 4;
    s.bytes = s.squares + (GEMV_WARPS + 1) * GEMV_ROWS_LIMIT * 4;
    return s;
}

/* Tiles that a warp has in flight, as many as the registers of `blocks` per multiprocessor hold. */
typedef struct gemv_budget {
    uint32_t batch, blocks;
} gemv_budget;

/* same: 16-bit weights of the activations' type. */
GEMV_BOTH gemv_budget gemv_budget_of(uint32_t format, bool same) {
    gemv_budget dense = {same ? 2u : 1u, same ? 3u : 2u}, wide = {3, 3}, narrow = {4, 3};
    if (format <= CU_FMT_F16) return dense;
    return format == CU_FMT_Q8 || format == CU_FMT_Q6 || format == CU_FMT_Q5M ? wide : narrow;
}

/* Two formats in one kernel leave registers for fewer tiles. */
GEMV_BOTH uint32_t gemv_mixed_batch(uint32_t format) {
    return gemv_budget_of(format, false).batch - 1;
}

/* ---- for matmul.c ---- */

/* Two formats that one launch can take together. */
typedef struct gemv_pair {
    uint32_t first, second;
} gemv_pair;
enum { GEMV_PAIRS = 3 };
extern const gemv_pair gemv_pairs[GEMV_PAIRS];

typedef struct gemv gemv;

typedef struct gemv_plan {
    uint32_t slot_warps, splits, slice_tiles, warp_tiles, n_units,
        blocks;                         // grid is (blocks, splits)
    uint32_t second_unit, second_block; // 0: one format
    uint32_t shared_bytes;
} gemv_plan;

/* Looks up and loads the kernels of `inner`. */
inferd_status gemv_create(const cuda_module *m, const cu_device *d, cu_type inner, gemv **out,
                          inferd_err *err);
void gemv_destroy(gemv *g); // accepts NULL
/* Allow matrices of two formats in one launch, or not; allowed at first. */
void gemv_allow_mixed(gemv *g, bool allowed);

/* One launch?  1 to GEMV_ROWS_LIMIT rows; all matrices of one format (or of two that have a
 * kernel), one number of columns and, when dense, one stride; glu: two of one shape, nothing added;
 * add: one matrix, float. */
bool gemv_can_fuse(const gemv *g, const matmul_args *a);
/* For more than GEMV_ROWS_MAX rows, which other kernels could take: do the launches saved by a norm
 * or a gate in the same launch pay for the x that each block must read? */
bool gemv_pays(const gemv *g, const matmul_workspace *w, const matmul_args *a);
/* gemv_can_fuse(g, a) is true. */
void gemv_launch(launcher *l, const gemv *g, const matmul_workspace *w, const matmul_args *a);

/* The cut that gemv_launch makes: for tests and benches. */
gemv_plan gemv_plan_of(const gemv *g, const matmul_workspace *w, const matmul_args *a);

#endif
