/* failing_memory.h - a program in which one allocation of ours fails: number `fail_at`, counted
 * while it is armed.
 *
 *   memory_fails_at(at); ... bool failed = memory_holds();     n_live: blocks that are not freed
 * Thread: the one that arms it; blocks that others free count, too. */
#ifndef TEST_FAILING_MEMORY_H
#define TEST_FAILING_MEMORY_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

#include "own_allocator.h"

static long n_calls, fail_at = -1, n_live; // of the allocations of a thread while it is armed
static __thread bool armed;

#if OWN_ALLOCATOR
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t each);
void *__libc_realloc(void *p, size_t n);
void __libc_free(void *p);

static bool fails(void) {
    return armed && n_calls++ == fail_at;
}
static void *live(void *p) {
    if (p != NULL) __atomic_fetch_add(&n_live, 1, __ATOMIC_RELAXED);
    return p;
}
void *malloc(size_t n) {
    return fails() ? (errno = ENOMEM, NULL) : live(__libc_malloc(n));
}
void *calloc(size_t n, size_t each) {
    return fails() ? (errno = ENOMEM, NULL) : live(__libc_calloc(n, each));
}
void *realloc(void *p, size_t n) {
    if (fails()) return errno = ENOMEM, NULL;
    return p == NULL ? live(__libc_malloc(n)) : __libc_realloc(p, n);
}
void free(void *p) {
    if (p != NULL) __atomic_fetch_sub(&n_live, 1, __ATOMIC_RELAXED);
    __libc_free(p);
}
#endif

static inline void memory_fails_at(long at) {
    n_calls = 0;
    fail_at = at;
    armed = true;
}

/* From now on it fails no more.  Did it? */
static inline bool memory_holds(void) {
    armed = false;
    return n_calls > fail_at;
}

#endif
