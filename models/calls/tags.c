/* tags.c - what a message with tool calls may be, as a structural tag: call_tags.
 *
 * With CALL_AUTO the text is free until the first mark of calls is complete; from there on it must
 * be a call.  Formats that open content with a mark of its own have content or calls behind their
 * marks instead, and formats without a mark before calls have them at the start of the message
 * only. */
#include "calls/start.h"
#include "calls/types.h"

#include <string.h>

#include "inferd/json_whole.h"

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

/* {"type": type, key: value}; takes the value. */
static json_t *format_of(const char *type, const char *key, json_t *value) {
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
    if (ok && json_object_size(of) > n) return format_of("string_text", "json_schema", of);
    json_decref(of);
    return ok ? tag_of_any() : NULL;
}

json_t *tag_of_pattern(const char *pattern) {
    return format_of("regex", "pattern", json_string(pattern));
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
    return format_of("json_schema", "json_schema", of);
}

json_t *tag_or(json_t *formats) {
    if (json_array_size(formats) != 1) return format_of("or", "elements", formats);
    json_t *only = json_incref(json_array_get(formats, 0));
    json_decref(formats);
    return only;
}

json_t *tag_separated(json_t *tags, bytes separator, bool some, bool one) {
    json_t *v = format_of("tags_with_separator", "tags", tags), *text = tag_of_text(separator);
    bool ok = v != NULL && text != NULL &&
              json_object_set(v, "separator", json_object_get(text, "value")) == 0 &&
              json_object_set_new(v, "at_least_one", json_boolean(some)) == 0 &&
              json_object_set_new(v, "stop_after_first", json_boolean(one)) == 0;
    json_decref(text);
    if (ok) return v;
    json_decref(v);
    return NULL;
}

static json_t *list_of(json_t *one) {
    json_t *list = json_array();
    if (list != NULL && one != NULL && json_array_append(list, one) == 0) {
        json_decref(one);
        return list;
    }
    json_decref(one);
    json_decref(list);
    return NULL;
}

json_t *tag_maybe(json_t *tag) {
    return tag_separated(list_of(tag), (bytes){NULL, 0}, false, true);
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

void tag_mark(tag_writer *w, bytes mark, bytes name) {
    static const char open[] = "\uFDD0", close[] = "\uFDD1"; // around a control token, in JSON
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
            tag_text(w, bytes_of(in_token ? close : open));
            in_token = !in_token;
            break;
        default:
            tag_text(w, (bytes){mark.p + i, 1});
        }
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
                       : format_of("sequence", "elements", json_incref(w->elements));
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
    if (ok && n > 1) content = format_of("sequence", "elements", json_incref(w->elements));
    if (ok && n == 0) { // one text: its last byte is the content, which cannot be empty
        json_t *whole = json_incref(json_object_get(v, "begin"));
        bytes text = text_of(whole);
        ok = text.n > 0 && (text.p[text.n - 1] & 0x80) == 0;
        if (ok) {
            content = tag_of_text(bytes_from(text, text.n - 1));
            ok = json_object_set_new(v, "begin", json_stringn(text.p, text.n - 1)) == 0;
        }
        json_decref(whole);
    }
    ok = ok && content != NULL && json_object_set_new(v, "content", content) == 0 &&
         json_object_set_new(v, "type", json_string("tag")) == 0;
    return end(w, !ok, v);
}

/* ---- calls ---- */

static bytes trim_start(bytes s) {
    while (s.n > 0 && call_is_white(s.p[0])) s = bytes_from(s, 1);
    return s;
}

static bytes trim_end(bytes s) {
    while (s.n > 0 && call_is_white(s.p[s.n - 1])) s.n--;
    return s;
}

static bytes or_else(bytes mark, const char *text) {
    return mark.n > 0 ? mark : bytes_of(text);
}

/* The object of a call: as the template writes it, or in the usual way. */
static void add_object(tag_writer *w, const call_format *f, bytes name, const json_t *parameters) {
    buf head = {0}, middle = {0};
    buf_add_str(&head, "{\"");
    buf_add(&head, f->name_key.p, f->name_key.n);
    buf_add_str(&head, "\": \"");
    buf_add_str(&middle, "\", \"");
    buf_add(&middle, f->arguments_key.p, f->arguments_key.n);
    buf_add_str(&middle, "\": ");
    w->failed = w->failed || head.failed || middle.failed;
    tag_mark(w, or_else(f->object_head, buf_cstr(&head)), name);
    tag_text(w, name);
    tag_mark(w, or_else(f->object_middle, buf_cstr(&middle)), name);
    tag_add(w, tag_of_schema(parameters, name.p));
    tag_mark(w, or_else(f->object_tail, "}"), name);
    buf_deinit(&head);
    buf_deinit(&middle);
}

