/* arena.c - reserving, touching and moving pages, see arena.h.
 *
 * A page moves with MREMAP_DONTUNMAP: the entries move, the old range stays mapped and empty, and
 * is then made inaccessible.  Without that flag (Linux before 5.7) the old range is free for a
 * moment, and any thread's mmap could take it.  There the hole is filled again at once and without
 * replacing anything; if another mapping was faster, the move is undone and reported.
 *
 * Both ranges are aligned to 2 MiB, so a huge page moves as one entry.  A moved page keeps its page
 * offset, and neighbours in a window are rarely neighbours in the arena: count one or two kernel
 * mappings per moved page against vm.max_map_count (65530 by default, 64 GiB of weights). */
#include "cpu/arena.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "kernels/machine.h"
#include "inferd/clock.h"

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

enum { UNTOUCHED, TOUCHING, HOME, AWAY };
enum { SMALL_PAGE_BYTES = 4096 }; // the finest grain a first touch may have
enum {
    BUSY_US = 10000, // after a step the next is likely to follow
    LOOK_US = 20000, // while steps follow, the interval between two checks for time to touch
    REST_US_MAX = 60000000
};
#define IN_STEP UINT64_MAX

/* Reserved addresses, aligned to pages of the arena. */
typedef struct range {
    unsigned char *base;
    size_t n_bytes;
    void *mapped; // for munmap
    size_t mapped_bytes;
} range;

struct arena {
    range r;
    uint32_t n_pages;
    atomic_uchar *states; // [n_pages]; owned
    atomic_ullong n_touched;
    uint32_t fail_move_at;
    bool can_leave_hole; // MREMAP_DONTUNMAP works here

    uint32_t n_used; // pages up to the last one that was ever in use
    uint32_t n_away; // in windows
    pthread_t toucher;
    bool has_toucher;
    pthread_mutex_t lock;
    pthread_cond_t changed; // goal or closing; waits on CLOCK_MONOTONIC
    atomic_uint goal;       // pages [0, goal) are to be touched; only grows
    atomic_uint n_warm;     // of those the toucher is done with [0, n_warm)
    atomic_ullong step_us;  // when the last step ended; IN_STEP: it is being computed
    atomic_bool asleep;     // the toucher waits without a time
    atomic_bool closing;
};

struct window {
    range r;
    uint32_t *pages; // [r.n_bytes / page], the first n_pages are here; owned
    uint32_t n_pages;
};

/* ---- addresses ---- */

