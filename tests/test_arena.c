/* test_arena.c - pages keep their bytes on the way into windows and home, and everything is home
 * again after a failure. */
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cpu/arena.h"
#include "kernels/machine.h"
#include "inferd/clock.h"
#include "test.h"

enum { N_PAGES = 6 };

static arena *open_arena(uint32_t n_pages) {
    inferd_err err = {0};
    arena *a = NULL;
    EXPECT_EQ(arena_open((uint64_t)n_pages * ARENA_PAGE_BYTES, &a, &err), INFERD_OK);
    EXPECT_STR(err.text, "");
    return a;
}

static unsigned char *home_of(const arena *a, uint32_t page) {
    return arena_base(a) + (size_t)page * ARENA_PAGE_BYTES;
}

/* Every 4 KiB of the page gets a word of its own, and its last byte. */
static void write_page(unsigned char *p, uint32_t seed) {
    for (uint32_t i = 0; i < ARENA_PAGE_BYTES; i += 4096) {
        uint32_t word = seed * 1000003u + i;
        memcpy(p + i, &word, sizeof word);
        p[i + 4095] = (unsigned char)(seed + i / 4096);
    }
}

static bool page_is(const unsigned char *p, uint32_t seed) {
    for (uint32_t i = 0; i < ARENA_PAGE_BYTES; i += 4096) {
        uint32_t word = seed * 1000003u + i;
        if (memcmp(p + i, &word, sizeof word) != 0) return false;
        if (p[i + 4095] != (unsigned char)(seed + i / 4096)) return false;
    }
    return true;
}

/* The thread that touches them runs when nobody else wants to, and beside other tests that is
 * seldom. */
