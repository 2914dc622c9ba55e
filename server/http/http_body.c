/* http_body.c - the access handler: the library calls it once when the headers are complete, once
 * for every piece of body, once when the body is complete, and again after each resume.
 *
 * A refusal is answered in the first call if a body follows: the library then reads nothing more
 * and closes.  Without a body the connection stays usable, so the answer waits for the last call.
 * In the middle of a body the library takes no answer: reply_raw sends it at once, past it. */
#include <string.h>

#include "http_internal.h"
#include "log.h"
#include "scheduler/pulse.h"

static bool refuse(exchange *x, int status, const char *type, const char *code, const char *message,
                   unsigned retry_after_s) {
    x->refusal = (guard_refusal){.status = status,
                                 .type = type,
                                 .code = code,
                                 .message = message,
                                 .retry_after_s = retry_after_s};
    return false;
}

/* 1 to 3 seconds: clients that get the same delay return at the same time. */
static unsigned retry_soon(exchange *x) {
    unsigned char c;
    server_random(x->s, &c, 1);
    return 1 + c % 3;
}

static bool refuse_overload(exchange *x, const char *message, unsigned retry_after_s) {
    return refuse(x, 503, "overloaded_error", "server_overloaded", message, retry_after_s);
}

static bool refuse_shutdown(exchange *x) {
    return refuse(x, 503, "unavailable_error", "shutting_down",
                  "The server is shutting down, try again.", retry_soon(x));
}

static enum MHD_Result collect_header(void *cls, enum MHD_ValueKind kind, const char *name,
                                      size_t name_n, const char *value, size_t value_n) {
    (void)kind;
    guard_header(cls, (bytes){name, name_n}, (bytes){value, value == NULL ? 0 : value_n});
    return MHD_YES;
}

static bool check_admin(exchange *x, const guard *g) {
    http_server *s = x->s;
    http_admin role =
        s->admin_of_key == NULL ? HTTP_ADMIN_NO_KEYS : s->admin_of_key(s->ctx, guard_bearer(g));
    if (s->trusted && role != HTTP_ADMIN_TENANT) return true;
    switch (role) {
    case HTTP_ADMIN_YES:
        return true;
    case HTTP_ADMIN_NO_KEYS:
        return refuse(x, 403, "permission_error", "admin_not_configured",
                      "There is no key for administrators: set admin.key_file, admin.key_env or "
                      "admin.keys in the configuration, or use the socket admin.listen.",
                      0);
    case HTTP_ADMIN_TENANT:
        return refuse(x, 403, "permission_error", "admin_only",
                      "This key belongs to a tenant; here a key of admin is needed.", 0);
    case HTTP_ADMIN_UNKNOWN:
        break;
    }
    return refuse(x, 401, "authentication_error", "invalid_api_key",
                  "A valid admin key is needed: Authorization: Bearer KEY.", 0);
}

static bool check_key(exchange *x, const guard *g) {
    http_server *s = x->s;
    if (g->route->access == HTTP_ADMIN) return check_admin(x, g);
    if (g->route->access == HTTP_OPEN || s->keyless) return true;
    if (g->route->access == HTTP_WATCH && s->trusted) return true;
    if (g->route->access == HTTP_WATCH && s->admin_of_key != NULL &&
        s->admin_of_key(s->ctx, guard_bearer(g)) == HTTP_ADMIN_YES)
        return true;
    x->rq.tenant = s->tenant_of_key(s->ctx, guard_key(g));
    if (x->rq.tenant >= 0) return true;
    return refuse(x, 401, "authentication_error", "invalid_api_key",
                  "A valid API key is needed: Authorization: Bearer KEY.", 0);
}

