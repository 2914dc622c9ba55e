/* dummy.c - codes and scales are drawn a block at a time, then packed in the format of a file.
 *
 * The unit of a quantised type follows from the variance asked for:
 *
 *     variance = (unit * factor)^2 * V(codes)       K types: (unit * factor * factor)^2 * V(codes)
 *     mean of factor^2 over 16 ... 31               23.5^2 + (16^2 - 1) / 12 = 573.5
 *     V, codes with minima: uniform over 2^bits     (4^bits - 1) / 12
 *     V, without: -(o - 1) ... o - 1, 0 twice       (o - 1)(2o - 1) / 6, o = 2^(bits - 1)
 *     V, codebooks                                  the mean of the squares of their values
 *     mean of factor^2, Q2_K: over 8 ... 15, twice  11.5^2 + (8^2 - 1) / 12 = 137.5
 *     MXFP4: scales 2^k and 2^(k + 1), p of these   unit^2 = 4^k (1 + 3p)
 *
 * Block layouts: see dtype.c, which reads these blocks. */
#include "dummy.h"

#include <math.h>
#include <string.h>

enum { BLOCK_MAX = 256, GROUPS_MAX = 16 };

/* ---- parameters of a type ---- */

typedef struct shape {
    uint32_t bits, group;
    bool minima, blocks, book;
} shape;

static bool shape_of(dtype type, shape *out) {
    switch ((uint32_t)type) {
    case DTYPE_F32:
    case DTYPE_F16:
    case DTYPE_BF16:
        *out = (shape){0, 0, false, false};
        return true;
    case DTYPE_Q4_0:
        *out = (shape){4, 32, false, false};
        return true;
    case DTYPE_Q4_1:
        *out = (shape){4, 32, true, false};
        return true;
    case DTYPE_Q5_0:
        *out = (shape){5, 32, false, false};
        return true;
    case DTYPE_Q5_1:
        *out = (shape){5, 32, true, false};
        return true;
    case DTYPE_Q8_0:
        *out = (shape){8, 32, false, false};
        return true;
    case DTYPE_Q4_K:
        *out = (shape){4, 32, true, true};
        return true;
    case DTYPE_Q5_K:
        *out = (shape){5, 32, true, true};
        return true;
    case DTYPE_Q6_K:
        *out = (shape){6, 16, false, true};
        return true;
    case DTYPE_Q2_K:
        *out = (shape){2, 16, true, true};
        return true;
    case DTYPE_Q3_K:
        *out = (shape){3, 16, false, true};
        return true;
    case DTYPE_IQ4_NL:
    case DTYPE_MXFP4:
        *out = (shape){4, 32, false, false, true};
        return true;
    case DTYPE_IQ4_XS:
        *out = (shape){4, 32, false, true, true};
        return true;
    default:
        return false;
    }
}

static double variance_of_codes(dtype type, const shape *s) {
    double n = 1u << s->bits, offset = n / 2, squares = 0;
    const int8_t *book = dtype_codebook(type);
    if (s->minima) return (n * n - 1) / 12;
    if (!s->book) return (offset - 1) * (2 * offset - 1) / 6;
    for (uint32_t code = 0; code < 16; code++) {
        double value = book[type == DTYPE_MXFP4 ? code : dummy_book_code(code)];
        squares += value * value;
    }
    return squares / 16;
}

/* The scales of MXFP4 for a unit: its power of two, and how often the next one. */
static void choose_exponents(dummy_form *f) {
    int k;
    double part = frexp((double)f->unit, &k) * 2; // unit = part * 2^(k - 1), part in [1, 2)
    double p = (part * part - 1) / 3;
    f->exponent = (uint32_t)(128 + k - 1);
    f->larger = (uint32_t)(p * 0x1p32);
}

bool dummy_form_of(dtype type, float scale, dummy_form *out) {
    shape s;
    if (!shape_of(type, &s)) return false;
    bool half = type == DTYPE_Q2_K;
    double deviation = DUMMY_SUM_DEVIATION;
    if (s.bits != 0) {
        double of_codes = variance_of_codes(type, &s), of_factor = 573.5;
        deviation = sqrt(of_codes * of_factor * (!s.blocks ? 1 : half ? 137.5 : of_factor));
        if (type == DTYPE_MXFP4) deviation = sqrt(of_codes);
    }
    *out = (dummy_form){.unit = (float)((double)scale / deviation),
                        .bits = s.bits,
                        .group = s.group,
                        .minima = s.minima,
                        .blocks = s.blocks,
                        .book = s.book,
                        .half = half};
    if (type == DTYPE_MXFP4) choose_exponents(out);
    return true;
}

/* ---- one block ---- */

