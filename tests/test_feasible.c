/* test_feasible.c - what is admitted keeps its promises: the inequalities by hand, their sentences
 * to the byte, and both kinds of schedules played through. */
#include "test.h"

#include "scheduler/feasible.h"

static const char *const names[] = {"a", "b", "c", "d", "e", "f"};
static char text[FEASIBLE_TEXT_BYTES];

static uint64_t random_state;
static uint32_t random_below(uint32_t n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % n);
}

/* ---- numbers ---- */

static void numbers_are_exact(void) {
    EXPECT_STR(feasible_ms(0).text, "0.0 ms");
    EXPECT_STR(feasible_ms(12000).text, "12.0 ms");
    EXPECT_STR(feasible_ms(12345).text, "12.345 ms");
    EXPECT_STR(feasible_ms(12005).text, "12.005 ms");
    EXPECT_STR(feasible_ms(250).text, "0.25 ms");
    EXPECT_STR(feasible_mib(0).text, "0 MiB");
    EXPECT_STR(feasible_mib((uint64_t)18 << 30).text, "18432 MiB");
    EXPECT_STR(feasible_mib(65536).text, "0.0625 MiB");
    EXPECT_STR(feasible_mib(4096).text, "0.00390625 MiB");
    EXPECT_STR(feasible_mib(UINT64_MAX).text, "17592186044415.99999904 MiB");
}

/* ---- tasks ---- */

static void three_models_fit(void) {
    feasible_task tasks[] = {{6000, 30000, 0}, {6000, 30000, 1}, {6000, 30000, 2}, {12000, 0, 3}};
    feasible_tasks f;
    EXPECT(feasible_tasks_check(tasks, 3, &f));
    EXPECT_EQ(f.sum_ppm, 600000);
    EXPECT_EQ(f.total_ppm, 800000);
    EXPECT_EQ(f.attainment_ppm, 1000000);
    EXPECT_EQ(f.block_us, 6000);
    EXPECT_EQ(f.blocker, 0);
    feasible_tasks_say(&f, tasks, names, text, sizeof text);
    EXPECT_STR(text, "0.60 + 0.20 = 0.80 <= 1");
    tasks[3].cost_us = 10000;
    EXPECT(feasible_tasks_check(tasks, 4, &f));
    feasible_tasks_say(&f, tasks, names, text, sizeof text);
    EXPECT_STR(text, "0.60 + 0.33 = 0.93 <= 1");
    tasks[3].cost_us = 12000;
    EXPECT(feasible_tasks_check(tasks, 4, &f)); // equality
    EXPECT_EQ(f.total_ppm, 1000000);
    EXPECT_EQ(f.blocker, 3);
    tasks[3].cost_us = 80000;
    EXPECT(!feasible_tasks_check(tasks, 4, &f));
    EXPECT_EQ(f.total_ppm, 3266667);
    EXPECT_EQ(f.attainment_ppm, 306122); // 1 / 3.27
    feasible_tasks_say(&f, tasks, names, text, sizeof text);
    EXPECT_STR(text, "model a: C 6.0 ms in T 30.0 ms, and a step of d takes 80.0 ms: "
                     "0.60 + 2.67 = 3.27 > 1");
}

static void the_tightest_is_named(void) {
    feasible_task tasks[] = {{10000, 80000, 3}, {12000, 40000, 1}, {20000, 100000, 4}};
    feasible_tasks f;
    EXPECT(!feasible_tasks_check(tasks, 3, &f));
    EXPECT_EQ(f.tightest, 1);
    EXPECT_EQ(f.blocker, 2);
    feasible_tasks_say(&f, tasks, names, text, sizeof text);
    EXPECT_STR(text, "model b: C 12.0 ms in T 40.0 ms, and a step of e takes 20.0 ms: "
                     "0.63 + 0.50 = 1.13 > 1");
    feasible_task own[] = {{30000, 40000, 0}, {9000, 50000, 1}};
    EXPECT(!feasible_tasks_check(own, 2, &f));
    EXPECT_EQ(f.tightest, 0);
    feasible_tasks_say(&f, own, names, text, sizeof text);
    EXPECT_STR(text, "model a: C 30.0 ms in T 40.0 ms, the longest step: 0.93 + 0.75 = 1.68 > 1");
}

