/* test_schema.c - JSON Schemas as grammars: for each keyword, texts that are valid and texts that
 * are not, read byte by byte; what is refused, and the words of the refusal. */
#include "grammar_rig.h"

/* A schema with what it accepts and what it does not; in each, texts are apart by newlines. */
typedef struct row {
    const char *schema, *yes, *no;
} row;

static json_t *parse(const char *text) {
    json_error_t problem;
    json_t *tree = json_loads(text, JSON_DECODE_ANY, &problem);
    if (tree == NULL) printf("%s: %s\n", text, problem.text);
    EXPECT(tree != NULL);
    return tree;
}

static grammar_machine *machine_of(const char *schema, const grammar_schema_kind *kind) {
    json_t *tree = parse(schema);
    grammar *g = NULL;
    inferd_err err = {0};
    if (grammar_of_schema(tree, kind, NULL, &g, &err) != INFERD_OK) {
        printf("%s: %s\n", schema, err.text);
        test_failures++;
    }
    json_decref(tree);
    return rig_machine(g);
}

static void expect_texts(grammar_machine *m, const row *r, const char *texts, bool accepted) {
    char text[512];
    while (*texts != 0) {
        size_t n = strcspn(texts, "\n");
        snprintf(text, sizeof text, "%.*s", (int)n, texts);
        texts += n + (texts[n] == '\n');
        int at = rig_read(m, text);
        if ((at == -1) == accepted) continue;
        printf("%s: %s is %s", r->schema, text, accepted ? "rejected" : "accepted");
        if (accepted) printf(" at byte %d", at);
        printf("\n");
        test_failures++;
    }
}

static void expect_rows(const row *rows, size_t n) {
    for (size_t i = 0; i < n; i++) {
        grammar_machine *m = machine_of(rows[i].schema, NULL);
        if (m == NULL) continue;
        expect_texts(m, &rows[i], rows[i].yes, true);
        expect_texts(m, &rows[i], rows[i].no, false);
        grammar_machine_release(m);
    }
}
#define EXPECT_ROWS(rows) expect_rows(rows, INFERD_COUNT(rows))

/* ---- types and values ---- */

static void a_schema_without_keywords_is_any_json(void) {
    static const row rows[] = {
        {"true", "null\ntrue\n1.5e3\n\"a\"\n[]\n[1, [2]]\n{}\n{\"a\": {\"b\": []}}",
         "\nnul\n[1,]\n{a:1}\n01"},
        {"{}", "null\n{\"x\":1,\"y\":[{}]}", "]"},
        {"{\"title\":\"t\",\"default\":1,\"x-y\":{},\"$comment\":\"c\",\"readOnly\":true}",
         "null\n\"a\"", ""},
        {"{\"type\":\"object\"}", "{}\n{ \"a\" : [ ] }", "[]\n1"},
        {"{\"type\":\"null\"}", "null", "0\n\"null\""},
        {"{\"type\":[\"integer\",\"null\"]}", "null\n12\n-3", "1.5\n\"a\"\ntrue"},
        {"{\"type\":\"number\"}", "1\n-0.5\n1e9", "\"1\"\n.5\n1."},
        {"{\"type\":[\"string\",\"boolean\"]}", "true\nfalse\n\"\"", "1\nnull"},
    };
    EXPECT_ROWS(rows);
}

static void a_keyword_of_one_type_leaves_others_alone(void) {
    static const row rows[] = {
        {"{\"minLength\":3}", "\"abc\"\n1\n[]\nnull", "\"ab\"\n\"\""},
        {"{\"maximum\":3}", "3\n\"abc\"\n{}", "4"},
        {"{\"required\":[\"a\"]}", "{\"a\":1}\n[]\n1", "{}\n{\"b\":1}"},
        {"{\"maxItems\":1}", "[]\n[1]\n{\"a\":1}", "[1,2]"},
    };
    EXPECT_ROWS(rows);
}

static void enum_and_const_are_their_values(void) {
    static const row rows[] = {
        {"{\"enum\":[\"a\",\"b\\n\",1,null,true]}", "\"a\"\n\"b\\n\"\n1\nnull\ntrue",
         "\"b\"\n2\nfalse\n1.5"},
        {"{\"enum\":[\"a\",1],\"type\":\"string\"}", "\"a\"", "1"},
        {"{\"enum\":[1,5,9],\"minimum\":5}", "5\n9", "1"},
        {"{\"enum\":[\"ab\",\"abc\"],\"allOf\":[{\"maxLength\":2}]}", "\"ab\"", "\"abc\""},
        {"{\"const\":{\"a\":[1,{}]}}", "{\"a\":[1,{}]}\n{ \"a\" : [ 1 , { } ] }",
         "{\"a\":[1]}\n{}"},
        {"{\"const\":0.1}", "0.1", "0.10000000000000001\n0.2"},
        {"{\"const\":2.0}", "2.0\n2", "2.5"},
        {"{\"enum\":[[],[1]]}", "[]\n[1]", "[2]"},
    };
    EXPECT_ROWS(rows);
}

