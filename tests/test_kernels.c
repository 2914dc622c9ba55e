/* test_kernels.c - every operation of the CPU backend, at every level this machine has, against
 * formulas in double precision written out here, and against itself in other batches.
 *
 * Inputs get into activations the only way there is: as rows of an F32 embedding table. */
#include <time.h>

#include "kernels/backend.h"

#include "backend_ops.h"
#include "cpu/level.h"
#include "test.h"

static const char *const level_names[] = {"define", "base", "avx2", "avx512"};
static const dtype all_types[] = {DTYPE_F32,  DTYPE_F16,  DTYPE_BF16, DTYPE_Q4_0,
                                  DTYPE_Q4_1, DTYPE_Q5_0, DTYPE_Q5_1, DTYPE_Q8_0,
                                  DTYPE_Q4_K, DTYPE_Q5_K, DTYPE_Q6_K};

/* How far a result may be from the formula, relative to the sum of the magnitudes of its terms
 * (matmul), or to 1 (the others, whose inputs and outputs are about 1).  Weights are exact, so the
 * type matters only through the size of sums. */
static const struct {
    const char *op;
    double tolerance;
} tolerances[] = {
    {"matmul", 4e-6},     {"rmsnorm", 2e-6},   {"rope", 1e-6},
    {"silu_mul", 2e-6},   {"add", 0},          {"attention f16", 4e-6},
    {"attention bf16", 4e-6}, {"attention f32", 4e-6}, {"attention softcap", 2e-5},
};

static double tolerance_of(const char *op) {
    for (size_t i = 0; i < INFERD_COUNT(tolerances); i++)
        if (strcmp(tolerances[i].op, op) == 0) return tolerances[i].tolerance;
    printf("no tolerance for %s\n", op);
    test_failures++;
    return 0;
}

static uint64_t random_state = 1;
static uint32_t random_u32(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33);
}
/* About 1 in size, never exactly round. */
static float random_float(void) {
    return ((float)(random_u32() % 20001) - 10000.0f) / 8191.0f;
}

/* ---- a backend with memory to put things in ---- */

enum { WINDOW_PAGES = 8, ARENA_PAGES = 12 }; // pages of the arena past the window hold KV

typedef struct device {
    backend *be;
    be_window *window;
    unsigned char *next;
} device;

static bool device_open(device *d, const char *level, uint32_t n_threads) {
    inferd_err err = {0};
    backend_options options = {"cpu", n_threads, (uint64_t)ARENA_PAGES << 21};
    uint32_t pages[WINDOW_PAGES];
    setenv("INFERD_CPU", level, 1);
    *d = (device){0};
    inferd_status s = backend_open(&options, &d->be, &err);
    unsetenv("INFERD_CPU");
    if (s == INFERD_EUNSUPPORTED) return false; // this machine lacks the level
    EXPECT_EQ(s, INFERD_OK);
    if (s != INFERD_OK) return false;
    for (uint32_t i = 0; i < WINDOW_PAGES; i++) pages[i] = i;
    EXPECT_EQ(be_window_open(d->be, WINDOW_PAGES * be_page_bytes(d->be), &d->window, &err),
              INFERD_OK);
    EXPECT_EQ(be_window_map(d->be, d->window, pages, WINDOW_PAGES, &err), INFERD_OK);
    d->next = be_window_base(d->window);
    return true;
}

static void device_close(device *d) {
    be_window_close(d->be, d->window);
    backend_close(d->be);
}

static void *take(device *d, size_t n_bytes) {
    void *p = d->next;
    d->next += (n_bytes + 63) / 64 * 64;
    EXPECT((size_t)(d->next - (unsigned char *)be_window_base(d->window)) <=
           WINDOW_PAGES * be_page_bytes(d->be));
    return p;
}

static size_t row_bytes_of(dtype type, uint32_t cols) {
    dtype_info info = dtype_about(type);
    return (size_t)cols / info.block_elems * info.block_bytes;
}

/* Random rows as a file has them.  Scales are halves near 2^-7, now and then subnormal or
 * negative; everything else is any bits. */
static unsigned char *file_rows(dtype type, uint32_t rows, uint32_t cols) {
    size_t n = rows * row_bytes_of(type, cols);
    unsigned char *p = malloc(n + 1);
    dtype_info info = dtype_about(type);
    for (size_t i = 0; i < n; i++) p[i] = (unsigned char)random_u32();
    if (type == DTYPE_F32) {
        for (size_t i = 0; i < n / 4; i++) memcpy(p + 4 * i, &(float){random_float()}, 4);
    } else if (type == DTYPE_F16 || type == DTYPE_BF16) {
        for (size_t i = 0; i < n / 2; i++) {
            float x = random_u32() % 50 == 0 ? 3e-6f : random_float();
            uint16_t bits = type == DTYPE_F16 ? f32_to_f16(x) : f32_to_bf16(x);
            memcpy(p + 2 * i, &bits, 2);
        }
    } else {
        bool last = type == DTYPE_Q6_K; // Q6_K has its scale at the end
        bool two = type == DTYPE_Q4_1 || type == DTYPE_Q5_1 || type == DTYPE_Q4_K ||
                   type == DTYPE_Q5_K;
        for (size_t at = 0; at < n; at += info.block_bytes) {
            for (int i = 0; i < 1 + two; i++) {
                uint16_t d = (uint16_t)(0x2000 + random_u32() % 0x400);
                if (random_u32() % 16 == 0) d = (uint16_t)(random_u32() % 0x400);
                if (random_u32() % 8 == 0) d |= 0x8000;
                memcpy(p + at + (last ? info.block_bytes - 2u : 2u * (size_t)i), &d, 2);
            }
        }
    }
    return p;
}

