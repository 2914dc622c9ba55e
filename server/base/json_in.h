/* json_in.h - parses untrusted JSON: first a scan with limits, then jansson.
 *
 * The scan bounds depth, structural characters and keys, finds the line and column of each problem,
 * and takes one pass; jansson then parses with a byte budget on its allocator, so that an expansion
 * attack is an error and a lack of memory is distinguished from an invalid document.
 * Thread: any (the budget is per thread). */
#ifndef INFERD_JSON_IN_H
#define INFERD_JSON_IN_H

#include <jansson.h>

#include "inferd/base.h"
#include "inferd/status.h"

typedef struct json_limits {
    uint32_t depth_max;      // 64
    uint32_t structural_max; // { } [ ] , : together; 1,048,576: each token id of a list costs one
    uint64_t memory_max;     // of the parsed tree; 128 MiB
} json_limits;
static const json_limits json_limits_default = {
    .depth_max = 64, .structural_max = 1048576, .memory_max = 128ull * 1024 * 1024};

/* Call once before threads: sets the allocator with budgets and the hash seed. */
void json_in_init(void);

/* INFERD_EINVAL "line 3, column 14: ..." (never echoes content), INFERD_ETOOLONG over a limit,
 * INFERD_ENOMEM for lack of memory.  Integers beyond 64 bits are reals.  Duplicate keys, NUL, lone
 * surrogates, invalid UTF-8, NaN are errors.  The caller calls json_decref on *out. */
inferd_status json_in_parse(bytes text, const json_limits *limits, json_t **out, inferd_err *err);

/* Integers beyond 64 bits have their digits in the text alone.  Has a text that ends with 0 numbers
 * as large?  And the text of the value at a path, "messages[0].input", of a document that was read;
 * .n 0: not found. */
bool json_in_has_wide(bytes text);
bytes json_in_value(bytes text, const char *path);

/* After this, freed JSON trees of this thread are zeroed: for documents with keys. */
void json_in_wipe(bool on);

/* The line of each value of a document by JSON path ("models[0].path"), for configuration errors.
 * The text is borrowed and scanned again for each query. */
typedef struct json_lines json_lines;
json_lines *json_lines_create(bytes text); // NULL: no memory
void json_lines_destroy(json_lines *l);
uint32_t json_lines_find(const json_lines *l, const char *path); // 1-based line; 0 = unknown

#endif
