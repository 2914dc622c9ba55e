/* selftest_rows.c - checks of the kernels of rows.cu, of dummy weights, and of the kernels of
 * bench.cu, which move bytes.
 *
 * Values are eighths between 1/2 and 3/2 with signs, so sums and products of two are exact in
 * float, and no expected value is smaller than the bound of its check.
 *
 * Thread: one. */
#include <math.h>
#include <string.h>

#include "cuda/bench.h"
#include "cuda/formats.h"
#include "cuda/rows.h"
#include "cuda/selftest_check.h"
#include "dummy.h"

enum { ROWS = 3, DIM = 203, STRIDE = 216, N = ROWS * STRIDE, TYPES = 3 };

/* Bounds of float arithmetic: of a few operations, and of sums and special functions. */
static const double FEW = 1e-6, MANY = 4e-6;

static double value(uint32_t i, uint32_t salt) {
    uint32_t v = (i * 2654435761u + salt * 40503u) >> 7;
    double size = (4 + v % 9) / 8.0;
    return v & 16 ? -size : size;
}

static void fill(double *out, uint32_t n, uint32_t salt) {
    for (uint32_t i = 0; i < n; i++) out[i] = value(i, salt);
}

/* Columns from dim to the next multiple of 8 are zeros; later ones are not written or compared. */
static void check_rows(check *c, const char *what, cu_type type, const void *device, uint32_t rows,
                       uint32_t dim, uint32_t stride, const double *want, double relative) {
    double *got = malloc((size_t)rows * stride * sizeof *got);
    double *shown = malloc((size_t)rows * dim * sizeof *shown);
    INFERD_CHECK(got != NULL && shown != NULL);
    check_get_values(c, type, got, device, (size_t)rows * stride);
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t i = 0; i < dim; i++) shown[r * dim + i] = got[r * stride + i];
    check_values(c, what, shown, want, (size_t)rows * dim, dim,
                 relative + 2 * (type == CU_F32 || relative == 0 ? 0 : type_rounding(type)), 0);
    free(got);
    free(shown);
}

static bool meet(cu_type a, cu_type b) {
    return a == b || a == CU_F32 || b == CU_F32;
}

/* ---- norm ---- */

static void norm(check *c, cu_type x_type, const cu_type *add_type, cu_type out_type, bool gather) {
    static const uint32_t rows[ROWS] = {2, 0, 1};
    double x[N], add[N], w[DIM], want[ROWS * DIM], sum[ROWS * DIM];
    const double eps = 0.125;
    if (!check_begin(c, "norm_%s_%s_%s%s", type_name(x_type),
                     add_type != NULL ? type_name(*add_type) : "none", type_name(out_type),
                     gather ? " gathered" : ""))
        return;
    fill(x, N, 1);
    fill(add, N, 2);
    fill(w, DIM, 3);
    for (uint32_t r = 0; r < ROWS; r++) {
        double squares = 0;
        for (uint32_t i = 0; i < DIM; i++) {
            uint32_t from = (gather ? rows[r] : r) * STRIDE + i;
            double v = x[from] + (add_type != NULL ? add[from] : 0);
            sum[r * DIM + i] = v;
            squares += v * v;
        }
        for (uint32_t i = 0; i < DIM; i++)
            want[r * DIM + i] = sum[r * DIM + i] / sqrt(squares / DIM + eps) * w[i];
    }
    norm_args a = {.out = check_room(c, N * type_bytes(out_type)),
                   .out_type = out_type,
                   .x = check_put_values(c, x_type, x, N),
                   .x_type = x_type,
                   .add = add_type != NULL ? check_put_values(c, *add_type, add, N) : NULL,
                   .add_type = add_type != NULL ? *add_type : CU_F32,
                   .w = check_put_values(c, CU_F32, w, DIM),
                   .gather = gather ? check_put(c, rows, sizeof rows) : NULL,
                   .eps = (float)eps,
                   .rows = ROWS,
                   .dim = DIM,
                   .x_stride = STRIDE,
                   .out_stride = STRIDE,
                   .add_stride = STRIDE};
    if (!check_ready(c)) return;
    launch_norm(&c->l, &a);
    if (!check_run(c)) return;
    check_rows(c, "out", out_type, a.out, ROWS, DIM, STRIDE, want, MANY);
    if (add_type != NULL) check_rows(c, "x", x_type, a.x, ROWS, DIM, STRIDE, sum, 0);
    check_end(c);
}

