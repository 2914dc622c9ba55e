/* test_cuda_selftest.c - the self-test of a GPU: right on a right device, and it names what is
 * wrong.
 */
#include "cuda_emul/emul_run.h"
#include "cuda_rig.h"
#include "kernels/self_test.h"

enum { ROWS_MAX = 1024, NAME_BYTES = 96 };

typedef struct seen {
    const cuda_module *module;
    uint32_t n, n_by_result[4];
    bool right[FAKE_KERNELS_MAX]; // kernels that a check found right
    char wrong[NAME_BYTES], failed[NAME_BYTES], text[INFERD_ERR_TEXT_BYTES];
    self_test_row first_wrong;
} seen;

static void look(const self_test_row *row, void *ctx) {
    seen *s = ctx;
    s->n++;
    s->n_by_result[row->result]++;
    const cu_kernel *k = module_find(s->module, row->kernel);
    if (k != NULL && row->result == SELF_TEST_OK) s->right[k - s->module->kernels] = true;
    if (row->result == SELF_TEST_WRONG && s->n_by_result[SELF_TEST_WRONG] == 1) {
        s->first_wrong = *row;
        snprintf(s->wrong, sizeof s->wrong, "%s", row->kernel);
    } else if (row->result == SELF_TEST_WRONG && strcmp(s->wrong, row->kernel) != 0) {
        snprintf(s->wrong, sizeof s->wrong, "several, %.32s", row->kernel);
    }
    if (row->result == SELF_TEST_FAILED) {
        snprintf(s->failed, sizeof s->failed, "%s", row->kernel);
        snprintf(s->text, sizeof s->text, "%s", row->text);
    }
}

static inferd_status run(seen *s, inferd_err *err) {
    *s = (seen){.module = emul_module()};
    backend_options o = {.kind = "cuda", .module = s->module};
    return self_test_cuda(&o, look, s, err);
}

/* Nothing is held afterwards and no rule was broken. */
static void expect_clean(void) {
    EXPECT_EQ(fake_leaks(), 0);
    EXPECT_EQ(fake_violations(), 0);
}

static void every_kernel_of_the_module_is_found_right(void) {
    static seen s;
    inferd_err err = {0};
    fake_reset();
    EXPECT_EQ(run(&s, &err), INFERD_OK);
    EXPECT_EQ(s.n_by_result[SELF_TEST_OK], s.n);
    EXPECT(s.n > s.module->n_kernels);
    if (s.n_by_result[SELF_TEST_WRONG] > 0)
        printf("%s (%s): %s is %.9g, expected %.9g\n", s.first_wrong.name, s.wrong,
               s.first_wrong.where, s.first_wrong.got, s.first_wrong.expected);
    if (s.failed[0] != 0) printf("%s: %s\n", s.failed, s.text);
    for (uint32_t i = 0; i < s.module->n_kernels; i++) {
        const char *name = s.module->kernels[i].name;

        if (s.right[i]) continue;
        printf("no check of the self-test launches %s\n", name);
        test_failures++;
    }
    expect_clean();
}

static void it_is_right_in_any_order_of_threads(void) {
    static seen s;
    inferd_err err = {0};
    fake_reset();
    emul_set_options(&(emul_options){.seed = 60301, .shuffle = true});
    EXPECT_EQ(run(&s, &err), INFERD_OK);
    EXPECT_EQ(s.n_by_result[SELF_TEST_OK], s.n);
    emul_set_options(&(emul_options){.seed = 1});
    expect_clean();
}

/* Of the checks of other kernels none says a word. */
static bool is_named(const char *kernel) {
    static seen s;
    inferd_err err = {0};
    fake_reset();
    snprintf(fake_options()->wrong, sizeof fake_options()->wrong, "%s", kernel);
    inferd_status status = run(&s, &err);
    bool named = status == INFERD_OK && strcmp(s.wrong, kernel) == 0 &&
                 s.n_by_result[SELF_TEST_FAILED] == 0 && s.first_wrong.where[0] != 0 &&
                 s.first_wrong.got != s.first_wrong.expected;
    if (!named)
        printf("wrong was %s, named is \"%s\" (%s), failed is \"%s\" (%s)\n", kernel, s.wrong,
               s.first_wrong.where, s.failed, s.text);
    fake_options()->wrong[0] = 0;
    expect_clean();
    return named;
}

static void a_wrong_result_names_its_kernel(void) {
    static const char *const kernels[] = {"selftest_mma_bf16", "norm_f32_f16_f16",
                                          "skinny_q6_f16_4", "draw_scan", "lt_matmul"};
    for (size_t i = 0; i < INFERD_COUNT(kernels); i++) EXPECT(is_named(kernels[i]));
}

