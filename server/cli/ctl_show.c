/* ctl_show.c - see ctl_show.h. */
#include "ctl_show.h"

#include <string.h>

#include "ctl_json.h"

typedef unsigned long long ull;

/* ---- numbers ---- */

void show_add_size(buf *out, uint64_t n_bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)n_bytes;
    size_t u = 0;
    for (; u + 1 < INFERD_COUNT(units) && value >= 1024; u++) value /= 1024;
    if (n_bytes == 0)
        buf_add_str(out, "0");
    else
        buf_add_format(out, value < 10 && u > 0 ? "%.1f %s" : "%.0f %s", value, units[u]);
}

void show_add_seconds(buf *out, double seconds) {
    if (seconds < 0.0005)
        buf_add_str(out, "0");
    else if (seconds < 1)
        buf_add_format(out, "%.0f ms", seconds * 1000);
    else if (seconds < 120)
        buf_add_format(out, "%.1f s", seconds);
    else if (seconds < 7200)
        buf_add_format(out, "%.1f min", seconds / 60);
    else
        buf_add_format(out, "%.1f h", seconds / 3600);
}

void show_add_count(buf *out, uint64_t n) {
    static const char *const units[] = {"", "k", "M", "G", "T", "P", "E"};
    double value = (double)n;
    size_t u = 0;
    if (n >= 100000)
        for (; value >= 999.5; u++) value /= 1000;
    buf_add_format(out, value < 9.95 && u > 0 ? "%.1f%s" : "%.0f%s", value, units[u]);
}

/* ---- tables ---- */

enum { COLUMNS_MAX = 16, CUT_WIDTH_MIN = 6 };

/* The first character of a head: '>' right-aligned; '~' cut where the table would be too wide. */
typedef struct table {
    const char *const *heads;
    uint32_t n_columns;
    buf cells; // each ends with a NUL, row by row
} table;

static bool has_mark(const char *head) {
    return head[0] == '>' || head[0] == '~';
}

static void end_cell(table *t) {
    buf_add_char(&t->cells, 0);
}

static void add_cell(table *t, const char *text) {
    buf_add_str(&t->cells, text[0] == 0 ? "-" : text);
    end_cell(t);
}

static void add_number(table *t, uint64_t n) {
    show_add_count(&t->cells, n);
    end_cell(t);
}

static void add_size(table *t, uint64_t n_bytes) {
    show_add_size(&t->cells, n_bytes);
    end_cell(t);
}

static void add_seconds(table *t, double seconds) {
    show_add_seconds(&t->cells, seconds);
    end_cell(t);
}

static void add_percent(table *t, double ratio) {
    buf_add_format(&t->cells, "%.1f", ratio * 100);
    end_cell(t);
}

static void add_rate(table *t, double per_s) {
    if (per_s > 0 && per_s < 99.5)
        buf_add_format(&t->cells, "%.1f", per_s);
    else
        show_add_count(&t->cells, (uint64_t)(per_s + 0.5));
    end_cell(t);
}

/* Code points, an approximation of columns. */
static size_t width_of(const char *text) {
    size_t n = 0;
    for (; *text != 0; text++) n += ((unsigned char)*text & 0xC0) != 0x80;
    return n;
}

/* The first `width` code points; a longer text ends with an ellipsis. */
static void write_cut(buf *out, const char *text, size_t width) {
    bool cut = width_of(text) > width;
    size_t n = 0;
    for (const char *p = text; *p != 0; p++) {
        n += ((unsigned char)*p & 0xC0) != 0x80;
        if (cut && n >= width) break;
        /* Names come from files: control characters must not reach the terminal. */
        buf_add_char(out, (unsigned char)*p < 0x20 || *p == 0x7f ? ' ' : *p);
    }
    if (cut) buf_add_str(out, "\xe2\x80\xa6");
}

static void write_cell(buf *out, const char *text, size_t width, bool right, bool last) {
    size_t n = width_of(text), pad = width > n ? width - n : 0;
    if (right) buf_add_format(out, "%*s", (int)pad, "");
    write_cut(out, text, width);
    if (!right && !last) buf_add_format(out, "%*s", (int)pad, "");
    buf_add_str(out, last ? "\n" : "  ");
}

