/* pretok_runs.c - searches for runs of characters: the steps that split a text coarsely. */
#include <string.h>

#include "tokenizer/pretok_step.h"

typedef bool (*in_class_fn)(uint32_t c);

typedef struct char_range {
    uint32_t first, last;
} char_range;

/* The letters in deepseek-llm's list: those with an upper and a lower case, as of Unicode 11. */
static const char_range cased_letters[] = {
    {0x0041, 0x005A},   {0x0061, 0x007A},   {0x00B5, 0x00B5},   {0x00C0, 0x00D6},
    {0x00D8, 0x00F6},   {0x00F8, 0x01BA},   {0x01BC, 0x01BF},   {0x01C4, 0x0293},
    {0x0295, 0x02AF},   {0x0370, 0x0373},   {0x0376, 0x0376},   {0x0377, 0x0377},
    {0x037B, 0x037D},   {0x037F, 0x037F},   {0x0386, 0x0386},   {0x0388, 0x038A},
    {0x038C, 0x038C},   {0x038E, 0x03A1},   {0x03A3, 0x03F5},   {0x03F7, 0x0481},
    {0x048A, 0x052F},   {0x0531, 0x0556},   {0x10A0, 0x10C5},   {0x13A0, 0x13F5},
    {0x13F8, 0x13FD},   {0x1C90, 0x1CBA},   {0x1CBD, 0x1CBF},   {0x1D00, 0x1D2B},
    {0x1D6B, 0x1D77},   {0x1D79, 0x1D9A},   {0x1E00, 0x1F15},   {0x1F18, 0x1F1D},
    {0x1F20, 0x1F45},   {0x1F48, 0x1F4D},   {0x1F50, 0x1F57},   {0x1F59, 0x1F59},
    {0x1F5B, 0x1F5B},   {0x1F5D, 0x1F5D},   {0x1F5F, 0x1F7D},   {0x1F80, 0x1FB4},
    {0x1FB6, 0x1FBC},   {0x1FBE, 0x1FBE},   {0x1FC2, 0x1FC4},   {0x1FC6, 0x1FCC},
    {0x1FD0, 0x1FD3},   {0x1FD6, 0x1FDB},   {0x1FE0, 0x1FEC},   {0x1FF2, 0x1FF4},
    {0x1FF6, 0x1FFC},   {0x2102, 0x2102},   {0x2107, 0x2107},   {0x210A, 0x2113},
    {0x2115, 0x2115},   {0x2119, 0x211D},   {0x2124, 0x2124},   {0x2126, 0x2126},
    {0x2128, 0x2128},   {0x212A, 0x212D},   {0x212F, 0x2134},   {0x2139, 0x2139},
    {0x213C, 0x213F},   {0x2145, 0x2149},   {0x214E, 0x214E},   {0x2183, 0x2183},
    {0x2184, 0x2184},   {0x2C00, 0x2C7B},   {0x2C7E, 0x2CE4},   {0x2CEB, 0x2CEE},
    {0x2CF2, 0x2CF2},   {0x2CF3, 0x2CF3},   {0xA640, 0xA66D},   {0xA680, 0xA69B},
    {0xA722, 0xA76F},   {0xA771, 0xA787},   {0xA78B, 0xA78E},   {0xAB70, 0xABBF},
    {0xFB00, 0xFB06},   {0xFB13, 0xFB17},   {0xFF21, 0xFF3A},   {0xFF41, 0xFF5A},
    {0x10400, 0x1044F}, {0x104B0, 0x104D3}, {0x104D8, 0x104FB}, {0x10C80, 0x10CB2},
    {0x10CC0, 0x10CF2}, {0x118A0, 0x118DF}, {0x1E900, 0x1E943},
};

