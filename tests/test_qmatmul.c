/* test_qmatmul.c - the products with 16-bit activations, at every level this machine has, against
 * the level `define`, against themselves in other batches, and levels against each other.  The
 * functions of the levels are called as they are, without a backend. */
#include "cpu_rig.h"

static const dtype quantised[] = {DTYPE_Q4_0,   DTYPE_Q4_1,   DTYPE_Q5_0, DTYPE_Q5_1, DTYPE_Q8_0,
                                  DTYPE_Q4_K,   DTYPE_Q5_K,   DTYPE_Q6_K, DTYPE_Q2_K, DTYPE_Q3_K,
                                  DTYPE_IQ4_NL, DTYPE_IQ4_XS, DTYPE_MXFP4};

/* The level, or NULL where this machine lacks it. */
static const cpu_level *level_of(const char *name) {
    inferd_err err = {0};
    return level_choose(name, &err);
}

static bool has_fma(const cpu_level *level) {
    return strncmp(level->name, "avx", 3) == 0;
}

/* ---- things to multiply ---- */

static weight pack(dtype type, uint32_t rows, uint32_t cols, const unsigned char *file) {
    size_t stride = panel_bytes(type, cols), n_panels = (rows + PANEL_ROWS - 1) / PANEL_ROWS;
    weight w = {.type = type, .rows = rows, .cols = cols};
    w.data = aligned_alloc(64, n_panels * stride);
    for (uint32_t i = 0; i < n_panels; i++)
        panel_pack(type, cols, file + i * PANEL_ROWS * row_bytes_of(type, cols),
                   u32_min(rows - i * PANEL_ROWS, PANEL_ROWS),
                   (unsigned char *)w.data + i * stride);
    return w;
}

static weight random_weight(dtype type, uint32_t rows, uint32_t cols) {
    unsigned char *file = file_rows(type, rows, cols);
    weight w = pack(type, rows, cols, file);
    free(file);
    return w;
}

/* Rows of x as qact; free .q.  Everything starts as noise, so that what is read was written. */
static qact quantize(const cpu_level *level, cpu_math math, const float *x, const float *norm,
                     uint32_t n, uint32_t cols) {
    size_t n_bytes = (qact_bytes(n, cols) + 63) / 64 * 64;
    unsigned char *at = aligned_alloc(64, n_bytes);
    memset(at, 0x5a, n_bytes);
    qact q = qact_at(at, n, cols);
    qact_job job = {q, x, norm, NULL, n, cols, 1e-5f, math};
    level->quantize(&job, 0, qact_tiles(n));
    return q;
}

static uint32_t units_of(const weight *w) {
    return (w->rows + MATMUL_UNIT - 1) / MATMUL_UNIT;
}

/* Sums of the magnitudes of each element's terms, which is what errors are relative to. */
static void sizes_of_sums(const qact *x, cpu_math math, uint32_t n, const weight *w, float *out) {
    float *row = malloc(w->cols * sizeof *row);
    for (uint32_t o = 0; o < w->rows; o++) {
        panel_row_to_f32(w, o, 0, w->cols, row);
        for (uint32_t i = 0; i < n; i++) {
            double size = 0;
            for (uint32_t k = 0; k < w->cols; k++) {
                uint16_t q = x->q[qact_index(math, n, qact_padded(w->cols), i, k, 0)];
                size += fabs((double)row[k] *
                             (double)(math == MATH_I16 ? (float)(int16_t)q : bf16_to_f32(q)));
            }
            if (math == MATH_I16) size *= (double)x->scale[i];
            out[(size_t)i * w->rows + o] = (float)size;
        }
    }
    free(row);
}

/* Weights are sums of what the formula adds up apart (scale * q and base), so terms may be larger
 * than the weight: eight times are enough for all types. */
enum { TERMS = 8 };
static const double TOLERANCE = 2e-6;

/* ---- quantising ---- */

