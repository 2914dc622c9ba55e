/* test_retry.c - promises of a full queue, in numbers one can follow. */
#include "test.h"

#include "scheduler/retry.h"

static const uint64_t SECOND = 1000000;

/* n ends a second, evenly, in [from_s, to_s). */
static void run(retry_book *b, uint64_t from_s, uint64_t to_s, uint32_t n) {
    for (uint64_t s = from_s; s < to_s; s++)
        for (uint32_t i = 0; i < n; i++) retry_note_end(b, s * SECOND + i * SECOND / n);
}

static void a_queue_with_room_takes_everybody(void) {
    retry_book b = {0};
    EXPECT(retry_may_enter(&b, SECOND, 0, 8, false));
    EXPECT(retry_may_enter(&b, SECOND, 3, 8, false));
    EXPECT(!retry_may_enter(&b, SECOND, 4, 8, false)); // the other half is for promises
    EXPECT(retry_may_enter(&b, SECOND, 7, 8, true));
    EXPECT(!retry_may_enter(&b, SECOND, 8, 8, true));
}

static void each_is_told_a_later_place(void) {
    retry_book b = {0};
    run(&b, 10, 40, 4); // four a second
    EXPECT_NEAR((double)b.per_1000s, 4000, 40);
    uint32_t ms[40];
    for (int i = 0; i < 40; i++) ms[i] = retry_promise(&b, 40 * SECOND, 4, 8);
    EXPECT_EQ(ms[0], RETRY_MIN_MS);
    for (int i = 1; i < 40; i++) EXPECT(ms[i] >= ms[i - 1] && ms[i] % 1000 == 0);
    EXPECT(ms[39] >= 20000 && ms[39] <= 21000); // 40 places, four a second, twice as long
    EXPECT_EQ(ms[2], 2000);                     // three places: 1.5 s
    EXPECT_EQ(b.n_open, 40);
    for (uint64_t at_s = 41, n_told = 40; at_s < 45; at_s++) { // a promise is due when it said
        uint32_t n_due = 0;
        for (uint64_t i = 0; i < n_told; i++) n_due += 40000 + ms[i] <= at_s * 1000;
        EXPECT(retry_may_enter(&b, at_s * SECOND, 31 - n_due, 64, false));
        EXPECT(!retry_may_enter(&b, at_s * SECOND, 32 - n_due, 64, false));
    }
    uint32_t more = retry_promise(&b, 40 * SECOND, 8, 8); // four places more are missing
    EXPECT(more >= 22000 && more <= 23000);
}

static void what_would_take_too_long_is_not_promised(void) {
    retry_book b = {0};
    run(&b, 10, 40, 1);
    uint32_t n = 0;
    while (retry_promise(&b, 40 * SECOND, 4, 8) != 0) INFERD_CHECK(++n < 100);
    EXPECT(n >= 28 && n <= 30); // 60 s, one a second, twice as long
    EXPECT_EQ(b.n_open, n);
}

static void without_a_rate_the_answer_is_the_bound(void) {
    retry_book b = {0};
    EXPECT_EQ(retry_promise(&b, SECOND, 8, 8), RETRY_MAX_MS);
    EXPECT_EQ(b.n_open, 1);
}

static void a_promise_keeps_its_place_and_is_forgotten(void) {
    retry_book b = {0};
    run(&b, 10, 40, 4);
    EXPECT_EQ(retry_promise(&b, 40 * SECOND, 4, 8), 1000);
    EXPECT_EQ(retry_promise(&b, 40 * SECOND, 4, 8), 1000);
    EXPECT(retry_may_enter(&b, 40 * SECOND, 3, 8, false)); // not due yet
    EXPECT(!retry_may_enter(&b, 41 * SECOND, 3, 8, false));
    EXPECT(!retry_may_enter(&b, 41 * SECOND, 2, 8, false));
    EXPECT(retry_may_enter(&b, 41 * SECOND, 1, 8, false));
    EXPECT(retry_may_enter(&b, 41 * SECOND, 2, 8, true)); // one of them came
    EXPECT_EQ(b.n_open, 1);
    EXPECT(retry_may_enter(&b, 41 * SECOND, 2, 8, false));
    EXPECT(!retry_may_enter(&b, (41 + RETRY_GRACE_S) * SECOND, 3, 8, false));
    EXPECT(retry_may_enter(&b, (42 + RETRY_GRACE_S) * SECOND, 3, 8, false)); // nobody came
    EXPECT_EQ(b.n_open, 0);
}

static void a_rate_fades_with_time_and_a_pause_forgets_promises(void) {
    retry_book b = {0};
    run(&b, 10, 40, 100);
    uint64_t fast = b.per_1000s;
    run(&b, 40, 60, 2);
    EXPECT(b.per_1000s < fast / 4 && b.per_1000s >= 2000);
    EXPECT(retry_promise(&b, 60 * SECOND, 8, 8) > 0);
    EXPECT(retry_may_enter(&b, 100000 * SECOND, 3, 8, false));
    EXPECT_EQ(b.n_open, 0);
    EXPECT(retry_may_enter(&b, 100300 * SECOND, 3, 8, false));
    EXPECT_EQ(b.n_open, 0); // nothing is forgotten twice
    retry_note_end(&b, 100300 * SECOND);
    EXPECT(b.window_us <= 100300 * SECOND && b.window_us + RETRY_WINDOW_US > 100300 * SECOND);
}

static const test_case cases[] = {
    TEST(a_queue_with_room_takes_everybody),
    TEST(each_is_told_a_later_place),
    TEST(what_would_take_too_long_is_not_promised),
    TEST(without_a_rate_the_answer_is_the_bound),
    TEST(a_promise_keeps_its_place_and_is_forgotten),
    TEST(a_rate_fades_with_time_and_a_pause_forgets_promises),
};
TEST_MAIN(cases)
