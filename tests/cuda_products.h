/* cuda_products.h - products of random activations and weights of any format, for the tests of the
 * kernels that multiply: made on a rig, launched by the test, checked against sums in double.
 *
 * What is given is exact in its type, so what may differ is the order of float sums and the
 * rounding of the output.  An error is measured against the length of the vector of terms (x w),
 * which does not vanish where their sum does.  Weights of a type that is not the activations' are
 * taken as rounded to it; of quantised ones they are not, unless product_round_weights says so.
 * Behind x's columns, behind the outputs and in unwritten memory stands NaN.
 *
 *     product p;
 *     product_make(&p, &rig, &(product_spec){...});
 *     launch_skinny(&rig.l, mm, &p.a);
 *     product_check(&p, &rig);
 *     product_free(&p, &rig); */
#ifndef INFERD_CUDA_PRODUCTS_H
#define INFERD_CUDA_PRODUCTS_H

#include "cuda/formats.h"
#include "cuda/matmul.h"
#include "cuda_emul/emul_run.h"
#include "cuda_rig.h"

enum { PRODUCT_SEED = 60201 };

static const dtype product_types[] = {DTYPE_F32,  DTYPE_BF16, DTYPE_F16,  DTYPE_Q4_0,
                                      DTYPE_Q4_1, DTYPE_Q5_0, DTYPE_Q5_1, DTYPE_Q8_0,
                                      DTYPE_Q4_K, DTYPE_Q5_K, DTYPE_Q6_K};

typedef struct product_spec {
    dtype type;
    cu_type inner, out_type;
    uint32_t rows, cols, n_out, w_rows[MATMUL_FUSED_MAX];
    bool bias, add;
    bool positive; // x about 4, all of it
} product_spec;

typedef struct product {
    product_spec spec;
    matmul_args a;
    uint32_t out_stride;
    float *x;                        // [rows, cols]
    float *w[MATMUL_FUSED_MAX];      // [w_rows, cols] as multiplied
    float *bias[MATMUL_FUSED_MAX];   // [w_rows]
    float *before[MATMUL_FUSED_MAX]; // [rows, out_stride]
    uint32_t n_first;                // of the rig's allocations
} product;

static inline void *product_alloc(size_t n) {
    void *p = aligned_alloc(256, (n + 256) / 256 * 256);
    INFERD_CHECK(p != NULL);
    return p;
}

/* ---- making ---- */

/* Random codes, scales that make values about 1/4 large; some scales are negative. */
static inline void product_block(dtype type, unsigned char *block) {
    static const struct {
        dtype type;
        uint8_t at, min_at; // of the half-precision scale and minimum; 0xff: none
        float scale, min;
    } fields[] = {{DTYPE_Q4_0, 0, 0xff, 0.05f, 0},     {DTYPE_Q4_1, 0, 2, 0.05f, -0.4f},
                  {DTYPE_Q5_0, 0, 0xff, 0.03f, 0},     {DTYPE_Q5_1, 0, 2, 0.03f, -0.4f},
                  {DTYPE_Q8_0, 0, 0xff, 0.003f, 0},    {DTYPE_Q4_K, 0, 2, 0.001f, 0.006f},
                  {DTYPE_Q5_K, 0, 2, 0.0005f, 0.006f}, {DTYPE_Q6_K, 208, 0xff, 0.0002f, 0}};
    dtype_info about = dtype_about((uint32_t)type);
    float f = 0.25f * rig_normal();
    uint16_t half = type == DTYPE_BF16 ? f32_to_bf16(f) : f32_to_f16(f);
    for (uint32_t i = 0; i < about.block_bytes; i++) block[i] = (unsigned char)rig_u32();
    if (type == DTYPE_F32) memcpy(block, &f, 4);
    if (type == DTYPE_F16 || type == DTYPE_BF16) memcpy(block, &half, 2);
    for (size_t i = 0; i < INFERD_COUNT(fields); i++) {
        if (fields[i].type != type) continue;
        float s = rig_uniform(0.5f, 1.5f) * (rig_below(4) == 0 ? -1.0f : 1.0f);
        half = f32_to_f16(s * fields[i].scale);
        memcpy(block + fields[i].at, &half, 2);
        half = f32_to_f16(s * fields[i].min);
        if (fields[i].min_at != 0xff) memcpy(block + fields[i].min_at, &half, 2);
    }
}

