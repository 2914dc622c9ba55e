/* plot.c - see plot.h.
 *
 *     +--------------------------------------------+ 0
 *     | title                                      |
 *     |   +------------------------------+  legend | TOP
 *     |   |   area: an <svg> of its own, |         |
 *     |   |   which clips its content    |         |
 *     |   +------------------------------+         | HEIGHT - BOTTOM
 *     |     ticks, x label                         |
 *     +--------------------------------------------+ HEIGHT
 *    0    LEFT                    WIDTH - right   WIDTH */
#include "plot.h"

#include "text.h"

enum { WIDTH = 760, HEIGHT = 420, LEFT = 72, TOP = 44, BOTTOM = 56, RIGHT = 20 };
enum { LEGEND_LINE = 18, LEGEND_MARK = 26, TICKS = 6, DOTS_MAX = 40, TICKS_MAX = 64 };
static const double CHAR_WIDTH = 6.6; // px of an average letter at 12 px
static const double LEGEND_WIDTH_MAX = 240;
static const double BAR_SHARE = 0.8; // of the width of a group; the rest is space between groups

static const char *const LIGHT[PLOT_SERIES_MAX] = {"#0063b1", "#c24a00", "#00795a", "#a8327d",
                                                   "#6b5b00", "#5b46c2", "#8a1c1c", "#4d5560"};
static const char *const DARK[PLOT_SERIES_MAX] = {"#6cb6ff", "#ff9a5c", "#4fd6a8", "#f08cc9",
                                                  "#e0c84f", "#b3a4ff", "#ff8080", "#b8c0cc"};
static const char *const DASHES[PLOT_SERIES_MAX] = {"none", "7 3",     "2 3",     "9 3 2 3",
                                                    "12 4", "4 2 4 6", "1 2 6 2", "5 5"};

typedef struct axis {
    double min, max; // range of the axis
    double from_px, to_px;
    double step; // between ticks
} axis;

static double at(const axis *a, double value) {
    return a->from_px + (value - a->min) / (a->max - a->min) * (a->to_px - a->from_px);
}

/* ---- checks ---- */

static inferd_status check_series(const plot *p, uint32_t idx, inferd_err *err) {
    const plot_series *s = &p->series[idx];
    bool is_bar = p->n_bars > 0;
    if ((s->mark == PLOT_BAR) != is_bar)
        return inferd_fail(err, INFERD_EINVAL, "series %u: bars and lines do not mix", idx);
    if (s->n == 0) return inferd_fail(err, INFERD_EINVAL, "series %u has no points", idx);
    if (is_bar && s->n != p->n_bars)
        return inferd_fail(err, INFERD_EINVAL, "series %u has %zu bars, expected %u", idx, s->n,
                           p->n_bars);
    if ((s->lo == NULL) != (s->hi == NULL))
        return inferd_fail(err, INFERD_EINVAL, "series %u has only one of lo and hi", idx);
    for (size_t i = 0; i < s->n; i++) {
        if (isinf(s->y[i]))
            return inferd_fail(err, INFERD_EINVAL, "series %u: y[%zu] is infinite", idx, i);
        if (s->lo != NULL && !isnan(s->y[i]) && !(isfinite(s->lo[i]) && isfinite(s->hi[i])))
            return inferd_fail(err, INFERD_EINVAL, "series %u: lo or hi [%zu] is not finite", idx,
                               i);
        if (is_bar) continue;
        if (!isfinite(s->x[i]))
            return inferd_fail(err, INFERD_EINVAL, "series %u: x[%zu] is not finite", idx, i);
        if (i > 0 && s->x[i] < s->x[i - 1])
            return inferd_fail(err, INFERD_EINVAL, "series %u: x[%zu] = %g is behind %g", idx, i,
                               s->x[i], s->x[i - 1]);
    }
    return INFERD_OK;
}

