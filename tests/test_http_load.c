/* test_http_load.c - the transport when there is too much of something, at its end, and where it
 * listens. */
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "http_client.h"

static reply r;

#define POST(path) "POST " path " HTTP/1.1\r\nHost: x\r\n" AUTH

/* -- too many -- */

static void full_server_closes_the_longest_idle(void) {
    http_options o = toy_options();
    int fds[40];
    o.limits.connections_max = 8;
    start(&o);
    for (int i = 0; i < 40; i++) { // most of them never say a word
        fds[i] = client_connect();
        iterate_for(1);
        if (i % 5 == 0) get_and_expect(fds[i], &r, 200);
    }
    get_and_expect(fds[39], &r, 200); // the newest are alive
    client_read(fds[1], &r, 100);
    EXPECT(r.closed); // the oldest are not
    for (int i = 0; i < 40; i++) close(fds[i]);
    stop();
}

static void busy_server_says_503_to_one_more(void) {
    http_options o = toy_options();
    int fds[8];
    o.limits.connections_max = 8;
    start(&o);
    for (int i = 0; i < 8; i++)
        fds[i] = client_with(POST("/v1/wait") "Content-Length: 2\r\n\r\n{}");
    iterate_until_handled(8);
    int fd = client_with("GET /v1/models HTTP/1.1\r\nHost: x\r\n" AUTH "\r\n");
    client_read(fd, &r, 1000);
    EXPECT_EQ(reply_status(&r), 503);
    EXPECT(reply_has(&r, "server_overloaded"));
    EXPECT(r.closed);
    close(fd);
    close(fds[0]);
    iterate_until_gone(1);
    fd = client_connect();
    get_and_expect(fd, &r, 200);
    close(fd);
    for (int i = 1; i < 8; i++) close(fds[i]);
    iterate_until_gone(8);
    stop();
}

/* Beyond the spare ones they wait in the queue of the socket and are served when there is room. */
static void queue_is_served_when_there_is_room(void) {
    enum { N = 8 + 64 + 20 };
    http_options o = toy_options();
    int fds[N];
    o.limits.connections_max = 8;
    start(&o);
    for (int i = 0; i < 8; i++)
        fds[i] = client_with(POST("/v1/wait") "Content-Length: 2\r\n\r\n{}");
    iterate_until_handled(8);
    for (int i = 8; i < N; i++) fds[i] = client_connect();
    iterate_for(20);
    int fd = client_connect();
    get_and_expect(fd, &r, 503);
    close(fd);
    for (int i = 0; i < N; i++) close(fds[i]);
    iterate_until_gone(8);
    fd = client_connect();
    get_and_expect(fd, &r, 200);
    close(fd);
    stop();
}

static void thousand_silent_connections_block_no_other(void) {
    enum { N = 1000 };
    http_options o = toy_options();
    static int fds[N];
    start(&o);
    for (int i = 0; i < N; i++) {
        fds[i] = client_with("GET /health HT");
        if (i % 50 == 0) iterate();
    }
    uint64_t begin_us = clock_now_us();
    int fd = client_connect();
    get_and_expect(fd, &r, 200);
    EXPECT(clock_now_us() - begin_us < 500000);
    close(fd);
    for (int i = 0; i < N; i++) close(fds[i]);
    iterate_for(20);
    stop();
}

static int count_fds(void) {
    int n = 0;
    for (int fd = 0; fd < 4096; fd++) n += fcntl(fd, F_GETFD) != -1;
    return n;
}

/* H36: a reset right behind the request, many times. */
static void resets_leave_nothing_behind(void) {
    http_options o = toy_options();
    static const char *const what[] = {POST("/v1/wait") "Content-Length: 2\r\n\r\n{}",
                                       POST("/v1/stream") "Content-Length: 2\r\n\r\n{}",
                                       POST("/v1/echo") "Content-Length: 2000\r\n\r\n{}",
                                       POST("/v1/work") "Content-Length: 2\r\n\r\n{}",
                                       "GET /health HTTP/1.1\r\nHo"};
    struct linger reset = {.l_onoff = 1, .l_linger = 0};
    start(&o);
    iterate_for(5);
    int before = count_fds();
    for (int i = 0; i < 400; i++) {
        int fd = client_with(what[i % 5]);
        if (i % 3 == 0) iterate();
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        close(fd);
    }
    iterate_until_open(0);
    for (int i = 0; i < 3000 && seen.n_done < 1; i++) iterate_for(1);
    iterate_for(50);
    EXPECT_EQ(count_fds(), before);
    EXPECT_EQ(seen.n_done, seen.n_done_gone);
    stop();
}

