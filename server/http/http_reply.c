/* http_reply.c - whole answers, error bodies, and the headers every answer carries.
 *
 * A short answer goes to the library as one buffer.  The library reads a long one in pieces: each
 * piece taken is the only sign of life of a slow reader, and re-arms the stall deadline. */
#include <string.h>
#include <strings.h>
#include <time.h>

#include "http_internal.h"
#include "json_out.h"

enum {
    WHOLE_BYTES_MAX = 16 * 1024, // fits the socket's buffer: no pieces
    PIECE_BYTES = 32 * 1024,
    RETRY_AFTER_MAX_S = 60 // with a longer delay, clients retry after about a second
};

/* -- JSON text -- */

static void add_member(buf *out, const char *name, const char *value) {
    buf_add_format(out, "\"%s\":", name);
    if (value == NULL)
        buf_add_str(out, "null");
    else
        json_add_string(out, value, strlen(value));
}

/* In the form of the path; returns the status. */
static int write_error(const exchange *x, buf *out, const http_error *e) {
    if (x->write_error != NULL) return x->write_error(out, e);
    buf_add_str(out, "{\"error\":{");
    add_member(out, "message", e->message);
    buf_add_char(out, ',');
    add_member(out, "type", e->type);
    buf_add_char(out, ',');
    add_member(out, "param", e->param);
    buf_add_char(out, ',');
    add_member(out, "code", e->code);
    buf_add_str(out, "}}");
    return e->status;
}

/* -- headers -- */

static bool add_header(struct MHD_Response *r, const char *name, const char *value) {
    return MHD_add_response_header(r, name, value) == MHD_YES;
}

/* "Name: value\n" lines. */
static bool add_header_lines(struct MHD_Response *r, const char *lines) {
    char line[HTTP_HEADER_LINE_BYTES];
    while (lines != NULL && *lines != 0) {
        size_t n = strcspn(lines, "\n");
        char *colon = n < sizeof line ? memchr(memcpy(line, lines, n), ':', n) : NULL;
        INFERD_CHECK(colon != NULL); // written by us
        line[n] = 0;
        *colon++ = 0;
        while (*colon == ' ') colon++;
        if (!add_header(r, line, colon)) return false;
        lines += n + (lines[n] == '\n');
    }
    return true;
}

/* Headers of http_options.reply_lines; "" without it. */
static void write_own_lines(exchange *x, char out[HTTP_LINES_BYTES]) {
    out[0] = 0;
    if (x->s->reply_lines != NULL) x->s->reply_lines(x->s->ctx, &x->rq, out);
}

/* For a web page that may read the answer, "Name: value\n" lines; "" for others.  The key is not a
 * credential that browsers add by themselves, so "*" is allowed for what is exposed. */
enum { ORIGIN_LINES_BYTES = HTTP_ORIGIN_BYTES + 128 };
static void write_origin_lines(const exchange *x, char out[ORIGIN_LINES_BYTES]) {
    out[0] = 0;
    if (x->origin[0] == 0) return;
    snprintf(out, ORIGIN_LINES_BYTES,
             "Access-Control-Allow-Origin: %s\nVary: Origin\nAccess-Control-Expose-Headers: *\n",
             x->origin);
}

bool reply_headers(exchange *x, struct MHD_Response *r, const char *content_type,
                   const char *extra_headers) {
    bool close = x->s->draining || x->c->over_limit;
    char own[HTTP_LINES_BYTES], origin[ORIGIN_LINES_BYTES];
    write_own_lines(x, own);
    write_origin_lines(x, origin);
    return add_header(r, "x-request-id", x->rq.id) &&
           (content_type == NULL || add_header(r, "Content-Type", content_type)) &&
           (!close || add_header(r, "Connection", "close")) && add_header_lines(r, own) &&
           add_header_lines(r, origin) && add_header_lines(r, x->rq.headers) &&
           add_header_lines(r, extra_headers);
}

/* -- fields of the request -- */

bool http_is_trusted(http_request *rq) {
    return exchange_of(rq)->s->trusted;
}

