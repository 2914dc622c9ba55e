/* buf.h - a growing byte buffer with an optional bound.
 *
 * Appending needs no error handling per call: if memory is short or `bytes_max` would be exceeded,
 * `failed` is set, the buffer keeps its content, and later calls do nothing.  The writer checks
 * once, at the end.
 *
 * Always: n <= capacity; p[n] == 0 after buf_cstr.
 * Thread: that of its owner. */
#ifndef INFERD_BUF_H
#define INFERD_BUF_H

#include <stdarg.h>
#include <string.h>

#include "inferd/base.h"

typedef struct buf {
    char *p; // owned; NULL while empty
    size_t n, capacity;
    size_t bytes_max; // 0 = no bound of its own
    bool failed;
} buf;

static inline void buf_init(buf *b, size_t bytes_max) {
    *b = (buf){.bytes_max = bytes_max};
}
static inline void buf_deinit(buf *b) {
    free(b->p);
    *b = (buf){.bytes_max = b->bytes_max};
}
static inline void buf_clear(buf *b) {
    b->n = 0;
    b->failed = false;
}

/* Reserves `n` more bytes (and a NUL); on failure returns false and sets `failed`. */
static inline bool buf_reserve(buf *b, size_t n) {
    size_t wanted;
    if (b->failed) return false;
    if (!size_add(b->n, n, &wanted) || !size_add(wanted, 1, &wanted) ||
        (b->bytes_max != 0 && wanted - 1 > b->bytes_max)) {
        b->failed = true;
        return false;
    }
    if (wanted <= b->capacity) return true;
    size_t capacity = b->capacity < 64 ? 64 : b->capacity;
    while (capacity < wanted) {
        if (capacity > SIZE_MAX / 2) {
            capacity = wanted;
            break;
        }
        capacity *= 2;
    }
    char *p = realloc(b->p, capacity);
    if (p == NULL) {
        b->failed = true;
        return false;
    }
    b->p = p;
    b->capacity = capacity;
    return true;
}

static inline void buf_add(buf *b, const void *p, size_t n) {
    if (n == 0 || !buf_reserve(b, n)) return;
    memcpy(b->p + b->n, p, n);
    b->n += n;
}
static inline void buf_add_char(buf *b, char c) {
    buf_add(b, &c, 1);
}
static inline void buf_add_str(buf *b, const char *s) {
    buf_add(b, s, strlen(s));
}

__attribute__((format(printf, 2, 3))) static inline void buf_add_format(buf *b, const char *format,
                                                                        ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0 || !buf_reserve(b, (size_t)n)) {
        b->failed = true;
        return;
    }
    va_start(args, format);
    vsnprintf(b->p + b->n, (size_t)n + 1, format, args);
    va_end(args);
    b->n += (size_t)n;
}

/* NUL-terminated; "" if no memory could be allocated.  Borrowed. */
static inline const char *buf_cstr(buf *b) {
    bool failed = b->failed;
    b->failed = false;
    bool room = buf_reserve(b, 0);
    b->failed = failed;
    if (!room) return "";
    b->p[b->n] = 0;
    return b->p;
}

#endif