static weight make_weight(device *d, dtype type, uint32_t rows, uint32_t cols,
                          const unsigned char *file) {
    weight w;
    size_t n_bytes = be_weight_bytes(d->be, type, rows, cols);
    EXPECT_EQ(n_bytes % 64, 0);
    be_weight_init(d->be, &w, type, rows, cols, take(d, n_bytes));
    /* In two parts where there are two, as a loader with a small buffer would. */
    uint32_t first = rows > BE_PREPARE_ROWS ? BE_PREPARE_ROWS : rows;
    be_weight_prepare(d->be, &w, file, 0, first);
    if (first < rows)
        be_weight_prepare(d->be, &w, file + first * row_bytes_of(type, cols), first, rows - first);
    return w;
}

static weight make_table(device *d, const float *x, uint32_t rows, uint32_t cols) {
    return make_weight(d, DTYPE_F32, rows, cols, (const unsigned char *)x);
}

static vec make_vec(device *d, const float *x, uint32_t n) {
    vec v;
    be_vec_init(d->be, &v, n, take(d, n * sizeof *x));
    be_vec_load(d->be, &v, x);
    return v;
}

static float *random_floats(size_t n) {
    float *x = malloc(size_max(n, 1) * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = random_float();
    return x;
}

/* A batch without keys and values: row i is token `first` + i at position i. */
enum { ROWS_MAX = 96 };
typedef struct rows_batch {
    batch b;
    kv_layout kv;
    tok_id tokens[ROWS_MAX];
    uint32_t positions[ROWS_MAX], row_seq[ROWS_MAX], logit_rows[ROWS_MAX], promised[ROWS_MAX];
} rows_batch;

static void step_of_rows(device *d, rows_batch *r, uint32_t first, uint32_t n) {
    *r = (rows_batch){.b = {.n_rows = n,
                            .tokens = r->tokens,
                            .positions = r->positions,
                            .row_seq = r->row_seq,
                            .logit_rows = r->logit_rows,
                            .promised = r->promised}};
    for (uint32_t i = 0; i < n; i++) {
        r->tokens[i] = (tok_id)(first + i);
        r->positions[i] = i;
    }
    be_step_begin(d->be, &r->b, &r->kv);
}

static void sync_ok(device *d) {
    inferd_err err = {0};
    EXPECT_EQ(be_sync(d->be, &err), INFERD_OK);
    EXPECT_STR(err.text, "");
}

static void expect_close(const char *what, const char *level, double got, double expected,
                         double tolerance) {
    if (fabs(got - expected) <= tolerance) return;
    printf("%s at level %s: %.9g, expected %.9g within %g\n", what, level, got, expected,
           tolerance);
    test_failures++;
}

static void expect_same_bits(const char *what, const char *level, const float *a, const float *b,
                             size_t n) {
    if (memcmp(a, b, n * sizeof *a) == 0) return;
    printf("%s at level %s: bits differ\n", what, level);
    test_failures++;
}

/* ---- opening ---- */

static void unknown_level_is_an_error(void) {
    inferd_err err = {0};
    backend *be;
    backend_options options = {"cpu", 1, 4 << 20};
    setenv("INFERD_CPU", "sse9", 1);
    EXPECT_EQ(backend_open(&options, &be, &err), INFERD_EINVAL);
    unsetenv("INFERD_CPU");
    EXPECT(be == NULL);
    EXPECT(strstr(err.text, "sse9") != NULL);
}

static void unknown_kind_is_an_error(void) {
    inferd_err err = {0};
    backend *be;
    backend_options options = {"abacus", 1, 4 << 20};
    EXPECT_EQ(backend_open(&options, &be, &err), INFERD_EUNSUPPORTED);
    EXPECT(strstr(err.text, "abacus") != NULL);
}

static void name_tells_the_level(void) {
    int n_levels = 0;
    for (size_t i = 0; i < INFERD_COUNT(level_names); i++) {
        device d;
        char name[32];
        if (!device_open(&d, level_names[i], 2)) continue;
        n_levels++;
        snprintf(name, sizeof name, "cpu %s", level_names[i]);
        EXPECT_STR(be_name(d.be), name);
        EXPECT_EQ(be_depth(d.be), 1);
        EXPECT_EQ(be_n_threads(d.be), 2);
        EXPECT_EQ(be_n_pages(d.be), ARENA_PAGES);
        device_close(&d);
    }
    EXPECT(n_levels >= 2); // define and base run anywhere
    printf("levels here: %d\n", n_levels);
}

/* ---- weights ---- */

static void embedding_rows_have_the_bits_of_the_file(void) {
    static const uint32_t row_counts[] = {1, 31, 65};
    device d;
    EXPECT(device_open(&d, "base", 2));
    for (size_t t = 0; t < INFERD_COUNT(all_types); t++) {
        dtype type = all_types[t];
        for (size_t i = 0; i < INFERD_COUNT(row_counts); i++) {
            uint32_t rows = row_counts[i];
            uint32_t cols = dtype_about(type).block_elems == 256 ? 512
                            : dtype_about(type).block_elems == 1 ? 31
                                                                 : 96;
            EXPECT(be_weight_supported(d.be, type));
            d.next = be_window_base(d.window);
            unsigned char *file = file_rows(type, rows, cols);
            weight w = make_weight(&d, type, rows, cols, file);
            act *out = be_act_open(d.be, rows, cols);
            float *expected = malloc((size_t)rows * cols * sizeof *expected);
            dtype_to_f32(type, file, expected, (size_t)rows * cols);
            rows_batch r;
            step_of_rows(&d, &r, 0, rows);
            be_embed(d.be, out, &w, 1);
            sync_ok(&d);
            expect_same_bits("embed", dtype_about(type).name, be_act_host(d.be, out), expected,
                             (size_t)rows * cols);
            be_embed(d.be, out, &w, 3);
            for (size_t e = 0; e < (size_t)rows * cols; e++) expected[e] *= 3;
            expect_same_bits("embed * 3", dtype_about(type).name, be_act_host(d.be, out), expected,
                             (size_t)rows * cols);
            be_act_close(d.be, out);
            free(expected);
            free(file);
        }
    }
    device_close(&d);
}

static void types_without_formula_are_not_supported(void) {
    device d;
    EXPECT(device_open(&d, "base", 1));
    EXPECT(!be_weight_supported(d.be, (dtype)10)); // Q2_K
    EXPECT(!be_weight_supported(d.be, (dtype)9));  // Q8_1
    device_close(&d);
}

/* ---- matmul ---- */

typedef struct shape {
    uint32_t rows, cols;
} shape;

static const shape *shapes_of(dtype type, size_t *n) {
    static const shape any[] = {{1, 1}, {31, 33}, {63, 8}, {64, 64}, {65, 129}, {200, 31}};
    static const shape by_32[] = {{1, 32}, {31, 64}, {65, 96}, {64, 576}, {200, 160}};
    static const shape by_256[] = {{1, 256}, {33, 512}, {65, 768}};
    uint32_t elems = dtype_about(type).block_elems;
    *n = elems == 1 ? INFERD_COUNT(any) : elems == 32 ? INFERD_COUNT(by_32) : INFERD_COUNT(by_256);
    return elems == 1 ? any : elems == 32 ? by_32 : by_256;
}

static void check_matmul(device *d, const char *level, dtype type, shape s) {
    static const uint32_t row_counts[] = {1, 2, 3, 4, 5, 7, 33};
    enum { N = 33 };
    d->next = be_window_base(d->window);
    unsigned char *file = file_rows(type, s.rows, s.cols);
    float *w = malloc((size_t)s.rows * s.cols * sizeof *w);
    float *x = random_floats((size_t)N * s.cols), *bias = random_floats(s.rows);
    dtype_to_f32(type, file, w, (size_t)s.rows * s.cols);
    weight prepared = make_weight(d, type, s.rows, s.cols, file);
    weight table = make_table(d, x, N, s.cols);
    vec b = make_vec(d, bias, s.rows);
    act *in = be_act_open(d->be, N, s.cols), *out = be_act_open(d->be, N, s.rows);
    char what[64];
    snprintf(what, sizeof what, "matmul %s [%u, %u]", dtype_about(type).name, s.rows, s.cols);
    for (size_t i = 0; i < INFERD_COUNT(row_counts); i++) {
        uint32_t n = row_counts[i];
        rows_batch r;
        step_of_rows(d, &r, 0, n);
        be_embed(d->be, in, &table, 1);
        be_matmul(d->be, out, in, &prepared, n % 2 == 0 ? &b : NULL, n);
        sync_ok(d);
        const float *got = be_act_host(d->be, out);
        for (uint32_t row = 0; row < n; row++) {
            for (uint32_t o = 0; o < s.rows; o++) {
                double sum = n % 2 == 0 ? (double)bias[o] : 0, size = fabs(sum);
                for (uint32_t k = 0; k < s.cols; k++) {
                    double term = (double)x[row * s.cols + k] * (double)w[o * s.cols + k];
                    sum += term;
                    size += fabs(term);
                }
                expect_close(what, level, (double)got[row * s.rows + o], sum,
                             tolerance_of("matmul") * size);
            }
        }
    }
    be_act_close(d->be, in);
    be_act_close(d->be, out);
    free(file);
    free(w);
    free(x);
    free(bias);
}

static void matmul_is_the_sum_of_products(void) {
    for (size_t i = 0; i < INFERD_COUNT(level_names); i++) {
        device d;
        if (!device_open(&d, level_names[i], 2)) continue;
        for (size_t t = 0; t < INFERD_COUNT(all_types); t++) {
            size_t n;
            const shape *shapes = shapes_of(all_types[t], &n);
            for (size_t s = 0; s < n; s++) check_matmul(&d, level_names[i], all_types[t], shapes[s]);
        }
        device_close(&d);
    }
}

/* Rows [0, n) of the product, computed `chunk` rows at a time, into `out`. */
static void matmul_in_chunks(device *d, const weight *table, const weight *w, uint32_t n,
                             uint32_t chunk, float *out) {
    act *in = be_act_open(d->be, n, w->cols), *result = be_act_open(d->be, n, w->rows);
    for (uint32_t begin = 0; begin < n; begin += chunk) {
        uint32_t part = u32_min(chunk, n - begin);
        rows_batch r;
        step_of_rows(d, &r, begin, part);
        be_embed(d->be, in, table, 1);
        be_matmul(d->be, result, in, w, NULL, part);
        sync_ok(d);
        memcpy(out + (size_t)begin * w->rows, be_act_host(d->be, result),
               (size_t)part * w->rows * sizeof *out);
    }
    be_act_close(d->be, in);
    be_act_close(d->be, result);
}

/* A user's answer must not depend on who else is served at the moment. */
static void matmul_rows_do_not_depend_on_the_batch(void) {
    static const uint32_t chunks[] = {1, 2, 3, 4, 5, 6, 7, 8, 13, 16, 32};
    enum { N = 32, ROWS = 1088 }; // ROWS * cols passes the bound below which one thread computes
    for (size_t i = 0; i < INFERD_COUNT(level_names); i++) {
        for (size_t t = 0; t < INFERD_COUNT(all_types); t++) {
            dtype type = all_types[t];
            uint32_t cols = dtype_about(type).block_elems == 256 ? 256 : 96;
            float *x = random_floats((size_t)N * cols);
            unsigned char *file = file_rows(type, ROWS, cols);
            float *one = malloc((size_t)N * ROWS * sizeof *one), *other = malloc((size_t)N * ROWS * sizeof *other);
            for (uint32_t n_threads = 1; n_threads <= 3; n_threads++) {
                device d;
                if (!device_open(&d, level_names[i], n_threads)) continue;
                weight w = make_weight(&d, type, ROWS, cols, file);
                weight table = make_table(&d, x, N, cols);
                if (n_threads == 1) matmul_in_chunks(&d, &table, &w, N, N, one);
                for (size_t c = 0; c < INFERD_COUNT(chunks); c++) {
                    if (n_threads > 1 && chunks[c] % 8 != 0 && chunks[c] != 1) continue;
                    matmul_in_chunks(&d, &table, &w, N, chunks[c], other);
                    expect_same_bits(dtype_about(type).name, level_names[i], other, one,
                                     (size_t)N * ROWS);
                }
                device_close(&d);
            }
            free(x);
            free(file);
            free(one);
            free(other);
        }
    }
}

/* ---- norms, elementwise, rope ---- */

static void rmsnorm_is_the_formula(void) {
    static const uint32_t dims[] = {1, 15, 16, 33, 576};
    enum { N = 5 };
    for (size_t i = 0; i < INFERD_COUNT(level_names); i++) {
        device d;
        if (!device_open(&d, level_names[i], 2)) continue;
        for (size_t s = 0; s < INFERD_COUNT(dims); s++) {
            uint32_t dim = dims[s];
            d.next = be_window_base(d.window);
            float *x = random_floats((size_t)N * dim), *w = random_floats(dim);
            weight table = make_table(&d, x, N, dim);
            vec norm = make_vec(&d, w, dim);
            act *a = be_act_open(d.be, N, dim);
            rows_batch r;
            step_of_rows(&d, &r, 0, N);
            be_embed(d.be, a, &table, 1);
            be_rmsnorm(d.be, a, a, &norm, N, 1e-5f); // in place, as before the head
            sync_ok(&d);
            for (uint32_t row = 0; row < N; row++) {
                double sum = 0;
                for (uint32_t k = 0; k < dim; k++) sum += pow((double)x[row * dim + k], 2);
                double scale = 1 / sqrt(sum / dim + 1e-5);
                for (uint32_t k = 0; k < dim; k++) {
                    double expected = (double)x[row * dim + k] * scale * (double)w[k];
                    expect_close("rmsnorm", level_names[i],
                                 (double)be_act_host(d.be, a)[row * dim + k], expected,
                                 tolerance_of("rmsnorm") * (1 + fabs(expected)));
                }
            }
            be_act_close(d.be, a);
            free(x);
            free(w);
        }
        device_close(&d);
    }
}

static void silu_mul_and_add_are_the_formulas(void) {
    static const uint32_t dims[] = {1, 7, 33, 300};
    enum { N = 64 };
    for (size_t i = 0; i < INFERD_COUNT(level_names); i++) {
        device d;
        if (!device_open(&d, level_names[i], 2)) continue;
        for (size_t s = 0; s < INFERD_COUNT(dims); s++) {
            uint32_t dim = dims[s];
            size_t n = (size_t)N * dim;
            d.next = be_window_base(d.window);
            float *a = random_floats(n), *b = random_floats(n);
            for (size_t e = 0; e < n; e++) a[e] *= e % 5 == 0 ? 80 : 1; // where e^-a is tiny or huge
            weight table_a = make_table(&d, a, N, dim), table_b = make_table(&d, b, N, dim);
            act *x = be_act_open(d.be, N, dim), *y = be_act_open(d.be, N, dim);
            rows_batch r;
            step_of_rows(&d, &r, 0, N);
            be_embed(d.be, x, &table_a, 1);
            be_embed(d.be, y, &table_b, 1);
            be_silu_mul(d.be, x, x, y, N, dim);
            sync_ok(&d);
            for (size_t e = 0; e < n; e++) {
                double expected = (double)a[e] / (1 + exp(-(double)a[e])) * (double)b[e];
                expect_close("silu_mul", level_names[i], (double)be_act_host(d.be, x)[e], expected,
                             tolerance_of("silu_mul") * (1 + fabs(expected)));
            }
            be_embed(d.be, x, &table_a, 1);
            be_add(d.be, x, y, N, dim);
            for (size_t e = 0; e < n; e++)
                expect_close("add", level_names[i], (double)be_act_host(d.be, x)[e],
                             (double)(a[e] + b[e]), tolerance_of("add"));
            be_act_close(d.be, x);
            be_act_close(d.be, y);
            free(a);
            free(b);
        }
        device_close(&d);
    }
}

static void check_rope(device *d, const char *level, uint32_t head_dim, uint32_t n_pairs,
                       bool interleaved, float scale) {
    enum { N = 5, HEADS = 3, KV_HEADS = 1 };
    static const uint32_t positions[N] = {0, 1, 17, 1000, 8191};
    float inv_freq[64];
    for (uint32_t i = 0; i < n_pairs; i++)
        inv_freq[i] = (float)pow(10000, -2.0 * i / (2.0 * n_pairs));
    d->next = be_window_base(d->window);
    float *q = random_floats((size_t)N * HEADS * head_dim);
    float *k = random_floats((size_t)N * KV_HEADS * head_dim);
    weight table_q = make_table(d, q, N, HEADS * head_dim);
    weight table_k = make_table(d, k, N, KV_HEADS * head_dim);
    act *aq = be_act_open(d->be, N, HEADS * head_dim), *ak = be_act_open(d->be, N, KV_HEADS * head_dim);
    rows_batch r;
    step_of_rows(d, &r, 0, N);
    memcpy(r.positions, positions, sizeof positions);
    be_embed(d->be, aq, &table_q, 1);
    be_embed(d->be, ak, &table_k, 1);
    be_rope(d->be, aq, ak, &(rope_spec){inv_freq, n_pairs, scale, interleaved}, HEADS, KV_HEADS,
            head_dim);
    sync_ok(d);
    for (uint32_t row = 0; row < N; row++) {
        for (uint32_t head = 0; head < HEADS + KV_HEADS; head++) {
            const float *in = head < HEADS ? q + (row * HEADS + head) * head_dim : k + row * head_dim;
            const float *out = head < HEADS
                                   ? be_act_host(d->be, aq) + (row * HEADS + head) * head_dim
                                   : be_act_host(d->be, ak) + row * head_dim;
            for (uint32_t i = 0; i < n_pairs; i++) {
                uint32_t first = interleaved ? 2 * i : i, second = interleaved ? 2 * i + 1 : i + n_pairs;
                double angle = positions[row] * (double)inv_freq[i];
                double a = (double)in[first], b = (double)in[second];
                expect_close("rope", level, (double)out[first],
                             (double)scale * (a * cos(angle) - b * sin(angle)), tolerance_of("rope"));
                expect_close("rope", level, (double)out[second],
                             (double)scale * (a * sin(angle) + b * cos(angle)), tolerance_of("rope"));
            }
            for (uint32_t i = 2 * n_pairs; i < head_dim; i++)
                expect_close("rope, beyond the pairs", level, (double)out[i], (double)in[i], 0);
        }
    }
    be_act_close(d->be, aq);
    be_act_close(d->be, ak);
    free(q);
    free(k);
}

static void rope_turns_pairs_by_position(void) {
    for (size_t i = 0; i < INFERD_COUNT(level_names); i++) {
        device d;
        if (!device_open(&d, level_names[i], 2)) continue;
        for (int interleaved = 0; interleaved < 2; interleaved++) {
            check_rope(&d, level_names[i], 64, 32, interleaved, 1);
            check_rope(&d, level_names[i], 80, 20, interleaved, 1.25f); // half of the head turns
            check_rope(&d, level_names[i], 6, 3, interleaved, 1);
        }
        device_close(&d);
    }
}

/* Two kinds of layers in one step, and other positions in the next: no stale angles. */
static void rope_angles_follow_step_and_frequencies(void) {
    device d;
    EXPECT(device_open(&d, "base", 1));
    float ones[2] = {1, 0}, slow[1] = {0.5f}, fast[1] = {1.0f};
    weight table = make_table(&d, ones, 1, 2);
    act *q = be_act_open(d.be, 1, 2), *k = be_act_open(d.be, 1, 2);
    for (uint32_t pos = 0; pos < 4; pos++) {
        rows_batch r;
        step_of_rows(&d, &r, 0, 1);
        r.positions[0] = pos;
        for (int i = 0; i < 4; i++) {
            be_embed(d.be, q, &table, 1);
            be_embed(d.be, k, &table, 1);
            be_rope(d.be, q, k, &(rope_spec){i % 2 ? slow : fast, 1, 1, true}, 1, 1, 2);
            EXPECT_NEAR(be_act_host(d.be, q)[0], cos(pos * (i % 2 ? 0.5 : 1.0)), 1e-6);
        }
        sync_ok(&d);
    }
    be_act_close(d.be, q);
    be_act_close(d.be, k);
    device_close(&d);
}

static void logit_rows_are_taken_in_order(void) {
    device d;
    EXPECT(device_open(&d, "base", 2));
    float x[6] = {1, 2, 3, 4, 5, 6};
    weight table = make_table(&d, x, 3, 2);
    act *in = be_act_open(d.be, 3, 2), *out = be_act_open(d.be, 3, 2);
    rows_batch r;
    step_of_rows(&d, &r, 0, 3);
    r.b.n_logits = 2;
    r.logit_rows[0] = 0;
    r.logit_rows[1] = 2;
    be_embed(d.be, in, &table, 1);
    be_take_logit_rows(d.be, out, in, 2);
    sync_ok(&d);
    EXPECT(memcmp(be_act_host(d.be, out), (float[]){1, 2, 5, 6}, 4 * sizeof(float)) == 0);
    be_act_close(d.be, in);
    be_act_close(d.be, out);
    device_close(&d);
}

/* ---- attention ---- */

enum { SEQS = 3, LEN_MAX = 40 };
static const uint32_t seq_lens[SEQS] = {1, 23, 40};

typedef struct attn_case {
    kv_type type;
    uint32_t n_heads, n_kv_heads, head_dim, block_tokens, window;
    float softcap;
} attn_case;

static const attn_case attn_cases[] = {
    {KV_F16, 3, 3, 16, 16, 0, 0},  {KV_F16, 9, 3, 64, 16, 0, 0},   {KV_F16, 8, 1, 80, 16, 0, 0},
    {KV_F16, 5, 1, 128, 32, 0, 0}, {KV_BF16, 9, 3, 64, 16, 0, 0},  {KV_F32, 4, 2, 64, 16, 0, 0},
    {KV_F16, 4, 2, 20, 8, 0, 0},   {KV_F32, 2, 1, 7, 5, 0, 0},     {KV_F16, 9, 3, 64, 16, 7, 0},
    {KV_F16, 2, 2, 64, 16, 17, 0}, {KV_F16, 4, 1, 64, 16, 0, 0.5f}, {KV_BF16, 6, 2, 96, 48, 16, 2},
};

/* The values that attention sees: what the layers of the model would compute. */
typedef struct attn_data {
    attn_case c;
    kv_layout kv;
    uint32_t n_rows; // of all sequences together
    float *q, *k, *v; // [n_rows, ...], the rows of sequence 0 first
    int32_t *slots[SEQS];
} attn_data;

enum { LAYERS = 6, GROUP_LAYERS = 3, LAYER = 4, OTHER_LAYER = 1 };

static void attn_data_init(attn_data *a, backend *be, attn_case c) {
    *a = (attn_data){.c = c};
    a->kv = (kv_layout){.type = c.type,
                        .n_layers = LAYERS,
                        .n_kv_heads = c.n_kv_heads,
                        .head_dim = c.head_dim,
                        .block_tokens = c.block_tokens,
                        .group_layers = GROUP_LAYERS,
                        .n_groups = LAYERS / GROUP_LAYERS};
    a->kv.layer_bytes =
        be_kv_layer_bytes(be, c.type, c.n_kv_heads, c.head_dim, c.block_tokens);
    EXPECT_EQ(a->kv.layer_bytes % 64, 0);
    a->kv.slot_bytes = a->kv.layer_bytes * GROUP_LAYERS;
    a->kv.slots_per_page = (uint32_t)(be_page_bytes(be) / a->kv.slot_bytes);
    for (uint32_t s = 0; s < SEQS; s++) a->n_rows += seq_lens[s];
    a->q = random_floats((size_t)a->n_rows * c.n_heads * c.head_dim);
    a->k = random_floats((size_t)a->n_rows * c.n_kv_heads * c.head_dim);
    a->v = random_floats((size_t)a->n_rows * c.n_kv_heads * c.head_dim);
    /* Slots in no order, spread over the pages that are not in the window. */
    uint32_t n_slots = (ARENA_PAGES - WINDOW_PAGES) * a->kv.slots_per_page;
    bool *used = calloc(n_slots, sizeof *used);
    for (uint32_t s = 0; s < SEQS; s++) {
        uint32_t n = kv_blocks_of(&a->kv, seq_lens[s]) * a->kv.n_groups;
        a->slots[s] = malloc(n * sizeof *a->slots[s]);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t slot = random_u32() % n_slots;
            while (used[slot]) slot = (slot + 1) % n_slots;
            used[slot] = true;
            a->slots[s][i] = (int32_t)(WINDOW_PAGES * a->kv.slots_per_page + slot);
        }
    }
    free(used);
}