/* Streams that ended early were closed, but their sockets were freed only after every older
 * connection: one idle client was enough to keep thousands. */
static void ended_streams_free_their_sockets_behind_an_idle_one(void) {
    http_options o = toy_options();
    int fds[30];
    start(&o);
    int idle = client_connect();
    get_and_expect(idle, &r, 200);
    int before = count_fds();
    for (int i = 0; i < 30; i++) {
        fds[i] = client_with(i % 3 != 2 ? POST("/v1/stream") "Content-Length: 2\r\n\r\n{}"
                                        : "POST /v1/stream HTTP/1.0\r\n" AUTH
                                          "Content-Length: 2\r\n\r\n{}");
        iterate_until_handled((uint32_t)i + 2);
        if (i % 3 == 0) http_stream_abort(seen.waiting);
        if (i % 3 == 2) http_stream_end(seen.waiting);
        iterate_for(1);
    }
    for (int i = 0; i < 30; i++) close(fds[i]);
    iterate_until_open(0);
    iterate_for(20);
    EXPECT_EQ(count_fds(), before);
    get_and_expect(idle, &r, 200);
    close(idle);
    stop();
}

/* Sixteen GETs with 500 arguments each ended the process: the library's records of them filled the
 * connection's buffer, the request stalled until its deadline, and the answer of 408 moved a
 * connection that was on none of the library's lists. */
static void many_arguments_are_refused_at_once(void) {
    http_options o = toy_options();
    static const int n_arguments[] = {65, 100, 300, 500, 2000};
    static const int n_header_bytes[] = {0, 1000, 5000, 9000, 15000};
    static char text[40 * 1024];
    o.limits.header_timeout_ms = 150;
    start(&o);
    for (int i = 0; i < 50; i++) {
        size_t n = (size_t)sprintf(text, "GET /health?");
        for (int k = 1; k < n_arguments[i % 5]; k++)
            n += (size_t)sprintf(text + n, i < 25 ? "a=b&" : "&");
        n += (size_t)sprintf(text + n, " HTTP/1.1\r\nHost: x\r\n");
        n += (size_t)sprintf(text + n, "A: %0*d\r\n\r\n", n_header_bytes[i / 5 % 5] + 1, 0);
        int fd = client_connect();
        if (i % 2 == 0) get_and_expect(fd, &r, 200);
        EXPECT_EQ(send(fd, text, n, MSG_NOSIGNAL), n); // all is there when the library looks
        client_read(fd, &r, 1000);
        EXPECT_EQ(reply_status(&r), 414);
        EXPECT(reply_has(&r, "request_too_large"));
        EXPECT(reply_has(&r, "\r\nx-request-id: req-"));
        EXPECT(r.closed);
        close(fd);
    }
    iterate_for(200); // past the deadline that they once met
    EXPECT_EQ(seen.n_finished, 50 + 25);
    EXPECT_EQ(http_n_open(server), 0);
    int fd = client_connect();
    get_and_expect(fd, &r, 200);
    close(fd);
    stop();
}

