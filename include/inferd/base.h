/* base.h - the few things every room knows.
 *
 * Memory: plain malloc and friends.  Any of them may return NULL and every caller handles it
 * (usually INFERD_ENOMEM); a test makes each allocation fail in turn. */
#ifndef INFERD_BASE_H
#define INFERD_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef int32_t tok_id; // a token of a vocabulary; never negative in a sequence

/* Bytes somebody else owns; not NUL-terminated. */
typedef struct bytes {
    const char *p;
    size_t n;
} bytes;

/* What only a bug can break.  On in every build: stopping is better than going on wrong. */
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

/* a * b and a + b for sizes that come from foreign bytes: false means it does not fit. */
static inline bool size_mul(size_t a, size_t b, size_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool size_add(size_t a, size_t b, size_t *out) {
    return !__builtin_add_overflow(a, b, out);
}

#endif
