/* report_html.c - the picture of a run: one page with plots and figures, without scripts and
 * without anything from elsewhere.  The plots are in svg_chart.c and svg_lanes.c. */
#include <errno.h>
#include <jansson.h>
#include <string.h>
#include <time.h>

#include "html.h"
#include "report.h"
#include "svg.h"

enum { HTML_BYTES_MAX = 16 << 20, COLOR_ALL = 8 };

static const char HEAD[] =
    "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
    "'unsafe-inline'\"><title>inferd-bench</title>\n<style>\n"
    ":root{color-scheme:light dark;--bg:#f6f7f9;--card:#fff;--ink:#1b2430;--dim:#5c6878;"
    "--rule:#dde2e9;--gap:#e11d48;--s0:#2563eb;--s1:#d97706;--s2:#059669;--s3:#a21caf;--s4:#0891b2;"
    "--s5:#7c2d12;--s6:#65a30d;--s7:#7c3aed;--s8:#7b8694}\n"
    "@media (prefers-color-scheme:dark){:root{--bg:#12161c;--card:#1a2029;--ink:#e4e9f0;"
    "--dim:#9aa6b5;--rule:#2f3845;--gap:#fb4b6b;--s0:#60a5fa;--s1:#fbbf24;--s2:#34d399;--s3:#"
    "e879f9;"
    "--s4:#22d3ee;--s5:#fb923c;--s6:#a3e635;--s7:#a78bfa;--s8:#8b97a7}}\n"
    "*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--ink);"
    "font:15px/1.5 system-ui,sans-serif}main{max-width:1280px;margin:auto;padding:20px 16px 48px}\n"
    "h1{font-size:22px;margin:0 0 4px;overflow-wrap:anywhere}h2{font-size:17px;margin:28px 0 10px}"
    "p{margin:6px 0;max-width:80ch}.dim{color:var(--dim);font-size:13.5px;overflow-wrap:anywhere}\n"
    ".card{background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:10px}"
    ".grid3{display:grid;gap:12px;grid-template-columns:repeat(auto-fit,minmax(min(100%,330px),1fr)"
    ")}"
    ".scroll{overflow-x:auto}.warn{border-left:4px solid var(--gap);margin:8px 0}\n"
    ".tiles{display:grid;gap:10px;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));"
    "margin:14px 0}.tiles b{display:block;font-size:22px;line-height:1.25}.tiles "
    "span{color:var(--dim);"
    "font-size:13px}\n"
    "table{border-collapse:collapse;font-size:13.5px;font-variant-numeric:tabular-nums}"
    "th,td{padding:4px 9px;text-align:right;white-space:nowrap;border-bottom:1px solid var(--rule)}"
    "th{font-weight:600}thead th{color:var(--dim);font-weight:500}"
    "tr>:first-child{text-align:left;position:sticky;left:0;background:var(--card);"
    "max-width:16em;overflow:hidden;text-overflow:ellipsis}thead "
    "[colspan]{text-align:center}.left td,.left thead th{text-align:left}.left "
    "td{white-space:normal;"
    "overflow-wrap:anywhere}\n"
    ".key{display:flex;flex-wrap:wrap;gap:4px 16px;margin:0 0 8px;font-size:13.5px}"
    ".key i{display:inline-block;width:18px;height:4px;border-radius:2px;margin-right:6px;"
    "vertical-align:middle;background:currentColor}.key span{overflow-wrap:anywhere}"
    ".key em{font-style:normal;color:var(--ink)}\n"
    "svg{display:block;width:100%;height:auto}svg.wide{min-width:900px}"
    "text{font:11.5px system-ui,sans-serif;fill:var(--dim)}.title{font-size:13px;font-weight:600;"
    "fill:var(--ink)}.mid{text-anchor:middle}.end{text-anchor:end}.grid{stroke:var(--rule);"
    "fill:none}.line{fill:none;stroke:currentColor;stroke-width:1.8;stroke-linejoin:round}"
    ".dot,.bar{fill:currentColor}.wait{fill:var(--dim);opacity:.55}.gap{fill:var(--gap)}"
    ".fail{stroke:var(--gap);stroke-width:2;fill:none}g:hover .bar{opacity:.7}\n";

static const char *const KINDS[] = {"class", "model", "priority", "tier", "key", "turn"};

