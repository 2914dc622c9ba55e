/* test_http.c - the transport over real sockets: keep-alive, bodies, streams, deadlines, clients
 * that leave. */
#include "http_client.h"
#include "json_out.h"

static reply r;

#define POST(path) "POST " path " HTTP/1.1\r\nHost: x\r\n" AUTH

/* -- requests and answers -- */

static void get_is_answered_and_kept_alive(void) {
    http_options o = toy_options();
    start(&o);
    int fd = client_connect();
    for (uint32_t i = 0; i < 3; i++) {
        get_and_expect(fd, &r, 200);
        EXPECT(!r.closed);
        EXPECT(reply_has(&r, "\r\nx-request-id: req-"));
        EXPECT(reply_has(&r, "\r\n\r\nok"));
    }
    EXPECT_EQ(seen.n_finished, 3);
    EXPECT_EQ(seen.last_status, 200);
    EXPECT_EQ(http_n_open(server), 0);
    close(fd);
    stop();
}

static void body_arrives_whole_however_it_is_cut(void) {
    http_options o = toy_options();
    start(&o);
    int fd = client_with(POST("/v1/echo") "Content-Length: 11\r\n\r\nhello");
    iterate_for(5);
    client_text(fd, " world");
    client_read(fd, &r, 1000);
    EXPECT_EQ(reply_status(&r), 200);
    EXPECT(reply_has(&r, "\r\n\r\nhello world"));
    EXPECT(reply_has(&r, "x-toy: yes\r\n"));
    client_text(fd,
                POST("/v1/echo") "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;x=y\r\n wor");
    iterate_for(2);
    client_text(fd, "ld\r\n0\r\n\r\n");
    client_read(fd, &r, 1000);
    EXPECT_EQ(reply_status(&r), 200);
    EXPECT(reply_has(&r, "\r\n\r\nhello world"));
    EXPECT(!r.closed);
    close(fd);
    stop();
}

static void every_request_has_its_own_id(void) {
    http_options o = toy_options();
    char first[64];
    start(&o);
    int fd = client_connect();
    get_and_expect(fd, &r, 200);
    snprintf(first, sizeof first, "%.50s", strstr(r.text, "x-request-id: "));
    EXPECT_EQ(strspn(first + 18, "0123456789abcdef"), 32);
    get_and_expect(fd, &r, 200);
    EXPECT(!reply_has(&r, first));
    close(fd);
    stop();
}

static void timeout_of_the_client_is_a_hint(void) {
    http_options o = toy_options();
    start(&o);
    int fd = client_with(
        POST("/v1/echo") "x-stainless-read-timeout: 12.5\r\nContent-Length: 2\r\n\r\n{}");
    client_read(fd, &r, 1000);
    EXPECT_EQ(seen.deadline_after_us, 12500000);
    close(fd);
    stop();
}

static void long_answer_arrives_whole(void) {
    http_options o = toy_options();
    start(&o);
    int fd = client_with(POST("/v1/big") "Content-Length: 6\r\n\r\n200000");
    client_read(fd, &r, 3000);
    EXPECT_EQ(reply_status(&r), 200);
    EXPECT(reply_has(&r, "\r\nContent-Length: 200000\r\n"));
    const char *body = strstr(r.text, "\r\n\r\n") + 4;
    size_t n = r.n - (size_t)(body - r.text), n_wrong = 0;
    EXPECT_EQ(n, 200000);
    for (size_t i = 0; i < n; i++) n_wrong += body[i] != (char)('a' + i % 26);
    EXPECT_EQ(n_wrong, 0);
    EXPECT(!r.closed);
    get_and_expect(fd, &r, 200);
    close(fd);
    stop();
}

