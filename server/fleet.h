/* fleet.h - the engines of all devices behind one face: which of them has which model, and which
 * one serves a request.
 *
 * A model has the same slot number on every device; a *replica* is a model in a slot of one engine.
 * One device is a fleet of one.
 *
 *     added        place.h chooses devices for its replicas, or for the parts of a share over
 *                  several devices
 *     request      goes to the replica that has its prefix and meets the target, else the fullest
 *                  that does, else the one that answers first (place_route)
 *     each second  scale.h says whether a model needs one replica more, or could do with one less;
 *                  one that comes is loaded before it serves, one that goes ends its work first
 *     device lost  its replicas are placed anew; what ran there has failed, others go on
 *     now and then a replica moves to another device when that gains more than it costs
 *                  (fleet_move.c)
 *
 * What a model may have (min, max, share) is that of its *parts*: as many as share.devices or
 * replicas.min say, each with its even part (18 GiB and 240 % on 3 devices: 6 GiB and 80 % each).
 * A replica beyond the parts has no min and the ceiling of a part; a fixed share is divided anew
 * over all that compute, of another it has nothing.
 *
 *     a replica   absent -> joining   add_replica of one that others serve for meanwhile
 *                 joining -> serving  look_at_replicas: it was HOT, be it still or not
 *                 joining -> leaving  look_at_replicas: it failed, or took too long
 *                 absent -> serving   add_replica of the first ones
 *                 any -> leaving      remove_replica: gets no more requests, ends what it has
 *                 leaving -> absent   look_at_replicas: the engine let go
 *
 * Thread: front, but for what is said to be for any. */
#ifndef INFERD_FLEET_H
#define INFERD_FLEET_H

#include "inferd/buf.h"
#include "scheduler/engine.h"
#include "scheduler/place.h"
#include "scheduler/policy.h"

enum {
    FLEET_DEVICES_MAX = PLACE_DEVICES_MAX,
    FLEET_PAGE_BYTES = 2 << 20 // before a device says it
};
#define FLEET_NOWHERE UINT32_MAX

typedef struct fleet fleet;

typedef struct fleet_device {
    const char *name; // "gpu0"; copied
    backend_options backend;
    uint64_t memory_bytes, reserve_bytes; // for placing before it is open; memory 0: not known
} fleet_device;

typedef struct fleet_options {
    const fleet_device *devices; // [n_devices], 1 ... FLEET_DEVICES_MAX
    uint32_t n_devices;
    engine_limits limits;
    const model *const
        *models; // [n_models] that are added first: devices have room for their steps
    uint32_t n_models;
    uint32_t n_slots;
    policy_placement placement;
    void (*wake)(void *ctx); // as engine_options.wake, of any engine
    void *wake_ctx;
} fleet_options;

/* *out is NULL when it fails. */
inferd_status fleet_start(const fleet_options *options, fleet **out, inferd_err *err);
/* The same of engines that run already, one per device; they are the fleet's from here on, also
 * when this fails.  What starts engines in the options is not looked at. */
inferd_status fleet_of_engines(const fleet_options *options, engine *const *engines, fleet **out,
                               inferd_err *err);
void fleet_stop(fleet *f); // accepts NULL

/* Any thread. */
uint32_t fleet_n_devices(const fleet *f);
const char *fleet_device_name(const fleet *f, uint32_t device_idx);
const engine *fleet_engine(const fleet *f, uint32_t device_idx); // for its own figures
/* Front.  Guaranteed to the replicas there, but for those of slot `but` (UINT32_MAX: of all): what
 * the search for a place holds against 100 percent. */
uint32_t fleet_share_percent(const fleet *f, uint32_t device_idx, uint32_t but);

/* -- models -- */
typedef struct fleet_model_about {
    model *m;              // borrowed until the slot is empty
    uint64_t weight_bytes; // once they are prepared, about
    uint32_t same_as;      // as engine_model_add
    model_policy policy;   // of the whole
    bool held;             // drained by hand
} fleet_model_about;

