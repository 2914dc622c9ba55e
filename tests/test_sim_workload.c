/* test_sim_workload.c - the requests a simulation is offered are as the kinds promise: rates, gaps,
 * popularity, activity and lengths, for several seeds; and the same seed gives the same bytes. */
#include "test.h"

#include "../sim/workload.h"

static const uint64_t SEEDS[] = {1, 2, 3, 20231116, 0xfeedface};
enum { N_SEEDS = INFERD_COUNT(SEEDS), N_REQUESTS_MAX = 1 << 21 };

static const uint64_t SECOND = 1000000;

/* A trace of seven rows in twelve seconds; output is ten times the prompt. */
static trace_row tiny_rows[] = {{0, 10, 100},          {1000000000, 20, 200}, {1500000000, 30, 300},
                                {1500000000, 40, 400}, {4000000000, 50, 500}, {9000000000, 60, 600},
                                {12000000000, 70, 700}};
static const trace TINY = {.rows = tiny_rows, .n = 7};

typedef struct drawn {
    workload_request *r; // [n] owned
    size_t n;
} drawn;

static workload *open_workload(const workload_spec *spec) {
    workload *w;
    inferd_err err = {0};
    if (workload_create(spec, &w, &err) != INFERD_OK) {
        printf("%s\n", err.text);
        exit(1);
    }
    return w;
}

static drawn draw_all(const workload_spec *spec) {
    drawn d = {NULL, 0};
    workload *w = open_workload(spec);
    workload_request r;
    while (workload_next(w, &r)) {
        INFERD_CHECK(d.n < N_REQUESTS_MAX);
        if ((d.n & (d.n - 1)) == 0) d.r = realloc(d.r, 2 * (d.n + 1) * sizeof *d.r);
        INFERD_CHECK(d.r != NULL);
        d.r[d.n++] = r;
    }
    workload_destroy(w);
    return d;
}

static workload_spec spec_of(workload_kind kind, uint64_t seed, uint64_t seconds) {
    workload_spec s;
    workload_spec_init(&s, kind);
    s.seed = seed;
    s.duration_us = seconds * SECOND;
    if (kind == WORKLOAD_TRACE) s.rows = &TINY;
    return s;
}

static size_t count_model(const drawn *d, uint32_t model_idx) {
    size_t n = 0;
    for (size_t i = 0; i < d->n; i++) n += d->r[i].model_idx == model_idx;
    return n;
}

static size_t count_tenant(const drawn *d, uint32_t tenant_idx) {
    size_t n = 0;
    for (size_t i = 0; i < d->n; i++) n += d->r[i].tenant_idx == tenant_idx;
    return n;
}

/* Mean and coefficient of variation of the gaps of one model. */
static void gaps_of(const drawn *d, uint32_t model_idx, double *out_mean_s, double *out_cv) {
    double sum = 0, squares = 0, n = 0, last = -1;
    for (size_t i = 0; i < d->n; i++) {
        if (d->r[i].model_idx != model_idx) continue;
        double at = (double)d->r[i].arrival_us / 1e6;
        if (last >= 0) sum += at - last, squares += (at - last) * (at - last), n++;
        last = at;
    }
    *out_mean_s = sum / n;
    *out_cv = sqrt(squares / n - sum / n * (sum / n)) / (sum / n);
}

/* ---- all kinds ---- */

static void one_seed_gives_one_workload(void) {
    for (uint32_t kind = 0; kind < WORKLOAD_KINDS; kind++) {
        workload_spec s = spec_of((workload_kind)kind, 7, 300);
        s.n_tenants = 3;
        drawn a = draw_all(&s), b = draw_all(&s);
        EXPECT(a.n > 5);
        EXPECT_EQ(a.n, b.n);
        EXPECT(memcmp(a.r, b.r, a.n * sizeof *a.r) == 0);
        free(b.r);
        s.seed = 8;
        b = draw_all(&s);
        EXPECT(a.n != b.n || memcmp(a.r, b.r, a.n * sizeof *a.r) != 0);
        free(a.r);
        free(b.r);
    }
}

