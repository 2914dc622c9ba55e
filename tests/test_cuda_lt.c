/* test_cuda_lt.c - the choices of cuBLASLt's algorithms: measured, written, read again, never
 * trusted.
 *
 * On the fake library (fake_lt.c): algorithm 0 is the first guess and takes 3 times as long as the
 * best, 1 is the best and wants 1 MiB of workspace, 2 fails when it runs, 3 takes twice as long and
 * wants 64 KiB.
 *
 * With INFERD_CUDA_MODULE only the products themselves are tested, on the GPU. */
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cuda/lt.h"
#include "cuda/matmul.h"
#include "cuda_products.h"

enum {
    ROWS = 16,
    COLS = 8,
    N_WEIGHTS = 2,
    BUCKETS = 9 /* above 64 */,
    VARIANTS = 2,
    FILE_MAX = 1 << 16
};

typedef struct bench {
    cuda_rig r;
    matmul *mm;
    cu_matrix weights[N_WEIGHTS]; // bf16, of one shape
    float *values[N_WEIGHTS];
} bench;

static char path[64];

static void path_make(void) { // names no file
    snprintf(path, sizeof path, "/tmp/inferd_lt_XXXXXX");
    int f = mkstemp(path);
    INFERD_CHECK(f >= 0 && close(f) == 0 && unlink(path) == 0);
}

/* After fake_reset and changes to fake_options(); main has seen to it that it is the fake. */
static void bench_open_as_is(bench *b, size_t lt_bytes, size_t expand_bytes) {
    memset(b, 0, sizeof *b);
    rig_open_as_is(&b->r);
    rig_seed(PRODUCT_SEED);
    inferd_err err = {0};
    rig_ok(&b->r, b->r.api->lt_open(NULL), "lt_open");
    EXPECT_EQ(matmul_create(b->r.module, &b->r.device, CU_BF16, true, path, &b->mm, &err),
              INFERD_OK);
    matmul_workspace w = {.lt_bytes = lt_bytes, .expand_bytes = expand_bytes};
    w.lt = rig_alloc(&b->r, lt_bytes);
    w.expand = rig_alloc(&b->r, expand_bytes);
    matmul_set_workspace(b->mm, &w);
    for (int i = 0; i < N_WEIGHTS; i++)
        b->weights[i] = product_weights(&b->r, DTYPE_BF16, CU_BF16, ROWS, COLS, &b->values[i]);
}

static void bench_open(bench *b) {
    fake_reset();
    bench_open_as_is(b, 2 << 20, 4 << 20);
}

static void bench_close(bench *b) {
    for (int i = 0; i < N_WEIGHTS; i++) free(b->values[i]);
    matmul_destroy(b->mm);
    rig_close(&b->r);
}

static inferd_status tune(bench *b, uint64_t budget_us, inferd_err *err) {
    return matmul_tune(b->mm, &b->r.l, b->weights, N_WEIGHTS, budget_us, err);
}

static void tune_all(bench *b) {
    inferd_err err = {0};
    if (tune(b, 1000000000, &err) == INFERD_OK) return;
    printf("matmul_tune: %s\n", err.text);
    test_failures++;
}

/* NUL-terminated; "" when there is no file. */
static size_t slurp(char out[FILE_MAX]) {
    FILE *f = fopen(path, "r");
    size_t n = f == NULL ? 0 : fread(out, 1, FILE_MAX - 1, f);
    if (f != NULL) fclose(f);
    out[n] = 0;
    return n;
}

static void spit(const char *bytes_, size_t n) {
    FILE *f = fopen(path, "w");
    INFERD_CHECK(f != NULL && fwrite(bytes_, 1, n, f) == n && fclose(f) == 0);
}

static uint32_t count(const char *text, const char *what) {
    uint32_t n = 0;
    for (const char *at = strstr(text, what); at != NULL; at = strstr(at + 1, what)) n++;
    return n;
}

/* What a book makes of the file. */
static lt_book_stats read_stats(const bench *b) {
    lt_book *book;
    lt_book_stats s = {0};
    inferd_err err = {0};
    EXPECT_EQ(lt_book_open(b->r.api, &b->r.device, path, &book, &err), INFERD_OK);
    lt_book_get_stats(book, &s);
    lt_book_close(book);
    return s;
}

/* ---- measuring ---- */

