/* test_grammar_masks.c - what a mask promises, by brute force: token t is in it exactly if the
 * position accepts the bytes of t; the tokens of the end exactly if the text may end; control
 * tokens only where the source names them, because nothing else accepts their first byte.
 *
 * Random texts of grammars of our own, on a made-up vocabulary of tokens that cross terminals,
 * parts of code points and long white space.  scripts/bench-masks --property does the same on real
 * vocabularies and on schemas of MaskBench:
 *
 *     INFERD_TEST_VOCAB   a file of pieces (bench/masks_case.h) in place of the made-up vocabulary
 *     INFERD_TEST_CASES   a file of cases, whose schemas are used, too
 *     INFERD_TEST_STATES  how many positions are compared; default 12,000
 *     INFERD_TEST_SEED    of the texts; printed */
#include "masks_case.h"
#include "test.h"

enum {
    STATES = 12000,
    TOKENS_MAX = 40,
    CASE_TOKENS_MAX = 16,
    MADE_UP = 2000,
    SHOWN_MAX = 20,
    COMPLETE_MAX = 4096
};

static uint64_t rng_state;

static uint32_t below(uint32_t n) { // xorshift; n > 0
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return (uint32_t)((rng_state >> 11) % n);
}

static uint64_t number_of(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text == NULL || *text == 0 ? otherwise : strtoull(text, NULL, 10);
}

/* ---- grammars ---- */

typedef enum source_kind {
    SCHEMA,
    COMPACT,
    ANY_ORDER,
    SHALLOW, // with SHALLOW_MAX frames
    REGEX,
    CHOICES,
    GBNF,
    ANY,
    REASONED,
    /* With symbols of control tokens: in the marks of reasoning, in tags, in choices. */
    REASONED_TOKENS,
    TAGS_TOKENS,
    CHOICES_TOKENS
} source_kind;
enum { SHALLOW_MAX = 4 };

typedef struct source {
    source_kind kind;
    const char *text; // CHOICES: divided by '|'
} source;

/* Control tokens of the vocabulary, and their names in JSON. */
#define SYMBOL(name) "\xff" name "\xff"
#define OPEN         GRAMMAR_TOKEN_OPEN
#define CLOSE        GRAMMAR_TOKEN_CLOSE
static const char *const control_tokens[] = {SYMBOL("call"), SYMBOL("args"), SYMBOL("end"),
                                             SYMBOL("calls")};

