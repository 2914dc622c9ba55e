/* test_cuda_matmul.c - which way products go, and the large way.
 *
 * Values are checked against sums in double (cuda_products.h), ways by their counters and by which
 * kernels were launched. */
#include "cuda_products.h"

static const cu_type inners[] = {CU_BF16, CU_F16};

typedef struct bench { // a device with what matmul needs
    cuda_rig r;
    matmul *mm;
    matmul_workspace w;
    matmul_paths before;
} bench;

typedef struct bench_options {
    cu_type inner;
    bool no_lt;
    bool groups;         // the part skinny128
    size_t expand_bytes; // 0: 1 MiB
} bench_options;

static void bench_open(bench *b, const bench_options *o) {
    memset(b, 0, sizeof *b);
    rig_open(&b->r);
    rig_seed(PRODUCT_SEED);
    inferd_err err = {0};
    if (!o->no_lt && b->r.api->lt_open(NULL) != CU_OK)
        printf("lt_open: %s\n", b->r.api->text()), exit(1);
    if (rows_init(b->r.module, &b->r.device, &err) != INFERD_OK || // for launch_bias
        matmul_create(b->r.module, &b->r.device, o->inner, !o->no_lt, NULL, &b->mm, &err) !=
            INFERD_OK)
        printf("opening: %s\n", err.text), exit(1);
    b->w = (matmul_workspace){.partials_bytes = 1 << 20,
                              .n_counters = 4096,
                              .lt_bytes = 2 << 20,
                              .expand_bytes = o->expand_bytes > 0 ? o->expand_bytes : 1 << 20};
    b->w.counters = rig_alloc(&b->r, b->w.n_counters * 4);
    rig_fill(&b->r, b->w.counters, 0, b->w.n_counters * 4);
    b->w.partials = rig_alloc(&b->r, b->w.partials_bytes);
    b->w.lt = rig_alloc(&b->r, b->w.lt_bytes);
    b->w.expand = rig_alloc(&b->r, b->w.expand_bytes);
    matmul_set_workspace(b->mm, &b->w);
    matmul_allow(b->mm, true, true, o->groups);
}

static void bench_close(bench *b) {
    matmul_destroy(b->mm);
    rig_close(&b->r);
}

/* What was counted since the last time. */
static matmul_paths ways(bench *b) {
    matmul_paths now, d;
    matmul_count_paths(b->mm, &now);
    d = (matmul_paths){.gemv = now.gemv - b->before.gemv,
                       .skinny = now.skinny - b->before.skinny,
                       .lt = now.lt - b->before.lt,
                       .expanded = now.expanded - b->before.expanded,
                       .skinny_large = now.skinny_large - b->before.skinny_large};
    b->before = now;
    return d;
}

static void expect_ways(bench *b, matmul_paths want, const char *what) {
    matmul_paths got = ways(b);
    if (memcmp(&got, &want, sizeof got) == 0) return;
    printf("%s: went %" PRIu64 " gemv, %" PRIu64 " skinny, %" PRIu64 " lt, %" PRIu64
           " expanded, %" PRIu64 " skinny_large\n",
           what, got.gemv, got.skinny, got.lt, got.expanded, got.skinny_large);
    test_failures++;
}

/* Launches of kernels whose name begins so. */
static uint64_t launches_of(const bench *b, const char *prefix) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < b->r.module->n_kernels; i++)
        if (strncmp(b->r.module->kernels[i].name, prefix, strlen(prefix)) == 0)
            n += b->r.n_by_kernel[i];
    return n;
}

static bool is_type(dtype type, cu_type inner) {
    return type == (inner == CU_BF16 ? DTYPE_BF16 : DTYPE_F16);
}

static bool fails_on_demand(void) {
    cuda_rig r = {0};
    rig_find_module(&r);
    return !rig_is_real(&r);
}

/* bias after the library: the output is rounded before it and after */
static void check(bench *b, const product *p) {
    for (uint32_t i = 0; i < p->spec.n_out; i++)
        product_check_one(p, &b->r, i, p->spec.bias && p->spec.rows > SKINNY_ROWS_MAX ? 2 : 1);
}

