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
    EXPECT_EQ(pool_init_extents(&p, n_pages, n_pages, 1, n_owners, &err), INFERD_OK);
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
    EXPECT(!pool_take_weights(&p, 0, PAGE_WEIGHT, 5, pages));
    EXPECT_EQ(p.n_in[PAGE_FREE], 4);
    EXPECT(pool_take_weights(&p, 0, PAGE_WEIGHT, 4, pages));
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

static void cold_pages_are_taken_last(void) {
    pool p = open_pool(6, 1);
    EXPECT(!pool_next_is_cold(&p)); // nobody said that some are
    p.n_warm = 2;
    EXPECT_EQ(pool_take(&p, 0, PAGE_KV), 0);
    EXPECT_EQ(pool_take(&p, 0, PAGE_KV), 1);
    EXPECT(pool_next_is_cold(&p));
    EXPECT_EQ(pool_take(&p, 0, PAGE_KV), 2);
    EXPECT(pool_next_is_cold(&p));
    pool_give(&p, 2, 0); // it was used: no longer cold
    EXPECT(!pool_next_is_cold(&p));
    EXPECT_EQ(pool_take(&p, 0, PAGE_KV), 2);
    p.n_warm = 4;
    EXPECT(!pool_next_is_cold(&p));
    EXPECT_EQ(pool_take(&p, 0, PAGE_KV), 3);
    EXPECT(pool_next_is_cold(&p));
    EXPECT_EQ(pool_take(&p, 0, PAGE_KV), 4);
    EXPECT_EQ(pool_take(&p, 0, PAGE_KV), 5);
    EXPECT(!pool_next_is_cold(&p)); // there is none
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
    verify(&p);
    pool_deinit(&p);
}

static void weights_that_change_hands_stay_where_they_are(void) {
    pool p;
    uint32_t pages[3];
    inferd_err err = {0};
    EXPECT_EQ(pool_init_extents(&p, 10, 10, 1, 2, &err), INFERD_OK);
    EXPECT_EQ(pool_set_limits(&p, 1, 4, 10, &err), INFERD_OK);
    EXPECT(pool_take_weights(&p, 0, PAGE_WEIGHT, 3, pages));
    EXPECT_EQ(pool_n_takeable(&p, 0), 3); // 4 are kept free for the other
    pool_hand_over(&p, pages, 3, 1);
    EXPECT_EQ(p.owners[0].held[PAGE_WEIGHT], 0);
    EXPECT_EQ(p.owners[1].held[PAGE_WEIGHT], 3);
    EXPECT_EQ(pool_n_takeable(&p, 0), 6); // and now one, as it has three
    EXPECT_EQ(pool_verify(&p, &err), INFERD_OK);
    for (int i = 0; i < 3; i++) pool_give(&p, pages[i], 0);
    EXPECT_EQ(p.owners[1].held[PAGE_WEIGHT], 0);
    EXPECT_EQ(pool_verify(&p, &err), INFERD_OK);
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

static void two_ledgers_share_the_pages(void) {
    pool p = open_pool(20, 2);
    uint32_t pages[12], warm[6];
    pool_set_budgets(&p, 12, 8);
    EXPECT_EQ(pool_n_device_free(&p), 12);
    EXPECT_EQ(pool_n_host_free(&p), 8);
    EXPECT(pool_take_weights(&p, 0, PAGE_WEIGHT, 10, pages));
    EXPECT_EQ(pool_n_takeable(&p, 1), 2); // more pages are free, the ledger is full
    EXPECT(pool_take_weights(&p, 1, PAGE_WARM, 6, warm));
    EXPECT_EQ(pool_n_device_free(&p), 2);
    EXPECT_EQ(pool_n_host_free(&p), 2);
    EXPECT(!pool_convert(&p, warm, 6, PAGE_WEIGHT)); // room for two
    verify(&p);
    EXPECT(!pool_convert(&p, pages, 10, PAGE_WARM));
    EXPECT(pool_convert(&p, warm, 2, PAGE_WEIGHT));
    EXPECT_EQ(p.owners[1].held[PAGE_WEIGHT], 2);
    EXPECT_EQ(p.owners[1].held[PAGE_WARM], 4);
    EXPECT_EQ(pool_n_device_free(&p), 0);
    verify(&p);
    for (int i = 0; i < 10; i++) pool_give(&p, pages[i], 0);
    EXPECT_EQ(pool_n_device_free(&p), 10);
    EXPECT(pool_convert(&p, warm, 2, PAGE_WARM));
    EXPECT_EQ(pool_n_host_free(&p), 2);
    EXPECT(pool_host_take(&p, 2));
    EXPECT(!pool_host_take(&p, 1));
    EXPECT_EQ(pool_take(&p, 0, PAGE_SWAPPED), PAGE_NONE);
    pool_host_give(&p, 2);
    for (int i = 0; i < 6; i++) pool_give(&p, warm[i], 0);
    EXPECT_EQ(p.n_in[PAGE_FREE], 20);
    verify(&p);
    pool_deinit(&p);
}

static void converting_pages_respects_ceilings_and_guarantees(void) {
    pool p = open_pool(20, 2);
    uint32_t warm[6];
    inferd_err err = {0};
    pool_set_budgets(&p, 12, 8);
    EXPECT(pool_take_weights(&p, 1, PAGE_WARM, 6, warm));
    EXPECT_EQ(pool_set_limits(&p, 1, 0, 5, &err), INFERD_OK);
    EXPECT(!pool_convert(&p, warm, 6, PAGE_WEIGHT));
    EXPECT_EQ(pool_set_limits(&p, 1, 0, 6, &err), INFERD_OK);
    EXPECT_EQ(pool_set_limits(&p, 0, 7, UINT32_MAX, &err), INFERD_OK);
    EXPECT(!pool_convert(&p, warm, 6, PAGE_WEIGHT)); // seven of twelve are promised
    EXPECT_EQ(pool_set_limits(&p, 0, 6, UINT32_MAX, &err), INFERD_OK);
    EXPECT(pool_convert(&p, warm, 6, PAGE_WEIGHT));
    EXPECT_EQ(pool_set_limits(&p, 0, 13, UINT32_MAX, &err), INFERD_EINVAL);
    verify(&p);
    pool_deinit(&p);
}

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
    uint32_t *head = &p.extents[p.bucket[1]].free_head, lost = *head;
    *head = p.pages[lost].next;
    EXPECT_EQ(pool_verify(&p, &err), INFERD_EINVAL);
    *head = lost;
    p.pages[lost].next = lost; // a circle
    EXPECT_EQ(pool_verify(&p, &err), INFERD_EINVAL);
    p.pages[lost].next = PAGE_NONE;
    verify(&p);
    p.bucket[1] = p.extents[p.bucket[1]].next; // a lost extent
    EXPECT_EQ(pool_verify(&p, &err), INFERD_EINVAL);
    pool_deinit(&p);
}