static void strings_have_length_pattern_and_format(void) {
    static const row rows[] = {
        {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
         "\"ab\"\n\"\u00e9\u00e9\u00e9\"\n\"\\u00e9a\"", "\"a\"\n\"abcd\""},
        {"{\"type\":\"string\",\"pattern\":\"^a+$\"}", "\"a\"\n\"aaa\"", "\"\"\n\"ab\""},
        {"{\"type\":\"string\",\"pattern\":\"b\"}", "\"abc\"", "\"ac\""},
        {"{\"type\":\"string\",\"pattern\":\"^a*$\",\"maxLength\":2,\"minLength\":1}",
         "\"a\"\n\"aa\"", "\"\"\n\"aaa\""},
        {"{\"type\":\"string\",\"pattern\":\"^[ab]*$\",\"allOf\":[{\"pattern\":\"ba\"}]}",
         "\"ba\"\n\"abab\"", "\"ab\"\n\"bac\""},
        {"{\"type\":\"string\",\"format\":\"date\"}", "\"2024-02-29\"", "\"2024-13-01\"\n\"x\""},
        {"{\"type\":\"string\",\"format\":\"uuid\"}", "\"123e4567-e89b-12d3-a456-426614174000\"",
         "\"123\""},
        {"{\"not\":{\"pattern\":\"a\"},\"type\":\"string\"}", "\"\"\n\"bcd\"", "\"a\"\n\"bab\""},
    };
    EXPECT_ROWS(rows);
}

static void numbers_have_bounds(void) {
    static const row rows[] = {
        {"{\"type\":\"integer\",\"minimum\":3,\"maximum\":12}", "3\n10\n12", "2\n13\n-5\n3.5"},
        {"{\"type\":\"integer\",\"exclusiveMinimum\":3,\"exclusiveMaximum\":5}", "4", "3\n5"},
        {"{\"type\":\"integer\",\"minimum\":3,\"exclusiveMinimum\":true}", "4", "3"},
        {"{\"type\":\"number\",\"minimum\":0.5}", "0.5\n0.75\n2", "0.25\n0\n-1"},
        {"{\"type\":\"integer\",\"multipleOf\":5}", "0\n25\n-10", "1\n12"},
        {"{\"type\":\"integer\",\"format\":\"int32\"}", "2147483647\n-2147483648", "2147483648"},
        {"{\"type\":\"integer\",\"format\":\"uint8\"}", "0\n255", "256\n-1"},
        {"{\"type\":\"integer\",\"allOf\":[{\"minimum\":2},{\"maximum\":4}]}", "2\n4", "1\n5"},
        {"{\"type\":\"integer\",\"minimum\":0,\"not\":{\"const\":3}}", "0\n2\n4\n33", "3"},
        {"{\"type\":\"integer\",\"not\":{\"multipleOf\":2}}", "1\n13", "2\n0\n10"},
        {"{\"type\":\"number\",\"not\":{\"type\":\"integer\"}}", "0.5", "1\n1.0"},
    };
    EXPECT_ROWS(rows);
}

/* ---- arrays ---- */

static void arrays_have_items(void) {
    static const row rows[] = {
        {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}", "[]\n[1]\n[ 1 , 2 ]",
         "[\"a\"]\n[1,]"},
        {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2,\"maxItems\":3}",
         "[1,2]\n[1,2,3]", "[]\n[1]\n[1,2,3,4]"},
        {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}]}",
         "[]\n[1]\n[1,\"a\"]\n[1,\"a\",null]", "[\"a\"]\n[1,2]"},
        {"{\"type\":\"array\",\"items\":[{\"type\":\"integer\"}],\"additionalItems\":false}",
         "[]\n[1]", "[1,2]"},
        {"{\"type\":\"array\",\"items\":[{\"type\":\"integer\"}],\"additionalItems\":{\"type\":"
         "\"null\"}}",
         "[1,null]", "[1,2]"},
        {"{\"type\":\"array\",\"items\":false}", "[]\n[ ]", "[1]"},
        {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"contains\":{\"minimum\":5}}",
         "[5]\n[1,2,7,1]\n[6,6]", "[]\n[1]\n[1,2]"},
        {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"contains\":{\"const\":5},"
         "\"maxItems\":2}",
         "[5]\n[1,5]\n[5,1]", "[1,1,5]\n[1]"},
        {"{\"type\":\"array\",\"items\":{\"enum\":[\"a\",\"b\",\"c\"]},\"uniqueItems\":true,"
         "\"minItems\":1}",
         "[\"a\"]\n[\"c\",\"a\"]\n[\"b\",\"a\",\"c\"]", "[]\n[\"a\",\"a\"]\n[\"a\",\"b\",\"a\"]"},
        {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"contains\":{\"minimum\":5},"
         "\"allOf\":[{\"contains\":{\"maximum\":7}}]}",
         "[5]\n[1,9]\n[9,1,3]\n[8,7]", "[]\n[1]\n[9]\n[1,2]\n[8,9]"},
        {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"string\"}],\"contains\":{\"type\":"
         "\"null\"},\"maxItems\":20}",
         "[\"a\",null]\n[\"a\",1,null]", "[]\n[\"a\"]\n[null]\n[\"a\",1]"},
        {"{\"type\":\"array\",\"uniqueItems\":true,\"maxItems\":1}", "[]\n[1]", "[1,2]"},
        {"{\"type\":\"array\",\"not\":{\"contains\":{\"const\":1}},\"items\":{\"enum\":[1,2]}}",
         "[]\n[2,2]", "[2,1]"},
    };
    EXPECT_ROWS(rows);
}

