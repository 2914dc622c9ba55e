/* Tool calls and reasoning: formats learned from templates, and texts read by them.  Every text is
 * read whole, byte by byte, and cut in two at each byte: the message is always the same. */
#include <dirent.h>

#include "calls/format.h"
#include "calls/learn.h"
#include "chat/json_text.h"
#include "models/grammar.h"
#include "test.h"

/* ---- reading ---- */

typedef struct message {
    buf reasoning, content, calls;
} message;

static void on_event(void *ctx, const call_event *ev) {
    message *m = ctx;
    switch (ev->kind) {
    case CALL_EVENT_REASONING:
        buf_add(&m->reasoning, ev->text.p, ev->text.n);
        break;
    case CALL_EVENT_CONTENT:
        buf_add(&m->content, ev->text.p, ev->text.n);
        break;
    case CALL_EVENT_BEGIN:
        buf_add(&m->calls, ev->name.p, ev->name.n);
        if (ev->id.n > 0) buf_add_format(&m->calls, "#%.*s", (int)ev->id.n, ev->id.p);
        break;
    case CALL_EVENT_ARGUMENTS:
        buf_add(&m->calls, ev->text.p, ev->text.n);
        break;
    case CALL_EVENT_END:
        buf_add_str(&m->calls, ";");
        break;
    }
}

static void deinit(message *m) {
    buf_deinit(&m->reasoning);
    buf_deinit(&m->content);
    buf_deinit(&m->calls);
}

/* Pieces: [0, cut), [cut, n); cut 0: byte by byte. */
static message read_pieces(const call_format *f, const call_parser_options *o, bytes text,
                           size_t cut) {
    message m = {0};
    call_parser *p = call_parser_create(f, o);
    size_t at = 0;
    while (at < text.n) {
        size_t n = cut == 0 ? 1 : at == 0 ? size_min(cut, text.n) : text.n - at;
        EXPECT(call_parser_push(p, (bytes){text.p + at, n}, on_event, &m));
        at += n;
    }
    EXPECT(call_parser_finish(p, on_event, &m));
    call_parser_destroy(p);
    buf_add(&m.reasoning, "", 0);
    return m;
}

static bool same(const buf *a, const buf *b) {
    return a->n == b->n && (a->n == 0 || memcmp(a->p, b->p, a->n) == 0);
}

/* The message of a text; all ways to cut it give the same one. */
static message read_text(const call_format *f, const call_parser_options *o, bytes text) {
    message whole = read_pieces(f, o, text, text.n);
    for (size_t cut = 0; cut < text.n; cut++) {
        message m = read_pieces(f, o, text, cut);
        bool equal = same(&m.reasoning, &whole.reasoning) && same(&m.content, &whole.content) &&
                     same(&m.calls, &whole.calls);
        if (!equal) {
            printf("cut at %zu of %.*s\n  %s | %s | %s\n  %s | %s | %s\n", cut, (int)text.n, text.p,
                   buf_cstr(&whole.reasoning), buf_cstr(&whole.content), buf_cstr(&whole.calls),
                   buf_cstr(&m.reasoning), buf_cstr(&m.content), buf_cstr(&m.calls));
            test_failures++;
            cut = text.n;
        }
        deinit(&m);
    }
    return whole;
}

static call_format *learn(const char *source) {
    chat_template *t = NULL;
    call_format *f = NULL;
    inferd_err err = {0};
    EXPECT_EQ(chat_template_open(bytes_of(source), NULL, &t, &err), INFERD_OK);
    EXPECT_EQ(call_format_open(t, bytes_of(source), NULL, NULL, &f, &err), INFERD_OK);
    chat_template_close(t);
    return f;
}

