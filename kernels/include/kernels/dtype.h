/* dtype.h - the element types of weights, numbered as in GGUF, and the conversion of their blocks
 * to floats.  Block layouts: ggml-common.h of ggml; formulas in dtype.c.
 *
 * Thread: any. */
#ifndef INFERD_DTYPE_H
#define INFERD_DTYPE_H

#include "inferd/base.h"

typedef enum dtype {
    DTYPE_F32 = 0,
    DTYPE_F16 = 1,
    DTYPE_Q4_0 = 2,
    DTYPE_Q4_1 = 3,
    DTYPE_Q5_0 = 6,
    DTYPE_Q5_1 = 7,
    DTYPE_Q8_0 = 8,
    DTYPE_Q2_K = 10,
    DTYPE_Q3_K = 11,
    DTYPE_Q4_K = 12,
    DTYPE_Q5_K = 13,
    DTYPE_Q6_K = 14,
    DTYPE_IQ4_NL = 20,
    DTYPE_IQ4_XS = 23,
    DTYPE_BF16 = 30,
    DTYPE_MXFP4 = 39,
    DTYPE_LIMIT = 64 // all ids of the format are below
} dtype;

typedef struct dtype_info {
    const char *name;     // "Q4_1"; NULL: no such type
    uint32_t block_elems; // elements per block
    uint32_t block_bytes; // bytes per block
    bool supported;       // dtype_to_f32 knows it
} dtype_info;

/* The properties of type `id` (also of unsupported types, so that errors can name them). */
dtype_info dtype_about(uint32_t id);

/* "F32, F16, Q4_0, ...": the supported ones, for errors. */
enum { DTYPE_LIST_BYTES = 128 };
const char *dtype_list_supported(char out[DTYPE_LIST_BYTES]);

/* The values of the 16 codes of a type with a codebook; NULL: the codes of a type are numbers.
 * Those of MXFP4 are doubled, so that they are integers; its -0 is 0, as in the `gguf` package. */
static inline const int8_t *dtype_codebook(dtype type) {
    static const int8_t iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                   1,    13,   25,  38,  53,  69,  89,  113};
    static const int8_t mxfp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    return type == DTYPE_MXFP4 ? mxfp4 : type == DTYPE_IQ4_NL || type == DTYPE_IQ4_XS ? iq4 : NULL;
}

/* n elements (a multiple of block_elems) of `type` at `src` as floats, bit-equal to the `gguf`
 * package's dequantisation.  One case differs: a block of MXFP4 with the scale 255 is NaN, as the
 * format's specification has it. */
void dtype_to_f32(dtype type, const void *src, float *out, size_t n);

/* n values of F32, F16 or BF16 are all finite numbers. */
bool dtype_are_finite(dtype type, const void *src, size_t n);
/* The index of the first of n such elements that is not a finite number, and its value; n: all are
 * finite.  A scale that is not finite makes the elements of its block so. */
uint32_t dtype_find_not_finite(dtype type, const void *src, uint32_t n, float *value);

/* An element of MXFP4: the doubled value of its code times 2^(scale - 128).  Made of integers,
 * because the smallest are denormal floats, which the compute threads take for zero. */
enum { MXFP4_SCALE_FINITE = 252 }; // the largest scale that is finite with every code
float mxfp4_to_f32(uint8_t scale, uint32_t code);

float f16_to_f32(uint16_t h);
uint16_t f32_to_f16(float f); // round to nearest even
static inline float bf16_to_f32(uint16_t h) {
    union {
        uint32_t u;
        float f;
    } v = {(uint32_t)h << 16};
    return v.f;
}
uint16_t f32_to_bf16(float f); // round to nearest even

#endif