static void check_quantised_row(const char *level, const qact *q, uint32_t n, uint32_t i,
                                const float *x, uint32_t cols) {
    uint32_t tile = i / QACT_ROWS, n_rows = qact_tile_rows(n, tile), r = i % QACT_ROWS;
    const int32_t *sum = q->sum + (size_t)tile * QACT_ROWS * (cols / 32);
    const int32_t *sum16 = q->sum16 + (size_t)tile * QACT_ROWS * (cols / 16);
    double max = 0;
    for (uint32_t k = 0; k < cols; k++) max = fmax(max, fabs((double)x[k]));
    expect_close("scale", level, (double)q->scale[i], max / 32767, max / 32767 * 1e-7);
    long expected = 0, expected16 = 0;
    for (uint32_t k = 0; k < cols; k++) {
        double exact = max > 0 ? (double)x[k] * 32767 / max : 0;
        int got = (int16_t)q->q[qact_index(MATH_I16, n, cols, i, k, 0)];
        expect_close("q", level, got, exact, 0.5 + 0.005);
        expected += got;
        expected16 += got;
        if (k % 16 == 15) {
            EXPECT_EQ(sum16[(size_t)(k / 16) * n_rows + r], expected16);
            expected16 = 0;
        }
        if (k % 32 == 31) {
            EXPECT_EQ(sum[(size_t)(k / 32) * n_rows + r], expected);
            expected = 0;
        }
    }
}

static void factors_are_the_row_over_its_largest(void) {
    static const uint32_t cols_of[] = {32, 96, 576};
    enum { N = 19 };
    for (size_t l = 0; l < INFERD_COUNT(level_names); l++) {
        const cpu_level *level = level_of(level_names[l]);
        for (size_t c = 0; level != NULL && c < INFERD_COUNT(cols_of); c++) {
            uint32_t cols = cols_of[c];
            float *x = random_floats((size_t)N * cols);
            for (uint32_t k = 0; k < cols; k++) x[2 * cols + k] = 0;      // a row of zeros
            for (uint32_t k = 0; k < cols; k++) x[3 * cols + k] *= 1e38f; // and a huge one
            for (uint32_t n = 1; n <= N; n++) {
                qact q = quantize(level, MATH_I16, x, NULL, n, cols);
                for (uint32_t i = 0; i < n; i++)
                    check_quantised_row(level->name, &q, n, i, x + (size_t)i * cols, cols);
                free(q.q);
            }
            free(x);
        }
    }
}

/* The largest is 32767, so q is x itself, rounded. */
static void ties_go_to_even(void) {
    float x[32] = {32767, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 3.5f, -32767, 100.5f};
    static const int16_t expected[10] = {32767, 0, 2, 2, 0, -2, -2, 4, -32767, 100};
    for (size_t l = 0; l < INFERD_COUNT(level_names); l++) {
        const cpu_level *level = level_of(level_names[l]);
        if (level == NULL) continue;
        qact q = quantize(level, MATH_I16, x, NULL, 1, 32);
        for (uint32_t k = 0; k < 10; k++)
            EXPECT_EQ((int16_t)q.q[qact_index(MATH_I16, 1, 32, 0, k, 0)], expected[k]);
        EXPECT(q.scale[0] == 1.0f);
        free(q.q);
    }
}

