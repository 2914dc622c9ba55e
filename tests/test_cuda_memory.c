/* test_cuda_memory.c - pages, windows, images, uploads and workspaces of the CUDA backend, on the
 * fake.
 *
 * What happens when calls fail in every place is in test_cuda_memory_fails.c. */
#include "kernels/machine.h"
#include "memory_rig.h"

static const uint32_t extents[] = {0, 1, 4, 32};

/* ---- opening ---- */

static void pages_follow_the_workspace_and_each_other(void) {
    for (size_t i = 0; i < INFERD_COUNT(extents); i++) {
        bench b;
        open_small(&b, extents[i]);
        size_t block = (size_t)PAGE * block_pages(&b);
        EXPECT_EQ(memory_extent_pages(b.m), extents[i]);
        EXPECT_EQ(memory_page_bytes(b.m), PAGE);
        size_t workspace = (512 * KIB + block - 1) / block * block;
        EXPECT_EQ(memory_n_pages(b.m), (24 * MIB - workspace) / PAGE);
        EXPECT_EQ(memory_n_ready(b.m), memory_n_pages(b.m));
        EXPECT_EQ(fake_held_bytes(), 24 * MIB);
        cuda_memory_stats st;
        memory_get_stats(b.m, &st);
        EXPECT_EQ(st.workspace_bytes, workspace);
        EXPECT_EQ(st.handle_bytes, extents[i] * (size_t)PAGE);
        EXPECT_EQ(st.n_handles, extents[i] == 0 ? 0 : 24 * MIB / block);
        EXPECT_EQ(st.n_pages_planned, memory_n_pages(b.m));
        /* 2 us and 50 bytes per ns for 6 MiB, a quarter of the memory */
        EXPECT_NEAR((double)st.bus_bytes_per_s, 6 * MIB / ((2 + 6 * MIB / 50e3) * 1e-6), 4e8);
        end(&b);
    }
}

static void the_rest_is_made_in_the_background(void) {
    bench b;
    begin(&b, 1);
    cuda_memory_options o = small;
    o.ready_pages_min = 5;
    fake_options()->granularity = 2 * PAGE; // extents of 2; no size to choose: 1.5 MiB is a 16th
    o.memory_bytes = 2 * MIB;
    o.workspace_bytes = 2 * PAGE;
    gate_set(&creating, 1 + 3); // 6 pages are 5 and the rest of an extent
    EXPECT_EQ(open_with(&b, &o), INFERD_OK);
    EXPECT_EQ(memory_n_ready(b.m), 6);
    EXPECT_EQ(memory_n_pages(b.m), 30);
    gate_set(&creating, UINT32_MAX);
    uint32_t before = 6;
    while (before < 30) {
        uint32_t now = memory_n_ready(b.m);
        EXPECT(now >= before && now % 2 == 0);
        before = now;
    }
    wait_grown(&b);
    EXPECT_EQ(memory_n_pages(b.m), 30);
    end(&b);
}

static atomic_int closer_state;
static void *close_it(void *arg) {
    EXPECT_EQ(fake_api()->device_use(0), CU_OK);
    atomic_store(&closer_state, 1);
    memory_close(arg);
    atomic_store(&closer_state, 2);
    return NULL;
}

static void closing_does_not_wait_for_the_rest(void) {
    bench b;
    begin(&b, 32);
    fake_options()->poison = false;
    fake_options()->device[0].memory_bytes = 2048ull * MIB;
    cuda_memory_options o = {.memory_bytes = 960ull * MIB, .ready_pages_min = 1};
    gate_set(&creating,
             16 + 32 + 30 + 1 + 5); // the probe's first size, the workspace, a page, a few
    EXPECT_EQ(open_with(&b, &o), INFERD_OK);
    EXPECT_EQ(memory_extent_pages(b.m), 1);
    pthread_t closer;
    atomic_store(&closer_state, 0);
    EXPECT_EQ(pthread_create(&closer, NULL, close_it, b.m), 0);
    while (atomic_load(&closer_state) == 0) nap();
    while (atomic_load(&closer_state) == 1) { // 480 in all, let through slowly
        for (int i = 0; i < 100; i++) nap();
        gate_set(&creating, 32);
    }
    pthread_join(closer, NULL);
    EXPECT(fake_calls("vmm_create") < 480);
    b.m = NULL;
    end(&b);
}

static void capacity_is_what_could_be_made(void) {
    static const char *const calls[] = {"vmm_create", "vmm_map", "vmm_access"};
    for (int c = 0; c < 3; c++)
        for (int always = 0; always < 2; always++) {
            bench b;
            begin(&b, 32); // blocks of 2 MiB, no probe; 1 of workspace, 11 of pages
            cuda_memory_options o = small;
            o.ready_pages_min = 32; // 2 at once, then 10 in one go
            cu_result how = c == 0 ? CU_ENOMEM : CU_EFAILED;
            /* Access: one call for the 2, one for the 10, and between them that of a second view.
             */
            uint32_t at = c == 0 ? 7 : c == 1 ? 8 : 3;
            if (always)
                fake_fail_call_always(calls[c], at, how);
            else
                fake_fail_call(calls[c], at, how);
            EXPECT_EQ(open_with(&b, &o), INFERD_OK);
            wait_grown(&b);
            for (int i = 0; i < 50000 && !fake_failed(); i++) nap();
            wait_grown(&b);
            /* Memory that is short is tried a second time, other failures are not. */
            uint32_t n_blocks = c == 0 && !always ? 11 : c == 2 ? 1 : 5;
            EXPECT_EQ(memory_n_pages(b.m), n_blocks * 32);
            EXPECT_EQ(memory_n_ready(b.m), n_blocks * 32);
            cuda_memory_stats st;
            memory_get_stats(b.m, &st);
            EXPECT_EQ(st.n_handles, n_blocks + 1);
            EXPECT_EQ(st.n_pages_planned, 11 * 32);
            EXPECT_EQ(fake_held_bytes(), (n_blocks + 1) * 2 * MIB);
            fake_fail_call_always(calls[c], 0, CU_OK);
            end(&b);
        }
}

