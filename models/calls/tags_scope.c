/* tags_scope.c - what of the schemas of tools is not enforced: tag_scope. */
#include <string.h>

#include "calls/tags.h"
#include "calls/types.h"

static void add_key(buf *out, const char *key) {
    buf_add_char(out, '/');
    for (; *key != 0; key++) {
        if (*key == '~' || *key == '/')
            buf_add_str(out, *key == '~' ? "~0" : "~1");
        else
            buf_add_char(out, *key);
    }
}

char *tag_place(const char *at, const char *word, const char *key) {
    buf b = {0};
    buf_add_str(&b, at);
    if (strchr(at, '#') == NULL) buf_add_char(&b, '#');
    if (word != NULL) add_key(&b, word);
    if (key != NULL) add_key(&b, key);
    if (!b.failed && buf_cstr(&b) == b.p) return b.p;
    buf_deinit(&b);
    return NULL;
}

void tag_not_enforced(tag_scope *s, const char *place, const char *word) {
    if (s->weakened == NULL) return;
    char *whole = tag_place(place, word, NULL);
    if (whole == NULL || json_array_append_new(s->weakened, json_string(whole)) != 0)
        s->failed = true;
    free(whole);
}

void tag_check_keywords(tag_scope *s, const json_t *schema, unsigned types, const char *place) {
    static const struct {
        const char *word;
        unsigned types; // of values that it narrows
    } rows[] = {
        {"patternProperties", 1u << CALL_TYPE_OBJECT},
        {"minProperties", 1u << CALL_TYPE_OBJECT},
        {"maxProperties", 1u << CALL_TYPE_OBJECT},
        {"propertyNames", 1u << CALL_TYPE_OBJECT},
        {"dependentRequired", 1u << CALL_TYPE_OBJECT},
        {"dependentSchemas", 1u << CALL_TYPE_OBJECT},
        {"dependencies", 1u << CALL_TYPE_OBJECT},
        {"unevaluatedProperties", 1u << CALL_TYPE_OBJECT},
        {"prefixItems", 1u << CALL_TYPE_ARRAY},
        {"uniqueItems", 1u << CALL_TYPE_ARRAY},
        {"contains", 1u << CALL_TYPE_ARRAY},
        {"unevaluatedItems", 1u << CALL_TYPE_ARRAY},
        {"allOf", CALL_TYPES_ALL},
        {"not", CALL_TYPES_ALL},
        {"if", CALL_TYPES_ALL},
    };
    static const char *const groups[] = {"anyOf", "oneOf"};
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        const json_t *v = json_object_get(schema, rows[i].word);
        if (v != NULL && !json_is_false(v) && (rows[i].types & types) != 0)
            tag_not_enforced(s, place, rows[i].word);
    }
    bool typed = json_object_get(schema, "type") != NULL; // counts then, and these do not
    for (size_t i = 0; i < INFERD_COUNT(groups) && typed; i++)
        if (json_object_get(schema, groups[i]) != NULL) tag_not_enforced(s, place, groups[i]);
}
