/* test_park.c - keys and values that leave the device and come back by copying. */
#include "core_rig.h"

static sched_counters count(core_rig *r) {
    sched_counters c;
    sched_count(r->core.sched, &c);
    return c;
}

/* Two models of which one fits beside its keys and values; steps are slow, so copying pays. */
static void open_two(core_rig *r, uint32_t n_host, uint64_t a_us, uint64_t move_us) {
    model_policy p = plain_policy();
    core_rig_init(r, 30, n_host, 12);
    r->device.a_us = a_us;
    r->device.b_us = 300;
    r->device.move_us = move_us;
    core_rig_open(r, false);
    for (uint32_t i = 0; i < 2; i++) core_rig_attach(r, i, &p);
}

static gen_request *same_prompt(uint64_t id, uint32_t n) {
    gen_request *q = request(id, n, 6);
    for (uint32_t i = 0; i < n; i++) q->prompt[i] = (tok_id)(i * i % FAKE_VOCAB);
    return q;
}

static void a_prompt_is_found_again_after_its_model_was_away(void) {
    static core_rig r;
    open_two(&r, 60, 1000, 20);
    core_rig_submit(&r, 0, same_prompt(1, 100));
    core_rig_finish(&r);
    core_rig_submit(&r, 1, request(2, 150, 20)); // needs the pages of the other's cache, too
    core_rig_finish(&r);
    EXPECT_EQ(residency_state(&r.core.models, 0), MODEL_WARM);
    EXPECT(count(&r).n_parked >= 12);
    core_rig_submit(&r, 0, same_prompt(3, 100));
    core_rig_finish(&r);
    for (uint64_t id = 1; id <= 3; id++) EXPECT(core_rig_gives(&r, id));
    EXPECT_EQ(r.outcomes[3].done.done.n_cached, 96);
    EXPECT(count(&r).n_unparked >= 12); // the rest had stayed
    EXPECT_EQ(core_rig_model(&r, 0)->n_stages, 1);
    core_rig_deinit(&r);
}

static void a_preempted_sequence_goes_on_without_computing_again(void) {
    static core_rig r;
    open_two(&r, 60, 1000, 20);
    gen_request *low = request(1, 80, 60), *high = request(2, 150, 20);
    low->class = GEN_BATCH;
    high->class = GEN_HIGH;
    core_rig_submit(&r, 0, low);
    core_rig_run(&r, 60000);
    uint32_t n_before = r.outcomes[1].n_tokens;
    EXPECT(n_before > 10 && n_before < 60);
    core_rig_submit(&r, 1, high);
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 1) && core_rig_gives(&r, 2));
    EXPECT_EQ(r.outcomes[1].done.done.n_preempted, 1);
    EXPECT(count(&r).n_unparked >= 80 / 4);
    EXPECT(count(&r).n_recomputed_tokens <= 8); // the block that was not full
    core_rig_deinit(&r);
}

static void copying_is_not_done_where_computing_is_as_fast(void) {
    static core_rig r;
    open_two(&r, 60, 1000, 5000);
    core_rig_submit(&r, 0, same_prompt(1, 100));
    core_rig_finish(&r);
    core_rig_submit(&r, 1, request(2, 150, 20));
    core_rig_finish(&r);
    EXPECT(count(&r).n_parked <= 2); // until the time was known
    core_rig_submit(&r, 0, same_prompt(3, 100));
    core_rig_finish(&r);
    for (uint64_t id = 1; id <= 3; id++) EXPECT(core_rig_gives(&r, id));
    core_rig_deinit(&r);
}

static void weights_go_before_parked_blocks_and_the_oldest_of_those_go_first(void) {
    static core_rig r;
    open_two(&r, 13, 1000, 20); // room for one model and a page
    for (uint64_t id = 1; id <= 8; id++) {
        core_rig_submit(&r, id % 2, request(id, 100, 6));
        core_rig_finish(&r);
    }
    for (uint64_t id = 1; id <= 8; id++) EXPECT(core_rig_gives(&r, id));
    EXPECT_EQ(core_rig_model(&r, 0)->n_stages + core_rig_model(&r, 1)->n_stages, 2);
    EXPECT(count(&r).n_parked > 0);
    EXPECT(count(&r).blocks_parked <= 3);
    core_rig_deinit(&r);
}

static void scopes_do_not_share_what_is_parked(void) {
    static core_rig r;
    open_two(&r, 60, 1000, 20);
    gen_request *a = same_prompt(1, 100), *b = same_prompt(3, 100);
    a->cache_scope[0] = 1;
    b->cache_scope[0] = 2;
    core_rig_submit(&r, 0, a);
    core_rig_finish(&r);
    core_rig_submit(&r, 1, request(2, 150, 20));
    core_rig_finish(&r);
    EXPECT(count(&r).n_parked >= 12);
    core_rig_submit(&r, 0, b);
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 3));
    EXPECT_EQ(r.outcomes[3].done.done.n_cached, 0);
    core_rig_deinit(&r);
}

static void others_go_on_while_much_comes_back(void) {
    static core_rig r;
    model_policy p = plain_policy();
    core_rig_init(&r, 80, 120, 4);
    r.device.a_us = 1000;
    r.device.b_us = 300;
    r.device.move_us = 100;
    core_rig_open(&r, false);
    for (uint32_t i = 0; i < 2; i++) core_rig_attach(&r, i, &p);
    core_rig_submit(&r, 0, same_prompt(1, 400));
    core_rig_finish(&r);
    core_rig_submit(&r, 1, request(2, 450, 20));
    core_rig_submit(&r, 1, request(3, 440, 20));
    core_rig_finish(&r);
    EXPECT(count(&r).n_parked >= 60);
    core_rig_submit(&r, 0, request(4, 4, 100)); // decodes meanwhile
    core_rig_run(&r, 20000);
    uint64_t longest_us = 0, last_us = core_rig_now(&r);
    uint32_t n_last = r.outcomes[4].n_tokens;
    core_rig_submit(&r, 0, same_prompt(5, 400));
    while (r.outcomes[5].n_tokens == 0) {
        core_rig_turn(&r, 100);
        if (r.outcomes[4].n_tokens == n_last) continue;
        n_last = r.outcomes[4].n_tokens;
        uint64_t us = core_rig_now(&r) - last_us;
        if (us > longest_us) longest_us = us;
        last_us = core_rig_now(&r);
    }
    EXPECT(r.outcomes[5].done.done.n_cached == 0); // not over yet
    EXPECT(longest_us < 10000);                    // 60 blocks of 200 us would be 12 ms at once
    core_rig_finish(&r);
    EXPECT(r.outcomes[5].done.done.n_cached >= 240);
    for (uint64_t id = 1; id <= 5; id++) EXPECT(core_rig_gives(&r, id));
    core_rig_deinit(&r);
}

static const test_case cases[] = {
    TEST(a_prompt_is_found_again_after_its_model_was_away),
    TEST(a_preempted_sequence_goes_on_without_computing_again),
    TEST(copying_is_not_done_where_computing_is_as_fast),
    TEST(weights_go_before_parked_blocks_and_the_oldest_of_those_go_first),
    TEST(scopes_do_not_share_what_is_parked),
    TEST(others_go_on_while_much_comes_back),
};
TEST_MAIN(cases)