static void rows_are_rounded_up_to_a_bucket(void) {
    static const uint32_t table[][2] = {{1, 1},       {3, 4},       {64, 64},    {65, 96},
                                        {2049, 4096}, {4096, 4096}, {9999, 4096}};
    for (size_t i = 0; i < INFERD_COUNT(table); i++)
        EXPECT_EQ(lt_buckets[lt_bucket_idx(table[i][0])], table[i][1]);
}

static void the_fastest_candidate_that_runs_is_chosen(void) {
    static const struct {
        size_t lt_bytes;
        const char *algo;
    } table[] = {{2 << 20, "algo 66616b65206c7421 1 "},
                 {128 << 10, "algo 66616b65206c7421 3 "},
                 {1, "algo 66616b65206c7421 0 "}};
    char text[FILE_MAX];
    for (size_t i = 0; i < INFERD_COUNT(table); i++) {
        bench b;
        path_make();
        fake_reset();
        fake_options()->lt_flops_us = 1000; // so slow that the clock tells them apart
        bench_open_as_is(&b, table[i].lt_bytes, 4 << 20);
        tune_all(&b);
        slurp(text);
        EXPECT_EQ(count(text, "\nm "), BUCKETS * VARIANTS);
        EXPECT_EQ(count(text, table[i].algo), BUCKETS * VARIANTS);
        bench_close(&b);
        unlink(path);
    }
}

static void the_chosen_algorithm_is_used(void) {
    bench b;
    path_make();
    bench_open(&b);
    tune_all(&b);
    uint64_t asked = fake_calls("lt_candidates");
    matmul_args a = {
        .x_type = CU_BF16, .x_stride = COLS, .rows = 100, .inner = CU_BF16, .n_out = 1};
    a.x = rig_alloc(&b.r, 100 * COLS * 2);
    a.out[0].w = b.weights[0];
    a.out[0].out_type = CU_BF16;
    a.out[0].out_stride = ROWS;
    a.out[0].out = rig_alloc(&b.r, 100 * ROWS * 2);
    launch_matmul(&b.r.l, b.mm, &a);
    rig_sync(&b.r);
    EXPECT_EQ(fake_calls("lt_candidates"), asked); // known, not guessed
    bench_close(&b);
    unlink(path);
}

static void a_spent_budget_leaves_the_rest_to_guesses(void) {
    char text[FILE_MAX];
    bench b;
    inferd_err err = {0};
    path_make();
    bench_open(&b);
    EXPECT_EQ(tune(&b, 1, &err), INFERD_OK);
    slurp(text);
    EXPECT_EQ(count(text, "\nm "), 1);
    EXPECT_EQ(count(text, "\nm 2048 "), 1); // what matters most comes first
    bench_close(&b);
    unlink(path);
}

/* No file, but every bucket of every product was run once. */
static void no_budget_warms_only(void) {
    bench b;
    inferd_err err = {0};
    path_make();
    bench_open(&b);
    uint64_t before = fake_calls("lt_matmul");
    EXPECT_EQ(tune(&b, 0, &err), INFERD_OK);
    EXPECT_EQ(fake_calls("lt_matmul") - before, BUCKETS * VARIANTS);
    EXPECT(access(path, F_OK) != 0);
    bench_close(&b);
}

static void what_does_not_fit_scratch_is_left_out(void) {
    bench b;
    char text[FILE_MAX];
    path_make();
    fake_reset();
    bench_open_as_is(&b, 2 << 20, 256 * (COLS * 2 + ROWS * 4)); // 256 rows of x and float outputs
    tune_all(&b);
    slurp(text);
    EXPECT_EQ(count(text, "\nm 256 "), VARIANTS);
    EXPECT_EQ(count(text, "\nm 512 "), 0);
    bench_close(&b);
    unlink(path);
}

static void quantised_weights_are_tuned_as_they_are_multiplied(void) {
    bench b;
    char text[FILE_MAX];
    inferd_err err = {0};
    float *small, *big;
    path_make();
    fake_reset();
    bench_open_as_is(&b, 2 << 20,
                     128 * 512 * 2 + 100); // 1024 rows of 64 columns, and little beside
    cu_matrix w = product_weights(&b.r, DTYPE_Q4_0, CU_BF16, 200, 64, &small);
    EXPECT_EQ(matmul_tune(b.mm, &b.r.l, &w, 1, 1000000, &err), INFERD_OK);
    slurp(text);
    EXPECT(count(text, " n 200 k 64 ") > 0); // one piece
    w = product_weights(&b.r, DTYPE_Q4_0, CU_BF16, 1100, 64, &big);
    EXPECT_EQ(matmul_tune(b.mm, &b.r.l, &w, 1, 1000000, &err), INFERD_OK);
    slurp(text);
    EXPECT_EQ(count(text, " n 1100 "), 0); // two, of which the second leaves room for a trial
    EXPECT(count(text, " n 76 k 64 ") > 0);
    free(small);
    free(big);
    bench_close(&b);
    unlink(path);
}

