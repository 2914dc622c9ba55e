/* utf8.h - well-formed UTF-8, byte by byte (Unicode 16.0, table 3-7).
 *
 * Text is checked once, at the entry; all later code decodes without checks. */
#ifndef INFERD_TOKENIZER_UTF8_H
#define INFERD_TOKENIZER_UTF8_H

#include "inferd/base.h"

enum { UTF8_BYTES_MAX = 4 };

/* Length of a sequence that starts with `b`; 0: no sequence does. */
static inline unsigned utf8_length(unsigned char b) {
    if (b < 0x80) return 1;
    if (b < 0xC2) return 0; // a continuation, or an overlong form
    if (b < 0xE0) return 2;
    if (b < 0xF0) return 3;
    return b < 0xF5 ? 4 : 0;
}

/* May `b` be byte number `at` (1 to 3) of the sequence that starts with `lead`?  The second byte
 * has the rules against overlong forms, surrogates and values beyond U+10FFFF. */
static inline bool utf8_continues(unsigned char lead, unsigned at, unsigned char b) {
    if (at == 1) {
        if (lead == 0xE0) return b >= 0xA0 && b <= 0xBF;
        if (lead == 0xED) return b >= 0x80 && b <= 0x9F;
        if (lead == 0xF0) return b >= 0x90 && b <= 0xBF;
        if (lead == 0xF4) return b >= 0x80 && b <= 0x8F;
    }
    return (b & 0xC0) == 0x80;
}

/* Bytes of the well-formed character at `p`; 0: there is none, or it is cut. */
static inline unsigned utf8_char_bytes(const unsigned char *p, size_t n) {
    unsigned length = n == 0 ? 0 : utf8_length(p[0]);
    if (length == 0 || length > n) return 0;
    for (unsigned i = 1; i < length; i++)
        if (!utf8_continues(p[0], i, p[i])) return 0;
    return length;
}

/* The character at `p` and its length; the text is known to be well-formed. */
static inline uint32_t utf8_decode(const unsigned char *p, unsigned *n) {
    if (p[0] < 0x80) {
        *n = 1;
        return p[0];
    }
    if (p[0] < 0xE0) {
        *n = 2;
        return (p[0] & 0x1Fu) << 6 | (p[1] & 0x3Fu);
    }
    if (p[0] < 0xF0) {
        *n = 3;
        return (p[0] & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
    }
    *n = 4;
    return (p[0] & 0x07u) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
}

/* The start of the character that ends before `p`, not before `begin`. */
static inline const unsigned char *utf8_back(const unsigned char *p, const unsigned char *begin) {
    do p--;
    while (p > begin && (*p & 0xC0) == 0x80);
    return p;
}

static inline unsigned utf8_encode(uint32_t c, unsigned char out[UTF8_BYTES_MAX]) {
    if (c < 0x80) {
        out[0] = (unsigned char)c;
        return 1;
    }
    unsigned n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (unsigned i = n - 1; i > 0; i--, c >>= 6) out[i] = (unsigned char)(0x80 | (c & 0x3F));
    out[0] = (unsigned char)((0xF00u >> n) & 0xFF) | (unsigned char)c; // 110x, 1110, 1111 0
    return n;
}

/* How many leading bytes are whole, well-formed characters: `n` when all are. */
size_t utf8_valid_bytes(const unsigned char *p, size_t n);

#endif
