/* test_share.c - buckets of device time, with a device that steps by virtual time. */
#include "test.h"

#include "share.h"

static void a_bucket_fills_with_its_percent_up_to_its_cap(void) {
    share_bucket a;
    share_init(&a, SHARE_FIXED, 25, 1, 1000);
    EXPECT(share_may_run(&a, 0) && share_is_entitled(&a));
    uint32_t cap_us = SHARE_CAP_US;
    share_charge(&a, cap_us + 10000, true);
    EXPECT(!share_may_run(&a, 0));
    EXPECT(share_may_run(&a, 10001) && !share_may_run(&a, 10000)); // an urgent one's step
    EXPECT_EQ(share_ready_us(&a, 1000), 1000 + 40000 + 1);
    share_refill(&a, 41000);
    EXPECT(!share_may_run(&a, 0)); // exactly empty
    share_refill(&a, 41001);
    EXPECT(share_may_run(&a, 0));
    share_refill(&a, 1u << 30);
    EXPECT_EQ(a.level, (int64_t)cap_us * 100);
    share_refill(&a, 5); // a clock does not go back; if it did, nothing happens
    EXPECT_EQ(a.level, (int64_t)cap_us * 100);
    EXPECT_EQ(a.used_us, cap_us + 10000);
}

/* Without work what flows into a full bucket is lost; with work it is owed, up to a bound. */
static void what_work_waits_for_is_owed(void) {
    share_bucket a;
    share_init(&a, SHARE_BURST, 50, 1, 1000);
    EXPECT_EQ(share_owed(&a), 25000 * 100);
    share_refill(&a, 101000);
    EXPECT_EQ(share_owed(&a), 25000 * 100);
    share_want(&a);
    share_refill(&a, 161000);
    EXPECT_EQ(share_owed(&a), 55000 * 100);
    for (uint64_t us = 161000; us < 2000000; us += 50000) {
        share_want(&a);
        share_refill(&a, us);
    }
    EXPECT_EQ(share_owed(&a), SHARE_OWED_US * 100);
    share_refill(&a, 2000000 + 2 * SHARE_WANTED_US); // the work is gone
    EXPECT_EQ(share_owed(&a), 25000 * 100);
    share_charge(&a, 30000, true);
    EXPECT_EQ(share_owed(&a), 0); // not entitled
    share_set(&a, SHARE_BESTEFFORT, 0, 1, 0);
    EXPECT_EQ(share_owed(&a), 0);
}

static void besteffort_is_never_entitled_and_always_may(void) {
    share_bucket a;
    share_init(&a, SHARE_BESTEFFORT, 50, 1, 0);
    share_charge(&a, 1000000, true);
    EXPECT(share_may_run(&a, 0) && !share_is_entitled(&a));
    share_init(&a, SHARE_BURST, 50, 1, 0);
    share_charge(&a, 1000000, true);
    EXPECT(share_may_run(&a, 0) && !share_is_entitled(&a));
    EXPECT_EQ(share_ready_us(&a, 7), 7);
}

static void a_share_over_devices_is_split(void) {
    EXPECT_EQ(share_percent_each(&(share_spec){SHARE_FIXED, 240, 3}), 80);
    EXPECT_EQ(share_percent_each(&(share_spec){SHARE_FIXED, 40, 0}), 40);
}

static void other_terms_keep_what_was_received(void) {
    share_bucket a;
    share_init(&a, SHARE_FIXED, 10, 1, 0);
    share_charge(&a, 75000, true); // 50 ms more than it had
    share_set(&a, SHARE_FIXED, 50, 3, 0);
    EXPECT_EQ(share_ready_us(&a, 0), 100001); // 50 ms at one half
    EXPECT_EQ(a.weight, 3);
    share_set(&a, SHARE_FIXED, 0, 1, 0);
    EXPECT_EQ(share_ready_us(&a, 0), UINT64_MAX);
}

/* Always work, steps of up to 20 ms: in every window of ten seconds the share holds to a point. */
static void a_fixed_share_holds_to_a_point_in_ten_seconds(void) {
    enum { SECONDS = 40, WINDOW_US = 10000000 };
    for (uint32_t percent = 5; percent <= 100; percent += 5) {
        share_bucket a;
        uint64_t now_us = 0, seed = percent;
        static uint64_t began_us[100000], took_us[100000];
        uint32_t n = 0;
        share_init(&a, SHARE_FIXED, percent, 1, 0);
        while (now_us < (uint64_t)SECONDS * 1000000) {
            share_refill(&a, now_us);
            if (!share_may_run(&a, 0)) {
                now_us = share_ready_us(&a, now_us);
                continue;
            }
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            uint64_t us = 1000 + (seed >> 33) % 19000;
            began_us[n] = now_us;
            took_us[n++] = us;
            now_us += us;
            share_charge(&a, us, true);
        }
        double worst = 0;
        for (uint64_t from = 0; from + WINDOW_US <= (uint64_t)SECONDS * 1000000; from += 500000) {
            uint64_t sum = 0;
            for (uint32_t i = 0; i < n; i++) {
                uint64_t b = began_us[i] > from ? began_us[i] : from;
                uint64_t end = began_us[i] + took_us[i], e = from + WINDOW_US;
                if (end < e) e = end;
                if (e > b) sum += e - b;
            }
            double error = fabs((double)sum * 100 / WINDOW_US - percent);
            if (error > worst) worst = error;
        }
        EXPECT(worst <= 1.0);
    }
}

static const test_case cases[] = {
    TEST(a_bucket_fills_with_its_percent_up_to_its_cap),
    TEST(what_work_waits_for_is_owed),
    TEST(besteffort_is_never_entitled_and_always_may),
    TEST(a_share_over_devices_is_split),
    TEST(other_terms_keep_what_was_received),
    TEST(a_fixed_share_holds_to_a_point_in_ten_seconds),
};
TEST_MAIN(cases)
