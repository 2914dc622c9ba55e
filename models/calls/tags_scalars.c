/* tags_scalars.c - texts, numbers and constants in the notation of a format; see tags_nest.h. */
#include <string.h>

#include "calls/tags_nest.h"
#include "inferd/json_whole.h"

bool nest_add_way(json_t *ways, json_t *way) {
    return json_array_append_new(ways, way) == 0;
}

/* Can the text stand between quotes as it is? */
static bool is_plain(bytes s) {
    for (size_t i = 0; i < s.n; i++)
        if (strchr("'\"\\", s.p[i]) != NULL || (unsigned char)s.p[i] < ' ') return false;
    return true;
}

static json_t *sequence_of(bytes begin, bytes text, bytes end) {
    tag_writer w;
    tag_begin(&w);
    tag_mark(&w, begin, (bytes){NULL, 0});
    tag_text(&w, text);
    tag_mark(&w, end, (bytes){NULL, 0});
    return tag_end_sequence(&w);
}

static json_t *text_of_json(const json_t *v) {
    char *dumped = json_dumps_whole(v, JSON_ENCODE_ANY);
    json_t *out = dumped == NULL ? NULL : tag_of_text(bytes_of(dumped));
    free(dumped);
    return out;
}

/* One value of an enum. */
static json_t *constant(const nest *n, const json_t *v) {
    bytes text = {json_string_value(v), json_string_length(v)};
    bool python = n->as == PYTHON;
    if (json_is_string(v)) {
        if (n->as == TREE) return tag_of_text(text);
        if (n->as == BRACES) return sequence_of(n->f->quote, text, n->f->quote);
        return is_plain(text) ? sequence_of(bytes_of("'"), text, bytes_of("'")) : text_of_json(v);
    }
    if (json_is_boolean(v) && python)
        return tag_of_pattern(json_is_true(v) ? "True|true" : "False|false");
    if (json_is_null(v)) return tag_of_pattern("None|null");
    return text_of_json(v);
}

bool nest_add_constants(const nest *n, json_t *ways, const json_t *schema, bool *some) {
    const json_t *list = json_object_get(schema, "enum"), *only = json_object_get(schema, "const");
    size_t i;
    json_t *v;
    bool ok = true;
    *some = json_array_size(list) > 0 || only != NULL;
    if (only != NULL) return nest_add_way(ways, constant(n, only));
    json_array_foreach((json_t *)(uintptr_t)list, i, v) {
        if (json_is_string(v) && json_string_length(v) == 0 && n->as == TREE) continue;
        ok = ok && nest_add_way(ways, constant(n, v));
    }
    return ok;
}

static bool has_keywords(const json_t *schema) {
    static const char *const keys[] = {"pattern", "format", "minLength", "maxLength"};
    bool some = false;
    for (size_t i = 0; i < INFERD_COUNT(keys); i++)
        some |= json_object_get(schema, keys[i]) != NULL;
    return some;
}

/* Texts of Python that their schema narrows have no escapes here. */
json_t *nest_any_string(const nest *n, const value *v) {
    bytes quote = n->as == PYTHON ? bytes_of("'") : n->f->quote;
    bool narrowed = has_keywords(v->schema);
    if (n->as == PYTHON && !narrowed && n->f->raw_text && n->f->style == CALL_PYTHON &&
        v->depth == 1)
        return tag_of_pattern("'[^']*'|\"[^\"]*\"");
    if (n->as == PYTHON && !narrowed)
        return tag_of_pattern("'(?:[^'\\\\\\n]|\\\\.)*'|\"(?:[^\"\\\\\\n]|\\\\.)*\"");
    tag_writer w;
    tag_begin(&w);
    tag_mark(&w, quote, (bytes){NULL, 0});
    tag_add(&w, tag_of_string(v->schema, v->place));
    tag_mark(&w, quote, (bytes){NULL, 0});
    return tag_end(&w);
}

static bool is_name(const json_t *v, const char *name) {
    return json_is_string(v) && strcmp(json_string_value(v), name) == 0;
}

/* Are all numbers of the schema integers? */
static bool is_whole(const json_t *schema) {
    const json_t *type = json_object_get(schema, "type"), *one;
    bool whole = is_name(type, "integer"), any = false;
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)type, i, one) {
        whole |= is_name(one, "integer");
        any |= is_name(one, "number");
    }
    return whole && !any;
}

/* A number with what the schema says of numbers. */
static json_t *number(const json_t *schema, const char *place) {
    static const char *const words[] = {"minimum", "maximum", "exclusiveMinimum",
                                        "exclusiveMaximum", "multipleOf"};
    json_t *of = json_object(), *out = NULL;
    bool ok =
        of != NULL &&
        json_object_set_new(of, "type", json_string(is_whole(schema) ? "integer" : "number")) == 0;
    for (size_t i = 0; i < INFERD_COUNT(words); i++) {
        json_t *v = json_object_get(schema, words[i]);
        if (v != NULL) ok = ok && json_object_set(of, words[i], v) == 0;
    }
    if (ok) out = tag_of_schema(of, place);
    json_decref(of);
    return out;
}

bool nest_add_scalars(const nest *n, json_t *ways, const value *v, unsigned types) {
    bool ok = true;
    if ((types & TEXT_BIT) != 0) ok = ok && nest_add_way(ways, nest_any_string(n, v));
    if ((types & 1u << CALL_TYPE_NUMBER) != 0)
        ok = ok && nest_add_way(ways, number(v->schema, v->place));
    if ((types & 1u << CALL_TYPE_BOOL) != 0)
        ok = ok && nest_add_way(ways, tag_of_pattern(n->as == PYTHON ? "True|False|true|false"
                                                                     : "true|false"));
    if ((types & 1u << CALL_TYPE_NULL) != 0)
        ok = ok && nest_add_way(ways, tag_of_pattern(n->as == PYTHON ? "None|null" : "null|None"));
    return ok;
}
