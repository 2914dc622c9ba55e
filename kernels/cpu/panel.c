/* panel.c - from rows of a file to panels and back, see panel.h.
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
    default:
        return 0;
    }
}

/* ---- one group of one row, taken apart ---- */

/* Reading and packing are compiled per type (panel_pack): parts that it lacks cost nothing. */
#define PER_TYPE static inline __attribute__((always_inline))

typedef struct group {
    uint16_t d, m;
    uint8_t scale, min; // of K types; of Q6_K the scale's bits
    uint32_t high;      // fifth bits, column by column; of Q6_K two bits per column
    uint8_t q[32];      // low four bits, or the bytes of Q8_0
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

PER_TYPE void read_group(dtype type, const unsigned char *row, uint32_t g, group *out) {
    const unsigned char *p = row;
    switch ((int)type) {
    case DTYPE_Q4_0:
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
    default:
        INFERD_CHECK(!"a type with groups");
    }
    out->d = load_u16(p);
}

/* ---- packing ----
 *
 * Words are put together eight columns at a time, as little-endian integers. */

/* Where column j of a word has its bit among 32, if words are 4 bits apart; see panel.h. */
static uint32_t pair_bit(uint32_t k) {
    return k / PANEL_WORD * 4 + k % 4 + 16 * (k % PANEL_WORD / 4);
}
static uint32_t high_shift(dtype type, uint32_t k) {
    uint32_t at = pair_bit(k);
    return type == DTYPE_Q6_K ? at % 16 * 2 + at / 16 * 16 : at;
}
/* Byte of column k of Q8_0: word, half of it, lane, byte. */
static size_t byte_at(uint32_t k, uint32_t lane) {
    uint32_t half = k / PANEL_WORD * 2 + k % 4 / 2, byte = k % 2 + k % PANEL_WORD / 4 * 2;
    return ((size_t)half * PANEL_ROWS + lane) * 4 + byte;
}
/* 16-bit half of column k of BF16. */
static size_t half_at(size_t k, uint32_t lane) {
    size_t pair = k / PANEL_WORD * 4 + k % 4;
    return (pair * PANEL_ROWS + lane) * 2 + k % PANEL_WORD / 4;
}

/* The even nibbles next to each other, in the lower half. */
static inline uint32_t even_nibbles(uint32_t x) {
    x &= 0x0f0f0f0f;
    x = (x | x >> 4) & 0x00ff00ff;
    return (x | x >> 8) & 0xffff;
}

/* high_shift for all columns at once: halves of words apart, bytes of Q6_K likewise. */
PER_TYPE uint32_t pack_high(dtype type, uint32_t high) {
    if (type == DTYPE_Q6_K)
        return (high & 0xff0000ff) | (high & 0xff00) << 8 | (high >> 8 & 0xff00);
    return even_nibbles(high) | even_nibbles(high >> 4) << 16;
}

static inline void put_u32(unsigned char *out, size_t i, uint32_t value) {
    memcpy(out + i * sizeof value, &value, sizeof value);
}

PER_TYPE void pack_group(dtype type, const group *from, panel_group to, uint32_t lane) {
    ((uint16_t *)(uintptr_t)to.d)[lane] = from->d;
    if (to.m != NULL) ((uint16_t *)(uintptr_t)to.m)[lane] = from->m;
    if (to.scale_u8 != NULL) ((uint8_t *)(uintptr_t)to.scale_u8)[lane] = from->scale;
    if (to.min_u8 != NULL) ((uint8_t *)(uintptr_t)to.min_u8)[lane] = from->min;
    if (to.scale_i8 != NULL) ((uint8_t *)(uintptr_t)to.scale_i8)[lane] = from->scale;
    if (to.high != NULL) ((uint32_t *)(uintptr_t)to.high)[lane] = pack_high(type, from->high);
    unsigned char *q = (unsigned char *)(uintptr_t)to.q;
    uint32_t cols = panel_group_cols(type);
    for (uint32_t word = 0; word < cols / PANEL_WORD; word++) {
        uint64_t x; // columns, a byte each
        memcpy(&x, from->q + word * PANEL_WORD, sizeof x);
        if (type == DTYPE_Q8_0) { // byte_at
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
                size_t at = type == DTYPE_BF16 ? half_at(k, lane) : k * PANEL_ROWS + lane;
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

/* Are its values, or its scales and minima, finite? */
static bool panel_is_finite(dtype type, uint32_t cols, const unsigned char *panel) {
    uint32_t step = type == DTYPE_Q6_K ? 16 : type == DTYPE_Q4_K || type == DTYPE_Q5_K ? 8 : 1;
    if (type == DTYPE_F32 || type == DTYPE_F16 || type == DTYPE_BF16)
        return dtype_are_finite(type, panel,
                                panel_bytes(type, cols) / dtype_about(type).block_bytes);
    bool finite = true;
    for (uint32_t g = 0; g < cols / panel_group_cols(type); g += step) {
        panel_group p = panel_group_at(type, panel, g);
        finite = finite && dtype_are_finite(DTYPE_F16, p.d, PANEL_ROWS) &&
                 (p.m == NULL || dtype_are_finite(DTYPE_F16, p.m, PANEL_ROWS));
    }
    return finite;
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
#undef VALUES
#undef GROUPS
    default:
        INFERD_CHECK(!"a type that panels hold");
    }
    return panel_is_finite(type, cols, panel);
}

/* ---- one row back ---- */

static uint32_t value_of(dtype type, const panel_group *p, uint32_t lane, uint32_t k) {
    const uint32_t *words = (const uint32_t *)(const void *)p->q;
    uint32_t low = words[k / PANEL_WORD * PANEL_ROWS + lane] >> (4 * (k % PANEL_WORD)) & 15;
    if (p->high == NULL) return low;
    uint32_t high = p->high[lane] >> high_shift(type, k);
    return low | (high & (type == DTYPE_Q6_K ? 3 : 1)) << 4;
}

static void group_row_to_f32(dtype type, const panel_group *p, uint32_t lane, float *out) {
    uint32_t cols = panel_group_cols(type);
    float d = f16_to_f32(p->d[lane]);
    for (uint32_t k = 0; k < cols; k++) {
        switch ((int)type) {
        case DTYPE_Q4_0:
            out[k] = d * ((float)value_of(type, p, lane, k) - 8.0f);
            break;
        case DTYPE_Q5_0:
            out[k] = d * ((float)value_of(type, p, lane, k) - 16.0f);
            break;
        case DTYPE_Q4_1:
        case DTYPE_Q5_1:
            out[k] = d * (float)value_of(type, p, lane, k) + f16_to_f32(p->m[lane]);
            break;
        case DTYPE_Q8_0:
            out[k] = d * (float)((const int8_t *)p->q)[byte_at(k, lane)];
            break;
        case DTYPE_Q6_K:
            out[k] = d * (float)p->scale_i8[lane] * ((float)value_of(type, p, lane, k) - 32.0f);
            break;
        default: // Q4_K, Q5_K
            out[k] = d * (float)p->scale_u8[lane] * (float)value_of(type, p, lane, k) -
                     f16_to_f32(p->m[lane]) * (float)p->min_u8[lane];
            break;
        }
    }
}

void panel_row_to_f32(const weight *w, uint32_t row, uint32_t begin, uint32_t end, float *out) {
    const unsigned char *panel =
        (const unsigned char *)w->data + row / PANEL_ROWS * panel_bytes(w->type, w->cols);
    uint32_t lane = row % PANEL_ROWS, cols = panel_group_cols(w->type);
    const uint16_t *halfs = (const uint16_t *)(const void *)panel;
    INFERD_CHECK(begin % PANEL_BLOCK == 0 && end <= w->cols);
    switch ((int)w->type) {
    case DTYPE_F32:
        for (size_t k = begin; k < end; k++)
            memcpy(out++, panel + (k * PANEL_ROWS + lane) * 4, sizeof *out);
        return;
    case DTYPE_F16:
        for (size_t k = begin; k < end; k++) *out++ = f16_to_f32(halfs[k * PANEL_ROWS + lane]);
        return;
    case DTYPE_BF16:
        for (size_t k = begin; k < end; k++) *out++ = bf16_to_f32(halfs[half_at(k, lane)]);
        return;
    default:
        break;
    }
    for (uint32_t k = begin; k < end; k += cols, out += cols) {
        panel_group p = panel_group_at(w->type, panel, k / cols);
        group_row_to_f32(w->type, &p, lane, out);
    }
}