static void attn_data_deinit(attn_data *a) {
    free(a->q);
    free(a->k);
    free(a->v);
    for (uint32_t s = 0; s < SEQS; s++) free(a->slots[s]);
}

static uint32_t seq_first(uint32_t seq) {
    uint32_t first = 0;
    for (uint32_t s = 0; s < seq; s++) first += seq_lens[s];
    return first;
}

typedef struct attn_acts {
    weight tq, tk, tv;
    act *q, *k, *v, *out;
} attn_acts;

/* One step: rows [from[s], to[s]) of each sequence; results into out by row. */
static void attn_step(device *d, attn_data *a, attn_acts *t, const uint32_t *from,
                      const uint32_t *to, float *out) {
    rows_batch r;
    batch_seq seqs[SEQS];
    uint32_t n = 0, n_seqs = 0, width = a->c.n_heads * a->c.head_dim;
    memset(&r, 0, sizeof r);
    for (uint32_t s = 0; s < SEQS; s++) {
        if (from[s] >= to[s]) continue;
        seqs[n_seqs] = (batch_seq){n, to[s] - from[s], from[s], kv_blocks_of(&a->kv, seq_lens[s]),
                                   a->slots[s]};
        for (uint32_t i = from[s]; i < to[s]; i++, n++) {
            r.tokens[n] = (tok_id)(seq_first(s) + i);
            r.positions[n] = i;
            r.row_seq[n] = n_seqs;
        }
        n_seqs++;
    }
    r.b = (batch){.n_rows = n, .n_seqs = n_seqs, .tokens = r.tokens, .positions = r.positions,
                  .row_seq = r.row_seq, .seqs = seqs, .logit_rows = r.logit_rows,
                  .promised = r.promised};
    attn_spec spec = {a->c.n_heads, a->c.n_kv_heads, a->c.head_dim,
                      1 / sqrtf((float)a->c.head_dim), a->c.softcap, a->c.window};
    be_step_begin(d->be, &r.b, &a->kv);
    /* Another layer with other keys first: layers must not share memory. */
    be_embed(d->be, t->q, &t->tq, 1);
    be_embed(d->be, t->k, &t->tk, -2);
    be_embed(d->be, t->v, &t->tv, 5);
    be_attention(d->be, t->out, t->q, t->k, t->v, OTHER_LAYER, &spec);
    be_embed(d->be, t->k, &t->tk, 1);
    be_embed(d->be, t->v, &t->tv, 1);
    be_attention(d->be, t->out, t->q, t->k, t->v, LAYER, &spec);
    sync_ok(d);
    for (uint32_t i = 0; i < n; i++)
        memcpy(out + (size_t)r.tokens[i] * width, be_act_host(d->be, t->out) + (size_t)i * width,
               width * sizeof *out);
}

