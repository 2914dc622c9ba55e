/* top_stream.h - the answer of GET /admin/watch, byte by byte as it comes: HTTP/1.1, its chunks,
 * and the events in them.
 *
 *   head       until an empty line; then the status is known
 *   body       chunks, or plain bytes until the end of the connection
 *   events     of an answer 200 that is a text/event-stream; the body of another is kept
 *
 * No socket: bytes go in, events come out.  The bytes are not trusted; every growing part has a
 * bound below.
 * Thread: main. */
#ifndef INFERD_TOP_STREAM_H
#define INFERD_TOP_STREAM_H

#include "inferd/base.h"
#include "inferd/buf.h"
#include "inferd/status.h"

enum {
    TOP_HEAD_BYTES_MAX = 16 * 1024,
    TOP_CHUNK_LINE_MAX = 256,               // the size of a chunk, with extensions
    TOP_EVENT_BYTES_MAX = 32 * 1024 * 1024, // of one line and of one event; the daemon's are below
    TOP_REFUSAL_BYTES_MAX = 64 * 1024,      // body of an answer that is no stream
    TOP_EVENT_NAME_BYTES = 16
};

/* `data` is valid until it returns. */
typedef void top_on_event(void *user, const char *name, bytes data);

typedef enum top_stream_part {
    TOP_IN_HEAD,
    TOP_IN_SIZE, // of a chunk
    TOP_IN_CHUNK,
    TOP_IN_CHUNK_END,
    TOP_IN_REST, // a body without chunks
    TOP_AT_END
} top_stream_part;

typedef struct top_stream {
    top_stream_part part;
    int status;  // of the answer; 0: the head is not complete
    bool events; // the body is a stream of events
    bool chunked;
    uint64_t left;  // bytes of this chunk
    buf text;       // of the head, or of the size of a chunk
    buf line, data; // of the event
    buf body;       // of an answer that is no stream
    char name[TOP_EVENT_NAME_BYTES];
    top_on_event *on_event;
    void *user;
} top_stream;

void top_stream_init(top_stream *s, top_on_event *on_event, void *user);
void top_stream_deinit(top_stream *s);
/* EFORMAT: not HTTP/1.1, or wrong chunks; ETOOLONG: over a bound; ENOMEM.  The stream is then of no
 * further use. */
inferd_status top_stream_push(top_stream *s, bytes piece, inferd_err *err);

#endif
