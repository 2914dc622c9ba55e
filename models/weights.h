/* weights.h - the tensors of a file, bound to the fields of decoder_weights.
 *
 * weights_plan looks up every tensor the spec asks for, checks type and shape once, and gives each
 * a place in the model's window; weights_load reads and prepares them there.  Between the two the
 * scheduler finds pages.
 *
 *     window   | embed | norm | head | layer 0: attn_norm wq wk ... | layer 1 ... |   256-byte
 * aligned
 *
 * Thread: weights_plan any; weights_load the engine's. */
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
    uint32_t n_unused;   // tensors of the file that nobody asked for
} weight_plan;

/* Fill in out->layers and the plan.  Errors name tensor, shape and what was expected. */
inferd_status weights_plan(const gguf *g, backend *be, decoder_spec *s, decoder_weights *out,
                           weight_plan *plan, inferd_err *err);
void weights_deinit(decoder_weights *w, weight_plan *plan);

/* Read and prepare everything into the mapped window, unit by unit; each unit goes to the device
 * while the next is read.  A warm window needs no reading. */
inferd_status weights_load(const gguf *g, backend *be, const decoder_spec *s, decoder_weights *w,
                           const weight_plan *plan, be_window *window, model_progress *progress,
                           void *ctx, inferd_err *err);

/* The same without reading: matrices made up from a seed, norms of ones, where they will lie
 * (models/dummy_model.h).  When it returns they are there, on the device too.  The window's host
 * copy is not used and never warm: a reload makes everything again. */
inferd_status weights_make_up(backend *be, const decoder_spec *s, decoder_weights *w,
                              const weight_plan *plan, be_window *window, uint64_t seed,
                              model_progress *progress, void *ctx, inferd_err *err);

#endif
