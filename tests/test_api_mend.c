/* test_api_mend.c - conversations that templates refuse become ones that they accept; what is not
 * refused stays as it is; memory that runs out at each allocation. */
#include "api_mend.h"
#include "failing_memory.h"
#include "test.h"

#include "inferd/base.h"

static const struct tm now = {.tm_year = 126, .tm_mday = 15};

/* ---- templates ---- */

/* One line a message: [role id=name ... id] content */
#define SHOW                                                                                       \
    "{% for m in messages %}[{{ m.role }}{% for c in m.tool_calls or [] %} {{ c.id }}="            \
    "{{ c.function.name }}{% endfor %}{% if m.tool_call_id %} {{ m.tool_call_id }}{% endif %}]"    \
    "{% if m.content %} {{ m.content }}{% endif %}{{ '\\n' }}{% endfor %}"
#define RAISE_IF(when) "{% if " when " %}{{ raise_exception('no') }}{% endif %}"
#define ALTERNATE                                                                                  \
    "{% set ns = namespace(i=0) %}{% for m in messages %}"                                         \
    "{% if m.role in ['user', 'assistant'] and not m.tool_calls %}" RAISE_IF(                      \
        "(m.role == 'user') != (ns.i % 2 == 0)") "{% set ns.i = ns.i + 1 %}{% endif %}{% endfor "  \
                                                 "%}"
#define EACH(guard) "{% for m in messages %}" guard "{% endfor %}"
#define LATE_SYSTEM EACH(RAISE_IF("m.role == 'system' and not loop.first"))
#define NO_SYSTEM   RAISE_IF("messages[0].role == 'system'")
#define ONE_CALL    EACH(RAISE_IF("m.tool_calls and m.tool_calls|length > 1"))
#define SILENCE     EACH(RAISE_IF("m.role == 'assistant' and not m.content and not m.tool_calls"))
#define CALL_ID     "{% for c in m.tool_calls or [] %}" RAISE_IF("c.id|length != 9") "{% endfor %}"
#define RESULT_ID   RAISE_IF("m.role == 'tool' and m.tool_call_id|length != 9")
#define EFFORT      RAISE_IF("reasoning_effort|default('low') not in ['low', 'high']")
#define MISTRAL     ALTERNATE LATE_SYSTEM EACH(CALL_ID RESULT_ID) SHOW
#define TOOLS                                                                                      \
    "{% for t in tools %}{{ t.function.name + ': ' + t.function.description }}"                    \
    "{{ t.function.parameters|tojson }}{{ t.function.parameters.properties|length }}\n{% endfor "  \
    "%}"

#define OBJECTS                                                                                    \
    EACH("{% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments.items() %}"         \
         "{% endfor %}{% endfor %}")

/* ---- requests ---- */

#define U(text)       "{'role':'user','content':'" text "'}"
#define S(text)       "{'role':'system','content':'" text "'}"
#define A(text)       "{'role':'assistant','content':'" text "'}"
#define CALL(id, f)   "{'id':'" id "','type':'function','function':{'name':'" f "','arguments':'{}'}}"
#define CALLS(calls)  "{'role':'assistant','content':null,'tool_calls':[" calls "]}"
#define R(id, result) "{'role':'tool','tool_call_id':'" id "','content':'" result "'}"

typedef struct request {
    const char *messages, *tools, *kwargs; // ' for "; messages without the brackets
    bool continued;
} request;

static json_t *tree(const char *text) {
    char copy[4096];
    if (text == NULL) return NULL;
    size_t n = strlen(text);
    EXPECT(n < sizeof copy);
    for (size_t i = 0; i <= n; i++) copy[i] = text[i] == '\'' ? '"' : text[i];
    json_t *v = json_loadb(copy, n, 0, NULL);
    EXPECT(v != NULL);
    return v;
}

static chat_input input_of(request q) {
    char messages[4096];
    snprintf(messages, sizeof messages, "[%s]", q.messages);
    return (chat_input){.messages = tree(messages),
                        .tools = tree(q.tools),
                        .kwargs = tree(q.kwargs),
                        .continue_final_message = q.continued};
}

static void input_free(chat_input *in) {
    json_decref(in->messages);
    json_decref(in->tools);
    json_decref(in->kwargs);
}

static chat_template *open_template(const char *source) {
    chat_template *t = NULL;
    EXPECT_EQ(chat_template_open((bytes){source, strlen(source)}, NULL, &t, NULL), INFERD_OK);
    return t;
}

