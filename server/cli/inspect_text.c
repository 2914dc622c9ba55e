/* inspect_text.c - see inspect_text.h. */
#include "inspect_text.h"

#include <inttypes.h>

enum { LABEL_CELLS = 14, REASONS_SHOWN = 40 };

/* ---- members ---- */

static const json_t *get(const json_t *o, const char *key) {
    return json_object_get(o, key);
}

static uint64_t number(const json_t *o, const char *key) { // null: 0
    return (uint64_t)json_integer_value(get(o, key));
}

static bool is_null(const json_t *o, const char *key) {
    return get(o, key) == NULL || json_is_null(get(o, key));
}

/* A text of the file, printable. */
static void add_foreign(buf *out, const json_t *text) {
    const char *p = json_string_value(text);
    size_t n = json_string_length(text);
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)p[i];
        bool c1 = c == 0xc2 && i + 1 < n && (unsigned char)p[i + 1] < 0xa0; // U+0080 to U+009F
        buf_add_char(out, c < 0x20 || c == 0x7f || c1 ? '?' : (char)c);
        i += c1;
    }
}

static void add_text(buf *out, const json_t *o, const char *key) {
    add_foreign(out, get(o, key));
}

static void add_or(buf *out, const json_t *o, const char *key, const char *otherwise) {
    if (is_null(o, key))
        buf_add_str(out, otherwise);
    else
        add_text(out, o, key);
}

/* Begins a line; "": one more of the label before. */
static void label(buf *out, const char *name) {
    buf_add_format(out, "%-*s ", LABEL_CELLS, name);
}

static void add_size(buf *out, uint64_t n) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double v = (double)n;
    size_t i = 0;
    for (; v >= 1024 && i + 1 < sizeof units / sizeof units[0]; i++) v /= 1024;
    buf_add_format(out, i == 0 ? "%.0f %s" : "%.1f %s", v, units[i]);
}

static void add_count(buf *out, uint64_t n) {
    if (n >= 1000000000)
        buf_add_format(out, "%.1f billion", (double)n * 1e-9);
    else if (n >= 1000000)
        buf_add_format(out, "%.1f million", (double)n * 1e-6);
    else
        buf_add_format(out, "%" PRIu64, n);
}

/* A number between two texts; nothing where the file does not say it. */
static void add_known(buf *out, const json_t *o, const char *key, const char *before,
                      const char *behind) {
    if (!is_null(o, key)) buf_add_format(out, "%s%" PRIu64 "%s", before, number(o, key), behind);
}

static const char *s_of(uint64_t n) {
    return n == 1 ? "" : "s";
}

/* ---- the model ---- */

static void add_files(buf *out, const json_t *t) {
    const json_t *files = get(t, "files");
    size_t n = json_array_size(files);
    label(out, "file");
    add_text(out, t, "path");
    buf_add_str(out, json_is_true(get(t, "made_up")) ? " (made up: no file), " : ", ");
    add_size(out, number(t, "file_bytes"));
    buf_add_char(out, '\n');
    for (size_t i = 0; n > 1 && i < n; i++) {
        const json_t *file = json_array_get(files, i);
        label(out, i == 0 ? "parts" : "");
        add_text(out, file, "path");
        buf_add_str(out, ", ");
        add_size(out, number(file, "bytes"));
        buf_add_char(out, '\n');
    }
}

static void add_shape(buf *out, const json_t *t) {
    label(out, "name");
    if (json_string_length(get(t, "name")) > 0)
        add_text(out, t, "name");
    else
        buf_add_str(out, "none");
    buf_add_char(out, '\n');
    label(out, "architecture");
    add_or(out, t, "architecture", "none");
    buf_add_str(out, ", ");
    add_count(out, number(t, "parameters"));
    buf_add_str(out, " parameters");
    if (number(t, "experts") > 0 && !is_null(t, "parameters_active")) {
        buf_add_str(out, ", of which a token takes ");
        add_count(out, number(t, "parameters_active"));
    }
    buf_add_char(out, '\n');
    label(out, "shape");
    add_known(out, t, "layers", "", " layers");
    add_known(out, t, "dim", ", width ", "");
    add_known(out, t, "heads", ", ", " heads");
    add_known(out, t, "kv_heads", ", ", " for KV");
    add_known(out, t, "head_dim", ", of ", "");
    add_known(out, t, "ffn_dim", "; feed-forward ", "");
    buf_add_str(out, is_null(t, "layers") ? "not known\n" : "\n");
    if (number(t, "experts") == 0) return;
    label(out, "experts");
    buf_add_format(out, "%" PRIu64 " in each layer, %" PRIu64 " used for a token\n",
                   number(t, "experts"), number(t, "experts_used"));
}

