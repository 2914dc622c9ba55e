/* test_residency_owed.c - memory that comes back: to whoever had to make room, when the work is
 * over that it left for; to whoever was guaranteed it; and from whoever may have less than before.
 */
#include "core_rig.h"

static const uint64_t page_bytes = 2 << 20;

static void set_limits(core_rig *r, uint32_t idx, uint64_t min_pages, uint64_t max_pages) {
    inferd_err err = {0};
    model_policy p = core_rig_model(r, idx)->policy;
    p.min_bytes = min_pages * page_bytes;
    p.max_bytes = max_pages * page_bytes;
    EXPECT_EQ(residency_set_policy(&r->core.models, idx, &p, core_rig_now(r), &err), INFERD_OK);
}

static void submit(core_rig *r, uint64_t id, uint32_t idx, gen_class prio, uint32_t n_prompt,
                   uint32_t n_out) {
    gen_request *q = request(id, n_prompt, n_out);
    q->prio = prio;
    core_rig_submit(r, idx, q);
}

static model_state state_of(core_rig *r, uint32_t idx) {
    return residency_state(&r->core.models, idx);
}

static uint32_t held_by(const core_rig *r, uint32_t idx) {
    return pool_held(&r->core.pool.owners[idx]);
}

/* How long until it is HOT. */
static uint64_t wait_for(core_rig *r, uint32_t idx) {
    uint64_t from_us = core_rig_now(r);
    for (int i = 0; i < 5000 && state_of(r, idx) != MODEL_HOT; i++) core_rig_iterate(r, 1000);
    EXPECT_EQ(state_of(r, idx), MODEL_HOT);
    return core_rig_now(r) - from_us;
}

static void run_until_done(core_rig *r, uint64_t id) {
    for (int i = 0; i < 20000 && r->outcomes[id].n_done == 0; i++) core_rig_iterate(r, 1000);
    EXPECT_EQ(r->outcomes[id].n_done, 1);
}

/* `n` models of so many pages, that are loaded in steps of two milliseconds where memory is apart.
 */
static void open_deep(core_rig *r, uint32_t n_pages, const uint32_t *weights, uint32_t n,
                      bool apart, uint32_t depth, kv_layout layout) {
    model_policy p = plain_policy();
    core_rig_init(r, n_pages, 200, 0);
    r->device.apart = apart;
    r->device.depth = depth;
    r->device.kv = layout;
    for (uint32_t i = 0; i < n; i++) r->device.models[i].weight_pages = weights[i];
    if (apart) r->device.load_pieces = 10, r->device.load_us = 2000;
    core_rig_open(r, false);
    for (uint32_t i = 0; i < n; i++) core_rig_attach(r, i, &p);
}

static void open_rig(core_rig *r, uint32_t n_pages, const uint32_t *weights, uint32_t n,
                     bool apart) {
    open_deep(r, n_pages, weights, n, apart, 1, fake_layout(4, 2, 6));
}

static void make_hot(core_rig *r, uint32_t idx) {
    residency_do(&r->core.models, idx, ENGINE_LOAD, core_rig_now(r));
    for (int i = 0; i < 1000 && state_of(r, idx) != MODEL_HOT; i++) core_rig_iterate(r, 1000);
    EXPECT_EQ(state_of(r, idx), MODEL_HOT);
}

static void make_warm(core_rig *r, uint32_t idx) {
    residency_do(&r->core.models, idx, ENGINE_PREFETCH, core_rig_now(r));
    for (int i = 0; i < 1000 && state_of(r, idx) != MODEL_WARM; i++) core_rig_iterate(r, 1000);
    EXPECT_EQ(state_of(r, idx), MODEL_WARM);
}

/* ---- who had to make room ---- */

