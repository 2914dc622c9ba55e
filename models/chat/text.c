/* Text helpers of filters and methods: case, lines, padding, reading numbers. */
#include <math.h>

#include "chat/interp.h"
#include "chat/letters.h"

static void add_upper(jbuf *b, const jstr *s, size_t at) {
    char upper[12];
    size_t n;
    uint32_t cp = letter_read(s->p + at, &n);
    size_t n_upper = letter_upper(cp, upper);
    jbuf_add(b, upper, n_upper, jstr_mark_at(s, at));
}

static void add_title(jbuf *b, const jstr *s, size_t at) {
    char title[12];
    size_t n, n_title = letter_title(letter_read(s->p + at, &n), title);
    jbuf_add(b, title, n_title, jstr_mark_at(s, at));
}

static void add_lower(jbuf *b, const jstr *s, size_t at) {
    size_t n;
    uint32_t cp = letter_read(s->p + at, &n);
    // the only letter with a lower case of two code points
    if (cp == 0x130)
        jbuf_add_text(b, "i\xCC\x87", jstr_mark_at(s, at));
    else
        jbuf_add_cp(b, letter_lower(cp), jstr_mark_at(s, at));
}

const jstr *jtext_upper(jctx *c, const jstr *s) {
    jbuf b;
    jbuf_init(&b, c, 0);
    j_charge(c, s->n / 8);
    for (size_t i = 0; i < s->n; i += letter_bytes(s->p[i])) add_upper(&b, s, i);
    return jbuf_str(&b, s->markup);
}

const jstr *jtext_lower(jctx *c, const jstr *s) {
    jbuf b;
    jbuf_init(&b, c, 0);
    j_charge(c, s->n / 8);
    for (size_t i = 0; i < s->n; i += letter_bytes(s->p[i])) add_lower(&b, s, i);
    return jbuf_str(&b, s->markup);
}

const jstr *jtext_capitalize(jctx *c, const jstr *s) {
    jbuf b;
    jbuf_init(&b, c, 0);
    j_charge(c, s->n / 8);
    for (size_t i = 0; i < s->n; i += letter_bytes(s->p[i]))
        (i == 0 ? add_title : add_lower)(&b, s, i);
    return jbuf_str(&b, s->markup);
}

/* Title case for the first letter after any non-letter. */
const jstr *jtext_title(jctx *c, const jstr *s) {
    jbuf b;
    size_t n;
    bool in_word = false;
    jbuf_init(&b, c, 0);
    j_charge(c, s->n / 8);
    for (size_t i = 0; i < s->n; i += n) {
        uint32_t cp = letter_read(s->p + i, &n);
        (in_word ? add_lower : add_title)(&b, s, i);
        in_word = letter_is_upper(cp) || letter_is_lower(cp);
    }
    return jbuf_str(&b, s->markup);
}

jlist *jtext_lines(jctx *c, const jstr *s, bool keep_ends) {
    jlist *lines = jlist_new(c, 0);
    size_t from = 0, n;
    j_charge_bytes(c, s->n);
    for (size_t i = 0; i < s->n; i += n) {
        uint32_t cp = letter_read(s->p + i, &n);
        if (!letter_ends_line(cp)) continue;
        size_t end = i;
        if (cp == '\r' && i + 1 < s->n && s->p[i + 1] == '\n') n = 2;
        j_charge(c, 1);
        jlist_add(c, lines, jv_str(jstr_slice(c, s, from, keep_ends ? i + n : end)));
        from = i + n;
    }
    if (from < s->n) jlist_add(c, lines, jv_str(jstr_slice(c, s, from, s->n)));
    return lines;
}

/* '<' text left, '>' text right, '^' in the middle. */
const jstr *jtext_pad(jrender *r, const jstr *s, int64_t width, char align, const jstr *fill) {
    jbuf b;
    int64_t n = (int64_t)jstr_length(&r->c, s), pad = width - n;
    if (width > JWIDTH_MAX) j_limit(&r->c, "a text padded to %lld", (long long)width);
    if (pad <= 0) return s;
    // Python's center puts the odd space left or right depending on the width
    int64_t left = align == '<' ? 0 : align == '>' ? pad : pad / 2 + (pad & width & 1);
    jbuf_init(&b, &r->c, 0);
    for (int64_t i = 0; i < left; i++) jbuf_add_str(&b, fill);
    jbuf_add_str(&b, s);
    for (int64_t i = left; i < pad; i++) jbuf_add_str(&b, fill);
    j_charge(&r->c, (size_t)pad / 8);
    return jbuf_str(&b, s->markup);
}

/* The text without spaces around and single underscores between digits, if it is short enough to be
 * a number. */
static bool clean_number(const jstr *s, char out[400]) {
    size_t from = 0, to = s->n, n = 0;
    while (from < to && letter_is_space((unsigned char)s->p[from])) from++;
    while (to > from && letter_is_space((unsigned char)s->p[to - 1])) to--;
    if (from == to || to - from >= 399) return false;
    for (size_t i = from; i < to; i++) {
        char c = s->p[i];
        if (c == 0 || (unsigned char)c >= 0x80) return false;
        if (c != '_') {
            out[n++] = c;
            continue;
        }
        bool between = i > from && i + 1 < to && s->p[i - 1] != '_' && s->p[i + 1] != '_' &&
                       letter_is_alnum((unsigned char)s->p[i - 1]) &&
                       letter_is_alnum((unsigned char)s->p[i + 1]);
        if (!between) return false;
    }
    out[n] = 0;
    return true;
}

static const char *skip_prefix(const char *p, int *base) {
    char letter = (char)(p[0] == '0' ? p[1] | 0x20 : 0);
    int named = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
    if (named == 0 || (*base != 0 && *base != named)) {
        if (*base == 0) *base = 10;
        return p;
    }
    *base = named;
    return p + 2;
}

bool jtext_to_int(const jstr *s, int base, int64_t *out) {
    char text[400];
    if (!clean_number(s, text)) return false;
    const char *p = text;
    bool negative = *p == '-';
    if (*p == '-' || *p == '+') p++;
    p = skip_prefix(p, &base);
    if (*p == 0) return false;
    *out = 0;
    for (; *p != 0; p++) {
        char lower = (char)(*p | 0x20);
        int digit = *p >= '0' && *p <= '9'         ? *p - '0'
                    : lower >= 'a' && lower <= 'z' ? lower - 'a' + 10
                                                   : 99;
        if (digit >= base) return false;
        if (__builtin_mul_overflow(*out, base, out) || __builtin_sub_overflow(*out, digit, out))
            return false;
    }
    return negative || !__builtin_sub_overflow((int64_t)0, *out, out);
}

bool jtext_to_float(const jstr *s, double *out) {
    char text[400], *end;
    if (!clean_number(s, text)) return false;
    const char *p = text + (*text == '-' || *text == '+');
    bool named =
        strcasecmp(p, "inf") == 0 || strcasecmp(p, "infinity") == 0 || strcasecmp(p, "nan") == 0;
    // strtod also reads hexadecimal and "nan(..)", Python does not
    if (!named && (p[strspn(p, "0123456789.eE+-")] != 0 || strspn(p, "0123456789.") == 0))
        return false;
    *out = strtod(text, &end);
    return *end == 0;
}
