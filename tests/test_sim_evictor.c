/* test_sim_evictor.c - evictions one can follow by hand, and the order of policies on activations
 * drawn from seeds: nobody beats who knows the future, and anything beats chance. */
#include "test.h"

#include "../sim/evictor.h"

static const uint64_t SECOND = 1000000;

static evict_result replay(const evict_run *run, evict_choose *choose, void *ctx,
                           bool sees_future) {
    evict_policy policy = {"test", choose, ctx, sees_future, false};
    evict_result r;
    inferd_err err = {0};
    EXPECT_EQ(evict_replay(run, &policy, &r, &err), INFERD_OK);
    EXPECT_STR(err.text, "");
    return r;
}

/* Activations of one time unit each, one after another, with a unit between. */
static void in_turn(evict_span *spans, const char *models, size_t n) {
    for (size_t i = 0; i < n; i++)
        spans[i] = (evict_span){(uint32_t)(models[i] - 'a'), 2 * i * SECOND, (2 * i + 1) * SECOND};
}

static evict_model alike[4] = {
    {10, 0, 1000, 1}, {10, 0, 1000, 1}, {10, 0, 1000, 1}, {10, 0, 1000, 1}};

static void a_model_that_stays_is_loaded_once(void) {
    evict_span spans[6];
    in_turn(spans, "ababab", 6);
    evict_run run = {alike, 2, spans, 6, 20};
    evict_result r = replay(&run, evict_lru, NULL, false);
    EXPECT_EQ(r.n_served, 6);
    EXPECT_EQ(r.n_loads, 2);
    EXPECT_EQ(r.n_evicted, 0);
    EXPECT_EQ(r.load_us, 2000);
    EXPECT_EQ(r.first_us, 2000);
    EXPECT_NEAR(evict_seconds(&r), 0.002 / 6, 1e-12);
}

/* a b c a b c a b c, room for two: the longest idle is always the next one. */
static void a_cycle_is_what_lru_cannot_do(void) {
    evict_span spans[9];
    in_turn(spans, "abcabcabc", 9);
    evict_run run = {alike, 3, spans, 9, 20};
    EXPECT_EQ(replay(&run, evict_lru, NULL, false).n_loads, 9);
    /* a, b, then c replaces b (a is next), b replaces a at 4 (c is next), a replaces c at 6, c
     * replaces b at 8: 3 first loads and every second one after. */
    evict_result r = replay(&run, evict_furthest, NULL, true);
    EXPECT_EQ(r.n_loads, 6);
    EXPECT_EQ(r.first_us, 3000);
    EXPECT_EQ(r.load_us, 6000);
    EXPECT_EQ(r.n_evicted, 4);
    evict_result best;
    inferd_err err = {0};
    EXPECT_EQ(evict_clairvoyant(&run, &best, &err), INFERD_OK);
    EXPECT_EQ(best.load_us, 6000);
}

/* One large model that is needed a little sooner than two small ones. */
static void size_can_count_for_more_than_time(void) {
    evict_model models[] = {
        {30, 0, 3000, 1}, {10, 0, 1000, 1}, {10, 0, 1000, 1}, {10, 0, 1000, 1}, {20, 0, 2000, 1}};
    evict_span spans[9];
    in_turn(spans, "abcdebacd", 9);
    evict_run run = {models, 5, spans, 9, 60};
    /* e needs 20: furthest takes d and c, which come back for 2000; size takes a for 3000. */
    EXPECT_EQ(replay(&run, evict_furthest, NULL, true).load_us, 8000 + 2000);
    EXPECT_EQ(replay(&run, evict_furthest_size, NULL, true).load_us, 8000 + 3000);
    evict_result best;
    inferd_err err = {0};
    EXPECT_EQ(evict_clairvoyant(&run, &best, &err), INFERD_OK);
    EXPECT_EQ(best.load_us, 10000);
    models[0].reload_us = 100; // a would be cheap to bring back
    EXPECT_EQ(evict_clairvoyant(&run, &best, &err), INFERD_OK);
    EXPECT_EQ(best.load_us, 5100 + 100);
}

