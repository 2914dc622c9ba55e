/* test_sim_report.c - figures of a run by examples one can compute by hand, and how they are
 * written: table and JSON. */
#include "test.h"

#include "../sim/report.h"
#include "../sim/world.h"

static const uint64_t SECOND = 1000000;

/* ---- attainment ---- */

static stats_request done(uint64_t ttft_us, uint64_t tpot_us, uint32_t n_output) {
    return (stats_request){.arrival_us = 1000,
                           .first_us = 1000 + ttft_us,
                           .last_us = 1000 + ttft_us + tpot_us * (n_output - 1),
                           .n_output = n_output,
                           .slo_ttft_us = 500,
                           .slo_tpot_us = 20};
}

static void a_request_meets_both_targets_or_misses(void) {
    stats_request r = done(500, 20, 11);
    EXPECT(stats_meets(&r)); // both exactly
    r.last_us++;
    EXPECT(!stats_meets(&r)); // on average, not rounded
    r = done(501, 20, 11);
    EXPECT(!stats_meets(&r));
    r.slo_ttft_us = 0;
    EXPECT(stats_meets(&r)); // no target
    r = done(100, 0, 1);
    EXPECT(stats_meets(&r)); // one token has no pace
    r = done(100, 1000, 2);
    EXPECT(!stats_meets(&r));
    r.slo_tpot_us = 0;
    EXPECT(stats_meets(&r));
    r.end = STATS_REFUSED;
    EXPECT(!stats_meets(&r));
}

static void what_was_refused_is_missed(void) {
    stats_request r[7] = {done(100, 10, 10), done(100, 10, 20), done(600, 10, 30),
                          done(100, 30, 40), done(600, 30, 50), done(1, 1, 1),
                          done(1, 1, 1)};
    r[5].end = STATS_REFUSED;
    r[6].end = STATS_UNFINISHED;
    stats_attained a = {0};
    EXPECT(isnan(stats_attainment(&a)));
    for (int i = 0; i < 7; i++) stats_count(&a, &r[i]);
    EXPECT_EQ(a.n_offered, 7);
    EXPECT_EQ(a.n_done, 5);
    EXPECT_EQ(a.n_output, 150);
    EXPECT_EQ(a.n_met, 2);
    EXPECT_EQ(a.n_output_met, 30);
    EXPECT_EQ(a.n_late_first, 2);
    EXPECT_EQ(a.n_slow, 2);
    EXPECT_EQ(a.n_refused, 1);
    EXPECT_EQ(a.n_unfinished, 1);
    EXPECT_EQ(a.n_failed, 0);
    EXPECT_NEAR(stats_attainment(&a), 2.0 / 7, 1e-12);
    r[6].end = STATS_FAILED;
    stats_count(&a, &r[6]);
    EXPECT_EQ(a.n_failed, 1);
}

static void a_quantile_is_a_value_that_was_there(void) {
    const uint64_t v[] = {10, 20, 30, 40};
    EXPECT_EQ(stats_quantile(v, 4, 0.25), 10);
    EXPECT_EQ(stats_quantile(v, 4, 0.26), 20);
    EXPECT_EQ(stats_quantile(v, 4, 0.5), 20);
    EXPECT_EQ(stats_quantile(v, 4, 0.99), 40);
    EXPECT_EQ(stats_quantile(v, 4, 1), 40);
    EXPECT_EQ(stats_quantile(v, 4, 0.001), 10);
    static uint64_t many[1000];
    for (uint64_t i = 0; i < 1000; i++) many[i] = i + 1;
    EXPECT_EQ(stats_quantile(many, 1000, 0.99), 990);
    EXPECT_EQ(stats_quantile(many, 1000, 0.999), 999);
    EXPECT_EQ(stats_quantile(many, 100, 0.07), 7); // 0.07 * 100 is more than 7 in binary
}

/* ---- entitlement ---- */

/* Flows of one tenant, one model each. */
static watch *watch_open(const watch_terms *terms, uint32_t n) {
    inferd_err err = {0};
    watch *w;
    EXPECT_EQ(watch_create(NULL, n, 1, &w, &err), INFERD_OK);
    for (uint32_t i = 0; i < n; i++) w->flows[i].terms = terms[i];
    return w;
}

