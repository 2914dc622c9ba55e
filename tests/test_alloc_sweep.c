/* test_alloc_sweep.c - memory runs out at each allocation in turn, over load -> one chat ->
 * shutdown; once as it is, once with a schema that the answer follows.
 *
 * The linker routes every malloc of ours through here (--wrap), jansson's too by its allocator
 * hooks. Allocation n fails once, then from n on; each time the scenario must end with an answer or
 * a sentence, and leave nothing behind. */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>

#include "grammars.h"
#include "inferd/clock.h"
#include "models/inspect.h"
#include "scheduler/engine.h"
#include "test.h"
#include "tiny_gguf.h"

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t each);
void *__real_realloc(void *p, size_t n);
int __real_posix_memalign(void **p, size_t align, size_t n);
void *__real_aligned_alloc(size_t align, size_t n);
char *__real_strdup(const char *s);
void __real_free(void *p);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t each);
void *__wrap_realloc(void *p, size_t n);
int __wrap_posix_memalign(void **p, size_t align, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);
char *__wrap_strdup(const char *s);
void __wrap_free(void *p);

static atomic_long n_calls, fail_at = -1, n_live;
static atomic_bool fail_from;

static bool fails(void) {
    long at = atomic_load(&fail_at), now = atomic_fetch_add(&n_calls, 1);
    return at >= 0 && (atomic_load(&fail_from) ? now >= at : now == at);
}
static void *live(void *p) {
    if (p != NULL) atomic_fetch_add(&n_live, 1);
    return p;
}
void *__wrap_malloc(size_t n) {
    return fails() ? NULL : live(__real_malloc(n));
}
void *__wrap_calloc(size_t n, size_t each) {
    return fails() ? NULL : live(__real_calloc(n, each));
}
void *__wrap_realloc(void *p, size_t n) {
    if (fails()) return NULL;
    return p == NULL ? live(__real_realloc(NULL, n)) : __real_realloc(p, n);
}
int __wrap_posix_memalign(void **p, size_t align, size_t n) {
    if (fails()) return 12;
    int rc = __real_posix_memalign(p, align, n);
    if (rc == 0) live(*p);
    return rc;
}
void *__wrap_aligned_alloc(size_t align, size_t n) {
    return fails() ? NULL : live(__real_aligned_alloc(align, n));
}
char *__wrap_strdup(const char *s) {
    return fails() ? NULL : live(__real_strdup(s));
}
void __wrap_free(void *p) {
    if (p != NULL) atomic_fetch_sub(&n_live, 1);
    __real_free(p);
}

static atomic_uint n_wakes;
static void wake(void *ctx) {
    (void)ctx;
    atomic_fetch_add(&n_wakes, 1);
}

static void nap(void) {
    struct timespec t = {0, 200000};
    nanosleep(&t, NULL);
}

static inferd_status wait_hot(engine *e, inferd_err *err) {
    for (;;) {
        model_state s = engine_model_state(e, 0);
        if (s == MODEL_HOT) return INFERD_OK;
        if (s == MODEL_FAILED) {
            engine_model_error(e, 0, err);
            return err->status;
        }
        nap();
    }
}