static void error_bodies_escape_what_they_say(void) {
    buf out;
    buf_init(&out, 0);
    static const char text[] =
        "a\"\\\n\x01\x7f/\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xff\xed\xa0\x80\xc0\xaf";
    json_add_string(&out, text, sizeof text - 1);
    EXPECT_STR(buf_cstr(&out),
               "\"a\\\"\\\\\\n\\u0001\x7f/\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"
               "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");
    buf_clear(&out);
    json_add_string(&out, "a\0b", 3);
    json_add_string(&out, "", 0);
    json_add_string(&out, "\xf0\x9f\x98", 3); // cut
    EXPECT_STR(buf_cstr(&out), "\"a\\u0000b\"\"\"\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");
    buf_deinit(&out);
}

/* -- work and waiting -- */

static void work_runs_elsewhere_and_answers_here(void) {
    http_options o = toy_options();
    start(&o);
    int fd = client_with(POST("/v1/work") "Content-Length: 2\r\n\r\n{}");
    client_read(fd, &r, 2000);
    EXPECT_EQ(reply_status(&r), 200);
    EXPECT(reply_has(&r, "worked"));
    EXPECT_EQ(seen.n_done, 1);
    EXPECT_EQ(seen.n_done_gone, 0);
    EXPECT_EQ(seen.n_gone, 0);
    close(fd);
    stop();
}

/* The handler's state must outlive the worker, so `done` and not on_gone is told. */
static void client_that_leaves_during_work_is_told_to_done(void) {
    http_options o = toy_options();
    start(&o);
    int fd = client_with(POST("/v1/work") "Content-Length: 2\r\n\r\n{}");
    iterate_until_handled(1);
    close(fd);
    for (int i = 0; i < 1000 && seen.n_done == 0; i++) iterate_for(1);
    EXPECT_EQ(seen.n_done, 1);
    EXPECT_EQ(seen.n_done_gone, 1);
    EXPECT_EQ(seen.n_gone, 0);
    EXPECT_EQ(seen.last_status, 499);
    iterate_until_open(0);
    stop();
}

static void waiting_client_that_leaves_is_noticed_at_once(void) {
    http_options o = toy_options();
    start(&o);
    int fd = client_with(POST("/v1/wait") "Content-Length: 2\r\n\r\n{}");
    iterate_until_handled(1);
    EXPECT_EQ(http_n_open(server), 1);
    uint64_t begin_us = clock_now_us();
    close(fd);
    iterate_until_gone(1);
    EXPECT(clock_now_us() - begin_us < 500000);
    iterate_until_open(0);
    EXPECT_EQ(seen.last_status, 499);
    stop();
}

static void late_answer_reaches_the_client(void) {
    http_options o = toy_options();
    start(&o);
    int fd = client_with(POST("/v1/wait") "Content-Length: 2\r\n\r\n{}");
    iterate_until_handled(1);
    iterate_for(10);
    http_answer_error(seen.waiting, 503, "overloaded_error", "model_loading", "model",
                      "Loading \"m\".", 90);
    client_read(fd, &r, 1000);
    EXPECT_EQ(reply_status(&r), 503);
    EXPECT(reply_has(&r, "\r\nRetry-After: 90\r\n")); // longer than clients wait
    EXPECT(reply_has(&r, "\r\nx-should-retry: false\r\n"));
    EXPECT(reply_has(&r,
                     "{\"error\":{\"message\":\"Loading \\\"m\\\".\",\"type\":\"overloaded_error\","
                     "\"param\":\"model\",\"code\":\"model_loading\"}}"));
    EXPECT(!r.closed);
    client_text(fd, POST("/v1/wait") "Content-Length: 2\r\n\r\n{}");
    iterate_until_handled(2);
    http_answer_error(seen.waiting, 503, "unavailable_error", NULL, NULL, "Broken.", 0);
    client_read(fd, &r, 1000);
    EXPECT(reply_has(&r, "\r\nx-should-retry: false\r\n"));
    EXPECT(!reply_has(&r, "Retry-After"));
    EXPECT(reply_has(&r, "\"code\":null"));
    EXPECT_EQ(seen.n_gone, 0);
    close(fd);
    stop();
}

