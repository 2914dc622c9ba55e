/* dtype.c - converting blocks of each weight type to floats.
 *
 * A row of weights is cut into blocks; a block is a scale or two and a few bits per element.  The
 * formulas, with d and m halves stored in the block:
 *
 *     Q4_0, Q5_0, Q8_0         x = d * (q - offset)
 *     Q4_1, Q5_1               x = d * q + m
 *     Q4_K, Q5_K               x = (d * scale) * q - (dmin * min)   scale, min: 6 bits per 32
 *     Q6_K                     x = (d * scale) * (q - 32)           scale: i8 per 16
 *     Q2_K                     x = (d * scale) * q - (dmin * min)   scale, min: 4 bits per 16
 *     Q3_K                     x = (d * scale) * (q - 4)            scale: 6 bits less 32, per 16
 *     IQ4_NL                   x = d * book[q]                      16 values of a codebook
 *     IQ4_XS                   x = (d * scale) * book[q]            scale: 6 bits less 32, per 32
 *     MXFP4                    x = book[q] * 2^(scale - 128)        scale: u8 per 32
 *
 * Every product and sum is rounded to float where it is written here (the build forbids fused
 * contraction), so the result has the same bits everywhere and equals the `gguf` package's.
 * Multi-byte fields are little-endian and not aligned; they are read byte by byte.
 *
 * Thread: any. */
#include "kernels/dtype.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the types ---- */

/* Types with block_bytes 0 were removed from the format; Q8_1 and Q8_K are formats of activations
 * during a product and do not occur in files. */
static const dtype_info known[DTYPE_LIMIT] = {
    [0] = {"F32", 1, 4, true},           [1] = {"F16", 1, 2, true},
    [2] = {"Q4_0", 32, 18, true},        [3] = {"Q4_1", 32, 20, true},
    [4] = {"Q4_2", 32, 0, false},        [5] = {"Q4_3", 32, 0, false},
    [6] = {"Q5_0", 32, 22, true},        [7] = {"Q5_1", 32, 24, true},
    [8] = {"Q8_0", 32, 34, true},        [9] = {"Q8_1", 32, 36, false},
    [10] = {"Q2_K", 256, 84, true},      [11] = {"Q3_K", 256, 110, true},
    [12] = {"Q4_K", 256, 144, true},     [13] = {"Q5_K", 256, 176, true},
    [14] = {"Q6_K", 256, 210, true},     [15] = {"Q8_K", 256, 292, false},
    [16] = {"IQ2_XXS", 256, 66, false},  [17] = {"IQ2_XS", 256, 74, false},
    [18] = {"IQ3_XXS", 256, 98, false},  [19] = {"IQ1_S", 256, 50, false},
    [20] = {"IQ4_NL", 32, 18, true},     [21] = {"IQ3_S", 256, 110, false},
    [22] = {"IQ2_S", 256, 82, false},    [23] = {"IQ4_XS", 256, 136, true},
    [24] = {"I8", 1, 1, false},          [25] = {"I16", 1, 2, false},
    [26] = {"I32", 1, 4, false},         [27] = {"I64", 1, 8, false},
    [28] = {"F64", 1, 8, false},         [29] = {"IQ1_M", 256, 56, false},
    [30] = {"BF16", 1, 2, true},         [31] = {"Q4_0_4_4", 32, 0, false},
    [32] = {"Q4_0_4_8", 32, 0, false},   [33] = {"Q4_0_8_8", 32, 0, false},
    [34] = {"TQ1_0", 256, 54, false},    [35] = {"TQ2_0", 256, 66, false},
    [36] = {"IQ4_NL_4_4", 32, 0, false}, [37] = {"IQ4_NL_4_8", 32, 0, false},
    [38] = {"IQ4_NL_8_8", 32, 0, false}, [39] = {"MXFP4", 32, 17, true},
    [40] = {"NVFP4", 64, 36, false},     [41] = {"Q1_0", 128, 18, false},
    [42] = {"Q2_0", 64, 18, false},
};

