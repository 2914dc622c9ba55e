/* emul_module.c - the module that inferd_cuda.so would be: the fake of cu_api and the kernels of
 * the families that are linked into this program, compiled as C++ for emulated threads.
 *
 * A family is found by the name of its table; the symbols are weak, so that a test links only the
 * kernels it is about.
 *
 * Thread: any; the first call makes the table. */
#include <pthread.h>
#include <string.h>

#include "cuda/module.h"

#include "fake_api.h"

const cuda_module *emul_module(void);

#define FAMILIES(X)                                                                                \
    X(rows) X(gemv) X(expand) X(skinny) X(attention) X(draw) X(experts) X(bench) X(selftest)

#define DECLARE(family)                                                                            \
    extern const cu_kernel family##_table[] __attribute__((weak));                                 \
    extern const uint32_t family##_table_n __attribute__((weak));
FAMILIES(DECLARE)

static cu_kernel kernels[FAKE_KERNELS_MAX];
static cuda_module module = {.version = CUDA_MODULE_VERSION,
                             .about = "emulated, all compute capabilities"};

static void add_family(const cu_kernel *table, const uint32_t *n) {
    if (table == NULL || n == NULL) return; // not linked
    INFERD_CHECK(*n <= FAKE_KERNELS_MAX - module.n_kernels);
    memcpy(&kernels[module.n_kernels], table, *n * sizeof *table);
    module.n_kernels += *n;
}

static void make_table(void) {
#define ADD(family) add_family(family##_table, &family##_table_n);
    FAMILIES(ADD)
    for (uint32_t i = 0; i < module.n_kernels; i++)
        for (uint32_t j = 0; j < i; j++)
            INFERD_CHECK(strcmp(kernels[i].name, kernels[j].name) != 0);
    module.kernels = kernels;
    module.api = fake_api();
    fake_add_kernels(kernels, module.n_kernels);
}

const cuda_module *emul_module(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_table);
    return &module;
}