/* For a change of the checks: minutes. */
static void so_does_each_of_all_kernels(void) {
    const cuda_module *m = emul_module();
    if (getenv("INFERD_TEST_ALL_KERNELS") == NULL) return;
    for (uint32_t i = 0; i < m->n_kernels; i++)
        if (strcmp(m->kernels[i].name, "bench_empty") != 0) EXPECT(is_named(m->kernels[i].name));
}

static void a_refused_launch_is_told_and_the_rest_goes_on(void) {
    static seen s;
    inferd_err err = {0};
    fake_reset();
    fake_fail_call("launch", 40, CU_EFAILED);
    EXPECT_EQ(run(&s, &err), INFERD_OK);
    EXPECT_EQ(s.n_by_result[SELF_TEST_FAILED], 1);
    EXPECT_EQ(s.n_by_result[SELF_TEST_OK], s.n - 1);
    EXPECT(module_find(s.module, s.failed) != NULL);
    EXPECT(strstr(s.text, s.failed) != NULL);
    expect_clean();
}

static void a_lost_context_stops_it_and_names_the_kernel(void) {
    static seen s;
    inferd_err err = {0};
    fake_reset();
    fake_lose_context_at(3);
    EXPECT_EQ(run(&s, &err), INFERD_ELOST);
    EXPECT_EQ(s.n, 3);
    EXPECT_STR(s.failed, "selftest_barriers");
    EXPECT(strstr(err.text, "stopped at barriers (selftest_barriers)") != NULL);
    EXPECT(strstr(err.text, "2 checks before it were right") != NULL);
    fake_reset();
}

static void short_memory_is_told(void) {
    static seen s;
    inferd_err err = {0};
    fake_reset();
    fake_fail_call("alloc", 30, CU_ENOMEM);
    EXPECT_EQ(run(&s, &err), INFERD_OK);
    EXPECT_EQ(s.n_by_result[SELF_TEST_FAILED], 1);
    EXPECT_EQ(s.n_by_result[SELF_TEST_OK], s.n - 1);
    EXPECT(strstr(s.text, "taking memory") != NULL);
    expect_clean();
}

static void without_cublaslt_its_products_are_skipped(void) {
    static seen s;
    inferd_err err = {0};
    fake_reset();
    fake_options()->lt = false;
    EXPECT_EQ(run(&s, &err), INFERD_OK);
    EXPECT_EQ(s.n_by_result[SELF_TEST_SKIPPED], 4);
    EXPECT_EQ(s.n_by_result[SELF_TEST_OK], s.n - 4);
    expect_clean();
}

static void a_part_that_is_off_is_not_used(void) {
    static seen s;
    inferd_err err = {0};
    fake_reset();
    s = (seen){.module = emul_module()};
    backend_options o = {.kind = "cuda", .module = s.module, .off = "lt,pdl"};
    EXPECT_EQ(self_test_cuda(&o, look, &s, &err), INFERD_OK);
    EXPECT_EQ(s.n_by_result[SELF_TEST_SKIPPED], 4);
    EXPECT_EQ(s.n_by_result[SELF_TEST_OK], s.n - 4);
    EXPECT_EQ(fake_calls("lt_open"), 0);
    expect_clean();
}

/* Not "ok": what fell back would be slower than it says. */
static void a_refused_dependent_launch_is_told(void) {
    static seen s;
    inferd_err err = {0};
    fake_reset();
    fake_fail_call("launch", 8, CU_EINVAL); // of the chain, which begins with the seventh
    EXPECT_EQ(run(&s, &err), INFERD_OK);
    EXPECT_EQ(s.n_by_result[SELF_TEST_FAILED], 1);
    EXPECT_STR(s.failed, "selftest_dependents");
    EXPECT(strstr(s.text, "a dependent launch was refused") != NULL);
    expect_clean();
}

static void without_a_device_it_says_so(void) {
    static seen s;
    inferd_err err = {0};
    fake_reset();
    fake_options()->driver = FAKE_DRIVER_NONE;
    EXPECT_EQ(run(&s, &err), INFERD_ENOTFOUND);
    EXPECT_EQ(s.n, 0);
    fake_reset();
}

static const test_case cases[] = {
    TEST(every_kernel_of_the_module_is_found_right),
    TEST(it_is_right_in_any_order_of_threads),
    TEST(a_wrong_result_names_its_kernel),
    TEST(so_does_each_of_all_kernels),
    TEST(a_refused_launch_is_told_and_the_rest_goes_on),
    TEST(a_lost_context_stops_it_and_names_the_kernel),
    TEST(short_memory_is_told),
    TEST(without_cublaslt_its_products_are_skipped),
    TEST(a_part_that_is_off_is_not_used),
    TEST(a_refused_dependent_launch_is_told),
    TEST(without_a_device_it_says_so),
};
TEST_MAIN(cases)