static void wait_until_touched(const arena *a, uint64_t n) {
    for (int i = 0; i < 60000 && arena_n_touched(a) < n; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    EXPECT_EQ(arena_n_touched(a), n);
}

static void write_all(arena *a) {
    wait_until_touched(a, arena_n_pages(a));
    for (uint32_t i = 0; i < arena_n_pages(a); i++) write_page(home_of(a, i), i);
}

static void expect_all_home(const arena *a) {
    for (uint32_t i = 0; i < arena_n_pages(a); i++) {
        EXPECT(arena_is_home(a, i));
        EXPECT(page_is(home_of(a, i), i));
    }
}

/* ---- opening ---- */

static void sizes_round_down_to_pages(void) {
    inferd_err err = {0};
    arena *a;
    EXPECT_EQ(arena_open(3 * ARENA_PAGE_BYTES + ARENA_PAGE_BYTES / 2, &a, &err), INFERD_OK);
    EXPECT_EQ(arena_n_pages(a), 3);
    EXPECT_EQ((uintptr_t)arena_base(a) % ARENA_PAGE_BYTES, 0);
    arena_close(a);
    EXPECT_EQ(arena_open(ARENA_PAGE_BYTES - 1, &a, &err), INFERD_EINVAL);
    EXPECT(a == NULL);
}

static void more_than_the_machine_has_is_refused_with_numbers(void) {
    inferd_err err = {0};
    arena *a;
    char number[32];
    uint64_t machine_bytes = machine_memory_bytes();
    EXPECT_EQ(arena_open(machine_bytes + ARENA_PAGE_BYTES, &a, &err), INFERD_ENOMEM);
    snprintf(number, sizeof number, "%llu MiB", (unsigned long long)(machine_bytes >> 20));
    EXPECT(strstr(err.text, number) != NULL);
}

static void background_thread_touches_every_page_once(void) {
    arena *a = open_arena(N_PAGES);
    wait_until_touched(a, N_PAGES);
    for (uint32_t i = 0; i < N_PAGES; i++) {
        EXPECT(arena_is_home(a, i));
        EXPECT(!arena_touch(a, i));
    }
    EXPECT_EQ(arena_n_touched(a), N_PAGES);
    arena_close(a);
}

/* All there is to touch is touched when the count has stopped. */
static uint64_t touched_at_rest(const arena *a, uint64_t expected) {
    wait_until_touched(a, expected);
    nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    return arena_n_touched(a);
}

/* The page is used in a step that ended long ago. */
static void use(arena *a, uint32_t page) {
    arena_step_begin(a);
    arena_use(a, page);
    arena_step_end(a, 1);
}

/* It used to touch the whole arena: a daemon that served nobody held all the memory it might need
 * one day. */
static void background_thread_stays_a_little_ahead(void) {
    enum { PAGES = ARENA_FIRST_PAGES + 24 };
    arena *a = open_arena(PAGES);
    EXPECT_EQ(touched_at_rest(a, ARENA_FIRST_PAGES), ARENA_FIRST_PAGES);
    uint32_t last = ARENA_FIRST_PAGES - ARENA_AHEAD_PAGES - 1; // as many as must be are ahead of it
    for (uint32_t i = 0; i <= last; i++) use(a, i);
    EXPECT_EQ(touched_at_rest(a, ARENA_FIRST_PAGES), ARENA_FIRST_PAGES);
    use(a, last + 3);
    EXPECT_EQ(touched_at_rest(a, ARENA_FIRST_PAGES + 3), ARENA_FIRST_PAGES + 3);
    EXPECT(arena_is_home(a, ARENA_FIRST_PAGES + 2) && !arena_is_home(a, ARENA_FIRST_PAGES + 3));
    use(a, 1); // used before
    EXPECT_EQ(touched_at_rest(a, ARENA_FIRST_PAGES + 3), ARENA_FIRST_PAGES + 3);
    use(a, PAGES - 1);
    EXPECT_EQ(touched_at_rest(a, PAGES), PAGES);
    EXPECT_EQ(arena_n_warm(a), PAGES);
    arena_close(a);
}

/* It used to take a CPU from the steps, several milliseconds for each page. */
static void background_thread_rests_while_steps_are_computed(void) {
    enum { PAGES = ARENA_FIRST_PAGES + 40, LOOK_US = 20000 };
    arena *a = open_arena(PAGES);
    EXPECT_EQ(touched_at_rest(a, ARENA_FIRST_PAGES), ARENA_FIRST_PAGES);
    uint64_t began_us = clock_now_us();
    for (int i = 0; i < 50; i++) { // steps that follow each other
        arena_step_begin(a);
        arena_use(a, PAGES - 1);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        arena_step_end(a, clock_now_us());
    }
    arena_step_begin(a);
    uint64_t n_touched = arena_n_touched(a), n_looks = (clock_now_us() - began_us) / LOOK_US + 1;
    EXPECT(n_touched <= ARENA_FIRST_PAGES + n_looks); // at most one page each time it looks
    arena_step_end(a, 1);                             // long ago
    wait_until_touched(a, PAGES);
    arena_close(a);
}

static void pages_in_windows_are_not_counted_as_ahead(void) {
    static const uint32_t pages[] = {0, 1, 2, 3, 4};
    inferd_err err = {0};
    arena *a = open_arena(ARENA_FIRST_PAGES + 20);
    window *w;
    EXPECT_EQ(touched_at_rest(a, ARENA_FIRST_PAGES), ARENA_FIRST_PAGES);
    EXPECT_EQ(window_open(a, 5 * ARENA_PAGE_BYTES, &w, &err), INFERD_OK);
    EXPECT_EQ(window_map(a, w, pages, 5, &err), INFERD_OK);
    EXPECT_EQ(touched_at_rest(a, ARENA_FIRST_PAGES + 5), ARENA_FIRST_PAGES + 5);
    window_close(a, w);
    arena_close(a);
}

static void closing_does_not_wait_for_all_pages(void) {
    struct timespec begin, end;
    arena *a = open_arena(1500); // 3 GB would take about a second or more to touch
    use(a, 1499);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    uint64_t n_touched = arena_n_touched(a);
    arena_close(a);
    clock_gettime(CLOCK_MONOTONIC, &end);
    EXPECT(n_touched < 1500);
    EXPECT(end.tv_sec - begin.tv_sec <= 1);
    arena_close(NULL);
}

static void pages_taken_early_are_touched_by_the_taker(void) {
    arena *a = open_arena(64);
    use(a, 63);
    for (uint32_t i = 64; i-- > 0;) { // from the far end, where the background thread is last
        arena_touch(a, i);
        EXPECT(arena_is_home(a, i));
        write_page(home_of(a, i), i);
    }
    wait_until_touched(a, 64);
    expect_all_home(a); // the background thread changed nothing
    arena_close(a);
}

static long n_faults(void) {
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_minflt;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

static void touched_pages_do_not_fault(void) {
#if defined(SANITIZED)
    SKIP("a sanitizer has page faults of its own");
#endif
    arena *a = open_arena(N_PAGES);
    wait_until_touched(a, N_PAGES);
    write_page(home_of(a, 0), 0); // the code and the stack too
    long before = n_faults();
    for (uint32_t i = 1; i < N_PAGES; i++) write_page(home_of(a, i), i);
    EXPECT_EQ(n_faults() - before, 0);
    arena_close(a);
}

/* ---- windows ---- */

static void pages_keep_their_bytes_into_a_window_and_home(void) {
    static const uint32_t pages[] = {4, 1, 5};
    inferd_err err = {0};
    arena *a = open_arena(N_PAGES);
    window *w;
    write_all(a);
    EXPECT_EQ(window_open(a, 3 * ARENA_PAGE_BYTES - 1, &w, &err), INFERD_OK);
    unsigned char *base = window_base(w);
    EXPECT_EQ((uintptr_t)base % ARENA_PAGE_BYTES, 0);
    for (int again = 0; again < 3; again++) {
        EXPECT_EQ(window_map(a, w, pages, 3, &err), INFERD_OK);
        for (uint32_t i = 0; i < 3; i++) {
            EXPECT(page_is(base + (size_t)i * ARENA_PAGE_BYTES, pages[i]));
            EXPECT(arena_is_away(a, pages[i]));
        }
        EXPECT(arena_is_home(a, 0) && page_is(home_of(a, 0), 0));
        EXPECT_EQ(window_unmap(a, w, &err), INFERD_OK);
        expect_all_home(a);
    }
    window_close(a, w);
    arena_close(a);
}

static void bytes_written_in_the_window_come_home(void) {
    inferd_err err = {0};
    arena *a = open_arena(N_PAGES);
    window *w;
    write_all(a);
    uint32_t page = 3;
    EXPECT_EQ(window_open(a, ARENA_PAGE_BYTES, &w, &err), INFERD_OK);
    EXPECT_EQ(window_map(a, w, &page, 1, &err), INFERD_OK);
    write_page(window_base(w), 77);
    window_close(a, w); // unmaps
    EXPECT(page_is(home_of(a, 3), 77));
    arena_close(a);
}

static void two_windows_at_once(void) {
    inferd_err err = {0};
    arena *a = open_arena(N_PAGES);
    window *w1, *w2;
    write_all(a);
    EXPECT_EQ(window_open(a, 2 * ARENA_PAGE_BYTES, &w1, &err), INFERD_OK);
    EXPECT_EQ(window_open(a, 2 * ARENA_PAGE_BYTES, &w2, &err), INFERD_OK);
    EXPECT_EQ(window_map(a, w1, (uint32_t[]){5, 0}, 2, &err), INFERD_OK);
    EXPECT_EQ(window_map(a, w2, (uint32_t[]){1, 2}, 2, &err), INFERD_OK);
    EXPECT(page_is((unsigned char *)window_base(w1) + ARENA_PAGE_BYTES, 0));
    EXPECT(page_is(window_base(w2), 1));
    /* A page of one is not there for the other. */
    EXPECT_EQ(window_unmap(a, w2, &err), INFERD_OK);
    EXPECT_EQ(window_map(a, w2, (uint32_t[]){1, 5}, 2, &err), INFERD_EINVAL);
    EXPECT(arena_is_home(a, 1));
    window_close(a, w1);
    window_close(a, w2);
    window_close(a, NULL);
    expect_all_home(a);
    arena_close(a);
}

static void wrong_lists_move_nothing(void) {
    inferd_err err = {0};
    arena *a = open_arena(N_PAGES);
    window *w;
    write_all(a);
    EXPECT_EQ(window_open(a, 2 * ARENA_PAGE_BYTES, &w, &err), INFERD_OK);
    EXPECT_EQ(window_map(a, w, (uint32_t[]){0, N_PAGES}, 2, &err), INFERD_EINVAL);
    EXPECT_EQ(window_map(a, w, (uint32_t[]){0, 1, 2}, 3, &err), INFERD_EINVAL);
    EXPECT_EQ(window_map(a, w, (uint32_t[]){2, 2}, 2, &err), INFERD_EINVAL);
    expect_all_home(a);
    EXPECT_EQ(window_map(a, w, (uint32_t[]){2}, 1, &err), INFERD_OK);
    EXPECT_EQ(window_map(a, w, (uint32_t[]){3}, 1, &err), INFERD_EINVAL); // not empty
    EXPECT(arena_is_home(a, 3));
    window_close(a, w);
    EXPECT_EQ(window_open(a, 0, &w, &err), INFERD_EINVAL);
    arena_close(a);
}

static void failure_on_the_way_brings_everything_home(void) {
    static const uint32_t pages[] = {4, 1, 5, 0};
    for (uint32_t at = 1; at <= 4; at++) {
        inferd_err err = {0};
        arena *a = open_arena(N_PAGES);
        window *w;
        write_all(a);
        EXPECT_EQ(window_open(a, 4 * ARENA_PAGE_BYTES, &w, &err), INFERD_OK);
        arena_fail_move_at(a, at);
        EXPECT_EQ(window_map(a, w, pages, 4, &err), INFERD_EDEVICE);
        EXPECT(strstr(err.text, "cannot move page") != NULL);
        expect_all_home(a);
        EXPECT_EQ(window_map(a, w, pages, 4, &err), INFERD_OK); // and it can be tried again
        EXPECT(page_is(window_base(w), 4));
        window_close(a, w);
        expect_all_home(a);
        arena_close(a);
    }
}

static void window_that_cannot_go_home_can_try_again(void) {
    static const uint32_t pages[] = {2, 3};
    inferd_err err = {0};
    arena *a = open_arena(N_PAGES);
    window *w;
    write_all(a);
    EXPECT_EQ(window_open(a, 2 * ARENA_PAGE_BYTES, &w, &err), INFERD_OK);
    EXPECT_EQ(window_map(a, w, pages, 2, &err), INFERD_OK);
    arena_fail_move_at(a, 2);
    EXPECT_EQ(window_unmap(a, w, &err), INFERD_EDEVICE);
    EXPECT(arena_is_home(a, 3) && arena_is_away(a, 2));
    EXPECT_EQ(window_unmap(a, w, &err), INFERD_OK);
    expect_all_home(a);
    window_close(a, w);
    arena_close(a);
}

/* A stray access to a hole, or to an empty window, must not read zeros and go on.  The signal that
 * ends a process which reads *p: SIGUSR1 when reading works. */
static int signal_of_reading(const volatile unsigned char *p) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL); // sanitizers have their own handler
        signal(SIGBUS, SIG_DFL);
        signal(SIGUSR1, SIG_DFL);
        (void)*p;
        raise(SIGUSR1);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void holes_and_empty_windows_are_inaccessible(void) {
    inferd_err err = {0};
    arena *a = open_arena(N_PAGES);
    window *w;
    write_all(a);
    EXPECT_EQ(window_open(a, ARENA_PAGE_BYTES, &w, &err), INFERD_OK);
    EXPECT_EQ(signal_of_reading(window_base(w)), SIGSEGV);
    EXPECT_EQ(window_map(a, w, (uint32_t[]){2}, 1, &err), INFERD_OK);
    EXPECT_EQ(signal_of_reading(home_of(a, 2)), SIGSEGV);
    EXPECT_EQ(signal_of_reading(home_of(a, 1)), SIGUSR1);
    EXPECT_EQ(window_unmap(a, w, &err), INFERD_OK);
    EXPECT_EQ(signal_of_reading(window_base(w)), SIGSEGV);
    window_close(a, w);
    arena_close(a);
}

/* Windows move pages that the background thread has not reached, while it runs. */
static void windows_and_the_background_thread_do_not_meet(void) {
    inferd_err err = {0};
    enum { PAGES = 200 };
    arena *a = open_arena(PAGES);
    window *w;
    use(a, PAGES - 1);
    EXPECT_EQ(window_open(a, 4 * ARENA_PAGE_BYTES, &w, &err), INFERD_OK);
    for (uint32_t i = 0; i + 4 <= PAGES; i += 20) {
        uint32_t pages[4] = {PAGES - 1 - i, i, (i + 105) % PAGES, (i + 53) % PAGES}; // all differ
        EXPECT_EQ(window_map(a, w, pages, 4, &err), INFERD_OK);
        for (uint32_t p = 0; p < 4; p++)
            write_page((unsigned char *)window_base(w) + (size_t)p * ARENA_PAGE_BYTES, pages[p]);
        EXPECT_EQ(window_unmap(a, w, &err), INFERD_OK);
        for (uint32_t p = 0; p < 4; p++) EXPECT(page_is(home_of(a, pages[p]), pages[p]));
    }
    wait_until_touched(a, PAGES); // those that were in windows too, and each once
    window_close(a, w);
    arena_close(a);
}

static const test_case cases[] = {
    TEST(sizes_round_down_to_pages),
    TEST(more_than_the_machine_has_is_refused_with_numbers),
    TEST(background_thread_touches_every_page_once),
    TEST(background_thread_stays_a_little_ahead),
    TEST(background_thread_rests_while_steps_are_computed),
    TEST(pages_in_windows_are_not_counted_as_ahead),
    TEST(closing_does_not_wait_for_all_pages),
    TEST(pages_taken_early_are_touched_by_the_taker),
    TEST(touched_pages_do_not_fault),
    TEST(pages_keep_their_bytes_into_a_window_and_home),
    TEST(bytes_written_in_the_window_come_home),
    TEST(two_windows_at_once),
    TEST(wrong_lists_move_nothing),
    TEST(failure_on_the_way_brings_everything_home),
    TEST(window_that_cannot_go_home_can_try_again),
    TEST(holes_and_empty_windows_are_inaccessible),
    TEST(windows_and_the_background_thread_do_not_meet),
};
TEST_MAIN(cases)
