/* history.h - ten minutes of the daemon's service, one row a second, for charts.
 *
 *   history_note         a latency, as it happens     -> a histogram of the present second
 *   history_close        counters, once a second      -> a row of differences and quantiles
 *
 * The histograms have eight buckets for each doubling, so a quantile is right to 5 %.
 * Thread: front. */
#ifndef INFERD_HISTORY_H
#define INFERD_HISTORY_H

#include "inferd/base.h"

enum { HISTORY_ROWS = 600, HISTORY_EVERY_MS = 1000 };

typedef enum history_latency { HISTORY_TTFT, HISTORY_ITL, HISTORY_LATENCIES } history_latency;

/* Since the start of the process. */
typedef struct history_totals {
    uint64_t prompt_tokens, output_tokens; // computed
    uint64_t preemptions, switches;        // switches: models brought up
    uint64_t refused;                      // 429 and 503
    uint64_t step_us, wall_us;             // of all devices together
} history_totals;

typedef struct history_row {
    int64_t at_s;                                               // Unix time of its end
    float p50_ms[HISTORY_LATENCIES], p95_ms[HISTORY_LATENCIES]; // NAN: none in this second
    float prompt_tokens_per_s, output_tokens_per_s;
    float busy; // part of the devices' time that went into steps
    uint32_t preemptions, switches, refused;
} history_row;

typedef struct history history;

history *history_create(void);    // NULL: no memory
void history_destroy(history *h); // accepts NULL
void history_note(history *h, history_latency what, uint64_t us);
bool history_is_due(const history *h, uint64_t now_us); // history_close would write a row
void history_close(history *h, const history_totals *totals, uint64_t now_us, int64_t unix_s);
uint64_t history_n(const history *h); // rows so far; the newest HISTORY_ROWS of them are kept
const history_row *history_at(const history *h, uint64_t i); // of those that are kept

#endif