static inferd_status reserve(range *r, size_t n_bytes, const char *what, inferd_err *err) {
    size_t mapped_bytes = n_bytes + ARENA_PAGE_BYTES;
    void *p =
        mmap(NULL, mapped_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return inferd_fail(err, INFERD_ENOMEM, "cannot reserve %zu MiB of addresses for %s: %s",
                           mapped_bytes >> 20, what, strerror(errno));
    uintptr_t at = ((uintptr_t)p + ARENA_PAGE_BYTES - 1) / ARENA_PAGE_BYTES * ARENA_PAGE_BYTES;
    *r = (range){(unsigned char *)p + (at - (uintptr_t)p), n_bytes, p, mapped_bytes};
    return INFERD_OK;
}

static void unreserve(range *r) {
    if (r->mapped != NULL) munmap(r->mapped, r->mapped_bytes);
    *r = (range){0};
}

static unsigned char *page_at(const range *r, uint32_t page) {
    return r->base + (size_t)page * ARENA_PAGE_BYTES;
}

/* ---- touching ---- */

bool arena_touch(arena *a, uint32_t page) {
    atomic_uchar *state = &a->states[page];
    unsigned char expected = UNTOUCHED;
    if (atomic_compare_exchange_strong_explicit(state, &expected, TOUCHING, memory_order_acquire,
                                                memory_order_acquire)) {
        volatile unsigned char *p = page_at(&a->r, page);
        for (size_t i = 0; i < ARENA_PAGE_BYTES; i += SMALL_PAGE_BYTES) p[i] = 0;
        atomic_store_explicit(state, HOME, memory_order_release);
        atomic_fetch_add_explicit(&a->n_touched, 1, memory_order_release);
        return true;
    }
    if (expected != TOUCHING) return false;
    /* Another thread touches it, perhaps the background thread, which runs only on idle CPUs: sleep
     * so that one is idle. */
    while (atomic_load_explicit(state, memory_order_acquire) == TOUCHING)
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    return true;
}

/* Raise the goal for the pages in use now: pages [0, goal) are to be touched. */
static void raise_goal(arena *a) {
    uint64_t ahead = (uint64_t)a->n_used + ARENA_AHEAD_PAGES;
    uint64_t first = (uint64_t)a->n_away + ARENA_FIRST_PAGES;
    uint32_t goal = (uint32_t)size_min(size_max(ahead, first), a->n_pages);
    if (goal > atomic_load_explicit(&a->goal, memory_order_relaxed)) atomic_store(&a->goal, goal);
}

void arena_use(arena *a, uint32_t page) {
    if (page < a->n_used) return;
    a->n_used = page + 1;
    raise_goal(a);
}

/* Wake the toucher if it sleeps and there are pages to touch. */
static void wake_toucher(arena *a) {
    if (arena_n_warm(a) >= atomic_load(&a->goal) || !atomic_load(&a->asleep)) return;
    pthread_mutex_lock(&a->lock);
    atomic_store(&a->asleep, false);
    pthread_cond_signal(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

void arena_step_begin(arena *a) {
    atomic_store(&a->step_us, IN_STEP);
}

void arena_step_end(arena *a, uint64_t now_us) {
    atomic_store(&a->step_us, now_us);
    wake_toucher(a);
}

static bool is_busy(const arena *a, uint64_t now_us) {
    uint64_t step_us = atomic_load(&a->step_us);
    return step_us == IN_STEP || (step_us > 0 && now_us < step_us + BUSY_US);
}

static bool is_closing(const arena *a) {
    return atomic_load_explicit(&a->closing, memory_order_relaxed);
}

/* Wait until `page` is to be touched, while steps are computed not before `rested_us`; or closing.
 * As with the workers of threads.c no wake is lost: the toucher sets `asleep` and then looks at the
 * goal, the engine writes the goal and then looks at `asleep`. */
static void wait_until_due(arena *a, uint32_t page, uint64_t rested_us) {
    pthread_mutex_lock(&a->lock);
    while (!is_closing(a)) {
        atomic_store(&a->asleep, true);
        if (page < atomic_load(&a->goal)) atomic_store(&a->asleep, false);
        while (atomic_load(&a->asleep) && !is_closing(a)) pthread_cond_wait(&a->changed, &a->lock);
        uint64_t now_us = clock_now_us(), until_us = now_us + LOOK_US;
        if (!is_busy(a, now_us) || now_us >= rested_us) break;
        struct timespec until = {(time_t)(until_us / 1000000u),
                                 (long)(until_us % 1000000u * 1000u)};
        pthread_cond_timedwait(&a->changed, &a->lock, &until);
    }
    pthread_mutex_unlock(&a->lock);
}

static void *touch_ahead(void *arg) {
    arena *a = arg;
    struct sched_param none = {0};
    pthread_setschedparam(pthread_self(), SCHED_IDLE, &none); // a failure is harmless
    uint64_t rested_us = 0;
    for (uint32_t page = 0; page < a->n_pages; page++) {
        wait_until_due(a, page, rested_us);
        if (is_closing(a)) break;
        uint64_t began_us = clock_now_us();
        arena_touch(a, page);
        uint64_t end_us = clock_now_us(), took_us = end_us - began_us;
        rested_us = end_us + size_min(took_us * took_us / 2, REST_US_MAX);
        atomic_store_explicit(&a->n_warm, page + 1, memory_order_release);
    }
    return NULL;
}

/* ---- opening ---- */

inferd_status arena_open(uint64_t memory_bytes, arena **out, inferd_err *err) {
    *out = NULL;
    uint64_t machine_bytes = machine_memory_bytes();
    uint64_t n_pages = memory_bytes / ARENA_PAGE_BYTES;
    if (n_pages == 0)
        return inferd_fail(err, INFERD_EINVAL, "an arena of %llu bytes has no page of 2 MiB",
                           (unsigned long long)memory_bytes);
    if (machine_bytes != 0 && memory_bytes > machine_bytes)
        return inferd_fail(
            err, INFERD_ENOMEM, "an arena of %llu MiB was asked for, the machine has %llu MiB",
            (unsigned long long)(memory_bytes >> 20), (unsigned long long)(machine_bytes >> 20));
    if (n_pages > INT32_MAX)
        return inferd_fail(err, INFERD_EINVAL, "an arena of %llu pages, at most %d are possible",
                           (unsigned long long)n_pages, INT32_MAX);

    arena *a = calloc(1, sizeof *a);
    if (a == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for the arena");
    a->n_pages = (uint32_t)n_pages;
    a->can_leave_hole = true;
    pthread_mutex_init(&a->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&a->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    inferd_status s = reserve(&a->r, (size_t)n_pages * ARENA_PAGE_BYTES, "the arena", err);
    if (s != INFERD_OK) goto fail;
    a->states = calloc(a->n_pages, sizeof *a->states); // all UNTOUCHED
    if (a->states == NULL) {
        s = inferd_fail(err, INFERD_ENOMEM, "no memory for %u page states", a->n_pages);
        goto fail;
    }
    if (mprotect(a->r.base, a->r.n_bytes, PROT_READ | PROT_WRITE) != 0) {
        s = inferd_fail(err, INFERD_ENOMEM, "cannot use %zu MiB of memory for the arena: %s",
                        a->r.n_bytes >> 20, strerror(errno));
        goto fail;
    }
    madvise(a->r.base, a->r.n_bytes, MADV_HUGEPAGE); // small pages are slower, not wrong
    madvise(a->r.base, a->r.n_bytes, MADV_DONTDUMP);
    raise_goal(a);
    int e = a->n_pages == 1 ? 0 : pthread_create(&a->toucher, NULL, touch_ahead, a);
    if (e != 0) {
        s = inferd_fail(err, INFERD_ENOMEM, "cannot start the thread that touches pages: %s",
                        strerror(e));
        goto fail;
    }
    a->has_toucher = a->n_pages > 1;
    if (a->has_toucher) pthread_setname_np(a->toucher, "inferd-pages");
    *out = a;
    return INFERD_OK;

fail:
    arena_close(a);
    return s;
}

void arena_close(arena *a) {
    if (a == NULL) return;
    pthread_mutex_lock(&a->lock);
    atomic_store_explicit(&a->closing, true, memory_order_relaxed);
    pthread_cond_signal(&a->changed);
    pthread_mutex_unlock(&a->lock);
    if (a->has_toucher) pthread_join(a->toucher, NULL);
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->lock);
    unreserve(&a->r);
    free(a->states);
    free(a);
}

uint32_t arena_n_pages(const arena *a) {
    return a->n_pages;
}

unsigned char *arena_base(const arena *a) {
    return a->r.base;
}

uint64_t arena_n_touched(const arena *a) {
    return atomic_load_explicit(&a->n_touched, memory_order_acquire);
}

uint32_t arena_n_warm(const arena *a) {
    return atomic_load_explicit(&a->n_warm, memory_order_acquire);
}

bool arena_is_home(const arena *a, uint32_t page) {
    return atomic_load_explicit(&a->states[page], memory_order_acquire) == HOME;
}

bool arena_is_away(const arena *a, uint32_t page) {
    return atomic_load_explicit(&a->states[page], memory_order_acquire) == AWAY;
}

/* ---- moving ---- */

void arena_fail_move_at(arena *a, uint32_t n_moves) {
    a->fail_move_at = n_moves;
}

/* Before Linux 5.7: the old range is free until it is filled again. */
static int move_and_fill(unsigned char *from, unsigned char *to) {
    if (mremap(from, ARENA_PAGE_BYTES, ARENA_PAGE_BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, to) ==
        MAP_FAILED)
        return errno;
    void *hole = mmap(from, ARENA_PAGE_BYTES, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (hole == from) return 0;
    if (hole != MAP_FAILED) munmap(hole, ARENA_PAGE_BYTES);
    return EEXIST;
}

/* The page at `from` is then at `to`, and `from` is an inaccessible hole.  0 or an errno. */
static int move_page(arena *a, unsigned char *from, unsigned char *to) {
    if (a->fail_move_at > 0 && --a->fail_move_at == 0) return ENOMEM;
    if (a->can_leave_hole) {
        if (mremap(from, ARENA_PAGE_BYTES, ARENA_PAGE_BYTES,
                   MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, to) != MAP_FAILED) {
            mprotect(from, ARENA_PAGE_BYTES, PROT_NONE); // may fail: the page has moved anyway
            return 0;
        }
        if (errno != EINVAL) return errno;
        a->can_leave_hole = false;
    }
    return move_and_fill(from, to);
}

inferd_status window_open(arena *a, size_t n_bytes, window **out, inferd_err *err) {
    (void)a;
    *out = NULL;
    if (n_bytes == 0 || n_bytes > SIZE_MAX / 4)
        return inferd_fail(err, INFERD_EINVAL, "a window of %zu bytes", n_bytes);
    size_t n_pages = (n_bytes + ARENA_PAGE_BYTES - 1) / ARENA_PAGE_BYTES;
    window *w = calloc(1, sizeof *w);
    if (w == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for a window");
    w->pages = calloc(n_pages, sizeof *w->pages);
    inferd_status s = w->pages != NULL ? reserve(&w->r, n_pages * ARENA_PAGE_BYTES, "a window", err)
                                       : inferd_fail(err, INFERD_ENOMEM, "no memory for a window");
    if (s != INFERD_OK) {
        free(w->pages);
        free(w);
        return s;
    }
    *out = w;
    return INFERD_OK;
}

void window_close(arena *a, window *w) {
    if (w == NULL) return;
    /* A page that cannot go home stays in the window; its addresses are then never reused. */
    if (window_unmap(a, w, NULL) == INFERD_OK) unreserve(&w->r);
    free(w->pages);
    free(w);
}

void *window_base(const window *w) {
    return w->r.base;
}

/* Check all pages before any is moved. */
static inferd_status check_pages(arena *a, const window *w, const uint32_t *pages, uint32_t n_pages,
                                 inferd_err *err) {
    size_t room = w->r.n_bytes / ARENA_PAGE_BYTES - w->n_pages;
    if (n_pages > room)
        return inferd_fail(err, INFERD_EINVAL, "%u pages for a window of %zu", n_pages, room);
    for (uint32_t i = 0; i < n_pages; i++) {
        if (pages[i] >= a->n_pages)
            return inferd_fail(err, INFERD_EINVAL, "page %u of an arena of %u", pages[i],
                               a->n_pages);
        if (arena_is_away(a, pages[i]))
            return inferd_fail(err, INFERD_EINVAL, "page %u is in a window already", pages[i]);
    }
    return INFERD_OK;
}

/* The pages behind the first n_left go home, the last one first. */
static inferd_status send_home(arena *a, window *w, uint32_t n_left, inferd_err *err) {
    while (w->n_pages > n_left) {
        uint32_t i = w->n_pages - 1, page = w->pages[i];
        int e = move_page(a, page_at(&w->r, i), page_at(&a->r, page));
        if (e != 0)
            return inferd_fail(err, INFERD_EDEVICE, "cannot move page %u back into the arena: %s",
                               page, strerror(e));
        atomic_store_explicit(&a->states[page], HOME, memory_order_release);
        w->n_pages--;
        a->n_away--;
    }
    return INFERD_OK;
}

inferd_status window_grow(arena *a, window *w, const uint32_t *pages, uint32_t n_pages,
                          inferd_err *err) {
    uint32_t n_before = w->n_pages;
    inferd_status s = check_pages(a, w, pages, n_pages, err);
    if (s != INFERD_OK) return s;
    for (uint32_t i = 0; i < n_pages; i++) {
        /* The background thread must not touch the hole, so a page is touched before it leaves. */
        arena_touch(a, pages[i]);
        int e = arena_is_away(a, pages[i])
                    ? EINVAL // named twice in the list
                    : move_page(a, page_at(&a->r, pages[i]), page_at(&w->r, w->n_pages));
        if (e != 0) {
            s = inferd_fail(err, e == EINVAL ? INFERD_EINVAL : INFERD_EDEVICE,
                            "cannot move page %u into a window (%u of %u): %s", pages[i], i + 1,
                            n_pages, strerror(e));
            inferd_err home_err = {0};
            if (send_home(a, w, n_before, &home_err) != INFERD_OK) {
                inferd_context(&home_err, "%s", err != NULL ? err->text : "");
                return inferd_fail(err, home_err.status, "%s", home_err.text);
            }
            return s;
        }
        atomic_store_explicit(&a->states[pages[i]], AWAY, memory_order_release);
        w->pages[w->n_pages++] = pages[i];
        a->n_away++;
        a->n_used = u32_max(a->n_used, pages[i] + 1);
    }
    raise_goal(a);
    wake_toucher(a);
    return INFERD_OK;
}

inferd_status window_map(arena *a, window *w, const uint32_t *pages, uint32_t n_pages,
                         inferd_err *err) {
    if (w->n_pages != 0)
        return inferd_fail(err, INFERD_EINVAL, "the window has %u pages already", w->n_pages);
    return window_grow(a, w, pages, n_pages, err);
}

inferd_status window_unmap(arena *a, window *w, inferd_err *err) {
    return send_home(a, w, 0, err);
}
