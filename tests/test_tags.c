/* Structural tags: free text, and parts of it that follow schemas. */
#include "grammar/tags_text.h"
#include "grammar_rig.h"

static grammar *compile(const char *json, inferd_err *err) {
    json_error_t why;
    json_t *tags = json_loads(json, 0, &why);
    if (tags == NULL) printf("bad JSON in a test: %s\n", why.text);
    grammar_schema_kind kind = {.compact = true};
    grammar *g = NULL;
    *err = (inferd_err){0};
    EXPECT_EQ(grammar_of_tags(tags, &kind, NULL, &g, err), err->status);
    EXPECT_EQ(g != NULL, err->status == INFERD_OK);
    json_decref(tags);
    return g;
}

static grammar_machine *machine_of(const char *json) {
    inferd_err err;
    grammar *g = compile(json, &err);
    if (g == NULL) printf("%s\n", err.text);
    return rig_machine(g);
}

static void expect_refused(int line, const char *json, inferd_status status, const char *words) {
    inferd_err err;
    grammar *g = compile(json, &err);
    if (err.status != status || strstr(err.text, words) == NULL) {
        printf("line %d: %d \"%s\", expected %d with \"%s\"\n", line, err.status, err.text, status,
               words);
        test_failures++;
    }
    grammar_release(g);
}
#define REFUSED(json, status, words) expect_refused(__LINE__, json, status, words)

#define GO   "{\"begin\":\"<f=go>\",\"schema\":{\"enum\":[\"left\",7]},\"end\":\"</f>\"}"
#define STAY "{\"begin\":\"<f=stay>\",\"schema\":{\"const\":1},\"end\":\"</f>\"}"
#define CALLS                                                                                      \
    "{\"type\":\"structural_tag\",\"structures\":[" GO "," STAY "],\"triggers\":[\"<f=\"]}"

static void text_is_free_until_a_trigger(void) {
    grammar_machine *m = machine_of(CALLS);
    EXPECT(rig_accepts(m, ""));
    EXPECT(rig_accepts(m, "any \"text\" < f <f </f> {"));
    EXPECT(rig_accepts(m, "I go: <f=go>\"left\"</f>"));
    EXPECT(rig_accepts(m, "<f=go>7</f> and <<f=stay>1</f><f=go>7</f>."));
    EXPECT_EQ(rig_read(m, "<f=x"), 3);
    EXPECT_EQ(rig_read(m, "<f=go>8"), 6);
    EXPECT_EQ(rig_read(m, "<f=stay>7"), 8);
    EXPECT_EQ(rig_read(m, "<f=go>7"), 7); // it may not end inside of a tag
    EXPECT_EQ(rig_read(m, "<f=go>7</f"), 10);
    grammar_machine_release(m);
}

/* Triggers may be part of each other, and of themselves. */
static void the_trigger_that_is_complete_first_counts(void) {
    grammar_machine *m =
        machine_of("{\"structures\":[{\"begin\":\"aab\",\"schema\":{\"const\":1},\"end\":\"\"},"
                   "{\"begin\":\"xyz\",\"schema\":{\"const\":2},\"end\":\"\"}],"
                   "\"triggers\":[\"aa\",\"xy\"]}");
    EXPECT(rig_accepts(m, "aab1"));
    EXPECT(rig_accepts(m, "ax.xaab1"));
    EXPECT_EQ(rig_read(m, "aaa"), 2); // "aa" is complete, so its tag must follow
    EXPECT(rig_accepts(m, "xxyz2 a"));
    EXPECT_EQ(rig_read(m, "xyaa"), 2);
    grammar_machine_release(m);
}

static void characters_are_whole_before_a_trigger(void) {
    grammar_machine *m =
        machine_of("{\"structures\":[{\"begin\":\"\xE2\x96\x81*\",\"schema\":true,\"end\":\".\"}],"
                   "\"triggers\":[\"\xE2\x96\x81*\"]}");
    EXPECT(rig_accepts(m, "\xE2\x96\x81 \xE2\x96\x82*"));
    EXPECT_EQ(rig_read(m, "\xE2\x96"), 2);
    EXPECT(rig_accepts(m, "\xE2\x96\x81*{\"a\":[null]}."));
    EXPECT_EQ(rig_read(m, "\xE2\x96\x81*)"), 4);
    grammar_machine_release(m);
}

#define TAG(begin, content, end)                                                                   \
    "{\"type\":\"tag\",\"begin\":\"" begin "\",\"content\":" content ",\"end\":\"" end "\"}"
#define SCHEMA(s)      "{\"type\":\"json_schema\",\"json_schema\":" s "}"
#define STRING(s)      "{\"type\":\"const_string\",\"value\":\"" s "\"}"
#define ANY            "{\"type\":\"any_text\"}"
#define PATTERN(s)     "{\"type\":\"regex\",\"pattern\":\"" s "\"}"
#define FORMAT(f)      "{\"type\":\"structural_tag\",\"format\":" f "}"
#define ELEMENTS(t, e) "{\"type\":\"" t "\",\"elements\":[" e "]}"

