/* parser_tags.c - arguments between tags: a key, a value, a key, a value.
 *
 * Text between tags has no quotes, so whether `3` is a number or a text is told by the marks around
 * it, where they depend on the type, or by the schema of the tool; if neither tells, it is what it
 * looks like.  A text is passed on as it comes; any other value is complete before it is.  So where
 * the text of the message is cut, the arguments are the beginning of what they would have been. */
#include <string.h>

#include "calls/parser.h"
#include "calls/types.h"

/* ---- types ---- */

const json_t *parser_arguments_schema(const call_parser *p) {
    size_t i;
    json_t *tool;
    bytes name = {p->name.p, p->name.n};
    json_array_foreach((json_t *)(uintptr_t)p->tools, i, tool) {
        const json_t *function = json_object_get(tool, "function");
        const json_t *called = json_object_get(function, "name");
        if (json_is_string(called) &&
            bytes_equal((bytes){json_string_value(called), json_string_length(called)}, name))
            return json_object_get(function, "parameters");
    }
    return NULL;
}

static unsigned types_of_argument(const call_parser *p) {
    const json_t *root = parser_arguments_schema(p);
    const json_t *properties = json_object_get(root, "properties");
    return call_types_of(root, json_object_getn(properties, p->key.p, p->key.n));
}

/* ---- keys ---- */

/* The arguments are complete, or cannot be read further: they end here. */
static step_result end_arguments(call_parser *p) {
    buf_add_str(&p->out, p->n_keys == 0 ? "{}" : "}");
    p->state = PARSER_CLOSE;
    return STEP_ON;
}

/* The text ends inside of the arguments: their JSON stays open, and half a mark or key is left
 * out. */
static step_result cut_off(call_parser *p) {
    if (p->n_keys == 0) buf_add_char(&p->out, '{');
    return STEP_WAITS;
}

/* The end of a call may begin as a key does: <key>, </call>. */
step_result parser_tag(call_parser *p) {
    match key = call_match(p->f->key_open, parser_rest(p, 0));
    match end = call_match(p->f->call_close, parser_rest(p, 0));
    bool part = key.result == MATCH_PART || end.result == MATCH_PART;
    if (key.result == MATCH_YES && end.result == MATCH_PART && !p->final) return STEP_WAITS;
    if (key.result == MATCH_YES && !(end.result == MATCH_YES && end.n > key.n)) {
        parser_take(p, key.n);
        p->n_seen = 0;
        p->state = PARSER_KEY;
        return STEP_ON;
    }
    if (end.result != MATCH_YES && part && !p->final) return STEP_WAITS;
    bool in_mark = end.result == MATCH_PART && key.result == MATCH_NO; // which the text cuts
    p->whole = end.result == MATCH_YES || in_mark;
    if (part && !p->whole) return cut_off(p);
    return end_arguments(p);
}

static void begin_value(call_parser *p) {
    unsigned wanted = types_of_argument(p), possible = p->types;
    unsigned text = 1u << CALL_TYPE_STRING;
    if ((wanted & possible) != 0) possible &= wanted;
    p->is_text = possible == text;
    p->types = possible;
    p->n_seen = 0;
    p->wrapped = p->in_value = false;
    buf_add_str(&p->out, p->n_keys++ == 0 ? "{\"" : ",\"");
    value_add_escaped(&p->out, (bytes){p->key.p, p->key.n});
    buf_add_str(&p->out, "\":");
    if (p->is_text) buf_add_char(&p->out, '"');
    p->state = p->f->tree && !p->is_text ? PARSER_TREE : PARSER_VALUE;
    p->depth = 0;
    buf_clear(&p->close);
    call_fill_key(p->f->value_close[CALL_TYPE_STRING], (bytes){p->key.p, p->key.n}, &p->close);
    p->failed = p->failed || p->close.failed;
}

/* A line break that the template writes behind the mark.  False: it may come yet. */
static bool skip_newline(const call_parser *p, bytes mark, size_t *at) {
    if (mark.n == 0 || mark.p[mark.n - 1] != '\n') return true;
    if (*at == p->held.n && !p->final) return false;
    if (*at < p->held.n && p->held.p[*at] == '\n') ++*at;
    return true;
}

