/* test_cuda_skinny.c - 1 to 64 rows of activations times weights of every format on tensor cores,
 * against sums in double (cuda_products.h). */
#include "cuda/skinny.h"
#include "cuda_products.h"

static const cu_type inners[] = {CU_BF16, CU_F16};

typedef struct bench { // a device with what skinny needs
    cuda_rig r;
    skinny *s[2]; // by inner
    matmul_workspace w;
} bench;

static void bench_open(bench *b, uint32_t n_sms, size_t partials_bytes) {
    memset(b, 0, sizeof *b);
    rig_open(&b->r);
    rig_seed(PRODUCT_SEED);
    inferd_err err = {0};
    cu_device d = b->r.device;
    d.n_sms = n_sms;
    for (int i = 0; i < 2; i++)
        if (skinny_create(b->r.module, &d, inners[i], &b->s[i], &err) != INFERD_OK)
            printf("skinny_create: %s\n", err.text), exit(1);
    b->w.n_counters = 4096;
    b->w.counters = rig_alloc(&b->r, b->w.n_counters * 4);
    rig_fill(&b->r, b->w.counters, 0, b->w.n_counters * 4);
    b->w.partials_bytes = partials_bytes;
    b->w.partials = rig_alloc(&b->r, partials_bytes);
}

static void bench_close(bench *b) {
    uint32_t counters[4096], sum = 0;
    rig_read(&b->r, counters, b->w.counters, sizeof counters);
    for (uint32_t i = 0; i < 4096; i++) sum |= counters[i];
    EXPECT_EQ(sum, 0); // as they were
    skinny_destroy(b->s[0]);
    skinny_destroy(b->s[1]);
    rig_close(&b->r);
}

static const skinny *of(const bench *b, cu_type inner) {
    return b->s[inner == CU_F16];
}

/* Block elements: K quants come in blocks of 256. */
static uint32_t fit_cols(dtype type, uint32_t cols) {
    uint32_t block = dtype_about((uint32_t)type).block_elems;
    return (cols + block - 1) / block * block;
}

static void check(bench *b, const product_spec *s) {
    product p;
    product_make(&p, &b->r, s);
    EXPECT(skinny_can_fuse(of(b, s->inner), &p.a));
    skinny_launch(&b->r.l, of(b, s->inner), &b->w, &p.a);
    product_check(&p, &b->r);
    product_free(&p, &b->r);
}

/* ---- every format and number of rows ---- */

static void every_format_at(uint32_t rows) {
    static const uint32_t shapes[][2] = {{33, 96}, {100, 160}, {16, 320}};
    bench b;
    bench_open(&b, 2, 1 << 20);
    for (size_t t = 0; t < INFERD_COUNT(product_types); t++)
        for (size_t i = 0; i < 2; i++)
            for (size_t j = 0; j < 3; j++)
                check(&b, &(product_spec){.type = product_types[t],
                                          .inner = inners[i],
                                          .out_type = (t + i + j) % 2 == 0 ? CU_F32 : inners[i],
                                          .rows = rows,
                                          .cols = fit_cols(product_types[t], shapes[j][1]),
                                          .n_out = 1,
                                          .w_rows = {shapes[j][0]}});
    bench_close(&b);
}

static void one_row_is_right(void) {
    every_format_at(1);
}
static void five_rows_are_right(void) {
    every_format_at(5);
}
static void eight_rows_are_right(void) {
    every_format_at(8);
}
static void thirteen_rows_are_right(void) {
    every_format_at(13);
}
static void seventeen_rows_are_right(void) {
    every_format_at(17);
}
static void thirty_three_rows_are_right(void) {
    every_format_at(33);
}
static void sixty_four_rows_are_right(void) {
    every_format_at(64);
}

/* What stands behind the last column of x is NaN, and is not multiplied even by zero. */
/* Sums of x are as large as can be: what is added to codes and taken away again must cancel. */
static void x_of_one_sign_multiplies_right(void) {
    static const uint32_t rows[] = {7, 12, 30, 50};
    bench b;
    bench_open(&b, 2, 1 << 20);
    for (size_t t = 0; t < INFERD_COUNT(product_types); t++)
        for (size_t i = 0; i < 4; i++)
            check(&b, &(product_spec){.type = product_types[t],
                                      .inner = inners[i % 2],
                                      .out_type = CU_F32,
                                      .rows = rows[i],
                                      .cols = fit_cols(product_types[t], 320),
                                      .n_out = 1,
                                      .w_rows = {40},
                                      .positive = true});
    bench_close(&b);
}

