/* test_cuda_gemv.c - few rows of activations times weights of every format, and weights as 16-bit
 * rows, against sums in double over format_to_f32.
 *
 * x is exact in its type, so what may differ is the order of float sums, and the rounding of the
 * output: an error is measured against the length of the vector of products (x w), which does not
 * vanish when the sum does.  With a norm the rounded x itself may fall to the other side of a tie:
 * two such elements are allowed for.
 *
 * Behind x's columns, behind the outputs and in unwritten memory stands NaN. */
#include "cuda/gemv.h"

#include "cuda/expand.h"
#include "cuda/formats.h"
#include "cuda_rig.h"

enum { SEED = 20260 };

static const dtype all_types[] = {DTYPE_F32,  DTYPE_BF16, DTYPE_F16,  DTYPE_Q4_0,
                                  DTYPE_Q4_1, DTYPE_Q5_0, DTYPE_Q5_1, DTYPE_Q8_0,
                                  DTYPE_Q4_K, DTYPE_Q5_K, DTYPE_Q6_K};
static const cu_type inners[] = {CU_BF16, CU_F16};

static const double sum_error = 1e-5;      // of float sums, before the output is rounded
static double output_error(cu_type type) { // relative, of the output's rounding
    return type == CU_F32 ? 0 : type == CU_BF16 ? 0x1p-8 : 0x1p-11;
}

static void *or_stop(void *p) {
    INFERD_CHECK(p != NULL);
    return p;
}

static uint32_t up8(uint32_t n) {
    return (n + 7) / 8 * 8;
}

/* ---- weights ---- */

static void put_half(unsigned char *p, float f) {
    uint16_t h = f32_to_f16(f);
    memcpy(p, &h, 2);
}

/* A block whose values are about 1/4 large, some of them negative d. */
static void random_block(dtype type, unsigned char *block) {
    uint32_t n = dtype_about((uint32_t)type).block_bytes;
    float f = 0.25f * rig_normal(),
          d = rig_uniform(0.5f, 1.0f) * (rig_below(4) == 0 ? -1.0f : 1.0f);
    for (uint32_t i = 0; i < n; i++) block[i] = (unsigned char)rig_u32();
    switch ((uint32_t)type) {
    case DTYPE_F32:
        memcpy(block, &f, 4);
        break;
    case DTYPE_F16:
        put_half(block, f);
        break;
    case DTYPE_BF16: {
        uint16_t h = f32_to_bf16(f);
        memcpy(block, &h, 2);
        break;
    }
    case DTYPE_Q4_1:
        put_half(block, d / 20);
        put_half(block + 2, -d / 3);
        break;
    case DTYPE_Q5_1:
        put_half(block, d / 40);
        put_half(block + 2, -d / 3);
        break;
    case DTYPE_Q4_K:
    case DTYPE_Q5_K:
        put_half(block, d / 1000);
        put_half(block + 2, d / 200);
        break;
    case DTYPE_Q6_K:
        put_half(block + 208, d / 5000);
        break;
    default:
        put_half(block, d / (type == DTYPE_Q8_0 ? 300 : type == DTYPE_Q5_0 ? 40 : 20));
    }
}

typedef struct weights {
    cu_matrix m; // in device memory
    float *v;    // [rows, cols]
} weights;

static weights weights_make(cuda_rig *r, dtype type, uint32_t rows, uint32_t cols) {
    dtype_info about = dtype_about((uint32_t)type);
    size_t n_file = (size_t)rows * cols / about.block_elems * about.block_bytes;
    size_t n_image = format_bytes(type, rows, cols);
    unsigned char *file = or_stop(malloc(n_file)), *image = or_stop(aligned_alloc(256, n_image));
    for (size_t i = 0; i < n_file; i += about.block_bytes) random_block(type, file + i);
    cu_matrix host = format_matrix(type, rows, cols, image);
    inferd_err err = {0};
    EXPECT_EQ(format_prepare(&host, type, image, file, 0, rows, &err), INFERD_OK);
    weights w = {.v = or_stop(malloc((size_t)rows * cols * sizeof(float)))};
    format_to_f32(&host, 0, rows, w.v);
    w.m = format_matrix(type, rows, cols, rig_put(r, image, n_image));
    free(file);
    free(image);
    return w;
}

/* ---- one product ---- */

typedef struct product {
    dtype type;
    cu_type inner, out_type;
    uint32_t rows, cols, n_out, out_rows[MATMUL_FUSED_MAX];
    bool bias, norm, gather, add, glu;
    bool positive;   // x about 4, all of it
    uint32_t others; // bit i: matrix i is of type `other`
    dtype other;
    glu_kind act;
} product;

typedef struct bench { // a device with what gemv needs
    cuda_rig r;
    gemv *g[2]; // by inner
    matmul_workspace w;
} bench;

static gemv *of_inner(const bench *b, cu_type inner) {
    return b->g[inner == CU_F16];
}

/* n_sms 0: as many as the device has. */
static void bench_open_cc(bench *b, uint32_t n_sms, size_t partials_bytes, uint32_t cc_minor_8) {
    memset(b, 0, sizeof *b);
    if (cc_minor_8 != 0)
        rig_open_cc(&b->r, 8, cc_minor_8);
    else
        rig_open(&b->r);
    inferd_err err = {0};
    cu_device d = b->r.device;
    if (n_sms != 0) d.n_sms = n_sms;
    for (int i = 0; i < 2; i++)
        if (gemv_create(b->r.module, &d, inners[i], &b->g[i], &err) != INFERD_OK)
            printf("gemv_create: %s\n", err.text), exit(1);
    b->w.n_counters = 4096;
    void *zeros = or_stop(calloc(b->w.n_counters, 4));
    b->w.counters = rig_put(&b->r, zeros, b->w.n_counters * 4);
    free(zeros);
    b->w.partials_bytes = partials_bytes;
    b->w.partials = rig_alloc(&b->r, partials_bytes);
}