static void a_sentence_never_says_that_one_is_more_than_one(void) {
    feasible_task tasks[] = {{500000, 1000000, 0}, {1, 1000000, 1}};
    feasible_tasks f;
    EXPECT(!feasible_tasks_check(tasks, 2, &f));
    EXPECT_EQ(f.total_ppm, 1000001);
    feasible_tasks_say(&f, tasks, names, text, sizeof text);
    EXPECT_STR(text, "model a: C 500.0 ms in T 1000.0 ms, the longest step: "
                     "0.500001 + 0.500000 = 1.000001 > 1");
    tasks[1].cost_us = 4000;
    EXPECT(!feasible_tasks_check(tasks, 2, &f));
    feasible_tasks_say(&f, tasks, names, text, sizeof text);
    EXPECT_STR(text, "model a: C 500.0 ms in T 1000.0 ms, the longest step: "
                     "0.504 + 0.500 = 1.004 > 1");
    tasks[0].cost_us = 497999; // 0.499999 + 0.499999: what is left must not be rounded away
    tasks[1].cost_us = 4000;
    EXPECT(feasible_tasks_check(tasks, 2, &f));
    feasible_tasks_say(&f, tasks, names, text, sizeof text);
    EXPECT_STR(text, "0.50 + 0.50 = 1.00 <= 1");
}

static void a_task_does_not_wait_for_itself(void) {
    feasible_task alone[] = {{28000, 30000, 0}, {5000, 0, 1}};
    feasible_tasks f;
    EXPECT(feasible_tasks_check(alone, 1, &f));
    EXPECT_EQ(f.block_us, 0);
    EXPECT_EQ(f.blocker, FEASIBLE_NO_TASK);
    EXPECT(!feasible_tasks_check(alone, 2, &f)); // but for one without a target
    EXPECT_EQ(f.blocker, 1);
    feasible_tasks_say(&f, alone, names, text, sizeof text);
    EXPECT_STR(text, "model a: C 28.0 ms in T 30.0 ms, and a step of b takes 5.0 ms: "
                     "0.93 + 0.17 = 1.10 > 1");
    alone[1].cost_us = 1999; // 0.933333334 are taken
    EXPECT(feasible_tasks_check(alone, 2, &f));
    alone[1].cost_us = 2001;
    EXPECT(!feasible_tasks_check(alone, 2, &f));
    feasible_task too_slow = {31000, 30000, 2};
    EXPECT(!feasible_tasks_check(&too_slow, 1, &f));
    feasible_tasks_say(&f, &too_slow, names, text, sizeof text);
    EXPECT_STR(text, "model c: C 31.0 ms in T 30.0 ms: 1.03 + 0.00 = 1.03 > 1");
}

static void without_targets_everything_is_allowed(void) {
    feasible_task tasks[] = {{28000, 0, 0}, {5000, 0, 1}};
    feasible_tasks f;
    EXPECT(feasible_tasks_check(tasks, 2, &f));
    EXPECT_EQ(f.total_ppm, 0);
    EXPECT_EQ(f.tightest, FEASIBLE_NO_TASK);
    feasible_tasks_say(&f, tasks, names, text, sizeof text);
    EXPECT_STR(text, "no model has a target per token");
    EXPECT_EQ(f.blocker, FEASIBLE_NO_TASK);
    EXPECT(feasible_tasks_check(tasks, 0, &f));
}

