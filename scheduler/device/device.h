/* device.h - the interface between the engine and what holds models and computes steps.
 *
 * The real implementation (device_backend.c) is a backend, the models' forward pass and the
 * sampler; tests have one that computes a pure function of the tokens, with errors or late finishes
 * on demand; the simulator has one that only takes time.
 *
 * A model comes in slot `idx` and is brought up in two moves, each made of pieces between which
 * steps are computed:
 *
 *     attach      its shape and sizes are known                     COLD
 *     stage_*     file -> host memory, in the device's layout       COLD -> WARM
 *                 file -> pages of the device, without a host copy  COLD -> WARM, nothing to load
 *     load_*      host memory -> pages of the device                WARM -> HOT
 *     drop_copy   its host memory is free                           HOT
 *     save_*      pages of the device -> host memory                HOT
 *     unload      its pages on the device are free                  HOT -> WARM, with a host copy
 *     unstage     its host memory is free                           any -> COLD
 *
 * Where host and device are one memory (the CPU, `one_memory`), stage_begin gets pages of the pool
 * and load has nothing to copy.  Elsewhere the device manages the host memory itself, and
 * host_pages says how much of the host budget it takes.
 *
 * Steps are computed in the order of launch.  launch computes the step (the CPU) or returns at once
 * (a GPU); finish waits for it, reports errors, fills step.results (except for dropped draws) and
 * returns the time the device took. Thread: engine. */
#ifndef INFERD_DEVICE_H
#define INFERD_DEVICE_H

#include "inferd/base.h"
#include "inferd/status.h"
#include "kernels/backend.h"
#include "scheduler.h"
#include "step.h"

struct model;

#define DEVICE_OWN UINT32_MAX

typedef struct device_about {
    char name[128];            // "cpu avx512, 2 threads"
    char warning[256];         // what it lacks; "": nothing
    uint32_t n_pages, n_ready; // of the pool; the others are still being made, see pages
    uint32_t n_host_pages;     // for warm weights; one_memory: n_pages includes them
    bool one_memory;
    /* Host memory apart: its pages for swapped-out keys and values, whole extents of
     * swap_extent_pages; pages taken of them count in n_host_pages.  0: none. */
    uint32_t n_swap_pages, swap_extent_pages;
    uint64_t bus_bytes_per_s; // to host memory apart; 0: not known
    uint64_t page_bytes;
    uint32_t extent_pages; // pool_init_extents
    uint32_t depth;        // steps that may be launched and not finished, 1 or 2
    bool draws;            // it draws itself; else finish looks at step.draws
    uint32_t rows_best;    // be_rows_best
    uint32_t rows_default; // be_rows_default
} device_about;

typedef struct device_limits {
    uint32_t rows_max, logits_max;
    kv_type kv;
} device_limits;

typedef struct device_pages {
    uint32_t n_warm;  // be_n_pages_warm
    uint32_t n_ready; // ready now
    uint32_t n_pages; // in the end
} device_pages;

/* A model as this device sees it. */
typedef struct device_model {
    sched_model_spec spec;
    uint32_t weight_pages; // on the device while HOT
    uint64_t weight_bytes; // of those pages: the last page, or extent, is partly used
    uint32_t host_pages;   // of the host budget while WARM; one_memory: equal to weight_pages
    uint32_t n_unused_tensors;
    char math[256];       // how its matrices are multiplied, for people
    uint64_t stage_bytes; // to read from the file
} device_model;

/* Progress of a stage or a load. */
typedef struct device_progress {
    uint64_t done, total; // bytes
    uint64_t device_us;   // time during which this piece kept the device from steps
    bool finished;
    bool waiting;     // the file is behind: nothing to do before `wake` is called
    const char *note; // of a finished stage, for the log; valid until the next one; NULL: none
} device_progress;