/* A matrix in device memory; its values, rounded to what is multiplied, in *values. */
static inline cu_matrix product_weights(cuda_rig *r, dtype type, cu_type inner, uint32_t rows,
                                        uint32_t cols, float **values) {
    dtype_info about = dtype_about((uint32_t)type);
    size_t n = (size_t)rows * cols, n_file = n / about.block_elems * about.block_bytes;
    size_t n_image = format_bytes(type, rows, cols);
    unsigned char *file = product_alloc(n_file), *image = product_alloc(n_image);
    for (size_t i = 0; i < n_file; i += about.block_bytes) product_block(type, file + i);
    cu_matrix host = format_matrix(type, rows, cols, image);
    inferd_err err = {0};
    EXPECT_EQ(format_prepare(&host, type, image, file, 0, rows, &err), INFERD_OK);
    *values = product_alloc(n * sizeof(float));
    format_to_f32(&host, 0, rows, *values);
    if (type == DTYPE_F32 || type == DTYPE_F16 || type == DTYPE_BF16)
        rig_round_all(inner, *values, n);
    cu_matrix m = format_matrix(type, rows, cols, rig_put(r, image, n_image));
    free(file);
    free(image);
    return m;
}

static inline void product_make_x(product *p, cuda_rig *r) {
    const product_spec *s = &p->spec;
    uint32_t stride = (s->cols + 7) / 8 * 8 + 8;
    float *x = product_alloc((size_t)s->rows * stride * sizeof *x);
    p->x = product_alloc((size_t)s->rows * s->cols * sizeof *x);
    for (uint32_t i = 0; i < s->rows; i++)
        for (uint32_t k = 0; k < stride; k++) {
            float v = s->positive ? rig_uniform(3, 5) : rig_normal();
            v = k < s->cols ? rig_round(s->inner, v) : NAN;
            x[(size_t)i * stride + k] = v;
            if (k < s->cols) p->x[(size_t)i * s->cols + k] = v;
        }
    p->a.x = rig_put_f32(r, s->inner, x, (size_t)s->rows * stride);
    p->a.x_type = s->inner;
    p->a.x_stride = stride;
    free(x);
}

static inline void product_make(product *p, cuda_rig *r, const product_spec *s) {
    *p = (product){.spec = *s, .n_first = r->n_allocs};
    p->a.rows = s->rows;
    p->a.inner = s->inner;
    p->a.n_out = s->n_out;
    p->a.add = s->add;
    product_make_x(p, r);
    for (uint32_t i = 0; i < s->n_out; i++)
        p->out_stride = u32_max(p->out_stride, (s->w_rows[i] + 7) / 8 * 8 + 8);
    size_t n = (size_t)s->rows * p->out_stride;
    for (uint32_t i = 0; i < s->n_out; i++) {
        p->a.out[i].w = product_weights(r, s->type, s->inner, s->w_rows[i], s->cols, &p->w[i]);
        if (s->bias) {
            p->bias[i] = rig_normals(s->w_rows[i], 1);
            p->a.out[i].bias = rig_put_f32(r, CU_F32, p->bias[i], s->w_rows[i]);
        }
        p->before[i] = product_alloc(n * sizeof(float));
        for (size_t j = 0; j < n; j++)
            p->before[i][j] = s->add && j % p->out_stride < s->w_rows[i] ? rig_normal() : NAN;
        p->a.out[i].out = rig_put_f32(r, s->out_type, p->before[i], n);
        p->a.out[i].out_type = s->out_type;
        p->a.out[i].out_stride = p->out_stride;
    }
    emul_settle(); // copies lie between the launch before and the next one
}

static inline void product_free(product *p, cuda_rig *r) {
    while (r->n_allocs > p->n_first) rig_free(r, r->allocs[r->n_allocs - 1]);
    free(p->x);
    for (int i = 0; i < MATMUL_FUSED_MAX; i++) {
        free(p->w[i]);
        free(p->bias[i]);
        free(p->before[i]);
    }
}

