/* config.h - one JSON file says everything: where to listen, devices, models, tenants, limits, log.
 *
 * Read and checked as a whole: every problem is one line with file, line, JSON path and what was
 * expected; a file with a problem changes nothing.  Sizes have units ("2GiB", "512MiB"), paths are
 * relative to the file.  The option table in config.c is the only place that knows names, defaults
 * and ranges; docs/configuration.md is written from it.
 *
 * Thread: front; an inferd_config is immutable after config_load and shared freely. */
#ifndef INFERD_CONFIG_H
#define INFERD_CONFIG_H

#include "http.h"
#include "inferd/base.h"
#include "inferd/buf.h"
#include "inferd/status.h"
#include "json_in.h"
#include "scheduler/engine.h"

typedef struct config_device {
    char *kind;               // "auto", "cpu", "cuda"; NULL: "auto"
    uint64_t memory_bytes;    // of its page pool; 0: 2GiB on the CPU, on a GPU all but the reserve
    uint32_t threads;         // 0 = "auto"
    char *cpu_math;           // "fast", "exact"; NULL: "fast"
    char *uuid;               // of the GPU, or its beginning; NULL: by index
    uint32_t index;           // of the GPU
    uint64_t reserve_bytes;   // not taken; 0: the larger of 1GiB and 2 %
    uint64_t workspace_bytes; // of memory; 0: 1/16
    char *activations;        // "bf16", "f16"; NULL: "bf16"
    char *module;             // inferd_cuda.so; NULL: beside the program
    char *cublaslt;           // file or folder; NULL: searched for
    char *tune_cache;         // file; NULL: nothing is measured
} config_device;

typedef struct config_model {
    char *name;
    char *path;     // absolute or relative to the working directory, resolved
    char **aliases; // [n_aliases]
    uint32_t n_aliases;
    uint32_t max_context;        // 0 = the file's
    char *chat_template;         // a file, or NULL
    bool special_tokens_in_text; // text of requests may write special tokens; default false
} config_model;

typedef struct config_tenant {
    char *name;
    unsigned char (
        *keys)[32]; // [n_keys] SHA-256-like digests under a per-process pepper; never plain text
    uint32_t n_keys;
    gen_class max_class; // default normal
    char **models;       // [n_models] names it may use; n_models = 0: all
    uint32_t n_models;
} config_tenant;

typedef struct config_limits {
    http_limits http;
    json_limits json;
    engine_limits engine;
    uint32_t step_hang_ms;     // 60,000; a device that answers no step for this long is given up
    uint32_t queue_timeout_ms; // 60,000; waiting longer ends with 504
    uint32_t total_timeout_ms; // 600,000
    uint32_t drain_timeout_s;  // 30
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
    config_model *models;
    uint32_t n_models;
    config_tenant *tenants;
    uint32_t n_tenants;
    config_limits limits;
    config_log log;
    struct config_index *index; // of key digests; owned, built by config_load
} inferd_config;

/* Every problem is appended to `problems` as a line "file:line: path: sentence"; INFERD_EINVAL
 * then. */
inferd_status config_load(const char *path, inferd_config **out, buf *problems, inferd_err *err);
/* What `serve --model F` means: one model named after the file, defaults for the rest. */
inferd_status config_for_model(const char *model_path, inferd_config **out, inferd_err *err);
/* Rules that need the whole: no keys = loopback only, unique names and keys, limits that fit
 * together. */
bool config_check(const inferd_config *c, buf *problems);
void config_destroy(inferd_config *c); // accepts NULL; wipes key digests
/* Which settings differ between two configurations and need a restart: names appended; true if any.
 */
bool config_needs_restart(const inferd_config *running, const inferd_config *wanted, buf *names);
/* Every option with its type, default and range, as Markdown tables. */
void config_describe(buf *out);

/* The tenant whose key this is, or -1; the time does not depend on where bytes differ. */
int config_tenant_of_key(const inferd_config *c, bytes key);
/* The model served under this name or alias, or -1. */
int config_find_model(const inferd_config *c, const char *name, size_t n);

#endif