/* Narrows the widest of the columns that may be cut until the table is SHOW_WIDTH wide. */
static void fit_widths(const table *t, size_t *widths) {
    size_t total = 2 * (t->n_columns - 1);
    for (uint32_t i = 0; i < t->n_columns; i++) total += widths[i];
    for (; total > SHOW_WIDTH; total--) {
        uint32_t widest = UINT32_MAX;
        for (uint32_t i = 0; i < t->n_columns; i++)
            if (t->heads[i][0] == '~' && widths[i] > CUT_WIDTH_MIN &&
                (widest == UINT32_MAX || widths[i] > widths[widest]))
                widest = i;
        if (widest == UINT32_MAX) return;
        widths[widest]--;
    }
}

static void write_table(table *t, buf *out) {
    size_t widths[COLUMNS_MAX];
    const char *end = t->cells.n > 0 ? t->cells.p + t->cells.n : t->cells.p;
    for (uint32_t i = 0; i < t->n_columns; i++)
        widths[i] = width_of(t->heads[i] + has_mark(t->heads[i]));
    uint32_t column = 0;
    for (const char *p = t->cells.p; p < end; p += strlen(p) + 1, column++)
        widths[column % t->n_columns] = size_max(widths[column % t->n_columns], width_of(p));
    fit_widths(t, widths);
    for (uint32_t i = 0; i < t->n_columns; i++) {
        const char *head = t->heads[i];
        write_cell(out, head + has_mark(head), widths[i], head[0] == '>', i + 1 == t->n_columns);
    }
    column = 0;
    for (const char *p = t->cells.p; p < end; p += strlen(p) + 1, column++) {
        uint32_t i = column % t->n_columns;
        write_cell(out, p, widths[i], t->heads[i][0] == '>', i + 1 == t->n_columns);
    }
    buf_deinit(&t->cells);
}

/* ---- models ---- */

static void add_share(table *t, const json_t *v) {
    uint64_t percent = ctl_count(v, "share.percent");
    if (percent > 0)
        buf_add_format(&t->cells, "%s %llu %%", ctl_text(v, "share.policy"), (ull)percent);
    else
        buf_add_format(&t->cells, "weight %llu", (ull)ctl_count(v, "weight"));
    end_cell(t);
}

static void add_bounds(table *t, const json_t *v) {
    uint64_t min = ctl_count(v, "min_bytes"), max = ctl_count(v, "max_bytes");
    show_add_size(&t->cells, min);
    buf_add_str(&t->cells, " to ");
    if (max == 0)
        buf_add_str(&t->cells, "all");
    else
        show_add_size(&t->cells, max);
    end_cell(t);
}

static void add_state_cell(table *t, const json_t *m) {
    double total = ctl_number(m, "bytes.total"), done = ctl_number(m, "bytes.loaded");
    const char *state = ctl_text(m, "state"), *pin = ctl_text(m, "pin");
    buf_add_str(&t->cells, state);
    if ((strcmp(state, "staging") == 0 || strcmp(state, "loading") == 0) && total > 0)
        buf_add_format(&t->cells, " %.0f %%", done / total * 100);
    if (json_is_true(ctl_member(m, "held"))) buf_add_str(&t->cells, ", drained");
    if (pin[0] != 0 && strcmp(pin, "none") != 0) buf_add_format(&t->cells, ", pin %s", pin);
    end_cell(t);
}

/* "2" replicas that serve; "1, wants 2" while its load needs more of them. */
static void add_serving(table *t, const json_t *m) {
    const json_t *replicas = ctl_member(m, "placed");
    uint64_t n = 0, wanted = ctl_count(m, "desired_replicas");
    for (size_t i = 0; i < json_array_size(replicas); i++)
        n += strcmp(ctl_text(json_array_get(replicas, i), "replica"), "serving") == 0;
    buf_add_format(&t->cells, "%llu", (ull)n);
    if (n != wanted) buf_add_format(&t->cells, ", wants %llu", (ull)wanted);
    end_cell(t);
}

/* The devices with a replica, with the state of those not serving. */
static void add_placed(table *t, const json_t *m) {
    const json_t *replicas = ctl_member(m, "placed");
    size_t n = json_array_size(replicas);
    for (size_t i = 0; i < n; i++) {
        const json_t *r = json_array_get(replicas, i);
        const char *state = ctl_text(r, "replica");
        if (i > 0) buf_add_str(&t->cells, ", ");
        buf_add_str(&t->cells, ctl_text(r, "device"));
        if (strcmp(state, "serving") != 0) buf_add_format(&t->cells, " %s", state);
    }
    if (n == 0) buf_add_char(&t->cells, '-');
    end_cell(t);
}

