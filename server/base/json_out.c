/* json_out.c - see json_out.h. */
#include "json_out.h"

#include <math.h>

/* Bytes of the valid UTF-8 character at p, or 0. */
static size_t utf8_valid(const unsigned char *p, size_t n) {
    if (p[0] < 0x80) return 1;
    if (p[0] < 0xc2 || p[0] > 0xf4) return 0;
    size_t length = p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    if (length > n) return 0;
    for (size_t i = 1; i < length; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    if (p[0] == 0xe0 && p[1] < 0xa0) return 0;  // overlong
    if (p[0] == 0xed && p[1] >= 0xa0) return 0; // surrogate
    if (p[0] == 0xf0 && p[1] < 0x90) return 0;  // overlong
    if (p[0] == 0xf4 && p[1] >= 0x90) return 0; // above U+10FFFF
    return length;
}

static void add_escaped(buf *out, unsigned char c) {
    static const char letters[] = "\b\t\n\f\r\"\\", names[] = "btnfr\"\\";
    const char *at = memchr(letters, c, sizeof letters - 1);
    if (at != NULL) {
        buf_add_char(out, '\\');
        buf_add_char(out, names[at - letters]);
    } else {
        buf_add_format(out, "\\u%04x", c);
    }
}

void json_add_string(buf *out, const char *s, size_t n) {
    const unsigned char *p = (const unsigned char *)s;
    size_t from = 0; // [from, i) is copied unchanged
    buf_add_char(out, '"');
    for (size_t i = 0; i < n;) {
        size_t length = utf8_valid(p + i, n - i);
        if (length > 0 && p[i] >= 0x20 && p[i] != '"' && p[i] != '\\') {
            i += length;
            continue;
        }
        buf_add(out, s + from, i - from);
        if (length == 0)
            buf_add_str(out, "\xef\xbf\xbd");
        else
            add_escaped(out, p[i]);
        from = ++i;
    }
    buf_add(out, s + from, n - from);
    buf_add_char(out, '"');
}

bool json_is_utf8(const char *s, size_t n) {
    const unsigned char *p = (const unsigned char *)s;
    for (size_t i = 0, length; i < n; i += length) {
        length = utf8_valid(p + i, n - i);
        if (length == 0) return false;
    }
    return true;
}

void json_add_real(buf *out, double v) {
    char text[40];
    if (!isfinite(v)) v = -9999.0; // OpenAI's value for an impossible token
    int n = snprintf(text, sizeof text, "%.9g", v);
    for (int i = 0; i < n; i++)
        if (text[i] == ',') text[i] = '.';
    buf_add(out, text, (size_t)n);
}

/* Formats digits directly: buf_add_format formats twice, and there are thousands of ids. */
void json_add_uint(buf *out, uint64_t v) {
    char text[24];
    size_t at = sizeof text;
    do {
        text[--at] = (char)('0' + v % 10);
        v /= 10;
    } while (v > 0);
    buf_add(out, text + at, sizeof text - at);
}

void json_add_ids(buf *out, const tok_id *ids, size_t n) {
    buf_add_char(out, '[');
    for (size_t i = 0; i < n; i++) {
        if (i > 0) buf_add_char(out, ',');
        json_add_uint(out, (uint64_t)ids[i]);
    }
    buf_add_char(out, ']');
}
