/* http.h - the transport: one event loop that drives libmicrohttpd, and everything libmicrohttpd
 * does not do: the header guard, routing on the raw target, keys, limits, absolute deadlines, the
 * disconnect watcher, bounded streams and draining.
 *
 * One exchange:
 *     headers complete -> guard (framing, host, route, key, overload, size)   refuse: JSON error,
 * close body complete    -> route.handle(rq)                                   the front owns rq's
 * answer http_answer      |  http_stream_begin, http_stream_write ..., http_stream_end / _abort
 *     closed           -> rq freed.  If that happens before the answer was complete, rq->on_gone
 * runs first (client left, deadline passed, stalled, over the hard limit).
 *
 * Handlers never block: long work goes to http_work.
 * Thread: front, all of it. */
#ifndef INFERD_HTTP_H
#define INFERD_HTTP_H

#include "inferd/base.h"
#include "inferd/buf.h"
#include "inferd/status.h"

typedef struct http_server http_server;
typedef struct http_request http_request;

typedef enum http_method {
    HTTP_GET = 1,
    HTTP_POST = 2,
    HTTP_HEAD = 4,
    HTTP_PUT = 8,
    HTTP_DELETE = 16,
    HTTP_PATCH = 32
} http_method;

typedef enum http_access {
    HTTP_OPEN,  // no key needed (health)
    HTTP_KEYED, // a key when keys are configured; without keys the listener is loopback only
    HTTP_WATCH, // as HTTP_KEYED, and a key of an administrator is good, too: tenant -1
    HTTP_ADMIN  // a key of an administrator, also without other keys; none where all are trusted
} http_access;

/* What a key is worth on a route of HTTP_ADMIN. */
typedef enum http_admin {
    HTTP_ADMIN_YES,
    HTTP_ADMIN_NO_KEYS, // there are no such keys: nobody may
    HTTP_ADMIN_TENANT,  // a good key, of somebody who may not
    HTTP_ADMIN_UNKNOWN  // no key, or nobody's
} http_admin;

typedef struct http_route {
    /* The raw target without query.  One segment may be "*": it stands for any, decoded.  "**" at
     * the end stands for one or more. */
    const char *path;
    unsigned methods; // of http_method; HEAD is answered for every GET
    http_access access;
    bool json_body;   // POST, PUT, PATCH: needs application/json (absent type is accepted), may be
                      // large
    bool admits_work; // refused with 503 while draining or when the daemon is overloaded
    void (*handle)(void *ctx, http_request *rq);
} http_route;

typedef struct http_limits {    // named in the configuration's "limits"; defaults here
    uint32_t connections_max;   // 10,240
    uint32_t header_bytes_max;  // 16 KiB; a connection's buffer is somewhat larger
    uint64_t body_bytes_max;    // 4 MiB
    uint64_t bodies_bytes_max;  // all bodies being held; 256 MiB
    uint32_t header_timeout_ms; // first byte to last header; 10,000
    uint32_t body_timeout_ms;   // headers to end of body; 30,000
    uint32_t idle_timeout_s;    // keep-alive; 75
    uint32_t send_stall_ms;     // a stream whose client takes nothing; 30,000
    uint32_t stream_soft_bytes; // unsent bytes of a stream: pause its sequence; 64 KiB
    uint32_t stream_hard_bytes; // cut it; 256 KiB
    uint32_t heartbeat_ms;      // `: ping` on a quiet stream; 15,000
} http_limits;
extern const http_limits http_limits_default;

typedef struct http_options {
    const char *listen; // "127.0.0.1:8080", "[::1]:0", "unix:/run/inferd.sock"
    http_limits limits;
    const http_route *routes; // [n_routes] borrowed for life
    size_t n_routes;
    /* Key -> tenant: the index of the tenant, or -1.  Called once per request to a keyed route with
     * the bearer token (n = 0: none given).  Constant time in the key's bytes.  NULL: there are no
     * keys, every request is served with tenant -1, and on TCP only a loopback `Host` and `Origin`
     * are (a web page must not reach a keyless daemon). */
    int (*tenant_of_key)(void *ctx, bytes key);
    /* The same for routes of HTTP_ADMIN.  NULL: nobody may. */
    http_admin (*admin_of_key)(void *ctx, bytes key);
    /* Whoever can connect may do everything, but not with a key of HTTP_ADMIN_TENANT: for a socket
     * file of one owner. */
    bool trusted;
    unsigned unix_mode; // of a socket file; 0: 0660
    /* True: new work of this tenant (-1: there are no keys) is refused with 503 server_overloaded,
     * before its body is read. */
    bool (*overloaded)(void *ctx, int tenant);
    /* One finished exchange, for log and metrics: status, times, bytes.  rq->route is NULL when it
     * was refused before a route was known. */
    void (*finished)(void *ctx, const http_request *rq);
    uint64_t (*now_us)(void *ctx); // the clock of all deadlines; NULL: clock_now_us
    void *ctx;
} http_options;

/* Binds and listens; `loop` is a uv_loop_t (void here: uv.h stays in http.c, loop.c and main). */
inferd_status http_open(const http_options *options, void *loop, http_server **out,
                        inferd_err *err);
