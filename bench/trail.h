/* trail.h - single requests that are kept, for the picture and for `inferd-bench compare`.
 *
 * At most TRAIL_MAX.  Each request has a number that is a hash of (seed, class, index, turn), and
 * the requests below a limit are kept; when there is no room, the limit is halved and those above
 * it are dropped.  So the kept ones are a random sample of all, the same for the same seed,
 * whatever the order in which requests end.
 *
 * Thread: the load's, then any. */
#ifndef BENCH_TRAIL_H
#define BENCH_TRAIL_H

#include "result.h"

enum { TRAIL_MAX = 4000 };

typedef enum slo_outcome { SLO_NONE, SLO_MISSED, SLO_MET } slo_outcome;

/* Times are milliseconds after the scheduled start; below zero: there is none. */
typedef struct trail_row {
    uint64_t hash;
    uint64_t idx;
    uint32_t class_idx, model, key, turn;
    outcome outcome;
    slo_outcome slo; // NONE: the class has no target, or the generator cut the request
    double sched_s;  // since the clock's start
    double sent_ms, first_ms, last_ms, end_ms, tpot_ms, longest_ms;
    uint64_t n_prompt, n_output;
    gap_list gaps;
} trail_row;

typedef struct trail {
    trail_row *rows; // [n], capacity TRAIL_MAX; owned
    size_t n;
    uint64_t n_seen;
    uint64_t limit; // rows have a hash <= limit
} trail;

bool trail_init(trail *t); // false: no memory
void trail_deinit(trail *t);
void trail_add(trail *t, const result *r, slo_outcome slo, uint64_t clock_ns);

/* Orders the rows by their scheduled start. */
void trail_sort(trail *t);

#endif
