/* http.h - the transport: one event loop that drives libmicrohttpd, and what libmicrohttpd lacks:
 * the header guard, routing on the raw target, keys, limits, absolute deadlines, the disconnect
 * watcher, bounded streams and draining.
 *
 * One exchange:
 *     headers complete -> guard (framing, host, route, key, overload, size); a refusal is a JSON
 *                         error, and the connection closes
 *     body complete    -> route.handle(rq); rq belongs to the transport
 *     answer           -> http_answer, or http_stream_begin, _write ..., then _end or _abort
 *     closed           -> rq is freed.  If the answer is not complete by then, rq->on_gone runs
 *                         first (client left, stalled or over the hard limit; deadline passed).
 *
 * Handlers never block: long work goes to http_work.
 * Thread: front, all of it. */
#ifndef INFERD_HTTP_H
#define INFERD_HTTP_H

#include "http_limits.h"
#include "inferd/base.h"
#include "inferd/buf.h"
#include "inferd/status.h"

enum { HTTP_HEADER_LINE_BYTES = 512 }; // more than a line of http_request.headers has

typedef struct http_server http_server;
typedef struct http_request http_request;

typedef enum http_method {
    HTTP_GET = 1,
    HTTP_POST = 2,
    HTTP_HEAD = 4,
    HTTP_PUT = 8,
    HTTP_DELETE = 16,
    HTTP_PATCH = 32,
    HTTP_OPTIONS = 64 // only a browser's question before a request (CORS); no route has it
} http_method;

typedef enum http_access {
    HTTP_OPEN,  // no key needed (health)
    HTTP_KEYED, // a tenant's key if keys are configured; without keys the listener is loopback only
    HTTP_WATCH, // as HTTP_KEYED; an administrator's key is accepted too: tenant -1
    HTTP_ADMIN  // an administrator's key, even if no tenant has keys; none on a trusted server
} http_access;

/* The rights of a key on a route of HTTP_ADMIN. */
typedef enum http_admin {
    HTTP_ADMIN_YES,
    HTTP_ADMIN_NO_KEYS, // no administrator keys are configured: no access
    HTTP_ADMIN_TENANT,  // a valid key of a tenant: no access
    HTTP_ADMIN_UNKNOWN  // no key, or an unknown key
} http_admin;

/* What an error answer says; strings are borrowed. */
typedef struct http_error {
    int status;
    const char *type, *code, *param, *message; // code, param: NULL = null
    const char *request_id;
} http_error;

/* Writes the body of an error answer; returns the status that is sent.  It allocates nothing but
 * through `out`. */
typedef int http_error_writer(buf *out, const http_error *e);

typedef struct http_route {
    /* The raw target, no query.  A segment "*" matches any, decoded; a final "**" one or more. */
    const char *path;
    unsigned methods; // of http_method; HEAD is answered for every GET
    http_access access;
    bool json_body;   // POST, PUT, PATCH: needs application/json or no type, may be large
    bool admits_work; // refused with 503 while draining or when the daemon is overloaded
    void (*handle)(void *ctx, http_request *rq);
    /* For errors of this route, also those that the transport makes before the handler runs, and
     * for requests to this path or one below it that reach no route.  NULL: {"error":{...}}. */
    http_error_writer *write_error;
} http_route;

enum { HTTP_LINES_BYTES = 512, HTTP_ORIGIN_BYTES = 255 };

typedef struct http_options {
    const char *listen; // "127.0.0.1:8080", "[::1]:0", "unix:/run/inferd.sock"
    /* A listening socket that a service manager passed, used instead of `listen`; 0: none.  Taken
     * by http_open in any case.  It must satisfy http_check_listen as `listen` does, and its socket
     * file is not removed.  It changes http_drain. */
    int fd_passed;
    http_limits limits;
    const http_route *routes; // [n_routes] borrowed for life
    size_t n_routes;
    /* Key -> tenant: the index of the tenant, or -1.  Called once per request to a keyed route with
     * the key (n = 0: none given): the bearer token, or without one the value of x-api-key.
     * Constant time in the key's bytes.  NULL: there are no keys, every request has tenant -1, and
     * on TCP only a loopback `Host` is accepted, and only an `Origin` of allows_origin (a web page
     * must not reach a keyless daemon). */
    int (*tenant_of_key)(void *ctx, bytes key);
    /* The same for routes of HTTP_ADMIN.  NULL: as HTTP_ADMIN_NO_KEYS for every key. */
    http_admin (*admin_of_key)(void *ctx, bytes key);
    /* May web pages of this origin ("https://chat.example") use the server?  `loopback`: it is this
     * machine.  Such pages can read answers (CORS).  Called for each request with an Origin of at
     * most HTTP_ORIGIN_BYTES; one that is longer may not.  NULL: those of this machine. */
    bool (*allows_origin)(void *ctx, bytes origin, bool loopback);
    /* For a socket file with one owner: every client that can connect may use routes of HTTP_ADMIN,
     * except with a key of HTTP_ADMIN_TENANT. */
    bool trusted;
    unsigned unix_mode; // of a socket file; 0: 0660
    /* Not 0: new work of this tenant (-1: no keys) gets 503 server_overloaded with this
     * Retry-After, its body unread. */
    unsigned (*overloaded_s)(void *ctx, int tenant);
    /* One finished exchange, for log and metrics.  rq->route is NULL if it was not known yet. */
    void (*finished)(void *ctx, const http_request *rq);
    /* Writes headers that every answer carries, also a stream or an error, as "Name: value\n" lines
     * into `out`, which is "" before.  NULL: none. */
    void (*reply_lines)(void *ctx, const http_request *rq, char out[HTTP_LINES_BYTES]);
    uint64_t (*now_us)(void *ctx); // the clock of all deadlines; NULL: clock_now_us
    void *ctx;
} http_options;