static void expect_read(int line, const call_format *f, const call_parser_options *o,
                        const char *text, const char *thought, const char *content,
                        const char *calls) {
    message m = read_text(f, o, bytes_of(text));
    const char *got[] = {buf_cstr(&m.reasoning), buf_cstr(&m.content), buf_cstr(&m.calls)};
    const char *wanted[] = {thought, content, calls};
    for (int i = 0; i < 3; i++)
        if (strcmp(got[i], wanted[i]) != 0) {
            printf("line %d: \"%s\", expected \"%s\"\n", line, got[i], wanted[i]);
            test_failures++;
        }
    deinit(&m);
}
#define READS(f, text, reasoning, content, calls)                                                  \
    expect_read(__LINE__, f, &(call_parser_options){0}, text, reasoning, content, calls)

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
    READS(f, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"b", "", "", "f{\"a\":\"b;");
    READS(f, "<tool_call>{\"name\":\"f\"", "", "", "f;");
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
                "f{\"s\":\"cut\"};");
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
        json_t *shown = call_format_messages(f, messages, tools);
        size_t at = i == 0 ? 1 : 0; // behind the system message
        EXPECT_EQ(json_array_size(shown), 3 + at);
        const char *first = json_string_value(json_object_get(json_array_get(shown, 0), "content"));
        EXPECT(strstr(first, "{\"name\": \"f\"}") != NULL);
        EXPECT_STR(json_string_value(json_object_get(json_array_get(shown, at + 1), "content")),
                   "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>");
        EXPECT_STR(json_string_value(json_object_get(json_array_get(shown, at + 2), "content")),
                   "<tool_response>\ny\n</tool_response>\n<tool_response>\nz\n</tool_response>");
        json_decref(shown);
        shown = call_format_messages(f, messages, NULL);
        EXPECT_EQ(json_array_size(shown), 3);
        json_decref(shown);
        call_format_close(f);
    }
    call_format *f = learn(hermes); // shows calls
    EXPECT(!call_format_is_prompted(f));
    call_format_close(f);
    f = learn("{{ raise_exception('no') }}");
    EXPECT_STR(call_format_name(f), "none");
    call_format_close(f);
    json_decref(tools);
    json_decref(messages);
}

/* ---- real templates ---- */

static const char *shared_folder(void) {
    const char *folder = getenv("INFERD_SHARED");
    return folder != NULL ? folder : INFERD_SOURCE_DIR "/../shared";
}

static uint64_t random_state = 20;

static uint32_t draw(uint32_t n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % n);
}

static json_t *draw_text(void) {
    static const char *const parts[] = {"a", "Rome", " ", "\"", "\n",  "\\", "<b>", "{", "}", "[1]",
                                        "ü", "世界", "🚀", "3",  ", x", ":",  "=",   "&", "/", "%"};
    buf b = {0};
    for (uint32_t n = draw(8); n > 0; n--) buf_add_str(&b, parts[draw(INFERD_COUNT(parts))]);
    json_t *v = json_stringn(b.n > 0 ? b.p : "", b.n);
    buf_deinit(&b);
    return v;
}

static json_t *draw_value(int depth) {
    uint32_t kind = draw(depth > 0 ? 7 : 5);
    json_t *v;
    switch (kind) {
    case 0:
        return json_integer((json_int_t)draw(2000) - 1000);
    case 1:
        return json_real((double)draw(1000) / 8 - 60);
    case 2:
        return json_boolean(draw(2));
    case 3:
        return json_null();
    case 4:
        return draw_text();
    case 5:
        v = json_array();
        for (uint32_t n = draw(3); n > 0; n--) json_array_append_new(v, draw_value(depth - 1));
        return v;
    default:
        v = json_object();
        for (uint32_t n = draw(3), i = 0; i < n; i++)
            json_object_set_new(v, i == 0 ? "key" : "other", draw_value(depth - 1));
        return v;
    }
}

static const char *type_of(const json_t *v) {
    static const char *const names[] = {"object", "array",   "string",  "integer",
                                        "number", "boolean", "boolean", "null"};
    return names[json_typeof(v)];
}

/* A tool and arguments for it, whose types the schema says. */
static json_t *draw_tool(const char *name, json_t *arguments) {
    json_t *properties = json_object();
    static const char *const keys[] = {"path", "n_lines", "x", "deep_value"};
    for (uint32_t n = draw(5), i = 0; i < n && i < 4; i++) {
        json_t *v = draw_value(2);
        json_object_set_new(properties, keys[i],
                            json_pack("{s:s,s:s}", "type", type_of(v), "description", "d"));
        json_object_set_new(arguments, keys[i], v);
    }
    return json_pack("{s:s,s:{s:s,s:s,s:{s:s,s:o,s:[]}}}", "type", "function", "function", "name",
                     name, "description", "d", "parameters", "type", "object", "properties",
                     properties, "required");
}

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

/* ---- what may be written ---- */

