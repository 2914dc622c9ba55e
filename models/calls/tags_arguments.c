/* tags_arguments.c - the arguments of a call in each notation, from the schema of the tool.
 *
 * JSON follows the schema as it is.  Between tags, and as Python writes them, arguments come in the
 * order of the schema's properties, optional ones may be left out, and others cannot be written.
 * A text between tags is free up to the mark behind it, unless the schema lists its values. */
#include <string.h>

#include "calls/types.h"
#include "calls/tags.h"
#include "calls/value.h"

/* One argument of a call, as the tool describes it. */
typedef struct argument {
    const char *tool, *key;
    const json_t *root, *schema; // of all arguments; of this one
} argument;

/* ---- values ---- */

static bool is_listed(const json_t *schema, const char *key) {
    const json_t *list = json_object_get(schema, "required");
    size_t i;
    json_t *v;
    json_array_foreach((json_t *)(uintptr_t)list, i, v) {
        if (json_is_string(v) && strcmp(json_string_value(v), key) == 0) return true;
    }
    return false;
}

/* The schema of a property with the definitions that it may refer to; a new reference. */
static json_t *with_definitions(const json_t *root, const json_t *schema) {
    static const char *const names[] = {"$defs", "definitions"};
    if (!json_is_object(schema)) return json_object();
    json_t *copy = json_copy((json_t *)(uintptr_t)schema);
    for (size_t i = 0; copy != NULL && i < INFERD_COUNT(names); i++) {
        json_t *definitions = json_object_get(root, names[i]);
        if (definitions != NULL && json_object_set(copy, names[i], definitions) != 0) {
            json_decref(copy);
            return NULL;
        }
    }
    return copy;
}

static json_t *schema_value(const argument *a) {
    json_t *whole = with_definitions(a->root, a->schema), *v = NULL;
    buf place = {0};
    buf_add_format(&place, "%s#/properties/%s", a->tool, a->key);
    const char *name = buf_cstr(&place);
    if (whole != NULL && json_object_size(whole) == 0) { // any value
        json_decref(whole);
        whole = json_pack("{s:[ssssss]}", "type", "string", "number", "boolean", "null", "array",
                          "object");
    }
    if (whole != NULL && name != NULL) v = tag_of_schema(whole, name);
    buf_deinit(&place);
    json_decref(whole);
    return v;
}

static bool add_way(json_t *ways, json_t *way) {
    return json_array_append_new(ways, way) == 0;
}

/* A value that is no text: as JSON, and constants as Python writes them where the format does. */
static json_t *other_value(const call_format *f, const argument *a) {
    unsigned types = call_types_of(a->schema);
    bool python = f->style != CALL_TAGS || f->python_words, ok = true;
    json_t *ways = json_array();
    if (types == 0) types = CALL_TYPES_ALL;
    if (python && (types & 1u << CALL_TYPE_BOOL) != 0)
        ok = add_way(ways, tag_of_pattern("True|False"));
    if (ok && python && (types & 1u << CALL_TYPE_NULL) != 0)
        ok = add_way(ways, tag_of_text(bytes_of("None")));
    ok = ok && add_way(ways, schema_value(a));
    if (ok) return tag_or(ways);
    json_decref(ways);
    return NULL;
}

/* Texts that a schema lists, between `quote`s; NULL: it lists none, or others, too. */
static json_t *listed_texts(const json_t *schema, bytes quote) {
    const json_t *list = json_object_get(schema, "enum");
    json_t *ways = json_array(), *v;
    size_t i, n = json_array_size(list);
    json_array_foreach((json_t *)(uintptr_t)list, i, v) {
        tag_writer w;
        if (!json_is_string(v) || json_string_length(v) == 0) break;
        tag_begin(&w);
        tag_mark(&w, quote, (bytes){NULL, 0});
        tag_text(&w, (bytes){json_string_value(v), json_string_length(v)});
        tag_mark(&w, quote, (bytes){NULL, 0});
        if (json_array_append_new(ways, tag_end_sequence(&w)) != 0) break;
    }
    if (n > 0 && json_array_size(ways) == n) return tag_or(ways);
    json_decref(ways);
    return NULL;
}

