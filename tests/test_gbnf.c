/* test_gbnf.c - llama.cpp's grammar format: texts that grammars accept, and what is refused where.
 */
#include "grammar_rig.h"

static grammar_machine *machine_of(const char *source) {
    grammar *g = NULL;
    inferd_err err = {0};
    inferd_status s = grammar_of_gbnf((bytes){source, strlen(source)}, NULL, &g, &err);
    EXPECT_STR(err.text, "");
    EXPECT(s == INFERD_OK && g != NULL);
    return rig_machine(g);
}

static void expect_refused(const char *source, inferd_status status, const char *text) {
    grammar *g = NULL;
    inferd_err err = {0};
    EXPECT_EQ(grammar_of_gbnf((bytes){source, strlen(source)}, NULL, &g, &err), status);
    EXPECT_STR(err.text, text);
    EXPECT(g == NULL);
    grammar_release(g);
}

/* "+text" is accepted, "-text" is not. */
static void expect_texts(const char *source, const char *const *texts, size_t n) {
    grammar_machine *m = machine_of(source);
    for (size_t i = 0; m != NULL && i < n; i++) {
        bool wanted = texts[i][0] == '+';
        if (rig_accepts(m, texts[i] + 1) == wanted) continue;
        printf("%s\n", source);
        EXPECT_STR(texts[i], wanted ? "to be accepted" : "to be refused");
    }
    grammar_machine_release(m);
}
#define EXPECT_TEXTS(source, ...)                                                                  \
    expect_texts(source, (const char *const[]){__VA_ARGS__},                                       \
                 sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *))

static void items_are_read(void) {
    EXPECT_TEXTS("root ::= \"ab\"", "+ab", "-a", "-abc", "-");
    EXPECT_TEXTS("root ::= \"\"", "+", "-a");
    EXPECT_TEXTS("root ::= [a-c0]", "+a", "+b", "+0", "-d", "--");
    EXPECT_TEXTS("root ::= [^a-c\\n]", "+d", "+\xc3\xa9", "-a", "-\n");
    EXPECT_TEXTS("root ::= [-a] [a-]", "+--", "+aa", "-bb");
    EXPECT_TEXTS("root ::= .", "+a", "+\n", "+\xf0\x9f\x98\x80", "-ab", "-\xf0\x9f");
    EXPECT_TEXTS("root ::= \"\\x41\\u00e9\\U0001F600\\n\\t\\r\\\\\\\"\"",
                 "+A\xc3\xa9\xf0\x9f\x98\x80\n\t\r\\\"");
    EXPECT_TEXTS("root ::= [\\]\\[\\\\\\x30-\\x32]+", "+][", "+\\012", "-3");
    EXPECT_TEXTS("root ::= a-1 a_2\na-1 ::= \"x\"\na_2 ::= \"y\"", "+xy", "-x");
}

static void repeats_belong_to_the_last_item(void) {
    EXPECT_TEXTS("root ::= \"ab\"*", "+", "+ab", "+abab", "-aba", "-abb");
    EXPECT_TEXTS("root ::= \"ab\" \"c\"+", "+abc", "+abccc", "-ab", "-abcabc");
    EXPECT_TEXTS("root ::= (\"a\" | \"b\")? \"c\"", "+c", "+ac", "+bc", "-abc");
    EXPECT_TEXTS("root ::= \"a\"{2} \"b\"{1,2} \"c\"{2,} \"d\"{ 0, 1 }", "+aabcc", "+aabbcccd",
                 "-aabc", "-abcc", "-aabbbcc", "-aabccdd");
    EXPECT_TEXTS("root ::= \"a\"{0}", "+", "-a");
    EXPECT_TEXTS("root ::= (\"x\"{2}){2}", "+xxxx", "-xxx", "-xxxxx");
}

static void lines_and_comments(void) {
    EXPECT_TEXTS(
        "# first\nroot ::= # here\n  \"a\" | # and\n \"b\" (\n\"c\"\n| \"d\" # x\n) # end\n", "+a",
        "+bc", "+bd", "-b");
    EXPECT_TEXTS("root ::= \"a\"\n  | \"b\"\n\n  | x\r\nx ::= \"c\"\r\n", "+a", "+b", "+c", "-ab");
    EXPECT_TEXTS("root ::= | \"a\" |", "+", "+a");
    EXPECT_TEXTS("root ::= () \"a\"", "+a");
    EXPECT_TEXTS("#only\n\n  root ::= \"a\"#", "+a");
}

