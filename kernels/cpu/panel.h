/* panel.h - the layout of weights in the CPU backend: panels of 64 output rows, column by column.
 *
 * A vector lane is an output row: 64 rows take their k-th weights from neighbouring bytes, one
 * activation is broadcast to all of them, and no product is ever summed across lanes.  Panels
 * follow each other, and inside a panel bytes are in the order they are used, so a thread reads one
 * forward stream.  Rows past the last are zeros.
 *
 *     type          repeated           what, for all 64 rows before the next
 *     Q4_0          per 32 columns     d f16, nibbles
 *     Q4_1          per 32             d f16, m f16, nibbles
 *     Q5_0          per 32             d f16, fifth bits u32, nibbles
 *     Q5_1          per 32             d f16, m f16, fifth bits u32, nibbles
 *     Q8_0          per 32             d f16, bytes
 *     Q4_K          per 256            d f16, dmin f16, then 8 times: scale u8, min u8, nibbles
 *     Q5_K          per 256            the same with fifth bits u32 before the nibbles
 *     Q6_K          per 256            d f16, then 16 times: upper two bits u32, nibbles, scale i8
 *     Q2_K          per 256            d f16, dmin f16, then 8 times: scale and min of 16 columns
 * u8, of the next 16 u8, codes of two bits Q3_K          per 256            d f16, then 8 times:
 * scale i8 of 16 columns, of the next 16, codes of three bits IQ4_NL        per 32             d
 * f16, nibbles IQ4_XS        per 256            d f16, then 8 times: scale i8, nibbles MXFP4 per 32
 * scale u8, nibbles BF16          per 8              pairs F16 F32       per column         the
 * value
 *
 * Columns come in words of 8, and a word in pairs: pair p is the columns p and p + 4, placed so
 * that one shift and one mask turn them into the two 16-bit halves that the pairwise
 * multiplications of all instruction sets take:
 *
 *     nibbles       u32 [word][64]       column j at bit 4j: pair p is (n >> 4p) & 0x000f000f
 *     fifth bits    u32 [64]             column j of word w at bit 4w + (j & 3) + 16 (j >> 2)
 *     upper bits    u32 [64]             the same, two bits wide: 8w + 2 (j & 3) + 16 (j >> 2)
 *     two bits      u32 [2][64]          column j of word w in w / 2, from bit
 *                                        8 (w % 2) + 2 (j & 3) + 16 (j >> 2) on
 *     three bits    u32 [3][64]          column j of word w < 3 from bit 3 (j & 3) + 16 (j >> 2)
 * on; of word 3 the lowest four bits of both halves are the top bits of the halves of word 0, the
 * next those of 1, of 2 bytes         u32 [word][2][64]    columns 0 1 4 5, then 2 3 6 7, the first
 * lowest: pairs are the even and the odd bytes pairs         u32 [word][4][64]    column p low,
 * column p + 4 high
 *
 * That is as many bytes as in the file, except the zeros, and 1/8 bit per weight more for Q4_K,
 * Q5_K and Q3_K, 1/16 for IQ4_XS, because the file packs their scales tighter.
 *
 * A weight is scale * q + base in floats; q is the value of a code (dtype_codebook), or the code
 * less an offset.  scale has at most 18 significant bits and q at most 8 (6 where scale has more
 * than 17), so the product is exact and the sum rounds once: fused or not, the value has the bits
 * that dtype_to_f32 gives.  One exception: products take a block of MXFP4 with the scale 0 or 1 for
 * zeros.  Its weights are at most 12 * 2^-127, and its scale would be a denormal float.
 *
 * Thread: any. */
#ifndef INFERD_CPU_PANEL_H
#define INFERD_CPU_PANEL_H

#include "kernels/backend.h"

enum {
    PANEL_ROWS = 64,   // = BE_PREPARE_ROWS
    PANEL_WORD = 8,    // columns of a nibble word; every panel has a multiple of it
    PANEL_BLOCK = 256, // columns of the largest block that a type has
    PANEL_ALIGN = 64   // panels that begin at multiples of it are packed fastest
};

