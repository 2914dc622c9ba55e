/* test_cuda_fake_work.c - the fake of cu_api keeps the rules that the other CUDA tests lean on:
 * what is queued, in which order and when it runs, kernels, captures, cuBLASLt.
 *
 * Each rule is broken once and must be noticed, or used and must hold. */
#include "cuda_emul/emul_test.h"
#include "cuda_fake_rig.h"

/* Kernels of the emulator's own tests, when they are linked. */
extern const cu_kernel emul_test_table[] __attribute__((weak));
extern const uint32_t emul_test_table_n __attribute__((weak));

/* ---- streams and events ---- */

static void work_is_late_and_in_order(void) {
    fake_opts *o = begin();
    o->advance_pct = 0;
    uint32_t *list = device_words(8);
    cu_stream s = stream();
    cu_event e = event(false);
    for (uint32_t i = 0; i < 3; i++) push_word(list, 10 + i, s);
    EXPECT_EQ(api->event_query(e), CU_OK); // never recorded: nothing to wait for
    EXPECT_EQ(api->event_record(e, s), CU_OK);
    push_word(list, 13, s);
    EXPECT_EQ(fake_pending(), 5);
    EXPECT_EQ(word_at(list), 0);
    EXPECT_EQ(api->event_query(e), CU_NOT_READY);
    EXPECT_EQ(api->event_sync(e), CU_OK);
    EXPECT_EQ(word_at(list), 3); // and no further
    EXPECT_EQ(api->event_query(e), CU_OK);
    EXPECT_EQ(api->stream_sync(s), CU_OK);
    for (uint32_t i = 0; i < 4; i++) EXPECT_EQ(word_at(&list[1 + i]), 10 + i);
    EXPECT_EQ(api->event_destroy(e), CU_OK);
    EXPECT_EQ(api->stream_destroy(s), CU_OK);
    EXPECT_EQ(api->free(list), CU_OK);
    end();
}

/* Which of two streams is first depends on the seed; with a wait it does not. */
static uint32_t first_of_two(uint64_t seed, bool wait) {
    fake_opts *o = begin();
    o->seed = seed;
    uint32_t *list = device_words(8);
    cu_stream a = stream(), b = stream();
    cu_event e = event(false);
    push_word(list, 1, a);
    EXPECT_EQ(api->event_record(e, a), CU_OK);
    if (wait) EXPECT_EQ(api->stream_wait(b, e), CU_OK);
    push_word(list, 2, b);
    EXPECT_EQ(api->stream_sync(b), CU_OK);
    EXPECT_EQ(api->stream_sync(a), CU_OK);
    uint32_t first = word_at(&list[1]);
    EXPECT_EQ(word_at(list), 2);
    EXPECT_EQ(api->event_destroy(e), CU_OK);
    EXPECT_EQ(api->stream_destroy(a), CU_OK);
    EXPECT_EQ(api->stream_destroy(b), CU_OK);
    EXPECT_EQ(api->free(list), CU_OK);
    end();
    return first;
}

static void streams_run_in_any_order_unless_they_wait(void) {
    uint32_t n_first[3] = {0};
    for (uint64_t seed = 1; seed <= 60; seed++) {
        uint32_t first = first_of_two(seed, false);
        EXPECT(first == 1 || first == 2);
        n_first[first % 3]++;
        EXPECT_EQ(first_of_two(seed, false), first); // a seed is an order
        EXPECT_EQ(first_of_two(seed, true), 1);
    }
    EXPECT(n_first[1] > 5 && n_first[2] > 5);
    /* Work that happens to run is of any stream. */
    for (int i = 0; i < 3; i++) n_first[i] = 0;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        fake_opts *o = begin();
        o->seed = seed;
        o->advance_pct = 0;
        uint32_t *list = device_words(4);
        cu_stream s[3];
        for (uint32_t i = 0; i < 3; i++) s[i] = stream(), push_word(list, i, s[i]);
        fake_run(1);
        EXPECT_EQ(word_at(list), 1);
        n_first[word_at(&list[1])]++;
        for (uint32_t i = 0; i < 3; i++) {
            EXPECT_EQ(api->stream_sync(s[i]), CU_OK);
            EXPECT_EQ(api->stream_destroy(s[i]), CU_OK);
        }
        EXPECT_EQ(api->free(list), CU_OK);
        end();
    }
    EXPECT(n_first[0] > 5 && n_first[1] > 5 && n_first[2] > 5);
}

/* stream_wait is for the record that was the newest when it was called. */
static void wait_is_for_one_record(void) {
    fake_opts *o = begin();
    o->advance_pct = 0;
    uint32_t *list = device_words(8);
    cu_stream a = stream(), b = stream(), c = stream();
    cu_event e = event(false);
    EXPECT_EQ(api->stream_wait(b, e), CU_OK); // never recorded
    EXPECT_EQ(api->event_record(e, a), CU_OK);
    EXPECT_EQ(api->stream_wait(b, e), CU_OK);
    push_word(list, 2, b);
    push_word(list, 1, a);
    EXPECT_EQ(api->event_record(e, a), CU_OK); // b does not wait for this one
    EXPECT_EQ(api->stream_wait(c, e), CU_OK);  // c does
    push_word(list, 3, c);
    fake_run_stream(c);
    EXPECT_EQ(word_at(list), 0); // c cannot go before a
    EXPECT_EQ(api->stream_sync(b), CU_OK);
    EXPECT_EQ(word_at(list), 1);
    EXPECT_EQ(word_at(&list[1]), 2);
    EXPECT_EQ(api->event_destroy(e), CU_OK); // waiting goes on
    EXPECT_EQ(api->stream_sync(c), CU_OK);
    EXPECT_EQ(word_at(&list[2]), 1);
    EXPECT_EQ(word_at(&list[3]), 3);
    EXPECT_EQ(api->stream_destroy(a), CU_OK);
    EXPECT_EQ(api->stream_destroy(b), CU_OK);
    EXPECT_EQ(api->stream_destroy(c), CU_OK);
    EXPECT_EQ(api->free(list), CU_OK);
    end();
}

