/* Calls without a mark before them: what the parser takes for a call is what the grammar wrote as
 * one.  Texts near to calls are made from calls and answers by random edits; of each text that the
 * grammar allows the calls are read, and they must be of a tool, as many as are allowed, and with
 * its arguments. */
#include "calls_rig.h"
#include "calls/start.h"
#include "models/grammar.h"

static const char tool_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"w\",\"strict\":true,\"parameters\":{\"type\":"
    "\"object\",\"properties\":{\"city\":{\"type\":\"string\"}},\"required\":[\"city\"],"
    "\"additionalProperties\":false}}}]";

/* ---- formats and grammars ---- */

static call_format *format_named(const char *name) {
    static const char source[] =
        "{% for m in messages %}<|{{ m.role }}|>{% if m.reasoning_content %}<think>\n"
        "{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}";
    chat_template *t = NULL;
    call_format *f = NULL;
    inferd_err err = {0};
    EXPECT_EQ(chat_template_open(bytes_of(source), NULL, &t, &err), INFERD_OK);
    EXPECT_EQ(call_format_open(t, bytes_of(source), NULL, name, &f, &err), INFERD_OK);
    chat_template_close(t);
    return f;
}

static grammar_machine *machine_of(const call_format *f, const call_tags_options *o) {
    static char all[256];
    static bytes pieces[257];
    static const tok_id end = 256;
    json_t *tags = call_tags(f, o);
    grammar_vocab *v = NULL;
    grammar *g = NULL;
    grammar_machine *m = NULL;
    inferd_err err = {0};
    grammar_schema_kind kind = {.any_order = true};
    for (int i = 0; i < 256; i++) {
        all[i] = (char)i;
        pieces[i] = (bytes){all + i, 1};
    }
    EXPECT_EQ(grammar_vocab_of_pieces(pieces, 257, &end, 1, &v, &err), INFERD_OK);
    EXPECT_EQ(grammar_of_tags(tags, &kind, NULL, &g, &err), INFERD_OK);
    EXPECT_EQ(grammar_machine_create(g, v, &m, &err), INFERD_OK);
    if (m == NULL) printf("%s\n", err.text);
    json_decref(tags);
    grammar_release(g);
    grammar_vocab_release(v);
    return m;
}

static bool allows(grammar_machine *m, bytes text) {
    grammar_pos p = grammar_start(m);
    size_t i = 0;
    while (i < text.n && grammar_accept_bytes(m, p, (bytes){text.p + i, 1}, NULL)) i++;
    bool ok = i == text.n && grammar_may_end(m, p);
    grammar_drop(m, p);
    return ok;
}

/* ---- calls that were read ---- */

static int n_texts, n_allowed, n_called;

/* One call, or none, of the tool, with its arguments. */
static bool fits(const message *m) {
    bytes calls = {m->calls.p, m->calls.n};
    if (calls.n == 0) return true;
    json_t *v = NULL;
    inferd_err ignored;
    bool ok = calls.n > 2 && calls.p[0] == 'w' && calls.p[calls.n - 1] == ';' &&
              json_text_read((bytes){calls.p + 1, calls.n - 2}, &v, &ignored) == INFERD_OK &&
              json_object_size(v) == 1 && json_is_string(json_object_get(v, "city")) &&
              bytes_trim((bytes){m->content.p, m->content.n}).n == 0;
    json_decref(v);
    n_called++;
    return ok;
}

static void check(const call_format *f, const json_t *tools, grammar_machine *m, bytes text) {
    n_texts++;
    if (!allows(m, text)) return;
    n_allowed++;
    message got = read_pieces(f, &(call_parser_options){.tools = tools}, text, text.n);
    if (!fits(&got)) {
        printf("%.*s\n  %s | %s\n", (int)text.n, text.p, buf_cstr(&got.content),
               buf_cstr(&got.calls));
        test_failures++;
    }
    deinit(&got);
}

/* ---- texts ---- */

typedef struct sample {
    const char *text;
    bool is_allowed, is_call;
} sample;

