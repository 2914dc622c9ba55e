/* test_memory_shares.c - guarantees and ceilings of memory, for models and for tenants. */
#include "core_rig.h"

enum { PAGE_MIB = 2, BLOCK_TOKENS = 4, BLOCKS_PER_PAGE = 3 };
static const uint64_t block_bytes = 700000; // a third of a page, about

static void set_tenant(core_rig *r, uint32_t idx, uint64_t min_bytes, uint64_t max_bytes) {
    inferd_err err = {0};
    tenant_policy p = {.weight = 1, .min_bytes = min_bytes, .max_bytes = max_bytes};
    EXPECT_EQ(sched_set_tenant(r->core.sched, idx, &p, core_rig_now(r), &err), INFERD_OK);
}

static void open_rig(core_rig *r, uint32_t n_pages, uint32_t n_models) {
    model_policy p = plain_policy();
    core_rig_init(r, n_pages, 0, 2);
    r->device.kv.slot_bytes = block_bytes / 2; // two groups
    core_rig_open(r, true);
    for (uint32_t i = 0; i < n_models; i++) core_rig_attach(r, i, &p);
    core_rig_run(r, 30000);
}

static gen_request *request_of(uint64_t id, uint32_t tenant, uint32_t n_prompt, uint32_t n_out) {
    gen_request *q = request(id, n_prompt, n_out);
    q->tenant_idx = tenant;
    q->cache_scope[0] = tenant;
    return q;
}

static uint64_t used(core_rig *r, uint32_t tenant) {
    return r->core.sched->tenants[tenant].used_bytes;
}

/* Until nobody runs; the most that the tenant had. */
static uint64_t finish_and_watch(core_rig *r, uint32_t tenant) {
    uint64_t most = 0;
    for (int i = 0; i < 20000 && core_rig_n_alive(r) > 0; i++) {
        core_rig_iterate(r, 1000);
        if (used(r, tenant) > most) most = used(r, tenant);
    }
    EXPECT_EQ(core_rig_n_alive(r), 0);
    EXPECT_EQ(used(r, tenant), 0);
    return most;
}

static void a_tenants_ceiling_is_never_passed_and_all_its_work_is_done(void) {
    static core_rig r;
    open_rig(&r, 100, 2);
    set_tenant(&r, 1, 0, 20 * block_bytes);
    for (uint64_t id = 1; id <= 12; id++)
        core_rig_submit(&r, id % 2, request_of(id, 1, 10 + id % 5 * 4, 30));
    uint64_t most = finish_and_watch(&r, 1);
    EXPECT(most <= 20 * block_bytes && most >= 12 * block_bytes); // what may be needed is reserved
    for (uint64_t id = 1; id <= 12; id++) EXPECT(core_rig_gives(&r, id));
    core_rig_deinit(&r);
}

/* Each is told once however often it changed, with what it has then. */
static void whose_use_changed_is_told_once(void) {
    static core_rig r;
    sched_tenant_use use = {0};
    open_rig(&r, 100, 1);
    set_tenant(&r, 1, 0, 0);
    set_tenant(&r, 2, 0, 0);
    EXPECT_EQ(sched_next_tenant(r.core.sched, &use), SCHED_NO_TENANT);
    core_rig_submit(&r, 0, request_of(1, 2, 17, 40));
    core_rig_submit(&r, 0, request_of(2, 9, 17, 40)); // nobody described this one
    EXPECT_EQ(sched_next_tenant(r.core.sched, &use), 2);
    EXPECT(use.n_bytes == 0 && use.n_running == 0 && use.n_waiting == 1);
    EXPECT_EQ(sched_next_tenant(r.core.sched, &use), SCHED_NO_TENANT);
    for (int i = 0; i < 8; i++) core_rig_iterate(&r, 1000);
    EXPECT_EQ(sched_next_tenant(r.core.sched, &use), 2);
    EXPECT(use.n_bytes >= 5 * block_bytes && use.n_bytes == used(&r, 2));
    EXPECT_EQ(use.n_running, 1);
    EXPECT_EQ(use.n_waiting, 0);
    EXPECT_EQ(sched_next_tenant(r.core.sched, &use), SCHED_NO_TENANT);
    finish_and_watch(&r, 2);
    EXPECT_EQ(sched_next_tenant(r.core.sched, &use), 2);
    EXPECT_EQ(use.n_bytes, 0);
    EXPECT_EQ(use.n_running, 0);
    EXPECT_EQ(sched_next_tenant(r.core.sched, &use), SCHED_NO_TENANT);
    core_rig_deinit(&r);
}