static void destroyed_stream_finishes_its_work(void) {
    fake_opts *o = begin();
    o->advance_pct = 0;
    uint32_t *list = device_words(8);
    cu_stream a = stream(), b = stream();
    cu_event e = event(false);
    push_word(list, 1, a);
    EXPECT_EQ(api->event_record(e, a), CU_OK);
    push_word(list, 2, a);
    EXPECT_EQ(api->stream_destroy(a), CU_OK);
    EXPECT_EQ(api->stream_sync(a), CU_EINVAL);
    EXPECT_EQ(api->stream_wait(b, e), CU_OK);
    EXPECT_EQ(api->stream_sync(b), CU_OK);
    EXPECT_EQ(word_at(list), 1);
    fake_run(10);
    EXPECT_EQ(word_at(list), 2);
    EXPECT_EQ(fake_pending(), 0);
    EXPECT_EQ(api->event_destroy(e), CU_OK);
    EXPECT_EQ(api->stream_destroy(b), CU_OK);
    EXPECT_EQ(api->free(list), CU_OK);
    end();
}

static void time_is_what_the_options_say(void) {
    fake_opts *o = begin();
    o->launch_us = 7;
    o->copy_us = 3;
    o->bytes_per_us = 10;
    uint32_t *x = device_words(100);
    uint64_t us = 0;
    cu_stream a = stream(), b = stream();
    cu_event e[4];
    for (int i = 0; i < 4; i++) e[i] = event(true);
    add_params params = {x, 1, 1};
    EXPECT_EQ(api->event_record(e[0], a), CU_OK);
    EXPECT_EQ(api->event_elapsed_us(e[0], e[1], &us), CU_EINVAL); // never recorded
    EXPECT_EQ(launch_fn(ADD, &params, a), CU_OK);
    EXPECT_EQ(api->event_record(e[1], a), CU_OK);
    EXPECT_EQ(api->stream_wait(b, e[1]), CU_OK);
    EXPECT_EQ(api->event_record(e[2], b), CU_OK);
    EXPECT_EQ(api->fill(x, 0, 400, b), CU_OK);
    EXPECT_EQ(api->event_record(e[3], b), CU_OK);
    EXPECT_EQ(api->stream_sync(b), CU_OK);
    EXPECT_EQ(api->event_elapsed_us(e[0], e[1], &us), CU_OK);
    EXPECT_EQ(us, 7);
    EXPECT_EQ(api->event_elapsed_us(e[1], e[2], &us), CU_OK);
    EXPECT_EQ(us, 0); // b began when a was there
    EXPECT_EQ(api->event_elapsed_us(e[0], e[3], &us), CU_OK);
    EXPECT_EQ(us, 7 + 3 + 40);
    EXPECT_EQ(api->event_record(e[2], a), CU_OK); // a was idle: the host issues it now, at 50
    EXPECT_EQ(api->event_sync(e[2]), CU_OK);
    EXPECT_EQ(api->event_elapsed_us(e[1], e[2], &us), CU_OK);
    EXPECT_EQ(us, 43);
    o->advance_pct = 0;
    EXPECT_EQ(api->event_record(e[1], a), CU_OK);
    EXPECT_EQ(api->event_elapsed_us(e[0], e[1], &us), CU_NOT_READY);
    EXPECT_EQ(api->event_sync(e[1]), CU_OK);
    fake_counts counts;
    fake_get_counts(&counts);
    EXPECT_EQ(counts.virtual_us, 50);
    cu_event untimed = event(false);
    EXPECT_EQ(api->event_record(untimed, a), CU_OK);
    EXPECT_EQ(api->event_sync(untimed), CU_OK);
    EXPECT_EQ(api->event_elapsed_us(e[0], untimed, &us), CU_EINVAL);
    EXPECT_EQ(api->event_destroy(untimed), CU_OK);
    for (int i = 0; i < 4; i++) EXPECT_EQ(api->event_destroy(e[i]), CU_OK);
    EXPECT_EQ(api->stream_destroy(a), CU_OK);
    EXPECT_EQ(api->stream_destroy(b), CU_OK);
    EXPECT_EQ(api->free(x), CU_OK);
    end();
}

/* ---- kernels ---- */

