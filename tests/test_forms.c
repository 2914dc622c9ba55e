/* test_forms.c - memory runs out at each allocation in turn, in reading a body and in answering it,
 * in each of the three protocols.
 *
 * A failure is told, leaves nothing behind, and nothing that is not told is missing: an answer is
 * the whole one, or there is none. */
#include "failing_memory.h"
#include "test.h"

#include "api_params.h"
#include "json_in.h"
#include "messages.h"
#include "responses.h"
#include "stream.h"
#include "tiny_tok.h"

static const form_host host = {.tenant = "", .limits = &json_limits_default};

/* One protocol: reads the body, and answers it; false: it told that there is no memory. */
typedef bool (*run)(bytes body, bool streaming, buf *out);

static bool is_told(const api_error *e) {
    return e->fault == API_INTERNAL || e->fault == API_OVERLOADED;
}

static json_t *parse(bytes body, api_error *e) {
    json_t *v = NULL;
    return api_params_parse(&json_limits_default, body, &v, e) ? v : NULL;
}

/* ---- Responses and Messages ---- */

static void give(answer_form *f, part_kind kind, const char *text, const char *name, buf *out) {
    message_part p = {
        .kind = kind, .text = {text, strlen(text)}, .id = {"abc", 3}, .complete = true};
    p.name = (bytes){name, strlen(name)};
    f->type->part(f, &p, out);
}

static bool run_form(const answer_form_type *type, const char *const names[2], bytes body,
                     bool streaming, buf *out) {
    answer_form *f = NULL;
    json_t *chat = NULL;
    unknown_fields unknown = {0};
    api_error e = {0};
    api_params params = {0};
    answer_head head = {.id = "resp_1", .model = "m", .tier = "default"};
    answer_end end = {.finish = "stop"};
    buf *events = streaming ? out : NULL;
    json_t *root = parse(body, &e);
    bool ok = root != NULL && type->read(root, &host, &chat, &f, &unknown, &e);
    EXPECT_EQ(ok, chat != NULL);
    ok = ok && api_params_take(API_CHAT, chat, &params, &e);
    EXPECT(ok || is_told(&e));
    if (ok) {
        f->streaming = streaming;
        f->type->begin(f, &head, &end.usage, events);
        give(f, PART_REASONING, "hm", "", events);
        give(f, PART_CONTENT, "text", "", events);
        for (int i = 0; i < 2; i++) {
            give(f, PART_CALL, "", names[i], events);
            give(f, PART_ARGUMENTS, "{\"input\": \"x\"}", "", events);
            give(f, PART_CALL_END, "", "", events);
        }
        f->type->end(f, &end, out);
        ok = !out->failed;
    }
    api_params_deinit(&params);
    json_decref(root);
    answer_form_destroy(f);
    return ok;
}

static bool run_responses(bytes body, bool streaming, buf *out) {
    static const char *const names[] = {"g", "n__f"};
    return run_form(&responses_form_type, names, body, streaming, out);
}

static bool run_messages(bytes body, bool streaming, buf *out) {
    static const char *const names[] = {"g", "f"};
    return run_form(&messages_form_type, names, body, streaming, out);
}

/* ---- chat completions ---- */

static tokenizer *tok;

static bool take_text(stream *s, const char *text, buf *out) {
    for (; *text != 0 && stream_error(s)->fault == API_OK; text++) {
        gen_event ev = {.kind = GEN_EV_TOKEN};
        ev.token.r = (sample_result){.id = tiny_tok_byte((unsigned char)*text), .n_top = 1};
        ev.token.r.top[0] = (tok_logprob){ev.token.r.id, -1};
        stream_on_event(s, 0, &ev, out);
    }
    gen_event done = {.kind = GEN_EV_DONE, .done = {.finish = GEN_STOP, .stop_id = -1}};
    stream_on_event(s, 0, &done, out);
    return stream_error(s)->fault == API_OK && stream_finish(s, out) && !out->failed;
}

static bool run_chat(bytes body, bool streaming, buf *out) {
    api_params p = {0};
    api_error e = {0};
    bool ok = api_params_read(API_CHAT, &json_limits_default, body, &p, &e);
    EXPECT(ok || is_told(&e));
    stream_options o = {.chat = true,
                        .streaming = streaming,
                        .include_usage = true,
                        .show_ids = true,
                        .n = 1,
                        .n_logprobs = ok ? (int32_t)p.n_logprobs : 0,
                        .tok = tok,
                        .id = "x-1",
                        .model = "m",
                        .fingerprint = "fp",
                        .tier = "default",
                        .n_prompts = 1};
    if (ok) ok = (o.stops = api_take_stops(&p)) != NULL;
    if (ok) ok = (o.prompts = calloc(1, sizeof *o.prompts)) != NULL;
    if (ok) ok = (o.prompts[0].ids.ids = malloc(sizeof(tok_id))) != NULL;
    if (ok) o.prompts[0].ids.ids[0] = tiny_tok_byte('H');
    if (ok) o.prompts[0].ids.n = 1;
    if (o.prompts == NULL) o.n_prompts = 0;
    stream *s = NULL;
    if (ok)
        s = stream_create(&o);
    else
        stream_options_deinit(&o);
    ok = s != NULL && take_text(s, "some text", out);
    stream_destroy(s);
    api_params_deinit(&p);
    return ok;
}