static uint64_t count_evictions(const json_t *m) {
    const char *key;
    const json_t *v;
    uint64_t n = 0;
    json_object_foreach((json_t *)(uintptr_t)ctl_member(m, "evictions"), key, v) n +=
        (uint64_t)json_integer_value(v);
    return n;
}

static void show_model_use(buf *out, const json_t *state) {
    static const char *const heads[] = {"~MODEL", "~STATE", ">WEIGHTS", ">KV",   ">RUN",    ">WAIT",
                                        ">IN/S",  ">OUT/S", ">USED%",   ">IDLE", "REPLICAS"};
    table t = {.heads = heads, .n_columns = INFERD_COUNT(heads)};
    const json_t *models = ctl_member(state, "models");
    uint64_t page = ctl_count(json_array_get(ctl_member(state, "devices"), 0),
                              "page_bytes"); // of the first device
    for (size_t i = 0; i < json_array_size(models); i++) {
        const json_t *m = json_array_get(models, i);
        add_cell(&t, ctl_text(m, "name"));
        add_state_cell(&t, m);
        add_size(&t, (ctl_count(m, "pages.weight") + ctl_count(m, "pages.warm")) * page);
        add_size(&t, ctl_count(m, "pages.kv") * page);
        add_number(&t, ctl_count(m, "running"));
        add_number(&t, ctl_count(m, "waiting"));
        add_rate(&t, ctl_number(m, "recent.prompt_tokens_per_s"));
        add_rate(&t, ctl_number(m, "recent.output_tokens_per_s"));
        add_percent(&t, ctl_number(m, "recent.share"));
        add_seconds(&t, ctl_number(m, "idle_s"));
        add_serving(&t, m);
    }
    write_table(&t, out);
}

static void show_model_settings(buf *out, const json_t *state) {
    static const char *const heads[] = {"~MODEL",   "CLASS",   "SHARE",   "MEMORY", ">LOADS",
                                        ">EVICTED", ">SWITCH", ">DEVICE", "~ON"};
    table t = {.heads = heads, .n_columns = INFERD_COUNT(heads)};
    const json_t *models = ctl_member(state, "models");
    for (size_t i = 0; i < json_array_size(models); i++) {
        const json_t *m = json_array_get(models, i);
        add_cell(&t, ctl_text(m, "name"));
        add_cell(&t, ctl_text(m, "class"));
        add_share(&t, m);
        add_bounds(&t, m);
        add_number(&t, ctl_count(m, "loads"));
        add_number(&t, count_evictions(m));
        add_seconds(&t, ctl_number(m, "switch.mean.reclaim_s") +
                            ctl_number(m, "switch.mean.stage_s") +
                            ctl_number(m, "switch.mean.load_s"));
        add_seconds(&t, ctl_number(m, "device_s"));
        add_placed(&t, m);
    }
    write_table(&t, out);
}

/* Sentences of the daemon, under the tables. */
static void show_model_troubles(buf *out, const json_t *state) {
    const json_t *models = ctl_member(state, "models");
    for (size_t i = 0; i < json_array_size(models); i++) {
        const json_t *m = json_array_get(models, i);
        if (ctl_text(m, "error")[0] != 0)
            buf_add_format(out, "%s: %s\n", ctl_text(m, "name"), ctl_text(m, "error"));
        if (ctl_text(m, "placement_problem")[0] != 0)
            buf_add_format(out, "%s: no device for another replica: %s\n", ctl_text(m, "name"),
                           ctl_text(m, "placement_problem"));
    }
}

void show_models(buf *out, const json_t *state) {
    show_model_use(out, state);
    buf_add_char(out, '\n');
    show_model_settings(out, state);
    show_model_troubles(out, state);
}

/* ---- tenants ---- */

static void add_limit(table *t, const json_t *tenant, const char *path) {
    if (json_is_integer(ctl_member(tenant, path)))
        add_number(t, ctl_count(tenant, path));
    else
        add_cell(t, "-"); // null: no limit
}

