/* http_guard.h - the checks of a request before a byte of its body is read.
 *
 * libmicrohttpd accepts requests that later readers of the same bytes might understand differently:
 * two lengths, a length beside chunks, decoded paths.  The guard sees every header once, counts the
 * ones that matter, and then checks in a fixed order:
 *
 *     guard_framing > guard_origin > guard_host > guard_route > (key) > (overload, drain) >
 *     guard_content
 *
 * so that a client without a key learns only that a key is missing, and no other field is used
 * while the end of the message is in doubt. guard_framing runs twice: before the library reads the
 * head (http_inlet.c), and in the access handler on the values that the library parsed.  Names and
 * values are borrowed: a guard lives inside one call.
 *
 * It does not depend on sockets or libmicrohttpd, so it is tested and fuzzed alone.
 * Thread: front. */
#ifndef INFERD_HTTP_GUARD_H
#define INFERD_HTTP_GUARD_H

#include "http.h"

enum {
    GUARD_HEADERS_MAX = 100,
    GUARD_ARGUMENTS_MAX = 64,          // of the query
    GUARD_UNREAD_BYTES_MAX = 64 * 1024 // an unexpected body is read and dropped up to this size
};

enum { GUARD_PATH_BYTES = 64, GUARD_TEXT_BYTES = 160 }; // of a path that is repeated; of `text`

/* The reason of a refusal.  Strings are static; status 0 = not refused. */
typedef struct guard_refusal {
    int status;
    const char *type, *code, *message;
    unsigned retry_after_s;
    unsigned allow;              // of http_method, for 405
    bool close;                  // the end of the message is in doubt: nothing more is read
    char text[GUARD_TEXT_BYTES]; // instead of message, where it names what was sent; else empty
} guard_refusal;

/* A header that may appear only once. */
typedef struct guard_single {
    uint32_t n;
    bytes value; // of the first one
} guard_single;

typedef struct guard {
    const char *method, *target, *version; // target: raw path, query already cut off
    guard_single content_length, transfer_encoding, host, authorization, content_type, expect;
    guard_single content_encoding, origin, api_key, fetch_site;
    double timeout_s; // the client's own timeout in seconds; 0 = none given

    /* set by the steps */
    bool origin_allowed; // there is one, and its pages may use the server
    bool preflight;      // a browser asks whether it may send a request: no key, no body
    unsigned allow;      // of http_method, of the path; for `preflight`
    bool chunked;
    uint64_t body_bytes; // of Content-Length, else 0; unknown when chunked
    http_method http_method;
    const http_route *route;
    char tail[256];
} guard;

/* 400, 413, 414, 417, 431, 505: nothing more is read from that connection.  Always false. */
bool guard_refuse_framing(guard_refusal *why, int status, const char *message);
/* Syntax classes of a byte, by RFC 9110.  Bytes above 0x7f in values are opaque and harmless. */
enum { GUARD_IN_TOKEN = 1, GUARD_IN_VALUE = 2 };
extern const uint8_t guard_bytes[256];
static inline bool guard_is_token_byte(unsigned char c) {
    return guard_bytes[c] & GUARD_IN_TOKEN;
}

void guard_init(guard *g, const char *method, const char *target, const char *version);
void guard_header(guard *g, bytes name, bytes value);

/* Each step: true = continue, false = *why holds the answer. */
bool guard_framing(guard *g, guard_refusal *why);
/* Sets origin_allowed; `allows` as in http_options. */
void guard_origin(guard *g, bool (*allows)(void *ctx, bytes origin, bool loopback), void *ctx);
/* On a trusted socket, which a person may have forwarded to a port of a machine with a browser: no
 * web page but the server's own gets through, whether it sends requests from its own origin or has
 * its name resolved to that port. */
bool guard_socket(const guard *g, guard_refusal *why);
/* keyless: a daemon without keys on TCP answers only to loopback names, so that no web page can
 * reach it through a name it controls or from a foreign origin. */
bool guard_host(const guard *g, bool keyless, guard_refusal *why);
/* OPTIONS with an Origin, for a path that exists: true without a route, with `preflight`. */
bool guard_route(guard *g, const http_route *routes, size_t n_routes, guard_refusal *why);
/* The writer of errors for a request to this path (no query) while it has no route: that of a route
 * with this path, or with one above it; NULL: none. */
http_error_writer *guard_error_writer(const http_route *routes, size_t n_routes, bytes path);
/* The token of `Authorization: Bearer <token>`; n = 0 when there is none. */
bytes guard_bearer(const guard *g);
/* The key of a tenant: that token; without one the value of x-api-key, as Anthropic's clients send
 * it.  A client that sends both means Authorization. */
bytes guard_key(const guard *g);
bool guard_content(const guard *g, uint64_t body_bytes_max, guard_refusal *why);

#endif
