/* attention_params.h - shared by attention.c and attention.cu: sizes of tiles, shared memory,
 * splits, and the kernels' one struct.
 *
 * C and CUDA C++ include this; besides those two files only their test does. */
#ifndef INFERD_CUDA_ATTENTION_PARAMS_H
#define INFERD_CUDA_ATTENTION_PARAMS_H

#include "cuda/attention.h"

#if defined(__CUDACC__)
#define ATTENTION_CONST __host__ __device__ constexpr
#elif defined(__cplusplus)
#define ATTENTION_CONST constexpr
#else
#define ATTENTION_CONST static inline
#endif

enum {
    ATTENTION_WARPS = 4, // of a block, in both kernels
    ATTENTION_THREADS = 32 * ATTENTION_WARPS,
    ATTENTION_CHUNK = 16,   // tokens with adjacent keys: block_tokens is a multiple of it
    ATTENTION_HEADS = 16,   // query heads of a group that one pass serves: the rows of an mma
    ATTENTION_OFFSETS = 128 // chunks with an offset that a prefill block looks up ahead
};

/* A kernel exists for these; another head_dim runs on the next larger one, filled up with zeros. */
#define ATTENTION_DIMS(X) X(64) X(80) X(96) X(128) X(256)

/* The distance of rows of `dim` 16-bit numbers in shared memory, in units of 16 bytes: an odd
 * number, so that unit u of 8 neighbouring rows lies in 8 different parts of the 128 bytes that are
 * read at once. */
ATTENTION_CONST uint32_t attention_row_units(uint32_t dim) {
    return dim / 8 | 1;
}
ATTENTION_CONST uint32_t attention_rows_bytes(uint32_t rows, uint32_t dim) {
    return rows * attention_row_units(dim) * 16;
}

/* ---- decode ---- */

/* Chunks in flight per warp.  At 256 a chunk's keys and values are 16 KiB, so one is enough. */
ATTENTION_CONST uint32_t attention_stages(uint32_t dim) {
    return dim <= 128 ? 2 : 1;
}
ATTENTION_CONST uint32_t attention_ring_bytes(uint32_t dim) { // of all warps
    return ATTENTION_WARPS * attention_stages(dim) * 2 * attention_rows_bytes(ATTENTION_CHUNK, dim);
}
/* The ring, the query heads, and (max, sum) of each warp and head. */
ATTENTION_CONST uint32_t attention_decode_shared(uint32_t dim) {
    return attention_ring_bytes(dim) + attention_rows_bytes(ATTENTION_HEADS, dim) +
           ATTENTION_WARPS * ATTENTION_HEADS * 8;
}

/* Chunks per split of a row that sees n_chunks: 128 tokens while that makes at most 16 splits, then
 * 256, and from 64 splits of 256 on a 64th of the row. */
ATTENTION_CONST uint32_t attention_split_chunks(uint32_t n_chunks) {
    const uint32_t most = ATTENTION_SPLITS_MAX;
    if (n_chunks <= 16 * 8) return 8;
    if (n_chunks <= most * 16) return 16;
    return (n_chunks + 4 * most - 1) / (4 * most) * 4;
}
ATTENTION_CONST uint32_t attention_n_splits(uint32_t n_chunks) {
    return (n_chunks + attention_split_chunks(n_chunks) - 1) / attention_split_chunks(n_chunks);
}
/* The most splits that any row of up to n_chunks chunks has. */
ATTENTION_CONST uint32_t attention_n_splits_bound(uint32_t n_chunks) {
    const uint32_t most = ATTENTION_SPLITS_MAX;
    if (n_chunks <= 16 * 8) return (n_chunks + 7) / 8;
    if (n_chunks <= 16 * 16) return 16;
    return n_chunks <= most * 16 ? (n_chunks + 15) / 16 : most;
}

/* ---- prefill ---- */

/* Query rows of a block; a tile of the plan is one or two blocks. */
ATTENTION_CONST uint32_t attention_block_rows(uint32_t dim) {
    return dim <= 128 ? 128 : 64;
}
/* Keys of a tile.  At 256 the sums take the registers that the scores of 64 keys would need. */
ATTENTION_CONST uint32_t attention_tile_keys(uint32_t dim) {
    return dim <= 128 ? 64 : 32;
}
/* Queries (output later), one tile of keys, one of values, offsets of chunks. */
ATTENTION_CONST uint32_t attention_prefill_shared(uint32_t dim) {
    return attention_rows_bytes(attention_block_rows(dim) + 2 * attention_tile_keys(dim), dim) +
           ATTENTION_OFFSETS * 8;
}

typedef struct attention_params {
    void *out;
    const void *q;
    const float *sinks; // [n_heads] or NULL
    step_view view;
    kv_view kv;

    /* decode */
    float *partials;     // [rows of this launch, n_kv_heads, splits_max, group, head_dim]
    float *partial_sums; // [..., group, 2] max and sum of each
    uint32_t *counters;  // [rows of this launch, n_kv_heads]
    uint32_t decode_begin, splits_max;

    uint64_t layer_offset; // bytes from the slot's begin to this layer
    uint32_t layer_group;  // column of the block table
    uint32_t inner, out_stride, q_stride;
    uint32_t n_heads, n_kv_heads, head_dim, group; // group: n_heads / n_kv_heads
    uint32_t window;
    float cap_scale;   // with a cap, q.k becomes tanh(q.k * cap_scale); 0: no cap
    float score_scale; // times this it is the score in units of log 2; positive
} attention_params;

#endif