/* Up to the bound, and with as many headers as are allowed, the buffer has room for all of it. */
static void arguments_up_to_the_bound_are_served(void) {
    http_options o = toy_options();
    static char text[32 * 1024];
    start(&o);
    for (int n_arguments = 60; n_arguments <= 68; n_arguments++) {
        for (int long_headers = 0; long_headers < 2; long_headers++) {
            size_t n = (size_t)sprintf(text, "GET /health?");
            for (int i = 0; i < n_arguments; i++)
                n += (size_t)sprintf(text + n, i == 0 ? "a=b" : i % 2 ? "&a" : "&a=b");
            n += (size_t)sprintf(text + n, " HTTP/1.1\r\nHost: x\r\n");
            for (int i = 0; i < 99; i++)
                n += (size_t)sprintf(text + n, "A: %0*d\r\n", long_headers ? 150 : 1, 0);
            sprintf(text + n, "\r\n");
            int fd = client_with(text);
            client_read(fd, &r, 1000);
            EXPECT_EQ(reply_status(&r), n_arguments <= 64 ? 200 : 414);
            EXPECT_EQ(r.closed, n_arguments > 64);
            close(fd);
        }
    }
    stop();
}

static void lack_of_descriptors_is_survived(void) {
    http_options o = toy_options();
    struct rlimit before, less;
    int fds[16], n = 0;
    start(&o);
    for (; n < 8; n++) fds[n] = client_connect();
    iterate_for(10);
    getrlimit(RLIMIT_NOFILE, &before);
    for (; n < 16; n++) fds[n] = client_connect(); // wait to be accepted
    less = before;
    less.rlim_cur = (rlim_t)fds[15] + 3; // two more, for eight connections
    setrlimit(RLIMIT_NOFILE, &less);
    iterate_for(50);
    setrlimit(RLIMIT_NOFILE, &before);
    iterate_for(250);
    int fd = client_connect();
    get_and_expect(fd, &r, 200);
    close(fd);
    for (int i = 0; i < n; i++) close(fds[i]);
    stop();
}

