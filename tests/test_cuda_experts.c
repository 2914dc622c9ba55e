/* test_cuda_experts.c - mixtures of experts on CUDA against the formula in double.
 *
 * Inputs are exact in their types.  The formula rounds what lies between two products as the
 * kernels do, so what may differ is the order of float sums, a rare rounding of a number that is
 * nearly halfway, and the rounding of parts and output where these are 16 bits wide.
 *
 * Memory that no expert may touch is not a number: gaps between matrices, columns behind the last,
 * and rows beyond those of the step. */
#include "cuda/experts.h"

#include "cuda/experts_params.h"
#include "cuda_products.h"

enum { SEED = 7310, GAP = 512 };

typedef struct mixture_spec {
    dtype gate, up, down;
    cu_type inner, between, out; // between: of parts
    uint32_t dim, ffn, n_experts, n_used, rows;
    glu_kind act;
    bool bias;
} mixture_spec;

typedef struct role { // the matrices of all experts
    experts_matrices m;
    uint32_t rows, cols;
    float *values; // [n_experts, rows, cols] as multiplied
    float *bias;   // [n_experts, rows]
} role;

typedef struct mixture {
    mixture_spec s;
    role gate, up, down;
    float *x, *logits; // [rows, dim], [rows, n_experts]
    experts_args a;
    experts_workspace work;
    uint32_t n_first; // of the rig's allocations
} mixture;

static float *floats(size_t n) {
    float *p = malloc((n + 1) * sizeof *p);
    INFERD_CHECK(p != NULL);
    return p;
}

/* ---- making ---- */

static role role_make(cuda_rig *r, const mixture_spec *s, dtype type, uint32_t rows,
                      uint32_t cols) {
    role o = {.rows = rows, .cols = cols, .values = floats((size_t)s->n_experts * rows * cols)};
    dtype_info about = dtype_about((uint32_t)type);
    size_t n = (size_t)rows * cols, n_file = n / about.block_elems * about.block_bytes;
    size_t n_image = format_bytes(type, rows, cols);
    o.m.step = n_image + GAP;
    unsigned char *file = product_alloc(n_file), *images = product_alloc(s->n_experts * o.m.step);
    memset(images, 0xFF, s->n_experts * o.m.step);
    for (uint32_t e = 0; e < s->n_experts; e++) {
        inferd_err err = {0};
        unsigned char *image = images + e * o.m.step;
        for (size_t i = 0; i < n_file; i += about.block_bytes) product_block(type, file + i);
        cu_matrix host = format_matrix(type, rows, cols, image);
        EXPECT_EQ(format_prepare(&host, type, image, file, 0, rows, &err), INFERD_OK);
        format_to_f32(&host, 0, rows, o.values + e * n);
    }
    if (type == DTYPE_F32 || type == DTYPE_F16 || type == DTYPE_BF16)
        rig_round_all(s->inner, o.values, s->n_experts * n);
    o.m.first = format_matrix(type, rows, cols, rig_put(r, images, s->n_experts * o.m.step));
    if (s->bias) {
        o.bias = rig_normals((size_t)s->n_experts * rows, 1);
        o.m.bias = rig_put(r, o.bias, (size_t)s->n_experts * rows * sizeof(float));
    }
    free(file);
    free(images);
    return o;
}

static void role_free(role *o) {
    free(o->values);
    free(o->bias);
}

/* Rows of `dim` numbers, `stride` apart, with NaN behind them. */
static void *put_rows(cuda_rig *r, cu_type type, const float *v, uint32_t rows, uint32_t dim,
                      uint32_t stride) {
    float *padded = floats((size_t)rows * stride);
    for (uint32_t i = 0; i < rows; i++)
        for (uint32_t k = 0; k < stride; k++)
            padded[(size_t)i * stride + k] = k < dim ? v[(size_t)i * dim + k] : NAN;
    void *p = rig_put_f32(r, type, padded, (size_t)rows * stride);
    free(padded);
    return p;
}

static uint32_t up8(uint32_t n) {
    return (n + 7) / 8 * 8;
}