static void formats_are_joined(void) {
    grammar_machine *m = machine_of(FORMAT(ELEMENTS(
        "sequence",
        STRING("a(") "," ELEMENTS("or", PATTERN("[0-9]{2}") "," SCHEMA(
                                            "{\"type\":\"null\"}")) "," TAG("<x>", ANY, "</x>"))));
    EXPECT(rig_accepts(m, "a(12<x>any < </ x></x>"));
    EXPECT(rig_accepts(m, "a(null<x></x>"));
    EXPECT_EQ(rig_read(m, "a(1<"), 3);
    EXPECT_EQ(rig_read(m, "a(12<x>b</x>c"), 12); // the first </x> ends it
    grammar_machine_release(m);
}

static void tags_of_triggers_have_options(void) {
    static const char tags[] = "\"triggers\":[\"<\"],\"tags\":[" TAG(
        "<a>", SCHEMA("{\"const\":1}"), ";") ","
                                             "{\"begin\":\"<b>\",\"content\":" ANY
                                             ",\"end\":\";\"}]";
    char json[600];
    snprintf(json, sizeof json, FORMAT("{\"type\":\"triggered_tags\",%s,\"at_least_one\":true}"),
             tags);
    grammar_machine *m = machine_of(json);
    EXPECT_EQ(rig_read(m, "x"), 1);
    EXPECT(rig_accepts(m, "x<a>1;y<b>&<;z"));
    grammar_machine_release(m);
    snprintf(
        json, sizeof json,
        FORMAT("{\"type\":\"triggered_tags\",%s,\"at_least_one\":true,\"stop_after_first\":true}"),
        tags);
    m = machine_of(json);
    EXPECT(rig_accepts(m, "x<b>;"));
    EXPECT_EQ(rig_read(m, "x<b>;y"), 5);
    grammar_machine_release(m);
    snprintf(json, sizeof json,
             FORMAT("{\"type\":\"triggered_tags\",%s,\"stop_after_first\":true}"), tags);
    m = machine_of(json);
    EXPECT(rig_accepts(m, "x"));
    EXPECT(rig_accepts(m, "x<a>1;"));
    EXPECT_EQ(rig_read(m, "x<a>1;<"), 6);
    grammar_machine_release(m);
}

static void tags_have_separators(void) {
    grammar_machine *m = machine_of(
        FORMAT("{\"type\":\"tags_with_separator\",\"separator\":\", "
               "\",\"at_least_one\":true,\"tags\":[" TAG("(", SCHEMA("{\"enum\":[1,2]}"),
                                                         ")") "," TAG("[", STRING("x"), "]") "]}"));
    EXPECT(rig_accepts(m, "(1), [x], (2)"));
    EXPECT_EQ(rig_read(m, ""), 0);
    EXPECT_EQ(rig_read(m, "(1), "), 5);
    EXPECT_EQ(rig_read(m, "(1)(2)"), 3);
    grammar_machine_release(m);
}

static void what_cannot_be_enforced_is_named_with_its_path(void) {
    REFUSED(FORMAT("{\"type\":\"magic\"}"), INFERD_EUNSUPPORTED,
            "#/format: a format of type \"magic\"");
    REFUSED(FORMAT(ELEMENTS("sequence", STRING("a") "," ELEMENTS("or", "{\"type\":\"grammar\"}"))),
            INFERD_EUNSUPPORTED, "#/format/elements/1/elements/0");
    REFUSED(FORMAT("{\"type\":\"any_text\",\"excludes\":[\"a\"]}"), INFERD_EUNSUPPORTED,
            "\"excludes\"");
    REFUSED("{\"structures\":[{\"begin\":\"<\",\"schema\":{},\"end\":\"\",\"max\":3}],\"triggers\":"
            "[\"<\"]}",
            INFERD_EUNSUPPORTED, "#/structures/0: \"max\"");
    REFUSED("{\"structures\":[{\"begin\":\"<\",\"schema\":{\"type\":\"array\",\"uniqueItems\":true}"
            ",\"end\":\"\"}],"
            "\"triggers\":[\"<\"]}",
            INFERD_EUNSUPPORTED, "uniqueItems");
    REFUSED("{\"structures\":[" GO "],\"triggers\":[\"<g\"]}", INFERD_EINVAL,
            "a tag begins with no trigger");
    REFUSED("{\"structures\":[" GO "],\"triggers\":[\"<f\",\"x\"]}", INFERD_EINVAL,
            "a trigger begins no tag");
    REFUSED("{\"structures\":[" GO "],\"triggers\":[\"\"]}", INFERD_EINVAL, "\"triggers\"");
    REFUSED("{\"structures\":[{\"begin\":\"<\",\"end\":\"\"}],\"triggers\":[\"<\"]}", INFERD_EINVAL,
            "#/structures/0: there is no schema");
    REFUSED("{\"structures\":[5],\"triggers\":[\"<\"]}", INFERD_EINVAL, "#/structures/0");
    REFUSED("{\"triggers\":[\"<\"]}", INFERD_EINVAL, "\"structures\" must be an array");
    REFUSED(FORMAT(TAG("a", "5", "b")), INFERD_EINVAL, "#/format/content");
    REFUSED(FORMAT(TAG("a", ANY, "")), INFERD_EINVAL, "\"end\" must be a string that is not empty");
    REFUSED("{\"format\":" STRING("a") ",\"x\":1}", INFERD_EUNSUPPORTED,
            "\"x\" cannot be enforced");
}

