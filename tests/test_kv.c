/* test_kv.c - blocks of keys and values, cut from pages. */
#include "test.h"

#include "kv.h"

typedef struct rig {
    pool pool;
    kv kv;
} rig;

static void verify(const rig *r) {
    inferd_err err = {0};
    inferd_status s = pool_verify(&r->pool, &err);
    if (s == INFERD_OK) s = kv_verify(&r->kv, &err);
    if (s != INFERD_OK) printf("%s\n", err.text);
    EXPECT_EQ(s, INFERD_OK);
}

static void rig_init(rig *r, uint32_t n_pages, uint32_t n_groups, uint32_t slots_per_page) {
    kv_layout l = {.block_tokens = 4, .n_groups = n_groups, .slots_per_page = slots_per_page};
    inferd_err err = {0};
    EXPECT_EQ(pool_init_extents(&r->pool, n_pages, n_pages, 1, 1, &err), INFERD_OK);
    EXPECT_EQ(kv_init(&r->kv, &l, &r->pool, 0, PAGE_KV, &err), INFERD_OK);
    verify(r);
}

static void rig_deinit(rig *r) {
    kv_deinit(&r->kv);
    pool_deinit(&r->pool);
}

static kv_table open_table(const rig *r) {
    kv_table t;
    EXPECT(kv_table_init(&t, &r->kv.layout, 16));
    return t;
}

static void release(rig *r, kv_table *t, uint64_t fence) {
    while (t->n_blocks > 0) {
        uint32_t block = kv_drop_last(&r->kv, t, fence);
        if (block != BLOCK_NONE) kv_block_free(&r->kv, block);
    }
    verify(r);
}

static uint32_t page_of(const rig *r, const kv_table *t, uint32_t i) {
    return (uint32_t)t->slots[i] / r->kv.layout.slots_per_page;
}

static void slots_of_used_pages_come_before_a_cold_one(void) {
    rig r;
    rig_init(&r, 4, 1, 3);
    r.pool.n_warm = 1;
    kv_table a = open_table(&r), b = open_table(&r);
    EXPECT(!kv_next_is_cold(&r.kv, &a));
    EXPECT(kv_append(&r.kv, &a)); // page 0, and two slots are left
    EXPECT(!kv_next_is_cold(&r.kv, &b));
    EXPECT(kv_append(&r.kv, &b) && page_of(&r, &b, 0) == 0);
    EXPECT(kv_append(&r.kv, &b) && page_of(&r, &b, 1) == 0);
    EXPECT(kv_next_is_cold(&r.kv, &a) && kv_next_is_cold(&r.kv, &b));
    EXPECT(kv_append(&r.kv, &b) && page_of(&r, &b, 2) == 1);
    EXPECT(!kv_next_is_cold(&r.kv, &b)); // it fills that page
    verify(&r);
    release(&r, &a, 0);
    release(&r, &b, 0);
    kv_table_deinit(&a);
    kv_table_deinit(&b);
    rig_deinit(&r);
}

static void a_sequence_fills_its_own_page_first(void) {
    rig r;
    rig_init(&r, 4, 1, 3);
    kv_table a = open_table(&r), b = open_table(&r);
    for (int i = 0; i < 3; i++) { // in turns, as a batch does
        EXPECT(kv_append(&r.kv, &a));
        EXPECT(kv_append(&r.kv, &b));
        verify(&r);
    }
    EXPECT(page_of(&r, &a, 0) == page_of(&r, &a, 1) && page_of(&r, &a, 1) == page_of(&r, &a, 2));
    EXPECT(page_of(&r, &b, 0) == page_of(&r, &b, 1) && page_of(&r, &b, 1) == page_of(&r, &b, 2));
    EXPECT(page_of(&r, &a, 0) != page_of(&r, &b, 0));
    release(&r, &a, 0);
    EXPECT_EQ(r.pool.n_in[PAGE_FREE], 3); // its end returned a whole page
    release(&r, &b, 0);
    EXPECT_EQ(r.pool.n_in[PAGE_FREE], 4);
    kv_table_deinit(&a);
    kv_table_deinit(&b);
    rig_deinit(&r);
}

