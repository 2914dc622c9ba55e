/* config.h - one JSON file says everything: where to listen, devices, policy, models, tenants,
 * limits, log.
 *
 * Read and checked as a whole: every problem is one line with file, line, JSON path and what was
 * expected; a file with a problem changes nothing.  Sizes have units ("2GiB", "512MiB"), paths are
 * relative to the file.  The option tables in config_tables.c are the only place that knows names,
 * defaults and ranges; docs/configuration.md is written from them.
 *
 * What models and tenants are promised is kept as scheduler/policy.h has it, complete: what the
 * file leaves out is filled in, so nobody else knows a default.
 *
 * Thread: any, one configuration at a time; it is immutable once loaded and shared freely. */
#ifndef INFERD_CONFIG_H
#define INFERD_CONFIG_H

#include "http.h"
#include "inferd/base.h"
#include "inferd/buf.h"
#include "inferd/status.h"
#include "json_in.h"
#include "scheduler/engine.h"
#include "scheduler/policy.h"

enum {
    CONFIG_DEVICES_MAX = 64,
    CONFIG_MODELS_MAX = 1024,
    CONFIG_TENANTS_MAX = 100000,
    CONFIG_CORES_MAX = 1024 // CPUs of a machine, numbered from 0
};

typedef struct config_device {
    char *name;               // NULL: kind and number, given when it is opened
    char *kind;               // "auto", "cpu", "cuda"; NULL: "auto"
    uint64_t memory_bytes;    // of its page pool; 0: 2GiB on the CPU, on a GPU all but the reserve
    uint32_t threads;         // 0 = "auto"
    char *cores;              // CPUs it computes on, "0-3,8"; NULL: all
    char *cpu_math;           // "fast", "exact"; NULL: "fast"
    char *uuid;               // of the GPU, or its beginning; NULL: by index
    uint32_t index;           // of the GPU
    uint64_t reserve_bytes;   // not taken; 0: none on the CPU, on a GPU max(1GiB, 2 %)
    uint64_t workspace_bytes; // of memory; 0: 1/16, or what steps of the models need
    char *activations;        // "bf16", "f16"; NULL: "bf16"
    char *module;             // inferd_cuda.so; NULL: beside the program
    char *cublaslt;           // file or folder; NULL: searched for
    char *tune_cache;         // file; NULL: nothing is measured
    char *off;                // parts of the GPU's backend that are not used; NULL: none
} config_device;

typedef struct config_model {
    char *name;
    char *path;     // absolute or relative to the working directory, resolved
    char **aliases; // [n_aliases]
    uint32_t n_aliases;
    uint32_t max_context;        // 0 = the file's
    char *chat_template;         // a file, or NULL
    bool special_tokens_in_text; // text of requests may write special tokens; default false
    model_policy policy;
} config_model;

/* What a tenant may use in a time; 0 lets nothing in. */
#define CONFIG_NO_LIMIT UINT64_MAX // absent or null
typedef struct config_tenant_limits {
    uint64_t requests_per_min, tokens_per_min; // 32 bits each, or CONFIG_NO_LIMIT
    uint64_t concurrent;                       // likewise; requests at one time
    uint64_t tokens_per_day, tokens_per_month; // of UTC; kept in state_dir
} config_tenant_limits;

typedef struct config_tenant {
    char *name;
    unsigned char (
        *keys)[32]; // [n_keys] SHA-256-like digests under a per-process pepper; never plain text
    uint32_t n_keys;
    gen_class max_class; // default normal; also in policy
    char **models;       // [n_models] names it may use; n_models = 0: all
    uint32_t n_models;
    tenant_policy policy;
    config_tenant_limits limits;
} config_tenant;

/* How devices are shared, between models and over time. */
typedef struct config_policy {
    policy_objective objective;
    uint32_t tpot_ms; // pace of decoding while prompts are computed; 0: the objective's
    policy_placement placement;
    uint32_t min_residency_ms;        // a model that just came stays for so long; 0
    uint32_t starvation_percent;      // of a device's time, for lower classes that wait; 2
    bool zero_on_tenant_change;       // pages are zeroed before another tenant gets them
    bool background_copies;           // of keys and values of low classes, to host memory; true
    uint64_t device_hour_cost_micros; // millionths of any currency; 0
} config_policy;

/* Keys and values that host memory has no room for. */
typedef struct config_kv_disk {
    char *path;         // a folder; NULL: off
    uint64_t max_bytes; // 8GiB
} config_kv_disk;

typedef struct config_admin {
    char *listen;              // "unix:PATH"; NULL: none of its own
    unsigned char (*keys)[32]; // [n_keys] as a tenant's
    uint32_t n_keys;
} config_admin;

/* inferd_config.host_arena_bytes when the file does not say: found out at the start. */
#define CONFIG_HOST_ARENA_AUTO UINT64_MAX

