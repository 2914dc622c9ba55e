/* test_regex.c - patterns: what they accept, as text and inside of JSON strings, and what is
 * refused. */
#include "dfa_rig.h"

static void expect_use(const char *pattern, regex_use use, const char *const *texts, size_t n) {
    dfa d = rig_pattern(pattern, use);
    EXPECT(rig_is_trim(&d));
    rig_expect(&d, pattern, texts, n);
    dfa_deinit(&d);
}
#define EXPECT_TEXT(pattern, ...)   expect_use(pattern, REGEX_TEXT, RIG_TEXTS(__VA_ARGS__))
#define EXPECT_WHOLE(pattern, ...)  expect_use(pattern, REGEX_JSON_WHOLE, RIG_TEXTS(__VA_ARGS__))
#define EXPECT_SEARCH(pattern, ...) expect_use(pattern, REGEX_JSON_SEARCH, RIG_TEXTS(__VA_ARGS__))

static void atoms_and_quantifiers(void) {
    EXPECT_TEXT("", "+", "-a");
    EXPECT_TEXT("abc", "+abc", "-ab", "-abcd", "-xabc");
    EXPECT_TEXT("a|bc|", "+a", "+bc", "+", "-b");
    EXPECT_TEXT("ab*c", "+ac", "+abbc", "-abb");
    EXPECT_TEXT("ab+?c", "-ac", "+abc", "+abbbc");
    EXPECT_TEXT("(ab)?c", "+c", "+abc", "-ac");
    EXPECT_TEXT("a{2}b{1,}c{0,2}d{,1}", "+aab", "+aabbccd", "-ab", "-aabccc", "-aabdd");
    EXPECT_TEXT("(?:a(?<x>b)(?P<y>c)){2}", "+abcabc", "-abc");
    EXPECT_TEXT("a{0}b{1}", "+b", "-ab");
    EXPECT_TEXT("(a*)*b", "+b", "+aab", "-a");
    EXPECT_TEXT("(|a)+", "+", "+aaa", "-b");
    EXPECT_TEXT("x{a{2}{,}]}", "+x{aa{,}]}"); // braces and brackets that stand for themselves
}

static void classes_and_escapes(void) {
    EXPECT_TEXT("[a-cx-]+", "+abcx-", "-d");
    EXPECT_TEXT("[^a-c]", "+d", "+\xc3\xa9", "+\n", "-a", "-\xff");
    EXPECT_TEXT("[\\w-.]+", "+a-b.c", "-a b"); // "-" beside a class stands for itself
    EXPECT_TEXT("[.\\-+*?()|^$\\]]+", "+.-+*?()|^$]", "-a");
    EXPECT_TEXT("\\x41\\u0042\\u{1F600}\\uD83D\\uDE00\\cA\\t\\0", "-AB");
    EXPECT_TEXT("\\x41\\u0042\\u{1F600}\\uD83D\\uDE00\\t", "+AB\xf0\x9f\x98\x80\xf0\x9f\x98\x80\t");
    EXPECT_TEXT("\\/\\.\\-\\_\\@\\#\\\"\\'", "+/.-_@#\"'");
    EXPECT_TEXT("[\\b]", "+\b", "-b");
    EXPECT_TEXT(".", "+a", "+\xf0\x9f\x98\x80", "-\n", "-\r", "-\xe2\x80\xa8", "-", "-\x80");
    EXPECT_TEXT("\\uD800", "-\xed\xa0\x80", "-"); // no text has a lone surrogate
    EXPECT_TEXT("[\xc3\xa0-\xc3\xbf\xe4\xb8\x80-\xe9\xbf\xbf]+", "+\xc3\xa9\xe4\xb8\xad", "-a");
}

/* ECMA-262 and Python differ beyond ASCII: only what both accept is accepted. */
static void classes_are_those_of_both_languages(void) {
    EXPECT_TEXT("\\d", "+7", "-\xd9\xa3", "-a"); // an Arabic digit, which is one for Python
    EXPECT_TEXT("\\D", "+a", "+\xc3\xa9", "-7", "-\xd9\xa3");
    EXPECT_TEXT("[^\\d]", "+a", "-7", "-\xd9\xa3");
    EXPECT_TEXT("\\w", "+a", "+_", "-\xc3\xa9", "--");
    EXPECT_TEXT("\\W", "+-", "-a", "-\xc3\xa9", "+\xe2\x82\xac");
    EXPECT_TEXT("[^\\W]", "+a", "-\xc3\xa9", "--");
    EXPECT_TEXT("\\s", "+ ", "+\t", "+\xe3\x80\x80", "-\x1c", "-\xef\xbb\xbf", "-a");
    EXPECT_TEXT("\\S", "+a", "- ", "-\x1c", "-\xef\xbb\xbf");
    EXPECT_TEXT("\\p{Lu}\\p{Letter}\\P{L}\\p{gc=Nd}", "+\xc3\x89\xc3\xa9-\xd9\xa3", "-ab-1");
}

