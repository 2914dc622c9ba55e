/* pretok.c - the scanners of gpt-2, smollm, llama 3, qwen 2 and tekken; the dispatch.
 *
 * Each *_word function returns the end of the word that starts at `p`; p < end. */
#include "tokenizer/pretok.h"

#include "tokenizer/pretok_stages.h"
#include "tokenizer/unicode.h"
#include "tokenizer/utf8.h"

typedef const unsigned char *cursor;

/* The classes of the regular expressions: [^\s\p{L}\p{N}], \p{L}, \p{N}, \s. */
typedef enum text_class { OTHER, LETTER, NUMBER, SPACE } text_class;

static const uint8_t class_of_kind[64] = {
    [UNICODE_LU] = LETTER,
    [UNICODE_LL] = LETTER,
    [UNICODE_LT] = LETTER,
    [UNICODE_LM] = LETTER,
    [UNICODE_LO] = LETTER,
    [UNICODE_ND] = NUMBER,
    [UNICODE_NL] = NUMBER,
    [UNICODE_NO] = NUMBER,
    [UNICODE_ZS | UNICODE_WHITE_SPACE] = SPACE,
    [UNICODE_ZL | UNICODE_WHITE_SPACE] = SPACE,
    [UNICODE_ZP | UNICODE_WHITE_SPACE] = SPACE,
    [UNICODE_CC | UNICODE_WHITE_SPACE] = SPACE,
};

static inline text_class class_at(cursor p, unsigned *n) {
    return class_of_kind[unicode_kind(utf8_decode(p, n))];
}

static inline cursor skip(cursor p, cursor end, text_class class) {
    unsigned n;
    while (p < end && class_at(p, &n) == class) p += n;
    return p;
}

static inline bool is_newline(unsigned char c) {
    return c == '\n' || c == '\r';
}

/* \s+(?!\S)|\s+ : a run of spaces leaves its last one to the word behind it. */
static cursor space_word(cursor p, cursor end) {
    cursor at = p, last = p;
    unsigned n;
    while (at < end && class_at(at, &n) == SPACE) {
        last = at;
        at += n;
    }
    return at == end || last == p ? at : last;
}

/* 's|'t|'re|'ve|'m|'ll|'d : bytes of the contraction at `p`, an apostrophe; 0: none. */
static unsigned contraction(cursor p, cursor end) {
    if (end - p < 2) return 0;
    unsigned char a = p[1], b = end - p > 2 ? p[2] : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return 3;
    return 0;
}

/* The same in any case, where U+017F (long s) is an s too. */
static unsigned contraction_any_case(cursor p, cursor end) {
    if (end - p < 2) return 0;
    if (end - p > 2 && p[1] == 0xC5 && p[2] == 0xBF) return 3;
    unsigned char folded[3] = {'\'', p[1] | 0x20, end - p > 2 ? p[2] | 0x20 : 0};
    return contraction(folded, folded + (end - p > 2 ? 3 : 2));
}

/* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
static cursor gpt2_word(cursor p, cursor end) {
    unsigned n, n_next;
    if (*p == '\'') {
        n = contraction(p, end);
        if (n != 0) return p + n;
    }
    text_class class = class_at(p, &n);
    if (class != SPACE) return skip(p + n, end, class);
    if (*p == ' ' && p + 1 < end) {
        class = class_at(p + 1, &n_next);
        if (class != SPACE) return skip(p + 1 + n_next, end, class);
    }
    return space_word(p, end);
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ : up to the last line break of the run when it has one. */
static cursor space_or_lines_word(cursor p, cursor end) {
    cursor at = p, after_newline = NULL;
    unsigned n;
    while (at < end && class_at(at, &n) == SPACE) {
        if (is_newline(*at)) after_newline = at + 1;
        at += n;
    }
    return after_newline != NULL ? after_newline : space_word(p, end);
}

/* (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,digits_max}|
 *  ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+ */
static cursor llama3_word(cursor p, cursor end, unsigned digits_max) {
    unsigned n, n_next;
    if (*p == '\'') {
        n = contraction_any_case(p, end);
        if (n != 0) return p + n;
    }
    text_class class = class_at(p, &n);
    if (class == LETTER) return skip(p + n, end, LETTER);
    if (class == NUMBER) {
        cursor at = p + n;
        for (unsigned i = 1; i < digits_max && at < end && class_at(at, &n) == NUMBER; i++) at += n;
        return at;
    }
    cursor next = p + n;
    text_class next_class = SPACE;
    if (next < end) {
        next_class = class_at(next, &n_next);
        if (next_class == LETTER && !is_newline(*p)) return skip(next + n_next, end, LETTER);
    }
    if (class == OTHER || (*p == ' ' && next_class == OTHER)) {
        next = skip(next, end, OTHER);
        while (next < end && is_newline(*next)) next++;
        return next;
    }
    return space_or_lines_word(p, end);
}

