/* threads.h - the compute threads of the CPU backend.
 *
 * Rank 0 is the caller; ranks 1..n-1 are workers.  A run gives one function to the ranks and
 * returns when all are through (fork and join).  A step is one run: a row of phases (pool_phases)
 * with a barrier between two of them.  Inside a run waits spin; between runs the workers spin too,
 * and only when nothing came for SPIN_US do they sleep.
 *
 *     worker   SPINNING -> RUNNING   a run that this rank is in has begun
 *              RUNNING  -> SPINNING  counted in n_done
 *              SPINNING -> PARKED    nothing for SPIN_US: asleep
 *              PARKED   -> RUNNING   the caller saw `parked` and woke it
 *
 * Threads are pinned, one to a CPU, when there is one for every CPU of the affinity mask.  With
 * fewer, the CPUs that are ours are the scheduler's to choose, and nobody is pinned.
 *
 * When somebody else runs on one of our CPUs, the rank there is late at most barriers and all
 * others wait for it: with every rank at work the others' CPUs are lost too.  So rows of phases
 * watch how long their ranks were kept off the CPU.  Too long, and the last rank is left out and
 * nobody is pinned: the ranks that remain find CPUs of their own, and the stranger has the one left
 * over.  (Inside the list of CPUs that pool_open_on was given, which nobody leaves.) After a calm
 * time the rank is tried again, and after a try that went wrong the next waits
 * longer. Who computes a part shows in no result.
 *
 * Denormals are zero while a run lasts, on every rank.
 *
 * Thread: one caller at a time; that thread is rank 0. */
#ifndef INFERD_CPU_THREADS_H
#define INFERD_CPU_THREADS_H

#include "inferd/base.h"
#include "inferd/status.h"

enum { POOL_THREADS_MAX = 256, POOL_READS_MAX = 4 };

typedef struct pool pool;

/* n_threads 0: as many as the process may use. */
inferd_status pool_open(uint32_t n_threads, pool **out, inferd_err *err);
/* The same on the CPUs of a list (machine_cpu_list) alone; NULL or "": as pool_open.  n_threads 0:
 * one for each; more than one for each is refused. */
inferd_status pool_open_on(const char *cores, uint32_t n_threads, pool **out, inferd_err *err);
void pool_close(pool *p); // accepts NULL; unpins the caller
uint32_t pool_n_threads(const pool *p);

/* Pin the calling thread as rank 0, if the pool is pinned or has a list of CPUs; pool_close undoes
 * it on that thread. */
void pool_pin_caller(pool *p);
/* The calling thread works beside the ranks, on any of the pool's CPUs.  Any thread. */
void pool_leave(const pool *p);

/* f(ctx, rank, n_ranks) on every rank. */
typedef void pool_fn(void *ctx, uint32_t rank, uint32_t n_ranks);
void pool_run(pool *p, pool_fn *f, void *ctx);
/* The same on the caller alone: rank 0 of 1. */
void pool_run_alone(pool *p, pool_fn *f, void *ctx);

/* f(job, begin, end) on contiguous parts of [0, n), one per rank. */
typedef void range_fn(const void *job, uint32_t begin, uint32_t end);
void pool_split(pool *p, range_fn *f, const void *job, uint32_t n);
/* f(job, i, i + 1) for i in [0, n), whoever is free takes the next.  A rank that comes too late for
 * any is not waited for. */
void pool_share(pool *p, range_fn *f, const void *job, uint32_t n);
/* f(job, 0, n) on the caller alone. */
void pool_alone(pool *p, range_fn *f, const void *job, uint32_t n);

/* A row of range functions, run one after the other with a barrier after each: one fork and one
 * join for a whole step.  What a phase writes, all ranks see in the next.  Not on all ranks of the
 * pool while it is crowded. */
typedef enum phase_how {
    PHASE_SPLIT, // [0, n) in contiguous parts, one per rank
    PHASE_SHARE, // f(job, i, i + 1), whoever is free takes the next i
    PHASE_ALONE, // f(job, 0, n) on rank 0
    PHASE_EACH   // f(job, rank, rank + 1) on every rank, and no barrier after it: what it writes is
                 // read by that rank only
} phase_how;
/* What ranges of a phase read first: units [0, n_units) lie one after the other from `data` on,
 * then come those of the next part.  A rank that waits at a barrier fetches the beginning of what
 * it will read after it: the memory would be idle meanwhile. */
typedef struct pool_reads {
    struct {
        const unsigned char *data;
        size_t unit_bytes;
        uint32_t n_units;
    } parts[POOL_READS_MAX];
    uint32_t n_parts;
} pool_reads;

typedef struct pool_phase {
    range_fn *f;
    const void *job;
    uint32_t n;
    phase_how how;
    const pool_reads *reads; // PHASE_SPLIT; NULL: nothing worth fetching
} pool_phase;
void pool_phases(pool *p, const pool_phase *phases, uint32_t n_phases);

/* f(ctx, i) for i in [0, n), whoever is free takes the next. */
void pool_each(pool *p, uint32_t n, void (*f)(void *ctx, uint32_t i), void *ctx);

/* Is a rank left out because the CPUs are not ours alone? */
bool pool_is_crowded(const pool *p);
/* For tests: as if rows of phases had taken run_us, and their ranks had been kept off the CPUs for
 * off_us together. */
void pool_judge(pool *p, uint64_t run_us, uint64_t off_us);

#endif
