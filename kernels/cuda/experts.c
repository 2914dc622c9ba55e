/* experts.c - the launches of a mixture of experts; see experts.h.
 *
 * Kernels are looked up once per process by name and format (experts_init).
 *
 *     workspace   [ state | chosen | p | slot_of | row_of ]      the last four: [n_slots]
 *
 * x in the order of lanes, which quantised matrices read, lies in `parts`: nothing else is there
 * before the last products, and these read `hidden`.
 *
 * Gate and up of two formats are two launches: the gate is rounded to the activations' type between
 * them.
 *
 * Thread: engine. */
#include "cuda/experts.h"

#include <stdio.h>

#include "cuda/experts_params.h"
#include "kernels/backend.h"

_Static_assert((int)EXPERTS_MAX == (int)BE_EXPERTS_MAX, "what be_experts takes");
_Static_assert((int)EXPERTS_USED_MAX == (int)BE_EXPERTS_USED_MAX, "what be_experts takes");
_Static_assert(offsetof(experts_state, step_rows) ==
                   offsetof(experts_state, n_reads) + sizeof(uint32_t),
               "both are the tally");
_Static_assert(sizeof(experts_state) % 16 == 0, "arrays lie behind it");

enum { CHUNK = 8 };

static const char *const format_names[CU_FORMATS] = {
    [CU_FMT_F32] = "f32", [CU_FMT_BF16] = "bf16", [CU_FMT_F16] = "f16",
    [CU_FMT_Q4] = "q4",   [CU_FMT_Q4M] = "q4m",   [CU_FMT_Q5] = "q5",
    [CU_FMT_Q5M] = "q5m", [CU_FMT_Q6] = "q6",     [CU_FMT_Q8] = "q8",
};

/* Rows of an expert that a block multiplies at once. */
enum { SIZES = 3 };
static const uint32_t rows_at_once[SIZES] = {8, 32, 64};

/* By format of the weights, for activations of bf16 and f16. */
static const cu_kernel *products[CU_FORMATS][2][SIZES], *sums[2], *route, *sort;

static uint32_t sums_bytes(uint32_t rows) { // of a product
    return EXPERTS_WARPS * rows * EXPERTS_SUMS_ROW * (uint32_t)sizeof(float);
}

enum {
    ROUTE_SHARED = (EXPERTS_MAX + EXPERTS_USED_MAX + EXPERTS_MAX / 32) * 4,
    SORT_SHARED = 3 * (EXPERTS_SORT_THREADS / 32) * 4
};

static inferd_status find(const cuda_module *m, const char *what, const char *type,
                          uint32_t threads, uint32_t shared_bytes, const cu_kernel **out,
                          inferd_err *err) {
    char name[48];
    snprintf(name, sizeof name, "experts_%s%s", what, type);
    const cu_kernel *k = module_find(m, name);
    if (k == NULL)
        return inferd_fail(err, INFERD_EUNSUPPORTED, "the module has no kernel %s", name);
    inferd_status s = module_load(m, k, threads, shared_bytes, err);
    if (s == INFERD_OK) __atomic_store_n(out, k, __ATOMIC_RELAXED);
    return s;
}

static const char *const types[2] = {"_bf16", "_f16"};

static inferd_status find_product(const cuda_module *m, uint32_t format, int type, int size,
                                  inferd_err *err) {
    char tail[16];
    uint32_t rows = rows_at_once[size];
    snprintf(tail, sizeof tail, "%s_%u", types[type], rows);
    return find(m, format_names[format], tail, EXPERTS_THREADS, sums_bytes(rows),
                &products[format][type][size], err);
}

/* Which of the sizes. */
static int size_for(const experts_args *a) {
    if (a->rows <= rows_at_once[0]) return 0;
    return (size_t)a->rows * a->n_used <= (size_t)a->n_experts * (rows_at_once[1] / 2) ? 1 : 2;
}

inferd_status experts_init(const cuda_module *m, const cu_device *d, inferd_err *err) {
    (void)d; // every kernel runs from compute capability 8.0 on
    inferd_status s = find(m, "route", "", EXPERTS_ROUTE_THREADS, ROUTE_SHARED, &route, err);
    if (s == INFERD_OK) s = find(m, "sort", "", EXPERTS_SORT_THREADS, SORT_SHARED, &sort, err);
    for (int t = 0; t < 2; t++) {
        if (s == INFERD_OK) s = find(m, "sum", types[t], EXPERTS_SUM_THREADS, 0, &sums[t], err);
        for (uint32_t f = 0; f < CU_FORMATS; f++)
            for (int size = 0; size < SIZES && s == INFERD_OK; size++)
                s = find_product(m, f, t, size, err);
    }
    return s;
}

/* ---- workspace ---- */