static json_t *call_of(const call_format *f, const json_t *tool, tag_scope *scope) {
    const json_t *function = json_object_get(tool, "function");
    const json_t *parameters = json_object_get(function, "parameters");
    const json_t *of = scope->any ? NULL : parameters; // in JSON, no schema is any object
    bytes name = text_of(json_object_get(function, "name"));
    tag_writer w;
    tag_begin(&w);
    tag_mark(&w, f->call_open, name);
    switch (f->style) {
    case CALL_OBJECT:
        if (call_start_is_usual(f))
            call_start_add_object(&w, f, name, of);
        else
            add_object(&w, f, name, of);
        break;
    case CALL_KEYED:
        tag_text(&w, bytes_of("{\""));
        tag_text(&w, name);
        tag_text(&w, bytes_of("\": "));
        tag_add(&w, tag_of_schema(of, name.p));
        tag_text(&w, bytes_of("}"));
        break;
    default:
        tag_text(&w, name);
        tag_mark(&w, f->name_close, name);
        tag_arguments(&w, f, name.p, parameters, scope);
    }
    tag_mark(&w, trim_end(f->call_close), name);
    return tag_end(&w);
}

/* Do the names or values of a schema have the characters that enclose names of control tokens?  In
 * a notation they would be taken for these, or for none.  true, too: no memory to look. */
static bool names_tokens(const json_t *schema) {
    char *text = schema == NULL ? NULL : json_dumps(schema, JSON_COMPACT | JSON_ENCODE_ANY);
    bool some = schema != NULL &&
                (text == NULL || strstr(text, "\uFDD0") != NULL || strstr(text, "\uFDD1") != NULL);
    free(text);
    return some;
}

/* The call, with any arguments where its schema does not fit.  Then nothing of it is enforced, and
 * what it took of the scope is free again. */
static json_t *call_in(const call_format *f, const call_tags_options *o, const json_t *tool,
                       tag_scope *scope) {
    const json_t *function = json_object_get(tool, "function");
    const char *name = json_string_value(json_object_get(function, "name"));
    size_t n_slots = scope->slots_left, n_places = json_array_size(scope->weakened);
    bool strict = json_is_true(json_object_get(function, "strict"));
    json_t *call = NULL;
    const json_t *parameters = json_object_get(function, "parameters");
    bool in_json = f->style == CALL_OBJECT || f->style == CALL_KEYED || f->style == CALL_JSON;
    scope->any = (o->any_arguments && !strict && parameters != NULL) ||
                 (!in_json && names_tokens(parameters));
    if (!scope->any) call = call_of(f, tool, scope);
    scope->any = scope->any || scope->unfit;
    scope->unfit = false;
    if (!scope->any) return call;
    json_decref(call);
    scope->slots_left = n_slots;
    while (json_array_size(scope->weakened) > n_places)
        json_array_remove(scope->weakened, json_array_size(scope->weakened) - 1);
    tag_not_enforced(scope, name == NULL ? "" : name, NULL);
    return call_of(f, tool, scope);
}

static json_t *all_calls(const call_format *f, const call_tags_options *o) {
    json_t *calls = json_array(), *tool;
    tag_scope scope = {.slots_left = CALL_TAGS_VALUES_MAX, .weakened = o->weakened};
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)o->tools, i, tool) {
        json_t *call = call_in(f, o, tool, &scope);
        if (json_array_append_new(calls, call) == 0 && !scope.failed) continue;
        json_decref(calls);
        return NULL;
    }
    return calls;
}

static json_t *string_of_mark(bytes mark) {
    tag_writer w;
    tag_begin(&w);
    tag_mark(&w, mark, (bytes){NULL, 0});
    json_t *s = w.failed ? NULL : json_stringn_nocheck(w.text.n > 0 ? w.text.p : "", w.text.n);
    return end(&w, s == NULL, s);
}

/* The calls of a section, with its marks: a tag.  Without marks of a section: its calls. */
static json_t *section(const call_format *f, const call_tags_options *o, bytes open) {
    bool one = !o->parallel || f->single;
    json_t *calls = all_calls(f, o);
    json_t *list = NULL, *tag = json_object();
    if (calls != NULL) {
        tag_writer w;
        tag_begin(&w);
        tag_mark(&w, f->separator, (bytes){NULL, 0});
        list = tag_separated(calls, (bytes){w.text.p, w.text.n}, true, one);
        end(&w, true, NULL);
    }
    if (list != NULL && bytes_trim(open).n + bytes_trim(f->section_close).n == 0) {
        json_decref(tag);
        return list;
    }
    bool ok = list != NULL && tag != NULL &&
              json_object_set_new(tag, "type", json_string("tag")) == 0 &&
              json_object_set_new(tag, "begin", string_of_mark(open)) == 0 &&
              json_object_set_new(tag, "end", string_of_mark(trim_end(f->section_close))) == 0 &&
              json_object_set(tag, "content", list) == 0;
    json_decref(list);
    if (ok) return tag;
    json_decref(tag);
    return NULL;
}

