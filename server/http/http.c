/* http.c - the loop: when libmicrohttpd runs, and the life of connections and exchanges.
 *
 *     uv_poll    the library's epoll set      -> MHD_run
 *     uv_poll    the watch set                -> clients that left, lingering senders
 *     uv_poll    the listening socket         -> accept, MHD_add_connection
 *     uv_timer   MHD_get_timeout              -> MHD_run
 *     uv_timer   the earliest deadline        -> 408 and cut
 *     uv_prepare before the loop sleeps       -> MHD_run, if anything was resumed or cut
 *
 * The library owns no listening socket: our own accept lets a full server close idle connections,
 * answer 503 and survive a lack of descriptors.  The library has no timeout either: its own timeout
 * restarts with every byte, so all deadlines are absolute and ours.
 *
 * Resumes are batched: each marks its connection, and one MHD_run walks the suspended list. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <unistd.h>

#include "http_internal.h"
#include "log.h"
#include "scheduler/pulse.h"

enum {
    IDLE_RUNS_MAX = 32, // runs without progress before the library runs less often
    IDLE_RUN_MS = 5
};

/* Memory beside the bytes of a request, in the library's pool of a connection (version 0.9.75):
 *
 *   [ head | behind it | free -->          <-- free | records ]
 *     read buffer, half of the pool at first          one of each header and argument
 *
 * A record is 56 bytes, and the pool rounds to 16.  If the pool has no room for a record, it takes
 * the part of the read buffer that holds no bytes.  A full read buffer grows while a byte of the
 * pool is free.  When either fails the library answers 431 by itself.  When the head of the answer
 * does not fit, the library closes without an answer.
 *
 * Always: none of that can happen.  Until the head is parsed, the library has read no more than
 * header_bytes_max of head and body together (room_behind in http_inlet.c).  An answer is made at
 * that point, or after the whole body has left the buffer. */
enum {
    RECORD_BYTES = 64,
    ROUNDED_BYTES = 2 * 16, // the read buffer, and the allocation behind it
    REPLY_HEAD_BYTES = 2048,
    SPARE_BYTES =
        (GUARD_HEADERS_MAX + GUARD_ARGUMENTS_MAX) * RECORD_BYTES + ROUNDED_BYTES + REPLY_HEAD_BYTES
};

/* -- running the library -- */

static void run_library(http_server *s);

static void on_timer_mhd(uv_timer_t *timer) {
    run_library(timer->data);
}

/* The library asks to run again at once when a connection has work left, and also when it has a
 * full buffer that it cannot parse (a chunk extension without end).  The first is progress; the
 * second would use a whole core until its deadline, so runs without any callback are spaced out. */
static void arm_library(http_server *s, bool progress) {
    MHD_UNSIGNED_LONG_LONG wait_ms;
    if (s->must_run) { // marked after the last run, perhaps just before the loop sleeps
        uv_timer_start(&s->timer_mhd, on_timer_mhd, 0, 0);
        return;
    }
    if (MHD_get_timeout(s->daemon, &wait_ms) != MHD_YES) {
        s->n_idle_runs = 0;
        uv_timer_stop(&s->timer_mhd);
        return;
    }
    if (progress || wait_ms > 0)
        s->n_idle_runs = 0;
    else if (s->n_idle_runs < IDLE_RUNS_MAX)
        s->n_idle_runs++;
    else
        wait_ms = IDLE_RUN_MS;
    uv_timer_start(&s->timer_mhd, on_timer_mhd, wait_ms, 0);
}

/* When a content reader ends a connection, the library marks it closed and then forgets it: it is
 * freed only when it has become the oldest of those with the usual timeout, which behind one old
 * idle connection never happens.  Connections with a timeout of their own are checked every run.
 *
 * An option moves a connection between the library's lists, and inside of its callbacks it may be
 * on none of them: so the option is set here, between two runs.  A connection that still exists
 * then is on its list, because a run ends by freeing all connections that it took off. */
static void free_ended(http_server *s) {
    enum { DAY_S = 86400 };
    LIST_EACH_SAFE(node, next, &s->ended) {
        conn *c = LIST_ENTRY(node, conn, ended);
        list_remove(node);
        MHD_set_connection_option(c->mhd, MHD_CONNECTION_OPTION_TIMEOUT, (unsigned)DAY_S);
        server_must_run(s);
    }
}

