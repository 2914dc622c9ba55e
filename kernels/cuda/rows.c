/* rows.c - launchers of the row kernels: the choice of kernel, blocks and threads.
 *
 * Kernels are found once, by the names that rows.cu makes from their types.  The process has one
 * table: engines that start at the same time write the same pointers into it.
 *
 * Thread: engine; rows_init also from several at once. */
#include "cuda/rows.h"

#include <math.h>
#include <stdio.h>

#include "cuda/rows_params.h"
#include "dummy.h"
#include "kernels/backend.h"

enum { NO_TYPE = CU_F16 + 1, N_TYPES, CHUNK = 8 }; // a second operand may be absent

static const char *const type_names[N_TYPES] = {"f32", "bf16", "f16", "none"};

/* By type of x, of the second operand, of the result; NULL where there is none. */
static const cu_kernel *norm[N_TYPES][N_TYPES][N_TYPES], *add[N_TYPES][N_TYPES];
static const cu_kernel *embed[N_TYPES], *rope[N_TYPES], *glu[N_TYPES], *bias[N_TYPES],
    *scale[N_TYPES][N_TYPES];
static const cu_kernel *gather, *softcap, *dummy;

/* ---- finding ---- */

typedef struct finder {
    const cuda_module *m;
    inferd_err *err;
    inferd_status status;
} finder;

static void find(finder *f, const cu_kernel **out, uint32_t threads, uint32_t shared_bytes,
                 const char *name) {
    if (f->status != INFERD_OK) return;
    const cu_kernel *k = module_find(f->m, name);
    if (k == NULL) {
        f->status = inferd_fail(f->err, INFERD_EUNSUPPORTED, "the module has no kernel %s", name);
        return;
    }
    f->status = module_load(f->m, k, threads, shared_bytes, f->err);
    if (f->status == INFERD_OK) __atomic_store_n(out, k, __ATOMIC_RELAXED);
}

/* "<op>_<a>", "<op>_<a>_<b>", "<op>_<a>_<b>_<c>": names end at the first -1. */
static void find_typed(finder *f, const cu_kernel **out, uint32_t threads, uint32_t shared_bytes,
                       const char *op, int a, int b, int c) {
    char name[48];
    int n = snprintf(name, sizeof name, "%s_%s", op, type_names[a]);
    if (b >= 0) n += snprintf(name + n, sizeof name - (size_t)n, "_%s", type_names[b]);
    if (c >= 0) snprintf(name + n, sizeof name - (size_t)n, "_%s", type_names[c]);
    find(f, out, threads, shared_bytes, name);
}

/* bf16 and f16 never meet: a backend has one inner type. */
static bool meet(int a, int b) {
    return a == b || a == CU_F32 || b == CU_F32 || a == NO_TYPE || b == NO_TYPE;
}

static void find_norms(finder *f) {
    for (int x = 0; x < NO_TYPE; x++)
        for (int a = 0; a < N_TYPES; a++)
            for (int out = 0; out < NO_TYPE; out++) {
                if (!meet(x, out) || !meet(a, out)) continue;
                if (x != CU_F32 && a != NO_TYPE) continue; // the sum goes back to a float
                find_typed(f, &norm[x][a][out], NORM_THREADS, NORM_SHARED_BYTES, "norm", x, a, out);
            }
}

inferd_status rows_init(const cuda_module *m, const cu_device *d, inferd_err *err) {
    (void)d; // every kernel runs from compute capability 8.0 on
    finder f = {m, err, INFERD_OK};
    find_norms(&f);
    for (int x = 0; x < NO_TYPE; x++)
        for (int y = 0; y < NO_TYPE; y++)
            if (meet(x, y)) find_typed(&f, &add[x][y], FLAT_THREADS, 0, "add", x, y, -1);
    for (int t = 0; t < NO_TYPE; t++) {
        find_typed(&f, &embed[t], EMBED_THREADS, 0, "embed", t, -1, -1);
        find_typed(&f, &bias[t], FLAT_THREADS, 0, "bias", t, -1, -1);
        find_typed(&f, &scale[t][t], FLAT_THREADS, 0, "scale", t, t, -1);
        if (t != CU_F32) find_typed(&f, &scale[CU_F32][t], FLAT_THREADS, 0, "scale", CU_F32, t, -1);
        if (t == CU_F32) continue;
        find_typed(&f, &rope[t], ROPE_THREADS, 0, "rope", t, -1, -1);
        find_typed(&f, &glu[t], FLAT_THREADS, 0, "glu", t, -1, -1);
    }
    find(&f, &gather, FLAT_THREADS, 0, "gather");
    find(&f, &softcap, FLAT_THREADS, 0, "softcap");
    find(&f, &dummy, DUMMY_THREADS, 0, "dummy");
    return f.status;
}

/* ---- launching ---- */

