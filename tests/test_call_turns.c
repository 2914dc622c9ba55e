/* Turns of several parts, and marks around content: what is read as what, and what the grammar
 * allows.  The templates are of our own, in the ways of gpt-oss, Muse, Kimi K3 and Cohere; control
 * tokens are texts here, in e2e/test_call_turns.py they are tokens. */
#include "call_tags_rig.h"

static const char channels[] =
    "{% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}<|start|>assistant "
    "to=functions.{{ c.function.name }}<|channel|>commentary json<|message|>"
    "{{ c.function.arguments|tojson }}<|call|>{% endfor %}{% elif m.role == 'assistant' %}"
    "<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|return|>{% else %}"
    "<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}";
static const char recipients[] =
    "{% for m in messages %}{% if m.role == 'assistant' %}{% if m.reasoning_content %}"
    "<|start|>assistant to=self<|message|>{{ m.reasoning_content }}<|eom|>{% endif %}"
    "{% if m.tool_calls %}{% for c in m.tool_calls %}<|start|>assistant to={{ c.function.name }}"
    "<|message|><call name=\"{{ c.function.name }}\">{{ c.function.arguments|tojson }}</call>"
    "{{ '<|eot|>' if loop.last else '<|eom|>' }}{% endfor %}{% else %}"
    "<|start|>assistant to=user<|message|>{{ m.content }}<|eot|>{% endif %}{% else %}"
    "<|start|>{{ m.role }}<|message|>{{ m.content }}<|eot|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}";
static const char nested[] =
    "{% for m in messages %}<|open|>message {{ m.role }}<|sep|>{% if m.role == 'assistant' %}"
    "<|open|>think<|sep|>{{ m.reasoning_content or '' }}<|close|>think<|sep|>"
    "<|open|>response<|sep|>{{ m.content }}<|close|>response<|sep|>"
    "{% if m.tool_calls %}<|open|>tools<|sep|>{% for c in m.tool_calls %}<|open|>call "
    "{{ c.function.name }}<|sep|>{{ c.function.arguments|tojson }}<|close|>call<|sep|>{% endfor %}"
    "<|close|>tools<|sep|>{% endif %}{% else %}{{ m.content }}{% endif %}"
    "<|close|>message<|sep|><|end|>{% endfor %}{% if add_generation_prompt %}"
    "<|open|>message assistant<|sep|><|open|>think<|sep|>{% endif %}";
static const char closed[] =
    "{% for m in messages %}<|{{ m.role }}|>{% if m.reasoning_content %}<|THINK|>"
    "{{ m.reasoning_content }}<|/THINK|>{% endif %}{% if m.tool_calls %}<|CALLS|>["
    "{% for c in m.tool_calls %}{\"name\": \"{{ c.function.name }}\", \"arguments\": "
    "{{ c.function.arguments|tojson }}}{% if not loop.last %}, {% endif %}{% endfor %}]<|/CALLS|>"
    "{% else %}<|TEXT|>{{ m.content }}<|/TEXT|>{% endif %}<|END|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}";

static const char tool[] =
    "[{\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":"
    "{\"type\":\"integer\"}},\"required\":[\"a\"],\"additionalProperties\":false}}}]";

/* Does a format allow the text?  choice -1: without tools. */
static bool may_write(const call_format *f, int choice, bool parallel, const char *text) {
    json_t *tools = choice < 0 ? NULL : json_loads(tool, 0, NULL);
    call_tags_options o = {.tools = tools, .parallel = parallel};
    if (choice >= 0) o.choice = (call_choice)choice;
    grammar_machine *m = machine_of(f, &o);
    bool ok = m != NULL && is_allowed(m, bytes_of(text));
    grammar_machine_release(m);
    json_decref(tools);
    return ok;
}
#define ALLOWED(f, choice, text) EXPECT(may_write(f, choice, true, text))
#define REFUSED(f, choice, text) EXPECT(!may_write(f, choice, true, text))
enum { NO_TOOLS = -1 };

