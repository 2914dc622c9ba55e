/* test_constraint.c - sequences with a grammar: whatever happens around them, and whenever the
 * masks come, they give the tokens that one alone, step by step, would give. */
#include "test.h"

#include "tok_tiny.h" // first: it has parameters that are called like a type of the rigs

#include "core_rig.h"
#include "masks.h"

enum { TEXTS = 40 };

/* Letters, signs, and words of several: tokens of one text in several ways. */
static const char *const merges[] = {"n a", "m e",   "na me", "{ \"",   "\" :", "\": \"", "c i",
                                     "t y", "ci ty", "\" ,",  "\", \"", "\" }", "a g",    "ag e",
                                     "e n", "s t",   "a r",   "o n",    "i n",  "e r",    NULL};

typedef struct world {
    tokenizer *tok;
    grammar_vocab *vocab;
    grammar *grammar;
} world;

/* Requests with a grammar have budgets of reasoning: 0 to BUDGETS - 1 tokens, by their id. */
static bool with_budgets;
enum { BUDGETS = 13 };

static uint64_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static tokenizer *open_tokenizer(void) {
    tiny_words w;
    memset(&w, 0, sizeof w);
    tiny_gguf_init(&w.g);
    w.model = "gpt2";
    w.pre = "smollm";
    w.merges = merges;
    for (char c = 'a'; c < 'a' + FAKE_END; c++) words_add(&w, (char[]){c, 0}, WORD_NORMAL);
    words_add(&w, "<|end|>", WORD_CONTROL);
    for (char c = '!'; c < 127; c++)
        if (c < 'a' || c >= 'a' + FAKE_END) words_add(&w, (char[]){c, 0}, WORD_NORMAL);
    for (const char *const *m = merges; *m != NULL; m++) {
        const char *space = strchr(*m, ' ');
        buf_add(&w.names[w.n], *m, (size_t)(space - *m));
        words_add(&w, space + 1, WORD_NORMAL);
    }
    words_add(&w, "<|tool|>", WORD_CONTROL);
    tiny_kv_u32(&w.g, "tokenizer.ggml.eos_token_id", FAKE_END);
    return words_open(&w);
}

/* Objects with a name, a city and an age: text that is forced, and choices between. */
static grammar *make_grammar(uint64_t seed, const grammar_options *options) {
    static char text[TEXTS][200];
    bytes texts[TEXTS];
    grammar *g = NULL;
    inferd_err err = {0};
    for (int i = 0; i < TEXTS; i++) {
        char *p = text[i];
        p += sprintf(p, "{\"name\":\"");
        for (uint64_t n = 2 + next_random(&seed) % 6; n > 0; n--)
            *p++ = (char)('a' + next_random(&seed) % 26);
        p += sprintf(p, "\",\"city\":\"");
        for (uint64_t n = 3 + next_random(&seed) % 30; n > 0; n--)
            *p++ = "aeinorst"[next_random(&seed) % 8];
        p += sprintf(p, "\",\"age\":%u}", (unsigned)(next_random(&seed) % 3));
        texts[i] = (bytes){text[i], (size_t)(p - text[i])};
    }
    EXPECT_EQ(grammar_of_choices(texts, TEXTS, options, &g, &err), INFERD_OK);
    return g;
}

static void world_init(world *w) {
    inferd_err err = {0};
    *w = (world){.tok = open_tokenizer(), .grammar = make_grammar(5, NULL)};
    EXPECT_EQ(grammar_vocab_create(w->tok, FAKE_VOCAB, &w->vocab, &err), INFERD_OK);
}

/* Answers behind reasoning that has begun, with a budget that ends it: a text nearly never would.
 */
static void world_init_reasoning(world *w, const char *end) {
    grammar_options o = {.reasoning_end = end};
    world_init(w);
    grammar_release(w->grammar);
    w->grammar = make_grammar(5, &o);
    with_budgets = true;
}

static void world_deinit(world *w) {
    with_budgets = false;
    grammar_release(w->grammar);
    grammar_vocab_release(w->vocab);
    tok_close(w->tok);
}

static grammar_machine *make_machine(const world *w) {
    grammar_machine *m = NULL;
    inferd_err err = {0};
    EXPECT_EQ(grammar_machine_create(w->grammar, w->vocab, &m, &err), INFERD_OK);
    return m;
}

static gen_request *constrained(uint64_t id, uint32_t n_prompt, uint32_t max_tokens,
                                grammar_machine *m) {
    gen_request *q = request(id, n_prompt, max_tokens);
    grammar_machine_hold(m);
    q->grammar = m;
    q->ignore_eos = false;
    q->bounds_reasoning = with_budgets;
    q->reasoning_tokens_max = with_budgets ? (uint32_t)(id * 3 % BUDGETS) : 0;
    return q;
}

static bool is_end(tok_id id) {
    return id == FAKE_END;
}

