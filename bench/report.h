/* report.h - the figures of a run, as a readable table and as JSON.
 * Thread: any, once the load has ended. */
#ifndef BENCH_REPORT_H
#define BENCH_REPORT_H

#include <jansson.h>

#include "stats.h"

/* Above this share of a CPU the generator, which may run beside the server, distorts the results.
 */
static const double GENERATOR_BUSY_WARN = 0.7;

void report_print(FILE *to, const stats *s);

/* NULL: no memory.  The caller owns it. */
json_t *report_json(const stats *s);
/* {"http_503": 2, ...}: the counts. */
json_t *report_tally(const tally *t);
/* "timeline" and "samples", which `inferd-bench compare` needs: an object with both.  The kept
 * requests are sorted, so samples are in the order of time. */
json_t *report_details(const stats *s);

/* One page for a browser; the kept requests are sorted. */
inferd_status report_html(stats *s, const char *path, inferd_err *err);

/* `path` "-" is standard output.  Members of `details` (NULL: none) are added in compact form. */
inferd_status report_write(const json_t *root, const json_t *details, const char *path,
                           inferd_err *err);

#endif
