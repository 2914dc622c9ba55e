/* devices.h - finds the devices that the configuration describes.
 *
 * kind "cpu" and "cuda" select exactly that.  "auto" takes a GPU if there is a module for it, a
 * driver and a device, and else the CPU; then `note` has the reason in one line.  If there are
 * GPUs, an index or a UUID that none of them has is an error with "auto", too; so is INFERD_EBUSY:
 * the machine's GPU services are still starting, and the same call works later.
 *
 * A device without a name is "gpu" with its index, or "cpu" with the first unused number.
 * Thread: front. */
#ifndef INFERD_DEVICES_H
#define INFERD_DEVICES_H

#include "config.h"
#include "fleet.h"

/* Environment variables: where the machine has its libraries (docs/gpu.md). */
#define CUBLASLT_ENV  "INFERD_CUBLASLT"  // libcublasLt.so.13 or its folder
#define CUDA_TUNE_ENV "INFERD_CUDA_TUNE" // a file for measured choices of cuBLASLt

#define CPU_MEMORY_BYTES (2ull << 30) // default size of the CPU's page pool

/* Fills in `out`, which is zeroed (or has a `module`, in tests); its strings are borrowed from the
 * configuration.  On failure one line describes the problem of devices[device_idx]. */
inferd_status devices_resolve(const config_device *d, uint32_t device_idx, backend_options *out,
                              inferd_err *note, inferd_err *err);

enum { DEVICES_NAME_BYTES = 72 };
typedef struct devices_found {
    fleet_device devices[CONFIG_DEVICES_MAX]; // [n] their strings are those of the configuration
    uint32_t n;
    char names[CONFIG_DEVICES_MAX][DEVICES_NAME_BYTES]; // names of devices without a configured one
    backend_device_about about[CONFIG_DEVICES_MAX];     // of GPUs; else kind ""
    inferd_err note; // why "auto" chose the CPU; text "": it did not
} devices_found;

/* All devices of the configuration; module NULL: as each one specifies. */
inferd_status devices_resolve_all(const inferd_config *c, const struct cuda_module *module,
                                  devices_found *out, inferd_err *err);

/* Has this machine an NVIDIA GPU, with a driver or without one?  Only then a missing module or
 * driver is news. */
bool devices_may_have_gpu(void);

/* "cpu", "cuda", "cuda:1", "auto", or a prefix of a UUID; false: the reason is on stderr. */
bool devices_parse(const char *text, config_device *d);

#endif
