/* test_responses.c - bodies of POST /v1/responses as those of chats. */
#include "test.h"

#include "api_tools.h"
#include "json_in.h"
#include "responses.h"

static const form_host host = {.tenant = "", .limits = &json_limits_default};

/* ' for " */
static json_t *tree(const char *text) {
    size_t n = strlen(text);
    char *copy = malloc(n + 1);
    EXPECT(copy != NULL);
    for (size_t i = 0; copy != NULL && i <= n; i++) copy[i] = text[i] == '\'' ? '"' : text[i];
    json_t *v = copy == NULL ? NULL : json_loadb(copy, n, 0, NULL);
    EXPECT(v != NULL);
    free(copy);
    return v;
}

/* What the chat of a body has under a name. */
static void expect_chat(const char *body_text, const char *name, const char *wanted_text) {
    json_t *body = tree(body_text), *wanted = tree(wanted_text), *chat = NULL;
    answer_form *f = NULL;
    unknown_fields unknown = {0};
    api_error e = {0};
    EXPECT(responses_read(body, &host, &chat, &f, &unknown, &e));
    json_t *got = json_object_get(chat, name);
    if (!json_equal(got, wanted)) {
        char *text = json_dumps(got, JSON_ENCODE_ANY);
        printf("%s: %s\n", name, text);
        free(text);
        test_failures++;
    }
    answer_form_destroy(f);
    json_decref(chat);
    json_decref(wanted);
    json_decref(body);
}

static void expect_refused(const char *body_text, const char *param, const char *message) {
    json_t *body = tree(body_text), *chat = NULL;
    answer_form *f = NULL;
    unknown_fields unknown = {0};
    api_error e = {0};
    EXPECT(!responses_read(body, &host, &chat, &f, &unknown, &e));
    EXPECT_EQ(e.status, 400);
    EXPECT_STR(e.param, param);
    EXPECT_STR(e.message, message);
    answer_form_destroy(f);
    json_decref(body);
}

static void neighbours_of_one_role_become_one_message(void) {
    expect_chat(
        "{'instructions':'i','input':[{'role':'developer','content':'d'},"
        "{'role':'user','content':[{'type':'input_text','text':'a'},"
        "{'type':'input_text','text':'b'}]},{'role':'system','content':'late'},"
        "{'role':'assistant','content':'c'},{'role':'user','content':'e'}]}",
        "messages",
        "[{'role':'system','content':'i\\n\\nd'},{'role':'user','content':'a\\nb\\n\\nlate'},"
        "{'role':'assistant','content':'c'},{'role':'user','content':'e'}]");
}

static void reasoning_text_and_calls_are_one_turn(void) {
    expect_chat(
        "{'input':[{'role':'user','content':'a'},{'type':'reasoning','summary':[],"
        "'encrypted_content':'inferd:hm'},{'role':'assistant','content':'b'},"
        "{'type':'function_call','name':'f','namespace':'n','call_id':'1','arguments':'{}'},"
        "{'type':'custom_tool_call','name':'g','call_id':'2','input':'x'},"
        "{'type':'function_call_output','call_id':'1','output':'y'}]}",
        "messages",
        "[{'role':'user','content':'a'},{'role':'assistant','content':'b','reasoning_content':'hm',"
        "'tool_calls':[{'id':'1','type':'function','function':{'name':'n__f','arguments':'{}'}},"
        "{'id':'2','type':'function','function':{'name':'g','arguments':'{\\'input\\':\\'x\\'}'}}]}"
        ","
        "{'role':'tool','content':'y','tool_call_id':'1'}]");
}

static void tools_become_functions(void) {
    expect_chat(
        "{'input':'a','tools':[{'type':'web_search'},{'type':'namespace','name':'n_',"
        "'tools':[{'type':'function','name':'f','strict':true}]},"
        "{'type':'custom','name':'g','description':'d'}]}",
        "tools",
        "[{'type':'function','function':{'name':'n_f','strict':true}},{'type':'function',"
        "'function':{'name':'g','description':'d','parameters':{'type':'object','properties':"
        "{'input':{'type':'string'}},'required':['input'],'additionalProperties':false}}}]");
    expect_chat("{'input':'a','tools':[{'type':'function','name':'f'},{'type':'web_search'}],"
                "'tool_choice':{'type':'allowed_tools','mode':'required','tools':["
                "{'type':'web_search'},{'type':'function','name':'f'}]}}",
                "tool_choice",
                "{'type':'allowed_tools','allowed_tools':{'mode':'required','tools':["
                "{'type':'function','function':{'name':'f'}}]}}");
}

