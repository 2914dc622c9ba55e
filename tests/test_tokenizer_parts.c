/* test_tokenizer_parts.c - the parts of the tokenizer alone: words, composition, merging. */
#include "inferd/buf.h"
#include "test.h"
#include "tokenizer/merge.h"
#include "tokenizer/nfc.h"
#include "tokenizer/pretok.h"
#include "tokenizer/specials.h"
#include "tokenizer/unicode.h"
#include "tokenizer/utf8.h"

static const unsigned char *raw(const char *p) {
    return (const unsigned char *)p;
}

/* ---- words ---- */

static bool join_word(void *ctx, const unsigned char *word, size_t n) {
    buf *out = ctx;
    if (out->n > 0) buf_add_char(out, '|');
    buf_add(out, word, n);
    return true;
}

static void expect_words(pretok_kind kind, const char *text, const char *words) {
    buf out = {0};
    EXPECT(pretok_split(kind, raw(text), strlen(text), join_word, &out));
    EXPECT_STR(buf_cstr(&out), words);
    buf_deinit(&out);
}

static void gpt2_words(void) {
    expect_words(PRETOK_GPT2, "", "");
    expect_words(PRETOK_GPT2, "Hello world's end", "Hello| world|'s| end");
    expect_words(PRETOK_GPT2, "we'll WE'LL 'tis", "we|'ll| WE|'|LL| '|tis"); // exact case only
    expect_words(PRETOK_GPT2, "x=12 34!", "x|=|12| 34|!");
    expect_words(PRETOK_GPT2, "a   b", "a|  | b"); // a run leaves its last space to the word
    expect_words(PRETOK_GPT2, "a \n\tb  ", "a| \n|\t|b|  ");
    expect_words(PRETOK_GPT2, "naïve Ελλάδα 中文字", "naïve| Ελλάδα| 中文字");
    expect_words(PRETOK_GPT2, "a\u3000b", "a|\u3000|b"); // only U+0020 joins a word
    expect_words(PRETOK_GPT2, "½②Ⅷ ٣", "½②Ⅷ| ٣");
    expect_words(PRETOK_GPT2, "e\u0301t", "e|\u0301|t"); // a mark is no letter
    expect_words(PRETOK_GPT2,
                 "a\x1C"
                 "b",
                 "a|\x1C|b"); // nor is U+001C a space ...
    expect_words(PRETOK_GPT2,
                 "a\xC2\x85"
                 "b",
                 "a|\xC2\x85|b"); // ... but U+0085 is
}

static void smollm_takes_every_number_alone(void) {
    expect_words(PRETOK_SMOLLM, "x12 345", "x|1|2| |3|4|5");
    expect_words(PRETOK_SMOLLM, "a  1  b", "a|  |1| | b"); // what ends before a number ends a text
    expect_words(PRETOK_SMOLLM, "7", "7");
    expect_words(PRETOK_SMOLLM, "½٣ it's", "½|٣| it|'s");
}

static void llama3_words(void) {
    expect_words(PRETOK_LLAMA3, "Hello WE'LL 'Tis", "Hello| WE|'LL| '|Tis");
    expect_words(PRETOK_LLAMA3, "it'\u017F it'Re", "it|'\u017F| it|'Re"); // long s
    expect_words(PRETOK_LLAMA3, "12345 67", "123|45| |67");
    expect_words(PRETOK_LLAMA3, "(foo) _bar\tbaz", "(foo|)| _|bar|\tbaz");
    expect_words(PRETOK_LLAMA3, "end.\r\n\nnext", "end|.\r\n\n|next");
    expect_words(PRETOK_LLAMA3, "a \n \n  b", "a| \n \n| | b"); // up to the last line break
    expect_words(PRETOK_LLAMA3, "a\n\nb", "a|\n\n|b");
    expect_words(PRETOK_LLAMA3, "a   ", "a|   ");
    expect_words(PRETOK_LLAMA3, " \u3000x", " |\u3000x"); // any character but these leads letters
    expect_words(PRETOK_LLAMA3, "'", "'");
}

static void qwen2_is_llama3_with_numbers_alone(void) {
    expect_words(PRETOK_QWEN2, "v12 345!", "v|1|2| |3|4|5|!");
    expect_words(PRETOK_QWEN2, "don'T stop", "don|'T| stop");
}

