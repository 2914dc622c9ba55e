/* test_api_calls.c - tools and calls in other forms than those of functions: custom tools, the
 * fields of 2023, and what conversations have of them; memory that runs out at each allocation. */
#include "failing_memory.h"
#include "test.h"

#include "api_params.h"
#include "api_tool_schemas.h"
#include "api_tools.h"
#include "custom_tool.h"
#include "inferd/clock.h"
#include "json_in.h"

/* ' for " */
static json_t *tree(const char *text) {
    char copy[4096];
    size_t n = strlen(text);
    EXPECT(n < sizeof copy);
    for (size_t i = 0; i <= n; i++) copy[i] = text[i] == '\'' ? '"' : text[i];
    json_t *v = json_loadb(copy, n, 0, NULL);
    EXPECT(v != NULL);
    return v;
}

#define SAID    "{'role':'user','content':'x'}"
#define BODY(m) "{'messages':[" SAID "]," m "}"

/* Reads a chat; its error is in *e. */
static bool read_chat(const char *text, api_params *p, api_error *e) {
    *e = (api_error){0};
    return api_params_take(API_CHAT, tree(text), p, e);
}

static void expect_json(int line, const json_t *found, const char *wanted_text) {
    json_t *wanted = tree(wanted_text);
    if (!json_equal(found, wanted)) {
        char *text = found == NULL ? NULL : json_dumps(found, JSON_COMPACT);
        printf("line %d: %s\n", line, text == NULL ? "nothing" : text);
        free(text);
        test_failures++;
    }
    json_decref(wanted);
}

static void expect_messages(int line, const char *given, const char *wanted) {
    char body[2048];
    api_params p;
    api_error e;
    snprintf(body, sizeof body, "{'messages':[%s]}", given);
    if (read_chat(body, &p, &e)) {
        snprintf(body, sizeof body, "[%s]", wanted);
        expect_json(line, p.messages, body);
    } else {
        printf("line %d: refused: %s\n", line, e.message);
        test_failures++;
    }
    api_params_deinit(&p);
}

static void expect_refused(int line, const char *body, const char *param) {
    api_params p;
    api_error e;
    if (read_chat(body, &p, &e) || strcmp(e.param, param) != 0) {
        printf("line %d: param %s: %s\n", line, e.param, e.message);
        test_failures++;
    }
    api_params_deinit(&p);
}
#define REFUSED(body, param) expect_refused(__LINE__, body, param)
#define MESSAGES(a, b)       expect_messages(__LINE__, a, b)

static void a_custom_tool_is_shown_as_a_function(void) {
    api_params p;
    api_error e;
    EXPECT(read_chat(BODY("'tools':[{'type':'custom','custom':{'name':'run','description':'d'}}]"),
                     &p, &e));
    expect_json(__LINE__, p.tools,
                "[{'type':'function','function':{'name':'run','description':'d','parameters':{"
                "'type':'object','properties':{'input':{'type':'string'}},'required':['input'],"
                "'additionalProperties':false}}}]");
    EXPECT(json_object_get(p.custom, "run") != NULL);
    EXPECT_EQ(p.unknown.n, 0);
    EXPECT_EQ(json_array_size(p.called), 1);
    api_params_deinit(&p);
}

/* A regular expression is enforced; a grammar in another language is shown, and named. */
static void the_grammar_of_a_custom_tool(void) {
#define GRAMMAR(syntax)                                                                            \
    BODY("'tools':[{'type':'custom','custom':{'name':'f','format':{'type':'grammar','grammar':{"   \
         "'syntax':'" syntax "','definition':'a|b'}}}}]")
    static const struct {
        const char *body, *pattern, *description;
        uint32_t n_unknown;
    } rows[] = {
        {GRAMMAR("regex"), "^(?:a|b)$", "\n\nThe input follows this grammar (regex):\na|b", 0},
        {GRAMMAR("lark"), NULL, "\n\nThe input follows this grammar (lark):\na|b", 1}};
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        api_params p;
        api_error e;
        EXPECT(read_chat(rows[i].body, &p, &e));
        json_t *f = json_object_get(json_array_get(p.tools, 0), "function");
        json_t *input = json_object_get(
            json_object_get(json_object_get(f, "parameters"), "properties"), "input");
        const char *pattern = json_string_value(json_object_get(input, "pattern"));
        EXPECT_EQ(pattern != NULL, rows[i].pattern != NULL);
        if (pattern != NULL && rows[i].pattern != NULL) EXPECT_STR(pattern, rows[i].pattern);
        EXPECT_STR(json_string_value(json_object_get(f, "description")), rows[i].description);
        EXPECT_EQ(p.unknown.n, rows[i].n_unknown);
        if (p.unknown.n > 0) EXPECT_STR(p.unknown.named[0].name, "tools.custom.format");
        api_params_deinit(&p);
    }
