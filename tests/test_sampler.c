/* test_sampler.c - the draw is the distribution, the order is the written one, and nothing depends
 * on who else is drawn. */
#include "models/sampler.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "inferd/sample_math.h"
#include "test.h"

static sample_params plain(void) {
    return (sample_params){.temperature = 1.0f, .top_p = 1.0f, .repetition_penalty = 1.0f};
}

static sample_result draw(const float *logits, uint32_t n, const sample_params *p,
                          const tok_id *tokens, uint32_t n_prompt, uint32_t n_tokens,
                          int32_t n_top) {
    sampler *s = sampler_create(n);
    sample_row row = {.logits = logits,
                      .params = p,
                      .tokens = tokens,
                      .n_prompt = n_prompt,
                      .n_tokens = n_tokens,
                      .forced = -1,
                      .n_top = n_top};
    sample_result r;
    sampler_draw(s, &row, &r);
    sampler_destroy(s);
    return r;
}

/* Vectors of the authors' reference (Random123, kat_vectors, philox4x32 10 rounds). */
static void philox_equals_its_known_answers(void) {
    sample_noise n = sample_philox(0, 0, 0, 0);
    EXPECT_EQ(n.word[0], 0x6627e8d5);
    EXPECT_EQ(n.word[1], 0xe169c58d);
    EXPECT_EQ(n.word[2], 0xbc57ac4c);
    EXPECT_EQ(n.word[3], 0x9b00dbd8);
}

static void polynomials_are_near_libm(void) {
    double worst_log = 0, worst_exp = 0;
    for (int i = 1; i < 200000; i++) {
        float x = (float)i * 1.3e-4f, want = (float)log((double)x);
        double e = fabs((double)sample_log(x) - log((double)x));
        if (fabsf(want) > 0.01f) e /= fabs((double)want);
        if (e > worst_log) worst_log = e;
        float y = -(float)i * 4.3e-4f;
        double ex = fabs((double)sample_exp(y) / exp((double)y) - 1.0);
        if (ex > worst_exp) worst_exp = ex;
    }
    EXPECT(worst_log < 1e-6);
    EXPECT(worst_exp < 1e-6);
    EXPECT_EQ(sample_exp(-100.0f) == 0.0f, 1);
    EXPECT_EQ(sample_exp(0.0f) == 1.0f, 1);
}

static void gumbel_bound_is_a_bound(void) {
    for (uint64_t w = 0; w <= UINT32_MAX; w += 65521)
        EXPECT(sample_gumbel((uint32_t)w) <= sample_gumbel_bound((uint32_t)w));
    for (uint32_t i = 0; i < 70000; i++)
        EXPECT(sample_gumbel(UINT32_MAX - i) <= sample_gumbel_bound(UINT32_MAX - i));
    EXPECT_NEAR(sample_gumbel(UINT32_MAX), 22.87, 0.01);
    EXPECT_NEAR(sample_gumbel(0x80000000u), 0.36651, 1e-4);
    EXPECT_NEAR(sample_gumbel(0x7FFFFFFFu), 0.36651, 1e-4);
}

static void greedy_takes_the_largest_and_the_lowest_id_on_a_tie(void) {
    float l[6] = {0.5f, 2.0f, 2.0f, -1.0f, 1.0f, 2.0f};
    sample_params p = plain();
    p.temperature = 0.0f;
    EXPECT_EQ(draw(l, 6, &p, NULL, 0, 0, -1).id, 1);
    p = plain();
    p.top_k = 1;
    EXPECT_EQ(draw(l, 6, &p, NULL, 0, 0, -1).id, 1);
}

