/* metrics.h - counters and histograms of the front, and the Prometheus page.
 *
 * Names begin with inferd_; metrics with the same meaning as one of vLLM's are written a second
 * time under vLLM's name, so that dashboards, autoscalers and load generators made for it work.
 * The labels are names of models, tenants and devices from the configuration, routes and closed
 * lists: a client cannot create a new series. docs/metrics.md lists every name.
 * Thread: front. */
#ifndef INFERD_METRICS_H
#define INFERD_METRICS_H

#include "api_error.h"
#include "fleet.h"
#include "http.h"
#include "inferd/base.h"
#include "inferd/buf.h"
#include "inferd/status.h"
#include "prefix_cause.h"
#include "tenant_usage.h"
#include "models/model.h"
#include "scheduler/engine.h"

typedef enum metric_outcome {
    OUTCOME_STOP,
    OUTCOME_LENGTH,
    OUTCOME_CANCELLED, // the client left
    OUTCOME_TIMEOUT,
    OUTCOME_ERROR,
    OUTCOME_REFUSED, // for its parameters or for lack of room; not submitted to the engine
    OUTCOMES
} metric_outcome;

typedef enum metric_hist {
    HIST_TTFT,          // seconds, arrival to first token
    HIST_ITL,           // seconds, token to token
    HIST_QUEUE,         // seconds, arrival to the first step with it
    HIST_PREFILL,       // seconds, the first step with it to its first token
    HIST_DECODE,        // seconds, its first token to its last
    HIST_E2E,           // seconds, arrival to the end
    HIST_PROMPT_TOKENS, // per sequence
    HIST_OUTPUT_TOKENS,
    HIST_N, // choices per request
    HISTS
} metric_hist;

typedef enum metric_target { TARGET_TTFT, TARGET_TPOT, METRIC_TARGETS } metric_target;

enum { METRICS_DEVICES_MAX = 64, METRICS_REFUSAL_ROWS_MAX = 4096 };

typedef struct metrics metrics;

/* Models are counted by name_idx, below n_names_max. */
metrics *metrics_create(uint32_t n_names_max, const http_route *routes, uint32_t n_routes);
void metrics_destroy(metrics *m); // accepts NULL

void metrics_observe(metrics *m, uint32_t model_idx, metric_hist hist, double value);
void metrics_request(metrics *m, uint32_t model_idx, metric_outcome outcome);
void metrics_token(metrics *m, uint32_t model_idx); // counts a generated token
/* One sequence ended: its prompt tokens, those of them from the cache, and its output tokens. */
void metrics_sequence(metrics *m, uint32_t model_idx, uint32_t n_prompt, uint32_t n_cached,
                      uint32_t n_output);
void metrics_target(metrics *m, uint32_t model_idx, metric_target target, bool kept);
/* The known beginning of a chat's prompt ended. */
void metrics_prefix(metrics *m, uint32_t model_idx, prefix_cause cause);
/* A request was refused, or failed before its answer began.  tenant, name_idx: -1: none. */
void metrics_refused(metrics *m, int64_t tenant, int64_t name_idx, api_fault fault);
/* Adds the requests of each tenant that were answered 429 or 503 to by_tenant[n_tenants]. */
void metrics_sum_refusals(const metrics *m, uint64_t *by_tenant, uint32_t n_tenants);
struct tenant_usage *metrics_tenant_usage(metrics *m);              // owned by m
void metrics_http(metrics *m, const http_route *route, int status); // route NULL: none matched
void metrics_unknown_fields(metrics *m, uint32_t n);
void metrics_loop_lag(metrics *m, double seconds);
void metrics_reload(metrics *m, bool ok);
void metrics_change(metrics *m, bool ok); // of the configuration, over the admin API

typedef struct metrics_model {
    const char *name;
    uint32_t name_idx, desired_replicas;
    const model *m; // its experts; NULL: none
    engine_model_info info;
} metrics_model;

typedef struct metrics_device {
    const char *name;
    engine_stats stats;
    bool lost;
    const backend_device_about *about; // NULL or kind "": unknown
} metrics_device;

