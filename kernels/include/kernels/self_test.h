/* self_test.h - a check of the kernels on this GPU.
 *
 * Every kernel of the module is launched on small inputs and its output is compared with formulas
 * on the host: first the primitives of the kernels (shuffles, barriers, asynchronous copies,
 * conversions, mma), then each family.  Inputs are chosen so that most answers are exact; the
 * others have a bound.  A check is one launch, so a wrong result names its kernel.
 *
 * Nothing of the backend is opened: no VMM, no graphs, no dependent launch except in its check.
 *
 * Thread: any; one test at a time. */
#ifndef INFERD_SELF_TEST_H
#define INFERD_SELF_TEST_H

#include "kernels/backend.h"

typedef enum self_test_result {
    SELF_TEST_OK,
    SELF_TEST_WRONG,  // `where` is the first wrong element
    SELF_TEST_FAILED, // it was not launched, or did not end: `text` says why
    SELF_TEST_SKIPPED // it cannot be checked here: `text` says why
} self_test_result;

typedef struct self_test_row {
    uint32_t index;     // of the device
    const char *name;   // "mma_bf16"
    const char *kernel; // of the module: "selftest_mma_bf16"; "lt_matmul" for cuBLASLt
    self_test_result result;
    char where[48];       // "out[3, 5]"
    double got, expected; // of that element; integers if bits are compared
    double bound;         // allowed difference; 0: equal
    char text[INFERD_ERR_TEXT_BYTES];
} self_test_row;

/* Called in the order of the checks; the row is borrowed for the call. */
typedef void self_test_tell(const self_test_row *row, void *ctx);

/* All checks on the GPU of options->uuid or options->index.  INFERD_OK: all checks were made,
 * whatever their results.  INFERD_ENOTFOUND: no module, driver or device.  INFERD_ELOST: a check
 * lost the device or did not end, and the checks after it were not made. */
inferd_status self_test_cuda(const backend_options *options, self_test_tell *tell, void *ctx,
                             inferd_err *err);

#endif
