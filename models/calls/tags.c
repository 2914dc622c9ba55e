/* tags.c - see tags.h. */
#include "calls/tags.h"

#include <string.h>

#include "calls/types.h"

#include "inferd/json_whole.h"
#include "models/grammar.h"

static bytes text_of(const json_t *v) {
    return (bytes){json_string_value(v), json_string_length(v)};
}

/* ---- formats ---- */

json_t *tag_of_text(bytes text) {
    json_t *v = json_object(), *s = json_stringn_nocheck(text.n > 0 ? text.p : "", text.n);
    if (v != NULL && json_object_set_new(v, "type", json_string("const_string")) == 0 &&
        s != NULL && json_object_set(v, "value", s) == 0) {
        json_decref(s);
        return v;
    }
    json_decref(s);
    json_decref(v);
    return NULL;
}

json_t *tag_format(const char *type, const char *key, json_t *value) {
    json_t *v = json_object();
    if (v != NULL && value != NULL && json_object_set_new(v, "type", json_string(type)) == 0 &&
        json_object_set(v, key, value) == 0) {
        json_decref(value);
        return v;
    }
    json_decref(value);
    json_decref(v);
    return NULL;
}

json_t *tag_of_any(void) {
    json_t *v = json_object();
    if (v != NULL && json_object_set_new(v, "type", json_string("any_text")) == 0) return v;
    json_decref(v);
    return NULL;
}

json_t *tag_of_string(const json_t *schema, const char *place) {
    json_t *of = json_object();
    bool ok = of != NULL && json_object_set_new(of, "type", json_string("string")) == 0 &&
              json_object_set_new(of, "$comment", json_string(place)) == 0;
    size_t n = json_object_size(of);
    for (size_t i = 0; call_text_keywords[i] != NULL; i++) {
        json_t *v = json_object_get(schema, call_text_keywords[i]);
        if (v != NULL) ok = ok && json_object_set(of, call_text_keywords[i], v) == 0;
    }
    if (ok && json_object_size(of) > n) return tag_format("string_text", "json_schema", of);
    json_decref(of);
    return ok ? tag_of_any() : NULL;
}

json_t *tag_of_pattern(const char *pattern) {
    return tag_format("regex", "pattern", json_string(pattern));
}

json_t *tag_of_schema(const json_t *schema, const char *name) {
    json_t *of = json_is_object(schema) ? json_deep_copy_whole(schema) : json_object();
    bool typed = json_object_size(of) > 0;
    if (of != NULL && !typed && json_object_set_new(of, "type", json_string("object")) != 0) {
        json_decref(of);
        of = NULL;
    }
    if (of != NULL && json_object_set_new(of, "$comment", json_string(name)) != 0) {
        json_decref(of);
        of = NULL;
    }
    return tag_format("json_schema", "json_schema", of);
}

json_t *tag_or(json_t *formats) {
    if (json_array_size(formats) != 1) return tag_format("or", "elements", formats);
    json_t *only = json_incref(json_array_get(formats, 0));
    json_decref(formats);
    return only;
}

json_t *tag_separated(json_t *tags, bytes separator, bool some, bool one) {
    json_t *v = tag_format("tags_with_separator", "tags", tags), *text = tag_of_text(separator);
    bool ok = v != NULL && text != NULL &&
              json_object_set(v, "separator", json_object_get(text, "value")) == 0 &&
              json_object_set_new(v, "at_least_one", json_boolean(some)) == 0 &&
              json_object_set_new(v, "stop_after_first", json_boolean(one)) == 0;
    json_decref(text);
    if (ok) return v;
    json_decref(v);
    return NULL;
}

json_t *tag_list(json_t *one) {
    json_t *list = json_array();
    if (list != NULL && one != NULL && json_array_append(list, one) == 0) {
        json_decref(one);
        return list;
    }
    json_decref(one);
    json_decref(list);
    return NULL;
}

json_t *tag_of(json_t *format) {
    json_t *v = json_object();
    bool ok = format != NULL && v != NULL && json_object_set(v, "content", format) == 0 &&
              json_object_set_new(v, "begin", json_string("")) == 0 &&
              json_object_set_new(v, "end", json_string("")) == 0 &&
              json_object_set_new(v, "type", json_string("tag")) == 0;
    json_decref(format);
    if (ok) return v;
    json_decref(v);
    return NULL;
}

json_t *tag_maybe(json_t *tag) {
    return tag_separated(tag_list(tag), (bytes){NULL, 0}, false, true);
}

/* ---- sequences ---- */

void tag_begin(tag_writer *w) {
    *w = (tag_writer){.elements = json_array()};
    w->failed = w->elements == NULL;
}

void tag_text(tag_writer *w, bytes text) {
    buf_add(&w->text, text.p, text.n);
    w->failed = w->failed || w->text.failed;
}

static void flush(tag_writer *w) {
    if (w->text.n == 0) return;
    json_t *format = tag_of_text((bytes){w->text.p, w->text.n});
    buf_clear(&w->text);
    tag_add(w, format);
}