/* Binds and listens; `loop` is a uv_loop_t (void here, so that handlers need no uv.h). */
inferd_status http_open(const http_options *options, void *loop, http_server **out,
                        inferd_err *err);
const char *http_address(const http_server *s); // "127.0.0.1:41233" or "unix:/path"
bool http_is_loopback(const char *listen);
/* Can http_open take this address? keyless: it must be loopback.  The error does not name the
 * option that holds the address: the caller adds that. */
inferd_status http_check_listen(const char *listen, bool keyless, inferd_err *err);
/* Could http_open take it now?  A port is bound and freed at once, a socket file only looked at:
 * nothing changes.  INFERD_EBUSY: another process has it. */
inferd_status http_try_listen(const char *listen, inferd_err *err);
/* From now on routes with admits_work answer 503 shutting_down, and each answer closes its
 * connection.  Their requests with an incomplete body are answered at once.  Connections are still
 * accepted: a load balancer gets an answer, not a reset.  Not from inside route.handle.
 *
 * With a passed socket (fd_passed) it stops accepting instead: new connections wait in the queue of
 * the socket for the next process.  A connection that was accepted before may send one more
 * request, also for work, and the server is not quiet while a connection is open. */
void http_drain(http_server *s);
bool http_is_passed(const http_server *s); // it has a passed socket
/* No exchange is open and no bytes are in transit in either direction: the server can stop. */
bool http_is_quiet(const http_server *s);
uint32_t http_n_open(const http_server *s); // exchanges not finished
/* Open exchanges that arrived before `us` with a complete request. */
uint32_t http_n_due(const http_server *s, uint64_t us);
/* Cuts exchanges, waits for http_work, frees all.  It runs the loop: call it outside of uv_run. */
void http_close(http_server *s); // accepts NULL

/* -- for handlers -- */
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
    /* The exchange ended before its answer was complete; the handler frees `user`.  Called at most
     * once, never from inside route.handle, never after _end, _abort or _answer.  While http_work
     * is running it is not called: `done` gets rq_gone instead and is the last user of rq. */
    void (*on_gone)(http_request *rq);
    /* Unsent bytes rose above stream_soft_bytes (true), or fell below half of that (false).  `true`
     * is passed from inside http_stream_write. */
    void (*on_reader)(http_request *rq, bool paused);
    char *headers;   // "Name: value\n" lines for its answer, or NULL; freed with the request
    bool no_timeout; // the client may read nothing for longer than send_stall_ms
};

/* Sends a whole answer.  `body` is taken (its memory moves); content_type is static; extra_headers
 * is NULL or "Name: value\n" lines. */
void http_answer(http_request *rq, int status, const char *content_type, buf *body,
                 const char *extra_headers);
/* {"error":{message,type,param,code}} with the headers of its status (WWW-Authenticate,
 * Retry-After, Allow, x-should-retry).  `retry_after_s` is sent unchanged; 0 = none.  A 429 or 503
 * without one, or with more than 60, gets "x-should-retry: false": either waiting does not help, or
 * clients do not wait that long. */
void http_answer_error(http_request *rq, int status, const char *type, const char *code,
                       const char *param, const char *message, unsigned retry_after_s);

/* A 200 text/event-stream.  Writes copy, one call per event.  False: cut; on_gone runs, or has.
 * HEAD has no body, so its stream does not begin (false): http_answer answers it. */
bool http_stream_begin(http_request *rq);
/* More unsent bytes than stream_hard_bytes cut the stream.  Writes of more than stream_soft_bytes
 * do not count: an event may be as long as the answer.  They are bounded on their own. */
enum { HTTP_STREAM_LONG_BYTES_MAX = 64 * 1024 * 1024 }; // unsent, of such writes
bool http_stream_write(http_request *rq, const void *p, size_t n);
void http_stream_end(http_request *rq); // flush, then finish
/* Flush, then break the chunked body: the client sees a cut. */
void http_stream_abort(http_request *rq);
/* After a round of writes: hands all of it to the sockets (resumes are batched). */
void http_flush(http_server *s);
/* The value of `name` in the query as it was sent, "" for a name without a value, NULL if it is
 * absent.  Only inside route.handle. */
const char *http_query(http_request *rq, const char *name);

/* Runs `work` on a worker thread (1 MiB stack or more), then `done` on the front.  `rq` stays
 * allocated until `done` has returned, even if its client leaves (then rq_gone is true). */
bool http_work(http_request *rq, void (*work)(void *ctx), void (*done)(void *ctx, bool rq_gone),
               void *ctx);

/* It came over a trusted server (http_options.trusted). */
bool http_is_trusted(http_request *rq);

/* The value of a header of the request; p NULL: absent.  Only inside route.handle. */
bytes http_header(http_request *rq, const char *name);
/* The values of all headers of that name in the order of the request, the first n_max into `out`.
 * Returns their number, which may be more.  As http_header. */
uint32_t http_headers(http_request *rq, const char *name, bytes *out, uint32_t n_max);

#endif