static inferd_status check(const plot *p, inferd_err *err) {
    if (p->n_series == 0 || p->n_series > PLOT_SERIES_MAX)
        return inferd_fail(err, INFERD_EINVAL, "%u series, expected 1 to %d", p->n_series,
                           PLOT_SERIES_MAX);
    if (p->n_bars > PLOT_BARS_MAX)
        return inferd_fail(err, INFERD_EINVAL, "%u bars, at most %d", p->n_bars, PLOT_BARS_MAX);
    if (p->n_levels > PLOT_LEVELS_MAX)
        return inferd_fail(err, INFERD_EINVAL, "%u levels, at most %d", p->n_levels,
                           PLOT_LEVELS_MAX);
    if (p->has_y_range && !(isfinite(p->y_min) && isfinite(p->y_max) && p->y_min < p->y_max))
        return inferd_fail(err, INFERD_EINVAL, "the range of y is %g to %g", p->y_min, p->y_max);
    for (uint32_t i = 0; i < p->n_levels; i++)
        if (!isfinite(p->levels[i]))
            return inferd_fail(err, INFERD_EINVAL, "level %u is not finite", i);
    for (uint32_t i = 0; i < p->n_series; i++) {
        inferd_status s = check_series(p, i, err);
        if (s != INFERD_OK) return s;
    }
    return INFERD_OK;
}

/* ---- axes ---- */

static void widen(double *min, double *max, double value) {
    if (isnan(value)) return;
    *min = fmin(*min, value);
    *max = fmax(*max, value);
}

/* 1, 2 or 5 times a power of ten, so that there are about TICKS. */
static double step_of(double range) {
    double raw = range / TICKS, power = pow(10, floor(log10(raw)));
    static const double NICE[] = {1, 2, 5, 10};
    for (size_t i = 0; i < INFERD_COUNT(NICE); i++)
        if (raw <= NICE[i] * power * (1 + 1e-9)) return NICE[i] * power;
    return 10 * power;
}

/* A range without width is widened, so that its only value is in the middle. */
static void axis_set(axis *a, double min, double max, bool rounds) {
    if (!(max - min > 1e-12 * fmax(fabs(min), fabs(max)))) {
        double half = min == 0 ? 1 : fabs(min) / 2;
        min -= half;
        max += half;
    }
    a->step = step_of(max - min);
    a->min = rounds ? floor(min / a->step + 1e-9) * a->step : min;
    a->max = rounds ? ceil(max / a->step - 1e-9) * a->step : max;
}

static axis y_axis(const plot *p) {
    double min = INFINITY, max = -INFINITY;
    for (uint32_t i = 0; i < p->n_series; i++)
        for (size_t k = 0; k < p->series[i].n; k++) {
            const plot_series *s = &p->series[i];
            widen(&min, &max, s->y[k]);
            if (s->lo != NULL && !isnan(s->y[k]))
                widen(&min, &max, s->lo[k]), widen(&min, &max, s->hi[k]);
        }
    for (uint32_t i = 0; i < p->n_levels; i++) widen(&min, &max, p->levels[i]);
    if (p->n_bars > 0 || min > max) widen(&min, &max, 0);
    axis a = {.from_px = HEIGHT - TOP - BOTTOM, .to_px = 0}; // inside the area
    if (p->has_y_range)
        axis_set(&a, p->y_min, p->y_max, false);
    else
        axis_set(&a, min, max, true);
    return a;
}

static axis x_axis(const plot *p, double width) {
    double min = INFINITY, max = -INFINITY;
    for (uint32_t i = 0; i < p->n_series && p->n_bars == 0; i++)
        widen(&min, &max, p->series[i].x[0]), widen(&min, &max, p->series[i].x[p->series[i].n - 1]);
    axis a = {.from_px = 0, .to_px = width};
    if (p->n_bars > 0) {
        a.min = 0, a.max = p->n_bars, a.step = 1;
    } else {
        axis_set(&a, min, max, false);
    }
    return a;
}

static void add_tick_text(buf *out, const axis *a, double value) {
    double most = fmax(fabs(a->min), fabs(a->max));
    char text[40];
    if (most >= 1e7 || a->step < 1e-6) {
        snprintf(text, sizeof text, "%.6g", fabs(value) < a->step / 2 ? 0 : value);
        buf_add_str(out, text);
        return;
    }
    double digits = a->step < 1 ? ceil(-log10(a->step) - 1e-9) : 0;
    text_add_fixed(out, value, (int)digits);
}

/* ---- drawing ---- */

static void add_px(buf *out, double px) {
    text_add_fixed(out, fmin(fmax(px, -1e6), 1e6), 2); // limits numbers far outside the area
}

/* ` name="12.50"` */
static void add_attribute(buf *out, const char *name, double px) {
    buf_add_format(out, " %s=\"", name);
    add_px(out, px);
    buf_add_char(out, '"');
}