static void what_would_never_fit_a_tenant_is_refused_with_the_number(void) {
    static core_rig r;
    open_rig(&r, 100, 1);
    set_tenant(&r, 1, 0, 10 * block_bytes);
    core_rig_submit(&r, 0, request_of(1, 1, 20, 30)); // 13 blocks
    core_rig_submit(&r, 0, request_of(2, 1, 20, 20)); // 10 blocks
    core_rig_finish(&r);
    EXPECT_EQ(r.outcomes[1].done.done.status, INFERD_EQUOTA);
    EXPECT_STR(r.outcomes[1].done.done.text,
               "the request needs 8887 KiB for keys and values, the tenant may have 6835");
    EXPECT(core_rig_gives(&r, 2));
    core_rig_deinit(&r);
}

static void lowering_a_ceiling_pushes_out_the_newest_and_loses_nothing(void) {
    static core_rig r;
    open_rig(&r, 100, 1);
    set_tenant(&r, 1, 0, 0);
    for (uint64_t id = 1; id <= 4; id++) core_rig_submit(&r, 0, request_of(id, 1, 20, 60));
    core_rig_run(&r, 20000);
    EXPECT(used(&r, 1) >= 20 * block_bytes);
    set_tenant(&r, 1, 0, 21 * block_bytes); // one of them at its end
    core_rig_finish(&r);
    for (uint64_t id = 1; id <= 4; id++) EXPECT(core_rig_gives(&r, id));
    EXPECT_EQ(r.outcomes[1].done.done.n_preempted, 0);
    EXPECT(r.outcomes[4].done.done.n_preempted + r.outcomes[3].done.done.n_preempted > 0);
    core_rig_deinit(&r);
}

/* It waits with nothing, so that on another device there is more; two that wait for each other with
 * half of what they need would wait for ever. */
static void what_another_device_needs_is_given_back_at_once(void) {
    static core_rig r;
    inferd_err err = {0};
    tenant_policy p = {.weight = 1, .max_bytes = 40 * block_bytes};
    open_rig(&r, 100, 1);
    set_tenant(&r, 1, 0, p.max_bytes);
    for (uint64_t id = 1; id <= 2; id++) core_rig_submit(&r, 0, request_of(id, 1, 20, 30));
    core_rig_run(&r, 5000);
    uint64_t had = used(&r, 1);
    EXPECT(had >= 10 * block_bytes);
    p.here_bytes = had - 1;
    EXPECT_EQ(sched_set_tenant(r.core.sched, 1, &p, core_rig_now(&r), &err), INFERD_OK);
    EXPECT(used(&r, 1) <= had / 2 + block_bytes); // the newest
    p.here_bytes = 1;
    EXPECT_EQ(sched_set_tenant(r.core.sched, 1, &p, core_rig_now(&r), &err), INFERD_OK);
    EXPECT_EQ(used(&r, 1), 0);
    core_rig_run(&r, 20000);
    EXPECT_EQ(used(&r, 1), 0);
    EXPECT_EQ(core_rig_n_alive(&r), 2); // the whole is what they have to fit, so none ended
    p.here_bytes = 0;
    EXPECT_EQ(sched_set_tenant(r.core.sched, 1, &p, core_rig_now(&r), &err), INFERD_OK);
    core_rig_finish(&r);
    for (uint64_t id = 1; id <= 2; id++) EXPECT(core_rig_gives(&r, id));
    core_rig_deinit(&r);
}

static void a_tenants_guarantee_is_taken_back_from_borrowers(void) {
    static core_rig r;
    open_rig(&r, 40, 1); // 38 pages beside the weights
    set_tenant(&r, 1, 24 * block_bytes, 0);
    set_tenant(&r, 2, 0, 0);
    for (uint64_t id = 1; id <= 6; id++) { // more than there is, and more urgent
        gen_request *q = request_of(id, 2, 60, 60);
        q->prio = GEN_SYSTEM;
        core_rig_submit(&r, 0, q);
    }
    core_rig_run(&r, 40000);
    gen_request *mine = request_of(10, 1, 60, 30); // 23 blocks
    mine->prio = GEN_BATCH;
    uint64_t from_us = core_rig_now(&r);
    core_rig_submit(&r, 0, mine);
    for (int i = 0; i < 2000 && r.outcomes[10].n_tokens == 0; i++) core_rig_iterate(&r, 1000);
    EXPECT(used(&r, 1) >= 15 * block_bytes);
    EXPECT(core_rig_now(&r) - from_us < 2500000);
    core_rig_finish(&r);
    for (uint64_t id = 1; id <= 6; id++) EXPECT(core_rig_gives(&r, id));
    EXPECT(core_rig_gives(&r, 10));
    EXPECT_EQ(r.outcomes[10].done.done.n_preempted, 0);
    core_rig_deinit(&r);
}