static void bench_open(bench *b, uint32_t n_sms) {
    bench_open_cc(b, n_sms, 1 << 20, 0);
}

static void bench_close(bench *b) {
    uint32_t *counters = or_stop(malloc(b->w.n_counters * 4)), sum = 0;
    rig_read(&b->r, counters, b->w.counters, b->w.n_counters * 4);
    for (uint32_t i = 0; i < b->w.n_counters; i++) sum |= counters[i];
    EXPECT_EQ(sum, 0); // as they were
    free(counters);
    gemv_destroy(b->g[0]);
    gemv_destroy(b->g[1]);
    rig_close(&b->r);
}

typedef struct data { // of a product
    weights w[MATMUL_FUSED_MAX];
    float *x, *h; // [x_rows, x_stride] as given; [rows, cols] as the product reads it
    float *norm, *bias[MATMUL_FUSED_MAX];
    uint32_t *gather, x_rows, x_stride, out_stride;
    float *before[MATMUL_FUSED_MAX]; // [rows, out_stride] of out
    void *dev_before[MATMUL_FUSED_MAX];
    matmul_args a;
    uint32_t n_first, n_allocs; // of the rig's
} data;

/* What a norm makes of x, in float where the kernel rounds (rows.h). */
static void make_h(const product *p, data *d) {
    d->h = or_stop(malloc((size_t)p->rows * p->cols * sizeof(float)));
    for (uint32_t m = 0; m < p->rows; m++) {
        const float *x = d->x + (size_t)(p->gather ? d->gather[m] : m) * d->x_stride;
        float *h = d->h + (size_t)m * p->cols;
        double sum = 0;
        for (uint32_t k = 0; k < p->cols; k++) sum += (double)x[k] * (double)x[k];
        float inv = (float)(1 / sqrt(sum / p->cols + (double)d->a.norm_eps));
        for (uint32_t k = 0; k < p->cols; k++)
            h[k] = p->norm ? rig_round(p->inner, x[k] * inv * d->norm[k]) : x[k];
    }
}

static void make_x(const product *p, cuda_rig *r, data *d) {
    cu_type type = p->norm ? CU_F32 : p->inner;
    d->x_rows = p->rows + 3;
    d->x_stride = up8(p->cols) + 8;
    d->x = or_stop(malloc((size_t)d->x_rows * d->x_stride * sizeof(float)));
    for (uint32_t i = 0; i < d->x_rows * d->x_stride; i++) {
        float v = p->positive ? rig_uniform(3, 5) : rig_normal();
        d->x[i] = i % d->x_stride < p->cols ? rig_round(type, v) : NAN;
    }
    d->a.x = rig_put_f32(r, type, d->x, (size_t)d->x_rows * d->x_stride);
    d->a.x_type = type;
    d->a.x_stride = d->x_stride;
    if (p->norm) {
        d->norm = rig_normals(p->cols, 1);
        d->a.norm = rig_put_f32(r, CU_F32, d->norm, p->cols);
        d->a.norm_eps = 1e-5f;
    }
    if (p->gather) {
        d->gather = or_stop(malloc(p->rows * sizeof *d->gather));
        for (uint32_t i = 0; i < p->rows; i++) d->gather[i] = rig_below(d->x_rows);
        d->a.gather = rig_put(r, d->gather, p->rows * sizeof *d->gather);
    }
    make_h(p, d);
}

static void make_out(const product *p, cuda_rig *r, data *d, uint32_t i) {
    size_t n = (size_t)p->rows * d->out_stride;
    d->before[i] = or_stop(malloc(n * sizeof(float)));
    for (size_t j = 0; j < n; j++)
        d->before[i][j] = p->add && j % d->out_stride < p->out_rows[i] ? rig_normal() : NAN;
    d->dev_before[i] = rig_put_f32(r, p->out_type, d->before[i], n);
    d->a.out[i].out = rig_alloc(r, n * rig_type_bytes(p->out_type));
    d->a.out[i].out_type = p->out_type;
    d->a.out[i].out_stride = d->out_stride;
}

static void data_make(const product *p, cuda_rig *r, data *d) {
    memset(d, 0, sizeof *d);
    d->n_first = r->n_allocs;
    d->a.rows = p->rows;
    d->a.inner = p->inner;
    d->a.n_out = p->n_out;
    d->a.add = p->add;
    d->a.glu = p->glu;
    d->a.act = p->act;
    make_x(p, r, d);
    for (uint32_t i = 0; i < p->n_out; i++) {
        d->w[i] = weights_make(r, p->others >> i & 1 ? p->other : p->type, p->out_rows[i], p->cols);
        d->a.out[i].w = d->w[i].m;
        d->out_stride = u32_max(d->out_stride, up8(p->out_rows[i]) + 8);
        if (!p->bias) continue;
        d->bias[i] = rig_normals(p->out_rows[i], 1);
        d->a.out[i].bias = rig_put_f32(r, CU_F32, d->bias[i], p->out_rows[i]);
    }
    for (uint32_t i = 0; i < p->n_out; i++) make_out(p, r, d, i);
}