static void launches_are_checked(void) {
    begin();
    cu_stream s = stream();
    cu_function_info info;
    uint32_t *x = device_words(1);
    add_params params = {x, 1, 1};
    cu_launch good = {.fn = (const void *)add,
                      .grid = {1, 1, 1},
                      .threads = 256,
                      .params = &params,
                      .params_bytes = sizeof params};
    EXPECT_EQ(api->launch(&good, s), CU_OK);
    cu_launch l = good;
    l.threads = 288; // of 256
    EXPECT_EQ(api->launch(&l, s), CU_EINVAL);
    l.threads = 48;
    EXPECT_EQ(api->launch(&l, s), CU_EINVAL);
    l = good, l.grid[1] = 0;
    EXPECT_EQ(api->launch(&l, s), CU_EINVAL);
    l = good, l.grid[2] = 0;
    EXPECT_EQ(api->launch(&l, s), CU_EINVAL);
    l = good, l.grid[2] = 65536;
    EXPECT_EQ(api->launch(&l, s), CU_EINVAL);
    l = good, l.params_bytes = 8;
    EXPECT_EQ(api->launch(&l, s), CU_EINVAL);
    expect_text("it takes 16");
    l = good, l.fn = &l;
    EXPECT_EQ(api->launch(&l, s), CU_EINVAL);
    /* Shared memory above 48 KiB is for kernels that were loaded with it. */
    l = good, l.shared_bytes = 48 << 10;
    EXPECT_EQ(api->launch(&l, s), CU_OK);
    l.shared_bytes++;
    EXPECT_EQ(api->launch(&l, s), CU_EINVAL);
    EXPECT_EQ(api->kernel_load((const void *)add, 256, 100 << 10, &info), CU_OK);
    EXPECT_EQ(info.threads_max, 256);
    EXPECT_EQ(info.registers, 64);
    EXPECT_EQ(info.blocks_per_sm, 2); // 228 KiB / (100 + 1) KiB
    l.shared_bytes = 100 << 10;
    EXPECT_EQ(api->launch(&l, s), CU_OK);
    l.shared_bytes++;
    EXPECT_EQ(api->launch(&l, s), CU_EINVAL);
    EXPECT_EQ(api->kernel_load((const void *)add, 256, 232448, NULL), CU_OK);
    EXPECT_EQ(api->kernel_load((const void *)add, 256, 232449, NULL), CU_EINVAL);
    EXPECT_EQ(api->kernel_load((const void *)add, 512, 0, NULL), CU_EINVAL);
    EXPECT_EQ(api->kernel_load(&l, 32, 0, NULL), CU_EINVAL);
    EXPECT_EQ(api->kernel_load((const void *)push, 1024, 0, &info), CU_OK);
    EXPECT_EQ(info.blocks_per_sm, 1); // registers
    EXPECT_EQ(api->stream_sync(s), CU_OK);
    EXPECT_EQ(word_at(x), 3);
    EXPECT_EQ(api->free(x), CU_OK);
    EXPECT_EQ(api->stream_destroy(s), CU_OK);
    end();
    begin(); // a new process has loaded nothing
    s = stream();
    l = good, l.shared_bytes = 49 << 10;
    EXPECT_EQ(api->launch(&l, s), CU_EINVAL);
    EXPECT_EQ(api->stream_destroy(s), CU_OK);
    end();
}

static void older_device_refuses_what_it_cannot(void) {
    begin();
    fake_set_cc(8, 0);
    cu_device d;
    cu_stream s = stream();
    EXPECT_EQ(api->device_about(0, &d), CU_OK);
    EXPECT_EQ(d.cc_major * 10 + d.cc_minor, 80);
    EXPECT_EQ(d.shared_bytes_max, 163 << 10);
    EXPECT_EQ(api->kernel_load(kernels[NEW_ONLY].fn, 32, 0, NULL), CU_EUNSUPPORTED);
    expect_text("compute capability 8.0");
    uint64_t params = 0;
    EXPECT_EQ(launch_fn(NEW_ONLY, &params, s), CU_EUNSUPPORTED);
    push_params p = {device_words(4), 1, 0};
    cu_launch l = {.fn = (const void *)push,
                   .grid = {1, 1, 1},
                   .threads = 32,
                   .params = &p,
                   .params_bytes = sizeof p,
                   .dependent = true};
    EXPECT_EQ(api->launch(&l, s), CU_EINVAL);
    expect_text("dependent");
    fake_set_cc(9, 0);
    EXPECT_EQ(api->launch(&l, s), CU_OK);
    EXPECT_EQ(api->stream_sync(s), CU_OK);
    EXPECT_EQ(api->free(p.list), CU_OK);
    EXPECT_EQ(api->stream_destroy(s), CU_OK);
    end();
}

static void strict_loading_finds_kernels_that_load_late(void) {
    begin();
    fake_strict_loading(true);
    cu_stream s = stream();
    uint32_t *list = device_words(4);
    push_word(list, 1, s);
    expect_violation("push was launched and never loaded");
    EXPECT_EQ(api->kernel_load((const void *)push, 32, 0, NULL), CU_OK);
    push_word(list, 2, s);
    EXPECT_EQ(api->stream_sync(s), CU_OK);
    EXPECT_EQ(api->stream_destroy(s), CU_OK);
    EXPECT_EQ(api->free(list), CU_OK);
    end();
}

static void kernel_that_breaks_a_rule_loses_the_context(void) {
    begin();
    cu_stream s = stream();
    uint64_t params = 0;
    EXPECT_EQ(launch_fn(FAILS, &params, s), CU_OK);
    EXPECT_EQ(api->stream_sync(s), CU_ELOST);
    expect_text("unspecified launch failure in fails: a rule of the emulator");
    expect_violation("fails: a rule of the emulator");
    EXPECT_EQ(api->stream_destroy(s), CU_ELOST);
    end();
}

/* ---- emulated kernels ---- */

static const cu_kernel *emulated(const char *name) {
    static bool added;
    if (&emul_test_table_n == NULL) return NULL;
    if (!added) fake_add_kernels(emul_test_table, emul_test_table_n);
    added = true;
    for (uint32_t i = 0; i < emul_test_table_n; i++)
        if (strcmp(emul_test_table[i].name, name) == 0) return &emul_test_table[i];
    return NULL;
}

static void run_emulated(const cu_kernel *k, const emul_test_params *p, uint32_t n_blocks,
                         bool dependent, cu_stream s, cu_result expected) {
    cu_launch l = {.fn = k->fn,
                   .grid = {n_blocks, 1, 1},
                   .threads = 32,
                   .params = p,
                   .params_bytes = sizeof *p,
                   .dependent = dependent};
    EXPECT_EQ(api->launch(&l, s), CU_OK);
    EXPECT_EQ(api->stream_sync(s), expected);
}

