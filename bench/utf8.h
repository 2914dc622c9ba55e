/* utf8.h - is a text valid UTF-8?  Thread: any. */
#ifndef BENCH_UTF8_H
#define BENCH_UTF8_H

#include "inferd/base.h"

/* Bytes of the UTF-8 sequence at `p`, which ends in NUL; 0: it is invalid. */
static inline size_t utf8_sequence(const unsigned char *p) {
    if (*p < 0x80) return 1;
    size_t n = *p >= 0xf0 && *p < 0xf5   ? 4
               : *p >= 0xe0 && *p < 0xf0 ? 3
               : *p >= 0xc2 && *p < 0xe0 ? 2
                                         : 0;
    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    bool overlong = (p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xf0 && p[1] < 0x90);
    bool surrogate = p[0] == 0xed && p[1] > 0x9f, beyond = p[0] == 0xf4 && p[1] > 0x8f;
    return n > 0 && (overlong || surrogate || beyond) ? 0 : n;
}

static inline bool utf8_valid(const char *text) {
    const unsigned char *p = (const unsigned char *)text;
    while (*p != 0) {
        size_t n = utf8_sequence(p);
        if (n == 0) return false;
        p += n;
    }
    return true;
}

#endif
