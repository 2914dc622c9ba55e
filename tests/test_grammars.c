/* test_grammars.c - grammars are compiled once, kept within bounds, and leave with their model. */
#include "grammars.h"
#include "test.h"

static model *open_model(const char *path) {
    model *m = NULL;
    inferd_err err = {0};
    model_options o = {.path = path, .allow_dummy = true};
    EXPECT_EQ(model_open(&o, &m, &err), INFERD_OK);
    return m;
}

/* The machine is released: whether it is another one is all that is asked. */
static grammar_machine *get(grammars *g, const model *m, grammar_source s) {
    grammar_machine *made = NULL;
    inferd_err err = {0};
    inferd_status st = grammars_get(g, m, &s, &made, &err);
    if (st != INFERD_OK) printf("%s\n", err.text);
    EXPECT_EQ(st, INFERD_OK);
    grammar_machine_release(made);
    return made;
}

static grammar_source regex(const char *pattern) {
    return (grammar_source){.kind = GRAMMAR_REGEX, .text = {pattern, strlen(pattern)}};
}

static grammars_stats stats_of(grammars *g) {
    grammars_stats s;
    grammars_get_stats(g, &s);
    return s;
}

static void the_same_source_is_compiled_once(void) {
    grammars *g = grammars_create(GRAMMARS_USED_BYTES_MAX);
    model *m = open_model("dummy:tiny?seed=1"), *other = open_model("dummy:tiny?seed=2");
    json_t *ab = json_loads("{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{}}}", 0, NULL);
    json_t *ba = json_loads("{\"type\":\"object\",\"properties\":{\"b\":{},\"a\":{}}}", 0, NULL);
    json_t *again = json_deep_copy(ab);
    grammar_source s = {.kind = GRAMMAR_SCHEMA, .json = ab};
    grammar_machine *first = get(g, m, s);
    s.json = again;
    EXPECT(get(g, m, s) == first);
    EXPECT_EQ(stats_of(g).n_compiled, 1);
    EXPECT_EQ(stats_of(g).n_found, 1);
    s.json = ba; // properties are written in their order
    EXPECT(get(g, m, s) != first);
    s.json = ab;
    s.compact = true;
    EXPECT(get(g, m, s) != first);
    s.compact = false;
    s.any_order = true;
    EXPECT(get(g, m, s) != first);
    s.any_order = false;
    s.reasoning = (reasoning){NULL, "</think>"};
    EXPECT(get(g, m, s) != first);
    s.reasoning = (reasoning){"<think>", "</think>"};
    EXPECT(get(g, m, s) != first);
    grammar_machine *as_text = get(g, m, s);
    s.reasoning.end_is_token = true;
    EXPECT(get(g, m, s) != as_text);
    s.reasoning = (reasoning){NULL, NULL};
    EXPECT(get(g, other, s) != first);
    EXPECT_EQ(stats_of(g).n_entries, 8);
    EXPECT_EQ(stats_of(g).n_vocabs, 2);
    EXPECT(get(g, m, regex("a")) !=
           get(g, m, (grammar_source){.kind = GRAMMAR_GBNF, .text = {"root ::= \"a\"", 12}}));
    json_decref(ab);
    json_decref(ba);
    json_decref(again);
    grammars_destroy(g);
    model_close(m);
    model_close(other);
}

static void a_model_leaves_with_its_grammars(void) {
    grammars *g = grammars_create(GRAMMARS_USED_BYTES_MAX);
    model *m = open_model("dummy:tiny?seed=1"), *stays = open_model("dummy:tiny?seed=2");
    get(g, m, regex("a"));
    get(g, m, regex("b"));
    grammar_machine *kept = get(g, stays, regex("a"));
    grammars_forget(g, m);
    model_close(m);
    grammars_stats s = stats_of(g);
    EXPECT_EQ(s.n_entries, 1);
    EXPECT_EQ(s.n_vocabs, 1);
    EXPECT(get(g, stays, regex("a")) == kept);
    grammars_forget(g, stays);
    model_close(stays);
    EXPECT_EQ(stats_of(g).n_bytes, 0);
    grammars_destroy(g);
}