static void entitled(watch *w, const char *backlogged, const double *wanted) {
    inferd_err err = {0};
    for (uint32_t i = 0; i < w->n_flows; i++) w->flows[i].backlogged = backlogged[i] == '1';
    EXPECT_EQ(watch_entitle(w, &err), INFERD_OK);
    for (uint32_t i = 0; i < w->n_flows; i++) EXPECT_NEAR(w->flows[i].percent, wanted[i], 1e-6);
}

static void shares_come_first_then_weights(void) {
    const watch_terms terms[] = {
        {SHARE_FIXED, 30, 5, GEN_NORMAL},
        {SHARE_BURST, 20, 1, GEN_NORMAL},
        {SHARE_BESTEFFORT, 7, 3, GEN_NORMAL}, // its share is not looked at
    };
    watch *w = watch_open(terms, 3);
    entitled(w, "111", (double[]){30, 20 + 12.5, 37.5}); // 50 left, one part and three
    entitled(w, "110", (double[]){30, 70, 0});
    entitled(w, "100", (double[]){30, 0, 0}); // a hard cap: the rest is idle
    entitled(w, "001", (double[]){0, 0, 100});
    entitled(w, "011", (double[]){0, 20 + 20, 60});
    entitled(w, "000", (double[]){0, 0, 0});
    watch_destroy(w);
}

static void urgent_classes_take_surplus_first(void) {
    const watch_terms terms[] = {
        {SHARE_BESTEFFORT, 0, 1, GEN_HIGH},
        {SHARE_BURST, 10, 1, GEN_NORMAL},
        {SHARE_BESTEFFORT, 0, 3, GEN_BATCH},
    };
    watch *w = watch_open(terms, 3);
    entitled(w, "111", (double[]){90, 10, 0});
    entitled(w, "011", (double[]){0, 100, 0});
    w->floor_percent = 10; // of the surplus of 90: 9, one part and three
    entitled(w, "111", (double[]){81, 10 + 2.25, 6.75});
    entitled(w, "101", (double[]){90, 0, 10});
    entitled(w, "001", (double[]){0, 0, 100}); // no flow to be protected from
    watch_destroy(w);
    const watch_terms paused[] = {{SHARE_BURST, 10, 0, GEN_HIGH}, // its share, no surplus
                                  {SHARE_BESTEFFORT, 0, 1, GEN_NORMAL},
                                  {SHARE_BESTEFFORT, 0, 1, GEN_BATCH}};
    w = watch_open(paused, 3);
    w->floor_percent = 10; // below the class that takes first: 9 of 90
    entitled(w, "111", (double[]){10, 81, 9});
    watch_destroy(w);
}

static void too_many_shares_are_refused(void) {
    const watch_terms terms[] = {{SHARE_FIXED, 60, 1, GEN_NORMAL},
                                 {SHARE_BURST, 70, 1, GEN_NORMAL}};
    watch *w = watch_open(terms, 2);
    watch_figures f;
    inferd_err err = {0};
    for (uint32_t i = 0; i < 2; i++) {
        watch_hot(w, i, true, 1);
        watch_arrive(w, 0, i, GEN_NORMAL, 1);
    }
    EXPECT_EQ(watch_sum(w, 0, SECOND, &f, &err), INFERD_EINVAL);
    EXPECT_STR(err.text, "shares add up to 130 percent, the capacity is 100");
    watch_destroy(w);
}

/* ---- share error ---- */

/* A flow has work, or uses the device for `us`. */
typedef struct span {
    uint32_t flow_idx;
    uint64_t begin_us, end_us;
    double us;
} span;

typedef struct change {
    uint64_t at_us;
    uint32_t flow_idx;
    bool begins;
} change;

/* Ends before begins: spans of one flow may touch. */
static int by_time(const void *a, const void *b) {
    const change *x = a, *y = b;
    if (x->at_us != y->at_us) return x->at_us < y->at_us ? -1 : 1;
    return x->begins - y->begins;
}

typedef struct scenario {
    const span *backlog, *service; // service of a flow in the order of time
    size_t n_backlog, n_service;
    uint64_t begin_us, end_us;
} scenario;

/* Of two flows of equal weight. */
static double used[2], due_us[2];

