/* test_draft.c - guesses of the next tokens: what they are, and that they change no output. */
#include "sched_rig.h"

/* ---- the guess ---- */

static void the_newest_occurrence_of_three_tokens_wins_over_two(void) {
    static const struct {
        tok_id tokens[16];
        uint32_t n, n_max, n_guessed;
        tok_id guess[4];
    } cases[] = {
        {{1, 2, 3, 4, 5, 1, 2, 3}, 8, 2, 2, {4, 5}},
        {{1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3}, 11, 2, 2, {4, 9}},    // three, though two is newer
        {{1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3}, 11, 1, 1, {5}},       // the newest of three
        {{8, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3}, 11, 3, 3, {5, 1, 2}}, // the newest of two
        {{2, 3, 7, 1, 2, 3}, 6, 1, 1, {7}},                       // at the very beginning
        {{6, 6, 6}, 3, 4, 4, {6, 6, 6, 6}},                       // goes on with itself
        {{4, 5, 4, 5, 4}, 5, 4, 4, {5, 4, 5, 4}},
        {{1, 2, 3, 4, 5, 6}, 6, 4, 0, {0}},
        {{3, 1, 2, 9, 3}, 5, 4, 0, {0}}, // one token is no reason
        {{6, 6}, 2, 4, 0, {0}},
        {{6, 6, 6}, 3, 0, 0, {0}},
    };
    for (size_t i = 0; i < INFERD_COUNT(cases); i++) {
        tok_id tokens[16] = {0};
        memcpy(tokens, cases[i].tokens, cases[i].n * sizeof *tokens);
        uint32_t n = draft_write(tokens, cases[i].n, cases[i].n_max);
        EXPECT_EQ(n, cases[i].n_guessed);
        EXPECT_EQ(memcmp(tokens, cases[i].tokens, cases[i].n * sizeof *tokens), 0);
        EXPECT_EQ(memcmp(tokens + cases[i].n, cases[i].guess, n * sizeof *tokens), 0);
    }
}

static void wrong_guesses_become_short_and_then_rest(void) {
    draft_habit h;
    h = DRAFT_HABIT_NEW(4);
    EXPECT_EQ(h.n_next, 4);
    draft_learn(&h, 4, 100, 4);
    EXPECT_EQ(h.n_next, 4);
    draft_learn(&h, 4, 103, 1);
    EXPECT_EQ(h.n_next, 2);
    draft_learn(&h, 4, 106, 2);
    EXPECT_EQ(h.n_next, 3);
    for (uint32_t i = 0; i < DRAFT_MISSES_MAX; i++) {
        EXPECT_EQ(h.rest_until, 0);
        draft_learn(&h, 4, 110 + i, 0);
        EXPECT_EQ(h.n_next, 1);
    }
    EXPECT_EQ(h.rest_until, 110 + DRAFT_MISSES_MAX - 1 + DRAFT_REST_TOKENS);
}

/* ---- in steps ---- */

static sched_limits limits_with(uint32_t draft_tokens) {
    sched_limits l = default_limits();
    l.draft_tokens = draft_tokens;
    return l;
}

/* A text that repeats itself with a slip at every 13th token. */
static void repeat(void) {
    fake_memory = 1;
}
static void repeat_nothing(void) {
    fake_memory = 0;
}

static void the_output_is_the_same_in_fewer_steps(void) {
    repeat();
    uint32_t n_steps[3];
    static const uint32_t drafts[] = {0, 1, 4};
    for (uint32_t k = 0; k < 3; k++) {
        rig r;
        sched_limits l = limits_with(drafts[k]);
        rig_init(&r, 200, &l);
        gen_request *q = request(1, 37, 400), *copy = copy_request(q);
        q->n_logprobs = 0;
        sched_submit(r.s, q, r.now_us);
        while (rig_iterate(&r)) rig_verify(&r);
        EXPECT(gives(&r, copy));
        n_steps[k] = r.device.n_steps;
        const sched_counters *c = &r.s->counters;
        EXPECT(c->n_drafts_right <= c->n_drafted);
        /* One token of each step, and what was guessed. */
        EXPECT_EQ(n_steps[k] - 2 + c->n_drafts_right, 399);
        EXPECT_EQ(r.s->models[0].kv.n_live, 0);
        gen_request_destroy(copy);
        rig_deinit(&r);
    }
    EXPECT_EQ(n_steps[0], 2 + 399); // the prompt is two chunks
    EXPECT(n_steps[1] < 290);
    EXPECT(n_steps[2] < 260);
    repeat_nothing();
}

