/* test_sched.c - decisions of the scheduler, one by one. */
#include "../bench/rng.h"
#include "sched_rig.h"

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

static void depth_two_plans_a_row_for_a_pending_token(void) {
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
    EXPECT_EQ(second->b.tokens[0], TOK_PENDING);
    EXPECT_EQ(second->b.pending[0], 0);
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
    request_no_cache = true;
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
    EXPECT(!rig_iterate(&r));
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

/* The step under way on arrival is one, also when the request is handed in after its end. */
static void steps_that_a_request_waited_for_are_told(void) {
    static const struct {
        uint32_t ends, n_steps; // it arrives just after the end of so many of three steps
        bool in_time;           // ... at it
    } rows[] = {{3, 0, true}, {2, 1, false}, {2, 1, true}, {1, 2, true}, {0, 3, false}};
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        rig r;
        sched_limits l = default_limits();
        uint64_t end_us[4] = {0};
        l.running_max = 2;
        rig_init(&r, 64, &l);
        sched_submit(r.s, request(1, 4, 40), r.now_us);
        for (int k = 1; k <= 3; k++) {
            rig_iterate(&r);
            end_us[k] = r.now_us;
        }
        for (uint64_t id = 2; id <= 3; id++) { // there is a place for one of them
            gen_request *q = request(id, 4, 4);
            q->arrival_us = end_us[rows[i].ends] + !rows[i].in_time;
            sched_submit(r.s, q, r.now_us);
        }
        rig_iterate(&r);
        sched_cancel(r.s, 3, r.now_us);
        rig_run(&r);
        EXPECT_EQ(r.outcomes[2].done.done.queued_steps, rows[i].n_steps);
        EXPECT_EQ(r.outcomes[3].done.done.queued_steps, rows[i].n_steps + 1); // it never began
        rig_deinit(&r);
    }
}

/* Queue, prefill and decode are the time from the arrival to the last token, without a gap: what a
 * preemption took is in the part where it happened. */
static void queue_prefill_and_decode_are_all_of_the_time(void) {
    rig r;
    sched_limits l = default_limits();
    l.running_max = 3;
    rig_init(&r, 15, &l); // 45 blocks; three times 100 + 20 tokens need 90
    for (uint32_t i = 1; i <= 4; i++) {
        gen_request *q = request(i, 20, i == 3 ? 1 : 100);
        q->arrival_us = r.now_us;
        q->prio = i == 2 ? GEN_BATCH : GEN_NORMAL;
        sched_submit(r.s, q, r.now_us);
    }
    rig_run(&r);
    for (uint32_t i = 1; i <= 4; i++) {
        const outcome *o = &r.outcomes[i];
        const uint64_t queued_us = o->done.done.queued_us, prefill_us = o->done.done.prefill_us;
        EXPECT_EQ(1000 + queued_us + prefill_us, o->first_us);
        EXPECT_EQ(o->done.done.decode_us, o->last_us - o->first_us);
        EXPECT(prefill_us > 0);
    }
    EXPECT(r.outcomes[4].done.done.queued_us > 0);   // three places
    EXPECT_EQ(r.outcomes[3].done.done.decode_us, 0); // one token
    EXPECT(r.outcomes[2].done.done.n_preempted > 0);
    EXPECT(r.outcomes[2].done.done.decode_us > r.outcomes[2].done.done.away_us);
    EXPECT(r.outcomes[2].done.done.away_us > 0);
    const gen_event *e = &r.outcomes[2].done;
    uint64_t sum_us = 0, from_us = 1000 + e->done.queued_us;
    EXPECT(e->done.n_aways > 0 && e->done.n_aways < GEN_AWAYS_MAX);
    for (uint32_t i = 0; i < e->done.n_aways; i++) { // in order, and none after its last token
        EXPECT(e->done.aways[i].since_us >= from_us);
        from_us = e->done.aways[i].since_us + e->done.aways[i].us;
        sum_us += e->done.aways[i].us;
    }
    EXPECT_EQ(sum_us, e->done.away_us);
    EXPECT(from_us <= r.outcomes[2].last_us);
    rig_deinit(&r);
}

/* One place, which sequence 1 of the class batch has until another request comes. */
static void begin_displaceable(rig *r) {
    sched_limits l = default_limits();
    l.running_max = 1;
    rig_init(r, 60, &l);
    gen_request *q = request(1, 20, 200);
    q->prio = GEN_BATCH;
    sched_submit(r->s, q, r->now_us);
}

/* The longest are told, in order; all are counted. */
static void of_many_preemptions_the_longest_are_told(void) {
    enum { TIMES = 12 };
    rig r;
    begin_displaceable(&r);
    for (uint32_t i = 0; i < TIMES; i++) { // one is away for 3, 10, 4, 11, 5, ... tokens
        for (uint32_t had = r.outcomes[1].n_tokens; r.outcomes[1].n_tokens < had + 2;)
            EXPECT(rig_iterate(&r));
        sched_submit(r.s, request(2 + i, 20, 3 + i * 7 % TIMES), r.now_us);
    }
    rig_run(&r);
    const gen_event *e = &r.outcomes[1].done;
    uint32_t n = 0, n_longer = 0;
    uint64_t us[GEN_AWAYS_MAX], from_us = 0, least_us = UINT64_MAX, sum_us = 0;
    for (int k = 0; k < GEN_PREEMPTS; k++) n += e->done.n_preempts[k];
    EXPECT_EQ(n, TIMES);
    EXPECT_EQ(e->done.n_aways, GEN_AWAYS_MAX);
    for (uint32_t i = 0; i < GEN_AWAYS_MAX; i++) {
        EXPECT(e->done.aways[i].since_us >= from_us);
        from_us = e->done.aways[i].since_us + e->done.aways[i].us;
        least_us = u64_min(least_us, us[i] = e->done.aways[i].us);
        sum_us += us[i];
    }
    /* The others are all shorter than the shortest that is told. */
    EXPECT((TIMES - GEN_AWAYS_MAX) * least_us >= e->done.away_us - sum_us);
    for (uint32_t i = 0; i < GEN_AWAYS_MAX; i++) n_longer += us[i] > least_us;
    EXPECT_EQ(n_longer, GEN_AWAYS_MAX - 1); // no two of them took the same time
    rig_deinit(&r);
}

/* One that is away when its client leaves: the time until then counts. */
static void a_preemption_ends_with_its_sequence(void) {
    rig r;
    begin_displaceable(&r);
    while (r.outcomes[1].n_tokens < 5) EXPECT(rig_iterate(&r));
    sched_submit(r.s, request(2, 20, 50), r.now_us);
    while (r.outcomes[2].n_tokens < 5) EXPECT(rig_iterate(&r));
    uint64_t last_us = r.outcomes[1].last_us;
    sched_cancel(r.s, 1, r.now_us);
    uint64_t left_us = r.now_us;
    rig_run(&r);
    const gen_event *e = &r.outcomes[1].done;
    EXPECT_EQ(e->done.finish, GEN_CANCELLED);
    EXPECT_EQ(e->done.n_preempts[GEN_PREEMPT_PAUSE], 1);
    EXPECT_EQ(e->done.n_aways, 1);
    EXPECT(e->done.aways[0].since_us >= last_us);
    EXPECT_EQ(e->done.aways[0].since_us + e->done.aways[0].us, left_us);
    EXPECT_EQ(e->done.away_us, e->done.aways[0].us);
    EXPECT(e->done.away_us > 0);
    EXPECT_EQ(e->done.n_recomputed, 0);
    rig_deinit(&r);
}