/* ---- the file ---- */

static void measured_choices_are_read_again(void) {
    char first[FILE_MAX], second[FILE_MAX];
    bench b;
    path_make();
    bench_open(&b);
    tune_all(&b);
    slurp(first);
    bench_close(&b);
    bench_open(&b);
    lt_book_stats s = read_stats(&b);
    EXPECT_EQ(s.n_read, BUCKETS * VARIANTS);
    EXPECT_EQ(s.n_ignored, 0);
    uint64_t before = fake_calls("lt_matmul"), asked = fake_calls("lt_candidates");
    tune_all(&b); // nothing left to do
    EXPECT_EQ(fake_calls("lt_matmul") - before, BUCKETS * VARIANTS);
    EXPECT_EQ(fake_calls("lt_candidates"), asked);
    slurp(second);
    EXPECT_STR(first, second);
    bench_close(&b);
    unlink(path);
}

static void choices_of_other_devices_stay_and_are_not_used(void) {
    char text[FILE_MAX];
    bench b;
    path_make();
    bench_open(&b);
    tune_all(&b);
    bench_close(&b);
    fake_reset();
    snprintf(fake_options()->device[0].name, CU_NAME_BYTES, "NVIDIA other\nname");
    bench_open_as_is(&b, 2 << 20, 4 << 20);
    EXPECT_EQ(read_stats(&b).n_read, 0);
    tune_all(&b);
    EXPECT_EQ(read_stats(&b).n_read, BUCKETS * VARIANTS);
    bench_close(&b);
    slurp(text);
    EXPECT_EQ(count(text, "\ndevice "), 2);
    EXPECT_EQ(count(text, "NVIDIA other name\n"), 1);
    bench_open(&b); // the first one again
    EXPECT_EQ(read_stats(&b).n_read, BUCKETS * VARIANTS);
    bench_close(&b);
    fake_reset(); // it, with another library
    fake_options()->lt_version++;
    bench_open_as_is(&b, 2 << 20, 4 << 20);
    EXPECT_EQ(read_stats(&b).n_read, 0);
    EXPECT_EQ(read_stats(&b).n_ignored, 0);
    bench_close(&b);
    unlink(path);
}

static void files_of_others_are_ignored(void) {
    static const char *const texts[] = {"",
                                        "\n",
                                        "inferd tune 2\n",
                                        "hello\nworld\n",
                                        "inferd tune 1",
                                        "inferd tune 1\ndevice \n",
                                        "inferd tune 1\nm 1 n 1\n"};
    static const uint32_t n_ignored[] = {0, 1, 1, 1, 0, 0, 1};
    bench b;
    path_make();
    bench_open(&b);
    for (size_t i = 0; i < INFERD_COUNT(texts); i++) {
        spit(texts[i], strlen(texts[i]));
        lt_book_stats s = read_stats(&b);
        EXPECT_EQ(s.n_read, 0);
        EXPECT_EQ(s.n_ignored, n_ignored[i]);
    }
    unlink(path);
    INFERD_CHECK(mkdir(path, 0700) == 0); // not even a file
    EXPECT_EQ(read_stats(&b).n_ignored, 1);
    rmdir(path);
    char *big = product_alloc(LT_FILE_BYTES_MAX + 1);
    memset(big, '\n', LT_FILE_BYTES_MAX + 1);
    memcpy(big, "inferd tune 1\n", 14);
    spit(big, LT_FILE_BYTES_MAX + 1);
    EXPECT_EQ(read_stats(&b).n_ignored, 1);
    free(big);
    bench_close(&b);
    unlink(path);
}

