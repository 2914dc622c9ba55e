/* experts.h - a mixture of experts: each row through the networks that its logits choose.
 *
 * The host does not know which experts a step uses, so launches depend on the number of rows alone,
 * and kernels find their work on the device: no copy, no wait, and one captured graph for all
 * routings.
 *
 *     route     each row: its experts, ascending, and their weights     a block per row
 *     sort      slots, one for each row and expert of it: by expert, then by row; the list of
 *               experts that have rows                                  a block per expert
 *     hidden    act(gate x + bg, up x + bu) of each slot                blocks (features, experts
 *     down      parts = down hidden + bd of each slot                   with rows)
 *     sum       out = weighted sum of the parts of each row             a block per row
 *
 * A block of a product belongs to 16 features (gate and up of them; down: 32) of one expert of the
 * list and multiplies all of its rows, as many at once as one of three kernels per format does: 8
 * (in a launch of at most 8), 32, or 64 when experts have more than 16 on average.  It reads its
 * weights once for so many rows, and again, soon after, for every further ones; experts without
 * rows are not read.
 *
 * Always: a row's bits depend on this row alone.  Columns are cut by the shape of the matrix, sums
 * of tensor cores are formed per row, and the parts of a row are added in ascending order of its
 * experts.
 *
 * Thread: engine. */
#ifndef INFERD_CUDA_EXPERTS_H
#define INFERD_CUDA_EXPERTS_H

#include "cuda/layout.h"
#include "cuda/module.h"
#include "cuda/rows.h"

enum { EXPERTS_MAX = 1024, EXPERTS_USED_MAX = 32 };

/* The matrices of one role: of one format and shape, at equal distances. */
typedef struct experts_matrices {
    cu_matrix first;   // of expert 0
    uint64_t step;     // bytes from one to the next
    const float *bias; // [n_experts, first.rows] or NULL
} experts_matrices;

typedef struct experts_args {
    const void *x; // [rows, dim] inner
    cu_type inner;
    const float *logits; // [rows, n_experts]
    uint32_t x_stride, logits_stride;
    experts_matrices gate, up, down; // [ffn, dim] twice, [dim, ffn]
    glu_kind act;
    uint32_t n_experts, n_used;
    void *hidden; // scratch [rows * n_used, ffn] inner
    void *parts;  // scratch [rows * n_used, dim] inner or float
    cu_type parts_type;
    uint32_t hidden_stride, parts_stride;
    void *out; // [rows, dim] inner or float; may be x
    cu_type out_type;
    uint32_t out_stride;
    uint32_t rows;
    const uint32_t *n_valid; // in device memory: rows from there on become zeros; NULL: none do
    uint32_t n_counts; // the first mixture of a step: counts of so many experts begin at 0; else 0
} experts_args;

/* Device memory; zeros before its first use. */
typedef struct experts_workspace {
    void *base;     // experts_workspace_bytes(n_slots), 16-byte aligned
    size_t n_slots; // rows * n_used of the largest step
} experts_workspace;
size_t experts_workspace_bytes(size_t n_slots);
/* Of the step's mixtures so far, in device memory: the number of experts that were read, then the
 * rows of each expert. */
const uint32_t *experts_tally(const experts_workspace *w);

inferd_status experts_init(const cuda_module *m, const cu_device *d, inferd_err *err);
void launch_experts(launcher *l, const experts_workspace *w, const experts_args *a);
/* Its parts in their order, for tests. */
void launch_experts_route(launcher *l, const experts_workspace *w, const experts_args *a);
void launch_experts_sort(launcher *l, const experts_workspace *w, const experts_args *a);
void launch_experts_hidden(launcher *l, const experts_workspace *w, const experts_args *a);
void launch_experts_down(launcher *l, const experts_workspace *w, const experts_args *a);
void launch_experts_sum(launcher *l, const experts_workspace *w, const experts_args *a);

#endif
