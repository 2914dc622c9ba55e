/* report.h - the figures of a simulation: one value per seed, shown as median, minimum and maximum.
 *
 * A figure belongs to a group (a scenario, a policy), has a name, a unit and a value for each seed;
 * groups and figures appear in the order in which they were first named.  Fewer than five seeds are
 * refused: a median of three is not meaningful.  The same figures give the same bytes.
 *
 *     figures_init -> figures_set for each seed -> figures_text, figures_json, figures_csv
 *
 * Notes are common to all seeds: what was simulated, and results over all of them.  They are in
 * sections, and only JSON has them: `"section": {"name": value, ...}`.
 *
 * A value of NAN does not exist (no request was offered): it is left out of median, minimum and
 * maximum, `n` is the number of existing values, and the value is written as `-`, null or an empty
 * field.
 *
 * Thread: its owner. */
#ifndef SIM_REPORT_H
#define SIM_REPORT_H

#include "inferd/base.h"
#include "inferd/buf.h"
#include "inferd/status.h"

enum {
    FIGURES_SEEDS_MIN = 5,
    FIGURES_SEEDS_MAX = 64,
    FIGURES_MAX = 4096,
    FIGURES_NOTES_MAX = 128,
    FIGURES_TEXT_BYTES = 64, // of a name, with its NUL
    FIGURES_DIGITS_MAX = 9
};

typedef struct figure {
    char group[FIGURES_TEXT_BYTES], name[FIGURES_TEXT_BYTES], unit[FIGURES_TEXT_BYTES];
    uint32_t n_digits; // after the decimal point, in the table
    uint64_t is_set;   // bit i: seed i has a value
    double values[FIGURES_SEEDS_MAX];
} figure;

typedef struct figure_note {
    char section[FIGURES_TEXT_BYTES], name[FIGURES_TEXT_BYTES];
    char *text; // owned; NULL: a number
    double value;
} figure_note;

typedef struct figures {
    char title[FIGURES_TEXT_BYTES];
    uint64_t seeds[FIGURES_SEEDS_MAX];
    uint32_t n_seeds;
    figure *items; // [n]; owned
    uint32_t n, capacity;
    figure_note *notes; // [n_notes]; owned
    uint32_t n_notes;
} figures;

typedef struct figure_summary {
    double median, min, max; // NAN when n is 0
    uint32_t n;              // number of existing values
} figure_summary;

inferd_status figures_init(figures *f, const char *title, const uint64_t *seeds, uint32_t n_seeds,
                           inferd_err *err);
void figures_deinit(figures *f); // accepts a zeroed one

/* The value of one seed.  EINVAL: already set, or set with another unit; ETOOLONG: a text is too
 * long, or there are too many figures. */
inferd_status figures_set(figures *f, const char *group, const char *name, const char *unit,
                          uint32_t n_digits, uint32_t seed_idx, double value, inferd_err *err);

/* A number (NAN: null) or a text, which is copied.  A section must not have the name of another
 * JSON member: title, seeds, figures.  EINVAL: already noted. */
inferd_status figures_note(figures *f, const char *section, const char *name, double value,
                           inferd_err *err);
inferd_status figures_note_text(figures *f, const char *section, const char *name, const char *text,
                                inferd_err *err);

/* NULL: not found. */
const figure *figures_find(const figures *f, const char *group, const char *name);
/* The median of an even number of values is the mean of the middle two. */
figure_summary figures_summary(const figures *f, const figure *of);

/* All append; the caller checks out->failed. */
void figures_text(const figures *f, buf *out);
void figures_json(const figures *f, buf *out);
void figures_csv(const figures *f, buf *out);

#endif
