/* test_schema_weak.c - schemas that cannot be enforced, made weaker: which keywords are left out,
 * by their pointers, and that nothing valid is lost by it. */
#include "grammar_rig.h"

/* Pointers are apart by blanks, texts by newlines. */
typedef struct row {
    const char *schema, *pointers, *yes, *no;
} row;

static char *long_pattern(void) {
    static char text[6000];
    memset(text, 'a', sizeof text - 1);
    return text;
}

static grammar *compile(json_t *schema, json_t *weakened, const grammar_limits *limits,
                        inferd_err *err) {
    grammar_schema_kind kind = {.weakened = weakened, .compact = true};
    grammar_options o = {.limits = limits};
    grammar *g = NULL;
    *err = (inferd_err){0};
    EXPECT_EQ(grammar_of_schema(schema, &kind, &o, &g, err), err->status);
    return g;
}

/* In any order. */
static void expect_pointers(const char *schema, const json_t *found, const char *wanted) {
    size_t n = 0;
    bool all = true;
    for (const char *p = wanted; *p != 0; n++) {
        size_t length = strcspn(p, " "), i = 0;
        for (; i < json_array_size(found); i++) {
            const char *one = json_string_value(json_array_get(found, i));
            if (strlen(one) == length && memcmp(one, p, length) == 0) break;
        }
        all &= i < json_array_size(found);
        p += length + (p[length] == ' ');
    }
    if (all && n == json_array_size(found)) return;
    char *text = json_dumps(found, 0);
    printf("%.200s: %s, expected %s\n", schema, text, wanted);
    free(text);
    test_failures++;
}

static void expect_texts(grammar_machine *m, const row *r, const char *texts, bool accepted) {
    char text[512];
    while (*texts != 0) {
        size_t n = strcspn(texts, "\n");
        snprintf(text, sizeof text, "%.*s", (int)n, texts);
        texts += n + (texts[n] == '\n');
        if (rig_accepts(m, text) == accepted) continue;
        printf("%.200s: %s is %s\n", r->schema, text, accepted ? "rejected" : "accepted");
        test_failures++;
    }
}

/* The schema is refused unless it may be weakened, if there are pointers; it becomes that. */
static void expect_row(const row *r) {
    inferd_err err;
    json_error_t problem;
    json_t *schema = json_loads(r->schema, JSON_DECODE_ANY, &problem), *weakened = json_array();
    EXPECT(schema != NULL);
    grammar *refused = compile(schema, NULL, NULL, &err);
    if ((refused == NULL) != (*r->pointers != 0))
        printf("%.200s: %s\n", r->schema, refused != NULL ? "is not refused" : err.text);
    EXPECT_EQ(refused == NULL, *r->pointers != 0);
    grammar_release(refused);
    grammar *g = compile(schema, weakened, NULL, &err);
    if (g == NULL) printf("%.200s: %s\n", r->schema, err.text);
    EXPECT_EQ(err.status, INFERD_OK);
    expect_pointers(r->schema, weakened, r->pointers);
    grammar_machine *m = rig_machine(g);
    if (m != NULL) {
        expect_texts(m, r, r->yes, true);
        expect_texts(m, r, r->no, false);
        grammar_machine_release(m);
    }
    json_decref(weakened);
    json_decref(schema);
}

static void expect_rows(const row *rows, size_t n) {
    for (size_t i = 0; i < n; i++) expect_row(&rows[i]);
}
#define EXPECT_ROWS(rows) expect_rows(rows, INFERD_COUNT(rows))

#define OBJECT(a) "{\"type\":\"object\",\"properties\":{\"a\":" a "},\"required\":[\"a\"]}"

static void what_can_be_enforced_is(void) {
    static const row rows[] = {
        {"{\"$schema\":\"http://json-schema.org/draft-07/schema#\",\"title\":\"t\",\"examples\":["
         "{}],\"x-vendor\":{\"not\":5},\"type\":\"integer\",\"default\":\"no\",\"deprecated\":1}",
         "", "1", "\"a\""},
        {"{\"$schema\":\"https://example.com/mine\",\"$id\":\"a\",\"type\":\"null\"}", "", "null",
         "1"},
        {"{\"type\":\"integer\",\"minimum\":3,\"exclusiveMinimum\":true}", "", "4", "3\n2"},
        {"{\"type\":\"integer\",\"format\":\"int32\"}", "", "1", "9999999999"},
        {"true", "", "1\n{}", "x"},
    };
    EXPECT_ROWS(rows);
}

