/* test_shares.c - what tenants and models get of a device that always has work, by virtual time. */
#include "core_rig.h"

enum { SECOND_US = 1000000 };

static uint64_t used_us(core_rig *r, uint32_t tenant) {
    return r->core.sched->tenants[tenant].share.used_us;
}

static void set_tenant(core_rig *r, uint32_t idx, share_policy policy, uint32_t percent,
                       uint32_t part) {
    inferd_err err = {0};
    tenant_policy p = {.weight = part, .share = {policy, percent, 1}};
    EXPECT_EQ(sched_set_tenant(r->core.sched, idx, &p, core_rig_now(r), &err), INFERD_OK);
}

static void open_rig(core_rig *r, uint32_t n_models) {
    model_policy p = plain_policy();
    core_rig_init(r, 400, 0, 2);
    r->verify = false;
    r->device.context = 100000;
    core_rig_open(r, true);
    r->core.sched->limits.starvation_us = 0;
    for (uint32_t i = 0; i < n_models; i++) core_rig_attach(r, i, &p);
    core_rig_run(r, 50000);
    for (uint32_t i = 0; i < n_models; i++)
        EXPECT_EQ(residency_state(&r->core.models, i), MODEL_HOT);
}

/* Streams that always have a token to compute: short ones, one after the other. */
typedef struct load {
    uint32_t tenant, model, n_streams;
    gen_class prio;
    uint64_t ids[16];
} load;

static uint64_t next_id;

static void keep_busy(core_rig *r, load *l) {
    for (uint32_t i = 0; i < l->n_streams; i++) {
        if (l->ids[i] != 0 && r->outcomes[l->ids[i]].n_done == 0) continue;
        if (next_id + 1 >= REQUESTS_MAX) continue;
        uint32_t n_output = 60 + (uint32_t)next_id * 7 % 11; // they do not all end together
        gen_request *q = request(++next_id, 8, n_output);
        q->tenant_idx = l->tenant;
        q->prio = l->prio;
        q->no_cache = true;
        l->ids[i] = next_id;
        core_rig_submit(r, l->model, q);
    }
}

static void run_busy(core_rig *r, load *loads, uint32_t n, uint64_t us) {
    uint64_t until_us = core_rig_now(r) + us;
    while (core_rig_now(r) < until_us) {
        for (uint32_t i = 0; i < n; i++) keep_busy(r, &loads[i]);
        if (core_rig_iterate(r, 0)) continue;
        uint64_t next_us = core_next_us(&r->core), now_us = core_rig_now(r);
        if (next_us > now_us + 10000) next_us = now_us + 10000;
        r->idle_us += next_us > now_us ? next_us - now_us : 1;
    }
}

static double percent_of(uint64_t used, uint64_t us) {
    return (double)used * 100 / (double)us;
}

static void a_fixed_share_is_a_ceiling_on_an_idle_device(void) {
    static core_rig r;
    for (uint32_t percent = 5; percent <= 95; percent += 30) {
        next_id = 0;
        open_rig(&r, 1);
        set_tenant(&r, 1, SHARE_FIXED, percent, 1);
        load l[] = {{.tenant = 1, .n_streams = 4, .prio = GEN_HIGH}};
        run_busy(&r, l, 1, SECOND_US);
        uint64_t before = used_us(&r, 1);
        run_busy(&r, l, 1, 5 * SECOND_US);
        EXPECT_NEAR(percent_of(used_us(&r, 1) - before, 5 * SECOND_US), percent, 1.5);
        core_rig_finish(&r);
        core_rig_deinit(&r);
    }
}