size_t experts_workspace_bytes(size_t n_slots) {
    return n_slots == 0 ? 0 : sizeof(experts_state) + 4 * n_slots * sizeof(uint32_t);
}

const uint32_t *experts_tally(const experts_workspace *w) {
    return &((const experts_state *)w->base)->n_reads;
}

typedef struct places { // in the workspace
    experts_state *state;
    uint32_t *chosen, *slot_of, *row_of;
    float *p;
} places;

static places places_of(const experts_workspace *w) {
    places at = {.state = w->base};
    uint32_t *arrays = (uint32_t *)(void *)((unsigned char *)w->base + sizeof(experts_state));
    at.chosen = arrays;
    at.p = (float *)(void *)(arrays + w->n_slots);
    at.slot_of = arrays + 2 * w->n_slots;
    at.row_of = arrays + 3 * w->n_slots;
    return at;
}

/* ---- launching ---- */

static void launch_one(launcher *l, const cu_kernel *const *slot, uint32_t grid_x, uint32_t grid_y,
                       uint32_t threads, uint32_t shared_bytes, const void *params,
                       uint32_t params_bytes) {
    const cu_kernel *k = __atomic_load_n(slot, __ATOMIC_RELAXED);
    INFERD_CHECK(k != NULL); // experts_init came first
    launch(l, k, grid_x, grid_y, 1, threads, shared_bytes, params, params_bytes);
}

static bool is_quantised(const experts_matrices *m) {
    return m->first.format > CU_FMT_F16;
}

static uint32_t round8(uint32_t n) {
    return (n + CHUNK - 1) / CHUNK * CHUNK;
}

static uint32_t blocks_of(uint32_t n, uint32_t each) {
    return (n + each - 1) / each;
}

static experts_mat mat_of(const experts_matrices *m) {
    const cu_matrix *w = &m->first;
    return (experts_mat){.low = is_quantised(m) ? w->low : w->data,
                         .high = w->high,
                         .scales = w->scales,
                         .step = m->step,
                         .bias = m->bias};
}

typedef struct source { // rows that a product reads
    const void *x;
    uint32_t stride;
    const uint32_t *row_of; // NULL: they are slots
} source;

typedef struct target { // rows that it writes
    void *out;
    cu_type type;
    uint32_t stride;
    bool lanes; // in the order of lanes
} target;

/* up: of a gated product, of the same format; or NULL. */
static void multiply(launcher *l, const experts_args *a, const places *at,
                     const experts_matrices *m, const experts_matrices *up, uint32_t mode,
                     source from, target to) {
    const cu_matrix *w = &m->first;
    uint32_t n_col_tiles = blocks_of(w->cols, TILE_COLS),
             n_row_tiles = blocks_of(w->rows, TILE_ROWS);
    experts_product_params p = {.mats = {mat_of(m)},
                                .state = at->state,
                                .row_of = from.row_of,
                                .x = from.x,
                                .out = to.out,
                                .rows = w->rows,
                                .cols = w->cols,
                                .x_stride = from.stride,
                                .w_stride = w->stride,
                                .n_row_tiles = n_row_tiles,
                                .n_col_tiles = n_col_tiles,
                                .warp_tiles = blocks_of(n_col_tiles, EXPERTS_K_WARPS),
                                .out_stride = to.stride,
                                .out_cols = round8(w->rows),
                                .mode = mode,
                                .act = (uint32_t)a->act,
                                .out_float = to.type == CU_F32,
                                .out_lanes = to.lanes};
    if (up != NULL) p.mats[1] = mat_of(up);
    uint32_t n_runs = (uint32_t)size_min((size_t)a->rows * a->n_used, a->n_experts);
    uint32_t n_blocks = mode == EXPERTS_GATED ? n_row_tiles : blocks_of(n_row_tiles, EXPERTS_SLOTS);
    int size = size_for(a);
    launch_one(l, &products[w->format][a->inner == CU_F16][size], n_blocks, n_runs, EXPERTS_THREADS,
               sums_bytes(rows_at_once[size]), &p, sizeof p);
}

/* Where x lies in the order of lanes; NULL: nothing reads it so. */
static void *x_lanes_of(const experts_args *a) {
    return is_quantised(&a->gate) || is_quantised(&a->up) ? a->parts : NULL;
}

void launch_experts_route(launcher *l, const experts_workspace *w, const experts_args *a) {
    places at = places_of(w);
    void *x_lanes = x_lanes_of(a);
    experts_route_params p = {.logits = a->logits,
                              .n_valid = a->n_valid,
                              .chosen = at.chosen,
                              .p = at.p,
                              .x = x_lanes != NULL ? a->x : NULL,
                              .x_lanes = x_lanes,
                              .logits_stride = a->logits_stride,
                              .n_experts = a->n_experts,
                              .n_used = a->n_used,
                              .cols = a->gate.first.cols,
                              .x_stride = a->x_stride};
    launch_one(l, &route, a->rows, 1, EXPERTS_ROUTE_THREADS, ROUTE_SHARED, &p, sizeof p);
}

