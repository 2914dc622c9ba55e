/* json_cut.c - see json_cut.h.  One pass that remembers up to where the text is kept: behind the
 * last bracket that opened or closed, and the last value that is whole.  What follows it has no
 * brackets, so the brackets that are open at the end are those that are open there. */
#include "json_cut.h"

#include <string.h>

typedef struct cut {
    bytes s;
    size_t at, kept;
    buf open;    // the brackets that would close it, the innermost last
    bool key;    // is the next string one?
    bool quoted; // the text is kept up to the middle of a string
} cut;

static bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* Behind the character or escape at `at`; 0: not whole. */
static size_t skip_char(bytes s, size_t at) {
    if (s.p[at] != '\\') return at + 1;
    if (at + 1 == s.n) return 0;
    size_t end = at + (s.p[at + 1] == 'u' ? 6 : 2);
    return end <= s.n ? end : 0;
}

/* Half of a code point, of which the other half must follow. */
static bool is_high_surrogate(bytes s, size_t at) {
    return s.n - at > 3 && s.p[at] == '\\' && s.p[at + 1] == 'u' &&
           (s.p[at + 2] == 'd' || s.p[at + 2] == 'D') && strchr("89abAB", s.p[at + 3]) != NULL;
}

static void take_string(cut *c) {
    size_t i = c->at + 1, whole = i, next;
    while (i < c->s.n && c->s.p[i] != '"' && (next = skip_char(c->s, i)) != 0) {
        if (!is_high_surrogate(c->s, i)) whole = next;
        i = next;
    }
    bool closed = i < c->s.n && c->s.p[i] == '"';
    c->at = closed ? i + 1 : c->s.n;
    if (c->key) return;
    c->kept = closed ? c->at : whole;
    c->quoted = !closed;
}

/* A number at the end may have had more digits; it is kept as it is. */
static void take_scalar(cut *c) {
    static const char *const words[] = {"true", "false", "null"};
    size_t from = c->at;
    while (c->at < c->s.n && !is_space(c->s.p[c->at]) && strchr("{}[],:\"", c->s.p[c->at]) == NULL)
        c->at++;
    char last = c->s.p[c->at - 1];
    bool whole = c->at < c->s.n || (last >= '0' && last <= '9');
    for (size_t i = 0; i < INFERD_COUNT(words); i++)
        whole |=
            c->at - from == strlen(words[i]) && memcmp(c->s.p + from, words[i], c->at - from) == 0;
    if (whole && !c->key) c->kept = c->at;
}

/* False: nothing is open. */
static bool take_bracket(cut *c, char bracket) {
    char top = c->open.n > 0 ? c->open.p[c->open.n - 1] : 0;
    if (bracket == '{' || bracket == '[') {
        buf_add_char(&c->open, bracket == '{' ? '}' : ']');
        c->key = bracket == '{';
    } else if (bracket == top) {
        c->open.n--;
    } else {
        return false;
    }
    c->kept = ++c->at;
    return c->open.n > 0;
}

static bool take(cut *c) {
    char next = c->s.p[c->at];
    if (next == 0) return false;
    if (strchr("{}[]", next) != NULL)
        return (next == '{' || c->open.n > 0) && take_bracket(c, next);
    if (is_space(next)) {
        c->at++;
        return true;
    }
    if (c->open.n == 0) return false;
    if (next == ',' || next == ':') {
        c->key = next == ',' && c->open.p[c->open.n - 1] == '}';
        c->at++;
    } else if (next == '"') {
        take_string(c);
    } else {
        take_scalar(c);
    }
    return true;
}

bool json_cut_close(bytes text, buf *out) {
    cut c = {.s = text};
    bool ok = true;
    while (ok && c.at < text.n && !c.open.failed) ok = take(&c);
    ok = ok && c.open.n > 0 && !c.open.failed;
    out->failed |= c.open.failed;
    if (ok) {
        buf_add(out, text.p, c.kept);
        if (c.quoted) buf_add_char(out, '"');
        for (size_t i = c.open.n; i-- > 0;) buf_add_char(out, c.open.p[i]);
    }
    buf_deinit(&c.open);
    return ok && !out->failed;
}