static const source sources[] = {
    {ANY, ""},
    {SCHEMA, "{\"type\":\"string\"}"},
    {SCHEMA, "{\"type\":\"string\",\"minLength\":2,\"maxLength\":5}"},
    {SCHEMA, "{\"type\":\"string\",\"minLength\":300}"},
    {SCHEMA, "{\"type\":\"string\",\"pattern\":\"^[a-z]{2,4}(-[0-9]+)?$\"}"},
    {SCHEMA, "{\"type\":\"string\",\"pattern\":\"\xc3\xa9|[^a]b$\"}"},
    {SCHEMA, "{\"type\":\"string\",\"format\":\"date-time\"}"},
    {SCHEMA, "{\"type\":\"string\",\"format\":\"uuid\"}"},
    {SCHEMA,
     "{\"enum\":[\"red\",\"green\",\"re\",\"\xe2\x82\xac\",1,10,null,true,[1,2],{\"a\":1}]}"},
    {SCHEMA, "{\"type\":\"integer\",\"minimum\":-17,\"maximum\":1234}"},
    {SCHEMA, "{\"type\":\"number\",\"exclusiveMinimum\":0,\"maximum\":12.5}"},
    {SCHEMA, "{\"type\":\"number\"}"},
    {SCHEMA, "{\"type\":[\"integer\",\"null\",\"boolean\"]}"},
    {SCHEMA, "{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":1,\"maxItems\":3}"},
    {SCHEMA, "{\"type\":\"array\",\"items\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}}}"},
    {SCHEMA, "{\"type\":\"array\",\"prefixItems\":[{\"type\":\"string\"},{\"type\":\"integer\"}],"
             "\"items\":{\"type\":\"boolean\"}}"},
    {SCHEMA, "{\"type\":\"object\"}"},
    {SCHEMA, "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"},\"ab\":{\"type\":"
             "\"integer\"},\"b\":{\"type\":\"boolean\"}},\"required\":[\"ab\"],"
             "\"additionalProperties\":false}"},
    {SCHEMA, "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"}},"
             "\"additionalProperties\":{\"type\":\"integer\"},\"minProperties\":1}"},
    {SCHEMA, "{\"type\":\"object\",\"additionalProperties\":{\"enum\":[0,\"x\"]}}"},
    {SCHEMA, "{\"anyOf\":[{\"type\":\"object\",\"properties\":{\"kind\":{\"const\":\"a\"},\"n\":{"
             "\"type\":\"integer\"}},\"required\":[\"kind\",\"n\"],\"additionalProperties\":false},"
             "{\"type\":\"object\",\"properties\":{\"kind\":{\"const\":\"ab\"},\"s\":{\"type\":"
             "\"string\",\"maxLength\":3}},\"required\":[\"kind\",\"s\"],"
             "\"additionalProperties\":false},{\"type\":\"string\"}]}"},
    {SCHEMA, "{\"anyOf\":[{\"type\":\"string\",\"maxLength\":2},{\"type\":\"string\",\"pattern\":"
             "\"^ab*$\"},{\"type\":\"number\",\"minimum\":5},{\"type\":\"integer\"}]}"},
    {SCHEMA,
     "{\"$defs\":{\"node\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},"
     "\"next\":{\"anyOf\":[{\"$ref\":\"#/$defs/node\"},{\"type\":\"null\"}]}},\"required\":["
     "\"v\",\"next\"],\"additionalProperties\":false}},\"$ref\":\"#/$defs/node\"}"},
    {SCHEMA,
     "{\"$defs\":{\"t\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/t\"},\"maxItems\":2}},"
     "\"$ref\":\"#/$defs/t\"}"},
    {COMPACT, "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"array\",\"items\":{\"type\":"
              "\"number\"}},\"b\":{\"type\":\"string\"}},\"required\":[\"a\",\"b\"]}"},
    {ANY_ORDER,
     "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"ab\":{\"type\":"
     "\"null\"},\"b\":{\"type\":\"string\"}},\"required\":[\"b\",\"x\"],"
     "\"additionalProperties\":{\"type\":\"boolean\"},\"maxProperties\":4}"},
    {SCHEMA, "{\"type\":\"object\",\"patternProperties\":{\"[a-z]\":{\"type\":\"integer\"}},"
             "\"additionalProperties\":false}"},
    {SHALLOW,
     "{\"type\":\"object\",\"patternProperties\":{\"^[a-m]\":{\"$ref\":\"#\"},\"^[^a-m]\":{"
     "\"type\":\"null\"}},\"additionalProperties\":false}"},
    {SHALLOW,
     "{\"type\":\"object\",\"patternProperties\":{\"a\":{\"type\":\"array\",\"items\":{\"$ref\":"
     "\"#\"},\"minItems\":1}}}"},
    {REASONED, "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":["
               "\"a\"],\"additionalProperties\":false}"},
    {REGEX, "[a-c]*abb"},
    {REGEX, "(?:\\d{3}-){2}\\d{4}|x+"},
    {REGEX, "[^\"\\n]{0,12}\xe2\x82\xac?"},
    {REGEX, "(?:the |a )?(?:cat|dog|category)s?[.!]?"},
    {CHOICES, "yes|no|maybe|maybe not|\xe3\x81\xaf\xe3\x81\x84|n"},
    {GBNF, "root ::= expr\nexpr ::= term (\" \"? [-+*/] \" \"? term)*\n"
           "term ::= [0-9]+ | \"(\" expr \")\"\n"},
    {GBNF, "root ::= item{2,4} \"end\"\nitem ::= \"- \" [^\\n]+ \"\\n\"\n"},
    {GBNF, "root ::= \"a\" root \"b\" | \"ab\"\n"},
    {GBNF, "root ::= [^a-z] . \"\\xFF\" \"\\u00FF\"\n"},
    {REGEX, "[^a]\\xff.\\u00ff[\\s\\S][\\u0080-\\u{10ffff}]*"},
    {REASONED_TOKENS, "{\"type\":[\"string\",\"null\"]}"},
    {TAGS_TOKENS,
     "{\"format\":{\"type\":\"triggered_tags\",\"triggers\":[\"" OPEN "call" CLOSE "a\",\"" OPEN
     "call" CLOSE "b\",\"<x\"],\"tags\":[{\"begin\":\"" OPEN "call" CLOSE
     "ab\",\"content\":{\"type\":\"any_text\"},\"end\":\"" OPEN "end" CLOSE "\"},{\"begin\":\"" OPEN
     "call" CLOSE "b" OPEN "args" CLOSE "\",\"content\":{\"type\":\"json_schema\",\"json_schema\":{"
     "\"type\":\"object\"}},\"end\":\"\"},{"
     "\"begin\":\"<x" OPEN "args" CLOSE
     "\",\"content\":{\"type\":\"const_string\",\"value\":\"y" OPEN "call" CLOSE
     "\"},\"end\":\"\"}]}}"},
    {CHOICES_TOKENS,
     SYMBOL("call") "ab|" SYMBOL("call") "|a" SYMBOL("args") SYMBOL("call") "b|" SYMBOL("end")},
};

