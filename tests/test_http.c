/* test_http.c - the transport over real sockets: keep-alive, bodies, streams, deadlines, clients
 * that leave, too many of them, draining. */
#include "http_client.h"

static reply r;

static void get_is_answered_and_kept_alive(void) {
    http_options o = toy_options();
    start(&o);
    int fd = client_connect();
    for (int i = 0; i < 3; i++) {
        client_text(fd, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
        client_read(fd, &r, 1000);
        EXPECT_EQ(reply_status(&r), 200);
        EXPECT(!r.closed);
        EXPECT(reply_has(&r, "\r\nx-request-id: req-"));
        EXPECT(reply_has(&r, "\r\n\r\nok"));
    }
    EXPECT_EQ(seen.n_finished, 3);
    EXPECT_EQ(http_n_open(server), 0);
    close(fd);
    stop();
}

static void body_arrives_whole_however_it_is_cut(void) {
    http_options o = toy_options();
    static const char head[] = "POST /v1/echo HTTP/1.1\r\nHost: x\r\n" AUTH;
    start(&o);
    int fd = client_connect();
    client_text(fd, head);
    client_text(fd, "Content-Length: 11\r\n\r\nhello");
    turn_for(5);
    client_text(fd, " world");
    client_read(fd, &r, 1000);
    EXPECT_EQ(reply_status(&r), 200);
    EXPECT(reply_has(&r, "\r\n\r\nhello world"));
    EXPECT(reply_has(&r, "x-toy: yes\r\n"));
    client_text(fd, head);
    client_text(fd, "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;x=y\r\n world\r\n0\r\n"
                    "Authorization: Bearer other\r\n\r\n");
    client_read(fd, &r, 1000);
    EXPECT_EQ(reply_status(&r), 200);
    EXPECT(reply_has(&r, "\r\n\r\nhello world"));
    EXPECT(!r.closed);
    close(fd);
    stop();
}

static const test_case cases[] = {
    TEST(get_is_answered_and_kept_alive),
    TEST(body_arrives_whole_however_it_is_cut),
};
TEST_MAIN(cases)
