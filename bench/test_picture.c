/* test_picture.c - what the picture of a run is made of. */
#include "../tests/test.h"

#include "html.h"
#include "report.h"
#include "svg.h"

static void bins_grow_and_keep_their_counts(void) {
    static timeline t;
    memset(&t, 0, sizeof t);
    const uint64_t BIN = TIMELINE_BIN_NS;
    for (uint64_t i = 0; i < TIMELINE_BINS; i++) timeline_at(&t, i * BIN)->n_chunks++;
    timeline_at(&t, 3 * BIN)->gap_max_ns = 7;
    EXPECT_EQ(t.bin_ns, BIN);
    EXPECT_EQ(t.n, TIMELINE_BINS);
    timeline_at(&t, TIMELINE_BINS * BIN)->n_chunks++; // one behind the last: twice as wide
    EXPECT_EQ(t.bin_ns, 2 * BIN);
    EXPECT_EQ(t.n, TIMELINE_BINS / 2 + 1);
    EXPECT_EQ(t.bins[0].n_chunks, 2);
    EXPECT_EQ(t.bins[1].gap_max_ns, 7);
    EXPECT_EQ(t.bins[TIMELINE_BINS / 2].n_chunks, 1);
    timeline_at(&t, 86400ull * 1000000000u)->n_chunks++; // a day
    uint64_t n = 0;
    for (uint32_t i = 0; i < TIMELINE_BINS; i++) n += t.bins[i].n_chunks;
    EXPECT_EQ(n, TIMELINE_BINS + 2);
    EXPECT(t.n <= TIMELINE_BINS);
    timeline_widen(&t, 10, 0);
    EXPECT(t.n <= 10 && t.n > 4);
}

static result result_of(uint64_t idx) {
    return (result){.plan = {.seed = 5, .idx = idx}, .sched_ns = 1000 + idx, .end_ns = 2000 + idx};
}

static void kept_requests_do_not_depend_on_the_order(void) {
    enum { N = 3 * TRAIL_MAX };
    trail up, down;
    EXPECT(trail_init(&up) && trail_init(&down));
    for (uint64_t i = 0; i < N; i++) {
        result a = result_of(i), b = result_of(N - 1 - i);
        trail_add(&up, &a, SLO_NONE, 0);
        trail_add(&down, &b, SLO_NONE, 0);
    }
    trail_sort(&up);
    trail_sort(&down);
    EXPECT_EQ(up.n_seen, N);
    EXPECT_EQ(up.n, down.n);
    EXPECT(up.n <= TRAIL_MAX && up.n > TRAIL_MAX / 3);
    double sum = 0;
    for (size_t i = 0; i < up.n && i < down.n; i++) {
        EXPECT_EQ(up.rows[i].idx, down.rows[i].idx);
        sum += (double)up.rows[i].idx;
    }
    EXPECT_NEAR(sum / (double)up.n, N / 2.0, N * 0.03); // six deviations: from all of the run
    trail_deinit(&up);
    trail_deinit(&down);
}

static void the_longest_gaps_are_kept(void) {
    gap_list g = {0};
    for (uint32_t i = 0; i < 1000; i++) gap_list_add(&g, i, (i * 37 % 1000 + 1) * 1000000ull);
    EXPECT_EQ(g.n, GAPS_KEPT_MAX);
    for (uint32_t i = 0; i < g.n; i++) EXPECT(g.items[i].ms > 1000 - GAPS_KEPT_MAX);
}

static const char *escaped(buf *out, const char *text) {
    buf_clear(out);
    html_text(out, text);
    return buf_cstr(out);
}

static void text_cannot_leave_its_place(void) {
    buf b;
    buf_init(&b, 0);
    EXPECT_STR(escaped(&b, "a<b>&\"'\n"), "a&lt;b&gt;&amp;&quot;&#39; ");
    EXPECT_STR(escaped(&b, "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80"),
               "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80");
    const char *const BAD[] = {"\xff",         "\xc0\xbc", "\xc3",    "\xed\xa0\x80",
                               "\xe0\x80\xbc", "\xf5\x80", "\xf0\x80"};
    for (size_t i = 0; i < INFERD_COUNT(BAD); i++) {
        const char *text = escaped(&b, BAD[i]);
        EXPECT(strncmp(text, "\xef\xbf\xbd", 3) == 0 && strchr(text, '<') == NULL);
    }
    buf_deinit(&b);
}