static void a_partly_free_page_is_used_when_no_other_is_left(void) {
    rig r;
    rig_init(&r, 2, 1, 3);
    kv_table a = open_table(&r), b = open_table(&r), c = open_table(&r);
    EXPECT(kv_append(&r.kv, &a));
    EXPECT(kv_append(&r.kv, &b));
    for (int i = 0; i < 4; i++) EXPECT(kv_append(&r.kv, &c));
    EXPECT(!kv_append(&r.kv, &c));
    EXPECT(!kv_append(&r.kv, &a));
    EXPECT_EQ(a.n_blocks, 1);
    verify(&r);
    release(&r, &c, 0);
    EXPECT_EQ(r.kv.n_free_slots, 4);
    release(&r, &a, 0);
    release(&r, &b, 0);
    EXPECT_EQ(r.pool.n_in[PAGE_FREE], 2);
    kv_table_deinit(&a);
    kv_table_deinit(&b);
    kv_table_deinit(&c);
    rig_deinit(&r);
}

static void a_block_is_taken_with_all_its_groups_or_not_at_all(void) {
    rig r;
    rig_init(&r, 2, 3, 4); // 8 slots, 3 per block: 2 blocks and 2 slots left over
    kv_table a = open_table(&r);
    EXPECT(kv_append(&r.kv, &a));
    EXPECT(kv_append(&r.kv, &a));
    verify(&r);
    EXPECT(!kv_append(&r.kv, &a));
    EXPECT_EQ(r.kv.n_free_slots, 2);
    EXPECT_EQ(kv_blocks_in(&r.kv.layout, 2), 2);
    verify(&r);
    for (uint32_t i = 0; i < 6; i++) // every slot once
        for (uint32_t j = 0; j < i; j++) EXPECT(a.slots[i] != a.slots[j]);
    release(&r, &a, 0);
    EXPECT_EQ(r.pool.n_in[PAGE_FREE], 2);
    kv_table_deinit(&a);
    rig_deinit(&r);
}

static void a_failed_append_gives_a_fresh_page_back(void) {
    rig r;
    rig_init(&r, 1, 3, 2); // one page of 2 slots can never hold 3
    kv_table a = open_table(&r);
    EXPECT(!kv_append(&r.kv, &a));
    EXPECT_EQ(r.pool.n_in[PAGE_FREE], 1);
    verify(&r);
    kv_table_deinit(&a);
    rig_deinit(&r);
}

static void a_shared_block_returns_with_its_last_count(void) {
    rig r;
    rig_init(&r, 2, 2, 2);
    kv_table a = open_table(&r), b = open_table(&r);
    EXPECT(kv_append(&r.kv, &a));
    kv_append_shared(&r.kv, &b, a.blocks[0]);
    EXPECT_EQ(r.kv.blocks[a.blocks[0]].refs, 2);
    EXPECT(b.slots[0] == a.slots[0] && b.slots[1] == a.slots[1]);
    EXPECT_EQ(kv_drop_last(&r.kv, &a, 0), BLOCK_NONE);
    verify(&r);
    EXPECT_EQ(r.kv.n_live, 1);
    uint32_t block = kv_drop_last(&r.kv, &b, 0);
    EXPECT(block != BLOCK_NONE);
    EXPECT_EQ(r.kv.n_live, 0);
    EXPECT_EQ(r.kv.n_idle_pages, 1); // cached only
    verify(&r);
    kv_block_free(&r.kv, block);
    EXPECT_EQ(r.kv.n_idle_pages, 0);
    EXPECT_EQ(r.pool.n_in[PAGE_FREE], 2);
    verify(&r);
    kv_table_deinit(&a);
    kv_table_deinit(&b);
    rig_deinit(&r);
}