/* Bytes changed, cut, repeated: lines are taken only as they were written. */
static void damaged_files_are_read_as_far_as_they_are_right(void) {
    static char good[FILE_MAX], bad[FILE_MAX];
    bench b;
    path_make();
    bench_open(&b);
    tune_all(&b);
    size_t n = slurp(good);
    EXPECT_EQ(read_stats(&b).n_read, BUCKETS * VARIANTS);
    for (int i = 0; i < 1500; i++) {
        size_t m = n;
        memcpy(bad, good, n);
        uint32_t n_changes = 1 + rig_below(4);
        for (uint32_t j = 0; j < n_changes; j++)
            if (rig_below(8) == 0)
                m = rig_below((uint32_t)m + 1);
            else if (m > 0)
                bad[rig_below((uint32_t)m)] = (char)rig_u32();
        spit(bad, m);
        lt_book_stats s = read_stats(&b);
        EXPECT(s.n_read <= BUCKETS * VARIANTS && s.n_ignored <= BUCKETS * VARIANTS + 8);
        EXPECT(s.n_read < BUCKETS * VARIANTS || memcmp(bad, good, n - 1) == 0);
    }
    for (int i = 0; i < 500; i++) { // nothing but noise
        uint32_t m = rig_below(4000);
        for (uint32_t j = 0; j < m; j++) bad[j] = (char)rig_u32();
        if (i % 2 == 1) memcpy(bad, good, 80 < m ? 80 : m); // under a right head
        spit(bad, m);
        EXPECT_EQ(read_stats(&b).n_read, 0);
    }
    bench_close(&b);
    unlink(path);
}

/* A right line under another device's name is not that device's. */
static void a_line_belongs_to_its_device(void) {
    static char text[FILE_MAX], moved[FILE_MAX];
    bench b;
    path_make();
    bench_open(&b);
    tune_all(&b);
    slurp(text);
    char *device = strstr(text, "\ndevice ") + 1, *lines = strchr(device, '\n') + 1;
    snprintf(moved, sizeof moved, "inferd tune 1\ndevice x\n%s", lines);
    spit(moved, strlen(moved));
    lt_book_stats s = read_stats(&b);
    EXPECT_EQ(s.n_read, 0);
    EXPECT_EQ(s.n_ignored, BUCKETS * VARIANTS);
    bench_close(&b);
    unlink(path);
}

static void a_file_that_cannot_be_written_is_said(void) {
    bench b;
    inferd_err err = {0};
    snprintf(path, sizeof path, "/nowhere/at/all/tune");
    bench_open(&b);
    EXPECT_EQ(tune(&b, 1000000, &err), INFERD_EIO);
    EXPECT_STR(err.text,
               "writing measured choices to /nowhere/at/all/tune: No such file or directory");
    bench_close(&b);
}

/* ---- the book ---- */

static void a_book_grows(void) {
    enum { N = 150, M = 66, K = 8 };
    bench b;
    lt_book *book;
    lt_book_stats s;
    inferd_err err = {0};
    path_make();
    bench_open(&b);
    EXPECT_EQ(lt_book_open(b.r.api, &b.r.device, NULL, &book, &err), INFERD_OK);
    unsigned char *p = rig_alloc(&b.r, 256 << 10);
    rig_fill(&b.r, p, 0, 256 << 10);
    for (int turn = 0; turn < 2; turn++)
        for (uint32_t n = 1; n <= N; n++) {
            lt_shape shape = {.m = M,
                              .n = n,
                              .k = K,
                              .x_stride = K,
                              .w_stride = K,
                              .out_stride = 160,
                              .in = LT_F16,
                              .out = LT_F32};
            EXPECT(lt_book_product(book, &b.r.l, &shape, p, p + (64 << 10), p + (128 << 10)));
        }
    lt_book_get_stats(book, &s);
    EXPECT_EQ(s.n_guessed, N); // once each
    EXPECT_EQ(s.n_refused, 0);
    EXPECT_EQ(lt_book_save(book, &err), INFERD_OK); // without a path there is nothing to do
    lt_book_close(book);
    bench_close(&b);
}

/* The file's choice wants more workspace than there is now: another one, found once per number of
 * rows. */
static void a_refused_choice_is_replaced_for_that_number_of_rows(void) {
    bench b;
    lt_book *book;
    lt_book_stats s;
    inferd_err err = {0};
    path_make();
    fake_reset();
    fake_options()->lt_flops_us = 1000; // so slow that the clock tells algorithms apart
    bench_open_as_is(&b, 2 << 20, 4 << 20);
    tune_all(&b);
    EXPECT_EQ(lt_book_open(b.r.api, &b.r.device, path, &book, &err), INFERD_OK);
    unsigned char *p = rig_alloc(&b.r, 256 << 10);
    rig_fill(&b.r, p, 0, 256 << 10);
    lt_book_set_workspace(book, p + (192 << 10), 64 << 10);
    for (uint32_t i = 0; i < 6; i++) {
        lt_shape shape = {.m = 70 + i % 2,
                          .n = ROWS,
                          .k = COLS,
                          .x_stride = COLS,
                          .w_stride = COLS,
                          .out_stride = ROWS,
                          .in = LT_BF16,
                          .out = LT_F32};
        EXPECT(lt_book_product(book, &b.r.l, &shape, p, p + (64 << 10), p + (128 << 10)));
    }
    lt_book_get_stats(book, &s);
    EXPECT_EQ(s.n_refused, 2);
    EXPECT_EQ(s.n_guessed, 2);
    lt_book_close(book);
    bench_close(&b);
    unlink(path);
}

