/* test_sched.c - decisions of the scheduler, one by one, and then a storm of all of them whose
 * outputs must be those of a calm day. */
#include "test.h"

#include "fake_device.h"
#include "rate.h"
#include "sched_state.h"

enum { OUT_MAX = 4096, REQUESTS_MAX = 4096 };

/* What came out for one request. */
typedef struct outcome {
    tok_id *tokens; // generated
    uint32_t n_tokens, n_scored, n_done;
    float scores[600];
    tok_id scored[600];
    gen_event done;
} outcome;

/* A scheduler, a pool and a fake device, driven by hand with virtual time. */
typedef struct rig {
    fake_device device;
    pool pool;
    sched *s;
    step steps[2];
    uint32_t n_flight, oldest;
    uint64_t now_us;
    outcome *outcomes; // [REQUESTS_MAX] by id
} rig;

static void on_event(void *ctx, const gen_event *e) {
    rig *r = ctx;
    outcome *o = &r->outcomes[e->id];
    EXPECT_EQ(o->n_done, 0); // nothing follows the last event
    if (e->kind == GEN_EV_DONE) {
        o->n_done++;
        o->done = *e;
    } else if (e->kind == GEN_EV_TOKEN) {
        if (o->tokens == NULL) o->tokens = malloc(OUT_MAX * sizeof *o->tokens);
        o->tokens[o->n_tokens++] = e->token.r.id;
    } else {
        o->scores[o->n_scored] = e->token.r.logprob;
        o->scored[o->n_scored++] = e->token.r.id;
    }
}

static sched_limits default_limits(void) {
    return (sched_limits){.depth = 1,
                          .running_max = 8,
                          .step_tokens_max = 128,
                          .logits_max = 16,
                          .queue_len_max = 256,
                          .step_max_us = 100000,
                          .decode_step_us = 25000,
                          .starvation_us = 2000000};
}

/* Blocks of 4 tokens in 2 groups, 6 slots per page: 3 blocks per page. */
static void rig_init(rig *r, uint32_t n_pages, const sched_limits *limits) {
    static const tok_id end_ids[] = {FAKE_END};
    inferd_err err = {0};
    *r = (rig){.now_us = 1000};
    r->device = (fake_device){.n_pages = n_pages,
                              .depth = limits->depth,
                              .context = 512,
                              .kv = fake_layout(4, 2, 6),
                              .late = true,
                              .a_us = 1000,
                              .b_us = 100};
    r->outcomes = calloc(REQUESTS_MAX, sizeof *r->outcomes);
    device_about about;
    EXPECT_EQ(fake_open(&r->device, &about, &err), INFERD_OK);
    EXPECT_EQ(pool_init(&r->pool, n_pages, 1, &err), INFERD_OK);
    EXPECT_EQ(sched_create(limits, &r->pool, 1, on_event, r, &r->s, &err), INFERD_OK);
    for (int i = 0; i < 2; i++)
        EXPECT_EQ(step_init(&r->steps[i], limits->step_tokens_max, limits->running_max,
                            limits->logits_max, &err),
                  INFERD_OK);
    sched_model_spec spec = {r->device.kv, r->device.context, FAKE_VOCAB, end_ids, 1};
    EXPECT_EQ(sched_model_open(r->s, 0, &spec, &err), INFERD_OK);
    sched_model_hot(r->s, 0);
}

static void rig_verify(rig *r) {
    inferd_err err = {0};
    if (sched_verify(r->s, &err) != INFERD_OK) {
        printf("%s\n", err.text);
        EXPECT(!"the books balance");
    }
}

static void rig_deinit(rig *r) {
    EXPECT_EQ(r->device.n_faults, 0);
    sched_destroy(r->s);
    pool_deinit(&r->pool);
    for (int i = 0; i < 2; i++) step_deinit(&r->steps[i]);
    for (uint32_t i = 0; i < REQUESTS_MAX; i++) free(r->outcomes[i].tokens);
    free(r->outcomes);
    fake_close(&r->device);
}

/* A step is planned and launched: the step, or NULL. */
static step *rig_plan(rig *r) {
    step *st = &r->steps[(r->oldest + r->n_flight) % 2];
    if (!sched_plan(r->s, r->now_us, st)) return NULL;
    fake_launch(&r->device, st);
    r->n_flight++;
    return st;
}

static void rig_finish(rig *r) {
    step *st = &r->steps[r->oldest];
    inferd_err err = {0};
    uint64_t device_us = 0;
    sched_refresh(r->s, st);
    inferd_status status = fake_finish(&r->device, st, &device_us, &err);
    r->now_us += device_us;
    if (status == INFERD_OK) sched_commit(r->s, st, device_us, r->now_us);
    else sched_fail(r->s, st, &err, r->now_us);
    r->oldest = (r->oldest + 1) % 2;
    r->n_flight--;
}

/* One turn as the engine does it.  False: nothing happened. */
static bool rig_turn(rig *r) {
    while (r->n_flight < r->device.depth && rig_plan(r) != NULL) {}
    bool finished = r->n_flight > 0;
    if (finished) rig_finish(r);
    sched_flush(r->s, UINT32_MAX);
    return finished;
}

static void rig_run(rig *r) {
    for (int i = 0; i < 100000 && rig_turn(r); i++) {}
    rig_verify(r);
}

static gen_request *request(uint64_t id, uint32_t n_prompt, uint32_t max_tokens) {
    gen_request *q = calloc(1, sizeof *q);
    q->id = id;
    q->class = GEN_NORMAL;
    q->prompt = malloc(n_prompt * sizeof *q->prompt);
    q->n_prompt = n_prompt;
    for (uint32_t i = 0; i < n_prompt; i++)
        q->prompt[i] = (tok_id)((id * 31 + i * 7 + i * i) % FAKE_VOCAB);
    q->max_tokens = max_tokens;
    q->ignore_eos = true;
    q->n_logprobs = q->n_prompt_logprobs = -1;
    return q;
}