typedef struct config_limits {
    http_limits http;
    json_limits json;
    engine_limits engine;
    uint32_t step_hang_ms;     // 60,000; a device that answers no step for this long is given up
    uint32_t device_wait_s;    // 60; at the start, for the machine's own GPU services
    uint32_t queue_timeout_ms; // 60,000; waiting longer ends with 504
    uint32_t total_timeout_ms; // 600,000
    uint32_t watchdog_s;       // 30; a loop without a sign of life; 0: is not watched
    uint32_t drain_timeout_s;  // 30
    uint32_t file_look_ms;     // 2,000; between two looks at the files of models
    uint32_t choices_max;      // n of a request; 128
    uint32_t prompts_max;      // prompts of one completion request; 128
    uint32_t stop_max;         // stop strings; 16 of stop_bytes_max 1,024
    uint32_t stop_bytes_max;
    uint32_t logit_bias_max; // entries; 1,024
} config_limits;

typedef struct config_log {
    bool json;  // default: key=value lines
    char *path; // default stderr
    int level;  // 0 error, 1 info, 2 debug
} config_log;

typedef struct inferd_config {
    char *source; // path of the file, or NULL
    char *listen;
    config_device *devices;
    uint32_t n_devices;
    uint64_t host_arena_bytes; // of models that are warm; CONFIG_HOST_ARENA_AUTO
    config_kv_disk kv_disk;
    char *state_dir; // where token quotas are kept; NULL: in memory only
    config_policy policy;
    config_admin admin;
    config_model *models;
    uint32_t n_models;
    config_tenant *tenants;
    uint32_t n_tenants;
    config_limits limits;
    config_log log;
    struct config_index *index; // of key digests; owned, built when it is loaded
} inferd_config;

/* Every problem is appended to `problems` as a line "file:line: path: sentence"; INFERD_EINVAL
 * then. */
inferd_status config_load(const char *path, inferd_config **out, buf *problems, inferd_err *err);
/* The same from memory: as if `text` were what the file `source_path` holds, which is not opened
 * and need not be there.  The text may hold keys; to zero it is the caller's. */
inferd_status config_load_text(const char *source_path, const char *text, size_t n,
                               inferd_config **out, buf *problems, inferd_err *err);
/* What `serve --model F` means: one model named after the file, defaults for the rest. */
inferd_status config_for_model(const char *model_path, inferd_config **out, inferd_err *err);
/* Rules that need the whole: no keys = loopback only, unique names and keys, limits that fit
 * together, guarantees that the devices can keep. */
bool config_check(const inferd_config *c, buf *problems);
/* What is no problem and yet not as it was written, a line each: bounds above what there is. */
void config_write_notes(const inferd_config *c, buf *notes);
void config_destroy(inferd_config *c); // accepts NULL; wipes key digests
/* limits.engine with what `policy` says of it. */
engine_limits config_engine_limits(const inferd_config *c);
/* Which settings differ between two configurations and need a restart: names appended; true if any.
 */
bool config_needs_restart(const inferd_config *running, const inferd_config *wanted, buf *names);
/* Every option with its type, default and range, as Markdown tables. */
void config_describe(buf *out);
/* Replace what the file holds, with its mode and owner: whoever reads it meanwhile, or after a
 * power cut, finds the old text or the new one.  One that is not there is made, its owner's alone;
 * of a symbolic link the target is replaced, which must be there.  A failure changes nothing and
 * leaves nothing behind; only one whose sentence says "is replaced" comes after the change.  Waits
 * for the disk. */
inferd_status config_write_file(const char *path, const char *text, size_t n, inferd_err *err);

/* "never" and "-1" (POLICY_NEVER), seconds ("30", "0", "1.5"), or "250ms", "30s", "1h30m": units
 * h, m, s, ms, us, each once and the largest first.  False: none of these, negative, no whole
 * number of microseconds, or more than CONFIG_DURATION_DAYS_MAX. */
enum { CONFIG_DURATION_DAYS_MAX = 36500 };
bool config_read_duration(const char *text, uint64_t *out_us);
/* The same of a JSON value: a text, or a number of seconds. */
bool config_json_duration(const json_t *v, uint64_t *out_us);
/* "0-3,8" as bits; false: no ascending list of numbers below CONFIG_CORES_MAX. */
bool config_read_cores(const char *text, uint64_t set[CONFIG_CORES_MAX / 64]);

/* The tenant whose key this is, or -1; the time does not depend on where bytes differ. */
int config_tenant_of_key(const inferd_config *c, bytes key);
bool config_is_admin_key(const inferd_config *c, bytes key); // likewise
/* The model served under this name or alias, or -1. */
int config_find_model(const inferd_config *c, const char *name, size_t n);

#endif
