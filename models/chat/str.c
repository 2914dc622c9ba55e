#include "chat/str.h"

#include "chat/letters.h"

enum { TAIL_BYTES_MIN = 256 };

/* Shared by all texts in it; only a text that ends at `n` may write behind itself. */
struct jtail {
    char *p;
    jmark *marks; // [capacity]; NULL: the mark of the owning text holds for everything
    size_t n, capacity;
};

const jstr jstr_empty = {.p = "", .mark = JMARK_TEMPLATE};

const jstr *jstr_new(jctx *c, const char *p, size_t n, jmark mark) {
    jstr *s = j_take(c, sizeof *s);
    *s = (jstr){.p = p, .n = n, .mark = mark};
    return s;
}

const jstr *jstr_copy(jctx *c, const char *p, size_t n, jmark mark) {
    char *copy = j_take(c, n + 1);
    memcpy(copy, p, n);
    copy[n] = 0;
    return jstr_new(c, copy, n, mark);
}

const jstr *jstr_lit(jctx *c, const char *text) {
    return jstr_new(c, text, strlen(text), JMARK_TEMPLATE);
}

const jstr *jstr_slice(jctx *c, const jstr *s, size_t from, size_t to) {
    if (from == 0 && to == s->n) return s;
    if (from >= to && !s->markup) return &jstr_empty;
    jstr *out = j_take(c, sizeof *out);
    *out = *s;
    out->p = s->p + from;
    out->n = from < to ? to - from : 0;
    if (s->marks != NULL) out->marks = s->marks + from;
    return out;
}

const jstr *jstr_with_markup(jctx *c, const jstr *s, bool markup) {
    if (s->markup == markup) return s;
    jstr *out = j_take(c, sizeof *out);
    *out = *s;
    out->markup = markup;
    return out;
}

static void set_marks(jmark *to, jmark mark, size_t n) {
    for (size_t i = 0; i < n; i++) to[i] = mark;
}

static void copy_marks(jmark *to, const jstr *s) {
    if (s->marks != NULL)
        memcpy(to, s->marks, s->n * sizeof *to);
    else
        set_marks(to, s->mark, s->n);
}

/* A new text with room behind it that begins with `a`. */
static jtail *make_tail(jctx *c, const jstr *a, size_t n, bool with_marks) {
    jtail *t = j_take(c, sizeof *t);
    t->capacity = n + n / 2;
    t->p = j_take(c, t->capacity);
    t->marks = with_marks ? j_take_array(c, t->capacity, sizeof *t->marks) : NULL;
    t->n = a->n;
    memcpy(t->p, a->p, a->n);
    if (with_marks) copy_marks(t->marks, a);
    return t;
}

static bool may_append(const jstr *a, size_t n) {
    const jtail *t = a->tail;
    return t != NULL && a->p + a->n == t->p + t->n && t->capacity - t->n >= n;
}

const jstr *jstr_concat(jctx *c, const jstr *a, const jstr *b, bool markup) {
    if (b->n == 0) return jstr_with_markup(c, a, markup);
    if (a->n == 0) return jstr_with_markup(c, b, markup);
    bool mixed = a->marks != NULL || b->marks != NULL || a->mark != b->mark;
    size_t n = a->n + b->n;
    jstr *out = j_take(c, sizeof *out);
    *out = (jstr){.n = n, .mark = a->mark, .markup = markup};
    if (n < TAIL_BYTES_MIN) {
        char *p = j_take(c, n);
        memcpy(p, a->p, a->n);
        memcpy(p + a->n, b->p, b->n);
        out->p = p;
        if (!mixed) return out;
        jmark *marks = j_take_array(c, n, sizeof *marks);
        copy_marks(marks, a);
        copy_marks(marks + a->n, b);
        out->marks = marks;
        return out;
    }
    jtail *t = may_append(a, b->n) ? a->tail : make_tail(c, a, n, mixed);
    if (mixed && t->marks == NULL) { // all bytes before have the mark of `a`
        t->marks = j_take_array(c, t->capacity, sizeof *t->marks);
        set_marks(t->marks, a->mark, t->n);
    }
    memcpy(t->p + t->n, b->p, b->n);
    if (t->marks != NULL) copy_marks(t->marks + t->n, b);
    t->n += b->n;
    out->tail = t;
    out->p = t->p + t->n - n;
    if (t->marks != NULL) out->marks = t->marks + t->n - n;
    return out;
}

