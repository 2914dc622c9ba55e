/* test_residency.c - models that come, go and share a device, with what they compute checked. */
#include "core_rig.h"

static model_state state_of(core_rig *r, uint32_t idx) {
    return residency_state(&r->core.models, idx);
}

static void attach_all(core_rig *r, uint32_t n) {
    model_policy p = plain_policy();
    for (uint32_t i = 0; i < n; i++) core_rig_attach(r, i, &p);
}

static uint32_t n_free(const core_rig *r) {
    return pool_n_device_free(&r->core.pool);
}

static void two_models_alternate_by_step(void) {
    static core_rig r;
    core_rig_init(&r, 60, 0, 5);
    core_rig_open(&r, true);
    attach_all(&r, 2);
    core_rig_run(&r, 50000);
    EXPECT_EQ(state_of(&r, 0), MODEL_HOT);
    EXPECT_EQ(state_of(&r, 1), MODEL_HOT);
    for (uint64_t id = 1; id <= 8; id++) core_rig_submit(&r, id % 2, request(id, 20, 50));
    core_rig_run(&r, 60000);
    uint32_t n[2] = {0};
    for (uint64_t id = 1; id <= 8; id++) n[id % 2] += r.outcomes[id].n_tokens;
    EXPECT(n[0] > 20 && n[1] > 20);
    EXPECT(n[0] < n[1] * 3 / 2 && n[1] < n[0] * 3 / 2);
    core_rig_finish(&r);
    for (uint64_t id = 1; id <= 8; id++) EXPECT(core_rig_gives(&r, id));
    core_rig_deinit(&r);
}

static void a_request_brings_its_model_and_many_bring_it_once(void) {
    static core_rig r;
    core_rig_init(&r, 60, 0, 5);
    core_rig_open(&r, false);
    attach_all(&r, 3);
    core_rig_run(&r, 50000);
    EXPECT_EQ(state_of(&r, 1), MODEL_COLD);
    for (uint64_t id = 1; id <= 6; id++) core_rig_submit(&r, 1, request(id, 20, 5));
    core_rig_finish(&r);
    for (uint64_t id = 1; id <= 6; id++) EXPECT(core_rig_gives(&r, id));
    EXPECT_EQ(core_rig_model(&r, 1)->n_stages, 1);
    EXPECT_EQ(core_rig_model(&r, 1)->n_loads, 1);
    EXPECT_EQ(state_of(&r, 0), MODEL_COLD);
    EXPECT_EQ(state_of(&r, 2), MODEL_COLD);
    EXPECT_EQ(r.device.n_pieces, 4);
    core_rig_deinit(&r);
}

static void those_that_decode_go_on_while_another_model_comes(void) {
    static core_rig r;
    core_rig_init(&r, 60, 0, 5);
    r.device.stage_pieces = 100;
    r.device.stage_us = 1000;
    core_rig_open(&r, false);
    attach_all(&r, 2);
    core_rig_submit(&r, 0, request(1, 8, 200));
    core_rig_run(&r, 150000);
    uint32_t before = r.outcomes[1].n_tokens;
    EXPECT(before > 0 && r.outcomes[1].n_done == 0);
    core_rig_submit(&r, 1, request(2, 8, 4));
    for (int i = 0; i < 1000 && state_of(&r, 1) != MODEL_HOT; i++) core_rig_iterate(&r, 1000);
    EXPECT(r.outcomes[1].n_tokens >= before + 90); // a step between every two pieces
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 1) && core_rig_gives(&r, 2));
    EXPECT(r.core.usage.load_us >= 100000);
    core_rig_deinit(&r);
}

/* Memory for one of them; `n_host`: where the other one waits. */
static void alternate(uint32_t n_host, bool apart, uint32_t *n_stages) {
    static core_rig r;
    core_rig_init(&r, 20, n_host, 12);
    r.device.apart = apart;
    core_rig_open(&r, false);
    attach_all(&r, 2);
    for (uint64_t id = 1; id <= 10; id++) {
        core_rig_submit(&r, id % 2, request(id, 20, 10));
        core_rig_finish(&r);
        EXPECT(core_rig_gives(&r, id));
        EXPECT_EQ(state_of(&r, id % 2), MODEL_HOT);
        core_rig_run(&r, 10000);
    }
    *n_stages = (uint32_t)(core_rig_model(&r, 0)->n_stages + core_rig_model(&r, 1)->n_stages);
    EXPECT_EQ(core_rig_model(&r, 0)->n_loads + core_rig_model(&r, 1)->n_loads, 10);
    EXPECT_EQ(core_rig_model(&r, 0)->n_evictions[ENGINE_EVICT_PRESSURE], 4);
    EXPECT_EQ(core_rig_model(&r, 1)->n_evictions[ENGINE_EVICT_PRESSURE], 5);
    core_rig_deinit(&r);
}

static void an_idle_model_makes_room_and_waits_in_host_memory(void) {
    uint32_t n_stages;
    alternate(12, false, &n_stages);
    EXPECT_EQ(n_stages, 2);
    alternate(24, true, &n_stages);
    EXPECT_EQ(n_stages, 2);
}

static void without_host_memory_it_is_read_again(void) {
    uint32_t n_stages;
    alternate(0, false, &n_stages);
    EXPECT_EQ(n_stages, 10);
    alternate(11, false, &n_stages);
    EXPECT_EQ(n_stages, 10);
    alternate(11, true, &n_stages);
    EXPECT_EQ(n_stages, 10);
    alternate(12, true, &n_stages); // of the first; the other one goes through to the device
    EXPECT_EQ(n_stages, 6);
}

static void running_work_of_a_lower_class_makes_room_and_goes_on_later(void) {
    static core_rig r;
    model_policy p = plain_policy();
    core_rig_init(&r, 20, 12, 12);
    core_rig_open(&r, false);
    p.prio = GEN_BATCH;
    core_rig_attach(&r, 0, &p);
    p.prio = GEN_HIGH;
    core_rig_attach(&r, 1, &p);
    gen_request *low = request(1, 20, 70), *high = request(2, 20, 20);
    low->prio = GEN_BATCH;
    high->prio = GEN_HIGH;
    core_rig_submit(&r, 0, low);
    core_rig_run(&r, 40000);
    EXPECT(r.outcomes[1].n_tokens > 5);
    core_rig_submit(&r, 1, high);
    core_rig_run(&r, 10000);
    EXPECT_EQ(state_of(&r, 1), MODEL_HOT);
    EXPECT_EQ(state_of(&r, 0), MODEL_WARM);
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 1) && core_rig_gives(&r, 2));
    EXPECT_EQ(core_rig_model(&r, 0)->n_evictions[ENGINE_EVICT_CLASS], 1);
    EXPECT_EQ(core_rig_model(&r, 0)->n_stages, 1);
    EXPECT_EQ(r.outcomes[1].done.done.n_preempted, 1);
    core_rig_deinit(&r);
}

/* Three normal models in turn, with room for three: one request to an urgent model cost a load per
 * request from then on, because an idle urgent model never left for them. */