dtype_info dtype_about(uint32_t id) {
    return id < DTYPE_LIMIT ? known[id] : (dtype_info){0};
}

const char *dtype_list_supported(char out[DTYPE_LIST_BYTES]) {
    size_t at = 0;
    out[0] = 0;
    for (uint32_t id = 0; id < DTYPE_LIMIT && at < DTYPE_LIST_BYTES; id++)
        if (known[id].supported)
            at += (size_t)snprintf(out + at, DTYPE_LIST_BYTES - at, "%s%s", at > 0 ? ", " : "",
                                   known[id].name);
    return out;
}

/* ---- halves ---- */

static uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float float_of(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

float f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = (h >> 10) & 31u, mantissa = h & 0x3ffu;
    if (exponent == 0) return float_of(sign | bits_of((float)mantissa * 0x1p-24f));
    if (exponent < 31) return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
    uint32_t quiet = mantissa != 0 ? 0x400000u : 0; // as in the processor's conversion
    return float_of(sign | 0x7f800000u | quiet | mantissa << 13);
}

uint16_t f32_to_f16(float f) {
    uint32_t u = bits_of(f);
    uint32_t sign = u >> 16 & 0x8000u, magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u) // NaN stays NaN: the quiet bit distinguishes it from infinity
        return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); // 65520 and more round up
    if (magnitude < 0x38800000u) {
        /* Below 2^-14 halves have a step of 2^-24, like floats in [0.5, 1): adding 0.5 rounds, and
         * the number of steps is the difference to the bits of 0.5. */
        return (uint16_t)(sign | (bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f)));
    }
    magnitude += 0xfffu + (magnitude >> 13 & 1u); // half of the last kept bit, less one when even
    return (uint16_t)(sign | (magnitude - 0x38000000u) >> 13);
}