static void one_keyword_goes_and_the_others_stay(void) {
    static const row rows[] = {
        {"{\"type\":\"string\",\"format\":\"weird\",\"maxLength\":5}", "#/format", "\"abcde\"",
         "\"abcdef\"\n1"},
        {"{\"type\":\"string\",\"pattern\":\"(a)\\\\1\",\"minLength\":2}", "#/pattern", "\"xy\"",
         "\"x\""},
        {"{\"type\":\"string\",\"pattern\":\"(\"}", "#/pattern", "\"\"", "1"},
        {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"uniqueItems\":true}",
         "#/uniqueItems", "[1,1]\n[]", "[\"a\"]"},
        {OBJECT("{\"type\":\"string\",\"not\":{\"format\":\"date\"}}"), "#/properties/a/not",
         "{\"a\":\"2020-01-01\"}", "{\"a\":1}\n{}"},
        {OBJECT("{\"type\":\"array\",\"contains\":{\"const\":1},\"minContains\":2}"),
         "#/properties/a/contains", "{\"a\":[2]}", "{\"a\":1}"},
        /* Integers beyond 64 bits are doubles here: 18446744073709551615 would be another number.
         */
        {OBJECT("{\"type\":\"integer\",\"const\":18446744073709551616.0}"), "#/properties/a/const",
         "{\"a\":18446744073709551615}", "{\"a\":\"1\"}"},
        {OBJECT("{\"type\":\"array\",\"enum\":[[1],[-1e20]]}"), "#/properties/a/enum",
         "{\"a\":[2]}", "{\"a\":1}"},
        {"{\"type\":\"integer\",\"minimum\":5,\"not\":{\"const\":1e20}}", "#/not", "6", "4"},
        {"{\"type\":\"integer\",\"minimum\":-1e20,\"maximum\":18446744073709551616.0}", "",
         "0\n18446744073709551615\n-100000000000000000000",
         "18446744073709551617\n-100000000000000000001"},
        {"{\"type\":\"object\",\"minProperties\":3}", "#/minProperties", "{}", "1"},
        {"{\"type\":\"number\",\"multipleOf\":0.01,\"minimum\":0}", "#/multipleOf", "0.001\n5",
         "-1"},
        {"{\"type\":\"object\",\"properties\":{\"a/b\":{\"type\":\"string\",\"format\":\"x\"},"
         "\"c~\":{\"format\":\"y\",\"type\":\"string\"}},\"additionalProperties\":false}",
         "#/properties/a~1b/format #/properties/c~0/format", "{\"a/b\":\"q\",\"c~\":\"\"}\n{}",
         "{\"a/b\":1}\n{\"d\":1}"},
        {"{\"$schema\":\"http://json-schema.org/draft-03/schema#\",\"type\":\"integer\","
         "\"divisibleBy\":2}",
         "#/divisibleBy", "1", "\"a\""},
        {"{\"$defs\":{\"d\":{\"type\":\"string\",\"format\":\"x\"}},\"type\":\"array\",\"items\":{"
         "\"$ref\":\"#/$defs/d\"}}",
         "#/$defs/d/format", "[\"a\"]", "[1]"},
        {"{\"$defs\":{\"unused\":{\"type\":\"string\",\"format\":\"x\"}},\"type\":\"null\"}", "",
         "null", "1"},
    };
    EXPECT_ROWS(rows);
}

static void malformed_keywords_go(void) {
    static const row rows[] = {
        {OBJECT("{\"type\":\"string\",\"minLength\":\"2\"}"), "#/properties/a/minLength",
         "{\"a\":\"\"}", "{\"a\":1}"},
        {OBJECT("{\"type\":\"text\"}"), "#/properties/a/type", "{\"a\":1}\n{\"a\":\"\"}", "{}"},
        {OBJECT("{\"type\":\"integer\",\"required\":true,\"minimum\":\"0\",\"maximum\":9}"),
         "#/properties/a/minimum #/properties/a/required", "{\"a\":-1}", "{\"a\":10}"},
        {"{\"type\":\"object\",\"properties\":[],\"additionalProperties\":false}",
         "#/properties #/additionalProperties", "{\"a\":1}", "[]"},
        {"{\"type\":\"object\",\"required\":[1]}", "#/required", "{}", "1"},
        {"{\"type\":\"object\",\"properties\":{\"a\":null,\"b\":{\"type\":\"null\"}}}",
         "#/properties/a", "{\"a\":1,\"b\":null}", "{\"b\":1}"},
        {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"null\"},5],\"items\":false}",
         "#/prefixItems/1", "[null,7]\n[]", "[1]\n[null,1,2]"},
        {"{\"type\":\"array\",\"prefixItems\":5,\"items\":false,\"maxItems\":2}",
         "#/prefixItems #/items", "[1,2]", "[1,2,3]"},
        {"{\"enum\":\"a\",\"type\":\"string\"}", "#/enum", "\"b\"", "1"},
        {"{\"anyOf\":{},\"type\":\"null\"}", "#/anyOf", "null", "1"},
    };
    EXPECT_ROWS(rows);
}