static const sample objects[] = {
    {"{\"name\": \"w\", \"parameters\": {\"city\": \"Rome\"}}", true, true},
    {"{\"name\":\"w\",\"parameters\":{\"city\":\"Rome\"}}", true, true},
    {"\n {\n    \"name\" : \"w\",\n    \"parameters\" : {\"city\": \"Rome\"}\n}", true, true},
    {"{\"type\": \"function\", \"name\": \"w\", \"parameters\": {\"city\": \"Rome\"}}", true, true},
    {"<think>hm</think>\n{\"city\": 5}", true, false},
    {"{\"name\":\"w\",\"parameters\":{\"city\":5}}", false, true},
    {" {\"name\": \"w\", \"parameters\": {\"city\": 5}}", false, true},
    {"\t{\"name\": \"w\", \"parameters\": {\"city\": 5}}", false, true},
    {"<think>hm</think>{\"name\": \"w\", \"parameters\": {\"city\": 5}}", false, true},
    {"</think>{\"name\": \"w\", \"parameters\": {\"city\": 5}}", false, true},
    {"{\"name\": \"nope\", \"parameters\": {\"city\": \"Rome\"}}", false, false},
    {"{\"parameters\": {\"town\": 5}, \"name\": \"nope\"}", true, false},
    {"{\"parameters\": {\"city\": 5}, \"name\": \"w\"}", true, false},
    {"{\"function\": \"w\", \"name\": \"w\", \"parameters\": {}}", true, false},
    {"{\"n\\u0061me\": \"w\", \"parameters\": {}}", true, false},
    {"{\"name\": \"w\", \"parameters\": {\"city\": \"a\"}}; {\"name\": \"w\", \"parameters\": {}}",
     false, true},
    {"It is {\"name\": \"w\", \"parameters\": {}}", true, false},
    {"{\"city\": \"Rom\"}", true, false},
    {"{\"name\": 5}", true, false},
    {"[{\"name\": \"w\"}]", true, false},
    {"{", true, false},
    {"", true, false}};

static const sample lists[] = {{"[w(city='Rome')]", true, true},
                               {" \n[w(city=\"Rome\")]", true, true},
                               {"[w(city=5)]", false, true},
                               {" [w(city=5)]", false, true},
                               {"\t[ w (city=5)]", false, true},
                               {"[nope(a=1)]", false, true},
                               {"\n\n[nope(a=1), w()]", false, true},
                               {"[w(city='a'), w(city='b')]", false, true},
                               {"<think>hm</think>[w(city=5)]", false, true},
                               {"[1, 2, 3]", true, false},
                               {"[\"w(city=5)\"]", true, false},
                               {"[the list](http://x)", true, false},
                               {"It is [w(city=5)]", true, false},
                               {"[w", true, false},
                               {"[", true, false}};

/* A piece of the text is left out, doubled, or replaced. */
static void edit(buf *text) {
    static const char *const pieces[] = {
        " ", "\n",   "\t",       "{",  "[",  "\"",      ":",        "(",    ",", "]",    "}", "w",
        "5", "name", "\"type\"", "; ", "\\", "<think>", "</think>", "nope", "=", "city", ")"};
    size_t at = draw((uint32_t)text->n + 1), n = draw(4);
    size_t end = size_min(at + (draw(2) == 0 ? 0 : n), text->n);
    buf out = {0};
    if (at > 0) buf_add(&out, text->p, at);
    if (draw(3) > 0) buf_add_str(&out, pieces[draw(INFERD_COUNT(pieces))]);
    if (end < text->n) buf_add(&out, text->p + end, text->n - end);
    buf_deinit(text);
    *text = out;
}

static void check_format(const char *name, const sample *samples, size_t n) {
    call_format *f = format_named(name);
    json_t *tools = json_loads(tool_text, 0, NULL);
    call_parser_options po = {.tools = tools};
    grammar_machine *m =
        machine_of(f, &(call_tags_options){.tools = tools, .choice = CALL_AUTO, .parallel = false});
    for (size_t i = 0; i < n; i++) {
        bytes text = bytes_of(samples[i].text);
        message got = read_text(f, &po, text);
        if (allows(m, text) != samples[i].is_allowed || (got.calls.n > 0) != samples[i].is_call) {
            printf("%s: %s: allowed %d, calls %s\n", name, samples[i].text, allows(m, text),
                   buf_cstr(&got.calls));
            test_failures++;
        }
        deinit(&got);
        check(f, tools, m, text);
        for (int round = 0; round < 2000; round++) {
            buf b = {0};
            buf_add(&b, text.p, text.n);
            for (uint32_t k = 0, edits = 1 + draw(4); k < edits; k++) edit(&b);
            check(f, tools, m, (bytes){b.p, b.n});
            buf_deinit(&b);
        }
    }
    grammar_machine_release(m);
    json_decref(tools);
    call_format_close(f);
}