/* ---- between tags ---- */

/* One argument whose value is of these types, which have marks in common. */
static json_t *tagged_value(const call_format *f, const argument *a, int type, bool is_text) {
    json_t *value = is_text ? listed_texts(a->schema, (bytes){NULL, 0}) : other_value(f, a);
    tag_writer w;
    if (value == NULL) value = tag_of_any();
    tag_begin(&w);
    tag_mark(&w, f->key_open, (bytes){NULL, 0});
    tag_text(&w, bytes_of(a->key));
    tag_mark(&w, f->key_close[type], (bytes){NULL, 0});
    tag_add(&w, value);
    tag_mark(&w, f->value_close[type], (bytes){NULL, 0});
    return tag_end(&w);
}

/* Do two types have the same marks? */
static bool same_marks(const call_format *f, int a, int b) {
    return bytes_equal(f->key_close[a], f->key_close[b]) &&
           bytes_equal(f->value_close[a], f->value_close[b]);
}

static json_t *tagged(const call_format *f, const argument *a) {
    unsigned types = call_types_of(a->schema), done = 0;
    json_t *ways = json_array();
    if (types == 0) types = CALL_TYPES_ALL;
    for (int t = 0; t < CALL_TYPES && ways != NULL; t++) {
        unsigned group = 0;
        if ((types & ~done & 1u << t) == 0) continue;
        for (int k = t; k < CALL_TYPES; k++)
            if ((types & 1u << k) != 0 && same_marks(f, t, k)) group |= 1u << k;
        done |= group;
        /* A text beside other types with the same marks holds these, too. */
        bool is_text = t == CALL_TYPE_STRING;
        if (json_array_append_new(ways, tagged_value(f, a, t, is_text)) == 0) continue;
        json_decref(ways);
        ways = NULL;
    }
    return ways == NULL ? NULL : tag_or(ways);
}

static void add_tagged(tag_writer *w, const call_format *f, const char *tool,
                       const json_t *parameters) {
    const char *name;
    json_t *schema;
    json_object_foreach(json_object_get(parameters, "properties"), name, schema) {
        json_t *one = tagged(f, &(argument){tool, name, parameters, schema});
        bool is_tag = one != NULL && json_object_get(one, "begin") != NULL;
        if (one != NULL && !is_listed(parameters, name)) {
            tag_writer inner; // what may be left out must be a tag
            if (!is_tag) {
                tag_begin(&inner);
                tag_add(&inner, one);
                one = tag_end(&inner);
            }
            if (one != NULL) one = tag_maybe(one);
        }
        tag_add(w, one);
    }
}

/* ---- f(a=1) and f{a:1} ---- */

static json_t *quoted_text(const call_format *f, const json_t *schema) {
    bool python = f->style == CALL_PYTHON;
    json_t *listed = listed_texts(schema, python ? bytes_of("'") : f->quote);
    if (listed != NULL) return listed;
    if (python && f->raw_text) return tag_of_pattern("'[^']*'|\"[^\"]*\"");
    if (python) return tag_of_pattern("'(?:[^'\\\\\\n]|\\\\.)*'|\"(?:[^\"\\\\\\n]|\\\\.)*\"");
    tag_writer w;
    tag_begin(&w);
    tag_mark(&w, f->quote, (bytes){NULL, 0});
    tag_add(&w, tag_of_any());
    tag_mark(&w, f->quote, (bytes){NULL, 0});
    return tag_end(&w);
}

static json_t *loose_value(const call_format *f, const argument *a) {
    unsigned types = call_types_of(a->schema), text = 1u << CALL_TYPE_STRING;
    json_t *ways = json_array();
    if (types == 0) types = CALL_TYPES_ALL;
    bool ok = ways != NULL;
    if (ok && (types & text) != 0) ok = add_way(ways, quoted_text(f, a->schema));
    if (ok && (types & ~text) != 0) ok = add_way(ways, other_value(f, a));
    if (ok) return tag_or(ways);
    json_decref(ways);
    return NULL;
}

