/* test_slo.c - the search for a rate, and the progress of a run, without a server. */
#include "../tests/test.h"

#include "progress.h"
#include "slo.h"

/* Runs the search against a server that holds every rate up to `truth`. */
static slo_reason find(slo_search *s, double truth, double rates[SLO_PROBES_MAX]) {
    double rate;
    slo_reason reason;
    while ((reason = slo_next(s, &rate)) == SLO_GOES_ON) {
        rates[s->n_probes] = rate;
        slo_take(s, rate, rate <= truth);
    }
    return reason;
}

static void the_bracket_closes_on_the_rate(void) {
    static const double TRUTHS[] = {0.013, 0.7, 1, 3.3, 77, 4096, 90000};
    for (size_t i = 0; i < INFERD_COUNT(TRUTHS); i++) {
        slo_search s = {.rate = 1, .rate_min = .01, .rate_max = 1e5, .precision = .05};
        double rates[SLO_PROBES_MAX];
        EXPECT_EQ(find(&s, TRUTHS[i], rates), SLO_PRECISE);
        EXPECT(s.lo <= TRUTHS[i] && TRUTHS[i] < s.hi && s.hi / s.lo <= 1.05 + 1e-9);
        EXPECT(s.n_probes < 26); // 17 doublings at most, and 4 or 5 halvings of the bracket
    }
}

static void probes_double_and_then_halve_the_bracket(void) {
    slo_search s = {.rate = 1, .rate_min = .01, .rate_max = 1e5, .precision = .5};
    double rates[SLO_PROBES_MAX];
    EXPECT_EQ(find(&s, 3, rates), SLO_PRECISE);
    EXPECT_EQ(s.n_probes, 4);
    EXPECT_NEAR(rates[1], 2, 0);
    EXPECT_NEAR(rates[2], 4, 0);
    EXPECT_NEAR(rates[3], sqrt(8), 1e-12);
    EXPECT_NEAR(s.lo, sqrt(8), 1e-12);
    EXPECT_NEAR(s.hi, 4, 0);
}

static void the_ends_of_the_range_end_the_search(void) {
    slo_search s = {.rate = 5, .rate_min = 2, .rate_max = 12, .precision = .05};
    double rates[SLO_PROBES_MAX];
    EXPECT_EQ(find(&s, 100, rates), SLO_AT_MAX);
    EXPECT_NEAR(s.lo, 12, 0);
    EXPECT_EQ(s.n_probes, 3); // 5, 10, 12
    s = (slo_search){.rate = 5, .rate_min = 2, .rate_max = 12, .precision = .05};
    EXPECT_EQ(find(&s, 1, rates), SLO_BELOW_MIN);
    EXPECT_NEAR(s.lo, 0, 0);
    EXPECT_EQ(s.n_probes, 3); // 5, 2.5, 2
    s = (slo_search){.rate = 1, .rate_min = 1, .rate_max = 1e6, .n_probes = SLO_PROBES_MAX};
    EXPECT_EQ(find(&s, 1, rates), SLO_NO_PROBES);
}

static void a_probe_fits_into_the_time_left(void) {
    double drain_s = 30;
    EXPECT(slo_fits(100, 30, &drain_s));
    EXPECT_NEAR(drain_s, 30, 0);
    EXPECT(slo_fits(40, 30, &drain_s));
    EXPECT_NEAR(drain_s, 10, 1e-12);
    EXPECT(!slo_fits(20, 30, &drain_s));
    EXPECT_NEAR(drain_s, 0, 0);
}

/* Misses are counted per request: the number of conversations would end a probe too early. */
static void requests_of_conversations_are_not_known(void) {
    bench_class c = {.arrivals = {.kind = ARRIVALS_CONSTANT, .rate = 4},
                     .turns = {.lo = 1, .hi = 1}};
    bench_spec spec = {.classes = &c, .n_classes = 1};
    EXPECT_EQ(slo_requests_of(&spec, 10), 0); // no class has a target
    c.slo_ttft_ms = 100;
    uint64_t n = slo_requests_of(&spec, 10);
    EXPECT(n >= 39 && n <= 41);
    EXPECT_STR(slo_unit(&spec), "requests/s");
    c.turns.hi = 3;
    EXPECT_STR(slo_unit(&spec), "conversations/s");
    EXPECT_EQ(slo_requests_of(&spec, 10), 0);
    c.turns.hi = 1;
    c.arrivals.kind = ARRIVALS_CLOSED;
    EXPECT_EQ(slo_requests_of(&spec, 10), 0);
    c.turns.hi = 3; // beside the rate
    EXPECT_STR(slo_unit(&spec), "requests/s");
}

static group group_with(const char *code, uint64_t n_failed) {
    group g = {.n_failed = n_failed, .errors = {.n = 1}};
    g.errors.entries[0].n = n_failed;
    snprintf(g.errors.entries[0].name, sizeof g.errors.entries[0].name, "%s", code);
    return g;
}

