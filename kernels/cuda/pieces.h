/* pieces.h - 64 columns of a row of a file as codes and scales: what formats.c makes tiles of.
 *
 * Codes are those of the format that format_of gives for the file type.  Where the format is wider
 * than the type, codes become others with the same value: Q3_K is Q6 with its codes plus 28; codes
 * of IQ4_NL and IQ4_XS become the values of the codebook, as Q8; those of MXFP4 its doubled values,
 * as Q5, and its scale a half.
 *
 * Thread: any. */
#ifndef INFERD_CUDA_PIECES_H
#define INFERD_CUDA_PIECES_H

#include "cuda/layout.h"
#include "kernels/dtype.h"

enum { PIECE_GROUPS_MAX = 4 }; // groups of a tile's 64 columns: 2, or 4 of Q6

typedef struct piece { // 64 columns of a row
    uint8_t codes[TILE_COLS];
    float scales[PIECE_GROUPS_MAX], minima[PIECE_GROUPS_MAX]; // before they are rounded to halves
} piece;

/* One block of 32 into the half of a piece; one quarter of a block of 256 into a piece. */
typedef void read_32(uint8_t *codes, float *scale, float *min, const unsigned char *block);
typedef void read_64(piece *out, const unsigned char *block, uint32_t quarter);

/* The functions that read a file type: one of them. */
typedef struct piece_reader {
    read_32 *small;
    read_64 *large;
    uint32_t block_bytes;
} piece_reader;

piece_reader piece_reader_of(dtype type);
/* 64 columns of column tile j; with half a tile left, the second half is padding. */
void piece_read(piece *out, const piece_reader *r, const unsigned char *row, uint32_t j,
                uint32_t cols, uint8_t zero_code);

#endif