static void add_rotary(buf *out, const json_t *t, const json_t *rope) {
    buf_add_str(out, "; rotary scaling: ");
    add_text(out, rope, "scaling");
    if (!is_null(rope, "factor") && json_real_value(get(rope, "factor")) != 1)
        buf_add_format(out, " by %g", json_real_value(get(rope, "factor")));
    if (number(rope, "original_context") != number(t, "context_trained"))
        buf_add_format(out, ", first trained for %" PRIu64, number(rope, "original_context"));
    if (!is_null(rope, "divisors")) {
        buf_add_format(out, "; for %" PRIu64 " tokens the frequencies are divided by ",
                       number(t, "context"));
        add_text(out, rope, "divisors");
    }
    if (number(rope, "layers_without") > 0)
        buf_add_format(out, "; %" PRIu64 " layers without rotation",
                       number(rope, "layers_without"));
}

static void add_context(buf *out, const json_t *t) {
    const json_t *windows = get(t, "windows");
    label(out, "context");
    if (is_null(t, "context_trained")) buf_add_str(out, "not known");
    add_known(out, t, "context_trained", "", " tokens trained");
    if (!is_null(t, "rotary")) add_rotary(out, t, get(t, "rotary"));
    buf_add_char(out, '\n');
    if (!json_is_object(windows)) return;
    label(out, "windows");
    buf_add_format(out,
                   "%" PRIu64 " of %" PRIu64 " layers see the last %" PRIu64
                   " tokens; their keys and values are kept whole, too\n",
                   number(windows, "layers"), number(t, "layers"), number(windows, "tokens"));
}

static void add_token(buf *out, const json_t *token) {
    add_text(out, token, "text");
    buf_add_format(out, " (%" PRIu64 ")", number(token, "id"));
}

static void add_vocabulary(buf *out, const json_t *t) {
    const json_t *tok = get(t, "tokenizer"), *ends = get(tok, "ends");
    label(out, "vocabulary");
    if (is_null(tok, "tokens")) buf_add_str(out, "none");
    add_known(out, tok, "tokens", "", " tokens");
    add_known(out, tok, "rows", ", ", " rows");
    buf_add_str(out, "; tokenizer ");
    add_or(out, tok, "model", "none");
    buf_add_str(out, ", pre-tokenizer ");
    add_or(out, tok, "pre", "none");
    buf_add_char(out, '\n');
    label(out, "special tokens");
    buf_add_str(out, "begin: ");
    if (is_null(tok, "bos"))
        buf_add_str(out, "none");
    else
        add_token(out, get(tok, "bos"));
    buf_add_str(out, json_array_size(ends) > 0 ? "; end: " : "; end: none");
    for (size_t i = 0; i < json_array_size(ends); i++) {
        if (i > 0) buf_add_str(out, ", ");
        add_token(out, json_array_get(ends, i));
    }
    buf_add_char(out, '\n');
}

static void add_types(buf *out, const json_t *t) {
    const json_t *types = get(t, "types");
    uint64_t all = 0;
    for (size_t i = 0; i < json_array_size(types); i++)
        all += number(json_array_get(types, i), "bytes");
    for (size_t i = 0; i < json_array_size(types); i++) {
        const json_t *one = json_array_get(types, i);
        uint64_t n = number(one, "tensors");
        label(out, i == 0 ? "types" : "");
        buf_add_format(out, "%-8s %6" PRIu64 " tensor%s ", json_string_value(get(one, "type")), n,
                       n == 1 ? "  " : "s ");
        add_size(out, number(one, "bytes"));
        buf_add_format(out, ", %.1f %%%s\n", 100.0 * (double)number(one, "bytes") / (double)all,
                       json_is_true(get(one, "supported")) ? "" : ", not supported");
    }
}

/* ---- memory ---- */

static void add_kv(buf *out, const json_t *t, const json_t *one) {
    label(out, "");
    buf_add_format(out, "KV %s%s: ", json_string_value(get(one, "type")),
                   json_is_true(get(one, "default")) ? " (default)" : "");
    if (!is_null(one, "why_not")) {
        add_text(out, one, "why_not");
    } else {
        add_size(out, number(one, "bytes_per_1000_tokens"));
        buf_add_str(out, " per 1,000 tokens, ");
        add_size(out, number(one, "bytes_of_context"));
        buf_add_format(out, " for %" PRIu64, number(t, "context"));
    }
    buf_add_char(out, '\n');
}

static void add_memory(buf *out, const json_t *t) {
    const json_t *memory = get(t, "memory"), *kv = get(memory, "kv");
    if (!json_is_object(memory)) return;
    label(out, "memory");
    buf_add_format(out, "on the %s: weights ", json_string_value(get(memory, "device")));
    if (is_null(memory, "weights_bytes"))
        buf_add_str(out, "not known");
    else
        add_size(out, number(memory, "weights_bytes"));
    buf_add_char(out, '\n');
    for (size_t i = 0; i < json_array_size(kv); i++) add_kv(out, t, json_array_get(kv, i));
}

/* ---- words ---- */

static void add_reasoning(buf *out, const json_t *reasoning) {
    const json_t *switches = get(reasoning, "switches");
    label(out, "reasoning");
    if (!json_is_object(reasoning)) {
        buf_add_str(out, "not marked\n");
        return;
    }
    add_text(out, reasoning, "open");
    buf_add_str(out, " ... ");
    add_text(out, reasoning, "close");
    for (size_t i = 0; i < json_array_size(switches); i++) {
        buf_add_str(out, i == 0 ? "; switched by " : ", ");
        add_foreign(out, json_array_get(switches, i));
    }
    buf_add_char(out, '\n');
}

