/* test_tracer.c - spans reach a collector, and one that does not take them delays no caller. */
#include "test.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "inferd/clock.h"
#include "log.h"
#include "tracer.h"
#include "tracer_parts.h"

/* ---- a collector: one connection after the other, each with one request and an answer ---- */

typedef struct collector {
    int fd, port;
    pthread_t thread;
    const char *answer; // NULL: it reads and does not answer
    const char *later;  // from the second request on; NULL: the same
    atomic_uint n_requests, n_bytes;
    uint64_t came_us[4]; // of the first requests
    char head[4096];     // of the newest request
    atomic_bool stop;
} collector;

/* A request with a Content-Length; false: the connection ended first. */
static bool read_request(collector *c, int fd) {
    char text[65536];
    size_t n = 0, need = SIZE_MAX;
    while (n < need && n < sizeof text - 1) {
        ssize_t got = recv(fd, text + n, sizeof text - 1 - n, 0);
        if (got <= 0) return false;
        n += (size_t)got;
        text[n] = 0;
        const char *end = strstr(text, "\r\n\r\n"), *length = strcasestr(text, "content-length:");
        if (end == NULL || length == NULL) continue;
        size_t n_body = strtoul(length + 15, NULL, 10);
        need = (size_t)(end + 4 - text) + n_body;
        if (n < need) continue;
        snprintf(c->head, sizeof c->head, "%.*s", (int)(end - text), text);
        atomic_fetch_add(&c->n_bytes, (unsigned)n_body);
    }
    unsigned i = atomic_load(&c->n_requests);
    if (i < 4) c->came_us[i] = clock_now_us();
    if (i > 0 && c->later != NULL) c->answer = c->later;
    atomic_fetch_add(&c->n_requests, 1);
    return true;
}

static void *collector_main(void *arg) {
    collector *c = arg;
    while (!atomic_load(&c->stop)) {
        int fd = accept(c->fd, NULL, NULL);
        if (fd < 0) break;
        if (!atomic_load(&c->stop) && read_request(c, fd)) {
            if (c->answer != NULL)
                EXPECT(send(fd, c->answer, strlen(c->answer), MSG_NOSIGNAL) > 0);
            else
                while (recv(fd, &(char){0}, 1, 0) > 0) { // until the sender gives up
                }
        }
        close(fd);
    }
    return NULL;
}

static void collector_open(collector *c, const char *answer) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof at;
    memset(c, 0, sizeof *c);
    c->answer = answer;
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    EXPECT(bind(c->fd, (struct sockaddr *)&at, n) == 0 && listen(c->fd, 16) == 0);
    EXPECT(getsockname(c->fd, (struct sockaddr *)&at, &n) == 0);
    c->port = ntohs(at.sin_port);
    EXPECT(pthread_create(&c->thread, NULL, collector_main, c) == 0);
}

static void collector_close(collector *c) {
    atomic_store(&c->stop, true);
    shutdown(c->fd, SHUT_RDWR); // accept returns
    pthread_join(c->thread, NULL);
    close(c->fd);
}

#define OK_ANSWER  "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
#define BAD_ANSWER "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

static tracer *open_tracer(int port, uint32_t queue, uint32_t timeout_ms, const char *headers) {
    char url[64];
    inferd_err err = {0};
    tracer *t = NULL;
    snprintf(url, sizeof url, "http://127.0.0.1:%d/v1/traces", port);
    tracer_options o = {.endpoint = url,
                        .headers_file = headers,
                        .service_name = "inferd",
                        .instance_id = "test",
                        .version = "1",
                        .queue_spans_max = queue,
                        .timeout_ms = timeout_ms};
    if (tracer_open(&o, &t, &err) != INFERD_OK) printf("%s\n", err.text);
    EXPECT(t != NULL);
    return t;
}

/* Two spans, which are none: the tracer does not look at them. */
static bool put(tracer *t) {
    buf spans = {0};
    buf_add_str(&spans, "span span");
    return tracer_put(t, &spans, 2);
}