static void item(buf *out, double value, const char *unit, const char *what) {
    buf_add_str(out, "<div class=\"card\"><b>");
    html_number(out, value);
    buf_add_format(out, " %s</b><span>%s</span></div>", unit, what);
}

static void count(buf *out, uint64_t n, const char *what) {
    buf_add_format(out, "<div class=\"card\"><b>%llu</b><span>%s</span></div>",
                   (unsigned long long)n, what);
}

static void warn_begin(buf *out) {
    buf_add_str(out, "<p class=\"card warn\">");
}

static void warnings(buf *out, const stats *s) {
    const group *all = s->groups[0];
    if (s->is_interrupted) {
        warn_begin(out);
        buf_add_str(out, "The run was interrupted: these are the figures until then.</p>");
    }
    if (s->cpu_wall_s > 0 && s->cpu_s / s->cpu_wall_s > GENERATOR_BUSY_WARN) {
        warn_begin(out);
        buf_add_format(
            out, "The generator itself was busy %.0f %% of the time: figures may be its own.</p>",
            100 * s->cpu_s / s->cpu_wall_s);
    }
    if (all->n_by_chunks > 0) {
        warn_begin(out);
        buf_add_format(
            out, "The output tokens of %llu requests are chunks: the server sent no usage.</p>",
            (unsigned long long)all->n_by_chunks);
    }
    if (s->n_again > 0) {
        warn_begin(out);
        buf_add_format(out,
                       "%llu requests had a prompt of the data set that was sent before: a prefix "
                       "cache makes their figures better.</p>",
                       (unsigned long long)s->n_again);
    }
    if (s->groups_dropped) {
        warn_begin(out);
        buf_add_format(out, "There are more than %d groups: the later ones are missing.</p>",
                       GROUPS_MAX);
    }
}

static void models_text(buf *out, const bench_spec *spec) {
    enum { NAMES_MAX = 8 };
    const char *seen[NAMES_MAX];
    size_t n = 0;
    for (size_t i = 0; i < spec->n_classes; i++) {
        for (size_t k = 0; k < spec->classes[i].models.n && n < NAMES_MAX; k++) {
            const char *name = spec->classes[i].models.items[k].text;
            bool is_new = true;
            for (size_t m = 0; m < n; m++) is_new = is_new && strcmp(seen[m], name) != 0;
            if (!is_new) continue;
            if (n > 0) buf_add_str(out, ", ");
            html_text(out, name);
            seen[n++] = name;
        }
    }
    if (n == NAMES_MAX) buf_add_str(out, ", ...");
}

static void head(buf *out, const stats *s) {
    const group *all = s->groups[0];
    double wall_s = stats_wall_s(s);
    char when[64] = "";
    time_t now = time(NULL);
    struct tm local;
    if (localtime_r(&now, &local) != NULL) strftime(when, sizeof when, "%Y-%m-%d %H:%M", &local);
    buf_add_str(out, HEAD);
    for (int i = 0; i <= COLOR_ALL; i++) buf_add_format(out, ".s%d{color:var(--s%d)}", i, i);
    buf_add_str(out, "\n</style></head><body><main>\n<h1>");
    models_text(out, s->spec);
    buf_add_str(out, "</h1><p class=\"dim\">inferd-bench, ");
    html_text(out, s->spec->url);
    buf_add_format(out, ", %s, seed %llu, %.1f s", when, (unsigned long long)s->spec->seed, wall_s);
    if (s->cpu_wall_s > 0)
        buf_add_format(out, ", generator busy %.0f&#160;%%", 100 * s->cpu_s / s->cpu_wall_s);
    buf_add_str(out, "</p>\n");
    warnings(out, s);
    buf_add_str(out, "<div class=\"tiles\">");
    count(out, all->n_ok, "requests ok");
    if (all->n_failed > 0) count(out, all->n_failed, "requests failed");
    if (all->n_cut > 0) count(out, all->n_cut, "requests cut off");
    if (wall_s > 0) item(out, (double)all->n_output / wall_s, "/s", "output tokens");
    if (all->ttft.n > 0) item(out, (double)hist_at(&all->ttft, .5) / 1e6, "ms", "TTFT p50");
    if (all->ttft.n > 0) item(out, (double)hist_at(&all->ttft, .99) / 1e6, "ms", "TTFT p99");
    if (all->tpot.n > 0) item(out, (double)hist_at(&all->tpot, .5) / 1e6, "ms", "TPOT p50");
    if (all->longest.n > 0) item(out, (double)all->longest.max / 1e6, "ms", "longest gap");
    if (all->n_slo > 0)
        item(out, 100 * (double)all->n_slo_met / (double)all->n_slo, "%", "met their targets");
    buf_add_str(out, "</div>\n");
}

