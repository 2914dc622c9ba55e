/* response_index.h - what the store of responses has (response_store.h): an entry per response, and
 * what each tenant has.
 *
 * Nothing here is a scan, because the front waits for it: entries and tenants are in hash tables,
 * the entries that are not written yet in a queue, those of a tenant in a list with the oldest
 * first.  The tenant with the most entries, and the one with the most bytes, are the roots of two
 * heaps.
 *
 * Always true: a tenant is there while it has entries; n and n_bytes are the sums over all of them.
 * Thread: one at a time; the store has a mutex. */
#ifndef INFERD_RESPONSE_INDEX_H
#define INFERD_RESPONSE_INDEX_H

#include "inferd/base.h"
#include "inferd/buf.h"
#include "inferd/list.h"
#include "response_file.h"

/* The text of a file; counted, because it is read beside its entry. */
typedef struct response_text {
    uint32_t n_refs;
    buf text;
} response_text;

/* What displaces: a number of entries, or their bytes. */
typedef enum response_bound {
    RESPONSE_BY_NUMBER,
    RESPONSE_BY_BYTES,
    RESPONSE_BOUNDS
} response_bound;

/* A tenant. */
typedef struct response_holder {
    struct response_holder *next_same; // in its bucket
    uint64_t tenant;
    uint64_t has[RESPONSE_BOUNDS];
    uint32_t at[RESPONSE_BOUNDS]; // in the heaps
    list_node entries;            // oldest first
} response_holder;

typedef struct response_entry {
    struct response_entry *next_same; // in its bucket
    list_node of_holder, in_queue;
    char id[RESPONSE_ID_BYTES];
    response_holder *holder;
    bool unread; // its file could not be read yet: the tenant is not known
    uint64_t n_bytes;
    response_text *queued; // one reference; NULL: it is on disk
} response_entry;

typedef struct response_index {
    response_entry **entries;  // [mask + 1] owned
    response_holder **holders; // likewise
    uint32_t mask;
    response_holder **heaps[RESPONSE_BOUNDS]; // [n_holders] owned
    uint32_t n_holders, holders_max;
    list_node queue; // oldest first
    uint32_t n;
    uint64_t n_bytes, n_queued_bytes;
} response_index;

void response_text_drop(response_text *t); // a reference; accepts NULL

/* For about n_max entries; more only take longer.  False: no memory. */
bool response_index_init(response_index *x, uint32_t n_max);
void response_index_deinit(response_index *x); // accepts zeros

response_entry *response_index_find(const response_index *x, const char *id); // NULL: none
/* Takes the reference to `queued` (NULL: it is on disk) if it succeeds.  NULL: no memory. */
response_entry *response_index_add(response_index *x, const char *id, uint64_t tenant,
                                   uint64_t n_bytes, response_text *queued);
void response_index_remove(response_index *x, response_entry *e);
void response_index_note_written(response_index *x, response_entry *e);
/* The tenant of an unread entry is known now.  False: no memory, and nothing changed. */
bool response_index_learn(response_index *x, response_entry *e, uint64_t tenant);

response_entry *response_index_queued(const response_index *x); // the oldest; NULL: none
/* The oldest entry of the tenant that has the most.  NULL: there is none. */
response_entry *response_index_victim(const response_index *x, response_bound by);

#endif
