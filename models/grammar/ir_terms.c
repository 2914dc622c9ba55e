/* ir_terms.c - terminals that every grammar has: white space and punctuation of JSON, strings. */
#include <string.h>

#include "ir_private.h"

/* Automata with states numbered by hand: start with none, then add ways byte by byte. */
static bool new_term(dfa *d, uint32_t n_states) {
    *d = (dfa){.n_classes = 256, .n_states = n_states};
    for (uint32_t b = 0; b < 256; b++) d->classes[b] = (uint8_t)b;
    d->next = malloc((size_t)n_states * 256 * sizeof *d->next);
    d->tags = calloc(n_states, sizeof *d->tags);
    if (d->next == NULL || d->tags == NULL) {
        dfa_deinit(d);
        return false;
    }
    memset(d->next, 0xff, (size_t)n_states * 256 * sizeof *d->next);
    return true;
}

static void way(dfa *d, uint32_t from, uint32_t low, uint32_t high, uint32_t to) {
    for (uint32_t b = low; b <= high; b++) d->next[from * 256 + b] = to;
}

static void white_way(dfa *d, uint32_t from, uint32_t to) {
    for (const char *c = " \t\n\r"; *c != 0; c++) d->next[from * 256 + (unsigned char)*c] = to;
}

/* Bytes with the same column share a class: columns are few, so comparing each with those found is
 * quick. */
static bool share_classes(dfa *d) {
    uint32_t reps[256], n = 0;
    uint8_t classes[256];
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t c = 0, s;
        for (; c < n; c++) {
            for (s = 0; s < d->n_states; s++)
                if (d->next[s * 256 + b] != d->next[s * 256 + reps[c]]) break;
            if (s == d->n_states) break;
        }
        if (c == n) reps[n++] = b;
        classes[b] = (uint8_t)c;
    }
    uint32_t *next = malloc((size_t)d->n_states * n * sizeof *next);
    if (next == NULL) return false;
    for (uint32_t s = 0; s < d->n_states; s++)
        for (uint32_t c = 0; c < n; c++) next[s * n + c] = d->next[s * 256 + reps[c]];
    free(d->next);
    d->next = next;
    d->n_classes = n;
    memcpy(d->classes, classes, sizeof classes);
    return true;
}

/* `text` with up to `white` bytes of white space at each `_`. */
static bool term_of_punctuation(dfa *d, const char *text, uint32_t white) {
    uint32_t n_states = 1;
    for (const char *c = text; *c != 0; c++) n_states += *c == '_' ? white : 1;
    if (!new_term(d, n_states)) return false;
    /* `first` to `at`: states from which the next byte may come, as white space is optional. */
    uint32_t first = 0, at = 0;
    for (const char *c = text; *c != 0; c++) {
        if (*c == '_') {
            for (uint32_t i = 0; i < white; i++, at++) white_way(d, at, at + 1);
            continue;
        }
        for (uint32_t s = first; s <= at; s++)
            way(d, s, (unsigned char)*c, (unsigned char)*c, at + 1);
        first = ++at;
    }
    for (uint32_t s = first; s <= at; s++) d->tags[s] = 1;
    return share_classes(d);
}

/* States inside a character of a JSON string: bytes of UTF-8 that are still missing, and escapes.
 * \uXXXX: U1 has read the u, U2 to U4 one to three digits; D2 a first digit d, H3 d8 to db; after a
 * high surrogate BACK, LOW_U, LOW_D, LOW_2 read the low one up to its second digit. */
enum {
    TAIL1,
    TAIL2,
    TAIL3,
    E0,
    ED,
    F0,
    F4,
    ESCAPE,
    U1,
    U2,
    U3,
    U4,
    D2,
    H3,
    H4,
    BACK,
    LOW_U,
    LOW_D,
    LOW_2,
    CHAR_STATES
};

static void hex_way(dfa *d, uint32_t from, uint32_t to) {
    for (const char *c = "0123456789abcdefABCDEF"; *c != 0; c++)
        d->next[from * 256 + (unsigned char)*c] = to;
}