static gen_request *copy_request(const gen_request *q) {
    gen_request *c = malloc(sizeof *c);
    *c = *q;
    c->prompt = malloc(q->n_prompt * sizeof *c->prompt);
    memcpy(c->prompt, q->prompt, q->n_prompt * sizeof *c->prompt);
    c->stop_ids = malloc((q->n_stop_ids + 1) * sizeof *c->stop_ids);
    if (q->n_stop_ids > 0)
        memcpy(c->stop_ids, q->stop_ids, q->n_stop_ids * sizeof *c->stop_ids);
    return c;
}

/* What a request gives when it is alone in the world. */
typedef struct expected {
    tok_id tokens[OUT_MAX];
    uint32_t n_tokens;
    gen_finish finish;
    tok_id stop_id;
} expected;

static void expect_of(const gen_request *q, uint32_t context, expected *x) {
    tok_id all[OUT_MAX + 600], banned[16];
    uint32_t n = q->n_prompt, n_banned = 0;
    *x = (expected){.finish = GEN_LENGTH, .stop_id = -1};
    memcpy(all, q->prompt, n * sizeof *all);
    if (!q->ignore_eos) banned[n_banned++] = FAKE_END;
    for (uint32_t i = 0; i < q->n_stop_ids; i++) banned[n_banned++] = q->stop_ids[i];
    while (x->n_tokens < q->max_tokens && n < context) {
        bool early = x->n_tokens < q->min_tokens;
        tok_id id = fake_next(all, n, banned, early ? n_banned : 0);
        all[n++] = x->tokens[x->n_tokens++] = id;
        if (early) continue;
        if (id == FAKE_END && !q->ignore_eos) {
            x->finish = GEN_STOP;
            return;
        }
        for (uint32_t i = 0; i < q->n_stop_ids; i++)
            if (q->stop_ids[i] == id) {
                x->finish = GEN_STOP;
                x->stop_id = id;
                return;
            }
    }
}

static bool gives(const rig *r, const gen_request *q) {
    static expected x;
    const outcome *o = &r->outcomes[q->id];
    expect_of(q, r->device.context, &x);
    return o->n_done == 1 && o->done.done.finish == x.finish && o->done.done.stop_id == x.stop_id &&
           o->n_tokens == x.n_tokens && o->done.done.n_output == x.n_tokens &&
           (x.n_tokens == 0 || memcmp(o->tokens, x.tokens, x.n_tokens * sizeof *x.tokens) == 0);
}

/* ---- one request ---- */

static void a_request_gives_the_pure_function_of_its_prompt(void) {
    for (uint32_t depth = 1; depth <= 2; depth++) {
        rig r;
        sched_limits l = default_limits();
        l.depth = depth;
        rig_init(&r, 64, &l);
        gen_request *q = request(1, 37, 50), *copy = copy_request(q);
        sched_submit(r.s, q, r.now_us);
        rig_run(&r);
        EXPECT(gives(&r, copy));
        EXPECT_EQ(r.outcomes[1].done.done.n_cached, 0);
        EXPECT_EQ(r.s->n_running + r.s->n_waiting + r.s->n_ended, 0);
        EXPECT_EQ(r.s->models[0].kv.n_live, 0);
        gen_request_destroy(copy);
        rig_deinit(&r);
    }
}

static void depth_two_plans_a_row_for_a_promised_token(void) {
    rig r;
    sched_limits l = default_limits();
    l.depth = 2;
    rig_init(&r, 64, &l);
    sched_submit(r.s, request(1, 5, 10), r.now_us);
    step *first = rig_plan(&r);
    EXPECT(first != NULL && first->b.n_rows == 5 && first->b.n_logits == 1);
    step *second = rig_plan(&r);
    EXPECT(second != NULL);
    EXPECT_EQ(second->b.n_rows, 1);
    EXPECT_EQ(second->b.tokens[0], TOK_PROMISED);
    EXPECT_EQ(second->b.promised[0], 0);
    EXPECT_EQ(second->b.positions[0], 5);
    rig_verify(&r);
    rig_run(&r);
    EXPECT_EQ(r.outcomes[1].n_tokens, 10);
    rig_deinit(&r);
}

static void pages_of_a_cancelled_sequence_wait_for_both_steps(void) {
    rig r;
    sched_limits l = default_limits();
    l.depth = 2;
    l.no_prefix_cache = true;
    rig_init(&r, 8, &l);
    sched_submit(r.s, request(1, 5, 10), r.now_us);
    EXPECT(rig_plan(&r) != NULL && rig_plan(&r) != NULL);
    EXPECT_EQ(r.pool.n_in[PAGE_FREE], 7);
    sched_cancel(r.s, 1, r.now_us);
    rig_verify(&r);
    EXPECT_EQ(sched_flush(r.s, 10), 1); // its end is told at once
    EXPECT_EQ(r.outcomes[1].done.done.finish, GEN_CANCELLED);
    EXPECT_EQ(r.pool.n_in[PAGE_QUARANTINE], 1);
    rig_finish(&r);
    EXPECT_EQ(r.pool.n_in[PAGE_QUARANTINE], 1);
    rig_finish(&r);
    EXPECT_EQ(r.pool.n_in[PAGE_FREE], 8);
    sched_flush(r.s, 10);
    EXPECT_EQ(r.s->n_ended, 0);
    EXPECT_EQ(r.outcomes[1].n_tokens, 0);
    rig_verify(&r);
    rig_deinit(&r);
}

static void ends_are_told_as_they_are(void) {
    rig r;
    sched_limits l = default_limits();
    rig_init(&r, 200, &l);
    gen_request *copies[64];
    uint32_t n_stop = 0, n_stop_id = 0;
    for (uint32_t i = 0; i < 60; i++) {
        gen_request *q = request(i + 1, 3 + i % 9, i == 0 ? 1 : 200);
        q->ignore_eos = i % 3 == 0;
        q->min_tokens = i % 4 == 0 ? 30 : 0;
        if (i % 2 == 0) {
            q->stop_ids = malloc(2 * sizeof *q->stop_ids);
            q->stop_ids[0] = (tok_id)(i + 20);
            q->stop_ids[1] = (tok_id)(i + 100);
            q->n_stop_ids = 2;
        }
        copies[i] = copy_request(q);
        sched_submit(r.s, q, r.now_us);
    }
    rig_run(&r);
    for (uint32_t i = 0; i < 60; i++) {
        EXPECT(gives(&r, copies[i]));
        n_stop += r.outcomes[i + 1].done.done.finish == GEN_STOP;
        n_stop_id += r.outcomes[i + 1].done.done.stop_id >= 0;
        gen_request_destroy(copies[i]);
    }
    EXPECT(n_stop > 20 && n_stop_id > 10 && n_stop > n_stop_id); // the cases above really occur
    rig_deinit(&r);
}