const jstr *jstr_repeat(jctx *c, const jstr *s, int64_t times) {
    if (times <= 0 || s->n == 0) return jstr_with_markup(c, &jstr_empty, s->markup);
    size_t n;
    if (!size_mul(s->n, (size_t)times, &n) || n > c->live_max)
        j_limit(c, "a text repeated %lld times", (long long)times);
    j_charge_bytes(c, n);
    jbuf b;
    jbuf_init(&b, c, 0);
    for (int64_t i = 0; i < times; i++) jbuf_add_str(&b, s);
    return jbuf_str(&b, s->markup);
}

const jstr *jstr_escape(jctx *c, const jstr *s) {
    jbuf b;
    if (s->markup) return s;
    jbuf_init(&b, c, 0);
    j_charge_bytes(c, s->n);
    for (size_t i = 0, done = 0; i <= s->n; i++) {
        const char *entity = NULL;
        if (i < s->n) {
            switch (s->p[i]) {
            case '&':
                entity = "&amp;";
                break;
            case '<':
                entity = "&lt;";
                break;
            case '>':
                entity = "&gt;";
                break;
            case '"':
                entity = "&#34;";
                break;
            case '\'':
                entity = "&#39;";
                break;
            default:
                continue;
            }
        }
        jbuf_add_slice(&b, s, done, i);
        if (entity != NULL) jbuf_add_text(&b, entity, jstr_mark_at(s, i));
        done = i + 1;
    }
    return jbuf_str(&b, true);
}

bool jstr_equal(const jstr *a, const jstr *b) {
    return a->n == b->n && memcmp(a->p, b->p, a->n) == 0;
}

bool jstr_is(const jstr *s, const char *text) {
    return s->n == strlen(text) && memcmp(s->p, text, s->n) == 0;
}

int jstr_compare(const jstr *a, const jstr *b) {
    int order = memcmp(a->p, b->p, size_min(a->n, b->n));
    if (order != 0) return order;
    return a->n < b->n ? -1 : a->n > b->n;
}

jmark jstr_mark(const jstr *s) {
    if (s->marks == NULL) return s->mark;
    for (size_t i = 0; i < s->n; i++)
        if (s->marks[i] != JMARK_TEMPLATE) return s->marks[i];
    return JMARK_TEMPLATE;
}

size_t jstr_length(jctx *c, const jstr *s) {
    size_t n = 0;
    j_charge_bytes(c, s->n);
    for (size_t i = 0; i < s->n; i++) n += letter_starts(s->p[i]);
    return n;
}

size_t jstr_offset(jctx *c, const jstr *s, size_t i) {
    size_t at = 0;
    while (i > 0 && at < s->n) {
        at += letter_bytes(s->p[at]);
        i--;
    }
    j_charge_bytes(c, at);
    return at;
}

size_t jstr_find(jctx *c, const jstr *s, const jstr *part, size_t from, size_t to) {
    if (from > to || part->n > to - from) return SIZE_MAX;
    if (part->n == 0) return from;
    j_charge_bytes(c, to - from);
    // glibc's memmem is linear, so a crafted needle costs no more than any other
    const char *at = memmem(s->p + from, to - from, part->p, part->n);
    return at == NULL ? SIZE_MAX : (size_t)(at - s->p);
}

size_t jstr_rfind(jctx *c, const jstr *s, const jstr *part, size_t from, size_t to) {
    if (from > to || part->n > to - from) return SIZE_MAX;
    j_charge_bytes(c, to - from);
    size_t compared = 0;
    for (size_t i = to - part->n + 1; i-- > from;) {
        if (part->n > 0 && s->p[i] != part->p[0]) continue;
        if (memcmp(s->p + i, part->p, part->n) == 0) return i;
        compared += part->n;
        if (compared >= 4096) {
            j_charge_bytes(c, compared);
            compared = 0;
        }
    }
    return SIZE_MAX;
}

static bool to_strip(jctx *c, const jstr *chars, const char *p, size_t n) {
    size_t n_read;
    if (chars == NULL) return letter_is_space(letter_read(p, &n_read));
    j_charge(c, 1 + chars->n / 32);
    for (size_t i = 0; i < chars->n; i += letter_bytes(chars->p[i]))
        if (letter_bytes(chars->p[i]) == n && memcmp(chars->p + i, p, n) == 0) return true;
    return false;
}

const jstr *jstr_strip(jctx *c, const jstr *s, const jstr *chars, int ends) {
    size_t from = 0, to = s->n;
    while (ends & JSTRIP_LEFT && from < to) {
        size_t n = letter_bytes(s->p[from]);
        if (!to_strip(c, chars, s->p + from, n)) break;
        from += n;
    }
    while (ends & JSTRIP_RIGHT && from < to) {
        size_t at = to - 1;
        while (!letter_starts(s->p[at])) at--;
        if (!to_strip(c, chars, s->p + at, to - at)) break;
        to = at;
    }
    j_charge_bytes(c, s->n - (to - from));
    return jstr_slice(c, s, from, to);
}

