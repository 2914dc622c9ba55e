/* The graph of a grammar and its machine: what texts are read, and what is shared. */
#include "grammar/ir.h"
#include "grammar_rig.h"

static bytes text(const char *s) {
    return (bytes){s, strlen(s)};
}

static grammar_machine *finish(ir *g, ir_node root) {
    inferd_err err = {0};
    grammar *out = NULL;
    inferd_status s = ir_finish(g, root, NULL, &out, &err);
    if (s != INFERD_OK) printf("%s\n", err.text);
    EXPECT(s == INFERD_OK);
    return rig_machine(out);
}

static ir_node digits(ir *g) {
    dfa d = {0};
    dfa_limits limits = dfa_limits_default;
    EXPECT(regex_compile(text("[0-9]+"), REGEX_TEXT, &limits, &d, NULL) == INFERD_OK);
    return ir_term(g, &d);
}

static void sequences_alternatives_and_repeats_are_read(void) {
    ir *g = ir_create(NULL);
    ir_node ab = ir_alt(g, (ir_node[]){ir_literal(g, text("ab")), ir_literal(g, text("a"))}, 2);
    ir_node many = ir_repeat(g, ab, ir_literal(g, text(";x")), 2, 3);
    grammar_machine *m = finish(g, many);
    EXPECT(rig_accepts(m, "ab;x"));
    EXPECT(rig_accepts(m, "a;x;x"));
    EXPECT(!rig_accepts(m, "ab"));
    EXPECT_EQ(rig_read(m, "a;x;x;x"), 5);
    EXPECT_EQ(rig_read(m, "b"), 0);
    grammar_machine_release(m);
}

static void a_large_count_is_a_number_on_the_stack(void) {
    ir *g = ir_create(NULL);
    ir_node a = ir_literal(g, text("a"));
    grammar_machine *m = finish(g, ir_repeat(g, a, a, 1000, 100000));
    char many[2001] = {0};
    memset(many, 'a', 2000);
    EXPECT(rig_accepts(m, many));
    many[999] = 0;
    EXPECT_EQ(rig_read(m, many), 999);
    grammar_machine_release(m);
}

static void recursion_nests_up_to_the_stack(void) {
    grammar_limits limits = grammar_limits_default;
    limits.stack_max = 16;
    ir *g = ir_create(&limits);
    uint32_t rule = ir_rule(g);
    ir_node open = ir_literal(g, text("(")), close = ir_literal(g, text(")"));
    ir_node inner = ir_seq(g, (ir_node[]){open, ir_ref(g, rule), close}, 3);
    ir_rule_set(g, rule, ir_alt(g, (ir_node[]){IR_EMPTY, inner}, 2));
    grammar_machine *m = finish(g, ir_ref(g, rule));
    EXPECT(rig_accepts(m, "((()))"));
    EXPECT(!rig_accepts(m, "((())"));
    EXPECT_EQ(rig_read(m, "(((((((((((((((((((("), 16);
    grammar_machine_release(m);
}

