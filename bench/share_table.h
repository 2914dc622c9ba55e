/* share_table.h - samples, and rows of the table printed by `share`.
 *
 * Percentiles are nearest-rank over all samples, which are kept: there are at most a few thousand.
 *
 * Thread: the run's. */
#ifndef BENCH_SHARE_TABLE_H
#define BENCH_SHARE_TABLE_H

#include <jansson.h>
#include <stdio.h>

#include "inferd/base.h"
#include "inferd/status.h"

enum { SHARE_SAMPLES_MAX = 1 << 22, SHARE_ROWS_MAX = 32, SHARE_CELL_BYTES = 400 };

typedef struct samples {
    double *v; // [n] owned
    size_t n, capacity;
    bool is_sorted;
} samples;

void samples_add(samples *s, double v);  // more than SHARE_SAMPLES_MAX is a bug in the row's code
double samples_at(samples *s, double q); // q in [0, 1]; 0 when there are none
void samples_free(samples *s);
/* Count, least, median, p90, p99, greatest.  NULL: no memory.  The caller owns it. */
json_t *samples_json(samples *s);

typedef enum share_verdict { SHARE_MET, SHARE_MISSED, SHARE_TOLD, SHARE_FAILED } share_verdict;

typedef struct share_row {
    char id[24];
    const char *figure, *goal; // borrowed, "" where there is no goal
    char measured[SHARE_CELL_BYTES], spread[SHARE_CELL_BYTES];
    share_verdict verdict;
    json_t *values; // an object for the JSON file; owned, NULL: an empty one
} share_row;

typedef struct share_table {
    share_row rows[SHARE_ROWS_MAX];
    size_t n;
} share_table;

/* A row to fill in; the table owns it. */
share_row *share_table_add(share_table *t, const char *id, const char *figure, const char *goal);
void share_table_print(FILE *to, const share_table *t); // Markdown
json_t *share_table_json(const share_table *t);         // NULL: no memory
bool share_table_all_met(const share_table *t);
void share_table_deinit(share_table *t);

#endif