bytes http_header(http_request *rq, const char *name) {
    const char *value = NULL;
    size_t n = 0;
    exchange *x = exchange_of(rq);
    INFERD_CHECK(x->phase == EXCHANGE_HANDLING);
    if (MHD_lookup_connection_value_n(x->c->mhd, MHD_HEADER_KIND, name, strlen(name), &value, &n) !=
            MHD_YES ||
        value == NULL)
        return (bytes){NULL, 0};
    return (bytes){value, n};
}

typedef struct values {
    const char *name;
    bytes *out; // [n_max]
    uint32_t n, n_max;
} values;

static enum MHD_Result collect_value(void *cls, enum MHD_ValueKind kind, const char *name,
                                     size_t name_n, const char *value, size_t value_n) {
    values *v = cls;
    (void)kind;
    if (name_n != strlen(v->name) || strncasecmp(name, v->name, name_n) != 0) return MHD_YES;
    if (v->n < v->n_max) v->out[v->n] = (bytes){value, value == NULL ? 0 : value_n};
    v->n++;
    return MHD_YES;
}

uint32_t http_headers(http_request *rq, const char *name, bytes *out, uint32_t n_max) {
    exchange *x = exchange_of(rq);
    values v = {.name = name, .out = out, .n_max = n_max};
    INFERD_CHECK(x->phase == EXCHANGE_HANDLING);
    MHD_get_connection_values_n(x->c->mhd, MHD_HEADER_KIND, collect_value, &v);
    return v.n;
}

/* -- answers -- */

static ssize_t read_answer(void *cls, uint64_t at, char *out, size_t n_max) {
    exchange *x = cls;
    size_t n = size_min(n_max, x->answer.n - (size_t)at);
    x->s->n_calls++;
    if (x->gone) return MHD_CONTENT_READER_END_WITH_ERROR;
    memcpy(out, x->answer.p + at, n);
    x->rq.n_sent += n;
    if (!x->rq.no_timeout) watch_conn(x->c, DEADLINE_STALL);
    return (ssize_t)n;
}

/* Takes body's memory, also when it fails. */
static struct MHD_Response *make_response(exchange *x, buf *body) {
    struct MHD_Response *r;
    if (body->failed) {
        buf_deinit(body);
        return NULL;
    }
    if (body->n > WHOLE_BYTES_MAX) {
        x->answer = *body;
        *body = (buf){0};
        return MHD_create_response_from_callback(x->answer.n, PIECE_BYTES, read_answer, x, NULL);
    }
    r = MHD_create_response_from_buffer(body->n, body->p == NULL ? "" : body->p,
                                        body->p == NULL ? MHD_RESPMEM_PERSISTENT
                                                        : MHD_RESPMEM_MUST_FREE);
    if (r == NULL)
        buf_deinit(body);
    else if (x->rq.method != HTTP_HEAD)
        x->rq.n_sent = body->n;
    *body = (buf){0};
    return r;
}

/* Makes x->response out of body; NULL: no memory, and reply_queue answers that. */
static void prepare(exchange *x, int status, const char *content_type, buf *body,
                    const char *extra_headers) {
    struct MHD_Response *r = make_response(x, body);
    if (r != NULL && !reply_headers(x, r, content_type, extra_headers)) {
        MHD_destroy_response(r);
        r = NULL;
    }
    x->answered = true;
    x->response = r;
    x->rq.status = r == NULL ? 503 : status;
}

void http_answer(http_request *rq, int status, const char *content_type, buf *body,
                 const char *extra_headers) {
    exchange *x = exchange_of(rq);
    buf none = {0};
    if (body == NULL) body = &none;
    if (x->gone) {
        buf_deinit(body);
        return;
    }
    INFERD_CHECK(!x->answered && !x->streaming);
    prepare(x, status, content_type, body, extra_headers);
    exchange_resume(x);
}

enum { HEADER_LINES_BYTES = 256 };

/* 429: the delay is known, for a monthly quota it may be days.  See http_answer_error. */
static size_t limit_headers(char *lines, unsigned retry_after_s) {
    if (retry_after_s == 0) return (size_t)sprintf(lines, "x-should-retry: false\n");
    return (size_t)sprintf(lines, "Retry-After: %u\nretry-after-ms: %llu\n%s", retry_after_s,
                           (unsigned long long)retry_after_s * 1000,
                           retry_after_s > RETRY_AFTER_MAX_S ? "x-should-retry: false\n" : "");
}