/* ---- the sweep ---- */

static void sweep(const char *text, run answer) {
    char copy[4096];
    size_t n = strlen(text);
    EXPECT(n < sizeof copy);
    for (size_t i = 0; i <= n; i++) copy[i] = text[i] == '\'' ? '"' : text[i];
    json_in_init();
    if (tok == NULL) tok = tiny_tok_open();
    for (int streaming = 0; streaming <= 1; streaming++) {
        buf whole = {0};
        EXPECT(answer((bytes){copy, n}, streaming, &whole)); // what is made once is made now
        long before = n_live, at = 0;
        for (bool failed = true; failed; at++) {
            buf out = {0};
            memory_fails_at(at);
            bool ok = answer((bytes){copy, n}, streaming, &out);
            failed = memory_holds();
            if (ok && out.n != whole.n)
                fprintf(stderr, "allocation %ld: %.*s\n", at, (int)out.n, out.p);
            if (ok) EXPECT(out.n == whole.n);
            EXPECT(ok || failed);
            buf_deinit(&out);
            EXPECT_EQ(n_live, before);
        }
        EXPECT(!OWN_ALLOCATOR || at > 40);
        buf_deinit(&whole);
    }
}

static void in_responses_each_failed_allocation_is_told(void) {
    sweep(
        "{'instructions':'i','input':[{'role':'user','content':[{'type':'input_text','text':'a'}]},"
        "{'type':'reasoning','summary':[],'encrypted_content':'inferd:hm'},"
        "{'type':'custom_tool_call','name':'g','call_id':'2','input':'x'},"
        "{'type':'custom_tool_call_output','call_id':'2','output':'y'},"
        "{'role':'user','content':'e'}],"
        "'tools':[{'type':'custom','name':'g','format':{'type':'grammar','syntax':'lark',"
        "'definition':'x'}},"
        "{'type':'namespace','name':'n','tools':[{'type':'function','name':'f'}]}],"
        "'tool_choice':{'type':'allowed_tools','tools':[{'type':'custom','name':'g'}]},"
        "'include':['reasoning.encrypted_content'],'text':{'verbosity':'low','format':"
        "{'type':'json_schema','schema':{},'more':1}},'reasoning':{'effort':'later','mode':1},"
        "'metadata':{'a':'b'}}",
        run_responses);
}

static void in_messages_each_failed_allocation_is_told(void) {
    sweep("{'max_tokens':9,'system':[{'type':'text','text':'s'}],'messages':["
          "{'role':'user','content':[{'type':'text','text':'a'}]},{'role':'assistant','content':["
          "{'type':'thinking','thinking':'hm','signature':''},"
          "{'type':'tool_use','id':'toolu_1','name':'f','input':{'a':[1]}}]},"
          "{'role':'user','content':[{'type':'tool_result','tool_use_id':'toolu_1','is_error':true,"
          "'content':[{'type':'tool_reference','tool_name':'g'}]},{'type':'text','text':'b'}]}],"
          "'tools':[{'name':'f','input_schema':{'type':'object'}},"
          "{'name':'g','input_schema':{}}],'tool_choice':{'type':'tool','name':'f'},"
          "'thinking':{'type':'enabled','budget_tokens':5},'chat_template_kwargs':{'a':1,'b':2},"
          "'output_config':{'effort':'later','more':1},'stop_sequences':['x']}",
          run_messages);
}

static void in_chats_each_failed_allocation_is_told(void) {
    sweep("{'messages':[{'role':'developer','content':'s'},{'role':'user','content':'a'}],"
          "'stop':['never'],'logprobs':true,'top_logprobs':1,'tools':[{'type':'function',"
          "'function':{'name':'f'}}],'tool_choice':{'type':'allowed_tools','allowed_tools':"
          "{'mode':'auto','tools':[{'type':'function','function':{'name':'f'}}]}}}",
          run_chat);
}

static const test_case cases[] = {TEST(in_responses_each_failed_allocation_is_told),
                                  TEST(in_messages_each_failed_allocation_is_told),
                                  TEST(in_chats_each_failed_allocation_is_told)};
TEST_MAIN(cases)
