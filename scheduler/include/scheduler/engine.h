/* engine.h - the thread that computes: one per device, the only owner of its sequences, pages,
 * models and backend.  The front talks to it through two rings.
 *
 *     front  --submit, cancel, pause, resume, models, audit-->  inbox   engine
 *     front  <--events, one wake per step------------------   outbox  engine
 *
 * One iteration (engine_step in engine.c):
 *   engine_read_inbox > core_iterate: residency_decide > sched_plan > launch > finish >
 * sched_commit > outbox_publish
 *
 * Models live in slots, numbered by the front: a model has the same number everywhere, for as long
 * as it is served and anything of it is left.  A file that was replaced is another model in another
 * slot.
 *
 * Always: every submitted request ends with exactly one GEN_EV_DONE.  The engine plans a step only
 * if all its events fit the outbox, so none is lost.
 * Thread: engine_start, engine_stop: the owner (front); the rest as said at each. */
#ifndef INFERD_ENGINE_H
#define INFERD_ENGINE_H

#include "inferd/base.h"
#include "inferd/buf.h"
#include "inferd/status.h"
#include "models/model.h"
#include "scheduler/gen.h"
#include "scheduler/policy.h"
#include "scheduler/pulse.h"
#include "scheduler/usage.h"
#include "scheduler/worth.h"

typedef struct engine engine;

/* Limits with names and defaults; 0 means the default. */
typedef struct engine_limits {
    uint32_t running_max;     // sequences in a batch                           32
    uint32_t step_tokens_max; // rows per step                                  the device's
    uint32_t queue_len_max;   // waiting requests                               1,024
    uint32_t draft_tokens;    // drafted per sequence and step (CPU)            0: none
    kv_type kv;               // type of stored keys and values                 f16

    uint32_t slice_ms;          // time slice, of models of one class         500
    uint32_t load_retry_ms;     // after a load that failed; doubles             1,000
    uint32_t load_retry_max_ms; // up to this                                    60,000
    uint32_t tpot_ms;           // pace of decoding beside prompts            40
    uint32_t urgent_percent;    // of the time: urgent requests beside shares none
    bool lazy;                  // models are loaded only for a request
    bool zero_on_tenant_change; // KV memory, before another tenant gets it
    struct kv_disk *disk;       // below host memory; borrowed until engine_stop; NULL: none
} engine_limits;

/* residency.h has the transitions between them. */
typedef enum model_state {
    MODEL_NONE,     // no model in this slot
    MODEL_COLD,     // only the shape and vocabulary of its file were read
    MODEL_STAGING,  // its weights are being read and prepared
    MODEL_WARM,     // they are in host memory
    MODEL_LOADING,  // they are being copied to the device
    MODEL_HOT,      // requests are computed
    MODEL_DRAINING, // HOT, and about to leave
    MODEL_FAILED,   // with an error text, and perhaps a time for the next attempt
    MODEL_STATES
} model_state;

const char *model_state_name(model_state state); // "hot"

typedef struct engine_options {
    backend_options device;
    engine_limits limits;
    uint32_t n_slots;        // models at once
    void (*wake)(void *ctx); // called by the engine when events or a state change can be read
    void *wake_ctx;
} engine_options;

typedef enum engine_evict_cause {
    ENGINE_EVICT_PRESSURE, // idle, and its pages were needed
    ENGINE_EVICT_CLASS,    // for work of a more urgent class, or within its guarantee
    ENGINE_EVICT_SLICE,    // for waiting work of the same class: time slices
    ENGINE_EVICT_IDLE,     // keep_alive
    ENGINE_EVICT_ASKED,    // by an operator, or it is served no more
    ENGINE_EVICT_CAUSES
} engine_evict_cause;

/* Parts of bringing a model up for a waiting request, microseconds. */
typedef struct engine_switch {
    uint64_t queue_us;          // from its demand to the first piece of work for it
    uint64_t reclaim_us;        // making room
    uint64_t stage_us, load_us; // reading and preparing; mapping and copying
    uint64_t first_us;          // the first step after that
} engine_switch;

/* Bring-ups of one kind: how many, and their time without waits for pages. */
typedef struct engine_bring_ups {
    uint64_t n, us;
} engine_bring_ups;

