/* test_cuda_memory_fails.c - a life of the CUDA backend's memory in which something fails.
 *
 * Opening, two windows, a load, an eviction, a reload at the same addresses, closing.  Each call of
 * the table fails in turn, once or from then on, with each kind of failure; then each allocation
 * does. Whatever happens, there is a sentence, a second attempt works where only one call failed,
 * what is shown is right, and nothing is left. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "memory_rig.h"

/* ---- our allocations can fail ---- */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED // they have their own allocator, and are slow
#define SANITIZED 0
#endif

static _Thread_local bool fail_all_then; // not once, but from then on

#if !SANITIZED
static _Thread_local int64_t allocations_left = -1; // until one fails; -1: never
/* The C library's own, for the program in front of it. */
void *__libc_calloc(size_t n, size_t each);
void *__libc_realloc(void *p, size_t n);
void *calloc(size_t n, size_t each);
void *realloc(void *p, size_t n);

static bool fails_now(void) {
    if (allocations_left < 0 || in_fake > 0) return false;
    if (allocations_left > 0) return allocations_left--, false;
    if (!fail_all_then) allocations_left = -1;
    errno = ENOMEM; // the C library looks at it
    return true;
}
void *calloc(size_t n, size_t each) {
    return fails_now() ? NULL : __libc_calloc(n, each);
}
void *realloc(void *p, size_t n) {
    return fails_now() ? NULL : __libc_realloc(p, n);
}
#endif

/* ---- everything fails once ---- */

/* Small, because it is lived a thousand times. */
enum { LIFE_BYTES = MIB + 12345 };
static const cuda_memory_options life = {.memory_bytes = 4 * MIB,
                                         .workspace_bytes = 128 * KIB,
                                         .page_bytes = PAGE,
                                         .ready_pages_min = 8};

static int failures_before;
static void note_failures(void) {
    failures_before = test_failures;
}
static bool failed_now(void) {
    return test_failures > failures_before;
}

typedef struct run {
    bench b;
    cuda_window *w; // mapped and loaded, when it is done
    uint32_t n_failures;
    bool done;    // came to the end
    bool reached; // the failure that was ordered has happened
} run;

/* The status and its sentence agree; true: it worked. */
static bool good(run *r, inferd_status s) {
    if (s == INFERD_OK) return true;
    r->n_failures++;
    if (r->b.err.status != s || strlen(r->b.err.text) < 10)
        printf("status %d came with %d, \"%s\"\n", s, r->b.err.status, r->b.err.text);
    EXPECT(r->b.err.status == s && strlen(r->b.err.text) >= 10);
    if (fake_is_lost()) EXPECT_EQ(s, INFERD_ELOST);
    return false;
}

/* A call that failed may be made again: a single failure leaves nothing in the way. */
#define TWICE(call) (good(r, call) || (!fake_is_lost() && !fail_all_then && good(r, call)))

static bool load(run *r, cuda_window *w, const uint32_t *pages, uint32_t n, bool fill) {
    bench *b = &r->b;
    if (!TWICE(window_map_cuda(b->m, w, pages, n, &b->err))) return false;
    if (fill) fill_image(b, w, LIFE_BYTES, 1);
    return TWICE(window_upload_cuda(b->m, w, 0, 512 * KIB, &b->err)) &&
           TWICE(window_upload_cuda(b->m, w, 512 * KIB, LIFE_BYTES, &b->err)) &&
           TWICE(memory_wait(b->m, b->s, window_base_cuda(w), &b->err)) &&
           TWICE(memory_wait(b->m, b->s, (char *)window_base_cuda(w) + LIFE_BYTES - 1, &b->err));
}