static void another_process_may_have_been_faster(void) {
    bench b; // of the pages that must be there at once only some can be had
    begin(&b, 32);
    cuda_memory_options o = small;
    o.ready_pages_min = 6 * 32;
    fake_fail_call_always("vmm_create", 4, CU_ENOMEM);
    EXPECT_EQ(open_with(&b, &o), INFERD_OK);
    EXPECT_EQ(memory_n_pages(b.m), 2 * 32);
    EXPECT_EQ(memory_n_ready(b.m), 2 * 32);
    fake_fail_call_always("vmm_create", 0, CU_OK);
    end(&b);

    begin(&b, 32); // not even one extent
    fake_fail_call_always("vmm_create", 2, CU_ENOMEM);
    EXPECT_EQ(open_with(&b, &o), INFERD_ENOMEM);
    EXPECT(strstr(b.err.text, "of which 1 could be made") != NULL);
    fake_fail_call_always("vmm_create", 0, CU_OK);
    end(&b);

    begin(&b, 0);                          // without VMM: once more with what is there then
    fake_fail_call("alloc", 2, CU_ENOMEM); // the first one measures the bus
    EXPECT_EQ(open_with(&b, &small), INFERD_OK);
    end(&b);
    begin(&b, 0);
    fake_fail_call_always("alloc", 2, CU_ENOMEM);
    EXPECT_EQ(open_with(&b, &small), INFERD_ENOMEM);
    EXPECT(strstr(b.err.text, "taking 24 MiB of device memory") != NULL);
    fake_fail_call_always("alloc", 0, CU_OK);
    end(&b);
}

/* 64 MiB need 1353 us of the fake's bus; 5 % of that are 67 us. */
static void handles_are_as_small_as_their_mapping_allows(void) {
    static const struct {
        uint64_t map_us, access_us;
        uint32_t extent_pages; // of 2 MiB
    } cases[] = {
        {0, 0, 1},    {2, 3, 1},   // 32 * 2 + 3 = 67
        {2, 6, 2},                 // 70 and 38
        {8, 0, 4},                 // 256, 128, 64
        {16, 10, 16},              // 32 MiB: 2 * 16 + 10
        {60, 0, 32},  {0, 500, 32} // nothing is cheap enough
    };
    for (size_t i = 0; i < INFERD_COUNT(cases); i++) {
        bench b;
        begin(&b, 32);
        fake_options()->poison = false;
        fake_options()->device[0].memory_bytes = 2048ull * MIB;
        map_us = cases[i].map_us;
        access_us = cases[i].access_us;
        cuda_memory_options o = {.memory_bytes = 1024ull * MIB, .ready_pages_min = 1};
        EXPECT_EQ(open_with(&b, &o), INFERD_OK);
        EXPECT_EQ(memory_extent_pages(b.m), cases[i].extent_pages);
        EXPECT_EQ(memory_page_bytes(b.m), 2 * MIB);
        EXPECT_EQ(memory_n_pages(b.m), 480); // a 16th is workspace: 64 MiB
        end(&b);
    }
    bench b; // a small memory is not cut into a few large handles
    begin(&b, 1);
    map_us = 1000;
    EXPECT_EQ(open_with(&b, &small), INFERD_OK);
    EXPECT_EQ(memory_extent_pages(b.m), 16); // 1 MiB of 24
    end(&b);
}

static void the_free_memory_less_the_reserve_is_taken(void) {
    bench b;
    begin(&b, 32);
    fake_options()->others_bytes[0] = 100 * MIB; // of 256
    cuda_memory_options o = {.reserve_bytes = 56 * MIB, .workspace_bytes = 4 * MIB};
    EXPECT_EQ(open_with(&b, &o), INFERD_OK);
    wait_grown(&b);
    EXPECT_EQ(memory_n_pages(b.m), 48);
    end(&b);

    static const struct {
        cuda_memory_options o;
        size_t granularity;
        inferd_status s;
        const char *words;
    } cases[] = {
        {{.memory_bytes = 300 * MIB},
         2 * MIB,
         INFERD_ENOMEM,
         "memory of 300 MiB was asked for, device 0 has 256 MiB free of 256"},
        {{.memory_bytes = 0},
         2 * MIB,
         INFERD_ENOMEM,
         "device 0 has 256 MiB free of 256, and the reserve alone is 1024 MiB"},
        {{.memory_bytes = 64 * MIB, .workspace_bytes = 64 * MIB},
         2 * MIB,
         INFERD_ENOMEM,
         "a workspace of 65536 KiB leaves no pages: the memory is 65536 KiB"},
        {{.memory_bytes = 1}, 2 * MIB, INFERD_ENOMEM, "a workspace of 65536 KiB leaves no pages"},
        {{.memory_bytes = 64 * MIB, .page_bytes = 3 * MIB},
         2 * MIB,
         INFERD_EINVAL,
         "a page of 3145728 bytes, expected a power of two from 4096 to 67108864"},
        {{.memory_bytes = 64 * MIB, .page_bytes = 2 * KIB},
         2 * MIB,
         INFERD_EINVAL,
         "a page of 2048 bytes"},
    };
    for (size_t i = 0; i < INFERD_COUNT(cases); i++) {
        begin(&b, 32);
        fake_options()->granularity = cases[i].granularity;
        EXPECT_EQ(open_with(&b, &cases[i].o), cases[i].s);
        EXPECT(b.m == NULL);
        if (strstr(b.err.text, cases[i].words) == NULL) printf("it says: %s\n", b.err.text);
        EXPECT(strstr(b.err.text, cases[i].words) != NULL);
        end(&b);
    }
}

static void pieces_that_are_too_large_are_done_without(void) {
    bench b;
    cuda_parts parts;
    begin(&b, 32);
    fake_options()->granularity = 128 * MIB;
    EXPECT_EQ(parts_init(&parts, NULL, NULL), INFERD_OK);
    cuda_memory_options o = {.memory_bytes = 200 * MIB, .parts = &parts};
    EXPECT_EQ(open_with(&b, &o), INFERD_OK);
    EXPECT_EQ(memory_extent_pages(b.m), 0);
    EXPECT_EQ(parts.part[PART_VMM].state, BE_PART_DEGRADED);
    EXPECT_STR(parts.part[PART_VMM].why,
               "device 0 maps memory in pieces of 128 MiB, at most 64 MiB are possible");
    end(&b);
}

