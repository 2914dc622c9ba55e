/* selftest_words.c - the expected results of the kernels of selftest.cu, by formulas.
 *
 * Numbers are integers, or have few enough bits that every sum is exact, so nearly all results are
 * compared bit for bit; bounds of the special functions are those of gpu.cuh (2 units in the last
 * place), twice.
 *
 * Thread: one. */
#include <math.h>
#include <string.h>

#include "cuda/selftest.h"
#include "cuda/selftest_check.h"

enum { T = SELFTEST_THREADS, WARP = SELFTEST_WARP };

/* Pseudo-random bits, the same every time. */
static uint32_t bits_at(uint32_t i) {
    uint32_t v = (i + 1) * 0x9e3779b9u;
    v = (v ^ v >> 15) * 0x85ebca6bu;
    return v ^ v >> 13;
}

static void fill_bits(uint32_t *out, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) out[i] = bits_at(i);
}

/* Loads the kernel and begins the check of the same name. */
static const cu_kernel *begin(check *c, const char *kernel, uint32_t threads,
                              uint32_t shared_bytes) {
    inferd_err err = {0};
    if (!check_begin(c, "%s", kernel + strlen("selftest_"))) return NULL;
    const cu_kernel *k = module_find(c->l.module, kernel);
    if (k == NULL)
        inferd_fail(&err, INFERD_EUNSUPPORTED, "the module has no kernel %s", kernel);
    else if (module_load(c->l.module, k, threads, shared_bytes, &err) == INFERD_OK)
        return k;
    check_fail(c, kernel, err.text);
    return NULL;
}

/* One launch of blocks in a row, `n_out` words of output, compared with `want`. */
static void run(check *c, const cu_kernel *k, uint32_t blocks, uint32_t threads,
                uint32_t shared_bytes, selftest_params *p, const uint32_t *want, uint32_t n_out,
                uint32_t width) {
    uint32_t *got = malloc(n_out * sizeof *got);
    INFERD_CHECK(got != NULL);
    if (p->out == NULL) p->out = check_room(c, n_out * sizeof *got);
    if (check_ready(c)) {
        launch(&c->l, k, blocks, 1, 1, threads, shared_bytes, p, sizeof *p);
        if (check_run(c)) {
            check_get(c, got, p->out, n_out * sizeof *got);
            check_words(c, "out", got, want, n_out, width);
            check_end(c);
        }
    }
    free(got);
}

/* ---- threads ---- */

static void places(check *c) {
    enum { X = 3, Y = 2, Z = 2, THREADS = 64, N = X * Y * Z * THREADS };
    uint32_t want[N + 1], got[N + 1];
    const cu_kernel *k = begin(c, "selftest_places", THREADS, 0);
    if (k == NULL) return;
    for (uint32_t i = 0; i < N; i++) {
        uint32_t block = i / THREADS, t = i % THREADS;
        want[i] =
            block % X | block / X % Y << 4 | block / (X * Y) << 8 | t % 32 << 12 | t / 32 << 20;
    }
    want[N] = X | Y << 8 | Z << 16 | THREADS << 24;
    selftest_params p = {.out = check_room(c, sizeof got)};
    if (!check_ready(c)) return;
    launch(&c->l, k, X, Y, Z, THREADS, 0, &p, sizeof p);
    if (!check_run(c)) return;
    check_get(c, got, p.out, sizeof got);
    check_words(c, "out", got, want, N + 1, THREADS);
    check_end(c);
}

static uint32_t float_bits(double v) {
    return type_encode(CU_F32, v);
}

