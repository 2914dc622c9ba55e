/* svg_lanes.c - the plot of streams; see svg.h.
 *
 *     wait (thin, grey)   |first token    gap (red)           last token
 *     ====================|###############:::::::::::#########
 *
 * A request takes the first row that is free at its start, so a closed loop of N streams takes N
 * rows.  Requests for which no row is free are left out. */
#include <math.h>

#include "html.h"
#include "svg.h"

enum { WIDTH = 1200, LEFT = 8, RIGHT = 1192, TOP = 6, FOOT = 34, LANE = 12, BAR = 8 };
static const double GAP_TIMES = 4, GAP_MS_MIN = 1, BAR_PX_MIN = 1;

typedef struct picture {
    buf *out;
    const stats *s;
    axis x;
    double gap_ms;
} picture;

static double limit_ms(const stats *s) {
    double median_ms = (double)hist_at(&s->groups[0]->itl, .5) / 1e6;
    if (s->spec->gap_ms > 0) return s->spec->gap_ms;
    return fmax(GAP_MS_MIN, GAP_TIMES * median_ms);
}

static double px_of(const picture *p, const trail_row *r, double after_ms) {
    return axis_px(&p->x, r->sched_s + after_ms / 1000);
}

static void rect(const picture *p, const char *kind, double x0, double x1, double y, double h) {
    buf_add_format(p->out,
                   "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>",
                   kind, x0, y, fmax(x1 - x0, BAR_PX_MIN), h);
}

static void explain(const picture *p, const trail_row *r) {
    static const char *const OUTCOMES[] = {"ok", "failed", "cut off"};
    buf_add_str(p->out, "<g><title>");
    html_text(p->out, p->s->spec->classes[r->class_idx].name);
    buf_add_format(p->out, " %llu", (unsigned long long)r->idx);
    if (r->turn > 0) buf_add_format(p->out, " turn %u", r->turn + 1);
    buf_add_format(p->out, ", at %.2f s: %s", r->sched_s, OUTCOMES[r->outcome]);
    if (r->first_ms >= 0) buf_add_format(p->out, ", first token after %.1f ms", r->first_ms);
    if (r->longest_ms >= 0) buf_add_format(p->out, ", longest gap %.1f ms", r->longest_ms);
    buf_add_format(p->out, ", %llu output tokens, %.1f ms</title>", (unsigned long long)r->n_output,
                   r->end_ms);
}

static void draw(const picture *p, const trail_row *r, uint32_t color, size_t lane) {
    char kind[16];
    double y = TOP + (double)lane * LANE, wait_ms = r->first_ms >= 0 ? r->first_ms : r->end_ms;
    explain(p, r);
    rect(p, "wait", px_of(p, r, 0), px_of(p, r, wait_ms), y + BAR / 2.0 - 1, 2);
    if (r->first_ms >= 0) {
        snprintf(kind, sizeof kind, "bar s%u", color);
        rect(p, kind, px_of(p, r, r->first_ms), px_of(p, r, r->last_ms), y, BAR);
    }
    for (uint32_t i = 0; i < r->gaps.n; i++) {
        double at_ms = r->gaps.items[i].at_ms, ms = r->gaps.items[i].ms;
        if (ms >= p->gap_ms) rect(p, "gap", px_of(p, r, at_ms), px_of(p, r, at_ms + ms), y, BAR);
    }
    if (r->outcome == OUTCOME_FAILED) {
        double x = px_of(p, r, r->end_ms);
        buf_add_format(p->out, "<path class=\"fail\" d=\"M%.1f %.1fl%d %dm0 -%dl-%d %d\"/>", x - 4,
                       y, BAR, BAR, BAR, BAR, BAR);
    }
    buf_add_str(p->out, "</g>\n");
}

/* The greatest hash of the LANE_BARS_MAX requests with the least. */
static uint64_t hash_limit(const trail *t) {
    uint64_t limit = UINT64_MAX;
    size_t n = t->n;
    while (n > LANE_BARS_MAX) {
        limit /= 2;
        n = 0;
        for (size_t i = 0; i < t->n; i++) n += t->rows[i].hash <= limit;
    }
    return limit;
}

static void grid(const picture *p, double bottom) {
    double ticks[AXIS_TICKS_MAX];
    size_t n = axis_ticks(&p->x, ticks);
    for (size_t i = 0; i < n; i++) {
        double px = axis_px(&p->x, ticks[i]);
        buf_add_format(p->out, "<path class=\"grid\" d=\"M%.1f %dV%.0f\"/>", px, TOP, bottom);
        buf_add_format(p->out, "<text class=\"mid\" x=\"%.1f\" y=\"%.0f\">%g s</text>",
                       px < 16           ? 16
                       : px > WIDTH - 20 ? WIDTH - 20
                                         : px,
                       bottom + 18, ticks[i]);
    }
}

typedef struct lanes {
    double free_s[LANES_MAX]; // when the row is free again
    size_t n;
} lanes;

/* The row for a request, or LANES_MAX. */
static size_t lane_take(lanes *l, const trail_row *r) {
    size_t i = 0;
    while (i < l->n && l->free_s[i] > r->sched_s) i++;
    if (i == LANES_MAX) return i;
    if (i == l->n) l->n++;
    l->free_s[i] = r->sched_s + r->end_ms / 1000;
    return i;
}

lanes_told svg_lanes(buf *out, const stats *s,
                     uint32_t (*color_of)(const void *, const trail_row *), const void *ctx) {
    const trail *t = &s->kept;
    double from_s = INFINITY, until_s = 0;
    uint64_t limit = hash_limit(t);
    lanes rows = {.n = 0};
    lanes_told told = {.gap_ms = limit_ms(s)};
    size_t lane_of[TRAIL_MAX];
    for (size_t i = 0; i < t->n; i++) {
        const trail_row *r = &t->rows[i];
        lane_of[i] = r->hash > limit ? LANES_MAX : lane_take(&rows, r);
        if (lane_of[i] == LANES_MAX) continue;
        from_s = fmin(from_s, r->sched_s);
        until_s = fmax(until_s, r->sched_s + r->end_ms / 1000);
        told.n_bars++;
    }
    told.n_left_out = t->n - told.n_bars;
    told.n_lanes = rows.n;
    if (told.n_bars == 0) return told;
    double bottom = TOP + (double)rows.n * LANE;
    picture p = {out, s, {from_s, fmax(until_s, from_s + 1e-6), LEFT, RIGHT, false}, told.gap_ms};
    buf_add_format(
        out, "<svg class=\"wide\" viewBox=\"0 0 %d %.0f\" role=\"img\" aria-label=\"streams\">",
        WIDTH, bottom + FOOT);
    grid(&p, bottom);
    for (size_t i = 0; i < t->n; i++)
        if (lane_of[i] < LANES_MAX) draw(&p, &t->rows[i], color_of(ctx, &t->rows[i]), lane_of[i]);
    buf_add_str(out, "</svg>\n");
    return told;
}
