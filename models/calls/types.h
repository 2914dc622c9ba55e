/* types.h - the types of a value that a JSON Schema allows, as far as one look tells. */
#ifndef INFERD_CALLS_TYPES_H
#define INFERD_CALLS_TYPES_H

#include "calls/format.h"

#define CALL_TYPES_ALL ((1u << CALL_TYPES) - 1)

/* What a local reference leads to, in the schema `root`; other schemas are themselves.  NULL: it
 * leads nowhere. */
const json_t *call_schema_follow(const json_t *root, const json_t *schema);
/* Of `type`, enum, const, and these in anyOf and oneOf, as bits of call_type.  0: it does not say.
 */
unsigned call_types_of(const json_t *root, const json_t *schema);
/* Keywords of a schema that narrow what a text may be, then NULL. */
extern const char *const call_text_keywords[];
/* The schema of a value that is a text: where just one way of anyOf or oneOf is a text, that way.
 */
const json_t *call_schema_of_text(const json_t *root, const json_t *schema);

#endif