static trace_row empty_rows[] = {{0, 0, 0}, {1000000000, 400, 400}};
static const trace EMPTY = {.rows = empty_rows, .n = 2};

static void requests_come_in_order_and_within_bounds(void) {
    for (uint32_t kind = 0; kind < WORKLOAD_KINDS; kind++) {
        workload_spec s = spec_of((workload_kind)kind, 11, 200);
        s.prompt_max = 300, s.output_max = 200;
        s.lengths = LENGTHS_CODE; // one output in a hundred is drawn below half a token
        if (kind == WORKLOAD_TRACE) s.rows = &EMPTY;
        uint32_t n_tenants = kind == WORKLOAD_ADV ? ADV_TENANTS : kind == WORKLOAD_PRE ? 2 : 1;
        drawn d = draw_all(&s);
        for (size_t i = 0; i < d.n; i++) {
            const workload_request *r = &d.r[i];
            EXPECT_EQ(r->idx, i);
            EXPECT(i == 0 || r->arrival_us >= r[-1].arrival_us);
            EXPECT(r->arrival_us < s.duration_us);
            EXPECT(r->model_idx < s.n_models && r->tenant_idx < n_tenants);
            EXPECT(r->n_prompt >= 1 && r->n_prompt <= 300);
            EXPECT(r->n_output >= 1 && r->n_output <= 200);
            EXPECT(r->prio < GEN_CLASSES);
        }
        free(d.r);
    }
}

static void what_is_asked_does_not_depend_on_when(void) {
    workload_spec s = spec_of(WORKLOAD_MIX_M, 3, 4000);
    s.n_models = 1;
    s.n_tenants = 5;
    drawn slow = draw_all(&s);
    s.rate_factor = 3;
    drawn fast = draw_all(&s);
    EXPECT(fast.n > 2 * slow.n);
    for (size_t i = 0; i < slow.n; i++) {
        EXPECT_EQ(fast.r[i].n_prompt, slow.r[i].n_prompt);
        EXPECT_EQ(fast.r[i].n_output, slow.r[i].n_output);
        EXPECT_EQ(fast.r[i].tenant_idx, slow.r[i].tenant_idx);
        EXPECT_NEAR((double)fast.r[i].arrival_us * 3, (double)slow.r[i].arrival_us, 4);
    }
    free(slow.r);
    free(fast.r);
}

static void tenants_and_hints_are_as_asked(void) {
    workload_spec s = spec_of(WORKLOAD_MIX_Z, 5, 4000);
    s.n_tenants = 4;
    s.slo_ttft_us = 500000, s.slo_tpot_us = 40000;
    drawn d = draw_all(&s);
    for (size_t i = 0; i < d.n; i++) {
        EXPECT_EQ(d.r[i].prio, GEN_NORMAL);
        EXPECT_EQ(d.r[i].slo_ttft_us, 500000);
        EXPECT_EQ(d.r[i].slo_tpot_us, 40000);
    }
    for (uint32_t t = 0; t < 4; t++)
        EXPECT_NEAR((double)count_tenant(&d, t) / (double)d.n, 0.25, 0.02);
    free(d.r);
}

/* ---- mixes ---- */

static void a_market_is_poisson_in_every_model(void) {
    for (size_t k = 0; k < N_SEEDS; k++) {
        workload_spec s = spec_of(WORKLOAD_MIX_M, SEEDS[k], 50000);
        s.n_models = 10;
        s.rate_per_s = 0.1;
        s.rate_factor = 2;
        drawn d = draw_all(&s);
        double cv_sum = 0;
        for (uint32_t m = 0; m < s.n_models; m++) {
            double mean_s, cv;
            gaps_of(&d, m, &mean_s, &cv);
            EXPECT_NEAR(mean_s, 5, 0.2); // of 10,000 gaps: 4 deviations
            EXPECT_NEAR(cv, 1, 0.03);
            cv_sum += cv;
        }
        printf("market: seed %" PRIu64 ": %zu requests, mean CV %.4f\n", SEEDS[k], d.n,
               cv_sum / 10);
        free(d.r);
    }
}

