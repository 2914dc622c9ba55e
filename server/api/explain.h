/* explain.h - where the prompt of a conversation leaves the longest one computed before it, and
 * why: told in a header of the answer to a request with `x-inferd-explain: 1`, in the log with
 * log.explain, and counted.
 *
 *   x-inferd-explain: byte=5120, in="messages[7]", cause=grown, known=1270, cached=1264,
 * prompt=1302
 *
 * byte, in: the first byte of the prompt's text that the earlier one has not, and the message or
 * item of the body it lies in; known: tokens that both begin with; cached: those of them whose keys
 * and values were found.  Where more was found than is known of, by a prompt that is forgotten, or
 * not kept, the cause is not_kept. "off": of no conversation, or conversations are not kept
 * (limits.transcript_bytes_max), or this one is not cached. Thread: worker until the generation
 * starts, then front. */
#ifndef INFERD_EXPLAIN_H
#define INFERD_EXPLAIN_H

#include "api_error.h"
#include "inferd/buf.h"
#include "log.h"
#include "prefix_cause.h"
#include "spot.h"

typedef struct explanation {
    bool known;  // there is one: of a conversation that may be cached
    bool wanted; // by the request
    prefix_cause cause;
    size_t byte;
    uint32_t message_idx;        // of the chat that the byte lies in; CHAT_NO_MESSAGE: none
    spot spot;                   // in this message
    char where[API_PARAM_BYTES]; // "messages[7]"; "" for the template's text at the end, and tools
    uint32_t n_known, n_cached, n_prompt; // tokens
} explanation;

/* The engine says how many tokens were cached: before that an eviction is not known. */
void explain_cached(explanation *e, uint32_t n_cached);
void explain_add_header(const explanation *e, buf *lines); // "x-inferd-explain: ...\n"
void explain_log(const explanation *e, log_line *line);

#endif
