/* test_flow_usage.c - each microsecond and each token belongs to a flow: flows, preemptions,
 * loads.
 */
#include "core_rig.h"

#include "sched_state.h"

/* ---- the list of principals ---- */

static void charge_us(flow_usage *a, flow_usage_ref *ref, uint32_t tenant, uint32_t slot,
                      uint64_t us) {
    flow_usage_charge(a, ref, tenant, slot, &(engine_flow){.device_us = us});
}

static const engine_flow *row(const flow_usage *a, const flow_usage_ref *ref) {
    return &a->rows[ref->row].is;
}

static void a_reference_keeps_its_row_and_all_add_up(void) {
    flow_usage a;
    flow_usage_ref one = {0}, two = {0};
    EXPECT(flow_usage_init(&a));
    charge_us(&a, &one, 1, 2, 100);
    charge_us(&a, &two, 2, 1, 10);
    charge_us(&a, &one, 1, 2, 5);
    flow_usage_charge(&a, &one, 1, 2, &(engine_flow){.output_tokens = 7, .cached_tokens = 3});
    EXPECT_EQ(a.n_rows, 2);
    EXPECT_EQ(row(&a, &one)->tenant, 1);
    EXPECT_EQ(row(&a, &one)->model, 2);
    EXPECT_EQ(row(&a, &one)->device_us, 105);
    EXPECT_EQ(row(&a, &one)->output_tokens, 7);
    EXPECT_EQ(row(&a, &one)->cached_tokens, 3);
    EXPECT_EQ(row(&a, &two)->device_us, 10);
    EXPECT_EQ(a.all.device_us, 115);
    EXPECT(flow_usage_verify(&a));
    flow_usage_deinit(&a);
}

/* Only the time was compared. */
static void a_token_too_many_is_found(void) {
    flow_usage a;
    flow_usage_ref ref = {0};
    EXPECT(flow_usage_init(&a));
    flow_usage_charge(&a, &ref, 1, 2, &(engine_flow){1, 1, 0, 1, 1, 1, 1});
    uint64_t *numbers[] = {&a.rows[0].is.device_us, &a.rows[0].is.prompt_tokens,
                           &a.rows[0].is.cached_tokens, &a.rows[0].is.output_tokens};
    for (uint32_t i = 0; i < INFERD_COUNT(numbers); i++) {
        EXPECT(flow_usage_verify(&a));
        ++*numbers[i];
        EXPECT(!flow_usage_verify(&a));
        --*numbers[i];
    }
    flow_usage_deinit(&a);
}

static void a_row_is_told_once_per_change(void) {
    flow_usage a;
    flow_usage_ref one = {0}, two = {0};
    EXPECT(flow_usage_init(&a));
    EXPECT_EQ(flow_usage_next_changed(&a), FLOW_USAGE_NONE);
    charge_us(&a, &one, 0, 0, 1);
    charge_us(&a, &two, 0, 1, 1);
    charge_us(&a, &one, 0, 0, 1);
    uint32_t first = flow_usage_next_changed(&a), second = flow_usage_next_changed(&a);
    EXPECT_EQ(first + second, 1); // rows 0 and 1
    EXPECT_EQ(flow_usage_next_changed(&a), FLOW_USAGE_NONE);
    charge_us(&a, &two, 0, 1, 1);
    EXPECT_EQ(flow_usage_next_changed(&a), 1);
    flow_usage_deinit(&a);
}

static void a_new_model_in_a_slot_has_a_row_of_its_own(void) {
    flow_usage a;
    flow_usage_ref five = {0}, six = {0};
    EXPECT(flow_usage_init(&a));
    charge_us(&a, &five, 3, 5, 100);
    charge_us(&a, &six, 3, 6, 1);
    uint32_t serial = row(&a, &five)->serial;
    EXPECT(serial != 0);
    flow_usage_close_model(&a, 5);
    charge_us(&a, &five, 3, 5, 10);
    charge_us(&a, &six, 3, 6, 1);
    EXPECT_EQ(a.n_rows, 3);
    EXPECT_EQ(row(&a, &five)->device_us, 10);
    EXPECT(row(&a, &five)->serial != serial);
    EXPECT_EQ(row(&a, &six)->device_us, 2);
    EXPECT_EQ(a.rows[0].is.device_us, 100); // still there to be read
    EXPECT(flow_usage_verify(&a));
    flow_usage_deinit(&a);
}

