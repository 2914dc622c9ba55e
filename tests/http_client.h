/* http_client.h - a server with toy routes and clients on plain sockets, all on one thread: whoever
 * waits for bytes turns the event loop meanwhile, so tests need no threads and no sleeping. */
#ifndef INFERD_TEST_HTTP_CLIENT_H
#define INFERD_TEST_HTTP_CLIENT_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <uv.h>

#include "http.h"
#include "http_answers.h"
#include "inferd/clock.h"
#include "log.h"
#include "test.h"

#define GOOD_KEY "test-key-0123456789"
#define AUTH     "Authorization: Bearer " GOOD_KEY "\r\n"

static uv_loop_t loop;
static http_server *server;

/* What the toy routes saw. */
static struct {
    uint32_t n_handled, n_gone, n_paused, n_unpaused, n_finished, n_done, n_done_gone;
    int last_status;
    http_request *waiting; // the newest that was not answered at once
    unsigned overloaded_s;
    uint64_t deadline_after_us;
} seen;

static inline void answer_text(http_request *rq, int status, const char *text) {
    buf body;
    buf_init(&body, 0);
    buf_add_str(&body, text);
    http_answer(rq, status, "text/plain", &body, NULL);
}

static inline void on_gone(http_request *rq) {
    seen.n_gone++;
    if (seen.waiting == rq) seen.waiting = NULL;
}
static inline void on_reader(http_request *rq, bool paused) {
    (void)rq;
    if (paused)
        seen.n_paused++;
    else
        seen.n_unpaused++;
}

static inline void handle_health(void *ctx, http_request *rq) {
    (void)ctx;
    seen.n_handled++;
    answer_text(rq, 200, "ok");
}
static inline void handle_tail(void *ctx, http_request *rq) {
    (void)ctx;
    seen.n_handled++;
    answer_text(rq, 200, rq->tail);
}
static inline void handle_echo(void *ctx, http_request *rq) {
    (void)ctx;
    seen.n_handled++;
    seen.deadline_after_us = rq->deadline_us == 0 ? 0 : rq->deadline_us - rq->arrival_us;
    buf body;
    buf_init(&body, 0);
    buf_add(&body, rq->body.p, rq->body.n);
    http_answer(rq, 200, "application/json", &body, "x-toy: yes\n");
}
static inline void handle_wait(void *ctx, http_request *rq) {
    (void)ctx;
    seen.n_handled++;
    rq->on_gone = on_gone;
    seen.waiting = rq;
}
static inline void handle_stream(void *ctx, http_request *rq) {
    (void)ctx;
    seen.n_handled++;
    rq->on_gone = on_gone;
    rq->on_reader = on_reader;
    seen.waiting = rq;
    if (http_stream_begin(rq)) http_stream_write(rq, "data: 0\n\n", 9);
}
/* An answer of as many bytes as the body says. */
static inline void handle_big(void *ctx, http_request *rq) {
    (void)ctx;
    seen.n_handled++;
    buf body;
    size_t n = strtoul(rq->body.p, NULL, 10);
    buf_init(&body, 0);
    for (size_t i = 0; i < n; i++) buf_add_char(&body, (char)('a' + i % 26));
    http_answer(rq, 200, "text/plain", &body, NULL);
}
static inline void work_a_little(void *ctx) {
    (void)ctx;
    usleep(20000);
}
static inline void work_done(void *ctx, bool rq_gone) {
    seen.n_done++;
    if (rq_gone)
        seen.n_done_gone++;
    else
        answer_text(ctx, 200, "worked");
}
static inline void handle_work(void *ctx, http_request *rq) {
    (void)ctx;
    seen.n_handled++;
    rq->on_gone = on_gone;
    if (!http_work(rq, work_a_little, work_done, rq)) answer_text(rq, 500, "no worker");
}