const char *http_address(const http_server *s); // "127.0.0.1:41233" or "unix:/path"
bool http_is_loopback(const char *listen);
/* Is this an address http_open can take?  keyless: it must be loopback.  The caller says what it is
 * the address of. */
inferd_status http_check_listen(const char *listen, bool keyless, inferd_err *err);
/* From now on routes with admits_work answer 503 shutting_down, and each answer closes its
 * connection.  Requests for them whose body is not complete are answered at once.  Connections are
 * still accepted, so that a load balancer is told and not reset.  Not from inside route.handle. */
void http_drain(http_server *s);
/* No exchange is open, and no client has sent or is being sent anything: a moment to end. */
bool http_is_quiet(const http_server *s);
uint32_t http_n_open(const http_server *s); // exchanges not finished
/* Of them, those that arrived before `us` and whose request is complete. */
uint32_t http_n_due(const http_server *s, uint64_t us);
/* Cut what is left, wait for http_work under way and free everything.  Runs the loop to do so, so
 * it is called outside of uv_run. */
void http_close(http_server *s); // accepts NULL

/* -- what a handler may ask -- */
struct http_request {
    /* set by the transport, read-only for handlers */
    char id[40]; // x-request-id, "req-..." with 128 random bits
    http_method method;
    const http_route *route;
    char tail[256]; // what "*" matched, percent-decoded; "" otherwise; at most 255 bytes, else 404
    bytes body;     // complete; freed with the request
    int tenant;     // index, or -1 without keys
    uint64_t arrival_us;
    uint64_t deadline_us; // client's timeout hint (x-stainless-timeout...), 0 = none
    int status;           // answered status; 499 when the client left first
    uint64_t n_sent;      // body bytes handed to the socket
    /* set by the handler */
    void *user; // its state
    /* The exchange ended before its answer was complete; user is the handler's to free.  Called at
     * most once, never from inside route.handle, never after _end, _abort or _answer, and not while
     * http_work is under way: then `done` is told instead, and is the last to hear of rq. */
    void (*on_gone)(http_request *rq);
    /* Crossed stream_soft_bytes up / came half down again.  `true` is told from inside
     * http_stream_write. */
    void (*on_flow)(http_request *rq, bool paused);
    char *headers;   // "Name: value\n" lines for its answer, or NULL; freed with the request
    bool no_timeout; // its client may take nothing for longer than send_stall_ms
};

/* Answer whole.  `body` is taken (its memory moves); content_type is static; extra_headers is NULL
 * or "Name: value\n" lines. */
void http_answer(http_request *rq, int status, const char *content_type, buf *body,
                 const char *extra_headers);
/* {"error":{message,type,param,code}} with the right extra headers (WWW-Authenticate, Retry-After,
 * Allow, x-should-retry).  `retry_after_s` is told as it is.  0 = none.  A 429 or 503 without one,
 * or with one above 60, says "x-should-retry: false": waiting does not help, or clients do not wait
 * so long. */
void http_answer_error(http_request *rq, int status, const char *type, const char *code,
                       const char *param, const char *message, unsigned retry_after_s);

/* A 200 text/event-stream.  Writes copy; each whole event must be one call.  False: the stream is
 * gone or was cut (on_gone runs or has run). */
bool http_stream_begin(http_request *rq);
/* A client that kept up (below stream_soft_bytes) may be told eight times stream_hard_bytes in one
 * write: what a step says may be long. */
bool http_stream_write(http_request *rq, const void *p, size_t n);
void http_stream_end(http_request *rq); // flush, then finish
void http_stream_abort(
    http_request *rq); // flush, then break the chunked body: the client sees a cut
/* After a round of writes: hand all of it to the sockets (resumes are batched). */
void http_flush(http_server *s);
http_server *http_server_of(http_request *rq);
/* The value of `name` in the query as it was sent, "" for a name alone, NULL when it is not there.
 * Only inside route.handle. */
const char *http_query(http_request *rq, const char *name);

/* Run `work` on a worker thread (1 MiB stack or more), then `done` on the front.  `rq` stays
 * allocated until done has returned, even when its client leaves (then rq_gone is true in done). */
bool http_work(http_request *rq, void (*work)(void *ctx), void (*done)(void *ctx, bool rq_gone),
               void *ctx);

/* The value of a header of the request, p NULL when it is not there, and the bytes of its client's
 * IP address, n 0 on a socket file.  Only inside route.handle. */
bytes http_header(http_request *rq, const char *name);
bytes http_client_address(http_request *rq);
/* Headers of every answer of the servers whose http_options.ctx is server_ctx, streams and errors
 * too: "Name: value\n" lines into `out`.  NULL: none. */
enum { HTTP_HOOK_BYTES = 512 };
typedef void http_reply_lines(void *ctx, const http_request *rq, char out[HTTP_HOOK_BYTES]);
void http_reply_hook(http_reply_lines *write, void *ctx, const void *server_ctx);

/* Append s as a JSON string with its quotes; invalid UTF-8 becomes U+FFFD. */
void json_add_string(buf *out, const char *s, size_t n);
bool json_is_utf8(const char *s, size_t n); // all of it is whole characters

#endif
