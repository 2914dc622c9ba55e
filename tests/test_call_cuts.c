/* Tool calls that max_tokens cuts.  A message is cut behind each of its code points: of a call that
 * has begun, the arguments are the beginning of what they would have been, so that they are no
 * complete JSON, and no part of a mark is content beside it. */
#include "calls_rig.h"

typedef struct cut_message {
    buf content, arguments;
    bool begun, complete;
} cut_message;

static void on_cut(void *ctx, const call_event *ev) {
    cut_message *m = ctx;
    if (ev->kind == CALL_EVENT_CONTENT) buf_add(&m->content, ev->text.p, ev->text.n);
    if (ev->kind == CALL_EVENT_ARGUMENTS) buf_add(&m->arguments, ev->text.p, ev->text.n);
    if (ev->kind == CALL_EVENT_BEGIN) m->begun = true;
    if (ev->kind == CALL_EVENT_END) m->complete = ev->complete;
}

static cut_message read_cut(const call_format *f, const json_t *tools, bytes text) {
    cut_message m = {0};
    call_parser *p = call_parser_create(f, &(call_parser_options){.tools = tools});
    EXPECT(call_parser_push(p, text, on_cut, &m) && call_parser_finish(p, on_cut, &m));
    call_parser_destroy(p);
    buf_add(&m.content, "", 0);
    return m;
}

static void deinit_cut(cut_message *m) {
    buf_deinit(&m->content);
    buf_deinit(&m->arguments);
}

static bool is_json(const buf *text) {
    json_t *v = NULL;
    inferd_err ignored;
    bool ok = json_text_read((bytes){text->p, text->n}, &v, &ignored) == INFERD_OK;
    json_decref(v);
    return ok;
}

/* One call and nothing else. */
static int cut_everywhere(const char *name, const call_format *f, const json_t *tools, bytes text) {
    cut_message whole = read_cut(f, tools, text);
    bytes all = {whole.arguments.p, whole.arguments.n};
    int n_cuts = 0;
    EXPECT(whole.begun && whole.complete);
    for (size_t n = 0; n < text.n; n++) {
        if (((unsigned char)text.p[n] & 0xc0) == 0x80) continue;
        cut_message m = read_cut(f, tools, (bytes){text.p, n});
        bool same = m.arguments.n == all.n;
        bool good = bytes_start(all, (bytes){m.arguments.p, m.arguments.n}) &&
                    (same || (!m.complete && !is_json(&m.arguments))) &&
                    bytes_trim((bytes){m.content.p, m.content.n}).n == 0;
        if (m.begun && !good) {
            printf("%s: %.*s\n  %s | %s | %d\n", name, (int)n, text.p, buf_cstr(&m.arguments),
                   buf_cstr(&m.content), m.complete);
            test_failures++;
        }
        n_cuts += m.begun;
        deinit_cut(&m);
    }
    deinit_cut(&whole);
    return n_cuts;
}

static const char tool[] =
    "[{\"function\":{\"name\":\"sh\",\"parameters\":{\"properties\":{\"cmd\":{\"type\":\"string\"},"
    "\"n\":{\"type\":\"integer\"},\"l\":{\"type\":\"array\"}}}}}]";

static const struct {
    const char *format, *text;
} calls[] = {
    {"qwen_xml", "<tool_call>\n<function=sh>\n<parameter=cmd>\nrm -rf /tmp/x\n\nls </p\n"
                 "</parameter>\n<parameter=n>\n-12\n</parameter>\n<parameter=l>\n[1, \"a\"]\n"
                 "</parameter>\n</function>\n</tool_call>"},
    {"glm", "<tool_call>sh\n<arg_key>cmd</arg_key>\n<arg_value>rm -rf /tmp/x</arg_value>\n"
            "<arg_key>n</arg_key>\n<arg_value>12</arg_value>\n</tool_call>"},
    {"seed_oss", "<seed:tool_call>\n<function=sh>\n<parameter=cmd>rm -rf /tmp/x\n</parameter>\n"
                 "<parameter=n>-12</parameter>\n</function>\n</seed:tool_call>"},
    {"minimax_m2", "<minimax:tool_call>\n<invoke name=\"sh\">\n<parameter name=\"cmd\">rm -rf /x"
                   "</parameter>\n<parameter name=\"n\">12</parameter>\n</invoke>\n"
                   "</minimax:tool_call>"},
    {"minimax_m3", "]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"sh\">]<]minimax[>[<cmd>"
                   "rm -rf /x]<]minimax[>[</cmd>]<]minimax[>[<l>]<]minimax[>[<item>12"
                   "]<]minimax[>[</item>]<]minimax[>[</l>]<]minimax[>[</invoke>\n"
                   "]<]minimax[>[</tool_call>"},
    {"gemma4", "<|tool_call>call:sh{cmd:<|\"|>rm -rf /x<|\"|>,n:12,l:[<|\"|>a<|\"|>]}<tool_call|>"},
    {"pythonic", "[sh(cmd='rm -rf /tmp/x', n=12, l=['a', True])]"},
    {"hermes", "<tool_call>\n{\"name\": \"sh\", \"arguments\": {\"cmd\": \"rm -rf /x\", \"n\": 12}}"
               "\n</tool_call>"},
    {"kimi_k2", "<|tool_calls_section_begin|><|tool_call_begin|>functions.sh:0"
                "<|tool_call_argument_begin|>{\"cmd\":\"rm -rf /x\"}<|tool_call_end|>"
                "<|tool_calls_section_end|>"},
};

static void arguments_stay_open(void) {
    static const char source[] = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n"
                                 "{% endfor %}";
    json_t *tools = json_loads(tool, 0, NULL);
    for (size_t i = 0; i < INFERD_COUNT(calls); i++) {
        chat_template *t = NULL;
        call_format *f = NULL;
        inferd_err err = {0};
        EXPECT_EQ(chat_template_open(bytes_of(source), NULL, &t, &err), INFERD_OK);
        EXPECT_EQ(call_format_open(t, bytes_of(source), NULL, calls[i].format, &f, &err),
                  INFERD_OK);
        EXPECT(cut_everywhere(calls[i].format, f, tools, bytes_of(calls[i].text)) > 20);
        call_format_close(f);
        chat_template_close(t);
    }
    json_decref(tools);
}

static int n_cut_formats, n_cuts;

static void cut_calls(const char *name, const chat_template *t, const call_format *f) {
    for (int round = 0; round < 3 && call_format_style(f) != CALL_NONE; round++) {
        json_t *tools = json_array(), *list = json_array(), *arguments = json_object();
        json_array_append_new(tools, draw_tool("get_weather", arguments));
        json_array_append_new(list, call_json("get_weather", 0, arguments));
        written w;
        bool tree = f->tree; // whose empty values are read otherwise
        if (!tree && write_calls(t, f, tools, list, &w)) {
            n_cut_formats += round == 0;
            n_cuts += cut_everywhere(name, f, tools, answer_without_end(&w));
        }
        if (!tree) buf_deinit(&w.text);
        json_decref(tools);
        json_decref(list);
    }
}

static void calls_of_real_templates_stay_open(void) {
    if (!for_each_template(cut_calls)) SKIP("no shared/templates");
    printf("%d formats, %d cuts, seed 20\n", n_cut_formats, n_cuts);
    EXPECT(n_cut_formats >= 55);
}

static const test_case cases[] = {TEST(arguments_stay_open),
                                  TEST(calls_of_real_templates_stay_open)};
TEST_MAIN(cases)