/* Without one keyword another one would allow less. */
static void keywords_that_depend_on_others_go_with_them(void) {
    static const row rows[] = {
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"null\"}},\"patternProperties\":{"
         "\"(b)\\\\1\":{\"type\":\"integer\"}},\"additionalProperties\":false}",
         "#/patternProperties #/additionalProperties", "{\"a\":null,\"bb\":1}\n{\"c\":\"\"}",
         "{\"a\":1}"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{}},\"allOf\":[{\"properties\":{\"b\":{}}}],"
         "\"unevaluatedProperties\":false}",
         "#/unevaluatedProperties", "{\"a\":1,\"b\":2}\n{\"c\":1}", "1"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{}},\"$ref\":\"http://x.y/z\","
         "\"unevaluatedProperties\":false}",
         "#/$ref #/unevaluatedProperties", "{\"a\":1,\"b\":2}", "1"},
    };
    EXPECT_ROWS(rows);
}

/* A schema that must not hold, or just one of several, cannot become wider. */
static void gates_go_first(void) {
    static const row rows[] = {
        {"{\"type\":\"array\",\"items\":{\"not\":{\"anyOf\":[{\"const\":1},{\"type\":\"string\","
         "\"pattern\":\"(\"}]}}}",
         "#/items/not", "[1,\"a\"]", "{}"},
        {"{\"oneOf\":[{\"type\":\"string\",\"format\":\"x\"},{\"type\":\"string\",\"maxLength\":2},"
         "{\"type\":\"integer\"}]}",
         "#/oneOf #/oneOf/0/format", "\"a\"\n\"abc\"\n1", "1.5\nnull"},
        {"{\"oneOf\":[{\"type\":\"string\",\"minLength\":\"x\"},{\"type\":\"string\"}]}",
         "#/oneOf #/oneOf/0/minLength", "\"a\"", "1"},
        {"{\"oneOf\":[5,{\"type\":\"string\"}]}", "#/oneOf #/oneOf/0", "\"a\"\n1", "x"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"}},\"if\":{\"properties\":"
         "{\"a\":{\"pattern\":\"(?<!b)c\"}}},\"then\":{\"required\":[\"b\"]}}",
         "#/if", "{\"a\":\"c\"}\n{}", "{\"a\":1}"},
        {"{\"not\":{\"$ref\":\"#/$defs/d\"},\"$defs\":{\"d\":{\"type\":\"array\",\"items\":{"
         "\"$ref\":\"#/$defs/e\"}},\"e\":{\"type\":\"string\",\"pattern\":\"(\"}},\"type\":"
         "\"object\",\"properties\":{\"a\":{\"$ref\":\"#/$defs/e\"}}}",
         "#/not #/$defs/e/pattern", "{\"a\":\"x\"}\n{}", "{\"a\":1}"},
    };
    EXPECT_ROWS(rows);
}

/* Which names violate a pattern cannot be described here, and nothing else violates the schema. */
static void a_negation_of_which_nothing_is_left_goes(void) {
    static const row rows[] = {
        {OBJECT(
             "{\"type\":\"object\",\"additionalProperties\":false,\"patternProperties\":{\"^x\":{},"
             "\"^[0-9]$\":{\"type\":\"null\"}},\"not\":{\"type\":\"object\",\"patternProperties\":{"
             "\"^x\":{}},\"additionalProperties\":false}}"),
         "#/properties/a/not", "{\"a\":{\"1\":null}}\n{\"a\":{}}", "{\"a\":{\"1\":1}}\n{\"a\":1}"},
    };
    EXPECT_ROWS(rows);
}

