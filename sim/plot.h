/* plot.h - curves and bars as one SVG file that stands alone.
 *
 * No scripts, no fonts of its own, no links.  Colours follow the reader's preference for light or
 * dark (a style in the file; a program that does not know styles shows the light one), and series
 * differ in dashes, too.  A series of many points is thinned to what pixels can show: of each
 * column the first, least, greatest and last point stay, so that no peak is lost.  The same plot
 * gives the same bytes.
 *
 * Thread: any. */
#ifndef SIM_PLOT_H
#define SIM_PLOT_H

#include "inferd/base.h"
#include "inferd/buf.h"
#include "inferd/status.h"

enum { PLOT_SERIES_MAX = 8, PLOT_BARS_MAX = 64, PLOT_LEVELS_MAX = 8 };

typedef enum plot_mark {
    PLOT_LINE, // with dots where there are few points
    PLOT_STEP, // y holds until the next x
    PLOT_BAR
} plot_mark;

typedef struct plot_series {
    const char *name;
    plot_mark mark;
    const double *x;       // [n] ascending, finite; PLOT_BAR: not looked at
    const double *y;       // [n] NAN: there is none, the line has a gap
    const double *lo, *hi; // [n] or both NULL: least and greatest of the seeds, a band or whiskers
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
    bool has_y_range; // else it is that of the data
    double y_min, y_max;
} plot;

/* Appends.  EINVAL names what cannot be drawn. */
inferd_status plot_svg(const plot *p, buf *out, inferd_err *err);

#endif