/* ---- windows ---- */

enum { WINDOW_BYTES = 5 * MIB + 12345 };

static void window_shows_the_pages(void) {
    for (size_t i = 0; i < INFERD_COUNT(extents); i++) {
        bench b;
        open_small(&b, extents[i]);
        uint32_t pages[512], n = some_pages(&b, n_blocks_of(&b, WINDOW_BYTES), 0, pages);
        cuda_window *w;
        EXPECT_EQ(window_open_cuda(b.m, WINDOW_BYTES, &w, &b.err), INFERD_OK);
        EXPECT((window_base_cuda(w) == NULL) == (extents[i] == 0));
        EXPECT_EQ(window_map_cuda(b.m, w, pages, n, &b.err), INFERD_OK);
        unsigned char *base = window_base_cuda(w);
        if (extents[i] == 0) EXPECT(base == page_at(&b, pages[0]));

        /* What goes to the window is in the pages. */
        fill_image(&b, w, WINDOW_BYTES, 1);
        EXPECT_EQ(window_upload_cuda(b.m, w, 0, WINDOW_BYTES, &b.err), INFERD_OK);
        EXPECT_EQ(memory_wait(b.m, b.s, base, &b.err), INFERD_OK);
        for (uint32_t j = 0; j * (size_t)PAGE < WINDOW_BYTES; j++)
            EXPECT(shows(&b, page_at(&b, pages[j]), size_min(PAGE, WINDOW_BYTES - j * (size_t)PAGE),
                         j * (size_t)PAGE, 1));

        /* What goes to a page is in the window. */
        static unsigned char other[PAGE];
        for (size_t k = 0; k < PAGE; k++) other[k] = byte_at(k, 2);
        EXPECT_EQ(fake_api()->copy_to_device((void *)page_at(&b, pages[7]), other, PAGE, b.s),
                  CU_OK);
        EXPECT(shows(&b, base + 7 * PAGE, PAGE, 0, 2));
        EXPECT(shows(&b, base + 8 * PAGE, PAGE, 8 * PAGE, 1));
        window_close_cuda(b.m, w);
        end(&b);
    }
}

static void window_comes_back_at_its_address(void) {
    for (size_t i = 0; i < INFERD_COUNT(extents); i++) {
        bench b;
        open_small(&b, extents[i]);
        uint32_t pages[512], others[512],
            n = some_pages(&b, n_blocks_of(&b, WINDOW_BYTES), 0, pages);
        uint32_t n_others = some_pages(&b, n_blocks_of(&b, WINDOW_BYTES), n, others);
        cuda_window *w, *second;
        EXPECT_EQ(window_open_cuda(b.m, WINDOW_BYTES, &w, &b.err), INFERD_OK);
        EXPECT_EQ(window_open_cuda(b.m, WINDOW_BYTES, &second, &b.err), INFERD_OK);
        EXPECT_EQ(window_map_cuda(b.m, w, pages, n, &b.err), INFERD_OK);
        unsigned char *base = window_base_cuda(w);
        fill_image(&b, w, WINDOW_BYTES, 1);
        EXPECT_EQ(window_upload_cuda(b.m, w, 0, WINDOW_BYTES, &b.err), INFERD_OK);
        EXPECT_EQ(window_unmap_cuda(b.m, w, &b.err), INFERD_OK); // waits for the copies

        /* Its pages serve somebody else. */
        EXPECT_EQ(window_map_cuda(b.m, second, pages, n, &b.err), INFERD_OK);
        fill_image(&b, second, WINDOW_BYTES, 2);
        EXPECT_EQ(window_upload_cuda(b.m, second, 0, WINDOW_BYTES, &b.err), INFERD_OK);

        /* Back on other pages, from the image, without being made again. */
        EXPECT_EQ(window_map_cuda(b.m, w, others, n_others, &b.err), INFERD_OK);
        if (extents[i] > 0) EXPECT(window_base_cuda(w) == base);
        EXPECT_EQ(window_upload_cuda(b.m, w, 0, WINDOW_BYTES, &b.err), INFERD_OK);
        EXPECT_EQ(memory_wait(b.m, b.s, window_base_cuda(w), &b.err), INFERD_OK);
        EXPECT(shows(&b, window_base_cuda(w), WINDOW_BYTES, 0, 1));
        EXPECT(shows(&b, window_base_cuda(second), WINDOW_BYTES, 0, 2));
        EXPECT(shows(&b, page_at(&b, others[0]), PAGE, 0, 1));
        cuda_memory_stats st;
        memory_get_stats(b.m, &st);
        EXPECT_EQ(st.n_maps, 3);
        EXPECT_EQ(st.n_unmaps, 1);
        end(&b); // closes both
    }
}

