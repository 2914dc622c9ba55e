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

/* Scale and base of one vector of lanes of a group; a weight is scale * q + base. */
INLINE void group_scale(dtype type, const panel_group *p, uint32_t lane, vf *scale, vf *base) {
    *scale = *base = vf_set1(0);
    if (p->d != NULL) *scale = vf_load_f16(p->d + lane);
    if (type == DTYPE_Q4_1 || type == DTYPE_Q5_1) *base = vf_load_f16(p->m + lane);
    if (p->scale_i8 != NULL) *scale *= vf_load_i8(p->scale_i8 + lane);
    if (p->scale_u8 != NULL) {
        *scale *= vf_load_u8(p->scale_u8 + lane);
        *base = -(vf_load_f16(p->m + lane) * vf_load_u8(p->min_u8 + lane));
    }
}

#endif