static void add_text(buf *out, double x, double y, const char *anchor, const char *prio,
                     const char *more, const char *text) {
    buf_add_str(out, "<text");
    add_attribute(out, "x", x);
    add_attribute(out, "y", y);
    buf_add_format(out, " text-anchor=\"%s\" class=\"%s\" fill=\"#24292f\"%s>", anchor, prio, more);
    text_add(out, text, TEXT_XML);
    buf_add_str(out, "</text>\n");
}

static void add_line(buf *out, double x1, double y1, double x2, double y2, const char *prio,
                     const char *stroke) {
    buf_add_str(out, "<line");
    add_attribute(out, "x1", x1);
    add_attribute(out, "y1", y1);
    add_attribute(out, "x2", x2);
    add_attribute(out, "y2", y2);
    buf_add_format(out, " class=\"%s\" stroke=\"%s\"/>\n", prio, stroke);
}

static void add_style(buf *out) {
    buf_add_str(out, "<style>\n"
                     "text{font:12px sans-serif}.title{font-size:15px;font-weight:600}\n"
                     ".grid{stroke:#d8dee4}.frame{stroke:#6e7781}.level{stroke-dasharray:3 3}"
                     ".whisker{stroke-width:2}\n");
    buf_add_str(out, "@media (prefers-color-scheme:dark){\n"
                     ".ground{fill:#161b22}text{fill:#e6edf3}.grid{stroke:#30363d}"
                     ".frame,.level{stroke:#8b949e}.whisker{stroke:#e6edf3}\n");
    for (int i = 0; i < PLOT_SERIES_MAX; i++)
        buf_add_format(out, ".s%d{stroke:%s}.f%d{fill:%s}", i, DARK[i], i, DARK[i]);
    buf_add_str(out, "\n}\n</style>\n");
}

static void add_y_axis(buf *out, const plot *p, const axis *y, double right_px) {
    int n = 0;
    for (double k = ceil(y->min / y->step - 1e-9); n < TICKS_MAX; k++, n++) {
        double value = k * y->step;
        if (value > y->max + y->step * 1e-9) break;
        double px = TOP + at(y, value);
        buf text;
        buf_init(&text, 0);
        add_tick_text(&text, y, value);
        add_line(out, LEFT, px, right_px, px, "grid", "#d8dee4");
        add_text(out, LEFT - 8, px + 4, "end", "tick", "", buf_cstr(&text));
        buf_deinit(&text);
    }
    for (uint32_t i = 0; i < p->n_levels; i++) {
        double px = TOP + at(y, p->levels[i]);
        if (p->levels[i] >= y->min && p->levels[i] <= y->max)
            add_line(out, LEFT, px, right_px, px, "level", "#6e7781");
    }
    char rotate[64];
    snprintf(rotate, sizeof rotate, " transform=\"rotate(-90 16 %d)\"",
             TOP + (HEIGHT - TOP - BOTTOM) / 2);
    add_text(out, 16, TOP + (HEIGHT - TOP - BOTTOM) / 2, "middle", "label", rotate, p->y_label);
}

static void add_x_axis(buf *out, const plot *p, const axis *x, double right_px) {
    const double foot = HEIGHT - BOTTOM;
    int n = 0;
    if (p->n_bars > 0)
        for (uint32_t i = 0; i < p->n_bars; i++)
            add_text(out, LEFT + at(x, i + 0.5), foot + 18, "middle", "tick", "", p->bar_names[i]);
    else
        for (double k = ceil(x->min / x->step - 1e-9); n < TICKS_MAX; k++, n++) {
            double value = k * x->step;
            if (value > x->max + x->step * 1e-9) break;
            buf text;
            buf_init(&text, 0);
            add_tick_text(&text, x, value);
            add_line(out, LEFT + at(x, value), foot, LEFT + at(x, value), foot + 5, "frame",
                     "#6e7781");
            add_text(out, LEFT + at(x, value), foot + 18, "middle", "tick", "", buf_cstr(&text));
            buf_deinit(&text);
        }
    add_line(out, LEFT, foot, right_px, foot, "frame", "#6e7781");
    add_line(out, LEFT, TOP, LEFT, foot, "frame", "#6e7781");
    add_text(out, (LEFT + right_px) / 2, HEIGHT - 14, "middle", "label", "", p->x_label);
}

