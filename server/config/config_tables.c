/* config_tables.c - the option tables: one line per option.
 *
 * Names, kinds, ranges and defaults exist only here; config.c walks the tables to free, compare and
 * describe, config_read.c to read.  Objects of a file need not be structs: `slo` is read into
 * members of its model's policy. */
#include "config_options.h"

#define KIB 1024ull
#define MIB (1024 * KIB)
#define GIB (1024 * MIB)
#define TIB (1024 * GIB)
enum { DAY_S = 86400 };
#define DAY_MS (1000ull * DAY_S)
enum {
    DRAFT_MAX = 16,
    WEIGHT_MAX = 10000,
    URGENT_PERCENT_MAX = 50,
    SHARE_PERCENT_MAX = 100 * CONFIG_DEVICES_MAX,
    MEMBERS_MAX = 10000, // of a tenant's list of models
    PATH_BYTES_MAX = 4095
};
#define MEMORY_MAX (64 * TIB)
#define TOKENS_MAX 1000000000000000ull // of a quota: 10^15, far below an overflow of sums

static const char *const cpu_maths[] = {"fast", "exact", NULL};
static const char *const device_kinds[] = {"auto", "cpu", "cuda", NULL};
static const char *const classes[] = {"system", "high", "normal", "batch", NULL};
static const char *const kv_types[] = {"f16", "bf16", "f32", "int8", "int16", "auto", NULL};
static const char *const share_policies[] = {"besteffort", "burst", "fixed", NULL};
static const char *const pins[] = {"none", "warm", "hot", NULL};
static const char *const pin_booleans[] = {"none", "hot"};
static const char *const levels[] = {"error", "info", "debug", NULL};

/* One line per option: its member, its kind, {min, max, default}, and its description. */
#define AT(type, field)         .offset = offsetof(type, field)
#define COUNT(type, field)      .count_offset = offsetof(type, field)
#define RANGE(low, high, usual) .min = low, .max = high, .normal = usual

#define D config_device
static const option of_device[] = {
    {"name", OPTION_TEXT, AT(D, name), .min = 1, .max = 64,
     .about = "in logs, metrics and the admin API; absent: kind and number, as `cpu0`"},
    {"kind", OPTION_TEXT, AT(D, kind), .min = 1, .max = 16, .choices = device_kinds,
     .about = "`auto`: a GPU when there is one, else the CPU"},
    {"memory", OPTION_BYTES64, AT(D, memory_bytes), RANGE(4 * MIB, MEMORY_MAX, 0),
     .about = "size of its page pool: weights, keys and values; absent: 2GiB on the CPU, on a GPU "
              "the free memory less 1GiB or 2 %, the larger"},
    {"threads", OPTION_THREADS, AT(D, threads), RANGE(1, 1024, 0),
     .about = "compute threads; `\"auto\"`: one per core"},
    {"cores", OPTION_CORES, AT(D, cores), .min = 1, .max = 1024,
     .about = "CPU: the CPUs it computes on; absent: all.  Two CPU devices need separate lists"},
    {"cpu_math", OPTION_TEXT, AT(D, cpu_math), .min = 1, .max = 8, .choices = cpu_maths,
     .about = "CPU: `exact` multiplies float activations, `fast` integers of 16 bits (cpu.md)"},
    {"gpu", OPTION_GPU, AT(D, gpu), .min = 0, .max = GPU_INDEX_MAX,
     .about = "GPU: which one, from 0, or by its UUID or the beginning of it: `\"GPU-8f6a\"`"},
};
static const option_table device_table = {"devices[]", of_device, INFERD_COUNT(of_device),
                                          sizeof(D)};

/* For models and tenants. */
#define S share_spec
static const option of_share[] = {
    {"policy", OPTION_CHOICE, AT(S, policy), .normal = SHARE_BESTEFFORT, .choices = share_policies,
     .about = "absent, with `percent`: `burst`"},
    {"percent", OPTION_U32, AT(S, percent), RANGE(1, SHARE_PERCENT_MAX, 0),
     .about = "percent of one device, summed over `devices`; required for `fixed` and `burst`"},
    {"devices", OPTION_U32, AT(S, n_devices), RANGE(1, CONFIG_DEVICES_MAX, 1),
     .about = "number of devices it is spread over evenly; must divide `percent`"},
};
static const option_table share_table = {"models[].share` and `tenants[].share", of_share,
                                         INFERD_COUNT(of_share), sizeof(S), config_settle_share};

