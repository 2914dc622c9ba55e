/* test_responses.c - bodies of POST /v1/responses as those of chats, and memory that runs out at
 * each allocation in turn, in reading and in answering. */
#include "own_allocator.h"
#include "test.h"

#include <errno.h>

#include "json_in.h"
#include "responses.h"

static long n_calls, fail_at = -1, n_live; // of the allocations while it is armed
static bool armed;

#if OWN_ALLOCATOR
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t each);
void *__libc_realloc(void *p, size_t n);
void __libc_free(void *p);

static bool fails(void) {
    return armed && n_calls++ == fail_at;
}
static void *live(void *p) {
    n_live += p != NULL;
    return p;
}
void *malloc(size_t n) {
    return fails() ? (errno = ENOMEM, NULL) : live(__libc_malloc(n));
}
void *calloc(size_t n, size_t each) {
    return fails() ? (errno = ENOMEM, NULL) : live(__libc_calloc(n, each));
}
void *realloc(void *p, size_t n) {
    if (fails()) return errno = ENOMEM, NULL;
    return p == NULL ? live(__libc_malloc(n)) : __libc_realloc(p, n);
}
void free(void *p) {
    n_live -= p != NULL;
    __libc_free(p);
}
#endif

static const form_host host = {.tenant = "", .limits = &json_limits_default};

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

/* ---- memory that runs out ---- */

static const char everything[] =
    "{'instructions':'i','input':[{'role':'user','content':[{'type':'input_text','text':'a'}]},"
    "{'type':'reasoning','summary':[],'encrypted_content':'inferd:hm'},"
    "{'type':'custom_tool_call','name':'g','call_id':'2','input':'x'},"
    "{'type':'custom_tool_call_output','call_id':'2','output':'y'},{'role':'user','content':'e'}],"
    "'tools':[{'type':'custom','name':'g','format':{'type':'grammar','definition':'x'}},"
    "{'type':'namespace','name':'n','tools':[{'type':'function','name':'f'}]}],"
    "'tool_choice':{'type':'allowed_tools','tools':[{'type':'custom','name':'g'}]},"
    "'include':['reasoning.encrypted_content'],'text':{'format':{'type':'text'}}}";

static void give(answer_form *f, part_kind kind, const char *text, const char *name, buf *out) {
    message_part p = {.kind = kind, .text = {text, strlen(text)}, .id = {"abc", 3}};
    p.name = (bytes){name, strlen(name)};
    f->type->part(f, &p, out);
}

/* False: no memory was left, and that was told. */
static bool read_and_answer(json_t *body, bool streaming, buf *out) {
    answer_form *f = NULL;
    json_t *chat = NULL;
    unknown_fields unknown = {0};
    api_error e = {0};
    answer_head head = {.id = "resp_1", .model = "m", .tier = "default"};
    answer_end end = {.finish = "stop"};
    buf *events = streaming ? out : NULL;
    bool ok = responses_read(body, &host, &chat, &f, &unknown, &e);
    EXPECT_EQ(ok, chat != NULL);
    EXPECT(ok || e.fault == API_INTERNAL);
    if (ok) {
        f->streaming = streaming;
        f->type->begin(f, &head, &end.usage, events);
        give(f, PART_REASONING, "hm", "", events);
        give(f, PART_CONTENT, "text", "", events);
        give(f, PART_CALL, "", "g", events);
        give(f, PART_ARGUMENTS, "{\"input\": \"x\"}", "", events);
        give(f, PART_CALL_END, "", "", events);
        give(f, PART_CALL, "", "n__f", events);
        give(f, PART_ARGUMENTS, "{}", "", events);
        give(f, PART_CALL_END, "", "", events);
        f->type->end(f, &end, out);
        ok = !out->failed;
    }
    json_decref(chat);
    answer_form_destroy(f);
    return ok;
}

/* A failure is told, leaves nothing behind, and nothing that is not told is missing. */
static void each_failed_allocation_is_told(void) {
    json_in_init();
    for (int streaming = 0; streaming <= 1; streaming++) {
        json_t *body = tree(everything);
        buf whole = {0};
        EXPECT(read_and_answer(body, streaming, &whole));
        long before = n_live, at = 0;
        for (;; at++) {
            buf out = {0};
            n_calls = 0;
            fail_at = at;
            armed = true;
            bool ok = read_and_answer(body, streaming, &out);
            armed = false;
            if (ok) EXPECT(out.n == whole.n);
            buf_deinit(&out);
            EXPECT_EQ(n_live, before);
            if (n_calls <= at) {
                EXPECT(ok);
                break;
            }
        }
        EXPECT(!OWN_ALLOCATOR || at > 100);
        buf_deinit(&whole);
        json_decref(body);
    }
}

static const test_case cases[] = {
    TEST(neighbours_of_one_role_become_one_message), TEST(reasoning_text_and_calls_are_one_turn),
    TEST(tools_become_functions), TEST(each_failed_allocation_is_told)};
TEST_MAIN(cases)