static void share_errors(const scenario *s, watch_error out[WATCH_WINDOWS]) {
    const watch_terms halves[] = {{SHARE_BESTEFFORT, 0, 1, GEN_NORMAL},
                                  {SHARE_BESTEFFORT, 0, 1, GEN_NORMAL}};
    enum { SPANS_MAX = 8 };
    change changes[2 * SPANS_MAX];
    size_t n = 0;
    watch *w = watch_open(halves, 2);
    watch_figures f;
    inferd_err err = {0};
    for (size_t i = 0; i < s->n_backlog; i++) {
        const span *b = &s->backlog[i];
        INFERD_CHECK(i < SPANS_MAX);
        changes[n++] = (change){b->begin_us, b->flow_idx, true};
        changes[n++] = (change){b->end_us, b->flow_idx, false};
    }
    qsort(changes, n, sizeof *changes, by_time);
    for (uint32_t i = 0; i < 2; i++) watch_hot(w, i, true, 0);
    for (size_t i = 0; i < n; i++)
        if (changes[i].begins)
            watch_arrive(w, 0, changes[i].flow_idx, GEN_NORMAL, changes[i].at_us);
        else
            watch_leave(w, 0, changes[i].flow_idx, changes[i].at_us);
    for (size_t i = 0; i < s->n_service; i++)
        watch_serve(w, s->service[i].flow_idx, s->service[i].begin_us, s->service[i].end_us,
                    s->service[i].us);
    EXPECT_EQ(watch_sum(w, s->begin_us, s->end_us, &f, &err), INFERD_OK);
    EXPECT_STR(err.text, "");
    memcpy(out, f.errors, sizeof f.errors);
    for (int i = 0; i < 2; i++) used[i] = w->flows[i].used_us, due_us[i] = w->flows[i].due_us;
    watch_destroy(w);
}

/* Two that are entitled to a half each take turns of 400 ms.  In a window of one second each gets
 * between 400 and 600 ms: the error is 10 points.  In ten seconds, where a window begins and ends
 * with the same turn, it is 2 points: 5.2 of 10 s. */
static void slices_are_an_error_in_short_windows(void) {
    enum { SLICES = 50 }; // 20 s
    span service[SLICES];
    for (uint32_t i = 0; i < SLICES; i++)
        service[i] = (span){i % 2, i * 400000, (i + 1) * 400000, 400000};
    /* The two of principal 0's backlog touch. */
    const span backlog[] = {
        {0, 7 * SECOND, 20 * SECOND, 0}, {0, 0, 7 * SECOND, 0}, {1, 0, 20 * SECOND, 0}};
    scenario run = {.backlog = backlog,
                    .n_backlog = 3,
                    .service = service,
                    .n_service = SLICES,
                    .begin_us = 0,
                    .end_us = 20 * SECOND};
    watch_error e[WATCH_WINDOWS];
    share_errors(&run, e);
    EXPECT(e[0].is_known && e[1].is_known && !e[2].is_known);
    EXPECT_NEAR(e[0].points, 10, 1e-6);
    EXPECT_NEAR(e[0].entitled, 50, 1e-6);
    EXPECT_NEAR(fabs(e[0].measured - 50), 10, 1e-6);
    EXPECT_NEAR(e[1].points, 2, 1e-6);
    for (int i = 0; i < 2; i++) {
        EXPECT_NEAR(used[i], 10e6, 1);
        EXPECT_NEAR(due_us[i], 10e6, 1);
    }
    run.begin_us = 1000000, run.end_us = 2100000; // 200 of turn 2, 400 of 3, 400 of 4, 100 of 5
    share_errors(&run, e);
    EXPECT_NEAR(used[0], 600000, 1);
    EXPECT_NEAR(used[1], 500000, 1);
    EXPECT_NEAR(due_us[0], 550000, 1); // half of 1.1 seconds
    EXPECT_NEAR(due_us[1], 550000, 1);
}

/* Principal 1 has nothing to do from second 3 to second 5: principal 0 is entitled to all of that
 * time.  It gets it, but for the last half second, in which the device stands still. */
