/* test_output_estimate.c - the 90th percentile of recent outputs, against sorted numbers. */
#include "test.h"

#include "scheduler/output_estimate.h"

static uint64_t random_state;
static uint32_t random_below(uint32_t n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % n);
}

/* Never below the true one, and above by at most a bucket. */
static void expect_p90(const output_estimate *e, uint32_t exact) {
    uint32_t p90 = output_p90(e);
    if (p90 < exact || p90 - exact > exact / 16)
        printf("p90 is %u, expected %u to %u\n", p90, exact, exact + exact / 16);
    EXPECT(p90 >= exact && p90 - exact <= exact / 16);
}

static void a_prior_until_twenty_were_seen(void) {
    output_estimate e = {0};
    EXPECT_EQ(output_p90(&e), OUTPUT_PRIOR_TOKENS);
    for (int i = 0; i < 19; i++) output_add(&e, 7);
    EXPECT_EQ(output_p90(&e), OUTPUT_PRIOR_TOKENS);
    output_add(&e, 7);
    EXPECT_EQ(output_p90(&e), 7);
}

static void every_length_has_its_bucket(void) {
    uint32_t lengths[] = {0,
                          1,
                          15,
                          16,
                          17,
                          31,
                          32,
                          33,
                          34,
                          63,
                          64,
                          65,
                          1000,
                          4095,
                          4096,
                          131071,
                          131072,
                          OUTPUT_TOKENS_MAX - 1,
                          OUTPUT_TOKENS_MAX};
    for (size_t k = 0; k < INFERD_COUNT(lengths); k++) {
        output_estimate e = {0};
        for (int i = 0; i < 30; i++) output_add(&e, lengths[k]);
        expect_p90(&e, lengths[k]);
        if (lengths[k] < 32) EXPECT_EQ(output_p90(&e), lengths[k]);
    }
    uint32_t last = 0;
    for (uint32_t n = 1; n < 1 << 18; n += 1 + n / 50) { // longer is never counted as less
        output_estimate e = {0};
        for (int i = 0; i < 20; i++) output_add(&e, n);
        EXPECT(output_p90(&e) >= last);
        last = output_p90(&e);
        expect_p90(&e, n);
    }
    output_estimate e = {0};
    for (int i = 0; i < 20; i++) output_add(&e, UINT32_MAX);
    EXPECT_EQ(output_p90(&e), OUTPUT_TOKENS_MAX);
}

static void the_bound_is_ninety_percent(void) {
    output_estimate e = {0};
    for (int i = 0; i < 90; i++) output_add(&e, 10);
    for (int i = 0; i < 10; i++) output_add(&e, 30);
    EXPECT_EQ(output_p90(&e), 10);
    output_add(&e, 30); // 90 of 101
    EXPECT_EQ(output_p90(&e), 30);
}

/* Known distributions, in an order that gives each window its share. */
static void known_distributions_are_found(void) {
    output_estimate even = {0}, steps = {0}, geometric = {0};
    for (uint32_t i = 0; i < 12800; i++) {
        uint32_t u = i * 37 % 128; // each of 0 ... 127 once in 128
        output_add(&even, 10 * (u + 1));
        output_add(&steps, u < 64 ? 20 : u < 120 ? 400 : 9000);
        output_add(&geometric, (uint32_t)(-log(1 - (u + 0.5) / 128) * 300));
    }
    expect_p90(&even, 10 * 116); // 116 of 128 are the first with 90 %
    expect_p90(&steps, 400);
    expect_p90(&geometric, (uint32_t)(-log(1 - 115.5 / 128) * 300));
}

typedef struct sample {
    uint32_t n_tokens;
    uint64_t weight;
} sample;

static int ascending(const void *a, const void *b) {
    uint32_t x = ((const sample *)a)->n_tokens, y = ((const sample *)b)->n_tokens;
    return x < y ? -1 : x > y;
}

/* The same, sorted: a sample counts half for each whole 128 that were added behind it. */
static uint32_t sorted_p90(const uint32_t *lengths, uint32_t n) {
    static sample s[4096];
    uint64_t sum = 0, below = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t n_halved = (n - 1) / OUTPUT_FADE_SAMPLES - i / OUTPUT_FADE_SAMPLES;
        s[i] = (sample){lengths[i], OUTPUT_SAMPLE_WEIGHT >> (n_halved < 31 ? n_halved : 31)};
        sum += s[i].weight;
    }
    qsort(s, n, sizeof s[0], ascending);
    for (uint32_t i = 0; i < n; i++) {
        below += s[i].weight;
        if (below * 100 >= sum * OUTPUT_PERCENT) return s[i].n_tokens;
    }
    return 0;
}

static void it_is_the_sorted_one_within_a_bucket(void) {
    static uint32_t lengths[4096];
    random_state = 3;
    printf("seed %d\n", 3);
    for (int k = 0; k < 30; k++) {
        output_estimate e = {0};
        uint32_t n = 20 + random_below(1500), scale = 1 + random_below(5000);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t a = random_below(scale), b = random_below(scale);
            lengths[i] = 1 + (k % 3 == 0 ? a : k % 3 == 1 ? a * b / scale : a * 4 * (b % 4 == 0));
            output_add(&e, lengths[i]);
            if (i % 97 == 96 || i + 1 == n) expect_p90(&e, sorted_p90(lengths, i + 1));
        }
    }
}

static void what_was_is_forgotten(void) {
    output_estimate e = {0};
    for (int i = 0; i < 5000; i++) output_add(&e, 4000);
    for (int i = 0; i < 100; i++) output_add(&e, 50);
    expect_p90(&e, 4000); // not by a few
    int n = 100;
    for (; output_p90(&e) > 53 && n < 2000; n++) output_add(&e, 50);
    EXPECT(n > 300 && n <= 550); // an eighth of the old ones is less than a tenth of all
    for (n = 0; output_p90(&e) < 4000 && n < 2000; n++) output_add(&e, 4000);
    EXPECT(n < 60); // longer ones are believed sooner
}

static void counts_are_bounded(void) {
    output_estimate e = {0};
    random_state = 8;
    for (int i = 0; i < 200000; i++) output_add(&e, random_below(100000));
    uint64_t sum = 0;
    for (int i = 0; i < OUTPUT_BUCKETS; i++) sum += e.weight[i];
    EXPECT_EQ(sum, e.weight_sum);
    EXPECT(e.weight_sum <= 2u * OUTPUT_FADE_SAMPLES * OUTPUT_SAMPLE_WEIGHT);
    EXPECT_EQ(e.n_seen, OUTPUT_PRIOR_SAMPLES);
}

static void a_request_is_counted_with_what_it_may_have(void) {
    output_estimate e = {0};
    for (int i = 0; i < 30; i++) output_add(&e, 25);
    EXPECT_EQ(output_for_request(&e, true, 7, 1000), 7);
    EXPECT_EQ(output_for_request(&e, true, 0, 1000), 0);
    EXPECT_EQ(output_for_request(&e, true, 7000, 1000), 1000);
    EXPECT_EQ(output_for_request(&e, false, 7, 1000), 25);
    EXPECT_EQ(output_for_request(&e, false, 7, 20), 20);
}

static const test_case cases[] = {
    TEST(a_prior_until_twenty_were_seen),
    TEST(every_length_has_its_bucket),
    TEST(the_bound_is_ninety_percent),
    TEST(known_distributions_are_found),
    TEST(it_is_the_sorted_one_within_a_bucket),
    TEST(what_was_is_forgotten),
    TEST(counts_are_bounded),
    TEST(a_request_is_counted_with_what_it_may_have),
};
TEST_MAIN(cases)