/* The device idled for the rest of a turn, though somebody waited for it. */
static void an_evicted_model_is_back_when_that_work_is_over(void) {
    static const uint32_t weights[] = {12, 12};
    static core_rig r;
    open_rig(&r, 20, weights, 2, false);
    submit(&r, 1, 0, GEN_BATCH, 10, 70);
    core_rig_run(&r, 40000);
    submit(&r, 2, 1, GEN_HIGH, 10, 5);
    run_until_done(&r, 2);
    EXPECT(core_rig_now(&r) < core_rig_model(&r, 0)->away_until_us - 50000);
    uint32_t n_before = r.outcomes[1].n_tokens;
    uint64_t from_us = core_rig_now(&r);
    while (r.outcomes[1].n_tokens == n_before) core_rig_iterate(&r, 1000);
    EXPECT(core_rig_now(&r) - from_us < 10000);
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 1) && core_rig_gives(&r, 2));
    core_rig_deinit(&r);
}

/* Switching takes 20 ms each time: it is of no use for a pause that is shorter. */
static void an_evicted_model_ignores_a_short_pause_of_the_other(void) {
    static const uint32_t weights[] = {12, 12};
    static core_rig r;
    open_rig(&r, 20, weights, 2, true);
    submit(&r, 1, 0, GEN_BATCH, 10, 70);
    core_rig_run(&r, 60000);
    EXPECT_EQ(state_of(&r, 0), MODEL_HOT);
    for (uint64_t id = 2; id <= 4; id++) {
        submit(&r, id, 1, GEN_HIGH, 10, 5);
        run_until_done(&r, id);
        core_rig_run(&r, 5000);
        EXPECT_EQ(state_of(&r, 1), MODEL_HOT);
    }
    EXPECT_EQ(core_rig_model(&r, 1)->n_loads, 1);
    EXPECT(core_next_us(&r.core) <= core_rig_now(&r) + 20000); // the engine does not sleep longer
    core_rig_run(&r, 45000);
    EXPECT_EQ(state_of(&r, 0), MODEL_HOT);
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 1));
    core_rig_deinit(&r);
}

/* Somebody else of that class comes first, though he takes longer to come. */
static void an_evicted_model_waits_for_equally_urgent_ones(void) {
    static const uint32_t weights[] = {12, 12, 12};
    static core_rig r;
    open_rig(&r, 20, weights, 3, false);
    submit(&r, 1, 0, GEN_BATCH, 10, 70);
    core_rig_run(&r, 40000);
    submit(&r, 2, 1, GEN_HIGH, 10, 10);
    core_rig_run(&r, 8000);
    submit(&r, 3, 2, GEN_HIGH, 10, 10);
    uint64_t n_loads = core_rig_model(&r, 0)->n_loads;
    run_until_done(&r, 3);
    EXPECT_EQ(core_rig_model(&r, 0)->n_loads, n_loads);
    core_rig_finish(&r);
    for (uint64_t id = 1; id <= 3; id++) EXPECT(core_rig_gives(&r, id));
    core_rig_deinit(&r);
}

/* ---- within a guarantee ---- */

/* Its pages were kept free for it all the same, and it was brought back and evicted again. */
static void a_model_within_its_guarantee_stays(void) {
    static const uint32_t weights[] = {10, 10};
    for (int busy = 0; busy <= 1; busy++) {
        static core_rig r;
        open_rig(&r, 30, weights, 2, false);
        make_hot(&r, 1);
        set_limits(&r, 1, 12, 0);
        if (busy) submit(&r, 9, 1, GEN_BATCH, 5, 15);
        core_rig_run(&r, 10000);
        for (uint64_t id = 1; id <= 4; id++) submit(&r, id, 0, GEN_HIGH, 20, 60);
        core_rig_finish(&r);
        EXPECT_EQ(core_rig_model(&r, 1)->n_loads, 1);
        EXPECT_EQ(state_of(&r, 1), MODEL_HOT);
        for (uint64_t id = 1; id <= 4; id++) EXPECT(core_rig_gives(&r, id));
        if (busy) EXPECT(core_rig_gives(&r, 9) && r.outcomes[9].done.done.n_preempted == 0);
        core_rig_deinit(&r);
    }
}