static void show_tenant_use(buf *out, const json_t *state) {
    static const char *const heads[] = {"~TENANT", ">USED%",   ">ENTITLED%", ">TODAY", ">RUN",
                                        ">WAIT",   ">REFUSED", ">IN/S",      ">OUT/S", ">KV"};
    table t = {.heads = heads, .n_columns = INFERD_COUNT(heads)};
    const json_t *tenants = ctl_member(state, "tenants");
    for (size_t i = 0; i < json_array_size(tenants); i++) {
        const json_t *v = json_array_get(tenants, i);
        uint64_t percent = ctl_count(v, "share.percent");
        add_cell(&t, ctl_text(v, "name"));
        add_percent(&t, ctl_number(v, "recent.share"));
        if (percent > 0)
            add_number(&t, percent);
        else
            add_cell(&t, "-"); // a part by its weight
        add_number(&t, ctl_count(v, "use.tokens_today"));
        add_number(&t, ctl_count(v, "queue.running"));
        add_number(&t, ctl_count(v, "queue.waiting"));
        add_number(&t, ctl_count(v, "refused"));
        add_rate(&t, ctl_number(v, "recent.prompt_tokens_per_s"));
        add_rate(&t, ctl_number(v, "recent.output_tokens_per_s"));
        add_size(&t, ctl_count(v, "used_bytes"));
    }
    write_table(&t, out);
}

static void show_tenant_settings(buf *out, const json_t *state) {
    static const char *const heads[] = {"~TENANT",  "UP TO",    "~SHARE",   "MEMORY",   ">REQ/MIN",
                                        ">TOK/MIN", ">AT ONCE", ">TOK/DAY", ">TOK/MON", ">KEYS"};
    table t = {.heads = heads, .n_columns = INFERD_COUNT(heads)};
    const json_t *tenants = ctl_member(state, "tenants");
    for (size_t i = 0; i < json_array_size(tenants); i++) {
        const json_t *v = json_array_get(tenants, i);
        add_cell(&t, ctl_text(v, "name"));
        add_cell(&t, ctl_text(v, "class"));
        add_share(&t, v);
        add_bounds(&t, v);
        add_limit(&t, v, "limits.requests_per_min");
        add_limit(&t, v, "limits.tokens_per_min");
        add_limit(&t, v, "limits.concurrent");
        add_limit(&t, v, "limits.tokens_per_day");
        add_limit(&t, v, "limits.tokens_per_month");
        add_number(&t, ctl_count(v, "keys"));
    }
    write_table(&t, out);
}

void show_tenants(buf *out, const json_t *state) {
    show_tenant_use(out, state);
    buf_add_char(out, '\n');
    show_tenant_settings(out, state);
}

/* ---- devices ---- */

static void show_devices(buf *out, const json_t *state) {
    static const char *const heads[] = {"~DEVICE", ">MEMORY", ">FREE",   ">WEIGHTS", ">KV",
                                        ">CACHED", ">STEPS%", ">LOADS%", ">IDLE%",   ">TURNS"};
    table t = {.heads = heads, .n_columns = INFERD_COUNT(heads)};
    const json_t *devices = ctl_member(state, "devices");
    for (size_t i = 0; i < json_array_size(devices); i++) {
        const json_t *d = json_array_get(devices, i);
        uint64_t page = ctl_count(d, "page_bytes");
        static const char *const sizes[] = {"pages.device", "pages.device_free", "pages.weight",
                                            "pages.kv", "pages.cached"};
        add_cell(&t, ctl_text(d, "name"));
        for (size_t k = 0; k < INFERD_COUNT(sizes); k++)
            add_size(&t, ctl_count(d, sizes[k]) * page);
        add_percent(&t, ctl_number(d, "recent.step"));
        add_percent(&t, ctl_number(d, "recent.load"));
        add_percent(&t, ctl_number(d, "recent.idle"));
        add_number(&t, ctl_count(d, "turns"));
    }
    write_table(&t, out);
}

/* "drill lose", "drill slow 3"; nothing for null. */
static void add_drill(buf *out, const json_t *drill) {
    if (json_is_string(drill)) buf_add_format(out, "drill %s", json_string_value(drill));
    if (json_is_number(drill)) buf_add_format(out, "drill slow %g", json_number_value(drill));
}