/* The first step with guesses: sequence 1 with 5 rows. */
static step *step_with_drafts(rig *r) {
    for (;;) {
        step *st = rig_plan(r);
        if (st == NULL || st->items[0].q->n_drafts == 4) return st;
        rig_finish(r);
        sched_flush(r->s, 10);
    }
}

static void rows_and_draws_of_a_guess_are_in_order(void) {
    repeat();
    rig r;
    sched_limits l = limits_with(4);
    rig_init(&r, 200, &l);
    sched_submit(r.s, request(1, 37, 400), r.now_us);
    step *st = step_with_drafts(&r);
    EXPECT(st != NULL);
    const seq *q = st->items[0].q;
    EXPECT_EQ(st->b.n_rows, 5);
    EXPECT_EQ(st->b.n_logits, 5);
    EXPECT_EQ(st->n_prefill_rows, 0);
    for (uint32_t i = 0; i < 5; i++) {
        EXPECT_EQ(st->b.positions[i], q->n_tokens - 1 + i);
        EXPECT_EQ(st->b.tokens[i], q->req->prompt[q->n_tokens - 1 + i]);
        EXPECT_EQ(st->b.logit_rows[i], i);
        EXPECT_EQ(st->draws[i].row.n_tokens, q->n_tokens + i); // seed and penalties go by this
        EXPECT_EQ(st->draws[i].row.forced, -1);
    }
    rig_verify(&r);
    sched_cancel(r.s, 1, r.now_us); // in the middle of it
    rig_verify(&r);
    rig_finish(&r);
    rig_run(&r);
    EXPECT_EQ(r.outcomes[1].done.done.finish, GEN_CANCELLED);
    EXPECT_EQ(r.outcomes[1].done.done.n_output, r.outcomes[1].n_tokens);
    EXPECT_EQ(r.s->models[0].kv.n_live, 0);
    rig_deinit(&r);
    repeat_nothing();
}

static void ends_inside_of_a_guess_are_the_same(void) {
    repeat();
    for (uint32_t depth = 1; depth <= 2; depth++) {
        rig r;
        sched_limits l = limits_with(6);
        l.depth = depth;
        rig_init(&r, 400, &l);
        gen_request *copies[128];
        uint32_t n_stop = 0;
        for (uint32_t i = 0; i < 120; i++) {
            gen_request *q = request(i + 1, 3 + i % 29, 30 + i);
            q->ignore_eos = i % 3 == 0;
            q->min_tokens = i % 4 == 0 ? 25 : 0;
            if (i % 2 == 0) {
                q->stop_ids = malloc(sizeof *q->stop_ids);
                q->stop_ids[0] = (tok_id)(i * 2 % FAKE_VOCAB);
                q->n_stop_ids = 1;
            }
            if (i % 10 == 9) q->max_tokens = GEN_NO_MAX;
            if (i % 10 == 9) q->n_prompt_logprobs = 0;
            copies[i] = copy_request(q);
            sched_submit(r.s, q, r.now_us);
            if (i % 5 == 4) rig_run(&r); // never more than five at once
        }
        for (uint32_t i = 0; i < 120; i++) {
            if (copies[i]->max_tokens == GEN_NO_MAX) copies[i]->max_tokens = 512;
            EXPECT(gives(&r, copies[i]));
            n_stop += r.outcomes[i + 1].done.done.finish == GEN_STOP;
            gen_request_destroy(copies[i]);
        }
        EXPECT(n_stop > 10);
        if (depth == 1)
            EXPECT(r.s->counters.n_drafts_right > 500);
        else // the next token is always promised before the last is known
            EXPECT_EQ(r.s->counters.n_drafted, 0);
        rig_deinit(&r);
    }
    repeat_nothing();
}

