/* output_estimate.c - see output_estimate.h. */
#include "scheduler/output_estimate.h"

enum { PERCENT = 100, PARTS = 1 << OUTPUT_PART_BITS };

/* [0, PARTS) are the numbers themselves;
 * then PARTS buckets for each power of two: 2^k + part * 2^k / PARTS, k = OUTPUT_PART_BITS ... */
static uint32_t bucket_of(uint32_t n_tokens) {
    if (n_tokens < PARTS) return n_tokens;
    n_tokens = u32_min(n_tokens, OUTPUT_TOKENS_MAX);
    uint32_t octave = 31 - (uint32_t)__builtin_clz(n_tokens) - OUTPUT_PART_BITS;
    return (octave + 1) * PARTS + ((n_tokens >> octave) - PARTS);
}

static uint32_t largest_in(uint32_t bucket) {
    if (bucket < PARTS) return bucket;
    uint32_t octave = bucket / PARTS - 1, part = bucket % PARTS;
    return ((PARTS + part + 1) << octave) - 1;
}

/* A weight that has faded to less than one is removed, from the sum too. */
static void fade(output_estimate *e) {
    e->weight_sum = 0;
    for (uint32_t i = 0; i < OUTPUT_BUCKETS; i++) e->weight_sum += e->weight[i] /= 2;
    e->n_fade = 0;
}

void output_add(output_estimate *e, uint32_t n_tokens) {
    if (e->n_fade == OUTPUT_FADE_SAMPLES) fade(e);
    e->n_fade++;
    e->weight[bucket_of(n_tokens)] += OUTPUT_SAMPLE_WEIGHT;
    e->weight_sum += OUTPUT_SAMPLE_WEIGHT;
    e->n_seen = u32_min(e->n_seen + 1, OUTPUT_PRIOR_SAMPLES);
}

uint32_t output_p90(const output_estimate *e) {
    if (e->n_seen < OUTPUT_PRIOR_SAMPLES) return OUTPUT_PRIOR_TOKENS;
    uint64_t wanted = (uint64_t)e->weight_sum * OUTPUT_PERCENT, below = 0;
    for (uint32_t i = 0; i < OUTPUT_BUCKETS; i++) {
        below += e->weight[i];
        if (below * PERCENT >= wanted) return largest_in(i);
    }
    INFERD_CHECK(!"the buckets are their sum");
    return OUTPUT_TOKENS_MAX;
}

uint32_t output_for_request(const output_estimate *e, bool has_max, uint32_t max_tokens,
                            uint32_t room_tokens) {
    return u32_min(has_max ? max_tokens : output_p90(e), room_tokens);
}
