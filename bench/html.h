/* html.h - text, numbers and axes of a page with SVG.
 *
 * Everything from outside (names, addresses, texts of errors) goes through html_text, which leaves
 * no character that could begin a tag, an entity or an attribute, and no invalid UTF-8.
 *
 * Thread: any. */
#ifndef BENCH_HTML_H
#define BENCH_HTML_H

#include "inferd/buf.h"

/* Appends the text, escaped for content and for attributes in quotes. */
void html_text(buf *out, const char *text);

/* Three significant digits, without an exponent below 10^7: 0.0123, 4.5, 123, 45600. */
void html_number(buf *out, double value);

enum { AXIS_TICKS_MAX = 16 };

/* Maps [lo, hi] to pixels. */
typedef struct axis {
    double lo, hi, from_px, to_px;
    bool is_log;
} axis;

/* From 0 to a round number not below `hi`. */
axis axis_from_zero(double hi, double from_px, double to_px);
/* Around [lo, hi], both > 0: logarithmic where they are further apart than AXIS_LOG_RATIO. */
axis axis_around(double lo, double hi, double from_px, double to_px);
double axis_px(const axis *a, double value);                  // values outside are moved to the end
size_t axis_ticks(const axis *a, double out[AXIS_TICKS_MAX]); // round numbers, ascending

#endif