/* A replica of models[model]. */
typedef struct metrics_replica {
    uint32_t model, device;
    const char *state; // static
    /* Its pages on the device, each in one kind, and in host memory. */
    uint32_t pages_weight, pages_kv, pages_cached, pages_warm, pages_swapped;
} metrics_replica;

/* The share of device time of a tenant or model; 1 is one device. */
typedef struct metrics_share {
    const char *of, *name;         // "tenant" or "model"
    double used, entitled;         // used: over the window of the usage table
    uint32_t n_running, n_waiting; // sequences, on all devices
} metrics_share;

/* A loop that the watchdog looks at. */
typedef struct metrics_loop {
    const char *kind, *name; // "engine", "gpu0"; name may be ""
    uint64_t silent_us;      // without a sign of life; 0: it waits for work
} metrics_loop;

/* Tokens of a tenant's calendar day or month, of requests that run too, and its quota of them. */
typedef struct metrics_quota {
    bool any; // else there is no quota
    uint64_t used, limit;
} metrics_quota;

/* A tenant: memory for keys and values on all devices, and quotas. */
typedef struct metrics_tenant {
    const char *name;
    uint64_t used_bytes, min_bytes, max_bytes; // max UINT64_MAX: no ceiling
    metrics_quota day, month;
} metrics_tenant;

/* What a tenant's page shows: its own rows, models it may use, and figures of no tenant. */
typedef struct metrics_view {
    int64_t tenant;    // its number
    const bool *names; // [n_names] of metrics_now: may the tenant use a model of this name?
} metrics_view;

/* Responses that are kept for later requests, of all tenants. */
typedef struct metrics_responses {
    uint32_t n;
    uint64_t n_bytes, n_not_kept; // not_kept: since the start
} metrics_responses;

/* Spans of traces. */
enum { METRICS_DROPS_MAX = 8 };
typedef struct metrics_spans {
    uint64_t n_sent;
    uint32_t n_queued, n_drops;
    struct {
        const char *why; // static
        uint64_t n;
    } drops[METRICS_DROPS_MAX]; // [n_drops]
} metrics_spans;

/* The input of the page from other modules. */
typedef struct metrics_now {
    const metrics_view *view;      // NULL: the operator's page, which shows everything
    const metrics_device *devices; // [n_devices]
    uint32_t n_devices;
    const metrics_model *models; // [n_models] served now
    uint32_t n_models;
    const metrics_replica *replicas; // [n_replicas]
    uint32_t n_replicas;
    const fleet_moves *moves;    // of replicas; NULL: not counted
    const metrics_share *shares; // [n_shares]
    uint32_t n_shares;
    const metrics_tenant *memory; // [n_memory] of the tenants that the page shows
    uint32_t n_memory;
    const metrics_loop *loops; // [n_loops]
    uint32_t n_loops;
    uint32_t watchdog_s;              // limits.watchdog_s
    const struct kv_disk_stats *disk; // NULL: there is no disk cache, or the page does not show it
    const metrics_spans *spans;       // NULL: no traces, or the page does not show them
    const metrics_responses *responses; // NULL: none are kept, or the page does not show them
    const char *const *names;           // [n_names] by name_idx
    uint32_t n_names;
    const char *const *tenants; // [n_tenants] by number
    uint32_t n_tenants;
    uint32_t n_http_open;   // exchanges
    uint32_t n_generations; // open generations
    /* Answers that came back in a later prompt; those with tokens that are not those of their text;
     * memory of the conversations that are kept. */
    uint64_t n_resent, n_retokenised, n_transcript_bytes;
    uint64_t log_lines_dropped;
    uint64_t now_us;                 // monotonic
    uint64_t cpu_us, resident_bytes; // of the process; both 0: the page does not show them
    uint64_t started_unix_s, now_unix_s;
    bool draining;
    const char *version;
} metrics_now;

/* Prometheus text format 0.0.4, appended. */
void metrics_write(const metrics *m, const metrics_now *now, buf *out);

#endif