/* What it gives when it is alone in the world. */
static void expect_constrained(const gen_request *q, expected *x) {
    static tok_id all[OUT_MAX + 600];
    grammar_machine *m = q->grammar;
    grammar_pos pos = grammar_start(m);
    uint32_t n = q->n_prompt, n_reasoned = 0;
    inferd_err err = {0};
    *x = (expected){.finish = GEN_LENGTH, .stop_id = -1};
    memcpy(all, q->prompt, n * sizeof *all);
    while (x->n_tokens < q->max_tokens && !grammar_must_end(m, pos)) {
        if (q->bounds_reasoning && n_reasoned == q->reasoning_tokens_max)
            EXPECT(grammar_close_reasoning(m, pos, &err));
        n_reasoned += grammar_in_reasoning(m, pos);
        grammar_mask *mask = grammar_mask_get(m, pos, &err);
        bool bans = q->ignore_eos || x->n_tokens < q->min_tokens;
        bans = bans && mask_has_other(mask, (tok_id[]){FAKE_END}, 1);
        uint64_t h = fake_begin(n);
        for (uint32_t i = 0; i < n; i++)
            if (fake_counts(i, n)) h = fake_hash(h, all[i]);
        tok_id id = fake_choose_allowed(h, (tok_id[]){FAKE_END}, bans, mask->bits);
        grammar_mask_release(mask);
        all[n++] = x->tokens[x->n_tokens++] = id;
        if (is_end(id)) {
            x->finish = GEN_STOP;
            break;
        }
        EXPECT(grammar_accept(m, pos, id, &err));
    }
    if (grammar_must_end(m, pos)) x->finish = GEN_STOP; // also when the last token is its last
    grammar_drop(m, pos);
}

static bool gives_constrained(const outcome *o, const gen_request *q) {
    static expected x;
    expect_constrained(q, &x);
    bool equal = o->n_done == 1 && o->done.done.finish == x.finish && o->n_tokens == x.n_tokens &&
                 o->done.done.n_output == x.n_tokens &&
                 (x.n_tokens == 0 || memcmp(o->tokens, x.tokens, x.n_tokens * sizeof(tok_id)) == 0);
    if (!equal)
        printf("request %llu: finish %d of %d, %u tokens of %u, %s\n", (unsigned long long)q->id,
               o->done.done.finish, x.finish, o->n_tokens, x.n_tokens, o->done.done.text);
    return equal;
}

static void rig_init_world(rig *r, const world *w, uint32_t n_pages, const sched_limits *l) {
    rig_init(r, n_pages, l);
    r->s->models[0].spec.tok = w->tok;
}

/* ---- the same tokens ---- */

/* Constrained and free requests beside each other; the drawn tokens, and what steps it took. */
static uint32_t run_some(const world *w, const sched_limits *l, uint32_t n_pages,
                         const constraint_ops *ops, void *ctx, bool before_launch,
                         sched_counters *out) {
    enum { N = 12 };
    rig r;
    gen_request *copies[N];
    grammar_machine *m = make_machine(w);
    rig_init_world(&r, w, n_pages, l);
    r.device.draws = before_launch;
    sched_set_constraints(r.s, ops, ctx, before_launch);
    for (uint64_t id = 0; id < N; id++) {
        gen_request *q = id % 3 == 2 ? request(1 + id, 20 + (uint32_t)id * 4, 60)
                                     : constrained(1 + id, 20 + (uint32_t)id * 4, 90, m);
        if (id == 4) q->max_tokens = 6;
        if (id == 6) q->min_tokens = 100;
        if (id == 7) q->ignore_eos = true;
        copies[id] = copy_request(q);
        sched_submit(r.s, q, r.now_us);
    }
    for (int i = 0; i < 20000 && r.s->n_running + r.s->n_waiting > 0; i++) {
        rig_iterate(&r);
        rig_verify(&r);
    }
    rig_run(&r);
    for (uint32_t i = 0; i < N; i++) {
        const outcome *o = &r.outcomes[1 + i];
        EXPECT(copies[i]->grammar != NULL ? gives_constrained(o, copies[i]) : gives(&r, copies[i]));
        gen_request_destroy(copies[i]);
    }
    sched_count(r.s, out);
    uint32_t n_steps = r.device.n_steps;
    rig_deinit(&r);
    grammar_machine_release(m);
    return n_steps;
}

static void tokens_are_those_of_the_grammar(void) {
    world w;
    world_init(&w);
    sched_limits l = default_limits();
    sched_counters c;
    run_some(&w, &l, 200, NULL, NULL, false, &c);
    EXPECT(c.n_masks > 100 && c.n_masks_made > 0 && c.n_masks_made < c.n_masks);
    EXPECT_EQ(c.n_masks_late, 0);
    run_some(&w, &l, 200, NULL, NULL, true, &c);
    l.depth = 2;
    run_some(&w, &l, 200, NULL, NULL, true, &c);
    EXPECT_EQ(c.n_masks_late, 0);
    run_some(&w, &l, 200, NULL, NULL, false, &c);
    EXPECT_EQ(c.n_masks_late, 0);
    world_deinit(&w);
}

/* Any JSON: more masks, and texts that reach max_tokens. */
static void tokens_are_those_of_any_json(void) {
    world w;
    world_init(&w);
    inferd_err err = {0};
    sched_limits l = default_limits();
    sched_counters c;
    grammar_release(w.grammar);
    EXPECT_EQ(grammar_of_json(NULL, false, &w.grammar, &err), INFERD_OK);
    run_some(&w, &l, 200, NULL, NULL, false, &c);
    EXPECT(c.n_masks > 20);
    l.draft_tokens = 4;
    l.logits_max = 60;
    run_some(&w, &l, 13, NULL, NULL, true, &c);
    EXPECT(c.n_preemptions > 0);
    world_deinit(&w);
}

static void preemption_changes_no_token(void) {
    world w;
    world_init(&w);
    sched_counters c;
    sched_limits l = default_limits();
    run_some(&w, &l, 17, NULL, NULL, false, &c);
    EXPECT(c.n_preemptions > 0);
    l.depth = 2;
    run_some(&w, &l, 13, NULL, NULL, false, &c);
    EXPECT(c.n_preemptions > 0);
    run_some(&w, &l, 13, NULL, NULL, true, &c);
    EXPECT(c.n_preemptions > 0);
    world_deinit(&w);
}

/* Request 1 is in the middle of its answer when urgent request 2 needs its pages, and goes on with
 * keys and values from host memory. */