/* What a tenant has used up comes back at a known time; clients that would not wait for it must not
 * ask again by themselves. */
static void a_limit_tells_the_true_time(void) {
    static const struct {
        unsigned s;
        const char *lines;
        bool waits;
    } rows[] = {{7, "\r\nRetry-After: 7\r\nretry-after-ms: 7000\r\n", true},
                {60, "\r\nRetry-After: 60\r\nretry-after-ms: 60000\r\n", true},
                {61, "\r\nRetry-After: 61\r\nretry-after-ms: 61000\r\n", false},
                {2678400, "\r\nRetry-After: 2678400\r\nretry-after-ms: 2678400000\r\n", false},
                {0, "\r\nx-should-retry: false\r\n", false}}; // nobody knows: no time at all
    http_options o = toy_options();
    start(&o);
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        int fd = client_with(POST("/v1/wait") "Content-Length: 2\r\n\r\n{}");
        iterate_until_handled((int)i + 1);
        http_answer_error(seen.waiting, 429, "tokens", "rate_limit_exceeded", NULL, "Wait.",
                          rows[i].s);
        client_read(fd, &r, 1000);
        EXPECT_EQ(reply_status(&r), 429);
        EXPECT(reply_has(&r, rows[i].lines));
        EXPECT_EQ(!reply_has(&r, "\r\nx-should-retry: false\r\n"), rows[i].waits);
        EXPECT_EQ(reply_has(&r, "Retry-After") && reply_has(&r, "retry-after"), rows[i].s > 0);
        close(fd);
    }
    stop();
}

static int hooked_tenant;
static void say_tenant(void *ctx, const http_request *rq, char out[HTTP_LINES_BYTES]) {
    hooked_tenant = rq->tenant;
    snprintf(out, HTTP_LINES_BYTES, "x-one: %s\nx-two: 2\n", (const char *)ctx);
}

/* Whole answers and errors; tests/test_http_stream and others look at streams. */
static void headers_of_the_front_are_on_every_answer(void) {
    static char word[] = "hooked";
    for (int with = 0; with < 2; with++) {
        http_options o = toy_options();
        o.ctx = word;
        o.reply_lines = with ? say_tenant : NULL;
        start(&o);
        int fd = client_connect();
        get_and_expect(fd, &r, 200);
        EXPECT_EQ(reply_has(&r, "\r\nx-one: hooked\r\n"), with);
        client_text(fd, "GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n");
        client_read(fd, &r, 1000);
        EXPECT_EQ(reply_status(&r), 404);
        EXPECT_EQ(reply_has(&r, "\r\nx-two: 2\r\n"), with);
        close(fd);
        stop();
    }
    EXPECT_EQ(hooked_tenant, -1);
}

static void answer_after_the_client_left_is_dropped(void) {
    http_options o = toy_options();
    start(&o);
    int fd = client_with(POST("/v1/wait") "Content-Length: 2\r\n\r\n{}");
    iterate_until_handled(1);
    http_request *rq = seen.waiting;
    close(fd);
    /* Between the news and the end of the exchange the handler may still be busy with it. */
    for (int i = 0; i < 1000 && seen.n_gone == 0; i++) {
        uv_run(&loop, UV_RUN_ONCE);
        if (seen.n_gone == 1 && http_n_open(server) == 1) answer_text(rq, 200, "late");
    }
    iterate_until_open(0);
    EXPECT_EQ(seen.n_gone, 1);
    stop();
}

/* -- streams -- */