static void lanes(check *c) {
    enum { KINDS = 10 };
    uint32_t in[T], want[KINDS][T];
    const cu_kernel *k = begin(c, "selftest_lanes", T, 0);
    if (k == NULL) return;
    fill_bits(in, T);
    for (uint32_t t = 0; t < T; t++) {
        uint32_t lane = t % WARP, first = t - lane, votes = 0, sum = 0, small = 0, most = 0;
        for (uint32_t i = 0; i < WARP; i++) {
            uint32_t v = in[first + i];
            votes |= (v & 1) << i;
            sum += v;
            small += v & 1023;
            most = u32_max(most, v & 1023);
        }
        want[0][t] = in[first + lane * 7 % WARP];
        want[1][t] = in[first + (lane ^ 5)];
        want[2][t] = in[lane + 3 < WARP ? t + 3 : t]; // beyond the end: its own
        want[3][t] = in[lane >= 3 ? t - 3 : t];
        want[4][t] = votes;
        want[5][t] = in[t ^ 16] ^ 3u * ~in[t ^ 16];
        want[6][t] = sum;
        want[7][t] = float_bits(small);
        want[8][t] = float_bits(most);
        want[9][t] = float_bits(first + 9);
    }
    selftest_params p = {.in = check_put(c, in, sizeof in)};
    run(c, k, 1, T, 0, &p, want[0], KINDS * T, T);
}

static void barriers(check *c) {
    uint32_t in[T], want[4][T];
    const cu_kernel *k = begin(c, "selftest_barriers", T, 3 * T * 4);
    if (k == NULL) return;
    fill_bits(in, T);
    for (uint32_t t = 0; t < T; t++) {
        want[0][t] = in[T - 1 - t];
        want[1][t] = 1;
        want[2][t] = in[t ^ 32] + 1;
        want[3][t] = in[t ^ 1] + 2;
    }
    selftest_params p = {.in = check_put(c, in, sizeof in)};
    run(c, k, 1, T, 3 * T * 4, &p, want[0], 4 * T, T);
}

static void atomics(check *c) {
    enum { BLOCKS = 8, THREADS = 64, OUT = 16 + 4 * BLOCKS };
    uint32_t in[BLOCKS * THREADS], want[OUT] = {0};
    uint64_t sum = 0, most = 0;
    const cu_kernel *k = begin(c, "selftest_atomics", THREADS, 16);
    if (k == NULL) return;
    fill_bits(in, BLOCKS * THREADS);
    for (uint32_t i = 0; i < BLOCKS * THREADS; i++) {
        uint32_t *of_block = want + 16 + i / THREADS * 4, v = in[i];
        uint64_t big = (uint64_t)v << 20 | i % THREADS;
        want[0] += v, of_block[0] += v;
        want[1] = u32_max(want[1], v), of_block[1] = u32_max(of_block[1], v);
        want[2] |= v, of_block[2] |= v;
        sum += big;
        most = u64_max(most, big);
    }
    memcpy(want + 4, &sum, 8);
    memcpy(want + 6, &most, 8);
    want[8] = want[0];
    want[9] = 1;
    selftest_params p = {.out = check_zeros(c, sizeof want),
                         .in = check_put(c, in, sizeof in),
                         .scratch = check_zeros(c, (BLOCKS + 1) * 4)};
    run(c, k, BLOCKS, THREADS, 16, &p, want, OUT, 0);
}

/* ---- memory ---- */

static void loads(check *c) {
    enum { IN = 4 * WARP, OUT = 832, SHARED = (128 + 64) * 4 };
    uint32_t in[IN], want[OUT];
    const cu_kernel *k = begin(c, "selftest_loads", WARP, SHARED);
    if (k == NULL) return;
    fill_bits(in, IN);
    for (uint32_t i = 0; i < 128; i++) {
        want[i] = want[128 + i] = want[256 + i] = in[i];
        want[384 + i] = in[i ^ 4];
    }
    for (uint32_t i = 0; i < 64; i++) {
        want[512 + i] = want[576 + i] = in[i];
        want[640 + i] = in[i ^ 2];
    }
    for (uint32_t i = 0; i < 32; i++) {
        want[704 + i] = want[736 + i] = want[768 + i] = in[i];
        want[800 + i] = 4 * i;
    }
    selftest_params p = {.in = check_put(c, in, sizeof in)};
    run(c, k, 1, WARP, SHARED, &p, want, OUT, 0);
}

