/* test_rate.c - the time of steps, learned from synthetic devices: what they compute costs so much
 * for the step, a row, a draw and an attended position, with noise and worse. */
#include "test.h"

#include "rate.h"

typedef struct device {
    double step_us, row_us, draw_us, attended_us; // what the rate has to find out
    double noise;                                 // relative, evenly spread
} device;

/* From a small model on a GPU to a large one on a laptop. */
static const device devices[] = {
    {2000, 350, 100, 0.02, 0.05},   {300, 60, 150, 0.02, 0.1},   {7000, 25, 20, 0.0001, 0.05},
    {92000, 10000, 500, 0.2, 0.05}, {1000, 1000, 0, 0.05, 0.02},
};

static uint64_t noise_state;
static double noise(void) { // -1 ... 1
    noise_state = noise_state * 6364136223846793005u + 1442695040888963407u;
    return (double)(noise_state >> 33) / (double)(1u << 30) - 1;
}

static double true_us(const device *d, const rate_work *w) {
    return d->step_us + d->row_us * w->rows + d->draw_us * w->draws +
           d->attended_us * (double)w->attended;
}

/* The step is done and measured: the time it took. */
static double compute(rate *r, const device *d, const rate_work *w) {
    double us = true_us(d, w) * (1 + d->noise * noise());
    rate_add(r, w, (uint64_t)us);
    return us;
}

static rate_work decode_of(uint32_t n_streams, uint32_t context) {
    rate_work w = {.draws = n_streams};
    for (uint32_t i = 0; i < n_streams; i++) rate_add_rows(&w, context, 1);
    return w;
}

static void decode(rate *r, const device *d, uint32_t n_streams, uint32_t context,
                   uint32_t n_steps) {
    for (uint32_t i = 0; i < n_steps; i++) {
        rate_work w = decode_of(n_streams, context + i);
        compute(r, d, &w);
    }
}

typedef struct prefill_result {
    uint32_t n_steps;
    double worst; // longest step divided by what it should have taken; the first ones apart
    double total_us;
} prefill_result;

/* A prompt behind `begin` tokens, beside streams: each step is planned for 1.4 times its time
 * without the prompt, or for what is given. */
static prefill_result prefill(rate *r, const device *d, uint32_t n_streams, uint32_t context,
                              uint32_t begin, uint32_t n_tokens, uint64_t budget_us,
                              uint32_t n_first) {
    prefill_result out = {0};
    for (uint32_t done = 0; done < n_tokens; out.n_steps++) {
        rate_work w = decode_of(n_streams, context + out.n_steps);
        uint64_t wanted_us = budget_us != 0 ? budget_us : rate_us(r, &w) * 14 / 10;
        uint32_t n = u32_max(rate_rows(r, wanted_us, &w, begin + done, n_tokens - done), 1);
        rate_add_rows(&w, begin + done, u32_min(n, 512));
        done += u32_min(n, 512);
        w.draws += done == n_tokens;
        double us = compute(r, d, &w), share = us / (double)wanted_us;
        if (out.n_steps >= n_first && n > 1 && share > out.worst) out.worst = share;
        out.total_us += us;
    }
    return out;
}

/* A device that has served a few prompts and some streams. */
static rate used(const device *d) {
    rate r = {0};
    noise_state = 1;
    for (int i = 0; i < 4; i++) prefill(&r, d, 0, 0, 0, 100, 100000, 0);
    decode(&r, d, 4, 100, 200);
    return r;
}

static double relative(const rate *r, const device *d, rate_work w) {
    return (double)rate_us(r, &w) / true_us(d, &w);
}

static void nothing_is_known_at_first(void) {
    rate r = {0};
    rate_work none = {0}, w = {32, 1, 528};
    EXPECT_EQ(rate_us(&r, &w), 0);
    EXPECT_EQ(rate_rows(&r, 1, &none, 0, 1000), RATE_DEFAULT_ROWS);
    EXPECT_EQ(rate_rows(&r, 1, &none, 0, 7), 7);
    rate_add(&r, &none, 1000); // nothing was computed
    EXPECT_EQ(rate_us(&r, &w), 0);
    rate_add(&r, &w, 2600);
    EXPECT_NEAR(rate_us(&r, &w), 2600, 2);
    w.rows = 64;
    EXPECT(rate_us(&r, &w) > 4500); // charged to the rows: a larger step is not promised too much
    EXPECT_EQ(rate_rows(&r, 1000000, &none, 0, 1000), 64); // twice the largest step seen
    EXPECT_EQ(rate_rows(&r, 100, &none, 0, 1000), 0);
}