/* The small one is needed last, but the large one has to go anyway. */
static void a_victim_that_would_not_help_is_spared(void) {
    evict_model models[] = {{10, 0, 1000, 1}, {30, 0, 3000, 1}, {30, 0, 3000, 1}};
    evict_span spans[4];
    in_turn(spans, "abca", 4);
    evict_run run = {models, 3, spans, 4, 40};
    evict_policy policy = {"test", evict_lru, NULL, false, false};
    evict_result r;
    inferd_err err = {0};
    EXPECT_EQ(evict_replay(&run, &policy, &r, &err), INFERD_OK);
    EXPECT_EQ(r.load_us, 8000);
    EXPECT_EQ(r.n_evicted, 2);
    policy.spares = true;
    EXPECT_EQ(evict_replay(&run, &policy, &r, &err), INFERD_OK);
    EXPECT_EQ(r.load_us, 7000);
    EXPECT_EQ(r.n_evicted, 1);
    evict_result best;
    EXPECT_EQ(evict_clairvoyant(&run, &best, &err), INFERD_OK);
    EXPECT_EQ(best.load_us, 7000);
}

static void memory_of_running_models_evicts_idle_ones(void) {
    evict_model models[] = {{10, 5, 1000, 1}, {10, 0, 1000, 1}, {10, 0, 1000, 1}};
    evict_span spans[4];
    in_turn(spans, "abca", 4); // a is there at the end, but needs 5 more
    evict_run run = {models, 3, spans, 4, 30};
    evict_result r = replay(&run, evict_lru, NULL, false);
    EXPECT_EQ(r.n_loads, 3);
    EXPECT_EQ(r.n_evicted, 1);
    run.memory_bytes = 35;
    r = replay(&run, evict_lru, NULL, false);
    EXPECT_EQ(r.n_evicted, 0);
}

static void what_can_never_fit_is_refused_and_evicts_no_model(void) {
    evict_model models[] = {{10, 0, 1000, 1}, {10, 0, 1000, 1}, {12, 0, 1000, 1}};
    const evict_span spans[] = {
        {0, 0, 1 * SECOND},
        {1, 2 * SECOND, 10 * SECOND},  // b has 10 of 20
        {2, 3 * SECOND, 4 * SECOND},   // 12: not while b is active
        {0, 5 * SECOND, 6 * SECOND},   // a is still there
        {2, 10 * SECOND, 11 * SECOND}, // b ends at this moment: there is room
    };
    evict_run run = {models, 3, spans, 5, 20};
    evict_result r = replay(&run, evict_lru, NULL, false);
    EXPECT_EQ(r.n_refused, 1);
    EXPECT_EQ(r.n_served, 4);
    EXPECT_EQ(r.n_loads, 3);
    EXPECT_EQ(r.n_evicted, 2); // 12 leave no room for either
    models[2].bytes = 21;
    r = replay(&run, evict_lru, NULL, false);
    EXPECT_EQ(r.n_refused, 2);
    EXPECT_EQ(r.n_evicted, 0);
}

/* ---- what a policy is told ---- */

typedef struct heard {
    evict_candidate last[4];
    uint32_t n, n_calls;
} heard;

static uint32_t listen(void *ctx, const evict_candidate *c, uint32_t n) {
    heard *h = ctx;
    INFERD_CHECK(n <= 4);
    memcpy(h->last, c, n * sizeof *c);
    h->n = n;
    h->n_calls++;
    return 0;
}

static void a_policy_is_told_what_it_may_know(void) {
    const evict_model models[] = {{10, 0, 1000, 3}, {10, 5, 1500, 1}, {12, 0, 1000, 1}};
    const evict_span spans[] = {
        {0, 0, 1 * SECOND},
        {0, 5 * SECOND, 6 * SECOND},   // a gap of 4 s
        {1, 7 * SECOND, 8 * SECOND},   //
        {0, 14 * SECOND, 15 * SECOND}, // a gap of 8 s
        {2, 20 * SECOND, 25 * SECOND}, // room is made for this one
        {1, 21 * SECOND, 22 * SECOND}, // refused: 12 and 15 are more than 25
        {1, 40 * SECOND, 41 * SECOND},
    };
    evict_run run = {models, 3, spans, 7, 25};
    heard h = {0};
    replay(&run, listen, &h, true);
    EXPECT_EQ(h.n_calls, 2);
    h = (heard){0};
    run.n_spans = 5;
    replay(&run, listen, &h, false);
    EXPECT_EQ(h.n_calls, 1);
    EXPECT_EQ(h.n, 2);
    EXPECT_EQ(h.last[0].model_idx, 0);
    EXPECT_EQ(h.last[0].weight, 3);
    EXPECT_EQ(h.last[0].bytes, 10);
    EXPECT_EQ(h.last[0].idle_us, 5 * SECOND);
    EXPECT_EQ(h.last[0].pauses.sum_ms, 12000);
    EXPECT_EQ(h.last[1].model_idx, 1);
    EXPECT_EQ(h.last[1].reload_us, 1500);
    EXPECT_EQ(h.last[1].idle_us, 12 * SECOND);
    EXPECT_EQ(h.last[1].pauses.n, 0);
    EXPECT_EQ(h.last[0].next_us, EVICT_NEVER);
    EXPECT_EQ(h.last[1].next_us, EVICT_NEVER);
}

