/* The parts of a message: deltas, and what a whole answer has. */
#include "calls_rig.h"
#include "message.h"

static const char template[] =
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls %}{% set f = "
    "c.function %}<tool_call>\n{\"name\": \"{{ f.name }}\", \"arguments\": {{ f.arguments|tojson "
    "}}}\n</tool_call>{{ '\\n' }}{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}"
    "<|assistant|>{% endif %}";

static void add_part(void *ctx, const message_part *p) {
    static const char *const names[] = {"thought", "text", "call", "arguments", "end"};
    buf *out = ctx;
    buf_add_format(out, "%s %u %.*s%.*s%s\n", names[p->kind], p->call_idx, (int)p->name.n,
                   p->name.p == NULL ? "" : p->name.p, (int)p->text.n,
                   p->text.p == NULL ? "" : p->text.p, p->complete ? "whole" : "");
}

static void read_message(message_parts *p, const char *text, buf *deltas) {
    call_format *f = learn(template);
    EXPECT(message_init(p, f, &(call_parser_options){0}));
    EXPECT(message_push(p, bytes_of(text), add_part, deltas));
    EXPECT(message_finish(p, add_part, deltas));
    call_parser_destroy(p->parser);
    p->parser = NULL;
    call_format_close(f);
}

static void one_call_as_function_call(void) {
    static const char text[] =
        "Hi.<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\":1}}\n</tool_call>\n<tool_call>\n"
        "{\"name\": \"g\", \"arguments\": {\"b\":2}}\n</tool_call>";
    for (int function_calls = 0; function_calls < 2; function_calls++) {
        message_parts p = {.keeps = true, .function_calls = function_calls == 1};
        buf deltas = {0};
        read_message(&p, text, &deltas);
        EXPECT_EQ(p.n_calls, function_calls ? 1 : 2);
        if (function_calls) {
            EXPECT_STR(buf_cstr(&p.calls), "{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}");
            EXPECT_STR(buf_cstr(&deltas),
                       "text 0 Hi.\ncall 0 f\narguments 0 {\"a\":1}\nend 0 whole\n");
        } else {
            EXPECT(strstr(buf_cstr(&deltas), "call 1 g\narguments 1 {\"b\":2}\nend 1 whole\n") !=
                   NULL);
        }
        buf_deinit(&deltas);
        message_deinit(&p);
    }
}

static void a_cut_call_is_not_whole(void) {
    message_parts p = {.keeps = true};
    buf deltas = {0};
    read_message(&p, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\":1", &deltas);
    EXPECT_STR(buf_cstr(&deltas), "call 0 f\narguments 0 {\"a\":\nend 0 \n");
    buf_deinit(&deltas);
    message_deinit(&p);
}

static const test_case cases[] = {TEST(one_call_as_function_call), TEST(a_cut_call_is_not_whole)};
TEST_MAIN(cases)