/* ---- extents ---- */

static pool extents_of(uint32_t n_pages, uint32_t n_ready, uint32_t extent_pages) {
    pool p;
    inferd_err err = {0};
    EXPECT_EQ(pool_init_extents(&p, n_pages, n_ready, extent_pages, 1, &err), INFERD_OK);
    return p;
}

static void keys_and_values_break_one_extent_at_a_time(void) {
    pool p = extents_of(16, 16, 4);
    uint32_t taken[6];
    for (int i = 0; i < 6; i++) taken[i] = pool_take(&p, 0, PAGE_KV);
    EXPECT_EQ(p.n_whole, 2); // six pages lie in two extents
    pool_give(&p, taken[0], 0);
    verify(&p);
    uint32_t again = pool_take(&p, 0, PAGE_KV); // 1 page free there, 2 in the other
    EXPECT_EQ(again / 4, taken[0] / 4);
    EXPECT_EQ(p.n_whole, 2);
    pool_deinit(&p);
}

static void weights_take_whole_extents_in_order(void) {
    pool p = extents_of(16, 16, 4);
    uint32_t kv = pool_take(&p, 0, PAGE_KV), out[12];
    EXPECT(!pool_take_weights(&p, 0, PAGE_WEIGHT, 16, out)); // one is broken
    EXPECT(pool_take_weights(&p, 0, PAGE_WEIGHT, 12, out));
    for (int i = 0; i < 12; i++) {
        EXPECT_EQ(out[i] % 4, i % 4);
        EXPECT(out[i] / 4 != kv / 4);
    }
    verify(&p);
    for (int i = 0; i < 12; i++) pool_give(&p, out[i], 0);
    pool_give(&p, kv, 0);
    EXPECT_EQ(p.n_whole, 4);
    verify(&p);
    pool_deinit(&p);
}

static void weights_without_mapping_take_neighbours(void) {
    pool p = extents_of(8, 8, 0);
    uint32_t out[8];
    uint32_t a = pool_take(&p, 0, PAGE_KV), b = pool_take(&p, 0, PAGE_KV);
    EXPECT(a == 0 && b == 1);
    pool_give(&p, a, 0);
    EXPECT(!pool_take_weights(&p, 0, PAGE_WEIGHT, 7, out)); // 7 are free, but not in a row
    EXPECT(pool_take_weights(&p, 0, PAGE_WEIGHT, 6, out));
    for (uint32_t i = 0; i < 6; i++) EXPECT_EQ(out[i], 2 + i);
    verify(&p);
    pool_deinit(&p);
}

static void pages_that_come_later_are_absent_until_then(void) {
    pool p = extents_of(12, 4, 4);
    EXPECT_EQ(pool_n_takeable(&p, 0), 4);
    pool_set_ready(&p, 8, 12);
    EXPECT_EQ(pool_n_takeable(&p, 0), 8);
    verify(&p);
    pool_set_ready(&p, 8, 8); // the device had no more
    EXPECT_EQ(p.n_device, 8);
    EXPECT_EQ(p.n_in[PAGE_ABSENT], 0);
    verify(&p);
    pool_deinit(&p);
}