static void a_freed_slot_is_not_drawn_before_its_step_has_finished(void) {
    rig r;
    rig_init(&r, 1, 1, 3);
    kv_table a = open_table(&r), b = open_table(&r);
    EXPECT(kv_append(&r.kv, &a));
    EXPECT(kv_append(&r.kv, &b));
    uint64_t epoch = pool_launch(&r.pool);
    release(&r, &b, epoch);
    EXPECT_EQ(r.kv.n_free_slots, 2);
    EXPECT(!kv_append(&r.kv, &a)); // the page is fenced, even its slot that was never used
    pool_finish(&r.pool, epoch);
    EXPECT(kv_append(&r.kv, &a));
    epoch = pool_launch(&r.pool);
    release(&r, &a, epoch);
    EXPECT_EQ(r.pool.n_in[PAGE_QUARANTINE], 1);
    pool_finish(&r.pool, epoch);
    EXPECT_EQ(r.pool.n_in[PAGE_FREE], 1);
    verify(&r);
    kv_table_deinit(&a);
    kv_table_deinit(&b);
    rig_deinit(&r);
}

static void random_use_keeps_the_books(void) {
    rig r;
    rig_init(&r, 7, 3, 5);
    kv_table t[6];
    uint64_t state = 12345, in_flight = 0;
    for (int i = 0; i < 6; i++) t[i] = open_table(&r);
    for (int i = 0; i < 4000; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint32_t x = (uint32_t)(state >> 33), k = x % 6;
        switch (x / 6 % 8) {
        case 0:
            release(&r, &t[k], r.pool.launched);
            break;
        case 1:
            if (t[k].n_blocks == 0 && t[(k + 1) % 6].n_blocks > 0)
                kv_append_shared(&r.kv, &t[k], t[(k + 1) % 6].blocks[0]);
            break;
        case 2:
            if (r.pool.launched - r.pool.finished < 2) in_flight = pool_launch(&r.pool);
            break;
        case 3:
            if (r.pool.finished < in_flight) pool_finish(&r.pool, r.pool.finished + 1);
            break;
        default:
            if (t[k].n_blocks < t[k].capacity) kv_append(&r.kv, &t[k]);
        }
        if (i % 7 == 0) verify(&r);
    }
    for (int i = 0; i < 6; i++) release(&r, &t[i], 0);
    while (r.pool.finished < r.pool.launched) pool_finish(&r.pool, r.pool.finished + 1);
    verify(&r);
    EXPECT_EQ(r.pool.n_in[PAGE_FREE], 7);
    for (int i = 0; i < 6; i++) kv_table_deinit(&t[i]);
    rig_deinit(&r);
}

static void a_layout_that_fits_no_page_is_an_answer(void) {
    kv_layout l = {.block_tokens = 16, .n_groups = 1, .slots_per_page = 0, .slot_bytes = 1 << 24};
    pool p;
    kv k;
    inferd_err err = {0};
    EXPECT_EQ(pool_init_extents(&p, 4, 4, 1, 1, &err), INFERD_OK);
    EXPECT_EQ(kv_init(&k, &l, &p, 0, PAGE_KV, &err), INFERD_EUNSUPPORTED);
    EXPECT(strstr(err.text, "16777216 bytes") != NULL);
    pool_deinit(&p);
}

static void verify_finds_what_is_wrong(void) {
    rig r;
    inferd_err err = {0};
    rig_init(&r, 3, 2, 4);
    kv_table a = open_table(&r);
    EXPECT(kv_append(&r.kv, &a));
    EXPECT(kv_append(&r.kv, &a));
    EXPECT(kv_append(&r.kv, &a));
    int32_t *slot = &r.kv.slots[a.blocks[1] * 2], saved = *slot;
    *slot = r.kv.slots[a.blocks[0] * 2]; // two blocks, one slot
    EXPECT_EQ(kv_verify(&r.kv, &err), INFERD_EINVAL);
    *slot = saved;
    verify(&r);
    r.kv.blocks[a.blocks[2]].taken = false;
    EXPECT_EQ(kv_verify(&r.kv, &err), INFERD_EINVAL);
    r.kv.blocks[a.blocks[2]].taken = true;
    r.kv.n_free_slots++;
    EXPECT_EQ(kv_verify(&r.kv, &err), INFERD_EINVAL);
    kv_table_deinit(&a);
    rig_deinit(&r);
}

/* ---- whose bytes ---- */

