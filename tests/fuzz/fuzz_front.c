/* fuzz_front.c - the whole front, with libmicrohttpd in it: raw bytes of several clients over
 * socket pairs, on a clock that only the input moves.
 *
 * The input is a program, so that seeds can be read (tests/fuzz/front):
 *
 *     oC    open connection C (any byte; C modulo 4)        sCL...  send the next L bytes as they
 * are qCK   request K of the list joins the text of C       wCN     send N bytes of that text ('~':
 * all) rC    read                                            hC      half close xC    close, with
 * what is unread                      cN      the clock moves N^2 ms a     answer the oldest
 * waiting request               eN      an event of 32 N bytes on a stream d     end the oldest
 * stream                           b       break it u     one turn of the loop D       drain Z
 * close the server with all of it
 *
 * Checked at the end, when all was answered and the clock has passed every deadline: no connection,
 * exchange, lingering sender or byte of a body is left; each request that a route got has ended
 * exactly once; what a client read are whole answers, only the last may be cut and that is no
 * error; no answer mixes with another. */
#include "../http_client.h"
#include "http_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { N_CLIENTS = 4, TASKS_MAX = 256, IDS_MAX = 64, TEXT_BYTES_MAX = 64 * 1024 };

#define POST_TO(path) "POST " path " HTTP/1.1\r\nHost: x\r\n" AUTH

#define AMPERSANDS "&&&&&&&&&&&&&" // 13: five of them are over the bound of 64

static const char *const texts[] = {
    "GET /health HTTP/1.1\r\nHost: x\r\n\r\n",
    "GET /health HTTP/1.0\r\n\r\n",
    POST_TO("/v1/echo") "Content-Length: 2\r\n\r\n{}",
    POST_TO("/v1/echo") "Transfer-Encoding: chunked\r\n\r\n3;a=b\r\n[1]\r\n0\r\nA: b\r\n\r\n",
    POST_TO("/v1/echo") "Expect: 100-continue\r\nContent-Length: 4\r\n\r\n null"
                        "\r\n",
    POST_TO("/v1/wait") "Content-Length: 2\r\n\r\n{}",
    POST_TO("/v1/stream") "Content-Length: 2\r\n\r\n{}",
    "POST /v1/stream HTTP/1.0\r\n" AUTH "Content-Length: 2\r\n\r\n{}",
    POST_TO("/v1/big") "Content-Length: 5\r\n\r\n90000",
    "HEAD /health HTTP/1.1\r\nHost: x\r\nCookie: a=b\r\n\r\n",
    "POST /v1/echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nno key yet",
    "GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n",
    POST_TO("/v1/echo") "Content-Length: +5\r\n\r\nhello",
    POST_TO("/v1/echo") "Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\n",
    "GET /health HTTP/1.1\nHost: x\n\n",
    POST_TO("/v1/echo") "Content-Length: 5000\r\n\r\n",
    "GET /?" AMPERSANDS AMPERSANDS AMPERSANDS AMPERSANDS AMPERSANDS,
    "\r\n",
};

typedef struct client {
    int fd; // -1: closed
    buf text, got;
    size_t at;   // of text: sent
    bool opened; // in this run, ever
} client;

/* What happened to a request that a route got. */
typedef struct task {
    http_request *rq; // NULL once it is over
    bool streams, answered;
    bool cut; // a write said that its stream is gone: on_gone is told, and ends it
    uint32_t n_gone, n_finished;
} task;

static client clients[N_CLIENTS];
static task tasks[TASKS_MAX];
static uint32_t n_tasks;
static char head_ids[IDS_MAX][40]; // of requests whose answers have no body
static uint32_t n_head_ids;
static uint64_t fake_us = 1000000;

static uint64_t fake_now(void *ctx) {
    (void)ctx;
    return fake_us;
}

/* -- routes -- */

static void task_gone(http_request *rq) {
    task *t = rq->user;
    INFERD_CHECK(t->rq == rq && !t->answered);
    t->n_gone++;
    t->rq = NULL;
}

static task *task_begin(http_request *rq) {
    if (n_tasks == TASKS_MAX) return NULL;
    task *t = &tasks[n_tasks++];
    *t = (task){.rq = rq};
    rq->user = t;
    rq->on_gone = task_gone;
    return t;
}

static void answer_task(task *t, size_t n_body) {
    buf body;
    http_request *rq = t->rq;
    buf_init(&body, 0);
    for (size_t i = 0; i < n_body; i++) buf_add_char(&body, 'y');
    t->answered = true;
    t->rq = NULL;
    http_answer(rq, 200, "text/plain", &body, "x-toy: yes\n");
}

static void refuse_more(http_request *rq) {
    http_answer_error(rq, 429, "requests", "rate_limit_exceeded", NULL, "Enough.", 1);
}

