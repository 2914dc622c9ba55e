/* test_cuda_engine.c - the engine, a model from a file and the CUDA backend, end to end on
 * emulation (or on a GPU when INFERD_CUDA_MODULE names an inferd_cuda.so).
 *
 * The model is tiny and random.  What it says is compared with the CPU's by the log-probabilities
 * of given texts; which tokens a batch draws may differ in the last bit of a logit, so of generated
 * text only the numbers are checked: every request ends once, and everything is given back. */
#include <unistd.h>

#include "cuda_emul/fake_api.h"
#include "engine_limits.h"
#include "engine_private.h"
#include "gpu_calls.h"
#include "inferd/clock.h"
#include "kernels/backend.h"
#include "test.h"
#include "tiny_gguf.h"

const struct cuda_module *emul_module(void);

enum { REQUESTS_MAX = 128, TOKENS_MAX = 256, GIVE_UP_MS = 120000 };

typedef struct outcome {
    uint32_t n_tokens, n_done;
    tok_id tokens[TOKENS_MAX];
    float logprobs[TOKENS_MAX];
    float prompt_logprobs[TOKENS_MAX];
    uint32_t n_prompt_logprobs;
    gen_event done;
} outcome;

typedef struct front {
    char path[64];
    model *m;
    engine *e;
    outcome *outcomes; // by id
    uint32_t n_done;
} front;

static bool on_gpu(void) {
    return gpu_calls_wanted();
}

static void wake(void *ctx) {
    (void)ctx;
}

static void nap(void) {
    nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
}

static bool front_open_pinned(front *f, const char *kind, uint64_t memory_mib,
                              const engine_limits *limits, model_pin pin) {
    inferd_err err = {0};
    *f = (front){0};
    f->outcomes = calloc(REQUESTS_MAX, sizeof *f->outcomes);
    snprintf(f->path, sizeof f->path, "/tmp/test_cuda_engine.%d.gguf", (int)getpid());
    tiny_model_write(f->path, 11,
                     &(tiny_model_options){.type = DTYPE_F16, .n_layers = 2, .n_ctx = 256});
    EXPECT_EQ(model_open(&(model_options){.path = f->path}, &f->m, &err), INFERD_OK);
    engine_options o = {.device = {.kind = kind,
                                   .n_threads = 1,
                                   .memory_bytes = memory_mib << 20,
                                   .workspace_bytes = 64u << 20,
                                   .activations = "f16"},
                        .limits = *limits,
                        .n_slots = 2,
                        .wake = wake};
    if (!on_gpu()) o.device.module = emul_module();
    if (f->m == NULL || engine_start(&o, &f->e, &err) != INFERD_OK) {
        printf("%s\n", err.text);
        test_failures++;
        return false;
    }
    model_policy policy = {.prio = GEN_NORMAL,
                           .weight = 1,
                           .pin = pin,
                           .keep_alive_us = POLICY_NEVER,
                           .replicas_min = 1};
    EXPECT(engine_model_add(f->e, 0, f->m, UINT32_MAX, &policy));
    for (int i = 0; i < 2 * GIVE_UP_MS && engine_model_state(f->e, 0) < MODEL_HOT; i++) nap();
    if (engine_model_state(f->e, 0) != MODEL_HOT) {
        engine_model_error(f->e, 0, &err);
        printf("the model did not become hot: %s\n", err.text);
        test_failures++;
        return false;
    }
    return true;
}

static bool front_open(front *f, const char *kind, uint64_t memory_mib,
                       const engine_limits *limits) {
    return front_open_pinned(f, kind, memory_mib, limits, PIN_HOT);
}

/* Some tests stop it themselves, before the models that it has go. */
static void front_stop(front *f) {
    if (f->e == NULL) return;
    engine_stats stats;
    engine_get_stats(f->e, &stats);
    gpu_calls_add(stats.backend.n_launches + stats.backend.n_graph_launches);
    engine_stop(f->e);
    f->e = NULL;
}

static void front_close(front *f) {
    front_stop(f);
    model_close(f->m);
    unlink(f->path);
    free(f->outcomes);
    if (on_gpu()) return;
    EXPECT_EQ(fake_take_violations(), 0);
    EXPECT_EQ(fake_leaks(), 0);
}

