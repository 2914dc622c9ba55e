/* test_pool.c - pages go out, wait for their step, and come back. */
#include "test.h"

#include "pool.h"

static void verify(const pool *p) {
    inferd_err err = {0};
    if (pool_verify(p, &err) != INFERD_OK) printf("%s\n", err.text);
    EXPECT_EQ(pool_verify(p, &err), INFERD_OK);
}

static pool open_pool(uint32_t n_pages, uint32_t n_owners) {
    pool p;
    inferd_err err = {0};
    EXPECT_EQ(pool_init(&p, n_pages, n_owners, &err), INFERD_OK);
    verify(&p);
    return p;
}

static void every_page_is_taken_once(void) {
    pool p = open_pool(5, 1);
    bool seen[5] = {false};
    for (int i = 0; i < 5; i++) {
        uint32_t page = pool_take(&p, 0, PAGE_KV);
        EXPECT(page < 5 && !seen[page]);
        seen[page] = true;
        verify(&p);
    }
    EXPECT_EQ(pool_take(&p, 0, PAGE_KV), PAGE_NONE);
    EXPECT_EQ(p.n_in[PAGE_KV], 5);
    pool_give(&p, 3, 0);
    EXPECT_EQ(pool_take(&p, 0, PAGE_WEIGHT), 3);
    verify(&p);
    pool_deinit(&p);
}

static void many_pages_are_taken_all_or_none(void) {
    pool p = open_pool(4, 1);
    uint32_t pages[5];
    EXPECT(!pool_take_many(&p, 0, PAGE_WEIGHT, 5, pages));
    EXPECT_EQ(p.n_in[PAGE_FREE], 4);
    EXPECT(pool_take_many(&p, 0, PAGE_WEIGHT, 4, pages));
    EXPECT_EQ(p.owners[0].held[PAGE_WEIGHT], 4);
    verify(&p);
    pool_deinit(&p);
}

static void a_page_given_back_waits_for_the_step_that_used_it(void) {
    pool p = open_pool(2, 1);
    uint32_t a = pool_take(&p, 0, PAGE_KV), b = pool_take(&p, 0, PAGE_KV);
    EXPECT_EQ(pool_launch(&p), 1);
    EXPECT_EQ(pool_launch(&p), 2);
    pool_give(&p, a, 2);
    pool_give(&p, b, 1);
    verify(&p);
    EXPECT_EQ(p.n_in[PAGE_QUARANTINE], 2);
    EXPECT_EQ(pool_take(&p, 0, PAGE_KV), PAGE_NONE);
    pool_finish(&p, 1);
    verify(&p);
    EXPECT_EQ(p.n_in[PAGE_FREE], 1);
    EXPECT_EQ(pool_take(&p, 0, PAGE_KV), b);
    pool_finish(&p, 2);
    EXPECT_EQ(pool_take(&p, 0, PAGE_KV), a);
    pool_give(&p, a, 2); // finished already: free at once
    EXPECT_EQ(p.n_in[PAGE_FREE], 1);
    verify(&p);
    pool_deinit(&p);
}

static void a_guarantee_is_kept_free_for_its_owner(void) {
    pool p = open_pool(10, 2);
    inferd_err err = {0};
    EXPECT_EQ(pool_set_limits(&p, 1, 4, 6, &err), INFERD_OK);
    EXPECT_EQ(pool_n_takeable(&p, 0), 6);
    EXPECT_EQ(pool_n_takeable(&p, 1), 6);
    for (int i = 0; i < 6; i++) EXPECT(pool_take(&p, 0, PAGE_KV) != PAGE_NONE);
    EXPECT_EQ(pool_take(&p, 0, PAGE_KV), PAGE_NONE);
    for (int i = 0; i < 4; i++) EXPECT(pool_take(&p, 1, PAGE_WEIGHT) != PAGE_NONE);
    verify(&p);
    EXPECT_EQ(pool_set_limits(&p, 0, 7, UINT32_MAX, &err), INFERD_EINVAL);
    EXPECT_STR(err.text, "guarantees of 11 pages together, the device has 10");
    EXPECT_EQ(pool_set_limits(&p, 0, 3, 2, &err), INFERD_EINVAL);
    verify(&p);
    pool_deinit(&p);
}