static void live(run *r) {
    bench *b = &r->b;
    if (!good(r, open_with(b, &life))) return;
    for (int i = 0; i < 50000 && memory_n_ready(b->m) != memory_n_pages(b->m); i++) nap();
    uint32_t pages[512], others[512], n_blocks = n_blocks_of(b, LIFE_BYTES);
    if (memory_n_ready(b->m) < 2 * n_blocks * block_pages(b)) return; // capacity shrank
    uint32_t n = some_pages(b, n_blocks, 0, pages), n_others = some_pages(b, n_blocks, n, others);
    cuda_window *w, *second;
    if (!TWICE(window_open_cuda(b->m, LIFE_BYTES, &w, &b->err)) ||
        !TWICE(window_open_cuda(b->m, LIFE_BYTES, &second, &b->err)) || !load(r, w, pages, n, true))
        return;
    memory_all_arrived(b->m);
    void *p = memory_workspace_take(b->m, 1000, &b->err);
    if (p == NULL) good(r, INFERD_ENOMEM);
    for (int i = 0; i < 40; i++) (void)memory_workspace_take(b->m, 1000, &b->err);
    memory_workspace_give(b->m, p);
    if (!TWICE(memory_sync(b->m, &b->err)) || !TWICE(window_unmap_cuda(b->m, w, &b->err)) ||
        !load(r, w, others, n_others, false) || !load(r, second, pages, n, true) ||
        !TWICE(window_unmap_cuda(b->m, second, &b->err)))
        return;
    r->w = w;
    r->done = true;
}

/* Nothing fails any more: whoever came to the end shows the right bytes, without a failure all did.
 */
static void check_run(run *r, bool reached) {
    r->reached = reached;
    if (!r->reached) EXPECT(r->done && r->n_failures == 0);
    if (r->done && !fake_is_lost()) EXPECT(shows(&r->b, window_base_cuda(r->w), LIFE_BYTES, 0, 1));
}

static void run_once(uint32_t extent_pages, const char *call, uint32_t n, cu_result how,
                     bool always, run *r) {
    memset(r, 0, sizeof *r);
    begin(&r->b, extent_pages);
    if (call == NULL)
        fake_fail_at(n, how);
    else if (always)
        fake_fail_call_always(call, n, how);
    else
        fake_fail_call(call, n, how);
    fail_all_then = always;
    live(r);
    fail_all_then = false;
}

static void every_call_may_fail(void) {
    note_failures();
    static const cu_result how[] = {CU_EFAILED, CU_ENOMEM, CU_ELOST};
    for (size_t e = 0; e < 3; e++)
        for (size_t h = 0; h < INFERD_COUNT(how); h++) {
            uint32_t extent = e == 0 ? 0 : e == 1 ? 2 : 8, n = 1, n_failures = 0;
            for (;; n += 1 + n / (SANITIZED ? 6 : 40)) { // every one of the first, then ever fewer
                run r;
                run_once(extent, NULL, n, how[h], false, &r);
                n_failures += r.n_failures;
                bool reached = fake_failed();
                fake_fail_at(0, CU_OK);
                check_run(&r, reached);
                if (failed_now()) printf("extent %u, call %u fails with %d\n", extent, n, how[h]);
                end(&r.b);
                if (!r.reached || failed_now()) break;
            }
            EXPECT(n > 30 && n_failures > 10);
        }
}

static void every_kind_of_call_may_fail_for_ever(void) {
    note_failures();
    static const char *const calls[] = {
        "memory_info",      "alloc",          "host_alloc",  "host_pin",
        "vmm_granularity",  "vmm_reserve",    "vmm_create",  "vmm_map",
        "vmm_access",       "stream_create",  "stream_sync", "stream_wait",
        "event_create",     "event_record",   "event_query", "event_sync",
        "event_elapsed_us", "copy_to_device", "device_use"};
    for (size_t e = 0; e < 2; e++)
        for (size_t c = 0; c < INFERD_COUNT(calls); c++)
            for (uint32_t n = 1;; n += 1 + n / (SANITIZED ? 2 : 8)) {
                run r;
                run_once(e == 0 ? 0 : 4, calls[c], n, CU_EFAILED, true, &r);
                if (n % 2 == 0) { // closed while it fails
                    r.done = false;
                    r.reached = fake_failed();
                    memory_close(r.b.m);
                    r.b.m = NULL;
                    fake_fail_call_always(calls[c], 0, CU_OK);
                } else {
                    bool reached = fake_failed();
                    fake_fail_call_always(calls[c], 0, CU_OK);
                    check_run(&r, reached);
                }
                if (failed_now()) printf("%s from call %u on\n", calls[c], n);
                end(&r.b);
                if (!r.reached || failed_now()) break;
            }
}