uint16_t f32_to_bf16(float f) {
    uint32_t u = bits_of(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

/* ---- blocks ---- */

static uint16_t load_u16(const unsigned char *p) {
    return (uint16_t)(p[0] | p[1] << 8);
}

static uint32_t load_u32(const unsigned char *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static float load_f16(const unsigned char *p) {
    return f16_to_f32(load_u16(p));
}

/* All blocks of 32 split in halves: byte j holds element j low and element j + 16 high. */

static void q4_0(const unsigned char *block, float *out) {
    float d = load_f16(block);
    const unsigned char *q = block + 2;
    for (int j = 0; j < 16; j++) {
        out[j] = d * (float)((q[j] & 15) - 8);
        out[j + 16] = d * (float)((q[j] >> 4) - 8);
    }
}

static void q4_1(const unsigned char *block, float *out) {
    float d = load_f16(block), m = load_f16(block + 2);
    const unsigned char *q = block + 4;
    for (int j = 0; j < 16; j++) {
        out[j] = d * (float)(q[j] & 15) + m;
        out[j + 16] = d * (float)(q[j] >> 4) + m;
    }
}

/* The fifth bit of element j is bit j of a word of its own. */
static int fifth(uint32_t high, int j) {
    return (int)(high >> j & 1u) << 4;
}

static void q5_0(const unsigned char *block, float *out) {
    float d = load_f16(block);
    uint32_t high = load_u32(block + 2);
    const unsigned char *q = block + 6;
    for (int j = 0; j < 16; j++) {
        out[j] = d * (float)((q[j] & 15) + fifth(high, j) - 16);
        out[j + 16] = d * (float)((q[j] >> 4) + fifth(high, j + 16) - 16);
    }
}

static void q5_1(const unsigned char *block, float *out) {
    float d = load_f16(block), m = load_f16(block + 2);
    uint32_t high = load_u32(block + 4);
    const unsigned char *q = block + 8;
    for (int j = 0; j < 16; j++) {
        out[j] = d * (float)((q[j] & 15) + fifth(high, j)) + m;
        out[j + 16] = d * (float)((q[j] >> 4) + fifth(high, j + 16)) + m;
    }
}

static void q8_0(const unsigned char *block, float *out) {
    float d = load_f16(block);
    const int8_t *q = (const int8_t *)block + 2;
    for (int j = 0; j < 32; j++) out[j] = (float)q[j] * d;
}

/* Blocks of 256 have eight groups of 32, each with a 6-bit scale and a 6-bit min, packed in 12
 * bytes: groups 0..3 in the low six bits of bytes 0..3 (scales) and 4..7 (mins); groups 4..7 have
 * their low nibbles in bytes 8..11 and their upper two bits on top of bytes 0..7. */
static void scale_and_min(const unsigned char *packed, int group, int *scale, int *min) {
    if (group < 4) {
        *scale = packed[group] & 63;
        *min = packed[group + 4] & 63;
    } else {
        *scale = (packed[group + 4] & 15) | packed[group - 4] >> 6 << 4;
        *min = packed[group + 4] >> 4 | packed[group] >> 6 << 4;
    }
}

/* d[2] dmin[2] scales[12] q[128]: groups 2k and 2k + 1 are the low and high nibbles of
 * q[32k, 32k + 32). */
static void q4_k(const unsigned char *block, float *out) {
    float d = load_f16(block), dmin = load_f16(block + 2);
    for (int group = 0; group < 8; group++) {
        int scale, min;
        scale_and_min(block + 4, group, &scale, &min);
        float step = d * (float)scale, base = dmin * (float)min;
        const unsigned char *q = block + 16 + group / 2 * 32;
        int shift = group % 2 * 4;
        for (int j = 0; j < 32; j++)
            out[group * 32 + j] = step * (float)(q[j] >> shift & 15) - base;
    }
}

/* d[2] dmin[2] scales[12] high[32] q[128]: as Q4_K, and bit `group` of high[j] adds 16. */
static void q5_k(const unsigned char *block, float *out) {
    float d = load_f16(block), dmin = load_f16(block + 2);
    const unsigned char *high = block + 16;
    for (int group = 0; group < 8; group++) {
        int scale, min;
        scale_and_min(block + 4, group, &scale, &min);
        float step = d * (float)scale, base = dmin * (float)min;
        const unsigned char *q = block + 48 + group / 2 * 32;
        int shift = group % 2 * 4;
        for (int j = 0; j < 32; j++) {
            int value = (q[j] >> shift & 15) | (high[j] >> group & 1) << 4;
            out[group * 32 + j] = step * (float)value - base;
        }
    }
}

/* low[128] high[64] scales[16] d[2].  Each half of 128 elements is four streams of 32: streams 0
 * and 1 are the low nibbles of its 64 low bytes, 2 and 3 the high ones; the upper two bits of
 * stream s are bits 2s of its 32 high bytes.  One scale for 16 elements. */
static void q6_k(const unsigned char *block, float *out) {
    float d = load_f16(block + 208);
    const int8_t *scales = (const int8_t *)block + 192;
    for (int i = 0; i < 256; i++) {
        int half = i / 128, stream = i / 32 % 4, j = i % 32;
        int low = block[half * 64 + stream % 2 * 32 + j] >> (stream / 2 * 4) & 15;
        int high = block[128 + half * 32 + j] >> (stream * 2) & 3;
        out[i] = d * (float)scales[i / 16] * (float)((low | high << 4) - 32);
    }
}

/* scales[16] q[64] d[2] dmin[2]: each half of 128 elements is four streams of 32, stream s in bits
 * 2s of its 32 bytes.  One scale (low nibble) and one min (high nibble) for 16 elements. */
static void q2_k(const unsigned char *block, float *out) {
    float d = load_f16(block + 80), dmin = load_f16(block + 82);
    for (int i = 0; i < 256; i++) {
        int half = i / 128, stream = i / 32 % 4, scales = block[i / 16];
        int q = block[16 + half * 32 + i % 32] >> (stream * 2) & 3;
        out[i] = d * (float)(scales & 15) * (float)q - dmin * (float)(scales >> 4);
    }
}

/* high[32] q[64] scales[12] d[2]: the lower two bits of q as in Q2_K; bit `group` of high[j], of
 * eight groups of 32, is the third.  Scale g of 16 has its low nibble in byte g % 8 (low nibbles
 * first) and its upper two bits in byte 8 + g % 4, at bit 2 (g / 4). */
static void q3_k(const unsigned char *block, float *out) {
    const unsigned char *scales = block + 96;
    float d = load_f16(block + 108);
    for (int i = 0; i < 256; i++) {
        int g = i / 16, low = scales[g % 8] >> (g / 8 * 4) & 15;
        int scale = (low | (scales[8 + g % 4] >> (g / 4 * 2) & 3) << 4) - 32;
        int q = block[32 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
        q |= (block[i % 32] >> (i / 32) & 1) << 2;
        out[i] = d * (float)scale * (float)(q - 4);
    }
}

static void iq4_nl(const unsigned char *block, float *out) {
    const int8_t *book = dtype_codebook(DTYPE_IQ4_NL);
    float d = load_f16(block);
    const unsigned char *q = block + 2;
    for (int j = 0; j < 16; j++) {
        out[j] = d * (float)book[q[j] & 15];
        out[j + 16] = d * (float)book[q[j] >> 4];
    }
}

/* d[2] high[2] low[4] q[128]: eight groups of 32, split in halves.  Scale g has its low nibble at
 * bit 4g of `low` and its upper two bits at bit 2g of `high`. */
static void iq4_xs(const unsigned char *block, float *out) {
    const int8_t *book = dtype_codebook(DTYPE_IQ4_XS);
    float d = load_f16(block);
    uint32_t high = load_u16(block + 2), low = load_u32(block + 4);
    for (int g = 0; g < 8; g++, out += 32) {
        int scale = (int)((low >> (4 * g) & 15) | (high >> (2 * g) & 3) << 4) - 32;
        const unsigned char *q = block + 8 + g * 16;
        for (int j = 0; j < 16; j++) {
            out[j] = d * (float)scale * (float)book[q[j] & 15];
            out[j + 16] = d * (float)scale * (float)book[q[j] >> 4];
        }
    }
}

float mxfp4_to_f32(uint8_t scale, uint32_t code) {
    int value = dtype_codebook(DTYPE_MXFP4)[code & 15];
    uint32_t magnitude = (uint32_t)abs(value), sign = value < 0 ? 0x80000000u : 0;
    if (scale == 255) return float_of(0x7fc00000u);
    if (magnitude == 0) return 0;
    if (scale < 2 && magnitude << scale < 4) // below 2^-126, in steps of 2^-149
        return float_of(sign | magnitude << (scale + 21));
    uint32_t of_one = bits_of((float)magnitude), exponent = (of_one >> 23) + scale;
    if (exponent >= 255 + 128) return float_of(sign | 0x7f800000u);
    return float_of(sign | (of_one + ((uint32_t)scale << 23) - (128u << 23)));
}

static void mxfp4(const unsigned char *block, float *out) {
    for (int j = 0; j < 16; j++) {
        out[j] = mxfp4_to_f32(block[0], block[1 + j] & 15);
        out[j + 16] = mxfp4_to_f32(block[0], block[1 + j] >> 4);
    }
}

static void each_block(void (*block_to_f32)(const unsigned char *, float *), dtype type,
                       const unsigned char *src, float *out, size_t n) {
    for (size_t i = 0; i < n; i += known[type].block_elems) {
        block_to_f32(src, out + i);
        src += known[type].block_bytes;
    }
}

void dtype_to_f32(dtype type, const void *src, float *out, size_t n) {
    const unsigned char *p = src;
    INFERD_CHECK((uint32_t)type < DTYPE_LIMIT && known[type].supported);
    INFERD_CHECK(n % known[type].block_elems == 0);
    switch ((uint32_t)type) {
    case DTYPE_F32:
        for (size_t i = 0; i < n; i++) out[i] = float_of(load_u32(p + 4 * i));
        break;
    case DTYPE_F16:
        for (size_t i = 0; i < n; i++) out[i] = load_f16(p + 2 * i);
        break;
    case DTYPE_BF16:
        for (size_t i = 0; i < n; i++) out[i] = bf16_to_f32(load_u16(p + 2 * i));
        break;
    case DTYPE_Q4_0:
        each_block(q4_0, type, p, out, n);
        break;
    case DTYPE_Q4_1:
        each_block(q4_1, type, p, out, n);
        break;
    case DTYPE_Q5_0:
        each_block(q5_0, type, p, out, n);
        break;
    case DTYPE_Q5_1:
        each_block(q5_1, type, p, out, n);
        break;
    case DTYPE_Q8_0:
        each_block(q8_0, type, p, out, n);
        break;
    case DTYPE_Q2_K:
        each_block(q2_k, type, p, out, n);
        break;
    case DTYPE_Q3_K:
        each_block(q3_k, type, p, out, n);
        break;
    case DTYPE_Q4_K:
        each_block(q4_k, type, p, out, n);
        break;
    case DTYPE_Q5_K:
        each_block(q5_k, type, p, out, n);
        break;
    case DTYPE_Q6_K:
        each_block(q6_k, type, p, out, n);
        break;
    case DTYPE_IQ4_NL:
        each_block(iq4_nl, type, p, out, n);
        break;
    case DTYPE_IQ4_XS:
        each_block(iq4_xs, type, p, out, n);
        break;
    case DTYPE_MXFP4:
        each_block(mxfp4, type, p, out, n);
        break;
    default:
        INFERD_CHECK(!"a supported type has a case above");
    }
}

/* All bits of the exponent are set only in infinities and NaNs: adding the lowest of them then
 * carries into the sign, which was masked away.  Eight bytes at a time, so that no vector
 * instructions are needed. */
bool dtype_are_finite(dtype type, const void *src, size_t n) {
    bool wide = type == DTYPE_F32, brain = type == DTYPE_BF16;
    uint64_t exponent = wide    ? 0x7f8000007f800000u
                        : brain ? 0x7f807f807f807f80u
                                : 0x7c007c007c007c00u;
    uint64_t lowest = wide    ? 0x0080000000800000u
                      : brain ? 0x0080008000800080u
                              : 0x0400040004000400u;
    uint64_t signs = wide ? 0x8000000080000000u : 0x8000800080008000u;
    uint64_t a = 0, b = 0, c = 0, d = 0, word[4];
    const unsigned char *p = src;
    size_t n_bytes = n * known[type].block_bytes;
    INFERD_CHECK(wide || brain || type == DTYPE_F16);
    for (; n_bytes >= sizeof word; n_bytes -= sizeof word, p += sizeof word) {
        memcpy(word, p, sizeof word);
        a |= (word[0] & exponent) + lowest;
        b |= (word[1] & exponent) + lowest;
        c |= (word[2] & exponent) + lowest;
        d |= (word[3] & exponent) + lowest;
    }
    memset(word, 0, sizeof word);
    memcpy(word, p, n_bytes);
    for (int i = 0; i < 4; i++) a |= (word[i] & exponent) + lowest;
    return ((a | b | c | d) & signs) == 0;
}

uint32_t dtype_find_not_finite(dtype type, const void *src, uint32_t n, float *value) {
    float block[256];
    uint32_t each = u32_max(known[type].block_elems, 1);
    const unsigned char *p = src;
    for (uint32_t i = 0; i < n; i += each, p += known[type].block_bytes) {
        dtype_to_f32(type, p, block, each);
        for (uint32_t k = 0; k < each; k++)
            if (!isfinite(block[k])) {
                *value = block[k];
                return i + k;
            }
    }
    return n;
}