/* The launch for the rows from `first` on; x and logits are those of the mixture. */
static void mixture_rows(cuda_rig *r, mixture *m, uint32_t first, uint32_t n) {
    const mixture_spec *s = &m->s;
    uint32_t slots = n * s->n_used, stride = up8(s->dim) + 8;
    m->work = (experts_workspace){.n_slots = slots};
    m->work.base = rig_alloc(r, experts_workspace_bytes(slots));
    rig_fill(r, m->work.base, 0, sizeof(experts_state));
    m->a = (experts_args){
        .x = put_rows(r, s->inner, m->x + (size_t)first * s->dim, n, s->dim, stride),
        .inner = s->inner,
        .logits = put_rows(r, CU_F32, m->logits + (size_t)first * s->n_experts, n, s->n_experts,
                           s->n_experts + 3),
        .x_stride = stride,
        .logits_stride = s->n_experts + 3,
        .gate = m->gate.m,
        .up = m->up.m,
        .down = m->down.m,
        .act = s->act,
        .n_experts = s->n_experts,
        .n_used = s->n_used,
        .hidden = rig_alloc(r, (size_t)slots * up8(s->ffn) * 2),
        .parts = rig_alloc(r, (size_t)slots * up8(s->dim) * rig_type_bytes(s->between)),
        .parts_type = s->between,
        .hidden_stride = up8(s->ffn),
        .parts_stride = up8(s->dim),
        .out = rig_alloc(r, (size_t)n * stride * rig_type_bytes(s->out)),
        .out_type = s->out,
        .out_stride = stride,
        .rows = n,
        .n_counts = s->n_experts};
    emul_settle();
}

static void mixture_make(mixture *m, cuda_rig *r, const mixture_spec *s) {
    *m = (mixture){.s = *s, .n_first = r->n_allocs};
    m->gate = role_make(r, s, s->gate, s->ffn, s->dim);
    m->up = role_make(r, s, s->up, s->ffn, s->dim);
    m->down = role_make(r, s, s->down, s->dim, s->ffn);
    m->x = rig_normals((size_t)s->rows * s->dim, 1);
    rig_round_all(s->inner, m->x, (size_t)s->rows * s->dim);
    m->logits = rig_normals((size_t)s->rows * s->n_experts, 2);
    mixture_rows(r, m, 0, s->rows);
}

static void mixture_free(mixture *m, cuda_rig *r) {
    while (r->n_allocs > m->n_first) rig_free(r, r->allocs[r->n_allocs - 1]);
    role_free(&m->gate);
    role_free(&m->up);
    role_free(&m->down);
    free(m->x);
    free(m->logits);
}

/* ---- the formula ---- */

/* Ascending; not a number is the smallest. */
static void choose(const float *logits, uint32_t n, uint32_t n_used, uint32_t *chosen) {
    uint32_t at = 0;
    for (uint32_t e = 0; e < n; e++) {
        uint32_t before = 0;
        double own = isnan(logits[e]) ? -INFINITY : (double)logits[e];
        for (uint32_t i = 0; i < n; i++) {
            double other = isnan(logits[i]) ? -INFINITY : (double)logits[i];
            before += other > own || (other == own && i < e);
        }
        if (before < n_used) chosen[at++] = e;
    }
    EXPECT_EQ(at, n_used);
}

static double dot(const role *o, uint32_t expert, uint32_t row, const float *x) {
    const float *w = o->values + ((size_t)expert * o->rows + row) * o->cols;
    double sum = o->bias != NULL ? (double)o->bias[(size_t)expert * o->rows + row] : 0;
    for (uint32_t k = 0; k < o->cols; k++) sum += (double)w[k] * (double)x[k];
    return sum;
}

static double gate_of(glu_kind act, double g, double u) {
    if (act == GLU_SILU) return g / (1 + exp(-g)) * u;
    if (act == GLU_GELU_TANH)
        return g / (1 + exp(-2 * 0.7978845608028654 * (g + 0.044715 * g * g * g))) * u;
    g = fmin(g, 7), u = fmax(fmin(u, 7), -7);
    return g / (1 + exp(-(double)1.702f * g)) * (u + 1);
}

