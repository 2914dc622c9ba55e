/* test_cuda_fake.c - the fake of cu_api keeps the rules that the other CUDA tests lean on: memory,
 * failures, devices, threads; and module.c, which is tested on it.
 *
 * Each rule is broken once and must be noticed, or used and must hold. */
#include "cuda_fake_rig.h"

/* ---- memory ---- */

static void memory_has_exact_bounds_and_is_full_of_ones(void) {
    begin();
    unsigned char *p = device_bytes(100), byte = 0;
    EXPECT_EQ((uintptr_t)p % 256, 0);
    for (uint32_t i = 0; i < 100; i++) EXPECT(fake_peek(p + i, &byte, 1) && byte == 0xFF);
    EXPECT(!fake_peek(p + 100, &byte, 1));
    EXPECT(!fake_peek(p - 1, &byte, 1));
    EXPECT(fake_may_touch(p, 100) && !fake_may_touch(p, 101) && !fake_may_touch(p + 96, 16));
    EXPECT(!fake_may_touch(&byte, 1)); // host memory is not the device's
    EXPECT_EQ(api->free(p), CU_OK);
    EXPECT(!fake_peek(p, &byte, 1));
    void *again = device_bytes(100);
    EXPECT(again != p); // addresses are not used twice
    EXPECT_EQ(api->free(again), CU_OK);
    EXPECT_EQ(api->free(NULL), CU_OK);
    end();
}

static void memory_ends(void) {
    fake_opts *o = begin();
    uint64_t free_bytes, total;
    void *a = NULL, *b = NULL;
    o->device[0].memory_bytes = 1 << 20;
    o->others_bytes[0] = 256 << 10;
    EXPECT_EQ(api->alloc(512 << 10, &a), CU_OK);
    EXPECT_EQ(api->memory_info(&free_bytes, &total), CU_OK);
    EXPECT_EQ(free_bytes, 256 << 10);
    EXPECT_EQ(total, 1 << 20);
    EXPECT_EQ(fake_held_bytes(), 512 << 10);
    EXPECT_EQ(api->alloc((256 << 10) + 1, &b), CU_ENOMEM);
    expect_text("out of memory");
    cu_handle h;
    EXPECT_EQ(api->vmm_create(256 << 10, &h), CU_OK);
    EXPECT_EQ(api->alloc(1, &b), CU_ENOMEM);
    EXPECT_EQ(api->vmm_release(h), CU_OK);
    EXPECT_EQ(api->alloc(256 << 10, &b), CU_OK);
    EXPECT_EQ(api->alloc(0, &b), CU_EINVAL);
    EXPECT_EQ(api->free(a), CU_OK);
    EXPECT_EQ(api->free(b), CU_OK);
    EXPECT_EQ(fake_held_bytes(), 0);
    end();
}

static void follow(void *p) {
    if (*(volatile unsigned char *)p == 1) _exit(0);
}

static void host_that_follows_a_device_pointer_crashes(void) {
    fake_opts *o = begin();
    void *p = device_bytes(4096);
    cu_stream s = stream();
    EXPECT(dies(follow, p));
    EXPECT_EQ(api->fill(p, 7, 4096, s), CU_OK); // open while it runs, closed again after it
    EXPECT_EQ(api->stream_sync(s), CU_OK);
    EXPECT(dies(follow, p));
    EXPECT_EQ(api->free(p), CU_OK);
    o->protect = false;
    p = device_bytes(4096);
    EXPECT(!dies(follow, p));
    EXPECT_EQ(api->free(p), CU_OK);
    EXPECT(dies(follow, p)); // what is given back is gone in any case
    unsigned char *range = reserved(GRAIN);
    cu_handle h = created(GRAIN);
    EXPECT_EQ(api->vmm_map(range, GRAIN, h), CU_OK);
    EXPECT(!dies(follow, range));
    EXPECT_EQ(api->vmm_unmap(range, GRAIN), CU_OK);
    EXPECT(dies(follow, range));
    EXPECT_EQ(api->vmm_release(h), CU_OK);
    EXPECT_EQ(api->vmm_unreserve(range, GRAIN), CU_OK);
    EXPECT_EQ(api->stream_destroy(s), CU_OK);
    end();
}

static void write_past_the_end(void *arg) {
    unsigned char *p = device_bytes(100);
    uint32_t *list = device_words(4);
    cu_stream s = stream();
    EXPECT_EQ(store_at(p + *(int *)arg, 1, s), CU_OK);
    push_word(list, 1, s); // the violation is the kernel's that did it
    EXPECT_EQ(api->stream_sync(s), CU_OK);
    EXPECT_EQ(api->stream_destroy(s), CU_OK);
    if (!WITH_ASAN) expect_violation(*(int *)arg < 0 ? "store wrote before" : "store wrote past");
    EXPECT_EQ(api->free(p), CU_OK);
    EXPECT_EQ(api->free(list), CU_OK);
}

