/* Tool calls and reasoning: formats learned from templates, and texts read by them.  Every text is
 * read whole, byte by byte, and cut in two at each byte: the message is always the same.  What may
 * be written is in test_call_tags.c. */
#include "calls/write.h"
#include "calls_rig.h"

/* ---- templates of our own ---- */

/* Turns; `call` writes the calls of a message, `end` ends it. */
#define TEMPLATE(before_calls, call, between, after_calls)                                         \
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"                                       \
    "{% if m.tool_calls %}" before_calls                                                           \
    "{% for c in m.tool_calls %}{% set f = c.function %}" call "{% if not loop.last %}" between    \
    "{% endif %}{% endfor %}" after_calls                                                          \
    "{% endif %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"

static const char hermes[] =
    TEMPLATE("",
             "<tool_call>\n{\"name\": \"{{ f.name }}\", \"arguments\": {{ f.arguments|tojson }}}\n"
             "</tool_call>",
             "{{ '\\n' }}", "");
static const char in_list[] =
    TEMPLATE("[CALLS][",
             "{\"name\": \"{{ f.name }}\", \"arguments\": {{ f.arguments|tojson }}, \"id\": "
             "\"{{ c.id }}\"}",
             ", ", "]");
static const char named[] =
    TEMPLATE("", "[CALLS]{{ f.name }}[ID]{{ c.id }}[ARGS]{{ f.arguments|tojson }}", "", "");
static const char numbered[] = TEMPLATE("<calls>",
                                        "<call>functions.{{ f.name }}:{{ loop.index0 }}<args>"
                                        "{{ f.arguments|tojson }}</call>",
                                        "", "</calls>");
static const char tagged[] =
    TEMPLATE("",
             "<tool_call>\n<function={{ f.name }}>\n{% for k, v in f.arguments.items() %}"
             "<parameter={{ k }}>\n{{ v if v is string else v|tojson }}\n</parameter>\n{% endfor %}"
             "</function>\n</tool_call>",
             "{{ '\\n' }}", "");
static const char python[] = TEMPLATE("<|calls|>[",
                                      "{{ f.name }}({% for k, v in f.arguments.items() %}{{ k }}="
                                      "{% if v is string %}'{{ v }}'{% else %}{{ v }}{% endif %}"
                                      "{% if not loop.last %}, {% endif %}{% endfor %})",
                                      ", ", "]<|/calls|>");
static const char whole_message[] =
    TEMPLATE("", "{\"name\": \"{{ f.name }}\", \"parameters\": {{ f.arguments|tojson }}}",
             "{{ raise_exception('one call') }}", "");
static const char keyed[] =
    TEMPLATE("<calls>[", "{\"{{ f.name }}\": {{ f.arguments|tojson }}}", ", ", "]</calls>");

static const char tree[] =
    "{% macro x(v) %}{% if v is mapping %}{% for k, w in v.items() %}<{{ k }}>{{ x(w) }}</{{ k }}>"
    "{% endfor %}{% elif v is iterable and v is not string %}{% for w in v %}<item>{{ x(w) "
    "}}</item>"
    "{% endfor %}{% else %}{{ v if v is string else v|tojson }}{% endif %}{% endmacro %}" TEMPLATE(
        "<calls>",
        "<call name=\"{{ f.name }}\">{% for k, v in f.arguments.items() if v is not none %}<{{ k "
        "}}>"
        "{{ x(v) }}</{{ k }}>{% endfor %}</call>",
        "", "</calls>");

static void objects_between_tags(void) {
    call_format *f = learn(hermes);
    EXPECT_EQ(call_format_style(f), CALL_OBJECT);
    READS(f, "Hello.", "", "Hello.", "");
    READS(f,
          "Look: <tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, \"}\"]}}\n</tool_call>",
          "", "Look:", "f{\"a\": [1, \"}\"]};");
    READS(f,
          "<tool_call>{\"arguments\": {\"a\":1}, \"id\": \"x1\", \"name\": \"f\"}</tool_call>\n"
          "<tool_call>\n{\"name\":\"g\"}\n</tool_call>",
          "", "", "f#x1{\"a\":1};g{};");
    // arguments that are a text
    READS(f, "<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}</tool_call>", "", "",
          "f{\"a\":1};");
    // text around calls
    READS(f, "a <tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call> b ", "", "a b", "f{};");
    call_format_close(f);
}

static void half_a_mark_is_text(void) {
    call_format *f = learn(hermes);
    READS(f, "1 < 2 <tool_ca", "", "1 < 2 <tool_ca", "");
    READS(f, "the mark <tool_call> is one", "", "the mark <tool_call> is one", "");
    READS(f, "<tool_call>", "", "<tool_call>", "");
    READS(f, "<tool_call>{\"name\": 7, \"arguments\": {}}</tool_call>", "",
          "<tool_call>{\"name\": 7, \"arguments\": {}}</tool_call>", "");
    READS(f, "<tool_call>{\"nam", "", "<tool_call>{\"nam", "");
    READS(f, "<tool_call><tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>", "",
          "<tool_call>", "f{};");
    READS(f, "ends with space \n", "", "ends with space \n", "");
    call_format_close(f);
}

static void a_call_that_is_cut_ends(void) {
    call_format *f = learn(hermes);
    READS(f, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"b", "", "", "f{\"a\":\"b~;");
    READS(f, "<tool_call>{\"name\":\"f\"", "", "", "f~;");
    READS(f, "<tool_call>{\"name\":\"f\",\"argu", "", "", "f~;");
    READS(f, "<tool_call>{\"name\":\"f\",\"id\":\"x", "", "", "f~;");
    READS(f, "<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"a", "", "", "f~;");
    READS(f, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":[", "", "", "f{\"a\":[~;");
    READS(f, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}", "", "", "f{\"a\":1};");
    READS(f, "<tool_call>{\"name\":\"f\",\"arguments\":[1]}</tool_call>", "", "", "f[1]~;");
    READS(f, "<tool_call>{\"name\":\"f\",\"arguments\":{\"n\":1e999,\"n\":\"\\u0000\"}}", "", "",
          "f{\"n\":1e999,\"n\":\"\\u0000\"};");
    call_format_close(f);
}

static void lists_and_ids(void) {
    call_format *f = learn(in_list);
    EXPECT_EQ(call_format_style(f), CALL_OBJECT);
    READS(f,
          "[CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": \"abcdefgh1\"}, "
          "{\"name\":\"g\",\"id\":\"i2\",\"arguments\":{}}]",
          "", "", "f{\"a\": 1};g{};");
    READS(f, "a, b [CALLS][{\"name\":\"f\",\"arguments\":{}}]", "", "a, b", "f{};");
    call_format_close(f);
    f = learn(named);
    EXPECT_EQ(call_format_style(f), CALL_JSON);
    READS(f, "[CALLS]f[ID]abcdefgh1[ARGS]{\"a\": 1}[CALLS]g[ID]x[ARGS]{}", "", "",
          "f#abcdefgh1{\"a\": 1};g#x{};");
    READS(f, "[CALLS]f[ARGS]{}", "", "[CALLS]f[ARGS]{}", "");
    call_format_close(f);
    f = learn(numbered);
    READS(f,
          "<calls><call>functions.f:0<args>{\"a\":1}</call><call>functions.g:1<args>{}</call>"
          "</calls>",
          "", "", "f{\"a\":1};g{};");
    call_format_close(f);
    f = learn(keyed);
    EXPECT_EQ(call_format_style(f), CALL_KEYED);
    READS(f, "<calls>[{\"f\": {\"a\": {\"b\": 1}}}, {\"g\": {}}]</calls>", "", "",
          "f{\"a\": {\"b\": 1}};g{};");
    call_format_close(f);
}

static void arguments_between_tags(void) {
    call_format *f = learn(tagged);
    EXPECT_EQ(call_format_style(f), CALL_TAGS);
    json_t *tools =
        json_loads("[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{"
                   "\"s\":{\"type\":\"string\"},\"n\":{\"type\":[\"integer\",\"null\"]},"
                   "\"e\":{\"enum\":[\"1\",\"2\"]},\"o\":{\"type\":\"object\"}}}}}]",
                   0, NULL);
    call_parser_options o = {.tools = tools};
    expect_read(
        __LINE__, f, &o,
        "<tool_call>\n<function=f>\n<parameter=s>\n3 \"x\"\n\n</parameter>\n<parameter=n>\n3\n"
        "</parameter>\n<parameter=e>\n1\n</parameter>\n<parameter=o>\n{\"a\": [true]}\n"
        "</parameter>\n<parameter=x>\n7\n</parameter>\n<parameter=y>\nab</x>\n</parameter>\n"
        "</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>",
        "", "",
        "f{\"s\":\"3 \\\"x\\\"\\n\",\"n\":3,\"e\":\"1\",\"o\":{\"a\": [true]},\"x\":7,"
        "\"y\":\"ab</x>\"};g{};");
    /* Without line breaks, with constants as Python writes them, and with a number that is none. */
    expect_read(__LINE__, f, &o,
                "<tool_call><function=f><parameter=n>None</parameter><parameter=o>{'a': (1, True)}"
                "</parameter><parameter=n>many</parameter></function></tool_call>",
                "", "", "f{\"n\":null,\"o\":{\"a\":[1,true]},\"n\":\"many\"};");
    expect_read(__LINE__, f, &o, "<tool_call><function=f><parameter=s>cut", "", "",
                "f{\"s\":\"cut~;");
    expect_read(__LINE__, f, &o, "<tool_call><function=f><parameter=s>whole</parameter></func", "",
                "", "f{\"s\":\"whole\"};");
    json_decref(tools);
    call_format_close(f);
}

static void values_that_are_trees_of_tags(void) {
    call_format *f = learn(tree);
    EXPECT_EQ(call_format_style(f), CALL_TAGS);
    EXPECT(f->tree);
    json_t *tools = json_loads(
        "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":\"string\"}"
        ","
        "\"o\":{\"$ref\":\"#/$defs/o\"},\"l\":{\"type\":\"array\"},\"e\":{\"type\":\"object\"}},"
        "\"$defs\":{\"o\":{\"type\":\"object\",\"properties\":{\"n\":{\"type\":\"string\"},\"o\":{"
        "\"$ref\":\"#/$defs/o\"},\"item\":{\"type\":\"number\"}}}}}}}]",
        0, NULL);
    call_parser_options o = {.tools = tools};
    expect_read(
        __LINE__, f, &o,
        "<calls><call name=\"f\"><s> a <b> \"c\" </s><o><n>1</n><o><item>2</item></o></o><l>"
        "</l><e></e></call><call name=\"g\"></call></calls> end",
        "", " end",
        "f{\"s\":\" a <b> \\\"c\\\" \",\"o\":{\"n\":\"1\",\"o\":{\"item\":2}},\"l\":[],"
        "\"e\":{}};g{};");
    /* Without a schema a list is what holds items. */
    READS(f,
          "<calls><call name=\"f\"><a><item>1</item><item><k>x</k></item></a><b><k>true</k></b><c>"
          "</c></call></calls>",
          "", "", "f{\"a\":[1,{\"k\":\"x\"}],\"b\":{\"k\":true},\"c\":\"\"};");
    /* Tags that do not fit are text; a value that is cut ends. */
    READS(f, "<calls><call name=\"f\"><a>x<k>1</k></a></call></calls>", "", "",
          "f{\"a\":\"x<k>1</k>\"};");
    READS(f, "<calls><call name=\"f\"><a><k>1</j></a></call></calls>", "", "",
          "f{\"a\":\"<k>1</j>\"};");
    READS(f, "<calls><call name=\"f\"><a><item>1</item><ite", "", "", "f{\"a\":~;");
    json_decref(tools);
    call_format_close(f);
}

static void python_calls(void) {
    call_format *f = learn(python);
    EXPECT_EQ(call_format_style(f), CALL_PYTHON);
    READS(f, "<|calls|>[f(a='it's', b=[1, None, {'k': 'v'}], c=True), g()]<|/calls|>", "", "",
          "f{\"a\":\"it's\",\"b\":[1,null,{\"k\":\"v\"}],\"c\":true};g{};");
    READS(f, "<|calls|>[f(a=\"x\\n\", b=-1.5e3,)]<|/calls|> and", "", " and",
          "f{\"a\":\"x\\\\n\",\"b\":-1.5e3};"); // the template has no escapes
    call_format_close(f);
}

static void a_message_that_is_a_call(void) {
    call_format *f = learn(whole_message);
    EXPECT_EQ(call_format_style(f), CALL_OBJECT);
    EXPECT(call_format_is_single(f));
    READS(f, "{\"name\": \"f\", \"parameters\": {\"a\": 1}}", "", "", "f{\"a\": 1};");
    READS(f, "{\"city\": \"Rom\"}", "", "{\"city\": \"Rom\"}", "");
    READS(f, "It is {\"name\": \"f\", \"parameters\": {}}", "",
          "It is {\"name\": \"f\", \"parameters\": {}}", "");
    call_format_close(f);
}

static void reasoning_is_apart(void) {
    static const char source[] =
        "{% for m in messages %}<|{{ m.role }}|>{% if m.reasoning_content %}<think>\n"
        "{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}";
    call_format *f = learn(source);
    EXPECT(call_format_reasons(f));
    READS(f, "<think>\nhm\n</think>\n\nyes", "hm", "yes", "");
    READS(f, "yes <think> no", "", "yes <think> no", "");
    READS(f, "<think>\nhm\n", "hm", "", "");
    READS(f, "</think>\n\nyes", "", "yes", ""); // closed without having begun
    READS(f, "yes </think> no", "", "yes </think> no", "");
    READS(f, " \n<think>hm</think><think>\nso</think>\n yes", "hmso", "yes", "");
    READS(f, "                    <think>hm</think>yes", "hm", "yes", "");
    READS(f, "                     <think>hm", "", "                     <think>hm", ""); // too far
    call_parser_options o = {.in_reasoning = true};
    expect_read(__LINE__, f, &o, "hm </thin </think>yes", "hm </thin", "yes", "");
    call_format_close(f);
}

static void calls_can_be_text(void) {
    call_format *f = learn(hermes);
    static const char text[] = "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>";
    call_parser_options o = {.no_calls = true};
    expect_read(__LINE__, f, &o, text, "", text, "");
    call_format_close(f);
}

/* What a stream gives for a control token that is no mark. */
static void control_tokens_are_not_shown(void) {
    call_format *f = learn(hermes);
    READS(f,
          "a\xff<|x|>\xff <tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"b\xff<|y|>\xff c\"}}"
          "</tool_call>\xff<|z|>\xff",
          "", "a", "f{\"a\":\"b c\"};");
    call_format_close(f);
    f = learn(tagged);
    READS(f,
          "<tool_call><function=f><parameter=s>a\xff<|x|>\xff b</parameter></function></tool_call>",
          "", "", "f{\"s\":\"a b\"};");
    call_format_close(f);
}

/* A template that knows no tools gets them, and the calls of earlier turns, as text. */
static void tools_are_described_where_the_template_knows_none(void) {
    static const char turns[] =
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
    static const char no_system[] = "{% for m in messages %}{% if m.role == 'system' %}{{ "
                                    "raise_exception('no system') }}{% endif %}"
                                    "{{ m.role }}: {{ m.content }}\n{% endfor %}";
    json_t *tools = json_loads("[{\"function\":{\"name\":\"f\"}}]", 0, NULL);
    json_t *messages = json_loads(
        "[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":null,\"tool_"
        "calls\":["
        "{\"id\":\"1\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": 1}\"}}]},"
        "{\"role\":\"tool\",\"content\":\"y\"},{\"role\":\"tool\",\"content\":[{\"type\":\"text\","
        "\"text\":\"z\"}]}]",
        0, NULL);
    for (int i = 0; i < 2; i++) {
        call_format *f = learn(i == 0 ? turns : no_system);
        EXPECT_STR(call_format_name(f), "hermes");
        EXPECT(call_format_is_prompted(f));
        json_t *origins, *shown = call_format_messages(f, messages, tools, &origins);
        size_t at = i == 0 ? 1 : 0; // behind the system message
        EXPECT_EQ(json_array_size(shown), 3 + at);
        const char *first = json_string_value(json_object_get(json_array_get(shown, 0), "content"));
        EXPECT(strstr(first, "{\"name\": \"f\"}") != NULL);
        EXPECT_STR(json_string_value(json_object_get(json_array_get(shown, at + 1), "content")),
                   "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>");
        EXPECT_STR(json_string_value(json_object_get(json_array_get(shown, at + 2), "content")),
                   "<tool_response>\ny\n</tool_response>\n<tool_response>\nz\n</tool_response>");
        EXPECT_EQ(json_integer_value(json_array_get(origins, 0)), i == 0 ? -1 : 0);
        EXPECT_EQ(json_integer_value(json_array_get(origins, at + 2)), 2);
        json_decref(shown);
        json_decref(origins);
        shown = call_format_messages(f, messages, NULL, &origins);
        EXPECT_EQ(json_array_size(shown), 3);
        json_decref(origins);
        json_decref(shown);
        call_format_close(f);
    }
    call_format *f = learn("{{ tools|tojson }}"
                           "{% for m in messages %}{{ m.content }}{% endfor %}");
    EXPECT(!call_format_is_prompted(f) && call_format_loses_calls(f));
    call_format_close(f);
    f = learn("{{ raise_exception('no') }}");
    EXPECT_STR(call_format_name(f), "none");
    call_format_close(f);
    json_decref(tools);
    json_decref(messages);
}

#define CALLS_OF(list)                                                                             \
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for c in " list " %}<tool_call>"     \
    "{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments|tojson }}}"      \
    "</tool_call>{% endfor %}<|end|>{% endfor %}{{ tools|tojson }}"

