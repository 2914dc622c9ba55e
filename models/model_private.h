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

/* A whole small regular file; *out is malloc'd, with a NUL behind its n bytes. */
inferd_status model_read_file(const char *path, size_t bytes_max, char **out, size_t *n,
                              inferd_err *err);
/* Sets m->info.sampling; see models/sampling.h. */
inferd_status model_read_sampling(model *m, inferd_err *err);
/* Sets m->content once the file is open: reads some of its weights. */
inferd_status content_read(model *m, inferd_err *err);

#endif
