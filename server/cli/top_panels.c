/* top_panels.c - see top_panels.h. */
#include "top_panels.h"

#include <math.h>
#include <string.h>
#include <time.h>

#include "ctl_json.h"
#include "ctl_show.h"
#include "top_text.h"

enum { WIDE = 92 }; // columns, from which on there is room for more
typedef unsigned long long ull;

/* ---- figures ---- */

static void add_percent(buf *out, double ratio) {
    buf_add_format(out, "%.0f %%", ratio * 100);
}

static void add_rate(buf *out, double per_s) {
    show_add_count(out, per_s > 0 ? (uint64_t)fmin(per_s + 0.5, 1e18) : 0);
}

static void add_ms(buf *out, double ms) {
    if (isnan(ms))
        buf_add_char(out, '-');
    else if (ms < 10)
        buf_add_format(out, ms < 1 ? "%.2f ms" : "%.1f ms", ms);
    else
        show_add_seconds(out, ms / 1000);
}

static void end_line(buf *line, uint32_t width, buf *out) {
    top_add_line(out, buf_cstr(line), width);
    buf_deinit(line);
    *line = (buf){0};
}

/* ---- head ---- */

static void add_daemon(buf *line, const top_state *s, uint64_t now_us) {
    double started = ctl_number(s->daemon, "started_at");
    double up_s = (double)top_state_now_ms(s, now_us) / 1000 - started;
    top_add_mark(line, TOP_STRONG);
    buf_add_str(line, "inferd ");
    top_add_text(line, ctl_text(s->daemon, "version"), 16);
    top_add_mark(line, TOP_NORMAL);
    buf_add_str(line, "  up ");
    show_add_seconds(line, started > 0 && up_s > 0 ? floor(up_s) : 0);
    buf_add_format(line, "   running %llu  waiting %llu  paused %llu   places %llu of %llu",
                   (ull)ctl_count(s->queue, "running"), (ull)ctl_count(s->queue, "waiting"),
                   (ull)ctl_count(s->queue, "paused"), (ull)ctl_count(s->queue, "places_used"),
                   (ull)ctl_count(s->queue, "places"));
    top_add_mark(line, TOP_WARNING);
    if (ctl_is(s->daemon, "draining")) buf_add_str(line, "  shutting down");
    if (ctl_count(s->daemon, "unsaved") > 0)
        buf_add_format(line, "  %llu not in the file", (ull)ctl_count(s->daemon, "unsaved"));
}

static void add_latency(buf *line, const top_state *s, const char *name, top_history p50) {
    buf_add_format(line, "   %s p50 ", name);
    add_ms(line, top_history_newest(s, p50));
    buf_add_str(line, " p95 ");
    add_ms(line, top_history_newest(s, p50 + 1));
}

void top_add_head(const top_state *s, uint64_t now_us, uint32_t width, buf *out) {
    buf line = {0};
    add_daemon(&line, s, now_us);
    end_line(&line, width, out);
    buf_add_str(&line, "tokens/s ");
    add_rate(&line, top_history_mean(s, TOP_TOKENS_IN));
    buf_add_str(&line, " in, ");
    add_rate(&line, top_history_mean(s, TOP_TOKENS_OUT));
    buf_add_str(&line, " out");
    add_latency(&line, s, "TTFT", TOP_TTFT_P50);
    add_latency(&line, s, "ITL", TOP_ITL_P50);
    end_line(&line, width, out);
}

/* ---- devices ---- */

/* Uses of pages, in the order of the bar; a name begins with the letter of its cells. */
typedef struct page_use {
    const char *member, *name;
    char letter;
    top_mark mark;
    bool of_host; // a device with memory of its own has them in host memory
} page_use;

static const page_use uses[] = {{"pages.weight", "Weights", 'W', TOP_WEIGHTS},
                                {"pages.kv", "KV", 'K', TOP_KV},
                                {"pages.cached", "cached", 'c', TOP_CACHED},
                                {"pages.warm", "warm", 'w', TOP_WARM, true},
                                {"pages.parked", "swapped", 's', TOP_SWAPPED, true},
                                {"pages.free", "free", '.', TOP_FREE}};