/* The emulator asks the fake before every access, and so knows each allocation to the byte. */
static void emulated_kernel_stays_inside_allocations(void) {
    const cu_kernel *k = emulated("access");
    if (k == NULL) SKIP("no emulator is linked");
    begin()->execute = NULL;
    cu_stream s = stream();
    char *in = device_bytes(96);
    emul_test_params p = {.out = device_bytes(128), .scratch = in + 92, .what = ACCESS_FORBIDDEN};
    run_emulated(k, &p, 1, false, s, CU_OK); // the last word is inside
    EXPECT_EQ(word_at(p.out), 0xFFFFFFFF);
    p.scratch = in + 96;
    run_emulated(k, &p, 1, false, s, CU_ELOST);
    expect_violation("(0 bytes past the end of allocation");
    EXPECT_EQ(api->free(in), CU_ELOST);
    EXPECT_EQ(api->free(p.out), CU_ELOST);
    EXPECT_EQ(api->stream_destroy(s), CU_ELOST);
    end();
}

static void dependent_kernel_waits_for_its_predecessor(void) {
    const cu_kernel *k = emulated("pdl");
    if (k == NULL) SKIP("no emulator is linked");
    begin()->execute = NULL;
    cu_stream s = stream();
    emul_test_params p = {.in = device_words(64), .out = device_bytes(256), .what = PDL_OK};
    run_emulated(k, &p, 2, true, s, CU_OK);
    EXPECT_EQ(word_at(p.out), 1);
    p.what = PDL_ONE_BLOCK_WAITS;
    run_emulated(k, &p, 2, false, s, CU_OK);
    EXPECT_EQ(fake_violations(), 0); // it need not wait when it begins after its predecessor
    run_emulated(k, &p, 2, true, s, CU_OK);
    expect_violation("pdl was launched as a dependent and never waits");
    EXPECT_EQ(api->free((void *)(uintptr_t)p.in), CU_OK);
    EXPECT_EQ(api->free(p.out), CU_OK);
    EXPECT_EQ(api->stream_destroy(s), CU_OK);
    end();
}

/* ---- captures ---- */

static void graph_replays_what_was_captured(void) {
    fake_opts *o = begin();
    o->advance_pct = 0;
    cu_stream s = stream();
    cu_graph g = NULL;
    uint32_t *x = device_words(2), *host;
    EXPECT_EQ(api->host_alloc(4, (void **)&host), CU_OK);
    *host = 100;
    EXPECT_EQ(api->capture_begin(s), CU_OK);
    add_params params = {x, 1, 5};
    EXPECT_EQ(api->copy_to_device(x, host, 4, s), CU_OK);
    EXPECT_EQ(launch_fn(ADD, &params, s), CU_OK);
    params.v = 1000; // the graph has its own copy
    EXPECT_EQ(api->copy_on_device(&x[1], x, 4, s), CU_OK);
    EXPECT_EQ(api->capture_end(s, &g), CU_OK);
    EXPECT_EQ(api->stream_sync(s), CU_OK);
    EXPECT_EQ(word_at(x), 0); // nothing ran
    EXPECT_EQ(api->graph_launch(g, s), CU_OK);
    *host = 200;
    EXPECT_EQ(api->stream_sync(s), CU_OK);
    EXPECT_EQ(word_at(&x[1]), 205);
    EXPECT_EQ(api->graph_launch(g, s), CU_OK);
    EXPECT_EQ(api->graph_destroy(g), CU_OK); // the launch goes on
    EXPECT_EQ(api->graph_launch(g, s), CU_EINVAL);
    *host = 300;
    EXPECT_EQ(api->free(x), CU_OK);
    expect_violation("(a graph) still uses");
    EXPECT_EQ(fake_pending(), 1);
    EXPECT_EQ(api->stream_sync(s), CU_ELOST); // and it hit memory that was freed
    fake_counts counts;
    fake_get_counts(&counts);
    EXPECT_EQ(counts.n_captured, 1);
    EXPECT_EQ(counts.n_launches, 0);
    EXPECT_EQ(counts.n_graphs, 1);
    EXPECT_EQ(counts.n_graph_launches, 2);
    EXPECT_EQ(counts.n_run, 1);
    EXPECT_EQ(fake_take_violations(), 1);
    EXPECT_EQ(api->host_free(host), CU_ELOST);
    EXPECT_EQ(api->stream_destroy(s), CU_ELOST);
    end();
}

static void launches_of_one_graph_do_not_overlap(void) {
    for (uint64_t seed = 1; seed <= 20; seed++) {
        fake_opts *o = begin();
        o->seed = seed;
        cu_stream a = stream(), b = stream();
        cu_graph g = NULL;
        uint32_t *list = device_words(16);
        EXPECT_EQ(api->capture_begin(a), CU_OK);
        for (uint32_t i = 0; i < 4; i++) push_word(list, i, a);
        EXPECT_EQ(api->capture_end(a, &g), CU_OK);
        EXPECT_EQ(api->graph_launch(g, a), CU_OK);
        EXPECT_EQ(api->graph_launch(g, b), CU_OK);
        EXPECT_EQ(api->stream_sync(b), CU_OK);
        for (uint32_t i = 0; i < 8; i++) EXPECT_EQ(word_at(&list[1 + i]), i % 4);
        EXPECT_EQ(api->stream_sync(a), CU_OK);
        EXPECT_EQ(api->graph_destroy(g), CU_OK);
        EXPECT_EQ(api->stream_destroy(a), CU_OK);
        EXPECT_EQ(api->stream_destroy(b), CU_OK);
        EXPECT_EQ(api->free(list), CU_OK);
        end();
    }
}