void launch_experts_sort(launcher *l, const experts_workspace *w, const experts_args *a) {
    places at = places_of(w);
    experts_sort_params p = {.state = at.state,
                             .n_valid = a->n_valid,
                             .chosen = at.chosen,
                             .slot_of = at.slot_of,
                             .row_of = at.row_of,
                             .rows = a->rows,
                             .n_experts = a->n_experts,
                             .n_used = a->n_used,
                             .begin_step = a->n_counts > 0};
    launch_one(l, &sort, u32_max(a->n_experts, a->n_counts), 1, EXPERTS_SORT_THREADS, SORT_SHARED,
               &p, sizeof p);
}

void launch_experts_hidden(launcher *l, const experts_workspace *w, const experts_args *a) {
    places at = places_of(w);
    source natural = {a->x, a->x_stride, at.row_of};
    source lanes = {x_lanes_of(a), a->gate.first.cols, at.row_of};
    target to = {a->hidden, a->inner, a->hidden_stride, is_quantised(&a->down)};
    source of_gate = is_quantised(&a->gate) ? lanes : natural;
    if (a->gate.first.format == a->up.first.format) {
        multiply(l, a, &at, &a->gate, &a->up, EXPERTS_GATED, of_gate, to);
        return;
    }
    multiply(l, a, &at, &a->gate, NULL, EXPERTS_PLAIN, of_gate, to);
    multiply(l, a, &at, &a->up, NULL, EXPERTS_GATE_BY, is_quantised(&a->up) ? lanes : natural, to);
}

void launch_experts_sum(launcher *l, const experts_workspace *w, const experts_args *a) {
    places at = places_of(w);
    experts_sum_params p = {.parts = a->parts,
                            .out = a->out,
                            .n_valid = a->n_valid,
                            .slot_of = at.slot_of,
                            .p = at.p,
                            .parts_float = a->parts_type == CU_F32,
                            .out_float = a->out_type == CU_F32,
                            .n_used = a->n_used,
                            .dim = a->down.first.rows,
                            .parts_stride = a->parts_stride,
                            .out_stride = a->out_stride};
    uint32_t threads = u32_min(blocks_of(blocks_of(p.dim, CHUNK), 32) * 32, EXPERTS_SUM_THREADS);
    launch_one(l, &sums[a->inner == CU_F16], a->rows, blocks_of(p.dim, threads * CHUNK), threads, 0,
               &p, sizeof p);
}

static bool is_row(const void *p, uint32_t dim, uint32_t stride) {
    return (uintptr_t)p % 16 == 0 && stride % CHUNK == 0 && stride >= dim;
}

static void check_args(const experts_workspace *w, const experts_args *a) {
    const cu_matrix *gate = &a->gate.first, *up = &a->up.first, *down = &a->down.first;
    INFERD_CHECK(a->inner != CU_F32 && a->n_experts <= EXPERTS_MAX && a->n_counts <= EXPERTS_MAX);
    INFERD_CHECK(a->n_used > 0 && a->n_used <= a->n_experts && a->n_used <= EXPERTS_USED_MAX);
    INFERD_CHECK((size_t)a->rows * a->n_used <= w->n_slots);
    INFERD_CHECK(gate->rows == up->rows && gate->cols == up->cols && down->rows == gate->cols &&
                 down->cols == gate->rows);
    INFERD_CHECK(is_row(a->x, gate->cols, a->x_stride) &&
                 is_row(a->out, down->rows, a->out_stride));
    INFERD_CHECK(is_row(a->hidden, gate->rows, a->hidden_stride));
    INFERD_CHECK(is_row(a->parts, down->rows, a->parts_stride) && a->logits_stride >= a->n_experts);
    /* A row of x is found by 32 bits of 16 bytes. */
    INFERD_CHECK((uint64_t)a->rows * a->n_used * u32_max(a->hidden_stride, a->x_stride) / CHUNK <
                 UINT32_MAX);
}

void launch_experts_down(launcher *l, const experts_workspace *w, const experts_args *a) {
    places at = places_of(w);
    multiply(l, a, &at, &a->down, NULL, EXPERTS_PLAIN, (source){a->hidden, a->hidden_stride, NULL},
             (target){a->parts, a->parts_type, a->parts_stride, false});
}

void launch_experts(launcher *l, const experts_workspace *w, const experts_args *a) {
    if (a->rows == 0) return;
    check_args(w, a);
    launch_experts_route(l, w, a);
    launch_experts_sort(l, w, a);
    launch_experts_hidden(l, w, a);
    launch_experts_down(l, w, a);
    launch_experts_sum(l, w, a);
}