static void stream_is_chunked_and_kept_alive(void) {
    http_options o = toy_options();
    start(&o);
    int fd = client_with(POST("/v1/stream") "Content-Length: 2\r\n\r\n{}");
    iterate_until_handled(1);
    EXPECT(http_stream_write(seen.waiting, "data: 1\n\n", 9));
    EXPECT(http_stream_write(seen.waiting, "data: 2\n\n", 9));
    http_flush(server);
    iterate_for(5);
    EXPECT(http_stream_write(seen.waiting, "data: [DONE]\n\n", 14));
    http_stream_end(seen.waiting);
    client_read(fd, &r, 1000);
    EXPECT_EQ(reply_status(&r), 200);
    EXPECT(reply_has(&r, "\r\nContent-Type: text/event-stream\r\n"));
    EXPECT(reply_has(&r, "\r\nCache-Control: no-cache\r\n"));
    EXPECT(reply_has(&r, "\r\nx-request-id: req-"));
    EXPECT(reply_has(&r, "data: 0\n\n") && reply_has(&r, "data: 2\n\n"));
    EXPECT(reply_has(&r, "data: [DONE]\n\n\r\n0\r\n\r\n"));
    EXPECT(!r.closed);
    EXPECT_EQ(seen.n_gone, 0);
    iterate_until_open(0);
    get_and_expect(fd, &r, 200);
    close(fd);
    stop();
}

static void aborted_stream_shows_a_cut(void) {
    http_options o = toy_options();
    start(&o);
    int fd = client_with(POST("/v1/stream") "Content-Length: 2\r\n\r\n{}");
    iterate_until_handled(1);
    http_stream_write(seen.waiting, "data: error\n\n", 13);
    http_stream_abort(seen.waiting);
    client_read(fd, &r, 1000);
    EXPECT(reply_has(&r, "data: error\n\n"));
    EXPECT(!reply_has(&r, "\r\n0\r\n\r\n"));
    EXPECT(r.closed);
    EXPECT_EQ(seen.n_gone, 0);
    close(fd);
    stop();
}

static void stream_to_http_10_ends_with_the_connection(void) {
    http_options o = toy_options();
    start(&o);
    int fd = client_with("POST /v1/stream HTTP/1.0\r\n" AUTH "Content-Length: 2\r\n\r\n{}");
    iterate_until_handled(1);
    http_stream_end(seen.waiting);
    client_read(fd, &r, 1000);
    EXPECT_EQ(reply_status(&r), 200);
    EXPECT(reply_has(&r, "\r\n\r\ndata: 0\n\n"));
    EXPECT(!reply_has(&r, "chunked"));
    EXPECT(r.closed);
    close(fd);
    stop();
}

static void stream_client_that_leaves_is_noticed(void) {
    http_options o = toy_options();
    start(&o);
    int fd = client_with(POST("/v1/stream") "Content-Length: 2\r\n\r\n{}");
    iterate_until_handled(1);
    iterate_for(5);
    close(fd);
    iterate_until_gone(1);
    iterate_until_open(0);
    stop();
}

/* H34: what is pipelined behind a stream does not run when its client is gone. */
static void request_behind_a_cut_stream_never_runs(void) {
    http_options o = toy_options();
    start(&o);
    int fd = client_with(POST("/v1/stream") "Content-Length: 2\r\n\r\n{}" POST(
        "/v1/echo") "Content-Length: 2\r\n\r\n{}");
    iterate_until_handled(1);
    iterate_for(5);
    close(fd);
    iterate_until_gone(1);
    iterate_until_open(0);
    EXPECT_EQ(seen.n_handled, 1);
    stop();
}

/* Event after event to a client that does not read, until `n` bytes are written or it is cut. */
static bool flood(size_t n) {
    static char event[1024];
    memset(event, 'x', sizeof event);
    for (size_t done = 0; done < n; done += sizeof event) {
        if (!http_stream_write(seen.waiting, event, sizeof event)) return false;
        iterate();
    }
    return true;
}