static void kernel_that_writes_past_an_end_is_found(void) {
    static int offsets[] = {100, 163, -1, -64};
    begin();
    for (size_t i = 0; i < INFERD_COUNT(offsets); i++)
        if (WITH_ASAN) // which stops at the store itself
            EXPECT(dies(write_past_the_end, &offsets[i]));
        else
            write_past_the_end(&offsets[i]);
    if (!WITH_ASAN) { // the bytes behind it lie in two chunks, of which only the second is touched
        size_t n = (1 << 20) - 256 - 32;
        fake_reset();
        begin();
        unsigned char *p = device_bytes(n);
        cu_stream s = stream();
        EXPECT_EQ(store_at(p + n + 32, 1, s), CU_OK);
        EXPECT_EQ(api->stream_sync(s), CU_OK);
        expect_violation("store wrote past the end of");
        EXPECT_EQ(api->stream_destroy(s), CU_OK);
        EXPECT_EQ(api->free(p), CU_OK);
    }
    end();
}

/* Far away, freed, or never there: the GPU faults and the context is lost. */
static void illegal_address_loses_the_context(void) {
    for (int i = 0; i < 3; i++) {
        begin();
        unsigned char *p = device_bytes(4096), *bad = p + (i + 2) * 4096;
        cu_stream s = stream();
        if (i == 2) {
            bad = device_bytes(4096);
            EXPECT_EQ(api->free(bad), CU_OK);
        }
        EXPECT_EQ(store_at(bad, 1, s), CU_OK); // a launch does not look
        EXPECT_EQ(api->stream_sync(s), CU_ELOST);
        expect_text("illegal memory access");
        expect_violation(i == 2 ? "given back" : "no device memory");
        EXPECT(fake_is_lost());
        EXPECT(dies(follow, bad)); // it stays closed
        EXPECT_EQ(api->alloc(1, (void **)&bad), CU_ELOST);
        EXPECT_EQ(api->stream_destroy(s), CU_ELOST);
        EXPECT_EQ(api->free(p), CU_ELOST); // and is given back all the same
        end();
    }
}

static void giving_back_what_is_not_held_is_found(void) {
    begin();
    void *p = device_bytes(16);
    EXPECT_EQ(api->free((char *)p + 1), CU_EINVAL);
    expect_violation("which is not held");
    EXPECT_EQ(api->free(p), CU_OK);
    EXPECT_EQ(api->free(p), CU_EINVAL);
    expect_violation("which is not held");
    EXPECT_EQ(api->host_free(p), CU_EINVAL);
    expect_violation("host_free");
    EXPECT_EQ(api->vmm_release(77), CU_EINVAL);
    expect_violation("handle 77");
    EXPECT_EQ(api->vmm_unreserve(p, 65536), CU_EINVAL);
    expect_violation("vmm_unreserve");
    EXPECT_EQ(api->vmm_unmap(p, 65536), CU_EINVAL);
    expect_violation("vmm_unmap");
    EXPECT_EQ(api->stream_destroy((cu_stream)p), CU_EINVAL);
    expect_violation("no stream");
    EXPECT_EQ(api->event_destroy((cu_event)p), CU_EINVAL);
    expect_violation("no event");
    EXPECT_EQ(api->graph_destroy((cu_graph)p), CU_EINVAL);
    expect_violation("no graph");
    end();
}

static void leaks_are_listed(void) {
    begin();
    void *p, *range;
    cu_handle h, mapped;
    device_bytes(10);
    EXPECT_EQ(api->host_alloc(10, &p), CU_OK);
    EXPECT_EQ(api->vmm_reserve(65536, 0, &range), CU_OK);
    EXPECT_EQ(api->vmm_create(65536, &h), CU_OK);
    EXPECT_EQ(api->vmm_create(65536, &mapped), CU_OK);
    EXPECT_EQ(api->vmm_map(range, 65536, mapped), CU_OK);
    EXPECT_EQ(api->vmm_release(mapped), CU_OK);
    stream();
    event(false);
    EXPECT_EQ(fake_held_bytes(), 256 + 2 * 65536);
    EXPECT_EQ(fake_held_host_bytes(), 10);
    EXPECT_EQ(fake_leaks(), 7);
    EXPECT_EQ(fake_reset(), 7);
    EXPECT_EQ(fake_reset(), 0);
    EXPECT_EQ(fake_held_bytes(), 0);
}

/* ---- VMM ---- */