enum { USES = INFERD_COUNT(uses), USE_FREE = USES - 1 };

/* Of the free pages, those that the device may use: the others are host memory. */
static uint64_t device_free(const json_t *d) {
    return u64_min(ctl_count(d, "pages.device_free"), ctl_count(d, "pages.free"));
}

/* Pages of a use in the device's own memory, or, where it is the same, in that of the host. */
static uint64_t pages_in_bar(const json_t *d, const page_use *u) {
    bool elsewhere = u->of_host && json_is_false(ctl_member(d, "one_memory"));
    return elsewhere ? 0 : u64_min(ctl_count(d, u->member), UINT32_MAX);
}

/* A bar of `width` cells; each use that has pages has a cell as long as there is room.  Free host
 * memory is blank. */
static void add_bar(buf *line, const json_t *d, uint32_t width) {
    uint64_t n[USES], total = 0;
    uint32_t cells[USES], used = 0;
    for (int i = 0; i < USES; i++) total += n[i] = pages_in_bar(d, &uses[i]);
    for (int i = 0; i < USE_FREE; i++) {
        cells[i] = total == 0 ? 0 : (uint32_t)((n[i] * width + total / 2) / total);
        if (cells[i] == 0 && n[i] > 0) cells[i] = 1;
        cells[i] = u32_min(cells[i], width - used);
        used += cells[i];
    }
    bool one_memory = !json_is_false(ctl_member(d, "one_memory"));
    uint64_t of_host = one_memory ? u64_less(n[USE_FREE], device_free(d)) : 0;
    uint32_t blank = total == 0 ? 0 : (uint32_t)((of_host * width + total - 1) / total);
    if (one_memory && device_free(d) == 0) blank = width;
    blank = u32_min(blank, width - used);
    cells[USE_FREE] = width - used - blank;
    buf_add_char(line, '[');
    for (int i = 0; i < USES; i++) {
        if (cells[i] > 0) top_add_mark(line, uses[i].mark);
        for (uint32_t k = 0; k < cells[i]; k++) buf_add_char(line, uses[i].letter);
    }
    top_add_mark(line, TOP_NORMAL);
    for (uint32_t k = 0; k < blank; k++) buf_add_char(line, ' ');
    buf_add_char(line, ']');
}

static void add_part(buf *line, const char *name, uint64_t n_free, uint64_t n, uint64_t page) {
    buf_add_str(line, name);
    show_add_size(line, n_free * page);
    buf_add_str(line, " of ");
    show_add_size(line, n * page);
}

static void add_legend(buf *line, const json_t *d) {
    uint64_t page = ctl_count(d, "page_bytes"), n_host = ctl_count(d, "pages.host");
    add_part(line, " free ", device_free(d), ctl_count(d, "pages.device"), page);
    for (int i = 0; i < USE_FREE; i++) {
        uint64_t n = ctl_count(d, uses[i].member);
        if (n == 0 && i > 2) continue;
        buf_add_str(line, "  ");
        top_add_mark(line, uses[i].mark);
        buf_add_format(line, "%s ", uses[i].name);
        top_add_mark(line, TOP_NORMAL);
        show_add_size(line, n * page);
    }
    if (n_host > 0) add_part(line, "  host free ", ctl_count(d, "pages.host_free"), n_host, page);
}

static void add_troubles(buf *line, const json_t *d) {
    const char *drill = ctl_text(d, "drill");
    top_add_mark(line, TOP_BAD);
    if (ctl_is(d, "lost")) buf_add_str(line, "  lost");
    if (ctl_is(d, "thrashing")) buf_add_str(line, "  thrashing");
    if (drill[0] != 0 && strcmp(drill, "none") != 0) {
        buf_add_str(line, "  drill ");
        top_add_text(line, drill, 16);
    }
    top_add_mark(line, TOP_NORMAL);
}

