/* learn_core.c - a call in a text: its name, its arguments, and their notation. */
#include <string.h>

#include "calls/learn.h"
#include "calls/value.h"
#include "chat/json_text.h"

/* The end of the JSON value at `at`; 0: there is none. */
static size_t json_end(bytes text, size_t at) {
    value_reader r;
    buf out = {0};
    size_t i = at, end = 0;
    value_init(&r, VALUE_JSON, (bytes){NULL, 0});
    for (; i < text.n && end == 0; i++) {
        value_step step = value_push(&r, text.p[i], &out);
        if (step == VALUE_IS_NO_VALUE || step == VALUE_ENDED) break;
        if (step == VALUE_ENDS) end = i + 1;
    }
    value_deinit(&r);
    buf_deinit(&out);
    return end;
}

/* The object at `at`, a new reference; NULL: there is none. */
static json_t *object_at(bytes text, size_t at, size_t *end) {
    json_t *v = NULL;
    inferd_err ignored;
    *end = json_end(text, at);
    if (*end == 0) return NULL;
    if (json_text_read((bytes){text.p + at, *end - at}, &v, &ignored) != INFERD_OK) return NULL;
    if (json_is_object(v)) return v;
    json_decref(v);
    return NULL;
}

static bool is_text(const json_t *v, bytes text) {
    return json_is_string(v) && json_string_length(v) == text.n &&
           memcmp(json_string_value(v), text.p, text.n) == 0;
}

static bool has_argument(const json_t *object, bytes key, bytes value) {
    const json_t *v = json_object_getn(object, key.p, key.n);
    return is_text(v, value);
}

static size_t last_of(bytes text, bytes what, size_t from, size_t end) {
    size_t found = SIZE_MAX;
    for (size_t i = from; i + what.n <= end; i++)
        if (memcmp(text.p + i, what.p, what.n) == 0) found = i;
    return found;
}

/* The key of an object as it stands in the text. */
static bytes key_in(bytes text, const char *key) {
    size_t at = bytes_find(text, bytes_of(key), 0);
    return at == SIZE_MAX ? (bytes){NULL, 0} : (bytes){text.p + at, strlen(key)};
}

/* Is this object one call?  Then `out` is its core. */
static bool is_call(bytes text, json_t *object, size_t at, size_t end, bytes name,
                    const json_t *arguments, call_core *out) {
    const char *key, *name_key = NULL, *arguments_key = NULL;
    json_t *value;
    bytes here = {text.p + at, end - at};
    json_object_foreach(object, key, value) {
        if (is_text(value, name)) name_key = key;
        if (json_equal(value, arguments)) arguments_key = key;
    }
    if (arguments_key == NULL) return false;
    bool keyed = bytes_equal(bytes_of(arguments_key), name);
    if (name_key == NULL && !keyed) return false;
    out->style = keyed ? CALL_KEYED : CALL_OBJECT;
    out->at = at;
    out->end = end;
    if (keyed) return true;
    out->name_key = key_in(here, name_key);
    out->arguments_key = key_in(here, arguments_key);
    size_t quoted = bytes_find(here, name, 0);
    out->name_at = quoted == SIZE_MAX ? out->name_at : at + quoted;
    out->name_end = out->name_at + name.n;
    return true;
}

static bool find_json(bytes text, size_t from, bytes name, bytes key, bytes value, call_core *out) {
    size_t end = 0, at = out->args_at;
    json_t *arguments = object_at(text, at, &end);
    if (arguments == NULL || !has_argument(arguments, key, value)) {
        json_decref(arguments);
        return false;
    }
    out->style = CALL_JSON;
    out->args_end = out->end = end;
    out->at = out->name_at;
    bool found = false;
    for (size_t i = at; i-- > from && !found;) {
        size_t object_end = 0;
        json_t *object = text.p[i] == '{' ? object_at(text, i, &object_end) : NULL;
        if (object != NULL && object_end >= end)
            found = is_call(text, object, i, object_end, name, arguments, out);
        json_decref(object);
    }
    json_decref(arguments);
    return true;
}

/* The text of a value in f(a='x') or f{a:<mark>x<mark>}. */
static bool find_loose(bytes text, bytes key, size_t key_at, size_t value_at, call_core *out) {
    char open = text.p[out->name_end];
    size_t quote_at = key_at + key.n + 1;
    if (open != '(' && open != '{') return false;
    if (quote_at >= value_at || text.p[quote_at - 1] != (open == '(' ? '=' : ':')) return false;
    bytes quote = bytes_trim((bytes){text.p + quote_at, value_at - quote_at});
    value_reader r;
    buf scratch = {0};
    size_t i = out->name_end;
    value_step step = VALUE_MORE;
    if (open == '(') {
        value_init_arguments(&r, (bytes){NULL, 0}, &scratch);
        i++;
    } else {
        value_init(&r, VALUE_LOOSE, quote.n > 1 ? quote : (bytes){NULL, 0});
    }
    for (; i < text.n && step == VALUE_MORE; i++) step = value_push(&r, text.p[i], &scratch);
    value_deinit(&r);
    buf_deinit(&scratch);
    if (step != VALUE_ENDS) return false;
    out->style = open == '(' ? CALL_PYTHON : CALL_BRACES;
    out->quote = quote;
    out->at = out->name_at;
    out->end = i;
    return true;
}

bool learn_core(bytes text, size_t from, bytes name, bytes key, bytes value, call_core *out) {
    *out = (call_core){0};
    size_t name_at = bytes_find(text, name, from);
    if (name_at == SIZE_MAX) return false;
    size_t value_at = bytes_find(text, value, name_at + name.n);
    if (value_at == SIZE_MAX) return false;
    size_t key_at = last_of(text, key, name_at + name.n, value_at);
    if (key_at == SIZE_MAX) return false;
    out->name_at = last_of(text, name, from, key_at);
    out->name_end = out->name_at + name.n;
    for (size_t i = key_at; i-- > out->name_end;)
        if (text.p[i] == '{') {
            out->args_at = i;
            if (find_json(text, from, name, key, value, out)) return true;
            break;
        }
    if (find_loose(text, key, key_at, value_at, out)) return true;
    out->style = CALL_TAGS;
    out->at = out->name_at;
    out->args_at = key_at;
    out->args_end = out->end = value_at + value.n;
    return true;
}
