/* http_answers.h - is what a server sent a sequence of whole answers?
 *
 * Each must be one status line and a header block in which no name stands twice; an error must be
 * our JSON object and carry x-request-id.  Shared by tests and the fuzz target, so it knows no
 * framework: the first thing that is wrong is a sentence. */
#ifndef INFERD_TEST_HTTP_ANSWERS_H
#define INFERD_TEST_HTTP_ANSWERS_H

#include <ctype.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef struct answer {
    int status;
    size_t n;         // its bytes, all of them
    const char *body; // as it was sent, chunks with their framing
    size_t n_body;
    bool closes;       // says so, or ends with the connection
    bool whole;        // false: cut off, n is what there is
    const char *wrong; // NULL: nothing
} answer;

typedef struct answer_header {
    const char *name, *value;
    size_t name_n, value_n;
} answer_header;

static inline bool answer_name_is(const answer_header *h, const char *name) {
    return h->name_n == strlen(name) && strncasecmp(h->name, name, h->name_n) == 0;
}

/* All chunks from p on; 0: not whole; -1: malformed. */
static inline long answer_chunks(const char *p, size_t n) {
    size_t at = 0;
    for (;;) {
        const char *end = (const char *)memchr(p + at, '\n', n - at);
        if (end == NULL) return 0;
        char *digits_end;
        unsigned long size = strtoul(p + at, &digits_end, 16);
        if (digits_end == p + at || digits_end + 2 != end + 1 || *digits_end != '\r') return -1;
        at = (size_t)(end - p) + 1;
        if (size > n - at || n - at - size < 2) return 0;
        if (memcmp(p + at + size, "\r\n", 2) != 0) return -1;
        at += size + 2;
        if (size == 0) return (long)at;
    }
}

/* {"error":{"message":"...","type":"...","param":...,"code":...}} and nothing else. */
static inline bool answer_is_error_body(const char *p, size_t n) {
    static const char *const members[] = {"{\"error\":{\"message\":\"", "\",\"type\":\"",
                                          "\",\"param\":", ",\"code\":"};
    size_t at = 0;
    for (size_t i = 0; i < 4; i++) {
        const char *found = (const char *)memmem(p + at, n - at, members[i], strlen(members[i]));
        if (found == NULL || (i == 0 && found != p)) return false;
        at = (size_t)(found - p) + strlen(members[i]);
    }
    return n >= at + 2 && memcmp(p + n - 2, "}}", 2) == 0;
}

/* The first answer in p[0, n), of a server that has closed the connection or not.  `to_head`: a
 * request of HEAD is answered, without a body. */
static inline answer answer_read(const char *p, size_t n, bool to_head, bool closed) {
    answer a = {.n = n};
    answer_header headers[64];
    size_t n_headers = 0;
    const char *end = (const char *)memmem(p, n, "\r\n\r\n", 4);
    if (n > 0 && memcmp(p, "HTTP/1.1 ", n < 9 ? n : 9) != 0) {
        a.wrong = "what should be a status line is none";
        return a;
    }
    if (end == NULL) return a;
    end += 2;
    const char *line = (const char *)memmem(p, n, "\r\n", 2) + 2;
    a.status = atoi(p + 9);
    if (line - p < 15 || !isdigit((unsigned char)p[9]) || p[12] != ' ' || a.status < 100 ||
        a.status > 599) {
        a.wrong = "the status line is malformed";
        return a;
    }
    const answer_header *length = NULL, *id = NULL, *type = NULL, *coding = NULL;
    while (line < end) {
        const char *line_end = (const char *)memmem(line, (size_t)(end - line), "\r\n", 2);
        const char *colon = (const char *)memchr(line, ':', (size_t)(line_end - line));
        if (colon == NULL || colon == line || n_headers == 64) {
            a.wrong = "a header line has no name, or there are many";
            return a;
        }
        answer_header *h = &headers[n_headers++];
        *h = (answer_header){line, colon + 2, (size_t)(colon - line),
                             (size_t)(line_end - colon) - (colon + 1 < line_end ? 2 : 1)};
        for (const answer_header *other = headers; other < h; other++)
            if (other->name_n == h->name_n && strncasecmp(other->name, h->name, h->name_n) == 0) {
                a.wrong = "a header stands twice";
                return a;
            }
        if (answer_name_is(h, "Content-Length")) length = h;
        if (answer_name_is(h, "x-request-id")) id = h;
        if (answer_name_is(h, "Content-Type")) type = h;
        if (answer_name_is(h, "Transfer-Encoding")) coding = h;
        if (answer_name_is(h, "Connection") && strncasecmp(h->value, "close", 5) == 0)
            a.closes = true;
        line = line_end + 2;
    }
    a.body = end + 2;
    size_t left = n - (size_t)(a.body - p);
    if (a.status < 200) {
        a.whole = true;
        if (n_headers > 0) a.wrong = "an interim answer has headers";
    } else if (id == NULL || id->value_n != 36 || strncmp(id->value, "req-", 4) != 0) {
        a.wrong = "there is no x-request-id of ours";
    } else if (length != NULL && coding != NULL) {
        a.wrong = "it has a length and chunks";
    } else if (to_head) {
        a.whole = true;
    } else if (length != NULL) {
        a.n_body = strtoul(length->value, NULL, 10);
        a.whole = a.n_body <= left;
    } else if (coding != NULL) {
        long n_chunks = answer_chunks(a.body, left);
        if (n_chunks < 0) a.wrong = "its chunks are malformed";
        a.whole = n_chunks > 0;
        a.n_body = n_chunks > 0 ? (size_t)n_chunks : 0;
    } else {
        a.whole = closed;
        a.closes = true;
        a.n_body = left;
    }
    if (a.wrong == NULL && a.whole && !to_head && a.status >= 400 &&
        (type == NULL || strncmp(type->value, "application/json\r", 17) != 0 ||
         !answer_is_error_body(a.body, a.n_body)))
        a.wrong = "an error is not our JSON";
    if (a.whole) a.n = (size_t)(a.body - p) + a.n_body;
    return a;
}

#endif