#undef GRAMMAR
}

static void custom_tools_are_checked(void) {
#define CUSTOM(more) BODY("'tools':[{'type':'custom','custom':" more "}]")
    REFUSED(BODY("'tools':[{'type':'custom'}]"), "tools[0].custom");
    REFUSED(CUSTOM("{}"), "tools[0].custom.name");
    REFUSED(CUSTOM("{'name':'two words'}"), "tools[0].custom.name");
    REFUSED(CUSTOM("{'name':'f','description':1}"), "tools[0].custom.description");
    REFUSED(CUSTOM("{'name':'f','format':{'type':'x'}}"), "tools[0].custom.format");
    REFUSED(CUSTOM("{'name':'f','format':{'type':'grammar'}}"), "tools[0].custom.format.grammar");
    REFUSED(
        CUSTOM(
            "{'name':'f','format':{'type':'grammar','grammar':{'definition':'x','syntax':'g'}}}"),
        "tools[0].custom.format.grammar");
    REFUSED(BODY("'tools':[{'type':'custom','custom':{'name':'f'}}],"
                 "'tool_choice':{'type':'custom','custom':{'name':'g'}}"),
            "tool_choice.custom.name");
    REFUSED(BODY("'tools':[{'type':'web_search'}]"), "tools[0].type");
#undef CUSTOM
}

/* A choice names it, or the list of those that are allowed does. */
static void a_custom_tool_is_chosen_by_its_name(void) {
#define TOOLS                                                                                      \
    "'tools':[{'type':'custom','custom':{'name':'f'}},{'type':'function','function':{'name':'g'}}" \
    "]"
    static const char *const bodies[] = {
        BODY(TOOLS ",'tool_choice':{'type':'custom','custom':{'name':'f'}}"),
        BODY(TOOLS ",'tool_choice':{'type':'allowed_tools','allowed_tools':{'mode':'required',"
                   "'tools':[{'type':'custom','custom':{'name':'f'}}]}}")};
    for (size_t i = 0; i < INFERD_COUNT(bodies); i++) {
        api_params p;
        api_error e;
        EXPECT(read_chat(bodies[i], &p, &e));
        EXPECT_EQ(p.choice, TOOLS_REQUIRED);
        EXPECT_EQ(json_array_size(p.called), 1);
        api_params_deinit(&p);
    }
#undef TOOLS
}

/* A call has only the name: two tools of one name cannot be told apart. */
static void each_tool_has_a_name_of_its_own(void) {
    static const struct {
        const char *body, *message;
    } rows[] = {
        {BODY("'tools':[{'function':{'name':'f'}},{'function':{'name':'g'}},{'type':'custom',"
              "'custom':{'name':'f'}}]"),
         "\"tools[2].custom.name\" is the name of tools[0], too"},
        {BODY("'tools':[{'function':{'name':'g'}},{'function':{'name':'f'}},{'function':{'name':"
              "'f'}}]"),
         "\"tools[2].function.name\" is the name of tools[1], too"},
        {BODY("'functions':[{'name':'f'},{'name':'f'}]"),
         "\"functions[1].name\" is the name of functions[0], too"}};
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        api_params p;
        api_error e;
        EXPECT(!read_chat(rows[i].body, &p, &e));
        EXPECT_EQ(e.status, 400);
        EXPECT_STR(e.message, rows[i].message);
        api_params_deinit(&p);
    }
}