static bool has_symbols(source_kind kind) {
    return kind == REASONED_TOKENS || kind == TAGS_TOKENS || kind == CHOICES_TOKENS;
}

static inferd_status of_schema(const char *text, size_t n, source_kind how,
                               const grammar_options *o, grammar **out, inferd_err *err) {
    const grammar_schema_kind kind = {.compact = how == COMPACT, .any_order = how == ANY_ORDER};
    json_error_t problem;
    json_t *schema = json_loadb(text, n, JSON_DECODE_ANY, &problem);
    inferd_status s = schema == NULL ? inferd_fail(err, INFERD_EINVAL, "not JSON: %s", problem.text)
                                     : grammar_of_schema(schema, &kind, o, out, err);
    json_decref(schema);
    return s;
}

static inferd_status of_tags(const char *text, grammar **out, inferd_err *err) {
    const grammar_schema_kind kind = {.tokens = true};
    json_t *tags = json_loads(text, 0, NULL);
    inferd_status s = grammar_of_tags(tags, &kind, NULL, out, err);
    json_decref(tags);
    return s;
}

static inferd_status of_choices(const char *text, grammar **out, inferd_err *err) {
    bytes texts[16];
    size_t n = 0;
    for (const char *p = text; n < INFERD_COUNT(texts); p += texts[n++].n + 1) {
        texts[n] = (bytes){p, strcspn(p, "|")};
        if (p[texts[n].n] == 0) return grammar_of_choices(texts, n + 1, NULL, out, err);
    }
    return inferd_fail(err, INFERD_EINVAL, "too many choices");
}

