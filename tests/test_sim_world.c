/* test_sim_world.c - simulated worlds whose figures one can work out by hand, and that a world is
 * its seed. */
#include "test.h"

#include "../sim/check.h"
#include "../sim/experiment.h"
#include "../sim/world.h"
#include "config.h"
#include "engine_limits.h"
#include "sched_state.h"

static const uint64_t SECOND = 1000000;

/* 1 ms a step, 10 us a row, 5 us a draw; nothing else costs anything. */
static const sim_cost PLAIN = {.fixed_ns = 1000000, .row_ns = 10000, .draw_ns = 5000};

/* 100 pages of 2 MiB, one memory of the host apart, a bus of 1 MiB a millisecond. */
static sim_preset small_preset(void) {
    return (sim_preset){.name = "small",
                        .memory_bytes = (uint64_t)100 << 21,
                        .host_bytes = (uint64_t)400 << 21,
                        .page_bytes = 2 << 20,
                        .extent_pages = 1,
                        .depth = 1,
                        .mem_bytes_per_s = 1e12,
                        .flops = 1e12,
                        .bus_bytes_per_s = 1000.0 * (1 << 20),
                        .disk_bytes_per_s = 100.0 * (1 << 20)};
}

/* 20 pages of weights; a page holds two blocks of 16 tokens. */
static world_model plain_model(void) {
    return (world_model){.sim = {.weight_bytes = (uint64_t)20 << 21,
                                 .cost = PLAIN,
                                 .kv = {.n_layers = 1,
                                        .block_tokens = SIM_BLOCK_TOKENS,
                                        .group_layers = 1,
                                        .n_groups = 1,
                                        .slots_per_page = 2},
                                 .context = 1024},
                         .policy = world_policy()};
}

/* Arrivals and lengths of a trace. */
typedef struct offered {
    trace_row rows[16];
    trace t;
    workload_spec spec;
    workload *w;
} offered;

static workload *offer(offered *o, const trace_row *rows, size_t n) {
    inferd_err err = {0};
    memcpy(o->rows, rows, n * sizeof *rows);
    o->t = (trace){.rows = o->rows, .n = n};
    workload_spec_init(&o->spec, WORKLOAD_TRACE);
    o->spec.rows = &o->t;
    o->spec.duration_us = 100 * SECOND;
    EXPECT_EQ(workload_create(&o->spec, &o->w, &err), INFERD_OK);
    EXPECT_STR(err.text, "");
    return o->w;
}

static world *make_world(const sim_preset *p, const world_model *models, uint32_t n_models) {
    world_options o;
    world *w = NULL;
    inferd_err err = {0};
    world_options_init(&o, p);
    o.models = models;
    o.n_models = n_models;
    o.verify_iterations = 1;
    EXPECT_EQ(world_create(&o, &w, &err), INFERD_OK);
    EXPECT_STR(err.text, "");
    return w;
}

static void run_world(world *w, workload *load) {
    inferd_err err = {0};
    EXPECT_EQ(world_run(w, load, &err), INFERD_OK);
    EXPECT_STR(err.text, "");
    workload_destroy(load);
}

/* The prompt of 10 is one step of 1000 + 10 * 10 + 5 us, each of the other four tokens takes
 * 1000 + 10 + 5.  The second request finds the device idle. */
static void a_request_takes_the_steps_it_needs(void) {
    static const trace_row rows[] = {{0, 10, 5}, {1000000000, 20, 1}};
    sim_preset p = small_preset();
    world_model m = plain_model();
    offered o;
    world *w = make_world(&p, &m, 1);
    run_world(w, offer(&o, rows, 2));
    EXPECT_EQ(w->n_records, 2);
    EXPECT_EQ(w->records[0].stats.end, STATS_DONE);
    EXPECT_EQ(w->records[0].stats.first_us, 1105);
    EXPECT_EQ(w->records[0].stats.last_us, 1105 + 4 * 1015);
    EXPECT_EQ(w->records[0].stats.n_output, 5);
    EXPECT_EQ(w->records[1].stats.first_us, 1000000 + 1205);
    world_usage a;
    world_sum(w, &a);
    EXPECT_EQ(a.n_steps, 6);
    EXPECT_EQ(a.n_rows, 10 + 4 + 20);
    EXPECT_EQ(a.step_us, 1105 + 4 * 1015 + 1205);
    EXPECT_EQ(a.load_us, 0);
    EXPECT_EQ(a.step_us + a.idle_us, a.wall_us);
    EXPECT_EQ(a.wall_us, 1000000 + 1205);
    world_destroy(w);
}

