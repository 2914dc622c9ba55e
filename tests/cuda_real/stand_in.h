/* stand_in.h - NVIDIA's libraries as test_cuda_real sees them: they note what they are asked and
 * say what the test wants.  No device, no memory, no order: that is the fake of cu_api (cuda_emul).
 *
 *     cudart.c     the CUDA runtime and the driver's entry points, linked in place of the real ones
 *     cublaslt.c   libcublasLt.so.13, a file of its own; multiplies in the library's words
 *     nvml.c       libnvidia-ml.so.1, a file of its own
 *
 * Thread: one. */
#ifndef INFERD_STAND_IN_H
#define INFERD_STAND_IN_H

#include <cuda_runtime_api.h>
#include <stdbool.h>

/* The runtime and the driver; one struct, reset by assigning (stand_in){...}. */
typedef struct stand_in {
    /* what they say */
    const char *fail_call; // this call fails, NULL: none does
    cudaError_t error;
    int driver_version, n_devices;
    const char *device_name;
    unsigned char uuid, uuid_parent; // every byte of them
    bool no_parent_uuid;             // the driver has forgotten the older call
    int shared_allowed;              // a kernel's allowance before anybody asks for more
    bool mps;                        // this process is a client of an MPS server
    float elapsed_ms;

    /* what they were asked */
    int device;
    char calls[1024]; // names in order, each followed by a blank
    cudaLaunchConfig_t config;
    cudaLaunchAttribute attribute;
    const void *fn;
    unsigned first_param;
    int carveout;
    int shared_wanted;
    unsigned flags; // of the newest call that has some
    int priority, capture_mode, copy_kind, location, access_flags;
    int n_graphs, n_execs; // not destroyed
    size_t n_bytes, granularity_flags;
    unsigned long long handle;
} stand_in;
extern stand_in said;

#endif