static void a_ceiling_holds_while_pages_are_free(void) {
    pool p = open_pool(10, 1);
    inferd_err err = {0};
    EXPECT_EQ(pool_set_limits(&p, 0, 0, 2, &err), INFERD_OK);
    EXPECT(pool_take(&p, 0, PAGE_KV) != PAGE_NONE);
    uint32_t page = pool_take(&p, 0, PAGE_KV);
    EXPECT_EQ(pool_take(&p, 0, PAGE_KV), PAGE_NONE);
    pool_give(&p, page, 0);
    EXPECT_EQ(pool_n_takeable(&p, 0), 1);
    EXPECT_EQ(pool_n_for_kv(&p, 0), 2);
    verify(&p);
    pool_deinit(&p);
}

static void watermarks_say_how_many_pages_are_short(void) {
    pool p = open_pool(128, 1); // low 2, high 4
    for (int i = 0; i < 126; i++) pool_take(&p, 0, PAGE_KV);
    EXPECT_EQ(pool_n_short(&p), 0);
    uint32_t page = pool_take(&p, 0, PAGE_KV);
    EXPECT_EQ(pool_n_short(&p), 3);
    pool_launch(&p);
    pool_give(&p, page, 1); // it is coming
    EXPECT_EQ(pool_n_short(&p), 0);
    verify(&p);
    pool_deinit(&p);
}

static void what_is_left_for_keys_and_values_excludes_weights_and_guarantees(void) {
    pool p = open_pool(20, 2);
    uint32_t pages[8];
    inferd_err err = {0};
    EXPECT(pool_take_many(&p, 0, PAGE_WEIGHT, 8, pages));
    EXPECT_EQ(pool_n_for_kv(&p, 0), 12);
    EXPECT_EQ(pool_n_for_kv(&p, 1), 12);
    EXPECT_EQ(pool_set_limits(&p, 1, 5, UINT32_MAX, &err), INFERD_OK);
    EXPECT_EQ(pool_n_for_kv(&p, 0), 7);
    pool_deinit(&p);
}

/* The judge must see what it is there for. */
static void verify_finds_what_is_wrong(void) {
    inferd_err err = {0};
    pool p = open_pool(4, 1);
    uint32_t page = pool_take(&p, 0, PAGE_KV);
    p.pages[page].state = PAGE_WEIGHT;
    EXPECT_EQ(pool_verify(&p, &err), INFERD_EINVAL);
    p.pages[page].state = PAGE_KV;
    verify(&p);
    p.owners[0].held[PAGE_KV]++;
    EXPECT_EQ(pool_verify(&p, &err), INFERD_EINVAL);
    p.owners[0].held[PAGE_KV]--;
    uint32_t head = p.free_head;
    p.free_head = p.pages[head].next; // a lost page
    EXPECT_EQ(pool_verify(&p, &err), INFERD_EINVAL);
    p.free_head = head;
    p.pages[p.pages[head].next].next = head; // a circle
    EXPECT_EQ(pool_verify(&p, &err), INFERD_EINVAL);
    pool_deinit(&p);
}

static const test_case cases[] = {
    TEST(every_page_is_taken_once),
    TEST(many_pages_are_taken_all_or_none),
    TEST(a_page_given_back_waits_for_the_step_that_used_it),
    TEST(a_guarantee_is_kept_free_for_its_owner),
    TEST(a_ceiling_holds_while_pages_are_free),
    TEST(watermarks_say_how_many_pages_are_short),
    TEST(what_is_left_for_keys_and_values_excludes_weights_and_guarantees),
    TEST(verify_finds_what_is_wrong),
};
TEST_MAIN(cases)