/* `separator`, the key, the value. */
static json_t *loose_argument(const call_format *f, const argument *a, const char *separator) {
    tag_writer w;
    tag_begin(&w);
    tag_text(&w, bytes_of(separator));
    tag_text(&w, bytes_of(a->key));
    tag_text(&w, bytes_of(f->style == CALL_PYTHON ? "=" : ":"));
    tag_add(&w, loose_value(f, a));
    return tag_end(&w);
}

static int compare_names(const void *a, const void *b) {
    const char *const *x = a, *const *y = b;
    int order = strcasecmp(*x, *y);
    return order != 0 ? order : strcmp(*x, *y);
}

/* The properties by their names, in any letter case: the order in which templates of this style
 * write arguments.  A new reference; NULL: no memory. */
static json_t *sorted(const json_t *properties) {
    size_t n = json_object_size(properties), i = 0;
    const char **names = malloc(size_max(n, 1) * sizeof *names), *name;
    json_t *out = json_object(), *v;
    json_object_foreach((json_t *)(uintptr_t)properties, name, v) {
        if (names != NULL) names[i++] = name;
    }
    if (i > 0) qsort(names, i, sizeof *names, compare_names);
    for (size_t k = 0; out != NULL && k < i; k++)
        if (json_object_set(out, names[k], json_object_get(properties, names[k])) != 0) i = 0;
    free(names);
    if (i == n && names != NULL) return out;
    json_decref(out);
    return NULL;
}

/* Those that must be there first, then the others; without any of the former, one of the latter is
 * the first. */
static void add_loose(tag_writer *w, const call_format *f, const char *tool,
                      const json_t *parameters) {
    const char *separator = f->style == CALL_PYTHON ? ", " : ",", *name, *first;
    json_t *properties = json_object_get(parameters, "properties"), *schema, *one;
    bool some = false;
    if (f->style == CALL_BRACES) properties = sorted(properties);
    tag_text(w, bytes_of(f->style == CALL_PYTHON ? "(" : "{"));
    json_object_foreach(properties, name, schema) {
        if (!is_listed(parameters, name)) continue;
        tag_add(w, loose_argument(f, &(argument){tool, name, parameters, schema},
                                  some ? separator : ""));
        some = true;
    }
    json_t *ways = some ? NULL : json_array();
    json_object_foreach(properties, first, one) {
        bool before = true;
        tag_writer rest;
        if (is_listed(parameters, first)) continue;
        if (some) {
            json_t *tag = loose_argument(f, &(argument){tool, first, parameters, one}, separator);
            tag_add(w, tag == NULL ? NULL : tag_maybe(tag));
            continue;
        }
        tag_begin(&rest);
        tag_add(&rest, loose_argument(f, &(argument){tool, first, parameters, one}, ""));
        json_object_foreach(properties, name, schema) {
            before = before && strcmp(name, first) != 0;
            if (before || strcmp(name, first) == 0) continue;
            json_t *tag = loose_argument(f, &(argument){tool, name, parameters, schema}, separator);
            tag_add(&rest, tag == NULL ? NULL : tag_maybe(tag));
        }
        if (json_array_append_new(ways, tag_end(&rest)) != 0) w->failed = true;
    }
    if (json_array_size(ways) > 0) {
        json_t *any = tag_or(json_incref(ways));
        tag_writer inner;
        tag_begin(&inner);
        tag_add(&inner, any);
        json_t *tag = tag_end(&inner);
        tag_add(w, tag == NULL ? NULL : tag_maybe(tag));
    }
    json_decref(ways);
    if (f->style == CALL_BRACES) json_decref(properties);
    tag_text(w, bytes_of(f->style == CALL_PYTHON ? ")" : "}"));
}

void tag_arguments(tag_writer *w, const call_format *f, const char *tool,
                   const json_t *parameters) {
    switch (f->style) {
    case CALL_JSON:
        tag_add(w, tag_of_schema(parameters, tool));
        break;
    case CALL_TAGS:
        add_tagged(w, f, tool, parameters);
        break;
    default:
        add_loose(w, f, tool, parameters);
    }
}
