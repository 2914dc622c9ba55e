/* expand.c - the choice of the expanding kernel, and its grid.
 *
 * Thread: engine. */
#include "cuda/expand.h"

struct expand {
    const cu_kernel *kernels[CU_FORMATS];
};

inferd_status expand_create(const cuda_module *m, const cu_device *d, cu_type inner, expand **out,
                            inferd_err *err) {
    static const char *const names[CU_FORMATS] = {
        [CU_FMT_F32] = "f32", [CU_FMT_BF16] = "bf16", [CU_FMT_F16] = "f16",
        [CU_FMT_Q4] = "q4",   [CU_FMT_Q4M] = "q4m",   [CU_FMT_Q5] = "q5",
        [CU_FMT_Q5M] = "q5m", [CU_FMT_Q6] = "q6",     [CU_FMT_Q8] = "q8",
    };
    (void)d;
    INFERD_CHECK(inner == CU_BF16 || inner == CU_F16);
    expand *e = calloc(1, sizeof *e);
    if (e == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for the kernels that expand weights");
    for (uint32_t f = 0; f < CU_FORMATS; f++) {
        char name[32];
        snprintf(name, sizeof name, "expand_%s_%s", names[f], inner == CU_BF16 ? "bf16" : "f16");
        inferd_status s = INFERD_OK;
        e->kernels[f] = module_find(m, name);
        if (e->kernels[f] == NULL)
            s = inferd_fail(err, INFERD_EUNSUPPORTED, "the CUDA module has no kernel %s", name);
        else
            s = module_load(m, e->kernels[f], EXPAND_THREADS, EXPAND_SHARED_BYTES, err);
        if (s != INFERD_OK) {
            expand_destroy(e);
            return s;
        }
    }
    *out = e;
    return INFERD_OK;
}

void expand_destroy(expand *e) {
    free(e);
}

void expand_launch(launcher *l, const expand *e, const cu_matrix *w, uint32_t row_begin,
                   uint32_t n_rows, void *out, uint32_t stride) {
    INFERD_CHECK(row_begin + n_rows <= w->rows && stride % 8 == 0 && stride >= w->cols);
    if (n_rows == 0) return;
    expand_params p = {
        .w = *w, .out = out, .row_begin = row_begin, .n_rows = n_rows, .stride = stride};
    uint64_t work; // of a thread in dense matrices: 8 columns; of a warp in others: a tile
    uint32_t per_block = EXPAND_THREADS;
    if (w->format <= CU_FMT_F16) {
        work = (uint64_t)n_rows * ((w->cols + 7) / 8);
    } else {
        uint32_t first = row_begin / TILE_ROWS, end = (row_begin + n_rows - 1) / TILE_ROWS + 1;
        work = (uint64_t)(end - first) * w->n_col_tiles;
        per_block = EXPAND_WARPS;
    }
    launch(l, e->kernels[w->format], (uint32_t)((work + per_block - 1) / per_block), 1, 1,
           EXPAND_THREADS, EXPAND_SHARED_BYTES, &p, sizeof p);
}
