/* skinny.c - the choice of kernel and number of ranges of columns, and the launch.
 *
 * Splits.  A block loads stages one after the other; the device is busy when every multiprocessor
 * has enough bytes in flight.  More splits mean more blocks, and sums that go through memory.
 * cost_of expresses the cost for the busiest multiprocessor in bytes; the cheapest number of splits
 * wins.  Guessed costs are the constants below.
 *
 * Thread: engine. */
#include "cuda/skinny.h"

enum {
    X_TILES = 4,              // choices of x_tiles
    SM_RESERVED_BYTES = 1024, // of shared memory, per block

    /* Guesses, in bytes that a multiprocessor could have loaded meanwhile (about 20 per clock). */
    IN_FLIGHT_BYTES = 32 << 10, // in flight per multiprocessor to hide the memory's latency
    BLOCK_BYTES = 24 << 10,     // a block's first loads and its end
    SPLIT_BYTES = 16 << 10      // the counter, and waiting for the last block
};

static const uint32_t x_tiles[X_TILES] = {1, 2, 4, 8};

struct skinny {
    const cu_kernel *kernels[CU_FORMATS][X_TILES]; // NULL: not compiled, the next one is
    cu_type inner;
    uint32_t n_sms, shared_sm;
};

/* Formats that few files use have fewer kernels. */
static bool is_rare(cu_type inner, uint32_t format) {
    return format == CU_FMT_F32 || format == CU_FMT_Q5 ||
           format == (inner == CU_BF16 ? CU_FMT_F16 : CU_FMT_BF16);
}

static inferd_status load(skinny *s, const cuda_module *m, uint32_t format, uint32_t i,
                          inferd_err *err) {
    static const char *const names[CU_FORMATS] = {
        [CU_FMT_F32] = "f32", [CU_FMT_BF16] = "bf16", [CU_FMT_F16] = "f16",
        [CU_FMT_Q4] = "q4",   [CU_FMT_Q4M] = "q4m",   [CU_FMT_Q5] = "q5",
        [CU_FMT_Q5M] = "q5m", [CU_FMT_Q6] = "q6",     [CU_FMT_Q8] = "q8",
    };
    char name[32];
    snprintf(name, sizeof name, "skinny_%s_%s_%u", names[format],
             s->inner == CU_BF16 ? "bf16" : "f16", x_tiles[i]);
    const cu_kernel *k = s->kernels[format][i] = module_find(m, name);
    if (k == NULL)
        return inferd_fail(err, INFERD_EUNSUPPORTED, "the CUDA module has no kernel %s", name);
    return module_load(m, k, SKINNY_THREADS, skinny_cut_of(format, x_tiles[i]).shared_bytes, err);
}