static grammar_vocab *byte_vocab(void) {
    static char all[256];
    static bytes pieces[257];
    static const tok_id end = 256;
    grammar_vocab *v = NULL;
    inferd_err err = {0};
    for (int i = 0; i < 256; i++) {
        all[i] = (char)i;
        pieces[i] = (bytes){all + i, 1};
    }
    EXPECT_EQ(grammar_vocab_of_pieces(pieces, 257, &end, 1, &v, &err), INFERD_OK);
    return v;
}

/* The machine of the texts that a message may be; NULL: it does not compile, which is a failure. */
static grammar_machine *machine_of(const call_format *f, const call_tags_options *o) {
    json_t *tags = call_tags(f, o);
    grammar *g = NULL;
    grammar_machine *m = NULL;
    inferd_err err = {0};
    grammar_schema_kind kind = {.any_order = true, .spaced = f->spaced, .compact = f->compact};
    grammar_vocab *v = byte_vocab();
    if (tags == NULL || grammar_of_tags(tags, &kind, NULL, &g, &err) != INFERD_OK ||
        grammar_machine_create(g, v, &m, &err) != INFERD_OK) {
        char *text = tags == NULL ? NULL : json_dumps(tags, JSON_INDENT(1));
        printf("%s\n%s\n", err.text, text == NULL ? "" : text);
        free(text);
        test_failures++;
    }
    json_decref(tags);
    grammar_release(g);
    grammar_vocab_release(v);
    return m;
}

/* Is the text one that the grammar allows?  If not, says where it stops. */
static bool allows(grammar_machine *m, const char *what, bytes text) {
    grammar_pos p = grammar_start(m);
    size_t i = 0;
    while (i < text.n && grammar_accept_bytes(m, p, (bytes){text.p + i, 1}, NULL)) i++;
    bool ok = i == text.n && grammar_may_end(m, p);
    if (!ok)
        printf("%s: %.*s >>HERE<< %.*s\n", what, (int)i, text.p, (int)(text.n - i), text.p + i);
    grammar_drop(m, p);
    return ok;
}

/* The calls as the template writes them are read back.  False: it cannot write these. */
static bool try_calls(const char *name, const chat_template *t, const call_format *f, json_t *tools,
                      json_t *calls) {
    prober p;
    buf turn = {0}, end = {0}, text = {0};
    bool written = prober_init(&p, t, NULL, tools);
    json_t *said = probe_said("", NULL, NULL);
    json_object_set(said, "tool_calls", calls);
    written = written && probe_prompt(&p, &turn);
    if (written && probe_message(&p, probe_said(PROBE_CONTENT, NULL, NULL), &end)) {
        size_t n = bytes_find((bytes){end.p, end.n}, bytes_of(PROBE_CONTENT), 0);
        n = n == SIZE_MAX ? end.n : n + strlen(PROBE_CONTENT);
        memmove(end.p, end.p + n, end.n - n);
        end.n -= n;
    }
    if (written)
        written = probe_message(&p, said, &text);
    else
        json_decref(said);
    if (written) {
        size_t at = 0;
        while (at < text.n && at < turn.n && text.p[at] == turn.p[at]) at++;
        at = learn_back((bytes){text.p, text.n}, at);
        /* Where a prompt has more before its last mark than an earlier turn. */
        bytes opens = bytes_trim((bytes){turn.p, turn.n});
        size_t mark = opens.n;
        while (mark > 0 && opens.p[mark - 1] != '<') mark--;
        bytes last = bytes_from(opens, mark > 0 ? mark - 1 : opens.n);
        if (bytes_start((bytes){text.p + at, text.n - at}, last)) at += last.n;
        bytes close = bytes_trim(f->reasoning_close);
        const json_t *first = json_object_get(json_array_get(calls, 0), "function");
        bytes called = bytes_of(json_string_value(json_object_get(first, "name")));
        size_t name_at = bytes_find((bytes){text.p, text.n}, called, at);
        written = name_at != SIZE_MAX; // or its calls are mentioned only
        bytes before = {text.p, written ? name_at : 0};
        size_t closed = close.n > 0 ? bytes_find(before, close, 0) : SIZE_MAX;
        if (closed != SIZE_MAX && closed + close.n > at) at = closed + close.n;
        message m =
            read_text(f, &(call_parser_options){.tools = tools}, (bytes){text.p + at, text.n - at});
        bytes answer = {text.p + at, text.n - at};
        bytes turn_end = {end.p, end.n};
        for (int choice = CALL_AUTO; written && choice <= CALL_REQUIRED; choice++) {
            call_tags_options o = {.tools = tools, .choice = (call_choice)choice, .parallel = true};
            grammar_machine *machine = machine_of(f, &o);
            if (machine == NULL) continue;
            bool nested =
                memchr(answer.p, '{', answer.n) != NULL || memchr(answer.p, '[', answer.n) != NULL;
            /* Lists are written as JSON here, and a call without arguments without an empty line.
             */
            bool literals =
                f->style == CALL_PYTHON && bytes_find(answer, bytes_of("None"), 0) != SIZE_MAX;
            bool other = (f->python_words && nested) || f->style == CALL_BRACES || literals ||
                         bytes_find(answer, bytes_of("\">\n\n</"), 0) != SIZE_MAX;
            bytes part = {answer.p, answer.n - learn_suffix(answer, turn_end)};
            while (part.n > 0 && call_is_white(part.p[part.n - 1])) part.n--;
            if (!other && !allows(machine, name, part)) test_failures++;
            grammar_machine_release(machine);
        }
        if (written && !calls_equal(&m, calls)) {
            char *wanted = json_dumps(calls, JSON_COMPACT);
            printf("%s: %s\n  expected %s\n  read     %s\n  content  %s\n", name, buf_cstr(&text),
                   wanted, buf_cstr(&m.calls), buf_cstr(&m.content));
            free(wanted);
            test_failures++;
        }
        deinit(&m);
    }
    buf_deinit(&turn);
    buf_deinit(&end);
    buf_deinit(&text);
    prober_deinit(&p);
    return written;
}