static void anchors_are_exact(void) {
    EXPECT_TEXT("^abc$", "+abc", "-abcd");
    EXPECT_TEXT("(^a|b)c", "+ac", "+bc");
    EXPECT_TEXT("a^b", "-ab", "-a^b");
    EXPECT_TEXT("a$b|c", "-ab", "+c");
    EXPECT_TEXT("^^a$$", "+a");
    EXPECT_TEXT("(^|x)a", "+a", "+xa");
    EXPECT_TEXT("(^a)*", "+", "+a", "-aa");
    EXPECT_TEXT("$^", "+", "-a");
    EXPECT_TEXT("\\Aa\\Z", "+a", "-aa");
    EXPECT_SEARCH("^a", "+a", "+ab", "-ba");
    EXPECT_SEARCH("a$", "+a", "+ba", "-ab");
    EXPECT_SEARCH("(^a|b$)", "+ax", "+xb", "-xa", "-bx");
    EXPECT_SEARCH("^$", "+", "-a");
    EXPECT_SEARCH("a^b", "-ab", "-aab", "-");
    EXPECT_SEARCH("(^|,)x(,|$)", "+x", "+a,x", "+x,a", "+a,x,b", "-ax", "-a,xb");
    EXPECT_SEARCH("x|^y|$", "+", "+a"); // the end is everywhere at last
}

static void search_finds_it_anywhere(void) {
    EXPECT_SEARCH("", "+", "+anything", "-\"");
    EXPECT_SEARCH("ab", "+ab", "+aab", "+xaby", "-a", "-ba");
    EXPECT_SEARCH("[0-9]{3}", "+123", "+a1234b", "-12a3");
    EXPECT_SEARCH("\xc3\xa9", "+x\xc3\xa9y", "-xey");
    EXPECT_SEARCH("aab", "+aaab", "+xaaaab", "-aaa");
}

static void json_strings_are_canonical(void) {
    EXPECT_WHOLE(".", "+a", "+\\\"", "+\\\\", "-\"", "-\\", "-\\/", "-\\n", "+/", "+\\t", "-\t",
                 "-\\u0041", "+\\u0001", "-\\u001F", "+\\u001f");
    EXPECT_WHOLE("\"\\\\\n\x01", "+\\\"\\\\\\n\\u0001", "-\\\"\\\\\\u000a\\u0001");
    EXPECT_WHOLE("[\\x00-\\x1f]", "+\\u0000", "+\\b", "+\\u000b", "+\\u001e", "-\\u0008", "-a");
    EXPECT_WHOLE("[^\"]*", "+ab\\\\", "-ab\\\"");
    EXPECT_SEARCH("^\\\\d$", "+\\\\d", "-\\d");
    EXPECT_SEARCH("n", "+\\nn", "-\\n"); // the n of an escape is none
}

static void look_aheads_at_the_beginning(void) {
    EXPECT_SEARCH("^(?!@@)[@a-z]+$", "+@a", "+a@@", "-@@", "-@@a", "-", "-A");
    EXPECT_SEARCH("^(?=[^=]+$)(?!\\s+$)(.|\\n)+$", "+a b", "- ", "-a=b", "-", "+\\n.");
    EXPECT_SEARCH("^(?!a|b$)", "+", "+c", "+bc", "-b", "-ab");
    EXPECT_SEARCH("^(?!x$).*", "+", "+xy", "-x", "-x\\n"); // in Python $ is before a newline, too
    EXPECT_SEARCH("^(?![(\\])]).", "+a", "-(", "-)a", "-]");
    EXPECT_TEXT("(?!\\d)\\S*", "+a1", "-1", "-\xd9\xa3", "+");
    EXPECT_TEXT("(?=ab)a.", "+ab", "-ac", "-abc");
}