/* ---- objects ---- */

static void properties_come_in_order(void) {
    static const row rows[] = {
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{}},\"required\":"
         "[\"a\"]}",
         "{\"a\":1}\n{\"a\":1,\"b\":null}\n{\"a\":1,\"c\":2}",
         "{}\n{\"b\":1}\n{\"b\":1,\"a\":1}\n{\"a\":\"x\"}"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{}},\"required\":[\"z\"],"
         "\"additionalProperties\":{\"type\":\"null\"}}",
         "{\"z\":null}\n{\"a\":1,\"z\":null,\"k\":null}",
         "{\"a\":1}\n{\"z\":1}\n{\"k\":null,\"z\":null}"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{}},\"additionalProperties\":false}",
         "{}\n{\"a\":[]}", "{\"b\":1}\n{\"a\":1,\"b\":1}"},
        {"{\"type\":\"object\",\"properties\":{\"a\":false}}", "{}\n{\"b\":1}\n{\"aa\":1}",
         "{\"a\":1}"},
        {"{\"type\":\"object\",\"patternProperties\":{\"^x\":{\"type\":\"null\"}},"
         "\"additionalProperties\":false}",
         "{}\n{\"x1\":null,\"x\":null}", "{\"y\":null}\n{\"x\":1}"},
        {"{\"type\":\"object\",\"properties\":{\"xa\":{\"maximum\":3}},\"patternProperties\":{\"^"
         "x\":{\"type\":\"integer\"},"
         "\"y$\":{\"minimum\":2}}}",
         "{\"xa\":3}\n{\"xy\":2}\n{\"ay\":\"t\"}\n{\"k\":null}",
         "{\"xa\":4}\n{\"xa\":null}\n{\"xy\":1}\n{\"xb\":0.5}"},
        {"{\"type\":\"object\",\"propertyNames\":{\"pattern\":\"^a\"}}", "{}\n{\"ab\":1}",
         "{\"b\":1}"},
        {"{\"type\":\"object\",\"propertyNames\":{\"enum\":[\"k\",\"l\"]}}", "{\"l\":1,\"k\":2}",
         "{\"m\":1}"},
        {"{\"type\":\"object\",\"minProperties\":1}", "{\"a\":1}", "{}"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{}},\"additionalProperties\":false,"
         "\"minProperties\":2}",
         "{\"a\":1,\"b\":1}", "{\"a\":1}\n{\"b\":1}\n{}"},
        {"{\"type\":\"object\",\"maxProperties\":1}", "{}\n{\"a\":1}", "{\"a\":1,\"b\":1}"},
    };
    EXPECT_ROWS(rows);
}

static void needed_properties_come_together(void) {
    static const row rows[] = {
        {"{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{}},\"additionalProperties\":false,"
         "\"dependentRequired\":{\"a\":[\"b\"]}}",
         "{}\n{\"b\":1}\n{\"a\":1,\"b\":1}", "{\"a\":1}"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{}},\"dependencies\":{\"a\":{"
         "\"properties\":{\"b\":"
         "{\"type\":\"null\"}}}}}",
         "{\"b\":1}\n{\"a\":1,\"b\":null}\n{\"a\":1}", "{\"a\":1,\"b\":1}"},
    };
    EXPECT_ROWS(rows);
}

/* ---- combinations ---- */

