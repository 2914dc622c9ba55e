/* config.h - the configuration: one JSON file.
 *
 * Read and checked as a whole: every problem is one line with file, line, JSON path and the
 * expected value; a file with a problem changes nothing.  Sizes have units ("2GiB", "512MiB"),
 * paths are relative to the file.  Names, defaults and ranges exist only in the option tables in
 * config_tables.c; docs/configuration.md is generated from them.
 *
 * The policies of models and tenants are stored as in scheduler/policy.h, complete: absent values
 * are filled in here, so no other module knows a default.
 * Thread: any, one configuration at a time; it is immutable once loaded and shared freely. */
#ifndef INFERD_CONFIG_H
#define INFERD_CONFIG_H

#include "http_limits.h"
#include "inferd/base.h"
#include "inferd/buf.h"
#include "inferd/status.h"
#include "json_in.h"
#include "models/sampling.h"
#include "scheduler/engine.h"
#include "scheduler/policy.h"

enum {
    CONFIG_DEVICES_MAX = 64,
    CONFIG_MODELS_MAX = 1024,
    CONFIG_TENANTS_MAX = 100000,
    CONFIG_CORES_MAX = 1024 // CPUs of a machine, numbered from 0
};

/* Which GPU. */
typedef struct config_gpu {
    uint32_t index;
    char *uuid; // or a prefix of it; NULL: by index
} config_gpu;

typedef struct config_device {
    char *name;            // NULL: kind and number, set when it is opened
    char *kind;            // "auto", "cpu", "cuda"; NULL: "auto"
    uint64_t memory_bytes; // of its page pool; 0: 2GiB on the CPU, on a GPU all except the reserve
    uint32_t threads;      // 0 = "auto"
    char *cores;           // CPUs it computes on, "0-3,8"; NULL: all
    char *cpu_math;        // "fast", "exact"; NULL: "fast"
    config_gpu gpu;
} config_device;

typedef struct config_model {
    char *name;
    char *path;     // absolute or relative to the working directory, resolved
    char **aliases; // [n_aliases]
    uint32_t n_aliases;
    uint32_t max_context;             // 0 = the file's
    char *chat_template;              // a file, or NULL
    char *tool_format;                // how it writes tool calls; NULL: as its template does
    bool special_tokens_in_text;      // text of requests may contain special tokens; default false
    double sampling[SAMPLING_PARAMS]; // of requests that give none; NaN: as the model's files say
    model_policy policy;
} config_model;

/* Limits of a tenant per period; 0 admits nothing. */
#define CONFIG_NO_LIMIT UINT64_MAX // absent or null
typedef struct config_tenant_limits {
    uint64_t requests_per_min, tokens_per_min; // 32 bits each, or CONFIG_NO_LIMIT
    uint64_t concurrent;                       // likewise; requests that run or wait at one time
    uint64_t tokens_per_day, tokens_per_month; // of UTC; kept in state_dir
} config_tenant_limits;

typedef struct config_tenant {
    char *name;
    /* [n_keys] SHA-256-like digests under a per-process pepper; never plain text. */
    unsigned char (*keys)[32];
    uint32_t n_keys;
    gen_class max_class; // default normal; also in policy
    bool max_class_given;
    char **models; // [n_models] names it may use; n_models = 0: all models
    uint32_t n_models;
    tenant_policy policy;
    config_tenant_limits limits;
} config_tenant;

/* How devices are shared, between models and over time. */
typedef struct config_policy {
    uint32_t tpot_ms;           // target per token while prompts are computed
    uint32_t urgent_percent;    // of the time: for urgent requests beside shares
    bool zero_on_tenant_change; // pages are zeroed before another tenant gets them
} config_policy;

typedef struct config_admin {
    char *listen;              // "unix:PATH", "none"; NULL: the first usable default
    unsigned char (*keys)[32]; // [n_keys] as a tenant's
    uint32_t n_keys;
    bool page; // the page is on the main listener, too
} config_admin;

/* inferd_config.host_arena_bytes if the file has none: the size is determined at the start. */
#define CONFIG_HOST_ARENA_AUTO UINT64_MAX

typedef struct config_limits {
    http_limits http; // all but connections_max and body_bytes_max: see config_derive
    json_limits json; // config_derive
    engine_limits engine;
    uint32_t responses_max;       // 1,000; kept in state_dir
    uint64_t responses_bytes_max; // 256 MiB; likewise
    uint32_t client_timeout_ms;   // 30,000; for headers, bodies, and readers of streams
    uint32_t step_hang_ms;     // config_derive; a device that answers no step for this long is lost
    uint32_t queue_timeout_ms; // 60,000; a request that waits longer gets 504
    uint32_t total_timeout_ms; // 600,000
    uint32_t watchdog_s;       // 30; limit without a sign of life of the loop; 0: no watchdog
    uint32_t drain_timeout_s;  // 30
    uint64_t transcript_bytes_max; // 64 MiB; text and tokens of conversations that are kept
} config_limits;

typedef struct config_log {
    bool json;    // default: key=value lines
    bool explain; // where the prompts of conversations leave what was computed before
    char *path;   // default stderr
    int level;    // 0 error, 1 info, 2 debug
} config_log;

/* Traces of requests, sent to a collector. */
typedef struct config_tracing {
    char *endpoint;      // URL of a collector; NULL: off
    char *headers_file;  // headers of its requests; NULL: none
    char *service_name;  // NULL: "inferd"
    double sample_ratio; // of requests without a caller's trace; NaN: 1
    uint32_t queue_spans_max, timeout_ms;
} config_tracing;

