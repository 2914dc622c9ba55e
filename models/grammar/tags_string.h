/* tags_string.h - the text of a string that follows a schema, as an automaton.
 * Thread: any. */
#ifndef INFERD_TAGS_STRING_H
#define INFERD_TAGS_STRING_H

#include <jansson.h>

#include "dfa.h"
#include "tags_text.h"

/* Texts without `end` (empty: any) that follow pattern, format, minLength and maxLength of the
 * schema.  left_out (may be NULL): an array that gets the pointers of the keywords that cannot be
 * enforced, "#/pattern", "#/anyOf"; without it they are an error. */
inferd_status tags_string(const json_t *schema, bytes end, const dfa_limits *limits,
                          json_t *left_out, dfa *out, inferd_err *err);

#endif