/* ---- channels ---- */

#define THOUGHT  "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
#define PREAMBLE "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"

static const char *const heads[] = {
    "<|channel|>commentary to=functions.f <|constrain|>json<|message|>",
    "<|channel|>commentary to=functions.f json<|message|>",
    "<|channel|>commentary to=functions.f<|message|>",
    " to=functions.f<|channel|>commentary <|constrain|>json<|message|>",
    " to=functions.f<|channel|>commentary json<|message|>",
    " to=functions.f<|channel|>commentary<|message|>",
};

/* Only the way of the template was a call, and content before a call was forbidden. */
static void the_name_may_be_in_the_header_or_behind_the_channel(void) {
    static const struct {
        const char *before, *reasoning, *content;
        bool silent; // no content
    } leads[] = {{"", "", "", true},
                 {THOUGHT, "hm", "", true},
                 {PREAMBLE, "", "I look.", false},
                 {THOUGHT PREAMBLE, "hm", "I look.", false},
                 {PREAMBLE THOUGHT, "hm", "I look.", false},
                 {THOUGHT PREAMBLE THOUGHT PREAMBLE, "hmhm", "I look.I look.", false}};
    call_format *f = learn(channels);
    EXPECT_STR(call_format_name(f), "harmony");
    for (size_t i = 0; i < INFERD_COUNT(leads); i++)
        for (size_t k = 0; k < INFERD_COUNT(heads); k++) {
            buf text = {0}, wrong = {0};
            buf_add_format(&text, "%s%s{\"a\": 1}<|call|>", leads[i].before, heads[k]);
            buf_add_format(&wrong, "%s%s{\"a\": \"x\"}<|call|>", leads[i].before, heads[k]);
            READS(f, buf_cstr(&text), leads[i].reasoning, leads[i].content, "f{\"a\": 1};");
            ALLOWED(f, CALL_AUTO, buf_cstr(&text));
            EXPECT_EQ(may_write(f, CALL_REQUIRED, true, buf_cstr(&text)), leads[i].silent);
            REFUSED(f, CALL_REQUIRED, buf_cstr(&wrong));
            buf_deinit(&text);
            buf_deinit(&wrong);
        }
    call_format_close(f);
}

static void a_preamble_is_content(void) {
    static const char text[] = THOUGHT PREAMBLE "<|channel|>final<|message|>Hi.";
    call_format *f = learn(channels);
    call_parser_options no_calls = {.no_calls = true};
    READS(f, text, "hm", "I look.Hi.", "");
    expect_read(__LINE__, f, &no_calls, text, "hm", "I look.Hi.", "");
    for (int choice = NO_TOOLS; choice <= CALL_AUTO; choice++) {
        ALLOWED(f, choice, text);
        ALLOWED(f, choice, "<|channel|>final<|message|>Hi.");
    }
    REFUSED(f, CALL_REQUIRED, "<|channel|>final<|message|>Hi.");
    call_format_close(f);
}

/* "final json" was content, and without tools the header of a call. */
static void headers_in_other_forms_are_no_content(void) {
    static const char *const other[] = {
        "<|channel|>final <|constrain|>json<|message|>",
        "<|channel|>final json<|message|>",
        "<|channel|>comment<|message|>",
        "<|channel|>commentary to=browser.search <|constrain|>json<|message|>",
        "<|channel|>analysis to=python code<|message|>",
        " to=browser.search<|channel|>commentary json<|message|>",
    };
    call_format *f = learn(channels);
    call_parser_options no_calls = {.no_calls = true};
    for (size_t i = 0; i < INFERD_COUNT(other) + INFERD_COUNT(heads); i++) {
        bool calls = i >= INFERD_COUNT(other);
        const char *head = calls ? heads[i - INFERD_COUNT(other)] : other[i];
        char text[160];
        snprintf(text, sizeof text, "%s{\"a\": 1}", head);
        expect_read(__LINE__, f, &no_calls, text, "", "{\"a\": 1}", "");
        if (!calls) READS(f, text, "", "{\"a\": 1}", "");
        snprintf(text, sizeof text, THOUGHT "%s{\"a\": 1}", head);
        expect_read(__LINE__, f, &no_calls, text, "hm", "{\"a\": 1}", "");
        for (size_t n = 2; n < strlen(head); n++) {
            snprintf(text, sizeof text, "%.*s", (int)n, head);
            expect_read(__LINE__, f, &no_calls, text, "", "", "");
        }
    }
    READS(f, "<|channel|>final<|message|>a to=b <c", "", "a to=b <c", "");
    READS(f, "<|channel|>final<|message|>a to=b", "", "a to=b", "");
    call_format_close(f);
}

