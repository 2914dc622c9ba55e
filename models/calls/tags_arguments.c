/* tags_arguments.c - the arguments of a call in each notation, from the schema of the tool.
 *
 * JSON follows the schema as it is.  Between tags, arguments come in the order of the schema's
 * properties, optional ones may be left out, and others cannot be written.  A text between tags is
 * free up to the mark behind it, unless the schema lists its values.  Other notations, and trees,
 * are in tags_nested.c. */
#include <string.h>

#include "calls/tags.h"
#include "calls/types.h"
#include "calls/value.h"
#include "inferd/json_whole.h"

/* One argument of a call, as the tool describes it. */
typedef struct argument {
    const char *key;             // NULL: of any name
    const json_t *root, *schema; // of all arguments; of this one; NULL: any
    const char *place;           // of the schema, for what is not enforced
    tag_scope *scope;
} argument;

/* ---- values ---- */

bool tag_is_required(const json_t *schema, const char *key) {
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
    json_t *copy = json_copy_whole((json_t *)(uintptr_t)schema);
    for (size_t i = 0; copy != NULL && i < INFERD_COUNT(names); i++) {
        json_t *definitions = json_object_get(root, names[i]);
        if (definitions != NULL && json_object_set(copy, names[i], definitions) != 0) {
            json_decref(copy);
            return NULL;
        }
    }
    return copy;
}

json_t *tag_of_argument(const json_t *root, const json_t *schema, const char *place) {
    json_t *whole = with_definitions(root, schema), *v = NULL;
    if (whole != NULL && json_object_size(whole) == 0) { // any value
        json_decref(whole);
        whole = json_pack("{s:[ssssss]}", "type", "string", "number", "boolean", "null", "array",
                          "object");
    }
    if (whole != NULL) v = tag_of_schema(whole, place);
    json_decref(whole);
    return v;
}

static bool add_way(json_t *ways, json_t *way) {
    return json_array_append_new(ways, way) == 0;
}

/* A value that is no text: as JSON, in the notation of the format, and constants as Python writes
 * them where the format does. */
static json_t *other_value(const call_format *f, const argument *a) {
    unsigned types = call_types_of(a->root, a->schema);
    const unsigned containers = 1u << CALL_TYPE_ARRAY | 1u << CALL_TYPE_OBJECT;
    json_t *ways = json_array();
    bool ok = ways != NULL;
    if (types == 0) types = CALL_TYPES_ALL;
    if (ok && f->python_words && (types & 1u << CALL_TYPE_BOOL) != 0)
        ok = add_way(ways, tag_of_pattern("True|False"));
    if (ok && f->python_words && (types & 1u << CALL_TYPE_NULL) != 0)
        ok = add_way(ways, tag_of_text(bytes_of("None")));
    bool nested = f->literals && (types & containers) != 0;
    if (ok) // which holds JSON, too
        ok = add_way(ways, nested ? tag_of_nested(f, a->root, a->schema, a->place, a->scope)
                                  : tag_of_argument(a->root, a->schema, a->place));
    if (ok) return tag_or(ways);
    json_decref(ways);
    return NULL;
}

/* Texts that a schema lists; NULL: it lists none, or others, too. */
static json_t *listed_texts(const json_t *schema) {
    const json_t *list = json_object_get(schema, "enum"), *only = json_object_get(schema, "const");
    if (json_string_length(only) > 0)
        return tag_of_text((bytes){json_string_value(only), json_string_length(only)});
    json_t *ways = json_array(), *v;
    size_t i, n = 0;
    json_array_foreach((json_t *)(uintptr_t)list, i, v) {
        n += json_is_string(v);
        if (json_string_length(v) == 0) continue; // no text, or an empty one, which is no format
        bytes text = {json_string_value(v), json_string_length(v)};
        if (json_array_append_new(ways, tag_of_text(text)) != 0) break;
    }
    if (n > 0 && n <= TAG_PARTS_MAX && json_array_size(ways) == n) return tag_or(ways);
    json_decref(ways);
    return NULL;
}