static void tiny_temperature_is_greedy_and_does_not_blow_up(void) {
    float l[4] = {1.0f, 1.5f, -3.0f, 0.0f};
    sample_params p = plain();
    p.temperature = 1e-9f;
    for (uint32_t pos = 0; pos < 50; pos++) EXPECT_EQ(draw(l, 4, &p, NULL, 0, pos, -1).id, 1);
#if defined(__x86_64__)
    /* Compute threads treat denormals as zero: 0 / 0 drew nothing, and the request failed. */
    unsigned mode = _mm_getcsr();
    _mm_setcsr(mode | 0x8040u);
    p.temperature = 1e-40f;
    tok_id id = draw(l, 4, &p, NULL, 0, 0, -1).id;
    _mm_setcsr(mode);
    EXPECT_EQ(id, 1);
#endif
}

/* Pearson's statistic of n draws against softmax(logits / temperature) over the kept ids. */
static double chi_square(const float *l, uint32_t n, const sample_params *base, const uint8_t *kept,
                         uint32_t draws) {
    double z[64], sum = 0, statistic = 0;
    uint32_t count[64] = {0};
    for (uint32_t i = 0; i < n; i++) {
        z[i] = kept[i] ? exp((double)l[i] / (double)base->temperature) : 0;
        sum += z[i];
    }
    sampler *s = sampler_create(n);
    for (uint32_t i = 0; i < draws; i++) {
        sample_params p = *base;
        p.seed = 1000 + i / 64;
        p.choice_idx = i % 4;
        sample_row row = {.logits = l, .params = &p, .n_tokens = i % 64, .forced = -1, .n_top = -1};
        row.n_tokens = i % 64 / 4;
        sample_result r;
        sampler_draw(s, &row, &r);
        EXPECT(r.id >= 0 && kept[r.id]);
        count[r.id]++;
    }
    sampler_destroy(s);
    for (uint32_t i = 0; i < n; i++) {
        if (!kept[i]) continue;
        double want = draws * z[i] / sum;
        statistic += (count[i] - want) * (count[i] - want) / want;
    }
    return statistic;
}

static void draws_follow_the_distribution(void) {
    float l[16];
    uint8_t all[16];
    for (int i = 0; i < 16; i++) l[i] = (float)((i * 7) % 16) * 0.21f, all[i] = 1;
    sample_params p = plain();
    EXPECT(chi_square(l, 16, &p, all, 64000) < 37.7); // 99.9 % of 15 degrees of freedom
    p.temperature = 0.7f;
    EXPECT(chi_square(l, 16, &p, all, 64000) < 37.7);
}

static void top_k_top_p_min_p_keep_what_they_say(void) {
    /* probabilities 0.4, 0.3, 0.2, 0.1 at ids 2, 0, 3, 1 */
    float l[4] = {logf(0.3f), logf(0.1f), logf(0.4f), logf(0.2f)};
    sample_params p = plain();
    p.top_k = 2;
    EXPECT(chi_square(l, 4, &p, (uint8_t[]){1, 0, 1, 0}, 20000) < 10.8);
    p = plain();
    p.top_p = 0.65f; // 0.4 + 0.3 reach it
    EXPECT(chi_square(l, 4, &p, (uint8_t[]){1, 0, 1, 0}, 20000) < 10.8);
    p.top_p = 0.75f;
    EXPECT(chi_square(l, 4, &p, (uint8_t[]){1, 0, 1, 1}, 20000) < 13.8);
    p.top_k = 3;
    p.top_p = 0.5f; // of 0.9: 0.4 / 0.9 = 0.44 is not enough
    EXPECT(chi_square(l, 4, &p, (uint8_t[]){1, 0, 1, 0}, 20000) < 10.8);
    p = plain();
    p.min_p = 0.45f; // of 0.4: 0.18
    EXPECT(chi_square(l, 4, &p, (uint8_t[]){1, 0, 1, 1}, 20000) < 13.8);
    p = plain();
    p.top_k = 4; // as many as there are, and more: nothing is cut (once: nothing was left)
    EXPECT(chi_square(l, 4, &p, (uint8_t[]){1, 1, 1, 1}, 20000) < 16.3);
    p.top_k = 5;
    EXPECT(chi_square(l, 4, &p, (uint8_t[]){1, 1, 1, 1}, 20000) < 16.3);
    p = plain();
    p.top_p = 1e-12f; // at least one is kept
    EXPECT_EQ(draw(l, 4, &p, NULL, 0, 0, -1).id, 2);
}

