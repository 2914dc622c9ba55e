/* qtile.h - what the products of qmatmul.c and their tiles (qtile.c) share.
 *
 * Thread: any. */
#ifndef INFERD_CPU_QTILE_H
#define INFERD_CPU_QTILE_H

#include "cpu/qact.h"
#include "cpu/simd/group.h"
#include "cpu/simd/simd.h"

/* Vectors of lanes in a tile: four of avx512 are a whole panel, which is read in one stream. */
INLINE int vecs_of(dtype type, int n_rows) {
#if defined(CPU_LEVEL_AVX512) // 32 registers
    return n_rows <= 6 || (type == DTYPE_BF16 && n_rows == 7) ? 4 : 2;
#else
    (void)type;
    return n_rows == 1 ? 4 : n_rows <= 4 ? 2 : 1;
#endif
}

/* Does a tile read all of a panel, as a stream?  Where a range begins or ends inside a panel, half
 * a tile reads its part. */
INLINE bool is_whole(int n_vecs) {
    return n_vecs * VW == PANEL_ROWS;
}
INLINE bool streams(dtype type, int n_rows) {
    return is_whole(vecs_of(type, n_rows));
}

/* A tile of rows, as qact.h lays it out. */
typedef struct x_tile {
    const uint32_t *q;    // [cols / 8][4][n_rows]
    const int32_t *sum;   // [cols / 32][n_rows]
    const int32_t *sum16; // [cols / 16][n_rows]
} x_tile;

/* A panel, and the data that is prefetched while it is read. */
typedef struct source {
    const unsigned char *panel;
    const unsigned char *end; // of the weights of the range; NULL: fetch nothing
    size_t ahead;             // bytes
    uint32_t cols;
} source;

/* sums[n_rows][64] of n_lanes lanes, half a panel or a whole one. */
typedef void tile_fn(const source *w, uint32_t lane, uint32_t n_lanes, const x_tile *x,
                     float *sums);

/* For each type that has them, by the number of rows less one.  Level avx512bf16 has tiles of BF16
 * only: its instructions change nothing in the tiles of integers of avx512vnni, which it uses. */
typedef tile_fn *const qtile_table[DTYPE_LIMIT][QACT_ROWS];
extern qtile_table qtiles_base, qtiles_avx2, qtiles_avxvnni, qtiles_avx512, qtiles_avx512vnni,
    qtiles_avx512bf16;

/* ---- weights as pairs of 16 bits ---- */

INLINE bool has_base(dtype type) {
    return type == DTYPE_Q4_1 || type == DTYPE_Q5_1 || type == DTYPE_Q4_K || type == DTYPE_Q5_K ||
           type == DTYPE_Q2_K;
}

/* The offset that is subtracted from the nibbles (and the bits above them) of a type. */
INLINE int16_t offset_of(dtype type) {
    return type == DTYPE_Q4_0   ? 8
           : type == DTYPE_Q5_0 ? 16
           : type == DTYPE_Q6_K ? 32
           : type == DTYPE_Q3_K ? 4
                                : 0;
}

/* Words of 32 bits that hold 8 columns of a row. */
INLINE uint32_t words_of(dtype type) {
    return type == DTYPE_BF16 ? 4 : type == DTYPE_Q8_0 ? 2 : 1;
}

/* One vector of lanes of a word of 8 columns. */
typedef struct word {
    vi low[2]; // nibbles; of Q8_0 its two words of bytes; of codebooks the values of columns 0 2 4
               // 6 and 1 3 5 7, a byte each
    vi high;   // this word's upper bits, lowest in both halves
} word;

/* The word at `at`; `high` begins as the group's and moves on to the next word's. */
INLINE word word_at(dtype type, const unsigned char *at, vi *high, uint32_t lane) {
    word w = {.low = {vi_load(at + (size_t)lane * 4)}, .high = *high};
    if (type == DTYPE_Q8_0) w.low[1] = vi_load(at + ((size_t)PANEL_ROWS + lane) * 4);
    if (dtype_codebook(type) != NULL) {
        w.low[1] = vi_book((vi)((vu)w.low[0] >> 4), dtype_codebook(type));
        w.low[0] = vi_book(w.low[0], dtype_codebook(type));
    }
    *high = (vi)((vu)*high >> (type == DTYPE_Q6_K ? 8 : 4));
    return w;
}

#endif