static void run(bench *b, const product_spec *s, matmul_paths want) {
    product p;
    char what[80];
    snprintf(what, sizeof what, "%s, %u rows", dtype_about((uint32_t)s->type).name, s->rows);
    product_make(&p, &b->r, s);
    if (want.expanded > 0) product_round_weights(&p, UINT32_MAX);
    launch_matmul(&b->r.l, b->mm, &p.a);
    check(b, &p);
    /* a real library need not take odd shapes */
    bool odd = (s->rows | s->cols | s->w_rows[0]) % 8 != 0 && rig_is_real(&b->r);
    if (odd && s->rows > SKINNY_ROWS_MAX)
        ways(b);
    else
        expect_ways(b, want, what);
    product_free(&p, &b->r);
}

/* ---- which way ---- */

/* Also: nothing up to 64 rows is ever expanded, nor up to 128 with groups. */
static void rows_and_format_choose_the_way(void) {
    static const uint32_t rows[] = {1, 4, 5, 64, 65, 130};
    for (int i = 0; i < 4; i++)
        for (int no_lt = 0; no_lt < 2; no_lt++) {
            bench b;
            cu_type inner = inners[i % 2];
            bool allowed = i < 2;
            bench_open(&b,
                       &(bench_options){.inner = inner, .no_lt = no_lt == 1, .groups = allowed});
            for (size_t t = 0; t < INFERD_COUNT(product_types); t++)
                for (size_t j = 0; j < INFERD_COUNT(rows); j++) {
                    bool dense = is_type(product_types[t], inner),
                         groups = allowed && !dense && rows[j] == 65,
                         large = rows[j] > SKINNY_ROWS_MAX && !groups;
                    uint64_t expanded = launches_of(&b, "expand_");
                    matmul_paths want = {
                        .gemv = rows[j] <= GEMV_ROWS_MAX && !dense,
                        .skinny = groups ? 2 : (rows[j] > GEMV_ROWS_MAX || dense) && !large,
                        .lt = large && !no_lt && dense,
                        .expanded = large && !no_lt && !dense,
                        .skinny_large = large && no_lt};
                    run(&b,
                        &(product_spec){.type = product_types[t],
                                        .inner = inner,
                                        .out_type = inner,
                                        .rows = rows[j],
                                        .cols = 256,
                                        .n_out = 1,
                                        .w_rows = {48}},
                        want);
                    EXPECT_EQ(launches_of(&b, "expand_") - expanded, want.expanded);
                }
            bench_close(&b);
        }
}

/* Rows of the second group, three matrices at once, a residual, odd widths. */
static void groups_of_rows_are_right(void) {
    static const uint32_t rows[] = {66, 97, 128};
    bench b;
    bench_open(&b, &(bench_options){.inner = CU_BF16, .groups = true});
    for (size_t t = 0; t < INFERD_COUNT(product_types); t++)
        for (size_t j = 0; j < INFERD_COUNT(rows); j++) {
            uint32_t block = dtype_about((uint32_t)product_types[t]).block_elems;
            if (is_type(product_types[t], CU_BF16)) continue;
            run(&b,
                &(product_spec){.type = product_types[t],
                                .inner = CU_BF16,
                                .out_type = j == 1 ? CU_F32 : CU_BF16,
                                .rows = rows[j],
                                .cols = (96 + block - 1) / block * block,
                                .n_out = j == 1 ? 1 : 3,
                                .w_rows = {33, 16, 50},
                                .bias = j == 0,
                                .add = j == 1},
                (matmul_paths){.skinny = 2});
        }
    bench_close(&b);
}

