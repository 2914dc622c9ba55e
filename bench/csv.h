/* csv.h - one line per request, written when it ends.  Thread: the load's. */
#ifndef BENCH_CSV_H
#define BENCH_CSV_H

#include "result.h"
#include "stats.h"

void csv_head(FILE *to);
void csv_line(FILE *to, const bench_spec *spec, uint64_t start_ns, const result *r);

#endif
