/* What a message with tool calls may be: the grammar allows what the template itself writes, and no
 * argument of another name or type. */
#include "call_tags_rig.h"

/* ---- random calls ---- */

static int n_texts, n_refused;

static void write_random_calls(const char *name, const chat_template *t, const call_format *f) {
    static const char *const names[] = {"get_weather", "read-file", "a"};
    for (int round = 0; round < 4 && call_format_style(f) != CALL_NONE; round++) {
        json_t *tools = json_array(), *calls = json_array();
        for (uint32_t k = 0, n = 1 + (f->single ? 0 : draw(3)); k < n; k++) {
            json_t *arguments = json_object();
            json_array_append_new(tools, draw_tool(names[k], arguments));
            json_array_append_new(calls, call_json(names[k], k, arguments));
        }
        written w;
        bool ok = write_calls(t, f, tools, calls, &w);
        for (int i = 0; ok && i < 4; i++) {
            call_tags_options o = {.tools = tools, .parallel = true};
            o.choice = i % 2 == 0 ? CALL_AUTO : CALL_REQUIRED;
            o.any_arguments = i >= 2; // these may be any, too
            grammar_machine *m = machine_of(f, &o);
            if (m == NULL) continue;
            bytes text = answer_without_end(&w);
            /* DeepSeek V4 writes a line more in a call without arguments. */
            bool line = bytes_find(text, bytes_of("\">\n\n</"), 0) != SIZE_MAX;
            if (!line && !allows(m, name, text)) test_failures++;
            n_texts++;
            grammar_machine_release(m);
        }
        buf_deinit(&w.text);
        json_decref(tools);
        json_decref(calls);
    }
}

static void what_templates_write_is_allowed(void) {
    if (!for_each_template(write_random_calls)) SKIP("no shared/templates");
    printf("%d texts, seed 20\n", n_texts);
    EXPECT(n_texts >= 800);
}

/* ---- schemas ---- */

