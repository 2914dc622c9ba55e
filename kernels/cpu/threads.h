/* threads.h - the compute threads of the CPU backend.
 *
 * Rank 0 is the caller; ranks 1..n-1 are workers.  pool_run gives one function to all ranks and
 * returns when all are through (fork and join); a step is some hundred of these, so between two
 * runs the workers spin, and only when nothing came for SPIN_US do they sleep.
 *
 *     worker   SPINNING -> RUNNING   pool_run raised `generation`
 *              RUNNING  -> SPINNING  counted in n_done
 *              SPINNING -> PARKED    nothing for SPIN_US: asleep on `wake`
 *              PARKED   -> RUNNING   pool_run saw n_parked > 0 and woke everyone
 *
 * Threads are pinned, one to a CPU, when there is one for every CPU of the affinity mask.  With
 * fewer, the CPUs that are ours are the scheduler's to choose, and nobody is pinned.
 *
 * When somebody else runs on our CPUs, a spinning thread keeps off the very thread it waits for.
 * Joins that take SLOW_JOIN_US longer than rank 0's own part, again and again, are the sign, and
 * all waits yield until joins are quick again.
 *
 * Denormals are zero while a run lasts, on every rank.
 *
 * Thread: one caller at a time; that thread is rank 0. */
#ifndef INFERD_CPU_THREADS_H
#define INFERD_CPU_THREADS_H

#include "inferd/base.h"
#include "inferd/status.h"

enum { POOL_THREADS_MAX = 256 };

typedef struct pool pool;

/* n_threads 0: as many as the process may use. */
inferd_status pool_open(uint32_t n_threads, pool **out, inferd_err *err);
void pool_close(pool *p); // accepts NULL; unpins the caller
uint32_t pool_n_threads(const pool *p);

/* Pin the calling thread as rank 0, if the pool is pinned; pool_close undoes it on that thread. */
void pool_pin_caller(pool *p);

/* f(ctx, rank, n_ranks) on every rank. */
typedef void pool_fn(void *ctx, uint32_t rank, uint32_t n_ranks);
void pool_run(pool *p, pool_fn *f, void *ctx);
/* The same on the caller alone: rank 0 of 1. */
void pool_run_alone(pool *p, pool_fn *f, void *ctx);

/* f(job, begin, end) on contiguous parts of [0, n), one per rank. */
typedef void range_fn(const void *job, uint32_t begin, uint32_t end);
void pool_split(pool *p, range_fn *f, const void *job, uint32_t n);
/* f(job, i, i + 1) for i in [0, n), whoever is free takes the next. */
void pool_share(pool *p, range_fn *f, const void *job, uint32_t n);
/* f(job, 0, n) on the caller alone. */
void pool_alone(pool *p, range_fn *f, const void *job, uint32_t n);

/* f(ctx, i) for i in [0, n), whoever is free takes the next. */
void pool_each(pool *p, uint32_t n, void (*f)(void *ctx, uint32_t i), void *ctx);

/* Are waits yielding because the CPUs are not ours alone? */
bool pool_is_crowded(const pool *p);

#endif