/* Two at once share steps: while both decode a step takes 1000 + 2 * 10 + 2 * 5. */
static void requests_share_steps(void) {
    static const trace_row rows[] = {{0, 10, 3}, {0, 10, 3}};
    sim_preset p = small_preset();
    world_model m = plain_model();
    offered o;
    world *w = make_world(&p, &m, 1);
    run_world(w, offer(&o, rows, 2));
    for (int i = 0; i < 2; i++) {
        EXPECT_EQ(w->records[i].stats.first_us, 1000 + 20 * 10 + 2 * 5);
        EXPECT_EQ(w->records[i].stats.last_us, 1210 + 2 * 1030);
    }
    world_destroy(w);
}

/* 40 MiB: 400 ms from the disk, 40 ms over the bus, and the step of its prompt. */
static void a_model_comes_at_the_speed_of_disk_and_bus(void) {
    static const trace_row rows[] = {{0, 10, 1}};
    for (int warm = 0; warm <= 1; warm++) {
        sim_preset p = small_preset();
        world_model m = plain_model();
        offered o;
        EXPECT_EQ(sim_load_us(&p, m.sim.weight_bytes), 40000);
        world *w = make_world(&p, &m, 1);
        residency *r = &w->core.models;
        residency_do(r, 0, ENGINE_UNLOAD, 1); // it does not come by itself
        if (warm == 1) residency_do(r, 0, ENGINE_PREFETCH, 1);
        run_world(w, offer(&o, rows, 1));
        uint64_t us = w->records[0].stats.first_us;
        EXPECT_EQ(us, (warm == 1 ? 0 : 400000) + 40000 + 1105);
        world_usage a;
        world_sum(w, &a);
        EXPECT_EQ(a.n_loads, 1);
        EXPECT_EQ(a.n_stages, 1 - warm);
        EXPECT_EQ(a.load_us, 40000); // nothing could be computed meanwhile
        world_destroy(w);
    }
}

static void what_goes_wrong_is_a_record(void) {
    static const trace_row rows[] = {{0, 10, 5}, {0, 2000, 5}, {2000000000, 10, 5}};
    sim_preset p = small_preset();
    world_model m = plain_model();
    offered o;
    world *w = make_world(&p, &m, 1);
    w->device->fail_step_at = 2;
    run_world(w, offer(&o, rows, 3));
    EXPECT_EQ(w->records[0].stats.end, STATS_FAILED); // had its first token
    EXPECT_EQ(w->records[0].status, INFERD_EDEVICE);
    EXPECT_EQ(w->records[1].stats.end, STATS_REFUSED); // longer than the context
    EXPECT_EQ(w->records[1].status, INFERD_ETOOLONG);
    EXPECT_EQ(w->records[2].stats.end, STATS_DONE);
    request_figures f;
    EXPECT_EQ(experiment_requests(w, SIM_ALL, SIM_ALL, &f, NULL), INFERD_OK);
    EXPECT_EQ(f.attained.n_offered, 3);
    EXPECT_EQ(f.attained.n_met, 1);
    world_destroy(w);
}

/* How many turns until books that are wrong are noticed; 0: nobody does. */
static uint64_t noticed_after(uint32_t verify_iterations) {
    static const trace_row rows[] = {{0, 10, 100}, {1000000000, 10, 100}};
    sim_preset p = small_preset();
    world_model m = plain_model();
    inferd_err err = {0};
    offered o;
    world *w = make_world(&p, &m, 1);
    w->options.verify_iterations = verify_iterations;
    w->core.sched->charged_us = 1; // and no principal had it
    workload *load = offer(&o, rows, 2);
    inferd_status st = world_run(w, load, &err);
    uint64_t n_iterations = st != INFERD_OK ? w->n_iterations : 0;
    EXPECT(st == INFERD_OK || strstr(err.text, "us were charged") != NULL);
    workload_destroy(load);
    world_destroy(w);
    return n_iterations;
}

