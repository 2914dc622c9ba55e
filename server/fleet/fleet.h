/* fleet.h - the engines of all devices: which have which model, and which one serves a request.
 *
 * A model has the same slot number on every device; a *replica* is a model in a slot of one engine.
 * One device is a fleet of one.
 *
 *     added        placement.h chooses devices for its replicas, or for the parts of a share over
 *                  several devices
 *     request      goes to the replica that has its prefix and meets the target, else the fullest
 *                  that meets it, else the one that answers first (placement_route)
 *     each second  scale.h decides whether a model needs one replica more or less; a new one is
 *                  loaded before it serves, a removed one finishes its work first
 *     device lost  its replicas are placed again; its requests have failed, other devices go on
 *     rebalance    a replica moves to another device when the gain exceeds the cost (fleet_move.c)
 *
 * The limits of a model (min, max, share) are divided into *parts*: as many as share.devices or
 * replicas.min say, all of equal size (18 GiB and 240 % on 3 devices: 6 GiB and 80 % each).
 * A replica beyond the parts has no min and the ceiling of a part.  A fixed share is divided again
 * over all replicas that compute; of another kind of share it gets nothing.
 *
 *     a replica   absent -> joining   fleet_add_replica, while other replicas serve
 *                 joining -> serving  look_at_replicas: it was HOT, even if it is not any more
 *                 joining -> leaving  look_at_replicas: it failed, or took too long
 *                 absent -> serving   fleet_add_replica of the first replicas
 *                 any -> leaving      fleet_remove_replica: no new requests, finishes its open ones
 *                 leaving -> absent   look_at_replicas: the engine has released it
 * Thread: front, except functions marked "any thread". */
#ifndef INFERD_FLEET_H
#define INFERD_FLEET_H

#include "inferd/buf.h"
#include "scheduler/engine.h"
#include "scheduler/placement.h"
#include "scheduler/policy.h"

enum {
    FLEET_DEVICES_MAX = PLACEMENT_DEVICES_MAX,
    FLEET_PAGE_BYTES = 2 << 20 // before a device reports its own
};
#define FLEET_NOWHERE UINT32_MAX

typedef struct fleet fleet;

typedef struct fleet_device {
    const char *name; // "gpu0"; copied
    backend_options backend;
    uint64_t memory_bytes; // for placement before it is open; 0: not known
} fleet_device;

typedef struct fleet_options {
    const fleet_device *devices; // [n_devices], 1 ... FLEET_DEVICES_MAX
    uint32_t n_devices;
    engine_limits limits;
    const model *const
        *models; // [n_models] that are added first: devices reserve room for their steps
    uint32_t n_models;
    uint32_t n_slots;
    void (*wake)(void *ctx); // as engine_options.wake; called by any engine
    void *wake_ctx;
} fleet_options;

/* *out is NULL on failure. */
inferd_status fleet_start(const fleet_options *options, fleet **out, inferd_err *err);
/* The same with engines that already run, one per device; the fleet owns them from here on, also
 * when this fails.  The options that start engines are ignored. */
inferd_status fleet_of_engines(const fleet_options *options, engine *const *engines, fleet **out,
                               inferd_err *err);
void fleet_stop(fleet *f); // accepts NULL

/* Any thread. */
uint32_t fleet_n_devices(const fleet *f);
const char *fleet_device_name(const fleet *f, uint32_t device_idx);
const engine *fleet_engine(const fleet *f, uint32_t device_idx); // for its own figures
engine *fleet_engine_to_watch(fleet *f, uint32_t device_idx);    // for scheduler/watch.h; front
/* Front.  Percent guaranteed to the replicas there, except those of slot `but` (UINT32_MAX: no
 * exception).  Placement compares it with 100 percent. */
uint32_t fleet_share_percent(const fleet *f, uint32_t device_idx, uint32_t but);

/* -- models -- */
typedef struct fleet_model_about {
    model *m;              // borrowed until the slot is empty
    uint64_t weight_bytes; // when prepared, about
    uint32_t same_as;      // as engine_model_add
    model_policy policy;   // of the whole model
    bool held;             // taken out of service by an operator
} fleet_model_about;

/* As engine_model_add, on as many devices as the policy says; false: no memory, nothing added. */
bool fleet_model_add(fleet *f, uint32_t slot, const fleet_model_about *about);
void fleet_model_remove(fleet *f, uint32_t slot);
/* The new policy applies from the next step on; false: no memory. */
bool fleet_model_set_policy(fleet *f, uint32_t slot, const model_policy *policy);
void fleet_model_do(fleet *f, uint32_t slot, engine_command command); // on all its devices
bool fleet_model_is_held(const fleet *f, uint32_t slot);              // by an operator
/* The number of parts that the limits of a model are divided into, and the k-th part. */
uint32_t fleet_n_parts(const model_policy *p);
model_policy fleet_part_of(const model_policy *whole, uint32_t k);
uint32_t fleet_period_us(const model_policy *p); // time per token; 0: no target
/* Can its replicas keep these guarantees?  `sums` ([n_devices], zeros before the first call) grow
 * by them, so that several models can be checked together; EINVAL's text has the inequality. */