/* One slot, copied at once. */
typedef struct engine_model_info {
    model_state state;
    bool held;           // taken out of service by an operator until loaded again
    bool serves_others;  // another name uses its weights, and is not held
    uint32_t weights_of; // another slot when that one has the same content
    uint32_t context, n_running, n_waiting;
    /* Pages it holds, each counted once.  kv: KV that sequences use; cached: KV that none uses;
     * warm and swapped: host memory. */
    uint32_t pages_weight, pages_warm, pages_kv, pages_cached, pages_swapped;
    uint32_t pages_min, pages_max;     // of weight, kv and cached together; UINT32_MAX: no ceiling
    uint32_t weight_pages, host_pages; // its weights on the device, and in host memory, in any case
    uint32_t kv_blocks_used;           // that sequences use
    uint32_t kv_block_tokens;          // positions of one block
    uint32_t kv_blocks_max;            // that fit into all pages left for it; 0: not known yet
    uint32_t decode_us;                // a step of one sequence, predicted; 0: not measured
    uint64_t bytes_done, bytes_total;  // of the newest stage or load
    uint64_t n_stages, n_loads, n_failed, n_evictions[ENGINE_EVICT_CAUSES];
    uint64_t n_left;  // how often it has left the device
    uint64_t n_colds; // how often its weights were dropped
    uint64_t hot_us, load_device_us, device_us;
    uint64_t slice_us;         // quota of its time slices while models thrash; 0: none
    uint64_t idle_us;          // since it was last needed, or loaded; 0: it is now
    uint64_t used_us;          // the last moment with a request; 0: there was none
    uint64_t waiting_since_us; // arrival of the first request without a token yet; 0: none
    worth_pauses pauses;       // its idle times so far
    uint64_t reload_us;        // time to bring it back, about
    engine_switch last, sum;
    /* Bring-ups on this device alone, also in figures of a fleet: those that read and prepared the
     * file, and those of weights that were in host memory. */
    engine_bring_ups from_file, from_host;
    uint64_t n_preempts[GEN_PREEMPTS]; // preemptions of its sequences
    uint64_t n_saturated;              // KV values stored as the largest number of f16
    /* Device memory.  used: weights and KV in use, exactly; held: the whole pages they lie in;
     * cached: pages of cached KV only, evictable; min: guaranteed; max: UINT64_MAX: no ceiling. */
    uint64_t bytes_used, bytes_held, bytes_cached, bytes_min, bytes_max;
    uint32_t cost_error_ppm;   // of the predicted time of its steps: mean |error|, fading
    uint64_t at_us;            // when this was written
    uint32_t n_unused_tensors; // of its file
    char math[256];            // how its matrices are multiplied here, for display
    char stage_note[INFERD_ERR_TEXT_BYTES]; // of the newest stage, for the log: "" or a sentence
    uint32_t retry_after_ms;                // FAILED
    inferd_err why;                         // FAILED
} engine_model_info;

typedef enum engine_command {
    ENGINE_LOAD,     // HOT, also without a waiting request; ends ENGINE_DRAIN
    ENGINE_PREFETCH, // WARM
    ENGINE_UNLOAD,   // not HOT: running requests end first, waiting ones bring it back
    ENGINE_DROP,     // COLD, likewise
    ENGINE_DRAIN,    // present requests end; the front admits none until ENGINE_LOAD
    ENGINE_RETRY     // FAILED: it may come again now, if there is demand
} engine_command;

/* Counters and gauges, copied at once. Histograms: counts per bucket of engine_step_us_bounds. */
enum { ENGINE_STEP_BUCKETS = 14 };
extern const uint32_t
    engine_step_us_bounds[ENGINE_STEP_BUCKETS]; // upper bounds; the last is UINT32_MAX

enum { ENGINE_THRASH_WINDOW_US = 10000000 }; // of reload_us_window