static attn_acts attn_acts_open(device *d, attn_data *a) {
    uint32_t width = a->c.n_heads * a->c.head_dim, kv_width = a->c.n_kv_heads * a->c.head_dim;
    d->next = be_window_base(d->window);
    return (attn_acts){make_table(d, a->q, a->n_rows, width),
                       make_table(d, a->k, a->n_rows, kv_width),
                       make_table(d, a->v, a->n_rows, kv_width),
                       be_act_open(d->be, a->n_rows, width),
                       be_act_open(d->be, a->n_rows, kv_width),
                       be_act_open(d->be, a->n_rows, kv_width),
                       be_act_open(d->be, a->n_rows, width)};
}

static void attn_acts_close(device *d, attn_acts *t) {
    be_act_close(d->be, t->q);
    be_act_close(d->be, t->k);
    be_act_close(d->be, t->v);
    be_act_close(d->be, t->out);
}

/* Every sequence, `chunk` positions per step, all sequences together or one after the other. */
static void attn_in_chunks(device *d, attn_data *a, uint32_t chunk, bool together, float *out) {
    attn_acts t = attn_acts_open(d, a);
    for (uint32_t alone = 0; alone < (together ? 1 : SEQS); alone++) {
        for (uint32_t begin = 0; begin < LEN_MAX; begin += chunk) {
            uint32_t from[SEQS] = {0}, to[SEQS] = {0}, n = 0;
            for (uint32_t s = 0; s < SEQS; s++) {
                if (!together && s != alone) continue;
                from[s] = begin;
                to[s] = u32_min(begin + chunk, seq_lens[s]);
                n += to[s] > from[s];
            }
            if (n > 0) attn_step(d, a, &t, from, to, out);
        }
    }
    attn_acts_close(d, &t);
}

