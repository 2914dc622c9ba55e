/* known.h - tables of the keys of files, so that no key is ignored by mistake.
 *
 * The keys of a file describe the computation of its model, and ignoring a key would silently
 * compute another model.  So tables list every key with a prefix and its rule; a key that is in
 * no table is an error with its name, and so is a value that needs an unsupported feature.
 *
 * Thread: any. */
#ifndef INFERD_KNOWN_H
#define INFERD_KNOWN_H

#include "gguf/gguf.h"

typedef enum known_rule {
    KNOWN_READ,     // honoured: the code that reads it checks its value
    KNOWN_HARMLESS, // no computation depends on it
    KNOWN_IS,       // it must be this number, which is computed anyway; a bool is 0 or 1
    KNOWN_IS_OR_0,  // the same, or 0, which writers use for "not set"
    KNOWN_EMPTY     // it must be an empty array or string
} known_rule;

typedef struct known_key {
    const char *name; // behind the prefix; one '*' stands for any text
    known_rule rule;
    double value; // KNOWN_IS, KNOWN_IS_OR_0
} known_key;

typedef struct known_table {
    const known_key *keys; // [n]
    size_t n;
} known_table;

/* Check that every key with `prefix` is in one of the tables (the first that has it counts) with an
 * allowed value.  Others are INFERD_EUNSUPPORTED with file, key and value. */
inferd_status known_check(const gguf *g, const char *prefix, const known_table *tables,
                          size_t n_tables, inferd_err *err);
/* The same from key number *at on, for tools that tell every problem: a failure leaves the number
 * behind its key in *at.  names_only: keys in no table are the only failures. */
inferd_status known_check_next(const gguf *g, const char *prefix, const known_table *tables,
                               size_t n_tables, bool names_only, size_t *at, inferd_err *err);

#endif
