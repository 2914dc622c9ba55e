/* expand.h - weights of any format as 16-bit rows, for cuBLASLt.
 *
 * Thread: engine. */
#ifndef INFERD_CUDA_EXPAND_H
#define INFERD_CUDA_EXPAND_H

#include "cuda/layout.h"
#include "cuda/module.h"

enum {
    EXPAND_THREADS = 256,
    EXPAND_WARPS = EXPAND_THREADS / 32,
    EXPAND_ROW_BYTES =
        TILE_COLS * 2 + 16, // of a tile in shared memory: rows begin in different banks
    EXPAND_SHARED_BYTES = EXPAND_WARPS * TILE_ROWS * EXPAND_ROW_BYTES
};

typedef struct expand_params {
    cu_matrix w;
    void *out; // [n_rows, stride] inner
    uint32_t row_begin, n_rows, stride;
} expand_params;

typedef struct expand expand;

/* Looks up and loads the kernels of `inner`. */
inferd_status expand_create(const cuda_module *m, const cu_device *d, cu_type inner, expand **out,
                            inferd_err *err);
void expand_destroy(expand *e); // accepts NULL

/* Rows [row_begin, row_begin + n_rows) of `w`, rounded to inner, to out[n_rows, stride]; stride is
 * at least the number of columns rounded up to 8, and a multiple of 8.  Columns behind the last are
 * written as zeros up to that rounding; memory behind that is left alone. */
void expand_launch(launcher *l, const expand *e, const cu_matrix *w, uint32_t row_begin,
                   uint32_t n_rows, void *out, uint32_t stride);

#endif
