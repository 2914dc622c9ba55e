/* rows.h - operations on one row at a time: norms, embedding, rotary embedding with the store of
 * keys and values, gated activations, sums, gathers; and dummy weights.
 *
 * All are bound by latency at few rows and by bandwidth at many: one row per block of up to 512
 * threads (long rows: several blocks), 16 bytes per thread and access, values kept in registers
 * between passes.
 *
 * `rows` is the number of rows of the launch; the true count, if it matters (stores to KV), is in
 * view->header.  Pointers are device memory.  `inner` is the backend's 16-bit type, CU_BF16 or
 * CU_F16.
 *
 * Rows begin at multiples of 16 bytes: pointers are so aligned and strides are multiples of 8.  A
 * dim is any number.  Every row that is written (also x of norm and add) gets zeros in its columns
 * from dim to the next multiple of 8, so that readers of 16 bytes find numbers there; columns
 * behind, up to the stride, are left alone, since they may belong to another matrix.  Inputs may
 * hold anything behind dim.
 *
 * In place is allowed where types are the same: out == x (norm without add or gather, scale), out
 * == gate or up (glu).
 *
 * Thread: engine. */
#ifndef INFERD_CUDA_ROWS_H
#define INFERD_CUDA_ROWS_H

#include "cuda/layout.h"
#include "cuda/module.h"
#include "kernels/act_fn.h"

/* out[row] = x[row] * (mean(x^2) + eps)^-1/2 * w, x float or inner.  With `add` != NULL: x[row] +=
 * add[row] first, and the sum is written back to x (x float, add inner or float as add_type says).
 * With `gather` != NULL: row i reads x[gather[i]] (no add then). */
typedef struct norm_args {
    void *out;
    cu_type out_type;
    void *x;
    cu_type x_type;
    const void *add;
    cu_type add_type;
    const float *w; // [dim]
    const uint32_t *gather;
    float eps;
    uint32_t rows, dim;
    uint32_t x_stride, out_stride, add_stride; // elements
} norm_args;
void launch_norm(launcher *l, const norm_args *a);

/* out[row] = x[gather[row]] : copies of rows, any type to the same type. */
typedef struct gather_args {
    void *out;
    const void *x;
    const uint32_t *gather;
    cu_type type;
    uint32_t rows, dim, x_stride, out_stride;
} gather_args;
void launch_gather(launcher *l, const gather_args *a);

/* out[row] = table[token of the row] * scale, any cu_format; a token of -1 is drawn[pending[row]].
 * A drawn id of -1 (the row had no finite logit) or outside the table gives zeros. */
typedef struct embed_args {
    void *out;
    cu_type out_type; // CU_F32 or inner
    cu_matrix table;
    const step_view *view; // host memory, holds device pointers
    float scale;
    uint32_t rows, out_stride;
} embed_args;
void launch_embed(launcher *l, const embed_args *a);

/* Per row: q heads and k heads are normed (when q_norm/k_norm: x * (mean(x^2) + eps)^-1/2 * w over
 * head_dim), rotated by their position, q is written back in place (inner), k and v are stored in
 * the slots of layer_idx.  k itself is written back too when write_k.  Stored values are rounded
 * once, from float to the type of the KV.  Rows from header->n_rows on store nothing.
 *
 * head_dim is a multiple of 8, at most ROPE_HEAD_DIM_MAX.  n_kv_heads 0: q only (a head norm, say).
 *
 * cos/sin come from a table in device memory (rope_table_rows); q is multiplied by the growth of
 * its position after the rotation.  Dimensions from 2 * n_pairs on are not rotated. */
enum { ROPE_HEAD_DIM_MAX = 256 };
typedef struct rope_args {
    void *q, *k;
    const void *v; // NULL: only rotate q and k (in place), store nothing
    cu_type inner;
    const float *q_norm, *k_norm; // [head_dim] or NULL
    float norm_eps;
    const float *table; // NULL: no rotation
    uint32_t n_pairs;
    bool interleaved;
    bool grows; // the table has growths
    bool write_k;
    const step_view *view;
    const kv_view *kv; // may be NULL when v is NULL
    uint32_t layer_idx;
    uint32_t n_heads, n_kv_heads, head_dim;
    uint32_t rows, q_stride, k_stride, v_stride;
} rope_args;
void launch_rope(launcher *l, const rope_args *a);

/* A rope table: for each position n_pairs cosines, as many sines, and the growth if there is one;
 * floats from one position to the next.  Rows begin at multiples of 16 bytes if n_pairs is even. */
static inline uint32_t rope_table_stride(uint32_t n_pairs, bool grows) {
    return 2 * n_pairs + (grows ? 4 : 0);
}
/* Rows [begin, end), row `begin` at `out`: cos and sin of position * inv_freq[i], times scale, and
 * the growth, as in kernels/cpu (in double, rounded to float).  On the host. */
struct rope_spec; // backend.h
void rope_table_rows(const struct rope_spec *r, uint32_t begin, uint32_t end, float *out);

/* out = act(gate) * up (act_fn.h).  All inner. */
typedef enum glu_kind {
    GLU_SILU = ACT_SILU,
    GLU_GELU_TANH = ACT_GELU_TANH,
    GLU_CLAMPED_SWIGLU = ACT_CLAMPED_SWIGLU
} glu_kind;
typedef struct glu_args {
    void *out;
    const void *gate, *up;
    cu_type inner;
    glu_kind kind;
    uint32_t rows, dim, stride; // one stride for all three
} glu_args;
void launch_glu(launcher *l, const glu_args *a);

/* x[row] += y[row]; x float or inner, y float or inner. */
typedef struct add_args {
    void *x;
    const void *y;
    cu_type x_type, y_type;
    uint32_t rows, dim, x_stride, y_stride;
} add_args;
void launch_add(launcher *l, const add_args *a);

/* x[row] += bias, when the kernel of the matrix could not add it.  x float or inner. */
typedef struct bias_args {
    void *x;
    cu_type type;
    const float *bias; // [dim]
    uint32_t rows, dim, stride;
} bias_args;
void launch_bias(launcher *l, const bias_args *a);

/* x = cap * tanh(x / cap), float logits. */
typedef struct softcap_args {
    float *x;
    float cap;
    uint32_t rows, dim, stride;
} softcap_args;
void launch_softcap(launcher *l, const softcap_args *a);

/* out[row] = x[row] * factor; out float or inner, and x of its type or float. */
typedef struct scale_args {
    void *out;
    const void *x;
    cu_type out_type, x_type;
    float factor;
    uint32_t rows, dim, x_stride, out_stride;
} scale_args;
void launch_scale(launcher *l, const scale_args *a);

/* The matrix of dummy_math.h for `seed`, written in the layout of m->format, padding included: the
 * bytes that format_prepare makes from dummy_file_rows. */
typedef struct dummy_args {
    cu_matrix m;
    void *data, *low, *high, *scales; // the same as in m, to write
    uint32_t file_type;               // dtype of the file it stands for
    uint64_t seed;
    float scale; // standard deviation
} dummy_args;
void launch_dummy(launcher *l, const dummy_args *a);

/* Look up and load the family's kernels before any launch.  All devices use one module. */
inferd_status rows_init(const cuda_module *m, const cu_device *d, inferd_err *err);

#endif
