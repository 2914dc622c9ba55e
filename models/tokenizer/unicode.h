/* unicode.h - classes and composition of characters.
 *
 * Classes are those of Unicode 16.0 and composition is that of Unicode 9.0: the versions that the
 * tokenizers of published models were trained with (\p{L} follows their regex library, NFC their
 * normalisation library).  Tables: unicode_tables.c, written by scripts/gen-unicode.
 *
 * A table has two stages: index[c / 128] names a block of 128 values; equal blocks are stored once.
 *
 * Thread: any; all of it is constant. */
#ifndef INFERD_TOKENIZER_UNICODE_H
#define INFERD_TOKENIZER_UNICODE_H

#include "inferd/base.h"

/* General_Category, in an order that makes the major classes ranges. */
enum {
    UNICODE_LU,
    UNICODE_LL,
    UNICODE_LT,
    UNICODE_LM,
    UNICODE_LO,
    UNICODE_MN,
    UNICODE_MC,
    UNICODE_ME,
    UNICODE_ND,
    UNICODE_NL,
    UNICODE_NO,
    UNICODE_PC,
    UNICODE_PD,
    UNICODE_PS,
    UNICODE_PE,
    UNICODE_PI,
    UNICODE_PF,
    UNICODE_PO,
    UNICODE_SM,
    UNICODE_SC,
    UNICODE_SK,
    UNICODE_SO,
    UNICODE_ZS,
    UNICODE_ZL,
    UNICODE_ZP,
    UNICODE_CC,
    UNICODE_CF,
    UNICODE_CS,
    UNICODE_CO,
    UNICODE_CN,
    UNICODE_CATEGORY = 31,   // mask of the category in a kind
    UNICODE_WHITE_SPACE = 32 // the White_Space property, which U+001C..1F do not have
};

extern const uint16_t unicode_kind_index[];
extern const uint8_t unicode_kind_blocks[];

/* A category and UNICODE_WHITE_SPACE.  Block 0 comes first, so ASCII needs no index. */
static inline unsigned unicode_kind(uint32_t c) {
    if (c < 128) return unicode_kind_blocks[c];
    return unicode_kind_blocks[(size_t)unicode_kind_index[c >> 7] << 7 | (c & 127)];
}
static inline bool unicode_is_letter(unsigned kind) {
    return (kind & UNICODE_CATEGORY) <= UNICODE_LO;
}
static inline bool unicode_is_number(unsigned kind) {
    unsigned category = kind & UNICODE_CATEGORY;
    return category >= UNICODE_ND && category <= UNICODE_NO;
}
static inline bool unicode_is_punctuation(unsigned kind) {
    unsigned category = kind & UNICODE_CATEGORY;
    return category >= UNICODE_PC && category <= UNICODE_PO;
}
static inline bool unicode_is_space(unsigned kind) {
    return (kind & UNICODE_WHITE_SPACE) != 0;
}

enum {
    UNICODE_NFC_CHANGES = 1, // NFC replaces this character at any position
    UNICODE_NFC_JOINS = 2    // may compose with the character before it
};

typedef struct unicode_nfc_prop {
    uint8_t ccc; // canonical combining class; 0: a starter
    uint8_t flags;
} unicode_nfc_prop;

/* Hangul syllables are not listed: they are computed. */
typedef struct unicode_decomposition {
    uint32_t c;
    uint16_t at; // into unicode_decomposed; full, nothing in it decomposes further
    uint16_t n;
} unicode_decomposition;

typedef struct unicode_composition {
    uint32_t first, second, c;
} unicode_composition;

extern const uint8_t unicode_nfc_index[];
extern const uint8_t unicode_nfc_blocks[];
extern const unicode_nfc_prop unicode_nfc_props[];
extern const size_t unicode_n_decompositions;
extern const unicode_decomposition unicode_decompositions[]; // by c
extern const uint32_t unicode_decomposed[];
extern const size_t unicode_n_compositions;
extern const unicode_composition unicode_compositions[]; // by first, then second

static inline unicode_nfc_prop unicode_nfc(uint32_t c) {
    size_t block = unicode_nfc_index[c >> 7];
    return unicode_nfc_props[unicode_nfc_blocks[block << 7 | (c & 127)]];
}

#endif