static inferd_status compile(const source *s, grammar **out, inferd_err *err) {
    bytes text = {s->text, strlen(s->text)};
    grammar_options reasoned = {.reasoning_begin = "<think>", .reasoning_end = "</think>"};
    grammar_options marked = {.reasoning_begin = SYMBOL("call") "a",
                              .reasoning_end = SYMBOL("end")};
    grammar_limits limits = grammar_limits_default;
    limits.stack_max = SHALLOW_MAX;
    grammar_options shallow = {.limits = &limits};
    switch (s->kind) {
    case SCHEMA:
    case COMPACT:
    case ANY_ORDER:
        return of_schema(text.p, text.n, s->kind, NULL, out, err);
    case SHALLOW:
        return of_schema(text.p, text.n, s->kind, &shallow, out, err);
    case REASONED:
        return of_schema(text.p, text.n, s->kind, &reasoned, out, err);
    case REASONED_TOKENS:
        return of_schema(text.p, text.n, s->kind, &marked, out, err);
    case TAGS_TOKENS:
        return of_tags(s->text, out, err);
    case REGEX:
        return grammar_of_regex(text, NULL, out, err);
    case CHOICES:
    case CHOICES_TOKENS:
        return of_choices(s->text, out, err);
    case GBNF:
        return grammar_of_gbnf(text, NULL, out, err);
    case ANY:
        break;
    }
    return grammar_of_json(NULL, false, out, err);
}

/* ---- the made-up vocabulary ---- */

/* Parts that tokens are made of: whole terminals, borders between them, halves of code points. */
static const char *const parts[] = {
    "\"",
    "\",\"",
    "\":",
    "\": ",
    "\", \"",
    "}]",
    "]}",
    "}}",
    "]]",
    "\"}",
    "\"]",
    "\"},{\"",
    "[{\"",
    "[[",
    "[]",
    "{}",
    "{\"",
    ",",
    ", ",
    ": ",
    ":[",
    ",[",
    "],[",
    "}\n",
    "\n",
    "\r\n",
    "\t",
    " ",
    "  ",
    "        ",
    "                ",
    "                     ",
    "\n    ",
    "\n            ",
    "\\",
    "\\\"",
    "\\\\",
    "\\n",
    "\\u",
    "\\u00",
    "\\u00e9",
    "\\ud83d",
    "\\ude00",
    "\xc3",
    "\xa9",
    "\xc3\xa9",
    "\xe2",
    "\xe2\x82",
    "\xe2\x82\xac",
    "\x82\xac",
    "\xac",
    "\xf0\x9f",
    "\xf0\x9f\x98\x80",
    "\x98\x80",
    "\xe3\x81",
    "\xe3\x81\xaf",
    "\xe3\x81\x84",
    "\xff",
    "\xed\xa0\x80",
    "\xc0\x80",
    "true",
    "false",
    "null",
    "tr",
    "ue",
    "nu",
    "ll",
    "-",
    "0",
    "1",
    "12",
    "123",
    "1234",
    "0.5",
    ".",
    "e",
    "E+",
    "e-1",
    "10",
    "00",
    "-0",
    "-1",
    "a",
    "b",
    "ab",
    "abb",
    "aab",
    "abc",
    "re",
    "red",
    "green",
    "name",
    "kind",
    "next",
    "v",
    "end",
    "- ",
    "yes",
    "no",
    "maybe",
    " not",
    "cat",
    "dog",
    "egory",
    "s",
    "the ",
    "x",
    "xx",
    "2024",
    "-01",
    "T",
    "Z",
    ":00",
    "(",
    ")",
    "+",
    "*",
    "/",
    ".",
    "!",
    "<think>",
    "</think>",
    "</",
    "think>",
    "<",
    "word",
    "some words here",
};

typedef struct vocab {
    grammar_vocab *v;
    uint32_t n;
    tok_id ends[2]; // of the made-up one
} vocab;

