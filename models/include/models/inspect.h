/* inspect.h - everything that can be told of a model's file without reading its weights, and every
 * reason why it cannot be served.
 *
 * The answer is a JSON object with the same members for every file: docs/inspect.md lists them.  A
 * member is null when the file does not say it, or says it in a way that is not known.
 *
 * Thread: any. */
#ifndef INFERD_INSPECT_H
#define INFERD_INSPECT_H

#include <jansson.h>

#include "models/model.h"

typedef struct inspect_options {
    model_options model;
    const backend *be; // for the member "memory"; NULL: it is null
    bool tensors;      // with the list of all tensors
} inspect_options;

/* "servable" is true exactly if model_open takes the file.  A failure: it cannot be read at all.
 * The caller owns *out. */
inferd_status model_inspect(const inspect_options *options, json_t **out, inferd_err *err);

#endif