static void odd_shapes_of_dense_weights_are_right(void) {
    static const dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    bench b;
    bench_open(&b, 3, 1 << 20);
    for (uint32_t i = 0; i < 90; i++) {
        cu_type inner = inners[i % 2];
        check(&b, &(product_spec){.type = types[i % 3],
                                  .inner = inner,
                                  .out_type = i % 5 < 2 ? CU_F32 : inner,
                                  .rows = 1 + rig_below(64),
                                  .cols = 1 + rig_below(330),
                                  .n_out = 1,
                                  .w_rows = {1 + rig_below(150)},
                                  .bias = i % 4 == 1});
    }
    bench_close(&b);
}

static void bias_and_residual_are_added(void) {
    bench b;
    bench_open(&b, 4, 1 << 20);
    for (uint32_t i = 0; i < 48; i++) {
        dtype type = product_types[i % INFERD_COUNT(product_types)];
        cu_type inner = inners[i % 2];
        bool add = i % 3 == 0;
        check(&b, &(product_spec){.type = type,
                                  .inner = inner,
                                  .out_type = add ? CU_F32 : inner,
                                  .rows = 1 + rig_below(64),
                                  .cols = fit_cols(type, 32 + rig_below(300)),
                                  .n_out = 1,
                                  .w_rows = {16 + rig_below(90)},
                                  .bias = i % 4 != 0,
                                  .add = add});
    }
    bench_close(&b);
}

/* ---- one launch for several matrices ---- */

static void three_matrices_are_one_launch(void) {
    bench b;
    bench_open(&b, 6, 1 << 20);
    for (size_t t = 0; t < INFERD_COUNT(product_types); t++) {
        product p;
        product_make(&p, &b.r,
                     &(product_spec){.type = product_types[t],
                                     .inner = inners[t % 2],
                                     .out_type = inners[t % 2],
                                     .rows = 6 + 9 * (uint32_t)(t % 6),
                                     .cols = 256,
                                     .n_out = 3,
                                     .w_rows = {100, 17, 33},
                                     .bias = true});
        uint64_t before = b.r.l.n_launches;
        EXPECT(skinny_can_fuse(of(&b, p.spec.inner), &p.a));
        skinny_launch(&b.r.l, of(&b, p.spec.inner), &b.w, &p.a);
        EXPECT_EQ(b.r.l.n_launches, before + 1);
        product_check(&p, &b.r);
        product_free(&p, &b.r);
    }
    bench_close(&b);
}

static void what_one_launch_cannot_do_is_said(void) {
    bench b;
    bench_open(&b, 6, 1 << 20);
    product p;
    product_make(&p, &b.r,
                 &(product_spec){.type = DTYPE_Q4_0,
                                 .inner = CU_BF16,
                                 .out_type = CU_F32,
                                 .rows = 8,
                                 .cols = 64,
                                 .n_out = 2,
                                 .w_rows = {16, 16}});
    const skinny *s = of(&b, CU_BF16);
    matmul_args a = p.a;
    EXPECT(skinny_can_fuse(s, &a));
    a.rows = 65;
    EXPECT(!skinny_can_fuse(s, &a));
    a = p.a, a.norm = (const float *)p.a.x;
    EXPECT(!skinny_can_fuse(s, &a));
    a = p.a, a.glu = true;
    EXPECT(!skinny_can_fuse(s, &a));
    a = p.a, a.add = true; // of one matrix only
    EXPECT(!skinny_can_fuse(s, &a));
    a = p.a, a.out[1].w.format = CU_FMT_Q4M;
    EXPECT(!skinny_can_fuse(s, &a));
    a = p.a, a.out[1].w.cols = 128;
    EXPECT(!skinny_can_fuse(s, &a));
    a = p.a, a.out[0].out_type = CU_F16; // the other 16-bit type
    EXPECT(!skinny_can_fuse(s, &a));
    EXPECT(!skinny_can_fuse(of(&b, CU_F16), &p.a));
    product_free(&p, &b.r);
    bench_close(&b);
}

/* ---- splits ---- */

