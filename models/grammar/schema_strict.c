/* schema_strict.c - OpenAI's strict profile: rules beyond JSON Schema that make every answer
 * complete.
 *
 * Every object lists all its properties as required and allows no others; the root is an object and
 * no anyOf; allOf, not, if and dependencies are not part of it; sizes are bounded.  A violation is
 * an error of the request, with keyword and pointer.
 *
 * The walk is over all schemas of the document, definitions too, on a stack of its own. */
#include "schema.h"

enum {
    STRICT_PROPERTIES_MAX = 5000,    // of all objects
    STRICT_NESTING_MAX = 10,         // of objects and arrays
    STRICT_ENUM_MAX = 1000,          // values of all enums
    STRICT_CHARACTERS_MAX = 120000,  // of names, enum and const
    STRICT_LARGE_ENUM = 250,         // values, from which on an enum of strings
    STRICT_LARGE_ENUM_CHARS = 15000, // has at most so many characters
};

typedef struct todo {
    const json_t *schema;
    uint32_t nesting;
} todo;

typedef struct strict {
    schema_ctx *c;
    todo *stack;
    size_t n, capacity;
    size_t n_properties, n_values, n_characters;
} strict;

static void push(strict *s, const json_t *schema, uint32_t nesting) {
    if (!json_is_object(schema)) return;
    s->stack = schema_grow(s->c, s->stack, s->n, &s->capacity, sizeof *s->stack);
    s->stack[s->n++] = (todo){schema, nesting};
}

static void push_all(strict *s, const json_t *map_or_list, uint32_t nesting) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)map_or_list, key, value) {
        push(s, value, nesting);
    }
    for (size_t i = 0; i < json_array_size(map_or_list); i++)
        push(s, json_array_get(map_or_list, i), nesting);
}

static void check_words(strict *s, const schema_view *v) {
    static const schema_word refused[] = {
        WORD_ALL_OF,
        WORD_NOT,
        WORD_IF,
        WORD_THEN,
        WORD_ELSE,
        WORD_DEPENDENCIES,
        WORD_DEPENDENT_REQUIRED,
        WORD_DEPENDENT_SCHEMAS,
    };
    for (size_t i = 0; i < INFERD_COUNT(refused); i++)
        if (v->of[refused[i]] != NULL)
            schema_malformed(s->c, refused[i], v->schema, "is not allowed in a strict schema");
}

static void check_object(strict *s, const schema_view *v) {
    const json_t *properties = v->of[WORD_PROPERTIES];
    const char *name;
    json_t *value;
    if (!json_is_false(v->of[WORD_ADDITIONAL_PROPERTIES]))
        schema_malformed(s->c, WORD_ADDITIONAL_PROPERTIES, v->schema,
                         "must be false in a strict schema");
    s->n_properties += json_object_size(properties);
    if (s->n_properties > STRICT_PROPERTIES_MAX) return; // check_sums says so
    json_object_foreach((json_t *)(uintptr_t)properties, name, value) {
        s->n_characters += schema_code_points(name);
        if (schema_requires(s->c, v, name)) continue;
        char text[200];
        snprintf(text, sizeof text,
                 "must have every property in a strict schema, and \"%.100s\" is not there", name);
        schema_malformed(s->c, WORD_REQUIRED, v->schema, text);
    }
}

static size_t count_characters(const json_t *value) {
    return json_is_string(value) ? schema_code_points(json_string_value(value)) : 0;
}

static void check_values(strict *s, const schema_view *v) {
    const json_t *values = v->of[WORD_ENUM];
    size_t n = json_array_size(values), n_characters = 0;
    for (size_t i = 0; i < n; i++) n_characters += count_characters(json_array_get(values, i));
    if (n > STRICT_LARGE_ENUM && n_characters > STRICT_LARGE_ENUM_CHARS) {
        char text[160];
        snprintf(text, sizeof text,
                 "has %zu values of %zu characters, more than %d in a strict schema", n,
                 n_characters, STRICT_LARGE_ENUM_CHARS);
        schema_malformed(s->c, WORD_ENUM, v->schema, text);
    }
    s->n_values += n;
    s->n_characters += n_characters + count_characters(v->of[WORD_CONST]);
}

static void check_sums(strict *s) {
    if (s->n_properties > STRICT_PROPERTIES_MAX)
        schema_fail(s->c, INFERD_ETOOLONG, "a strict schema has at most %d properties, not %zu",
                    STRICT_PROPERTIES_MAX, s->n_properties);
    if (s->n_values > STRICT_ENUM_MAX)
        schema_fail(s->c, INFERD_ETOOLONG, "a strict schema has at most %d enum values, not %zu",
                    STRICT_ENUM_MAX, s->n_values);
    if (s->n_characters > STRICT_CHARACTERS_MAX)
        schema_fail(s->c, INFERD_ETOOLONG,
                    "a strict schema has at most %d characters of names and values, not %zu",
                    STRICT_CHARACTERS_MAX, s->n_characters);
}

static bool may_be(schema_ctx *c, const schema_view *v, uint32_t type) {
    return v->of[WORD_TYPE] != NULL && (schema_types(c, v) & type) != 0;
}

static void visit(strict *s, todo t) {
    const schema_view *v = schema_view_of(s->c, t.schema);
    bool object = v->of[WORD_PROPERTIES] != NULL || may_be(s->c, v, TYPE_OBJECT);
    bool array = v->of[WORD_ITEMS] != NULL || may_be(s->c, v, TYPE_ARRAY);
    uint32_t inner = t.nesting + (object || array);
    schema_tick(s->c);
    check_words(s, v);
    if (inner > STRICT_NESTING_MAX)
        schema_fail(s->c, INFERD_ETOOLONG, "a strict schema has at most %d levels of nesting",
                    STRICT_NESTING_MAX);
    if (object) check_object(s, v);
    check_values(s, v);
    push_all(s, v->of[WORD_PROPERTIES], inner);
    if (json_is_array(v->of[WORD_ITEMS]))
        push_all(s, v->of[WORD_ITEMS], inner);
    else
        push(s, v->of[WORD_ITEMS], inner);
    push_all(s, v->of[WORD_PREFIX_ITEMS], inner);
    push_all(s, v->of[WORD_ANY_OF], t.nesting);
    push_all(s, v->of[WORD_ONE_OF], t.nesting);
    push_all(s, json_object_get(t.schema, "$defs"), 0);
    push_all(s, json_object_get(t.schema, "definitions"), 0);
}

void schema_check_strict(schema_ctx *c) {
    strict s = {.c = c};
    if (!json_is_object(c->root))
        schema_malformed(c, WORD_NONE, c->root, "the root of a strict schema is an object");
    const schema_view *v = schema_view_of(c, c->root);
    if (v->of[WORD_ANY_OF] != NULL)
        schema_malformed(c, WORD_ANY_OF, c->root, "is not allowed at the root of a strict schema");
    if (v->of[WORD_REF] == NULL && (v->of[WORD_TYPE] == NULL || schema_types(c, v) != TYPE_OBJECT))
        schema_malformed(c, WORD_TYPE, c->root,
                         "must be \"object\" at the root of a strict schema");
    push(&s, c->root, 0);
    while (s.n > 0) visit(&s, s.stack[--s.n]);
    check_sums(&s);
}
