/* sampler.h - logits become one token, the same one on every backend.
 *
 * The order, for one row:
 *   1  logit_bias is added; with min_tokens not reached, end tokens and stop ids are banned
 *   2  repetition penalty (prompt and output), then presence and frequency (output only)
 *   3  temperature 0 (below 1e-30), or top_k 1: the largest logit, lowest id on a tie; done
 *   4  logits ÷ temperature; top_k, then top_p, then min_p each narrow the candidates
 *   5  the candidate with the largest logit/temperature + Gumbel noise, lowest id on a tie
 * Log-probabilities are of the raw distribution, before 1.
 *
 * Nothing here depends on an order of summation: noise is Philox4x32-10 over (seed, choice index,
 * position, token), exp and log are the polynomials of sample_math.h, and sums are integers of
 * 2^-32.  So a resumed, preempted or re-batched sequence draws the same tokens.
 *
 * Thread: any; a row belongs to its caller. */
#ifndef INFERD_SAMPLER_H
#define INFERD_SAMPLER_H

#include "inferd/base.h"
#include "inferd/status.h"

enum { SAMPLE_TOP_MAX = 20 }; // alternatives reported per token

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
    uint32_t choice_idx; // which of the n choices of a request this is
    logit_bias *bias;    // [n_bias] owned by whoever owns the params
    uint32_t n_bias;
} sample_params;

typedef struct sample_row {
    const float *logits; // [n_vocab] host memory, not changed
    const sample_params *params;
    const tok_id *tokens;        // [n_tokens] prompt, then output: for penalties
    uint32_t n_prompt, n_tokens; // position of the drawn token = n_tokens
    const tok_id *banned;        // [n_banned] ids that may not be drawn now
    uint32_t n_banned;
    tok_id forced; // >= 0: draw nothing, report this token's log-probability (scoring a prompt)
    int32_t n_top; // -1: no log-probabilities; 0 ... SAMPLE_TOP_MAX alternatives
} sample_row;

typedef struct sample_result {
    tok_id id;     // -1: no finite logit in the row (the model is broken)
    float logprob; // of id, raw distribution; 0 when n_top is -1
    uint32_t n_top;
    tok_logprob top[SAMPLE_TOP_MAX]; // best first, lowest id first on a tie
} sample_result;

typedef struct sampler sampler; // scratch for rows of one vocabulary size; one per thread

sampler *sampler_create(uint32_t n_vocab); // NULL: no memory
void sampler_destroy(sampler *s);
void sampler_draw(sampler *s, const sample_row *row, sample_result *out);

#endif
