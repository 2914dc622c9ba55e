/* rate.c - see rate.h.
 *
 * With x the terms of a step, y its time and p the prices, the sum of (1 - p x / y)^2 is least
 * where wanted = moment p.  A round multiplies each price by wanted / (moment p), which never makes
 * the sum larger.  A few rounds per step start from the prices before; the next steps continue. */
#include "rate.h"

#define FADE (1.0 / 32)
enum { ROUNDS = 12 };
/* This part of a step's deviation counts as a change of the machine's speed. */
#define SPEED_SHARE 0.25
#define US_MAX      10000000.0

/* How a term seen for the first time is priced: mostly by the rows.  That predicts too little for a
 * larger step rather than too much. */
static const double first_share[RATE_TERMS] = {0.10, 0.80, 0.05, 0.05};
/* A price never falls below this share of a step's time: from zero it could not rise again. */
#define SHARE_MIN 0.001
/* A term of which less than half a recent step is left in the sums keeps its price. */
#define PRESENCE_MIN 0.5

static void list_terms(const rate_work *w, double x[RATE_TERMS]) {
    x[0] = 1;
    x[1] = w->rows;
    x[2] = w->draws;
    x[3] = (double)w->attended;
}

static double predict(const rate *r, const rate_work *w) {
    double x[RATE_TERMS], us = 0;
    list_terms(w, x);
    for (int i = 0; i < RATE_TERMS; i++) us += r->price[i] * x[i];
    return us;
}

static void fit(rate *r) {
    for (int round = 0; round < ROUNDS; round++) {
        double next[RATE_TERMS];
        for (int i = 0; i < RATE_TERMS; i++) {
            double predicted = 0;
            for (int j = 0; j < RATE_TERMS; j++) predicted += r->moment[i][j] * r->price[j];
            next[i] = r->price[i];
            if (r->wanted[i] * r->wanted[i] < PRESENCE_MIN * r->moment[i][i] || predicted <= 0)
                continue;
            double least = SHARE_MIN * r->wanted[i] / r->moment[i][i];
            next[i] *= r->wanted[i] / predicted;
            if (next[i] < least) next[i] = least;
        }
        for (int i = 0; i < RATE_TERMS; i++) r->price[i] = next[i];
    }
}

/* From now on everything takes `factor` times as long as what is remembered. */
static void change_speed(rate *r, double factor) {
    for (int i = 0; i < RATE_TERMS; i++) {
        r->price[i] *= factor;
        r->wanted[i] /= factor;
        for (int j = 0; j < RATE_TERMS; j++) r->moment[i][j] /= factor * factor;
    }
}

static void note_error(rate *r, double expected, double us) {
    double off = (expected > us ? expected - us : us - expected) / us * 1e6;
    if (off > RATE_ERROR_MAX_PPM) off = RATE_ERROR_MAX_PPM;
    double fade = r->error_known ? FADE : 1; // the first one counts whole
    r->error_ppm = (uint32_t)(r->error_ppm + fade * (off - r->error_ppm));
    r->error_known = true;
}

uint32_t rate_error_ppm(const rate *r) {
    return r->error_ppm;
}

void rate_add(rate *r, const rate_work *w, uint64_t us) {
    if (w->rows == 0) return;
    double x[RATE_TERMS], y = us < 1 ? 1 : (double)us, expected = predict(r, w);
    if (y > US_MAX) y = US_MAX;
    if (expected > 0) note_error(r, expected, y);
    bool slow = expected > 0 && y > 2 * expected;
    if (slow && !r->slow) y = 2 * expected;
    r->slow = slow;
    r->rows_seen = u32_max(r->rows_seen, w->rows);
    if (expected > 0) change_speed(r, 1 + SPEED_SHARE * (y / expected - 1));
    list_terms(w, x);
    for (int i = 0; i < RATE_TERMS; i++) {
        if (r->price[i] == 0 && x[i] > 0) r->price[i] = first_share[i] * y / x[i];
        r->wanted[i] += x[i] / y - FADE * r->wanted[i];
        for (int j = 0; j < RATE_TERMS; j++)
            r->moment[i][j] += x[i] * x[j] / (y * y) - FADE * r->moment[i][j];
    }
    fit(r);
}

uint64_t rate_us(const rate *r, const rate_work *w) {
    return (uint64_t)predict(r, w);
}

void rate_add_rows(rate_work *w, uint32_t begin, uint32_t n) {
    w->rows += n;
    w->attended += (uint64_t)begin * n + (uint64_t)n * (n + 1) / 2;
}

static bool fits(const rate *r, uint64_t budget_us, const rate_work *w, uint32_t begin,
                 uint32_t n) {
    rate_work more = *w;
    rate_add_rows(&more, begin, n);
    return predict(r, &more) <= (double)budget_us;
}

uint32_t rate_rows(const rate *r, uint64_t budget_us, const rate_work *w, uint32_t begin,
                   uint32_t n_max) {
    uint32_t trusted = r->rows_seen == 0 ? RATE_DEFAULT_ROWS : 2 * r->rows_seen;
    bool small = r->rows_seen < RATE_DEFAULT_ROWS;
    if (small) trusted = u32_min(trusted, RATE_DEFAULT_ROWS);
    uint32_t low = 0, high = u32_min(n_max, trusted > w->rows ? trusted - w->rows : 0);
    if (small) return high;
    while (low < high) { // the largest n that fits
        uint32_t mid = low + (high - low + 1) / 2;
        if (fits(r, budget_us, w, begin, mid))
            low = mid;
        else
            high = mid - 1;
    }
    return low;
}

void rate_note_typical(uint64_t *typical_us, uint64_t us) {
    enum { TYPICAL_SHIFT = 4 };
    if (*typical_us == 0) *typical_us = us;
    *typical_us += u64_min(us, 4 * *typical_us) >> TYPICAL_SHIFT;
    *typical_us -= *typical_us >> TYPICAL_SHIFT;
}