static void templates_may_write_the_first_call_only(void) {
    static const struct {
        const char *source;
        bool loses;
    } cases[] = {
        {CALLS_OF("m.tool_calls or []"), false},
        {CALLS_OF("(m.tool_calls or [])[:1]"), true},
        {CALLS_OF("[]"), false}, // none, so they become text
        {"{% for m in messages %}{% if m.tool_calls and m.tool_calls|length > 1 %}"
         "{{ raise_exception('single') }}{% endif %}{% endfor %}" CALLS_OF("m.tool_calls or []"),
         false},
    };
    for (size_t i = 0; i < INFERD_COUNT(cases); i++) {
        call_format *f = learn(cases[i].source);
        EXPECT_EQ(call_format_loses_later_calls(f), cases[i].loses);
        call_format_close(f);
    }
}

static const char three_messages[] =
    "[{'role':'user','content':'x'},{'role':'assistant','content':'Look:','tool_calls':[{'id':"
    "'1','function':{'name':'f','arguments':'{\\\"a\\\": [true, \\\"true\\\"], \\\"b\\\": "
    "\\\"y\\\"}'}},{'id':'2','function':{'name':'g','arguments':''}}]},{'role':'tool','content':"
    "'z'}]";

static json_t *quoted_json(const char *text) {
    buf b = {0};
    for (; *text != 0; text++) buf_add_char(&b, *text == '\'' ? '"' : *text);
    json_t *v = json_loads(buf_cstr(&b), 0, NULL);
    EXPECT(v != NULL);
    buf_deinit(&b);
    return v;
}

