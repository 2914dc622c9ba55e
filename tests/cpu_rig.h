/* cpu_rig.h - a CPU backend with memory to put things in, for the tests of its operations.
 *
 * Inputs get into activations the only way there is: as rows of an F32 embedding table. */
#ifndef INFERD_CPU_RIG_H
#define INFERD_CPU_RIG_H

#include <time.h>

#include "kernels/backend.h"

#include "backend_ops.h"
#include "cpu/level.h"
#include "test.h"

static const char *const level_names[] = {"define", "base",       "avx2",       "avxvnni",
                                          "avx512", "avx512vnni", "avx512bf16", "avx512amx"};

/* How far a result may be from the formula, relative to the sum of the magnitudes of its terms
 * (matmul), or to 1 (the others, whose inputs and outputs are about 1).  Weights are exact, so the
 * type matters only through the size of sums. */
static const struct {
    const char *op;
    double tolerance;
} tolerances[] = {
    {"matmul", 4e-6},
    {"rmsnorm", 2e-6},
    {"rope", 1e-6},
    {"silu_mul", 2e-6},
    {"add", 0},
    {"attention f16", 4e-6},
    {"attention bf16", 4e-6},
    {"attention f32", 4e-6},
    {"attention softcap", 2e-5},
    {"attention int8", 1e-4},     // query and weights are rounded to 15 bits
    {"attention int16", 6e-4},    // as are keys; values are rounded to 13 bits
    {"attention bf16 dot", 5e-3}, // query and weights are rounded by up to 2^-9 of themselves
};

static inline double tolerance_of(const char *op) {
    for (size_t i = 0; i < INFERD_COUNT(tolerances); i++)
        if (strcmp(tolerances[i].op, op) == 0) return tolerances[i].tolerance;
    printf("no tolerance for %s\n", op);
    test_failures++;
    return 0;
}

static uint64_t random_state = 1;
static inline uint32_t random_u32(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33);
}
/* About 1 in size, never exactly round. */
static inline float random_float(void) {
    return ((float)(random_u32() % 20001) - 10000.0f) / 8191.0f;
}

/* ---- a backend with memory to put things in ---- */

enum { WINDOW_PAGES = 8, ARENA_PAGES = 12 }; // pages of the arena past the window hold KV

typedef struct device {
    backend *be;
    be_window *window;
    unsigned char *next;
} device;

static inline bool device_open_math(device *d, const char *level, uint32_t n_threads, bool exact) {
    inferd_err err = {0};
    backend_options options = {"cpu", n_threads, (uint64_t)ARENA_PAGES << 21, .exact_math = exact};
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

static inline bool device_open(device *d, const char *level, uint32_t n_threads) {
    return device_open_math(d, level, n_threads, true);
}

static inline void device_close(device *d) {
    be_window_close(d->be, d->window);
    backend_close(d->be);
}

static inline void *take(device *d, size_t n_bytes) {
    void *p = d->next;
    d->next += (n_bytes + 63) / 64 * 64;
    EXPECT((size_t)(d->next - (unsigned char *)be_window_base(d->window)) <=
           WINDOW_PAGES * be_page_bytes(d->be));
    return p;
}

static inline size_t row_bytes_of(dtype type, uint32_t cols) {
    dtype_info info = dtype_about(type);
    return (size_t)cols / info.block_elems * info.block_bytes;
}

/* Halves of a block that scale it: their places, -1 for none. */
static inline void scales_of(dtype type, int out[2]) {
    bool minima = type == DTYPE_Q4_1 || type == DTYPE_Q5_1 || type == DTYPE_Q4_K ||
                  type == DTYPE_Q5_K || type == DTYPE_Q2_K;
    out[0] = type == DTYPE_Q6_K    ? 208
             : type == DTYPE_Q2_K  ? 80
             : type == DTYPE_Q3_K  ? 108
             : type == DTYPE_MXFP4 ? -1
                                   : 0;
    out[1] = minima ? out[0] + 2 : -1;
}

/* Random rows as a file has them.  Scales are halves near 2^-7, now and then subnormal or
 * negative, those of MXFP4 powers of two, now and then the smallest; everything else is any bits.
 */
static inline unsigned char *file_rows(dtype type, uint32_t rows, uint32_t cols) {
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
        int places[2];
        scales_of(type, places);
        for (size_t at = 0; at < n; at += info.block_bytes) {
            if (type == DTYPE_MXFP4)
                p[at] = (unsigned char)(random_u32() % 16 == 0 ? random_u32() % 3
                                                               : 118 + random_u32() % 6);
            for (int i = 0; i < 2; i++) {
                uint16_t d = (uint16_t)(0x2000 + random_u32() % 0x400);
                if (random_u32() % 16 == 0) d = (uint16_t)(random_u32() % 0x400);
                if (random_u32() % 8 == 0) d |= 0x8000;
                if (places[i] >= 0) memcpy(p + at + places[i], &d, 2);
            }
        }
    }
    return p;
}

static inline weight make_weight(device *d, dtype type, uint32_t rows, uint32_t cols,
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

static inline weight make_table(device *d, const float *x, uint32_t rows, uint32_t cols) {
    return make_weight(d, DTYPE_F32, rows, cols, (const unsigned char *)x);
}

static inline vec make_vec(device *d, const float *x, uint32_t n) {
    vec v;
    be_vec_init(d->be, &v, n, take(d, n * sizeof *x));
    be_vec_load(d->be, &v, x);
    return v;
}

static inline float *random_floats(size_t n) {
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
    uint32_t positions[ROWS_MAX], row_seq[ROWS_MAX], logit_rows[ROWS_MAX], pending[ROWS_MAX];
} rows_batch;

static inline void step_of_rows(device *d, rows_batch *r, uint32_t first, uint32_t n) {
    *r = (rows_batch){.b = {.n_rows = n,
                            .tokens = r->tokens,
                            .positions = r->positions,
                            .row_seq = r->row_seq,
                            .logit_rows = r->logit_rows,
                            .pending = r->pending}};
    for (uint32_t i = 0; i < n; i++) {
        r->tokens[i] = (tok_id)(first + i);
        r->positions[i] = i;
    }
    be_step_begin(d->be, &r->b, &r->kv);
}

static inline void sync_ok(device *d) {
    inferd_err err = {0};
    EXPECT_EQ(be_sync(d->be, &err), INFERD_OK);
    EXPECT_STR(err.text, "");
}

static inline void expect_close(const char *what, const char *level, double got, double expected,
                                double tolerance) {
    if (fabs(got - expected) <= tolerance) return;
    printf("%s at level %s: %.9g, expected %.9g within %g\n", what, level, got, expected,
           tolerance);
    test_failures++;
}

static inline void expect_same_bits(const char *what, const char *level, const float *a,
                                    const float *b, size_t n) {
    if (memcmp(a, b, n * sizeof *a) == 0) return;
    printf("%s at level %s: bits differ\n", what, level);
    test_failures++;
}

#endif
