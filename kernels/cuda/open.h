/* open.h - finding inferd_cuda.so, and the devices it knows.
 *
 * The module is opened once per process and stays open for ever: kernels, graphs and the runtime
 * inside it have no safe end.  It is looked for
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

/* `path` may be NULL.  INFERD_ENOTFOUND says where was looked; INFERD_EUNSUPPORTED: a module of
 * another version; INFERD_EINVAL: this process has another file open already. */
inferd_status cuda_module_open(const char *path, const cuda_module **out, inferd_err *err);

/* What can be opened: out[BE_DEVICES_MAX].  `uuid`: of the device that is wanted, or NULL; for a
 * MIG instance the first call of the process sets CUDA_VISIBLE_DEVICES, which CUDA reads once.  One
 * that fails is there with its problem. INFERD_ENOTFOUND says what is missing: driver or device. No
 * context is made. */
inferd_status cuda_list(const cuda_module *m, const char *uuid, backend_device_about *out,
                        uint32_t *n, inferd_err *err);

/* Only the device that cuda_pick picks; a problem of it is the failure.  `inside`: backend_look
 * says what; the calling thread is left using the device. */
inferd_status cuda_look(const cuda_module *m, const char *uuid, uint32_t index, bool inside,
                        backend_device_about *out, inferd_err *err);

/* The device whose UUID begins with `uuid` (in any case), or when that is NULL the one of that
 * index. INFERD_ENOTFOUND names the field and the devices there are. */
inferd_status cuda_pick(const cuda_module *m, const char *uuid, uint32_t index, uint32_t *chosen,
                        cu_device *about, inferd_err *err);

/* backend_list_devices, backend_look and backend_list_instances for kind "cuda". */
inferd_status cuda_list_devices(const backend_options *options, backend_device_about *out,
                                uint32_t *n, inferd_err *err);
inferd_status cuda_look_device(const backend_options *options, bool inside,
                               backend_device_about *out, inferd_err *err);

uint32_t cuda_list_instances(const backend_options *options, uint32_t n_max, backend_instance *out);

#endif
