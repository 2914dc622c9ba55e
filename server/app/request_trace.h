/* request_trace.h - the spans of one request, from its arrival to the end of its answer.
 *
 *   POST /v1/chat/completions            the request; its parent is the caller's span
 *     admission                          reading, template, tokens, checks: to its queue slot
 *     queue                              of each sequence: to its first step
 *       load                             its model was not on the device: until it was
 *     prefill                            to the first token
 *       preemption                       it computed nothing: inferd.preemption.kind
 *     decode                             to the last token
 *       preemption
 *
 * The times are those of the last event of each sequence, so nothing is done for a token.  A trace
 * is sent when the generation is closed and each of its sequences has ended: a sequence of a client
 * that left ends later.  Spans have names of models and tenants, counts and codes; no text and no
 * key.  docs/traces.md lists the attributes.
 *
 * Everything accepts NULL: a request without a trace.
 * Thread: front. */
#ifndef INFERD_REQUEST_TRACE_H
#define INFERD_REQUEST_TRACE_H

#include "app.h"

enum { REQUEST_TRACE_SEQS_MAX = 16 }; // sequences of a request that have spans: the first ones

typedef struct request_trace request_trace;

/* Reads traceparent and tracestate: only inside route.handle.  operation: as OpenTelemetry calls
 * it, "chat", "text_completion"; static.  NULL: traces are off, the request is not sampled, or
 * there is no memory. */
request_trace *request_trace_begin(const app *a, http_request *rq, const char *operation);

/* The request was admitted, for the model of this name, which lives as long as the app. */
void request_trace_admit(request_trace *t, const char *name, gen_class prio, uint32_t n_seqs);
/* One of its sequences was sent to a device: request_trace_done must follow. */
void request_trace_send(request_trace *t, uint32_t seq_idx, const char *device);
/* Its GEN_EV_DONE.  May free the trace. */
void request_trace_done(request_trace *t, uint32_t seq_idx, const gen_event *ev);

typedef struct request_trace_end {
    int status;         // of the answer; 0: the client left before it
    const char *code;   // of an error, static; NULL: none
    bool failed;        // the server is at fault
    const char *finish; // why the first sequence ended, static; NULL: not known
    uint32_t n_prompt, n_cached, n_output;
} request_trace_end;

/* The answer is complete, or will never be.  May free the trace. */
void request_trace_close(request_trace *t, const request_trace_end *end);
/* No more events will come for this sequence. */
void request_trace_forget(request_trace *t);

#endif