static void every_window_has_its_image(void) {
    bench b;
    open_small(&b, 4);
    cuda_window *w[3];
    for (int i = 0; i < 3; i++)
        EXPECT_EQ(window_open_cuda(b.m, 300000 + (size_t)i, &w[i], &b.err), INFERD_OK);
    unsigned char *first[3];
    for (int i = 0; i < 3; i++) { // before anything is mapped
        unsigned char *base = window_base_cuda(w[i]);
        first[i] = memory_image_of(b.m, base);
        EXPECT(memory_image_of(b.m, base + 299999) == first[i] + 299999);
        EXPECT(memory_image_of(b.m, base + 300000 + i) == NULL); // in no window
    }
    for (int i = 0; i < 3; i++) memset(first[i], i, 300000 + (size_t)i);
    for (int i = 0; i < 3; i++) EXPECT(first[i][0] == i && first[i][299999] == i);
    EXPECT(memory_image_of(b.m, memory_base(b.m)) == NULL);
    window_close_cuda(b.m, w[1]);
    EXPECT(memory_image_of(b.m, window_base_cuda(w[2])) == first[2]);
    window_close_cuda(b.m, NULL);
    end(&b);

    open_small(&b, 0); // without VMM a window has an address only while it is mapped
    uint32_t pages[] = {7, 8, 9, 10, 11};
    EXPECT_EQ(window_open_cuda(b.m, 300000, &w[0], &b.err), INFERD_OK);
    EXPECT_EQ(window_open_cuda(b.m, 300000, &w[1], &b.err), INFERD_OK);
    EXPECT(memory_image_of(b.m, page_at(&b, 7)) == NULL);
    EXPECT_EQ(window_map_cuda(b.m, w[0], pages, 5, &b.err), INFERD_OK);
    unsigned char *image = memory_image_of(b.m, page_at(&b, 7));
    EXPECT(image != NULL);
    EXPECT(memory_image_of(b.m, page_at(&b, 8) + 5) == image + PAGE + 5);
    EXPECT_EQ(window_unmap_cuda(b.m, w[0], &b.err), INFERD_OK);
    EXPECT(window_base_cuda(w[0]) == NULL && memory_image_of(b.m, page_at(&b, 7)) == NULL);
    EXPECT_EQ(window_map_cuda(b.m, w[1], pages, 5, &b.err), INFERD_OK);
    EXPECT(memory_image_of(b.m, page_at(&b, 7)) != image);
    end(&b);
}

static void host_memory_that_is_short_is_said(void) {
    bench b;
    open_small(&b, 4);
    cuda_window *w;
    EXPECT_EQ(window_open_cuda(b.m, (size_t)1 << 46, &w, &b.err), INFERD_ENOMEM);
    EXPECT(w == NULL);
    EXPECT(strstr(b.err.text, " MiB of ") != NULL); // addresses of the host, or of the device
    EXPECT_EQ(window_open_cuda(b.m, 0, &w, &b.err), INFERD_EINVAL);
    end(&b);
}

/* A GPU may hold more than the machine, and a made-up model never has a host copy: it was refused
 * when its window opened. */
static void a_window_may_be_larger_than_the_machine_until_it_has_a_copy(void) {
    enum { ADDRESSES_MIB = 200 << 10 }; // of the fake
    bench b;
    cuda_window *w;
    char words[128];
    size_t machine = machine_memory_bytes() & ~(size_t)(MIB - 1), n = machine + 1024 * MIB;
    if (machine == 0 || n / MIB > ADDRESSES_MIB) SKIP("this machine's memory is too large");
    open_small(&b, 4);
    EXPECT_EQ(window_open_cuda(b.m, n, &w, &b.err), INFERD_OK);
    if (w != NULL) {
        EXPECT_EQ(window_image_take(b.m, w, &b.err), INFERD_ENOMEM);
        snprintf(words, sizeof words, "the host copy of a window needs %zu MiB; this machine has",
                 n / MIB);
        EXPECT(strstr(b.err.text, words) != NULL);
        window_close_cuda(b.m, w);
    }
    end(&b);
}

static void a_failed_map_leaves_nothing_mapped(void) {
    static const char *const calls[] = {"vmm_map", "vmm_access"};
    for (int c = 0; c < 2; c++) {
        bench b;
        open_small(&b, 4);
        uint32_t pages[512], n = some_pages(&b, 8, 0, pages);
        cuda_window *w, *other;
        EXPECT_EQ(window_open_cuda(b.m, 2 * MIB, &w, &b.err), INFERD_OK);
        EXPECT_EQ(window_open_cuda(b.m, 2 * MIB, &other, &b.err), INFERD_OK);
        uint64_t n_unmaps = fake_calls("vmm_unmap");
        fake_fail_call(calls[c], c == 0 ? 3 : 1, CU_EFAILED);
        EXPECT_EQ(window_map_cuda(b.m, w, pages, n, &b.err), INFERD_EDEVICE);
        const char *words = c == 0 ? "mapping a handle of 256 KiB into a window (3 of 8)"
                                   : "allowing access to a window of 2 MiB";
        EXPECT(strstr(b.err.text, words) != NULL);
        EXPECT_EQ(fake_calls("vmm_unmap"), n_unmaps + 1);
        EXPECT_EQ(window_map_cuda(b.m, other, pages, n, &b.err), INFERD_OK); // nobody holds them
        EXPECT_EQ(window_unmap_cuda(b.m, other, &b.err), INFERD_OK);
        EXPECT_EQ(window_map_cuda(b.m, w, pages, n, &b.err), INFERD_OK);

        /* A window that cannot be unmapped stays as it was, and can be tried again. */
        fake_fail_call("vmm_unmap", 1, CU_EFAILED);
        EXPECT_EQ(window_unmap_cuda(b.m, w, &b.err), INFERD_EDEVICE);
        fill_image(&b, w, 2 * MIB, 1);
        EXPECT_EQ(window_upload_cuda(b.m, w, 0, 2 * MIB, &b.err), INFERD_OK);
        EXPECT_EQ(window_unmap_cuda(b.m, w, &b.err), INFERD_OK);
        end(&b);
    }
}

/* ---- images ---- */

static uint64_t pinned_bytes(const bench *b) {
    cuda_memory_stats st;
    memory_get_stats(b->m, &st);
    return st.pinned_bytes;
}

