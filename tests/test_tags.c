/* Structural tags: free text, and parts of it that follow schemas. */
#include "tok_tiny.h"

#include "grammar/tags_text.h"
#include "grammar_rig.h"

static bool with_tokens; // of the next compilation

static grammar *compile(const char *json, inferd_err *err) {
    json_error_t why;
    json_t *tags = json_loads(json, 0, &why);
    if (tags == NULL) printf("bad JSON in a test: %s\n", why.text);
    grammar_schema_kind kind = {.compact = true, .tokens = with_tokens};
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

/* The tags of many tools end alike.  Each had an automaton of its own, 50 MB of them here, and 40
 * tools took more time than a compilation has. */
static void parts_that_are_alike_are_made_once(void) {
    enum { TAGS = 1000, END = 200 };
    json_t *tags = json_array(), *v;
    char begin[16], end[END + 1] = "";
    for (int i = 0; i < END; i++) end[i] = (char)('!' + (i * 7 + i / 90) % 90);
    for (int i = 0; i < TAGS; i++) {
        snprintf(begin, sizeof begin, "<%d>", i);
        json_array_append_new(tags, json_pack("{s:s,s:{s:s},s:s}", "begin", begin, "content",
                                              "type", "any_text", "end", end));
    }
    v = json_pack("{s:{s:s,s:o,s:s}}", "format", "type", "tags_with_separator", "tags", tags,
                  "separator", ",");
    char *text = json_dumps(v, 0);
    grammar_machine *m = machine_of(text);
    char call[END + 32];
    snprintf(call, sizeof call, "<999>free %s,", end);
    EXPECT_EQ(rig_read(m, call), (int)strlen(call));
    free(text);
    json_decref(v);
    grammar_machine_release(m);
}

/* The notations of tool calls write arguments in the order of the schema, with commas between. */
static void members_come_in_order(void) {
#define ONE(c) "{\"type\":\"const_string\",\"value\":\"" c "\"}"
    static const char json[] =
        "{\"format\":{\"type\":\"members\",\"separator\":\",\",\"elements\":[" ONE("a") "," ONE(
            "b") "," ONE("c") "," ONE("d") "],\"required\":[false,%s,false,false]}}";
    char text[sizeof json + 8];
    for (int must = 0; must < 2; must++) {
        snprintf(text, sizeof text, json, must ? "true" : "false");
        grammar_machine *m = machine_of(text);
        for (const char *fits = "a,b,c,d\0a,b\0b\0b,d\0"; *fits != 0; fits += strlen(fits) + 1)
            EXPECT(rig_accepts(m, fits));
        EXPECT_EQ(rig_accepts(m, ""), !must);
        EXPECT_EQ(rig_accepts(m, "a,c"), !must);
        EXPECT_EQ(rig_accepts(m, "d"), !must);
        for (const char *not = "b,a\0a,\0,b\0ab\0b,b\0"; *not != 0; not += strlen(not ) + 1)
            EXPECT(!rig_accepts(m, not ));
        grammar_machine_release(m);
    }
    REFUSED("{\"format\":{\"type\":\"members\",\"elements\":[" ONE("a") "],\"required\":[]}}",
            INFERD_EINVAL, "required");
    grammar_machine *m = machine_of(
        "{\"format\":{\"type\":\"tags_with_separator\",\"tags\":[{\"begin\":\"\",\"content\":" ONE(
            "a") ",\"end\":\"\"}],\"separator\":\",\",\"at_least\":2,\"at_most\":3}}");
    EXPECT(rig_accepts(m, "a,a") && rig_accepts(m, "a,a,a"));
    EXPECT(!rig_accepts(m, "a") && !rig_accepts(m, "") && !rig_accepts(m, "a,a,a,a"));
    grammar_machine_release(m);
#undef ONE
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

#define TEXT(s) "{\"type\":\"string_text\",\"json_schema\":" s "}"

static void texts_follow_the_schema_of_a_string(void) {
    grammar_machine *m = machine_of(FORMAT(
        TAG("<a>", TEXT("{\"type\":\"string\",\"pattern\":\"b+\",\"maxLength\":3}"), "</a>")));
    EXPECT(rig_accepts(m, "<a>b</a>"));
    EXPECT(rig_accepts(m, "<a>\"b\xC3\xBC</a>")); // no quotes, no escapes; characters are counted
    EXPECT_EQ(rig_read(m, "<a>xxb1"), 6);
    EXPECT_EQ(rig_read(m, "<a>x</a>"), 5);
    grammar_machine_release(m);
    m = machine_of(FORMAT(TAG("'", TEXT("{\"format\":\"date\"}"), "'")));
    EXPECT(rig_accepts(m, "'2026-02-28'"));
    EXPECT_EQ(rig_read(m, "'2026-02-29'"), 10);
    grammar_machine_release(m);
    m = machine_of(FORMAT(TAG("<", TEXT("{\"minLength\":1}"), ">")));
    EXPECT_EQ(rig_read(m, "<>"), 1);
    EXPECT(rig_accepts(m, "<a\n>"));
    grammar_machine_release(m);
    REFUSED(FORMAT(TAG("<", TEXT("{\"format\":\"odd\"}"), ">")), INFERD_EUNSUPPORTED,
            "#/format/content: the format \"odd\" is not known");
    REFUSED(FORMAT(TAG("<", TEXT("{\"pattern\":\"(a)\\\\1\"}"), ">")), INFERD_EUNSUPPORTED,
            "#/format/content");
    REFUSED(FORMAT(TAG("<", TEXT("{\"pattern\":\"^a$\",\"minLength\":2}"), ">")),
            INFERD_EUNSUPPORTED, "no text follows its schema");
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

/* The last of the texts has ended at n, and free text before it has no symbol. */
static bool ends_free_text(const char *s, size_t n, bytes text) {
    return ends_with(s, n, text) && memchr(s, 0xff, n - text.n) == NULL;
}

/* The same with symbols: control tokens "a>" and "b", beside the same bytes as text. */
static void symbols_are_in_free_text_only_as_part_of_a_trigger(void) {
    static const char *const letters[] = {"a", ">",
                                          "\xff"
                                          "a>\xff",
                                          "\xff"
                                          "b\xff"};
    static const char *const words[] = {"\xff"
                                        "b\xff"
                                        "a",
                                        "\xff"
                                        "b\xff>",
                                        "a\xff"
                                        "a>\xff",
                                        "aa>",
                                        "\xff"
                                        "a>\xff>\xff"
                                        "b\xff"};
    enum { WORDS = 5 };
    bytes texts[WORDS];
    dfa until[WORDS], without;
    uint32_t n_accepted[WORDS + 1] = {0};
    for (size_t i = 0; i < WORDS; i++) texts[i] = (bytes){words[i], strlen(words[i])};
    for (size_t i = 0; i < WORDS; i++)
        EXPECT_EQ(tags_until(texts, WORDS, i, &until[i], NULL), INFERD_OK);
    EXPECT_EQ(tags_without(texts, WORDS, &without, NULL), INFERD_OK);
    for (unsigned code = 0; code < 16384; code++) {
        char s[40];
        size_t n = 0, first = 0, which = WORDS;
        for (unsigned k = 0, left = code, len = code % 7; k < len; k++, left /= 4)
            n += (size_t)sprintf(s + n, "%s", letters[left % 4]);
        for (size_t end = 1; end <= n && first == 0; end++)
            for (size_t i = 0; i < WORDS; i++)
                if (ends_free_text(s, end, texts[i])) first = end, which = i;
        bool is_free = first == 0 && memchr(s, 0xff, n) == NULL;
        EXPECT_EQ(dfa_match(&without, (bytes){s, n}) != 0, is_free);
        n_accepted[WORDS] += is_free;
        for (size_t i = 0; i < WORDS; i++) {
            EXPECT_EQ(dfa_match(&until[i], (bytes){s, n}) != 0, first == n && n > 0 && which == i);
            n_accepted[i] += first == n && n > 0 && which == i;
        }
    }
    for (size_t i = 0; i <= WORDS; i++) EXPECT(n_accepted[i] > 5);
    for (size_t i = 0; i < WORDS; i++) dfa_deinit(&until[i]);
    dfa_deinit(&without);
}

#define OPEN  "\xEF\xB7\x90"
#define CLOSE "\xEF\xB7\x91"
#define CHANNEL                                                                                    \
    FORMAT("{\"type\":\"triggered_tags\",\"triggers\":[\"" OPEN "ch" CLOSE "a\",\"" OPEN           \
           "ch" CLOSE "c\"],\"tags\":[" TAG(OPEN "ch" CLOSE "and", ANY, OPEN "end" CLOSE) "," TAG( \
               OPEN "ch" CLOSE "call", SCHEMA("{\"type\":\"string\"}"), OPEN "end" CLOSE) "]}")

/* Of a tokenizer: token b is the byte b, then come an end and three control tokens. */
static grammar_vocab *bytes_and_tokens(void) {
    tiny_words w;
    grammar_vocab *v = NULL;
    words_bpe(&w, "gpt-2", (const char *const[]){NULL});
    words_add(&w, "</s>", WORD_CONTROL);
    words_add(&w, "ch", WORD_CONTROL);
    words_add(&w, "end", WORD_CONTROL);
    words_add(&w, "chat", WORD_CONTROL);
    tiny_kv_u32(&w.g, "tokenizer.ggml.eos_token_id", RIG_END_ID);
    tokenizer *t = words_open(&w);
    EXPECT(grammar_vocab_create(t, 264, &v, NULL) == INFERD_OK);
    tok_close(t);
    bytes piece = grammar_vocab_piece(v, 257);
    EXPECT(piece.n == 4 && memcmp(piece.p,
                                  "\xff"
                                  "ch\xff",
                                  4) == 0);
    EXPECT_EQ(grammar_vocab_piece(v, 254).n, 1);
    EXPECT_EQ(grammar_vocab_piece(v, 255).n, 0); // the mark as text: never
    EXPECT_EQ(grammar_vocab_piece(v, RIG_END_ID).n, 0);
    EXPECT_EQ(grammar_vocab_piece(v, 260).n, 0);
    return v;
}

/* In texts of steps '0', '1', '2' are the control tokens; which of them are allowed behind a step,
 * as a text of digits. */
static const char *allowed_behind(grammar_machine *m, const char *steps) {
    static char out[8];
    grammar_pos p = grammar_start(m);
    for (const char *c = steps; *c != 0; c++) {
        tok_id id = *c >= '0' && *c <= '2' ? 257 + *c - '0' : *c;
        if (grammar_accept(m, p, id, NULL)) continue;
        printf("\"%s\": not accepted from byte %d on\n", steps, (int)(c - steps));
        test_failures++;
        break;
    }
    grammar_mask *mask = grammar_mask_get(m, p, NULL);
    size_t n = 0;
    EXPECT(!grammar_mask_has(mask, 255));
    for (tok_id id = 257; id < 260; id++)
        if (grammar_mask_has(mask, id)) out[n++] = (char)('0' + id - 257);
    if (grammar_mask_has(mask, RIG_END_ID)) out[n++] = 'e';
    out[n] = 0;
    grammar_mask_release(mask);
    grammar_drop(m, p);
    return out;
}

static void texts_of_tags_may_name_control_tokens(void) {
    inferd_err err;
    with_tokens = true;
    grammar *g = compile(CHANNEL, &err);
    grammar_vocab *v = bytes_and_tokens();
    grammar_machine *m = NULL;
    EXPECT_EQ(grammar_machine_create(g, v, &m, NULL), INFERD_OK);
    grammar_release(g);
    grammar_vocab_release(v);
    EXPECT_STR(allowed_behind(m, ""), "0e");
    EXPECT_STR(allowed_behind(m, "text c"), "0e");
    EXPECT_STR(allowed_behind(m, "text 0"), "");
    EXPECT_STR(allowed_behind(m, "text 0an"), "");
    EXPECT_STR(allowed_behind(m, "text 0and"), "1");
    EXPECT_STR(allowed_behind(m, "text 0and that"), "1");
    EXPECT_STR(allowed_behind(m, "text 0and that1"), "0e");
    EXPECT_STR(allowed_behind(m, "0call"), "");
    EXPECT_STR(allowed_behind(m, "0call\"ch"), "");
    EXPECT_STR(allowed_behind(m, "0call\"ch\""), "1");
    EXPECT_STR(allowed_behind(m, "0call\"ch\"10and1"), "0e");
    EXPECT_EQ(rig_read(m, "text \xff"
                          "chx"),
              8);
    EXPECT_EQ(rig_read(m, "text \xff"
                          "ch\xff"
                          "b"),
              9);
    grammar_machine_release(m);
    REFUSED(FORMAT(STRING("a" OPEN "ch")), INFERD_EINVAL, "U+FDD0");
    REFUSED(FORMAT(STRING("ch" CLOSE)), INFERD_EINVAL, "U+FDD0");
    REFUSED(FORMAT(STRING(OPEN CLOSE)), INFERD_EINVAL, "U+FDD0");
    REFUSED(FORMAT(STRING(OPEN "a" OPEN CLOSE)), INFERD_EINVAL, "U+FDD0");
    with_tokens = false;
}

/* Without the option they are characters as others. */
static void noncharacters_are_text_otherwise(void) {
    grammar_machine *m = machine_of(FORMAT(STRING(OPEN "ch" CLOSE)));
    EXPECT(rig_accepts(m, OPEN "ch" CLOSE));
    EXPECT_EQ(rig_read(m, "\xff"), 0);
    grammar_machine_release(m);
    m = machine_of(FORMAT(ANY));
    EXPECT(rig_accepts(m, OPEN));
    EXPECT_EQ(rig_read(m, "\xff"), 0);
    grammar_machine_release(m);
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
                                  TEST(parts_that_are_alike_are_made_once),
                                  TEST(members_come_in_order),
                                  TEST(texts_follow_the_schema_of_a_string),
                                  TEST(formats_are_joined),
                                  TEST(tags_of_triggers_have_options),
                                  TEST(tags_have_separators),
                                  TEST(what_cannot_be_enforced_is_named_with_its_path),
                                  TEST(formats_in_formats_are_bounded),
                                  TEST(automata_of_free_text_are_those_of_a_plain_search),
                                  TEST(symbols_are_in_free_text_only_as_part_of_a_trigger),
                                  TEST(texts_of_tags_may_name_control_tokens),
                                  TEST(noncharacters_are_text_otherwise),
                                  TEST(triggers_are_bounded)};
TEST_MAIN(cases)
