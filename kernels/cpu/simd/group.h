/* group.h - the scales of a group of columns as vectors, for every product with prepared weights.
 *
 * Thread: any. */
#ifndef INFERD_CPU_GROUP_H
#define INFERD_CPU_GROUP_H

#include "cpu/panel.h"
#include "cpu/simd/simd.h"

/* panel_group_cols, as a constant. */
INLINE uint32_t group_cols(dtype type) {
    return type == DTYPE_F32 || type == DTYPE_F16 || type == DTYPE_BF16 ? PANEL_WORD
           : type == DTYPE_Q6_K                                         ? 16
                                                                        : 32;
}

/* Scale and base of one vector of lanes of a group, or of half of one where halves have their own
 * (panel_group_scales); a weight is scale * q + base. */
INLINE void group_scale(dtype type, const panel_group *p, uint32_t half, uint32_t lane, vf *scale,
                        vf *base) {
    const uint32_t at = half * PANEL_ROWS + lane;
    *scale = *base = vf_set1(0);
    if (p->d != NULL) *scale = vf_load_f16(p->d + lane);
    if (type == DTYPE_Q4_1 || type == DTYPE_Q5_1) *base = vf_load_f16(p->m + lane);
    if (p->scale_i8 != NULL) *scale *= vf_load_i8(p->scale_i8 + at);
    if (p->both_u4 != NULL) {
        vi both = vi_load_u8(p->both_u4 + at);
        *scale *= vf_of_vi(both & 15);
        *base = -(vf_load_f16(p->m + lane) * vf_of_vi((vi)((vu)both >> 4)));
    }
    if (p->exponent != NULL) // a float's exponent is one less; below the least the scale is zero
        *scale = (vf)(vi_max(vi_load_u8(p->exponent + lane) - 1, vi_set1(0)) << 23);
    if (p->scale_u8 != NULL) {
        *scale *= vf_load_u8(p->scale_u8 + lane);
        *base = -(vf_load_f16(p->m + lane) * vf_load_u8(p->min_u8 + lane));
    }
}

/* Word i of the codes of two or three bits of a group: its 8 columns, with other bits above them in
 * both halves. */
INLINE vi code_word(dtype type, const unsigned char *q, uint32_t i, uint32_t lane) {
    if (type == DTYPE_Q2_K) {
        vu two = (vu)vi_load(q + ((size_t)(i / 2) * PANEL_ROWS + lane) * 4);
        return (vi)(two >> (8 * (i % 2)));
    }
    if (i < 3) return vi_load(q + ((size_t)i * PANEL_ROWS + lane) * 4);
    vu a = (vu)vi_load(q + (size_t)lane * 4);
    vu b = (vu)vi_load(q + (PANEL_ROWS + (size_t)lane) * 4);
    vu c = (vu)vi_load(q + (2 * PANEL_ROWS + (size_t)lane) * 4);
    return (vi)((a >> 12 & 0x000f000f) | (b >> 8 & 0x00f000f0) | (c >> 4 & 0x0f000f00));
}

#endif