static void books_are_looked_at_now_and_then_and_at_the_end(void) {
    EXPECT_EQ(noticed_after(0), 0);
    EXPECT_EQ(noticed_after(1), 1);
    EXPECT_EQ(noticed_after(64), 64);
    uint64_t n_iterations = noticed_after(WORLD_VERIFY_ITERATIONS);
    EXPECT(n_iterations > 200 && n_iterations < WORLD_VERIFY_ITERATIONS);
    sim_preset p = small_preset();
    world_options o;
    world_options_init(&o, &p);
    EXPECT_EQ(o.verify_iterations, WORLD_VERIFY_ITERATIONS);
}

static void run_mix(uint64_t seed, world **out) {
    world_model models[6];
    world_options o;
    workload_spec spec;
    workload *load;
    inferd_err err = {0};
    const sim_preset *p = &sim_h100;
    for (int i = 0; i < 6; i++)
        models[i] = (world_model){.sim = sim_model_of(p, &sim_shapes[0]), .policy = world_policy()};
    world_options_init(&o, p);
    o.models = models;
    o.n_models = 6;
    workload_spec_init(&spec, WORKLOAD_MIX_M);
    spec.n_models = 6;
    spec.seed = seed;
    spec.duration_us = 60 * SECOND;
    spec.rate_per_s = 0.3;
    EXPECT_EQ(workload_create(&spec, &load, &err), INFERD_OK);
    EXPECT_EQ(world_create(&o, out, &err), INFERD_OK);
    run_world(*out, load);
}

static bool is_same(const world_record *a, const world_record *b) {
    const stats_request *x = &a->stats, *y = &b->stats;
    return x->arrival_us == y->arrival_us && x->first_us == y->first_us &&
           x->last_us == y->last_us && x->n_prompt == y->n_prompt && x->n_output == y->n_output &&
           x->slo_ttft_us == y->slo_ttft_us && x->slo_tpot_us == y->slo_tpot_us &&
           x->end == y->end && a->model_idx == b->model_idx && a->tenant_idx == b->tenant_idx &&
           a->prio == b->prio && a->n_preempted == b->n_preempted && a->n_emitted == b->n_emitted &&
           a->n_steps_before == b->n_steps_before && a->begun_us == b->begun_us &&
           a->status == b->status && a->is_done == b->is_done && a->told_ms == b->told_ms &&
           a->taken_later == b->taken_later;
}

static bool are_same(const world *a, const world *b) {
    bool same = a->n_records == b->n_records;
    for (size_t i = 0; same && i < a->n_records; i++)
        same = is_same(&a->records[i], &b->records[i]);
    return same;
}

static void the_same_seed_gives_the_same_world(void) {
    world *a, *b, *c;
    run_mix(1, &a);
    run_mix(1, &b);
    run_mix(2, &c);
    EXPECT(a->n_records > 50);
    EXPECT(are_same(a, b));
    EXPECT(!are_same(a, c));
    world_usage sum;
    world_sum(a, &sum);
    EXPECT(sum.step_us + sum.load_us + sum.idle_us <= sum.wall_us);
    world_destroy(a);
    world_destroy(b);
    world_destroy(c);
}

/* A market with room for four of its ten models; queue_len 0: as long as it takes. */
static world *run_market(world_worth worth, uint32_t queue_len, double rate_per_s) {
    sim_preset p = small_preset();
    world_model models[10];
    world_options o;
    workload_spec spec;
    workload *load = NULL;
    inferd_err err = {0};
    world *w = NULL;
    workload_spec_init(&spec, WORKLOAD_MIX_M);
    spec.n_models = 10;
    spec.duration_us = 100 * SECOND;
    spec.rate_per_s = rate_per_s;
    spec.prompt_max = spec.output_max = 100;
    EXPECT_EQ(workload_create(&spec, &load, &err), INFERD_OK);
    for (int i = 0; i < 10; i++) models[i] = plain_model();
    world_options_init(&o, &p);
    o.models = models, o.n_models = 10;
    o.worth = worth;
    o.obeys = queue_len > 0;
    if (queue_len > 0) o.sched.queue_len_max = queue_len;
    EXPECT_EQ(world_create(&o, &w, &err), INFERD_OK);
    run_world(w, load);
    return w;
}

