/* regex_reader.h - a place in a pattern, for the parts of the parser.
 *
 * Thread: any; a reader belongs to one call of regex_parse. */
#ifndef INFERD_REGEX_READER_H
#define INFERD_REGEX_READER_H

#include "regex_private.h"
#include "tokenizer/utf8.h"

typedef struct reader {
    const char *p;
    size_t n, at; // n: where the part in work ends
    inferd_err *err;
} reader;

static inline inferd_status refuse(const reader *r, inferd_status status, size_t at,
                                   const char *what) {
    return inferd_fail(r->err, status, "pattern: %s at byte %zu", what, at);
}

static inline bool looking_at(const reader *r, const char *text) {
    size_t n = strlen(text);
    return r->n - r->at >= n && memcmp(r->p + r->at, text, n) == 0;
}

static inline bool skip(reader *r, const char *text) {
    if (!looking_at(r, text)) return false;
    r->at += strlen(text);
    return true;
}

static inline uint32_t next_code(reader *r) {
    unsigned n;
    uint32_t c = utf8_decode((const unsigned char *)r->p + r->at, &n);
    r->at += n;
    return c;
}

/* After a backslash at `begin` (regex_escape.c).  *code DFA_DEAD: it is a class, whose members both
 * languages know, or either does, were added to the sets. */
inferd_status regex_read_escape(reader *r, size_t begin, code_set *both, code_set *either,
                                uint32_t *code);

#endif