static void aliases_are_the_same_memory(void) {
    begin();
    size_t granularity = 0;
    EXPECT_EQ(api->vmm_granularity(&granularity), CU_OK);
    EXPECT_EQ(granularity, GRAIN);
    unsigned char *a = reserved(4 * GRAIN), *b = reserved(2 * GRAIN), byte = 0;
    cu_handle h = created(2 * GRAIN);
    EXPECT_EQ(api->vmm_map(a + GRAIN, 2 * GRAIN, h), CU_OK);
    EXPECT_EQ(api->vmm_map(b, 2 * GRAIN, h), CU_OK);
    EXPECT_EQ(api->vmm_access(a + GRAIN, 2 * GRAIN), CU_OK);
    EXPECT_EQ(api->vmm_access(b, 2 * GRAIN), CU_OK);
    cu_stream s = stream();
    EXPECT(fake_peek(b, &byte, 1) && byte == 0xFF);
    EXPECT_EQ(api->fill(a + GRAIN, 5, 2 * GRAIN, s), CU_OK);
    EXPECT_EQ(store_at(b + GRAIN, 9, s), CU_OK);
    EXPECT_EQ(api->stream_sync(s), CU_OK);
    EXPECT(fake_peek(b + 2 * GRAIN - 1, &byte, 1) && byte == 5);
    EXPECT(fake_peek(a + 2 * GRAIN, &byte, 1) && byte == 9);
    EXPECT(!fake_may_touch(a, 1) && fake_may_touch(a + GRAIN, 2 * GRAIN));
    EXPECT(!fake_may_touch(a + GRAIN, 2 * GRAIN + 1));
    /* The memory stays as long as one name of it does. */
    EXPECT_EQ(api->vmm_release(h), CU_OK);
    EXPECT_EQ(fake_held_bytes(), 2 * GRAIN);
    EXPECT_EQ(api->vmm_map(a, 2 * GRAIN, h), CU_EINVAL); // but the handle is gone
    EXPECT_EQ(api->vmm_release(h), CU_EINVAL);
    expect_violation("vmm_release");
    EXPECT_EQ(api->vmm_unmap(a + GRAIN, 2 * GRAIN), CU_OK);
    EXPECT(!fake_may_touch(a + GRAIN, 1));
    EXPECT(fake_peek(b, &byte, 1) && byte == 5);
    EXPECT_EQ(api->vmm_unmap(b, 2 * GRAIN), CU_OK);
    EXPECT_EQ(fake_held_bytes(), 0);
    EXPECT_EQ(api->vmm_unreserve(a, 4 * GRAIN), CU_OK);
    EXPECT_EQ(api->vmm_unreserve(b, 2 * GRAIN), CU_OK);
    EXPECT_EQ(api->stream_destroy(s), CU_OK);
    end();
}

static void mappings_are_whole_and_inside_one_reservation(void) {
    begin();
    unsigned char *a = reserved(4 * GRAIN);
    void *p;
    cu_handle h = created(2 * GRAIN), h2 = created(GRAIN);
    EXPECT_EQ(api->vmm_reserve(GRAIN + 1, 0, &p), CU_EINVAL);
    EXPECT_EQ(api->vmm_reserve(GRAIN, 3, &p), CU_EINVAL);
    EXPECT_EQ(api->vmm_create(GRAIN / 2, &h), CU_EINVAL);
    EXPECT_EQ(api->vmm_map(a, GRAIN, h), CU_EINVAL); // a part
    expect_text("which has 131072");
    EXPECT_EQ(api->vmm_map(a + 4096, GRAIN, h2), CU_EINVAL);
    EXPECT_EQ(api->vmm_map(a + 3 * GRAIN, 2 * GRAIN, h), CU_EINVAL); // past the end
    EXPECT_EQ(api->vmm_map(a, 2 * GRAIN, 99), CU_EINVAL);
    EXPECT_EQ(api->vmm_map(a + GRAIN, 2 * GRAIN, h), CU_OK);
    EXPECT_EQ(api->vmm_map(a + 2 * GRAIN, GRAIN, h2), CU_EINVAL); // something is there
    EXPECT_EQ(api->vmm_map(a, GRAIN, h2), CU_OK);
    EXPECT_EQ(api->vmm_unmap(a + GRAIN, GRAIN), CU_EINVAL); // half a mapping
    expect_violation("of a part");
    EXPECT_EQ(api->vmm_access(a, 4 * GRAIN), CU_EINVAL); // a hole at the end
    EXPECT_EQ(api->vmm_unmap(a, 4 * GRAIN), CU_EINVAL);
    expect_violation("nothing is mapped at byte 196608");
    EXPECT_EQ(api->vmm_access(a, 3 * GRAIN), CU_OK); // two at once
    EXPECT(fake_may_touch(a, 3 * GRAIN));
    EXPECT_EQ(api->vmm_unreserve(a, 4 * GRAIN), CU_EINVAL);
    expect_text("is mapped");
    EXPECT_EQ(api->vmm_unmap(a, 3 * GRAIN), CU_OK);
    EXPECT_EQ(api->vmm_unreserve(a, 3 * GRAIN), CU_EINVAL); // not as it was reserved
    expect_violation("were not reserved so");
    EXPECT_EQ(api->vmm_unreserve(a, 4 * GRAIN), CU_OK);
    EXPECT_EQ(api->vmm_release(h), CU_OK);
    EXPECT_EQ(api->vmm_release(h2), CU_OK);
    EXPECT_EQ(api->vmm_reserve(GRAIN, 1 << 22, &p), CU_OK);
    EXPECT_EQ((uintptr_t)p % (1 << 22), 0);
    EXPECT_EQ(api->vmm_unreserve(p, GRAIN), CU_OK);
    end();
}

static void memory_without_access_or_mapping_loses_the_context(void) {
    for (int i = 0; i < 4; i++) {
        begin();
        unsigned char *a = reserved(GRAIN);
        cu_handle h = created(GRAIN);
        cu_stream s = stream();
        if (i < 2) EXPECT_EQ(api->vmm_map(a, GRAIN, h), CU_OK);
        EXPECT_EQ(i % 2 == 0 ? store_at(a, 1, s) : api->fill(a, 1, 8, s), CU_OK);
        EXPECT_EQ(api->stream_sync(s), CU_ELOST);
        expect_violation(i == 0   ? "without access"
                         : i == 2 ? "nothing is mapped"
                                  : "where the device may not");
        EXPECT_EQ(fake_reset(), i < 2 ? 4 : 3);
    }
}