static void an_idle_urgent_model_leaves_for_models_in_use(void) {
    for (int pinned = 0; pinned < 2; pinned++) {
        static core_rig r;
        model_policy p = plain_policy();
        core_rig_init(&r, 60, 0, 15);
        core_rig_open(&r, false);
        attach_all(&r, 3);
        p.prio = GEN_HIGH;
        p.pin = pinned ? PIN_HOT : PIN_NONE;
        core_rig_attach(&r, 3, &p);
        gen_request *high = request(1, 20, 4);
        high->prio = GEN_HIGH;
        core_rig_submit(&r, 3, high);
        core_rig_finish(&r);
        uint64_t n_loads[2] = {0}; // of the first and the last twenty requests
        for (uint64_t id = 2; id < 62; id++) {
            uint64_t before = core_rig_model(&r, id % 3)->n_loads;
            core_rig_submit(&r, id % 3, request(id, 20, 4));
            core_rig_finish(&r);
            core_rig_run(&r, 1000000);
            if (id < 22 || id >= 42)
                n_loads[id >= 42] += core_rig_model(&r, id % 3)->n_loads - before;
        }
        EXPECT(n_loads[0] > 5);
        EXPECT(pinned ? n_loads[1] > 5 : n_loads[1] == 0);
        EXPECT_EQ(state_of(&r, 3), pinned ? MODEL_HOT : MODEL_COLD);
        core_rig_deinit(&r);
    }
}

/* Batch work fills the device: its sequences preempt each other, and two urgent models that were
 * used just now stay. */
static void growing_batch_work_evicts_no_urgent_model_in_use(void) {
    static core_rig r;
    model_policy p = plain_policy();
    core_rig_init(&r, 60, 0, 12);
    core_rig_open(&r, false);
    for (uint32_t i = 0; i < 3; i++) {
        p.prio = i == 0 ? GEN_BATCH : GEN_HIGH;
        core_rig_attach(&r, i, &p);
    }
    uint64_t id = 1;
    for (uint32_t i = 1; i <= 2; i++, id++) {
        gen_request *q = request(id, 20, 4);
        q->prio = GEN_HIGH;
        core_rig_submit(&r, i, q);
        core_rig_finish(&r);
    }
    for (int i = 0; i < 6; i++, id++) {
        gen_request *q = request(id, 20, 200);
        q->prio = GEN_BATCH;
        core_rig_submit(&r, 0, q);
    }
    core_rig_run(&r, 100000);
    EXPECT_EQ(n_free(&r), 0);
    EXPECT(state_of(&r, 1) == MODEL_HOT && state_of(&r, 2) == MODEL_HOT);
    core_rig_finish(&r);
    for (uint64_t k = 1; k < id; k++) EXPECT(core_rig_gives(&r, k));
    core_rig_deinit(&r);
}

static void work_of_the_same_class_gets_time_slices(void) {
    static core_rig r;
    core_rig_init(&r, 20, 12, 12);
    r.device.a_us = 4000;
    core_rig_open(&r, false);
    attach_all(&r, 2);
    core_rig_submit(&r, 0, request(1, 10, 80));
    core_rig_submit(&r, 1, request(2, 10, 80));
    core_rig_run(&r, 60000);
    EXPECT_EQ(r.core.models.n_slices, 0); // nobody has had its turn
    core_rig_run(&r, 200000);
    EXPECT(r.outcomes[1].n_tokens > 15 && r.outcomes[2].n_tokens > 15);
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 1) && core_rig_gives(&r, 2));
    EXPECT(r.core.models.n_slices >= 3 && r.core.models.n_slices <= 8); // 680 ms in turns of 100
    core_rig_deinit(&r);
}

/* Steps of 300 ms, slices of 100, and room for two models of three: each was evicted while it
 * waited for the end of another's step, and none ever computed. */
static void a_slice_has_time_for_steps(void) {
    static core_rig r;
    core_rig_init(&r, 22, 24, 8);
    r.device.a_us = 300000;
    r.device.depth = 2;
    core_rig_open(&r, false);
    attach_all(&r, 3);
    for (uint64_t id = 1; id <= 6; id++) core_rig_submit(&r, (uint32_t)id % 3, request(id, 10, 40));
    core_rig_run(&r, 150000000); // alone it would be 36 s
    EXPECT_EQ(core_rig_n_alive(&r), 0);
    if (core_rig_n_alive(&r) == 0)
        for (uint64_t id = 1; id <= 6; id++) EXPECT(core_rig_gives(&r, id));
    EXPECT(r.core.models.n_slices >= 3);
    core_rig_deinit(&r);
}

static void a_higher_class_is_never_pushed_out_and_the_lower_waits(void) {
    static core_rig r;
    core_rig_init(&r, 20, 12, 12);
    core_rig_open(&r, false);
    attach_all(&r, 2);
    gen_request *low = request(2, 10, 10);
    low->prio = GEN_BATCH;
    core_rig_submit(&r, 0, request(1, 10, 80));
    core_rig_run(&r, 10000);
    core_rig_submit(&r, 1, low);
    for (int i = 0; i < 100000 && r.outcomes[1].n_done == 0; i++) {
        EXPECT(state_of(&r, 0) == MODEL_HOT);
        core_rig_iterate(&r, 1000);
    }
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 1) && core_rig_gives(&r, 2));
    EXPECT_EQ(r.outcomes[1].done.done.n_preempted, 0);
    core_rig_deinit(&r);
}

static void a_pinned_model_stays_and_others_report_no_room(void) {
    static core_rig r;
    model_policy p = plain_policy();
    core_rig_init(&r, 20, 12, 12);
    core_rig_open(&r, false);
    p.pin = PIN_HOT;
    core_rig_attach(&r, 0, &p);
    p.pin = PIN_NONE;
    core_rig_attach(&r, 1, &p);
    core_rig_run(&r, 20000);
    EXPECT_EQ(state_of(&r, 0), MODEL_HOT); // nobody asked
    gen_request *q = request(1, 10, 10);
    q->prio = GEN_SYSTEM;
    q->queue_deadline_us = core_rig_now(&r) + 400000;
    core_rig_submit(&r, 1, q);
    core_rig_finish(&r);
    EXPECT_EQ(r.outcomes[1].done.done.status, INFERD_EMODEL);
    EXPECT_STR(r.outcomes[1].done.done.text,
               "the device's memory is 40 MiB and must be 50 MiB or more: 24 MiB for the weights, "
               "2 MiB for keys and values, 24 MiB guaranteed to others or pinned");
    EXPECT_EQ(state_of(&r, 0), MODEL_HOT);
    EXPECT_EQ(core_rig_model(&r, 0)->n_loads, 1);
    core_rig_run(&r, 1100000);
    p.pin = PIN_NONE; // changed while it runs
    inferd_err err;
    EXPECT_EQ(residency_set_policy(&r.core.models, 0, &p, core_rig_now(&r), &err), INFERD_OK);
    core_rig_submit(&r, 1, request(2, 10, 10));
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 2));
    core_rig_deinit(&r);
}

/* What is left free for others was taken from the model's own ceiling, so it never came by itself.
 */
static void a_small_ceiling_blocks_no_model_at_the_start(void) {
    static core_rig r;
    model_policy p = plain_policy();
    core_rig_init(&r, 40, 12, 12);
    core_rig_open(&r, true);
    core_rig_attach(&r, 0, &p);
    p.max_bytes = 14 * r.core.models.page_bytes;
    core_rig_attach(&r, 1, &p);
    core_rig_run(&r, 200000);
    EXPECT_EQ(state_of(&r, 0), MODEL_HOT);
    EXPECT_EQ(state_of(&r, 1), MODEL_HOT);
    core_rig_deinit(&r);
}

