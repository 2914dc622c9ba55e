/* test_residency_hand.c - what operators ask of models: pins, loads and prefetches by hand, and
 * promises to one of several names of the same weights. */
#include "core_rig.h"

enum { WEIGHTS = 12 }; // pages of each model

static model_state state_of(core_rig *r, uint32_t idx) {
    return residency_state(&r->core.models, idx);
}

static void attach_all(core_rig *r, uint32_t n) {
    model_policy p = plain_policy();
    for (uint32_t i = 0; i < n; i++) core_rig_attach(r, i, &p);
}

static void set_policy(core_rig *r, uint32_t idx, const model_policy *p) {
    inferd_err err;
    EXPECT_EQ(residency_set_policy(&r->core.models, idx, p, core_rig_now(r), &err), INFERD_OK);
}

static void tell(core_rig *r, uint32_t idx, engine_command command) {
    residency_do(&r->core.models, idx, command, core_rig_now(r));
}

/* It was counted as if it were there, and what ran beside it had no memory left. */
static void a_pin_that_does_not_fit_now_ends_no_work(void) {
    static core_rig r;
    model_policy p = plain_policy();
    core_rig_init(&r, 20, 2 * WEIGHTS, WEIGHTS);
    core_rig_open(&r, false);
    attach_all(&r, 2);
    core_rig_submit(&r, 1, request(1, 10, 60));
    core_rig_run(&r, 20000);
    EXPECT_EQ(state_of(&r, 1), MODEL_HOT);
    p.pin = PIN_HOT;
    set_policy(&r, 0, &p);
    core_rig_submit(&r, 1, request(2, 10, 60));
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 1) && core_rig_gives(&r, 2));
    core_rig_run(&r, 2000000);
    EXPECT_EQ(state_of(&r, 0), MODEL_HOT); // the other is idle
    core_rig_deinit(&r);
}

/* Host memory for one: of models that are worth the same the one that came later stayed. */
static void what_is_pinned_warm_goes_before_what_only_lies_there(void) {
    for (int by_hand = 0; by_hand <= 1; by_hand++) {
        static core_rig r;
        model_policy p = plain_policy();
        core_rig_init(&r, 60, WEIGHTS, WEIGHTS);
        core_rig_open(&r, false);
        attach_all(&r, 2);
        core_rig_submit(&r, 0, request(1, 10, 10));
        core_rig_finish(&r);
        tell(&r, 0, ENGINE_UNLOAD);
        core_rig_run(&r, 20000);
        EXPECT_EQ(state_of(&r, 0), MODEL_WARM);
        p.pin = PIN_WARM;
        if (by_hand)
            tell(&r, 1, ENGINE_PREFETCH);
        else
            set_policy(&r, 1, &p);
        core_rig_run(&r, 200000);
        EXPECT_EQ(state_of(&r, 1), MODEL_WARM);
        EXPECT_EQ(state_of(&r, 0), MODEL_COLD);
        core_rig_deinit(&r);
    }
}

static void a_pinned_copy_stays_when_its_model_leaves_the_device(void) {
    static core_rig r;
    model_policy p = plain_policy();
    core_rig_init(&r, 60, WEIGHTS, WEIGHTS);
    core_rig_open(&r, false);
    p.prio = GEN_BATCH;
    p.pin = PIN_WARM;
    core_rig_attach(&r, 0, &p);
    p = plain_policy();
    core_rig_attach(&r, 1, &p);
    core_rig_submit(&r, 0, request(1, 10, 10));
    core_rig_finish(&r);
    tell(&r, 1, ENGINE_PREFETCH);
    core_rig_run(&r, 200000);
    EXPECT_EQ(state_of(&r, 1), MODEL_WARM); // the host is full of it
    tell(&r, 0, ENGINE_UNLOAD);
    core_rig_run(&r, 20000);
    EXPECT_EQ(state_of(&r, 0), MODEL_WARM);
    EXPECT_EQ(state_of(&r, 1), MODEL_COLD);
    core_rig_deinit(&r);
}

/* Its file was bad, and is good now. */
static void open_with_a_failed_model(core_rig *r) {
    core_rig_init(r, 60, WEIGHTS, WEIGHTS);
    r->device.bad_files = 1;
    core_rig_open(r, false);
    attach_all(r, 1);
    core_rig_submit(r, 0, request(1, 10, 10));
    core_rig_finish(r);
    EXPECT_EQ(state_of(r, 0), MODEL_FAILED);
    r->device.bad_files = 0;
}

