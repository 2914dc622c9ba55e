/* test_json_in.c - JSON from strangers: what is accepted, what is refused and how it is said. */
#include <time.h>

#include "inferd/buf.h"
#include "json_in.h"
#include "test.h"

enum { TEXT_MAX = 512 };

static inferd_status parse(const char *text, size_t n, const json_limits *limits, inferd_err *err) {
    json_t *tree = NULL;
    inferd_status s = json_in_parse((bytes){text, n}, limits, &tree, err);
    EXPECT_EQ(s == INFERD_OK, tree != NULL);
    json_decref(tree);
    return s;
}

static void expect(const char *text, inferd_status wanted, const char *sentence) {
    inferd_err err = {0};
    inferd_status s = parse(text, strlen(text), &json_limits_default, &err);
    EXPECT_EQ(s, wanted);
    if (sentence != NULL && strstr(err.text, sentence) == NULL) EXPECT_STR(err.text, sentence);
    if (s != wanted) printf("  in %.60s\n", text);
}

static void valid_documents_are_read(void) {
    static const char *const texts[] = {
        "{}",
        "[]",
        " {\"a\" : [1, 2.5, -0, 1e5, \"x\", true, false, null]}\r\n\t ",
        "[9223372036854775807, -9223372036854775808, 1e308, 1e-400]",
        "{\"a\":{\"a\":{\"a\":[]}}}",
        "[\"\\ud83d\\ude00 \\u00e9 \xc3\xa9 \\\" \\\\ \\/ \\b\"]",
    };
    for (size_t i = 0; i < INFERD_COUNT(texts); i++) expect(texts[i], INFERD_OK, NULL);
}

static void problems_have_a_location_and_no_echo(void) {
    static const struct {
        const char *text, *sentence;
    } rows[] = {
        {"", "line 1"},
        {"   ", "line 1"},
        {"null", "not valid"},
        {"1", "not valid"},
        {"\"secret\"", "not valid"},
        {"true", "not valid"},
        {"{\"a\":1", "line 1"},
        {"{\"a\":1}}", "after the end"},
        {"{\"a\":1} {\"b\":2}", "after the end"},
        {"{\"a\":1,}", "not valid"},
        {"[1,]", "not valid"},
        {"{\"a\":1 // secret\n}", "line 1"},
        {"{'secret':1}", "not valid"},
        {"{secret:1}", "not valid"},
        {"{\n  \"a\": 1,\n  \"b\": secret\n}", "line 3, column 13"},
        {"{\"a\":1,\"a\":2}", "twice"},
        {"{\"x\":{\"a\":1,\"a\":2}}", "twice"},
        {"[1e309]", "too large"},
        {"[100000000000000000000, 1e309]", "line 1, column 29: a number is too large"},
        {"[100000000000000000000,\n secret]", "line 2, column 7"},
        {"[0100000000000000000000]", "not valid"},
        {"[-00000000000000000000]", "not valid"},
        {"[100000000000000000000-1]", "not valid"},
        {"[1000000000000000000001000000000000000000000 1]", "line 1, column 46"},
        {"[NaN]", "not valid"},
        {"[Infinity]", "not valid"},
        {"[-Infinity]", "not valid"},
        {"[0x10]", "not valid"},
        {"[01]", "not valid"},
        {"[1.]", "not valid"},
        {"[.5]", "not valid"},
        {"[+1]", "not valid"},
        {"[\"\\ud83d\"]", "not valid"},
        {"[\"\\ude00\"]", "not valid"},
        {"[\"\\ude00\\ud83d\"]", "not valid"},
        {"[\"\\u0000\"]", "NUL"},
        {"{\"a\\u0000b\":1}", "NUL"},
        {"[\"\\x41\"]", "not valid"},
        {"[\"\xc0\x80\"]", "UTF-8"},
        {"[\"\xed\xa0\x80\"]", "UTF-8"},
        {"[\"\xf4\x90\x80\x80\"]", "UTF-8"},
        {"[\"\xe2\x82\"]", "UTF-8"},
        {"[\"\xff\"]", "UTF-8"},
        {"[\"\x01\"]", "not valid"},
        {"\xef\xbb\xbf{}", "not valid"},
        {"[\"secret", "line 1"},
    };
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        inferd_err err = {0};
        inferd_status s = parse(rows[i].text, strlen(rows[i].text), &json_limits_default, &err);
        EXPECT_EQ(s, INFERD_EINVAL);
        EXPECT(strncmp(err.text, "line ", 5) == 0);
        EXPECT(strstr(err.text, "secret") == NULL);
        if (strstr(err.text, rows[i].sentence) == NULL) {
            printf("  in %s\n", rows[i].text);
            EXPECT_STR(err.text, rows[i].sentence);
        }
    }
    EXPECT_EQ(parse("[\"a\0b\"]", 7, &json_limits_default, NULL), INFERD_EINVAL);
    EXPECT_EQ(parse("{\0}", 3, &json_limits_default, NULL), INFERD_EINVAL);
    EXPECT_EQ(parse(NULL, 0, &json_limits_default, NULL), INFERD_EINVAL);
}

