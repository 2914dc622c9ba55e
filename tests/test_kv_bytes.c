/* test_kv_bytes.c - the bytes of keys and values on the CPU: read, written, moved, zeroed. */
#include "kernels/backend.h"
#include "test.h"

enum { SLOTS = 7, GROUPS = 1 };

static backend *open_cpu(void) {
    backend_options o = {.kind = "cpu", .memory_bytes = 64u << 20, .n_threads = 1};
    backend *be = NULL;
    inferd_err err = {0};
    if (backend_open(&o, &be, &err) != INFERD_OK) printf("%s\n", err.text);
    EXPECT(be != NULL);
    return be;
}

static kv_layout layout_of(const backend *be) {
    return (kv_layout){.type = KV_F16,
                       .n_layers = 1,
                       .n_kv_heads = 1,
                       .head_dim = 64,
                       .block_tokens = 16,
                       .group_layers = 1,
                       .n_groups = GROUPS,
                       .slots_per_page = SLOTS,
                       .slot_bytes = be_page_bytes(be) / SLOTS / 64 * 64};
}

static bool is_all(const unsigned char *p, size_t n, unsigned char c) {
    for (size_t i = 0; i < n; i++)
        if (p[i] != c) return false;
    return true;
}

static void a_slot_is_where_it_was_moved(void) {
    backend *be = open_cpu();
    kv_layout l = layout_of(be);
    int32_t from = 3, to = 2 * SLOTS + 6; // in another page
    memset(be_kv_slot(be, &l, from), 0x5a, l.slot_bytes);
    be_kv_move(be, &l, 1, &from, &to, true);
    EXPECT(is_all(be_kv_slot(be, &l, to), l.slot_bytes, 0x5a));
    EXPECT(be_kv_slot(be, &l, to) != be_kv_slot(be, &l, from));
    backend_close(be);
}

static void zeroing_takes_what_was_said_and_nothing_else(void) {
    backend *be = open_cpu();
    kv_layout l = layout_of(be);
    for (int32_t i = 0; i < 3 * SLOTS; i++) memset(be_kv_slot(be, &l, i), 0x40 + i, l.slot_bytes);
    be_page_zero(be, 1, 2 * l.slot_bytes, l.slot_bytes); // one slot of it
    for (int32_t i = 0; i < 3 * SLOTS; i++)
        EXPECT(is_all(be_kv_slot(be, &l, i), l.slot_bytes,
                      (unsigned char)(i == SLOTS + 2 ? 0 : 0x40 + i)));
    be_page_zero(be, 1, 0, be_page_bytes(be));
    EXPECT(is_all(be_kv_slot(be, &l, SLOTS), be_page_bytes(be), 0));
    EXPECT(is_all(be_kv_slot(be, &l, SLOTS - 1), l.slot_bytes, 0x40 + SLOTS - 1));
    EXPECT(is_all(be_kv_slot(be, &l, 2 * SLOTS), l.slot_bytes, 0x40 + 2 * SLOTS));
    backend_close(be);
}

static const test_case cases[] = {
    TEST(a_slot_is_where_it_was_moved),
    TEST(zeroing_takes_what_was_said_and_nothing_else),
};
TEST_MAIN(cases)
