/* test_number.c - numbers of a range, and multiples, compared with values as a validator reads
 * them. */
#include "dfa_rig.h"

static dfa numbers(number_range r) {
    dfa d = {0};
    inferd_err err = {0};
    if (dfa_of_numbers(&r, &dfa_limits_default, &d, &err) != INFERD_OK)
        printf("%s\n", err.text), test_failures++;
    EXPECT(rig_is_trim(&d));
    return d;
}

static void expect_numbers(number_range r, const char *const *texts, size_t n) {
    char what[128];
    snprintf(what, sizeof what, "%s %s%g to %s%g", r.integer ? "integers" : "numbers",
             r.has_min ? "" : "no ", r.min, r.has_max ? "" : "no ", r.max);
    dfa d = numbers(r);
    rig_expect(&d, what, texts, n);
    dfa_deinit(&d);
}
#define EXPECT_NUMBERS(range, ...) expect_numbers((number_range)range, RIG_TEXTS(__VA_ARGS__))
#define RANGE(...)                                                                                 \
    { __VA_ARGS__ }

static void without_bounds(void) {
    EXPECT_NUMBERS(RANGE(.integer = true), "+0", "+-1", "+120", "+-0", "-01", "-1.0", "-1e3", "-",
                   "--", "-+1", "+1234567890123456789012345678901234567890",
                   "-12345678901234567890123456789012345678901");
    EXPECT_NUMBERS(RANGE(.integer = false), "+0", "+-1.50", "+1e9", "+-0.0E-12", "-1.", "-.5",
                   "-1e", "-1e100", "-00", "+0.5", "-1.e1");
}

static void integers_have_bounds(void) {
    EXPECT_NUMBERS(RANGE(.integer = true, .has_min = true, .min = 0), "+0", "+7", "-00", "--1",
                   "--0");
    EXPECT_NUMBERS(RANGE(.integer = true, .has_min = true, .min = 0, .open_min = true), "-0", "+1",
                   "+10");
    EXPECT_NUMBERS(RANGE(.integer = true, .has_min = true, .min = -5, .has_max = true, .max = 12),
                   "+-5", "--6", "+-0", "+0", "+12", "-13", "-100", "+9", "--50");
    EXPECT_NUMBERS(RANGE(.integer = true, .has_max = true, .max = -3.5), "+-4", "--3", "-4",
                   "+-100");
    EXPECT_NUMBERS(RANGE(.integer = true, .has_min = true, .min = 2.5, .has_max = true, .max = 3.5),
                   "+3", "-2", "-4");
    EXPECT_NUMBERS(RANGE(.integer = true, .has_min = true, .min = 2, .has_max = true, .max = 1),
                   "-1", "-2", "-0");
}

static void numbers_have_bounds(void) {
    EXPECT_NUMBERS(RANGE(.has_min = true, .min = -90, .has_max = true, .max = 90), "+90", "+90.000",
                   "-90.001", "+-89.999", "--90.1", "+0.5", "+-0.0", "-9e1");
    EXPECT_NUMBERS(RANGE(.has_min = true, .min = 0, .open_min = true, .has_max = true, .max = 1),
                   "-0", "-0.0", "+0.00001", "+1.0", "-1.01", "--0.5");
    EXPECT_NUMBERS(RANGE(.has_min = true, .min = 0.1, .has_max = true, .max = 0.25), "+0.1",
                   "+0.10", "+0.2", "+0.25", "-0.2501", "-0.09", "-0", "-1");
    EXPECT_NUMBERS(RANGE(.has_min = true, .min = 0), "+0", "+1e-7", "+2.5E99", "--1", "--0");
    EXPECT_NUMBERS(RANGE(.has_max = true, .max = 0), "+-1e9", "+0", "+-0.5", "-0.5", "-1");
    EXPECT_NUMBERS(RANGE(.has_min = true, .min = -1e-3, .has_max = true, .max = 1e21), "+-0.001",
                   "--0.0011", "+1000000000000000000000", "-1000000000000000000001");
    /* As doubles these are not below 1, so they may not be written. */
    EXPECT_NUMBERS(RANGE(.has_max = true, .max = 1, .open_max = true), "-0.99999999999999999999",
                   "+0.99999999999999", "+-1.5");
}

/* 1e23 is the double 99999999999999991611392, and an integer is compared with that. */
static void bounds_beyond_doubles_are_exact(void) {
    EXPECT_NUMBERS(RANGE(.integer = true, .has_max = true, .max = 1e23), "+99999999999999991611392",
                   "-99999999999999991611393", "-100000000000000000000000");
    EXPECT_NUMBERS(RANGE(.integer = true, .exact = true, .has_min = true, .min_int = INT64_MIN,
                         .has_max = true, .max_int = INT64_MAX),
                   "+9223372036854775807", "-9223372036854775808", "+-9223372036854775808",
                   "--9223372036854775809", "+0");
    EXPECT_NUMBERS(RANGE(.integer = true, .has_max = true, .max = 1.7976931348623157e308), "+5",
                   "+-5");
}

