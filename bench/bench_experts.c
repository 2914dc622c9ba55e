/* bench_experts.c - mixtures of experts, one layer's at a time (see gpu.h for timing).
 *
 *     uniform    each row uses experts of its own choice
 *     same       all rows use those of the first
 *
 * A case is the whole mixture: route, sort, both products, the sum.  The layers cycle through at
 * least GPU_COLD_MIB of the experts that are read.  bytes = weights of the experts with rows as
 * stored in memory, once, + 2 bytes for each number of x and out; the time that these bytes need
 * (bench_cuda limits) is the bound of a mixture with few rows. */
#include <math.h>
#include <string.h>

#include "cuda/experts.h"
#include "cuda/formats.h"
#include "cuda/rows.h"
#include "gpu.h"

enum { SETS_MAX = 16, ROWS_MAX = 512 };

typedef struct shape {
    const char *name;
    uint32_t dim, ffn, n_experts, n_used;
} shape;

static const shape shapes[] = {
    {"qwen3-30b-a3b", 2048, 768, 128, 8},
    {"gpt-oss-20b", 2880, 2880, 32, 4},
    {"mixtral-8x7b", 4096, 14336, 8, 2},
};
static const shape tiny_shapes[] = {{"tiny", 256, 256, 8, 2}};
static const dtype types[] = {DTYPE_Q4_K, DTYPE_BF16};
static const uint32_t row_counts[] = {1, 8, 32, 128, ROWS_MAX};
static const uint32_t tiny_row_counts[] = {1, 20};

typedef struct layer {
    void *base; // [gate, up, down][n_experts]
    experts_matrices gate, up, down;
} layer;

typedef struct work {
    experts_args a;
    experts_workspace workspace;
    layer layers[SETS_MAX];
    uint32_t n_sets;
} work;

static void queue(gpu *g, void *ctx, uint32_t i) {
    work *w = ctx;
    const layer *l = &w->layers[i % w->n_sets];
    experts_args a = w->a;
    a.gate = l->gate;
    a.up = l->up;
    a.down = l->down;
    launch_experts(&g->l, &w->workspace, &a);
}

/* Made up where they lie: a matrix of an expert after the other. */
static experts_matrices make_role(gpu *g, unsigned char *at, dtype type, uint32_t rows,
                                  uint32_t cols, uint32_t n, uint64_t seed) {
    experts_matrices m = {.first = format_matrix(type, rows, cols, at),
                          .step = format_bytes(type, rows, cols)};
    for (uint32_t e = 0; e < n; e++) {
        cu_matrix one = format_matrix(type, rows, cols, at + e * m.step);
        launch_dummy(&g->l, &(dummy_args){.m = one,
                                          .data = (void *)(uintptr_t)one.data,
                                          .low = (void *)(uintptr_t)one.low,
                                          .high = (void *)(uintptr_t)one.high,
                                          .scales = (void *)(uintptr_t)one.scales,
                                          .file_type = type,
                                          .seed = seed + e,
                                          .scale = 0.02f});
    }
    g->l.settle = true;
    return m;
}

static size_t layer_bytes(const shape *s, dtype type) {
    return s->n_experts *
           (2 * format_bytes(type, s->ffn, s->dim) + format_bytes(type, s->dim, s->ffn));
}

static layer make_layer(gpu *g, const shape *s, dtype type, uint64_t seed) {
    size_t hidden = s->n_experts * format_bytes(type, s->ffn, s->dim);
    unsigned char *at = gpu_take(g, layer_bytes(s, type));
    layer l = {.base = at};
    l.gate = make_role(g, at, type, s->ffn, s->dim, s->n_experts, seed);
    l.up = make_role(g, at + hidden, type, s->ffn, s->dim, s->n_experts, seed + 5000);
    l.down = make_role(g, at + 2 * hidden, type, s->dim, s->ffn, s->n_experts, seed + 10000);
    gpu_sync(g);
    return l;
}