/* It was wanted for ever, and nobody behind it came by himself. */
static void a_pin_that_never_fits_blocks_no_model(void) {
    static core_rig r;
    model_policy p = plain_policy();
    core_rig_init(&r, 60, 4, 12);
    core_rig_open(&r, true);
    p.pin = PIN_WARM;
    core_rig_attach(&r, 0, &p);
    p.pin = PIN_NONE;
    core_rig_attach(&r, 1, &p);
    core_rig_run(&r, 200000);
    EXPECT_EQ(state_of(&r, 1), MODEL_HOT);
    EXPECT_EQ(state_of(&r, 0), MODEL_HOT); // as if it were not pinned
    core_rig_deinit(&r);
}

/* Once the command was lost when it came while the model was being brought up. */
static void a_model_unloaded_during_bring_up_goes(void) {
    static const model_state whens[] = {MODEL_STAGING, MODEL_LOADING};
    static const engine_command how[] = {ENGINE_UNLOAD, ENGINE_DROP};
    model_policy p = plain_policy();
    for (size_t i = 0; i < INFERD_COUNT(whens) * INFERD_COUNT(how); i++) {
        static core_rig r;
        model_state when = whens[i / 2];
        core_rig_init(&r, 20, 12, 12);
        r.device.stage_pieces = r.device.load_pieces = 4;
        core_rig_open(&r, false);
        core_rig_attach(&r, 0, &p);
        residency_do(&r.core.models, 0, ENGINE_LOAD, core_rig_now(&r));
        for (int k = 0; k < 10000 && state_of(&r, 0) != when; k++) core_rig_iterate(&r, 50);
        EXPECT_EQ(state_of(&r, 0), when);
        residency_do(&r.core.models, 0, how[i % 2], core_rig_now(&r));
        core_rig_run(&r, 100000);
        EXPECT_EQ(state_of(&r, 0),
                  when == MODEL_LOADING && how[i % 2] == ENGINE_UNLOAD ? MODEL_WARM : MODEL_COLD);
        core_rig_submit(&r, 0, request(1, 10, 10)); // and comes again, and stays
        core_rig_finish(&r);
        EXPECT(core_rig_gives(&r, 1));
        core_rig_run(&r, 100000);
        EXPECT_EQ(state_of(&r, 0), MODEL_HOT);
        core_rig_deinit(&r);
    }
}

/* The command was lost, too, when somebody waited for what is staged; and one that found nothing to
 * do was obeyed the next time the model left. */
static void a_model_unloaded_while_work_waits_goes_after_it(void) {
    static const engine_command how[] = {ENGINE_UNLOAD, ENGINE_DROP};
    for (uint32_t i = 0; i < 6; i++) {
        static core_rig r;
        inferd_err err = {0};
        model_policy p = plain_policy();
        bool drops = i % 2 == 1, cancelled = i / 2 == 1, loaded = i / 2 == 2;
        core_rig_init(&r, 40, 12, 12);
        r.device.stage_pieces = 8;
        core_rig_open(&r, false);
        core_rig_attach(&r, 0, &p);
        core_rig_submit(&r, 0, request(1, 10, 10));
        for (int k = 0; k < 7; k++) core_rig_iterate(&r, 50);
        EXPECT_EQ(state_of(&r, 0), MODEL_STAGING);
        residency_do(&r.core.models, 0, how[i % 2], core_rig_now(&r));
        if (cancelled) sched_cancel(r.core.sched, 1, core_rig_now(&r)); // far enough to go on
        if (loaded) residency_do(&r.core.models, 0, ENGINE_LOAD, core_rig_now(&r));
        core_rig_finish(&r);
        if (!cancelled) EXPECT(core_rig_gives(&r, 1));
        core_rig_run(&r, 100000);
        EXPECT_EQ(state_of(&r, 0), loaded ? MODEL_HOT : drops ? MODEL_COLD : MODEL_WARM);
        residency_do(&r.core.models, 0, how[i % 2], core_rig_now(&r)); // WARM, or COLD: no harm
        core_rig_run(&r, 10000);
        core_rig_submit(&r, 0, request(2, 10, 10));
        core_rig_finish(&r);
        core_rig_run(&r, 100000);
        EXPECT_EQ(state_of(&r, 0), MODEL_HOT); // the command is over
        p.keep_alive_us = 1;
        EXPECT_EQ(residency_set_policy(&r.core.models, 0, &p, core_rig_now(&r), &err), INFERD_OK);
        core_rig_run(&r, 10000);
        EXPECT_EQ(state_of(&r, 0), MODEL_WARM);
        core_rig_deinit(&r);
    }
}

/* Waiting for pages was told as waiting in the queue. */
static void a_switch_tells_how_long_others_took_to_make_room(void) {
    static core_rig r;
    model_policy p = plain_policy();
    core_rig_init(&r, 20, 12, 12);
    r.device.a_us = 4000;
    core_rig_open(&r, false);
    core_rig_attach(&r, 0, &p);
    core_rig_attach(&r, 1, &p);
    core_rig_submit(&r, 0, request(1, 10, 60));
    core_rig_run(&r, 50000);
    core_rig_submit(&r, 1, request(2, 10, 5)); // after the turn of the other
    uint64_t from_us = core_rig_now(&r);
    while (state_of(&r, 1) != MODEL_STAGING) core_rig_iterate(&r, 1000);
    uint64_t waited_us = core_rig_now(&r) - from_us;
    EXPECT(waited_us > 20000);
    core_rig_finish(&r);
    const engine_switch *last = &core_rig_model(&r, 1)->last;
    EXPECT(last->reclaim_us + 10000 > waited_us && last->reclaim_us <= waited_us);
    EXPECT(last->queue_us < 10000);
    core_rig_deinit(&r);
}

/* Nobody waited as long as half a stage takes: each began anew, for ever. */
static void a_client_that_retries_soon_finds_the_model(void) {
    static core_rig r;
    core_rig_init(&r, 40, 12, 12);
    r.device.stage_pieces = 100;
    core_rig_open(&r, false);
    attach_all(&r, 1);
    for (uint64_t id = 1; id <= 3; id++) {
        gen_request *q = request(id, 10, 5);
        q->queue_deadline_us = core_rig_now(&r) + 10000; // 20 of 100 pieces
        core_rig_submit(&r, 0, q);
        core_rig_finish(&r);
        core_rig_run(&r, 100000);
        EXPECT_EQ(state_of(&r, 0), id == 1 ? MODEL_COLD : id == 2 ? MODEL_WARM : MODEL_HOT);
        EXPECT_EQ(r.outcomes[id].done.done.finish, id <= 2 ? GEN_TIMEOUT : GEN_LENGTH);
    }
    core_rig_deinit(&r);
}

static void no_model_is_evicted_in_vain(void) {
    static core_rig r;
    model_policy p = plain_policy();
    core_rig_init(&r, 40, 40, 10);
    r.device.models[3].weight_pages = 25;
    r.device.a_us = 3000;
    core_rig_open(&r, false);
    p.prio = GEN_SYSTEM;
    core_rig_attach(&r, 0, &p);
    core_rig_attach(&r, 1, &p);
    gen_request *busy = request(7, 10, 40);
    busy->prio = GEN_SYSTEM;
    core_rig_submit(&r, 0, busy);
    busy = request(8, 10, 40);
    busy->prio = GEN_SYSTEM;
    core_rig_submit(&r, 1, busy);
    p.prio = GEN_NORMAL;
    core_rig_attach(&r, 2, &p);
    core_rig_attach(&r, 3, &p);
    residency_do(&r.core.models, 2, ENGINE_LOAD, core_rig_now(&r));
    core_rig_run(&r, 50000);
    EXPECT_EQ(state_of(&r, 2), MODEL_HOT);
    gen_request *q = request(1, 10, 10);
    q->queue_deadline_us = core_rig_now(&r) + 100000;
    core_rig_submit(&r, 3, q); // 25 of the 20 that others do not use
    core_rig_run(&r, 150000);
    EXPECT_EQ(r.outcomes[7].n_done, 0);
    EXPECT_EQ(r.outcomes[1].done.done.finish, GEN_TIMEOUT);
    EXPECT_EQ(state_of(&r, 2), MODEL_HOT);
    EXPECT_EQ(core_rig_model(&r, 2)->n_evictions[ENGINE_EVICT_PRESSURE], 0);
    core_rig_deinit(&r);
}

