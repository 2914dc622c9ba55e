/* lt_problem.h - the descriptors of a product that lt.c passes to cuBLASLt.
 *
 * Building them needs the library but no device, so a test checks every attribute by reading it
 * back from the real library (tests/cuda_real/lt_descriptors.c).
 *
 * Thread: any, after lt_open. */
#ifndef INFERD_CUDA_LT_PROBLEM_H
#define INFERD_CUDA_LT_PROBLEM_H

#include <cublasLt.h>

#include "cuda/real/real.h"

enum { LT_ALIGN = 256 }; // of x, w and out: all memory of the backend has it

/* Everything about a shape; lives on the stack, so a call allocates nothing. */
typedef struct lt_problem {
    cublasLtMatmulDescOpaque_t desc;
    cublasLtMatrixLayoutOpaque_t w, x, out;
} lt_problem;

/* CU_EINVAL: no such product. */
cu_result lt_describe(const lt_shape *s, lt_problem *p);
/* The limits of algorithms: their workspace, sums in float, alignment. */
cu_result lt_prefer(size_t workspace_bytes, cublasLtMatmulPreferenceOpaque_t *out);

#endif
