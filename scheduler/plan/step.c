/* step.c - see step.h. */
#include "step.h"

inferd_status step_init(step *st, uint32_t rows_max, uint32_t seqs_max, uint32_t logits_max,
                        inferd_err *err) {
    *st = (step){0};
    batch *b = &st->b;
    b->tokens = calloc(rows_max, sizeof *b->tokens);
    b->pending = calloc(rows_max, sizeof *b->pending);
    b->positions = calloc(rows_max, sizeof *b->positions);
    b->row_seq = calloc(rows_max, sizeof *b->row_seq);
    b->seqs = calloc(seqs_max, sizeof *b->seqs);
    b->logit_rows = calloc(logits_max, sizeof *b->logit_rows);
    st->items = calloc(seqs_max, sizeof *st->items);
    st->draws = calloc(logits_max, sizeof *st->draws);
    st->results = calloc(logits_max, sizeof *st->results);
    if (b->tokens == NULL || b->pending == NULL || b->positions == NULL || b->row_seq == NULL ||
        b->seqs == NULL || b->logit_rows == NULL || st->items == NULL || st->draws == NULL ||
        st->results == NULL) {
        step_deinit(st);
        return inferd_fail(err, INFERD_ENOMEM, "no memory for steps of %u rows", rows_max);
    }
    return INFERD_OK;
}

void step_deinit(step *st) {
    free(st->b.tokens);
    free(st->b.pending);
    free(st->b.positions);
    free(st->b.row_seq);
    free(st->b.seqs);
    free(st->b.logit_rows);
    free(st->items);
    free(st->draws);
    free(st->results);
    *st = (step){0};
}
