/* swap_rig.h - what tests of parked keys and values share, whichever memory they are parked in. */
#ifndef TEST_SWAP_RIG_H
#define TEST_SWAP_RIG_H

#include "core_rig.h"

static inline sched_counters swap_count(core_rig *r) {
    sched_counters c;
    sched_count(r->core.sched, &c);
    return c;
}

/* n tokens that are the same for every id. */
static inline gen_request *swap_prompt(uint64_t id, uint32_t n) {
    gen_request *q = request(id, n, 6);
    for (uint32_t i = 0; i < n; i++) q->prompt[i] = (tok_id)(i * i % FAKE_VOCAB);
    return q;
}

/* Request 1, a batch one of model 0, is in the middle of its answer when urgent request 2 of
 * another model, or the same, needs its pages.  Both end. */
static inline void swap_push_out(core_rig *r, uint32_t n_prompt, uint32_t other_idx) {
    gen_request *low = request(1, n_prompt, 60), *high = request(2, 150, 20);
    low->prio = GEN_BATCH;
    high->prio = GEN_HIGH;
    core_rig_submit(r, 0, low);
    core_rig_run(r, 60000);
    EXPECT(r->outcomes[1].n_tokens > 10 && r->outcomes[1].n_tokens < 60);
    core_rig_submit(r, other_idx, high);
    core_rig_finish(r);
    EXPECT(core_rig_gives(r, 1) && core_rig_gives(r, 2));
    EXPECT_EQ(r->outcomes[1].done.done.n_preempted, 1);
}

#endif