typedef struct inferd_config {
    char *source; // path of the file, or NULL
    char *listen;
    config_device *devices;
    uint32_t n_devices;
    uint64_t host_arena_bytes; // memory for WARM models; CONFIG_HOST_ARENA_AUTO
    uint64_t kv_disk_bytes;    // of keys and values in the folder kv of state_dir; 0: none
    char *state_dir;           // folder of token quotas and responses; NULL: in memory only
    config_policy policy;
    config_admin admin;
    char **cors; // [n_cors] their web pages may use the server; NULL: those of this machine
    uint32_t n_cors;
    config_model *models;
    uint32_t n_models;
    config_tenant *tenants;
    uint32_t n_tenants;
    config_limits limits;
    config_log log;
    config_tracing tracing;
    struct config_index *index; // of key digests; owned, built when the file is loaded
} inferd_config;

/* Appends every problem to `problems` as a line "file:line: path: text"; INFERD_EINVAL then. */
inferd_status config_load(const char *path, inferd_config **out, buf *problems, inferd_err *err);
/* The same from memory: `text` is read as the content of the file `source_path`, which is not
 * opened and need not exist.  The text may hold keys; the caller zeroes it. */
inferd_status config_load_text(const char *source_path, const char *text, size_t n,
                               inferd_config **out, buf *problems, inferd_err *err);
/* The configuration of `serve --model F`: one model named after the file, defaults for the rest. */
inferd_status config_for_model(const char *model_path, inferd_config **out, inferd_err *err);
/* Adds one tenant, "default", which may do what users without keys may, with the keys of a file and
 * of an environment variable; NULL: none.  False: `problems` has the reasons. */
bool config_add_keys(inferd_config *c, const char *key_file, const char *key_env, buf *problems);
/* The main listener has the page.  Without a key for administrators `key` becomes the only one. */
bool config_add_page(inferd_config *c, const char *key, buf *problems);
/* Rules for the whole: without keys loopback only, unique names and keys, consistent limits,
 * guarantees that the devices can keep. */
bool config_check(const inferd_config *c, buf *problems);
/* Notes, a line "path: text" each, on valid settings that have less effect than they seem to have:
 * classes that tenants may not ask for, weights that divide nothing, values that are rounded or
 * above what exists, shares that leave nothing. */
void config_write_notes(const inferd_config *c, buf *notes);
/* A line for each share: what it is in any case, and beside urgent requests without an end; and
 * what is left for owners without one.  Nothing where there are no shares. */
void config_write_shares(const inferd_config *c, buf *out);
/* The same as "file:line: warning: path: text", with lines of the file as it is now, and with what
 * depends on the models' files: `file_bytes` [n_models], or NULL.  The number of warnings. */
uint32_t config_write_warnings(const inferd_config *c, const uint64_t *file_bytes, buf *out);
void config_destroy(inferd_config *c); // accepts NULL; wipes key digests
/* What requests to this model get that give no sampling parameters: over those of its files. */
sampling_defaults config_sampling(const config_model *c, const sampling_defaults *of_files);
/* limits.engine, completed from `policy`. */
engine_limits config_engine_limits(const inferd_config *c);
/* Appends the names of the settings that differ and need a restart; true if any. */
bool config_needs_restart(const inferd_config *running, const inferd_config *wanted, buf *names);
/* Every option with its type, default and range, as Markdown tables. */
void config_describe(buf *out);
/* Replaces the content of the file and keeps its mode and owner: a reader, also one after a power
 * cut, finds the old text or the new one.  A missing file is created, readable by its owner only
 * (it may hold keys).  For a symbolic link the target is replaced, which must exist.  A failure
 * changes nothing and leaves no file behind; only an error with "is replaced" in its text comes
 * after the change.  Blocks for the disk. */
inferd_status config_write_file(const char *path, const char *text, size_t n, inferd_err *err);
/* Removes the temporary files that processes which were killed in config_write_file left beside the
 * file, but none that is being written.  The number of files removed. */
uint32_t config_sweep(const char *path);

/* "never" and "-1" (POLICY_NEVER), seconds ("30", "0", "1.5"), or "250ms", "30s", "1h30m": units h,
 * m, s, ms, us, each once and the largest first.  False: another form, negative, not a whole number
 * of microseconds, or more than CONFIG_DURATION_DAYS_MAX. */
enum { CONFIG_DURATION_DAYS_MAX = 36500 };
bool config_read_duration(const char *text, uint64_t *out_us);
/* The same for a JSON value: a text, or a number of seconds. */
bool config_json_duration(const json_t *v, uint64_t *out_us);
/* "2GiB", "1.5MiB", "2GB", "4096"; false: not a whole number of bytes in a known unit.  Units in
 * any case: KiB, MiB, GiB, TiB (also Ki, ...) are powers of 1024, KB, MB, GB, TB powers of 1000. */
bool config_read_size(const char *text, uint64_t *out);
/* Why `text` is not a size, a part of a sentence that follows its name. */
const char *config_size_problem(const char *text);
/* "0-3,8" as bits; false: not an ascending list of numbers below CONFIG_CORES_MAX. */
bool config_read_cores(const char *text, uint64_t set[CONFIG_CORES_MAX / 64]);

/* The tenant that has this key, or -1; the time does not depend on where bytes differ. */
int config_tenant_of_key(const inferd_config *c, bytes key);
bool config_is_admin_key(const inferd_config *c, bytes key); // likewise
/* `cors`; loopback: the origin is this machine. */
bool config_allows_origin(const inferd_config *c, bytes origin, bool loopback);
/* The model served under this name or alias, or -1. */
int config_find_model(const inferd_config *c, const char *name, size_t n);

#endif
