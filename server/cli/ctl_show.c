/* ctl_show.c - see ctl_show.h. */
#include "ctl_show.h"

#include <string.h>

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

/* ---- reading ---- */

static const json_t *member(const json_t *v, const char *path) {
    char name[64];
    while (v != NULL && *path != 0) {
        size_t n = strcspn(path, ".");
        snprintf(name, sizeof name, "%.*s", (int)n, path);
        v = json_object_get(v, name);
        path += n + (path[n] == '.');
    }
    return v;
}

static const char *text_of(const json_t *v, const char *path) {
    const char *text = json_string_value(member(v, path));
    return text == NULL ? "" : text;
}

static double number_of(const json_t *v, const char *path) {
    return json_number_value(member(v, path));
}

static uint64_t count_of(const json_t *v, const char *path) {
    double d = number_of(v, path);
    return d > 0 ? (uint64_t)d : 0;
}

/* ---- tables ---- */

enum { COLUMNS_MAX = 16 };

typedef struct table {
    const char *const *heads; // a leading '>': the column is right-aligned
    uint32_t n_columns;
    buf cells; // each ends with a NUL, row by row
} table;

static void end_cell(table *t) {
    buf_add_char(&t->cells, 0);
}

static void add_cell(table *t, const char *text) {
    buf_add_str(&t->cells, text[0] == 0 ? "-" : text);
    end_cell(t);
}

static void add_number(table *t, uint64_t n) {
    buf_add_format(&t->cells, "%llu", (ull)n);
    end_cell(t);
}

static void add_size(table *t, uint64_t n_bytes) {
    show_add_size(&t->cells, n_bytes);
    end_cell(t);
}

/* Code points, an approximation of columns. */
static size_t width_of(const char *text) {
    size_t n = 0;
    for (; *text != 0; text++) n += ((unsigned char)*text & 0xC0) != 0x80;
    return n;
}

static void write_cell(buf *out, const char *text, size_t width, bool right, bool last) {
    size_t pad = width - width_of(text);
    if (right) buf_add_format(out, "%*s", (int)pad, "");
    /* Names come from files: control characters must not reach the terminal. */
    for (const char *p = text; *p != 0; p++)
        buf_add_char(out, (unsigned char)*p < 0x20 || *p == 0x7f ? ' ' : *p);
    if (!right && !last) buf_add_format(out, "%*s", (int)pad, "");
    buf_add_str(out, last ? "\n" : "  ");
}

static void write_table(table *t, buf *out) {
    size_t widths[COLUMNS_MAX];
    const char *end = t->cells.n > 0 ? t->cells.p + t->cells.n : t->cells.p;
    for (uint32_t i = 0; i < t->n_columns; i++)
        widths[i] = width_of(t->heads[i] + (t->heads[i][0] == '>'));
    uint32_t column = 0;
    for (const char *p = t->cells.p; p < end; p += strlen(p) + 1, column++)
        widths[column % t->n_columns] = size_max(widths[column % t->n_columns], width_of(p));
    for (uint32_t i = 0; i < t->n_columns; i++) {
        bool right = t->heads[i][0] == '>';
        write_cell(out, t->heads[i] + right, widths[i], right, i + 1 == t->n_columns);
    }
    column = 0;
    for (const char *p = t->cells.p; p < end; p += strlen(p) + 1, column++) {
        uint32_t i = column % t->n_columns;
        write_cell(out, p, widths[i], t->heads[i][0] == '>', i + 1 == t->n_columns);
    }
    buf_deinit(&t->cells);
}

/* ---- answers ---- */

static void add_share(table *t, const json_t *v) {
    uint64_t percent = count_of(v, "share.percent");
    if (percent > 0)
        buf_add_format(&t->cells, "%s %llu %%", text_of(v, "share.policy"), (ull)percent);
    else
        buf_add_format(&t->cells, "weight %llu", (ull)count_of(v, "weight"));
    end_cell(t);
}

static void add_bounds(table *t, const json_t *v) {
    uint64_t min = count_of(v, "min_bytes"), max = count_of(v, "max_bytes");
    show_add_size(&t->cells, min);
    buf_add_str(&t->cells, " to ");
    if (max == 0)
        buf_add_str(&t->cells, "all");
    else
        show_add_size(&t->cells, max);
    end_cell(t);
}

static void add_state_cell(table *t, const json_t *m) {
    double total = number_of(m, "bytes.total"), done = number_of(m, "bytes.loaded");
    const char *state = text_of(m, "state");
    buf_add_str(&t->cells, state);
    if ((strcmp(state, "staging") == 0 || strcmp(state, "loading") == 0) && total > 0)
        buf_add_format(&t->cells, " %.0f %%", done / total * 100);
    if (json_is_true(member(m, "held"))) buf_add_str(&t->cells, ", drained");
    if (strcmp(text_of(m, "pin"), "none") != 0)
        buf_add_format(&t->cells, ", pinned %s", text_of(m, "pin"));
    end_cell(t);
}