static tracer_stats until_settled(tracer *t) {
    tracer_stats s;
    do tracer_get_stats(t, &s);
    while (s.n_queued > 0 && usleep(1000) == 0);
    return s;
}

static void what_is_put_is_sent(void) {
    collector c;
    collector_open(&c, OK_ANSWER);
    tracer *t = open_tracer(c.port, 100, 5000, NULL);
    for (int i = 0; i < 3; i++) EXPECT(put(t));
    tracer_stats s = until_settled(t);
    EXPECT_EQ(s.n_sent, 6);
    EXPECT(strstr(c.head, "POST /v1/traces HTTP/1.1") != NULL);
    EXPECT(strstr(c.head, "Content-Type: application/x-protobuf") != NULL);
    EXPECT(strstr(c.head, "Expect") == NULL);
    EXPECT(put(t));
    tracer_close(t); // sends the rest at once
    EXPECT(atomic_load(&c.n_bytes) > 4 * 9);
    collector_close(&c);
}

static void a_refused_batch_is_dropped_and_the_next_is_tried(void) {
    collector c;
    collector_open(&c, BAD_ANSWER);
    tracer *t = open_tracer(c.port, 100, 5000, NULL);
    EXPECT(put(t));
    tracer_stats s = until_settled(t);
    EXPECT_EQ(s.n_dropped[TRACER_REFUSED], 2);
    EXPECT_EQ(atomic_load(&c.n_requests), 1); // no second try
    c.answer = OK_ANSWER;
    EXPECT(put(t));
    s = until_settled(t);
    EXPECT_EQ(s.n_sent, 2);
    tracer_close(t);
    collector_close(&c);
}

/* A full batch, so that it is sent at once. */
static tracer_stats send_full_batch(int port) {
    tracer *t = open_tracer(port, TRACER_BATCH_SPANS, 5000, NULL);
    for (int i = 0; i < TRACER_BATCH_SPANS / 2; i++) EXPECT(put(t));
    tracer_stats s = until_settled(t);
    tracer_close(t);
    return s;
}