static const char rich_tool[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"plan_trip\",\"description\":\"d\","
    "\"parameters\":{\"type\":\"object\",\"properties\":{"
    "\"city\":{\"type\":\"string\",\"description\":\"d\"},"
    "\"kind\":{\"type\":\"string\",\"description\":\"d\",\"enum\":[\"schön\",\"short\"]},"
    "\"days\":{\"type\":\"integer\",\"description\":\"d\"},"
    "\"stops\":{\"type\":\"array\",\"description\":\"d\",\"minItems\":1,\"maxItems\":2,\"items\":{"
    "\"type\":\"object\","
    "\"properties\":{\"at\":{\"type\":\"array\",\"items\":{\"type\":\"number\"}},"
    "\"name\":{\"type\":\"string\"},\"seen\":{\"type\":\"boolean\"}},"
    "\"required\":[\"at\",\"name\"]}},"
    "\"who\":{\"$ref\":\"#/$defs/person\"},"
    "\"xcode\":{\"type\":\"string\",\"description\":\"d\",\"pattern\":\"^[A-Z]{3}$\"},"
    "\"xdate\":{\"type\":\"string\",\"description\":\"d\",\"format\":\"date\"},"
    "\"xname\":{\"type\":\"string\",\"description\":\"d\",\"minLength\":1,\"maxLength\":3}},"
    "\"required\":[\"city\",\"days\",\"kind\",\"stops\"],\"$defs\":{\"person\":{\"type\":"
    "\"object\","
    "\"description\":\"d\",\"properties\":{\"age\":{\"type\":\"integer\"},\"tags\":{\"type\":"
    "\"array\",\"items\":{\"enum\":[\"x\",\"ü\"]}}},\"required\":[\"age\"]}}}}}]";

typedef struct sample {
    const char *arguments;
    bool fits;
} sample;

static const sample samples[] = {
    {"{\"city\":\"世界 \\\"x\\\"\",\"kind\":\"schön\",\"days\":3,\"stops\":[{\"at\":[1.5,2.5],"
     "\"name\":\"é <b>\",\"seen\":true},{\"at\":[7.5],\"name\":\"b\"}],\"who\":{\"age\":9,\"tags\":"
     "[\"ü\",\"x\"]}}",
     true},
    {"{\"city\":\"a\",\"kind\":\"short\",\"days\":-2,\"stops\":[{\"at\":[1.5],\"name\":\"b\"}]}",
     true},
    {"{\"city\":\"a\",\"kind\":\"short\",\"days\":1,\"stops\":[{\"at\":[1.5],\"name\":\"b\"}],"
     "\"xcode\":\"ROM\",\"xdate\":\"2026-02-28\",\"xname\":\"世界x\"}",
     true},
    {"{\"city\":\"a\",\"kind\":\"short\",\"days\":1,\"stops\":[{\"at\":[1.5],\"name\":\"b\"}],"
     "\"xcode\":\"ROMA\"}",
     false},
    {"{\"city\":\"a\",\"kind\":\"short\",\"days\":1,\"stops\":[{\"at\":[1.5],\"name\":\"b\"}],"
     "\"xdate\":\"2026-02-30\"}",
     false},
    {"{\"city\":\"a\",\"kind\":\"short\",\"days\":1,\"stops\":[{\"at\":[1.5],\"name\":\"b\"}],"
     "\"xname\":\"Rome\"}",
     false},
    {"{\"city\":\"a\",\"kind\":\"short\",\"days\":1,\"stops\":[{\"at\":[1.5],\"name\":\"b\"},"
     "{\"at\":[2.5],\"name\":\"c\"},{\"at\":[3.5],\"name\":\"d\"}]}",
     false},
    /* another name, inside, too; another type, inside, too; a value that is not listed */
    {"{\"town\":\"a\",\"kind\":\"short\",\"days\":1,\"stops\":[{\"at\":[1.5],\"name\":\"b\"}]}",
     false},
    {"{\"city\":\"a\",\"kind\":\"short\",\"days\":1,\"stops\":[{\"at\":[1.5],\"nome\":\"b\"}]}",
     false},
    {"{\"city\":\"a\",\"kind\":\"short\",\"days\":\"many\",\"stops\":[{\"at\":[1.5],\"name\":\"b\"}"
     "]}",
     false},
    {"{\"city\":\"a\",\"kind\":\"short\",\"days\":1,\"stops\":[{\"at\":[true],\"name\":\"b\"}]}",
     false},
    {"{\"city\":\"a\",\"kind\":\"short\",\"days\":1,\"stops\":{\"at\":[1.5],\"name\":\"b\"}}",
     false},
    {"{\"city\":\"a\",\"kind\":\"long\",\"days\":1,\"stops\":[{\"at\":[1.5],\"name\":\"b\"}]}",
     false},
    {"{\"city\":\"a\",\"kind\":\"short\",\"days\":1,\"stops\":[{\"at\":[1.5],\"name\":\"b\"}],"
     "\"who\":{\"age\":1,\"tags\":[\"z\"]}}",
     false},
};

static void check_schema(const char *name, const chat_template *t, const call_format *f) {
    json_t *tools = json_loads(rich_tool, 0, NULL);
    EXPECT(tools != NULL);
    for (int choice = CALL_AUTO; choice <= CALL_REQUIRED; choice++) {
        call_tags_options o = {.tools = tools, .choice = (call_choice)choice, .parallel = true};
        if (call_format_style(f) == CALL_NONE) break;
        grammar_machine *m = machine_of(f, &o);
        for (size_t i = 0; m != NULL && i < INFERD_COUNT(samples); i++) {
            json_t *arguments = json_loads(samples[i].arguments, 0, NULL);
            json_t *calls = json_array();
            EXPECT(arguments != NULL);
            json_array_append_new(calls, call_json("plan_trip", 0, arguments));
            written w;
            if (write_calls(t, f, tools, calls, &w)) {
                bytes text = answer_without_end(&w);
                /* Reka writes JSON in ASCII; a grammar has the values of an enum as they are. */
                bool escaped = bytes_find(text, bytes_of("sch\\u00f6n"), 0) != SIZE_MAX;
                bool ok = escaped           ? true
                          : samples[i].fits ? allows(m, name, text)
                                            : !is_allowed(m, text);
                if (!ok && !samples[i].fits) printf("%s allows %.*s\n", name, (int)text.n, text.p);
                test_failures += !ok;
                n_refused += ok && !samples[i].fits;
            }
            buf_deinit(&w.text);
            json_decref(calls);
        }
        grammar_machine_release(m);
    }
    json_decref(tools);
}

static void arguments_follow_the_schema_in_every_notation(void) {
    if (!for_each_template(check_schema)) SKIP("no shared/templates");
    printf("%d texts refused\n", n_refused);
    EXPECT(n_refused >= 1000);
}

/* ---- schemas that are not enforced ---- */

static json_t *tool_of(const char *name, json_t *parameters) {
    return json_pack("{s:s,s:{s:s,s:o}}", "type", "function", "function", "name", name,
                     "parameters", parameters);
}

/* The i-th known format. */
static call_format *known(size_t i) {
    call_format *f = calloc(1, sizeof *f);
    EXPECT(f != NULL && call_format_set_known(f, call_format_named(i)));
    return f;
}

static bool has_notation(const call_format *f) {
    return f->style == CALL_BRACES || f->style == CALL_PYTHON || f->style == CALL_TAGS;
}

static bool tells(const json_t *weakened, const char *place) {
    for (size_t i = 0; i < json_array_size(weakened); i++)
        if (strcmp(json_string_value(json_array_get(weakened, i)), place) == 0) return true;
    return false;
}

/* It was reported as lack of memory, and clients tried again. */
static void what_no_notation_can_say_may_be_any_arguments(void) {
    enum { TOO_MANY = 501 };
    for (size_t i = 0; call_format_named(i) != NULL; i++) {
        call_format *f = known(i);
        json_t *many = json_object(), *weakened = json_array();
        char name[16];
        for (int k = 0; k < TOO_MANY; k++) {
            snprintf(name, sizeof name, "p%d", k);
            json_object_set_new(many, name, json_object());
        }
        json_t *self = json_loads("{\"properties\":{\"a\":{\"anyOf\":[{\"type\":\"string\"},"
                                  "{\"$ref\":\"#/properties/a\"}]},"
                                  "\"b\":{\"anyOf\":[{\"type\":\"integer\"}]}}}",
                                  0, NULL);
        json_t *tools = json_pack("[o,o]", tool_of("many", json_pack("{s:o}", "properties", many)),
                                  tool_of("self", self));
        call_tags_options o = {.tools = tools, .parallel = true, .weakened = weakened};
        grammar_machine *m = machine_of(f, &o);
        EXPECT_EQ(tells(weakened, "many#"), has_notation(f));
        EXPECT(!tells(weakened, "self#"));
        grammar_machine_release(m);
        json_decref(tools);
        json_decref(weakened);
        call_format_close(f);
    }
}

/* The name of a property became a control token, which only the marks of a format may be. */
static void names_of_control_tokens_are_in_no_schema(void) {
    for (size_t i = 0; call_format_named(i) != NULL; i++) {
        call_format *f = known(i);
        json_t *weakened = json_array();
        json_t *schema = json_pack("{s:{s:{}}}", "properties", "\uFDD0<|im_start|>\uFDD1");
        json_t *tools = json_pack("[o]", tool_of("f", schema));
        call_tags_options o = {.tools = tools, .weakened = weakened};
        grammar_machine_release(machine_of(f, &o));
        EXPECT_EQ(tells(weakened, "f#"), has_notation(f));
        json_decref(tools);
        json_decref(weakened);
        call_format_close(f);
    }
}

/* In Python, Gemma's notation and trees these had no effect, and nothing said so. */
static void keywords_without_effect_are_told(void) {
    static const char schema[] =
        "{\"minProperties\":2,\"properties\":{\"a\":{\"type\":\"object\",\"properties\":{\"b/c\":"
        "{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"uniqueItems\":true}}},"
        "\"d\":{\"type\":\"array\",\"minItems\":2,\"maxItems\":9}}}";
    for (size_t i = 0; call_format_named(i) != NULL; i++) {
        call_format *f = known(i);
        json_t *weakened = json_array();
        json_t *tools = json_pack("[o]", tool_of("f", json_loads(schema, 0, NULL)));
        call_tags_options o = {.tools = tools, .weakened = weakened};
        json_t *tags = call_tags(f, &o);
        bool nested = f->style == CALL_BRACES || f->style == CALL_PYTHON || f->tree || f->literals;
        EXPECT(tags != NULL);
        EXPECT_EQ(tells(weakened, "f#/minProperties"), has_notation(f));
        EXPECT_EQ(tells(weakened, "f#/properties/a/properties/b~1c/uniqueItems"), nested);
        EXPECT_EQ(json_array_size(weakened), (size_t)nested + has_notation(f));
        json_decref(tags);
        json_decref(tools);
        json_decref(weakened);
        call_format_close(f);
    }
}

/* Each first argument had a list of all that may follow. */
static void optional_arguments_take_a_place_each(void) {
    for (size_t i = 0; call_format_named(i) != NULL; i++) {
        call_format *f = known(i);
        size_t n_bytes[2];
        for (int big = 0; big < 2; big++) {
            json_t *properties = json_object();
            char name[16];
            for (int k = 0; k < (big ? 500 : 125); k++) {
                snprintf(name, sizeof name, "p%03d", k);
                json_object_set_new(properties, name, json_pack("{s:s}", "type", "boolean"));
            }
            json_t *tools =
                json_pack("[o]", tool_of("f", json_pack("{s:o}", "properties", properties)));
            call_tags_options o = {.tools = tools, .choice = CALL_REQUIRED};
            json_t *tags = call_tags(f, &o);
            n_bytes[big] = json_dumpb(tags, NULL, 0, 0);
            grammar_machine *m = machine_of(f, &o);
            grammar_pos at = grammar_start(m);
            buf call = {0}; // what may follow the name of the function is not too much
            inferd_err err = {0};
            EXPECT(grammar_complete(m, at, 4096, &call));
            for (size_t k = 0; k < call.n; k++) {
                grammar_mask *mask = grammar_mask_get(m, at, &err);
                if (mask == NULL) printf("%s: %s\n", call_format_named(i), err.text);
                EXPECT(mask != NULL);
                grammar_mask_release(mask);
                EXPECT(grammar_accept_bytes(m, at, (bytes){call.p + k, 1}, NULL));
            }
            buf_deinit(&call);
            grammar_drop(m, at);
            grammar_machine_release(m);
            json_decref(tags);
            json_decref(tools);
        }
        EXPECT(n_bytes[1] < 5 * n_bytes[0]);
        call_format_close(f);
    }
}

/* ---- reasoning that was not begun ---- */

/* MiniMax M3 closes reasoning first where it does not reason. */
static void the_mark_behind_reasoning_may_be_first(void) {
    static const char source[] =
        "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}{% if "
        "m.reasoning_content %}"
        "<think>{{ m.reasoning_content }}{% endif %}</think>{% endif %}{{ m.content }}{% for c in "
        "m.tool_calls %}"
        "<call>{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments|tojson "
        "}}}</call>"
        "{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";
    call_format *f = learn(source);
    json_t *tools = json_loads("[{\"function\":{\"name\":\"f\"}}]", 0, NULL);
    EXPECT(f->closes_first);
    for (int choice = CALL_AUTO; choice <= CALL_REQUIRED; choice++) {
        call_tags_options o = {.tools = tools, .choice = (call_choice)choice, .parallel = true};
        grammar_machine *m = machine_of(f, &o);
        static const char call[] = "</think><call>{\"name\": \"f\", \"arguments\": {}}</call>";
        if (m == NULL) continue;
        EXPECT(allows(m, "closed first", bytes_of(call)));
        EXPECT(allows(m, "at once", bytes_from(bytes_of(call), 8)));
        EXPECT_EQ(is_allowed(m, bytes_of("</think>yes")), choice == CALL_AUTO);
        grammar_machine_release(m);
    }
    json_decref(tools);
    call_format_close(f);
}

/* DeepSeek V4 writes a line break behind each argument, and one more where there is none. */
static void a_call_without_arguments_may_have_an_empty_line(void) {
    static const char source[] =
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls %}"
        "{% set a = c.function.arguments %}<calls>{{ '\\n' }}"
        "<call name=\"{{ c.function.name }}\">{{ '\\n' }}{% for k, v in a.items() %}"
        "<p name=\"{{ k }}\">{{ v if v is string else v|tojson }}</p>{{ '\\n' }}{% endfor %}"
        "{% if not a %}{{ '\\n' }}{% endif %}</call>{{ '\\n' }}</calls>{% endfor %}<|end|>"
        "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";
    static const char empty[] = "<calls>\n<call name=\"f\">\n\n</call>\n</calls>";
    static const char short_one[] = "<calls>\n<call name=\"f\">\n</call>\n</calls>";
    static const char with_one[] = "<calls>\n<call name=\"f\">\n<p name=\"a\">x</p>\n</call>\n"
                                   "</calls>";
    static const char needed[] =
        "{\"properties\":{\"a\":{\"type\":\"string\"}},\"required\":[\"a\"]}";
    static const char *const schemas[] = {"{}", "{\"properties\":{\"a\":{\"type\":\"string\"}}}",
                                          needed};
    call_format *f = learn(source);
    EXPECT_EQ(call_format_style(f), CALL_TAGS);
    for (size_t i = 0; i < INFERD_COUNT(schemas); i++) {
        json_t *tools = json_pack("[o]", tool_of("f", json_loads(schemas[i], 0, NULL)));
        for (int any = 0; any < 2; any++) {
            call_tags_options o = {.tools = tools, .choice = CALL_REQUIRED, .any_arguments = any};
            grammar_machine *m = machine_of(f, &o);
            EXPECT_EQ(is_allowed(m, bytes_of(empty)), i < 2 || any);
            EXPECT_EQ(is_allowed(m, bytes_of(short_one)), i < 2 || any);
            EXPECT_EQ(is_allowed(m, bytes_of(with_one)), i > 0 || any);
            grammar_machine_release(m);
        }
        json_decref(tools);
    }
    message m = read_text(f, &(call_parser_options){0}, bytes_of(empty));
    EXPECT_STR(buf_cstr(&m.calls), "f{};");
    deinit(&m);
    call_format_close(f);
}

