/* test_chat_json.c - JSON texts inside requests are read as jansson reads them, and refused where
 * it refuses. */
#include <jansson.h>

#include "chat/json_text.h"
#include "chat/value.h"
#include "test.h"

static bytes of(const char *s) {
    return (bytes){s, strlen(s)};
}

/* The same data, or a refusal by both; integers beyond 64 bits as jansson has them if all are
 * reals. */
static void expect_as_jansson(bytes text) {
    json_error_t error;
    inferd_err err = {0};
    size_t flags = JSON_DECODE_ANY | JSON_ALLOW_NUL;
    json_t *got, *wanted = json_loadb(text.p, text.n, flags, &error);
    inferd_status s = json_text_read(text, &got, &err);
    if (wanted == NULL && json_error_code(&error) == json_error_numeric_overflow) {
        wanted = json_loadb(text.p, text.n, flags | JSON_DECODE_INT_AS_REAL, &error);
        EXPECT_EQ(s == INFERD_OK, wanted != NULL);
        if (json_is_real(wanted)) EXPECT(json_equal(got, wanted));
        json_decref(got);
        json_decref(wanted);
        return;
    }
    if ((s == INFERD_OK) != (wanted != NULL) || (wanted != NULL && !json_equal(got, wanted)))
        printf("%.*s: %s; jansson: %s\n", (int)text.n, text.p, s == INFERD_OK ? "read" : err.text,
               wanted != NULL ? "read" : error.text);
    EXPECT_EQ(s == INFERD_OK, wanted != NULL);
    EXPECT(s == INFERD_OK ? json_equal(got, wanted) : got == NULL && err.text[0] != 0);
    json_decref(got);
    json_decref(wanted);
}

static const char *const texts[] = {
    "null",
    "true",
    " false\n",
    "0",
    "-0",
    "17",
    "-9223372036854775808",
    "9223372036854775807",
    "0.5",
    "-1.25e+3",
    "1E-7",
    "1e-400",
    "\"\"",
    "\"a\\\"\\\\\\/\\b\\f\\n\\r\\tz\"",
    "\"\\u0041\\u00e9\\u20AC\\ud83d\\ude00\\u0000\"",
    "\"\xc3\xa9\xf0\x9f\x98\x80\"",
    "[]",
    "[ ]",
    "[1,[2,[3]],{}]",
    "{}",
    "{ }",
    "{\"a\":1,\"b\":[true,null],\"a\":2}",
    "{\"\":{\"\":\"\"}}",
    "{\"a\\u0000b\":1}",
    " { \"k\" : \"v\" } ",
    /* refused */
    "",
    " ",
    "nul",
    "nulll",
    "+1",
    "01",
    "-",
    "1.",
    ".5",
    "1e",
    "1e+",
    "0x1",
    "1 2",
    "1e400",
    "9223372036854775808",
    "\"",
    "\"a",
    "\"\\",
    "\"\\x\"",
    "\"\\u12\"",
    "\"\\u12g4\"",
    "\"\\ud83d\"",
    "\"\\ud83dx\"",
    "\"\\ud83d\\u0041\"",
    "\"\\ude00\"",
    "\"\n\"",
    "\"\x01\"",
    "\"\xff\"",
    "\"\xed\xa0\x80\"",
    "[",
    "[1",
    "[1,",
    "[1,]",
    "[,]",
    "[1 2]",
    "]",
    "{",
    "{\"a\"",
    "{\"a\":",
    "{\"a\":}",
    "{\"a\":1,}",
    "{1:2}",
    "{a:1}",
    "{\"a\" 1}",
    "'a'",
    "NaN",
    "[1]]",
};

static void reads_what_jansson_reads(void) {
    for (size_t i = 0; i < INFERD_COUNT(texts); i++) expect_as_jansson(of(texts[i]));
    expect_as_jansson((bytes){"\"\0\"", 3}); // a bare U+0000 is a control character
    json_t *got;
    EXPECT_EQ(json_text_read((bytes){"1\0", 2}, &got, NULL), INFERD_EFORMAT); // jansson: the end
}

