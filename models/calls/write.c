/* write.c - see write.h. */
#include "calls/write.h"

#include <string.h>

#include "chat/json_text.h"
#include "inferd/json_whole.h"

typedef struct written_call {
    bytes id, name, arguments; // the arguments as JSON
    json_t *object;            // them, for notations that are not JSON; NULL: they are no object
    json_t *wide;              // the same with integers beyond 64 bits (json_text.h); or NULL
    size_t idx;
} written_call;

static bytes string_at(const json_t *object, const char *member) {
    const json_t *v = json_object_get(object, member);
    return (bytes){json_string_value(v), json_string_length(v)};
}

static void add(buf *out, bytes text) {
    if (text.n > 0) buf_add(out, text.p, text.n);
}

/* A mark with its placeholders filled in. */
static void add_mark(const call_format *f, const written_call *c, bytes mark, bytes key, buf *out) {
    for (size_t i = 0; i < mark.n; i++) {
        switch (mark.p[i]) {
        case CALL_ID:
            add(out, c->id);
            break;
        case CALL_INDEX:
            buf_add_format(out, "%zu", c->idx + f->index_from_one);
            break;
        case CALL_NAME:
            add(out, c->name);
            break;
        case CALL_KEY:
            add(out, key);
            break;
        case CALL_MAYBE: // what may be left out is written
            break;
        default:
            buf_add_char(out, mark.p[i]);
        }
    }
}

void call_write_json(const json_t *v, buf *out) {
    char *text = json_dumps_whole(v, JSON_ENCODE_ANY);
    if (text == NULL)
        out->failed = true;
    else
        buf_add_str(out, text);
    free(text);
}

static void add_json_string(buf *out, bytes text) {
    json_t *v = json_stringn_nocheck(text.p == NULL ? "" : text.p, text.n);
    call_write_json(v, out);
    json_decref(v);
}

/* ---- values ---- */

/* JSON with Python's constants, outside of its strings. */
static void add_python(buf *out, const json_t *v) {
    static const char *const words[][2] = {{"true", "True"}, {"false", "False"}, {"null", "None"}};
    char *text = json_dumps_whole(v, JSON_ENCODE_ANY);
    bool in_string = false;
    if (text == NULL) out->failed = true;
    for (const char *s = text; s != NULL && *s != 0; s++) {
        size_t i = 0;
        while (i < INFERD_COUNT(words) && strncmp(s, words[i][0], strlen(words[i][0])) != 0) i++;
        if (!in_string && i < INFERD_COUNT(words)) {
            buf_add_str(out, words[i][1]);
            s += strlen(words[i][0]) - 1;
            continue;
        }
        if (in_string && *s == '\\')
            buf_add_char(out, *s++);
        else if (*s == '"')
            in_string = !in_string;
        buf_add_char(out, *s);
    }
    free(text);
}

static call_type type_of(const json_t *v) {
    static const call_type types[] = {
        [JSON_OBJECT] = CALL_TYPE_OBJECT, [JSON_ARRAY] = CALL_TYPE_ARRAY,
        [JSON_STRING] = CALL_TYPE_STRING, [JSON_INTEGER] = CALL_TYPE_NUMBER,
        [JSON_REAL] = CALL_TYPE_NUMBER,   [JSON_TRUE] = CALL_TYPE_BOOL,
        [JSON_FALSE] = CALL_TYPE_BOOL,    [JSON_NULL] = CALL_TYPE_NULL};
    return types[json_typeof(v)];
}

/* Such an integer inside of a list or an object is written as a double. */
static void add_argument(const call_format *f, const written_call *c, bytes key, const json_t *v,
                         bool first, buf *out) {
    const char *digits = json_text_wide(json_object_getn(c->wide, key.p, key.n));
    call_type type = type_of(v);
    bytes text = {json_string_value(v), json_string_length(v)};
    if (f->style == CALL_TAGS) {
        add_mark(f, c, f->key_open, key, out);
        add(out, key);
        add_mark(f, c, f->key_close[type], key, out);
        if (digits != NULL)
            buf_add_str(out, digits);
        else if (type == CALL_TYPE_STRING)
            add(out, text);
        else if (f->python_words)
            add_python(out, v);
        else
            call_write_json(v, out);
        add_mark(f, c, f->value_close[type], key, out);
        return;
    }
    bool python = f->style == CALL_PYTHON;
    if (!first) buf_add_str(out, python ? ", " : ",");
    add(out, key);
    buf_add_char(out, python ? '=' : ':');
    if (digits != NULL) {
        buf_add_str(out, digits);
    } else if (python) {
        add_python(out, v);
    } else if (type == CALL_TYPE_STRING) {
        add(out, f->quote);
        add(out, text);
        add(out, f->quote);
    } else {
        call_write_json(v, out);
    }
}