static void add_step(buf *line, const top_state *s, const json_t *d) {
    const json_t *step = json_object_get(d, "step");
    if (!json_is_object(step)) {
        buf_add_str(line, "no step");
        return;
    }
    const json_t *m = top_rows_find(&s->models, ctl_count(step, "model"));
    top_add_text(line, m == NULL ? "a model that left" : ctl_text(m, "name"), 20);
    buf_add_str(line, ": ");
    add_ms(line, ctl_number(step, "us") / 1000);
    buf_add_format(line, ", %llu seqs, rows %llu + %llu", (ull)ctl_count(step, "n"),
                   (ull)ctl_count(step, "prefill"), (ull)ctl_count(step, "decode"));
}

static void add_device_times(buf *line, const json_t *d) {
    buf_add_str(line, "  steps ");
    add_percent(line, ctl_number(d, "recent.step"));
    buf_add_str(line, ", loads ");
    add_percent(line, ctl_number(d, "recent.load"));
    buf_add_str(line, ", idle ");
    add_percent(line, ctl_number(d, "recent.idle"));
}

/* Where the time went since the device was opened. */
static void add_time_spent(buf *line, const json_t *d) {
    static const char *const parts[][2] = {
        {"account.requests", "requests"},   {"account.load", "loading"},
        {"account.recompute", "recompute"}, {"account.move", "swap"},
        {"account.host", "host"},           {"account.idle", "idle"}};
    double total = 0;
    for (size_t i = 0; i < INFERD_COUNT(parts); i++) total += ctl_number(d, parts[i][0]);
    buf_add_str(line, " since the start:");
    for (size_t i = 0; i < INFERD_COUNT(parts); i++) {
        buf_add_format(line, "%s %s ", i > 0 ? "," : "", parts[i][1]);
        add_percent(line, total > 0 ? ctl_number(d, parts[i][0]) / total : 0);
    }
}

static void add_device(const top_state *s, const json_t *d, top_device_form form, uint32_t width,
                       buf *out) {
    enum { SHORT_REST = 46 };
    uint32_t name_columns = width >= WIDE ? 14 : 8;
    buf line = {0};
    top_add_mark(&line, TOP_STRONG);
    top_add_cell(&line, ctl_text(d, "name"), name_columns, false);
    top_add_mark(&line, TOP_NORMAL);
    add_troubles(&line, d);
    if (form == TOP_DEVICE_SHORT) {
        buf_add_char(&line, ' ');
        add_bar(&line, d, u32_max(u32_less(width, SHORT_REST + name_columns), 8));
        buf_add_str(&line, " free ");
        show_add_size(&line, device_free(d) * ctl_count(d, "page_bytes"));
        buf_add_str(&line, "  ");
        add_step(&line, s, d);
        end_line(&line, width, out);
        return;
    }
    add_device_times(&line, d);
    buf_add_str(&line, "   ");
    add_step(&line, s, d);
    end_line(&line, width, out);
    add_bar(&line, d, width - 2);
    end_line(&line, width, out);
    add_legend(&line, d);
    end_line(&line, width, out);
    if (form == TOP_DEVICE_LONG) {
        add_time_spent(&line, d);
        end_line(&line, width, out);
    }
}

void top_add_devices(const top_state *s, top_device_form form, uint32_t n_lines, uint32_t width,
                     buf *out) {
    uint32_t n = u32_min(s->devices.n, n_lines / (uint32_t)form);
    bool more = n < s->devices.n;
    if (more && n > 0 && form == TOP_DEVICE_SHORT) n--; // room for the line that says so
    for (uint32_t i = 0; i < n; i++) add_device(s, s->devices.rows[i], form, width, out);
    if (!more || n_lines == 0) return;
    buf line = {0};
    buf_add_format(&line, "and %u more devices", s->devices.n - n);
    end_line(&line, width, out);
}

/* ---- models ---- */

uint64_t top_model_bytes(const json_t *m) {
    static const char *const parts[] = {"bytes.weight", "bytes.kv", "bytes.cached", "bytes.warm",
                                        "bytes.parked"};
    uint64_t n = 0;
    for (size_t i = 0; i < INFERD_COUNT(parts); i++) n += ctl_count(m, parts[i]);
    return n;
}