static void norms(check *c) {
    for (cu_type x = CU_F32; x <= CU_F16; x++)
        for (cu_type out = CU_F32; out <= CU_F16; out++) {
            if (!meet(x, out)) continue;
            norm(c, x, NULL, out, false);
            for (cu_type add = CU_F32; add <= CU_F16 && x == CU_F32; add++)
                if (meet(add, out)) norm(c, x, &add, out, false);
        }
    norm(c, CU_F32, NULL, CU_BF16, true);
}

/* ---- elementwise ---- */

static void add(check *c, cu_type x_type, cu_type y_type) {
    double x[N], y[N], want[ROWS * DIM];
    if (!check_begin(c, "add_%s_%s", type_name(x_type), type_name(y_type))) return;
    fill(x, N, 4);
    fill(y, N, 5);
    for (uint32_t i = 0; i < ROWS * DIM; i++)
        want[i] = x[i / DIM * STRIDE + i % DIM] + y[i / DIM * STRIDE + i % DIM];
    add_args a = {.x = check_put_values(c, x_type, x, N),
                  .y = check_put_values(c, y_type, y, N),
                  .x_type = x_type,
                  .y_type = y_type,
                  .rows = ROWS,
                  .dim = DIM,
                  .x_stride = STRIDE,
                  .y_stride = STRIDE};
    if (!check_ready(c)) return;
    launch_add(&c->l, &a);
    if (!check_run(c)) return;
    check_rows(c, "x", x_type, a.x, ROWS, DIM, STRIDE, want, 0);
    check_end(c);
}

static void bias(check *c, cu_type type) {
    double x[N], b[DIM], want[ROWS * DIM];
    if (!check_begin(c, "bias_%s", type_name(type))) return;
    fill(x, N, 6);
    fill(b, DIM, 7);
    for (uint32_t i = 0; i < ROWS * DIM; i++) want[i] = x[i / DIM * STRIDE + i % DIM] + b[i % DIM];
    bias_args a = {.x = check_put_values(c, type, x, N),
                   .type = type,
                   .bias = check_put_values(c, CU_F32, b, DIM),
                   .rows = ROWS,
                   .dim = DIM,
                   .stride = STRIDE};
    if (!check_ready(c)) return;
    launch_bias(&c->l, &a);
    if (!check_run(c)) return;
    check_rows(c, "x", type, a.x, ROWS, DIM, STRIDE, want, 0);
    check_end(c);
}

static void gather(check *c, cu_type type) {
    enum { OUT = 5 };
    static const uint32_t rows[OUT] = {2, 0, 0, 1, 2};
    double x[N], want[OUT * DIM];
    if (!check_begin(c, "gather_%s", type_name(type))) return;
    fill(x, N, 8);
    for (uint32_t i = 0; i < OUT * DIM; i++) want[i] = x[rows[i / DIM] * STRIDE + i % DIM];
    gather_args a = {.out = check_room(c, OUT * STRIDE * type_bytes(type)),
                     .x = check_put_values(c, type, x, N),
                     .gather = check_put(c, rows, sizeof rows),
                     .type = type,
                     .rows = OUT,
                     .dim = DIM,
                     .x_stride = STRIDE,
                     .out_stride = STRIDE};
    if (!check_ready(c)) return;
    launch_gather(&c->l, &a);
    if (!check_run(c)) return;
    check_rows(c, "out", type, a.out, OUT, DIM, STRIDE, want, 0);
    check_end(c);
}

static double gated(glu_kind kind, double v, double factor) {
    if (kind == GLU_SILU) return v / (1 + exp(-v)) * factor;
    if (kind == GLU_CLAMPED_SWIGLU)
        return fmin(v, 7) / (1 + exp(-1.702 * fmin(v, 7))) * (fmax(fmin(factor, 7), -7) + 1);
    return 0.5 * v * (1 + tanh(0.7978845608028654 * (v + 0.044715 * v * v * v))) * factor;
}