static void rules_may_be_recursive(void) {
    EXPECT_TEXTS("root ::= \"a\" root \"b\" | \"ab\"", "+ab", "+aabb", "-aab", "-abb");
    EXPECT_TEXTS("root ::= list\nlist ::= \"[\" (root (\",\" root)*)? \"]\"", "+[]", "+[[],[[]]]",
                 "-[", "-[],[]");
    EXPECT_TEXTS("root ::= expr\nexpr ::= term ([-+*/] term)*\nterm ::= [0-9]+ | \"(\" expr \")\"",
                 "+1", "+12+3*(4-(5))", "-1+", "-(1", "-");
}

static const char json_gbnf[] =
    "root   ::= object\n"
    "value  ::= object | array | string | number | (\"true\" | \"false\" | \"null\") ws\n"
    "object ::=\n"
    "  \"{\" ws (\n"
    "            string \":\" ws value\n"
    "    (\",\" ws string \":\" ws value)*\n"
    "  )? \"}\" ws\n"
    "array  ::=\n"
    "  \"[\" ws (\n"
    "            value\n"
    "    (\",\" ws value)*\n"
    "  )? \"]\" ws\n"
    "string ::=\n"
    "  \"\\\"\" (\n"
    "    [^\"\\\\\\x7F\\x00-\\x1F] |\n"
    "    \"\\\\\" ([\"\\\\bfnrt] | \"u\" [0-9a-fA-F]{4}) # escapes\n"
    "  )* \"\\\"\" ws\n"
    "number ::= (\"-\"? ([0-9] | [1-9] [0-9]{0,15})) (\".\" [0-9]+)? ([eE] [-+]? [0-9] "
    "[1-9]{0,15})? "
    "ws\n"
    "ws ::= | \" \" | \"\\n\" [ \\t]{0,20}\n";

static void a_grammar_of_json(void) {
    EXPECT_TEXTS(json_gbnf, "+{}", "+{\"a\":1}",
                 "+{\"a\": [1, -2.5e+3, \"\\u00e9\\n\", {\"b\": null}], \"c\": true}", "-[]",
                 "-{\"a\" 1}", "-{\"a\":01}", "-{\"a\":1,}", "-{\"a\":\"\n\"}");
}

static void counts_need_no_automaton(void) {
    grammar_machine *m = machine_of("root ::= ([a-z] [0-9]){100000,200000} \"!\"");
    EXPECT(!rig_accepts(m, "a0!"));
    EXPECT_EQ(rig_read(m, "a0a1a"), 5);
    grammar_machine_release(m);
}

/* Each would need an automaton of a million states. */
static void parts_too_large_are_divided(void) {
    EXPECT_TEXTS("root ::= [ab]* \"a\" [ab]{20} (\"x\" | \"y\"){3}", "+aaaaaaaaaaaaaaaaaaaaaxyx",
                 "-axyx");
    EXPECT_TEXTS("root ::= x | y\nx ::= [ab]* \"a\" [ab]{20}\ny ::= \"no\"", "+no",
                 "+baaaaaaaaaaaaaaaaaaaaa", "-n");
}

