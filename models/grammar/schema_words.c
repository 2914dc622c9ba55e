/* schema_words.c - the keywords of JSON Schema, drafts 4 to 2020-12, and their values.
 *
 * A word that is not in the table asserts nothing in any draft (title, default, $comment, x-...),
 * or is a container of definitions; validators ignore it, and so does the compiler. */
#include <math.h>

#include "schema.h"
#include "schema_weaken.h"

typedef struct word {
    const char *name;
    int since, until; // drafts in which validators enforce it
} word;

/* In the order of schema_word, which is that of the bytes of the names. */
static const word words[WORD_COUNT] = {
    [WORD_NONE] = {"", 0, 0},
    [WORD_DYNAMIC_REF] = {"$dynamicRef", 2020, 9999},
    [WORD_RECURSIVE_REF] = {"$recursiveRef", 2019, 2019},
    [WORD_REF] = {"$ref", 3, 9999},
    [WORD_ADDITIONAL_ITEMS] = {"additionalItems", 3, 2019},
    [WORD_ADDITIONAL_PROPERTIES] = {"additionalProperties", 3, 9999},
    [WORD_ALL_OF] = {"allOf", 4, 9999},
    [WORD_ANY_OF] = {"anyOf", 4, 9999},
    [WORD_CONST] = {"const", 6, 9999},
    [WORD_CONTAINS] = {"contains", 6, 9999},
    [WORD_DEPENDENCIES] = {"dependencies", 3, 7},
    [WORD_DEPENDENT_REQUIRED] = {"dependentRequired", 2019, 9999},
    [WORD_DEPENDENT_SCHEMAS] = {"dependentSchemas", 2019, 9999},
    [WORD_DISALLOW] = {"disallow", 3, 3},
    [WORD_DIVISIBLE_BY] = {"divisibleBy", 3, 3},
    [WORD_ELSE] = {"else", 7, 9999},
    [WORD_ENUM] = {"enum", 3, 9999},
    [WORD_EXCLUSIVE_MAXIMUM] = {"exclusiveMaximum", 3, 9999},
    [WORD_EXCLUSIVE_MINIMUM] = {"exclusiveMinimum", 3, 9999},
    [WORD_EXTENDS] = {"extends", 3, 3},
    [WORD_FORMAT] = {"format", 9999, 0}, // not every validator enforces it
    [WORD_IF] = {"if", 7, 9999},
    [WORD_ITEMS] = {"items", 3, 9999},
    [WORD_MAX_CONTAINS] = {"maxContains", 2019, 9999},
    [WORD_MAX_ITEMS] = {"maxItems", 3, 9999},
    [WORD_MAX_LENGTH] = {"maxLength", 3, 9999},
    [WORD_MAX_PROPERTIES] = {"maxProperties", 4, 9999},
    [WORD_MAXIMUM] = {"maximum", 3, 9999},
    [WORD_MIN_CONTAINS] = {"minContains", 2019, 9999},
    [WORD_MIN_ITEMS] = {"minItems", 3, 9999},
    [WORD_MIN_LENGTH] = {"minLength", 3, 9999},
    [WORD_MIN_PROPERTIES] = {"minProperties", 4, 9999},
    [WORD_MINIMUM] = {"minimum", 3, 9999},
    [WORD_MULTIPLE_OF] = {"multipleOf", 4, 9999},
    [WORD_NOT] = {"not", 4, 9999},
    [WORD_ONE_OF] = {"oneOf", 4, 9999},
    [WORD_PATTERN] = {"pattern", 3, 9999},
    [WORD_PATTERN_PROPERTIES] = {"patternProperties", 3, 9999},
    [WORD_PREFIX_ITEMS] = {"prefixItems", 2020, 9999},
    [WORD_PROPERTIES] = {"properties", 3, 9999},
    [WORD_PROPERTY_NAMES] = {"propertyNames", 6, 9999},
    [WORD_REQUIRED] = {"required", 4, 9999},
    [WORD_THEN] = {"then", 7, 9999},
    [WORD_TYPE] = {"type", 3, 9999},
    [WORD_UNEVALUATED_ITEMS] = {"unevaluatedItems", 2019, 9999},
    [WORD_UNEVALUATED_PROPERTIES] = {"unevaluatedProperties", 2019, 9999},
    [WORD_UNIQUE_ITEMS] = {"uniqueItems", 3, 9999},
};

static int compare(const void *name, const void *w) {
    return strcmp(name, ((const word *)w)->name);
}