static void equality_is_kept(void) {
    feasible_task tasks[] = {
        {6000, 30000, 0}, {6000, 30000, 0}, {6000, 30000, 0}, {6000, 30000, 0}, {6000, 0, 0}};
    feasible_tasks f;
    EXPECT(feasible_tasks_check(tasks, 4, &f)); // 0.8 + 0.2
    EXPECT_EQ(f.total_ppm, 1000000);
    EXPECT(feasible_tasks_check(tasks, 5, &f)); // no longer than a step is free
    tasks[4].cost_us = 6001;
    EXPECT(!feasible_tasks_check(tasks, 5, &f));
}

static void huge_numbers_are_refused_not_wrapped(void) {
    feasible_task tasks[300];
    for (uint32_t i = 0; i < 300; i++) tasks[i] = (feasible_task){UINT32_MAX, 1, 0};
    feasible_tasks f;
    EXPECT(!feasible_tasks_check(tasks, 300, &f));
    EXPECT_EQ(f.total_ppm, UINT64_C(301000000000));
    char little[10];
    feasible_tasks_say(&f, tasks, names, little, sizeof little);
    EXPECT_STR(little, "model a: ");
    char room[120]; // cut after any byte, and nothing is written behind
    feasible_tasks_say(&f, tasks, names, text, sizeof text);
    for (size_t n = 0; n < 100; n++) {
        memset(room, 'x', sizeof room);
        feasible_tasks_say(&f, tasks, names, room, n);
        if (n > 0) EXPECT_EQ(strlen(room), n - 1 < strlen(text) ? n - 1 : strlen(text));
        if (n > 0) EXPECT_EQ(strncmp(room, text, strlen(room)), 0);
        for (size_t i = n; i < sizeof room; i++) EXPECT_EQ(room[i], 'x');
    }
}

static uint32_t random_tasks(feasible_task *tasks) {
    uint32_t n = 1 + random_below(5);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t period_us = random_below(5) == 0 ? 0 : 50 + random_below(400);
        tasks[i] = (feasible_task){1 + random_below(80), period_us, i};
    }
    return n;
}

/* Steps are played: the earliest deadline first, never interrupted, and whenever nobody is due a
 * step of a task without a target gets in the way.  How many are late? */
static uint32_t play_steps(const feasible_task *tasks, uint32_t n, uint32_t n_jobs) {
    uint64_t now = 0, due[5], next[5];
    uint32_t n_late = 0, done = 0;
    bool ready[5] = {false};
    for (uint32_t i = 0; i < n; i++) next[i] = random_below(tasks[i].period_us + 1), due[i] = 0;
    while (done < n_jobs) {
        uint32_t best = n;
        uint64_t soon = UINT64_MAX;
        for (uint32_t i = 0; i < n; i++) {
            if (tasks[i].period_us == 0) continue;
            if (!ready[i] && next[i] <= now) {
                ready[i] = true;
                due[i] = next[i] + tasks[i].period_us;
                next[i] += tasks[i].period_us + random_below(8) / 7; // seldom a little later
            }
            if (!ready[i] && next[i] < soon) soon = next[i];
            if (ready[i] && (best == n || due[i] < due[best])) best = i;
        }
        if (best < n) {
            now += tasks[best].cost_us;
            n_late += now > due[best];
            ready[best] = false;
            done++;
            continue;
        }
        /* Begun at the last moment before somebody is due: the worst that can be. */
        uint32_t other_us = 0;
        for (uint32_t i = 0; i < n; i++)
            if (tasks[i].period_us == 0 && (other_us == 0 || random_below(2) == 0))
                other_us = tasks[i].cost_us;
        if (soon == UINT64_MAX) return 0;
        now = soon;
        if (other_us > 0) now = soon - 1 + other_us;
    }
    return n_late;
}