/* "anal" was content. */
static void half_a_header_is_no_content(void) {
    call_format *f = learn(channels);
    for (size_t k = 0; k < INFERD_COUNT(heads); k++)
        for (size_t n = 2; n < strlen(heads[k]); n++) { // one blank is a text
            char cut[128];
            snprintf(cut, sizeof cut, "%.*s", (int)n, heads[k]);
            READS(f, cut, "", "", "");
        }
    READS(f, "<|channel|>anal", "", "", "");
    READS(f, THOUGHT "<|channel|>fin", "hm", "", "");
    READS(f, "<|channel|>final<|message|>so <|chan", "", "so <|chan", ""); // text of the answer
    READS(f, "bare to=func", "", "bare to=func", "");
    call_format_close(f);
}

/* The name of the format brings all marks of it, whatever the template is. */
static void the_known_format_has_all_marks(void) {
    static const char other[] =
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
    chat_template *t = NULL;
    call_format *f = NULL;
    inferd_err err = {0};
    EXPECT_EQ(chat_template_open(bytes_of(other), NULL, &t, &err), INFERD_OK);
    EXPECT_EQ(call_format_open(t, bytes_of(other), NULL, "harmony", &f, &err), INFERD_OK);
    READS(f, THOUGHT PREAMBLE "<|channel|>commentary to=functions.f<|message|>{}<|call|>", "hm",
          "I look.", "f{};");
    ALLOWED(f, CALL_AUTO,
            PREAMBLE " to=functions.f<|channel|>commentary<|message|>{\"a\":2}<|call|>");
    call_format_close(f);
    chat_template_close(t);
}

/* A budget of reasoning counts it wherever it stands. */
static void reasoning_behind_content_is_reasoning(void) {
    static const struct {
        const char *text;
        bool reasons;
    } texts[] = {{"<|channel|>commentary<|message|>I look.", false},
                 {PREAMBLE, false},
                 {PREAMBLE "<|channel|>analysis<|message|>", true},
                 {PREAMBLE "<|channel|>analysis<|message|>hm", true},
                 {PREAMBLE THOUGHT, false},
                 {PREAMBLE THOUGHT "<|channel|>final<|message|>Hi.", false}};
    call_format *f = learn(channels);
    json_t *tools = json_loads(tool, 0, NULL);
    call_tags_options o = {.tools = tools};
    grammar_machine *m = machine_of(f, &o);
    for (size_t i = 0; i < INFERD_COUNT(texts); i++) {
        grammar_pos p = grammar_start(m);
        EXPECT(grammar_accept_bytes(m, p, bytes_of(texts[i].text), NULL));
        EXPECT_EQ(grammar_in_reasoning(m, p), texts[i].reasons);
        EXPECT(grammar_close_reasoning(m, p, NULL));
        bool goes_on = grammar_accept_bytes(m, p, bytes_of("m"), NULL);
        EXPECT(!(goes_on && texts[i].reasons));
        if (texts[i].reasons) EXPECT(grammar_accept_bytes(m, p, bytes_of("<|end|>"), NULL));
        grammar_drop(m, p);
    }
    grammar_machine_release(m);
    json_decref(tools);
    call_format_close(f);
}