static void on_answered(void *ctx, http_request *rq) {
    (void)ctx;
    task *t = task_begin(rq);
    if (t == NULL)
        refuse_more(rq);
    else
        answer_task(t, rq->body.n + 2);
}
static void on_big(void *ctx, http_request *rq) {
    (void)ctx;
    task *t = task_begin(rq);
    if (t == NULL)
        refuse_more(rq);
    else
        answer_task(t, 90000);
}
static void on_wait(void *ctx, http_request *rq) {
    (void)ctx;
    if (task_begin(rq) == NULL) refuse_more(rq);
}
static void on_stream(void *ctx, http_request *rq) {
    (void)ctx;
    task *t = task_begin(rq);
    if (t == NULL) {
        refuse_more(rq);
    } else if (http_stream_begin(rq)) {
        t->streams = true;
        http_stream_write(rq, "data: 0\n\n", 9);
    } else {
        answer_task(t, 1);
    }
}

static void on_finished(void *ctx, const http_request *rq) {
    (void)ctx;
    INFERD_CHECK(rq->status >= 200 && rq->status < 600);
    if (rq->method == HTTP_HEAD && n_head_ids < IDS_MAX)
        memcpy(head_ids[n_head_ids++], rq->id, sizeof rq->id);
    task *t = rq->user;
    if (t == NULL) return;
    t->n_finished++;
    t->rq = NULL; // its answer was complete, or on_gone was told
}

static const http_route front_routes[] = {
    {"/health", HTTP_GET, HTTP_OPEN, false, false, on_answered},
    {"/v1/echo", HTTP_POST, HTTP_KEYED, true, true, on_answered},
    {"/v1/wait", HTTP_POST, HTTP_KEYED, true, true, on_wait},
    {"/v1/stream", HTTP_POST, HTTP_KEYED, true, true, on_stream},
    {"/v1/big", HTTP_POST, HTTP_KEYED, true, true, on_big},
};

static task *oldest(bool streams) {
    for (uint32_t i = 0; i < n_tasks; i++)
        if (tasks[i].rq != NULL && tasks[i].streams == streams && !tasks[i].cut) return &tasks[i];
    return NULL;
}

static void end_stream(bool whole) {
    task *t = oldest(true);
    if (t == NULL) return;
    http_request *rq = t->rq;
    t->answered = true;
    t->rq = NULL;
    if (whole)
        http_stream_end(rq);
    else
        http_stream_abort(rq);
}

static void write_event(size_t n) {
    static char event[32 * 256];
    task *t = oldest(true);
    memset(event, 'z', sizeof event);
    if (t != NULL) t->cut = !http_stream_write(t->rq, event, n);
}

/* -- the server and its clients -- */

static void open_server(void) {
    static http_options o;
    if (server != NULL) return;
    o = toy_options();
    o.routes = front_routes;
    o.n_routes = INFERD_COUNT(front_routes);
    o.finished = on_finished;
    o.now_us = fake_now;
    o.limits.connections_max = N_CLIENTS - 1; // the last is told that it is one too many
    o.limits.header_bytes_max = 4096;
    o.limits.body_bytes_max = 4096;
    o.limits.bodies_bytes_max = 8000;
    o.limits.stream_soft_bytes = 1024;
    o.limits.stream_hard_bytes = 4096;
    log_open("/dev/null", false, LOG_LEVEL_ERROR, NULL);
    start(&o);
}

static void client_open(client *c) {
    struct sockaddr_un unnamed = {.sun_family = AF_UNIX};
    int pair[2];
    if (c->opened || server->draining) return;
    INFERD_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
    INFERD_CHECK(MHD_add_connection(server->daemon, pair[0], (struct sockaddr *)&unnamed,
                                    sizeof unnamed) == MHD_YES);
    server_must_run(server);
    c->fd = pair[1];
    c->opened = true;
}

static void client_write(client *c, const void *p, size_t n) {
    if (c->fd >= 0) (void)!send(c->fd, p, n, MSG_NOSIGNAL);
    iterate();
}

static void client_read_on(client *c) {
    char part[16 * 1024];
    ssize_t n;
    while (c->fd >= 0 && (n = recv(c->fd, part, sizeof part, 0)) > 0) buf_add(&c->got, part, n);
}

static void client_close(client *c) {
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
}

static void client_ask(client *c, uint8_t which) {
    const char *text = texts[which % INFERD_COUNT(texts)];
    if (c->text.n < TEXT_BYTES_MAX) buf_add_str(&c->text, text);
}

static void client_send_text(client *c, size_t n) {
    n = size_min(n, c->text.n - c->at);
    if (n > 0) client_write(c, c->text.p + c->at, n);
    c->at += n;
}

static void move_clock(uint64_t us) {
    fake_us += us;
    watch_due(server);
    iterate();
}