static void run_library(http_server *s) {
    uint64_t before = s->n_calls;
    if (s->in_run) { // called from one of its callbacks: run again after this run
        s->must_run = true;
        return;
    }
    s->in_run = true;
    s->must_run = false;
    pulse_at(PULSE_WORK, "MHD_run");
    inlet_run(s);
    s->in_run = false;
    free_ended(s);
    inlet_read_again(s);
    arm_library(s, s->n_calls != before);
}

void http_flush(http_server *s) {
    if (s->must_run) run_library(s);
}

static void on_prepare(uv_prepare_t *prepare) {
    http_flush(prepare->data);
}
static void on_poll_mhd(uv_poll_t *poll, int status, int events) {
    (void)status, (void)events;
    run_library(poll->data);
}
static void on_poll_watch(uv_poll_t *poll, int status, int events) {
    (void)status, (void)events;
    watch_events(poll->data);
}
static void on_poll_listen(uv_poll_t *poll, int status, int events) {
    (void)status, (void)events;
    listen_some(poll->data);
}

void server_random(http_server *s, void *out, size_t n) {
    INFERD_CHECK(n <= sizeof s->random);
    if (s->n_random < n) {
        size_t have = 0;
        while (have < sizeof s->random) {
            ssize_t got = getrandom(s->random + have, sizeof s->random - have, 0);
            if (got < 0 && errno == EINTR) continue;
            INFERD_CHECK(got > 0); // the kernel's pool is ready after boot
            have += (size_t)got;
        }
        s->n_random = sizeof s->random;
    }
    s->n_random -= (uint32_t)n;
    memcpy(out, s->random + s->n_random, n);
}

/* -- connections and exchanges -- */

conn *conn_of(struct MHD_Connection *mhd) {
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info == NULL ? NULL : info->socket_context;
}

static void conn_open(http_server *s, struct MHD_Connection *mhd, void **socket_context) {
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
    conn *c = calloc(1, sizeof *c);
    if (c == NULL) { // without a conn it has no deadline: end it now
        shutdown(info->connect_fd, SHUT_RDWR);
        return;
    }
    c->s = s;
    c->mhd = mhd;
    c->fd = info->connect_fd;
    deadline_init(&c->due);
    list_node_init(&c->ended);
    if (!inlet_open(c)) {
        shutdown(c->fd, SHUT_RDWR);
        free(c);
        return;
    }
    *socket_context = c;
    s->n_conns++;
    c->over_limit = s->n_conns - s->n_cut > s->conns_max;
    watch_conn(c, DEADLINE_HEADER);
    if (!watch_add(c)) watch_cut(c);
}

/* The status of an exchange that ended without a complete answer. */
static int status_of_cut(const exchange *x, struct MHD_Connection *mhd) {
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_HTTP_STATUS);
    if (x->raw) return x->rq.status;
    if (x->rq.status == 0 && info != NULL) return (int)info->http_status; // the library's own error
    if (x->aborting) return x->rq.status;
    return 499;
}

static void end_exchange(exchange *x) {
    http_server *s = x->s;
    conn *c = x->c;
    x->c = NULL;
    x->suspended = false;
    c->x = NULL;
    deadline_disarm(&x->beat);
    if (!c->cut) {
        watch_conn(c, DEADLINE_IDLE);
        inlet_next(c);
    }
    exchange_gone(x); // does nothing when the answer was complete
    x->gone = true;
    if (s->finished != NULL) s->finished(s->ctx, &x->rq);
    body_release(x);
    if (x->admitted) s->n_open--;
    if (x->n_work == 0) exchange_free(x);
}

/* Called before the socket is closed: its descriptor number is ours until then.  After an error in
 * an error the library closes without completing the request: that is done here. */
static void conn_close(conn *c) {
    http_server *s = c->s;
    if (c->x != NULL) {
        c->x->rq.status = status_of_cut(c->x, c->mhd);
        end_exchange(c->x);
    }
    if (inlet_has_begun(c) && s->finished != NULL) { // the library has not seen this request
        exchange x;
        exchange_init(&x, c);
        x.rq.status = 499;
        s->finished(s->ctx, &x.rq);
    }
    inlet_close(c);
    deadline_disarm(&c->due);
    list_remove(&c->ended);
    watch_remove(c);
    if ((c->linger || !c->in.dry) && !s->closing) linger_begin(c);
    s->n_conns--;
    if (c->cut) s->n_cut--;
    free(c);
    if (s->accept_paused) listen_resume(s);
}