static void formula(const mixture *m, uint32_t row, double *out) {
    const mixture_spec *s = &m->s;
    const float *logits = m->logits + (size_t)row * s->n_experts, *x = m->x + (size_t)row * s->dim;
    uint32_t chosen[EXPERTS_USED_MAX];
    float *hidden = floats(s->ffn);
    double max = -INFINITY, total = 0;
    choose(logits, s->n_experts, s->n_used, chosen);
    for (uint32_t i = 0; i < s->n_used; i++) max = fmax(max, (double)logits[chosen[i]]);
    for (uint32_t i = 0; i < s->n_used; i++) total += exp((double)logits[chosen[i]] - max);
    memset(out, 0, s->dim * sizeof *out);
    for (uint32_t i = 0; i < s->n_used; i++) {
        uint32_t e = chosen[i];
        for (uint32_t f = 0; f < s->ffn; f++) {
            double gate = dot(&m->gate, e, f, x);
            if (s->gate != s->up) gate = (double)rig_round(s->inner, (float)gate);
            hidden[f] = rig_round(s->inner, (float)gate_of(s->act, gate, dot(&m->up, e, f, x)));
        }
        double p = exp((double)logits[e] - max) / total;
        for (uint32_t d = 0; d < s->dim; d++) out[d] += p * dot(&m->down, e, d, hidden);
    }
    free(hidden);
}

/* Rows [first, first + n) that were launched are what the formula says; behind them stand zeros up
 * to a multiple of 8, and nothing else was written. */
static void check_out(cuda_rig *r, const mixture *m, uint32_t first, uint32_t n, const char *what) {
    const mixture_spec *s = &m->s;
    uint32_t stride = m->a.out_stride;
    float *got = floats((size_t)n * stride);
    double *want = malloc(s->dim * sizeof *want);
    INFERD_CHECK(want != NULL);
    rig_get_f32(r, s->out, got, m->a.out, (size_t)n * stride);
    bool wide = s->between == CU_F32 && s->out == CU_F32;
    double allowed = wide ? 3e-4 : s->inner == CU_BF16 ? 4e-3 : 6e-4, worst = 0;
    for (uint32_t i = 0; i < n; i++) {
        const float *row = got + (size_t)i * stride;
        formula(m, first + i, want);
        worst = fmax(worst, rig_error(row, want, s->dim));
        for (uint32_t k = s->dim; k < up8(s->dim); k++) EXPECT(row[k] == 0);
        for (uint32_t k = up8(s->dim); k < stride; k++) EXPECT(isnan(row[k]));
    }
    if (!(worst <= allowed)) {
        printf("%s: %s, %s, %s, %s, %u x %u, %u of %u experts, %u rows: error %.3g, allowed %.3g\n",
               what, dtype_about(s->gate).name, dtype_about(s->up).name, dtype_about(s->down).name,
               rig_type_name(s->inner), s->dim, s->ffn, s->n_used, s->n_experts, n, worst, allowed);
        test_failures++;
    }
    free(got);
    free(want);
}

static void begin(cuda_rig *r) {
    inferd_err err = {0};
    rig_open(r);
    rig_seed(SEED);
    EXPECT_EQ(experts_init(r->module, &r->device, &err), INFERD_OK);
    if (err.text[0] != 0) printf("%s\n", err.text);
}

static void check(cuda_rig *r, const mixture_spec *s, const char *what) {
    mixture m;
    mixture_make(&m, r, s);
    launch_experts(&r->l, &m.work, &m.a);
    if (rig_sync(r)) check_out(r, &m, 0, s->rows, what);
    mixture_free(&m, r);
}

/* ---- values ---- */

