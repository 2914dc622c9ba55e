/* device.h - what computes steps, as the engine sees it.
 *
 * The real one (device_backend.c) is a backend, the models' forward pass and the sampler; tests
 * have one that computes a pure function of the tokens, with an error or a late finish on demand.
 * Steps are computed in the order of launch.  launch returns at once; what goes wrong is told by
 * finish, which fills step.results (all but dropped draws) and says the time the device took.
 *
 * Thread: engine. */
#ifndef INFERD_DEVICE_H
#define INFERD_DEVICE_H

#include "inferd/base.h"
#include "inferd/status.h"
#include "kernels/backend.h"
#include "scheduler.h"
#include "step.h"

typedef struct device_about {
    char name[128];            // "cpu avx512, 2 threads"
    char warning[256];         // what it lacks; "": nothing
    uint32_t n_pages, n_ready; // the others are still being made, see pages
    uint32_t extent_pages;     // pool_init_extents
    uint32_t depth;            // steps that may be launched and not finished, 1 or 2
    uint32_t rows_best;        // be_rows_best
} device_about;

typedef struct device_limits {
    uint32_t rows_max, logits_max;
    kv_type kv;
} device_limits;

typedef struct device_pages {
    uint32_t n_warm;  // be_n_pages_warm
    uint32_t n_ready; // there now
    uint32_t n_pages; // that there will be
} device_pages;

typedef void device_progress(void *ctx, uint64_t bytes_done, uint64_t bytes_total);

typedef struct device_ops {
    inferd_status (*open)(void *self, device_about *out, inferd_err *err);
    void (*close)(void *self); // accepts one that was never opened; frees self
    /* What became of the pages by now; NULL: as open said, and all are warm. */
    void (*pages)(void *self, device_pages *out);

    /* What the model is and how many pages its weights take. */
    inferd_status (*attach)(void *self, uint32_t model_idx, const device_limits *limits,
                            sched_model_spec *spec, uint32_t *weight_pages, inferd_err *err);
    /* On failure every page may be reused. */
    inferd_status (*load)(void *self, uint32_t model_idx, const uint32_t *pages, uint32_t n_pages,
                          device_progress *progress, void *ctx, inferd_err *err);
    void (*detach)(void *self, uint32_t model_idx); // unloads first; accepts an unattached one

    void (*launch)(void *self, const step *st);
    inferd_status (*finish)(void *self, step *st, uint64_t *device_us, inferd_err *err);
    void (*get_stats)(void *self, backend_stats *out);
} device_ops;

typedef struct device {
    const device_ops *ops;
    void *self; // owned by whoever holds the device
} device;

struct model;
/* The device of a backend and its models, which are borrowed.  The options are copied. */
inferd_status device_backend_create(const backend_options *options, struct model **models,
                                    uint32_t n_models, device *out, inferd_err *err);

#endif
