/* self_test.h - measures the generator's own limits, with its null server in a child process. */
#ifndef BENCH_SELF_TEST_H
#define BENCH_SELF_TEST_H

#include "inferd/base.h"
#include "inferd/status.h"

typedef struct self_test_options {
    double seconds;        // of each of the four parts
    unsigned n_streams;    // of all parts but the first
    const char *json_path; // NULL: none
} self_test_options;

/* Prints to standard output, or to standard error when the JSON goes there.  *out_all_ok is false
 * when a request failed. */
inferd_status self_test_run(const self_test_options *o, bool *out_all_ok, inferd_err *err);

#endif