static void slow_reader_pauses_and_goes_on(void) {
    http_options o = toy_options();
    o.limits.stream_soft_bytes = 16 * 1024;
    o.limits.stream_hard_bytes = 1024 * 1024;
    start(&o);
    int fd = client_with(POST("/v1/stream") "Content-Length: 2\r\n\r\n{}");
    iterate_until_handled(1);
    while (seen.n_paused == 0 && flood(16 * 1024)) {
    }
    EXPECT_EQ(seen.n_paused, 1);
    EXPECT_EQ(seen.n_unpaused, 0);
    for (int i = 0; i < 5000 && seen.n_unpaused == 0; i++) {
        r.n = 0;
        client_read_some(fd, &r);
        iterate_for(1);
    }
    EXPECT_EQ(seen.n_unpaused, 1);
    EXPECT_EQ(seen.n_gone, 0);
    close(fd);
    iterate_until_gone(1);
    stop();
}

static void reader_over_the_hard_limit_is_cut_once(void) {
    http_options o = toy_options();
    o.limits.stream_soft_bytes = 16 * 1024;
    o.limits.stream_hard_bytes = 64 * 1024;
    start(&o);
    int fd = client_with(POST("/v1/stream") "Content-Length: 2\r\n\r\n{}");
    iterate_until_handled(1);
    http_request *rq = seen.waiting;
    while (seen.n_gone == 0 && seen.waiting != NULL && flood(1024)) {
    }
    if (seen.n_gone == 0) EXPECT(!http_stream_write(rq, "x", 1)); // still there, and says no
    iterate_until_gone(1);
    iterate_until_open(0);
    EXPECT_EQ(seen.last_status, 499);
    close(fd);
    stop();
}

/* A step of many choices is longer than the hard limit; the client that kept up gets it. */
static void long_event_reaches_a_client_that_keeps_up(void) {
    http_options o = toy_options();
    static char event[100 * 1024];
    o.limits.stream_soft_bytes = 16 * 1024;
    o.limits.stream_hard_bytes = 64 * 1024;
    start(&o);
    int fd = client_with(POST("/v1/stream") "Content-Length: 2\r\n\r\n{}");
    iterate_until_handled(1);
    memset(event, 'y', sizeof event);
    EXPECT(http_stream_write(seen.waiting, event, sizeof event));
    EXPECT_EQ(seen.n_paused, 1);
    http_stream_end(seen.waiting);
    client_read(fd, &r, 2000);
    size_t n = 0;
    for (size_t i = 0; i < r.n; i++) n += r.text[i] == 'y';
    EXPECT(n >= sizeof event); // headers have some too
    close(fd);
    stop();
}

/* A long answer ended behind bytes that its client had not read yet: the stream was cut. */
static void long_event_reaches_a_client_that_reads_slowly(void) {
    http_options o = toy_options();
    static char event[300 * 1024];
    o.limits.stream_soft_bytes = 16 * 1024;
    o.limits.stream_hard_bytes = 64 * 1024;
    start(&o);
    int fd = client_with(POST("/v1/stream") "Content-Length: 2\r\n\r\n{}");
    iterate_until_handled(1);
    memset(event, 'y', sizeof event);
    while (seen.n_paused == 0 && flood(1024)) {
    }
    EXPECT_EQ(seen.n_paused, 1);
    for (int i = 0; i < 3; i++) { // short events behind a long one are no reason either
        EXPECT(http_stream_write(seen.waiting, event, sizeof event));
        EXPECT(http_stream_write(seen.waiting, event, 1024));
    }
    http_stream_end(seen.waiting);
    size_t n = 0;
    for (int i = 0; i < 5000 && n < 3 * (sizeof event + 1024); i++) {
        r.n = 0;
        client_read_some(fd, &r);
        for (size_t k = 0; k < r.n; k++) n += r.text[k] == 'y';
        iterate_for(1);
    }
    EXPECT(n >= 3 * (sizeof event + 1024));
    EXPECT_EQ(seen.n_gone, 0);
    close(fd);
    stop();
}