static void small_steps_double_whatever_they_took(void) {
    rate r = {0};
    device d = {2000, 100, 0, 0, 0};
    decode(&r, &d, 1, 1, 200); // all steps had one row: a step and a row cannot be told apart
    rate_work none = {0};
    EXPECT_EQ(rate_rows(&r, 2500, &none, 0, 1000), 2);
    prefill_result p = prefill(&r, &d, 1, 200, 0, 1000, 2600, 5);
    EXPECT(p.n_steps < 400); // five rows beside the one that decodes
}

static void prices_are_found(void) {
    for (size_t i = 0; i < INFERD_COUNT(devices); i++) {
        const device *d = &devices[i];
        rate r = used(d);
        EXPECT_NEAR(relative(&r, d, decode_of(4, 300)), 1, 0.1);
        prefill(&r, d, 4, 300, 0, 1000, 0, 0);
        rate_work w = decode_of(4, 400);
        rate_add_rows(&w, 500, 16);
        EXPECT_NEAR(relative(&r, d, w), 1, 0.2);
        prefill(&r, d, 0, 0, 0, 4000, 0, 0);
        w = decode_of(4, 1000);
        EXPECT_NEAR(relative(&r, d, w), 1, 0.3); // the steps before had neither draws nor streams
    }
}

static void a_prompt_beside_streams_keeps_their_time(void) {
    static const uint32_t contexts[] = {0, 1000, 10000, 100000};
    for (size_t i = 0; i < INFERD_COUNT(devices); i++)
        for (size_t k = 0; k < INFERD_COUNT(contexts); k++) {
            const device *d = &devices[i];
            rate r = used(d);
            decode(&r, d, 4, contexts[k], 50);
            /* Behind that context, too: the first steps may find out what it costs. */
            prefill_result p = prefill(&r, d, 4, contexts[k], contexts[k], 512, 0, 4);
            EXPECT(p.worst < 1.25);
            /* The time was used: no step much shorter than it might be. */
            rate_work w = decode_of(4, contexts[k]);
            EXPECT(p.total_us < 60 * p.n_steps + 1.6 * p.n_steps * true_us(d, &w));
        }
}

static void a_long_prompt_alone_keeps_to_its_limit(void) {
    for (size_t i = 0; i < 3; i++) {
        rate r = used(&devices[i]);
        prefill_result p = prefill(&r, &devices[i], 0, 0, 0, 100000, 100000, 3);
        EXPECT(p.worst < 1.2);
    }
}

static void a_machine_twice_as_slow_is_noticed(void) {
    for (size_t i = 0; i < INFERD_COUNT(devices); i++) {
        device d = devices[i];
        rate r = used(&d);
        prefill(&r, &d, 4, 300, 0, 512, 0, 0);
        decode(&r, &d, 4, 340, 100);
        d.step_us *= 2, d.row_us *= 2, d.draw_us *= 2, d.attended_us *= 2;
        decode(&r, &d, 4, 440, 12);
        EXPECT_NEAR(relative(&r, &d, decode_of(4, 450)), 1, 0.2);
        prefill_result p = prefill(&r, &d, 4, 450, 0, 512, 0, 3);
        EXPECT(p.worst < 1.35);
        d = devices[i];
        decode(&r, &d, 4, 500, 12);
        EXPECT_NEAR(relative(&r, &d, decode_of(4, 510)), 1, 0.2);
    }
}

static void a_hiccup_is_soon_forgotten(void) {
    const device *d = &devices[0];
    rate r = used(d);
    rate_work w = decode_of(4, 300);
    rate_add(&r, &w, 5000000);
    EXPECT(relative(&r, d, w) < 1.5);
    decode(&r, d, 4, 301, 10);
    EXPECT_NEAR(relative(&r, d, decode_of(4, 312)), 1, 0.12);
    for (int i = 0; i < 3; i++) rate_add(&r, &w, 50000); // three are not a hiccup any more
    EXPECT(relative(&r, d, w) > 3);
}

