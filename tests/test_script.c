/* test_script.c - scripts of what models say: which line is found, what is refused, which tokens.
 */
#include "test.h"

#include <unistd.h>

#include "tiny_tok.h"
#include "tools/script.h"

typedef struct rig {
    char path[64];
    script *s;
    inferd_err err;
} rig;

static void append(const rig *r, const char *text) {
    FILE *f = fopen(r->path, "a");
    INFERD_CHECK(f != NULL && fputs(text, f) >= 0);
    fclose(f);
}

static void rig_init(rig *r, const char *text) {
    *r = (rig){.path = P_tmpdir "/inferd-script-XXXXXX"};
    int fd = mkstemp(r->path);
    INFERD_CHECK(fd >= 0);
    close(fd);
    append(r, text);
    EXPECT_EQ(script_open(r->path, &r->s, &r->err), INFERD_OK);
}

static void rig_deinit(rig *r) {
    script_close(r->s);
    unlink(r->path);
}

/* The number of the line that the prompt finds; 0: none. */
static uint32_t find(rig *r, const char *prompt) {
    script_line line = {0};
    inferd_status st = script_find(r->s, (bytes){prompt, strlen(prompt)}, &line, &r->err);
    EXPECT(st == INFERD_OK || st == INFERD_ENOTFOUND);
    return line.no;
}

static void the_first_line_that_matches_counts(void) {
    rig r;
    rig_init(&r, "{\"when\": [\"a\", \"b\"], \"say\": \"1\"}\n"
                 "\n"
                 "{\"when\": \"a\", \"say\": \"3\"}\n"
                 "{\"when\": \"\", \"say\": \"4\"}\n");
    EXPECT_EQ(find(&r, "b and a"), 1);
    EXPECT_EQ(find(&r, "a"), 3);
    EXPECT_EQ(find(&r, "b"), 4);
    EXPECT_EQ(find(&r, ""), 4);
    rig_deinit(&r);
}

static void a_line_may_count_once_and_see_only_the_end(void) {
    rig r;
    rig_init(&r, "{\"when\": \"x\", \"say\": \"\", \"once\": true}\n"
                 "{\"when\": \"x\", \"say\": \"\", \"tail\": 3}\n");
    EXPECT_EQ(find(&r, "xyz"), 1);
    EXPECT_EQ(find(&r, "xyz"), 2);
    EXPECT_EQ(find(&r, "xyz\n"), 0);
    EXPECT_STR(r.err.text, "no line of the script matches the prompt, which ends with \"xyz\\n\"");
    rig_deinit(&r);
}

static void lines_may_be_appended(void) {
    rig r;
    rig_init(&r, "");
    EXPECT_EQ(find(&r, "x"), 0);
    append(&r, "{\"when\": \"x\", \"say\":");
    EXPECT_EQ(find(&r, "x"), 0); // not a whole line
    append(&r, " \"\"}\n");
    EXPECT_EQ(find(&r, "x"), 1);
    for (int i = 0; i < 40; i++) append(&r, "{\"when\": \"no\", \"say\": \"\"}\n");
    append(&r, "{\"when\": \"y\", \"say\": \"\"}\n");
    EXPECT_EQ(find(&r, "y"), 42);
    rig_deinit(&r);
}

static void a_wrong_line_is_named(void) {
    static const struct {
        const char *line, *why;
    } cases[] = {
        {"{\"when\": \"\"", "script line 2: '}' expected near end of file"},
        {"[]", "script line 2: it is no object"},
        {"{\"when\": \"\"}", "script line 2: when or say is missing"},
        {"{\"when\": 1, \"say\": \"\"}", "script line 2: when is no text, and no list of texts"},
        {"{\"when\": [1], \"say\": \"\"}", "script line 2: when is no text, and no list of texts"},
        {"{\"when\": \"\", \"say\": [1.5]}",
         "script line 2: say is no text, and no list of texts and ids"},
        {"{\"when\": \"\", \"say\": \"\", \"once\": 1}",
         "script line 2: once is not true or false"},
        {"{\"when\": \"\", \"say\": \"\", \"tail\": 0}",
         "script line 2: tail is no number of bytes"},
        {"{\"when\": \"\", \"say\": \"\", \"x\": 0}",
         "script line 2: it has a key besides when, say, once and tail"},
    };
    for (size_t i = 0; i < INFERD_COUNT(cases); i++) {
        rig r;
        script_line line;
        rig_init(&r, "{\"when\": \"a\", \"say\": \"\"}\n");
        append(&r, cases[i].line);
        append(&r, "\n");
        for (int k = 0; k < 2; k++) { // it stays wrong
            EXPECT_EQ(script_find(r.s, (bytes){"a", 1}, &line, &r.err), INFERD_EFORMAT);
            EXPECT_STR(r.err.text, cases[i].why);
        }
        rig_deinit(&r);
    }
}

static void expect_tokens(const tokenizer *tok, const char *say, const tok_id *ids, size_t n) {
    tok_ids out = {0};
    inferd_err err = {0};
    json_t *value = json_loads(say, JSON_DECODE_ANY, NULL);
    EXPECT_EQ(script_encode(value, tok, TINY_VOCAB, &out, &err), INFERD_OK);
    EXPECT_EQ(out.n, n);
    for (size_t i = 0; i < n && i < out.n; i++) EXPECT_EQ(out.ids[i], ids[i]);
    tok_ids_deinit(&out);
    json_decref(value);
}

static void texts_and_ids_become_tokens(void) {
    tokenizer *tok = tiny_tok_open();
    tok_ids none = {0};
    inferd_err err = {0};
    tok_id x = tiny_tok_byte('x'), the = tok_find(tok, (bytes){"\xC4\xA0the", 5});
    expect_tokens(tok, "\" thex<|im_end|>\"", (tok_id[]){the, x, TINY_IM_END}, 3);
    expect_tokens(tok, "[\" th\", \"e\", 7, \"\"]",
                  (tok_id[]){tok_find(tok, (bytes){"\xC4\xA0th", 4}), tiny_tok_byte('e'), 7}, 3);
    expect_tokens(tok, "\"\"", NULL, 0);
    json_t *value = json_pack("[i]", TINY_VOCAB);
    EXPECT_EQ(script_encode(value, tok, TINY_VOCAB, &none, &err), INFERD_EINVAL);
    EXPECT_STR(err.text, "the script says token 512 of 512");
    json_decref(value);
    tok_close(tok);
}

static const test_case cases[] = {
    TEST(the_first_line_that_matches_counts),
    TEST(a_line_may_count_once_and_see_only_the_end),
    TEST(lines_may_be_appended),
    TEST(a_wrong_line_is_named),
    TEST(texts_and_ids_become_tokens),
};
TEST_MAIN(cases)
