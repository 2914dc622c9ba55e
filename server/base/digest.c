/* digest.c - see digest.h.
 *
 *   h = iv, with the parameters folded in         8 words of state
 *   for each block of 64 bytes: ten rounds of eight mixes over 16 words (state, iv, counter)
 *
 * A key is a first block of its own, padded with zeros. */
#include "digest.h"

#include <string.h>

enum { BLOCK_BYTES = 64 };

static const uint32_t iv[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                               0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

/* Which message word each half of each mix takes. */
static const unsigned char sigma[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
    {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
    {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
    {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
    {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
};

static uint32_t rotate(uint32_t x, int n) {
    return x >> n | x << (32 - n);
}

static void mix(uint32_t *a, uint32_t *b, uint32_t *c, uint32_t *d, uint32_t x, uint32_t y) {
    *a += *b + x;
    *d = rotate(*d ^ *a, 16);
    *c += *d;
    *b = rotate(*b ^ *c, 12);
    *a += *b + y;
    *d = rotate(*d ^ *a, 8);
    *c += *d;
    *b = rotate(*b ^ *c, 7);
}

static void compress(uint32_t h[8], const unsigned char block[BLOCK_BYTES], uint64_t n_hashed,
                     bool last) {
    uint32_t m[16], v[16];
    for (int i = 0; i < 16; i++)
        m[i] = (uint32_t)block[4 * i] | (uint32_t)block[4 * i + 1] << 8 |
               (uint32_t)block[4 * i + 2] << 16 | (uint32_t)block[4 * i + 3] << 24;
    for (int i = 0; i < 8; i++) v[i] = h[i], v[i + 8] = iv[i];
    v[12] ^= (uint32_t)n_hashed;
    v[13] ^= (uint32_t)(n_hashed >> 32);
    if (last) v[14] = ~v[14];
    for (int r = 0; r < 10; r++) {
        const unsigned char *s = sigma[r];
        for (int i = 0; i < 4; i++) // columns
            mix(&v[i], &v[4 + i], &v[8 + i], &v[12 + i], m[s[2 * i]], m[s[2 * i + 1]]);
        for (int i = 0; i < 4; i++) // diagonals
            mix(&v[i], &v[4 + (i + 1) % 4], &v[8 + (i + 2) % 4], &v[12 + (i + 3) % 4],
                m[s[8 + 2 * i]], m[s[9 + 2 * i]]);
    }
    for (int i = 0; i < 8; i++) h[i] ^= v[i] ^ v[i + 8];
    explicit_bzero(m, sizeof m);
    explicit_bzero(v, sizeof v);
}

void digest_blake2s(unsigned char out[DIGEST_BYTES], const void *key, size_t key_n,
                    const void *text, size_t n) {
    const unsigned char *p = text;
    unsigned char block[BLOCK_BYTES] = {0};
    uint64_t n_hashed = 0;
    uint32_t h[8];
    INFERD_CHECK(key_n <= 32);
    memcpy(h, iv, sizeof h);
    h[0] ^= 0x01010000 ^ (uint32_t)key_n << 8 ^ DIGEST_BYTES;
    if (key_n > 0) {
        memcpy(block, key, key_n);
        n_hashed = BLOCK_BYTES;
        compress(h, block, n_hashed, n == 0);
    }
    for (; n > BLOCK_BYTES; n -= BLOCK_BYTES, p += BLOCK_BYTES) {
        n_hashed += BLOCK_BYTES;
        compress(h, p, n_hashed, false);
    }
    if (n > 0 || key_n == 0) { // the last block; the only one may be empty
        memset(block, 0, sizeof block);
        if (n > 0) memcpy(block, p, n);
        compress(h, block, n_hashed + n, true);
    }
    for (int i = 0; i < DIGEST_BYTES; i++) out[i] = (unsigned char)(h[i / 4] >> (8 * (i % 4)));
    explicit_bzero(block, sizeof block);
    explicit_bzero(h, sizeof h);
}

bool digest_equal(const unsigned char *a, const unsigned char *b, size_t n) {
    volatile unsigned char differ = 0; // volatile: keeps the compiler from an early exit
    for (size_t i = 0; i < n; i++) differ |= (unsigned char)(a[i] ^ b[i]);
    return differ == 0;
}
