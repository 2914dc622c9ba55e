/* rows_params.h - the arguments of the kernels of rows.cu, one struct each.
 *
 * C and CUDA C++ include this.  norm, gather, glu, add, bias, softcap and scale take the launcher's
 * own struct (rows.h).
 *
 * Thread: engine; values. */
#ifndef INFERD_CUDA_ROWS_PARAMS_H
#define INFERD_CUDA_ROWS_PARAMS_H

#include "cuda/rows.h"
#include "inferd/dummy_math.h"

/* Threads per block that the kernels were compiled for. */
enum {
    NORM_THREADS = 512,
    FLAT_THREADS = 256,
    EMBED_THREADS = 256,
    ROPE_THREADS = 128,
    DUMMY_THREADS = 256
};
enum { NORM_SHARED_BYTES = 32 * 4 }; // a float per warp

typedef struct embed_params {
    void *out;
    cu_matrix table;
    step_view view;
    float scale;
    uint32_t out_stride;
} embed_params;

typedef struct rope_params {
    void *q, *k;
    const void *v;
    const float *q_norm, *k_norm;
    const float *table;
    step_view view;
    kv_view kv;
    float norm_eps;
    uint32_t n_pairs, table_stride;
    uint32_t interleaved, grows, write_k; // 0 or 1
    uint32_t layer_idx;
    uint32_t n_heads, n_kv_heads, head_dim;
    uint32_t head_lanes; // lanes of one head: head_dim / 8, rounded up to a power of two
    uint32_t q_stride, k_stride, v_stride;
} rope_params;

typedef struct dummy_params {
    cu_matrix m;
    void *data, *low, *high, *scales;
    dummy_form form;
    uint64_t seed;
    uint32_t book[4]; // types with a codebook: the format's code of each of their codes, a byte
    uint32_t lift;    // other types: what their codes are less than the format's
} dummy_params;

#endif
