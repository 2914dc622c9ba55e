/* svg_chart.c - curves over values and over time; see svg.h.
 *
 *     (0,0) title
 *       LEFT +--------------------------+ TOP
 *            |                          |
 *            +--------------------------+ BOTTOM
 *          ticks                      RIGHT */
#include <math.h>

#include "html.h"
#include "svg.h"

enum { WIDTH = 400, HEIGHT = 250, LEFT = 44, RIGHT = 388, TOP = 30, BOTTOM = 218 };
static const double NS_PER_MS = 1e6;

static void begin(buf *out, const char *title) {
    buf_add_format(out, "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"", WIDTH, HEIGHT);
    html_text(out, title);
    buf_add_str(out, "\"><text class=\"title\" x=\"4\" y=\"16\">");
    html_text(out, title);
    buf_add_str(out, "</text>");
}

static void add_label(buf *out, double value) {
    if (value >= 1000 && value < 1e6)
        buf_add_format(out, "%gk", value / 1000);
    else
        buf_add_format(out, "%g", value);
}

static void grid_x(buf *out, const axis *x, const char *unit) {
    double ticks[AXIS_TICKS_MAX];
    size_t n = axis_ticks(x, ticks);
    for (size_t i = 0; i < n; i++) {
        double px = axis_px(x, ticks[i]);
        buf_add_format(out, "<path class=\"grid\" d=\"M%.1f %dV%d\"/>", px, TOP, BOTTOM);
        buf_add_format(out, "<text class=\"mid\" x=\"%.1f\" y=\"%d\">", px, BOTTOM + 15);
        add_label(out, ticks[i]);
        buf_add_str(out, "</text>");
    }
    buf_add_format(out, "<text class=\"end\" x=\"%d\" y=\"%d\">%s</text>", RIGHT, BOTTOM + 29,
                   unit);
}

static void grid_y(buf *out, const axis *y, const char *unit) {
    double ticks[AXIS_TICKS_MAX];
    size_t n = axis_ticks(y, ticks);
    for (size_t i = 0; i < n; i++) {
        double px = axis_px(y, ticks[i]);
        buf_add_format(out, "<path class=\"grid\" d=\"M%d %.1fH%d\"/>", LEFT, px, RIGHT);
        buf_add_format(out, "<text class=\"end\" x=\"%d\" y=\"%.1f\">", LEFT - 5, px + 4);
        add_label(out, ticks[i]);
        buf_add_format(out, "%s</text>", unit);
    }
}

static void nothing(buf *out) {
    buf_add_format(out, "<text class=\"mid\" x=\"%d\" y=\"%d\">no values</text></svg>\n", WIDTH / 2,
                   HEIGHT / 2);
}

/* ---- distributions ---- */

static const hist *hist_of(const series *s, size_t offset) {
    return (const hist *)(const void *)((const char *)s->g + offset);
}

static void cdf_curve(buf *out, const hist *h, uint32_t color, const axis *x, const axis *y) {
    uint64_t seen = 0, told = 0;
    buf_add_format(out, "<path class=\"line s%u\" d=\"M%.1f %.1f", color,
                   axis_px(x, (double)h->min / NS_PER_MS), axis_px(y, 0));
    for (size_t i = 0; i < HIST_BUCKETS && seen < h->n; i++) {
        if (h->buckets[i] == 0) continue;
        seen += h->buckets[i];
        if ((seen - told) * CDF_POINTS_MAX < h->n && seen < h->n) continue;
        uint64_t at = hist_at_rank(h, seen);
        buf_add_format(out, "H%.1fV%.1f", axis_px(x, (double)at / NS_PER_MS),
                       axis_px(y, 100.0 * (double)seen / (double)h->n));
        told = seen;
    }
    buf_add_format(out, "\"/><circle class=\"dot s%u\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\"/>", color,
                   axis_px(x, (double)hist_at(h, .99) / NS_PER_MS), axis_px(y, 99));
}

void svg_cdf(buf *out, const char *title, const series *list, size_t n, size_t offset) {
    double lo = INFINITY, hi = 0;
    begin(out, title);
    for (size_t i = 0; i < n; i++) {
        const hist *h = hist_of(&list[i], offset);
        if (h->n == 0) continue;
        lo = fmin(lo,
                  (double)hist_at(h, .05) / NS_PER_MS); // few early values would squeeze the rest
        hi = fmax(hi, (double)h->max / NS_PER_MS);
    }
    if (!isfinite(lo) || hi <= 0) {
        nothing(out);
        return;
    }
    lo = fmax(lo, 0.01);
    axis x = axis_around(lo, fmax(hi, lo), LEFT, RIGHT);
    axis y = axis_from_zero(100, BOTTOM, TOP);
    grid_x(out, &x, "ms");
    grid_y(out, &y, "%");
    for (size_t i = 0; i < n; i++)
        if (hist_of(&list[i], offset)->n > 0)
            cdf_curve(out, hist_of(&list[i], offset), list[i].color, &x, &y);
    buf_add_str(out, "</svg>\n");
}

/* ---- over time ---- */

typedef double value_of(const group *g, const timeline *t, const timeline_bin *bin);

/* Chunks are counted as they come; how many tokens a chunk holds is known at the end. */
static double tokens_per_s(const group *g, const timeline *t, const timeline_bin *bin) {
    double per_chunk = g->n_chunks > 0 ? (double)g->n_output / (double)g->n_chunks : 1;
    return (double)bin->n_chunks * per_chunk / ((double)t->bin_ns / 1e9);
}

static double gap_ms(const group *g, const timeline *t, const timeline_bin *bin) {
    (void)g, (void)t;
    return (double)bin->gap_max_ns / NS_PER_MS;
}

static void steps(buf *out, const series *s, const timeline *t, value_of *value, const axis *x,
                  const axis *y) {
    double bin_s = (double)t->bin_ns / 1e9, last = axis_px(y, 0);
    buf_add_format(out, "<path class=\"line s%u\" d=\"M%.1f %.1f", s->color, axis_px(x, 0), last);
    for (uint32_t i = 0; i < t->n; i++) {
        double px = axis_px(y, value(s->g, t, &t->bins[i]));
        if (fabs(px - last) >= 0.05) buf_add_format(out, "V%.1f", px);
        last = px;
        buf_add_format(out, "H%.1f", axis_px(x, bin_s * (i + 1)));
    }
    buf_add_str(out, "\"/>");
}

static void over_time(buf *out, const char *title, const series *list, size_t n, value_of *value) {
    double end_s = 0, top = 0;
    uint64_t bin_ns = 0;
    timeline *t = calloc(n, sizeof *t);
    begin(out, title);
    if (t == NULL) out->failed = true;
    for (size_t i = 0; t != NULL && i < n; i++) {
        t[i] = list[i].g->times;
        timeline_widen(&t[i], SVG_BINS_MAX, SVG_BIN_NS_MIN);
        bin_ns = u64_max(bin_ns, t[i].bin_ns);
    }
    for (size_t i = 0; t != NULL && i < n; i++) { // all with the same bins
        timeline_widen(&t[i], SVG_BINS_MAX, bin_ns);
        end_s = fmax(end_s, (double)t[i].bin_ns / 1e9 * t[i].n);
        for (uint32_t k = 0; k < t[i].n; k++)
            top = fmax(top, value(list[i].g, &t[i], &t[i].bins[k]));
    }
    if (end_s <= 0) {
        free(t);
        nothing(out);
        return;
    }
    axis x = {0, end_s, LEFT, RIGHT, false}, y = axis_from_zero(top, BOTTOM, TOP);
    grid_x(out, &x, "s");
    grid_y(out, &y, "");
    for (size_t i = 0; i < n; i++) steps(out, &list[i], &t[i], value, &x, &y);
    buf_add_str(out, "</svg>\n");
    free(t);
}

void svg_rate(buf *out, const series *list, size_t n) {
    over_time(out, "Output tokens per second", list, n, tokens_per_s);
}

void svg_gaps(buf *out, const series *list, size_t n) {
    over_time(out, "Longest gap in each moment (ms)", list, n, gap_ms);
}
