/* Long runs in answers that come byte by byte: of white space, of beginnings of marks, of what may
 * be an id.  Reading an answer takes as long as the answer is.  If a run were read again at each of
 * its bytes, a case would take minutes, and the test its time limit. */
#include "calls_rig.h"

enum { RUN_BYTES = 200000 };

static const char source[] =
    "{% for m in messages %}<|{{ m.role }}|>{% if m.reasoning_content %}<think>\n"
    "{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}";

static const char tool[] = "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{"
                           "\"s\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"},"
                           "\"l\":{\"type\":\"array\"}}}}}]";

static call_format *format_named(const char *name) {
    chat_template *t = NULL;
    call_format *f = NULL;
    inferd_err err = {0};
    EXPECT_EQ(chat_template_open(bytes_of(source), NULL, &t, &err), INFERD_OK);
    EXPECT_EQ(call_format_open(t, bytes_of(source), NULL, name, &f, &err), INFERD_OK);
    chat_template_close(t);
    return f;
}

static buf with_run(const char *before, const char *run, const char *after) {
    buf text = {0};
    buf_add_str(&text, before);
    while (text.n < RUN_BYTES) buf_add_str(&text, run);
    buf_add_str(&text, after);
    EXPECT(!text.failed);
    return text;
}

typedef struct run_case {
    const char *format, *before, *run, *after;
    const char *calls;
} run_case;

#define HERMES "<tool_call>{\"name\":\"f\",\"arguments\":{}}"
#define KIMI   "<|tool_calls_section_begin|>"
#define M3     "]<]minimax[>["

static const run_case runs[] = {
    /* white space: in text, before marks, in marks, between marks */
    {"hermes", "x", "\n", "y", ""},
    {"hermes", "", " \n", "y", ""},
    {"hermes", "x", "\n", HERMES "</tool_call>", "f{};"},
    {"hermes", "<think>a", "\n", "</think>b", ""},
    {"hermes", "<think>a</think>", "\t", "<think>b</think>", ""},
    {"hermes", "<tool_call>", " ", "{\"name\":\"f\",\"arguments\":{}}</tool_call>", "f{};"},
    {"hermes", "<tool_call>{", " ", "\"name\":\"f\",\"arguments\":{}}</tool_call>", "f{};"},
    {"hermes", HERMES, "\r\n", "</tool_call>", "f{};"},
    {"hermes", HERMES "</tool_call>", "\n", HERMES "</tool_call>", "f{};f{};"},
    {"hermes", HERMES "</tool_call>", "\n", "x", "f{};"},
    {"qwen_xml", "<tool_call>", "\n", "<function=f></function></tool_call>", "f{};"},
    {"qwen_xml", "<tool_call>", "\n", "<f", ""},
    {"qwen_xml", "<tool_call><function=", " ", "f></function></tool_call>", "f{};"},
    {"qwen_xml", "<tool_call><function=f", " ", "></function></tool_call>", "f{};"},
    {"qwen_xml", "<tool_call><function=f>", "\n", "</function></tool_call>", "f{};"},
    {"qwen_xml", "<tool_call><function=f></function>", "\n", "</tool_call>", "f{};"},
    {"qwen_xml", "<tool_call><function=f><parameter=n>1</parameter>", "\n",
     "</function></tool_call>", "f{\"n\":1};"},
    {"glm", "<tool_call>f<arg_key>n</arg_key>", "\n", "<arg_value>1</arg_value></tool_call>",
     "f{\"n\":1};"},
    {"glm", "<tool_call>f<arg_key>n</arg_key><arg_value>", "\n", "1</arg_value></tool_call>",
     "f{\"n\":1};"},
    {"kimi_k2", KIMI "<|tool_call_begin|>functions.", "\n", "f:0<|tool_call_argument_begin|>{}",
     "f{};"},
    {"kimi_k2", KIMI "<|tool_call_begin|>functions.f:0", "\n", "<|tool_call_argument_begin|>{}",
     "f{};"},
    {"llama3_json", "", "\n", "{\"name\": \"f\", \"parameters\": {}}", "f{};"},
    {"llama3_json", "{", "\n", "\"name\": \"f\", \"parameters\": {}}", "f{};"},
    {"pythonic", "[", " ", "f(n=1)]", "f{\"n\":1};"},
    {"pythonic", "[f", " ", "(n=1)]", "f{\"n\":1};"},
    {"pythonic", "[f(n=1)", " ", ", f(n=2)]", "f{\"n\":1};f{\"n\":2};"},
    {"harmony", " to=functions.f", " ", "<|channel|>commentary json<|message|>{}<|call|>", "f{};"},
    /* what may be an id, a number or a name: a long one is none */
    {"kimi_k2", KIMI "<|tool_call_begin|>functions.f:", "1", "<|tool_call_argument_begin|>{}", ""},
    {"mistral_v11", "[TOOL_CALLS]f[CALL_ID]", "a", "[ARGS]{}", ""},
    {"mistral_v11", "[TOOL_CALLS]", "a", "[ARGS]{}", ""},
    {"pythonic", "[", "a", "(n=1)]", ""},
    {"llama3_json", "{\"name\": \"", "a", "\", \"parameters\": {}}", ""},
    /* beginnings of marks, and calls that are none */
    {"hermes", "", "<", "", ""},
    {"hermes", "", "\n<", "", ""},
    {"hermes", "", "<tool_call", "x", ""},
    {"hermes", "", "<tool_call>\n", "x", ""},
    {"hermes", "", "<tool_call>{,", "", ""},
    {"hermes", "<tool_call>{\"a\":\"", "<tool_call>{,", "", ""},
    {"hermes", "<tool_call>{\"a\":\"", "<tool_call>{,", "\"}", ""},
    {"hermes", "<tool_call>{\"a\":\"<tool_call>{\"", ",\":\"", "}", ""},
    {"hermes", "<think>", "</think", "", ""},
    {"hermes", "", "</think><think>", "", ""},
    {"mistral", "", "[TOOL_CALLS][", "", ""},
    {"harmony", "", " to=functions.", "", ""},
    {"minimax_m3", "", "]<]minimax[>", "", ""},
    {"minimax_m3", M3 "<tool_call>" M3 "<invoke name=\"f\">" M3 "<l>", M3 "<item>1" M3 "</item>",
     M3 "</x>" M3 "</invoke>" M3 "</tool_call>", NULL},
    {"minimax_m3", M3 "<tool_call>" M3 "<invoke name=\"f\">" M3 "<l>", M3 "<a>",
     M3 "</l>" M3 "</invoke>" M3 "</tool_call>", NULL},
    {"qwen_xml", "<tool_call><function=f><parameter=n>", "\n</parameter", "", NULL},
    {"qwen_xml", "<tool_call><function=f><parameter=s>", "\n<", "", NULL},
};

