/* http_internal.h - shared by the files of the transport: server, connections, exchanges.
 *
 *     http.c         the loop: when the library runs; the life of connections and exchanges
 *     http_inlet.c   the bytes that the library may read
 *     http_judge.c   validates heads, finds the ends of messages
 *     http_guard.c   checks of a request
 *     http_body.c    the access handler: guard, body, handing over to the route
 *     http_reply.c   whole answers and error bodies
 *     http_stream.c  answers that grow
 *     http_listen.c  sockets, addresses, accepting
 *     http_watch.c   leaving clients, deadlines, lingering senders
 *
 * States of an exchange:
 *
 *     HEADERS -> BODY                       request line seen; guard passed
 *     BODY    -> HANDLING                   body complete, route.handle is running
 *     HANDLING -> WAITING                   no answer yet: the connection is suspended
 *     HANDLING, WAITING -> REPLYING         an answer or a stream was passed to the library
 *     BODY -> REFUSED -> REPLYING           refused, the rest of its body is dropped first
 *     any     -> closed                     on_completed: freed, or kept for http_work
 *
 * Always: `suspended` is true exactly while the library has the connection on its suspended list
 * and no resume was requested; resuming it twice, or while it runs, would corrupt that list.
 * The library frees nothing in the middle of our calls: connections are freed inside MHD_run only.
 * Thread: front. */
#ifndef INFERD_HTTP_INTERNAL_H
#define INFERD_HTTP_INTERNAL_H

#include <microhttpd.h>
#include <sys/socket.h>
#include <uv.h>

#include "http.h"
#include "http_deadline.h"
#include "http_guard.h"
#include "http_judge.h"
#include "inferd/buf.h"
#include "inferd/clock.h"
#include "inferd/list.h"

enum {
    HTTP_SPARE_CONNECTIONS = 64, // above connections_max, to answer 503 there
    HTTP_LINGER_MAX = 256,       // refused senders with bytes left to read
    HTTP_RANDOM_BYTES = 1024,
    HTTP_SCRATCH_BYTES = 8 * 1024, // of one read while a head is incomplete
    HTTP_UNIX_MODE = 0660          // of a socket file
};

typedef struct exchange exchange;

typedef enum inlet_phase {
    INLET_HEAD,    // the head is not complete
    INLET_MESSAGE, // the head is valid: it and the body are handed over
    INLET_OVER     // nothing more is read
} inlet_phase;

/* Between a socket and the library. */
typedef struct inlet {
    inlet_phase phase;
    head_judge head;
    chunk_judge chunks;
    buf held;           // owned: bytes read and not handed over, from `at` on
    size_t at, n_seen;  // n_seen: checked by `head`
    size_t head_left;   // of a message: bytes of its head to hand over
    size_t room_behind; // bytes of its body that may follow them in one read
    uint64_t body_left; // remaining bytes of a body with a length
    bool chunked;       // the body is in chunks instead
    bool passed;        // a head was handed over, and the library has not called back for it
    bool dry;           // the last read took all bytes that had arrived
    bool refused;       // with `refusal`, which is answered at the library's next read
    guard_refusal refusal;
    list_node again; // in s->again, until the end of this run
} inlet;

typedef struct conn {
    http_server *s;
    struct MHD_Connection *mhd;
    exchange *x;     // the request being read or answered, or NULL
    list_node ended; // in s->ended from the end of its last exchange to the end of that run
    deadline due;    // header, body, idle or stall
    inlet in;
    int fd;
    uint32_t slot, slot_use; // its key in the watch set
    bool left;               // the client closed its side
    bool cut;                // we shut the socket down
    bool over_limit;         // above the limit: accepted only to answer 503
    bool linger;             // refused while the client may still be sending
} conn;

typedef enum exchange_phase {
    EXCHANGE_HEADERS,
    EXCHANGE_BODY,
    EXCHANGE_REFUSED,
    EXCHANGE_HANDLING,
    EXCHANGE_WAITING,
    EXCHANGE_REPLYING
} exchange_phase;

/* Bytes to send: [head, n) of p, moved to the front when that is cheap. */
typedef struct out_bytes {
    char *p; // owned
    size_t head, n, capacity;
} out_bytes;