static void what_is_admitted_is_never_late(void) {
    random_state = 11;
    printf("seed %d\n", 11);
    uint32_t n_kept = 0, n_late_of_refused = 0;
    for (int k = 0; k < 3000; k++) {
        feasible_task tasks[5];
        feasible_tasks f;
        uint32_t n = random_tasks(tasks);
        bool kept = feasible_tasks_check(tasks, n, &f);
        uint32_t n_late = play_steps(tasks, n, 200);
        if (kept) EXPECT_EQ(n_late, 0);
        n_kept += kept && f.tightest != FEASIBLE_NO_TASK;
        if (!kept) n_late_of_refused += n_late > 0;
    }
    EXPECT(n_kept > 300 && n_late_of_refused > 300); // both were seen
}

/* ---- share ---- */

static void a_share_has_to_be_large_enough(void) {
    feasible_share f;
    EXPECT(feasible_share_check(6000, 40000, 15, &f)); // 6 ms / 0.15 = 40 ms
    EXPECT_EQ(f.step_us, 40000);
    feasible_share_say(&f, text, sizeof text);
    EXPECT_STR(text, "a step of 6.0 ms at a share of 15 % takes 40.0 ms <= 40.0 ms per token");
    EXPECT(!feasible_share_check(6000, 40000, 14, &f));
    EXPECT_EQ(f.percent_needed, 15);
    feasible_share_say(&f, text, sizeof text);
    EXPECT_STR(text, "a step of 6.0 ms at a share of 14 % takes 42.858 ms > 40.0 ms per token; "
                     "15 % is enough");
    EXPECT(!feasible_share_check(6000, 5000, 100, &f));
    feasible_share_say(&f, text, sizeof text);
    EXPECT_STR(text, "a step of 6.0 ms at a share of 100 % takes 6.0 ms > 5.0 ms per token; the "
                     "whole device is too slow for it");
    EXPECT(!feasible_share_check(6000, 40000, 0, &f));
    feasible_share_say(&f, text, sizeof text);
    EXPECT_STR(text, "a step of 6.0 ms without a share has no guaranteed time; the target is 40.0 "
                     "ms per token; 15 % is enough");
    EXPECT(!feasible_share_check(6000, 40000, 101, &f));
    feasible_share_say(&f, text, sizeof text);
    EXPECT_STR(text, "a share of 101 % of one device > 100 %; 15 % is enough");
    EXPECT(feasible_share_check(6000, 0, 0, &f));
    EXPECT(f.kept);
    feasible_share_say(&f, text, sizeof text);
    EXPECT_STR(text, "no target per token");
    EXPECT(!feasible_share_check(6000, 6000, 50, &f));
    feasible_share_say(&f, text, sizeof text);
    EXPECT(strstr(text, "; 100 % is enough") != NULL);
    EXPECT(!feasible_share_check(0, 6000, 0, &f)); // not measured yet: any share, but not none
    feasible_share_say(&f, text, sizeof text);
    EXPECT(strstr(text, "; 1 % is enough") != NULL);
    EXPECT(!feasible_share_check(UINT32_MAX, 1, 1, &f));
    EXPECT_EQ(f.percent_needed, UINT64_C(429496729500));
}

static void the_share_needed_is_the_least(void) {
    random_state = 3;
    for (int k = 0; k < 2000; k++) {
        feasible_share f, g;
        uint32_t cost_us = 1 + random_below(9000), period_us = cost_us + random_below(90000);
        feasible_share_check(cost_us, period_us, 0, &f);
        uint32_t needed = (uint32_t)f.percent_needed;
        EXPECT(needed >= 1 && needed <= 100);
        EXPECT(feasible_share_check(cost_us, period_us, needed, &g));
        EXPECT(!feasible_share_check(cost_us, period_us, needed - 1, &g));
        EXPECT((uint64_t)cost_us * 100 <= (uint64_t)period_us * needed);
    }
}

/* ---- memory ---- */

static const uint64_t mib2 = 2 << 20;