/* Text `i` of the conversation as the template gets it. */
static void expect_shown(int line, const char *source, const char *name, bool prompted, size_t n,
                         size_t i, const char *wanted) {
    call_format *f = NULL;
    chat_template *t = NULL;
    inferd_err err;
    EXPECT_EQ(chat_template_open(bytes_of(source), NULL, &t, &err), INFERD_OK);
    EXPECT_EQ(call_format_open(t, bytes_of(source), NULL, name, &f, &err), INFERD_OK);
    json_t *messages = quoted_json(three_messages), *origins = NULL;
    json_t *tools = quoted_json("[{'function':{'name':'f'}}]");
    json_t *shown = call_format_messages(f, messages, tools, &origins);
    const char *text = json_string_value(json_object_get(json_array_get(shown, i), "content"));
    if (call_format_is_prompted(f) != prompted || json_array_size(shown) != n || text == NULL ||
        strstr(text, wanted) == NULL) {
        printf("line %d: %zu messages, \"%s\"\n", line, json_array_size(shown), text);
        test_failures++;
    }
    EXPECT_EQ(json_array_size(origins), n);
    json_decref(messages);
    json_decref(tools);
    json_decref(shown);
    json_decref(origins);
    call_format_close(f);
    chat_template_close(t);
}

/* The model saw the result of a call that its prompt had not. */
static void calls_become_text_where_the_template_writes_none(void) {
    static const char shows_tools[] = "{{ tools|tojson }}{# <|tool_call_start|> #}"
                                      "{% for m in messages %}{{ m.content }}{% endfor %}";
    expect_shown(__LINE__, shows_tools, NULL, false, 3, 1,
                 "Look:\n<|tool_call_start|>[f(a=[True, \"true\"], b=\"y\"), "
                 "g()]<|tool_call_end|>");
    expect_shown(__LINE__, shows_tools, "granite", false, 3, 1,
                 "Look:\n<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\": [true, "
                 "\"true\"], \"b\": \"y\"}}, {\"name\": \"g\", \"arguments\": {}}]");
    expect_shown(__LINE__, shows_tools, NULL, false, 3, 2, "z"); // the template shows results
    /* Beside a text only. */
    static const char one_of_both[] =
        "{{ tools|tojson }}{% for m in messages %}{% if m.content %}{{ m.content }}{% else %}"
        "{% for c in m.tool_calls %}<tool_call>\n{\"name\": \"{{ c.function.name }}\", "
        "\"arguments\": {{ c.function.arguments|tojson }}}\n</tool_call>{% endfor %}{% endif %}"
        "{% endfor %}";
    expect_shown(__LINE__, one_of_both, NULL, false, 3, 1,
                 "Look:\n<tool_call>\n{\"name\": \"f\", ");
}