static void errors_name_the_place(void) {
    expect_refused("", INFERD_EINVAL, "grammar: the rule \"root\" is missing");
    expect_refused("rot ::= \"a\"", INFERD_EINVAL, "grammar: the rule \"root\" is missing");
    expect_refused("root ::= a\n  | \xc3\xa9", INFERD_EINVAL,
                   "grammar: line 2, column 5: not expected in a rule");
    expect_refused("root ::= x y\nx ::= \"a\"", INFERD_EINVAL,
                   "grammar: line 1, column 12: no definition of \"y\"");
    expect_refused("root ::= \"a\"\nroot ::= \"b\"", INFERD_EINVAL,
                   "grammar: line 2, column 1: another definition of \"root\"");
    expect_refused("root ::= (\"a\"\n", INFERD_EINVAL,
                   "grammar: line 1, column 10: a parenthesis that does not end");
    expect_refused("root ::= \"a\")", INFERD_EINVAL,
                   "grammar: line 1, column 13: \")\" without \"(\"");
    expect_refused("root ::= *", INFERD_EINVAL,
                   "grammar: line 1, column 10: a repeat with nothing before it");
    expect_refused("root ::= \"a", INFERD_EINVAL,
                   "grammar: line 1, column 10: a text that does not end");
    expect_refused("root ::= [a", INFERD_EINVAL,
                   "grammar: line 1, column 10: a class that does not end");
    expect_refused("root ::= [b-a]", INFERD_EINVAL,
                   "grammar: line 1, column 11: a range out of order");
    expect_refused("root ::= []", INFERD_EINVAL,
                   "grammar: line 1, column 10: a class without members");
    expect_refused("root ::= \"\\q\"", INFERD_EINVAL,
                   "grammar: line 1, column 11: an unknown escape");
    expect_refused("root ::= \"\\u00g0\"", INFERD_EINVAL,
                   "grammar: line 1, column 11: an escape without its hexadecimal digits");
    expect_refused("root ::= \"a\"{2,1}", INFERD_EINVAL,
                   "grammar: line 1, column 13: a count out of order");
    expect_refused("root ::= \"a\"{,1}", INFERD_EINVAL,
                   "grammar: line 1, column 13: a repeat without a count");
    expect_refused("root ::= \"a\"{9999999999}", INFERD_ETOOLONG,
                   "grammar: line 1, column 13: a count beyond the limit of counts");
    expect_refused("root \"a\"", INFERD_EINVAL, "grammar: line 1, column 6: \"::=\" is expected");
    expect_refused("::= \"a\"", INFERD_EINVAL,
                   "grammar: line 1, column 1: the name of a rule is expected");
    expect_refused("root ::= <think>", INFERD_EUNSUPPORTED,
                   "grammar: line 1, column 10: tokens in a grammar cannot be enforced");
    expect_refused("root ::= \"\xff\"", INFERD_EINVAL, "grammar: line 1, column 11: no UTF-8");
}

static void left_recursion_is_refused(void) {
    expect_refused("root ::= root \"a\" | \"b\"", INFERD_EUNSUPPORTED,
                   "grammar: line 1, column 1: a rule that begins with itself (left recursion): "
                   "\"root\"");
    expect_refused("root ::= x\nx ::= y \"a\" | \"b\"\ny ::= \"c\"? x", INFERD_EUNSUPPORTED,
                   "grammar: line 2, column 1: a rule that begins with itself (left recursion): "
                   "\"x\"");
    expect_refused("root ::= (root)* \"a\"", INFERD_EUNSUPPORTED,
                   "grammar: line 1, column 1: a rule that begins with itself (left recursion): "
                   "\"root\"");
    EXPECT_TEXTS("root ::= \"a\" | x\nx ::= \"b\" x | \"c\"", "+bbc"); // at the end: none
}

/* "root ::= r0", then rules that are each the next one twice; the last one is `last`. */
static void double_rules(char *source, int n_rules, const char *last) {
    size_t n = (size_t)sprintf(source, "root ::= r0\n");
    for (int i = 0; i < n_rules; i++)
        n += (size_t)sprintf(source + n, "r%d ::= r%d r%d\n", i, i + 1, i + 1);
    sprintf(source + n, "r%d ::= %s\n", n_rules, last);
}

/* Neither time nor memory may follow what the rules would be when written out. */
static void rules_that_double_end_soon(void) {
    char source[2048];
    double_rules(source, 40, "\"\"");
    EXPECT_TEXTS(source, "+", "-a");
    double_rules(source, 20, "\"ab\"");
    grammar_machine *m = machine_of(source);
    if (m == NULL) return;
    EXPECT_EQ(rig_read(m, "ababab"), 6);
    EXPECT_EQ(rig_read(m, "aba_"), 3);
    grammar_machine_release(m);
}

static void depth_is_bounded(void) {
    static char source[4096];
    size_t n = (size_t)sprintf(source, "root ::= ");
    memset(source + n, '(', 2000);
    expect_refused(source, INFERD_ETOOLONG,
                   "grammar: line 1, column 521: parentheses nested too deeply");
}

static const test_case cases[] = {
    TEST(items_are_read),
    TEST(repeats_belong_to_the_last_item),
    TEST(lines_and_comments),
    TEST(rules_may_be_recursive),
    TEST(a_grammar_of_json),
    TEST(counts_need_no_automaton),
    TEST(parts_too_large_are_divided),
    TEST(errors_name_the_place),
    TEST(left_recursion_is_refused),
    TEST(rules_that_double_end_soon),
    TEST(depth_is_bounded),
};
TEST_MAIN(cases)