static double as_stored(kv_type type, float x) {
    return type == KV_F32   ? (double)x
           : type == KV_F16 ? (double)f16_to_f32(f32_to_f16(x))
                            : (double)bf16_to_f32(f32_to_bf16(x));
}

static void expect_attention(const attn_data *a, const char *level, const float *got) {
    const attn_case *c = &a->c;
    static const char *const ops[] = {"attention f16", "attention bf16", "attention f32"};
    double tolerance = tolerance_of(c->softcap != 0 ? "attention softcap" : ops[c->type]);
    for (uint32_t s = 0; s < SEQS; s++) {
        for (uint32_t pos = 0; pos < seq_lens[s]; pos++) {
            for (uint32_t head = 0; head < c->n_heads; head++) {
                uint32_t kv_head = head / (c->n_heads / c->n_kv_heads);
                size_t row = seq_first(s) + pos;
                const float *q = a->q + (row * c->n_heads + head) * c->head_dim;
                double p[LEN_MAX], max = -1e30, total = 0;
                uint32_t begin = c->window != 0 && pos + 1 > c->window ? pos + 1 - c->window : 0;
                for (uint32_t at = begin; at <= pos; at++) {
                    const float *k = a->k + ((seq_first(s) + at) * c->n_kv_heads + kv_head) * c->head_dim;
                    p[at] = 0;
                    for (uint32_t i = 0; i < c->head_dim; i++)
                        p[at] += (double)q[i] * as_stored(c->type, k[i]);
                    p[at] /= sqrt(c->head_dim);
                    if (c->softcap != 0) p[at] = (double)c->softcap * tanh(p[at] / (double)c->softcap);
                    max = fmax(max, p[at]);
                }
                for (uint32_t at = begin; at <= pos; at++) total += p[at] = exp(p[at] - max);
                for (uint32_t i = 0; i < c->head_dim; i++) {
                    double sum = 0;
                    for (uint32_t at = begin; at <= pos; at++) {
                        size_t from = ((seq_first(s) + at) * c->n_kv_heads + kv_head) * c->head_dim + i;
                        sum += p[at] * as_stored(c->type, a->v[from]);
                    }
                    expect_close("attention", level,
                                 (double)got[(row * c->n_heads + head) * c->head_dim + i],
                                 sum / total, tolerance);
                }
            }
        }
    }
}

