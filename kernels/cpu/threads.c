/* threads.c - fork, barriers and join with spinning, see threads.h.
 *
 * `run` says which run it is and how many ranks are in it.  The caller writes f and ctx, then `run`
 * (release); a worker that sees a new one with its rank in it (acquire) sees f and ctx too.  A
 * worker that is not in it reads nothing else: the caller does not wait for it.  A worker's n_done
 * increment (release) publishes its results to the caller, which reads n_done (acquire) to join.
 *
 * Each run leaves every worker in it a ticket, which is taken once: by the worker, which then
 * computes and is waited for, or, when work is shared and none is left, by the caller, which goes
 * on without that worker: it is asleep, or another process has its CPU, perhaps for milliseconds.
 *
 * A barrier counts arrivals over the whole run: barrier number b of n ranks is passed when
 * `arrived` has reached b * n, so it needs no reset, and a rank may be at the next one while
 * another still leaves this one.
 *
 * Falling asleep must not lose a run: the worker sets `asleep` and then looks at `run`; the caller
 * writes `run` and then looks at `asleep`.  Both are sequentially consistent, so at least one of
 * them sees the other. */
#include "cpu/threads.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "kernels/machine.h"
#include "inferd/clock.h"

enum {
    SPIN_US = 150,          // a worker looks this long for the next run before it sleeps
    LOOKS_PER_CLOCK = 64,   // looks at the flag between two looks at the clock
    LOOKS_TO_YIELD = 1024,  // some ten microseconds: then the awaited rank may need this CPU
    LINES_PER_LOOK = 4,     // fetched while waiting
    FETCH_BYTES = 96 << 10, // of the next phase that reads much; a part of L2

    WINDOW_US = 20000,     // of rows of phases, judged together
    WAKE_US = 100,         // that a sleeping worker may need to begin; does not count as time off
    RETRY_MIN_US = 50000,  // calm time before a rank that was left out is tried again
    RETRY_MAX_US = 1600000 // and at most, after failed tries
};

enum { RANK_BITS = 16 }; // of pool.run, for the number of ranks

typedef struct worker {
    tpool *p;
    pthread_t thread;
    uint32_t rank;
    pthread_cond_t wake;
    _Alignas(64) atomic_bool asleep;
    atomic_ullong ticket; // the run, until the worker or the caller has taken it
} worker;

struct tpool {
    uint32_t n_threads;
    uint32_t n_started; // workers that exist
    worker *workers;    // [n_threads - 1]; owned
    bool pinned;        // one thread to a CPU
    bool bound;         // to the list of CPUs that was given
    cpu_set_t cpus;     // that list, or the mask found at open
    cpu_set_t found;    // the mask found at open: restored for the caller
    bool caller_pinned; // then `caller` is the thread that gets its mask back
    pthread_t caller;

    uint32_t n_active;       // ranks that compute rows of phases; caller only, as all of these
    uint64_t run_us, off_us; // of this window
    bool was_disturbed;      // the window before this one
    uint64_t calm_us;        // since a rank was left out, or since all are back
    uint64_t retry_us;       // calm time before the next try
    uint64_t *rank_off_us;   // [n_threads] of the last row, by rank; owned