static void long_events_have_a_bound(void) {
    http_options o = toy_options();
    size_t n = 17 * 1024 * 1024, n_written = 0;
    char *event = calloc(1, n);
    start(&o);
    int fd = client_with(POST("/v1/stream") "Content-Length: 2\r\n\r\n{}");
    iterate_until_handled(1);
    while (event != NULL && n_written < 10 && http_stream_write(seen.waiting, event, n))
        n_written++;
    EXPECT_EQ(n_written, HTTP_STREAM_LONG_BYTES_MAX / n);
    iterate_until_gone(1);
    iterate_until_open(0);
    EXPECT_EQ(seen.last_status, 499);
    free(event);
    close(fd);
    stop();
}

static void stalled_reader_is_cut(void) {
    http_options o = toy_options();
    o.limits.send_stall_ms = 100;
    o.limits.stream_soft_bytes = 1024;
    o.limits.stream_hard_bytes = 8 * 1024 * 1024;
    start(&o);
    int fd = client_with(POST("/v1/stream") "Content-Length: 2\r\n\r\n{}");
    iterate_until_handled(1);
    iterate_for(200);
    EXPECT_EQ(seen.n_gone, 0); // nothing is waiting: it does not stall
    while (seen.n_paused == 0 && flood(1024)) {
    }
    uint64_t begin_us = clock_now_us();
    iterate_until_gone(1);
    EXPECT(clock_now_us() - begin_us > 50000);
    iterate_until_open(0);
    close(fd);
    /* A whole answer that is not read. */
    fd = client_with(POST("/v1/big") "Content-Length: 8\r\n\r\n30000000");
    iterate_until_handled(2);
    iterate_until_open(0);
    EXPECT_EQ(seen.last_status, 499);
    close(fd);
    stop();
}

static void quiet_stream_has_a_heartbeat(void) {
    http_options o = toy_options();
    o.limits.heartbeat_ms = 40;
    start(&o);
    int fd = client_with(POST("/v1/stream") "Content-Length: 2\r\n\r\n{}");
    iterate_until_handled(1);
    iterate_for(200);
    http_stream_end(seen.waiting);
    client_read(fd, &r, 1000);
    int n_beats = 0;
    for (const char *p = r.text; (p = strstr(p, ": ping\n\n")) != NULL; p++) n_beats++;
    EXPECT(n_beats >= 2 && n_beats <= 5);
    close(fd);
    stop();
}

/* -- limits and deadlines -- */

static void body_over_its_limit_is_413_even_in_chunks(void) {
    http_options o = toy_options();
    static char chunk[1024];
    o.limits.body_bytes_max = 4096;
    o.limits.bodies_bytes_max = 8192;
    start(&o);
    int fd = client_with(POST("/v1/echo") "Transfer-Encoding: chunked\r\n\r\n");
    memset(chunk, 'a', sizeof chunk);
    for (int i = 0; i < 6; i++) {
        client_text(fd, "400\r\n");
        client_send(fd, chunk, 1024);
        client_text(fd, "\r\n");
    }
    client_text(fd, "0\r\n\r\n");
    client_read(fd, &r, 1000);
    EXPECT_EQ(reply_status(&r), 413);
    EXPECT(reply_has(&r, "request_too_large"));
    close(fd);
    fd = client_with(POST("/v1/echo") "Content-Length: 4096\r\n\r\n");
    for (int i = 0; i < 4; i++) client_send(fd, chunk, 1024);
    client_read(fd, &r, 1000);
    EXPECT_EQ(reply_status(&r), 200); // just fits
    EXPECT_EQ(seen.n_handled, 1);
    close(fd);
    stop();
}

static void bodies_of_all_together_are_bounded(void) {
    http_options o = toy_options();
    o.limits.body_bytes_max = 4096;
    o.limits.bodies_bytes_max = 8192;
    start(&o);
    int a = client_with(POST("/v1/echo") "Content-Length: 4096\r\n\r\n{");
    int b = client_with(POST("/v1/echo") "Content-Length: 4096\r\n\r\n{");
    iterate_for(5);
    int c = client_with(POST("/v1/echo") "Content-Length: 1\r\n\r\n");
    client_read(c, &r, 1000);
    EXPECT_EQ(reply_status(&r), 503);
    EXPECT(reply_has(&r, "server_overloaded"));
    EXPECT(reply_has(&r, "\r\nRetry-After: "));
    close(c);
    close(a); // and gives its share back
    iterate_until_open(1);
    c = client_with(POST("/v1/echo") "Content-Length: 2\r\n\r\n{}");
    client_read(c, &r, 1000);
    EXPECT_EQ(reply_status(&r), 200);
    close(b);
    close(c);
    stop();
}