/* They grow to 21 blocks each, and no more: the older one may take nothing of a tenant within its
 * guarantee, and the newer one nothing of an older equal.  Both once waited for ever. */
static void a_sequence_that_fills_its_guarantee_goes_on_beside_an_older_one(void) {
    static core_rig r;
    model_policy p = plain_policy();
    open_rig(&r, 24, 1);
    p.min_bytes = (uint64_t)8 * PAGE_MIB << 20;
    core_rig_attach(&r, 1, &p); // 42 blocks are left beside the weights
    set_tenant(&r, 1, 21 * block_bytes, 0);
    set_tenant(&r, 2, 0, 0);
    core_rig_submit(&r, 0, request_of(1, 2, 8, 150)); // 40 blocks
    core_rig_submit(&r, 0, request_of(2, 1, 8, 150));
    core_rig_finish(&r);
    for (uint64_t id = 1; id <= 2; id++) EXPECT(core_rig_gives(&r, id));
    EXPECT_EQ(r.outcomes[1].done.done.n_preempted, 1);
    EXPECT_EQ(r.outcomes[2].done.done.n_preempted, 0);
    core_rig_deinit(&r);
}

/* The newer one has four times the weight.  When no page is left it may take none of the older one,
 * which once waited for it to catch up. */
static void a_sequence_without_pages_is_not_waited_for_by_its_weight(void) {
    for (uint32_t k = 0; k < 4; k++) { // how far the older one is from its next block then
        static core_rig r;
        inferd_err err = {0};
        open_rig(&r, 16, 1);
        for (uint32_t t = 1; t <= 2; t++) {
            tenant_policy p = {.weight = t == 1 ? 4 : 1};
            EXPECT_EQ(sched_set_tenant(r.core.sched, t, &p, core_rig_now(&r), &err), INFERD_OK);
        }
        core_rig_submit(&r, 0, request_of(1, 2, 8 + k, 150)); // 40 blocks of 42
        core_rig_submit(&r, 0, request_of(2, 1, 8, 150));
        core_rig_finish(&r);
        for (uint64_t id = 1; id <= 2; id++) EXPECT(core_rig_gives(&r, id));
        EXPECT_EQ(r.outcomes[1].done.done.n_preempted, 0);
        core_rig_deinit(&r);
    }
}

static void a_tenant_at_its_ceiling_blocks_no_other(void) {
    static core_rig r;
    open_rig(&r, 100, 1);
    set_tenant(&r, 1, 0, 20 * block_bytes);
    set_tenant(&r, 2, 0, 0);
    for (uint64_t id = 1; id <= 3; id++) { // 19 blocks each
        gen_request *q = request_of(id, 1, 40, 36);
        q->prio = GEN_HIGH;
        core_rig_submit(&r, 0, q);
    }
    for (int i = 0; i < 4; i++) core_rig_iterate(&r, 1000);
    core_rig_submit(&r, 0, request_of(9, 2, 8, 4));
    for (int i = 0; i < 12; i++) core_rig_iterate(&r, 1000);
    EXPECT_EQ(r.outcomes[9].n_done, 1);
    EXPECT(r.outcomes[1].n_done == 0 && r.outcomes[2].n_tokens == 0);
    core_rig_finish(&r);
    for (uint64_t id = 1; id <= 3; id++) EXPECT(core_rig_gives(&r, id));
    core_rig_deinit(&r);
}

/* What is less urgent of the same tenant gives its blocks. */
static void an_urgent_one_goes_first_at_its_tenants_ceiling(void) {
    static core_rig r;
    open_rig(&r, 100, 2);
    set_tenant(&r, 1, 0, 20 * block_bytes);
    gen_request *slow = request_of(1, 1, 30, 46),
                *urgent = request_of(2, 1, 30, 10); // 19, 10 blocks
    slow->prio = GEN_BATCH;
    urgent->prio = GEN_HIGH;
    core_rig_submit(&r, 0, slow);
    for (int i = 0; i < 30; i++) core_rig_iterate(&r, 1000);
    EXPECT(used(&r, 1) > 11 * block_bytes);
    core_rig_submit(&r, 1, urgent);
    for (int i = 0; i < 6; i++) core_rig_iterate(&r, 1000);
    EXPECT(r.outcomes[2].n_tokens > 0 && r.outcomes[1].n_done == 0);
    EXPECT(finish_and_watch(&r, 1) <= 20 * block_bytes);
    for (uint64_t id = 1; id <= 2; id++) EXPECT(core_rig_gives(&r, id));
    EXPECT_EQ(r.outcomes[2].done.done.n_preempted, 0);
    core_rig_deinit(&r);
}