static void make_vocab(vocab *out, inferd_err *err) {
    static char store[MADE_UP][64];
    static bytes pieces[MADE_UP];
    for (uint32_t i = 0; i < MADE_UP; i++) {
        if (i < 256) {
            store[i][0] = (char)i;
            pieces[i] = (bytes){store[i], 1};
            continue;
        }
        uint32_t n_parts = i < 256 + INFERD_COUNT(parts) ? 1 : 2 + below(2);
        size_t n = 0;
        for (uint32_t k = 0; k < n_parts; k++) {
            const char *part = parts[n_parts == 1 ? i - 256 : below(INFERD_COUNT(parts))];
            if (n + strlen(part) > sizeof store[i]) break;
            memcpy(store[i] + n, part, strlen(part));
            n += strlen(part);
        }
        pieces[i] = (bytes){store[i], n};
    }
    for (size_t i = 0; i < INFERD_COUNT(control_tokens); i++)
        pieces[700 + i] = (bytes){control_tokens[i], strlen(control_tokens[i])};
    *out = (vocab){.n = MADE_UP, .ends = {MADE_UP - 1, 300}};
    pieces[MADE_UP - 1].n = pieces[300].n = pieces[301].n = pieces[MADE_UP - 2].n = 0;
    inferd_status s = grammar_vocab_of_pieces(pieces, MADE_UP, out->ends, 2, &out->v, err);
    EXPECT_EQ(s, INFERD_OK);
}

/* ---- one position ---- */

static uint32_t n_shown;

static void show(const char *what, const char *name, bytes piece, tok_id id) {
    test_failures++;
    if (n_shown++ >= SHOWN_MAX) return;
    printf("%.200s: token %d \"", name, id);
    for (size_t i = 0; i < piece.n; i++) {
        unsigned char c = (unsigned char)piece.p[i];
        printf(c < 0x20 || c >= 0x7f ? "\\x%02x" : "%c", c);
    }
    printf("\" %s\n", what);
}

/* Compares the whole mask; the number of tokens in it. */
static uint32_t compare(const vocab *v, grammar_machine *m, grammar_pos p, const char *name,
                        bool symbols, const grammar_mask *mask) {
    uint32_t n_in = 0;
    grammar_pos marked = grammar_copy(m, p);
    if (!symbols && grammar_accept_bytes(m, marked, (bytes){"\xff", 1}, NULL))
        show("accepts the mark of symbols", name, (bytes){"", 0}, -1);
    grammar_drop(m, marked);
    bool end = grammar_may_end(m, p), end_shown = false;
    for (uint32_t id = 0; id < v->n; id++) {
        bytes piece = grammar_vocab_piece(v->v, (tok_id)id);
        bool in = grammar_mask_has(mask, (tok_id)id);
        n_in += in;
        if (piece.n == 0) { // of the end, or never
            if (in && !end) show("is in the mask: no text", name, piece, (tok_id)id);
            end_shown |= in;
            continue;
        }
        grammar_pos q = grammar_copy(m, p);
        bool accepted = grammar_accept_bytes(m, q, piece, NULL);
        grammar_drop(m, q);
        if (in != accepted)
            show(in ? "is in the mask, but its bytes are not accepted"
                    : "is not in the mask, but its bytes are accepted",
                 name, piece, (tok_id)id);
    }
    if (end && !end_shown) show("may end, but no end is in the mask", name, (bytes){"", 0}, -1);
    for (uint32_t id = v->n; id < mask->n_words * 64; id++)
        EXPECT(!grammar_mask_has(mask, (tok_id)id));
    return n_in;
}

/* A text can be completed from everywhere. */
static void complete(grammar_machine *m, grammar_pos p, const char *name) {
    buf rest = {0};
    grammar_pos q = grammar_copy(m, p);
    if (!grammar_complete(m, q, COMPLETE_MAX, &rest))
        show("cannot be completed here", name, (bytes){"", 0}, -1);
    else if (!grammar_accept_bytes(m, q, (bytes){rest.p, rest.n}, NULL) || !grammar_may_end(m, q))
        show("is completed by what is not accepted", name, (bytes){rest.p, rest.n}, -1);
    grammar_drop(m, q);
    buf_deinit(&rest);
}

/* What is not in the mask is not accepted and changes nothing. */
static void refuse_one(const vocab *v, grammar_machine *m, grammar_pos p, const char *name,
                       const grammar_mask *mask) {
    tok_id id = (tok_id)below(v->n);
    if (grammar_mask_has(mask, id)) return;
    if (grammar_accept(m, p, id, NULL))
        show("is accepted, but not in the mask", name, grammar_vocab_piece(v->v, id), id);
    inferd_err err = {0};
    grammar_mask *again = grammar_mask_get(m, p, &err);
    EXPECT(again != NULL && memcmp(again->bits, mask->bits, mask->n_words * 8) == 0);
    grammar_mask_release(again);
}