static void add_legend(buf *out, const plot *p, double left_px) {
    for (uint32_t i = 0; i < p->n_series; i++) {
        double px = TOP + 8 + i * LEGEND_LINE;
        if (p->n_bars > 0) {
            buf_add_str(out, "<rect");
            add_attribute(out, "x", left_px);
            add_attribute(out, "y", px - 6);
            buf_add_format(out, " width=\"20\" height=\"12\" class=\"f%u\" fill=\"%s\"/>\n", i,
                           LIGHT[i]);
        } else {
            buf_add_format(out, "<g stroke-width=\"2\" stroke-dasharray=\"%s\">", DASHES[i]);
            char prio[16];
            snprintf(prio, sizeof prio, "s%u", i);
            add_line(out, left_px, px, left_px + 20, px, prio, LIGHT[i]);
            buf_add_str(out, "</g>\n");
        }
        add_text(out, left_px + LEGEND_MARK, px + 4, "start", "legend", "", p->series[i].name);
    }
}

/* The points of [from, to) that a column of pixels needs: first, minimum, maximum, last, in order
 * and without duplicates. */
static size_t keep(const plot_series *s, size_t from, size_t to, size_t out[4]) {
    size_t least = from, greatest = from, n = 0;
    for (size_t i = from; i < to; i++) {
        if (s->y[i] < s->y[least]) least = i;
        if (s->y[i] > s->y[greatest]) greatest = i;
    }
    const size_t wanted[4] = {from, least < greatest ? least : greatest,
                              least < greatest ? greatest : least, to - 1};
    for (int i = 0; i < 4; i++)
        if (n == 0 || wanted[i] > out[n - 1]) out[n++] = wanted[i];
    return n;
}

static void add_point(buf *out, const plot_series *s, const axis *x, const axis *y, size_t i,
                      bool begins) {
    if (begins) {
        buf_add_char(out, 'M');
    } else if (s->mark == PLOT_STEP) {
        buf_add_char(out, 'H');
        add_px(out, at(x, s->x[i]));
        buf_add_char(out, 'V');
        add_px(out, at(y, s->y[i]));
        return;
    } else {
        buf_add_char(out, 'L');
    }
    add_px(out, at(x, s->x[i]));
    buf_add_char(out, ' ');
    add_px(out, at(y, s->y[i]));
}

static void add_path(buf *out, const plot_series *s, uint32_t idx, const axis *x, const axis *y) {
    bool thins = s->n > 4 * (size_t)x->to_px, begins = true;
    buf_add_format(out,
                   "<path class=\"s%u\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\" "
                   "stroke-linejoin=\"round\" stroke-dasharray=\"%s\" d=\"",
                   idx, LIGHT[idx], DASHES[idx]);
    for (size_t i = 0; i < s->n;) {
        size_t kept[4] = {i}, n_kept = 1, to = i + 1;
        if (isnan(s->y[i])) {
            begins = true;
            i++;
            continue;
        }
        if (thins) {
            double column = floor(at(x, s->x[i]));
            while (to < s->n && !isnan(s->y[to]) && floor(at(x, s->x[to])) == column) to++;
            n_kept = keep(s, i, to, kept);
        }
        for (size_t k = 0; k < n_kept; k++, begins = false)
            add_point(out, s, x, y, kept[k], begins);
        i = to;
    }
    buf_add_str(out, "\"/>\n");
}

/* Forwards along hi, back along lo; a gap ends a piece. */
static void add_band(buf *out, const plot_series *s, uint32_t idx, const axis *x, const axis *y) {
    for (size_t from = 0; from < s->n;) {
        size_t to = from;
        while (to < s->n && !isnan(s->y[to])) to++;
        if (to > from + 1) {
            buf_add_format(out,
                           "<polygon class=\"f%u\" fill=\"%s\" fill-opacity=\"0.18\" points=\"",
                           idx, LIGHT[idx]);
            for (size_t i = from; i < 2 * to - from; i++) {
                size_t k = i < to ? i : 2 * to - 1 - i;
                add_px(out, at(x, s->x[k]));
                buf_add_char(out, ',');
                add_px(out, at(y, i < to ? s->hi[k] : s->lo[k]));
                buf_add_char(out, ' ');
            }
            buf_add_str(out, "\"/>\n");
        }
        from = to + 1;
    }
}