/* They fit what was guaranteed to them together: those who have more than that give, whoever came
 * last. */
static void the_guaranteed_do_not_take_it_from_each_other(void) {
    for (int late = 0; late <= 1; late++) {
        static core_rig r;
        open_rig(&r, 40, 1);
        set_tenant(&r, 1, 60 * block_bytes, 0);
        set_tenant(&r, 2, 0, 0);
        for (uint64_t id = 1; id <= 8 && late == 1; id++)
            core_rig_submit(&r, 0, request_of(id, 2, 30, 60));
        if (late == 1) core_rig_run(&r, 20000);
        for (uint64_t id = 11; id <= 14; id++) // 15 blocks each
            core_rig_submit(&r, 0, request_of(id, 1, 20, 40));
        for (uint64_t id = 1; id <= 8 && late == 0; id++)
            core_rig_submit(&r, 0, request_of(id, 2, 30, 60));
        core_rig_finish(&r);
        for (uint64_t id = 1; id <= 8; id++) EXPECT(core_rig_gives(&r, id));
        for (uint64_t id = 11; id <= 14; id++) {
            EXPECT(core_rig_gives(&r, id));
            EXPECT_EQ(r.outcomes[id].done.done.n_preempted, 0);
        }
        core_rig_deinit(&r);
    }
}

/* All of it is in use, by two that both need more: the owner's guarantee is no reason to wait. */
static void a_guarantee_does_not_part_those_who_share_it(void) {
    for (int of_tenant = 0; of_tenant <= 1; of_tenant++) {
        static core_rig r;
        model_policy p = plain_policy();
        inferd_err err = {0};
        open_rig(&r, 14, 1); // two of weights, and 36 blocks
        p.min_bytes = of_tenant ? 0 : 14ull * PAGE_MIB << 20;
        EXPECT_EQ(residency_set_policy(&r.core.models, 0, &p, core_rig_now(&r), &err), INFERD_OK);
        set_tenant(&r, 1, of_tenant ? 36 * block_bytes : 0, 0);
        for (uint64_t id = 1; id <= 2; id++) core_rig_submit(&r, 0, request_of(id, 1, 8, 100));
        core_rig_finish(&r);
        for (uint64_t id = 1; id <= 2; id++) EXPECT(core_rig_gives(&r, id));
        EXPECT_EQ(r.outcomes[1].done.done.n_preempted, 0);
        EXPECT(r.outcomes[2].done.done.n_preempted > 0);
        core_rig_deinit(&r);
    }
}

/* The pages that are kept free for it are of no use to who waits before it. */
static void work_within_its_guarantee_does_not_wait_for_others(void) {
    static core_rig r;
    open_rig(&r, 40, 1);
    set_tenant(&r, 1, 12 * block_bytes, 0);
    set_tenant(&r, 2, 0, 0);
    for (uint64_t id = 1; id <= 6; id++) {
        gen_request *q = request_of(id, 2, 60, 60);
        q->prio = GEN_HIGH;
        core_rig_submit(&r, 0, q);
    }
    for (int i = 0; i < 10; i++) core_rig_iterate(&r, 1000);
    EXPECT(r.core.sched->n_waiting > 0);
    core_rig_submit(&r, 0, request_of(9, 1, 8, 4));
    for (int i = 0; i < 12; i++) core_rig_iterate(&r, 1000);
    EXPECT(r.outcomes[9].n_done == 1 && r.core.sched->n_waiting > 0);
    core_rig_finish(&r);
    for (uint64_t id = 1; id <= 6; id++) EXPECT(core_rig_gives(&r, id));
    core_rig_deinit(&r);
}