static void multiples_of_integers_and_binary_fractions(void) {
    EXPECT_NUMBERS(RANGE(.integer = true, .multiple_of = 7), "+0", "+7", "+-14", "+700", "-8",
                   "-13", "-7.0");
    EXPECT_NUMBERS(RANGE(.integer = true, .multiple_of = 100), "+0", "+1200", "-10", "-1250");
    EXPECT_NUMBERS(RANGE(.integer = true, .multiple_of = 60, .has_min = true, .min = 1,
                         .has_max = true, .max = 180),
                   "+60", "+120", "+180", "-0", "-240", "-90");
    EXPECT_NUMBERS(RANGE(.multiple_of = 0.25), "+0", "+1.25", "+-0.75", "+0.5", "+3", "+2.50",
                   "-0.3", "-0.125", "+1.250");
    EXPECT_NUMBERS(RANGE(.multiple_of = 5), "+10", "+-5.0", "-7", "-5.5");
    EXPECT_NUMBERS(RANGE(.multiple_of = 2.5, .has_min = true, .min = 1), "+2.5", "+5", "+7.5", "-2",
                   "-0", "--2.5");
}

static void what_cannot_be_enforced_is_refused(void) {
    static const struct {
        number_range range;
        inferd_status status;
    } refused[] = {
        {{.multiple_of = 0.01}, INFERD_EUNSUPPORTED},
        {{.multiple_of = 0.1, .integer = true}, INFERD_EUNSUPPORTED},
        {{.multiple_of = 1e9}, INFERD_EUNSUPPORTED},
        {{.multiple_of = -1}, INFERD_EINVAL},
        {{.has_max = true, .max = 1e-300}, INFERD_EUNSUPPORTED},
        {{.has_min = true, .min = 1e300}, INFERD_EUNSUPPORTED},
        {{.has_min = true, .min = INFINITY}, INFERD_EINVAL},
        {{.has_min = true, .min = 1e16, .multiple_of = 5}, INFERD_EUNSUPPORTED},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        dfa d;
        inferd_err err = {0};
        EXPECT_EQ(dfa_of_numbers(&refused[i].range, &dfa_limits_default, &d, &err),
                  refused[i].status);
        EXPECT(err.text[0] != 0 && dfa_is_empty(&d));
    }
}

/* ---- all texts of few digits against the values of doubles ---- */

static bool in_range(const number_range *r, const char *text) {
    double x = strtod(text, NULL);
    if (r->has_min && (r->open_min ? x <= r->min : x < r->min)) return false;
    if (r->has_max && (r->open_max ? x >= r->max : x > r->max)) return false;
    if (r->integer && strchr(text, '.') != NULL) return false;
    bool zero = x == 0 && text[0] == '-';
    return !(zero && r->has_min && r->min >= 0); // "-0" is written beside negative numbers only
}

static void every_short_text_is_compared(const number_range *r) {
    dfa d = numbers(*r);
    char text[16];
    for (int negative = 0; negative < 2; negative++)
        for (int whole = 0; whole < 130; whole++) {
            int n = snprintf(text, sizeof text, "%s%d", negative ? "-" : "", whole);
            EXPECT_EQ(rig_match(&d, text), in_range(r, text));
            for (int places = 0; places < 100; places += 1 + places % 7) {
                snprintf(text + n, sizeof text - (size_t)n, places % 2 ? ".%02d" : ".%d", places);
                if (rig_match(&d, text) == in_range(r, text)) continue;
                printf("%s in [%g, %g]\n", text, r->min, r->max);
                test_failures++;
            }
        }
    dfa_deinit(&d);
}

static void ranges_agree_with_doubles(void) {
    static const double bounds[] = {-100.5, -99, -12.34, -1, -0.5, 0,  0.07,
                                    0.5,    1,   9.99,   12, 99.9, 100};
    enum { N = sizeof bounds / sizeof *bounds };
    for (size_t i = 0; i < N * N; i++) {
        number_range r = {
            .has_min = true, .min = bounds[i / N], .has_max = true, .max = bounds[i % N]};
        r.open_min = i % 3 == 0;
        r.open_max = i % 4 == 1;
        r.integer = i % 5 == 2;
        r.has_min = i % 7 != 3;
        r.has_max = i % 11 != 4;
        every_short_text_is_compared(&r);
    }
}

static const test_case cases[] = {
    TEST(without_bounds),
    TEST(integers_have_bounds),
    TEST(numbers_have_bounds),
    TEST(bounds_beyond_doubles_are_exact),
    TEST(multiples_of_integers_and_binary_fractions),
    TEST(what_cannot_be_enforced_is_refused),
    TEST(ranges_agree_with_doubles),
};
TEST_MAIN(cases)
