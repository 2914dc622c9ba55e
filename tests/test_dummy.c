/* test_dummy.c - made-up weights: the distribution of each type, and that they depend on the seed,
 * the row and the column and on nothing else.
 *
 * With n elements of variance s^2 the mean of a matrix is within 4 s / sqrt(n) of 0; variances are
 * within 4 sqrt(kurtosis - 1) / sqrt(n), and steps of quantised types (shared by 16 to 256
 * elements) widen that a little. */
#include "dummy.h"
#include "inferd/base.h"
#include "test.h"

enum { ROWS = 512, COLS = 1024, SEED = 20240611 };

static const dtype types[] = {DTYPE_F32,  DTYPE_F16,    DTYPE_BF16,   DTYPE_Q8_0,
                              DTYPE_Q4_0, DTYPE_Q4_1,   DTYPE_Q5_0,   DTYPE_Q5_1,
                              DTYPE_Q4_K, DTYPE_Q5_K,   DTYPE_Q6_K,   DTYPE_Q2_K,
                              DTYPE_Q3_K, DTYPE_IQ4_NL, DTYPE_IQ4_XS, DTYPE_MXFP4};

static size_t row_bytes(dtype type, uint32_t cols) {
    dtype_info about = dtype_about((uint32_t)type);
    return (size_t)cols / about.block_elems * about.block_bytes;
}

static unsigned char *file_rows(dtype type, uint32_t cols, uint64_t seed, float scale,
                                uint32_t row_begin, uint32_t n_rows) {
    unsigned char *p = malloc(n_rows * row_bytes(type, cols));
    INFERD_CHECK(p != NULL);
    memset(p, 0xFF, n_rows * row_bytes(type, cols)); // not numbers, should something not be written
    dummy_file_rows(type, cols, seed, scale, row_begin, n_rows, p);
    return p;
}

static float *values(dtype type, uint32_t cols, uint64_t seed, float scale, uint32_t n_rows) {
    unsigned char *p = file_rows(type, cols, seed, scale, 0, n_rows);
    float *x = malloc((size_t)n_rows * cols * sizeof *x);
    INFERD_CHECK(x != NULL);
    dtype_to_f32(type, p, x, (size_t)n_rows * cols);
    free(p);
    return x;
}

static void every_type_has_mean_0_and_the_deviation_asked_for(void) {
    static const float scales[] = {0.02f, 1.0f, 0.0025f};
    size_t n = (size_t)ROWS * COLS;
    for (size_t t = 0; t < INFERD_COUNT(types); t++)
        for (size_t s = 0; s < INFERD_COUNT(scales); s++) {
            int before = test_failures;
            float *x = values(types[t], COLS, SEED + s, scales[s], ROWS);
            double sum = 0, squares = 0, largest = 0;
            for (size_t i = 0; i < n; i++) {
                double v = (double)x[i] / (double)scales[s];
                sum += v;
                squares += v * v;
                largest = fmax(largest, fabs(v));
            }
            EXPECT_NEAR(sum / (double)n, 0, 4 / sqrt((double)n));
            EXPECT_NEAR(sqrt(squares / (double)n), 1, 0.02);
            // nothing is infinite or not a number; MXFP4 has scales twice as large as others
            EXPECT(largest < (types[t] == DTYPE_MXFP4 ? 4.2 : 3.6));
            EXPECT(largest > 1.7);
            if (test_failures > before)
                printf("  type %s, scale %g, seed %d\n", dtype_about((uint32_t)types[t]).name,
                       (double)scales[s], SEED + (int)s);
            free(x);
        }
}

/* Of a sum of four uniforms 66.9 and 95.7 % lie within one and two deviations; of a normal
 * distribution 68.3 and 95.4. */
static void dense_values_are_about_normal(void) {
    size_t n = (size_t)ROWS * COLS, in[2] = {0, 0};
    float *x = values(DTYPE_F32, COLS, SEED, 1.0f, ROWS);
    for (size_t i = 0; i < n; i++) {
        in[0] += fabsf(x[i]) < 1;
        in[1] += fabsf(x[i]) < 2;
    }
    EXPECT_NEAR((double)in[0] / (double)n, 0.669, 0.004);
    EXPECT_NEAR((double)in[1] / (double)n, 0.957, 0.002);
    free(x);
}

/* All codes occur about equally often; without minima the lowest one never, its share goes to 0. */
static void codes_are_uniform(void) {
    static const struct {
        uint32_t bits;
        bool minima;
    } cases[] = {{4, true}, {4, false}, {5, true}, {5, false}, {6, false}, {8, false}};
    for (size_t c = 0; c < INFERD_COUNT(cases); c++) {
        uint32_t bits = cases[c].bits, n_codes = 1u << bits, per = 2048, count[256] = {0};
        for (uint32_t i = 0; i < n_codes * per; i++)
            count[dummy_code(dummy_hash(SEED, 7, i / 8), i, bits, cases[c].minima)]++;
        for (uint32_t code = 0; code < n_codes; code++) {
            uint32_t share = 1;
            if (!cases[c].minima) share = code == 0 ? 0 : code == n_codes / 2 ? 2 : 1;
            EXPECT_NEAR(count[code], share * per, 5 * sqrt(2.0 * per)); // 5 deviations
        }
    }
}

static double correlation(const float *a, const float *b, size_t n) {
    double ab = 0, aa = 0, bb = 0;
    for (size_t i = 0; i < n; i++) {
        ab += (double)a[i] * (double)b[i];
        aa += (double)a[i] * (double)a[i];
        bb += (double)b[i] * (double)b[i];
    }
    return ab / sqrt(aa * bb);
}

