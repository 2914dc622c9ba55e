/* response_draft.h - what a request in progress will be kept with (response_store.h): the items of
 * its conversation, as JSON.
 *
 * Conversations of all requests that run or wait have RESPONSE_DRAFTS_BYTES_MAX together.  A longer
 * one, or one for which there is no room then, is given up: its request is served, and not kept.
 * Thread: worker, then front. */
#ifndef INFERD_RESPONSE_DRAFT_H
#define INFERD_RESPONSE_DRAFT_H

#include "form.h"

enum { RESPONSE_DRAFTS_BYTES_MAX = 256 * 1024 * 1024 };

typedef struct response_draft response_draft;

/* NULL: the daemon keeps nothing, or no memory (*no_memory is set then). */
response_draft *response_draft_create(const form_host *host, bool *no_memory);
void response_draft_destroy(response_draft *d); // accepts NULL
/* One more item of the conversation; d may be NULL.  False: no memory. */
bool response_draft_add(response_draft *d, const json_t *item);
/* False: there is none, or it was given up. */
bool response_draft_is_kept(const response_draft *d);
/* The answer has ended; output: its items.  d may be NULL. */
void response_draft_keep(const response_draft *d, const char *id, bytes output, bytes response);

#endif
