/* test_residency_room.c - pages for weights that more urgent work waits for: keys and values of a
 * lower class give way before an idle model does. */
#include "core_rig.h"

enum { BATCH = 0, USED = 1, NEW = 2 }; // models of 10 pages each

static void submit(core_rig *r, uint64_t id, uint32_t idx, gen_class prio, uint32_t n_prompt,
                   uint32_t n_out) {
    gen_request *q = request(id, n_prompt, n_out);
    q->prio = prio;
    core_rig_submit(r, idx, q);
}

static model_state state_of(core_rig *r, uint32_t idx) {
    return residency_state(&r->core.models, idx);
}

static void open_rig(core_rig *r, uint32_t n_pages, bool apart, uint32_t depth) {
    model_policy p = plain_policy();
    core_rig_init(r, n_pages, 0, 10);
    r->device.apart = apart;
    r->device.depth = depth;
    core_rig_open(r, false);
    for (uint32_t i = 0; i < 3; i++) core_rig_attach(r, i, &p);
}

static void wait_for(core_rig *r, uint32_t idx) {
    for (int i = 0; i < 5000 && state_of(r, idx) != MODEL_HOT; i++) core_rig_iterate(r, 1000);
    EXPECT_EQ(state_of(r, idx), MODEL_HOT);
}

static void run_until_done(core_rig *r, uint64_t id) {
    for (int i = 0; i < 20000 && r->outcomes[id].n_done == 0; i++) core_rig_iterate(r, 1000);
    EXPECT_EQ(r->outcomes[id].n_done, 1);
}

static uint64_t n_evictions(core_rig *r, uint32_t idx) {
    uint64_t n = 0;
    for (int c = 0; c < ENGINE_EVICT_CAUSES; c++) n += core_rig_model(r, idx)->n_evictions[c];
    return n;
}

static uint32_t n_kv(const core_rig *r, uint32_t idx) {
    return r->core.pool.owners[idx].held[PAGE_KV];
}

static uint64_t n_preemptions(const core_rig *r) {
    sched_counters c;
    sched_count(r->core.sched, &c);
    return c.n_preemptions;
}

/* Model USED has had its first use and is idle; n streams of model BATCH, of 40 tokens and 100
 * more, have just begun.  12 tokens are a page: each stream has 4 pages, and 12 in the end. */
static void begin(core_rig *r, uint32_t n) {
    submit(r, 1, USED, GEN_HIGH, 10, 5);
    run_until_done(r, 1);
    for (uint64_t id = 10; id < 10 + n; id++) submit(r, id, BATCH, GEN_BATCH, 40, 100);
    for (uint64_t id = 10; id < 10 + n; id++)
        for (int i = 0; i < 1000 && r->outcomes[id].n_tokens == 0; i++) core_rig_iterate(r, 1000);
    EXPECT_EQ(state_of(r, USED), MODEL_HOT);
    EXPECT(n_kv(r, BATCH) >= 4 * n && n_preemptions(r) == 0);
}

/* The new model needs 10 pages, and 2 for its first work. */
static void ask_new(core_rig *r, gen_class prio) {
    submit(r, 2, NEW, prio, 10, 5);
    wait_for(r, NEW);
}

static void end(core_rig *r, uint32_t n) {
    core_rig_finish(r);
    EXPECT(core_rig_gives(r, 1) && core_rig_gives(r, 2));
    for (uint64_t id = 10; id < 10 + n; id++) EXPECT(core_rig_gives(r, id));
    core_rig_deinit(r);
}

/* Batch streams fill the device: the model used a moment ago was evicted, and came back and evicted
 * the other one, for each request to either. */
static void keys_and_values_of_a_lower_class_go_before_an_idle_model(void) {
    for (uint32_t depth = 1; depth <= 2; depth++)
        for (int apart = 0; apart <= 1; apart++) {
            static core_rig r;
            open_rig(&r, 40, apart, depth);
            begin(&r, 3);
            ask_new(&r, GEN_HIGH);
            EXPECT_EQ(state_of(&r, USED), MODEL_HOT);
            EXPECT_EQ(state_of(&r, BATCH), MODEL_HOT);
            EXPECT_EQ(n_evictions(&r, USED), 0);
            EXPECT(n_preemptions(&r) > 0);
            run_until_done(&r, 2);
            for (uint64_t id = 20; id < 26; id++) { // both stay while they are used
                submit(&r, id, id % 2 ? USED : NEW, GEN_HIGH, 10, 5);
                run_until_done(&r, id);
            }
            EXPECT_EQ(core_rig_model(&r, USED)->n_loads, 1);
            EXPECT_EQ(core_rig_model(&r, NEW)->n_loads, 1);
            end(&r, 3);
        }
}