static void guarantees_hold_whatever_the_number_of_streams(void) {
    static core_rig r;
    for (uint32_t n_models = 1; n_models <= 2; n_models++) { // in one batch, and between models
        next_id = 0;
        open_rig(&r, n_models);
        set_tenant(&r, 1, SHARE_BURST, 40, 1);
        set_tenant(&r, 2, SHARE_BURST, 60, 1);
        load l[] = {{.tenant = 1, .n_streams = 1, .prio = GEN_NORMAL},
                    {.tenant = 2, .model = n_models - 1, .n_streams = 7, .prio = GEN_NORMAL}};
        run_busy(&r, l, 2, SECOND_US);
        uint64_t a = used_us(&r, 1), b = used_us(&r, 2);
        run_busy(&r, l, 2, 5 * SECOND_US);
        EXPECT_NEAR(percent_of(used_us(&r, 1) - a, 5 * SECOND_US), 40, 1.5);
        EXPECT_NEAR(percent_of(used_us(&r, 2) - b, 5 * SECOND_US), 60, 1.5);
        core_rig_finish(&r);
        core_rig_deinit(&r);
    }
}

/* Its share in any case, and its part by weight of what is left: 45 % and half of 55 %, or a
 * quarter. */
static void a_burst_share_has_its_part_of_what_is_left(void) {
    static core_rig r;
    static const struct {
        uint32_t n_models, other_weight;
        double wanted;
    } rows[] = {{1, 1, 45 + 55 / 2.0}, {2, 1, 45 + 55 / 2.0}, {2, 3, 45 + 55 / 4.0}};
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        next_id = 0;
        open_rig(&r, rows[i].n_models);
        set_tenant(&r, 1, SHARE_BURST, 45, 1);
        set_tenant(&r, 2, SHARE_BESTEFFORT, 0, rows[i].other_weight);
        load l[] = {
            {.tenant = 1, .n_streams = 4, .prio = GEN_NORMAL},
            {.tenant = 2, .model = rows[i].n_models - 1, .n_streams = 4, .prio = GEN_NORMAL}};
        run_busy(&r, l, 2, SECOND_US);
        uint64_t a = used_us(&r, 1), b = used_us(&r, 2);
        run_busy(&r, l, 2, 5 * SECOND_US);
        EXPECT_NEAR(percent_of(used_us(&r, 1) - a, 5 * SECOND_US), rows[i].wanted, 1.5);
        EXPECT_NEAR(percent_of(used_us(&r, 2) - b, 5 * SECOND_US), 100 - rows[i].wanted, 1.5);
        core_rig_finish(&r);
        core_rig_deinit(&r);
    }
}

/* What a fixed share left to others is no credit when it becomes a burst share. */
static void time_within_a_share_is_no_credit(void) {
    static core_rig r;
    next_id = 0;
    open_rig(&r, 2);
    set_tenant(&r, 1, SHARE_FIXED, 50, 1);
    set_tenant(&r, 2, SHARE_BESTEFFORT, 0, 1);
    load l[] = {{.tenant = 1, .n_streams = 4, .prio = GEN_NORMAL},
                {.tenant = 2, .model = 1, .n_streams = 4, .prio = GEN_NORMAL}};
    run_busy(&r, l, 2, 3 * SECOND_US);
    set_tenant(&r, 1, SHARE_BURST, 10, 1);
    uint64_t b = used_us(&r, 2);
    run_busy(&r, l, 2, 2 * SECOND_US);
    EXPECT_NEAR(percent_of(used_us(&r, 2) - b, 2 * SECOND_US), 45, 3);
    core_rig_finish(&r);
    core_rig_deinit(&r);
}

static uint32_t n_running_of(const core_rig *r, uint32_t tenant) {
    uint32_t n = 0;
    LIST_EACH(node, &r->core.sched->running) {
        n += LIST_ENTRY(node, seq, link)->req->tenant_idx == tenant;
    }
    return n;
}

