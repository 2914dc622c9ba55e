/* http_guard.c - see http_guard.h.
 *
 * Header names are compared without case, values exactly as they were sent; http_judge.c has
 * checked that the names are tokens and that the values have no control characters. */
#include "http_guard.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "nearest.h"

static bool refuse(guard_refusal *why, int status, const char *code, const char *message) {
    *why = (guard_refusal){.status = status,
                           .type = status == 403 ? "permission_error" : "invalid_request_error",
                           .code = code,
                           .message = message};
    return false;
}

/* Framing in doubt: what follows on this connection cannot be trusted to be a request. */
bool guard_refuse_framing(guard_refusal *why, int status, const char *message) {
    refuse(why, status,
           status == 413 || status == 414 || status == 431 ? "request_too_large"
                                                           : "malformed_request",
           message);
    why->close = true;
    return false;
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}
static bool is_alnum(char c) {
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

#define T (GUARD_IN_TOKEN | GUARD_IN_VALUE)
const uint8_t guard_bytes[256] = {
    ['\t'] = GUARD_IN_VALUE,
    [' '] = GUARD_IN_VALUE,
    ['!'] = T,
    ['"'] = GUARD_IN_VALUE,
    ['#' ... '\''] = T,
    ['(' ... ')'] = GUARD_IN_VALUE,
    ['*' ... '+'] = T,
    [','] = GUARD_IN_VALUE,
    ['-' ... '.'] = T,
    ['/'] = GUARD_IN_VALUE,
    ['0' ... '9'] = T,
    [':' ... '@'] = GUARD_IN_VALUE,
    ['A' ... 'Z'] = T,
    ['[' ... ']'] = GUARD_IN_VALUE,
    ['^' ... 'z'] = T,
    ['{'] = GUARD_IN_VALUE,
    ['|'] = T,
    ['}'] = GUARD_IN_VALUE,
    ['~'] = T,
    [0x80 ... 0xff] = GUARD_IN_VALUE,
};
#undef T

static bool equals(bytes b, const char *s) {
    return b.n == strlen(s) && memcmp(b.p, s, b.n) == 0;
}
static bool equals_nocase(bytes b, const char *s) {
    return b.n == strlen(s) && strncasecmp(b.p, s, b.n) == 0;
}

static bytes trim(bytes b) {
    while (b.n > 0 && (b.p[0] == ' ' || b.p[0] == '\t')) b.p++, b.n--;
    while (b.n > 0 && (b.p[b.n - 1] == ' ' || b.p[b.n - 1] == '\t')) b.n--;
    return b;
}

/* Digits only; false also if the number does not fit. */
static bool read_u64(bytes b, uint64_t *out) {
    uint64_t value = 0;
    if (b.n == 0) return false;
    for (size_t i = 0; i < b.n; i++) {
        if (!is_digit(b.p[i])) return false;
        if (__builtin_mul_overflow(value, (uint64_t)10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(b.p[i] - '0'), &value))
            return false;
    }
    *out = value;
    return true;
}

/* "600", "59.5"; an invalid or absurd value gives 0, because this is only a hint. */
static double read_seconds(bytes b) {
    double value = 0, scale = 1;
    bool fraction = false;
    if (b.n == 0 || b.n > 16 || !is_digit(b.p[0])) return 0;
    for (size_t i = 0; i < b.n; i++) {
        if (b.p[i] == '.' && !fraction) {
            fraction = true;
            continue;
        }
        if (!is_digit(b.p[i])) return 0;
        value = value * 10 + (b.p[i] - '0');
        if (fraction) scale *= 10;
    }
    value /= scale;
    return value <= 1e6 ? value : 0;
}

void guard_init(guard *g, const char *method, const char *target, const char *version) {
    *g = (guard){.method = method, .target = target, .version = version};
}

void guard_header(guard *g, bytes name, bytes value) {
    static const struct {
        const char *name;
        size_t single; // offset of a guard_single
    } watched[] = {
        {"Content-Length", offsetof(guard, content_length)},
        {"Transfer-Encoding", offsetof(guard, transfer_encoding)},
        {"Host", offsetof(guard, host)},
        {"Authorization", offsetof(guard, authorization)},
        {"Content-Type", offsetof(guard, content_type)},
        {"Content-Encoding", offsetof(guard, content_encoding)},
        {"Expect", offsetof(guard, expect)},
        {"Origin", offsetof(guard, origin)},
        {"X-Api-Key", offsetof(guard, api_key)},
        {"Sec-Fetch-Site", offsetof(guard, fetch_site)},
    };
    for (size_t i = 0; i < INFERD_COUNT(watched); i++) {
        if (!equals_nocase(name, watched[i].name)) continue;
        guard_single *single = (guard_single *)(void *)((char *)g + watched[i].single);
        if (single->n++ == 0) single->value = value;
        return;
    }
    /* The node library sends the total time, the python library the time until the next byte. */
    if (equals_nocase(name, "X-Stainless-Timeout") ||
        equals_nocase(name, "X-Stainless-Read-Timeout"))
        g->timeout_s = read_seconds(trim(value));
}

bool guard_framing(guard *g, guard_refusal *why) {
    bool http_11 = strcmp(g->version, "HTTP/1.1") == 0;
    if (!http_11 && strcmp(g->version, "HTTP/1.0") != 0)
        return guard_refuse_framing(why, 505, "Only HTTP/1.1 and HTTP/1.0 are supported.");
    if (g->content_length.n > 1)
        return guard_refuse_framing(why, 400, "There is more than one Content-Length.");
    if (g->transfer_encoding.n > 1)
        return guard_refuse_framing(why, 400, "There is more than one Transfer-Encoding.");
    if (g->host.n > 1) return guard_refuse_framing(why, 400, "There is more than one Host.");
    if (g->host.n == 0 && http_11) return guard_refuse_framing(why, 400, "There is no Host.");
    if (g->authorization.n > 1)
        return guard_refuse_framing(why, 400, "There is more than one Authorization.");
    if (g->content_type.n > 1)
        return guard_refuse_framing(why, 400, "There is more than one Content-Type.");
    if (g->transfer_encoding.n == 1) {
        if (g->content_length.n != 0)
            return guard_refuse_framing(why, 400,
                                        "Content-Length and Transfer-Encoding exclude each other.");
        if (!http_11) return guard_refuse_framing(why, 400, "HTTP/1.0 has no Transfer-Encoding.");
        if (!equals_nocase(g->transfer_encoding.value, "chunked"))
            return guard_refuse_framing(why, 400, "The only Transfer-Encoding is chunked.");
        g->chunked = true;
    }
    if (g->content_length.n == 1) {
        bytes v = g->content_length.value;
        bool digits = v.n > 0;
        for (size_t i = 0; i < v.n; i++) digits = digits && is_digit(v.p[i]);
        if (!digits) return guard_refuse_framing(why, 400, "Content-Length is not a number.");
        /* The library reads 2^64-1 as "unknown", so that value is no length either. */
        if (!read_u64(v, &g->body_bytes) || g->body_bytes == UINT64_MAX)
            return guard_refuse_framing(why, 413, "Content-Length is too large.");
    }
    if (g->expect.n > 1 || (g->expect.n == 1 && !equals_nocase(g->expect.value, "100-continue"))) {
        guard_refuse_framing(why, 417, "The only supported expectation is 100-continue.");
        why->code = "expectation_failed";
        return false;
    }
    return true;
}

/* host[:port] where host is a name, an IPv4 or a bracketed IPv6 address; *name gets the host. */
static bool split_host(bytes b, bytes *name) {
    size_t i = 0;
    if (b.n > 255 + 6) return false;
    if (b.n > 0 && b.p[0] == '[') {
        for (i = 1; i < b.n && b.p[i] != ']'; i++)
            if (!is_alnum(b.p[i]) && b.p[i] != ':' && b.p[i] != '.') return false;
        if (i == b.n || i == 1) return false;
        i++;
    } else {
        while (i < b.n && (is_alnum(b.p[i]) || b.p[i] == '.' || b.p[i] == '-' || b.p[i] == '_'))
            i++;
        if (i == 0) return false;
    }
    *name = (bytes){b.p, i};
    if (i == b.n) return true;
    if (b.p[i] != ':' || b.n - i > 6) return false;
    for (i++; i < b.n; i++)
        if (!is_digit(b.p[i])) return false;
    return true;
}

/* localhost, 127.0.0.0/8 as four numbers, ::1.  Names below localhost are loopback by RFC 6761. */
static bool is_loopback_name(bytes name) {
    static const char suffix[] = ".localhost";
    if (equals_nocase(name, "localhost") || equals(name, "[::1]")) return true;
    size_t n = sizeof suffix - 1;
    if (name.n > n && strncasecmp(name.p + name.n - n, suffix, n) == 0) return true;
    if (name.n < 4 || memcmp(name.p, "127.", 4) != 0) return false;
    size_t dots = 0;
    for (size_t i = 0; i < name.n; i++) {
        if (name.p[i] == '.')
            dots++;
        else if (!is_digit(name.p[i]))
            return false;
    }
    return dots == 3;
}

static bool is_loopback_origin(bytes origin) {
    static const char *const schemes[] = {"http://", "https://"};
    for (size_t i = 0; i < INFERD_COUNT(schemes); i++) {
        size_t n = strlen(schemes[i]);
        bytes name;
        if (origin.n <= n || strncasecmp(origin.p, schemes[i], n) != 0) continue;
        return split_host((bytes){origin.p + n, origin.n - n}, &name) && is_loopback_name(name);
    }
    return false;
}

void guard_origin(guard *g, bool (*allows)(void *ctx, bytes origin, bool loopback), void *ctx) {
    bytes origin = trim(g->origin.value);
    if (g->origin.n != 1 || origin.n == 0 || origin.n > HTTP_ORIGIN_BYTES) return;
    bool loopback = is_loopback_origin(origin);
    g->origin.value = origin;
    g->origin_allowed = allows == NULL ? loopback : allows(ctx, origin, loopback);
}

/* A name that a web page could control: one with a dot that is not an address. */
static bool is_foreign_name(bytes name) {
    bool dot = false, letter = false;
    if (name.n > 0 && name.p[0] == '[') return false;
    for (size_t i = 0; i < name.n; i++) {
        dot |= name.p[i] == '.';
        letter |= name.p[i] != '.' && !is_digit(name.p[i]);
    }
    return dot && letter && !is_loopback_name(name);
}

bool guard_socket(const guard *g, guard_refusal *why) {
    static const char only_its_page[] =
        "On the socket of administrators only its own page may send requests.";
    bytes host = trim(g->host.value), origin = trim(g->origin.value), name;
    if (g->host.n == 1 && split_host(host, &name) && is_foreign_name(name))
        return refuse(why, 403, "host_not_allowed",
                      "On the socket of administrators, Host must be localhost, an address, or a "
                      "name without a dot.");
    /* A picture or a link of another page has no Origin, and is told by this. */
    bytes fetch_site = trim(g->fetch_site.value);
    bool own = equals(fetch_site, "same-origin") || equals(fetch_site, "none"); // none: typed
    if (g->fetch_site.n > 0 && !own) return refuse(why, 403, "origin_not_allowed", only_its_page);
    if (g->origin.n == 0) return true;
    size_t n = origin.n > 7 && strncasecmp(origin.p, "http://", 7) == 0 ? 7 : 0;
    bytes site = {origin.p + n, origin.n - n};
    if (g->origin.n == 1 && n > 0 && site.n == host.n && strncasecmp(site.p, host.p, host.n) == 0)
        return true;
    return refuse(why, 403, "origin_not_allowed", only_its_page);
}

bool guard_host(const guard *g, bool keyless, guard_refusal *why) {
    if (g->host.n == 1) {
        bytes name;
        if (!split_host(trim(g->host.value), &name))
            return guard_refuse_framing(why, 400, "Host is not a name or address with a port.");
        if (keyless && !is_loopback_name(name))
            return refuse(
                why, 403, "host_not_allowed",
                "Without keys, Host must be a name of this machine, such as localhost: give "
                "the server keys to be reached by other names.");
    }
    if (keyless && g->origin.n > 0 && !g->origin_allowed)
        return refuse(
            why, 403, "origin_not_allowed",
            "Without keys, web pages of other machines are refused: give the server keys, "
            "or name the page's origin in cors.");
    return true;
}

static int hex(char c) {
    if (is_digit(c)) return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* The n bytes that a "*" matches.  They are decoded because names of models contain slashes that
 * clients escape; they are only ever compared, so decoding is safe. */
static bool match_tail(const char *rest, size_t n_rest, char tail[256]) {
    size_t n = 0;
    for (const char *end = rest + n_rest; rest < end; rest++) {
        char c = *rest;
        if (c == '%') {
            if (end - rest < 3) return false;
            int high = hex(rest[1]), low = hex(rest[2]);
            if (high < 0 || low < 0) return false;
            c = (char)(high * 16 + low);
            if (c == 0) return false;
            rest += 2;
        }
        if (n == 255) return false;
        tail[n++] = c;
    }
    tail[n] = 0;
    return n > 0;
}

static bool match_path(const char *path, const char *target, char tail[256]) {
    size_t n = strcspn(path, "*");
    tail[0] = 0;
    if (path[n] == 0) return strcmp(path, target) == 0;
    if (strncmp(path, target, n) != 0) return false;
    const char *rest = target + n;
    if (path[n + 1] == '*') return match_tail(rest, strlen(rest), tail);
    size_t n_rest = strcspn(rest, "/");
    return strcmp(rest + n_rest, path + n + 1) == 0 && match_tail(rest, n_rest, tail);
}

static http_method read_method(const char *method) {
    static const struct {
        const char *name;
        http_method method;
    } methods[] = {{"GET", HTTP_GET},        {"POST", HTTP_POST},     {"HEAD", HTTP_HEAD},
                   {"PUT", HTTP_PUT},        {"DELETE", HTTP_DELETE}, {"PATCH", HTTP_PATCH},
                   {"OPTIONS", HTTP_OPTIONS}};
    for (size_t i = 0; i < INFERD_COUNT(methods); i++)
        if (strcmp(method, methods[i].name) == 0) return methods[i].method;
    return 0;
}

/* Always false.  Names the path, as far as it is short and printable, and the nearest route; routes
 * of administrators are not hinted at. */
static bool refuse_path(const guard *g, const http_route *routes, size_t n, guard_refusal *why) {
    nearest meant = {0};
    char path[GUARD_PATH_BYTES];
    snprintf(path, sizeof path, "%s", g->target);
    for (char *c = path; *c != 0; c++)
        if (*c <= 0x20 || *c >= 0x7f) *c = '?';
    for (size_t i = 0; i < n; i++)
        if (routes[i].access != HTTP_ADMIN && strchr(routes[i].path, '*') == NULL)
            nearest_try(&meant, g->target, routes[i].path);
    const char *route = nearest_word(&meant);
    refuse(why, 404, "unknown_url", "There is nothing at this path.");
    snprintf(why->text, sizeof why->text, "There is nothing at %s%s%s%s", path,
             route != NULL ? "; did you mean " : "", route != NULL ? route : "",
             route != NULL ? "?" : ".");
    return false;
}

bool guard_route(guard *g, const http_route *routes, size_t n_routes, guard_refusal *why) {
    unsigned allow = 0;
    g->http_method = read_method(g->method);
    if (strcmp(g->target, "*") == 0) {
        refuse(why, 405, "method_not_allowed", "The request target * is not supported.");
        why->allow = HTTP_GET | HTTP_HEAD | HTTP_POST;
        return false;
    }
    if (g->target[0] != '/')
        return guard_refuse_framing(why, 400, "The request target is not an absolute path.");
    for (size_t i = 0; i < n_routes; i++) {
        unsigned methods = routes[i].methods;
        if (methods & HTTP_GET) methods |= HTTP_HEAD;
        if (!match_path(routes[i].path, g->target, g->tail)) continue;
        if (methods & g->http_method) {
            g->route = &routes[i];
            return true;
        }
        allow |= methods;
    }
    g->tail[0] = 0;
    if (allow == 0) return refuse_path(g, routes, n_routes, why);
    g->allow = allow;
    g->preflight = g->http_method == HTTP_OPTIONS && g->origin.n > 0;
    if (g->preflight && g->origin_allowed) return true;
    if (g->preflight)
        return refuse(why, 403, "origin_not_allowed",
                      "Web pages of this origin may not use the server: name it in cors.");
    refuse(why, 405, "method_not_allowed", "This path does not have that method.");
    why->allow = allow;
    return false;
}

http_error_writer *guard_error_writer(const http_route *routes, size_t n_routes, bytes path) {
    for (size_t i = 0; i < n_routes; i++) {
        size_t n = strlen(routes[i].path);
        if (routes[i].write_error == NULL || path.n < n) continue;
        if (memcmp(path.p, routes[i].path, n) == 0 && (path.n == n || path.p[n] == '/'))
            return routes[i].write_error;
    }
    return NULL;
}

bytes guard_bearer(const guard *g) {
    static const char scheme[] = "Bearer ";
    bytes v = g->authorization.value;
    size_t n = sizeof scheme - 1;
    if (g->authorization.n != 1 || v.n <= n || strncasecmp(v.p, scheme, n) != 0) return (bytes){0};
    return (bytes){v.p + n, v.n - n};
}

bytes guard_key(const guard *g) {
    bytes bearer = guard_bearer(g);
    if (bearer.n > 0 || g->api_key.n != 1) return bearer;
    return trim(g->api_key.value);
}

/* application/json, with at most a charset and that utf-8. */
static bool is_json_type(bytes v) {
    static const char name[] = "charset=";
    size_t i = 0;
    while (i < v.n && v.p[i] != ';') i++;
    if (!equals_nocase(trim((bytes){v.p, i}), "application/json")) return false;
    if (i == v.n) return true;
    bytes rest = trim((bytes){v.p + i + 1, v.n - i - 1});
    if (rest.n == 0) return true;
    size_t n = sizeof name - 1;
    if (rest.n <= n || strncasecmp(rest.p, name, n) != 0) return false;
    rest = (bytes){rest.p + n, rest.n - n};
    return equals_nocase(rest, "utf-8") || equals_nocase(rest, "\"utf-8\"") ||
           equals_nocase(rest, "utf8");
}

bool guard_content(const guard *g, uint64_t body_bytes_max, guard_refusal *why) {
    static const char unsupported[] = "unsupported_media_type";
    bool carries = g->http_method & (HTTP_POST | HTTP_PUT | HTTP_PATCH);
    if (g->content_encoding.n > 1 ||
        (g->content_encoding.n == 1 && !equals_nocase(g->content_encoding.value, "identity")))
        return refuse(why, 415, unsupported,
                      "Bodies with a Content-Encoding are not accepted: send them uncompressed.");
    if (carries && g->route->json_body && g->content_type.n == 1 &&
        !is_json_type(g->content_type.value))
        return refuse(why, 415, unsupported,
                      "The body must be JSON in UTF-8: send Content-Type: application/json.");
    uint64_t bytes_max =
        carries && g->route->json_body ? body_bytes_max : (uint64_t)GUARD_UNREAD_BYTES_MAX;
    if (g->body_bytes > bytes_max)
        return refuse(why, 413, "request_too_large", "The body is larger than this server reads.");
    return true;
}