static void every_format_is_the_formula(void) {
    cuda_rig r;
    for (size_t t = 0; t < INFERD_COUNT(product_types); t++)
        for (int inner = 0; inner < 2; inner++) {
            dtype type = product_types[t];
            uint32_t block = dtype_about((uint32_t)type).block_elems;
            begin(&r);
            check(&r,
                  &(mixture_spec){.gate = type,
                                  .up = type,
                                  .down = type,
                                  .inner = inner ? CU_F16 : CU_BF16,
                                  .between = CU_F32,
                                  .out = CU_F32,
                                  .dim = block == 1    ? 100
                                         : block == 32 ? 96
                                                       : 256,
                                  .ffn = block == 1    ? 36
                                         : block == 32 ? 160
                                                       : 256,
                                  .n_experts = 4,
                                  .n_used = 2,
                                  .rows = 5,
                                  .act = (glu_kind)(t % 3),
                                  .bias = t % 2 == 0},
                  "formats");
            rig_close(&r);
        }
}

/* Q4_K_M files keep some down matrices in Q6_K; others mix gate and up, or dense and quantised. */
static void roles_may_have_different_formats(void) {
    static const dtype types[][3] = {{DTYPE_Q4_K, DTYPE_Q4_K, DTYPE_Q6_K},
                                     {DTYPE_Q4_K, DTYPE_Q5_K, DTYPE_BF16},
                                     {DTYPE_BF16, DTYPE_Q8_0, DTYPE_Q8_0},
                                     {DTYPE_Q8_0, DTYPE_F32, DTYPE_F16}};
    cuda_rig r;
    for (size_t i = 0; i < INFERD_COUNT(types); i++) {
        begin(&r);
        check(&r,
              &(mixture_spec){.gate = types[i][0],
                              .up = types[i][1],
                              .down = types[i][2],
                              .inner = CU_BF16,
                              .between = i % 2 ? CU_F32 : CU_BF16,
                              .out = i < 2 ? CU_F32 : CU_BF16,
                              .dim = 256,
                              .ffn = 256,
                              .n_experts = 3,
                              .n_used = 2,
                              .rows = 3,
                              .act = GLU_SILU,
                              .bias = true},
              "roles");
        rig_close(&r);
    }
}

/* Rows of an expert on either side of what a block multiplies at once, in each of the kernels. */
static void any_number_of_rows_is_the_formula(void) {
    static const uint32_t rows[] = {1, 9, 33, 150};
    static const dtype types[] = {DTYPE_BF16, DTYPE_Q4_1, DTYPE_Q6_K};
    cuda_rig r;
    for (size_t t = 0; t < INFERD_COUNT(types); t++)
        for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
            uint32_t dim = types[t] == DTYPE_Q6_K ? 256 : 32;
            if (types[t] == DTYPE_Q6_K && rows[i] != 33) continue;
            begin(&r);
            for (uint32_t n_experts = 2; n_experts <= 7; n_experts += 5)
                check(&r,
                      &(mixture_spec){.gate = types[t],
                                      .up = types[t],
                                      .down = types[t],
                                      .inner = i % 2 ? CU_F16 : CU_BF16,
                                      .between = CU_F32,
                                      .out = CU_F32,
                                      .dim = dim,
                                      .ffn = dim == 256 ? 256 : 96,
                                      .n_experts = n_experts,
                                      .n_used = 2,
                                      .rows = rows[i],
                                      .act = GLU_SILU},
                      "rows");
            rig_close(&r);
        }
}

/* ---- routing ---- */

static experts_state *read_state(cuda_rig *r, const mixture *m, uint32_t **arrays) {
    size_t n = experts_workspace_bytes(m->work.n_slots);
    unsigned char *host = malloc(n);
    INFERD_CHECK(host != NULL);
    rig_read(r, host, m->work.base, n);
    *arrays = (uint32_t *)(void *)(host + sizeof(experts_state));
    return (experts_state *)(void *)host;
}