/* As engine_model_add, on as many devices as its policy says; false: no memory, and the slot is
 * empty as before. */
bool fleet_model_add(fleet *f, uint32_t slot, const fleet_model_about *about);
void fleet_model_remove(fleet *f, uint32_t slot);
/* Other promises from the next step on; false: no memory. */
bool fleet_model_set_policy(fleet *f, uint32_t slot, const model_policy *policy);
void fleet_model_do(fleet *f, uint32_t slot, engine_command command); // on all its devices
bool fleet_model_is_held(const fleet *f, uint32_t slot);              // drained by hand
/* How many replicas what it may have is divided by, and what the k-th has of it. */
uint32_t fleet_n_parts(const model_policy *whole);
model_policy fleet_part_of(const model_policy *whole, uint32_t k);
uint32_t fleet_period_us(const model_policy *p); // of its tokens; 0: no target
/* Could its replicas keep this?  `sums` ([n_devices], zeros before the first) grow by the
 * guarantees, so that several can be asked about together; EINVAL says the inequality. */
inferd_status fleet_check_min(const fleet *f, uint32_t slot, const model_policy *policy,
                              uint64_t *sums, inferd_err *err);
/* What a model would be promised. */
typedef struct fleet_promise {
    uint32_t slot;
    const char *name;
    const model_policy *policy;
} fleet_promise;
/* Would the weights of each of these still fit beside what others are guaranteed then?  Only what
 * is worse than now is told.  Bytes: new_min of models that are not placed yet, tenants_min of all
 * tenants.  ENOMEM. */
inferd_status fleet_check_weights(const fleet *f, const fleet_promise *all, uint32_t n,
                                  uint64_t new_min, uint64_t tenants_min, inferd_err *err);
/* What all tenants are guaranteed, on the devices that run; likewise. */
inferd_status fleet_check_tenants(const fleet *f, uint64_t min_bytes, uint64_t percent,
                                  inferd_err *err);
/* Likewise of shares: `sums` grow by its guaranteed percents, and `grew` gets the devices where it
 * would have more than now, as bits.  Then: is a device that grew over 100 percent? */
void fleet_add_shares(const fleet *f, uint32_t slot, const model_policy *policy, uint32_t *sums,
                      uint64_t *grew);
inferd_status fleet_check_shares(const fleet *f, const uint32_t *sums, uint64_t grew,
                                 inferd_err *err);
/* Does a decode step at its share take longer than slo.tpot_ms, as measured so far?  True: `text`
 * says the numbers. */
bool fleet_is_too_slow(const fleet *f, uint32_t slot, const model_policy *policy, char *text,
                       size_t text_bytes);

struct feasible_task;
/* Could the devices keep slo.tpot_ms of all these together, as steps were measured so far?  Only
 * those are asked where a target would be tighter than now.  EINVAL says the inequality. */
inferd_status fleet_check_targets(const fleet *f, const fleet_promise *all, uint32_t n,
                                  inferd_err *err);
/* Those of a device whose steps were measured, into out[n]; name_idx is that in `all`. */
uint32_t fleet_list_tasks(const fleet *f, uint32_t device_idx, const fleet_promise *all, uint32_t n,
                          struct feasible_task *out);

/* Any thread.  All replicas together: the state of the one that is furthest, sums of counts. */
void fleet_model_get(const fleet *f, uint32_t slot, engine_model_info *out);
/* Front.  The same, with the counters of replicas that leave or left: those never go back. */
void fleet_model_tally(const fleet *f, uint32_t slot, engine_model_info *out);
model_state fleet_model_state(const fleet *f, uint32_t slot);
/* The furthest on any device that has anything of it left, also where it serves no more. */
model_state fleet_slot_state(const fleet *f, uint32_t slot);
void fleet_model_error(const fleet *f, uint32_t slot, inferd_err *out);
bool fleet_model_is_lost(const fleet *f, uint32_t slot); // all devices that have it are
/* How often the slot became empty on all devices. */
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
    uint32_t part;       // of what the model may have
    uint32_t n_open;     // requests sent there that have not ended
    model_policy policy; // its part
} fleet_replica;
void fleet_get_replica(const fleet *f, uint32_t slot, uint32_t device_idx, fleet_replica *out);
const char *fleet_replica_state_name(fleet_replica_state state);
/* How many replicas its load needs, be there devices for them or not. */
uint32_t fleet_desired_replicas(const fleet *f, uint32_t slot);
/* Why no device took its last replica, or "". */
const char *fleet_placement_problem(const fleet *f, uint32_t slot);

