/* threads.c - fork and join with spinning, see threads.h.
 *
 * `generation` counts runs.  The caller writes f and ctx, then raises it (release); a worker that
 * sees it move (acquire) sees f and ctx too.  A worker's n_done increment (release) publishes what
 * it computed to the caller, whose join reads n_done (acquire).
 *
 * Parking must not lose a run: the worker counts itself in n_parked and then looks at generation;
 * the caller raises generation and then looks at n_parked.  Both are sequentially consistent, so at
 * least one of them sees the other. */
#include "cpu/threads.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "cpu/machine.h"
#include "inferd/clock.h"

enum {
    SPIN_US = 150,       // a worker looks this long for the next run before it sleeps
    SLOW_JOIN_US = 1000, // a join this long is a sign of foreign load
    SLOW_JOINS_MAX = 16, // how far the memory of slow joins goes
    SLOW_JOINS_CROWDED = 4,
    LOOKS_PER_CLOCK = 64 // looks at the flag between two looks at the clock
};

typedef struct worker {
    pool *p;
    pthread_t thread;
    uint32_t rank;
} worker;

struct pool {
    uint32_t n_threads;
    uint32_t n_started; // workers that exist
    worker *workers;    // [n_threads - 1]; owned
    bool pinned;
    cpu_set_t cpus;     // the mask found at open
    bool caller_pinned; // then caller is the thread whose mask is to be put back
    pthread_t caller;
    uint32_t slow_joins; // of late, at most SLOW_JOINS_MAX; caller only

    pool_fn *f; // of the current run; written before generation is raised
    void *ctx;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    atomic_bool closing;
    atomic_bool crowded;
    _Alignas(64) atomic_uint generation;
    _Alignas(64) atomic_uint n_parked;
    _Alignas(64) atomic_uint n_done;
    _Alignas(64) atomic_uint next; // of pool_share
};

/* ---- denormals ---- */

#if defined(__x86_64__)
static unsigned denormals_off(void) {
    unsigned mode = _mm_getcsr();
    _mm_setcsr(mode | 0x8040u); // flush to zero, denormals are zero
    return mode;
}
static void denormals_restore(unsigned mode) {
    _mm_setcsr(mode);
}
#elif defined(__aarch64__)
static unsigned long denormals_off(void) {
    unsigned long mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    __asm__ volatile("msr fpcr, %0" : : "r"(mode | 1ul << 24));
    return mode;
}
static void denormals_restore(unsigned long mode) {
    __asm__ volatile("msr fpcr, %0" : : "r"(mode));
}
#else
static unsigned denormals_off(void) {
    return 0;
}
static void denormals_restore(unsigned mode) {
    (void)mode;
}
#endif

/* ---- waiting ---- */

static void relax(pool *p) {
    if (atomic_load_explicit(&p->crowded, memory_order_relaxed)) {
        sched_yield();
        return;
    }
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Wait until generation differs from `seen`, first spinning, then asleep. */
static void wait_for_run(pool *p, unsigned seen) {
    uint64_t begin_us = clock_now_us();
    for (unsigned looks = 1;; looks++) {
        if (atomic_load_explicit(&p->generation, memory_order_acquire) != seen) return;
        relax(p);
        if (looks % LOOKS_PER_CLOCK == 0 && clock_now_us() - begin_us > SPIN_US) break;
    }
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->n_parked, 1);
    while (atomic_load(&p->generation) == seen) pthread_cond_wait(&p->wake, &p->lock);
    atomic_fetch_sub(&p->n_parked, 1);
    pthread_mutex_unlock(&p->lock);
}

static void wait_for_workers(pool *p) {
    unsigned n_workers = p->n_threads - 1;
    uint64_t begin_us = 0;
    bool slow = false;
    for (unsigned looks = 1;; looks++) {
        if (atomic_load_explicit(&p->n_done, memory_order_acquire) == n_workers) break;
        if (slow)
            sched_yield();
        else
            relax(p);
        if (looks % LOOKS_PER_CLOCK != 0) continue;
        uint64_t now_us = clock_now_us();
        if (begin_us == 0) begin_us = now_us;
        slow = now_us - begin_us > SLOW_JOIN_US;
    }
    if (slow && p->slow_joins < SLOW_JOINS_MAX) p->slow_joins++;
    if (!slow && p->slow_joins > 0) p->slow_joins--;
    bool crowded = p->slow_joins >= SLOW_JOINS_CROWDED;
    if (crowded != atomic_load_explicit(&p->crowded, memory_order_relaxed))
        atomic_store_explicit(&p->crowded, crowded, memory_order_relaxed);
}

/* ---- running ---- */

