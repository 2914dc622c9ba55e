/* engine_private.h - the engine from inside: its state, and starting it on any device.
 *
 * What the threads share: the two rings, the atomics, and what the mutex guards.  All the rest is
 * the engine thread's.
 * Thread: as said at each group. */
#ifndef INFERD_ENGINE_PRIVATE_H
#define INFERD_ENGINE_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "device.h"
#include "inferd/ring.h"
#include "model_state.h"
#include "pool.h"
#include "scheduler.h"
#include "scheduler/engine.h"

enum { ENGINE_DEPTH_MAX = 2 };
enum { STATS_WORDS = (sizeof(engine_stats) + 7) / 8 };

/* A snapshot of engine_stats that its reader never waits for: odd sequence numbers mean that it is
 * being written, and a reader that saw two different ones looks again. */
typedef struct stats_board {
    atomic_uint sequence;
    atomic_ullong words[STATS_WORDS];
} stats_board;

void stats_publish(stats_board *board, const engine_stats *stats);
void stats_read(const stats_board *board, engine_stats *out);

typedef enum engine_message_kind {
    ENGINE_SUBMIT,
    ENGINE_CANCEL,
    ENGINE_PAUSE,
    ENGINE_RESUME
} engine_message_kind;

typedef struct engine_message {
    engine_message_kind kind;
    uint64_t id;
    gen_request *request; // ENGINE_SUBMIT: owned by whoever pops it
} engine_message;

struct engine {
    /* Set before the thread starts. */
    engine_limits limits;
    sched_limits sched_limits;
    device device; // owned
    void (*wake)(void *ctx);
    void *wake_ctx;
    pthread_t thread;
    bool joined; // owner's

    /* Shared. */
    ring inbox, outbox; // front > engine, engine > front
    atomic_bool stop, opened, lost;
    atomic_ullong busy_since_us; // the device has been working since then; 0: it is not
    char device_name[128], device_warning[256]; // written before `opened`
    stats_board board;
    model_set models; // states are atomic

    pthread_mutex_t mutex;
    pthread_cond_t to_engine, to_front;
    bool signalled;                    // something came for the engine since it last looked
    bool outbox_blocked;               // it waits until the outbox is half empty
    uint64_t audit_wanted, audit_done; // numbers of audits asked for and answered
    buf audit_json;

    /* The engine thread's. */
    pool pool;
    sched *sched;
    step steps[ENGINE_DEPTH_MAX];
    uint64_t step_began_us[ENGINE_DEPTH_MAX];
    uint32_t depth, n_flight, oldest; // steps[oldest], ... are launched and not finished
    uint32_t step_events_max;         // a commit emits no more
    bool events_pushed;               // since the last wake
    engine_stats stats;
};

inferd_status engine_start_device(const engine_limits *limits, device dev, uint32_t n_models,
                                  void (*wake)(void *ctx), void *wake_ctx, engine **out,
                                  inferd_err *err);
/* End everything and join, but keep the outbox readable: engine_next_event then gives what is left,
 * the last events too.  Owner only; engine_stop does it by itself. */
void engine_halt(engine *e);

/* The books as one JSON object, on the engine's thread.  audit.c */
void engine_write_audit(engine *e, buf *json);

#endif
