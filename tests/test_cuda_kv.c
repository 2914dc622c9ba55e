/* test_cuda_kv.c - keys and values of the CUDA backend on their way to host memory and back, on
 * emulation or on a GPU when INFERD_CUDA_MODULE names an inferd_cuda.so.
 *
 * Bytes are written and read where the host sees them (be_kv_slot); what steps have to do with the
 * moves is in test_cuda_backend.c. */
#include <time.h>

#include "cuda/cuda.h"
#include "cuda_emul/fake_api.h"
#include "gpu_calls.h"
#include "kernels/backend.h"
#include "test.h"

const struct cuda_module *emul_module(void);

enum { SLOTS = 5, SEED = 7 }; // slots of a page

typedef struct bench {
    backend *be;
    kv_layout kv;
    uint32_t extent; // host pages that come together
} bench;

static bool on_gpu(void) {
    return gpu_calls_wanted();
}

static void open_bench(bench *b, uint64_t host_bytes) {
    inferd_err err = {0};
    backend_options o = {.kind = "cuda",
                         .n_threads = 1,
                         .memory_bytes = 160u << 20,
                         .workspace_bytes = 64u << 20,
                         .host_bytes = host_bytes,
                         .activations = "f16"};
    if (!on_gpu()) o.module = emul_module();
    fake_reset();
    *b = (bench){0};
    EXPECT_EQ(backend_open(&o, &b->be, &err), INFERD_OK);
    INFERD_CHECK(b->be != NULL);
    size_t slot_bytes = be_page_bytes(b->be) / SLOTS / 64 * 64;
    b->kv = (kv_layout){.type = KV_F16,
                        .n_layers = 1,
                        .group_layers = 1,
                        .n_groups = 1,
                        .block_tokens = 16,
                        .slots_per_page = SLOTS,
                        .layer_bytes = slot_bytes,
                        .slot_bytes = slot_bytes};
    b->extent = be_swap_extent_pages(b->be);
    for (int i = 0; i < 100000 && be_n_pages_ready(b->be) < be_n_pages(b->be); i++)
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    EXPECT_EQ(be_n_pages_ready(b->be), be_n_pages(b->be));
}

static void close_bench(bench *b) {
    if (on_gpu()) gpu_calls_add(1); // it opened, and copied
    backend_close(b->be);
    if (on_gpu()) return;
    EXPECT_EQ(fake_take_violations(), 0);
    EXPECT_EQ(fake_leaks(), 0);
}

static unsigned char byte_of(uint32_t what, size_t at) {
    return (unsigned char)((what * 2654435761u + (uint32_t)at * 40503u + (uint32_t)(at >> 8)) >> 5);
}

static void put(bench *b, int32_t slot, uint32_t what) {
    unsigned char *p = be_kv_slot(b->be, &b->kv, slot);
    for (size_t i = 0; i < b->kv.slot_bytes; i++) p[i] = byte_of(what, i);
}

static bool holds(bench *b, int32_t slot, uint32_t what) {
    const unsigned char *p = be_kv_slot(b->be, &b->kv, slot);
    for (size_t i = 0; i < b->kv.slot_bytes; i++)
        if (p[i] != byte_of(what, i)) {
            printf("slot %d: byte %zu is not that of %u\n", slot, i, what);
            return false;
        }
    return true;
}

static void move(bench *b, int32_t from, int32_t to, bool to_host) {
    be_kv_move(b->be, &b->kv, 1, &from, &to, to_host);
}

static void expect_fine(bench *b) {
    inferd_err err = {0};
    if (be_check(b->be, &err) == INFERD_OK) return;
    printf("%s\n", err.text);
    EXPECT(!"nothing has failed");
}

static void there_are_pages_for_it_in_whole_extents(void) {
    bench b;
    open_bench(&b, 0);
    EXPECT(be_n_swap_pages(b.be) >= be_n_pages(b.be));
    EXPECT(be_n_swap_pages(b.be) < be_n_pages(b.be) + b.extent);
    EXPECT_EQ(be_n_swap_pages(b.be) % b.extent, 0);
    close_bench(&b);
}

static void the_host_says_how_many_pages_there_are(void) {
    bench b;
    open_bench(&b, 0);
    size_t extent_bytes = b.extent * be_page_bytes(b.be);
    close_bench(&b);
    open_bench(&b, 3 * extent_bytes - 1);
    EXPECT_EQ(be_n_swap_pages(b.be), 2 * b.extent);
    close_bench(&b);
    open_bench(&b, extent_bytes - 1);
    EXPECT_EQ(be_n_swap_pages(b.be), 0);
    close_bench(&b);
}

