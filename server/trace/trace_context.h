/* trace_context.h - the headers traceparent and tracestate (W3C Trace Context), and ids.
 *
 *   traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
 *                version - trace - span of the caller - flags (1: sampled)
 *
 * A header that breaks a rule of the specification is not used: the request begins a trace of its
 * own.  traceparent comes once; a request with two of them has none.  tracestate is passed on as it
 * came, when it is a valid list of at most TRACE_STATE_BYTES bytes beside a valid traceparent;
 * several headers are joined with a comma.
 * Thread: any. */
#ifndef INFERD_TRACE_CONTEXT_H
#define INFERD_TRACE_CONTEXT_H

#include "inferd/base.h"

enum {
    TRACE_ID_BYTES = 16,
    SPAN_ID_BYTES = 8,
    TRACE_STATE_BYTES = 512, // the specification asks to pass on at least as many
    TRACE_STATE_MEMBERS = 32,
    TRACE_SAMPLED = 1 // of flags
};

typedef struct trace_context {
    unsigned char trace_id[TRACE_ID_BYTES], parent_id[SPAN_ID_BYTES];
    unsigned char flags;
    char state[TRACE_STATE_BYTES + 1]; // "": none
} trace_context;

/* False: there is none, or it is not valid.  `state` of *out is "". */
bool trace_context_read(bytes traceparent, trace_context *out);
/* Sets out->state.  False: not a valid list, or too long; it stays "". */
bool trace_context_read_state(bytes tracestate, trace_context *out);
/* The same for headers that come `n` times: their values are one list, in their order. */
bool trace_context_read_states(const bytes *lines, uint32_t n, trace_context *out);

/* Random ids, never all zero.  False: the system gives no random bytes. */
bool trace_id_make(unsigned char *out, size_t n);
/* Is a trace without a caller sampled?  ratio: 0 to 1; the answer depends on the id alone. */
bool trace_id_is_sampled(const unsigned char trace_id[TRACE_ID_BYTES], double ratio);

#endif
