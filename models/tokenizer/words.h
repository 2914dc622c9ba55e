/* words.h - from the bytes of a token to its id: an open-addressed table.
 *
 * Keys are not stored: a slot holds a hash and an id, and `texts[id]` is the key.  The first id of
 * equal texts wins.  At most half of the slots are used.
 *
 * Thread: any for finding, one for adding. */
#ifndef INFERD_TOKENIZER_WORDS_H
#define INFERD_TOKENIZER_WORDS_H

#include <string.h>

#include "inferd/base.h"

typedef struct word_slot {
    uint32_t hash;
    tok_id id; // -1: empty
} word_slot;

typedef struct word_table {
    word_slot *slots; // [mask + 1]; owned
    size_t mask;
    size_t bytes_max;   // of the longest key
    const bytes *texts; // [n_vocab] borrowed
} word_table;

/* Room for `n` keys; false: no memory. */
bool word_table_init(word_table *t, const bytes *texts, size_t n);
void word_table_deinit(word_table *t);
void word_add(word_table *t, tok_id id);

static inline uint64_t word_load64(const unsigned char *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline uint32_t word_load32(const unsigned char *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline uint64_t word_mix(uint64_t a, uint64_t b) {
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* Keys come from a fixed vocabulary, so a hostile text can miss but not lengthen a chain. */
static inline uint32_t word_hash(const unsigned char *p, size_t n) {
    uint64_t a, b, seed = 0x9E3779B97F4A7C15u ^ n;
    for (; n > 16; p += 16, n -= 16)
        seed = word_mix(word_load64(p) ^ 0xA24BAED4963EE407u, word_load64(p + 8) ^ seed);
    if (n >= 8) {
        a = word_load64(p);
        b = word_load64(p + n - 8);
    } else if (n >= 4) {
        a = word_load32(p);
        b = word_load32(p + n - 4);
    } else {
        a = n == 0 ? 0 : (uint64_t)p[0] << 16 | (uint64_t)p[n / 2] << 8 | p[n - 1];
        b = 0;
    }
    return (uint32_t)(word_mix(a ^ 0xA24BAED4963EE407u, b ^ seed) >> 7);
}

/* -1: not there. */
static inline tok_id word_find(const word_table *t, const unsigned char *p, size_t n) {
    if (n > t->bytes_max) return -1;
    uint32_t hash = word_hash(p, n);
    for (size_t i = hash & t->mask;; i = (i + 1) & t->mask) {
        const word_slot *s = &t->slots[i];
        if (s->id < 0) return -1;
        if (s->hash == hash && t->texts[s->id].n == n && memcmp(t->texts[s->id].p, p, n) == 0)
            return s->id;
    }
}

#endif