/* -- the program -- */

typedef struct input {
    const uint8_t *p;
    size_t n;
} input;

static uint8_t next(input *in) {
    if (in->n == 0) return 0;
    in->n--;
    return *in->p++;
}

static void send_raw(client *c, input *in) {
    size_t n = size_min(next(in), in->n);
    client_write(c, in->p, n);
    in->p += n;
    in->n -= n;
}

/* False: it is over. */
static bool run_one(input *in) {
    uint8_t op = next(in);
    if (strchr("osqwrhx", op) != NULL && op != 0) {
        client *c = &clients[next(in) % N_CLIENTS];
        uint8_t n;
        switch (op) {
        case 'o':
            client_open(c);
            break;
        case 's':
            send_raw(c, in);
            break;
        case 'q':
            client_ask(c, next(in));
            break;
        case 'w':
            n = next(in);
            client_send_text(c, n == '~' ? SIZE_MAX : n);
            break;
        case 'r':
            client_read_on(c);
            break;
        case 'h':
            if (c->fd >= 0) shutdown(c->fd, SHUT_WR);
            break;
        default:
            client_close(c);
        }
        return true;
    }
    switch (op) {
    case 'c': {
        uint64_t n = next(in);
        move_clock(1000 * n * n);
        return true;
    }
    case 'a':
        if (oldest(false) != NULL) answer_task(oldest(false), 10);
        return true;
    case 'e':
        write_event(32 * (size_t)next(in));
        return true;
    case 'd':
        end_stream(true);
        return true;
    case 'b':
        end_stream(false);
        return true;
    case 'D':
        http_drain(server);
        return true;
    case 'Z':
        return false;
    default:
        iterate();
        return true;
    }
}

/* A request behind another one begins when that is answered, so they are answered round by round.
 */
static void end_by_deadlines(void) {
    for (int i = 0; i < 200 && (server->n_conns > 0 || server->n_lingers > 0); i++) {
        while (oldest(false) != NULL) answer_task(oldest(false), 10);
        while (oldest(true) != NULL) end_stream(true);
        iterate();
        for (int k = 0; k < N_CLIENTS && i < 150; k++) client_read_on(&clients[k]);
        move_clock(100 * 1000000ull); // longer than any deadline
        iterate();
    }
    INFERD_CHECK(server->n_conns == 0 && server->n_lingers == 0 && server->n_cut == 0);
    INFERD_CHECK(http_n_open(server) == 0 && list_empty(&server->exchanges));
    INFERD_CHECK(server->bodies_bytes == 0);
    INFERD_CHECK(list_empty(&server->again) && list_empty(&server->ended));
    for (uint32_t i = 0; i < server->n_by_fd; i++) INFERD_CHECK(server->by_fd[i] == NULL);
}

static bool is_to_head(const char *p, size_t n) {
    for (uint32_t i = 0; i < n_head_ids; i++) {
        const char *end = memmem(p, n, "\r\n\r\n", 4);
        if (end != NULL && memmem(p, (size_t)(end - p), head_ids[i], 36) != NULL) return true;
    }
    return false;
}

static void check_answers(client *c) {
    for (size_t at = 0; at < c->got.n;) {
        const char *p = c->got.p + at;
        size_t n = c->got.n - at;
        answer a = answer_read(p, n, is_to_head(p, n), true);
        if (a.wrong != NULL) {
            fprintf(stderr, "%s:\n%.*s\n", a.wrong, (int)n, p);
            abort();
        }
        INFERD_CHECK(a.whole || a.status == 200); // a stream or a long answer that was cut
        at += a.n;
    }
}

static void close_all(bool at_once) {
    if (at_once || server->draining) stop();
    for (uint32_t i = 0; i < n_tasks; i++) {
        INFERD_CHECK(tasks[i].n_finished == 1 && tasks[i].rq == NULL);
        INFERD_CHECK(tasks[i].n_gone + (tasks[i].answered ? 1 : 0) == 1);
    }
    for (int i = 0; i < N_CLIENTS; i++) {
        client *c = &clients[i];
        client_read_on(c);
        char end;
        if (c->fd >= 0) INFERD_CHECK(recv(c->fd, &end, 1, 0) == 0 || errno == ECONNRESET);
        check_answers(c);
        client_close(c);
        buf_deinit(&c->text), buf_deinit(&c->got);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    input in = {data, n};
    bool goes_on = true;
    open_server();
    n_tasks = n_head_ids = 0;
    for (int i = 0; i < N_CLIENTS; i++) clients[i] = (client){.fd = -1};
    client_open(&clients[0]);
    for (int i = 0; i < 1000 && in.n > 0 && goes_on; i++) goes_on = run_one(&in);
    if (goes_on) end_by_deadlines();
    close_all(!goes_on);
    return 0;
}