static void tekken_words(void) {
    expect_words(PRETOK_TEKKEN, "HelloWorld HTTPServer iPhone", "Hello|World| HTTPServer| i|Phone");
    expect_words(PRETOK_TEKKEN, "WE'LL don't 'tis", "WE|'LL| don|'t| '|tis");
    expect_words(PRETOK_TEKKEN, "v12 345!", "v|1|2| |3|4|5|!");
    expect_words(PRETOK_TEKKEN, "a/b //\r\n/ x", "a|/b| //\r\n/| x"); // a slash behind a sign
    expect_words(PRETOK_TEKKEN, "中AB中Cd", "中AB中Cd"); // letters without case are both
    expect_words(PRETOK_TEKKEN, "中AB C", "中|AB| C");   // and are given back to
    expect_words(PRETOK_TEKKEN, "e\u0301T \u0301AB", "e\u0301|T| \u0301|AB"); // so are marks
    expect_words(PRETOK_TEKKEN, "ʰpaʰ ǅu", "ʰpaʰ| ǅu");
    expect_words(PRETOK_TEKKEN, "a \n \n  b\t", "a| \n \n| | b|\t");
    expect_words(PRETOK_TEKKEN, "\u0301!", "\u0301|!");
}

static void deepseek_words(void) {
    expect_words(PRETOK_DEEPSEEK_LLM, "Hello, World\n\n12", "Hello|,| World|\n|\n|1|2");
    expect_words(PRETOK_DEEPSEEK_LLM, "a  b  ", "a| | b|  ");
    expect_words(PRETOK_DEEPSEEK_LLM, "x中文。y", "x|中文|。|y");
    expect_words(PRETOK_DEEPSEEK_LLM, "\u3000\u3000。", "\u3000\u3000。"); // a space that is listed
    expect_words(PRETOK_DEEPSEEK_LLM, "aʔb", "a|ʔ|b"); // a letter without case is not listed
    expect_words(PRETOK_DEEPSEEK_LLM, "aḀb", "a|Ḁ|b"); // a letter, then in the East Asian range
    expect_words(PRETOK_DEEPSEEK_CODER, "if (x) {\n y+1", "if| (|x|)| {|\n| y|+|1");
    expect_words(PRETOK_DEEPSEEK_CODER, "aʔb 한글", "aʔb| |한글");
}

static void relatives_of_llama3_differ_in_one_place(void) {
    expect_words(PRETOK_QWEN35, "e\u0301t !\u0301",
                 "e\u0301t| !|\u0301"); // a mark is no sign
    expect_words(PRETOK_QWEN35, "\u0301 \u0301a", "\u0301| \u0301a");
    expect_words(PRETOK_QWEN2, "e\u0301t", "e|\u0301t");
    expect_words(PRETOK_SEED_CODER, "end.\n\nnext", "end|.|\n\n|next");
    expect_words(PRETOK_UFAKZEKA, "Ankara'da it's", "Ankara|'da| it|'s");
    expect_words(PRETOK_QWEN2, "Ankara'da", "Ankara|'d|a");
    expect_words(PRETOK_MINICPM5, "a  1234", "a|  |123|4"); // what ends before a number ends a text
    expect_words(PRETOK_LLAMA3, "a  1234", "a| | |123|4");
    expect_words(PRETOK_LAGUNA, "a. \n\n b", "a|.| |\n\n| b");
    expect_words(PRETOK_JAIS2, "a        b", "a|    |  | | b"); // seven of eight
    expect_words(PRETOK_JAIS2, "a     ", "a|    | ");
    expect_words(PRETOK_EXAONE_MOE, "to be or  not 2 b", "to be or| | not| |2| b");
    expect_words(PRETOK_EXAONE_MOE, "a.\n\nb", "a|.\n|\n|b");
}

static void o200k_words(void) {
    expect_words(PRETOK_O200K, "HelloWorld's WE'LL", "Hello|World's| WE'LL");
    expect_words(PRETOK_O200K, "v1234 x'T", "v|123|4| x'T");
    expect_words(PRETOK_TINY_AYA, "1234567 12345x 12", "1|234|567| |123|45|x| |12");
    expect_words(PRETOK_YOUTU, "AB中文，，한글C1 2", "AB|中文|，，|한글|C|1| |2");
    expect_words(PRETOK_KIMI_K2, "x中文y 中 々〇1", "x|中文|y| |中| |々〇|1");
    expect_words(PRETOK_KIMI_K2, "a/b //\n/", "a|/b| //\n|/");
}