/* Over all pages, by runs that begin and end anywhere: neighbours travel together. */
static void slots_there_and_back_are_the_same(void) {
    enum { N = 4 * SLOTS };
    bench b;
    open_bench(&b, 0);
    for (int32_t i = 0; i < N; i++) put(&b, i, (uint32_t)i);
    int32_t in[N], there[N], back[N];
    uint64_t state = SEED;
    for (int32_t i = 0; i < N; i++) {
        in[i] = i;
        there[i] =
            3 + i + (i >= 7 ? 2 : 0) + (i >= 11 ? 4 * SLOTS : 0); // runs of 7, 4 and the rest
        back[i] = 6 * SLOTS + i;
    }
    for (int32_t i = N - 1; i > 0; i--) { // and back one by one, in any order
        state = state * 6364136223846793005u + 1442695040888963407u;
        int32_t j = (int32_t)(state >> 33) % (i + 1), t = back[i];
        back[i] = back[j];
        back[j] = t;
    }
    be_kv_move(b.be, &b.kv, N, in, there, false);
    be_kv_move(b.be, &b.kv, N, there, back, true);
    for (int32_t i = 0; i < N; i++) EXPECT(holds(&b, back[i], (uint32_t)i));
    for (int32_t i = 0; i < N; i++) EXPECT(holds(&b, in[i], (uint32_t)i));
    expect_fine(&b);
    close_bench(&b);
    if (test_failures > 0) printf("seed %d\n", SEED);
}

/* A run of slots is one copy, up to the end of its page: 2 pages of 5 take 2 copies each way. */
static void neighbours_travel_together(void) {
    bench b;
    if (on_gpu()) SKIP("copies are counted by the fake");
    open_bench(&b, 0);
    int32_t slots[2 * SLOTS];
    for (int32_t i = 0; i < 2 * SLOTS; i++) slots[i] = i;
    uint64_t before = fake_calls("copy_to_device");
    be_kv_move(b.be, &b.kv, 2 * SLOTS, slots, slots, false);
    EXPECT_EQ(fake_calls("copy_to_device") - before, 2);
    before = fake_calls("copy_to_host");
    be_kv_move(b.be, &b.kv, 2 * SLOTS, slots, slots, true);
    EXPECT_EQ(fake_calls("copy_to_host") - before, 2);
    close_bench(&b);
}

/* The same slots are used over and over without anybody waiting in between. */
static void moves_keep_their_order(void) {
    bench b;
    open_bench(&b, 0);
    for (int32_t i = 0; i < 6; i++) put(&b, i, (uint32_t)i);
    for (int32_t i = 0; i < 6; i++) {
        move(&b, i, 17, false);
        move(&b, 17, 20 + i, true); // what is there now, and not what comes next
        move(&b, 20 + i, 18, false);
        move(&b, 18, 30 + i, true);
    }
    for (int32_t i = 0; i < 6; i++) EXPECT(holds(&b, 20 + i, (uint32_t)i));
    for (int32_t i = 0; i < 6; i++) EXPECT(holds(&b, 30 + i, (uint32_t)i));
    expect_fine(&b);
    close_bench(&b);
}

/* Zeroing, which is in order with steps, comes behind what was copied out, and ahead of what comes
 * back. */
static void zeroing_keeps_its_place_between_moves(void) {
    bench b;
    open_bench(&b, 0);
    put(&b, 0, 1);
    put(&b, 1, 2);
    for (int32_t i = 0; i < 20; i++) {
        int32_t slot = 40 + i;
        uint32_t page = (uint32_t)slot / SLOTS;
        move(&b, 0, slot, false);
        move(&b, slot, 2, true);
        be_page_zero(b.be, page, (uint32_t)slot % SLOTS * b.kv.slot_bytes, b.kv.slot_bytes);
        move(&b, slot, 4, true);
        be_page_zero(b.be, page, (uint32_t)slot % SLOTS * b.kv.slot_bytes, b.kv.slot_bytes);
        move(&b, 1, slot, false);
        move(&b, slot, 3, true);
        EXPECT(holds(&b, 2, 1));
        EXPECT(holds(&b, 3, 2));
        const unsigned char *p = be_kv_slot(b.be, &b.kv, 4);
        size_t n = 0;
        while (n < b.kv.slot_bytes && p[n] == 0) n++;
        EXPECT_EQ(n, b.kv.slot_bytes);
    }
    expect_fine(&b);
    close_bench(&b);
}