static void recursion_at_the_end_does_not_nest(void) {
    grammar_limits limits = grammar_limits_default;
    limits.stack_max = 4;
    ir *g = ir_create(&limits);
    uint32_t rule = ir_rule(g);
    ir_node a = ir_literal(g, text("a"));
    ir_rule_set(g, rule,
                ir_alt(g, (ir_node[]){a, ir_seq(g, (ir_node[]){a, ir_ref(g, rule)}, 2)}, 2));
    grammar_machine *m = finish(g, ir_ref(g, rule));
    EXPECT(rig_accepts(m, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"));
    grammar_machine_release(m);
}

/* Reads bytes of the masks at random, those that nest first: there is always one, or the end. */
static void walk_deep(grammar_machine *m, unsigned seed) {
    grammar_pos p = grammar_start(m);
    for (int n = 0; n < 400 && !grammar_must_end(m, p); n++) {
        grammar_mask *mask = grammar_mask_get(m, p, NULL);
        EXPECT(mask != NULL);
        if (mask == NULL) break;
        int allowed[257], n_allowed = 0, n_deep = 0;
        for (int b = 0; b <= RIG_END_ID; b++) {
            if (!grammar_mask_has(mask, b)) continue;
            allowed[n_allowed++] = b;
            if (b < 256 && strchr("{[(\"x:,", b) != NULL) allowed[n_deep++] = b;
        }
        grammar_mask_release(mask);
        if (n_allowed == 0) printf("seed %u: nothing may follow byte %d\n", seed, n);
        EXPECT(n_allowed > 0);
        if (n_allowed == 0) break;
        seed = seed * 1664525 + 1013904223;
        int of = n_deep > 0 && (seed >> 28) < 12 ? n_deep : n_allowed;
        int b = allowed[(seed >> 8) % (unsigned)of];
        if (b == RIG_END_ID) break;
        EXPECT(grammar_accept(m, p, b, NULL));
    }
    buf rest = {0};
    EXPECT(grammar_complete(m, p, 4000, &rest));
    buf_deinit(&rest);
    grammar_drop(m, p);
}

static void no_text_is_begun_that_the_stack_cannot_end(void) {
    static const char *const schemas[] = {
        "{\"type\":\"object\",\"properties\":{\"x\":{\"$ref\":\"#\"},\"s\":{\"type\":\"string\","
        "\"minLength\":2}},\"required\":[\"s\"],\"additionalProperties\":false}",
        "{\"type\":\"object\",\"patternProperties\":{\"^x\":{\"$ref\":\"#\"}},"
        "\"additionalProperties\":{\"type\":\"integer\"},\"minProperties\":1}",
        "{\"type\":\"object\",\"properties\":{\"x\":{\"$ref\":\"#\"},\"y\":{\"$ref\":\"#\"},"
        "\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"array\",\"items\":{\"type\":\"string\","
        "\"maxLength\":3},\"minItems\":2}},\"minProperties\":2,\"additionalProperties\":false}"};
    for (size_t i = 0; i <= INFERD_COUNT(schemas); i++)
        for (uint32_t stack_max = 1; stack_max < 12; stack_max++) {
            grammar_limits limits = grammar_limits_default;
            grammar_options options = {.limits = &limits};
            grammar_schema_kind kind = {.compact = true};
            limits.stack_max = stack_max;
            grammar *g = NULL;
            inferd_err err = {0};
            json_t *schema = i > 0 ? json_loads(schemas[i - 1], 0, NULL) : NULL;
            inferd_status s = i > 0
                                  ? grammar_of_schema(schema, &kind, &options, &g, &err)
                                  : grammar_of_gbnf(text("root ::= \"(\" \"x\" item{2} \")\"\n"
                                                         "item ::= \"[\" item \"]\" | \"a\" q{3}\n"
                                                         "q ::= \"b\" | \"(\" q \")\""),
                                                    &options, &g, &err);
            json_decref(schema);
            if (s != INFERD_OK) EXPECT(strstr(err.text, "stack_max") != NULL && stack_max < 5);
            if (s != INFERD_OK) continue;
            grammar_machine *m = rig_machine(g);
            for (unsigned seed = 1; seed <= 8; seed++) walk_deep(m, seed);
            grammar_machine_release(m);
        }
}

static void a_count_of_properties_that_are_not_there_is_refused(void) {
    ir *g = ir_create(NULL);
    grammar *out = NULL;
    ir_property one = {.name = text("a"), .value = digits(g)};
    ir_object_spec spec = {.properties = &one, .n_properties = 1, .min = 2, .max = IR_NO_MAX};
    EXPECT(ir_finish(g, ir_object(g, &spec), NULL, &out, NULL) == INFERD_EINVAL);
}

/* Neither takes time that grows with the square of the graph. */
static void large_graphs_are_measured_quickly(void) {
    enum { N = 100000 };
    ir *g = ir_create(NULL);
    uint32_t rule = ir_rule(g);
    ir_node open = ir_literal(g, text("(")), close = ir_literal(g, text(")"));
    ir_node nested = ir_seq(g, (ir_node[]){open, ir_ref(g, rule), close}, 3);
    ir_rule_set(g, rule, ir_alt(g, (ir_node[]){IR_EMPTY, nested}, 2));
    ir_node *many = malloc(N * sizeof *many);
    for (int i = 0; i < N; i++) many[i] = ir_ref(g, rule);
    grammar *out = NULL;
    EXPECT(ir_finish(g, ir_seq(g, many, N), NULL, &out, NULL) == INFERD_OK);
    grammar_release(out);
    free(many);

    g = ir_create(NULL); // each rule is the one behind it
    uint32_t first = ir_rule(g);
    for (uint32_t i = 1; i < N / 2; i++) ir_rule(g);
    for (uint32_t i = 0; i + 1 < N / 2; i++) ir_rule_set(g, first + i, ir_ref(g, first + i + 1));
    ir_rule_set(g, first + N / 2 - 1, ir_literal(g, text("x")));
    grammar_machine *m = finish(g, ir_ref(g, first));
    EXPECT(rig_accepts(m, "x"));
    grammar_machine_release(m);
}

static void what_produces_no_text_is_refused_or_left_out(void) {
    inferd_err err = {0};
    grammar *out = NULL;
    ir *g = ir_create(NULL);
    uint32_t rule = ir_rule(g);
    ir_node a = ir_literal(g, text("a"));
    ir_rule_set(g, rule, ir_seq(g, (ir_node[]){a, ir_ref(g, rule)}, 2)); // never ends
    EXPECT_EQ(ir_finish(g, ir_ref(g, rule), NULL, &out, &err), INFERD_EINVAL);

    g = ir_create(NULL);
    rule = ir_rule(g);
    a = ir_literal(g, text("a"));
    ir_rule_set(g, rule, ir_seq(g, (ir_node[]){a, ir_ref(g, rule)}, 2));
    ir_node b = ir_literal(g, text("b"));
    grammar_machine *m = finish(g, ir_alt(g, (ir_node[]){ir_ref(g, rule), b}, 2));
    EXPECT_EQ(rig_read(m, "a"), 0);
    EXPECT(rig_accepts(m, "b"));
    grammar_machine_release(m);
}

static void left_recursion_is_refused(void) {
    inferd_err err = {0};
    grammar *out = NULL;
    ir *g = ir_create(NULL);
    uint32_t rule = ir_rule(g);
    ir_node a = ir_literal(g, text("a"));
    ir_node maybe = ir_alt(g, (ir_node[]){IR_EMPTY, a}, 2);
    ir_node left = ir_seq(g, (ir_node[]){maybe, ir_ref(g, rule), a}, 3);
    ir_rule_set(g, rule, ir_alt(g, (ir_node[]){left, a}, 2));
    EXPECT_EQ(ir_finish(g, ir_ref(g, rule), NULL, &out, &err), INFERD_EUNSUPPORTED);
    EXPECT(strstr(err.text, "left recursion") != NULL);
}

static void strings_have_lengths_in_code_points(void) {
    ir *g = ir_create(NULL);
    grammar_machine *m = finish(g, ir_string(g, 2, 3));
    EXPECT(rig_accepts(m, "\"ab\""));
    EXPECT(rig_accepts(m, "\"\xc3\xa4\xf0\x9f\x98\x80\\n\""));
    EXPECT(rig_accepts(m, "\"\\ud83d\\ude00a\"")); // a pair is one code point
    EXPECT(!rig_accepts(m, "\"\\ud83d\\ude00\""));
    EXPECT_EQ(rig_read(m, "\"a\""), 2);
    EXPECT_EQ(rig_read(m, "\"abcd\""), 4);
    EXPECT_EQ(rig_read(m, "\"\\ud83dx"), 7); // a surrogate alone
    EXPECT_EQ(rig_read(m, "\"\xc0\x80"), 1);
    EXPECT_EQ(rig_read(m, "\"\n"), 1);
    grammar_machine_release(m);

    g = ir_create(NULL);
    m = finish(g, ir_string(g, 0, IR_NO_MAX));
    EXPECT(rig_accepts(m, "\"\""));
    EXPECT(rig_accepts(m, "\"a\\\"\\\\ \\u00e4\""));
    grammar_machine_release(m);
}

static ir_node make_object(ir *g, uint32_t min, uint32_t max, bool others) {
    ir_node n = digits(g);
    ir_property p[] = {{text("id"), true, n},
                       {text("ids"), false, n},
                       {text("name"), false, ir_string(g, 0, IR_NO_MAX)}};
    dfa names = {0};
    dfa_limits limits = dfa_limits_default;
    ir_object_spec spec = {.properties = p, .n_properties = 3, .min = min, .max = max};
    ir_node value = ir_literal(g, text("true"));
    if (others) {
        EXPECT(dfa_of_json_lengths(0, UINT32_MAX, &limits, &names, NULL) == INFERD_OK);
        spec.others = &names;
        spec.other_values = &value;
        spec.n_other_values = 1;
    }
    return ir_object(g, &spec);
}

static void properties_come_in_order(void) {
    ir *g = ir_create(NULL);
    grammar_machine *m = finish(g, make_object(g, 0, IR_NO_MAX, false));
    EXPECT(rig_accepts(m, "{\"id\":1}"));
    EXPECT(rig_accepts(m, "{ \"id\" : 1, \"ids\": 2 , \"name\":\"x\" }"));
    EXPECT(rig_accepts(m, "{\"id\":1,\"name\":\"x\"}"));
    EXPECT_EQ(rig_read(m, "{}"), 1);
    EXPECT_EQ(rig_read(m, "{\"ids\":1}"), 4); // id is required first
    EXPECT_EQ(rig_read(m, "{\"id\":1,\"id\":2}"), 11);
    EXPECT_EQ(rig_read(m, "{\"id\":1,\"x\":2}"), 9);
    EXPECT_EQ(rig_read(m, "{\"id\":1,}"), 8);
    EXPECT_EQ(rig_read(m, "{                     }"), 21); // 20 bytes of white space
    grammar_machine_release(m);
}

static void other_properties_come_behind_and_are_never_declared_ones(void) {
    ir *g = ir_create(NULL);
    grammar_machine *m = finish(g, make_object(g, 0, IR_NO_MAX, true));
    EXPECT(rig_accepts(m, "{\"id\":1,\"x\":true,\"idsx\":true,\"\\\"\":true}"));
    EXPECT(rig_accepts(m, "{\"id\":1,\"ids\":3,\"i\":true}"));
    EXPECT(!rig_accepts(m, "{\"id\":1,\"x\":true,\"ids\":3}")); // behind another
    EXPECT(!rig_accepts(m, "{\"id\":1,\"x\":true,\"id\":true}"));
    EXPECT(!rig_accepts(m, "{\"id\":1,\"name\":true}"));
    EXPECT(!rig_accepts(m, "{\"x\":true,\"id\":1}"));
    EXPECT(!rig_accepts(m, "{\"id\":1,\"x\":1}"));
    grammar_machine_release(m);
}

static void numbers_of_properties_are_kept(void) {
    ir *g = ir_create(NULL);
    grammar_machine *m = finish(g, make_object(g, 2, 2, false));
    EXPECT(rig_accepts(m, "{\"id\":1,\"ids\":2}"));
    EXPECT(!rig_accepts(m, "{\"id\":1}"));
    EXPECT_EQ(rig_read(m, "{\"id\":1,\"ids\":2,"), 15);
    grammar_machine_release(m);
    g = ir_create(NULL);
    m = finish(g, make_object(g, 3, IR_NO_MAX, false));
    EXPECT_EQ(rig_read(m, "{\"id\":1,\"name\":\"x\"}"), 9); // ids would be left out
    grammar_machine_release(m);
}

static void arrays_have_prefixes_and_bounds(void) {
    ir *g = ir_create(NULL);
    ir_node prefix[] = {ir_literal(g, text("a")), ir_literal(g, text("b"))};
    grammar_machine *m = finish(g, ir_array(g, prefix, 2, ir_literal(g, text("c")), 1, 4));
    const char *good[] = {"[a]", "[ a , b ]", "[a,b,c]", "[a,b,c,c]"};
    const char *bad[] = {"[]", "[a,c]", "[b]", "[a,b,c,c,c]", "[a,]"};
    for (size_t i = 0; i < INFERD_COUNT(good); i++) EXPECT(rig_accepts(m, good[i]));
    for (size_t i = 0; i < INFERD_COUNT(bad); i++) EXPECT(!rig_accepts(m, bad[i]));
    grammar_machine_release(m);
    g = ir_create(NULL);
    m = finish(g, ir_array(g, NULL, 0, ir_literal(g, text("c")), 0, 2));
    EXPECT(rig_accepts(m, "[]") && rig_accepts(m, "[ ]") && rig_accepts(m, "[c]"));
    EXPECT(rig_accepts(m, "[c,c]") && !rig_accepts(m, "[c,c,c]"));
    grammar_machine_release(m);
}

static void a_small_machine_forgets_and_goes_on(void) {
    grammar_limits limits = grammar_limits_default;
    limits.machine_bytes_max = 20000;
    ir *g = ir_create(&limits);
    ir_node item = ir_string(g, 1, 1000);
    grammar_machine *m = finish(g, ir_array(g, NULL, 0, item, 0, 1000));
    grammar_pos p = grammar_start(m), q = grammar_copy(m, p);
    EXPECT(grammar_accept_bytes(m, p, text("["), NULL));
    for (int i = 0; i < 300; i++) {
        if (i > 0) EXPECT(grammar_accept_bytes(m, p, text(","), NULL));
        EXPECT(grammar_accept_bytes(m, p, text("\"some text\""), NULL));
        grammar_mask *mask = grammar_mask_get(m, p, NULL);
        EXPECT(mask != NULL && grammar_mask_has(mask, ',') && grammar_mask_has(mask, ']') &&
               !grammar_mask_has(mask, '"') && !grammar_mask_has(mask, RIG_END_ID));
        grammar_mask_release(mask);
    }
    grammar_stats stats;
    grammar_machine_stats(m, &stats);
    EXPECT(stats.n_flushes > 3);
    EXPECT(grammar_accept_bytes(m, p, text("]"), NULL) && grammar_must_end(m, p));
    EXPECT(grammar_accept(m, p, RIG_END_ID, NULL));
    EXPECT(!grammar_accept(m, q, RIG_END_ID, NULL));
    EXPECT(grammar_accept_bytes(m, q, text("[\"x\"]"), NULL)); // the copy stayed at the begin
    grammar_machine_release(m);
}

static void positions_that_fill_a_small_machine_do_not_flush_it_each_time(void) {
    enum { N = 64, ROUNDS = 20 };
    grammar_limits limits = grammar_limits_default;
    limits.machine_bytes_max = 2048;
    ir *g = ir_create(&limits);
    grammar_machine *m = finish(g, ir_array(g, NULL, 0, ir_string(g, 0, 1000), 0, 1000));
    grammar_pos p[N];
    for (int i = 0; i < N; i++) {
        p[i] = grammar_start(m);
        EXPECT(grammar_accept_bytes(m, p[i], text("[\""), NULL));
        for (int k = 0; k < i; k++) EXPECT(grammar_accept_bytes(m, p[i], text("x"), NULL));
    }
    grammar_stats before, after;
    grammar_machine_stats(m, &before);
    for (int i = 0; i < N * ROUNDS; i++) EXPECT(grammar_accept_bytes(m, p[i % N], text("y"), NULL));
    grammar_machine_stats(m, &after);
    EXPECT(after.n_flushes - before.n_flushes < ROUNDS);
    for (int i = 0; i < N; i++) EXPECT(grammar_accept_bytes(m, p[i], text("\"]"), NULL));
    grammar_machine_release(m);
}

/* After a code of two letters, any of the letters whose bits it has may come. */
static void many_sets_of_automata_are_kept_apart(void) {
    enum { LETTERS = 11, N = 1 << LETTERS };
    grammar_limits limits = grammar_limits_default;
    limits.configs_max = 2 * N;
    ir *g = ir_create(&limits);
    ir_node letters[LETTERS], *ways = malloc(N * sizeof *ways);
    for (int i = 0; i < LETTERS; i++)
        letters[i] = ir_literal(g, text((char[]){(char)('a' + i), '!', 0}));
    for (int s = 1; s < N; s++) {
        ir_node some[LETTERS];
        size_t n = 0;
        for (int i = 0; i < LETTERS; i++)
            if ((s >> i & 1) != 0) some[n++] = letters[i];
        ir_node code = ir_literal(g, text((char[]){(char)(' ' + s / 64), (char)(' ' + s % 64), 0}));
        ways[s - 1] = ir_seq(g, (ir_node[]){code, ir_alt(g, some, n)}, 2);
    }
    grammar_machine *m = finish(g, ir_alt(g, ways, N - 1));
    free(ways);
    for (int s = 1; s < N; s++) {
        int i = s % LETTERS;
        char t[] = {(char)(' ' + s / 64), (char)(' ' + s % 64), (char)('a' + i), '!', 0};
        EXPECT_EQ(rig_accepts(m, t), (s >> i & 1) != 0);
    }
    grammar_machine_release(m);
}

static void a_mask_ends_after_steps_max(void) {
    grammar_limits limits = grammar_limits_default;
    limits.steps_max = 1000;
    ir *g = ir_create(&limits);
    uint32_t rule = ir_rule(g); // a letter, itself, the letter: each text has a state of its own
    ir_node ways[27] = {ir_literal(g, text("."))};
    for (int i = 0; i < 26; i++) {
        ir_node letter = ir_literal(g, text((char[]){(char)('a' + i), 0}));
        ways[i + 1] = ir_seq(g, (ir_node[]){letter, ir_ref(g, rule), letter}, 3);
    }
    ir_rule_set(g, rule, ir_alt(g, ways, 27));
    grammar_machine *m = finish(g, ir_ref(g, rule));
    grammar_pos p = grammar_start(m);
    inferd_err err = {0};
    EXPECT(grammar_mask_get(m, p, &err) == NULL);
    EXPECT(err.status == INFERD_ETOOLONG && strstr(err.text, "steps_max = 1000") != NULL);
    EXPECT(grammar_accept_bytes(m, p, text("ab."), NULL)); // less to do
    EXPECT(grammar_accept_bytes(m, p, text("ba"), NULL) && grammar_must_end(m, p));
    grammar_machine_release(m);
}

static void forced_bytes_end_where_there_is_a_choice(void) {
    grammar_limits limits = grammar_limits_default;
    limits.white_bytes_max = 0;
    ir *g = ir_create(&limits);
    grammar_machine *m = finish(g, make_object(g, 0, IR_NO_MAX, false));
    grammar_pos p = grammar_start(m);
    buf b = {0};
    grammar_forced(m, p, 100, &b);
    EXPECT(strcmp(buf_cstr(&b), "{\"id\":") == 0);
    buf_clear(&b);
    EXPECT(grammar_accept_bytes(m, p, text("{\"id\":7,"), NULL));
    grammar_forced(m, p, 100, &b);
    EXPECT(strcmp(buf_cstr(&b), "\"") == 0); // ids or name
    buf_deinit(&b);
    grammar_machine_release(m);
}

static void a_cut_text_is_completed(void) {
    ir *g = ir_create(NULL);
    grammar_machine *m = finish(g, ir_array(g, NULL, 0, make_object(g, 2, IR_NO_MAX, true), 2, 5));
    const char *cuts[] = {"", "[", "[{\"id\":1,\"name\":\"a\\", "[{\"id\":1,\"q", "[{ \"i"};
    for (size_t i = 0; i < INFERD_COUNT(cuts); i++) {
        grammar_pos p = grammar_start(m);
        buf b = {0};
        EXPECT(grammar_accept_bytes(m, p, text(cuts[i]), NULL));
        EXPECT(grammar_complete(m, p, 1000, &b));
        EXPECT(grammar_accept_bytes(m, p, (bytes){b.p, b.n}, NULL) && grammar_may_end(m, p));
        EXPECT(b.n < 60);
        grammar_drop(m, p);
        buf_deinit(&b);
    }
    grammar_machine_release(m);
}

static void reasoning_comes_before_the_text(void) {
    for (int open = 0; open < 2; open++) {
        grammar_options o = {.reasoning_begin = open ? NULL : "<think>",
                             .reasoning_end = "</think>"};
        ir *g = ir_create(NULL);
        grammar *out = NULL;
        EXPECT(ir_finish(g, ir_literal(g, text("yes")), &o, &out, NULL) == INFERD_OK);
        grammar_machine *m = rig_machine(out);
        EXPECT_EQ(rig_accepts(m, "yes"), !open);
        EXPECT_EQ(rig_accepts(m, "<think>hm</think>\n\nyes"), true);
        EXPECT_EQ(rig_accepts(m, "hm <</think</think>yes"), open);
        EXPECT(!rig_accepts(m, "<think>hm</think>no"));
        EXPECT(!rig_accepts(m, "<think>hm"));
        EXPECT(!rig_accepts(m, "<think>hm</think><think></think>yes"));
        EXPECT_EQ(rig_accepts(m, " \n\t<think>hm</think>yes"), true); // white space, or reasoning
        EXPECT(!rig_accepts(m, "\nyes"));
        char white[GRAMMAR_REASONING_WHITE_MAX + 30];
        for (int n = GRAMMAR_REASONING_WHITE_MAX; n < GRAMMAR_REASONING_WHITE_MAX + 2; n++) {
            snprintf(white, sizeof white, "%*s<think>hm</think>yes", n, "");
            EXPECT_EQ(rig_accepts(m, white), open || n <= GRAMMAR_REASONING_WHITE_MAX);
        }
        grammar_machine_release(m);
    }
}

/* "yes" behind reasoning, which may have begun; the machine and its grammar are small. */
static grammar_machine *reasoned_again(const char *begin, const char *end, const char *again) {
    grammar_options o = {.reasoning_begin = begin, .reasoning_end = end, .reasoning_again = again};
    ir *g = ir_create(NULL);
    grammar *out = NULL;
    EXPECT(ir_finish(g, ir_literal(g, text("yes")), &o, &out, NULL) == INFERD_OK);
    return rig_machine(out);
}

static grammar_machine *reasoned(const char *begin, const char *end) {
    return reasoned_again(begin, end, NULL);
}

/* Bytes of `rest` that are accepted when reasoning is closed behind `before`; -1: all, and the text
 * may end.  Asked twice, because the second time changes nothing. */
static int read_closed(grammar_machine *m, const char *before, const char *rest) {
    grammar_pos p = grammar_start(m);
    EXPECT(grammar_accept_bytes(m, p, text(before), NULL));
    bool reasons = grammar_in_reasoning(m, p);
    for (int i = 0; i < 2; i++) EXPECT(grammar_close_reasoning(m, p, NULL));
    EXPECT_EQ(grammar_in_reasoning(m, p), reasons);
    int n = 0, end = (int)strlen(rest);
    while (n < end && grammar_accept_bytes(m, p, (bytes){rest + n, 1}, NULL)) n++;
    bool whole = n == end && grammar_may_end(m, p);
    grammar_drop(m, p);
    return whole ? -1 : n;
}

static void reasoning_can_be_closed(void) {
    grammar_machine *m = reasoned(NULL, "</think>");
    EXPECT_EQ(read_closed(m, "", "</think>yes"), -1);
    EXPECT_EQ(read_closed(m, "hm", "</think>\n\nyes"), -1);
    EXPECT_EQ(read_closed(m, "hm", "m"), 0);
    EXPECT_EQ(read_closed(m, "hm", " "), 0);
    EXPECT_EQ(read_closed(m, "hm", "</thing"), 6);
    EXPECT_EQ(read_closed(m, "hm <</th", "ink>yes"), -1); // its beginning was just written
    EXPECT_EQ(read_closed(m, "hm </th", "</think>"), 0);
    EXPECT_EQ(read_closed(m, "hm</", "<"), 0);
    EXPECT_EQ(read_closed(m, "\xc3", "\xa4</think>yes"), -1); // in the middle of a character
    EXPECT_EQ(read_closed(m, "\xc3", "<"), 0);
    EXPECT_EQ(read_closed(m, "\xf0", "\x9f\x98\x80</think>yes"), -1);
    EXPECT_EQ(read_closed(m, "\xf0\x9f", "\x98\x80\xc3"), 2);
    EXPECT_EQ(read_closed(m, "\xe0", "\x80"), 0);
    EXPECT_EQ(read_closed(m, "hm</think>", "yes"), -1); // there is nothing to close
    EXPECT_EQ(read_closed(m, "hm</think>y", "es"), -1);
    grammar_machine_release(m);
    m = reasoned(NULL, "\xe2\x96\x81.");
    EXPECT_EQ(read_closed(m, "\xe2\x96\x82\xe2\x96", "\x81.yes"), -1);
    EXPECT_EQ(read_closed(m, "\xe2\x97", "\x81\xe2\x96\x81.yes"), -1);
    grammar_machine_release(m);
}

static void reasoning_that_may_begin_is_closed_behind_its_mark(void) {
    grammar_machine *m = reasoned("\xff[THINK]\xff", "\xff[/THINK]\xff");
    EXPECT_EQ(read_closed(m, "", "yes"), -1);
    EXPECT_EQ(read_closed(m, "", "\xff[THINK]\xffhm\xff[/THINK]\xffyes"), -1);
    EXPECT_EQ(read_closed(m, "\xff[THINK]\xff", "\xff[/THINK]\xffyes"), -1);
    EXPECT_EQ(read_closed(m, "\xff[THINK]\xffhm\xc3", "\xa4\xff[/THINK]\xff yes"), -1);
    EXPECT_EQ(read_closed(m, "\xff[THINK]\xffhm", "m"), 0);
    grammar_machine_release(m);
    /* Text of the grammar that looks like reasoning: closing it leaves that one reading. */
    grammar_options o = {.reasoning_begin = "<", .reasoning_end = ">"};
    grammar *g = NULL;
    EXPECT(grammar_of_regex(text("[^a]*"), &o, &g, NULL) == INFERD_OK);
    m = rig_machine(g);
    EXPECT_EQ(read_closed(m, "b<b", ">"), -1);
    EXPECT_EQ(read_closed(m, "b<b", "b"), -1);
    EXPECT_EQ(read_closed(m, "<a", ">b"), -1);
    EXPECT_EQ(read_closed(m, "<b", "b"), 0);
    EXPECT_EQ(read_closed(m, "<b", ">b"), -1);
    grammar_machine_release(m);
}

/* White space leads to reasoning, and was no beginning of JSON: a model that wrote it had to
 * reason. */
static void white_space_leads_to_json_as_to_reasoning(void) {
    for (int open = 0; open < 2; open++) {
        grammar_options o = {.reasoning_begin = open ? NULL : "<think>",
                             .reasoning_end = "</think>"};
        grammar *out = NULL;
        EXPECT_EQ(grammar_of_json(&o, true, &out, NULL), INFERD_OK);
        grammar_machine *m = rig_machine(out);
        EXPECT_EQ(rig_accepts(m, "{}"), !open);
        EXPECT_EQ(rig_accepts(m, "\n{}"), !open);
        EXPECT_EQ(rig_accepts(m, " \t\r\n{\"a\": 1}"), !open);
        EXPECT(rig_accepts(m, "\n<think>hm</think>\n{}"));
        EXPECT(!rig_accepts(m, "\n"));
        EXPECT(!rig_accepts(m, "\nno"));
        char white[GRAMMAR_REASONING_WHITE_MAX + 30];
        for (int n = GRAMMAR_REASONING_WHITE_MAX; n < GRAMMAR_REASONING_WHITE_MAX + 2; n++) {
            snprintf(white, sizeof white, "%*s{}", n, "");
            EXPECT_EQ(rig_accepts(m, white), !open && n <= GRAMMAR_REASONING_WHITE_MAX);
        }
        grammar_machine_release(m);
    }
}

static void reasoning_may_come_again(void) {
    for (int open = 0; open < 2; open++) {
        grammar_machine *m = reasoned_again(open ? NULL : "<t>", "</t>", "<t>");
        EXPECT_EQ(read_closed(m, "<t>hm</t>", "yes"), -1);
        EXPECT_EQ(read_closed(m, "<t>hm</t>\n<t>", "</t>yes"), -1);
        EXPECT_EQ(read_closed(m, "<t>hm</t><t></t> <t>h", "</t>\n<t>hm</t>yes"), -1);
        EXPECT_EQ(read_closed(m, "<t></t><t>", "h"), 0);
        EXPECT_EQ(read_closed(m, "<t></t>", "no"), 0);
        grammar_machine_release(m);
    }
}

static void a_machine_without_reasoning_closes_nothing(void) {
    grammar *g = NULL;
    EXPECT(grammar_of_regex(text("a+"), NULL, &g, NULL) == INFERD_OK);
    grammar_machine *m = rig_machine(g);
    EXPECT_EQ(read_closed(m, "a", "aa"), -1);
    grammar_machine_release(m);
}

static void choices_share_states(void) {
    const bytes words[] = {text("red"), text("green"), text("grey")};
    grammar *g = NULL;
    EXPECT(grammar_of_choices(words, 3, NULL, &g, NULL) == INFERD_OK);
    grammar_machine *m = rig_machine(g);
    EXPECT(rig_accepts(m, "grey") && rig_accepts(m, "red"));
    EXPECT_EQ(rig_read(m, "gray"), 2);
    grammar_machine_release(m);
}

static const test_case cases[] = {
    TEST(sequences_alternatives_and_repeats_are_read),
    TEST(a_large_count_is_a_number_on_the_stack),
    TEST(recursion_nests_up_to_the_stack),
    TEST(recursion_at_the_end_does_not_nest),
    TEST(no_text_is_begun_that_the_stack_cannot_end),
    TEST(a_count_of_properties_that_are_not_there_is_refused),
    TEST(large_graphs_are_measured_quickly),
    TEST(what_produces_no_text_is_refused_or_left_out),
    TEST(left_recursion_is_refused),
    TEST(strings_have_lengths_in_code_points),
    TEST(properties_come_in_order),
    TEST(other_properties_come_behind_and_are_never_declared_ones),
    TEST(numbers_of_properties_are_kept),
    TEST(arrays_have_prefixes_and_bounds),
    TEST(a_small_machine_forgets_and_goes_on),
    TEST(positions_that_fill_a_small_machine_do_not_flush_it_each_time),
    TEST(many_sets_of_automata_are_kept_apart),
    TEST(a_mask_ends_after_steps_max),
    TEST(forced_bytes_end_where_there_is_a_choice),
    TEST(a_cut_text_is_completed),
    TEST(reasoning_comes_before_the_text),
    TEST(reasoning_can_be_closed),
    TEST(white_space_leads_to_json_as_to_reasoning),
    TEST(reasoning_may_come_again),
    TEST(reasoning_that_may_begin_is_closed_behind_its_mark),
    TEST(a_machine_without_reasoning_closes_nothing),
    TEST(choices_share_states),
};
TEST_MAIN(cases)