/* The slope of log count over log rank. */
static double slope_of(const drawn *d, uint32_t n_models) {
    double sx = 0, sy = 0, sxx = 0, sxy = 0, n = n_models;
    for (uint32_t m = 0; m < n_models; m++) {
        double x = log(m + 1.0), y = log((double)count_model(d, m));
        sx += x, sy += y, sxx += x * x, sxy += x * y;
    }
    return (n * sxy - sx * sy) / (n * sxx - sx * sx);
}

static void popularity_follows_zipf(void) {
    static const double EXPONENTS[] = {0, 0.5, 1, 1.5};
    for (size_t k = 0; k < N_SEEDS; k++)
        for (size_t e = 0; e < INFERD_COUNT(EXPONENTS); e++) {
            workload_spec s = spec_of(WORKLOAD_MIX_Z, SEEDS[k], 10000);
            s.n_models = 12;
            s.zipf = EXPONENTS[e];
            drawn d = draw_all(&s);
            double slope = slope_of(&d, s.n_models);
            EXPECT_NEAR((double)d.n / 10000, 5.5, 0.1);
            EXPECT_NEAR(slope, -EXPONENTS[e], 0.04);
            double mean_s, cv;
            gaps_of(&d, 0, &mean_s, &cv); // thinned Poisson is Poisson
            EXPECT_NEAR(cv, 1, 0.04);
            if (e == 2)
                printf("zipf: seed %" PRIu64 ": slope %.4f, expected -1\n", SEEDS[k], slope);
            free(d.r);
        }
}

static void gamma_gaps_have_their_rate_and_variation(void) {
    static const double CVS[] = {0.5, 1, 2, 4, 8};
    for (size_t k = 0; k < N_SEEDS; k++)
        for (size_t c = 0; c < INFERD_COUNT(CVS); c++) {
            workload_spec s = spec_of(WORKLOAD_MIX_G, SEEDS[k], (uint64_t)(12500 * CVS[c]));
            s.n_models = 1;
            s.rate_per_s = 2;
            s.cv = CVS[c];
            drawn d = draw_all(&s);
            double mean_s, cv;
            gaps_of(&d, 0, &mean_s, &cv);
            EXPECT_NEAR(mean_s * 2, 1, 0.025 * sqrt(CVS[c])); // 4 deviations
            EXPECT_NEAR(cv / CVS[c], 1, 0.02 + 0.008 * CVS[c]);
            if (c == 4) printf("gamma: seed %" PRIu64 ": CV %.3f, expected 8\n", SEEDS[k], cv);
            free(d.r);
        }
}

/* Whoever starts a renewal process with a whole gap sees 31 requests too many at a CV of 8, all in
 * the first moments: a storm that nobody asked for. */
static void gamma_begins_in_the_middle_of_a_gap(void) {
    workload_spec s = spec_of(WORKLOAD_MIX_G, 4, 10);
    s.n_models = 4000;
    s.cv = 8;
    size_t n = 0;
    for (size_t k = 0; k < N_SEEDS; k++) {
        s.seed = SEEDS[k];
        drawn d = draw_all(&s);
        n += d.n;
        free(d.r);
    }
    EXPECT_NEAR((double)n / (N_SEEDS * 4000.0 * 10 * 0.5), 1, 0.15);
}

/* Activity of models, seen from outside: a model with 20 requests a second is OFF where there is
 * none for 0.8 s. */
enum { B_MODELS = 16, B_SECONDS = 3600, B_RATE = 20 };
static const double B_QUIET_S = 0.8;

typedef struct activity {
    uint8_t on[B_MODELS][B_SECONDS]; // at each full second
    double on_s, n_runs;
} activity;

static void activity_add(activity *a, uint32_t m, double from_s, double to_s) {
    for (double t = ceil(from_s); t <= to_s && t < B_SECONDS; t++) a->on[m][(size_t)t] = 1;
    a->on_s += to_s - from_s;
    a->n_runs++;
}

