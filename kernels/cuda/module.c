/* module.c - finding, loading and launching kernels of a module, and reporting failures.
 *
 * A launcher keeps its first failure, as a backend does: launches after it do nothing, so a forward
 * pass reads as math with one check at its end.  Everything here is a thin layer over cu_api: no
 * memory is taken, no thread is made.
 *
 * Thread: engine (module_find, cu_fail: any). */
#include "cuda/module.h"

#include <string.h>

#include "cuda/parts.h"

const cu_kernel *module_find(const cuda_module *m, const char *name) {
    for (uint32_t i = 0; i < m->n_kernels; i++)
        if (strcmp(m->kernels[i].name, name) == 0) return &m->kernels[i];
    return NULL;
}

/* ---- failures ---- */

static inferd_status status_of(cu_result result) {
    switch (result) {
    case CU_OK:
        return INFERD_OK;
    case CU_NOT_READY:
        return INFERD_EBUSY;
    case CU_ENOMEM:
        return INFERD_ENOMEM;
    case CU_EUNSUPPORTED:
        return INFERD_EUNSUPPORTED;
    case CU_ESTARTING:
        return INFERD_EBUSY;
    case CU_ENODEVICE:
        return INFERD_ENOTFOUND;
    case CU_EDRIVER:
        return INFERD_ENOTFOUND; // as if there were none: the text says what to install
    case CU_ELOST:
        return INFERD_ELOST;
    case CU_EINVAL: // a bug here, not in the request
    case CU_EFAILED:
        break;
    }
    return INFERD_EDEVICE;
}

/* The library's message; some failures have none. */
static const char *text_of(const cu_api *api) {
    const char *text = api->text();
    return text != NULL && text[0] != 0 ? text : "the library gave no reason";
}

inferd_status cu_fail(const cu_api *api, cu_result result, inferd_err *err, const char *what) {
    return inferd_fail(err, status_of(result), "%s: %s", what, text_of(api));
}

void launch_failed(launcher *l, cu_result result, const char *what) {
    if (l->status != CU_OK || result == CU_OK) return; // the first failure is the cause
    l->status = result;
    snprintf(l->text, sizeof l->text, "%s: %s", what, text_of(l->api));
}

/* ---- kernels ---- */

inferd_status module_load(const cuda_module *m, const cu_kernel *k, uint32_t threads,
                          uint32_t shared_bytes, inferd_err *err) {
    if (threads > k->threads_max)
        return inferd_fail(err, INFERD_EUNSUPPORTED,
                           "kernel %s was compiled for at most %u threads per block, asked for %u",
                           k->name, k->threads_max, threads);
    cu_function_info info = {0};
    cu_result r = m->api->kernel_load(k->fn, threads, shared_bytes, &info);
    if (r != CU_OK) {
        inferd_status s = cu_fail(m->api, r, err, k->name);
        inferd_context(err, "loading a kernel");
        return s;
    }
    if (info.blocks_per_sm == 0)
        return inferd_fail(
            err, INFERD_EUNSUPPORTED,
            "kernel %s does not fit a multiprocessor: %u threads of %u registers and "
            "%u bytes of shared memory per block",
            k->name, threads, info.registers, shared_bytes + info.static_shared_bytes);
    return INFERD_OK;
}

/* The same launch without its attribute.  If that works, the attribute was refused. */
static cu_result launch_plainly(launcher *l, cu_launch *what) {
    char why[CU_TEXT_BYTES];
    snprintf(why, sizeof why, "a dependent launch was refused: %s", text_of(l->api));
    what->dependent = false;
    cu_result r = l->api->launch(what, l->stream);
    if (r != CU_OK) return r;
    l->dependent = false;
    parts_degrade(l->parts, PART_PDL, why);
    return CU_OK;
}

void launch(launcher *l, const cu_kernel *k, uint32_t grid_x, uint32_t grid_y, uint32_t grid_z,
            uint32_t threads, uint32_t shared_bytes, const void *params, uint32_t params_bytes) {
    if (l->status != CU_OK || grid_x == 0 || grid_y == 0 || grid_z == 0) return;
    INFERD_CHECK(params_bytes == k->params_bytes);
    bool settle = l->settle;
    l->settle = false;
    cu_launch what = {
        .fn = k->fn,
        .grid = {grid_x, grid_y, grid_z},
        .threads = threads,
        .shared_bytes = shared_bytes,
        .params = params,
        .params_bytes = params_bytes,
        .dependent = l->dependent && !settle,
    };
    cu_result r = l->api->launch(&what, l->stream);
    if (what.dependent && (r == CU_EINVAL || r == CU_EUNSUPPORTED)) r = launch_plainly(l, &what);
    if (r != CU_OK) {
        launch_failed(l, r, k->name);
        return;
    }
    l->n_launches++;
    if (l->n_by_kernel != NULL) l->n_by_kernel[k - l->module->kernels]++;
}