/* The norm on the way is rmsnorm's own: as if it had been computed before, bit for bit. */
static void norm_on_the_way_is_rmsnorm(void) {
    enum { N = 11, COLS = 96 };
    for (size_t l = 0; l < INFERD_COUNT(level_names); l++) {
        const cpu_level *level = level_of(level_names[l]);
        if (level == NULL) continue;
        float *x = random_floats(N * COLS), *w = random_floats(COLS);
        float *before = malloc(N * COLS * sizeof *before), *kept = malloc(N * COLS * sizeof *kept);
        level->rmsnorm(&(rmsnorm_job){before, x, w, COLS, 1e-5f}, 0, N);
        for (cpu_math math = MATH_I16; math <= (level->has_bf16 ? MATH_BF16 : MATH_I16); math++) {
            qact one = quantize(level, math, before, NULL, N, COLS);
            qact other = quantize(level, math, x, w, N, COLS);
            EXPECT(memcmp(one.q, other.q, N * COLS * qact_terms(math) * sizeof *one.q) == 0);
            if (math == MATH_I16) EXPECT(memcmp(one.scale, other.scale, N * sizeof(float)) == 0);
            qact_job job = {other, x, w, kept, N, COLS, 1e-5f, math};
            level->quantize(&job, 0, 2);
            expect_same_bits("normed", level->name, kept, before, N * COLS);
            free(one.q);
            free(other.q);
        }
        free(x);
        free(w);
        free(before);
        free(kept);
    }
}

static void bf16_rows_are_rounded_and_filled_up(void) {
    static const uint32_t cols_of[] = {1, 8, 31, 33, 64, 77};
    enum { N = 9 };
    const cpu_level *level = level_of("avx512bf16");
    if (level == NULL) return;
    for (size_t c = 0; c < INFERD_COUNT(cols_of); c++) {
        uint32_t cols = cols_of[c];
        size_t padded = qact_padded(cols);
        float *x = random_floats((size_t)N * cols);
        x[0] = NAN;
        x[cols] = INFINITY;
        qact q = quantize(level, MATH_BF16, x, NULL, N, cols);
        qact expected = quantize(level_of("define"), MATH_BF16, x, NULL, N, cols);
        for (uint32_t i = 0; i < N; i++) {
            for (uint32_t k = 0; k < 2 * padded; k++) {
                size_t at =
                    qact_index(MATH_BF16, N, padded, i, k % (uint32_t)padded, k / (uint32_t)padded);
                bool nan = k % padded == 0 && (i == 0 || (i == 1 && k > 0)); // inf - inf
                if (nan) EXPECT(isnan(bf16_to_f32(q.q[at])) && isnan(bf16_to_f32(expected.q[at])));
                if (!nan) EXPECT_EQ(q.q[at], expected.q[at]);
            }
        }
        free(x);
        free(q.q);
        free(expected.q);
    }
}

/* ---- products ---- */

typedef struct shape {
    uint32_t rows, cols;
} shape;

static const shape *shapes_of(dtype type, size_t *n) {
    static const shape any[] = {{1, 1}, {31, 33}, {65, 129}, {200, 31}};
    static const shape by_32[] = {{1, 32}, {31, 96}, {64, 576}, {200, 160}, {33, 1536}};
    static const shape by_256[] = {{1, 256}, {33, 1536}, {200, 512}};
    uint32_t elems = dtype_about(type).block_elems;
    *n = elems == 1 ? INFERD_COUNT(any) : elems == 32 ? INFERD_COUNT(by_32) : INFERD_COUNT(by_256);
    return elems == 1 ? any : elems == 32 ? by_32 : by_256;
}

/* What `define` says, once for all levels, and how large its sums are. */
typedef struct product {
    weight w;
    cpu_math math;
    uint32_t n;
    float *x, *bias, *add; // [n, cols], [rows], [n, rows]
    float *expected, *size, *got;
} product;

static product product_open(dtype type, cpu_math math, shape s, uint32_t n) {
    size_t n_out = (size_t)n * s.rows;
    product p = {.w = random_weight(type, s.rows, s.cols), .math = math, .n = n};
    p.x = random_floats((size_t)n * s.cols);
    p.bias = random_floats(s.rows);
    p.add = random_floats(n_out);
    p.expected = random_floats(n_out);
    p.size = random_floats(n_out);
    p.got = random_floats(n_out);
    qact q = quantize(level_of("define"), math, p.x, NULL, n, s.cols);
    qmatmul_job job = {q, &p.w, p.bias, p.add, p.expected, n, math};
    level_of("define")->qmatmul(&job, 0, units_of(&p.w));
    sizes_of_sums(&q, math, n, &p.w, p.size);
    free(q.q);
    return p;
}