static activity *watch(const workload_spec *s) {
    activity *a = calloc(1, sizeof *a);
    workload *w = open_workload(s);
    double from[B_MODELS], last[B_MODELS];
    for (int m = 0; m < B_MODELS; m++) from[m] = last[m] = -1;
    INFERD_CHECK(a != NULL);
    workload_request r;
    while (workload_next(w, &r)) {
        double at = (double)r.arrival_us / 1e6;
        uint32_t m = r.model_idx;
        if (from[m] < 0 || at - last[m] > B_QUIET_S) {
            if (from[m] >= 0) activity_add(a, m, from[m], last[m] + 1.0 / B_RATE);
            from[m] = at;
        }
        last[m] = at;
    }
    for (uint32_t m = 0; m < B_MODELS; m++)
        if (from[m] >= 0) activity_add(a, m, from[m], last[m] + 1.0 / B_RATE);
    workload_destroy(w);
    return a;
}

static double correlation_of(const activity *a, int i, int k) {
    double si = 0, sk = 0, sik = 0, n = B_SECONDS;
    for (int t = 0; t < B_SECONDS; t++)
        si += a->on[i][t], sk += a->on[k][t], sik += a->on[i][t] & a->on[k][t];
    double pi = si / n, pk = sk / n;
    return (sik / n - pi * pk) / sqrt(pi * (1 - pi) * pk * (1 - pk));
}

static void groups_are_on_together(void) {
    static const double WANTED[] = {0, 0.5, 1};
    for (size_t c = 0; c < INFERD_COUNT(WANTED); c++) {
        double inside = 0, outside = 0, on_s = 0, n_runs = 0, start_on = 0;
        for (size_t k = 0; k < N_SEEDS; k++) {
            workload_spec s = spec_of(WORKLOAD_MIX_B, SEEDS[k], B_SECONDS);
            s.n_models = B_MODELS;
            s.rate_per_s = B_RATE;
            s.correlation = WANTED[c];
            activity *a = watch(&s);
            double in = 0, across = 0;
            for (int i = 0; i < B_MODELS; i++)
                for (int m = 0; m < i; m++)
                    *(i / 4 == m / 4 ? &in : &across) += correlation_of(a, i, m);
            inside += in / 24, outside += across / 96; // pairs
            on_s += a->on_s, n_runs += a->n_runs;
            for (int i = 0; i < B_MODELS; i++) start_on += a->on[i][1];
            printf("groups: seed %" PRIu64 ": ON %.3f, mean ON %.2f s, correlation %.3f, expected "
                   "%.1f\n",
                   SEEDS[k], a->on_s / (B_MODELS * (double)B_SECONDS), a->on_s / a->n_runs, in / 24,
                   WANTED[c]);
            free(a);
        }
        EXPECT_NEAR(inside / N_SEEDS, WANTED[c], 0.05);
        EXPECT_NEAR(outside / N_SEEDS, 0, 0.04);
        EXPECT_NEAR(on_s / (N_SEEDS * B_MODELS * (double)B_SECONDS), 15.0 / 51, 0.025);
        EXPECT_NEAR(on_s / n_runs, 15, 0.9);
        EXPECT_NEAR(start_on / (N_SEEDS * B_MODELS), 15.0 / 51, c == 2 ? 0.2 : 0.15);
    }
}

/* A wait for the next request goes on where it was when the model is ON again. */
static void rare_requests_keep_their_rate(void) {
    workload_spec s = spec_of(WORKLOAD_MIX_B, 1, 3600);
    s.n_models = 64, s.rate_per_s = 0.1, s.correlation = 0;
    size_t n = 0;
    for (size_t k = 0; k < N_SEEDS; k++) {
        s.seed = SEEDS[k];
        drawn d = draw_all(&s);
        n += d.n;
        free(d.r);
    }
    EXPECT_NEAR((double)n / (N_SEEDS * 64 * 3600 * 0.1 * 15 / 51), 1, 0.04);
}