static void a_full_list_reuses_released_rows_then_idle_ones(void) {
    flow_usage a;
    static flow_usage_ref refs[ENGINE_FLOWS_MAX], more[ENGINE_FLOWS_MAX / 2 + 1];
    memset(refs, 0, sizeof refs);
    memset(more, 0, sizeof more);
    EXPECT(flow_usage_init(&a));
    for (uint32_t i = 0; i < ENGINE_FLOWS_MAX; i++) charge_us(&a, &refs[i], i, i % 2, i + 1);
    charge_us(&a, &refs[0], 0, 0, 1000); // the oldest row, and used just now
    flow_usage_let_go(&a, &refs[9]);     // one of model 1, and then all of them
    EXPECT_EQ(refs[9].serial, 0);
    charge_us(&a, &more[0], ENGINE_FLOWS_MAX, 0, 50);
    EXPECT_EQ(a.n_rows, ENGINE_FLOWS_MAX);
    EXPECT_EQ(a.others.device_us, 10);
    EXPECT(flow_usage_verify(&a));
    flow_usage_close_model(&a, 1);
    for (uint32_t i = 1; i < ENGINE_FLOWS_MAX / 2; i++)
        charge_us(&a, &more[i], ENGINE_FLOWS_MAX + i, 0, 50); // the rest of model 1
    uint64_t before = a.others.device_us;
    charge_us(&a, &refs[2], 2, 0, 1);
    EXPECT_EQ(row(&a, &refs[2])->device_us, 4); // nobody of model 0 had to go
    charge_us(&a, &more[ENGINE_FLOWS_MAX / 2], 3 * ENGINE_FLOWS_MAX, 0, 50);
    EXPECT_EQ(a.others.device_us, before + 5); // tenant 4: charged least recently
    charge_us(&a, &refs[0], 0, 0, 1);
    EXPECT_EQ(row(&a, &refs[0])->device_us, 1002);
    charge_us(&a, &refs[4], 4, 0, 7); // its row is another's now
    EXPECT_EQ(row(&a, &refs[4])->device_us, 7);
    EXPECT_EQ(row(&a, &refs[4])->tenant, 4);
    EXPECT(flow_usage_verify(&a));
    flow_usage_deinit(&a);
}

/* ---- a core ---- */

static void open_rig(core_rig *r, uint32_t n_pages, uint32_t n_host, uint32_t n_models) {
    model_policy p = plain_policy();
    core_rig_init(r, n_pages, n_host, 2);
    r->device.context = 4096;
    r->device.move_us = 50;
    core_rig_open(r, true);
    for (uint32_t i = 0; i < n_models; i++) core_rig_attach(r, i, &p);
    core_rig_run(r, 50000);
}

static uint64_t flows_us(const core_rig *r) {
    const flow_usage *a = &r->core.sched->flow_usage;
    uint64_t us = a->others.device_us;
    for (uint32_t i = 0; i < a->n_rows; i++) us += a->rows[i].is.device_us;
    return us;
}

static void expect_conserved(core_rig *r) {
    const core_usage *a = &r->core.usage;
    sched_counters c;
    sched_count(r->core.sched, &c);
    core_idle(&r->core, core_rig_now(r), core_rig_now(r)); // what the last turn took
    EXPECT_EQ(flows_us(r), c.charged_us);
    EXPECT_EQ(c.charged_us + c.waste_us, a->step_us);
    EXPECT_EQ(a->until_us, core_rig_now(r));
    EXPECT_EQ(a->step_us + a->move_us + a->load_us + a->idle_us + a->host_us,
              core_rig_now(r) - a->opened_us);
}

static void submit(core_rig *r, uint64_t id, uint32_t tenant, uint32_t model_idx, gen_class prio,
                   uint32_t n_prompt, uint32_t n_output) {
    gen_request *q = request(id, n_prompt, n_output);
    q->tenant_idx = tenant;
    q->prio = prio;
    core_rig_submit(r, model_idx, q);
}