/* The text, or "refused: " and why.  *out is valid until the next call. */
static const char *mend(const char *source, request q, mended *out) {
    static char got[4096];
    chat_template *t = open_template(source);
    chat_input in = input_of(q);
    json_t *before = json_deep_copy(in.messages), *tools = json_deep_copy(in.tools);
    inferd_err err = {0};
    bool ok = api_mend_render(t, NULL, &in, &now, out, &err) == INFERD_OK;
    snprintf(got, sizeof got, "%s%s", ok ? "" : "refused: ", ok ? out->text.text : err.text);
    EXPECT(json_equal(before, in.messages)); // the request is only read
    EXPECT(tools == NULL || json_equal(tools, in.tools));
    json_decref(before);
    json_decref(tools);
    input_free(&in);
    chat_template_close(t);
    return got;
}

static void expect_mended(const char *source, request q, const char *wanted) {
    mended out = {0};
    EXPECT_STR(mend(source, q, &out), wanted);
    mended_deinit(&out);
}
#define MENDED(source, said, wanted) expect_mended(source, (request){.messages = said}, wanted)

/* ---- tests ---- */

static void what_is_accepted_stays_as_it_is(void) {
    mended out = {0};
    request q = {.messages = S("s") "," U("a") "," U("b") "," S("late") "," CALLS(CALL("1", "f")),
                 .tools = "[{'type':'function','function':{'name':'f'}}]"};
    EXPECT_STR(mend(SHOW "{{ tools|tojson }}", q, &out),
               "[system] s\n[user] a\n[user] b\n[system] late\n[assistant 1=f]\n"
               "[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]");
    EXPECT(out.origin == NULL && !out.without_effort);
    mended_deinit(&out);
}

static void the_first_error_stands(void) {
    MENDED("{{ raise_exception('never ' ~ messages|length) }}", S("s") "," U("a") "," U("b"),
           "refused: never 3");
    expect_mended(SHOW, (request){.messages = U("a"), .continued = true}, "[user] a");
    expect_mended("{{ messages[0].role }}", (request){.messages = U("a"), .continued = true},
                  "refused: continue_final_message: the chat template does not show the last "
                  "message as it is, so it cannot be continued");
}

static void a_limit_is_told(void) {
    mended out = {0};
    request q = {.messages = U("a") "," CALLS(CALL("1", "f"))};
    const char *text =
        mend(EACH("{{ m.content + ';' }}") EACH("{% for i in range(99999) %}{% for "
                                                "j in range(99999) %}{% endfor %}{% endfor %}"),
             q, &out);
    EXPECT(strncmp(text, "refused: template_limit", 23) == 0);
    mended_deinit(&out);
}

static void contents_are_filled(void) {
    MENDED(EACH("{{ m.content + ';' }}"), U("a") "," CALLS(CALL("1", "f")), "a;;");
}

static void tools_are_completed(void) {
    request q = {.messages = U("a"),
                 .tools = "[{'type':'function','function':{'name':'f'}},{'type':'function',"
                          "'function':{'name':'g','description':null,'parameters':null}},"
                          "{'type':'function','function':{'name':'h','description':'d',"
                          "'parameters':{}}}]"};
    const char *none = "{\"type\": \"object\", \"properties\": {}}0\n",
               *lines[] = {"f: ", "g: ", "h: d"};
    char wanted[512] = "";
    for (size_t i = 0; i < INFERD_COUNT(lines); i++)
        snprintf(wanted + strlen(wanted), sizeof wanted - strlen(wanted), "%s%s", lines[i], none);
    expect_mended(TOOLS, q, wanted);
    q.tools = NULL; // the list itself
    expect_mended(TOOLS "none", q, "none");
    q.tools = "[{'type':'function','function':{'name':'f','description':'d','parameters':{'type':"
              "'object','properties':{'a':{'type':'string'}}}}}]";
    expect_mended("{% for t in tools %}{% for k, p in t.function.parameters.properties.items() %}"
                  "{{ k + '=' + p.description }}{% endfor %}{% endfor %}",
                  q, "a=");
}

/* A call that max_tokens cut, sent back: \\' in `given` is a quote of the arguments. */
static void expect_arguments(const char *given, const char *wanted) {
    static const char *const source =
        OBJECTS EACH("{% for c in m.tool_calls %}{{ c.function.arguments|tojson }}{% endfor %}");
    char messages[1024];
    snprintf(messages, sizeof messages,
             "{'role':'assistant','content':'','tool_calls':[{'id':'1','type':'function',"
             "'function':{'name':'f','arguments':'%s'}}]}",
             given);
    MENDED(source, messages, wanted);
}

