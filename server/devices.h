/* devices.h - from what the configuration says of a device to one that is there.
 *
 * kind "cpu" and "cuda" are what they say.  "auto" takes a GPU when there is a module for it, a
 * driver and a device, and else the CPU; then `note` says in one line why it is the CPU.  Where
 * there are GPUs, an index or a UUID that none of them has is an error with "auto", too.
 *
 * Thread: front. */
#ifndef INFERD_DEVICES_H
#define INFERD_DEVICES_H

#include "config.h"

#define CPU_MEMORY_BYTES (2ull << 30) // of the CPU's page pool, when nothing was said

/* Fill in `out`, which is zeros (or has a `module`, in tests); its strings are the configuration's.
 * On failure one line says what is missing. */
inferd_status devices_resolve(const config_device *d, backend_options *out, inferd_err *note,
                              inferd_err *err);

/* "cpu", "cuda", "cuda:1", "auto", or the beginning of a UUID; false: said why on stderr. */
bool devices_parse(const char *text, config_device *d);

/* What is known of the device that `o` opens, health included; false: nothing. */
bool devices_look(const backend_options *o, backend_device_about *out);

#endif