/* One token further; false: the text ends here.  Every third step is one of a shortest way to the
 * end, or no string would ever close. */
static bool advance(const vocab *v, grammar_machine *m, grammar_pos p, const char *name,
                    const grammar_mask *mask, uint32_t n_in, bool completing) {
    if (n_in == 0 || grammar_must_end(m, p)) return false;
    if (grammar_in_reasoning(m, p) && below(16) == 0) { // no token, but another mask
        EXPECT(grammar_close_reasoning(m, p, NULL));
        return true;
    }
    if (completing && below(3) == 0) {
        buf rest = {0};
        size_t n = grammar_complete(m, p, COMPLETE_MAX, &rest) && rest.n > 0
                       ? 1 + below((uint32_t)rest.n < 8 ? (uint32_t)rest.n : 8)
                       : 0;
        bool ok = n > 0 && grammar_accept_bytes(m, p, (bytes){rest.p, n}, NULL);
        if (n > 0 && !ok) show("is not accepted, but completes", name, (bytes){rest.p, n}, -1);
        buf_deinit(&rest);
        if (ok) return true;
    }
    uint32_t nth = below(n_in);
    tok_id id = 0;
    for (; !grammar_mask_has(mask, id) || nth-- > 0; id++) {
    }
    bytes piece = grammar_vocab_piece(v->v, id);
    if (piece.n == 0) return false; // an end
    bool ok = grammar_accept(m, p, id, NULL);
    if (!ok) show("is in the mask, but not accepted", name, piece, id);
    return ok;
}

/* A random text from p on, compared at each token; the number of positions.  Completing is a search
 * with a limit, which large schemas of others may meet. */
static uint64_t walk(const vocab *v, grammar_machine *m, grammar_pos p, const char *name,
                     bool symbols, uint32_t n_tokens, bool completing) {
    uint64_t n_states = 0;
    for (bool more = true; more && n_tokens-- > 0;) {
        inferd_err err = {0};
        grammar_mask *mask = grammar_mask_get(m, p, &err);
        if (mask == NULL) {
            show(err.text, name, (bytes){"", 0}, -1);
            return n_states;
        }
        uint32_t n_in = compare(v, m, p, name, symbols, mask);
        n_states++;
        refuse_one(v, m, p, name, mask);
        if (completing && n_tokens % 4 == 0) complete(m, p, name);
        more = advance(v, m, p, name, mask, n_in, completing);
        grammar_mask_release(mask);
    }
    return n_states;
}

/* ---- tests ---- */

static vocab the_vocab(void) {
    const char *path = getenv("INFERD_TEST_VOCAB");
    inferd_err err = {0};
    vocab v = {0};
    rng_state = number_of("INFERD_TEST_SEED", 7) * 0x9e3779b97f4a7c15u + 1;
    if (path == NULL)
        make_vocab(&v, &err);
    else
        EXPECT_EQ(mask_pieces_read(path, &v.v, &v.n, &err), INFERD_OK);
    if (v.v == NULL) printf("%s\n", err.text);
    return v;
}