    uint64_t n_runs;
    tpool_fn *f; // of the current run; written before `run` is
    void *ctx;
    pthread_mutex_t lock;
    atomic_bool closing;
    _Alignas(64) atomic_ullong run; // number of the run << RANK_BITS | ranks in it
    _Alignas(64) atomic_uint n_done;
    _Alignas(64) atomic_uint arrived; // at barriers of this run
    _Alignas(64) atomic_uint next[2]; // of PHASE_SHARE, used alternately
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

static void relax(unsigned looks) {
    if (looks >= LOOKS_TO_YIELD) {
        sched_yield();
        return;
    }
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static bool is_called(const worker *w, uint64_t run, uint64_t seen) {
    return run != seen && w->rank < (run & ((1u << RANK_BITS) - 1));
}

/* Wait for a run after `seen` that this rank is in, first spinning, then asleep. */
static uint64_t wait_for_run(worker *w, uint64_t seen) {
    tpool *p = w->p;
    uint64_t begin_us = clock_now_us(), run;
    for (unsigned looks = 1;; looks++) {
        run = atomic_load_explicit(&p->run, memory_order_acquire);
        if (is_called(w, run, seen)) return run;
        relax(looks);
        if (looks % LOOKS_PER_CLOCK == 0 && clock_now_us() - begin_us > SPIN_US) break;
    }
    pthread_mutex_lock(&p->lock);
    atomic_store(&w->asleep, true);
    while (run = atomic_load(&p->run), !is_called(w, run, seen))
        pthread_cond_wait(&w->wake, &p->lock);
    atomic_store(&w->asleep, false);
    pthread_mutex_unlock(&p->lock);
    return run;
}

/* Data that a rank may prefetch while it waits. */
typedef struct ahead {
    const unsigned char *at, *end;
} ahead;

static void fetch_some(ahead *a) {
    for (int i = 0; i < LINES_PER_LOOK && a->at < a->end; i++, a->at += 64)
        __builtin_prefetch(a->at, 0, 2);
}

static void barrier(tpool *p, unsigned target, ahead *a) {
    if (atomic_fetch_add_explicit(&p->arrived, 1, memory_order_acq_rel) + 1 == target) return;
    for (unsigned looks = 1;; looks++) { // those that left may be at the next barrier already
        if (atomic_load_explicit(&p->arrived, memory_order_acquire) >= target) return;
        if (a->at < a->end)
            fetch_some(a);
        else
            relax(looks);
    }
}

/* ---- running ---- */

static bool take_ticket(worker *w, uint64_t run) {
    unsigned long long expected = run;
    return atomic_compare_exchange_strong_explicit(&w->ticket, &expected, 0, memory_order_acq_rel,
                                                   memory_order_acquire);
}

static void begin_run(tpool *p, tpool_fn *f, void *ctx, uint32_t n_ranks) {
    uint64_t run = ++p->n_runs << RANK_BITS | n_ranks;
    p->f = f;
    p->ctx = ctx;
    atomic_store_explicit(&p->n_done, 0, memory_order_relaxed);
    atomic_store_explicit(&p->arrived, 0, memory_order_relaxed);
    atomic_store_explicit(&p->next[0], 0, memory_order_relaxed);
    atomic_store_explicit(&p->next[1], 0, memory_order_relaxed);
    for (uint32_t i = 0; i + 1 < n_ranks; i++)
        atomic_store_explicit(&p->workers[i].ticket, run, memory_order_relaxed);
    atomic_store(&p->run, run);
    for (uint32_t i = 0; i + 1 < n_ranks; i++) {
        worker *w = &p->workers[i];
        if (!atomic_load(&w->asleep)) continue;
        pthread_mutex_lock(&p->lock);
        pthread_cond_signal(&w->wake);
        pthread_mutex_unlock(&p->lock);
    }
}

/* f on the first n_ranks ranks; `all` of them, or those that begin before the caller is done. */
static void run_on(tpool *p, tpool_fn *f, void *ctx, uint32_t n_ranks, bool all) {
    uint32_t n_wanted = n_ranks - 1;
    if (n_ranks > 1) begin_run(p, f, ctx, n_ranks);
    unsigned long mode = denormals_off();
    f(ctx, 0, n_ranks);
    denormals_restore(mode);
    for (uint32_t i = 0; !all && i + 1 < n_ranks; i++)
        if (take_ticket(&p->workers[i], p->n_runs << RANK_BITS | n_ranks)) n_wanted--;
    if (n_wanted == 0) return;
    for (unsigned looks = 1;; looks++) {
        if (atomic_load_explicit(&p->n_done, memory_order_acquire) == n_wanted) return;
        relax(looks);
    }
}

void tpool_run(tpool *p, tpool_fn *f, void *ctx) {
    run_on(p, f, ctx, p->n_threads, true);
}

void tpool_run_alone(tpool *p, tpool_fn *f, void *ctx) {
    run_on(p, f, ctx, 1, true);
}

static void *work(void *arg) {
    worker *w = arg;
    tpool *p = w->p;
    denormals_off();
    uint64_t seen = 0;
    for (;;) {
        seen = wait_for_run(w, seen);
        if (atomic_load_explicit(&p->closing, memory_order_relaxed)) return NULL;
        if (!take_ticket(w, seen)) continue;
        p->f(p->ctx, w->rank, (uint32_t)(seen & ((1u << RANK_BITS) - 1)));
        atomic_fetch_add_explicit(&p->n_done, 1, memory_order_release);
    }
}

/* ---- rows of phases ---- */

typedef struct row {
    tpool *p;
    const tpool_phase *phases;
    uint32_t n_phases;
    uint64_t began_us; // of tpool_phases
} row;

static void do_split(const tpool_phase *f, uint32_t rank, uint32_t n_ranks) {
    uint32_t begin = (uint32_t)((uint64_t)f->n * rank / n_ranks);
    uint32_t end = (uint32_t)((uint64_t)f->n * (rank + 1) / n_ranks);
    if (begin < end) f->f(f->job, begin, end);
}

static void do_share(const tpool_phase *f, uint32_t n_ranks, atomic_uint *next) {
    if (n_ranks == 1) {
        for (uint32_t i = 0; i < f->n; i++) f->f(f->job, i, i + 1);
        return;
    }
    for (;;) {
        unsigned i = atomic_fetch_add_explicit(next, 1, memory_order_relaxed);
        if (i >= f->n) return;
        f->f(f->job, i, i + 1);
    }
}

/* Between two phases. */
static bool needs_barrier(phase_how before, phase_how after) {
    return before != PHASE_EACH && !(before == PHASE_ALONE && after == PHASE_ALONE);
}

/* Where the rank's part of a phase begins. */
static ahead reads_of(const tpool_phase *f, uint32_t rank, uint32_t n_ranks) {
    uint32_t unit = (uint32_t)((uint64_t)f->n * rank / n_ranks);
    for (uint32_t i = 0; i < f->reads->n_parts; i++) {
        uint32_t n_units = f->reads->parts[i].n_units;
        if (unit < n_units) {
            size_t each = f->reads->parts[i].unit_bytes, left = (n_units - unit) * each;
            const unsigned char *at = f->reads->parts[i].data + unit * each;
            return (ahead){at, at + size_min(left, FETCH_BYTES)};
        }
        unit -= n_units;
    }
    return (ahead){0};
}

static void run_row(void *ctx, uint32_t rank, uint32_t n_ranks) {
    const row *r = ctx;
    tpool *p = r->p;
    unsigned n_barriers = 0;
    uint32_t n_looked = 0; // number of phases with examined reads
    ahead next = {0};
    for (uint32_t i = 0; i < r->n_phases; i++) {
        const tpool_phase *f = &r->phases[i];
        if (i > 0 && n_ranks > 1 && needs_barrier(f[-1].how, f->how)) {
            if (n_looked <= i) {
                for (n_looked = i; n_looked < r->n_phases && r->phases[n_looked].reads == NULL;)
                    n_looked++;
                if (n_looked < r->n_phases) next = reads_of(&r->phases[n_looked], rank, n_ranks);
                n_looked++;
            }
            barrier(p, ++n_barriers * n_ranks, &next);
            /* All have left the phase before; its counter is next used after one more barrier. */
            if (rank == 0 && f[-1].how == PHASE_SHARE)
                atomic_store_explicit(&p->next[(n_barriers - 1) % 2], 0, memory_order_relaxed);
        }
        switch (f->how) {
        case PHASE_SPLIT:
            do_split(f, rank, n_ranks);
            break;
        case PHASE_SHARE:
            do_share(f, n_ranks, &p->next[n_barriers % 2]);
            break;
        case PHASE_ALONE:
            if (rank == 0) do_split(f, 0, 1);
            break;
        case PHASE_EACH:
            f->f(f->job, rank, rank + 1);
            break;
        }
    }
}

static void run_single(tpool *p, phase_how how, range_fn *f, const void *job, uint32_t n) {
    if (n == 0) return;
    tpool_phase phase = {f, job, n, how, NULL};
    /* With shared work, all is done or taken when the caller returns: no other rank need begin. */
    run_on(p, run_row, &(row){p, &phase, 1, 0}, how == PHASE_ALONE ? 1 : p->n_active,
           how != PHASE_SHARE);
}

void tpool_split(tpool *p, range_fn *f, const void *job, uint32_t n) {
    run_single(p, PHASE_SPLIT, f, job, n);
}

void tpool_share(tpool *p, range_fn *f, const void *job, uint32_t n) {
    run_single(p, PHASE_SHARE, f, job, n);
}

void tpool_alone(tpool *p, range_fn *f, const void *job, uint32_t n) {
    run_single(p, PHASE_ALONE, f, job, n);
}

typedef struct each_job {
    void (*f)(void *ctx, uint32_t i);
    void *ctx;
} each_job;

static void run_each(const void *job, uint32_t begin, uint32_t end) {
    const each_job *j = job;
    for (uint32_t i = begin; i < end; i++) j->f(j->ctx, i);
}

void tpool_each(tpool *p, uint32_t n, void (*f)(void *ctx, uint32_t i), void *ctx) {
    each_job job = {f, ctx};
    run_single(p, n == 1 ? PHASE_ALONE : PHASE_SHARE, run_each, &job, n);
}

/* ---- foreign load ---- */

static uint64_t thread_cpu_us(void) {
    struct timespec t;
    if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) != 0) return 0;
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

/* Waits spin, so the CPU time of a rank that always had its CPU equals the elapsed time. */
static void run_watched(void *ctx, uint32_t rank, uint32_t n_ranks) {
    const row *r = ctx;
    uint64_t cpu_us = thread_cpu_us();
    run_row(ctx, rank, n_ranks);
    cpu_us = thread_cpu_us() - cpu_us + WAKE_US;
    uint64_t passed_us = clock_now_us() - r->began_us;
    r->p->rank_off_us[rank] = passed_us > cpu_us ? passed_us - cpu_us : 0;
}

void tpool_phases(tpool *p, const tpool_phase *phases, uint32_t n_phases) {
    row r = {p, phases, n_phases, 0};
    if (p->n_threads == 1) {
        run_on(p, run_row, &r, 1, true);
        return;
    }
    r.began_us = clock_now_us();
    run_on(p, run_watched, &r, p->n_active, true);
    uint64_t off_us = 0;
    for (uint32_t i = 0; i < p->n_active; i++) off_us += p->rank_off_us[i];
    tpool_judge(p, clock_now_us() - r.began_us, off_us);
}

static void pin_all(tpool *p, bool to_one_cpu);

static void set_active(tpool *p, uint32_t n) {
    bool all_before = p->n_active == p->n_threads, all = n == p->n_threads;
    p->n_active = n;
    p->calm_us = 0;
    if (all != all_before) pin_all(p, all);
}

void tpool_judge(tpool *p, uint64_t run_us, uint64_t off_us) {
    p->run_us += run_us;
    p->off_us += off_us;
    uint64_t window_us = p->run_us > WINDOW_US ? p->run_us : WINDOW_US;
    /* n ranks that wait for a rank that is off its CPU a part s of the time compute like n (1 - s)
     * ranks.  One rank fewer is better when s is more than 1 / n, and a little earlier because
     * memory is shared.  A small part is ignored: the kernel or our other threads use that much. */
    bool disturbed = p->off_us > window_us / u32_min(p->n_active + 1, 8);
    if (!disturbed && p->run_us < WINDOW_US) return;
    bool twice = disturbed && p->was_disturbed; // once may be a short disturbance that is over
    p->calm_us = disturbed ? 0 : p->calm_us + p->run_us;
    p->run_us = 0;
    p->off_us = 0;
    p->was_disturbed = disturbed;
    if (twice && p->n_active > 1) {
        p->was_disturbed = false;
        set_active(p, p->n_active - 1);
    } else if (p->n_active < p->n_threads && p->calm_us >= p->retry_us) {
        set_active(p, p->n_active + 1);
        p->retry_us = size_min(p->retry_us * 2, RETRY_MAX_US);
    } else if (p->n_active == p->n_threads && p->calm_us > RETRY_MIN_US) {
        p->retry_us = RETRY_MIN_US;
    }
}

bool tpool_is_crowded(const tpool *p) {
    return p->n_active < p->n_threads;
}

/* ---- opening and closing ---- */

/* The rank-th CPU of the mask alone, or all of them. */
static void pin(const tpool *p, pthread_t thread, uint32_t rank, bool to_one_cpu) {
    cpu_set_t set = p->cpus;
    for (int cpu = 0; to_one_cpu && cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &p->cpus) || rank-- != 0) continue;
        CPU_ZERO(&set);
        CPU_SET(cpu, &set);
        break;
    }
    pthread_setaffinity_np(thread, sizeof set, &set); // a failure costs speed only
}