/* ---- between tags ---- */

/* One argument with a value of these types, which have marks in common. */
static json_t *tagged_value(const call_format *f, const argument *a, int type, bool is_text) {
    const json_t *schema = call_schema_of_text(a->root, a->schema);
    json_t *value = is_text ? listed_texts(schema) : other_value(f, a);
    tag_writer w;
    if (value == NULL && is_text) value = tag_of_string(schema, a->place);
    tag_begin(&w);
    tag_mark(&w, f->key_open, (bytes){NULL, 0});
    if (a->key != NULL)
        tag_text(&w, bytes_of(a->key));
    else
        tag_add(&w, tag_of_pattern("[a-zA-Z_][a-zA-Z0-9_.\\-]*"));
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
    unsigned types = call_types_of(a->root, a->schema), done = 0;
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

/* As a tag, which what may be left out or repeated must be. */
static json_t *tagged_tag(const call_format *f, const argument *a) {
    json_t *one = a->place == NULL ? NULL : tagged(f, a);
    tag_writer inner;
    if (one == NULL || json_object_get(one, "begin") != NULL) return one;
    tag_begin(&inner);
    tag_add(&inner, one);
    return tag_end(&inner);
}

static void add_tagged(tag_writer *w, const call_format *f, const char *tool,
                       const json_t *parameters, tag_scope *scope) {
    const json_t *properties = json_object_get(parameters, "properties");
    const char *name;
    json_t *schema;
    if (json_object_size(properties) > TAG_MEMBERS_MAX) scope->unfit = true;
    tag_check_keywords(scope, parameters, 1u << CALL_TYPE_OBJECT, tool);
    json_object_foreach((json_t *)(uintptr_t)properties, name, schema) {
        if (scope->unfit) return;
        char *place = tag_place(tool, "properties", name);
        json_t *one = tagged_tag(f, &(argument){name, parameters, schema, place, scope});
        free(place);
        if (one != NULL && !tag_is_required(parameters, name)) one = tag_maybe(one);
        tag_add(w, one);
    }
}

static void add_any_tagged(tag_writer *w, const call_format *f, const char *tool) {
    tag_scope scope = {.slots_left = 256}; // they take 7
    json_t *tags = json_array(), *one = tagged_tag(f, &(argument){NULL, NULL, NULL, tool, &scope});
    if (json_array_append(tags, one) == 0)
        tag_add(w, tag_separated(tags, (bytes){NULL, 0}, false, false));
    else
        json_decref(tags);
    w->failed = w->failed || one == NULL;
    json_decref(one);
}

/* Some templates write a line break behind the header of a call, and one before its end, and others
 * between arguments only: a call without arguments may have two. */
static void add_empty_line(tag_writer *w, const call_format *f, const json_t *parameters,
                           const tag_scope *scope) {
    static const char line[] = {CALL_MAYBE, '\n', CALL_MAYBE};
    bool lines = f->key_open.n > 0 && f->key_open.p[0] == '\n' && f->call_close.n > 0 &&
                 f->call_close.p[0] == '\n';
    bool may_be_empty = scope->any || json_array_size(json_object_get(parameters, "required")) == 0;
    if (lines && may_be_empty) tag_mark(w, (bytes){line, sizeof line}, (bytes){NULL, 0});
}

void tag_arguments(tag_writer *w, const call_format *f, const char *tool, const json_t *parameters,
                   tag_scope *scope) {
    if (f->style == CALL_JSON)
        tag_add(w, tag_of_schema(scope->any ? NULL : parameters, tool));
    else if (f->style != CALL_TAGS || f->tree)
        tag_members(w, f, parameters, tool, scope);
    else if (scope->any)
        add_any_tagged(w, f, tool);
    else
        add_tagged(w, f, tool, parameters, scope);
    if (f->style == CALL_TAGS && !f->tree) add_empty_line(w, f, parameters, scope);
    w->failed = w->failed || scope->unfit;
}
