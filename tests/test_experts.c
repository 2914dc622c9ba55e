/* test_experts.c - a mixture of experts on the CPU (kernels/cpu/experts.h), at every level.
 *
 * The reference is the formula in doubles, from the weights as dtype_to_f32 has them.  A row has
 * the same bits alone and among others, on any number of threads, and an expert's weights are
 * counted as read once by a step. */
#include <math.h>

#include "cpu_rig.h"

enum { DIM = 256, FFN = 96, EXPERTS = 10, USED = 3, TOKENS = 40 };

typedef struct mixture {
    dtype gate_type, up_type, down_type;
    act_fn fn;
    bool biases;
} mixture;

/* Its numbers, the same on all devices. */
typedef struct numbers {
    unsigned char *gate, *up, *down; // rows of a file, expert after expert
    float *x, *router;               // [TOKENS, DIM], [EXPERTS, DIM]
    float *gate_bias, *up_bias, *down_bias;
    uint32_t ffn;
} numbers;

static numbers numbers_of(const mixture *m) {
    bool of_256 = dtype_about(m->down_type).block_elems == 256;
    numbers n = {.ffn = of_256 ? 256 : FFN};
    n.gate = file_rows(m->gate_type, EXPERTS * n.ffn, DIM);
    n.up = file_rows(m->up_type, EXPERTS * n.ffn, DIM);
    n.down = file_rows(m->down_type, EXPERTS * DIM, n.ffn);
    n.x = random_floats((size_t)TOKENS * DIM);
    n.router = random_floats((size_t)EXPERTS * DIM);
    n.gate_bias = random_floats((size_t)EXPERTS * n.ffn);
    n.up_bias = random_floats((size_t)EXPERTS * n.ffn);
    n.down_bias = random_floats((size_t)EXPERTS * DIM);
    return n;
}

static void numbers_free(numbers *n) {
    free(n->gate);
    free(n->up);
    free(n->down);
    free(n->x);
    free(n->router);
    free(n->gate_bias);
    free(n->up_bias);
    free(n->down_bias);
}

/* ---- the formula ---- */

static double dot_row(dtype type, const unsigned char *rows, uint32_t row, uint32_t cols,
                      const double *x) {
    float w[256];
    double sum = 0;
    dtype_to_f32(type, rows + row * row_bytes_of(type, cols), w, cols);
    for (uint32_t i = 0; i < cols; i++) sum += (double)w[i] * x[i];
    return sum;
}

static double gated(act_fn fn, double a, double b) {
    if (fn == ACT_SILU) return a / (1 + exp(-a)) * b;
    a = fmin(a, 7);
    b = fmax(fmin(b, 7), -7);
    return a / (1 + exp(-1.702 * a)) * (b + 1);
}

static void choose_by_hand(const numbers *n, uint32_t token, uint32_t out[USED], double p[USED]) {
    double x[DIM], logits[EXPERTS], max = -INFINITY, sum = 0;
    bool taken[EXPERTS] = {false};
    for (uint32_t i = 0; i < DIM; i++) x[i] = (double)n->x[(size_t)token * DIM + i];
    for (uint32_t e = 0; e < EXPERTS; e++)
        logits[e] = dot_row(DTYPE_F32, (const unsigned char *)n->router, e, DIM, x);
    for (uint32_t k = 0; k < USED; k++) {
        out[k] = UINT32_MAX;
        for (uint32_t e = 0; e < EXPERTS; e++)
            if (!taken[e] && (out[k] == UINT32_MAX || logits[e] > logits[out[k]])) out[k] = e;
        taken[out[k]] = true;
        max = fmax(max, logits[out[k]]);
    }
    for (uint32_t k = 0; k < USED; k++) sum += p[k] = exp(logits[out[k]] - max);
    for (uint32_t k = 0; k < USED; k++) p[k] /= sum;
}

static void by_hand(const mixture *m, const numbers *n, uint32_t token, double out[DIM]) {
    double x[DIM], hidden[256], p[USED];
    uint32_t chosen[USED];
    for (uint32_t i = 0; i < DIM; i++) x[i] = (double)n->x[(size_t)token * DIM + i];
    choose_by_hand(n, token, chosen, p);
    for (uint32_t i = 0; i < DIM; i++) out[i] = 0;
    for (uint32_t k = 0; k < USED; k++) {
        uint32_t e = chosen[k];
        for (uint32_t i = 0; i < n->ffn; i++) {
            uint32_t row = e * n->ffn + i;
            double a = dot_row(m->gate_type, n->gate, row, DIM, x);
            double b = dot_row(m->up_type, n->up, row, DIM, x);
            if (m->biases) a += (double)n->gate_bias[row], b += (double)n->up_bias[row];
            hidden[i] = gated(m->fn, a, b);
        }
        for (uint32_t i = 0; i < DIM; i++) {
            double y = dot_row(m->down_type, n->down, e * DIM + i, n->ffn, hidden);
            if (m->biases) y += (double)n->down_bias[(size_t)e * DIM + i];
            out[i] += p[k] * y;
        }
    }
}

