/* gemv.c - the choice of the kernel, the cut of the work, and the launch.
 *
 * The plan.  A block is 8 warps; slot_warps of them share the columns of a row tile.  Few row tiles
 * need many warps along the columns, then several slices of the columns; many row tiles need
 * neither, and both cost time: sums of warps join at a barrier, sums of slices in memory.  All of x
 * lies in shared memory, so a long row of columns must be cut as well when x of two blocks would
 * not fit a multiprocessor.  cost_of expresses the cost of each cut for the busiest multiprocessor
 * in bytes, as if all were loads from memory; the cheapest wins.  Smaller costs are guesses, with
 * the constants below.
 *
 * Thread: engine. */
#include "cuda/gemv.h"

enum {
    BLOCKS_PER_SM = 2,        // that must fit into shared memory
    SM_RESERVED_BYTES = 1024, // of shared memory, per block

    /* Guesses, not measured, in bytes that a multiprocessor could have loaded meanwhile. */
    IN_FLIGHT_BYTES = 40 << 10, // in flight per multiprocessor to hide the memory's latency
    UNIT_BYTES = 4 << 10,       // a barrier and the end of a unit
    LAUNCH_BYTES = 40 << 10,    // one launch more, with its reads and writes
    SLICE_BYTES = 56 << 10,     // partial sums to memory, the counter, and back
    L2_SPEED = 4                // times that of memory: x comes from L2
};

const gemv_pair gemv_pairs[GEMV_PAIRS] = {
    {CU_FMT_Q4M, CU_FMT_Q6},  // Q4_K_M: attn_v of half of the layers
    {CU_FMT_Q5M, CU_FMT_Q6},  // Q5_K_M: likewise
    {CU_FMT_Q4M, CU_FMT_Q5M}, // Q4_K_S: attn_v of the first layers
};

struct gemv {
    const cu_kernel *kernels[CU_FORMATS], *mixed[GEMV_PAIRS];
    bool allow_mixed;
    cu_type inner;
    uint32_t n_sms, shared_sm, shared_max; // shared_max: of one of these blocks
};

static bool dense(uint32_t format) {
    return format <= CU_FMT_F16;
}

static bool has_minima(uint32_t format) {
    return format == CU_FMT_Q4M || format == CU_FMT_Q5M;
}

/* Bytes of 16 x 64 weights with their scales. */
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

static inferd_status load(gemv *g, const cuda_module *m, const char *formats, const cu_kernel **out,
                          inferd_err *err) {
    char name[32];
    snprintf(name, sizeof name, "gemv_%s_%s", formats, g->inner == CU_BF16 ? "bf16" : "f16");
    *out = module_find(m, name);
    if (*out == NULL)
        return inferd_fail(err, INFERD_EUNSUPPORTED, "the CUDA module has no kernel %s", name);
    return module_load(m, *out, GEMV_THREADS, g->shared_max, err);
}

inferd_status gemv_create(const cuda_module *m, const cu_device *d, cu_type inner, gemv **out,
                          inferd_err *err) {
    static const char *const names[CU_FORMATS] = {
        [CU_FMT_F32] = "f32", [CU_FMT_BF16] = "bf16", [CU_FMT_F16] = "f16",
        [CU_FMT_Q4] = "q4",   [CU_FMT_Q4M] = "q4m",   [CU_FMT_Q5] = "q5",
        [CU_FMT_Q5M] = "q5m", [CU_FMT_Q6] = "q6",     [CU_FMT_Q8] = "q8",
    };
    inferd_status s = INFERD_OK;
    INFERD_CHECK(inner == CU_BF16 || inner == CU_F16);
    gemv *g = calloc(1, sizeof *g);
    if (g == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for the kernels of few rows");
    g->inner = inner;
    g->n_sms = d->n_sms;
    g->shared_sm = d->shared_bytes_sm;
    g->shared_max =
        u32_min(d->shared_bytes_max, d->shared_bytes_sm / BLOCKS_PER_SM - SM_RESERVED_BYTES);
    g->allow_mixed = true;
    for (uint32_t f = 0; f < CU_FORMATS && s == INFERD_OK; f++)
        s = load(g, m, names[f], &g->kernels[f], err);
    for (uint32_t i = 0; i < GEMV_PAIRS && s == INFERD_OK; i++) {
        char both[16];
        snprintf(both, sizeof both, "%s_%s", names[gemv_pairs[i].first],
                 names[gemv_pairs[i].second]);
        s = load(g, m, both, &g->mixed[i], err);
    }
    if (s != INFERD_OK) {
        gemv_destroy(g);
        return s;
    }
    *out = g;
    return INFERD_OK;
}

void gemv_destroy(gemv *g) {
    free(g);
}

void gemv_allow_mixed(gemv *g, bool allowed) {
    g->allow_mixed = allowed;
}

/* ---- products of one launch ---- */

/* The pair of formats of all matrices, GEMV_PAIRS: none. */
static uint32_t pair_of(const matmul_args *a) {
    for (uint32_t i = 0; i < GEMV_PAIRS; i++) {
        uint32_t n_first = 0, n_second = 0;
        for (uint32_t j = 0; j < a->n_out; j++) {
            n_first += a->out[j].w.format == gemv_pairs[i].first;
            n_second += a->out[j].w.format == gemv_pairs[i].second;
        }
        if (n_first > 0 && n_second > 0 && n_first + n_second == a->n_out) return i;
    }
    return GEMV_PAIRS;
}

bool gemv_can_fuse(const gemv *g, const matmul_args *a) {
    const cu_matrix *first = &a->out[0].w;
    bool two_formats = false;
    if (a->rows < 1 || a->rows > GEMV_ROWS_LIMIT || a->inner != g->inner) return false;
    if (a->n_out < 1 || a->n_out > MATMUL_FUSED_MAX) return false;
    if (a->x_type != g->inner && (a->x_type != CU_F32 || a->norm == NULL)) return false;
    if (a->gather != NULL && a->norm == NULL) return false;
    for (uint32_t i = 0; i < a->n_out; i++) {
        const cu_matrix *w = &a->out[i].w;
        if (w->cols != first->cols || w->stride != first->stride) return false;
        two_formats |= w->format != first->format;
        if (a->out[i].out_type != g->inner && a->out[i].out_type != CU_F32) return false;
    }
    if (two_formats && (!g->allow_mixed || a->glu || pair_of(a) == GEMV_PAIRS)) return false;
    if (a->glu) return a->n_out == 2 && a->out[1].w.rows == first->rows && !a->add;
    return !a->add || (a->n_out == 1 && a->out[0].out_type == CU_F32);
}

/* ---- the plan ---- */

static uint32_t div_up(uint32_t a, uint32_t b) {
    return (a + b - 1) / b;
}

typedef struct shape {
    uint32_t format, rows, cols, row_tiles, col_tiles;
    uint32_t pair; // GEMV_PAIRS: one format; else `format` is its first
    uint32_t second_tiles;
    bool norm, glu;
} shape;

/* Row tiles of matrices of `format` (CU_FORMATS: of all). */
static uint32_t row_tiles_of(const matmul_args *a, uint32_t format) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < a->n_out; i++)
        if (format == CU_FORMATS || a->out[i].w.format == format)
            n += div_up(a->out[i].w.rows, TILE_ROWS);
    return n;
}

