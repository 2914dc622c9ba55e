/* test_worth.c - what an idle model is worth, and who is spared, in numbers one can follow. */
#include "test.h"

#include "scheduler/worth.h"

static worth_idle idle_for(uint64_t ms) {
    return (worth_idle){.weight = 1, .reload_us = 1000, .idle_us = ms * 1000, .n_pages = 10};
}

static void a_stranger_is_judged_by_its_idle_time(void) {
    worth_idle a = idle_for(100), b = idle_for(200);
    EXPECT_EQ(worth_next_ms(&a), 100 + 100 + 1);
    EXPECT_EQ(worth_next_ms(&b), 200 + 200 + 1);
    EXPECT(worth_of(&a) > worth_of(&b));
}

static worth_pauses pauses_of(const uint64_t *ms, int n) {
    worth_pauses p = {0};
    for (int i = 0; i < n; i++) worth_note_pause(&p, ms[i] * 1000, 0);
    return p;
}

static void a_pause_says_more_the_more_there_were(void) {
    worth_idle m = idle_for(127);
    m.pauses = pauses_of((const uint64_t[]){511}, 1); // the root of 128 x 512 is 256
    EXPECT_EQ(worth_next_ms(&m), 127 + 255 + 1);
    m.pauses = pauses_of((const uint64_t[]){1023, 1023}, 2); // the third root of 128 x 1024 x 1024
    EXPECT_EQ(worth_next_ms(&m), 127 + 511 + 1);
    m.pauses = pauses_of((const uint64_t[]){1023, 1023, 1023, 1023, 1023, 1023, 1023, 1023}, 8);
    EXPECT_EQ(worth_next_ms(&m), 127 + 852 + 1); // 2^(87/9) - 1, linear between 512 and 1024
}

/* One pause of a million among nine of a hundred: the mean would be a hundred thousand. */
static void a_long_pause_among_short_ones_changes_little(void) {
    worth_idle m = idle_for(100);
    uint64_t ms[] = {100, 100, 100, 100, 100, 100, 100, 100, 100, 1000000};
    m.pauses = pauses_of(ms, 10);
    EXPECT_NEAR((double)worth_next_ms(&m), 100 + 232, 24);
}

static void short_pauses_are_none_and_old_ones_fade(void) {
    worth_pauses p = {0};
    worth_note_pause(&p, 999, 1000);
    EXPECT_EQ(p.n, 0);
    worth_note_pause(&p, 1000, 1000);
    EXPECT_EQ(p.n, 1);
    EXPECT_EQ(p.sum_ms, 1);
    p = (worth_pauses){0};
    for (int i = 0; i < WORTH_PAUSES_MAX; i++) worth_note_pause(&p, 64000, 0);
    EXPECT_EQ(p.n, WORTH_PAUSES_MAX);
    EXPECT_EQ(p.sum_ms, 64 * WORTH_PAUSES_MAX);
    worth_note_pause(&p, 1000, 0);
    EXPECT_EQ(p.n, WORTH_PAUSES_MAX / 2 + 1);
    EXPECT_EQ(p.sum_ms, 64 * WORTH_PAUSES_MAX / 2 + 1);
    worth_pauses q = {0};
    worth_note_pause(&q, UINT64_MAX, 0);
    EXPECT_EQ(q.sum_ms, WORTH_PAUSE_MAX_MS);
}

static void each_part_of_the_worth_counts(void) {
    worth_idle m = idle_for(100);
    uint64_t plain = worth_of(&m);
    m.weight = 3; // 4 against 2
    EXPECT_NEAR((double)worth_of(&m), 2.0 * (double)plain, 2);
    m = idle_for(100), m.reload_us = 3000;
    EXPECT_NEAR((double)worth_of(&m), 3.0 * (double)plain, 3);
    m = idle_for(100), m.n_pages = 20;
    EXPECT_NEAR((double)worth_of(&m), 0.5 * (double)plain, 1);
}

/* Eight times per class, halved every five seconds or every mean pause, and never below 1. */
static void class_is_a_factor_that_ages(void) {
    worth_idle m = idle_for(0), plain = m;
    m.n_above = 2;
    EXPECT_NEAR((double)worth_of(&m), 64.0 * (double)worth_of(&plain), 64);
    m.idle_us = plain.idle_us = 5000000;
    EXPECT_NEAR((double)worth_of(&m), 32.0 * (double)worth_of(&plain), 32);
    m.idle_us = plain.idle_us = 7500000; // half way between two halvings
    EXPECT_NEAR((double)worth_of(&m), 24.0 * (double)worth_of(&plain), 24);
    m.idle_us = plain.idle_us = 25000000;
    EXPECT_NEAR((double)worth_of(&m), 2.0 * (double)worth_of(&plain), 2);
    m.idle_us = plain.idle_us = 30000000;
    EXPECT_EQ(worth_of(&m), worth_of(&plain));
    m.idle_us = plain.idle_us = (uint64_t)40 * 86400 * 1000000;
    EXPECT_EQ(worth_of(&m), worth_of(&plain));
    m.idle_us = plain.idle_us = 30000000;
    m.pauses = plain.pauses =
        (worth_pauses){10 * 30000, 10 * 14 * WORTH_LOG_ONE, 10}; // it usually is away for so long
    EXPECT_NEAR((double)worth_of(&m), 32.0 * (double)worth_of(&plain), 32);
}

