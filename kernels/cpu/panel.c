/* panel.c - from rows of a file to panels, see panel.h; and back: panel_read.c.
 *
 * Packing takes a row apart group by group (file layouts: dtype.c) and puts the pieces in the
 * row's lane.  Scales are copied from the file: nothing is rounded here.
 *
 * Thread: any. */
#include "cpu/panel.h"

#include <string.h>

bool panel_supported(dtype type) {
    switch ((int)type) {
    case DTYPE_F32:
    case DTYPE_F16:
    case DTYPE_BF16:
    case DTYPE_Q4_0:
    case DTYPE_Q4_1:
    case DTYPE_Q5_0:
    case DTYPE_Q5_1:
    case DTYPE_Q8_0:
    case DTYPE_Q4_K:
    case DTYPE_Q5_K:
    case DTYPE_Q6_K:
    case DTYPE_Q2_K:
    case DTYPE_Q3_K:
    case DTYPE_IQ4_NL:
    case DTYPE_IQ4_XS:
    case DTYPE_MXFP4:
        return true;
    default:
        return false;
    }
}

uint32_t panel_group_cols(dtype type) {
    switch ((int)type) {
    case DTYPE_F32:
    case DTYPE_F16:
    case DTYPE_BF16:
        return PANEL_WORD;
    case DTYPE_Q6_K:
        return 16;
    default:
        return 32;
    }
}

size_t panel_bytes(dtype type, uint32_t cols) {
    size_t n_words = ((size_t)cols + PANEL_WORD - 1) / PANEL_WORD;
    size_t n_blocks = cols / 32, n_supers = cols / 256;
    switch ((int)type) {
    case DTYPE_F32:
        return n_words * PANEL_WORD * 4 * PANEL_ROWS;
    case DTYPE_F16:
    case DTYPE_BF16:
        return n_words * PANEL_WORD * 2 * PANEL_ROWS;
    case DTYPE_Q4_0:
    case DTYPE_IQ4_NL:
        return n_blocks * (2 + 16) * PANEL_ROWS;
    case DTYPE_Q4_1:
        return n_blocks * (4 + 16) * PANEL_ROWS;
    case DTYPE_Q5_0:
        return n_blocks * (6 + 16) * PANEL_ROWS;
    case DTYPE_Q5_1:
        return n_blocks * (8 + 16) * PANEL_ROWS;
    case DTYPE_Q8_0:
        return n_blocks * (2 + 32) * PANEL_ROWS;
    case DTYPE_Q4_K:
        return n_supers * (4 + 8 * 18) * PANEL_ROWS;
    case DTYPE_Q5_K:
        return n_supers * (4 + 8 * 22) * PANEL_ROWS;
    case DTYPE_Q6_K:
        return n_supers * (2 + 16 * 13) * PANEL_ROWS;
    case DTYPE_Q2_K:
        return n_supers * (4 + 8 * 10) * PANEL_ROWS;
    case DTYPE_Q3_K:
        return n_supers * (2 + 8 * 14) * PANEL_ROWS;
    case DTYPE_IQ4_XS:
        return n_supers * (2 + 8 * 17) * PANEL_ROWS;
    case DTYPE_MXFP4:
        return n_blocks * (1 + 16) * PANEL_ROWS;
    default:
        return 0;
    }
}

/* ---- one group of one row, taken apart ---- */

/* Reading and packing are compiled per type (panel_pack): parts that it lacks cost nothing. */
#define PER_TYPE static inline __attribute__((always_inline))

typedef struct group {
    uint16_t d, m;
    uint8_t scale, min; // of K types, as the panel has them; of Q2_K and Q3_K see read_halves
    uint32_t high;      // fifth bits, column by column; of Q6_K two bits per column
    uint8_t q[32];      // low four bits, the code, or the bytes of Q8_0
} group;

static uint16_t load_u16(const unsigned char *p) {
    return (uint16_t)(p[0] | p[1] << 8);
}

