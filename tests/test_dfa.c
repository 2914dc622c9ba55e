/* test_dfa.c - automata: sets of literals, products, fewest states; compared with all short texts.
 */
#include "dfa_rig.h"

static uint64_t seed = 20261127;

static uint32_t draw(uint32_t n) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % n;
}

static void literals_have_tags(void) {
    const bytes texts[] = {{"cat", 3}, {"category", 8}, {"", 0}, {"dog", 3}, {"cat", 3}};
    const uint32_t tags[] = {7, 1, 2, 3, 5};
    dfa d, copy;
    EXPECT(dfa_of_literals(texts, tags, 5, &dfa_limits_default, &d, NULL) == INFERD_OK);
    EXPECT(dfa_copy(&d, &copy, NULL) == INFERD_OK);
    dfa_deinit(&d);
    EXPECT(rig_is_trim(&copy));
    EXPECT_EQ(dfa_match(&copy, rig_text("cat")), 1 + 5); // given twice: the lower tag
    EXPECT_EQ(dfa_match(&copy, rig_text("category")), 1 + 1);
    EXPECT_EQ(dfa_match(&copy, rig_text("")), 1 + 2);
    EXPECT_EQ(dfa_match(&copy, rig_text("dog")), 1 + 3);
    EXPECT_EQ(dfa_match(&copy, rig_text("ca")), 0);
    EXPECT_EQ(dfa_match(&copy, rig_text("dogs")), 0);
    EXPECT_EQ(copy.n_states, 12);
    dfa_deinit(&copy);
    EXPECT(dfa_of_literals(NULL, NULL, 0, &dfa_limits_default, &d, NULL) == INFERD_OK);
    EXPECT(dfa_is_empty(&d));
    EXPECT_EQ(dfa_match(&d, rig_text("")), 0);
    dfa_deinit(&d);
}

/* 20,000 texts, more than fits a table: lists of edges. */
static void many_literals_have_lists_of_edges(void) {
    enum { N = 20000, EACH = 48 };
    bytes *texts = calloc(N, sizeof *texts);
    uint32_t *tags = calloc(N, sizeof *tags);
    char *room = calloc(N, EACH);
    for (int i = 0; i < N; i++) {
        char *p = room + (size_t)i * EACH;
        int n =
            snprintf(p, EACH, "%08x \xc3\xa9 %d and more of it %u", draw(1u << 30), i, draw(100));
        texts[i] = (bytes){p, (size_t)n};
        tags[i] = (uint32_t)i;
    }
    dfa d, copy;
    EXPECT(dfa_of_literals(texts, tags, N, &dfa_limits_default, &d, NULL) == INFERD_OK);
    EXPECT(d.next == NULL && d.n_states > 100000);
    EXPECT(dfa_copy(&d, &copy, NULL) == INFERD_OK);
    for (int i = 0; i < N; i++) {
        EXPECT_EQ(dfa_match(&copy, texts[i]), 1 + i);
        EXPECT_EQ(dfa_match(&copy, (bytes){texts[i].p, texts[i].n - 1}) > 1u + i, 0);
    }
    EXPECT(dfa_minimize(&copy, NULL) == INFERD_OK); // left as it is
    EXPECT_EQ(copy.n_states, d.n_states);
    /* Products read the lists, too: the texts of one first byte. */
    dfa pattern = rig_pattern("00[0-9a-f]{6} .*", REGEX_TEXT), both;
    EXPECT(dfa_and(&d, &pattern, &dfa_limits_default, &both, NULL) == INFERD_OK);
    uint32_t n_both = 0, n_wanted = 0;
    for (int i = 0; i < N; i++) {
        n_both += dfa_match(&both, texts[i]) == 1u + i;
        n_wanted += texts[i].p[0] == '0' && texts[i].p[1] == '0';
    }
    EXPECT(n_wanted > 0);
    EXPECT_EQ(n_both, n_wanted);
    dfa_deinit(&both);
    EXPECT(dfa_or(&d, &pattern, &dfa_limits_default, &both, NULL) == INFERD_ETOOLONG);
    EXPECT(dfa_is_empty(&both));
    dfa_deinit(&both);
    dfa_deinit(&pattern);
    dfa_deinit(&copy);
    dfa_deinit(&d);
    free(texts);
    free(tags);
    free(room);
}

