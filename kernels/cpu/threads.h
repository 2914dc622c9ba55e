/* threads.h - the compute threads of the CPU backend.
 *
 * Rank 0 is the caller; ranks 1..n-1 are workers.  A run gives one function to the ranks and
 * returns when all are through (fork and join).  A step is one run: a row of phases (tpool_phases)
 * with a barrier between two of them.  Inside a run waits spin; between runs the workers spin too,
 * and only when nothing came for SPIN_US do they sleep.
 *
 *     worker   SPINNING -> RUNNING   a run that this rank is in has begun
 *              RUNNING  -> SPINNING  counted in n_done
 *              SPINNING -> ASLEEP    nothing for SPIN_US: asleep
 *              ASLEEP   -> RUNNING   the caller saw `asleep` and woke it
 *
 * Threads are pinned, one to a CPU, when there is one for every CPU of the affinity mask.  With
 * fewer, the kernel's scheduler chooses the CPUs, and no thread is pinned.
 *
 * When another process runs on one of our CPUs, the rank there is late at most barriers and all
 * other ranks wait for it, so their CPUs are lost too.  So rows of phases measure how long their
 * ranks were kept off the CPU.  When that is too long, the last rank is left out and no thread is
 * pinned: the remaining ranks find CPUs of their own, and the other process has the CPU left over.
 * (All ranks stay inside the list of CPUs that tpool_open_on was given.)  After a calm time the
 * rank is tried again, and after a failed try the next one waits longer.  Results do not depend on
 * which rank computes a part.
 *
 * Denormals are zero while a run lasts, on every rank.
 *
 * Thread: one caller at a time; that thread is rank 0. */
#ifndef INFERD_CPU_THREADS_H
#define INFERD_CPU_THREADS_H

#include "inferd/base.h"
#include "inferd/status.h"

enum { TPOOL_THREADS_MAX = 256, TPOOL_READS_MAX = 4 };

typedef struct tpool tpool;

/* n_threads 0: as many as the process may use. */
inferd_status tpool_open(uint32_t n_threads, tpool **out, inferd_err *err);
/* The same on the CPUs of a list (machine_cpu_list) alone; NULL or "": as tpool_open.  n_threads 0:
 * one for each; more than one for each is refused. */
inferd_status tpool_open_on(const char *cores, uint32_t n_threads, tpool **out, inferd_err *err);
void tpool_close(tpool *p); // accepts NULL; unpins the caller
uint32_t tpool_n_threads(const tpool *p);

/* Pin the calling thread as rank 0, if the pool is pinned or has a list of CPUs; tpool_close undoes
 * it on that thread. */
void tpool_pin_caller(tpool *p);
/* The calling thread works beside the ranks, on any of the pool's CPUs.  Any thread. */
void tpool_leave(const tpool *p);

/* f(ctx, rank, n_ranks) on every rank. */
typedef void tpool_fn(void *ctx, uint32_t rank, uint32_t n_ranks);
void tpool_run(tpool *p, tpool_fn *f, void *ctx);
/* The same on the caller alone: rank 0 of 1. */
void tpool_run_alone(tpool *p, tpool_fn *f, void *ctx);

/* f(job, begin, end) on contiguous parts of [0, n), one per rank. */
typedef void range_fn(const void *job, uint32_t begin, uint32_t end);
void tpool_split(tpool *p, range_fn *f, const void *job, uint32_t n);
/* f(job, i, i + 1) for i in [0, n); a free rank takes the next i.  The call does not wait for a
 * rank that comes when none is left. */
void tpool_share(tpool *p, range_fn *f, const void *job, uint32_t n);
/* f(job, 0, n) on the caller alone. */
void tpool_alone(tpool *p, range_fn *f, const void *job, uint32_t n);

/* A row of range functions, run one after the other with a barrier after each: one fork and one
 * join for a whole step.  All ranks see in a phase what the phase before wrote.  While the pool is
 * crowded some ranks are left out. */
typedef enum phase_how {
    PHASE_SPLIT, // [0, n) in contiguous parts, one per rank
    PHASE_SHARE, // f(job, i, i + 1); a free rank takes the next i
    PHASE_ALONE, // f(job, 0, n) on rank 0
    PHASE_EACH   // f(job, rank, rank + 1) on every rank, and no barrier after it: what it writes is
                 // read by that rank only
} phase_how;
/* The data that ranges of a phase read first: units [0, n_units) lie one after the other from
 * `data` on, then come those of the next part.  A rank that waits at a barrier prefetches the first
 * data that it will read after the barrier, because the memory would be idle meanwhile. */
typedef struct tpool_reads {
    struct {
        const unsigned char *data;
        size_t unit_bytes;
        uint32_t n_units;
    } parts[TPOOL_READS_MAX];
    uint32_t n_parts;
} tpool_reads;

typedef struct tpool_phase {
    range_fn *f;
    const void *job;
    uint32_t n;
    phase_how how;
    const tpool_reads *reads; // PHASE_SPLIT; NULL: nothing worth fetching
} tpool_phase;
void tpool_phases(tpool *p, const tpool_phase *phases, uint32_t n_phases);

/* f(ctx, i) for i in [0, n); a free rank takes the next i. */
void tpool_each(tpool *p, uint32_t n, void (*f)(void *ctx, uint32_t i), void *ctx);

/* Is a rank left out because other processes use the CPUs? */
bool tpool_is_crowded(const tpool *p);
/* For tests: as if rows of phases had taken run_us, and their ranks had been kept off the CPUs for
 * off_us together. */
void tpool_judge(tpool *p, uint64_t run_us, uint64_t off_us);

#endif