/* Any order of taking and giving, in extents of several sizes. */
static void books_stay_right_in_any_order(void) {
    for (uint32_t size = 0; size <= 4; size++) {
        uint32_t n_pages = 24, held[24], n_held = 0, seed = 7 + size;
        pool p = extents_of(n_pages, n_pages, size);
        for (int iteration = 0; iteration < 2000; iteration++) {
            seed = seed * 1664525u + 1013904223u;
            uint32_t unit = size == 0 ? 1 : size, n = ((seed >> 8) % 3 + 1) * unit;
            if (seed >> 31 && n_held + n <= n_pages) {
                if (pool_take_weights(&p, 0, PAGE_WEIGHT, n, held + n_held)) n_held += n;
            } else if ((seed >> 30) % 2 && pool_n_takeable(&p, 0) > 0) {
                held[n_held++] = pool_take(&p, 0, PAGE_KV);
            } else if (n_held > 0) {
                uint32_t i = (seed >> 4) % n_held;
                pool_give(&p, held[i], 0);
                held[i] = held[--n_held];
            }
            if (iteration % 16 == 0) verify(&p);
        }
        pool_deinit(&p);
    }
}

static uint32_t emptied[8], n_emptied;

static void note_empty(void *ctx, uint32_t first_page) {
    EXPECT(ctx == emptied);
    if (n_emptied < 8) emptied[n_emptied++] = first_page;
}

/* A pool of 12 pages in extents of 4 counts in a ledger of 9: two extents fit, the third does not.
 */
static void pages_of_the_host_count_by_extents_where_they_are_apart(void) {
    pool p = open_pool(10, 2), host;
    inferd_err err = {0};
    EXPECT_EQ(pool_init_extents(&host, 12, 12, 4, 2, &err), INFERD_OK);
    pool_set_budgets(&p, 10, 9);
    pool_set_host(&host, &p, note_empty, emptied);
    n_emptied = 0;
    uint32_t pages[8];
    for (uint32_t i = 0; i < 8; i++) {
        pages[i] = pool_take(&host, i % 2, PAGE_SWAPPED);
        EXPECT_EQ(pages[i], i);
        EXPECT_EQ(pool_n_host_free(&p), i < 4 ? 5 : 1);
        EXPECT_EQ(pool_n_host_free(&host), pool_n_host_free(&p));
        verify(&host);
        verify(&p);
    }
    EXPECT_EQ(pool_take(&host, 0, PAGE_SWAPPED), PAGE_NONE); // there are 4 pages, and no room
    EXPECT(!pool_host_take(&p, 2) && pool_host_take(&p, 1));
    EXPECT_EQ(pool_n_device_free(&p), 10); // the device has nothing to do with it
    for (uint32_t i = 5; i < 8; i++) pool_give(&host, pages[i], 0);
    EXPECT_EQ(pool_n_host_free(&p), 0);
    EXPECT_EQ(n_emptied, 0);
    EXPECT_EQ(pool_take(&host, 0, PAGE_SWAPPED), pages[7]); // its extent is paid for
    pool_give(&host, pages[7], 0);
    pool_give(&host, pages[4], 0);
    EXPECT_EQ(pool_n_host_free(&p), 4);
    EXPECT_EQ(n_emptied, 1);
    EXPECT_EQ(emptied[0], 4);
    EXPECT_EQ(pool_take(&host, 0, PAGE_SWAPPED), pages[4]); // the extent that was emptied last
    verify(&host);
    host.budget->n_swapped_apart++;
    EXPECT(pool_verify(&host, &err) != INFERD_OK);
    host.budget->n_swapped_apart--;
    pool_deinit(&host);
    pool_deinit(&p);
}

static const test_case cases[] = {
    TEST(every_page_is_taken_once),
    TEST(many_pages_are_taken_all_or_none),
    TEST(a_page_given_back_waits_for_the_step_that_used_it),
    TEST(cold_pages_are_taken_last),
    TEST(a_guarantee_is_kept_free_for_its_owner),
    TEST(a_ceiling_holds_while_pages_are_free),
    TEST(weights_that_change_hands_stay_where_they_are),
    TEST(watermarks_say_how_many_pages_are_short),
    TEST(two_ledgers_share_the_pages),
    TEST(converting_pages_respects_ceilings_and_guarantees),
    TEST(verify_finds_what_is_wrong),
    TEST(keys_and_values_break_one_extent_at_a_time),
    TEST(weights_take_whole_extents_in_order),
    TEST(weights_without_mapping_take_neighbours),
    TEST(pages_that_come_later_are_absent_until_then),
    TEST(pages_of_the_host_count_by_extents_where_they_are_apart),
    TEST(books_stay_right_in_any_order),
};
TEST_MAIN(cases)