static void references_that_lead_nowhere_go(void) {
    static const row rows[] = {
        {OBJECT("{\"$ref\":\"#/$defs/none\"}"), "#/properties/a/$ref", "{\"a\":[1]}", "{}"},
        {OBJECT("{\"$ref\":\"https://example.com/s.json\",\"type\":\"string\"}"),
         "#/properties/a/$ref", "{\"a\":\"\"}", "{\"a\":1}"},
        {OBJECT("{\"$ref\":5}"), "#/properties/a/$ref", "{\"a\":[1]}", "{}"},
        {"{\"type\":\"object\",\"allOf\":[{\"$ref\":\"#\"}]}", "#/type #/allOf", "{\"a\":1}", "1"},
    };
    EXPECT_ROWS(rows);
}

static void a_root_that_lost_its_type_is_an_object(void) {
    static const row rows[] = {
        {"{\"$ref\":\"#/$defs/none\"}", "#/$ref", "{}\n{\"a\":[1]}", "1\n[]"},
        {"{\"type\":\"objekt\",\"properties\":{\"a\":{\"type\":\"null\"}}}", "#/type",
         "{\"a\":null,\"b\":1}", "1\n{\"a\":1}"},
        {"{\"minProperties\":4}", "#/minProperties", "{}", "1"},
        {"{\"minProperties\":4,\"maxItems\":1}", "#/minProperties", "{}\n1",
         "[1,2]"}, // it had none
        {"{\"type\":\"string\",\"enum\":[1]}", "#/type #/enum", "{}\n{\"a\":1}", "1\n\"a\""},
        {"false", "#", "{}", "1"},
        {"{\"anyOf\":[{\"type\":\"string\",\"pattern\":\"(\"},{\"type\":\"null\"}]}",
         "#/anyOf/0/pattern", "\"a\"\nnull", "{}"},
    };
    EXPECT_ROWS(rows);
}

static void limits_are_met_by_one_keyword(void) {
    inferd_err err;
    json_t *weakened = json_array();
    grammar_limits few = grammar_limits_default;
    few.enum_max = 3;
    json_t *schema = json_pack("{s:s, s:{s:{s:s, s:[s,s,s,s]}, s:{s:s, s:s}, s:{s:s, s:[s, s]}}}",
                               "type", "object", "properties", "a", "type", "string", "enum", "1",
                               "2", "3", "4", "b", "type", "string", "pattern", long_pattern(), "c",
                               "type", "string", "enum", "a", "b");
    grammar *g = compile(schema, weakened, &few, &err);
    EXPECT_EQ(err.status, INFERD_OK);
    expect_pointers("limits", weakened, "#/properties/a/enum #/properties/b/pattern");
    grammar_machine *m = rig_machine(g);
    EXPECT(rig_accepts(m, "{\"a\":\"x\",\"b\":\"\",\"c\":\"b\"}"));
    EXPECT(!rig_accepts(m, "{\"a\":\"x\",\"b\":\"\",\"c\":\"d\"}"));
    EXPECT(!rig_accepts(m, "{\"a\":1}"));
    grammar_machine_release(m);
    few.enum_max = 10;
    few.enum_bytes_max = 10;
    json_array_clear(weakened);
    g = compile(schema, weakened, &few, &err);
    expect_pointers("limits", weakened, "#/properties/a/enum #/properties/b/pattern");
    grammar_release(g);
    json_decref(schema);
    json_decref(weakened);
}

/* Nesting, nodes, time: the whole is any object. */
static void limits_of_the_whole_leave_any_object(void) {
    inferd_err err;
    json_t *weakened = json_array(), *schema = json_pack("{s:s}", "type", "null");
    for (int i = 0; i < 100; i++) {
        json_t *outer = json_object();
        json_object_set_new(outer, "items", schema);
        schema = outer;
    }
    grammar_machine *m = rig_machine(compile(schema, weakened, NULL, &err));
    expect_pointers("nested", weakened, "#");
    EXPECT(rig_accepts(m, "{\"a\":[1]}") && !rig_accepts(m, "[]"));
    grammar_machine_release(m);
    json_decref(schema);
    json_array_clear(weakened);
    schema = json_pack("{s:s, s:{s:{}, s:{}}}", "type", "object", "properties", "a", "b");
    grammar_limits no_time = grammar_limits_default;
    no_time.nodes_max = 10;
    EXPECT(compile(schema, weakened, &no_time, &err) == NULL); // not even that
    EXPECT_EQ(err.status, INFERD_ETOOLONG);
    json_decref(schema);
    json_decref(weakened);
}

