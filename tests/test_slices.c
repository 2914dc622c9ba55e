/* test_slices.c - models that take turns, and requests whose limits change under them: everybody
 * gets on, or is told why not. */
#include "core_rig.h"

enum { STAGE_US = 40000 };

static void set_policy(core_rig *r, uint32_t idx, const model_policy *p) {
    inferd_err err = {0};
    EXPECT_EQ(residency_set_policy(&r->core.models, idx, p, core_rig_now(r), &err), INFERD_OK);
}

static void submit(core_rig *r, uint64_t id, uint32_t idx, gen_class prio, uint32_t n_prompt,
                   uint32_t n_out) {
    gen_request *q = request(id, n_prompt, n_out);
    q->prio = prio;
    core_rig_submit(r, idx, q);
}

/* Host memory apart, so that nothing is read twice. */
static void open_apart(core_rig *r, uint32_t n_pages, uint32_t weight_pages, uint32_t n_models) {
    model_policy p = plain_policy();
    core_rig_init(r, n_pages, 8 * weight_pages, weight_pages);
    r->device.apart = true;
    core_rig_open(r, false);
    for (uint32_t i = 0; i < n_models; i++) core_rig_attach(r, i, &p);
}

static void models_that_thrash_get_quotas_and_lose_them_again(void) {
    static core_rig r;
    uint64_t id = 1;
    bool thrashed = false;
    model_policy p = plain_policy();
    core_rig_init(&r, 20, 0, 12);     // who leaves is read again
    r.device.stage_us = STAGE_US / 4; // a piece of four
    core_rig_open(&r, false);
    for (uint32_t i = 0; i < 2; i++) core_rig_attach(&r, i, &p);
    for (int i = 0; i < 400 && !thrashed; i++) {
        for (uint32_t m = 0; m < 2; m++) {
            sched_model_numbers n;
            sched_count_model(r.core.sched, m, &n);
            for (uint32_t k = n.n_running + n.n_waiting; k < 3; k++)
                submit(&r, id++, m, GEN_NORMAL, 10, 60);
        }
        core_rig_run(&r, 50000);
        thrashed = r.core.models.thrashing;
    }
    EXPECT(thrashed);
    EXPECT(r.core.models.n_slices > 2);
    EXPECT(residency_reload_us(&r.core.models) >= RESIDENCY_WINDOW_US / 20);
    for (uint32_t m = 0; m < 2; m++) {
        uint64_t slice_us = core_rig_model(&r, m)->slice_us;
        EXPECT(slice_us >= 4 * STAGE_US && slice_us <= FEASIBLE_SLICE_MAX_US);
    }
    EXPECT(r.core.models.slices_attainment_ppm > 0);
    core_rig_finish(&r);
    for (uint64_t i = 1; i < id; i++) EXPECT(core_rig_gives(&r, i));
    core_rig_run(&r, 3 * (uint64_t)RESIDENCY_WINDOW_US);
    EXPECT(!r.core.models.thrashing);
    EXPECT_EQ(core_rig_model(&r, 0)->slice_us, 0);
    core_rig_deinit(&r);
}

/* A few switches are no thrashing: quotas are for those who need them. */
static void models_that_fit_together_have_no_quotas(void) {
    static core_rig r;
    open_apart(&r, 60, 12, 2);
    for (uint64_t id = 1; id <= 20; id++) submit(&r, id, id % 2, GEN_NORMAL, 10, 20);
    core_rig_finish(&r);
    EXPECT_EQ(r.core.models.n_slices, 0);
    EXPECT(!r.core.models.thrashing);
    EXPECT_EQ(residency_reload_us(&r.core.models), 0);
    core_rig_deinit(&r);
}

/* Models came by turns, and each left again before there was a page for the first of its work. */
static void a_new_model_gets_pages_for_the_first_of_its_work(void) {
    static core_rig r;
    open_apart(&r, 30, 14, 3);
    for (uint64_t id = 1; id <= 9; id++) submit(&r, id, (uint32_t)id % 3, GEN_NORMAL, 20, 30);
    core_rig_finish(&r);
    for (uint64_t id = 1; id <= 9; id++) EXPECT(core_rig_gives(&r, id));
    core_rig_deinit(&r);
}

/* An urgent request came to a hot model that had been idle, and the model had to go at that moment:
 * it "ran nothing". */