static void data_free(cuda_rig *r, data *d) {
    while (r->n_allocs > d->n_first) rig_free(r, r->allocs[r->n_allocs - 1]);
    free(d->x);
    free(d->h);
    free(d->norm);
    free(d->gather);
    for (int i = 0; i < MATMUL_FUSED_MAX; i++) {
        free(d->w[i].v);
        free(d->bias[i]);
        free(d->before[i]);
    }
}

static double act_of(glu_kind kind, double x) {
    if (kind == GLU_SILU) return x / (1 + exp(-x));
    if (kind == GLU_CLAMPED_SWIGLU) return fmin(x, 7) / (1 + exp(-(double)1.702f * fmin(x, 7)));
    return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

typedef struct dot { // a sum, and how long the vector of its terms is
    double sum, length;
} dot;

static dot dot_of(const product *p, const data *d, uint32_t i, uint32_t m, uint32_t n) {
    const float *h = d->h + (size_t)m * p->cols, *w = d->w[i].v + (size_t)n * p->cols;
    dot out = {0, 0};
    for (uint32_t k = 0; k < p->cols; k++) {
        double term = (double)h[k] * (double)w[k];
        out.sum += term;
        out.length += term * term;
    }
    out.length = sqrt(out.length);
    if (p->bias) out.sum += (double)d->bias[i][n];
    return out;
}

/* Of matrix i, [rows, out_stride]; NaN stays where nothing is to be written. */
static void check_out(const product *p, const data *d, uint32_t i, const float *got) {
    double error = 0, length = 0, size = 0;
    uint32_t n_touched = 0;
    for (uint32_t m = 0; m < p->rows; m++)
        for (uint32_t n = 0; n < d->out_stride; n++) {
            double value = (double)got[(size_t)m * d->out_stride + n];
            if (n >= p->out_rows[i]) {
                n_touched += !isnan(value);
                continue;
            }
            dot want = dot_of(p, d, i, m, n);
            if (p->glu) {
                dot up = dot_of(p, d, 1, m, n);
                double act = act_of(p->act, want.sum);
                if (p->act == GLU_CLAMPED_SWIGLU) up.sum = fmax(fmin(up.sum, 7), -7) + 1;
                want.length = want.length * fabs(up.sum) + up.length * fabs(act);
                want.sum = act * up.sum;
            }
            if (p->add) want.sum += (double)d->before[i][(size_t)m * d->out_stride + n];
            error += (value - want.sum) * (value - want.sum);
            length += want.length * want.length;
            size += want.sum * want.sum;
        }
    double ties = p->norm ? 2 * output_error(p->inner) / sqrt(p->cols) : 0;
    double allowed = (sum_error + ties) * sqrt(length) + 1e-7 * sqrt(size) +
                     output_error(p->out_type) * sqrt(size);
    EXPECT_EQ(n_touched, 0);
    if (sqrt(error) <= allowed) return;
    printf("%s, %s to %s, %u x %u rows (matrix %u), %u columns%s%s%s%s%s: error %.3g, allowed %.3g "
           "(seed %d)\n",
           dtype_about((uint32_t)p->type).name, rig_type_name(p->inner), rig_type_name(p->out_type),
           p->rows, p->out_rows[i], i, p->cols, p->bias ? ", bias" : "", p->norm ? ", norm" : "",
           p->gather ? ", gather" : "", p->add ? ", add" : "", p->glu ? ", glu" : "", sqrt(error),
           allowed, SEED);
    test_failures++;
}

/* Launches twice, expects the same bits and the right values. */
static void check_product(bench *b, const product *p) {
    data d;
    data_make(p, &b->r, &d);
    const gemv *g = of_inner(b, p->inner);
    EXPECT(gemv_can_fuse(g, &d.a));
    size_t n = (size_t)p->rows * d.out_stride, n_bytes = n * rig_type_bytes(p->out_type);
    unsigned char *bits[2] = {or_stop(malloc(n_bytes)), or_stop(malloc(n_bytes))};
    float *got = or_stop(malloc(n * sizeof *got));
    for (uint32_t i = 0; i < p->n_out; i++) {
        for (int turn = 0; turn < 2; turn++) {
            for (uint32_t j = 0; j < p->n_out; j++)
                b->r.api->copy_on_device(d.a.out[j].out, d.dev_before[j], n_bytes, b->r.l.stream);
            if (i == 0 || turn == 0) gemv_launch(&b->r.l, g, &b->w, &d.a);
            rig_read(&b->r, bits[turn], d.a.out[i].out, n_bytes);
            if (i > 0) break; // the first matrix is enough
        }
        if (i == 0) EXPECT(memcmp(bits[0], bits[1], n_bytes) == 0);
        rig_to_f32(p->out_type, got, bits[0], n);
        if (p->glu && i == 1) { // up has no output of its own
            for (size_t j = 0; j < n; j++) EXPECT(isnan(got[j]));
            continue;
        }
        check_out(p, &d, i, got);
    }
    free(bits[0]);
    free(bits[1]);
    free(got);
    data_free(&b->r, &d);
}

/* ---- products ---- */

static const uint32_t odd_cols[] = {32, 64, 96, 256, 320}, odd_rows[] = {1, 15, 17, 100};

static bool has_cols(dtype type, uint32_t cols) {
    return cols % dtype_about((uint32_t)type).block_elems == 0;
}

static void every_format_multiplies_right(void) {
    bench b;
    rig_seed(SEED);
    bench_open(&b, 0);
    for (size_t t = 0; t < INFERD_COUNT(all_types); t++)
        for (size_t i = 0; i < 2; i++)
            for (uint32_t rows = 1; rows <= GEMV_ROWS_LIMIT; rows++)
                for (uint32_t j = 0; j < 4; j++) {
                    uint32_t cols = odd_cols[(rows * 3 + j) % 5];
                    if (!has_cols(all_types[t], cols)) cols = 256 * (1 + j % 2);
                    product p = {.type = all_types[t],
                                 .inner = inners[i],
                                 .out_type = (rows + j) % 2 == 0 ? CU_F32 : inners[i],
                                 .rows = rows,
                                 .cols = cols,
                                 .n_out = 1,
                                 .out_rows = {odd_rows[(rows + j) % 4]},
                                 .bias = j / 2 == 0};
                    check_product(&b, &p);
                }
    bench_close(&b);
}

/* 16-bit and float weights need not come in blocks. */
static void columns_need_no_multiple_of_8(void) {
    static const uint32_t cols[] = {1, 7, 9, 61, 67, 131};
    bench b;
    rig_seed(SEED + 1);
    bench_open(&b, 0);
    for (size_t t = 0; t < 3; t++)
        for (size_t i = 0; i < 12; i++) {
            product p = {.type = all_types[t],
                         .inner = inners[i % 2],
                         .out_type = CU_F32,
                         .rows = 1 + (uint32_t)i % 4,
                         .cols = cols[i / 2],
                         .n_out = 1,
                         .out_rows = {19},
                         .norm = i % 3 == 0};
            check_product(&b, &p);
        }
    bench_close(&b);
}

/* A warp's tiles need not fill its last batch, also where the matrix ends: nothing is read behind
 * it. */
static void batches_end_with_the_matrix(void) {
    bench b;
    rig_seed(SEED + 12);
    bench_open(&b, 1);
    for (size_t t = 0; t < INFERD_COUNT(all_types); t++)
        for (uint32_t n = 41; n < 49; n++) { // column tiles over 8 warps: 6 or 7 each, or fewer
            uint32_t cols = n * 64;
            if (!has_cols(all_types[t], cols)) cols = (n - 36) * 256;
            product p = {.type = all_types[t],
                         .inner = inners[n % 2],
                         .out_type = CU_F32,
                         .rows = 1,
                         .cols = cols,
                         .n_out = 1,
                         .out_rows = {16 * (1 + n % 3)}};
            check_product(&b, &p);
        }
    bench_close(&b);
}

static void columns_are_split_over_blocks(void) {
    bench b;
    rig_seed(SEED + 2);
    bench_open(&b, 0);
    for (size_t t = 0; t < INFERD_COUNT(all_types); t++)
        for (uint32_t i = 0; i < 2; i++) {
            product p = {.type = all_types[t],
                         .inner = inners[i],
                         .out_type = i == 0 ? CU_F32 : inners[i],
                         .rows = 1 + ((uint32_t)t + i) % 4,
                         .cols = 5120,
                         .n_out = 1,
                         .out_rows = {21},
                         .add = i == 0};
            matmul_args a = {.rows = p.rows, .n_out = 1};
            a.out[0].w = format_matrix(p.type, 21, p.cols, &b);
            gemv_plan plan = gemv_plan_of(of_inner(&b, p.inner), &b.w, &a);
            EXPECT(plan.splits > 1);
            check_product(&b, &p);
        }
    bench_close(&b);
}

/* On a device of one multiprocessor blocks walk through many units, without and with splits. */
static void blocks_take_units_in_turn(void) {
    bench b;
    rig_seed(SEED + 3);
    bench_open(&b, 1);
    for (size_t t = 0; t < INFERD_COUNT(all_types); t++)
        for (uint32_t i = 0; i < 2; i++) {
            product p = {.type = all_types[t],
                         .inner = inners[(t + i) % 2],
                         .out_type = CU_F32,
                         .rows = 1 + (uint32_t)t % 4,
                         .cols = i == 0 ? 512 : 1280,
                         .n_out = 1,
                         .out_rows = {i == 0 ? 300 : 150},
                         .bias = true};
            matmul_args a = {.rows = p.rows, .n_out = 1};
            a.out[0].w = format_matrix(p.type, p.out_rows[0], p.cols, &b);
            gemv_plan plan = gemv_plan_of(of_inner(&b, p.inner), &b.w, &a);
            EXPECT(plan.blocks < plan.n_units);
            check_product(&b, &p);
        }
    bench_close(&b);
}

/* Two blocks' x must fit a multiprocessor: 8.9 has little shared memory, so the columns are cut for
 * it, and blocks take several units of a slice. */
static void long_rows_are_cut_for_shared_memory(void) {
    bench b;
    rig_seed(SEED + 4);
    bench_open_cc(&b, 1, 1 << 20, 9);
    static const dtype types[] = {DTYPE_Q4_0, DTYPE_BF16, DTYPE_Q4_1};
    for (size_t t = 0; t < 3; t++) {
        product p = {.type = types[t],
                     .inner = CU_BF16,
                     .out_type = CU_F32,
                     .rows = 4,
                     .cols = 28672,
                     .n_out = 1,
                     .out_rows = {t == 0 ? 70 : 20},
                     .norm = t == 0};
        matmul_args a = {.rows = p.rows, .n_out = 1};
        a.out[0].w = format_matrix(p.type, p.out_rows[0], p.cols, &b);
        if (!rig_is_real(&b.r)) EXPECT(gemv_plan_of(b.g[0], &b.w, &a).splits >= 5);
        check_product(&b, &p);
    }
    bench_close(&b);
}

/* The sums of slices do not fit: rows go in several launches. */
static void small_workspace_takes_fewer_rows_at_a_time(void) {
    bench b;
    rig_seed(SEED + 5);
    bench_open_cc(&b, 1, 2560, 9);
    for (uint32_t rows = 4; rows <= 7; rows++) {
        product p = {.type = DTYPE_Q8_0,
                     .inner = CU_BF16,
                     .out_type = rows % 2 == 0 ? CU_F32 : CU_BF16,
                     .rows = rows,
                     .cols = 8192,
                     .n_out = 1,
                     .out_rows = {100},
                     .norm = rows < 6,
                     .gather = rows == 5};
        uint64_t before = b.r.l.n_launches;
        check_product(&b, &p);
        if (!rig_is_real(&b.r)) EXPECT(b.r.l.n_launches - before > 2); // it is launched twice
    }
    bench_close(&b);
}

/* ---- fused forms ---- */

static void norm_comes_before(void) {
    bench b;
    rig_seed(SEED + 6);
    bench_open(&b, 0);
    for (size_t t = 0; t < INFERD_COUNT(all_types); t++)
        for (uint32_t i = 0; i < 4; i++) {
            product p = {.type = all_types[t],
                         .inner = inners[i % 2],
                         .out_type = i < 2 ? CU_F32 : inners[i % 2],
                         .rows = 1 + ((uint32_t)t + i * 3) % GEMV_ROWS_LIMIT,
                         .cols = i % 2 == 0 ? 256 : 2304,
                         .n_out = 1,
                         .out_rows = {17 + i},
                         .norm = true,
                         .gather = i >= 2};
            check_product(&b, &p);
        }
    bench_close(&b);
}

typedef struct two_types {
    dtype first, second;
} two_types;
static const two_types pairs[] = {{DTYPE_Q4_K, DTYPE_Q6_K},
                                  {DTYPE_Q5_K, DTYPE_Q6_K},
                                  {DTYPE_Q4_K, DTYPE_Q5_K},
                                  {DTYPE_Q4_1, DTYPE_Q6_K}};

/* attn_v is finer than attn_q and attn_k in half of the layers of Q4_K_M: one launch all the same,
 * whichever matrices are of the second format. */
static void two_formats_share_a_launch(void) {
    bench b;
    rig_seed(SEED + 13);
    for (uint32_t n_sms = 0; n_sms < 3; n_sms++) { // of the device, 1, 2
        bench_open(&b, n_sms);
        for (size_t t = 0; t < INFERD_COUNT(pairs); t++)
            for (uint32_t i = 0; i < 6; i++) {
                product p = {.type = pairs[t].first,
                             .inner = inners[i % 2],
                             .out_type = i % 3 == 0 ? CU_F32 : inners[i % 2],
                             .rows = 1 + (i * 3 + (uint32_t)t) % GEMV_ROWS_LIMIT,
                             .cols = i < 3 ? 256 : 1280,
                             .n_out = 3 - i % 2,
                             .out_rows = {i == 4 ? 300 : 100, 17, 31},
                             .others = i % 2 == 0 ? (uint32_t[]){4, 1, 6}[i / 2] : 1 + i / 3,
                             .other = pairs[t].second,
                             .bias = i == 0,
                             .norm = i != 5,
                             .gather = i == 1};
                uint64_t before = b.r.l.n_launches;
                check_product(&b, &p);
                EXPECT_EQ(b.r.l.n_launches - before, p.n_out + 1); // the first is checked twice
            }
        bench_close(&b);
    }
}

/* Sums of x are as large as can be: what is added to codes and taken away again must cancel. */
static void x_of_one_sign_multiplies_right(void) {
    bench b;
    rig_seed(SEED + 12);
    bench_open(&b, 0);
    for (size_t t = 0; t < INFERD_COUNT(all_types); t++)
        for (uint32_t i = 0; i < 4; i++) {
            product p = {.type = all_types[t],
                         .inner = inners[i % 2],
                         .out_type = CU_F32,
                         .rows = 1 + i * 2,
                         .cols = i < 2 ? 256 : 2304,
                         .n_out = 1,
                         .out_rows = {40},
                         .positive = true};
            check_product(&b, &p);
        }
    bench_close(&b);
}

static void three_matrices_share_x(void) {
    bench b;
    rig_seed(SEED + 7);
    bench_open(&b, 0);
    for (size_t t = 0; t < INFERD_COUNT(all_types); t++)
        for (uint32_t i = 0; i < 2; i++) {
            product p = {.type = all_types[t],
                         .inner = inners[i],
                         .out_type = inners[i],
                         .rows = 1 + (uint32_t)t % 4,
                         .cols = 256 + 1024 * i,
                         .n_out = 3 - (uint32_t)t % 2,
                         .out_rows = {100, 17, 31},
                         .bias = i == 0,
                         .norm = true};
            check_product(&b, &p);
        }
    bench_close(&b);
}

static void gated_pairs_come_out_as_one(void) {
    static const uint32_t cols[] = {256, 1024, 32}; // the last: gates small enough to bend
    bench b;
    rig_seed(SEED + 8);
    for (uint32_t n_sms = 0; n_sms < 2; n_sms++) {
        bench_open(&b, n_sms);
        for (size_t t = 0; t < INFERD_COUNT(all_types); t++)
            for (uint32_t i = 0; i < 3; i++) {
                if (!has_cols(all_types[t], cols[i])) continue;
                product p = {.type = all_types[t],
                             .inner = inners[i % 2],
                             .out_type = t % 2 == 0 || i == 2 ? CU_F32 : inners[i % 2],
                             .rows = 1 + ((uint32_t)t + i * 3) % GEMV_ROWS_LIMIT,
                             .cols = cols[i],
                             .n_out = 2,
                             .out_rows = {77, 77},
                             .norm = i == 0,
                             .glu = true,
                             .bias = t % 3 == 0,
                             .act = (glu_kind)((t + i) % 3)};
                check_product(&b, &p);
            }
        bench_close(&b);
    }
}

static void sums_go_into_the_stream(void) {
    bench b;
    rig_seed(SEED + 9);
    bench_open(&b, 0);
    for (size_t t = 0; t < INFERD_COUNT(all_types); t++)
        for (uint32_t rows = 1; rows <= 4; rows++) {
            product p = {.type = all_types[t],
                         .inner = inners[rows % 2],
                         .out_type = CU_F32,
                         .rows = rows,
                         .cols = 256,
                         .n_out = 1,
                         .out_rows = {33},
                         .add = true,
                         .bias = rows == 2};
            check_product(&b, &p);
        }
    bench_close(&b);
}

/* The second launch may begin while the first works; what it reads of it, it must have waited for.
 */
static void dependent_launches_wait_for_their_x(void) {
    bench b;
    rig_seed(SEED + 11);
    bench_open(&b, 0);
    b.r.l.dependent = b.r.device.cc_major >= 9;
    for (size_t t = 0; t < INFERD_COUNT(all_types); t++) {
        product first = {.type = DTYPE_Q8_0,
                         .inner = CU_BF16,
                         .out_type = CU_BF16,
                         .rows = 3,
                         .cols = 64,
                         .n_out = 1,
                         .out_rows = {256}};
        product second = first;
        second.type = all_types[t];
        second.out_type = CU_F32;
        second.cols = 256;
        second.out_rows[0] = 40;
        data d, e;
        data_make(&first, &b.r, &d);
        data_make(&second, &b.r, &e);
        e.a.x = d.a.out[0].out;
        e.a.x_stride = d.out_stride;
        gemv_launch(&b.r.l, b.g[0], &b.w, &d.a);
        gemv_launch(&b.r.l, b.g[0], &b.w, &e.a);
        size_t n_x = (size_t)first.rows * d.out_stride, n = (size_t)second.rows * e.out_stride;
        float *got = or_stop(malloc(n * sizeof *got));
        free(e.x);
        free(e.h);
        e.x = or_stop(malloc(n_x * sizeof *e.x));
        e.x_stride = d.out_stride;
        rig_get_f32(&b.r, CU_BF16, e.x, d.a.out[0].out, n_x);
        rig_get_f32(&b.r, CU_F32, got, e.a.out[0].out, n);
        make_h(&second, &e);
        check_out(&second, &e, 0, got);
        free(got);
        data_free(&b.r, &e);
        data_free(&b.r, &d);
    }
    bench_close(&b);
}

static void what_cannot_be_fused_is_refused(void) {
    bench b;
    bench_open(&b, 0);
    cu_matrix q4 = format_matrix(DTYPE_Q4_0, 64, 256, &b),
              q8 = format_matrix(DTYPE_Q8_0, 64, 256, &b);
    float norm = 1;
    matmul_args good = {.x_type = CU_BF16, .inner = CU_BF16, .rows = 4, .n_out = 2};
    for (int i = 0; i < 2; i++) good.out[i].w = q4, good.out[i].out_type = CU_BF16;
    matmul_args a = good;
    EXPECT(gemv_can_fuse(b.g[0], &a));
    EXPECT(!gemv_can_fuse(b.g[1], &a)); // of the other type
    a.rows = GEMV_ROWS_LIMIT + 1;
    EXPECT(!gemv_can_fuse(b.g[0], &a));
    a = good, a.out[1].w = q8; // formats differ
    EXPECT(!gemv_can_fuse(b.g[0], &a));
    a = good, a.out[1].w = format_matrix(DTYPE_Q4_1, 64, 256, &b); // minima or not
    EXPECT(!gemv_can_fuse(b.g[0], &a));
    a = good, a.out[1].w = format_matrix(DTYPE_Q4_0, 64, 288, &b); // columns differ
    EXPECT(!gemv_can_fuse(b.g[0], &a));
    cu_matrix q4k = format_matrix(DTYPE_Q4_K, 64, 256, &b),
              q6k = format_matrix(DTYPE_Q6_K, 64, 256, &b);
    a = good, a.out[0].w = q4k, a.out[1].w = q6k; // formats that have a kernel
    EXPECT(gemv_can_fuse(b.g[0], &a));
    a.glu = true;
    EXPECT(!gemv_can_fuse(b.g[0], &a));
    a.glu = false, a.n_out = 3, a.out[2] = good.out[0]; // three of them
    EXPECT(!gemv_can_fuse(b.g[0], &a));
    a.n_out = 2;
    gemv_allow_mixed(b.g[0], false);
    EXPECT(!gemv_can_fuse(b.g[0], &a));
    gemv_allow_mixed(b.g[0], true);
    a = good, a.glu = true;
    EXPECT(gemv_can_fuse(b.g[0], &a));
    a.out[1].w = format_matrix(DTYPE_Q4_0, 80, 256, &b); // of different rows
    EXPECT(!gemv_can_fuse(b.g[0], &a));
    a = good, a.add = true; // of two, and not float
    EXPECT(!gemv_can_fuse(b.g[0], &a));
    a.n_out = 1;
    EXPECT(!gemv_can_fuse(b.g[0], &a));
    a.out[0].out_type = CU_F32;
    EXPECT(gemv_can_fuse(b.g[0], &a));
    a = good, a.x_type = CU_F32; // float without a norm
    EXPECT(!gemv_can_fuse(b.g[0], &a));
    a.norm = &norm;
    EXPECT(gemv_can_fuse(b.g[0], &a));
    bench_close(&b);
}

/* The shapes of Llama 3.1 8B on 132 multiprocessors: how much more than its share the busiest one
 * reads. */
static void plans_fill_a_large_device(void) {
    static const struct {
        uint32_t rows, cols;
        bool glu;
    } shapes[] = {{6144, 4096, false},  {4096, 4096, false},   {14336, 4096, true},
                  {4096, 14336, false}, {128256, 4096, false}, {4096, 28672, false}};
    static const dtype types[] = {DTYPE_BF16, DTYPE_Q8_0, DTYPE_Q4_K, DTYPE_Q6_K};
    bench b;
    bench_open(&b, 132);
    b.w = (matmul_workspace){.partials_bytes = MATMUL_PARTIALS_BYTES,
                             .n_counters = MATMUL_COUNTERS,
                             .counters = b.w.counters};
    for (size_t i = 0; i < INFERD_COUNT(shapes); i++)
        for (size_t t = 0; t < INFERD_COUNT(types); t++)
            for (uint32_t rows = 1; rows <= 4; rows += 3) {
                matmul_args a = {
                    .rows = rows, .n_out = shapes[i].glu ? 2 : 1, .glu = shapes[i].glu};
                for (uint32_t j = 0; j < a.n_out; j++)
                    a.out[j].w = format_matrix(types[t], shapes[i].rows, shapes[i].cols, &b);
                gemv_plan p = gemv_plan_of(b.g[0], &b.w, &a);
                double ideal = (double)a.n_out * shapes[i].rows / 16 * shapes[i].cols / 64 / 132;
                double busiest =
                    (double)((p.n_units * p.splits + 131) / 132) * GEMV_WARPS * p.warp_tiles;
                EXPECT(p.blocks > 0 && busiest / ideal < 1.2);
                if (busiest / ideal >= 1.2 || getenv("GEMV_PLANS") != NULL)
                    printf(
                        "%s %u x %u, %u rows: %u blocks x %u slices, %u units, %u warps per slot, "
                        "%u tiles per warp: %.2f of its share\n",
                        dtype_about((uint32_t)types[t]).name, shapes[i].rows, shapes[i].cols, rows,
                        p.blocks, p.splits, p.n_units, p.slot_warps, p.warp_tiles, busiest / ideal);
            }
    b.w.n_counters = 0;
    bench_close(&b);
}

/* Both kinds of blocks end at about the same time: q, k, v of Llama 3.1 8B as Q4_K, Q4_K and Q6_K.
 */
static void two_formats_divide_the_blocks(void) {
    bench b;
    bench_open(&b, 132);
    b.w = (matmul_workspace){.partials_bytes = MATMUL_PARTIALS_BYTES,
                             .n_counters = MATMUL_COUNTERS,
                             .counters = b.w.counters};
    for (uint32_t rows = 1; rows <= 4; rows += 3) {
        matmul_args a = {.rows = rows, .n_out = 3};
        for (uint32_t j = 0; j < 3; j++)
            a.out[j].w =
                format_matrix(j < 2 ? DTYPE_Q4_K : DTYPE_Q6_K, j == 0 ? 4096 : 1024, 4096, &b);
        gemv_plan p = gemv_plan_of(b.g[0], &b.w, &a);
        uint32_t first = p.second_block, second = p.blocks - p.second_block;
        EXPECT(first > 0 && second > 0 && p.second_unit > 0 && p.second_unit < p.n_units);
        uint32_t turns = (p.second_unit + first - 1) / first,
                 second_turns = (p.n_units - p.second_unit + second - 1) / second;
        double busiest = fmax(turns * 640.0, second_turns * 896.0) * p.warp_tiles * GEMV_WARPS,
               ideal = (320 * 640.0 + 64 * 896.0) * 64 / (p.blocks * p.splits);
        EXPECT(busiest / ideal < 1.35);
        if (busiest / ideal >= 1.35 || getenv("GEMV_PLANS") != NULL)
            printf("%u rows: %u + %u blocks x %u slices, %u + %u units, %u warps per slot: %.2f of "
                   "its "
                   "share\n",
                   rows, first, second, p.splits, p.second_unit, p.n_units - p.second_unit,
                   p.slot_warps, busiest / ideal);
    }
    b.w.n_counters = 0;
    bench_close(&b);
}

/* 5 to 8 rows: a norm in the launch is read by each of its blocks, a gate is not. */
static void fusions_of_more_rows_must_pay(void) {
    bench b;
    float norm = 1;
    bench_open(&b, 132);
    b.w = (matmul_workspace){.partials_bytes = MATMUL_PARTIALS_BYTES,
                             .n_counters = MATMUL_COUNTERS,
                             .counters = b.w.counters};
    static const struct {
        uint32_t rows, cols, out_rows;
        bool norm, glu, pays;
    } cases[] = {{8, 1024, 3072, true, true, true},   {8, 1024, 2048, true, false, true},
                 {8, 2048, 8192, true, true, true},   {8, 4096, 14336, true, true, false},
                 {8, 4096, 14336, false, true, true}, {5, 4096, 6144, true, false, false},
                 {8, 4096, 4096, false, false, false}};
    for (size_t i = 0; i < INFERD_COUNT(cases); i++) {
        matmul_args a = {.rows = cases[i].rows, .n_out = cases[i].glu ? 2 : 1, .glu = cases[i].glu};
        if (cases[i].norm) a.norm = &norm;
        for (uint32_t j = 0; j < 2; j++)
            a.out[j].w = format_matrix(DTYPE_Q4_K, cases[i].out_rows, cases[i].cols, &b);
        bool pays = gemv_pays(b.g[0], &b.w, &a);
        EXPECT_EQ(pays, cases[i].pays);
        if (pays != cases[i].pays) printf("%u rows, %u columns\n", cases[i].rows, cases[i].cols);
        a.out[0].w = a.out[1].w = format_matrix(DTYPE_F16, cases[i].out_rows, cases[i].cols, &b);
        EXPECT(!gemv_pays(b.g[0], &b.w, &a)); // multiplied as floats
    }
    b.w.n_counters = 0;
    bench_close(&b);
}

/* ---- expansion ---- */

static void check_expanded(bench *b, const expand *e, dtype type, cu_type inner, uint32_t rows,
                           uint32_t cols, uint32_t begin, uint32_t n_rows) {
    uint32_t n_first = b->r.n_allocs, stride = up8(cols) + 16, n_wrong = 0;
    weights w = weights_make(&b->r, type, rows, cols);
    size_t n = (size_t)n_rows * stride;
    void *out = rig_alloc(&b->r, n * 2);
    expand_launch(&b->r.l, e, &w.m, begin, n_rows, out, stride);
    float *got = or_stop(malloc(n * sizeof *got));
    rig_get_f32(&b->r, inner, got, out, n);
    for (uint32_t i = 0; i < n_rows; i++)
        for (uint32_t j = 0; j < stride; j++) {
            double value = (double)got[(size_t)i * stride + j];
            double want = j < cols ? (double)w.v[(size_t)(begin + i) * cols + j] : 0;
            double allowed = fabs(want) * (output_error(inner) + 1e-7) + 0x1p-25;
            n_wrong += j < up8(cols) ? !(fabs(value - want) <= allowed) : !isnan(value);
        }
    if (n_wrong > 0)
        printf("%s as %s, rows %u to %u of %u, %u columns:\n", dtype_about((uint32_t)type).name,
               rig_type_name(inner), begin, begin + n_rows, rows, cols);
    EXPECT_EQ(n_wrong, 0);
    free(got);
    free(w.v);
    while (b->r.n_allocs > n_first) rig_free(&b->r, b->r.allocs[b->r.n_allocs - 1]);
}

static void expanded_weights_keep_their_values(void) {
    bench b;
    rig_seed(SEED + 10);
    bench_open(&b, 0);
    for (size_t i = 0; i < 2; i++) {
        expand *e = NULL;
        inferd_err err = {0};
        EXPECT_EQ(expand_create(b.r.module, &b.r.device, inners[i], &e, &err), INFERD_OK);
        for (size_t t = 0; t < INFERD_COUNT(all_types); t++) {
            for (uint32_t j = 0; j < 5; j++) {
                uint32_t cols =
                    has_cols(all_types[t], odd_cols[j]) ? odd_cols[j] : 256 + 256 * (j % 2);
                uint32_t rows = odd_rows[j % 4];
                check_expanded(&b, e, all_types[t], inners[i], rows, cols, 0, rows);
            }
            check_expanded(&b, e, all_types[t], inners[i], 100, 768, 32, 48);
            check_expanded(&b, e, all_types[t], inners[i], 100, 256, 21, 50);
            check_expanded(&b, e, all_types[t], inners[i], 100, 256, 15, 1);
        }
        check_expanded(&b, e, DTYPE_BF16, inners[i], 9, 37, 2, 5);
        check_expanded(&b, e, DTYPE_F32, inners[i], 9, 1, 0, 9);
        expand_destroy(e);
    }
    bench_close(&b);
}

static const test_case cases[] = {
    TEST(every_format_multiplies_right),
    TEST(columns_need_no_multiple_of_8),
    TEST(batches_end_with_the_matrix),
    TEST(columns_are_split_over_blocks),
    TEST(blocks_take_units_in_turn),
    TEST(long_rows_are_cut_for_shared_memory),
    TEST(small_workspace_takes_fewer_rows_at_a_time),
    TEST(norm_comes_before),
    TEST(x_of_one_sign_multiplies_right),
    TEST(two_formats_share_a_launch),
    TEST(two_formats_divide_the_blocks),
    TEST(three_matrices_share_x),
    TEST(gated_pairs_come_out_as_one),
    TEST(sums_go_into_the_stream),
    TEST(dependent_launches_wait_for_their_x),
    TEST(what_cannot_be_fused_is_refused),
    TEST(plans_fill_a_large_device),
    TEST(fusions_of_more_rows_must_pay),
    TEST(expanded_weights_keep_their_values),
};
TEST_MAIN(cases)
