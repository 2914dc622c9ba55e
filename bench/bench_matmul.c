/* bench_matmul.c - activations times weights, one product at a time (see gpu.h for timing).
 *
 *     gemv       1 to 4 rows
 *     skinny     1 to 64 rows
 *     large      more than 64 rows: cuBLASLt, quantised weights expanded
 *     lt_first   cuBLASLt alone, 16-bit weights, its first suggestion
 *     lt_best    the fastest of its candidates
 *     lt_best_0  the same without workspace
 *     fused      gate and up with norm before and activation after, in one launch
 *
 * The products cycle through at least three copies of the weights and GPU_COLD_MIB.  bytes =
 * weights as stored in memory + 2 bytes for each number of x and out. */
#include <string.h>

#include "cuda/formats.h"
#include "cuda/gemv.h"
#include "cuda/matmul.h"
#include "cuda/skinny.h"
#include "gpu.h"

enum { SETS_MAX = 64, CANDIDATES = 8, TRIAL_REPLAYS = 3, ROWS_MAX = 2048 };
enum { HEAD_ROWS = 100000, HEAD_LOGITS_MAX = 256 }; // the head only gets rows to sample from

typedef struct shape {
    const char *name;
    uint32_t n, k;
    bool glu; // also as a pair of n / 2 rows
} shape;

static const shape shapes[] = {
    {"8b qkv", 6144, 4096, false},     {"8b o", 4096, 4096, false},
    {"8b gate+up", 28672, 4096, true}, {"8b down", 4096, 14336, false},
    {"8b head", 128256, 4096, false},  {"1b qkv", 3072, 2048, false},
    {"1b o", 2048, 2048, false},       {"1b gate+up", 16384, 2048, true},
    {"1b down", 2048, 8192, false},    {"1b head", 128256, 2048, false},
};
static const shape tiny_shapes[] = {{"tiny", 64, 256, true}};

static const dtype types[] = {DTYPE_BF16, DTYPE_Q8_0, DTYPE_Q4_K, DTYPE_Q6_K};
static const uint32_t row_counts[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2048};
static const uint32_t tiny_row_counts[] = {1, 8, 70};

typedef struct work {
    matmul *mm;
    gpu_matrix w[SETS_MAX], up[SETS_MAX];
    uint32_t n_sets;
    matmul_args a;
    void (*way)(launcher *l, matmul *mm, const matmul_args *a);
    /* cuBLASLt alone */
    lt_shape lt;
    lt_algo algo;
    void *workspace;
    size_t workspace_bytes;
} work;

static void queue_way(gpu *g, void *ctx, uint32_t i) {
    work *w = ctx;
    matmul_args a = w->a;
    a.out[0].w = w->w[i % w->n_sets].m;
    if (a.glu) a.out[1].w = w->up[i % w->n_sets].m;
    w->way(&g->l, w->mm, &a);
}

static void queue_lt(gpu *g, void *ctx, uint32_t i) {
    work *w = ctx;
    cu_result r = g->api->lt_matmul(&w->lt, &w->algo, w->a.x, w->w[i % w->n_sets].m.data,
                                    w->a.out[0].out, w->workspace, w->workspace_bytes, g->l.stream);
    launch_failed(&g->l, r, "cuBLASLt");
}

static void tell(const shape *s, dtype type, uint32_t rows, const char *way, const gpu_time *t,
                 size_t weight_bytes) {
    row_begin("matmul");
    row_text("shape", s->name);
    row_text("type", dtype_about(type).name);
    row_text("way", way);
    row_count("n", s->n);
    row_count("k", s->k);
    row_count("rows", rows);
    row_time(t);
    row_rate(t, (double)weight_bytes + 2.0 * rows * ((double)s->n + s->k),
             2.0 * rows * s->n * s->k);
    row_end();
}

/* Loads the algorithm's code; false: it does not run. */
static bool runs(gpu *g, work *w) {
    cu_result r = g->api->lt_matmul(&w->lt, &w->algo, w->a.x, w->w[0].m.data, w->a.out[0].out,
                                    w->workspace, w->workspace_bytes, g->l.stream);
    if (r == CU_OK) gpu_sync(g);
    if (r == CU_ELOST) gpu_need(g, r, "cuBLASLt");
    return r == CU_OK;
}

