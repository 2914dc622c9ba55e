/* engine.h - the thread that computes: one per device, the only owner of its sequences, pages and
 * backend.  The front talks to it through two rings.
 *
 *     front  --submit, cancel, pause, resume, audit-->  inbox   engine
 *     front  <--events, one wake per step-----------    outbox  engine
 *
 * One turn (engine_step in engine.c):
 *   engine_read_inbox > sched_plan > model_forward > sample_batch > sched_commit > outbox_publish
 *
 * Always: every submitted request ends with exactly one GEN_EV_DONE.  The engine never plans a step
 * whose events might not fit the outbox, so none is lost.
 * Thread: engine_start/engine_stop the owner's (front); the rest as said at each. */
#ifndef INFERD_ENGINE_H
#define INFERD_ENGINE_H

#include "inferd/base.h"
#include "inferd/buf.h"
#include "inferd/status.h"
#include "models/model.h"
#include "scheduler/gen.h"

typedef struct engine engine;

/* Limits with names and defaults; 0 means the default. */
typedef struct engine_limits {
    uint32_t running_max;     // sequences in a batch                           32
    uint32_t step_tokens_max; // rows per step                                  512
    uint32_t step_max_ms;     // no step is planned longer                      100
    uint32_t decode_step_ms;  // longest step while others decode               25
    uint32_t queue_len_max;   // waiting requests                               1,024
    uint32_t starvation_ms;   // waiting longer than this lifts one class up    2,000
    uint32_t draft_tokens;    // guessed ahead per sequence and step (CPU)      0: none
    kv_type kv;               // type of stored keys and values                 f16
    bool no_prefix_cache;     // do not keep full blocks
} engine_limits;

typedef enum model_state {
    MODEL_COLD,
    MODEL_LOADING,
    MODEL_HOT,
    MODEL_DRAINING,
    MODEL_FAILED
} model_state;

typedef struct engine_options {
    backend_options device;
    engine_limits limits;
    model **models; // [n_models] opened; borrowed until engine_stop
    uint32_t n_models;
    void (*wake)(void *ctx); // called by the engine when events or a state change can be read
    void *wake_ctx;
} engine_options;

/* Counters and gauges, copied at once. Histograms: counts per bucket of engine_step_us_bounds. */
enum { ENGINE_STEP_BUCKETS = 14 };
extern const uint32_t
    engine_step_us_bounds[ENGINE_STEP_BUCKETS]; // upper bounds; the last is UINT32_MAX

typedef struct engine_stats {
    uint32_t n_running, n_waiting, n_paused;
    uint32_t pages_total, pages_free, pages_weight, pages_kv, pages_cached, pages_quarantine;
    uint64_t n_steps, n_rows, n_prefill_rows, n_decode_rows;
    uint64_t step_us_sum, device_us_sum, step_us_hist[ENGINE_STEP_BUCKETS];
    uint64_t n_preemptions, n_recomputed_tokens;
    uint64_t prefix_queries_tokens, prefix_hits_tokens;
    uint64_t n_drafted, n_drafts_right; // tokens guessed ahead, and those that were drawn
    uint64_t n_submitted, n_finished[GEN_ERROR + 1];
    uint64_t last_step_us; // device time of the newest step
    backend_stats backend;
} engine_stats;

/* Start the thread; it opens the device and loads the models, while this returns at once. */
inferd_status engine_start(const engine_options *options, engine **out, inferd_err *err);
/* End what still runs with GEN_CANCELLED, free everything, join.  Accepts NULL. */
void engine_stop(engine *e);

/* Front only.  False: the inbox is full; the request is still the caller's. */
bool engine_submit(engine *e, gen_request *r);
void engine_cancel(engine *e, uint64_t id); // unknown or finished ids are ignored
void engine_pause(engine *e, uint64_t id);  // keep its pages, compute nothing
void engine_resume(engine *e, uint64_t id);
/* The next event; false: none now. */
bool engine_next_event(engine *e, gen_event *out);

/* Any thread. */
void engine_get_stats(const engine *e, engine_stats *out);
model_state engine_model_state(const engine *e, uint32_t model_idx);
/* Why it FAILED; copied. */
void engine_model_error(const engine *e, uint32_t model_idx, inferd_err *out);
/* The device's context is gone (INFERD_ELOST): everything in flight has ended with that status,
 * every later request does at once, and only a new process helps. */
bool engine_is_lost(const engine *e);
/* How long the device has been working on its oldest step, or on a piece of a load, without an
 * answer; 0: on none. */
uint64_t engine_stuck_us(const engine *e);
const char *engine_device_warning(const engine *e); // what the device lacks; "": nothing
const char *engine_device_name(const engine *e);    // "cpu avx512, 2 threads"; "" before it is open
/* Bytes of weights loaded so far and in all, for a progress bar. */
void engine_load_progress(const engine *e, uint64_t *done, uint64_t *total);
/* Would a prompt of n_prompt tokens with max_tokens ever fit the pool?  The sentence says the
 * numbers. */
inferd_status engine_admit(const engine *e, uint32_t model_idx, uint32_t n_prompt,
                           uint32_t max_tokens, inferd_err *err);

/* Check the books (pool_verify and sched_verify on the engine's thread, between steps) and write
 * them as one JSON object.  Front only; waits at most timeout_ms for the current step. */
inferd_status engine_audit(engine *e, uint32_t timeout_ms, buf *json, inferd_err *err);

#endif
