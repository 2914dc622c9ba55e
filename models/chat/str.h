/* str.h - text with its provenance, byte by byte.
 *
 * A jstr is an immutable slice of UTF-8.  `marks`, if not NULL, say of each byte where it came
 * from: the template, a message of the request, or the rest of the request; without marks `mark`
 * says it of the whole slice.  Only bytes of the template are trusted.  Every operation keeps the
 * marks, so a forged "<|im_start|>" stays untrusted through trim, replace, join, tojson and macros.
 *
 *     p      < | s | >   h e l l o   <
 *     marks  T T T T T   3 3 3 3 3   T      T: JMARK_TEMPLATE, 3: of message 3
 *
 * A mark is one byte, because marks are half of the memory of a render.  So the number of a message
 * is kept modulo JMARK_CYCLE; template.c finds the number again.
 *
 * Templates build prompts as `ns.text = ns.text + piece`.  To keep that linear, a long text made by
 * concatenation has room behind it (its jtail); adding to a text that ends where its tail ends
 * writes into that room, and every earlier slice stays unchanged.
 *
 * A jbuf collects text.  Thread: that of the render; jstr of a template: any. */
#ifndef INFERD_CHAT_STR_H
#define INFERD_CHAT_STR_H

#include "chat/memory.h"

typedef uint8_t jmark;
enum {
    JMARK_REQUEST,  // of the request, but of no message: tools, kwargs; also punctuation of data
    JMARK_TEMPLATE, // trusted
    JMARK_MESSAGE,  // + i % JMARK_CYCLE: of message i
    JMARK_CYCLE = UINT8_MAX + 1 - JMARK_MESSAGE
};

typedef struct jtail jtail;

typedef struct jstr {
    const char *p;
    size_t n;
    const jmark *marks; // [n]; NULL: `mark` holds for all
    jtail *tail;        // room behind the text, or NULL
    jmark mark;
    bool markup; // a result of the filter safe: `+` escapes other text
} jstr;

typedef struct jbuf {
    jctx *c;
    char *p;
    jmark *marks; // [capacity] when they differ, else NULL
    size_t n, capacity;
    size_t n_max; // 0: no bound but memory
    jmark mark;   // of all so far, when there are no marks
} jbuf;

extern const jstr jstr_empty;

const jstr *jstr_new(jctx *c, const char *p, size_t n, jmark mark); // borrows p
const jstr *jstr_copy(jctx *c, const char *p, size_t n, jmark mark);
const jstr *jstr_lit(jctx *c, const char *text); // the interpreter's own words: template text
const jstr *jstr_slice(jctx *c, const jstr *s, size_t from, size_t to); // bytes [from, to)
const jstr *jstr_with_markup(jctx *c, const jstr *s, bool markup);
const jstr *jstr_concat(jctx *c, const jstr *a, const jstr *b, bool markup);
const jstr *jstr_repeat(jctx *c, const jstr *s, int64_t times);
const jstr *jstr_escape(jctx *c, const jstr *s); // HTML; the result is markup

bool jstr_equal(const jstr *a, const jstr *b);
bool jstr_is(const jstr *s, const char *text);
int jstr_compare(const jstr *a, const jstr *b); // by code point
/* The mark of something made of all of the text: JMARK_TEMPLATE only if all bytes have it, else the
 * mark of the first byte that has another. */
jmark jstr_mark(const jstr *s);
static inline jmark jstr_mark_at(const jstr *s, size_t i) {
    return s->marks != NULL ? s->marks[i] : s->mark;
}

size_t jstr_length(jctx *c, const jstr *s); // code points
/* Byte offset of code point `i`, at most s->n. */
size_t jstr_offset(jctx *c, const jstr *s, size_t i);
/* Byte offset of `part` in [from, to), SIZE_MAX: not there. */
size_t jstr_find(jctx *c, const jstr *s, const jstr *part, size_t from, size_t to);
size_t jstr_rfind(jctx *c, const jstr *s, const jstr *part, size_t from, size_t to);

enum { JSTRIP_LEFT = 1, JSTRIP_RIGHT = 2, JSTRIP_BOTH = 3 };
/* Without the code points in `chars` (NULL: white space) at the ends. */
const jstr *jstr_strip(jctx *c, const jstr *s, const jstr *chars, int ends);
const jstr *jstr_replace(jctx *c, const jstr *s, const jstr *old, const jstr *with, int64_t max);

void jbuf_init(jbuf *b, jctx *c, size_t n_max);
void jbuf_add(jbuf *b, const char *p, size_t n, jmark mark);
void jbuf_add_slice(jbuf *b, const jstr *s, size_t from, size_t to);
void jbuf_add_str(jbuf *b, const jstr *s);
void jbuf_add_cp(jbuf *b, uint32_t cp, jmark mark);
void jbuf_add_text(jbuf *b, const char *text, jmark mark); // NUL-terminated
const jstr *jbuf_str(jbuf *b, bool markup);                // the buffer must not be used any more

#endif