/* The fastest of the library's candidates, each timed separately; false: it has none. */
static bool best_candidate(gpu *g, work *w, size_t workspace_bytes, gpu_time *first,
                           gpu_time *best) {
    lt_algo algos[CANDIDATES];
    uint32_t n = 0;
    w->workspace_bytes = workspace_bytes;
    if (g->api->lt_candidates(&w->lt, workspace_bytes, g->tiny ? 2 : CANDIDATES, algos, &n) !=
            CU_OK ||
        n == 0)
        return false;
    uint32_t first_good = n, at = n; // some candidates may not run
    double least = 0;
    for (uint32_t i = 0; i < n; i++) {
        w->algo = algos[i];
        if (!runs(g, w)) continue;
        double us[TRIAL_REPLAYS];
        for (uint32_t k = 0; k < TRIAL_REPLAYS; k++) us[k] = gpu_time_once(g, queue_lt, w);
        double now = gpu_median(us, TRIAL_REPLAYS);
        if (first_good == n) first_good = i;
        if (at == n || now < least) at = i, least = now;
    }
    if (at == n) return false;
    w->algo = algos[first_good];
    *first = gpu_measure(g, queue_lt, w, w->n_sets);
    w->algo = algos[at];
    *best = at == first_good ? *first : gpu_measure(g, queue_lt, w, w->n_sets);
    return true;
}

static void library_alone(gpu *g, work *w, const shape *s, uint32_t rows, size_t n_bytes) {
    gpu_time first, best;
    w->lt = (lt_shape){.m = rows,
                       .n = s->n,
                       .k = s->k,
                       .x_stride = s->k,
                       .w_stride = w->w[0].m.stride,
                       .out_stride = s->n,
                       .in = LT_BF16,
                       .out = LT_BF16};
    if (best_candidate(g, w, MATMUL_LT_BYTES, &first, &best)) {
        tell(s, DTYPE_BF16, rows, "lt_first", &first, n_bytes);
        tell(s, DTYPE_BF16, rows, "lt_best", &best, n_bytes);
    }
    if (rows <= 512 && best_candidate(g, w, 0, &first, &best))
        tell(s, DTYPE_BF16, rows, "lt_best_0", &best, n_bytes);
}

/* ---- one shape and type ---- */

static void give_sets(gpu *g, gpu_matrix *sets, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) gpu_give(g, sets[i].base);
}

static void rows_of(gpu *g, work *w, const shape *s, dtype type, uint32_t rows, size_t n_bytes,
                    bool lt) {
    w->a.rows = rows;
    gpu_time t;
    if (rows <= GEMV_ROWS_MAX) {
        w->way = launch_gemv;
        t = gpu_measure(g, queue_way, w, w->n_sets);
        tell(s, type, rows, "gemv", &t, n_bytes);
    }
    if (rows <= SKINNY_ROWS_MAX) {
        w->way = launch_skinny;
        t = gpu_measure(g, queue_way, w, w->n_sets);
        tell(s, type, rows, "skinny", &t, n_bytes);
    } else {
        w->way = launch_large;
        t = gpu_measure(g, queue_way, w, w->n_sets);
        tell(s, type, rows, lt ? "large" : "large_without_lt", &t, n_bytes);
    }
    if (type == DTYPE_BF16 && lt) library_alone(g, w, s, rows, n_bytes);
}

static void fused(gpu *g, work *w, const shape *s, dtype type, const float *norm, const float *x) {
    work f = *w;
    size_t n_bytes = format_bytes(type, s->n / 2, s->k) * 2;
    for (uint32_t i = 0; i < f.n_sets; i++) {
        f.w[i] = gpu_weights(g, type, s->n / 2, s->k, 100 + 2 * i);
        f.up[i] = gpu_weights(g, type, s->n / 2, s->k, 101 + 2 * i);
    }
    f.a.x = x;
    f.a.x_type = CU_F32;
    f.a.norm = norm;
    f.a.norm_eps = 1e-5f;
    f.a.n_out = 2;
    f.a.out[1] = f.a.out[0];
    f.a.glu = true;
    f.way = launch_gemv;
    for (uint32_t rows = 1; rows <= GEMV_ROWS_MAX; rows *= 4) {
        f.a.rows = rows;
        gpu_time t = gpu_measure(g, queue_way, &f, f.n_sets);
        tell(s, type, rows, "fused", &t, n_bytes);
    }
    give_sets(g, f.w, f.n_sets);
    give_sets(g, f.up, f.n_sets);
}