static void the_least_recently_used_goes_first(void) {
    grammars *g = grammars_create(GRAMMARS_USED_BYTES_MAX);
    model *m = open_model("dummy:tiny?seed=1");
    char pattern[16];
    for (int i = 0; i < GRAMMARS_ENTRIES_MAX; i++) {
        snprintf(pattern, sizeof pattern, "a%d", i);
        get(g, m, regex(pattern));
    }
    get(g, m, regex("a0")); // a1 is the oldest now
    EXPECT_EQ(stats_of(g).n_found, 1);
    get(g, m, regex("b"));
    EXPECT_EQ(stats_of(g).n_entries, GRAMMARS_ENTRIES_MAX);
    EXPECT(stats_of(g).n_bytes <= GRAMMARS_BYTES_MAX);
    uint64_t n_compiled = stats_of(g).n_compiled;
    get(g, m, regex("a0"));
    get(g, m, regex("a2"));
    EXPECT_EQ(stats_of(g).n_compiled, n_compiled);
    get(g, m, regex("a1"));
    EXPECT_EQ(stats_of(g).n_compiled, n_compiled + 1);
    grammars_destroy(g);
    model_close(m);
}

/* A request may still use a machine that was evicted. */
static void a_machine_lives_as_long_as_it_is_used(void) {
    grammars *g = grammars_create(GRAMMARS_USED_BYTES_MAX);
    model *m = open_model("dummy:tiny?seed=1");
    grammar_source s = regex("a");
    grammar_machine *used = NULL;
    EXPECT_EQ(grammars_get(g, m, &s, &used, NULL), INFERD_OK);
    grammars_forget(g, m);
    grammar_pos p = grammar_start(used);
    EXPECT(grammar_accept_bytes(used, p, (bytes){"a", 1}, NULL));
    EXPECT(grammar_must_end(used, p));
    grammar_drop(used, p);
    grammar_machine_release(used);
    grammars_destroy(g);
    model_close(m);
}

/* Machines that requests hold stay, so that the next request finds them, and so that they count. */
static void machines_in_use_are_bounded(void) {
    enum { HELD_MAX = 64 };
    grammars *g = grammars_create(400000);
    model *m = open_model("dummy:tiny?seed=1");
    grammar_machine *held[HELD_MAX], *more = NULL;
    inferd_err err = {0};
    uint32_t n = 0;
    inferd_status st = INFERD_OK;
    char pattern[32];
    while (n < HELD_MAX && st == INFERD_OK) {
        snprintf(pattern, sizeof pattern, "(a|b)*a(a|b){8}%u", n);
        grammar_source s = regex(pattern);
        st = grammars_get(g, m, &s, &held[n], &err);
        n += st == INFERD_OK;
    }
    EXPECT_EQ(st, INFERD_EBUSY);
    EXPECT(n > 1 && n < HELD_MAX && stats_of(g).n_bytes > 400000);
    EXPECT_EQ(stats_of(g).n_entries, n);
    grammar_source first = regex("(a|b)*a(a|b){8}0"), fresh = regex("c");
    EXPECT_EQ(grammars_get(g, m, &first, &more, NULL), INFERD_OK); // needs no room
    EXPECT(more == held[0]);
    grammar_machine_release(more);
    grammars_trim(g);
    EXPECT_EQ(stats_of(g).n_entries, n);
    for (uint32_t i = 0; i < n; i++) grammar_machine_release(held[i]);
    grammars_trim(g);
    EXPECT_EQ(stats_of(g).n_entries, n - 1);
    EXPECT_EQ(grammars_get(g, m, &fresh, &more, NULL), INFERD_OK);
    grammar_machine_release(more);
    grammars_destroy(g);
    model_close(m);
}

/* The rows of a model's output matrix may be rounded up. */
static void masks_have_a_bit_for_every_logit(void) {
    model *m = open_model("dummy:tiny?seed=1");
    uint32_t n_tok = (uint32_t)tok_n_vocab(model_tokenizer(m)), n_vocab = n_tok + 100;
    grammar *a = NULL;
    grammar_vocab *v = NULL;
    grammar_machine *made = NULL;
    EXPECT_EQ(grammar_of_regex((bytes){"[^b]*", 5}, NULL, &a, NULL), INFERD_OK);
    EXPECT_EQ(grammar_vocab_create(model_tokenizer(m), n_vocab, &v, NULL), INFERD_OK);
    EXPECT_EQ(grammar_machine_create(a, v, &made, NULL), INFERD_OK);
    grammar_pos p = grammar_start(made);
    grammar_mask *mask = grammar_mask_get(made, p, NULL);
    EXPECT(mask != NULL && mask->n_words == (n_vocab + 63) / 64);
    for (uint32_t id = n_tok; id < n_vocab; id++) EXPECT(!grammar_mask_has(mask, (tok_id)id));
    grammar_mask_release(mask);
    grammar_drop(made, p);
    grammar_machine_release(made);
    grammar_vocab_release(v);
    grammar_release(a);
    model_close(m);
}

