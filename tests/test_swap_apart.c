/* test_swap_apart.c - keys and values parked in host memory that is no memory of the device: pages
 * of a pool of their own, which count by whole extents beside the weights that are kept there. */
#include "swap_rig.h"

/* Two models of which one fits beside its keys and values; steps are slow, so copying pays. */
static void open_two(core_rig *r, uint32_t n_host, uint32_t extent_pages) {
    model_policy p = plain_policy();
    core_rig_init(r, 30, n_host, 12);
    r->device.apart = true;
    r->device.swap_extent_pages = extent_pages;
    r->device.depth = 2;
    r->device.a_us = 1000;
    r->device.b_us = 300;
    r->device.move_us = 20;
    core_rig_open(r, false);
    for (uint32_t i = 0; i < 2; i++) core_rig_attach(r, i, &p);
}

static void a_preempted_sequence_comes_back_from_the_host(void) {
    static core_rig r;
    open_two(&r, 60, 4);
    swap_push_out(&r, 80, 1);
    EXPECT(swap_count(&r).n_swapped_in >= 80 / 4);
    EXPECT(swap_count(&r).n_recomputed_tokens <= 8); // the block that was not full
    EXPECT_EQ(r.device.n_faults, 0);
    core_rig_deinit(&r);
}

/* Of one model, for another sequence of it: what is called rung `park`. */
static void preemption_within_a_model_counts_as_swap(void) {
    static core_rig r;
    open_two(&r, 60, 4);
    swap_push_out(&r, 100, 0);
    EXPECT_EQ(r.outcomes[1].done.done.n_preempts[GEN_PREEMPT_SWAP], 1);
    EXPECT_EQ(swap_count(&r).preempts[GEN_PREEMPT_SWAP].n, 1);
    EXPECT(swap_count(&r).n_recomputed_tokens <= 8);
    core_rig_deinit(&r);
}

/* Two copies of weights and parked blocks want more than there is: blocks go, whole extents come
 * free, and no copy of weights is lost. */
static void weights_go_before_swapped_blocks(void) {
    static core_rig r;
    open_two(&r, 2 * 12 + 5, 4);
    for (uint64_t id = 1; id <= 8; id++) {
        core_rig_submit(&r, id % 2, request(id, 100, 6));
        core_rig_finish(&r);
        EXPECT(r.core.pool.n_host_apart + r.core.pool.n_swapped_apart <= 29);
    }
    for (uint64_t id = 1; id <= 8; id++) EXPECT(core_rig_gives(&r, id));
    EXPECT_EQ(core_rig_model(&r, 0)->n_stages + core_rig_model(&r, 1)->n_stages, 2);
    EXPECT(swap_count(&r).n_swapped_out > 0);
    EXPECT(swap_count(&r).blocks_swapped <= 4 * 3); // one extent of four pages
    EXPECT(r.core.pool.n_swapped_apart == 4 || r.core.pool.n_swapped_apart == 0);
    core_rig_deinit(&r);
}

static void extents_that_are_empty_are_told(void) {
    static core_rig r;
    open_two(&r, 60, 4);
    core_rig_submit(&r, 0, swap_prompt(1, 100));
    core_rig_finish(&r);
    core_rig_submit(&r, 1, request(2, 150, 20));
    core_rig_finish(&r);
    uint32_t n = r.core.pool.n_swapped_apart;
    EXPECT(n >= 4);
    EXPECT_EQ(r.device.n_emptied, 0);
    sched_drop_swapped(r.core.sched, 60 - r.core.pool.n_host_apart);
    EXPECT_EQ(r.core.pool.n_swapped_apart, 0);
    EXPECT_EQ(r.device.n_emptied, n / 4);
    core_rig_verify(&r);
    core_rig_deinit(&r);
}

/* What copies take is known from the bus where the call only queues them. */
static void the_bus_says_whether_copying_pays(void) {
    static core_rig r;
    uint32_t n_swapped_out[2];
    for (int i = 0; i < 2; i++) {
        open_two(&r, 60, 4);
        r.device.move_us = 0;
        r.core.about.bus_bytes_per_s = i == 0 ? 1000 : 1000 * 1000 * 1000; // 48 bytes: 48 ms
        for (uint32_t m = 0; m < 2; m++) r.core.models.slots[m].about.spec.kv.slot_bytes = 24;
        core_rig_submit(&r, 0, swap_prompt(1, 100));
        core_rig_finish(&r);
        core_rig_submit(&r, 1, request(2, 150, 20));
        core_rig_finish(&r);
        n_swapped_out[i] = (uint32_t)swap_count(&r).n_swapped_out;
        core_rig_deinit(&r);
    }
    EXPECT(n_swapped_out[0] <= 2); // until the time was known
    EXPECT(n_swapped_out[1] >= 12);
}

static void nothing_is_swapped_out_without_memory_for_it(void) {
    static core_rig r;
    open_two(&r, 60, 61); // less than one extent
    core_rig_submit(&r, 0, swap_prompt(1, 100));
    core_rig_finish(&r);
    core_rig_submit(&r, 1, request(2, 150, 20));
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 1) && core_rig_gives(&r, 2));
    EXPECT_EQ(swap_count(&r).n_swapped_out, 0);
    core_rig_deinit(&r);
}

static const test_case cases[] = {
    TEST(a_preempted_sequence_comes_back_from_the_host),
    TEST(preemption_within_a_model_counts_as_swap),
    TEST(weights_go_before_swapped_blocks),
    TEST(extents_that_are_empty_are_told),
    TEST(the_bus_says_whether_copying_pays),
    TEST(nothing_is_swapped_out_without_memory_for_it),
};
TEST_MAIN(cases)