static void what_never_fits_fails_with_the_numbers(void) {
    static core_rig r;
    model_policy p = plain_policy();
    core_rig_init(&r, 20, 0, 20);
    core_rig_open(&r, false);
    core_rig_attach(&r, 0, &p);
    r.device.models[1].weight_pages = 8;
    p.max_bytes = 8ull * (2 << 20);
    core_rig_attach(&r, 1, &p);
    core_rig_submit(&r, 0, request(1, 1, 1));
    core_rig_submit(&r, 1, request(2, 1, 1));
    core_rig_finish(&r);
    EXPECT_EQ(r.outcomes[1].done.done.status, INFERD_EMODEL); // no page for its keys and values
    EXPECT_EQ(r.outcomes[2].done.done.status, INFERD_EQUOTA); // it is the model's max
    residency_do(&r.core.models, 0, ENGINE_LOAD, core_rig_now(&r));
    residency_do(&r.core.models, 1, ENGINE_LOAD, core_rig_now(&r));
    core_rig_run(&r, 10000);
    EXPECT_EQ(state_of(&r, 0), MODEL_FAILED);
    EXPECT_STR(core_rig_model(&r, 0)->why.text,
               "the device's memory is 40 MiB and must be 42 MiB or more: 40 MiB for the weights, "
               "2 MiB for keys and values");
    EXPECT_EQ(state_of(&r, 1), MODEL_FAILED);
    EXPECT_STR(core_rig_model(&r, 1)->why.text,
               "the model's max is 16 MiB and must be 18 MiB or more: 16 MiB for the weights, "
               "2 MiB for keys and values");
    core_rig_deinit(&r);
}

static void a_load_that_fails_gives_its_pages_back_and_is_tried_again(void) {
    for (int apart = 0; apart <= 1; apart++) {
        static core_rig r;
        core_rig_init(&r, 40, 24, 12);
        r.device.apart = apart == 1;
        core_rig_open(&r, false);
        attach_all(&r, 2);
        core_rig_submit(&r, 0, request(1, 10, 60));
        core_rig_run(&r, 30000);
        r.device.fail_stage_at = r.device.n_pieces + 3;
        core_rig_submit(&r, 1, request(2, 10, 10));
        core_rig_submit(&r, 1, request(3, 10, 10));
        core_rig_run(&r, 30000);
        EXPECT_EQ(state_of(&r, 1), MODEL_FAILED);
        for (uint64_t id = 2; id <= 3; id++) {
            EXPECT_EQ(r.outcomes[id].done.done.status, INFERD_EMODEL);
            EXPECT_STR(r.outcomes[id].done.done.text, "the file is wrong");
            EXPECT_EQ(r.outcomes[id].done.done.retry_after_ms, 1000);
        }
        core_rig_submit(&r, 1, request(4, 10, 10)); // before the time
        core_rig_run(&r, 5000);
        EXPECT_EQ(r.outcomes[4].done.done.status, INFERD_EMODEL);
        EXPECT(r.outcomes[4].done.done.retry_after_ms < 1000);
        core_rig_run(&r, 1000000);
        EXPECT_EQ(state_of(&r, 1), MODEL_COLD);
        core_rig_submit(&r, 1, request(5, 10, 10));
        core_rig_finish(&r);
        EXPECT(core_rig_gives(&r, 1) && core_rig_gives(&r, 5));
        EXPECT_EQ(core_rig_model(&r, 1)->n_failures, 0);
        core_rig_deinit(&r);
    }
}

/* A client that came at the moment it was told to was before the engine, and told to come again. */
static void a_client_that_returns_on_time_is_admitted(void) {
    static core_rig r;
    core_rig_init(&r, 40, 12, 12);
    r.device.bad_files = 1;
    core_rig_open(&r, false);
    attach_all(&r, 1);
    core_rig_submit(&r, 0, request(1, 10, 10));
    core_rig_finish(&r);
    EXPECT_EQ(r.outcomes[1].done.done.status, INFERD_EMODEL);
    r.device.bad_files = 0;
    uint64_t at_us = core_rig_model(&r, 0)->retry_at_us;
    r.idle_us += at_us - core_rig_now(&r) - 1;
    core_rig_submit(&r, 0, request(2, 10, 10));
    r.idle_us++;
    EXPECT_EQ(state_of(&r, 0), MODEL_FAILED);
    core_rig_submit(&r, 0, request(3, 10, 10));
    core_rig_finish(&r);
    EXPECT_EQ(r.outcomes[2].done.done.status, INFERD_EMODEL);
    EXPECT(core_rig_gives(&r, 3));
    core_rig_deinit(&r);
}

static void failures_in_a_row_wait_longer_each_time(void) {
    static core_rig r;
    core_rig_init(&r, 40, 0, 12);
    r.device.fail_load = true;
    core_rig_open(&r, false);
    attach_all(&r, 1);
    uint64_t id = 1;
    for (uint32_t i = 0; i < 8; i++) {
        core_rig_submit(&r, 0, request(id, 10, 10));
        core_rig_run(&r, 5000);
        uint32_t wait_ms = r.outcomes[id++].done.done.retry_after_ms;
        EXPECT_EQ(wait_ms, u32_min(1000u << i, 60000));
        core_rig_run(&r, (uint64_t)wait_ms * 1000);
    }
    EXPECT_EQ(n_free(&r), 40);
    r.device.fail_load = false;
    core_rig_submit(&r, 0, request(id, 10, 10));
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, id));
    core_rig_deinit(&r);
}

static void a_cancel_during_bring_up_ends_the_stage_unless_far(void) {
    for (uint32_t n_iterations = 2; n_iterations <= 8; n_iterations += 6) {
        static core_rig r;
        core_rig_init(&r, 40, 0, 12);
        r.device.stage_pieces = 10;
        core_rig_open(&r, false);
        attach_all(&r, 1);
        core_rig_submit(&r, 0, request(1, 10, 10));
        for (uint32_t i = 0; i < n_iterations; i++) core_rig_iterate(&r, 1000);
        EXPECT_EQ(state_of(&r, 0), MODEL_STAGING);
        sched_cancel(r.core.sched, 1, core_rig_now(&r));
        core_rig_finish(&r);
        core_rig_run(&r, 10000);
        EXPECT_EQ(state_of(&r, 0), n_iterations == 2 ? MODEL_COLD : MODEL_HOT);
        EXPECT_EQ(n_free(&r), n_iterations == 2 ? 40 : 28);
        core_rig_deinit(&r);
    }
}

/* One model with room for a second, and a request of it that is being answered. */
static void open_at_work(core_rig *r) {
    core_rig_init(r, 40, 12, 12);
    core_rig_open(r, false);
    attach_all(r, 1);
    core_rig_submit(r, 0, request(1, 10, 40));
    core_rig_run(r, 20000);
    EXPECT_EQ(state_of(r, 0), MODEL_HOT);
}