inferd_status fleet_check_min(const fleet *f, uint32_t slot, const model_policy *policy,
                              uint64_t *sums, inferd_err *err);
/* The policy that a model would get. */
typedef struct fleet_guarantee {
    uint32_t slot;
    const char *name;
    const model_policy *policy;
} fleet_guarantee;
/* Would the weights of each of these models still fit beside the guarantees of the others?  Only a
 * change for the worse is an error.  Bytes: new_min of models that are not placed yet, tenants_min
 * of all tenants.  ENOMEM. */
inferd_status fleet_check_weights(const fleet *f, const fleet_guarantee *all, uint32_t n,
                                  uint64_t new_min, uint64_t tenants_min, inferd_err *err);
/* The same for the guarantees of all tenants, on the running devices. */
inferd_status fleet_check_tenants(const fleet *f, uint64_t min_bytes, uint64_t percent,
                                  inferd_err *err);
/* The same for shares: `sums` grow by the guaranteed percents of this model, and `grew` gets a bit
 * for each device where it would have more than now. fleet_check_shares then fails if a device in
 * `grew` is over 100 percent. */
void fleet_add_shares(const fleet *f, uint32_t slot, const model_policy *policy, uint32_t *sums,
                      uint64_t *grew);
inferd_status fleet_check_shares(const fleet *f, const uint32_t *sums, uint64_t grew,
                                 inferd_err *err);
/* Does a decode step at its share, as measured, take longer than slo.tpot_ms?  True: see `text`. */
bool fleet_is_too_slow(const fleet *f, uint32_t slot, const model_policy *policy, char *text,
                       size_t text_bytes);

struct feasible_task;
/* Could the devices keep slo.tpot_ms of all these models together, by the steps measured so far?
 * Only models that get a tighter target than now are checked.  EINVAL's text has the inequality. */
inferd_status fleet_check_targets(const fleet *f, const fleet_guarantee *all, uint32_t n,
                                  inferd_err *err);
/* The models of a device with measured steps, into out[n]; name_idx is the index in `all`. */
uint32_t fleet_list_tasks(const fleet *f, uint32_t device_idx, const fleet_guarantee *all,
                          uint32_t n, struct feasible_task *out);

/* Any thread.  All replicas together: the most advanced state, sums of counts. */
void fleet_model_get(const fleet *f, uint32_t slot, engine_model_info *out);
/* Front.  The same plus the counters of leaving and departed replicas: no counter decreases. */
void fleet_model_tally(const fleet *f, uint32_t slot, engine_model_info *out);
model_state fleet_model_state(const fleet *f, uint32_t slot);
/* The most advanced state on any device that still has a part of it, serving or not. */
model_state fleet_slot_state(const fleet *f, uint32_t slot);
void fleet_model_error(const fleet *f, uint32_t slot, inferd_err *out);
bool fleet_model_is_lost(const fleet *f, uint32_t slot); // all devices with a replica are lost
/* How many times the slot became empty on all devices. */
uint32_t fleet_model_departures(const fleet *f, uint32_t slot);
/* Devices that have a replica of it, as bits. */
uint64_t fleet_model_devices(const fleet *f, uint32_t slot);

/* Front. */
typedef enum fleet_replica_state {
    FLEET_ABSENT,
    FLEET_JOINING,
    FLEET_SERVING,
    FLEET_LEAVING
} fleet_replica_state;
typedef struct fleet_replica {
    fleet_replica_state state;
    uint32_t part;       // index of the part of the model's limits
    uint32_t n_open;     // requests sent there that have not ended
    model_policy policy; // of its part
} fleet_replica;
void fleet_get_replica(const fleet *f, uint32_t slot, uint32_t device_idx, fleet_replica *out);
const char *fleet_replica_state_name(fleet_replica_state state);
/* How many replicas its load needs, even if there are fewer devices. */
uint32_t fleet_desired_replicas(const fleet *f, uint32_t slot);
/* Why no device took its last replica, or "". */
const char *fleet_placement_problem(const fleet *f, uint32_t slot);

/* The policy of a tenant on all devices together.  Share and max are divided over the devices where
 * it has work (fleet_tenants.c), min over `devices` (bits; 0 is all). */
bool fleet_set_tenant(fleet *f, uint32_t tenant_idx, const tenant_policy *policy, uint64_t devices);
/* Bytes of the KV blocks that its sequences refer to (cached blocks excluded), on all devices. */
uint64_t fleet_tenant_bytes(const fleet *f, uint32_t tenant_idx);
/* Its sequences on all devices. */
void fleet_tenant_seqs(const fleet *f, uint32_t tenant_idx, uint32_t *n_running,
                       uint32_t *n_waiting);