/* Described is the notation that is read. */
static void tools_are_described_in_the_notation_of_the_format(void) {
    static const char of_r1[] =
        "{% for m in messages %}{% if m.role == 'assistant' and m.content is none %}"
        "{% for c in m.tool_calls %}<｜tool▁calls▁begin｜>{{ c.function.name }}```json"
        "{% endfor %}{% elif m.content is not none %}{{ m.content }}{% endif %}{% endfor %}";
    static const char call[] = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>";
    static const char plain[] = "{% for m in messages %}{{ m.content }}{% endfor %}";
    expect_shown(__LINE__, of_r1, NULL, true, 4, 0, call);
    expect_shown(__LINE__, of_r1, NULL, true, 4, 2, call);
    expect_shown(__LINE__, of_r1, NULL, true, 4, 3, "<tool_response>\nz\n</tool_response>");
    expect_shown(__LINE__, plain, "glm", true, 4, 0,
                 "<tool_call>the name\n<arg_key>key</arg_key>\n<arg_value>value</arg_value>");
    /* The template writes calls, and no tools. */
    expect_shown(__LINE__, hermes, NULL, true, 4, 0, "<tool_call>\n{\"name\": \"the name\"");
    expect_shown(__LINE__, hermes, NULL, true, 4, 2, "Look:");
    expect_shown(__LINE__, hermes, NULL, true, 4, 3, "z");
}

