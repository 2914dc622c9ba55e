/* app.h - the daemon's state between requests, and the path of a request through it.
 *
 *   http handler > api_start > (worker) api_prepare > generation_launch > fleet_send
 *   engine wake  > app_on_engine_wake > generation_on_event > stream > http_stream_write
 *
 * The configuration may be exchanged while requests run: a job on a worker holds a reference to the
 * one it began with, and through it to the slots of its models (registry.h).  What must not change
 * while the daemon runs (fleet, routes) is stored here by itself and never read from a newer
 * configuration.  A request names its tenant by a number, not by an index in a configuration, which
 * may be exchanged between the check of its key and the end of its body.
 *
 * Every sequence in the engine has a slot until its GEN_EV_DONE, even if its client left before:
 * the slots in use are the sequences that the engine still has, and admission counts those.
 *
 * Always: a slot's id is 0 exactly when it is free.
 * Thread: front, except members marked read-only. */
#ifndef INFERD_APP_H
#define INFERD_APP_H

#include "config.h"
#include "http.h"
#include "fleet.h"
#include "history.h"
#include "inferd/base.h"
#include "inferd/list.h"
#include "journal.h"
#include "metrics.h"
#include "models/model.h"
#include "registry.h"
#include "scheduler/engine.h"

#ifndef INFERD_VERSION
#define INFERD_VERSION "0.1.0"
#endif

typedef struct generation generation; // generation.h
struct admin;                         // admin.h

/* Results of app_tenant that are no index in a configuration. */
enum { APP_NO_TENANT = -1, APP_TENANT_GONE = -2 };
enum { APP_FINGERPRINT_BYTES = 24 };

/* A name or an alias of the model at index idx of the configuration. */
typedef struct app_name {
    const char *name; // borrowed from the configuration
    uint32_t idx;
} app_name;

typedef struct app_config {
    inferd_config *c;
    uint32_t n_refs;
    uint32_t *n_sharing; // number of app_configs with this c; the last one frees both
    int *slots;          // [c->n_models] slots of the registry; owned, one reference to each
    app_name *names;     // [n_names] sorted; owned
    uint32_t n_names;
    uint32_t *numbers; // [c->n_tenants] indices in app.tenants; owned
    int *tenant_at;    // [n_numbers] by such an index: the index in c, or APP_TENANT_GONE; owned
    uint32_t n_numbers;
    char fingerprint[APP_FINGERPRINT_BYTES]; // of version and files, which decide the output
    struct app *app;
} app_config;

typedef struct app_slot {
    uint64_t id;                     // of the sequence; its low bits are the slot's index
    generation *generation;          // NULL: its generation has ended
    uint32_t choice_idx, model_idx;  // model_idx: its slot in the registry
    uint32_t device_idx, tenant_idx; // in the fleet
    uint32_t next_free;
    struct request_trace *trace; // request_trace.h; NULL: none
} app_slot;

typedef struct app {
    app_config *config;        // the current one, with a reference of its own
    inferd_config *started;    // settings that need a restart are read from it; owned with
    uint32_t *started_sharing; // app_configs that share it, as app_config.n_sharing
    http_server *http;         // NULL before app_set_http
    http_server *http_admin;   // of the admin socket; NULL: there is none
    struct admin *admin; // borrowed; NULL before app_set_admin: routes of HTTP_ADMIN are refused
    metrics *metrics;
    struct device_recent *device_recent; // device_recent.h; owned
    history *history;                    // history.h; owned
    history_totals totals;               // of it
    journal *journal;                    // journal.h; owned
    uint64_t *told_preempts;             // [REGISTRY_SLOTS] of app_tell.c; owned
    struct unknown_names *unknown_names; // unknown.h
    struct admission *admission;         // admission.h
    app_slot *slots;                     // [n_slots] one for each queue slot
    uint32_t n_slots, first_free;
    uint64_t n_ids; // issued so far
    list_node generations, dirty;
    uint32_t n_generations;
    char **tenants; // [n_tenants] names of all configurations so far; only grows
    uint32_t n_tenants;
    uint32_t *tenant_entries; // [n_tenant_entries] hash index: a number + 1; 0: none
    uint32_t n_tenant_entries;
    struct app_told *told; // [n_tenants] policies last sent to the fleet
    registry models;       // workers that hold a configuration read its slots
    bool draining;
    bool refuses_work;      // draining, and no next process takes over the listening socket
    bool allow_faults;      // drills may break devices (admin_drill.c)
    bool device_hangs;      // a device answers no step: the daemon will restart
    uint64_t fleet_changes; // fleet_n_changes when the tenants' parts were last sent
    uint64_t n_move_notes;  // moves of the fleet that were logged
    backend_device_about devices[FLEET_DEVICES_MAX]; // for /metrics; kind "": not read
    char kinds[FLEET_DEVICES_MAX][8];                // "cpu", "cuda"
    struct tracer *tracer;           // borrowed; must outlive the app; NULL: no traces
    const struct watchdog *watchdog; // borrowed; NULL: loops are not watched

    /* read-only after app_create: workers read these */
    const http_route *routes; // [n_routes] borrowed
    size_t n_routes;
    fleet *fleet;
    struct kv_disk *disk;             // borrowed until http_close; NULL: none
    struct response_store *responses; // likewise; NULL: no responses are kept
    void (*response_stats)(struct response_store *store, metrics_responses *out);
    int64_t started_unix_s;
    /* Key of the hashes that separate the cached blocks of tenants: that of kv_disk, or random. */
    unsigned char scope_secret[16];
} app;