static void what_is_needed_to_finish_must_be_there(void) {
    feasible_owner o = {.weight_pages = 100,
                        .finish_pages = 60,
                        .held_pages = 110,
                        .max_pages = FEASIBLE_UNLIMITED,
                        .free_pages = 30,
                        .revocable_pages = 40,
                        .guaranteed_pages = 20,
                        .page_bytes = mib2};
    feasible_pages f;
    EXPECT(feasible_pages_check(&o, &f)); // 110 + 30 + 40 - 20 = 160
    EXPECT_EQ(f.may_pages, 160);
    feasible_pages_say(&f, &o, text, sizeof text);
    EXPECT_STR(text,
               "weights 200 MiB + 120 MiB to finish its work = 320 MiB <= 320 MiB allowed (min 0 "
               "MiB, no max, held 220 MiB, free 60 MiB, lent 80 MiB, guaranteed to others 40 MiB)");
    o.finish_pages = 61;
    EXPECT(!feasible_pages_check(&o, &f));
    feasible_pages_say(&f, &o, text, sizeof text);
    EXPECT(strstr(text, "= 322 MiB > 320 MiB allowed") != NULL);
    o.min_pages = 161; // guaranteed: whoever has to leave
    EXPECT(feasible_pages_check(&o, &f));
    o.finish_pages = 20, o.max_pages = 119; // a ceiling is a ceiling
    EXPECT(!feasible_pages_check(&o, &f));
    EXPECT_EQ(f.may_pages, 119);
    feasible_pages_say(&f, &o, text, sizeof text);
    EXPECT(strstr(text, "max 238 MiB") != NULL);
    o.max_pages = 120;
    EXPECT(feasible_pages_check(&o, &f));
    o = (feasible_owner){.held_pages = 5,
                         .max_pages = FEASIBLE_UNLIMITED,
                         .free_pages = 3,
                         .guaranteed_pages = 9,
                         .finish_pages = 5,
                         .page_bytes = mib2};
    EXPECT(feasible_pages_check(&o, &f)); // what it holds stays its own
    EXPECT_EQ(f.may_pages, 5);
    o.weight_pages = o.finish_pages = o.free_pages = UINT32_MAX;
    EXPECT(!feasible_pages_check(&o, &f));
    EXPECT_EQ(f.need_pages, 2 * (uint64_t)UINT32_MAX);
}

static void guarantees_fit_together(void) {
    uint32_t mins[] = {40, 0, 30, 20, 6, 4};
    feasible_mins f;
    EXPECT(feasible_mins_check(mins, 6, 100, mib2, &f));
    feasible_mins_say(&f, mins, 6, names, text, sizeof text);
    EXPECT_STR(text, "min of a 80 MiB + c 60 MiB + d 40 MiB + e 12 MiB + 1 others 8 MiB = 200 MiB "
                     "<= capacity 200 MiB");
    EXPECT(!feasible_mins_check(mins, 6, 99, mib2, &f));
    feasible_mins_say(&f, mins, 3, names, text, sizeof text);
    EXPECT(strstr(text, "= 200 MiB > capacity 198 MiB") != NULL);
    EXPECT(feasible_mins_check(mins, 0, 0, mib2, &f));
    feasible_mins_say(&f, mins, 0, names, text, sizeof text);
    EXPECT_STR(text, "min of none = 0 MiB <= capacity 0 MiB");
}

/* ---- turns ---- */

static void quotas_follow_the_formula(void) {
    /* n = 10 and 5, S = 0.3, c = 0.4 s, alpha = 0.5: q = 0.4 / (n * 0.2) = 0.2 s and 0.4 s */
    feasible_slice slices[] = {{10000, 100000, 200000}, {20000, 100000, 200000}};
    feasible_slices f;
    uint32_t quota_us[2];
    EXPECT(feasible_slices_plan(slices, 2, 500000, FEASIBLE_SLICE_MAX_US, quota_us, &f));
    EXPECT_NEAR(quota_us[0], 200000, 5);
    EXPECT_NEAR(quota_us[1], 400000, 5);
    EXPECT_NEAR(f.lasts_us, 2000000, 50);
    EXPECT_NEAR(f.round_us, 1000000, 20); // 0.4 + 0.2 + 0.4
    EXPECT_EQ(f.sum_ppm, 300000);
    EXPECT_EQ(f.alpha_ppm, 500000);
    EXPECT_EQ(f.attainment_ppm, 1000000);
    EXPECT(f.kept);
}