static void on_connection(void *cls, struct MHD_Connection *mhd, void **socket_context,
                          enum MHD_ConnectionNotificationCode what) {
    http_server *s = cls;
    s->n_calls++;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        conn_open(s, mhd, socket_context);
    } else if (*socket_context != NULL) {
        conn_close(*socket_context);
        *socket_context = NULL;
    }
}

static void new_id(http_server *s, char id[40]) {
    static const char digits[] = "0123456789abcdef";
    unsigned char random[16];
    server_random(s, random, sizeof random);
    memcpy(id, "req-", 4);
    for (int i = 0; i < 16; i++) {
        id[4 + 2 * i] = digits[random[i] >> 4];
        id[5 + 2 * i] = digits[random[i] & 15];
    }
    id[36] = 0;
}

void exchange_init(exchange *x, conn *c) {
    *x = (exchange){.s = c->s, .c = c, .rq.tenant = -1, .rq.arrival_us = server_now_us(c->s)};
    list_node_init(&x->link);
    deadline_init(&x->beat);
    new_id(c->s, x->rq.id);
    buf_init(&x->body, 0);
    buf_init(&x->answer, 0);
}

/* The request line is complete.  The result is *con_cls in every later call. */
static void *on_request_line(void *cls, const char *uri, struct MHD_Connection *mhd) {
    http_server *s = cls;
    conn *c = conn_of(mhd);
    s->n_calls++;
    if (c == NULL) return NULL;
    INFERD_CHECK(c->in.passed); // the library reads by our recv(), and only checked bytes
    c->in.passed = false;
    exchange *x = malloc(sizeof *x);
    if (x == NULL) return NULL;
    exchange_init(x, c);
    x->write_error = guard_error_writer(s->routes, s->n_routes, (bytes){uri, strcspn(uri, "?")});
    list_push_back(&s->exchanges, &x->link);
    c->x = x;
    return x;
}

void exchange_free(exchange *x) {
    list_remove(&x->link);
    buf_deinit(&x->body);
    buf_deinit(&x->answer);
    free(x->out.p);
    free(x->rq.headers);
    if (x->response != NULL) MHD_destroy_response(x->response);
    free(x);
}

void exchange_suspend(exchange *x) {
    INFERD_CHECK(!x->suspended && x->c != NULL);
    MHD_suspend_connection(x->c->mhd);
    x->suspended = true;
}

void exchange_resume(exchange *x) {
    if (!x->suspended || x->c == NULL) return;
    x->suspended = false;
    MHD_resume_connection(x->c->mhd);
    server_must_run(x->s);
}

void exchange_gone(exchange *x) {
    x->gone = true;
    if (x->gone_told || x->answered || x->phase == EXCHANGE_HANDLING || x->n_work > 0) return;
    x->gone_told = true;
    if (x->phase >= EXCHANGE_WAITING && x->rq.on_gone != NULL) x->rq.on_gone(&x->rq);
}

static void on_completed(void *cls, struct MHD_Connection *mhd, void **con_cls,
                         enum MHD_RequestTerminationCode why) {
    http_server *s = cls;
    exchange *x = *con_cls;
    s->n_calls++;
    if (x == NULL) return;
    *con_cls = NULL;
    if (why != MHD_REQUEST_TERMINATED_COMPLETED_OK || x->rq.status == 0)
        x->rq.status = status_of_cut(x, mhd);
    if (why != MHD_REQUEST_TERMINATED_COMPLETED_OK || (x->streaming && x->http_10))
        list_push_back(&s->ended, &x->c->ended);
    end_exchange(x);
}

uint32_t http_n_open(const http_server *s) {
    return s->n_open;
}
uint32_t http_n_due(const http_server *s, uint64_t us) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_slots; i++) {
        const exchange *x = s->slots[i].c == NULL ? NULL : s->slots[i].c->x;
        n += x != NULL && x->phase >= EXCHANGE_HANDLING && x->rq.arrival_us < us;
    }
    return n;
}
const char *http_address(const http_server *s) {
    return s->address;
}

