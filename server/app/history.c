/* history.c - see history.h. */
#include "history.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PER_DOUBLING = 8, DOUBLINGS = 34, BUCKETS = PER_DOUBLING * DOUBLINGS }; // up to 4 hours

typedef struct second {
    uint32_t counts[BUCKETS], n;
} second;

struct history {
    second now[HISTORY_LATENCIES];
    history_row rows[HISTORY_ROWS]; // a ring
    uint64_t n_rows;
    history_totals then;
    uint64_t then_us; // of `then`; 0: no row was begun
};

history *history_create(void) {
    return calloc(1, sizeof(history));
}

void history_destroy(history *h) {
    free(h);
}

/* Bucket k * PER_DOUBLING + j holds [2^k * (1 + j/8), 2^k * (1 + (j + 1)/8)) microseconds. */
static uint32_t bucket_of(uint64_t us) {
    if (us < PER_DOUBLING) return (uint32_t)us;
    uint32_t k = 63 - (uint32_t)__builtin_clzll(us);
    uint32_t j = (uint32_t)(us >> (k - 3)) & (PER_DOUBLING - 1);
    return u32_min(k * PER_DOUBLING + j, BUCKETS - 1);
}

static double middle_of(uint32_t bucket) {
    if (bucket < PER_DOUBLING) return bucket;
    uint32_t k = bucket / PER_DOUBLING, j = bucket % PER_DOUBLING;
    return ldexp(1.0 + (j + 0.5) / PER_DOUBLING, (int)k);
}

void history_note(history *h, history_latency what, uint64_t us) {
    h->now[what].counts[bucket_of(us)]++;
    h->now[what].n++;
}

/* The smallest value that at least this part of all values does not exceed. */
static float quantile_ms(const second *s, double part) {
    uint64_t wanted = (uint64_t)ceil(part * s->n), seen = 0;
    if (s->n == 0) return NAN;
    for (uint32_t i = 0; i < BUCKETS; i++)
        if ((seen += s->counts[i]) >= wanted) return (float)(middle_of(i) / 1000);
    return NAN;
}

bool history_is_due(const history *h, uint64_t now_us) {
    return h->then_us == 0 || now_us >= h->then_us + HISTORY_EVERY_MS * (uint64_t)1000;
}

static float per_s(uint64_t now, uint64_t then, uint64_t us) {
    return (float)((double)(now - then) * 1e6 / (double)us);
}

void history_close(history *h, const history_totals *totals, uint64_t now_us, int64_t unix_s) {
    const history_totals *then = &h->then;
    if (!history_is_due(h, now_us)) return;
    if (h->then_us != 0) {
        uint64_t us = now_us - h->then_us, wall_us = u64_less(totals->wall_us, then->wall_us);
        history_row *row = &h->rows[h->n_rows++ % HISTORY_ROWS];
        *row = (history_row){
            .at_s = unix_s,
            .prompt_tokens_per_s = per_s(totals->prompt_tokens, then->prompt_tokens, us),
            .output_tokens_per_s = per_s(totals->output_tokens, then->output_tokens, us),
            .busy = wall_us == 0
                        ? 0
                        : (float)((double)(totals->step_us - then->step_us) / (double)wall_us),
            .preemptions = (uint32_t)(totals->preemptions - then->preemptions),
            .switches = (uint32_t)(totals->switches - then->switches),
            .refused = (uint32_t)(totals->refused - then->refused)};
        for (int k = 0; k < HISTORY_LATENCIES; k++) {
            row->p50_ms[k] = quantile_ms(&h->now[k], 0.5);
            row->p95_ms[k] = quantile_ms(&h->now[k], 0.95);
        }
    }
    memset(h->now, 0, sizeof h->now);
    h->then = *totals;
    h->then_us = now_us;
}

uint64_t history_n(const history *h) {
    return h->n_rows;
}

const history_row *history_at(const history *h, uint64_t i) {
    return &h->rows[i % HISTORY_ROWS];
}