static void the_context_ends_a_request_without_a_maximum(void) {
    rig r;
    sched_limits l = default_limits();
    rig_init(&r, 200, &l);
    sched_submit(r.s, request(1, 500, GEN_NO_MAX), r.now_us);
    rig_run(&r);
    EXPECT_EQ(r.outcomes[1].n_tokens, 12);
    EXPECT_EQ(r.outcomes[1].done.done.finish, GEN_LENGTH);
    rig_deinit(&r);
}

static void a_full_pool_ends_a_request_without_a_maximum(void) {
    rig r;
    sched_limits l = default_limits();
    rig_init(&r, 4, &l); // 12 blocks, 48 tokens
    sched_submit(r.s, request(1, 40, GEN_NO_MAX), r.now_us);
    rig_run(&r);
    EXPECT_EQ(r.outcomes[1].n_tokens, 9); // the last one needs no keys and values
    EXPECT_EQ(r.outcomes[1].done.done.finish, GEN_LENGTH);
    rig_deinit(&r);
}

static void what_can_never_fit_is_refused_with_numbers(void) {
    rig r;
    sched_limits l = default_limits();
    rig_init(&r, 4, &l);
    static const struct {
        uint32_t n_prompt, max_tokens;
        inferd_status status;
        const char *word;
    } cases[] = {
        {48, 1, INFERD_OK, ""},
        {48, 0, INFERD_OK, ""},
        {40, 9, INFERD_OK, ""},
        {40, 10, INFERD_ETOOLONG, "49 tokens, the memory for them holds 48"},
        {49, 0, INFERD_ETOOLONG, "the prompt has 49 tokens"},
        {512, 1, INFERD_ETOOLONG, "the context holds 512"},
        {600, 0, INFERD_ETOOLONG, "the prompt has 600 tokens, the context holds 512"},
    };
    for (size_t i = 0; i < INFERD_COUNT(cases); i++) {
        sched_submit(r.s, request(i + 1, cases[i].n_prompt, cases[i].max_tokens), r.now_us);
        rig_run(&r);
        EXPECT_EQ(r.outcomes[i + 1].done.done.status, cases[i].status);
        EXPECT(strstr(r.outcomes[i + 1].done.done.text, cases[i].word) != NULL);
        EXPECT_EQ(r.outcomes[i + 1].done.done.finish,
                  cases[i].status == INFERD_OK ? GEN_LENGTH : GEN_ERROR);
    }
    rig_deinit(&r);
}

static void ids_outside_of_the_vocabulary_are_refused(void) {
    rig r;
    sched_limits l = default_limits();
    rig_init(&r, 8, &l);
    gen_request *q = request(1, 4, 4);
    q->prompt[2] = FAKE_VOCAB;
    sched_submit(r.s, q, r.now_us);
    q = request(2, 4, 4);
    q->stop_ids = calloc(1, sizeof *q->stop_ids);
    q->stop_ids[0] = -1;
    q->n_stop_ids = 1;
    sched_submit(r.s, q, r.now_us);
    q = request(3, 4, 4);
    q->sampling.bias = calloc(1, sizeof *q->sampling.bias);
    q->sampling.bias[0].id = 1000;
    q->sampling.n_bias = 1;
    sched_submit(r.s, q, r.now_us);
    q = request(4, 4, 4);
    q->model_idx = 1;
    sched_submit(r.s, q, r.now_us);
    EXPECT(!rig_turn(&r));
    for (int i = 1; i <= 3; i++) EXPECT_EQ(r.outcomes[i].done.done.status, INFERD_EINVAL);
    EXPECT_EQ(r.outcomes[4].done.done.status, INFERD_ENOTFOUND);
    rig_verify(&r);
    rig_deinit(&r);
}

static void a_full_queue_says_so(void) {
    rig r;
    sched_limits l = default_limits();
    l.queue_len_max = 2;
    rig_init(&r, 8, &l);
    for (uint32_t i = 1; i <= 3; i++) sched_submit(r.s, request(i, 4, 4), r.now_us);
    rig_run(&r);
    EXPECT_EQ(r.outcomes[1].n_tokens, 4);
    EXPECT_EQ(r.outcomes[2].n_tokens, 4);
    EXPECT_EQ(r.outcomes[3].done.done.status, INFERD_EBUSY);
    rig_deinit(&r);
}

static void last_events_wait_for_room(void) {
    rig r;
    sched_limits l = default_limits();
    l.queue_len_max = 8;
    l.running_max = 2;
    rig_init(&r, 8, &l);
    for (uint32_t i = 1; i <= 13; i++) {
        sched_submit(r.s, request(i, 4, 1), r.now_us);
        if (i % 4 == 0) sched_cancel(r.s, i, r.now_us);
    }
    EXPECT_EQ(r.outcomes[13].done.done.status, INFERD_EBUSY); // no place left: told at once
    EXPECT_EQ(sched_n_unsent(r.s), 4); // 3 cancelled, one more than the queue holds
    EXPECT_EQ(sched_flush(r.s, 1), 1);
    EXPECT_EQ(sched_n_unsent(r.s), 3);
    rig_verify(&r);
    rig_run(&r);
    for (uint32_t i = 1; i <= 13; i++) EXPECT_EQ(r.outcomes[i].n_done, 1);
    rig_deinit(&r);
}

/* ---- scoring ---- */

