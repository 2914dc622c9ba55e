/* model_state.h - where one model of an engine is on its way from file to weights in pages.
 *
 *     COLD -> LOADING   models_attach   its layout is known, pages for its weights are taken
 *     LOADING -> HOT    models_load     requests are planned
 *     any -> FAILED     slot_fail       with a sentence; its pages are back, its requests end
 *     HOT -> DRAINING   engine_stop
 *
 * The sentence is written before FAILED is stored and never again, so whoever reads FAILED may read
 * it without a lock.
 * Thread: written by engine; slot_state, slot_error and the atomics may be read by any. */
#ifndef INFERD_MODEL_STATE_H
#define INFERD_MODEL_STATE_H

#include <stdatomic.h>

#include "device.h"
#include "pool.h"
#include "scheduler/engine.h"

typedef struct model_slot {
    atomic_int state; // model_state
    inferd_err why;   // FAILED
    uint32_t *pages;  // [n_pages] of its weights; owned
    uint32_t n_pages;
    bool attached;
    atomic_uint context, kv_tokens_max; // for engine_admit; context 0 = not known yet
    atomic_ullong bytes_done, bytes_total;
} model_slot;

typedef struct model_set {
    model_slot *slots; // [n] owned
    uint32_t n;
    uint32_t next_load; // the first that was not loaded yet
} model_set;

inferd_status models_init(model_set *ms, uint32_t n, inferd_err *err);
void models_deinit(model_set *ms); // accepts a zeroed set

/* Ask the device about every model and take pages for all weights, so that what is left for keys
 * and values is known before the first request is admitted. */
void models_attach(model_set *ms, const device *dev, const device_limits *limits, pool *p, sched *s,
                   uint64_t now_us);
/* Load the next model that is LOADING; false: none is left.  Takes as long as it takes. */
bool models_load_next(model_set *ms, const device *dev, pool *p, sched *s,
                      void (*progress)(void *ctx), void *progress_ctx, uint64_t (*now)(void));
/* Pages that the device has made or warmed meanwhile are known to the pool. */
void models_grow_pool(const device *dev, pool *p);
/* All models fail with the same sentence: the device could not be opened, or is gone. */
void models_fail_all(model_set *ms, sched *s, const inferd_err *why, uint64_t now_us);
void models_close(model_set *ms, const device *dev, pool *p);

model_state slot_state(const model_slot *slot);
void slot_error(const model_slot *slot, inferd_err *out);

#endif
