/* tags_made.h - nodes of a structural tag that were made already, by what they were made of.
 *
 * The tags of 100 tools have few different parts: texts up to the same mark, the same patterns,
 * schemas that say "integer".  Each automaton is made once, and the graph has it once.
 * Thread: any; it belongs to one compilation. */
#ifndef INFERD_GRAMMAR_TAGS_MADE_H
#define INFERD_GRAMMAR_TAGS_MADE_H

#include <jansson.h>

#include "inferd/buf.h"
#include "ir.h"

enum { TAGS_MADE_BUCKETS = 512, TAGS_MADE_BYTES_MAX = 1024 }; // of a key; longer ones are not kept

typedef struct tags_made {
    struct tags_made_node *buckets[TAGS_MADE_BUCKETS]; // owned
} tags_made;

/* A key: what kind of node, and its text.  An empty key is never found or kept. */
void tags_made_key(buf *key, char kind, bytes text);
/* Appends a schema, in its order, without its "$comment". */
void tags_made_key_schema(buf *key, const json_t *schema);
/* With the pointers of what was left out of its schema (grammar_schema_kind.weakened); NULL: none.
 */
bool tags_made_find(tags_made *m, const buf *key, ir_node *out, const json_t **left_out);
/* Holds the pointers.  Without memory it is not kept. */
void tags_made_keep(tags_made *m, const buf *key, ir_node node, json_t *left_out);
void tags_made_deinit(tags_made *m);

#endif