enum { MARK_WIDTH = 2 };

/* Columns behind the name; `sort`: TOP_SORTS for none. */
typedef struct column {
    const char *head;
    uint32_t width;
    bool right, wide; // wide: only where there is room
    top_sort sort;
    void (*add)(buf *out, const json_t *m, int64_t now_ms);
} column;

static void add_state(buf *out, const json_t *m, int64_t now_ms) {
    const char *state = ctl_text(m, "state");
    (void)now_ms;
    bool drained = ctl_is(m, "held") && strcmp(state, "draining") != 0;
    if (drained)
        buf_add_str(out, "drained");
    else if (json_is_number(json_object_get(m, "progress")))
        buf_add_format(out, "%.4s %.0f%%", state, ctl_number(m, "progress") * 100);
    else
        buf_add_str(out, state);
}

static void add_pin(buf *out, const json_t *m, int64_t now_ms) {
    const char *pin = ctl_text(m, "pin");
    (void)now_ms;
    buf_add_str(out, pin[0] == 0 || strcmp(pin, "none") == 0 ? "-" : pin);
}

static void add_class(buf *out, const json_t *m, int64_t now_ms) {
    (void)now_ms;
    buf_add_str(out, ctl_text(m, "class"));
}

static void add_memory(buf *out, const json_t *m, int64_t now_ms) {
    (void)now_ms;
    show_add_size(out, top_model_bytes(m));
}

static void add_used(buf *out, const json_t *m, int64_t now_ms) {
    (void)now_ms;
    buf_add_format(out, "%.1f", ctl_number(m, "used") * 100);
}

static void add_share(buf *out, const json_t *m, int64_t now_ms) {
    (void)now_ms;
    if (json_is_object(json_object_get(m, "share")))
        buf_add_format(out, "%llu", (ull)ctl_count(m, "share.percent"));
    else
        buf_add_char(out, '-');
}

static void add_in(buf *out, const json_t *m, int64_t now_ms) {
    (void)now_ms;
    show_add_count(out, ctl_count(m, "in"));
}

static void add_out(buf *out, const json_t *m, int64_t now_ms) {
    (void)now_ms;
    show_add_count(out, ctl_count(m, "out"));
}

static void add_running(buf *out, const json_t *m, int64_t now_ms) {
    (void)now_ms;
    show_add_count(out, ctl_count(m, "running"));
}

static void add_waiting(buf *out, const json_t *m, int64_t now_ms) {
    (void)now_ms;
    show_add_count(out, ctl_count(m, "waiting"));
}

static void add_last(buf *out, const json_t *m, int64_t now_ms) {
    const json_t *at = json_object_get(m, "wanted_at");
    if (json_is_number(at) && json_number_value(at) == 0)
        buf_add_str(out, "never");
    else if (json_is_number(at))
        show_add_seconds(out, fmax(0, floor(((double)now_ms - json_number_value(at)) / 1000)));
    else
        buf_add_str(out, strcmp(ctl_text(m, "state"), "none") == 0 ? "-" : "now");
}

static const column columns[] = {{"STATE", 9, false, false, TOP_BY_STATE, add_state},
                                 {"PIN", 4, false, false, TOP_SORTS, add_pin},
                                 {"CLASS", 6, false, false, TOP_BY_CLASS, add_class},
                                 {"MEMORY", 8, true, false, TOP_BY_MEMORY, add_memory},
                                 {"USED%", 5, true, false, TOP_BY_USED, add_used},
                                 {"OF%", 3, true, false, TOP_SORTS, add_share},
                                 {"IN/S", 5, true, true, TOP_BY_TOKENS, add_in},
                                 {"OUT/S", 5, true, false, TOP_BY_TOKENS, add_out},
                                 {"RUN", 3, true, false, TOP_SORTS, add_running},
                                 {"WAIT", 4, true, false, TOP_SORTS, add_waiting},
                                 {"LAST", 8, true, false, TOP_BY_LAST_USE, add_last}};

