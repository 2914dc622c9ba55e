/* tags_nest.h - values in the notation of a format in the making: what tags_nested.c and
 * tags_scalars.c share. */
#ifndef INFERD_CALLS_TAGS_NEST_H
#define INFERD_CALLS_TAGS_NEST_H

#include "calls/tags.h"
#include "calls/types.h"

typedef enum notation { BRACES, PYTHON, TREE } notation;

#define TEXT_BIT (1u << CALL_TYPE_STRING)

/* A value to be made.  Containers are as deep as `depth`, from 1. */
typedef struct value {
    const json_t *schema; // NULL: any
    uint32_t depth;
    char *place; // of the schema, for what is not enforced; owned
} value;

typedef struct value_job {
    json_t *slot; // borrowed from the format around it
    value of;
} value_job;

typedef struct nest {
    const call_format *f;
    notation as;
    const json_t *root;
    tag_scope *scope;
    value_job *jobs; // [n_jobs] owned
    size_t n_jobs, capacity;
    bool failed; // no memory
} nest;

/* One of what a value may be, appended; false: no memory. */
bool nest_add_way(json_t *ways, json_t *way);
/* The values that the schema lists, if it does (`some`). */
bool nest_add_constants(const nest *n, json_t *ways, const json_t *schema, bool *some);
/* Texts, numbers and words of these types; `place` is the schema's. */
bool nest_add_scalars(const nest *n, json_t *ways, const value *v, unsigned types);
/* Any text between quotes. */
json_t *nest_any_string(const nest *n, const value *v);

#endif
