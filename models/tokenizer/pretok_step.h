/* pretok_step.h - how a pre-tokenizer is described: steps, each applied to all pieces of the one
 * before it, to matches and to the gaps between them.  The pieces of the last step are the words.
 * Private to pretok.
 *
 * A step is one of three:
 *     word    a scanner with matches that cover the text: the end of the match that starts at `p`
 *     find    a search: the start of the next match in [p, end), and in *to its end; NULL: none
 *     split   a loop of its own, for steps that must remember something between two matches
 * In all of them p < end. */
#ifndef INFERD_TOKENIZER_PRETOK_STEP_H
#define INFERD_TOKENIZER_PRETOK_STEP_H

#include "tokenizer/pretok.h"
#include "tokenizer/unicode.h"
#include "tokenizer/utf8.h"

typedef const unsigned char *cursor;

/* A function that each family has a copy of, with the family's rules as constants. */
#define PER_FAMILY static inline __attribute__((always_inline))

typedef struct pretok_sink {
    pretok_word_fn word;
    void *ctx;
} pretok_sink;

typedef struct pretok_step pretok_step;
struct pretok_step {
    cursor (*word)(cursor p, cursor end);
    cursor (*find)(cursor p, cursor end, cursor *to);
    bool (*split)(const pretok_step *next, cursor p, cursor end, pretok_sink out);
}; // all NULL: behind the last step

/* The piece [p, end), which may be empty, through `step` and those behind it. */
bool pretok_run(const pretok_step *step, cursor p, cursor end, pretok_sink out);

/* The classes of the regular expressions: [^\s\p{L}\p{N}], \p{L}, \p{N}, \s. */
typedef enum text_class { OTHER, LETTER, NUMBER, SPACE } text_class;

extern const uint8_t pretok_class_of_kind[64];

static inline text_class class_at(cursor p, unsigned *n) {
    return pretok_class_of_kind[unicode_kind(utf8_decode(p, n))];
}

static inline cursor skip_class(cursor p, cursor end, text_class class) {
    unsigned n;
    while (p < end && class_at(p, &n) == class) p += n;
    return p;
}

static inline bool is_newline(unsigned char c) {
    return c == '\n' || c == '\r';
}

/* \s+(?!\S)|\s+ : a run of spaces leaves its last one to the word behind it. */
static inline cursor space_word(cursor p, cursor end) {
    cursor at = p, last = p;
    unsigned n;
    while (at < end && class_at(at, &n) == SPACE) {
        last = at;
        at += n;
    }
    return at == end || last == p ? at : last;
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ : up to the last line break of the run when it has one. */
static inline cursor space_or_lines_word(cursor p, cursor end) {
    cursor at = p, after_newline = NULL;
    unsigned n;
    while (at < end && class_at(at, &n) == SPACE) {
        if (is_newline(*at)) after_newline = at + 1;
        at += n;
    }
    return after_newline != NULL ? after_newline : space_word(p, end);
}

/* 's|'t|'re|'ve|'m|'ll|'d : bytes of the contraction at `p`, an apostrophe; 0: none. */
unsigned pretok_contraction(cursor p, cursor end);
unsigned pretok_contraction_any_case(cursor p, cursor end);

/* Scanners and searches: pretok_words.c, pretok_cased.c, pretok_runs.c, pretok_digits.c. */
cursor pretok_gpt2_word(cursor p, cursor end);
cursor pretok_llama3_word(cursor p, cursor end);
cursor pretok_qwen2_word(cursor p, cursor end);
cursor pretok_qwen35_word(cursor p, cursor end);
cursor pretok_seed_coder_word(cursor p, cursor end);
cursor pretok_plain_qwen2_word(cursor p, cursor end);
cursor pretok_any_digits_word(cursor p, cursor end);
cursor pretok_exaone_moe_word(cursor p, cursor end);
cursor pretok_deepseek_v3_word(cursor p, cursor end);
cursor pretok_spark_word(cursor p, cursor end);

cursor pretok_tekken_word(cursor p, cursor end);
cursor pretok_o200k_word(cursor p, cursor end);
cursor pretok_o200k_digit_word(cursor p, cursor end);
cursor pretok_kimi_word(cursor p, cursor end);

cursor pretok_find_newline(cursor p, cursor end, cursor *to);
cursor pretok_find_newlines(cursor p, cursor end, cursor *to);
cursor pretok_find_last_spaces(cursor p, cursor end, cursor *to);
cursor pretok_find_letters(cursor p, cursor end, cursor *to);
cursor pretok_find_punctuation(cursor p, cursor end, cursor *to);
cursor pretok_find_cased_letters(cursor p, cursor end, cursor *to);
cursor pretok_find_listed_punctuation(cursor p, cursor end, cursor *to);
cursor pretok_find_east_asian(cursor p, cursor end, cursor *to);
cursor pretok_find_han_or_kana(cursor p, cursor end, cursor *to);
cursor pretok_find_youtu_runs(cursor p, cursor end, cursor *to);
cursor pretok_find_falcon_signs(cursor p, cursor end, cursor *to);
cursor pretok_find_default_signs(cursor p, cursor end, cursor *to);
cursor pretok_find_bloom_words(cursor p, cursor end, cursor *to);

cursor pretok_find_number(cursor p, cursor end, cursor *to);
cursor pretok_find_numbers(cursor p, cursor end, cursor *to);
cursor pretok_find_three_numbers(cursor p, cursor end, cursor *to);
cursor pretok_find_three_ascii_digits(cursor p, cursor end, cursor *to);
bool pretok_split_thousands(const pretok_step *next, cursor p, cursor end, pretok_sink out);
bool pretok_split_whole_numbers(const pretok_step *next, cursor p, cursor end, pretok_sink out);
bool pretok_split_space_runs(const pretok_step *next, cursor p, cursor end, pretok_sink out);

#endif