static void pin_all(tpool *p, bool to_one_cpu) {
    if (!p->pinned) return;
    for (uint32_t i = 0; i < p->n_started; i++)
        pin(p, p->workers[i].thread, p->workers[i].rank, to_one_cpu);
    if (p->caller_pinned) pin(p, p->caller, 0, to_one_cpu);
}

inferd_status tpool_open(uint32_t n_threads, tpool **out, inferd_err *err) {
    return tpool_open_on(NULL, n_threads, out, err);
}

/* The CPUs to use, and how many of them: n_threads 0 is resolved here. */
static inferd_status choose_cpus(tpool *p, const char *cores, uint32_t *n_threads,
                                 inferd_err *err) {
    bool known = sched_getaffinity(0, sizeof p->found, &p->found) == 0;
    p->cpus = p->found;
    p->bound = cores != NULL && cores[0] != 0;
    if (p->bound) {
        inferd_status s = machine_cpu_list(cores, &p->cpus, err);
        if (s != INFERD_OK) return s;
        uint32_t n_cpus = (uint32_t)CPU_COUNT(&p->cpus);
        if (*n_threads > n_cpus)
            return inferd_fail(err, INFERD_EINVAL,
                               "%u compute threads, and cores \"%.64s\" names %u CPUs", *n_threads,
                               cores, n_cpus);
        if (*n_threads == 0) *n_threads = u32_min(n_cpus, TPOOL_THREADS_MAX);
    }
    if (*n_threads == 0) *n_threads = u32_min(machine_cpus_allowed(), TPOOL_THREADS_MAX);
    p->pinned = known && (uint32_t)CPU_COUNT(&p->cpus) == *n_threads;
    return INFERD_OK;
}