/* The batch gives no more than what is missing. */
static void the_newest_sequences_give_as_much_as_is_missing(void) {
    static core_rig r;
    open_rig(&r, 40, false, 1);
    begin(&r, 3); // of 20 pages 8 or less are free
    ask_new(&r, GEN_HIGH);
    EXPECT_EQ(n_evictions(&r, USED), 0);
    for (uint64_t id = 10; id < 13; id++) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < r.core.sched->n_seqs; i++) {
            const seq *q = &r.core.sched->seqs[i];
            if (q->state != SEQ_FREE && q->req->id == id) n = q->n_preempted;
        }
        EXPECT_EQ(n > 0, id == 12);
    }
    end(&r, 3);
}

/* All of the batch would not be enough: the idle model leaves, and none of the batch for nothing.
 */
static void none_is_preempted_where_an_idle_model_is_enough_and_needed(void) {
    static core_rig r;
    open_rig(&r, 28, false, 1);
    begin(&r, 1);
    ask_new(&r, GEN_HIGH);
    EXPECT_EQ(n_evictions(&r, USED), 1);
    EXPECT_EQ(n_preemptions(&r), 0);
    end(&r, 1);
}

/* Sequences of an equal class keep what they have. */
static void keys_and_values_of_the_same_class_stay(void) {
    static core_rig r;
    open_rig(&r, 40, false, 1);
    begin(&r, 3);
    ask_new(&r, GEN_BATCH);
    EXPECT_EQ(n_evictions(&r, USED), 1);
    EXPECT_EQ(n_preemptions(&r), 0);
    end(&r, 3);
}

/* What a guarantee keeps for the batch's model is of no use to another one. */
static void keys_and_values_within_a_guarantee_stay(void) {
    static core_rig r;
    inferd_err err = {0};
    open_rig(&r, 40, false, 1);
    model_policy p = core_rig_model(&r, BATCH)->policy;
    p.min_bytes = 28 * r.core.models.page_bytes;
    EXPECT_EQ(residency_set_policy(&r.core.models, BATCH, &p, core_rig_now(&r), &err), INFERD_OK);
    begin(&r, 3);
    ask_new(&r, GEN_HIGH);
    EXPECT_EQ(n_evictions(&r, USED), 1);
    EXPECT_EQ(n_preemptions(&r), 0);
    end(&r, 3);
}

/* A model with urgent and with batch sequences keeps its weights and the urgent ones. */
static void a_model_with_urgent_work_gives_its_batch_sequences(void) {
    static core_rig r;
    open_rig(&r, 40, false, 1);
    submit(&r, 9, BATCH, GEN_HIGH, 10, 100);
    begin(&r, 2);
    ask_new(&r, GEN_HIGH);
    EXPECT_EQ(r.outcomes[9].n_done, 0);
    EXPECT_EQ(n_evictions(&r, USED) + n_evictions(&r, BATCH), 0);
    EXPECT(n_preemptions(&r) > 0);
    core_rig_finish(&r);
    EXPECT_EQ(r.outcomes[9].done.done.n_preempted, 0);
    EXPECT(core_rig_gives(&r, 9));
    end(&r, 2);
}

/* The freed pages come when a step ends.  Sequences of the batch that begin or grow meanwhile would
 * take the pages that are free already, and more of the batch would be preempted. */
static void pages_that_are_free_meanwhile_are_left_for_the_load(void) {
    static core_rig r;
    open_rig(&r, 40, false, 2);
    begin(&r, 3);
    submit(&r, 2, NEW, GEN_HIGH, 10, 5);
    for (uint64_t id = 20; id < 23; id++) submit(&r, id, BATCH, GEN_BATCH, 10, 5);
    for (int i = 0; i < 4 && state_of(&r, NEW) == MODEL_COLD; i++) core_rig_iterate(&r, 1000);
    EXPECT_EQ(state_of(&r, NEW), MODEL_STAGING); // two steps later at most
    EXPECT_EQ(n_preemptions(&r), 1);
    core_rig_finish(&r);
    for (uint64_t id = 20; id < 23; id++) EXPECT(core_rig_gives(&r, id));
    end(&r, 3);
}

static const test_case cases[] = {
    TEST(keys_and_values_of_a_lower_class_go_before_an_idle_model),
    TEST(the_newest_sequences_give_as_much_as_is_missing),
    TEST(none_is_preempted_where_an_idle_model_is_enough_and_needed),
    TEST(keys_and_values_of_the_same_class_stay),
    TEST(keys_and_values_within_a_guarantee_stay),
    TEST(a_model_with_urgent_work_gives_its_batch_sequences),
    TEST(pages_that_are_free_meanwhile_are_left_for_the_load),
};
TEST_MAIN(cases)
