/* api_mends.h - the mends that api_mend.c applies: changes of a conversation that may make a chat
 * template accept it.
 * Thread: any; a draft belongs to its owner. */
#ifndef INFERD_API_MENDS_H
#define INFERD_API_MENDS_H

#include <jansson.h>
#include <stdbool.h>

/* The conversation as the template will get it.  Its values are owned, and shared with the request:
 * a mend replaces them by copies. */
typedef struct draft {
    json_t *messages;
    json_t *origin;         // see api_mend.h
    json_t *tools, *kwargs; // may be NULL
    bool changed;           // by a mend
    bool no_memory;         // then the rest is not valid
} draft;

typedef void (*mend)(draft *d);
void api_split_calls(draft *d); // one of them
extern const mend api_mends[];  // in the order in which they are tried
extern const unsigned api_n_mends;

#endif