void show_drill(buf *out, const json_t *v) {
    buf_add_format(out, "%s: ", ctl_text(v, "device"));
    if (json_is_null(ctl_member(v, "drill"))) buf_add_str(out, "no drill");
    add_drill(out, ctl_member(v, "drill"));
    buf_add_char(out, '\n');
}

/* Host memory, and what the device is. */
static void show_hosts(buf *out, const json_t *state) {
    static const char *const heads[] = {"~DEVICE", ">HOST ARENA", ">FREE",
                                        ">WARM",   ">PARKED",     "~COMPUTES ON"};
    table t = {.heads = heads, .n_columns = INFERD_COUNT(heads)};
    const json_t *devices = ctl_member(state, "devices");
    for (size_t i = 0; i < json_array_size(devices); i++) {
        const json_t *d = json_array_get(devices, i);
        uint64_t page = ctl_count(d, "page_bytes");
        static const char *const sizes[] = {"pages.host", "pages.host_free", "pages.warm",
                                            "pages.parked"};
        add_cell(&t, ctl_text(d, "name"));
        for (size_t k = 0; k < INFERD_COUNT(sizes); k++)
            add_size(&t, ctl_count(d, sizes[k]) * page);
        if (json_is_true(ctl_member(d, "lost"))) buf_add_str(&t.cells, "lost: ");
        add_drill(&t.cells, ctl_member(d, "drill"));
        if (!json_is_null(ctl_member(d, "drill"))) buf_add_str(&t.cells, ": ");
        if (json_is_true(ctl_member(d, "thrash.now"))) buf_add_str(&t.cells, "thrashing: ");
        add_cell(&t, ctl_text(d, "about")[0] != 0 ? ctl_text(d, "about") : ctl_text(d, "kind"));
    }
    write_table(&t, out);
}

/* ---- the state ---- */

/* A path is cut at its beginning. */
static void add_path(buf *out, const char *path, size_t width) {
    size_t n = width_of(path);
    if (n > width) {
        for (size_t skip = n - width + 1; skip > 0; path++)
            skip -= ((unsigned char)path[1] & 0xC0) != 0x80;
        buf_add_str(out, "\xe2\x80\xa6");
    }
    write_cut(out, path, width);
}

static void show_summary(buf *out, const json_t *state) {
    buf_add_format(out, "\nrunning %llu, waiting %llu, paused %llu",
                   (ull)ctl_count(state, "queues.running"), (ull)ctl_count(state, "queues.waiting"),
                   (ull)ctl_count(state, "queues.paused"));
    if (json_is_true(ctl_member(state, "draining"))) buf_add_str(out, "; shutting down");
    double window_s = ctl_number(state, "recent.window_s");
    buf_add_str(out, "\nrates and percents: of ");
    if (window_s < 1)
        buf_add_str(out, "less than a second");
    else
        buf_add_format(out, "the last %.0f s", window_s);
    if (json_array_size(ctl_member(state, "tenants")) > 0)
        buf_add_str(out, "; refused: 429 and 503 since the start");
    buf_add_char(out, '\n');
    if (ctl_text(state, "config.path")[0] == 0) return;
    add_path(out, ctl_text(state, "config.path"), SHOW_WIDTH);
    buf_add_format(
        out,
        "\nreloads: %llu applied, %llu refused; changes: %llu applied, %llu refused, "
        "%llu not in the file\n",
        (ull)ctl_count(state, "config.reloads.ok"), (ull)ctl_count(state, "config.reloads.refused"),
        (ull)ctl_count(state, "config.changes.ok"), (ull)ctl_count(state, "config.changes.refused"),
        (ull)ctl_count(state, "config.unsaved"));
}

void show_state(buf *out, const json_t *state) {
    show_devices(out, state);
    buf_add_char(out, '\n');
    show_hosts(out, state);
    buf_add_char(out, '\n');
    show_model_use(out, state);
    show_model_troubles(out, state);
    if (json_array_size(ctl_member(state, "tenants")) > 0) {
        buf_add_char(out, '\n');
        show_tenant_use(out, state);
    }
    show_summary(out, state);
}

/* ---- plans ---- */

