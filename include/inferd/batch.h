/* batch.h - the input of one forward pass.
 *
 * Rows are new tokens; the rows of a sequence are adjacent and in order.  Written by the scheduler,
 * read by models and kernels; below the scheduler a sequence is known only by its batch_seq.
 *
 *   rows      |--- seq 0: n_rows ---|- seq 1 -|------ seq 2 ------|
 *   position  pos_begin, +1, +2 ...
 *
 * Always: row_seq is ascending; logit_rows is ascending; each sequence has slots for pos_begin +
 * n_rows positions.
 * Thread: engine.  All pointers are borrowed from the scheduler until the step is finished. */
#ifndef INFERD_BATCH_H
#define INFERD_BATCH_H

#include "inferd/base.h"
#include "inferd/kv_layout.h"

/* tokens[row] of a pending token, which the step before still computes (depth 2 only):
 * pending[row] is then its index among that step's logits. */
#define TOK_PENDING ((tok_id)-1)

typedef struct batch_seq {
    uint32_t row_begin, n_rows;
    uint32_t pos_begin; // position of the first row = number of tokens with stored keys and values
    uint32_t n_blocks;  // blocks in `slots`
    const int32_t *slots; // [n_blocks, n_groups] block table
} batch_seq;

typedef struct batch {
    uint32_t n_rows, n_seqs, n_logits;
    tok_id *tokens;       // [n_rows]
    uint32_t *pending;    // [n_rows], see TOK_PENDING
    uint32_t *positions;  // [n_rows]
    uint32_t *row_seq;    // [n_rows] index in seqs
    batch_seq *seqs;      // [n_seqs]
    uint32_t *logit_rows; // [n_logits] rows that need logits
    bool draws_later;     // what may be drawn from them is known after the launch: be_step_draw
} batch;

#endif