/* Others have all places of the batch, for long: half of the time is worth nothing without any. */
static void a_share_has_its_part_of_the_batch(void) {
    static core_rig r;
    for (gen_class prio = GEN_HIGH; prio <= GEN_BATCH; prio++) { // of the others
        open_rig(&r, 1);
        set_tenant(&r, 1, SHARE_BESTEFFORT, 0, 1);
        set_tenant(&r, 2, SHARE_FIXED, 50, 1);
        for (uint64_t id = 1; id <= 18; id++) {
            gen_request *q = request(id, 8, id <= 12 ? 300 : 40);
            q->tenant_idx = id <= 12 ? 1 : 2;
            q->prio = id <= 12 ? prio : GEN_NORMAL;
            if (id == 13) {
                core_rig_run(&r, 50000);
                EXPECT_EQ(n_running_of(&r, 1), 8);
            }
            core_rig_submit(&r, 0, q);
        }
        uint64_t from_us = core_rig_now(&r);
        while (r.outcomes[13].n_tokens == 0) core_rig_iterate(&r, 1000);
        EXPECT(core_rig_now(&r) - from_us < 20000);
        while (r.outcomes[18].n_done == 0) core_rig_iterate(&r, 1000);
        uint32_t n_preempted = 0;
        core_rig_finish(&r);
        for (uint64_t id = 1; id <= 12; id++) n_preempted += r.outcomes[id].done.done.n_preempted;
        EXPECT_EQ(n_preempted, 0); // a step is of one tier, so each has a whole batch
        for (uint64_t id = 1; id <= 18; id++) EXPECT(core_rig_gives(&r, id));
        core_rig_deinit(&r);
    }
}

/* However much it has had before. */
static void the_fullest_bucket_goes_first(void) {
    static core_rig r;
    next_id = 0;
    open_rig(&r, 2);
    load l[] = {{.tenant = 1, .model = 0, .n_streams = 1, .prio = GEN_NORMAL},
                {.tenant = 2, .model = 1, .n_streams = 1, .prio = GEN_NORMAL}};
    set_tenant(&r, 1, SHARE_BURST, 60, 1);
    set_tenant(&r, 2, SHARE_BURST, 30, 1);
    for (int i = 0; i < 20; i++) {
        run_busy(&r, l, 2, 20000);
        for (int k = 0; k < 2; k++) keep_busy(&r, &l[k]);
        uint32_t first = i % 2;
        share_bucket *full = &r.core.sched->tenants[1 + first].share,
                     *other = &r.core.sched->tenants[2 - first].share;
        full->level = 20000 * 100;
        other->level = 2000 * 100;
        uint64_t full_us = full->used_us, other_us = other->used_us;
        core_rig_iterate(&r, 0);
        EXPECT(full->used_us > full_us);
        EXPECT_EQ(other->used_us, other_us);
    }
    core_rig_finish(&r);
    core_rig_deinit(&r);
}

static void a_guarantee_goes_before_a_more_urgent_class(void) {
    static core_rig r;
    next_id = 0;
    open_rig(&r, 2);
    set_tenant(&r, 1, SHARE_BURST, 30, 1);
    load l[] = {{.tenant = 1, .n_streams = 2, .prio = GEN_BATCH},
                {.tenant = 2, .model = 1, .n_streams = 4, .prio = GEN_SYSTEM}};
    run_busy(&r, l, 2, SECOND_US);
    uint64_t a = used_us(&r, 1);
    run_busy(&r, l, 2, 5 * SECOND_US);
    EXPECT_NEAR(percent_of(used_us(&r, 1) - a, 5 * SECOND_US), 30, 1.5);
    core_rig_finish(&r);
    core_rig_deinit(&r);
}