/* Outputs as they were before any launch. */
static inline void product_reset(const product *p, cuda_rig *r) {
    size_t n = (size_t)p->spec.rows * p->out_stride;
    void *host = product_alloc(n * sizeof(float));
    for (uint32_t i = 0; i < p->spec.n_out; i++) {
        rig_from_f32(p->spec.out_type, host, p->before[i], n);
        rig_write(r, p->a.out[i].out, host, n * rig_type_bytes(p->spec.out_type));
    }
    free(host);
    emul_settle();
}

/* Rows [0, n) of the weights are multiplied after they were expanded to 16 bits. */
static inline void product_round_weights(product *p, uint32_t n) {
    for (uint32_t i = 0; i < p->spec.n_out; i++)
        rig_round_all(p->spec.inner, p->w[i], (size_t)u32_min(n, p->spec.w_rows[i]) * p->spec.cols);
}

/* ---- checking ---- */

/* How large errors may be, relative: of float sums, of the output's rounding. */
static const double product_sum_error = 1e-5;
static inline double product_out_error(cu_type type) {
    return type == CU_F32 ? 0 : type == CU_BF16 ? 0x1p-8 : 0x1p-11;
}

/* A sum, and the length of the vector of its terms. */
static inline double product_dot(const product *p, uint32_t i, uint32_t row, uint32_t n,
                                 double *length) {
    const float *x = p->x + (size_t)row * p->spec.cols, *w = p->w[i] + (size_t)n * p->spec.cols;
    double sum = 0, squares = 0;
    for (uint32_t k = 0; k < p->spec.cols; k++) {
        double term = (double)x[k] * (double)w[k];
        sum += term;
        squares += term * term;
    }
    *length = sqrt(squares);
    if (p->spec.bias) sum += (double)p->bias[i][n];
    return sum;
}

/* Of matrix i; roundings: how often the output was rounded to its type.  Returns the error of sums,
 * as a multiple of what is allowed. */
static inline double product_check_one(const product *p, cuda_rig *r, uint32_t i, int roundings) {
    const product_spec *s = &p->spec;
    size_t n = (size_t)s->rows * p->out_stride;
    float *got = product_alloc(n * sizeof *got);
    rig_get_f32(r, s->out_type, got, p->a.out[i].out, n);
    double error = 0, length = 0, size = 0;
    uint32_t n_touched = 0;
    for (uint32_t row = 0; row < s->rows; row++)
        for (uint32_t col = 0; col < p->out_stride; col++) {
            size_t at = (size_t)row * p->out_stride + col;
            if (col >= s->w_rows[i]) { // up to a multiple of 8 launch_bias may write zeros
                bool zero = got[at] == 0 && col < (s->w_rows[i] + 7) / 8 * 8;
                n_touched += !isnan(got[at]) && !zero;
                continue;
            }
            double terms, want = product_dot(p, i, row, col, &terms);
            if (s->add) want += (double)p->before[i][at];
            double d = (double)got[at] - want;
            error += d * d;
            length += terms * terms;
            size += want * want;
        }
    free(got);
    EXPECT_EQ(n_touched, 0);
    double allowed = product_sum_error * sqrt(length) + 1e-7 * sqrt(size) +
                     roundings * product_out_error(s->out_type) * sqrt(size);
    if (sqrt(error) <= allowed) return sqrt(error) / allowed;
    printf("%s, %s to %s, %u rows of x, [%u, %u] (matrix %u)%s%s: error %.3g, allowed %.3g (seed "
           "%d)\n",
           dtype_about((uint32_t)s->type).name, rig_type_name(s->inner), rig_type_name(s->out_type),
           s->rows, s->w_rows[i], s->cols, i, s->bias ? ", bias" : "", s->add ? ", add" : "",
           sqrt(error), allowed, PRODUCT_SEED);
    test_failures++;
    return INFINITY;
}

static inline void product_check(const product *p, cuda_rig *r) {
    for (uint32_t i = 0; i < p->spec.n_out; i++) product_check_one(p, r, i, 1);
}

/* All outputs' bits; the caller frees. */
static inline unsigned char *product_bits(const product *p, cuda_rig *r, size_t *n) {
    size_t one = (size_t)p->spec.rows * p->out_stride * rig_type_bytes(p->spec.out_type);
    unsigned char *bits = product_alloc(one * p->spec.n_out);
    for (uint32_t i = 0; i < p->spec.n_out; i++) rig_read(r, bits + i * one, p->a.out[i].out, one);
    *n = one * p->spec.n_out;
    return bits;
}

#endif