static void images_are_pinned_in_the_background(void) {
    bench b;
    open_small(&b, 4);
    cuda_window *a, *c;
    size_t n = 130 * MIB; // three pieces; only addresses, nobody writes to it
    EXPECT_EQ(window_open_cuda(b.m, n, &a, &b.err), INFERD_OK);
    EXPECT_EQ(window_open_cuda(b.m, n + 1, &c, &b.err), INFERD_OK);
    cuda_memory_stats st;
    memory_get_stats(b.m, &st);
    EXPECT_EQ(st.image_bytes, 0);
    for (int i = 0; i < 20; i++) nap();
    EXPECT_EQ(fake_held_host_bytes(), 0); // nobody wants it yet

    EXPECT(memory_image_of(b.m, window_base_cuda(a)) != NULL);
    for (int i = 0; i < 50000 && pinned_bytes(&b) < n; i++) nap();
    memory_get_stats(b.m, &st);
    EXPECT_EQ(st.pinned_bytes, n);
    EXPECT_EQ(st.image_bytes, n);
    EXPECT_EQ(fake_held_host_bytes(), n);
    EXPECT_EQ(fake_calls("host_pin"), 3);

    fake_fail_call("host_pin", 2, CU_ENOMEM); // the rest of that one stays as it is
    EXPECT(memory_image_of(b.m, window_base_cuda(c)) != NULL);
    for (int i = 0; i < 50000 && !fake_failed(); i++) nap();
    for (int i = 0; i < 20; i++) nap();
    EXPECT_EQ(pinned_bytes(&b), n + 64 * MIB);
    EXPECT_EQ(fake_calls("host_pin"), 5);

    window_close_cuda(b.m, a);
    EXPECT_EQ(pinned_bytes(&b), 64 * MIB);
    EXPECT_EQ(fake_held_host_bytes(), 64 * MIB);
    memory_get_stats(b.m, &st);
    EXPECT_EQ(st.image_bytes, n + 4096);
    EXPECT(memory_image_of(b.m, window_base_cuda(c)) != NULL); // closing while it would be pinned
    end(&b);

    for (int i = 0; i < 20; i++) { // at any moment
        open_small(&b, 4);
        EXPECT_EQ(window_open_cuda(b.m, n, &a, &b.err), INFERD_OK);
        EXPECT_EQ(window_open_cuda(b.m, n, &c, &b.err), INFERD_OK);
        memory_image_of(b.m, window_base_cuda(c));
        memory_image_of(b.m, window_base_cuda(a));
        if (i % 2 == 0) window_close_cuda(b.m, i % 4 == 0 ? a : c);
        end(&b);
    }
}

static atomic_bool gate_opened;
static void *open_the_gate_soon(void *arg) {
    (void)arg;
    for (int i = 0; i < 50; i++) nap();
    atomic_store(&gate_opened, true);
    gate_set(&pinning, UINT32_MAX);
    return NULL;
}

static void closing_an_image_waits_for_its_pinning_only(void) {
    bench b;
    open_small(&b, 4);
    cuda_window *w[3];
    gate_set(&pinning, 0);
    for (int i = 0; i < 3; i++) {
        EXPECT_EQ(window_open_cuda(b.m, 130 * MIB, &w[i], &b.err), INFERD_OK);
        EXPECT(memory_image_of(b.m, window_base_cuda(w[i])) != NULL);
    }
    for (int i = 0; i < 50; i++) nap();
    window_close_cuda(b.m, w[1]); // at once: nobody is at it
    atomic_store(&gate_opened, false);
    pthread_t helper;
    EXPECT_EQ(pthread_create(&helper, NULL, open_the_gate_soon, NULL), 0);
    window_close_cuda(b.m, w[0]); // when its first piece is done
    EXPECT(atomic_load(&gate_opened));
    pthread_join(helper, NULL);
    for (int i = 0; i < 50000 && pinned_bytes(&b) < 130 * MIB; i++) nap();
    for (int i = 0; i < 20; i++) nap();
    EXPECT_EQ(fake_held_host_bytes(), 130 * MIB);
    EXPECT_EQ(pinned_bytes(&b), 130 * MIB);
    EXPECT_EQ(fake_calls("host_pin"), 1 + 3);
    end(&b);
}

static void unpinned_images_arrive_too(void) {
    bench b;
    open_small(&b, 4);
    fake_fail_call_always("host_pin", 1, CU_ENOMEM);
    uint32_t pages[512], n = some_pages(&b, n_blocks_of(&b, WINDOW_BYTES), 0, pages);
    cuda_window *w;
    EXPECT_EQ(window_open_cuda(b.m, WINDOW_BYTES, &w, &b.err), INFERD_OK);
    EXPECT_EQ(window_map_cuda(b.m, w, pages, n, &b.err), INFERD_OK);
    fill_image(&b, w, WINDOW_BYTES, 3);
    EXPECT_EQ(window_upload_cuda(b.m, w, 0, WINDOW_BYTES, &b.err), INFERD_OK);
    EXPECT_EQ(memory_wait(b.m, b.s, window_base_cuda(w), &b.err), INFERD_OK);
    EXPECT(shows(&b, window_base_cuda(w), WINDOW_BYTES, 0, 3));
    EXPECT_EQ(pinned_bytes(&b), 0);
    fake_fail_call_always("host_pin", 0, CU_OK);
    end(&b);
}

/* ---- uploads ---- */

/* A mapped window with a pinned image on a fake whose queues move only when somebody waits. */
static cuda_window *open_slow(bench *b, size_t n_bytes) {
    open_small(b, 4);
    fake_hold_queues();
    uint32_t pages[512], n_blocks = (uint32_t)((n_bytes + 4 * PAGE - 1) / (4 * PAGE));
    uint32_t n = some_pages(b, n_blocks, 0, pages);
    cuda_window *w;
    EXPECT_EQ(window_open_cuda(b->m, n_bytes, &w, &b->err), INFERD_OK);
    EXPECT_EQ(window_map_cuda(b->m, w, pages, n, &b->err), INFERD_OK);
    fill_image(b, w, n_bytes, 1);
    for (int i = 0; i < 50000 && pinned_bytes(b) < n_bytes; i++) nap();
    return w;
}

static uint64_t copied_bytes(void) {
    fake_counts counts;
    fake_get_counts(&counts);
    return counts.copied_bytes;
}

