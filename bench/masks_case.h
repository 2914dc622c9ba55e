/* masks_case.h - what bench_masks reads: schemas with instances, and vocabularies.
 *
 * A line of cases is {"id": name, "schema": text, "tests": [{"valid": bool, "text": instance,
 * "tokens": [ids]}, ...]}; a file of pieces is described in masks/cases.py, which writes both. */
#ifndef INFERD_MASKS_CASE_H
#define INFERD_MASKS_CASE_H

#include "models/grammar.h"

typedef struct mask_test {
    bool valid;
    bytes text;     // of the case
    tok_id *tokens; // [n_tokens] owned
    size_t n_tokens;
} mask_test;

typedef struct mask_case {
    json_t *line; // owned; holds the texts
    const char *id;
    bytes schema;
    mask_test *tests; // [n_tests] owned
    size_t n_tests;
} mask_case;

/* Tokens are read only if n_vocab > 0; each is below it. */
inferd_status mask_case_read(bytes line, uint32_t n_vocab, mask_case *out, inferd_err *err);
void mask_case_deinit(mask_case *c); // accepts a zeroed one

inferd_status mask_pieces_read(const char *path, grammar_vocab **out, uint32_t *n_vocab,
                               inferd_err *err);

/* The vocabulary of the 256 bytes. */
inferd_status mask_bytes_vocab(grammar_vocab **out, inferd_err *err);

#endif
