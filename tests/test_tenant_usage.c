/* test_tenant_usage.c - what engines count by slot is kept by name, whatever becomes of the slots.
 */
#include "test.h"

#include "tenant_usage.h"

enum { SECOND_US = 1000000 };

static const tenant_usage_row *row_of(const tenant_usage *l, uint32_t tenant, uint32_t name_idx) {
    static const tenant_usage_row none = {0};
    for (uint32_t i = 0; i < tenant_usage_n(l); i++)
        if (tenant_usage_at(l, i)->tenant == tenant && tenant_usage_at(l, i)->name_idx == name_idx)
            return tenant_usage_at(l, i);
    return &none;
}

static void devices_are_added_up_by_name(void) {
    tenant_usage *l = tenant_usage_create(2);
    uint32_t names[] = {7, 8};
    engine_flow a[] = {{.tenant = 1, .model = 0, .serial = 1, .device_us = 10},
                       {.tenant = 1, .model = 1, .serial = 2, .device_us = 5}};
    engine_flow b[] = {{.tenant = 1, .model = 0, .serial = 1, .device_us = 100}};
    EXPECT(tenant_usage_read(l, 0, a, 2, names, 2));
    EXPECT(tenant_usage_read(l, 1, b, 1, names, 2));
    EXPECT_EQ(row_of(l, 1, 7)->device_us, 110);
    a[0].device_us = 30;
    a[0].output_tokens = 4;
    EXPECT(tenant_usage_read(l, 0, a, 2, names, 2));
    EXPECT(tenant_usage_read(l, 0, a, 2, names, 2)); // nothing new
    EXPECT_EQ(row_of(l, 1, 7)->device_us, 130);
    EXPECT_EQ(row_of(l, 1, 7)->output_tokens, 4);
    EXPECT_EQ(row_of(l, 1, 8)->device_us, 5);
    tenant_usage_destroy(l);
}

static void a_slot_with_another_model_is_another_row(void) {
    tenant_usage *l = tenant_usage_create(1);
    uint32_t names[] = {7};
    engine_flow p[] = {{.tenant = 1, .serial = 1, .device_us = 10}};
    EXPECT(tenant_usage_read(l, 0, p, 1, names, 1));
    names[0] = 8; // the slot has another model, whose row has not come yet
    p[0].device_us = 12;
    EXPECT(tenant_usage_read(l, 0, p, 1, names, 1));
    EXPECT_EQ(row_of(l, 1, 7)->device_us, 12);
    p[0] = (engine_flow){.tenant = 1, .serial = 2, .device_us = 3}; // the place, taken anew
    EXPECT(tenant_usage_read(l, 0, p, 1, names, 1));
    EXPECT_EQ(row_of(l, 1, 7)->device_us, 12);
    EXPECT_EQ(row_of(l, 1, 8)->device_us, 3);
    tenant_usage_destroy(l);
}

static void use_without_a_row_has_no_tenant_and_is_not_lost(void) {
    tenant_usage *l = tenant_usage_create(1);
    static uint32_t names[] = {0};
    static engine_flow p[ENGINE_FLOWS_MAX];
    uint64_t sum = 0;
    for (uint32_t round = 0; round < 4; round++) {
        for (uint32_t i = 0; i < ENGINE_FLOWS_MAX; i++)
            p[i] = (engine_flow){.tenant = round * ENGINE_FLOWS_MAX + i,
                                 .serial = round * ENGINE_FLOWS_MAX + i + 1,
                                 .device_us = 2};
        EXPECT(tenant_usage_read(l, 0, p, ENGINE_FLOWS_MAX, names, 1));
    }
    EXPECT_EQ(tenant_usage_n(l), TENANT_USAGE_ROWS_MAX + 1);
    for (uint32_t i = 0; i < tenant_usage_n(l); i++) sum += tenant_usage_at(l, i)->device_us;
    EXPECT_EQ(sum, 4 * 2 * ENGINE_FLOWS_MAX);
    EXPECT_EQ(row_of(l, TENANT_USAGE_NONE, TENANT_USAGE_NONE)->device_us,
              4 * 2 * ENGINE_FLOWS_MAX - 2 * TENANT_USAGE_ROWS_MAX);
    tenant_usage_destroy(l);
}