static void launch_one(launcher *l, const cu_kernel *const *slot, uint32_t grid_x, uint32_t grid_y,
                       uint32_t threads, uint32_t shared_bytes, const void *params,
                       uint32_t params_bytes) {
    const cu_kernel *k = __atomic_load_n(slot, __ATOMIC_RELAXED);
    INFERD_CHECK(k != NULL); // rows_init found every allowed pair of types
    launch(l, k, grid_x, grid_y, 1, threads, shared_bytes, params, params_bytes);
}

static uint32_t up_to(uint32_t n, uint32_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

static uint32_t chunks(uint32_t dim) {
    return (dim + CHUNK - 1) / CHUNK;
}

static bool is_row(const void *p, uint32_t dim, uint32_t stride) {
    return (uintptr_t)p % 16 == 0 && stride % CHUNK == 0 && stride >= dim;
}

/* A chunk per thread, a row per grid_x. */
static void launch_flat(launcher *l, const cu_kernel *const *k, uint32_t rows, uint32_t dim,
                        const void *params, uint32_t params_bytes) {
    uint32_t n = chunks(dim), threads = u32_min(up_to(n, 32), FLAT_THREADS);
    if (n == 0) return;
    launch_one(l, k, rows, (n + threads - 1) / threads, threads, 0, params, params_bytes);
}

/* Threads with the fewest idle ones: the passes that NORM_THREADS would need, spread evenly. */
static uint32_t norm_threads(uint32_t dim) {
    uint32_t n = chunks(dim), passes = (n + NORM_THREADS - 1) / NORM_THREADS;
    return up_to((n + passes - 1) / passes, 32);
}

void launch_norm(launcher *l, const norm_args *a) {
    if (a->rows == 0 || a->dim == 0) return;
    INFERD_CHECK(is_row(a->out, a->dim, a->out_stride) && is_row(a->x, a->dim, a->x_stride));
    INFERD_CHECK(a->add == NULL || (is_row(a->add, a->dim, a->add_stride) && a->gather == NULL));
    INFERD_CHECK((uintptr_t)a->w % 16 == 0);
    launch_one(l, &norm[a->x_type][a->add != NULL ? (int)a->add_type : NO_TYPE][a->out_type],
               a->rows, 1, norm_threads(a->dim), NORM_SHARED_BYTES, a, sizeof *a);
}

void launch_gather(launcher *l, const gather_args *a) {
    if (a->rows == 0) return;
    INFERD_CHECK(is_row(a->out, a->dim, a->out_stride) && is_row(a->x, a->dim, a->x_stride));
    uint32_t halves = up_to(a->dim, CHUNK) * (a->type == CU_F32 ? 2 : 1);
    launch_flat(l, &gather, a->rows, halves, a, sizeof *a);
}

void launch_embed(launcher *l, const embed_args *a) {
    if (a->rows == 0 || a->table.cols == 0) return;
    INFERD_CHECK(is_row(a->out, a->table.cols, a->out_stride));
    bool dense = a->table.format <= CU_FMT_F16;
    uint32_t lanes = dense ? chunks(a->table.cols) : a->table.n_col_tiles * 4;
    embed_params p = {a->out, a->table, *a->view, a->scale, a->out_stride};
    launch_one(l, &embed[a->out_type], a->rows, 1, u32_min(up_to(lanes, 32), EMBED_THREADS), 0, &p,
               sizeof p);
}

void launch_rope(launcher *l, const rope_args *a) {
    if (a->rows == 0 || a->n_heads + a->n_kv_heads == 0) return;
    INFERD_CHECK(a->head_dim % CHUNK == 0 && a->head_dim <= ROPE_HEAD_DIM_MAX);
    INFERD_CHECK(a->table == NULL || 2 * a->n_pairs <= a->head_dim);
    INFERD_CHECK(is_row(a->q, a->n_heads * a->head_dim, a->q_stride));
    INFERD_CHECK(is_row(a->k, a->n_kv_heads * a->head_dim, a->k_stride));
    INFERD_CHECK(is_row(a->v, a->v != NULL ? a->n_kv_heads * a->head_dim : 0, a->v_stride));
    INFERD_CHECK(a->v == NULL || (a->kv->head_dim == a->head_dim && a->kv->type != CU_F32 &&
                                  a->kv->n_kv_heads == a->n_kv_heads));
    rope_params p = {
        .q = a->q,
        .k = a->k,
        .v = a->v,
        .q_norm = a->q_norm,
        .k_norm = a->k_norm,
        .table = a->table,
        .view = *a->view,
        .norm_eps = a->norm_eps,
        .n_pairs = a->n_pairs,
        .table_stride = rope_table_stride(a->n_pairs, a->grows),
        .interleaved = a->interleaved,
        .grows = a->grows && a->table != NULL,
        .write_k = a->write_k,
        .layer_idx = a->layer_idx,
        .n_heads = a->n_heads,
        .n_kv_heads = a->n_kv_heads,
        .head_dim = a->head_dim,
        .head_lanes = 1,
        .q_stride = a->q_stride,
        .k_stride = a->k_stride,
        .v_stride = a->v_stride,
    };
    if (a->v != NULL) p.kv = *a->kv;
    while (p.head_lanes < a->head_dim / CHUNK) p.head_lanes *= 2;
    uint32_t items = a->n_heads + a->n_kv_heads * (a->v != NULL ? 2 : 1);
    uint32_t lanes = items * p.head_lanes, threads = u32_min(up_to(lanes, 32), ROPE_THREADS);
    launch_one(l, &rope[a->inner], a->rows, (lanes + threads - 1) / threads, threads, 0, &p,
               sizeof p);
}

void launch_glu(launcher *l, const glu_args *a) {
    if (a->rows == 0) return;
    INFERD_CHECK(is_row(a->out, a->dim, a->stride) && is_row(a->gate, a->dim, a->stride) &&
                 is_row(a->up, a->dim, a->stride));
    launch_flat(l, &glu[a->inner], a->rows, a->dim, a, sizeof *a);
}

void launch_add(launcher *l, const add_args *a) {
    if (a->rows == 0) return;
    INFERD_CHECK(is_row(a->x, a->dim, a->x_stride) && is_row(a->y, a->dim, a->y_stride));
    launch_flat(l, &add[a->x_type][a->y_type], a->rows, a->dim, a, sizeof *a);
}

void launch_bias(launcher *l, const bias_args *a) {
    if (a->rows == 0) return;
    INFERD_CHECK(is_row(a->x, a->dim, a->stride) && (uintptr_t)a->bias % 16 == 0);
    launch_flat(l, &bias[a->type], a->rows, a->dim, a, sizeof *a);
}

void launch_softcap(launcher *l, const softcap_args *a) {
    if (a->rows == 0) return;
    INFERD_CHECK(is_row(a->x, a->dim, a->stride));
    launch_flat(l, &softcap, a->rows, a->dim, a, sizeof *a);
}

void launch_scale(launcher *l, const scale_args *a) {
    if (a->rows == 0) return;
    INFERD_CHECK(is_row(a->x, a->dim, a->x_stride) && is_row(a->out, a->dim, a->out_stride));
    launch_flat(l, &scale[a->x_type][a->out_type], a->rows, a->dim, a, sizeof *a);
}

/* How codes of the file type become those of the format (pieces.h). */
static void map_codes(dtype type, uint32_t format, dummy_params *p) {
    const int8_t *book = dtype_codebook(type);
    int offset = format == CU_FMT_Q5 ? 16 : 128;
    for (uint32_t code = 0; book != NULL && code < 16; code++) {
        uint32_t as = type == DTYPE_MXFP4 ? code : dummy_book_code(code);
        p->book[code / 4] |= (uint32_t)(book[as] + offset) << (8 * (code % 4));
    }
    p->lift = type == DTYPE_Q3_K ? 32 - 4 : 0;
}

void launch_dummy(launcher *l, const dummy_args *a) {
    dummy_params p = {a->m, a->data, a->low, a->high, a->scales, {0}, a->seed, {0}, 0};
    INFERD_CHECK(dummy_form_of((dtype)a->file_type, a->scale, &p.form));
    bool dense = a->m.format <= CU_FMT_F16;
    INFERD_CHECK((p.form.bits == 0 || a->file_type == DTYPE_Q2_K) == dense);
    map_codes((dtype)a->file_type, a->m.format, &p);
    uint64_t threads; // a chunk each, or a warp for each tile
    if (dense)
        threads = (uint64_t)up_to(a->m.rows, TILE_ROWS) * (a->m.stride / CHUNK);
    else
        threads = (uint64_t)a->m.n_row_tiles * a->m.n_col_tiles * 32;
    uint32_t blocks = (uint32_t)((threads + DUMMY_THREADS - 1) / DUMMY_THREADS);
    launch_one(l, &dummy, blocks, 1, DUMMY_THREADS, 0, &p, sizeof p);
}

/* ---- the table of rotary embedding ---- */

void rope_table_rows(const rope_spec *r, uint32_t begin, uint32_t end, float *out) {
    uint32_t n = r->n_pairs, stride = rope_table_stride(n, r->growth != 0);
    for (uint32_t pos = begin; pos < end; pos++) {
        float *cosine = out + (size_t)(pos - begin) * stride, *sine = cosine + n;
        for (uint32_t i = 0; i < n; i++) {
            double angle = (double)pos * (double)r->inv_freq[i];
            cosine[i] = (float)(cos(angle) * (double)r->scale);
            sine[i] = (float)(sin(angle) * (double)r->scale);
        }
        for (uint32_t i = 2 * n; i < stride; i++)
            cosine[i] = (float)(1 + (double)r->growth * log1p((double)(pos / r->growth_length)));
    }
}