static void a_model_with_work_since_a_moment_ago_is_not_stuck(void) {
    static core_rig r;
    model_policy urgent = plain_policy(), lowest = plain_policy();
    urgent.prio = GEN_HIGH;
    lowest.prio = GEN_BATCH;
    open_apart(&r, 20, 12, 2);
    set_policy(&r, 0, &urgent);
    set_policy(&r, 1, &lowest);
    submit(&r, 1, 0, GEN_HIGH, 10, 5);
    core_rig_finish(&r);
    r.idle_us += 1000000; // longer than any turn
    submit(&r, 2, 0, GEN_HIGH, 10, 5);
    submit(&r, 3, 1, GEN_BATCH, 10, 5);
    r.core.models.slots[1].away_until_us = 0;
    uint64_t n_loads = core_rig_model(&r, 0)->n_loads;
    while (r.outcomes[2].n_done == 0) core_rig_iterate(&r, 1000);
    EXPECT_EQ(core_rig_model(&r, 0)->n_loads, n_loads); // it never left
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 3));
    core_rig_deinit(&r);
}

/* Both are HOT, and one has all pages for keys and values.  Its weights went, to be read again;
 * some of its sequences are enough. */
static void a_model_without_a_page_takes_some_before_weights_go(void) {
    static core_rig r;
    model_policy stays = plain_policy();
    stays.pin = PIN_HOT;
    open_apart(&r, 40, 12, 2); // 192 tokens beside both
    r.core.models.limits.slice_us =
        500000; // as the daemon's, whose idle device looks up at a quarter
    r.core.sched->limits.kv_slice_us = 250000;
    set_policy(&r, 1, &stays);
    r.device.a_us = 5000;
    submit(&r, 1, 1, GEN_NORMAL, 10, 5);
    core_rig_finish(&r);
    for (uint64_t id = 2; id <= 9; id++) submit(&r, id, 0, GEN_NORMAL, 20, 100);
    core_rig_run(&r, 100000);
    EXPECT(core_rig_model(&r, 0)->state == MODEL_HOT && core_rig_model(&r, 1)->state == MODEL_HOT);
    submit(&r, 10, 1, GEN_NORMAL, 20, 40);
    core_rig_finish(&r);
    EXPECT_EQ(r.core.models.n_slices, 0);
    for (uint64_t id = 1; id <= 10; id++) EXPECT(core_rig_gives(&r, id));
    core_rig_deinit(&r);
}

static void an_idle_pinned_model_asks_for_no_iterations(void) {
    static core_rig r;
    model_policy p = plain_policy();
    p.pin = PIN_HOT;
    p.keep_alive_us = 10000;
    open_apart(&r, 30, 10, 1);
    set_policy(&r, 0, &p);
    submit(&r, 1, 0, GEN_NORMAL, 10, 5);
    core_rig_finish(&r);
    core_rig_run(&r, 100000);
    EXPECT_EQ(residency_state(&r.core.models, 0), MODEL_HOT);
    EXPECT(core_next_us(&r.core) > core_rig_now(&r));
    core_rig_deinit(&r);
}

static gen_event *end_of(core_rig *r, uint64_t id) {
    return &r->outcomes[id].done;
}

static void a_request_that_does_not_fit_any_more_is_told(void) {
    static core_rig r;
    model_policy p = plain_policy();
    open_apart(&r, 30, 10, 2);
    submit(&r, 1, 0, GEN_NORMAL, 40, 60);  // 25 blocks, 9 pages
    submit(&r, 2, 0, GEN_NORMAL, 10, 200); // 53 blocks, 18 pages
    submit(&r, 3, 0, GEN_NORMAL, 10, 20);
    core_rig_run(&r, 80000);
    EXPECT_EQ(r.outcomes[2].n_done, 0);
    p.max_bytes = 20ull * (2 << 20); // 10 pages of keys and values
    set_policy(&r, 0, &p);
    core_rig_iterate(&r, 1000);
    EXPECT_EQ(r.outcomes[2].n_done, 1);
    EXPECT_EQ(end_of(&r, 2)->done.finish, GEN_ERROR);
    EXPECT_EQ(end_of(&r, 2)->done.status, INFERD_EQUOTA); // it is the model's max
    EXPECT(strstr(end_of(&r, 2)->done.text, "limits were changed") != NULL);
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 1) && core_rig_gives(&r, 3));
    core_rig_deinit(&r);
}

static void another_models_guarantee_counts_for_running_work(void) {
    static core_rig r;
    model_policy p = plain_policy();
    open_apart(&r, 30, 10, 2);
    submit(&r, 1, 0, GEN_NORMAL, 10, 200);
    core_rig_run(&r, 80000);
    p.min_bytes = 12ull * (2 << 20);
    set_policy(&r, 1, &p);
    core_rig_iterate(&r, 1000);
    EXPECT_EQ(r.outcomes[1].n_done, 1);
    EXPECT_EQ(end_of(&r, 1)->done.status, INFERD_ETOOLONG);
    core_rig_deinit(&r);
}

