/* pretok_digits.c - searches for numbers, and splits that count from the end of a run.
 *
 * Groups of three digits from the right need the length of the whole run: a search that is called
 * for each group would count the run anew each time, so these steps are loops. */
#include "tokenizer/pretok_step.h"

static bool is_number_at(cursor p, unsigned *n) {
    return unicode_is_number(unicode_kind(utf8_decode(p, n)));
}

/* \d of the engines that the expressions were written for. */
static bool is_digit_at(cursor p, unsigned *n) {
    return (unicode_kind(utf8_decode(p, n)) & UNICODE_CATEGORY) == UNICODE_ND;
}

static cursor find_up_to(cursor p, cursor end, cursor *to, size_t n_max) {
    unsigned n;
    while (p < end && !is_number_at(p, &n)) p += n;
    if (p == end) return NULL;
    cursor at = p;
    for (size_t i = 0; i < n_max && at < end && is_number_at(at, &n); i++) at += n;
    *to = at;
    return p;
}

/* \p{N} */
cursor pretok_find_number(cursor p, cursor end, cursor *to) {
    return find_up_to(p, end, to, 1);
}
/* \p{N}{1,3} */
cursor pretok_find_three_numbers(cursor p, cursor end, cursor *to) {
    return find_up_to(p, end, to, 3);
}
/* \p{N}+ */
cursor pretok_find_numbers(cursor p, cursor end, cursor *to) {
    return find_up_to(p, end, to, SIZE_MAX);
}

/* [0-9][0-9][0-9] */
cursor pretok_find_three_ascii_digits(cursor p, cursor end, cursor *to) {
    unsigned n = 0;
    for (; p < end; p++) {
        n = *p >= '0' && *p <= '9' ? n + 1 : 0;
        if (n == 3) {
            *to = p + 1;
            return p - 2;
        }
    }
    return NULL;
}

/* Digits [p, end) in groups of three from the right. */
static bool run_groups(const pretok_step *next, cursor p, cursor end, size_t n_digits,
                       pretok_sink out) {
    while (p < end) {
        size_t n_group = n_digits % 3 == 0 ? 3 : n_digits % 3;
        cursor from = p;
        unsigned n;
        n_digits -= n_group;
        for (; n_group > 0; n_group--) {
            utf8_decode(p, &n);
            p += n;
        }
        if (!pretok_run(next, from, p, out)) return false;
    }
    return true;
}

static cursor skip_digits(cursor p, cursor end, size_t *n_digits) {
    unsigned n;
    *n_digits = 0;
    for (; p < end && is_digit_at(p, &n); p += n) ++*n_digits;
    return p;
}

/* A position between two characters is a border of words unless both are of \w: letters, marks,
 * \d, connectors, the other characters of the property Alphabetic, and the numbers of Latin-1,
 * which the engine has in a table of its own. */
static bool is_word_char_at(cursor p) {
    unsigned n;
    uint32_t c = utf8_decode(p, &n);
    unsigned category = unicode_kind(c) & UNICODE_CATEGORY;
    if (category <= UNICODE_ND || category == UNICODE_PC) return true;
    if (category == UNICODE_NO) return c < 0x100;
    return category == UNICODE_NL || (c >= 0x24B6 && c <= 0x24E9) ||
           (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
           (c >= 0x1F170 && c <= 0x1F189); // letters in circles and squares
}

/* \d{1,3}(?=(?:\d{3})*\b) : groups from the right, in runs that end at the end of a word. */
bool pretok_split_whole_numbers(const pretok_step *next, cursor p, cursor end, pretok_sink out) {
    cursor gap = p;
    while (p < end) {
        size_t n_digits;
        unsigned n;
        cursor to = skip_digits(p, end, &n_digits);
        if (n_digits == 0) {
            utf8_decode(p, &n);
            p += n;
            continue;
        }
        if (to == end || !is_word_char_at(to)) {
            if (!pretok_run(next, gap, p, out) || !run_groups(next, p, to, n_digits, out))
                return false;
            gap = to;
        }
        p = to;
    }
    return pretok_run(next, gap, end, out);
}

/* (?=(\d{3})+(?!\d)) : cuts before each group of three from the right. */
bool pretok_split_thousands(const pretok_step *next, cursor p, cursor end, pretok_sink out) {
    cursor from = p;
    while (p < end) {
        size_t n_digits;
        unsigned n;
        cursor to = skip_digits(p, end, &n_digits);
        for (; n_digits > 0; n_digits--, p += n) {
            utf8_decode(p, &n);
            if (n_digits % 3 != 0 || p == from) continue;
            if (!pretok_run(next, from, p, out)) return false;
            from = p;
        }
        if (to < end) {
            utf8_decode(to, &n);
            to += n;
        }
        p = to;
    }
    return pretok_run(next, from, end, out);
}

/* \s{512}(?!\S)|\s{256}(?!\S)|...|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1} : a word of llama 3 that is
 * spaces without line breaks, in powers of two.  Other words pass. */
bool pretok_split_space_runs(const pretok_step *next, cursor p, cursor end, pretok_sink out) {
    size_t n_spaces = 0;
    unsigned n;
    for (cursor at = p; at < end; at += n, n_spaces++)
        if (class_at(at, &n) != SPACE || is_newline(*at)) return pretok_run(next, p, end, out);
    for (size_t power = 512; n_spaces > 0;) {
        if (power > n_spaces) {
            power /= 2;
            continue;
        }
        cursor from = p;
        for (size_t i = 0; i < power; i++) {
            utf8_decode(p, &n);
            p += n;
        }
        n_spaces -= power;
        if (!pretok_run(next, from, p, out)) return false;
    }
    return true;
}