static void a_victim_that_would_not_help_is_left_out(void) {
    static const uint32_t weights[] = {10, 10, 12};
    static core_rig r;
    open_rig(&r, 32, weights, 3, false);
    make_hot(&r, 0);
    make_hot(&r, 1);
    set_limits(&r, 0, 10, 0); // and it has been idle for longer
    submit(&r, 1, 2, GEN_NORMAL, 10, 10);
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 1));
    EXPECT_EQ(state_of(&r, 0), MODEL_HOT);
    EXPECT_EQ(state_of(&r, 1), MODEL_WARM);
    core_rig_deinit(&r);
}

/* ---- below a guarantee ---- */

/* It waited until the higher class left pages by itself, which may be never.  A block is a page
 * here, so that nobody grows meanwhile. */
static void a_model_that_is_away_takes_back_what_it_was_guaranteed(void) {
    static const uint32_t weights[] = {10, 14};
    for (int apart = 0; apart <= 1; apart++)
        for (uint32_t depth = 1; depth <= 2; depth++) {
            static core_rig r;
            open_deep(&r, 40, weights, 2, apart == 1, depth, fake_layout(16, 1, 1));
            make_warm(&r, 1);
            make_hot(&r, 0);
            for (uint64_t id = 1; id <= 6; id++) submit(&r, id, 0, GEN_HIGH, 66, 60);
            while (r.outcomes[4].n_tokens == 0) core_rig_iterate(&r, 1000);
            uint32_t n_running = r.core.sched->models[0].n_running, n_preempted = 0;
            EXPECT(pool_n_device_free(&r.core.pool) < 15);
            set_limits(&r, 1, 18, 0);
            submit(&r, 20, 1, GEN_BATCH, 10, 20);
            uint64_t wait_us = wait_for(&r, 1);
            EXPECT(apart ? wait_us < 60000 : wait_us < depth * 5000);
            EXPECT_EQ(state_of(&r, 0), MODEL_HOT);
            EXPECT(r.core.sched->models[0].n_running >= n_running - 2); // some were enough
            core_rig_finish(&r);
            for (uint64_t id = 1; id <= 6; id++) {
                EXPECT(core_rig_gives(&r, id));
                n_preempted += r.outcomes[id].done.done.n_preempted;
            }
            EXPECT(n_preempted > 0);
            EXPECT_EQ(r.outcomes[1].done.done.n_preempted, 0); // the newest gave
            EXPECT(core_rig_gives(&r, 20));
            EXPECT_EQ(r.outcomes[20].done.done.n_preempted, 0);
            core_rig_deinit(&r);
        }
}

/* No sequence has so much: one of two models goes, which together leave less than was guaranteed.
 */
static void weights_that_nothing_guarantees_go_too(void) {
    static const uint32_t weights[] = {16, 14, 10};
    static core_rig r;
    open_rig(&r, 40, weights, 3, false);
    make_warm(&r, 2);
    submit(&r, 1, 0, GEN_HIGH, 20, 60);
    submit(&r, 2, 1, GEN_HIGH, 20, 60);
    core_rig_run(&r, 40000);
    EXPECT(state_of(&r, 0) == MODEL_HOT && state_of(&r, 1) == MODEL_HOT);
    set_limits(&r, 2, 14, 0);
    submit(&r, 3, 2, GEN_BATCH, 10, 10);
    EXPECT(wait_for(&r, 2) < 10000);
    EXPECT(state_of(&r, 0) == MODEL_HOT || state_of(&r, 1) == MODEL_HOT);
    core_rig_finish(&r);
    for (uint64_t id = 1; id <= 3; id++) EXPECT(core_rig_gives(&r, id));
    core_rig_deinit(&r);
}

