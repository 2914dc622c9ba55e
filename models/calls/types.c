/* types.c - see types.h. */
#include "calls/types.h"

#include <string.h>

enum { REFERENCES_MAX = 8 }; // that lead to another one

static const char *const type_names[] = {"string", "number", "integer", "boolean",
                                         "null",   "array",  "object"};
static const call_type types_of_names[] = {CALL_TYPE_STRING, CALL_TYPE_NUMBER, CALL_TYPE_NUMBER,
                                           CALL_TYPE_BOOL,   CALL_TYPE_NULL,   CALL_TYPE_ARRAY,
                                           CALL_TYPE_OBJECT};
static unsigned types_of_name(const json_t *v) {
    const char *s = json_string_value(v);
    for (size_t i = 0; s != NULL && i < INFERD_COUNT(type_names); i++)
        if (strcmp(s, type_names[i]) == 0) return 1u << types_of_names[i];
    return 0;
}

static unsigned types_of_value(const json_t *v) {
    switch (json_typeof(v)) {
    case JSON_STRING:
        return 1u << CALL_TYPE_STRING;
    case JSON_INTEGER:
    case JSON_REAL:
        return 1u << CALL_TYPE_NUMBER;
    case JSON_TRUE:
    case JSON_FALSE:
        return 1u << CALL_TYPE_BOOL;
    case JSON_NULL:
        return 1u << CALL_TYPE_NULL;
    case JSON_ARRAY:
        return 1u << CALL_TYPE_ARRAY;
    default:
        return 1u << CALL_TYPE_OBJECT;
    }
}

const json_t *call_schema_follow(const json_t *root, const json_t *schema) {
    static const char *const places[][2] = {{"#/$defs/", "$defs"},
                                            {"#/definitions/", "definitions"}};
    for (int i = 0; i < REFERENCES_MAX && schema != NULL; i++) {
        const char *to = json_string_value(json_object_get(schema, "$ref"));
        if (to == NULL) return schema;
        schema = NULL;
        for (size_t k = 0; k < INFERD_COUNT(places); k++) {
            size_t n = strlen(places[k][0]);
            if (strncmp(to, places[k][0], n) == 0)
                schema = json_object_get(json_object_get(root, places[k][1]), to + n);
        }
    }
    return NULL;
}

unsigned call_types_of(const json_t *root, const json_t *schema) {
    static const char *const groups[] = {"anyOf", "oneOf"};
    schema = call_schema_follow(root, schema);
    const json_t *type = json_object_get(schema, "type"), *list;
    unsigned types = types_of_name(type);
    size_t i;
    json_t *v;
    json_array_foreach(type, i, v) types |= types_of_name(v);
    if (types != 0) return types;
    list = json_object_get(schema, "enum");
    json_array_foreach(list, i, v) types |= types_of_value(v);
    if ((v = json_object_get(schema, "const")) != NULL) types |= types_of_value(v);
    for (size_t g = 0; g < INFERD_COUNT(groups); g++) {
        list = json_object_get(schema, groups[g]);
        json_array_foreach(list, i, v) {
            const json_t *way = call_schema_follow(root, v);
            unsigned some = types_of_name(json_object_get(way, "type"));
            if (some == 0) return 0;
            types |= some;
        }
    }
    return types;
}

const char *const call_text_keywords[] = {"pattern", "format", "minLength", "maxLength",
                                          "allOf",   "anyOf",  "oneOf",     "not",
                                          "if",      "enum",   "const",     NULL};

static bool narrows(const json_t *schema) {
    for (size_t i = 0; call_text_keywords[i] != NULL; i++)
        if (json_object_get(schema, call_text_keywords[i]) != NULL) return true;
    return false;
}

const json_t *call_schema_of_text(const json_t *root, const json_t *schema) {
    schema = call_schema_follow(root, schema);
    const json_t *list = json_object_get(schema, "anyOf"), *only = NULL;
    if (list == NULL) list = json_object_get(schema, "oneOf");
    size_t i, n_keywords = 0, n_texts = 0, n_narrow = 0;
    json_t *way;
    for (i = 0; call_text_keywords[i] != NULL; i++)
        n_keywords += json_object_get(schema, call_text_keywords[i]) != NULL;
    if (list == NULL || n_keywords != 1) return schema;
    json_array_foreach((json_t *)(uintptr_t)list, i, way) {
        const json_t *followed = call_schema_follow(root, way);
        unsigned types = call_types_of(root, way);
        if (types != 0 && (types & 1u << CALL_TYPE_STRING) == 0) continue;
        n_texts++;
        n_narrow += narrows(followed);
        only = followed;
    }
    return n_texts == 1 || n_narrow == 0 ? only : schema;
}