static void a_prompt_is_scored_once_and_in_order(void) {
    for (uint32_t max_tokens = 0; max_tokens <= 3; max_tokens += 3)
        for (uint32_t depth = 1; depth <= 2; depth++) {
            rig r;
            sched_limits l = default_limits();
            l.depth = depth;
            rig_init(&r, 64, &l);
            sched_submit(r.s, request(9, 100, 5), r.now_us); // leaves blocks that must not be hit
            rig_run(&r);
            gen_request *q = request(9, 100, max_tokens);
            q->id = 1;
            q->n_prompt_logprobs = 0;
            gen_request *copy = copy_request(q);
            sched_submit(r.s, q, r.now_us);
            rig_run(&r);
            const outcome *o = &r.outcomes[1];
            EXPECT_EQ(o->n_scored, 100);
            EXPECT_EQ(o->n_tokens, max_tokens);
            EXPECT_EQ(o->done.done.finish, GEN_LENGTH);
            EXPECT_EQ(o->done.done.n_cached, 0);
            EXPECT_EQ(o->scores[0] == 0, 1);
            for (uint32_t i = 0; i < 100; i++) {
                EXPECT_EQ(o->scored[i], copy->prompt[i]);
                if (i > 0)
                    EXPECT_NEAR(o->scores[i], fake_logprob(copy->prompt, i, copy->prompt[i]), 0);
            }
            gen_request_destroy(copy);
            rig_deinit(&r);
        }
}

static void scoring_stays_within_the_logits_of_a_step(void) {
    rig r;
    sched_limits l = default_limits();
    rig_init(&r, 64, &l);
    gen_request *q = request(1, 60, 1);
    q->n_prompt_logprobs = 0;
    sched_submit(r.s, q, r.now_us);
    step *st = rig_plan(&r);
    EXPECT(st != NULL);
    EXPECT_EQ(st->b.n_logits, 16);
    EXPECT_EQ(st->b.n_rows, 16);
    rig_run(&r);
    EXPECT_EQ(r.outcomes[1].n_scored, 60);
    rig_deinit(&r);
}

static void nothing_to_draw_is_an_answer(void) {
    rig r;
    sched_limits l = default_limits();
    rig_init(&r, 64, &l);
    sched_submit(r.s, request(1, 10, 0), r.now_us);
    gen_request *q = request(2, 1, 0);
    q->n_prompt_logprobs = 2;
    sched_submit(r.s, q, r.now_us);
    rig_run(&r);
    EXPECT_EQ(r.outcomes[1].done.done.finish, GEN_LENGTH);
    EXPECT_EQ(r.outcomes[1].n_tokens + r.outcomes[1].n_scored, 0);
    EXPECT_EQ(r.outcomes[2].n_scored, 1);
    EXPECT_EQ(r.outcomes[2].n_done, 1);
    rig_deinit(&r);
}

/* ---- prefix cache ---- */

static void a_second_turn_finds_prompt_and_answer(void) {
    rig r;
    sched_limits l = default_limits();
    rig_init(&r, 64, &l);
    sched_submit(r.s, request(1, 20, 11), r.now_us);
    rig_run(&r);
    gen_request *q = request(1, 40, 4); // the same start, and the answer behind it
    q->id = 2;
    memcpy(q->prompt + 20, r.outcomes[1].tokens, 11 * sizeof *q->prompt);
    gen_request *copy = copy_request(q);
    sched_submit(r.s, q, r.now_us);
    rig_run(&r);
    EXPECT_EQ(r.outcomes[2].done.done.n_cached, 28); // 30 tokens were computed: 7 full blocks
    EXPECT(gives(&r, copy));
    gen_request_destroy(copy);
    rig_deinit(&r);
}

static void at_least_one_token_is_computed(void) {
    rig r;
    sched_limits l = default_limits();
    rig_init(&r, 64, &l);
    for (uint32_t i = 1; i <= 2; i++) {
        gen_request *q = request(1, 16, 5);
        q->id = i;
        sched_submit(r.s, q, r.now_us);
        rig_run(&r);
    }
    EXPECT_EQ(r.outcomes[2].done.done.n_cached, 12); // the fourth block holds the last token
    EXPECT_EQ(memcmp(r.outcomes[1].tokens, r.outcomes[2].tokens, 5 * sizeof(tok_id)), 0);
    rig_deinit(&r);
}

static void scopes_do_not_see_each_other(void) {
    rig r;
    sched_limits l = default_limits();
    rig_init(&r, 64, &l);
    for (uint32_t i = 1; i <= 4; i++) {
        gen_request *q = request(1, 21, 2);
        q->id = i;
        q->cache_scope[0] = i == 3 ? 5 : 0;
        q->no_cache = i == 4;
        sched_submit(r.s, q, r.now_us);
        rig_run(&r);
    }
    EXPECT_EQ(r.outcomes[2].done.done.n_cached, 20);
    EXPECT_EQ(r.outcomes[3].done.done.n_cached, 0);
    EXPECT_EQ(r.outcomes[4].done.done.n_cached, 0);
    rig_deinit(&r);
}

/* ---- order and budgets ---- */

static void decoding_goes_on_beside_a_long_prompt(void) {
    rig r;
    sched_limits l = default_limits();
    rig_init(&r, 200, &l);
    r.device.b_us = 1000; // a row takes a millisecond: 25 ms are about 24 rows
    sched_submit(r.s, request(1, 40, 40), r.now_us);
    while (r.outcomes[1].n_tokens < 3) rig_turn(&r);
    sched_submit(r.s, request(2, 400, 4), r.now_us);
    uint32_t before = r.outcomes[1].n_tokens, n_steps = 0;
    while (r.outcomes[2].n_tokens == 0) {
        step *st = rig_plan(&r);
        EXPECT(st != NULL);
        if (st == NULL) break;
        n_steps++;
        EXPECT(st->predicted_us <= 25500);
        EXPECT(r.outcomes[1].n_done == 1 || st->b.n_seqs == 2);
        rig_finish(&r);
        sched_flush(r.s, 10);
    }
    EXPECT(n_steps > 10 && n_steps < 60);
    EXPECT_EQ(r.outcomes[1].n_tokens, u32_min(before + n_steps, 40)); // one per step, always
    rig_run(&r);
    rig_deinit(&r);
}

