/* text.h - text and numbers in JSON, CSV and XML.
 *
 * Names come from scenario files, so they may hold anything: bytes that are not UTF-8 and control
 * characters become a question mark, which is valid in all three formats.
 *
 * Thread: any. */
#ifndef SIM_TEXT_H
#define SIM_TEXT_H

#include <math.h>
#include <stdlib.h>

#include "inferd/buf.h"

/* Length of the character at p, 1 to 4; 0: not UTF-8, or a control character. */
static inline size_t text_char(const char *p) {
    const unsigned char *u = (const unsigned char *)p;
    if (u[0] < 0x80) return u[0] >= 0x20 && u[0] != 0x7f;
    size_t n = u[0] >= 0xc2 && u[0] <= 0xdf   ? 2
               : (u[0] & 0xf0) == 0xe0        ? 3
               : u[0] >= 0xf0 && u[0] <= 0xf4 ? 4
                                              : 0;
    for (size_t i = 1; i < n; i++)
        if ((u[i] & 0xc0) != 0x80) return 0;
    if (n == 2 && u[0] == 0xc2 && u[1] < 0xa0) return 0;                  // C1 control characters
    if (n == 3 && u[0] == 0xe0 && u[1] < 0xa0) return 0;                  // overlong encoding
    if (n == 3 && u[0] == 0xed && u[1] >= 0xa0) return 0;                 // a surrogate
    if (n == 3 && u[0] == 0xef && u[1] == 0xbf && u[2] >= 0xbe) return 0; // not a character in XML
    if (n == 4 && u[0] == 0xf0 && u[1] < 0x90) return 0;
    if (n == 4 && u[0] == 0xf4 && u[1] >= 0x90) return 0; // above U+10FFFF
    return n;
}

/* Characters, as columns of a table. */
static inline size_t text_columns(const char *p) {
    size_t n_columns = 0;
    for (; *p != 0; n_columns++) {
        size_t n = text_char(p);
        p += n == 0 ? 1 : n;
    }
    return n_columns;
}

typedef enum text_format { TEXT_PLAIN, TEXT_JSON, TEXT_XML, TEXT_CSV } text_format;

static inline void text_add(buf *out, const char *p, text_format format) {
    while (*p != 0) {
        size_t n = text_char(p);
        if (n == 0)
            buf_add_char(out, '?');
        else if (format == TEXT_JSON && (*p == '"' || *p == '\\'))
            buf_add_char(out, '\\'), buf_add_char(out, *p);
        else if (format == TEXT_CSV && *p == '"')
            buf_add_str(out, "\"\"");
        else if (format == TEXT_XML && *p == '<')
            buf_add_str(out, "&lt;");
        else if (format == TEXT_XML && *p == '>')
            buf_add_str(out, "&gt;");
        else if (format == TEXT_XML && *p == '&')
            buf_add_str(out, "&amp;");
        else if (format == TEXT_XML && *p == '"')
            buf_add_str(out, "&quot;");
        else
            buf_add(out, p, n);
        p += n == 0 ? 1 : n;
    }
}

/* The shortest of 15 to 17 digits that reads back the same; `missing` for NAN or infinity. */
static inline void text_add_number(buf *out, double x, const char *missing) {
    char text[40];
    if (!isfinite(x)) {
        buf_add_str(out, missing);
        return;
    }
    if (x == 0) x = 0; // removes the sign of -0
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, x);
        if (strtod(text, NULL) == x) break;
    }
    buf_add_str(out, text);
}

/* With a fixed number of digits, and never "-0.00". */
static inline void text_add_fixed(buf *out, double x, int digits) {
    char text[400];
    snprintf(text, sizeof text, "%.*f", digits, x);
    buf_add_str(out, text[0] == '-' && strspn(text, "-0.") == strlen(text) ? text + 1 : text);
}

#endif