static void a_clairvoyant_loads_least(void) {
    uint64_t n_loads[4];
    for (int k = 0; k < 4; k++) {
        world *w = run_market((world_worth)k, 0, 0.3);
        world_usage a;
        world_sum(w, &a);
        n_loads[k] = a.n_loads;
        EXPECT(w->n_records > 200);
        for (size_t i = 0; i < w->n_records; i++)
            EXPECT_EQ((int)w->records[i].stats.end, STATS_DONE);
        world_destroy(w);
    }
    EXPECT(n_loads[WORLD_WORTH_FUTURE] * 10 < n_loads[WORLD_WORTH_OWN] * 9);
    EXPECT(n_loads[WORLD_WORTH_FUTURE] * 10 < n_loads[WORLD_WORTH_LRU] * 9);
    EXPECT(n_loads[WORLD_WORTH_FUTURE] * 10 < n_loads[WORLD_WORTH_RATE] * 9);
}

static void a_retry_on_time_is_admitted(void) {
    world *w = run_market(WORLD_WORTH_OWN, 64, 4);
    uint32_t n_told = 0, n_taken = 0;
    for (size_t i = 0; i < w->n_records; i++) {
        const world_record *r = &w->records[i];
        EXPECT(r->is_done && r->told_ms % 1000 == 0 && r->told_ms <= QUEUE_MAX_S * 1000);
        EXPECT(!r->taken_later || r->told_ms > 0);
        if (r->taken_later && r->stats.end == STATS_DONE)
            EXPECT(r->stats.first_us >= r->stats.arrival_us + (uint64_t)r->told_ms * 1000);
        n_told += r->told_ms > 0;
        n_taken += r->taken_later;
    }
    printf("%u of %zu were told to come back, %u of those were taken\n", n_told, w->n_records,
           n_taken);
    EXPECT(n_told > 50 && n_taken * 10 >= n_told * 8);
    EXPECT_EQ(w->retries.n, 0);
    world_destroy(w);
}

/* The search for a rate doubled it 24 times, each with twice the requests, before it gave up. */
static void a_load_that_no_rate_reaches_is_said(void) {
    enum { MODELS = 30, LOAD_PERCENT = 99 }; // a quarter of them fits: loads take their time
    experiment e;
    inferd_err err = {0};
    experiment_init(&e, EXPERIMENT_MIX);
    e.n_models = MODELS;
    e.seconds = 5;
    e.slo_ttft_ms = 1000, e.slo_tpot_ms = 60;
    e.load_percent = LOAD_PERCENT;
    EXPECT_EQ(experiment_do(&e, &err), INFERD_EINVAL);
    EXPECT(strstr(err.text, "--load is 99, devices compute 9") != NULL);
    EXPECT(strstr(err.text, "at most, with rate x") != NULL);
    experiment_deinit(&e);
}

/* Without a configuration the daemon gives lower classes that wait two percent; the simulator gave
 * them nothing, and its figures were those of a policy that nobody runs. */
static void defaults_are_those_of_the_daemon(void) {
    sim_preset p = small_preset();
    world_options o;
    inferd_config *c = NULL;
    inferd_err err = {0};
    EXPECT_EQ(config_for_model("some/model.gguf", &c, &err), INFERD_OK);
    engine_limits l = c->limits.engine; // as the daemon fills them
    l.urgent_percent = c->policy.urgent_percent;
    l.tpot_ms = c->policy.tpot_ms;
    l.zero_on_tenant_change = c->policy.zero_on_tenant_change;
    l = limits_fill(&l);
    sched_limits s = limits_of_sched(&l);
    residency_limits m = limits_of_models(&l);
    world_options_init(&o, &p);
    EXPECT_EQ(o.sched.running_max, s.running_max);
    EXPECT_EQ(o.sched.step_tokens_max, s.step_tokens_max);
    EXPECT_EQ(o.sched.step_tokens_by_device, s.step_tokens_by_device);
    EXPECT_EQ(sim_h100.rows_default, STEP_TOKENS_DEFAULT_MAX);
    EXPECT_EQ(o.sched.logits_max, s.logits_max);
    EXPECT_EQ(o.sched.queue_len_max, s.queue_len_max);
    EXPECT_EQ(o.sched.draft_tokens, s.draft_tokens);
    EXPECT_EQ(o.sched.pace_us, s.pace_us);
    EXPECT_EQ(o.sched.starvation_us, s.starvation_us);
    EXPECT_EQ(o.sched.starvation_percent, s.starvation_percent);
    EXPECT(s.starvation_percent > 0);
    EXPECT_EQ(o.sched.urgent_percent, s.urgent_percent);
    EXPECT_EQ(o.sched.zero_on_tenant_change, s.zero_on_tenant_change);
    EXPECT_EQ(o.residency.slice_us, m.slice_us);
    EXPECT_EQ(o.residency.retry_us, m.retry_us);
    EXPECT_EQ(o.residency.retry_max_us, m.retry_max_us);
    EXPECT_EQ(o.residency.eager, m.eager);
    config_destroy(c);
}

