/* sample.h - sampling parameters for a row of logits, and the result.
 *
 * models/sampler.h defines sampling step by step; devices that sample themselves give the same ids
 * from the same logits (sample_math.h).
 *
 * Thread: any; values. */
#ifndef INFERD_SAMPLE_H
#define INFERD_SAMPLE_H

#include "inferd/base.h"

enum { SAMPLE_TOP_MAX = 20 }; // alternatives reported per token
/* In place of a drawn id: no logit of the row is finite, or one is NaN or +inf (the model is
 * broken) / mask and bans leave no token with a finite logit. */
enum { SAMPLE_BROKEN = -1, SAMPLE_NONE_ALLOWED = -2 };

typedef struct logit_bias {
    tok_id id;
    float bias; // -100 ... 100
} logit_bias;

typedef struct tok_logprob {
    tok_id id;
    float logprob;
} tok_logprob;

typedef struct sample_params {
    float temperature;                         // 0 = greedy
    float top_p;                               // (0, 1]; 1 = off
    float min_p;                               // [0, 1]; 0 = off
    uint32_t top_k;                            // 0 = off
    float repetition_penalty;                  // > 0; 1 = off
    float presence_penalty, frequency_penalty; // [-2, 2]; 0 = off
    uint64_t seed;
    uint32_t choice_idx; // index among the n_prompts * n choices of a request
    logit_bias *bias;    // [n_bias] owned by the owner of the params
    uint32_t n_bias;
} sample_params;

typedef struct sample_row {
    const float *logits; // [n_vocab] host memory, not changed
    const sample_params *params;
    const tok_id *tokens;        // [n_tokens] prompt, then output: for penalties
    uint32_t n_prompt, n_tokens; // position of the drawn token = n_tokens
    const tok_id *banned;        // [n_banned] ids that may not be drawn now
    uint32_t n_banned;
    const uint64_t *mask; // [ceil(n_vocab / 64)] bit per id that may be drawn; NULL: all may
    tok_id forced;        // >= 0: no sampling, only this token's log-probability (scoring a prompt)
    int32_t n_top;        // -1: no log-probabilities; 0 ... SAMPLE_TOP_MAX alternatives
} sample_row;

typedef struct sample_result {
    tok_id id;     // or SAMPLE_*
    float logprob; // of id, raw distribution; 0 when n_top is -1
    uint32_t n_top;
    tok_logprob top[SAMPLE_TOP_MAX]; // best first, lowest id first on a tie
} sample_result;

#endif
