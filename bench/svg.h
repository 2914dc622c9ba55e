/* svg.h - the plots of the picture.  Each function appends one <svg> element.
 *
 * A plot has at most SERIES_MAX series; `color` is a class s0 ... s7 of the page.  A point of a
 * curve takes about 12 bytes, and every plot has a limit: CDF_POINTS_MAX, SVG_BINS_MAX,
 * LANE_BARS_MAX.
 *
 * Thread: any, once the load has ended. */
#ifndef BENCH_SVG_H
#define BENCH_SVG_H

#include "stats.h"

enum {
    SERIES_MAX = 8,
    CDF_POINTS_MAX = 200, // of one curve
    SVG_BINS_MAX = 128,   // moments of a plot over time, and the least width of one:
    SVG_BIN_NS_MIN = 200 * 1000 * 1000,
    LANES_MAX = 60,     // rows of the plot of streams
    LANE_BARS_MAX = 500 // requests in it
};

typedef struct series {
    const group *g;
    uint32_t color;
} series;

/* The part of values below each value, with a dot at p99.  `offset`: of a hist in `group`. */
void svg_cdf(buf *out, const char *title, const series *list, size_t n, size_t offset);

/* Output tokens per second, and the longest gap that ended in each moment. */
void svg_rate(buf *out, const series *list, size_t n);
void svg_gaps(buf *out, const series *list, size_t n);

/* Kept requests as bars; requests that overlap are in different rows. */
typedef struct lanes_told {
    size_t n_bars, n_left_out; // of the kept requests
    size_t n_lanes;
    double gap_ms; // gaps from here on are red
} lanes_told;
/* `color_of` gives the color of a request.  The rows of `s->kept` are in order of their start. */
lanes_told svg_lanes(buf *out, const stats *s,
                     uint32_t (*color_of)(const void *, const trail_row *), const void *ctx);

#endif