static void unloading_lets_running_work_end_and_waiting_work_reloads(void) {
    static core_rig r;
    open_at_work(&r);
    residency_do(&r.core.models, 0, ENGINE_UNLOAD, core_rig_now(&r));
    core_rig_submit(&r, 0, request(2, 10, 10));
    core_rig_run(&r, 10000);
    EXPECT_EQ(state_of(&r, 0), MODEL_DRAINING);
    EXPECT_EQ(r.outcomes[2].n_tokens, 0); // the door is closed
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 1) && core_rig_gives(&r, 2));
    EXPECT_EQ(r.outcomes[1].done.done.n_preempted, 0);
    EXPECT_EQ(core_rig_model(&r, 0)->n_loads, 2);
    EXPECT_EQ(core_rig_model(&r, 0)->n_stages, 1);
    residency_do(&r.core.models, 0, ENGINE_DROP, core_rig_now(&r));
    core_rig_run(&r, 10000);
    EXPECT_EQ(state_of(&r, 0), MODEL_COLD);
    EXPECT_EQ(n_free(&r), 40 - sched_model_n_cached(r.core.sched, 0));
    core_rig_deinit(&r);
}

static void a_drained_model_ends_what_it_has_and_stays_away(void) {
    static core_rig r;
    core_rig_init(&r, 40, 12, 12);
    core_rig_open(&r, true);
    attach_all(&r, 1);
    core_rig_run(&r, 10000);
    core_rig_submit(&r, 0, request(1, 10, 40));
    core_rig_run(&r, 20000);
    residency_do(&r.core.models, 0, ENGINE_DRAIN, core_rig_now(&r));
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 1));
    core_rig_run(&r, 100000);
    EXPECT_EQ(state_of(&r, 0), MODEL_WARM);
    residency_do(&r.core.models, 0, ENGINE_LOAD, core_rig_now(&r));
    core_rig_run(&r, 10000);
    EXPECT_EQ(state_of(&r, 0), MODEL_HOT);
    core_rig_deinit(&r);
}

/* Any other command ended the drain: a prefetch brought a model back that was to stay away. */
static void only_a_load_ends_a_drain(void) {
    static core_rig r;
    inferd_err err = {0};
    model_policy p = plain_policy();
    p.pin = PIN_HOT;
    core_rig_init(&r, 40, 12, 12);
    core_rig_open(&r, false);
    core_rig_attach(&r, 0, &p);
    core_rig_run(&r, 10000);
    EXPECT_EQ(state_of(&r, 0), MODEL_HOT);
    residency_do(&r.core.models, 0, ENGINE_DRAIN, core_rig_now(&r));
    core_rig_run(&r, 10000);
    EXPECT_EQ(state_of(&r, 0), MODEL_WARM);
    static const engine_command others[] = {ENGINE_UNLOAD, ENGINE_DROP, ENGINE_PREFETCH};
    static const model_state then[] = {MODEL_WARM, MODEL_COLD, MODEL_WARM};
    for (uint32_t i = 0; i < 3; i++) {
        residency_do(&r.core.models, 0, others[i], core_rig_now(&r));
        EXPECT_EQ(residency_set_policy(&r.core.models, 0, &p, core_rig_now(&r), &err), INFERD_OK);
        core_rig_run(&r, 10000);
        EXPECT_EQ(state_of(&r, 0), then[i]);
        EXPECT(core_rig_model(&r, 0)->held);
    }
    residency_do(&r.core.models, 0, ENGINE_LOAD, core_rig_now(&r));
    core_rig_run(&r, 10000);
    EXPECT_EQ(state_of(&r, 0), MODEL_HOT);
    EXPECT(!core_rig_model(&r, 0)->held);
    core_rig_deinit(&r);
}

/* A simulation found it: such a sequence ran on a model that was gone, and waited for ever. */
static void a_paused_sequence_of_a_model_that_left_brings_it_back(void) {
    static core_rig r;
    open_at_work(&r);
    sched_pause(r.core.sched, 1);
    residency_do(&r.core.models, 0, ENGINE_UNLOAD, core_rig_now(&r));
    core_rig_run(&r, 10000);
    EXPECT_EQ(state_of(&r, 0), MODEL_WARM);
    sched_resume(r.core.sched, 1, core_rig_now(&r));
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 1));
    core_rig_deinit(&r);
}

static void an_idle_model_leaves_after_its_keep_alive_and_comes_back(void) {
    static core_rig r;
    model_policy p = plain_policy();
    p.keep_alive_us = 50000;
    core_rig_init(&r, 40, 12, 12);
    core_rig_open(&r, false);
    core_rig_attach(&r, 0, &p);
    core_rig_submit(&r, 0, request(1, 10, 5));
    core_rig_finish(&r);
    core_rig_run(&r, 45000);
    EXPECT_EQ(state_of(&r, 0), MODEL_HOT);
    EXPECT(core_next_us(&r.core) <= core_rig_now(&r) + 10000);
    core_rig_run(&r, 10000);
    EXPECT_EQ(state_of(&r, 0), MODEL_WARM);
    EXPECT_EQ(core_rig_model(&r, 0)->n_evictions[ENGINE_EVICT_IDLE], 1);
    core_rig_submit(&r, 0, request(2, 10, 5));
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 2));
    EXPECT_EQ(core_rig_model(&r, 0)->n_stages, 1);
    core_rig_deinit(&r);
}

static void models_with_the_same_content_share_their_weights(void) {
    static core_rig r;
    model_policy p = plain_policy();
    core_rig_init(&r, 40, 12, 12);
    core_rig_open(&r, false);
    core_rig_attach(&r, 0, &p);
    residency_attach(&r.core.models, 1, NULL, 0, &p, core_rig_now(&r));
    core_rig_submit(&r, 1, request(1, 10, 30)); // the one that has no weights of its own
    core_rig_run(&r, 20000);
    EXPECT_EQ(state_of(&r, 0), MODEL_HOT);
    EXPECT_EQ(state_of(&r, 1), MODEL_HOT);
    core_rig_submit(&r, 0, request(2, 10, 30));
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 1) && core_rig_gives(&r, 2));
    EXPECT_EQ(r.core.pool.n_in[PAGE_WEIGHT], 12);
    EXPECT_EQ(core_rig_model(&r, 0)->n_stages, 1);
    residency_remove(&r.core.models, 0); // whose weights they are: they are the other's now
    core_rig_run(&r, 10000);
    EXPECT_EQ(state_of(&r, 0), MODEL_NONE);
    EXPECT_EQ(state_of(&r, 1), MODEL_HOT);
    EXPECT_EQ(core_rig_model(&r, 1)->n_stages, 1);
    EXPECT_EQ(r.core.pool.owners[1].held[PAGE_WEIGHT], 12);
    core_rig_submit(&r, 1, request(3, 10, 30));
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 3));
    residency_remove(&r.core.models, 1);
    core_rig_run(&r, 10000);
    EXPECT_EQ(state_of(&r, 0), MODEL_NONE);
    EXPECT_EQ(state_of(&r, 1), MODEL_NONE);
    EXPECT_EQ(r.device.n_attached, 0);
    EXPECT_EQ(n_free(&r), 40);
    core_rig_deinit(&r);
}

