/* report.h - the figures of a simulation: one value per seed, shown as median, minimum and maximum.
 *
 * A figure belongs to a group (a scenario, a policy), has a name, a unit and a value for each seed;
 * groups and figures appear in the order in which they were first named.  Fewer than five seeds are
 * refused by the command line: a median of three is not meaningful.
 *
 *     figures_init -> figures_set for each seed -> figures_print, figures_json
 *
 * Notes are common to all seeds: what was simulated, and results over all of them.  They are in
 * sections: `"section": {"name": value, ...}`.
 *
 * A value of NAN does not exist (no request was offered): it is left out of median, minimum and
 * maximum, `n` is the number of existing values, and the value is written as `-` or null.
 *
 * Memory may be short in any call: `failed` says so, and the end of the experiment looks at it.
 * Thread: its owner. */
#ifndef SIM_REPORT_H
#define SIM_REPORT_H

#include <jansson.h>

#include "inferd/base.h"

enum {
    FIGURES_SEEDS_MIN = 5,
    FIGURES_SEEDS_MAX = 64,
    FIGURES_TEXT_BYTES = 64 // of a name, with its NUL; longer ones are a bug
};

typedef struct figure {
    char group[FIGURES_TEXT_BYTES], name[FIGURES_TEXT_BYTES];
    const char *unit;
    int n_digits; // after the decimal point, in the table
    double values[FIGURES_SEEDS_MAX];
} figure;

typedef struct figures {
    char title[2 * FIGURES_TEXT_BYTES];
    uint64_t seed0; // the first of n_seeds
    uint32_t n_seeds;
    figure *items; // [n]; owned
    size_t n, capacity;
    json_t *notes; // owned
    bool failed;   // no memory: it is incomplete
} figures;

typedef struct figure_summary {
    double median, min, max; // NAN when n is 0
    uint32_t n;              // number of existing values
} figure_summary;

/* A figure of one seed. */
typedef struct figure_row {
    const char *name, *unit;
    int n_digits;
    double value;
} figure_row;

void figures_init(figures *f, uint64_t seed0, uint32_t n_seeds);
void figures_deinit(figures *f); // accepts a zeroed one

/* The values of one seed in a group.  Setting a value twice is a bug. */
void figures_set(figures *f, const char *group, uint32_t seed_idx, const figure_row *rows,
                 size_t n);
/* Takes the value.  A number that does not exist is figures_number(NAN). */
void figures_note(figures *f, const char *section, const char *name, json_t *value);
json_t *figures_number(double x);

figure_summary figures_summary(const double *values, uint32_t n);

/* The notes but `options`, one line per section, and one table per group. */
void figures_print(const figures *f, FILE *out);
/* {"title", "seeds", the notes, "figures": [{"group", "name", "unit", "median", "min", "max", "n",
 * "values": [...]}]}; the caller's.  NULL: no memory. */
json_t *figures_json(const figures *f);

/* Room for one more item behind the n of an array with this capacity.  NULL: no memory, and the
 * array is unchanged. */
void *array_grow(void *items, size_t n, size_t *capacity, size_t item_bytes);

#endif