static void a_stream_waits_for_its_unit_only(void) {
    bench b;
    cuda_window *w = open_slow(&b, 4 * MIB);
    unsigned char *base = window_base_cuda(w);
    EXPECT(memory_all_arrived(b.m));
    EXPECT_EQ(memory_wait(b.m, b.s, base, &b.err), INFERD_OK); // nothing is on its way
    for (size_t i = 0; i < 4; i++)
        EXPECT_EQ(window_upload_cuda(b.m, w, i * MIB, (i + 1) * MIB, &b.err), INFERD_OK);
    EXPECT(!memory_all_arrived(b.m));
    uint64_t before = copied_bytes(), n_waits = fake_calls("stream_wait");

    EXPECT(!shows(&b, base + MIB, MIB, MIB, 1)); // who does not wait reads what was there before
    EXPECT_EQ(memory_wait(b.m, b.s, base + 2 * MIB - 1, &b.err), INFERD_OK);
    EXPECT_EQ(fake_calls("stream_wait"), n_waits + 1);
    EXPECT(shows(&b, base + MIB, MIB, MIB, 1));
    EXPECT_EQ(copied_bytes(), before + 2 * MIB + 2 * MIB); // units 0 and 1; both looks at it
    EXPECT(!memory_all_arrived(b.m));

    /* Known: the stream has waited for unit 1, and so for unit 0. */
    EXPECT_EQ(memory_wait(b.m, b.s, base + MIB, &b.err), INFERD_OK);
    EXPECT_EQ(memory_wait(b.m, b.s, base, &b.err), INFERD_OK);
    EXPECT_EQ(fake_calls("stream_wait"), n_waits + 1);
    EXPECT_EQ(memory_wait(b.m, b.s, base + 3 * MIB, &b.err), INFERD_OK);
    EXPECT_EQ(memory_wait(b.m, b.s, base + 2 * MIB, &b.err), INFERD_OK);
    EXPECT_EQ(memory_wait(b.m, b.s, base + 3 * MIB, &b.err), INFERD_OK);
    EXPECT_EQ(fake_calls("stream_wait"), n_waits + 2);

    /* Another stream knows nothing of that. */
    cu_stream t;
    EXPECT_EQ(fake_api()->stream_create(false, &t), CU_OK);
    EXPECT_EQ(memory_wait(b.m, t, base + 2 * MIB, &b.err), INFERD_OK);
    EXPECT_EQ(memory_wait(b.m, t, base + 2 * MIB, &b.err), INFERD_OK);
    EXPECT_EQ(fake_calls("stream_wait"), n_waits + 3);
    EXPECT_EQ(memory_wait(b.m, t, memory_base(b.m), &b.err), INFERD_OK); // in no window
    EXPECT_EQ(fake_calls("stream_wait"), n_waits + 3);
    EXPECT(shows(&b, base + 3 * MIB, MIB, 3 * MIB, 1));
    EXPECT(memory_all_arrived(b.m));
    EXPECT_EQ(memory_wait(b.m, t, base + 3 * MIB, &b.err), INFERD_OK);
    EXPECT_EQ(fake_calls("stream_wait"), n_waits + 3);
    EXPECT_EQ(fake_api()->stream_sync(t), CU_OK);
    EXPECT_EQ(fake_api()->stream_destroy(t), CU_OK);

    /* What has landed unseen needs no wait either. */
    EXPECT_EQ(window_upload_cuda(b.m, w, 0, MIB, &b.err), INFERD_OK);
    fake_run(100);
    EXPECT_EQ(memory_wait(b.m, b.s, base, &b.err), INFERD_OK);
    EXPECT_EQ(fake_calls("stream_wait"), n_waits + 3);

    cuda_memory_stats st;
    memory_get_stats(b.m, &st);
    EXPECT_EQ(st.load_bytes, 5 * MIB);
    EXPECT_NEAR((double)st.load_us, 5 * (2 + MIB / 50e3), 8);
    end(&b);
}

static void more_streams_than_are_remembered_wait_too(void) {
    bench b;
    cuda_window *w = open_slow(&b, MIB);
    EXPECT_EQ(window_upload_cuda(b.m, w, 0, MIB, &b.err), INFERD_OK);
    cu_stream t[20];
    uint64_t n_waits = fake_calls("stream_wait");
    for (int i = 0; i < 20; i++) EXPECT_EQ(fake_api()->stream_create(false, &t[i]), CU_OK);
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < 20; i++)
            EXPECT_EQ(memory_wait(b.m, t[i], window_base_cuda(w), &b.err), INFERD_OK);
    EXPECT(fake_calls("stream_wait") >= n_waits + 20);
    EXPECT_EQ(memory_sync(b.m, &b.err), INFERD_OK);
    for (int i = 0; i < 20; i++) {
        EXPECT_EQ(fake_api()->stream_sync(t[i]), CU_OK);
        EXPECT_EQ(fake_api()->stream_destroy(t[i]), CU_OK);
    }
    end(&b);
}

static void a_unit_sent_again_is_waited_for_again(void) {
    bench b;
    cuda_window *w = open_slow(&b, MIB);
    unsigned char *base = window_base_cuda(w);
    for (uint32_t seed = 1; seed < 6; seed++) {
        fill_image(&b, w, MIB, seed);
        EXPECT_EQ(window_upload_cuda(b.m, w, 0, MIB, &b.err), INFERD_OK);
        if (seed % 2 == 0) // twice on its way: the newer counts
            EXPECT_EQ(window_upload_cuda(b.m, w, 0, MIB, &b.err), INFERD_OK);
        EXPECT_EQ(memory_wait(b.m, b.s, base + MIB - 1, &b.err), INFERD_OK);
        EXPECT(shows(&b, base, MIB, 0, seed));
        EXPECT(memory_all_arrived(b.m));
    }
    EXPECT(fake_calls("event_create") <= 2 + 2); // events serve again and again
    cuda_memory_stats st;
    memory_get_stats(b.m, &st);
    EXPECT_EQ(st.load_bytes, 7 * MIB);
    EXPECT_NEAR((double)st.load_us, 7 * (2 + MIB / 50e3), 12); // idle time does not count
    end(&b);
}

