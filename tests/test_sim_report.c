/* test_sim_report.c - figures of a run by examples one can compute by hand, and how they are
 * written: table, JSON, CSV and SVG. */
#include "test.h"

#include "../sim/plot.h"
#include "../sim/report.h"
#include "../sim/stats.h"

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
    stats_request r[8] = {done(100, 10, 10), done(100, 10, 20), done(600, 10, 30),
                          done(100, 30, 40), done(600, 30, 50), done(100, 10, 60),
                          done(1, 1, 1),     done(1, 1, 1)};
    r[5].is_warmup = true;
    r[6].end = STATS_REFUSED;
    r[7].end = STATS_UNFINISHED;
    stats_attained a = stats_attain(r, 8);
    EXPECT_EQ(a.n_offered, 7);
    EXPECT_EQ(a.n_met, 2);
    EXPECT_EQ(a.n_output_met, 30);
    EXPECT_EQ(a.n_late_first, 2);
    EXPECT_EQ(a.n_slow, 2);
    EXPECT_EQ(a.n_refused, 1);
    EXPECT_EQ(a.n_unfinished, 1);
    EXPECT_EQ(a.n_failed, 0);
    EXPECT_NEAR(stats_attainment(&a), 2.0 / 7, 1e-12);
    EXPECT_NEAR(stats_goodput(&a, 4), 0.5, 1e-12);
    EXPECT_NEAR(stats_goodput_tokens(&a, 4), 7.5, 1e-12);
    r[7].end = STATS_FAILED;
    a = stats_attain(r, 8);
    EXPECT_EQ(a.n_failed, 1);
    a = stats_attain(r, 0);
    EXPECT(isnan(stats_attainment(&a)));
}

