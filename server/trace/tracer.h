/* tracer.h - sends finished spans to a collector: OTLP over HTTP, in protobuf, on a thread of its
 * own.
 *
 *   front   tracer_put  > queue of encoded spans, at most queue_spans_max
 *   thread  takes up to TRACER_BATCH_SPANS, at most TRACER_DELAY_MS after the first came > POST
 *
 * No request waits for the collector: tracer_put takes a lock that is held for a moment, and spans
 * that find no room are dropped and counted.  A batch is tried TRACER_TRIES times while the
 * collector does not answer, or answers 429, 502, 503 or 504; each try has timeout_ms.  A
 * Retry-After in such an answer delays the next try, also of the next batch, by at most
 * TRACER_RETRY_AFTER_S_MAX; the end of the process does not wait for it.  Another status drops the
 * batch at once.  Of an answer with status 2xx the spans that the collector rejected are
 * read (otlp_answer.h) and counted as refused; the others are sent.  Of an answer longer than
 * TRACER_ANSWER_BYTES_MAX only the status counts: the connection is cut.  Redirects are not
 * followed.
 *
 * Dropped spans are logged at most once in TRACER_TOLD_EVERY_S: event=spans_dropped.
 * libcurl sends: it has TLS, proxies and kept connections, and its multi interface can be woken,
 * so that the end of the process waits no longer than TRACER_FLUSH_MS.
 * Thread: front; tracer_get_stats any. */
#ifndef INFERD_TRACER_H
#define INFERD_TRACER_H

#include "inferd/base.h"
#include "inferd/buf.h"
#include "inferd/status.h"

enum {
    TRACER_BATCH_SPANS = 512,
    TRACER_DELAY_MS = 1000,
    TRACER_TRIES = 3,
    TRACER_RETRY_MS = 1000, // doubles
    TRACER_RETRY_AFTER_S_MAX = 60,
    TRACER_FLUSH_MS = 2000,
    TRACER_TOLD_EVERY_S = 60,
    TRACER_ANSWER_BYTES_MAX = 65536,
    TRACER_HEADERS_MAX = 16,
    TRACER_HEADERS_BYTES_MAX = 16384
};

typedef enum tracer_drop {
    TRACER_QUEUE_FULL, // the collector is slower than spans come
    TRACER_FAILED,     // no answer, or "again later" TRACER_TRIES times
    TRACER_REFUSED,    // another status than 2xx, or rejected in an answer with 2xx
    TRACER_ENDED,      // the process ended first
    TRACER_NO_MEMORY,
    TRACER_DROPS
} tracer_drop;
const char *tracer_drop_name(tracer_drop why); // "queue_full"

typedef struct tracer_stats {
    uint64_t n_sent, n_dropped[TRACER_DROPS]; // spans
    uint32_t n_queued;                        // those under way, too
} tracer_stats;

typedef struct tracer_options {
    const char *endpoint;     // "http://127.0.0.1:4318/v1/traces"
    const char *headers_file; // "Name: value" lines for each request; NULL: none
    const char *service_name, *instance_id, *version;
    uint32_t queue_spans_max, timeout_ms;
} tracer_options;

typedef struct tracer tracer;

inferd_status tracer_open(const tracer_options *o, tracer **out, inferd_err *err);
/* Takes the memory of `spans` (otlp_add_span, n of them).  False: they were dropped, and counted.
 */
bool tracer_put(tracer *t, buf *spans, uint32_t n);
void tracer_get_stats(const tracer *t, tracer_stats *out);
/* Sends what is queued, for at most TRACER_FLUSH_MS, and joins.  Accepts NULL. */
void tracer_close(tracer *t);

/* For the configuration: why the option would be refused; any thread. */
bool tracer_check_endpoint(const char *url, inferd_err *err);
bool tracer_check_headers(const char *path, inferd_err *err);

#endif