static void only_calls_of_the_grammar_are_calls(void) {
    check_format("llama3_json", objects, INFERD_COUNT(objects));
    check_format("pythonic", lists, INFERD_COUNT(lists));
    printf("%d texts, %d allowed, %d with calls, seed 20\n", n_texts, n_allowed, n_called);
    EXPECT(n_allowed > 5000);
    EXPECT(n_called > 300);
}

/* ---- content with a schema ---- */

static void content_of_a_schema_is_no_call(void) {
    static const char person[] =
        "{\"type\":\"json_schema\",\"json_schema\":{\"type\":\"object\",\"properties\":{\"name\":{"
        "\"type\":\"string\"},\"age\":{\"type\":\"integer\"}},\"required\":[\"name\"]}}";
    static const char any[] = "{\"type\":\"json_schema\",\"json_schema\":{\"type\":\"object\"}}";
    static const char call[] = "{\"name\": \"w\", \"parameters\": {\"city\": \"a\"}}";
    call_format *f = format_named("llama3_json"), *p = format_named("pythonic");
    json_t *tools = json_loads(tool_text, 0, NULL);
    for (int i = 0; i < 2; i++) {
        json_t *content = json_loads(i == 0 ? person : any, 0, NULL);
        call_tags_options o = {.tools = tools, .content = content, .parallel = true};
        grammar_machine *m = machine_of(f, &o);
        const char *ann = "{\"name\": \"Ann\", \"age\": 5}";
        EXPECT(allows(m, bytes_of(ann)));
        EXPECT(allows(m, bytes_of(call)));
        EXPECT(!allows(m, bytes_of("{\"name\": \"w\", \"parameters\": {\"city\": 5}}")));
        EXPECT(!allows(m, bytes_of("{\"name\": \"w\", \"age\": 5}")));
        message got = read_text(f, &(call_parser_options){.tools = tools}, bytes_of(ann));
        EXPECT_STR(buf_cstr(&got.content), ann);
        EXPECT_EQ(got.calls.n, 0);
        deinit(&got);
        grammar_machine_release(m);
        m = machine_of(p, &o);
        EXPECT(allows(m, bytes_of("[w(city='a'), w(city='b')]")));
        EXPECT(allows(m, bytes_of(ann)));
        EXPECT(!allows(m, bytes_of("[w(city=5)]")));
        grammar_machine_release(m);
        json_decref(content);
    }
    json_decref(tools);
    call_format_close(f);
    call_format_close(p);
}

/* ---- size ---- */

static void many_tools_are_within_the_limits(void) {
    call_format *f = format_named("llama3_json");
    json_t *tools = json_array();
    for (int i = 0; i < 128; i++) {
        char name[32];
        snprintf(name, sizeof name, "tool_%d", i);
        json_array_append_new(tools, json_pack("{s:{s:s,s:{s:s,s:{s:{s:s}}}}}", "function", "name",
                                               name, "parameters", "type", "object", "properties",
                                               "a", "type", "string"));
    }
    grammar_machine *m = machine_of(f, &(call_tags_options){.tools = tools, .parallel = true});
    EXPECT(allows(m, bytes_of("{\"name\": \"tool_77\", \"parameters\": {\"a\": \"x\"}}")));
    grammar_machine_release(m);
    json_decref(tools);
    call_format_close(f);
}

static const test_case cases[] = {TEST(only_calls_of_the_grammar_are_calls),
                                  TEST(content_of_a_schema_is_no_call),
                                  TEST(many_tools_are_within_the_limits)};
TEST_MAIN(cases)