static void what_may_be_fused_depends_on_rows(void) {
    bench b;
    product p;
    bench_open(&b, &(bench_options){.inner = CU_BF16, .groups = true});
    product_make(&p, &b.r,
                 &(product_spec){.type = DTYPE_Q4_0,
                                 .inner = CU_BF16,
                                 .out_type = CU_BF16,
                                 .rows = 65,
                                 .cols = 64,
                                 .n_out = 3,
                                 .w_rows = {16, 16, 16}});
    static const struct {
        uint32_t rows;
        bool three, normed, gated, other_format;
    } table[] = {{1, true, true, true, false},     {4, true, true, true, false},
                 {5, true, true, true, false}, // of small matrices: it pays
                 {8, true, true, true, false},     {9, true, false, false, false},
                 {64, true, false, false, false},  {65, true, false, false, false}, // 64 and 1
                 {129, false, false, false, false}};
    for (size_t i = 0; i < INFERD_COUNT(table); i++) {
        matmul_args a = p.a;
        a.rows = table[i].rows;
        EXPECT_EQ(matmul_can_fuse(b.mm, &a), table[i].three);
        a.out[1].w.format = CU_FMT_Q8;
        EXPECT_EQ(matmul_can_fuse(b.mm, &a), table[i].other_format);
        a.n_out = 1;
        EXPECT(matmul_can_fuse(b.mm, &a));
        a = p.a, a.rows = table[i].rows, a.norm = (const float *)p.a.x;
        EXPECT_EQ(matmul_can_fuse(b.mm, &a), table[i].normed);
        a = p.a, a.rows = table[i].rows, a.glu = true, a.n_out = 2;
        EXPECT_EQ(matmul_can_fuse(b.mm, &a), table[i].gated);
    }
    matmul_allow(b.mm, true, false, true); // no more than 4 rows
    matmul_args a = p.a;
    a.rows = 5, a.glu = true, a.n_out = 2;
    EXPECT(!matmul_can_fuse(b.mm, &a));
    product_free(&p, &b.r);
    bench_close(&b);
}

/* Matrices of different formats are as many launches, at any number of rows. */
static void matrices_that_cannot_be_one_launch_are_several(void) {
    static const uint32_t rows[] = {2, 20, 80};
    bench b;
    bench_open(&b, &(bench_options){.inner = CU_F16});
    for (int i = 0; i < 3; i++) {
        product p, q;
        product_spec s = {.type = DTYPE_Q4_K,
                          .inner = CU_F16,
                          .out_type = CU_F16,
                          .rows = rows[i],
                          .cols = 256,
                          .n_out = 2,
                          .w_rows = {32, 40}};
        product_make(&p, &b.r, &s);
        s.type = DTYPE_F16, s.n_out = 1;
        product_make(&q, &b.r, &s);
        matmul_args a = p.a;
        a.out[2] = q.a.out[0];
        a.n_out = 3;
        q.a.x = p.a.x; // the same x
        memcpy(q.x, p.x, (size_t)s.rows * s.cols * sizeof *q.x);
        EXPECT(!matmul_can_fuse(b.mm, &a));
        launch_matmul(&b.r.l, b.mm, &a);
        if (i == 2) product_round_weights(&p, UINT32_MAX);
        product_check(&p, &b.r);
        product_check(&q, &b.r);
        matmul_paths want = {.gemv = i == 0 ? 3 : 0,
                             .skinny = i == 1 ? 3 : 0,
                             .lt = i == 2,
                             .expanded = i == 2 ? 2 : 0};
        expect_ways(&b, want, "two formats");
        product_free(&q, &b.r);
        product_free(&p, &b.r);
    }
    bench_close(&b);
}

/* ---- the large way ---- */

static void large_products_are_right(void) {
    for (int i = 0; i < 2; i++) {
        bench b;
        bench_open(&b, &(bench_options){.inner = inners[i]});
        for (uint32_t j = 0; j < 44; j++) {
            dtype type = product_types[j % INFERD_COUNT(product_types)];
            uint32_t block = dtype_about((uint32_t)type).block_elems;
            bool add = j % 3 == 0, dense = is_type(type, inners[i]);
            run(&b,
                &(product_spec){.type = type,
                                .inner = inners[i],
                                .out_type = add || j % 5 == 1 ? CU_F32 : inners[i],
                                .rows = 65 + rig_below(70),
                                .cols = (1 + rig_below(300) + block - 1) / block * block,
                                .n_out = 1,
                                .w_rows = {1 + rig_below(200)},
                                .bias = j % 4 < 2,
                                .add = add},
                (matmul_paths){.lt = dense, .expanded = !dense});
        }
        bench_close(&b);
    }
}