/* The failure was forgotten, and nothing came of it. */
static void a_prefetch_tries_a_model_that_failed(void) {
    static core_rig r;
    open_with_a_failed_model(&r);
    tell(&r, 0, ENGINE_PREFETCH);
    core_rig_run(&r, 200000);
    EXPECT_EQ(state_of(&r, 0), MODEL_WARM);
    core_rig_deinit(&r);
}

/* The time of the prefetch was added to the load, which was told as one from the file. */
static void a_load_after_a_prefetch_is_one_from_host_memory(void) {
    for (int ahead = 0; ahead <= 1; ahead++) {
        static core_rig r;
        core_rig_init(&r, 60, WEIGHTS, WEIGHTS);
        core_rig_open(&r, false);
        attach_all(&r, 1);
        if (ahead) {
            tell(&r, 0, ENGINE_PREFETCH);
            core_rig_run(&r, 200000);
            EXPECT_EQ(state_of(&r, 0), MODEL_WARM);
        }
        core_rig_submit(&r, 0, request(1, 10, 10));
        core_rig_finish(&r);
        const resident *m = &r.core.models.slots[0];
        EXPECT_EQ(m->from_host.n, ahead);
        EXPECT_EQ(m->from_file.n, !ahead);
        EXPECT_EQ(m->last.stage_us > 0, !ahead);
        EXPECT_EQ(m->parts_sum.stage_us > 0, !ahead);
        core_rig_deinit(&r);
    }
}

/* A client that wants it leaves meanwhile: it is wanted by hand, too. */
static void a_prefetch_goes_on_without_its_client(void) {
    static core_rig r;
    core_rig_init(&r, 60, WEIGHTS, WEIGHTS);
    core_rig_open(&r, false);
    attach_all(&r, 1);
    core_rig_submit(&r, 0, request(1, 10, 10));
    while (state_of(&r, 0) != MODEL_STAGING) core_rig_iterate(&r, 100);
    tell(&r, 0, ENGINE_PREFETCH);
    sched_cancel(r.core.sched, 1, core_rig_now(&r));
    core_rig_run(&r, 200000);
    EXPECT(state_of(&r, 0) == MODEL_WARM || state_of(&r, 0) == MODEL_HOT);
    core_rig_deinit(&r);
}

/* Nothing else was looked at while a load by hand waited for others to become idle. */
static void a_load_without_room_keeps_no_prefetch_away(void) {
    static core_rig r;
    core_rig_init(&r, 20, WEIGHTS, WEIGHTS);
    core_rig_open(&r, false);
    attach_all(&r, 3);
    core_rig_submit(&r, 0, request(1, 10, 60));
    core_rig_run(&r, 20000);
    EXPECT_EQ(state_of(&r, 0), MODEL_HOT);
    tell(&r, 1, ENGINE_LOAD);
    tell(&r, 2, ENGINE_PREFETCH);
    while (state_of(&r, 2) != MODEL_WARM && core_rig_n_alive(&r) > 0) core_rig_iterate(&r, 100);
    EXPECT_EQ(state_of(&r, 2), MODEL_WARM);
    EXPECT_EQ(state_of(&r, 0), MODEL_HOT);
    EXPECT_EQ(core_rig_n_alive(&r), 1);
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 1));
    core_rig_deinit(&r);
}

/* -- several names -- */

static void attach_pair(core_rig *r, const model_policy *first, const model_policy *second) {
    core_rig_attach(r, 0, first);
    residency_attach(&r->core.models, 1, NULL, 0, second, core_rig_now(r));
}

/* The guarantee of one name was kept beside the weights that it is meant for. */
static void a_guarantee_of_one_name_includes_the_weights(void) {
    static core_rig r;
    model_policy plain = plain_policy(), guaranteed = plain;
    core_rig_init(&r, 20, WEIGHTS, WEIGHTS);
    core_rig_open(&r, false);
    guaranteed.min_bytes = 14 * r.core.models.page_bytes;
    attach_pair(&r, &plain, &guaranteed);
    core_rig_run(&r, 1000);
    core_rig_submit(&r, 0, request(1, 10, 30));
    core_rig_submit(&r, 1, request(2, 10, 30));
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 1) && core_rig_gives(&r, 2));
    EXPECT_EQ(r.core.pool.owners[1].held[PAGE_WEIGHT], WEIGHTS);
    EXPECT_EQ(core_rig_model(&r, 1)->n_stages, 1);
    core_rig_deinit(&r);
}