static void glu(check *c, cu_type type, glu_kind kind) {
    double gate[N], up[N], want[ROWS * DIM];
    static const char *const names[] = {
        [GLU_SILU] = "silu", [GLU_GELU_TANH] = "gelu", [GLU_CLAMPED_SWIGLU] = "clamped swiglu"};
    if (!check_begin(c, "glu_%s %s", type_name(type), names[kind])) return;
    fill(gate, N, 9);
    fill(up, N, 10);
    for (uint32_t i = 0; i < ROWS * DIM; i++) {
        uint32_t at = i / DIM * STRIDE + i % DIM;
        want[i] = gated(kind, gate[at], up[at]);
    }
    glu_args a = {.out = check_room(c, N * type_bytes(type)),
                  .gate = check_put_values(c, type, gate, N),
                  .up = check_put_values(c, type, up, N),
                  .inner = type,
                  .kind = kind,
                  .rows = ROWS,
                  .dim = DIM,
                  .stride = STRIDE};
    if (!check_ready(c)) return;
    launch_glu(&c->l, &a);
    if (!check_run(c)) return;
    check_rows(c, "out", type, a.out, ROWS, DIM, STRIDE, want, MANY);
    check_end(c);
}

static void scale(check *c, cu_type type, cu_type out) {
    double x[N], want[ROWS * DIM];
    if (!check_begin(c, "scale_%s_%s", type_name(type), type_name(out))) return;
    fill(x, N, 12);
    for (uint32_t i = 0; i < ROWS * DIM; i++)
        want[i] = 0.25 * type_round(type, x[i / DIM * STRIDE + i % DIM]);
    scale_args a = {.x = check_put_values(c, type, x, N),
                    .out = check_put_values(c, out, x, N),
                    .x_type = type,
                    .out_type = out,
                    .factor = 0.25f,
                    .rows = ROWS,
                    .dim = DIM,
                    .x_stride = STRIDE,
                    .out_stride = STRIDE};
    if (!check_ready(c)) return;
    launch_scale(&c->l, &a);
    if (!check_run(c)) return;
    check_rows(c, "out", out, a.out, ROWS, DIM, STRIDE, want, FEW);
    check_end(c);
}

static void softcap(check *c) {
    double x[N], want[ROWS * DIM];
    const double cap = 1.25;
    if (!check_begin(c, "softcap")) return;
    fill(x, N, 11);
    for (uint32_t i = 0; i < ROWS * DIM; i++)
        want[i] = cap * tanh(x[i / DIM * STRIDE + i % DIM] / cap);
    softcap_args a = {.x = check_put_values(c, CU_F32, x, N),
                      .cap = (float)cap,
                      .rows = ROWS,
                      .dim = DIM,
                      .stride = STRIDE};
    if (!check_ready(c)) return;
    launch_softcap(&c->l, &a);
    if (!check_run(c)) return;
    check_rows(c, "x", CU_F32, a.x, ROWS, DIM, STRIDE, want, MANY);
    check_end(c);
}

/* ---- embedding ---- */

static void embed(check *c, cu_format format, cu_type type) {
    enum { TOKENS = 4, VOCAB = 20, COLS = 256 };
    static const int32_t tokens[TOKENS] = {3, -1, 19, -1}, drawn[] = {0, 7, 18};
    static const uint32_t pending[TOKENS] = {0, 2, 0, 1}, ids[TOKENS] = {3, 18, 19, 7};
    const step_header header = {.n_rows = TOKENS};
    double table[VOCAB * COLS], want[TOKENS * COLS];
    const double scale = 1.5;
    if (!check_begin(c, "embed_%s of %s", type_name(type), check_format_names[format])) return;
    embed_args a = {.out = check_room(c, TOKENS * COLS * type_bytes(type)),
                    .out_type = type,
                    .table = check_matrix(c, check_types[format], VOCAB, COLS, 12, table),
                    .scale = (float)scale,
                    .rows = TOKENS,
                    .out_stride = COLS};
    step_view view = {.header = check_put(c, &header, sizeof header),
                      .tokens = check_put(c, tokens, sizeof tokens),
                      .pending = check_put(c, pending, sizeof pending),
                      .drawn = check_put(c, drawn, sizeof drawn)};
    a.view = &view;
    for (uint32_t i = 0; i < TOKENS * COLS; i++)
        want[i] = table[ids[i / COLS] * COLS + i % COLS] * scale;
    if (!check_ready(c)) return;
    launch_embed(&c->l, &a);
    if (!check_run(c)) return;
    check_rows(c, "out", type, a.out, TOKENS, COLS, COLS, want, FEW);
    check_end(c);
}

/* ---- rope, and the store of keys and values ---- */