/* Its model is not brought for it, and nobody goes. */
static void paused_work_wants_no_model(void) {
    static core_rig r;
    inferd_err err = {0};
    sched_demand d[2];
    tenant_policy paused = {.weight = 0}, plain = {.weight = 1};
    open_rig(&r, 100, 2);
    EXPECT_EQ(sched_set_tenant(r.core.sched, 1, &paused, core_rig_now(&r), &err), INFERD_OK);
    core_rig_submit(&r, 0, request_of(1, 1, 8, 4));
    core_rig_iterate(&r, 1000);
    sched_demands(r.core.sched, core_rig_now(&r), d);
    EXPECT_EQ(d[0].n_waiting + d[0].n_running, 0);
    EXPECT_EQ(sched_set_tenant(r.core.sched, 1, &plain, core_rig_now(&r), &err), INFERD_OK);
    sched_demands(r.core.sched, core_rig_now(&r), d);
    EXPECT_EQ(d[0].n_waiting + d[0].n_running, 1);
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 1));
    core_rig_deinit(&r);
}

static void a_models_ceiling_is_its_own_affair(void) {
    static core_rig r;
    model_policy p = plain_policy();
    open_rig(&r, 100, 2);
    inferd_err err = {0};
    p.max_bytes = 12ull * PAGE_MIB << 20; // two of weights, 30 blocks
    EXPECT_EQ(residency_set_policy(&r.core.models, 0, &p, core_rig_now(&r), &err), INFERD_OK);
    for (uint64_t id = 1; id <= 5; id++) core_rig_submit(&r, 0, request_of(id, 1, 30, 60));
    for (uint64_t id = 6; id <= 8; id++) core_rig_submit(&r, 1, request_of(id, 1, 30, 60));
    uint32_t most = 0;
    const pool_owner *o = &r.core.pool.owners[0];
    for (int i = 0; i < 20000 && core_rig_n_alive(&r) > 0; i++) {
        core_rig_iterate(&r, 1000);
        most = u32_max(most, pool_held(o));
    }
    EXPECT(most <= 12 && most >= 11);
    for (uint64_t id = 1; id <= 8; id++) EXPECT(core_rig_gives(&r, id));
    for (uint64_t id = 6; id <= 8; id++) EXPECT_EQ(r.outcomes[id].done.done.n_preempted, 0);
    core_rig_deinit(&r);
}

static void a_models_guarantee_is_honoured_within_one_reclaim(void) {
    static core_rig r;
    model_policy p = plain_policy();
    inferd_err err = {0};
    open_rig(&r, 40, 2);
    for (uint64_t id = 1; id <= 4; id++) { // the other fills the pool
        gen_request *q = request_of(id, 1, 100, 40);
        q->prio = GEN_HIGH;
        core_rig_submit(&r, 0, q);
    }
    core_rig_run(&r, 60000);
    p.min_bytes = 14ull * PAGE_MIB << 20;
    EXPECT_EQ(residency_set_policy(&r.core.models, 1, &p, core_rig_now(&r), &err), INFERD_OK);
    gen_request *q = request_of(9, 2, 100, 20); // 30 blocks: ten pages
    q->prio = GEN_BATCH;
    core_rig_submit(&r, 1, q);
    for (int i = 0; i < 300 && r.outcomes[9].n_tokens == 0; i++) core_rig_iterate(&r, 1000);
    EXPECT(r.outcomes[9].n_tokens > 0 || r.outcomes[9].n_done > 0);
    core_rig_finish(&r);
    for (uint64_t id = 1; id <= 4; id++) EXPECT(core_rig_gives(&r, id));
    EXPECT(core_rig_gives(&r, 9));
    core_rig_deinit(&r);
}

/* Room for the weights of model 0: its own work stays, and what is within a guarantee of a model or
 * of a tenant, though all of these deserve less than the work that was lent pages. */
