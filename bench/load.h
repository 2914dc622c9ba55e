/* load.h - starts requests when they are due and handles thousands in flight, on one thread.
 *
 *     dues (a heap by time)  -- due -->  send_request   -- room -->  active streams
 *       ^  open loop: next arrival           |                          |
 *       |                                    +-- no room --> backlog ---+ (first in, first out)
 *       +-- closed loop: when a stream's request has ended -------------+
 *
 * The warm-up requests run first, in a closed loop; then the clock starts.  A request that has to
 * wait in the backlog keeps its scheduled time.
 *
 * The load ends when nothing is due, waiting or in flight; a signal (SIGINT, SIGTERM) or the end of
 * the drain cuts the remaining requests. */
#ifndef BENCH_LOAD_H
#define BENCH_LOAD_H

#include "deck.h"
#include "inferd/status.h"
#include "stats.h"

enum { BACKLOG_MAX = 1000000, CLOSED_BACKOFF_MS = 100, WARMUP_STREAMS = 8 };

/* Runs `spec` completely, with prompts from the decks where classes have data sets, and writes the
 * results to `figures` (after stats_init) and, if not NULL, `csv`.  All classes of `spec` must have
 * models.  Failed requests are figures, not failures of this function. */
inferd_status load_run(const bench_spec *spec, decks *d, stats *figures, FILE *csv,
                       inferd_err *err);

/* The generator of the arrivals of an open class: to know them before the run. */
rng load_arrivals_rng(const bench_spec *spec, uint32_t class_idx);

/* Gives each class without models the first model of GET /v1/models. */
inferd_status load_find_models(bench_spec *spec, inferd_err *err);

#endif