/* The first moment is like any other: 4,000 models, none of them correlated, then in pairs. */
static void activity_is_stationary_from_the_start(void) {
    workload_spec s = spec_of(WORKLOAD_MIX_B, 9, 1);
    s.n_models = 4000, s.rate_per_s = 50, s.group_size = 2;
    drawn d = draw_all(&s);
    static uint8_t on[4000];
    memset(on, 0, sizeof on);
    for (size_t i = 0; i < d.n; i++)
        if (d.r[i].arrival_us < 200000) on[d.r[i].model_idx] = 1;
    double n = 0, n_both = 0, p = 15.0 / 51;
    for (int m = 0; m < 4000; m += 2) n += on[m] + on[m + 1], n_both += on[m] & on[m + 1];
    EXPECT_NEAR(n / 4000, p, 0.04);
    EXPECT_NEAR((n_both / 2000 - p * p) / (p * (1 - p)), 0.5, 0.12);
    free(d.r);
}

/* ---- traces and lengths ---- */

static void a_trace_is_replayed_at_a_factor(void) {
    workload_spec s = spec_of(WORKLOAD_TRACE, 1, 100);
    s.rate_factor = 2;
    drawn d = draw_all(&s);
    EXPECT_EQ(d.n, 7); // once
    for (size_t i = 0; i < d.n; i++) {
        EXPECT_EQ(d.r[i].arrival_us, tiny_rows[i].at_ns / 2000);
        EXPECT_EQ(d.r[i].n_prompt, tiny_rows[i].n_prompt);
        EXPECT_EQ(d.r[i].n_output, tiny_rows[i].n_output);
        EXPECT_EQ(d.r[i].model_idx, 0);
    }
    free(d.r);
    s.duration_us = 4 * SECOND / 2; // half-open: the row at 2 s is not in it
    d = draw_all(&s);
    EXPECT_EQ(d.n, 4);
    free(d.r);
}

static int by_value(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static void mean_and_p99(uint32_t *values, size_t n, double *out_mean, double *out_p99) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += values[i];
    qsort(values, n, sizeof *values, by_value);
    *out_mean = sum / (double)n;
    *out_p99 = values[(size_t)ceil(0.99 * (double)n) - 1];
}

static void lengths_have_mean_and_p99_of_the_azure_traces(void) {
    static const struct {
        workload_lengths lengths;
        double prompt_mean, prompt_p99, output_mean, output_p99;
    } WANTED[] = {{LENGTHS_CONV, 1155, 4142, 211, 601}, {LENGTHS_CODE, 2048, 7436, 28, 252}};
    for (size_t k = 0; k < N_SEEDS; k++)
        for (size_t i = 0; i < 2; i++) {
            workload_spec s = spec_of(WORKLOAD_MIX_Z, SEEDS[k], 5000);
            s.lengths = WANTED[i].lengths;
            s.rate_factor = 2;
            drawn d = draw_all(&s);
            uint32_t *values = malloc(d.n * sizeof *values);
            INFERD_CHECK(values != NULL);
            double mean, p99, out_mean, out_p99;
            for (size_t r = 0; r < d.n; r++) values[r] = d.r[r].n_prompt;
            mean_and_p99(values, d.n, &mean, &p99);
            EXPECT_NEAR(mean / WANTED[i].prompt_mean, 1, 0.015);
            EXPECT_NEAR(p99 / WANTED[i].prompt_p99, 1, 0.04);
            for (size_t r = 0; r < d.n; r++) values[r] = d.r[r].n_output;
            mean_and_p99(values, d.n, &out_mean, &out_p99);
            EXPECT_NEAR(out_mean / WANTED[i].output_mean, 1, 0.03);
            EXPECT_NEAR(out_p99 / WANTED[i].output_p99, 1, 0.07);
            printf("lengths: seed %" PRIu64 " %s: prompt mean %.0f p99 %.0f, output mean %.1f p99 "
                   "%.0f\n",
                   SEEDS[k], i == 0 ? "conv" : "code", mean, p99, out_mean, out_p99);
            free(values);
            free(d.r);
        }
}

/* ---- scenarios ---- */