const char *http_query(http_request *rq, const char *name) {
    const char *value = NULL;
    struct MHD_Connection *mhd = exchange_of(rq)->c->mhd;
    if (MHD_lookup_connection_value_n(mhd, MHD_GET_ARGUMENT_KIND, name, strlen(name), &value,
                                      NULL) != MHD_YES)
        return NULL;
    return value == NULL ? "" : value;
}

/* -- work on other threads -- */

typedef struct job {
    uv_work_t req;
    exchange *x;
    void (*work)(void *ctx);
    void (*done)(void *ctx, bool rq_gone);
    void *ctx;
} job;

static void on_work(uv_work_t *req) {
    job *j = req->data;
    j->work(j->ctx);
}

static void on_work_done(uv_work_t *req, int status) {
    job *j = req->data;
    exchange *x = j->x;
    (void)status;
    x->s->n_works--;
    if (x->gone) x->gone_told = true;
    pulse_at_object(PULSE_WORK, "end of work for", x->rq.route->path);
    j->done(j->ctx, x->gone);
    x->n_work--; // after done, which may free the handler's state
    free(j);
    if (x->n_work > 0) return;
    if (x->c == NULL)
        exchange_free(x);
    else if (x->gone)
        exchange_gone(x); // the client left while done was running
}

bool http_work(http_request *rq, void (*work)(void *ctx), void (*done)(void *ctx, bool rq_gone),
               void *ctx) {
    exchange *x = exchange_of(rq);
    job *j = malloc(sizeof *j);
    if (j == NULL) return false;
    *j = (job){.x = x, .work = work, .done = done, .ctx = ctx};
    j->req.data = j;
    if (uv_queue_work(x->s->loop, &j->req, on_work, on_work_done) != 0) {
        free(j);
        return false;
    }
    x->n_work++;
    x->s->n_works++;
    return true;
}

/* -- opening and closing -- */

/* Nothing is decoded: routes are matched on the raw path, and "%00" must not end a string. */
static size_t keep_escapes(void *cls, struct MHD_Connection *mhd, char *text) {
    (void)cls, (void)mhd;
    return strlen(text);
}

/* The library's messages may quote bytes of a client: debug level only; the log escapes them. */
__attribute__((format(printf, 2, 0))) static void on_library_log(void *cls, const char *format,
                                                                 va_list args) {
    char text[256];
    (void)cls;
    if (!log_wants(LOG_LEVEL_DEBUG)) return;
    vsnprintf(text, sizeof text, format, args);
    text[strcspn(text, "\n")] = 0;
    log_text(LOG_LEVEL_DEBUG, "libmicrohttpd", "text", text);
}

static void on_library_panic(void *cls, const char *file, unsigned line, const char *reason) {
    (void)cls;
    fprintf(stderr, "libmicrohttpd %s:%u: %s\n", file, line, reason == NULL ? "" : reason);
    abort();
}

static inferd_status start_library(http_server *s, inferd_err *err) {
    MHD_set_panic_func(on_library_panic, NULL);
    s->daemon = MHD_start_daemon(
        MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG | MHD_USE_NO_LISTEN_SOCKET, 0,
        NULL, NULL, http_on_request, s, MHD_OPTION_EXTERNAL_LOGGER, on_library_log, NULL,
        /* Our own limit is lower: at its limit the library closes without an answer. */
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)(s->n_slots + 16), MHD_OPTION_CONNECTION_TIMEOUT, 0u,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)s->limits.header_bytes_max + SPARE_BYTES,
        MHD_OPTION_CONNECTION_MEMORY_INCREMENT, (size_t)1024, MHD_OPTION_STRICT_FOR_CLIENT, 1,
        MHD_OPTION_UNESCAPE_CALLBACK, keep_escapes, NULL, MHD_OPTION_URI_LOG_CALLBACK,
        on_request_line, s, MHD_OPTION_NOTIFY_CONNECTION, on_connection, s,
        MHD_OPTION_NOTIFY_COMPLETED, on_completed, s, MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1,
        MHD_OPTION_END);
    if (s->daemon == NULL)
        return inferd_fail(err, INFERD_EIO, "libmicrohttpd did not start: %s", strerror(errno));
    return INFERD_OK;
}