static void an_active_model_is_no_candidate(void) {
    const evict_span spans[] = {
        {0, 0, 1 * SECOND}, {1, 2 * SECOND, 9 * SECOND}, {2, 3 * SECOND, 4 * SECOND}};
    evict_run run = {alike, 3, spans, 3, 25};
    heard h = {0};
    replay(&run, listen, &h, false);
    EXPECT_EQ(h.n, 1);
    EXPECT_EQ(h.last[0].model_idx, 0);
}

/* Somebody wanted it, so it was not idle. */
static void a_refused_activation_is_activity(void) {
    const evict_model models[] = {{10, 0, 1000, 1}, {10, 10, 1000, 1}, {10, 0, 1000, 1}};
    const evict_span spans[] = {{1, 0, 1 * SECOND},
                                {0, 2 * SECOND, 9 * SECOND},
                                {1, 4 * SECOND, 7 * SECOND}, // 20 beside 10: refused
                                {2, 10 * SECOND, 11 * SECOND}};
    evict_run run = {models, 3, spans, 4, 25};
    heard h = {0};
    evict_result r = replay(&run, listen, &h, false);
    EXPECT_EQ(r.n_refused, 1);
    EXPECT_EQ(h.n, 2);
    EXPECT_EQ(h.last[0].idle_us, 1 * SECOND);
    EXPECT_EQ(h.last[1].idle_us, 3 * SECOND);
    EXPECT_EQ(h.last[1].pauses.sum_ms, 3000);
}

static uint32_t keep_first_call(void *ctx, const evict_candidate *c, uint32_t n) {
    heard *h = ctx;
    return h->n_calls > 0 ? 0 : listen(ctx, c, n);
}

static void the_future_skips_what_will_be_refused(void) {
    const evict_model models[] = {{10, 0, 1000, 1}, {10, 5, 1000, 1}, {12, 0, 1000, 1}};
    const evict_span spans[] = {
        {0, 0, 1 * SECOND},
        {1, 2 * SECOND, 3 * SECOND},
        {2, 20 * SECOND, 25 * SECOND},
        {1, 21 * SECOND, 22 * SECOND}, // refused
        {1, 40 * SECOND, 41 * SECOND},
    };
    evict_run run = {models, 3, spans, 5, 25};
    heard h = {0};
    replay(&run, keep_first_call, &h, true);
    EXPECT_EQ(h.n, 2);
    EXPECT_EQ(h.last[0].next_us, EVICT_NEVER);
    EXPECT_EQ(h.last[1].next_us, 20 * SECOND);
    h = (heard){0};
    replay(&run, keep_first_call, &h, false);
    EXPECT_EQ(h.last[1].next_us, EVICT_NEVER);
}

