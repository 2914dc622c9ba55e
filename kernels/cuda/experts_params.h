/* experts_params.h - shared by experts.c and experts.cu: the state in device memory and the
 * kernels' structs.
 *
 * C and CUDA C++ include this; besides those two files only tests do. */
#ifndef INFERD_CUDA_EXPERTS_PARAMS_H
#define INFERD_CUDA_EXPERTS_PARAMS_H

#include "cuda/experts.h"

enum {
    EXPERTS_ROUTE_THREADS = 256,
    EXPERTS_SORT_THREADS = 1024, // an expert each in the last block
    EXPERTS_SUM_THREADS = 256,
    EXPERTS_SLOTS = 2,   // tiles of 16 features that a block of a product has
    EXPERTS_K_WARPS = 4, // warps that share the columns of one
    EXPERTS_WARPS = EXPERTS_SLOTS * EXPERTS_K_WARPS,
    EXPERTS_THREADS = 32 * EXPERTS_WARPS,
    EXPERTS_SUMS_ROW = 20 // floats: 16 features, and 4 that keep lanes in different banks
};

/* The slots of one expert, in ascending order of their rows. */
typedef struct expert_run {
    uint32_t expert, first, n, pad;
} expert_run;

/* Beside it: chosen, p, slot_of and row_of, [n_slots] each. */
typedef struct experts_state {
    uint32_t arrived; // blocks of the sort; zero between launches
    uint32_t n_runs;
    uint32_t pad;
    uint32_t n_reads;                // of the step: runs so far (experts_tally)
    uint32_t step_rows[EXPERTS_MAX]; // of the step: rows of each expert so far
    uint32_t counts[EXPERTS_MAX], firsts[EXPERTS_MAX];
    expert_run runs[EXPERTS_MAX]; // [n_runs] ascending
} experts_state;

typedef struct experts_route_params {
    const float *logits;
    const uint32_t *n_valid; // NULL: all
    uint32_t *chosen;
    float *p;
    const void *x; // [rows, cols] to be copied in the order of lanes, or NULL
    void *x_lanes;
    uint32_t logits_stride, n_experts, n_used;
    uint32_t cols, x_stride;
} experts_route_params;

typedef struct experts_sort_params {
    experts_state *state;
    const uint32_t *n_valid; // NULL: `rows`
    const uint32_t *chosen;
    uint32_t *slot_of, *row_of;
    uint32_t rows, n_experts, n_used;
    uint32_t begin_step; // counts of the step begin at 0
} experts_sort_params;

/* Matrices of all experts: that of expert e lies e * step bytes further. */
typedef struct experts_mat {
    const void *low; // of quantised tiles; dense: the matrix
    const void *high, *scales;
    uint64_t step;
    const float *bias; // [n_experts, rows] or NULL
} experts_mat;

enum {
    EXPERTS_PLAIN,  // out = x . w
    EXPERTS_GATED,  // out = act(x . gate, x . up)
    EXPERTS_GATE_BY // out = act(out, x . w)
};

typedef struct experts_product_params {
    experts_mat mats[2]; // gated: gate, up
    const experts_state *state;
    const uint32_t *row_of; // NULL: rows of x are slots
    const void *x;
    void *out;                                     // [slots]
    uint32_t rows, cols, x_stride, w_stride;       // w_stride: dense
    uint32_t n_row_tiles, n_col_tiles, warp_tiles; // of one expert; of a warp at most
    uint32_t out_stride, out_cols;                 // out_cols: that are written
    uint32_t mode, act;
    uint32_t out_float, out_lanes; // in the order of lanes
} experts_product_params;

typedef struct experts_sum_params {
    const void *parts;
    void *out;
    const uint32_t *n_valid; // NULL: all
    const uint32_t *slot_of;
    const float *p;
    uint32_t parts_float, out_float;
    uint32_t n_used, dim, parts_stride, out_stride;
} experts_sum_params;

#endif