/* engine_set_policy of all devices; false: no memory for one of them. */
bool fleet_set_policy(fleet *f, const engine_limits *limits);
/* Grows with every replica that was added or removed. */
uint64_t fleet_n_changes(const fleet *f);

/* A change of the number of replicas by scaling. */
typedef struct fleet_scale {
    uint32_t slot, device_idx;
    uint32_t n_replicas; // after the change
    bool more;           // one joins there; else one leaves
} fleet_scale;
/* A change that was not returned yet: at most one per model and fleet_tick.  False: none. */
bool fleet_next_scale(fleet *f, fleet_scale *out);

/* -- moves -- */
typedef enum fleet_move_why {
    FLEET_MOVE_ROOM,     // for a replica that fits nowhere
    FLEET_MOVE_SWITCHES, // models on one device waited for each other
    FLEET_MOVE_LOAD,     // one device is busy, another is less so
    FLEET_MOVE_WHYS
} fleet_move_why;
typedef enum fleet_move_state {
    FLEET_MOVE_NONE,
    FLEET_MOVE_BEGUN,
    FLEET_MOVE_DONE,
    FLEET_MOVE_FAILED
} fleet_move_state;
typedef struct fleet_move {
    fleet_move_state state;
    fleet_move_why why;
    uint32_t slot, from, to;
} fleet_move;
typedef struct fleet_moves {
    uint64_t n_done[FLEET_MOVE_WHYS], n_failed;
    fleet_move last;
    uint64_t n_notes; // grows when a move begins or ends: at most once per fleet_tick
} fleet_moves;
void fleet_get_moves(const fleet *f, fleet_moves *out);
const char *fleet_move_why_name(fleet_move_why why);       // "room"
const char *fleet_move_state_name(fleet_move_state state); // "begun"

/* -- requests -- */
/* Where could it be served?  *devices: bits of the devices where it fits; r->fit_tokens is set.
 * INFERD_OK with 0 devices: no device has the model at the moment.  Else why the last of them
 * refused it (engine_admit). */
inferd_status fleet_admit(const fleet *f, gen_request *r, uint64_t *devices, inferd_err *err);
/* Of these devices the one that should serve it, or FLEET_NOWHERE: none has the model. */
uint32_t fleet_choose(fleet *f, const gen_request *r, uint64_t devices);
/* Sends it to that device.  False: its inbox is full; r is still the caller's. */
bool fleet_submit(fleet *f, uint32_t device_idx, gen_request *r);
/* Both: the device that has it now, or FLEET_NOWHERE. */
uint32_t fleet_send(fleet *f, gen_request *r, uint64_t devices);
/* The request ended there: the caller received its GEN_EV_DONE. */
void fleet_note_done(fleet *f, uint32_t device_idx, uint32_t slot, uint32_t tenant_idx);
void fleet_cancel(fleet *f, uint32_t device_idx, uint64_t id);
void fleet_pause(fleet *f, uint32_t device_idx, uint64_t id);
void fleet_resume(fleet *f, uint32_t device_idx, uint64_t id);
bool fleet_next_event(fleet *f, gen_event *out);
/* A first token came after this time: an input of scaling. */
void fleet_note_ttft(fleet *f, uint32_t slot, uint64_t ttft_us, uint64_t now_us);

/* -- devices -- */
/* Call it regularly and after events; it does little more often than once per SCALE_PERIOD_US. */
void fleet_tick(fleet *f, uint64_t now_us);
typedef struct fleet_queues {
    uint32_t n_running, n_waiting, n_paused;
} fleet_queues;
void fleet_get_queues(const fleet *f, fleet_queues *out); // sums; any thread
bool fleet_is_settled(const fleet *f); // all engines with models are settled or lost
bool fleet_is_lost(const fleet *f);    // all devices are lost: no request can be served
bool fleet_lose(fleet *f, uint32_t device_idx, const inferd_err *why); // engine_lose
void fleet_set_drill(fleet *f, uint32_t device_idx, uint32_t drill);   // engine_set_drill
/* Why the device is lost; text "": the reason is not known. */
void fleet_lost_why(const fleet *f, uint32_t device_idx, inferd_err *out);
/* The longest time that a device has been hanging, and which one. */
uint64_t fleet_stuck_us(const fleet *f, uint32_t *device_idx);
void fleet_load_progress(const fleet *f, uint64_t *done, uint64_t *total);
/* {"ok":..,"devices":[{"device":"cpu0", the accounting of its engine}, ...]} without the last
 * brace. timeout_ms is for all devices together. */
inferd_status fleet_audit(fleet *f, uint32_t timeout_ms, buf *json, inferd_err *err);
/* engine_page_map of one device. */
inferd_status fleet_page_map(fleet *f, uint32_t device_idx, uint32_t timeout_ms, buf *json,
                             inferd_err *err);

#endif