/* "NAME: GET, HEAD\n". */
static size_t write_methods(char *out, const char *name, unsigned allow) {
    static const struct {
        http_method method;
        const char *name;
    } methods[] = {{HTTP_GET, "GET"}, {HTTP_HEAD, "HEAD"},     {HTTP_POST, "POST"},
                   {HTTP_PUT, "PUT"}, {HTTP_DELETE, "DELETE"}, {HTTP_PATCH, "PATCH"}};
    const char *before = ": ";
    size_t n = 0;
    if (allow == 0) return 0;
    n += (size_t)sprintf(out, "%s", name);
    for (size_t i = 0; i < INFERD_COUNT(methods); i++) {
        if ((allow & methods[i].method) == 0) continue;
        n += (size_t)sprintf(out + n, "%s%s", before, methods[i].name);
        before = ", ";
    }
    return n + (size_t)sprintf(out + n, "\n");
}

/* The headers of a status.  A 5xx that waiting does not cure says so: clients would retry twice. */
static void error_headers(char lines[HEADER_LINES_BYTES], int status, unsigned retry_after_s,
                          unsigned allow) {
    size_t n = 0;
    lines[0] = 0;
    if (status == 401) n += (size_t)sprintf(lines + n, "WWW-Authenticate: Bearer\n");
    if (status == 405) n += write_methods(lines + n, "Allow", allow);
    if (status == 429)
        n += limit_headers(lines + n, retry_after_s);
    else if (retry_after_s > 0)
        n += (size_t)sprintf(lines + n, "Retry-After: %u\n", retry_after_s);
    bool soon = retry_after_s > 0 && retry_after_s <= RETRY_AFTER_MAX_S;
    if ((status == 503 && !soon) || status == 501 || status == 505 || status == 507)
        sprintf(lines + n, "x-should-retry: false\n");
}

static void prepare_error(exchange *x, int status, const char *type, const char *code,
                          const char *param, const char *message, unsigned retry_after_s,
                          unsigned allow) {
    char lines[HEADER_LINES_BYTES];
    buf body;
    buf_init(&body, 0);
    error_headers(lines, status, retry_after_s, allow);
    const http_error e = {status, type, code, param, message, x->rq.id};
    status = write_error(x, &body, &e);
    prepare(x, status, "application/json", &body, lines);
}

void http_answer_error(http_request *rq, int status, const char *type, const char *code,
                       const char *param, const char *message, unsigned retry_after_s) {
    exchange *x = exchange_of(rq);
    unsigned allow = rq->route == NULL ? 0 : rq->route->methods;
    if (x->gone) return;
    INFERD_CHECK(!x->answered && !x->streaming);
    if (allow & HTTP_GET) allow |= HTTP_HEAD;
    prepare_error(x, status, type, code, param, message, retry_after_s, allow);
    exchange_resume(x);
}

/* What a browser needs to know before it sends a request with a key and JSON.  It may ask again
 * after ten minutes.  "*" stands for all headers but Authorization. */
static void prepare_preflight(exchange *x, unsigned allow) {
    char lines[HEADER_LINES_BYTES];
    size_t n = write_methods(lines, "Access-Control-Allow-Methods", allow);
    sprintf(lines + n, "Access-Control-Allow-Headers: Authorization, Content-Type, *\n"
                       "Access-Control-Max-Age: 600\n");
    prepare(x, 204, NULL, &(buf){0}, lines);
}

void reply_refusal(exchange *x) {
    const guard_refusal *why = &x->refusal;
    if (x->answered) return; // made before its body was dropped
    if (why->status == 204) {
        prepare_preflight(x, why->allow);
        return;
    }
    prepare_error(x, why->status, why->type, why->code, NULL,
                  why->text[0] != 0 ? why->text : why->message, why->retry_after_s, why->allow);
}