static void deepseek_v3_words(void) {
    expect_words(PRETOK_DEEPSEEK_V3, "(foo ((bar) x.yé", "(foo| ((|bar|)| x|.y|é");
    expect_words(PRETOK_DEEPSEEK_V3, "12345 中文カナ.\n\n", "123|45| |中文カナ|.\n\n");
    expect_words(PRETOK_DEEPSEEK_V3,
                 "\x01\x02\x03"
                 "a \x01",
                 "\x01\x02|\x03"
                 "a| |\x01"); // gaps
    expect_words(PRETOK_SPARK, "12 a.\n\n  b", "1|2| a|.|\n|\n| | b");
}

static void coarse_words(void) {
    expect_words(PRETOK_FALCON, "a+b `x` 12345", "a|+|b| |`|x|`| |123|45");
    expect_words(PRETOK_DEFAULT, "a+b `x` 12345", "a|+|b| `|x|`| |123|45");
    expect_words(PRETOK_SUPERBPE, "on 1234567, and 12", "on |1|234|567|, and |12");
    expect_words(PRETOK_SUPERBPE, "½12345", "½12|345");
    expect_words(PRETOK_BLOOM, "Hello world, you... there", "Hello| world|,| you|...| there");
    expect_words(PRETOK_VIKING, "Hello 12.", "Hello| |1|2|.");
}

static bool stop_at_second(void *ctx, const unsigned char *word, size_t n) {
    (void)word, (void)n;
    return ++*(int *)ctx < 2;
}

static void words_stop_when_told(void) {
    for (int kind = PRETOK_GPT2; kind < PRETOK_KINDS; kind++) {
        int n = 0;
        EXPECT(!pretok_split((pretok_kind)kind, raw("a b 1 c d"), 9, stop_at_second, &n));
        EXPECT_EQ(n, 2);
    }
}

static bool count_word(void *ctx, const unsigned char *word, size_t n) {
    (void)word;
    EXPECT(n > 0);
    *(size_t *)ctx += n;
    return true;
}

/* Each of these makes a backtracking expression read the rest of the text once per character. */
static void long_runs_of_anything_are_linear(void) {
    static const char *const units[] = {"a",      " ",  "\n", "1",      "!",   "'",  " \n",
                                        "\u3000", "中", "a ", "\u0301", "  x", "'s", "\t\r"};
    enum { BYTES = 1 << 20 };
    char *text = malloc(BYTES);
    if (text == NULL) return;
    for (size_t i = 0; i < INFERD_COUNT(units); i++) {
        size_t n_unit = strlen(units[i]), n = BYTES / n_unit * n_unit;
        for (size_t at = 0; at < n; at += n_unit) memcpy(text + at, units[i], n_unit);
        for (int kind = PRETOK_GPT2; kind < PRETOK_KINDS; kind++) {
            size_t n_seen = 0;
            EXPECT(pretok_split((pretok_kind)kind, raw(text), n, count_word, &n_seen));
            EXPECT_EQ(n_seen, n);
        }
    }
    free(text);
}

/* ---- Unicode ---- */

static void classes_are_those_of_unicode_16(void) {
    size_t n_letters = 0, n_numbers = 0, n_punctuation = 0, n_spaces = 0;
    for (uint32_t c = 0; c < 0x110000; c++) {
        unsigned kind = unicode_kind(c);
        n_letters += unicode_is_letter(kind);
        n_numbers += unicode_is_number(kind);
        n_punctuation += unicode_is_punctuation(kind);
        n_spaces += unicode_is_space(kind);
    }
    EXPECT_EQ(n_letters, 141028);
    EXPECT_EQ(n_numbers, 1911);
    EXPECT_EQ(n_punctuation, 855);
    EXPECT_EQ(n_spaces, 25);
    EXPECT(unicode_is_letter(unicode_kind(0x10D4A))); // Garay, new in 16.0
    EXPECT(unicode_is_space(unicode_kind(0x85)) && !unicode_is_space(unicode_kind(0x1C)));
}