static void the_window_has_the_last_ten_seconds(void) {
    tenant_usage *l = tenant_usage_create(1);
    uint32_t names[] = {7};
    engine_flow p[] = {{.tenant = 1, .serial = 1, .device_us = 0}};
    EXPECT_EQ(tenant_usage_window_us(l, SECOND_US), 0);
    for (uint64_t s = 1; s <= 30; s++) { // a quarter of the time, then half of it
        p[0].device_us += s <= 15 ? 250000 : 500000;
        p[0].prompt_tokens += s <= 15 ? 1 : 7;
        p[0].output_tokens += s <= 15 ? 2 : 9;
        EXPECT(tenant_usage_read(l, 0, p, 1, names, 1));
        tenant_usage_tick(l, s * SECOND_US);
        tenant_usage_tick(l, s * SECOND_US + SECOND_US / 2); // too early for another
    }
    EXPECT_EQ(tenant_usage_window_us(l, (uint64_t)30 * SECOND_US), 10 * SECOND_US);
    EXPECT_EQ(tenant_usage_recent(l, 0).device_us, 5 * SECOND_US);
    EXPECT_EQ(tenant_usage_recent(l, 0).prompt_tokens, 70);
    EXPECT_EQ(tenant_usage_recent(l, 0).output_tokens, 90);
    tenant_usage_destroy(l);
}

static void the_window_is_added_up_by_tenant_and_by_name(void) {
    tenant_usage *l = tenant_usage_create(1);
    uint32_t names[] = {0, 2, 5}; // the last is beyond what is asked for
    engine_flow p[] = {
        {.tenant = 0, .model = 0, .serial = 1}, {.tenant = 1, .model = 0, .serial = 2},
        {.tenant = 1, .model = 1, .serial = 3}, {.tenant = 0, .model = 2, .serial = 4},
        {.tenant = 1, .model = 7, .serial = 5},  // a slot without a name
        {.tenant = 9, .model = 0, .serial = 6}}; // beyond, too
    EXPECT(tenant_usage_read(l, 0, p, 6, names, 3));
    tenant_usage_tick(l, SECOND_US);
    for (uint32_t i = 0; i < 6; i++) p[i].device_us = 1u << i;
    EXPECT(tenant_usage_read(l, 0, p, 6, names, 3));
    tenant_usage_amounts by_tenant[2] = {0}, by_name[3] = {0};
    tenant_usage_sum_recent(l, by_tenant, 2, by_name, 3);
    EXPECT_EQ(by_tenant[0].device_us, 1 + 8);
    EXPECT_EQ(by_tenant[1].device_us, 2 + 4);
    EXPECT_EQ(by_name[0].device_us, 1 + 2 + 32);
    EXPECT_EQ(by_name[1].device_us, 0);
    EXPECT_EQ(by_name[2].device_us, 4);
    tenant_usage_destroy(l);
}

static void the_window_moves_once_a_second(void) {
    tenant_usage *l = tenant_usage_create(1);
    EXPECT(tenant_usage_is_due(l, 0)); // never yet
    tenant_usage_tick(l, 5 * SECOND_US);
    EXPECT(!tenant_usage_is_due(l, 6 * SECOND_US - 1));
    EXPECT(tenant_usage_is_due(l, 6 * SECOND_US));
    tenant_usage_tick(l, 6 * SECOND_US - 1); // too early: changes nothing
    EXPECT(tenant_usage_is_due(l, 6 * SECOND_US));
    tenant_usage_destroy(l);
}

static const test_case cases[] = {
    TEST(devices_are_added_up_by_name),
    TEST(a_slot_with_another_model_is_another_row),
    TEST(use_without_a_row_has_no_tenant_and_is_not_lost),
    TEST(the_window_has_the_last_ten_seconds),
    TEST(the_window_is_added_up_by_tenant_and_by_name),
    TEST(the_window_moves_once_a_second),
};
TEST_MAIN(cases)