/* As most readers of JSON have them: the nearest double.  Strings and what follows stay. */
static void integers_beyond_64_bits_are_doubles(void) {
    static const struct {
        const char *text;
        double is;
    } rows[] = {
        {"9223372036854775808", 9223372036854775808.0},
        {"-9223372036854775809", -9223372036854775808.0},
        {"9999999999999999999", 1e19},
        {"18446744073709551615", 18446744073709551616.0},
        {"100000000000000000000", 1e20},
        {"-100000000000000000000", -1e20},
        {"12345678901234567890123", 12345678901234567890123.0},
        {"99999999999999999999999999999", 1e29},
    };
    char text[TEXT_MAX];
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        json_t *tree = NULL;
        inferd_err err = {0};
        snprintf(text, sizeof text, "{\"%s\":[\"%s\",%s],\"n\":9223372036854775807}", rows[i].text,
                 rows[i].text, rows[i].text);
        EXPECT_EQ(json_in_parse((bytes){text, strlen(text)}, &json_limits_default, &tree, &err),
                  INFERD_OK);
        json_t *list = json_object_get(tree, rows[i].text);
        EXPECT_STR(json_string_value(json_array_get(list, 0)), rows[i].text);
        EXPECT(json_is_real(json_array_get(list, 1)));
        EXPECT(json_real_value(json_array_get(list, 1)) == rows[i].is);
        EXPECT_EQ(json_integer_value(json_object_get(tree, "n")), INT64_MAX);
        json_decref(tree);
    }
    for (size_t n = 19; n <= 310; n++) { // as long as a double can be, and longer
        json_t *tree = NULL;
        memset(text, '9', n + 1);
        text[0] = '[';
        text[n + 1] = ']';
        inferd_status s = json_in_parse((bytes){text, n + 2}, &json_limits_default, &tree, NULL);
        EXPECT_EQ(s, n <= 308 ? INFERD_OK : INFERD_EINVAL);
        text[n + 1] = 0;
        if (s == INFERD_OK)
            EXPECT(json_real_value(json_array_get(tree, 0)) == strtod(text + 1, NULL));
        json_decref(tree);
    }
}

/* The digits are in the text alone. */
static void a_value_is_found_in_the_text(void) {
    const char *text = " {\"a\": [0, {\"input\" : {\"n\": [100000000000000000000], \"s\": \"}\"} , "
                       "\"k\":-1e5}]} ";
    static const struct {
        const char *path, *value;
    } rows[] = {
        {"a[1].input", "{\"n\": [100000000000000000000], \"s\": \"}\"}"},
        {"a[1].input.n", "[100000000000000000000]"},
        {"a[1].input.n[0]", "100000000000000000000"},
        {"a[1].k", "-1e5"},
        {"a[0]", "0"},
        {"a[2]", ""},
        {"b", ""},
        {"a.input", ""},
    };
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        bytes value = json_in_value((bytes){text, strlen(text)}, rows[i].path);
        char found[TEXT_MAX];
        snprintf(found, sizeof found, "%.*s", (int)value.n, value.p);
        EXPECT_STR(found, rows[i].value);
    }
    static const char *const wide[] = {"[1e20]", "{\"a\":-1.8446744073709552e+19}"},
                             *const narrow[] = {"[1e18]", "{\"1e20\":\"1e20\"}", "[0.5, -7]", "1"};
    for (size_t i = 0; i < INFERD_COUNT(wide); i++)
        EXPECT(json_in_has_wide((bytes){wide[i], strlen(wide[i])}));
    for (size_t i = 0; i < INFERD_COUNT(narrow); i++)
        EXPECT(!json_in_has_wide((bytes){narrow[i], strlen(narrow[i])}));
}

/* J16, J17: a valid body cut anywhere, or with any bit flipped, is refused or read; never worse. */
static void every_cut_and_every_flip_is_survived(void) {
    static const char body[] =
        "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"h\\u00e9\"}],"
        "\"n\":2,\"t\":0.5,\"s\":[true,null]}";
    char copy[sizeof body];
    size_t n = sizeof body - 1, n_ok = 0;
    for (size_t i = 0; i < n; i++)
        EXPECT_EQ(parse(body, i, &json_limits_default, NULL), INFERD_EINVAL);
    for (size_t i = 0; i < 8 * n; i++) {
        memcpy(copy, body, sizeof body);
        copy[i / 8] ^= (char)(1 << i % 8);
        inferd_status s = parse(copy, n, &json_limits_default, NULL);
        EXPECT(s == INFERD_OK || s == INFERD_EINVAL);
        n_ok += s == INFERD_OK;
    }
    EXPECT(n_ok > 0 && n_ok < 8 * n);
}