static void what_an_idle_tenant_leaves_is_used_by_others_at_once(void) {
    static core_rig r;
    next_id = 0;
    open_rig(&r, 1);
    set_tenant(&r, 1, SHARE_BURST, 80, 1);
    set_tenant(&r, 2, SHARE_BURST, 20, 1);
    load l[] = {{.tenant = 2, .n_streams = 4, .prio = GEN_NORMAL},
                {.tenant = 1, .n_streams = 4, .prio = GEN_NORMAL}};
    run_busy(&r, l, 1, SECOND_US);
    uint64_t b = used_us(&r, 2);
    run_busy(&r, l, 1, 2 * SECOND_US);
    EXPECT(percent_of(used_us(&r, 2) - b, 2 * SECOND_US) > 98);
    run_busy(&r, l, 2, SECOND_US / 5); // the other is back
    b = used_us(&r, 2);
    run_busy(&r, l, 2, 2 * SECOND_US);
    EXPECT_NEAR(percent_of(used_us(&r, 2) - b, 2 * SECOND_US), 20, 4);
    core_rig_finish(&r);
    core_rig_deinit(&r);
}

/* Weights divide the time of a model's steps also when all sequences fit into its batch. */
static void weights_divide_the_steps_of_one_model(void) {
    static core_rig r;
    next_id = 0;
    open_rig(&r, 1);
    set_tenant(&r, 1, SHARE_BESTEFFORT, 0, 1);
    set_tenant(&r, 2, SHARE_BESTEFFORT, 0, 3);
    load l[] = {{.tenant = 1, .n_streams = 3, .prio = GEN_NORMAL},
                {.tenant = 2, .n_streams = 3, .prio = GEN_NORMAL}};
    run_busy(&r, l, 2, SECOND_US);
    uint64_t a = used_us(&r, 1), b = used_us(&r, 2);
    run_busy(&r, l, 2, 5 * SECOND_US);
    EXPECT_NEAR(percent_of(used_us(&r, 1) - a, 5 * SECOND_US), 25, 2);
    EXPECT_NEAR(percent_of(used_us(&r, 2) - b, 5 * SECOND_US), 75, 2);
    set_tenant(&r, 2, SHARE_BESTEFFORT, 0, 1); // equal again: no sequence waits for another
    run_busy(&r, l, 2, SECOND_US);
    a = used_us(&r, 1);
    run_busy(&r, l, 2, 2 * SECOND_US);
    EXPECT_NEAR(percent_of(used_us(&r, 1) - a, 2 * SECOND_US), 50, 2);
    core_rig_finish(&r);
    core_rig_deinit(&r);
}

/* Shares of all of the device, busy with batch work, and urgent requests of a tenant without one:
 * at once while the allowance lasts, and no more than that in the long run. */
static void urgent_requests_go_before_shares(void) {
    static core_rig r;
    next_id = 0;
    open_rig(&r, 2);
    sched_limits limits = r.core.sched->limits;
    limits.urgent_percent = 5;
    sched_set_policy(r.core.sched, &limits, core_rig_now(&r));
    set_tenant(&r, 1, SHARE_FIXED, 40, 1);
    set_tenant(&r, 2, SHARE_BURST, 60, 1);
    set_tenant(&r, 3, SHARE_BESTEFFORT, 0, 1);
    load l[] = {{.tenant = 1, .n_streams = 4, .prio = GEN_BATCH},
                {.tenant = 2, .model = 1, .n_streams = 4, .prio = GEN_BATCH},
                {.tenant = 3, .model = 1, .n_streams = 2, .prio = GEN_HIGH}};
    run_busy(&r, l, 2, SECOND_US);
    for (int i = 0; i < 20; i++) {
        gen_request *q = request(++next_id, 8, 2);
        uint64_t id = next_id, from_us = core_rig_now(&r);
        q->tenant_idx = 3;
        q->prio = GEN_HIGH;
        core_rig_submit(&r, i % 2, q);
        while (r.outcomes[id].n_tokens == 0) run_busy(&r, l, 2, 500);
        EXPECT(core_rig_now(&r) - from_us < 10000); // a few steps
        run_busy(&r, l, 2, 100000);
    }
    uint64_t a = used_us(&r, 1), b = used_us(&r, 2), c = used_us(&r, 3);
    run_busy(&r, l, 3, 10 * (uint64_t)SECOND_US); // urgent work without an end
    /* 5 %, and the depth of the allowance once: 250 ms. */
    EXPECT_NEAR(percent_of(used_us(&r, 3) - c, 10 * (uint64_t)SECOND_US), 7.5, 1);
    EXPECT_NEAR(percent_of(used_us(&r, 1) - a, 10 * (uint64_t)SECOND_US), 40 * 0.925, 1);
    EXPECT_NEAR(percent_of(used_us(&r, 2) - b, 10 * (uint64_t)SECOND_US), 60 * 0.925, 1);
    core_rig_finish(&r);
    core_rig_deinit(&r);
}