/* Blocks and threads in another order each time: the same bits, and counters as they were. */
static void split_columns_give_the_same_bits_each_time(void) {
    bench b;
    bench_open(&b, 24, 4 << 20);
    for (size_t t = 0; t < INFERD_COUNT(product_types); t++) {
        product p;
        product_spec s = {.type = product_types[t],
                          .inner = inners[t % 2],
                          .out_type = CU_F32,
                          .rows = 7 + 8 * (uint32_t)(t % 7),
                          .cols = 2048,
                          .n_out = 2,
                          .w_rows = {33, 100}};
        product_make(&p, &b.r, &s);
        EXPECT(skinny_plan_of(of(&b, s.inner), &b.w, &p.a).splits > 2);
        unsigned char *first = NULL;
        size_t n = 0;
        for (uint64_t seed = 1; seed <= 3; seed++) {
            emul_set_options(&(emul_options){.seed = seed, .shuffle = seed > 1});
            product_reset(&p, &b.r);
            skinny_launch(&b.r.l, of(&b, s.inner), &b.w, &p.a);
            product_check(&p, &b.r);
            unsigned char *bits = product_bits(&p, &b.r, &n);
            if (first != NULL) EXPECT(memcmp(first, bits, n) == 0);
            if (first == NULL)
                first = bits;
            else
                free(bits);
        }
        free(first);
        product_free(&p, &b.r);
    }
    emul_set_options(&(emul_options){.seed = 1});
    bench_close(&b);
}

static void splits_keep_within_the_workspace(void) {
    bench b;
    bench_open(&b, 64, 3000);
    product p;
    product_make(&p, &b.r,
                 &(product_spec){.type = DTYPE_Q8_0,
                                 .inner = CU_F16,
                                 .out_type = CU_F16,
                                 .rows = 5,
                                 .cols = 4096,
                                 .n_out = 1,
                                 .w_rows = {32}});
    const skinny *s = of(&b, CU_F16);
    EXPECT_EQ(skinny_plan_of(s, &b.w, &p.a).splits, 4); // 5 rows x 32 floats are 640 bytes
    skinny_launch(&b.r.l, s, &b.w, &p.a);
    product_check(&p, &b.r);
    b.w.n_counters = 0;
    EXPECT_EQ(skinny_plan_of(s, &b.w, &p.a).splits, 1);
    skinny_launch(&b.r.l, s, &b.w, &p.a);
    product_check(&p, &b.r);
    b.w.n_counters = 4096;
    product_free(&p, &b.r);
    bench_close(&b);
}

static void plans_fill_the_device(void) {
    static const struct {
        uint32_t rows, n, k;
    } shapes[] = {
        {8, 4096, 4096}, {16, 4096, 14336}, {64, 4096, 4096}, {64, 28672, 4096}, {32, 6144, 4096}};
    bench b;
    bench_open(&b, 132, 16 << 20);
    for (size_t i = 0; i < INFERD_COUNT(shapes); i++)
        for (uint32_t f = 0; f < CU_FORMATS; f++) {
            matmul_args a = {.rows = shapes[i].rows, .n_out = 1};
            a.out[0].w = (cu_matrix){.rows = shapes[i].n, .cols = shapes[i].k, .format = f};
            skinny_plan p = skinny_plan_of(of(&b, CU_BF16), &b.w, &a);
            EXPECT(p.blocks * p.splits >= 100);
            EXPECT(p.splits <= p.n_stages);
            EXPECT((size_t)p.blocks * p.splits * a.rows * p.cut.rows * 4 <= b.w.partials_bytes ||
                   p.splits == 1);
        }
    bench_close(&b);
}

/* ---- where it runs, what it leaves alone ---- */

static void shared_memory_fits_the_smallest_device(void) {
    enum { SMALLEST = 99 << 10 }; // compute capability 8.6 and 8.9
    static const uint32_t n_tiles[] = {1, 2, 4, 8};
    for (uint32_t f = 0; f < CU_FORMATS; f++)
        for (int i = 0; i < 4; i++) EXPECT(skinny_cut_of(f, n_tiles[i]).shared_bytes <= SMALLEST);
}

/* Output rows that begin anywhere, as those of a caller with other strides would. */
static void unaligned_outputs_are_written_one_by_one(void) {
    bench b;
    bench_open(&b, 2, 1 << 20);
    for (int i = 0; i < 4; i++) {
        product p;
        product_make(&p, &b.r,
                     &(product_spec){.type = DTYPE_Q5_1,
                                     .inner = CU_BF16,
                                     .out_type = i % 2 == 0 ? CU_F32 : CU_BF16,
                                     .rows = 11,
                                     .cols = 64,
                                     .n_out = 1,
                                     .w_rows = {38}});
        p.out_stride = p.a.out[0].out_stride = i < 2 ? 43 : 45;
        EXPECT(p.a.out[0].out_stride % 4 != 0);
        skinny_launch(&b.r.l, of(&b, CU_BF16), &b.w, &p.a);
        product_check(&p, &b.r);
        product_free(&p, &b.r);
    }
    bench_close(&b);
}