/* Two names of one content, the second with this policy. */
static void attach_pair(core_rig *r, const model_policy *second) {
    model_policy p = plain_policy();
    core_rig_attach(r, 0, &p);
    residency_attach(&r->core.models, 1, NULL, 0, second, core_rig_now(r));
}

/* What a removed name said about its group was in force for as long as another one used the
 * weights. */
static void a_removed_name_says_nothing_more_about_its_weights(void) {
    static core_rig r;
    model_policy p = plain_policy();
    core_rig_init(&r, 40, 12, 12);
    core_rig_open(&r, false);
    p.keep_alive_us = 50000;
    attach_pair(&r, &p);
    inferd_err err = {0};
    p = plain_policy(); // never leaves by itself
    p.min_bytes = 20ull * (2 << 20);
    EXPECT_EQ(residency_set_policy(&r.core.models, 0, &p, core_rig_now(&r), &err), INFERD_OK);
    core_rig_submit(&r, 0, request(1, 10, 60));
    core_rig_submit(&r, 1, request(2, 10, 5));
    core_rig_run(&r, 20000);
    residency_remove(&r.core.models, 0);
    EXPECT_EQ(r.core.pool.n_min, 0);
    core_rig_iterate(&r, 0);
    EXPECT_EQ(r.outcomes[1].n_done, 0); // and goes on to be answered
    EXPECT_EQ(core_rig_model(&r, 0)->weights_of, 1);
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 1) && core_rig_gives(&r, 2));
    core_rig_run(&r, 45000);
    EXPECT_EQ(state_of(&r, 1), MODEL_HOT);
    core_rig_run(&r, 10000);
    EXPECT_EQ(state_of(&r, 1), MODEL_WARM);
    EXPECT_EQ(r.core.pool.owners[1].held[PAGE_WARM], 12);
    core_rig_submit(&r, 1, request(3, 10, 5)); // its pages and counters went with them
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 3));
    EXPECT_EQ(core_rig_model(&r, 1)->n_stages, 1);
    EXPECT_EQ(core_rig_model(&r, 1)->n_loads, 2);
    core_rig_deinit(&r);
}

/* A renamed model was FAILED for good, and the daemon ended when the old name's slot was empty:
 * the device thought that the new one uses its weights. */
static void a_guarantee_that_does_not_fit_is_kept_as_soon_as_it_does(void) {
    static core_rig r;
    model_policy p = plain_policy();
    core_rig_init(&r, 40, 40, 10);
    core_rig_open(&r, false);
    p.min_bytes = 25ull * (2 << 20);
    core_rig_attach(&r, 0, &p);
    core_rig_submit(&r, 0, request(1, 10, 40));
    core_rig_run(&r, 20000);
    residency_attach(&r.core.models, 1, NULL, 0, &p, core_rig_now(&r)); // its new name
    core_rig_attach(&r, 2, &p);                                         // and another
    for (uint32_t i = 1; i <= 2; i++) {
        EXPECT_EQ(state_of(&r, i), MODEL_FAILED);
        EXPECT_EQ(core_rig_model(&r, i)->retry_at_us, core_rig_now(&r) + 1000000);
    }
    EXPECT(core_next_us(&r.core) <= core_rig_now(&r) + 1000000);
    core_rig_submit(&r, 2, request(2, 10, 5));
    core_rig_iterate(&r, 1000);
    EXPECT_EQ(r.outcomes[2].done.done.status, INFERD_EMODEL);
    EXPECT(r.outcomes[2].done.done.retry_after_ms > 0);
    core_rig_run(&r, 1100000); // once more, and in vain
    EXPECT_EQ(core_rig_model(&r, 1)->n_failures, 2);
    EXPECT_EQ(state_of(&r, 1), MODEL_FAILED);
    residency_remove(&r.core.models, 0);
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 1));
    EXPECT_EQ(state_of(&r, 0), MODEL_NONE);
    EXPECT_EQ(state_of(&r, 1), MODEL_HOT);
    EXPECT_EQ(r.core.pool.owners[1].min, 25);
    EXPECT_EQ(state_of(&r, 2), MODEL_FAILED);
    core_rig_submit(&r, 1, request(3, 10, 5));
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 3));
    EXPECT_EQ(core_rig_model(&r, 1)->n_stages, 1); // nothing was read again
    inferd_err err = {0};
    p.min_bytes = 0;
    EXPECT_EQ(residency_set_policy(&r.core.models, 1, &p, core_rig_now(&r), &err), INFERD_OK);
    core_rig_submit(&r, 2, request(4, 10, 5));
    core_rig_iterate(&r, 0);
    EXPECT_EQ(r.core.pool.owners[2].min, 25);
    core_rig_submit(&r, 2, request(5, 10, 5));
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 5));
    core_rig_deinit(&r);
}

/* The drain of one name took the other one out of service. */
static void a_drained_name_leaves_the_other_in_service(void) {
    static core_rig r;
    model_policy p = plain_policy();
    core_rig_init(&r, 40, 12, 12);
    core_rig_open(&r, false);
    attach_pair(&r, &p);
    core_rig_submit(&r, 0, request(1, 10, 5));
    core_rig_finish(&r);
    residency_do(&r.core.models, 0, ENGINE_DRAIN, core_rig_now(&r));
    core_rig_run(&r, 10000);
    EXPECT(core_rig_model(&r, 0)->held && !core_rig_model(&r, 1)->held);
    EXPECT(residency_serves_others(&r.core.models, 0));
    EXPECT(!residency_serves_others(&r.core.models, 1));
    EXPECT_EQ(state_of(&r, 1), MODEL_HOT);
    residency_do(&r.core.models, 1, ENGINE_DRAIN, core_rig_now(&r));
    core_rig_run(&r, 10000);
    EXPECT_EQ(state_of(&r, 1), MODEL_WARM); // now all of them are
    residency_do(&r.core.models, 1, ENGINE_LOAD, core_rig_now(&r));
    core_rig_run(&r, 10000);
    EXPECT_EQ(state_of(&r, 1), MODEL_HOT);
    EXPECT(core_rig_model(&r, 0)->held);
    core_rig_deinit(&r);
}

/* Harm to one name's file killed all names of the content. */
static void weights_are_read_from_whichever_name_has_them(void) {
    for (uint32_t removed = 0; removed <= 1; removed++) {
        static core_rig r;
        model_policy p = plain_policy();
        core_rig_init(&r, 40, 12, 12);
        core_rig_open(&r, false);
        attach_pair(&r, &p);
        residency_attach(&r.core.models, 2, NULL, 0, &p, core_rig_now(&r));
        r.device.bad_files = 1 << 0 | 1 << 1;
        if (removed) residency_remove(&r.core.models, 0);
        core_rig_submit(&r, 1, request(1, 10, 5));
        core_rig_finish(&r);
        EXPECT(core_rig_gives(&r, 1));
        EXPECT_EQ(core_rig_model(&r, 1)->weights_of, 2);
        EXPECT_EQ(core_rig_model(&r, 2)->n_failed, 0);
        residency_do(&r.core.models, 1, ENGINE_DROP, core_rig_now(&r));
        core_rig_run(&r, 10000);
        EXPECT_EQ(state_of(&r, 1), MODEL_COLD);
        r.device.bad_files = 7; // nobody has them: each is tried once, and all fail
        uint32_t n_pieces = r.device.n_pieces;
        core_rig_submit(&r, 2, request(2, 10, 5));
        core_rig_finish(&r);
        EXPECT_EQ(r.outcomes[2].done.done.status, INFERD_EMODEL);
        EXPECT_EQ(state_of(&r, 1), MODEL_FAILED);
        EXPECT_EQ(r.device.n_pieces - n_pieces, removed ? 2 : 3);
        r.device.bad_files = 1 << 2;
        core_rig_run(&r, 1100000);
        core_rig_submit(&r, 2, request(3, 10, 5));
        core_rig_finish(&r);
        EXPECT(core_rig_gives(&r, 3));
        core_rig_deinit(&r);
    }
}

