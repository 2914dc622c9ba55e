/* real.h - declarations shared by the files of the real cu_api.
 *
 *     api.c     devices, memory, streams, kernels, graphs   CUDA runtime, linked in statically
 *     vmm.c     virtual memory and UUIDs                    driver entry points, looked up by name
 *     nvml.c    health                                      libnvidia-ml.so.1, if it is installed
 *     lt.c      large matrices                              libcublasLt.so.13, if it is installed
 *     module.c  the table of kernels, and the one symbol
 *
 * The shared object can be opened without any library of NVIDIA: the static runtime looks for the
 * driver at its first call, so inferd itself reports what is missing.
 *
 * Thread: any; the text of a failure belongs to the thread of the failed call. */
#ifndef INFERD_CUDA_REAL_H
#define INFERD_CUDA_REAL_H

#include <cuda_runtime_api.h>

#include "cuda/cu_api.h"

/* Store the sentence for text() and return `result`. */
__attribute__((format(printf, 2, 3))) cu_result real_fail(cu_result result, const char *format,
                                                          ...);
/* The class of `e`; unless it is success or "not ready" also stores "call: message (700)". */
cu_result real_result(const char *call, cudaError_t e);
const char *real_text(void);

/* -- vmm.c -- */
typedef struct real_identity {
    char uuid[CU_UUID_BYTES];
    bool mig, vmm;
} real_identity;
cu_result real_identify(uint32_t index, real_identity *out);

cu_result vmm_granularity(size_t *out);
cu_result vmm_reserve(size_t n, size_t align, void **out);
cu_result vmm_unreserve(void *p, size_t n);
cu_result vmm_create(size_t n, cu_handle *out);
cu_result vmm_release(cu_handle h);
cu_result vmm_map(void *p, size_t n, cu_handle h);
cu_result vmm_unmap(void *p, size_t n);
cu_result vmm_access(void *p, size_t n);

/* -- nvml.c -- */
cu_result device_health(uint32_t index, cu_health *out);
uint32_t list_instances(uint32_t n_max, cu_instance *out);

/* -- lt.c -- */
cu_result lt_open(const char *path);
uint64_t lt_version(void);
cu_result lt_candidates(const lt_shape *shape, size_t workspace_bytes, uint32_t n_max, lt_algo *out,
                        uint32_t *n);
cu_result lt_matmul(const lt_shape *shape, const lt_algo *algo, const void *x, const void *w,
                    void *out, void *workspace, size_t workspace_bytes, cu_stream s);

extern const cu_api real_api; // api.c

#endif