schema_word schema_word_of(const char *name) {
    const word *w = bsearch(name, words, WORD_COUNT, sizeof *words, compare);
    return w == NULL ? WORD_NONE : (schema_word)(w - words);
}

const char *schema_word_name(schema_word w) {
    return words[w].name;
}

/* ---- views ---- */

static const schema_view *make_view(schema_ctx *c, const json_t *schema) {
    void **at = schema_table_at(c, c->views, &schema, sizeof schema, true);
    if (*at != NULL) return *at;
    schema_view *v = schema_take(c, sizeof *v);
    *at = v; // before anything jumps
    v->schema = schema;
    v->made = schema_is_made(c, schema);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)schema, key, value) {
        schema_word w = schema_word_of(key);
        if (w != WORD_NONE && !v->made) w = schema_word_left(c, schema, w);
        if (w == WORD_NONE) continue;
        v->of[w] = value;
        v->order[v->n_words++] = (uint8_t)w;
    }
    return v;
}

const schema_view *schema_view_of(schema_ctx *c, const json_t *schema) {
    uint64_t hash = (uint64_t)(uintptr_t)schema * UINT64_C(0x9e3779b97f4a7c15);
    const schema_view **recent = &c->recent[hash >> (64 - SCHEMA_RECENT_BITS)];
    if (*recent == NULL || (*recent)->schema != schema) *recent = make_view(c, schema);
    return *recent;
}

json_t *schema_get(schema_ctx *c, const schema_view *v, schema_word w) {
    json_t *value = v->of[w];
    if (value == NULL || !c->wide || v->made) return value;
    if (c->draft < words[w].since || c->draft > words[w].until) return NULL;
    if (c->draft <= 7 && v->of[WORD_REF] != NULL && w != WORD_REF) return NULL;
    bool flag = w == WORD_EXCLUSIVE_MINIMUM || w == WORD_EXCLUSIVE_MAXIMUM; // in draft 4
    return flag && c->draft <= 4 && !json_is_boolean(value) ? NULL : value;
}

static uint32_t type_named(const char *name) {
    static const struct {
        const char *name;
        uint32_t bits;
    } types[] = {{"null", TYPE_NULL},     {"boolean", TYPE_BOOLEAN}, {"integer", TYPE_INTEGER},
                 {"number", TYPE_NUMBER}, {"string", TYPE_STRING},   {"array", TYPE_ARRAY},
                 {"object", TYPE_OBJECT}};
    for (size_t i = 0; i < INFERD_COUNT(types); i++)
        if (strcmp(name, types[i].name) == 0) return types[i].bits;
    return 0;
}

uint32_t schema_types(schema_ctx *c, const schema_view *v) {
    json_t *type = schema_get(c, v, WORD_TYPE);
    if (type == NULL) return TYPE_ALL;
    uint32_t bits = 0;
    size_t n = json_is_array(type) ? json_array_size(type) : 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_is_array(type) ? json_array_get(type, i) : type;
        if (!json_is_string(one))
            schema_malformed(c, WORD_TYPE, v->schema,
                             "is neither a string nor an array of strings");
        uint32_t add = type_named(json_string_value(one));
        if (add == 0) {
            char text[160];
            snprintf(text, sizeof text, "names no type: \"%.100s\"", json_string_value(one));
            schema_malformed(c, WORD_TYPE, v->schema, text);
        }
        bits |= add;
    }
    return bits;
}

uint32_t schema_count(schema_ctx *c, const schema_view *v, schema_word w, uint32_t otherwise) {
    json_t *value = schema_get(c, v, w);
    if (value == NULL) return otherwise;
    double x = json_is_number(value) ? json_number_value(value) : -1;
    if (x < 0 || x != floor(x))
        schema_malformed(c, w, v->schema, "is not a whole number of 0 or more");
    return x >= IR_NO_MAX ? IR_NO_MAX : (uint32_t)x;
}

bool schema_flag(schema_ctx *c, const schema_view *v, schema_word w) {
    json_t *value = schema_get(c, v, w);
    if (value == NULL) return false;
    if (!json_is_boolean(value)) schema_malformed(c, w, v->schema, "is not true or false");
    return json_is_true(value);
}

bool schema_requires(schema_ctx *c, const schema_view *v, const char *name) {
    const json_t *names = schema_get(c, v, WORD_REQUIRED);
    for (size_t i = 0; i < json_array_size(names); i++) {
        const char *one = json_string_value(json_array_get(names, i));
        if (one != NULL && strcmp(one, name) == 0) return true;
    }
    return false;
}
