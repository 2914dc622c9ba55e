/* schema_words.h - the keywords of JSON Schema, and those of one schema.
 * Thread: any; a view belongs to its schema_ctx. */
#ifndef INFERD_GRAMMAR_SCHEMA_WORDS_H
#define INFERD_GRAMMAR_SCHEMA_WORDS_H

#include <jansson.h>

#include "inferd/base.h"

typedef enum schema_word {
    WORD_NONE, // not a keyword of JSON Schema, or an annotation: no effect
    WORD_DYNAMIC_REF,
    WORD_RECURSIVE_REF,
    WORD_REF,
    WORD_ADDITIONAL_ITEMS,
    WORD_ADDITIONAL_PROPERTIES,
    WORD_ALL_OF,
    WORD_ANY_OF,
    WORD_CONST,
    WORD_CONTAINS,
    WORD_DEPENDENCIES,
    WORD_DEPENDENT_REQUIRED,
    WORD_DEPENDENT_SCHEMAS,
    WORD_DISALLOW,
    WORD_DIVISIBLE_BY,
    WORD_ELSE,
    WORD_ENUM,
    WORD_EXCLUSIVE_MAXIMUM,
    WORD_EXCLUSIVE_MINIMUM,
    WORD_EXTENDS,
    WORD_FORMAT,
    WORD_IF,
    WORD_ITEMS,
    WORD_MAX_CONTAINS,
    WORD_MAX_ITEMS,
    WORD_MAX_LENGTH,
    WORD_MAX_PROPERTIES,
    WORD_MAXIMUM,
    WORD_MIN_CONTAINS,
    WORD_MIN_ITEMS,
    WORD_MIN_LENGTH,
    WORD_MIN_PROPERTIES,
    WORD_MINIMUM,
    WORD_MULTIPLE_OF,
    WORD_NOT,
    WORD_ONE_OF,
    WORD_PATTERN,
    WORD_PATTERN_PROPERTIES,
    WORD_PREFIX_ITEMS,
    WORD_PROPERTIES,
    WORD_PROPERTY_NAMES,
    WORD_REQUIRED,
    WORD_THEN,
    WORD_TYPE,
    WORD_UNEVALUATED_ITEMS,
    WORD_UNEVALUATED_PROPERTIES,
    WORD_UNIQUE_ITEMS,
    WORD_COUNT
} schema_word;
schema_word schema_word_of(const char *name);
const char *schema_word_name(schema_word w);

/* Of one object, its keywords: looked up once. */
typedef struct schema_view {
    const json_t *schema;
    bool made;                          // by the compiler: the same in both readings
    json_t *of[WORD_COUNT];             // NULL: absent
    uint8_t order[WORD_COUNT], n_words; // the keywords as they are written
} schema_view;

#endif