static const http_route toy_routes[] = {
    {"/health", HTTP_GET, HTTP_OPEN, false, false, handle_health},
    {"/v1/models", HTTP_GET, HTTP_KEYED, false, false, handle_health},
    {"/v1/models/*", HTTP_GET, HTTP_KEYED, false, false, handle_tail},
    {"/v1/echo", HTTP_POST, HTTP_KEYED, true, true, handle_echo},
    {"/v1/wait", HTTP_POST, HTTP_KEYED, true, true, handle_wait},
    {"/v1/stream", HTTP_POST, HTTP_KEYED, true, true, handle_stream},
    {"/v1/big", HTTP_POST, HTTP_KEYED, true, true, handle_big},
    {"/v1/work", HTTP_POST, HTTP_KEYED, true, true, handle_work},
    {"/admin/do", HTTP_POST, HTTP_KEYED, false, false, handle_echo},
};

static inline int tenant_of_key(void *ctx, bytes key) {
    (void)ctx;
    return key.n == strlen(GOOD_KEY) && memcmp(key.p, GOOD_KEY, key.n) == 0 ? 3 : -1;
}
static inline unsigned overloaded_s(void *ctx, int tenant) {
    (void)ctx, (void)tenant;
    return seen.overloaded_s;
}
static inline void finished(void *ctx, const http_request *rq) {
    (void)ctx;
    seen.n_finished++;
    seen.last_status = rq->status;
}

static inline http_options toy_options(void) {
    return (http_options){.listen = "127.0.0.1:0",
                          .limits = http_limits_default,
                          .routes = toy_routes,
                          .n_routes = INFERD_COUNT(toy_routes),
                          .tenant_of_key = tenant_of_key,
                          .overloaded_s = overloaded_s,
                          .finished = finished};
}

static inline void start(const http_options *options) {
    inferd_err err = {0};
    memset(&seen, 0, sizeof seen);
    uv_loop_init(&loop);
    if (http_open(options, &loop, &server, &err) == INFERD_OK) return;
    printf("http_open: %s\n", err.text);
    exit(1);
}
static inline void stop(void) {
    http_close(server);
    server = NULL;
    EXPECT_EQ(uv_loop_close(&loop), 0);
}

static inline void iterate(void) {
    uv_run(&loop, UV_RUN_NOWAIT);
}

/* Turn the loop until `done` is true; false after ms. */
static inline bool iterate_until(bool (*done)(void), unsigned ms) {
    uint64_t end_us = clock_now_us() + 1000ull * ms;
    while (!done()) {
        if (clock_now_us() > end_us) return false;
        iterate();
        usleep(200);
    }
    return true;
}
static inline void iterate_for(unsigned ms) {
    uint64_t end_us = clock_now_us() + 1000ull * ms;
    while (clock_now_us() < end_us) {
        iterate();
        usleep(200);
    }
}

