/* schema_weaken.h - schemas that are made weaker where they cannot be enforced; schema_weaken.c
 * says how.  Thread: that of its schema_ctx. */
#ifndef INFERD_GRAMMAR_SCHEMA_WEAKEN_H
#define INFERD_GRAMMAR_SCHEMA_WEAKEN_H

#include "schema.h"

typedef struct weak_word {
    const json_t *schema;
    schema_word word;
    bool loose; // oneOf that is anyOf
} weak_word;

typedef struct weak_words {
    weak_word *at; // [n] owned
    size_t n, capacity;
} weak_words;

/* Of a schema, over all attempts to compile it. */
typedef struct schema_weakening {
    weak_words left;                // out, of views
    weak_words soft;                // what the current attempt went on without
    uint32_t n_attempts, n_changes; // of `left`
    uint64_t deadline_us;
} schema_weakening;

/* A schema is below this keyword of another one. */
typedef struct schema_edge {
    const json_t *from; // NULL: it is the root
    schema_word word;
    const struct schema_edge *next; // to the same schema
} schema_edge;

typedef struct schema_fault {
    const json_t *schema;
    schema_word word;
    bool is_part; // of its value: what is at `key` or `index` of it (SIZE_MAX: all) is no schema
    const char *key;
    size_t index;
} schema_fault;

typedef struct schema_reach {
    schema_table *edges; // by schema: the newest edge to it
    schema_fault *faults;
    size_t n_faults;
} schema_reach;

/* The keyword as views have it: WORD_NONE: left out. */
schema_word schema_word_left(schema_ctx *c, const json_t *schema, schema_word w);
void schema_weaken_begin(schema_ctx *c);
void schema_weaken_scan(schema_ctx *c);
/* True: go on as if the keyword were not there; the next attempt will do without it. */
bool schema_soften(schema_ctx *c, schema_word w, const json_t *at);
/* Of a split no alternative is left, but one could not be described: the same for its `not`, if. */
void schema_soften_split(schema_ctx *c, const schema_atom *a);
/* Of the root all was left out, or all that said which types it has. */
bool schema_root_lost_type(schema_ctx *c);

typedef enum weaken_next {
    WEAKEN_DONE,  // the report is appended
    WEAKEN_AGAIN, // with less
    WEAKEN_ALL,   // nothing more can be left out, or there is no time
    WEAKEN_NO_MEMORY
} weaken_next;
weaken_next schema_weaken(schema_ctx *c, inferd_status s); // behind an attempt
void schema_weakening_deinit(schema_weakening *w);

/* (schema_reach.c) */
void schema_reach_build(schema_ctx *c);
bool schema_is_reached(schema_ctx *c, const json_t *schema);
const schema_edge *schema_edges_to(schema_ctx *c, const json_t *schema); // NULL: none

#endif
