/* transcript_leave.c - see transcript_leave.h. */
#include "transcript_leave.h"

#include <string.h>

#include "transcript_order.h"

enum { MARK_BYTES_MAX = 64 }; // of the text on each side that is searched for a mark of reasoning

static bool begins_with(const transcript_part *p, bytes text) {
    return p->n_bytes >= text.n && memcmp(p->text, text.p, text.n) == 0;
}

/* Nothing follows it, so it says less than one that goes on in other ways. */
static bool ends_within(const transcript_part *p, bytes text, size_t n_common) {
    return n_common == p->n_bytes && n_common < text.n && p->top == NULL;
}

/* The computed part behind `p` that begins most like `rest`; NULL: none is computed. */
static transcript_part *nearest(const transcript_part *p, bytes rest, size_t *n_common) {
    transcript_part *best = transcript_order_nearest(p, rest, n_common);
    uint32_t n = 0;
    if (best == NULL) return NULL;
    LIST_EACH(node, &p->children) {
        transcript_part *child = LIST_ENTRY(node, transcript_part, sibling);
        if (n++ == TRANSCRIPT_RECENT_MAX) break;
        bool as_near = child->computed && begins_with(child, (bytes){rest.p, *n_common});
        if (as_near && !ends_within(child, rest, *n_common)) return child;
    }
    return best;
}

/* ---- marks ---- */

static bool is_blank(char c) {
    return c == ' ' || c == '\n';
}

static bytes mark_of(const char *name) {
    bytes mark = {name, strlen(name)};
    while (mark.n > 0 && is_blank(*mark.p)) mark.p++, mark.n--;
    while (mark.n > 0 && is_blank(mark.p[mark.n - 1])) mark.n--;
    return mark;
}

/* The text on both sides of a byte. */
typedef struct surroundings {
    char text[2 * MARK_BYTES_MAX];
    size_t at, n;
} surroundings;

static void add(surroundings *s, const char *p, size_t n) {
    n = size_min(n, s->at + MARK_BYTES_MAX - s->n);
    memcpy(s->text + s->n, p, n);
    s->n += n;
}

static void begin_at(surroundings *s, bytes text, size_t at) {
    s->at = size_min(at, MARK_BYTES_MAX);
    s->n = s->at;
    memcpy(s->text, text.p + at - s->at, s->at);
}

/* A mark in [from, to]: where it begins. */
static bool has_mark(const surroundings *s, bytes mark, size_t from, size_t to) {
    for (size_t i = from; i <= to && i + mark.n <= s->n; i++)
        if (memcmp(s->text + i, mark.p, mark.n) == 0) return mark.n > 0;
    return false;
}

/* A mark begins at the byte, behind blanks too, or the byte lies in it. */
static bool has_mark_here(const surroundings *s, bytes mark) {
    size_t to = s->at;
    while (to < s->n && is_blank(s->text[to])) to++;
    size_t n_in = size_min(s->at, mark.n > 0 ? mark.n - 1 : 0);
    return has_mark(s, mark, s->at - n_in, s->at) || has_mark(s, mark, to, to);
}

/* The earlier text goes on with `p` from n_common on, and what follows it. */
static bool drops_reasoning(const transcript_part *p, size_t n_common, const transcript_options *o,
                            bytes text, size_t at) {
    bytes open = mark_of(o->reasoning_open), close = mark_of(o->reasoning_close);
    surroundings earlier, now;
    size_t none;
    begin_at(&earlier, text, at);
    begin_at(&now, text, at);
    add(&now, text.p + at, text.n - at);
    for (; p != NULL && earlier.n < earlier.at + MARK_BYTES_MAX;
         p = nearest(p, (bytes){"", 0}, &none), n_common = 0)
        add(&earlier, p->text + n_common, p->n_bytes - n_common);
    if (has_mark_here(&earlier, open)) return true;
    /* It is shorter now, or empty. */
    size_t to = now.at;
    while (to < now.n && is_blank(now.text[to])) to++;
    bool opened = has_mark(&now, open, 0, now.at);
    return has_mark(&now, close, to, to) || (opened && has_mark_here(&now, close));
}

/* ---- leaving ---- */

/* A template may write another control token than the one that ended the answer.  That one was not
 * computed, so nothing is lost. */
static bool is_end_of_answer(const transcript_part *p) {
    return p->drawn && p->top == NULL && p->special >= 0 &&
           tok_is_end(model_tokenizer(p->m), p->special);
}

static prefix_cause cause_of(const transcript_part *p, size_t n_common, const transcript_options *o,
                             bytes text, size_t at) {
    if (drops_reasoning(p, n_common, o, text, at)) return PREFIX_REASONING;
    return p->drawn ? PREFIX_ANSWER : PREFIX_CHANGED;
}

transcript_part *transcript_leave(const transcript_part *last, const transcript_options *o,
                                  bytes text, size_t from, transcript_match *m) {
    transcript_part *near = NULL;
    m->at = from;
    m->cause = PREFIX_GROWN;
    for (bool first = true;; first = false) {
        size_t n_common;
        bytes rest = {text.p + m->at, text.n - m->at};
        transcript_part *p = nearest(last, rest, &n_common);
        if (p == NULL) return near;
        if (first) near = p;
        if (rest.n == 0) return near; // the earlier one goes on
        bool whole = n_common == p->n_bytes;
        if (first && !whole && is_end_of_answer(p)) return near;
        if (!first && whole) { // the same text, in other parts
            m->cause = PREFIX_RETOKENISED;
            return near;
        }
        m->at += n_common;
        if (!whole) {
            m->cause = cause_of(p, n_common, o, text, m->at);
            return near;
        }
        last = p;
    }
}
