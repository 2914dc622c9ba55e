/* cuda_module.c - shared objects as test_cuda_open wants to find them in place of inferd_cuda.so.
 *
 *     MODULE_GOOD, MODULE_GOOD_TOO   right, without kernels; the second is another file
 *     MODULE_OLD                     of another version
 *     MODULE_EMPTY                   without the symbol */
#include "cuda/module.h"

#ifdef MODULE_EMPTY
int cuda_module_empty = 1; // a shared object has something in it
#else
#ifdef MODULE_OLD
#define VERSION (CUDA_MODULE_VERSION + 41)
#else
#define VERSION CUDA_MODULE_VERSION
#endif

static const cuda_module module = {.version = VERSION, .about = "a test's module"};

cuda_module_fn inferd_cuda_module;
const cuda_module *inferd_cuda_module(void) {
    return &module;
}
#endif