/* It is no format of a request. */
static void clients_write_no_reasoning(void) {
    json_t *tags = json_loads("{\"format\":{\"type\":\"reasoning\",\"end\":\"x\"}}", 0, NULL);
    grammar *g = NULL;
    inferd_err err = {0};
    grammar_schema_kind kind = {0};
    EXPECT_EQ(grammar_of_tags(tags, &kind, NULL, &g, &err), INFERD_EUNSUPPORTED);
    json_decref(tags);
}

/* ---- recipients ---- */

#define TO_SELF " to=self<|message|>hm<|eom|><|start|>assistant"
#define TO_USER " to=user<|message|>Hello."
#define TO_F    " to=f<|message|><call name=\"f\">{\"a\": 1}</call>"
#define NEXT    "<|eom|><|start|>assistant"

static void reasoning_stands_between_calls(void) {
    static const struct {
        const char *text, *reasoning, *content, *calls;
        bool silent, parallel;
    } turns[] = {
        {TO_F, "", "", "f{\"a\": 1};", true, false},
        {TO_SELF TO_F, "hm", "", "f{\"a\": 1};", true, false},
        {TO_SELF TO_F NEXT TO_F, "hm", "", "f{\"a\": 1};f{\"a\": 1};", true, true},
        {TO_SELF TO_F NEXT TO_SELF TO_F, "hmhm", "", "f{\"a\": 1};f{\"a\": 1};", true, true},
        {TO_USER NEXT TO_F, "", "Hello.", "f{\"a\": 1};", false, false},
        {TO_SELF TO_USER NEXT TO_SELF TO_F, "hmhm", "Hello.", "f{\"a\": 1};", false, false},
        {TO_SELF TO_F NEXT TO_USER NEXT TO_F, "hm", "Hello.", "f{\"a\": 1};f{\"a\": 1};", false,
         true},
    };
    call_format *f = learn(recipients);
    for (size_t i = 0; i < INFERD_COUNT(turns); i++) {
        READS(f, turns[i].text, turns[i].reasoning, turns[i].content, turns[i].calls);
        ALLOWED(f, CALL_AUTO, turns[i].text);
        EXPECT_EQ(may_write(f, CALL_REQUIRED, true, turns[i].text), turns[i].silent);
        if (turns[i].silent)
            EXPECT_EQ(may_write(f, CALL_REQUIRED, false, turns[i].text), !turns[i].parallel);
    }
    ALLOWED(f, CALL_AUTO, TO_SELF TO_USER);
    ALLOWED(f, NO_TOOLS, TO_SELF TO_USER);
    REFUSED(f, CALL_REQUIRED, TO_SELF TO_USER);
    REFUSED(f, CALL_REQUIRED, TO_F TO_F);
    call_format_close(f);
}

/* ---- marks at the end ---- */

#define SAID     "Hello.<|close|>response<|sep|>"
#define TURN_END "<|close|>message<|sep|>"
#define TOOLS                                                                                      \
    "<|open|>tools<|sep|><|open|>call f<|sep|>{\"a\": 1}<|close|>call<|sep|><|close|>tools<|sep|>"