/* ---- the table ---- */

static void cell(buf *out, bool exists, double value) {
    buf_add_str(out, "<td>");
    if (exists) html_number(out, value);
    buf_add_str(out, "</td>");
}

static void hist_cells(buf *out, const hist *h, bool has_p90) {
    cell(out, h->n > 0, (double)hist_at(h, .5) / 1e6);
    if (has_p90) cell(out, h->n > 0, (double)hist_at(h, .9) / 1e6);
    cell(out, h->n > 0, (double)hist_at(h, .99) / 1e6);
}

static void table_row(buf *out, const stats *s, const group *g) {
    double wall_s = stats_wall_s(s);
    buf_add_str(out, "<tr><th>");
    if (g != s->groups[0]) buf_add_format(out, "%s ", g->by);
    html_text(out, g->name);
    buf_add_str(out, "</th>");
    const uint64_t COUNTS[] = {g->n_ok, g->n_failed, g->n_cut};
    for (size_t i = 0; i < INFERD_COUNT(COUNTS); i++)
        buf_add_format(out, "<td>%llu</td>", (unsigned long long)COUNTS[i]);
    hist_cells(out, &g->ttft, true);
    hist_cells(out, &g->tpot, true);
    hist_cells(out, &g->itl, false);
    hist_cells(out, &g->e2e, true);
    hist_cells(out, &g->longest, false);
    cell(out, wall_s > 0, (double)g->n_ok / wall_s);
    cell(out, wall_s > 0, (double)g->n_output / wall_s);
    cell(out, g->n_slo > 0, g->n_slo > 0 ? 100 * (double)g->n_slo_met / (double)g->n_slo : 0);
    buf_add_str(out, "</tr>\n");
}

static void table(buf *out, const stats *s) {
    buf_add_str(
        out,
        "<h2>Figures</h2><div class=\"card scroll\"><table><thead><tr><th></th>"
        "<th colspan=\"3\">requests</th><th colspan=\"3\">TTFT ms</th><th colspan=\"3\">TPOT "
        "ms</th>"
        "<th colspan=\"2\">ITL ms</th><th colspan=\"3\">E2E ms</th><th colspan=\"2\">longest gap "
        "ms</th>"
        "<th colspan=\"2\">per "
        "second</th><th>targets</th></tr><tr><th></th><th>ok</th><th>failed</th>"
        "<th>cut</th><th>p50</th><th>p90</th><th>p99</th><th>p50</th><th>p90</th><th>p99</"
        "th><th>p50</th>"
        "<th>p99</th><th>p50</th><th>p90</th><th>p99</th><th>p50</th><th>p99</th><th>requests</th>"
        "<th>tokens</th><th>met %</th></tr></thead><tbody>\n");
    table_row(out, s, s->groups[0]);
    for (size_t k = 0; k < INFERD_COUNT(KINDS); k++)
        for (uint32_t i = 1; i < s->n_groups; i++)
            if (strcmp(s->groups[i]->by, KINDS[k]) == 0) table_row(out, s, s->groups[i]);
    buf_add_str(out, "</tbody></table></div>\n");
}

/* ---- curves ---- */

static void legend(buf *out, const series *list, size_t n, bool has_others) {
    buf_add_str(out, "<div class=\"key\">");
    for (size_t i = 0; i < n; i++) {
        buf_add_format(out, "<span class=\"s%u\"><i></i><em>", list[i].color);
        html_text(out, list[i].g->name);
        buf_add_str(out, "</em></span>");
    }
    if (has_others)
        buf_add_format(out, "<span class=\"s%d\"><i></i><em>others</em></span>", COLOR_ALL);
    buf_add_str(out, "</div>");
}