/* One request had the same name a million times, and a copy of its schema for each. */
static void a_tool_that_is_allowed_twice_is_called_once(void) {
#define ALLOW(tools) "'tool_choice':{'type':'allowed_tools','allowed_tools':{'tools':[" tools "]}}"
    api_params p;
    api_error e;
    EXPECT(read_chat(BODY("'tools':[{'function':{'name':'f'}},{'function':{'name':'g'}}]," //
                          ALLOW("{'name':'g'},{'name':'f'},{'name':'g'},{'name':'g'}")),
                     &p, &e));
    expect_json(__LINE__, p.called, "[{'function':{'name':'g'}},{'function':{'name':'f'}}]");
    api_params_deinit(&p);
    json_t *body = tree(BODY("'tools':[{'function':{'name':'f'}}]," ALLOW("{'name':'f'}")));
    json_t *list = json_object_get(json_object_get(json_object_get(body, "tool_choice"), //
                                                   "allowed_tools"),
                                   "tools");
    while (json_array_size(list) <= API_TOOLS_MAX) json_array_append(list, json_array_get(list, 0));
    e = (api_error){0};
    EXPECT(!api_params_take(API_CHAT, body, &p, &e));
    EXPECT_STR(e.param, "tool_choice.allowed_tools.tools");
    EXPECT_STR(e.message,
               "\"tool_choice.allowed_tools.tools\" has 513 entries, more than the limit "
               "512");
    api_params_deinit(&p);
#undef ALLOW
}

#define FUNCTIONS "'functions':[{'name':'f','parameters':{}},{'name':'g'}]"

static void functions_become_tools(void) {
    static const struct {
        const char *body;
        tool_choice choice;
        size_t n_called;
    } rows[] = {
        {BODY(FUNCTIONS), TOOLS_AUTO, 2},
        {BODY(FUNCTIONS ",'function_call':'auto','tools':[],'tool_choice':'none'"), TOOLS_AUTO, 2},
        {BODY(FUNCTIONS ",'function_call':'none'"), TOOLS_NONE, 0},
        {BODY(FUNCTIONS ",'function_call':{'name':'g'},'parallel_tool_calls':true"), TOOLS_REQUIRED,
         1}};
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        api_params p;
        api_error e;
        EXPECT(read_chat(rows[i].body, &p, &e));
        EXPECT_EQ(p.choice, rows[i].choice);
        EXPECT_EQ(json_array_size(p.called), rows[i].n_called);
        EXPECT(p.function_calls && !p.parallel_calls);
        EXPECT_EQ(p.tools != NULL, rows[i].choice != TOOLS_NONE);
        if (p.tools != NULL)
            expect_json(__LINE__, p.tools,
                        "[{'type':'function','function':{'name':'f','parameters':{}}},"
                        "{'type':'function','function':{'name':'g'}}]");
        api_params_deinit(&p);
    }
    api_params p;
    api_error e;
    EXPECT(read_chat(BODY("'functions':[],'function_call':'auto'"), &p, &e));
    EXPECT(!p.function_calls && p.tools == NULL);
    api_params_deinit(&p);
}

static void functions_are_checked(void) {
    REFUSED(BODY("'functions':{}"), "functions");
    REFUSED(BODY("'functions':[1]"), "functions[0]");
    REFUSED(BODY("'functions':[{'name':'f'},{}]"), "functions[1].name");
    REFUSED(BODY("'functions':[{'name':'f','parameters':1}]"), "functions[0].parameters");
    REFUSED(BODY(FUNCTIONS ",'tools':[{'function':{'name':'f'}}]"), "functions");
    REFUSED(BODY(FUNCTIONS ",'function_call':'required'"), "function_call");
    REFUSED(BODY(FUNCTIONS ",'function_call':{}"), "function_call.name");
    REFUSED(BODY(FUNCTIONS ",'function_call':{'name':'h'}"), "function_call.name");
    REFUSED(BODY("'function_call':{'name':'f'}"), "function_call");
}

static void older_calls_become_tool_calls(void) {
    MESSAGES(SAID
             ",{'role':'assistant','content':null,'function_call':{'name':'f','arguments':'{}'}},"
             "{'role':'function','name':'f','content':'r'},"
             "{'role':'assistant','content':'c','function_call':{'name':'g','arguments':'{}'}},"
             "{'role':'function','name':'g','content':'s'}",
             SAID ",{'role':'assistant','content':null,'tool_calls':[{'id':'call00001',"
                  "'type':'function','function':{'name':'f','arguments':'{}'}}]},"
                  "{'role':'tool','name':'f','content':'r','tool_call_id':'call00001'},"
                  "{'role':'assistant','content':'c','tool_calls':[{'id':'call00002',"
                  "'type':'function','function':{'name':'g','arguments':'{}'}}]},"
                  "{'role':'tool','name':'g','content':'s','tool_call_id':'call00002'}");
    // what new clients leave there, too
    MESSAGES("{'role':'assistant','content':'c','function_call':null,'tool_calls':null}",
             "{'role':'assistant','content':'c'}");
    MESSAGES("{'role':'assistant','content':null,'tool_calls':[]},{'role':'assistant'}",
             "{'role':'assistant','content':''},{'role':'assistant','content':''}");
    REFUSED("{'messages':[{'role':'assistant','function_call':{'name':'f'}}]}",
            "messages[0].function_call");
}