/* What is to be excluded is excluded if one of the languages finds it. */
static void wide_patterns_accept_what_either_accepts(void) {
    static const struct {
        const char *pattern, *text;
    } wide[] = {{"^\\d$", "\xd9\xa3"}, {"^\\w$", "\xc3\xa9"},    {"^.$", "\\r"}, {"^a$", "a\\n"},
                {"^\\s$", "\\u001c"},  {"^[^\\W]$", "\xc3\xa9"}, {"^\\D$", "x"}, {"^[^\\s]$", "x"}};
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++) {
        dfa d = rig_pattern(wide[i].pattern, REGEX_JSON_SEARCH_WIDE);
        EXPECT(rig_match(&d, wide[i].text));
        EXPECT(!rig_match(&d, "ab"));
        dfa_deinit(&d);
    }
    dfa narrow = rig_pattern("^(?!\\d)", REGEX_JSON_SEARCH);
    dfa d = rig_pattern("^(?!\\d)", REGEX_JSON_SEARCH_WIDE);
    EXPECT(rig_match(&d, "\xd9\xa3") && !rig_match(&narrow, "\xd9\xa3"));
    EXPECT(!rig_match(&d, "1") && rig_match(&d, "a"));
    dfa_deinit(&d);
    dfa_deinit(&narrow);
}

static void counts_are_expanded(void) {
    dfa d = rig_pattern("^[A-Za-z0-9_-]{1,64}$", REGEX_JSON_SEARCH);
    EXPECT_EQ(d.n_states, 65);
    dfa_deinit(&d);
    d = rig_pattern("^.{0,1000}$", REGEX_JSON_SEARCH);
    EXPECT(d.n_states > 1000 && d.n_states <= dfa_limits_default.states_max);
    char text[1001];
    memset(text, 'x', sizeof text);
    EXPECT(dfa_match(&d, (bytes){text, 1000}) != 0);
    EXPECT(dfa_match(&d, (bytes){text, 1001}) == 0);
    dfa_deinit(&d);
    d = rig_pattern("[a-z]{1,64}", REGEX_JSON_SEARCH); // one letter anywhere is enough
    EXPECT(d.n_states < 40);
    dfa_deinit(&d);
}