static void device_without_vmm_says_so(void) {
    fake_opts *o = begin();
    size_t n;
    void *p;
    cu_handle h;
    o->device[0].vmm = false;
    EXPECT_EQ(api->vmm_granularity(&n), CU_EUNSUPPORTED);
    EXPECT_EQ(api->vmm_reserve(GRAIN, 0, &p), CU_EUNSUPPORTED);
    EXPECT_EQ(api->vmm_create(GRAIN, &h), CU_EUNSUPPORTED);
    end();
}

/* ---- host memory ---- */

static void copies_of_pinned_memory_are_late(void) {
    fake_opts *o = begin();
    o->advance_pct = 0;
    uint32_t *host = NULL, *device = device_words(2), pageable = 1, back = 0;
    EXPECT_EQ(api->host_alloc(8, (void **)&host), CU_OK);
    cu_stream s = stream();
    host[0] = 1;
    EXPECT_EQ(api->copy_to_device(&device[0], &host[0], 4, s), CU_OK);
    EXPECT_EQ(api->copy_to_device(&device[1], &pageable, 4, s), CU_OK);
    host[0] = 2; // too early: the copy has not read it
    pageable = 2;
    EXPECT_EQ(api->stream_sync(s), CU_OK);
    EXPECT_EQ(word_at(&device[0]), 2);
    EXPECT_EQ(word_at(&device[1]), 1);
    EXPECT_EQ(api->copy_to_host(&host[1], device, 4, s), CU_OK);
    EXPECT_EQ(host[1], 0xFFFFFFFF); // not yet
    EXPECT_EQ(api->stream_sync(s), CU_OK);
    EXPECT_EQ(host[1], 2);
    add_params more = {device, 1, 40};
    EXPECT_EQ(launch_fn(ADD, &more, s), CU_OK);
    EXPECT_EQ(api->copy_to_host(&back, device, 4, s), CU_OK); // waits
    EXPECT_EQ(back, 42);
    EXPECT_EQ(api->stream_destroy(s), CU_OK);
    EXPECT_EQ(api->free(device), CU_OK);
    EXPECT_EQ(api->host_free(host), CU_OK);
    end();
}