static void long_units_go_in_chunks(void) {
    bench b;
    begin(&b, 32);
    cuda_memory_options o = {.memory_bytes = 64 * MIB, .workspace_bytes = 2 * MIB};
    EXPECT_EQ(open_with(&b, &o), INFERD_OK);
    wait_grown(&b);
    uint32_t pages[21];
    for (uint32_t i = 0; i < 21; i++) pages[i] = i;
    cuda_window *w;
    EXPECT_EQ(window_open_cuda(b.m, 42 * MIB, &w, &b.err), INFERD_OK);
    EXPECT_EQ(window_map_cuda(b.m, w, pages, 21, &b.err), INFERD_OK);
    unsigned char *image = memory_image_of(b.m, window_base_cuda(w));
    memset(image, 7, 42 * MIB);
    uint64_t before = fake_calls("copy_to_device");
    EXPECT_EQ(window_upload_cuda(b.m, w, 10 * MIB, 42 * MIB, &b.err), INFERD_OK);
    EXPECT_EQ(fake_calls("copy_to_device"), before + 3); // 6, 16 and 10 MiB
    EXPECT_EQ(window_upload_cuda(b.m, w, 0, 16 * MIB, &b.err), INFERD_OK);
    EXPECT_EQ(fake_calls("copy_to_device"), before + 4);
    EXPECT_EQ(window_upload_cuda(b.m, w, 5, 5, &b.err), INFERD_OK); // nothing
    EXPECT_EQ(fake_calls("copy_to_device"), before + 4);
    EXPECT_EQ(memory_sync(b.m, &b.err), INFERD_OK);
    unsigned char last = 0;
    EXPECT(fake_peek((unsigned char *)window_base_cuda(w) + 42 * MIB - 1, &last, 1));
    EXPECT_EQ(last, 7);
    end(&b);
}

static void units_without_end_are_bounded(void) {
    bench b;
    cuda_window *w = open_slow(&b, MIB);
    for (size_t i = 0; i < 5000; i++)
        EXPECT_EQ(window_upload_cuda(b.m, w, i * 200, (i + 1) * 200, &b.err), INFERD_OK);
    EXPECT(fake_calls("event_create") <= 4096 + 2);
    EXPECT_EQ(memory_wait(b.m, b.s, (char *)window_base_cuda(w) + 999999, &b.err), INFERD_OK);
    EXPECT(shows(&b, window_base_cuda(w), 1000000, 0, 1));
    end(&b);
}

static void unmapping_waits_for_the_windows_copies(void) {
    bench b;
    cuda_window *w = open_slow(&b, MIB), *other;
    uint32_t pages[512], n = some_pages(&b, 4, 64, pages);
    EXPECT_EQ(window_open_cuda(b.m, MIB, &other, &b.err), INFERD_OK);
    EXPECT_EQ(window_map_cuda(b.m, other, pages, n, &b.err), INFERD_OK);
    fill_image(&b, other, MIB, 2);
    for (int i = 0; i < 50000 && pinned_bytes(&b) < 2 * MIB; i++) nap();
    EXPECT_EQ(window_upload_cuda(b.m, w, 0, MIB, &b.err), INFERD_OK);
    EXPECT_EQ(window_upload_cuda(b.m, other, 0, MIB, &b.err), INFERD_OK);
    uint64_t before = copied_bytes();
    const unsigned char *at = window_base_cuda(w), *at_other = window_base_cuda(other);
    EXPECT(!memory_window_arrived(b.m, at + MIB - 1) && !memory_window_arrived(b.m, at_other));
    EXPECT_EQ(window_unmap_cuda(b.m, w, &b.err), INFERD_OK);
    EXPECT_EQ(copied_bytes(), before + MIB); // the other one is still on its way
    EXPECT(!memory_all_arrived(b.m));
    EXPECT(memory_window_arrived(b.m, at) && !memory_window_arrived(b.m, at_other + MIB - 1));
    EXPECT(memory_window_arrived(b.m, memory_base(b.m)) && memory_window_arrived(b.m, NULL));
    uint64_t n_queries = fake_calls("event_query");
    EXPECT_EQ(memory_wait(b.m, b.s, at, &b.err), INFERD_OK); // asks the device nothing
    EXPECT_EQ(fake_calls("event_query"), n_queries);
    window_close_cuda(b.m, other);
    EXPECT_EQ(copied_bytes(), before + 2 * MIB);
    EXPECT(memory_all_arrived(b.m));
    EXPECT_EQ(window_unmap_cuda(b.m, w, &b.err), INFERD_OK); // is unmapped: nothing to do
    end(&b);
}

/* Copies of which the last call failed have no event; they are waited for all the same. */
static void half_an_upload_is_waited_for(void) {
    for (int which = 0; which < 2; which++) {
        bench b;
        begin(&b, 32);
        cuda_memory_options o = {.memory_bytes = 64 * MIB, .workspace_bytes = 2 * MIB};
        EXPECT_EQ(open_with(&b, &o), INFERD_OK);
        wait_grown(&b);
        fake_hold_queues();
        uint32_t pages[16];
        for (uint32_t i = 0; i < 16; i++) pages[i] = i;
        cuda_window *w;
        EXPECT_EQ(window_open_cuda(b.m, 32 * MIB, &w, &b.err), INFERD_OK);
        EXPECT_EQ(window_map_cuda(b.m, w, pages, 16, &b.err), INFERD_OK);
        EXPECT(memory_image_of(b.m, window_base_cuda(w)) != NULL);
        for (int i = 0; i < 50000 && pinned_bytes(&b) < 32 * MIB; i++) nap();
        if (which == 0)
            fake_fail_call("copy_to_device", 2, CU_EFAILED);
        else
            fake_fail_call("event_record", 2, CU_EFAILED); // the first says that the bus was idle
        uint64_t before = copied_bytes();
        EXPECT_EQ(window_upload_cuda(b.m, w, 0, 32 * MIB, &b.err), INFERD_EDEVICE);
        EXPECT(strstr(b.err.text, "uploading bytes 0 to 33554432 of a window") != NULL);
        EXPECT_EQ(copied_bytes(), before);
        EXPECT_EQ(window_unmap_cuda(b.m, w, &b.err), INFERD_OK);
        EXPECT_EQ(copied_bytes(), before + (which == 0 ? 16 : 32) * MIB);
        end(&b);
    }
}

/* ---- workspace ---- */