static void merged_schemas_hold_at_once(void) {
    static const row rows[] = {
        {"{\"allOf\":[{\"type\":\"object\",\"properties\":{\"a\":{\"minimum\":2}}},{\"properties\":"
         "{\"a\":{\"type\":\"integer\"},"
         "\"b\":{}},\"required\":[\"a\"]}]}",
         "{\"a\":2}\n{\"a\":3,\"b\":1}\n{\"b\":1,\"a\":2}", "{}\n{\"a\":1}\n{\"a\":2.5}"},
        {"{\"properties\":{\"b\":{}},\"allOf\":[{\"properties\":{\"a\":{}}}],\"type\":\"object\"}",
         "{\"b\":1,\"a\":1}", "{\"a\":1,\"b\":1}x"},
        {"{\"$ref\":\"#/$defs/n\",\"maximum\":4,\"$defs\":{\"n\":{\"type\":\"integer\"}}}", "4\n-1",
         "5\n\"a\""},
        {"{\"type\":\"object\",\"additionalProperties\":false,\"properties\":{\"a\":{}},\"allOf\":["
         "{\"required\":[\"a\"]}]}",
         "{\"a\":1}", "{}\n{\"b\":1}"},
    };
    EXPECT_ROWS(rows);
}

static void one_branch_holds(void) {
    static const row rows[] = {
        {"{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"string\",\"maxLength\":1}]}", "1\n\"a\"",
         "\"ab\"\nnull"},
        {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"string\"}]}", "1\n\"a\"", "null"},
        {"{\"oneOf\":[{\"type\":\"integer\",\"minimum\":2},{\"type\":\"integer\",\"maximum\":5}]}",
         "1\n6\n-3", "2\n5\n3"},
        {"{\"type\":\"object\",\"oneOf\":[{\"properties\":{\"k\":{\"const\":\"a\"},\"x\":{\"type\":"
         "\"null\"}},\"required\":[\"k\"]},"
         "{\"properties\":{\"k\":{\"const\":\"b\"},\"y\":{}},\"required\":[\"k\"]}]}",
         "{\"k\":\"a\"}\n{\"k\":\"a\",\"x\":null}\n{\"k\":\"b\",\"y\":2}",
         "{}\n{\"k\":\"c\"}\n{\"k\":\"a\",\"x\":2}"},
        {"{\"type\":\"object\",\"oneOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}],"
         "\"properties\":{\"a\":{},\"b\":{}}}",
         "{\"a\":1}\n{\"b\":1}\n{\"b\":1,\"c\":1}", "{}\n{\"a\":1,\"b\":1}\n{\"c\":1}"},
        {"{\"type\":\"object\",\"oneOf\":[{\"properties\":{\"a\":{}},\"additionalProperties\":"
         "false},"
         "{\"properties\":{\"b\":{}},\"additionalProperties\":false}]}",
         "{\"a\":1}\n{\"b\":1}", "{}\n{\"c\":1}\n{\"a\":1,\"b\":1}"},
        {"{\"type\":\"object\",\"properties\":{\"b\":{}},\"anyOf\":[{\"required\":[\"b\"]},{"
         "\"required\":[\"c\"]}]}",
         "{\"b\":1}\n{\"c\":1}\n{\"b\":1,\"c\":1}", "{}\n{\"d\":1}"},
    };
    EXPECT_ROWS(rows);
}

static void conditions_are_cases(void) {
    static const row rows[] = {
        {"{\"type\":\"object\",\"properties\":{\"k\":{\"enum\":[1,2]},\"v\":{}},\"required\":["
         "\"k\"],\"additionalProperties\":false,"
         "\"if\":{\"properties\":{\"k\":{\"const\":1}}},\"then\":{\"required\":[\"v\"]},\"else\":{"
         "\"properties\":{\"v\":false}}}",
         "{\"k\":1,\"v\":0}\n{\"k\":2}", "{\"k\":1}\n{\"k\":2,\"v\":0}"},
        {"{\"type\":\"integer\",\"if\":{\"minimum\":10},\"then\":{\"multipleOf\":5}}", "3\n15",
         "12"},
    };
    EXPECT_ROWS(rows);
}