typedef struct zeroed {
    uint32_t n_whole, n_slots, page;
    size_t begin;
} zeroed;

static void note_zero(void *ctx, uint32_t page, size_t begin, size_t n_bytes, bool whole) {
    zeroed *z = ctx;
    EXPECT(n_bytes == (whole ? SIZE_MAX : 64));
    z->n_whole += whole;
    z->n_slots += !whole;
    z->page = page;
    z->begin = begin;
}

static void pages_and_slots_are_zeroed_for_another_tenant_only(void) {
    kv_layout l = {.n_layers = 1,
                   .block_tokens = 4,
                   .group_layers = 1,
                   .n_groups = 1,
                   .slots_per_page = 3,
                   .slot_bytes = 64};
    uint32_t tenants[1] = {KV_TENANT_NONE};
    zeroed z = {0};
    pool p;
    kv k[2];
    kv_table one, two;
    inferd_err err;
    EXPECT_EQ(pool_init_extents(&p, 1, 1, 1, 2, &err), INFERD_OK);
    for (uint32_t i = 0; i < 2; i++) { // two models
        EXPECT_EQ(kv_init(&k[i], &l, &p, i, PAGE_KV, &err), INFERD_OK);
        EXPECT(k[i].slot_tenants == NULL); // memory for whoever wants it
        EXPECT_EQ(kv_watch_tenants(&k[i], tenants, note_zero, &z, &err), INFERD_OK);
    }
    EXPECT(kv_table_init(&one, &l, 8) && kv_table_init(&two, &l, 8));
    one.tenant = 1;
    two.tenant = 2;
    EXPECT(kv_append(&k[0], &one) && kv_append(&k[0], &one) && kv_append(&k[0], &two));
    EXPECT_EQ(z.n_whole + z.n_slots, 0);
    kv_block_free(&k[0], kv_drop_last(&k[0], &one, 0)); // the second slot
    EXPECT(kv_append(&k[0], &two));
    EXPECT(z.n_slots == 1 && z.page == 0 && z.begin == 64);
    kv_block_free(&k[0], kv_drop_last(&k[0], &two, 0));
    EXPECT(kv_append(&k[0], &two)); // its own
    EXPECT_EQ(z.n_slots, 1);
    while (two.n_blocks > 0) kv_block_free(&k[0], kv_drop_last(&k[0], &two, 0));
    kv_block_free(&k[0], kv_drop_last(&k[0], &one, 0));
    EXPECT_EQ(p.n_in[PAGE_FREE], 1);
    EXPECT(kv_append(&k[1], &two)); // another model, and the page was of both tenants
    EXPECT(z.n_whole == 1 && z.n_slots == 1);
    kv_block_free(&k[1], kv_drop_last(&k[1], &two, 0));
    EXPECT(kv_append(&k[0], &two)); // its own alone
    EXPECT_EQ(z.n_whole, 1);
    kv_block_free(&k[0], kv_drop_last(&k[0], &two, 0));
    EXPECT(kv_append(&k[1], &one));
    EXPECT(z.n_whole == 2 && z.n_slots == 1);
    kv_block_free(&k[1], kv_drop_last(&k[1], &one, 0));
    kv_table_deinit(&one);
    kv_table_deinit(&two);
    for (uint32_t i = 0; i < 2; i++) kv_deinit(&k[i]);
    pool_deinit(&p);
}

static const test_case cases[] = {
    TEST(a_sequence_fills_its_own_page_first),
    TEST(slots_of_used_pages_come_before_a_cold_one),
    TEST(a_partly_free_page_is_used_when_no_other_is_left),
    TEST(a_block_is_taken_with_all_its_groups_or_not_at_all),
    TEST(a_failed_append_gives_a_fresh_page_back),
    TEST(a_shared_block_returns_with_its_last_count),
    TEST(a_freed_slot_is_not_drawn_before_its_step_has_finished),
    TEST(random_use_keeps_the_books),
    TEST(a_layout_that_fits_no_page_is_an_answer),
    TEST(verify_finds_what_is_wrong),
    TEST(pages_and_slots_are_zeroed_for_another_tenant_only),
};
TEST_MAIN(cases)