static void pins_do_not_overlap(void) {
    begin();
    size_t page = 4096;
    unsigned char *p =
        mmap(NULL, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned char *device = device_bytes(4 * page);
    cu_stream s = stream();
    EXPECT_EQ(api->host_pin(p, 2 * page), CU_OK);
    EXPECT_EQ(api->host_pin(p + page, 2 * page), CU_EINVAL);
    expect_text("part of which is pinned");
    EXPECT_EQ(api->host_pin(p + 2 * page + 1, page), CU_EINVAL);
    expect_text("not page-aligned");
    unsigned char *range = reserved(GRAIN);
    EXPECT_EQ(api->host_pin(range, page), CU_EINVAL);
    expect_text("of device memory");
    EXPECT_EQ(api->vmm_unreserve(range, GRAIN), CU_OK);
    EXPECT_EQ(api->host_pin(p + 2 * page, 2 * page), CU_OK);
    EXPECT_EQ(fake_held_host_bytes(), 4 * page);
    /* One copy comes from one pinned piece, or from none. */
    EXPECT_EQ(api->copy_to_device(device, p + page, 2 * page, s), CU_EINVAL);
    expect_text("in several pieces");
    EXPECT_EQ(api->host_unpin(p + 2 * page), CU_OK);
    EXPECT_EQ(api->copy_to_device(device, p, 3 * page, s), CU_EINVAL);
    EXPECT_EQ(api->copy_to_host(p, device, 3 * page, s), CU_EINVAL);
    EXPECT_EQ(api->copy_to_device(device, p, 2 * page, s), CU_OK);
    EXPECT_EQ(api->stream_sync(s), CU_OK);
    EXPECT_EQ(api->host_unpin(p + page), CU_EINVAL);
    expect_violation("host_unpin");
    EXPECT_EQ(api->host_unpin(p), CU_OK);
    munmap(p, 4 * page);
    EXPECT_EQ(api->host_pin(p, page), CU_EINVAL);
    expect_text("nothing is mapped");
    EXPECT_EQ(api->free(device), CU_OK);
    EXPECT_EQ(api->stream_destroy(s), CU_OK);
    end();
}

static void copies_check_their_addresses(void) {
    begin();
    char host[16] = {0}, *device = device_bytes(16), *other = device_bytes(16);
    cu_stream s = stream();
    EXPECT_EQ(api->copy_to_device(host, host, 16, s), CU_EINVAL);
    EXPECT_EQ(api->copy_to_device(device, other, 16, s), CU_EINVAL); // the source is the device's
    EXPECT_EQ(api->copy_to_device(device, host, 17, s), CU_EINVAL);
    EXPECT_EQ(api->copy_to_device(device + 8, host, 16, s), CU_EINVAL);
    EXPECT_EQ(api->copy_to_host(device, device, 16, s), CU_EINVAL);
    EXPECT_EQ(api->copy_to_host(host, host, 16, s), CU_EINVAL);
    EXPECT_EQ(api->copy_on_device(device, host, 16, s), CU_EINVAL);
    EXPECT_EQ(api->fill(device, 0, 17, s), CU_EINVAL);
    EXPECT_EQ(api->copy_on_device(device, other, 0, s), CU_OK);
    EXPECT_EQ(api->fill(other, 3, 16, s), CU_OK);
    EXPECT_EQ(api->copy_on_device(device, other, 16, s), CU_OK);
    EXPECT_EQ(api->copy_to_host(host, device, 16, s), CU_OK);
    EXPECT_EQ(host[15], 3);
    EXPECT_EQ(api->free(device), CU_OK);
    EXPECT_EQ(api->free(other), CU_OK);
    EXPECT_EQ(api->stream_destroy(s), CU_OK);
    end();
}

/* What queued work refers to must stay until it has run. */
static void giving_back_what_queued_work_uses_is_found(void) {
    fake_opts *o = begin();
    o->advance_pct = 0;
    cu_stream s = stream();
    unsigned char *a = reserved(GRAIN), *p, *host;
    cu_handle h = created(GRAIN);
    EXPECT_EQ(api->vmm_map(a, GRAIN, h), CU_OK);
    EXPECT_EQ(api->vmm_access(a, GRAIN), CU_OK);
    EXPECT_EQ(store_at(a + 100, 1, s), CU_OK); // a kernel's parameter points into it
    EXPECT_EQ(api->vmm_unmap(a, GRAIN), CU_OK);
    expect_violation("vmm_unmap of 65536 bytes");
    EXPECT_EQ(api->vmm_map(a, GRAIN, h), CU_OK);
    EXPECT_EQ(api->vmm_access(a, GRAIN), CU_OK);
    EXPECT_EQ(api->stream_sync(s), CU_OK);
    EXPECT_EQ(api->vmm_unmap(a, GRAIN), CU_OK); // now it has run

    p = device_bytes(64);
    EXPECT_EQ(api->fill(p, 0, 64, s), CU_OK);
    o->advance_pct = 100; // calls that give back do not run what is queued
    EXPECT_EQ(api->free(p), CU_OK);
    expect_violation("which queued work (a copy) still uses");
    EXPECT_EQ(fake_leaks(), 3);
    EXPECT_EQ(fake_reset(), 3); // the fill would have hit nothing

    o = begin();
    o->advance_pct = 0;
    s = stream();
    p = device_bytes(64);
    EXPECT_EQ(api->host_alloc(64, (void **)&host), CU_OK);
    EXPECT_EQ(api->copy_to_device(p, host, 64, s), CU_OK);
    EXPECT_EQ(api->host_free(host), CU_OK);
    expect_violation("host_free of 64 bytes");
    EXPECT_EQ(api->stream_sync(s), CU_OK);
    expect_violation("not pinned any more"); // and it is not read
    EXPECT_EQ(api->stream_destroy(s), CU_OK);
    EXPECT_EQ(api->free(p), CU_OK);
    end();
}

/* ---- failures ---- */

static void nth_call_fails_once(void) {
    begin();
    void *a = NULL, *b = NULL;
    cu_handle h = 0;
    fake_fail_at(2, CU_ENOMEM);
    EXPECT(!fake_failed());
    EXPECT_EQ(api->alloc(16, &a), CU_OK);
    EXPECT_EQ(api->free(a), CU_OK); // giving back is not counted
    EXPECT(!fake_failed());
    EXPECT_EQ(api->alloc(16, &b), CU_ENOMEM);
    EXPECT(fake_failed());
    expect_text("because the test said so");
    EXPECT_EQ(api->alloc(16, &b), CU_OK);
    fake_fail_call("vmm_create", 1, CU_ENOMEM);
    EXPECT_EQ(api->free(b), CU_OK);
    EXPECT_EQ(api->vmm_create(GRAIN, &h), CU_ENOMEM);
    EXPECT_EQ(api->vmm_create(GRAIN, &h), CU_OK);
    EXPECT_EQ(fake_calls("vmm_create"), 2);
    fake_fail_call_always("alloc", 2, CU_ENOMEM);
    EXPECT_EQ(api->alloc(16, &a), CU_OK);
    EXPECT_EQ(api->alloc(16, &b), CU_ENOMEM);
    EXPECT_EQ(api->alloc(16, &b), CU_ENOMEM);
    fake_fail_call("alloc", 0, CU_OK);
    EXPECT_EQ(api->alloc(16, &b), CU_OK);
    fake_fail_call("free", 1, CU_EFAILED); // by its name any call may fail
    EXPECT_EQ(api->free(a), CU_EFAILED);
    EXPECT_EQ(api->free(a), CU_OK); // it did nothing
    EXPECT_EQ(api->free(b), CU_OK);
    EXPECT_EQ(api->vmm_release(h), CU_OK);
    fake_fail_at(1, CU_ELOST);
    EXPECT_EQ(api->alloc(16, &a), CU_ELOST);
    EXPECT_EQ(api->alloc(16, &a), CU_ELOST);
    end();
}

static void failed_call_breaks_the_capture(void) {
    begin();
    cu_stream s = stream();
    cu_graph g;
    push_params p = {device_words(4), 1, 0};
    EXPECT_EQ(api->capture_begin(s), CU_OK);
    fake_fail_call("launch", 1, CU_EFAILED);
    EXPECT_EQ(launch_fn(PUSH, &p, s), CU_EFAILED);
    EXPECT_EQ(api->capture_end(s, &g), CU_EINVAL);
    EXPECT_EQ(api->free(p.list), CU_OK);
    EXPECT_EQ(api->stream_destroy(s), CU_OK);
    end();
}

static void lost_event_never_comes(void) {
    fake_opts *o = begin();
    o->stuck_ms = 1;
    cu_stream s = stream(), other = stream();
    cu_event e = event(false), e2 = event(false);
    uint32_t *list = device_words(8);
    push_word(list, 1, s);
    fake_lose_event_at(2);
    EXPECT_EQ(api->event_record(e, s), CU_OK);
    EXPECT_EQ(api->event_record(e2, s), CU_OK);
    push_word(list, 2, s);
    EXPECT_EQ(api->stream_wait(other, e2), CU_OK);
    EXPECT_EQ(api->event_sync(e), CU_OK);
    for (int i = 0; i < 50; i++) EXPECT_EQ(api->event_query(e2), CU_NOT_READY);
    EXPECT_EQ(api->event_sync(e2), CU_EFAILED);
    expect_violation("event_sync waits for an event that never completes");
    EXPECT_EQ(api->stream_sync(other), CU_EFAILED);
    expect_violation("stream_sync waits");
    EXPECT_EQ(api->stream_sync(s), CU_EFAILED);
    expect_violation("stream_sync waits");
    EXPECT_EQ(word_at(list), 1); // what follows it never runs
    EXPECT_EQ(fake_leaks(), 5);
    fake_reset();
}

static void lost_context_is_lost_for_good(void) {
    fake_opts *o = begin();
    o->advance_pct = 0;
    cu_stream s = stream();
    cu_event e = event(false);
    uint32_t *list = device_words(8);
    void *p;
    uint32_t n;
    fake_lose_context_at(2);
    push_word(list, 1, s);
    push_word(list, 2, s);
    push_word(list, 3, s);
    EXPECT_EQ(api->event_record(e, s), CU_OK); // nobody has noticed
    EXPECT_EQ(api->event_query(e), CU_NOT_READY);
    EXPECT_EQ(api->event_sync(e), CU_ELOST);
    expect_text("push: the context was lost");
    EXPECT_EQ(word_at(list), 1); // the second did nothing, the third did not run
    EXPECT_EQ(api->event_query(e), CU_ELOST);
    EXPECT_EQ(api->stream_sync(s), CU_ELOST);
    EXPECT_EQ(api->device_count(&n), CU_OK); // nothing is asked of the context
    EXPECT_EQ(api->host_alloc(16, &p), CU_ELOST);
    cu_health health;
    EXPECT_EQ(api->device_health(0, &health), CU_OK); // NVML is another library
    EXPECT_EQ(api->free(list), CU_ELOST);
    EXPECT_EQ(api->event_destroy(e), CU_ELOST);
    EXPECT_EQ(api->stream_destroy(s), CU_ELOST);
    end();
    begin();
    fake_lose_context();
    EXPECT_EQ(api->alloc(16, &p), CU_ELOST);
    end();
}

/* Both things that CUDA may do to the other devices of a process. */
static void a_loss_is_of_one_device_or_of_the_process(void) {
    for (int alone = 0; alone < 2; alone++) {
        cu_result other = alone ? CU_OK : CU_ELOST;
        void *p = NULL;
        fake_opts *o = begin();
        fake_set_devices(2);
        o->lost_alone = alone;
        o->advance_pct = 0;
        o->quiet = true; // what is taken below is not given back
        cu_stream s0 = stream();
        uint32_t *list = device_words(8);
        EXPECT_EQ(api->device_use(1), CU_OK);
        cu_stream s1 = stream();
        fake_lose_context_at(1);
        EXPECT_EQ(api->device_use(0), CU_OK);
        push_word(list, 1, s0);
        EXPECT_EQ(api->device_use(1), CU_OK);
        fake_run(8); // by a call of the other device's thread
        EXPECT(fake_is_lost());
        EXPECT_EQ(api->stream_sync(s1), other);
        EXPECT_EQ(api->alloc(16, &p), other);
        EXPECT_EQ(api->device_use(0), CU_ELOST);
        if (alone) EXPECT_EQ(api->stream_sync(s0), CU_ELOST); // and it is the one in use
        EXPECT_EQ(fake_violations(), 0);
        fake_reset();
    }
}

/* ---- devices and threads ---- */

static void machines_without_a_device_say_why(void) {
    api = fake_api();
    fake_reset();
    uint32_t n = 7;
    cu_device d;
    EXPECT_EQ(api->device_count(&n), CU_EINVAL); // before init
    fake_options()->driver = FAKE_DRIVER_NONE;
    EXPECT_EQ(api->init(), CU_ENODEVICE);
    expect_text("no NVIDIA driver");
    fake_options()->driver = FAKE_DRIVER_OLD;
    EXPECT_EQ(api->init(), CU_EDRIVER);
    expect_text("too old");
    fake_options()->driver = FAKE_DRIVER_OK;
    fake_set_devices(0);
    EXPECT_EQ(api->init(), CU_ENODEVICE);
    fake_set_devices(2);
    fake_options()->device[1].mig = true;
    fake_options()->health[1].known = false;
    EXPECT_EQ(api->init(), CU_OK);
    EXPECT_EQ(api->device_count(&n), CU_OK);
    EXPECT_EQ(n, 2);
    EXPECT_EQ(api->device_about(1, &d), CU_OK);
    EXPECT(d.mig && d.vmm);
    EXPECT_STR(d.name, "Fake H200");
    EXPECT_EQ(d.n_sms, 132);
    EXPECT_EQ(d.shared_bytes_max, 232448);
    EXPECT_EQ(api->device_about(2, &d), CU_EINVAL);
    cu_health h;
    EXPECT_EQ(api->device_health(1, &h), CU_OK);
    EXPECT(!h.known);
    EXPECT_EQ(api->device_use(2), CU_EINVAL);
    fake_reset();
}

static void devices_have_their_own_memory_and_streams(void) {
    begin();
    fake_set_devices(2);
    fake_options()->device[0].memory_bytes = 1 << 20;
    void *a, *b;
    uint64_t free_bytes, total;
    cu_stream s = stream();
    EXPECT_EQ(api->alloc(1 << 20, &a), CU_OK);
    EXPECT_EQ(api->device_use(1), CU_OK);
    EXPECT_EQ(api->alloc(1 << 20, &b), CU_OK);
    EXPECT_EQ(api->memory_info(&free_bytes, &total), CU_OK);
    EXPECT_EQ(free_bytes, total - (1 << 20));
    EXPECT_EQ(api->fill(b, 0, 16, s), CU_EINVAL); // the stream is the other device's
    expect_text("belongs to device 0");
    cu_event e = event(false);
    EXPECT_EQ(api->device_use(0), CU_OK);
    EXPECT_EQ(api->event_record(e, s), CU_EINVAL);
    EXPECT_EQ(api->event_destroy(e), CU_OK);
    cu_graph g = NULL;
    EXPECT_EQ(api->capture_begin(s), CU_OK);
    EXPECT_EQ(api->capture_end(s, &g), CU_OK);
    EXPECT_EQ(api->device_use(1), CU_OK);
    cu_stream s1 = stream();
    EXPECT_EQ(api->graph_launch(g, s1), CU_EINVAL);
    EXPECT_EQ(api->graph_destroy(g), CU_OK);
    EXPECT_EQ(api->stream_destroy(s1), CU_OK);
    EXPECT_EQ(api->device_use(0), CU_OK);
    EXPECT_EQ(api->free(a), CU_OK);
    EXPECT_EQ(api->free(b), CU_OK);
    EXPECT_EQ(fake_held_bytes(), 0);
    EXPECT_EQ(api->stream_destroy(s), CU_OK);
    end();
}

static void *alloc_without_device(void *arg) {
    (void)arg;
    void *p = NULL;
    EXPECT_EQ(api->alloc(16, &p), CU_OK); // CUDA takes device 0, whichever was meant
    EXPECT_EQ(api->free(p), CU_OK);
    EXPECT_EQ(api->free(p), CU_EINVAL);
    expect_text("which is not held");
    return NULL;
}

static void thread_without_device_is_found(void) {
    begin();
    pthread_t thread;
    EXPECT_EQ(api->alloc(0, NULL), CU_EINVAL);
    EXPECT_EQ(pthread_create(&thread, NULL, alloc_without_device, NULL), 0);
    pthread_join(thread, NULL);
    expect_text("an allocation of 0 bytes"); // texts are the thread's own
    EXPECT_EQ(fake_take_violations(), 2);
    end();
}

static void *work(void *arg) {
    uint32_t v = *(uint32_t *)arg, back[2];
    EXPECT_EQ(api->device_use(0), CU_OK);
    cu_stream s = stream();
    cu_event e = event(true);
    for (int i = 0; i < 30; i++) {
        uint32_t *x = device_words(2);
        add_params params = {x, 2, v};
        EXPECT_EQ(launch_fn(ADD, &params, s), CU_OK);
        EXPECT_EQ(api->event_record(e, s), CU_OK);
        EXPECT_EQ(launch_fn(ADD, &params, s), CU_OK);
        while (api->event_query(e) == CU_NOT_READY) {
        }
        EXPECT_EQ(api->copy_to_host(back, x, 8, s), CU_OK);
        EXPECT_EQ(back[1], 2 * v);
        EXPECT_EQ(api->free(x), CU_OK);
    }
    EXPECT_EQ(api->event_destroy(e), CU_OK);
    EXPECT_EQ(api->stream_destroy(s), CU_OK);
    return NULL;
}

static void threads_may_call_at_once(void) {
    begin();
    pthread_t threads[4];
    uint32_t v[4];
    for (uint32_t i = 0; i < 4; i++) {
        v[i] = i + 1;
        EXPECT_EQ(pthread_create(&threads[i], NULL, work, &v[i]), 0);
    }
    for (uint32_t i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    end();
}

/* ---- module.c ---- */

static void launcher_keeps_its_first_failure(void) {
    begin();
    cuda_module m = {.api = api, .kernels = kernels, .n_kernels = N_KERNELS};
    uint64_t n_by_kernel[N_KERNELS] = {0};
    uint32_t *list = device_words(8);
    push_params p = {list, 1, 0};
    cu_stream s = stream();
    launcher l = {.module = &m, .api = api, .stream = s, .n_by_kernel = n_by_kernel};
    const cu_kernel *k = module_find(&m, "push");
    EXPECT(k == &kernels[PUSH]);
    EXPECT(module_find(&m, "pus") == NULL);
    launch(&l, k, 1, 1, 1, 32, 0, &p, sizeof p);
    launch(&l, k, 0, 1, 1, 32, 0, &p, sizeof p); // an empty grid is nothing
    launch(&l, k, 1, 1, 0, 32, 0, &p, sizeof p);
    EXPECT_EQ(l.status, CU_OK);
    EXPECT_EQ(l.n_launches, 1);
    EXPECT_EQ(n_by_kernel[PUSH], 1);
    launch(&l, k, 1, 1, 1, 33, 0, &p, sizeof p);
    EXPECT_EQ(l.status, CU_EINVAL);
    EXPECT(strstr(l.text, "push: push: 33 threads") != NULL);
    launch_failed(&l, CU_ELOST, "later");
    launch(&l, k, 1, 1, 1, 32, 0, &p, sizeof p);
    EXPECT_EQ(l.status, CU_EINVAL);
    EXPECT_EQ(l.n_launches, 1);
    EXPECT_EQ(api->stream_sync(s), CU_OK);
    EXPECT_EQ(word_at(list), 1);
    EXPECT_EQ(api->free(list), CU_OK);
    EXPECT_EQ(api->stream_destroy(s), CU_OK);
    end();
}

static void loading_a_kernel_says_what_does_not_fit(void) {
    fake_opts *o = begin();
    cuda_module m = {.api = api, .kernels = kernels, .n_kernels = N_KERNELS};
    inferd_err err = {0};
    EXPECT_EQ(module_load(&m, &kernels[ADD], 256, 100 << 10, &err), INFERD_OK);
    EXPECT_EQ(module_load(&m, &kernels[ADD], 512, 0, &err), INFERD_EUNSUPPORTED);
    EXPECT_STR(err.text,
               "kernel add was compiled for at most 256 threads per block, asked for 512");
    EXPECT_EQ(module_load(&m, &kernels[ADD], 256, 1 << 20, &err), INFERD_EDEVICE);
    EXPECT_STR(err.text, "loading a kernel: add: add: 1048576 bytes of shared memory per block, "
                         "the device has 232448");
    o->registers_per_thread = 255;
    EXPECT_EQ(module_load(&m, &kernels[PUSH], 1024, 0, &err), INFERD_EUNSUPPORTED);
    EXPECT(strstr(err.text, "1024 threads of 255 registers") != NULL);
    fake_fail_call("kernel_load", 1, CU_ELOST);
    EXPECT_EQ(module_load(&m, &kernels[ADD], 256, 0, &err), INFERD_ELOST);
    end();
}

static void every_result_has_a_status(void) {
    static const inferd_status expected[] = {
        [CU_OK] = INFERD_OK,
        [CU_NOT_READY] = INFERD_EBUSY,
        [CU_ENOMEM] = INFERD_ENOMEM,
        [CU_EINVAL] = INFERD_EDEVICE,
        [CU_EUNSUPPORTED] = INFERD_EUNSUPPORTED,
        [CU_ENODEVICE] = INFERD_ENOTFOUND,
        [CU_ESTARTING] = INFERD_EBUSY,
        [CU_EDRIVER] = INFERD_ENOTFOUND,
        [CU_EFAILED] = INFERD_EDEVICE,
        [CU_ELOST] = INFERD_ELOST,
    };
    begin();
    void *p;
    for (cu_result r = CU_ENOMEM; r <= CU_ELOST; r++) {
        inferd_err err = {0};
        fake_fail_call("alloc", 1, r);
        EXPECT_EQ(api->alloc(16, &p), r);
        EXPECT_EQ(cu_fail(api, r, &err, "16 bytes"), expected[r]);
        EXPECT_EQ(err.status, expected[r]);
        EXPECT(strncmp(err.text, "16 bytes: alloc", 15) == 0 || r == CU_ELOST);
    }
    end();
}

static const test_case cases[] = {
    TEST(memory_has_exact_bounds_and_is_full_of_ones),
    TEST(memory_ends),
    TEST(host_that_follows_a_device_pointer_crashes),
    TEST(kernel_that_writes_past_an_end_is_found),
    TEST(illegal_address_loses_the_context),
    TEST(giving_back_what_is_not_held_is_found),
    TEST(leaks_are_listed),
    TEST(aliases_are_the_same_memory),
    TEST(mappings_are_whole_and_inside_one_reservation),
    TEST(memory_without_access_or_mapping_loses_the_context),
    TEST(device_without_vmm_says_so),
    TEST(copies_of_pinned_memory_are_late),
    TEST(pins_do_not_overlap),
    TEST(copies_check_their_addresses),
    TEST(giving_back_what_queued_work_uses_is_found),
    TEST(nth_call_fails_once),
    TEST(failed_call_breaks_the_capture),
    TEST(lost_event_never_comes),
    TEST(lost_context_is_lost_for_good),
    TEST(a_loss_is_of_one_device_or_of_the_process),
    TEST(machines_without_a_device_say_why),
    TEST(devices_have_their_own_memory_and_streams),
    TEST(thread_without_device_is_found),
    TEST(threads_may_call_at_once),
    TEST(launcher_keeps_its_first_failure),
    TEST(loading_a_kernel_says_what_does_not_fit),
    TEST(every_result_has_a_status),
};
TEST_MAIN(cases)