/* ---- products, over all texts of up to six letters of three ---- */

enum { LETTERS = 3, LENGTH_MAX = 6 };

static const char *const random_atoms[] = {"a",  "b",     "c",      "[ab]",  ".",      "(ab|c)*",
                                           "a?", "[^a]+", "(a|bc)", "b{2,}", "(abc)?", "c{1,2}"};

static dfa random_automaton(void) {
    char pattern[256] = "";
    for (uint32_t i = 0, n = 1 + draw(4); i < n; i++) {
        if (i > 0 && draw(4) == 0) strcat(pattern, "|");
        strcat(pattern, random_atoms[draw(sizeof random_atoms / sizeof *random_atoms)]);
    }
    return rig_pattern(pattern, REGEX_TEXT);
}

/* The next text in the order of counting; false: all were seen. */
static bool next_text(char *text) {
    size_t i = strlen(text);
    while (i > 0 && text[i - 1] == 'a' + LETTERS - 1) text[--i] = 'a';
    if (i > 0) {
        text[i - 1]++;
        return true;
    }
    size_t n = strlen(text);
    text[n] = 'a';
    text[n + 1] = 0;
    return n < LENGTH_MAX;
}

static void products_are_those_of_sets(void) {
    printf("seed %llu\n", (unsigned long long)seed);
    for (int round = 0; round < 60; round++) {
        dfa a = random_automaton(), b = random_automaton(), c = random_automaton();
        dfa and, not, or, classes, small;
        const dfa *parts[] = {&b, &c};
        EXPECT(dfa_and(&a, &b, &dfa_limits_default, &and, NULL) == INFERD_OK);
        EXPECT(dfa_and_not(&a, &b, &dfa_limits_default, &not, NULL) == INFERD_OK);
        EXPECT(dfa_or(&a, &b, &dfa_limits_default, & or, NULL) == INFERD_OK);
        EXPECT(dfa_classify(&a, parts, 2, &dfa_limits_default, &classes, NULL) == INFERD_OK);
        EXPECT(dfa_copy(&classes, &small, NULL) == INFERD_OK);
        EXPECT(dfa_minimize(&small, NULL) == INFERD_OK);
        EXPECT(small.n_states <= classes.n_states);
        EXPECT(rig_is_trim(&and) && rig_is_trim(&not ) && rig_is_trim(& or) && rig_is_trim(&small));
        char text[LENGTH_MAX + 2] = "";
        do {
            bool in_a = rig_match(&a, text), in_b = rig_match(&b, text), in_c = rig_match(&c, text);
            EXPECT_EQ(rig_match(&and, text), in_a && in_b);
            EXPECT_EQ(rig_match(&not, text), in_a && !in_b);
            EXPECT_EQ(rig_match(& or, text), in_a || in_b);
            uint32_t set = in_a ? 1u + in_b + 2u * in_c : 0;
            EXPECT_EQ(dfa_match(&classes, rig_text(text)), set);
            EXPECT_EQ(dfa_match(&small, rig_text(text)), set);
        } while (next_text(text));
        dfa *all[] = {&a, &b, &c, &and, &not, & or, &classes, &small};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) dfa_deinit(all[i]);
    }
}

static void the_empty_language_is_a_language(void) {
    dfa none = {0}, a = rig_pattern("a*", REGEX_TEXT), out;
    EXPECT(dfa_and(&a, &none, &dfa_limits_default, &out, NULL) == INFERD_OK);
    EXPECT(dfa_is_empty(&out));
    dfa_deinit(&out);
    EXPECT(dfa_or(&none, &a, &dfa_limits_default, &out, NULL) == INFERD_OK);
    EXPECT(rig_match(&out, "aa"));
    dfa_deinit(&out);
    EXPECT(dfa_and_not(&a, &none, &dfa_limits_default, &out, NULL) == INFERD_OK);
    EXPECT(rig_match(&out, ""));
    dfa_deinit(&out);
    EXPECT(dfa_and_not(&a, &a, &dfa_limits_default, &out, NULL) == INFERD_OK);
    EXPECT(dfa_is_empty(&out));
    EXPECT(dfa_minimize(&out, NULL) == INFERD_OK);
    EXPECT(dfa_copy(&out, &none, NULL) == INFERD_OK);
    dfa_deinit(&none);
    dfa_deinit(&out);
    dfa_deinit(&a);
}