/* In a child, because a hard limit cannot be raised again.  Exit status: what http_open said. */
static int open_with_descriptors(rlim_t soft, rlim_t hard, uint32_t connections_max) {
    pid_t child = fork();
    if (child == 0) {
        http_options o = toy_options();
        struct rlimit limit = {.rlim_cur = soft, .rlim_max = hard};
        uv_loop_t own;
        inferd_err said = {0};
        o.limits.connections_max = connections_max;
        log_open("/dev/null", false, LOG_LEVEL_ERROR, NULL);
        setrlimit(RLIMIT_NOFILE, &limit);
        uv_loop_init(&own);
        inferd_status s = http_open(&o, &own, &server, &said);
        getrlimit(RLIMIT_NOFILE, &limit);
        if (s == INFERD_OK) http_close(server);
        if (s != INFERD_OK && strstr(said.text, "ulimit") == NULL) _exit(99);
        _exit(s != INFERD_OK ? 1 : limit.rlim_cur == hard ? 2 : 3);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void descriptors_are_raised_or_the_lack_is_told(void) {
    EXPECT_EQ(open_with_descriptors(256, 2000, 1000), 2);  // raised to the hard limit
    EXPECT_EQ(open_with_descriptors(1500, 2000, 1000), 3); // enough already
    EXPECT_EQ(open_with_descriptors(256, 800, 1000), 2);   // fewer connections than wished
    EXPECT_EQ(open_with_descriptors(256, 300, 1000), 1);   // not enough to be of use
}

static void overload_is_said_before_the_body(void) {
    http_options o = toy_options();
    start(&o);
    seen.overloaded_s = 61;
    int fd = client_with(POST("/v1/echo") "Content-Length: 100000\r\n\r\n");
    client_read(fd, &r, 1000);
    EXPECT_EQ(reply_status(&r), 503);
    EXPECT(reply_has(&r, "\r\nRetry-After: 61\r\n"));
    EXPECT(reply_has(&r, "\r\nx-should-retry: false\r\n"));
    EXPECT(r.closed);
    close(fd);
    fd = client_connect();
    get_and_expect(fd, &r, 200); // health is no work
    close(fd);
    EXPECT_EQ(seen.n_handled, 1);
    stop();
}

/* -- the end -- */

static void expect_last_answer(int fd, int status) {
    client_read(fd, &r, 1000);
    EXPECT_EQ(reply_status(&r), status);
    EXPECT(reply_has(&r, "\r\nConnection: close\r\n"));
    EXPECT(r.closed && !r.reset);
    close(fd);
}

/* Idle connections were closed without a word, and new ones were reset: a load balancer in front
 * took that for a crash. */
static void draining_answers_new_connections(const char *listen_at) {
    http_options o = toy_options();
    o.listen = listen_at;
    start(&o);
    int idle = client_connect(), idle_too = client_connect();
    get_and_expect(idle, &r, 200);
    get_and_expect(idle_too, &r, 200);
    int busy = client_with(POST("/v1/wait") "Content-Length: 2\r\n\r\n{}" POST(
        "/v1/echo") "Content-Length: 2\r\n\r\n{}");
    iterate_until_handled(3);
    int late = client_with("GET /health HTT");
    iterate_for(5);
    http_drain(server);
    iterate_for(20);
    client_text(idle, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
    expect_last_answer(idle, 200);
    client_text(idle_too, POST("/v1/echo") "Content-Length: 2\r\n\r\n{}");
    client_read(idle_too, &r, 1000);
    EXPECT(reply_has(&r, "\r\nRetry-After: "));
    EXPECT(reply_has(&r, "\"code\":\"shutting_down\""));
    EXPECT_EQ(reply_status(&r), 503);
    EXPECT(r.closed);
    close(idle_too);
    client_text(late, "P/1.1\r\nHost: x\r\n\r\n");
    expect_last_answer(late, 200);
    expect_last_answer(client_with("GET /health HTTP/1.1\r\nHost: x\r\n\r\n"), 200);
    expect_last_answer(client_with(POST("/v1/echo") "Content-Length: 2\r\n\r\n{}"), 503);
    EXPECT_EQ(http_n_open(server), 1);
    answer_text(seen.waiting, 200, "done");
    expect_last_answer(busy, 200); // what was pipelined behind it is not begun
    EXPECT_EQ(seen.n_handled, 6);  // no work among them
    stop();
}
static void draining_answers_on_tcp(void) {
    draining_answers_new_connections("127.0.0.1:0");
}
static void draining_answers_on_a_socket_file(void) {
    char path[64];
    snprintf(path, sizeof path, "unix:inferd-drain-%d.sock", (int)getpid());
    draining_answers_new_connections(path);
    EXPECT_EQ(access(path + 5, F_OK), -1);
}

/* The end must not come between a request and the turn of the loop that reads it. */
static void a_request_that_has_arrived_is_not_quiet(void) {
    http_options o = toy_options();
    start(&o);
    int idle = client_connect();
    get_and_expect(idle, &r, 200);
    iterate_for(5);
    http_drain(server);
    EXPECT(http_is_quiet(server));
    static const char text[] = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n";
    EXPECT_EQ(send(idle, text, sizeof text - 1, 0), (ssize_t)sizeof text - 1);
    EXPECT(!http_is_quiet(server));
    expect_last_answer(idle, 200);
    EXPECT(http_is_quiet(server));
    int fresh = client_connect(); // nobody has accepted it
    EXPECT(!http_is_quiet(server));
    close(fresh);
    iterate_for(5);
    EXPECT(http_is_quiet(server));
    int waits = client_with(POST("/v1/models/x") "Content-Length: 2\r\n\r\n"); // 405
    iterate_for(5);
    EXPECT(!http_is_quiet(server)); // what it may still send is heard out
    close(waits);
    iterate_for(5);
    EXPECT(http_is_quiet(server));
    stop();
}

static void draining_refuses_new_work(void) {
    http_options o = toy_options();
    start(&o);
    int stream = client_with(POST("/v1/stream") "Content-Length: 2\r\n\r\n{}" POST(
        "/v1/echo") "Content-Length: 2\r\n\r\n{}");
    iterate_until_handled(1);
    iterate_for(5);
    http_drain(server);
    http_stream_end(seen.waiting); // begun before, so it keeps its connection
    r.n = 0, r.closed = r.reset = false;
    for (int i = 0; i < 500 && !r.closed; i++) {
        iterate_for(1);
        client_read_some(stream, &r);
    }
    EXPECT(reply_has(&r, "\r\n0\r\n\r\nHTTP/1.1 503 "));
    EXPECT(reply_has(&r, "shutting_down"));
    EXPECT(reply_has(&r, "\r\nConnection: close\r\n"));
    EXPECT(r.closed);
    EXPECT_EQ(seen.n_handled, 1);
    close(stream);
    stop();
}

/* A body that was half there at the drain was waited for until its deadline or the end of the
 * process, though its answer was known.  What is no work is still read to its end. */
static void draining_answers_clients_that_are_still_sending(void) {
    static const char *const work[] = {
        POST("/v1/echo") "Content-Length: 9\r\n\r\n",
        POST("/v1/echo") "Content-Length: 9\r\n\r\n{}",
        POST("/v1/echo") "Transfer-Encoding: chunked\r\n\r\n5\r\n{}",
        POST("/v1/echo") "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nA",
        POST("/v1/echo") "Expect: 100-continue\r\nContent-Length: 9\r\n\r\n",
        "GET /health HTTP/1.1\r\nHost: x\r\n\r\n" POST("/v1/echo") "Content-Length: 9\r\n\r\n{}",
    };
    static const struct {
        const char *half, *rest;
        int status;
    } others[] = {
        {POST("/admin/do") "Content-Length: 3\r\n\r\n{", " }", 200},
        {POST("/admin/do") "Transfer-Encoding: chunked\r\n\r\n2\r\n{", "}\r\n0\r\n\r\n", 200},
        {"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nx", "y", 200},
        {POST("/v1/echo") "Content-Len", "gth: 2\r\n\r\n{}", 503},
    };
    enum { N_WORK = INFERD_COUNT(work), N_OTHERS = INFERD_COUNT(others) };
    int fds[N_WORK], other_fds[N_OTHERS];
    http_options o = toy_options();
    o.limits.body_timeout_ms = o.limits.header_timeout_ms = 60000;
    start(&o);
    int busy = client_with(POST("/v1/wait") "Content-Length: 2\r\n\r\n{}");
    iterate_until_handled(1);
    for (size_t i = 0; i < N_WORK; i++) fds[i] = client_with(work[i]);
    for (size_t i = 0; i < N_OTHERS; i++) other_fds[i] = client_with(others[i].half);
    iterate_until_open(1 + N_WORK + N_OTHERS - 1); // the last is no request yet
    uint32_t n_finished = seen.n_finished;
    http_drain(server);
    iterate_until_open(1 + N_OTHERS - 1);
    EXPECT_EQ(seen.n_finished, n_finished + N_WORK);
    EXPECT_EQ(seen.last_status, 503);
    for (size_t i = 0; i < N_WORK; i++) {
        int before = test_failures, statuses[2];
        client_text(fds[i], "and what was still to come");
        client_read_all(fds[i], &r, 0, 1000);
        int n = reply_statuses(&r, statuses, 2);
        EXPECT_EQ(n, i < 4 ? 1 : 2); // 100 or the answer of a request before
        EXPECT(n > 0 && statuses[n - 1] == 503);
        EXPECT(reply_has(&r, "\r\nRetry-After: "));
        EXPECT(reply_has(&r, "\"code\":\"shutting_down\""));
        EXPECT(r.closed && !r.reset);
        if (test_failures != before) printf("  work %zu\n", i);
        close(fds[i]);
    }
    for (size_t i = 0; i < N_OTHERS; i++) {
        client_text(other_fds[i], others[i].rest);
        expect_last_answer(other_fds[i], others[i].status);
    }
    http_drain(server); // again, with nothing to tell
    answer_text(seen.waiting, 200, "done");
    expect_last_answer(busy, 200);
    iterate_until_open(0);
    stop();
}

static void closing_cuts_everything(void) {
    http_options o = toy_options();
    start(&o);
    int a = client_with(POST("/v1/wait") "Content-Length: 2\r\n\r\n{}");
    int b = client_with(POST("/v1/stream") "Content-Length: 2\r\n\r\n{}");
    int c = client_with(POST("/v1/work") "Content-Length: 2\r\n\r\n{}");
    int d = client_with(POST("/v1/echo") "Content-Length: 200\r\n\r\n{}");
    int e = client_with("GET /health HTTP/1.1\r\nHo");
    int f = client_connect();
    iterate_until_handled(3);
    iterate_for(5);
    stop();
    EXPECT_EQ(seen.n_gone, 2);
    EXPECT_EQ(seen.n_done_gone, 1);
    int fds[] = {a, b, c, d, e, f};
    for (size_t i = 0; i < INFERD_COUNT(fds); i++) close(fds[i]);
}

/* They are read by the library when it runs for the last time: what waits then was suspended, and
 * the library does not stop with that. */
static void requests_that_arrive_while_it_closes_are_cut(void) {
    static const char *const requests[] = {POST("/v1/wait") "Content-Length: 2\r\n\r\n{}",
                                           POST("/v1/stream") "Content-Length: 2\r\n\r\n{}",
                                           POST("/v1/work") "Content-Length: 2\r\n\r\n{}"};
    int fds[INFERD_COUNT(requests)];
    http_options o = toy_options();
    start(&o);
    for (size_t i = 0; i < INFERD_COUNT(fds); i++) fds[i] = client_connect();
    iterate_for(5); // all are accepted
    for (size_t i = 0; i < INFERD_COUNT(fds); i++)
        EXPECT_EQ(send(fds[i], requests[i], strlen(requests[i]), MSG_NOSIGNAL),
                  (ssize_t)strlen(requests[i]));
    stop();
    EXPECT_EQ(seen.n_gone + seen.n_done_gone, seen.n_handled);
    for (size_t i = 0; i < INFERD_COUNT(fds); i++) close(fds[i]);
}

/* -- listening -- */

static void loopback_is_told_apart(void) {
    static const struct {
        const char *listen;
        bool loopback, valid;
    } tries[] = {
        {"127.0.0.1:8080", true, true},
        {"127.9.9.9:0", true, true},
        {"localhost:80", true, true},
        {"[::1]:8080", true, true},
        {"unix:/run/x.sock", true, true},
        {"0.0.0.0:8080", false, true},
        {"192.168.0.1:80", false, true},
        {"[::]:80", false, true},
        {"example.com:80", false, false},
        {"127.0.0.1", false, false},
        {"127.0.0.1:", false, false},
        {"127.0.0.1:65536", false, false},
        {"127.0.0.1:8x", false, false},
        {":8080", true, true},
        {"8080", true, true},
        {"80 80", false, false},
        {":", false, false},
        {"", false, false},
        {"::1:8080", false, false},
        {"[::1]", false, false},
        {"unix:", false, false},
        {"127.0.0.1:-1", false, false},
        {"127.0.0.1:000080", false, false},
    };
    inferd_err err;
    for (size_t i = 0; i < INFERD_COUNT(tries); i++) {
        EXPECT_EQ(http_is_loopback(tries[i].listen), tries[i].loopback);
        EXPECT_EQ(http_check_listen(tries[i].listen, false, &err) == INFERD_OK, tries[i].valid);
        EXPECT_EQ(http_check_listen(tries[i].listen, true, &err) == INFERD_OK,
                  tries[i].valid && tries[i].loopback);
    }
}

/* The error of http_open with these options. */
static void open_fails(const http_options *o, const char *sentence) {
    http_server *second = NULL;
    inferd_err err = {0};
    uv_loop_t other;
    uv_loop_init(&other);
    EXPECT(http_open(o, &other, &second, &err) != INFERD_OK);
    if (strstr(err.text, sentence) == NULL) {
        EXPECT_STR(err.text, sentence);
    }
    EXPECT_EQ(uv_loop_close(&other), 0); // nothing is left in the loop
}

static void what_cannot_be_listened_on_is_said(void) {
    http_options o = toy_options(), bad = toy_options();
    char taken[64];
    start(&o);
    snprintf(taken, sizeof taken, "%s", http_address(server));
    bad.listen = taken;
    open_fails(&bad, "in use");
    bad.listen = "203.0.113.7:0";
    open_fails(&bad, "does not have that address");
    bad.listen = "example.com:80";
    open_fails(&bad, "numeric address");
    bad.listen = "0.0.0.0:0";
    bad.tenant_of_key = NULL;
    open_fails(&bad, "needs keys");
    char path[200] = "unix:/";
    memset(path + 6, 'x', 150);
    bad.listen = path;
    open_fails(&bad, "at most 107");
    stop();
}

static void unix_socket_is_served_and_stale_ones_replaced(void) {
    http_options o = toy_options();
    char folder[] = "/tmp/inferd-test-XXXXXX", listen[80], path[64];
    struct stat st;
    EXPECT(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/s", folder);
    snprintf(listen, sizeof listen, "unix:%s", path);
    o.listen = listen;
    /* Left behind by a process that was killed: bound, without a listener. */
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    int stale = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(un.sun_path, sizeof un.sun_path, "%s", path);
    EXPECT_EQ(bind(stale, (struct sockaddr *)&un, sizeof un), 0);
    close(stale);
    start(&o);
    EXPECT_STR(http_address(server), listen);
    int fd = client_connect();
    get_and_expect(fd, &r, 200);
    get_and_expect(fd, &r, 200);
    close(fd);
    fd = client_with(POST("/v1/stream") "Content-Length: 2\r\n\r\n{}");
    iterate_until_handled(3);
    close(fd);
    iterate_until_gone(1);
    open_fails(&o, "in use by another process");
    stop();
    EXPECT(lstat(path, &st) != 0); // removed at the end
    FILE *f = fopen(path, "w");
    fclose(f);
    open_fails(&o, "is not a socket");
    EXPECT(lstat(path, &st) == 0); // and it was not touched
    unlink(path);
    rmdir(folder);
}

/* There unlink fails with EROFS before it looks for the file. */
static void a_read_only_folder_has_no_stale_socket(void) {
    http_options o = toy_options();
    char folder[] = "/tmp/inferd-test-XXXXXX", listen[80];
    enum { NO_MOUNTS = 77 };
    int status = 0;
    EXPECT(mkdtemp(folder) != NULL);
    snprintf(listen, sizeof listen, "unix:%s/s", folder);
    o.listen = listen;
    pid_t child = fork();
    if (child == 0) {
        if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0 ||
            mount("none", folder, "tmpfs", MS_RDONLY, NULL) != 0)
            _exit(NO_MOUNTS);
        test_failures = 0;
        open_fails(&o, "s: Read-only file system");
        fflush(stdout);
        _exit(test_failures);
    }
    EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status));
    rmdir(folder);
    if (WEXITSTATUS(status) == NO_MOUNTS) SKIP("no mount namespaces");
    EXPECT_EQ(WEXITSTATUS(status), 0);
}

static const test_case cases[] = {
    TEST(full_server_closes_the_longest_idle),
    TEST(busy_server_says_503_to_one_more),
    TEST(queue_is_served_when_there_is_room),
    TEST(thousand_silent_connections_block_no_other),
    TEST(resets_leave_nothing_behind),
    TEST(ended_streams_free_their_sockets_behind_an_idle_one),
    TEST(many_arguments_are_refused_at_once),
    TEST(arguments_up_to_the_bound_are_served),
    TEST(lack_of_descriptors_is_survived),
    TEST(descriptors_are_raised_or_the_lack_is_told),
    TEST(overload_is_said_before_the_body),
    TEST(draining_answers_on_tcp),
    TEST(draining_answers_on_a_socket_file),
    TEST(a_request_that_has_arrived_is_not_quiet),
    TEST(draining_refuses_new_work),
    TEST(draining_answers_clients_that_are_still_sending),
    TEST(closing_cuts_everything),
    TEST(requests_that_arrive_while_it_closes_are_cut),
    TEST(loopback_is_told_apart),
    TEST(what_cannot_be_listened_on_is_said),
    TEST(unix_socket_is_served_and_stale_ones_replaced),
    TEST(a_read_only_folder_has_no_stale_socket),
};
TEST_MAIN(cases)