/* ---- on a device ---- */

typedef struct placed {
    weight gate[EXPERTS], up[EXPERTS], down[EXPERTS], embed, router;
    expert_weights w;
    act *x, *logits, *out, *hidden, *parts;
} placed;

static void place(device *d, const mixture *m, const numbers *n, placed *p) {
    *p = (placed){0};
    for (uint32_t e = 0; e < EXPERTS; e++) {
        size_t rows = (size_t)e * n->ffn;
        p->gate[e] = make_weight(d, m->gate_type, n->ffn, DIM,
                                 n->gate + rows * row_bytes_of(m->gate_type, DIM));
        p->up[e] =
            make_weight(d, m->up_type, n->ffn, DIM, n->up + rows * row_bytes_of(m->up_type, DIM));
        p->down[e] = make_weight(d, m->down_type, DIM, n->ffn,
                                 n->down + (size_t)e * DIM * row_bytes_of(m->down_type, n->ffn));
    }
    p->embed = make_table(d, n->x, TOKENS, DIM);
    p->router = make_table(d, n->router, EXPERTS, DIM);
    p->w = (expert_weights){EXPERTS, USED, m->fn, p->gate, p->up, p->down, {0}, {0}, {0}};
    if (m->biases) {
        p->w.gate_bias = make_vec(d, n->gate_bias, EXPERTS * n->ffn);
        p->w.up_bias = make_vec(d, n->up_bias, EXPERTS * n->ffn);
        p->w.down_bias = make_vec(d, n->down_bias, EXPERTS * DIM);
    }
    p->x = be_act_open(d->be, ACT_INNER, TOKENS, DIM);
    p->logits = be_act_open(d->be, ACT_STREAM, TOKENS, EXPERTS);
    p->out = be_act_open(d->be, ACT_STREAM, TOKENS, DIM);
    p->hidden = be_act_open(d->be, ACT_INNER, TOKENS * USED, n->ffn);
    p->parts = be_act_open(d->be, ACT_STREAM, TOKENS * USED, DIM);
}

static void unplace(device *d, placed *p) {
    act *all[] = {p->x, p->logits, p->out, p->hidden, p->parts};
    for (size_t i = 0; i < INFERD_COUNT(all); i++) be_act_close(d->be, all[i]);
}

/* Tokens [first, first + n) as one step; what it counted in *counts, if not NULL. */
static void run(device *d, placed *p, uint32_t first, uint32_t n, float *out,
                be_step_result *counts) {
    rows_batch r;
    inferd_err err = {0};
    be_step_result result = {0};
    step_of_rows(d, &r, first, n);
    be_embed(d->be, p->x, &p->embed, 1);
    be_matmul(d->be, p->logits, p->x, &p->router, NULL, n);
    be_experts(d->be, p->out, p->x, p->logits, &p->w, p->hidden, p->parts, n);
    be_want_logits(d->be, p->out, n);
    be_step_end(d->be);
    EXPECT_EQ(be_step_finish(d->be, &result, &err), INFERD_OK);
    EXPECT_STR(err.text, "");
    for (uint32_t i = 0; result.logits != NULL && i < n; i++)
        memcpy(out + (size_t)i * DIM, result.logits + i * result.logits_stride, DIM * sizeof *out);
    if (counts != NULL) *counts = result;
}

static const mixture mixtures[] = {
    {DTYPE_F32, DTYPE_F32, DTYPE_F32, ACT_SILU, false},
    {DTYPE_Q4_K, DTYPE_Q4_K, DTYPE_Q6_K, ACT_SILU, false},
    {DTYPE_Q8_0, DTYPE_Q8_0, DTYPE_Q8_0, ACT_CLAMPED_SWIGLU, true},
    {DTYPE_F32, DTYPE_F32, DTYPE_F32, ACT_CLAMPED_SWIGLU, true},
    {DTYPE_MXFP4, DTYPE_MXFP4, DTYPE_MXFP4, ACT_CLAMPED_SWIGLU, true},
    {DTYPE_F32, DTYPE_F32, DTYPE_Q4_K, ACT_SILU, false},
    {DTYPE_Q4_K, DTYPE_Q4_K, DTYPE_F32, ACT_SILU, true},
    /* Gate and up are computed in the way of the gate's type, which up's may not have: the daemon
     * died, or read floats as integers. */
    {DTYPE_Q8_0, DTYPE_Q4_K, DTYPE_Q8_0, ACT_SILU, true},
    {DTYPE_Q8_0, DTYPE_F16, DTYPE_Q8_0, ACT_SILU, true},
    {DTYPE_Q8_0, DTYPE_F32, DTYPE_BF16, ACT_SILU, false},
    {DTYPE_Q8_0, DTYPE_BF16, DTYPE_Q8_0, ACT_SILU, true},
    {DTYPE_BF16, DTYPE_Q8_0, DTYPE_F16, ACT_SILU, true},
    {DTYPE_F16, DTYPE_Q8_0, DTYPE_Q8_0, ACT_CLAMPED_SWIGLU, true},
};