static void the_end_of_a_turn_is_no_content(void) {
    call_format *f = learn(nested);
    call_parser_options o = {.in_reasoning = true}, no_calls = {.no_calls = true};
    static const char *const ends[] = {"", TURN_END};
    for (size_t i = 0; i < INFERD_COUNT(ends); i++) {
        buf said = {0}, called = {0}, both = {0};
        buf_add_format(&said, SAID "%s", ends[i]);
        buf_add_format(&called, "<|close|>response<|sep|>" TOOLS "%s", ends[i]);
        buf_add_format(&both, SAID TOOLS "%s", ends[i]);
        READS(f, buf_cstr(&said), "", "Hello.", "");
        expect_read(__LINE__, f, &no_calls, buf_cstr(&said), "", "Hello.", "");
        READS(f, buf_cstr(&called), "", "", "f{\"a\": 1};");
        READS(f, buf_cstr(&both), "", "Hello.", "f{\"a\": 1};");
        ALLOWED(f, NO_TOOLS, buf_cstr(&said));
        ALLOWED(f, CALL_AUTO, buf_cstr(&said));
        ALLOWED(f, CALL_AUTO, buf_cstr(&called));
        ALLOWED(f, CALL_AUTO, buf_cstr(&both));
        ALLOWED(f, CALL_REQUIRED, buf_cstr(&called));
        REFUSED(f, CALL_REQUIRED, buf_cstr(&said));
        buf_deinit(&said);
        buf_deinit(&called);
        buf_deinit(&both);
    }
    ALLOWED(f, CALL_AUTO, "Hello.");
    REFUSED(f, CALL_AUTO, SAID TURN_END "more");
    REFUSED(f, CALL_AUTO, SAID "more");
    expect_read(__LINE__, f, &o, "hm<|close|>think<|sep|><|open|>response<|sep|>" SAID TURN_END,
                "hm", "Hello.", "");
    call_format_close(f);
}

#define ONE_CALL "<|CALLS|>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}]<|/CALLS|>"

static void content_may_be_closed_beside_tools(void) {
    call_format *f = learn(closed);
    READS(f, "<|THINK|>hm<|/THINK|><|TEXT|>Hi.<|/TEXT|>" ONE_CALL, "hm", "Hi.", "f{\"a\": 1};");
    for (int choice = NO_TOOLS; choice <= CALL_AUTO; choice++) {
        ALLOWED(f, choice, "<|TEXT|>Hi.");
        ALLOWED(f, choice, "<|TEXT|>Hi.<|/TEXT|>");
    }
    ALLOWED(f, CALL_AUTO, "<|TEXT|>Hi.<|/TEXT|>" ONE_CALL);
    ALLOWED(f, CALL_REQUIRED, ONE_CALL);
    REFUSED(f, CALL_REQUIRED, "<|TEXT|>Hi.<|/TEXT|>" ONE_CALL);
    call_format_close(f);
}

/* ---- white space behind calls and before content ---- */

#define HERMES_HEAD "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
#define HERMES_CALL                                                                                \
    "<call>{\"name\": \"{{ c.function.name }}\", \"arguments\": "                                  \
    "{{ c.function.arguments|tojson }}}</call>"
#define HERMES_TAIL "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
#define LINE        "{{ '\\n' }}"
static const char lines_before[] =
    HERMES_HEAD "{% for c in m.tool_calls %}" LINE HERMES_CALL "{% endfor %}" HERMES_TAIL;
static const char lines_behind[] =
    HERMES_HEAD "{% for c in m.tool_calls %}" HERMES_CALL LINE "{% endfor %}" HERMES_TAIL;
static const char no_lines[] =
    HERMES_HEAD "{% for c in m.tool_calls %}" HERMES_CALL "{% endfor %}" HERMES_TAIL;
static const char in_section[] =
    HERMES_HEAD "{% if m.tool_calls %}<calls>{% for c in m.tool_calls %}" LINE HERMES_CALL
                "{% endfor %}" LINE "</calls>{% endif %}" HERMES_TAIL;

#define F_CALL "<call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</call>"

/* Behind the white space between calls the end of the turn was forbidden, so one more call was
 * forced. */