static inferd_status start_slots(http_server *s, inferd_err *err) {
    s->n_slots = s->conns_max + HTTP_SPARE_CONNECTIONS;
    s->slots = calloc(s->n_slots, sizeof s->slots[0]);
    if (s->slots == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for %u connections", s->n_slots);
    for (uint32_t i = 0; i < s->n_slots; i++) s->slots[i].next_free = i + 1;
    s->fd_watch = epoll_create1(EPOLL_CLOEXEC);
    if (s->fd_watch < 0) return inferd_fail(err, INFERD_EIO, "epoll_create1: %s", strerror(errno));
    return INFERD_OK;
}

static bool start_poll(http_server *s, uv_poll_t *poll, int fd, uv_poll_cb on_readable) {
    if (uv_poll_init(s->loop, poll, fd) != 0) return false;
    s->n_handles++;
    poll->data = s;
    return uv_poll_start(poll, UV_READABLE, on_readable) == 0;
}

static inferd_status start_handles(http_server *s, inferd_err *err) {
    int fd_mhd = MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
    uv_timer_init(s->loop, &s->timer_mhd);
    uv_timer_init(s->loop, &s->timer_due);
    uv_prepare_init(s->loop, &s->prepare);
    s->timer_mhd.data = s->timer_due.data = s->prepare.data = s;
    s->n_handles += 3;
    uv_prepare_start(&s->prepare, on_prepare);
    if (!start_poll(s, &s->poll_mhd, fd_mhd, on_poll_mhd) ||
        !start_poll(s, &s->poll_watch, s->fd_watch, on_poll_watch) ||
        !start_poll(s, &s->poll_listen, s->fd_listen, on_poll_listen))
        return inferd_fail(err, INFERD_EIO, "the event loop does not take another descriptor");
    return INFERD_OK;
}

static void start_deadlines(http_server *s) {
    const http_limits *l = &s->limits;
    deadlines_init(&s->due);
    s->due.lasts_us[DEADLINE_HEADER] = 1000ull * l->header_timeout_ms;
    s->due.lasts_us[DEADLINE_BODY] = 1000ull * l->body_timeout_ms;
    s->due.lasts_us[DEADLINE_IDLE] = 1000000ull * l->idle_timeout_s;
    s->due.lasts_us[DEADLINE_LEFT] = 200000;
    s->due.lasts_us[DEADLINE_STALL] = 1000ull * l->send_stall_ms;
    s->due.lasts_us[DEADLINE_BEAT] = 1000ull * l->heartbeat_ms;
    s->due.lasts_us[DEADLINE_LINGER] = 2000000;
    s->due.lasts_us[DEADLINE_ACCEPT] = 100000;
    deadline_init(&s->accept_due);
}

/* Workers for http_work, unless the environment sets a number: two keep a small machine responsive,
 * more than eight only compete with the engine. libuv reads this when the first work is queued. */
static void choose_workers(void) {
    long n_cpus = sysconf(_SC_NPROCESSORS_ONLN);
    char text[16];
    snprintf(text, sizeof text, "%ld", n_cpus < 2 ? 2 : n_cpus > 8 ? 8 : n_cpus);
    setenv("UV_THREADPOOL_SIZE", text, 0);
}

static void ignore_sigpipe(void) {
    struct sigaction now;
    if (sigaction(SIGPIPE, NULL, &now) == 0 && now.sa_handler == SIG_DFL) signal(SIGPIPE, SIG_IGN);
}

inferd_status http_open(const http_options *options, void *loop, http_server **out,
                        inferd_err *err) {
    http_server *s = calloc(1, sizeof *s);
    if (s == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for the HTTP server");
    s->limits = options->limits;
    s->routes = options->routes;
    s->n_routes = options->n_routes;
    s->tenant_of_key = options->tenant_of_key;
    s->admin_of_key = options->admin_of_key;
    s->trusted = options->trusted;
    s->unix_mode = options->unix_mode == 0 ? HTTP_UNIX_MODE : options->unix_mode;
    s->overloaded_s = options->overloaded_s;
    s->finished = options->finished;
    s->reply_lines = options->reply_lines;
    s->allows_origin = options->allows_origin;
    s->ctx = options->ctx;
    s->keyless = options->tenant_of_key == NULL;
    s->now_us = options->now_us;
    s->loop = loop;
    s->fd_reserve = s->fd_watch = -1;
    s->passed = options->fd_passed > 0;
    s->fd_listen = s->passed ? options->fd_passed : -1;
    list_node_init(&s->exchanges);
    list_node_init(&s->ended);
    list_node_init(&s->again);
    start_deadlines(s);
    choose_workers();
    ignore_sigpipe();

    inferd_status status = listen_reserve_fds(s, err);
    if (status == INFERD_OK) status = start_slots(s, err);
    if (status == INFERD_OK && s->passed)
        status = listen_take(s, options->fd_passed, err);
    else if (status == INFERD_OK)
        status = listen_open(s, options->listen, err);
    if (status == INFERD_OK) status = start_library(s, err);
    if (status == INFERD_OK) status = start_handles(s, err);
    if (status != INFERD_OK) {
        http_close(s);
        return status;
    }
    *out = s;
    return INFERD_OK;
}

void http_drain(http_server *s) {
    INFERD_CHECK(!s->in_run);
    s->draining = true;
    if (s->passed)
        listen_pause(s, false); // listen_resume leaves it so
    else
        body_refuse_work(s);
}

bool http_is_passed(const http_server *s) {
    return s->passed;
}

/* A client connected or sent bytes, and the loop has not handled it yet. */
static bool has_unread(const http_server *s) {
    struct pollfd listening = {.fd = s->fd_listen, .events = POLLIN};
    bool accepts = s->fd_listen >= 0 && !s->passed;
    if (accepts && poll(&listening, 1, 0) > 0) return true;
    for (uint32_t i = 0; i < s->n_slots; i++) {
        const conn *c = s->slots[i].c;
        int n_waiting = 0;
        if (c != NULL && !c->cut && ioctl(c->fd, FIONREAD, &n_waiting) == 0 && n_waiting > 0)
            return true;
    }
    return false;
}

bool http_is_quiet(const http_server *s) {
    if (s->draining && s->passed && s->n_conns > 0) return false;
    return s->n_open == 0 && s->n_lingers == 0 && !has_unread(s);
}

static void on_handle_closed(uv_handle_t *handle) {
    http_server *s = handle->data;
    s->n_handles--;
}

static void close_handles(http_server *s) {
    uv_handle_t *handles[] = {(uv_handle_t *)&s->timer_mhd,  (uv_handle_t *)&s->timer_due,
                              (uv_handle_t *)&s->prepare,    (uv_handle_t *)&s->poll_mhd,
                              (uv_handle_t *)&s->poll_watch, (uv_handle_t *)&s->poll_listen};
    uint32_t n = s->n_handles; // the first n were opened, in this order
    for (uint32_t i = 0; i < n; i++)
        if (!uv_is_closing(handles[i])) uv_close(handles[i], on_handle_closed);
}

/* Stopping the library with suspended connections is undefined, so all of them are resumed first
 * and find that they are gone; a request that arrives in this last run finds s->closing. */
static void end_exchanges(http_server *s) {
    LIST_EACH_SAFE(node, next, &s->exchanges) {
        exchange *x = LIST_ENTRY(node, exchange, link);
        exchange_gone(x);
        exchange_resume(x);
    }
    s->in_run = true;
    inlet_run(s);
    s->in_run = false;
    MHD_stop_daemon(s->daemon);
    s->daemon = NULL;
}

void http_close(http_server *s) {
    if (s == NULL) return;
    s->closing = true;
    close_handles(s);
    listen_close(s);
    if (s->daemon != NULL) end_exchanges(s);
    while (s->n_lingers > 0) linger_end(s->lingers[0]);
    while (s->n_handles > 0 || s->n_works > 0) uv_run(s->loop, UV_RUN_ONCE);
    INFERD_CHECK(list_empty(&s->exchanges) && s->n_conns == 0);
    if (s->fd_watch >= 0) close(s->fd_watch);
    if (s->fd_reserve >= 0) close(s->fd_reserve);
    free(s->unix_path);
    free(s->slots);
    free(s->by_fd);
    free(s);
}