static void add_template(buf *out, const json_t *t) {
    const json_t *o = get(t, "template"), *refuses = get(o, "refuses"), *others = get(o, "others");
    label(out, "template");
    if (is_null(o, "source")) {
        buf_add_str(out, "none: only /v1/completions\n");
        return;
    }
    add_text(out, o, "source");
    buf_add_format(out, ", %" PRIu64 " bytes", number(o, "bytes"));
    for (size_t i = 0; i < json_array_size(others); i++) {
        buf_add_str(out, i == 0 ? "; not used: " : ", ");
        add_foreign(out, json_array_get(others, i));
    }
    buf_add_char(out, '\n');
    for (size_t i = 0; i < json_array_size(refuses); i++) {
        label(out, "");
        buf_add_str(out, "refuses ");
        add_text(out, json_array_get(refuses, i), "what");
        buf_add_str(out, ": ");
        add_text(out, json_array_get(refuses, i), "why");
        buf_add_char(out, '\n');
    }
    label(out, "tools");
    add_or(out, o, "tool_format", "not known");
    buf_add_str(out, ", shown ");
    add_or(out, o, "tools", "in no way");
    if (!is_null(o, "tools_why")) {
        buf_add_str(out, "; ");
        add_text(out, o, "tools_why");
    }
    buf_add_char(out, '\n');
    add_reasoning(out, get(o, "reasoning"));
}

static void add_sampling(buf *out, const json_t *t) {
    const json_t *list = get(t, "sampling");
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *one = json_array_get(list, i);
        if (is_null(one, "file")) continue;
        label(out, n++ == 0 ? "sampling" : "");
        buf_add_format(out, "%s %g: ", json_string_value(get(one, "name")),
                       json_number_value(get(one, "value")));
        if (!is_null(one, "key")) buf_add_format(out, "%s of ", json_string_value(get(one, "key")));
        add_text(out, one, "file");
        buf_add_char(out, '\n');
    }
    if (n > 0) return;
    label(out, "sampling");
    buf_add_str(out, "no defaults in files: temperature 1, nothing else\n");
}

static void add_not_served(buf *out, const json_t *t) {
    static const struct {
        const char *part, *what;
    } names[] = {{"mtp", "layers that predict further tokens (MTP): recognised, not used"},
                 {"image", "image encoder: not served"},
                 {"audio", "audio encoder: not served"}};
    const json_t *parts = get(t, "not_served");
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *one = json_array_get(parts, i);
        const char *part = json_string_value(get(one, "part"));
        uint64_t n = number(one, "tensors");
        label(out, i == 0 ? "other parts" : "");
        for (size_t k = 0; k < sizeof names / sizeof names[0]; k++)
            if (part != NULL && strcmp(part, names[k].part) == 0) buf_add_str(out, names[k].what);
        buf_add_format(out, ", %" PRIu64 " tensor%s, ", n, s_of(n));
        add_size(out, number(one, "bytes"));
        buf_add_char(out, '\n');
    }
}

static void add_tensors(buf *out, const json_t *t) {
    const json_t *list = get(t, "tensors");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *one = json_array_get(list, i), *shape = get(one, "shape");
        label(out, i == 0 ? "tensors" : "");
        add_text(out, one, "name");
        buf_add_format(out, " %s [", json_string_value(get(one, "type")));
        for (size_t k = 0; k < json_array_size(shape); k++)
            buf_add_format(out, "%s%" PRIu64, k > 0 ? ", " : "",
                           (uint64_t)json_integer_value(json_array_get(shape, k)));
        buf_add_format(out, "] %" PRIu64 " bytes at %" PRIu64, number(one, "bytes"),
                       number(one, "offset"));
        if (json_array_size(get(t, "files")) > 1)
            buf_add_format(out, " of part %" PRIu64, number(one, "part") + 1);
        buf_add_char(out, '\n');
    }
}

static void add_verdict(buf *out, const json_t *t) {
    const json_t *reasons = get(t, "reasons");
    size_t n = json_array_size(reasons);
    label(out, "can be served");
    buf_add_str(out, n == 0 ? "yes\n" : "no:\n");
    for (size_t i = 0; i < n && i < REASONS_SHOWN; i++) {
        buf_add_str(out, "  - ");
        add_foreign(out, json_array_get(reasons, i));
        buf_add_char(out, '\n');
    }
    if (n > REASONS_SHOWN)
        buf_add_format(out, "  and %zu more: --json lists all\n", n - (size_t)REASONS_SHOWN);
}

void inspect_text(const json_t *told, buf *out) {
    add_files(out, told);
    add_shape(out, told);
    add_context(out, told);
    add_vocabulary(out, told);
    add_types(out, told);
    add_not_served(out, told);
    add_memory(out, told);
    add_template(out, told);
    add_sampling(out, told);
    add_tensors(out, told);
    add_verdict(out, told);
}