/* The choices, their weights, the slots by expert and row, and the list of experts with rows. */
static void check_routing(cuda_rig *r, const mixture *m, uint32_t rows) {
    const mixture_spec *s = &m->s;
    uint32_t *arrays, n_slots = (uint32_t)m->work.n_slots, n = rows * s->n_used, slot = 0, runs = 0;
    experts_state *state = read_state(r, m, &arrays);
    const uint32_t *chosen = arrays, *slot_of = arrays + 2 * n_slots,
                   *row_of = arrays + 3 * n_slots;
    const float *p = (const float *)(const void *)(arrays + n_slots);
    uint32_t *want = malloc((n + 1) * sizeof *want);
    INFERD_CHECK(want != NULL);
    for (uint32_t i = 0; i < rows; i++) {
        const float *logits = m->logits + (size_t)i * s->n_experts;
        double max = -INFINITY, total = 0;
        choose(logits, s->n_experts, s->n_used, want + i * s->n_used);
        for (uint32_t k = 0; k < s->n_used; k++)
            max = fmax(max, (double)logits[want[i * s->n_used + k]]);
        for (uint32_t k = 0; k < s->n_used; k++)
            total += exp((double)logits[want[i * s->n_used + k]] - max);
        for (uint32_t k = 0; k < s->n_used; k++) {
            double weight = exp((double)logits[want[i * s->n_used + k]] - max) / total;
            double got = (double)p[i * s->n_used + k];
            EXPECT(isnan(weight) ? isnan(got) != 0 : fabs(got - weight) <= 1e-6);
        }
    }
    EXPECT(memcmp(chosen, want, n * sizeof *want) == 0);
    for (uint32_t e = 0; e < s->n_experts; e++) {
        uint32_t first = slot;
        for (uint32_t i = 0; i < n; i++) {
            if (want[i] != e) continue;
            EXPECT_EQ(slot_of[i], slot);
            EXPECT_EQ(row_of[slot], i / s->n_used);
            slot++;
        }
        EXPECT_EQ(state->step_rows[e], slot - first);
        if (slot == first) continue;
        EXPECT_EQ(state->runs[runs].expert, e);
        EXPECT_EQ(state->runs[runs].first, first);
        EXPECT_EQ(state->runs[runs].n, slot - first);
        runs++;
    }
    EXPECT_EQ(state->n_runs, runs);
    EXPECT_EQ(state->n_reads, runs);
    EXPECT_EQ(state->arrived, 0);
    free(want);
    free(state);
}

static mixture_spec small_spec(uint32_t n_experts, uint32_t n_used, uint32_t rows) {
    return (mixture_spec){.gate = DTYPE_BF16,
                          .up = DTYPE_BF16,
                          .down = DTYPE_BF16,
                          .inner = CU_BF16,
                          .between = CU_F32,
                          .out = CU_F32,
                          .dim = 8,
                          .ffn = 8,
                          .n_experts = n_experts,
                          .n_used = n_used,
                          .rows = rows,
                          .act = GLU_SILU};
}

static void rows_are_sorted_by_their_experts(void) {
    static const struct {
        uint32_t n_experts, n_used, rows;
    } at[] = {{1, 1, 3}, {8, 2, 20}, {128, 8, 70}, {33, 4, 9}, {32, 32, 2}, {1024, 32, 5}};
    cuda_rig r;
    for (size_t i = 0; i < INFERD_COUNT(at); i++) {
        mixture_spec s = small_spec(at[i].n_experts, at[i].n_used, at[i].rows);
        mixture m;
        begin(&r);
        mixture_make(&m, &r, &s);
        launch_experts(&r.l, &m.work, &m.a);
        if (rig_sync(&r)) check_routing(&r, &m, s.rows);
        if (s.n_experts < 100) check_out(&r, &m, 0, s.rows, "sorted");
        mixture_free(&m, &r);
        rig_close(&r);
    }
}

/* Of equal logits the lower expert; not a number is chosen last, and shows in the row. */
static void ties_and_odd_logits_are_decided_by_number(void) {
    cuda_rig r;
    mixture m;
    mixture_spec s = small_spec(40, 3, 5);
    begin(&r);
    mixture_make(&m, &r, &s);
    for (uint32_t e = 0; e < 40; e++) {
        m.logits[e] = 1;
        m.logits[40 + e] = e % 2 ? -0.0f : 0.0f;
        m.logits[80 + e] = e == 7 ? 3 : e == 39 ? 5 : NAN;
        m.logits[120 + e] = -INFINITY;
        m.logits[160 + e] = e == 3 || e == 30 ? 1e30f : -1e30f;
    }
    mixture_rows(&r, &m, 0, 5);
    launch_experts(&r.l, &m.work, &m.a);
    if (rig_sync(&r)) check_routing(&r, &m, 5);
    mixture_free(&m, &r);
    rig_close(&r);
}