static void no_step_is_planned_longer_than_its_maximum(void) {
    rig r;
    sched_limits l = default_limits();
    l.step_max_us = 40000;
    rig_init(&r, 200, &l);
    r.device.b_us = 1000;
    sched_submit(r.s, request(1, 500, 2), r.now_us);
    uint32_t largest = 0;
    for (step *st; (st = rig_plan(&r)) != NULL; sched_flush(r.s, 10)) {
        if (r.device.n_steps == 0) EXPECT_EQ(st->b.n_rows, RATE_DEFAULT_ROWS);
        EXPECT(st->predicted_us <= 40500);
        largest = u32_max(largest, st->b.n_rows);
        rig_finish(&r);
    }
    EXPECT(largest >= 36 && largest <= 40); // and it is used: 1 ms + 39 rows
    EXPECT_EQ(r.outcomes[1].n_tokens, 2);
    rig_deinit(&r);
}

static void chunks_grow_while_nobody_decodes(void) {
    rig r;
    sched_limits l = default_limits();
    rig_init(&r, 200, &l);
    sched_submit(r.s, request(1, 500, 2), r.now_us);
    static const uint32_t rows[] = {32, 64, 128, 128, 128};
    for (int i = 0; i < 5; i++) {
        step *st = rig_plan(&r);
        EXPECT_EQ(st->b.n_rows, rows[i]);
        rig_finish(&r);
    }
    rig_run(&r);
    rig_deinit(&r);
}

/* Which request got the first rows of the next step. */
static uint64_t first_planned(rig *r) {
    step *st = rig_plan(r);
    uint64_t id = st == NULL ? 0 : st->items[0].q->req->id;
    if (st != NULL) rig_finish(r);
    sched_flush(r->s, 100);
    return id;
}

static void class_then_rank_then_arrival(void) {
    rig r;
    sched_limits l = default_limits();
    l.running_max = 1;
    rig_init(&r, 64, &l);
    static const struct {
        gen_class class;
        int32_t rank;
    } cases[] = {{GEN_BATCH, -5},  {GEN_NORMAL, 0}, {GEN_NORMAL, -1},
                 {GEN_NORMAL, -1}, {GEN_HIGH, 9},   {GEN_SYSTEM, 0}};
    for (uint32_t i = 0; i < INFERD_COUNT(cases); i++) {
        gen_request *q = request(i + 1, 4, 1);
        q->class = cases[i].class;
        q->rank = cases[i].rank;
        sched_submit(r.s, q, r.now_us);
    }
    static const uint64_t order[] = {6, 5, 3, 4, 2, 1};
    for (uint32_t i = 0; i < INFERD_COUNT(order); i++) EXPECT_EQ(first_planned(&r), order[i]);
    rig_deinit(&r);
}

static void waiting_lifts_one_class_per_interval(void) {
    rig r;
    sched_limits l = default_limits();
    l.running_max = 1;
    rig_init(&r, 64, &l);
    gen_request *q = request(1, 4, 1);
    q->class = GEN_BATCH;
    sched_submit(r.s, q, r.now_us);
    r.now_us += 2000001; // batch counts as normal, and came first
    sched_submit(r.s, request(2, 4, 1), r.now_us);
    q = request(3, 4, 1);
    q->class = GEN_HIGH;
    sched_submit(r.s, q, r.now_us);
    EXPECT_EQ(first_planned(&r), 3);
    EXPECT_EQ(first_planned(&r), 1);
    EXPECT_EQ(first_planned(&r), 2);
    rig_deinit(&r);
}

static void a_batch_request_gets_through_a_stream_of_urgent_ones(void) {
    rig r;
    sched_limits l = default_limits();
    l.running_max = 2;
    rig_init(&r, 12, &l);
    gen_request *q = request(1, 20, 10);
    q->class = GEN_BATCH;
    gen_request *copy = copy_request(q);
    sched_submit(r.s, q, r.now_us);
    uint32_t id = 2;
    for (; id < 3000 && r.outcomes[1].n_done == 0; id++) {
        q = request(id, 20, 10);
        q->class = GEN_HIGH;
        sched_submit(r.s, q, r.now_us);
        q = request(++id, 20, 10);
        q->class = GEN_HIGH;
        sched_submit(r.s, q, r.now_us);
        r.now_us += 30000;
        for (int turn = 0; turn < 9; turn++) rig_turn(&r);
    }
    EXPECT(gives(&r, copy));
    gen_request_destroy(copy);
    rig_run(&r);
    rig_deinit(&r);
}

/* ---- preemption ---- */

static void an_urgent_request_takes_the_place_of_the_newest_of_the_lowest_class(void) {
    rig r;
    sched_limits l = default_limits();
    l.running_max = 3;
    rig_init(&r, 64, &l);
    gen_request *copies[5];
    for (uint32_t i = 1; i <= 3; i++) {
        gen_request *q = request(i, 8, 30);
        q->class = i == 1 ? GEN_NORMAL : GEN_BATCH;
        copies[i] = copy_request(q);
        sched_submit(r.s, q, r.now_us);
    }
    for (int i = 0; i < 5; i++) rig_turn(&r);
    gen_request *q = request(4, 8, 5);
    q->class = GEN_HIGH;
    copies[4] = copy_request(q);
    sched_submit(r.s, q, r.now_us);
    step *st = rig_plan(&r);
    EXPECT_EQ(st->b.n_seqs, 3);
    for (uint32_t i = 0; i < st->b.n_seqs; i++) EXPECT(st->items[i].q->req->id != 3);
    rig_finish(&r);
    rig_run(&r);
    for (uint32_t i = 1; i <= 4; i++) {
        EXPECT(gives(&r, copies[i]));
        EXPECT_EQ(r.outcomes[i].done.done.n_preempted, i == 3);
        gen_request_destroy(copies[i]);
    }
    rig_deinit(&r);
}