static void set_floor(core_rig *r, uint32_t percent) {
    sched *s = r->core.sched;
    s->limits.starvation_percent = percent;
    for (uint32_t c = 0; c < GEN_CLASSES; c++)
        share_set(&s->floors[c], SHARE_BURST, percent, 1, core_rig_now(r));
}

/* As an operator does while it runs. */
static void a_policy_changes_the_pace_and_the_urgent_allowance_only(void) {
    static core_rig r;
    open_rig(&r, 1);
    sched_limits was = r.core.sched->limits, limits = was;
    limits.urgent_percent = 9;
    limits.pace_us = 7000;
    limits.kv_slice_us++;
    core_set_policy(&r.core, &limits);
    const sched_limits *is = &r.core.sched->limits;
    EXPECT(is->urgent_percent == 9 && is->pace_us == 7000);
    EXPECT_EQ(is->kv_slice_us, was.kv_slice_us);
    core_rig_finish(&r);
    core_rig_deinit(&r);
}

static void a_lower_class_gets_its_floor_and_no_more(void) {
    static core_rig r;
    next_id = 0;
    open_rig(&r, 2);
    set_floor(&r, 2);
    load l[] = {{.tenant = 1, .n_streams = 2, .prio = GEN_BATCH},
                {.tenant = 2, .model = 1, .n_streams = 4, .prio = GEN_HIGH}};
    set_tenant(&r, 1, SHARE_BESTEFFORT, 0, 1);
    set_tenant(&r, 2, SHARE_BESTEFFORT, 0, 1);
    run_busy(&r, l, 2, 2 * SECOND_US);
    uint64_t a = used_us(&r, 1);
    run_busy(&r, l, 2, 8 * SECOND_US);
    EXPECT_NEAR(percent_of(used_us(&r, 1) - a, 8 * SECOND_US), 2, 0.5);
    core_rig_finish(&r);
    core_rig_deinit(&r);
}

static void what_is_left_goes_by_weight(void) {
    static core_rig r;
    next_id = 0;
    open_rig(&r, 2);
    set_tenant(&r, 1, SHARE_BESTEFFORT, 0, 3);
    set_tenant(&r, 2, SHARE_BESTEFFORT, 0, 1);
    load l[] = {{.tenant = 1, .n_streams = 2, .prio = GEN_NORMAL},
                {.tenant = 2, .model = 1, .n_streams = 8, .prio = GEN_NORMAL}};
    run_busy(&r, l, 2, SECOND_US);
    uint64_t a = used_us(&r, 1);
    run_busy(&r, l, 2, 5 * SECOND_US);
    EXPECT_NEAR(percent_of(used_us(&r, 1) - a, 5 * SECOND_US), 75, 1.5);
    core_rig_finish(&r);
    core_rig_deinit(&r);
}

static void an_idle_flow_has_no_credit(void) {
    static core_rig r;
    next_id = 0;
    open_rig(&r, 2);
    load l[] = {{.tenant = 1, .n_streams = 2, .prio = GEN_NORMAL},
                {.tenant = 2, .model = 1, .n_streams = 2, .prio = GEN_NORMAL}};
    set_tenant(&r, 2, SHARE_BESTEFFORT, 0, 1);
    run_busy(&r, l, 1, 3 * SECOND_US);
    uint64_t a = used_us(&r, 1);
    run_busy(&r, l, 2, SECOND_US);
    EXPECT_NEAR(percent_of(used_us(&r, 1) - a, SECOND_US), 50, 3);
    core_rig_finish(&r);
    core_rig_deinit(&r);
}