/* A matrix whose rows or columns resembled each other would amplify one direction. */
static void neighbours_are_unrelated(void) {
    size_t n = (size_t)(ROWS - 1) * COLS;
    for (size_t t = 0; t < INFERD_COUNT(types); t++) {
        float *x = values(types[t], COLS, SEED, 1.0f, ROWS);
        float *y = values(types[t], COLS, SEED + 1, 1.0f, ROWS);
        static const size_t steps[] = {1, 8, 32, 256, COLS};
        for (size_t s = 0; s < INFERD_COUNT(steps); s++)
            EXPECT_NEAR(correlation(x, x + steps[s], n), 0, 4.5 / sqrt((double)n));
        EXPECT_NEAR(correlation(x, y, n), 0, 4.5 / sqrt((double)n));
        free(x);
        free(y);
    }
}

/* Rows made in pieces, or as a part of a wider matrix, are the same rows. */
static void a_row_depends_on_its_number_alone(void) {
    for (size_t t = 0; t < INFERD_COUNT(types); t++) {
        size_t n_bytes = row_bytes(types[t], 512), n_wide = row_bytes(types[t], 1024);
        unsigned char *whole = file_rows(types[t], 512, SEED, 0.02f, 0, 9);
        unsigned char *again = file_rows(types[t], 512, SEED, 0.02f, 0, 9);
        unsigned char *middle = file_rows(types[t], 512, SEED, 0.02f, 3, 4);
        unsigned char *wide = file_rows(types[t], 1024, SEED, 0.02f, 3, 1);
        EXPECT(memcmp(whole, again, 9 * n_bytes) == 0);
        EXPECT(memcmp(whole + 3 * n_bytes, middle, 4 * n_bytes) == 0);
        EXPECT(memcmp(whole + 3 * n_bytes, wide, n_wide / 2) == 0);
        EXPECT(memcmp(whole, whole + n_bytes, n_bytes) != 0);
        free(whole);
        free(again);
        free(middle);
        free(wide);
    }
}

static void names_and_models_have_their_own_seeds(void) {
    static const char *const names[] = {"",
                                        "a",
                                        "b",
                                        "blk.0.attn_q.weight",
                                        "blk.1.attn_q.weight",
                                        "blk.0.attn_k.weight",
                                        "output.weight"};
    enum { NAMES = INFERD_COUNT(names) };
    uint64_t seeds[2 * NAMES];
    for (size_t i = 0; i < NAMES; i++) {
        seeds[i] = dummy_seed(names[i], 1);
        seeds[NAMES + i] = dummy_seed(names[i], 2);
        EXPECT(seeds[i] == dummy_seed(names[i], 1));
    }
    for (size_t i = 0; i < 2 * NAMES; i++)
        for (size_t j = 0; j < i; j++) EXPECT(seeds[i] != seeds[j]);
    /* one letter further in the name changes about half of the bits */
    uint64_t changed = dummy_seed("blk.0.attn_q.weight", 1) ^ dummy_seed("blk.1.attn_q.weight", 1);
    EXPECT(__builtin_popcountll(changed) > 12 && __builtin_popcountll(changed) < 52);
}

/* The definition, held in place: whoever changes it changes every dummy model and its goldens. */
static void the_definition_stays(void) {
    static const uint64_t golden_rows[INFERD_COUNT(types)] = {
        0x9e03f26665920f6bu, 0xf4d8affd9d5660b4u, 0xba7c8deb41152d66u, 0x2b6c0d8aa906bd28u,
        0x6a14d992963fbf32u, 0xfdab8790d0301b34u, 0xdbafaec6d6c175e7u, 0x3e02d1e91340a569u,
        0x77e1de9132b5390cu, 0xa4d5587df6e856fbu, 0x3281a60be3dfc619u, 0x00c4347a00388426u,
        0x6707210d60d02f54u, 0xafac90f686d0c33bu, 0x6e7d76c569a1bae9u, 0x8ac71f0168245b10u,
    };
    EXPECT(dummy_seed("blk.0.attn_q.weight", 1) == 0x669e042a7a7daecbu);
    EXPECT(dummy_hash(1, 2, 3) == 0x5c805391619635c7u);
    for (size_t t = 0; t < INFERD_COUNT(types); t++) {
        unsigned char *p = file_rows(types[t], 256, 42, 0.02f, 5, 2);
        uint64_t h = 0xCBF29CE484222325u;
        for (size_t i = 0; i < 2 * row_bytes(types[t], 256); i++) h = (h ^ p[i]) * 0x100000001B3u;
        if (h != golden_rows[t])
            printf("%s: %#" PRIx64 "\n", dtype_about((uint32_t)types[t]).name, h);
        EXPECT(h == golden_rows[t]);
        free(p);
    }
}

static void unknown_types_are_refused(void) {
    dummy_form f;
    EXPECT(!dummy_form_of((dtype)4, 1.0f, &f));
    EXPECT(!dummy_form_of((dtype)16, 1.0f, &f));
    EXPECT(!dummy_form_of((dtype)63, 1.0f, &f));
    for (uint32_t id = 0; id < DTYPE_LIMIT; id++)
        EXPECT_EQ(dummy_form_of((dtype)id, 1.0f, &f), dtype_about(id).supported);
}

static const test_case cases[] = {
    TEST(every_type_has_mean_0_and_the_deviation_asked_for),
    TEST(dense_values_are_about_normal),
    TEST(codes_are_uniform),
    TEST(neighbours_are_unrelated),
    TEST(a_row_depends_on_its_number_alone),
    TEST(names_and_models_have_their_own_seeds),
    TEST(the_definition_stays),
    TEST(unknown_types_are_refused),
};
TEST_MAIN(cases)
