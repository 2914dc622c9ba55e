/* pretok_words.c - the scanners of gpt-2, of llama 3 and its relatives, and of DeepSeek V3.
 *
 * Each *_word function returns the end of the word that starts at `p`; p < end.  The relatives of
 * llama 3 differ in a few places, which `dialect` names; it is a constant in each of them, so that
 * the compiler makes a scanner without questions of each. */
#include <limits.h>

#include "tokenizer/pretok_step.h"

const uint8_t pretok_class_of_kind[64] = {
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

/* The same with marks among the letters. */
static const uint8_t class_with_marks[64] = {
    [UNICODE_LU] = LETTER,
    [UNICODE_LL] = LETTER,
    [UNICODE_LT] = LETTER,
    [UNICODE_LM] = LETTER,
    [UNICODE_LO] = LETTER,
    [UNICODE_MN] = LETTER,
    [UNICODE_MC] = LETTER,
    [UNICODE_ME] = LETTER,
    [UNICODE_ND] = NUMBER,
    [UNICODE_NL] = NUMBER,
    [UNICODE_NO] = NUMBER,
    [UNICODE_ZS | UNICODE_WHITE_SPACE] = SPACE,
    [UNICODE_ZL | UNICODE_WHITE_SPACE] = SPACE,
    [UNICODE_ZP | UNICODE_WHITE_SPACE] = SPACE,
    [UNICODE_CC | UNICODE_WHITE_SPACE] = SPACE,
};

unsigned pretok_contraction(cursor p, cursor end) {
    if (end - p < 2) return 0;
    unsigned char a = p[1], b = end - p > 2 ? p[2] : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return 3;
    return 0;
}

/* The same in any case, where U+017F (long s) is an s too. */
unsigned pretok_contraction_any_case(cursor p, cursor end) {
    if (end - p < 2) return 0;
    if (end - p > 2 && p[1] == 0xC5 && p[2] == 0xBF) return 3;
    unsigned char folded[3] = {'\'', p[1] | 0x20, end - p > 2 ? p[2] | 0x20 : 0};
    return pretok_contraction(folded, folded + (end - p > 2 ? 3 : 2));
}

/* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
cursor pretok_gpt2_word(cursor p, cursor end) {
    unsigned n, n_next;
    if (*p == '\'') {
        n = pretok_contraction(p, end);
        if (n != 0) return p + n;
    }
    text_class class = class_at(p, &n);
    if (class != SPACE) return skip_class(p + n, end, class);
    if (*p == ' ' && p + 1 < end) {
        class = class_at(p + 1, &n_next);
        if (class != SPACE) return skip_class(p + 1 + n_next, end, class);
    }
    return space_word(p, end);
}

/* ---- llama 3 and its relatives ---- */

typedef struct dialect {
    const uint8_t *class_of_kind;
    unsigned digits_max; // of \p{N}{1,digits_max}
    bool contractions;   // (?i:'s|'t|'re|'ve|'m|'ll|'d) comes first
    bool sign_lines;     // signs take the line breaks behind them
} dialect;

PER_FAMILY text_class dialect_class_at(const dialect *d, cursor p, unsigned *n) {
    return d->class_of_kind[unicode_kind(utf8_decode(p, n))];
}

PER_FAMILY cursor skip_dialect(const dialect *d, cursor p, cursor end, text_class class) {
    unsigned n;
    while (p < end && dialect_class_at(d, p, &n) == class) p += n;
    return p;
}

/* (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,digits_max}|
 *  ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+ */
PER_FAMILY cursor dialect_word(const dialect *d, cursor p, cursor end) {
    unsigned n, n_next;
    if (d->contractions && *p == '\'') {
        n = pretok_contraction_any_case(p, end);
        if (n != 0) return p + n;
    }
    text_class class = dialect_class_at(d, p, &n);
    if (class == LETTER) return skip_dialect(d, p + n, end, LETTER);
    if (class == NUMBER) {
        cursor at = p + n;
        for (unsigned i = 1; i < d->digits_max && at < end && class_at(at, &n) == NUMBER; i++)
            at += n;
        return at;
    }
    cursor next = p + n;
    text_class next_class = SPACE;
    if (next < end) {
        next_class = dialect_class_at(d, next, &n_next);
        if (next_class == LETTER && !is_newline(*p))
            return skip_dialect(d, next + n_next, end, LETTER);
    }
    if (class == OTHER || (*p == ' ' && next_class == OTHER)) {
        next = skip_dialect(d, next, end, OTHER);
        while (d->sign_lines && next < end && is_newline(*next)) next++;
        return next;
    }
    return space_or_lines_word(p, end);
}

cursor pretok_llama3_word(cursor p, cursor end) {
    static const dialect d = {pretok_class_of_kind, 3, true, true};
    return dialect_word(&d, p, end);
}
cursor pretok_qwen2_word(cursor p, cursor end) {
    static const dialect d = {pretok_class_of_kind, 1, true, true};
    return dialect_word(&d, p, end);
}
/* Marks belong to words, and to nothing else. */
cursor pretok_qwen35_word(cursor p, cursor end) {
    static const dialect d = {class_with_marks, 1, true, true};
    return dialect_word(&d, p, end);
}
/* Signs are [^\s\p{L}\p{N}\r\n]+ without line breaks. */
cursor pretok_seed_coder_word(cursor p, cursor end) {
    static const dialect d = {pretok_class_of_kind, 1, true, false};
    return dialect_word(&d, p, end);
}
/* An apostrophe begins a word like any sign. */
cursor pretok_plain_qwen2_word(cursor p, cursor end) {
    static const dialect d = {pretok_class_of_kind, 1, false, true};
    return dialect_word(&d, p, end);
}
/* \p{N}+ */
cursor pretok_any_digits_word(cursor p, cursor end) {
    static const dialect d = {pretok_class_of_kind, UINT_MAX, true, true};
    return dialect_word(&d, p, end);
}

/* ---- K-EXAONE: words with single spaces between them ---- */

/* \p{L}\p{M}*(?: \p{L}\p{M}*)* and more of that: behind the first letter. */
static cursor skip_phrase(cursor p, cursor end) {
    unsigned n;
    while (p < end) {
        if (class_with_marks[unicode_kind(utf8_decode(p, &n))] != LETTER) {
            if (*p != ' ' || p + 1 == end || class_at(p + 1, &n) != LETTER) break;
            n++;
        }
        p += n;
    }
    return p;
}

/* (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}|
 *  ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+ */
cursor pretok_exaone_moe_word(cursor p, cursor end) {
    unsigned n, n_next;
    if (*p == '\'') {
        n = pretok_contraction_any_case(p, end);
        if (n != 0) return p + n;
    }
    text_class class = class_at(p, &n), next_class = SPACE;
    if (class == LETTER) return skip_phrase(p + n, end);
    if (class == NUMBER) return p + n;
    cursor next = p + n;
    if (next < end) {
        next_class = class_at(next, &n_next);
        if (next_class == LETTER && !is_newline(*p)) return skip_phrase(next + n_next, end);
    }
    if (class == OTHER || (*p == ' ' && next_class == OTHER)) {
        next = skip_class(next, end, OTHER);
        return next < end && (is_newline(*next) || *next == '/') ? next + 1 : next;
    }
    return space_or_lines_word(p, end);
}

/* ---- DeepSeek V3 ---- */

/* WORD is [\p{L}\p{M}], SIGN is [\p{P}\p{S}]. */
enum { NONE, WORD, SIGN, BLANK };
static const uint8_t v3_class_of_kind[64] = {
    [UNICODE_LU] = WORD,
    [UNICODE_LL] = WORD,
    [UNICODE_LT] = WORD,
    [UNICODE_LM] = WORD,
    [UNICODE_LO] = WORD,
    [UNICODE_MN] = WORD,
    [UNICODE_MC] = WORD,
    [UNICODE_ME] = WORD,
    [UNICODE_PC] = SIGN,
    [UNICODE_PD] = SIGN,
    [UNICODE_PS] = SIGN,
    [UNICODE_PE] = SIGN,
    [UNICODE_PI] = SIGN,
    [UNICODE_PF] = SIGN,
    [UNICODE_PO] = SIGN,
    [UNICODE_SM] = SIGN,
    [UNICODE_SC] = SIGN,
    [UNICODE_SK] = SIGN,
    [UNICODE_SO] = SIGN,
    [UNICODE_ZS | UNICODE_WHITE_SPACE] = BLANK,
    [UNICODE_ZL | UNICODE_WHITE_SPACE] = BLANK,
    [UNICODE_ZP | UNICODE_WHITE_SPACE] = BLANK,
    [UNICODE_CC | UNICODE_WHITE_SPACE] = BLANK,
};

static inline unsigned v3_class_at(cursor p, unsigned *n) {
    return v3_class_of_kind[unicode_kind(utf8_decode(p, n))];
}

static cursor skip_v3(cursor p, cursor end, unsigned class) {
    unsigned n;
    while (p < end && v3_class_at(p, &n) == class) p += n;
    return p;
}

static inline bool is_ascii_letter(unsigned char c) {
    return (unsigned char)((c | 0x20) - 'a') < 26;
}

/* Characters that no alternative begins with: up to one that an alternative does, or that leads a
 * word. */
static cursor skip_unmatched(cursor p, cursor end) {
    unsigned n;
    for (cursor next; p < end && v3_class_at(p, &n) == NONE; p = next) {
        next = p + n;
        if (next < end && v3_class_at(next, &n) == WORD) break;
    }
    return p;
}

/* The alternatives before those of spaces; NULL: none matches.
 *     [!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+ */
static cursor v3_word(cursor p, cursor end, bool *signs) {
    unsigned n, n_next, class = v3_class_at(p, &n), next_class = BLANK;
    cursor next = p + n;
    *signs = false;
    if (class == WORD) return skip_v3(next, end, WORD);
    if (next < end) next_class = v3_class_at(next, &n_next);
    if (class == SIGN) {
        if (*p < 0x80 && next < end && is_ascii_letter(*next)) {
            while (next < end && is_ascii_letter(*next)) next++;
            return next;
        }
    } else if (next_class == WORD && !is_newline(*p)) {
        return skip_v3(next + n_next, end, WORD);
    }
    *signs = class == SIGN || (*p == ' ' && next_class == SIGN);
    if (*signs) return skip_v3(next, end, SIGN);
    return class == NONE ? skip_unmatched(next, end) : NULL;
}

/* ... with [\r\n]* behind the signs, |\s*[\r\n]+|\s+(?!\S)|\s+.  Numbers are words before. */
cursor pretok_deepseek_v3_word(cursor p, cursor end) {
    bool signs;
    cursor to = v3_word(p, end, &signs);
    if (to == NULL) return space_or_lines_word(p, end);
    while (signs && to < end && is_newline(*to)) to++;
    return to;
}

/* ... without, |[\r\n]|\s+(?!\S)|\s+ */
cursor pretok_spark_word(cursor p, cursor end) {
    bool signs;
    cursor to = v3_word(p, end, &signs);
    if (to != NULL) return to;
    return is_newline(*p) ? p + 1 : space_word(p, end);
}