typedef struct block {
    uint8_t codes[BLOCK_MAX];    // unsigned
    uint32_t factor[GROUPS_MAX]; // K types: of each group, scale and min
    uint16_t d, min;             // f16; min is m, or dmin of the K types
    uint32_t exponent;           // MXFP4
} block;

/* Columns [col, col + n_cols) of a row. */
static void draw(const dummy_form *f, uint64_t seed, uint32_t row, uint32_t col, uint32_t n_cols,
                 block *b) {
    for (uint32_t i = 0; i < n_cols; i += 8) {
        uint64_t hash = dummy_hash(seed, row, (col + i) / 8);
        for (uint32_t j = 0; j < 8; j++)
            b->codes[i + j] = (uint8_t)dummy_code(hash, j, f->bits, f->minima || f->book);
    }
    b->exponent = dummy_exponent(f, seed, row, DUMMY_GROUP + col / f->group);
    uint32_t of_d = dummy_factor(
        seed, row, f->blocks ? DUMMY_BLOCK + col / DUMMY_BLOCK_COLS : DUMMY_GROUP + col / f->group);
    b->d = f32_to_f16(sm_mul(f->unit, (float)of_d));
    float min = sm_mul(dummy_middle(f->bits), f16_to_f32(b->d));
    b->min = f32_to_f16(f->blocks ? min : -min); // a K type subtracts its min
    for (uint32_t i = 0; f->blocks && i < n_cols / f->group; i++)
        b->factor[i] = dummy_factor(seed, row, DUMMY_GROUP + col / f->group + i) >> f->half;
}

static unsigned char *put_u16(unsigned char *p, uint16_t v) {
    p[0] = (unsigned char)v;
    p[1] = (unsigned char)(v >> 8);
    return p + 2;
}

static unsigned char *put_u32(unsigned char *p, uint32_t v) {
    return put_u16(put_u16(p, (uint16_t)v), (uint16_t)(v >> 16));
}

/* Blocks of 32: d, m where there are minima, fifth bits, nibbles j and j + 16. */
static void pack_32(const dummy_form *f, const block *b, unsigned char *p) {
    p = put_u16(p, b->d);
    if (f->minima) p = put_u16(p, b->min);
    if (f->bits == 8) {
        for (int j = 0; j < 32; j++) p[j] = (unsigned char)(b->codes[j] - 128);
        return;
    }
    if (f->bits == 5) {
        uint32_t fifth = 0;
        for (int j = 0; j < 32; j++) fifth |= (uint32_t)(b->codes[j] >> 4) << j;
        p = put_u32(p, fifth);
    }
    for (int j = 0; j < 16; j++)
        p[j] = (unsigned char)((b->codes[j] & 15) | (b->codes[j + 16] & 15) << 4);
}

/* Q4_K, Q5_K: d dmin, eight 6-bit scales and mins, fifth bits, nibbles. */
static void pack_k(const dummy_form *f, const block *b, unsigned char *p) {
    p = put_u16(put_u16(p, b->d), b->min);
    for (int g = 0; g < 4; g++) {
        uint32_t first = b->factor[g], second = b->factor[g + 4]; // scale and min are the same
        p[g] = p[g + 4] = (unsigned char)(first | second >> 4 << 6);
        p[g + 8] = (unsigned char)((second & 15) | (second & 15) << 4);
    }
    p += 12;
    if (f->bits == 5) {
        for (int j = 0; j < 32; j++) {
            uint32_t fifth = 0;
            for (int g = 0; g < 8; g++) fifth |= (uint32_t)(b->codes[g * 32 + j] >> 4) << g;
            p[j] = (unsigned char)fifth;
        }
        p += 32;
    }
    for (int pair = 0; pair < 4; pair++)
        for (int j = 0; j < 32; j++)
            p[pair * 32 + j] = (unsigned char)((b->codes[pair * 64 + j] & 15) |
                                               (b->codes[pair * 64 + 32 + j] & 15) << 4);
}

/* Q6_K: low nibbles, upper bits, scales, d. */
static void pack_q6_k(const block *b, unsigned char *p) {
    memset(p, 0, 192);
    for (int i = 0; i < 256; i++) {
        int half = i / 128, stream = i / 32 % 4, j = i % 32;
        p[half * 64 + stream % 2 * 32 + j] |=
            (unsigned char)((b->codes[i] & 15) << (stream / 2 * 4));
        p[128 + half * 32 + j] |= (unsigned char)((b->codes[i] >> 4) << (stream * 2));
    }
    for (int g = 0; g < 16; g++) p[192 + g] = (unsigned char)b->factor[g];
    put_u16(p + 208, b->d);
}