static void negations_are_exact(void) {
    static const row rows[] = {
        {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"not\":{\"prefixItems\":[{"
         "\"const\":1},false,false]}}",
         "[2]\n[2,3]\n[1,3]", "[]\n[1]"},
        {"{\"type\":\"array\",\"items\":{\"enum\":[1,2]},\"not\":{\"const\":[1,2]}}",
         "[]\n[1]\n[1,1]\n[2,2]\n[1,2,1]", "[1,2]"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"enum\":[1,2]}},\"additionalProperties\":"
         "false,\"not\":{\"enum\":[{\"a\":1}]}}",
         "{}\n{\"a\":2}", "{\"a\":1}"},
        {"{\"type\":\"object\",\"not\":{\"propertyNames\":{\"not\":{\"const\":\"k\"}}}}",
         "{\"k\":1}\n{\"k\":1,\"l\":1}", "{}\n{\"l\":1}"},
        {"{\"not\":{\"type\":\"string\"}}", "1\nnull\n[\"a\"]", "\"a\""},
        {"{\"type\":[\"string\",\"null\",\"boolean\"],\"not\":{\"enum\":[\"a\",\"bc\",null,true]}}",
         "\"b\"\n\"bcd\"\nfalse", "\"a\"\n\"bc\"\nnull\ntrue"},
        {"{\"type\":\"object\",\"not\":{\"required\":[\"a\"]}}", "{}\n{\"b\":1}",
         "{\"a\":1}\n{\"b\":1,\"a\":1}"},
        {"{\"type\":\"object\",\"not\":{\"required\":[\"a\",\"b\"]},\"properties\":{\"a\":{},\"b\":"
         "{}}}",
         "{\"a\":1}\n{\"b\":1}", "{\"a\":1,\"b\":1}"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},\"not\":{"
         "\"properties\":{\"a\":{\"minimum\":3}}}}",
         "{\"a\":2}", "{}\n{\"a\":3}"},
        {"{\"not\":{\"not\":{\"type\":\"null\"}}}", "null", "1"},
        {"{\"not\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"number\"}]},\"type\":[\"string\","
         "\"number\",\"null\"]}",
         "null", "1\n\"a\""},
        {"{\"type\":\"string\",\"not\":{\"minLength\":2}}", "\"\"\n\"a\"", "\"ab\""},
    };
    EXPECT_ROWS(rows);
}

static void references_are_followed(void) {
    static const row rows[] = {
        {"{\"$defs\":{\"t\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},"
         "\"next\":{\"$ref\":\"#/$defs/t\"}},"
         "\"required\":[\"v\"],\"additionalProperties\":false}},\"$ref\":\"#/$defs/t\"}",
         "{\"v\":1}\n{\"v\":1,\"next\":{\"v\":2,\"next\":{\"v\":3}}}",
         "{}\n{\"v\":1,\"next\":{}}\n{\"v\":1,\"next\":null}"},
        {"{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}", "[]\n[[],[[]]]", "[1]"},
        {"{\"type\":\"array\",\"items\":{\"$recursiveRef\":\"#\"}}", "[]\n[[],[[]]]", "[1]"},
        {"{\"definitions\":{\"a/"
         "b\":{\"type\":\"null\"},\"c%d\":{\"const\":1}},\"anyOf\":[{\"$ref\":\"#/definitions/"
         "a~1b\"},"
         "{\"$ref\":\"#/definitions/c%25d\"}]}",
         "null\n1", "2"},
        // Beside a $ref of draft 7 an $id is no base.
        {"{\"$schema\":\"http://json-schema.org/draft-07/schema#\",\"$id\":\"http://h/a/\","
         "\"definitions\":{\"x\":{\"$id\":\"http://h/c\",\"type\":\"string\"},"
         "\"y\":{\"$id\":\"c\",\"type\":\"null\"}},"
         "\"allOf\":[{\"$id\":\"http://h/\",\"$ref\":\"c\"}]}",
         "null", "\"a\""},
        {"{\"$defs\":{\"x\":{\"$anchor\":\"here\",\"type\":\"null\"}},\"$ref\":\"#here\"}", "null",
         "1"},
        {"{\"$id\":\"http://h/"
         "a.json\",\"$defs\":{\"x\":{\"$id\":\"b.json\",\"$defs\":{\"y\":{\"type\":\"null\"}},"
         "\"$ref\":\"#/$defs/y\"}},\"$ref\":\"http://h/b.json\"}",
         "null", "1"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#/properties/"
         "b\"},\"b\":{\"type\":\"null\"}}}",
         "{\"a\":null}", "{\"a\":1}"},
    };
    EXPECT_ROWS(rows);
}

/* In draft 7 validators ignore siblings of $ref; what is accepted is valid with and without them.
 */
static void siblings_of_a_reference_count_in_old_drafts(void) {
    static const row rows[] = {
        {"{\"$schema\":\"http://json-schema.org/draft-07/"
         "schema#\",\"definitions\":{\"n\":{\"type\":\"integer\"}},"
         "\"properties\":{\"a\":{\"$ref\":\"#/definitions/n\",\"minimum\":3}},\"type\":\"object\"}",
         "{\"a\":3}", "{\"a\":2}\n{\"a\":\"x\"}"},
        {"{\"$schema\":\"http://json-schema.org/draft-07/"
         "schema#\",\"definitions\":{\"n\":{\"type\":\"integer\"}},"
         "\"type\":[\"integer\",\"string\"],\"not\":{\"$ref\":\"#/definitions/n\",\"minimum\":3}}",
         "\"a\"", "2\n3"},
    };
    EXPECT_ROWS(rows);
}