static void reads_what_jansson_reads_when_bytes_are_changed(void) {
    static const char letters[] = "{}[]\",:\\u0123456789abcdeftrufalsn.+-E \n\xc3\xa9";
    uint32_t state = 7;
    for (int round = 0; round < 20000; round++) {
        char text[128];
        state = state * 1664525u + 1013904223u;
        const char *from = texts[state >> 8 & 31 ? (state >> 13) % 25 : 20];
        size_t n = strlen(from);
        memcpy(text, from, n);
        for (int k = 0; k < 2 && n > 0; k++) {
            state = state * 1664525u + 1013904223u;
            text[(state >> 10) % n] = letters[(state >> 20) % (sizeof letters - 1)];
        }
        expect_as_jansson((bytes){text, n});
    }
}

/* Of a request the digits of an integer, of other texts the nearest double. */
static void integers_beyond_64_bits_are_read(void) {
    static const char *const wide[] = {"18446744073709551615", "-9223372036854775809",
                                       "12345678901234567890123"};
    json_t *got;
    for (size_t i = 0; i < INFERD_COUNT(wide); i++) {
        EXPECT_EQ(json_text_read(of(wide[i]), &got, NULL), INFERD_OK);
        EXPECT(json_is_real(got) && json_real_value(got) == strtod(wide[i], NULL));
        EXPECT(json_text_wide(got) == NULL);
        json_decref(got);
        EXPECT_EQ(json_text_read_wide(of(wide[i]), &got, NULL), INFERD_OK);
        EXPECT(json_text_wide(got) != NULL);
        EXPECT_STR(json_text_wide(got), wide[i]);
        json_decref(got);
    }
    static const char *const others[] = {"1", "1e20", "\"18446744073709551615\"",
                                         "\"\xc3\xbf 18446744073709551615\"",
                                         "9223372036854775807"};
    for (size_t i = 0; i < INFERD_COUNT(others); i++) {
        EXPECT_EQ(json_text_read_wide(of(others[i]), &got, NULL), INFERD_OK);
        EXPECT(json_text_wide(got) == NULL);
        json_decref(got);
    }
    EXPECT_EQ(json_text_read_wide(of("\"\xff"
                                     "18446744073709551615\""),
                                  &got, NULL),
              INFERD_EFORMAT);
}

static void nesting_has_a_bound(void) {
    char text[2 * JVALUE_DEPTH_MAX + 4];
    json_t *got;
    inferd_err err = {0};
    for (size_t depth = JVALUE_DEPTH_MAX; depth <= JVALUE_DEPTH_MAX + 1; depth++) {
        memset(text, '[', depth);
        memset(text + depth, ']', depth);
        inferd_status s = json_text_read((bytes){text, 2 * depth}, &got, &err);
        EXPECT_EQ(s, depth > JVALUE_DEPTH_MAX ? INFERD_EFORMAT : INFERD_OK);
        json_decref(got);
    }
    EXPECT(strstr(err.text, "byte 201: nested") != NULL);
}

/* Whichever allocation fails, jansson's or ours: an answer, and nothing is lost (the sanitizer
 * build counts). */
static size_t allocations_left;
static void *failing_malloc(size_t n) {
    if (allocations_left == 0) return NULL;
    allocations_left--;
    return malloc(n);
}

static void a_failing_allocation_is_an_answer(void) {
    static const char text[] = "{\"a\": [1, 2.5, \"text\", {\"deep\": [true, null, \"more\"]}], "
                               "\"another key\": \"a text that is longer than small buffers are, "
                               "by quite a bit, so that it has to grow\"}";
    size_t n_failed = 0;
    json_set_alloc_funcs(failing_malloc, free);
    for (size_t n = 0;; n++) {
        json_t *got;
        inferd_err err = {0};
        allocations_left = n;
        inferd_status s = json_text_read(of(text), &got, &err);
        json_decref(got);
        if (s == INFERD_OK) break;
        EXPECT_EQ(s, INFERD_ENOMEM);
        EXPECT(got == NULL);
        n_failed++;
    }
    json_set_alloc_funcs(malloc, free);
    EXPECT(n_failed >= 10);
}

static const test_case cases[] = {
    TEST(reads_what_jansson_reads),          TEST(reads_what_jansson_reads_when_bytes_are_changed),
    TEST(integers_beyond_64_bits_are_read),  TEST(nesting_has_a_bound),
    TEST(a_failing_allocation_is_an_answer),
};
TEST_MAIN(cases)