/* Q2_K: scales and mins, which are the same, codes, d, dmin. */
static void pack_q2_k(const block *b, unsigned char *p) {
    memset(p, 0, 80);
    for (int g = 0; g < 16; g++) p[g] = (unsigned char)(b->factor[g] | b->factor[g] << 4);
    for (int i = 0; i < 256; i++)
        p[16 + i / 128 * 32 + i % 32] |= (unsigned char)(b->codes[i] << (i / 32 % 4 * 2));
    put_u16(put_u16(p + 80, b->d), b->min);
}

/* Q3_K: third bits, lower bits, scales plus 32, d. */
static void pack_q3_k(const block *b, unsigned char *p) {
    memset(p, 0, 108);
    for (int i = 0; i < 256; i++) {
        p[i % 32] |= (unsigned char)(b->codes[i] >> 2 << (i / 32));
        p[32 + i / 128 * 32 + i % 32] |= (unsigned char)((b->codes[i] & 3) << (i / 32 % 4 * 2));
    }
    for (int g = 0; g < 16; g++) {
        uint32_t scale = b->factor[g] + 32;
        p[96 + g % 8] |= (unsigned char)((scale & 15) << (g / 8 * 4));
        p[104 + g % 4] |= (unsigned char)(scale >> 4 << (g / 4 * 2));
    }
    put_u16(p + 108, b->d);
}

static void pack_book_nibbles(const uint8_t *codes, unsigned char *p) {
    for (int j = 0; j < 16; j++)
        p[j] = (unsigned char)(dummy_book_code(codes[j]) | dummy_book_code(codes[j + 16]) << 4);
}

/* IQ4_XS: d, upper bits and nibbles of the scales plus 32, nibbles. */
static void pack_iq4_xs(const block *b, unsigned char *p) {
    uint32_t high = 0, low = 0;
    for (int g = 0; g < 8; g++) {
        high |= (b->factor[g] + 32) >> 4 << (2 * g);
        low |= (b->factor[g] & 15) << (4 * g);
        pack_book_nibbles(b->codes + g * 32, p + 8 + g * 16);
    }
    put_u32(put_u16(put_u16(p, b->d), (uint16_t)high), low);
}

/* IQ4_NL: d, nibbles.  MXFP4: the scale, nibbles. */
static void pack_book(dtype type, const block *b, unsigned char *p) {
    if (type == DTYPE_IQ4_NL) {
        pack_book_nibbles(b->codes, put_u16(p, b->d));
        return;
    }
    p[0] = (unsigned char)b->exponent;
    for (int j = 0; j < 16; j++) p[1 + j] = (unsigned char)(b->codes[j] | b->codes[j + 16] << 4);
}

/* ---- rows ---- */

static void put_value(dtype type, float value, unsigned char *p) {
    if (type == DTYPE_F32)
        memcpy(p, &value, sizeof value);
    else
        put_u16(p, type == DTYPE_F16 ? f32_to_f16(value) : f32_to_bf16(value));
}

static void fill_row(dtype type, const dummy_form *f, uint64_t seed, uint32_t row, uint32_t cols,
                     unsigned char *p) {
    dtype_info about = dtype_about(type);
    if (f->bits == 0) {
        for (uint32_t col = 0; col < cols; col++, p += about.block_bytes)
            put_value(type, dummy_value(f->unit, seed, row, col), p);
        return;
    }
    for (uint32_t col = 0; col < cols; col += about.block_elems, p += about.block_bytes) {
        block b;
        draw(f, seed, row, col, about.block_elems, &b);
        if (f->book && !f->blocks)
            pack_book(type, &b, p);
        else if (!f->blocks)
            pack_32(f, &b, p);
        else if (type == DTYPE_Q6_K)
            pack_q6_k(&b, p);
        else if (type == DTYPE_Q2_K)
            pack_q2_k(&b, p);
        else if (type == DTYPE_Q3_K)
            pack_q3_k(&b, p);
        else if (type == DTYPE_IQ4_XS)
            pack_iq4_xs(&b, p);
        else
            pack_k(f, &b, p);
    }
}

void dummy_file_rows(dtype type, uint32_t cols, uint64_t seed, float scale, uint32_t row_begin,
                     uint32_t n_rows, void *out) {
    dummy_form f;
    INFERD_CHECK(dummy_form_of(type, scale, &f));
    dtype_info about = dtype_about(type);
    INFERD_CHECK(cols % about.block_elems == 0);
    size_t row_bytes = (size_t)cols / about.block_elems * about.block_bytes;
    for (uint32_t i = 0; i < n_rows; i++)
        fill_row(type, &f, seed, row_begin + i, cols, (unsigned char *)out + i * row_bytes);
}