static void white_space_may_stand_behind_the_last_call(void) {
    static const char *const sources[] = {lines_before, lines_behind, no_lines, in_section};
    static const char *const whites[] = {"", "\n", " \n", "\n\n"};
    for (size_t i = 0; i < INFERD_COUNT(sources); i++) {
        call_format *f = learn(sources[i]);
        const char *open = sources[i] == in_section ? "<calls>\n" : "";
        const char *close = sources[i] == in_section ? "\n</calls>" : "";
        EXPECT_EQ(call_format_style(f), CALL_OBJECT);
        for (size_t k = 0; k < INFERD_COUNT(whites) * 4; k++) {
            buf text = {0};
            bool parallel = k & 2;
            buf_add_format(&text, "%s" F_CALL "%s%s", open, close, whites[k / 4]);
            EXPECT(may_write(f, k & 1 ? CALL_REQUIRED : CALL_AUTO, parallel, buf_cstr(&text)));
            READS(f, buf_cstr(&text), "", "", "f{\"a\": 1};");
            buf_deinit(&text);
        }
        REFUSED(f, CALL_REQUIRED, "\n");
        REFUSED(f, CALL_REQUIRED, F_CALL "\nmore");
        if (open[0] == 0) EXPECT(!may_write(f, CALL_AUTO, false, F_CALL "\n" F_CALL));
        EXPECT(!may_write(f, CALL_REQUIRED, false, F_CALL "\n" F_CALL));
        call_format_close(f);
    }
}

/* White space was allowed because calls may follow, and then content was not. */
static void white_space_may_stand_before_constrained_content(void) {
    static const struct {
        const char *source, *before;
    } of[] = {{lines_before, ""}, {lines_behind, ""},   {no_lines, ""},
              {in_section, ""},   {closed, "<|TEXT|>"}, {channels, "<|channel|>final<|message|>"}};
    json_t *tools = json_loads(tool, 0, NULL);
    json_t *content =
        json_pack("{s:s,s:{s:s}}", "type", "json_schema", "json_schema", "type", "object");
    for (size_t i = 0; i < INFERD_COUNT(of); i++) {
        call_format *f = learn(of[i].source);
        call_tags_options o = {.tools = tools, .content = content, .parallel = true};
        grammar_machine *m = machine_of(f, &o);
        static const char *const whites[] = {"", "\n", " ", "\n\n", "\t \r\n      "};
        for (size_t k = 0; k < INFERD_COUNT(whites); k++) {
            buf text = {0};
            buf_add_format(&text, "%s%s{\"a\": 1}", whites[k], of[i].before);
            EXPECT(is_allowed(m, (bytes){text.p, text.n}));
            buf_add_str(&text, "more");
            EXPECT(!is_allowed(m, (bytes){text.p, text.n}));
            buf_deinit(&text);
        }
        grammar_machine_release(m);
        call_format_close(f);
    }
    json_decref(tools);
    json_decref(content);
}

/* ---- a mark in the prompt ---- */

/* The grammar wanted the mark once more, so no model could call. */
static void the_prompt_may_end_with_the_first_mark(void) {
    static const char source[] =
        "{% for m in messages %}<|{{ m.role }}|>{% if m.tool_calls %}{% for c in m.tool_calls %}"
        ">>>{{ c.function.name }}\n{{ c.function.arguments }}{% endfor %}"
        "{% elif m.role == 'assistant' %}>>>all\n{{ m.content }}{% else %}{{ m.content }}{% endif "
        "%}"
        "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>>>>{% endif %}";
    static const char call[] = "f\n{\"a\": 1}", calls[] = "f\n{\"a\": 1}>>>f\n{\"a\": 1}";
    static const char both[] = "all\nI look.>>>f\n{\"a\": 1}";
    call_format *f = learn(source);
    READS(f, "all\nHi.", "", "Hi.", "");
    READS(f, call, "", "", "f{\"a\": 1};");
    READS(f, both, "", "I look.", "f{\"a\": 1};");
    for (int choice = NO_TOOLS; choice <= CALL_AUTO; choice++) ALLOWED(f, choice, "all\nHi.");
    for (int choice = CALL_AUTO; choice <= CALL_REQUIRED; choice++) {
        ALLOWED(f, choice, call);
        ALLOWED(f, choice, calls);
        ALLOWED(f, choice, "f\n{\"a\":1}");
        EXPECT(!may_write(f, choice, false, calls));
        REFUSED(f, choice, "f\n{\"a\": \"x\"}");
        REFUSED(f, choice, "Hi.");
    }
    ALLOWED(f, CALL_AUTO, both);
    REFUSED(f, CALL_AUTO, "all\nI look.>>>f\n{\"a\": \"x\"}");
    REFUSED(f, CALL_REQUIRED, both);
    call_format_close(f);
}

