/* memory.h - memory and failures of a template's compile or render.
 *
 * Everything lives in one arena that is freed as a whole, so a failure anywhere in the parser or
 * the interpreter is a longjmp to the function that began it: no status is passed up
 * and nothing can leak.  (Only a document that the filter from_json reads is outside of the arena;
 * the render holds and frees it.)
 *
 * The arena counts allocated bytes against `live_max`; steps count work against `steps_max`:
 * one per executed node, plus one per 32 bytes or 8 elements that a node walks over.  Together they
 * bound the time of any template.
 *
 * Thread: that of the compile or render. */
#ifndef INFERD_CHAT_MEMORY_H
#define INFERD_CHAT_MEMORY_H

#include <setjmp.h>

#include "inferd/base.h"
#include "inferd/status.h"
#include "models/chat.h"

typedef struct jblock jblock;

typedef struct jctx {
    jblock *blocks; // newest first; owned
    char *at, *end; // the free rest of the newest shared block
    size_t live, live_max;
    size_t steps, steps_max;
    uint32_t line; // the present line of the template
    jmp_buf exit;  // set by the outermost function
    inferd_err *err;
    inferd_status status; // why `exit` was taken
} jctx;

void jctx_init(jctx *c, const chat_limits *limits, inferd_err *err);
void jctx_deinit(jctx *c); // frees the whole arena

/* Aligned for anything, not zeroed; never NULL. */
void *j_take(jctx *c, size_t n_bytes);
void *j_take_array(jctx *c, size_t n, size_t element_bytes);
/* Like realloc: the first `old_bytes` are kept.  `p` may be NULL when old_bytes is 0. */
void *j_grow(jctx *c, void *p, size_t old_bytes, size_t new_bytes);
/* Make room for one more element in a growing array; `items` has `n` of `*capacity`. */
void *j_grow_array(jctx *c, void *items, size_t n, size_t *capacity, size_t element_bytes);

/* End with an error.  j_fail: an operation that Jinja refuses (EINVAL, "line 3: ...").  j_syntax: a
 * syntax error (EFORMAT).  j_limit: a limit (ETOOLONG, "template_limit: ...").  j_raise: only the
 * message of raise_exception. */
_Noreturn void j_fail(jctx *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
_Noreturn void j_syntax(jctx *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
_Noreturn void j_limit(jctx *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
_Noreturn void j_raise(jctx *c, bytes words);
_Noreturn void j_no_memory(jctx *c);

/* Count `n` steps of work. */
static inline void j_charge(jctx *c, size_t n) {
    c->steps += n;
    if (c->steps > c->steps_max) j_limit(c, "more than %zu steps", c->steps_max);
}
static inline void j_charge_bytes(jctx *c, size_t n_bytes) {
    j_charge(c, n_bytes / 32);
}

#endif
