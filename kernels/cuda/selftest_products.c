/* selftest_products.c - the kernels that multiply: gemv, skinny, expand, and cuBLASLt.
 *
 * x are quarters up to 2, weights few bits times powers of two, so each product and each sum of
 * products is exact in float in any order, and an output has one rounding: compared bit for
 * bit.  Only gated activations have a bound.
 *
 * Thread: one. */
#include <math.h>
#include <string.h>

#include "cuda/expand.h"
#include "cuda/gemv.h"
#include "cuda/selftest_check.h"
#include "cuda/skinny.h"

enum { W_ROWS = 40, ROWS_MAX = 128, PARTIALS_BYTES = 4 << 20, COUNTERS = 4096 };

static uint32_t mixed(uint32_t v) {
    v = (v ^ v >> 16) * 0x7feb352du;
    return v ^ v >> 13;
}

/* A width that ends inside a tile, if the type allows it. */
static uint32_t cols_of(uint32_t format) {
    return format <= CU_FMT_F16 ? 328 : format == CU_FMT_Q6 ? 512 : 480;
}

/* ---- one product ---- */

typedef struct product {
    matmul_args a;
    uint32_t rows, cols, n_out;
    double *x;                      // [rows, cols] as multiplied, after the norm
    double *w[MATMUL_FUSED_MAX];    // [W_ROWS, cols]
    double *bias[MATMUL_FUSED_MAX]; // [W_ROWS] or NULL
    double *before;                 // [rows, W_ROWS] with add
    matmul_workspace work;
} product;

typedef struct wishes {
    bool norm, bias, add, glu;
    uint32_t second; // format of the last matrix; 0: as the others
    cu_type out_type;
    uint32_t n_out;
} wishes;

static double *numbers(size_t n) {
    double *v = calloc(n, sizeof *v);
    INFERD_CHECK(v != NULL);
    return v;
}

/* Rows of x in memory are 2 or -2 with a norm: their mean square is 4, and the normed x is 1
 * or -1 times the norm's weight, a power of two. */
static void make_x(check *c, product *p, const wishes *want, cu_type inner) {
    uint32_t stride = (p->cols + 7) / 8 * 8 + 8;
    static uint32_t gather[ROWS_MAX];
    double *x = numbers((size_t)p->rows * stride), *norm = numbers(p->cols);
    for (uint32_t i = 0; i < p->cols; i++) norm[i] = ldexp(1, (int)(i % 3) - 1);
    for (uint32_t r = 0; r < p->rows; r++) {
        uint32_t from = want->norm ? p->rows - 1 - r : r; // the norm gathers
        gather[r] = from;
        for (uint32_t i = 0; i < p->cols; i++) {
            uint32_t m = mixed(from * 4099 + i);
            double v = ((int)(m % 17) - 8) / 4.0;
            if (want->norm) v = m & 1 ? 2 : -2;
            x[(size_t)from * stride + i] = v;
            p->x[(size_t)r * p->cols + i] = want->norm ? v / 2 * norm[i] : v;
        }
    }
    p->a.x_type = want->norm ? CU_F32 : inner;
    p->a.x = check_put_values(c, p->a.x_type, x, (size_t)p->rows * stride);
    p->a.x_stride = stride;
    if (want->norm) {
        p->a.norm = check_put_values(c, CU_F32, norm, p->cols);
        p->a.gather = check_put(c, gather, p->rows * sizeof *gather);
    }
    free(x);
    free(norm);
}

