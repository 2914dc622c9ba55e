/* json_text.c - see json_text.h.  Recursive descent; the first failure is kept, and data built
 * until then is freed with the value that holds it. */
#include "chat/json_text.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "chat/value.h"
#include "inferd/buf.h"
#include "tokenizer/utf8.h"

enum { WIDE_MARK = (char)0xff, WIDE_DIGITS_MIN = 19 };
enum { NUMBER_BYTES_MAX = 400 }; // a double in full has 309 digits before the point

typedef struct reader {
    const char *p;
    size_t n, at;
    int depth;
    bool wide; // integers beyond 64 bits keep their digits
    buf text;  // of the string being read
    inferd_err *err;
    inferd_status status;
} reader;

static bool refuse(reader *r, const char *expected) {
    if (r->status == INFERD_OK)
        r->status = inferd_fail(r->err, INFERD_EFORMAT, "byte %zu: %s", r->at, expected);
    return false;
}

static bool run_out(reader *r) {
    if (r->status == INFERD_OK)
        r->status = inferd_fail(r->err, INFERD_ENOMEM, "no memory for data from JSON");
    return false;
}

static json_t *fail(reader *r, const char *expected) {
    refuse(r, expected);
    return NULL;
}

static json_t *made(reader *r, json_t *value) {
    if (value == NULL) run_out(r);
    return value;
}

static int peek(const reader *r) {
    return r->at < r->n ? (unsigned char)r->p[r->at] : -1;
}

static void skip_space(reader *r) {
    while (r->at < r->n && memchr(" \t\r\n", r->p[r->at], 4) != NULL) r->at++;
}

static bool take(reader *r, char c) {
    if (peek(r) != c) return false;
    r->at++;
    return true;
}

/* ---- texts ---- */

static bool read_hex(reader *r, uint32_t *out) {
    *out = 0;
    for (int i = 0; i < 4; i++, r->at++) {
        int c = peek(r);
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) return false;
        *out = *out << 4 | (uint32_t)digit;
    }
    return true;
}

/* Behind "\u"; a surrogate needs its other half. */
static bool read_code_point(reader *r) {
    uint32_t c, low;
    if (!read_hex(r, &c)) return false;
    if (c >= 0xD800 && c < 0xDC00) {
        if (!take(r, '\\') || !take(r, 'u') || !read_hex(r, &low) || low < 0xDC00 || low > 0xDFFF)
            return false;
        c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
    } else if (c >= 0xDC00 && c < 0xE000) {
        return false;
    }
    unsigned char utf8[UTF8_BYTES_MAX];
    buf_add(&r->text, utf8, utf8_encode(c, utf8));
    return true;
}

static bool read_escape(reader *r) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    int c = peek(r);
    if (c < 0) return false;
    r->at++;
    if (c == 'u') return read_code_point(r);
    const char *found = c != 0 ? strchr(from, c) : NULL;
    if (found == NULL) return false;
    buf_add_char(&r->text, to[found - from]);
    return true;
}

/* Behind the opening quote, into r->text. */
static bool read_text(reader *r) {
    buf_clear(&r->text);
    for (;;) {
        size_t begin = r->at;
        while (r->at < r->n && r->p[r->at] != '"' && r->p[r->at] != '\\' &&
               (unsigned char)r->p[r->at] >= 0x20)
            r->at++;
        buf_add(&r->text, r->p + begin, r->at - begin);
        if (take(r, '"')) break;
        if (!take(r, '\\'))
            return refuse(r, "a string without its closing quote, or with a control character");
        if (!read_escape(r)) return refuse(r, "not an escape of JSON");
    }
    return !r->text.failed || run_out(r);
}

static json_t *read_string(reader *r) {
    if (!read_text(r)) return NULL;
    return made(r, json_stringn_nocheck(r->text.n > 0 ? r->text.p : "", r->text.n));
}

/* ---- numbers and words ---- */

static size_t skip_digits(reader *r) {
    size_t begin = r->at;
    while (peek(r) >= '0' && peek(r) <= '9') r->at++;
    return r->at - begin;
}