static void an_idle_flow_is_entitled_to_nothing(void) {
    const span backlog[] = {
        {0, 0, 12 * SECOND, 0}, {1, 5 * SECOND, 12 * SECOND, 0}, {1, 0, 3 * SECOND, 0}};
    const span service[] = {
        {0, 0, 3 * SECOND, 1.5e6},           {1, 0, 3 * SECOND, 1.5e6},
        {0, 3 * SECOND, 4500000, 1.5e6},     {0, 5 * SECOND, 12 * SECOND, 3.5e6},
        {1, 5 * SECOND, 12 * SECOND, 3.5e6},
    };
    scenario run = {.backlog = backlog,
                    .n_backlog = 3,
                    .service = service,
                    .n_service = 5,
                    .begin_us = 0,
                    .end_us = 12 * SECOND};
    watch_error e[WATCH_WINDOWS];
    share_errors(&run, e);
    EXPECT_NEAR(e[0].points, 50, 1e-6); // 0.5 s missing in any second around it
    EXPECT_EQ(e[0].flow_idx, 0);
    EXPECT(e[0].window_end_us >= 5 * SECOND && e[0].window_end_us <= 5500000);
    EXPECT_NEAR(e[0].measured, e[0].entitled - 50, 1e-6);
    EXPECT_NEAR(e[1].points, 5, 1e-6); // 0.5 of 10 s
    run.begin_us = 6 * SECOND;         // windows that see it are not in the run
    share_errors(&run, e);
    EXPECT_NEAR(e[0].points, 0, 1e-6);
    EXPECT(!e[1].is_known);
}

/* The worst window begins in the middle of a span: samples at whole seconds would not see it. */
static void the_worst_window_is_found_between_the_seconds(void) {
    const span backlog[] = {{0, 0, 100 * SECOND, 0}, {1, 0, 100 * SECOND, 0}};
    const span service[] = {
        {0, 0, 70300000, 35150000},
        {1, 0, 70300000, 35150000},
        {0, 70300000, 71300000, 1000000}, // one second alone
        {0, 71300000, 100 * SECOND, 14350000},
        {1, 71300000, 100 * SECOND, 14350000},
    };
    scenario run = {.backlog = backlog,
                    .n_backlog = 2,
                    .service = service,
                    .n_service = 5,
                    .begin_us = 0,
                    .end_us = 100 * SECOND};
    watch_error e[WATCH_WINDOWS];
    share_errors(&run, e);
    EXPECT_NEAR(e[0].points, 50, 1e-6);
    EXPECT_EQ(e[0].window_end_us, 71300000);
    EXPECT_NEAR(e[1].points, 5, 1e-6);
    EXPECT_NEAR(e[2].points, 0.5 / 60 * 100, 1e-6);
    EXPECT(e[2].is_known);
}

/* Principal 0 gets its half and `extra` of the device besides, in pieces one after another. */
typedef struct piece {
    uint64_t end_us;
    double extra;
} piece;

static watch_error error_of(const piece *pieces, size_t n, uint64_t begin_us, uint64_t end_us,
                            int window) {
    span service[16];
    uint64_t at_us = 0;
    for (size_t i = 0; i < n; at_us = pieces[i++].end_us)
        for (uint32_t p = 0; p < 2; p++) {
            double part = p == 0 ? 0.5 + pieces[i].extra : 0.5 - pieces[i].extra;
            service[2 * i + p] =
                (span){p, at_us, pieces[i].end_us, part * (double)(pieces[i].end_us - at_us)};
        }
    const span backlog[] = {{0, 0, at_us, 0}, {1, 0, at_us, 0}};
    scenario run = {.backlog = backlog,
                    .n_backlog = 2,
                    .service = service,
                    .n_service = 2 * n,
                    .begin_us = begin_us,
                    .end_us = end_us};
    watch_error e[WATCH_WINDOWS];
    share_errors(&run, e);
    return e[window];
}

/* Where the worst window is the only one: its end at a change, its begin at a change, and at the
 * first and the last moment of the run. */
static void every_kind_of_worst_window_is_looked_at(void) {
    const piece rising[] = {
        {10 * SECOND, 0}, {12 * SECOND, 0.25}, {12500000, 0.5}, {30 * SECOND, 0}};
    watch_error e = error_of(rising, 4, 0, 30 * SECOND, 0);
    EXPECT_NEAR(e.points, 37.5, 1e-6);
    EXPECT_EQ(e.window_end_us, 12500000);
    const piece falling[] = {{12 * SECOND, 0}, {12500000, 0.5}, {14500000, 0.25}, {30 * SECOND, 0}};
    e = error_of(falling, 4, 0, 30 * SECOND, 0);
    EXPECT_NEAR(e.points, 37.5, 1e-6);
    EXPECT_EQ(e.window_end_us, 13 * SECOND);
    const piece before[] = {{25 * SECOND, 0.5}, {50 * SECOND, 0}};
    e = error_of(before, 2, 20 * SECOND, 32 * SECOND, 1);
    EXPECT_NEAR(e.points, 25, 1e-6); // 5 of 10 s
    EXPECT_EQ(e.window_end_us, 30 * SECOND);
    const piece after[] = {{27 * SECOND, 0}, {50 * SECOND, 0.5}};
    e = error_of(after, 2, 20 * SECOND, 32 * SECOND, 1);
    EXPECT_NEAR(e.points, 25, 1e-6);
    EXPECT_EQ(e.window_end_us, 32 * SECOND);
}