static void product_close(product *p) {
    free(p->w.data);
    free(p->x);
    free(p->bias);
    free(p->add);
    free(p->expected);
    free(p->size);
    free(p->got);
}

/* The first n rows, added in place. */
static void check_product(const cpu_level *level, const product *p, uint32_t n) {
    const weight *w = &p->w;
    qact q = quantize(level, p->math, p->x, NULL, n, w->cols);
    memcpy(p->got, p->add, (size_t)n * w->rows * sizeof *p->got);
    qmatmul_job job = {q, w, p->bias, p->got, p->got, n, p->math};
    level->qmatmul(&job, 0, units_of(w));
    free(q.q);
    for (size_t e = 0; e < (size_t)n * w->rows; e++) {
        double bound = TOLERANCE * (TERMS * (double)p->size[e] + 2);
        if (fabs((double)p->got[e] - (double)p->expected[e]) <= bound) continue;
        printf("%s [%u, %u] at level %s, %u rows, element %zu: %.9g, expected %.9g within %g\n",
               dtype_about(w->type).name, w->rows, w->cols, level->name, n, e, (double)p->got[e],
               (double)p->expected[e], bound);
        test_failures++;
        return;
    }
}

/* Few and many rows, whole tiles and rests of every height. */
static void product_is_the_sum_of_products(void) {
    static const uint32_t row_counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 17, 33};
    for (size_t t = 0; t <= INFERD_COUNT(quantised); t++) {
        dtype type = t < INFERD_COUNT(quantised) ? quantised[t] : DTYPE_BF16;
        size_t n_shapes;
        const shape *shapes = shapes_of(type, &n_shapes);
        for (size_t s = 0; s < n_shapes; s++) {
            product p =
                product_open(type, type == DTYPE_BF16 ? MATH_BF16 : MATH_I16, shapes[s], 33);
            for (size_t l = 0; l < INFERD_COUNT(level_names); l++) {
                const cpu_level *level = level_of(level_names[l]);
                if (level == NULL || level_math(level, type, false) != p.math) continue;
                size_t n = strcmp(level->name, "define") == 0 ? 3 : INFERD_COUNT(row_counts);
                for (size_t c = 0; c < n; c++) check_product(level, &p, row_counts[c]);
            }
            product_close(&p);
        }
    }
}

/* A user's answer must not depend on who else is served at the moment, nor on how features are
 * handed to threads; and levels with fused multiply-add give the same bits. */
static void bits_do_not_depend_on_batch_ranges_or_level(void) {
    enum { N = 33, ROWS = 200 };
    for (size_t t = 0; t <= INFERD_COUNT(quantised); t++) {
        dtype type = t < INFERD_COUNT(quantised) ? quantised[t] : DTYPE_BF16;
        uint32_t cols = type == DTYPE_BF16 ? 77 : dtype_about(type).block_elems == 256 ? 512 : 96;
        weight w = random_weight(type, ROWS, cols);
        float *x = random_floats((size_t)N * cols), one[N * ROWS], other[N * ROWS], fused[N * ROWS];
        bool have_fused = false;
        for (size_t l = 0; l < INFERD_COUNT(level_names); l++) {
            const cpu_level *level = level_of(level_names[l]);
            if (level == NULL || l == 0) continue; // define has one way only
            cpu_math math = level_math(level, type, false);
            if (math == MATH_F32) continue;
            const char *name = level->name;
            qact all = quantize(level, math, x, NULL, N, cols);
            level->qmatmul(&(qmatmul_job){all, &w, NULL, NULL, one, N, math}, 0, units_of(&w));
            for (uint32_t n = 1; n <= 17; n++) { // n rows at a time
                for (uint32_t i = 0; i + n <= N; i += n) {
                    qact q = quantize(level, math, x + (size_t)i * cols, NULL, n, cols);
                    level->qmatmul(&(qmatmul_job){q, &w, NULL, NULL, other, n, math}, 0,
                                   units_of(&w));
                    expect_same_bits(dtype_about(type).name, name, other, one + i * ROWS,
                                     (size_t)n * ROWS);
                    free(q.q);
                }
            }
            for (uint32_t part = 1; part <= 3; part++) {
                qmatmul_job job = {all, &w, NULL, NULL, other, N, math};
                memset(other, 0, sizeof other);
                for (uint32_t u = 0; u < units_of(&w); u += part)
                    level->qmatmul(&job, u, u32_min(u + part, units_of(&w)));
                expect_same_bits("parts of the features", name, other, one, N * ROWS);
            }
            free(all.q);
            if (has_fma(level) && math == MATH_I16) {
                if (have_fused) expect_same_bits("levels", name, one, fused, N * ROWS);
                memcpy(fused, one, sizeof fused);
                have_fused = true;
            }
        }
        free(w.data);
        free(x);
    }
}

