/* layout.h - the data layouts in device memory that host code writes and kernels read.
 *
 * C and CUDA C++ include this.
 *
 * Activations.  act [rows, dim]: rows lie `stride` elements apart, stride a multiple of 8, so each
 * row is 16-byte aligned.  Kinds: the residual stream and logits are float; everything between has
 * the backend's 16-bit type (bf16 or f16).
 *
 * Weights, 16-bit and float.  Row-major, rows `stride` elements apart (cols rounded up to 8; the
 * rest zeros), n_rows rounded up to 16 (the rest zeros).
 *
 * Weights, quantised.  Tiles of 16 rows x 64 columns in the order of mma fragments (gpu.cuh), so
 * that one 16-byte load per lane fills four A fragments and 32 lanes read 512 bytes in a row:
 *
 *     tile (i, j) = rows 16i..16i+15, columns 64j..64j+63; tiles of a row of tiles are neighbours
 *     lane 4g + t holds rows g and g + 8; step s (0..3) is columns 16s..16s+15:
 *         e0 e1 = (g,   16s + 2t), + 1       e2 e3 = (g + 8, 16s + 2t), + 1
 *         e4 e5 = (g,   16s + 2t + 8), + 1   e6 e7 = (g + 8, 16s + 2t + 8), + 1
 *     i.e. a[0] = (e0, e1), a[1] = (e2, e3), a[2] = (e4, e5), a[3] = (e6, e7) of fragment s
 *
 *     low plane   4 bits of each code; word s of the lane's 16 bytes holds e0..e7 of step s in
 *                 nibbles ordered 0,2,4,6,1,3,5,7 from the lowest: (word >> 4m) & 0x000f000f is the
 *                 pair (e_2m, e_2m+1), one fragment register
 *                 (8-bit types: two such planes, low nibbles then high nibbles, neighbours per
 *                 tile: a lane has 16 bytes low, and 512 bytes further 16 bytes high)
 *     high plane  the bits above the fourth, so placed that one shift brings both of a pair under a
 *                 mask
 *                 5-bit types: one word per lane and tile (128 bytes per tile); pair (e_2m, e_2m+1)
 *                 of step s has its fifth bits at 4s + m and 4s + m + 16
 *                 6-bit types: two words per lane and tile (256 bytes per tile); word s / 2 has the
 *                 pair's two bits each at 8 (s % 2) + 2m and 8 (s % 2) + 2m + 16
 *     scales      f16 per row and group of `group` columns (32; Q6_K: 16), with minima interleaved
 *                 for types that have them; per tile and g: row g, then row g + 8, groups of each
 *                 in order, so that a lane reads its two rows' with one load of 8 or 16 bytes:
 *                 [tile][g 0..7][row 0..1][64 / group]{scale[, min]}
 *
 * Codes are unsigned: value = scale * (code - offset) for types without minima (offsets: Q4_0 8,
 * Q5_0 16, Q6_K 32, Q8_0 128), value = scale * code + min for the others, one float rounding each.
 * Columns are padded to 64 with code = offset (0 with minima), scale 0 and min 0; rows to 16
 * likewise.
 * Q4_K and Q5_K: scale = d * sc and min = -dmin * m, rounded to f16.  Q6_K, Q3_K, IQ4_XS: scale =
 * d * sc.  Types with fewer bits than their format: pieces.h.
 *
 * Planes start at multiples of 256 bytes: low, high, scales.
 *
 * KV.  Inside a slot: [layer of the group][K, V][kv head][token of the block][head_dim], 16-bit.
 *
 * Step.  One block of words, uploaded at the start of a step (step_view). */
#ifndef INFERD_CUDA_LAYOUT_H
#define INFERD_CUDA_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum cu_type { CU_F32, CU_BF16, CU_F16 } cu_type;

/* Quantised formats of the kernels; several formats of files may share one. */
typedef enum cu_format {
    CU_FMT_F32,
    CU_FMT_BF16,
    CU_FMT_F16, // also Q2_K
    CU_FMT_Q4,  // 4-bit codes, group 32, offset 8         Q4_0
    CU_FMT_Q4M, // 4-bit codes, group 32, minima           Q4_1, Q4_K
    CU_FMT_Q5,  // 5-bit, group 32, offset 16              Q5_0, MXFP4
    CU_FMT_Q5M, // 5-bit, group 32, minima                 Q5_1, Q5_K
    CU_FMT_Q6,  // 6-bit, group 16, offset 32              Q6_K, Q3_K
    CU_FMT_Q8,  // 8-bit, group 32, offset 128             Q8_0, IQ4_NL, IQ4_XS
    CU_FORMATS
} cu_format;

enum { TILE_ROWS = 16, TILE_COLS = 64, PLANE_ALIGN = 256, ROW_ALIGN = 8 };

/* A weight matrix, for kernels. */
typedef struct cu_matrix {
    const void *data;       // dense formats: row-major
    const void *low, *high; // quantised formats: planes; high NULL when there is none
    const void *scales;
    uint32_t rows, cols;               // true ones
    uint32_t stride;                   // dense: elements from one row to the next
    uint32_t n_row_tiles, n_col_tiles; // quantised
    uint32_t format;                   // cu_format
} cu_matrix;

/* Everything a step's kernels read about the batch.  All arrays lie in one device block with fixed
 * addresses; rows beyond n_rows (up to the graph's bucket) hold token 0, position 0
 * and row_seq 0, and kernels that store or read keys and values leave them out. */
typedef struct step_header {
    uint32_t n_rows, n_seqs, n_logits, n_decode, n_tiles;
    uint32_t pad[3];
} step_header;

typedef struct step_seq {
    uint32_t row_begin, n_rows;
    uint32_t pos_begin; // position of its first row
    uint32_t n_blocks;
    uint32_t table_begin; // of its block table in `tables`: [n_blocks, n_groups] slots
    uint32_t pad[3];
} step_seq;

/* A piece of prefill: rows [row_begin, row_begin + n_rows) of sequence seq, n_rows <= the tile size
 * that attention.c planned with. */
typedef struct step_tile {
    uint32_t seq, row_begin, n_rows, pad;
} step_tile;

typedef struct step_view { // device pointers into the block
    const step_header *header;
    const int32_t *tokens;       // [n_rows]; -1: a pending token
    const uint32_t *pending;     // [n_rows] index among the draws of the step before
    const uint32_t *positions;   // [n_rows]
    const uint32_t *row_seq;     // [n_rows]
    const step_seq *seqs;        // [n_seqs]
    const uint32_t *logit_rows;  // [n_logits]
    const uint32_t *decode_rows; // [n_decode] rows of sequences with one row in this step
    const step_tile *tiles;      // [n_tiles] of the sequences with more rows
    const int32_t *tables;       // block tables, one after the other
    const int32_t *drawn;        // [draws of the step before] ids, written by the draw kernel
} step_view;

/* The addresses of keys and values: slot s of the arena begins at
 * arena + s / slots_per_page * page_bytes + s % slots_per_page * slot_bytes. */
typedef struct kv_view {
    unsigned char *arena;
    uint64_t page_bytes;
    uint32_t slots_per_page, slot_bytes;
    uint32_t layer_bytes; // K and V of one layer in a slot; V begins at half
    uint32_t group_layers, n_groups;
    uint32_t block_tokens, n_kv_heads, head_dim;
    uint32_t type;         // CU_BF16 or CU_F16
    uint32_t pad;          // views are compared as bytes
    uint32_t *n_saturated; // host memory: elements that were stored as the largest of f16, ever;
                           // NULL: not counted
} kv_view;

#endif