/* `unit` n times, between `begin` and `end`. */
static buf repeated(const char *begin, const char *unit, size_t n, const char *end) {
    buf b;
    buf_init(&b, 0);
    buf_add_str(&b, begin);
    for (size_t i = 0; i < n; i++) buf_add_str(&b, unit);
    buf_add_str(&b, end);
    return b;
}

static void expect_repeated(const char *begin, const char *unit, size_t n, const char *end,
                            inferd_status wanted, const char *sentence) {
    inferd_err err = {0};
    buf b = repeated(begin, unit, n, end);
    EXPECT_EQ(parse(b.p, b.n, &json_limits_default, &err), wanted);
    if (strstr(err.text, sentence) == NULL) EXPECT_STR(err.text, sentence);
    buf_deinit(&b);
}

static void depth_is_bounded(void) {
    buf b;
    buf_init(&b, 0);
    for (size_t depth = 64; depth <= 65; depth++) {
        buf_clear(&b);
        for (size_t i = 0; i < depth; i++) buf_add_char(&b, '[');
        for (size_t i = 0; i < depth; i++) buf_add_char(&b, ']');
        EXPECT_EQ(parse(b.p, b.n, &json_limits_default, NULL),
                  depth == 64 ? INFERD_OK : INFERD_ETOOLONG);
    }
    buf_deinit(&b);
    expect_repeated("", "[", 100000, "", INFERD_ETOOLONG, "line 1, column 65: nested too deeply");
    expect_repeated("", "{\"a\":", 100000, "", INFERD_ETOOLONG, "nested too deeply");
    /* Brackets in strings are no depth, and an escaped quote ends no string. */
    expect_repeated("[\"\\\"", "[", 1000, "\"]", INFERD_OK, "");
    expect_repeated("[\"\\\\\"", "[", 1000, "]", INFERD_ETOOLONG, "nested too deeply");
}

static void count_of_values_is_bounded(void) {
    expect_repeated("[1", ",1", 999999, "]", INFERD_OK, ""); // a million token ids
    expect_repeated("[1", ",1", 1100000, "]", INFERD_ETOOLONG, "too many values");
    expect_repeated("[{}", ",{}", 1400000, "]", INFERD_ETOOLONG, "too many values");
    expect_repeated("[[]", ",[]", 1400000, "]", INFERD_ETOOLONG, "too many values");
    expect_repeated("{\"", "k", 5000, "\":1}", INFERD_ETOOLONG, "a key is too long");
    expect_repeated("{\"", "k", 4000, "\":1}", INFERD_OK, "");
    expect_repeated("[\"", "k", 4194304, "\"]", INFERD_OK, ""); // a long value is no key
    expect_repeated("[\"", "\\u0041", 700000, "\"]", INFERD_OK, "");
    expect_repeated("[", " ", 4194304, "]", INFERD_OK, "");
}

/* The amplification that limits on the text cannot see is bounded by bytes. */
static void memory_of_the_tree_is_bounded(void) {
    json_limits small = json_limits_default;
    inferd_err err = {0};
    small.memory_max = 1024 * 1024;
    buf b = repeated("[{}", ",{}", 100000, "]");
    EXPECT_EQ(parse(b.p, b.n, &small, &err), INFERD_ETOOLONG);
    EXPECT(strstr(err.text, "1048576 bytes of memory") != NULL);
    EXPECT_EQ(parse(b.p, b.n, &json_limits_default, &err), INFERD_OK);
    buf_deinit(&b);
    EXPECT_EQ(parse("{\"a\":1}", 7, &small, &err), INFERD_OK); // the budget begins anew
    small.memory_max = 16;
    EXPECT_EQ(parse("{\"a\":1}", 7, &small, &err), INFERD_ETOOLONG);
}

/* Whichever allocation fails inside jansson, it is told as a lack of memory and nothing worse: on
 * its own jansson calls it a syntax error, or loses a character and asserts.  The second document
 * did that: its string outgrew the lexer's buffer just when the budget was spent. */