/* What a row costs is not to be seen while nothing but decoding happens, for hours perhaps. */
static void decoding_alone_does_not_change_what_a_row_costs(void) {
    for (size_t i = 0; i < INFERD_COUNT(devices); i++) {
        const device *d = &devices[i];
        rate r = used(d);
        prefill(&r, d, 4, 300, 0, 1000, 0, 0);
        rate_work w = decode_of(4, 400);
        rate_add_rows(&w, 0, 100);
        double before = relative(&r, d, w);
        for (int k = 0; k < 50; k++) decode(&r, d, 4, 400, 400);
        EXPECT_NEAR(relative(&r, d, w) / before, 1, 0.35);
    }
}

/* Seen with 4 streams and a prompt of 4,000 tokens: the steep price of its last rows was kept while
 * only decoding followed, and the prompts after it got steps of ten rows that took half the time
 * allowed, too alike to tell that rows had become cheap. */
static void a_price_too_high_is_given_up(void) {
    device slow = {4000, 2500, 0, 0, 0}, fast = {2000, 100, 0, 0, 0};
    rate r = {0};
    noise_state = 1;
    for (int i = 0; i < 10; i++) prefill(&r, &slow, 1, 0, 0, 200, 100000, 0);
    decode(&r, &fast, 4, 0, 300);
    EXPECT(prefill(&r, &fast, 0, 0, 0, 2000, 25000, 0).n_steps < 20);
}

static void nonsense_does_no_harm(void) {
    rate r = {0};
    rate_work w = {1, 0, 1}, huge = {65536, 4096, (uint64_t)1 << 50}, none = {0};
    for (int i = 0; i < 100; i++) {
        rate_add(&r, &w, 0);
        rate_add(&r, &huge, UINT64_MAX);
        rate_add(&r, &w, UINT64_MAX);
        rate_add(&r, &huge, 0);
        for (int k = 0; k < RATE_TERMS; k++) EXPECT(r.price[k] >= 0 && r.price[k] < 1e9);
    }
    EXPECT(rate_rows(&r, UINT64_MAX, &none, 0, 1000) <= 1000);
    rate_work step = {100, 1, 5000};
    for (int i = 0; i < 300; i++) rate_add(&r, &step, 10000);
    EXPECT_NEAR(rate_us(&r, &step), 10000, 500);
}

static void the_error_of_predictions_is_told(void) {
    rate r = {0};
    rate_work w = {.rows = 10, .draws = 10, .attended = 100};
    EXPECT_EQ(rate_error_ppm(&r), 0);
    rate_add(&r, &w, 1000);
    EXPECT_EQ(rate_error_ppm(&r), 0); // nothing was predicted
    rate_add(&r, &w, 2000);
    EXPECT_NEAR(rate_error_ppm(&r), 500000, 2000); // 1,000 where it took 2,000
    for (int i = 0; i < 400; i++) rate_add(&r, &w, 2000);
    EXPECT(rate_error_ppm(&r) < 100); // it learned, and the first error has faded
    for (int i = 0; i < 400; i++) rate_add(&r, &w, i % 2 == 0 ? 1900 : 2100);
    EXPECT_NEAR(rate_error_ppm(&r), 60000, 25000);
    rate_add(&r, &w, 1);
    EXPECT(rate_error_ppm(&r) <= RATE_ERROR_MAX_PPM / 32 + 100000); // one step counts for no more
}

static const test_case cases[] = {
    TEST(the_error_of_predictions_is_told),
    TEST(nothing_is_known_at_first),
    TEST(small_steps_double_whatever_they_took),
    TEST(prices_are_found),
    TEST(a_prompt_beside_streams_keeps_their_time),
    TEST(a_long_prompt_alone_keeps_to_its_limit),
    TEST(a_machine_twice_as_slow_is_noticed),
    TEST(a_hiccup_is_soon_forgotten),
    TEST(decoding_alone_does_not_change_what_a_row_costs),
    TEST(a_price_too_high_is_given_up),
    TEST(nonsense_does_no_harm),
};
TEST_MAIN(cases)
