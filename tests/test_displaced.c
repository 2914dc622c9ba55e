/* More sequences than places in the batch: those that stepped aside for more urgent ones, or came
 * back from a slow reader, keep their blocks and have a step each starvation_us. */
#include "../bench/rng.h"
#include "sched_rig.h"

enum { BATCH_SLOTS = 16, CLIENTS = 40, FIRST_OF_FLOOD = 1000 };

static sched_limits flood_limits(void) {
    sched_limits l = default_limits();
    request_no_cache = true;
    l.running_max = BATCH_SLOTS;
    l.logits_max = 2 * BATCH_SLOTS;
    l.starvation_percent = 2;
    l.queue_len_max = 1024;
    return l;
}

static void open_rig(rig *r, const sched_limits *l) {
    rig_init(r, 4000, l);
    r->device.a_us = 3000;
    r->device.b_us = 350;
}

static void submit(rig *r, gen_class prio, gen_request *q) {
    q->prio = prio;
    q->arrival_us = r->now_us;
    sched_submit(r->s, q, r->now_us);
}

static seq *sequence(rig *r, uint64_t id) {
    for (uint32_t i = 0; i < r->s->n_seqs; i++)
        if (r->s->seqs[i].state != SEQ_FREE && r->s->seqs[i].req->id == id) return &r->s->seqs[i];
    return NULL;
}

/* A closed loop of urgent requests. */
typedef struct loop {
    gen_class prio;
    rng random;
    uint64_t ids[CLIENTS], next;
} loop;

static void iterate_with(rig *r, loop *f) {
    for (int i = 0; i < CLIENTS && f->next < REQUESTS_MAX; i++) {
        if (f->ids[i] != 0 && r->outcomes[f->ids[i]].n_done == 0) continue;
        f->ids[i] = f->next++;
        submit(r, f->prio,
               request(f->ids[i], 40 + (uint32_t)rng_below(&f->random, 60),
                       20 + (uint32_t)rng_below(&f->random, 80)));
    }
    rig_iterate(r);
}

/* The longest that one of requests [1, n], which have begun, stood still, until all have ended or
 * `us` are over. */
static uint64_t longest_pause(rig *r, loop *f, uint32_t n, uint64_t us) {
    uint64_t longest_us = 0, until_us = r->now_us + us;
    uint32_t n_done = 0;
    while (n_done < n && r->now_us < until_us && (f == NULL || f->next < REQUESTS_MAX)) {
        if (f != NULL)
            iterate_with(r, f);
        else
            rig_iterate(r);
        n_done = 0;
        for (uint64_t id = 1; id <= n; id++) {
            const seq *q = sequence(r, id);
            n_done += r->outcomes[id].n_done;
            if (q != NULL && q->first_plan_us != 0)
                longest_us = u64_max(longest_us, r->now_us - q->idle_since_us);
        }
    }
    EXPECT(r->now_us >= until_us || n_done == n);
    return longest_us;
}

static void close_rig(rig *r) {
    sched_cancel_all(r->s, r->now_us);
    rig_run(r);
    rig_verify(r);
    rig_deinit(r);
}

/* Streams that fill the batch, and then a flood of a class above without an end.  All of them lost
 * their places, a few at a time came back until they ended, and the last stood still for minutes.
 */
static void streams_go_on_beside_a_flood(gen_class prio, gen_class above) {
    for (uint64_t seed = 1; seed <= 4; seed++) {
        rig r;
        sched_limits l = flood_limits();
        open_rig(&r, &l);
        loop f = {.prio = above, .random = rng_make(seed, 0, 0), .next = FIRST_OF_FLOOD};
        for (uint64_t id = 1; id <= BATCH_SLOTS; id++) submit(&r, prio, request(id, 30, 400));
        while (r.outcomes[BATCH_SLOTS].n_tokens < 3) rig_iterate(&r);
        uint64_t urgent_us = 0, longest_us = longest_pause(&r, &f, BATCH_SLOTS, 40000000);
        if (longest_us > l.starvation_us + 1000000)
            printf("seed %llu: the longest pause was %.1f s\n", (unsigned long long)seed,
                   (double)longest_us / 1e6);
        EXPECT(longest_us <= l.starvation_us + 1000000);
        sched_counters c;
        sched_count(r.s, &c);
        urgent_us = c.class_us[above];
        EXPECT(urgent_us * 100 >= 75 * c.charged_us); // and urgent ones still go first
        EXPECT(c.class_us[prio] > 0);
        for (uint64_t id = 1; id <= BATCH_SLOTS; id++) EXPECT(r.outcomes[id].n_tokens >= 12);
        close_rig(&r);
    }
}

