/* result.h - the outcome and the times of one request.
 *
 *     scheduled ------ sent ------------ first ---- gap ---- gap ---- last -- end
 *         |<- late ->|                     |                           |
 *         |<------------- TTFT ----------->|<- (n_output - 1) x TPOT ->|
 *         |<------------------------------- E2E --------------------------->|
 *
 * All times are nanoseconds of the monotonic clock.  `scheduled` is the time the request should
 * have started, so waiting for the generator or for a connection is part of every figure; leaving
 * it out (coordinated omission) would make a stalled server look good.
 *
 * Thread: the load's. */
#ifndef BENCH_RESULT_H
#define BENCH_RESULT_H

#include <time.h>

#include "plan.h"

typedef enum outcome {
    OUTCOME_OK,
    OUTCOME_FAILED,
    OUTCOME_CUT // stopped by the generator: end of the drain, or a signal; not the server's fault
} outcome;

enum { GAPS_KEPT_MAX = 12 };

/* The longest gaps of one stream, in no order. */
typedef struct gap_list {
    uint32_t n;
    struct {
        float at_ms, ms; // beginning, since the scheduled start; length
    } items[GAPS_KEPT_MAX];
} gap_list;

/* Adds a gap; when there is no room it replaces the shortest, if that one is shorter. */
static inline void gap_list_add(gap_list *g, uint64_t at_ns, uint64_t gap_ns) {
    uint32_t at = g->n;
    float ms = (float)((double)gap_ns / 1e6);
    if (g->n < GAPS_KEPT_MAX) {
        g->n++;
    } else {
        at = 0;
        for (uint32_t i = 1; i < GAPS_KEPT_MAX; i++)
            if (g->items[i].ms < g->items[at].ms) at = i;
        if (g->items[at].ms >= ms) return;
    }
    g->items[at].at_ms = (float)((double)at_ns / 1e6);
    g->items[at].ms = ms;
}

typedef struct result {
    request_plan plan;
    bool is_counted; // not a warm-up request, not in the skipped time
    outcome outcome;
    uint64_t sched_ns, sent_ns, end_ns;
    uint64_t first_ns, last_ns;           // 0: no output token was seen
    uint64_t gap_max_ns;                  // between chunks with text
    gap_list gaps;                        // the longest of them
    uint32_t n_chunks;                    // with text
    uint32_t n_chunks_steady;             // of those, while requests were still being started
    bool has_usage, is_textless;          // textless: first_ns is the time of the finish chunk
    int64_t n_prompt, n_output, n_cached; // from usage; n_cached -1 if not reported
    long http_status;                     // 0: no answer
    char finish[24];
    char error_code[48], error_text[160];
} result;

static inline uint64_t bench_now_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* Output tokens: from usage if reported, otherwise the number of chunks. */
static inline uint64_t result_n_output(const result *r) {
    return r->has_usage && r->n_output >= 0 ? (uint64_t)r->n_output : r->n_chunks;
}

static inline uint64_t since_ns(uint64_t from_ns, uint64_t to_ns) {
    return to_ns > from_ns ? to_ns - from_ns : 0;
}

/* False when there is no token after the first, or all arrived in one chunk. */
static inline bool result_tpot_ns(const result *r, uint64_t *out) {
    uint64_t n = result_n_output(r);
    if (n < 2 || r->n_chunks < 2) return false;
    *out = (r->last_ns - r->first_ns) / (n - 1);
    return true;
}

#endif