static bool is_in(const char_range *ranges, size_t n, uint32_t c) {
    size_t low = 0, high = n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (c > ranges[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    return low < n && c >= ranges[low].first;
}

static bool is_cased_letter(uint32_t c) {
    return is_in(cased_letters, INFERD_COUNT(cased_letters), c);
}

/* [!-/:-~ and their full-width forms, U+2018..201F, U+3000..3002]; ASCII letters between ':' and
 * '~' were taken by the stage before. */
static bool is_listed_punctuation(uint32_t c) {
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '~') || (c >= 0xFF01 && c <= 0xFF0F) ||
           (c >= 0xFF1A && c <= 0xFF5E) || (c >= 0x2018 && c <= 0x201F) ||
           (c >= 0x3000 && c <= 0x3002);
}

/* Han, Hangul syllables, and everything from U+0800 to Han, as in the published range. */
static bool is_east_asian(uint32_t c) {
    return (c >= 0x0800 && c <= 0x9FA5) || (c >= 0xAC00 && c <= 0xD7FF);
}

static bool is_letter(uint32_t c) {
    return unicode_is_letter(unicode_kind(c));
}
static bool is_punctuation(uint32_t c) {
    return unicode_is_punctuation(unicode_kind(c));
}
static bool is_space(uint32_t c) {
    return unicode_is_space(unicode_kind(c));
}

static cursor skip(cursor p, cursor end, in_class_fn in_class) {
    unsigned n;
    while (p < end && in_class(utf8_decode(p, &n))) p += n;
    return p;
}

/* [class]+ */
static cursor find_run(cursor p, cursor end, cursor *to, in_class_fn in_class) {
    unsigned n;
    while (p < end && !in_class(utf8_decode(p, &n))) p += n;
    if (p == end) return NULL;
    *to = skip(p, end, in_class);
    return p;
}

/* \s?[class]+ */
static cursor find_run_after_space(cursor p, cursor end, cursor *to, in_class_fn in_class) {
    cursor space = NULL; // the character before `p` when it is a space
    unsigned n;
    for (; p < end; p += n) {
        uint32_t c = utf8_decode(p, &n);
        if (in_class(c)) {
            *to = skip(p, end, in_class);
            return space != NULL ? space : p;
        }
        space = is_space(c) ? p : NULL;
    }
    return NULL;
}

/* [\r\n] */
cursor pretok_find_newline(cursor p, cursor end, cursor *to) {
    while (p < end && *p != '\r' && *p != '\n') p++;
    *to = p + 1;
    return p < end ? p : NULL;
}

/* \s+$ */
cursor pretok_find_last_spaces(cursor p, cursor end, cursor *to) {
    cursor from = end;
    while (from > p) {
        unsigned n;
        cursor before = utf8_back(from, p);
        if (!is_space(utf8_decode(before, &n))) break;
        from = before;
    }
    *to = end;
    return from < end ? from : NULL;
}
cursor pretok_find_cased_letters(cursor p, cursor end, cursor *to) {
    return find_run_after_space(p, end, to, is_cased_letter);
}
cursor pretok_find_listed_punctuation(cursor p, cursor end, cursor *to) {
    return find_run_after_space(p, end, to, is_listed_punctuation);
}
cursor pretok_find_letters(cursor p, cursor end, cursor *to) {
    return find_run_after_space(p, end, to, is_letter);
}
cursor pretok_find_punctuation(cursor p, cursor end, cursor *to) {
    return find_run_after_space(p, end, to, is_punctuation);
}
cursor pretok_find_east_asian(cursor p, cursor end, cursor *to) {
    return find_run(p, end, to, is_east_asian);
}

/* \n+ */
static bool is_line_feed(uint32_t c) {
    return c == '\n';
}
cursor pretok_find_newlines(cursor p, cursor end, cursor *to) {
    return find_run(p, end, to, is_line_feed);
}

/* [U+4E00-U+9FA5, Hiragana, Katakana]+ */
static bool is_han_or_kana(uint32_t c) {
    return (c >= 0x4E00 && c <= 0x9FA5) || (c >= 0x3040 && c <= 0x30FF);
}
cursor pretok_find_han_or_kana(cursor p, cursor end, cursor *to) {
    return find_run(p, end, to, is_han_or_kana);
}

/* [\p{P}$+<=>^~|`]+ of falcon; the default of llama.cpp forgets the last. */
static bool is_default_sign(uint32_t c) {
    return is_punctuation(c) || (c < 0x80 && c != 0 && c != '`' && strchr("$+<=>^~|", (int)c));
}
/* The step before the expression knows the punctuation of Unicode 8: not these, of later versions.
 */
static const char_range new_punctuation[] = {
    {0x061D, 0x061D},   {0x09FD, 0x09FD},   {0x0A76, 0x0A76},   {0x0C77, 0x0C77},
    {0x0C84, 0x0C84},   {0x1B4E, 0x1B4F},   {0x1B7D, 0x1B7F},   {0x2E43, 0x2E4F},
    {0x2E52, 0x2E5D},   {0x10D6E, 0x10D6E}, {0x10EAD, 0x10EAD}, {0x10F55, 0x10F59},
    {0x10F86, 0x10F89}, {0x113D4, 0x113D5}, {0x113D7, 0x113D8}, {0x1144B, 0x1144F},
    {0x1145A, 0x1145B}, {0x1145D, 0x1145D}, {0x11660, 0x1166C}, {0x116B9, 0x116B9},
    {0x1183B, 0x1183B}, {0x11944, 0x11946}, {0x119E2, 0x119E2}, {0x11A3F, 0x11A46},
    {0x11A9A, 0x11A9C}, {0x11A9E, 0x11AA2}, {0x11B00, 0x11B09}, {0x11BE1, 0x11BE1},
    {0x11C41, 0x11C45}, {0x11C70, 0x11C71}, {0x11EF7, 0x11EF8}, {0x11F43, 0x11F4F},
    {0x11FFF, 0x11FFF}, {0x12FF1, 0x12FF2}, {0x16D6D, 0x16D6F}, {0x16E97, 0x16E9A},
    {0x16FE2, 0x16FE2}, {0x1E5FF, 0x1E5FF}, {0x1E95E, 0x1E95F},
};
static bool is_falcon_sign(uint32_t c) {
    if (c < 0x80) return c == '`' || is_default_sign(c);
    if (c == 0x166D || c == 0x111C9) return true; // punctuation then
    return is_punctuation(c) && !is_in(new_punctuation, INFERD_COUNT(new_punctuation), c);
}
cursor pretok_find_falcon_signs(cursor p, cursor end, cursor *to) {
    return find_run(p, end, to, is_falcon_sign);
}
cursor pretok_find_default_signs(cursor p, cursor end, cursor *to) {
    return find_run(p, end, to, is_default_sign);
}

/* [^(\s|.,!?...)]+ with the commas and full stops of some scripts. */
static bool is_bloom_word(uint32_t c) {
    static const uint16_t others[] = {'(',    ')',    '|',    '.',    ',',    '!',    '?',
                                      0x2026, 0x3002, 0xFF0C, 0x3001, 0x0964, 0x06D4, 0x060C};
    for (size_t i = 0; i < INFERD_COUNT(others); i++)
        if (c == others[i]) return false;
    return !is_space(c);
}
/*  ?[...]+ : only U+0020 joins a word. */
cursor pretok_find_bloom_words(cursor p, cursor end, cursor *to) {
    cursor from = find_run(p, end, to, is_bloom_word);
    return from != NULL && from > p && from[-1] == ' ' ? from - 1 : from;
}

/* The four kinds of runs that Youtu takes out first; 0: none of them. */
static unsigned youtu_run_of(uint32_t c) {
    if (c < 0x2014) return 0;
    if ((c >= 0xAC00 && c <= 0xD7A3) || (c >= 0x3131 && c <= 0x318E)) return 1; // Hangul
    if (c == 0x2014 || c == 0x2018 || c == 0x2019 || c == 0x201C || c == 0x201D || c == 0x2026 ||
        (c >= 0x3001 && c <= 0x303F) || (c >= 0xFE30 && c <= 0xFE4F) || c == 0xFF01 ||
        c == 0xFF0C || c == 0xFF1A || c == 0xFF1B)
        return 2;                             // punctuation
    if (c >= 0x3105 && c <= 0x312F) return 3; // Bopomofo
    return is_han_or_kana(c) ? 4 : 0;
}
cursor pretok_find_youtu_runs(cursor p, cursor end, cursor *to) {
    unsigned run = 0, n;
    for (; p < end; p += n)
        if ((run = youtu_run_of(utf8_decode(p, &n))) != 0) break;
    if (p == end) return NULL;
    cursor at = p;
    while (at < end && youtu_run_of(utf8_decode(at, &n)) == run) at += n;
    *to = at;
    return p;
}