static void calls_of_custom_tools_become_those_of_functions(void) {
    MESSAGES(
        "{'role':'assistant','tool_calls':[{'id':'1','type':'custom','custom':{'name':'run',"
        "'input':'say "
        "\\'hi\\'\\n'}},{'id':'2','type':'function','function':{'name':'g','arguments':'{}'}}]}",
        "{'role':'assistant','tool_calls':[{'id':'1','type':'function','function':{'name':'run',"
        "'arguments':'{\\'input\\':\\'say \\\\\\'hi\\\\\\'\\\\n\\'}'}},"
        "{'id':'2','type':'function','function':{'name':'g','arguments':'{}'}}]}");
    REFUSED("{'messages':[{'role':'assistant','tool_calls':[{'type':'custom','custom':{'name':'f'}}"
            "]}]}",
            "messages[0].tool_calls[0].custom");
}

/* ---- schemas ---- */

/* Each schema had the time of one: 512 of them took most of a minute. */
static void strict_schemas_have_the_time_of_one_together(void) {
#define SLOW_TOOL                                                                                  \
    "{'function':{'name':'f%d','strict':true,'parameters':{'type':'object','properties':{'a':{"    \
    "'type':'string','pattern':'^(a|b)*a(a|b){9}%d$'}},'required':['a'],'additionalProperties':"   \
    "false}}}"
    for (int differ = 0; differ <= 1; differ++) {
        json_t *body = tree(BODY("'tools':[],'tool_choice':'required'"));
        for (int i = 0; i < 200; i++) {
            char tool[512];
            snprintf(tool, sizeof tool, SLOW_TOOL, i, differ * i);
            json_array_append_new(json_object_get(body, "tools"), tree(tool));
        }
        api_params p;
        api_error e = {0};
        unsigned idx = 0;
        EXPECT(api_params_take(API_CHAT, body, &p, &e));
        uint64_t begin_us = clock_thread_us();
        bool passed = api_tool_schemas_check(&p, &e);
        uint64_t took_us = clock_thread_us() - begin_us;
        EXPECT_EQ(passed, differ == 0); // equal ones are compiled once
        if (differ == 1) {
            EXPECT_EQ(sscanf(e.param, "tools[%u].function.parameters", &idx), 1);
            EXPECT(idx > 0);
            EXPECT(strstr(e.message, "compile_ms_max") != NULL);
            EXPECT(took_us < UINT64_C(3000) * grammar_limits_default.compile_ms_max);
        }
        api_params_deinit(&p);
    }
#undef SLOW_TOOL
}

/* The path is that in the request, also where less may be called. */
static void a_schema_that_is_refused_is_found_in_the_request(void) {
    static const char *const rows[][2] = {
        {BODY("'tools':[{'function':{'name':'g'}},{'function':{'name':'f','parameters':{"
              "'properties':{'a\uFDD0':{}}}}}]"),
         "tools[1].function.parameters"},
        {BODY("'tools':[{'function':{'name':'f','parameters':{'enum':['\\uFDD1']}}}]"),
         "tools[0].function.parameters"},
        {BODY("'tools':[{'function':{'name':'g'}},{'function':{'name':'f','strict':true,"
              "'parameters':{'type':'array'}}}],'tool_choice':{'type':'function','function':{"
              "'name':'f'}}"),
         "tools[1].function.parameters"},
        {BODY(
             "'functions':[{'name':'g'},{'name':'f','strict':true,'parameters':{'type':'array'}}]"),
         "functions[1].parameters"}};
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        api_params p;
        api_error e;
        EXPECT(read_chat(rows[i][0], &p, &e));
        EXPECT(!api_tool_schemas_check(&p, &e));
        EXPECT_STR(e.param, rows[i][1]);
        api_params_deinit(&p);
    }
}

/* ---- memory ---- */

