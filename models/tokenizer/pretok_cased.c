/* pretok_cased.c - the scanners that end words where capitals begin: tekken, o200k, Kimi K2. */
#include "tokenizer/pretok_step.h"

/* [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] is UPPER, [\p{Ll}\p{Lm}\p{Lo}\p{M}] is LOWER: letters without
 * case, and marks, are both. */
enum { UPPER = 1, LOWER = 2 };
static const uint8_t case_of_kind[64] = {
    [UNICODE_LU] = UPPER,         [UNICODE_LT] = UPPER,         [UNICODE_LL] = LOWER,
    [UNICODE_LM] = UPPER | LOWER, [UNICODE_LO] = UPPER | LOWER, [UNICODE_MN] = UPPER | LOWER,
    [UNICODE_MC] = UPPER | LOWER, [UNICODE_ME] = UPPER | LOWER,
};

typedef struct cased_rules {
    unsigned digits_max; // of \p{N}{1,digits_max}
    bool contractions;   // (?i:'s|'t|'re|'ve|'m|'ll|'d)? behind a word
    bool slashes;        // signs take [\r\n/]* behind them, else [\r\n]*
    bool han;            // \p{Han}+ comes first, and no word has one
} cased_rules;

/* The script Han, as in Unicode 16.0. */
static bool is_han(uint32_t c) {
    static const struct {
        uint32_t first, last;
    } ranges[] = {
        {0x2E80, 0x2E99},   {0x2E9B, 0x2EF3},   {0x2F00, 0x2FD5},   {0x3005, 0x3005},
        {0x3007, 0x3007},   {0x3021, 0x3029},   {0x3038, 0x303B},   {0x3400, 0x4DBF},
        {0x4E00, 0x9FFF},   {0xF900, 0xFA6D},   {0xFA70, 0xFAD9},   {0x16FE2, 0x16FE3},
        {0x16FF0, 0x16FF1}, {0x20000, 0x2A6DF}, {0x2A700, 0x2B739}, {0x2B740, 0x2B81D},
        {0x2B820, 0x2CEA1}, {0x2CEB0, 0x2EBE0}, {0x2EBF0, 0x2EE5D}, {0x2F800, 0x2FA1D},
        {0x30000, 0x3134A}, {0x31350, 0x323AF},
    };
    if (c < ranges[0].first) return false;
    size_t low = 0, high = INFERD_COUNT(ranges);
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (c > ranges[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    return low < INFERD_COUNT(ranges) && c >= ranges[low].first;
}

PER_FAMILY uint8_t case_at(const cased_rules *r, cursor p, unsigned *n) {
    uint32_t c = utf8_decode(p, n);
    return r->han && is_han(c) ? 0 : case_of_kind[unicode_kind(c)];
}

/* UPPER*LOWER+|UPPER+LOWER* : the end of the first that matches at `p`; NULL: neither (p may be
 * `end`).  If no lower one follows the upper ones, UPPER* backtracks to the last character that is
 * both.  *second: it was the second alternative. */
PER_FAMILY cursor cased_word(const cased_rules *r, cursor p, cursor end, bool *second) {
    cursor at = p, both_end = NULL;
    unsigned n = 0;
    uint8_t c = 0;
    for (; at < end && (c = case_at(r, at, &n)) & UPPER; at += n)
        if (c & LOWER) both_end = at + n;
    cursor upper_end = at;
    while (at < end && case_at(r, at, &n) & LOWER) at += n;
    *second = at == upper_end && both_end == NULL;
    if (at > upper_end) return at;
    if (both_end != NULL) return both_end;
    return upper_end > p ? upper_end : NULL;
}

PER_FAMILY cursor with_contraction(const cased_rules *r, cursor word, cursor end) {
    if (!r->contractions || word == end || *word != '\'') return word;
    return word + pretok_contraction_any_case(word, end);
}

/* [^\r\n\p{L}\p{N}]?UPPER*LOWER+|[^\r\n\p{L}\p{N}]?UPPER+LOWER* : NULL: neither. */
PER_FAMILY cursor led_word(const cased_rules *r, cursor p, cursor next, cursor end, unsigned kind) {
    bool second;
    if (pretok_class_of_kind[kind] == LETTER) return cased_word(r, p, end, &second);
    cursor word = is_newline(*p) ? NULL : cased_word(r, next, end, &second);
    if (word != NULL && !second) return word;
    if (case_of_kind[kind] != 0) return cased_word(r, p, end, &second); // a mark
    return word;
}

/* [\p{Han}]+|[^\r\n\p{L}\p{N}]?UPPER*LOWER+|[^\r\n\p{L}\p{N}]?UPPER+LOWER*|\p{N}{1,digits_max}|
 *  ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+ */
PER_FAMILY cursor rules_word(const cased_rules *r, cursor p, cursor end) {
    unsigned n, n_next;
    uint32_t c = utf8_decode(p, &n);
    unsigned kind = unicode_kind(c);
    text_class class = pretok_class_of_kind[kind];
    cursor next = p + n;
    if (r->han && is_han(c)) {
        while (next < end && is_han(utf8_decode(next, &n))) next += n;
        return next;
    }
    if (class == NUMBER) {
        for (unsigned i = 1; i < r->digits_max && next < end && class_at(next, &n) == NUMBER; i++)
            next += n;
        return next;
    }
    cursor word = led_word(r, p, next, end, kind);
    if (word != NULL) return with_contraction(r, word, end);
    if (class == OTHER || (*p == ' ' && next < end && class_at(next, &n_next) == OTHER)) {
        next = skip_class(next, end, OTHER);
        while (next < end && (is_newline(*next) || (r->slashes && *next == '/'))) next++;
        return next;
    }
    return space_or_lines_word(p, end);
}

cursor pretok_tekken_word(cursor p, cursor end) {
    static const cased_rules r = {1, false, true, false};
    return rules_word(&r, p, end);
}
cursor pretok_o200k_word(cursor p, cursor end) {
    static const cased_rules r = {3, true, true, false};
    return rules_word(&r, p, end);
}
cursor pretok_o200k_digit_word(cursor p, cursor end) {
    static const cased_rules r = {1, true, true, false};
    return rules_word(&r, p, end);
}
cursor pretok_kimi_word(cursor p, cursor end) {
    static const cased_rules r = {3, true, false, true};
    return rules_word(&r, p, end);
}