/* One forbidden thing per number, done by the capturing thread; -1: no more. */
typedef struct capture_scene {
    cu_stream s, other;
    cu_event e, recorded;
    cu_graph g;
    void *p, *range;
    uint32_t *host;
    cu_handle h;
    uint32_t pageable;
} capture_scene;

static int do_forbidden(int which, capture_scene *c) {
    uint64_t a, b;
    size_t n;
    void *out;
    cu_handle h;
    cu_stream s;
    lt_algo algo;
    uint32_t n_algos;
    lt_shape shape = {8, 8, 8, 8, 8, 8, LT_BF16, LT_BF16, false};
    switch (which) {
    case 0:
        return (int)api->alloc(16, &out);
    case 1:
        return (int)api->free(c->p);
    case 2:
        return (int)api->host_alloc(16, &out);
    case 3:
        return (int)api->host_free(c->host);
    case 4:
        return (int)api->host_pin(c->host, 4096);
    case 5:
        return (int)api->host_unpin(c->host);
    case 6:
        return (int)api->vmm_granularity(&n);
    case 7:
        return (int)api->vmm_reserve(GRAIN, 0, &out);
    case 8:
        return (int)api->vmm_create(GRAIN, &h);
    case 9:
        return (int)api->vmm_map(c->range, GRAIN, c->h);
    case 10:
        return (int)api->vmm_unmap(c->range, GRAIN);
    case 11:
        return (int)api->vmm_access(c->range, GRAIN);
    case 12:
        return (int)api->vmm_release(c->h);
    case 13:
        return (int)api->vmm_unreserve(c->range, GRAIN);
    case 14:
        return (int)api->memory_info(&a, &b);
    case 15:
        return (int)api->stream_sync(c->s);
    case 16:
        return (int)api->stream_sync(c->other);
    case 17:
        return (int)api->stream_create(false, &s);
    case 18:
        return (int)api->event_query(c->recorded);
    case 19:
        return (int)api->event_sync(c->recorded);
    case 20:
        return (int)api->stream_destroy(c->s);
    case 21:
        return (int)api->event_elapsed_us(c->recorded, c->recorded, &a);
    case 22:
        return (int)api->kernel_load((const void *)add, 32, 0, NULL);
    case 23:
        return (int)api->lt_candidates(&shape, 0, 1, &algo, &n_algos);
    case 24:
        return (int)api->lt_open(NULL);
    case 25:
        return (int)api->graph_launch(c->g, c->s);
    case 26:
        return (int)api->stream_wait(c->s, c->recorded); // recorded outside
    case 27:
        return (int)api->copy_to_device(c->p, &c->pageable, 4, c->s);
    case 28:
        return (int)api->copy_to_host(&c->pageable, c->p, 4, c->s);
    case 29:
        return (int)api->capture_begin(c->s);
    case 30:
        return (int)api->capture_begin(c->other);
    case 31:
        return (int)api->stream_destroy(c->other);
    case 32: // a fork: another stream waits for an event of the capture
        EXPECT_EQ(api->event_record(c->e, c->s), CU_OK);
        return (int)api->stream_wait(c->other, c->e);
    case 33:
        return (int)api->graph_destroy(c->g);
    default:
        return -1;
    }
}

static void forbidden_calls_break_the_capture(void) {
    begin();
    capture_scene c = {stream(),         stream(),        event(true), event(true),    NULL,
                       device_bytes(16), reserved(GRAIN), NULL,        created(GRAIN), 0};
    EXPECT_EQ(api->host_alloc(4096, (void **)&c.host), CU_OK);
    EXPECT_EQ(api->lt_open(NULL), CU_OK);
    EXPECT_EQ(api->event_record(c.recorded, c.other), CU_OK);
    EXPECT_EQ(api->stream_sync(c.other), CU_OK);
    EXPECT_EQ(api->capture_begin(c.s), CU_OK);
    EXPECT_EQ(api->capture_end(c.s, &c.g), CU_OK); // an empty graph is one
    EXPECT(c.g != NULL);
    int n = 0;
    for (;; n++) {
        cu_graph g = c.g;
        EXPECT_EQ(api->capture_begin(c.s), CU_OK);
        int r = do_forbidden(n, &c);
        cu_result ended = api->capture_end(c.s, &g);
        if (r < 0) {
            EXPECT_EQ(ended, CU_OK);
            EXPECT_EQ(api->graph_destroy(g), CU_OK);
            break;
        }
        if (r != CU_EINVAL || ended != CU_EINVAL || g != NULL)
            printf("forbidden call %d gave %d, capture_end %d\n", n, r, (int)ended);
        EXPECT(r == CU_EINVAL && ended == CU_EINVAL && g == NULL);
        expect_text("the capture was broken: ");
        EXPECT_EQ(api->stream_sync(c.s), CU_OK); // the stream works as before
    }
    EXPECT_EQ(n, 34);
    EXPECT_EQ(api->graph_destroy(c.g), CU_OK);
    EXPECT_EQ(api->free(c.p), CU_OK); // none of the forbidden calls did anything
    EXPECT_EQ(api->host_free(c.host), CU_OK);
    EXPECT_EQ(api->vmm_release(c.h), CU_OK);
    EXPECT_EQ(api->vmm_unreserve(c.range, GRAIN), CU_OK);
    EXPECT_EQ(api->event_destroy(c.e), CU_OK);
    EXPECT_EQ(api->event_destroy(c.recorded), CU_OK);
    EXPECT_EQ(api->stream_destroy(c.s), CU_OK);
    EXPECT_EQ(api->stream_destroy(c.other), CU_OK);
    end();
}

