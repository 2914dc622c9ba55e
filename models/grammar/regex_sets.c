/* regex_sets.c - sets of code points: ranges, the classes of escapes, general categories. */
#include "regex_private.h"
#include "tokenizer/unicode.h"

void code_set_deinit(code_set *s) {
    free(s->ranges);
    *s = (code_set){0};
}

void code_set_add(code_set *s, uint32_t first, uint32_t last) {
    if (s->failed) return;
    code_range *p = dfa_grow(s->ranges, &s->capacity, (size_t)s->n + 1, sizeof *p);
    if (p == NULL) {
        s->failed = true;
        return;
    }
    s->ranges = p;
    s->ranges[s->n++] = (code_range){first, last};
}

static int compare_ranges(const void *a, const void *b) {
    const code_range *x = a, *y = b;
    return x->first < y->first ? -1 : x->first > y->first;
}

/* Sorted, and neighbours joined. */
static void join_ranges(code_set *s) {
    uint32_t n = 0;
    bool sorted = true;
    for (uint32_t i = 1; i < s->n && sorted; i++)
        sorted = s->ranges[i - 1].first <= s->ranges[i].first;
    if (!sorted) qsort(s->ranges, s->n, sizeof *s->ranges, compare_ranges);
    for (uint32_t i = 0; i < s->n; i++) {
        code_range r = s->ranges[i];
        if (n > 0 && r.first <= s->ranges[n - 1].last + 1)
            s->ranges[n - 1].last = u32_max(s->ranges[n - 1].last, r.last);
        else
            s->ranges[n++] = r;
    }
    s->n = n;
}

void code_set_normalize(code_set *s) {
    join_ranges(s);
    uint32_t n = s->n;
    for (uint32_t i = 0; i < n; i++) { // no text has surrogates
        code_range r = s->ranges[i];
        if (r.last < SURROGATE_FIRST || r.first > SURROGATE_LAST) continue;
        s->ranges[i].last = SURROGATE_FIRST - 1; // which leaves first > last when nothing is before
        if (r.last > SURROGATE_LAST) code_set_add(s, u32_max(r.first, SURROGATE_LAST + 1), r.last);
    }
    n = 0;
    for (uint32_t i = 0; i < s->n; i++)
        if (s->ranges[i].first <= s->ranges[i].last) s->ranges[n++] = s->ranges[i];
    s->n = n;
    if (n > 1) qsort(s->ranges, n, sizeof *s->ranges, compare_ranges);
}

void code_set_complement(code_set *s) {
    join_ranges(s);
    code_set out = {0};
    uint32_t next = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        if (s->ranges[i].first > next) code_set_add(&out, next, s->ranges[i].first - 1);
        next = s->ranges[i].last + 1;
    }
    if (next <= CODE_POINT_MAX) code_set_add(&out, next, CODE_POINT_MAX);
    out.failed |= s->failed;
    code_set_deinit(s);
    *s = out;
    code_set_normalize(s);
}

/* ---- classes ---- */

static void add_all(code_set *s, const code_range *ranges, size_t n) {
    for (size_t i = 0; i < n; i++) code_set_add(s, ranges[i].first, ranges[i].last);
}

#define BIT(category) (1u << (category))
#define LETTERS                                                                                    \
    (BIT(UNICODE_LU) | BIT(UNICODE_LL) | BIT(UNICODE_LT) | BIT(UNICODE_LM) | BIT(UNICODE_LO))
#define MARKS   (BIT(UNICODE_MN) | BIT(UNICODE_MC) | BIT(UNICODE_ME))
#define NUMBERS (BIT(UNICODE_ND) | BIT(UNICODE_NL) | BIT(UNICODE_NO))
#define PUNCTUATION                                                                                \
    (BIT(UNICODE_PC) | BIT(UNICODE_PD) | BIT(UNICODE_PS) | BIT(UNICODE_PE) | BIT(UNICODE_PI) |     \
     BIT(UNICODE_PF) | BIT(UNICODE_PO))
#define SYMBOLS    (BIT(UNICODE_SM) | BIT(UNICODE_SC) | BIT(UNICODE_SK) | BIT(UNICODE_SO))
#define SEPARATORS (BIT(UNICODE_ZS) | BIT(UNICODE_ZL) | BIT(UNICODE_ZP))
#define OTHERS                                                                                     \
    (BIT(UNICODE_CC) | BIT(UNICODE_CF) | BIT(UNICODE_CS) | BIT(UNICODE_CO) | BIT(UNICODE_CN))