static void workspace_pieces_do_not_meet(void) {
    for (uint64_t seed = 1; seed <= 3; seed++) {
        bench b;
        open_small(&b, 4);
        enum { N = 60 };
        unsigned char *at[N] = {0};
        size_t n[N] = {0}, used = 0;
        uint64_t random = seed * 0x9e3779b97f4a7c15u;
        bool bad = false;
        uint32_t n_refused = 0;
        for (int round = 0; round < 4000; round++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            uint32_t i = (uint32_t)(random >> 33) % N;
            size_t size = (size_t)1 + (random >> 20) % (random >> 60 == 0 ? 200000 : 20000);
            if (at[i] != NULL) {
                memory_workspace_give(b.m, at[i]);
                used -= (n[i] + 255) / 256 * 256;
                at[i] = NULL;
            } else if ((at[i] = memory_workspace_take(b.m, size, &b.err)) != NULL) {
                n[i] = size;
                used += (size + 255) / 256 * 256;
                bad |=
                    (uintptr_t)at[i] % 256 != 0 || at[i] + size > (unsigned char *)memory_base(b.m);
                for (int j = 0; j < N; j++)
                    bad |= j != (int)i && at[j] != NULL && at[i] < at[j] + n[j] &&
                           at[j] < at[i] + size;
            } else {
                n_refused++;
            }
            cuda_memory_stats st;
            memory_get_stats(b.m, &st);
            bad |= st.workspace_used != used;
        }
        if (bad || n_refused == 0) printf("seed %" PRIu64 ", %u refused\n", seed, n_refused);
        EXPECT(!bad && n_refused > 0);
        for (int i = 0; i < N; i++) memory_workspace_give(b.m, at[i]); // NULL is fine
        void *all = memory_workspace_take(b.m, 512 * KIB, &b.err);
        EXPECT(all != NULL); // the pieces have become one again
        EXPECT(memory_workspace_take(b.m, 0, &b.err) == NULL);
        memory_workspace_give(b.m, all);
        EXPECT(memory_workspace_take(b.m, SIZE_MAX, &b.err) == NULL);
        end(&b);
    }
}

static void a_full_workspace_says_its_numbers(void) {
    bench b;
    open_small(&b, 4);
    unsigned char *p = memory_workspace_take(b.m, 100000, &b.err); // 100096
    unsigned char *q = memory_workspace_take(b.m, 100000, &b.err);
    EXPECT(p != NULL && q == p + 100096);
    memory_workspace_give(b.m, p);
    EXPECT(memory_workspace_take(b.m, 400000, &b.err) == NULL);
    EXPECT_EQ(b.err.status, INFERD_ENOMEM);
    EXPECT_STR(b.err.text,
               "the workspace has no room for 400000 bytes: of workspace_bytes = 524288, "
               "100096 are in use and the largest free piece is 324096");
    EXPECT(memory_workspace_take(b.m, 100096, &b.err) == p); // first fit
    EXPECT_EQ(fake_api()->fill(p, 0, 100096, b.s), CU_OK);   // it is memory
    EXPECT_EQ(fake_api()->stream_sync(b.s), CU_OK);
    end(&b);
}

/* ---- what must not happen ---- */

static void steps_make_no_memory_calls(void) {
    bench b;
    cuda_window *w = open_slow(&b, 2 * MIB);
    uint64_t mine = memory_n_calls(b.m);
    cuda_memory_stats first, last;
    memory_get_stats(b.m, &first);
    EXPECT(mine > 0 && first.n_background_calls > 0);
    for (int i = 0; i < 50; i++) {
        EXPECT_EQ(window_upload_cuda(b.m, w, 0, MIB, &b.err), INFERD_OK);
        EXPECT_EQ(window_upload_cuda(b.m, w, MIB, 2 * MIB, &b.err), INFERD_OK);
        EXPECT_EQ(memory_wait(b.m, b.s, window_base_cuda(w), &b.err), INFERD_OK);
        memory_workspace_give(b.m, memory_workspace_take(b.m, 1000, &b.err));
        memory_all_arrived(b.m);
        EXPECT_EQ(memory_sync(b.m, &b.err), INFERD_OK);
    }
    EXPECT_EQ(memory_n_calls(b.m), mine);
    memory_get_stats(b.m, &last);
    EXPECT_EQ(last.n_background_calls, first.n_background_calls);
    EXPECT_EQ(last.n_calls, mine);
    EXPECT_EQ(window_unmap_cuda(b.m, w, &b.err), INFERD_OK);
    EXPECT_EQ(memory_n_calls(b.m), mine + 1);
    end(&b);
}

static const test_case cases[] = {
    TEST(pages_follow_the_workspace_and_each_other),
    TEST(the_rest_is_made_in_the_background),
    TEST(closing_does_not_wait_for_the_rest),
    TEST(capacity_is_what_could_be_made),
    TEST(another_process_may_have_been_faster),
    TEST(handles_are_as_small_as_their_mapping_allows),
    TEST(the_free_memory_less_the_reserve_is_taken),
    TEST(pieces_that_are_too_large_are_done_without),
    TEST(window_shows_the_pages),
    TEST(window_comes_back_at_its_address),
    TEST(every_window_has_its_image),
    TEST(host_memory_that_is_short_is_said),
    TEST(a_window_may_be_larger_than_the_machine_until_it_has_a_copy),
    TEST(a_failed_map_leaves_nothing_mapped),
    TEST(images_are_pinned_in_the_background),
    TEST(closing_an_image_waits_for_its_pinning_only),
    TEST(unpinned_images_arrive_too),
    TEST(a_stream_waits_for_its_unit_only),
    TEST(more_streams_than_are_remembered_wait_too),
    TEST(a_unit_sent_again_is_waited_for_again),
    TEST(long_units_go_in_chunks),
    TEST(units_without_end_are_bounded),
    TEST(unmapping_waits_for_the_windows_copies),
    TEST(half_an_upload_is_waited_for),
    TEST(workspace_pieces_do_not_meet),
    TEST(a_full_workspace_says_its_numbers),
    TEST(steps_make_no_memory_calls),
};

TEST_MAIN(cases)
