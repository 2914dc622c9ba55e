/* Which tokens are reasoning: those that begin between its marks, however the text is cut into
 * tokens, and each as soon as it is known. */
#include "calls_rig.h"
#include "thoughts.h"

static void ignore(void *ctx, const call_event *ev) {
    (void)ctx;
    (void)ev;
}

static const char source[] =
    "{% for m in messages %}<|{{ m.role }}|>{% if m.reasoning_content %}<think>\n"
    "{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}";

/* Tokens of n bytes each; the last one has no text.  Reasoning is text[from, to), twice. */
static void expect_counted(const char *text, size_t n, bool open, const size_t spans[4]) {
    call_format *f = learn(source);
    call_parser *p = call_parser_create(f, &(call_parser_options){.in_reasoning = open});
    thoughts t = {0};
    bytes all = bytes_of(text);
    uint32_t n_expected = 0, n_known = 0;
    bool is_reasoning;
    tok_id id;
    for (size_t at = 0; at <= all.n; at += n) {
        bytes piece = {all.p + at, size_min(n, all.n - at)};
        int64_t start = (int64_t)at, end = start + (int64_t)piece.n;
        bool wanted = (at >= spans[0] && at < spans[1]) || (at >= spans[2] && at < spans[3]);
        n_expected += wanted && piece.n > 0;
        EXPECT(thoughts_add(&t, &(thought_token){wanted, piece.n > 0, start, end}));
        EXPECT(call_parser_push(p, piece, ignore, NULL));
        call_reasoning r = call_parser_reasoning(p);
        while (thoughts_next(&t, &r, &id, &is_reasoning)) {
            EXPECT_EQ(id, is_reasoning);
            n_known++;
        }
        EXPECT(t.n - t.first < 16); // a mark, and white space
    }
    EXPECT(n_known > 0 || all.n < 10);
    EXPECT(call_parser_finish(p, ignore, NULL));
    call_reasoning r = call_parser_reasoning(p);
    while (thoughts_next(&t, &r, &id, &is_reasoning)) EXPECT_EQ(id, is_reasoning);
    EXPECT_EQ(t.n_reasoning, n_expected);
    EXPECT_EQ(t.n, t.first);
    thoughts_deinit(&t);
    call_parser_destroy(p);
    call_format_close(f);
}

static void tokens_between_the_marks_are_reasoning(void) {
    for (size_t n = 1; n < 9; n++) {
        expect_counted("\n<think>one two</think>\n<think>so</th</think>yes <think>no", n, false,
                       (size_t[]){8, 15, 31, 37});
        expect_counted("one two </think>yes, and so on", n, true, (size_t[]){0, 8, 0, 0});
        expect_counted("<think>one two\n</thin", n, false, (size_t[]){7, 22, 0, 0});
        expect_counted("yes, and so on", n, false, (size_t[]){0, 0, 0, 0});
        expect_counted("<think></think><think></think>yes", n, false, (size_t[]){0, 0, 0, 0});
    }
}

static const test_case cases[] = {TEST(tokens_between_the_marks_are_reasoning)};
TEST_MAIN(cases)