static void axes_have_round_ticks(void) {
    double t[AXIS_TICKS_MAX];
    axis a = axis_from_zero(437, 200, 0);
    EXPECT_NEAR(a.hi, 500, 1e-9);
    EXPECT_EQ(axis_ticks(&a, t), 6);
    EXPECT_NEAR(t[5], 500, 1e-9);
    EXPECT_NEAR(axis_px(&a, 250), 100, 1e-9);
    EXPECT_NEAR(axis_px(&a, 1e9), 0, 1e-9); // stays in the plot
    a = axis_around(1, 1000, 0, 300);
    EXPECT(a.is_log);
    EXPECT_EQ(axis_ticks(&a, t), 4);
    EXPECT_NEAR(t[3], 1000, 1e-9);
    EXPECT_NEAR(axis_px(&a, sqrt(1000)), 150, 1e-6);
    const double ODD[][2] = {{0, 0}, {1e-9, 1e12}, {5, 5}, {1e-300, 1e-299}};
    for (size_t i = 0; i < INFERD_COUNT(ODD); i++) {
        a = axis_around(ODD[i][0], ODD[i][1], 0, 300);
        size_t n = axis_ticks(&a, t);
        EXPECT(n >= 1 && n <= AXIS_TICKS_MAX);
        EXPECT(isfinite(axis_px(&a, ODD[i][1])));
    }
}

/* 7.0 / 25 * 25 is above 7 in floating point: a rank made of such a part was that of the next
 * greater value. */
static void points_of_a_curve_are_at_their_own_values(void) {
    static group g;
    const series list = {.g = &g};
    for (uint32_t n = 20; n <= 95; n++) { // values below 268 ms have narrow buckets
        memset(&g, 0, sizeof g);
        for (uint32_t i = 1; i <= n; i++) hist_add(&g.ttft, (70 + 2 * i) * 1000000ull);
        axis x = axis_around((double)hist_at(&g.ttft, .05) / 1e6, 70 + 2 * n, 44, 388);
        buf out;
        buf_init(&out, 0);
        svg_cdf(&out, "t", &list, 1, offsetof(group, ttft));
        const char *p = strstr(buf_cstr(&out), "class=\"line");
        for (uint32_t i = 1; i <= n && p != NULL; i++) {
            double px = -1;
            p = strchr(p + 1, 'H');
            EXPECT(p != NULL && sscanf(p, "H%lf", &px) == 1);
            double at = axis_px(&x, 70 + 2 * i);
            EXPECT_NEAR(px, at, axis_px(&x, 71 + 2 * i) - at); // half way to the next value
        }
        buf_deinit(&out);
    }
}

/* Thousands of requests with names from outside: the page stays small and whole. */
static void the_page_is_bounded(void) {
    static char name[] = "<script>alert(1)</script>";
    bench_class classes[2] = {{.name = name}, {.name = (char[]){"b"}}};
    bench_spec spec = {.classes = classes, .n_classes = 2, .url = (char[]){"http://h\"><x"}};
    stats s;
    inferd_err err = {0};
    char path[] = "/tmp/inferd-picture-XXXXXX";
    int fd = mkstemp(path);
    EXPECT(fd >= 0);
    EXPECT_EQ(stats_init(&s, &spec, &err), INFERD_OK);
    for (uint64_t i = 0; i < 20000; i++) {
        result r = result_of(i);
        group *groups[GROUPS_PER_REQUEST];
        r.plan.class_idx = i % 2;
        r.is_counted = true;
        r.sched_ns = r.sent_ns = i * 10000000;
        r.first_ns = r.sched_ns + 50000000 + i * 1000;
        r.last_ns = r.end_ns = r.first_ns + 900000000;
        r.n_chunks = 31;
        for (uint32_t k = 0; k < 30; k++) gap_list_add(&r.gaps, k, 90000000);
        stats_groups(&s, &r.plan, groups);
        for (uint64_t k = 0; k < 30; k++)
            stats_gap(&s, groups, r.first_ns + k * 30000000, 30000000);
        stats_finish(&s, groups, &r);
    }
    EXPECT_EQ(report_html(&s, path, &err), INFERD_OK);
    FILE *file = fdopen(fd, "r");
    static char page[2 << 20];
    size_t n = fread(page, 1, sizeof page - 1, file);
    fclose(file);
    remove(path);
    page[n] = 0;
    EXPECT(n > 50000 && n < 1 << 20);
    EXPECT(strstr(page, "<script") == NULL && strstr(page, "&lt;script&gt;") != NULL);
    EXPECT(strstr(page, "h&quot;&gt;&lt;x") != NULL);
    EXPECT(strstr(page, "a random sample") != NULL);
    EXPECT(strstr(page, "nan") == NULL && strstr(page, "inf\"") == NULL);
    EXPECT(strstr(page, "</body></html>") != NULL);
    stats_deinit(&s);
}

static const test_case CASES[] = {
    TEST(bins_grow_and_keep_their_counts),
    TEST(kept_requests_do_not_depend_on_the_order),
    TEST(the_longest_gaps_are_kept),
    TEST(text_cannot_leave_its_place),
    TEST(axes_have_round_ticks),
    TEST(points_of_a_curve_are_at_their_own_values),
    TEST(the_page_is_bounded),
};
TEST_MAIN(CASES)
