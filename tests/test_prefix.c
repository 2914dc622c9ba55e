/* test_prefix.c - blocks found again by what they hold. */
#include "test.h"

#include "prefix.h"

typedef struct rig {
    pool pool;
    kv kv;
    prefix prefix;
} rig;

static const uint64_t key[2] = {0x0706050403020100, 0x0f0e0d0c0b0a0908};
static const uint64_t scope[2] = {1, 2}, other_scope[2] = {1, 3};

static void verify(const rig *r) {
    inferd_err err = {0};
    inferd_status s = pool_verify(&r->pool, &err);
    if (s == INFERD_OK) s = kv_verify(&r->kv, &err);
    if (s == INFERD_OK) s = prefix_verify(&r->prefix, &err);
    if (s != INFERD_OK) printf("%s\n", err.text);
    EXPECT_EQ(s, INFERD_OK);
}

static void rig_init(rig *r, uint32_t n_pages) {
    kv_layout l = {.block_tokens = 4, .n_groups = 1, .slots_per_page = 2};
    inferd_err err = {0};
    EXPECT_EQ(pool_init_extents(&r->pool, n_pages, n_pages, 1, 1, &err), INFERD_OK);
    EXPECT_EQ(kv_init(&r->kv, &l, &r->pool, 0, PAGE_KV, &err), INFERD_OK);
    EXPECT_EQ(prefix_init(&r->prefix, &r->kv, key, &err), INFERD_OK);
    verify(r);
}

static void rig_deinit(rig *r) {
    prefix_deinit(&r->prefix);
    kv_deinit(&r->kv);
    pool_deinit(&r->pool);
}

/* A sequence of n_blocks blocks of these tokens is computed; its table. */
static kv_table compute(rig *r, const uint64_t s[2], const tok_id *tokens, uint32_t n_blocks) {
    kv_table t;
    EXPECT(kv_table_init(&t, &r->kv.layout, 32));
    prefix_name name;
    uint32_t n = prefix_take(&r->prefix, s, tokens, n_blocks, &t, &name);
    for (; n < n_blocks; n++) {
        EXPECT(kv_append(&r->kv, &t));
        name = prefix_extend(&r->prefix, name, tokens + n * 4);
        prefix_publish(&r->prefix, &t, n, name, s, tokens + n * 4);
    }
    verify(r);
    return t;
}

static void let_go(rig *r, kv_table *t) {
    prefix_release(&r->prefix, t, 0);
    verify(r);
    kv_table_deinit(t);
}