/* Scratch for 128 rows of 256 columns: 500 rows are four blocks. */
static void matrices_are_expanded_in_pieces_that_fit(void) {
    bench b;
    bench_open(&b, &(bench_options){.inner = CU_BF16, .expand_bytes = 128 * 256 * 2 + 100});
    for (size_t t = 0; t < INFERD_COUNT(product_types); t++) {
        if (is_type(product_types[t], CU_BF16)) continue;
        uint64_t expanded = launches_of(&b, "expand_");
        run(&b,
            &(product_spec){.type = product_types[t],
                            .inner = CU_BF16,
                            .out_type = t % 2 == 0 ? CU_F32 : CU_BF16,
                            .rows = 66,
                            .cols = 256,
                            .n_out = 1,
                            .w_rows = {500},
                            .bias = true,
                            .add = t % 2 == 0},
            (matmul_paths){.expanded = 1});
        EXPECT_EQ(launches_of(&b, "expand_") - expanded, 4);
    }
    bench_close(&b);
}

static void scratch_too_small_goes_through_skinny(void) {
    bench b;
    bench_open(&b, &(bench_options){.inner = CU_BF16, .expand_bytes = 128 * 256 * 2 - 1});
    run(&b,
        &(product_spec){.type = DTYPE_Q6_K,
                        .inner = CU_BF16,
                        .out_type = CU_F32,
                        .rows = 70,
                        .cols = 256,
                        .n_out = 1,
                        .w_rows = {40}},
        (matmul_paths){.skinny_large = 1});
    EXPECT_EQ(launches_of(&b, "expand_"), 0);
    bench_close(&b);
}

/* Columns of a wider buffer: 16 bytes along, where cuBLASLt was promised 256. */
static void outputs_that_the_library_cannot_have_go_through_skinny(void) {
    bench b;
    product p;
    bench_open(&b, &(bench_options){.inner = CU_BF16});
    product_make(&p, &b.r,
                 &(product_spec){.type = DTYPE_BF16,
                                 .inner = CU_BF16,
                                 .out_type = CU_BF16,
                                 .rows = 100,
                                 .cols = 64,
                                 .n_out = 1,
                                 .w_rows = {40}});
    p.a.x = (const uint16_t *)p.a.x + 8; // the last 64 of 72 columns
    p.spec.rows = p.a.rows = 99;
    for (uint32_t i = 0; i < 99; i++)
        for (uint32_t k = 0; k < 64; k++) p.x[i * 64 + k] = 1;
    uint16_t one = f32_to_bf16(1), row[64];
    for (int k = 0; k < 64; k++) row[k] = one;
    for (uint32_t i = 0; i < 99; i++)
        rig_write(&b.r, (uint16_t *)p.a.x + i * p.a.x_stride, row, sizeof row);
    launch_matmul(&b.r.l, b.mm, &p.a);
    product_check_one(&p, &b.r, 0, 1);
    expect_ways(&b, (matmul_paths){.skinny_large = 1}, "x at 16 bytes");
    product_free(&p, &b.r);
    bench_close(&b);
}

/* The library takes the first block and then none: the rest is not lost, and not added twice. */
static void what_the_library_refuses_goes_through_skinny(void) {
    if (!fails_on_demand()) SKIP("a GPU does not fail on demand");
    for (uint32_t n = 1; n <= 3; n++) {
        bench b;
        product p;
        bench_open(&b, &(bench_options){.inner = CU_F16, .expand_bytes = 128 * 256 * 2});
        product_make(&p, &b.r,
                     &(product_spec){.type = DTYPE_Q5_K,
                                     .inner = CU_F16,
                                     .out_type = CU_F32,
                                     .rows = 67,
                                     .cols = 256,
                                     .n_out = 1,
                                     .w_rows = {300},
                                     .bias = true,
                                     .add = true});
        fake_fail_call_always("lt_matmul", n, CU_EUNSUPPORTED);
        launch_matmul(&b.r.l, b.mm, &p.a);
        fake_fail_call_always("lt_matmul", 0, CU_OK);
        product_round_weights(&p, 128 * (n - 1));
        product_check(&p, &b.r);
        expect_ways(&b, (matmul_paths){.expanded = n > 1, .skinny_large = 1}, "refused");
        product_free(&p, &b.r);
        bench_close(&b);
    }
}

