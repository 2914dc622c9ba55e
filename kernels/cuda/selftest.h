/* selftest.h - kernels of single primitives of gpu.cuh, the first ones that self_test.h launches.
 *
 * Each kernel uses a few primitives in all their forms and writes the results to `out`, in the
 * order that selftest.cu states beside it; selftest_words.c has the expected results by formulas of
 * its own.  They keep the rules of gpu.cuh and are compiled into the product's module.
 *
 * C and CUDA C++ include this.
 *
 * Thread: engine; values. */
#ifndef INFERD_CUDA_SELFTEST_H
#define INFERD_CUDA_SELFTEST_H

#include "cuda/module.h"

enum {
    SELFTEST_THREADS = 128, // per block, unless a kernel states another number
    SELFTEST_WARP = 32,
    SELFTEST_COPY_STAGES = 5,
    SELFTEST_ROW_BYTES = 48,   // of the tile of ldmatrix in shared memory: 16 numbers and 16 bytes
    SELFTEST_MATH_OUTPUTS = 16 // numbers per input
};

typedef struct selftest_params {
    void *out;
    const void *in, *more, *most;
    uint32_t *scratch; // zero before
    uint32_t n;
} selftest_params;

#endif