static void penalties_and_bias_come_in_the_written_order(void) {
    float l[4] = {2.0f, 1.9f, -1.0f, 0.0f};
    tok_id history[3] = {0, 1, 1}; // prompt 0, output 1 1
    sample_params p = plain();
    p.temperature = 0.0f;
    p.repetition_penalty = 2.0f; // 1.0, 0.95
    EXPECT_EQ(draw(l, 4, &p, history, 1, 3, -1).id, 0);
    p.repetition_penalty = 1.0f;
    p.presence_penalty = 2.0f; // output only: 2.0, -0.1
    EXPECT_EQ(draw(l, 4, &p, history, 1, 3, -1).id, 0);
    tok_id other[2] = {1, 0};
    EXPECT_EQ(draw(l, 4, &p, other, 1, 2, -1).id, 1);
    p = plain();
    p.temperature = 0.0f;
    p.frequency_penalty = -0.1f; // rewards: 2.0 against 1.9 + 0.2
    EXPECT_EQ(draw(l, 4, &p, history, 1, 3, -1).id, 1);
    logit_bias bias[2] = {{2, 100.0f}, {3, -100.0f}};
    p = plain();
    p.temperature = 0.0f;
    p.bias = bias;
    p.n_bias = 2;
    EXPECT_EQ(draw(l, 4, &p, NULL, 0, 0, -1).id, 2);
}

static void banned_ids_are_never_drawn(void) {
    float l[3] = {5.0f, 4.0f, 3.0f};
    tok_id banned[2] = {0, 1};
    sampler *s = sampler_create(3);
    sample_params p = plain();
    for (uint32_t i = 0; i < 200; i++) {
        sample_row row = {.logits = l,
                          .params = &p,
                          .n_tokens = i,
                          .banned = banned,
                          .n_banned = 2,
                          .forced = -1,
                          .n_top = -1};
        sample_result r;
        sampler_draw(s, &row, &r);
        EXPECT_EQ(r.id, 2);
    }
    sampler_destroy(s);
}

/* ---- masks ---- */

static uint64_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

enum { MASK_VOCAB_MAX = 700, MASK_WORDS = (MASK_VOCAB_MAX + 63) / 64 };

/* A row with everything that may change a draw. */
typedef struct mask_world {
    float logits[MASK_VOCAB_MAX];
    uint64_t mask[MASK_WORDS];
    tok_id tokens[30], banned[3];
    logit_bias bias[4];
    sample_params params;
    sample_row row;
    uint32_t n_vocab;
} mask_world;

static void make_mask_world(mask_world *w, uint64_t *at) {
    w->n_vocab = (uint32_t)(1 + next_random(at) % MASK_VOCAB_MAX);
    for (uint32_t i = 0; i < w->n_vocab; i++)
        w->logits[i] = (float)(next_random(at) % 60) * 0.2f - 6.0f;
    if (next_random(at) % 4 == 0) w->logits[next_random(at) % w->n_vocab] = -INFINITY;
    memset(w->mask, 0xff, sizeof w->mask); // bits behind the vocabulary count for nothing
    uint64_t kept = (uint64_t[]){0, 1, 10, 200, 900, 1000}[next_random(at) % 6];
    for (uint32_t i = 0; i < w->n_vocab; i++)
        if (next_random(at) % 1000 >= kept) w->mask[i / 64] &= ~(UINT64_C(1) << i % 64);
    for (uint32_t i = 0; i < 30; i++) w->tokens[i] = (tok_id)(next_random(at) % w->n_vocab);
    for (uint32_t i = 0; i < 3; i++) w->banned[i] = (tok_id)(next_random(at) % w->n_vocab);
    for (uint32_t i = 0; i < 4; i++)
        w->bias[i] = (logit_bias){(tok_id)(next_random(at) % w->n_vocab),
                                  (float)(next_random(at) % 40) * 0.5f - 10.0f};
    w->params = plain();
    w->params.seed = next_random(at);
    w->params.temperature = next_random(at) % 4 == 0 ? 0.0f : 0.9f;
    if (next_random(at) % 3 == 0) w->params.top_k = (uint32_t)(1 + next_random(at) % 40);
    if (next_random(at) % 3 == 0) w->params.top_p = 0.7f;
    if (next_random(at) % 3 == 0) w->params.min_p = 0.1f;
    if (next_random(at) % 3 == 0) w->params.repetition_penalty = 1.3f;
    if (next_random(at) % 3 == 0) w->params.frequency_penalty = 0.4f;
    w->params.bias = w->bias;
    w->params.n_bias = next_random(at) % 2 == 0 ? 4 : 0;
    w->row = (sample_row){.logits = w->logits,
                          .params = &w->params,
                          .tokens = w->tokens,
                          .n_prompt = 12,
                          .n_tokens = 30,
                          .banned = w->banned,
                          .n_banned = next_random(at) % 2 == 0 ? 3 : 0,
                          .mask = w->mask,
                          .forced = -1,
                          .n_top = next_random(at) % 2 == 0 ? 3 : -1};
}