static void white_space_is_bounded_or_absent(void) {
    static const row loose = {
        "{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2}",
        "[1,2]\n[ 1, 2 ]\n[\t1 ,  2]", "[1, 2] \n[                     1,2]"};
    static const row tight = {"{\"type\":\"object\",\"properties\":{\"a\":{}}}", "{\"a\":[1,2]}",
                              "{ \"a\":1}\n{\"a\": 1}"};
    static const grammar_schema_kind compact = {.compact = true};
    grammar_machine *m = machine_of(loose.schema, NULL);
    expect_texts(m, &loose, loose.yes, true);
    expect_texts(m, &loose, loose.no, false);
    grammar_machine_release(m);
    m = machine_of(tight.schema, &compact);
    expect_texts(m, &tight, tight.yes, true);
    expect_texts(m, &tight, tight.no, false);
    grammar_machine_release(m);
}

/* The text is the one that Python's json.dumps writes, also of what a schema lists. */
static void white_space_can_be_as_python_writes_it(void) {
    static const row rows[] = {
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"array\"},\"b\":{\"type\":"
         "\"object\"}}}",
         "{\"a\": [1, {\"x\": []}], \"b\": {}}\n{}\n{\"b\": {\"x\": 1, \"y\": 2}}",
         "{\"a\":[]}\n{ \"a\": []}\n{\"a\": [1,2]}\n{\"a\": [] , \"b\": {}}\n{\"a\": [], \"b\": {} "
         "}"},
        {"{\"enum\":[{\"a\":[1,2],\"b\":3}]}", "{\"a\": [1, 2], \"b\": 3}",
         "{\"a\":[1,2],\"b\":3}"},
        {"{\"type\":\"array\",\"contains\":{\"const\":1},\"items\":{\"type\":\"integer\"}}",
         "[2, 1]\n[1]", "[2,1]\n[ 1]"},
    };
    static const grammar_schema_kind spaced = {.spaced = true};
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        grammar_machine *m = machine_of(rows[i].schema, &spaced);
        expect_texts(m, &rows[i], rows[i].yes, true);
        expect_texts(m, &rows[i], rows[i].no, false);
        grammar_machine_release(m);
    }
}

/* A name is begun only if its value can be written, here by no text. */
static void no_name_is_begun_in_vain(void) {
    grammar_machine *m =
        machine_of("{\"type\":\"object\",\"additionalProperties\":{\"type\":\"object\","
                   "\"required\":[\"a\",\"b\"],\"maxProperties\":1}}",
                   NULL);
    EXPECT_EQ(rig_read(m, "{\"x"), 1);
    EXPECT_EQ(rig_read(m, "{}"), -1);
    grammar_machine_release(m);
}

/* Merged schemas never have an order (docs/structured-output.md); others have one if it is not
 * waived. */
static void properties_come_in_order_if_it_is_not_waived(void) {
#define FOUR                                                                                       \
    "{\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"null\"}},"                    \
    "\"required\":[\"b\",\"c\"],\"additionalProperties\":{\"type\":\"boolean\"}"
    static const row one = {FOUR ",\"type\":\"object\",\"maxProperties\":4}",
                            "{\"a\":1,\"b\":null,\"c\":true,\"d\":true}\n{\"b\":null,\"c\":true}",
                            "{\"b\":null,\"a\":1,\"c\":true}\n{\"c\":true,\"b\":null}\n"
                            "{\"b\":null,\"d\":true,\"c\":true}"};
    static const char also[] = "{\"b\":null,\"a\":1,\"c\":true}\n{\"c\":true,\"b\":null}\n"
                               "{\"d\":true,\"c\":true,\"a\":7,\"b\":null}",
                      never[] = "{\"c\":true}\n{\"b\":null,\"b\":null}\n{\"c\":true,\"b\":1}\n"
                                "{\"d\":true,\"c\":true,\"a\":7,\"e\":true}\n{\"b\":null,\"a\":1}";
#undef FOUR
    static const grammar_schema_kind any = {.any_order = true};
    grammar_machine *m = machine_of(one.schema, NULL);
    expect_texts(m, &one, one.yes, true);
    expect_texts(m, &one, one.no, false);
    expect_texts(m, &one, never, false);
    grammar_machine_release(m);
    m = machine_of(one.schema, &any);
    expect_texts(m, &one, one.yes, true);
    expect_texts(m, &one, also, true);
    expect_texts(m, &one, never, false);
    grammar_machine_release(m);
}

/* ---- refusals ---- */