static void make_out(check *c, product *p, const wishes *want, uint32_t format, uint32_t i) {
    uint32_t n = p->rows * W_ROWS;
    p->w[i] = numbers((size_t)W_ROWS * p->cols);
    p->a.out[i].w = check_matrix(c, check_types[format], W_ROWS, p->cols, 50 + i, p->w[i]);
    p->a.out[i].out_type = want->out_type;
    p->a.out[i].out_stride = W_ROWS;
    if (want->bias) {
        p->bias[i] = numbers(W_ROWS);
        for (uint32_t k = 0; k < W_ROWS; k++) p->bias[i][k] = (int)(mixed(k + i) % 64) - 32;
        p->a.out[i].bias = check_put_values(c, CU_F32, p->bias[i], W_ROWS);
    }
    if (want->add) {
        p->before = numbers(n);
        for (uint32_t k = 0; k < n; k++) p->before[k] = (int)(mixed(k) % 200) - 100;
        p->a.out[i].out = check_put_values(c, want->out_type, p->before, n);
    } else {
        p->a.out[i].out = check_room(c, n * type_bytes(want->out_type));
    }
}

static void product_open(check *c, product *p, const wishes *want, uint32_t format, cu_type inner,
                         uint32_t rows) {
    *p = (product){.rows = rows, .cols = cols_of(format), .n_out = want->n_out};
    if (want->second != 0) p->cols = cols_of(CU_FMT_Q6); // all formats have that many
    INFERD_CHECK(rows <= ROWS_MAX);
    p->x = numbers((size_t)rows * p->cols);
    p->a.rows = rows;
    p->a.inner = inner;
    p->a.n_out = want->n_out;
    p->a.add = want->add;
    p->a.glu = want->glu;
    p->a.act = GLU_SILU;
    make_x(c, p, want, inner);
    for (uint32_t i = 0; i < want->n_out; i++)
        make_out(c, p, want, want->second != 0 && i + 1 == want->n_out ? want->second : format, i);
    p->work.partials_bytes = PARTIALS_BYTES;
    p->work.partials = check_room(c, PARTIALS_BYTES);
    p->work.n_counters = COUNTERS;
    p->work.counters = check_zeros(c, COUNTERS * sizeof(uint32_t));
}

static void product_close(product *p) {
    free(p->x);
    free(p->before);
    for (uint32_t i = 0; i < MATMUL_FUSED_MAX; i++) {
        free(p->w[i]);
        free(p->bias[i]);
    }
}

/* Element `row`, `n` of x . transpose(w). */
static double dot(const product *p, uint32_t i, uint32_t row, uint32_t n) {
    const double *x = p->x + (size_t)row * p->cols, *w = p->w[i] + (size_t)n * p->cols;
    double sum = p->bias[i] != NULL ? p->bias[i][n] : 0;
    for (uint32_t k = 0; k < p->cols; k++) sum += x[k] * w[k];
    if (p->before != NULL) sum += p->before[row * W_ROWS + n];
    return sum;
}

static void product_check(check *c, const product *p) {
    uint32_t n = p->rows * W_ROWS;
    double *got = numbers(n), *want = numbers(n);
    for (uint32_t i = 0; i < (p->a.glu ? 1 : p->n_out); i++) {
        cu_type type = p->a.out[i].out_type;
        char what[16];
        snprintf(what, sizeof what, p->n_out > 1 && !p->a.glu ? "out %u" : "out", i);
        for (uint32_t k = 0; k < n; k++) {
            double v = dot(p, i, k / W_ROWS, k % W_ROWS);
            if (p->a.glu) v = v / (1 + exp(-v)) * dot(p, 1, k / W_ROWS, k % W_ROWS);
            want[k] = p->a.glu ? v : type_round(type, v);
        }
        check_get_values(c, type, got, p->a.out[i].out, n);
        if (p->a.glu) /* a gate far below 0 gives next to nothing */
            check_values(c, what, got, want, n, W_ROWS, 1e-5 + 2 * type_rounding(type), 1e-6);
        else
            check_values(c, what, got, want, n, W_ROWS, 0, 0);
    }
    free(got);
    free(want);
}