static void expect_same(const run_case *c, const message *m, const message *whole) {
    bool equal = same(&m->reasoning, &whole->reasoning) && same(&m->content, &whole->content) &&
                 same(&m->calls, &whole->calls);
    bytes calls = {m->calls.p, m->calls.n};
    if (equal && (c->calls == NULL || bytes_equal(calls, bytes_of(c->calls)))) return;
    printf("%s: %s (%s) %s: %s%.*s\n", c->format, c->before, c->run, c->after,
           equal ? "" : "not as at once: ", (int)size_min(calls.n, 100), calls.p);
    test_failures++;
}

static void long_runs_are_read_once(void) {
    json_t *tools = json_loads(tool, 0, NULL);
    for (size_t i = 0; i < INFERD_COUNT(runs); i++) {
        call_format *f = format_named(runs[i].format);
        buf b = with_run(runs[i].before, runs[i].run, runs[i].after);
        bytes text = {b.p, b.n};
        message whole = read_pieces(f, &(call_parser_options){.tools = tools}, text, text.n);
        message m = read_pieces(f, &(call_parser_options){.tools = tools}, text, 0);
        expect_same(&runs[i], &m, &whole);
        deinit(&m);
        deinit(&whole);
        buf_deinit(&b);
        call_format_close(f);
    }
    json_decref(tools);
}

/* A stop string that is white space asks at each byte whether it is in a call. */
static void expect_asked(const char *before, bool in_call) {
    call_format *f = format_named("qwen_xml");
    call_parser *p = call_parser_create(f, &(call_parser_options){0});
    message m = {0};
    EXPECT(call_parser_push(p, bytes_of(before), on_event, &m));
    for (size_t i = 0; i < RUN_BYTES; i++) {
        bool in = call_parser_in_call(p, bytes_of("\n"));
        EXPECT(call_parser_push(p, bytes_of("\n"), on_event, &m));
        if (in == in_call) continue;
        EXPECT_EQ(in, in_call);
        break;
    }
    EXPECT_EQ(call_parser_in_call(p, bytes_of("<f")), in_call);
    EXPECT(!call_parser_in_call(p, bytes_of("x")));
    EXPECT(!call_parser_in_call(p, bytes_of("\nx")));
    EXPECT_EQ(call_parser_in_call(p, bytes_of("\n")), in_call);
    EXPECT(call_parser_finish(p, on_event, &m));
    deinit(&m);
    call_parser_destroy(p);
    call_format_close(f);
}

static void stop_strings_in_long_runs(void) {
    expect_asked("x", false);
    expect_asked("x<tool_call>", true);
}

/* White space between the words of calls, as many bytes as there are, changes no call. */
static void white_space_is_layout(void) {
    call_format *f = format_named("qwen_xml");
    READS(f,
          "a\n\n \n<tool_call>\n \n\n<function=f>\n\n\n<parameter=n>\n1\n</parameter>\n\n\n"
          "</function>\n\n \n</tool_call>\n\n\nb",
          "", "a\n\n\nb", "f{\"n\":1};");
    READS(f, "a\n\n\n<tool_call>\n\n\nb", "", "a\n\n\n<tool_call>\n\n\nb", "");
    READS(f, "a\n\n\n<tool_call>\n\n\n", "", "a\n\n\n<tool_call>\n\n\n", "");
    READS(f, "<think>\n\n a\n\n\n</think>\n\n\nb\n\n\n", "a", "b\n\n\n", "");
    call_format_close(f);
}

static const test_case cases[] = {TEST(long_runs_are_read_once), TEST(stop_strings_in_long_runs),
                                  TEST(white_space_is_layout)};
TEST_MAIN(cases)
