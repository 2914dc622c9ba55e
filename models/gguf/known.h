/* known.h - what each key of a file means here, so that no key is ignored by mistake.
 *
 * A file says what its model computes in keys, and a key that is not honoured makes another model
 * of it without a word.  So a table says of every key with a prefix what it means; a key that is in
 * no table is an error with its name, and so is a value that asks for something that is not done.
 *
 * Thread: any. */
#ifndef INFERD_KNOWN_H
#define INFERD_KNOWN_H

#include "gguf/gguf.h"

typedef enum known_rule {
    KNOWN_READ,     // honoured: the code that reads it checks its value
    KNOWN_HARMLESS, // nothing that is computed depends on it
    KNOWN_IS,       // this number is what is computed anyway; a bool is 0 or 1
    KNOWN_IS_OR_0,  // the same, and 0 is how writers say that it is not set
    KNOWN_EMPTY     // an array or a string without anything in it
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

/* Every key that begins with `prefix` is in one of the tables, the first that has it counts, and
 * its value is one that the table allows.  Others are INFERD_EUNSUPPORTED with file, key and value.
 */
inferd_status known_check(const gguf *g, const char *prefix, const known_table *tables,
                          size_t n_tables, inferd_err *err);

#endif