typedef struct engine_stats {
    uint32_t n_running, n_waiting, n_paused;
    /* Pages of the pool, each in one of these; absent: still being made.  Where host memory is
     * separate (not one_memory) warm and swapped are pages' worth of that instead. */
    bool one_memory;
    uint32_t pages_total, pages_free, pages_weight, pages_kv, pages_cached, pages_quarantine;
    uint32_t pages_warm, pages_swapped, pages_absent;
    uint64_t n_steps, n_rows, n_prefill_rows, n_decode_rows;
    uint64_t step_us_sum, device_us_sum, step_us_hist[ENGINE_STEP_BUCKETS];
    uint64_t n_preemptions, n_recomputed_tokens;
    uint64_t charged_us, waste_us;  // of usage_step_us: charged, and computed again
    uint64_t class_us[GEN_CLASSES]; // of charged_us, by class of the request
    /* Sequences of each class, paused ones excluded; and the start of the longest time that one of
     * them has had no step (0: there is none). */
    uint32_t class_running[GEN_CLASSES], class_waiting[GEN_CLASSES];
    uint64_t class_since_us[GEN_CLASSES];
    uint64_t prefix_queries_tokens, prefix_hits_tokens;
    uint64_t n_drafted, n_drafts_right; // draft tokens, and the accepted ones
    uint64_t n_masks, n_masks_made;     // of grammars; of these not found in a cache
    uint64_t n_masks_late, masks_us;    // draws that waited a step for one; work for all
    uint64_t n_submitted, n_finished[GEN_ERROR + 1];
    uint32_t pages_device, pages_host, pages_host_free; // budgets; the host's has warm and swapped
    uint32_t pages_device_free;                         // free in the device's budget
    uint32_t pages_tenants_min;                         // guaranteed to tenants
    uint32_t pages_reserved;                            // free pages that are kept for this
    uint64_t page_bytes;
    /* core.h.  Each microsecond from opened_us to usage_until_us is in one of these; those of a
     * step are charged to flows (charged_us) or are waste (waste_us). */
    uint64_t opened_us, usage_step_us, usage_load_us, usage_idle_us;
    uint64_t usage_move_us, usage_host_us, usage_until_us;
    uint64_t others_us;                      // of charged_us: of flows that the list has no more
    engine_times preempts[GEN_PREEMPTS];     // by preemption kind: until the sequence went on
    engine_times relief;                     // preempted, until its pages were free
    uint64_t n_swapped_out, n_swapped_in;    // blocks swapped out to host memory, and in
    uint32_t blocks_swapped;                 // there now
    uint64_t n_copied_ahead;                 // of n_swapped_out: while their sequence ran
    uint64_t n_stored, n_fetched;            // blocks given to the disk, and read from it
    uint64_t n_zeroed_pages, n_zeroed_slots; // before another tenant got them
    uint32_t attainment_ppm;        // the part of running sequences' targets that can be kept
    uint64_t n_slices;              // time slices of models
    bool thrashing;                 // reloads after time slices take much of all time (residency.h)
    uint64_t reload_us_window;      // so much in the newest window
    uint64_t slices_attainment_ppm; // part of the tokens that are on time with quotas; thrashing
    backend_stats backend;
} engine_stats;

/* Starts the thread and returns at once; the thread opens the device. */
inferd_status engine_start(const engine_options *options, engine **out, inferd_err *err);
/* For models known before the start: sets options->device.workspace_least to their need. */
inferd_status engine_expect_models(engine_options *options, const model *const *models, uint32_t n,
                                   inferd_err *err);
/* Ends what still runs with GEN_CANCELLED, frees everything, joins.  Accepts NULL. */
void engine_stop(engine *e);

/* Front only.  False: the inbox is full; the request is still the caller's. */
bool engine_submit(engine *e, gen_request *r);
void engine_cancel(engine *e, uint64_t id); // unknown or finished ids are ignored
void engine_pause(engine *e, uint64_t id);  // keep its pages, compute nothing
void engine_resume(engine *e, uint64_t id);
/* A drill (engine_drill.c): from the next step on each takes `drill` thousandths of its time, or
 * the device seems to hang, or to be lost, which no later drill changes.  Any thread. */
#define ENGINE_DRILL_NONE 1000u
#define ENGINE_DRILL_LOSE (UINT32_MAX - 1)
#define ENGINE_DRILL_HANG UINT32_MAX
void engine_set_drill(engine *e, uint32_t drill);
uint32_t engine_get_drill(const engine *e);
/* Puts this model (borrowed until the slot is empty again) into a slot without one (MODEL_NONE, not
 * added before).  `same_as`: a slot with the same content, or UINT32_MAX.  False: no memory. */
bool engine_model_add(engine *e, uint32_t model_idx, model *m, uint32_t same_as,
                      const model_policy *policy);