enum MHD_Result reply_queue(exchange *x, struct MHD_Connection *mhd) {
    if (x->response == NULL) {
        inlet_refuse(x->c, &reply_no_memory);
        return MHD_NO;
    }
    enum MHD_Result queued = MHD_queue_response(mhd, (unsigned)x->rq.status, x->response);
    MHD_destroy_response(x->response); // the connection keeps its own reference
    x->response = NULL;
    if (queued != MHD_YES) return MHD_NO;
    x->phase = EXCHANGE_REPLYING;
    if (x->rq.no_timeout)
        deadline_disarm(&x->c->due);
    else
        watch_conn(x->c, DEADLINE_STALL);
    return MHD_YES;
}

/* -- past the library -- */

const guard_refusal reply_no_memory = {.status = 503,
                                       .type = "overloaded_error",
                                       .code = "server_overloaded",
                                       .message = "Memory is short, try again.",
                                       .retry_after_s = 1};
const guard_refusal reply_too_late = {.status = 408,
                                      .type = "timeout_error",
                                      .code = "request_timeout",
                                      .message = "The request was not complete in time."};
const guard_refusal reply_half_closed = {
    .status = 499,
    .type = "invalid_request_error",
    .code = "client_closed_request",
    .message = "The connection was half closed before the answer was ready, which cancels a "
               "request: keep it open until the answer is there."};

/* "Name: value\n" lines as they are sent. */
static size_t add_raw_lines(char *text, size_t n, size_t n_max, const char *lines) {
    for (; *lines != 0 && n + 2 < n_max; lines++) {
        if (*lines == '\n') text[n++] = '\r';
        text[n++] = *lines;
    }
    return n;
}

static size_t add_raw_head(exchange *x, const guard_refusal *why, int status, size_t n_body,
                           char *text, size_t n_max) {
    char date[64] = "", lines[HEADER_LINES_BYTES], own[HTTP_LINES_BYTES];
    char origin[ORIGIN_LINES_BYTES];
    time_t now = time(NULL);
    struct tm tm;
    if (gmtime_r(&now, &tm) != NULL)
        strftime(date, sizeof date, "Date: %a, %d %b %Y %H:%M:%S GMT\r\n", &tm);
    const char *reason =
        status == 499 ? "Client Closed Request" : MHD_get_reason_phrase_for((unsigned)status);
    size_t n = (size_t)snprintf(text, n_max,
                                "HTTP/1.1 %d %s\r\n%sConnection: close\r\nx-request-id: %s\r\n"
                                "Content-Type: application/json\r\nContent-Length: %zu\r\n",
                                status, reason, date, x->rq.id, n_body);
    error_headers(lines, why->status, why->retry_after_s, why->allow);
    n = add_raw_lines(text, n, n_max, lines);
    write_own_lines(x, own);
    n = add_raw_lines(text, n, n_max, own);
    write_origin_lines(x, origin);
    n = add_raw_lines(text, n, n_max, origin);
    return add_raw_lines(text, n, n_max, "\n");
}

/* Allocates nothing, since memory may be short.  The library has sent all of the answers before; a
 * client that read none of them, so that its socket is full, gets no further answer. */
void reply_raw(exchange *x, const guard_refusal *why) {
    enum {
        HEAD_BYTES = 1024 + HEADER_LINES_BYTES + HTTP_LINES_BYTES + ORIGIN_LINES_BYTES,
        BODY_BYTES = 512
    };
    char room[BODY_BYTES], text[HEAD_BYTES + BODY_BYTES];
    buf body = {.p = room, .capacity = sizeof room, .bytes_max = sizeof room - 1}; // never grows
    const http_error e = {why->status, why->type, why->code, NULL, why->message, x->rq.id};
    int status = write_error(x, &body, &e);
    INFERD_CHECK(!body.failed && body.n > 0);
    x->raw = true;
    x->rq.status = status;
    size_t n = add_raw_head(x, why, status, body.n, text, HEAD_BYTES);
    if (x->rq.method != HTTP_HEAD) {
        memcpy(text + n, body.p, body.n);
        n += body.n;
        x->rq.n_sent = body.n;
    }
    (void)!send(x->c->fd, text, n, MSG_DONTWAIT | MSG_NOSIGNAL);
}