/* The library has no algorithm for rows that do not begin at multiples of 16 bytes.  It is asked
 * once for a layout and a size of the workspace, not in each step. */
static void a_refused_product_is_not_asked_for_again(void) {
    bench b;
    lt_book *book;
    lt_book_stats s;
    inferd_err err = {0};
    path_make();
    bench_open_as_is(&b, 2 << 20, 4 << 20);
    EXPECT_EQ(lt_book_open(b.r.api, &b.r.device, path, &book, &err), INFERD_OK);
    unsigned char *p = rig_alloc(&b.r, 256 << 10);
    rig_fill(&b.r, p, 0, 256 << 10);
    lt_book_set_workspace(book, p + (192 << 10), 32 << 10);
    lt_shape odd = {.m = 70,
                    .n = ROWS,
                    .k = COLS,
                    .x_stride = COLS + 1,
                    .w_stride = COLS,
                    .out_stride = ROWS,
                    .in = LT_BF16,
                    .out = LT_F32};
    lt_shape even = odd;
    even.x_stride = COLS;
    for (int i = 0; i < 3; i++)
        EXPECT(!lt_book_product(book, &b.r.l, &odd, p, p + (64 << 10), p + (128 << 10)));
    lt_book_get_stats(book, &s);
    EXPECT_EQ(s.n_guessed, 2); // for the bucket, and for 70 rows
    EXPECT_EQ(s.n_refused, 1);
    lt_book_set_workspace(book, p + (192 << 10), 64 << 10);
    for (int i = 0; i < 3; i++)
        EXPECT(!lt_book_product(book, &b.r.l, &odd, p, p + (64 << 10), p + (128 << 10)));
    lt_book_get_stats(book, &s);
    EXPECT_EQ(s.n_guessed, 3);
    /* A failure of the moment, as while a capture is open, says nothing about the next time. */
    fake_fail_call_always("lt_matmul", 1, CU_EFAILED);
    EXPECT(!lt_book_product(book, &b.r.l, &even, p, p + (64 << 10), p + (128 << 10)));
    fake_fail_call_always("lt_matmul", 0, CU_OK);
    EXPECT(lt_book_product(book, &b.r.l, &even, p, p + (64 << 10), p + (128 << 10)));
    EXPECT_EQ(b.r.l.status, CU_OK);
    lt_book_close(book);
    bench_close(&b);
    unlink(path);
}

static void warming_gives_its_memory_back(void) {
    bench b;
    inferd_err err = {0};
    path_make();
    bench_open(&b);
    uint64_t held = fake_held_bytes();
    EXPECT_EQ(matmul_warm(b.mm, &b.r.l, &err), INFERD_OK);
    EXPECT_EQ(fake_held_bytes(), held);
    for (uint32_t n = 1; n < 20; n++) { // each call fails in turn
        fake_fail_at(n, CU_ENOMEM);
        inferd_status s = matmul_warm(b.mm, &b.r.l, &err);
        bool failed = fake_failed();
        EXPECT(s == INFERD_OK || failed);
        fake_fail_at(0, CU_OK);
        EXPECT_EQ(fake_held_bytes(), held);
        if (!failed) break;
        EXPECT(n < 19);
    }
    bench_close(&b);
}

/* Every call of a tuning fails in turn: an error is told or the way around it found, and nothing is
 * held. */
static void tuning_survives_failing_calls(void) {
    static const cu_result results[] = {CU_ENOMEM, CU_EFAILED};
    for (int i = 0; i < 2; i++)
        for (uint32_t n = 1;; n += 1 + n / 8) {
            bench b;
            inferd_err err = {0};
            path_make();
            bench_open(&b);
            fake_fail_at(n, results[i]);
            inferd_status s = tune(&b, 1000000000, &err);
            bool failed = fake_failed();
            fake_fail_at(0, CU_OK);
            EXPECT(s == INFERD_OK || (failed && err.text[0] != 0));
            EXPECT(s != INFERD_OK || b.r.l.status == CU_OK);
            b.r.l.status = CU_OK;
            bench_close(&b);
            unlink(path);
            if (!failed) break;
        }
}