static drawn only_tenant(const drawn *d, uint32_t tenant_idx) {
    drawn out = {malloc(d->n * sizeof *out.r + 1), 0};
    INFERD_CHECK(out.r != NULL);
    for (size_t i = 0; i < d->n; i++)
        if (d->r[i].tenant_idx == tenant_idx) out.r[out.n++] = d->r[i];
    return out;
}

static void the_victim_sends_the_same_under_attack(void) {
    workload_spec s = spec_of(WORKLOAD_ADV, 21, 300);
    s.attacks = 0;
    drawn alone = draw_all(&s);
    s.attacks = ATTACK_ALL;
    s.rate_factor = 2;
    drawn all = draw_all(&s), victim = only_tenant(&all, ADV_TENANT_VICTIM);
    EXPECT_EQ(alone.n, 300);
    EXPECT_EQ(victim.n, 300);
    for (size_t i = 0; i < alone.n; i++) {
        EXPECT_EQ(alone.r[i].arrival_us, i * SECOND);
        EXPECT_EQ(alone.r[i].prio, GEN_HIGH);
        EXPECT_EQ(alone.r[i].model_idx, 0);
        victim.r[i].idx = alone.r[i].idx; // its place among all is another one
        EXPECT(memcmp(&alone.r[i], &victim.r[i], sizeof *victim.r) == 0);
    }
    free(victim.r);
    free(all.r);
    free(alone.r);
}

static void attacks_are_what_they_say(void) {
    workload_spec s = spec_of(WORKLOAD_ADV, 22, 3000);
    s.output_max = 777;
    drawn all = draw_all(&s);
    for (size_t i = 0; i < all.n; i++) {
        const workload_request *r = &all.r[i];
        if (r->tenant_idx == ADV_TENANT_FLOOD) EXPECT_EQ(r->n_prompt, 8192);
        if (r->tenant_idx == ADV_TENANT_SHORT) EXPECT_EQ(r->n_output, 1);
        if (r->tenant_idx == ADV_TENANT_LONG) EXPECT_EQ(r->n_output, 777);
        if (r->tenant_idx != ADV_TENANT_VICTIM) EXPECT_EQ(r->prio, GEN_NORMAL);
        if (r->tenant_idx != ADV_TENANT_STORM) EXPECT_EQ(r->model_idx, 0);
    }
    EXPECT_NEAR((double)count_tenant(&all, ADV_TENANT_FLOOD) / 3000, 2, 0.1);
    EXPECT_NEAR((double)count_tenant(&all, ADV_TENANT_SHORT) / 3000, 50, 0.5);
    EXPECT_NEAR((double)count_tenant(&all, ADV_TENANT_LONG) / 3000, 1, 0.08);
    free(all.r);
    for (uint32_t attack = 1; attack <= ATTACK_ALL; attack++) { // each alone and in every company
        s.attacks = attack;
        s.duration_us = 100 * SECOND;
        drawn d = draw_all(&s);
        for (uint32_t t = ADV_TENANT_FLOOD; t < ADV_TENANTS; t++)
            EXPECT_EQ(count_tenant(&d, t) > 0, (attack >> (t - 1)) & 1);
        free(d.r);
    }
}

static void storms_wake_twenty_models_within_a_second(void) {
    workload_spec s = spec_of(WORKLOAD_ADV, 23, 20 * 30 + 5);
    s.attacks = ATTACK_STORM;
    s.n_models = 25;
    drawn all = draw_all(&s), storm = only_tenant(&all, ADV_TENANT_STORM);
    EXPECT_EQ(storm.n, 20 * 20);
    double offset_sum = 0;
    uint32_t n_first_differs = 0;
    for (size_t e = 0; e < 20; e++) {
        uint32_t seen = 0;
        for (size_t i = 0; i < 20; i++) {
            const workload_request *r = &storm.r[e * 20 + i];
            uint64_t from = (e + 1) * 30 * SECOND;
            EXPECT(r->arrival_us >= from && r->arrival_us <= from + SECOND);
            EXPECT(r->model_idx >= 5 && r->model_idx < 25); // the cold ones are the last
            seen |= 1u << (r->model_idx - 5);
            offset_sum += (double)(r->arrival_us - from) / 1e6;
        }
        EXPECT_EQ(seen, (1u << 20) - 1);
        if (e > 0) n_first_differs += storm.r[e * 20].model_idx != storm.r[e * 20 - 20].model_idx;
    }
    EXPECT_NEAR(offset_sum / 400, 0.5, 0.05); // evenly over the second
    EXPECT_EQ(n_first_differs, 19);
    free(storm.r);
    free(all.r);
}

