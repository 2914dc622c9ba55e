/* sse.h - parses server-sent events from bytes that arrive in pieces of any size.
 *
 * Follows the event-stream format: lines end with LF, CR or CRLF; "data:" lines of one event are
 * joined by LF; an empty line ends the event; lines that begin with ':' and unknown fields are
 * skipped; a byte order mark at the start is skipped.  An event without data is not reported.
 *
 *     feed -> take_line -> field      a whole line was read
 *                       -> on_event   the line was empty and there is data
 *
 * Bounded: a line, and the data of an event, have SSE_EVENT_BYTES_MAX; beyond that `feed` fails.
 * Invariant: `line` holds the bytes since the last line end, without that end.
 * Thread: the owner's. */
#ifndef BENCH_SSE_H
#define BENCH_SSE_H

#include "inferd/buf.h"
#include "inferd/status.h"

enum { SSE_EVENT_BYTES_MAX = 1 << 20 };

/* `name` is the value of the "event:" field, "" when there was none.  False stops `feed`. */
typedef bool sse_on_event(void *ctx, const char *name, const char *data, size_t n);

typedef struct sse_parser {
    buf line, data, name; // owned
    bool has_data;        // an event may have empty data
    bool skip_lf;         // the last byte was a CR: an LF right after it belongs to it
    bool at_start;        // a byte order mark is still possible
} sse_parser;

void sse_init(sse_parser *p);
void sse_deinit(sse_parser *p);
void sse_reset(sse_parser *p); // a new stream; keeps the memory

/* INFERD_OK; INFERD_ETOOLONG: an event is too long; INFERD_ECANCELED: on_event returned false. */
inferd_status sse_feed(sse_parser *p, const char *in, size_t n, sse_on_event *on_event, void *ctx);

#endif
