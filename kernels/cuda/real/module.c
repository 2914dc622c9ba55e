/* module.c - the interface of inferd_cuda.so: the calls and one table of all kernels.
 *
 * Each kernels/cuda/<family>.cu ends with its own table.  The build finds the families (the files,
 * by pattern) and passes their names as X(family) in INFERD_CUDA_FAMILIES; here the tables are
 * joined, once.
 *
 * Thread: any. */
#include <pthread.h>
#include <stdio.h>

#include "cuda/module.h"
#include "cuda/real/real.h"

enum { KERNELS_MAX = 4096 }; // far above the real number; more is a bug in the build

#define X(family)                                                                                  \
    extern const cu_kernel family##_table[];                                                       \
    extern const uint32_t family##_table_n;
INFERD_CUDA_FAMILIES
#undef X

static cu_kernel kernels[KERNELS_MAX];
static char about[128];
static cuda_module module = {
    .version = CUDA_MODULE_VERSION, .about = about, .api = &real_api, .kernels = kernels};
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void join(void) {
#define X(family) {family##_table, &family##_table_n},
    const struct {
        const cu_kernel *table;
        const uint32_t *n;
    } families[] = {INFERD_CUDA_FAMILIES};
#undef X
    uint32_t n = 0;
    for (size_t i = 0; i < INFERD_COUNT(families); i++)
        for (uint32_t k = 0; k < *families[i].n; k++) {
            INFERD_CHECK(n < KERNELS_MAX);
            kernels[n++] = families[i].table[k];
        }
    module.n_kernels = n;
    snprintf(about, sizeof about, "cuda %d.%d, %s", CUDART_VERSION / 1000,
             CUDART_VERSION % 1000 / 10, INFERD_CUDA_CODE);
}

__attribute__((visibility("default"))) cuda_module_fn inferd_cuda_module;
const cuda_module *inferd_cuda_module(void) {
    pthread_once(&once, join);
    return &module;
}