static void a_mask_draws_as_if_other_logits_were_minus_infinity(void) {
    uint64_t at = 20;
    uint32_t n_none = 0, n_drawn = 0;
    for (int round = 0; round < 6000; round++) {
        static mask_world w;
        static float masked[MASK_VOCAB_MAX];
        make_mask_world(&w, &at);
        sampler *s = sampler_create(w.n_vocab);
        sample_result got, want;
        sampler_draw(s, &w.row, &got);
        for (uint32_t i = 0; i < w.n_vocab; i++)
            masked[i] = w.mask[i / 64] >> i % 64 & 1 ? w.logits[i] : -INFINITY;
        sample_row plainly = w.row;
        plainly.logits = masked;
        plainly.mask = NULL;
        sampler_draw(s, &plainly, &want);
        if (want.id < 0) {
            bool broken = true; // a row without any finite logit says so, whatever the mask
            for (uint32_t i = 0; i < w.n_vocab; i++) broken &= !(w.logits[i] > -INFINITY);
            EXPECT_EQ(got.id, broken ? SAMPLE_BROKEN : SAMPLE_NONE_ALLOWED);
            n_none++;
        } else {
            EXPECT_EQ(got.id, want.id);
            n_drawn++;
        }
        plainly = w.row; // log-probabilities do not know of masks
        plainly.mask = NULL;
        plainly.forced = got.id;
        if (got.id >= 0) sampler_draw(s, &plainly, &want);
        if (got.id >= 0 && w.row.n_top >= 0)
            EXPECT(got.logprob == want.logprob && got.n_top == want.n_top &&
                   memcmp(got.top, want.top, got.n_top * sizeof *got.top) == 0);
        sampler_destroy(s);
    }
    EXPECT(n_none > 100 && n_drawn > 3000);
}

static void a_mask_does_not_hide_a_broken_row(void) {
    float l[70];
    uint64_t mask[2] = {1, 0};
    sample_params p = plain();
    for (int i = 0; i < 70; i++) l[i] = 1.0f;
    sample_row row = {.logits = l, .params = &p, .mask = mask, .forced = -1, .n_top = -1};
    sampler *s = sampler_create(70);
    sample_result r;
    sampler_draw(s, &row, &r);
    EXPECT_EQ(r.id, 0);
    l[69] = NAN;
    sampler_draw(s, &row, &r);
    EXPECT_EQ(r.id, SAMPLE_BROKEN);
    sampler_destroy(s);
}

