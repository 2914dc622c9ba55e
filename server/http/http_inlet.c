/* http_inlet.c - the bytes that the library may read.
 *
 * libmicrohttpd 0.9.75 reads a socket by recv(), validates the bytes by itself, and answers errors
 * with two header blocks and a page of HTML; no option changes either.  So recv() is defined here:
 * the program's own definition takes precedence over that of libc, shared or static.  While a
 * server runs its library, a recv() of one of its connections is answered by this file:
 *
 *   socket -> held -> head_look, guard_framing -> head     -> library
 *                     chunks_look, or a length -> its body -> library
 *
 * A head is handed over only when it is complete and valid, and never more than one message: the
 * next one stays here until the answer is sent.  An error is answered here, whole and at once
 * (reply_raw); the library then reads the end of the stream and closes.  Cookies, chunk extensions
 * and trailers are not used and are left out: the library would keep copies of cookies.
 *
 * When a read is shorter than the library's buffer, the library assumes that no more bytes have
 * arrived, and waits for the next event of the kernel.  After a read that this file cut short there
 * may be no event, so `again` makes the connection read once more: it is suspended and resumed,
 * which the library treats as readable.
 *
 * The library keeps its records of headers and arguments in the memory that its read buffer uses
 * too.  Body bytes behind a head could leave no room for them, and their number depends on packets.
 * So the read that ends a head has as many body bytes as the head leaves of header_bytes_max: none
 * behind the longest head, all of them in most requests.
 *
 * Always: a connection between two messages holds less than one head and one scratch of bytes.  The
 * library has no more than header_bytes_max bytes of a message before it has parsed the head.
 * Thread: front.  recv() on other threads, and outside of the library, is the kernel's. */
#include <errno.h>
#include <string.h>

#include "http_internal.h"

static _Thread_local http_server *running; // the server with its library running in this thread

void inlet_run(http_server *s) {
    running = s;
    MHD_run(s->daemon);
    running = NULL;
}

bool inlet_open(conn *c) {
    http_server *s = c->s;
    uint32_t fd = (uint32_t)c->fd;
    if (fd >= s->n_by_fd) {
        uint32_t n = s->n_by_fd == 0 ? 64 : s->n_by_fd;
        while (n <= fd) n *= 2;
        conn **grown = realloc(s->by_fd, n * sizeof grown[0]);
        if (grown == NULL) return false;
        memset(grown + s->n_by_fd, 0, (n - s->n_by_fd) * sizeof grown[0]);
        s->by_fd = grown;
        s->n_by_fd = n;
    }
    buf_init(&c->in.held, 0);
    head_init(&c->in.head, s->limits.header_bytes_max);
    list_node_init(&c->in.again);
    c->in.dry = true;
    s->by_fd[fd] = c;
    return true;
}

void inlet_close(conn *c) {
    http_server *s = c->s;
    if ((uint32_t)c->fd < s->n_by_fd && s->by_fd[c->fd] == c) s->by_fd[c->fd] = NULL;
    list_remove(&c->in.again);
    buf_deinit(&c->in.held);
}

bool inlet_has_begun(const conn *c) {
    return c->in.phase == INLET_HEAD && c->in.head.n > 0;
}

/* -- reading -- */

static ssize_t from_socket(conn *c, char *p, size_t n) {
    ssize_t got = recvfrom(c->fd, p, n, 0, NULL, NULL);
    c->in.dry = got < (ssize_t)n;
    return got;
}

static size_t n_held(const inlet *in) {
    return in->held.n - in->at;
}

bool inlet_holds(const conn *c) {
    return n_held(&c->in) > 0;
}

static size_t take_held(inlet *in, char *p, size_t n) {
    n = size_min(n, n_held(in));
    if (n > 0) memcpy(p, in->held.p + in->at, n);
    in->at += n;
    return n;
}

/* Drops the bytes that were handed over; a quiet connection uses no memory. */
static void compact(inlet *in) {
    size_t n = n_held(in);
    if (n == 0) {
        buf_deinit(&in->held);
    } else if (in->at > 0) {
        memmove(in->held.p, in->held.p + in->at, n);
        in->held.n = n;
    }
    in->at = 0;
}