static void a_model_without_a_limit_gets_what_is_left(void) {
    static core_rig r;
    model_policy p = plain_policy();
    open_apart(&r, 30, 10, 1);
    submit(&r, 1, 0, GEN_NORMAL, 10, GEN_NO_MAX);
    core_rig_run(&r, 20000);
    p.max_bytes = 14ull * (2 << 20); // 4 pages: 48 tokens
    set_policy(&r, 0, &p);
    core_rig_finish(&r);
    EXPECT_EQ(end_of(&r, 1)->done.finish, GEN_LENGTH);
    EXPECT_EQ(r.outcomes[1].n_tokens, 48 + 1 - 10);
    core_rig_deinit(&r);
}

static void pinned_weights_are_left_out_of_what_a_request_may_have(void) {
    static core_rig r;
    model_policy p = plain_policy();
    open_apart(&r, 40, 10, 2);
    EXPECT_EQ(sched_kv_tokens_max(r.core.sched, 0), 30 * 12);
    p.pin = PIN_HOT;
    set_policy(&r, 1, &p);
    EXPECT_EQ(sched_kv_tokens_max(r.core.sched, 0), 20 * 12);
    submit(&r, 1, 0, GEN_NORMAL, 200, 100);
    core_rig_iterate(&r, 1000);
    EXPECT_EQ(r.outcomes[1].n_done, 1);
    EXPECT_EQ(end_of(&r, 1)->done.status, INFERD_ETOOLONG);
    p.pin = PIN_NONE;
    set_policy(&r, 1, &p);
    EXPECT_EQ(sched_kv_tokens_max(r.core.sched, 0), 30 * 12);
    core_rig_finish(&r);
    core_rig_deinit(&r);
}

/* Two sequences took their pages from each other by turns: one for its class, the other for a
 * guarantee that was less than it needed. */
static void a_guarantee_is_claimed_no_further_than_it_goes(void) {
    static core_rig r;
    inferd_err err = {0};
    model_policy p = plain_policy();
    tenant_policy owed = {.weight = 1, .min_bytes = 2 << 20}; // one page, of the 5 that are there
    core_rig_init(&r, 15, 0, 10);
    r.device.kv.slot_bytes = (2 << 20) / 6;
    core_rig_open(&r, true);
    core_rig_attach(&r, 0, &p);
    core_rig_run(&r, 30000);
    EXPECT_EQ(sched_set_tenant(r.core.sched, 1, &owed, core_rig_now(&r), &err), INFERD_OK);
    gen_request *a = request(1, 20, 20), *b = request(2, 20, 38);
    a->prio = GEN_HIGH;
    b->prio = GEN_BATCH;
    b->tenant_idx = 1;
    b->cache_scope[0] = 1;
    core_rig_submit(&r, 0, b);
    core_rig_run(&r, 10000);
    core_rig_submit(&r, 0, a);
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 1) && core_rig_gives(&r, 2));
    EXPECT(end_of(&r, 2)->done.n_preempted <= 3);
    core_rig_deinit(&r);
}

/* Whoever is aged enough goes before the urgent, and the urgent do not wait for good either. */
static void a_lower_class_has_its_floor_in_a_batch_of_one(void) {
    static rig r;
    sched_limits limits = default_limits();
    limits.running_max = 1;
    limits.starvation_percent = 2;
    rig_init(&r, 40, &limits);
    sched_submit(r.s, request(1, 8, 4), r.now_us);
    r.s->seqs[0].req->prio = GEN_BATCH;
    uint64_t id = 2;
    for (int i = 0; i < 1000 && r.outcomes[1].n_done == 0; i++) {
        while (id < 3000 && r.s->n_waiting + r.s->n_running < 4) {
            gen_request *q = request(id++, 8, 8);
            q->prio = GEN_HIGH;
            sched_submit(r.s, q, r.now_us);
        }
        rig_iterate(&r);
    }
    EXPECT_EQ(r.outcomes[1].n_done, 1); // a flood of urgent work never stopped
    rig_run(&r);
    rig_deinit(&r);
}

static const test_case cases[] = {
    TEST(models_that_thrash_get_quotas_and_lose_them_again),
    TEST(models_that_fit_together_have_no_quotas),
    TEST(a_new_model_gets_pages_for_the_first_of_its_work),
    TEST(a_model_with_work_since_a_moment_ago_is_not_stuck),
    TEST(a_model_without_a_page_takes_some_before_weights_go),
    TEST(an_idle_pinned_model_asks_for_no_iterations),
    TEST(a_request_that_does_not_fit_any_more_is_told),
    TEST(another_models_guarantee_counts_for_running_work),
    TEST(a_model_without_a_limit_gets_what_is_left),
    TEST(pinned_weights_are_left_out_of_what_a_request_may_have),
    TEST(a_guarantee_is_claimed_no_further_than_it_goes),
    TEST(a_lower_class_has_its_floor_in_a_batch_of_one),
};
TEST_MAIN(cases)