static uint32_t load_u32(const unsigned char *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

PER_TYPE void halves(group *out, const unsigned char *q) {
    for (int j = 0; j < 16; j++) {
        out->q[j] = q[j] & 15;
        out->q[j + 16] = q[j] >> 4;
    }
}

PER_TYPE void stream(group *out, const unsigned char *q, int shift) {
    for (int j = 0; j < 32; j++) out->q[j] = q[j] >> shift & 15;
}

/* The 6-bit scale and min of group g of 8, packed in 12 bytes. */
PER_TYPE void scale_and_min(group *out, const unsigned char *p, uint32_t g) {
    if (g < 4) {
        out->scale = p[g] & 63;
        out->min = p[g + 4] & 63;
    } else {
        out->scale = (uint8_t)((p[g + 4] & 15) | p[g - 4] >> 6 << 4);
        out->min = (uint8_t)(p[g + 4] >> 4 | p[g] >> 6 << 4);
    }
}

PER_TYPE void read_q6_k(group *out, const unsigned char *block, uint32_t g) {
    uint32_t half = g / 8, part = g % 8 / 2, at = g % 2 * 16; // 128 columns, 32 of them, 16
    const unsigned char *low = block + half * 64 + part % 2 * 32 + at;
    const unsigned char *high = block + 128 + half * 32 + at;
    out->d = load_u16(block + 208);
    out->scale = block[192 + g];
    out->high = 0;
    for (uint32_t j = 0; j < 16; j++) {
        out->q[j] = low[j] >> (part / 2 * 4) & 15;
        out->high |= (uint32_t)(high[j] >> (part * 2) & 3) << (2 * j);
    }
}

/* Scale g of 16, six bits less 32 (dtype.c). */
PER_TYPE uint8_t scale_q3_k(const unsigned char *p, uint32_t g) {
    return (uint8_t)(((p[g % 8] >> (g / 8 * 4) & 15) | (p[8 + g % 4] >> (g / 4 * 2) & 3) << 4) -
                     32);
}

/* Q2_K and Q3_K.  The scales of the halves go to `scale` and `min`; those of Q2_K have their minima
 * beside them. */
PER_TYPE void read_halves(dtype type, group *out, const unsigned char *block, uint32_t g) {
    const unsigned char *q = block + (type == DTYPE_Q2_K ? 16 : 32) + g / 4 * 32;
    if (type == DTYPE_Q2_K) {
        out->scale = block[2 * g];
        out->min = block[2 * g + 1];
        out->d = load_u16(block + 80);
        out->m = load_u16(block + 82);
    } else {
        out->scale = scale_q3_k(block + 96, 2 * g);
        out->min = scale_q3_k(block + 96, 2 * g + 1);
        out->d = load_u16(block + 108);
    }
    for (uint32_t j = 0; j < 32; j++) {
        uint32_t third = type == DTYPE_Q3_K ? block[j] >> g & 1u : 0;
        out->q[j] = (uint8_t)((q[j] >> (g % 4 * 2) & 3) | third << 2);
    }
}

PER_TYPE void read_group(dtype type, const unsigned char *row, uint32_t g, group *out) {
    const unsigned char *p = row;
    switch ((int)type) {
    case DTYPE_Q4_0:
    case DTYPE_IQ4_NL:
        p += (size_t)g * 18;
        halves(out, p + 2);
        break;
    case DTYPE_Q4_1:
        p += (size_t)g * 20;
        out->m = load_u16(p + 2);
        halves(out, p + 4);
        break;
    case DTYPE_Q5_0:
        p += (size_t)g * 22;
        out->high = load_u32(p + 2);
        halves(out, p + 6);
        break;
    case DTYPE_Q5_1:
        p += (size_t)g * 24;
        out->m = load_u16(p + 2);
        out->high = load_u32(p + 4);
        halves(out, p + 8);
        break;
    case DTYPE_Q8_0:
        p += (size_t)g * 34;
        memcpy(out->q, p + 2, 32);
        break;
    case DTYPE_Q4_K:
        p += (size_t)(g / 8) * 144;
        g %= 8;
        out->m = load_u16(p + 2);
        scale_and_min(out, p + 4, g);
        stream(out, p + 16 + g / 2 * 32, (int)(g % 2 * 4));
        break;
    case DTYPE_Q5_K:
        p += (size_t)(g / 8) * 176;
        g %= 8;
        out->m = load_u16(p + 2);
        scale_and_min(out, p + 4, g);
        stream(out, p + 48 + g / 2 * 32, (int)(g % 2 * 4));
        out->high = 0;
        for (uint32_t j = 0; j < 32; j++) out->high |= (uint32_t)(p[16 + j] >> g & 1) << j;
        break;
    case DTYPE_Q6_K:
        read_q6_k(out, p + (size_t)(g / 16) * 210, g % 16);
        return;
    case DTYPE_Q2_K:
        read_halves(type, out, p + (size_t)(g / 8) * 84, g % 8);
        return;
    case DTYPE_Q3_K:
        read_halves(type, out, p + (size_t)(g / 8) * 110, g % 8);
        return;
    case DTYPE_IQ4_XS:
        p += (size_t)(g / 8) * 136;
        g %= 8;
        out->scale =
            (uint8_t)(((p[4 + g / 2] >> (g % 2 * 4) & 15) | (load_u16(p + 2) >> (2 * g) & 3) << 4) -
                      32);
        halves(out, p + 8 + g * 16);
        break;
    case DTYPE_MXFP4:
        p += (size_t)g * 17;
        out->scale = p[0];
        halves(out, p + 1);
        return;
    default:
        INFERD_CHECK(!"a type with groups");
    }
    out->d = load_u16(p);
}

/* ---- packing ----
 *
 * Words are put together eight columns at a time, as little-endian integers. */

/* The even nibbles next to each other, in the lower half. */
static inline uint32_t even_nibbles(uint32_t x) {
    x &= 0x0f0f0f0f;
    x = (x | x >> 4) & 0x00ff00ff;
    return (x | x >> 8) & 0xffff;
}

/* high_shift (panel_read.c) for all columns at once: halves of words apart, bytes of Q6_K likewise.
 */
PER_TYPE uint32_t pack_high(dtype type, uint32_t high) {
    if (type == DTYPE_Q6_K)
        return (high & 0xff0000ff) | (high & 0xff00) << 8 | (high >> 8 & 0xff00);
    return even_nibbles(high) | even_nibbles(high >> 4) << 16;
}

/* Codes of n_bits of a word of 8 columns, a byte each: four in each half of 32 bits. */
PER_TYPE uint32_t pack_codes(const uint8_t *q, uint32_t n_bits) {
    uint32_t word = 0;
    for (uint32_t j = 0; j < PANEL_WORD; j++)
        word |= (uint32_t)q[j] << (n_bits * (j % 4) + 16 * (j / 4));
    return word;
}

static inline void put_u32(unsigned char *out, size_t i, uint32_t value) {
    memcpy(out + i * sizeof value, &value, sizeof value);
}

/* Q2_K: two words in 32 bits.  Q3_K: words 0 to 2 with a third of the bits of word 3 each. */
PER_TYPE void pack_halves(dtype type, const group *from, panel_group to, uint32_t lane) {
    unsigned char *q = (unsigned char *)(uintptr_t)to.q;
    uint32_t word[4], n_bits = type == DTYPE_Q2_K ? 2 : 3;
    for (uint32_t w = 0; w < 4; w++) word[w] = pack_codes(from->q + w * PANEL_WORD, n_bits);
    if (type == DTYPE_Q2_K) {
        put_u32(q, lane, word[0] | word[1] << 8);
        put_u32(q, PANEL_ROWS + lane, word[2] | word[3] << 8);
        ((uint8_t *)(uintptr_t)to.both_u4)[lane] = from->scale;
        ((uint8_t *)(uintptr_t)to.both_u4)[PANEL_ROWS + lane] = from->min;
        return;
    }
    for (uint32_t w = 0; w < 3; w++)
        put_u32(q, w * PANEL_ROWS + lane, word[w] | (word[3] >> (4 * w) & 0x000f000f) << 12);
    ((uint8_t *)(uintptr_t)to.scale_i8)[lane] = from->scale;
    ((uint8_t *)(uintptr_t)to.scale_i8)[PANEL_ROWS + lane] = from->min;
}

PER_TYPE void pack_group(dtype type, const group *from, panel_group to, uint32_t lane) {
    if (to.d != NULL) ((uint16_t *)(uintptr_t)to.d)[lane] = from->d;
    if (to.m != NULL) ((uint16_t *)(uintptr_t)to.m)[lane] = from->m;
    if (panel_group_scales(type) == 2) {
        pack_halves(type, from, to, lane);
        return;
    }
    if (to.exponent != NULL) ((uint8_t *)(uintptr_t)to.exponent)[lane] = from->scale;
    if (to.scale_u8 != NULL) ((uint8_t *)(uintptr_t)to.scale_u8)[lane] = from->scale;
    if (to.min_u8 != NULL) ((uint8_t *)(uintptr_t)to.min_u8)[lane] = from->min;
    if (to.scale_i8 != NULL) ((uint8_t *)(uintptr_t)to.scale_i8)[lane] = from->scale;
    if (to.high != NULL) ((uint32_t *)(uintptr_t)to.high)[lane] = pack_high(type, from->high);
    unsigned char *q = (unsigned char *)(uintptr_t)to.q;
    uint32_t cols = panel_group_cols(type);
    for (uint32_t word = 0; word < cols / PANEL_WORD; word++) {
        uint64_t x; // columns, a byte each
        memcpy(&x, from->q + word * PANEL_WORD, sizeof x);
        if (type == DTYPE_Q8_0) { // see byte_at in panel_read.c
            uint64_t low = x & 0x0000ffff0000ffff, high = x >> 16 & 0x0000ffff0000ffff;
            put_u32(q, (size_t)(word * 2) * PANEL_ROWS + lane, (uint32_t)(low | low >> 16));
            put_u32(q, (size_t)(word * 2 + 1) * PANEL_ROWS + lane, (uint32_t)(high | high >> 16));
        } else {
            x = (x | x >> 4) & 0x00ff00ff00ff00ff;
            x = (x | x >> 8) & 0x0000ffff0000ffff;
            put_u32(q, (size_t)word * PANEL_ROWS + lane, (uint32_t)(x | x >> 16));
        }
    }
}

/* Types without groups: n_bytes per value, transposed; BF16 in pairs.  Some columns of all rows at
 * a time, so that written lines stay in the nearest cache until they are full. */
PER_TYPE void pack_values(dtype type, const unsigned char *rows, uint32_t n_rows, uint32_t cols,
                          unsigned char *panel) {
    enum { COLS = 32 };
    size_t n_bytes = type == DTYPE_F32 ? 4 : 2;
    for (uint32_t begin = 0; begin < cols; begin += COLS) {
        uint32_t end = u32_min(begin + COLS, cols);
        for (uint32_t lane = 0; lane < n_rows; lane++) {
            const unsigned char *row = rows + (size_t)lane * cols * n_bytes;
            for (size_t k = begin; k < end; k++) {
                size_t at = type == DTYPE_BF16 ? panel_half_at(k, lane) : k * PANEL_ROWS + lane;
                memcpy(panel + at * n_bytes, row + k * n_bytes, n_bytes);
            }
        }
    }
}

PER_TYPE void pack_groups(dtype type, const unsigned char *rows, uint32_t n_rows, uint32_t cols,
                          size_t row_bytes, unsigned char *panel) {
    for (uint32_t g = 0; g < cols / panel_group_cols(type); g++) {
        panel_group to = panel_group_at(type, panel, g);
        for (uint32_t lane = 0; lane < n_rows; lane++) {
            group from;
            read_group(type, rows + lane * row_bytes, g, &from);
            pack_group(type, &from, to, lane);
        }
    }
}

bool panel_pack(dtype type, uint32_t cols, const unsigned char *rows, uint32_t n_rows,
                unsigned char *panel) {
    dtype_info info = dtype_about(type);
    size_t row_bytes = (size_t)cols / info.block_elems * info.block_bytes;
    if (n_rows < PANEL_ROWS || cols % PANEL_WORD != 0) memset(panel, 0, panel_bytes(type, cols));
    switch ((int)type) {
#define VALUES(t)                                                                                  \
    case t:                                                                                        \
        pack_values(t, rows, n_rows, cols, panel);                                                 \
        break;
#define GROUPS(t)                                                                                  \
    case t:                                                                                        \
        pack_groups(t, rows, n_rows, cols, row_bytes, panel);                                      \
        break;
        VALUES(DTYPE_F32)
        VALUES(DTYPE_F16)
        VALUES(DTYPE_BF16)
        GROUPS(DTYPE_Q4_0)
        GROUPS(DTYPE_Q4_1)
        GROUPS(DTYPE_Q5_0)
        GROUPS(DTYPE_Q5_1)
        GROUPS(DTYPE_Q8_0)
        GROUPS(DTYPE_Q4_K)
        GROUPS(DTYPE_Q5_K)
        GROUPS(DTYPE_Q6_K)
        GROUPS(DTYPE_Q2_K)
        GROUPS(DTYPE_Q3_K)
        GROUPS(DTYPE_IQ4_NL)
        GROUPS(DTYPE_IQ4_XS)
        GROUPS(DTYPE_MXFP4)
#undef VALUES
#undef GROUPS
    default:
        INFERD_CHECK(!"a type that panels hold");
    }
    return panel_is_finite(type, cols, panel);
}
