/* test.h - what every unit test uses.
 *
 * A test is a function named after what is true; a table lists them; main is TEST_MAIN(table).
 * `EXPECT*` prints and counts, and the test goes on.  Exit status 0 when nothing failed.
 * A test whose data is not there calls SKIP("why"): skips are counted, shown, and are failures
 * when INFERD_TEST_NO_SKIP=1.  Run one test alone by its name: `test_kv shared_page_returns_once`.
 */
#ifndef INFERD_TEST_H
#define INFERD_TEST_H

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int test_failures, test_skips, test_skipped_now;

typedef struct test_case {
    const char *name;
    void (*run)(void);
} test_case;

#define TEST(f)                                                                                    \
    { #f, f }
#define EXPECT(cond)                                                                               \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            printf("%s:%d: expected %s\n", __FILE__, __LINE__, #cond);                             \
            test_failures++;                                                                       \
        }                                                                                          \
    } while (0)
#define EXPECT_EQ(a, b)                                                                            \
    do {                                                                                           \
        long long a_ = (long long)(a), b_ = (long long)(b);                                        \
        if (a_ != b_) {                                                                            \
            printf("%s:%d: %s is %lld, expected %s = %lld\n", __FILE__, __LINE__, #a, a_, #b, b_); \
            test_failures++;                                                                       \
        }                                                                                          \
    } while (0)
#define EXPECT_STR(a, b)                                                                           \
    do {                                                                                           \
        const char *a_ = (a), *b_ = (b);                                                           \
        if (strcmp(a_, b_) != 0) {                                                                 \
            printf("%s:%d: %s is \"%s\", expected \"%s\"\n", __FILE__, __LINE__, #a, a_, b_);      \
            test_failures++;                                                                       \
        }                                                                                          \
    } while (0)
#define EXPECT_NEAR(a, b, tolerance)                                                               \
    do {                                                                                           \
        double a_ = (a), b_ = (b);                                                                 \
        if (!(fabs(a_ - b_) <= (tolerance))) {                                                     \
            printf("%s:%d: %s is %.9g, expected %.9g within %g\n", __FILE__, __LINE__, #a, a_, b_, \
                   (double)(tolerance));                                                           \
            test_failures++;                                                                       \
        }                                                                                          \
    } while (0)
#define SKIP(why)                                                                                  \
    do {                                                                                           \
        printf("skipped: %s\n", why);                                                              \
        test_skipped_now = 1;                                                                      \
        return;                                                                                    \
    } while (0)

static inline int test_run(const test_case *cases, size_t n, int argc, char **argv) {
    int n_passed = 0, n_failed = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (size_t i = 0; i < n; i++) {
        if (argc > 1 && strcmp(argv[1], cases[i].name) != 0) continue;
        int before = test_failures;
        test_skipped_now = 0;
        cases[i].run();
        if (test_skipped_now && test_failures == before)
            test_skips++;
        else if (test_failures == before)
            n_passed++;
        else
            n_failed++, printf("FAILED %s\n", cases[i].name);
    }
    const char *strict = getenv("INFERD_TEST_NO_SKIP");
    if (strict != NULL && strcmp(strict, "1") == 0) n_failed += test_skips;
    printf("%d passed, %d failed, %d skipped\n", n_passed, n_failed, test_skips);
    if (n_failed > 0 || n_passed + test_skips == 0) return 1;
    return n_passed == 0 ? 77 : 0; // 77: ctest shows it as skipped
}

#define TEST_MAIN(cases)                                                                           \
    int main(int argc, char **argv) {                                                              \
        return test_run(cases, sizeof(cases) / sizeof((cases)[0]), argc, argv);                    \
    }

#endif