static void with_eight_streams_nothing_is_guessed(void) {
    repeat();
    rig r;
    sched_limits l = limits_with(4);
    rig_init(&r, 400, &l);
    for (uint32_t i = 1; i <= 8; i++)
        sched_submit(r.s, request(i, 20, i == 8 ? 50 : 300), r.now_us);
    while (r.outcomes[8].n_done == 0) {
        uint64_t n_before = r.s->counters.n_drafted;
        bool full = r.s->n_running == 8;
        rig_iterate(&r);
        if (full) EXPECT_EQ(r.s->counters.n_drafted, n_before);
    }
    for (int i = 0; i < 100; i++) rig_iterate(&r);
    EXPECT(r.s->counters.n_drafted > 100);
    rig_run(&r);
    rig_deinit(&r);
    repeat_nothing();
}

static void a_text_that_never_repeats_costs_few_rows(void) {
    rig r;
    sched_limits l = limits_with(4);
    fake_words = 16; // every pair of tokens comes back, with something else behind it
    rig_init(&r, 400, &l);
    gen_request *q = request(1, 100, 400), *copy = copy_request(q);
    sched_submit(r.s, q, r.now_us);
    rig_run(&r);
    EXPECT(gives(&r, copy));
    EXPECT(r.s->counters.n_drafted > 10 && r.s->counters.n_drafted < 80);
    gen_request_destroy(copy);
    rig_deinit(&r);
    fake_words = 0;
}

static void everybody_has_a_row_before_anybody_guesses(void) {
    repeat();
    rig r;
    sched_limits l = limits_with(4);
    l.running_max = l.step_tokens_max = l.logits_max = 6;
    rig_init(&r, 400, &l);
    for (uint32_t i = 1; i <= 5; i++) sched_submit(r.s, request(i, 10, 300), r.now_us);
    while (r.outcomes[5].n_tokens < 20) rig_iterate(&r);
    for (int i = 0; i < 100; i++) {
        step *st = rig_plan(&r);
        EXPECT_EQ(st->b.n_seqs, 5);
        EXPECT(st->b.n_rows <= 6);
        rig_finish(&r);
    }
    EXPECT(r.s->counters.n_drafts_right > 20);
    rig_run(&r);
    rig_deinit(&r);
    repeat_nothing();
}

static void no_sequence_is_preempted_for_a_draft(void) {
    repeat();
    rig r;
    sched_limits l = limits_with(4);
    request_no_cache = true;
    rig_init(&r, 20, &l); // 60 blocks of 4 tokens
    sched_submit(r.s, request(1, 20, 101), r.now_us);
    sched_submit(r.s, request(2, 20, 101), r.now_us);
    while (rig_iterate(&r)) rig_verify(&r);
    EXPECT_EQ(r.s->counters.n_preemptions, 0); // twice 30 blocks, not one more
    EXPECT(r.s->counters.n_drafts_right > 20);
    EXPECT(r.outcomes[1].n_tokens == 101 && r.outcomes[2].n_tokens == 101);
    rig_deinit(&r);
    repeat_nothing();
}

static const test_case cases[] = {
    TEST(the_newest_occurrence_of_three_tokens_wins_over_two),
    TEST(wrong_guesses_become_short_and_then_rest),
    TEST(the_output_is_the_same_in_fewer_steps),
    TEST(rows_and_draws_of_a_guess_are_in_order),
    TEST(ends_inside_of_a_guess_are_the_same),
    TEST(with_eight_streams_nothing_is_guessed),
    TEST(a_text_that_never_repeats_costs_few_rows),
    TEST(everybody_has_a_row_before_anybody_guesses),
    TEST(no_sequence_is_preempted_for_a_draft),
};
TEST_MAIN(cases)