static void what_cannot_be_enforced_is_named(void) {
    static const struct {
        const char *pattern;
        inferd_status status;
        const char *text;
    } refused[] = {
        {"^(?!a)b|c", INFERD_EUNSUPPORTED,
         "pattern: a negative look-ahead, not enforceable, at byte 1"},
        {"^(?!(?=a))b", INFERD_EUNSUPPORTED, "pattern: a look-ahead, not enforceable, at byte 4"},
        {"^(?!a)*b", INFERD_EUNSUPPORTED,
         "pattern: a negative look-ahead, not enforceable, at byte 1"},
        {"a(?=b)", INFERD_EUNSUPPORTED, "pattern: a look-ahead, not enforceable, at byte 1"},
        {"a(?!b)", INFERD_EUNSUPPORTED,
         "pattern: a negative look-ahead, not enforceable, at byte 1"},
        {"(?<=b)a", INFERD_EUNSUPPORTED, "pattern: a look-behind, not enforceable, at byte 0"},
        {"(?<!b)a", INFERD_EUNSUPPORTED,
         "pattern: a negative look-behind, not enforceable, at byte 0"},
        {"(a)\\1", INFERD_EUNSUPPORTED, "pattern: a back-reference, not enforceable, at byte 3"},
        {"(?<n>a)\\k<n>", INFERD_EUNSUPPORTED,
         "pattern: a back-reference, not enforceable, at byte 7"},
        {"\\bword\\b", INFERD_EUNSUPPORTED, "pattern: a word boundary, not enforceable, at byte 0"},
        {"x\\By", INFERD_EUNSUPPORTED, "pattern: a word boundary, not enforceable, at byte 1"},
        {"(?i)a", INFERD_EUNSUPPORTED, "pattern: flags, not enforceable, at byte 0"},
        {"a++", INFERD_EUNSUPPORTED,
         "pattern: a possessive quantifier, not enforceable, at byte 2"},
        {"(?>a)", INFERD_EUNSUPPORTED, "pattern: an atomic group, not enforceable, at byte 0"},
        {"\\p{Script=Greek}", INFERD_EUNSUPPORTED,
         "pattern: the property \\p{Script=Greek} at byte 0 cannot be enforced: only general "
         "categories are known"},
        {"[]a]", INFERD_EUNSUPPORTED,
         "pattern: a class that begins with \"]\", on which languages differ, at byte 0"},
        {"(a", INFERD_EINVAL, "pattern: a group that does not end, at byte 0"},
        {"a)", INFERD_EINVAL, "pattern: \")\" without \"(\" at byte 1"},
        {"[a", INFERD_EINVAL, "pattern: a class that does not end, at byte 0"},
        {"[z-a]", INFERD_EINVAL, "pattern: a range out of order at byte 1"},
        {"a{3,2}", INFERD_EINVAL, "pattern: a count out of order at byte 1"},
        {"*a", INFERD_EINVAL, "pattern: a quantifier with nothing before it at byte 0"},
        {"a|{2}", INFERD_EINVAL, "pattern: a quantifier with nothing before it at byte 2"},
        {"a**", INFERD_EINVAL, "pattern: a quantifier behind a quantifier at byte 2"},
        {"a\\", INFERD_EINVAL, "pattern: a backslash ends it, at byte 1"},
        {"\\q", INFERD_EINVAL, "pattern: no escape \\q is known, at byte 0"},
        {"\\x4", INFERD_EINVAL, "pattern: \\x without two hexadecimal digits at byte 0"},
        {"\\u{110000}", INFERD_EINVAL, "pattern: \\u{...} is no code point at byte 0"},
        {"\\012", INFERD_EINVAL, "pattern: an octal escape at byte 0"},
        {"(?<>a)", INFERD_EINVAL, "pattern: a group without a name at byte 0"},
        {"a\xff", INFERD_EINVAL, "pattern: no UTF-8 at byte 1"},
        {"a{5000}", INFERD_ETOOLONG, "pattern: a count of 5000 at byte 1; the limit is 4096"},
        {"(a{4000}){4000}", INFERD_ETOOLONG,
         "pattern: its repetitions need more than 65536 states"},
        {"[ab]*a[ab]{20}", INFERD_ETOOLONG,
         "pattern: needs more than 16384 states, or too large ones"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        dfa d;
        inferd_err err = {0};
        EXPECT_EQ(
            regex_compile(rig_text(refused[i].pattern), REGEX_TEXT, &dfa_limits_default, &d, &err),
            refused[i].status);
        EXPECT_STR(err.text, refused[i].text);
        EXPECT(dfa_is_empty(&d));
        dfa_deinit(&d);
    }
}

static void nesting_and_length_have_limits(void) {
    static char pattern[5000];
    dfa d;
    inferd_err err = {0};
    memset(pattern, 'a', sizeof pattern);
    EXPECT(regex_compile((bytes){pattern, 4097}, REGEX_TEXT, &dfa_limits_default, &d, &err) ==
           INFERD_ETOOLONG);
    EXPECT_STR(err.text, "pattern: 4097 bytes; the limit is 4096");
    EXPECT(regex_compile((bytes){pattern, 4096}, REGEX_TEXT, &dfa_limits_default, &d, &err) ==
           INFERD_OK);
    dfa_deinit(&d);
    memset(pattern, '(', 51);
    memset(pattern + 51, ')', 51);
    EXPECT(regex_compile((bytes){pattern, 102}, REGEX_TEXT, &dfa_limits_default, &d, &err) ==
           INFERD_ETOOLONG);
    EXPECT_STR(err.text, "pattern: groups nested deeper than 50 at byte 50");
    EXPECT(regex_compile((bytes){pattern + 1, 100}, REGEX_TEXT, &dfa_limits_default, &d, &err) ==
           INFERD_OK);
    EXPECT(rig_match(&d, ""));
    dfa_deinit(&d);
}

/* Many symbols and large sets at once: the bounds end it long before it takes seconds. */
static void costly_patterns_end_soon(void) {
    static char pattern[4096];
    size_t n = (size_t)sprintf(pattern, "(x.{0,1000}){3}[");
    for (unsigned c = 0x4e00; n + 8 < sizeof pattern; c += 2)
        n += (size_t)sprintf(pattern + n, "%c%c%c|", 0xE0 | c >> 12, 0x80 | (c >> 6 & 63),
                             0x80 | (c & 63));
    n += (size_t)sprintf(pattern + n, "]");
    dfa d;
    inferd_err err = {0};
    EXPECT(regex_compile((bytes){pattern, n}, REGEX_JSON_SEARCH, &dfa_limits_default, &d, &err) ==
           INFERD_ETOOLONG);
    dfa_deinit(&d);
}

static const test_case cases[] = {
    TEST(atoms_and_quantifiers),
    TEST(classes_and_escapes),
    TEST(classes_are_those_of_both_languages),
    TEST(anchors_are_exact),
    TEST(search_finds_it_anywhere),
    TEST(json_strings_are_canonical),
    TEST(look_aheads_at_the_beginning),
    TEST(wide_patterns_accept_what_either_accepts),
    TEST(counts_are_expanded),
    TEST(what_cannot_be_enforced_is_named),
    TEST(nesting_and_length_have_limits),
    TEST(costly_patterns_end_soon),
};
TEST_MAIN(cases)
