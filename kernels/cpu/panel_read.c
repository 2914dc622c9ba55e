/* panel_read.c - values of a panel: one row back as floats, and whether all are finite numbers.
 *
 * Thread: any. */
#include <math.h>
#include <string.h>

#include "cpu/panel.h"

/* ---- places ---- */

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

/* Column k of Q2_K or Q3_K (panel.h). */
static uint32_t code_of(dtype type, const uint32_t *words, uint32_t lane, uint32_t k) {
    uint32_t word = k / PANEL_WORD, at = k % 4, half = k % PANEL_WORD / 4 * 16;
    if (type == DTYPE_Q2_K)
        return words[word / 2 * PANEL_ROWS + lane] >> (8 * (word % 2) + 2 * at + half) & 3;
    uint32_t bits = words[word % 3 * PANEL_ROWS + lane];
    if (word == 3) {
        bits = 0;
        for (uint32_t w = 0; w < 3; w++)
            bits |= (words[w * PANEL_ROWS + lane] >> 12 & 0x000f000f) << (4 * w);
    }
    return bits >> (3 * at + half) & 7;
}

static uint32_t value_of(dtype type, const panel_group *p, uint32_t lane, uint32_t k) {
    const uint32_t *words = (const uint32_t *)(const void *)p->q;
    if (panel_group_scales(type) == 2) return code_of(type, words, lane, k);
    uint32_t low = words[k / PANEL_WORD * PANEL_ROWS + lane] >> (4 * (k % PANEL_WORD)) & 15;
    if (p->high == NULL) return low;
    uint32_t high = p->high[lane] >> high_shift(type, k);
    return low | (high & (type == DTYPE_Q6_K ? 3 : 1)) << 4;
}

/* ---- all of a panel ---- */

/* Blocks with a large scale are finite only if their codes are small. */
static bool mxfp4_is_finite(uint32_t cols, const unsigned char *panel) {
    for (uint32_t g = 0; g < cols / 32; g++) {
        panel_group p = panel_group_at(DTYPE_MXFP4, panel, g);
        for (uint32_t lane = 0; lane < PANEL_ROWS; lane++)
            for (uint32_t k = 0; p.exponent[lane] > MXFP4_SCALE_FINITE && k < 32; k++)
                if (!isfinite(mxfp4_to_f32(p.exponent[lane], value_of(DTYPE_MXFP4, &p, lane, k))))
                    return false;
    }
    return true;
}

bool panel_is_finite(dtype type, uint32_t cols, const unsigned char *panel) {
    uint32_t in_group = panel_group_cols(type), block = dtype_about(type).block_elems;
    uint32_t step = block > in_group ? block / in_group : 1;
    if (type == DTYPE_MXFP4) return mxfp4_is_finite(cols, panel);
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

/* ---- one row back ---- */

static void group_row_to_f32(dtype type, const panel_group *p, uint32_t lane, float *out) {
    uint32_t cols = panel_group_cols(type);
    const int8_t *book = dtype_codebook(type);
    float d = p->d != NULL ? f16_to_f32(p->d[lane]) : 0;
    for (uint32_t k = 0; k < cols; k++) {
        uint32_t half = k / 16 * PANEL_ROWS + lane; // of types with two scales
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
        case DTYPE_Q2_K:
            out[k] = d * (float)(p->both_u4[half] & 15) * (float)value_of(type, p, lane, k) -
                     f16_to_f32(p->m[lane]) * (float)(p->both_u4[half] >> 4);
            break;
        case DTYPE_Q3_K:
            out[k] = d * (float)p->scale_i8[half] * ((float)value_of(type, p, lane, k) - 4.0f);
            break;
        case DTYPE_IQ4_NL:
            out[k] = d * (float)book[value_of(type, p, lane, k)];
            break;
        case DTYPE_IQ4_XS:
            out[k] = d * (float)p->scale_i8[lane] * (float)book[value_of(type, p, lane, k)];
            break;
        case DTYPE_MXFP4:
            out[k] = mxfp4_to_f32(p->exponent[lane], value_of(type, p, lane, k));
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
        for (size_t k = begin; k < end; k++) *out++ = bf16_to_f32(halfs[panel_half_at(k, lane)]);
        return;
    default:
        break;
    }
    for (uint32_t k = begin; k < end; k += cols, out += cols) {
        panel_group p = panel_group_at(w->type, panel, k / cols);
        group_row_to_f32(w->type, &p, lane, out);
    }
}
