/* draw_params.h - shared by draw.c and draw.cu: the upload's layout and the kernels' argument.
 *
 * The upload is one block of bytes: a header, the rows, then the lists that rows point into, and
 * the masks, a bit per token.
 *
 *     draw_header | draw_row [n_rows] | draw_bias [] | int32_t banned [] | draw_seen [] | mask []
 *
 * Scratch holds data that later blocks and kernels read: one counter and one draw_bins per
 * row, zero between launches, then for every row and slice of the vocabulary a draw_scan (of the
 * first kernel) and a draw_part (of the second).
 *
 * Thread: any; values. */
#ifndef INFERD_CUDA_DRAW_PARAMS_H
#define INFERD_CUDA_DRAW_PARAMS_H

#include "cuda/draw.h"

enum {
    DRAW_SLICE = 4096, // tokens of one block
    DRAW_THREADS = 256,
    DRAW_BINS = 256,              // as many as threads: each owns one
    DRAW_LIST = 2048,             // tokens kept in shared memory while a cut is searched among them
    DRAW_SCAN_SHARED_BYTES = 256, // see draw.cu, struct work
    DRAW_SHARED_BYTES = 16384
};

typedef struct draw_header {
    uint32_t n_rows;
    uint32_t bias_at, banned_at, seen_at, masks_at; // bytes from the header
    uint32_t mask_words;                            // of 32 bits, from one mask to the next
} draw_header;

/* A slice after the first kernel: the largest logit before and after mask, bias, bans and
 * penalties. */
typedef struct draw_scan {
    float raw_max, max;
    int32_t raw_id, id;          // lowest id of the largest; -1: all are -inf
    uint32_t raw_broken, broken; // NaN or +inf is among them
} draw_scan;

typedef struct draw_candidate {
    float value;
    int32_t id; // -1: none
} draw_candidate;

/* A slice after the second: mass of the raw distribution, the best draw, the largest raw logits. */
typedef struct draw_part {
    uint64_t sum;
    draw_candidate best;
    draw_candidate top[SAMPLE_TOP_MAX];
} draw_part;

/* The candidates of a row by their distance from the largest, nearest first. */
typedef struct draw_bins {
    uint64_t mass[DRAW_BINS];
    uint32_t count[DRAW_BINS];
} draw_bins;

typedef struct draw_params {
    const unsigned char *plan;
    const float *logits;
    float *changed;
    const int32_t *drawn_before;
    int32_t *drawn;
    sample_result *results;
    draw_scan *scans;   // [rows, n_slices]
    draw_part *parts;   // [rows, n_slices]
    uint32_t *counters; // [rows]
    draw_bins *bins;    // [rows]
    uint32_t n_vocab, stride, n_slices;
} draw_params;

#endif
