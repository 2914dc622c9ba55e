/* start.c - see start.h. */
#include "calls/start.h"

#include <string.h>

#include "inferd/json_whole.h"

#define ANY_WHITE  "[ \\t\\r\\n]*"
#define SOME_WHITE "[ \\n]{0,8}" // that a call may be written with
#define OF_NAMES   "A-Za-z0-9_./-"

enum { HEADS = 2 };

/* ---- the beginning of an object ---- */

static bytes of_buf(const buf *b) {
    return (bytes){b->p == NULL ? "" : b->p, b->n};
}

static bool equal_but_white(bytes mark, const buf *usual) {
    match m = call_match(of_buf(usual), mark);
    return m.result == MATCH_YES && bytes_trim(bytes_from(mark, m.n)).n == 0;
}

static void add_key(buf *out, const char *before, bytes key, const char *behind) {
    buf_add_str(out, before);
    buf_add(out, key.p, key.n);
    buf_add_str(out, behind);
}

bool call_start_is_usual(const call_format *f) {
    buf head = {0}, middle = {0}, tail = {0};
    if (f->style != CALL_OBJECT || !f->at_start) return false;
    if (f->object_head.n == 0) return true;
    add_key(&head, "{\"", f->name_key, "\":\"");
    add_key(&middle, "\",\"", f->arguments_key, "\":");
    buf_add_str(&tail, "}");
    bool ok = !head.failed && !middle.failed && !tail.failed &&
              equal_but_white(f->object_head, &head) &&
              equal_but_white(f->object_middle, &middle) && equal_but_white(f->object_tail, &tail);
    buf_deinit(&head);
    buf_deinit(&middle);
    buf_deinit(&tail);
    return ok;
}

/* What stands before the name; a head with placeholders counts up to the first of these. */
static size_t list_heads(const call_format *f, buf heads[HEADS]) {
    if (call_start_is_usual(f)) {
        add_key(&heads[0], "{\"", f->name_key, "\":\"");
        add_key(&heads[1], "{\"type\":\"function\",\"", f->name_key, "\":\"");
        return 2;
    }
    for (size_t i = 0; i < f->object_head.n; i++) {
        unsigned char c = (unsigned char)f->object_head.p[i];
        if (c <= CALL_KEY || c == (unsigned char)CALL_TOKEN) break;
        buf_add(&heads[0], f->object_head.p + i, 1);
    }
    return 1;
}

/* ---- reading ---- */

static bool is_of_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c != 0 && strchr("_./-", c) != NULL);
}

static bool is_known(const json_t *tools, bytes name) {
    size_t i;
    json_t *tool;
    if (tools == NULL) return true;
    json_array_foreach((json_t *)(uintptr_t)tools, i, tool) {
        json_t *of = json_object_get(json_object_get(tool, "function"), "name");
        if (json_string_length(of) == name.n && memcmp(json_string_value(of), name.p, name.n) == 0)
            return true;
    }
    return false;
}

/* A name, then what ends it. */
static match_result match_name(bytes text, const json_t *tools, char end) {
    size_t n = 0;
    while (n < text.n && n <= CALL_NAME_BYTES_MAX && is_of_name(text.p[n])) n++;
    size_t at = n;
    while (end == '(' && at < text.n && call_is_white(text.p[at])) at++;
    if (n > CALL_NAME_BYTES_MAX) return MATCH_NO;
    if (at == text.n) return MATCH_PART;
    return n > 0 && text.p[at] == end && is_known(tools, (bytes){text.p, n}) ? MATCH_YES : MATCH_NO;
}

static match_result match_python(bytes text) {
    match m = call_match(bytes_of("["), text);
    if (m.result != MATCH_YES) return m.result;
    bytes rest = bytes_from(text, m.n);
    while (rest.n > 0 && call_is_white(rest.p[0])) rest = bytes_from(rest, 1);
    return match_name(rest, NULL, '(');
}

match_result call_start_match(const call_format *f, const json_t *tools, bytes text) {
    buf heads[HEADS] = {{0}, {0}};
    match_result best = MATCH_NO;
    if (f->style == CALL_PYTHON) return match_python(text);
    for (size_t i = 0, n = list_heads(f, heads); i < n; i++) {
        match m = call_match(of_buf(&heads[i]), text);
        bool named = heads[i].n > 0 && heads[i].p[heads[i].n - 1] == '"';
        if (m.result == MATCH_YES && named)
            m.result = match_name(bytes_from(text, m.n), tools, '"');
        if (m.result > best) best = m.result;
        if (heads[i].failed) best = MATCH_NO;
    }
    for (size_t i = 0; i < HEADS; i++) buf_deinit(&heads[i]);
    return best;
}

/* ---- patterns ---- */

static void add_byte(buf *out, char c) {
    bool plain = is_of_name(c) && c != '.' && c != '/' && c != '-';
    if (plain || (c & 0x80) != 0)
        buf_add_char(out, c);
    else
        buf_add_format(out, "\\x%02x", (unsigned)(unsigned char)c);
}

/* The bytes of a mark, with white space between them. */
static void add_mark(buf *out, bytes mark) {
    for (size_t i = 0; i < mark.n; i++) {
        if (call_is_white(mark.p[i])) continue;
        buf_add_str(out, ANY_WHITE);
        add_byte(out, mark.p[i]);
    }
}