static void a_request_tells_how_long_its_model_took_to_come(void) {
    rig r;
    sched_limits l = default_limits();
    rig_init(&r, 64, &l);
    sched_model_hot(r.s, 0, false, 0);
    for (uint32_t i = 1; i <= 2; i++) {
        gen_request *q = request(i, 20, 5);
        q->arrival_us = r.now_us;
        sched_submit(r.s, q, r.now_us);
    }
    sched_cancel(r.s, 2, r.now_us + 3000);
    r.now_us += 5000;
    sched_model_hot(r.s, 0, true, r.now_us);
    r.now_us += 700; // the first plan comes later
    rig_run(&r);
    EXPECT_EQ(r.outcomes[1].done.done.load_us, 5000);
    EXPECT_EQ(r.outcomes[1].done.done.queued_us, 5700);
    EXPECT_EQ(r.outcomes[2].done.done.load_us,
              3000); // it waited for the model until it was cancelled
    gen_request *q = request(3, 20, 5);
    q->arrival_us = r.now_us;
    sched_submit(r.s, q, r.now_us);
    rig_run(&r);
    EXPECT_EQ(r.outcomes[3].done.done.load_us, 0);
    rig_deinit(&r);
}

/* Neither a prompt that is only scored nor a request that ends in the queue has them. */
static void without_output_there_is_no_prefill_and_no_decode(void) {
    rig r;
    sched_limits l = default_limits();
    rig_init(&r, 64, &l);
    gen_request *q = request(1, 20, 0);
    q->n_prompt_logprobs = 0;
    sched_submit(r.s, q, r.now_us);
    sched_submit(r.s, request(2, 20, 5), r.now_us);
    sched_cancel(r.s, 2, r.now_us + 50);
    rig_run(&r);
    for (uint32_t i = 1; i <= 2; i++) {
        EXPECT_EQ(r.outcomes[i].n_done, 1);
        EXPECT_EQ(r.outcomes[i].done.done.n_output, 0);
        EXPECT_EQ(r.outcomes[i].done.done.prefill_us, 0);
        EXPECT_EQ(r.outcomes[i].done.done.decode_us, 0);
    }
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

/* Every new sequence used to take new memory until all of it had been used once, each page a pause
 * of milliseconds, while the cache held blocks that nobody asked for again. */
static void cached_blocks_go_before_cold_pages(void) {
    rig r;
    sched_limits l = default_limits();
    rig_init(&r, 64, &l);
    r.pool.n_warm = 10;
    for (uint32_t i = 1; i <= 30; i++) { // 30 tokens each: 8 blocks, 3 pages
        gen_request *q = request(i, 20, 11);
        gen_request *copy = copy_request(q);
        sched_submit(r.s, q, r.now_us);
        rig_run(&r);
        EXPECT(gives(&r, copy));
        gen_request_destroy(copy);
        rig_verify(&r);
    }
    EXPECT_EQ(r.pool.n_used, 10);
    sched_submit(r.s, request(31, 200, 11), r.now_us); // needs more than all those
    rig_run(&r);
    EXPECT(r.pool.n_used > 10);
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

/* ---- the same beginning at the same time ---- */

/* Requests first ... last of 60 tokens, of which the first 50 are the same: 12 blocks. */
static gen_request *alike(uint32_t id) {
    gen_request *q = request(1, 60, 5);
    q->id = id;
    for (uint32_t i = 50; i < 60; i++) q->prompt[i] = (tok_id)((id * 13 + i) % FAKE_VOCAB);
    return q;
}

static void submit_alike(rig *r, uint32_t first, uint32_t last, gen_request **copies) {
    for (uint32_t id = first; id <= last; id++) {
        gen_request *q = alike(id);
        copies[id] = copy_request(q);
        sched_submit(r->s, q, r->now_us);
    }
}

static void all_give(const rig *r, uint32_t first, uint32_t last, gen_request **copies) {
    for (uint32_t id = first; id <= last; id++) {
        if (r->outcomes[id].done.done.finish != GEN_CANCELLED) EXPECT(gives(r, copies[id]));
        gen_request_destroy(copies[id]);
    }
}

/* Run until nothing is left; rows that were computed. */
static uint32_t rows_of_run(rig *r) {
    uint32_t n = 0;
    for (;;) {
        step *st;
        while (r->n_flight < r->device.depth && (st = rig_plan(r)) != NULL) n += st->b.n_rows;
        if (r->n_flight == 0) break;
        rig_finish(r);
        rig_verify(r);
        sched_flush(r->s, UINT32_MAX);
    }
    EXPECT_EQ(r->s->n_running + r->s->n_waiting, 0);
    return n;
}

static void a_shared_beginning_is_computed_once(void) {
    for (uint32_t depth = 1; depth <= 2; depth++)
        for (uint32_t chunk = 20; chunk <= 128; chunk += 108) { // of several steps, and of one
            rig r;
            gen_request *copies[17];
            sched_limits l = default_limits();
            l.depth = depth;
            l.running_max = 16;
            l.step_tokens_max = chunk;
            rig_init(&r, 200, &l);
            submit_alike(&r, 1, 16, copies);
            EXPECT_EQ(rows_of_run(&r), 60 + 15 * 12 + 16 * 4); // and 4 tokens drawn before the last
            for (uint32_t id = 1; id <= 16; id++)
                EXPECT_EQ(r.outcomes[id].done.done.n_cached, id == 1 ? 0 : 48);
            all_give(&r, 1, 16, copies);
            rig_deinit(&r);
        }
}

static void the_next_in_line_computes_when_the_first_leaves(void) {
    for (uint32_t how = 0; how < 3; how++) {
        rig r;
        gen_request *copies[9];
        sched_limits l = default_limits();
        l.step_tokens_max = 20;
        rig_init(&r, 200, &l);
        if (how == 2) r.device.fail_at = 2;
        submit_alike(&r, 1, 8, copies);
        step *st = rig_plan(&r);
        EXPECT(st->b.n_seqs == 1 && st->items[0].q->req->id == 1);
        rig_finish(&r);
        if (how == 0) sched_cancel(r.s, 1, r.now_us);
        if (how == 1) sched_pause(r.s, 1);
        if (how == 2) rig_iterate(&r); // its second step fails
        st = rig_plan(&r);
        EXPECT(st->b.n_seqs == 1 && st->items[0].q->req->id == 2);
        EXPECT_EQ(st->b.positions[0], 20); // what was computed is not lost
        rig_finish(&r);
        rig_run(&r);
        for (uint32_t id = 2; id <= 8; id++)
            EXPECT_EQ(r.outcomes[id].done.done.n_cached, id == 2 ? 20 : 48);
        sched_resume(r.s, 1, r.now_us);
        rig_run(&r);
        if (how == 2)
            EXPECT_EQ(r.outcomes[1].done.done.finish, GEN_ERROR);
        else
            EXPECT(how == 0 || gives(&r, copies[1]));
        gen_request_destroy(copies[1]);
        all_give(&r, 2, 8, copies);
        rig_deinit(&r);
    }
}

/* Who is in the first step, as a bit for each id. */
static uint32_t first_step(rig *r) {
    uint32_t ids = 0;
    step *st = rig_plan(r);
    for (uint32_t i = 0; i < st->b.n_seqs; i++) ids |= 1u << st->items[i].q->req->id;
    rig_finish(r);
    return ids;
}

static void no_request_waits_for_what_would_not_help(void) {
    rig r;
    sched_limits l = default_limits();
    rig_init(&r, 200, &l);
    r.device.a_us = r.device.b_us = 0;
    gen_request *q = alike(1);
    sched_submit(r.s, q, r.now_us);
    q = alike(2), q->cache_scope[1] = 9; // sees no blocks of others
    sched_submit(r.s, q, r.now_us);
    q = alike(3), q->no_cache = true;
    sched_submit(r.s, q, r.now_us);
    q = request(4, 7, 5); // another beginning: overtakes
    sched_submit(r.s, q, r.now_us);
    q = alike(5), q->prompt[0]++; // the same but for the first token
    sched_submit(r.s, q, r.now_us);
    q = alike(6), q->n_prompt = 4; // a block that it has to compute itself
    sched_submit(r.s, q, r.now_us);
    sched_submit(r.s, alike(7), r.now_us);
    EXPECT_EQ(first_step(&r), 1 << 1); // as far as 32 rows go
    uint32_t together = first_step(&r);
    EXPECT_EQ(together & 1 << 7, 0);
    for (int i = 0; i < 4; i++) together |= first_step(&r);
    EXPECT_EQ(together & 0x7e, 0x7e);
    rig_run(&r);
    rig_deinit(&r);
}

static void urgent_work_never_waits_for_less_urgent_work(void) {
    for (int how = 0; how < 2; how++) {
        rig r;
        sched_limits l = default_limits();
        l.step_tokens_max = 20;
        rig_init(&r, 200, &l);
        gen_request *q = alike(1);
        if (how == 0) q->prio = GEN_BATCH;
        if (how == 1) q->rank = 1;
        sched_submit(r.s, q, r.now_us);
        rig_iterate(&r);
        sched_submit(r.s, alike(2), r.now_us);
        EXPECT_EQ(first_step(&r), 1 << 2);
        rig_run(&r);
        EXPECT_EQ(r.outcomes[2].done.done.n_cached, 20);
        rig_deinit(&r);
    }
}

static void prompt_scoring_delays_no_other(void) {
    rig r;
    sched_limits l = default_limits();
    rig_init(&r, 200, &l);
    gen_request *q = alike(1);
    q->n_prompt_logprobs = 0;
    sched_submit(r.s, q, r.now_us); // 16 logits per step: slow
    sched_submit(r.s, alike(2), r.now_us);
    EXPECT_EQ(first_step(&r), 1 << 1 | 1 << 2);
    rig_run(&r);
    rig_deinit(&r);
}

/* ---- order and budgets ---- */

static void decoding_goes_on_beside_a_long_prompt(void) {
    rig r;
    sched_limits l = default_limits();
    l.pace_us = 7000;
    rig_init(&r, 200, &l);
    r.device.b_us = 1000; // a row takes a millisecond: 7 ms are 6 rows
    sched_submit(r.s, request(1, 40, 400), r.now_us);
    while (r.outcomes[1].n_tokens < 3) rig_iterate(&r);
    sched_submit(r.s, request(2, 400, 4), r.now_us);
    uint32_t before = r.outcomes[1].n_tokens, n_steps = 0;
    while (r.outcomes[2].n_tokens == 0) {
        step *st = rig_plan(&r);
        EXPECT(st != NULL);
        if (st == NULL) break;
        n_steps++;
        EXPECT(st->predicted_us <= 7000);
        EXPECT_EQ(st->b.n_seqs, 2);
        rig_finish(&r);
        sched_flush(r.s, 10);
    }
    EXPECT(n_steps >= 80 && n_steps < 120); // and the time is used: four or five rows of each step
    EXPECT_EQ(r.outcomes[1].n_tokens, before + n_steps); // one per step, always
    rig_run(&r);
    rig_deinit(&r);
}

/* The longest step while four decode and a prompt of 200 tokens comes, and the one before it came.
 * `b_us` per row beside 2 ms, and what the positions cost. */
static void longest_gap(uint64_t b_us, uint64_t c_per_us, uint64_t pace_us, uint64_t *before,
                        uint64_t *longest) {
    rig r;
    sched_limits l = default_limits();
    l.pace_us = pace_us;
    rig_init(&r, 400, &l);
    r.device.a_us = 2000;
    r.device.b_us = b_us;
    r.device.c_per_us = c_per_us;
    for (uint32_t i = 1; i <= 4; i++) sched_submit(r.s, request(i, 20, 400), r.now_us);
    while (r.outcomes[4].n_tokens < 30) rig_iterate(&r);
    uint64_t began_us = r.now_us;
    rig_iterate(&r);
    *before = r.now_us - began_us;
    sched_submit(r.s, request(5, 200, 2), r.now_us);
    *longest = 0;
    while (r.outcomes[5].n_tokens == 0) {
        began_us = r.now_us;
        rig_iterate(&r);
        if (r.now_us - began_us > *longest) *longest = r.now_us - began_us;
    }
    for (uint32_t i = 1; i <= 4; i++) EXPECT_EQ(r.outcomes[i].n_done, 0);
    rig_run(&r);
    rig_deinit(&r);
}

static void a_prompt_does_not_make_streams_stutter(void) {
    static const uint64_t b_us[] = {20, 350, 1000, 5000}, c_per_us[] = {0, 2, 20};
    for (size_t i = 0; i < INFERD_COUNT(b_us); i++)
        for (size_t k = 0; k < INFERD_COUNT(c_per_us); k++) {
            uint64_t before, longest;
            longest_gap(b_us[i], c_per_us[k], 40000, &before, &longest);
            EXPECT(longest <= 57000 ||
                   longest * 10 <= before * 16);          // the last of a long wait have more
            if (b_us[i] >= 350) EXPECT(longest >= 25000); // and the time is used
        }
}

static void the_operators_pace_is_kept_where_decoding_allows(void) {
    uint64_t before, longest;
    longest_gap(350, 0, 5000, &before, &longest); // 3.4 ms without the prompt
    EXPECT(longest > 4000 && longest <= 5200);
    longest_gap(5000, 0, 5000, &before, &longest); // 22 ms without it: half as many rows, two
    EXPECT_EQ(before, 22000);
    EXPECT_EQ(longest, 32000);
}

/* The tenth step of a stream while a prompt of 400 tokens is computed, of `class`, that came so
 * long ago; of a stream with a target of its own, or without. */
static uint64_t tenth_step_us(gen_class prio, uint64_t ago_us, uint32_t target_ms) {
    rig r;
    sched_limits l = default_limits();
    l.pace_us = 20000;
    rig_init(&r, 400, &l);
    r.device.b_us = 1000;
    gen_request *q = request(1, 20, 400);
    q->tpot_target_ms = target_ms;
    sched_submit(r.s, q, r.now_us);
    while (r.outcomes[1].n_tokens < 30) rig_iterate(&r);
    r.now_us += ago_us;
    q = request(2, 400, 2);
    q->prio = prio;
    q->arrival_us = r.now_us - ago_us;
    sched_submit(r.s, q, r.now_us);
    uint64_t us = 0;
    for (int i = 0; i < 10; i++) {
        step *st = rig_plan(&r);
        EXPECT(st != NULL && r.outcomes[2].n_tokens == 0);
        if (st == NULL) break;
        us = st->predicted_us;
        rig_finish(&r);
        sched_flush(r.s, 100);
    }
    sched_cancel_all(r.s, r.now_us);
    rig_run(&r);
    rig_deinit(&r);
    return us;
}

static void long_waiting_work_gets_a_fifth_more_of_the_pace(void) {
    uint64_t soon = tenth_step_us(GEN_NORMAL, 0, 0), late = tenth_step_us(GEN_NORMAL, 2000000, 0);
    EXPECT(soon >= 18000 && soon <= 20500);
    EXPECT(late >= 22500 && late <= 24500);
    EXPECT_EQ(tenth_step_us(GEN_BATCH, 1500000, 0), tenth_step_us(GEN_BATCH, 0, 0));
    EXPECT_EQ(tenth_step_us(GEN_NORMAL, 2000000, 8), tenth_step_us(GEN_NORMAL, 0, 8));
}

/* Two run at once, a stream and a prompt that has just come; others wait, batch work first. */
static void a_long_wait_behind_batch_work_counts(void) {
    for (int late = 0; late < 2; late++) {
        rig r;
        sched_limits l = default_limits();
        l.pace_us = 20000;
        l.running_max = 2;
        rig_init(&r, 400, &l);
        r.device.b_us = 1000;
        sched_submit(r.s, request(1, 20, 400), r.now_us);
        while (r.outcomes[1].n_tokens < 30) rig_iterate(&r);
        r.now_us += 2000000;
        gen_request *prompt = request(2, 400, 2);
        prompt->arrival_us = r.now_us;
        sched_submit(r.s, prompt, r.now_us);
        rig_iterate(&r);
        for (uint32_t id = 3; id <= 4; id++) {
            gen_request *q = request(id, 20, 2);
            q->prio = id == 3 ? GEN_BATCH : GEN_NORMAL;
            q->arrival_us = r.now_us - (late ? 2000000 : 0);
            sched_submit(r.s, q, r.now_us);
        }
        uint64_t longest_us = 0;
        for (int i = 0; i < 5; i++) {
            uint64_t began_us = r.now_us;
            rig_iterate(&r);
            longest_us = u64_max(longest_us, r.now_us - began_us);
        }
        EXPECT_EQ(r.outcomes[2].n_tokens, 0);
        EXPECT(longest_us >= (late ? 22500u : 18000u));
        EXPECT(longest_us <= (late ? 24500u : 20500u));
        sched_cancel_all(r.s, r.now_us);
        rig_run(&r);
        rig_deinit(&r);
    }
}

static void a_prompt_alone_takes_two_paces_a_step(void) {
    rig r;
    sched_limits l = default_limits();
    l.pace_us = 20000;
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

static void chunks_grow_while_no_sequence_decodes(void) {
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
        gen_class prio;
        int32_t rank;
    } cases[] = {{GEN_BATCH, -5},  {GEN_NORMAL, 0}, {GEN_NORMAL, -1},
                 {GEN_NORMAL, -1}, {GEN_HIGH, 9},   {GEN_SYSTEM, 0}};
    for (uint32_t i = 0; i < INFERD_COUNT(cases); i++) {
        gen_request *q = request(i + 1, 4, 1);
        q->prio = cases[i].prio;
        q->rank = cases[i].rank;
        sched_submit(r.s, q, r.now_us);
    }
    static const uint64_t order[] = {6, 5, 3, 4, 2, 1};
    for (uint32_t i = 0; i < INFERD_COUNT(order); i++) EXPECT_EQ(first_planned(&r), order[i]);
    rig_deinit(&r);
}

static void a_batch_request_gets_through_a_stream_of_urgent_ones(void) {
    rig r;
    sched_limits l = default_limits();
    l.running_max = 2;
    l.starvation_percent = 2;
    rig_init(&r, 12, &l);
    gen_request *q = request(1, 20, 10);
    q->prio = GEN_BATCH;
    gen_request *copy = copy_request(q);
    sched_submit(r.s, q, r.now_us);
    uint32_t id = 2;
    for (; id < 3000 && r.outcomes[1].n_done == 0; id++) {
        q = request(id, 20, 10);
        q->prio = GEN_HIGH;
        sched_submit(r.s, q, r.now_us);
        q = request(++id, 20, 10);
        q->prio = GEN_HIGH;
        sched_submit(r.s, q, r.now_us);
        r.now_us += 30000;
        for (int iteration = 0; iteration < 9; iteration++) rig_iterate(&r);
    }
    EXPECT(gives(&r, copy));
    gen_request_destroy(copy);
    rig_run(&r);
    rig_deinit(&r);
}

static seq *sequence(rig *r, uint64_t id) {
    for (uint32_t i = 0; i < r->s->n_seqs; i++)
        if (r->s->seqs[i].state != SEQ_FREE && r->s->seqs[i].req->id == id) return &r->s->seqs[i];
    return NULL;
}

/* One class floods the device in a closed loop, and a few batch requests with long prompts come
 * beside it.  A batch request that began got a few rows and was batch again for starvation_us: its
 * prompt of 400 tokens did not end in 100 s, it kept the place of a lifted one for as long, and the
 * others waited until their deadline. */
enum { FLOOD_CLIENTS = 60, FLOOD_BATCH = 8, FLOOD_ID = 1000, FLOOD_PAUSED = 999 };

typedef struct flood_case {
    gen_class prio;
    uint32_t row_us, output;
    bool paused; // somebody of the lowest class does not read, and never will
} flood_case;

/* Its client reads nothing after the first token. */
static void pause_one(rig *r) {
    gen_request *q = request(FLOOD_PAUSED, 20, 100);
    q->prio = GEN_BATCH;
    sched_submit(r->s, q, r->now_us);
    while (r->outcomes[FLOOD_PAUSED].n_tokens == 0) rig_iterate(r);
    sched_pause(r->s, FLOOD_PAUSED);
}

static void flood(const flood_case *f, uint64_t seed) {
    rig r;
    rng random = rng_make(seed, 0, 0);
    sched_limits l = default_limits();
    l.running_max = 16;
    l.logits_max = 32;
    l.starvation_percent = 2;
    rig_init(&r, 800, &l);
    r.device.a_us = 3000;
    r.device.b_us = f->row_us;
    if (f->paused) pause_one(&r);
    uint64_t ids[FLOOD_CLIENTS] = {0}, next = FLOOD_ID, idle_max_us = 0;
    uint64_t ends_us = r.now_us + 60000000;
    for (uint64_t id = 1; id <= FLOOD_BATCH; id++) {
        gen_request *q = request(id, 300 + (uint32_t)rng_below(&random, 100), 4);
        q->prio = GEN_BATCH;
        q->queue_deadline_us = ends_us;
        sched_submit(r.s, q, r.now_us);
    }
    uint32_t n_done = 0;
    while (n_done < FLOOD_BATCH && r.now_us < 2 * ends_us && next < REQUESTS_MAX) {
        for (int i = 0; i < FLOOD_CLIENTS && next < REQUESTS_MAX; i++) {
            if (ids[i] != 0 && r.outcomes[ids[i]].n_done == 0) continue;
            ids[i] = next++;
            gen_request *q = request(ids[i], 40 + (uint32_t)rng_below(&random, 60),
                                     f->output + (uint32_t)rng_below(&random, 2 * f->output));
            q->prio = f->prio;
            sched_submit(r.s, q, r.now_us);
        }
        rig_iterate(&r);
        n_done = 0;
        for (uint64_t id = 1; id <= FLOOD_BATCH; id++) {
            n_done += r.outcomes[id].n_done;
            seq *q = sequence(&r, id);
            if (q == NULL || q->first_plan_us == 0) continue; // preempted ones count, too
            uint64_t idle_us = r.now_us - q->idle_since_us;
            if (idle_us > idle_max_us) idle_max_us = idle_us;
        }
    }
    uint32_t n_ended = 0;
    for (uint64_t id = 1; id <= FLOOD_BATCH; id++)
        n_ended += r.outcomes[id].done.done.finish == GEN_LENGTH;
    if (n_ended < FLOOD_BATCH || idle_max_us > l.starvation_us + 1000000)
        printf("seed %llu, class %d, %u us a row, paused %d: %u of %u ended after %.1f s, the "
               "longest pause was %.1f s\n",
               (unsigned long long)seed, (int)f->prio, f->row_us, f->paused, n_ended, FLOOD_BATCH,
               (double)r.now_us / 1e6, (double)idle_max_us / 1e6);
    EXPECT_EQ(n_ended, FLOOD_BATCH);
    EXPECT(idle_max_us <= l.starvation_us + 1000000);
    sched_counters c;
    sched_count(r.s, &c);
    EXPECT(c.class_us[GEN_BATCH] > 0 && c.class_us[f->prio] > c.class_us[GEN_BATCH]);
    EXPECT_EQ(c.class_us[GEN_BATCH] + c.class_us[f->prio], c.charged_us);
    sched_cancel_all(r.s, r.now_us);
    rig_run(&r);
    rig_deinit(&r);
}

static void a_flood_of_normal_requests_starves_no_batch_request(void) {
    static const flood_case f = {GEN_NORMAL, 350, 20, false};
    for (uint64_t seed = 1; seed <= 8; seed++) flood(&f, seed);
}

static void a_flood_of_urgent_requests_starves_no_batch_request(void) {
    static const flood_case f = {GEN_HIGH, 350, 20, false};
    for (uint64_t seed = 1; seed <= 8; seed++) flood(&f, seed);
}

/* As long as there is anybody whom they outrank, newcomers took each place that came free. */
static void nor_does_one_beside_a_paused_sequence(void) {
    static const flood_case f = {GEN_NORMAL, 350, 20, true};
    for (uint64_t seed = 1; seed <= 8; seed++) flood(&f, seed);
}

/* Rows of a step end before its time: of them, too, a part is for those who waited. */
static void nor_does_one_on_a_fast_device(void) {
    static const flood_case cases[] = {{GEN_NORMAL, 50, 1, false}, {GEN_HIGH, 50, 1, false}};
    for (size_t i = 0; i < INFERD_COUNT(cases); i++)
        for (uint64_t seed = 1; seed <= 4; seed++) flood(&cases[i], seed);
}

/* A long queue of batch requests, of which some run: a class below its floor has an eighth of the
 * batch, so urgent requests have the rest at once. */
static void a_class_below_its_floor_leaves_urgent_requests_their_slots(void) {
    rig r;
    sched_limits l = default_limits();
    l.starvation_percent = 2;
    rig_init(&r, 64, &l);
    for (uint32_t id = 1; id <= 20; id++) {
        gen_request *q = request(id, 8, 40);
        q->prio = GEN_BATCH;
        sched_submit(r.s, q, r.now_us);
    }
    while (r.outcomes[8].n_tokens == 0) rig_iterate(&r);
    for (uint32_t id = 21; id <= 28; id++) {
        gen_request *q = request(id, 8, 200);
        q->prio = GEN_HIGH;
        sched_submit(r.s, q, r.now_us);
    }
    EXPECT(rig_plan(&r) != NULL);
    for (uint32_t id = 21; id <= 28; id++) EXPECT_EQ(sequence(&r, id)->n_planned, 8);
    rig_finish(&r);
    uint32_t most = 0;
    while (r.outcomes[21].n_tokens < 190) {
        const step *st = rig_plan(&r);
        uint32_t n = 0;
        EXPECT(st != NULL);
        if (st == NULL) break;
        for (uint32_t i = 0; i < st->b.n_seqs; i++) n += st->items[i].q->req->prio == GEN_BATCH;
        most = u32_max(most, n);
        rig_finish(&r);
        sched_flush(r.s, UINT32_MAX);
    }
    EXPECT_EQ(most, 1);
    rig_run(&r);
    for (uint64_t id = 1; id <= 28; id++) EXPECT_EQ(r.outcomes[id].n_done, 1);
    rig_deinit(&r);
}

static uint32_t count_paused(rig *r) {
    sched_counters c;
    sched_count(r->s, &c);
    rig_verify(r);
    return c.n_paused;
}

static void a_class_tells_its_sequences_and_its_longest_wait(void) {
    rig r;
    sched_limits l = default_limits();
    sched_class c[GEN_CLASSES];
    l.running_max = 1;
    rig_init(&r, 64, &l);
    r.now_us = 1000;
    sched_count_classes(r.s, c);
    EXPECT(c[GEN_HIGH].n_waiting == 0 && c[GEN_HIGH].since_us == 0);
    gen_request *high = request(1, 8, 20), *low = request(2, 8, 20);
    high->prio = GEN_HIGH;
    low->prio = GEN_BATCH;
    sched_submit(r.s, low, 1000);
    sched_submit(r.s, high, 2000);
    r.now_us = 3000;
    sched_count_classes(r.s, c);
    EXPECT(c[GEN_HIGH].n_waiting == 1 && c[GEN_HIGH].since_us == 2000);
    EXPECT(c[GEN_BATCH].n_waiting == 1 && c[GEN_BATCH].since_us == 1000);
    rig_iterate(&r);
    sched_count_classes(r.s, c);
    EXPECT(c[GEN_HIGH].n_running == 1 && c[GEN_HIGH].since_us >= 3000); // it had a step
    EXPECT(c[GEN_BATCH].n_waiting == 1 && c[GEN_BATCH].since_us == 1000);
    EXPECT(c[GEN_NORMAL].n_running == 0 && c[GEN_NORMAL].since_us == 0);
    sched_pause(r.s, 2); // its client is slow: it does not starve
    sched_count_classes(r.s, c);
    EXPECT(c[GEN_BATCH].n_waiting == 0 && c[GEN_BATCH].since_us == 0);
    sched_cancel_all(r.s, r.now_us);
    rig_run(&r);
    sched_count_classes(r.s, c);
    EXPECT(c[GEN_HIGH].n_running == 0 && c[GEN_HIGH].since_us == 0);
    rig_deinit(&r);
}

static void a_paused_sequence_is_counted_until_it_goes_on(void) {
    rig r;
    sched_limits l = default_limits();
    rig_init(&r, 64, &l);
    for (uint64_t id = 1; id <= 3; id++) sched_submit(r.s, request(id, 8, 20), r.now_us);
    rig_iterate(&r);
    sched_submit(r.s, request(4, 8, 20), r.now_us);
    sched_resume(r.s, 1, r.now_us); // it never was
    EXPECT_EQ(count_paused(&r), 0);
    for (int twice = 0; twice < 2; twice++)
        for (uint64_t id = 1; id <= 4; id++) sched_pause(r.s, id);
    EXPECT_EQ(count_paused(&r), 4);
    sched_cancel(r.s, 1, r.now_us); // running,
    sched_cancel(r.s, 4, r.now_us); // and waiting
    EXPECT_EQ(count_paused(&r), 2);
    sched_model_preempt(r.s, 0);
    EXPECT_EQ(count_paused(&r), 2);
    sched_resume(r.s, 2, r.now_us);
    sched_resume(r.s, 3, r.now_us);
    EXPECT_EQ(count_paused(&r), 0);
    rig_run(&r);
    rig_deinit(&r);
}

/* ---- preemption ---- */

/* Pages that were taken from whoever is first by its share, while a step still used them, went back
 * to it, to be taken again: neither ever ended. */
static void pages_freed_by_a_preemption_go_to_its_cause(void) {
    rig r;
    sched_limits l = default_limits();
    inferd_err err = {0};
    tenant_policy all = {.weight = 1, .share = {SHARE_FIXED, 100, 1}};
    l.depth = 2;
    rig_init(&r, 8, &l); // 24 blocks of 4 tokens
    EXPECT_EQ(sched_set_tenant(r.s, 1, &all, r.now_us, &err), INFERD_OK);
    gen_request *entitled = request(1, 20, 1), *urgent = request(2, 60, 30);
    entitled->prio = GEN_BATCH;
    entitled->tenant_idx = 1;
    urgent->prio = GEN_HIGH;
    gen_request *copies[] = {copy_request(entitled), copy_request(urgent)};
    sched_submit(r.s, entitled, r.now_us);
    sched_submit(r.s, urgent, r.now_us);
    EXPECT(rig_plan(&r) != NULL); // all of the first one: nothing is left to plan of it
    EXPECT_EQ(sequence(&r, 1)->n_planned, 20);
    EXPECT(rig_plan(&r) == NULL);
    EXPECT_EQ(sequence(&r, 1)->state, SEQ_WAITING); // its pages come when the step ends
    rig_finish(&r);
    EXPECT(rig_plan(&r) != NULL);
    EXPECT_EQ(sequence(&r, 1)->key.tier, TIER_ENTITLED);
    EXPECT_EQ(sequence(&r, 2)->state, SEQ_RUNNING);
    for (int i = 0; i < 2000 && r.outcomes[1].n_done + r.outcomes[2].n_done < 2; i++)
        if (!rig_iterate(&r)) r.now_us += 1000;
    rig_verify(&r);
    for (uint32_t i = 0; i < 2; i++) {
        EXPECT(gives(&r, copies[i]));
        gen_request_destroy(copies[i]);
    }
    rig_deinit(&r);
}

/* Who was to have the pages may be gone when they are there. */
static void pages_freed_for_a_cancelled_request_are_free_to_all(void) {
    rig r;
    sched_limits l = default_limits();
    l.depth = 2;
    rig_init(&r, 8, &l);
    gen_request *low = request(1, 20, 1), *urgent = request(2, 60, 30), *copy = copy_request(low);
    low->prio = GEN_BATCH;
    urgent->prio = GEN_HIGH;
    sched_submit(r.s, low, r.now_us);
    EXPECT(rig_plan(&r) != NULL);
    sched_submit(r.s, urgent, r.now_us);
    EXPECT(rig_plan(&r) == NULL);
    EXPECT(r.s->relief_for == sequence(&r, 2));
    sched_cancel(r.s, 2, r.now_us);
    EXPECT(r.s->relief_for == NULL);
    rig_run(&r);
    EXPECT(gives(&r, copy));
    gen_request_destroy(copy);
    rig_deinit(&r);
}

/* The sequence that a request preempted was back as soon as its own blocks fitted, and was
 * preempted again, as long as more pages had to come for that request. */
static void a_preempted_sequence_stays_away_while_the_other_could_begin(void) {
    enum { IT_BEGINS, IT_ENDS, IT_PAUSES, TIME_IS_OVER, WAYS };
    for (int way = 0; way < WAYS; way++) {
        rig r;
        sched_limits l = default_limits();
        l.depth = 2;
        rig_init(&r, 8, &l);
        gen_request *low = request(1, 20, 5), *urgent = request(2, 60, 30);
        gen_request *copy = copy_request(low);
        low->prio = GEN_BATCH;
        urgent->prio = GEN_HIGH;
        sched_submit(r.s, low, r.now_us);
        EXPECT(rig_plan(&r) != NULL);
        sched_submit(r.s, urgent, r.now_us);
        EXPECT(rig_plan(&r) == NULL); // its pages come when the step ends
        seq *q = sequence(&r, 1);
        EXPECT(q->state == SEQ_WAITING && q->gave_to == sequence(&r, 2));
        rig_finish(&r);
        r.s->plan_no++; // no plan has refused it
        EXPECT(q->n_steps == 0 && !sched_can_start(r.s, q));
        switch (way) {
        case IT_BEGINS:
            EXPECT(rig_plan(&r) != NULL);
            EXPECT_EQ(sequence(&r, 2)->state, SEQ_RUNNING);
            r.s->plan_no++;
            break;
        case IT_ENDS:
            sched_cancel(r.s, 2, r.now_us);
            break;
        case IT_PAUSES:
            sched_pause(r.s, 2);
            break;
        default:
            r.s->clock_us = q->gave_until_us - 1;
            EXPECT(!sched_can_start(r.s, q));
            r.s->clock_us++;
        }
        EXPECT(sched_can_start(r.s, q));
        if (way == IT_PAUSES) sched_cancel(r.s, 2, r.now_us);
        rig_run(&r);
        EXPECT(gives(&r, copy));
        gen_request_destroy(copy);
        rig_deinit(&r);
    }
}

static void an_urgent_request_displaces_the_newest_of_the_lowest_class(void) {
    rig r;
    sched_limits l = default_limits();
    l.running_max = 3;
    rig_init(&r, 64, &l);
    gen_request *copies[5];
    for (uint32_t i = 1; i <= 3; i++) {
        gen_request *q = request(i, 8, 30);
        q->prio = i == 1 ? GEN_NORMAL : GEN_BATCH;
        copies[i] = copy_request(q);
        sched_submit(r.s, q, r.now_us);
    }
    for (int i = 0; i < 5; i++) rig_iterate(&r);
    gen_request *q = request(4, 8, 5);
    q->prio = GEN_HIGH;
    copies[4] = copy_request(q);
    sched_submit(r.s, q, r.now_us);
    step *st = rig_plan(&r);
    EXPECT_EQ(st->b.n_seqs, 3);
    for (uint32_t i = 0; i < st->b.n_seqs; i++) EXPECT(st->items[i].q->req->id != 3);
    rig_finish(&r);
    rig_run(&r);
    for (uint32_t i = 1; i <= 4; i++) {
        EXPECT(gives(&r, copies[i]));
        EXPECT_EQ(r.outcomes[i].done.done.n_preempted, 0); // it stepped aside, and kept its blocks
        gen_request_destroy(copies[i]);
    }
    rig_deinit(&r);
}

static void no_sequence_is_preempted_in_vain(void) {
    rig r;
    sched_limits l = default_limits();
    rig_init(&r, 14, &l);                 // 42 blocks
    gen_request *q = request(1, 100, 28); // 32 blocks
    q->prio = GEN_HIGH;
    sched_submit(r.s, q, r.now_us);
    q = request(2, 20, 20); // 10 blocks
    q->prio = GEN_BATCH;
    sched_submit(r.s, q, r.now_us);
    while (r.outcomes[2].n_tokens < 2) rig_iterate(&r);
    q = request(3, 60, 4); // 16 blocks: more than the batch request could give
    q->prio = GEN_HIGH;
    sched_submit(r.s, q, r.now_us);
    rig_run(&r);
    for (uint32_t i = 1; i <= 3; i++) EXPECT_EQ(r.outcomes[i].done.done.finish, GEN_LENGTH);
    EXPECT_EQ(r.s->counters.n_preemptions, 0);
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
            q->prio = i == 2 ? GEN_BATCH : GEN_NORMAL;
            copies[i] = copy_request(q);
            sched_submit(r.s, q, r.now_us);
        }
        while (r.s->counters.n_preemptions == 0 && rig_iterate(&r)) rig_verify(&r);
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

static void a_sequence_preempted_three_times_is_spared(void) {
    rig r;
    sched_limits l = default_limits();
    rig_init(&r, 20, &l);
    for (uint32_t i = 1; i <= 4; i++) sched_submit(r.s, request(i, 20, 100), r.now_us);
    for (int i = 0; i < 8; i++) rig_iterate(&r);
    EXPECT_EQ(r.s->n_running, 4);
    for (uint32_t i = 0; i < r.s->n_seqs; i++)
        if (r.s->seqs[i].state == SEQ_RUNNING && r.s->seqs[i].req->id == 4)
            r.s->seqs[i].n_preempted = 3;
    while (r.s->counters.n_preemptions == 0 && rig_iterate(&r)) {
    }
    for (uint32_t i = 0; i < r.s->n_seqs; i++)
        if (r.s->seqs[i].state == SEQ_WAITING) EXPECT_EQ(r.s->seqs[i].req->id, 3);
    rig_run(&r);
    rig_deinit(&r);
}

static void a_paused_sequence_keeps_its_pages_until_they_are_needed(void) {
    rig r;
    sched_limits l = default_limits();
    request_no_cache = true;
    rig_init(&r, 12, &l);
    gen_request *q = request(1, 40, 20), *copy = copy_request(q);
    q->prio = GEN_SYSTEM;
    sched_submit(r.s, q, r.now_us);
    while (r.outcomes[1].n_tokens < 5) rig_iterate(&r);
    uint32_t n_free = r.pool.n_in[PAGE_FREE];
    sched_pause(r.s, 1);
    EXPECT(!rig_iterate(&r));
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
    rig_iterate(&r);
    q = request(2, 4, 4);
    q->queue_deadline_us = 50000;
    sched_submit(r.s, q, r.now_us);
    EXPECT_EQ(sched_next_deadline(r.s), 2000); // may be early, never late
    while (r.outcomes[2].n_done == 0) rig_iterate(&r);
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

static void open_models(rig *r, uint32_t n_pages, uint32_t n_models, const sched_limits *l) {
    static const tok_id end_ids[] = {FAKE_END};
    inferd_err err = {0};
    rig_init(r, n_pages, l);
    sched_destroy(r->s);
    pool_deinit(&r->pool);
    EXPECT_EQ(pool_init_extents(&r->pool, n_pages, n_pages, 1, n_models, &err), INFERD_OK);
    EXPECT_EQ(sched_create(l, &r->pool, n_models, on_event, r, &r->s, &err), INFERD_OK);
    sched_model_spec spec = {r->device.kv, r->device.context, FAKE_VOCAB, end_ids, 1, 0};
    for (uint32_t m = 0; m < n_models; m++) {
        EXPECT_EQ(sched_model_open(r->s, m, &spec, &err), INFERD_OK);
        sched_model_hot(r->s, m, true, r->now_us);
    }
}

static void two_models_share_the_device_and_its_pages(void) {
    rig r;
    sched_limits l = default_limits();
    open_models(&r, 12, 2, &l);
    gen_request *copies[9];
    for (uint32_t i = 1; i <= 8; i++) {
        gen_request *q = request(i, 30, 40);
        q->model_idx = i % 2;
        copies[i] = copy_request(q);
        sched_submit(r.s, q, r.now_us);
    }
    uint32_t n_iterations = 0, n_switches = 0, last = 0;
    while (rig_iterate(&r)) {
        rig_verify(&r);
        uint32_t now = r.steps[(r.oldest + 1) % 2].model_idx;
        n_switches += n_iterations++ > 0 && now != last;
        last = now;
    }
    EXPECT(n_switches > 20); // they take turns
    for (uint32_t i = 1; i <= 8; i++) {
        EXPECT(gives(&r, copies[i]));
        gen_request_destroy(copies[i]);
    }
    rig_deinit(&r);
}

static void submit_to(rig *r, uint32_t model_idx, gen_class prio, gen_request *q) {
    q->model_idx = model_idx;
    q->prio = prio;
    sched_submit(r->s, q, r->now_us);
}

/* Models with work that is not served meanwhile had their parts of the time for prompts. */
static void unplanned_work_takes_no_time_from_prompts(void) {
    rig r;
    sched_limits l = default_limits();
    open_models(&r, 800, 8, &l);
    r.device.b_us = 350;
    uint64_t id = 1;
    submit_to(&r, 0, GEN_NORMAL, request(id++, 20, 300));
    while (r.outcomes[1].n_tokens < 20) rig_iterate(&r);
    for (uint32_t m = 1; m < 8; m++)
        for (int i = 0; i < 3; i++) submit_to(&r, m, GEN_BATCH, request(id++, 300, 4));
    submit_to(&r, 0, GEN_NORMAL, request(100, 400, 4));
    uint64_t longest_us = 0;
    for (int i = 0; i < 100 && r.outcomes[100].n_tokens == 0; i++) {
        step *st = rig_plan(&r);
        EXPECT(st != NULL);
        if (st == NULL) break;
        if (st->model_idx == 0 && st->predicted_us > longest_us) longest_us = st->predicted_us;
        rig_finish(&r);
        sched_flush(r.s, 100);
    }
    EXPECT(longest_us >= 30000 && longest_us <= 48000);
    sched_cancel_all(r.s, r.now_us);
    rig_run(&r);
    rig_deinit(&r);
}

/* Whoever decodes has time: a step may take long, but somebody more urgent may come meanwhile. */
static void a_lax_target_does_not_make_steps_of_seconds(void) {
    rig r;
    sched_limits l = default_limits();
    rig_init(&r, 400, &l);
    r.device.b_us = 5000;
    gen_request *q = request(1, 20, 100);
    q->tpot_target_ms = 5000;
    sched_submit(r.s, q, r.now_us);
    while (r.outcomes[1].n_tokens < 10) rig_iterate(&r);
    sched_submit(r.s, request(2, 400, 4), r.now_us);
    uint64_t longest_us = 0;
    while (r.outcomes[2].n_tokens == 0) {
        step *st = rig_plan(&r);
        EXPECT(st != NULL);
        if (st == NULL) break;
        if (st->predicted_us > longest_us) longest_us = st->predicted_us;
        rig_finish(&r);
        sched_flush(r.s, 100);
    }
    EXPECT(longest_us >= 150000 && longest_us <= 215000);
    rig_run(&r);
    rig_deinit(&r);
}

/* A flood in one model, a stream of the class below in another, and a class below that: the stream
 * had a step in starvation_us, because only the last class had a floor. */
static void every_class_that_waits_has_a_floor(void) {
    rig r;
    sched_limits l = default_limits();
    l.starvation_percent = 2;
    open_models(&r, 800, 3, &l);
    r.device.a_us = 5000;
    submit_to(&r, 1, GEN_NORMAL, request(1, 20, 400));
    submit_to(&r, 2, GEN_BATCH, request(2, 20, 400));
    uint64_t ids[8] = {0}, next = 3;
    while (r.now_us < 20000000 && next < REQUESTS_MAX) {
        for (int i = 0; i < 8; i++) {
            if (ids[i] != 0 && r.outcomes[ids[i]].n_done == 0) continue;
            ids[i] = next++;
            submit_to(&r, 0, GEN_HIGH, request(ids[i], 20, 20));
        }
        rig_iterate(&r);
    }
    EXPECT(r.now_us >= 20000000);
    sched_counters c;
    sched_count(r.s, &c);
    EXPECT(c.class_us[GEN_NORMAL] * 100 >= c.charged_us); // of its 2 %
    EXPECT(c.class_us[GEN_BATCH] * 100 >= c.charged_us);
    EXPECT(c.class_us[GEN_HIGH] * 100 >= 94 * c.charged_us);
    sched_cancel_all(r.s, r.now_us);
    rig_run(&r);
    rig_deinit(&r);
}

static const test_case cases[] = {
    TEST(a_request_gives_the_pure_function_of_its_prompt),
    TEST(depth_two_plans_a_row_for_a_pending_token),
    TEST(pages_of_a_cancelled_sequence_wait_for_both_steps),
    TEST(ends_are_told_as_they_are),
    TEST(the_context_ends_a_request_without_a_maximum),
    TEST(a_full_pool_ends_a_request_without_a_maximum),
    TEST(what_can_never_fit_is_refused_with_numbers),
    TEST(ids_outside_of_the_vocabulary_are_refused),
    TEST(a_full_queue_says_so),
    TEST(steps_that_a_request_waited_for_are_told),
    TEST(of_many_preemptions_the_longest_are_told),
    TEST(a_preemption_ends_with_its_sequence),
    TEST(queue_prefill_and_decode_are_all_of_the_time),
    TEST(a_request_tells_how_long_its_model_took_to_come),
    TEST(without_output_there_is_no_prefill_and_no_decode),
    TEST(last_events_wait_for_room),
    TEST(a_prompt_is_scored_once_and_in_order),
    TEST(scoring_stays_within_the_logits_of_a_step),
    TEST(nothing_to_draw_is_an_answer),
    TEST(a_second_turn_finds_prompt_and_answer),
    TEST(cached_blocks_go_before_cold_pages),
    TEST(at_least_one_token_is_computed),
    TEST(scopes_do_not_see_each_other),
    TEST(a_shared_beginning_is_computed_once),
    TEST(the_next_in_line_computes_when_the_first_leaves),
    TEST(no_request_waits_for_what_would_not_help),
    TEST(urgent_work_never_waits_for_less_urgent_work),
    TEST(prompt_scoring_delays_no_other),
    TEST(decoding_goes_on_beside_a_long_prompt),
    TEST(a_prompt_does_not_make_streams_stutter),
    TEST(the_operators_pace_is_kept_where_decoding_allows),
    TEST(long_waiting_work_gets_a_fifth_more_of_the_pace),
    TEST(a_long_wait_behind_batch_work_counts),
    TEST(a_prompt_alone_takes_two_paces_a_step),
    TEST(unplanned_work_takes_no_time_from_prompts),
    TEST(a_lax_target_does_not_make_steps_of_seconds),
    TEST(every_class_that_waits_has_a_floor),
    TEST(chunks_grow_while_no_sequence_decodes),
    TEST(class_then_rank_then_arrival),
    TEST(a_batch_request_gets_through_a_stream_of_urgent_ones),
    TEST(a_flood_of_normal_requests_starves_no_batch_request),
    TEST(a_flood_of_urgent_requests_starves_no_batch_request),
    TEST(nor_does_one_beside_a_paused_sequence),
    TEST(nor_does_one_on_a_fast_device),
    TEST(a_class_below_its_floor_leaves_urgent_requests_their_slots),
    TEST(a_class_tells_its_sequences_and_its_longest_wait),
    TEST(a_paused_sequence_is_counted_until_it_goes_on),
    TEST(pages_freed_by_a_preemption_go_to_its_cause),
    TEST(pages_freed_for_a_cancelled_request_are_free_to_all),
    TEST(a_preempted_sequence_stays_away_while_the_other_could_begin),
    TEST(an_urgent_request_displaces_the_newest_of_the_lowest_class),
    TEST(no_sequence_is_preempted_in_vain),
    TEST(without_pages_the_newest_of_the_lowest_class_goes_and_resumes_exactly),
    TEST(a_sequence_preempted_three_times_is_spared),
    TEST(a_paused_sequence_keeps_its_pages_until_they_are_needed),
    TEST(deadlines_end_what_is_too_late),
    TEST(a_failed_step_ends_its_sequences_and_no_others),
    TEST(a_row_without_a_finite_logit_ends_its_request),
    TEST(two_models_share_the_device_and_its_pages),
};
TEST_MAIN(cases)