static void add_dots(buf *out, const plot_series *s, uint32_t idx, const axis *x, const axis *y) {
    for (size_t i = 0; i < s->n; i++) {
        if (isnan(s->y[i])) continue;
        buf_add_str(out, "<circle");
        add_attribute(out, "cx", at(x, s->x[i]));
        add_attribute(out, "cy", at(y, s->y[i]));
        buf_add_format(out, " r=\"3\" class=\"f%u\" fill=\"%s\"/>\n", idx, LIGHT[idx]);
    }
}

static void add_bars(buf *out, const plot *p, uint32_t idx, const axis *x, const axis *y) {
    const plot_series *s = &p->series[idx];
    double room = BAR_SHARE / p->n_series;
    for (size_t i = 0; i < s->n; i++) {
        if (isnan(s->y[i])) continue;
        double from = at(x, (double)i + (1 - BAR_SHARE) / 2 + room * idx);
        double width = at(x, room) - at(x, 0), middle = from + width / 2;
        double zero = at(y, fmin(fmax(0, y->min), y->max)), top = at(y, s->y[i]);
        buf_add_str(out, "<rect");
        add_attribute(out, "x", from);
        add_attribute(out, "y", fmin(zero, top));
        add_attribute(out, "width", width);
        add_attribute(out, "height", fabs(zero - top));
        buf_add_format(out, " class=\"f%u\" fill=\"%s\"/>\n", idx, LIGHT[idx]);
        if (s->lo != NULL)
            add_line(out, middle, at(y, s->lo[i]), middle, at(y, s->hi[i]), "whisker", "#24292f");
    }
}

static double legend_width(const plot *p) {
    size_t longest = 0;
    for (uint32_t i = 0; i < p->n_series; i++)
        longest = size_max(longest, text_columns(p->series[i].name));
    if (p->n_series == 1) return 0; // the title names it
    return fmin((double)longest * CHAR_WIDTH + LEGEND_MARK + 12, LEGEND_WIDTH_MAX);
}

inferd_status plot_svg(const plot *p, buf *out, inferd_err *err) {
    inferd_status s = check(p, err);
    if (s != INFERD_OK) {
        inferd_context(err, "plot %s", p->title);
        return s;
    }
    double legend = legend_width(p), right_px = WIDTH - RIGHT - legend;
    axis x = x_axis(p, right_px - LEFT), y = y_axis(p);
    buf_add_format(out,
                   "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
                   "height=\"%d\" role=\"img\">\n<title>",
                   WIDTH, HEIGHT, WIDTH, HEIGHT);
    text_add(out, p->title, TEXT_XML);
    buf_add_str(out, "</title>\n");
    add_style(out);
    buf_add_format(out, "<rect class=\"ground\" width=\"%d\" height=\"%d\" fill=\"#ffffff\"/>\n",
                   WIDTH, HEIGHT);
    add_text(out, LEFT, 26, "start", "title", "", p->title);
    add_y_axis(out, p, &y, right_px);
    buf_add_format(out, "<svg x=\"%d\" y=\"%d\"", LEFT, TOP);
    add_attribute(out, "width", right_px - LEFT);
    /* Unless a range was set, everything is inside the area except for half of a line's width. */
    buf_add_format(out, " height=\"%d\" overflow=\"%s\">\n", HEIGHT - TOP - BOTTOM,
                   p->has_y_range ? "hidden" : "visible");
    for (uint32_t i = 0; i < p->n_series; i++)
        if (p->series[i].lo != NULL && p->n_bars == 0) add_band(out, &p->series[i], i, &x, &y);
    for (uint32_t i = 0; i < p->n_series; i++) {
        const plot_series *one = &p->series[i];
        if (p->n_bars > 0) {
            add_bars(out, p, i, &x, &y);
            continue;
        }
        add_path(out, one, i, &x, &y);
        if (one->mark == PLOT_LINE && one->n <= DOTS_MAX) add_dots(out, one, i, &x, &y);
    }
    buf_add_str(out, "</svg>\n");
    add_x_axis(out, p, &x, right_px);
    if (p->n_series > 1) add_legend(out, p, right_px + 12);
    buf_add_str(out, "</svg>\n");
    if (out->failed) return inferd_fail(err, INFERD_ENOMEM, "no memory for plot %s", p->title);
    return INFERD_OK;
}