/* A choice that is refused for this number of rows is replaced by one that is taken. */
static void a_refused_choice_is_replaced(void) {
    if (!fails_on_demand()) SKIP("a GPU does not fail on demand");
    bench b;
    product p;
    bench_open(&b, &(bench_options){.inner = CU_BF16});
    product_make(&p, &b.r,
                 &(product_spec){.type = DTYPE_BF16,
                                 .inner = CU_BF16,
                                 .out_type = CU_BF16,
                                 .rows = 90,
                                 .cols = 64,
                                 .n_out = 1,
                                 .w_rows = {40}});
    launch_matmul(&b.r.l, b.mm, &p.a);
    uint64_t asked = fake_calls("lt_candidates");
    fake_fail_call("lt_matmul", 1, CU_EINVAL);
    launch_matmul(&b.r.l, b.mm, &p.a);
    EXPECT_EQ(fake_calls("lt_candidates"), asked + 1);
    launch_matmul(&b.r.l, b.mm, &p.a); // it is remembered
    EXPECT_EQ(fake_calls("lt_candidates"), asked + 1);
    product_check(&p, &b.r);
    expect_ways(&b, (matmul_paths){.lt = 3}, "replaced");
    EXPECT_EQ(b.r.l.status, CU_OK);
    product_free(&p, &b.r);
    bench_close(&b);
}

/* A lost device is a failure, not a reason to try another way. */
static void a_lost_device_is_reported(void) {
    if (!fails_on_demand()) SKIP("a GPU does not fail on demand");
    bench b;
    product p;
    bench_open(&b, &(bench_options){.inner = CU_BF16});
    product_make(&p, &b.r,
                 &(product_spec){.type = DTYPE_BF16,
                                 .inner = CU_BF16,
                                 .out_type = CU_BF16,
                                 .rows = 90,
                                 .cols = 64,
                                 .n_out = 1,
                                 .w_rows = {40}});
    fake_fail_call("lt_matmul", 1, CU_ENOMEM);
    launch_matmul(&b.r.l, b.mm, &p.a);
    EXPECT_EQ(b.r.l.status, CU_ENOMEM);
    EXPECT(strstr(b.r.l.text, "cuBLASLt") != NULL);
    launch_matmul(&b.r.l, b.mm, &p.a); // does nothing
    b.r.l.status = CU_OK;
    product_free(&p, &b.r);
    bench_close(&b);
}

static void products_can_be_captured(void) {
    bench b;
    product p;
    bench_open(&b, &(bench_options){.inner = CU_F16});
    product_make(&p, &b.r,
                 &(product_spec){.type = DTYPE_Q8_0,
                                 .inner = CU_F16,
                                 .out_type = CU_F32,
                                 .rows = 70,
                                 .cols = 96,
                                 .n_out = 1,
                                 .w_rows = {150},
                                 .bias = true,
                                 .add = true});
    inferd_err err = {0};
    product_round_weights(&p, UINT32_MAX);
    EXPECT_EQ(matmul_tune(b.mm, &b.r.l, &p.a.out[0].w, 1, 0, &err), INFERD_OK); // warm
    cu_graph g;
    rig_ok(&b.r, b.r.api->capture_begin(b.r.l.stream), "capture_begin");
    launch_matmul(&b.r.l, b.mm, &p.a);
    rig_ok(&b.r, b.r.api->capture_end(b.r.l.stream, &g), "capture_end");
    rig_ok(&b.r, b.r.api->graph_launch(g, b.r.l.stream), "graph_launch");
    product_check(&p, &b.r);
    product_reset(&p, &b.r);
    rig_ok(&b.r, b.r.api->graph_launch(g, b.r.l.stream), "graph_launch");
    product_check(&p, &b.r);
    rig_ok(&b.r, b.r.api->graph_destroy(g), "graph_destroy");
    product_free(&p, &b.r);
    bench_close(&b);
}

static const test_case cases[] = {
    TEST(rows_and_format_choose_the_way),
    TEST(groups_of_rows_are_right),
    TEST(what_may_be_fused_depends_on_rows),
    TEST(matrices_that_cannot_be_one_launch_are_several),
    TEST(large_products_are_right),
    TEST(matrices_are_expanded_in_pieces_that_fit),
    TEST(scratch_too_small_goes_through_skinny),
    TEST(outputs_that_the_library_cannot_have_go_through_skinny),
    TEST(what_the_library_refuses_goes_through_skinny),
    TEST(a_refused_choice_is_replaced),
    TEST(a_lost_device_is_reported),
    TEST(products_can_be_captured),
};
TEST_MAIN(cases)