/* H10: many tiny chunks. */
static void tiny_chunks_are_collected(void) {
    http_options o = toy_options();
    static char chunks[6 * 20000];
    for (size_t i = 0; i < 20000; i++) memcpy(chunks + 6 * i, "1\r\n7\r\n", 6);
    start(&o);
    int fd = client_with(POST("/v1/echo") "Transfer-Encoding: chunked\r\n\r\n");
    client_send(fd, chunks, sizeof chunks);
    client_text(fd, "0\r\n\r\n");
    client_read(fd, &r, 3000);
    EXPECT_EQ(reply_status(&r), 200);
    EXPECT(reply_has(&r, "Content-Length: 20000\r\n"));
    close(fd);
    stop();
}

/* Closing with unread bytes sends a reset that overtakes the answer; the sender is heard out. */
static void refused_sender_still_reads_its_answer(void) {
    http_options o = toy_options();
    static char megabyte[1024 * 1024];
    start(&o);
    for (int i = 0; i < 5; i++) {
        int fd =
            client_with("POST /v1/echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1048576\r\n\r\n");
        EXPECT(client_send(fd, megabyte, sizeof megabyte));
        client_read(fd, &r, 1000);
        EXPECT_EQ(reply_status(&r), 401);
        EXPECT(!r.reset);
        close(fd);
    }
    iterate_for(10);
    stop();
}

static void slow_headers_meet_a_deadline(void) {
    http_options o = toy_options();
    o.limits.header_timeout_ms = 150;
    start(&o);
    int silent = client_connect();
    int slow = client_with("GET /health HTTP/1.1\r\nHost: x\r\n");
    uint64_t begin_us = clock_now_us();
    r.n = 0, r.closed = r.reset = false;
    for (int i = 0; i < 200 && !r.closed; i++) {
        client_text(slow, "A"); // a byte now and then does not help
        iterate_for(10);
        client_read_some(slow, &r);
    }
    EXPECT(r.closed && !r.reset);
    EXPECT(clock_now_us() - begin_us < 1000000);
    int status = 0;
    EXPECT_EQ(reply_statuses(&r, &status, 1), 1);
    EXPECT_EQ(status, 408);
    client_read(silent, &r, 500);
    EXPECT(r.closed);
    EXPECT_EQ(r.n, 0);
    EXPECT_EQ(seen.last_status, 408);
    close(slow);
    close(silent);
    stop();
}

static void slow_body_meets_a_deadline(void) {
    http_options o = toy_options();
    o.limits.body_timeout_ms = 150;
    start(&o);
    /* H14: no last chunk, and silence. */
    int fd = client_with(POST("/v1/echo") "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n");
    client_read(fd, &r, 2000);
    EXPECT_EQ(reply_status(&r), 408);
    EXPECT(reply_has(&r, "\r\nx-request-id: req-"));
    EXPECT(reply_has(&r, "request_timeout"));
    EXPECT(r.closed);
    close(fd);
    /* H15: half a body. */
    fd = client_with(POST("/v1/echo") "Content-Length: 100\r\n\r\n{");
    iterate_for(10);
    uint64_t begin_us = clock_now_us();
    shutdown(fd, SHUT_WR);
    iterate_until_open(0);
    EXPECT(clock_now_us() - begin_us < 600000);
    close(fd);
    EXPECT_EQ(seen.n_handled, 0);
    EXPECT_EQ(seen.last_status, 499);
    stop();
}

/* H11: the library can neither read on nor give up, and asks to be called again at once.  It must
 * cost its connection, not a core. */