static void idle_models_go_first_then_the_lowest_class(void) {
    worth_candidate idle = {0, GEN_CLASSES, 100}, batch = {1, GEN_BATCH, 1},
                    high = {2, GEN_HIGH, 1};
    EXPECT(worth_goes_before(&idle, &batch) && worth_goes_before(&batch, &high));
    EXPECT(!worth_goes_before(&high, &idle));
    worth_candidate less = {3, GEN_CLASSES, 99}, same = {4, GEN_CLASSES, 100};
    EXPECT(worth_goes_before(&less, &idle) && worth_goes_before(&idle, &same));
}

/* Forty days, ten thousand pages, a millisecond to reload: still more than nothing, and ordered. */
static void nothing_overflows_and_little_is_not_zero(void) {
    worth_idle least = {.weight = 0,
                        .reload_us = 1000,
                        .idle_us = (uint64_t)40 * 86400 * 1000000,
                        .n_pages = 10000};
    EXPECT(worth_of(&least) > 0);
    worth_idle most = {.weight = UINT32_MAX, .reload_us = UINT64_MAX >> 1, .n_pages = 0};
    EXPECT_EQ(worth_of(&most), UINT64_MAX);
    most.reload_us = UINT64_MAX / 8, most.weight = 1;
    EXPECT_EQ(worth_of(&most), UINT64_MAX);
}

static void an_unneeded_victim_is_spared(void) {
    const uint32_t pages[] = {2, 40, 3, 50};
    EXPECT_EQ(worth_first(pages, 4, 1), 0);
    EXPECT_EQ(worth_first(pages, 4, 2), 0);
    EXPECT_EQ(worth_first(pages, 4, 3), 1); // 2 is too little, 40 alone is enough
    EXPECT_EQ(worth_first(pages, 4, 40), 1);
    EXPECT_EQ(worth_first(pages, 4, 41), 0); // both
    EXPECT_EQ(worth_first(pages, 4, 43), 1); // 40 + 3: the last is needed, the first is not
    EXPECT_EQ(worth_first(pages, 4, 45), 0); // 2 + 40 + 3
    EXPECT_EQ(worth_first(pages, 4, 46), 3); // 50 alone
    EXPECT_EQ(worth_first(pages, 4, 95), 0);
    EXPECT_EQ(worth_first(pages, 4, 1000), 0); // not enough: all of them
    EXPECT_EQ(worth_first(pages, 4, 0), 0);
    const uint32_t alike[] = {3, 3, 10};
    EXPECT_EQ(worth_first(alike, 3, 12), 0); // one of the small ones is spared, not both
}

/* Whoever is chosen one by one is what was chosen at once. */
static void asked_again_the_answer_is_the_rest(void) {
    uint64_t state = 12345; // printed nowhere: it is the same each time
    for (int round = 0; round < 2000; round++) {
        uint32_t pages[8], n = 8, sum = 0;
        for (uint32_t i = 0; i < n; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            sum += pages[i] = 1 + (uint32_t)(state >> 60);
        }
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint64_t missing = 1 + (state >> 33) % sum;
        uint32_t n_gone = 0, last = 0, gone = 0;
        for (uint64_t left = missing; left > 0; n_gone++) {
            uint32_t first = worth_first(pages, n, left);
            last = pages[first];
            gone += last;
            left -= left < pages[first] ? left : pages[first];
            for (uint32_t i = first; i + 1 < n; i++) pages[i] = pages[i + 1];
            n--;
        }
        EXPECT(gone >= missing && n_gone >= 1);
        EXPECT(gone - last < missing); // the last was needed
    }
}

static const test_case cases[] = {
    TEST(a_stranger_is_judged_by_its_idle_time),
    TEST(a_pause_says_more_the_more_there_were),
    TEST(a_long_pause_among_short_ones_changes_little),
    TEST(short_pauses_are_none_and_old_ones_fade),
    TEST(each_part_of_the_worth_counts),
    TEST(class_is_a_factor_that_ages),
    TEST(idle_models_go_first_then_the_lowest_class),
    TEST(nothing_overflows_and_little_is_not_zero),
    TEST(an_unneeded_victim_is_spared),
    TEST(asked_again_the_answer_is_the_rest),
};
TEST_MAIN(cases)