static void an_alpha_at_the_sum_cannot_be_kept(void) {
    feasible_slice slices[] = {{10000, 100000, 200000}, {20000, 100000, 200000}};
    feasible_slices f;
    uint32_t quota_us[2];
    EXPECT(!feasible_slices_plan(slices, 2, 300000, FEASIBLE_SLICE_MAX_US, quota_us, &f));
    /* The largest is at its limit, the other in proportion; P = 20 s, alpha = 0.4 / 20 + 0.3 */
    EXPECT_EQ(quota_us[1], 4000000);
    EXPECT_EQ(quota_us[0], 2000000);
    EXPECT_EQ(f.alpha_ppm, 320000);
    EXPECT(!f.kept);
    EXPECT_EQ(f.round_us, 6400000);
    EXPECT_EQ(f.switch_us, 400000);
    EXPECT_EQ(f.lasts_us, 20000000);
    EXPECT(feasible_slices_plan(slices, 2, 320000, FEASIBLE_SLICE_MAX_US, quota_us, &f) ||
           f.alpha_ppm == 320000);
    EXPECT(feasible_slices_plan(slices, 2, 320001, FEASIBLE_SLICE_MAX_US, quota_us, &f));
    EXPECT(quota_us[1] <= 4000000);
}

static void too_much_work_is_foretold(void) {
    feasible_slice slices[] = {{50000, 100000, 100000}, {75000, 100000, 100000}};
    feasible_slices f;
    uint32_t quota_us[2];
    EXPECT(!feasible_slices_plan(slices, 2, 1000000, FEASIBLE_SLICE_MAX_US, quota_us, &f));
    EXPECT_EQ(f.sum_ppm, 1250000);
    EXPECT_NEAR(f.attainment_ppm, 1e6 / (1.25 + 0.2 / 5.3333), 100);
}

static void a_slice_has_a_whole_step(void) {
    feasible_slice slices[] = {{10000, 100000, 10}, {9000, 50000, 10}};
    feasible_slices f;
    uint32_t quota_us[2];
    EXPECT(feasible_slices_plan(slices, 2, 900000, FEASIBLE_SLICE_MAX_US, quota_us, &f));
    EXPECT_EQ(quota_us[0], 10000);
    EXPECT_EQ(quota_us[1], 18000);
    slices[0].switch_us = slices[1].switch_us = 0; // nothing to wait for: one step of the slowest
    EXPECT(feasible_slices_plan(slices, 2, 900000, FEASIBLE_SLICE_MAX_US, quota_us, &f));
    EXPECT_EQ(quota_us[0], 10000);
    slices[1].cost_us = 5000000; // longer than any quota
    EXPECT(!feasible_slices_plan(slices, 2, 900000, FEASIBLE_SLICE_MAX_US, quota_us, &f));
    EXPECT_EQ(quota_us[1], 4000000);
    feasible_slice huge = {UINT32_MAX, 1, UINT32_MAX};
    feasible_slices_plan(&huge, 1, UINT64_MAX, 1, quota_us, &f);
    EXPECT_EQ(quota_us[0], 1);
    EXPECT_EQ(f.lasts_us, 1);
}

/* Turns are played in whole steps; what a turn was too long is taken from the next one.  Readers
 * take one token per period once they have begun, which is after the first round.  Part of the
 * tokens that were there in time, for the model that fared worst. */
