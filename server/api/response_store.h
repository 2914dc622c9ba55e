/* response_store.h - responses that are kept after they were answered (POST /v1/responses with
 * `store`), in the folder `responses` of state_dir.
 *
 * A file per response, FOLDER/ID.json: a line with the tenant's hash, a checksum and the length,
 * then
 *
 *     {"tenant": NAME, "items": [the conversation with the answer], "response": {...}}
 *
 * so a conversation goes on from any of its responses, also if earlier ones are gone.  A file is
 * written under another name and then renamed; it is not synced, because losing the last responses
 * with the power is no harm.  A file that does not match its first line is deleted, and so never
 * answered; one that cannot be read stays.  Ids of clients become paths only in the form that the
 * daemon gives: "resp_" and 32 digits of base 16.
 *
 * Bounds: limits.responses_max files, limits.responses_bytes_max bytes, over all tenants.  Above
 * them the oldest one goes of the tenant that has the most, so that no tenant displaces the
 * responses of those with fewer.  A tenant sees only its own.
 *
 * Front and workers never wait for a write: a thread of the store writes, and until then a response
 * is read from its queue of at most RESPONSE_QUEUE_BYTES_MAX.  What cannot be kept (disk full,
 * queue full) is logged; its answer is not affected.
 *
 *   front    response_store_keep        no I/O
 *   worker   _previous, _get, _delete   read or delete a file
 * Thread: any, except open and close. */
#ifndef INFERD_RESPONSE_STORE_H
#define INFERD_RESPONSE_STORE_H

#include <jansson.h>

#include "form.h"
#include "inferd/status.h"
#include "json_in.h"
#include "metrics.h"
#include "response_file.h"

enum {
    RESPONSE_QUEUE_BYTES_MAX = 4 * RESPONSE_BYTES_MAX, // not written yet
    RESPONSE_DEPTH_MAX = 128 // of items; more than that of a request, which they were part of
};

typedef struct response_store response_store;

typedef struct response_store_options {
    const char *folder; // created if it is missing; borrowed
    uint32_t n_max;
    uint64_t bytes_max;
} response_store_options;

/* Reads what is in the folder.  INFERD_EIO: it cannot be used. */
inferd_status response_store_open(const response_store_options *o, response_store **out,
                                  inferd_err *err);
void response_store_close(response_store *s); // accepts NULL; writes what is queued

/* items, output: elements of JSON arrays, with commas between them; response: a JSON object. */
void response_store_keep(response_store *s, const char *tenant, const char *id, bytes items,
                         bytes output, bytes response);
/* Appends the response, a JSON object.  INFERD_ENOTFOUND: this tenant has no such response;
 * INFERD_EBUSY: its file cannot be read now. */
inferd_status response_store_get(response_store *s, const char *tenant, const char *id, buf *out,
                                 inferd_err *err);
/* The conversation with the answer, an array; INFERD_ETOOLONG: it needs more memory than `limits`
 * allow. */
inferd_status response_store_items(response_store *s, const char *tenant, const char *id,
                                   const json_limits *limits, json_t **out, inferd_err *err);
/* The same for previous_response_id.  False: *err has the answer. */
bool response_store_previous(const form_host *host, const char *id, json_t **items, api_error *err);
/* INFERD_ENOTFOUND; INFERD_EBUSY: it is still there. */
inferd_status response_store_delete(response_store *s, const char *tenant, const char *id,
                                    inferd_err *err);
/* Logs and counts a response that is not kept. */
void response_store_lose(response_store *s, const char *id, const char *problem);
void response_store_stats(response_store *s, metrics_responses *out);
/* For tests: returns when nothing is queued. */
void response_store_settle(response_store *s);

#endif