static void without_pages_the_newest_of_the_lowest_class_goes_and_resumes_exactly(void) {
    for (uint32_t depth = 1; depth <= 2; depth++) {
        rig r;
        sched_limits l = default_limits();
        l.depth = depth;
        rig_init(&r, 20, &l); // 60 blocks; four times 100 + 20 tokens need 120
        gen_request *copies[5];
        for (uint32_t i = 1; i <= 4; i++) {
            gen_request *q = request(i, 20, 100);
            q->class = i == 2 ? GEN_BATCH : GEN_NORMAL;
            copies[i] = copy_request(q);
            sched_submit(r.s, q, r.now_us);
        }
        while (r.s->counters.n_preemptions == 0 && rig_turn(&r)) rig_verify(&r);
        EXPECT_EQ(r.s->counters.n_preemptions, 1);
        for (uint32_t i = 0; i < r.s->n_seqs; i++)
            if (r.s->seqs[i].n_preempted > 0) EXPECT_EQ(r.s->seqs[i].req->id, 2);
        rig_run(&r);
        EXPECT(r.outcomes[1].done.done.n_preempted == 0);
        for (uint32_t i = 1; i <= 4; i++) {
            EXPECT(gives(&r, copies[i]));
            gen_request_destroy(copies[i]);
        }
        EXPECT_EQ(r.s->models[0].kv.n_live, 0);
        rig_deinit(&r);
    }
}

static void whoever_was_preempted_three_times_is_spared(void) {
    rig r;
    sched_limits l = default_limits();
    rig_init(&r, 20, &l);
    for (uint32_t i = 1; i <= 4; i++) sched_submit(r.s, request(i, 20, 100), r.now_us);
    for (int i = 0; i < 8; i++) rig_turn(&r);
    EXPECT_EQ(r.s->n_running, 4);
    for (uint32_t i = 0; i < r.s->n_seqs; i++)
        if (r.s->seqs[i].state == SEQ_RUNNING && r.s->seqs[i].req->id == 4)
            r.s->seqs[i].n_preempted = 3;
    while (r.s->counters.n_preemptions == 0 && rig_turn(&r)) {}
    for (uint32_t i = 0; i < r.s->n_seqs; i++)
        if (r.s->seqs[i].state == SEQ_WAITING) EXPECT_EQ(r.s->seqs[i].req->id, 3);
    rig_run(&r);
    rig_deinit(&r);
}

static void a_paused_sequence_keeps_its_pages_until_they_are_needed(void) {
    rig r;
    sched_limits l = default_limits();
    l.no_prefix_cache = true;
    rig_init(&r, 12, &l);
    gen_request *q = request(1, 40, 20), *copy = copy_request(q);
    q->class = GEN_SYSTEM;
    sched_submit(r.s, q, r.now_us);
    while (r.outcomes[1].n_tokens < 5) rig_turn(&r);
    uint32_t n_free = r.pool.n_in[PAGE_FREE];
    sched_pause(r.s, 1);
    EXPECT(!rig_turn(&r));
    EXPECT_EQ(r.pool.n_in[PAGE_FREE], n_free);
    EXPECT_EQ(r.s->n_running, 1);
    sched_submit(r.s, request(2, 10, 4), r.now_us); // fits beside it
    rig_run(&r);
    EXPECT_EQ(r.outcomes[2].n_tokens, 4);
    EXPECT_EQ(r.s->counters.n_preemptions, 0);
    sched_submit(r.s, request(3, 120, 4), r.now_us); // does not
    rig_run(&r);
    EXPECT_EQ(r.outcomes[3].n_tokens, 4);
    EXPECT_EQ(r.s->counters.n_preemptions, 1);
    EXPECT_EQ(r.s->counters.n_recomputed_tokens, 0);
    sched_resume(r.s, 1, r.now_us);
    rig_run(&r);
    EXPECT(gives(&r, copy));
    EXPECT_EQ(r.s->counters.n_recomputed_tokens, 44);
    gen_request_destroy(copy);
    rig_deinit(&r);
}

/* ---- deadlines and failures ---- */

static void deadlines_end_what_is_too_late(void) {
    rig r;
    sched_limits l = default_limits();
    l.running_max = 1;
    rig_init(&r, 64, &l);
    gen_request *q = request(1, 4, 400);
    q->queue_deadline_us = 2000; // planned before: does not matter
    q->deadline_us = 150000;
    sched_submit(r.s, q, r.now_us);
    rig_turn(&r);
    q = request(2, 4, 4);
    q->queue_deadline_us = 50000;
    sched_submit(r.s, q, r.now_us);
    EXPECT_EQ(sched_next_deadline(r.s), 2000); // may be early, never late
    while (r.outcomes[2].n_done == 0) rig_turn(&r);
    EXPECT(r.now_us >= 50000 && r.now_us < 53000);
    EXPECT_EQ(r.outcomes[2].done.done.finish, GEN_TIMEOUT);
    EXPECT_EQ(r.outcomes[1].n_done, 0);
    rig_run(&r);
    EXPECT(r.now_us >= 150000 && r.now_us < 153000);
    EXPECT_EQ(r.outcomes[1].done.done.finish, GEN_TIMEOUT);
    EXPECT(r.outcomes[1].n_tokens > 50);
    EXPECT_EQ(sched_next_deadline(r.s), UINT64_MAX);
    rig_deinit(&r);
}

static void a_failed_step_ends_its_sequences_and_no_others(void) {
    rig r;
    sched_limits l = default_limits();
    l.running_max = 2;
    rig_init(&r, 64, &l);
    r.device.fail_at = 3;
    for (uint32_t i = 1; i <= 3; i++) sched_submit(r.s, request(i, 4, 10), r.now_us);
    rig_run(&r);
    EXPECT_EQ(r.outcomes[1].done.done.status, INFERD_EDEVICE);
    EXPECT_STR(r.outcomes[2].done.done.text, "the device broke");
    EXPECT_EQ(r.outcomes[1].n_tokens, 2);
    EXPECT_EQ(r.outcomes[3].n_tokens, 10);
    EXPECT_EQ(r.s->models[0].kv.n_live, 0);
    rig_deinit(&r);
}