static void no_failed_allocation_looks_like_bad_json(void) {
    static const char *const texts[] = {
        "{\"a\":[1,2,{\"b\":\"text\",\"c\":1.5}],\"d\":{\"e\":[[],[],{}]}}",
        "{\"{lmo[[[[[[[[[[[[[ lodels with a long name that grows and grows\": 12345678901234}",
        "[\"0123456789012345678901234567890123456789012345678901234567890123\\u0041\", true]",
        "{\"unterminated, and longer than what a buffer has at first",
        "[12345678901234567,1234567890123456789,-0.12345678901234567890123456789e-12,fals]",
    };
    json_limits l = json_limits_default;
    for (size_t t = 0; t < INFERD_COUNT(texts); t++) {
        size_t n = strlen(texts[t]), n_refused = 0;
        inferd_status whole = parse(texts[t], n, &json_limits_default, NULL);
        for (l.memory_max = 0; l.memory_max < 8192; l.memory_max += 8) {
            inferd_status s = parse(texts[t], n, &l, NULL);
            EXPECT(s == whole || s == INFERD_ETOOLONG);
            n_refused += s == INFERD_ETOOLONG;
        }
        EXPECT(n_refused > 10);
        EXPECT_EQ(parse(texts[t], n, &l, NULL), whole);
    }
}

/* Many keys in one object must not be slow: the table is seeded. */
static void many_keys_are_read_in_time(void) {
    buf b;
    buf_init(&b, 0);
    buf_add_char(&b, '{');
    for (int i = 0; i < 300000; i++) buf_add_format(&b, "%s\"k%d\":0", i > 0 ? "," : "", i);
    buf_add_char(&b, '}');
    clock_t begin = clock(); // of this program alone
    EXPECT_EQ(parse(b.p, b.n, &json_limits_default, NULL), INFERD_OK);
    EXPECT(clock() - begin < 10 * CLOCKS_PER_SEC); // one bucket for all would take minutes
    buf_deinit(&b);
}

static void lines_are_found_by_path(void) {
    static const char text[] = "{\n"
                               "  \"listen\": \"a, [b] {c}\",\n"
                               "  \"models\": [\n"
                               "    {\"name\": \"x\\\"\", \"path\": \"y\"},\n"
                               "    {\n"
                               "      \"name\": \"z\",\n"
                               "      \"aliases\": [ \"p\",\n"
                               "        \"q\" ], \"n\": -1.5e3\n"
                               "    }\n"
                               "  ],\n"
                               "  \"limits\": {},\n"
                               "  \"log\":\n"
                               "    { \"level\": \"info\" }\n"
                               "}\n";
    static const struct {
        const char *path;
        uint32_t line;
    } rows[] = {
        {"", 1},
        {"listen", 2},
        {"models", 3},
        {"models[0]", 4},
        {"models[0].path", 4},
        {"models[1]", 5},
        {"models[1].name", 6},
        {"models[1].aliases[0]", 7},
        {"models[1].aliases[1]", 8},
        {"models[1].n", 8},
        {"limits", 11},
        {"log", 13},
        {"log.level", 13},
        {"models[2]", 0},
        {"models[1].aliases[2]", 0},
        {"models.name", 0},
        {"listen[0]", 0},
        {"nothing", 0},
        {"limits.x", 0},
        {"models[x]", 0},
        {"models[0", 0},
        {"models[18446744073709551615]", 0},
        {"[0]", 0},
        {".", 0},
    };
    json_lines *l = json_lines_create((bytes){text, sizeof text - 1});
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        EXPECT_EQ(json_lines_find(l, rows[i].path), rows[i].line);
        if (json_lines_find(l, rows[i].path) != rows[i].line) printf("  at %s\n", rows[i].path);
    }
    json_lines_destroy(l);
    /* And nowhere beyond the end of any piece of it. */
    for (size_t n = 0; n < sizeof text; n++) {
        char *piece = malloc(n + 1);
        memcpy(piece, text, n);
        json_lines *cut = json_lines_create((bytes){piece, n});
        for (size_t i = 0; i < INFERD_COUNT(rows); i++)
            EXPECT(json_lines_find(cut, rows[i].path) <= rows[i].line);
        json_lines_destroy(cut);
        free(piece);
    }
}

static const test_case cases[] = {
    TEST(valid_documents_are_read),
    TEST(problems_have_a_location_and_no_echo),
    TEST(integers_beyond_64_bits_are_doubles),
    TEST(a_value_is_found_in_the_text),
    TEST(every_cut_and_every_flip_is_survived),
    TEST(depth_is_bounded),
    TEST(count_of_values_is_bounded),
    TEST(memory_of_the_tree_is_bounded),
    TEST(no_failed_allocation_looks_like_bad_json),
    TEST(many_keys_are_read_in_time),
    TEST(lines_are_found_by_path),
};
TEST_MAIN(cases)