/* A graph's bucket has rows beyond the batch: they belong to no expert and become zeros. */
static void rows_beyond_the_batch_cost_nothing(void) {
    enum { ROWS = 12, VALID = 5 };
    cuda_rig r;
    mixture m;
    mixture_spec s = small_spec(6, 2, ROWS);
    s.dim = 20;
    begin(&r);
    mixture_make(&m, &r, &s);
    uint32_t n = VALID;
    m.a.n_valid = rig_put(&r, &n, sizeof n);
    emul_settle();
    launch_experts(&r.l, &m.work, &m.a);
    if (rig_sync(&r)) {
        check_routing(&r, &m, VALID);
        check_out(&r, &m, 0, VALID, "valid");
        float *out = floats((size_t)ROWS * m.a.out_stride);
        rig_get_f32(&r, CU_F32, out, m.a.out, (size_t)ROWS * m.a.out_stride);
        for (uint32_t i = VALID; i < ROWS; i++)
            for (uint32_t k = 0; k < 24; k++) EXPECT(out[i * m.a.out_stride + k] == 0);
        free(out);
    }
    mixture_free(&m, &r);
    rig_close(&r);
}

static void counts_of_a_step_add_up(void) {
    cuda_rig r;
    mixture m;
    mixture_spec s = small_spec(9, 2, 7);
    uint32_t tally[16], once[10];
    begin(&r);
    mixture_make(&m, &r, &s);
    launch_experts(&r.l, &m.work, &m.a);
    rig_read(&r, once, experts_tally(&m.work), sizeof once);
    m.a.n_counts = 0; // another layer of the step
    launch_experts(&r.l, &m.work, &m.a);
    rig_read(&r, tally, experts_tally(&m.work), sizeof once);
    for (uint32_t i = 0; i < 10; i++) EXPECT_EQ(tally[i], 2 * once[i]);
    m.a.n_counts = 15; // of the next step, in which another mixture has more experts
    launch_experts(&r.l, &m.work, &m.a);
    rig_read(&r, tally, experts_tally(&m.work), sizeof tally);
    EXPECT(memcmp(tally, once, sizeof once) == 0);
    for (uint32_t i = 10; i < 16; i++) EXPECT_EQ(tally[i], 0);
    mixture_free(&m, &r);
    rig_close(&r);
}

/* ---- bits ---- */

static unsigned char *out_bytes(cuda_rig *r, const mixture *m, size_t *row_bytes) {
    *row_bytes = (size_t)m->a.out_stride * rig_type_bytes(m->s.out);
    unsigned char *p = malloc(m->a.rows * *row_bytes);
    INFERD_CHECK(p != NULL);
    rig_read(r, p, m->a.out, m->a.rows * *row_bytes);
    return p;
}

/* Alone, and among rows that fill one, several, or many tiles of its experts. */
static void a_row_has_the_same_bits_alone_and_among_others(void) {
    static const dtype types[] = {DTYPE_Q4_K, DTYPE_Q8_0, DTYPE_BF16};
    static const uint32_t cuts[][2] = {{0, 1}, {7, 1}, {3, 8}, {60, 9}, {20, 40}, {129, 1}};
    cuda_rig r;
    for (size_t t = 0; t < INFERD_COUNT(types); t++) {
        mixture m;
        mixture_spec s = {.gate = types[t],
                          .up = types[t],
                          .down = types[t],
                          .inner = t == 1 ? CU_F16 : CU_BF16,
                          .between = CU_BF16,
                          .out = CU_F32,
                          .dim = types[t] == DTYPE_Q4_K ? 512 : 96,
                          .ffn = types[t] == DTYPE_Q4_K ? 256 : 64,
                          .n_experts = 3,
                          .n_used = 2,
                          .rows = 130,
                          .act = GLU_CLAMPED_SWIGLU,
                          .bias = true};
        if (t == 1) s.between = CU_F16;
        begin(&r);
        mixture_make(&m, &r, &s);
        launch_experts(&r.l, &m.work, &m.a);
        size_t row_bytes;
        unsigned char *all = out_bytes(&r, &m, &row_bytes);
        for (size_t i = 0; i < INFERD_COUNT(cuts); i++) {
            mixture_rows(&r, &m, cuts[i][0], cuts[i][1]);
            launch_experts(&r.l, &m.work, &m.a);
            unsigned char *some = out_bytes(&r, &m, &row_bytes);
            EXPECT(memcmp(some, all + cuts[i][0] * row_bytes, cuts[i][1] * row_bytes) == 0);
            free(some);
        }
        free(all);
        mixture_free(&m, &r);
        rig_close(&r);
    }
}

