/* app.h - the daemon's state between requests, and the way of a request through it.
 *
 *     http handler > api_start > (worker) api_prepare > flight_launch > fleet_submit
 *     engine wake  > app_on_engine_wake > flight_on_event > stream > http_stream_write
 *
 * The configuration may be exchanged while requests run: a job on a worker holds a count on the
 * one it began with, and with it on the slots of its models (registry.h).  What must not change
 * while the daemon runs (fleet, routes) is kept here by itself and never read from a newer
 * configuration.  A request knows its tenant by a number
 * that is not its place in a configuration: between the check of its key and the end of its body
 * the configuration may have been exchanged.
 *
 * Every sequence handed to the engine has a slot until its GEN_EV_DONE, also when the client left
 * long before: so the slots in use are what the engine still has, which is what admission counts.
 *
 * Always: n_slots_used <= n_slots; a slot's id is 0 exactly when it is free.
 * Thread: front, except for what is said to be read-only. */
#ifndef INFERD_APP_H
#define INFERD_APP_H

#include "config.h"
#include "http.h"
#include "fleet.h"
#include "inferd/base.h"
#include "inferd/list.h"
#include "metrics.h"
#include "models/model.h"
#include "registry.h"
#include "scheduler/engine.h"
#include "scheduler/queue_places.h"

#ifndef INFERD_VERSION
#define INFERD_VERSION "0.1.0"
#endif

typedef struct flight flight; // flight.h
struct admin;                 // admin.h

/* What app_tenant says where it is no place in a configuration. */
enum { APP_NO_TENANT = -1, APP_TENANT_GONE = -2 };
enum { APP_FINGERPRINT_BYTES = 24 };

/* A name or an alias of the model at this place of the configuration. */
typedef struct app_name {
    const char *name; // borrowed from it
    uint32_t idx;
} app_name;

typedef struct app_config {
    inferd_config *c;
    uint32_t n_refs;
    uint32_t *n_sharing; // that have this c; the last one frees both
    int *slots;          // [c->n_models] of the registry; owned, one count on each
    app_name *names;     // [n_names] sorted; owned
    uint32_t n_names;
    uint32_t *numbers; // [c->n_tenants] their places in app.tenants; owned
    int *tenant_at;    // [n_numbers] in c, or APP_TENANT_GONE: by that place; owned
    uint32_t n_numbers;
    char fingerprint[APP_FINGERPRINT_BYTES]; // of what decides the output: version, files
    struct app *app;
} app_config;

typedef struct app_slot {
    uint64_t id;                    // of the sequence; its low bits are the slot's index
    flight *flight;                 // NULL: nobody waits for it any more
    uint32_t choice_idx, model_idx; // model_idx: its slot in the registry
    queue_place place;
    uint32_t device_idx, tenant_idx; // in the fleet
    uint32_t next_free;
} app_slot;

typedef struct app {
    app_config *config;        // the current one, with a count of its own
    inferd_config *started;    // what needs a restart is as it says; owned with
    uint32_t *started_sharing; // those that share it, as app_config.n_sharing
    http_server *http;         // NULL before app_set_http
    http_server *http_admin;   // of the admin socket; NULL: there is none
    struct admin *admin; // borrowed; NULL before app_set_admin: routes of HTTP_ADMIN are refused
    metrics *metrics;
    struct unknown_names *unknown_names; // unknown.h
    struct gate *gate;                   // gate.h
    queue_places places; // of sequences that run or wait; models by their slots in the registry
    app_slot *slots;     // [n_slots], all places and those to spare
    uint32_t n_slots, first_free;
    uint64_t n_ids; // given so far
    list_node flights, dirty;
    uint32_t n_flights;
    char **tenants; // [n_tenants] every name a configuration ever had; only grows
    uint32_t n_tenants;
    uint32_t *tenant_places; // [n_tenant_places] a number + 1 each, by the name's hash; 0: none
    uint32_t n_tenant_places;
    struct app_told *told; // [n_tenants] what the fleet knows of them
    registry models;       // slots are read by workers that hold a configuration
    bool draining;
    bool device_hangs;      // a device answers no step: the end is near
    uint64_t fleet_changes; // fleet_n_changes when tenants were told their parts
    uint64_t n_move_notes;  // of the fleet's moves, that the log has
    backend_device_about devices[FLEET_DEVICES_MAX]; // for /metrics; kind "": not looked at
    char kinds[FLEET_DEVICES_MAX][8];                // "cpu", "cuda"

    /* read-only after app_create: workers read these */
    fleet *fleet;
    struct kv_disk *disk; // borrowed until http_close; NULL: none
    int64_t started_unix_s;
    unsigned char secret[16];       // of this process: keys of the hashes that separate tenants
    unsigned char scope_secret[16]; // likewise, for cached blocks: that of kv_disk if there is one
} app;