void inlet_refuse(conn *c, const guard_refusal *why) {
    http_server *s = c->s;
    exchange fresh, *x = c->x;
    if (x == NULL) { // of a request that the library never saw
        x = &fresh;
        exchange_init(x, c);
        bytes head = {"", 0};
        if (inlet_holds(c)) head = (bytes){c->in.held.p + c->in.at, n_held(&c->in)};
        if (head.n >= 5 && memcmp(head.p, "HEAD ", 5) == 0) x->rq.method = HTTP_HEAD;
        x->write_error = guard_error_writer(s->routes, s->n_routes, head_path(head));
    }
    reply_raw(x, why);
    if (x == &fresh && s->finished != NULL) s->finished(s->ctx, &x->rq);
    c->linger = true;
    c->in.phase = INLET_OVER;
    c->in.at = c->in.held.n;
    compact(&c->in);
}

/* -- heads -- */

/* The head became shorter. */
static size_t cut_head(inlet *in, size_t n, size_t kept) {
    char *head = in->held.p + in->at;
    memmove(head + kept, head + n, in->held.n - in->at - n);
    in->held.n -= n - kept;
    return kept;
}

/* The head is in->held from in->at on, n bytes.  `Expect` is dropped if there is no body: the
 * library would send `100 Continue` all the same, and wait for ever if the client reads nothing. */
static bool pass_head(conn *c, size_t n) {
    inlet *in = &c->in;
    bytes head = {in->held.p + in->at, n}, name, value, fields = head_fields(head);
    guard_refusal why;
    guard g;
    guard_init(&g, "", "", head_version(&in->head));
    while (head_next(&fields, &name, &value)) guard_header(&g, name, value);
    if (!guard_framing(&g, &why)) {
        inlet_refuse(c, &why);
        return false;
    }
    n = cut_head(in, n, head_drop(in->held.p + in->at, n, "Cookie"));
    if (!g.chunked && g.body_bytes == 0)
        n = cut_head(in, n, head_drop(in->held.p + in->at, n, "Expect"));
    in->head_left = n;
    in->room_behind = in->head.bytes_max - n;
    in->chunked = g.chunked;
    in->body_left = g.body_bytes;
    if (g.chunked) chunks_init(&in->chunks, c->s->limits.body_bytes_max);
    in->passed = true;
    in->phase = INLET_MESSAGE;
    return true;
}

/* JUDGE_DONE: it can be handed over. */
static judge_verdict look_at_head(conn *c) {
    inlet *in = &c->in;
    guard_refusal why;
    size_t used;
    judge_verdict v =
        head_look(&in->head, in->held.p + in->n_seen, in->held.n - in->n_seen, &used, &why);
    in->n_seen += used;
    if (in->head.n_empty_bytes > 0 && in->head.n > 0) { // empty lines in front of it
        in->at = in->n_seen - in->head.n;
        in->head.n_empty_bytes = 0;
    }
    if (v == JUDGE_BAD) inlet_refuse(c, &why);
    if (v == JUDGE_DONE && !pass_head(c, in->head.n)) v = JUDGE_BAD;
    return v;
}

/* 1: a head can be handed over.  Otherwise the result of recv(). */
static ssize_t read_head(conn *c) {
    inlet *in = &c->in;
    http_server *s = c->s;
    if (c->x != NULL) { // its answer is not sent: inlet_next reads these bytes later
        in->dry = false;
        errno = EAGAIN;
        return -1;
    }
    for (;;) {
        judge_verdict v = in->n_seen < in->held.n ? look_at_head(c) : JUDGE_MORE;
        if (v == JUDGE_BAD) return 0;
        if (v == JUDGE_DONE) return 1;
        if (in->head.n > 0 && c->due.kind == DEADLINE_IDLE) watch_conn(c, DEADLINE_HEADER);
        ssize_t got = from_socket(c, s->scratch, sizeof s->scratch);
        if (got <= 0) return got;
        buf_add(&in->held, s->scratch, (size_t)got);
        if (!in->held.failed) continue;
        inlet_refuse(c, &reply_no_memory);
        return 0;
    }
}

/* -- bodies -- */

static ssize_t read_plain(conn *c, char *p, size_t n) {
    inlet *in = &c->in;
    if (n > in->body_left) n = (size_t)in->body_left;
    ssize_t got = n_held(in) > 0 ? (ssize_t)take_held(in, p, n) : from_socket(c, p, n);
    if (got > 0) in->body_left -= (uint64_t)got;
    return got;
}