static void real_templates_give_calls_back(void) {
    char path[512];
    snprintf(path, sizeof path, "%s/templates", shared_folder());
    DIR *d = opendir(path);
    if (d == NULL) SKIP("no shared/templates");
    int n_formats = 0, n_messages = 0;
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        if (strstr(e->d_name, ".jinja") == NULL) continue;
        static char source[1 << 20];
        snprintf(path, sizeof path, "%s/templates/%s", shared_folder(), e->d_name);
        FILE *file = fopen(path, "rb");
        size_t n = file == NULL ? 0 : fread(source, 1, sizeof source - 1, file);
        if (file != NULL) fclose(file);
        source[n] = 0;
        chat_template *t = NULL;
        inferd_err err = {0};
        if (chat_template_open((bytes){source, n}, NULL, &t, &err) != INFERD_OK) continue;
        call_format *f = learn(source);
        n_formats += call_format_style(f) != CALL_NONE;
        for (int round = 0; round < 6 && call_format_style(f) != CALL_NONE; round++) {
            json_t *tools = json_array(), *calls = json_array();
            static const char *const names[] = {"get_weather", "read-file", "a"};
            for (uint32_t k = 0, n_calls = 1 + (f->single ? 0 : draw(3)); k < n_calls; k++) {
                json_t *arguments = json_object();
                char id[20];
                snprintf(id, sizeof id, "callid%03u", k);
                json_array_append_new(tools, draw_tool(names[k], arguments));
                json_array_append_new(calls, json_pack("{s:s,s:s,s:{s:s,s:o}}", "id", id, "type",
                                                       "function", "function", "name", names[k],
                                                       "arguments", arguments));
            }
            n_messages += try_calls(e->d_name, t, f, tools, calls);
            json_decref(tools);
            json_decref(calls);
        }
        call_format_close(f);
        chat_template_close(t);
    }
    closedir(d);
    printf("%d formats, %d messages, seed 20\n", n_formats, n_messages);
    EXPECT(n_formats >= 50);
    EXPECT(n_messages >= 280);
}

static const test_case cases[] = {TEST(objects_between_tags),
                                  TEST(half_a_mark_is_text),
                                  TEST(a_call_that_is_cut_ends),
                                  TEST(lists_and_ids),
                                  TEST(arguments_between_tags),
                                  TEST(python_calls),
                                  TEST(a_message_that_is_a_call),
                                  TEST(reasoning_is_apart),
                                  TEST(calls_can_be_text),
                                  TEST(tools_are_described_where_the_template_knows_none),
                                  TEST(real_templates_give_calls_back)};
TEST_MAIN(cases)