#define P model_policy
static const option of_slo[] = {
    {"ttft_ms", OPTION_U32, AT(P, slo_ttft_ms), RANGE(0, DAY_MS, 0),
     .about = "from arrival to the first token; 0: none"},
    {"tpot_ms", OPTION_U32, AT(P, slo_tpot_ms), RANGE(0, DAY_MS, 0),
     .about = "from one token to the next; 0: none"},
};
static const option_table slo_table = {"models[].slo", of_slo, INFERD_COUNT(of_slo), sizeof(P)};

static const option of_replicas[] = {
    {"min", OPTION_U32, AT(P, replicas_min), RANGE(0, CONFIG_DEVICES_MAX, 1),
     .about = "replicas that are always placed"},
    {"max", OPTION_U32, AT(P, replicas_max), RANGE(0, CONFIG_DEVICES_MAX, 1),
     .about = "replicas under load, never more than devices; absent: the larger of `min` and 1"},
};
static const option_table replicas_table = {
    "models[].replicas", of_replicas, INFERD_COUNT(of_replicas), sizeof(P), config_settle_replicas};

#define M config_model
#define SAMPLING(param, low, high)                                                                 \
    OPTION_REAL, AT(M, sampling[SAMPLING_##param]), .real_min = low, .real_max = high
/* The fields of a request, with their names and ranges: api.md describes them. */
static const option of_sampling[] = {
    {"temperature", SAMPLING(TEMPERATURE, 0, 2)},
    {"top_p", SAMPLING(TOP_P, 0, 1), .above_min = true},
    {"top_k", SAMPLING(TOP_K, -1, SAMPLING_TOP_K_MAX), .whole = true},
    {"min_p", SAMPLING(MIN_P, 0, 1)},
    {"repetition_penalty", SAMPLING(REPETITION_PENALTY, 0.01, 100)},
    {"presence_penalty", SAMPLING(PRESENCE_PENALTY, -2, 2)},
    {"frequency_penalty", SAMPLING(FREQUENCY_PENALTY, -2, 2)},
};
static const option_table sampling_table = {
    "models[].sampling", of_sampling, INFERD_COUNT(of_sampling), sizeof(M), .elsewhere = true};

static const option of_model[] = {
    {"name", OPTION_TEXT, AT(M, name), .min = 1, .max = 200, .required = true,
     .about = "its name in requests"},
    {"path", OPTION_PATH, AT(M, path), .min = 1, .max = PATH_BYTES_MAX, .required = true,
     .about = "a GGUF file, any part of a split one, or `dummy:SHAPE` with `--allow-dummy`"},
    {"aliases", OPTION_TEXTS, AT(M, aliases), COUNT(M, n_aliases), .min = 1, .max = 64,
     .about = "further names"},
    {"max_context", OPTION_U32, AT(M, max_context), RANGE(0, 16777216, 0),
     .about = "tokens of prompt and answer; 0: what the file says"},
    {"chat_template", OPTION_PATH, AT(M, chat_template), .min = 1, .max = PATH_BYTES_MAX,
     .about = "a Jinja file instead of the model's own template"},
    {"tool_format", OPTION_TEXT, AT(M, tool_format), .min = 1, .max = 64,
     .about = "how it writes tool calls, by name ([agents.md](agents.md#formats)); absent: as its "
              "template writes them; `none`: not at all"},
    {"special_tokens_in_text", OPTION_BOOL, AT(M, special_tokens_in_text),
     .about = "text of requests may contain special tokens"},
    {"sampling", OPTION_OBJECT, 0, .table = &sampling_table,
     .about =
         "for requests that give none: `temperature`, `top_p`, `top_k`, `min_p`, "
         "`repetition_penalty`, `presence_penalty`, `frequency_penalty`, each with the range of a "
         "request ([api.md](api.md#sampling)); absent: as the model's files say"},
    {"min", OPTION_BYTES64, AT(M, policy.min_bytes), RANGE(0, MEMORY_MAX, 0),
     .about = "memory guaranteed to its weights, keys and values"},
    {"max", OPTION_BYTES64, AT(M, policy.max_bytes), RANGE(0, MEMORY_MAX, 0),
     .about = "memory it may have in all; 0: no ceiling"},
    {"class", OPTION_CHOICE, AT(M, policy.prio), .normal = GEN_NORMAL, .choices = classes,
     .about = "class of requests that name none"},
    {"weight", OPTION_U32, AT(M, policy.weight), RANGE(0, WEIGHT_MAX, 1),
     .about = "weight in dividing the device time that shares leave; 0: paused"},
    {"share", OPTION_OBJECT, AT(M, policy.share), .table = &share_table, .short_for = "percent",
     .about = "share of device time; absent: `besteffort`"},
    {"slo", OPTION_OBJECT, AT(M, policy), .table = &slo_table, .about = "targets"},
    {"pin", OPTION_CHOICE, AT(M, policy.pin), .normal = PIN_NONE, .choices = pins,
     .booleans = pin_booleans,
     .about = "`warm`: its weights stay in host memory; `hot`: on the device"},
    {"keep_alive", OPTION_DURATION, AT(M, policy.keep_alive_us), .normal = POLICY_NEVER,
     .about = "idle time after which it is evicted; seconds, `\"30s\"`, `\"1h30m\"`, 0: at once, "
              "`\"never\"` or -1: only when its memory is needed"},
    {"replicas", OPTION_OBJECT, AT(M, policy), .table = &replicas_table, .short_for = "min",
     .about = "on different devices"},
};
static const option_meant model_meant[] = {{"priority", "class"}};
static const option_table model_table = {"models[]",
                                         of_model,
                                         INFERD_COUNT(of_model),
                                         sizeof(M),
                                         config_settle_model,
                                         .meant = model_meant,
                                         .n_meant = INFERD_COUNT(model_meant)};

/* The three ways to give keys, the same for every owner. */
#define KEY_OPTIONS(type)                                                                          \
    {"key",                                                                                        \
     OPTION_KEYS,                                                                                  \
     AT(type, keys),                                                                               \
     COUNT(type, n_keys),                                                                          \
     .also = "keys",                                                                               \
     .min = KEY_BYTES_MIN,                                                                         \
     .max = KEY_BYTES_MAX,                                                                         \
     .about = "API key, or a list of keys; printable ASCII without spaces; `keys` is the same"},   \
        {"key_file",                                                                               \
         OPTION_KEY_FILE,                                                                          \
         AT(type, keys),                                                                           \
         COUNT(type, n_keys),                                                                      \
         .min = 1,                                                                                 \
         .max = PATH_BYTES_MAX,                                                                    \
         .about = "a file with one key per line; `#` begins a comment line"},                      \
    {                                                                                              \
        "key_env", OPTION_KEY_ENV, AT(type, keys), COUNT(type, n_keys),                            \
            .min = 1, .max = 200, .about = "the name of an environment variable that holds a key"  \
    }

#define Q                 config_tenant_limits
#define NO_LIMIT_OR(most) RANGE(0, most, CONFIG_NO_LIMIT), .nullable = true
static const option of_quota[] = {
    {"requests_per_min", OPTION_U64, AT(Q, requests_per_min), NO_LIMIT_OR(UINT32_MAX),
     .about = "null: no limit, 0: nothing is admitted; also for the limits below"},
    {"tokens_per_min", OPTION_U64, AT(Q, tokens_per_min), NO_LIMIT_OR(UINT32_MAX),
     .about = "tokens of prompts and answers"},
    {"concurrent", OPTION_U64, AT(Q, concurrent), NO_LIMIT_OR(UINT32_MAX),
     .about = "requests that run or wait at one time"},
    {"tokens_per_day", OPTION_U64, AT(Q, tokens_per_day), NO_LIMIT_OR(TOKENS_MAX),
     .about = "in UTC; needs `state_dir`"},
    {"tokens_per_month", OPTION_U64, AT(Q, tokens_per_month), NO_LIMIT_OR(TOKENS_MAX),
     .about = "in UTC; needs `state_dir`"},
};
static const option_table quota_table = {"tenants[].limits", of_quota, INFERD_COUNT(of_quota),
                                         sizeof(Q)};

#define T config_tenant
static const option of_tenant[] = {
    {"name", OPTION_TEXT, AT(T, name), .min = 1, .max = 200, .required = true,
     .about = "in logs and metrics"},
    KEY_OPTIONS(T),
    {"max_class", OPTION_CHOICE, AT(T, max_class), .normal = GEN_NORMAL, .choices = classes,
     .about = "the most urgent class it may ask for"},
    {"models", OPTION_TEXTS, AT(T, models), COUNT(T, n_models), .min = 1, .max = MEMBERS_MAX,
     .about = "names or aliases it may use; absent: all"},
    {"weight", OPTION_U32, AT(T, policy.weight), RANGE(0, WEIGHT_MAX, 1),
     .about = "weight in dividing the device time that shares leave; 0: none of it"},
    {"min", OPTION_BYTES64, AT(T, policy.min_bytes), RANGE(0, MEMORY_MAX, 0),
     .about = "memory guaranteed to its keys and values"},
    {"max", OPTION_BYTES64, AT(T, policy.max_bytes), RANGE(0, MEMORY_MAX, 0),
     .about = "memory they may have in all; 0: no ceiling"},
    {"share", OPTION_OBJECT, AT(T, policy.share), .table = &share_table, .short_for = "percent",
     .about = "share of device time; absent: `besteffort`"},
    {"limits", OPTION_OBJECT, AT(T, limits), .table = &quota_table,
     .about = "of requests and tokens"},
};
static const option_meant tenant_meant[] = {
    {"class", "max_class"}, {"priority", "max_class"}, {"api_key", "key"}, {"api_keys", "key"}};
static const option_table tenant_table = {"tenants[]",
                                          of_tenant,
                                          INFERD_COUNT(of_tenant),
                                          sizeof(T),
                                          config_settle_tenant,
                                          .meant = tenant_meant,
                                          .n_meant = INFERD_COUNT(tenant_meant)};

#define L config_limits
static const option of_limit[] = {
    {"connections_max", OPTION_U32, AT(L, http.connections_max), RANGE(1, 1000000, 10240),
     .about = "open connections; a new one closes the one that is idle longest"},
    {"body_bytes_max", OPTION_BYTES64, AT(L, http.body_bytes_max), RANGE(KIB, GIB, 4 * MIB),
     .about = "of one request; all bodies together have 256MiB, or the room of two"},
    {"transcript_bytes_max", OPTION_BYTES64, AT(L, transcript_bytes_max), RANGE(0, 64 * GIB, 64 * MIB),
     .live = true,
     .about = "text and tokens of conversations that are kept for their next turns "
              "([agents.md](agents.md#the-cache)); 0: none"},
    {"running_max", OPTION_U32, AT(L, engine.running_max), RANGE(1, 4096, 32),
     .about = "sequences in one step; displaced sequences run in addition"},
    {"step_tokens_max", OPTION_U32, AT(L, engine.step_tokens_max), RANGE(0, 65536, 0),
     .about =
         "tokens computed in one step; on a CPU at most the larger of 128 and 2 `running_max`. 0: "
         "on "
         "a GPU 2048, with a workspace below 1GiB one for each 512KiB and at least 512; on a CPU "
         "512; never below `running_max`"},
    {"queue_len_max", OPTION_U32, AT(L, engine.queue_len_max), RANGE(1, 1000000, 1024),
     .about =
         "waiting requests; further ones get 503. Of these and `running_max` together some are "
         "reserved for shares and urgent requests ([limits.md](limits.md#a-full-queue))"},
    {"queue_timeout_ms", OPTION_U32, AT(L, queue_timeout_ms), RANGE(1, DAY_MS, 60000), .live = true,
     .about = "a request that waits longer gets 504"},
    {"total_timeout_ms", OPTION_U32, AT(L, total_timeout_ms), RANGE(1, DAY_MS, 600000),
     .live = true, .about = "from arrival to the last token"},
    {"drain_timeout_s", OPTION_U32, AT(L, drain_timeout_s), RANGE(0, DAY_S, 30), .live = true,
     .about = "running requests may go on for this long at shutdown"},
    {"client_timeout_ms", OPTION_U32, AT(L, client_timeout_ms), RANGE(10, DAY_MS, 30000),
     .about =
         "for a request's body, and for headers up to 10 s; a client that reads nothing of a "
         "stream for this long is disconnected, and after half of it without data gets a comment"},
    {"watchdog_s", OPTION_U32, AT(L, watchdog_s), RANGE(0, DAY_S, 30), .live = true,
     .about = "a loop without progress for this long ends the process: exit status 71 "
              "([operation.md](operation.md#the-watchdog)), a device without a finished step for "
              "twice as "
              "long is given up: 70; 0: no loop does, and a device has 60 s"},
    {"responses_max", OPTION_U32, AT(L, responses_max), RANGE(0, 65536, 1000),
     .about = "responses that are kept in the folder `responses` of `state_dir` "
              "([api.md](api.md#v1responses)); above it the oldest go; 0: none"},
    {"responses_bytes_max", OPTION_BYTES64, AT(L, responses_bytes_max),
     RANGE(MIB, MEMORY_MAX, 256 * MIB), .about = "bytes of them; likewise"},
    {"kv_type", OPTION_CHOICE, AT(L, engine.kv), .normal = KV_AUTO, .choices = kv_types,
     .about = "type of stored keys and values ([cpu.md](cpu.md#keys-and-values)); `auto`: `int16` "
              "on a CPU, `f16` on a GPU; a GPU has `f16` and `bf16`"},
    {"draft_tokens", OPTION_U32, AT(L, engine.draft_tokens), RANGE(0, DRAFT_MAX, 0),
     .about =
         "CPU: draft tokens per step, taken from earlier text of the sequence or forced by its "
         "grammar, while fewer than 8 sequences run; 4 is a good number, 0: none"},
};
static const option_table limit_table = {"limits", of_limit, INFERD_COUNT(of_limit), sizeof(L)};

#define G config_log
static const option of_log[] = {
    {"json", OPTION_BOOL, AT(G, json), .about = "one JSON object per line instead of key=value"},
    {"path", OPTION_PATH, AT(G, path), .min = 1, .max = PATH_BYTES_MAX,
     .about = "a file; absent: standard error"},
    {"explain", OPTION_BOOL, AT(G, explain), .live = true,
     .about = "the line of an answer says where its prompt left what was computed before, and why "
              "([agents.md](agents.md#the-cache))"},
    {"level", OPTION_CHOICE, AT(G, level), .normal = 1, .choices = levels,
     .about = "which lines are logged"},
};
static const option_table log_table = {"log", of_log, INFERD_COUNT(of_log), sizeof(G)};

#define X config_tracing
static const option of_tracing[] = {
    {"endpoint", OPTION_TEXT, AT(X, endpoint), .min = 1, .max = 2000,
     .about = "URL of a collector that takes OTLP over HTTP in protobuf, as "
              "`http://127.0.0.1:4318/v1/traces`; absent: no traces"},
    {"headers_file", OPTION_PATH, AT(X, headers_file), .min = 1, .max = PATH_BYTES_MAX,
     .about = "a file with a line `Name: value` for each header that the collector wants"},
    {"sample_ratio", OPTION_REAL, AT(X, sample_ratio), .real_min = 0, .real_max = 1, .live = true,
     .about = "part of the requests without `traceparent` that is traced; absent: 1"},
    {"service_name", OPTION_TEXT, AT(X, service_name), .min = 1, .max = 200,
     .about = "`service.name` of the traces; absent: `inferd`"},
    {"queue_spans_max", OPTION_U32, AT(X, queue_spans_max), RANGE(256, 1000000, 4096),
     .about = "spans that wait to be sent; further ones are dropped and counted"},
    {"timeout_ms", OPTION_U32, AT(X, timeout_ms), RANGE(10, 600000, 10000),
     .about = "for one request to the collector"},
};
static const option_table tracing_table = {"tracing", of_tracing, INFERD_COUNT(of_tracing),
                                           sizeof(X)};

#define O config_policy
static const option of_policy[] = {
    {"tpot_ms", OPTION_U32, AT(O, tpot_ms), RANGE(1, 60000, 40), .live = true,
     .about =
         "time per output token that streams keep during prefill; prefill gets all other time. "
         "`slo.tpot_ms` of a model or a request wins"},
    {"urgent_percent", OPTION_U32, AT(O, urgent_percent), RANGE(0, URGENT_PERCENT_MAX, 5),
     .live = true,
     .about =
         "percent of the device time that requests of the classes `high` and `system` get before "
         "shares ([sharing.md](sharing.md#shares)); 0: none"},
    {"zero_on_tenant_change", OPTION_BOOL, AT(O, zero_on_tenant_change),
     .about = "memory is zeroed before another tenant gets it"},
};
static const option_table policy_table = {"policy", of_policy, INFERD_COUNT(of_policy), sizeof(O)};

#define A config_admin
static const option of_admin[] = {
    {"listen", OPTION_TEXT, AT(A, listen), .min = 1, .max = 200,
     .about =
         "`unix:PATH`, a separate socket; `none`; absent: `$XDG_RUNTIME_DIR/inferd/admin.sock`, "
         "else `/run/inferd/admin.sock`, if no other daemon has it"},
    {"page", OPTION_BOOL, AT(A, page), .live = true,
     .about = "`listen` has the page [`/ui`](page.md), too; it needs an admin key"},
    KEY_OPTIONS(A),
};
static const option_table admin_table = {"admin", of_admin, INFERD_COUNT(of_admin), sizeof(A)};

#define C inferd_config
static const option of_config[] = {
    {"listen", OPTION_TEXT, AT(C, listen), .min = 1, .max = 200,
     .about = "`ADDRESS:PORT`, `PORT` on 127.0.0.1, `[IPV6]:PORT` or `unix:PATH`; absent: "
              "`127.0.0.1:8080`"},
    {"devices", OPTION_LIST, AT(C, devices), COUNT(C, n_devices), .max = CONFIG_DEVICES_MAX,
     .table = &device_table, .about = "compute devices; absent: one of kind `auto`"},
    {"host_arena", OPTION_BYTES64, AT(C, host_arena_bytes),
     RANGE(0, MEMORY_MAX, CONFIG_HOST_ARENA_AUTO),
     .about = "host memory for warm models, and for keys and values that are swapped out; 0: none; "
              "absent: depends on the machine"},
    {"kv_disk", OPTION_BYTES64, AT(C, kv_disk_bytes), RANGE(0, MEMORY_MAX, 0),
     .about = "size of the folder `kv` in `state_dir`: keys and values that do not fit in host "
              "memory; 0: none on disk"},
    {"state_dir", OPTION_PATH, AT(C, state_dir), .min = 1, .max = PATH_BYTES_MAX,
     .about = "a folder where used token quotas are kept over restarts, responses with `store`, and "
              "what `kv_disk` allows; it is made if the folder above is there; absent: in memory "
              "only"},
    {"policy", OPTION_OBJECT, AT(C, policy), .table = &policy_table,
     .about = "how devices are shared"},
    {"admin", OPTION_OBJECT, AT(C, admin), .table = &admin_table,
     .about = "access to the admin API"},
    {"cors", OPTION_TEXTS, AT(C, cors), COUNT(C, n_cors), .min = 1, .max = MEMBERS_MAX,
     .live = true,
     .about = "origins, as `https://chat.example`: their web pages may use the server, beside this "
              "machine's; `\"*\"`: all; absent: this machine's; empty: none"},
    {"models", OPTION_LIST, AT(C, models), COUNT(C, n_models), .max = CONFIG_MODELS_MAX,
     .table = &model_table, .required = true, .live = true, .about = "the served models; empty: none yet"},
    {"tenants", OPTION_LIST, AT(C, tenants), COUNT(C, n_tenants), .max = CONFIG_TENANTS_MAX,
     .table = &tenant_table, .live = true,
     .about = "clients with keys; absent: all users of this machine, without keys"},
    {"limits", OPTION_OBJECT, AT(C, limits), .table = &limit_table,
     .about = "bounds and times; [limits.md](limits.md#constants) has those that cannot be set"},
    {"log", OPTION_OBJECT, AT(C, log), .table = &log_table, .about = "log output and format"},
    {"tracing", OPTION_OBJECT, AT(C, tracing), .table = &tracing_table,
     .about = "spans of requests for a collector ([traces.md](traces.md)); off without `endpoint`"},
};
const option_table config_table = {"", of_config, INFERD_COUNT(of_config), sizeof(C)};