/* The ways of one character from state `from` to `end`, through states from `m` on. */
static void char_ways(dfa *d, uint32_t from, uint32_t end, uint32_t m) {
    way(d, from, 0x20, 0x7f, end);
    d->next[from * 256 + '"'] = DFA_DEAD;
    way(d, from, '\\', '\\', m + ESCAPE);
    way(d, from, 0xc2, 0xdf, m + TAIL1);
    way(d, from, 0xe0, 0xe0, m + E0);
    way(d, from, 0xe1, 0xec, m + TAIL2);
    way(d, from, 0xed, 0xed, m + ED);
    way(d, from, 0xee, 0xef, m + TAIL2);
    way(d, from, 0xf0, 0xf0, m + F0);
    way(d, from, 0xf1, 0xf3, m + TAIL3);
    way(d, from, 0xf4, 0xf4, m + F4);
    way(d, m + TAIL1, 0x80, 0xbf, end);
    way(d, m + TAIL2, 0x80, 0xbf, m + TAIL1);
    way(d, m + TAIL3, 0x80, 0xbf, m + TAIL2);
    way(d, m + E0, 0xa0, 0xbf, m + TAIL1);
    way(d, m + ED, 0x80, 0x9f, m + TAIL1);
    way(d, m + F0, 0x90, 0xbf, m + TAIL2);
    way(d, m + F4, 0x80, 0x8f, m + TAIL2);
    for (const char *c = "\"\\/bfnrt"; *c != 0; c++)
        way(d, m + ESCAPE, (unsigned char)*c, (unsigned char)*c, end);
    way(d, m + ESCAPE, 'u', 'u', m + U1);
    hex_way(d, m + U1, m + U2);
    hex_way(d, m + U2, m + U3);
    hex_way(d, m + U3, m + U4);
    hex_way(d, m + U4, end);
    for (const char *c = "dD"; *c != 0; c++) {
        unsigned char b = (unsigned char)*c, eight = 'a' + b - 'd';
        way(d, m + U1, b, b, m + D2);
        way(d, m + D2, '8', '9', m + H3);
        way(d, m + D2, eight, eight + 1, m + H3);
        way(d, m + LOW_D, b, b, m + LOW_2);
        way(d, m + LOW_2, eight + 2, eight + 5, m + U3);
    }
    way(d, m + D2, '0', '7', m + U3);
    hex_way(d, m + H3, m + H4);
    hex_way(d, m + H4, m + BACK);
    way(d, m + BACK, '\\', '\\', m + LOW_U);
    way(d, m + LOW_U, 'u', 'u', m + LOW_D);
}

static bool term_of_char(dfa *d) {
    if (!new_term(d, 2 + CHAR_STATES)) return false;
    char_ways(d, 0, 1, 2);
    d->tags[1] = 1;
    return share_classes(d);
}

static bool term_of_string(dfa *d) {
    if (!new_term(d, 3 + CHAR_STATES)) return false;
    way(d, 0, '"', '"', 1);
    char_ways(d, 1, 1, 3);
    way(d, 1, '"', '"', 2);
    d->tags[2] = 1;
    return share_classes(d);
}

bool ir_add_fixed_terms(ir *g) {
    static const char *const punctuation[TERM_CHAR] = {
        [TERM_WHITE] = "_",        [TERM_OBJECT_OPEN] = "{", [TERM_KEY_FIRST] = "_\"",
        [TERM_KEY_NEXT] = "_,_\"", [TERM_COLON] = "_:_",     [TERM_OBJECT_CLOSE] = "_}",
        [TERM_ARRAY_OPEN] = "[_",  [TERM_COMMA] = "_,_",     [TERM_ARRAY_CLOSE] = "_]",
        [TERM_ARRAY_EMPTY] = "]",  [TERM_QUOTE] = "\""};
    /* As Python's json.dumps writes them. */
    static const char *const spaced[TERM_CHAR] = {
        [TERM_WHITE] = "",        [TERM_OBJECT_OPEN] = "{", [TERM_KEY_FIRST] = "\"",
        [TERM_KEY_NEXT] = ", \"", [TERM_COLON] = ": ",      [TERM_OBJECT_CLOSE] = "}",
        [TERM_ARRAY_OPEN] = "[",  [TERM_COMMA] = ", ",      [TERM_ARRAY_CLOSE] = "]",
        [TERM_ARRAY_EMPTY] = "]", [TERM_QUOTE] = "\""};
    bool fixed = g->limits.white_bytes_max == GRAMMAR_WHITE_SPACED;
    for (uint32_t i = 0; i < TERM_CHAR; i++)
        if (!term_of_punctuation(&g->terms[i], fixed ? spaced[i] : punctuation[i],
                                 fixed ? 0 : g->limits.white_bytes_max))
            return false;
    return term_of_char(&g->terms[TERM_CHAR]) && term_of_string(&g->terms[TERM_STRING]);
}