static void utf8_is_checked_to_the_byte(void) {
    static const struct {
        const char *text;
        size_t n, n_valid;
    } cases[] = {
        {"", 0, 0},
        {"plain ascii, longer than eight", 30, 30},
        {"a\0b", 3, 3},
        {"é中🤖", 9, 9},
        {"ab\x80", 3, 2},
        {"ab\xC3", 3, 2},           // cut
        {"\xC0\x80", 2, 0},         // overlong
        {"\xE0\x9F\xBF", 3, 0},     // overlong
        {"\xED\xA0\x80", 3, 0},     // a surrogate
        {"\xF4\x90\x80\x80", 4, 0}, // beyond U+10FFFF
        {"\xF0\x8F\xBF\xBF", 4, 0}, // overlong
        {"12345678\xFFz", 10, 8},
        {"\xEF\xBF\xBF\xF4\x8F\xBF\xBF", 7, 7},
    };
    for (size_t i = 0; i < INFERD_COUNT(cases); i++)
        EXPECT_EQ(utf8_valid_bytes(raw(cases[i].text), cases[i].n), cases[i].n_valid);
    for (uint32_t c = 0; c < 0x110000; c++) {
        unsigned char p[UTF8_BYTES_MAX];
        unsigned n = utf8_encode(c, p), n_decoded;
        if (utf8_decode(p, &n_decoded) != c || n_decoded != n) EXPECT_EQ(c, -1);
        if ((utf8_char_bytes(p, n) == n) != (c < 0xD800 || c > 0xDFFF)) EXPECT_EQ(c, -1);
    }
}

static void expect_nfc(const char *text, const char *composed) {
    buf out = {0};
    size_t n = strlen(text);
    EXPECT(nfc_append(raw(text), n, &out));
    EXPECT_STR(buf_cstr(&out), composed);
    if (nfc_is_normal(raw(text), n)) EXPECT_STR(text, composed);
    buf_deinit(&out);
}

static void composition_follows_the_annex(void) {
    expect_nfc("", "");
    expect_nfc("plain", "plain");
    expect_nfc("cafe\u0301 ole\u0301!", "café olé!");
    expect_nfc("\u0301a", "\u0301a");             // nothing to join
    expect_nfc("a\u0323\u0302", "\u1EAD");        // twice, over classes 220 and 230
    expect_nfc("a\u0302\u0323", "\u1EAD");        // the order is put right first
    expect_nfc("a\u0305\u0301", "a\u0305\u0301"); // blocked by a mark of its class
    expect_nfc("\u212B \u2126", "\u00C5 \u03A9"); // singletons
    expect_nfc("\u0958", "\u0915\u093C");         // an exclusion
    expect_nfc("\u0344", "\u0308\u0301");
    expect_nfc("\u1100\u1161\u11A8\u1100\u1161", "\uAC01\uAC00");
    expect_nfc("\uAC00\u11A8", "\uAC01");
    expect_nfc("\uAC01\u11A8", "\uAC01\u11A8");         // has a tail already
    expect_nfc("\U000105D2\u0307", "\U000105D2\u0307"); // composes only since Unicode 16
}

static void a_long_run_of_marks_is_sorted(void) {
    enum { MARKS = 100000 }; // alternating classes: the worst for insertion
    buf text = {0}, out = {0};
    buf_add_char(&text, 'q');
    for (int i = 0; i < MARKS; i++) buf_add_str(&text, i % 2 == 0 ? "\u0301" : "\u0323");
    EXPECT(nfc_append(raw(text.p), text.n, &out));
    EXPECT_EQ(out.n, text.n);
    const char *p = buf_cstr(&out);
    size_t n_below = 0, n_above = 0;
    for (p++; strncmp(p, "\u0323", 2) == 0; p += 2) n_below++;
    for (; strncmp(p, "\u0301", 2) == 0; p += 2) n_above++;
    EXPECT_EQ(n_below, MARKS / 2);
    EXPECT_EQ(n_above, MARKS / 2);
    buf_deinit(&text);
    buf_deinit(&out);
}

/* ---- merging ---- */

static uint32_t random_state = 1;

static uint32_t random_below(uint32_t n) {
    random_state = random_state * 1664525u + 1013904223u;
    return (random_state >> 8) % n;
}

typedef struct rule {
    tok_id left, right, id;
    uint32_t rank;
} rule;

/* The definition: the lowest rank, the leftmost of equals, again and again. */
static size_t merge_plainly(const rule *rules, size_t n_rules, tok_id *symbols, size_t n) {
    for (;;) {
        const rule *best = NULL;
        size_t best_at = 0;
        for (size_t i = 0; i + 1 < n; i++)
            for (size_t k = 0; k < n_rules; k++)
                if (rules[k].left == symbols[i] && rules[k].right == symbols[i + 1] &&
                    (best == NULL || rules[k].rank < best->rank)) {
                    best = &rules[k];
                    best_at = i;
                }
        if (best == NULL) return n;
        symbols[best_at] = best->id;
        for (size_t i = best_at + 1; i + 1 < n; i++) symbols[i] = symbols[i + 1];
        n--;
    }
}