static void shape_of(gpu *g, matmul *mm, const shape *s, dtype type, const void *x,
                     const float *x_float, const float *norm, void *out, bool lt) {
    size_t n_bytes = format_bytes(type, s->n, s->k), cold = (size_t)GPU_COLD_MIB << 20;
    static work w;
    w = (work){.mm = mm, .n_sets = g->tiny ? 2 : (uint32_t)(cold / n_bytes + 1)};
    w.n_sets = u32_min(u32_max(w.n_sets, g->tiny ? 2 : 3), SETS_MAX);
    w.workspace = gpu_take(g, MATMUL_LT_BYTES);
    for (uint32_t i = 0; i < w.n_sets; i++) w.w[i] = gpu_weights(g, type, s->n, s->k, i + 1);
    w.a = (matmul_args){.x = x, .x_type = CU_BF16, .x_stride = s->k, .inner = CU_BF16, .n_out = 1};
    w.a.out[0].out = out;
    w.a.out[0].out_type = CU_BF16;
    w.a.out[0].out_stride = s->n;
    const uint32_t *counts = g->tiny ? tiny_row_counts : row_counts;
    size_t n_counts = g->tiny ? INFERD_COUNT(tiny_row_counts) : INFERD_COUNT(row_counts);
    for (size_t i = 0; i < n_counts; i++) {
        if (s->n > HEAD_ROWS && counts[i] > HEAD_LOGITS_MAX) continue;
        rows_of(g, &w, s, type, counts[i], n_bytes, lt);
    }
    give_sets(g, w.w, w.n_sets);
    if (s->glu) fused(g, &w, s, type, norm, x_float);
    gpu_give(g, w.workspace);
}

void bench_matmul(gpu *g) {
    inferd_err err = {0};
    matmul *mm = NULL;
    bool on = parts_is_on(&g->parts, PART_LT), lt = on && g->api->lt_open(NULL) == CU_OK;
    row_begin("cublaslt");
    row_bool("open", lt);
    if (lt)
        row_count("version", g->api->lt_version());
    else
        row_text("why", on ? g->api->text() : g->parts.part[PART_LT].why);
    row_end();
    const shape *list = g->tiny ? tiny_shapes : shapes;
    size_t n_shapes = g->tiny ? INFERD_COUNT(tiny_shapes) : INFERD_COUNT(shapes);
    uint32_t n_max = 0, k_max = 0, rows_max = g->tiny ? 128 : ROWS_MAX;
    for (size_t i = 0; i < n_shapes; i++) {
        n_max = u32_max(n_max, list[i].n);
        k_max = u32_max(k_max, list[i].k);
    }
    gpu_need_status(rows_init(g->module, &g->device, &err), &err);
    gpu_need_status(matmul_create(g->module, &g->device, CU_BF16, lt, NULL, &mm, &err), &err);
    matmul_workspace w = {.partials_bytes = MATMUL_PARTIALS_BYTES,
                          .n_counters = MATMUL_COUNTERS,
                          .lt_bytes = MATMUL_LT_BYTES,
                          .expand_bytes = (size_t)(g->tiny ? 1 : 256) << 20};
    w.partials = gpu_take(g, w.partials_bytes);
    w.counters = gpu_take_zeros(g, w.n_counters * sizeof *w.counters);
    w.lt = gpu_take(g, w.lt_bytes);
    w.expand = gpu_take(g, w.expand_bytes);
    matmul_set_workspace(mm, &w);
    void *x = gpu_normals(g, CU_BF16, (size_t)rows_max * k_max, 1, 3);
    float *x_float = gpu_normals(g, CU_F32, (size_t)GEMV_ROWS_MAX * k_max, 1, 4);
    float *norm = gpu_normals(g, CU_F32, k_max, 1, 5);
    void *out = gpu_take(g, (size_t)rows_max * n_max * 2);
    /* The most important types come first, in case the run is stopped early. */
    for (size_t t = 0; t < INFERD_COUNT(types); t++)
        for (size_t i = 0; i < n_shapes; i++) {
            if (list[i].k % dtype_about(types[t]).block_elems != 0) continue;
            shape_of(g, mm, &list[i], types[t], x, x_float, norm, out, lt);
        }
    matmul_destroy(mm);
    gpu_give(g, x);
    gpu_give(g, x_float);
    gpu_give(g, norm);
    gpu_give(g, out);
    gpu_give(g, w.partials);
    gpu_give(g, w.counters);
    gpu_give(g, w.lt);
    gpu_give(g, w.expand);
}
