/* matmul.h - activations times weights, and the choice of a kernel for each matrix.
 *
 *     out[row, n] = x[row, k] . w[n, k] + bias[n]       sums in float
 *
 *     rows 1..4      gemv     streams the weights once; norm before, gated activation or residual
 *                             after, in the same launch                                gemv.cu
 *     rows 5..8      gemv     if the saved launches pay for it (gemv_pays)
 *     rows 5..64     skinny   tensor cores, mma.sync with the weights as A; cp.async ring; split-K
 *                             with a reduction in fixed order                          skinny.cu
 *     rows 65..128   skinny   in groups of 64 rows, weights that would be expanded
 *     more           large    cuBLASLt for 16-bit weights of the activations' type; of others as
 *                             many rows as fit are expanded and multiplied    lt.c, expand.cu
 *
 * Products without cuBLASLt, or that it does not take (addresses must be multiples of 256 bytes,
 * rows of 16), go through skinny in groups of 64 rows: slower, and counted as such.  Each choice is
 * counted (matmul_paths), so that a test can check the path of a matrix.
 *
 * Dependent launches read weights before the launch before them has ended: no kernel that writes
 * weights may be that launch.
 *
 * Thread: engine. */
#ifndef INFERD_CUDA_MATMUL_H
#define INFERD_CUDA_MATMUL_H

#include "cuda/layout.h"
#include "cuda/module.h"
#include "cuda/rows.h"

enum {
    GEMV_ROWS_MAX = 4,
    SKINNY_ROWS_MAX = 64,
    SKINNY_GROUPS_ROWS_MAX = 128, // in groups of SKINNY_ROWS_MAX
    MATMUL_FUSED_MAX = 3
};

/* Up to three matrices that read the same x in one launch (q, k, v), or a gate/up pair. */
typedef struct matmul_args {
    const void *x;
    cu_type x_type; // CU_F32 only with norm (gemv), else inner
    uint32_t x_stride, rows;
    cu_type inner;

    /* gemv only: x is normed first (x_type is float; rounded to inner like launch_norm) */
    const float *norm; // [k] or NULL
    float norm_eps;
    const uint32_t *gather; // with norm: row i reads x[gather[i]]; or NULL

    uint32_t n_out; // 1..3 matrices
    struct {
        cu_matrix w;
        const float *bias; // [w.rows] or NULL
        void *out;
        cu_type out_type; // inner or CU_F32
        uint32_t out_stride;
    } out[MATMUL_FUSED_MAX];

    bool add;     // out += instead of =, out_type CU_F32 (residual); one matrix
    bool glu;     // out[0].w is gate, out[1].w is up (same shape): out[0].out = act(gate) * up
    glu_kind act; // with glu
} matmul_args;

typedef struct matmul_paths {
    uint64_t gemv, skinny; // launches
    uint64_t lt, expanded; // matrices, with any number of launches
    uint64_t skinny_large; // matrices, or parts that cuBLASLt did not take of expanded ones
} matmul_paths;

/* Workspace of products; owned by the backend, pool memory. */
typedef struct matmul_workspace {
    void *partials; // [partials_bytes] split-K sums of gemv and skinny
    size_t partials_bytes;
    uint32_t *counters; // [n_counters] zero between launches (kernels leave them so)
    uint32_t n_counters;
    void *lt; // [lt_bytes] cuBLASLt's
    size_t lt_bytes;
    void *expand; // [expand_bytes] 16-bit copy of (a part of) a quantised matrix
    size_t expand_bytes;
} matmul_workspace;
enum { MATMUL_PARTIALS_BYTES = 16 << 20, MATMUL_COUNTERS = 1 << 16, MATMUL_LT_BYTES = 32 << 20 };

typedef struct matmul matmul; // choices, tuning, path counts

/* Looks up and loads kernels.  tune_path: file for measured choices of cuBLASLt (by device,
 * library version and shape), may be NULL.  lt: the library is open. */
inferd_status matmul_create(const cuda_module *m, const cu_device *d, cu_type inner, bool lt,
                            const char *tune_path, matmul **out, inferd_err *err);
void matmul_destroy(matmul *mm); // accepts NULL
/* Two formats in one launch of gemv; gemv for 5 to 8 rows; groups of skinny for 65 to 128 rows. All
 * are allowed at first. */
void matmul_allow(matmul *mm, bool mixed, bool gemv8, bool skinny128);
/* Before memory is counted: lets cuBLASLt take the memory that its first product takes.
 * Needs no workspace. */
inferd_status matmul_warm(matmul *mm, launcher *l, inferd_err *err);
void matmul_set_workspace(matmul *mm, const matmul_workspace *w);

/* Can this be one launch, or one for each group of 64 rows (more rows: only one matrix)?
 * Norm and glu need rows <= GEMV_ROWS_MAX (or gemv_pays), several matrices rows <= SKINNY_ROWS_MAX
 * and one format.  The program asks before it fuses. */
bool matmul_can_fuse(const matmul *mm, const matmul_args *a);
/* Launch.  Several matrices that cannot be one launch are one launch each; a norm or glu that
 * cannot be fused is a bug. */
void launch_matmul(launcher *l, matmul *mm, const matmul_args *a);

/* The three ways, for tests and benches. */
void launch_gemv(launcher *l, matmul *mm, const matmul_args *a);   // rows 1..8
void launch_skinny(launcher *l, matmul *mm, const matmul_args *a); // rows 1..64, no norm, no glu
void launch_large(launcher *l, matmul *mm, const matmul_args *a);  // any rows, no norm, no glu

/* 16-bit copy, row-major with `stride`, of rows [row_begin, row_begin + n_rows) of a matrix of any
 * format. */
void launch_expand(launcher *l, matmul *mm, const cu_matrix *w, uint32_t row_begin, uint32_t n_rows,
                   void *out, uint32_t stride, cu_type inner);

/* Time the library's candidates for the shapes of these matrices and every bucket of more than 64
 * rows, at most budget_us of device time in all, on the weights themselves, alternating; results go
 * to the tune file.  x, outputs and expanded weights of the trials overwrite workspace.expand;
 * shapes that do not fit there, or are not reached in time, keep the library's first choice.  Every
 * choice, measured now or before, is run once, so that its code is loaded before a capture: useful
 * with a budget of 0 too.  No capture may be open. */
inferd_status matmul_tune(matmul *mm, launcher *l, const cu_matrix *weights, uint32_t n,
                          uint64_t budget_us, inferd_err *err);

void matmul_count_paths(const matmul *mm, matmul_paths *out);

#endif