static void arguments_become_an_object(void) {
    static const char *const cases[][2] = {
        {"{\\'place\\':\\'Kiel am", "{\"place\": \"Kiel am\"}"},
        {"{\\'a\\': 1, \\'b\\'", "{\"a\": 1}"},
        {"{\\'a\\': 1, \\'b", "{\"a\": 1}"},
        {"{\\'a\\': 1, \\'b\\': ", "{\"a\": 1}"},
        {"{\\'a\\': 1, \\'b\\': tr", "{\"a\": 1}"},
        {"{\\'a\\': 1, \\'b\\': true", "{\"a\": 1, \"b\": true}"},
        {"{\\'a\\': 12", "{\"a\": 12}"},
        {"{\\'a\\': 1.", "{}"},
        {"{\\'a\\': [1, -", "{\"a\": [1]}"},
        {"{", "{}"},
        {" {\\'a\\': {\\'b\\': [{}, [\\'c", "{\"a\": {\"b\": [{}, [\"c\"]]}}"},
        {"{\\'a\\': [{\\'b\\': \\'c\\'}, ", "{\"a\": [{\"b\": \"c\"}]}"},
        {"{\\'a\\': \\'}]\\\\\\'", "{\"a\": \"}]\\\"\"}"},    // an escaped quote
        {"{\\'a\\': \\'b\\\\", "{\"a\": \"b\"}"},             // half an escape
        {"{\\'a\\': \\'b\\\\u00e", "{\"a\": \"b\"}"},         // likewise
        {"{\\'a\\': \\'b\\\\ud83d\\\\ude", "{\"a\": \"b\"}"}, // half a code point
        {"{\\'a\\': 123456789012345678901, \\'b", "{\"a\": 123456789012345678901}"},
        // no part of an object
        {"Kiel", "{\"arguments\": \"Kiel\"}"},
        {"[1, 2", "{\"arguments\": \"[1, 2\"}"},
        {"[1]", "{\"arguments\": \"[1]\"}"},
        {"\\'{}\\'", "{\"arguments\": \"\\\"{}\\\"\"}"},
        {"{a: 1", "{\"arguments\": \"{a: 1\"}"},
        {"{\\'a\\': [1}", "{\"arguments\": \"{\\\"a\\\": [1}\"}"},
        {"{} {", "{\"arguments\": \"{} {\"}"},
    };
    for (size_t i = 0; i < INFERD_COUNT(cases); i++) expect_arguments(cases[i][0], cases[i][1]);
    // those that are one stay as they are, with their white space
    MENDED("{% for m in messages %}{{ m.tool_calls[0].function.arguments.x ~ "
           "m.tool_calls[1].function.arguments.items()|length }}{% endfor %}",
           "{'role':'assistant','tool_calls':[{'function':{'name':'f','arguments':'{ \\'x\\':'}},"
           "{'function':{'name':'f','arguments':'{\\'y\\':1}'}}]}",
           "1");
}

static void ids_become_short(void) {
    char first[10], again[10];
    request q = {.messages = U("a") "," CALLS(CALL("call_1", "f") "," CALL("abcdefghi", "g")) "," R(
                     "call_1", "x") "," R("abcdefghi", "y")};
    for (int turn = 0; turn < 2; turn++) {
        mended out = {0};
        const char *text = mend(MISTRAL, q, &out);
        EXPECT_EQ(sscanf(text, "[user] a\n[assistant %9[a-z0-9]=f", turn == 0 ? first : again), 1);
        char wanted[256];
        snprintf(wanted, sizeof wanted,
                 "[user] a\n[assistant %s=f abcdefghi=g]\n[tool %s] x\n[tool abcdefghi] y\n", first,
                 first);
        EXPECT(strncmp(text, wanted, strlen(wanted)) == 0); // the next turn begins with this one
        mended_deinit(&out);
        q.messages = U("a") "," CALLS(CALL("call_1", "f") "," CALL("abcdefghi", "g")) "," R(
            "call_1", "x") "," R("abcdefghi", "y") "," CALLS(CALL("call_2", "f")) "," R("call_2",
                                                                                        "z");
    }
    EXPECT_STR(first, again);
}