static void the_largest_rate_is_read_off_the_curve(void) {
    const double rates[] = {1, 2, 4, 8}, y[] = {1, 0.98, 0.9, 0.5};
    EXPECT_NEAR(stats_rate_at(rates, y, 4, 0.99), 1.5, 1e-12);
    EXPECT_NEAR(stats_rate_at(rates, y, 4, 0.9), 4, 1e-12);
    EXPECT_NEAR(stats_rate_at(rates, y, 4, 0.7), 6, 1e-12);
    EXPECT_NEAR(stats_rate_at(rates, y, 4, 0.5), 8, 1e-12); // never below
    const double low[] = {0.5, 1, 1, 1};
    EXPECT_NEAR(stats_rate_at(rates, low, 4, 0.9), 0, 1e-12); // what comes back does not count
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

static void entitled(const stats_run *run, const char *backlogged, const double *wanted) {
    bool b[8];
    double out[8];
    inferd_err err = {0};
    for (uint32_t i = 0; i < run->n_flows; i++) b[i] = backlogged[i] == '1';
    EXPECT_EQ(stats_entitle(run, b, out, &err), INFERD_OK);
    for (uint32_t i = 0; i < run->n_flows; i++) EXPECT_NEAR(out[i], wanted[i], 1e-6);
}

static void shares_come_first_then_weights(void) {
    const stats_flow p[] = {
        {SHARE_FIXED, 30, 0, 5, GEN_NORMAL},
        {SHARE_BURST, 20, 0, 1, GEN_NORMAL},
        {SHARE_BESTEFFORT, 7, 0, 3, GEN_NORMAL}, // its share is not looked at
    };
    stats_run run = {.flows = p, .n_flows = 3, .capacity = 100};
    entitled(&run, "111", (double[]){30, 20 + 12.5, 37.5}); // 50 left, one part and three
    entitled(&run, "110", (double[]){30, 70, 0});
    entitled(&run, "100", (double[]){30, 0, 0}); // a hard cap: the rest is idle
    entitled(&run, "001", (double[]){0, 0, 100});
    entitled(&run, "011", (double[]){0, 20 + 20, 60});
    entitled(&run, "000", (double[]){0, 0, 0});
}

static void a_ceiling_leaves_its_part_to_others(void) {
    const stats_flow p[] = {
        {SHARE_BESTEFFORT, 0, 10, 2, GEN_NORMAL},
        {SHARE_BURST, 20, 35, 1, GEN_NORMAL},
        {SHARE_BESTEFFORT, 0, 0, 1, GEN_NORMAL},
        {SHARE_BESTEFFORT, 0, 0, 0, GEN_NORMAL}, // weight 0: nothing
    };
    stats_run run = {.flows = p, .n_flows = 4, .capacity = 100};
    entitled(&run, "1111", (double[]){10, 35, 55, 0});
    entitled(&run, "1101", (double[]){10, 35, 0, 0}); // nobody takes the rest
    run.capacity = 50; // 30 of surplus: 15 : 7.5 : 7.5, then 5 more for two
    entitled(&run, "1111", (double[]){10, 30, 10, 0});
}

static void urgent_classes_take_surplus_first(void) {
    const stats_flow p[] = {
        {SHARE_BESTEFFORT, 0, 0, 1, GEN_HIGH},
        {SHARE_BURST, 10, 0, 1, GEN_NORMAL},
        {SHARE_BESTEFFORT, 0, 0, 3, GEN_BATCH},
    };
    stats_run run = {.flows = p, .n_flows = 3, .capacity = 100};
    entitled(&run, "111", (double[]){90, 10, 0});
    entitled(&run, "011", (double[]){0, 100, 0});
    run.floor_percent = 10; // of the surplus of 90: 9, one part and three
    entitled(&run, "111", (double[]){81, 10 + 2.25, 6.75});
    entitled(&run, "101", (double[]){90, 0, 10});
    entitled(&run, "001", (double[]){0, 0, 100});                   // nobody to be protected from
    const stats_flow paused[] = {{SHARE_BURST, 10, 0, 0, GEN_HIGH}, // its share, no surplus
                                 {SHARE_BESTEFFORT, 0, 30, 1, GEN_NORMAL},
                                 {SHARE_BESTEFFORT, 0, 0, 1, GEN_BATCH}};
    run.flows = paused;
    run.floor_percent = 10; // below the class that takes first: 9, then 30, then the rest
    entitled(&run, "111", (double[]){10, 30, 60});
    run.capacity = 40; // 3 reserved of 30
    entitled(&run, "111", (double[]){10, 27, 3});
}

static void too_many_shares_are_refused(void) {
    const stats_flow p[] = {{SHARE_FIXED, 60, 0, 1, GEN_NORMAL},
                            {SHARE_BURST, 70, 0, 1, GEN_NORMAL}};
    stats_run run = {.flows = p, .n_flows = 2, .capacity = 100};
    bool both[2] = {true, true};
    double out[2];
    inferd_err err = {0};
    EXPECT_EQ(stats_entitle(&run, both, out, &err), INFERD_EINVAL);
    EXPECT_STR(err.text, "shares add up to 130 percent, the capacity is 100");
    run.capacity = 200;
    EXPECT_EQ(stats_entitle(&run, both, out, &err), INFERD_OK);
    EXPECT_NEAR(out[1], 140, 1e-9);
}

/* ---- share error ---- */

static void share_errors(const stats_run *run, stats_share_error out[STATS_WINDOWS]) {
    inferd_err err = {0};
    EXPECT_EQ(stats_share_errors(run, out, &err), INFERD_OK);
    EXPECT_STR(err.text, "");
}

static const stats_flow HALVES[] = {{SHARE_BESTEFFORT, 0, 0, 1, GEN_NORMAL},
                                    {SHARE_BESTEFFORT, 0, 0, 1, GEN_NORMAL}};

/* Two that are entitled to a half each take turns of 400 ms.  In a window of one second each gets
 * between 400 and 600 ms: the error is 10 points.  In ten seconds, where a window begins and ends
 * with the same turn, it is 2 points: 5.2 of 10 s. */
static void slices_are_an_error_in_short_windows(void) {
    enum { SLICES = 50 }; // 20 s
    stats_span service[SLICES + 2];
    for (uint32_t i = 0; i < SLICES; i++)
        service[i] = (stats_span){i % 2, i * 400000, (i + 1) * 400000, 400000};
    /* Spans without time are no service; the two of principal 0's backlog touch. */
    service[SLICES] = (stats_span){0, 5, 5, 0};
    service[SLICES + 1] = (stats_span){1, 5, 5, 0};
    const stats_span backlog[] = {{0, 7 * SECOND, 20 * SECOND, 0},
                                  {0, 0, 7 * SECOND, 0},
                                  {1, 4, 4, 0},
                                  {1, 0, 20 * SECOND, 0}};
    stats_run run = {.flows = HALVES,
                     .n_flows = 2,
                     .capacity = 100,
                     .backlog = backlog,
                     .n_backlog = 4,
                     .service = service,
                     .n_service = SLICES + 2,
                     .begin_us = 0,
                     .end_us = 20 * SECOND};
    stats_share_error e[STATS_WINDOWS];
    share_errors(&run, e);
    EXPECT(e[0].is_known && e[1].is_known && !e[2].is_known);
    EXPECT_NEAR(e[0].points, 10, 1e-6);
    EXPECT_NEAR(e[0].entitled, 50, 1e-6);
    EXPECT_NEAR(fabs(e[0].measured - 50), 10, 1e-6);
    EXPECT_NEAR(e[1].points, 2, 1e-6);
    double used[2];
    stats_used_us(&run, used);
    EXPECT_NEAR(used[0], 10e6, 1);
    EXPECT_NEAR(used[1], 10e6, 1);
    EXPECT_EQ(stats_entitled_us(&run, used, NULL), INFERD_OK);
    EXPECT_NEAR(used[0], 10e6, 1);
    EXPECT_NEAR(used[1], 10e6, 1);
    run.begin_us = 1000000, run.end_us = 2100000; // 200 of turn 2, 400 of 3, 400 of 4, 100 of 5
    stats_used_us(&run, used);
    EXPECT_NEAR(used[0], 600000, 1);
    EXPECT_NEAR(used[1], 500000, 1);
    EXPECT_EQ(stats_entitled_us(&run, used, NULL), INFERD_OK); // half of 1.1 seconds
    EXPECT_NEAR(used[0], 550000, 1);
    EXPECT_NEAR(used[1], 550000, 1);
}

/* Principal 1 has nothing to do from second 3 to second 5: principal 0 is entitled to all of that
 * time.  It gets it, but for the last half second, in which the device stands still. */
static void an_idle_flow_is_entitled_to_nothing(void) {
    const stats_span backlog[] = {
        {0, 0, 12 * SECOND, 0}, {1, 5 * SECOND, 12 * SECOND, 0}, {1, 0, 3 * SECOND, 0}};
    const stats_span service[] = {
        {0, 0, 3 * SECOND, 1.5e6},           {1, 0, 3 * SECOND, 1.5e6},
        {0, 3 * SECOND, 4500000, 1.5e6},     {0, 5 * SECOND, 12 * SECOND, 3.5e6},
        {1, 5 * SECOND, 12 * SECOND, 3.5e6},
    };
    stats_run run = {.flows = HALVES,
                     .n_flows = 2,
                     .capacity = 100,
                     .backlog = backlog,
                     .n_backlog = 3,
                     .service = service,
                     .n_service = 5,
                     .begin_us = 0,
                     .end_us = 12 * SECOND};
    stats_share_error e[STATS_WINDOWS];
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
    const stats_span backlog[] = {{0, 0, 100 * SECOND, 0}, {1, 0, 100 * SECOND, 0}};
    const stats_span service[] = {
        {0, 0, 70300000, 35150000},
        {1, 0, 70300000, 35150000},
        {0, 70300000, 71300000, 1000000}, // one second alone
        {0, 71300000, 100 * SECOND, 14350000},
        {1, 71300000, 100 * SECOND, 14350000},
    };
    stats_run run = {.flows = HALVES,
                     .n_flows = 2,
                     .capacity = 100,
                     .backlog = backlog,
                     .n_backlog = 2,
                     .service = service,
                     .n_service = 5,
                     .begin_us = 0,
                     .end_us = 100 * SECOND};
    stats_share_error e[STATS_WINDOWS];
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

static stats_share_error error_of(const piece *pieces, size_t n, uint64_t begin_us, uint64_t end_us,
                                  int window) {
    stats_span service[16];
    uint64_t at_us = 0;
    for (size_t i = 0; i < n; at_us = pieces[i++].end_us)
        for (uint32_t p = 0; p < 2; p++) {
            double part = p == 0 ? 0.5 + pieces[i].extra : 0.5 - pieces[i].extra;
            service[2 * i + p] =
                (stats_span){p, at_us, pieces[i].end_us, part * (double)(pieces[i].end_us - at_us)};
        }
    const stats_span backlog[] = {{0, 0, at_us, 0}, {1, 0, at_us, 0}};
    stats_run run = {.flows = HALVES,
                     .n_flows = 2,
                     .capacity = 100,
                     .backlog = backlog,
                     .n_backlog = 2,
                     .service = service,
                     .n_service = 2 * n,
                     .begin_us = begin_us,
                     .end_us = end_us};
    stats_share_error e[STATS_WINDOWS];
    share_errors(&run, e);
    return e[window];
}

/* Where the worst window is the only one: its end at a change, its begin at a change, and at the
 * first and the last moment of the run. */
static void every_kind_of_worst_window_is_looked_at(void) {
    const piece rising[] = {
        {10 * SECOND, 0}, {12 * SECOND, 0.25}, {12500000, 0.5}, {30 * SECOND, 0}};
    stats_share_error e = error_of(rising, 4, 0, 30 * SECOND, 0);
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

static void wrong_books_are_refused(void) {
    const stats_span twice[] = {{0, 0, 10, 0}, {0, 5, 15, 0}};
    stats_run run = {.flows = HALVES,
                     .n_flows = 2,
                     .capacity = 100,
                     .backlog = twice,
                     .n_backlog = 2,
                     .end_us = 100};
    stats_share_error e[STATS_WINDOWS];
    inferd_err err = {0};
    EXPECT_EQ(stats_share_errors(&run, e, &err), INFERD_EINVAL);
    EXPECT_STR(err.text, "backlog of flow 0 overlaps itself at 5 us");
    run.capacity = 0;
    EXPECT_EQ(stats_share_errors(&run, e, &err), INFERD_EINVAL);
    EXPECT_STR(err.text, "capacity is 0 percent, expected more than 0");
}

/* ---- fairness ---- */

static void jain_is_one_when_all_are_alike(void) {
    EXPECT_NEAR(stats_jain((double[]){3, 3, 3}, 3), 1, 1e-12);
    EXPECT_NEAR(stats_jain((double[]){5, 0, 0, 0}, 4), 0.25, 1e-12);
    EXPECT_NEAR(stats_jain((double[]){1, 2, 3}, 3), 36.0 / 42, 1e-12);
    EXPECT(isnan(stats_jain((double[]){0, 0}, 2)));
    EXPECT(isnan(stats_jain(NULL, 0)));
}

/* a is served in [0, 4), b in [4, 10), c never; weights 1, 2, 1.  Both are backlogged in [0, 8):
 * a gains 4 on b, then b gains 2 by 8.  c is backlogged in [6, 10) only. */
static void the_gap_counts_while_both_wait(void) {
    const stats_flow p[] = {{SHARE_BESTEFFORT, 0, 0, 1, GEN_NORMAL},
                            {SHARE_BESTEFFORT, 0, 0, 2, GEN_NORMAL},
                            {SHARE_BESTEFFORT, 0, 0, 1, GEN_NORMAL}};
    const stats_span service[] = {{0, 0, 4 * SECOND, 4e6}, {1, 4 * SECOND, 10 * SECOND, 6e6}};
    const stats_span backlog[] = {{1, 0, 5 * SECOND, 0},
                                  {1, 5 * SECOND, 10 * SECOND, 0}, // touch: one stretch
                                  {0, 0, 8 * SECOND, 0},
                                  {2, 6 * SECOND, 10 * SECOND, 0}};
    stats_run run = {.flows = p,
                     .n_flows = 3,
                     .capacity = 100,
                     .backlog = backlog,
                     .n_backlog = 4,
                     .service = service,
                     .n_service = 2,
                     .end_us = 10 * SECOND};
    stats_gap g;
    inferd_err err = {0};
    EXPECT_EQ(stats_service_gap(&run, &g, &err), INFERD_OK);
    EXPECT(g.is_known);
    EXPECT_NEAR(g.gap_us, 4e6, 1e-3);
    EXPECT_EQ(g.a, 0);
    EXPECT_EQ(g.b, 1);
    EXPECT_EQ(g.begin_us, 0);
    EXPECT_EQ(g.end_us, 8 * SECOND);
    const stats_span later[] = {{1, 3 * SECOND, 10 * SECOND, 0},
                                {0, 3 * SECOND, 8 * SECOND, 0},
                                {2, 6 * SECOND, 10 * SECOND, 0}};
    run.backlog = later, run.n_backlog = 3; // a and b: +1, then -2; b and c: 4 / 2
    EXPECT_EQ(stats_service_gap(&run, &g, &err), INFERD_OK);
    EXPECT_NEAR(g.gap_us, 2e6, 1e-3);
    run.n_backlog = 2;
    EXPECT_EQ(stats_service_gap(&run, &g, &err), INFERD_OK);
    EXPECT_NEAR(g.gap_us, 2e6, 1e-3);
    run.n_backlog = 1;
    EXPECT_EQ(stats_service_gap(&run, &g, &err), INFERD_OK);
    EXPECT(!g.is_known);
}

/* The same service in stretches: what happens between them is not counted. */
static void each_stretch_of_waiting_is_looked_at(void) {
    stats_flow p[] = {{SHARE_BESTEFFORT, 0, 0, 1, GEN_NORMAL},
                      {SHARE_BESTEFFORT, 0, 0, 1, GEN_NORMAL}};
    const stats_span service[] = {{0, 0, 4 * SECOND, 4e6}, {1, 4 * SECOND, 10 * SECOND, 6e6}};
    stats_run run = {.flows = p,
                     .n_flows = 2,
                     .capacity = 100,
                     .service = service,
                     .n_service = 2,
                     .end_us = 10 * SECOND};
    for (uint32_t split = 0; split < 2; split++) { // whichever of the two pauses
        const stats_span backlog[] = {{split, 0, 1 * SECOND, 0},
                                      {split, 2 * SECOND, 5 * SECOND, 0},
                                      {split, 6 * SECOND, 9 * SECOND, 0},
                                      {1 - split, 0, 10 * SECOND, 0}};
        stats_gap g;
        inferd_err err = {0};
        run.backlog = backlog, run.n_backlog = 4;
        EXPECT_EQ(stats_service_gap(&run, &g, &err), INFERD_OK);
        EXPECT_NEAR(g.gap_us, 3e6, 1e-3); // 1, then 2 and back by 1, then 3
        EXPECT_EQ(g.begin_us, 6 * SECOND);
        EXPECT_EQ(g.end_us, 9 * SECOND);
    }
    const stats_span apart[] = {{0, 0, 4 * SECOND, 0}, {1, 4 * SECOND, 9 * SECOND, 0}};
    const stats_span together[] = {{0, 0, 4 * SECOND, 0}, {1, 0, 9 * SECOND, 0}};
    stats_gap g;
    run.backlog = apart, run.n_backlog = 2;
    EXPECT_EQ(stats_service_gap(&run, &g, NULL), INFERD_OK);
    EXPECT(!g.is_known);
    run.backlog = together;
    p[1].weight = 0; // paused: nobody to compare with
    EXPECT_EQ(stats_service_gap(&run, &g, NULL), INFERD_OK);
    EXPECT(!g.is_known);
}

/* ---- the report ---- */

static const uint64_t SEEDS[] = {11, 12, 13, 14, 15, 16};

static void set(figures *f, const char *group, const char *name, const char *unit, uint32_t digits,
                const double *values) {
    inferd_err err = {0};
    for (uint32_t i = 0; i < f->n_seeds; i++)
        EXPECT_EQ(figures_set(f, group, name, unit, digits, i, values[i], &err), INFERD_OK);
}

static figures sample(void) {
    figures f;
    inferd_err err = {0};
    EXPECT_EQ(figures_init(&f, "a \"test\"", SEEDS, 5, &err), INFERD_OK);
    set(&f, "mix-z, M=8", "attainment", "%", 1, (double[]){99.5, 98, 100, 97.25, 99});
    set(&f, "mix-z, M=8", "größte Lücke", "us", 0, (double[]){5, NAN, 1, 4, 2});
    set(&f, "a\"dv", "refused", "", 2, (double[]){NAN, NAN, NAN, NAN, NAN});
    set(&f, "mix-z, M=8", "error", "points", 3, (double[]){-0.0001, 0, 0.1, 1e-7, 1.0 / 3});
    return f;
}

static void a_median_is_in_the_middle(void) {
    figures f = sample();
    figure_summary s = figures_summary(&f, figures_find(&f, "mix-z, M=8", "attainment"));
    EXPECT_NEAR(s.median, 99, 1e-12);
    EXPECT_NEAR(s.min, 97.25, 1e-12);
    EXPECT_NEAR(s.max, 100, 1e-12);
    EXPECT_EQ(s.n, 5);
    s = figures_summary(&f, figures_find(&f, "mix-z, M=8", "größte Lücke"));
    EXPECT_NEAR(s.median, 3, 1e-12); // of four: between 2 and 4
    EXPECT_EQ(s.n, 4);
    s = figures_summary(&f, figures_find(&f, "a\"dv", "refused"));
    EXPECT(isnan(s.median) && isnan(s.min) && isnan(s.max) && s.n == 0);
    EXPECT(figures_find(&f, "a\"dv", "attainment") == NULL);
    inferd_err err = {0};
    EXPECT_EQ(figures_set(&f, "x", "set for one seed", "s", 1, 3, 7, &err), INFERD_OK);
    s = figures_summary(&f, figures_find(&f, "x", "set for one seed"));
    EXPECT_EQ(s.n, 1);
    EXPECT_NEAR(s.min, 7, 1e-12);
    figures_deinit(&f);
}

static void a_table_is_aligned(void) {
    figures f = sample();
    buf out;
    buf_init(&out, 0);
    figures_text(&f, &out);
    EXPECT_STR(buf_cstr(&out), "a \"test\"\n"
                               "5 seeds: 11 12 13 14 15\n"
                               "\n"
                               "mix-z, M=8                  median         min         max   n\n"
                               "  attainment    %             99.0        97.2       100.0   5\n"
                               "  größte Lücke  us               3           1           5   4\n"
                               "  error         points       0.000       0.000       0.333   5\n"
                               "\n"
                               "a\"dv                        median         min         max   n\n"
                               "  refused                        -           -           -   0\n");
    buf_deinit(&out);
    figures_deinit(&f);
}

static void json_and_csv_have_every_seed(void) {
    figures f = sample();
    buf out;
    buf_init(&out, 0);
    figures_json(&f, &out);
    EXPECT_STR(buf_cstr(&out),
               "{\n"
               "  \"title\": \"a \\\"test\\\"\",\n"
               "  \"seeds\": [11, 12, 13, 14, 15],\n"
               "  \"figures\": [\n"
               "    {\"group\": \"mix-z, M=8\", \"name\": \"attainment\", \"unit\": \"%\", "
               "\"median\": 99, \"min\": 97.25, \"max\": 100, \"n\": 5, "
               "\"values\": [99.5, 98, 100, 97.25, 99]},\n"
               "    {\"group\": \"mix-z, M=8\", \"name\": \"größte Lücke\", \"unit\": \"us\", "
               "\"median\": 3, \"min\": 1, \"max\": 5, \"n\": 4, "
               "\"values\": [5, null, 1, 4, 2]},\n"
               "    {\"group\": \"a\\\"dv\", \"name\": \"refused\", \"unit\": \"\", "
               "\"median\": null, \"min\": null, \"max\": null, \"n\": 0, "
               "\"values\": [null, null, null, null, null]},\n"
               "    {\"group\": \"mix-z, M=8\", \"name\": \"error\", \"unit\": \"points\", "
               "\"median\": 1e-07, \"min\": -0.0001, \"max\": 0.3333333333333333, \"n\": 5, "
               "\"values\": [-0.0001, 0, 0.1, 1e-07, 0.3333333333333333]}\n"
               "  ]\n"
               "}\n");
    buf_clear(&out);
    figures_csv(&f, &out);
    EXPECT_STR(buf_cstr(&out),
               "group,name,unit,n,median,min,max,seed_11,seed_12,seed_13,seed_14,seed_15\n"
               "\"mix-z, M=8\",attainment,%,5,99,97.25,100,99.5,98,100,97.25,99\n"
               "\"mix-z, M=8\",größte Lücke,us,4,3,1,5,5,,1,4,2\n"
               "\"a\"\"dv\",refused,,0,,,,,,,,\n"
               "\"mix-z, M=8\",error,points,5,1e-07,-0.0001,0.3333333333333333,"
               "-0.0001,0,0.1,1e-07,0.3333333333333333\n");
    buf_deinit(&out);
    figures_deinit(&f);
}

static void notes_stand_in_sections(void) {
    figures f;
    inferd_err err = {0};
    buf out;
    EXPECT_EQ(figures_init(&f, "t", SEEDS, 5, &err), INFERD_OK);
    EXPECT_EQ(figures_note_text(&f, "device", "name", "a \"b\"", &err), INFERD_OK);
    EXPECT_EQ(figures_note(&f, "results", "models", 12, &err), INFERD_OK);
    EXPECT_EQ(figures_note(&f, "device", "memory_gb", 0.5, &err), INFERD_OK);
    EXPECT_EQ(figures_note(&f, "results", "rate", (double)NAN, &err), INFERD_OK);
    EXPECT_EQ(figures_note(&f, "device", "name", 1, &err), INFERD_EINVAL);
    EXPECT_STR(err.text, "device: name is noted twice");
    buf_init(&out, 0);
    figures_json(&f, &out);
    EXPECT_STR(buf_cstr(&out), "{\n  \"title\": \"t\",\n  \"seeds\": [11, 12, 13, 14, 15],\n"
                               "  \"device\": {\"name\": \"a \\\"b\\\"\", \"memory_gb\": 0.5},\n"
                               "  \"results\": {\"models\": 12, \"rate\": null},\n"
                               "  \"figures\": []\n}\n");
    buf_deinit(&out);
    for (int i = 0; i < FIGURES_NOTES_MAX - 4; i++) {
        char name[32];
        snprintf(name, sizeof name, "n%d", i);
        if (figures_note_text(&f, "many", name, "x", &err) != INFERD_OK) test_failures++;
    }
    EXPECT_EQ(figures_note(&f, "many", "one more", 1, &err), INFERD_ETOOLONG);
    EXPECT_STR(err.text, "more than 128 notes");
    figures_deinit(&f);
}

static void figures_that_contradict_are_refused(void) {
    figures f;
    inferd_err err = {0};
    EXPECT_EQ(figures_init(&f, "x", SEEDS, 4, &err), INFERD_EINVAL);
    EXPECT_STR(err.text, "4 seeds, expected 5 to 64");
    const uint64_t twice[] = {1, 2, 3, 4, 2};
    EXPECT_EQ(figures_init(&f, "x", twice, 5, &err), INFERD_EINVAL);
    EXPECT_STR(err.text, "seed 2 occurs twice");
    EXPECT_EQ(figures_init(&f, "x", SEEDS, 6, &err), INFERD_OK);
    EXPECT_EQ(figures_set(&f, "g", "n", "s", 1, 0, 1, &err), INFERD_OK);
    EXPECT_EQ(figures_set(&f, "g", "n", "ms", 1, 1, 1, &err), INFERD_EINVAL);
    EXPECT_STR(err.text, "g: n is in \"s\", not in \"ms\"");
    EXPECT_EQ(figures_set(&f, "g", "n", "s", 1, 0, 1, &err), INFERD_EINVAL);
    EXPECT_STR(err.text, "g: n of seed 11 is set twice");
    char longer[80];
    memset(longer, 'x', sizeof longer);
    longer[79] = 0;
    EXPECT_EQ(figures_set(&f, "g", longer, "s", 1, 0, 1, &err), INFERD_ETOOLONG);
    EXPECT_STR(err.text, "\"xxxxxxxxxxxxxxxxxxxx...\" has 79 bytes, at most 63");
    EXPECT_EQ(f.n, 1);
    for (uint32_t i = 0; i < FIGURES_MAX - 1; i++) {
        char name[32];
        snprintf(name, sizeof name, "f%u", i);
        if (figures_set(&f, "h", name, "s", 1, 0, 1, &err) != INFERD_OK) test_failures++;
    }
    EXPECT_EQ(figures_set(&f, "h", "one more", "s", 1, 0, 1, &err), INFERD_ETOOLONG);
    EXPECT_STR(err.text, "more than 4096 figures");
    figures_deinit(&f);
}

static void foreign_bytes_become_question_marks(void) {
    figures f;
    inferd_err err = {0};
    EXPECT_EQ(figures_init(&f, "a\xff\x01\xc3(\xe2\x82\xac\xed\xa0\x80\\", SEEDS, 5, &err),
              INFERD_OK);
    buf out;
    buf_init(&out, 0);
    figures_json(&f, &out);
    EXPECT_STR(buf_cstr(&out), "{\n  \"title\": \"a??"
                               "?"
                               "(\xe2\x82\xac???\\\\\",\n"
                               "  \"seeds\": [11, 12, 13, 14, 15],\n  \"figures\": []\n}\n");
    buf_deinit(&out);
    figures_deinit(&f);
}

/* ---- plots ---- */

/* A strict little reader: tags nest, attributes are quoted and appear once, entities are known.
 * Returns the number of elements; 0: not well-formed. */
static uint32_t xml_count(const char *p) {
    const char *open[16];
    size_t length[16], depth = 0;
    uint32_t n = 0;
    bool was_root = false;
    for (; *p != 0; p++) {
        if (*p == '&') {
            static const char *const ENTITIES[] = {"&lt;", "&gt;", "&amp;", "&quot;"};
            bool known = false;
            for (int i = 0; i < 4; i++) known |= strncmp(p, ENTITIES[i], strlen(ENTITIES[i])) == 0;
            if (!known) return 0;
        }
        if ((unsigned char)*p < 0x20 && *p != '\n') return 0;
        if (*p != '<') {
            if (depth == 0 && *p != '\n') return 0;
            continue;
        }
        if (p[1] == '/') {
            p += 2;
            if (depth-- == 0 || strncmp(p, open[depth], length[depth]) != 0) return 0;
            p += length[depth];
            if (*p != '>') return 0;
            continue;
        }
        if (depth == 0 && was_root) return 0;
        was_root = true;
        const char *name = ++p;
        const char *attributes[24];
        size_t attribute_length[24], n_attributes = 0;
        while (*p >= 'a' && *p <= 'z') p++;
        size_t name_length = (size_t)(p - name);
        if (name_length == 0) return 0;
        while (*p == ' ') {
            const char *attribute = ++p;
            while ((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || *p == '-' ||
                   (*p >= '0' && *p <= '9'))
                p++;
            for (size_t i = 0; i < n_attributes; i++)
                if (attribute_length[i] == (size_t)(p - attribute) &&
                    strncmp(attributes[i], attribute, attribute_length[i]) == 0)
                    return 0;
            attributes[n_attributes] = attribute;
            attribute_length[n_attributes++] = (size_t)(p - attribute);
            if (p == attribute || p[0] != '=' || p[1] != '"') return 0;
            for (p += 2; *p != '"'; p++)
                if (*p == 0 || *p == '<' || *p == '\n') return 0;
            p++;
        }
        n++;
        if (p[0] == '/' && p[1] == '>') {
            p++;
            continue;
        }
        if (*p != '>' || depth == 16) return 0;
        open[depth] = name;
        length[depth++] = name_length;
    }
    return depth == 0 ? n : 0;
}

static void draw(const plot *p, buf *out) {
    inferd_err err = {0};
    buf_init(out, 0);
    EXPECT_EQ(plot_svg(p, out, &err), INFERD_OK);
    EXPECT_STR(err.text, "");
    EXPECT(xml_count(buf_cstr(out)) > 10);
    EXPECT(strstr(buf_cstr(out), "nan") == NULL && strstr(buf_cstr(out), "inf") == NULL);
    EXPECT(strstr(buf_cstr(out), "<script") == NULL && strstr(buf_cstr(out), "href") == NULL);
}

static size_t count(const char *text, const char *what) {
    size_t n = 0;
    for (const char *p = text; (p = strstr(p, what)) != NULL; p++) n++;
    return n;
}

static const double RATE[] = {1, 2, 4, 8}, GOOD[] = {1, 0.98, 0.9, 0.5},
                    LOW[] = {1, 0.97, 0.8, 0.4}, HIGH[] = {1, 0.99, 0.95, 0.6};

static void a_curve_has_axes_levels_and_a_band(void) {
    const plot_series s[] = {{"shared & <fair>", PLOT_LINE, RATE, GOOD, LOW, HIGH, 4},
                             {"first come", PLOT_LINE, RATE, LOW, NULL, NULL, 4}};
    double levels[] = {0.9, 0.99};
    plot p = {.title = "Attainment \"<90 %>\"",
              .x_label = "rate, 1/s",
              .y_label = "met",
              .series = s,
              .n_series = 2,
              .levels = levels,
              .n_levels = 2};
    buf out, again;
    draw(&p, &out);
    const char *svg = buf_cstr(&out);
    EXPECT(strstr(svg, "<title>Attainment &quot;&lt;90 %&gt;&quot;</title>") != NULL);
    EXPECT(strstr(svg, ">shared &amp; &lt;fair&gt;</text>") != NULL);
    EXPECT(strstr(svg, "prefers-color-scheme:dark") != NULL);
    EXPECT_EQ(count(svg, "<path"), 2);
    EXPECT_EQ(count(svg, "<polygon"), 1);
    EXPECT_EQ(count(svg, "<circle"), 8);
    EXPECT_EQ(count(svg, "class=\"level\""), 2);
    /* y from 0.4 to 1 by 0.1 has seven lines; x from 1 to 8 by 2: 2, 4, 6, 8. */
    EXPECT_EQ(count(svg, "class=\"grid\""), 7);
    EXPECT(strstr(svg, ">0.4</text>") != NULL && strstr(svg, ">1.0</text>") != NULL);
    EXPECT(strstr(svg, ">8</text>") != NULL && strstr(svg, ">3</text>") == NULL);
    /* 0.9 is a sixth below the top of an area of 320. */
    EXPECT(strstr(svg, " y1=\"97.33\"") != NULL);
    /* At rate 4 the band is from 0.8 to 0.95: 106.67 and 26.67 px below the top. */
    EXPECT_EQ(count(svg, ",106.67 "), 1);
    EXPECT_EQ(count(svg, ",26.67 "), 1);
    draw(&p, &again);
    EXPECT_STR(svg, buf_cstr(&again));
    buf_deinit(&out);
    buf_deinit(&again);
    levels[1] = 1.5; // the axis reaches a level above the data, unless a range is asked for
    draw(&p, &out);
    EXPECT_EQ(count(buf_cstr(&out), "class=\"level\""), 2);
    EXPECT(strstr(buf_cstr(&out), " y1=\"44.00\"") != NULL);
    EXPECT(strstr(buf_cstr(&out), ">1.6</text>") != NULL);
    buf_deinit(&out);
    p.has_y_range = true, p.y_min = 0, p.y_max = 1;
    draw(&p, &out);
    EXPECT_EQ(count(buf_cstr(&out), "class=\"level\""), 1);
    buf_deinit(&out);
}

static const char *path_of(buf *out) {
    const char *path = strstr(buf_cstr(out), " d=\"");
    return path == NULL ? "" : path + 4;
}

/* The area is 668 wide and 320 high. */
static void lines_and_steps_go_where_the_points_are(void) {
    const double x[] = {0, 5, 10}, y[] = {0, 10, 5}, gap[] = {0, NAN, 5};
    plot_series s = {"a", PLOT_LINE, x, y, NULL, NULL, 3};
    const plot p = {.title = "t", .x_label = "x", .y_label = "y", .series = &s, .n_series = 1};
    buf out;
    draw(&p, &out);
    EXPECT(strncmp(path_of(&out), "M0.00 320.00L334.00 0.00L668.00 160.00\"", 39) == 0);
    buf_deinit(&out);
    s.mark = PLOT_STEP;
    draw(&p, &out);
    EXPECT(strncmp(path_of(&out), "M0.00 320.00H334.00V0.00H668.00V160.00\"", 39) == 0);
    EXPECT_EQ(count(buf_cstr(&out), "<circle"), 0);
    buf_deinit(&out);
    s.mark = PLOT_LINE, s.y = gap;
    draw(&p, &out);
    EXPECT(strncmp(path_of(&out), "M0.00 320.00M668.00 0.00\"", 25) == 0);
    EXPECT_EQ(count(buf_cstr(&out), "<circle"), 2);
    buf_deinit(&out);
}

static void a_long_series_is_thinned_and_keeps_its_peak(void) {
    enum { N = 200000 };
    double *x = malloc(N * sizeof *x), *y = malloc(N * sizeof *y);
    INFERD_CHECK(x != NULL && y != NULL);
    for (int i = 0; i < N; i++) x[i] = i, y[i] = i % 7 * 0.1;
    y[123457] = 60;
    y[77777] = -60;
    plot_series s = {"long", PLOT_STEP, x, y, NULL, NULL, N};
    const plot p = {.title = "t", .x_label = "s", .y_label = "y", .series = &s, .n_series = 1};
    buf out;
    draw(&p, &out);
    EXPECT(out.n < 100000);
    EXPECT(strstr(path_of(&out), "V0.00") != NULL);   // the top of the area
    EXPECT(strstr(path_of(&out), "V320.00") != NULL); // its foot
    EXPECT_EQ(count(path_of(&out), "V0.00"), 1);
    buf_deinit(&out);
    free(x);
    free(y);
}

static void bars_stand_on_zero(void) {
    const double a[] = {10, -5}, lo[] = {8, -6}, hi[] = {12, -4}, b[] = {4, NAN};
    const char *const names[] = {"LRU", "rule & random"};
    const plot_series s[] = {{"a", PLOT_BAR, NULL, a, lo, hi, 2},
                             {"b", PLOT_BAR, NULL, b, NULL, NULL, 2}};
    const plot p = {.title = "bars",
                    .x_label = "policy",
                    .y_label = "%",
                    .series = s,
                    .n_series = 2,
                    .bar_names = names,
                    .n_bars = 2};
    buf out;
    draw(&p, &out);
    const char *svg = buf_cstr(&out);
    EXPECT_EQ(count(svg, "<rect"), 1 + 3 + 2); // ground, bars, legend
    EXPECT(strstr(svg, ">rule &amp; random</text>") != NULL);
    /* y from -10 to 15 by 5: 12.8 px a unit, zero at 192. */
    EXPECT(strstr(svg, " y=\"64.00\" width=\"") != NULL);
    EXPECT(strstr(svg, " height=\"128.00\" class=\"f0\"") != NULL);
    EXPECT(strstr(svg, " y=\"192.00\" width=\"") != NULL);
    EXPECT(strstr(svg, " height=\"64.00\" class=\"f0\"") != NULL);
    EXPECT_EQ(count(svg, "class=\"whisker\""), 2);
    buf_deinit(&out);
    plot_series high = {"high", PLOT_BAR, NULL, (const double[]){90, 100}, NULL, NULL, 2};
    plot one = p;
    one.series = &high, one.n_series = 1;
    draw(&one, &out); // not cut at 90: the length of a bar is its value
    EXPECT(strstr(buf_cstr(&out), " height=\"288.00\" class=\"f0\"") != NULL);
    buf_deinit(&out);
}

static void odd_ranges_have_an_axis(void) {
    const double x[] = {3}, y[] = {0}, none[] = {NAN}, large[] = {1.5e9}, tiny[] = {1e-9};
    const double *ys[] = {y, none, large, tiny};
    for (int i = 0; i < 4; i++) {
        plot_series s = {"one", PLOT_LINE, x, ys[i], NULL, NULL, 1};
        plot p = {.title = "t", .x_label = "x", .y_label = "y", .series = &s, .n_series = 1};
        buf out;
        draw(&p, &out);
        EXPECT(count(buf_cstr(&out), "class=\"grid\"") >= 3);
        EXPECT(count(buf_cstr(&out), "class=\"grid\"") <= 12);
        EXPECT(strstr(buf_cstr(&out), ">-0<") == NULL && strstr(buf_cstr(&out), ">-0.0<") == NULL);
        buf_deinit(&out);
    }
    plot_series s = {"one", PLOT_LINE, RATE, GOOD, NULL, NULL, 4};
    plot p = {.title = "t",
              .x_label = "x",
              .y_label = "y",
              .series = &s,
              .n_series = 1,
              .has_y_range = true,
              .y_min = 0,
              .y_max = 1};
    buf out;
    draw(&p, &out);
    EXPECT(strncmp(path_of(&out), "M0.00 0.00L95.43 6.40L", 22) == 0);
    buf_deinit(&out);
}

static void cannot_draw(const plot *p, const char *sentence) {
    buf out;
    inferd_err err = {0};
    buf_init(&out, 0);
    EXPECT_EQ(plot_svg(p, &out, &err), INFERD_EINVAL);
    EXPECT_STR(err.text, sentence);
    EXPECT_EQ(out.n, 0);
    buf_deinit(&out);
}

static void what_cannot_be_drawn_is_named(void) {
    const double back[] = {1, 0}, y[] = {1, INFINITY};
    plot_series s[2] = {{"a", PLOT_LINE, back, RATE, NULL, NULL, 2}};
    plot p = {.title = "t", .x_label = "x", .y_label = "y", .series = s, .n_series = 1};
    cannot_draw(&p, "plot t: series 0: x[1] = 0 is behind 1");
    s[0].x = RATE, s[0].y = y;
    cannot_draw(&p, "plot t: series 0: y[1] is infinite");
    s[0].y = RATE, s[0].n = 0;
    cannot_draw(&p, "plot t: series 0 has no points");
    s[0].n = 2, s[0].lo = RATE;
    cannot_draw(&p, "plot t: series 0 has only one of lo and hi");
    s[0].lo = NULL, s[0].mark = PLOT_BAR;
    cannot_draw(&p, "plot t: series 0: bars and lines do not mix");
    const char *const names[] = {"a", "b", "c"};
    p.bar_names = names, p.n_bars = 3;
    cannot_draw(&p, "plot t: series 0 has 2 bars, expected 3");
    p.n_series = 9;
    cannot_draw(&p, "plot t: 9 series, expected 1 to 8");
    p.n_series = 1, p.has_y_range = true;
    cannot_draw(&p, "plot t: the range of y is 0 to 0");
}

static const test_case cases[] = {
    TEST(a_request_meets_both_targets_or_misses),
    TEST(what_was_refused_is_missed),
    TEST(the_largest_rate_is_read_off_the_curve),
    TEST(a_quantile_is_a_value_that_was_there),
    TEST(shares_come_first_then_weights),
    TEST(a_ceiling_leaves_its_part_to_others),
    TEST(urgent_classes_take_surplus_first),
    TEST(too_many_shares_are_refused),
    TEST(slices_are_an_error_in_short_windows),
    TEST(an_idle_flow_is_entitled_to_nothing),
    TEST(the_worst_window_is_found_between_the_seconds),
    TEST(every_kind_of_worst_window_is_looked_at),
    TEST(wrong_books_are_refused),
    TEST(jain_is_one_when_all_are_alike),
    TEST(the_gap_counts_while_both_wait),
    TEST(each_stretch_of_waiting_is_looked_at),
    TEST(a_median_is_in_the_middle),
    TEST(a_table_is_aligned),
    TEST(json_and_csv_have_every_seed),
    TEST(notes_stand_in_sections),
    TEST(figures_that_contradict_are_refused),
    TEST(foreign_bytes_become_question_marks),
    TEST(a_curve_has_axes_levels_and_a_band),
    TEST(lines_and_steps_go_where_the_points_are),
    TEST(a_long_series_is_thinned_and_keeps_its_peak),
    TEST(bars_stand_on_zero),
    TEST(odd_ranges_have_an_axis),
    TEST(what_cannot_be_drawn_is_named),
};
TEST_MAIN(cases)
