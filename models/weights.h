/* weights.h - the tensors of a file, bound to the fields of decoder_weights.
 *
 * weights_plan looks up every tensor the spec needs, checks type and shape, and gives each
 * an offset in the model's window; weights_bind sets the address of the window.  Between the two
 * the bytes are written there: stage.h.
 *
 *     window   | embed | norm | head | layer 0: attn_norm wq wk ... | layer 1 ... |
 *              each 256-byte aligned
 *
 * A tensor may hold several matrices, one after the other: q, k and v; gate and up; one of each
 * expert.
 *
 * Thread: weights_plan any; the others the engine's. */
#ifndef INFERD_WEIGHTS_H
#define INFERD_WEIGHTS_H

#include "decoder.h"
#include "models/model.h"

typedef struct weight_entry {
    const gguf_tensor *tensor; // borrowed from the gguf
    uint64_t tensor_at;        // where its bytes begin in the tensor, which may hold several
    weight *matrix;            // exactly one of matrix and vector is set; inside decoder_weights
    vec *vector;
    uint32_t rows, cols; // of a vector: rows = 1
    size_t offset;       // in the window
    uint32_t unit;       // 0: the ends; 1 + i: layer i
    bool expert;         // a step reads those of the chosen experts only
} weight_entry;

typedef struct weight_plan {
    weight_entry *entries; // [n] owned
    size_t n, capacity;
    size_t n_bytes;      // of the window
    uint64_t file_bytes; // tensor bytes to read
    uint32_t n_unused;   // tensors of the file that are not read, and harmless
} weight_plan;

/* The checks of weights_plan, without a backend. */
inferd_status weights_check(const gguf *g, const decoder_spec *s, inferd_err *err);
/* Fill in out->layers and the plan.  Errors name tensor, shape and what was expected; an unread
 * tensor is an error, too, unless it is harmless (decoder.h). */
inferd_status weights_plan(const gguf *g, const backend *be, const decoder_spec *s,
                           decoder_weights *out, weight_plan *plan, inferd_err *err);
/* The same for tools that tell every problem: each is told, with its tensor (NULL: it is missing),
 * and the plan has the rest.  Fails without memory. */
typedef void weight_problem(void *ctx, const gguf_tensor *t, const char *text);
inferd_status weights_examine(const gguf *g, const backend *be, const decoder_spec *s,
                              weight_problem *tell, void *ctx, decoder_weights *out,
                              weight_plan *plan, inferd_err *err);
void weights_deinit(decoder_weights *w, weight_plan *plan);

/* Bytes of a row in the file; of a vector: all of it. */
size_t weight_entry_row_bytes(const weight_entry *e);
/* Where its bytes begin in the file. */
uint64_t weight_entry_file_offset(const weight_entry *e);
/* Name file and tensor in front of an error that names a row of the entry, and which rows those are
 * when the tensor has others before. */
void weight_entry_name(const gguf *g, const weight_entry *e, inferd_err *err);
/* Of made-up weights: entries of one tensor differ. */
uint64_t weight_entry_seed(const weight_entry *e, uint64_t seed);
/* The window's bytes lie at `base`: set every matrix and vector. */
void weights_bind(backend *be, const decoder_spec *s, decoder_weights *w, const weight_plan *plan,
                  void *base);
/* The end, in the window, of the unit of entry *i (its first); *i becomes the first entry after. */
size_t weights_unit_end(const weight_plan *plan, size_t *i);
/* Measure the fastest algorithms for the bound matrices, once their weights are on the device. */
inferd_status weights_tune(backend *be, const weight_plan *plan, inferd_err *err);
/* Make matrices up from a seed, and norms of ones, at their bound addresses (dummy_model.h):
 * queued, be_check reports a failure. */
void weights_make_up(backend *be, const decoder_spec *s, const weight_plan *plan, uint64_t seed);

#endif
