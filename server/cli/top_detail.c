/* top_detail.c - see top_detail.h. */
#include "top_detail.h"

#include "ctl_json.h"
#include "ctl_show.h"

typedef unsigned long long ull;

static void add_size(buf *out, const char *before, const json_t *m, const char *path) {
    buf_add_str(out, before);
    show_add_size(out, ctl_count(m, path));
}

static void add_policy(buf *out, const json_t *m) {
    buf_add_format(out, "%s%s, pin %s, class %s, weight %llu", ctl_text(m, "state"),
                   ctl_is(m, "held") ? ", drained" : "", ctl_text(m, "pin"), ctl_text(m, "class"),
                   (ull)ctl_count(m, "weight"));
    if (json_is_object(json_object_get(m, "share")))
        buf_add_format(out, ", share %s %llu %%", ctl_text(m, "share.policy"),
                       (ull)ctl_count(m, "share.percent"));
    buf_add_char(out, '\n');
}

static void add_places(buf *out, const top_state *s, const json_t *m) {
    const json_t *places = json_object_get(m, "devices");
    size_t n = json_array_size(places);
    buf_add_str(out, n == 0 ? "on no device" : "on ");
    for (size_t i = 0; i < n; i++) {
        uint64_t id = (uint64_t)json_integer_value(json_array_get(places, i));
        buf_add_format(out, "%s%s", i > 0 ? ", " : "",
                       ctl_text(top_rows_find(&s->devices, id), "name"));
    }
    buf_add_format(out, "; context %llu tokens\n", (ull)ctl_count(m, "context"));
}

static void add_memory(buf *out, const json_t *m) {
    add_size(out, "weights ", m, "bytes.weight");
    add_size(out, " (file ", m, "bytes.file");
    add_size(out, "), KV ", m, "bytes.kv");
    add_size(out, ", cached KV ", m, "bytes.cached");
    add_size(out, "; in host memory: weights ", m, "bytes.warm");
    add_size(out, ", KV ", m, "bytes.parked");
    add_size(out, "\nguaranteed ", m, "bytes.min");
    if (ctl_count(m, "bytes.max") > 0) // 0 and null: none
        add_size(out, ", at most ", m, "bytes.max");
    else
        buf_add_str(out, ", no maximum");
    buf_add_char(out, '\n');
}

static void add_work(buf *out, const json_t *m) {
    const json_t *ms = json_object_get(m, "last_switch_ms");
    buf_add_format(out,
                   "%llu running, %llu waiting; %llu tokens/s in, %llu out; %.1f %% of a device\n",
                   (ull)ctl_count(m, "running"), (ull)ctl_count(m, "waiting"),
                   (ull)ctl_count(m, "in"), (ull)ctl_count(m, "out"), ctl_number(m, "used") * 100);
    buf_add_format(out, "%llu loads, %llu evictions", (ull)ctl_count(m, "loads"),
                   (ull)ctl_count(m, "evictions"));
    if (json_is_number(ms)) buf_add_str(out, ", the last switch took ");
    if (json_is_number(ms)) show_add_seconds(out, json_number_value(ms) / 1000);
    buf_add_char(out, '\n');
}

static void add_aliases(buf *out, const json_t *m) {
    const json_t *aliases = json_object_get(m, "aliases");
    for (size_t i = 0; i < json_array_size(aliases); i++) {
        const char *alias = json_string_value(json_array_get(aliases, i));
        buf_add_format(out, "%s%s", i > 0 ? ", " : "aliases: ", alias == NULL ? "" : alias);
    }
    if (json_array_size(aliases) > 0) buf_add_char(out, '\n');
}

void top_add_detail(buf *out, const top_state *s, const json_t *m) {
    if (m == NULL) {
        buf_add_str(out, "no model is selected\n");
        return;
    }
    buf_add_format(out, "MODEL %s\n", ctl_text(m, "name"));
    if (ctl_text(m, "error")[0] != 0) buf_add_format(out, "failed: %s\n", ctl_text(m, "error"));
    add_policy(out, m);
    add_work(out, m);
    add_memory(out, m);
    add_places(out, s, m);
    add_aliases(out, m);
}