/* What a tenant may have on all devices together.  Share and max are divided over those where it
 * has work (fleet_tenants.c), min over these (bits): 0 is all. */
bool fleet_set_tenant(fleet *f, uint32_t tenant_idx, const tenant_policy *policy, uint64_t devices);
/* Keys and values that its sequences count on, on all devices. */
uint64_t fleet_tenant_bytes(const fleet *f, uint32_t tenant_idx);
void fleet_set_placement(fleet *f, policy_placement placement);
/* engine_set_policy of all devices; false: no memory to tell all of them. */
bool fleet_set_policy(fleet *f, const engine_limits *limits);
/* Grows whenever a replica came or went. */
uint64_t fleet_n_changes(const fleet *f);

/* The number of replicas followed the load. */
typedef struct fleet_scale {
    uint32_t slot, device_idx;
    uint32_t n_replicas; // then
    bool more;           // one joins there; else one leaves
} fleet_scale;
/* One that was not told yet: at most one per model and fleet_tick.  False: none. */
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
/* The device that should serve it, or FLEET_NOWHERE: none does. */
uint32_t fleet_choose(fleet *f, const gen_request *r);
/* False: its inbox is full; r is still the caller's. */
bool fleet_submit(fleet *f, uint32_t device_idx, gen_request *r);
/* It ended there: the caller saw its GEN_EV_DONE. */
void fleet_note_done(fleet *f, uint32_t device_idx, uint32_t slot, uint32_t tenant_idx);
void fleet_cancel(fleet *f, uint32_t device_idx, uint64_t id);
void fleet_pause(fleet *f, uint32_t device_idx, uint64_t id);
void fleet_resume(fleet *f, uint32_t device_idx, uint64_t id);
bool fleet_next_event(fleet *f, gen_event *out);
/* A first token came after so long: what the scaling looks at. */
void fleet_note_ttft(fleet *f, uint32_t slot, uint64_t ttft_us, uint64_t now_us);
/* Any thread: would it fit any of its devices? */
inferd_status fleet_admit(const fleet *f, uint32_t slot, uint32_t n_prompt, uint32_t max_tokens,
                          inferd_err *err);

/* -- devices -- */
/* Now and then, and after events; it does little more often than once per SCALE_PERIOD_US. */
void fleet_tick(fleet *f, uint64_t now_us);
typedef struct fleet_queues {
    uint32_t n_running, n_waiting, n_paused;
} fleet_queues;
void fleet_get_queues(const fleet *f, fleet_queues *out); // sums; any thread
bool fleet_is_settled(const fleet *f);                    // all engines with models are, or lost
bool fleet_is_lost(const fleet *f);                       // nobody can be served any more
bool fleet_lose(fleet *f, uint32_t device_idx, const inferd_err *why); // engine_lose
/* Why the device is lost; text "": the reason is not known. */
void fleet_lost_why(const fleet *f, uint32_t device_idx, inferd_err *out);
uint64_t fleet_stuck_us(const fleet *f, uint32_t *device_idx); // the device that hangs for longest
void fleet_load_progress(const fleet *f, uint64_t *done, uint64_t *total);
/* {"ok":..,"devices":[{"device":"cpu0", the books of its engine}, ...]} without the last brace.
 * timeout_ms is for all devices together. */
inferd_status fleet_audit(fleet *f, uint32_t timeout_ms, buf *json, inferd_err *err);
/* engine_page_map of one device. */
inferd_status fleet_page_map(fleet *f, uint32_t device_idx, uint32_t timeout_ms, buf *json,
                             inferd_err *err);

#endif
