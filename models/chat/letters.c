#include "chat/letters.h"

#include <string.h>

uint32_t letter_read(const char *p, size_t *n) {
    const unsigned char *u = (const unsigned char *)p;
    *n = letter_bytes(*p);
    switch (*n) {
    case 1:
        return u[0];
    case 2:
        return (u[0] & 0x1Fu) << 6 | (u[1] & 0x3Fu);
    case 3:
        return (u[0] & 0x0Fu) << 12 | (u[1] & 0x3Fu) << 6 | (u[2] & 0x3Fu);
    default:
        return (u[0] & 0x07u) << 18 | (u[1] & 0x3Fu) << 12 | (u[2] & 0x3Fu) << 6 | (u[3] & 0x3Fu);
    }
}

size_t letter_write(uint32_t cp, char out[4]) {
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xC0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xE0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (char)(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3F));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3F));
    out[3] = (char)(0x80 | (cp & 0x3F));
    return 4;
}

size_t letters_invalid_at(const char *p, size_t n) {
    const unsigned char *u = (const unsigned char *)p;
    size_t i = 0;
    while (i < n) {
        unsigned char c = u[i];
        if (c < 0x80) {
            i++;
            continue;
        }
        // The first continuation byte has a narrower range after E0, ED, F0 and F4.
        size_t more = c >= 0xC2 && c <= 0xDF   ? 1
                      : c >= 0xE0 && c <= 0xEF ? 2
                      : c >= 0xF0 && c <= 0xF4 ? 3
                                               : 0;
        if (more == 0 || n - i <= more) return i;
        unsigned char low = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80;
        unsigned char high = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
        if (u[i + 1] < low || u[i + 1] > high) return i;
        for (size_t k = 2; k <= more; k++)
            if ((u[i + k] & 0xC0) != 0x80) return i;
        i += more + 1;
    }
    return n;
}

static bool in_ranges(const letter_range *ranges, size_t n, uint32_t cp) {
    size_t low = 0, high = n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (cp > ranges[middle].last)
            low = middle + 1;
        else if (cp < ranges[middle].first)
            high = middle;
        else
            return true;
    }
    return false;
}

static uint32_t map_runs(const letter_run *runs, size_t n, uint32_t cp) {
    size_t low = 0, high = n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const letter_run *r = &runs[middle];
        if (cp > r->last)
            low = middle + 1;
        else if (cp < r->first)
            high = middle;
        else if ((cp - r->first) % (uint32_t)r->step != 0)
            return cp;
        else
            return (uint32_t)((int32_t)cp + r->delta);
    }
    return cp;
}

bool letter_is_space(uint32_t cp) {
    if (cp < 0x80) return (cp >= 9 && cp <= 13) || (cp >= 0x1C && cp <= 0x20);
    return cp == 0x85 || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) ||
           cp == 0x2028 || cp == 0x2029 || cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

bool letter_ends_line(uint32_t cp) {
    return (cp >= 10 && cp <= 13) || (cp >= 0x1C && cp <= 0x1E) || cp == 0x85 || cp == 0x2028 ||
           cp == 0x2029;
}

static bool is_ascii_letter(uint32_t cp) {
    return (cp | 0x20) >= 'a' && (cp | 0x20) <= 'z';
}

bool letter_is_digit(uint32_t cp) {
    if (cp < 0x80) return cp >= '0' && cp <= '9';
    return in_ranges(letters_digit, letters_digit_n, cp);
}

bool letter_is_alnum(uint32_t cp) {
    if (cp < 0x80) return is_ascii_letter(cp) || letter_is_digit(cp);
    return in_ranges(letters_alnum, letters_alnum_n, cp);
}

bool letter_is_alpha(uint32_t cp) {
    if (cp < 0x80) return is_ascii_letter(cp);
    return in_ranges(letters_alnum, letters_alnum_n, cp) &&
           !in_ranges(letters_number, letters_number_n, cp);
}

bool letter_is_shown(uint32_t cp) {
    if (cp < 0x80) return cp >= 0x20 && cp < 0x7F;
    return !in_ranges(letters_hidden, letters_hidden_n, cp);
}

uint32_t letter_lower(uint32_t cp) {
    if (cp < 0x80) return cp >= 'A' && cp <= 'Z' ? cp + 32 : cp;
    return map_runs(letters_lower, letters_lower_n, cp);
}

size_t letter_upper(uint32_t cp, char out[12]) {
    if (cp < 0x80) {
        out[0] = (char)(cp >= 'a' && cp <= 'z' ? cp - 32 : cp);
        return 1;
    }
    for (size_t i = 0; i < letters_upper_long_n; i++) {
        if (letters_upper_long[i].cp != cp) continue;
        size_t n = strlen(letters_upper_long[i].upper);
        memcpy(out, letters_upper_long[i].upper, n);
        return n;
    }
    return letter_write(map_runs(letters_upper, letters_upper_n, cp), out);
}

size_t letter_title(uint32_t cp, char out[12]) {
    char upper[12];
    size_t n, at, k, n_read;
    if (cp >= 0x1C4 && cp <= 0x1CC) return letter_write(0x1C5 + (cp - 0x1C4) / 3 * 3, out); // DZ
    if (cp >= 0x1F1 && cp <= 0x1F3) return letter_write(0x1F2, out);
    if (cp >= 0x10D0 && cp <= 0x10FF) return letter_write(cp, out); // Georgian has no title case
    bool pair = cp == 0xDF || cp == 0x587 || (cp >= 0xFB00 && cp <= 0xFB17);
    if (!pair) return letter_upper(cp, out);
    n = letter_upper(cp, upper);
    for (at = 0, k = 0; at < n; at += n_read) {
        uint32_t letter = letter_read(upper + at, &n_read);
        k += letter_write(at == 0 ? letter : letter_lower(letter), out + k);
    }
    return k;
}

bool letter_is_upper(uint32_t cp) {
    return letter_lower(cp) != cp;
}

bool letter_is_lower(uint32_t cp) {
    char upper[12];
    size_t n = letter_upper(cp, upper), n_read;
    if (letter_is_upper(cp)) return false; // a title case digraph
    return letter_read(upper, &n_read) != cp || n_read != n;
}
