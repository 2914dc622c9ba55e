/* weights.h - the tensors of a file, bound to the fields of decoder_weights.
 *
 * weights_plan looks up every tensor the spec asks for, checks type and shape, and gives each
 * a place in the model's window; weights_bind says where the window is.  Between the two the bytes
 * get there: stage.h.
 *
 *     window   | embed | norm | head | layer 0: attn_norm wq wk ... | layer 1 ... |   256-byte
 * aligned
 *
 * Thread: weights_plan any; the others the engine's. */
#ifndef INFERD_WEIGHTS_H
#define INFERD_WEIGHTS_H

#include "decoder.h"
#include "models/model.h"

typedef struct weight_entry {
    const gguf_tensor *tensor; // borrowed from the gguf
    weight *matrix;            // exactly one of matrix and vector is set; inside decoder_weights
    vec *vector;
    uint32_t rows, cols; // of a vector: rows = 1
    size_t offset;       // in the window
    uint32_t unit;       // 0: the ends; 1 + i: layer i
} weight_entry;

typedef struct weight_plan {
    weight_entry *entries; // [n] owned
    size_t n, capacity;
    size_t n_bytes;      // of the window
    uint64_t file_bytes; // tensor bytes to read
    uint32_t n_unused;   // tensors of the file that are not read, and harmless
} weight_plan;

/* Everything that weights_plan finds wrong in a file, without a backend. */
inferd_status weights_check(const gguf *g, const decoder_spec *s, inferd_err *err);
/* Fill in out->layers and the plan.  Errors name tensor, shape and what was expected; a tensor that
 * nothing reads is one, too, unless it is harmless (decoder.h). */
inferd_status weights_plan(const gguf *g, const backend *be, const decoder_spec *s,
                           decoder_weights *out, weight_plan *plan, inferd_err *err);
void weights_deinit(decoder_weights *w, weight_plan *plan);

/* Bytes of a row as the file has it; of a vector: all of it. */
size_t weight_entry_row_bytes(const weight_entry *e);
/* The window's bytes lie at `base`: set every matrix and vector. */
void weights_bind(backend *be, const decoder_spec *s, decoder_weights *w, const weight_plan *plan,
                  void *base);
/* Where the unit of entry *i (its first) ends in the window; *i: the first entry after it. */
size_t weights_unit_end(const weight_plan *plan, size_t *i);
/* Measure what multiplies the bound matrices best, once they are there. */
inferd_status weights_tune(backend *be, const weight_plan *plan, inferd_err *err);
/* Matrices made up from a seed, norms of ones, where they are bound (models/dummy_model.h): queued,
 * a failure is be_check's. */
void weights_make_up(backend *be, const decoder_spec *s, const weight_plan *plan, uint64_t seed);

#endif
