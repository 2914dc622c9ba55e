/* report.h - the figures of a run, as a readable table and as JSON.
 * Thread: any, once the load has ended. */
#ifndef BENCH_REPORT_H
#define BENCH_REPORT_H

#include <jansson.h>

#include "stats.h"

void report_print(FILE *to, const stats *s);

/* NULL: no memory.  The caller owns it. */
json_t *report_json(const stats *s);

/* `path` "-" is standard output. */
inferd_status report_write(const json_t *root, const char *path, inferd_err *err);

#endif