/* Two states of the same tag are one; states of different tags are not. */
static void fewest_states_keep_tags(void) {
    const bytes texts[] = {{"ax", 2}, {"bx", 2}, {"cx", 2}};
    const uint32_t tags[] = {4, 4, 9};
    dfa d;
    EXPECT(dfa_of_literals(texts, tags, 3, &dfa_limits_default, &d, NULL) == INFERD_OK);
    EXPECT_EQ(d.n_states, 7);
    EXPECT(dfa_minimize(&d, NULL) == INFERD_OK);
    EXPECT_EQ(d.n_states, 5);
    EXPECT_EQ(dfa_match(&d, texts[1]), 5);
    EXPECT_EQ(dfa_match(&d, texts[2]), 10);
    dfa_deinit(&d);
}

static void products_have_limits(void) {
    dfa a = rig_pattern("(a|b)*a(a|b){8}", REGEX_TEXT),
        b = rig_pattern("(a|b)*b(a|b){8}", REGEX_TEXT);
    dfa_limits limits = dfa_limits_default;
    limits.states_max = 1100;
    inferd_err err = {0};
    dfa out;
    EXPECT(dfa_or(&a, &b, &limits, &out, &err) == INFERD_OK);
    dfa_deinit(&out);
    limits.states_max = 500;
    EXPECT(dfa_or(&a, &b, &limits, &out, &err) == INFERD_ETOOLONG);
    EXPECT_STR(err.text, "a combination of patterns needs more than 500 states");
    EXPECT(dfa_is_empty(&out));
    const dfa *parts[17] = {0};
    EXPECT(dfa_classify(&a, parts, 17, &limits, &out, &err) == INFERD_ETOOLONG);
    dfa_deinit(&a);
    dfa_deinit(&b);
}

static void json_is_encoded_canonically(void) {
    buf out = {0};
    json_canonical(&out, rig_text("a\"\\/\b\f\n\r\t\x01\x1f\x7f\xc3\xa9"));
    EXPECT_STR(buf_cstr(&out), "a\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\\u001f\x7f\xc3\xa9");
    buf_deinit(&out);
}

static void lengths_count_code_points(void) {
    dfa d;
    EXPECT(dfa_of_json_lengths(2, 3, &dfa_limits_default, &d, NULL) == INFERD_OK);
    EXPECT(rig_is_trim(&d));
    rig_expect(&d, "2 to 3",
               RIG_TEXTS("-", "-a", "+ab", "+abc", "-abcd", "+\xc3\xa9\xf0\x9f\x98\x80",
                         "+\\n\\u0001", "-\\u001F1", "-a\"", "-a\\x", "-\xed\xa0\x80z",
                         "-\xc0\x80z", "-\\/a"));
    dfa_deinit(&d);
    EXPECT(dfa_of_json_lengths(1, UINT32_MAX, &dfa_limits_default, &d, NULL) == INFERD_OK);
    rig_expect(&d, "1 and more", RIG_TEXTS("-", "+a", "+abcdefgh", "-a\n"));
    dfa_deinit(&d);
    EXPECT(dfa_of_json_lengths(3, 2, &dfa_limits_default, &d, NULL) == INFERD_OK);
    EXPECT(dfa_is_empty(&d));
    EXPECT(dfa_of_json_lengths(0, 1u << 30, &dfa_limits_default, &d, NULL) == INFERD_ETOOLONG);
}

static const test_case cases[] = {
    TEST(literals_have_tags),          TEST(many_literals_have_lists_of_edges),
    TEST(products_are_those_of_sets),  TEST(the_empty_language_is_a_language),
    TEST(fewest_states_keep_tags),     TEST(products_have_limits),
    TEST(json_is_encoded_canonically), TEST(lengths_count_code_points),
};
TEST_MAIN(cases)