typedef struct refusal {
    const char *schema;
    inferd_status status;
    const char *words;
} refusal;

static void expect_refusals(const refusal *rows, size_t n, const grammar_schema_kind *kind) {
    for (size_t i = 0; i < n; i++) {
        json_t *tree = parse(rows[i].schema);
        grammar *g = NULL;
        inferd_err err = {0};
        inferd_status s = grammar_of_schema(tree, kind, NULL, &g, &err);
        if (s != rows[i].status || strstr(err.text, rows[i].words) == NULL) {
            printf("%s: status %d, \"%s\"; expected %d, \"%s\"\n", rows[i].schema, s, err.text,
                   rows[i].status, rows[i].words);
            test_failures++;
        }
        grammar_release(g);
        json_decref(tree);
    }
}

static void what_cannot_be_enforced_is_refused(void) {
    static const refusal rows[] = {
        {"{\"properties\":{\"a\":{\"uniqueItems\":true,\"type\":\"array\"}}}", INFERD_EUNSUPPORTED,
         "\"uniqueItems\" at #/properties/a cannot be enforced"},
        {"{\"items\":{\"pattern\":\"(?=a)\"}}", INFERD_EUNSUPPORTED,
         "\"pattern\" at #/items cannot be enforced"},
        {"{\"type\":\"string\",\"format\":\"moon-phase\"}", INFERD_EUNSUPPORTED, "moon-phase"},
        {"{\"$ref\":\"http://example.com/x.json\"}", INFERD_EUNSUPPORTED, "not in this document"},
        {"{\"$defs\":{\"x\":{\"$id\":\"b\",\"$dynamicAnchor\":\"n\"}},\"$dynamicRef\":\"#n\",\"$"
         "dynamicAnchor\":\"n\"}",
         INFERD_EUNSUPPORTED, "\"$dynamicRef\" at #"},
        {"{\"type\":\"object\",\"minProperties\":3}", INFERD_EUNSUPPORTED,
         "\"minProperties\" at #"},
        {"{\"allOf\":[{\"unevaluatedProperties\":false,\"anyOf\":[{}]}]}", INFERD_EUNSUPPORTED,
         "\"unevaluatedProperties\" at #/allOf/0"},
        {"{\"type\":\"object\",\"not\":{\"additionalProperties\":false}}", INFERD_EUNSUPPORTED,
         "\"not\" at #/not"},
    };
    expect_refusals(rows, INFERD_COUNT(rows), NULL);
}

static void what_is_no_schema_is_invalid(void) {
    static const refusal rows[] = {
        {"3", INFERD_EINVAL, "a schema is an object or a boolean"},
        {"{\"type\":\"text\"}", INFERD_EINVAL, "\"type\" at # names no type: \"text\""},
        {"{\"properties\":{\"a~/b\":{\"minLength\":-1}}}", INFERD_EINVAL,
         "\"minLength\" at #/properties/a~0~1b"},
        {"{\"items\":3}", INFERD_EINVAL, "a schema is an object or a boolean"},
        {"{\"$ref\":\"#/a\"}", INFERD_EINVAL, "leads nowhere"},
        {"{\"$ref\":\"#\"}", INFERD_EINVAL, "refers to itself"},
        {"{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}", INFERD_EINVAL, "refers to itself"},
        {"{\"not\":{\"$ref\":\"#\"}}", INFERD_EINVAL, "no value can be valid"},
        {"false", INFERD_EINVAL, "no value can be valid"},
        {"{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}", INFERD_EINVAL,
         "no value can be valid"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{}},\"additionalProperties\":false,"
         "\"minProperties\":2}",
         INFERD_EINVAL, "no value can be valid"},
        {"{\"type\":\"object\",\"required\":[\"a\"],\"additionalProperties\":false}", INFERD_EINVAL,
         "no value can be valid"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}",
         INFERD_EINVAL, "no text"},
    };
    expect_refusals(rows, INFERD_COUNT(rows), NULL);
}