bool panel_supported(dtype type);
/* Columns of a group: 32, or 16 for Q6_K; PANEL_WORD for types without scales. */
uint32_t panel_group_cols(dtype type);
/* Scales of a group: of Q2_K and Q3_K each half of a group has its own. */
static inline uint32_t panel_group_scales(dtype type) {
    return type == DTYPE_Q2_K || type == DTYPE_Q3_K ? 2 : 1;
}
/* Bytes of one panel of `cols` columns. */
size_t panel_bytes(dtype type, uint32_t cols);

/* Pack one panel from n_rows rows (1..64) of the file.  False: one of its values, scales or minima
 * is not a finite number; the panel is packed all the same. */
typedef bool panel_pack_fn(dtype type, uint32_t cols, const unsigned char *rows, uint32_t n_rows,
                           unsigned char *panel);
panel_pack_fn panel_pack;                         // plain loops: the definition
panel_pack_fn panel_pack_avx2, panel_pack_avx512; // simd/pack.c: the same bytes, faster (level.h)
/* The answer of panel_pack for a panel that is packed. */
bool panel_is_finite(dtype type, uint32_t cols, const unsigned char *panel);
/* Unpack columns [begin, end) of one row: bit-equal to dtype_to_f32 of the file's row.
 * begin is a multiple of PANEL_BLOCK, and so is end, unless it is the last column. */
void panel_row_to_f32(const weight *w, uint32_t row, uint32_t begin, uint32_t end, float *out);

/* Where column k of BF16 lies, in halves of 16 bits. */
static inline size_t panel_half_at(size_t k, uint32_t lane) {
    size_t pair = k / PANEL_WORD * 4 + k % 4;
    return (pair * PANEL_ROWS + lane) * 2 + k % PANEL_WORD / 4;
}

/* The parts of group `g` of a panel; parts that a type lacks are NULL.  Constant folding reduces
 * this to the additions that a type needs. */
typedef struct panel_group {
    const uint16_t *d;       // [64] f16
    const uint16_t *m;       // [64] f16: min, or dmin of the K types
    const uint8_t *scale_u8; // [64] Q4_K, Q5_K
    const uint8_t *min_u8;   // [64]
    const int8_t *scale_i8;  // [64] Q6_K, IQ4_XS; [2][64] Q3_K
    const uint8_t *both_u4;  // [2][64] Q2_K: scales in the low nibbles, mins in the high ones
    const uint8_t *exponent; // [64] MXFP4: the scale is 2^(exponent - 128)
    const uint32_t *high;    // [64] fifth bits, or upper two bits
    const unsigned char *q;  // codes, bytes or values
} panel_group;

/* Hides the value of p from the compiler: parts are then addressed from one register and a constant
 * each, instead of a register for every part.  It still knows that p is not NULL. */
#define PANEL_HIDE(p)                                                                              \
    do {                                                                                           \
        __asm__("" : "+r"(p));                                                                     \
        if ((p) == NULL) __builtin_unreachable();                                                  \
    } while (0)

