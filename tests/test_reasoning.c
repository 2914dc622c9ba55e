/* Where a model reasons before its answer, by its template and the end of the prompt. */
#include "models/reasoning.h"
#include "test.h"
#include "tok_tiny.h"

static const struct tm now = {.tm_year = 126, .tm_mday = 15, .tm_hour = 9, .tm_min = 30};

#define TURNS "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
#define OPENS TURNS "{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}"
/* As Qwen3: earlier reasoning is cut out, and without thinking the block is closed. */
#define MAY                                                                                        \
    "{% set k = '</think>' %}" TURNS                                                               \
    "{% if add_generation_prompt %}<|assistant|>{% if enable_thinking is defined and not "         \
    "enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"

/* "-" for NULL. */
static void expect_reasoning(int line, const char *source, const char *messages, const char *kwargs,
                             bool continued, const tokenizer *tok, const char *begin,
                             const char *end) {
    chat_template *t = NULL;
    inferd_err err = {0};
    chat_text text = {0};
    EXPECT_EQ(chat_template_open((bytes){source, strlen(source)}, NULL, &t, &err), INFERD_OK);
    chat_input in = {.messages = json_loads(messages, 0, NULL),
                     .kwargs = json_loads(kwargs, 0, NULL),
                     .add_generation_prompt = !continued,
                     .continue_final_message = continued};
    EXPECT_EQ(chat_render(t, tok, &in, &now, &text, &err), INFERD_OK);
    reasoning r = reasoning_of_prompt(t, tok, &in, &text);
    if (strcmp(r.begin == NULL ? "-" : r.begin, begin) != 0 ||
        strcmp(r.end == NULL ? "-" : r.end, end) != 0) {
        printf("line %d: {%s, %s}, expected {%s, %s}\n", line, r.begin, r.end, begin, end);
        test_failures++;
    }
    chat_text_deinit(&text);
    json_decref(in.messages);
    json_decref(in.kwargs);
    chat_template_close(t);
}
#define REASONS(source, messages, kwargs, continued, begin, end)                                   \
    expect_reasoning(__LINE__, source, messages, kwargs, continued, NULL, begin, end)

#define ASKED(text) "[{\"role\":\"user\",\"content\":\"" text "\"}]"
#define ANSWERED(text)                                                                             \
    "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"" text "\"}]"

static void the_end_of_the_prompt_tells(void) {
    REASONS(TURNS "<|assistant|>", ASKED("a"), "{}", false, "-", "-");
    REASONS(OPENS, ASKED("a"), "{}", false, "-", "</think>");
    REASONS(MAY, ASKED("a"), "{}", false, "<think>", "</think>");
    REASONS(MAY, ASKED("a"), "{\"enable_thinking\":true}", false, "<think>", "</think>");
    REASONS(MAY, ASKED("a"), "{\"enable_thinking\":false}", false, "-", "-");
    REASONS(TURNS "[THINK]x[/THINK] is how you think.<|assistant|>", ASKED("a"), "{}", false,
            "[THINK]", "[/THINK]");
    REASONS(TURNS "<|assistant|><seed:think>", ASKED("a"), "{}", false, "-", "</seed:think>");
}

/* A user who writes about the marks does not begin reasoning, or forbid it. */
static void text_of_the_request_tells_nothing(void) {
    REASONS(MAY, ASKED("what is <think>?"), "{}", false, "<think>", "</think>");
    REASONS(OPENS, ASKED("what is </think>"), "{}", false, "-", "</think>");
    REASONS(TURNS, ASKED("<think>"), "{}", false, "-", "-");
}

static void a_continued_message_tells_by_its_text(void) {
    REASONS(MAY, ANSWERED("<think>so far"), "{}", true, "-", "</think>");
    REASONS(MAY, ANSWERED("<think>so far</think>The"), "{}", true, "-", "-");
    REASONS(MAY, ANSWERED("The"), "{}", true, "-", "-");
    REASONS(MAY,
            "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":[{\"type\":"
            "\"text\",\"text\":\"<think>a\"}]}]",
            "{}", true, "-", "</think>");
}

static reasoning with_marks(int kind, bool ends) {
    tiny_words w;
    words_bpe(&w, "gpt-2", (const char *const[]){NULL});
    words_add(&w, "<think>", kind);
    tok_id end = words_add(&w, "</think>", kind);
    if (ends) tiny_kv_u32(&w.g, "tokenizer.ggml.eos_token_id", (uint32_t)end);
    tokenizer *tok = words_open(&w);
    chat_template *t = NULL;
    inferd_err err = {0};
    EXPECT_EQ(chat_template_open((bytes){MAY, strlen(MAY)}, NULL, &t, &err), INFERD_OK);
    chat_input in = {.messages = json_array(), .add_generation_prompt = true};
    chat_text text = {.text = NULL};
    reasoning r = reasoning_of_prompt(t, tok, &in, &text);
    json_decref(in.messages);
    chat_template_close(t);
    tok_close(tok);
    return r;
}

static void marks_may_be_control_tokens(void) {
    reasoning r = with_marks(WORD_USER_DEFINED, false);
    EXPECT_STR(r.begin, "<think>");
    EXPECT(!r.begin_is_token && !r.end_is_token);
    r = with_marks(WORD_CONTROL, false);
    EXPECT_STR(r.begin, "<think>");
    EXPECT_STR(r.end, "</think>");
    EXPECT(r.begin_is_token && r.end_is_token);
    EXPECT(with_marks(WORD_CONTROL, true).end == NULL); // the generation ends with it
}

static void marks_are_found_in_a_source(void) {
    EXPECT(reasoning_of_source((bytes){NULL, 0}).end == NULL);
    EXPECT(reasoning_of_source((bytes){"thinking", 8}).end == NULL);
    EXPECT_STR(reasoning_of_source((bytes){"x</think>", 9}).begin, "<think>");
}

static const test_case cases[] = {
    TEST(the_end_of_the_prompt_tells), TEST(text_of_the_request_tells_nothing),
    TEST(a_continued_message_tells_by_its_text), TEST(marks_may_be_control_tokens),
    TEST(marks_are_found_in_a_source)};
TEST_MAIN(cases)
