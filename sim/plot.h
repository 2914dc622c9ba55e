/* plot.h - curves and bars as one self-contained SVG file.
 *
 * No scripts, no embedded fonts, no links.  Colours follow the reader's preference for light or
 * dark (a style in the file; a program without style support shows the light one), and series also
 * differ in dashes.  A series of many points is thinned to the pixel resolution: of each column the
 * first, minimum, maximum and last point stay, so that no peak is lost.  The same plot gives the
 * same bytes.
 *
 * Thread: any. */
#ifndef SIM_PLOT_H
#define SIM_PLOT_H

#include "inferd/base.h"
#include "inferd/buf.h"
#include "inferd/status.h"

enum { PLOT_SERIES_MAX = 8, PLOT_BARS_MAX = 64, PLOT_LEVELS_MAX = 8 };

typedef enum plot_mark {
    PLOT_LINE, // with dots if there are few points
    PLOT_STEP, // y holds until the next x
    PLOT_BAR
} plot_mark;

typedef struct plot_series {
    const char *name;
    plot_mark mark;
    const double *x; // [n] ascending, finite; PLOT_BAR: ignored
    const double *y; // [n] NAN: missing, the line has a gap
    const double *lo,
        *hi; // [n] or both NULL: minimum and maximum over the seeds, a band or whiskers
    size_t n;
} plot_series;

typedef struct plot {
    const char *title, *x_label, *y_label;
    const plot_series *series; // [n_series]; all bars or none
    uint32_t n_series;
    const char *const *bar_names; // [n_bars] below each group of bars; series have n == n_bars
    uint32_t n_bars;
    const double *levels; // [n_levels] of y, marked by a thin line, such as 0.99
    uint32_t n_levels;
    bool has_y_range; // false: the range of the data
    double y_min, y_max;
} plot;

/* Appends.  EINVAL: the text names the field that cannot be drawn. */
inferd_status plot_svg(const plot *p, buf *out, inferd_err *err);

#endif