/* Arguments that are no object are written as they came. */
static void add_arguments(const call_format *f, const written_call *c, buf *out) {
    if (c->object == NULL) {
        add(out, c->arguments);
        return;
    }
    bool first = true;
    for (void *it = json_object_iter(c->object); it != NULL;
         it = json_object_iter_next(c->object, it)) {
        bytes key = {json_object_iter_key(it), json_object_iter_key_len(it)};
        add_argument(f, c, key, json_object_iter_value(it), first, out);
        first = false;
    }
}

/* ---- calls ---- */

static void add_object(const call_format *f, const written_call *c, buf *out) {
    buf_add_char(out, '{');
    add_json_string(out, f->name_key);
    buf_add_str(out, ": ");
    add_json_string(out, c->name);
    buf_add_str(out, ", ");
    add_json_string(out, f->arguments_key);
    buf_add_str(out, ": ");
    add(out, c->arguments);
    buf_add_char(out, '}');
}

/* The name and the arguments, without the marks around. */
static void add_core(const call_format *f, const written_call *c, buf *out) {
    switch (f->style) {
    case CALL_OBJECT:
        add_object(f, c, out);
        return;
    case CALL_KEYED:
        buf_add_char(out, '{');
        add_json_string(out, c->name);
        buf_add_str(out, ": ");
        add(out, c->arguments);
        buf_add_char(out, '}');
        return;
    case CALL_PYTHON:
    case CALL_BRACES:
        add(out, c->name);
        buf_add_char(out, f->style == CALL_PYTHON ? '(' : '{');
        add_arguments(f, c, out);
        buf_add_char(out, f->style == CALL_PYTHON ? ')' : '}');
        return;
    default:
        add(out, c->name);
        add_mark(f, c, f->name_close, (bytes){NULL, 0}, out);
        if (f->style == CALL_TAGS)
            add_arguments(f, c, out);
        else
            add(out, c->arguments);
    }
}

static bool reads_object(const call_format *f) {
    return f->style == CALL_TAGS || f->style == CALL_PYTHON || f->style == CALL_BRACES;
}

static void add_call(const call_format *f, const json_t *call, size_t idx, buf *out) {
    const json_t *function = json_object_get(call, "function");
    written_call c = {.id = string_at(call, "id"),
                      .name = string_at(function, "name"),
                      .arguments = string_at(function, "arguments"),
                      .idx = idx};
    if (c.arguments.n == 0) c.arguments = bytes_of("{}");
    if (reads_object(f)) {
        inferd_status s = json_text_read(c.arguments, &c.object, NULL);
        if (s == INFERD_OK) s = json_text_read_wide(c.arguments, &c.wide, NULL);
        out->failed |= s == INFERD_ENOMEM;
        if (!json_is_object(c.object)) {
            json_decref(c.object);
            c.object = NULL;
        }
    }
    if (idx > 0) add_mark(f, &c, f->separator, (bytes){NULL, 0}, out);
    add_mark(f, &c, f->call_open, (bytes){NULL, 0}, out);
    add_core(f, &c, out);
    add_mark(f, &c, f->call_close, (bytes){NULL, 0}, out);
    json_decref(c.object);
    json_decref(c.wide);
}

void call_write(const call_format *f, const json_t *calls, buf *out) {
    const written_call none = {0};
    size_t i;
    json_t *call;
    if (f->at_start && f->style == CALL_PYTHON) buf_add_char(out, '['); // its mark is no mark
    add_mark(f, &none, f->section_open, (bytes){NULL, 0}, out);
    json_array_foreach((json_t *)(uintptr_t)calls, i, call) add_call(f, call, i, out);
    add_mark(f, &none, f->section_close, (bytes){NULL, 0}, out);
}

void call_write_content(const json_t *content, buf *out) {
    size_t i;
    json_t *part;
    bool any = false;
    add(out, (bytes){json_string_value(content), json_string_length(content)});
    json_array_foreach((json_t *)(uintptr_t)content, i, part) {
        const json_t *text = json_object_get(part, "text");
        if (!json_is_string(text)) continue;
        if (any) buf_add_char(out, '\n');
        add(out, (bytes){json_string_value(text), json_string_length(text)});
        any = true;
    }
}