static void effort_is_left_out(void) {
    mended out = {0};
    request q = {.messages = U("a"), .kwargs = "{'reasoning_effort':'medium','x':'y'}"};
    EXPECT_STR(mend(EFFORT "{{ reasoning_effort }}{{ x }}", q, &out), "y");
    EXPECT(out.without_effort);
    mended_deinit(&out);
    q.kwargs = "{'reasoning_effort':'high','x':'y'}";
    EXPECT_STR(mend(EFFORT "{{ reasoning_effort }}{{ x }}", q, &out), "highy");
    EXPECT(!out.without_effort);
    mended_deinit(&out);
}

/* An answer that was cut in its reasoning, sent back. */
static void silence_is_left_out(void) {
    MENDED(SILENCE SHOW, U("a") "," A("") "," U("b"), "[user] a\n[user] b\n");
    MENDED(ALTERNATE SILENCE SHOW, U("a") "," A("") "," U("b"), "[user] a\n\nb\n");
}

static void calls_become_single(void) {
    const char *wanted = "[user] a\n[assistant 1=f]\n[tool 1] x\n[assistant 2=g]\n[tool 2] y\n";
    MENDED(ONE_CALL SHOW,
           U("a") "," CALLS(CALL("1", "f") "," CALL("2", "g")) "," R("1", "x") "," R("2", "y"),
           wanted);
    MENDED(ONE_CALL SHOW,
           U("a") "," CALLS(CALL("1", "f") "," CALL("2", "g")) "," R("2", "y") "," R("1", "x"),
           wanted);
    // a result that is not there, one of no call, and one that comes twice
    MENDED(ONE_CALL SHOW,
           CALLS(CALL("1", "f") "," CALL("2", "g")) "," R("2", "y") "," R("3", "z") "," R("2", "w"),
           "[assistant 1=f]\n[assistant 2=g]\n[tool 2] y\n[tool 3] z\n[tool 2] w\n");
    // the text stands before the first call
    MENDED(
        ONE_CALL SHOW,
        "{'role':'assistant','content':'t','tool_calls':[" CALL("1", "f") "," CALL("2", "g") "]}",
        "[assistant 1=f] t\n[assistant 2=g]\n");
}

static void systems_are_text_of_the_user(void) {
    MENDED(LATE_SYSTEM SHOW,
           S("s") "," S("t") "," U("a") "," S("b") "," S("c") "," A("d") "," S("e"),
           "[system] s\n\nt\n[user] a\n\nb\n\nc\n[assistant] d\n[user] e\n");
    MENDED(NO_SYSTEM SHOW, S("s") "," U("a") "," A("b"), "[user] s\n\na\n[assistant] b\n");
    MENDED(NO_SYSTEM SHOW, S("s") "," U("a") "," S("late"), "[user] s\n\na\n\nlate\n");
    MENDED(NO_SYSTEM SHOW, S("s"), "[user] s\n");
    MENDED(LATE_SYSTEM SHOW,
           "{'role':'user','content':[{'type':'text','text':'a'},{'type':'text',"
           "'text':'b'}]}," S("c"),
           "[user] a\nb\n\nc\n");
}

#define ID1 "aaaaaaaa1"
#define ID2 "aaaaaaaa2"

static void turns_alternate(void) {
    MENDED(MISTRAL, U("a") "," U("b") "," A("c") "," A("d"), "[user] a\n\nb\n[assistant] c\n\nd\n");
    MENDED(MISTRAL,
           U("a") "," CALLS(CALL(ID1, "f") "," CALL(ID2, "f")) "," R(ID1, "x") "," R(
               ID2, "y") "," U("b") "," U("c") "," A("d"),
           "[user] a\n[assistant aaaaaaaa1=f aaaaaaaa2=f]\n[tool aaaaaaaa1] x\n"
           "[tool aaaaaaaa2] y\n\nb\n\nc\n[assistant] d\n");
    // Claude Code puts a reminder behind results, as a system's message
    MENDED(MISTRAL, U("a") "," CALLS(CALL(ID1, "f")) "," R(ID1, "x") "," S("b"),
           "[user] a\n[assistant aaaaaaaa1=f]\n[tool aaaaaaaa1] x\n\nb\n");
    // the user interrupted the calls
    MENDED(MISTRAL, U("a") "," CALLS(CALL(ID1, "f") "," CALL(ID2, "f")) "," U("b"),
           "[user] a\n[assistant aaaaaaaa1=f aaaaaaaa2=f]\n[tool aaaaaaaa1]\n"
           "[tool aaaaaaaa2] b\n");
    MENDED(MISTRAL, S("s") "," A("hello") "," U("a"),
           "[system] s\n[user]\n[assistant] hello\n[user] a\n");
}