static void swap_some(const world *w) {
    static core_rig r;
    grammar_machine *m = make_machine(w);
    for (uint32_t way = 0; way < 3; way++) {
        bool draws = way > 0;
        core_rig_init(&r, 30, 60, 12);
        r.device.apart = true;
        r.device.swap_extent_pages = 4;
        r.device.depth = 1 + draws;
        r.device.takes_draws = way == 2;
        r.device.b_us = 300;
        r.device.move_us = 20;
        core_rig_open(&r, false);
        sched_set_constraints(r.core.sched, NULL, NULL, way == 1); // answers at once
        model_policy policy = plain_policy();
        core_rig_attach(&r, 0, &policy);
        gen_request *low = constrained(1, 120, 80, m), *high = constrained(2, 150, 60, m);
        low->prio = GEN_BATCH;
        high->prio = GEN_HIGH;
        core_rig_submit(&r, 0, low);
        while (r.outcomes[1].n_tokens < 8) core_rig_iterate(&r, 1000);
        core_rig_submit(&r, 0, high);
        core_rig_finish(&r);
        EXPECT_EQ(r.outcomes[1].done.done.n_preempts[GEN_PREEMPT_SWAP], 1);
        for (uint64_t id = 1; id <= 2; id++)
            EXPECT(gives_constrained(&r.outcomes[id], r.copies[id]));
        core_rig_deinit(&r);
    }
    grammar_machine_release(m);
}

static void swapping_changes_no_token(void) {
    world w;
    world_init(&w);
    swap_some(&w);
    world_deinit(&w);
    world_init_reasoning(&w, "</t>");
    swap_some(&w);
    world_deinit(&w);
}

/* One request alone; returns the steps that it took. */
static uint32_t run_one(const world *w, gen_request *q, uint32_t draft_tokens, bool before_launch,
                        sched_counters *out) {
    rig r;
    sched_limits l = default_limits();
    l.draft_tokens = draft_tokens;
    l.logits_max = 48;
    gen_request *copy = copy_request(q);
    rig_init_world(&r, w, 200, &l);
    sched_set_constraints(r.s, NULL, NULL, before_launch);
    sched_submit(r.s, q, r.now_us);
    while (rig_iterate(&r)) rig_verify(&r);
    EXPECT(gives_constrained(&r.outcomes[copy->id], copy));
    sched_count(r.s, out);
    uint32_t n_steps = r.device.n_steps;
    gen_request_destroy(copy);
    rig_deinit(&r);
    return n_steps;
}

static void text_that_is_forced_takes_fewer_steps(void) {
    world w;
    world_init(&w);
    grammar_machine *m = make_machine(&w);
    sched_counters c;
    for (uint64_t id = 1; id < 6; id++) {
        uint32_t n_plain = run_one(&w, constrained(id, 20, 200, m), 0, false, &c);
        EXPECT_EQ(c.n_drafted, 0);
        for (uint32_t before_launch = 0; before_launch < 2; before_launch++) {
            uint32_t n = run_one(&w, constrained(id, 20, 200, m), 4, before_launch, &c);
            EXPECT(n < n_plain);
            EXPECT(c.n_drafts_right > 0 && c.n_drafts_right <= c.n_drafted);
            EXPECT_EQ(n + c.n_drafts_right, n_plain);
        }
    }
    grammar_machine_release(m);
    world_deinit(&w);
}

/* The rest is forced: at most 32 tokens are drafted, though draft_tokens is 1. */
static void forced_drafts_are_longer_than_others(void) {
    world w;
    world_init(&w);
    grammar *g = NULL;
    grammar_machine *m = NULL;
    inferd_err err = {0};
    char text[101];
    memset(text, 'x', 100);
    text[100] = 0;
    bytes texts[] = {{text, 100}};
    EXPECT_EQ(grammar_of_choices(texts, 1, NULL, &g, &err), INFERD_OK);
    EXPECT_EQ(grammar_machine_create(g, w.vocab, &m, &err), INFERD_OK);
    sched_counters c;
    EXPECT_EQ(run_one(&w, constrained(1, 20, 200, m), 0, true, &c), 100);
    uint32_t n = run_one(&w, constrained(1, 20, 200, m), 1, true, &c);
    EXPECT(n <= 6);
    EXPECT_EQ(c.n_drafted, c.n_drafts_right);
    n = run_one(&w, constrained(1, 20, 200, m), 1, false, &c);
    EXPECT(n <= 6);
    grammar_machine_release(m);
    grammar_release(g);
    world_deinit(&w);
}

/* Two tokens, a control token, three more, and no choice between them. */
static void forced_text_may_have_control_tokens(void) {
    world w;
    world_init(&w);
    grammar *g = NULL;
    grammar_machine *m = NULL;
    inferd_err err = {0};
    bytes text = {"xy\xff<|tool|>\xffzx.", 15};
    EXPECT_EQ(grammar_of_choices(&text, 1, NULL, &g, &err), INFERD_OK);
    EXPECT_EQ(grammar_machine_create(g, w.vocab, &m, &err), INFERD_OK);
    constraint *c = constraint_create(m, w.tok, FAKE_VOCAB);
    c->wants_forced = true;
    constraint_work(c);
    EXPECT_EQ(c->err.status, INFERD_OK);
    EXPECT_EQ(c->forced.n, 5); // nothing may follow the sixth
    EXPECT_EQ(c->forced.tokens[2], tok_find(w.tok, (bytes){"<|tool|>", 8}));
    EXPECT(grammar_mask_has(c->forced.masks[1], c->forced.tokens[2]));
    constraint_destroy(c);
    sched_counters count;
    uint32_t n_plain = run_one(&w, constrained(1, 20, 200, m), 0, true, &count);
    uint32_t n = run_one(&w, constrained(1, 20, 200, m), 4, true, &count);
    EXPECT_EQ(count.n_drafts_right, count.n_drafted);
    EXPECT_EQ(n_plain, 6);
    EXPECT(n <= 2);
    grammar_machine_release(m);
    grammar_release(g);
    world_deinit(&w);
}