static void rows_of(gpu *g, work *w, const shape *s, dtype type, uint32_t rows, bool same) {
    static float logits[ROWS_MAX * 128];
    uint64_t state = 7;
    for (uint32_t i = 0; i < rows * s->n_experts; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        logits[i] = same && i >= s->n_experts ? logits[i - s->n_experts]
                                              : (float)(state >> 40) / (float)(1 << 24);
    }
    float *there = gpu_put(g, logits, (size_t)rows * s->n_experts * sizeof *logits);
    w->a.logits = there;
    w->a.rows = rows;
    w->a.n_counts = s->n_experts;
    queue(g, w, 0); // once, to know how many experts have rows
    uint32_t n_reads = 0;
    gpu_need(
        g,
        g->api->copy_to_host(&n_reads, experts_tally(&w->workspace), sizeof n_reads, g->l.stream),
        "reading the number of experts");
    gpu_sync(g);
    gpu_time t = gpu_measure(g, queue, w, w->n_sets);
    row_begin("experts");
    row_text("shape", s->name);
    row_text("type", dtype_about(type).name);
    row_text("routing", same ? "same" : "uniform");
    row_count("rows", rows);
    row_count("experts_read", n_reads);
    row_time(&t);
    row_rate(&t, (double)layer_bytes(s, type) / s->n_experts * n_reads + 4.0 * rows * s->dim,
             6.0 * rows * s->n_used * s->dim * s->ffn);
    row_end();
    gpu_give(g, there);
}

static void shape_of(gpu *g, const shape *s, dtype type) {
    static work w;
    size_t n_bytes = layer_bytes(s, type), cold = (size_t)GPU_COLD_MIB << 20;
    size_t read = n_bytes / s->n_experts * s->n_used; // with one row
    uint32_t rows_max = g->tiny ? 20 : ROWS_MAX;
    size_t slots = (size_t)rows_max * s->n_used;
    w = (work){.n_sets = g->tiny ? 2 : (uint32_t)(cold / read + 1)};
    uint64_t fit = gpu_free_bytes(g) / 2 / n_bytes;
    w.n_sets = u32_min(w.n_sets, fit < SETS_MAX ? (uint32_t)fit : SETS_MAX);
    if (w.n_sets == 0) return; // a layer does not fit
    for (uint32_t i = 0; i < w.n_sets; i++) w.layers[i] = make_layer(g, s, type, 20000 * i);
    w.workspace = (experts_workspace){gpu_take_zeros(g, experts_workspace_bytes(slots)), slots};
    void *x = gpu_normals(g, CU_BF16, (size_t)rows_max * s->dim, 1, 3);
    void *hidden = gpu_take(g, slots * s->ffn * 2), *parts = gpu_take(g, slots * s->dim * 4);
    void *out = gpu_take(g, (size_t)rows_max * s->dim * 2);
    w.a = (experts_args){.x = x,
                         .inner = CU_BF16,
                         .x_stride = s->dim,
                         .logits_stride = s->n_experts,
                         .act = GLU_SILU,
                         .n_experts = s->n_experts,
                         .n_used = s->n_used,
                         .hidden = hidden,
                         .parts = parts,
                         .parts_type = CU_F32,
                         .hidden_stride = s->ffn,
                         .parts_stride = s->dim,
                         .out = out,
                         .out_type = CU_BF16,
                         .out_stride = s->dim};
    const uint32_t *counts = g->tiny ? tiny_row_counts : row_counts;
    size_t n = g->tiny ? INFERD_COUNT(tiny_row_counts) : INFERD_COUNT(row_counts);
    for (size_t i = 0; i < n; i++) {
        rows_of(g, &w, s, type, counts[i], false);
        if (counts[i] > 1) rows_of(g, &w, s, type, counts[i], true);
    }
    for (uint32_t i = 0; i < w.n_sets; i++) gpu_give(g, w.layers[i].base);
    void *given[] = {w.workspace.base, x, hidden, parts, out};
    for (size_t i = 0; i < INFERD_COUNT(given); i++) gpu_give(g, given[i]);
}

void bench_experts(gpu *g) {
    inferd_err err = {0};
    gpu_need_status(rows_init(g->module, &g->device, &err), &err);
    gpu_need_status(experts_init(g->module, &g->device, &err), &err);
    const shape *list = g->tiny ? tiny_shapes : shapes;
    size_t n = g->tiny ? INFERD_COUNT(tiny_shapes) : INFERD_COUNT(shapes);
    for (size_t i = 0; i < n; i++)
        for (size_t t = 0; t < INFERD_COUNT(types); t++) {
            if (list[i].dim % 256 != 0 && types[t] == DTYPE_Q4_K)
                shape_of(g, &list[i], DTYPE_Q4_1); // the same format of the kernels
            else
                shape_of(g, &list[i], types[t]);
        }
}