static void a_weight_of_zero_pauses_a_model(void) {
    static core_rig r;
    next_id = 0;
    open_rig(&r, 2);
    model_policy p = plain_policy();
    inferd_err err = {0};
    p.weight = 0;
    EXPECT_EQ(residency_set_policy(&r.core.models, 1, &p, core_rig_now(&r), &err), INFERD_OK);
    core_rig_submit(&r, 1, request(++next_id, 8, 10));
    core_rig_run(&r, SECOND_US);
    EXPECT_EQ(r.outcomes[1].n_tokens, 0);
    p.weight = 1;
    EXPECT_EQ(residency_set_policy(&r.core.models, 1, &p, core_rig_now(&r), &err), INFERD_OK);
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 1));
    core_rig_deinit(&r);
}

/* Who waits in vain is told why; a guarantee, the model's or the tenant's, is no vain wait. */
static void a_deadline_that_passes_in_a_pause_says_so(void) {
    static const struct {
        uint32_t of_model, of_tenant; // weights
        share_policy share;           // of the tenant
        const char *text;             // NULL: it is served
    } rows[] = {{0, 1, SHARE_BESTEFFORT, ": its model is paused (weight 0)"},
                {1, 0, SHARE_BESTEFFORT, ": its tenant is paused (weight 0)"},
                {0, 0, SHARE_BURST, NULL}};
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        static core_rig r;
        char text[GEN_TEXT_BYTES];
        model_policy p = plain_policy();
        tenant_policy t = {.weight = rows[i].of_tenant, .share = {rows[i].share, 30, 1}};
        inferd_err err = {0};
        next_id = 0;
        open_rig(&r, 2);
        p.weight = rows[i].of_model;
        EXPECT_EQ(residency_set_policy(&r.core.models, 1, &p, core_rig_now(&r), &err), INFERD_OK);
        EXPECT_EQ(sched_set_tenant(r.core.sched, 1, &t, core_rig_now(&r), &err), INFERD_OK);
        gen_request *q = request(++next_id, 8, 10);
        q->tenant_idx = 1;
        q->queue_deadline_us = core_rig_now(&r) + SECOND_US;
        core_rig_submit(&r, 1, q);
        core_rig_finish(&r);
        if (rows[i].text == NULL) {
            EXPECT(core_rig_gives(&r, 1));
        } else {
            snprintf(text, sizeof text, "the deadline passed while the request waited%s",
                     rows[i].text);
            EXPECT_EQ(r.outcomes[1].done.done.finish, GEN_TIMEOUT);
            EXPECT_STR(r.outcomes[1].done.done.text, text);
        }
        core_rig_deinit(&r);
    }
}

static void the_earliest_urgent_deadline_goes_first(void) {
    static core_rig r;
    next_id = 0;
    open_rig(&r, 3);
    load l[] = {{.tenant = 1, .n_streams = 4, .prio = GEN_NORMAL},
                {.tenant = 1, .model = 1, .n_streams = 4, .prio = GEN_NORMAL}};
    run_busy(&r, l, 2, SECOND_US / 2);
    uint64_t worst_us = 0, others = 0;
    for (int i = 0; i < 50; i++) { // tokens that are due every 20 ms
        gen_request *q = request(++next_id, 8, 5);
        uint64_t id = next_id, from_us = core_rig_now(&r);
        q->tenant_idx = 2;
        q->ttft_target_ms = 20;
        q->tpot_target_ms = 20;
        core_rig_submit(&r, 2, q);
        while (r.outcomes[id].n_tokens == 0) run_busy(&r, l, 2, 500);
        if (core_rig_now(&r) - from_us > worst_us) worst_us = core_rig_now(&r) - from_us;
        while (r.outcomes[id].n_done == 0) run_busy(&r, l, 2, 500);
        uint64_t took_us = r.outcomes[id].done.at_us - from_us;
        if (took_us > 5 * 20000 + 2000) others++;
        run_busy(&r, l, 2, 30000);
    }
    EXPECT(worst_us < 20000 + 2000);
    EXPECT_EQ(others, 0);
    core_rig_finish(&r);
    core_rig_deinit(&r);
}