/* 0 with in->refused: the rest is invalid. */
static ssize_t read_chunks(conn *c, char *p, size_t n) {
    inlet *in = &c->in;
    size_t used, kept;
    judge_verdict v;
    do {
        bool held = n_held(in) > 0;
        ssize_t got = held ? (ssize_t)size_min(n, n_held(in)) : from_socket(c, p, n);
        if (got <= 0) return got;
        if (held) memcpy(p, in->held.p + in->at, (size_t)got);
        v = chunks_look(&in->chunks, p, (size_t)got, &used, &kept, &in->refusal);
        if (held)
            in->at += used;
        else if (v == JUDGE_DONE) // bytes behind the end belong to the next message
            buf_add(&in->held, p + used, (size_t)got - used);
    } while (v == JUDGE_MORE && kept == 0);
    if (v == JUDGE_BAD) in->refused = true;
    if (v == JUDGE_DONE) in->chunked = false;
    return (ssize_t)kept;
}

static void read_again(conn *c) {
    if (!list_linked(&c->in.again)) list_push_back(&c->s->again, &c->in.again);
}

/* The whole message was handed over.  Bytes behind it are not read if no memory was left. */
static void end_message(inlet *in) {
    in->phase = in->held.failed ? INLET_OVER : INLET_HEAD;
    compact(in);
    in->n_seen = 0;
    head_init(&in->head, in->head.bytes_max);
}

static ssize_t hand_over(conn *c, char *p, size_t n_max) {
    inlet *in = &c->in;
    bool begins = in->head_left > 0;
    size_t n = begins ? size_min(n_max, in->head_left + in->room_behind) : n_max;
    size_t done = take_held(in, p, size_min(n, in->head_left));
    in->head_left -= done;
    while (done < n && !in->refused && (in->chunked || in->body_left > 0)) {
        ssize_t got =
            in->chunked ? read_chunks(c, p + done, n - done) : read_plain(c, p + done, n - done);
        if (got > 0) done += (size_t)got;
        if (got > 0 || in->refused) continue;
        if (done == 0) return got;
        if (got == 0 || errno != EAGAIN) read_again(c); // the end is reported by a read of its own
        return (ssize_t)done;
    }
    if (in->refused && done == 0) {
        inlet_refuse(c, &in->refusal);
        return 0;
    }
    if (in->refused) // the access handler runs first: it may have a better reason
        read_again(c);
    else if (in->head_left == 0 && !in->chunked && in->body_left == 0)
        end_message(in);
    else if (done < n_max) // the library parses the head before it reads more of the body
        read_again(c);
    return (ssize_t)done;
}

static ssize_t inlet_recv(conn *c, char *p, size_t n) {
    inlet *in = &c->in;
    if (in->phase == INLET_OVER || c->cut) return 0;
    if (in->phase == INLET_HEAD) {
        ssize_t got = read_head(c);
        if (got <= 0) return got;
    }
    return hand_over(c, p, n);
}

/* A connection without a conn had no memory for it: it ends. */
ssize_t recv(int fd, void *p, size_t n, int flags) {
    http_server *s = running;
    if (s == NULL || flags != 0) return recvfrom(fd, p, n, flags, NULL, NULL);
    conn *c = (uint32_t)fd < s->n_by_fd ? s->by_fd[fd] : NULL;
    return c == NULL ? 0 : inlet_recv(c, p, n);
}

/* -- reading again -- */

void inlet_refuse_and_read(conn *c, const guard_refusal *why) {
    inlet_refuse(c, why);
    if (c->x != NULL) exchange_gone(c->x);
    watch_conn(c, DEADLINE_LEFT);
    read_again(c);
}

void inlet_too_late(conn *c) {
    if (c->x == NULL && !inlet_has_begun(c)) {
        watch_cut(c);
        return;
    }
    inlet_refuse_and_read(c, &reply_too_late);
    inlet_read_again(c->s);
}

void inlet_next(conn *c) {
    if (n_held(&c->in) > 0 || !c->in.dry || c->left) read_again(c);
}

void inlet_read_again(http_server *s) {
    LIST_EACH_SAFE(node, next, &s->again) {
        conn *c = LIST_ENTRY(node, conn, in.again);
        list_remove(node);
        /* Closed, but perhaps not freed by the library; or its exchange reads nothing more. */
        if (c->cut || list_linked(&c->ended)) continue;
        if (c->x != NULL && c->x->phase != EXCHANGE_BODY) continue;
        MHD_suspend_connection(c->mhd);
        MHD_resume_connection(c->mhd);
        server_must_run(s);
    }
}