inferd_status skinny_create(const cuda_module *m, const cu_device *d, cu_type inner, skinny **out,
                            inferd_err *err) {
    INFERD_CHECK(inner == CU_BF16 || inner == CU_F16);
    skinny *s = calloc(1, sizeof *s);
    if (s == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for the kernels of 5 to 64 rows");
    s->inner = inner;
    s->n_sms = u32_max(d->n_sms, 1);
    s->shared_sm = d->shared_bytes_sm;
    for (uint32_t format = 0; format < CU_FORMATS; format++)
        for (uint32_t i = 0; i < X_TILES; i++) {
            if (is_rare(inner, format) && x_tiles[i] != 2 && x_tiles[i] != 8) continue;
            inferd_status status = load(s, m, format, i, err);
            if (status == INFERD_OK) continue;
            skinny_destroy(s);
            return status;
        }
    *out = s;
    return INFERD_OK;
}

void skinny_destroy(skinny *s) {
    free(s);
}

/* ---- products of one launch ---- */

static bool output_fits(const skinny *s, const matmul_args *a, uint32_t i) {
    if (a->add) return a->n_out == 1 && a->out[i].out_type == CU_F32;
    return a->out[i].out_type == s->inner || a->out[i].out_type == CU_F32;
}

bool skinny_can_fuse(const skinny *s, const matmul_args *a) {
    if (a->rows < 1 || a->rows > SKINNY_ROWS_MAX || a->inner != s->inner) return false;
    if (a->norm != NULL || a->gather != NULL || a->glu || a->x_type != s->inner) return false;
    if (a->n_out < 1 || a->n_out > MATMUL_FUSED_MAX) return false;
    for (uint32_t i = 0; i < a->n_out; i++) {
        const cu_matrix *w = &a->out[i].w;
        if (w->format != a->out[0].w.format || w->cols != a->out[0].w.cols) return false;
        if (!output_fits(s, a, i)) return false;
    }
    return true;
}

/* ---- the plan ---- */

static uint32_t div_up(uint32_t a, uint32_t b) {
    return (a + b - 1) / b;
}

/* The smallest kernel that holds `rows`. */
static uint32_t kernel_idx(const skinny *s, uint32_t format, uint32_t rows) {
    uint32_t i = 0;
    while (x_tiles[i] * 8 < rows || s->kernels[format][i] == NULL) i++;
    return i;
}

/* Bytes that the busiest multiprocessor moves or could have moved. */
static double cost_of(const skinny *s, const skinny_plan *p, uint32_t splits, size_t out_bytes) {
    const skinny_cut *c = &p->cut;
    uint32_t resident = u32_min(c->blocks, s->shared_sm / (c->shared_bytes + SM_RESERVED_BYTES));
    resident = u32_max(resident, 1);
    uint32_t per_sm = div_up(p->blocks * splits, s->n_sms), at_once = u32_min(per_sm, resident);
    double block = (double)div_up(p->n_stages, splits) * c->stage_bytes;
    if (splits > 1) block += 2.0 * (double)out_bytes;
    double in_flight = (double)at_once * (c->stages - 1) * (c->stage_bytes - c->x_bytes);
    double slowness = in_flight < IN_FLIGHT_BYTES ? IN_FLIGHT_BYTES / in_flight : 1;
    double cost = per_sm * block * slowness + (double)div_up(per_sm, resident) * BLOCK_BYTES;
    /* The last block of a group reads all of its sums, alone. */
    if (splits > 1) cost += SPLIT_BYTES + (double)splits * (double)out_bytes;
    return cost;
}

skinny_plan skinny_plan_of(const skinny *s, const matmul_workspace *w, const matmul_args *a) {
    uint32_t format = a->out[0].w.format;
    skinny_plan p = {.cut = skinny_cut_of(format, x_tiles[kernel_idx(s, format, a->rows)]),
                     .splits = 1};
    for (uint32_t i = 0; i < a->n_out; i++) p.blocks += div_up(a->out[i].w.rows, p.cut.rows);
    p.n_stages = div_up(a->out[0].w.cols, p.cut.cols);
    size_t out_bytes = (size_t)a->rows * p.cut.rows * sizeof(float);
    if (p.blocks == 0 || p.blocks > w->n_counters) return p;
    size_t splits_max = w->partials_bytes / (out_bytes * p.blocks);
    splits_max = size_min(splits_max, u32_min(p.n_stages, SKINNY_SPLITS_MAX));
    double best = cost_of(s, &p, 1, out_bytes);
    for (uint32_t splits = 2; splits <= splits_max; splits++) {
        double cost = cost_of(s, &p, splits, out_bytes);
        if (cost >= best) continue;
        best = cost;
        p.splits = splits;
    }
    return p;
}

/* ---- launch ---- */

/* May four neighbours of each row be stored at once? */
static bool is_wide(const void *out, cu_type type, uint32_t stride) {
    return (uintptr_t)out % (type == CU_F32 ? 16 : 8) == 0 && stride % 4 == 0;
}

void skinny_launch(launcher *l, const skinny *s, const matmul_workspace *w, const matmul_args *a) {
    INFERD_CHECK(skinny_can_fuse(s, a));
    INFERD_CHECK((uintptr_t)a->x % 16 == 0 && a->x_stride % ROW_ALIGN == 0 &&
                 a->x_stride >= a->out[0].w.cols);
    skinny_plan plan = skinny_plan_of(s, w, a);
    skinny_params p = {.x = a->x,
                       .partials = w->partials,
                       .counters = w->counters,
                       .rows = a->rows,
                       .cols = a->out[0].w.cols,
                       .x_stride = a->x_stride,
                       .n_stages = plan.n_stages,
                       .splits = plan.splits,
                       .add = a->add};
    uint32_t n_blocks = 0;
    for (uint32_t i = 0; i < a->n_out; i++) {
        const cu_matrix *m = &a->out[i].w;
        bool quant = skinny_is_quant(m->format);
        if (m->rows == 0) continue;
        p.mats[p.n_mats++] = (skinny_mat){
            .data = quant ? m->low : m->data,
            .high = m->high,
            .scales = m->scales,
            .bias = a->out[i].bias,
            .out = a->out[i].out,
            .rows = m->rows,
            .stride = m->stride,
            .n_row_tiles = div_up(m->rows, TILE_ROWS),
            .n_col_tiles = div_up(m->cols, TILE_COLS),
            .out_stride = a->out[i].out_stride,
            .block_begin = n_blocks,
            .out_float = a->out[i].out_type == CU_F32,
            .out_wide = is_wide(a->out[i].out, a->out[i].out_type, a->out[i].out_stride)};
        n_blocks += div_up(m->rows, plan.cut.rows);
    }
    if (n_blocks == 0 || p.cols == 0) return;
    uint32_t format = a->out[0].w.format;
    launch(l, s->kernels[format][kernel_idx(s, format, a->rows)], n_blocks, plan.splits, 1,
           SKINNY_THREADS, plan.cut.shared_bytes, &p, sizeof p);
}