static bool check_load(exchange *x, const guard *g) {
    http_server *s = x->s;
    if (x->c->over_limit)
        return refuse_overload(x, "All connections are in use, try again.", retry_soon(x));
    if (!g->route->admits_work) return true;
    if (s->draining && !s->passed) return refuse_shutdown(x);
    unsigned after_s = s->overloaded_s != NULL ? s->overloaded_s(s->ctx, x->rq.tenant) : 0;
    return after_s == 0 || refuse_overload(x, "The server is overloaded, try again.", after_s);
}

/* Memory for a body is reserved when its length is known: an admitted request can finish. */
static bool reserve_body(exchange *x, uint64_t n) {
    http_server *s = x->s;
    if (n > s->limits.bodies_bytes_max - s->bodies_bytes) return false;
    s->bodies_bytes += n;
    x->bytes_held += n;
    return true;
}

void body_release(exchange *x) {
    x->s->bodies_bytes -= x->bytes_held;
    x->bytes_held = 0;
}

/* Answered before anything else of the request is checked, and without an error's body. */
static bool answer_preflight(exchange *x, const guard *g) {
    x->refusal = (guard_refusal){.status = 204, .allow = g->allow};
    return false;
}

static bool pass_guard(exchange *x, guard *g) {
    http_server *s = x->s;
    if (!guard_framing(g, &x->refusal)) return false;
    guard_origin(g, s->allows_origin, s->ctx);
    if (g->origin_allowed)
        snprintf(x->origin, sizeof x->origin, "%.*s", (int)g->origin.value.n, g->origin.value.p);
    if (!guard_host(g, s->keyless && !s->is_unix, &x->refusal) ||
        (s->trusted && !guard_socket(g, &x->refusal)) ||
        !guard_route(g, s->routes, s->n_routes, &x->refusal))
        return false;
    if (g->preflight) return answer_preflight(x, g);
    x->rq.route = g->route;
    x->write_error = g->route->write_error;
    x->rq.method = g->http_method;
    memcpy(x->rq.tail, g->tail, sizeof x->rq.tail);
    if (g->timeout_s > 0) x->rq.deadline_us = x->rq.arrival_us + (uint64_t)(g->timeout_s * 1e6);
    if (!check_key(x, g) || !check_load(x, g) ||
        !guard_content(g, s->limits.body_bytes_max, &x->refusal))
        return false;
    x->collects = (g->http_method & (HTTP_POST | HTTP_PUT | HTTP_PATCH)) != 0;
    if (x->collects && !reserve_body(x, g->body_bytes))
        return refuse_overload(x, "Memory for request bodies is in use, try again.", retry_soon(x));
    return true;
}

static enum MHD_Result on_headers(exchange *x, struct MHD_Connection *mhd, const char *url,
                                  const char *method, const char *version) {
    guard g;
    guard_init(&g, method, url, version);
    MHD_get_connection_values_n(mhd, MHD_HEADER_KIND, collect_header, &g);
    bool passed = pass_guard(x, &g);
    /* The library omits the body of an answer to HEAD; with the method bytes are counted right. */
    if (strcmp(method, "HEAD") == 0) x->rq.method = HTTP_HEAD;
    x->body_expected = g.chunked || g.body_bytes > 0;
    x->chunked = g.chunked;
    x->http_10 = strcmp(version, "HTTP/1.0") == 0;
    x->admitted = true;
    x->s->n_open++;
    if (passed) {
        x->phase = EXCHANGE_BODY;
    } else {
        x->phase = EXCHANGE_REFUSED;
        reply_refusal(x);
        if (x->refusal.close || x->body_expected || x->c->over_limit) {
            x->c->linger = true;
            return reply_queue(x, mhd);
        }
    }
    if (x->body_expected)
        watch_conn(x->c, DEADLINE_BODY);
    else
        deadline_disarm(&x->c->due);
    return MHD_YES;
}

/* The rest of the body is not read. */
static enum MHD_Result refuse_body(exchange *x, int status) {
    if (status == 413)
        refuse(x, 413, "invalid_request_error", "request_too_large",
               "The body is larger than this server reads.", 0);
    else
        refuse_overload(x, "Memory for request bodies is in use, try again.", retry_soon(x));
    inlet_refuse(x->c, &x->refusal);
    return MHD_NO;
}