static void normal_streams_go_on_beside_urgent_ones(void) {
    streams_go_on_beside_a_flood(GEN_NORMAL, GEN_HIGH);
}

static void batch_streams_go_on_beside_normal_ones(void) {
    streams_go_on_beside_a_flood(GEN_BATCH, GEN_NORMAL);
}

static void batch_streams_go_on_beside_urgent_ones(void) {
    streams_go_on_beside_a_flood(GEN_BATCH, GEN_HIGH);
}

/* As many readers stop as there are places, others begin, and the readers go on: twice as many run
 * as there are places, and only the oldest got steps. */
static void resumed_readers_leave_the_others_their_steps(void) {
    static const gen_class classes[] = {GEN_HIGH, GEN_NORMAL, GEN_BATCH};
    for (size_t c = 0; c < INFERD_COUNT(classes); c++) {
        rig r;
        sched_limits l = flood_limits();
        open_rig(&r, &l);
        for (uint64_t id = 1; id <= BATCH_SLOTS; id++) submit(&r, classes[c], request(id, 20, 470));
        while (r.outcomes[BATCH_SLOTS].n_tokens < 3) rig_iterate(&r);
        for (uint64_t id = 1; id <= BATCH_SLOTS; id++) sched_pause(r.s, id);
        for (uint64_t id = BATCH_SLOTS + 1; id <= 2 * BATCH_SLOTS; id++)
            submit(&r, classes[c], request(id, 20, 470));
        while (r.outcomes[2 * BATCH_SLOTS].n_tokens < 3) rig_iterate(&r);
        for (uint64_t id = 1; id <= BATCH_SLOTS; id++) sched_resume(r.s, id, r.now_us);
        uint64_t longest_us = longest_pause(&r, NULL, 2 * BATCH_SLOTS, 60000000);
        EXPECT(longest_us <= l.starvation_us + 1000000);
        for (uint64_t id = 1; id <= 2 * BATCH_SLOTS; id++) EXPECT_EQ(r.outcomes[id].n_tokens, 470);
        close_rig(&r);
    }
}

/* A prompt that has begun, of class high, which waiting does not lift, below one of class system.
 */
static void an_urgent_prompt_goes_on_below_the_system_s(void) {
    for (uint64_t seed = 1; seed <= 4; seed++) {
        rig r;
        sched_limits l = flood_limits();
        open_rig(&r, &l);
        loop f = {.prio = GEN_SYSTEM, .random = rng_make(seed, 0, 0), .next = FIRST_OF_FLOOD};
        submit(&r, GEN_HIGH, request(1, 300, 4));
        rig_iterate(&r);
        EXPECT(r.outcomes[1].n_tokens == 0 && sequence(&r, 1)->first_plan_us != 0);
        EXPECT(longest_pause(&r, &f, 1, 40000000) <= l.starvation_us + 1000000);
        EXPECT_EQ(r.outcomes[1].n_done, 1);
        close_rig(&r);
    }
}

/* A rank orders requests of one class.  In the class that waiting lifted them to, batch requests
 * that came with one were behind every urgent request, for ever. */
static void a_rank_does_not_keep_batch_work_out(void) {
    rig r;
    sched_limits l = flood_limits();
    open_rig(&r, &l);
    loop f = {.prio = GEN_HIGH, .random = rng_make(1, 0, 0), .next = FIRST_OF_FLOOD};
    for (int i = 0; i < 20; i++) iterate_with(&r, &f);
    for (uint64_t id = 1; id <= 6; id++) {
        gen_request *q = request(id, 100, 4);
        q->rank = 10;
        submit(&r, GEN_BATCH, q);
    }
    longest_pause(&r, &f, 6, 60000000);
    for (uint64_t id = 1; id <= 6; id++) EXPECT_EQ(r.outcomes[id].n_done, 1);
    close_rig(&r);
}

/* Streams of three classes, of which two have stepped aside, and steps so long that some of them
 * are due at each: a prompt of the class above found all sequences of a step taken, for up to 28 s.
 */
static void an_urgent_prompt_finds_a_slot_beside_aged_ones(void) {
    rig r;
    sched_limits l = flood_limits();
    l.running_max = 8;
    open_rig(&r, &l);
    r.device.a_us = 150000;
    uint64_t id = 1;
    for (int prio = GEN_BATCH; prio >= GEN_HIGH; prio--) {
        for (int i = 0; i < 8; i++) submit(&r, (gen_class)prio, request(id++, 20, 470));
        while (r.outcomes[id - 1].n_tokens < 2) rig_iterate(&r);
    }
    for (uint64_t until_us = r.now_us + 3000000; r.now_us < until_us;) rig_iterate(&r);
    for (id = 500; id < 510; id++) {
        uint64_t came_us = r.now_us;
        submit(&r, GEN_SYSTEM, request(id, 20, 4));
        while (r.outcomes[id].n_tokens == 0) rig_iterate(&r);
        EXPECT(r.now_us - came_us <= 2 * 170000);
        for (uint64_t until_us = r.now_us + 700000; r.now_us < until_us;) rig_iterate(&r);
    }
    close_rig(&r);
}

