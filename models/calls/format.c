/* format.c - see format.h. */
#include "calls/format.h"

#include <string.h>

bool call_format_set(call_format *f, bytes *mark, bytes text) {
    if (text.n > sizeof f->store - f->n_store) return false;
    char *p = f->store + f->n_store;
    if (text.n > 0) memcpy(p, text.p, text.n);
    f->n_store += text.n;
    *mark = (bytes){p, text.n};
    return true;
}

void call_format_close(call_format *f) {
    free(f);
}
const char *call_format_name(const call_format *f) {
    return f->style == CALL_NONE ? "none" : f->name;
}
call_style call_format_style(const call_format *f) {
    return f->style;
}
bool call_format_is_single(const call_format *f) {
    return f->single;
}
bool call_format_marks_content(const call_format *f) {
    return bytes_trim(f->content_open).n > 0;
}
bool call_format_reasons(const call_format *f) {
    return f->reasoning_close.n > 0;
}
const char *call_format_reasoning_open(const call_format *f) {
    return f->plain_open;
}
const char *call_format_reasoning_close(const call_format *f) {
    return f->plain_close;
}
bool call_format_is_spaced(const call_format *f) {
    return f->spaced;
}
bool call_format_is_compact(const call_format *f) {
    return f->compact;
}
bool call_format_is_prompted(const call_format *f) {
    return f->prompted;
}
bool call_format_loses_calls(const call_format *f) {
    return f->loses_calls || f->loses_calls_beside_text;
}
bool call_format_loses_later_calls(const call_format *f) {
    return f->loses_later_calls;
}
const char *call_format_why(const call_format *f) {
    return f->why;
}

/* ---- texts ---- */

bytes bytes_trim(bytes s) {
    while (s.n > 0 && call_is_white(s.p[0])) s = bytes_from(s, 1);
    while (s.n > 0 && call_is_white(s.p[s.n - 1])) s.n--;
    return s;
}

size_t bytes_find(bytes s, bytes what, size_t from) {
    const char *p = NULL;
    if (from <= s.n && s.n > 0) p = memmem(s.p + from, s.n - from, what.p, what.n);
    return p == NULL ? SIZE_MAX : (size_t)(p - s.p);
}

/* ---- matching ---- */

static bool is_placeholder(char c) {
    return c == CALL_ID || c == CALL_INDEX || c == CALL_NAME || c == CALL_KEY || c == CALL_MAYBE;
}

static bool fits_placeholder(char placeholder, char c) {
    bool digit = c >= '0' && c <= '9';
    bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (placeholder == CALL_INDEX) return digit;
    return digit || letter || c == '_' || c == '-' || (placeholder == CALL_NAME && c == '.');
}

bytes call_maybe_part(bytes mark, size_t k) {
    const char *from = mark.p + k + 1, *end = memchr(from, CALL_MAYBE, mark.n - k - 1);
    return (bytes){from, end == NULL ? mark.n - k - 1 : (size_t)(end - from)};
}

/* Text of a mark without placeholders, at `at`, which is moved behind it. */
static match_result match_text(bytes part, bytes text, size_t *at) {
    size_t i = *at;
    for (size_t k = 0; k < part.n; k++) {
        if (call_is_white(part.p[k])) continue;
        while (i < text.n && call_is_white(text.p[i])) i++;
        if (i == text.n) return MATCH_PART;
        if (text.p[i++] != part.p[k]) return MATCH_NO;
    }
    *at = i;
    return MATCH_YES;
}

match call_match(bytes mark, bytes text) {
    match m = {MATCH_PART, 0, {NULL, 0}, {NULL, 0}};
    size_t i = 0;
    for (size_t k = 0; k < mark.n; k++) {
        char want = mark.p[k];
        if (call_is_white(want)) continue;
        if (want == CALL_MAYBE) {
            bytes part = call_maybe_part(mark, k);
            if (match_text(part, text, &i) == MATCH_PART) return m;
            k += part.n + 1;
            continue;
        }
        while (i < text.n && call_is_white(text.p[i])) i++;
        size_t from = i;
        if (i == text.n) return m;
        if (is_placeholder(want)) {
            size_t end = size_min(text.n, from + CALL_NAME_BYTES_MAX + 1);
            while (i < end && fits_placeholder(want, text.p[i])) i++;
            bytes found = {text.p + from, i - from};
            bool fits = found.n > 0 && found.n <= CALL_NAME_BYTES_MAX;
            if (i == text.n && fits) return m; // it may go on
            if (want == CALL_ID) m.id = found;
            if (want == CALL_NAME) m.name = found;
            if (fits) continue;
        } else if (text.p[i] == want) {
            i++;
            continue;
        }
        m.result = MATCH_NO;
        return m;
    }
    m.n = i;
    m.result = MATCH_YES;
    return m;
}

void call_fill_key(bytes mark, bytes key, buf *out) {
    for (size_t i = 0; i < mark.n; i++) {
        bytes part = mark.p[i] == CALL_KEY ? key : (bytes){mark.p + i, 1};
        buf_add(out, part.p, part.n);
    }
}

bytes call_anchor(bytes mark) {
    mark = bytes_trim(mark);
    size_t n = 0;
    while (n < mark.n && !call_is_white(mark.p[n]) && !is_placeholder(mark.p[n])) n++;
    return (bytes){mark.p, n};
}