static uint32_t name_width(uint32_t width) {
    uint32_t n = MARK_WIDTH;
    for (size_t i = 0; i < INFERD_COUNT(columns); i++)
        if (width >= WIDE || !columns[i].wide) n += columns[i].width + 1;
    return u32_max(u32_less(width, n), 8);
}

/* The column by which the table is sorted is strong, and has an arrow where there is room. */
void top_add_models_head(const top_view *v, uint32_t n_models, buf *out) {
    uint32_t width = u32_min(v->width, TOP_WIDTH_MAX);
    buf line = {0}, name = {0};
    buf_add_format(&name, "MODEL (%u)", n_models);
    top_add_mark(&line, v->sort == TOP_BY_NAME ? TOP_STRONG : TOP_WEAK);
    buf_add_str(&line, "  ");
    top_add_cell(&line, buf_cstr(&name), name_width(width), false);
    for (size_t i = 0; i < INFERD_COUNT(columns); i++) {
        const column *c = &columns[i];
        if (width < WIDE && c->wide) continue;
        top_add_mark(&line, v->sort == c->sort ? TOP_STRONG : TOP_WEAK);
        buf_add_char(&line, ' ');
        top_add_cell(&line, c->head, c->width, c->right);
    }
    end_line(&line, width, out);
    buf_deinit(&name);
}

static top_mark mark_of(const json_t *m) {
    const char *state = ctl_text(m, "state");
    if (strcmp(state, "failed") == 0) return TOP_BAD;
    if (ctl_is(m, "held")) return TOP_WARNING;
    if (strcmp(state, "hot") == 0) return TOP_GOOD;
    return TOP_NORMAL;
}

void top_add_model(const top_view *v, const json_t *m, bool selected, int64_t now_ms, buf *out) {
    uint32_t width = u32_min(v->width, TOP_WIDTH_MAX);
    buf line = {0}, cell = {0};
    top_add_mark(&line, selected ? TOP_SELECTED : TOP_NORMAL);
    buf_add_str(&line, selected ? "> " : "  ");
    top_add_cell(&line, ctl_text(m, "name"), name_width(width), false);
    for (size_t i = 0; i < INFERD_COUNT(columns); i++) {
        const column *c = &columns[i];
        if (width < WIDE && c->wide) continue;
        buf_clear(&cell);
        c->add(&cell, m, now_ms);
        buf_add_char(&line, ' ');
        if (!selected && c->add == add_state) top_add_mark(&line, mark_of(m));
        top_add_cell(&line, buf_cstr(&cell), c->width, c->right);
        if (!selected && c->add == add_state) top_add_mark(&line, TOP_NORMAL);
    }
    end_line(&line, width, out);
    buf_deinit(&cell);
}

/* ---- tenants ---- */

static void add_number_cell(buf *line, buf *cell, uint64_t n, uint32_t width) {
    buf_clear(cell);
    show_add_count(cell, n);
    buf_add_char(line, ' ');
    top_add_cell(line, buf_cstr(cell), width, true);
}

static void add_tenant(const json_t *t, uint32_t width, buf *out) {
    enum { REST = 60 };
    buf line = {0}, cell = {0};
    const json_t *entitled = json_object_get(t, "entitled"),
                 *limit = json_object_get(t, "limit_today");
    top_add_cell(&line, ctl_text(t, "name"), u32_max(u32_less(width, REST), 8), false);
    buf_add_format(&line, " %5.1f", ctl_number(t, "used") * 100);
    if (json_is_number(entitled))
        buf_add_format(&line, " %5.0f", json_number_value(entitled) * 100);
    else
        buf_add_str(&line, "     -");
    add_number_cell(&line, &cell, ctl_count(t, "today"), 7);
    if (json_is_number(limit))
        add_number_cell(&line, &cell, ctl_count(t, "limit_today"), 7);
    else
        buf_add_str(&line, "       -");
    add_number_cell(&line, &cell, ctl_count(t, "running"), 4);
    add_number_cell(&line, &cell, ctl_count(t, "waiting"), 4);
    add_number_cell(&line, &cell, ctl_count(t, "refused"), 7);
    add_number_cell(&line, &cell, ctl_count(t, "in"), 5);
    add_number_cell(&line, &cell, ctl_count(t, "out"), 5);
    end_line(&line, width, out);
    buf_deinit(&cell);
}