static void merging_follows_its_definition(void) {
    enum { RULES = 24, SYMBOLS = 120 };
    merge_work work = {0};
    for (int round = 0; round < 400; round++) {
        rule rules[RULES];
        merge_table t;
        size_t n_rules = 0;
        EXPECT(merge_table_init(&t, 0)); // grows
        for (int i = 0; i < RULES; i++) {
            // Few symbols, so that merges feed each other; in odd rounds ranks repeat.
            rule r = {(tok_id)random_below(8), (tok_id)random_below(8),
                      (tok_id)(4 + random_below(6)),
                      round % 2 == 0 ? (uint32_t)i : random_below(4)};
            bool known = false;
            for (size_t k = 0; k < n_rules; k++)
                known |= rules[k].left == r.left && rules[k].right == r.right;
            EXPECT(merge_add(&t, r.left, r.right, r.rank, r.id));
            if (!known) rules[n_rules++] = r; // the first stays
        }
        EXPECT_EQ(t.n, n_rules);
        tok_id a[SYMBOLS], b[SYMBOLS];
        size_t n = 1 + random_below(SYMBOLS), n_a = n;
        for (size_t i = 0; i < n; i++) a[i] = b[i] = (tok_id)random_below(4);
        EXPECT_EQ(merge_run(&t, &work, a, &n_a, NULL, NULL), INFERD_OK);
        size_t n_b = merge_plainly(rules, n_rules, b, n);
        EXPECT_EQ(n_a, n_b);
        EXPECT(n_a == n_b && memcmp(a, b, n_b * sizeof *b) == 0);
        merge_table_deinit(&t);
    }
    merge_work_deinit(&work);
}

static void nothing_merges_to_nothing(void) {
    merge_table t;
    size_t n = 0;
    EXPECT(merge_table_init(&t, 4));
    EXPECT_EQ(merge_run(&t, NULL, NULL, &n, NULL, NULL), INFERD_OK);
    EXPECT_EQ(n, 0);
    merge_table_deinit(&t);
}

/* ---- special tokens ---- */

static void the_longest_special_wins(void) {
    special_trie t;
    tok_id id = -1;
    EXPECT(specials_init(&t));
    EXPECT(specials_add(&t, (bytes){"<a>", 3}, 1, true));
    EXPECT(specials_add(&t, (bytes){"<a>bc", 5}, 2, true));
    EXPECT(specials_add(&t, (bytes){"<ab", 3}, 3, false));
    EXPECT(specials_add(&t, (bytes){"<a>", 3}, 9, true)); // the first id stays
    EXPECT(specials_add(&t, (bytes){"", 0}, 8, true));    // matches nothing
    EXPECT_EQ(specials_match(&t, raw("<a>bcd"), 6, 6, &id), 5);
    EXPECT_EQ(id, 2);
    EXPECT_EQ(specials_match(&t, raw("<a>bd"), 5, 5, &id), 3);
    EXPECT_EQ(id, 1);
    EXPECT_EQ(specials_match(&t, raw("<a>bcd"), 6, 4, &id), 3); // the longer one is not all trusted
    EXPECT_EQ(id, 1);
    EXPECT_EQ(specials_match(&t, raw("<a>bcd"), 6, 2, &id), 0);
    EXPECT_EQ(specials_match(&t, raw("<abc"), 4, 0, &id), 3); // user-defined needs no trust
    EXPECT_EQ(id, 3);
    EXPECT_EQ(specials_match(&t, raw("<a"), 2, 2, &id), 0);
    EXPECT_EQ(specials_match(&t, raw("x"), 1, 1, &id), 0);
    specials_deinit(&t);
}

static const test_case cases[] = {
    TEST(gpt2_words),
    TEST(smollm_takes_every_number_alone),
    TEST(llama3_words),
    TEST(qwen2_is_llama3_with_numbers_alone),
    TEST(tekken_words),
    TEST(deepseek_words),
    TEST(relatives_of_llama3_differ_in_one_place),
    TEST(o200k_words),
    TEST(deepseek_v3_words),
    TEST(coarse_words),
    TEST(words_stop_when_told),
    TEST(long_runs_of_anything_are_linear),
    TEST(classes_are_those_of_unicode_16),
    TEST(utf8_is_checked_to_the_byte),
    TEST(composition_follows_the_annex),
    TEST(a_long_run_of_marks_is_sorted),
    TEST(merging_follows_its_definition),
    TEST(nothing_merges_to_nothing),
    TEST(the_longest_special_wins),
};

TEST_MAIN(cases)
