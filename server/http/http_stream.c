/* http_stream.c - answers that grow: text/event-stream over a bounded buffer.
 *
 *   http_stream_write -> x->out -> the library reads it -> socket
 *
 *   0 ........ soft/2 ........ soft ........................ hard
 *              ^ on_reader(false)  ^ on_reader(true)             ^ cut
 *
 * A piece longer than `soft` is as long as what it tells (a step of many choices, a text repeated
 * as a whole at its end), however fast the client reads.  It does not count as unsent, and its
 * bytes are bounded by HTTP_STREAM_LONG_BYTES_MAX.
 *
 * While there is nothing to send the connection is suspended; a reader that returns 0 without
 * suspending would be called again at once, for ever.  The stall deadline runs while bytes are
 * unsent, and restarts each time the library has passed a piece to the socket. */
#include <string.h>

#include "http_internal.h"
#include "log.h"

static size_t out_fill(const out_bytes *o) {
    return o->n - o->head;
}

static bool out_add(out_bytes *o, const void *p, size_t n) {
    if (n == 0) return true; // there may be no buffer yet
    if (o->head > 0 && o->n + n > o->capacity) {
        memmove(o->p, o->p + o->head, out_fill(o));
        o->n -= o->head;
        o->head = 0;
    }
    if (o->n + n > o->capacity) {
        size_t capacity = size_max(1024, o->capacity);
        while (capacity < o->n + n) capacity *= 2; // http_stream_write bounds n
        char *grown = realloc(o->p, capacity);
        if (grown == NULL) return false;
        o->p = grown;
        o->capacity = capacity;
    }
    memcpy(o->p + o->n, p, n);
    o->n += n;
    return true;
}

static size_t out_take(out_bytes *o, char *to, size_t n_max) {
    enum { KEEP_BYTES = 4096 }; // ten thousand quiet streams use little memory
    size_t n = size_min(n_max, out_fill(o));
    memcpy(to, o->p + o->head, n);
    o->head += n;
    if (out_fill(o) > 0) return n;
    o->head = o->n = 0;
    if (o->capacity > KEEP_BYTES) {
        free(o->p);
        *o = (out_bytes){0};
    }
    return n;
}

static ssize_t read_stream(void *cls, uint64_t at, char *to, size_t n_max) {
    exchange *x = cls;
    http_server *s = x->s;
    (void)at;
    s->n_calls++;
    if (x->gone) return MHD_CONTENT_READER_END_WITH_ERROR;
    if (out_fill(&x->out) == 0) {
        if (x->aborting) return MHD_CONTENT_READER_END_WITH_ERROR;
        if (x->ending) return MHD_CONTENT_READER_END_OF_STREAM;
        if (s->closing) return MHD_CONTENT_READER_END_WITH_ERROR; // it began in the last run
        deadline_disarm(&x->c->due);
        exchange_suspend(x);
        return 0;
    }
    size_t n = out_take(&x->out, to, n_max);
    x->rq.n_sent += n;
    x->long_bytes = size_min(x->long_bytes, out_fill(&x->out));
    if (!x->rq.no_timeout) watch_conn(x->c, DEADLINE_STALL);
    if (x->paused && out_fill(&x->out) <= s->limits.stream_soft_bytes / 2) {
        x->paused = false;
        if (!x->answered && x->rq.on_reader != NULL) x->rq.on_reader(&x->rq, false);
    }
    return (ssize_t)n;
}

bool http_stream_begin(http_request *rq) {
    exchange *x = exchange_of(rq);
    if (x->gone || rq->method == HTTP_HEAD) return false;
    INFERD_CHECK(!x->answered && !x->streaming);
    struct MHD_Response *r =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 1024, read_stream, x, NULL);
    if (r == NULL) return false;
    if (!reply_headers(x, r, "text/event-stream",
                       "Cache-Control: no-cache\nX-Accel-Buffering: no\n")) {
        MHD_destroy_response(r);
        return false;
    }
    x->response = r;
    x->streaming = true;
    rq->status = 200;
    watch_arm(x->s, &x->beat, DEADLINE_BEAT);
    exchange_resume(x);
    return true;
}

/* Over the hard limit: the client reads too slowly. */
static bool overflow(exchange *x) {
    x->gone = true;
    watch_cut(x->c); // on_gone runs when the library has released the connection
    return false;
}

static bool take_room(exchange *x, size_t n) {
    const http_limits *l = &x->s->limits;
    size_t fill = out_fill(&x->out) - x->long_bytes;
    if (fill > l->stream_hard_bytes) return false;
    if (n <= l->stream_hard_bytes - fill) return true;
    if (n <= l->stream_soft_bytes || n > HTTP_STREAM_LONG_BYTES_MAX - x->long_bytes) return false;
    x->long_bytes += n;
    return true;
}

bool http_stream_write(http_request *rq, const void *p, size_t n) {
    exchange *x = exchange_of(rq);
    if (x->gone) return false;
    INFERD_CHECK(x->streaming && !x->answered);
    if (!take_room(x, n) || !out_add(&x->out, p, n)) return overflow(x);
    watch_arm(x->s, &x->beat, DEADLINE_BEAT);
    exchange_resume(x);
    if (!x->paused && out_fill(&x->out) > x->s->limits.stream_soft_bytes) {
        x->paused = true;
        if (rq->on_reader != NULL) rq->on_reader(rq, true);
    }
    return true;
}

static void finish(http_request *rq, bool whole) {
    exchange *x = exchange_of(rq);
    if (x->gone || x->answered) return;
    INFERD_CHECK(x->streaming);
    x->answered = true;
    x->ending = whole;
    x->aborting = !whole;
    deadline_disarm(&x->beat);
    exchange_resume(x);
}

void http_stream_end(http_request *rq) {
    finish(rq, true);
}
void http_stream_abort(http_request *rq) {
    finish(rq, false);
}
