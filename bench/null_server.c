/* null_server.c - see null_server.h.
 *
 * A connection serves one request after another:
 *
 *     READING  take_request   a head and a body are complete
 *     SENDING  advance        due tokens are sent, one write at a time; or the timer is set
 *     READING  finish         the end of the stream was written
 *
 * libuv calls a write's callback one loop iteration later, so without a pace every stream sends one
 * write per iteration and none starves.  Thread: one. */
#include "null_server.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>
#include <uv.h>

#include "inferd/buf.h"
#include "result.h" // bench_now_ns

enum {
    REQUEST_BYTES_MAX = 256 << 20, // a prompt of ten million ids
    LISTEN_BACKLOG = 4096,
    READ_BYTES = 64 << 10
};

/* One piece of a chunked answer, framed in advance. */
typedef struct canned {
    char text[512];
    unsigned n;
} canned;

typedef struct server {
    const null_options *o;
    uv_loop_t loop;
    uv_tcp_t tcp;
    uv_signal_t signals[2];
    canned head, token[2], finish[2]; // [is_chat]
    uint64_t n_requests;
    char read_bytes[READ_BYTES]; // shared by all connections: read bytes are copied immediately
} server;

typedef struct conn {
    server *srv;
    uv_tcp_t tcp;
    uv_timer_t timer;
    uv_write_t write;
    int n_handles; // to be closed before it is freed
    buf in, tail;
    bool is_sending, is_writing, is_chat, wants_usage, is_cut, tail_sent;
    uint32_t n_tokens, n_sent, n_prompt;
    uint64_t start_ns;
} conn;

null_options null_options_default(void) {
    return (null_options){.host = "127.0.0.1", .tokens_per_write = 1, .fail_status = 503};
}

static void can(canned *c, const char *event) {
    char body[400];
    int n = snprintf(body, sizeof body, "data: %s\n\n", event);
    c->n = (unsigned)snprintf(c->text, sizeof c->text, "%x\r\n%s\r\n", n, body);
}

