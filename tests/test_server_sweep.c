/* test_server_sweep.c - memory runs out at each allocation in turn: in the transport while requests
 * of every kind are served, and in reading JSON and a configuration.
 *
 * malloc and its relatives are defined in failing_memory.h, which catches the libraries' calls as
 * well as ours. After each failure the server must still be there, serve the next request, and
 * leave nothing behind when it is closed.  Sanitizers bring an allocator of their own; under them
 * nothing fails, and the same paths run once. */
#include <sys/stat.h>

#include "config.h"
#include "failing_memory.h"
#include "http_client.h"
#include "json_in.h"

static reply r;

#define POST(path) "POST " path " HTTP/1.1\r\nHost: x\r\n" AUTH

static const char *const requests[] = {
    "GET /health HTTP/1.1\r\nHost: x\r\n\r\n",
    "GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n",
    "POST /v1/echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
    POST("/v1/echo") "Content-Length: 2\r\n\r\n{}",
    POST("/v1/echo") "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    POST("/v1/big") "Content-Length: 5\r\n\r\n50000",
    POST("/v1/stream") "Content-Length: 2\r\n\r\n{}",
    POST("/v1/wait") "Content-Length: 2\r\n\r\n{}",
    POST("/v1/work") "Content-Length: 2\r\n\r\n{}",
};

/* One request with allocation `at` failing; false: there were not that many. */
static bool serve_one(const char *text, long at) {
    int fd = client_connect();
    n_calls = 0;
    fail_at = at;
    armed = true;
    client_text(fd, text);
    for (int i = 0; i < 400; i++) {
        if (i == 0) r.n = 0, r.closed = r.reset = false;
        iterate();
        client_read_some(fd, &r);
        if (seen.waiting != NULL) {
            http_request *rq = seen.waiting;
            seen.waiting = NULL;
            if (rq->status == 200) {
                if (http_stream_write(rq, "data: 1\n\n", 9)) http_stream_end(rq);
            } else if (strcmp(rq->route->path, "/v1/wait") == 0) {
                http_answer_error(rq, 503, "a", "b", "c", "later", 5);
            } else {
                answer_text(rq, 500, "no stream");
            }
        }
        if (r.closed || reply_length(&r) > 0) break;
        usleep(i < 20 ? 0 : 500);
    }
    armed = false;
    bool reached = n_calls > at;
    if (!reached || reply_length(&r) > 0)
        EXPECT(reply_status(&r) >= 200);
    else
        EXPECT(r.closed); // no answer, but an end
    close(fd);
    return reached;
}

static void server_survives_each_failed_allocation(void) {
    http_options o = toy_options();
    for (size_t i = 0; i < INFERD_COUNT(requests); i++) {
        long before = n_live, at = 0;
        start(&o);
        serve_one(requests[8], -1); // the workers start with the first work, once per process
        for (int k = 0; k < 200 && http_n_open(server) > 0; k++) iterate_for(1);
        for (at = 0; serve_one(requests[i], at) && at < 300; at++) {
            for (int k = 0; k < 500 && http_n_open(server) > 0; k++) iterate_for(1);
            EXPECT_EQ(http_n_open(server), 0);
        }
        EXPECT(!OWN_ALLOCATOR || (at > 5 && at < 300));
        int fd = client_connect(); // all is well again
        client_text(fd, requests[3]);
        client_read(fd, &r, 1000);
        EXPECT_EQ(reply_status(&r), 200);
        close(fd);
        stop();
        if (i > 0) EXPECT_EQ(n_live, before); // the first run starts threads
    }
}

static void json_survives_each_failed_allocation(void) {
    static const char text[] =
        "{\"a\":[1,2.5,{\"b\":\"some text that is longer than a first buffer\\u00e9\"}],"
        "\"c\":[[],[],[],[],[],[],[],[],[1,2,3,4,5,6,7,8,9,10,11,12,13]]}";
    json_in_init();
    long before = n_live, at = 0;
    for (;; at++) {
        json_t *tree = NULL;
        n_calls = 0;
        fail_at = at;
        armed = true;
        inferd_status s =
            json_in_parse((bytes){text, sizeof text - 1}, &json_limits_default, &tree, NULL);
        armed = false;
        json_decref(tree);
        EXPECT_EQ(n_live, before);
        EXPECT(s == INFERD_OK || s == INFERD_ENOMEM);
        if (n_calls <= at) break;
        EXPECT_EQ(s, INFERD_ENOMEM);
    }
    EXPECT(!OWN_ALLOCATOR || at > 30);
}

static void configuration_survives_each_failed_allocation(void) {
    static const char text[] =
        "{\"listen\":\"127.0.0.1:0\",\"devices\":[{\"memory\":\"1GiB\"}],"
        "\"models\":[{\"name\":\"m\",\"path\":\"m.gguf\",\"aliases\":[\"a\",\"b\"]}],"
        "\"tenants\":[{\"name\":\"t\",\"keys\":[\"sk-01234567\",\"sk-11234567\"],\"models\":[\"a\"]"
        "},"
        "{\"name\":\"u\",\"keys\":[\"sk-21234567\"]}],\"log\":{\"path\":\"x\"}}";
    char path[] = "/tmp/inferd-test-XXXXXX";
    long n_refused = 0;
    int fd = mkstemp(path);
    EXPECT_EQ(write(fd, text, sizeof text - 1), (ssize_t)sizeof text - 1);
    close(fd);
    long before = 0, at = -1; // -1: nothing fails, and what is made once is made
    for (;; at++) {
        inferd_config *c = NULL;
        inferd_err err = {0};
        buf problems;
        buf_init(&problems, 0);
        n_calls = 0;
        fail_at = at;
        armed = true;
        inferd_status s = config_load(path, &c, &problems, &err);
        armed = false;
        EXPECT_EQ(s == INFERD_OK, c != NULL);
        if (s != INFERD_OK) EXPECT(err.text[0] != 0);
        config_destroy(c);
        buf_deinit(&problems);
        if (at < 0) before = n_live;
        EXPECT_EQ(n_live, before);
        if (at < 0 || n_calls <= at) EXPECT_EQ(s, INFERD_OK);
        if (at >= 0 && n_calls <= at) break;
        n_refused += s != INFERD_OK; // qsort does without its buffer
    }
    EXPECT(!OWN_ALLOCATOR || (at > 50 && n_refused >= at - 2));
    unlink(path);
}

static const test_case cases[] = {
    TEST(server_survives_each_failed_allocation),
    TEST(json_survives_each_failed_allocation),
    TEST(configuration_survives_each_failed_allocation),
};
TEST_MAIN(cases)