static void what_is_written_is_read(void) {
    static const char plain[] = "{% for m in messages %}{{ m.content }}{% endfor %}";
    json_t *calls = quoted_json(
        "[{'id':'abcdefgh1','function':{'name':'get_weather','arguments':'{\\\"city\\\": \\\"Rome, "
        "it is\\\", \\\"n\\\": -1.5, \\\"deep\\\": {\\\"a\\\": [1, null, \\\"null\\\"]}, "
        "\\\"on\\\": false}'}},{'id':'abcdefgh2','function':{'name':'b','arguments':'{}'}}]");
    json_t *tools = quoted_json("[{'function':{'name':'get_weather','parameters':{'type':'object',"
                                "'properties':{'city':{'type':'string'}}}}},{'function':{'name':"
                                "'b'}}]");
    for (size_t i = 0; call_format_named(i) != NULL; i++) {
        call_format *f = NULL;
        chat_template *t = NULL;
        inferd_err err;
        buf text = {0}, content = {0};
        EXPECT_EQ(chat_template_open(bytes_of(plain), NULL, &t, &err), INFERD_OK);
        EXPECT_EQ(call_format_open(t, bytes_of(plain), NULL, call_format_named(i), &f, &err),
                  INFERD_OK);
        json_t *some = f->single ? json_pack("[O]", json_array_get(calls, 0)) : json_incref(calls);
        call_write(f, some, &text);
        message m = read_text(f, &(call_parser_options){.tools = tools}, (bytes){text.p, text.n});
        const char *n = buf_cstr(&m.calls);
        bool both = strstr(n, "\"city\":\"Rome, it is\"") != NULL ||
                    strstr(n, "\"city\": \"Rome, it is\"") != NULL;
        bool rest = strstr(n, "-1.5") != NULL && strstr(n, "\"null\"") != NULL;
        bool second = f->single || strstr(n, "b") != NULL;
        if (!both || !rest || !second || m.content.n > 0 || strchr(n, '~') != NULL) {
            printf("%s: %s\n  %s | %s\n", f->name, buf_cstr(&text), n, buf_cstr(&m.content));
            test_failures++;
        }
        deinit(&m);
        buf_deinit(&text);
        buf_deinit(&content);
        json_decref(some);
        call_format_close(f);
        chat_template_close(t);
    }
    json_decref(calls);
    json_decref(tools);
}