/* An empty `old` matches before every code point and at the end. */
static const jstr *insert_between(jctx *c, const jstr *s, const jstr *with, int64_t max) {
    jbuf b;
    jbuf_init(&b, c, 0);
    size_t at = 0;
    for (; max != 0; max--) {
        j_charge(c, 1);
        jbuf_add_str(&b, with);
        if (at >= s->n) break;
        size_t n = letter_bytes(s->p[at]);
        jbuf_add_slice(&b, s, at, at + n);
        at += n;
    }
    jbuf_add_slice(&b, s, at, s->n);
    return jbuf_str(&b, s->markup);
}

const jstr *jstr_replace(jctx *c, const jstr *s, const jstr *old, const jstr *with, int64_t max) {
    if (old->n == 0) return insert_between(c, s, with, max);
    jbuf b;
    size_t done = 0;
    size_t at = max == 0 ? SIZE_MAX : jstr_find(c, s, old, 0, s->n);
    if (at == SIZE_MAX) return s;
    jbuf_init(&b, c, 0);
    while (at != SIZE_MAX) {
        j_charge(c, 1);
        jbuf_add_slice(&b, s, done, at);
        jbuf_add_str(&b, with);
        done = at + old->n;
        if (max > 0 && --max == 0) break;
        // charged once, above: the searches together walk over the text once
        const char *next = memmem(s->p + done, s->n - done, old->p, old->n);
        at = next == NULL ? SIZE_MAX : (size_t)(next - s->p);
    }
    jbuf_add_slice(&b, s, done, s->n);
    return jbuf_str(&b, s->markup);
}

void jbuf_init(jbuf *b, jctx *c, size_t n_max) {
    *b = (jbuf){.c = c, .n_max = n_max, .mark = JMARK_TEMPLATE};
}

static void make_room(jbuf *b, size_t n) {
    if (b->n_max != 0 && n > b->n_max - b->n)
        j_limit(b->c, "more than %zu bytes of output", b->n_max);
    if (n <= b->capacity - b->n) return;
    if (n > b->c->live_max) j_limit(b->c, "more than %zu bytes of memory", b->c->live_max);
    size_t wanted = size_max(b->n + n, b->capacity + b->capacity / 2);
    wanted = size_max(wanted, 48);
    b->p = j_grow(b->c, b->p, b->capacity, wanted);
    if (b->marks != NULL)
        b->marks =
            j_grow(b->c, b->marks, b->capacity * sizeof *b->marks, wanted * sizeof *b->marks);
    b->capacity = wanted;
}

enum { MIXED = -1 };

/* Make room for n bytes of this mark; MIXED: of several. */
static void make_marked_room(jbuf *b, size_t n, int mark) {
    make_room(b, n);
    if (b->n == 0 && b->marks == NULL && mark != MIXED) b->mark = (jmark)mark;
    if (b->marks == NULL && mark != b->mark) {
        b->marks = j_take_array(b->c, b->capacity, sizeof *b->marks);
        set_marks(b->marks, b->mark, b->n);
    }
}

void jbuf_add(jbuf *b, const char *p, size_t n, jmark mark) {
    if (n == 0) return;
    make_marked_room(b, n, mark);
    memcpy(b->p + b->n, p, n);
    if (b->marks != NULL) set_marks(b->marks + b->n, mark, n);
    b->n += n;
}

void jbuf_add_slice(jbuf *b, const jstr *s, size_t from, size_t to) {
    if (from >= to) return;
    if (s->marks == NULL) {
        jbuf_add(b, s->p + from, to - from, s->mark);
        return;
    }
    make_marked_room(b, to - from, MIXED);
    memcpy(b->p + b->n, s->p + from, to - from);
    memcpy(b->marks + b->n, s->marks + from, (to - from) * sizeof *b->marks);
    b->n += to - from;
}

void jbuf_add_str(jbuf *b, const jstr *s) {
    jbuf_add_slice(b, s, 0, s->n);
}

void jbuf_add_cp(jbuf *b, uint32_t cp, jmark mark) {
    char utf8[4];
    jbuf_add(b, utf8, letter_write(cp, utf8), mark);
}

void jbuf_add_text(jbuf *b, const char *text, jmark mark) {
    jbuf_add(b, text, strlen(text), mark);
}

const jstr *jbuf_str(jbuf *b, bool markup) {
    if (b->n == 0 && !markup) return &jstr_empty;
    jstr *s = j_take(b->c, sizeof *s);
    *s = (jstr){.p = b->n == 0 ? "" : b->p,
                .n = b->n,
                .marks = b->marks,
                .mark = b->mark,
                .markup = markup};
    return s;
}