/* Pages whose blocks were just parked become those of a model's weights. */
static void weights_do_not_overtake_what_is_copied_out(void) {
    bench b;
    inferd_err err = {0};
    open_bench(&b, 0);
    uint32_t n_pages = u32_max(be_extent_pages(b.be), 1), pages[64];
    size_t n_bytes = n_pages * be_page_bytes(b.be);
    be_window *w = NULL;
    for (uint32_t i = 0; i < n_pages; i++) pages[i] = n_pages + i;
    EXPECT_EQ(be_window_open(b.be, n_bytes, &w, &err), INFERD_OK);
    for (int round = 0; round < 10; round++) {
        int32_t slot = (int32_t)(n_pages * SLOTS) + round % SLOTS;
        put(&b, 0, (uint32_t)round);
        move(&b, 0, slot, false);
        move(&b, slot, 9, true);
        EXPECT_EQ(be_window_host_take(b.be, w, &err), INFERD_OK);
        memset(be_window_host(w), 0xAA, n_bytes);
        EXPECT_EQ(be_window_map(b.be, w, pages, n_pages, &err), INFERD_OK);
        be_window_upload(b.be, w, 0, n_bytes);
        EXPECT_EQ(be_sync(b.be, &err), INFERD_OK);
        EXPECT(holds(&b, 9, (uint32_t)round));
        EXPECT_EQ(be_window_unmap(b.be, w, &err), INFERD_OK);
        be_window_host_give(b.be, w);
    }
    be_window_close(b.be, w);
    expect_fine(&b);
    close_bench(&b);
}

/* ---- host memory ---- */

static uint64_t pinned_bytes(bench *b) {
    backend_stats s;
    be_get_stats(b->be, &s);
    return s.pinned_bytes;
}

static void wait_pinned(bench *b, uint64_t n_bytes) {
    for (int i = 0; i < 100000 && pinned_bytes(b) != n_bytes; i++)
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    EXPECT_EQ(pinned_bytes(b), n_bytes);
}

static void extents_are_pinned_one_ahead_and_a_few_are_kept(void) {
    bench b;
    open_bench(&b, 0);
    size_t extent_bytes = b.extent * be_page_bytes(b.be);
    uint32_t n = be_n_swap_pages(b.be) / b.extent, each = b.extent * SLOTS;
    if (n < 6) SKIP("a device too small for six extents");
    n = 6;
    wait_pinned(&b, extent_bytes);
    for (uint32_t i = 0; i < n - 1; i++) {
        move(&b, 0, (int32_t)(i * each), true);
        wait_pinned(&b, (i + 2) * extent_bytes);
        move(&b, 0, (int32_t)(i * each + each - 1), true);
        wait_pinned(&b, (i + 2) * extent_bytes);
    }
    move(&b, 0, (int32_t)((n - 1) * each), true);
    for (uint32_t i = 0; i < n; i++) be_swap_empty(b.be, i * b.extent);
    EXPECT(pinned_bytes(&b) <= 4 * extent_bytes);
    put(&b, 3, 5); // and it goes on
    move(&b, 3, 2, false);
    move(&b, 2, (int32_t)each, true);
    EXPECT(holds(&b, (int32_t)each, 5));
    expect_fine(&b);
    close_bench(&b);
}

static uint64_t used_bytes(bench *b) {
    cuda_memory_stats s;
    memory_get_stats(cuda_of(b->be)->memory, &s);
    return s.image_bytes;
}

/* An extent is made ahead of one that is taken, and gives way to another one that is taken. */
static void spare_extents_do_not_go_beyond_the_memory(void) {
    bench b;
    inferd_err err = {0};
    open_bench(&b, 0);
    size_t extent_bytes = b.extent * be_page_bytes(b.be);
    int32_t each = (int32_t)b.extent * SLOTS;
    close_bench(&b);
    open_bench(&b, 4 * extent_bytes);
    be_window *w = NULL;
    EXPECT_EQ(be_window_open(b.be, 2 * extent_bytes, &w, &err), INFERD_OK);
    EXPECT_EQ(be_window_host_take(b.be, w, &err), INFERD_OK);
    put(&b, 0, 1);
    EXPECT_EQ(used_bytes(&b), 4 * extent_bytes); // and one ahead
    put(&b, 3 * each, 2);
    EXPECT_EQ(used_bytes(&b), 4 * extent_bytes);
    EXPECT(holds(&b, 0, 1) && holds(&b, 3 * each, 2));
    be_window_close(b.be, w);
    expect_fine(&b);
    close_bench(&b);
}

/* Nothing is unpinned that a copy still uses. */
static void memory_goes_when_its_copies_are_done(void) {
    bench b;
    if (on_gpu()) SKIP("the fake knows what is on its way");
    open_bench(&b, 0);
    size_t extent_bytes = b.extent * be_page_bytes(b.be);
    fake_hold_queues(); // nothing runs before it must
    for (uint32_t i = 0; i < 6; i++) put(&b, (int32_t)(i * b.extent * SLOTS), i);
    wait_pinned(&b, 6 * extent_bytes);
    for (uint32_t i = 0; i < 6; i++) move(&b, (int32_t)(i * b.extent * SLOTS), (int32_t)i, false);
    EXPECT(fake_pending() > 0);
    for (uint32_t i = 0; i < 6; i++) be_swap_empty(b.be, i * b.extent);
    EXPECT(pinned_bytes(&b) <= 4 * extent_bytes);
    for (int32_t i = 0; i < 6; i++) move(&b, i, i, true);
    for (int32_t i = 0; i < 6; i++) EXPECT(holds(&b, i, (uint32_t)i));
    expect_fine(&b);
    close_bench(&b);
}