/* ---- calls that are one text ---- */

#define TOKEN(name) "\xff" name "\xff" // as marks and symbols have it

/* The whole call is a text that ends with a control token, which is in one piece. */
static void a_call_without_arguments_may_end_with_a_token(void) {
    static const char source[] =
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls %}"
        "<call>{{ c.function.name }}{% for k, v in c.function.arguments.items() %}"
        "<key>{{ k }}</key><value>{{ v if v is string else v|tojson }}</value>{% endfor %}</call>"
        "{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";
    static const char *const closes[] = {TOKEN("</call>"), "</call>", "»",
                                         TOKEN("<1>") TOKEN("<2>")};
    static const char *const schemas[] = {"{\"type\":\"object\",\"properties\":{}}",
                                          "{\"type\":\"object\",\"additionalProperties\":false}",
                                          "{}", NULL};
    for (size_t i = 0; i < INFERD_COUNT(closes) * INFERD_COUNT(schemas) * 2; i++) {
        const char *close = closes[i / 2 % INFERD_COUNT(closes)];
        const char *schema = schemas[i / 2 / INFERD_COUNT(closes)];
        call_format *f = learn(source);
        EXPECT_EQ(call_format_style(f), CALL_TAGS);
        EXPECT(call_format_set(f, &f->call_open, bytes_of(TOKEN("<call>"))));
        EXPECT(call_format_set(f, &f->call_close, bytes_of(close)));
        json_t *tools =
            json_pack("[o]", schema == NULL ? json_loads("{\"function\":{\"name\":\"f\"}}", 0, NULL)
                                            : tool_of("f", json_loads(schema, 0, NULL)));
        call_tags_options o = {.tools = tools, .choice = (call_choice)(i % 2), .parallel = true};
        grammar_machine *m = machine_of(f, &o);
        buf call = {0};
        buf_add_format(&call, "%sf%s", TOKEN("<call>"), close);
        EXPECT(m != NULL && allows(m, "a call of one text", (bytes){call.p, call.n}));
        buf_deinit(&call);
        grammar_machine_release(m);
        json_decref(tools);
        call_format_close(f);
    }
}

static const test_case cases[] = {TEST(what_templates_write_is_allowed),
                                  TEST(arguments_follow_the_schema_in_every_notation),
                                  TEST(what_no_notation_can_say_may_be_any_arguments),
                                  TEST(names_of_control_tokens_are_in_no_schema),
                                  TEST(keywords_without_effect_are_told),
                                  TEST(optional_arguments_take_a_place_each),
                                  TEST(the_mark_behind_reasoning_may_be_first),
                                  TEST(a_call_without_arguments_may_have_an_empty_line),
                                  TEST(a_call_without_arguments_may_end_with_a_token)};
TEST_MAIN(cases)