inferd_status tpool_open_on(const char *cores, uint32_t n_threads, tpool **out, inferd_err *err) {
    *out = NULL;
    if (n_threads > TPOOL_THREADS_MAX)
        return inferd_fail(err, INFERD_EINVAL, "%u compute threads, at most %u are possible",
                           n_threads, (unsigned)TPOOL_THREADS_MAX);
    tpool *p = aligned_alloc(64, sizeof *p); // its size is a multiple: it has aligned members
    if (p == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for the thread pool");
    memset(p, 0, sizeof *p);
    inferd_status s = choose_cpus(p, cores, &n_threads, err);
    if (s != INFERD_OK) {
        free(p);
        return s;
    }
    p->n_threads = n_threads;
    p->n_active = n_threads;
    p->retry_us = RETRY_MIN_US;
    pthread_mutex_init(&p->lock, NULL);
    p->rank_off_us = calloc(n_threads, sizeof *p->rank_off_us);
    p->workers = aligned_alloc(64, n_threads * sizeof *p->workers); // one too many: never empty
    if (p->workers == NULL || p->rank_off_us == NULL) {
        tpool_close(p);
        return inferd_fail(err, INFERD_ENOMEM, "no memory for %u compute threads", n_threads);
    }
    memset(p->workers, 0, n_threads * sizeof *p->workers);
    for (uint32_t i = 0; i + 1 < n_threads; i++) {
        worker *w = &p->workers[i];
        w->p = p;
        w->rank = i + 1;
        pthread_cond_init(&w->wake, NULL);
        int e = pthread_create(&w->thread, NULL, work, w);
        if (e != 0) {
            pthread_cond_destroy(&w->wake);
            tpool_close(p);
            return inferd_fail(err, INFERD_ENOMEM, "cannot start compute thread %u of %u: %s",
                               i + 1, n_threads, strerror(e));
        }
        p->n_started++;
        pthread_setname_np(w->thread, "inferd-compute");
        if (p->pinned || p->bound) pin(p, w->thread, w->rank, p->pinned);
    }
    *out = p;
    return INFERD_OK;
}

void tpool_close(tpool *p) {
    if (p == NULL) return;
    atomic_store_explicit(&p->closing, true, memory_order_relaxed);
    begin_run(p, NULL, NULL, p->n_started + 1);
    for (uint32_t i = 0; i < p->n_started; i++) {
        pthread_join(p->workers[i].thread, NULL);
        pthread_cond_destroy(&p->workers[i].wake);
    }
    if (p->caller_pinned && pthread_equal(p->caller, pthread_self()))
        pthread_setaffinity_np(p->caller, sizeof p->found, &p->found);
    pthread_mutex_destroy(&p->lock);
    free(p->workers);
    free(p->rank_off_us);
    free(p);
}

uint32_t tpool_n_threads(const tpool *p) {
    return p->n_threads;
}

void tpool_pin_caller(tpool *p) {
    if (!p->pinned && !p->bound) return;
    if (p->caller_pinned && pthread_equal(p->caller, pthread_self())) return;
    p->caller = pthread_self();
    p->caller_pinned = true;
    pin(p, p->caller, 0, p->pinned && !tpool_is_crowded(p));
}

void tpool_leave(const tpool *p) {
    if (p->pinned || p->bound) pthread_setaffinity_np(pthread_self(), sizeof p->cpus, &p->cpus);
}