/* A request that cannot have its first token in time is overtaken by those of its class that can;
 * and a prompt takes as many times as long as models have work. */
static void late_work_lets_others_go_first(void) {
    static core_rig r;
    for (int busy = 0; busy <= 1; busy++) {
        next_id = 0;
        open_rig(&r, 2);
        sched *s = r.core.sched;
        load l[] = {{.tenant = 1, .n_streams = 2, .prio = GEN_NORMAL}};
        run_busy(&r, l, 1, SECOND_US / 2); // what a row takes is known
        core_rig_finish(&r);
        if (busy) core_rig_submit(&r, 1, request(++next_id, 8, 200));
        core_rig_iterate(&r, 0);
        s->models[0].n_started = 0; // one in a few that begin may be late
        gen_request *first = request(++next_id, 200, 8), *second = request(++next_id, 200, 8);
        rate_work work = {0};
        rate_add_rows(&work, 0, 200);
        uint64_t alone_us = rate_us(&s->models[0].rate, &work);
        first->ttft_target_ms = (uint32_t)(alone_us * 3 / 2 / 1000);
        first->no_cache = second->no_cache = true;
        uint64_t ids[] = {first->id, second->id};
        core_rig_submit(&r, 0, first);
        core_rig_submit(&r, 0, second);
        while (r.outcomes[ids[0]].n_tokens + r.outcomes[ids[1]].n_tokens == 0)
            core_rig_iterate(&r, 0);
        EXPECT_EQ(r.outcomes[ids[busy]].n_tokens, 1);
        EXPECT_EQ(r.outcomes[ids[1 - busy]].n_tokens, 0);
        core_rig_finish(&r);
        core_rig_deinit(&r);
    }
}

static void every_microsecond_is_paid_once(void) {
    static core_rig r;
    next_id = 0;
    open_rig(&r, 2);
    load l[] = {{.tenant = 1, .n_streams = 3, .prio = GEN_NORMAL},
                {.tenant = 2, .model = 1, .n_streams = 5, .prio = GEN_BATCH}};
    for (int i = 0; i < 40; i++) {
        run_busy(&r, l, 2, SECOND_US / 20);
        sched_model_preempt(r.core.sched, (uint32_t)i % 2); // computed again later
    }
    sched_cancel(r.core.sched, next_id, core_rig_now(&r));
    core_rig_finish(&r);
    sched_counters c;
    sched_count(r.core.sched, &c);
    EXPECT_EQ(c.charged_us + c.waste_us, r.core.usage.step_us);
    EXPECT(c.waste_us > 1000);
    uint64_t told = 0, wasted = 0;
    for (uint64_t id = 1; id <= next_id; id++) {
        told += r.outcomes[id].done.done.device_us;
        wasted += r.outcomes[id].done.done.waste_us;
    }
    EXPECT_EQ(told, c.charged_us);
    EXPECT_EQ(wasted, c.waste_us);
    core_rig_deinit(&r);
}

