/* gemv.c - which kernel, how the work is cut, and the launch.
 *
 * The plan.  A block is 8 warps; slot_warps of them share the columns of a row tile.  Few row tiles
 * want many warps along the columns, then several slices of the columns; many row tiles want
 * neither, because both cost: warps' sums meet at a barrier, slices' in memory.  x lies in shared
 * memory as a whole, so a long row of columns must be cut as well when two blocks' worth of it
 * would not fit a multiprocessor.  cost_of says in bytes what each cut costs the busiest
 * multiprocessor, as if all were loads from memory; the cheapest wins, and what a cost of the
 * second order is guessed at is written beside its name.
 *
 * Thread: engine. */
#include "cuda/gemv.h"

enum {
    BLOCKS_PER_SM = 2,        // that shared memory must leave room for
    SM_RESERVED_BYTES = 1024, // of shared memory, per block

    /* Guesses, not measured, in bytes that a multiprocessor could have loaded meanwhile. */
    IN_FLIGHT_BYTES = 40 << 10, // under way per multiprocessor to hide the memory's latency
    UNIT_BYTES = 4 << 10,       // a barrier and the end of a unit
    SLICE_BYTES = 56 << 10,     // partial sums to memory, the counter, and back
    L2_SPEED = 4                // times memory's: where x comes from
};

struct gemv {
    const cu_kernel *kernels[CU_FORMATS];
    cu_type inner;
    uint32_t n_sms, shared_sm, shared_max; // shared_max: of a block of ours
};

static bool dense(uint32_t format) {
    return format <= CU_FMT_F16;
}

static bool has_minima(uint32_t format) {
    return format == CU_FMT_Q4M || format == CU_FMT_Q5M;
}

/* Of 16 x 64 weights with their scales. */
static uint32_t tile_bytes(uint32_t format) {
    static const uint32_t of[CU_FORMATS] = {
        [CU_FMT_F32] = 4096, [CU_FMT_BF16] = 2048, [CU_FMT_F16] = 2048,
        [CU_FMT_Q4] = 576,   [CU_FMT_Q4M] = 640,   [CU_FMT_Q5] = 704,
        [CU_FMT_Q5M] = 768,  [CU_FMT_Q6] = 896,    [CU_FMT_Q8] = 1088,
    };
    return of[format];
}

static gemv_budget budget_of(const gemv *g, uint32_t format) {
    return gemv_budget_of(format, format == (g->inner == CU_BF16 ? CU_FMT_BF16 : CU_FMT_F16));
}