typedef struct app_options {
    inferd_config *config;       // taken on success
    registry_plan *plan;         // of its models, opened; they are taken, the plan is borrowed
    fleet *fleet;                // borrowed; must outlive the app
    const fleet_device *devices; // of it
    struct kv_disk *disk;        // borrowed until http_close; NULL: keys and values go to no disk
    const unsigned char *scope_secret; // [16] borrowed; NULL: drawn
} app_options;

/* Sequences that the front lets in under these limits: those that run or wait, and as many that
 * come for what they were promised when others end late. */
uint32_t app_n_slots(const engine_limits *l);
/* When it fails, *out may be an app all the same, only to be destroyed: the devices may already
 * read the files of its models.  The configuration is still the caller's then. */
inferd_status app_create(const app_options *options, app **out, inferd_err *err);
/* Accepts NULL.  After http_close, so that no request is left, and after fleet_stop, so that nobody
 * reads the files of its models. */
void app_destroy(app *a);

/* What http_open needs: address, limits, routes and callbacks. */
void app_http_options(app *a, http_options *out);
void app_set_http(app *a, http_server *http);
/* The same for the socket file of administrators; false: none is configured. */
bool app_admin_options(app *a, http_options *out);
void app_set_http_admin(app *a, http_server *http);
void app_set_admin(app *a, struct admin *admin);

/* Events can be read: hand them to their answers, write, flush. */
void app_on_engine_wake(app *a);
/* Every 100 ms or so.  `late_us`: how much later than planned it was called. */
void app_tick(app *a, uint64_t late_us);

/* Devices may have been lost, replicas have come or gone. */
void app_look_at_fleet(app *a, uint64_t now_us);

/* Take nothing new; what runs goes on.  Also tells the transport, on both listeners. */
void app_drain(app *a);
/* The patience is over: what still runs is told so. */
void app_cut(app *a);
/* Generations not finished, whatever their clients do. */
uint32_t app_n_running(const app *a);

/* From now on new requests see `c`, which is taken, with the models of the plan.  False: the
 * problem says why, `c` is still the caller's, and nothing changed. */
bool app_swap_config(app *a, inferd_config *c, registry_plan *plan, inferd_err *problem);
/* The same configuration with other slots ([n_models], copied), when files were replaced.  False:
 * no memory, and nothing changed. */
bool app_swap_slots(app *a, const int *slots);
/* Count a reload, also one that was refused. */
void app_note_reload(app *a, bool ok);

/* -- for handlers -- */
app_config *app_config_take(app *a); // one more count
void app_config_drop(app_config *config);
/* A request's tenant (http_request.tenant) in this configuration: APP_NO_TENANT without keys,
 * APP_TENANT_GONE when the configuration has it no more. */
int app_tenant(const app_config *config, int number);
/* The slot of the model of this name or alias if the tenant (of app_tenant) may use it, or -1; its
 * place in the configuration too, unless NULL.  Any thread that holds the configuration. */
int app_find_model(const app_config *config, int tenant, const char *name, size_t n,
                   uint32_t *config_idx);
/* May this tenant (of app_tenant) use the model at this place?  Any thread, likewise. */
bool app_may_use(const app_config *config, int tenant, uint32_t config_idx);
static inline const registry_slot *app_model(const app *a, uint32_t slot) {
    return &a->models.slots[slot];
}

#endif