/* Names of properties may have any characters, and places are separated by blanks: a blank in a
 * name made several places of one.  A kept entry has the text, which counts. */
static void places_that_are_not_enforced_have_no_blanks(void) {
    static const char tags[] = "{\"format\":{\"type\":\"json_schema\",\"json_schema\":"
                               "{\"$comment\":\"f\",\"type\":\"object\",\"properties\":"
                               "{\"a b,\\n%é\":{\"type\":\"string\",\"format\":\"lunar\"}}}}}";
    static const char place[] = "f#/properties/a%20b%2C%0A%25%C3%A9/format ";
    grammars *g = grammars_create(GRAMMARS_USED_BYTES_MAX);
    model *m = open_model("dummy:tiny?seed=1");
    json_t *json = json_loads(tags, 0, NULL);
    for (int i = 0; i < 2; i++) { // compiled, and kept
        buf weakened = {0};
        grammar_source s = {.kind = GRAMMAR_TAGS, .json = json, .weakened = &weakened};
        grammar_machine *made = NULL;
        size_t n_machine = 0, n_json = json_dumpb(json, NULL, 0, JSON_COMPACT);
        EXPECT_EQ(grammars_get(g, m, &s, &made, NULL), INFERD_OK);
        EXPECT(strcmp(buf_cstr(&weakened), place) == 0);
        EXPECT(made != NULL && grammar_machine_bytes(made, &n_machine));
        EXPECT(stats_of(g).n_bytes >= n_machine + n_json + sizeof place);
        grammar_machine_release(made);
        buf_deinit(&weakened);
    }
    EXPECT_EQ(stats_of(g).n_found, 1);
    json_decref(json);
    grammars_destroy(g);
    model_close(m);
}

static void a_failure_keeps_nothing(void) {
    grammars *g = grammars_create(GRAMMARS_USED_BYTES_MAX);
    model *m = open_model("dummy:tiny?seed=1");
    grammar_machine *made = NULL;
    grammar_source s = regex("(");
    inferd_err err = {0};
    EXPECT_EQ(grammars_get(g, m, &s, &made, &err), INFERD_EINVAL);
    EXPECT(made == NULL && err.text[0] != 0);
    EXPECT_EQ(stats_of(g).n_entries, 0);
    EXPECT_EQ(stats_of(g).n_compiled, 0);
    grammars_destroy(g);
    model_close(m);
}

/* A limit that the first token would meet is an error of the request, not of the answer. */
static void a_grammar_that_cannot_begin_is_refused(void) {
    grammars *g = grammars_create(GRAMMARS_USED_BYTES_MAX);
    model *m = open_model("dummy:tiny?seed=1");
    grammar_machine *made = NULL;
    inferd_err err = {0};
    buf text = {0};
    // 70 ways into a rule of 70 ways.  They nest, so that no automaton can read them all at once;
    // few and short, so that compiling them is far from its own limit.
    buf_add_str(&text, "root ::= \"z\"");
    for (int i = 0; i < 70; i++) buf_add_format(&text, " | inner \"%d)\"", i);
    buf_add_str(&text, "\ninner ::= \"y\"");
    for (int i = 0; i < 70; i++) buf_add_format(&text, " | \"%d(\" root \")\"", i);
    grammar_source s = {.kind = GRAMMAR_GBNF, .text = {text.p, text.n}};
    EXPECT_EQ(grammars_get(g, m, &s, &made, &err), INFERD_ETOOLONG);
    EXPECT(made == NULL && strstr(err.text, "configs_max") != NULL);
    buf_deinit(&text);
    grammars_destroy(g);
    model_close(m);
}

static const test_case cases[] = {TEST(a_grammar_that_cannot_begin_is_refused),
                                  TEST(the_same_source_is_compiled_once),
                                  TEST(a_model_leaves_with_its_grammars),
                                  TEST(the_least_recently_used_goes_first),
                                  TEST(a_machine_lives_as_long_as_it_is_used),
                                  TEST(places_that_are_not_enforced_have_no_blanks),
                                  TEST(a_failure_keeps_nothing),
                                  TEST(machines_in_use_are_bounded),
                                  TEST(masks_have_a_bit_for_every_logit)};
TEST_MAIN(cases)
