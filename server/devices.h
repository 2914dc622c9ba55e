/* devices.h - from what the configuration says of devices to those that are there.
 *
 * kind "cpu" and "cuda" are what they say.  "auto" takes a GPU when there is a module for it, a
 * driver and a device, and else the CPU; then `note` says in one line why it is the CPU.  Where
 * there are GPUs, an index or a UUID that none of them has is an error with "auto", too; so is
 * INFERD_EBUSY: the machine's GPU services still start, and the same call works later.
 *
 * A device without a name is called after its kind: "gpu" with its index, "cpu" with the first
 * number that nobody has.
 *
 * Thread: front. */
#ifndef INFERD_DEVICES_H
#define INFERD_DEVICES_H

#include "config.h"
#include "fleet.h"

#define CPU_MEMORY_BYTES (2ull << 30) // of the CPU's page pool, when nothing was said

/* Fill in `out`, which is zeros (or has a `module`, in tests); its strings are the configuration's.
 * On failure one line says what is missing, of devices[device_idx]. */
inferd_status devices_resolve(const config_device *d, uint32_t device_idx, backend_options *out,
                              inferd_err *note, inferd_err *err);

enum { DEVICES_NAME_BYTES = 72 };
typedef struct devices_found {
    fleet_device devices[CONFIG_DEVICES_MAX]; // [n] their strings are the configuration's ...
    uint32_t n;
    char names[CONFIG_DEVICES_MAX][DEVICES_NAME_BYTES]; // ... and these
    backend_device_about about[CONFIG_DEVICES_MAX];     // of GPUs; else kind ""
    inferd_err note;                                    // why one is a CPU; text "": none
} devices_found;

/* All of the configuration; module NULL: as each says. */
inferd_status devices_resolve_all(const inferd_config *c, const struct cuda_module *module,
                                  devices_found *out, inferd_err *err);

/* "cpu", "cuda", "cuda:1", "auto", or the beginning of a UUID; false: said why on stderr. */
bool devices_parse(const char *text, config_device *d);

#endif
