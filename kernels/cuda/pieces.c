/* pieces.c - blocks of each file type to pieces.
 *
 * Thread: any. */
#include "cuda/pieces.h"

#include <string.h>

static float half_at(const unsigned char *p) {
    return f16_to_f32((uint16_t)(p[0] | p[1] << 8));
}

static uint32_t u32_at(const unsigned char *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Blocks of 32: the low nibbles of 16 bytes are elements 0..15, the high ones 16..31. */
static void nibbles_32(uint8_t *restrict codes, const unsigned char *restrict q) {
    for (int j = 0; j < 16; j++) {
        codes[j] = q[j] & 15;
        codes[j + 16] = q[j] >> 4;
    }
}

/* codes[j] |= (from[j] >> shift & mask) << up, eight at a time. */
static void gather_bits(uint8_t *codes, const unsigned char *from, int n, uint32_t shift,
                        uint64_t mask, uint32_t up) {
    for (int j = 0; j < n; j += 8) {
        uint64_t code, bits;
        memcpy(&code, codes + j, 8);
        memcpy(&bits, from + j, 8);
        code |= (bits >> shift & mask * 0x0101010101010101u) << up;
        memcpy(codes + j, &code, 8);
    }
}

/* Eight at a time: the byte eight times, one bit kept in each, made 0 or 16 by a carry. */
static void fifth_bits(uint8_t *codes, uint32_t high) {
    for (int j = 0; j < 32; j += 8) {
        uint64_t eight, kept = (high >> j & 255u) * 0x0101010101010101u & 0x8040201008040201u;
        memcpy(&eight, codes + j, 8);
        kept |= (kept & 0x7f7f7f7f7f7f7f7fu) + 0x7f7f7f7f7f7f7f7fu; // bit 7 of each: any
        eight |= kept >> 3 & 0x1010101010101010u;
        memcpy(codes + j, &eight, 8);
    }
}

static void read_q4_0(uint8_t *codes, float *scale, float *min, const unsigned char *block) {
    *scale = half_at(block);
    *min = 0;
    nibbles_32(codes, block + 2);
}

static void read_q4_1(uint8_t *codes, float *scale, float *min, const unsigned char *block) {
    *scale = half_at(block);
    *min = half_at(block + 2);
    nibbles_32(codes, block + 4);
}

static void read_q5_0(uint8_t *codes, float *scale, float *min, const unsigned char *block) {
    *scale = half_at(block);
    *min = 0;
    nibbles_32(codes, block + 6);
    fifth_bits(codes, u32_at(block + 2));
}

static void read_q5_1(uint8_t *codes, float *scale, float *min, const unsigned char *block) {
    *scale = half_at(block);
    *min = half_at(block + 2);
    nibbles_32(codes, block + 8);
    fifth_bits(codes, u32_at(block + 4));
}

static void read_q8_0(uint8_t *codes, float *scale, float *min, const unsigned char *block) {
    uint8_t *restrict out = codes;
    *scale = half_at(block);
    *min = 0;
    const unsigned char *restrict q = block + 2;
    for (int j = 0; j < 32; j++) out[j] = q[j] ^ 0x80u; // signed + 128
}

/* The packing of eight scales and minima of 6 bits in 12 bytes: see dtype.c. */
static void scales_k4(piece *out, const unsigned char *block, uint32_t quarter) {
    float d = half_at(block), dmin = half_at(block + 2);
    const unsigned char *packed = block + 4;
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t group = 2 * quarter + i, scale, min;
        if (group < 4) {
            scale = packed[group] & 63u;
            min = packed[group + 4] & 63u;
        } else {
            scale = (packed[group + 4] & 15u) | (uint32_t)packed[group - 4] >> 6 << 4;
            min = (uint32_t)packed[group + 4] >> 4 | (uint32_t)packed[group] >> 6 << 4;
        }
        out->scales[i] = d * (float)scale;
        out->minima[i] = 0.0f - dmin * (float)min; // no negative zeros
    }
}

/* A quarter's first 32 elements are the low nibbles of its 32 bytes, the others the high ones. */
static void nibbles_64(uint8_t *restrict codes, const unsigned char *restrict q) {
    for (int j = 0; j < 32; j++) {
        codes[j] = q[j] & 15;
        codes[j + 32] = q[j] >> 4;
    }
}

static void read_q4_k(piece *out, const unsigned char *block, uint32_t quarter) {
    scales_k4(out, block, quarter);
    nibbles_64(out->codes, block + 16 + quarter * 32);
}

static void read_q5_k(piece *out, const unsigned char *block, uint32_t quarter) {
    scales_k4(out, block, quarter);
    nibbles_64(out->codes, block + 48 + quarter * 32);
    gather_bits(out->codes, block + 16, 32, 2 * quarter, 1, 4);
    gather_bits(out->codes + 32, block + 16, 32, 2 * quarter + 1, 1, 4);
}

/* Quarters 0 and 1 are the low and high nibbles of the same 64 bytes; so are 2 and 3.  The upper
 * two bits of each half block lie in 32 bytes, stream s of 32 elements at bit 2s. */