static int compare_use(const void *a, const void *b) {
    const json_t *const *x = a, *const *y = b;
    double more = ctl_number(*y, "used") - ctl_number(*x, "used");
    if (more == 0) more = ctl_number(*y, "waiting") - ctl_number(*x, "waiting");
    if (more == 0) more = ctl_number(*x, "id") - ctl_number(*y, "id");
    return more > 0 ? 1 : more < 0 ? -1 : 0;
}

/* In their order, or, where they do not all have room, those with the most use. */
static void add_tenant_rows(const top_state *s, uint32_t n, uint32_t width, buf *out) {
    const json_t **rows = calloc(s->tenants.n + 1, sizeof *rows);
    if (rows == NULL) return;
    for (uint32_t i = 0; i < s->tenants.n; i++) rows[i] = s->tenants.rows[i];
    if (n < s->tenants.n) qsort(rows, s->tenants.n, sizeof *rows, compare_use);
    for (uint32_t i = 0; i < n; i++) add_tenant(rows[i], width, out);
    free(rows);
}

void top_add_tenants(const top_state *s, uint32_t n_lines, uint32_t width, buf *out) {
    enum { REST = 60 };
    buf line = {0}, name = {0};
    if (n_lines == 0) return;
    uint32_t n = u32_min(s->tenants.n, n_lines - 1);
    buf_add_format(&name, n < s->tenants.n ? "TENANT (%u of %u)" : "TENANT", n, s->tenants.n);
    top_add_mark(&line, TOP_WEAK);
    top_add_cell(&line, buf_cstr(&name), u32_max(u32_less(width, REST), 8), false);
    buf_add_str(&line, " USED%  ENT%   TODAY      OF  RUN WAIT REFUSED  IN/S OUT/S");
    end_line(&line, width, out);
    buf_deinit(&name);
    add_tenant_rows(s, n, width, out);
    if (s->tenants.n == 0 && n_lines > 1) top_add_line(out, "no tenants", width);
}

/* ---- events, panels ---- */

static void add_event(const json_t *e, uint32_t width, buf *out) {
    buf line = {0};
    time_t at = (time_t)(ctl_count(e, "at") / 1000);
    struct tm when = {0};
    localtime_r(&at, &when);
    top_add_mark(&line, TOP_WEAK);
    buf_add_format(&line, "%02d:%02d:%02d ", when.tm_hour, when.tm_min, when.tm_sec);
    const char *kind = ctl_text(e, "kind");
    bool bad = strcmp(kind, "fail") == 0 || strcmp(kind, "device") == 0;
    top_add_mark(&line, bad ? TOP_BAD : strcmp(kind, "refuse") == 0 ? TOP_WARNING : TOP_NORMAL);
    uint64_t n = ctl_count(e, "n");
    if (n > 1) buf_add_format(&line, "%llu x ", (ull)n);
    top_add_text(&line, ctl_text(e, "text"), width);
    end_line(&line, width, out);
}

void top_add_events(const top_state *s, uint32_t n_lines, uint32_t width, buf *out) {
    buf line = {0};
    if (n_lines == 0) return;
    top_add_mark(&line, TOP_WEAK);
    buf_add_str(&line, "EVENTS");
    end_line(&line, width, out);
    for (uint32_t i = 0; i < s->events.n && i + 1 < n_lines; i++)
        add_event(s->events.rows[s->events.n - 1 - i], width, out);
}

void top_add_panel(const char *text, uint32_t n_lines, uint32_t width, buf *out) {
    while (*text != 0 && n_lines > 0) {
        size_t n = strcspn(text, "\n");
        char *piece = strndup(text, n);
        if (piece == NULL) return;
        if (n == 0) buf_add_char(out, '\n');
        n_lines -= n == 0 ? 1 : top_add_wrapped(out, piece, TOP_NORMAL, width, n_lines);
        free(piece);
        text += n + (text[n] == '\n');
    }
}