/* ---- who had the device ---- */

enum { SHARE_A = 30, SHARE_B = 60, SHARES_S = 12 };

/* Two tenants of one model that always have work.  The scheduler is told that A has `told` percent;
 * the watch believes in SHARE_A.  The worst error of ten seconds. */
static double share_error_when(uint32_t told, uint64_t seed, double *out_jain) {
    sim_preset p = small_preset();
    world_model m = plain_model();
    tenant_policy tenants[2] = {{.weight = 1, .share = {SHARE_FIXED, SHARE_A, 1}},
                                {.weight = 1, .share = {SHARE_FIXED, SHARE_B, 1}}};
    tenant_policy other = {.weight = 1, .share = {SHARE_FIXED, told, 1}};
    world_options o;
    workload_spec spec;
    workload *load;
    world *w;
    watch_figures f;
    inferd_err err = {0};
    world_options_init(&o, &p);
    o.models = &m, o.n_models = 1;
    o.tenants = tenants, o.n_tenants = 2;
    o.watched = true;
    o.sched.queue_len_max = 1 << 16;
    workload_spec_init(&spec, WORKLOAD_MIX_M);
    spec.seed = seed;
    spec.n_models = 1, spec.n_tenants = 2;
    spec.rate_per_s = 300;
    spec.prompt_max = spec.output_max = 32;
    spec.duration_us = SHARES_S * SECOND;
    EXPECT_EQ(workload_create(&spec, &load, &err), INFERD_OK);
    EXPECT_EQ(world_create(&o, &w, &err), INFERD_OK);
    EXPECT_EQ(sched_set_tenant(w->core.sched, 0, &other, 1, &err), INFERD_OK);
    EXPECT_EQ(world_run(w, load, &err), INFERD_OK);
    EXPECT_EQ(watch_sum(w->watch, w->begin_us, w->begin_us + spec.duration_us, &f, &err),
              INFERD_OK);
    EXPECT_STR(err.text, "");
    EXPECT(f.errors[1].is_known);
    double points = f.errors[1].points;
    *out_jain = f.jain_due;
    const watch *of = w->watch;
    EXPECT_NEAR(of->flows[0].due_us, SHARES_S * 1e4 * SHARE_A, 1e5); // it always had work
    EXPECT_NEAR(of->flows[1].due_us, SHARES_S * 1e4 * SHARE_B, 1e5);
    EXPECT_NEAR(of->flows[0].used_us, SHARES_S * 1e4 * told, 2e5);
    EXPECT_EQ(watch_sum(w->watch, 0, w->end_us, &f, &err), INFERD_OK);
    EXPECT_NEAR(of->flows[0].used_us + of->flows[1].used_us, (double)w->device->step_us, 1);
    workload_destroy(load);
    world_destroy(w);
    return points;
}

static void a_share_that_does_not_hold_is_an_error(void) {
    for (uint64_t seed = 1; seed <= 3; seed++) {
        double jain, jain_wrong;
        printf("seed %d\n", (int)seed);
        EXPECT(share_error_when(SHARE_A, seed, &jain) < 1);
        EXPECT_NEAR(share_error_when(SHARE_A + 3, seed, &jain_wrong), 3, 1);
        EXPECT_NEAR(share_error_when(SHARE_A - 15, seed, &jain_wrong), 15, 1);
        EXPECT(jain > 0.999 && jain_wrong < 0.95);
    }
}