static void attention_is_softmax_over_stored_positions(void) {
    for (size_t i = 0; i < INFERD_COUNT(level_names); i++) {
        device d;
        if (!device_open(&d, level_names[i], 2)) continue;
        for (size_t c = 0; c < INFERD_COUNT(attn_cases); c++) {
            attn_data a;
            attn_data_init(&a, d.be, attn_cases[c]);
            size_t n = (size_t)a.n_rows * a.c.n_heads * a.c.head_dim;
            float *out = calloc(n, sizeof *out);
            attn_in_chunks(&d, &a, LEN_MAX, true, out);
            expect_attention(&a, level_names[i], out);
            free(out);
            attn_data_deinit(&a);
        }
        device_close(&d);
    }
}

static void attention_does_not_depend_on_the_batch(void) {
    static const uint32_t chunks[] = {1, 7, 16, LEN_MAX};
    for (size_t i = 0; i < INFERD_COUNT(level_names); i++) {
        for (size_t c = 0; c < INFERD_COUNT(attn_cases); c++) {
            attn_data a = {0};
            float *one = NULL, *other = NULL;
            for (uint32_t n_threads = 1; n_threads <= 2; n_threads++) {
                device d;
                if (!device_open(&d, level_names[i], n_threads)) continue;
                if (one == NULL) {
                    attn_data_init(&a, d.be, attn_cases[c]);
                    size_t n = (size_t)a.n_rows * a.c.n_heads * a.c.head_dim;
                    one = calloc(n, sizeof *one);
                    other = calloc(n, sizeof *other);
                    attn_in_chunks(&d, &a, LEN_MAX, true, one);
                }
                for (size_t k = 0; k < INFERD_COUNT(chunks); k++) {
                    for (int together = 0; together < 2; together++) {
                        size_t n = (size_t)a.n_rows * a.c.n_heads * a.c.head_dim;
                        memset(other, 0, n * sizeof *other);
                        attn_in_chunks(&d, &a, chunks[k], together, other);
                        expect_same_bits("attention", level_names[i], other, one, n);
                    }
                }
                device_close(&d);
            }
            if (one != NULL) attn_data_deinit(&a);
            free(one);
            free(other);
        }
    }
}