/* Reasoning that the text may have, or its end: what a parser leaves out before a call. */
static void add_reasoning(buf *out, const call_format *f) {
    bytes open = f->reasoning_open, close = f->reasoning_close;
    bool is_text = bytes_trim(close).n > 0 && memchr(close.p, CALL_TOKEN, close.n) == NULL;
    if (!is_text) return; // a control token is never text
    buf_add_str(out, "(?:");
    if (bytes_trim(open).n > 0 && memchr(open.p, CALL_TOKEN, open.n) == NULL) {
        buf_add_str(out, "(?:");
        add_mark(out, open);
        buf_add_str(out, "[\\s\\S]*)?");
    }
    add_mark(out, close);
    buf_add_str(out, ")*");
}

static json_t *end_pattern(buf *pattern) {
    bool whole = buf_cstr(pattern) == pattern->p && !pattern->failed;
    json_t *v = whole ? tag_of_pattern(pattern->p) : NULL;
    buf_deinit(pattern);
    return v;
}

json_t *call_start_others(const call_format *f) {
    buf pattern = {0}, heads[HEADS] = {{0}, {0}};
    buf_add_str(&pattern, "^(?!");
    add_reasoning(&pattern, f);
    buf_add_str(&pattern, "(?:");
    if (f->style == CALL_PYTHON) {
        add_mark(&pattern, bytes_of("["));
        buf_add_str(&pattern, ANY_WHITE "[" OF_NAMES "]+");
        add_mark(&pattern, bytes_of("("));
    } else {
        for (size_t i = 0, n = list_heads(f, heads); i < n; i++) {
            if (i > 0) buf_add_char(&pattern, '|');
            add_mark(&pattern, of_buf(&heads[i]));
            pattern.failed = pattern.failed || heads[i].failed;
        }
    }
    buf_add_str(&pattern, "))[\\s\\S]*");
    for (size_t i = 0; i < HEADS; i++) buf_deinit(&heads[i]);
    return end_pattern(&pattern);
}

/* ---- calls ---- */

/* Text of JSON; each space stands for some white space. */
static void add_loose(buf *out, const char *text) {
    for (; *text != 0; text++) {
        if (*text == ' ')
            buf_add_str(out, SOME_WHITE);
        else
            add_byte(out, *text);
    }
}

static void add_loose_key(buf *out, const char *before, bytes key, const char *behind) {
    add_loose(out, before);
    for (size_t i = 0; i < key.n; i++) add_byte(out, key.p[i]);
    add_loose(out, behind);
}

void call_start_add_object(tag_writer *w, const call_format *f, bytes name,
                           const json_t *parameters) {
    buf head = {0}, middle = {0};
    buf_add_str(&head, "(?:");
    add_loose(&head, " \"type\" : \"function\" ,");
    buf_add_str(&head, ")?");
    add_loose_key(&head, " \"", f->name_key, "\" : \"");
    add_loose_key(&middle, "\" , \"", f->arguments_key, "\" : ");
    tag_text(w, bytes_of("{"));
    tag_add(w, end_pattern(&head));
    tag_text(w, name);
    tag_add(w, end_pattern(&middle));
    tag_add(w, tag_of_schema(parameters, name.p));
    tag_add(w, tag_of_pattern(SOME_WHITE));
    tag_text(w, bytes_of("}"));
}

/* ---- content ---- */

static json_t *names_of(const json_t *tools) {
    json_t *names = json_array(), *tool;
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)tools, i, tool) {
        json_t *name = json_object_get(json_object_get(tool, "function"), "name");
        if (json_array_append(names, name) == 0) continue;
        json_decref(names);
        return NULL;
    }
    return names;
}

json_t *call_start_content(const call_format *f, const json_t *tools, const json_t *content) {
    json_t *copy = json_deep_copy_whole(content), *schema = json_object_get(copy, "json_schema");
    if (copy == NULL || f->style != CALL_OBJECT || !json_is_object(schema)) return copy;
    char key[CALL_MARK_BYTES];
    snprintf(key, sizeof key, "%.*s", (int)size_min(f->name_key.n, sizeof key - 1), f->name_key.p);
    json_t *properties = json_object_get(schema, "properties");
    json_t *others = json_object_get(schema, "additionalProperties");
    if (json_object_get(properties, key) == NULL && json_is_false(others)) return copy; // none
    if (properties == NULL &&
        json_object_set_new(schema, "properties", properties = json_object()) != 0)
        properties = NULL;
    json_t *of = json_object_get(properties, key);
    if (of == NULL) of = others;
    json_t *no_tool = json_pack("{s:{s:o}}", "not", "enum", names_of(tools));
    json_t *both =
        json_is_object(of) ? json_pack("{s:[O,O]}", "allOf", of, no_tool) : json_incref(no_tool);
    bool ok = no_tool != NULL && both != NULL &&
              (json_is_false(of) || json_object_set(properties, key, both) == 0);
    json_decref(no_tool);
    json_decref(both);
    if (ok) return copy;
    json_decref(copy);
    return NULL;
}