static void logprobs_are_of_the_raw_distribution(void) {
    float l[5] = {1.0f, 3.0f, 2.0f, 3.0f, -2.0f};
    double sum = 0;
    for (int i = 0; i < 5; i++) sum += exp((double)l[i]);
    sample_params p = plain();
    p.temperature = 0.0f;
    p.repetition_penalty = 5.0f;
    tok_id history[1] = {1};
    sample_result r = draw(l, 5, &p, history, 0, 1, 3);
    EXPECT_EQ(r.id, 3);
    EXPECT_NEAR(r.logprob, 3.0 - log(sum), 1e-5);
    EXPECT_EQ(r.n_top, 3);
    EXPECT_EQ(r.top[0].id, 1); // lowest id first on a tie, penalties do not count
    EXPECT_EQ(r.top[1].id, 3);
    EXPECT_EQ(r.top[2].id, 2);
    EXPECT_NEAR(r.top[2].logprob, 2.0 - log(sum), 1e-5);
}

static void forced_tokens_are_scored_not_drawn(void) {
    float l[3] = {0.0f, 0.0f, 0.0f};
    sampler *s = sampler_create(3);
    sample_params p = plain();
    sample_row row = {.logits = l, .params = &p, .forced = 2, .n_top = 0};
    sample_result r;
    sampler_draw(s, &row, &r);
    sampler_destroy(s);
    EXPECT_EQ(r.id, 2);
    EXPECT_EQ(r.n_top, 0);
    EXPECT_NEAR(r.logprob, -log(3.0), 1e-6);
}

static void broken_logits_are_told(void) {
    sample_params p = plain();
    float nan_row[3] = {0.0f, NAN, 1.0f}, inf_row[2] = {INFINITY, 0.0f};
    float none[2] = {-INFINITY, -INFINITY};
    EXPECT_EQ(draw(nan_row, 3, &p, NULL, 0, 0, -1).id, -1);
    EXPECT_EQ(draw(inf_row, 2, &p, NULL, 0, 0, -1).id, -1);
    EXPECT_EQ(draw(none, 2, &p, NULL, 0, 0, -1).id, -1);
}

static void equal_rows_draw_equal_tokens_whatever_came_before(void) {
    enum { V = 1003 };
    float l[V];
    for (int i = 0; i < V; i++) l[i] = (float)((i * 37) % 101) * 0.09f;
    sample_params p = plain();
    p.seed = 42;
    p.top_p = 0.9f;
    tok_id alone[20];
    for (uint32_t i = 0; i < 20; i++) alone[i] = draw(l, V, &p, NULL, 0, i, -1).id;
    sampler *s = sampler_create(V);
    for (uint32_t i = 20; i-- > 0;) {
        sample_params noisy = p;
        tok_id history[3] = {1, 2, 3};
        noisy.repetition_penalty = 1.3f;
        sample_row other = {.logits = l,
                            .params = &noisy,
                            .tokens = history,
                            .n_tokens = 3,
                            .forced = -1,
                            .n_top = 5};
        sample_row row = {.logits = l, .params = &p, .n_tokens = i, .forced = -1, .n_top = -1};
        sample_result r;
        sampler_draw(s, &other, &r);
        sampler_draw(s, &row, &r);
        EXPECT_EQ(r.id, alone[i]);
    }
    sampler_destroy(s);
}

static const test_case cases[] = {
    TEST(philox_equals_its_known_answers),
    TEST(polynomials_are_near_libm),
    TEST(gumbel_bound_is_a_bound),
    TEST(greedy_takes_the_largest_and_the_lowest_id_on_a_tie),
    TEST(tiny_temperature_is_greedy_and_does_not_blow_up),
    TEST(draws_follow_the_distribution),
    TEST(top_k_top_p_min_p_keep_what_they_say),
    TEST(penalties_and_bias_come_in_the_written_order),
    TEST(banned_ids_are_never_drawn),
    TEST(a_mask_draws_as_if_other_logits_were_minus_infinity),
    TEST(a_mask_does_not_hide_a_broken_row),
    TEST(logprobs_are_of_the_raw_distribution),
    TEST(forced_tokens_are_scored_not_drawn),
    TEST(broken_logits_are_told),
    TEST(equal_rows_draw_equal_tokens_whatever_came_before),
};
TEST_MAIN(cases)