/* "1 of 2" (serving, of those needed), then their devices, with the state of those not serving. */
static void add_replicas(table *t, const json_t *m) {
    const json_t *replicas = member(m, "placed");
    size_t n = json_array_size(replicas);
    uint64_t n_serving = 0;
    for (size_t i = 0; i < n; i++)
        n_serving += strcmp(text_of(json_array_get(replicas, i), "replica"), "serving") == 0;
    buf_add_format(&t->cells, "%llu of %llu", (ull)n_serving, (ull)count_of(m, "desired_replicas"));
    end_cell(t);
    for (size_t i = 0; i < n; i++) {
        const json_t *r = json_array_get(replicas, i);
        const char *state = text_of(r, "replica");
        if (i > 0) buf_add_str(&t->cells, ", ");
        buf_add_str(&t->cells, text_of(r, "device"));
        if (strcmp(state, "serving") != 0) buf_add_format(&t->cells, " %s", state);
    }
    if (n == 0) buf_add_char(&t->cells, '-');
    end_cell(t);
}

void show_models(buf *out, const json_t *state) {
    static const char *const heads[] = {
        "MODEL", "STATE",  "CLASS",    "SHARE",   "MEMORY",  ">WEIGHTS", ">KV",      ">RUN",
        ">WAIT", ">LOADS", ">EVICTED", ">SWITCH", ">DEVICE", ">IDLE",    "REPLICAS", "DEVICES"};
    table t = {.heads = heads, .n_columns = INFERD_COUNT(heads)};
    const json_t *models = member(state, "models");
    uint64_t page =
        count_of(json_array_get(member(state, "devices"), 0), "page_bytes"); // of the first device
    for (size_t i = 0; i < json_array_size(models); i++) {
        const json_t *m = json_array_get(models, i), *evictions = member(m, "evictions"), *v;
        const char *key;
        uint64_t n_evicted = 0;
        json_object_foreach((json_t *)(uintptr_t)evictions, key, v) n_evicted +=
            (uint64_t)json_integer_value(v);
        add_cell(&t, text_of(m, "name"));
        add_state_cell(&t, m);
        add_cell(&t, text_of(m, "class"));
        add_share(&t, m);
        add_bounds(&t, m);
        add_size(&t, (count_of(m, "pages.weight") + count_of(m, "pages.warm")) * page);
        add_size(&t, count_of(m, "pages.kv") * page);
        add_number(&t, count_of(m, "running"));
        add_number(&t, count_of(m, "waiting"));
        add_number(&t, count_of(m, "loads"));
        add_number(&t, n_evicted);
        show_add_seconds(&t.cells, number_of(m, "switch.mean.reclaim_s") +
                                       number_of(m, "switch.mean.stage_s") +
                                       number_of(m, "switch.mean.load_s"));
        end_cell(&t);
        show_add_seconds(&t.cells, number_of(m, "device_s"));
        end_cell(&t);
        show_add_seconds(&t.cells, number_of(m, "idle_s"));
        end_cell(&t);
        add_replicas(&t, m);
    }
    write_table(&t, out);
    for (size_t i = 0; i < json_array_size(models); i++) {
        const json_t *m = json_array_get(models, i);
        if (text_of(m, "error")[0] != 0)
            buf_add_format(out, "%s: %s\n", text_of(m, "name"), text_of(m, "error"));
    }
}

static void add_limit(table *t, const json_t *tenant, const char *path) {
    if (json_is_integer(member(tenant, path)))
        add_number(t, count_of(tenant, path));
    else
        add_cell(t, "-"); // null: no limit
}

void show_tenants(buf *out, const json_t *state) {
    static const char *const heads[] = {"TENANT",   "UP TO",    "SHARE",    "MEMORY",
                                        ">USED",    ">REQ/MIN", ">TOK/MIN", ">CONCURRENT",
                                        ">TOK/DAY", ">TOK/MON", ">KEYS"};
    table t = {.heads = heads, .n_columns = INFERD_COUNT(heads)};
    const json_t *tenants = member(state, "tenants");
    for (size_t i = 0; i < json_array_size(tenants); i++) {
        const json_t *v = json_array_get(tenants, i);
        add_cell(&t, text_of(v, "name"));
        add_cell(&t, text_of(v, "class"));
        add_share(&t, v);
        add_bounds(&t, v);
        add_size(&t, count_of(v, "used_bytes"));
        add_limit(&t, v, "limits.requests_per_min");
        add_limit(&t, v, "limits.tokens_per_min");
        add_limit(&t, v, "limits.concurrent");
        add_limit(&t, v, "limits.tokens_per_day");
        add_limit(&t, v, "limits.tokens_per_month");
        add_number(&t, count_of(v, "keys"));
    }
    write_table(&t, out);
}

