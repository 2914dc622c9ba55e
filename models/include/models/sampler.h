/* sampler.h - drawing one token from logits, the same one on every backend.
 *
 * The order, for one row:
 *   0  tokens outside the mask get -inf
 *   1  logit_bias is added; with min_tokens not reached, end tokens and stop ids are banned
 *   2  repetition penalty (prompt and output), then presence and frequency (output only)
 *   3  temperature 0 (below 1e-30), or top_k 1: the largest logit, lowest id on a tie; done
 *   4  logits ÷ temperature; top_k, then top_p, then min_p each narrow the candidates
 *   5  the candidate with the largest logit/temperature + Gumbel noise, lowest id on a tie
 * Log-probabilities are of the raw distribution, before 0.
 *
 * Nothing here depends on an order of summation: noise is Philox4x32-10 over (seed, choice index,
 * position, token), exp and log are the polynomials of sample_math.h, and sums are integers of
 * 2^-40.  So a resumed, preempted or re-batched sequence draws the same tokens.
 *
 * Thread: any; a row belongs to its caller. */
#ifndef INFERD_SAMPLER_H
#define INFERD_SAMPLER_H

#include "inferd/base.h"
#include "inferd/sample.h"
#include "inferd/status.h"

typedef struct sampler sampler; // scratch for rows of one vocabulary size; one per thread

sampler *sampler_create(uint32_t n_vocab); // NULL: no memory
void sampler_destroy(sampler *s);
void sampler_draw(sampler *s, const sample_row *row, sample_result *out);

#endif
