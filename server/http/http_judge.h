/* http_judge.h - is this the head of a request, and where does its message end?
 *
 * RFC 9112 in the strict reading: bytes that two readers could understand differently are refused.
 * libmicrohttpd accepts them (bare LF, folded lines, NUL, an empty name, `+5` as a length) or
 * answers with a page of its own and two header blocks, so these bytes never reach it
 * (http_inlet.c).  Two state machines look at each byte once and keep no bytes:
 *
 *   head_look     METHOD SP target SP HTTP/1.x CRLF, then (token ":" value CRLF) ..., then CRLF
 *   chunks_look   (hex CRLF data CRLF) ..., then 0 CRLF trailers CRLF
 *
 * A verdict depends on the bytes alone, never on how they were split, and BAD is returned at the
 * first byte that makes it certain. http_guard.h checks the values of fields.
 *
 * It does not depend on sockets or libmicrohttpd, so it is tested and fuzzed alone.
 * Thread: any. */
#ifndef INFERD_HTTP_JUDGE_H
#define INFERD_HTTP_JUDGE_H

#include "http_guard.h"

enum {
    JUDGE_METHOD_BYTES_MAX = 32,
    JUDGE_EMPTY_LINES_MAX = 2,         // before a request: old clients send one after a body
    JUDGE_CHUNK_DIGITS_MAX = 16,       // of a chunk's size
    JUDGE_EXTENSION_BYTES_MAX = 256,   // of one chunk
    JUDGE_TRAILER_BYTES_MAX = 4 * 1024 // all trailers of a message
};

typedef enum judge_verdict { JUDGE_MORE, JUDGE_DONE, JUDGE_BAD } judge_verdict;

typedef struct head_judge {
    uint32_t bytes_max;
    uint32_t n;             // bytes from the method on
    uint32_t n_empty_bytes; // before it
    uint32_t n_target, n_headers, n_arguments;
    uint8_t state, at; // at: in the method or the version
    char major, minor; // of the version
} head_judge;

void head_init(head_judge *h, uint32_t bytes_max);
/* p[0, n) follows the bytes of the calls before.  *used is n, or less when DONE or BAD. */
judge_verdict head_look(head_judge *h, const char *p, size_t n, size_t *used, guard_refusal *why);
const char *head_version(const head_judge *h); // "HTTP/1.1" or "HTTP/1.0" once DONE

/* The request's path, without its query, of a head that may be cut off, or wrong behind it; n 0:
 * its end is not known. */
bytes head_path(bytes head);

/* Parts of a head that is DONE, from its method on. */
bytes head_method(bytes head);
bytes head_fields(bytes head);
bool head_next(bytes *fields, bytes *name, bytes *value); // false: there are no more
/* Removes all fields of that name; returns the new length. */
size_t head_drop(char *head, size_t n, const char *name);

typedef struct chunk_judge {
    uint64_t bytes_max;
    uint64_t n;    // of the body, as far as chunks have announced it
    uint64_t left; // of this chunk
    uint32_t n_line, n_trailers;
    uint8_t state, n_digits;
} chunk_judge;

void chunks_init(chunk_judge *c, uint64_t bytes_max);
/* As head_look, and moves the bytes for the library, without extensions and trailers, to the front
 * of p: *kept bytes. */
judge_verdict chunks_look(chunk_judge *c, char *p, size_t n, size_t *used, size_t *kept,
                          guard_refusal *why);

#endif