static double play_slices(const feasible_slice *slices, uint32_t n, const uint32_t *quota_us,
                          uint32_t n_rounds, double *round_us) {
    double now = 0, worst = 1;
    int64_t debt[6] = {0};
    double dry_us[6] = {0}, read_until[6] = {0}, begun[6] = {0};
    for (uint32_t k = 0; k < n_rounds; k++)
        for (uint32_t i = 0; i < n; i++) {
            now += slices[i].switch_us;
            int64_t left = (int64_t)quota_us[i] - debt[i];
            for (; left > 0; left -= slices[i].cost_us) {
                now += slices[i].cost_us;
                if (k == 1 && begun[i] == 0) begun[i] = read_until[i] = now;
                if (k == 0) continue;
                /* A reader that ran dry waited until this token came. */
                if (now > read_until[i]) dry_us[i] += now - read_until[i], read_until[i] = now;
                read_until[i] += slices[i].period_us;
            }
            debt[i] = -left;
        }
    for (uint32_t i = 0; i < n; i++) {
        double on_time = 1 - dry_us[i] / (now - begun[i]);
        if (on_time < worst) worst = on_time;
    }
    *round_us = now / n_rounds;
    return worst;
}

static void slices_keep_what_was_planned(void) {
    random_state = 5;
    printf("seed %d\n", 5);
    uint32_t n_kept = 0, n_over = 0;
    for (int k = 0; k < 300; k++) {
        feasible_slice slices[6];
        uint32_t quota_us[6], n = 2 + random_below(5);
        for (uint32_t i = 0; i < n; i++)
            slices[i] = (feasible_slice){1000 + random_below(12000), 30000 + random_below(60000),
                                         50000 + random_below(400000)};
        feasible_slices f;
        uint64_t alpha_max_ppm = 400000 + random_below(600000);
        bool kept =
            feasible_slices_plan(slices, n, alpha_max_ppm, FEASIBLE_SLICE_MAX_US, quota_us, &f);
        for (uint32_t i = 0; i < n; i++) EXPECT(quota_us[i] <= FEASIBLE_SLICE_MAX_US);
        if (kept) EXPECT(f.alpha_ppm <= alpha_max_ppm);
        if (!kept) EXPECT(f.lasts_us >= FEASIBLE_SLICE_MAX_US); // the limit was the reason
        double round_us, on_time = play_slices(slices, n, quota_us, 200, &round_us);
        EXPECT_NEAR(round_us, (double)f.round_us, (double)f.round_us * 0.005);
        /* At alpha just below one the first rounds are not smooth yet: a step more or less. */
        if (f.alpha_ppm < 980000) EXPECT(on_time > 0.9999);
        EXPECT_NEAR(on_time, (double)f.attainment_ppm / 1e6, 0.01);
        n_kept += kept;
        n_over += f.alpha_ppm > 1000000;
    }
    EXPECT(n_kept > 50 && n_over > 5);
}

static const test_case cases[] = {
    TEST(numbers_are_exact),
    TEST(three_models_fit),
    TEST(the_tightest_is_named),
    TEST(a_sentence_never_says_that_one_is_more_than_one),
    TEST(a_task_does_not_wait_for_itself),
    TEST(without_targets_everything_is_allowed),
    TEST(equality_is_kept),
    TEST(huge_numbers_are_refused_not_wrapped),
    TEST(what_is_admitted_is_never_late),
    TEST(a_share_has_to_be_large_enough),
    TEST(the_share_needed_is_the_least),
    TEST(what_is_needed_to_finish_must_be_there),
    TEST(guarantees_fit_together),
    TEST(quotas_follow_the_formula),
    TEST(an_alpha_at_the_sum_cannot_be_kept),
    TEST(too_much_work_is_foretold),
    TEST(a_slice_has_a_whole_step),
    TEST(slices_keep_what_was_planned),
};
TEST_MAIN(cases)