typedef struct device_ops {
    inferd_status (*open)(void *self, device_about *out, inferd_err *err);
    void (*close)(void *self); // accepts one that was never opened; frees self
    /* Current numbers of pages; NULL: as open said, and all are warm. */
    void (*pages)(void *self, device_pages *out);

    /* The model (borrowed until detach) is in this slot from now on.  Its end ids are borrowed by
     * the spec.  `same_as`: another attached slot with a file of the same content, or DEVICE_OWN;
     * if given, the slot computes with the weights of that one and is never staged or loaded
     * itself.  No step is on its way when a slot is detached; detach unstages first, and accepts a
     * slot without a model. */
    inferd_status (*attach)(void *self, uint32_t idx, struct model *m, uint32_t same_as,
                            const device_limits *limits, device_model *out, inferd_err *err);
    void (*detach)(void *self, uint32_t idx);
    /* `to` computes with the weights of `from`.  From now on `to` owns them, wherever they are, and
     * its file is read for them; `from` and all other members compute with them.  Not while they
     * are staged or loaded.  NULL: not supported. */
    void (*hand_over)(void *self, uint32_t from, uint32_t to);
    /* The weight_pages that attach would report for a model, which need not be attached, and the
     * bytes of its weights.  From open to close, any thread.  NULL: not supported. */
    inferd_status (*weigh)(const void *self, const struct model *m, uint32_t *n_pages,
                           uint64_t *n_bytes, inferd_err *err);

    /* Begin to read and prepare; returns at once.  `pages` ([weight_pages]): where it is wanted.
     * Host memory apart: NULL: in a host copy; else no copy stays.  `wake` is called from another
     * thread when a waiting stage can go on. */
    inferd_status (*stage_begin)(void *self, uint32_t idx, const uint32_t *pages,
                                 void (*wake)(void *), void *wake_ctx, inferd_err *err);
    /* Go on for about budget_us, and at most one small piece longer.  After a failure the slot is
     * COLD and every page may be reused. */
    inferd_status (*stage_step)(void *self, uint32_t idx, uint64_t budget_us, device_progress *out,
                                inferd_err *err);
    /* Free the host's copy, complete or not; `one_memory`: the device stops using its pages. */
    void (*unstage)(void *self, uint32_t idx);

    /* Bring a WARM model into these pages ([weight_pages]; those of its stage, if it had some). */
    inferd_status (*load_begin)(void *self, uint32_t idx, const uint32_t *pages, inferd_err *err);
    /* As stage_step.  Steps may be launched after load_begin: they wait on the device for what they
     * need, and so do all steps behind them. */
    inferd_status (*load_step)(void *self, uint32_t idx, uint64_t budget_us, device_progress *out,
                               inferd_err *err);
    /* HOT or loading -> WARM; it has a host copy, or one_memory.  No step that uses it is on its
     * way. */
    void (*unload)(void *self, uint32_t idx);
    /* Host memory apart, and HOT.  drop_copy frees the host copy.  save_begin and save_step, as
     * load_*, make one while no step uses the model; after a failure there is none. */
    void (*drop_copy)(void *self, uint32_t idx);
    inferd_status (*save_begin)(void *self, uint32_t idx, inferd_err *err);
    inferd_status (*save_step)(void *self, uint32_t idx, uint64_t budget_us, device_progress *out,
                               inferd_err *err);

    /* Copy n slots of keys and values of this model between pages of the device and of the host.
     * Slot numbers of the host count through the host's pages (one_memory: the pool's).  In order
     * with steps: after those launched before, ahead of those launched later; but copies to the
     * device land in slots that no launched step uses, and may overtake steps.  The copies may be
     * unfinished when this returns.  If one fails, the device is lost.  NULL: not supported. */
    void (*move_kv)(void *self, uint32_t idx, uint32_t n, const int32_t *from, const int32_t *to,
                    bool to_host);
    /* That extent of the host's pages has no swapped-out block any more.  NULL: not needed. */
    void (*swap_empty)(void *self, uint32_t first_page);

    /* Where the host reads and writes a slot of keys and values: a swapped-out one, and with
     * one_memory any.  Earlier launches and moves have taken effect there.  NULL: not supported. */
    unsigned char *(*kv_slot)(void *self, uint32_t idx, int32_t slot);
    /* Zero n bytes of a page from `begin` on (SIZE_MAX: all), in order with steps; or NULL. */
    void (*zero)(void *self, uint32_t page, size_t begin, size_t n_bytes);

    void (*launch)(void *self, const step *st);
    /* The draws of the step launched last, if it has b.draws_later: before the next launch, and
     * before it is finished.  NULL: a device that draws needs all of them at launch. */
    void (*draw)(void *self, const step *st);
    inferd_status (*finish)(void *self, step *st, uint64_t *device_us, inferd_err *err);
    void (*get_stats)(void *self, backend_stats *out); // for engine.c and audit.c
    /* For a thread that the engine's thread started: it may leave the CPU of a compute thread. From
     * open to close, any thread.  NULL: not needed. */
    void (*thread_beside)(const void *self);
} device_ops;

typedef struct device {
    const device_ops *ops;
    void *self; // owned by the owner of this struct
} device;

/* The device of a backend, with room for n_slots models.  The options are copied. */
inferd_status device_backend_create(const backend_options *options, uint32_t n_slots, device *out,
                                    inferd_err *err);

#endif
