/* regex_escape.c - what follows a backslash in a pattern. */
#include "regex_reader.h"

/* Exactly n digits; false leaves the place as it is. */
static bool read_hex(reader *r, unsigned n, uint32_t *out) {
    uint32_t value = 0;
    if (r->n - r->at < n) return false;
    for (unsigned i = 0; i < n; i++) {
        int digit = hex_value(r->p[r->at + i]);
        if (digit < 0) return false;
        value = value * 16 + (uint32_t)digit;
    }
    r->at += n;
    *out = value;
    return true;
}

/* After "\u": four digits, a pair of surrogates, or {digits}. */
static inferd_status read_unicode(reader *r, size_t begin, uint32_t *out) {
    uint32_t low;
    if (skip(r, "{")) {
        uint32_t value = 0;
        size_t first = r->at;
        for (; r->at < r->n && hex_value(r->p[r->at]) >= 0 && value <= CODE_POINT_MAX; r->at++)
            value = value * 16 + (uint32_t)hex_value(r->p[r->at]);
        if (r->at == first || !skip(r, "}") || value > CODE_POINT_MAX)
            return refuse(r, INFERD_EINVAL, begin, "\\u{...} is no code point");
        *out = value;
        return INFERD_OK;
    }
    if (!read_hex(r, 4, out))
        return refuse(r, INFERD_EINVAL, begin, "\\u without four hexadecimal digits");
    if (*out < 0xD800 || *out > 0xDBFF || !looking_at(r, "\\u")) return INFERD_OK;
    size_t before = r->at;
    r->at += 2;
    if (read_hex(r, 4, &low) && low >= 0xDC00 && low <= 0xDFFF)
        *out = 0x10000 + ((*out - 0xD800) << 10) + (low - 0xDC00);
    else
        r->at = before;
    return INFERD_OK;
}

/* After "\p" or "\P": adds to both sets of a class. */
static inferd_status read_property(reader *r, size_t begin, bool negated, code_set *both,
                                   code_set *either) {
    const char *end = r->at < r->n ? memchr(r->p + r->at, '}', r->n - r->at) : NULL;
    if (!looking_at(r, "{") || end == NULL)
        return refuse(r, INFERD_EINVAL, begin, "\\p without {name}");
    bytes name = {r->p + r->at + 1, (size_t)(end - r->p) - r->at - 1};
    r->at = (size_t)(end - r->p) + 1;
    uint32_t categories = code_categories(name);
    if (categories == 0)
        return inferd_fail(r->err, INFERD_EUNSUPPORTED,
                           "pattern: the property \\p{%.*s} at byte %zu cannot be enforced: only "
                           "general categories are known",
                           (int)size_min(name.n, 64), name.p, begin);
    if (negated) categories = ~categories & code_categories((bytes){"Any", 3});
    code_set_add_categories(both, categories);
    code_set_add_categories(either, categories);
    return INFERD_OK;
}

/* \d \w \s and their negations, whose two sets are each other's complements. */
static void add_class(code_class kind, bool negated, code_set *both, code_set *either) {
    if (!negated) {
        code_set_add_class(both, kind, false);
        code_set_add_class(either, kind, true);
        return;
    }
    code_set *to[2] = {both, either};
    for (int i = 0; i < 2; i++) {
        code_set c = {0};
        code_set_add_class(&c, kind, i == 0);
        code_set_complement(&c);
        for (uint32_t k = 0; k < c.n; k++) code_set_add(to[i], c.ranges[k].first, c.ranges[k].last);
        to[i]->failed |= c.failed;
        code_set_deinit(&c);
    }
}

/* An escape that stands for one code point, after its letter c. */
static inferd_status read_code_escape(reader *r, size_t begin, uint32_t c, uint32_t *code) {
    static const char letters[] = "nrtfv", controls[] = "\n\r\t\f\v";
    const char *letter = c < 128 && c != 0 ? strchr(letters, (int)c) : NULL;
    *code = c;
    if (letter != NULL) {
        *code = (unsigned char)controls[letter - letters];
        return INFERD_OK;
    }
    switch (c) {
    case 'x':
        if (read_hex(r, 2, code)) return INFERD_OK;
        return refuse(r, INFERD_EINVAL, begin, "\\x without two hexadecimal digits");
    case 'u':
        return read_unicode(r, begin, code);
    case 'c':
        if (r->at < r->n && ((r->p[r->at] | 32) >= 'a' && (r->p[r->at] | 32) <= 'z')) {
            *code = (uint32_t)r->p[r->at++] & 31;
            return INFERD_OK;
        }
        return refuse(r, INFERD_EINVAL, begin, "\\c without a letter");
    case '0':
        *code = 0;
        if (r->at >= r->n || r->p[r->at] < '0' || r->p[r->at] > '9') return INFERD_OK;
        return refuse(r, INFERD_EINVAL, begin, "an octal escape");
    case 'k':
        return refuse(r, INFERD_EUNSUPPORTED, begin, "a back-reference, not enforceable,");
    default:
        break;
    }
    if (c >= '1' && c <= '9')
        return refuse(r, INFERD_EUNSUPPORTED, begin, "a back-reference, not enforceable,");
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
        return inferd_fail(r->err, INFERD_EINVAL, "pattern: no escape \\%c is known, at byte %zu",
                           (char)c, begin);
    return INFERD_OK; // punctuation, or what is not ASCII, stands for itself
}

inferd_status regex_read_escape(reader *r, size_t begin, code_set *both, code_set *either,
                                uint32_t *code) {
    if (r->at >= r->n) return refuse(r, INFERD_EINVAL, begin, "a backslash ends it,");
    uint32_t c = next_code(r);
    *code = DFA_DEAD;
    switch (c) {
    case 'd':
    case 'D':
        add_class(CLASS_DIGIT, c == 'D', both, either);
        return INFERD_OK;
    case 'w':
    case 'W':
        add_class(CLASS_WORD, c == 'W', both, either);
        return INFERD_OK;
    case 's':
    case 'S':
        add_class(CLASS_SPACE, c == 'S', both, either);
        return INFERD_OK;
    case 'p':
    case 'P':
        return read_property(r, begin, c == 'P', both, either);
    default:
        return read_code_escape(r, begin, c, code);
    }
}