/* Those of the first name were its own, so nobody had them. */
static void a_ceiling_of_one_name_leaves_the_weights_to_the_other(void) {
    for (int later = 0; later <= 1; later++) {
        static core_rig r;
        model_policy plain = plain_policy(), small = plain;
        core_rig_init(&r, 40, WEIGHTS, WEIGHTS);
        core_rig_open(&r, false);
        small.max_bytes = 10 * r.core.models.page_bytes;
        attach_pair(&r, later ? &plain : &small, &plain);
        core_rig_run(&r, 1000);
        core_rig_submit(&r, 1, request(1, 10, 30));
        core_rig_finish(&r);
        EXPECT_EQ(r.core.pool.owners[later ? 0 : 1].held[PAGE_WEIGHT], WEIGHTS);
        if (later) set_policy(&r, 0, &small);
        core_rig_run(&r, 20000);
        EXPECT_EQ(r.core.pool.owners[1].held[PAGE_WEIGHT], WEIGHTS);
        EXPECT_EQ(core_rig_model(&r, 1)->n_loads, 1); // it never left for that
        core_rig_submit(&r, 0,
                        request(2, 10, 30)); // a ceiling counts the weights, whoever has them
        core_rig_submit(&r, 1, request(3, 10, 30));
        core_rig_finish(&r);
        EXPECT_EQ(r.outcomes[2].done.done.status, INFERD_EQUOTA);
        EXPECT(core_rig_gives(&r, 1) && core_rig_gives(&r, 3));
        core_rig_deinit(&r);
    }
}

/* Cached blocks counted as if they were needed, and nobody could have the weights. */
static void cached_blocks_keep_no_name_from_the_weights(void) {
    static core_rig r;
    model_policy p = plain_policy();
    core_rig_init(&r, 60, WEIGHTS, WEIGHTS);
    core_rig_open(&r, false);
    model_policy tight = p, small = p;
    tight.max_bytes = (WEIGHTS + 8) * r.core.models.page_bytes;
    small.max_bytes = 8 * r.core.models.page_bytes;
    attach_pair(&r, &p, &tight);
    core_rig_run(&r, 1000);
    uint64_t id = 1;
    for (; id < 40 && pool_held(&r.core.pool.owners[1]) < 8; id++) {
        core_rig_submit(&r, 1, request(id, 20, 10));
        core_rig_finish(&r);
    }
    EXPECT(pool_held(&r.core.pool.owners[1]) >= 8); // with the weights more than its ceiling
    set_policy(&r, 0, &small);
    core_rig_run(&r, 20000);
    EXPECT_EQ(r.core.pool.owners[1].held[PAGE_WEIGHT], WEIGHTS);
    EXPECT(pool_held(&r.core.pool.owners[1]) <= WEIGHTS + 8);
    core_rig_submit(&r, 1, request(id, 20, 10));
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, id));
    core_rig_deinit(&r);
}

/* The file of a model that failed is back: it is no prefetch by hand. */
static void a_retry_brings_up_nothing_unwanted(void) {
    static core_rig r;
    open_with_a_failed_model(&r);
    tell(&r, 0, ENGINE_RETRY);
    core_rig_run(&r, 200000);
    EXPECT_EQ(state_of(&r, 0), MODEL_COLD);
    core_rig_submit(&r, 0, request(2, 10, 10));
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 2));
    core_rig_deinit(&r);
}

static const test_case cases[] = {
    TEST(a_pin_that_does_not_fit_now_ends_no_work),
    TEST(what_is_pinned_warm_goes_before_what_only_lies_there),
    TEST(a_pinned_copy_stays_when_its_model_leaves_the_device),
    TEST(a_prefetch_tries_a_model_that_failed),
    TEST(a_load_after_a_prefetch_is_one_from_host_memory),
    TEST(a_prefetch_goes_on_without_its_client),
    TEST(a_load_without_room_keeps_no_prefetch_away),
    TEST(a_guarantee_of_one_name_includes_the_weights),
    TEST(a_ceiling_of_one_name_leaves_the_weights_to_the_other),
    TEST(cached_blocks_keep_no_name_from_the_weights),
    TEST(a_retry_brings_up_nothing_unwanted),
};
TEST_MAIN(cases)