/* ---- fairness ---- */

/* Four flows of weight 1; flow i used the device for seconds[i] of the first ten, in which
 * each had work. */
static watch_figures fairness_of(const double seconds[4]) {
    inferd_err err = {0};
    watch *w;
    watch_figures f;
    EXPECT_EQ(watch_create(NULL, 4, 1, &w, &err), INFERD_OK);
    for (uint32_t i = 0; i < 4; i++) {
        watch_hot(w, i, true, 0);
        if (seconds[i] >= 0) watch_arrive(w, 0, i, GEN_NORMAL, 0);
        if (seconds[i] > 0) watch_serve(w, i, 0, 10 * SECOND, seconds[i] * 1e6);
    }
    EXPECT_EQ(watch_sum(w, 0, 10 * SECOND, &f, &err), INFERD_OK);
    watch_destroy(w);
    return f;
}

static void jain_is_one_when_all_are_alike(void) {
    watch_figures f = fairness_of((double[]){2, 2, 2, 2});
    EXPECT_NEAR(f.jain_weighted, 1, 1e-12);
    EXPECT_NEAR(f.jain_due, 1, 1e-12); // each was due 2.5
    f = fairness_of((double[]){5, 0, 0, 0});
    EXPECT_NEAR(f.jain_weighted, 0.25, 1e-12);
    f = fairness_of((double[]){1, 2, 3, -1}); // the last one never had a request
    EXPECT_NEAR(f.jain_weighted, 36.0 / 42, 1e-12);
    EXPECT_NEAR(f.jain_due, 36.0 / 42, 1e-12);
    f = fairness_of((double[]){0, 0, 0, 0});
    EXPECT(isnan(f.jain_weighted) && isnan(f.jain_due));
}

/* ---- the report ---- */

static void set(figures *f, const char *group, const char *name, const char *unit, int digits,
                const double *values) {
    for (uint32_t i = 0; i < f->n_seeds; i++)
        figures_set(f, group, i, &(figure_row){name, unit, digits, values[i]}, 1);
}

static figures sample(void) {
    figures f;
    figures_init(&f, 11, 5);
    snprintf(f.title, sizeof f.title, "a \"test\"");
    set(&f, "mix-z, M=8", "attainment", "%", 1, (double[]){99.5, 98, 100, 97.25, 99});
    set(&f, "mix-z, M=8", "largest gap", "us", 0, (double[]){5, NAN, 1, 4, 2});
    set(&f, "a\"dv", "refused", "", 2, (double[]){NAN, NAN, NAN, NAN, NAN});
    set(&f, "mix-z, M=8", "error", "points", 3, (double[]){-0.0001, 0, 0.1, 0.0001, 1.0 / 3});
    figures_note(&f, "device", "name", json_string("a \"b\""));
    figures_note(&f, "results", "models", figures_number(12));
    figures_note(&f, "device", "memory_gb", figures_number(0.5));
    figures_note(&f, "results", "rate", figures_number((double)NAN));
    figures_note(&f, "options", "command", json_string("inferd-sim"));
    return f;
}

static void a_median_is_in_the_middle(void) {
    figure_summary s = figures_summary((double[]){99.5, 98, 100, 97.25, 99}, 5);
    EXPECT_NEAR(s.median, 99, 1e-12);
    EXPECT_NEAR(s.min, 97.25, 1e-12);
    EXPECT_NEAR(s.max, 100, 1e-12);
    EXPECT_EQ(s.n, 5);
    s = figures_summary((double[]){5, NAN, 1, 4, 2}, 5);
    EXPECT_NEAR(s.median, 3, 1e-12); // of four: between 2 and 4
    EXPECT_EQ(s.n, 4);
    s = figures_summary((double[]){NAN, NAN}, 2);
    EXPECT(isnan(s.median) && isnan(s.min) && isnan(s.max) && s.n == 0);
    s = figures_summary((double[]){NAN, 7}, 2);
    EXPECT_EQ(s.n, 1);
    EXPECT_NEAR(s.min, 7, 1e-12);
}