static void front_read(front *f) {
    gen_event ev;
    while (engine_next_event(f->e, &ev)) {
        outcome *o = &f->outcomes[ev.id];
        EXPECT_EQ(o->n_done, 0);
        if (ev.kind == GEN_EV_TOKEN && o->n_tokens < TOKENS_MAX) {
            o->logprobs[o->n_tokens] = ev.token.r.logprob;
            o->tokens[o->n_tokens++] = ev.token.r.id;
        }
        if (ev.kind == GEN_EV_PROMPT && o->n_prompt_logprobs < TOKENS_MAX)
            o->prompt_logprobs[o->n_prompt_logprobs++] = ev.token.r.logprob;
        if (ev.kind != GEN_EV_DONE) continue;
        o->done = ev;
        o->n_done++;
        f->n_done++;
    }
}

static void wait_for(front *f, uint32_t n) {
    uint64_t give_up = clock_now_us() + (uint64_t)GIVE_UP_MS * 1000;
    while (f->n_done < n && clock_now_us() < give_up) {
        front_read(f);
        nap();
    }
    EXPECT_EQ(f->n_done, n);
}

static gen_request *request(uint64_t id, uint32_t n_prompt, uint32_t max_tokens) {
    gen_request *r = calloc(1, sizeof *r);
    *r = (gen_request){.id = id,
                       .prio = GEN_NORMAL,
                       .prompt = malloc(n_prompt * sizeof(tok_id)),
                       .n_prompt = n_prompt,
                       .max_tokens = max_tokens,
                       .ignore_eos = true,
                       .n_logprobs = -1,
                       .n_prompt_logprobs = -1,
                       .sampling = {.top_p = 1, .repetition_penalty = 1},
                       .arrival_us = clock_now_us()};
    for (uint32_t i = 0; i < n_prompt; i++)
        r->prompt[i] = (tok_id)(1 + (id * 13 + i * i * 7 + i) % 400);
    return r;
}

static void expect_clean_books(front *f) {
    inferd_err err = {0};
    buf json;
    buf_init(&json, 0);
    EXPECT_EQ(engine_audit(f->e, 20000, &json, &err), INFERD_OK);
    if (strstr(buf_cstr(&json), "\"ok\":true") == NULL) printf("%s\n", buf_cstr(&json));
    EXPECT(strstr(buf_cstr(&json), "\"ok\":true") != NULL);
    buf_deinit(&json);
}

/* ---- what it says ---- */

static void score(const char *kind, outcome *out, uint32_t n) {
    front f;
    engine_limits limits = {.running_max = 4, .step_tokens_max = 48};
    if (front_open(&f, kind, 192, &limits)) {
        for (uint32_t id = 1; id <= n; id++) {
            gen_request *r = request(id, 20 + 30 * id, 0);
            r->n_prompt_logprobs = 0;
            EXPECT(engine_submit(f.e, r));
        }
        wait_for(&f, n);
        memcpy(out, f.outcomes, (n + 1) * sizeof *out);
    }
    front_close(&f);
}

static void texts_are_as_likely_as_on_the_cpu(void) {
    enum { N = 3 };
    outcome *cpu = calloc(N + 1, sizeof *cpu), *gpu = calloc(N + 1, sizeof *gpu);
    double sum = 0, largest = 0;
    uint32_t n = 0;
    fake_reset();
    score("cpu", cpu, N);
    score("cuda", gpu, N);
    for (uint32_t id = 1; id <= N; id++) {
        EXPECT_EQ(gpu[id].n_prompt_logprobs, cpu[id].n_prompt_logprobs);
        EXPECT(gpu[id].n_prompt_logprobs >= 49);
        for (uint32_t i = 0; i < gpu[id].n_prompt_logprobs; i++, n++) {
            double d =
                fabs((double)gpu[id].prompt_logprobs[i] - (double)cpu[id].prompt_logprobs[i]);
            sum += d;
            largest = fmax(largest, d);
        }
    }
    EXPECT(n > 100 && sum / n <= 0.005 && largest <= 0.05);
    if (!(largest <= 0.05)) printf("mean %g, largest %g of %u\n", sum / n, largest, n);
    free(cpu);
    free(gpu);
}

/* ---- many at once ---- */