static void formats_in_formats_are_bounded(void) {
    buf json = {0};
    buf_add_str(&json, "{\"format\":");
    for (int i = 0; i < 40; i++) buf_add_str(&json, "{\"type\":\"or\",\"elements\":[");
    buf_add_str(&json, STRING("a"));
    for (int i = 0; i < 40; i++) buf_add_str(&json, "]}");
    buf_add_str(&json, "}");
    REFUSED(buf_cstr(&json), INFERD_ETOOLONG, "formats inside of another");
    buf_deinit(&json);
}

/* Bytes up to the end of the first occurrence of any of them; 0: none occurs. */
static size_t first_end(const bytes *texts, size_t n, const char *s, size_t n_s) {
    for (size_t end = 1; end <= n_s; end++)
        for (size_t i = 0; i < n; i++)
            if (texts[i].n <= end && memcmp(s + end - texts[i].n, texts[i].p, texts[i].n) == 0)
                return end;
    return 0;
}

static bool ends_with(const char *s, size_t n, bytes text) {
    return text.n <= n && memcmp(s + n - text.n, text.p, text.n) == 0;
}

/* Every text of up to six characters of an alphabet that makes triggers overlap, and its halves. */
static void automata_of_free_text_are_those_of_a_plain_search(void) {
    static const char *const letters[] = {"a", "b", "\xC3\xA4", "\xE2\x96\x81"};
    static const char *const words[] = {"aab", "ba", "\xC3\xA4\xC3\xA4", "a\xE2\x96\x81"};
    enum { WORDS = 4 };
    bytes texts[WORDS];
    dfa until[WORDS], without;
    for (size_t i = 0; i < WORDS; i++) texts[i] = (bytes){words[i], strlen(words[i])};
    for (size_t i = 0; i < WORDS; i++)
        EXPECT_EQ(tags_until(texts, WORDS, i, &until[i], NULL), INFERD_OK);
    EXPECT_EQ(tags_without(texts, WORDS, &without, NULL), INFERD_OK);
    for (unsigned code = 0; code < 4096 * 4; code++) {
        char s[24];
        size_t n = 0;
        for (unsigned k = 0, left = code, len = code % 7; k < len; k++, left /= 4)
            n += (size_t)sprintf(s + n, "%s", letters[left % 4]);
        size_t end = first_end(texts, WORDS, s, n);
        EXPECT_EQ(dfa_match(&without, (bytes){s, n}) != 0, end == 0);
        for (size_t i = 0; i < WORDS; i++)
            EXPECT_EQ(dfa_match(&until[i], (bytes){s, n}) != 0,
                      end == n && n > 0 && ends_with(s, n, texts[i]));
        if (n > 0 && (unsigned char)s[n - 1] >= 0x80) // half a character is no text
            EXPECT(dfa_match(&without, (bytes){s, n - 1}) == 0);
    }
    for (size_t i = 0; i < WORDS; i++) dfa_deinit(&until[i]);
    dfa_deinit(&without);
}

static void triggers_are_bounded(void) {
    bytes many[TAGS_TEXTS_MAX + 1];
    static char long_one[TAGS_TEXTS_BYTES_MAX + 1];
    inferd_err err = {0};
    dfa d;
    memset(long_one, 'a', sizeof long_one);
    for (size_t i = 0; i <= TAGS_TEXTS_MAX; i++) many[i] = (bytes){"b", 1};
    EXPECT_EQ(tags_without(many, TAGS_TEXTS_MAX + 1, &d, &err), INFERD_ETOOLONG);
    EXPECT_EQ(tags_until(&(bytes){long_one, sizeof long_one}, 1, 0, &d, &err), INFERD_ETOOLONG);
    EXPECT_EQ(tags_until(&(bytes){long_one, sizeof long_one - 1}, 1, 0, &d, &err), INFERD_OK);
    dfa_deinit(&d);
    REFUSED("{\"structures\":[" GO "," GO "],\"triggers\":[\"<f=g\",\"f\"]}", INFERD_EINVAL,
            "trigger");
}

static const test_case cases[] = {TEST(text_is_free_until_a_trigger),
                                  TEST(the_trigger_that_is_complete_first_counts),
                                  TEST(characters_are_whole_before_a_trigger),
                                  TEST(formats_are_joined),
                                  TEST(tags_of_triggers_have_options),
                                  TEST(tags_have_separators),
                                  TEST(what_cannot_be_enforced_is_named_with_its_path),
                                  TEST(formats_in_formats_are_bounded),
                                  TEST(automata_of_free_text_are_those_of_a_plain_search),
                                  TEST(triggers_are_bounded)};
TEST_MAIN(cases)