inferd_status gemv_create(const cuda_module *m, const cu_device *d, cu_type inner, gemv **out,
                          inferd_err *err) {
    static const char *const names[CU_FORMATS] = {
        [CU_FMT_F32] = "f32", [CU_FMT_BF16] = "bf16", [CU_FMT_F16] = "f16",
        [CU_FMT_Q4] = "q4",   [CU_FMT_Q4M] = "q4m",   [CU_FMT_Q5] = "q5",
        [CU_FMT_Q5M] = "q5m", [CU_FMT_Q6] = "q6",     [CU_FMT_Q8] = "q8",
    };
    INFERD_CHECK(inner == CU_BF16 || inner == CU_F16);
    gemv *g = calloc(1, sizeof *g);
    if (g == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for the kernels of few rows");
    g->inner = inner;
    g->n_sms = d->n_sms;
    g->shared_sm = d->shared_bytes_sm;
    g->shared_max =
        u32_min(d->shared_bytes_max, d->shared_bytes_sm / BLOCKS_PER_SM - SM_RESERVED_BYTES);
    for (uint32_t f = 0; f < CU_FORMATS; f++) {
        char name[32];
        snprintf(name, sizeof name, "gemv_%s_%s", names[f], inner == CU_BF16 ? "bf16" : "f16");
        inferd_status s = INFERD_OK;
        g->kernels[f] = module_find(m, name);
        if (g->kernels[f] == NULL)
            s = inferd_fail(err, INFERD_EUNSUPPORTED, "the CUDA module has no kernel %s", name);
        else
            s = module_load(m, g->kernels[f], GEMV_THREADS, g->shared_max, err);
        if (s != INFERD_OK) {
            gemv_destroy(g);
            return s;
        }
    }
    *out = g;
    return INFERD_OK;
}

void gemv_destroy(gemv *g) {
    free(g);
}

/* ---- what one launch can do ---- */

bool gemv_can_fuse(const gemv *g, const matmul_args *a) {
    const cu_matrix *first = &a->out[0].w;
    if (a->rows < 1 || a->rows > GEMV_ROWS_LIMIT || a->inner != g->inner) return false;
    if (a->n_out < 1 || a->n_out > MATMUL_FUSED_MAX) return false;
    if (a->x_type != g->inner && (a->x_type != CU_F32 || a->norm == NULL)) return false;
    if (a->gather != NULL && a->norm == NULL) return false;
    for (uint32_t i = 0; i < a->n_out; i++) {
        const cu_matrix *w = &a->out[i].w;
        if (w->format != first->format || w->cols != first->cols || w->stride != first->stride)
            return false;
        if (a->out[i].out_type != g->inner && a->out[i].out_type != CU_F32) return false;
    }
    if (a->glu) return a->n_out == 2 && a->out[1].w.rows == first->rows && !a->add;
    return !a->add || (a->n_out == 1 && a->out[0].out_type == CU_F32);
}

/* ---- the plan ---- */

static uint32_t div_up(uint32_t a, uint32_t b) {
    return (a + b - 1) / b;
}

typedef struct shape {
    uint32_t format, rows, cols, row_tiles, col_tiles;
    bool norm, glu;
} shape;

static shape shape_of(const matmul_args *a) {
    shape s = {.format = a->out[0].w.format, .rows = a->rows, .cols = a->out[0].w.cols};
    s.norm = a->norm != NULL;
    s.glu = a->glu;
    s.col_tiles = div_up(s.cols, TILE_COLS);
    for (uint32_t i = 0; i < a->n_out; i++) s.row_tiles += div_up(a->out[i].w.rows, TILE_ROWS);
    return s;
}

/* The cut, its bytes and its blocks; false: it does not fit the device or the workspace. */
static bool cut(const gemv *g, const shape *s, const matmul_workspace *w, uint32_t slot_warps,
                uint32_t splits, gemv_plan *out) {
    gemv_plan p = {.slot_warps = slot_warps};
    uint32_t slots = GEMV_WARPS / slot_warps;
    p.slice_tiles = div_up(s->col_tiles, splits);
    p.splits = div_up(s->col_tiles, p.slice_tiles);
    p.warp_tiles = div_up(p.slice_tiles, slot_warps);
    p.n_units = div_up(s->row_tiles, slots);
    p.shared_bytes = gemv_shared_of(s->rows, p.slice_tiles, has_minima(s->format)).bytes;
    if (p.shared_bytes > g->shared_max) return false;
    if (p.splits > 1) {
        size_t unit_bytes = (size_t)p.splits * slots * s->rows * TILE_ROWS * sizeof(float);
        if (p.n_units > w->n_counters || w->partials_bytes / unit_bytes < p.n_units) return false;
    }
    uint32_t resident = u32_min(budget_of(g, s->format).blocks,
                                g->shared_sm / (p.shared_bytes + SM_RESERVED_BYTES));
    p.blocks = u32_min(p.n_units, u32_max(1, g->n_sms * resident / p.splits));
    *out = p;
    return true;
}

static uint64_t cost_of(const gemv *g, const shape *s, const gemv_plan *p) {
    uint64_t tile = tile_bytes(s->format);
    uint64_t units = div_up(p->n_units * p->splits, g->n_sms); // of the busiest multiprocessor
    uint64_t blocks = div_up(p->blocks * p->splits, g->n_sms); // that it holds at once
    uint64_t weights = units * GEMV_WARPS * p->warp_tiles * tile;
    uint64_t in_flight =
        blocks * GEMV_WARPS * u32_min(p->warp_tiles, budget_of(g, s->format).batch) * tile;
    if (in_flight < IN_FLIGHT_BYTES) weights = weights * IN_FLIGHT_BYTES / in_flight;
    uint64_t x = blocks * s->rows * (p->slice_tiles * 128 + (s->norm ? (uint64_t)s->cols * 4 : 0));
    uint64_t turns = div_up(p->n_units, p->blocks);
    return weights + x / L2_SPEED + turns * UNIT_BYTES + (p->splits > 1 ? turns * SLICE_BYTES : 0);
}

static gemv_plan plan_of(const gemv *g, const matmul_workspace *w, const shape *s) {
    static const uint32_t splits[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, GEMV_SPLITS_MAX};
    gemv_plan best = {0}, p;
    uint64_t best_cost = UINT64_MAX;
    for (uint32_t warps = s->glu ? GEMV_WARPS / 2 : GEMV_WARPS; warps >= 1; warps /= 2)
        for (size_t i = 0; i < INFERD_COUNT(splits); i++) {
            if (splits[i] > s->col_tiles) break;
            if (!cut(g, s, w, warps, splits[i], &p)) continue;
            uint64_t cost = cost_of(g, s, &p);
            if (cost >= best_cost) continue;
            best = p;
            best_cost = cost;
        }
    return best;
}

gemv_plan gemv_plan_of(const gemv *g, const matmul_workspace *w, const matmul_args *a) {
    shape s = shape_of(a);
    return plan_of(g, w, &s);
}

/* ---- the launch ---- */

static void add_mats(gemv_params *p, const matmul_args *a, uint32_t row_begin) {
    uint32_t first_tile = 0;
    for (uint32_t i = 0; i < a->n_out; i++) {
        const cu_matrix *m = &a->out[i].w;
        bool is_float = a->out[i].out_type == CU_F32;
        size_t skipped = (size_t)row_begin * a->out[i].out_stride * (is_float ? 4 : 2);
        p->mats[i] = (gemv_mat){.low = dense(m->format) ? m->data : m->low,
                                .high = m->high,
                                .scales = m->scales,
                                .bias = a->out[i].bias,
                                .out = (unsigned char *)a->out[i].out + skipped,
                                .rows = m->rows,
                                .first_tile = first_tile,
                                .out_stride = a->out[i].out_stride,
                                .out_float = is_float};
        first_tile += div_up(m->rows, TILE_ROWS);
    }
}

/* Rows [row_begin, row_begin + s->rows) of x. */
static void launch_rows(launcher *l, const gemv *g, const matmul_workspace *w, const matmul_args *a,
                        const shape *s, const gemv_plan *plan, uint32_t row_begin) {
    size_t skipped = (size_t)row_begin * a->x_stride * (a->x_type == CU_F32 ? 4 : 2);
    gemv_params p = {
        .x = a->gather != NULL ? a->x : (const unsigned char *)a->x + skipped,
        .norm = a->norm,
        .gather = a->gather != NULL ? a->gather + row_begin : NULL,
        .partials = w->partials,
        .counters = w->counters,
        .norm_eps = a->norm_eps,
        .n_mats = a->n_out,
        .rows = s->rows,
        .cols = s->cols,
        .x_stride = a->x_stride,
        .x_float = a->x_type == CU_F32,
        .w_stride = a->out[0].w.stride,
        .n_col_tiles = s->col_tiles,
        .n_row_tiles = s->row_tiles,
        .n_units = plan->n_units,
        .slot_warps = plan->slot_warps,
        .slice_tiles = plan->slice_tiles,
        .warp_tiles = plan->warp_tiles,
        .splits = plan->splits,
        .add = a->add,
        .glu = a->glu,
        .act = a->act,
    };
    add_mats(&p, a, row_begin);
    launch(l, g->kernels[s->format], plan->blocks, plan->splits, 1, GEMV_THREADS,
           plan->shared_bytes, &p, sizeof p);
}

/* So long a row that slices' sums of all rows of x would not fit the workspace: fewer at a time. */
void gemv_launch(launcher *l, const gemv *g, const matmul_workspace *w, const matmul_args *a) {
    INFERD_CHECK(gemv_can_fuse(g, a));
    shape s = shape_of(a);
    gemv_plan plan = plan_of(g, w, &s);
    while (plan.blocks == 0 && s.rows > 1) {
        s.rows = div_up(s.rows, 2);
        plan = plan_of(g, w, &s);
    }
    INFERD_CHECK(plan.blocks > 0);
    for (uint32_t row = 0, step = s.rows; row < a->rows; row += step) {
        s.rows = u32_min(step, a->rows - row);
        if (s.rows < step) plan = plan_of(g, w, &s);
        launch_rows(l, g, w, a, &s, &plan, row);
    }
}