static void requests_share_a_small_pool_and_all_end(void) {
    front f;
    engine_limits limits = {.running_max = 6, .step_tokens_max = 40};
    fake_reset();
    if (front_open(&f, "cuda", 64 + 16, &limits)) {
        for (uint32_t id = 1; id <= 24; id++) {
            gen_request *r = request(id, 3 + id * 5 % 60, 4 + id % 9);
            if (id % 3 == 1) r->sampling.temperature = 1;
            if (id % 3 == 2) r->sampling.frequency_penalty = 0.5f;
            r->sampling.seed = id;
            EXPECT(engine_submit(f.e, r));
            if (id % 5 == 0) engine_cancel(f.e, id - 2);
        }
        wait_for(&f, 24);
        for (uint32_t id = 1; id <= 24; id++) {
            const outcome *o = &f.outcomes[id];
            if (o->done.done.finish == GEN_CANCELLED) continue;
            EXPECT_EQ(o->done.done.finish, GEN_LENGTH);
            EXPECT_EQ(o->n_tokens, 4 + id % 9);
            for (uint32_t i = 0; i < o->n_tokens; i++)
                EXPECT(o->tokens[i] >= 0 && o->tokens[i] < TINY_VOCAB);
        }
        expect_clean_books(&f);
        engine_stats stats;
        engine_get_stats(f.e, &stats);
        EXPECT_EQ(stats.backend.n_kv_driver_calls, 0);
        EXPECT(stats.backend.n_graph_launches > 0);
        EXPECT_EQ(stats.backend.n_matmul_expanded, 0);
    }
    front_close(&f);
}

/* The same request alone, twice: the same tokens. */
static void a_request_alone_is_answered_the_same_again(void) {
    front f;
    engine_limits limits = {.running_max = 4, .step_tokens_max = 40};
    fake_reset();
    if (front_open(&f, "cuda", 96, &limits)) {
        for (uint64_t id = 1; id <= 2; id++) {
            gen_request *r = request(id, 30, 12);
            for (uint32_t i = 0; i < r->n_prompt; i++) r->prompt[i] = (tok_id)(5 + i * 3);
            r->sampling.temperature = 0.9f;
            r->sampling.seed = 77;
            r->no_cache = true;
            EXPECT(engine_submit(f.e, r));
            wait_for(&f, (uint32_t)id);
        }
        EXPECT_EQ(f.outcomes[1].n_tokens, 12);
        EXPECT(memcmp(f.outcomes[1].tokens, f.outcomes[2].tokens, 12 * sizeof(tok_id)) == 0);
    }
    front_close(&f);
}

/* ---- two models ---- */

enum { LOWS = 3, LOW_TOKENS = 40, HIGH = LOWS + 1 };

static grammar_machine *open_grammar(const model *m, const char *pattern) {
    inferd_err err = {0};
    grammar *g = NULL;
    grammar_vocab *v = NULL;
    grammar_machine *machine = NULL;
    const tokenizer *t = model_tokenizer(m);
    uint32_t n_vocab = (uint32_t)size_min(tok_n_vocab(t), model_about(m)->n_vocab);
    EXPECT_EQ(grammar_of_regex((bytes){pattern, strlen(pattern)}, NULL, &g, &err), INFERD_OK);
    EXPECT_EQ(grammar_vocab_create(t, n_vocab, &v, &err), INFERD_OK);
    EXPECT_EQ(grammar_machine_create(g, v, &machine, &err), INFERD_OK);
    grammar_release(g);
    grammar_vocab_release(v);
    return machine;
}

/* All tokens were allowed, and where it ended before max_tokens it may end. */
static void expect_follows(const outcome *o, grammar_machine *m, const model *of) {
    inferd_err err = {0};
    grammar_pos pos = grammar_start(m);
    uint32_t n = o->n_tokens;
    if (n > 0 && tok_is_end(model_tokenizer(of), o->tokens[n - 1])) n--;
    for (uint32_t i = 0; i < n; i++) EXPECT(grammar_accept(m, pos, o->tokens[i], &err));
    EXPECT(o->done.done.finish == GEN_LENGTH || o->done.done.finish == GEN_STOP);
    EXPECT_EQ(o->done.done.finish == GEN_STOP, n < o->n_tokens || grammar_must_end(m, pos));
    if (o->done.done.finish == GEN_STOP) EXPECT(grammar_may_end(m, pos));
    grammar_drop(m, pos);
}

/* Beside free ones, sampled and greedy, on a device that draws itself and on one that does not;
 * with drafts, where there are. */