static enum MHD_Result collect(exchange *x, const char *p, size_t n) {
    uint64_t bytes_max =
        x->rq.route->json_body ? x->s->limits.body_bytes_max : (uint64_t)GUARD_UNREAD_BYTES_MAX;
    if (x->body.n + n > bytes_max) return refuse_body(x, 413);
    if (x->chunked && !reserve_body(x, n)) return refuse_body(x, 503);
    buf_add(&x->body, p, n);
    return x->body.failed ? refuse_body(x, 503) : MHD_YES;
}

void body_refuse_work(http_server *s) {
    LIST_EACH(node, &s->exchanges) {
        exchange *x = LIST_ENTRY(node, exchange, link);
        if (x->phase != EXCHANGE_BODY || x->gone || x->c == NULL) continue;
        if (!x->rq.route->admits_work) continue;
        refuse_shutdown(x);
        inlet_refuse_and_read(x->c, &x->refusal);
    }
    inlet_read_again(s);
}

static enum MHD_Result on_body(exchange *x, const char *p, size_t *n) {
    size_t n_now = *n;
    *n = 0;
    if (x->gone) return MHD_NO;
    if (x->collects) return collect(x, p, n_now);
    /* A longer body is not worth reading to its end. */
    x->n_dropped += n_now;
    return x->n_dropped > GUARD_UNREAD_BYTES_MAX ? refuse_body(x, 413) : MHD_YES;
}

/* Continues with an answer or a stream; without either the exchange waits. */
static enum MHD_Result go_on(exchange *x, struct MHD_Connection *mhd) {
    if (x->gone) {
        exchange_gone(x);
        return MHD_NO;
    }
    if (x->answered || x->streaming) return reply_queue(x, mhd);
    x->phase = EXCHANGE_WAITING;
    if (x->c->left || x->c->cut || x->s->closing) { // closing: it arrived in the last MHD_run
        exchange_gone(x);
        if (x->c->left && !x->c->cut) reply_raw(x, &reply_half_closed);
        return MHD_NO;
    }
    exchange_suspend(x);
    return MHD_YES;
}

static enum MHD_Result on_complete(exchange *x, struct MHD_Connection *mhd) {
    deadline_disarm(&x->c->due);
    if (x->phase == EXCHANGE_REFUSED) {
        reply_refusal(x);
        return reply_queue(x, mhd);
    }
    x->rq.body = (bytes){x->body.p == NULL ? "" : x->body.p, x->body.n};
    x->phase = EXCHANGE_HANDLING;
    pulse_at_object(PULSE_WORK, "request handler", x->rq.route->path);
    x->rq.route->handle(x->s->ctx, &x->rq);
    pulse_at(PULSE_WORK, "MHD_run");
    x->phase = EXCHANGE_WAITING;
    return go_on(x, mhd);
}

enum MHD_Result http_on_request(void *cls, struct MHD_Connection *mhd, const char *url,
                                const char *method, const char *version, const char *upload,
                                size_t *upload_size, void **con_cls) {
    http_server *s = cls;
    exchange *x = *con_cls;
    s->n_calls++;
    if (x == NULL) { // there was no memory for it
        conn *c = conn_of(mhd);
        if (c != NULL) inlet_refuse(c, &reply_no_memory);
        return MHD_NO;
    }
    switch (x->phase) {
    case EXCHANGE_HEADERS:
        return on_headers(x, mhd, url, method, version);
    case EXCHANGE_BODY:
    case EXCHANGE_REFUSED:
        return *upload_size > 0 ? on_body(x, upload, upload_size) : on_complete(x, mhd);
    case EXCHANGE_WAITING:
        return go_on(x, mhd);
    case EXCHANGE_HANDLING:
    case EXCHANGE_REPLYING:
        break;
    }
    return MHD_NO;
}