static void only_what_was_lent_is_taken_back(void) {
    enum { OWN = 1, LENT = 2, LENT_TOO = 3, OF_MODEL = 4, OF_TENANT = 5 };
    static const struct {
        uint64_t id;
        uint32_t model_idx, tenant;
        gen_class prio;
    } all[] = {{OF_MODEL, 2, 2, GEN_BATCH},
               {OF_TENANT, 1, 1, GEN_BATCH},
               {OWN, 0, 2, GEN_BATCH},
               {LENT, 1, 2, GEN_HIGH},
               {LENT_TOO, 1, 2, GEN_HIGH}};
    for (int wants_all = 0; wants_all <= 1; wants_all++) {
        static core_rig r;
        model_policy p = plain_policy();
        inferd_err err = {0};
        open_rig(&r, 60, 3);
        set_tenant(&r, 1, 40 * block_bytes, 0);
        set_tenant(&r, 2, 0, 0);
        p.min_bytes = 20ull * PAGE_MIB << 20;
        EXPECT_EQ(residency_set_policy(&r.core.models, 2, &p, core_rig_now(&r), &err), INFERD_OK);
        for (size_t i = 0; i < INFERD_COUNT(all); i++) {
            gen_request *q = request_of(all[i].id, all[i].tenant, 20, 60);
            q->prio = all[i].prio;
            core_rig_submit(&r, all[i].model_idx, q);
            for (int k = 0; k < 100 && r.outcomes[all[i].id].n_tokens == 0; k++)
                core_rig_iterate(&r, 1000);
        }
        sched_counters n;
        sched_count(r.core.sched, &n);
        EXPECT_EQ(n.n_running, 5);
        /* All of the lent ones' pages, or more than they have. */
        uint32_t wanted = wants_all ? 60 : 0;
        while (wants_all == 0 && sched_take_back(r.core.sched, 0, wanted) &&
               (sched_count(r.core.sched, &n), n.n_running == 5))
            wanted++;
        if (wants_all) EXPECT(!sched_take_back(r.core.sched, 0, wanted));
        sched_count(r.core.sched, &n);
        EXPECT_EQ(n.n_running, wants_all ? 3 : 4);
        core_rig_finish(&r);
        for (uint64_t id = OWN; id <= OF_TENANT; id++) EXPECT(core_rig_gives(&r, id));
        EXPECT(r.outcomes[LENT].done.done.n_preempted + r.outcomes[LENT_TOO].done.done.n_preempted >
               0);
        EXPECT_EQ(r.outcomes[OWN].done.done.n_preempted, 0);
        EXPECT_EQ(r.outcomes[OF_MODEL].done.done.n_preempted, 0);
        EXPECT_EQ(r.outcomes[OF_TENANT].done.done.n_preempted, 0);
        core_rig_deinit(&r);
    }
}

/* The last page above a guarantee is lent like all others; at the guarantee nothing is. */
static void a_single_lent_page_is_taken_back(void) {
    for (uint32_t above = 0; above <= 1; above++) {
        static core_rig r;
        model_policy p = plain_policy();
        inferd_err err = {0};
        open_rig(&r, 60, 2);
        core_rig_submit(&r, 1, request_of(1, 0, 20, 60));
        for (int k = 0; k < 100 && r.outcomes[1].n_tokens == 0; k++) core_rig_iterate(&r, 1000);
        const pool_owner *o = &r.core.pool.owners[1];
        p.min_bytes = (uint64_t)(pool_held(o) - above) * PAGE_MIB << 20;
        EXPECT_EQ(residency_set_policy(&r.core.models, 1, &p, core_rig_now(&r), &err), INFERD_OK);
        EXPECT_EQ(pool_held(o), o->min + above);
        EXPECT(!sched_take_back(r.core.sched, 0, 60));
        sched_counters n;
        sched_count(r.core.sched, &n);
        EXPECT_EQ(n.n_running, 1 - above);
        core_rig_finish(&r);
        EXPECT(core_rig_gives(&r, 1));
        core_rig_deinit(&r);
    }
}

static const test_case cases[] = {
    TEST(a_tenants_ceiling_is_never_passed_and_all_its_work_is_done),
    TEST(whose_use_changed_is_told_once),
    TEST(what_would_never_fit_a_tenant_is_refused_with_the_number),
    TEST(lowering_a_ceiling_pushes_out_the_newest_and_loses_nothing),
    TEST(what_another_device_needs_is_given_back_at_once),
    TEST(a_tenants_guarantee_is_taken_back_from_borrowers),
    TEST(a_sequence_that_fills_its_guarantee_goes_on_beside_an_older_one),
    TEST(a_sequence_without_pages_is_not_waited_for_by_its_weight),
    TEST(a_tenant_at_its_ceiling_blocks_no_other),
    TEST(an_urgent_one_goes_first_at_its_tenants_ceiling),
    TEST(the_guaranteed_do_not_take_it_from_each_other),
    TEST(a_guarantee_does_not_part_those_who_share_it),
    TEST(work_within_its_guarantee_does_not_wait_for_others),
    TEST(paused_work_wants_no_model),
    TEST(a_models_ceiling_is_its_own_affair),
    TEST(a_models_guarantee_is_honoured_within_one_reclaim),
    TEST(only_what_was_lent_is_taken_back),
    TEST(a_single_lent_page_is_taken_back),
};
TEST_MAIN(cases)
