/* engine_private.h - the engine from inside: its state, and starting it on any device.
 *
 * The threads share the two rings, the atomics, and what the mutex guards.  All the rest belongs to
 * the engine's thread.
 * Thread: as said at each group. */
#ifndef INFERD_ENGINE_PRIVATE_H
#define INFERD_ENGINE_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "flow_usage.h"
#include "core.h"
#include "inferd/ring.h"
#include "scheduler/engine.h"
#include "scheduler/watch.h"

/* A snapshot of a struct; its reader never waits.  An odd sequence number means that it is being
 * written; a reader that saw an odd one, or two different ones, reads again. */
typedef struct board {
    atomic_uint sequence;
    atomic_ullong *words; // [n_words] owned
    size_t n_bytes, n_words;
} board;

inferd_status board_init(board *b, size_t n_bytes, inferd_err *err);
void board_deinit(board *b); // accepts a zeroed one
void board_publish(board *b, const void *value);
void board_read(const board *b, void *out);

/* The usage rows of all flows for other threads: a board for each row, cut from one allocation. */
typedef struct flow_views {
    board *boards;        // [ENGINE_FLOWS_MAX] owned
    atomic_ullong *words; // of all of them; owned
    atomic_uint n;        // rows used so far
} flow_views;

inferd_status flow_views_init(flow_views *v, inferd_err *err);
void flow_views_deinit(flow_views *v); // accepts a zeroed one
/* Writes the rows that changed.  Engine. */
void flow_views_publish(flow_views *v, flow_usage *a);

/* The view of one slot for other threads. */
typedef struct slot_view {
    board info;                                            // engine_model_info
    atomic_int state;                                      // of info, on its own: read often
    atomic_bool held;                                      // likewise
    atomic_uint context, kv_tokens_max, kv_tokens_ceiling; // engine_admit; context 0: not known
    atomic_uint departures;
} slot_view;

typedef enum engine_message_kind {
    ENGINE_SUBMIT,
    ENGINE_CANCEL,
    ENGINE_PAUSE,
    ENGINE_RESUME,
    ENGINE_MODEL_ADD,
    ENGINE_MODEL_REMOVE,
    ENGINE_MODEL_POLICY,
    ENGINE_MODEL_DO,
    ENGINE_TENANT,
    ENGINE_POLICY,
    ENGINE_LOSE
} engine_message_kind;

/* ENGINE_MODEL_ADD, ENGINE_MODEL_POLICY, ENGINE_TENANT, ENGINE_POLICY, ENGINE_LOSE. */
typedef struct engine_model_change {
    model *m; // borrowed
    uint32_t same_as;
    model_policy policy;
    tenant_policy tenant;
    engine_limits limits;
    inferd_err lost; // why
} engine_model_change;

typedef struct engine_message {
    engine_message_kind kind;
    uint64_t id; // of a request; of a model its slot; of a tenant its number
    engine_command command;
    gen_request *request;        // ENGINE_SUBMIT: owned by the thread that pops it
    engine_model_change *change; // likewise
} engine_message;

/* The state that viewers see (scheduler/watch.h).  Guarded by engine.mutex, except as said. */
typedef struct watch {
    atomic_bool pages_wanted;
    uint32_t *ready; // [n_ready] the newest codes; owned; room for n_ready_room
    uint32_t n_ready, n_ready_room;
    bool has_ready;
    uint32_t *writing; // room for n_writing; owned; the engine's
    uint32_t n_writing;
    atomic_ullong steps_until_us;
    board step_board;      // engine_step_view
    engine_step_view step; // the same, of this epoch; both the engine's
    uint64_t step_epoch;
    uint64_t last_us;                    // engine_step_view.last_us; the engine's
    engine_note notes[ENGINE_NOTES_MAX]; // a ring
    uint32_t first_note, n_notes;
    uint64_t n_notes_lost;
} watch;

struct engine {
    /* Set before the thread starts. */
    engine_limits limits;
    void (*wake)(void *ctx);
    void *wake_ctx;
    pthread_t thread;
    bool joined; // the owner's

    /* Shared. */
    ring inbox, outbox; // front > engine, engine > front
    atomic_bool stop, opened, settled, lost;
    atomic_uint drill;           // engine_set_drill
    pulse pulse;                 // written by the engine's thread
    atomic_ullong busy_since_us; // since when the device has been working; 0: it is not
    char device_name[128], device_warning[256]; // written before `opened`
    board stats_board;                          // engine_stats
    flow_views flows;
    atomic_ullong *tenant_bytes; // [ENGINE_TENANTS_MAX] engine_tenant_bytes; owned
    atomic_ullong *tenant_seqs;  // [ENGINE_TENANTS_MAX] running << 32 | waiting; owned
    atomic_ullong idle_since_us; // usage_until_us of the stats: idle since then
    slot_view *slots;            // [n_slots] owned
    uint32_t n_slots;
    atomic_uint n_changes_sent, n_changes_seen; // changes sent by the front; those in the views

    pthread_mutex_t mutex;
    pthread_cond_t to_engine, to_front;
    bool signalled;                    // something came for the engine since it last looked
    bool outbox_blocked;               // the engine waits until the outbox is half empty
    uint64_t audit_wanted, audit_done; // numbers of audits asked for and answered
    bool map_wanted;                   // the newest of them is for the page map
    buf audit_json;
    watch watch;

    /* The engine thread's. */
    core core;
    bool events_pushed; // since the last wake
    engine_stats stats;
    uint64_t seen_changes; // residency.n_changes when the views were last written
    uint64_t views_us;     // and the time
    bool views_stale;      // work was done since then
    uint32_t n_changes;    // changes read from the inbox so far
};

inferd_status engine_start_device(const engine_limits *limits, device dev, uint32_t n_slots,
                                  void (*wake)(void *ctx), void *wake_ctx, engine **out,
                                  inferd_err *err);
/* Ends everything and joins, but keeps the outbox readable: engine_next_event then gives what is
 * left, the last events too.  Owner only; engine_stop does it by itself. */
void engine_halt(engine *e);

/* Writes the audit as one JSON object, on the engine's thread. audit.c */
void engine_write_audit(engine *e, buf *json);
/* Writes what uses its pages, likewise.  page_map.c */
void engine_write_map(engine *e, buf *json);

/* -- watch.c -- */
inferd_status watch_init(watch *w, inferd_err *err);
void watch_deinit(watch *w);                                     // accepts a zeroed one
void watch_write_pages(engine *e);                               // if they are asked for
void watch_launched(void *ctx, const step *st, uint64_t now_us); // core_options.on_launch
void watch_finished(engine *e, const step *st, uint64_t wall_us);
void watch_note(void *ctx, const engine_note *note); // core_options.note

/* -- engine_drill.c -- */
/* core_options.drill */
inferd_status engine_drill_step(void *ctx, uint64_t *device_us, inferd_err *err);

#endif