static inline int client_connect(void) {
    const char *address = http_address(server);
    int fd = -1, on = 1;
    if (strncmp(address, "unix:", 5) == 0) {
        struct sockaddr_un un = {.sun_family = AF_UNIX};
        snprintf(un.sun_path, sizeof un.sun_path, "%s", address + 5);
        fd = socket(AF_UNIX, SOCK_STREAM, 0);
        if (connect(fd, (struct sockaddr *)&un, sizeof un) != 0) return close(fd), -1;
    } else {
        struct sockaddr_in v4 = {.sin_family = AF_INET,
                                 .sin_port = htons((uint16_t)atoi(strrchr(address, ':') + 1)),
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, (struct sockaddr *)&v4, sizeof v4) != 0) return close(fd), -1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

/* All of it, turning the loop while the socket is full; false: the other side is gone. */
static inline bool client_send(int fd, const void *p, size_t n) {
    const char *at = p;
    while (n > 0) {
        ssize_t done = send(fd, at, n, MSG_NOSIGNAL);
        if (done > 0)
            at += done, n -= (size_t)done;
        else if (errno != EAGAIN)
            return false;
        iterate();
    }
    return true;
}
static inline bool client_text(int fd, const char *text) {
    return client_send(fd, text, strlen(text));
}

typedef struct reply {
    char text[256 * 1024];
    size_t n;
    bool closed, reset;
} reply;

static inline void client_read_some(int fd, reply *r) {
    ssize_t n;
    while (r->n < sizeof r->text - 1 &&
           (n = recv(fd, r->text + r->n, sizeof r->text - 1 - r->n, 0)) != -1) {
        if (n == 0) {
            r->closed = true;
            break;
        }
        r->n += (size_t)n;
    }
    if (!r->closed && r->n < sizeof r->text - 1 && errno != EAGAIN) r->closed = r->reset = true;
    r->text[r->n] = 0;
}

/* The length of the first whole answer in r, or 0. */
static inline size_t reply_length(const reply *r) {
    const char *end = strstr(r->text, "\r\n\r\n");
    const char *length = strstr(r->text, "Content-Length: ");
    if (end == NULL) return 0;
    size_t head = (size_t)(end - r->text) + 4;
    if (length != NULL && length < end) {
        size_t n = strtoul(length + 16, NULL, 10);
        return r->n >= head + n ? head + n : 0;
    }
    const char *last = strstr(end, "\r\n0\r\n\r\n");
    return last == NULL ? 0 : (size_t)(last - r->text) + 7;
}

/* Read until a whole answer is there (and then a little, to see whether the server closes), the
 * server closes, or ms pass. */
static inline void client_read(int fd, reply *r, unsigned ms) {
    uint64_t end_us = clock_now_us() + 1000ull * ms, whole_us = 0;
    r->n = 0;
    r->closed = r->reset = false;
    r->text[0] = 0;
    while (!r->closed && clock_now_us() < end_us) {
        iterate();
        client_read_some(fd, r);
        if (whole_us == 0 && reply_length(r) > 0) whole_us = clock_now_us();
        if (whole_us != 0 && clock_now_us() > whole_us + 5000) return;
        usleep(100);
    }
}

static inline int reply_status(const reply *r) {
    return r->n > 12 && strncmp(r->text, "HTTP/1.", 7) == 0 ? atoi(r->text + 9) : 0;
}
static inline bool reply_has(const reply *r, const char *text) {
    return strstr(r->text, text) != NULL;
}

/* Connect and send: what most tests begin with. */
static inline int client_with(const char *text) {
    int fd = client_connect();
    EXPECT(client_text(fd, text));
    return fd;
}

static inline void get_and_expect(int fd, reply *r, int status) {
    client_text(fd, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
    client_read(fd, r, 1000);
    EXPECT_EQ(reply_status(r), status);
}

/* Reads until the server closes, or nothing comes for quiet_ms (0: only until it closes). */
static inline void client_read_all(int fd, reply *r, unsigned quiet_ms, unsigned ms) {
    uint64_t end_us = clock_now_us() + 1000ull * ms, last_us = clock_now_us();
    r->n = 0;
    r->closed = r->reset = false;
    r->text[0] = 0;
    while (!r->closed && clock_now_us() < end_us) {
        size_t before = r->n;
        iterate();
        client_read_some(fd, r);
        if (r->n > before) last_us = clock_now_us();
        if (r->n > 0 && quiet_ms > 0 && clock_now_us() > last_us + 1000ull * quiet_ms) return;
        usleep(100);
    }
}

/* The statuses of the answers in r, of which each is well-formed and whole; how many, or -1. */
static inline int reply_statuses(const reply *r, int *statuses, int n_max) {
    int n = 0;
    for (size_t at = 0; at < r->n;) {
        answer a = answer_read(r->text + at, r->n - at, false, r->closed);
        if (a.wrong != NULL || !a.whole || n == n_max) {
            printf("  answer %d: %s\n%.600s\n", n, a.wrong == NULL ? "cut off" : a.wrong,
                   r->text + at);
            return -1;
        }
        statuses[n++] = a.status;
        at += a.n;
    }
    return n;
}

static inline void iterate_until_handled(uint32_t n) {
    for (int i = 0; i < 2000 && seen.n_handled < n; i++) iterate_for(1);
    EXPECT_EQ(seen.n_handled, n);
}
static inline void iterate_until_gone(uint32_t n) {
    for (int i = 0; i < 2000 && seen.n_gone < n; i++) iterate_for(1);
    EXPECT_EQ(seen.n_gone, n);
}
static inline void iterate_until_open(uint32_t n) {
    for (int i = 0; i < 2000 && http_n_open(server) != n; i++) iterate_for(1);
    EXPECT_EQ(http_n_open(server), n);
}

#endif