static void what_is_no_schema_is_refused(void) {
    inferd_err err;
    json_t *weakened = json_array(), *five = json_integer(5), *list = json_array();
    EXPECT(compile(five, weakened, NULL, &err) == NULL);
    EXPECT_EQ(err.status, INFERD_EINVAL);
    EXPECT(compile(list, weakened, NULL, &err) == NULL);
    EXPECT_EQ(json_array_size(weakened), 0);
    json_decref(five);
    json_decref(list);
    json_decref(weakened);
}

static void strict_schemas_are_not_weakened(void) {
    json_t *schema = json_pack("{s:s, s:b}", "type", "object", "additionalProperties", 1);
    json_t *weakened = json_array();
    grammar_schema_kind kind = {.strict = true, .weakened = weakened};
    grammar *g = NULL;
    EXPECT_EQ(grammar_of_schema(schema, &kind, NULL, &g, NULL), INFERD_EINVAL);
    EXPECT_EQ(json_array_size(weakened), 0);
    json_decref(schema);
    json_decref(weakened);
}

/* Several schemas in one graph: each begins as if the attempts before had not been. */
static void schemas_of_tags_are_weakened(void) {
    static const char tags[] =
        "{\"format\":{\"type\":\"sequence\",\"elements\":[{\"type\":\"json_schema\","
        "\"json_schema\":{\"type\":\"array\",\"items\":{\"$ref\":\"#\"},\"minItems\":1,"
        "\"uniqueItems\":true,\"maxItems\":2}},{\"type\":\"tag\",\"begin\":\"<\",\"content\":{"
        "\"type\":\"json_schema\",\"json_schema\":{\"type\":\"object\",\"properties\":{\"a\":{"
        "\"type\":\"string\",\"format\":\"x\"}},\"not\":{\"required\":[\"b\"],\"propertyNames\":{"
        "\"pattern\":\"(\"}}}},\"end\":\">\"},{\"type\":\"json_schema\",\"json_schema\":{\"type\":"
        "\"null\"}}]}}";
    json_t *json = json_loads(tags, 0, NULL), *weakened = json_array();
    grammar_schema_kind kind = {.weakened = weakened, .compact = true};
    inferd_err err = {0};
    grammar *g = NULL;
    EXPECT_EQ(grammar_of_tags(json, NULL, NULL, &g, &err), INFERD_EUNSUPPORTED);
    EXPECT_EQ(grammar_of_tags(json, &kind, NULL, &g, &err), INFERD_EINVAL);
    json_decref(json);
    json_array_clear(weakened);
    json = json_loads(tags, 0, NULL);
    json_t *first = json_array_get(json_object_get(json_object_get(json, "format"), "elements"), 0);
    err = (inferd_err){0};
    json_object_set_new(json_object_get(json_object_get(first, "json_schema"), "items"), "$ref",
                        json_string("#/$defs/none"));
    EXPECT_EQ(grammar_of_tags(json, &kind, NULL, &g, &err), INFERD_OK);
    if (err.status != INFERD_OK) printf("%s\n", err.text);
    expect_pointers(tags, weakened,
                    "#/format/elements/0/json_schema/uniqueItems "
                    "#/format/elements/0/json_schema/items/$ref "
                    "#/format/elements/1/content/json_schema/properties/a/format "
                    "#/format/elements/1/content/json_schema/not");
    grammar_machine *m = rig_machine(g);
    EXPECT(rig_accepts(m, "[1,1]<{\"a\":\"\",\"b\":1}>null"));
    EXPECT_EQ(rig_read(m, "[1,1,"), 4);
    EXPECT_EQ(rig_read(m, "[1]<{\"a\":1"), 9);
    EXPECT_EQ(rig_read(m, "[1]<{}>1"), 7);
    grammar_machine_release(m);
    json_decref(json);
    json_decref(weakened);
}

static const test_case cases[] = {
    TEST(what_can_be_enforced_is),
    TEST(one_keyword_goes_and_the_others_stay),
    TEST(malformed_keywords_go),
    TEST(keywords_that_depend_on_others_go_with_them),
    TEST(gates_go_first),
    TEST(a_negation_of_which_nothing_is_left_goes),
    TEST(references_that_lead_nowhere_go),
    TEST(a_root_that_lost_its_type_is_an_object),
    TEST(limits_are_met_by_one_keyword),
    TEST(limits_of_the_whole_leave_any_object),
    TEST(what_is_no_schema_is_refused),
    TEST(strict_schemas_are_not_weakened),
    TEST(schemas_of_tags_are_weakened),
};
TEST_MAIN(cases)
