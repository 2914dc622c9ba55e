/* inspect_report.h - what the files of models/inspect*.c share.
 *
 *     inspect.c         the file, shapes, types of tensors, what is not served, reasons
 *     inspect_chat.c    tokenizer, chat template, sampling
 *     inspect_memory.c  memory of weights, keys and values
 *
 * Running out of memory is a flag, looked at once at the end. */
#ifndef INFERD_INSPECT_REPORT_H
#define INFERD_INSPECT_REPORT_H

#include "model_private.h"
#include "models/inspect.h"
#include "weights.h"

typedef struct report {
    json_t *root;    // owned
    json_t *reasons; // [string] owned
    bool no_memory;
    const model *m;
    bool described;       // m->spec is whole
    uint64_t wrong_types; // a bit for each element type that some tensor needs and nothing computes
    const backend *be;    // NULL: none
    weight_plan plan;     // of what could be planned
    bool planned, is_whole; // is_whole: every tensor could
} report;

/* Takes `value`; NULL: no memory. */
void report_put(report *r, json_t *object, const char *key, json_t *value);
void report_add(report *r, json_t *array, json_t *value);
/* Text of a file; what is not UTF-8 is shown as '?'. */
json_t *report_text(bytes text);
/* A number of the file, or null for 0. */
json_t *report_number(uint64_t n);

/* Each puts its members into the root. */
void report_tokenizer(report *r);
void report_template(report *r);
void report_sampling(report *r);
void report_memory(report *r);

#endif