static void the_wall_is_shared_out_whole(void) {
    static core_rig r;
    open_rig(&r, 30, 8, 3); // pages for some of them at a time
    uint64_t id = 0;
    for (int round = 0; round < 20; round++) {
        for (uint32_t i = 0; i < 6; i++)
            submit(&r, ++id, i % 3, i % 3, i == 5 ? GEN_HIGH : GEN_BATCH, 8 + i * 5, 30);
        core_rig_run(&r, 30000);
        if (round % 5 == 4)
            residency_do(&r.core.models, round % 3, ENGINE_UNLOAD, core_rig_now(&r));
    }
    core_rig_finish(&r);
    core_rig_run(&r, 100000);
    expect_conserved(&r);
    EXPECT(r.core.usage.idle_us > 0 && r.core.usage.load_us > 0);
    core_rig_deinit(&r);
}

/* The newest row of this tenant. */
static const engine_flow *flow_row(const core_rig *r, uint32_t tenant) {
    const flow_usage *a = &r->core.sched->flow_usage;
    static const engine_flow none;
    const engine_flow *newest = &none;
    for (uint32_t i = 0; i < a->n_rows; i++)
        if (a->rows[i].is.tenant == tenant && a->rows[i].is.serial > newest->serial)
            newest = &a->rows[i].is;
    return newest;
}

static void tokens_are_counted_once_whatever_happens(void) {
    static core_rig r;
    open_rig(&r, 60, 0, 1);
    submit(&r, 1, 1, 0, GEN_NORMAL, 40, 20);
    core_rig_run(&r, 10000);
    for (int i = 0; i < 3; i++) { // computed again and again
        sched_model_preempt(r.core.sched, 0);
        while (sched_drop_cached(r.core.sched, UINT32_MAX) < 58) core_rig_iterate(&r, 100);
        core_rig_run(&r, 5000);
    }
    core_rig_finish(&r);
    const engine_flow *p = flow_row(&r, 1);
    uint32_t n = r.outcomes[1].done.done.n_output;
    EXPECT_EQ(p->prompt_tokens, 40);
    EXPECT_EQ(p->output_tokens, n);
    EXPECT_EQ(p->cached_tokens, 0);
    EXPECT(r.outcomes[1].done.done.waste_us > 0);
    submit(&r, 2, 1, 0, GEN_NORMAL, 40, 20); // another prompt: nothing is known of it
    core_rig_finish(&r);
    gen_request *again = copy_request(r.copies[2]);
    again->id = 3;
    again->tenant_idx = 1;
    core_rig_submit(&r, 0, again);
    core_rig_finish(&r);
    p = flow_row(&r, 1);
    EXPECT(r.outcomes[3].done.done.n_cached > 0);
    EXPECT_EQ(p->cached_tokens, r.outcomes[3].done.done.n_cached);
    EXPECT_EQ(p->prompt_tokens + p->cached_tokens, 120);
    expect_conserved(&r);
    core_rig_deinit(&r);
}

/* A step was charged to whoever had taken the place of a tenant that was gone by then. */
static void a_late_step_is_charged_to_whose_it_was(void) {
    static core_rig r;
    open_rig(&r, 60, 0, 1);
    sched *s = r.core.sched;
    submit(&r, 1, 1, 0, GEN_NORMAL, 40, 20);
    step *st = &r.core.steps[0];
    EXPECT(sched_plan(s, core_rig_now(&r), st));
    sched_cancel(s, 1, core_rig_now(&r));
    for (uint32_t i = 0; i < 2 * s->n_flows; i++) { // each of another tenant
        gen_request *q = request(2, 8, 8);
        q->tenant_idx = 2 + i;
        r.outcomes[2].n_done = 0;
        sched_submit(s, q, core_rig_now(&r));
        sched_note_use(s, LIST_ENTRY(s->waiting.prev, seq, link),
                       &(engine_flow){.cached_tokens = 1});
        sched_cancel(s, 2, core_rig_now(&r));
        sched_flush(s, UINT32_MAX);
    }
    for (uint32_t i = 0; i < st->b.n_logits; i++) st->results[i].id = 1;
    st->charge_us = 1234;
    sched_commit(s, st, 1234, core_rig_now(&r));
    EXPECT_EQ(flow_row(&r, 1)->device_us, 1234);
    for (uint32_t i = 0; i < s->n_flows; i++)
        EXPECT(s->flows[i].tenant == 1 || s->flows[i].virtual_us[flow_part(TIER_SURPLUS)] < 1234);
    /* Rows of whoever made room are the first to go. */
    const flow_usage *a = &s->flow_usage;
    uint32_t n_kept = 0;
    for (uint32_t i = 0; i < a->n_rows; i++) n_kept += !a->rows[i].let_go;
    EXPECT(n_kept <= s->n_flows);
    r.core.usage.step_us += 1234;
    core_rig_deinit(&r);
}