struct exchange {
    http_request rq; // first: a pointer to it is one to the exchange
    http_server *s;
    conn *c;        // NULL after the library is done with it
    list_node link; // in s->exchanges
    exchange_phase phase;
    guard_refusal refusal;              // status 0: none; 204: the answer to a browser's preflight
    http_error_writer *write_error;     // of its path; NULL: the usual form
    deadline beat;                      // of a stream
    char origin[HTTP_ORIGIN_BYTES + 1]; // of a web page that may read the answer; "": none

    buf body;
    bool body_expected, chunked;
    bool collects;       // false: body bytes are dropped
    uint64_t bytes_held; // of s->bodies_bytes
    uint64_t n_dropped;

    struct MHD_Response *response; // made, not queued yet
    buf answer;                    // a long answer, sent in pieces; owned
    size_t answer_at;

    bool http_10; // no chunks: a stream ends with the connection
    bool streaming, ending, aborting;
    bool paused;       // on_reader(true) was called
    size_t long_bytes; // unsent, of long pieces; at most the unsent bytes
    out_bytes out;

    bool admitted; // counted in s->n_open
    bool suspended;
    bool answered;  // complete: on_gone is never called after this
    bool gone;      // cut off, for any reason
    bool gone_told; // on_gone or a `done` was notified
    bool raw;       // answered past the library (reply_raw)
    uint32_t n_work;
};

typedef struct watch_slot {
    conn *c; // NULL: free
    uint32_t slot_use;
    uint32_t next_free;
} watch_slot;

/* A refused client that still sends: its socket stays open for reading, because closing a socket
 * with unread bytes causes a reset that could overtake our answer. */
typedef struct sender {
    http_server *s;
    deadline due;
    int fd;
    uint32_t slot;
    uint64_t n_read;
} sender;

struct http_server {
    http_limits limits;
    const http_route *routes;
    size_t n_routes;
    int (*tenant_of_key)(void *ctx, bytes key);
    http_admin (*admin_of_key)(void *ctx, bytes key);
    bool (*allows_origin)(void *ctx, bytes origin, bool loopback);
    unsigned (*overloaded_s)(void *ctx, int tenant);
    void (*finished)(void *ctx, const http_request *rq);
    void (*reply_lines)(void *ctx, const http_request *rq, char out[HTTP_LINES_BYTES]);
    void *ctx;

    uv_loop_t *loop;
    struct MHD_Daemon *daemon;
    uv_poll_t poll_mhd, poll_watch, poll_listen;
    uv_timer_t timer_mhd, timer_due;
    uv_prepare_t prepare;
    uint32_t n_handles; // not yet closed
    bool must_run;      // something was resumed, queued or cut since the last MHD_run
    bool in_run;
    uint32_t n_idle_runs; // consecutive runs that the library asked for and that did nothing
    uint64_t n_calls;     // callbacks of the library: its progress
    uint64_t (*now_us)(void *ctx);
    uint64_t timer_due_at_us;

    char address[128];
    char *unix_path; // owned; NULL on TCP, or for a socket that was passed
    unsigned unix_mode;
    uint64_t unix_inode; // of our socket file: no other file is removed
    int fd_listen;       // -1 once closing
    int fd_reserve;      // closed for a moment when descriptors run out
    bool accept_paused;
    uint64_t accept_told_us; // when a lack of descriptors was last logged
    bool draining, closing, keyless, trusted;
    bool passed;  // fd_listen was passed by a service manager
    bool is_unix; // it is a socket file
    deadline accept_due;

    deadlines due;
    uint32_t n_conns, n_cut; // open sockets; of these, shut down and about to be closed
    uint32_t conns_max;      // connections_max, or fewer if descriptors are short
    watch_slot *slots;       // [n_slots]
    uint32_t n_slots, first_free;
    int fd_watch;
    sender *lingers[HTTP_LINGER_MAX];
    uint32_t n_lingers;

