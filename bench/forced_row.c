/* forced_row.c - makes the reference of a row, and measures how far another row is from it; see
 * forced.h. */
#include <math.h>

#include "forced.h"
#include "inferd/dummy_math.h"

static double log_sum_of(const float *logits, uint32_t n) {
    float most = -INFINITY;
    for (uint32_t i = 0; i < n; i++) most = fmaxf(most, logits[i]);
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += exp((double)logits[i] - (double)most);
    return (double)most + log(sum);
}

static bool all_finite(const float *logits, uint32_t n) {
    bool finite = true;
    for (uint32_t i = 0; i < n; i++) finite = finite && isfinite(logits[i]);
    return finite;
}

/* ---- taking ---- */

/* Keeps the best in order.  Few ids are better than the worst kept one, so this is fast. */
static void take_best(const float *logits, uint32_t n_vocab, double log_sum, forced_pair *top) {
    uint32_t n = 0;
    for (uint32_t id = 0; id < n_vocab; id++) {
        if (n == FORCED_TOP && logits[id] <= logits[top[n - 1].id]) continue;
        uint32_t at = n < FORCED_TOP ? n++ : n - 1;
        for (; at > 0 && logits[top[at - 1].id] < logits[id]; at--) top[at] = top[at - 1];
        top[at].id = id;
    }
    for (uint32_t i = 0; i < FORCED_TOP; i++)
        top[i].logprob = (float)((double)logits[top[i].id] - log_sum);
}

/* The vocabulary in equal parts: [begin, begin_of(j + 1)). */
static uint32_t part_begin(uint32_t n_vocab, uint32_t j) {
    return (uint32_t)((uint64_t)n_vocab * j / FORCED_SAMPLES);
}

void forced_row_take(const float *logits, uint32_t n_vocab, uint64_t seed, forced_row *out) {
    double log_sum = log_sum_of(logits, n_vocab);
    out->log_sum = (float)log_sum;
    take_best(logits, n_vocab, log_sum, out->top);
    for (uint32_t j = 0; j < FORCED_SAMPLES; j++) {
        uint32_t begin = part_begin(n_vocab, j), n = part_begin(n_vocab, j + 1) - begin;
        uint32_t id = begin + (uint32_t)(dummy_hash(seed, 0, j) % n);
        out->samples[j] = (forced_pair){id, (float)((double)logits[id] - log_sum)};
    }
}

/* ---- comparing ---- */

static void note_diff(forced_gap *gap, double diff, uint32_t row) {
    if (fabs(diff) <= gap->diff_max) return;
    gap->diff_max = fabs(diff);
    gap->worst = row;
}

static bool in_top(const forced_row *ref, uint32_t id) {
    for (uint32_t i = 0; i < FORCED_TOP; i++)
        if (ref->top[i].id == id) return true;
    return false;
}

/* p f(d), d = reference - device. */
static double term_of(float logprob, double d) {
    return exp((double)logprob) * (exp(-d) - 1 + d);
}

void forced_row_compare(const forced_row *ref, const float *logits, uint32_t n_vocab, uint32_t row,
                        forced_gap *gap) {
    gap->n++;
    if (!all_finite(logits, n_vocab)) {
        gap->not_finite = true;
        gap->worst = row;
        return;
    }
    double log_sum = log_sum_of(logits, n_vocab), kl = 0;
    note_diff(gap, (double)ref->log_sum - log_sum, row);
    for (uint32_t i = 0; i < FORCED_TOP; i++) {
        const forced_pair *p = &ref->top[i];
        double d = (double)p->logprob - ((double)logits[p->id] - log_sum);
        kl += term_of(p->logprob, d);
        note_diff(gap, d, row);
    }
    for (uint32_t j = 0; j < FORCED_SAMPLES; j++) {
        const forced_pair *p = &ref->samples[j];
        double d = (double)p->logprob - ((double)logits[p->id] - log_sum);
        uint32_t n = part_begin(n_vocab, j + 1) - part_begin(n_vocab, j);
        note_diff(gap, d, row);
        if (!in_top(ref, p->id)) kl += n * term_of(p->logprob, d);
    }
    double lead = (double)ref->top[0].logprob - (double)ref->top[1].logprob;
    double got = (double)logits[ref->top[0].id] - (double)logits[ref->top[1].id];
    gap->lead_max = fmax(gap->lead_max, fabs(lead - got));
    gap->kl_sum += kl;
    gap->kl_max = fmax(gap->kl_max, kl);
}

void forced_draw_compare(const float *logits, uint32_t n_vocab, const sample_result *draw,
                         uint32_t row, forced_gap *gap) {
    gap->n++;
    if (!all_finite(logits, n_vocab) || draw->id < 0 || (uint32_t)draw->id >= n_vocab) {
        gap->not_finite = true;
        gap->worst = row;
        return;
    }
    double log_sum = log_sum_of(logits, n_vocab);
    float most = -INFINITY;
    for (uint32_t i = 0; i < n_vocab; i++) most = fmaxf(most, logits[i]);
    note_diff(gap, (double)logits[draw->id] - (double)most, row); // it is the best
    note_diff(gap, (double)draw->logprob - ((double)logits[draw->id] - log_sum), row);
    for (uint32_t i = 0; i < draw->n_top; i++) {
        if (draw->top[i].id < 0 || (uint32_t)draw->top[i].id >= n_vocab) {
            gap->not_finite = true;
            gap->worst = row;
            return;
        }
        double got = (double)logits[draw->top[i].id] - log_sum;
        note_diff(gap, (double)draw->top[i].logprob - got, row);
    }
}