static void curves(buf *out, const series *list, size_t n) {
    static const struct {
        const char *title;
        size_t offset;
    } PLOTS[] = {{"Time to first token", offsetof(group, ttft)},
                 {"Time per output token after the first", offsetof(group, tpot)},
                 {"Gap between two chunks (ITL)", offsetof(group, itl)},
                 {"End to end", offsetof(group, e2e)}};
    buf_add_str(out, "<div class=\"grid3\">");
    for (size_t i = 0; i < INFERD_COUNT(PLOTS); i++) {
        buf_add_str(out, "<div class=\"card\">");
        svg_cdf(out, PLOTS[i].title, list, n, PLOTS[i].offset);
        buf_add_str(out, "</div>");
    }
    buf_add_str(out, "<div class=\"card\">");
    svg_rate(out, list, n);
    buf_add_str(out, "</div><div class=\"card\">");
    svg_gaps(out, list, n);
    buf_add_str(out, "</div></div>\n");
}

/* The groups of a kind, those with the most requests first; "all" behind them. */
static size_t kind_series(const stats *s, const char *by, series out[SERIES_MAX],
                          size_t *n_missing) {
    size_t n = 0;
    *n_missing = 0;
    for (uint32_t i = 1; i < s->n_groups; i++) {
        const group *g = s->groups[i];
        if (strcmp(g->by, by) != 0) continue;
        size_t at = n;
        while (at > 0 && out[at - 1].g->n_offered < g->n_offered) at--;
        if (n == SERIES_MAX - 1) ++*n_missing;
        if (at == SERIES_MAX - 1) continue;
        if (n < SERIES_MAX - 1) n++;
        for (size_t k = n - 1; k > at; k--) out[k] = out[k - 1];
        out[at].g = g;
    }
    for (size_t i = 0; i < n; i++) out[i].color = (uint32_t)i;
    if (n > 0) out[n++] = (series){s->groups[0], COLOR_ALL};
    return n;
}

static void kind_section(buf *out, const series *list, size_t n, size_t n_missing, const char *by) {
    buf_add_format(out, "<h2>By %s</h2>", by);
    legend(out, list, n, false);
    if (n_missing > 0)
        buf_add_format(
            out, "<p class=\"dim\">%zu more are not drawn (limit: %d); the table has them.</p>",
            n_missing, SERIES_MAX - 1);
    curves(out, list, n);
}

/* ---- streams ---- */

/* The kind that colors the streams: the first with several groups. */
typedef struct coloring {
    const stats *s;
    const char *by; // NULL: one color
    series list[SERIES_MAX];
    size_t n;
} coloring;

static uint32_t color_of(const void *ctx, const trail_row *r) {
    const coloring *c = ctx;
    const request_plan plan = {
        .class_idx = r->class_idx, .model = r->model, .key = r->key, .turn = r->turn};
    char name[GROUP_NAME_BYTES];
    if (c->by == NULL) return 0;
    if (!stats_group_name(c->s, c->by, &plan, name)) return COLOR_ALL;
    for (size_t i = 0; i < c->n; i++)
        if (strcmp(c->list[i].g->by, c->by) == 0 && strcmp(c->list[i].g->name, name) == 0)
            return c->list[i].color;
    return COLOR_ALL;
}

static void streams(buf *out, const stats *s) {
    static const char *const BY[] = {"class", "model", "key", "turn"};
    coloring c = {.s = s};
    size_t n_missing = 0;
    for (size_t i = 0; c.n == 0 && i < INFERD_COUNT(BY); i++) {
        c.n = kind_series(s, BY[i], c.list, &n_missing);
        c.by = c.n > 0 ? BY[i] : NULL;
    }
    buf_add_str(out, "<h2>Streams</h2>");
    if (c.n > 1) legend(out, c.list, c.n - 1, n_missing > 0);
    buf_add_str(out, "<div class=\"card scroll\">");
    lanes_told told = svg_lanes(out, s, color_of, &c);
    buf_add_str(
        out,
        "</div><p class=\"dim\">A bar is a request: a thin line from its scheduled start to the "
        "first token, then the stream. Red: gaps of ");
    html_number(out, told.gap_ms);
    buf_add_format(out, " ms and more (the %d longest of each request)%s. &#215;: failed. ",
                   GAPS_KEPT_MAX, s->spec->gap_ms > 0 ? "" : ", 4 times the median gap");
    buf_add_format(out, "%zu of %llu requests are drawn", told.n_bars,
                   (unsigned long long)s->kept.n_seen);
    if (told.n_bars < s->kept.n_seen)
        buf_add_format(out, ": a random sample (limits: %d requests, %d rows)", LANE_BARS_MAX,
                       LANES_MAX);
    buf_add_str(out, ".</p>\n");
}