static void can_all(server *srv) {
    srv->head.n =
        (unsigned)snprintf(srv->head.text, sizeof srv->head.text,
                           "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                           "Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n");
    can(&srv->token[0], "{\"id\":\"cmpl-0\",\"object\":\"text_completion\",\"created\":0,\"model\":"
                        "\"null\",\"choices\":[{\"index\":0,\"text\":\" word\",\"logprobs\":null,"
                        "\"finish_reason\":null}]}");
    can(&srv->token[1], "{\"id\":\"chatcmpl-0\",\"object\":\"chat.completion.chunk\",\"created\":0,"
                        "\"model\":\"null\",\"choices\":[{\"index\":0,\"delta\":{\"content\":"
                        "\" word\"},\"logprobs\":null,\"finish_reason\":null}]}");
    can(&srv->finish[0],
        "{\"id\":\"cmpl-0\",\"object\":\"text_completion\",\"created\":0,\"model\":"
        "\"null\",\"choices\":[{\"index\":0,\"text\":\"\",\"logprobs\":null,"
        "\"finish_reason\":\"length\"}]}");
    can(&srv->finish[1],
        "{\"id\":\"chatcmpl-0\",\"object\":\"chat.completion.chunk\",\"created\":0,"
        "\"model\":\"null\",\"choices\":[{\"index\":0,\"delta\":{},\"logprobs\":"
        "null,\"finish_reason\":\"length\"}]}");
}

/* ---- a connection's end ---- */

static void on_conn_closed(uv_handle_t *handle) {
    conn *c = handle->data;
    if (--c->n_handles > 0) return;
    buf_deinit(&c->in);
    buf_deinit(&c->tail);
    free(c);
}

static void conn_close(conn *c) {
    if (uv_is_closing((uv_handle_t *)&c->tcp)) return;
    uv_close((uv_handle_t *)&c->tcp, on_conn_closed);
    uv_close((uv_handle_t *)&c->timer, on_conn_closed);
}

/* ---- sending ---- */

static void advance(conn *c);
static void take_request(conn *c);

static void on_written(uv_write_t *write, int status) {
    conn *c = write->data;
    c->is_writing = false;
    if (status < 0) {
        conn_close(c);
        return;
    }
    if (c->is_sending)
        advance(c);
    else
        take_request(c);
}

static void send_parts(conn *c, const uv_buf_t *parts, unsigned n) {
    c->is_writing = true;
    c->write.data = c;
    if (uv_write(&c->write, (uv_stream_t *)&c->tcp, parts, n, on_written) < 0) conn_close(c);
}

static void add_piece(buf *out, const char *event) {
    buf_add_format(out, "%zx\r\ndata: %s\n\n\r\n", strlen(event) + 8, event);
}

static void send_tail(conn *c) {
    char usage[256];
    const canned *finish = &c->srv->finish[c->is_chat];
    buf_clear(&c->tail);
    buf_add(&c->tail, finish->text, finish->n);
    if (c->wants_usage && !c->srv->o->no_usage) {
        snprintf(
            usage, sizeof usage,
            "{\"id\":\"0\",\"object\":\"null\",\"created\":0,\"model\":\"null\",\"choices\":[],"
            "\"usage\":{\"prompt_tokens\":%u,\"completion_tokens\":%u,\"total_tokens\":%u}}",
            c->n_prompt, c->n_tokens, c->n_prompt + c->n_tokens);
        add_piece(&c->tail, usage);
    }
    add_piece(&c->tail, "[DONE]");
    buf_add_str(&c->tail, "0\r\n\r\n");
    if (c->tail.failed) {
        conn_close(c);
        return;
    }
    c->tail_sent = true;
    c->is_sending = false;
    uv_buf_t part = uv_buf_init(c->tail.p, (unsigned)c->tail.n);
    send_parts(c, &part, 1);
}

static uint64_t due_ns(const conn *c, uint32_t token_idx) {
    const null_options *o = c->srv->o;
    double after_ms = o->ttft_ms;
    if (o->tokens_per_s > 0) after_ms += token_idx * 1000.0 / o->tokens_per_s;
    if (o->stall_at > 0 && token_idx >= o->stall_at) after_ms += o->stall_ms;
    return c->start_ns + (uint64_t)(after_ms * 1e6);
}

static void on_timer(uv_timer_t *timer) {
    advance(timer->data);
}

static void wait_until(conn *c, uint64_t at_ns, uint64_t now_ns) {
    uv_update_time(&c->srv->loop);
    uv_timer_start(&c->timer, on_timer, (at_ns - now_ns + 999999) / 1000000, 0);
}

static void advance(conn *c) {
    if (c->is_writing) return; // on_written calls this again
    const server *srv = c->srv;
    uint32_t n_max = srv->o->tokens_per_write, n = 0;
    if (srv->o->tokens_per_s > 0) n_max = TOKENS_PER_WRITE_MAX; // all due tokens
    uint32_t n_end = c->is_cut ? c->n_tokens / 2 : c->n_tokens;
    uv_buf_t parts[TOKENS_PER_WRITE_MAX];
    uint64_t now_ns = bench_now_ns();
    while (n < n_max && c->n_sent < n_end && due_ns(c, c->n_sent) <= now_ns) {
        const canned *token = &srv->token[c->is_chat];
        parts[n++] = uv_buf_init((char *)token->text, token->n);
        c->n_sent++;
    }
    if (n > 0)
        send_parts(c, parts, n);
    else if (c->n_sent < n_end)
        wait_until(c, due_ns(c, c->n_sent), now_ns);
    else if (c->is_cut)
        conn_close(c);
    else
        send_tail(c);
}

/* ---- requests ---- */

static void answer(conn *c, int status, const char *body) {
    buf_clear(&c->tail);
    buf_add_format(&c->tail,
                   "HTTP/1.1 %d null\r\nContent-Type: application/json\r\nContent-Length: "
                   "%zu\r\n\r\n%s",
                   status, strlen(body), body);
    uv_buf_t part = uv_buf_init(c->tail.p, (unsigned)c->tail.n);
    if (c->tail.failed)
        conn_close(c);
    else
        send_parts(c, &part, 1);
}

static const char *find_member(const char *body, size_t n, const char *name) {
    const char *at = memmem(body, n, name, strlen(name));
    return at == NULL ? NULL : at + strlen(name);
}

/* Counts the ids of an array, or the words of a text. */
static uint32_t count_prompt(const char *body, size_t n) {
    const char *ids = find_member(body, n, "\"prompt\":[");
    const char *text = find_member(body, n, "\"prompt\":\"");
    if (text == NULL) text = find_member(body, n, "\"content\":\"");
    const char *p = ids != NULL ? ids : text;
    if (p == NULL) return 0;
    const char stop = ids != NULL ? ']' : '"', between = ids != NULL ? ',' : ' ';
    uint32_t n_tokens = 1;
    for (; p < body + n && *p != stop; p++) n_tokens += *p == between;
    return n_tokens;
}

static void begin_stream(conn *c, const char *body, size_t n, bool is_chat) {
    const null_options *o = c->srv->o;
    uint64_t number = ++c->srv->n_requests;
    if (o->fail_every > 0 && number % o->fail_every == 0) {
        answer(
            c, o->fail_status,
            "{\"error\":{\"message\":\"refused as asked\",\"type\":\"null_error\",\"param\":null,"
            "\"code\":\"null_refusal\"}}");
        return;
    }
    const char *max_tokens = find_member(body, n, "\"max_tokens\":");
    long n_tokens = max_tokens == NULL ? 16 : strtol(max_tokens, NULL, 10); // body ends in NUL
    c->n_tokens = n_tokens < 1 ? 1 : n_tokens > 100000000 ? 100000000 : (uint32_t)n_tokens;
    if (o->eos_at > 0 && c->n_tokens > o->eos_at) c->n_tokens = o->eos_at;
    c->n_prompt = count_prompt(body, n);
    c->wants_usage = find_member(body, n, "\"include_usage\":true") != NULL;
    c->is_cut = o->cut_every > 0 && number % o->cut_every == 0;
    c->is_chat = is_chat;
    c->is_sending = true;
    c->n_sent = 0;
    c->start_ns = bench_now_ns();
    uv_buf_t part = uv_buf_init(c->srv->head.text, c->srv->head.n);
    send_parts(c, &part, 1);
}

static void serve(conn *c, const char *head, const char *body, size_t n_body) {
    if (strncmp(head, "POST /v1/completions ", 21) == 0)
        begin_stream(c, body, n_body, false);
    else if (strncmp(head, "POST /v1/chat/completions ", 26) == 0)
        begin_stream(c, body, n_body, true);
    else if (strncmp(head, "GET /v1/models ", 15) == 0)
        answer(c, 200, "{\"object\":\"list\",\"data\":[{\"id\":\"null\",\"object\":\"model\"}]}");
    else if (strncmp(head, "GET /health ", 12) == 0)
        answer(c, 200, "{}");
    else
        answer(c, 404, "{\"error\":{\"message\":\"no such path\",\"code\":\"not_found\"}}");
}

/* Serves the request at the front of `in`, if it is complete. */
static void take_request(conn *c) {
    if (c->is_sending || c->is_writing || c->in.n == 0) return;
    const char *text = buf_cstr(&c->in);
    const char *end = strstr(text, "\r\n\r\n");
    if (end == NULL) return;
    size_t n_head = (size_t)(end - text) + 4, n_body = 0;
    const char *length = strcasestr(text, "\r\nContent-Length:");
    if (length != NULL && length < end) n_body = strtoul(length + 17, NULL, 10);
    if (n_body > REQUEST_BYTES_MAX) {
        conn_close(c);
        return;
    }
    if (c->in.n < n_head + n_body) return;
    serve(c, text, text + n_head, n_body);
    memmove(c->in.p, c->in.p + n_head + n_body, c->in.n - n_head - n_body);
    c->in.n -= n_head + n_body;
}

static void on_alloc(uv_handle_t *handle, size_t wanted, uv_buf_t *out) {
    (void)wanted;
    conn *c = handle->data;
    *out = uv_buf_init(c->srv->read_bytes, READ_BYTES);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *from) {
    conn *c = stream->data;
    if (n > 0) buf_add(&c->in, from->base, (size_t)n);
    if (n < 0 || c->in.failed)
        conn_close(c);
    else if (n > 0)
        take_request(c);
}

static void on_connection(uv_stream_t *listener, int status) {
    server *srv = listener->data;
    conn *c = status < 0 ? NULL : calloc(1, sizeof *c);
    if (c == NULL) return;
    c->srv = srv;
    c->n_handles = 2;
    buf_init(&c->in, (size_t)REQUEST_BYTES_MAX + (1 << 20));
    buf_init(&c->tail, 0);
    uv_tcp_init(&srv->loop, &c->tcp);
    uv_timer_init(&srv->loop, &c->timer);
    c->tcp.data = c->timer.data = c;
    if (uv_accept(listener, (uv_stream_t *)&c->tcp) < 0) {
        conn_close(c);
        return;
    }
    uv_tcp_nodelay(&c->tcp, 1);
    if (uv_read_start((uv_stream_t *)&c->tcp, on_alloc, on_read) < 0) conn_close(c);
}

/* ---- the server ---- */

static void on_signal(uv_signal_t *handle, int number) {
    (void)number;
    uv_stop(handle->loop);
}

/* All handles other than the server's own are handles of connections. */
static void close_any(uv_handle_t *handle, void *ctx) {
    server *srv = ctx;
    bool is_ours = handle == (uv_handle_t *)&srv->tcp ||
                   handle == (uv_handle_t *)&srv->signals[0] ||
                   handle == (uv_handle_t *)&srv->signals[1];
    if (is_ours)
        uv_close(handle, NULL);
    else
        conn_close(handle->data);
}

static inferd_status listen_on(server *srv, int *out_port, inferd_err *err) {
    struct sockaddr_storage at;
    int n_at = sizeof at;
    int rc = uv_ip4_addr(srv->o->host, srv->o->port, (struct sockaddr_in *)&at);
    if (rc < 0) rc = uv_ip6_addr(srv->o->host, srv->o->port, (struct sockaddr_in6 *)&at);
    if (rc < 0)
        return inferd_fail(err, INFERD_EINVAL, "\"%s\" is no numeric address", srv->o->host);
    rc = uv_tcp_bind(&srv->tcp, (struct sockaddr *)&at, 0);
    if (rc == 0) rc = uv_listen((uv_stream_t *)&srv->tcp, LISTEN_BACKLOG, on_connection);
    if (rc == 0) rc = uv_tcp_getsockname(&srv->tcp, (struct sockaddr *)&at, &n_at);
    if (rc < 0)
        return inferd_fail(err, INFERD_EIO, "listening on %s:%d: %s", srv->o->host, srv->o->port,
                           uv_strerror(rc));
    *out_port = ntohs(((struct sockaddr_in *)&at)->sin_port); // same offset in sockaddr_in6
    return INFERD_OK;
}

static inferd_status tell_ready(const server *srv, int port, int ready_fd, inferd_err *err) {
    if (ready_fd < 0) {
        printf("null-server listens on %s:%d\n", srv->o->host, port);
        fflush(stdout);
        return INFERD_OK;
    }
    if (write(ready_fd, &port, sizeof port) == sizeof port) return INFERD_OK;
    return inferd_fail(err, INFERD_EIO, "reporting the port: %s", strerror(errno));
}

inferd_status null_server_run(const null_options *o, int ready_fd, inferd_err *err) {
    static const int SIGNALS[] = {SIGINT, SIGTERM};
    server *srv = calloc(1, sizeof *srv);
    if (srv == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for a server");
    srv->o = o;
    can_all(srv);
    if (uv_loop_init(&srv->loop) != 0) {
        free(srv);
        return inferd_fail(err, INFERD_EIO, "no event loop: %s", strerror(errno));
    }
    uv_tcp_init(&srv->loop, &srv->tcp);
    srv->tcp.data = srv;
    for (size_t i = 0; i < INFERD_COUNT(SIGNALS); i++) {
        uv_signal_init(&srv->loop, &srv->signals[i]);
        uv_signal_start(&srv->signals[i], on_signal, SIGNALS[i]);
    }
    int port = 0;
    inferd_status s = listen_on(srv, &port, err);
    if (s == INFERD_OK) s = tell_ready(srv, port, ready_fd, err);
    if (s == INFERD_OK) uv_run(&srv->loop, UV_RUN_DEFAULT);
    uv_walk(&srv->loop, close_any, srv);
    uv_run(&srv->loop, UV_RUN_DEFAULT);
    INFERD_CHECK(uv_loop_close(&srv->loop) == 0);
    free(srv);
    return s;
}