static const tok_id text[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

/* The numbers are what OpenSSL says:
 *     openssl mac -macopt hexkey:000102...0f -macopt size:16 -in words SIPHASH */
static void names_are_siphash(void) {
    rig r;
    rig_init(&r, 2);
    prefix_name root = prefix_root(&r.prefix, scope); // of the words 1 and 2
    EXPECT(root.h[0] == 0xa1a97505fba1caf9 && root.h[1] == 0x9ce20389681ecb61);
    prefix_name next = prefix_extend(&r.prefix, root, text); // of the root and four tokens
    EXPECT(next.h[0] == 0x69a7d5ebd43aaab9 && next.h[1] == 0x7067655e492e9e5d);
    rig_deinit(&r);
}

static void the_same_beginning_shares_blocks(void) {
    rig r;
    rig_init(&r, 8);
    kv_table a = compute(&r, scope, text, 3), b = compute(&r, scope, text, 4);
    for (int i = 0; i < 3; i++) EXPECT_EQ(a.blocks[i], b.blocks[i]);
    EXPECT_EQ(r.kv.n_taken, 4);
    let_go(&r, &a);
    EXPECT_EQ(r.prefix.n_evictable, 0);
    let_go(&r, &b);
    EXPECT_EQ(r.prefix.n_evictable, 4);
    EXPECT_EQ(r.kv.n_live, 0);
    uint32_t n_uncounted;
    EXPECT_EQ(prefix_find(&r.prefix, scope, text, 4, &n_uncounted), 4);
    EXPECT_EQ(n_uncounted, 4);
    rig_deinit(&r);
}

static void another_scope_or_another_past_is_not_found(void) {
    rig r;
    rig_init(&r, 8);
    kv_table a = compute(&r, scope, text, 4);
    tok_id changed[16];
    uint32_t n;
    memcpy(changed, text, sizeof changed);
    EXPECT_EQ(prefix_find(&r.prefix, other_scope, text, 4, &n), 0);
    changed[5] = 99;
    EXPECT_EQ(prefix_find(&r.prefix, scope, changed, 4, &n), 1);
    changed[0] = 99;
    changed[5] = 6; // blocks 1 to 3 have the same tokens, but not the same past
    EXPECT_EQ(prefix_find(&r.prefix, scope, changed, 4, &n), 0);
    EXPECT_EQ(prefix_find(&r.prefix, scope, text + 4, 3, &n), 0);
    let_go(&r, &a);
    rig_deinit(&r);
}

static void tokens_are_compared_even_when_names_are_equal(void) {
    rig r;
    rig_init(&r, 8);
    kv_table a = compute(&r, scope, text, 2);
    r.prefix.tokens[a.blocks[1] * 4] = 77; // as if two texts had one name
    uint32_t n;
    EXPECT_EQ(prefix_find(&r.prefix, scope, text, 2, &n), 1);
    let_go(&r, &a);
    rig_deinit(&r);
}

static void the_end_of_the_longest_unused_goes_first(void) {
    rig r;
    rig_init(&r, 4);
    tok_id second[8] = {50, 51, 52, 53, 54, 55, 56, 57};
    kv_table a = compute(&r, scope, text, 3), b = compute(&r, scope, second, 2);
    let_go(&r, &a);
    let_go(&r, &b);
    uint32_t n;
    kv_table c = compute(&r, scope, text, 1); // its first block is used again
    let_go(&r, &c);
    static const uint32_t left[][2] = {{2, 2}, {1, 2}, {1, 1}, {1, 0}, {0, 0}};
    for (int i = 0; i < 5; i++) {
        EXPECT(prefix_evict(&r.prefix));
        verify(&r);
        EXPECT_EQ(prefix_find(&r.prefix, scope, text, 3, &n), left[i][0]);
        EXPECT_EQ(prefix_find(&r.prefix, scope, second, 2, &n), left[i][1]);
    }
    EXPECT(!prefix_evict(&r.prefix));
    EXPECT_EQ(r.pool.n_in[PAGE_FREE], 4);
    rig_deinit(&r);
}

static void a_block_in_use_is_not_evicted(void) {
    rig r;
    rig_init(&r, 4);
    kv_table a = compute(&r, scope, text, 3);
    EXPECT(!prefix_evict(&r.prefix));
    kv_table b = compute(&r, scope, text, 2);
    let_go(&r, &a);
    EXPECT(prefix_evict(&r.prefix)); // the third, which only a had
    EXPECT(!prefix_evict(&r.prefix));
    let_go(&r, &b);
    rig_deinit(&r);
}

static void the_second_of_two_equal_blocks_is_not_published(void) {
    rig r;
    rig_init(&r, 4);
    kv_table a = compute(&r, scope, text, 1), b;
    EXPECT(kv_table_init(&b, &r.kv.layout, 4));
    EXPECT(kv_append(&r.kv, &b)); // computed at the same time, so not found
    prefix_name name = prefix_extend(&r.prefix, prefix_root(&r.prefix, scope), text);
    prefix_publish(&r.prefix, &b, 0, name, scope, text);
    EXPECT_EQ(r.prefix.n_published, 1);
    verify(&r);
    let_go(&r, &b); // freed at once
    EXPECT_EQ(r.kv.n_taken, 1);
    let_go(&r, &a);
    EXPECT_EQ(r.prefix.n_evictable, 1);
    rig_deinit(&r);
}

static void a_block_a_step_may_still_read_is_not_evicted(void) {
    rig r;
    rig_init(&r, 4);
    kv_table a = compute(&r, scope, text, 1);
    uint64_t epoch = pool_launch(&r.pool);
    prefix_release(&r.prefix, &a, epoch);
    EXPECT(!prefix_evict(&r.prefix));
    pool_finish(&r.pool, epoch);
    EXPECT(prefix_evict(&r.prefix));
    verify(&r);
    kv_table_deinit(&a);
    rig_deinit(&r);
}

static void two_processes_have_different_keys(void) {
    rig a, b;
    inferd_err err = {0};
    rig_init(&a, 2);
    rig_init(&b, 2);
    prefix_deinit(&a.prefix);
    prefix_deinit(&b.prefix);
    EXPECT_EQ(prefix_init(&a.prefix, &a.kv, NULL, &err), INFERD_OK);
    EXPECT_EQ(prefix_init(&b.prefix, &b.kv, NULL, &err), INFERD_OK);
    EXPECT(memcmp(a.prefix.key, b.prefix.key, sizeof key) != 0);
    rig_deinit(&a);
    rig_deinit(&b);
}

static const test_case cases[] = {
    TEST(names_are_siphash),
    TEST(the_same_beginning_shares_blocks),
    TEST(another_scope_or_another_past_is_not_found),
    TEST(tokens_are_compared_even_when_names_are_equal),
    TEST(the_end_of_the_longest_unused_goes_first),
    TEST(a_block_in_use_is_not_evicted),
    TEST(the_second_of_two_equal_blocks_is_not_published),
    TEST(a_block_a_step_may_still_read_is_not_evicted),
    TEST(two_processes_have_different_keys),
};
TEST_MAIN(cases)
