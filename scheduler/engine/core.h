/* core.h - a device's sequences, pages, models and steps, as a machine that its caller advances.
 *
 * The engine advances it on a thread with the real clock and a real device; the simulator and tests
 * advance it with a clock and a device of their own.  One iteration:
 *
 *   residency_decide   evict models and bring models up
 *   sched_plan         which sequences compute how many tokens next; take pages
 *   device launch      until the device has as many steps as it takes
 *   device finish      the oldest step's results
 *   sched_commit       append, finish or keep, give pages back, emit events
 *   residency_work     a piece of bringing a model up: long enough to make progress, short enough
 *                      to delay decoding sequences by about one step at most
 *
 * Every microsecond from core_open on is accounted for once.  The time is a line that is cut in
 * pieces: each piece ends where something was done, and is named after it.
 *
 *     ---- step ----|---- step ----|- load -|---- step ----|host|---- idle ----|---- step ...
 *                                                                              ^ until_us
 *
 * So a step includes the planning before it and the commit of its predecessor.  Copies of keys and
 * values for preemption (move) are taken out of the piece in which they were made.
 * Thread: its caller's. */
#ifndef INFERD_CORE_H
#define INFERD_CORE_H

#include "device.h"
#include "masks.h"
#include "pool.h"
#include "residency.h"
#include "scheduler.h"
#include "scheduler/watch.h"
#include "step.h"

enum { CORE_DEPTH_MAX = 2 };

typedef struct core_options {
    device device; // owned from here on, also on failure
    sched_limits limits;
    residency_limits residency; // its device limits are filled in
    kv_type kv;
    const kv_disk_ops *disk_ops; // NULL: no disk
    kv_disk *disk;               // borrowed until core_end
    uint32_t n_slots;            // most models at once
    uint32_t masks_threads;      // of grammars (masks.h); 0: by the CPUs of the machine
    uint64_t (*clock)(void *ctx);
    /* Events that may still be emitted.  A step is planned only if all events it may cause fit. */
    uint32_t (*room)(void *ctx);
    sched_emit *emit;
    void (*wake)(void *ctx); // from another thread: call core_iterate again
    /* A step was launched; NULL: no callback. */
    void (*on_launch)(void *ctx, const step *st, uint64_t now_us);
    /* A step was finished; NULL: no callback. */
    void (*on_step)(void *ctx, const step *st, uint64_t device_us, uint64_t wall_us);
    /* After a step that finished well: it may wait, lengthen the step, or fail it.  NULL: none. */
    inferd_status (*drill)(void *ctx, uint64_t *device_us, inferd_err *err);
    void (*note)(void *ctx, const engine_note *note); // residency.note
    void *ctx;                                        // of all of these
} core_options;

/* Where the time went, microseconds. */
typedef struct core_usage {
    uint64_t opened_us;
    uint64_t step_us;  // the device computed; the overlap of two steps counts once
    uint64_t load_us;  // bringing models up kept it from computing
    uint64_t idle_us;  // nothing to do (core_idle)
    uint64_t move_us;  // keys and values were copied to host memory and back
    uint64_t host_us;  // iterations without other work
    uint64_t until_us; // all time up to here is in one of these
} core_usage;

typedef struct core {
    core_options options;
    device device;
    pool pool;
    pool host; // pages for swapped-out keys and values, where host memory is apart; else zeroed
    sched *sched;
    masks *masks; // grammars; owned
    bool masks_before_launch;
    residency models;
    core_usage usage;
    device_about about;
    bool opened, lost;
    bool settled; // all eager models are up, or cannot come

    step steps[CORE_DEPTH_MAX];
    uint64_t step_began_us[CORE_DEPTH_MAX];
    uint32_t depth, n_flight, oldest; // steps[oldest], ... are launched and not finished
    bool undrawn;                     // the newest of them waits for its draws
    uint32_t step_events_max;         // the most events of one commit
    uint64_t finished_us;             // end of the newest step
    uint64_t moved_us;                // in the current piece of the time line
    uint64_t typical_us;              // of a step: between its median and its maximum, fading
    uint64_t busy_since_us;           // the device has been working since then; 0: it is not
} core;

inferd_status core_init(core *c, const core_options *options, inferd_err *err);
void core_deinit(core *c); // also after a failed core_init, or zeroed
/* Open the device.  After a failure no request is served. */
inferd_status core_open(core *c, inferd_err *err);
bool core_iterate(core *c); // false: there was nothing to do
/* The next time at which core_iterate may have work without a wake; UINT64_MAX: none. */
uint64_t core_next_us(const core *c);
/* The time until which a core that found nothing to do at from_us may sleep.  Besides, requests
 * that wait for pages are looked at again when the starvation floor may have moved them, or when a
 * time slice of models may end. */
uint64_t core_sleep_until_us(const core *c, uint64_t from_us);
void core_idle(core *c, uint64_t from_us, uint64_t to_us); // nothing was done in [from_us, to_us)
void core_set_policy(core *c, const sched_limits *limits); // from the next iteration on
void core_end(core *c); // finish the steps on their way, end every sequence, detach every model
/* The device is lost: every request fails, now and later. */
void core_lose(core *c, const inferd_err *why);

inferd_status core_verify(const core *c, inferd_err *err);

#endif