/* A guess that the grammar does not allow is no draft, and costs nothing but its row. */
static void guesses_follow_the_grammar(void) {
    world w;
    world_init(&w);
    grammar_machine *m = make_machine(&w);
    sched_counters c;
    for (uint64_t id = 1; id < 10; id++) {
        gen_request *q = constrained(id, 40, 200, m);
        for (uint32_t i = 0; i < 40; i++) q->prompt[i] = (tok_id)(i % 5); // guesses in any case
        run_one(&w, copy_request(q), 6, false, &c);
        run_one(&w, q, 6, true, &c);
    }
    grammar_machine_release(m);
    world_deinit(&w);
}

static void drafts_change_no_token_beside_others(void) {
    world w;
    world_init(&w);
    sched_counters c;
    sched_limits l = default_limits();
    l.draft_tokens = 5;
    l.logits_max = 60;
    run_some(&w, &l, 200, NULL, NULL, false, &c);
    EXPECT(c.n_drafted > 0);
    run_some(&w, &l, 17, NULL, NULL, true, &c);
    world_deinit(&w);
}

/* ---- late answers ---- */

/* Questions that are answered when the test says so. */
typedef struct slow {
    constraint *asked[16];
    uint32_t n;
} slow;

static void slow_ask(void *ctx, constraint *c) {
    slow *s = ctx;
    INFERD_CHECK(s->n < INFERD_COUNT(s->asked));
    s->asked[s->n++] = c;
}

static void slow_close(void *ctx, constraint *c) {
    slow *s = ctx;
    for (uint32_t i = 0; i < s->n; i++)
        if (s->asked[i] == c) s->asked[i--] = s->asked[--s->n];
    constraint_destroy(c);
}

static void slow_settle(void *ctx) {
    (void)ctx;
}

static const constraint_ops slow_ops = {slow_ask, slow_close, slow_settle};

static void answer(slow *s) {
    for (; s->n > 0; s->n--) {
        constraint_work(s->asked[s->n - 1]);
        atomic_store(&s->asked[s->n - 1]->state, CONSTRAINT_DONE);
    }
}

static void a_late_mask_delays_its_own_sequence_only(void) {
    world w;
    world_init(&w);
    grammar_machine *m = make_machine(&w);
    slow late = {.n = 0};
    rig r;
    sched_limits l = default_limits();
    rig_init_world(&r, &w, 200, &l);
    sched_set_constraints(r.s, &slow_ops, &late, false);
    gen_request *a = constrained(1, 20, 100, m), *b = request(2, 20, 60);
    gen_request *copies[] = {copy_request(a), copy_request(b)};
    sched_submit(r.s, a, r.now_us);
    sched_submit(r.s, b, r.now_us);
    for (int i = 0; i < 5; i++) {
        rig_iterate(&r);
        rig_verify(&r);
    }
    EXPECT_EQ(r.outcomes[1].n_tokens, 0);
    EXPECT_EQ(r.outcomes[2].n_tokens, 4); // its prompt had no room in the first step
    EXPECT_EQ(r.s->counters.n_masks_late, 5);
    EXPECT_EQ(r.s->seqs[0].n_computed, 19); // the last token is computed again, and nothing else
    answer(&late);
    rig_iterate(&r);
    EXPECT_EQ(r.outcomes[1].n_tokens, 1);
    EXPECT_EQ(r.outcomes[2].n_tokens, 5);
    for (int i = 0; i < 400 && r.s->n_running > 0; i++) {
        if (i % 3 == 0) answer(&late);
        rig_iterate(&r);
        rig_verify(&r);
    }
    rig_run(&r);
    EXPECT(gives_constrained(&r.outcomes[1], copies[0]));
    EXPECT(gives(&r, copies[1]));
    gen_request_destroy(copies[0]);
    gen_request_destroy(copies[1]);
    rig_deinit(&r);
    grammar_machine_release(m);
    world_deinit(&w);
}

/* The device draws at launch: the prompt is computed, but not the row that draws. */
static void without_its_mask_nothing_is_drawn(void) {
    world w;
    world_init(&w);
    grammar_machine *m = make_machine(&w);
    for (uint32_t depth = 1; depth <= 2; depth++) {
        slow late = {.n = 0};
        rig r;
        sched_limits l = default_limits();
        l.depth = depth;
        rig_init_world(&r, &w, 200, &l);
        sched_set_constraints(r.s, &slow_ops, &late, true);
        gen_request *a = constrained(1, 20, 100, m), *b = request(2, 20, 30);
        gen_request *copies[] = {copy_request(a), copy_request(b)};
        sched_submit(r.s, a, r.now_us);
        for (int i = 0; i < 5; i++) rig_iterate(&r);
        EXPECT_EQ(r.device.n_steps, 1);
        EXPECT_EQ(r.s->seqs[0].n_computed, 19);
        sched_submit(r.s, b, r.now_us);
        for (int i = 0; i < 6; i++) {
            rig_iterate(&r);
            rig_verify(&r);
        }
        EXPECT_EQ(r.outcomes[1].n_tokens, 0);
        EXPECT(r.outcomes[2].n_tokens >= 5);
        answer(&late);
        rig_iterate(&r);
        rig_iterate(&r);
        EXPECT_EQ(r.outcomes[1].n_tokens, 1);
        for (int i = 0; i < 400 && r.s->n_running > 0; i++) {
            if (i % 3 == 0) answer(&late);
            rig_iterate(&r);
            rig_verify(&r);
        }
        rig_run(&r);
        EXPECT(gives_constrained(&r.outcomes[1], copies[0]));
        EXPECT(gives(&r, copies[1]));
        EXPECT_EQ(r.s->counters.n_masks_late, 0);
        gen_request_destroy(copies[0]);
        gen_request_destroy(copies[1]);
        rig_deinit(&r);
    }
    grammar_machine_release(m);
    world_deinit(&w);
}