/* What the scheduler counts as free is free: memory that is kept for later goes first. */
static void weights_have_the_memory_of_spare_extents(void) {
    bench b;
    inferd_err err = {0};
    open_bench(&b, 0);
    size_t extent_bytes = b.extent * be_page_bytes(b.be);
    close_bench(&b);
    open_bench(&b, 3 * extent_bytes);
    be_window *w = NULL;
    EXPECT_EQ(be_window_open(b.be, 3 * extent_bytes, &w, &err), INFERD_OK);
    for (uint32_t i = 0; i < 3; i++) put(&b, (int32_t)(i * b.extent * SLOTS), i);
    EXPECT_EQ(be_window_host_take(b.be, w, &err), INFERD_ENOMEM);
    for (uint32_t i = 0; i < 3; i++) {
        move(&b, (int32_t)(i * b.extent * SLOTS), (int32_t)i, false); // it may be on its way
        be_swap_empty(b.be, i * b.extent);
    }
    EXPECT_EQ(be_window_host_take(b.be, w, &err), INFERD_OK);
    be_window_host_give(b.be, w);
    /* Two are taken; the third is made ahead, and gives way to a window of its size. */
    put(&b, 0, 1);
    put(&b, (int32_t)(b.extent * SLOTS), 2);
    be_window_close(b.be, w);
    EXPECT_EQ(be_window_open(b.be, extent_bytes, &w, &err), INFERD_OK);
    EXPECT_EQ(be_window_host_take(b.be, w, &err), INFERD_OK);
    EXPECT(holds(&b, 0, 1) && holds(&b, (int32_t)(b.extent * SLOTS), 2));
    be_window_close(b.be, w);
    expect_fine(&b);
    close_bench(&b);
}

static void memory_that_cannot_be_pinned_serves_too(void) {
    bench b;
    if (on_gpu()) SKIP("a real device does not fail on demand");
    open_bench(&b, 0);
    fake_fail_call_always("host_pin", 1, CU_ENOMEM);
    put(&b, 0, 3);
    move(&b, 0, 11, false);
    put(&b, 0, 4); // the copy has read it
    move(&b, 11, 1, true);
    EXPECT(holds(&b, 1, 3) && holds(&b, 0, 4));
    expect_fine(&b);
    close_bench(&b);
}

/* ---- when it breaks ---- */

static void a_copy_that_fails_loses_the_device(void) {
    static const char *const calls[] = {"copy_to_host", "copy_to_device", "event_record",
                                        "stream_wait"};
    if (on_gpu()) SKIP("a real device does not fail on demand");
    for (size_t i = 0; i < INFERD_COUNT(calls); i++) {
        bench b;
        inferd_err err = {0};
        open_bench(&b, 0);
        put(&b, 0, 1);
        fake_fail_call(calls[i], 1, CU_EFAILED);
        if (i == 1)
            move(&b, 0, 3, false);
        else
            move(&b, 3, 0, true);
        EXPECT(fake_failed());
        EXPECT_EQ(be_check(b.be, &err), INFERD_ELOST);
        EXPECT(strstr(err.text, "keys and values") != NULL);
        close_bench(&b);
    }
    bench b;
    inferd_err err = {0};
    open_bench(&b, 0);
    move(&b, 3, 0, true);
    fake_fail_call("stream_sync", 1, CU_EFAILED);
    be_kv_slot(b.be, &b.kv, 0);
    EXPECT_EQ(be_check(b.be, &err), INFERD_ELOST);
    close_bench(&b);
}

static const test_case cases[] = {
    TEST(there_are_pages_for_it_in_whole_extents),
    TEST(the_host_says_how_many_pages_there_are),
    TEST(slots_there_and_back_are_the_same),
    TEST(neighbours_travel_together),
    TEST(moves_keep_their_order),
    TEST(zeroing_keeps_its_place_between_moves),
    TEST(weights_do_not_overtake_what_is_copied_out),
    TEST(extents_are_pinned_one_ahead_and_a_few_are_kept),
    TEST(spare_extents_do_not_go_beyond_the_memory),
    TEST(memory_goes_when_its_copies_are_done),
    TEST(weights_have_the_memory_of_spare_extents),
    TEST(memory_that_cannot_be_pinned_serves_too),
    TEST(a_copy_that_fails_loses_the_device),
};
TEST_MAIN(cases)
