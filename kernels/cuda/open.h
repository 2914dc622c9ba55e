/* open.h - finding inferd_cuda.so, and the devices it supports.
 *
 * The module is opened once per process and never closed: kernels, graphs and the runtime
 * inside it cannot be unloaded safely.  It is searched
 *
 *     at the path that is configured, else at INFERD_CUDA_MODULE       nothing else is tried then
 *     beside the program
 *     in ../lib/inferd of the program's folder
 *     on the loader's path
 *
 * Thread: any. */
#ifndef INFERD_CUDA_OPEN_H
#define INFERD_CUDA_OPEN_H

#include "cuda/module.h"
#include "kernels/backend.h"

#define CUDA_MODULE_FILE "inferd_cuda.so"
#define CUDA_MODULE_ENV  "INFERD_CUDA_MODULE"
#define CUDA_VISIBLE_ENV "CUDA_VISIBLE_DEVICES"

/* `path` may be NULL.  INFERD_ENOTFOUND names the searched places; INFERD_EUNSUPPORTED: a module of
 * another version; INFERD_EINVAL: this process has another file open already. */
inferd_status cuda_module_open(const char *path, const cuda_module **out, inferd_err *err);

/* The devices that can be opened: out[BE_DEVICES_MAX].  `uuid`: of the wanted device, or NULL; for
 * a MIG instance the first call of the process sets CUDA_VISIBLE_DEVICES, which CUDA reads once.  A
 * device that fails is listed with its problem.  INFERD_ENOTFOUND says what is missing: driver or
 * device.  No context is made. */
inferd_status cuda_list(const cuda_module *m, const char *uuid, backend_device_about *out,
                        uint32_t *n, inferd_err *err);

/* Only the device that cuda_pick picks; a problem of it is the failure.  `inside`: see
 * backend_look; the calling thread uses the device afterwards. */
inferd_status cuda_look(const cuda_module *m, const char *uuid, uint32_t index, bool inside,
                        backend_device_about *out, inferd_err *err);

/* The device with a UUID that begins with `uuid` (in upper or lower case), or if that is NULL the
 * device of that index.  INFERD_ENOTFOUND names the field and the existing devices. */
inferd_status cuda_pick(const cuda_module *m, const char *uuid, uint32_t index, uint32_t *chosen,
                        cu_device *about, inferd_err *err);

/* backend_list_devices, backend_look and backend_list_instances for kind "cuda". */
inferd_status cuda_list_devices(const backend_options *options, backend_device_about *out,
                                uint32_t *n, inferd_err *err);
inferd_status cuda_look_device(const backend_options *options, bool inside,
                               backend_device_about *out, inferd_err *err);

uint32_t cuda_list_instances(const backend_options *options, uint32_t n_max, backend_instance *out);

#endif