/* Launches by the family's launcher: gemv or skinny, the other one NULL. */
static void multiply(check *c, const gemv *g, const skinny *s, const char *more, wishes want,
                     uint32_t format, cu_type inner, uint32_t rows) {
    product p;
    if (!check_begin(c, "%s_%s%s%s_%s %u rows%s", g != NULL ? "gemv" : "skinny",
                     check_format_names[format], want.second != 0 ? "_" : "",
                     want.second != 0 ? check_format_names[want.second] : "", type_name(inner),
                     rows, more))
        return;
    product_open(c, &p, &want, format, inner, rows);
    if (check_ready(c)) {
        if (g != NULL)
            gemv_launch(&c->l, g, &p.work, &p.a);
        else
            skinny_launch(&c->l, s, &p.work, &p.a);
        if (check_run(c)) {
            product_check(c, &p);
            check_end(c);
        }
    }
    product_close(&p);
}

/* ---- the families ---- */

static void all_gemv(check *c, cu_type inner) {
    inferd_err err = {0};
    gemv *g;
    if (!check_begin(c, "gemv")) return;
    if (gemv_create(c->l.module, &c->device, inner, &g, &err) != INFERD_OK) {
        check_fail(c, "", err.text);
        return;
    }
    for (uint32_t f = 0; f < CU_FORMATS; f++) {
        wishes plain = {.out_type = CU_F32, .n_out = 1}, norm = {.out_type = inner, .n_out = 3};
        wishes add = plain, glu = norm;
        norm.norm = norm.bias = add.add = glu.norm = glu.glu = true;
        glu.n_out = 2;
        multiply(c, g, NULL, "", plain, f, inner, 1);
        multiply(c, g, NULL, " with norm and bias", norm, f, inner, 3);
        multiply(c, g, NULL, " added", add, f, inner, GEMV_ROWS_LIMIT);
        multiply(c, g, NULL, " with norm, gated", glu, f, inner, 2);
    }
    for (uint32_t i = 0; i < GEMV_PAIRS; i++) {
        wishes two = {.second = gemv_pairs[i].second, .norm = true, .out_type = inner, .n_out = 3};
        multiply(c, g, NULL, " with norm", two, gemv_pairs[i].first, inner, 3);
    }
    gemv_destroy(g);
}

static void all_skinny(check *c, cu_type inner) {
    static const uint32_t rows[] = {8, 13, 30, SKINNY_ROWS_MAX};
    inferd_err err = {0};
    skinny *s;
    if (!check_begin(c, "skinny")) return;
    if (skinny_create(c->l.module, &c->device, inner, &s, &err) != INFERD_OK) {
        check_fail(c, "", err.text);
        return;
    }
    for (uint32_t f = 0; f < CU_FORMATS; f++)
        for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
            wishes plain = {.out_type = CU_F32, .n_out = 1}, many = {.out_type = inner, .n_out = 3};
            if (i % 2 == 0) {
                many.bias = true;
                multiply(c, NULL, s, " with bias", many, f, inner, rows[i]);
            } else {
                plain.add = true;
                multiply(c, NULL, s, " added", plain, f, inner, rows[i]);
            }
        }
    skinny_destroy(s);
}

/* The rows from 16 on, as 16-bit numbers. */
static void expand_one(check *c, const expand *e, uint32_t format, cu_type inner) {
    enum { BEGIN = 16, OUT = W_ROWS - BEGIN };
    uint32_t cols = cols_of(format), n = OUT * cols;
    double *w = numbers((size_t)W_ROWS * cols), *got = numbers(n);
    if (check_begin(c, "expand_%s_%s", check_format_names[format], type_name(inner))) {
        cu_matrix m = check_matrix(c, check_types[format], W_ROWS, cols, 60, w);
        void *out = check_room(c, n * 2);
        for (uint32_t i = 0; i < W_ROWS * cols; i++) w[i] = type_round(inner, w[i]);
        if (check_ready(c)) {
            expand_launch(&c->l, e, &m, BEGIN, OUT, out, cols);
            if (check_run(c)) {
                check_get_values(c, inner, got, out, n);
                check_values(c, "out", got, w + BEGIN * cols, n, cols, 0, 0);
                check_end(c);
            }
        }
    }
    free(w);
    free(got);
}