static void texts_follow_their_grammars(void) {
    enum { N = 12 };
    static const char *const kinds[] = {"cuda", "cpu", "cpu"};
    for (uint32_t k = 0; k < INFERD_COUNT(kinds); k++) {
        front f;
        fake_reset();
        engine_limits limits = {
            .running_max = 6, .step_tokens_max = 48, .draft_tokens = k == 2 ? 4 : 0};
        if (!front_open(&f, kinds[k], 192, &limits)) {
            front_close(&f);
            continue;
        }
        grammar_machine *m = open_grammar(f.m, "name: [a-z]{2,12}(, (red|green|blue|[0-9]+)){0,5}");
        for (uint32_t id = 1; id <= N; id++) {
            gen_request *r = request(id, 12, 40);
            r->sampling.temperature = id % 2 == 0 ? 0.9f : 0;
            r->sampling.seed = id;
            r->ignore_eos = id % 5 == 0;
            if (id % 4 != 0) grammar_machine_hold(r->grammar = m);
            EXPECT(engine_submit(f.e, r));
        }
        wait_for(&f, N);
        for (uint32_t id = 1; id <= N; id++)
            if (id % 4 != 0) expect_follows(&f.outcomes[id], m, f.m);
        expect_clean_books(&f);
        engine_stats stats;
        engine_get_stats(f.e, &stats);
        EXPECT(stats.n_masks >= N && stats.n_masks_made > 0);
        front_close(&f);
        grammar_machine_release(m);
    }
}

static bool add_second_model(front *f, char path[64], model **m) {
    inferd_err err = {0};
    snprintf(path, 64, "/tmp/test_cuda_engine.%d.second.gguf", (int)getpid());
    tiny_model_write(path, 12,
                     &(tiny_model_options){.type = DTYPE_F16, .n_layers = 2, .n_ctx = 256});
    model_policy policy = {
        .prio = GEN_NORMAL, .weight = 1, .keep_alive_us = POLICY_NEVER, .replicas_min = 1};
    EXPECT_EQ(model_open(&(model_options){.path = path}, m, &err), INFERD_OK);
    if (*m == NULL) return false;
    EXPECT(engine_model_add(f->e, 1, *m, UINT32_MAX, &policy));
    return true;
}

static gen_request *low_request(uint64_t id) {
    gen_request *r = request(id, 50, LOW_TOKENS);
    r->prio = GEN_BATCH;
    r->n_logprobs = 0;
    return r;
}

/* What a prompt's continuation is when nobody wants its pages, by id. */
static void run_undisturbed(outcome *out) {
    front f;
    engine_limits limits = {.running_max = 4, .step_tokens_max = 40};
    fake_reset();
    if (front_open(&f, "cuda", 96, &limits)) {
        for (uint64_t id = 1; id <= LOWS; id++) EXPECT(engine_submit(f.e, low_request(id)));
        wait_for(&f, LOWS);
        memcpy(out, f.outcomes, HIGH * sizeof *out);
    }
    front_close(&f);
}

/* The same text, up to where two tokens were as likely (batches of other sizes round differently):
 * behind that nothing can be said. */
static void expect_same_text(const outcome *a, const outcome *b) {
    uint32_t n = 0;
    while (n < LOW_TOKENS && a->tokens[n] == b->tokens[n]) {
        EXPECT_NEAR((double)a->logprobs[n], (double)b->logprobs[n], 0.02);
        n++;
    }
    if (n < LOW_TOKENS) EXPECT_NEAR((double)a->logprobs[n], (double)b->logprobs[n], 0.02);
    EXPECT(n >= LOW_TOKENS / 2);
}

/* One of two models fits beside its keys and values.  While one computes three texts the other is
 * wanted: the blocks go to host memory with the weights, and come back from there. */