void code_set_add_class(code_set *s, code_class kind, bool either) {
    static const code_range digits[] = {{'0', '9'}};
    static const code_range words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    static const code_range spaces[] = {
        {'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
        {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000},
    };
    static const code_range spaces_of_one[] = {{0x1C, 0x1F}, {0x85, 0x85}, {0xFEFF, 0xFEFF}};
    switch (kind) {
    case CLASS_DIGIT:
        add_all(s, digits, INFERD_COUNT(digits));
        if (either) code_set_add_categories(s, BIT(UNICODE_ND));
        break;
    case CLASS_WORD:
        add_all(s, words, INFERD_COUNT(words));
        if (either) code_set_add_categories(s, LETTERS | NUMBERS);
        break;
    case CLASS_SPACE:
        add_all(s, spaces, INFERD_COUNT(spaces));
        if (either) add_all(s, spaces_of_one, INFERD_COUNT(spaces_of_one));
        break;
    }
}

void code_set_add_dot(code_set *s, bool either) {
    static const code_range both[] = {
        {0, '\n' - 1}, {'\n' + 1, '\r' - 1}, {'\r' + 1, 0x2027}, {0x202A, CODE_POINT_MAX}};
    static const code_range one[] = {{0, '\n' - 1}, {'\n' + 1, CODE_POINT_MAX}};
    add_all(s, either ? one : both, either ? INFERD_COUNT(one) : INFERD_COUNT(both));
}

/* ---- general categories ---- */

void code_set_add_categories(code_set *s, uint32_t categories) {
    enum { BLOCK = 128, UNASSIGNED = 0x50000 }; // a block in which nothing is assigned
    bool any_unassigned = (categories & BIT(UNICODE_CN)) != 0;
    uint32_t first = DFA_DEAD; // of the range that is open
    for (uint32_t block = 0; block <= CODE_POINT_MAX; block += BLOCK) {
        if (block > 0 && unicode_kind_index[block >> 7] == unicode_kind_index[UNASSIGNED >> 7]) {
            if (any_unassigned == (first != DFA_DEAD)) continue; // all of it is as before
            if (first != DFA_DEAD) code_set_add(s, first, block - 1);
            first = first == DFA_DEAD ? block : DFA_DEAD;
            continue;
        }
        for (uint32_t c = block; c < block + BLOCK; c++) {
            bool in = (categories >> (unicode_kind(c) & UNICODE_CATEGORY) & 1) != 0;
            if (in == (first != DFA_DEAD)) continue;
            if (!in) code_set_add(s, first, c - 1);
            first = in ? c : DFA_DEAD;
        }
    }
    if (first != DFA_DEAD) code_set_add(s, first, CODE_POINT_MAX);
}

static const struct category_name {
    const char *brief, *full;
    uint32_t categories;
} category_names[] = {
    {"L", "Letter", LETTERS},
    {"LC", "Cased_Letter", BIT(UNICODE_LU) | BIT(UNICODE_LL) | BIT(UNICODE_LT)},
    {"Lu", "Uppercase_Letter", BIT(UNICODE_LU)},
    {"Ll", "Lowercase_Letter", BIT(UNICODE_LL)},
    {"Lt", "Titlecase_Letter", BIT(UNICODE_LT)},
    {"Lm", "Modifier_Letter", BIT(UNICODE_LM)},
    {"Lo", "Other_Letter", BIT(UNICODE_LO)},
    {"M", "Mark", MARKS},
    {"Mn", "Nonspacing_Mark", BIT(UNICODE_MN)},
    {"Mc", "Spacing_Mark", BIT(UNICODE_MC)},
    {"Me", "Enclosing_Mark", BIT(UNICODE_ME)},
    {"N", "Number", NUMBERS},
    {"Nd", "Decimal_Number", BIT(UNICODE_ND)},
    {"Nl", "Letter_Number", BIT(UNICODE_NL)},
    {"No", "Other_Number", BIT(UNICODE_NO)},
    {"P", "Punctuation", PUNCTUATION},
    {"Pc", "Connector_Punctuation", BIT(UNICODE_PC)},
    {"Pd", "Dash_Punctuation", BIT(UNICODE_PD)},
    {"Ps", "Open_Punctuation", BIT(UNICODE_PS)},
    {"Pe", "Close_Punctuation", BIT(UNICODE_PE)},
    {"Pi", "Initial_Punctuation", BIT(UNICODE_PI)},
    {"Pf", "Final_Punctuation", BIT(UNICODE_PF)},
    {"Po", "Other_Punctuation", BIT(UNICODE_PO)},
    {"S", "Symbol", SYMBOLS},
    {"Sm", "Math_Symbol", BIT(UNICODE_SM)},
    {"Sc", "Currency_Symbol", BIT(UNICODE_SC)},
    {"Sk", "Modifier_Symbol", BIT(UNICODE_SK)},
    {"So", "Other_Symbol", BIT(UNICODE_SO)},
    {"Z", "Separator", SEPARATORS},
    {"Zs", "Space_Separator", BIT(UNICODE_ZS)},
    {"Zl", "Line_Separator", BIT(UNICODE_ZL)},
    {"Zp", "Paragraph_Separator", BIT(UNICODE_ZP)},
    {"C", "Other", OTHERS},
    {"Cc", "Control", BIT(UNICODE_CC)},
    {"Cf", "Format", BIT(UNICODE_CF)},
    {"Co", "Private_Use", BIT(UNICODE_CO)},
    {"Cn", "Unassigned", BIT(UNICODE_CN)},
    {"Any", "Any", LETTERS | MARKS | NUMBERS | PUNCTUATION | SYMBOLS | SEPARATORS | OTHERS},
};

static bool is_text(bytes name, const char *text) {
    return name.n == strlen(text) && memcmp(name.p, text, name.n) == 0;
}

uint32_t code_categories(bytes name) {
    static const char *const prefixes[] = {"gc=", "General_Category="};
    for (size_t i = 0; i < INFERD_COUNT(prefixes); i++) {
        size_t n = strlen(prefixes[i]);
        if (name.n <= n || memcmp(name.p, prefixes[i], n) != 0) continue;
        name = (bytes){name.p + n, name.n - n};
        break;
    }
    for (size_t i = 0; i < INFERD_COUNT(category_names); i++)
        if (is_text(name, category_names[i].brief) || is_text(name, category_names[i].full))
            return category_names[i].categories;
    return 0;
}