void tag_add(tag_writer *w, json_t *format) {
    flush(w);
    if (format == NULL || w->failed || json_array_append(w->elements, format) != 0)
        w->failed = true;
    json_decref(format);
}

/* A mark, or a part of it, that is written whole. */
static void add_part(tag_writer *w, bytes mark, bytes name) {
    bool in_token = false;
    for (size_t i = 0; i < mark.n; i++) {
        switch (mark.p[i]) {
        case CALL_NAME:
            tag_text(w, name);
            break;
        case CALL_ID:
            tag_add(w, tag_of_pattern("[a-zA-Z0-9]{9}"));
            break;
        case CALL_INDEX:
            tag_add(w, tag_of_pattern("[0-9]{1,3}"));
            break;
        case CALL_TOKEN:
            tag_text(w, bytes_of(in_token ? GRAMMAR_TOKEN_CLOSE : GRAMMAR_TOKEN_OPEN));
            in_token = !in_token;
            break;
        default:
            tag_text(w, (bytes){mark.p + i, 1});
        }
    }
}

/* A part that may be left out. */
static void add_maybe(tag_writer *w, bytes part, bytes name) {
    tag_writer inner;
    tag_begin(&inner);
    add_part(&inner, part, name);
    tag_add(w, tag_maybe(tag_of(tag_end_sequence(&inner))));
}

void tag_mark(tag_writer *w, bytes mark, bytes name) {
    while (mark.n > 0) {
        const char *maybe = memchr(mark.p, CALL_MAYBE, mark.n);
        size_t n = maybe == NULL ? mark.n : (size_t)(maybe - mark.p);
        add_part(w, (bytes){mark.p, n}, name);
        if (maybe == NULL) return;
        bytes part = call_maybe_part(mark, n);
        add_maybe(w, part, name);
        mark = bytes_from(mark, size_min(n + part.n + 2, mark.n));
    }
}

static json_t *end(tag_writer *w, bool failed, json_t *v) {
    json_decref(w->elements);
    buf_deinit(&w->text);
    *w = (tag_writer){0};
    if (!failed) return v;
    json_decref(v);
    return NULL;
}

json_t *tag_end_sequence(tag_writer *w) {
    flush(w);
    size_t n = json_array_size(w->elements);
    json_t *v = n == 1 ? json_incref(json_array_get(w->elements, 0))
                       : tag_format("sequence", "elements", json_incref(w->elements));
    return end(w, w->failed || v == NULL, v);
}

/* The text of the first or last element, which is removed; an empty one if that is no text. */
static json_t *take_text(json_t *elements, size_t i) {
    json_t *format = json_array_get(elements, i), *text = json_object_get(format, "value");
    if (!json_is_string(text)) return json_string("");
    json_incref(text);
    json_array_remove(elements, i);
    return text;
}

/* Where the last character of a text begins, or the control token that it ends with: both are whole
 * on either side of a cut there. */
static size_t last_piece(bytes text) {
    bytes close = bytes_of(GRAMMAR_TOKEN_CLOSE);
    size_t at = text.n > 0 ? text.n - 1 : 0;
    bool token = text.n >= close.n && bytes_start(bytes_from(text, text.n - close.n), close);
    while (at > 0 && ((text.p[at] & 0xc0) == 0x80 ||
                      (token && !bytes_start(bytes_from(text, at), bytes_of(GRAMMAR_TOKEN_OPEN)))))
        at--;
    return at;
}

json_t *tag_end(tag_writer *w) {
    flush(w);
    json_t *v = json_object(), *content = NULL;
    bool ok =
        !w->failed && v != NULL && json_object_set_new(v, "begin", take_text(w->elements, 0)) == 0;
    size_t n = json_array_size(w->elements);
    ok = ok && json_object_set_new(v, "end",
                                   n > 0 ? take_text(w->elements, n - 1) : json_string("")) == 0;
    n = json_array_size(w->elements);
    if (ok && n == 1) content = json_incref(json_array_get(w->elements, 0));
    if (ok && n > 1) content = tag_format("sequence", "elements", json_incref(w->elements));
    if (ok && n == 0) { // one text: its last piece is the content, which cannot be empty
        json_t *whole = json_incref(json_object_get(v, "begin"));
        bytes text = text_of(whole);
        size_t at = last_piece(text);
        content = tag_of_text(bytes_from(text, at));
        ok = json_object_set_new(v, "begin", json_stringn_nocheck(text.p, at)) == 0;
        json_decref(whole);
    }
    ok = ok && content != NULL && json_object_set_new(v, "content", content) == 0 &&
         json_object_set_new(v, "type", json_string("tag")) == 0;
    return end(w, !ok, v);
}

json_t *tag_string_of_mark(bytes mark) {
    tag_writer w;
    tag_begin(&w);
    tag_mark(&w, mark, (bytes){NULL, 0});
    json_t *s = w.failed ? NULL : json_stringn_nocheck(w.text.n > 0 ? w.text.p : "", w.text.n);
    return end(&w, s == NULL, s);
}