static void raise_generation(pool *p) {
    atomic_fetch_add(&p->generation, 1);
    if (atomic_load(&p->n_parked) == 0) return;
    pthread_mutex_lock(&p->lock);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

void pool_run(pool *p, pool_fn *f, void *ctx) {
    if (p->n_threads > 1) {
        p->f = f;
        p->ctx = ctx;
        atomic_store_explicit(&p->n_done, 0, memory_order_relaxed);
        raise_generation(p);
    }
    unsigned mode = (unsigned)denormals_off();
    f(ctx, 0, p->n_threads);
    denormals_restore(mode);
    if (p->n_threads > 1) wait_for_workers(p);
}

void pool_run_alone(pool *p, pool_fn *f, void *ctx) {
    (void)p;
    unsigned mode = (unsigned)denormals_off();
    f(ctx, 0, 1);
    denormals_restore(mode);
}

typedef struct range_run {
    pool *p;
    range_fn *f;
    const void *job;
    uint32_t n;
} range_run;

static void split_part(void *ctx, uint32_t rank, uint32_t n_ranks) {
    const range_run *r = ctx;
    uint32_t begin = (uint32_t)((uint64_t)r->n * rank / n_ranks);
    uint32_t end = (uint32_t)((uint64_t)r->n * (rank + 1) / n_ranks);
    if (begin < end) r->f(r->job, begin, end);
}

static void share_part(void *ctx, uint32_t rank, uint32_t n_ranks) {
    const range_run *r = ctx;
    (void)rank, (void)n_ranks;
    for (;;) {
        unsigned i = atomic_fetch_add_explicit(&r->p->next, 1, memory_order_relaxed);
        if (i >= r->n) return;
        r->f(r->job, i, i + 1);
    }
}

void pool_split(pool *p, range_fn *f, const void *job, uint32_t n) {
    pool_run(p, split_part, &(range_run){p, f, job, n});
}

void pool_share(pool *p, range_fn *f, const void *job, uint32_t n) {
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    pool_run(p, share_part, &(range_run){p, f, job, n});
}

void pool_alone(pool *p, range_fn *f, const void *job, uint32_t n) {
    pool_run_alone(p, split_part, &(range_run){p, f, job, n});
}

static void *work(void *arg) {
    worker *w = arg;
    pool *p = w->p;
    denormals_off();
    unsigned seen = 0;
    for (;;) {
        wait_for_run(p, seen);
        seen++;
        if (atomic_load_explicit(&p->closing, memory_order_relaxed)) return NULL;
        p->f(p->ctx, w->rank, p->n_threads);
        atomic_fetch_add_explicit(&p->n_done, 1, memory_order_release);
    }
}

/* ---- opening and closing ---- */

/* The rank-th CPU of the mask, alone. */
static void pin(const pool *p, pthread_t thread, uint32_t rank) {
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &p->cpus) || rank-- != 0) continue;
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        pthread_setaffinity_np(thread, sizeof one, &one); // a wish: unpinned is slower, not wrong
        return;
    }
}

inferd_status pool_open(uint32_t n_threads, pool **out, inferd_err *err) {
    *out = NULL;
    if (n_threads > POOL_THREADS_MAX)
        return inferd_fail(err, INFERD_EINVAL, "%u compute threads, at most %u are possible",
                           n_threads, (unsigned)POOL_THREADS_MAX);
    if (n_threads == 0) n_threads = u32_min(machine_cpus_allowed(), POOL_THREADS_MAX);
    pool *p = aligned_alloc(64, (sizeof *p + 63) / 64 * 64);
    if (p == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for the thread pool");
    memset(p, 0, sizeof *p);
    p->n_threads = n_threads;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    p->pinned = sched_getaffinity(0, sizeof p->cpus, &p->cpus) == 0 &&
                (uint32_t)CPU_COUNT(&p->cpus) == n_threads;
    p->workers = calloc(n_threads, sizeof *p->workers); // one too many: never of size 0
    if (p->workers == NULL) {
        pool_close(p);
        return inferd_fail(err, INFERD_ENOMEM, "no memory for %u compute threads", n_threads);
    }
    for (uint32_t i = 0; i + 1 < n_threads; i++) {
        worker *w = &p->workers[i];
        *w = (worker){.p = p, .rank = i + 1};
        int e = pthread_create(&w->thread, NULL, work, w);
        if (e != 0) {
            pool_close(p);
            return inferd_fail(err, INFERD_ENOMEM, "cannot start compute thread %u of %u: %s",
                               i + 1, n_threads, strerror(e));
        }
        p->n_started++;
        if (p->pinned) pin(p, w->thread, w->rank);
    }
    *out = p;
    return INFERD_OK;
}

void pool_close(pool *p) {
    if (p == NULL) return;
    atomic_store_explicit(&p->closing, true, memory_order_relaxed);
    raise_generation(p);
    for (uint32_t i = 0; i < p->n_started; i++) pthread_join(p->workers[i].thread, NULL);
    if (p->caller_pinned && pthread_equal(p->caller, pthread_self()))
        pthread_setaffinity_np(p->caller, sizeof p->cpus, &p->cpus);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    free(p->workers);
    free(p);
}

uint32_t pool_n_threads(const pool *p) {
    return p->n_threads;
}

void pool_pin_caller(pool *p) {
    if (!p->pinned || (p->caller_pinned && pthread_equal(p->caller, pthread_self()))) return;
    p->caller = pthread_self();
    p->caller_pinned = true;
    pin(p, p->caller, 0);
}

typedef struct each_job {
    void (*f)(void *ctx, uint32_t i);
    void *ctx;
} each_job;

static void run_each(const void *job, uint32_t begin, uint32_t end) {
    const each_job *j = job;
    for (uint32_t i = begin; i < end; i++) j->f(j->ctx, i);
}

void pool_each(pool *p, uint32_t n, void (*f)(void *ctx, uint32_t i), void *ctx) {
    each_job job = {f, ctx};
    if (n == 1)
        pool_alone(p, run_each, &job, n);
    else if (n > 1)
        pool_share(p, run_each, &job, n);
}

bool pool_is_crowded(const pool *p) {
    return atomic_load_explicit(&p->crowded, memory_order_relaxed);
}
