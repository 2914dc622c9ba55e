/* model.h - one language model: its file, its words, its weights and its forward pass.
 *
 * model_open reads the header, the tokenizer and the chat template (COLD: no weights).
 * model_attach chooses the KV layout and counts pages for a backend; model_load fills the given
 * pages with prepared weights (HOT); model_unload gives the pages back.  Which pages, and when, is
 * the scheduler's business; the model never sees the pool.
 *
 * Thread: model_open, and everything that returns const, any; attach, load, unload and forward the
 * engine's. */
#ifndef INFERD_MODEL_H
#define INFERD_MODEL_H

#include "inferd/base.h"
#include "inferd/batch.h"
#include "inferd/status.h"
#include "kernels/backend.h"
#include "models/chat.h"
#include "models/tokenizer.h"

typedef struct model model;

typedef struct model_options {
    const char *path;          // a .gguf file, or dummy:NAME (models/dummy_model.h)
    const char *template_path; // a Jinja file that replaces the model's chat template, or NULL
    uint32_t context_max;      // 0 = what the file says
    bool allow_dummy;          // else a dummy: path is refused
} model_options;

/* What such a path begins with: a model of made-up weights at a real one's shape. */
#define MODEL_DUMMY_PREFIX "dummy:"
bool model_path_is_dummy(const char *path);

typedef struct model_info {
    const char *path;
    const char *architecture; // "llama"
    const char *name;         // general.name, or ""
    uint32_t context_trained; // positions the model was trained for
    uint32_t context;         // positions served
    uint32_t n_vocab;         // rows of the output head: every id must be below
    uint32_t n_layers, dim, n_heads, n_kv_heads, head_dim, ffn_dim;
    uint64_t n_params;
    uint64_t file_bytes;
} model_info;

inferd_status model_open(const model_options *options, model **out, inferd_err *err);
void model_close(model *m); // accepts NULL; the model must be unloaded and detached

const model_info *model_about(const model *m);
const tokenizer *model_tokenizer(const model *m);
const chat_template *model_chat_template(const model *m); // NULL: the model has none

/* How large a step may be; scratch is allocated for it. */
typedef struct model_limits {
    uint32_t rows_max;   // tokens per step
    uint32_t logits_max; // rows per step whose logits are wanted
    kv_type kv;
} model_limits;

inferd_status model_attach(model *m, backend *be, const model_limits *limits, inferd_err *err);
void model_detach(model *m);                 // unloads first
uint32_t model_weight_pages(const model *m); // pages that the prepared weights take
const kv_layout *model_kv(const model *m);

typedef void model_progress(void *ctx, uint64_t bytes_done, uint64_t bytes_total);

/* Read, check and prepare the weights into `pages` ([model_weight_pages]).  On failure every page
 * is home again and may be reused. */
inferd_status model_load(model *m, const uint32_t *pages, uint32_t n_pages,
                         model_progress *progress, void *ctx, inferd_err *err);
void model_unload(model *m); // the pages are home again
bool model_is_loaded(const model *m);
/* Tensors of the file that the architecture has no use for: worth a warning.  Once loaded. */
uint32_t model_n_unused_tensors(const model *m);
/* Bytes of prepared weights that a step of few rows reads, each once.  Once attached. */
uint64_t model_step_bytes(const model *m);
/* How the matrices are multiplied on this device, for people: "i16: Q4_1 66.4 MB, Q8_0 30.1 MB;
 * f32: F16 3.0 MB"; "" where there is one way for all.  Once attached. */
void model_describe_math(const model *m, char *text, size_t text_bytes);

/* Send a step on its way: the forward pass of the batch and, where the device can (be_can_draw),
 * the drawing of `draws` ([b->n_logits]; ids below n_vocab).  What is passed is borrowed until it
 * returns. be_step_finish tells how it went; without drawing its result has the logits. */
void model_launch(model *m, const batch *b, const sample_row *draws, uint32_t n_vocab);

#endif
