/* fleet.h - the engines of all devices behind one face: which of them has which model, and which
 * one serves a request.
 *
 * A model has the same slot number on every device; a *replica* is a model in a slot of one engine.
 *
 *     added      place.h chooses devices for its replicas, or for the parts of a share over several
 *     request    goes to the replica that has its prefix and meets the target, else the fullest
 * that does, else the one that answers first (place_route) each second  scale.h says whether a
 * model needs one replica more, or could do with one less; one that comes is loaded before it
 * serves, one that goes ends its work first device lost  its replicas are placed anew; what ran
 * there has failed
 *
 * With one device all of this is that device.
 *
 * Thread: front, but for what is said to be for any. */
#ifndef INFERD_FLEET_H
#define INFERD_FLEET_H

#include "inferd/buf.h"
#include "scheduler/engine.h"
#include "scheduler/policy.h"

enum { FLEET_DEVICES_MAX = 16 };

typedef struct fleet fleet;

typedef struct fleet_device {
    const char *name; // "gpu0"; copied
    backend_options backend;
} fleet_device;

typedef struct fleet_options {
    const fleet_device *devices; // [n_devices], 1 ... FLEET_DEVICES_MAX
    uint32_t n_devices;
    engine_limits limits;
    uint32_t n_slots;
    policy_placement placement;
    void (*wake)(void *ctx); // as engine_options.wake, of any engine
    void *wake_ctx;
} fleet_options;

inferd_status fleet_start(const fleet_options *options, fleet **out, inferd_err *err);
void fleet_stop(fleet *f); // accepts NULL

/* Any thread. */
uint32_t fleet_n_devices(const fleet *f);
const char *fleet_device_name(const fleet *f, uint32_t device_idx);
const engine *fleet_engine(const fleet *f, uint32_t device_idx); // for its own figures

/* -- models -- */
/* As engine_model_add, on as many devices as its policy says; false: no memory. */
bool fleet_model_add(fleet *f, uint32_t slot, model *m, uint32_t same_as,
                     const model_policy *policy);
void fleet_model_remove(fleet *f, uint32_t slot);
bool fleet_model_set_policy(fleet *f, uint32_t slot, const model_policy *policy);
void fleet_model_do(fleet *f, uint32_t slot, engine_command command); // on all its devices
/* Any thread.  All replicas together: the state of the one that is furthest, sums of counts. */
void fleet_model_get(const fleet *f, uint32_t slot, engine_model_info *out);
model_state fleet_model_state(const fleet *f, uint32_t slot);
void fleet_model_error(const fleet *f, uint32_t slot, inferd_err *out);
/* How often the slot became empty on all devices. */
uint32_t fleet_model_departures(const fleet *f, uint32_t slot);
/* Devices that have a replica of it, as bits; any thread. */
uint32_t fleet_model_devices(const fleet *f, uint32_t slot);
/* How many replicas its load needs, be there devices for them or not. */
uint32_t fleet_desired_replicas(const fleet *f, uint32_t slot);
/* Why no device takes it (any more), or "". */
const char *fleet_placement_problem(const fleet *f, uint32_t slot);

bool fleet_set_tenant(fleet *f, uint32_t tenant_idx, const tenant_policy *policy);
void fleet_set_placement(fleet *f, policy_placement placement);

/* -- requests -- */
/* The device that serves it.  False: its inbox is full, or there is none; r is still the caller's.
 */
bool fleet_submit(fleet *f, gen_request *r, uint32_t *device_idx);
void fleet_cancel(fleet *f, uint32_t device_idx, uint64_t id);
void fleet_pause(fleet *f, uint32_t device_idx, uint64_t id);
void fleet_resume(fleet *f, uint32_t device_idx, uint64_t id);
bool fleet_next_event(fleet *f, gen_event *out);
/* A first token came after so long: what the scaling looks at. */
void fleet_note_ttft(fleet *f, uint32_t slot, uint64_t ttft_us);
/* Any thread: would it fit any of its devices? */
inferd_status fleet_admit(const fleet *f, uint32_t slot, uint32_t n_prompt, uint32_t max_tokens,
                          inferd_err *err);

/* -- devices -- */
void fleet_tick(fleet *f, uint64_t now_us);              // now and then
void fleet_get_stats(const fleet *f, engine_stats *out); // sums
bool fleet_is_settled(const fleet *f);                   // all engines are
bool fleet_is_lost(const fleet *f);                      // nobody can be served any more
uint64_t fleet_stuck_us(const fleet *f);                 // the device that hangs for longest
void fleet_load_progress(const fleet *f, uint64_t *done, uint64_t *total);
/* The books of every engine as a JSON array, each with its device's name. */
inferd_status fleet_audit(fleet *f, uint32_t timeout_ms, buf *json, inferd_err *err);

#endif
