/* draw.h - sampling on the device: logits become ids, the same ids as those of models/sampler.c.
 *
 * The definition is inferd/sample.h and the CPU's sampler; arithmetic is inferd/sample_math.h.
 * Its sums are integers, so nothing depends on the order of threads.  No row is sorted: greedy
 * and plain sampling are one pass (Gumbel-max), top_k and top_p find their cut by a histogram
 * and then by digits of (logit, id), with exact integer masses.
 *
 * Thread: engine. */
#ifndef INFERD_CUDA_DRAW_H
#define INFERD_CUDA_DRAW_H

#include "cuda/layout.h"
#include "cuda/module.h"
#include "inferd/batch.h"
#include "inferd/sample.h"

/* One row to draw, in device memory; lists are offsets into the same upload. */
typedef struct draw_row {
    float temperature, top_p, min_p;
    float repetition_penalty, presence_penalty, frequency_penalty;
    uint32_t top_k;
    uint32_t choice_idx;
    uint64_t seed;
    uint32_t position;               // of the drawn token
    int32_t forced;                  // >= 0: report this token
    int32_t n_top;                   // -1: no log-probabilities
    uint32_t flags;                  // DRAW_*
    uint32_t bias_begin, n_bias;     // of draw_bias
    uint32_t banned_begin, n_banned; // of ids
    uint32_t seen_begin, n_seen;     // of draw_seen
    uint32_t pending; // with DRAW_PENDING: drawn[pending] counts as one more output token
    uint32_t mask;    // 1 + index of its mask; 0: none
} draw_row;
enum { DRAW_PENDING = 1, DRAW_PLAIN = 2 /* logits unchanged, greedy or no narrowing */ };
typedef struct draw_bias {
    int32_t id;
    float bias;
    uint32_t n_named; // entries of the list with this token, from this one on; 0: named before
} draw_bias;
typedef struct draw_seen { // a token of the row's history, once
    int32_t id;
    uint32_t n_output; // times in the output; 0: only in the prompt
} draw_seen;

/* The upload: header words, rows, lists.  Built on the host from sample_rows. */
typedef struct draw_plan {
    void *host; // [bytes_max] pinned, owned by the backend
    size_t bytes, bytes_max;
    uint32_t n_rows;
} draw_plan;
/* `rows` are the b->n_logits draws of batch b.  When the token of a row's batch row is pending
 * (TOK_PENDING), rows[i].tokens[n_tokens - 1] is not known yet and the device adds it to the
 * history.  INFERD_ETOOLONG when the lists do not fit bytes_max.  `scratch` is host memory of
 * draw_scratch_bytes(n_vocab), zeroed once; it is zero again afterwards, also after a failure. */
size_t draw_scratch_bytes(uint32_t n_vocab);
inferd_status draw_plan_build(draw_plan *p, const sample_row *rows, const batch *b,
                              uint32_t n_vocab, void *scratch, inferd_err *err);
/* Bytes that n_rows rows take without lists and masks; and a mask.  Rows with the same mask (the
 * same address) share one. */
size_t draw_plan_bytes(uint32_t n_rows);
size_t draw_mask_bytes(uint32_t n_vocab);

typedef struct draw_args {
    const void *plan;    // device copy of draw_plan.host
    const float *logits; // [rows, stride]; stride a multiple of 4, each row 16-byte aligned
    float *changed;      // [rows, stride] likewise: scratch for rows with mask, bias or penalties
    uint32_t rows;       // upper bound of the launch; the plan has the real number
    uint32_t n_vocab, stride;
    const int32_t *drawn_before; // [..] ids of the step before, for DRAW_PENDING
    int32_t *drawn;              // [rows] ids, for the next step's embedding
    sample_result *results;      // [rows] device memory
    void *scratch;     // draw_workspace_bytes(rows_max, n_vocab); see draw_workspace_zeros
    uint32_t rows_max; // that scratch was taken for
} draw_args;
size_t draw_workspace_bytes(uint32_t rows, uint32_t n_vocab);
/* Of these, the first so many must be zero before a launch, and are zero again after it. */
size_t draw_workspace_zeros(uint32_t rows_max);
inferd_status draw_init(const cuda_module *m, const cu_device *d, inferd_err *err);
void launch_draw(launcher *l, const draw_args *a);

#endif