    list_node exchanges;
    list_node ended; // connections that the library closed in this run and may not have freed
    list_node again; // connections to read again after this run
    conn **by_fd;    // [n_by_fd] owned; NULL: not a connection of ours
    uint32_t n_by_fd;
    char scratch[HTTP_SCRATCH_BYTES];
    uint32_t n_open;
    uint32_t n_works;      // running http_work of all exchanges
    uint64_t bodies_bytes; // reserved by all exchanges

    unsigned char random[HTTP_RANDOM_BYTES];
    uint32_t n_random;
};

static inline exchange *exchange_of(http_request *rq) {
    return (exchange *)(void *)rq;
}

/* -- http.c -- */
static inline uint64_t server_now_us(const http_server *s) {
    return s->now_us == NULL ? clock_now_us() : s->now_us(s->ctx);
}
/* Requests a run of the library before the loop sleeps again. */
static inline void server_must_run(http_server *s) {
    s->must_run = true;
}
conn *conn_of(struct MHD_Connection *mhd); // NULL: there was no memory for it
void server_random(http_server *s, void *out, size_t n);
void exchange_init(exchange *x, conn *c); // adds it to no list
void exchange_resume(exchange *x);        // if suspended
void exchange_suspend(exchange *x);       // only from inside a callback of the library
/* The client will not get (more of) an answer: notifies the handler, once. */
void exchange_gone(exchange *x);
void exchange_free(exchange *x);

/* -- http_body.c -- */
enum MHD_Result http_on_request(void *cls, struct MHD_Connection *mhd, const char *url,
                                const char *method, const char *version, const char *upload,
                                size_t *upload_size, void **con_cls);
void body_release(exchange *x); // its bytes no longer count
/* Answers requests for work with an incomplete body: the server drains.  Between two runs. */
void body_refuse_work(http_server *s);

/* -- http_inlet.c -- */
void inlet_run(http_server *s); // MHD_run
bool inlet_open(conn *c);       // false: no memory
void inlet_close(conn *c);
bool inlet_holds(const conn *c);     // bytes that the library has not read
bool inlet_has_begun(const conn *c); // a part of a head has arrived
/* Answers at once; the library then reads the end of the stream. */
void inlet_refuse(conn *c, const guard_refusal *why);
/* The same between two runs, for a request with an incomplete body; then inlet_read_again. */
void inlet_refuse_and_read(conn *c, const guard_refusal *why);
void inlet_too_late(conn *c);          // 408; a client that sent nothing is only cut
void inlet_next(conn *c);              // its exchange ended and the connection is kept
void inlet_read_again(http_server *s); // after a run

/* -- http_reply.c -- */
/* Makes x->response out of x->refusal. */
void reply_refusal(exchange *x);
/* Hands x->response to the library. */
enum MHD_Result reply_queue(exchange *x, struct MHD_Connection *mhd);
bool reply_headers(exchange *x, struct MHD_Response *r, const char *content_type,
                   const char *extra_headers);
/* Sends the refusal past the library, when the library cannot answer at this point or not in our
 * form: x has no answer yet, and nothing more is read or sent for it. */
void reply_raw(exchange *x, const guard_refusal *why);
extern const guard_refusal reply_no_memory, reply_half_closed, reply_too_late;

/* -- http_listen.c -- */
inferd_status listen_open(http_server *s, const char *listen, inferd_err *err);
inferd_status listen_take(http_server *s, int fd, inferd_err *err); // one that was passed
void listen_some(http_server *s);                                   // the socket is readable
void listen_pause(http_server *s, bool wait);
void listen_resume(http_server *s);
void listen_close(http_server *s);
inferd_status listen_reserve_fds(http_server *s, inferd_err *err);

/* -- http_watch.c -- */
bool watch_add(conn *c);
void watch_remove(conn *c);
void watch_events(http_server *s);
void watch_due(http_server *s); // handles expired deadlines; starts the timer for the next
void watch_arm(http_server *s, deadline *d, deadline_kind kind);
/* Sets the connection's only deadline; a client that has left gets less time to receive. */
void watch_conn(conn *c, deadline_kind kind);
void watch_cut(conn *c); // shut the socket down; the library notices
/* Cuts the connection that has been idle for longest; false: none is idle. */
bool watch_evict(http_server *s);
void linger_begin(conn *c);
void linger_end(sender *l);

#endif