static void policies_choose_by_their_values(void) {
    evict_candidate c[3] = {
        {.model_idx = 0,
         .weight = 1,
         .bytes = 10,
         .n_pages = 10,
         .reload_us = 10,
         .idle_us = 50000,
         .pauses = {130, 1},
         .hazard_per_s = 0.3,
         .next_us = 70},
        {.model_idx = 1,
         .weight = 1,
         .bytes = 40,
         .n_pages = 40,
         .reload_us = 40,
         .idle_us = 60000,
         .pauses = {20, 1},
         .hazard_per_s = 0.2,
         .next_us = 60},
        {.model_idx = 2,
         .weight = 1,
         .bytes = 10,
         .n_pages = 10,
         .reload_us = 10,
         .idle_us = 40000,
         .pauses = {70, 1},
         .hazard_per_s = 0.25,
         .next_us = 65},
    };
    EXPECT_EQ(evict_lru(NULL, c, 3), 1);
    EXPECT_EQ(evict_product(NULL, c, 3), 0); // 50 + 90 against 60 + 40 and 40 + 55
    EXPECT_EQ(evict_knowing(NULL, c, 3), 1);
    c[0].weight = 2;
    EXPECT_EQ(evict_product(NULL, c, 3), 1);
    c[1].reload_us = 80; // it has no warm copy
    EXPECT_EQ(evict_product(NULL, c, 3), 2);
    EXPECT_EQ(evict_knowing(NULL, c, 3), 2);
    EXPECT_EQ(evict_furthest(NULL, c, 3), 0);
    EXPECT_EQ(evict_furthest_size(NULL, c, 3), 1);
    c[2].next_us = EVICT_NEVER;
    EXPECT_EQ(evict_furthest(NULL, c, 3), 2);
    EXPECT_EQ(evict_furthest_size(NULL, c, 3), 2);
    c[2].pauses = (worth_pauses){0}; // none so far: 40 + 40
    c[0].weight = 1, c[1].reload_us = 40;
    EXPECT_EQ(evict_product(NULL, c + 1, 2), 0);
    c[2].idle_us = 55000; // 55 + 55
    EXPECT_EQ(evict_product(NULL, c + 1, 2), 1);
    c[2].idle_us = 49000; // 49 + 49
    EXPECT_EQ(evict_product(NULL, c + 1, 2), 0);
    rng random = rng_make(1, 2, 3);
    uint32_t n_of[3] = {0};
    for (int i = 0; i < 3000; i++) n_of[evict_random(&random, c, 3)]++;
    for (int i = 0; i < 3; i++) EXPECT_NEAR(n_of[i], 1000, 100);
}

static uint32_t choose_too_far(void *ctx, const evict_candidate *c, uint32_t n) {
    (void)ctx, (void)c;
    return n;
}

static void refused(const evict_run *run, evict_choose *choose, const char *sentence) {
    evict_policy policy = {"test", choose, NULL, false, false};
    evict_result r;
    inferd_err err = {0};
    EXPECT_EQ(evict_replay(run, &policy, &r, &err), INFERD_EINVAL);
    EXPECT_STR(err.text, sentence);
}

static void wrong_runs_are_refused(void) {
    evict_span spans[3];
    in_turn(spans, "abc", 3);
    evict_run run = {alike, 3, spans, 3, 20};
    refused(&run, choose_too_far, "policy test chose 2 of 2 candidates");
    spans[1].model_idx = 3;
    refused(&run, evict_lru, "activation 1 is of model index 3, there are 3 models");
    spans[1] = (evict_span){0, 500000, 2 * SECOND};
    refused(&run, evict_lru, "activation 1 of model 0 overlaps another");
    spans[1] = (evict_span){1, 5 * SECOND, 5 * SECOND};
    refused(&run, evict_lru, "activation 1 is [5000000, 5000000) us: empty, or not in order");
    spans[1] = (evict_span){1, 5 * SECOND, 6 * SECOND};
    refused(&run, evict_lru, "activation 2 is [4000000, 5000000) us: empty, or not in order");
    run.n_models = 0;
    refused(&run, evict_lru, "0 models, expected 1 to 4096");
    evict_spec spec;
    evict_spec_init(&spec);
    spec.size_min_gb = 65;
    evict_scenario s;
    inferd_err err = {0};
    EXPECT_EQ(evict_scenario_create(&s, &spec, 1, &err), INFERD_EINVAL);
    EXPECT_STR(err.text, "eviction: size_min_gb is 65, expected 0.001 to 64");
}

/* ---- drawn activations ---- */