/* More rows than one block has, and more groups of columns than are unpacked at a time. */
static void bits_do_not_depend_on_blocks(void) {
    enum { N = 301, ROWS = 96, COLS = 2048 };
    static const dtype types[] = {DTYPE_Q4_1, DTYPE_Q6_K, DTYPE_Q2_K, DTYPE_Q3_K, DTYPE_MXFP4};
    for (size_t t = 0; t < INFERD_COUNT(types); t++) {
        weight w = random_weight(types[t], ROWS, COLS);
        float *x = random_floats((size_t)N * COLS), *all = random_floats((size_t)N * ROWS),
              one[ROWS];
        for (size_t l = 1; l < INFERD_COUNT(level_names); l++) {
            const cpu_level *level = level_of(level_names[l]);
            if (level == NULL) continue;
            qact q = quantize(level, MATH_I16, x, NULL, N, COLS);
            level->qmatmul(&(qmatmul_job){q, &w, NULL, NULL, all, N, MATH_I16}, 0, units_of(&w));
            free(q.q);
            for (uint32_t i = 0; i < N; i += 43) {
                q = quantize(level, MATH_I16, x + (size_t)i * COLS, NULL, 1, COLS);
                level->qmatmul(&(qmatmul_job){q, &w, NULL, NULL, one, 1, MATH_I16}, 0,
                               units_of(&w));
                expect_same_bits("blocks", level->name, all + (size_t)i * ROWS, one, ROWS);
                free(q.q);
            }
        }
        free(w.data);
        free(x);
        free(all);
    }
}

/* BF16 weights were multiplied with activations that were rounded to bf16 once: off by a thousandth
 * of the sum of the magnitudes, and log-probabilities of such a file by 0.011 in the mean, when the
 * quantised types were off by 0.001. */
static void activations_of_bf16_lose_nothing_that_counts(void) {
    enum { N = 17, ROWS = 40, COLS = 300 };
    const cpu_level *level = level_of("avx512bf16");
    if (level == NULL) return;
    weight w = random_weight(DTYPE_BF16, ROWS, COLS);
    float *x = random_floats(N * COLS), row[COLS], got[N * ROWS];
    qact q = quantize(level, MATH_BF16, x, NULL, N, COLS);
    level->qmatmul(&(qmatmul_job){q, &w, NULL, NULL, got, N, MATH_BF16}, 0, units_of(&w));
    for (uint32_t o = 0; o < ROWS; o++) {
        panel_row_to_f32(&w, o, 0, COLS, row);
        for (uint32_t i = 0; i < N; i++) {
            double sum = 0, size = 0;
            for (uint32_t k = 0; k < COLS; k++) {
                double term = (double)x[i * COLS + k] * (double)row[k];
                sum += term;
                size += fabs(term);
            }
            expect_close("x . w", level->name, (double)got[i * ROWS + o], sum, 4e-6 * size);
        }
    }
    free(q.q);
    free(x);
    free(w.data);
}