static void a_token_is_in_the_mask_exactly_if_its_bytes_are_accepted(void) {
    vocab v = the_vocab();
    uint64_t n_wanted = number_of("INFERD_TEST_STATES", STATES), n_states = 0, n_idle = 0;
    printf("seed %" PRIu64 ", %u tokens\n", number_of("INFERD_TEST_SEED", 7), v.n);
    grammar_machine *machines[INFERD_COUNT(sources)] = {0};
    for (size_t i = 0; i < INFERD_COUNT(sources) && v.v != NULL; i++) {
        inferd_err err = {0};
        grammar *g = NULL;
        if (compile(&sources[i], &g, &err) != INFERD_OK ||
            grammar_machine_create(g, v.v, &machines[i], &err) != INFERD_OK) {
            printf("%s: %s\n", sources[i].text, err.text);
            test_failures++;
        }
        grammar_release(g);
    }
    for (size_t i = 0; n_states < n_wanted && n_idle < INFERD_COUNT(sources);
         i = (i + 1) % INFERD_COUNT(sources)) {
        if (machines[i] == NULL) {
            n_idle++;
            continue;
        }
        grammar_pos p = grammar_start(machines[i]);
        uint64_t n = walk(&v, machines[i], p, sources[i].text, has_symbols(sources[i].kind),
                          TOKENS_MAX, true);
        n_idle = n == 0 ? n_idle + 1 : 0;
        n_states += n;
        grammar_drop(machines[i], p);
    }
    printf("%" PRIu64 " positions\n", n_states);
    EXPECT(n_states >= n_wanted);
    for (size_t i = 0; i < INFERD_COUNT(sources); i++) grammar_machine_release(machines[i]);
    grammar_vocab_release(v.v);
}

/* From a random place of an instance that is valid. */
static uint64_t walk_case(const vocab *v, const mask_case *c) {
    grammar *g = NULL;
    grammar_machine *m = NULL;
    inferd_err err = {0};
    uint64_t n_states = 0;
    if (of_schema(c->schema.p, c->schema.n, SCHEMA, NULL, &g, &err) == INFERD_OK)
        EXPECT_EQ(grammar_machine_create(g, v->v, &m, &err), INFERD_OK);
    grammar_release(g);
    if (m == NULL) return 0; // refused
    grammar_pos p = grammar_start(m);
    const mask_test *t = c->n_tests == 0 ? NULL : &c->tests[below((uint32_t)c->n_tests)];
    for (size_t i = 0, n = t == NULL ? 0 : below((uint32_t)t->text.n); i < n; i++)
        if (!grammar_accept_bytes(m, p, (bytes){t->text.p + i, 1}, NULL)) break;
    n_states = walk(v, m, p, c->id, false, CASE_TOKENS_MAX, false);
    grammar_drop(m, p);
    grammar_machine_release(m);
    return n_states;
}

static void masks_of_schemas_of_others_are_exact_too(void) {
    const char *path = getenv("INFERD_TEST_CASES");
    if (path == NULL) SKIP("INFERD_TEST_CASES is not set");
    vocab v = the_vocab();
    FILE *f = fopen(path, "r");
    EXPECT(f != NULL);
    uint64_t n_wanted = number_of("INFERD_TEST_STATES", STATES), n_states = 0, n_cases = 0;
    char *line = NULL;
    size_t capacity = 0;
    while (f != NULL && v.v != NULL && n_states < n_wanted) {
        ssize_t n = getline(&line, &capacity, f);
        if (n <= 0) { // once more, other ones
            if (n_states == 0) break;
            rewind(f);
            continue;
        }
        if (below(16) != 0) continue;
        mask_case c;
        inferd_err err = {0};
        if (mask_case_read((bytes){line, (size_t)n}, 0, &c, &err) != INFERD_OK) {
            printf("%s\n", err.text);
            test_failures++;
            break;
        }
        uint64_t n_new = walk_case(&v, &c);
        n_states += n_new;
        n_cases += n_new > 0;
        mask_case_deinit(&c);
    }
    printf("%" PRIu64 " positions of %" PRIu64 " schemas\n", n_states, n_cases);
    EXPECT(n_states >= n_wanted);
    free(line);
    if (f != NULL) fclose(f);
    grammar_vocab_release(v.v);
}

static const test_case cases[] = {
    TEST(a_token_is_in_the_mask_exactly_if_its_bytes_are_accepted),
    TEST(masks_of_schemas_of_others_are_exact_too),
};
TEST_MAIN(cases)
