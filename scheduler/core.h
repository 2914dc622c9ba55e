/* core.h - one device's policy as a machine that is turned: sequences, pages, models and steps.
 *
 * The engine turns it on a thread with the real clock and a real device; the simulator and tests
 * turn it by hand with a clock and a device of their own.  One turn:
 *
 *   residency_decide   models that come and go
 *   sched_plan         who computes how many tokens next; pages taken
 *   device launch      until it has as many steps as it takes
 *   device finish      the oldest step's results
 *   sched_commit       append, finish or keep, give pages back, emit events
 *   residency_work     a piece of bringing a model up: long enough to get on, short enough for
 *                      those that decode not to wait for more than about as long again
 *
 * Every microsecond from core_open on is accounted for once.  The account is a line that is cut in
 * pieces: each piece ends where something was done, and is named after it.
 *
 *     ---- step ----|---- step ----|- load -|---- step ----|host|---- idle ----|---- step ...
 *                                                                              ^ until_us
 *
 * So a step has the planning before it and what its predecessor's commit took; copies of keys and
 * values that preemptions caused (move) are taken out of the piece in which they were made.
 *
 * Thread: whoever turns it. */
#ifndef INFERD_CORE_H
#define INFERD_CORE_H

#include "device.h"
#include "pool.h"
#include "residency.h"
#include "scheduler.h"
#include "step.h"

enum { CORE_DEPTH_MAX = 2 };

typedef struct core_options {
    device device; // taken, also on failure
    sched_limits limits;
    residency_limits residency; // its device limits are filled in
    kv_type kv;
    const kv_disk_ops *disk_ops; // NULL: no disk
    kv_disk *disk;               // borrowed until core_end
    uint32_t n_slots;            // models at once
    uint64_t (*clock)(void *ctx);
    /* Events that may still be emitted.  A step is planned only while all it may cause fit. */
    uint32_t (*room)(void *ctx);
    sched_emit *emit;
    void (*wake)(void *ctx); // from another thread: turn it again
    /* A step was finished; NULL: nobody wants to know. */
    void (*on_step)(void *ctx, const step *st, uint64_t device_us, uint64_t wall_us);
    void *ctx; // of all of these
} core_options;

/* Where the time went, microseconds. */
typedef struct core_account {
    uint64_t opened_us;
    uint64_t step_us;  // the device computed; two steps at once count once
    uint64_t load_us;  // it was kept from computing by bringing models up
    uint64_t idle_us;  // nothing to do (core_idle)
    uint64_t move_us;  // keys and values were copied to host memory and back
    uint64_t host_us;  // turns that found nothing to do
    uint64_t until_us; // up to then all is in one of these
} core_account;

typedef struct core {
    core_options options;
    device device;
    pool pool;
    pool host; // pages for parked keys and values, where host memory is apart; else zeroed
    sched *sched;
    residency models;
    core_account account;
    device_about about;
    bool opened, lost;
    bool settled; // the models that come by themselves have come, or cannot

    step steps[CORE_DEPTH_MAX];
    uint64_t step_began_us[CORE_DEPTH_MAX];
    uint32_t depth, n_flight, oldest; // steps[oldest], ... are launched and not finished
    uint32_t step_events_max;         // a commit emits no more
    uint64_t finished_us;             // when the newest step was
    uint64_t moved_us;                // of the piece of the account that has not ended
    uint64_t typical_us;              // of a step: between its middle and its longest, fading
    uint64_t busy_since_us;           // the device has been working since then; 0: it is not
} core;

inferd_status core_init(core *c, const core_options *options, inferd_err *err);
void core_deinit(
    core *c); // closes everything; accepts one whose core_init failed, and a zeroed one
/* Open the device.  After a failure nobody is served. */
inferd_status core_open(core *c, inferd_err *err);
/* False: there was nothing to do. */
bool core_turn(core *c);
/* The next moment at which a turn may find something by itself; UINT64_MAX: none. */
uint64_t core_next_us(const core *c);
/* Nothing was done in [from_us, to_us). */
void core_idle(core *c, uint64_t from_us, uint64_t to_us);
/* From the next turn on what sched_set_policy takes, and min_residency_us, are these. */
void core_set_policy(core *c, const sched_limits *limits, const residency_limits *models);
/* Finish what is on its way, end every sequence, detach every model. */
void core_end(core *c);
/* The device is gone: everybody fails, now and later. */
void core_lose(core *c, const inferd_err *why);

inferd_status core_verify(const core *c, inferd_err *err);

#endif
