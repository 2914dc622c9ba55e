/* base.h - definitions for all parts of the program.
 *
 * Memory: plain malloc and related functions.  Any of them may return NULL and every caller handles
 * it (usually INFERD_ENOMEM); a test makes each allocation fail in turn. */
#ifndef INFERD_BASE_H
#define INFERD_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef int32_t tok_id; // a token of a vocabulary; never negative in a sequence

/* Borrowed bytes; not NUL-terminated. */
typedef struct bytes {
    const char *p;
    size_t n;
} bytes;

/* For conditions that only a bug can break.  Active in every build: stopping is better than wrong
 * results. */
#define INFERD_CHECK(cond)                                                                         \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "%s:%d: %s: check failed: %s\n", __FILE__, __LINE__, __func__, #cond); \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

#define INFERD_COUNT(array) (sizeof(array) / sizeof((array)[0]))

static inline size_t size_min(size_t a, size_t b) {
    return a < b ? a : b;
}
static inline size_t size_max(size_t a, size_t b) {
    return a > b ? a : b;
}
static inline uint32_t u32_min(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}
static inline uint32_t u32_max(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}
static inline uint64_t u64_min(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}
static inline uint64_t u64_max(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* a - b, or 0. */
static inline uint32_t u32_less(uint32_t a, uint32_t b) {
    return a > b ? a - b : 0;
}
static inline uint64_t u64_less(uint64_t a, uint64_t b) {
    return a > b ? a - b : 0;
}

/* a * b and a + b for sizes from untrusted bytes: false on overflow. */
static inline bool size_mul(size_t a, size_t b, size_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool size_add(size_t a, size_t b, size_t *out) {
    return !__builtin_add_overflow(a, b, out);
}

#endif