static json_t *read_number(reader *r) {
    char room[NUMBER_BYTES_MAX + 2], *text = room + 1, *end;
    size_t begin = r->at;
    bool real = false;
    take(r, '-');
    if (!take(r, '0') && skip_digits(r) == 0) return fail(r, "expected a value");
    if (take(r, '.')) {
        real = true;
        if (skip_digits(r) == 0) return fail(r, "expected a digit");
    }
    if (take(r, 'e') || take(r, 'E')) {
        real = true;
        if (!take(r, '+')) take(r, '-');
        if (skip_digits(r) == 0) return fail(r, "expected a digit");
    }
    size_t n = r->at - begin;
    if (n > NUMBER_BYTES_MAX) return fail(r, "the number is too long");
    memcpy(text, r->p + begin, n);
    text[n] = 0;
    errno = 0;
    if (!real) {
        long long i = strtoll(text, &end, 10);
        if (errno == 0) return made(r, json_integer(i));
    }
    double d = strtod(text, &end); // the program never leaves the locale "C"
    if (!isfinite(d)) return fail(r, "a number outside the range of a double");
    if (real || !r->wide) return made(r, json_real(d));
    room[0] = WIDE_MARK;
    return made(r, json_stringn_nocheck(room, n + 1));
}

static json_t *read_word(reader *r, const char *word, json_t *value) {
    size_t n = strlen(word);
    if (r->n - r->at < n || memcmp(r->p + r->at, word, n) != 0) return fail(r, "expected a value");
    r->at += n;
    return value;
}

/* ---- nesting ---- */

static json_t *read_value(reader *r);

static bool read_items(reader *r, json_t *list) {
    skip_space(r);
    if (take(r, ']')) return true;
    for (;;) {
        json_t *item = read_value(r);
        if (item == NULL) return false;
        if (json_array_append_new(list, item) != 0) return run_out(r);
        skip_space(r);
        if (take(r, ']')) return true;
        if (!take(r, ',')) return refuse(r, "expected ',' or ']'");
    }
}

static bool read_pairs(reader *r, json_t *object) {
    skip_space(r);
    if (take(r, '}')) return true;
    for (;;) {
        skip_space(r);
        if (!take(r, '"')) return refuse(r, "expected a key in quotes");
        if (!read_text(r)) return false;
        if (r->text.n > 0 && memchr(r->text.p, 0, r->text.n) != NULL)
            return refuse(r, "a key with U+0000"); // many readers of data would cut it there
        buf key = r->text;                         // reading the value fills another one
        buf_init(&r->text, 0);
        skip_space(r);
        json_t *value = take(r, ':') ? read_value(r) : fail(r, "expected ':'");
        bool set = value != NULL &&
                   json_object_setn_new_nocheck(object, key.n > 0 ? key.p : "", key.n, value) == 0;
        buf_deinit(&key);
        if (!set) return value != NULL && run_out(r);
        skip_space(r);
        if (take(r, '}')) return true;
        if (!take(r, ',')) return refuse(r, "expected ',' or '}'");
    }
}

static json_t *read_nested(reader *r, json_t *value, bool (*read)(reader *, json_t *)) {
    if (made(r, value) == NULL) return NULL;
    r->at++;
    bool ok = ++r->depth <= JVALUE_DEPTH_MAX ? read(r, value) : refuse(r, "nested too deep");
    r->depth--;
    if (ok) return value;
    json_decref(value);
    return NULL;
}

static json_t *read_value(reader *r) {
    skip_space(r);
    switch (peek(r)) {
    case '{':
        return read_nested(r, json_object(), read_pairs);
    case '[':
        return read_nested(r, json_array(), read_items);
    case '"':
        r->at++;
        return read_string(r);
    case 't':
        return read_word(r, "true", json_true());
    case 'f':
        return read_word(r, "false", json_false());
    case 'n':
        return read_word(r, "null", json_null());
    default:
        return read_number(r);
    }
}

static inferd_status read_text_of(bytes text, bool wide, json_t **out, inferd_err *err) {
    reader r = {.p = text.p, .n = text.n, .wide = wide, .err = err};
    *out = NULL;
    size_t valid = utf8_valid_bytes((const unsigned char *)text.p, text.n);
    if (valid < text.n) {
        r.at = valid;
        fail(&r, "not UTF-8");
        return r.status;
    }
    buf_init(&r.text, 0);
    json_t *value = read_value(&r);
    skip_space(&r);
    if (value != NULL && r.at < r.n) fail(&r, "expected the end");
    buf_deinit(&r.text);
    if (r.status == INFERD_OK)
        *out = value;
    else
        json_decref(value);
    return r.status;
}

inferd_status json_text_read(bytes text, json_t **out, inferd_err *err) {
    return read_text_of(text, false, out, err);
}

inferd_status json_text_read_wide(bytes text, json_t **out, inferd_err *err) {
    return read_text_of(text, true, out, err);
}

const char *json_text_wide(const json_t *value) {
    const char *p = json_string_value(value);
    if (p == NULL || *p != WIDE_MARK) return NULL;
    const char *digits = p[1] == '-' ? p + 2 : p + 1;
    size_t n = strspn(digits, "0123456789");
    return n >= WIDE_DIGITS_MIN && digits[n] == 0 ? p + 1 : NULL;
}