/* The second one comes while the second step is computed. */
static void a_new_request_waits_for_the_running_step(void) {
    static const trace_row rows[] = {{0, 10, 5}, {1500000, 10, 1}};
    for (uint32_t depth = 1; depth <= 2; depth++) {
        sim_preset p = small_preset();
        world_model m = plain_model();
        offered o;
        world *w;
        world_options options;
        inferd_err err = {0};
        p.depth = depth;
        world_options_init(&options, &p);
        options.models = &m, options.n_models = 1;
        options.watched = true;
        EXPECT_EQ(world_create(&options, &w, &err), INFERD_OK);
        run_world(w, offer(&o, rows, 2));
        EXPECT_EQ(w->records[1].n_steps_before, depth - 1); // with 2 the next one is there already
        EXPECT_EQ(w->records[1].begun_us, 1105 + depth * 1015);
        world_destroy(w);
    }
}

/* While weights come nobody can be served, and nothing is due. */
static void nothing_is_due_while_weights_come(void) {
    static const trace_row rows[] = {{0, 10, 5}};
    sim_preset p = small_preset();
    world_model m = plain_model();
    offered o;
    world *w;
    world_options options;
    watch_figures f;
    inferd_err err = {0};
    world_options_init(&options, &p);
    options.models = &m, options.n_models = 1;
    options.watched = true;
    EXPECT_EQ(world_create(&options, &w, &err), INFERD_OK);
    residency_do(&w->core.models, 0, ENGINE_UNLOAD, 1);
    run_world(w, offer(&o, rows, 1));
    const watch *of = w->watch;
    EXPECT_EQ(watch_sum(w->watch, w->begin_us, w->end_us, &f, &err), INFERD_OK);
    EXPECT_NEAR(of->flows[0].used_us, 1105 + 4 * 1015, 1);
    EXPECT_NEAR(of->flows[0].due_us, 1105 + 4 * 1015, 1);
    world_destroy(w);
}

static void constants_are_those_of_the_table(void) {
    const sim_preset *p = &sim_h100;
    const sim_shape *s = &sim_shapes[0];
    sim_cost c = sim_cost_of(p, s);
    sim_model m = sim_model_of(p, s);
    EXPECT_NEAR((double)c.fixed_ns, 150000 + 16060522496.0 / 2.68e12 * 1e9, 1000);
    EXPECT_NEAR((double)c.row_ns, 2 * 8030261248.0 / 400e12 * 1e9, 1);
    EXPECT_NEAR((double)c.kept_ps, 131072 / 2.68e12 * 1e12, 1);
    EXPECT_EQ(m.kv.slot_bytes, 2 << 20); // 16 tokens of all layers are a page
    EXPECT_EQ(m.kv.n_groups, 1);
    EXPECT_EQ(sim_weight_pages(p, s->weight_bytes) % p->extent_pages, 0);
}

static void worlds_in_which_everything_happens_are_sound(void) {
    check_result r = {0};
    for (uint64_t seed = 1; seed <= 20; seed++) {
        EXPECT(check_seed(seed, false, &r));
        if (r.failed != CHECK_NONE)
            printf("seed %d: %s: %s\n", (int)seed, check_invariant_name(r.failed), r.text);
        EXPECT_EQ(r.failed, CHECK_NONE);
    }
    EXPECT(r.n_copied_ahead > 10 && r.n_fetched > 5 && r.n_zeroed > 50);
    EXPECT(r.n_preempted > 100 && r.n_evicted > 100 && r.n_slices > 20 && r.n_failed_loads > 10);
}

static const test_case cases[] = {
    TEST(a_request_takes_the_steps_it_needs),
    TEST(requests_share_steps),
    TEST(a_model_comes_at_the_speed_of_disk_and_bus),
    TEST(what_goes_wrong_is_a_record),
    TEST(books_are_looked_at_now_and_then_and_at_the_end),
    TEST(the_same_seed_gives_the_same_world),
    TEST(a_clairvoyant_loads_least),
    TEST(a_retry_on_time_is_admitted),
    TEST(a_load_that_no_rate_reaches_is_said),
    TEST(defaults_are_those_of_the_daemon),
    TEST(a_share_that_does_not_hold_is_an_error),
    TEST(a_new_request_waits_for_the_running_step),
    TEST(nothing_is_due_while_weights_come),
    TEST(constants_are_those_of_the_table),
    TEST(worlds_in_which_everything_happens_are_sound),
};
TEST_MAIN(cases)
