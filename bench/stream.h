/* stream.h - one HTTP request: libcurl's handle, the bytes that come back, and the result.
 *
 *     stream_create -> stream_begin -> (libcurl delivers bytes) -> stream_end -> stream_begin ...
 *
 * A stream is reused for further requests, so that its buffers and its handle are made only once.
 * Thread: the load's. */
#ifndef BENCH_STREAM_H
#define BENCH_STREAM_H

#include <curl/curl.h>

#include "inferd/list.h"
#include "result.h"
#include "sse.h"
#include "stats.h"
#include "talk.h"

enum { ERROR_BODY_BYTES_MAX = 4096, ANSWER_BYTES_MAX = 4 << 20 };

typedef struct stream {
    list_node link; // in the active or the idle list of the load
    CURL *easy;     // owned
    buf body, error_body;
    buf answer; // the text, when the request belongs to a conversation
    talk *talk; // borrowed; NULL: it belongs to none
    sse_parser sse;
    const stats *figures; // borrowed; NULL for a warm-up request
    group *groups[GROUPS_PER_REQUEST];
    result r;
    uint64_t now_ns;    // when the current bytes were read
    uint64_t finish_ns; // of the chunk with the finish reason; 0 before
    bool is_answered;   // status and content type of the answer were checked
    bool is_done;       // "[DONE]" was read
} stream;

stream *stream_create(const bench_spec *spec); // NULL: no memory
void stream_destroy(stream *s);                // accepts NULL

/* Fills the handle for a request; the caller adds it to the multi handle.  `figures` is NULL for a
 * warm-up request; `headers` stay borrowed until stream_end.  False: no memory. */
bool stream_begin(stream *s, const bench_class *c, request_plan plan, talk *t, uint64_t sched_ns,
                  const char *url, struct curl_slist *headers, stats *figures);

/* Fills in the result, once libcurl has finished the transfer or it was stopped (is_cut). */
void stream_end(stream *s, CURLcode code, bool is_cut);

#endif