static void a_text_goes_on_from_host_memory(void) {
    static outcome undisturbed[HIGH];
    char path[64] = "";
    front f;
    model *m = NULL;
    engine_limits limits = {.running_max = 4, .step_tokens_max = 40};
    if (on_gpu()) SKIP("the pool that is just full is the fake's");
    run_undisturbed(undisturbed);
    fake_reset();
    if (front_open_pinned(&f, "cuda", 64 + 4, &limits, PIN_NONE) &&
        add_second_model(&f, path, &m)) {
        engine_stats s;
        for (uint64_t id = 1; id <= LOWS; id++) EXPECT(engine_submit(f.e, low_request(id)));
        while (f.outcomes[LOWS].n_tokens < 3 && f.n_done == 0) {
            front_read(&f);
            nap();
        }
        gen_request *r = request(HIGH, 60, 10);
        r->model_idx = 1;
        r->prio = GEN_HIGH;
        EXPECT(engine_submit(f.e, r));
        wait_for(&f, HIGH);
        engine_get_stats(f.e, &s);
        EXPECT(s.n_swapped_out >= LOWS * (50 / 32) && s.n_swapped_in >= LOWS * (50 / 32));
        EXPECT(s.n_recomputed_tokens <= LOWS * 32); // the block that was not full
        EXPECT_EQ(s.backend.n_kv_driver_calls, 0);
        for (uint32_t id = 1; id <= LOWS; id++) {
            EXPECT_EQ(f.outcomes[id].done.done.finish, GEN_LENGTH);
            EXPECT_EQ(f.outcomes[id].n_tokens, LOW_TOKENS);
            EXPECT(f.outcomes[id].done.done.n_preempted > 0);
            expect_same_text(&f.outcomes[id], &undisturbed[id]);
        }
        expect_clean_books(&f);
    }
    front_stop(&f);
    model_close(m);
    unlink(path);
    front_close(&f);
}

/* ---- when it breaks ---- */

static void a_failed_step_ends_its_requests_and_no_others(void) {
    front f;
    engine_limits limits = {.running_max = 4, .step_tokens_max = 40};
    if (on_gpu()) SKIP("a real device does not fail on demand");
    fake_reset();
    if (front_open(&f, "cuda", 96, &limits)) {
        fake_fail_call("launch", 5, CU_EFAILED);
        EXPECT(engine_submit(f.e, request(1, 10, 5)));
        wait_for(&f, 1);
        EXPECT_EQ(f.outcomes[1].done.done.finish, GEN_ERROR);
        EXPECT_EQ(f.outcomes[1].done.done.status, INFERD_EDEVICE);
        EXPECT(engine_submit(f.e, request(2, 10, 5)));
        wait_for(&f, 2);
        EXPECT_EQ(f.outcomes[2].done.done.finish, GEN_LENGTH);
        EXPECT(!engine_is_lost(f.e));
        expect_clean_books(&f);
    }
    front_close(&f);
}

/* ---- a core that is turned by hand: what is queued behind what is known ---- */

static uint64_t hand_clock(void *ctx) {
    (void)ctx;
    return clock_now_us();
}

static uint32_t hand_room(void *ctx) {
    (void)ctx;
    return UINT32_MAX;
}

static void hand_event(void *ctx, const gen_event *ev) {
    outcome *o = &((front *)ctx)->outcomes[ev->id];
    o->n_tokens += ev->kind == GEN_EV_TOKEN;
    if (ev->kind != GEN_EV_DONE) return;
    o->done = *ev;
    o->n_done++;
}

static void hand_iterate(core *c) {
    inferd_err err = {0};
    core_iterate(c);
    sched_flush(c->sched, UINT32_MAX);
    EXPECT_EQ(core_verify(c, &err), INFERD_OK);
    if (err.text[0] != 0) printf("%s\n", err.text);
}

static bool hand_open(front *f, core *c, model *m, const engine_limits *given) {
    inferd_err err = {0};
    engine_limits l = limits_fill(given);
    backend_options o = {.kind = "cuda",
                         .n_threads = 1,
                         .memory_bytes = 96u << 20,
                         .workspace_bytes = 64u << 20,
                         .module = emul_module()};
    model_policy policy = {.prio = GEN_NORMAL,
                           .weight = 1,
                           .pin = PIN_HOT,
                           .keep_alive_us = POLICY_NEVER,
                           .replicas_min = 1};
    core_options co = {.limits = limits_of_sched(&l),
                       .residency = limits_of_models(&l),
                       .n_slots = 1,
                       .clock = hand_clock,
                       .room = hand_room,
                       .emit = hand_event,
                       .wake = wake,
                       .ctx = f};
    bool fine = device_backend_create(&o, 1, &co.device, &err) == INFERD_OK &&
                core_init(c, &co, &err) == INFERD_OK && core_open(c, &err) == INFERD_OK;
    if (fine) residency_attach(&c->models, 0, m, DEVICE_OWN, &policy, clock_now_us());
    for (int i = 0; i < 100000 && fine && residency_state(&c->models, 0) < MODEL_HOT; i++)
        hand_iterate(c);
    fine = fine && residency_state(&c->models, 0) == MODEL_HOT;
    if (!fine) printf("%s\n", err.text);
    EXPECT(fine);
    return fine;
}