static shape shape_of(const matmul_args *a) {
    shape s = {.format = a->out[0].w.format, .rows = a->rows, .cols = a->out[0].w.cols};
    s.norm = a->norm != NULL;
    s.glu = a->glu;
    s.col_tiles = div_up(s.cols, TILE_COLS);
    s.row_tiles = row_tiles_of(a, CU_FORMATS);
    s.pair = pair_of(a);
    if (s.pair < GEMV_PAIRS) {
        s.format = gemv_pairs[s.pair].first;
        s.second_tiles = row_tiles_of(a, gemv_pairs[s.pair].second);
    }
    return s;
}

/* Bytes of a tile of the second format. */
static uint64_t second_bytes(const shape *s) {
    return tile_bytes(gemv_pairs[s->pair].second);
}

/* The bytes of tiles per unit round that the slower of the two kinds of blocks has to load. */
static uint64_t slower_bytes(const shape *s, const gemv_plan *p, uint32_t second_blocks) {
    uint64_t first = div_up(p->second_unit, p->blocks - second_blocks) * tile_bytes(s->format);
    uint64_t second = div_up(p->n_units - p->second_unit, second_blocks) * second_bytes(s);
    return u64_max(first, second);
}

/* Divides the blocks between two formats: about by bytes, rounded so that the end is sooner. */
static void divide_blocks(const shape *s, gemv_plan *p) {
    uint32_t second_units = p->n_units - p->second_unit;
    uint32_t least = p->blocks > p->second_unit ? p->blocks - p->second_unit : 1;
    uint32_t most = u32_min(second_units, p->blocks - 1);
    uint64_t rest = (uint64_t)p->second_unit * tile_bytes(s->format),
             more = second_units * second_bytes(s);
    uint32_t about = (uint32_t)(p->blocks * more / (rest + more)), best = 0;
    for (uint32_t n = about > 1 ? about - 1 : 0; n <= about + 2; n++) {
        uint32_t within = u32_min(u32_max(n, least), most);
        if (best == 0 || slower_bytes(s, p, within) < slower_bytes(s, p, best)) best = within;
    }
    p->second_block = p->blocks - best;
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
    if (s->pair < GEMV_PAIRS) { // a unit has one format
        p.second_unit = div_up(s->row_tiles - s->second_tiles, slots);
        p.n_units = p.second_unit + div_up(s->second_tiles, slots);
    }
    p.shared_bytes = gemv_shared_of(s->rows, p.slice_tiles, has_minima(s->format)).bytes;
    if (p.shared_bytes > g->shared_max) return false;
    if (p.splits > 1) {
        size_t unit_bytes = (size_t)p.splits * slots * s->rows * TILE_ROWS * sizeof(float);
        if (p.n_units > w->n_counters || w->partials_bytes / unit_bytes < p.n_units) return false;
    }
    uint32_t resident = u32_min(budget_of(g, s->format).blocks,
                                g->shared_sm / (p.shared_bytes + SM_RESERVED_BYTES));
    uint32_t least = s->pair < GEMV_PAIRS ? 2 : 1;
    p.blocks = u32_min(p.n_units, u32_max(least, g->n_sms * resident / p.splits));
    if (s->pair < GEMV_PAIRS) divide_blocks(s, &p);
    *out = p;
    return true;
}