static void an_urgent_model_wakes_beside_a_saturated_device(void) {
    workload_spec s = spec_of(WORKLOAD_PRE, 31, 3600);
    s.pre_backlog = 40;
    s.rate_factor = 2;
    drawn d = draw_all(&s);
    size_t n_urgent = 0, n_batch = 0, n_at_start = 0;
    double offset_sum = 0;
    for (size_t i = 0; i < d.n; i++) {
        const workload_request *r = &d.r[i];
        if (r->model_idx == PRE_MODEL_URGENT) {
            uint64_t from = (n_urgent + 1) * 30 * SECOND;
            EXPECT(r->arrival_us >= from && r->arrival_us < from + SECOND);
            EXPECT_EQ(r->prio, GEN_HIGH);
            EXPECT_EQ(r->tenant_idx, 1);
            offset_sum += (double)(r->arrival_us - from) / 1e6;
            n_urgent++;
        } else {
            EXPECT_EQ(r->prio, GEN_BATCH);
            EXPECT_EQ(r->model_idx, PRE_MODEL_BATCH);
            n_at_start += r->arrival_us == 0;
            n_batch++;
        }
    }
    EXPECT_EQ(n_urgent, 119);
    EXPECT_NEAR(offset_sum / 119, 0.5, 0.1);
    EXPECT_EQ(n_at_start, 40);
    EXPECT_NEAR((double)(n_batch - 40) / 3600, 40, 0.5);
    free(d.r);
}

/* ---- what is refused ---- */

static void refused(const workload_spec *s, const char *sentence) {
    workload *w = NULL;
    inferd_err err = {0};
    EXPECT_EQ(workload_create(s, &w, &err), INFERD_EINVAL);
    EXPECT_STR(err.text, sentence);
    EXPECT(w == NULL);
    workload_destroy(w);
}

static void a_wrong_field_is_named(void) {
    workload_spec s = spec_of(WORKLOAD_MIX_M, 1, 10);
    s.n_models = 5000;
    refused(&s, "workload: n_models is 5000, expected 1 to 4096");
    s = spec_of(WORKLOAD_ADV, 1, 10);
    s.n_models = 20;
    refused(&s, "workload: n_models is 20, expected 21 to 4096");
    s = spec_of(WORKLOAD_PRE, 1, 10);
    s.n_models = 1;
    refused(&s, "workload: n_models is 1, expected 2 to 4096");
    s = spec_of(WORKLOAD_TRACE, 1, 10);
    s.rows = NULL;
    refused(&s, "workload: a workload of kind trace needs a trace");
}

static const test_case cases[] = {
    TEST(one_seed_gives_one_workload),
    TEST(requests_come_in_order_and_within_bounds),
    TEST(what_is_asked_does_not_depend_on_when),
    TEST(tenants_and_hints_are_as_asked),
    TEST(a_market_is_poisson_in_every_model),
    TEST(popularity_follows_zipf),
    TEST(gamma_gaps_have_their_rate_and_variation),
    TEST(gamma_begins_in_the_middle_of_a_gap),
    TEST(groups_are_on_together),
    TEST(rare_requests_keep_their_rate),
    TEST(activity_is_stationary_from_the_start),
    TEST(a_trace_is_replayed_at_a_factor),
    TEST(lengths_have_mean_and_p99_of_the_azure_traces),
    TEST(the_victim_sends_the_same_under_attack),
    TEST(attacks_are_what_they_say),
    TEST(storms_wake_twenty_models_within_a_second),
    TEST(an_urgent_model_wakes_beside_a_saturated_device),
    TEST(a_wrong_field_is_named),
};
TEST_MAIN(cases)