/* A bf16 weight that f16 cannot hold: infinite, not the largest number that it can. */
static void weights_beyond_f16_are_seen(void) {
    bench b;
    bench_open(&b, 2, 1 << 20);
    product p;
    product_make(&p, &b.r,
                 &(product_spec){.type = DTYPE_BF16,
                                 .inner = CU_F16,
                                 .out_type = CU_F32,
                                 .rows = 5,
                                 .cols = 16,
                                 .n_out = 1,
                                 .w_rows = {16}});
    uint16_t big = f32_to_bf16(100000.0f);
    rig_write(&b.r, (uint16_t *)p.a.out[0].w.data + p.a.out[0].w.stride * 3, &big, 2);
    skinny_launch(&b.r.l, of(&b, CU_F16), &b.w, &p.a);
    float out[5 * 24];
    rig_get_f32(&b.r, CU_F32, out, p.a.out[0].out, 5 * p.out_stride);
    for (uint32_t i = 0; i < 5; i++) {
        EXPECT(isinf(out[i * p.out_stride + 3]));
        EXPECT(isfinite(out[i * p.out_stride + 2]));
    }
    product_free(&p, &b.r);
    bench_close(&b);
}

/* Every block waits for its predecessor before it reads x; see README.md of the emulation. */
static void dependent_launches_wait(void) {
    bench b;
    bench_open(&b, 8, 1 << 20);
    b.r.l.dependent = b.r.device.cc_major >= 9;
    for (size_t t = 0; t < INFERD_COUNT(product_types); t++) {
        check(&b, &(product_spec){.type = product_types[t],
                                  .inner = CU_BF16,
                                  .out_type = CU_F32,
                                  .rows = 9,
                                  .cols = 512,
                                  .n_out = 1,
                                  .w_rows = {48},
                                  .add = true});
        if (!rig_is_real(&b.r)) EXPECT(emul_waited() && emul_released());
    }
    bench_close(&b);
}

/* What skinny.cu says it moves: weights once, x once per block.  And ldmatrix meets no bank twice.
 */
static void weights_are_read_once(void) {
    bench b;
    bench_open(&b, 4, 1 << 20);
    for (uint32_t i = 0; i < INFERD_COUNT(product_types) * 4 && !rig_is_real(&b.r); i++) {
        dtype type = product_types[i / 4];
        product p;
        product_make(&p, &b.r,
                     &(product_spec){.type = type,
                                     .inner = CU_BF16,
                                     .out_type = CU_F32,
                                     .rows = 8u << i % 4,
                                     .cols = 512,
                                     .n_out = 1,
                                     .w_rows = {256}});
        skinny_plan plan = skinny_plan_of(of(&b, CU_BF16), &b.w, &p.a);
        skinny_launch(&b.r.l, of(&b, CU_BF16), &b.w, &p.a);
        rig_sync(&b.r);
        emul_counts c;
        emul_get_counts(&c);
        EXPECT_EQ(c.n_ldmatrix_conflicts, 0);
        EXPECT_EQ(c.copy_bytes, (256 / TILE_ROWS) * (512 / TILE_COLS) * plan.cut.tile_bytes +
                                    plan.blocks * p.spec.rows * 512 * 2);
        product_free(&p, &b.r);
    }
    bench_close(&b);
}

static const test_case cases[] = {
    TEST(one_row_is_right),
    TEST(five_rows_are_right),
    TEST(eight_rows_are_right),
    TEST(thirteen_rows_are_right),
    TEST(seventeen_rows_are_right),
    TEST(thirty_three_rows_are_right),
    TEST(sixty_four_rows_are_right),
    TEST(x_of_one_sign_multiplies_right),
    TEST(odd_shapes_of_dense_weights_are_right),
    TEST(bias_and_residual_are_added),
    TEST(three_matrices_are_one_launch),
    TEST(what_one_launch_cannot_do_is_said),
    TEST(split_columns_give_the_same_bits_each_time),
    TEST(splits_keep_within_the_workspace),
    TEST(plans_fill_the_device),
    TEST(shared_memory_fits_the_smallest_device),
    TEST(unaligned_outputs_are_written_one_by_one),
    TEST(weights_beyond_f16_are_seen),
    TEST(dependent_launches_wait),
    TEST(weights_are_read_once),
};
TEST_MAIN(cases)