/* ---- real templates ---- */

static bool calls_equal(const message *m, json_t *calls) {
    bytes rest = {m->calls.p, m->calls.n};
    size_t i;
    json_t *call;
    json_array_foreach(calls, i, call) {
        json_t *f = json_object_get(call, "function"), *wanted = json_object_get(f, "arguments");
        bytes name = bytes_of(json_string_value(json_object_get(f, "name")));
        if (!bytes_start(rest, name)) return false;
        rest = bytes_from(rest, name.n);
        size_t begin = bytes_find(rest, bytes_of("{"), 0), end = begin;
        json_t *got = NULL;
        inferd_err ignored;
        bool equal = false;
        if (begin == SIZE_MAX) return false;
        for (end = begin; !equal && end != SIZE_MAX;) { // up to the end that makes it JSON
            end = bytes_find(rest, bytes_of("};"), end);
            if (end == SIZE_MAX) break;
            end++;
            if (json_text_read((bytes){rest.p + begin, end - begin}, &got, &ignored) == INFERD_OK) {
                equal = json_equal(got, wanted);
                json_decref(got);
            }
        }
        if (!equal) return false;
        rest = bytes_from(rest, end + 1);
    }
    return rest.n == 0;
}

static int n_formats, n_messages;

/* Trees say nothing of a null, nor of what is empty. */
static bool is_lossless(const json_t *v) {
    const char *key;
    json_t *part;
    size_t i;
    if (json_is_null(v)) return false;
    json_array_foreach((json_t *)(uintptr_t)v, i, part) {
        bool empty = json_is_array(part) || json_is_object(part)
                         ? json_array_size(part) + json_object_size(part) == 0
                         : json_is_string(part);
        if (!is_lossless(part) || empty) return false;
    }
    json_object_foreach((json_t *)(uintptr_t)v, key, part) {
        bool typed = json_is_string(part) && json_string_length(part) == 0;
        if (!is_lossless(part) || typed) return false;
        if ((json_is_array(part) || json_is_object(part)) &&
            json_array_size(part) + json_object_size(part) == 0)
            return false;
    }
    return true;
}

static void give_calls_back(const char *name, const chat_template *t, const call_format *f) {
    n_formats += call_format_style(f) != CALL_NONE;
    for (int round = 0; round < 6 && call_format_style(f) != CALL_NONE; round++) {
        json_t *tools = json_array(), *calls = json_array();
        static const char *const names[] = {"get_weather", "read-file", "a"};
        for (uint32_t k = 0, n_calls = 1 + (f->single ? 0 : draw(3)); k < n_calls; k++) {
            json_t *arguments = json_object();
            json_t *tool = draw_tool(names[k], arguments);
            if (f->tree && !is_lossless(arguments)) json_object_clear(arguments);
            json_array_append_new(tools, tool);
            json_array_append_new(calls, call_json(names[k], k, arguments));
        }
        written w;
        if (write_calls(t, f, tools, calls, &w)) {
            message m = read_text(f, &(call_parser_options){.tools = tools}, whole_answer(&w));
            if (!calls_equal(&m, calls)) {
                char *wanted = json_dumps(calls, JSON_COMPACT);
                printf("%s: %s\n  expected %s\n  read     %s\n  content  %s\n", name,
                       buf_cstr(&w.text), wanted, buf_cstr(&m.calls), buf_cstr(&m.content));
                free(wanted);
                test_failures++;
            }
            deinit(&m);
            n_messages++;
        }
        buf_deinit(&w.text);
        json_decref(tools);
        json_decref(calls);
    }
}

