/* sched_rig.h - a scheduler, a pool and a fake device, driven by hand with virtual time; and what a
 * request must give, whatever happens around it. */
#ifndef INFERD_SCHED_RIG_H
#define INFERD_SCHED_RIG_H

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
    uint64_t first_us, last_us; // of the tokens
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

static inline void on_event(void *ctx, const gen_event *e) {
    rig *r = ctx;
    outcome *o = &r->outcomes[e->id];
    EXPECT_EQ(o->n_done, 0); // nothing follows the last event
    if (e->kind == GEN_EV_DONE) {
        o->n_done++;
        o->done = *e;
    } else if (e->kind == GEN_EV_TOKEN) {
        if (o->tokens == NULL) o->tokens = malloc(OUT_MAX * sizeof *o->tokens);
        if (o->n_tokens == 0) o->first_us = e->at_us;
        o->last_us = e->at_us;
        o->tokens[o->n_tokens++] = e->token.r.id;
    } else {
        o->scores[o->n_scored] = e->token.r.logprob;
        o->scored[o->n_scored++] = e->token.r.id;
    }
}

static inline sched_limits default_limits(void) {
    return (sched_limits){.depth = 1,
                          .running_max = 8,
                          .step_tokens_max = 128,
                          .logits_max = 16,
                          .queue_len_max = 256,
                          .pace_us = 40000,
                          .starvation_us = 2000000};
}

/* Blocks of 4 tokens in 2 groups, 6 slots per page: 3 blocks per page. */
static inline void rig_init(rig *r, uint32_t n_pages, const sched_limits *limits) {
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
    EXPECT_EQ(pool_init_extents(&r->pool, n_pages, n_pages, 1, 1, &err), INFERD_OK);
    EXPECT_EQ(sched_create(limits, &r->pool, 1, on_event, r, &r->s, &err), INFERD_OK);
    for (int i = 0; i < 2; i++)
        EXPECT_EQ(step_init(&r->steps[i], limits->step_tokens_max, limits->running_max,
                            limits->logits_max, &err),
                  INFERD_OK);
    sched_model_spec spec = {r->device.kv, r->device.context, FAKE_VOCAB, end_ids, 1, 0, {0}};
    EXPECT_EQ(sched_model_open(r->s, 0, &spec, &err), INFERD_OK);
    sched_model_hot(r->s, 0, true, r->now_us);
}

static inline void rig_verify(rig *r) {
    inferd_err err = {0};
    if (sched_verify(r->s, &err) != INFERD_OK) {
        printf("%s\n", err.text);
        EXPECT(!"the books balance");
    }
}

static bool request_no_cache; // of the requests made until rig_deinit

static inline void rig_deinit(rig *r) {
    request_no_cache = false;
    EXPECT_EQ(r->device.n_faults, 0);
    sched_destroy(r->s);
    pool_deinit(&r->pool);
    for (int i = 0; i < 2; i++) step_deinit(&r->steps[i]);
    for (uint32_t i = 0; i < REQUESTS_MAX; i++) free(r->outcomes[i].tokens);
    free(r->outcomes);
    fake_close(&r->device);
}

/* A step is planned and launched: the step, or NULL.  The one before it draws first. */
static inline step *rig_plan(rig *r) {
    if (r->n_flight == 1 && r->steps[r->oldest].b.draws_later)
        sched_refresh(r->s, &r->steps[r->oldest]);
    step *st = &r->steps[(r->oldest + r->n_flight) % 2];
    if (!sched_plan(r->s, r->now_us, st)) return NULL;
    fake_launch(&r->device, st);
    r->n_flight++;
    return st;
}

static inline void rig_finish(rig *r) {
    step *st = &r->steps[r->oldest];
    inferd_err err = {0};
    uint64_t device_us = 0;
    sched_refresh(r->s, st);
    inferd_status status = fake_finish(&r->device, st, &device_us, &err);
    r->now_us += device_us;
    if (status == INFERD_OK)
        sched_commit(r->s, st, device_us, r->now_us);
    else
        sched_fail(r->s, st, &err, r->now_us);
    r->oldest = (r->oldest + 1) % 2;
    r->n_flight--;
}

/* One turn as the engine does it.  False: nothing happened. */
static inline bool rig_iterate(rig *r) {
    while (r->n_flight < r->device.depth && rig_plan(r) != NULL) {
    }
    bool finished = r->n_flight > 0;
    if (finished) rig_finish(r);
    sched_flush(r->s, UINT32_MAX);
    return finished;
}

static inline void rig_run(rig *r) {
    for (int i = 0; i < 100000 && rig_iterate(r); i++) {
    }
    rig_verify(r);
}

static inline gen_request *request(uint64_t id, uint32_t n_prompt, uint32_t max_tokens) {
    gen_request *q = calloc(1, sizeof *q);
    q->id = id;
    q->no_cache = request_no_cache;
    q->prio = GEN_NORMAL;
    q->prompt = malloc(n_prompt * sizeof *q->prompt);
    q->n_prompt = n_prompt;
    for (uint32_t i = 0; i < n_prompt; i++)
        q->prompt[i] = (tok_id)((id * 31 + i * 7 + i * i) % FAKE_VOCAB);
    q->max_tokens = max_tokens;
    q->ignore_eos = true;
    q->n_logprobs = q->n_prompt_logprobs = -1;
    return q;
}

static inline gen_request *copy_request(const gen_request *q) {
    gen_request *c = malloc(sizeof *c);
    *c = *q;
    c->prompt = malloc(q->n_prompt * sizeof *c->prompt);
    memcpy(c->prompt, q->prompt, q->n_prompt * sizeof *c->prompt);
    c->stop_ids = malloc((q->n_stop_ids + 1) * sizeof *c->stop_ids);
    if (q->grammar != NULL) grammar_machine_hold(q->grammar);
    if (q->n_stop_ids > 0) memcpy(c->stop_ids, q->stop_ids, q->n_stop_ids * sizeof *c->stop_ids);
    return c;
}

/* What a request gives when it is alone in the world. */
typedef struct expected {
    tok_id tokens[OUT_MAX];
    uint32_t n_tokens;
    gen_finish finish;
    tok_id stop_id;
} expected;

static inline void expect_of(const gen_request *q, uint32_t context, expected *x) {
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

static inline bool gives(const rig *r, const gen_request *q) {
    static expected x;
    const outcome *o = &r->outcomes[q->id];
    expect_of(q, r->device.context, &x);
    return o->n_done == 1 && o->done.done.finish == x.finish && o->done.done.stop_id == x.stop_id &&
           o->n_tokens == x.n_tokens && o->done.done.n_output == x.n_tokens &&
           (x.n_tokens == 0 || memcmp(o->tokens, x.tokens, x.n_tokens * sizeof *x.tokens) == 0);
}

#endif