enum {
    R_ROWS = 3,
    R_DIM = 64,
    R_HEADS = 4,
    R_KV_HEADS = 2,
    R_PAIRS = 24, // the last 16 dimensions are not rotated
    R_POSITIONS = 40,
    R_BLOCK = 16,
    R_SLOTS = 3,
    R_Q = R_HEADS * R_DIM,
    R_K = R_KV_HEADS * R_DIM,
    R_LAYER = 2 * R_K * R_BLOCK, // numbers of one layer in a slot
    R_ARENA = R_SLOTS * R_LAYER
};

/* cos, then sin, of each pair at each position. */
static void make_table(double out[R_POSITIONS][2][R_PAIRS]) {
    for (uint32_t p = 0; p < R_POSITIONS; p++)
        for (uint32_t i = 0; i < R_PAIRS; i++) {
            double angle = p * pow(100, -(double)i / R_PAIRS);
            out[p][0][i] = type_round(CU_F32, cos(angle));
            out[p][1][i] = type_round(CU_F32, sin(angle));
        }
}

/* One head: normed, then rotated. */
static void turn(double *head, const double *w, double eps, const double table[2][R_PAIRS],
                 bool interleaved) {
    double squares = 0;
    for (uint32_t d = 0; d < R_DIM; d++) squares += head[d] * head[d];
    for (uint32_t d = 0; d < R_DIM; d++) head[d] *= w[d] / sqrt(squares / R_DIM + eps);
    for (uint32_t i = 0; i < R_PAIRS; i++) {
        double *a = &head[interleaved ? 2 * i : i],
               *b = &head[interleaved ? 2 * i + 1 : i + R_PAIRS];
        double x = *a, y = *b;
        *a = x * table[0][i] - y * table[1][i];
        *b = y * table[0][i] + x * table[1][i];
    }
}

typedef struct turned {
    double q[R_ROWS * R_Q], k[R_ROWS * R_K], v[R_ROWS * R_K];
    double table[R_POSITIONS][2][R_PAIRS], norm[2][R_DIM];
    double arena[R_ARENA]; // keys and values as they must lie; NAN: untouched
} turned;

static const uint32_t r_positions[R_ROWS] = {5, 33, 34}, r_seqs[R_ROWS] = {0, 1, 1};
static const int32_t r_slots[] = {2, 1, 1, 0}; // of block 0 of sequence 0; blocks 0 to 2 of 1

/* The index of dimension 0 of a key of the row; values begin half a layer later. */
static uint32_t place_of(uint32_t row, uint32_t head) {
    uint32_t position = r_positions[row], first = r_seqs[row] == 0 ? 0 : 1;
    uint32_t slot = (uint32_t)r_slots[first + position / R_BLOCK];
    return slot * R_LAYER + (head * R_BLOCK + position % R_BLOCK) * R_DIM;
}

static void turn_all(turned *t, double eps, bool interleaved) {
    for (uint32_t i = 0; i < R_ARENA; i++) t->arena[i] = NAN;
    for (uint32_t r = 0; r < R_ROWS; r++) {
        const double(*table)[R_PAIRS] = t->table[r_positions[r]];
        for (uint32_t h = 0; h < R_HEADS; h++)
            turn(t->q + r * R_Q + h * R_DIM, t->norm[0], eps, table, interleaved);
        for (uint32_t h = 0; h < R_KV_HEADS; h++) {
            double *k = t->k + r * R_K + h * R_DIM, *at = t->arena + place_of(r, h);
            turn(k, t->norm[1], eps, table, interleaved);
            memcpy(at, k, R_DIM * sizeof *k);
            memcpy(at + R_LAYER / 2, t->v + r * R_K + h * R_DIM, R_DIM * sizeof *k);
        }
    }
}