static void real_templates_give_calls_back(void) {
    if (!for_each_template(give_calls_back)) SKIP("no shared/templates");
    printf("%d formats, %d messages, seed 20\n", n_formats, n_messages);
    EXPECT(n_formats >= 70);
    EXPECT(n_messages >= 350);
}

/* ---- reasoning of earlier turns ---- */

static const char *const reasoning_names[] = {"reasoning_content", "reasoning", "thinking"};

/* How often the template writes the reasoning, under these names (bits), of a turn that calls. */
static int count_thoughts(const chat_template *t, const call_format *f, unsigned by_names,
                          const char *content) {
    json_t *messages = quoted_json("[{'role':'user','content':'x'},{'role':'assistant','tool_calls'"
                                   ":[{'id':'abcdefgh1','type':'function','function':{'name':'f',"
                                   "'arguments':'{}'}}]},{'role':'tool','tool_call_id':'abcdefgh1',"
                                   "'content':'z'}]");
    json_t *turn = json_array_get(messages, 1);
    json_object_set_new(turn, "content", json_string(content));
    for (size_t i = 0; i < 3; i++)
        if ((by_names >> i & 1) != 0)
            json_object_set_new(turn, reasoning_names[i], json_string(PROBE_REASON));
    json_t *tools = quoted_json("[{'type':'function','function':{'name':'f','description':'',"
                                "'parameters':{'type':'object','properties':{}}}}]");
    json_t *shown = call_format_reasoned(f, messages);
    struct tm now = {.tm_mday = 1, .tm_year = 126};
    chat_input in = {.messages = shown, .tools = tools, .add_generation_prompt = true};
    chat_text text = {0};
    inferd_err err = {0};
    int n = chat_render(t, NULL, &in, &now, &text, &err) == INFERD_OK ? 0 : -1;
    if (n == 0)
        for (const char *at = text.text; (at = strstr(at, PROBE_REASON)) != NULL; at++) n++;
    chat_text_deinit(&text);
    json_decref(messages);
    json_decref(shown);
    json_decref(tools);
    return n;
}

static int n_reading;

/* It was lost where the template reads another name than the client sends. */
static void read_each_name(const char *name, const chat_template *t, const call_format *f) {
    static const char *const contents[] = {"", "inferd_said"};
    if (f->reasoning_name == NULL) return;
    for (size_t k = 0; k < 2; k++) {
        int once = count_thoughts(t, f, 7, contents[k]);
        for (unsigned i = 0; i < 3; i++)
            if (count_thoughts(t, f, 1u << i, contents[k]) != once || once > 1) {
                printf("%s: %s, content \"%s\": %d times, of all names %d\n", name,
                       reasoning_names[i], contents[k], count_thoughts(t, f, 1u << i, contents[k]),
                       once);
                test_failures++;
            }
        n_reading += once == 1;
    }
}

static void real_templates_read_reasoning_under_each_name(void) {
    if (!for_each_template(read_each_name)) SKIP("no shared/templates");
    printf("%d prompts with reasoning\n", n_reading);
    EXPECT(n_reading >= 50);
}

static void reasoning_has_the_name_that_the_template_reads(void) {
    static const char reads_thinking[] =
        "{% for m in messages %}{% if m.tool_calls and m.thinking %}{% if m.content %}"
        "{{ raise_exception('both') }}{% endif %}<t>{{ m.thinking }}</t>{% endif %}"
        "{{ m.content }}{% endfor %}";
    call_format *f = learn(reads_thinking);
    EXPECT_STR(f->reasoning_name, "thinking");
    EXPECT(f->reasoning_is_content);
    json_t *messages = quoted_json("[{'role':'user','content':'x','reasoning':'no'},{'role':"
                                   "'assistant','content':[{'type':'text','text':'so'}],'reasoning'"
                                   ":'hm','tool_calls':[1]},{'role':'assistant','content':'a',"
                                   "'reasoning_content':'b'}]");
    json_t *shown = call_format_reasoned(f, messages);
    json_t *wanted =
        quoted_json("[{'role':'user','content':'x','reasoning':'no'},{'role':"
                    "'assistant','content':'','reasoning':'hm','thinking':'hm\\n\\nso',"
                    "'tool_calls':[1]},{'role':'assistant','content':'a',"
                    "'reasoning_content':'b','thinking':'b'}]");
    EXPECT(json_equal(shown, wanted));
    json_decref(shown);
    json_decref(wanted);
    json_decref(messages);
    call_format_close(f);
}

/* ---- what stands around calls ---- */

static int n_around, n_halves;

static void add_without_white(buf *out, const buf *text) {
    for (size_t i = 0; i < text->n; i++)
        if (!call_is_white(text->p[i])) buf_add_char(out, text->p[i]);
}