static void each_tool_has_a_name_of_its_own(void) {
    expect_refused("{'input':'a','tools':[{'type':'web_search'},{'type':'function','name':'f'},"
                   "{'type':'custom','name':'f'}]}",
                   "tools[2].name", "\"tools[2].name\" is the name of tools[1], too");
    expect_refused("{'input':'a','tools':[{'type':'namespace','name':'n','tools':["
                   "{'type':'function','name':'f'}]},{'type':'function','name':'n__f'}]}",
                   "tools[1].name", "\"tools[1].name\" is the name of tools[0].tools[0], too");
}

/* Each name that was allowed was compared with each tool: a request of some 100 KB took seconds. */
static void more_than_512_tools_are_refused(void) {
    char tools[40000], allowed[40000];
    size_t n_tools = 0, n_allowed = 0;
    for (int i = 0; i <= API_TOOLS_MAX; i++) {
        const char *before = i == 0 ? "" : ",";
        n_tools += (size_t)snprintf(tools + n_tools, sizeof tools - n_tools,
                                    "%s{'type':'function','name':'f%d'}", before, i);
        n_allowed += (size_t)snprintf(allowed + n_allowed, sizeof allowed - n_allowed,
                                      "%s{'name':'f'}", before);
    }
    char *body = NULL;
    size_t n_body = sizeof tools + sizeof allowed;
    EXPECT((body = malloc(n_body)) != NULL);
    snprintf(body, n_body, "{'input':'a','tools':[{'type':'namespace','name':'n','tools':[%s]}]}",
             tools);
    expect_refused(body, "tools", "\"tools\" has more functions than the limit 512");
    snprintf(body, n_body,
             "{'input':'a','tools':[{'type':'function','name':'f'}],'tool_choice':{'type':"
             "'allowed_tools','tools':[%s]}}",
             allowed);
    expect_refused(body, "tool_choice.tools",
                   "\"tool_choice.tools\" has 513 entries, more than the limit 512");
    free(body);
}

/* With its namespace, or with its own name alone, unless a tool outside has that. */
static void a_choice_finds_tools_in_namespaces(void) {
#define CHOSEN(choice, function)                                                                   \
    expect_chat("{'input':'a','tools':[{'type':'namespace','name':'n','tools':["                   \
                "{'type':'function','name':'f'},{'type':'custom','name':'g'}]},"                   \
                "{'type':'function','name':'f'}],'tool_choice':{'type':'function'," choice "}}",   \
                "tool_choice", "{'type':'function','function':{'name':'" function "'}}")
    CHOSEN("'name':'f','namespace':'n'", "n__f");
    CHOSEN("'name':'f'", "f");
    CHOSEN("'name':'g'", "n__g");
    CHOSEN("'name':'h'", "h");
#undef CHOSEN
}

/* Codex answers a call of a hosted tool with the output of a function. */
static void the_output_of_a_call_that_is_left_out_is_left_out(void) {
    expect_chat("{'input':[{'role':'user','content':'a'},{'type':'local_shell_call','call_id':'1'},"
                "{'type':'function_call','name':'f','call_id':'2','arguments':'{}'},"
                "{'type':'some_output','call_id':'2'},"
                "{'type':'function_call_output','call_id':'2','output':'z'},"
                "{'type':'function_call_output','call_id':'1','output':'y'}]}",
                "messages",
                "[{'role':'user','content':'a'},{'role':'assistant','content':null,'tool_calls':["
                "{'id':'2','type':'function','function':{'name':'f','arguments':'{}'}}]},"
                "{'role':'tool','content':'z','tool_call_id':'2'}]");
}

static void outputs_are_in_the_order_of_their_calls(void) {
    expect_chat("{'input':[{'type':'function_call','name':'f','call_id':'1','arguments':'{}'},"
                "{'type':'function_call','name':'g','call_id':'2','arguments':'{}'},"
                "{'role':'user','content':'a'},"
                "{'type':'function_call_output','call_id':'2','output':'y'},"
                "{'type':'function_call_output','call_id':'1','output':'x'}]}",
                "messages",
                "[{'role':'assistant','content':null,'tool_calls':["
                "{'id':'1','type':'function','function':{'name':'f','arguments':'{}'}},"
                "{'id':'2','type':'function','function':{'name':'g','arguments':'{}'}}]},"
                "{'role':'tool','content':'x','tool_call_id':'1'},"
                "{'role':'tool','content':'y','tool_call_id':'2'},{'role':'user','content':'a'}]");
}

static const test_case cases[] = {TEST(neighbours_of_one_role_become_one_message),
                                  TEST(reasoning_text_and_calls_are_one_turn),
                                  TEST(tools_become_functions),
                                  TEST(each_tool_has_a_name_of_its_own),
                                  TEST(more_than_512_tools_are_refused),
                                  TEST(a_choice_finds_tools_in_namespaces),
                                  TEST(the_output_of_a_call_that_is_left_out_is_left_out),
                                  TEST(outputs_are_in_the_order_of_their_calls)};
TEST_MAIN(cases)