static void rope(check *c, cu_type inner, cu_type stored, bool interleaved) {
    static turned t;
    static double got[R_ARENA];
    const double eps = 0.0625;
    const step_header header = {.n_rows = R_ROWS, .n_seqs = 2};
    const step_seq seqs[2] = {
        {.n_rows = 1, .pos_begin = 5, .n_blocks = 1},
        {.row_begin = 1, .n_rows = 2, .pos_begin = 33, .n_blocks = 3, .table_begin = 1}};
    if (!check_begin(c, "rope_%s %s to %s", type_name(inner), interleaved ? "pairs" : "halves",
                     type_name(stored)))
        return;
    fill(t.q, R_ROWS * R_Q, 13);
    fill(t.k, R_ROWS * R_K, 14);
    fill(t.v, R_ROWS * R_K, 15);
    fill(t.norm[0], 2 * R_DIM, 16);
    make_table(t.table);
    kv_view kv = {.arena = check_room(c, R_ARENA * 2),
                  .page_bytes = R_LAYER * 2,
                  .slots_per_page = 1,
                  .slot_bytes = R_LAYER * 2,
                  .layer_bytes = R_LAYER * 2,
                  .group_layers = 1,
                  .n_groups = 1,
                  .block_tokens = R_BLOCK,
                  .n_kv_heads = R_KV_HEADS,
                  .head_dim = R_DIM,
                  .type = stored};
    step_view view = {.header = check_put(c, &header, sizeof header),
                      .positions = check_put(c, r_positions, sizeof r_positions),
                      .row_seq = check_put(c, r_seqs, sizeof r_seqs),
                      .seqs = check_put(c, seqs, sizeof seqs),
                      .tables = check_put(c, r_slots, sizeof r_slots)};
    rope_args a = {.q = check_put_values(c, inner, t.q, R_ROWS * R_Q),
                   .k = check_put_values(c, inner, t.k, R_ROWS * R_K),
                   .v = check_put_values(c, inner, t.v, R_ROWS * R_K),
                   .inner = inner,
                   .q_norm = check_put_values(c, CU_F32, t.norm[0], R_DIM),
                   .k_norm = check_put_values(c, CU_F32, t.norm[1], R_DIM),
                   .norm_eps = (float)eps,
                   .table = check_put_values(c, CU_F32, t.table[0][0], R_POSITIONS * 2 * R_PAIRS),
                   .n_pairs = R_PAIRS,
                   .interleaved = interleaved,
                   .write_k = true,
                   .view = &view,
                   .kv = &kv,
                   .n_heads = R_HEADS,
                   .n_kv_heads = R_KV_HEADS,
                   .head_dim = R_DIM,
                   .rows = R_ROWS,
                   .q_stride = R_Q,
                   .k_stride = R_K,
                   .v_stride = R_K};
    turn_all(&t, eps, interleaved);
    if (!check_ready(c)) return;
    launch_rope(&c->l, &a);
    if (!check_run(c)) return;
    /* A rotated number may be nearly 0; the rounding error of its sum stays. */
    double small = 4 * MANY, inner_bound = 2 * type_rounding(inner);
    check_get_values(c, inner, got, a.q, R_ROWS * R_Q);
    check_values(c, "q", got, t.q, R_ROWS * R_Q, R_Q, inner_bound, small);
    check_get_values(c, inner, got, a.k, R_ROWS * R_K);
    check_values(c, "k", got, t.k, R_ROWS * R_K, R_K, inner_bound, small);
    check_get_values(c, stored, got, kv.arena, R_ARENA);
    for (uint32_t i = 0; i < R_ARENA; i++) // a write to an untouched element is wrong
        if (isnan(got[i]) && isnan(t.arena[i])) got[i] = t.arena[i] = 0;
    check_values(c, "arena", got, t.arena, R_ARENA, R_DIM, 2 * type_rounding(stored), small);
    check_end(c);
}

/* ---- dummy weights ---- */

/* The planes as the host would prepare the same rows. */
static void dummy(check *c, dtype type) {
    enum { D_ROWS = 20, D_COLS = 512, SEED = 77 };
    dtype_info about = dtype_about((uint32_t)type);
    size_t n = format_bytes(type, D_ROWS, D_COLS);
    size_t n_file = (size_t)D_ROWS * D_COLS / about.block_elems * about.block_bytes;
    if (!check_begin(c, "dummy %s", about.name)) return;
    unsigned char *file = malloc(n_file);
    uint32_t *want = aligned_alloc(PLANE_ALIGN, n), *got = malloc(n);
    INFERD_CHECK(file != NULL && want != NULL && got != NULL);
    inferd_err err = {0};
    dummy_file_rows(type, D_COLS, SEED, 0.02f, 0, D_ROWS, file);
    cu_matrix host = format_matrix(type, D_ROWS, D_COLS, want);
    INFERD_CHECK(format_prepare(&host, type, want, file, 0, D_ROWS, &err) == INFERD_OK);
    dummy_args a = {.file_type = type, .seed = SEED, .scale = 0.02f};
    a.data = check_zeros(c, n); // bytes between planes are zero
    a.m = format_matrix(type, D_ROWS, D_COLS, a.data);
    memcpy(&a.low, &a.m.low, sizeof a.low); // planes are read-only in a matrix
    memcpy(&a.high, &a.m.high, sizeof a.high);
    memcpy(&a.scales, &a.m.scales, sizeof a.scales);
    if (check_ready(c)) {
        launch_dummy(&c->l, &a);
        if (check_run(c)) {
            check_get(c, got, a.data, n);
            check_words(c, "word", got, want, n / 4, 0);
            check_end(c);
        }
    }
    free(file);
    free(want);
    free(got);
}

