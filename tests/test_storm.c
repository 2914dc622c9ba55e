/* test_storm.c - everything at once, with few pages: submissions, cancellations, pauses, deadlines,
 * preemption and guesses, at depth 1 and 2.  Outputs must be those of a calm day.  INFERD_STORMS=n
 * runs more. */
#include "sched_rig.h"

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
    q->prio = (gen_class)storm(GEN_CLASSES);
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
    case 0:
    case 1:
    case 2:
    case 3:
    case 4: {
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
    case 6:
        sched_pause(r->s, id);
        return;
    case 7:
    case 8:
        sched_resume(r->s, id, r->now_us);
        return;
    case 9:
        r->now_us += storm(5000);
        return;
    default:
        return;
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

/* What happened in all storms, to be sure that it did. */
typedef struct storm_counts {
    uint64_t n_preemptions, n_hits, n_drafted, n_right;
} storm_counts;

/* Everything at once, with few pages; the books are checked after every step. */
static void storm_once(uint64_t seed, storm_counts *counts) {
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
    l.draft_tokens = storm(2) * storm(7);
    fake_memory = storm(2);          // 1: the text repeats itself
    rig_init(&r, 11 + storm(8), &l); // 132 tokens or more: each fits alone
    r.device.late = storm(3) != 0;
    for (uint32_t i = 0; i < 1500 && test_failures == failures_before; i++) {
        storm_event(&r, &log);
        if (r.n_flight > 0 && (r.n_flight == l.depth || storm(2) == 0))
            rig_finish(&r);
        else
            rig_plan(&r);
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
    counts->n_preemptions += c.n_preemptions;
    counts->n_hits += c.prefix_hits_tokens;
    counts->n_drafted += c.n_drafted;
    counts->n_right += c.n_drafts_right;
    EXPECT_EQ(c.n_running + c.n_waiting + c.n_ended + c.blocks_referenced, 0);
    EXPECT_EQ(r.pool.n_in[PAGE_FREE] + c.pages_cached, r.pool.n_pages);
    EXPECT_EQ(r.pool.n_in[PAGE_KV], c.pages_cached);
    if (test_failures > failures_before) printf("seed %llu\n", (unsigned long long)seed);
    rig_deinit(&r);
}

static void a_storm_changes_no_output(void) {
    storm_counts c = {0};
    const char *n = getenv("INFERD_STORMS");
    uint64_t n_storms = n != NULL ? strtoull(n, NULL, 10) : 60;
    int failures_before = test_failures;
    for (uint64_t seed = 1; seed <= n_storms && test_failures == failures_before; seed++)
        storm_once(seed, &c);
    printf("storms: %llu preemptions, %llu tokens found, %llu of %llu guesses right\n",
           (unsigned long long)c.n_preemptions, (unsigned long long)c.n_hits,
           (unsigned long long)c.n_right, (unsigned long long)c.n_drafted);
    EXPECT(c.n_preemptions > n_storms && c.n_hits > 10 * n_storms);
    EXPECT(c.n_right > 10 * n_storms && c.n_drafted > c.n_right + n_storms);
}

static const test_case cases[] = {
    TEST(a_storm_changes_no_output),
};
TEST_MAIN(cases)