static void the_strict_profile_has_more_rules(void) {
    static const grammar_schema_kind strict = {.strict = true};
    static const refusal rows[] = {
        {"{\"type\":\"array\"}", INFERD_EINVAL, "\"type\" at # must be \"object\""},
        {"{\"anyOf\":[{\"type\":\"object\"}]}", INFERD_EINVAL, "\"anyOf\" at # is not allowed"},
        {"{\"type\":\"object\",\"properties\":{}}", INFERD_EINVAL,
         "\"additionalProperties\" at # must be false"},
        {"{\"type\":\"object\",\"additionalProperties\":false,\"properties\":{\"a\":{}},"
         "\"required\":[]}",
         INFERD_EINVAL,
         "\"required\" at # must have every property in a strict schema, and \"a\" is not there"},
        {"{\"type\":\"object\",\"additionalProperties\":false,\"properties\":{\"a\":{\"allOf\":[]}}"
         ",\"required\":[\"a\"]}",
         INFERD_EINVAL, "\"allOf\" at #/properties/a is not allowed in a strict schema"},
        {"{\"type\":\"object\",\"additionalProperties\":false,\"properties\":{\"a\":{\"items\":{"
         "\"type\":\"object\"}}},"
         "\"required\":[\"a\"]}",
         INFERD_EINVAL, "\"additionalProperties\" at #/properties/a/items must be false"},
    };
    expect_refusals(rows, INFERD_COUNT(rows), &strict);
    grammar_machine *m = machine_of(
        "{\"type\":\"object\",\"additionalProperties\":false,\"properties\":{\"a\":{\"anyOf\":["
        "{\"type\":\"null\"},{\"type\":\"string\"}]}},\"required\":[\"a\"]}",
        &strict);
    EXPECT(rig_accepts(m, "{\"a\":null}"));
    EXPECT(!rig_accepts(m, "{}"));
    grammar_machine_release(m);
}

static void nesting_is_bounded(void) {
    char text[2048] = "";
    for (int i = 0; i < 70; i++) strcat(text, "{\"items\":");
    strcat(text, "{}");
    for (int i = 0; i < 70; i++) strcat(text, "}");
    const refusal deep = {text, INFERD_ETOOLONG, "schema_depth_max"};
    expect_refusals(&deep, 1, NULL);
}

/* 40 branches that are told apart by a required property each were 2^39 cases once. */
static void a_one_of_with_many_branches_compiles_soon(void) {
    json_t *schema = json_pack("{s:s, s:[]}", "type", "object", "oneOf");
    json_t *branches = json_object_get(schema, "oneOf");
    for (int i = 0; i < 40; i++) {
        char name[8];
        snprintf(name, sizeof name, "n%d", i);
        json_array_append_new(branches, json_pack("{s:{s:{s:s}}, s:[s]}", "properties", name,
                                                  "type", "integer", "required", name));
    }
    grammar *g = NULL;
    inferd_err err = {0};
    EXPECT_EQ(grammar_of_schema(schema, NULL, NULL, &g, &err), INFERD_OK);
    grammar_machine *m = rig_machine(g);
    if (m != NULL) {
        EXPECT(rig_accepts(m, "{\"n7\":1}"));
        EXPECT(rig_accepts(m, "{\"n0\":1}"));
        EXPECT(!rig_accepts(m, "{\"n7\":1,\"n8\":1}"));
        EXPECT(!rig_accepts(m, "{}"));
    }
    grammar_machine_release(m);
    json_decref(schema);
}

static void any_json_is_a_grammar(void) {
    grammar *g = NULL;
    EXPECT_EQ(grammar_of_json(NULL, false, &g, NULL), INFERD_OK);
    grammar_machine *m = rig_machine(g);
    EXPECT(rig_accepts(m, "[1,{\"a\":null}]"));
    EXPECT(rig_accepts(m, "\"\\u12aB\""));
    grammar_machine_release(m);
    EXPECT_EQ(grammar_of_json(NULL, true, &g, NULL), INFERD_OK);
    m = rig_machine(g);
    EXPECT(rig_accepts(m, "{\"a\":[1]}"));
    EXPECT(!rig_accepts(m, "[1]"));
    grammar_machine_release(m);
}

static const test_case tests[] = {
    TEST(a_schema_without_keywords_is_any_json),
    TEST(a_keyword_of_one_type_leaves_others_alone),
    TEST(enum_and_const_are_their_values),
    TEST(strings_have_length_pattern_and_format),
    TEST(numbers_have_bounds),
    TEST(arrays_have_items),
    TEST(properties_come_in_order),
    TEST(needed_properties_come_together),
    TEST(merged_schemas_hold_at_once),
    TEST(one_branch_holds),
    TEST(conditions_are_cases),
    TEST(negations_are_exact),
    TEST(references_are_followed),
    TEST(siblings_of_a_reference_count_in_old_drafts),
    TEST(white_space_is_bounded_or_absent),
    TEST(white_space_can_be_as_python_writes_it),
    TEST(properties_come_in_order_if_it_is_not_waived),
    TEST(no_name_is_begun_in_vain),
    TEST(what_cannot_be_enforced_is_refused),
    TEST(what_is_no_schema_is_invalid),
    TEST(the_strict_profile_has_more_rules),
    TEST(nesting_is_bounded),
    TEST(a_one_of_with_many_branches_compiles_soon),
    TEST(any_json_is_a_grammar),
};
TEST_MAIN(tests)