/* ---- bench ---- */

static void bench(check *c) {
    enum { WORDS = 3 * BENCH_THREADS * BENCH_LOADS * 4 + 64, SINK = 8 * BENCH_THREADS };
    static uint32_t in[WORDS], got[WORDS];
    inferd_err err = {0};
    for (uint32_t i = 0; i < WORDS; i++) in[i] = i * 2654435761u;
    if (check_begin(c, "bench_copy")) {
        if (bench_init(c->l.module, &err) != INFERD_OK) {
            check_fail(c, "bench_copy", err.text);
            return;
        }
        void *from = check_put(c, in, sizeof in), *to = check_room(c, sizeof in);
        if (check_ready(c)) {
            launch_bench_copy(&c->l, to, from, sizeof in);
            if (check_run(c)) {
                check_get(c, got, to, sizeof in);
                check_words(c, "out", got, in, WORDS, 0);
                check_end(c);
            }
        }
    }
    if (check_begin(c, "bench_read")) { // what all threads read: the xor of every word
        uint32_t want = 0, all = 0;
        void *from = check_put(c, in, sizeof in), *sink = check_zeros(c, SINK * 4);
        for (uint32_t i = 0; i < WORDS; i++) want ^= in[i];
        if (check_ready(c)) {
            launch_bench_read(&c->l, from, sizeof in, sink);
            if (check_run(c)) {
                check_get(c, got, sink, SINK * 4);
                for (uint32_t i = 0; i < SINK; i++) all ^= got[i];
                check_words(c, "xor", &all, &want, 1, 0);
                check_end(c);
            }
        }
    }
    if (check_begin(c, "bench_empty") && check_ready(c)) {
        launch_bench_empty(&c->l);
        if (check_run(c)) check_end(c);
    }
}

/* ---- all of them ---- */

void selftest_rows(check *c) {
    static const dtype types[] = {DTYPE_F32,  DTYPE_BF16,   DTYPE_F16,    DTYPE_Q4_0,
                                  DTYPE_Q4_1, DTYPE_Q5_0,   DTYPE_Q5_1,   DTYPE_Q8_0,
                                  DTYPE_Q4_K, DTYPE_Q5_K,   DTYPE_Q6_K,   DTYPE_Q2_K,
                                  DTYPE_Q3_K, DTYPE_IQ4_NL, DTYPE_IQ4_XS, DTYPE_MXFP4};
    inferd_err err = {0};
    if (!check_begin(c, "rows")) return;
    if (rows_init(c->l.module, &c->device, &err) != INFERD_OK) {
        check_fail(c, "", err.text);
        return;
    }
    norms(c);
    for (cu_type x = CU_F32; x <= CU_F16; x++) {
        for (cu_type y = CU_F32; y <= CU_F16; y++)
            if (meet(x, y)) add(c, x, y);
        bias(c, x);
        scale(c, x, x);
        if (x != CU_F32) scale(c, CU_F32, x);
        gather(c, x);
        for (uint32_t f = 0; f < CU_FORMATS; f++) embed(c, (cu_format)f, x);
    }
    for (cu_type inner = CU_BF16; inner <= CU_F16; inner++) {
        glu(c, inner, GLU_SILU);
        glu(c, inner, GLU_GELU_TANH);
        glu(c, inner, GLU_CLAMPED_SWIGLU);
        rope(c, inner, CU_F16, true);
        rope(c, inner, CU_BF16, false);
    }
    softcap(c);
    for (size_t i = 0; i < INFERD_COUNT(types); i++) dummy(c, types[i]);
    bench(c);
}