static void copies(check *c) {
    enum { STAGES = SELFTEST_COPY_STAGES, SHARED = 2 * T * 16 };
    static uint32_t in[STAGES * T * 4], want[(STAGES + 1) * T * 4];
    const cu_kernel *k = begin(c, "selftest_copies", T, SHARED);
    if (k == NULL) return;
    fill_bits(in, STAGES * T * 4);
    for (uint32_t i = 0; i < (STAGES + 1) * T * 4; i++) {
        uint32_t stage = i / (4 * T), from = T - 1 - i / 4 % T, word = from * 4 + i % 4;
        want[i] = stage < STAGES ? in[stage * T * 4 + word] : from % 2 == 0 ? in[word] : 0;
    }
    selftest_params p = {.in = check_put(c, in, sizeof in)};
    run(c, k, 1, T, SHARED, &p, want, (STAGES + 1) * T * 4, 4 * T);
}

/* Each launch may begin before the one before it has ended.  With that part switched off the same
 * launches follow each other.  A device that refuses the attribute fails the check. */
static void dependents(check *c) {
    enum { BLOCKS = 16, N = BLOCKS * T, LAUNCHES = 8, STEPS = 1000 };
    static uint32_t in[N], want[N], got[N];
    const cu_kernel *k = begin(c, "selftest_dependents", T, 0);
    if (k == NULL) return;
    fill_bits(in, N);
    bool early = parts_is_on(&c->parts, PART_PDL);
    uint32_t steps = early ? STEPS : 10;
    for (uint32_t i = 0; i < N; i++) {
        want[i] = in[i];
        for (uint32_t s = 0; s < LAUNCHES * steps; s++) want[i] = want[i] * 1664525u + 1013904223u;
    }
    void *buffer[2] = {check_put(c, in, sizeof in), check_room(c, sizeof in)};
    if (!check_ready(c)) return;
    for (uint32_t i = 0; i < LAUNCHES; i++) {
        selftest_params p = {.out = buffer[(i + 1) % 2], .in = buffer[i % 2], .n = steps};
        c->l.dependent = early && i > 0;
        launch(&c->l, k, BLOCKS, 1, 1, T, 0, &p, sizeof p);
    }
    c->l.dependent = false;
    if (!check_run(c)) return;
    if (early && !parts_is_on(&c->parts, PART_PDL)) {
        check_fail(c, k->name, c->parts.part[PART_PDL].why);
        return;
    }
    check_get(c, got, buffer[0], sizeof got);
    check_words(c, "out", got, want, N, T);
    check_end(c);
}

/* ---- numbers ---- */

/* Floats at the limits of rounding: between 16-bit neighbours, and at the ends of their range. */
static float decisive(uint32_t i) {
    static const float special[] = {
        0.0f,     -0.0f,      1.0f,           65504.0f,       65519.996f,  65520.0f,   -1e30f,
        3e38f,    3.3961e38f, 6.1e-5f,        5.96e-8f,       2.98e-8f,    2.99e-8f,   1.0e-40f,
        INFINITY, -INFINITY,  1.00048828125f, 1.00146484375f, 1.00390625f, 1.01171875f};
    if (i < INFERD_COUNT(special)) return special[i];
    uint32_t bits = bits_at(i) & 0x80ffffffu;           // exponents of 32 values around 1
    if (i % 3 == 0) bits = (bits & ~0xffffu) | 0x8000u; // a tie in bf16
    if (i % 3 == 1) bits = (bits & ~0x1fffu) | 0x1000u; // a tie in f16
    bits += (103u + i % 40) << 23;
    float v;
    memcpy(&v, &bits, sizeof v);
    return isfinite(v) ? v : 1.5f;
}

/* A pattern of 16 bits that is not NaN. */
static uint32_t pattern(cu_type type, uint32_t i) {
    uint32_t bits = i < 4096 ? i * 16 + i % 16 : bits_at(i) & 0xffffu;
    return isnan(type_decode(type, bits)) ? 0x3c00u : bits;
}

static uint32_t numbers_fma(cu_type type, const uint32_t *abc) {
    uint32_t out = 0;
    for (uint32_t h = 0; h < 2; h++) {
        double v[3];
        for (uint32_t i = 0; i < 3; i++) v[i] = type_decode(type, abc[i] >> (16 * h) & 0xffffu);
        out |= type_encode(type, v[0] * v[1] + v[2])
               << (16 * h); // exact in double, so one rounding
    }
    return out;
}

