/* api_error.h - error answers to refused or failed requests.
 *
 * Every error answer has the same body, {"error":{message, type, param, code}}; one table maps the
 * fault to status, type and code.  Clients use `code` and `param`; people read the message, which
 * names the allowed range and quotes at most 64 bytes of the request.
 * Thread: any; an api_error belongs to its caller. */
#ifndef INFERD_API_ERROR_H
#define INFERD_API_ERROR_H

#include "inferd/base.h"
#include "inferd/buf.h"
#include "inferd/status.h"

typedef enum api_fault {
    API_OK,
    API_BAD_JSON,    // 400: not JSON, or not an object
    API_BAD_VALUE,   // 400 invalid_value: wrong type or out of range
    API_MISSING,     // 400 missing_required_parameter
    API_UNSUPPORTED, // 400 unsupported_parameter: known, would change the output, not implemented
    API_BAD_SCHEMA,  // 400 invalid_schema: of structured output; or none can match
    API_UNSUPPORTED_SCHEMA, // 400 unsupported_schema: it cannot be enforced, or is too large
    API_NO_PREVIOUS, // 400 previous_response_not_found: clients then send the whole conversation
    API_TOO_LONG,    // 400 context_length_exceeded
    API_NO_MODEL,    // 404 model_not_found
    API_NO_RESPONSE, // 404 response_not_found: of those that are kept
    API_TOO_LARGE,   // 413 request_too_large
    API_UNLOADED,    // 503 model_unavailable
    API_OVERLOADED,  // 503 server_overloaded
    API_DRAINING,    // 503 shutting_down
    API_DEVICE_LOST, // 503 device_lost
    API_DEADLINE,    // 504 deadline_exceeded
    API_INTERNAL,    // 500 internal_error
    /* tenant limits: */
    API_REQUEST_RATE, // 429 rate_limit_exceeded, of type requests
    API_TOKEN_RATE,   // 429 rate_limit_exceeded, of type tokens
    API_CONCURRENCY,  // 429 concurrency_limit_exceeded: too many requests at once
    API_QUOTA,        // 429 insufficient_quota: day or month used up, a limit of 0, memory
    API_OVER_LIMIT,   // 400 request_exceeds_limit: larger than a limit ever allows
    API_FAULTS
} api_fault;

enum { API_PARAM_BYTES = 96, API_MESSAGE_BYTES = 480, API_QUOTE_BYTES = 72, API_NAMES_BYTES = 320 };

typedef struct api_error {
    api_fault fault;             // API_OK until something fails
    int status;                  // HTTP; 0 until something fails
    const char *type, *code;     // static; code NULL = null
    unsigned retry_after_s;      // 0 = none
    const char *other;           // static: another field that the message names, quoted; or NULL
    const char *media;           // static: the part of the request that no model takes: "image"
    char param[API_PARAM_BYTES]; // "" = null
    char message[API_MESSAGE_BYTES];
} api_error;

/* Records the first failure; always false (`return api_fail(...)`).  param: the field, or NULL. */
__attribute__((format(printf, 4, 5))) bool api_fail(api_error *e, api_fault fault,
                                                    const char *param, const char *format, ...);
/* Records a failure of a lower layer: its status selects the fault, its text is the message. */
bool api_fail_status(api_error *e, const inferd_err *err, const char *param);

/* The time before which a retry is useless; 0: not known, the default of the fault stays. */
void api_retry_after(api_error *e, uint32_t ms);

/* At most 64 bytes of a client's string, cut between code points, for a message. */
const char *api_quote(char out[API_QUOTE_BYTES], const char *s, size_t n);

/* {"error":{...}}, appended. */
void api_error_add(buf *out, const api_error *e);

#endif
