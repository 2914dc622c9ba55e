/* html.c - see html.h. */
#include "html.h"

#include <math.h>

#include "utf8.h"

static const double AXIS_LOG_RATIO = 6;
enum { TICKS_WANTED = 5 };

void html_text(buf *out, const char *text) {
    const unsigned char *p = (const unsigned char *)text;
    while (*p != 0) {
        size_t n = utf8_sequence(p);
        if (*p == '&')
            buf_add_str(out, "&amp;");
        else if (*p == '<')
            buf_add_str(out, "&lt;");
        else if (*p == '>')
            buf_add_str(out, "&gt;");
        else if (*p == '"')
            buf_add_str(out, "&quot;");
        else if (*p == '\'')
            buf_add_str(out, "&#39;");
        else if (*p < 0x20 || *p == 0x7f)
            buf_add_char(out, ' ');
        else if (n == 0)
            buf_add_str(out, "\xef\xbf\xbd");
        else
            buf_add(out, p, n);
        p += n == 0 ? 1 : n;
    }
}

void html_number(buf *out, double value) {
    double size = fabs(value);
    if (size >= 1e7)
        buf_add_format(out, "%.3g", value);
    else if (size >= 100)
        buf_add_format(out, "%.0f", value);
    else if (size >= 10)
        buf_add_format(out, "%.1f", value);
    else if (size >= 1)
        buf_add_format(out, "%.2f", value);
    else
        buf_add_format(out, "%.3g", value);
}

/* The least of 1, 2, 5 x 10^n that is not below `value`. */
static double round_up(double value) {
    double decade = pow(10, floor(log10(value)));
    const double STEPS[] = {1, 2, 5, 10};
    for (size_t i = 0; i < INFERD_COUNT(STEPS); i++)
        if (STEPS[i] * decade >= value * (1 - 1e-9)) return STEPS[i] * decade;
    return 10 * decade;
}

axis axis_from_zero(double hi, double from_px, double to_px) {
    if (!(hi > 0)) hi = 1;
    double step = round_up(hi / TICKS_WANTED);
    return (axis){0, step * ceil(hi / step - 1e-9), from_px, to_px, false};
}

axis axis_around(double lo, double hi, double from_px, double to_px) {
    if (!(lo > 0)) lo = hi > 0 ? hi / 1000 : 1;
    if (hi < lo) hi = lo;
    axis a = {lo / 1.1, hi * 1.1, from_px, to_px, true};
    if (hi / lo >= AXIS_LOG_RATIO) return a;
    double step = round_up((a.hi - a.lo) / TICKS_WANTED);
    return (axis){step * floor(a.lo / step), step * ceil(a.hi / step), from_px, to_px, false};
}

double axis_px(const axis *a, double value) {
    double part = (value - a->lo) / (a->hi - a->lo);
    if (a->is_log) part = value > 0 ? log(value / a->lo) / log(a->hi / a->lo) : 0;
    part = part < 0 ? 0 : part > 1 ? 1 : part;
    return a->from_px + part * (a->to_px - a->from_px);
}

static size_t log_ticks(const axis *a, double out[AXIS_TICKS_MAX]) {
    double n_decades = log10(a->hi / a->lo);
    int every = (int)ceil(n_decades / (AXIS_TICKS_MAX - 2));
    size_t n = 0;
    for (int e = (int)floor(log10(a->lo)); e <= (int)ceil(log10(a->hi)); e++) {
        const double STEPS[] = {1, 2, 5};
        size_t n_steps = n_decades < 1.6 ? 3 : 1;
        for (size_t i = 0; i < n_steps; i++) {
            double value = STEPS[i] * pow(10, e);
            bool fits = value >= a->lo && value <= a->hi && (n_steps > 1 || e % every == 0);
            if (fits && n < AXIS_TICKS_MAX) out[n++] = value;
        }
    }
    return n;
}

size_t axis_ticks(const axis *a, double out[AXIS_TICKS_MAX]) {
    if (a->is_log) return log_ticks(a, out);
    double step = round_up((a->hi - a->lo) / TICKS_WANTED * (1 - 1e-9));
    size_t n = 0;
    for (double k = ceil(a->lo / step - 1e-9); k * step <= a->hi * (1 + 1e-9) && n < AXIS_TICKS_MAX;
         k++)
        out[n++] = k * step + 0.0; // no -0
    return n;
}