/* A wrong key looked like a server that is too slow: the search went down to --rate-min. */
static void a_refusal_is_no_overload(void) {
    static const char *const REFUSED[] = {"http_401", "http_404", "http_500",
                                          "connect",  "not_sse",  "stream_internal_error"};
    static const char *const OVERLOAD[] = {"http_429", "http_503",     "http_504",
                                           "timeout",  "backlog_full", "stream_deadline_exceeded"};
    static group g;
    for (size_t i = 0; i < INFERD_COUNT(REFUSED); i++) {
        g = group_with(REFUSED[i], 5);
        EXPECT(slo_is_refused(&g, false) && slo_is_refused(&g, true));
        g.n_failed = 2; // all that there were, or two of those that had ended
        EXPECT(slo_is_refused(&g, false) && !slo_is_refused(&g, true));
        g.n_cut = 1;
        EXPECT(!slo_is_refused(&g, false));
        g = group_with(REFUSED[i], 5);
        g.n_ok = 1;
        EXPECT(!slo_is_refused(&g, false));
        g.n_ok = 0;
        hist_add(&g.ttft, 5); // of a stream that was cut when the probe stopped
        EXPECT(!slo_is_refused(&g, true));
    }
    for (size_t i = 0; i < INFERD_COUNT(OVERLOAD); i++) {
        g = group_with(OVERLOAD[i], 5);
        EXPECT(!slo_is_refused(&g, false));
    }
    g = group_with("http_401", 9); // both
    g.errors.entries[g.errors.n++] = group_with("http_503", 1).errors.entries[0];
    EXPECT(!slo_is_refused(&g, false));
    g = group_with("", 0);
    EXPECT(!slo_is_refused(&g, false));
}

/* One refused connection would end a search in which all requests have to meet their targets. */
static void a_few_failures_do_not_stop_a_probe(void) {
    static group g;
    stats s = {.groups = {&g}, .n_groups = 1, .n_missed_max = 1};
    g = (group){.n_slo = FAILURES_SURE - 1, .n_failed = FAILURES_SURE - 1};
    EXPECT(!stats_missed_too_many(&s));
    g.n_ok = g.n_slo_met = 1;
    g.n_slo++;
    EXPECT(stats_missed_too_many(&s));
    g = (group){.n_slo = FAILURES_SURE, .n_failed = FAILURES_SURE};
    EXPECT(stats_missed_too_many(&s));
    s.n_missed_max = FAILURES_SURE + 1;
    EXPECT(!stats_missed_too_many(&s));
    g = (group){.n_slo = 1, .n_ok = 1}; // too late
    s.n_missed_max = 1;
    EXPECT(stats_missed_too_many(&s));
}

/* ---- progress of a run ---- */

static void progress_is_rare_where_nothing_is_rewritten(void) {
    EXPECT_EQ(progress_make(PROGRESS_AUTO, false, true).every_s, 1);
    EXPECT(progress_make(PROGRESS_AUTO, false, true).is_rewritten);
    EXPECT_EQ(progress_make(PROGRESS_AUTO, false, false).every_s, PROGRESS_SELDOM_S);
    EXPECT_EQ(progress_make(PROGRESS_ON, true, false).every_s, 1);
    EXPECT(!progress_make(PROGRESS_ON, true, false).is_rewritten);
    EXPECT_EQ(progress_make(PROGRESS_AUTO, true, true).every_s, 0);
    EXPECT_EQ(progress_make(PROGRESS_OFF, false, true).every_s, 0);
}

static void the_time_left_is_the_nearer_end(void) {
    progress_facts f = {.elapsed_s = 20, .total_s = 60, .ttft_ms = -1};
    EXPECT_NEAR(progress_left_s(&f), 40, 1e-9);
    f.n_total = 100;
    EXPECT_NEAR(progress_left_s(&f), 40, 1e-9);
    f.n_ended = f.n_ok = 50;
    EXPECT_NEAR(progress_left_s(&f), 20, 1e-9);
    f.total_s = 0;
    EXPECT_NEAR(progress_left_s(&f), 20, 1e-9);
    char text[PROGRESS_BYTES];
    progress_text(&f, text);
    EXPECT_STR(text, "20 s, about 20 s left: 0 in flight, 50 of 100 ok, 0 failed, 0 tokens/s");
    f.n_total = 0;
    EXPECT(progress_left_s(&f) < 0);
    f = (progress_facts){1e300,      1e300,      UINT64_MAX, UINT64_MAX, UINT64_MAX,
                         UINT64_MAX, UINT64_MAX, UINT64_MAX, 1e300,      1e300};
    progress_text(&f, text); // cut, not beyond the end
    EXPECT_EQ(strlen(text), PROGRESS_BYTES - 1);
}

static const test_case CASES[] = {
    TEST(the_bracket_closes_on_the_rate),
    TEST(probes_double_and_then_halve_the_bracket),
    TEST(a_probe_fits_into_the_time_left),
    TEST(the_ends_of_the_range_end_the_search),
    TEST(progress_is_rare_where_nothing_is_rewritten),
    TEST(the_time_left_is_the_nearer_end),
    TEST(requests_of_conversations_are_not_known),
    TEST(a_refusal_is_no_overload),
    TEST(a_few_failures_do_not_stop_a_probe),
};
TEST_MAIN(CASES)