static void add_reasoning(const call_format *f, buf *out) {
    bytes open = bytes_trim(f->reasoning_open), close = bytes_trim(f->reasoning_close);
    if (close.n == 0) return;
    buf_add(out, open.p, open.n);
    buf_add_str(out, "hm");
    buf_add(out, close.p, close.n);
}

/* Reasoning, content, a call, content. */
static void keep_text_around(const char *name, const call_format *f, bytes call) {
    buf text = {0}, content = {0};
    add_reasoning(f, &text);
    buf_add_str(&text, "so ");
    buf_add(&text, call.p, call.n);
    buf_add_str(&text, " end");
    message m = read_text(f, &(call_parser_options){0}, (bytes){text.p, text.n});
    add_without_white(&content, &m.content);
    bool thought =
        bytes_trim(f->reasoning_close).n == 0 || strcmp(buf_cstr(&m.reasoning), "hm") == 0;
    bool called = bytes_start((bytes){m.calls.p, m.calls.n}, bytes_of("get_weather"));
    if (!thought || !called || strcmp(buf_cstr(&content), "soend") != 0) {
        printf("%s: %s\n  %s | %s | %s\n", name, buf_cstr(&text), buf_cstr(&m.reasoning),
               buf_cstr(&m.content), buf_cstr(&m.calls));
        test_failures++;
    }
    n_around++;
    deinit(&m);
    buf_deinit(&content);
    buf_deinit(&text);
}

/* Any part of the mark before a call, at the end. */
static void keep_half_marks(const char *name, const call_format *f) {
    buf open = {0};
    buf_add(&open, f->section_open.p, f->section_open.n);
    buf_add(&open, f->call_open.p, f->call_open.n);
    bytes mark = call_anchor((bytes){open.p, open.n});
    for (size_t n = 1; n < mark.n; n++) {
        buf text = {0}, wanted = {0};
        if (((unsigned char)mark.p[n] & 0xc0) == 0x80) continue; // pieces are whole code points
        add_reasoning(f, &text);
        buf_add_str(&wanted, "so ");
        buf_add(&wanted, mark.p, n);
        buf_add(&text, wanted.p, wanted.n);
        message m = read_text(f, &(call_parser_options){0}, (bytes){text.p, text.n});
        if (!same(&m.content, &wanted) || m.calls.n > 0) {
            printf("%s: %s\n  %s | %s\n", name, buf_cstr(&text), buf_cstr(&m.content),
                   buf_cstr(&m.calls));
            test_failures++;
        }
        n_halves++;
        deinit(&m);
        buf_deinit(&text);
        buf_deinit(&wanted);
    }
    buf_deinit(&open);
}

static void keep_all(const char *name, const chat_template *t, const call_format *f) {
    bool structured = bytes_trim(f->content_open).n + bytes_trim(f->content_close).n > 0;
    if (call_format_style(f) == CALL_NONE || f->at_start || structured) return;
    json_t *arguments = json_object(), *tools = json_array(), *calls = json_array();
    json_array_append_new(tools, draw_tool("get_weather", arguments));
    json_object_clear(arguments);
    json_array_append_new(calls, call_json("get_weather", 0, arguments));
    written w;
    if (write_calls(t, f, tools, calls, &w))
        keep_text_around(name, f, bytes_trim(answer_without_end(&w)));
    keep_half_marks(name, f);
    buf_deinit(&w.text);
    json_decref(tools);
    json_decref(calls);
}

static void all_text_around_calls_is_kept(void) {
    if (!for_each_template(keep_all)) SKIP("no shared/templates");
    printf("%d texts around calls, %d half marks\n", n_around, n_halves);
    EXPECT(n_around >= 45);
    EXPECT(n_halves >= 500);
}

static const test_case cases[] = {TEST(objects_between_tags),
                                  TEST(half_a_mark_is_text),
                                  TEST(a_call_that_is_cut_ends),
                                  TEST(lists_and_ids),
                                  TEST(arguments_between_tags),
                                  TEST(values_that_are_trees_of_tags),
                                  TEST(python_calls),
                                  TEST(a_message_that_is_a_call),
                                  TEST(reasoning_is_apart),
                                  TEST(calls_can_be_text),
                                  TEST(control_tokens_are_not_shown),
                                  TEST(tools_are_described_where_the_template_knows_none),
                                  TEST(templates_may_write_the_first_call_only),
                                  TEST(calls_become_text_where_the_template_writes_none),
                                  TEST(tools_are_described_in_the_notation_of_the_format),
                                  TEST(what_is_written_is_read),
                                  TEST(reasoning_has_the_name_that_the_template_reads),
                                  TEST(real_templates_read_reasoning_under_each_name),
                                  TEST(real_templates_give_calls_back),
                                  TEST(all_text_around_calls_is_kept)};
TEST_MAIN(cases)
