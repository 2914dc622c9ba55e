/* letters.h - properties of code points for templates: case, spaces, letters, printable in repr().
 *
 * The results are those of Python, because templates are written for it.  Case mapping is the
 * simple one plus the expansions of upper case ('ß' is "SS"); nothing depends on the neighbours of
 * a letter or on a language.
 *
 * Thread: any, no state. */
#ifndef INFERD_CHAT_LETTERS_H
#define INFERD_CHAT_LETTERS_H

#include "inferd/base.h"

/* Read one code point from valid UTF-8. `*n` is its length in bytes. */
uint32_t letter_read(const char *p, size_t *n);
/* Write one code point; returns its length, at most 4. */
size_t letter_write(uint32_t cp, char out[4]);
/* Length in bytes of the code point that begins with this byte of valid UTF-8. */
static inline size_t letter_bytes(char first) {
    unsigned char c = (unsigned char)first;
    return c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
}
static inline bool letter_starts(char c) {
    return ((unsigned char)c & 0xC0) != 0x80;
}
/* Offset of the first byte that is not UTF-8; n when all is well. */
size_t letters_invalid_at(const char *p, size_t n);

bool letter_is_space(uint32_t cp); // White_Space and U+001C..1F
bool letter_is_alnum(uint32_t cp);
bool letter_is_alpha(uint32_t cp);
bool letter_is_digit(uint32_t cp); // of a decimal system
bool letter_is_shown(uint32_t cp); // by repr(); others are escaped
bool letter_is_upper(uint32_t cp);
bool letter_is_lower(uint32_t cp);
bool letter_ends_line(uint32_t cp); // for splitlines(); the caller handles "\r\n"
uint32_t letter_lower(uint32_t cp);
/* Upper case as UTF-8, up to 12 bytes; returns the length. */
size_t letter_upper(uint32_t cp, char out[12]);
/* The same for the first letter of a word: 'ß' is "Ss". */
size_t letter_title(uint32_t cp, char out[12]);

/* The tables, see letters_table.c. */
typedef struct letter_range {
    uint32_t first, last;
} letter_range;
typedef struct letter_run { // first, first + step, .. last map to themselves + delta
    uint32_t first, last;
    int32_t step, delta;
} letter_run;
typedef struct letter_long {
    uint32_t cp;
    char upper[12];
} letter_long;
extern const letter_range letters_alnum[], letters_number[], letters_digit[], letters_hidden[];
extern const size_t letters_alnum_n, letters_number_n, letters_digit_n, letters_hidden_n;
extern const letter_run letters_upper[], letters_lower[];
extern const size_t letters_upper_n, letters_lower_n;
extern const letter_long letters_upper_long[];
extern const size_t letters_upper_long_n;

#endif