static void events_of_a_capture_say_nothing_outside(void) {
    begin();
    cu_stream s = stream(), other = stream();
    cu_event e = event(true);
    cu_graph g = NULL;
    uint64_t us;
    uint32_t *list = device_words(4);
    EXPECT_EQ(api->capture_begin(s), CU_OK);
    EXPECT_EQ(api->event_record(e, s), CU_OK);
    EXPECT_EQ(api->stream_wait(s, e), CU_OK); // within the capture they order, and it is in order
    cu_event made = event(false);             // some calls are allowed
    EXPECT_EQ(api->event_destroy(made), CU_OK);
    EXPECT_EQ(api->device_use(0), CU_OK);
    push_word(list, 1, other); // another stream works on
    EXPECT_EQ(api->capture_end(s, &g), CU_OK);
    EXPECT_EQ(api->event_query(e), CU_EINVAL);
    EXPECT_EQ(api->event_sync(e), CU_EINVAL);
    EXPECT_EQ(api->event_elapsed_us(e, e, &us), CU_EINVAL);
    EXPECT_EQ(api->stream_wait(other, e), CU_EINVAL);
    EXPECT_EQ(api->capture_end(s, &g), CU_EINVAL); // no capture
    EXPECT(g == NULL);
    EXPECT_EQ(api->event_record(e, s), CU_OK);
    EXPECT_EQ(api->event_sync(e), CU_OK);
    EXPECT_EQ(api->stream_sync(other), CU_OK);
    EXPECT_EQ(word_at(list), 1);
    EXPECT_EQ(fake_leaks(), 5);
    fake_reset();
}

static void *use_captured_stream(void *arg) {
    capture_scene *c = arg;
    EXPECT_EQ(api->device_use(0), CU_OK);
    void *p = device_bytes(16); // this thread captures nothing
    EXPECT_EQ(api->fill(p, 0, 16, c->other), CU_OK);
    EXPECT_EQ(api->stream_sync(c->other), CU_OK);
    EXPECT_EQ(api->free(p), CU_OK);
    if (c->pageable == 1) EXPECT_EQ(api->stream_sync(c->s), CU_EINVAL);
    if (c->pageable == 2) EXPECT_EQ(api->event_query(c->e), CU_EINVAL);
    if (c->pageable == 3) EXPECT_EQ(api->fill(c->p, 0, 16, c->s), CU_EINVAL);
    return NULL;
}

static void capture_is_of_one_thread(void) {
    begin();
    capture_scene c = {.s = stream(), .other = stream(), .e = event(false), .p = device_bytes(16)};
    for (c.pageable = 0; c.pageable < 4; c.pageable++) {
        cu_graph g = NULL;
        pthread_t thread;
        EXPECT_EQ(api->capture_begin(c.s), CU_OK);
        EXPECT_EQ(api->event_record(c.e, c.s), CU_OK);
        EXPECT_EQ(pthread_create(&thread, NULL, use_captured_stream, &c), 0);
        pthread_join(thread, NULL);
        EXPECT_EQ(api->capture_end(c.s, &g), c.pageable == 0 ? CU_OK : CU_EINVAL);
        if (g != NULL) EXPECT_EQ(api->graph_destroy(g), CU_OK);
    }
    EXPECT_EQ(api->free(c.p), CU_OK);
    EXPECT_EQ(api->event_destroy(c.e), CU_OK);
    EXPECT_EQ(api->stream_destroy(c.s), CU_OK);
    EXPECT_EQ(api->stream_destroy(c.other), CU_OK);
    end();
}

/* ---- cuBLASLt ---- */

static double lt_expected(const float *x, const float *w, const float *before, uint32_t i,
                          uint32_t j, const lt_shape *s) {
    double sum = s->accumulate ? (double)before[i * s->n + j] : 0;
    for (uint32_t k = 0; k < s->k; k++)
        sum += (double)x[i * s->x_stride + k] * (double)w[j * s->w_stride + k];
    return sum;
}

static void try_product(cuda_rig *r, lt_shape shape, uint32_t algo_idx) {
    size_t n_x = shape.m * shape.x_stride, n_w = shape.n * shape.w_stride,
           n_out = shape.m * shape.n;
    cu_type in = shape.in == LT_BF16 ? CU_BF16 : CU_F16;
    cu_type out = shape.out == LT_F32 ? CU_F32 : in;
    float *x = rig_normals(n_x, 1), *w = rig_normals(n_w, 1), *before = rig_normals(n_out, 1);
    float *got = malloc(n_out * sizeof *got);
    double *want = malloc(n_out * sizeof *want);
    rig_round_all(in, x, n_x);
    rig_round_all(in, w, n_w);
    rig_round_all(out, before, n_out);
    for (uint32_t i = 0; i < shape.m; i++)
        for (uint32_t j = 0; j < shape.n; j++)
            want[i * shape.n + j] = lt_expected(x, w, before, i, j, &shape);
    shape.out_stride = shape.n;
    void *d_x = rig_put_f32(r, in, x, n_x), *d_w = rig_put_f32(r, in, w, n_w);
    void *d_out = rig_put_f32(r, out, before, n_out), *workspace = rig_alloc(r, 1 << 20);
    lt_algo algos[8];
    uint32_t n_algos = 0;
    EXPECT_EQ(r->api->lt_candidates(&shape, 1 << 20, 8, algos, &n_algos), CU_OK);
    EXPECT_EQ(n_algos, 4);
    EXPECT_EQ(r->api->lt_matmul(&shape, &algos[algo_idx], d_x, d_w, d_out, workspace, 1 << 20,
                                r->l.stream),
              CU_OK);
    rig_get_f32(r, out, got, d_out, n_out);
    rig_near("matmul", out, got, want, n_out, "the fake's product");
    free(x), free(w), free(before), free(got), free(want);
}

