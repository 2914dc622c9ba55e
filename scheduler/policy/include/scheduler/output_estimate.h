/* output_estimate.h - how long the outputs of a model usually become.
 *
 * A request is admitted by the pages it needs to *finish*, and one without max_tokens does not say
 * how long that is: it is counted with the 90th percentile of what its model wrote lately.
 *
 * Lengths are counted in buckets: each number below 32 has its own, then every power of two is cut
 * into 16, so a bucket is at most 1/16 as wide as its numbers are large.  The percentile is the
 * largest number of its bucket: never too small by the buckets, and too large by at most 1/16.
 * Longer outputs than OUTPUT_TOKENS_MAX count as that.
 *
 * Every OUTPUT_FADE_SAMPLES outputs all counts are halved, so those of about the last 300 matter,
 * and the counts are bounded.  Adding is O(1): one bucket, and all buckets once in 128 times.
 *
 * Outputs cut off by max_tokens or by a client would have been longer: do not add them.
 * Thread: its owner's. */
#ifndef INFERD_OUTPUT_ESTIMATE_H
#define INFERD_OUTPUT_ESTIMATE_H

#include "inferd/base.h"

enum {
    OUTPUT_PERCENT = 90,
    OUTPUT_PRIOR_TOKENS = 512, // until OUTPUT_PRIOR_SAMPLES were added
    OUTPUT_PRIOR_SAMPLES = 20,
    OUTPUT_FADE_SAMPLES = 128,
    OUTPUT_SAMPLE_WEIGHT = 65536, // weight of a new output, so that halving keeps old ones exact
    OUTPUT_PART_BITS = 4,         // a power of two is cut into 2^4 parts
    OUTPUT_OCTAVES = 20,          // powers of two: 16 ... 2^23
    OUTPUT_BUCKETS = (OUTPUT_OCTAVES + 1) << OUTPUT_PART_BITS,
    OUTPUT_TOKENS_MAX = (1 << (OUTPUT_PART_BITS + OUTPUT_OCTAVES)) - 1
};

/* Zeroed: nothing was added. */
typedef struct output_estimate {
    uint32_t weight[OUTPUT_BUCKETS];
    uint32_t weight_sum; // at most 2 * OUTPUT_FADE_SAMPLES * OUTPUT_SAMPLE_WEIGHT
    uint32_t n_seen;     // stops at OUTPUT_PRIOR_SAMPLES
    uint32_t n_fade;     // since the last halving
} output_estimate;

void output_add(output_estimate *e, uint32_t n_tokens);
/* The 90th percentile, or OUTPUT_PRIOR_TOKENS while too few were added. */
uint32_t output_p90(const output_estimate *e);
/* Tokens to count a request with: max_tokens, if has_max, else the percentile; at most its room. */
uint32_t output_for_request(const output_estimate *e, bool has_max, uint32_t max_tokens,
                            uint32_t room_tokens);

#endif