/* Beside a flood and displaced streams, waiting requests of the streams' class begin after those,
 * and those of a class between have a floor of their own. */
static void waiting_requests_get_slots_beside_displaced_streams(void) {
    static const gen_class classes[] = {GEN_NORMAL, GEN_BATCH};
    for (size_t c = 0; c < INFERD_COUNT(classes); c++) {
        rig r;
        sched_limits l = flood_limits();
        open_rig(&r, &l);
        loop f = {.prio = GEN_HIGH, .random = rng_make(1, 0, 0), .next = FIRST_OF_FLOOD};
        for (uint64_t id = 101; id <= 100 + BATCH_SLOTS; id++)
            submit(&r, GEN_BATCH, request(id, 20, classes[c] == GEN_BATCH ? 30 : 480));
        while (r.outcomes[100 + BATCH_SLOTS].n_tokens < 3) rig_iterate(&r);
        for (int i = 0; i < 20; i++) iterate_with(&r, &f);
        for (uint64_t id = 1; id <= 6; id++) submit(&r, classes[c], request(id, 60, 4));
        uint64_t came_us = r.now_us;
        longest_pause(&r, &f, 6, 60000000);
        for (uint64_t id = 1; id <= 6; id++) EXPECT_EQ(r.outcomes[id].n_done, 1);
        EXPECT(r.now_us - came_us <= 30000000);
        close_rig(&r);
    }
}

/* Ranks of two classes were compared in a circle: one urgent request with a rank kept the oldest
 * batch request from ever being the first. */
static void ranks_have_one_order(void) {
    rig r;
    sched_limits l = flood_limits();
    open_rig(&r, &l);
    loop f = {.prio = GEN_HIGH, .random = rng_make(1, 0, 0), .next = FIRST_OF_FLOOD};
    for (int i = 0; i < 20; i++) iterate_with(&r, &f);
    gen_request *q = request(900, 100, 4);
    q->rank = 5;
    submit(&r, GEN_HIGH, q);
    for (uint64_t id = 1; id <= 6; id++) submit(&r, GEN_BATCH, request(id, 100, 4));
    longest_pause(&r, &f, 6, 60000000);
    for (uint64_t id = 1; id <= 6; id++) EXPECT_EQ(r.outcomes[id].n_done, 1);
    close_rig(&r);
}

/* A prompt aside took all rows of a step that has as many as the batch has places. */
static void a_displaced_prompt_leaves_the_batch_its_rows(void) {
    rig r;
    sched_limits l = flood_limits();
    l.step_tokens_max = BATCH_SLOTS;
    l.logits_max = BATCH_SLOTS;
    open_rig(&r, &l);
    r.device.a_us = 1000;
    r.device.b_us = 10;
    for (uint64_t id = 1; id <= 4; id++) submit(&r, GEN_BATCH, request(id, 400, 20));
    rig_iterate(&r);
    for (uint64_t id = 101; id <= 100 + BATCH_SLOTS; id++)
        submit(&r, GEN_HIGH, request(id, 20, 480));
    uint64_t longest_us = longest_pause(&r, NULL, 4, 60000000);
    EXPECT(longest_us <= l.starvation_us + 1000000);
    for (uint64_t id = 1; id <= 4; id++) EXPECT_EQ(r.outcomes[id].n_tokens, 20);
    close_rig(&r);
}

static const test_case cases[] = {
    TEST(normal_streams_go_on_beside_urgent_ones),
    TEST(batch_streams_go_on_beside_normal_ones),
    TEST(batch_streams_go_on_beside_urgent_ones),
    TEST(resumed_readers_leave_the_others_their_steps),
    TEST(an_urgent_prompt_goes_on_below_the_system_s),
    TEST(a_rank_does_not_keep_batch_work_out),
    TEST(an_urgent_prompt_finds_a_slot_beside_aged_ones),
    TEST(waiting_requests_get_slots_beside_displaced_streams),
    TEST(ranks_have_one_order),
    TEST(a_displaced_prompt_leaves_the_batch_its_rows),
};

TEST_MAIN(cases)