static void what_preemption_wastes_is_charged_to_no_tenant(void) {
    static core_rig r;
    open_rig(&r, 60, 0, 1);
    submit(&r, 1, 1, 0, GEN_NORMAL, 64, 8);
    core_rig_finish(&r);
    uint64_t alone_us = r.outcomes[1].done.done.device_us;
    sched_drop_cached(r.core.sched, UINT32_MAX);
    submit(&r, 2, 1, 0, GEN_NORMAL, 64, 8);
    gen_request *same = r.copies[2];
    (void)same;
    while (r.outcomes[2].n_tokens < 4) core_rig_iterate(&r, 100);
    sched_model_preempt(r.core.sched, 0);
    sched_drop_cached(r.core.sched, UINT32_MAX);
    core_rig_finish(&r);
    const gen_event *e = &r.outcomes[2].done;
    EXPECT(e->done.waste_us > 3000); // the prompt again
    /* It pays for no more than it would have: one step more, at most. */
    EXPECT(e->done.device_us < alone_us + 2000);
    expect_conserved(&r);
    core_rig_deinit(&r);
}

/* ---- rungs ---- */

static const uint32_t *preempts_of(core_rig *r, uint64_t id) {
    return r->outcomes[id].done.done.n_preempts;
}

static void a_more_urgent_step_is_a_pause(void) {
    static core_rig r;
    open_rig(&r, 200, 0, 2);
    submit(&r, 1, 1, 0, GEN_BATCH, 8, 60);
    while (r.outcomes[1].n_tokens < 5) core_rig_iterate(&r, 100);
    submit(&r, 2, 2, 1, GEN_HIGH, 8, 20);
    core_rig_finish(&r);
    EXPECT(preempts_of(&r, 1)[GEN_PREEMPT_PAUSE] >= 1);
    EXPECT_EQ(preempts_of(&r, 1)[GEN_PREEMPT_RECOMPUTE], 0);
    EXPECT_EQ(preempts_of(&r, 2)[GEN_PREEMPT_PAUSE], 0); // no sequence was more urgent
    EXPECT(r.outcomes[1].done.done.away_us >= 1000);
    EXPECT_EQ(r.outcomes[1].done.done.n_preempted, 0);
    EXPECT_EQ(r.outcomes[1].done.done.waste_us, 0);
    sched_model_numbers n;
    sched_count_model(r.core.sched, 0, &n);
    EXPECT_EQ(n.n_preempts[GEN_PREEMPT_PAUSE], preempts_of(&r, 1)[GEN_PREEMPT_PAUSE]);
    sched_counters c;
    sched_count(r.core.sched, &c);
    EXPECT_EQ(c.preempts[GEN_PREEMPT_PAUSE].n, n.n_preempts[GEN_PREEMPT_PAUSE]);
    EXPECT_EQ(c.preempts[GEN_PREEMPT_PAUSE].us, r.outcomes[1].done.done.away_us);
    core_rig_deinit(&r);
}

/* Preempted in the middle; `drop`: its cached blocks go, too. */
static void preempt_one(core_rig *r, bool drop) {
    submit(r, 1, 1, 0, GEN_NORMAL, 64, 40);
    while (r->outcomes[1].n_tokens < 10) core_rig_iterate(r, 100);
    LIST_EACH_SAFE(node, next, &r->core.sched->running)
        sched_preempt_seq(r->core.sched, LIST_ENTRY(node, seq, link));
    if (drop) sched_drop_cached(r->core.sched, UINT32_MAX);
    r->idle_us += 7000;
    core_idle(&r->core, core_rig_now(r) - 7000, core_rig_now(r));
    core_rig_finish(r);
    EXPECT_EQ(r->outcomes[1].done.done.n_preempted, 1);
    EXPECT(core_rig_gives(r, 1));
    expect_conserved(r);
}