static inline __attribute__((always_inline)) panel_group
panel_group_at(dtype type, const unsigned char *panel, uint32_t g) {
    enum { N = PANEL_ROWS };
    panel_group p = {0};
    const unsigned char *at = panel;
    switch ((int)type) {
    case DTYPE_Q4_0:
    case DTYPE_IQ4_NL:
        at += (size_t)g * (2 * N + 16 * N);
        PANEL_HIDE(at);
        p.d = (const uint16_t *)(const void *)at;
        p.q = at + 2 * N;
        break;
    case DTYPE_Q4_1:
        at += (size_t)g * (4 * N + 16 * N);
        PANEL_HIDE(at);
        p.d = (const uint16_t *)(const void *)at;
        p.m = (const uint16_t *)(const void *)(at + 2 * N);
        p.q = at + 4 * N;
        break;
    case DTYPE_Q5_0:
        at += (size_t)g * (6 * N + 16 * N);
        PANEL_HIDE(at);
        p.d = (const uint16_t *)(const void *)at;
        p.high = (const uint32_t *)(const void *)(at + 2 * N);
        p.q = at + 6 * N;
        break;
    case DTYPE_Q5_1:
        at += (size_t)g * (8 * N + 16 * N);
        PANEL_HIDE(at);
        p.d = (const uint16_t *)(const void *)at;
        p.m = (const uint16_t *)(const void *)(at + 2 * N);
        p.high = (const uint32_t *)(const void *)(at + 4 * N);
        p.q = at + 8 * N;
        break;
    case DTYPE_Q8_0:
        at += (size_t)g * (2 * N + 32 * N);
        PANEL_HIDE(at);
        p.d = (const uint16_t *)(const void *)at;
        p.q = at + 2 * N;
        break;
    case DTYPE_Q4_K:
        at += (size_t)(g / 8) * (4 * N + 8 * 18 * N);
        PANEL_HIDE(at);
        p.d = (const uint16_t *)(const void *)at;
        p.m = (const uint16_t *)(const void *)(at + 2 * N);
        at += 4 * N + (size_t)(g % 8) * 18 * N;
        PANEL_HIDE(at);
        p.scale_u8 = at;
        p.min_u8 = at + N;
        p.q = at + 2 * N;
        break;
    case DTYPE_Q5_K:
        at += (size_t)(g / 8) * (4 * N + 8 * 22 * N);
        PANEL_HIDE(at);
        p.d = (const uint16_t *)(const void *)at;
        p.m = (const uint16_t *)(const void *)(at + 2 * N);
        at += 4 * N + (size_t)(g % 8) * 22 * N;
        PANEL_HIDE(at);
        p.scale_u8 = at;
        p.min_u8 = at + N;
        p.high = (const uint32_t *)(const void *)(at + 2 * N);
        p.q = at + 6 * N;
        break;
    case DTYPE_Q6_K:
        at += (size_t)(g / 16) * (2 * N + 16 * 13 * N);
        PANEL_HIDE(at);
        p.d = (const uint16_t *)(const void *)at;
        at += 2 * N + (size_t)(g % 16) * 13 * N;
        PANEL_HIDE(at);
        /* The byte scales go last so that the words before them stay aligned. */
        p.high = (const uint32_t *)(const void *)at;
        p.q = at + 4 * N;
        p.scale_i8 = (const int8_t *)at + 12 * N;
        break;
    case DTYPE_Q2_K:
        at += (size_t)(g / 8) * (4 * N + 8 * 10 * N);
        PANEL_HIDE(at);
        p.d = (const uint16_t *)(const void *)at;
        p.m = (const uint16_t *)(const void *)(at + 2 * N);
        at += 4 * N + (size_t)(g % 8) * 10 * N;
        PANEL_HIDE(at);
        p.both_u4 = at;
        p.q = at + 2 * N;
        break;
    case DTYPE_Q3_K:
        at += (size_t)(g / 8) * (2 * N + 8 * 14 * N);
        PANEL_HIDE(at);
        p.d = (const uint16_t *)(const void *)at;
        at += 2 * N + (size_t)(g % 8) * 14 * N;
        PANEL_HIDE(at);
        p.scale_i8 = (const int8_t *)at;
        p.q = at + 2 * N;
        break;
    case DTYPE_IQ4_XS:
        at += (size_t)(g / 8) * (2 * N + 8 * 17 * N);
        PANEL_HIDE(at);
        p.d = (const uint16_t *)(const void *)at;
        at += 2 * N + (size_t)(g % 8) * 17 * N;
        PANEL_HIDE(at);
        p.scale_i8 = (const int8_t *)at;
        p.q = at + N;
        break;
    case DTYPE_MXFP4:
        at += (size_t)g * (N + 16 * N);
        PANEL_HIDE(at);
        p.exponent = at;
        p.q = at + N;
        break;
    case DTYPE_F16:
    case DTYPE_BF16:
        p.q = at + (size_t)g * 2 * PANEL_WORD * N;
        PANEL_HIDE(p.q);
        break;
    default:
        p.q = at + (size_t)g * 4 * PANEL_WORD * N;
        PANEL_HIDE(p.q);
        break;
    }
    return p;
}

#endif