/* Questions with guesses, answered before the next plan, before its draws, or later still. */
static void draw_late(const world *w) {
    grammar_machine *m = make_machine(w);
    for (uint64_t seed = 1; seed <= 30; seed++) {
        slow late = {.n = 0};
        uint64_t at = seed;
        rig r;
        sched_limits l = default_limits();
        l.draft_tokens = 5;
        l.logits_max = 60;
        rig_init_world(&r, w, 200, &l);
        sched_set_constraints(r.s, &slow_ops, &late, false);
        gen_request *copies[3];
        for (uint64_t id = 1; id <= 3; id++) {
            gen_request *q = constrained(id, 40, 200, m);
            for (uint32_t i = 0; i < 40; i++) q->prompt[i] = (tok_id)(i % (4 + seed % 5));
            copies[id - 1] = copy_request(q);
            sched_submit(r.s, q, r.now_us);
        }
        for (int i = 0; i < 4000 && r.s->n_running + r.s->n_waiting > 0; i++) {
            if (next_random(&at) % 3 == 0) answer(&late);
            step *st = rig_plan(&r);
            rig_verify(&r);
            if (next_random(&at) % 2 == 0) answer(&late);
            if (st != NULL) rig_finish(&r);
            rig_verify(&r);
        }
        rig_run(&r);
        for (uint32_t i = 0; i < 3; i++) {
            EXPECT(gives_constrained(&r.outcomes[1 + i], copies[i]));
            gen_request_destroy(copies[i]);
        }
        rig_deinit(&r);
    }
    grammar_machine_release(m);
}

static void late_masks_of_drafts_change_no_token(void) {
    world w;
    world_init(&w);
    draw_late(&w);
    world_deinit(&w);
    world_init_reasoning(&w, "\xff<|tool|>\xff");
    draw_late(&w);
    world_deinit(&w);
}

/* Reasoning is closed behind as many tokens as its budget has, whatever happens to its sequence. */
static void reasoning_ends_at_its_budget(void) {
    static const char *const ends[] = {"</t>", "\xff<|tool|>\xff"};
    for (size_t i = 0; i < INFERD_COUNT(ends); i++) {
        world w;
        sched_counters c;
        sched_limits l = default_limits();
        world_init_reasoning(&w, ends[i]);
        run_some(&w, &l, 200, NULL, NULL, false, &c);
        run_some(&w, &l, 200, NULL, NULL, true, &c);
        run_some(&w, &l, 17, NULL, NULL, false, &c);
        EXPECT(c.n_preemptions > 0);
        l.depth = 2;
        run_some(&w, &l, 13, NULL, NULL, false, &c);
        EXPECT(c.n_preemptions > 0);
        l.depth = 1;
        l.draft_tokens = 5;
        l.logits_max = 60;
        run_some(&w, &l, 200, NULL, NULL, false, &c);
        EXPECT(c.n_drafts_right > 0);
        run_some(&w, &l, 17, NULL, NULL, true, &c);
        world_deinit(&w);
    }
}

/* The tokens of one request say how long it reasoned. */
static void a_budget_counts_the_tokens_before_the_closing_mark(void) {
    world w;
    world_init_reasoning(&w, "\xff<|tool|>\xff");
    grammar_machine *m = make_machine(&w);
    tok_id mark = tok_find(w.tok, (bytes){"<|tool|>", 8});
    for (uint64_t id = 1; id <= 8; id++) {
        rig r;
        sched_limits l = default_limits();
        gen_request *q = constrained(id, 20, 100, m);
        uint32_t n_max = q->reasoning_tokens_max;
        rig_init_world(&r, &w, 200, &l);
        sched_submit(r.s, q, r.now_us);
        rig_run(&r);
        const outcome *o = &r.outcomes[id];
        uint32_t n = 0;
        while (n < o->n_tokens && o->tokens[n] != mark) n++;
        EXPECT(n <= n_max && n < o->n_tokens);
        EXPECT_EQ(o->done.done.finish, GEN_STOP);
        rig_deinit(&r);
    }
    grammar_machine_release(m);
    world_deinit(&w);
}

/* Two steps ahead, beside a free request: a device that takes draws after the launch has it in
 * every step, another one only when its newest token is known. */
static void draws_that_come_later_miss_no_step(void) {
    world w;
    world_init(&w);
    grammar_machine *m = make_machine(&w);
    uint64_t took_us[2];
    for (uint32_t before_launch = 0; before_launch < 2; before_launch++) {
        rig r;
        sched_limits l = default_limits();
        l.depth = 2;
        rig_init_world(&r, &w, 200, &l);
        sched_set_constraints(r.s, NULL, NULL, before_launch);
        gen_request *a = constrained(1, 20, 100, m), *b = request(2, 20, 100);
        gen_request *copies[] = {copy_request(a), copy_request(b)};
        sched_submit(r.s, a, r.now_us);
        sched_submit(r.s, b, r.now_us);
        rig_run(&r);
        EXPECT(gives_constrained(&r.outcomes[1], copies[0]));
        EXPECT(gives(&r, copies[1]));
        took_us[before_launch] = r.outcomes[1].last_us - r.outcomes[1].first_us;
        gen_request_destroy(copies[0]);
        gen_request_destroy(copies[1]);
        rig_deinit(&r);
    }
    EXPECT(took_us[0] < took_us[1] * 6 / 10);
    grammar_machine_release(m);
    world_deinit(&w);
}