/* The fake prints what was not given back. */
static void reset_quietly(void) {
    fflush(stdout);
    int out = dup(1), null = open("/dev/null", O_WRONLY);
    INFERD_CHECK(out >= 0 && null >= 0 && dup2(null, 1) == 1);
    fake_reset();
    fflush(stdout);
    INFERD_CHECK(dup2(out, 1) == 1);
    close(out);
    close(null);
}

/* What cannot be given back stays where it is, and the rest goes. */
static void calls_that_give_back_may_fail(void) {
    note_failures();
    static const char *const calls[] = {"free",           "host_free",    "host_unpin",
                                        "vmm_unreserve",  "vmm_release",  "vmm_unmap",
                                        "stream_destroy", "event_destroy"};
    for (size_t c = 0; c < INFERD_COUNT(calls); c++)
        for (int always = 0; always < 2; always++)
            for (uint32_t n = 1; n < 200; n += 1 + n / (SANITIZED ? 1 : 4)) {
                run r;
                run_once(strcmp(calls[c], "free") == 0 ? 0 : 4, calls[c], n, CU_EFAILED, always,
                         &r);
                bool reached = fake_failed();
                memory_close(r.b.m);
                reached |= fake_failed();
                EXPECT_EQ(fake_violations(), 0);
                if (failed_now()) printf("%s, call %u\n", calls[c], n);
                fake_api()->stream_destroy(r.b.s);
                reset_quietly();
                if (!reached || failed_now()) break;
            }
}

#if !SANITIZED
static void every_allocation_may_fail(void) {
    note_failures();
    for (int always = 0; always < 2; always++)
        for (int64_t n = 0;; n++) {
            run r = {0};
            begin(&r.b, 4);
            allocations_left = n;
            fail_all_then = always;
            live(&r);
            bool reached = allocations_left < 0 || (always && allocations_left == 0);
            allocations_left = -1;
            fail_all_then = false;
            check_run(&r, reached);
            if (failed_now()) printf("allocation %lld\n", (long long)n);
            end(&r.b);
            if (!reached || failed_now()) {
                EXPECT(n > 5);
                break;
            }
        }
}
#endif

/* ---- what only a bug does ---- */

static bool map_aborts(const bench *b, cuda_window *w, const uint32_t *pages, uint32_t n) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        int null = open("/dev/null", O_WRONLY);
        if (null >= 0) dup2(null, 2);
        window_map_cuda(b->m, w, pages, n, NULL);
        _exit(0);
    }
    int status = 0;
    EXPECT(child > 0 && waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void wrong_pages_stop_the_program(void) {
    static const struct {
        uint32_t extent, n, pages[4];
    } cases[] = {
        {2, 3, {4, 5, 6}},        // a part of an extent
        {2, 2, {5, 6}},           // not its beginning
        {2, 2, {5, 4}},           // not in order
        {2, 4, {4, 5, 4, 5}},     // twice
        {2, 2, {8, 9}},           // in another window
        {2, 2, {100000, 100001}}, // of no memory
        {2, 0, {0}},              // none
        {0, 3, {4, 5, 7}},        // no neighbours
    };
    for (size_t i = 0; i < INFERD_COUNT(cases); i++) {
        bench b;
        open_small(&b, cases[i].extent);
        cuda_window *w, *other;
        uint32_t held[] = {8, 9}, fine[] = {4, 5};
        EXPECT_EQ(window_open_cuda(b.m, 4 * PAGE, &w, &b.err), INFERD_OK);
        EXPECT_EQ(window_open_cuda(b.m, 2 * PAGE, &other, &b.err), INFERD_OK);
        EXPECT_EQ(window_map_cuda(b.m, other, held, 2, &b.err), INFERD_OK);
        EXPECT(map_aborts(&b, w, cases[i].pages, cases[i].n));
        EXPECT(!map_aborts(&b, w, fine, 2));
        end(&b);
    }
}

static const test_case cases[] = {
    TEST(every_call_may_fail),           TEST(every_kind_of_call_may_fail_for_ever),
    TEST(calls_that_give_back_may_fail), TEST(wrong_pages_stop_the_program),
#if !SANITIZED
    TEST(every_allocation_may_fail),
#endif
};

TEST_MAIN(cases)