const char *show_device_of(const json_t *plan, const json_t *victim) {
    const json_t *devices = ctl_member(plan, "devices");
    uint32_t n_used = 0;
    for (size_t i = 0; i < json_array_size(devices); i++)
        n_used += json_is_true(ctl_member(json_array_get(devices, i), "used"));
    return n_used > 1 ? ctl_text(victim, "device") : "";
}

static void show_victims(buf *out, const json_t *plan) {
    const json_t *victims = ctl_member(plan, "victims");
    for (size_t i = 0; i < json_array_size(victims); i++) {
        const json_t *v = json_array_get(victims, i);
        const char *device = show_device_of(plan, v);
        bool later = strcmp(ctl_text(v, "when"), "min") == 0;
        buf_add_format(out, "  evicts      %s%s%s%s (%s, ", ctl_text(v, "name"),
                       device[0] != 0 ? " on " : "", device, later ? ", once it uses its min" : "",
                       ctl_text(v, "why"));
        show_add_size(out, ctl_count(v, "bytes"));
        buf_add_str(out, ", idle ");
        show_add_seconds(out, ctl_number(v, "idle_s"));
        buf_add_str(out, ")\n");
    }
}

static void add_measured(buf *out, const json_t *b, const char *kind, const char *from) {
    const json_t *v = ctl_member(b, kind);
    uint64_t n = ctl_count(v, "n");
    if (n == 0) return;
    buf_add_format(out, "    from its %s: ", from);
    show_add_seconds(out, ctl_number(v, "s"));
    buf_add_format(out, " (mean of %llu bring-up%s)\n", (ull)n, n == 1 ? "" : "s");
}

static void show_bring_up(buf *out, const json_t *b) {
    const char *from = ctl_text(b, "from");
    buf_add_str(out, "  brought up in ");
    if (!json_is_true(ctl_member(b, "measured"))) buf_add_str(out, "about ");
    show_add_seconds(out, ctl_number(b, "s"));
    if (strcmp(from, "device") != 0)
        buf_add_format(out, ", from %s", strcmp(from, "host") == 0 ? "host memory" : "its file");
    buf_add_format(out, " (%s)\n", ctl_text(b, "basis"));
    add_measured(out, b, "file", "file");
    add_measured(out, b, "host", "copy in host memory");
}

void show_plan(buf *out, const json_t *plan) {
    const char *name =
        ctl_text(plan, json_is_string(ctl_member(plan, "tenant")) ? "tenant" : "model");
    const json_t *problems = ctl_member(plan, "problems"), *checks = ctl_member(plan, "checks");
    bool fits = json_is_true(ctl_member(plan, "fits")),
         turns = json_is_true(ctl_member(plan, "turns"));
    buf_add_format(out, "%s %s\n", name, fits ? "fits" : "does not fit");
    for (size_t i = 0; i < json_array_size(problems); i++)
        buf_add_format(out, "  problem     %s\n", json_string_value(json_array_get(problems, i)));
    for (size_t i = 0; i < json_array_size(checks); i++) {
        const json_t *c = json_array_get(checks, i);
        buf_add_format(out, "  %-3s %-10s %s\n", json_is_true(ctl_member(c, "kept")) ? "ok" : "NO",
                       ctl_text(c, "name"), ctl_text(c, "text"));
    }
    if (turns)
        buf_add_str(out,
                    "  not now: models of its class that are at work are evicted in turns, when "
                    "requests for it come\n");
    show_victims(out, plan);
    if (ctl_member(plan, "bring_up") != NULL && fits && !turns)
        show_bring_up(out, ctl_member(plan, "bring_up"));
}

void show_error(buf *out, const json_t *answer) {
    const json_t *problems = ctl_member(answer, "error.problems");
    for (size_t i = 0; i < json_array_size(problems); i++)
        buf_add_format(out, "%s\n", json_string_value(json_array_get(problems, i)));
    if (json_array_size(problems) == 0)
        buf_add_format(out, "inferd: %s\n", ctl_text(answer, "error.message"));
}

void show_blank_controls(buf *text) {
    for (size_t i = 0; i < text->n; i++) {
        unsigned char c = (unsigned char)text->p[i];
        bool c1 = c == 0xc2 && i + 1 < text->n && ((unsigned char)text->p[i + 1] & 0xe0) == 0x80;
        if ((c < 0x20 && c != '\n') || c == 0x7f || c1) text->p[i] = ' ';
        if (c1) text->p[++i] = ' ';
    }
}
