/* test_kernels.c - the operations of the CPU backend, at every level this machine has, against
 * formulas in double precision written out here, and against themselves in other batches.
 * Attention has a file of its own. */
#include <float.h>

#include "cpu_rig.h"

static const dtype all_types[] = {DTYPE_F32,  DTYPE_F16,    DTYPE_BF16,   DTYPE_Q4_0,
                                  DTYPE_Q4_1, DTYPE_Q5_0,   DTYPE_Q5_1,   DTYPE_Q8_0,
                                  DTYPE_Q4_K, DTYPE_Q5_K,   DTYPE_Q6_K,   DTYPE_Q2_K,
                                  DTYPE_Q3_K, DTYPE_IQ4_NL, DTYPE_IQ4_XS, DTYPE_MXFP4};

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
        snprintf(name, sizeof name, "cpu %s, exact", level_names[i]);
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
            act *out = be_act_open(d.be, ACT_INNER, rows, cols);
            float *expected = malloc((size_t)rows * cols * sizeof *expected);
            dtype_to_f32(type, file, expected, (size_t)rows * cols);
            rows_batch r;
            step_of_rows(&d, &r, 0, rows);
            be_embed(d.be, out, &w, 1);
            sync_ok(&d);
            expect_same_bits("embed", dtype_about(type).name, be_act_host(d.be, out), expected,
                             (size_t)rows * cols);
            be_embed(d.be, out, &w, 3);
            for (size_t e = 0; e < (size_t)rows * cols; e++) // denormal floats are zeros there
                expected[e] =
                    fabsf(expected[e]) < FLT_MIN ? copysignf(0, expected[e]) : expected[e] * 3;
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
    EXPECT(!be_weight_supported(d.be, (dtype)16)); // IQ2_XXS
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

/* Weights of MXFP4 that a product may take for zeros (panel.h). */
#define MXFP4_TINY (12 * 0x1p-127)

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
    act *in = be_act_open(d->be, ACT_INNER, N, s.cols),
        *out = be_act_open(d->be, ACT_INNER, N, s.rows);
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
                double sum = n % 2 == 0 ? (double)bias[o] : 0, size = fabs(sum), lost = 0;
                for (uint32_t k = 0; k < s.cols; k++) {
                    double by = (double)w[o * s.cols + k];
                    double term = (double)x[row * s.cols + k] * by;
                    sum += term;
                    size += fabs(term);
                    if (type == DTYPE_MXFP4 && fabs(by) <= MXFP4_TINY) lost += fabs(term);
                }
                expect_close(what, level, (double)got[row * s.rows + o], sum,
                             tolerance_of("matmul") * size + lost);
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
            for (size_t s = 0; s < n; s++)
                check_matmul(&d, level_names[i], all_types[t], shapes[s]);
        }
        device_close(&d);
    }
}

/* Rows [0, n) of the product, computed `chunk` rows at a time, into `out`. */
static void matmul_in_chunks(device *d, const weight *table, const weight *w, uint32_t n,
                             uint32_t chunk, float *out) {
    act *in = be_act_open(d->be, ACT_INNER, n, w->cols),
        *result = be_act_open(d->be, ACT_INNER, n, w->rows);
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
    for (size_t i = 1; i < INFERD_COUNT(level_names); i++) { // define has one way only
        for (size_t t = 0; t < INFERD_COUNT(all_types); t++) {
            dtype type = all_types[t];
            uint32_t cols = dtype_about(type).block_elems == 256 ? 256 : 96;
            float *x = random_floats((size_t)N * cols);
            unsigned char *file = file_rows(type, ROWS, cols);
            float *one = malloc((size_t)N * ROWS * sizeof *one),
                  *other = malloc((size_t)N * ROWS * sizeof *other);
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
            act *a = be_act_open(d.be, ACT_INNER, N, dim);
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
            for (size_t e = 0; e < n; e++)
                a[e] *= e % 5 == 0 ? 80 : 1; // where e^-a is tiny or huge
            weight table_a = make_table(&d, a, N, dim), table_b = make_table(&d, b, N, dim);
            act *x = be_act_open(d.be, ACT_INNER, N, dim),
                *y = be_act_open(d.be, ACT_INNER, N, dim);
            rows_batch r;
            step_of_rows(&d, &r, 0, N);
            be_embed(d.be, x, &table_a, 1);
            be_embed(d.be, y, &table_b, 1);
            be_glu(d.be, ACT_SILU, x, x, y, N, dim);
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
    act *aq = be_act_open(d->be, ACT_INNER, N, HEADS * head_dim),
        *ak = be_act_open(d->be, ACT_INNER, N, KV_HEADS * head_dim);
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
            const float *in =
                head < HEADS ? q + (row * HEADS + head) * head_dim : k + row * head_dim;
            const float *out = head < HEADS
                                   ? be_act_host(d->be, aq) + (row * HEADS + head) * head_dim
                                   : be_act_host(d->be, ak) + row * head_dim;
            for (uint32_t i = 0; i < n_pairs; i++) {
                uint32_t first = interleaved ? 2 * i : i,
                         second = interleaved ? 2 * i + 1 : i + n_pairs;
                double angle = positions[row] * (double)inv_freq[i];
                double a = (double)in[first], b = (double)in[second];
                expect_close("rope", level, (double)out[first],
                             (double)scale * (a * cos(angle) - b * sin(angle)),
                             tolerance_of("rope"));
                expect_close("rope", level, (double)out[second],
                             (double)scale * (a * sin(angle) + b * cos(angle)),
                             tolerance_of("rope"));
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
    act *q = be_act_open(d.be, ACT_INNER, 1, 2), *k = be_act_open(d.be, ACT_INNER, 1, 2);
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
    act *in = be_act_open(d.be, ACT_INNER, 3, 2), *out = be_act_open(d.be, ACT_INNER, 3, 2);
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

/* ---- failing ---- */

static void first_failure_sticks_until_sync(void) {
    device d;
    inferd_err err = {0};
    EXPECT(device_open(&d, "base", 1));
    float x[2] = {1, 2};
    weight table = make_table(&d, x, 1, 2);
    act *a = be_act_open(d.be, ACT_INNER, 1, 2);
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
    act *a = be_act_open(d.be, ACT_INNER, 1, 2);
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
    kv_layout kv = {.n_layers = 1,
                    .n_kv_heads = 1,
                    .head_dim = 16,
                    .block_tokens = 16,
                    .group_layers = 1,
                    .n_groups = 1,
                    .slots_per_page = 4};
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
    TEST(first_failure_sticks_until_sync),
    TEST(unknown_token_fails_the_step),
    TEST(slot_outside_the_arena_fails_the_step),
    TEST(parallel_calls_each_index_once),
    TEST(events_measure_time),
};
TEST_MAIN(cases)