static void a_row_without_a_finite_logit_ends_its_request(void) {
    rig r;
    sched_limits l = default_limits();
    rig_init(&r, 64, &l);
    r.device.nan_at = 2;
    sched_submit(r.s, request(1, 4, 10), r.now_us);
    rig_run(&r);
    EXPECT_EQ(r.outcomes[1].n_tokens, 1);
    EXPECT_EQ(r.outcomes[1].done.done.status, INFERD_EDEVICE);
    EXPECT_STR(r.outcomes[1].done.done.text, "the model produced no finite logit");
    rig_deinit(&r);
}

/* ---- two models on one pool ---- */

static void two_models_share_the_device_and_its_pages(void) {
    static const tok_id end_ids[] = {FAKE_END};
    rig r;
    sched_limits l = default_limits();
    inferd_err err = {0};
    rig_init(&r, 12, &l);
    sched_destroy(r.s);
    pool_deinit(&r.pool);
    EXPECT_EQ(pool_init(&r.pool, 12, 2, &err), INFERD_OK);
    EXPECT_EQ(sched_create(&l, &r.pool, 2, on_event, &r, &r.s, &err), INFERD_OK);
    sched_model_spec spec = {r.device.kv, r.device.context, FAKE_VOCAB, end_ids, 1};
    for (uint32_t m = 0; m < 2; m++) {
        EXPECT_EQ(sched_model_open(r.s, m, &spec, &err), INFERD_OK);
        sched_model_hot(r.s, m);
    }
    gen_request *copies[9];
    for (uint32_t i = 1; i <= 8; i++) {
        gen_request *q = request(i, 30, 40);
        q->model_idx = i % 2;
        copies[i] = copy_request(q);
        sched_submit(r.s, q, r.now_us);
    }
    uint32_t n_turns = 0, n_switches = 0, last = 0;
    while (rig_turn(&r)) {
        rig_verify(&r);
        uint32_t now = r.steps[(r.oldest + 1) % 2].model_idx;
        n_switches += n_turns++ > 0 && now != last;
        last = now;
    }
    EXPECT(n_switches > 20); // they take turns
    for (uint32_t i = 1; i <= 8; i++) {
        EXPECT(gives(&r, copies[i]));
        gen_request_destroy(copies[i]);
    }
    rig_deinit(&r);
}

/* ---- the rate ---- */

static void the_rate_is_learned(void) {
    rate r = {0};
    EXPECT_EQ(rate_rows(&r, 1), RATE_DEFAULT_ROWS);
    rate_add(&r, 32, 1000 + 32 * 50);
    EXPECT_EQ(rate_us(&r, 64), 2 * (1000 + 32 * 50)); // not separated: never too optimistic
    for (int i = 0; i < 50; i++) {
        rate_add(&r, 1, 1050);
        rate_add(&r, 100, 6000);
    }
    EXPECT_NEAR(rate_us(&r, 0), 1000, 30);
    EXPECT_NEAR(rate_us(&r, 60), 4000, 40);
    EXPECT_NEAR(rate_rows(&r, 6000), 100, 2);
    EXPECT_EQ(rate_rows(&r, 900), 0);
    EXPECT_EQ(rate_rows(&r, 1000000), 200); // twice the largest step seen
    rate_add(&r, 100, 5000000);             // one hiccup
    EXPECT(rate_us(&r, 100) < 12000);
    for (int i = 0; i < 200; i++) rate_add(&r, 1, 2050); // only decoding, and slower
    EXPECT_NEAR(rate_us(&r, 1), 2050, 40);
    EXPECT(rate_us(&r, 101) > 2050 + 3000); // what a row costs is not forgotten
}

/* ---- the storm ---- */

static uint64_t storm_state;
static uint32_t storm(uint32_t n) {
    storm_state = storm_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(storm_state >> 33) % n;
}

static gen_request *storm_request(uint64_t id) {
    uint32_t n_prompt = 1 + (storm(4) == 0 ? storm(90) : storm(30));
    gen_request *q = request(id, n_prompt, storm(8) == 0 ? GEN_NO_MAX : storm(60));
    /* Few different beginnings, so that prefixes are found. */
    uint32_t kind = storm(4);
    for (uint32_t i = 0; i < n_prompt; i++)
        q->prompt[i] = i < n_prompt * 3 / 4 ? (tok_id)((kind * 50 + i) % FAKE_VOCAB)
                                            : (tok_id)storm(FAKE_VOCAB);
    if (q->max_tokens == GEN_NO_MAX) q->max_tokens = 100; // as far as it fits
    if (q->max_tokens + n_prompt > 130) q->max_tokens = 130 - n_prompt;
    q->class = (gen_class)storm(GEN_CLASSES);
    q->rank = (int32_t)storm(3);
    q->ignore_eos = storm(2) == 0;
    q->min_tokens = storm(3) == 0 ? storm(10) : 0;
    q->no_cache = storm(6) == 0;
    q->cache_scope[0] = storm(2);
    if (storm(5) == 0) q->n_prompt_logprobs = 0;
    if (storm(3) == 0) {
        q->stop_ids = malloc(sizeof *q->stop_ids);
        q->stop_ids[0] = (tok_id)storm(FAKE_VOCAB);
        q->n_stop_ids = 1;
    }
    return q;
}

typedef struct storm_log {
    gen_request *copies[512];
    bool disturbed[512]; // cancelled or with a deadline: may end early
    uint32_t n;
} storm_log;

static void storm_event(rig *r, storm_log *log) {
    uint32_t id = log->n > 0 ? 1 + storm(log->n) : 1;
    switch (storm(12)) {
    case 0: case 1: case 2: case 3: case 4: {
        if (log->n >= 150) return;
        gen_request *q = storm_request(++log->n);
        if (storm(12) == 0) {
            q->deadline_us = r->now_us + 1 + storm(200000);
            log->disturbed[log->n] = true;
        }
        if (storm(12) == 0) {
            q->queue_deadline_us = r->now_us + 1 + storm(20000);
            log->disturbed[log->n] = true;
        }
        log->copies[log->n] = copy_request(q);
        sched_submit(r->s, q, r->now_us);
        return;
    }
    case 5:
        if (log->n == 0 || storm(3) != 0) return;
        sched_cancel(r->s, id, r->now_us);
        log->disturbed[id] = true;
        return;
    case 6: sched_pause(r->s, id); return;
    case 7: case 8: sched_resume(r->s, id, r->now_us); return;
    case 9: r->now_us += storm(5000); return;
    default: return;
    }
}