/* ---- on the fake or a GPU ---- */

enum { WIDE_ROWS = 128, WIDE_COLS = 256, MANY = 100 };

static matmul *open_products(cuda_rig *r, const matmul_workspace *w) {
    matmul *mm = NULL;
    inferd_err err = {0};
    if (matmul_create(r->module, &r->device, CU_BF16, true, path, &mm, &err) != INFERD_OK) {
        printf("%s\n", err.text);
        test_failures++;
        return NULL;
    }
    matmul_set_workspace(mm, w);
    return mm;
}

/* Tuned, or with what the file says; `n_guessed`: how often the library was asked meanwhile. */
static void multiply(cuda_rig *r, const matmul_workspace *w, const product *p, uint64_t budget_us) {
    inferd_err err = {0};
    matmul *mm = open_products(r, w);
    if (mm == NULL) return;
    if (budget_us > 0)
        EXPECT_EQ(matmul_tune(mm, &r->l, &p->a.out[0].w, 1, budget_us, &err), INFERD_OK);
    launch_matmul(&r->l, mm, &p->a);
    product_check(p, r);
    matmul_paths paths;
    matmul_count_paths(mm, &paths);
    EXPECT_EQ(paths.lt, 1);
    gpu_calls_add(paths.lt);
    matmul_destroy(mm);
}

/* First without measuring, then measured, then by what was measured. */
static void products_are_right_with_any_chosen_algorithm(void) {
    cuda_rig r;
    product p;
    char text[FILE_MAX];
    rig_open(&r);
    if (!r.opened) return;
    rig_seed(PRODUCT_SEED);
    path_make();
    if (r.api->lt_open(NULL) != CU_OK) {
        printf("%s\n", r.api->text());
        rig_close(&r);
        SKIP("no cuBLASLt here");
    }
    matmul_workspace w = {.lt_bytes = 32 << 20, .expand_bytes = 1 << 20}; // up to 1,024 rows
    w.lt = rig_alloc(&r, w.lt_bytes);
    w.expand = rig_alloc(&r, w.expand_bytes);
    product_make(&p, &r,
                 &(product_spec){.type = DTYPE_BF16,
                                 .inner = CU_BF16,
                                 .out_type = CU_BF16,
                                 .rows = MANY,
                                 .cols = WIDE_COLS,
                                 .n_out = 1,
                                 .w_rows = {WIDE_ROWS}});
    multiply(&r, &w, &p, 0);
    EXPECT(access(path, F_OK) != 0);
    multiply(&r, &w, &p, 2000000);
    slurp(text);
    EXPECT(count(text, "\nm ") > 0);
    multiply(&r, &w, &p, 0);
    product_free(&p, &r);
    rig_close(&r);
    unlink(path);
}

static const test_case on_any_device[] = {
    TEST(products_are_right_with_any_chosen_algorithm),
};

static const test_case cases[] = {
    TEST(products_are_right_with_any_chosen_algorithm),
    TEST(rows_are_rounded_up_to_a_bucket),
    TEST(the_fastest_candidate_that_runs_is_chosen),
    TEST(the_chosen_algorithm_is_used),
    TEST(a_spent_budget_leaves_the_rest_to_guesses),
    TEST(no_budget_warms_only),
    TEST(what_does_not_fit_scratch_is_left_out),
    TEST(quantised_weights_are_tuned_as_they_are_multiplied),
    TEST(measured_choices_are_read_again),
    TEST(choices_of_other_devices_stay_and_are_not_used),
    TEST(files_of_others_are_ignored),
    TEST(damaged_files_are_read_as_far_as_they_are_right),
    TEST(a_line_belongs_to_its_device),
    TEST(a_file_that_cannot_be_written_is_said),
    TEST(a_book_grows),
    TEST(a_refused_choice_is_replaced_for_that_number_of_rows),
    TEST(a_refused_product_is_not_asked_for_again),
    TEST(warming_gives_its_memory_back),
    TEST(tuning_survives_failing_calls),
};
/* On a GPU only what does not ask the fake. */
int main(int argc, char **argv) {
    if (gpu_calls_wanted()) return test_run(on_any_device, INFERD_COUNT(on_any_device), argc, argv);
    return test_run(cases, INFERD_COUNT(cases), argc, argv);
}