static void products_are_products(void) {
    cuda_rig r;
    rig_open(&r);
    if (rig_is_real(&r)) {
        rig_close(&r);
        SKIP("the fake is not used");
    }
    EXPECT_EQ(r.api->lt_version(), 0);
    EXPECT_EQ(r.api->lt_open(NULL), CU_OK);
    EXPECT(r.api->lt_version() > 0);
    rig_seed(7);
    try_product(&r, (lt_shape){3, 8, 24, 32, 40, 8, LT_BF16, LT_BF16, false}, 0);
    try_product(&r, (lt_shape){5, 16, 8, 8, 8, 16, LT_F16, LT_F16, true}, 1);
    try_product(&r, (lt_shape){1, 24, 48, 48, 48, 24, LT_BF16, LT_F32, true}, 3);
    fake_counts counts;
    fake_get_counts(&counts);
    EXPECT_EQ(counts.n_lt, 3);
    rig_close(&r);
}

static void products_are_checked(void) {
    fake_opts *o = begin();
    o->lt = false;
    lt_shape shape = {4, 8, 16, 16, 16, 8, LT_BF16, LT_BF16, false};
    lt_algo algos[8];
    uint32_t n = 9;
    EXPECT_EQ(api->lt_candidates(&shape, 0, 8, algos, &n), CU_EUNSUPPORTED);
    EXPECT_EQ(n, 0);
    EXPECT_EQ(api->lt_open("/nowhere"), CU_EUNSUPPORTED);
    expect_text("/nowhere");
    o->lt = true;
    EXPECT_EQ(api->lt_open(NULL), CU_OK);
    lt_shape odd = shape;
    odd.w_stride = 20;
    EXPECT_EQ(api->lt_candidates(&odd, 0, 8, algos, &n), CU_EUNSUPPORTED);
    odd.w_stride = 8; // less than k
    EXPECT_EQ(api->lt_candidates(&odd, 0, 8, algos, &n), CU_EINVAL);
    EXPECT_EQ(api->lt_candidates(&shape, 0, 8, algos, &n), CU_OK);
    EXPECT_EQ(n, 2); // without workspace
    EXPECT_EQ(api->lt_candidates(&shape, 2 << 20, 1, algos, &n), CU_OK);
    EXPECT_EQ(n, 1);
    EXPECT_EQ(api->lt_candidates(&shape, 2 << 20, 8, algos, &n), CU_OK);
    EXPECT_EQ(n, 4);
    cu_stream s = stream();
    char *x = device_bytes(128), *w = device_bytes(256), *out = device_bytes(64);
    char *space = device_bytes(1 << 20);
    size_t needs = algos[1].workspace_bytes;
    EXPECT(needs > 0);
    EXPECT_EQ(api->lt_matmul(&shape, &algos[1], x, w, out, space, needs - 1, s), CU_EINVAL);
    EXPECT_EQ(api->lt_matmul(&shape, &algos[1], x, w, out, NULL, needs, s), CU_EINVAL);
    EXPECT_EQ(api->lt_matmul(&shape, &algos[0], x + 2, w, out, NULL, 0, s), CU_EUNSUPPORTED);
    EXPECT_EQ(api->lt_matmul(&shape, &algos[0], w, x, out, NULL, 0, s), CU_EINVAL); // too small
    EXPECT_EQ(api->lt_matmul(&shape, &algos[2], x, w, out, NULL, 0, s), CU_EFAILED);
    lt_algo none = {{0}, 0};
    EXPECT_EQ(api->lt_matmul(&shape, &none, x, w, out, NULL, 0, s), CU_EINVAL);
    lt_shape half = shape;
    half.in = half.out = LT_F16;
    EXPECT_EQ(api->lt_matmul(&half, &algos[0], x, w, out, NULL, 0, s), CU_EUNSUPPORTED);
    /* The first is not the fastest, and the workspace is scribbled over. */
    o->lt_flops_us = 1;
    o->launch_us = 0;
    cu_event e[3] = {event(true), event(true), event(true)};
    uint64_t us[2];
    EXPECT_EQ(api->event_record(e[0], s), CU_OK);
    EXPECT_EQ(api->lt_matmul(&shape, &algos[0], x, w, out, NULL, 0, s), CU_OK);
    EXPECT_EQ(api->event_record(e[1], s), CU_OK);
    EXPECT_EQ(api->lt_matmul(&shape, &algos[1], x, w, out, space, needs, s), CU_OK);
    EXPECT_EQ(api->event_record(e[2], s), CU_OK);
    EXPECT_EQ(api->event_sync(e[2]), CU_OK);
    EXPECT_EQ(api->event_elapsed_us(e[0], e[1], &us[0]), CU_OK);
    EXPECT_EQ(api->event_elapsed_us(e[1], e[2], &us[1]), CU_OK);
    EXPECT_EQ(us[1], 2 * 4 * 8 * 16);
    EXPECT_EQ(us[0], 3 * us[1]);
    unsigned char byte = 0;
    EXPECT(fake_peek(space, &byte, 1) && byte != 0xFF);
    for (int i = 0; i < 3; i++) EXPECT_EQ(api->event_destroy(e[i]), CU_OK);
    EXPECT_EQ(api->free(x), CU_OK);
    EXPECT_EQ(api->free(w), CU_OK);
    EXPECT_EQ(api->free(out), CU_OK);
    EXPECT_EQ(api->free(space), CU_OK);
    EXPECT_EQ(api->stream_destroy(s), CU_OK);
    end();
}