static void glu_is_both_products_and_the_gate(void) {
    enum { N = 11, ROWS = 97, COLS = 256 };
    for (size_t l = 0; l < INFERD_COUNT(level_names); l++) {
        const cpu_level *level = level_of(level_names[l]);
        if (level == NULL) continue;
        bool bf16 = level->has_bf16;
        for (int run = 0; run < (bf16 ? 6 : 4); run++) {
            cpu_math math = run < 4 ? MATH_I16 : MATH_BF16;
            act_fn fn = run % 2 == 0 ? ACT_SILU : ACT_GELU_TANH;
            weight gate = random_weight(math == MATH_BF16 ? DTYPE_BF16 : DTYPE_Q4_K, ROWS, COLS);
            weight up = random_weight(math == MATH_BF16 ? DTYPE_BF16 : DTYPE_Q8_0, ROWS, COLS);
            float *x = random_floats(N * COLS), *bias = random_floats(2 * ROWS);
            const float *a = run < 2 ? bias : NULL, *b = run < 2 ? bias + ROWS : NULL;
            float g[N * ROWS], u[N * ROWS], got[N * ROWS], part[N * ROWS];
            qact q = quantize(level, math, x, NULL, N, COLS);
            level->qmatmul(&(qmatmul_job){q, &gate, a, NULL, g, N, math}, 0, units_of(&gate));
            level->qmatmul(&(qmatmul_job){q, &up, b, NULL, u, N, math}, 0, units_of(&up));
            qglu_job job = {q, &gate, &up, a, b, fn, got, N, math};
            level->qglu(&job, 0, units_of(&gate));
            for (size_t e = 0; e < N * ROWS; e++) {
                double v = (double)g[e];
                double inner = sqrt(2 / 3.14159265358979323846) * (v + 0.044715 * v * v * v);
                double fn_v = fn == ACT_SILU ? v / (1 + exp(-v)) : v / 2 * (1 + tanh(inner));
                double expected = fn_v * (double)u[e];
                /* define rounds the gate once less */
                expect_close("qglu", level->name, (double)got[e], expected,
                             3e-6 * (fabs(expected) + fabs((double)u[e]) * (1 + fabs(v))));
            }
            job.out = part;
            for (uint32_t unit = 0; unit < units_of(&gate); unit++)
                level->qglu(&job, unit, unit + 1);
            expect_same_bits("qglu in parts", level->name, part, got, N * ROWS);
            free(gate.data);
            free(up.data);
            free(q.q);
            free(x);
            free(bias);
        }
    }
}

/* All weights at their largest and all factors at theirs: sums of 32 stay exact in 32 bits. */
static void largest_values_do_not_overflow(void) {
    enum { COLS = 256 };
    for (size_t l = 0; l < INFERD_COUNT(level_names); l++) {
        const cpu_level *level = level_of(level_names[l]);
        for (size_t t = 0; level != NULL && t < INFERD_COUNT(quantised); t++) {
            dtype type = quantised[t];
            size_t n_bytes = row_bytes_of(type, COLS);
            unsigned char *file = file_rows(type, 1, COLS), fill = type == DTYPE_Q8_0 ? 0x80 : 0xff;
            uint16_t d = f32_to_f16(0.5f);
            memset(file, fill, n_bytes);
            for (size_t at = 0; at < n_bytes; at += dtype_about(type).block_bytes) {
                int places[2];
                scales_of(type, places);
                for (int i = 0; i < 2; i++)
                    if (places[i] >= 0) memcpy(file + at + places[i], &d, 2);
                if (type == DTYPE_MXFP4) file[at] = 127;
            }
            weight w = pack(type, 1, COLS, file);
            float row[COLS], x[COLS], out = 0;
            panel_row_to_f32(&w, 0, 0, COLS, row);
            for (int sign = -1; sign <= 1; sign += 2) {
                double expected = 0;
                for (uint32_t k = 0; k < COLS; k++) {
                    x[k] = (float)sign * 3;
                    expected += 3.0 * sign * (double)row[k];
                }
                qact q = quantize(level, MATH_I16, x, NULL, 1, COLS);
                level->qmatmul(&(qmatmul_job){q, &w, NULL, NULL, &out, 1, MATH_I16}, 0, 1);
                expect_close(dtype_about(type).name, level->name, (double)out, expected,
                             1e-5 * fabs(expected));
                free(q.q);
            }
            free(w.data);
            free(file);
        }
    }
}