static void blocks_that_stayed_make_it_a_pause(void) {
    static core_rig r;
    open_rig(&r, 200, 0, 1);
    preempt_one(&r, false);
    EXPECT_EQ(preempts_of(&r, 1)[GEN_PREEMPT_PAUSE], 1);
    EXPECT_EQ(preempts_of(&r, 1)[GEN_PREEMPT_RECOMPUTE], 0);
    EXPECT(r.outcomes[1].done.done.away_us >= 7000);
    core_rig_deinit(&r);
}

static void blocks_that_went_are_computed_again(void) {
    static core_rig r;
    open_rig(&r, 200, 0, 1);
    preempt_one(&r, true);
    EXPECT_EQ(preempts_of(&r, 1)[GEN_PREEMPT_RECOMPUTE], 1);
    EXPECT_EQ(preempts_of(&r, 1)[GEN_PREEMPT_PAUSE] + preempts_of(&r, 1)[GEN_PREEMPT_SWAP], 0);
    EXPECT(r.outcomes[1].done.done.n_recomputed >= 64);
    EXPECT(r.outcomes[1].done.done.waste_us > 0);
    sched_counters c;
    sched_count(r.core.sched, &c);
    EXPECT_EQ(c.preempts[GEN_PREEMPT_RECOMPUTE].n, 1);
    EXPECT_EQ(r.core.sched->flow_usage.all.n_preempts[GEN_PREEMPT_RECOMPUTE],
              1); // of its tenant, too
    EXPECT_EQ(r.core.sched->flow_usage.all.away_us, r.outcomes[1].done.done.away_us);
    EXPECT_EQ(c.preempts[GEN_PREEMPT_RECOMPUTE].hist[4], 1); // 7 ms: above 5, up to 10
    EXPECT_EQ(c.relief.n, 1);
    core_rig_deinit(&r);
}

static void a_return_from_host_memory_counts_as_swap(void) {
    static core_rig r;
    open_rig(&r, 200, 100, 1);
    r.device.move_us = 1;
    preempt_one(&r, true);
    EXPECT_EQ(preempts_of(&r, 1)[GEN_PREEMPT_SWAP], 1);
    EXPECT_EQ(preempts_of(&r, 1)[GEN_PREEMPT_RECOMPUTE], 0);
    EXPECT(r.outcomes[1].done.done.swap_in_us > 0);
    EXPECT(r.core.usage.move_us >= 2 * r.outcomes[1].done.done.swap_in_us - 1);
    core_rig_deinit(&r);
}

static void model_out_is_the_last_preemption_kind(void) {
    static core_rig r;
    open_rig(&r, 200, 0, 1);
    submit(&r, 1, 1, 0, GEN_NORMAL, 16, 40);
    while (r.outcomes[1].n_tokens < 10) core_rig_iterate(&r, 100);
    while (sched_model_n_steps(r.core.sched, 0) > 0) core_rig_iterate(&r, 100);
    EXPECT_EQ(sched_model_preempt(r.core.sched, 0), 1);
    core_rig_finish(&r);
    EXPECT_EQ(preempts_of(&r, 1)[GEN_PREEMPT_MODEL_OUT], 1);
    EXPECT_EQ(preempts_of(&r, 1)[GEN_PREEMPT_PAUSE] + preempts_of(&r, 1)[GEN_PREEMPT_RECOMPUTE], 0);
    core_rig_deinit(&r);
}

static const test_case cases[] = {
    TEST(a_reference_keeps_its_row_and_all_add_up),
    TEST(a_token_too_many_is_found),
    TEST(a_row_is_told_once_per_change),
    TEST(a_new_model_in_a_slot_has_a_row_of_its_own),
    TEST(a_full_list_reuses_released_rows_then_idle_ones),
    TEST(the_wall_is_shared_out_whole),
    TEST(tokens_are_counted_once_whatever_happens),
    TEST(a_late_step_is_charged_to_whose_it_was),
    TEST(what_preemption_wastes_is_charged_to_no_tenant),
    TEST(a_more_urgent_step_is_a_pause),
    TEST(blocks_that_stayed_make_it_a_pause),
    TEST(blocks_that_went_are_computed_again),
    TEST(a_return_from_host_memory_counts_as_swap),
    TEST(model_out_is_the_last_preemption_kind),
};
TEST_MAIN(cases)