/* ---- breaking it by a line of text ---- */

static bool script(const char *text) {
    char why[128] = "";
    bool ok = fake_script(text, why, sizeof why);
    EXPECT(ok == (why[0] == 0));
    return ok;
}

static void a_script_breaks_what_it_names(void) {
    void *p;
    cu_handle h;
    size_t grain;
    fake_opts *o = begin();
    EXPECT(script("fail=alloc:2;fail=vmm_create:1:EUNSUPPORTED:always;wrong=push;no=lt"));
    EXPECT_EQ(api->alloc(256, &p), CU_OK);
    EXPECT_EQ(api->free(p), CU_OK);
    EXPECT_EQ(api->alloc(256, &p), CU_ENOMEM);
    for (int i = 0; i < 3; i++) EXPECT_EQ(api->vmm_create(GRAIN, &h), CU_EUNSUPPORTED);
    EXPECT_STR(o->wrong, "push");
    EXPECT(!o->lt);
    EXPECT(script("no=vmm"));
    EXPECT_EQ(api->vmm_granularity(&grain), CU_EUNSUPPORTED);
    EXPECT(script(""));
    end();
    static const char *const bad[] = {
        "fail",   "fail=alloc", "fail=alloc:0",         "fail=nothing:1", "fail=alloc:1:EPERM",
        "hang=x", "wrong=",     "fail=alloc:1:ELOST:x", "no=nvml",        "no=lt;what=1"};
    for (size_t i = 0; i < INFERD_COUNT(bad); i++) {
        begin();
        EXPECT(!script(bad[i]));
        end();
    }
}

static void a_wrong_kernel_changes_one_word(void) {
    fake_opts *o = begin();
    uint32_t *list = device_words(8);
    cu_stream s = stream();
    push_word(list, 5, s); // list[0] is their number
    EXPECT_EQ(api->stream_sync(s), CU_OK);
    snprintf(o->wrong, sizeof o->wrong, "no_such*");
    push_word(list, 6, s);
    EXPECT_EQ(api->stream_sync(s), CU_OK);
    EXPECT(word_at(list) == 2 && word_at(&list[1]) == 5 && word_at(&list[2]) == 6);
    snprintf(o->wrong, sizeof o->wrong, "pu*");
    push_word(list, 7, s);
    EXPECT_EQ(api->stream_sync(s), CU_OK);
    EXPECT(word_at(list) == (3 ^ 0x02000200) && word_at(&list[3]) == 7);
    EXPECT_EQ(api->stream_destroy(s), CU_OK);
    EXPECT_EQ(api->free(list), CU_OK);
    end();
}

static void a_wrong_product_has_one_wrong_value(void) {
    fake_opts *o = begin();
    lt_shape shape = {4, 8, 16, 16, 16, 8, LT_BF16, LT_BF16, false};
    lt_algo algo;
    uint32_t n = 0;
    EXPECT_EQ(api->lt_open(NULL), CU_OK);
    EXPECT_EQ(api->lt_candidates(&shape, 0, 1, &algo, &n), CU_OK);
    cu_stream s = stream();
    char *x = device_bytes(128), *w = device_bytes(256), *out = device_bytes(64);
    uint16_t right[32], wrong[32];
    EXPECT_EQ(api->fill(x, 0x3f, 128, s), CU_OK);
    EXPECT_EQ(api->fill(w, 0x3f, 256, s), CU_OK);
    for (int i = 0; i < 2; i++) {
        EXPECT_EQ(api->lt_matmul(&shape, &algo, x, w, out, NULL, 0, s), CU_OK);
        EXPECT_EQ(api->stream_sync(s), CU_OK);
        EXPECT(fake_peek(out, i == 0 ? right : wrong, sizeof right));
        snprintf(o->wrong, sizeof o->wrong, "lt_matmul");
    }
    EXPECT_EQ(wrong[0], right[0] ^ 0x200);
    EXPECT(memcmp(wrong + 1, right + 1, sizeof right - sizeof right[0]) == 0);
    EXPECT_EQ(api->free(x), CU_OK);
    EXPECT_EQ(api->free(w), CU_OK);
    EXPECT_EQ(api->free(out), CU_OK);
    EXPECT_EQ(api->stream_destroy(s), CU_OK);
    end();
}

static const test_case cases[] = {
    TEST(work_is_late_and_in_order),
    TEST(streams_run_in_any_order_unless_they_wait),
    TEST(wait_is_for_one_record),
    TEST(destroyed_stream_finishes_its_work),
    TEST(time_is_what_the_options_say),
    TEST(launches_are_checked),
    TEST(older_device_refuses_what_it_cannot),
    TEST(strict_loading_finds_kernels_that_load_late),
    TEST(kernel_that_breaks_a_rule_loses_the_context),
    TEST(emulated_kernel_stays_inside_allocations),
    TEST(dependent_kernel_waits_for_its_predecessor),
    TEST(graph_replays_what_was_captured),
    TEST(launches_of_one_graph_do_not_overlap),
    TEST(forbidden_calls_break_the_capture),
    TEST(events_of_a_capture_say_nothing_outside),
    TEST(capture_is_of_one_thread),
    TEST(products_are_products),
    TEST(products_are_checked),
    TEST(a_script_breaks_what_it_names),
    TEST(a_wrong_kernel_changes_one_word),
    TEST(a_wrong_product_has_one_wrong_value),
};
TEST_MAIN(cases)