/* A name that joins weights that could not be read has a file of its own. */
static void a_model_that_joins_a_failed_weight_group_revives_it(void) {
    static core_rig r;
    model_policy p = plain_policy();
    core_rig_init(&r, 40, 12, 12);
    core_rig_open(&r, false);
    attach_pair(&r, &p);
    r.device.bad_files = 3;
    core_rig_submit(&r, 1, request(1, 10, 5));
    core_rig_finish(&r);
    EXPECT_EQ(state_of(&r, 1), MODEL_FAILED);
    uint32_t member = core_rig_model(&r, 0)->weights_of == 0 ? 1 : 0;
    residency_attach(&r.core.models, 2, NULL, member, &p, core_rig_now(&r));
    core_rig_submit(&r, 2, request(2, 10, 5));
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 2));
    EXPECT_EQ(core_rig_model(&r, 0)->weights_of, 2);
    core_rig_deinit(&r);
}

static void a_removed_model_finishes_its_work_and_leaves_an_empty_slot(void) {
    static core_rig r;
    core_rig_init(&r, 40, 12, 12);
    core_rig_open(&r, false);
    attach_all(&r, 2);
    core_rig_submit(&r, 0, request(1, 10, 40));
    core_rig_run(&r, 20000);
    residency_remove(&r.core.models, 0);
    core_rig_finish(&r);
    core_rig_run(&r, 10000);
    EXPECT(core_rig_gives(&r, 1));
    EXPECT_EQ(state_of(&r, 0), MODEL_NONE);
    EXPECT_EQ(r.core.models.departures[0], 1);
    EXPECT_EQ(n_free(&r), 40);
    model_policy p = plain_policy();
    core_rig_attach(&r, 0, &p); // another one in the same slot
    core_rig_submit(&r, 0, request(2, 10, 40));
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 2));
    core_rig_deinit(&r);
}

static void guarantees_are_kept_free_for_their_models(void) {
    static core_rig r;
    model_policy p = plain_policy();
    core_rig_init(&r, 40, 40, 10);
    core_rig_open(&r, false);
    core_rig_attach(&r, 0, &p);
    p.min_bytes = 25ull * (2 << 20);
    core_rig_attach(&r, 1, &p);
    p.min_bytes = 16ull * (2 << 20);
    inferd_err err = {0};
    core_rig_attach(&r, 2, &p); // 25 + 16 of 40
    EXPECT_EQ(state_of(&r, 2), MODEL_FAILED);
    EXPECT_STR(core_rig_model(&r, 2)->why.text,
               "guarantees of 41 pages together, the device has 40");
    p.min_bytes = 0;
    core_rig_submit(&r, 0, request(1, 10, 50));
    core_rig_finish(&r);
    EXPECT(pool_held(&r.core.pool.owners[0]) <= 15);
    core_rig_submit(&r, 1, request(2, 200, 20));
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 1) && core_rig_gives(&r, 2));
    EXPECT_EQ(residency_set_policy(&r.core.models, 1, &p, core_rig_now(&r), &err), INFERD_OK);
    core_rig_deinit(&r);
}

static void idle_weights_go_before_anybodys_keys_and_values(void) {
    static core_rig r;
    core_rig_init(&r, 30, 30, 10);
    core_rig_open(&r, false);
    attach_all(&r, 2);
    core_rig_submit(&r, 0, request(1, 10, 5));
    core_rig_finish(&r);
    /* Blocks of 4 tokens, 3 in a page: 220 tokens need 19 pages, 10 are left. */
    core_rig_submit(&r, 1, request(2, 100, 120));
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 2));
    EXPECT_EQ(r.outcomes[2].done.done.n_preempted, 0);
    EXPECT_EQ(state_of(&r, 0), MODEL_WARM);
    core_rig_deinit(&r);
}

/* Its pool has no pages and a page no bytes: a policy was a division by zero, and an audit said
 * that the pool's lists are wrong. */
static void a_device_that_never_came_up_takes_new_policies(void) {
    static core_rig r;
    inferd_err err = {0};
    model_policy p = plain_policy();
    tenant_policy tenant = {.weight = 2, .min_bytes = 1 << 20};
    core_rig_init(&r, 40, 12, 12);
    r.device.fail_open = true;
    core_options o = {.device = fake_as_device(&r.device),
                      .limits = default_limits(),
                      .n_slots = 4,
                      .clock = core_rig_now,
                      .room = core_rig_room,
                      .emit = core_rig_event,
                      .ctx = &r};
    EXPECT_EQ(core_init(&r.core, &o, &err), INFERD_OK);
    EXPECT_EQ(core_open(&r.core, &err), INFERD_EDEVICE);
    core_lose(&r.core, &err);
    core_rig_attach(&r, 0, &p);
    EXPECT_EQ(state_of(&r, 0), MODEL_FAILED);
    p.min_bytes = 3 << 20;
    p.pin = PIN_HOT;
    EXPECT_EQ(residency_set_policy(&r.core.models, 0, &p, core_rig_now(&r), &err), INFERD_OK);
    EXPECT_EQ(core_rig_model(&r, 0)->policy.pin, PIN_HOT);
    EXPECT_EQ(sched_set_tenant(r.core.sched, 0, &tenant, core_rig_now(&r), &err), INFERD_OK);
    residency_do(&r.core.models, 0, ENGINE_LOAD, core_rig_now(&r));
    core_rig_submit(&r, 0, request(1, 10, 10));
    core_rig_finish(&r);
    EXPECT_STR(r.outcomes[1].done.done.text, "opening the device: no such device");
    residency_remove(&r.core.models, 0);
    core_rig_iterate(&r, 0);
    EXPECT_EQ(state_of(&r, 0), MODEL_NONE);
    core_rig_deinit(&r);
}

/* The audit of such a device said that FAILED models own pages. */
static void a_lost_device_has_every_page_back(void) {
    for (int apart = 0; apart <= 1; apart++) {
        static core_rig r;
        inferd_err why = {0};
        core_rig_init(&r, 80, 60, 12);
        r.device.apart = apart == 1;
        r.device.stage_pieces = 10;
        core_rig_open(&r, false);
        attach_all(&r, 3);
        core_rig_submit(&r, 0, request(1, 10, 400));
        residency_do(&r.core.models, 1, ENGINE_PREFETCH, core_rig_now(&r));
        for (int i = 0; i < 1000 && state_of(&r, 1) != MODEL_WARM; i++) core_rig_iterate(&r, 1000);
        residency_do(&r.core.models, 2, ENGINE_LOAD, core_rig_now(&r));
        core_rig_iterate(&r, 1000);
        core_rig_iterate(&r, 1000);
        EXPECT_EQ(state_of(&r, 0), MODEL_HOT);
        EXPECT_EQ(state_of(&r, 1), MODEL_WARM);
        EXPECT_EQ(state_of(&r, 2), MODEL_STAGING);
        uint64_t hot_us = core_rig_now(&r) - core_rig_model(&r, 0)->hot_since_us;
        inferd_fail(&why, INFERD_ELOST, "the device is gone");
        core_lose(&r.core, &why);
        for (uint32_t i = 0; i < 3; i++) {
            EXPECT_EQ(state_of(&r, i), MODEL_FAILED);
            EXPECT_EQ(r.core.pool.owners[i].held[PAGE_WEIGHT], 0);
            EXPECT_EQ(r.core.pool.owners[i].held[PAGE_WARM], 0);
        }
        EXPECT_EQ(core_rig_model(&r, 0)->hot_us, hot_us); // what was counted stays counted
        core_rig_verify(&r);
        core_rig_finish(&r);
        EXPECT_EQ(r.outcomes[1].done.done.status, INFERD_ELOST);
        EXPECT_EQ(pool_n_host_free(&r.core.pool), 60);
        core_rig_deinit(&r);
    }
}