static const char custom[] = BODY(
    "'tools':[{'type':'custom','custom':{'name':'f','description':'d','format':{'type':"
    "'grammar','grammar':{'syntax':'regex','definition':'x'}}}}],'tool_choice':{'type':'custom',"
    "'custom':{'name':'f'}}");
static const char allowed[] = BODY(
    "'tools':[{'function':{'name':'f'}},{'function':{'name':'g'}}],'tool_choice':{'type':"
    "'allowed_tools','allowed_tools':{'mode':'required','tools':[{'name':'g'},{'name':'g'}]}}");
static const char of_2023[] =
    "{'messages':[" SAID ",{'role':'assistant','function_call':{'name':'f','arguments':'{}'}},"
    "{'role':'function','name':'f','content':'r'},{'role':'assistant','tool_calls':[{'id':'1',"
    "'type':'custom','custom':{'name':'run','input':'x'}}]}]," FUNCTIONS "}";

static void reading_survives_each_failed_allocation(void) {
    const char *const bodies[] = {custom, allowed, of_2023};
    for (size_t i = 0; i < INFERD_COUNT(bodies); i++) {
        json_t *whole = NULL;
        long before = 0, at = -1;
        for (bool reached = true; reached; at++) {
            json_t *body = tree(bodies[i]);
            api_params p;
            api_error e = {0};
            memory_fails_at(at);
            bool read = api_params_take(API_CHAT, body, &p, &e);
            reached = memory_holds() || at < 0;
            EXPECT_EQ(read, e.fault == API_OK);
            if (!read) EXPECT_EQ(e.fault, API_INTERNAL);
            if (at < 0) whole = json_deep_copy(p.root);
            if (read) EXPECT(json_equal(p.root, whole)); // nothing is lost silently
            api_params_deinit(&p);
            if (at < 0) before = n_live;
            EXPECT_EQ(n_live, before);
        }
        EXPECT(!OWN_ALLOCATOR || at > 5);
        json_decref(whole);
    }
}

/* What a limit cut off is the input so far; what is no input stays as it is. */
static void arguments_become_the_input(void) {
    static const char *const rows[][2] = {
        {"{\"input\":\"a \\\"b\\\"\\n\"}", "a \"b\"\n"},
        {"{\"input\":\"\"}", ""},
        {"{\"input\":\"a", "a"},
        {" { \"input\" : \"\\u00fc\\ud83d\\ude80\\/\" }", "ü🚀/"},
        {"{\"input\":\"a\\ud800b\"}", "a\xef\xbf\xbd"
                                      "b"},
        {"{\"input\":\"a\\", "a"},
        {"{\"input\":\"a\\u00", "a"},
        {"{\"input\":\"a\\ud83d\\ud", "a"},
        {"{\"inp", ""},
        {"{\"input\":", ""},
        {"{\"input\":\"a\",\"x\":123456789012345678901234567890}", "a"},
        {"{\"output\":\"a\"}", "{\"output\":\"a\"}"},
        {"{\"input\":7}", "{\"input\":7}"},
        {"", ""}};
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        long before = n_live, at = -1;
        for (bool reached = true; reached; at++) {
            buf text = {0};
            buf_add_str(&text, rows[i][0]);
            memory_fails_at(at);
            bool ok = custom_tool_unwrap(&text);
            reached = memory_holds() || at < 0;
            EXPECT(ok || (reached && text.failed));
            if (ok) EXPECT_STR(buf_cstr(&text), rows[i][1]);
            buf_deinit(&text);
            EXPECT_EQ(n_live, before);
        }
    }
}

static const test_case cases[] = {
    TEST(a_custom_tool_is_shown_as_a_function),
    TEST(the_grammar_of_a_custom_tool),
    TEST(custom_tools_are_checked),
    TEST(a_custom_tool_is_chosen_by_its_name),
    TEST(each_tool_has_a_name_of_its_own),
    TEST(a_tool_that_is_allowed_twice_is_called_once),
    TEST(functions_become_tools),
    TEST(functions_are_checked),
    TEST(older_calls_become_tool_calls),
    TEST(calls_of_custom_tools_become_those_of_functions),
    TEST(strict_schemas_have_the_time_of_one_together),
    TEST(a_schema_that_is_refused_is_found_in_the_request),
    TEST(reading_survives_each_failed_allocation),
    TEST(arguments_become_the_input),
};

int main(int argc, char **argv) {
    json_in_init();
    return test_run(cases, INFERD_COUNT(cases), argc, argv);
}