static void expect_the_formula(const char *level, bool exact, const mixture *m, const numbers *n,
                               const float *out) {
    double wanted[DIM];
    for (uint32_t token = 0; token < TOKENS; token += 7) {
        double rms = 0, worst = 0;
        by_hand(m, n, token, wanted);
        for (uint32_t i = 0; i < DIM; i++) {
            rms += wanted[i] * wanted[i] / DIM;
            worst = fmax(worst, fabs((double)out[(size_t)token * DIM + i] - wanted[i]));
        }
        expect_close(dtype_about(m->gate_type).name, level, worst, 0,
                     (exact ? 1e-4 : 2e-2) * sqrt(rms));
    }
}

static void each_row_is_the_formula_alone_and_among_others(void) {
    float all[TOKENS * DIM], some[TOKENS * DIM], one[DIM];
    device d;
    for (size_t k = 0; k < INFERD_COUNT(mixtures); k++) {
        const mixture *m = &mixtures[k];
        numbers n = numbers_of(m);
        for (size_t l = 0; l < INFERD_COUNT(level_names) * 2; l++) {
            const char *level = level_names[l / 2];
            placed p;
            if (!device_open_math(&d, level, 1 + l % 3, l % 2 != 0)) continue;
            place(&d, m, &n, &p);
            run(&d, &p, 0, TOKENS, all, NULL);
            expect_the_formula(level, l % 2 != 0, m, &n, all);
            for (uint32_t token = 0; token < TOKENS; token += 13) {
                run(&d, &p, token, 1, one, NULL);
                expect_same_bits("alone", level, one, all + (size_t)token * DIM, DIM);
            }
            run(&d, &p, 5, 19, some, NULL);
            expect_same_bits("some", level, some, all + 5 * DIM, 19 * DIM);
            unplace(&d, &p);
            device_close(&d);
        }
        numbers_free(&n);
    }
}

static void used_experts_are_counted_and_read_once(void) {
    device d;
    numbers n = numbers_of(&mixtures[1]);
    placed p;
    uint32_t rows[EXPERTS] = {0}, n_used = 0, chosen[USED];
    float out[TOKENS * DIM];
    double weights[USED];
    be_step_result counts;
    if (!device_open_math(&d, "base", 2, false)) return;
    place(&d, &mixtures[1], &n, &p);
    for (uint32_t token = 0; token < 9; token++) {
        choose_by_hand(&n, token, chosen, weights);
        for (uint32_t k = 0; k < USED; k++) n_used += rows[chosen[k]]++ == 0;
    }
    for (int round = 0; round < 2; round++) { // a step's counts are its own
        run(&d, &p, 0, 9, out, &counts);
        EXPECT_EQ(counts.n_experts, EXPERTS);
        EXPECT_EQ(counts.n_expert_reads, n_used);
        for (uint32_t e = 0; e < EXPERTS; e++) EXPECT_EQ(counts.expert_rows[e], rows[e]);
    }
    unplace(&d, &p);
    device_close(&d);
    numbers_free(&n);
}

/* Of equal logits the lower expert is chosen; a logit that is not a number makes the row so. */
static void ties_go_to_the_lower_expert_and_nan_spreads(void) {
    device d;
    numbers n = numbers_of(&mixtures[0]);
    placed p;
    float out[TOKENS * DIM];
    be_step_result counts;
    if (!device_open_math(&d, "base", 2, true)) return;
    for (uint32_t i = 0; i < EXPERTS * DIM; i++) n.router[i] = 0;
    n.router[7 * DIM] =
        1e10f; // with these the logit of expert 7 is infinity - infinity for token 1
    n.router[7 * DIM + 1] = -1e10f;
    for (uint32_t token = 0; token < 3; token++)
        n.x[token * DIM] = n.x[token * DIM + 1] = token == 1 ? 3e38f : 0;
    place(&d, &mixtures[0], &n, &p);
    run(&d, &p, 0, 1, out, &counts);
    for (uint32_t e = 0; e < EXPERTS; e++) EXPECT_EQ(counts.expert_rows[e], e < USED);
    run(&d, &p, 0, 3, out, &counts);
    for (uint32_t i = 0; i < DIM; i++) {
        EXPECT(isfinite(out[i]));
        EXPECT(isnan(out[DIM + i]));
        EXPECT(isfinite(out[2 * DIM + i]));
    }
    unplace(&d, &p);
    device_close(&d);
    numbers_free(&n);
}

static const test_case cases[] = {
    TEST(each_row_is_the_formula_alone_and_among_others),
    TEST(used_experts_are_counted_and_read_once),
    TEST(ties_go_to_the_lower_expert_and_nan_spreads),
};
TEST_MAIN(cases)
