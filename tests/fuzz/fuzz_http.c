/* fuzz_http.c - bytes of a stranger through libmicrohttpd into the guard, bodies and streams.
 *
 * The first byte says how the rest is cut into writes.  The server is real, with short deadlines;
 * the connection is a socket pair handed to the library.  Checked after each input: no exchange and
 * no connection is left, and whoever was told nothing was never promised anything. */
#include "../http_client.h"
#include "http_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void answer_waiting(void) {
    if (seen.waiting == NULL) return;
    http_request *rq = seen.waiting;
    exchange *x = exchange_of(rq);
    seen.waiting = NULL;
    if (x->streaming)
        http_stream_end(rq);
    else
        answer_text(rq, 200, "late");
}

static void open_once(void) {
    static http_options o;
    if (server != NULL) return;
    o = toy_options();
    o.n_routes -= 2; // the last two need threads or are like others
    o.limits.body_bytes_max = 4096;
    log_open("/dev/null", false, LOG_LEVEL_ERROR, NULL);
    start(&o);
    server->due.lasts_us[DEADLINE_LEFT] = 1000;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    struct sockaddr_un nobody = {.sun_family = AF_UNIX};
    int pair[2];
    open_once();
    if (n == 0) return 0;
    size_t piece = data[0] < 200 ? n : 1u + data[0] % 50;
    data++, n--;
    seen.waiting = NULL;
    INFERD_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
    INFERD_CHECK(MHD_add_connection(server->daemon, pair[0], (struct sockaddr *)&nobody,
                                    sizeof nobody) == MHD_YES);
    server_must_run(server);
    for (size_t at = 0; at < n; at += piece) {
        if (send(pair[1], data + at, size_min(piece, n - at), MSG_NOSIGNAL) < 0) break;
        turn();
    }
    turn();
    answer_waiting();
    turn();
    char sink[4096];
    while (recv(pair[1], sink, sizeof sink, 0) > 0) turn();
    close(pair[1]);
    uint64_t end_us = clock_now_us() + 2000000;
    while (server->n_conns > 0 && clock_now_us() < end_us) turn();
    INFERD_CHECK(server->n_conns == 0 && http_n_open(server) == 0);
    INFERD_CHECK(server->bodies_bytes == 0 && list_empty(&server->exchanges));
    return 0;
}