static uint64_t next_random(uint64_t *s) {
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return *s >> 33;
}

/* Whatever happens, every request ends once and what it was given is right; the books balance after
 * each turn; at the end every page is back. */
static void storm(uint64_t seed, bool apart, uint32_t depth) {
    static core_rig r;
    uint64_t s = seed * 977 + apart * 31 + depth;
    core_rig_init(&r, 48, (uint32_t)(next_random(&s) % 40), 8);
    r.device.apart = apart;
    r.device.depth = depth;
    for (uint32_t i = 0; i < 8; i++) r.device.models[i].weight_pages = 4 + i * 3;
    core_rig_open(&r, seed % 2 == 0);
    for (uint32_t i = 0; i < 8; i++) {
        model_policy p = plain_policy();
        p.prio = (gen_class)(1 + next_random(&s) % 3);
        p.weight = 1 + (uint32_t)(next_random(&s) % 5);
        if (next_random(&s) % 4 == 0) p.keep_alive_us = 20000;
        if (i == 0 && next_random(&s) % 2) p.pin = PIN_HOT;
        if (i == 1 && next_random(&s) % 2) p.min_bytes = 10ull * (2 << 20);
        residency_attach(&r.core.models, i, NULL, i == 7 ? 2 : DEVICE_OWN, &p, core_rig_now(&r));
    }
    uint64_t id = 1;
    for (uint32_t n = 0; n < 1200; n++) {
        uint64_t what = next_random(&s) % 100;
        uint32_t idx = (uint32_t)(next_random(&s) % 8);
        if (what < 12 && id < 120) {
            gen_request *q = request(id, 1 + (uint32_t)(next_random(&s) % 60),
                                     1 + (uint32_t)(next_random(&s) % 40));
            q->prio = (gen_class)(next_random(&s) % GEN_CLASSES);
            q->queue_deadline_us = core_rig_now(&r) + 3000000;
            core_rig_submit(&r, idx, q);
            id++;
        } else if (what < 14 && id > 1) {
            sched_cancel(r.core.sched, 1 + next_random(&s) % id, core_rig_now(&r));
        } else if (what < 16) {
            residency_do(&r.core.models, idx, (engine_command)(next_random(&s) % 4),
                         core_rig_now(&r));
        } else if (what == 16) {
            r.device.fail_stage_at = r.device.n_pieces + 1 + (uint32_t)(next_random(&s) % 4);
        }
        core_rig_iterate(&r, 1000);
    }
    core_rig_finish(&r);
    uint32_t n_good = 0;
    for (uint64_t i = 1; i < id; i++) {
        const outcome *o = &r.outcomes[i];
        EXPECT_EQ(o->n_done, 1);
        if (o->done.done.finish == GEN_LENGTH) {
            EXPECT(core_rig_gives(&r, i));
            n_good++;
        } else {
            EXPECT(o->done.done.finish == GEN_CANCELLED || o->done.done.finish == GEN_TIMEOUT ||
                   o->done.done.status == INFERD_EMODEL || o->done.done.status == INFERD_ETOOLONG);
        }
    }
    if (!apart || r.device.n_host_pages > 25) EXPECT(n_good > id / 6); // else most never fit
    for (uint32_t i = 0; i < 8; i++) residency_remove(&r.core.models, i);
    core_rig_run(&r, 200000);
    EXPECT_EQ(n_free(&r), 48);
    EXPECT_EQ(pool_n_host_free(&r.core.pool), r.device.n_host_pages);
    if (test_failures > 0) printf("seed %d apart %d depth %u\n", (int)seed, apart, depth);
    core_rig_deinit(&r);
}

static void storms_lose_nothing(void) {
    for (uint64_t seed = 1; seed <= 12 && test_failures == 0; seed++)
        for (int apart = 0; apart <= 1; apart++)
            for (uint32_t depth = 1; depth <= 2; depth++) storm(seed, apart == 1, depth);
}

static const test_case cases[] = {
    TEST(two_models_alternate_by_step),
    TEST(a_request_brings_its_model_and_many_bring_it_once),
    TEST(those_that_decode_go_on_while_another_model_comes),
    TEST(an_idle_model_makes_room_and_waits_in_host_memory),
    TEST(without_host_memory_it_is_read_again),
    TEST(running_work_of_a_lower_class_makes_room_and_goes_on_later),
    TEST(an_idle_urgent_model_leaves_for_models_in_use),
    TEST(growing_batch_work_evicts_no_urgent_model_in_use),
    TEST(work_of_the_same_class_gets_time_slices),
    TEST(a_slice_has_time_for_steps),
    TEST(a_higher_class_is_never_pushed_out_and_the_lower_waits),
    TEST(a_pinned_model_stays_and_others_report_no_room),
    TEST(a_small_ceiling_blocks_no_model_at_the_start),
    TEST(a_pin_that_never_fits_blocks_no_model),
    TEST(a_model_unloaded_during_bring_up_goes),
    TEST(a_model_unloaded_while_work_waits_goes_after_it),
    TEST(a_switch_tells_how_long_others_took_to_make_room),
    TEST(a_client_that_retries_soon_finds_the_model),
    TEST(no_model_is_evicted_in_vain),
    TEST(what_never_fits_fails_with_the_numbers),
    TEST(a_load_that_fails_gives_its_pages_back_and_is_tried_again),
    TEST(a_client_that_returns_on_time_is_admitted),
    TEST(failures_in_a_row_wait_longer_each_time),
    TEST(a_cancel_during_bring_up_ends_the_stage_unless_far),
    TEST(unloading_lets_running_work_end_and_waiting_work_reloads),
    TEST(a_drained_model_ends_what_it_has_and_stays_away),
    TEST(only_a_load_ends_a_drain),
    TEST(a_paused_sequence_of_a_model_that_left_brings_it_back),
    TEST(an_idle_model_leaves_after_its_keep_alive_and_comes_back),
    TEST(models_with_the_same_content_share_their_weights),
    TEST(a_removed_name_says_nothing_more_about_its_weights),
    TEST(a_guarantee_that_does_not_fit_is_kept_as_soon_as_it_does),
    TEST(a_drained_name_leaves_the_other_in_service),
    TEST(weights_are_read_from_whichever_name_has_them),
    TEST(a_model_that_joins_a_failed_weight_group_revives_it),
    TEST(a_removed_model_finishes_its_work_and_leaves_an_empty_slot),
    TEST(guarantees_are_kept_free_for_their_models),
    TEST(idle_weights_go_before_anybodys_keys_and_values),
    TEST(a_device_that_never_came_up_takes_new_policies),
    TEST(a_lost_device_has_every_page_back),
    TEST(storms_lose_nothing),
};
TEST_MAIN(cases)