static void all_expand(check *c, cu_type inner) {
    inferd_err err = {0};
    expand *e;
    if (!check_begin(c, "expand")) return;
    if (expand_create(c->l.module, &c->device, inner, &e, &err) != INFERD_OK) {
        check_fail(c, "", err.text);
        return;
    }
    for (uint32_t f = 0; f < CU_FORMATS; f++) expand_one(c, e, f, inner);
    expand_destroy(e);
}

/* ---- cuBLASLt ---- */

static void lt_product(check *c, lt_type in, lt_type out_type) {
    enum { M = 72, N = 64, K = 128, WORK = 4 << 20 };
    cu_type inner = in == LT_BF16 ? CU_BF16 : CU_F16;
    cu_type type = out_type == LT_F32 ? CU_F32 : inner;
    const cu_api *api = c->api;
    static double x[M * K], w[N * K], want[M * N], got[M * N];
    lt_shape s = {M, N, K, K, K, N, in, out_type, out_type == LT_F32};
    lt_algo algo;
    uint32_t n = 0;
    for (uint32_t i = 0; i < M * K; i++) x[i] = ((int)(mixed(i) % 17) - 8) / 4.0;
    for (uint32_t i = 0; i < N * K; i++) w[i] = ((int)(mixed(i + 7) % 15) - 7) / 8.0;
    for (uint32_t i = 0; i < M * N; i++) want[i] = (int)(mixed(i + 9) % 200) - 100;
    void *px = check_put_values(c, inner, x, M * K), *pw = check_put_values(c, inner, w, N * K);
    void *out = check_put_values(c, type, want, M * N), *work = check_room(c, WORK);
    for (uint32_t i = 0; i < M * N; i++) {
        double sum = s.accumulate ? want[i] : 0;
        for (uint32_t k = 0; k < K; k++) sum += x[i / N * K + k] * w[i % N * K + k];
        want[i] = type_round(type, sum);
    }
    if (!check_ready(c)) return;
    cu_result r = api->lt_candidates(&s, WORK, 1, &algo, &n);
    if (r == CU_OK) r = api->lt_matmul(&s, &algo, px, pw, out, work, WORK, c->l.stream);
    launch_failed(&c->l, r, "cuBLASLt");
    if (!check_run(c)) return;
    check_get_values(c, type, got, out, M * N);
    check_values(c, "out", got, want, M * N, N, 0, 0);
    check_end(c);
}

static void all_lt(check *c, const char *lt_path) {
    static const char kernel[] = "lt_matmul";
    static const lt_type types[][2] = {
        {LT_BF16, LT_BF16}, {LT_BF16, LT_F32}, {LT_F16, LT_F16}, {LT_F16, LT_F32}};
    for (size_t i = 0; i < INFERD_COUNT(types); i++) {
        if (!check_begin(c, "lt_%s to %s", types[i][0] == LT_BF16 ? "bf16" : "f16",
                         types[i][1] == LT_F32 ? "f32" : "the same"))
            return;
        check_about(c, kernel);
        if (!parts_is_on(&c->parts, PART_LT))
            check_skip(c, kernel, c->parts.part[PART_LT].why);
        else if (c->api->lt_open(lt_path) == CU_OK)
            lt_product(c, types[i][0], types[i][1]);
        else
            check_skip(c, kernel, c->api->text());
    }
}

void selftest_products(check *c, const char *lt_path) {
    for (cu_type inner = CU_BF16; inner <= CU_F16; inner++) {
        all_gemv(c, inner);
        all_skinny(c, inner);
        all_expand(c, inner);
    }
    all_lt(c, lt_path);
}