/* A mend that is not needed would change the beginning of a longer conversation. */
static void only_what_is_needed_is_mended(void) {
    request q = {.messages = U("a") "," U("b") "," CALLS(CALL("1", "f") "," CALL("2", "g")),
                 .tools = "[{'type':'function','function':{'name':'f'}}]"};
    expect_mended(ONE_CALL "{{ tools|tojson }}" SHOW, q,
                  "[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]"
                  "[user] a\n[user] b\n[assistant 1=f]\n[assistant 2=g]\n");
}

/* x-inferd-explain names items of the client's body. */
static void messages_know_where_they_are_from(void) {
    mended out = {0};
    request q = {.messages = S("s") "," U("a") "," U("b") "," CALLS(
                     CALL("1", "f") "," CALL("2", "g")) "," U("c") "," A("d")};
    EXPECT_STR(mend(NO_SYSTEM ONE_CALL ALTERNATE SHOW, q, &out),
               "[user] s\n\na\n\nb\n[assistant 1=f]\n[assistant 2=g]\n[tool 2] c\n"
               "[assistant] d\n");
    json_t *wanted = tree("[0,[3,0],[3,1],4,5]");
    EXPECT(json_equal(out.origin, wanted));
    mended_deinit(&out);
    json_decref(wanted);
    // of messages that were made from others before
    out.origin = tree("[-1,0,2]");
    q.messages = S("s") "," U("a") "," U("b");
    EXPECT_STR(mend(ALTERNATE SHOW, q, &out), "[system] s\n[user] a\n\nb\n");
    wanted = tree("[-1,0]");
    EXPECT(json_equal(out.origin, wanted));
    mended_deinit(&out);
    json_decref(wanted);
}

#define CUT_CALLS                                                                                  \
    "{'role':'assistant','tool_calls':[{'id':'3','function':{'name':'f','arguments':'{'}},"        \
    "{'id':'4','function':{'name':'f','arguments':'x'}}]}"

static void memory_may_run_out(void) {
    static const char source[] = OBJECTS ONE_CALL NO_SYSTEM EFFORT TOOLS MISTRAL;
    chat_template *t = open_template(source);
    chat_input in = input_of(
        (request){.messages = S("s") "," U("a") "," CALLS(CALL("1", "f") "," CALL("2", "g")) "," R(
                      "1", "x") "," R("2", "y") "," CUT_CALLS "," U("b") "," A("") "," U("c"),
                  .tools = "[{'type':'function','function':{'name':'f'}}]",
                  .kwargs = "{'reasoning_effort':'max'}"});
    char whole[4096] = "";
    long before = n_live, at = -1;
    for (bool reached = true; reached; at++) {
        mended out = {0};
        inferd_err err = {0};
        memory_fails_at(at);
        inferd_status s = api_mend_render(t, NULL, &in, &now, &out, &err);
        reached = memory_holds() || at < 0;
        if (at < 0) snprintf(whole, sizeof whole, "%s", out.text.text);
        EXPECT_EQ(s, at < 0 || !reached ? INFERD_OK : INFERD_ENOMEM);
        if (s == INFERD_OK) EXPECT_STR(out.text.text, whole);
        mended_deinit(&out);
        EXPECT_EQ(n_live, before);
    }
    EXPECT(strstr(whole, " b\n[assistant]\n[user] c") != NULL &&
           strstr(whole, "f: {\"type\"") != NULL);
    EXPECT(!OWN_ALLOCATOR || at > 1000);
    input_free(&in);
    chat_template_close(t);
}

static const test_case cases[] = {
    TEST(what_is_accepted_stays_as_it_is),
    TEST(the_first_error_stands),
    TEST(a_limit_is_told),
    TEST(contents_are_filled),
    TEST(tools_are_completed),
    TEST(arguments_become_an_object),
    TEST(ids_become_short),
    TEST(effort_is_left_out),
    TEST(silence_is_left_out),
    TEST(calls_become_single),
    TEST(systems_are_text_of_the_user),
    TEST(turns_alternate),
    TEST(only_what_is_needed_is_mended),
    TEST(messages_know_where_they_are_from),
    TEST(memory_may_run_out),
};

TEST_MAIN(cases)