static void hand_submit(core *c, gen_request *r) {
    r->arrival_us = clock_now_us();
    sched_submit(c->sched, r, r->arrival_us);
}

/* Request 2 arrives when the step of request 1 has failed and the next one is not launched yet.
 * Both are in that one, which waits for a token that was never drawn: request 2 was answered with
 * "row 0 waits for draw 0 of a step that had 0", as if it had asked for that. */
static void a_step_behind_a_failed_one_is_computed_again(void) {
    front f = {0};
    core c = {0};
    engine_limits limits = {.running_max = 4, .step_tokens_max = 40};
    inferd_err err = {0};
    if (on_gpu()) SKIP("a real device does not fail on demand");
    fake_reset();
    f.outcomes = calloc(REQUESTS_MAX, sizeof *f.outcomes);
    snprintf(f.path, sizeof f.path, "/tmp/test_cuda_engine.%d.gguf", (int)getpid());
    tiny_model_write(f.path, 11,
                     &(tiny_model_options){.type = DTYPE_F16, .n_layers = 2, .n_ctx = 256});
    EXPECT_EQ(model_open(&(model_options){.path = f.path}, &f.m, &err), INFERD_OK);
    if (hand_open(&f, &c, f.m, &limits)) {
        hand_submit(&c, request(1, 10, 30));
        while (f.outcomes[1].n_tokens < 3) hand_iterate(&c);
        EXPECT_EQ(c.n_flight, 1);
        fake_fail_call("copy_to_device", 1, CU_EFAILED);
        hand_iterate(&c);
        EXPECT(fake_failed());
        EXPECT_EQ(f.outcomes[1].n_done, 0);
        hand_submit(&c, request(2, 12, 5));
        hand_iterate(&c);
        EXPECT_EQ(f.outcomes[1].done.done.finish, GEN_ERROR);
        EXPECT_EQ(f.outcomes[1].done.done.status, INFERD_EDEVICE);
        for (int i = 0; i < 100 && f.outcomes[2].n_done == 0; i++) hand_iterate(&c);
        EXPECT_EQ(f.outcomes[2].done.done.finish, GEN_LENGTH);
        EXPECT_EQ(f.outcomes[2].n_tokens, 5);
        if (f.outcomes[2].done.done.text[0] != 0) printf("%s\n", f.outcomes[2].done.done.text);
        core_end(&c);
    }
    core_deinit(&c);
    front_close(&f);
}

static void a_lost_device_ends_everything_with_one_word(void) {
    front f;
    engine_limits limits = {.running_max = 4, .step_tokens_max = 40};
    if (on_gpu()) SKIP("a real device is not lost on demand");
    fake_reset();
    if (front_open(&f, "cuda", 96, &limits)) {
        for (uint32_t id = 1; id <= 8; id++) EXPECT(engine_submit(f.e, request(id, 20, 100)));
        fake_lose_context_at(200);
        wait_for(&f, 8);
        for (uint32_t id = 1; id <= 8; id++) {
            EXPECT_EQ(f.outcomes[id].done.done.finish, GEN_ERROR);
            EXPECT_EQ(f.outcomes[id].done.done.status, INFERD_ELOST);
        }
        EXPECT(engine_is_lost(f.e));
        EXPECT_EQ(engine_model_state(f.e, 0), MODEL_FAILED);
        EXPECT(engine_submit(f.e, request(9, 20, 5)));
        wait_for(&f, 9);
        EXPECT_EQ(f.outcomes[9].done.done.status, INFERD_ELOST);
    }
    engine_stop(f.e);
    model_close(f.m);
    unlink(f.path);
    free(f.outcomes);
    fake_take_violations();
}

static const test_case cases[] = {
    TEST(texts_are_as_likely_as_on_the_cpu),
    TEST(requests_share_a_small_pool_and_all_end),
    TEST(texts_follow_their_grammars),
    TEST(a_request_alone_is_answered_the_same_again),
    TEST(a_text_goes_on_from_host_memory),
    TEST(a_failed_step_ends_its_requests_and_no_others),
    TEST(a_step_behind_a_failed_one_is_computed_again),
    TEST(a_lost_device_ends_everything_with_one_word),
};
TEST_MAIN(cases)