/* Its requests end, and new ones must not name it; when nothing of it is left the slot is empty and
 * engine_model_departures grows. */
void engine_model_remove(engine *e, uint32_t model_idx);
bool engine_model_set_policy(engine *e, uint32_t model_idx, const model_policy *policy);
void engine_model_do(engine *e, uint32_t model_idx, engine_command command);
/* The device was found to be gone outside of a step (INFERD_ELOST, `why`): handled as if a step had
 * reported it.  Front only; false: no memory. */
bool engine_lose(engine *e, const inferd_err *why);
/* Shares and weight of a tenant (gen_request.tenant_idx) from now on.  False: no memory. */
bool engine_set_tenant(engine *e, uint32_t tenant_idx, const tenant_policy *policy);
/* Of these limits urgent_percent and tpot_ms hold from the next step on; the others stay as they
 * were at the start.  False: no memory. */
bool engine_set_policy(engine *e, const engine_limits *limits);
bool engine_next_event(engine *e, gen_event *out);

/* Any thread. */
void engine_get_stats(const engine *e, engine_stats *out);
model_state engine_model_state(const engine *e, uint32_t model_idx);
void engine_model_get(const engine *e, uint32_t model_idx, engine_model_info *out);
/* The usage rows of flows, in fixed positions; returns how many.  serial 0: an unused row. */
uint32_t engine_get_flows(const engine *e, engine_flow *out, uint32_t n_max);
/* KV bytes that a tenant's sequences use here; 0: no policy, or past ENGINE_TENANTS_MAX. */
uint64_t engine_tenant_bytes(const engine *e, uint32_t tenant_idx);
/* Its sequences here that run and wait; 0 likewise. */
void engine_tenant_seqs(const engine *e, uint32_t tenant_idx, uint32_t *n_running,
                        uint32_t *n_waiting);
/* How often the slot became empty. */
uint32_t engine_model_departures(const engine *e, uint32_t model_idx);
/* Why it FAILED; copied. */
void engine_model_error(const engine *e, uint32_t model_idx, inferd_err *out);
/* The device is open, and the models that are loaded at the start have come, or cannot. */
bool engine_is_settled(const engine *e);
/* The device's context is gone (INFERD_ELOST): every request has ended with that status, every
 * later one ends so at once, and only a new process helps. */
bool engine_is_lost(const engine *e);
/* How long the device has worked on its oldest step, or on a piece of a load; 0: on none. */
uint64_t engine_stuck_us(const engine *e);
const pulse *engine_pulse(const engine *e);
const char *engine_device_warning(const engine *e); // what the device lacks; "": nothing
const char *engine_device_name(const engine *e);    // "cpu avx512, 2 threads"; "" before it is open
/* What the weights of a model, served or not, would take on the device.  False: the device is not
 * open, or cannot say, or the model is not for it. */
bool engine_weigh(const engine *e, const model *m, uint32_t *n_pages, uint64_t *n_bytes);
/* Bytes of weights loaded so far and in all, for a progress bar. */
void engine_load_progress(const engine *e, uint64_t *done, uint64_t *total);
/* Could a prompt of n_prompt tokens with max_tokens be served here, now or once the model is HOT?
 * INFERD_EMODEL: it failed, or is out of service; INFERD_ETOOLONG, INFERD_EQUOTA: it can never fit,
 * with the numbers.  *fit_tokens (may be NULL): tokens of KV that it was compared with, for
 * gen_request.fit_tokens; 0: the numbers will change, and the engine decides.  Any thread. */
inferd_status engine_admit(const engine *e, uint32_t model_idx, uint32_t n_prompt,
                           uint32_t max_tokens, uint32_t *fit_tokens, inferd_err *err);

/* Checks all data (pool_verify and sched_verify on the engine's thread, between steps) and writes
 * it as one JSON object.  Front only; waits at most timeout_ms for the current step. */
inferd_status engine_audit(engine *e, uint32_t timeout_ms, buf *json, inferd_err *err);
/* {"cell_pages":1,"runs":[[first page, pages, "weight", model's slot], ...]}: what uses the pages;
 * uses without an owner have no slot.  As engine_audit, and bounded in size. */
inferd_status engine_page_map(engine *e, uint32_t timeout_ms, buf *json, inferd_err *err);

#endif