static void the_order_of_threads_changes_nothing(void) {
    cuda_rig r;
    mixture m;
    mixture_spec s = {.gate = DTYPE_Q4_1,
                      .up = DTYPE_Q4_1,
                      .down = DTYPE_Q6_K,
                      .inner = CU_BF16,
                      .between = CU_BF16,
                      .out = CU_BF16,
                      .dim = 96,
                      .ffn = 256,
                      .n_experts = 20,
                      .n_used = 3,
                      .rows = 11};
    begin(&r);
    if (rig_is_real(&r)) {
        rig_close(&r);
        SKIP("only emulation has an order");
    }
    mixture_make(&m, &r, &s);
    launch_experts(&r.l, &m.work, &m.a);
    size_t row_bytes;
    unsigned char *first = out_bytes(&r, &m, &row_bytes);
    for (uint64_t seed = 1; seed <= 2; seed++) {
        emul_set_options(&(emul_options){.seed = seed * 31, .shuffle = true});
        mixture_rows(&r, &m, 0, s.rows);
        launch_experts(&r.l, &m.work, &m.a);
        unsigned char *other = out_bytes(&r, &m, &row_bytes);
        for (uint32_t i = 0; i < s.rows; i++)
            EXPECT(memcmp(other + i * row_bytes, first + i * row_bytes, 96 * 2) == 0);
        free(other);
    }
    emul_set_options(&(emul_options){.seed = 1});
    free(first);
    mixture_free(&m, &r);
    rig_close(&r);
}

/* ---- bytes, and launches ---- */

static const cu_api *real_api;
static uint64_t streamed;

static cu_result counted_launch(const cu_launch *what, cu_stream stream) {
    emul_counts counts;
    cu_result result = real_api->launch(what, stream);
    if (result != CU_OK) return result;
    result = real_api->stream_sync(stream); // the newest launch has run
    emul_get_counts(&counts);
    streamed += counts.stream_bytes;
    return result;
}

/* Bytes of one prepared matrix, without the gaps between its planes. */
static size_t matrix_bytes(const cu_matrix *m) {
    static const uint32_t of_tile[CU_FORMATS] = {
        [CU_FMT_Q4] = 512 + 64,         [CU_FMT_Q4M] = 512 + 128,      [CU_FMT_Q5] = 512 + 128 + 64,
        [CU_FMT_Q5M] = 512 + 128 + 128, [CU_FMT_Q6] = 512 + 256 + 128, [CU_FMT_Q8] = 1024 + 64};
    if (of_tile[m->format] != 0)
        return (size_t)m->n_row_tiles * m->n_col_tiles * of_tile[m->format];
    return (size_t)(m->rows + 15) / 16 * 16 * m->stride * (m->format == CU_FMT_F32 ? 4 : 2);
}

/* Scales of a tile are read by four lanes each, from one line. */
static size_t read_bytes(const cu_matrix *m) {
    static const uint32_t of_scales[CU_FORMATS] = {
        [CU_FMT_Q4] = 64,   [CU_FMT_Q4M] = 128, [CU_FMT_Q5] = 64,
        [CU_FMT_Q5M] = 128, [CU_FMT_Q6] = 128,  [CU_FMT_Q8] = 64};
    return matrix_bytes(m) + (size_t)m->n_row_tiles * m->n_col_tiles * 3 * of_scales[m->format];
}