/* ---- the rest ---- */

static void errors(buf *out, const stats *s) {
    const tally *t = &s->groups[0]->errors;
    if (t->n == 0) return;
    buf_add_str(
        out, "<h2>Errors</h2><div class=\"card scroll\"><table class=\"left\"><thead><tr><th>code"
             "</th><th>requests</th><th>first text</th></tr></thead><tbody>");
    for (uint32_t i = 0; i < t->n; i++) {
        buf_add_str(out, "<tr><th>");
        html_text(out, t->entries[i].name);
        buf_add_format(out, "</th><td>%llu</td><td>", (unsigned long long)t->entries[i].n);
        html_text(out, t->entries[i].text);
        buf_add_str(out, "</td></tr>");
    }
    buf_add_str(out, "</tbody></table></div>\n");
}

static void load_table(buf *out, const bench_spec *spec) {
    json_t *load = bench_spec_json(spec);
    size_t i;
    json_t *one;
    if (load == NULL) out->failed = true;
    buf_add_str(out, "<h2>The load</h2><div class=\"card scroll\"><table class=\"left\"><tbody>");
    json_array_foreach(json_object_get(load, "classes"), i, one) {
        const char *key;
        json_t *value;
        buf_add_str(out, "<tr><th>");
        html_text(out, json_string_value(json_object_get(one, "name")));
        buf_add_str(out, "</th><td>");
        json_object_foreach(json_object_get(one, "settings"), key, value) {
            html_text(out, key);
            buf_add_char(out, ' ');
            html_text(out, json_string_value(value));
            buf_add_str(out, " &#160; ");
        }
        buf_add_str(out, "</td></tr>");
    }
    buf_add_str(out, "</tbody></table></div>\n");
    json_decref(load);
}

static const char NOTES[] =
    "<h2>How to read it</h2><p>All times count from the scheduled start of a request, so a wait "
    "before it "
    "was sent is part of them. A curve tells which part of the values is at most that long: the "
    "further "
    "left the better, and a long flat end is a tail. The dot is p99. TPOT is the mean time of the "
    "tokens "
    "after the first one of a request; the time to the first token is not in it. A gap is the time "
    "between "
    "two chunks with text. Curves of requests leave out requests that failed.</p>";

inferd_status report_html(stats *s, const char *path, inferd_err *err) {
    buf out;
    buf_init(&out, HTML_BYTES_MAX);
    head(&out, s);
    streams(&out, s);
    table(&out, s);
    size_t n_kinds = 0;
    for (size_t k = 0; k < INFERD_COUNT(KINDS); k++) {
        series list[SERIES_MAX];
        size_t n_missing, n = kind_series(s, KINDS[k], list, &n_missing);
        if (n == 0) continue;
        n_kinds++;
        kind_section(&out, list, n, n_missing, KINDS[k]);
    }
    if (n_kinds == 0) {
        series all = {s->groups[0], 0};
        buf_add_str(&out, "<h2>Distributions and course</h2>");
        curves(&out, &all, 1);
    }
    errors(&out, s);
    load_table(&out, s->spec);
    buf_add_format(&out,
                   "%s<p class=\"dim\">Curves have at most %d points, plots over time at most %d "
                   "moments. Percentiles are off by at most 0.39 %%.</p>\n</main></body></html>\n",
                   NOTES, CDF_POINTS_MAX, SVG_BINS_MAX);
    inferd_status status = INFERD_OK;
    FILE *to = out.failed ? NULL : fopen(path, "we");
    if (out.failed)
        status = inferd_fail(err, INFERD_ENOMEM, "no memory for the page");
    else if (to == NULL)
        status = inferd_fail(err, INFERD_EIO, "%s: %s", path, strerror(errno));
    bool good = to != NULL && fwrite(out.p, 1, out.n, to) == out.n;
    if (to != NULL) good = fclose(to) == 0 && good;
    if (status == INFERD_OK && !good)
        status = inferd_fail(err, INFERD_EIO, "writing %s failed", path);
    buf_deinit(&out);
    return status;
}