static inferd_status encode_chat(const model *m, tok_ids *ids, inferd_err *err) {
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", "hello");
    if (messages == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for messages");
    chat_input input = {.messages = messages, .add_generation_prompt = true};
    chat_text text = {0};
    struct tm now = {.tm_year = 126, .tm_mday = 15};
    tok_encode_options options = {0};
    inferd_status st =
        chat_render(model_chat_template(m), model_tokenizer(m), &input, &now, &text, err);
    if (st == INFERD_OK)
        st = tok_encode(model_tokenizer(m), (bytes){text.text, text.n}, text.spans, text.n_spans,
                        &options, ids, err);
    chat_text_deinit(&text);
    json_decref(messages);
    return st;
}

/* Compiles, or takes what was compiled for the request before: both are tried. */
static inferd_status constrain(grammars *kept, const model *m, grammar_machine **out,
                               inferd_err *err) {
    json_t *schema =
        json_pack("{s:s, s:{s:{s:s, s:i}, s:{s:[s, s]}}, s:[s]}", "type", "object", "properties",
                  "a", "type", "string", "minLength", 3, "b", "enum", "x", "y", "required", "a");
    if (schema == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for a schema");
    grammar_source source = {
        .kind = GRAMMAR_SCHEMA, .json = schema, .reasoning = {"<think>", "</think>"}};
    inferd_status st = grammars_get(kept, m, &source, out, err);
    if (st == INFERD_OK) {
        grammar_machine_release(*out);
        st = grammars_get(kept, m, &source, out, err);
    }
    json_decref(schema);
    return st;
}

/* Exactly one end, whatever happened before it.  Takes `machine`, which may be NULL. */
static inferd_status generate(engine *e, tok_ids *ids, grammar_machine *machine, uint32_t *n_tokens,
                              inferd_err *err) {
    gen_request *r = calloc(1, sizeof *r);
    if (r == NULL) {
        grammar_machine_release(machine);
        return inferd_fail(err, INFERD_ENOMEM, "no memory for a request");
    }
    *r = (gen_request){.id = 1,
                       .prio = GEN_NORMAL,
                       .prompt = ids->ids,
                       .n_prompt = (uint32_t)ids->n,
                       .max_tokens = 6,
                       .ignore_eos = true,
                       .grammar = machine,
                       .n_logprobs = 2,
                       .n_prompt_logprobs = -1,
                       .sampling = {.temperature = 1, .top_p = 1, .repetition_penalty = 1},
                       .arrival_us = clock_now_us()};
    *ids = (tok_ids){0};
    if (!engine_submit(e, r)) {
        gen_request_destroy(r);
        return inferd_fail(err, INFERD_EBUSY, "the inbox is full");
    }
    uint64_t give_up = clock_now_us() + 20000000;
    for (gen_event ev; clock_now_us() < give_up;) {
        if (!engine_next_event(e, &ev)) {
            nap();
            continue;
        }
        if (ev.kind == GEN_EV_TOKEN) ++*n_tokens;
        if (ev.kind != GEN_EV_DONE) continue;
        if (ev.done.finish == GEN_ERROR)
            return inferd_fail(err, ev.done.status, "%s", ev.done.text);
        return INFERD_OK;
    }
    return inferd_fail(err, INFERD_ETIMEOUT, "a request without an end");
}

static inferd_status scenario(const char *path, bool constrained, uint32_t *n_tokens,
                              inferd_err *err) {
    model *m = NULL;
    engine *e = NULL;
    grammars *kept = NULL;
    grammar_machine *machine = NULL;
    tok_ids ids = {0};
    model_options mo = {.path = path};
    *n_tokens = 0;
    inferd_status st = model_open(&mo, &m, err);
    if (st == INFERD_OK) {
        engine_options eo = {.device = {.kind = "cpu", .n_threads = 2, .memory_bytes = 16u << 20},
                             .limits = {.running_max = 4, .step_tokens_max = 64},
                             .n_slots = 1,
                             .wake = wake};
        st = engine_start(&eo, &e, err);
    }
    model_policy policy = {.prio = GEN_NORMAL, .weight = 100, .keep_alive_us = POLICY_NEVER};
    if (st == INFERD_OK && !engine_model_add(e, 0, m, UINT32_MAX, &policy))
        st = inferd_fail(err, INFERD_ENOMEM, "no memory to add a model");
    if (st == INFERD_OK) st = wait_hot(e, err);
    if (st == INFERD_OK) st = encode_chat(m, &ids, err);
    if (st == INFERD_OK && constrained && (kept = grammars_create(GRAMMARS_USED_BYTES_MAX)) == NULL)
        st = inferd_fail(err, INFERD_ENOMEM, "no memory for grammars");
    if (st == INFERD_OK && constrained) st = constrain(kept, m, &machine, err);
    if (st == INFERD_OK) st = generate(e, &ids, machine, n_tokens, err);
    tok_ids_deinit(&ids);
    engine_stop(e);
    grammars_destroy(kept);
    model_close(m);
    return st;
}

static void sweep(bool constrained) {
    char path[] = "/tmp/inferd-sweep-XXXXXX";
    int fd = mkstemp(path);
    EXPECT(fd >= 0);
    close(fd);
    tiny_model_options options = {0};
    tiny_model_write(path, 3, &options);
    json_set_alloc_funcs(malloc, free);

    inferd_err err = {0};
    uint32_t n_tokens;
    EXPECT_EQ(scenario(path, constrained, &n_tokens, &err),
              INFERD_OK); // what is made once is made now
    atomic_store(&n_calls, 0);
    long live_before = atomic_load(&n_live);
    EXPECT_EQ(scenario(path, constrained, &n_tokens, &err), INFERD_OK);
    EXPECT_EQ(n_tokens, 6);
    EXPECT_EQ(atomic_load(&n_live), live_before);
    long points = atomic_load(&n_calls);
    const char *limit_text = getenv("INFERD_SWEEP_POINTS");
    long limit = limit_text != NULL ? atol(limit_text) : 400;
    long stride = points > limit ? points / limit : 1;
    long n_failed = 0, n_survived = 0;
    for (int from = 0; from < 2; from++) {
        for (long at = 0; at < points; at += stride) {
            memset(&err, 0, sizeof err);
            atomic_store(&fail_from, from == 1);
            atomic_store(&n_calls, 0);
            atomic_store(&fail_at, at);
            inferd_status st = scenario(path, constrained, &n_tokens, &err);
            atomic_store(&fail_at, -1);
            if (st == INFERD_OK)
                n_survived++;
            else
                n_failed++;
            EXPECT(st == INFERD_OK || err.text[0] != 0);
            EXPECT(st == INFERD_OK || st == INFERD_ENOMEM || st == INFERD_EDEVICE);
            if (st != INFERD_OK && st != INFERD_ENOMEM) printf("at %ld: %d %s\n", at, st, err.text);
            if (atomic_load(&n_live) != live_before) {
                printf("allocation %ld (%s): %ld blocks left\n", at, from ? "from then on" : "once",
                       atomic_load(&n_live) - live_before);
                test_failures++;
                live_before = atomic_load(&n_live);
            }
        }
    }
    EXPECT_EQ(scenario(path, constrained, &n_tokens, &err), INFERD_OK);
    printf("%ld allocations, every %ld failed once and from then on: %ld errors, %ld survived\n",
           points, stride, n_failed, n_survived);
    EXPECT(n_failed > 0);
    unlink(path);
}

static void every_allocation_may_fail(void) {
    sweep(false);
}

static void every_allocation_of_structured_output_may_fail(void) {
    sweep(true);
}

/* One compilation with allocation `at` failing, once or from then on; false: there were fewer. */
static bool compile_with(const model *m, const grammar_source *source, long at, bool from) {
    long live_before = atomic_load(&n_live);
    inferd_err err = {0};
    grammar_machine *machine = NULL;
    atomic_store(&fail_from, from);
    atomic_store(&n_calls, 0);
    atomic_store(&fail_at, at);
    grammars *kept = grammars_create(GRAMMARS_USED_BYTES_MAX);
    inferd_status st = INFERD_ENOMEM;
    if (kept != NULL) st = grammars_get(kept, m, source, &machine, &err);
    EXPECT_EQ(st == INFERD_OK, machine != NULL);
    grammar_machine_release(machine);
    grammars_destroy(kept);
    atomic_store(&fail_at, -1);
    if (st != INFERD_OK && st != INFERD_ENOMEM)
        printf("kind %d at %ld: %s\n", source->kind, at, err.text);
    EXPECT(st == INFERD_OK || st == INFERD_ENOMEM);
    if (atomic_load(&n_live) != live_before)
        printf("kind %d at %ld: %ld blocks left\n", source->kind, at,
               atomic_load(&n_live) - live_before);
    EXPECT_EQ(atomic_load(&n_live), live_before);
    bool reached = atomic_load(&n_calls) > at;
    if (!reached) EXPECT_EQ(st, INFERD_OK);
    return reached;
}

static void every_allocation_of_each_compiler_may_fail(void) {
    static const char pattern[] = "(a|[^b-d]{2,4})*\\p{L}?";
    static const char gbnf[] =
        "root ::= \"(\" (root | [a-c]+) \")\" | x{2,3}\nx ::= \"x\" # no more\n";
    static const char tags[] =
        "{\"triggers\":[\"<f\",\"{\"],\"structures\":[{\"begin\":\"<f>\",\"schema\":{\"enum\":[1,"
        "\"a\"]},"
        "\"end\":\"" GRAMMAR_TOKEN_OPEN "</f>" GRAMMAR_TOKEN_CLOSE
        "\"},{\"begin\":\"{\",\"schema\":{\"type\":\"null\"},\"end\":\"}\"}]}";
    static const char schema[] =
        "{\"$defs\":{\"n\":{\"anyOf\":[{\"type\":\"null\"},{\"type\":\"array\",\"items\":{\"$ref\":"
        "\"#/$defs/"
        "n\"},\"maxItems\":3}]}},\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\","
        "\"pattern\":\"^x+$\",\"maxLength\":9},\"b\":{\"type\":\"number\",\"minimum\":-1.5},\"c\":{"
        "\"$ref\":"
        "\"#/$defs/"
        "n\"}},\"additionalProperties\":{\"format\":\"date\",\"type\":\"string\"},"
        "\"minProperties\":1}";
    model *m = NULL;
    inferd_err err = {0};
    model_options mo = {.path = "dummy:tiny?seed=1", .allow_dummy = true};
    EXPECT_EQ(model_open(&mo, &m, &err), INFERD_OK);
    json_t *of_schema = json_loads(schema, 0, NULL), *of_tags = json_loads(tags, 0, NULL);
    json_t *choices = json_pack("[sss]", "yes", "no", "yesterday");
    const grammar_source sources[] = {
        {.kind = GRAMMAR_OBJECT, .compact = true},
        {.kind = GRAMMAR_SCHEMA,
         .json = of_schema,
         .reasoning = {"<think>", "</think>", .end_is_token = true}},
        {.kind = GRAMMAR_REGEX, .text = {pattern, sizeof pattern - 1}},
        {.kind = GRAMMAR_CHOICE, .json = choices},
        {.kind = GRAMMAR_GBNF, .text = {gbnf, sizeof gbnf - 1}},
        {.kind = GRAMMAR_TAGS, .json = of_tags, .tokens = true}};
    for (size_t i = 0; i < INFERD_COUNT(sources); i++) {
        long n = 0;
        compile_with(m, &sources[i], -1, false); // what is made once is made now
        while (compile_with(m, &sources[i], n, false)) n++;
        long stride = n > 100 ? n / 100 : 1;
        for (long at = 0; at < n; at += stride) compile_with(m, &sources[i], at, true);
        printf("kind %d: %ld allocations\n", sources[i].kind, n);
        EXPECT(n > 20);
    }
    json_decref(of_schema);
    json_decref(of_tags);
    json_decref(choices);
    model_close(m);
}

/* As compile_with, for what is told of a file. */
static bool inspect_with(const inspect_options *o, long at, bool from) {
    long live_before = atomic_load(&n_live);
    inferd_err err = {0};
    json_t *told = NULL;
    atomic_store(&fail_from, from);
    atomic_store(&n_calls, 0);
    atomic_store(&fail_at, at);
    inferd_status st = model_inspect(o, &told, &err);
    atomic_store(&fail_at, -1);
    EXPECT(st == INFERD_OK || (st == INFERD_ENOMEM && err.text[0] != 0));
    EXPECT_EQ(st == INFERD_OK, told != NULL);
    json_decref(told);
    if (atomic_load(&n_live) != live_before)
        printf("inspect at %ld: %ld blocks left\n", at, atomic_load(&n_live) - live_before);
    EXPECT_EQ(atomic_load(&n_live), live_before);
    return atomic_load(&n_calls) > at;
}

static void add_unknown_key(tiny_gguf *g) {
    tiny_kv_u32(g, "llama.unknown", 1);
}

static void every_allocation_of_inspect_may_fail(void) {
    enum { POINTS = 300 };
    char path[] = "/tmp/inferd-sweep-XXXXXX";
    int fd = mkstemp(path);
    EXPECT(fd >= 0);
    close(fd);
    tiny_model_write(path, 3, &(tiny_model_options){.add_keys = add_unknown_key});
    json_set_alloc_funcs(malloc, free);
    inferd_err err = {0};
    backend *be = NULL;
    backend_options o = {.kind = "cpu", .n_threads = 1, .memory_bytes = 16u << 20};
    EXPECT_EQ(backend_open(&o, &be, &err), INFERD_OK);
    const inspect_options of = {.model = {.path = path}, .be = be, .tensors = true};
    inspect_with(&of, -1, false); // what is made once is made now
    long n = 0;
    inspect_with(&of, -1, false);
    n = atomic_load(&n_calls);
    long stride = n > POINTS ? n / POINTS : 1;
    for (int from = 0; from < 2; from++)
        for (long at = 0; at < n; at += stride) inspect_with(&of, at, from == 1);
    printf("inspect: %ld allocations\n", n);
    EXPECT(n > POINTS);
    backend_close(be);
    unlink(path);
}

/* As compile_with, for a schema that is weakened in all ways. */
static bool weaken_with(json_t *schema, long at, bool from) {
    long live_before = atomic_load(&n_live);
    inferd_err err = {0};
    grammar *g = NULL;
    atomic_store(&fail_from, from);
    atomic_store(&n_calls, 0);
    atomic_store(&fail_at, at);
    grammar_schema_kind kind = {.weakened = json_array()};
    inferd_status st = INFERD_ENOMEM;
    if (kind.weakened != NULL) st = grammar_of_schema(schema, &kind, NULL, &g, &err);
    size_t n_left_out = json_array_size(kind.weakened);
    grammar_release(g);
    json_decref(kind.weakened);
    atomic_store(&fail_at, -1);
    EXPECT(st == INFERD_OK || st == INFERD_ENOMEM);
    EXPECT_EQ(atomic_load(&n_live), live_before);
    bool reached = atomic_load(&n_calls) > at;
    if (!reached) EXPECT(st == INFERD_OK && n_left_out == 6);
    return reached;
}

static void every_allocation_of_weakening_may_fail(void) {
    static const char text[] =
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"format\":\"x\"},\"b\":{"
        "\"oneOf\":[{\"minLength\":\"1\"},{\"type\":\"null\"}]},\"c\":5,\"d\":{\"type\":\"array\","
        "\"uniqueItems\":true},\"e\":{\"$ref\":\"#/none\"}}}";
    json_t *schema = json_loads(text, 0, NULL);
    long n = 0;
    while (weaken_with(schema, n, false)) n++;
    long stride = n > 200 ? n / 200 : 1;
    for (long at = 0; at < n; at += stride) weaken_with(schema, at, true);
    printf("weakening: %ld allocations\n", n);
    json_decref(schema);
}

static const test_case cases[] = {
    TEST(every_allocation_may_fail), TEST(every_allocation_of_structured_output_may_fail),
    TEST(every_allocation_of_inspect_may_fail), TEST(every_allocation_of_each_compiler_may_fail),
    TEST(every_allocation_of_weakening_may_fail)};
TEST_MAIN(cases)