/* Status 200 with partial_success: they once counted as sent. */
static void rejected_spans_of_a_taken_batch_are_dropped(void) {
    static const struct {
        const char *body;
        uint64_t n_refused;
    } rows[] = {
        {"\x0a\x09\x08\x01\x12\x05quota", 1},
        {"\x0a\x03\x08\x80\x02", 256},
        {"\x0a\x03\x08\x80\x08", 512}, // 1024: more than there were
        {"\x0a\x06\x12\x04slow", 0},   // a warning
        {"\x0a\x09\x08\x01", 0},       // cut off
        {"{}", 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        collector c;
        char answer[256];
        snprintf(answer, sizeof answer,
                 "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n%s",
                 strlen(rows[i].body), rows[i].body);
        collector_open(&c, answer);
        tracer_stats s = send_full_batch(c.port);
        EXPECT_EQ(s.n_dropped[TRACER_REFUSED], rows[i].n_refused);
        EXPECT_EQ(s.n_sent, TRACER_BATCH_SPANS - rows[i].n_refused);
        EXPECT_EQ(atomic_load(&c.n_requests), 1);
        collector_close(&c);
    }
}

/* The cut connection once was a failure, and the batch that the collector had taken came again. */
static void of_an_endless_answer_the_status_counts(void) {
    static const char *const statuses[] = {"200 OK", "400 Bad Request"};
    static char answer[TRACER_ANSWER_BYTES_MAX + 4096];
    for (int i = 0; i < 2; i++) {
        collector c;
        int n = snprintf(answer, sizeof answer, "HTTP/1.1 %s\r\nConnection: close\r\n\r\n",
                         statuses[i]);
        memset(answer + n, '\n', sizeof answer - 1 - (size_t)n);
        collector_open(&c, answer);
        tracer_stats s = send_full_batch(c.port);
        EXPECT_EQ(s.n_sent, i == 0 ? TRACER_BATCH_SPANS : 0);
        EXPECT_EQ(s.n_dropped[TRACER_REFUSED], i == 0 ? 0 : TRACER_BATCH_SPANS);
        EXPECT_EQ(atomic_load(&c.n_requests), 1);
        collector_close(&c);
    }
}

#define LATER_ANSWER(seconds)                                                                      \
    "HTTP/1.1 429 Too Many Requests\r\nRetry-After: " seconds                                      \
    "\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

static void a_collector_says_when_it_is_asked_again(void) {
    collector c;
    collector_open(&c, LATER_ANSWER("3"));
    c.later = OK_ANSWER;
    tracer_stats s = send_full_batch(c.port);
    EXPECT_EQ(s.n_sent, TRACER_BATCH_SPANS);
    EXPECT_EQ(atomic_load(&c.n_requests), 2);
    EXPECT(c.came_us[1] - c.came_us[0] >= 3000000); // not its own pause of 1 s
    collector_close(&c);
}

static void the_end_does_not_wait_for_retry_after(void) {
    collector c;
    collector_open(&c, LATER_ANSWER("86400"));
    tracer *t = open_tracer(c.port, TRACER_BATCH_SPANS, 5000, NULL);
    for (int i = 0; i < TRACER_BATCH_SPANS / 2; i++) EXPECT(put(t));
    while (atomic_load(&c.n_requests) == 0) usleep(1000);
    uint64_t from_us = clock_now_us();
    tracer_close(t);
    EXPECT(clock_now_us() - from_us < TRACER_RETRY_AFTER_S_MAX / 2 * 1000000ull);
    collector_close(&c);
}

/* A collector that reads and does not answer: put returns, what finds no room is counted, and the
 * end comes. */
static void a_silent_collector_delays_nothing(void) {
    collector c;
    collector_open(&c, NULL);
    tracer *t = open_tracer(c.port, 6, 600000, NULL);
    uint64_t n_taken = 0;
    for (int i = 0; i < 1000; i++) n_taken += put(t);
    EXPECT_EQ(n_taken, 3);
    while (atomic_load(&c.n_requests) == 0) usleep(1000);
    EXPECT(!put(t)); // the batch under way counts
    tracer_stats s;
    tracer_get_stats(t, &s);
    EXPECT_EQ(s.n_queued, 6);
    EXPECT_EQ(s.n_dropped[TRACER_QUEUE_FULL], 2 * 998);
    uint64_t from_us = clock_now_us();
    tracer_close(t);
    EXPECT(clock_now_us() - from_us < 60000000); // not the ten minutes of its timeout
    collector_close(&c);
}

static void a_closed_port_is_tried_again_and_given_up(void) {
    collector c;
    collector_open(&c, OK_ANSWER);
    collector_close(&c); // its port is free
    tracer *t = open_tracer(c.port, 100, 1000, NULL);
    EXPECT(put(t));
    tracer_stats s = until_settled(t);
    EXPECT_EQ(s.n_dropped[TRACER_FAILED], 2);
    EXPECT_EQ(s.n_sent, 0);
    tracer_close(t);
}

static void spans_without_memory_are_counted(void) {
    collector c;
    collector_open(&c, OK_ANSWER);
    tracer *t = open_tracer(c.port, 100, 1000, NULL);
    buf spans;
    buf_init(&spans, 4);
    buf_add_str(&spans, "too long");
    EXPECT(!tracer_put(t, &spans, 3));
    tracer_stats s;
    tracer_get_stats(t, &s);
    EXPECT_EQ(s.n_dropped[TRACER_NO_MEMORY], 3);
    tracer_close(t);
    collector_close(&c);
}

/* ---- what the configuration names ---- */

static void write_file(const char *path, const char *text, unsigned mode) {
    FILE *f = fopen(path, "w");
    EXPECT(f != NULL && fputs(text, f) >= 0 && fclose(f) == 0 && chmod(path, mode) == 0);
}

static void headers_are_sent_and_checked(void) {
    static const struct {
        const char *text, *problem;
    } rows[] = {
        {"# a comment\n\nAuthorization: Bearer secret\r\nX-Scope: a\n", NULL},
        {"", NULL},
        {"Authorization", ":1: expected \"Name: value\""},
        {"\nX Y: 1", ":2: expected \"Name: value\""},
        {"X:  \t", ":1: the header has no value"},
        {"X: a\x01", ":1: the value has a character that is not printable ASCII"},
        {"content-TYPE: text/plain", ":1: this header is set by the sender"},
        {"a: 1\na: 1\na: 1\na: 1\na: 1\na: 1\na: 1\na: 1\na: 1\na: 1\na: 1\na: 1\na: 1\na: 1\na: "
         "1\na: 1\na: "
         "1\n",
         ":17: there are more than 16 headers"},
    };
    char path[] = "/tmp/inferd-headers-XXXXXX", wanted[256];
    int fd = mkstemp(path);
    EXPECT(fd >= 0 && close(fd) == 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        inferd_err err = {0};
        write_file(path, rows[i].text, 0600);
        EXPECT_EQ(tracer_check_headers(path, &err), rows[i].problem == NULL);
        snprintf(wanted, sizeof wanted, "%s%s", path,
                 rows[i].problem != NULL ? rows[i].problem : "");
        if (rows[i].problem != NULL) EXPECT_STR(err.text, wanted);
    }
    inferd_err err = {0};
    write_file(path, "X: 1", 0602);
    EXPECT(!tracer_check_headers(path, &err) && strstr(err.text, "all users may write it") != NULL);
    write_file(path, rows[0].text, 0600);
    collector c;
    collector_open(&c, OK_ANSWER);
    tracer *t = open_tracer(c.port, 100, 5000, path);
    EXPECT(put(t));
    until_settled(t);
    EXPECT(strstr(c.head, "Authorization: Bearer secret\r\n") != NULL);
    EXPECT(strstr(c.head, "X-Scope: a") != NULL);
    tracer_close(t);
    collector_close(&c);
    unlink(path);
    EXPECT(!tracer_check_headers(path, &err));
}

static void an_endpoint_is_a_url_with_a_path(void) {
    static const struct {
        const char *url, *problem;
    } rows[] = {
        {"http://127.0.0.1:4318/v1/traces", NULL},
        {"HTTPS://collector.example/otlp/v1/traces?x=1", NULL},
        {"http://[::1]:4318/v1/traces", NULL},
        {"127.0.0.1:4318", "expected a URL"},
        {"grpc://h:4317/x", "expected a URL"},
        {"http:///v1/traces", "expected a URL"},
        {"http://h/v1 traces", "expected a URL"},
        {"http://h/v1\n", "expected a URL"},
        {"http://u:p@h/v1/traces", "use headers_file"},
        {"http://h:4318", "has no path"},
        {"http://h:4318/", "has no path"},
        {"http://h:4318?x", "has no path"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        inferd_err err = {0};
        EXPECT_EQ(tracer_check_endpoint(rows[i].url, &err), rows[i].problem == NULL);
        if (rows[i].problem != NULL) EXPECT(strstr(err.text, rows[i].problem) != NULL);
    }
}

static const test_case cases[] = {
    TEST(what_is_put_is_sent),
    TEST(rejected_spans_of_a_taken_batch_are_dropped),
    TEST(of_an_endless_answer_the_status_counts),
    TEST(a_collector_says_when_it_is_asked_again),
    TEST(the_end_does_not_wait_for_retry_after),
    TEST(a_refused_batch_is_dropped_and_the_next_is_tried),
    TEST(a_silent_collector_delays_nothing),
    TEST(a_closed_port_is_tried_again_and_given_up),
    TEST(spans_without_memory_are_counted),
    TEST(headers_are_sent_and_checked),
    TEST(an_endpoint_is_a_url_with_a_path),
};
TEST_MAIN(cases)