/* What was in a slot before must not shine through a block that is partly filled. */
static void attention_ignores_what_slots_held_before(void) {
    for (size_t i = 0; i < INFERD_COUNT(level_names); i++) {
        device d;
        if (!device_open(&d, level_names[i], 1)) continue;
        attn_data a;
        attn_data_init(&a, d.be, attn_cases[1]);
        size_t n = (size_t)a.n_rows * a.c.n_heads * a.c.head_dim;
        float *out = calloc(n, sizeof *out), *k = a.k;
        /* First every slot is filled with keys and values that are not numbers. */
        float *bad = malloc((size_t)a.n_rows * a.c.n_kv_heads * a.c.head_dim * sizeof *bad);
        for (size_t e = 0; e < (size_t)a.n_rows * a.c.n_kv_heads * a.c.head_dim; e++) bad[e] = NAN;
        float *v = a.v;
        a.k = a.v = bad;
        attn_in_chunks(&d, &a, LEN_MAX, true, out);
        a.k = k;
        a.v = v;
        attn_in_chunks(&d, &a, 1, true, out);
        expect_attention(&a, level_names[i], out);
        free(bad);
        free(out);
        attn_data_deinit(&a);
        device_close(&d);
    }
}

/* ---- failing ---- */

static void first_failure_sticks_until_sync(void) {
    device d;
    inferd_err err = {0};
    EXPECT(device_open(&d, "base", 1));
    float x[2] = {1, 2};
    weight table = make_table(&d, x, 1, 2);
    act *a = be_act_open(d.be, 1, 2);
    rows_batch r;
    step_of_rows(&d, &r, 0, 1);
    be_embed(d.be, a, &table, 1);
    backend_fail_at(d.be, 2);
    be_add(d.be, a, a, 1, 2); // 2, 4
    be_add(d.be, a, a, 1, 2); // fails
    be_add(d.be, a, a, 1, 2); // does nothing
    EXPECT_EQ(be_sync(d.be, &err), INFERD_EDEVICE);
    EXPECT(strncmp(err.text, "add:", 4) == 0);
    EXPECT_EQ(be_act_host(d.be, a)[1], 4);
    be_add(d.be, a, a, 1, 2);
    sync_ok(&d);
    EXPECT_EQ(be_act_host(d.be, a)[1], 8);
    be_act_close(d.be, a);
    device_close(&d);
}

