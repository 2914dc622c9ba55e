/* test_top_stream.c - the answer of GET /admin/watch from bytes to events. */
#include "test.h"
#include "top_stream.h"

static buf said; // "name=data;" of each event

static void on_event(void *user, const char *name, bytes data) {
    (void)user;
    buf_add_format(&said, "%s=%.*s;", name, (int)data.n, data.p);
}

/* All of it in pieces of `size` bytes; INFERD_OK, or the first failure. */
static inferd_status push(top_stream *s, const char *text, size_t size, inferd_err *err) {
    size_t n = strlen(text);
    inferd_status st = INFERD_OK;
    buf_clear(&said);
    top_stream_deinit(s);
    top_stream_init(s, on_event, NULL);
    for (size_t at = 0; at < n && st == INFERD_OK; at += size)
        st = top_stream_push(s, (bytes){text + at, size_min(size, n - at)}, err);
    return st;
}

#define HEAD    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
#define CHUNKED HEAD "Transfer-Encoding: chunked\r\n\r\n"

static void add_chunk(buf *out, const char *extension, const char *text) {
    buf_add_format(out, "%zx%s\r\n%s\r\n", strlen(text), extension, text);
}

static void events_are_the_same_however_the_bytes_come(void) {
    top_stream s = {0};
    inferd_err err = {0};
    buf text = {0};
    buf_add_str(&text, CHUNKED);
    add_chunk(&text, "", "event: all\nd");
    add_chunk(&text, ";x=y", "ata: {\"a\":1}\n\n: a comment\n\ndat");
    add_chunk(&text, "", "a:b\r\ndata: c\r\nid: 7\r\n\r\nevent: delta\ndata: 2\n");
    add_chunk(&text, "", "\n");
    buf_add_str(&text, "0\r\n\r\n");
    for (size_t size = 1; size < text.n; size++) {
        EXPECT_EQ(push(&s, buf_cstr(&text), size, &err), INFERD_OK);
        EXPECT_STR(buf_cstr(&said), "all={\"a\":1};=b\nc;delta=2;");
        EXPECT_EQ(s.part, TOP_AT_END);
        EXPECT_EQ(s.status, 200);
    }
    buf_deinit(&text);
    top_stream_deinit(&s);
    buf_deinit(&said);
}

static void a_body_without_chunks_is_read_to_its_end(void) {
    top_stream s = {0};
    inferd_err err = {0};
    EXPECT_EQ(push(&s, HEAD "\r\ndata:1\n\ndata: 2\n", 3, &err), INFERD_OK);
    EXPECT_STR(buf_cstr(&said), "=1;"); // the other one is not complete
    EXPECT_EQ(s.part, TOP_IN_REST);
    top_stream_deinit(&s);
    buf_deinit(&said);
}

static void a_refusal_is_kept_and_is_no_event(void) {
    top_stream s = {0};
    inferd_err err = {0};
    EXPECT_EQ(push(&s,
                   "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n"
                   "Content-Length: 9\r\n\r\ndata: {}\n",
                   4, &err),
              INFERD_OK);
    EXPECT_EQ(s.status, 503);
    EXPECT(!s.events);
    EXPECT_STR(buf_cstr(&s.body), "data: {}\n");
    EXPECT_EQ(said.n, 0);
    EXPECT_EQ(push(&s, "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\ndata: 1\n\n", 99, &err),
              INFERD_OK);
    EXPECT(!s.events && said.n == 0);
    top_stream_deinit(&s);
    buf_deinit(&said);
}

static void what_is_not_http_is_refused(void) {
    static const char *const wrong[] = {"SSH-2.0-OpenSSH\r\n\r\n",
                                        "HTTP/1.0 200 OK\r\n\r\n",
                                        "HTTP/1.1 2x0 OK\r\n\r\n",
                                        CHUNKED "x\r\n",
                                        CHUNKED "\r\n",
                                        CHUNKED "123456789\r\n",
                                        CHUNKED "1\r\nabc",
                                        CHUNKED "-1\r\nabc",
                                        CHUNKED "1 1\r\na"};
    top_stream s = {0};
    for (size_t i = 0; i < INFERD_COUNT(wrong); i++) {
        inferd_err err = {0};
        EXPECT_EQ(push(&s, wrong[i], 1, &err), INFERD_EFORMAT);
        EXPECT(strstr(err.text, "the answer ") != NULL);
    }
    top_stream_deinit(&s);
    buf_deinit(&said);
}

/* `n` bytes behind a head; how far it came is the failure. */
static inferd_status push_many(const char *head, char c, size_t n) {
    static char piece[1 << 16];
    top_stream s = {0};
    inferd_err err = {0};
    inferd_status st = push(&s, head, strlen(head) + 1, &err);
    memset(piece, c, sizeof piece);
    for (size_t at = 0; at < n && st == INFERD_OK; at += sizeof piece)
        st = top_stream_push(&s, (bytes){piece, sizeof piece}, &err);
    top_stream_deinit(&s);
    return st;
}

static void each_part_has_a_bound(void) {
    EXPECT_EQ(push_many("HTTP/1.1 200 OK\r\n", 'a', TOP_HEAD_BYTES_MAX), INFERD_ETOOLONG);
    EXPECT_EQ(push_many(CHUNKED "1;", ' ', 1), INFERD_ETOOLONG);
    EXPECT_EQ(push_many("HTTP/1.1 404 No\r\n\r\n", 'a', TOP_REFUSAL_BYTES_MAX + 1),
              INFERD_ETOOLONG);
    EXPECT_EQ(push_many(HEAD "\r\n", 'a', TOP_EVENT_BYTES_MAX + 1), INFERD_ETOOLONG);
    EXPECT_EQ(push_many(HEAD "\r\n", '\n', TOP_EVENT_BYTES_MAX + 1), INFERD_OK);
    buf_deinit(&said);
}

static const test_case cases[] = {TEST(events_are_the_same_however_the_bytes_come),
                                  TEST(a_body_without_chunks_is_read_to_its_end),
                                  TEST(a_refusal_is_kept_and_is_no_event),
                                  TEST(what_is_not_http_is_refused), TEST(each_part_has_a_bound)};
TEST_MAIN(cases)