static void rows_that_are_not_finite_say_so(void) {
    enum { N = 4, ROWS = 65, COLS = 96 };
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t l = 0; l < INFERD_COUNT(level_names); l++) {
        const cpu_level *level = level_of(level_names[l]);
        if (level == NULL) continue;
        for (int bf16 = 0; bf16 <= (level->has_bf16 ? 1 : 0); bf16++) {
            cpu_math math = bf16 ? MATH_BF16 : MATH_I16;
            weight w = random_weight(bf16 ? DTYPE_BF16 : DTYPE_Q5_1, ROWS, COLS);
            for (size_t i = 0; i < INFERD_COUNT(bad); i++) {
                float *x = random_floats(N * COLS), out[N * ROWS];
                x[1 * COLS + 37] = bad[i];
                for (uint32_t k = 0; k < COLS; k++) x[2 * COLS + k] = 0;
                qact q = quantize(level, math, x, NULL, N, COLS);
                level->qmatmul(&(qmatmul_job){q, &w, NULL, NULL, out, N, math}, 0, units_of(&w));
                for (uint32_t o = 0; o < ROWS; o++) {
                    EXPECT(isfinite(out[o]));
                    EXPECT(!isfinite(out[ROWS + o]));
                    EXPECT(out[2 * ROWS + o] == 0);
                    EXPECT(isfinite(out[3 * ROWS + o]));
                }
                free(x);
                free(q.q);
            }
            free(w.data);
        }
    }
}

static void types_have_their_way_at_each_level(void) {
    for (size_t l = 0; l < INFERD_COUNT(level_names); l++) {
        const cpu_level *level = level_of(level_names[l]);
        if (level == NULL) continue;
        bool bf16 = strcmp(level->name, "avx512bf16") == 0 || strcmp(level->name, "avx512amx") == 0;
        EXPECT_EQ(level_math(level, DTYPE_Q4_1, false), MATH_I16);
        EXPECT_EQ(level_math(level, DTYPE_BF16, false), bf16 ? MATH_BF16 : MATH_F32);
        EXPECT_EQ(level_math(level, DTYPE_F16, false), MATH_F32);
        EXPECT_EQ(level_math(level, DTYPE_Q4_1, true), MATH_F32);
        EXPECT_EQ(level_math(level, DTYPE_BF16, true), MATH_F32);
    }
}

static const test_case cases[] = {
    TEST(factors_are_the_row_over_its_largest), TEST(ties_go_to_even),
    TEST(norm_on_the_way_is_rmsnorm),           TEST(bf16_rows_are_rounded_and_filled_up),
    TEST(product_is_the_sum_of_products),       TEST(bits_do_not_depend_on_batch_ranges_or_level),
    TEST(bits_do_not_depend_on_blocks),         TEST(activations_of_bf16_lose_nothing_that_counts),
    TEST(glu_is_both_products_and_the_gate),    TEST(largest_values_do_not_overflow),
    TEST(rows_that_are_not_finite_say_so),      TEST(types_have_their_way_at_each_level),
};
TEST_MAIN(cases)
