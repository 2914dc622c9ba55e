/* compare.h - two sets of results of inferd-bench, side by side.
 *
 *     A1.json,A2.json  B1.json,B2.json  ->  b / a of each figure, with a 95 % interval
 * (bootstrap.h; interval.h for several runs and for failed requests)
 *
 * Figures of requests come from the kept requests in "samples", rates from slices of "timeline".
 * Results of another load are refused.  Files are bytes from outside: their size, the number of
 * values and each value are checked before anything is computed.
 *
 * Thread: any. */
#ifndef BENCH_COMPARE_H
#define BENCH_COMPARE_H

#include <jansson.h>

#include "bootstrap.h"
#include "inferd/status.h"

enum { RESULT_BYTES_MAX = 32 << 20, SLICES_MAX = 20, SLICES_MIN = 5 };

/* The columns of "samples" that are compared. */
typedef enum compare_column {
    COLUMN_TTFT,
    COLUMN_TPOT,
    COLUMN_E2E,
    COLUMN_LONGEST,
    COLUMN_MET,
    COMPARE_COLUMNS
} compare_column;

/* Reads and checks one result.  INFERD_EFORMAT names the member that is wrong. */
inferd_status result_read(json_t **out, const char *path, inferd_err *err);
inferd_status result_parse(json_t **out, const char *text, size_t n, inferd_err *err);

/* INFERD_EINVAL: the loads differ; the text names the first difference. */
inferd_status result_same_load(const json_t *a, const json_t *b, inferd_err *err);

/* Appends the values of a column, of one class or of all (class_idx < 0); returns their number.
 * `out` has room for TRAIL_MAX. */
size_t result_values(const json_t *root, compare_column column, int class_idx, double *out);
/* Output tokens per second in equal slices of the steady time; 0: it is too short.  `group` is a
 * key of "timeline.tokens".  `out` has room for SLICES_MAX. */
size_t result_rates(const json_t *root, const char *group, double *out);

/* The command; returns the exit status. */
int compare_command(int argc, char **argv);

#endif