step_result parser_key(call_parser *p) {
    const call_format *f = p->f;
    for (size_t i = p->n_seen; i < p->held.n && i < PARSER_KEY_BYTES_MAX; i++) {
        size_t n = 0;
        p->n_seen = i;
        bool part = false;
        bytes mark = {NULL, 0};
        p->types = 0;
        if (call_is_white(p->held.p[i])) continue; // in front of the mark, where it is layout
        for (int t = 0; t < CALL_TYPES; t++) {
            match m = call_match(f->key_close[t], parser_rest(p, i));
            part = part || m.result == MATCH_PART;
            if (m.result != MATCH_YES || m.n < n) continue;
            if (m.n > n) p->types = 0;
            p->types |= 1u << t;
            n = m.n;
            mark = f->key_close[t];
        }
        if (part && !p->final) return STEP_WAITS;
        if (n == 0) continue;
        size_t at = i + n;
        if (!skip_newline(p, mark, &at)) return STEP_WAITS;
        bytes key = bytes_trim((bytes){p->held.p, i});
        buf_clear(&p->key);
        buf_add(&p->key, key.p, key.n);
        p->failed = p->failed || p->key.failed;
        parser_take(p, at);
        begin_value(p);
        return STEP_ON;
    }
    if (p->held.n >= PARSER_KEY_BYTES_MAX) return end_arguments(p);
    return p->final ? cut_off(p) : STEP_WAITS;
}

/* ---- values ---- */

static void add_text(call_parser *p, bytes text) {
    value_add_escaped(&p->out, text);
    parser_flush(p);
}

/* A value that is not text is what it looks like; or it is text after all. */
void parser_add_value(buf *out, bytes text, unsigned types) {
    bytes no_mark = {NULL, 0};
    size_t from = out->n;
    bytes whole = bytes_trim(text);
    bool quoted = whole.n > 0 && (whole.p[0] == '"' || whole.p[0] == '\'');
    bool guess = (types & 1u << CALL_TYPE_STRING) != 0 && quoted; // a text with quotes of its own
    if (!guess && value_read_all(VALUE_JSON, no_mark, whole, out)) return;
    if (!guess && value_read_all(VALUE_LOOSE, no_mark, whole, out)) return;
    out->n = from;
    buf_add_char(out, '"');
    value_add_escaped(out, text);
    buf_add_char(out, '"');
}

/* The value ends at `end`, and its mark at `next`. */
static step_result end_value(call_parser *p, size_t end, size_t next) {
    bytes text = {p->held.p, end};
    if (p->is_text) {
        value_add_escaped(&p->out, text);
        buf_add_char(&p->out, '"');
    } else {
        parser_add_value(&p->out, text, p->types);
    }
    parser_flush(p);
    parser_take(p, next);
    p->state = PARSER_TAG;
    return STEP_ON;
}

/* `<![CDATA[` in front of a text.  False: it may still become that. */
static bool unwrap(call_parser *p) {
    bytes open = p->f->wrap_open;
    bytes rest = parser_rest(p, 0);
    if (open.n == 0 || p->in_value) return true;
    size_t n = size_min(open.n, rest.n);
    bool same = n == 0 || memcmp(rest.p, open.p, n) == 0;
    if (same && n < open.n) return false;
    p->in_value = true;
    if (!same) return true;
    p->wrapped = true;
    if (!p->is_text) buf_add_char(&p->out, '"'); // wrapped is always text
    p->is_text = true;
    parser_take(p, open.n);
    return true;
}

/* The mark behind a value: what the template writes for any type that is possible. */
static bytes close_of(const call_parser *p) {
    int t = 0;
    if (p->f->tree) return (bytes){p->close.p, p->close.n};
    while (t < CALL_TYPES - 1 && (p->types & 1u << t) == 0) t++;
    return p->wrapped ? p->f->wrap_close : p->f->value_close[t];
}

step_result parser_value(call_parser *p) {
    if (!unwrap(p)) return STEP_WAITS;
    bytes close = close_of(p), anchor = call_anchor(close);
    bool line = !p->wrapped && close.n > 0 && close.p[0] == '\n';
    size_t i = p->n_seen;
    for (; i < p->held.n; i++) {
        bytes rest = parser_rest(p, i);
        size_t n = size_min(anchor.n, rest.n);
        if (memcmp(rest.p, anchor.p, n) != 0) continue;
        match m = call_match(close, rest);
        if (m.result == MATCH_NO) continue;
        if (m.result == MATCH_PART) break;
        size_t end = line && i > 0 && p->held.p[i - 1] == '\n' ? i - 1 : i;
        size_t next = i + m.n;
        if (p->wrapped) {
            match outer = call_match(p->f->value_close[CALL_TYPE_STRING], parser_rest(p, next));
            if (outer.result == MATCH_PART) break;
            if (outer.result == MATCH_YES) next += outer.n;
        }
        return end_value(p, end, next);
    }
    size_t sure = i;
    if (line && sure > 0 && p->held.p[sure - 1] == '\n') sure--; // perhaps before the mark
    p->n_seen = i;
    if (p->is_text && sure > 0) {
        add_text(p, (bytes){p->held.p, sure});
        parser_take(p, sure);
        p->n_seen = i - sure;
    }
    return STEP_WAITS;
}