static void a_table_is_aligned(void) {
    figures f = sample();
    char text[2048] = {0};
    FILE *out = fmemopen(text, sizeof text, "w");
    INFERD_CHECK(out != NULL);
    figures_print(&f, out);
    fclose(out);
    EXPECT_STR(text, "device: name a \"b\", memory_gb 0.5\n"
                     "results: models 12, rate -\n"
                     "a \"test\"\n"
                     "5 seeds: 11 12 13 14 15\n"
                     "\n"
                     "mix-z, M=8                 median         min         max   n\n"
                     "  attainment   %             99.0        97.2       100.0   5\n"
                     "  largest gap  us               3           1           5   4\n"
                     "  error        points       0.000       0.000       0.333   5\n"
                     "\n"
                     "a\"dv                       median         min         max   n\n"
                     "  refused                       -           -           -   0\n");
    figures_deinit(&f);
}

static void json_has_notes_and_every_seed(void) {
    figures f = sample();
    json_t *json = figures_json(&f);
    char *text = json_dumps(json, JSON_REAL_PRECISION(15));
    EXPECT_STR(text, "{\"title\": \"a \\\"test\\\"\", \"seeds\": [11, 12, 13, 14, 15], "
                     "\"device\": {\"name\": \"a \\\"b\\\"\", \"memory_gb\": 0.5}, "
                     "\"results\": {\"models\": 12, \"rate\": null}, "
                     "\"options\": {\"command\": \"inferd-sim\"}, \"figures\": ["
                     "{\"group\": \"mix-z, M=8\", \"name\": \"attainment\", \"unit\": \"%\", "
                     "\"median\": 99, \"min\": 97.25, \"max\": 100, \"n\": 5, "
                     "\"values\": [99.5, 98, 100, 97.25, 99]}, "
                     "{\"group\": \"mix-z, M=8\", \"name\": \"largest gap\", \"unit\": \"us\", "
                     "\"median\": 3, \"min\": 1, \"max\": 5, \"n\": 4, "
                     "\"values\": [5, null, 1, 4, 2]}, "
                     "{\"group\": \"a\\\"dv\", \"name\": \"refused\", \"unit\": \"\", "
                     "\"median\": null, \"min\": null, \"max\": null, \"n\": 0, "
                     "\"values\": [null, null, null, null, null]}, "
                     "{\"group\": \"mix-z, M=8\", \"name\": \"error\", \"unit\": \"points\", "
                     "\"median\": 0.0001, \"min\": -0.0001, \"max\": 0.333333333333333, \"n\": 5, "
                     "\"values\": [-0.0001, 0, 0.1, 0.0001, 0.333333333333333]}]}");
    free(text);
    text = json_dumps(json, 0); // as it is written: every double reads back the same
    json_t *again = json_loads(text, 0, NULL);
    EXPECT(json_equal(json, again) == 1);
    json_decref(again);
    json_decref(json);
    free(text);
    f.failed = true; // memory was short: an incomplete file is none
    EXPECT(figures_json(&f) == NULL);
    figures_deinit(&f);
}

static const test_case cases[] = {
    TEST(a_request_meets_both_targets_or_misses),
    TEST(what_was_refused_is_missed),
    TEST(a_quantile_is_a_value_that_was_there),
    TEST(shares_come_first_then_weights),
    TEST(urgent_classes_take_surplus_first),
    TEST(too_many_shares_are_refused),
    TEST(slices_are_an_error_in_short_windows),
    TEST(an_idle_flow_is_entitled_to_nothing),
    TEST(the_worst_window_is_found_between_the_seconds),
    TEST(every_kind_of_worst_window_is_looked_at),
    TEST(jain_is_one_when_all_are_alike),
    TEST(a_median_is_in_the_middle),
    TEST(a_table_is_aligned),
    TEST(json_has_notes_and_every_seed),
};
TEST_MAIN(cases)
