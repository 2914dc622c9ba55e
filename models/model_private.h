/* model_private.h - the parts of a model, for the code that binds it to a backend.
 *
 * Thread: any; nothing but `held` and counters changes after model_open. */
#ifndef INFERD_MODEL_PRIVATE_H
#define INFERD_MODEL_PRIVATE_H

#include <stdatomic.h>

#include "models/calls.h"
#include "decoder.h"
#include "gguf/gguf.h"
#include "models/model.h"

struct model {
    gguf *file; // owned; stays open, so that a reload reads the file that was checked
    decoder_spec spec;
    tokenizer *tok;      // owned
    chat_template *chat; // owned; NULL: none
    call_format *calls;  // owned; NULL without a template
    char *path, *name;   // owned
    model_info info;
    bool dummy; // the file has no weights: they are made up from the seed
    uint64_t dummy_seed;
    uint64_t content[2];        // model_content
    atomic_bool held;           // use the open file, whatever its path names
    atomic_ullong *expert_rows; // [n_experts] see model_expert_counts; NULL: none; owned
    atomic_ullong n_expert_reads;
};

/* Opens as much of a model's file as can be, for tools: each problem is told, in the order in which
 * model_open meets them, and the fields of what failed are empty.  Weights are neither planned nor
 * read.  *described: `spec` is whole.  Fails when the file is none that can be read. */
typedef void model_problem(void *ctx, const gguf_tensor *t, const char *text);
inferd_status model_examine(const model_options *options, model_problem *tell, void *ctx,
                            model **out, bool *described, inferd_err *err);

/* What a tensor of this name is for. */
typedef enum model_media { MODEL_TEXT, MODEL_IMAGE, MODEL_AUDIO } model_media;
model_media model_media_of(const char *tensor);

/* A whole small regular file; *out is malloc'd, with a NUL behind its n bytes. */
inferd_status model_read_file(const char *path, size_t bytes_max, char **out, size_t *n,
                              inferd_err *err);
/* Sets m->info.sampling; see models/sampling.h. */
inferd_status model_read_sampling(model *m, inferd_err *err);
/* The generation_config.json that is read for this model's file; the caller frees it.  NULL: there
 * is none. */
inferd_status sampling_find_side(const char *model_path, char **out, inferd_err *err);
/* Sets m->content once the file is open: reads some of its weights. */
inferd_status content_read(model *m, inferd_err *err);

#endif