/* What is kept for lower classes is of what shares leave: it was taken out of them. */
static void floors_of_classes_are_of_what_shares_leave(void) {
    static core_rig r;
    static const struct {
        uint32_t share, wanted[3]; // of the tenant with a share, the normal one, the batch
    } rows[] = {{100, {100, 0, 0}}, {50, {65, 15, 20}}};
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        next_id = 0;
        open_rig(&r, 3);
        set_floor(&r, 20);
        set_tenant(&r, 1, SHARE_BURST, rows[i].share, 1);
        set_tenant(&r, 2, SHARE_BESTEFFORT, 0, 1);
        set_tenant(&r, 3, SHARE_BESTEFFORT, 0, 1);
        load l[] = {{.tenant = 1, .model = 0, .n_streams = 4, .prio = GEN_NORMAL},
                    {.tenant = 2, .model = 1, .n_streams = 4, .prio = GEN_NORMAL},
                    {.tenant = 3, .model = 2, .n_streams = 4, .prio = GEN_BATCH}};
        run_busy(&r, l, 3, SECOND_US);
        uint64_t before[3];
        for (uint32_t k = 0; k < 3; k++) before[k] = used_us(&r, k + 1);
        run_busy(&r, l, 3, 5 * SECOND_US);
        for (uint32_t k = 0; k < 3; k++)
            EXPECT_NEAR(percent_of(used_us(&r, k + 1) - before[k], 5 * SECOND_US),
                        rows[i].wanted[k], 1.5);
        core_rig_finish(&r);
        core_rig_deinit(&r);
    }
}

/* The product of the weights is larger than what a step takes: what did not divide was lost, and
 * the one whose steps count nothing always went first. */
static void large_weights_divide_as_small_ones(void) {
    static core_rig r;
    next_id = 0;
    open_rig(&r, 2);
    inferd_err err = {0};
    model_policy p = plain_policy();
    p.weight = 10000;
    for (uint32_t i = 0; i < 2; i++)
        EXPECT_EQ(residency_set_policy(&r.core.models, i, &p, core_rig_now(&r), &err), INFERD_OK);
    set_tenant(&r, 1, SHARE_BESTEFFORT, 0, 10000);
    set_tenant(&r, 2, SHARE_BESTEFFORT, 0, 2500);
    load l[] = {{.tenant = 1, .model = 0, .n_streams = 4, .prio = GEN_NORMAL},
                {.tenant = 2, .model = 1, .n_streams = 4, .prio = GEN_NORMAL}};
    run_busy(&r, l, 2, SECOND_US);
    uint64_t a = used_us(&r, 1), b = used_us(&r, 2);
    run_busy(&r, l, 2, 10 * SECOND_US);
    EXPECT_NEAR(percent_of(used_us(&r, 1) - a, 10 * SECOND_US), 80, 2);
    EXPECT_NEAR(percent_of(used_us(&r, 2) - b, 10 * SECOND_US), 20, 2);
    core_rig_finish(&r);
    core_rig_deinit(&r);
}

static const test_case cases[] = {
    TEST(floors_of_classes_are_of_what_shares_leave),
    TEST(large_weights_divide_as_small_ones),
    TEST(a_fixed_share_is_a_ceiling_on_an_idle_device),
    TEST(guarantees_hold_whatever_the_number_of_streams),
    TEST(weights_divide_the_steps_of_one_model),
    TEST(urgent_requests_go_before_shares),
    TEST(a_burst_share_has_its_part_of_what_is_left),
    TEST(time_within_a_share_is_no_credit),
    TEST(a_share_has_its_part_of_the_batch),
    TEST(the_fullest_bucket_goes_first),
    TEST(a_guarantee_goes_before_a_more_urgent_class),
    TEST(what_an_idle_tenant_leaves_is_used_by_others_at_once),
    TEST(a_policy_changes_the_pace_and_the_urgent_allowance_only),
    TEST(a_lower_class_gets_its_floor_and_no_more),
    TEST(what_is_left_goes_by_weight),
    TEST(an_idle_flow_has_no_credit),
    TEST(a_weight_of_zero_pauses_a_model),
    TEST(a_deadline_that_passes_in_a_pause_says_so),
    TEST(the_earliest_urgent_deadline_goes_first),
    TEST(late_work_lets_others_go_first),
    TEST(every_microsecond_is_paid_once),
};
TEST_MAIN(cases)