static void unknown_token_fails_the_step(void) {
    device d;
    EXPECT(device_open(&d, "base", 1));
    float x[2] = {1, 2};
    weight table = make_table(&d, x, 1, 2);
    act *a = be_act_open(d.be, 1, 2);
    const tok_id bad[] = {1, -1, INT32_MAX};
    for (size_t i = 0; i < INFERD_COUNT(bad); i++) {
        inferd_err err = {0};
        rows_batch r;
        step_of_rows(&d, &r, 0, 1);
        r.tokens[0] = bad[i];
        be_embed(d.be, a, &table, 1);
        EXPECT_EQ(be_sync(d.be, &err), INFERD_EINVAL);
    }
    be_act_close(d.be, a);
    device_close(&d);
}

static void slot_outside_the_arena_fails_the_step(void) {
    device d;
    EXPECT(device_open(&d, "base", 1));
    kv_layout kv = {.n_layers = 1, .n_kv_heads = 1, .head_dim = 16, .block_tokens = 16,
                    .group_layers = 1, .n_groups = 1, .slots_per_page = 4};
    const int32_t bad[] = {-1, 4 * ARENA_PAGES, 0}; // the last lies in a page of the window
    for (size_t i = 0; i < INFERD_COUNT(bad); i++) {
        inferd_err err = {0};
        rows_batch r;
        step_of_rows(&d, &r, 0, 0);
        sync_ok(&d);
        batch_seq s = {0, 1, 3, 1, &bad[i]};
        r.b.n_seqs = r.b.n_rows = 1;
        r.b.seqs = &s;
        be_step_begin(d.be, &r.b, &kv);
        EXPECT_EQ(be_sync(d.be, &err), INFERD_EDEVICE);
    }
    device_close(&d);
}

/* ---- the rest ---- */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

/* Steps of one row, then suddenly of many: nothing may be touched for the first time then. */
static void steps_take_no_page_faults_after_warm_up(void) {
#if defined(SANITIZED)
    SKIP("a sanitizer has page faults of its own");
#endif
    device d;
    backend_stats stats;
    if (!device_open(&d, "avx2", 2)) EXPECT(device_open(&d, "base", 2));
    do { // a page taken before the background thread came is counted, and rightly
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        be_get_stats(d.be, &stats);
    } while (stats.n_pages_touched < ARENA_PAGES);
    attn_data a;
    attn_data_init(&a, d.be, attn_cases[1]);
    float *out = calloc((size_t)a.n_rows * a.c.n_heads * a.c.head_dim, sizeof *out);
    attn_in_chunks(&d, &a, 1, true, out);
    attn_in_chunks(&d, &a, LEN_MAX, true, out);
    unsigned char *file = file_rows(DTYPE_Q4_1, 640, 576);
    float *x = random_floats((size_t)ROWS_MAX * 576);
    d.next = be_window_base(d.window);
    weight w = make_weight(&d, DTYPE_Q4_1, 640, 576, file);
    weight table = make_table(&d, x, ROWS_MAX, 576);
    act *in = be_act_open(d.be, ROWS_MAX, 576), *result = be_act_open(d.be, ROWS_MAX, 640);
    for (uint32_t n = 1; n <= ROWS_MAX; n++) {
        rows_batch r;
        step_of_rows(&d, &r, 0, n);
        be_embed(d.be, in, &table, 1);
        be_matmul(d.be, result, in, &w, NULL, n);
        sync_ok(&d);
    }
    be_get_stats(d.be, &stats);
    EXPECT_EQ(stats.n_kv_page_faults, 0);
    EXPECT_EQ(stats.n_kv_driver_calls, 0);
    be_act_close(d.be, in);
    be_act_close(d.be, result);
    attn_data_deinit(&a);
    free(file);
    free(x);
    free(out);
    device_close(&d);
}

static void count_call(void *ctx, uint32_t i) {
    ((uint32_t *)ctx)[i]++; // each i is one call's own
}

static void parallel_calls_each_index_once(void) {
    device d;
    EXPECT(device_open(&d, "base", 3));
    for (uint32_t n = 0; n <= 100; n += n < 4 ? 1 : 32) {
        uint32_t calls[100] = {0};
        be_parallel(d.be, n, count_call, calls);
        for (uint32_t i = 0; i < 100; i++) EXPECT_EQ(calls[i], i < n);
    }
    device_close(&d);
}

static void events_measure_time(void) {
    device d;
    EXPECT(device_open(&d, "base", 1));
    be_event_record(d.be, 0);
    struct timespec wait = {.tv_nsec = 2000000};
    nanosleep(&wait, NULL);
    be_event_record(d.be, 1);
    sync_ok(&d);
    EXPECT(be_event_elapsed_us(d.be, 0, 1) >= 2000);
    EXPECT_EQ(be_event_elapsed_us(d.be, 1, 0), 0);
    device_close(&d);
}

static const test_case cases[] = {
    TEST(unknown_level_is_an_error),
    TEST(unknown_kind_is_an_error),
    TEST(name_tells_the_level),
    TEST(embedding_rows_have_the_bits_of_the_file),
    TEST(types_without_formula_are_not_supported),
    TEST(matmul_is_the_sum_of_products),
    TEST(matmul_rows_do_not_depend_on_the_batch),
    TEST(rmsnorm_is_the_formula),
    TEST(silu_mul_and_add_are_the_formulas),
    TEST(rope_turns_pairs_by_position),
    TEST(rope_angles_follow_step_and_frequencies),
    TEST(logit_rows_are_taken_in_order),
    TEST(attention_is_softmax_over_stored_positions),
    TEST(attention_does_not_depend_on_the_batch),
    TEST(attention_ignores_what_slots_held_before),
    TEST(first_failure_sticks_until_sync),
    TEST(unknown_token_fails_the_step),
    TEST(slot_outside_the_arena_fails_the_step),
    TEST(steps_take_no_page_faults_after_warm_up),
    TEST(parallel_calls_each_index_once),
    TEST(events_measure_time),
};
TEST_MAIN(cases)