/* Small numbers of full width: near 1, so that a product and a sum both need rounding. */
static uint32_t operand(cu_type type, uint32_t i) {
    double low = 1 + (double)(bits_at(i) % 1024) / 1024, high = (double)(bits_at(i) >> 20) / 4096;
    uint32_t sign = i % 5 == 0 ? 0x80000000u : 0;
    return (type_encode(type, low) | type_encode(type, high + 0.125) << 16) ^ sign;
}

static void numbers(check *c, cu_type type) {
    enum { N = 4096, KINDS = 6 };
    static float in[N];
    static uint32_t bits[N], abc[3 * N], want[KINDS][N];
    const cu_kernel *k =
        begin(c, type == CU_BF16 ? "selftest_numbers_bf16" : "selftest_numbers_f16", T, 0);
    if (k == NULL) return;
    for (uint32_t i = 0; i < N; i++) {
        in[i] = decisive(i);
        bits[i] = pattern(type, i);
    }
    for (uint32_t i = 0; i < 3 * N; i++) abc[i] = operand(type, i);
    for (uint32_t i = 0; i < N; i++) {
        uint32_t other = N - 1 - i;
        want[0][i] = type_encode(type, (double)in[i]);
        want[1][i] = want[0][i] | type_encode(type, (double)in[other]) << 16;
        want[2][i] = want[3][i] = float_bits(type_decode(type, bits[i]));
        want[4][i] = float_bits(type_decode(type, bits[other]));
        want[5][i] = numbers_fma(type, abc + 3 * i);
    }
    selftest_params p = {.in = check_put(c, in, sizeof in),
                         .more = check_put(c, bits, sizeof bits),
                         .most = check_put(c, abc, sizeof abc),
                         .n = N};
    run(c, k, N / T, T, 0, &p, want[0], KINDS * N, N);
}

static double bits_of_float(float v, uint32_t *bits) {
    memcpy(bits, &v, sizeof *bits);
    return (double)v;
}

/* The expected results of selftest_math for input i; `exact` are those without a bound. */
static void math_of(float x, uint32_t i, double out[SELFTEST_MATH_OUTPUTS]) {
    uint32_t bits;
    double v = bits_of_float(x, &bits);
    out[0] = exp2(v);
    out[1] = exp(v);
    out[2] = tanh(v);
    out[3] = 1 / sqrt(fmax(v, 0.5));
    out[4] = fmin(v, 0.5);
    out[5] = v;
    out[6] = v * v - type_round(CU_F32, v * v);
    out[7] = -v;
    out[8] = __builtin_popcount(bits);
    out[9] = bits >> 8 == 0 ? 32 : __builtin_clz(bits >> 8);
    out[10] = 0;
    out[11] = fmax(-65504, fmin(v * 65536, 65504));
    out[12] = ((bits & 0x00ff0000u) | 0x5au) >> 8;
    out[13] = (i + 2) / 3;
    out[14] = INFINITY;
    out[15] = 1;
}

static void math(check *c) {
    enum { N = 256, KINDS = SELFTEST_MATH_OUTPUTS };
    static const double bounds[KINDS] = {4.8e-7, 4.8e-7, 4.8e-7, 4.8e-7};
    static float in[N];
    static double want[KINDS][N], got[KINDS][N];
    const cu_kernel *k = begin(c, "selftest_math", T, 0);
    if (k == NULL) return;
    for (uint32_t i = 0; i < N; i++) {
        double of_kind[KINDS];
        in[i] = (float)((int)(bits_at(i) % 4001) - 2000) / 160.0f; // within 12.5
        math_of(in[i], i, of_kind);
        for (uint32_t kind = 0; kind < KINDS; kind++) want[kind][i] = of_kind[kind];
    }
    selftest_params p = {
        .out = check_room(c, sizeof(float) * KINDS * N), .in = check_put(c, in, sizeof in), .n = N};
    if (!check_ready(c)) return;
    launch(&c->l, k, N / T, 1, 1, T, 0, &p, sizeof p);
    if (!check_run(c)) return;
    check_get_values(c, CU_F32, got[0], p.out, (size_t)KINDS * N);
    for (uint32_t kind = 0; kind < KINDS; kind++) {
        char what[16];
        snprintf(what, sizeof what, "out %u", kind);
        check_values(c, what, got[kind], want[kind], N, 0, bounds[kind], 0);
    }
    check_end(c);
}