/* Its row is computed, and the mask does not come: the token is drawn later, after a step without
 * the sequence. */
static void a_late_mask_of_a_later_draw_delays_its_sequence_only(void) {
    world w;
    world_init(&w);
    grammar_machine *m = make_machine(&w);
    slow late = {.n = 0};
    rig r;
    sched_limits l = default_limits();
    l.depth = 2;
    rig_init_world(&r, &w, 200, &l);
    sched_set_constraints(r.s, &slow_ops, &late, false);
    gen_request *a = constrained(1, 20, 100, m), *b = request(2, 20, 100);
    gen_request *copies[] = {copy_request(a), copy_request(b)};
    sched_submit(r.s, a, r.now_us);
    sched_submit(r.s, b, r.now_us);
    for (int i = 0; i < 2000 && r.s->n_running + r.s->n_waiting > 0; i++) {
        if (i % 5 == 4) answer(&late);
        rig_iterate(&r);
        rig_verify(&r);
    }
    rig_run(&r);
    EXPECT(gives_constrained(&r.outcomes[1], copies[0]));
    EXPECT(gives(&r, copies[1]));
    EXPECT(r.s->counters.n_masks_late > r.outcomes[1].n_tokens);
    gen_request_destroy(copies[0]);
    gen_request_destroy(copies[1]);
    rig_deinit(&r);
    grammar_machine_release(m);
    world_deinit(&w);
}

/* It ends as soon as the answer says that nothing may follow, though its next row is on its way. */
static void a_complete_text_ends_at_once(void) {
    world w;
    world_init(&w);
    grammar *g = NULL;
    grammar_machine *m = NULL;
    inferd_err err = {0};
    bytes texts[] = {{"name", 4}};
    EXPECT_EQ(grammar_of_choices(texts, 1, NULL, &g, &err), INFERD_OK);
    EXPECT_EQ(grammar_machine_create(g, w.vocab, &m, &err), INFERD_OK);
    for (uint32_t i = 0; i < 2; i++) {
        slow late = {.n = 0};
        rig r;
        sched_limits l = default_limits();
        rig_init_world(&r, &w, 200, &l);
        sched_set_constraints(r.s, &slow_ops, &late, false);
        gen_request *q = constrained(1, 20, 100, m);
        q->min_tokens = 50; // the grammar wins
        q->ignore_eos = true;
        sched_submit(r.s, q, r.now_us);
        answer(&late);
        for (int k = 0; k < 100 && r.s->n_running + r.s->n_waiting > 0; k++) {
            if (i == 0) answer(&late); // before the next step is planned
            step *st = rig_plan(&r);
            answer(&late); // or before it draws
            if (st != NULL) rig_finish(&r);
        }
        rig_run(&r);
        const outcome *o = &r.outcomes[1];
        EXPECT_EQ(o->done.done.finish, GEN_STOP);
        EXPECT_EQ(o->done.done.stop_id, -1);
        size_t n = 0;
        for (uint32_t t = 0; t < o->n_tokens; t++) n += tok_piece(w.tok, o->tokens[t]).n;
        EXPECT_EQ(n, 4);
        EXPECT_EQ(r.device.n_steps, o->n_tokens + i);
        rig_deinit(&r);
    }
    grammar_machine_release(m);
    grammar_release(g);
    world_deinit(&w);
}

/* The last token of max_tokens is the last one of the text: nothing was cut. */
static void a_text_that_is_complete_at_max_tokens_is_not_cut(void) {
    world w;
    world_init(&w);
    grammar *g = NULL;
    grammar_machine *m = NULL;
    inferd_err err = {0};
    bytes texts[] = {{"tearsinnose", 11}};
    EXPECT_EQ(grammar_of_choices(texts, 1, NULL, &g, &err), INFERD_OK);
    EXPECT_EQ(grammar_machine_create(g, w.vocab, &m, &err), INFERD_OK);
    uint32_t n_whole = 100;
    for (uint32_t i = 0; i < 3; i++) { // without a cut, just so, one token less
        rig r;
        sched_limits l = default_limits();
        rig_init_world(&r, &w, 200, &l);
        sched_submit(r.s, constrained(1, 20, i < 2 ? n_whole : n_whole - 1, m), r.now_us);
        rig_run(&r);
        const outcome *o = &r.outcomes[1];
        EXPECT_EQ(o->done.done.finish, i < 2 ? GEN_STOP : GEN_LENGTH);
        if (i == 0) n_whole = o->n_tokens;
        EXPECT_EQ(o->n_tokens, i < 2 ? n_whole : n_whole - 1);
        rig_deinit(&r);
    }
    grammar_machine_release(m);
    grammar_release(g);
    world_deinit(&w);
}

/* ---- failures ---- */

typedef struct bad {
    uint32_t n, fail_at, wrong_at;
} bad;

static void bad_ask(void *ctx, constraint *c) {
    bad *b = ctx;
    b->n++;
    if (b->n == b->wrong_at && c->n_accepted > 0) c->accepted[0] = 'Z'; // never allowed
    constraint_work(c);
    if (b->n == b->fail_at) {
        constraint_forget(c);
        inferd_fail(&c->err, INFERD_ETOOLONG, "the grammar needs more states than 7");
    }
    atomic_store(&c->state, CONSTRAINT_DONE);
}