/* ---- content that follows a grammar ---- */

static bool reads_schema(const call_format *f, const char *text) {
    call_around around = call_format_around(f);
    grammar_options o = {.around = {around.marks[0], around.marks[1], around.marks[2]}};
    static const bytes choices[] = {{"{}", 2}, {"[]", 2}};
    grammar *g = NULL;
    grammar_machine *m = NULL;
    grammar_vocab *v = byte_vocab();
    inferd_err err = {0};
    EXPECT_EQ(grammar_of_choices(choices, 2, &o, &g, &err), INFERD_OK);
    EXPECT_EQ(grammar_machine_create(g, v, &m, &err), INFERD_OK);
    bool ok = is_allowed(m, bytes_of(text));
    grammar_machine_release(m);
    grammar_release(g);
    grammar_vocab_release(v);
    return ok;
}

/* The mark before content was forbidden, so the model could not answer in its way. */
static void marks_may_stand_around_constrained_content(void) {
    static const struct {
        const char *source, *open, *close;
    } of[] = {{channels, "<|channel|>final<|message|>", "<|return|>"},
              {recipients, " to=user<|message|>", ""},
              {nested, "", "<|close|>response<|sep|>" TURN_END},
              {closed, "<|TEXT|>", "<|/TEXT|>"}};
    for (size_t i = 0; i < INFERD_COUNT(of); i++) {
        call_format *f = learn(of[i].source);
        for (int k = 0; k < 4; k++) {
            buf text = {0};
            buf_add_format(&text, "%s{}%s", k & 1 ? of[i].open : "", k & 2 ? of[i].close : "");
            EXPECT(reads_schema(f, buf_cstr(&text)));
            READS(f, buf_cstr(&text), "", "{}", "");
            buf_clear(&text);
            buf_add_format(&text, "%s()%s", k & 1 ? of[i].open : "", k & 2 ? of[i].close : "");
            EXPECT(!reads_schema(f, buf_cstr(&text)));
            buf_deinit(&text);
        }
        call_format_close(f);
    }
}

/* MiniMax M3 closes reasoning first where it does not reason. */
static void the_mark_behind_reasoning_may_stand_before_constrained_content(void) {
    static const char source[] =
        "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}{% if "
        "m.reasoning_content %}<think>{{ m.reasoning_content }}{% endif %}</think>{% endif %}"
        "{{ m.content }}{% for c in m.tool_calls %}" HERMES_CALL "{% endfor %}" HERMES_TAIL;
    call_format *f = learn(source);
    EXPECT(f->closes_first);
    EXPECT(reads_schema(f, "</think>{}"));
    EXPECT(reads_schema(f, "{}"));
    EXPECT(!reads_schema(f, "</think>"));
    EXPECT(!reads_schema(f, "{}</think>"));
    READS(f, "</think>{}", "", "{}", "");
    call_format_close(f);
}

static const test_case cases[] = {
    TEST(the_name_may_be_in_the_header_or_behind_the_channel),
    TEST(a_preamble_is_content),
    TEST(headers_in_other_forms_are_no_content),
    TEST(half_a_header_is_no_content),
    TEST(the_known_format_has_all_marks),
    TEST(reasoning_behind_content_is_reasoning),
    TEST(clients_write_no_reasoning),
    TEST(reasoning_stands_between_calls),
    TEST(the_end_of_a_turn_is_no_content),
    TEST(content_may_be_closed_beside_tools),
    TEST(white_space_may_stand_behind_the_last_call),
    TEST(white_space_may_stand_before_constrained_content),
    TEST(the_prompt_may_end_with_the_first_mark),
    TEST(marks_may_stand_around_constrained_content),
    TEST(the_mark_behind_reasoning_may_stand_before_constrained_content)};
TEST_MAIN(cases)