typedef struct app_options {
    inferd_config *config; // taken on success
    registry_plan *plan;   // of its models, opened; the models are taken, the plan is borrowed
    fleet *fleet;          // borrowed; must outlive the app
    const fleet_device *devices; // the devices of `fleet`
    const http_route *routes;    // [n_routes] borrowed until app_destroy: metrics count by them
    size_t n_routes;
    struct kv_disk *disk;  // borrowed until http_close; NULL: no disk cache of keys and values
    struct tracer *tracer; // borrowed; must outlive the app; NULL: no traces
    const unsigned char *scope_secret; // [16] borrowed; NULL: random
} app_options;

/* Sequences that the front admits under these limits: those that run or wait. */
uint32_t app_n_slots(const engine_limits *l);
/* On failure *out may be an app that can only be destroyed: the devices may already read the files
 * of its models.  The caller still owns the configuration then. */
inferd_status app_create(const app_options *options, app **out, inferd_err *err);
/* Accepts NULL.  Call it after http_close, so that no request is left, and after fleet_stop, so
 * that no device reads the files of its models. */
void app_destroy(app *a);

void app_set_http(app *a, http_server *http);
void app_set_http_admin(app *a, http_server *http);
void app_set_admin(app *a, struct admin *admin);
void app_set_watchdog(app *a, const struct watchdog *watchdog);

/* Handles lost devices, and replicas that were added or removed. */
void app_look_at_fleet(app *a, uint64_t now_us);

/* Accepts no new work, except what http_drain still lets in; running work continues.  Drains the
 * transport too, on both listeners. */
void app_drain(app *a);
/* Open generations; after its client left, one no longer counts. */
uint32_t app_n_running(const app *a);

/* From now on new requests use `c`, which is taken, with the models of the plan.  False: `problem`
 * has the reason, the caller still owns `c`, and nothing changed. */
bool app_swap_config(app *a, inferd_config *c, registry_plan *plan, inferd_err *problem);
/* The same with other slots ([n_models], copied), after files were replaced.  False: no memory. */
bool app_swap_slots(app *a, const int *slots);
/* Counts a reload of the file, or a change over the admin API, also a refused one. */
void app_note_change(app *a, bool reload, bool ok);

/* -- for handlers -- */
app_config *app_config_take(app *a); // one more reference
void app_config_drop(app_config *config);
/* A request's tenant (http_request.tenant) in this configuration: APP_NO_TENANT without keys,
 * APP_TENANT_GONE if the configuration no longer has it. */
int app_tenant(const app_config *config, int number);
/* The slot of the model of this name or alias if the tenant (of app_tenant) may use it, or -1; also
 * its index in the configuration, unless NULL.  Any thread that holds the configuration. */
int app_find_model(const app_config *config, int tenant, const char *name, size_t n,
                   uint32_t *config_idx);
/* May this tenant (of app_tenant) use the model at this index?  Any thread, likewise. */
bool app_may_use(const app_config *config, int tenant, uint32_t config_idx);
/* The name of the only model that a tenant may use; NULL: there are several, or none. */
const char *app_only_model(const app_config *config, int tenant);
/* "a, b and 3 more": the models that a tenant may use, for people, in the order of the
 * configuration; cut off at text_bytes. */
void app_list_models(const app_config *config, int tenant, char *text, size_t text_bytes);
static inline const registry_slot *app_model(const app *a, uint32_t slot) {
    return &a->models.slots[slot];
}

#endif
