/* test_device_recent.c - the time of a device in the last seconds. */
#include "test.h"

#include "device_recent.h"

enum { SECOND_US = 1000000 };

/* A device that is open since `opened` and works for half of each second since then. */
static engine_stats at_second(uint64_t opened, uint64_t second) {
    uint64_t n = second > opened ? second - opened : 0;
    return (engine_stats){.opened_us = opened * SECOND_US,
                          .usage_until_us = n > 0 ? second * SECOND_US : 0,
                          .usage_step_us = n * SECOND_US / 2,
                          .usage_load_us = n * SECOND_US / 4,
                          .usage_idle_us = n * SECOND_US / 4};
}

static void the_window_has_the_last_seconds(void) {
    device_recent *r = device_recent_create(2);
    engine_stats now[2] = {at_second(1, 1), at_second(1, 1)};
    EXPECT_EQ(device_recent_get(r, 0, &now[0]).window_us, 0);
    for (uint64_t s = 1; s <= 40; s++) {
        now[0] = at_second(1, s);
        now[1] = at_second(1, s);
        if (s > 20) now[1].usage_step_us = now[1].usage_load_us = 0; // since then nothing
        if (s > 20) now[1].usage_idle_us = 0;
        EXPECT(device_recent_is_due(r, s * SECOND_US));
        device_recent_tick(r, now, s * SECOND_US);
        EXPECT(!device_recent_is_due(r, s * SECOND_US + SECOND_US / 2));
        device_recent_tick(r, now, s * SECOND_US + SECOND_US / 2); // too early: changes nothing
    }
    device_times t = device_recent_get(r, 0, &now[0]);
    EXPECT_EQ(t.window_us, DEVICE_RECENT_WINDOW_S * SECOND_US);
    EXPECT_EQ(t.step_us, DEVICE_RECENT_WINDOW_S * SECOND_US / 2);
    EXPECT_EQ(t.load_us, DEVICE_RECENT_WINDOW_S * SECOND_US / 4);
    EXPECT_EQ(t.idle_us, DEVICE_RECENT_WINDOW_S * SECOND_US / 4);
    EXPECT_EQ(device_recent_get(r, 1, &now[1]).step_us, 0);
    device_recent_destroy(r);
}

static void the_window_begins_with_the_device(void) {
    device_recent *r = device_recent_create(1);
    engine_stats now = {0};
    device_recent_tick(r, &now, SECOND_US);
    EXPECT_EQ(device_recent_get(r, 0, &now).window_us, 0); // it is not open
    now = at_second(4, 6);
    device_times t = device_recent_get(r, 0, &now);
    EXPECT_EQ(t.window_us, 2 * SECOND_US);
    EXPECT_EQ(t.step_us, SECOND_US);
    device_recent_destroy(r);
}

static const test_case cases[] = {
    TEST(the_window_has_the_last_seconds),
    TEST(the_window_begins_with_the_device),
};
TEST_MAIN(cases)