static uint32_t n_iterations;
static void on_prepare_count(uv_prepare_t *p) {
    (void)p;
    n_iterations++;
}
static void on_tick(uv_timer_t *t) {
    (void)t; // keeps a turn from waiting for ever
}
static void endless_chunk_extension_costs_no_core(void) {
    http_options o = toy_options();
    static char extension[60000];
    uv_prepare_t count;
    uv_timer_t tick;
    o.limits.body_timeout_ms = 300;
    memset(extension, 'x', sizeof extension);
    start(&o);
    int fd = client_with(POST("/v1/echo") "Transfer-Encoding: chunked\r\n\r\n1;");
    for (size_t sent = 0; sent < sizeof extension;) {
        ssize_t n = send(fd, extension + sent, sizeof extension - sent, MSG_NOSIGNAL);
        if (n <= 0) break;
        sent += (size_t)n;
    }
    iterate_for(20);
    uv_prepare_init(&loop, &count);
    uv_prepare_start(&count, on_prepare_count);
    uv_timer_init(&loop, &tick);
    uv_timer_start(&tick, on_tick, 50, 50);
    n_iterations = 0;
    for (int i = 0; i < 1000 && http_n_open(server) > 0; i++) uv_run(&loop, UV_RUN_ONCE);
    EXPECT_EQ(http_n_open(server), 0);
    EXPECT(n_iterations < 400);
    uv_close((uv_handle_t *)&count, NULL);
    uv_close((uv_handle_t *)&tick, NULL);
    close(fd);
    stop();
}

static void idle_connection_is_closed(void) {
    http_options o = toy_options();
    o.limits.idle_timeout_s = 1;
    start(&o);
    int fd = client_connect();
    get_and_expect(fd, &r, 200);
    EXPECT(!r.closed);
    uint64_t begin_us = clock_now_us();
    client_read(fd, &r, 3000);
    EXPECT(r.closed);
    EXPECT(clock_now_us() - begin_us > 800000);
    close(fd);
    stop();
}

static const test_case cases[] = {
    TEST(get_is_answered_and_kept_alive),
    TEST(body_arrives_whole_however_it_is_cut),
    TEST(every_request_has_its_own_id),
    TEST(timeout_of_the_client_is_a_hint),
    TEST(long_answer_arrives_whole),
    TEST(error_bodies_escape_what_they_say),
    TEST(work_runs_elsewhere_and_answers_here),
    TEST(client_that_leaves_during_work_is_told_to_done),
    TEST(waiting_client_that_leaves_is_noticed_at_once),
    TEST(late_answer_reaches_the_client),
    TEST(a_limit_tells_the_true_time),
    TEST(headers_of_the_front_are_on_every_answer),
    TEST(answer_after_the_client_left_is_dropped),
    TEST(stream_is_chunked_and_kept_alive),
    TEST(aborted_stream_shows_a_cut),
    TEST(stream_to_http_10_ends_with_the_connection),
    TEST(stream_client_that_leaves_is_noticed),
    TEST(request_behind_a_cut_stream_never_runs),
    TEST(slow_reader_pauses_and_goes_on),
    TEST(reader_over_the_hard_limit_is_cut_once),
    TEST(long_event_reaches_a_client_that_keeps_up),
    TEST(long_event_reaches_a_client_that_reads_slowly),
    TEST(long_events_have_a_bound),
    TEST(stalled_reader_is_cut),
    TEST(quiet_stream_has_a_heartbeat),
    TEST(body_over_its_limit_is_413_even_in_chunks),
    TEST(bodies_of_all_together_are_bounded),
    TEST(tiny_chunks_are_collected),
    TEST(refused_sender_still_reads_its_answer),
    TEST(slow_headers_meet_a_deadline),
    TEST(slow_body_meets_a_deadline),
    TEST(endless_chunk_extension_costs_no_core),
    TEST(idle_connection_is_closed),
};
TEST_MAIN(cases)
