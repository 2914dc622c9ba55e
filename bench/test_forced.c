/* test_forced.c - what a reference keeps of a row of logits finds what it is made for, and its
 * estimate of KL is that of the whole row. */
#include <unistd.h>

#include "forced.h"
#include "inferd/dummy_math.h"
#include "test.h"

enum { VOCAB = 20000 };

static float logits[VOCAB], other[VOCAB];

static double uniform(uint64_t seed, uint32_t i) {
    return ((double)(dummy_hash(seed, 0, i) >> 11) + 0.5) / 9007199254740992.0;
}
static double normal(uint64_t seed, uint32_t i) {
    return sqrt(-2 * log(uniform(seed, 2 * i))) * cos(2 * M_PI * uniform(seed, 2 * i + 1));
}

/* Logits of deviation `wide`, and the same with noise of deviation `noise`. */
static void make(uint64_t seed, double wide, double noise) {
    for (uint32_t i = 0; i < VOCAB; i++) {
        logits[i] = (float)(wide * normal(seed, i));
        other[i] = (float)((double)logits[i] + noise * normal(seed + 1000000, i));
    }
}

static double log_sum(const float *x) {
    double sum = 0;
    for (uint32_t i = 0; i < VOCAB; i++) sum += exp((double)x[i]);
    return log(sum);
}

static double kl_by_the_book(void) {
    double p_sum = log_sum(logits), q_sum = log_sum(other), kl = 0;
    for (uint32_t i = 0; i < VOCAB; i++) {
        double p = (double)logits[i] - p_sum;
        kl += exp(p) * (p - ((double)other[i] - q_sum));
    }
    return kl;
}

/* Rows in which the best have a percent of the probability, half of it, and nearly all. */
static void kl_is_estimated_without_bias(void) {
    static const double wide[] = {0.5, 2, 4};
    static forced_row row;
    enum { ROWS = 40 };
    for (size_t w = 0; w < INFERD_COUNT(wide); w++) {
        forced_gap gap = {0};
        double true_sum = 0;
        for (uint32_t i = 0; i < ROWS; i++) {
            make(i + 1, wide[w], 0.01);
            forced_row_take(logits, VOCAB, i, &row);
            forced_row_compare(&row, other, VOCAB, i, &gap);
            true_sum += kl_by_the_book();
        }
        EXPECT_EQ(gap.n, ROWS);
        EXPECT_NEAR(gap.kl_sum / true_sum, 1, 0.15);
        EXPECT(gap.diff_max > 0.02 && gap.diff_max < 0.06); // of 0.01, 7,700 drawn
    }
}

static void equal_rows_do_not_differ(void) {
    static forced_row row;
    forced_gap gap = {0};
    make(5, 2, 0);
    forced_row_take(logits, VOCAB, 3, &row);
    forced_row_compare(&row, logits, VOCAB, 0, &gap);
    EXPECT(gap.diff_max < 1e-6 && gap.kl_max < 1e-12 && !gap.not_finite);
    for (uint32_t i = 0; i + 1 < FORCED_TOP; i++)
        EXPECT(row.top[i].logprob >= row.top[i + 1].logprob);
    uint32_t better = 0;
    for (uint32_t i = 0; i < VOCAB; i++) better += logits[i] > logits[row.top[FORCED_TOP - 1].id];
    EXPECT_EQ(better, FORCED_TOP - 1);
}

/* One of the best; all logits by the same amount, which no log-probability shows; a number that is
 * none, wherever it is. */
static void what_is_wrong_is_seen(void) {
    static forced_row row;
    make(6, 1, 0);
    forced_row_take(logits, VOCAB, 3, &row);
    forced_gap best = {0}, all = {0}, none = {0};
    other[row.top[9].id] += 0.5f;
    forced_row_compare(&row, other, VOCAB, 7, &best);
    EXPECT_NEAR(best.diff_max, 0.5, 0.01);
    EXPECT_EQ(best.worst, 7);
    make(6, 1, 0);
    for (uint32_t i = 0; i < VOCAB; i++) other[i] += 0.25f;
    forced_row_compare(&row, other, VOCAB, 7, &all);
    EXPECT_NEAR(all.diff_max, 0.25, 1e-4);
    make(6, 1, 0);
    other[12345] = NAN;
    forced_row_compare(&row, other, VOCAB, 7, &none);
    EXPECT(none.not_finite);
}

static void a_draw_must_be_the_best(void) {
    forced_gap right = {0}, wrong = {0}, absent = {0};
    uint32_t best = 0;
    make(7, 1, 0);
    for (uint32_t i = 0; i < VOCAB; i++)
        if (logits[i] > logits[best]) best = i;
    sample_result draw = {.id = (tok_id)best,
                          .logprob = (float)((double)logits[best] - log_sum(logits))};
    forced_draw_compare(logits, VOCAB, &draw, 0, &right);
    EXPECT(right.diff_max < 1e-5 && !right.not_finite);
    draw.id = (tok_id)(best == 0 ? 1 : 0);
    forced_draw_compare(logits, VOCAB, &draw, 0, &wrong);
    EXPECT(wrong.diff_max > 0.1);
    draw.id = -1;
    forced_draw_compare(logits, VOCAB, &draw, 0, &absent);
    EXPECT(absent.not_finite);
}

static void a_file_brings_back_what_was_saved(void) {
    static forced_reference saved, got;
    char path[64];
    inferd_err err = {0};
    snprintf(path, sizeof path, "/tmp/test_forced.%d", (int)getpid());
    make(8, 1, 0);
    saved = (forced_reference){.model = "dummy:some",
                               .made_by = "cpu",
                               .identity = 0x123456789abcdefu,
                               .n_vocab = VOCAB,
                               .n_prompt = 3,
                               .n_decode = 2,
                               .n_rows = 1,
                               .prompt = {5, 6, 7},
                               .contexts = {2, 0},
                               .next = {8, 9},
                               .positions = {2}};
    forced_row_take(logits, VOCAB, 1, &saved.decode[0]);
    forced_row_take(logits, VOCAB, 2, &saved.decode[1]);
    forced_row_take(logits, VOCAB, 3, &saved.rows[0]);
    EXPECT_EQ(forced_save(&saved, path, &err), INFERD_OK);
    EXPECT_EQ(forced_load(path, &got, &err), INFERD_OK);
    EXPECT(memcmp(&saved, &got, sizeof got) == 0);
    saved.next[1] = VOCAB; // an id that does not exist
    EXPECT_EQ(forced_save(&saved, path, &err), INFERD_OK);
    EXPECT_EQ(forced_load(path, &got, &err), INFERD_EFORMAT);
    EXPECT(strstr(err.text, "do not fit together") != NULL);
    unlink(path);
    EXPECT_EQ(forced_load(path, &got, &err), INFERD_EIO);
}

static const test_case cases[] = {
    TEST(kl_is_estimated_without_bias),
    TEST(equal_rows_do_not_differ),
    TEST(what_is_wrong_is_seen),
    TEST(a_draw_must_be_the_best),
    TEST(a_file_brings_back_what_was_saved),
};

int main(int argc, char **argv) {
    return test_run(cases, INFERD_COUNT(cases), argc, argv);
}