/* [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] is UPPER, [\p{Ll}\p{Lm}\p{Lo}\p{M}] is LOWER: letters without
 * case, and marks, are both. */
enum { UPPER = 1, LOWER = 2 };
static const uint8_t case_of_kind[64] = {
    [UNICODE_LU] = UPPER,         [UNICODE_LT] = UPPER,         [UNICODE_LL] = LOWER,
    [UNICODE_LM] = UPPER | LOWER, [UNICODE_LO] = UPPER | LOWER, [UNICODE_MN] = UPPER | LOWER,
    [UNICODE_MC] = UPPER | LOWER, [UNICODE_ME] = UPPER | LOWER,
};

/* UPPER*LOWER+|UPPER+LOWER* : the end of the first that matches at `p`; NULL: neither (p may be
 * `end`).  If no lower one follows the upper ones, UPPER* backtracks to the last character that is
 * both.  *second: it was the second alternative. */
static cursor cased_word(cursor p, cursor end, bool *second) {
    cursor at = p, both_end = NULL;
    unsigned n = 0;
    uint8_t c = 0;
    for (; at < end && (c = case_of_kind[unicode_kind(utf8_decode(at, &n))]) & UPPER; at += n)
        if (c & LOWER) both_end = at + n;
    cursor upper_end = at;
    while (at < end && case_of_kind[unicode_kind(utf8_decode(at, &n))] & LOWER) at += n;
    *second = at == upper_end && both_end == NULL;
    if (at > upper_end) return at;
    if (both_end != NULL) return both_end;
    return upper_end > p ? upper_end : NULL;
}

/* [^\r\n\p{L}\p{N}]?UPPER*LOWER+|[^\r\n\p{L}\p{N}]?UPPER+LOWER*|\p{N}|
 *  ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+ */
static cursor tekken_word(cursor p, cursor end) {
    unsigned n, n_next;
    bool second;
    unsigned kind = unicode_kind(utf8_decode(p, &n));
    text_class class = class_of_kind[kind];
    if (class == LETTER) return cased_word(p, end, &second);
    if (class == NUMBER) return p + n;
    cursor next = p + n;
    cursor word = is_newline(*p) ? NULL : cased_word(next, end, &second);
    if (word != NULL && !second) return word;
    if (case_of_kind[kind] != 0) return cased_word(p, end, &second); // a mark
    if (word != NULL) return word;
    if (class == OTHER || (*p == ' ' && next < end && class_at(next, &n_next) == OTHER)) {
        next = skip(next, end, OTHER);
        while (next < end && (is_newline(*next) || *next == '/')) next++;
        return next;
    }
    return space_or_lines_word(p, end);
}

static bool split_gpt2(cursor p, cursor end, pretok_word_fn word, void *ctx) {
    while (p < end) {
        cursor next = gpt2_word(p, end);
        if (!word(ctx, p, (size_t)(next - p))) return false;
        p = next;
    }
    return true;
}

static bool split_smollm(cursor p, cursor end, pretok_word_fn word, void *ctx) {
    while (p < end) {
        cursor number = p;
        unsigned n = 0;
        while (number < end && class_at(number, &n) != NUMBER) number += n;
        if (!split_gpt2(p, number, word, ctx)) return false;
        if (number == end) return true;
        if (!word(ctx, number, n)) return false;
        p = number + n;
    }
    return true;
}

static bool split_llama3(cursor p, cursor end, unsigned digits_max, pretok_word_fn word,
                         void *ctx) {
    while (p < end) {
        cursor next = llama3_word(p, end, digits_max);
        if (!word(ctx, p, (size_t)(next - p))) return false;
        p = next;
    }
    return true;
}

static bool split_tekken(cursor p, cursor end, pretok_word_fn word, void *ctx) {
    while (p < end) {
        cursor next = tekken_word(p, end);
        if (!word(ctx, p, (size_t)(next - p))) return false;
        p = next;
    }
    return true;
}

bool pretok_split(pretok_kind kind, const unsigned char *p, size_t n, pretok_word_fn word,
                  void *ctx) {
    switch (kind) {
    case PRETOK_GPT2:
        return split_gpt2(p, p + n, word, ctx);
    case PRETOK_SMOLLM:
        return split_smollm(p, p + n, word, ctx);
    case PRETOK_LLAMA3:
        return split_llama3(p, p + n, 3, word, ctx);
    case PRETOK_QWEN2:
        return split_llama3(p, p + n, 1, word, ctx);
    case PRETOK_TEKKEN:
        return split_tekken(p, p + n, word, ctx);
    case PRETOK_DEEPSEEK_LLM:
        return pretok_split_deepseek_llm(p, n, word, ctx);
    case PRETOK_DEEPSEEK_CODER:
        return pretok_split_deepseek_coder(p, n, word, ctx);
    }
    INFERD_CHECK(!"a pretok_kind");
    return false;
}