static bool is_prefix_of(const outcome *o, const expected *x) {
    return o->n_tokens <= x->n_tokens &&
           (o->n_tokens == 0 || memcmp(o->tokens, x->tokens, o->n_tokens * sizeof(tok_id)) == 0);
}

static void check_scores(const outcome *o, const gen_request *q) {
    EXPECT(o->n_scored <= q->n_prompt);
    for (uint32_t i = 0; i < o->n_scored; i++) {
        EXPECT_EQ(o->scored[i], q->prompt[i]);
        if (i > 0) EXPECT_NEAR(o->scores[i], fake_logprob(q->prompt, i, q->prompt[i]), 0);
    }
}

/* Everything at once, with few pages; the books are checked after every step. */
static void storm_once(uint64_t seed, uint32_t *n_preemptions, uint32_t *n_hits) {
    int failures_before = test_failures;
    static expected x;
    storm_log log = {.n = 0};
    rig r;
    sched_limits l = default_limits();
    storm_state = seed * 77777 + 1;
    l.depth = 1 + storm(2);
    l.running_max = 2 + storm(6);
    l.logits_max = l.running_max + storm(12);
    l.starvation_us = 20000;
    l.step_tokens_max = 16 + storm(100);
    rig_init(&r, 11 + storm(8), &l); // 132 tokens or more: each fits alone
    r.device.late = storm(3) != 0;
    for (uint32_t i = 0; i < 1500 && test_failures == failures_before; i++) {
        storm_event(&r, &log);
        if (r.n_flight > 0 && (r.n_flight == l.depth || storm(2) == 0)) rig_finish(&r);
        else rig_plan(&r);
        if (storm(3) != 0) sched_flush(r.s, storm(4));
        rig_verify(&r);
    }
    for (uint32_t id = 1; id <= log.n; id++) sched_resume(r.s, id, r.now_us);
    while (r.n_flight > 0) rig_finish(&r);
    rig_run(&r);
    for (uint32_t id = 1; id <= log.n; id++) {
        const outcome *o = &r.outcomes[id];
        gen_request *q = log.copies[id];
        expect_of(q, r.device.context, &x);
        EXPECT_EQ(o->n_done, 1);
        EXPECT(is_prefix_of(o, &x));
        EXPECT_EQ(o->done.done.n_output, o->n_tokens);
        check_scores(o, q);
        if (!log.disturbed[id]) {
            EXPECT(gives(&r, q));
            EXPECT_EQ(o->n_scored, q->n_prompt_logprobs >= 0 ? q->n_prompt : 0);
        }
        gen_request_destroy(q);
    }
    sched_counters c;
    sched_count(r.s, &c);
    *n_preemptions += (uint32_t)c.n_preemptions;
    *n_hits += (uint32_t)c.prefix_hits_tokens;
    EXPECT_EQ(c.n_running + c.n_waiting + c.n_ended + c.blocks_referenced, 0);
    EXPECT_EQ(r.pool.n_in[PAGE_FREE] + c.pages_cached, r.pool.n_pages);
    EXPECT_EQ(r.pool.n_in[PAGE_KV], c.pages_cached);
    if (test_failures > failures_before) printf("seed %llu\n", (unsigned long long)seed);
    rig_deinit(&r);
}

static void a_storm_changes_no_output(void) {
    uint32_t n_preemptions = 0, n_hits = 0;
    const char *n = getenv("INFERD_STORMS");
    uint64_t n_storms = n != NULL ? strtoull(n, NULL, 10) : 60;
    int failures_before = test_failures;
    for (uint64_t seed = 1; seed <= n_storms && test_failures == failures_before; seed++)
        storm_once(seed, &n_preemptions, &n_hits);
    printf("storms: %u preemptions, %u tokens found\n", n_preemptions, n_hits);
    EXPECT(n_preemptions > n_storms && n_hits > 10 * n_storms);
}

static const test_case cases[] = {
    TEST(a_request_gives_the_pure_function_of_its_prompt),
    TEST(depth_two_plans_a_row_for_a_promised_token),
    TEST(pages_of_a_cancelled_sequence_wait_for_both_steps),
    TEST(ends_are_told_as_they_are),
    TEST(the_context_ends_a_request_without_a_maximum),
    TEST(a_full_pool_ends_a_request_without_a_maximum),
    TEST(what_can_never_fit_is_refused_with_numbers),
    TEST(ids_outside_of_the_vocabulary_are_refused),
    TEST(a_full_queue_says_so),
    TEST(last_events_wait_for_room),
    TEST(a_prompt_is_scored_once_and_in_order),
    TEST(scoring_stays_within_the_logits_of_a_step),
    TEST(nothing_to_draw_is_an_answer),
    TEST(a_second_turn_finds_prompt_and_answer),
    TEST(at_least_one_token_is_computed),
    TEST(scopes_do_not_see_each_other),
    TEST(decoding_goes_on_beside_a_long_prompt),
    TEST(no_step_is_planned_longer_than_its_maximum),
    TEST(chunks_grow_while_nobody_decodes),
    TEST(class_then_rank_then_arrival),
    TEST(waiting_lifts_one_class_per_interval),
    TEST(a_batch_request_gets_through_a_stream_of_urgent_ones),
    TEST(an_urgent_request_takes_the_place_of_the_newest_of_the_lowest_class),
    TEST(without_pages_the_newest_of_the_lowest_class_goes_and_resumes_exactly),
    TEST(whoever_was_preempted_three_times_is_spared),
    TEST(a_paused_sequence_keeps_its_pages_until_they_are_needed),
    TEST(deadlines_end_what_is_too_late),
    TEST(a_failed_step_ends_its_sequences_and_no_others),
    TEST(a_row_without_a_finite_logit_ends_its_request),
    TEST(two_models_share_the_device_and_its_pages),
    TEST(the_rate_is_learned),
    TEST(a_storm_changes_no_output),
};
TEST_MAIN(cases)