/* The cost of x: every block reads its slice, and with a norm all of it. */
static uint64_t x_cost(const gemv *g, const shape *s, const gemv_plan *p) {
    uint64_t blocks = div_up(p->blocks * p->splits, g->n_sms);
    uint64_t row = p->slice_tiles * 128 + (s->norm ? (uint64_t)s->cols * 4 : 0);
    return blocks * s->rows * row / L2_SPEED;
}

static uint64_t cost_of(const gemv *g, const shape *s, const gemv_plan *p) {
    uint64_t tile = tile_bytes(s->format);
    uint64_t units = div_up(p->n_units * p->splits, g->n_sms); // of the busiest multiprocessor
    uint64_t blocks = div_up(p->blocks * p->splits, g->n_sms); // that it holds at once
    uint64_t weights = units * GEMV_WARPS * p->warp_tiles * tile;
    if (s->pair < GEMV_PAIRS)
        weights =
            blocks * GEMV_WARPS * p->warp_tiles * slower_bytes(s, p, p->blocks - p->second_block);
    uint32_t batch =
        s->pair < GEMV_PAIRS ? gemv_mixed_batch(s->format) : budget_of(g, s->format).batch;
    uint64_t in_flight = blocks * GEMV_WARPS * u32_min(p->warp_tiles, batch) * tile;
    if (in_flight < IN_FLIGHT_BYTES) weights = weights * IN_FLIGHT_BYTES / in_flight;
    uint64_t turns = div_up(p->n_units, p->blocks);
    if (s->pair < GEMV_PAIRS)
        turns = u64_max(div_up(p->second_unit, p->second_block),
                        div_up(p->n_units - p->second_unit, p->blocks - p->second_block));
    return weights + x_cost(g, s, p) + turns * UNIT_BYTES +
           (p->splits > 1 ? turns * SLICE_BYTES : 0);
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

bool gemv_pays(const gemv *g, const matmul_workspace *w, const matmul_args *a) {
    shape s = shape_of(a);
    uint32_t saved = (a->norm != NULL) + a->glu;
    /* These are multiplied as floats: each row of x costs as much as the first one. */
    if (dense(s.format) && s.format != (g->inner == CU_BF16 ? CU_FMT_BF16 : CU_FMT_F16))
        return false;
    if (saved == 0) return false;
    gemv_plan p = plan_of(g, w, &s);
    return p.blocks > 0 && x_cost(g, &s, &p) <= (uint64_t)saved * LAUNCH_BYTES;
}

/* ---- the launch ---- */

/* Matrices of `format` (CU_FORMATS: all). */
static void add_mats(gemv_params *p, const matmul_args *a, uint32_t format, uint32_t row_begin) {
    for (uint32_t i = 0; i < a->n_out; i++) {
        const cu_matrix *m = &a->out[i].w;
        if (format != CU_FORMATS && m->format != format) continue;
        bool is_float = a->out[i].out_type == CU_F32;
        size_t skipped = (size_t)row_begin * a->out[i].out_stride * (is_float ? 4 : 2);
        p->mats[p->n_mats++] = (gemv_mat){.low = dense(m->format) ? m->data : m->low,
                                          .high = m->high,
                                          .scales = m->scales,
                                          .bias = a->out[i].bias,
                                          .out = (unsigned char *)a->out[i].out + skipped,
                                          .rows = m->rows,
                                          .first_tile = p->n_row_tiles,
                                          .out_stride = a->out[i].out_stride,
                                          .out_float = is_float};
        p->n_row_tiles += div_up(m->rows, TILE_ROWS);
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
        .rows = s->rows,
        .cols = s->cols,
        .x_stride = a->x_stride,
        .x_float = a->x_type == CU_F32,
        .w_stride = a->out[0].w.stride,
        .n_col_tiles = s->col_tiles,
        .n_units = plan->n_units,
        .slot_warps = plan->slot_warps,
        .slice_tiles = plan->slice_tiles,
        .warp_tiles = plan->warp_tiles,
        .splits = plan->splits,
        .second_unit = plan->second_unit,
        .second_block = plan->second_block,
        .add = a->add,
        .glu = a->glu,
        .act = a->act,
    };
    bool two = s->pair < GEMV_PAIRS;
    add_mats(&p, a, two ? gemv_pairs[s->pair].first : CU_FORMATS, row_begin);
    p.second_tile = p.n_row_tiles;
    if (two) add_mats(&p, a, gemv_pairs[s->pair].second, row_begin);
    launch(l, two ? g->mixed[s->pair] : g->kernels[s->format], plan->blocks, plan->splits, 1,
           GEMV_THREADS, plan->shared_bytes, &p, sizeof p);
}

/* When the sums of slices of all rows of x do not fit the workspace, fewer rows at a time. */
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