/* A higher class that waited for its turn stood in the way. */
static void a_model_below_its_guarantee_waits_behind_no_other(void) {
    static const uint32_t weights[] = {20, 20, 8};
    static core_rig r;
    open_rig(&r, 40, weights, 3, false);
    make_warm(&r, 1);
    make_warm(&r, 2);
    submit(&r, 1, 0, GEN_HIGH, 20, 90);
    core_rig_run(&r, 40000);
    submit(&r, 2, 1, GEN_HIGH, 20, 20);
    core_rig_run(&r, 10000);
    EXPECT_EQ(state_of(&r, 1), MODEL_WARM);
    set_limits(&r, 2, 10, 0);
    submit(&r, 3, 2, GEN_BATCH, 10, 10);
    EXPECT(wait_for(&r, 2) < 10000);
    EXPECT_EQ(state_of(&r, 1), MODEL_WARM);
    core_rig_finish(&r);
    for (uint64_t id = 1; id <= 3; id++) EXPECT(core_rig_gives(&r, id));
    core_rig_deinit(&r);
}

/* ---- above a ceiling ---- */

static void a_lower_ceiling_holds_at_once(void) {
    static const uint32_t weights[] = {10};
    for (uint32_t depth = 1; depth <= 2; depth++) {
        static core_rig r;
        open_deep(&r, 40, weights, 1, false, depth, fake_layout(4, 2, 6));
        submit(&r, 1, 0, GEN_NORMAL, 200, 2); // cached blocks
        core_rig_finish(&r);
        EXPECT(held_by(&r, 0) > 24);
        set_limits(&r, 0, 0, 20);
        core_rig_iterate(&r, 1000);
        EXPECT_EQ(held_by(&r, 0), 20);
        set_limits(&r, 0, 0, 0);
        for (uint64_t id = 2; id <= 5; id++) submit(&r, id, 0, GEN_NORMAL, 40, 40);
        core_rig_run(&r, 30000);
        EXPECT(held_by(&r, 0) > 22);
        set_limits(&r, 0, 0, 18);
        for (int i = 0; i < 3; i++) core_rig_iterate(&r, 1000);
        EXPECT(held_by(&r, 0) <= 18);
        core_rig_finish(&r);
        for (uint64_t id = 1; id <= 5; id++) EXPECT(core_rig_gives(&r, id));
        EXPECT_EQ(r.outcomes[2].done.done.n_preempted, 0);
        EXPECT(r.outcomes[5].done.done.n_preempted > 0);
        core_rig_deinit(&r);
    }
}

static void a_model_whose_weights_are_above_its_ceiling_leaves(void) {
    static const uint32_t weights[] = {10};
    static core_rig r;
    open_rig(&r, 40, weights, 1, false);
    make_hot(&r, 0);
    submit(&r, 1, 0, GEN_NORMAL, 10, 40);
    core_rig_run(&r, 20000);
    set_limits(&r, 0, 0, 10); // nothing beside the weights
    core_rig_finish(&r);
    core_rig_run(&r, 10000);
    EXPECT_EQ(r.outcomes[1].done.done.status, INFERD_EQUOTA);
    EXPECT_EQ(state_of(&r, 0), MODEL_WARM);
    EXPECT_EQ(held_by(&r, 0), 0);
    set_limits(&r, 0, 0, 0);
    submit(&r, 2, 0, GEN_NORMAL, 10, 40);
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 2));
    core_rig_deinit(&r);
}

static const test_case cases[] = {
    TEST(an_evicted_model_is_back_when_that_work_is_over),
    TEST(an_evicted_model_ignores_a_short_pause_of_the_other),
    TEST(an_evicted_model_waits_for_equally_urgent_ones),
    TEST(a_model_within_its_guarantee_stays),
    TEST(a_victim_that_would_not_help_is_left_out),
    TEST(a_model_that_is_away_takes_back_what_it_was_guaranteed),
    TEST(weights_that_nothing_guarantees_go_too),
    TEST(a_model_below_its_guarantee_waits_behind_no_other),
    TEST(a_lower_ceiling_holds_at_once),
    TEST(a_model_whose_weights_are_above_its_ceiling_leaves),
};
TEST_MAIN(cases)
