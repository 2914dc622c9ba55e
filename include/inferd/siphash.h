/* siphash.h - SipHash-2-4 (Aumasson, Bernstein 2012), a keyed hash: without the key a client cannot
 * choose texts that collide.
 *
 *   sip s = sip_begin(key, false);  sip_word(&s, ...) ...;  sip_end64(&s, last word)
 *
 * The last word of the standard holds the remaining bytes and, in its top byte, the length in
 * bytes. The variant with 128 bits of output begins with `wide`.
 *
 * Thread: any. */
#ifndef INFERD_SIPHASH_H
#define INFERD_SIPHASH_H

#include <string.h>

#include "inferd/base.h"

typedef struct sip {
    uint64_t v[4];
} sip;

static inline uint64_t sip_rotl(uint64_t x, int n) {
    return x << n | x >> (64 - n);
}
static inline void sip_round(uint64_t v[4]) {
    v[0] += v[1], v[1] = sip_rotl(v[1], 13) ^ v[0], v[0] = sip_rotl(v[0], 32);
    v[2] += v[3], v[3] = sip_rotl(v[3], 16) ^ v[2];
    v[0] += v[3], v[3] = sip_rotl(v[3], 21) ^ v[0];
    v[2] += v[1], v[1] = sip_rotl(v[1], 17) ^ v[2], v[2] = sip_rotl(v[2], 32);
}
static inline sip sip_begin(const uint64_t key[2], bool wide) {
    return (sip){{key[0] ^ UINT64_C(0x736f6d6570736575),
                  key[1] ^ UINT64_C(0x646f72616e646f6d) ^ (wide ? 0xee : 0),
                  key[0] ^ UINT64_C(0x6c7967656e657261), key[1] ^ UINT64_C(0x7465646279746573)}};
}
static inline void sip_word(sip *s, uint64_t word) {
    s->v[3] ^= word;
    sip_round(s->v);
    sip_round(s->v);
    s->v[0] ^= word;
}
static inline uint64_t sip_mix(sip *s, int at, uint64_t with) {
    s->v[at] ^= with;
    for (int i = 0; i < 4; i++) sip_round(s->v);
    return s->v[0] ^ s->v[1] ^ s->v[2] ^ s->v[3];
}
static inline uint64_t sip_end64(sip *s, uint64_t last) {
    sip_word(s, last);
    return sip_mix(s, 2, 0xff);
}
static inline void sip_end128(sip *s, uint64_t last, uint64_t out[2]) {
    sip_word(s, last);
    out[0] = sip_mix(s, 2, 0xee);
    out[1] = sip_mix(s, 1, 0xdd);
}

/* Of bytes, 64 bits. */
static inline uint64_t siphash(const unsigned char key[16], const void *p, size_t n) {
    uint64_t k[2], word;
    const unsigned char *at = (const unsigned char *)p;
    memcpy(k, key, sizeof k);
    sip s = sip_begin(k, false);
    for (size_t i = 0; i < n / 8; i++) {
        memcpy(&word, at + 8 * i, sizeof word); // little-endian machines only, as everywhere here
        sip_word(&s, word);
    }
    word = (uint64_t)n << 56;
    for (size_t b = 0; b < n % 8; b++) word |= (uint64_t)at[n / 8 * 8 + b] << 8 * b;
    return sip_end64(&s, word);
}

#endif
