/* schema_made.c - schemas that the compiler makes: of one keyword, a property, a value.
 *
 * Each is made once for its origin and purpose, so that goals of the same demands are the same
 * goal. It stands at the place of its origin in the text of errors, and is the same in both
 * readings. */
#include "schema.h"

/* A schema with one keyword that the compiler makes, once for each origin and purpose. */
const json_t *schema_make(schema_ctx *c, const json_t *origin, schema_word of, const char *name,
                          schema_word w, json_t *take_value) {
    const void *key[3] = {origin, name, (const void *)(uintptr_t)(of * WORD_COUNT + w)};
    json_t *value = schema_own_json(c, take_value);
    void **at = schema_table_at(c, c->made, key, sizeof key, true);
    if (*at != NULL) return *at;
    json_t *made = schema_own_json(c, json_object());
    if (json_object_set(made, schema_word_name(w), value) != 0) schema_no_memory(c);
    *at = made;
    schema_made_at(c, made, origin);
    return made;
}

/* {"not": value} */
json_t *schema_make_not(schema_ctx *c, const json_t *origin, json_t *value) {
    json_t *violated = schema_own_json(c, json_object());
    if (json_object_set(violated, "not", value) != 0) schema_no_memory(c);
    schema_made_at(c, violated, origin);
    return violated;
}

/* {"properties": {name: {"not": value}}} */
const json_t *schema_property_not(schema_ctx *c, const json_t *origin, const char *name,
                                  json_t *value) {
    json_t *violated = schema_make_not(c, origin, value), *map = schema_own_json(c, json_object());
    if (json_object_set(map, name, violated) != 0) schema_no_memory(c);
    return schema_make(c, origin, WORD_PROPERTIES, schema_intern(c, name), WORD_PROPERTIES,
                       json_incref(map));
}

/* {"properties": {name: value}} */
const json_t *schema_make_property(schema_ctx *c, const json_t *origin, const char *name,
                                   json_t *value) {
    json_t *map = schema_own_json(c, json_object());
    if (json_object_set(map, name, value) != 0) schema_no_memory(c);
    return schema_make(c, origin, WORD_REQUIRED, schema_intern(c, name), WORD_PROPERTIES,
                       json_incref(map));
}

/* {"const": value} */
static json_t *constant(schema_ctx *c, const json_t *origin, json_t *value) {
    json_t *one = schema_own_json(c, json_object());
    if (json_object_set(one, "const", value) != 0) schema_no_memory(c);
    schema_made_at(c, one, origin);
    return one;
}

/* The schema of an array or object that is this value: its items or properties, no more. */
const json_t *schema_make_like(schema_ctx *c, const json_t *origin, const json_t *value) {
    json_t *like = schema_own_json(c, json_object()), *parts, *names;
    const char *name;
    json_t *part;
    if (json_is_array(value)) {
        json_t *n = schema_own_json(c, json_integer((json_int_t)json_array_size(value)));
        parts = schema_own_json(c, json_array());
        for (size_t i = 0; i < json_array_size(value); i++)
            if (json_array_append(parts, constant(c, origin, json_array_get(value, i))) != 0)
                schema_no_memory(c);
        if (json_object_set(like, "minItems", n) != 0 ||
            json_object_set(like, "maxItems", n) != 0 ||
            json_object_set(like, "prefixItems", parts) != 0)
            schema_no_memory(c);
    } else {
        parts = schema_own_json(c, json_object());
        names = schema_own_json(c, json_array());
        json_object_foreach((json_t *)(uintptr_t)value, name, part) {
            if (json_object_set(parts, name, constant(c, origin, part)) != 0 ||
                json_array_append_new(names, json_string(name)) != 0)
                schema_no_memory(c);
        }
        if (json_object_set(like, "properties", parts) != 0 ||
            json_object_set(like, "required", names) != 0 ||
            json_object_set_new(like, "additionalProperties", json_false()) != 0)
            schema_no_memory(c);
    }
    if (json_object_set_new(like, "type", json_string(json_is_array(value) ? "array" : "object")) !=
        0)
        schema_no_memory(c);
    schema_made_at(c, like, origin);
    return like;
}
