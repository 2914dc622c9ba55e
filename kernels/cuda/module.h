/* module.h - the contents of inferd_cuda.so: the calls (cu_api) and the kernels; launching kernels.
 *
 * Each family of kernels has a header that declares its arguments (attention.h), a C file with the
 * launchers that choose kernel, grid and shared memory (attention.c), and a .cu file.  The list in
 * the header makes the family's part of the table; a kernel takes one struct by value.  The tests
 * compile the same .cu files as C++ and run kernels on emulated threads.
 *
 *     inferd      launchers, memory, program: plain C
 *     inferd_cuda.so   cu_api for the real libraries + table of compiled kernels
 *
 * Thread: engine. */
#ifndef INFERD_CUDA_MODULE_H
#define INFERD_CUDA_MODULE_H

#include "cuda/cu_api.h"
#include "inferd/base.h"
#include "inferd/status.h"

typedef struct cu_kernel {
    const char *name; // "rmsnorm_bf16"
    const void *fn;
    uint32_t params_bytes;
    uint32_t threads_max; // of its __launch_bounds__
    uint32_t cc_min;      // 80, 90: first compute capability it runs on
} cu_kernel;

enum { CUDA_MODULE_VERSION = 4 }; // goes up when cu_api or a params struct changes

typedef struct cuda_module {
    uint32_t version;  // CUDA_MODULE_VERSION when it was built
    const char *about; // "cuda 13.0, sm_80 sm_86 sm_89 sm_90"
    const cu_api *api;
    const cu_kernel *kernels; // [n_kernels]
    uint32_t n_kernels;
} cuda_module;

/* The one symbol of inferd_cuda.so. */
typedef const cuda_module *cuda_module_fn(void);
#define CUDA_MODULE_SYMBOL "inferd_cuda_module"

/* The state of launches: stream, counts, first failure.  `status` is sticky: after a failure
 * launches do nothing. */
struct cuda_parts;
typedef struct launcher {
    const cuda_module *module;
    const cu_api *api;
    const cu_device *device;
    cu_stream stream;
    cu_result status;
    char text[CU_TEXT_BYTES]; // of the failure, with the kernel's name
    uint64_t n_launches;
    uint64_t *n_by_kernel;    // [module->n_kernels] owned by the backend; may be NULL
    struct cuda_parts *parts; // refusals are recorded there; may be NULL
    bool dependent;           // launch kernels as programmatic dependents; off once one was refused
    bool settle;              // not the next one: it may read the newest launch's data as a weight
} launcher;

/* The kernel of that name, NULL: not in the module.  Families look theirs up once (X_init). */
const cu_kernel *module_find(const cuda_module *m, const char *name);
/* Allow the kernel its shared memory and load its code; before the pool is sized. */
inferd_status module_load(const cuda_module *m, const cu_kernel *k, uint32_t threads,
                          uint32_t shared_bytes, inferd_err *err);

/* Launch `k`; grid dimensions of 0 launch nothing. */
void launch(launcher *l, const cu_kernel *k, uint32_t grid_x, uint32_t grid_y, uint32_t grid_z,
            uint32_t threads, uint32_t shared_bytes, const void *params, uint32_t params_bytes);
void launch_failed(launcher *l, cu_result result, const char *what);

/* INFERD_ENOMEM, INFERD_EUNSUPPORTED, INFERD_ELOST ... with `what` and the library's text. */
inferd_status cu_fail(const cu_api *api, cu_result result, inferd_err *err, const char *what);

#endif