static void read_q6_k(piece *out, const unsigned char *block, uint32_t quarter) {
    float d = half_at(block + 208);
    const unsigned char *low = block + quarter / 2 * 64, *high = block + 128 + quarter / 2 * 32;
    const int8_t *scales = (const int8_t *)block + 192 + 4 * quarter;
    uint32_t nibble = quarter % 2 * 4;
    memset(out->codes, 0, sizeof out->codes);
    gather_bits(out->codes, low, 64, nibble, 15, 0);
    gather_bits(out->codes, high, 32, nibble, 3, 4);
    gather_bits(out->codes + 32, high, 32, nibble + 2, 3, 4);
    for (int i = 0; i < 4; i++) {
        out->scales[i] = d * (float)scales[i];
        out->minima[i] = 0;
    }
}

/* ---- codebooks, and types that become a wider format ---- */

/* Nibbles to the values of a codebook, plus the offset of the format. */
static void values_of(uint8_t *codes, const int8_t *book, int offset) {
    for (int j = 0; j < 32; j++) codes[j] = (uint8_t)(book[codes[j]] + offset);
}

static void read_iq4_nl(uint8_t *codes, float *scale, float *min, const unsigned char *block) {
    *scale = half_at(block);
    *min = 0;
    nibbles_32(codes, block + 2);
    values_of(codes, dtype_codebook(DTYPE_IQ4_NL), 128);
}

static void read_mxfp4(uint8_t *codes, float *scale, float *min, const unsigned char *block) {
    *scale = mxfp4_to_f32(block[0], 1); // 2^(scale - 128), NaN of 255
    *min = 0;
    nibbles_32(codes, block + 1);
    values_of(codes, dtype_codebook(DTYPE_MXFP4), 16);
}

/* Scales of six bits less 32: see dtype.c. */
static void read_iq4_xs(piece *out, const unsigned char *block, uint32_t quarter) {
    float d = half_at(block);
    uint32_t high = (uint32_t)block[2] | (uint32_t)block[3] << 8, low = u32_at(block + 4);
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t g = 2 * quarter + i;
        out->scales[i] =
            d * (float)((int)((low >> (4 * g) & 15u) | (high >> (2 * g) & 3u) << 4) - 32);
        out->minima[i] = 0;
        nibbles_32(out->codes + 32 * i, block + 8 + g * 16);
        values_of(out->codes + 32 * i, dtype_codebook(DTYPE_IQ4_XS), 128);
    }
}

/* Two groups of 32 columns, each in one bit and in two bits of 32 bytes. */
static void read_q3_k(piece *out, const unsigned char *block, uint32_t quarter) {
    float d = half_at(block + 108);
    const unsigned char *low = block + 32 + quarter / 2 * 32, *packed = block + 96;
    memset(out->codes, 28, sizeof out->codes); // 32 - 4
    for (uint32_t i = 0; i < 2; i++) {
        uint8_t codes[32] = {0};
        gather_bits(codes, low, 32, quarter % 2 * 4 + 2 * i, 3, 0);
        gather_bits(codes, block, 32, 2 * quarter + i, 1, 2);
        for (int j = 0; j < 32; j++) out->codes[32 * i + (uint32_t)j] += codes[j];
    }
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t g = 4 * quarter + i, nibble = packed[g % 8] >> (g / 8 * 4) & 15u;
        uint32_t upper = packed[8 + g % 4] >> (g / 4 * 2) & 3u;
        out->scales[i] = d * (float)((int)(nibble | upper << 4) - 32);
        out->minima[i] = 0;
    }
}

/* ---- all types ---- */

piece_reader piece_reader_of(dtype type) {
    piece_reader r = {.block_bytes = dtype_about((uint32_t)type).block_bytes};
    switch ((uint32_t)type) {
    case DTYPE_Q4_0:
        r.small = read_q4_0;
        break;
    case DTYPE_Q4_1:
        r.small = read_q4_1;
        break;
    case DTYPE_Q5_0:
        r.small = read_q5_0;
        break;
    case DTYPE_Q5_1:
        r.small = read_q5_1;
        break;
    case DTYPE_Q8_0:
        r.small = read_q8_0;
        break;
    case DTYPE_Q4_K:
        r.large = read_q4_k;
        break;
    case DTYPE_Q5_K:
        r.large = read_q5_k;
        break;
    case DTYPE_Q6_K:
        r.large = read_q6_k;
        break;
    case DTYPE_Q3_K:
        r.large = read_q3_k;
        break;
    case DTYPE_IQ4_NL:
        r.small = read_iq4_nl;
        break;
    case DTYPE_IQ4_XS:
        r.large = read_iq4_xs;
        break;
    case DTYPE_MXFP4:
        r.small = read_mxfp4;
        break;
    default:
        INFERD_CHECK(!"a quantised type has a case above");
    }
    return r;
}

void piece_read(piece *out, const piece_reader *r, const unsigned char *row, uint32_t j,
                uint32_t cols, uint8_t zero_code) {
    if (r->large != NULL) {
        r->large(out, row + (size_t)(j / 4) * r->block_bytes, j % 4);
        return;
    }
    const unsigned char *block = row + (size_t)j * 2 * r->block_bytes;
    r->small(out->codes, &out->scales[0], &out->minima[0], block);
    if (j * TILE_COLS + 32 < cols) {
        r->small(out->codes + 32, &out->scales[1], &out->minima[1], block + r->block_bytes);
    } else {
        memset(out->codes + 32, zero_code, 32);
        out->scales[1] = out->minima[1] = 0;
    }
}