static void bad_close(void *ctx, constraint *c) {
    (void)ctx;
    constraint_destroy(c);
}

static void a_failed_mask_ends_its_sequence_only(void) {
    static const constraint_ops ops = {bad_ask, bad_close, slow_settle};
    world w;
    world_init(&w);
    grammar_machine *m = make_machine(&w);
    for (uint32_t round = 0; round < 6; round++) {
        bad b = {.fail_at = round % 3 == 0   ? 1
                            : round % 3 == 1 ? 6
                                             : 0,
                 .wrong_at = round % 3 == 2 ? 6 : 0};
        rig r;
        sched_limits l = default_limits();
        rig_init_world(&r, &w, 200, &l);
        sched_set_constraints(r.s, &ops, &b, round >= 3);
        gen_request *other = request(2, 20, 30), *copy = copy_request(other);
        sched_submit(r.s, constrained(1, 20, 100, m), r.now_us);
        sched_submit(r.s, other, r.now_us);
        rig_run(&r);
        const gen_event *done = &r.outcomes[1].done;
        EXPECT_EQ(done->done.finish, GEN_ERROR);
        EXPECT_EQ(r.outcomes[1].n_tokens, b.fail_at == 1 ? 0 : 5);
        if (b.fail_at > 0) {
            EXPECT_EQ(done->done.status, INFERD_ETOOLONG);
            EXPECT_STR(done->done.text, "the grammar needs more states than 7");
        } else {
            EXPECT_EQ(done->done.status, INFERD_EDEVICE);
            EXPECT(strstr(done->done.text, "does not accept token 90, which was drawn") != NULL);
        }
        EXPECT(gives(&r, copy));
        gen_request_destroy(copy);
        rig_deinit(&r);
    }
    grammar_machine_release(m);
    world_deinit(&w);
}

/* A vocabulary of another model: the mask has too few bits. */
static void a_mask_of_another_vocabulary_is_refused(void) {
    world w;
    world_init(&w);
    grammar_vocab *small = NULL;
    grammar_machine *m = NULL;
    inferd_err err = {0};
    bytes pieces[64] = {{0}};
    pieces[3] = (bytes){"n", 1};
    EXPECT_EQ(grammar_vocab_of_pieces(pieces, 64, (tok_id[]){7}, 1, &small, &err), INFERD_OK);
    EXPECT_EQ(grammar_machine_create(w.grammar, small, &m, &err), INFERD_OK);
    rig r;
    sched_limits l = default_limits();
    rig_init_world(&r, &w, 200, &l);
    sched_submit(r.s, constrained(1, 20, 100, m), r.now_us);
    rig_run(&r);
    EXPECT_EQ(r.outcomes[1].done.done.finish, GEN_ERROR);
    EXPECT_STR(r.outcomes[1].done.done.text,
               "the grammar cannot say what may follow: the grammar's "
               "masks have 64 bits, the model has 256 tokens");
    rig_deinit(&r);
    grammar_machine_release(m);
    grammar_vocab_release(small);
    world_deinit(&w);
}

/* Bans that leave nothing else than the end give way to the grammar; a stop id that is banned
 * beside others is not drawn. */
static void bans_give_way_when_nothing_else_is_allowed(void) {
    world w;
    world_init(&w);
    grammar *g = NULL;
    grammar_machine *m = NULL;
    inferd_err err = {0};
    bytes texts[] = {{"a", 1}, {"ab", 2}};
    EXPECT_EQ(grammar_of_choices(texts, 2, NULL, &g, &err), INFERD_OK);
    EXPECT_EQ(grammar_machine_create(g, w.vocab, &m, &err), INFERD_OK);
    for (uint64_t id = 1; id <= 8; id++) {
        rig r;
        sched_limits l = default_limits();
        rig_init_world(&r, &w, 200, &l);
        gen_request *q = constrained(id, 20, 100, m);
        q->ignore_eos = id % 2 == 0;
        q->min_tokens = id % 2 == 0 ? 0 : 30;
        gen_request *copy = copy_request(q);
        sched_submit(r.s, q, r.now_us);
        rig_run(&r);
        EXPECT(gives_constrained(&r.outcomes[id], copy));
        EXPECT_EQ(r.outcomes[id].n_tokens, 2); // a, then b: the end is banned while b may follow
        gen_request_destroy(copy);
        rig_deinit(&r);
    }
    grammar_machine_release(m);
    grammar_release(g);
    world_deinit(&w);
}

/* ---- threads ---- */

static void pass_some_time(void) {
    nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
}

/* A core whose workers answer meanwhile; requests come, are paused, cancelled, preempted and
 * swapped. */