static void show_devices(buf *out, const json_t *state) {
    static const char *const heads[] = {"DEVICE",  "KIND",    ">MEMORY", ">FREE",   ">WEIGHTS",
                                        ">KV",     ">CACHED", ">WARM",   ">PARKED", ">STEPS%",
                                        ">LOADS%", ">IDLE%",  ">TURNS"};
    table t = {.heads = heads, .n_columns = INFERD_COUNT(heads)};
    const json_t *devices = member(state, "devices");
    for (size_t i = 0; i < json_array_size(devices); i++) {
        const json_t *d = json_array_get(devices, i);
        uint64_t page = count_of(d, "page_bytes");
        double wall = number_of(d, "account.wall_s");
        static const char *const sizes[] = {"pages.total", "pages.free",   "pages.weight",
                                            "pages.kv",    "pages.cached", "pages.warm",
                                            "pages.parked"};
        static const char *const parts[] = {"account.step_s", "account.load_s", "account.idle_s"};
        add_cell(&t, text_of(d, "name"));
        if (json_is_true(member(d, "lost"))) buf_add_str(&t.cells, "lost: ");
        add_cell(&t, text_of(d, "about")[0] != 0 ? text_of(d, "about") : text_of(d, "kind"));
        for (size_t k = 0; k < INFERD_COUNT(sizes); k++) add_size(&t, count_of(d, sizes[k]) * page);
        for (size_t k = 0; k < INFERD_COUNT(parts); k++) {
            buf_add_format(&t.cells, "%.1f", wall > 0 ? number_of(d, parts[k]) / wall * 100 : 0.0);
            end_cell(&t);
        }
        buf_add_format(&t.cells, "%llu%s", (ull)count_of(d, "turns"),
                       json_is_true(member(d, "thrash.now")) ? ", thrashing" : "");
        end_cell(&t);
    }
    write_table(&t, out);
}

void show_state(buf *out, const json_t *state) {
    show_devices(out, state);
    buf_add_char(out, '\n');
    show_models(out, state);
    if (json_array_size(member(state, "tenants")) > 0) {
        buf_add_char(out, '\n');
        show_tenants(out, state);
    }
    buf_add_format(out, "\nrunning %llu, waiting %llu, paused %llu",
                   (ull)count_of(state, "queues.running"), (ull)count_of(state, "queues.waiting"),
                   (ull)count_of(state, "queues.paused"));
    if (text_of(state, "config.path")[0] != 0)
        buf_add_format(out,
                       "; %s, reloads: %llu applied, %llu refused; changes: %llu applied, %llu "
                       "refused, %llu not in the file",
                       text_of(state, "config.path"), (ull)count_of(state, "config.reloads.ok"),
                       (ull)count_of(state, "config.reloads.refused"),
                       (ull)count_of(state, "config.changes.ok"),
                       (ull)count_of(state, "config.changes.refused"),
                       (ull)count_of(state, "config.unsaved"));
    if (json_is_true(member(state, "draining"))) buf_add_str(out, "; shutting down");
    buf_add_char(out, '\n');
}

void show_plan(buf *out, const json_t *plan) {
    const char *name = text_of(plan, json_is_string(member(plan, "tenant")) ? "tenant" : "model");
    const json_t *problems = member(plan, "problems"), *checks = member(plan, "checks");
    const json_t *victims = member(plan, "victims");
    bool fits = json_is_true(member(plan, "fits"));
    buf_add_format(out, "%s %s\n", name, fits ? "fits" : "does not fit");
    for (size_t i = 0; i < json_array_size(problems); i++)
        buf_add_format(out, "  problem     %s\n", json_string_value(json_array_get(problems, i)));
    for (size_t i = 0; i < json_array_size(checks); i++) {
        const json_t *c = json_array_get(checks, i);
        buf_add_format(out, "  %-3s %-10s %s\n", json_is_true(member(c, "kept")) ? "ok" : "NO",
                       text_of(c, "name"), text_of(c, "text"));
    }
    if (json_is_true(member(plan, "turns")))
        buf_add_str(out, "  not now, but in time slices with models of its class\n");
    for (size_t i = 0; i < json_array_size(victims); i++) {
        const json_t *v = json_array_get(victims, i);
        buf_add_format(out, "  evicts      %s (%s, ", text_of(v, "name"), text_of(v, "why"));
        show_add_size(out, count_of(v, "bytes"));
        buf_add_str(out, ", idle ");
        show_add_seconds(out, number_of(v, "idle_s"));
        buf_add_str(out, ")\n");
    }
    if (member(plan, "bring_up") == NULL || !fits) return;
    buf_add_str(out, "  brought up in ");
    show_add_seconds(out, number_of(plan, "bring_up.s"));
    buf_add_format(out, " (%s)\n", text_of(plan, "bring_up.basis"));
}

void show_error(buf *out, const json_t *answer) {
    const json_t *problems = member(answer, "error.problems");
    for (size_t i = 0; i < json_array_size(problems); i++)
        buf_add_format(out, "%s\n", json_string_value(json_array_get(problems, i)));
    if (json_array_size(problems) == 0)
        buf_add_format(out, "inferd: %s\n", text_of(answer, "error.message"));
}