/* ---- tensor cores ---- */

/* Registers of each lane: pairs of numbers of 8x8 matrices with these upper left corners. */
static void ldmatrix(check *c) {
    enum { N = 16, REGISTERS = 12, SHARED = N * SELFTEST_ROW_BYTES };
    static const struct {
        uint8_t row, col;
        bool transposed;
    } matrices[REGISTERS] = {{0, 0, 0}, {8, 0, 0}, {0, 8, 0}, {8, 8, 0}, {0, 0, 0}, {8, 0, 0},
                             {0, 0, 1}, {8, 0, 1}, {0, 8, 1}, {8, 8, 1}, {0, 0, 1}, {8, 0, 1}};
    uint16_t in[N][N];
    uint32_t want[REGISTERS][WARP];
    const cu_kernel *k = begin(c, "selftest_ldmatrix", WARP, SHARED);
    if (k == NULL) return;
    for (uint32_t i = 0; i < N * N; i++) in[i / N][i % N] = (uint16_t)(0x100 * (i / N) + i % N + 7);
    for (uint32_t r = 0; r < REGISTERS; r++)
        for (uint32_t lane = 0; lane < WARP; lane++) {
            uint32_t row = matrices[r].row, col = matrices[r].col, g = lane / 4, t = lane % 4 * 2;
            want[r][lane] = matrices[r].transposed
                                ? in[row + t][col + g] | (uint32_t)in[row + t + 1][col + g] << 16
                                : in[row + g][col + t] | (uint32_t)in[row + g][col + t + 1] << 16;
        }
    selftest_params p = {.in = check_put(c, in, sizeof in)};
    run(c, k, 1, WARP, SHARED, &p, want[0], REGISTERS * WARP, WARP);
}

/* Integers: any order of sums gives the same, and all of them are exact in tf32. */
static void mma(check *c, const char *name, cu_type type, uint32_t depth) {
    enum { M = 16, N = 8, DEPTH_MAX = 16, TIMES = 3 };
    double ab[M * DEPTH_MAX + DEPTH_MAX * N], sums[M * N];
    uint32_t want[M * N];
    const cu_kernel *k = begin(c, name, WARP, 0);
    if (k == NULL) return;
    for (uint32_t i = 0; i < (M + N) * depth; i++) ab[i] = (int)(bits_at(i) % 31) - 15;
    for (uint32_t i = 0; i < M * N; i++) sums[i] = (int)(bits_at(i + 1000) % 2001) - 1000;
    const double *a = ab, *b = ab + M * depth;
    for (uint32_t i = 0; i < M * N; i++) {
        double dot = 0;
        for (uint32_t j = 0; j < depth; j++) dot += a[i / N * depth + j] * b[j * N + i % N];
        want[i] = float_bits(sums[i] + TIMES * dot);
    }
    selftest_params p = {.in = check_put_values(c, type, ab, (M + N) * depth),
                         .more = check_put_values(c, CU_F32, sums, M * N),
                         .n = TIMES};
    run(c, k, 1, WARP, 0, &p, want, M * N, N);
}

void selftest_words(check *c) {
    places(c);
    lanes(c);
    barriers(c);
    atomics(c);
    loads(c);
    copies(c);
    dependents(c);
    numbers(c, CU_BF16);
    numbers(c, CU_F16);
    math(c);
    ldmatrix(c);
    mma(c, "selftest_mma_bf16", CU_BF16, 16);
    mma(c, "selftest_mma_f16", CU_F16, 16);
    mma(c, "selftest_mma_tf32", CU_F32, 8);
}