static void run_with_threads(bool draws, bool later, uint32_t draft_tokens, uint32_t n_pages,
                             uint64_t seed) {
    enum { N = 60 };
    static core_rig r;
    world w;
    uint64_t at = seed;
    uint32_t n_cancelled = 0;
    world_init(&w);
    grammar_machine *shared[3];
    for (int i = 0; i < 3; i++) shared[i] = make_machine(&w);
    core_rig_init(&r, n_pages, 30, 2);
    r.device.tok = w.tok;
    r.device.depth = draws ? 2 : 1;
    r.device.takes_draws = later;
    r.draft_tokens = draft_tokens;
    r.device.a_us = 3000; // copying pays
    r.device.move_us = 10;
    core_rig_open(&r, true);
    model_policy policy = plain_policy();
    core_rig_attach(&r, 0, &policy);
    bool cancelled[N + 1] = {0};
    for (uint64_t id = 1; id <= N || core_rig_n_alive(&r) > 0; id++) {
        if (id <= N) {
            uint32_t n_prompt = 10 + (uint32_t)(next_random(&at) % 60);
            gen_request *q = id % 4 == 0 ? request(id, n_prompt, 40)
                                         : constrained(id, n_prompt, 80, shared[id % 3]);
            q->prio = next_random(&at) % 5 == 0 ? GEN_HIGH : GEN_NORMAL;
            core_rig_submit(&r, 0, q);
        }
        uint64_t other = 1 + next_random(&at) % N;
        if (next_random(&at) % 6 == 0 && id <= N && other <= id) {
            sched_cancel(r.core.sched, other, core_rig_now(&r));
            cancelled[other] = true;
        }
        if (next_random(&at) % 8 == 0) sched_pause(r.core.sched, other);
        other = 1 + next_random(&at) % N;
        sched_resume(r.core.sched, other, core_rig_now(&r));
        for (uint64_t n = next_random(&at) % (n_pages < 50 ? 3 : 8); n > 0; n--)
            if (!core_rig_iterate(&r, 100)) pass_some_time();
        if (id > N)
            for (uint64_t i = 1; i <= N; i++) sched_resume(r.core.sched, i, core_rig_now(&r));
        if (id > 200000) break;
    }
    core_rig_finish(&r);
    for (uint64_t id = 1; id <= N; id++) {
        const outcome *o = &r.outcomes[id];
        if (cancelled[id] && o->done.done.finish == GEN_CANCELLED) {
            n_cancelled++;
            continue;
        }
        EXPECT(r.copies[id]->grammar != NULL ? gives_constrained(o, r.copies[id])
                                             : core_rig_gives(&r, id));
    }
    EXPECT(n_cancelled > 0);
    sched_counters c;
    sched_count(r.core.sched, &c);
    EXPECT(c.n_masks > 100);
    core_rig_deinit(&r);
    for (int i = 0; i < 3; i++) grammar_machine_release(shared[i]);
    world_deinit(&w);
}

static void workers_answer_beside_the_steps(void) {
    run_with_threads(false, false, 0, 200, 1);
    run_with_threads(false, false, 4, 200, 7);
    run_with_threads(true, false, 0, 200, 2);
    run_with_threads(true, true, 0, 200, 5);
}

static void workers_do_not_mind_preemption(void) {
    run_with_threads(false, false, 4, 18, 3);
    run_with_threads(true, false, 0, 18, 4);
    run_with_threads(true, true, 0, 18, 6);
}

/* Closed while a worker has it: the worker frees it.  Unanswered questions are dropped. */
static void questions_outlive_nothing(void) {
    world w;
    world_init(&w);
    masks *workers = NULL;
    inferd_err err = {0};
    grammar_machine *m = make_machine(&w);
    EXPECT_EQ(masks_create(&(masks_options){.n_threads = 2}, &workers, &err), INFERD_OK);
    for (int round = 0; round < 200; round++) {
        constraint *all[20];
        for (uint32_t i = 0; i < 20; i++) {
            all[i] = constraint_create(m, w.tok, FAKE_VOCAB);
            all[i]->wants_forced = true;
            atomic_store(&all[i]->state, CONSTRAINT_ASKED);
            masks_ops.ask(workers, all[i]);
        }
        if (round % 2 == 0) pass_some_time();
        if (round % 3 == 0) {
            EXPECT(masks_await(workers, 10000000));
            for (uint32_t i = 0; i < 20; i++)
                EXPECT_EQ(atomic_load(&all[i]->state), CONSTRAINT_DONE);
        }
        for (uint32_t i = 0; i < 20; i++) masks_ops.close(workers, all[i]);
        masks_ops.settle(workers);
        grammar_stats stats;
        grammar_machine_stats(m, &stats);
    }
    constraint *last = constraint_create(m, w.tok, FAKE_VOCAB);
    atomic_store(&last->state, CONSTRAINT_ASKED);
    masks_halt(workers);
    masks_ops.ask(workers, last); // without threads: at once
    EXPECT_EQ(atomic_load(&last->state), CONSTRAINT_DONE);
    EXPECT(last->mask != NULL);
    masks_ops.close(workers, last);
    masks_destroy(workers);
    grammar_machine_release(m);
    world_deinit(&w);
}

static const test_case cases[] = {
    TEST(tokens_are_those_of_the_grammar),
    TEST(tokens_are_those_of_any_json),
    TEST(preemption_changes_no_token),
    TEST(swapping_changes_no_token),
    TEST(text_that_is_forced_takes_fewer_steps),
    TEST(forced_text_may_have_control_tokens),
    TEST(forced_drafts_are_longer_than_others),
    TEST(guesses_follow_the_grammar),
    TEST(drafts_change_no_token_beside_others),
    TEST(a_late_mask_delays_its_own_sequence_only),
    TEST(without_its_mask_nothing_is_drawn),
    TEST(reasoning_ends_at_its_budget),
    TEST(a_budget_counts_the_tokens_before_the_closing_mark),
    TEST(late_masks_of_drafts_change_no_token),
    TEST(draws_that_come_later_miss_no_step),
    TEST(a_late_mask_of_a_later_draw_delays_its_sequence_only),
    TEST(a_complete_text_ends_at_once),
    TEST(a_text_that_is_complete_at_max_tokens_is_not_cut),
    TEST(a_failed_mask_ends_its_sequence_only),
    TEST(a_mask_of_another_vocabulary_is_refused),
    TEST(bans_give_way_when_nothing_else_is_allowed),
    TEST(workers_answer_beside_the_steps),
    TEST(workers_do_not_mind_preemption),
    TEST(questions_outlive_nothing),
};
TEST_MAIN(cases)