/* Each expert with rows is read once, the others are not: of one row as many as it uses. */
static void experts_with_rows_are_read_once(void) {
    static const dtype types[] = {DTYPE_BF16, DTYPE_F32,  DTYPE_Q4_0, DTYPE_Q4_K,
                                  DTYPE_Q5_0, DTYPE_Q5_K, DTYPE_Q6_K, DTYPE_Q8_0};
    static const uint32_t rows[] = {1, 6, 20};
    cuda_rig r;
    for (size_t t = 0; t < INFERD_COUNT(types); t++)
        for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
            uint32_t block = dtype_about(types[t]).block_elems;
            mixture m;
            mixture_spec s = {.gate = types[t],
                              .up = types[t],
                              .down = types[t],
                              .inner = CU_BF16,
                              .between = CU_F32,
                              .out = CU_F32,
                              .dim = block == 256 ? 512 : 96,
                              .ffn = block == 256 ? 256 : 64,
                              .n_experts = 16,
                              .n_used = 3,
                              .rows = rows[i]};
            begin(&r);
            if (rig_is_real(&r)) {
                rig_close(&r);
                SKIP("only emulation counts");
            }
            mixture_make(&m, &r, &s);
            cu_api api = *r.api;
            api.launch = counted_launch;
            real_api = r.api;
            r.l.api = &api;
            streamed = 0;
            launch_experts(&r.l, &m.work, &m.a);
            r.l.api = real_api;
            uint32_t tally[17];
            if (rig_sync(&r)) {
                rig_read(&r, tally, experts_tally(&m.work), sizeof tally);
                if (rows[i] == 1) EXPECT_EQ(tally[0], 3);
                EXPECT(tally[0] <= 16);
                EXPECT_EQ(streamed,
                          tally[0] * (read_bytes(&m.gate.m.first) + read_bytes(&m.up.m.first) +
                                      read_bytes(&m.down.m.first)));
            }
            mixture_free(&m, &r);
            rig_close(&r);
        }
}

static void launches_do_not_depend_on_the_routing(void) {
    cuda_rig r;
    mixture m;
    mixture_spec s = small_spec(8, 2, 3);
    begin(&r);
    mixture_make(&m, &r, &s);
    launch_experts(&r.l, &m.work, &m.a);
    rig_sync(&r);
    EXPECT_EQ(r.l.n_launches, 5);
    EXPECT_EQ(rig_launches(&r, "experts_route"), 1);
    EXPECT_EQ(rig_launches(&r, "experts_sort"), 1);
    EXPECT_EQ(rig_launches(&r, "experts_bf16_bf16_8"), 2);
    EXPECT_EQ(rig_launches(&r, "experts_sum_bf16"), 1);
    m.a.rows = 0;
    launch_experts(&r.l, &m.work, &m.a);
    EXPECT_EQ(r.l.n_launches, 5);
    mixture_free(&m, &r);
    rig_close(&r);
}

static void a_missing_kernel_is_named(void) {
    cuda_rig r;
    inferd_err err = {0};
    rig_open(&r);
    cuda_module none = *r.module;
    none.n_kernels = 0;
    EXPECT_EQ(experts_init(&none, &r.device, &err), INFERD_EUNSUPPORTED);
    EXPECT_STR(err.text, "the module has no kernel experts_route");
    rig_close(&r);
}

static const test_case cases[] = {
    TEST(every_format_is_the_formula),
    TEST(roles_may_have_different_formats),
    TEST(any_number_of_rows_is_the_formula),
    TEST(rows_are_sorted_by_their_experts),
    TEST(ties_and_odd_logits_are_decided_by_number),
    TEST(rows_beyond_the_batch_cost_nothing),
    TEST(counts_of_a_step_add_up),
    TEST(a_row_has_the_same_bits_alone_and_among_others),
    TEST(the_order_of_threads_changes_nothing),
    TEST(experts_with_rows_are_read_once),
    TEST(launches_do_not_depend_on_the_routing),
    TEST(a_missing_kernel_is_named),
};

TEST_MAIN(cases)