/* ---- messages ---- */

/* Free text, interrupted by calls from the first of their marks on. */
static json_t *triggered(const call_format *f, const call_tags_options *o) {
    bool in_section = bytes_trim(f->section_open).n > 0;
    bytes open = trim_start(in_section ? f->section_open : f->call_open);
    json_t *tags = NULL, *v = NULL, *triggers = NULL;
    if (in_section) {
        tags = list_of(section(f, o, open));
    } else {
        call_format trimmed = *f; // its marks are borrowed from f
        trimmed.call_open = open;
        tags = all_calls(&trimmed, o);
    }
    if (tags != NULL) v = format_of("triggered_tags", "tags", tags);
    triggers = list_of(string_of_mark(call_anchor(open)));
    bool one = !o->parallel || f->single;
    bool ok = v != NULL && triggers != NULL && json_object_set(v, "triggers", triggers) == 0 &&
              json_object_set_new(v, "stop_after_first", json_boolean(one)) == 0;
    json_decref(triggers);
    if (ok) return v;
    json_decref(v);
    return NULL;
}

/* Calls, with the white space before them that a model may write. */
static json_t *behind_layout(const call_format *f, const call_tags_options *o, bytes open) {
    call_format trimmed = *f; // its marks are borrowed from f
    tag_writer w;
    if (open.n == 0) trimmed.call_open = trim_start(f->call_open);
    tag_begin(&w);
    tag_add(&w, tag_of_pattern("[ \\n]{0,4}"));
    tag_add(&w, section(&trimmed, o, trim_start(open)));
    return tag_end_sequence(&w);
}

/* What stands before all calls. */
static bytes open_of_start(const call_format *f) {
    return f->at_start && f->style == CALL_PYTHON ? bytes_of("[") : f->section_open;
}

/* Content behind its mark, or calls. */
static json_t *content_or_calls(const call_format *f, const call_tags_options *o) {
    json_t *ways = json_array(), *calls = behind_layout(f, o, f->section_open);
    tag_writer w;
    tag_begin(&w);
    tag_mark(&w, f->content_open, (bytes){NULL, 0});
    tag_add(&w, o->content != NULL ? json_deep_copy_whole(o->content) : tag_of_any());
    json_t *content = tag_end_sequence(&w);
    bool ok = ways != NULL && calls != NULL && content != NULL &&
              json_array_append(ways, content) == 0 && json_array_append(ways, calls) == 0;
    json_decref(content);
    json_decref(calls);
    if (ok) return tag_or(ways);
    json_decref(ways);
    return NULL;
}

/* Calls are the whole message, or text that does not begin as they do. */
static json_t *calls_or_text(const call_format *f, const call_tags_options *o) {
    json_t *ways = json_array(), *calls = behind_layout(f, o, open_of_start(f));
    json_t *text =
        o->content == NULL ? call_start_others(f) : call_start_content(f, o->tools, o->content);
    bool ok = ways != NULL && calls != NULL && text != NULL && json_array_append(ways, text) == 0 &&
              json_array_append(ways, calls) == 0;
    json_decref(text);
    json_decref(calls);
    if (ok) return tag_or(ways);
    json_decref(ways);
    return NULL;
}

/* The mark behind reasoning may be the first; takes the message. */
static json_t *behind_close(const call_format *f, json_t *message) {
    tag_writer mark, w;
    tag_begin(&mark);
    tag_mark(&mark, bytes_trim(f->reasoning_close), (bytes){NULL, 0});
    json_t *close = tag_end_sequence(&mark), *tag = json_object();
    bool ok = close != NULL && tag != NULL && json_object_set(tag, "content", close) == 0 &&
              json_object_set_new(tag, "begin", json_string("")) == 0 &&
              json_object_set_new(tag, "end", json_string("")) == 0;
    json_decref(close);
    tag_begin(&w);
    tag_add(&w, ok ? tag_maybe(json_incref(tag)) : NULL);
    tag_add(&w, message);
    json_decref(tag);
    return tag_end_sequence(&w);
}

json_t *call_tags(const call_format *f, const call_tags_options *o) {
    json_t *message;
    if (o->choice == CALL_REQUIRED)
        message = behind_layout(f, o, open_of_start(f));
    else if (f->at_start)
        message = calls_or_text(f, o);
    else if (o->content != NULL || bytes_trim(f->content_open).n > 0)
        message = content_or_calls(f, o);
    else
        message = triggered(f, o);
    if (f->closes_first) message = behind_close(f, message);
    json_t *v = json_object();
    if (v != NULL && message != NULL && json_object_set(v, "format", message) == 0) {
        json_decref(message);
        return v;
    }
    json_decref(message);
    json_decref(v);
    return NULL;
}
