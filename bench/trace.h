/* trace.h - recorded arrivals and lengths.
 *
 * A CSV file: time, prompt tokens, output tokens; further columns are ignored, and the first line
 * is ignored if its first field is not a time.  The time is a date ("2023-11-16 18:17:03.9799600";
 * 'T' instead of the space and "Z", "+01:00" or "-01:00" at the end are allowed) or a number of
 * seconds.  Times must not go backwards.  After reading, the first row is at time zero.
 *
 * Bounded: TRACE_ROWS_MAX rows.  Thread: any after reading, nothing changes. */
#ifndef BENCH_TRACE_H
#define BENCH_TRACE_H

#include "inferd/base.h"
#include "inferd/status.h"

enum { TRACE_ROWS_MAX = 20 * 1000 * 1000 };

typedef struct trace_row {
    uint64_t at_ns;
    uint32_t n_prompt, n_output;
} trace_row;

typedef struct trace {
    trace_row *rows; // owned
    size_t n;        // > 0 after reading
} trace;

/* Time until the trace repeats: its last row, plus one mean gap.  0: all rows have one time. */
double trace_period_s(const trace *t);

inferd_status trace_read(trace *t, const char *path, inferd_err *err);
void trace_deinit(trace *t);

/* Parses one time field up to `end`; false when it is not a time.  For trace.c and its test. */
bool trace_time_parse(const char *text, const char *end, uint64_t *out_ns);

#endif