static evict_scenario scenario(const evict_spec *spec, uint64_t seed) {
    evict_scenario s;
    inferd_err err = {0};
    EXPECT_EQ(evict_scenario_create(&s, spec, seed, &err), INFERD_OK);
    return s;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void activations_are_as_asked(void) {
    evict_spec spec;
    evict_spec_init(&spec);
    spec.n_models = 1000, spec.seconds = 200000, spec.weight_max = 4;
    evict_scenario s = scenario(&spec, 5);
    static double off_s[1000], n_off[1000], last_s[1000], log_gb[1000];
    memset(off_s, 0, sizeof off_s), memset(n_off, 0, sizeof n_off);
    memset(last_s, 0, sizeof last_s);
    double on_s = 0, on_squares = 0, weight = 0, gaps = 0, squares = 0, n_gaps = 0;
    for (size_t i = 0; i < s.run.n_spans; i++) {
        const evict_span *a = &s.run.spans[i];
        double one_s = (double)(a->end_us - a->begin_us) / 1e6;
        on_s += one_s, on_squares += one_s * one_s;
        if (n_off[a->model_idx]++ > 0)
            off_s[a->model_idx] += (double)a->begin_us / 1e6 - last_s[a->model_idx];
        last_s[a->model_idx] = (double)a->end_us / 1e6;
    }
    for (int m = 0; m < 1000; m++) off_s[m] /= n_off[m] - 1;
    for (int m = 0; m < 1000; m++) last_s[m] = 0;
    for (size_t i = 0; i < s.run.n_spans; i++) { // gaps in units of their model's mean
        const evict_span *a = &s.run.spans[i];
        if (last_s[a->model_idx] > 0 && n_off[a->model_idx] > 100) {
            double gap = ((double)a->begin_us / 1e6 - last_s[a->model_idx]) / off_s[a->model_idx];
            gaps += gap, squares += gap * gap, n_gaps++;
        }
        last_s[a->model_idx] = (double)a->end_us / 1e6;
    }
    for (int m = 0; m < 1000; m++) {
        const evict_model *e = &s.models[m];
        double gb = (double)e->bytes / 1e9;
        EXPECT_NEAR((double)e->reload_us, (gb / 55 + 0.005) * 1e6, 1);
        EXPECT_NEAR((double)e->run_bytes / 1e9, 0.3 * gb + 2, 1e-6);
        log_gb[m] = log(gb);
        weight += e->weight;
    }
    qsort(off_s, 1000, sizeof *off_s, by_value);
    qsort(log_gb, 1000, sizeof *log_gb, by_value);
    EXPECT_NEAR(on_s / (double)s.run.n_spans, 15, 0.2);
    EXPECT_NEAR(on_squares / (double)s.run.n_spans, 2 * 15 * 15, 15);
    EXPECT_NEAR(off_s[500] / 300, 1, 0.12);             // median of the means
    EXPECT_NEAR(log(off_s[841] / off_s[500]), 1, 0.12); // one deviation
    EXPECT_NEAR(exp(log_gb[0]), 2, 0.1);
    EXPECT_NEAR(exp(log_gb[500]), sqrt(2 * 64), 1);
    EXPECT_NEAR(exp(log_gb[999]), 64, 3);
    EXPECT_NEAR(weight / 1000, 2.5, 0.15);
    double mean = gaps / n_gaps, cv = sqrt(squares / n_gaps - mean * mean) / mean;
    EXPECT_NEAR(cv, 1.79, 0.06); // 2 (0.7 * 0.3^2 + 0.3 * 2.633^2) - 1 is its square: 3.29, less
    evict_scenario_destroy(&s);  // what the model's own mean takes away
}

static void one_seed_gives_one_scenario(void) {
    evict_spec spec;
    evict_spec_init(&spec);
    evict_scenario a = scenario(&spec, 3), b = scenario(&spec, 3), c = scenario(&spec, 4);
    EXPECT_EQ(a.run.n_spans, b.run.n_spans);
    for (size_t i = 0; i < a.run.n_spans; i++) {
        EXPECT_EQ(a.spans[i].model_idx, b.spans[i].model_idx);
        EXPECT_EQ(a.spans[i].begin_us, b.spans[i].begin_us);
        EXPECT_EQ(a.spans[i].end_us, b.spans[i].end_us);
    }
    EXPECT(a.spans[0].begin_us != c.spans[0].begin_us);
    rng r1 = rng_make(1, 1, 1), r2 = r1;
    evict_result x = replay(&a.run, evict_random, &r1, false),
                 y = replay(&b.run, evict_random, &r2, false);
    EXPECT(memcmp(&x, &y, sizeof x) == 0);
    evict_scenario_destroy(&a);
    evict_scenario_destroy(&b);
    evict_scenario_destroy(&c);
}

enum { CLAIRVOYANT, KNOWING, RULE, LRU, RANDOM, N_POLICIES };

/* Load seconds of each policy over all sizes and idle times for one seed. */
static void load_seconds(uint64_t seed, uint32_t weight_max, double load_s[N_POLICIES],
                         double weighted_s[N_POLICIES]) {
    static const uint32_t N_MODELS[] = {16, 24, 40};
    static const double MEDIANS_S[] = {120, 300, 600};
    for (int k = 0; k < N_POLICIES; k++) load_s[k] = weighted_s[k] = 0;
    for (size_t i = 0; i < 9; i++) {
        evict_spec spec;
        evict_spec_init(&spec);
        spec.n_models = N_MODELS[i / 3], spec.off_median_s = MEDIANS_S[i % 3];
        spec.weight_max = weight_max;
        evict_scenario s = scenario(&spec, seed);
        rng random = rng_make(seed, 77, i);
        evict_result r[N_POLICIES];
        inferd_err err = {0};
        EXPECT_EQ(evict_clairvoyant(&s.run, &r[CLAIRVOYANT], &err), INFERD_OK);
        const evict_policy product = {"product", evict_product, NULL, false, true};
        EXPECT_EQ(evict_replay(&s.run, &product, &r[RULE], &err), INFERD_OK);
        const evict_policy knowing = {"knows the pauses", evict_knowing, NULL, false, true};
        EXPECT_EQ(evict_replay(&s.run, &knowing, &r[KNOWING], &err), INFERD_OK);
        r[LRU] = replay(&s.run, evict_lru, NULL, false);
        r[RANDOM] = replay(&s.run, evict_random, &random, false);
        for (int k = 0; k < N_POLICIES; k++) {
            EXPECT_EQ(r[k].n_served, r[0].n_served);
            EXPECT_EQ(r[k].first_us, r[0].first_us);
            EXPECT(r[k].load_us >= r[CLAIRVOYANT].load_us);
            load_s[k] += (double)r[k].load_us / 1e6;
            weighted_s[k] += (double)r[k].weighted_us / 1e6;
        }
        evict_scenario_destroy(&s);
    }
}

static void knowing_beats_guessing_beats_chance(void) {
    double sum[N_POLICIES] = {0}, s[N_POLICIES], weighted[N_POLICIES];
    uint32_t n_rule_wins = 0;
    for (uint64_t seed = 1; seed <= 8; seed++) {
        load_seconds(seed, 1, s, weighted);
        printf("evict: seed %" PRIu64
               ": over clairvoyant: knowing +%.1f %%, rule +%.1f %%, LRU +%.1f %%, random "
               "+%.1f %%\n",
               seed, 100 * (s[KNOWING] / s[0] - 1), 100 * (s[RULE] / s[0] - 1),
               100 * (s[LRU] / s[0] - 1), 100 * (s[RANDOM] / s[0] - 1));
        EXPECT(s[CLAIRVOYANT] < s[RULE] && s[LRU] < s[RANDOM] && s[RULE] < s[RANDOM]);
        n_rule_wins += s[RULE] <= s[LRU];
        for (int k = 0; k < N_POLICIES; k++) sum[k] += s[k];
    }
    printf("evict: all: rule +%.1f %%, LRU +%.1f %%, random +%.1f %%\n",
           100 * (sum[RULE] / sum[0] - 1), 100 * (sum[LRU] / sum[0] - 1),
           100 * (sum[RANDOM] / sum[0] - 1));
    EXPECT(sum[CLAIRVOYANT] < sum[RULE] && sum[RULE] <= sum[LRU] && sum[LRU] < sum[RANDOM]);
    EXPECT(n_rule_wins >= 5);
}

/* Weights of 1 to 4: the rule is made for them. */
static void the_rule_spares_models_whose_reload_costs_most(void) {
    double sum[N_POLICIES] = {0}, s[N_POLICIES], weighted[N_POLICIES];
    for (uint64_t seed = 1; seed <= 5; seed++) {
        load_seconds(seed, 4, s, weighted);
        for (int k = 0; k < N_POLICIES; k++) sum[k] += weighted[k];
    }
    printf("evict: weighted: rule %.1f %% below LRU\n", 100 * (1 - sum[RULE] / sum[LRU]));
    EXPECT(sum[RULE] < 0.985 * sum[LRU]);
}

static const test_case cases[] = {
    TEST(a_model_that_stays_is_loaded_once),
    TEST(a_cycle_is_what_lru_cannot_do),
    TEST(size_can_count_for_more_than_time),
    TEST(a_victim_that_would_not_help_is_spared),
    TEST(memory_of_running_models_evicts_idle_ones),
    TEST(what_can_never_fit_is_refused_and_evicts_no_model),
    TEST(a_policy_is_told_what_it_may_know),
    TEST(an_active_model_is_no_candidate),
    TEST(a_refused_activation_is_activity),
    TEST(the_future_skips_what_will_be_refused),
    TEST(policies_choose_by_their_values),
    TEST(wrong_runs_are_refused),
    TEST(activations_are_as_asked),
    TEST(one_seed_gives_one_scenario),
    TEST(knowing_beats_guessing_beats_chance),
    TEST(the_rule_spares_models_whose_reload_costs_most),
};
TEST_MAIN(cases)
