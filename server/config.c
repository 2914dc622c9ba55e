/* config.c - the option tables, and what only walks them.  See config.h and config_options.h. */
#include <string.h>

#include "config_options.h"

#define KIB 1024ull
#define MIB (1024 * KIB)
#define GIB (1024 * MIB)
#define TIB (1024 * GIB)
enum { DAY_S = 86400 };
#define DAY_MS (1000ull * DAY_S)
enum { DRAFT_MAX = 16 };

static const char *const cpu_maths[] = {"fast", "exact", NULL};
static const char *const device_kinds[] = {"auto", "cpu", "cuda", NULL};
static const char *const activation_types[] = {"bf16", "f16", NULL};
static const char *const classes[] = {"system", "high", "normal", "batch", NULL};
static const char *const kv_types[] = {"f16", "bf16", "f32", "int8", "auto", NULL};
static const char *const levels[] = {"error", "info", "debug", NULL};

/* One line per option: where it lives, its kind, {min, max, default}, and what it is. */
#define AT(type, field)         .offset = offsetof(type, field)
#define COUNT(type, field)      .count_offset = offsetof(type, field)
#define RANGE(low, high, usual) .min = low, .max = high, .normal = usual

#define D config_device
static const option of_device[] = {
    {"kind", OPTION_TEXT, AT(D, kind), .min = 1, .max = 16, .choices = device_kinds,
     .about = "what computes; `auto`: a GPU when there is one, else the CPU"},
    {"memory", OPTION_BYTES64, AT(D, memory_bytes), RANGE(4 * MIB, 64 * TIB, 0),
     .about =
         "of its page pool: weights, keys and values; absent: 2GiB on the CPU, on a GPU what is "
         "free less `reserve`"},
    {"threads", OPTION_THREADS, AT(D, threads), RANGE(1, 1024, 0),
     .about = "that compute; `\"auto\"`: one per core"},
    {"cpu_math", OPTION_TEXT, AT(D, cpu_math), .min = 1, .max = 8, .choices = cpu_maths,
     .about = "CPU: `exact` multiplies float activations, `fast` integers of 16 bits (cpu.md)"},
    {"index", OPTION_U32, AT(D, index), RANGE(0, 63, 0), .about = "GPU: which one, from 0"},
    {"uuid", OPTION_TEXT, AT(D, uuid), .min = 1, .max = 47,
     .about = "GPU: which one, by its UUID or the beginning of it; wins over `index`"},
    {"reserve", OPTION_BYTES64, AT(D, reserve_bytes), RANGE(0, 64 * TIB, 0),
     .about = "GPU: memory left to the driver and others; 0: the larger of 1GiB and 2 %"},
    {"workspace", OPTION_BYTES64, AT(D, workspace_bytes), RANGE(0, 64 * TIB, 0),
     .about = "GPU: part of `memory` for activations and scratch; 0: 1/16, 64MiB to 2GiB"},
    {"activations", OPTION_TEXT, AT(D, activations), .min = 1, .max = 8,
     .choices = activation_types, .about = "GPU: type of values between operations"},
    {"module", OPTION_PATH, AT(D, module), .min = 1, .max = 4095,
     .about =
         "GPU: `inferd_cuda.so`; absent: beside the program, in `../lib/inferd`, on the loader's "
         "path"},
    {"cublaslt", OPTION_PATH, AT(D, cublaslt), .min = 1, .max = 4095,
     .about =
         "GPU: `libcublasLt.so.13` or its folder; absent: the loader's path, the toolkit, Python's "
         "packages"},
    {"tune_cache", OPTION_PATH, AT(D, tune_cache), .min = 1, .max = 4095,
     .about = "GPU: file for measured choices of cuBLASLt; absent: its own first choices"},
};
static const option_table device_table = {"devices[]", of_device, INFERD_COUNT(of_device),
                                          sizeof(D)};

#define M config_model
static const option of_model[] = {
    {"name", OPTION_TEXT, AT(M, name), .min = 1, .max = 200, .required = true,
     .about = "what requests call it"},
    {"path", OPTION_PATH, AT(M, path), .min = 1, .max = 4095, .required = true,
     .about = "a GGUF file, or `dummy:SHAPE` with `--allow-dummy`"},
    {"aliases", OPTION_TEXTS, AT(M, aliases), COUNT(M, n_aliases), .min = 1, .max = 64,
     .about = "further names"},
    {"max_context", OPTION_U32, AT(M, max_context), RANGE(0, 16777216, 0),
     .about = "tokens of prompt and answer; 0: what the file says"},
    {"chat_template", OPTION_PATH, AT(M, chat_template), .min = 1, .max = 4095,
     .about = "a Jinja file instead of the model's own template"},
    {"special_tokens_in_text", OPTION_BOOL, AT(M, special_tokens_in_text),
     .about = "text of requests may write special tokens"},
};
static const option_table model_table = {"models[]", of_model, INFERD_COUNT(of_model), sizeof(M)};

#define T config_tenant
static const option of_tenant[] = {
    {"name", OPTION_TEXT, AT(T, name), .min = 1, .max = 200, .required = true,
     .about = "in logs and metrics"},
    {"keys", OPTION_KEYS, .min = 8, .max = 512,
     .about = "API keys; printable ASCII without spaces"},
    {"key_file", OPTION_KEY_FILE, .min = 1, .max = 4095,
     .about = "a file with one key per line; `#` begins a comment line"},
    {"key_env", OPTION_KEY_ENV, .min = 1, .max = 200,
     .about = "the name of an environment variable that holds a key"},
    {"max_class", OPTION_CHOICE, AT(T, max_class), .normal = GEN_NORMAL, .choices = classes,
     .about = "the most urgent class it may ask for"},
    {"models", OPTION_TEXTS, AT(T, models), COUNT(T, n_models), .min = 1, .max = 10000,
     .about = "names or aliases it may use; absent: all"},
};
static const option_table tenant_table = {"tenants[]", of_tenant, INFERD_COUNT(of_tenant),
                                          sizeof(T)};

#define L config_limits
static const option of_limit[] = {
    {"connections_max", OPTION_U32, AT(L, http.connections_max), RANGE(1, 1000000, 10240),
     .about = "open connections; the longest idle makes room for a new one"},
    {"header_bytes_max", OPTION_BYTES32, AT(L, http.header_bytes_max),
     RANGE(4 * KIB, MIB, 16 * KIB), .about = "of one request; also a connection's buffer"},
    {"body_bytes_max", OPTION_BYTES64, AT(L, http.body_bytes_max), RANGE(KIB, GIB, 4 * MIB),
     .about = "of one request"},
    {"bodies_bytes_max", OPTION_BYTES64, AT(L, http.bodies_bytes_max), RANGE(KIB, TIB, 256 * MIB),
     .about = "of all requests together"},
    {"header_timeout_ms", OPTION_U32, AT(L, http.header_timeout_ms), RANGE(10, DAY_MS, 10000),
     .about = "from connecting to the last header"},
    {"body_timeout_ms", OPTION_U32, AT(L, http.body_timeout_ms), RANGE(10, DAY_MS, 30000),
     .about = "from the last header to the end of the body"},
    {"idle_timeout_s", OPTION_U32, AT(L, http.idle_timeout_s), RANGE(1, DAY_S, 75),
     .about = "between two requests of a connection"},
    {"send_stall_ms", OPTION_U32, AT(L, http.send_stall_ms), RANGE(10, DAY_MS, 30000),
     .about = "a client that takes nothing is cut after this"},
    {"stream_soft_bytes", OPTION_BYTES32, AT(L, http.stream_soft_bytes), RANGE(KIB, GIB, 64 * KIB),
     .about = "unsent bytes of a stream that pause its sequence"},
    {"stream_hard_bytes", OPTION_BYTES32, AT(L, http.stream_hard_bytes), RANGE(KIB, GIB, 256 * KIB),
     .about = "unsent bytes of a stream that end it"},
    {"heartbeat_ms", OPTION_U32, AT(L, http.heartbeat_ms), RANGE(10, DAY_MS, 15000),
     .about = "a comment is sent on a stream that was quiet for this long"},
    {"json_depth_max", OPTION_U32, AT(L, json.depth_max), RANGE(8, 512, 64),
     .about = "nesting of a body"},
    {"json_structural_max", OPTION_U32, AT(L, json.structural_max), RANGE(1000, 100000000, 1048576),
     .about = "`{ } [ ] , :` in a body, together"},
    {"json_memory_max", OPTION_BYTES64, AT(L, json.memory_max), RANGE(MIB, TIB, 128 * MIB),
     .about = "of one parsed body"},
    {"running_max", OPTION_U32, AT(L, engine.running_max), RANGE(1, 4096, 32),
     .about = "sequences in one batch"},
    {"step_tokens_max", OPTION_U32, AT(L, engine.step_tokens_max), RANGE(1, 65536, 512),
     .about =
         "tokens computed in one step; on a CPU at most the larger of 128 and 2 `running_max`"},
    {"step_max_ms", OPTION_U32, AT(L, engine.step_max_ms), RANGE(1, 60000, 100),
     .about = "no step is planned longer"},
    {"decode_step_ms", OPTION_U32, AT(L, engine.decode_step_ms), RANGE(1, 60000, 25),
     .about = "no step is planned longer while others decode; on a CPU steps are shorter where "
              "decoding is: 1.4 times its own time, or 7 ms"},
    {"step_hang_ms", OPTION_U32, AT(L, step_hang_ms), RANGE(1000, DAY_MS, 60000), .live = true,
     .about = "a device that answers no step for this long is given up: exit status 70"},
    {"queue_len_max", OPTION_U32, AT(L, engine.queue_len_max), RANGE(1, 1000000, 1024),
     .about = "requests that wait; more are told 503"},
    {"starvation_ms", OPTION_U32, AT(L, engine.starvation_ms), RANGE(1, DAY_MS, 2000),
     .about = "waiting longer lifts a request by one class"},
    {"draft_tokens", OPTION_U32, AT(L, engine.draft_tokens), RANGE(0, DRAFT_MAX, 0),
     .about = "CPU: tokens guessed ahead per step from what a text has said before, while fewer "
              "than 8 sequences run; 4 is a good number, 0: none"},
    {"kv_type", OPTION_CHOICE, AT(L, engine.kv), .normal = KV_AUTO, .choices = kv_types,
     .about = "of stored keys and values; `auto`: `bf16` where the CPU multiplies it, else `f16`"},
    {"no_prefix_cache", OPTION_BOOL, AT(L, engine.no_prefix_cache),
     .about = "do not keep what was computed for the next prompt that begins the same"},
    {"queue_timeout_ms", OPTION_U32, AT(L, queue_timeout_ms), RANGE(1, DAY_MS, 60000), .live = true,
     .about = "waiting longer ends with 504"},
    {"total_timeout_ms", OPTION_U32, AT(L, total_timeout_ms), RANGE(1, DAY_MS, 600000),
     .live = true, .about = "from arrival to the last token"},
    {"drain_timeout_s", OPTION_U32, AT(L, drain_timeout_s), RANGE(0, DAY_S, 30), .live = true,
     .about = "what runs at the end may go on for this long"},
    {"choices_max", OPTION_U32, AT(L, choices_max), RANGE(1, 1024, 128), .live = true,
     .about = "`n` of a request"},
    {"prompts_max", OPTION_U32, AT(L, prompts_max), RANGE(1, 4096, 128), .live = true,
     .about = "prompts of a completion request"},
    {"stop_max", OPTION_U32, AT(L, stop_max), RANGE(1, 256, 16), .live = true,
     .about = "stop strings of a request"},
    {"stop_bytes_max", OPTION_U32, AT(L, stop_bytes_max), RANGE(1, 65536, 1024), .live = true,
     .about = "of one stop string"},
    {"logit_bias_max", OPTION_U32, AT(L, logit_bias_max), RANGE(0, 1000000, 1024), .live = true,
     .about = "entries of `logit_bias`"},
};
static const option_table limit_table = {"limits", of_limit, INFERD_COUNT(of_limit), sizeof(L)};

#define G config_log
static const option of_log[] = {
    {"json", OPTION_BOOL, AT(G, json), .about = "one JSON object per line instead of key=value"},
    {"path", OPTION_PATH, AT(G, path), .min = 1, .max = 4095,
     .about = "a file; absent: standard error"},
    {"level", OPTION_CHOICE, AT(G, level), .normal = 1, .choices = levels,
     .about = "how much is told"},
};
static const option_table log_table = {"log", of_log, INFERD_COUNT(of_log), sizeof(G)};

#define C inferd_config
static const option of_config[] = {
    {"listen", OPTION_TEXT, AT(C, listen), .min = 1, .max = 200,
     .about = "`ADDRESS:PORT`, `[IPV6]:PORT` or `unix:PATH`; `127.0.0.1:8080` when absent"},
    {"devices", OPTION_LIST, AT(C, devices), COUNT(C, n_devices), .max = 64, .table = &device_table,
     .about = "one of the kind `auto` when absent"},
    {"models", OPTION_LIST, AT(C, models), COUNT(C, n_models), .max = 10000, .table = &model_table,
     .required = true, .about = "what is served"},
    {"tenants", OPTION_LIST, AT(C, tenants), COUNT(C, n_tenants), .max = 100000,
     .table = &tenant_table, .live = true,
     .about = "who may ask; absent: everybody on this machine"},
    {"limits", OPTION_OBJECT, AT(C, limits), .table = &limit_table, .about = "bounds and times"},
    {"log", OPTION_OBJECT, AT(C, log), .table = &log_table, .about = "where events are told"},
};
const option_table config_table = {"", of_config, INFERD_COUNT(of_config), sizeof(C)};

/* -- walking them -- */

const option *config_option(const option_table *table, const char *name) {
    for (size_t i = 0; i < table->n; i++)
        if (strcmp(table->options[i].name, name) == 0) return &table->options[i];
    return NULL;
}

void config_defaults(const option_table *table, void *base) {
    for (size_t i = 0; i < table->n; i++) {
        const option *o = &table->options[i];
        void *at = option_at(base, o->offset);
        switch (o->kind) {
        case OPTION_U32:
        case OPTION_BYTES32:
        case OPTION_THREADS:
            *(uint32_t *)at = (uint32_t)o->normal;
            break;
        case OPTION_BYTES64:
            *(uint64_t *)at = o->normal;
            break;
        case OPTION_CHOICE:
            *(int *)at = (int)o->normal;
            break;
        case OPTION_OBJECT:
            config_defaults(o->table, at);
            break;
        default:
            break; // absent: NULL, none, false
        }
    }
}

static uint32_t count_at(const option *o, const void *base) {
    return *(uint32_t *)option_at(base, o->count_offset);
}

void config_table_deinit(const option_table *table, void *base) {
    for (size_t i = 0; i < table->n; i++) {
        const option *o = &table->options[i];
        void *at = option_at(base, o->offset);
        if (o->kind == OPTION_TEXT || o->kind == OPTION_PATH) {
            free(*(char **)at);
        } else if (o->kind == OPTION_TEXTS) {
            for (uint32_t k = 0; k < count_at(o, base); k++) free((*(char ***)at)[k]);
            free(*(char ***)at);
        } else if (o->kind == OPTION_OBJECT) {
            config_table_deinit(o->table, at);
        } else if (o->kind == OPTION_LIST) {
            char *elements = *(char **)at;
            for (uint32_t k = 0; k < count_at(o, base); k++)
                config_table_deinit(o->table, elements + k * o->table->struct_bytes);
            free(elements);
        }
    }
}

void config_destroy(inferd_config *c) {
    if (c == NULL) return;
    for (uint32_t i = 0; i < c->n_tenants; i++) {
        config_tenant *t = &c->tenants[i];
        if (t->keys != NULL) explicit_bzero(t->keys, t->n_keys * sizeof t->keys[0]);
        free(t->keys);
    }
    keys_index_destroy(c);
    config_table_deinit(&config_table, c);
    free(c->source);
    free(c);
}

/* -- what differs -- */

static bool same_text(const char *a, const char *b) {
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

static bool same_texts(const option *o, const void *a, const void *b) {
    uint32_t n = count_at(o, a);
    if (n != count_at(o, b)) return false;
    for (uint32_t i = 0; i < n; i++)
        if (!same_text((*(char ***)option_at(a, o->offset))[i],
                       (*(char ***)option_at(b, o->offset))[i]))
            return false;
    return true;
}

static void name_changed(buf *names, const char *prefix, const char *name) {
    buf_add_format(names, "%s%s%s", names->n > 0 ? ", " : "", prefix, name);
}

static bool compare_tables(const option_table *table, const void *a, const void *b,
                           const char *prefix, buf *names);

static bool compare_lists(const option *o, const void *a, const void *b, buf *names) {
    const char *at_a = *(char **)option_at(a, o->offset), *at_b = *(char **)option_at(b, o->offset);
    bool differ = false;
    uint32_t n = count_at(o, a);
    if (n != count_at(o, b)) {
        name_changed(names, "", o->name);
        return true;
    }
    for (uint32_t i = 0; i < n; i++) {
        char prefix[64];
        size_t at = i * o->table->struct_bytes;
        snprintf(prefix, sizeof prefix, "%s[%u].", o->name, i);
        differ |= compare_tables(o->table, at_a + at, at_b + at, prefix, names);
    }
    return differ;
}

static bool compare_tables(const option_table *table, const void *a, const void *b,
                           const char *prefix, buf *names) {
    bool any = false;
    for (size_t i = 0; i < table->n; i++) {
        const option *o = &table->options[i];
        void *at_a = option_at(a, o->offset), *at_b = option_at(b, o->offset);
        bool differ = false;
        if (o->live) continue;
        switch (o->kind) {
        case OPTION_TEXT:
        case OPTION_PATH:
            differ = !same_text(*(char **)at_a, *(char **)at_b);
            break;
        case OPTION_TEXTS:
            differ = !same_texts(o, a, b);
            break;
        case OPTION_BOOL:
            differ = *(bool *)at_a != *(bool *)at_b;
            break;
        case OPTION_U32:
        case OPTION_BYTES32:
        case OPTION_THREADS:
        case OPTION_CHOICE:
            differ = *(uint32_t *)at_a != *(uint32_t *)at_b;
            break;
        case OPTION_BYTES64:
            differ = *(uint64_t *)at_a != *(uint64_t *)at_b;
            break;
        case OPTION_OBJECT: {
            char inner[64];
            snprintf(inner, sizeof inner, "%s.", o->name);
            any |= compare_tables(o->table, at_a, at_b, inner, names);
            break;
        }
        case OPTION_LIST:
            any |= compare_lists(o, a, b, names);
            break;
        case OPTION_KEYS:
        case OPTION_KEY_FILE:
        case OPTION_KEY_ENV:
            break; // inside tenants, which are live
        }
        if (differ) name_changed(names, prefix, o->name);
        any |= differ;
    }
    return any;
}

bool config_needs_restart(const inferd_config *running, const inferd_config *wanted, buf *names) {
    bool any = compare_tables(&config_table, running, wanted, "", names);
    /* Whether there are keys at all decides what the listener accepts. */
    if ((running->n_tenants == 0) != (wanted->n_tenants == 0)) {
        name_changed(names, "", "tenants");
        any = true;
    }
    return any;
}

/* -- what there is -- */

static void describe_size(buf *out, uint64_t n) {
    static const char *const units[] = {"", "KiB", "MiB", "GiB", "TiB"};
    size_t u = 0;
    while (u + 1 < INFERD_COUNT(units) && n >= 1024 && n % 1024 == 0) n /= 1024, u++;
    buf_add_format(out, "%llu%s", (unsigned long long)n, units[u]);
}

static void describe_values(buf *out, const option *o) {
    switch (o->kind) {
    case OPTION_TEXT:
    case OPTION_CHOICE:
        if (o->choices == NULL) buf_add_str(out, "text");
        for (size_t i = 0; o->choices != NULL && o->choices[i] != NULL; i++)
            buf_add_format(out, "%s`\"%s\"`", i > 0 ? ", " : "", o->choices[i]);
        break;
    case OPTION_PATH:
    case OPTION_KEY_FILE:
        buf_add_str(out, "a path");
        break;
    case OPTION_TEXTS:
    case OPTION_KEYS:
        buf_add_str(out, "a list of texts");
        break;
    case OPTION_KEY_ENV:
        buf_add_str(out, "text");
        break;
    case OPTION_BOOL:
        buf_add_str(out, "true, false");
        break;
    case OPTION_U32:
    case OPTION_THREADS:
        buf_add_format(out, "%llu to %llu", (unsigned long long)o->min, (unsigned long long)o->max);
        break;
    case OPTION_BYTES32:
    case OPTION_BYTES64:
        describe_size(out, o->min);
        buf_add_str(out, " to ");
        describe_size(out, o->max);
        break;
    case OPTION_OBJECT:
        buf_add_str(out, "an object");
        break;
    case OPTION_LIST:
        buf_add_str(out, "a list of objects");
        break;
    }
}

static void describe_default(buf *out, const option *o) {
    if (o->required)
        buf_add_str(out, "required");
    else if (o->kind == OPTION_U32)
        buf_add_format(out, "%llu", (unsigned long long)o->normal);
    else if ((o->kind == OPTION_BYTES32 || o->kind == OPTION_BYTES64) && o->normal >= o->min)
        describe_size(out, o->normal);
    else if (o->kind == OPTION_TEXT && o->choices != NULL)
        buf_add_format(out, "`\"%s\"`", o->choices[0]);
    else if (o->kind == OPTION_CHOICE)
        buf_add_format(out, "`\"%s\"`", o->choices[o->normal]);
    else if (o->kind == OPTION_THREADS)
        buf_add_str(out, "`\"auto\"`");
    else if (o->kind == OPTION_BOOL)
        buf_add_str(out, "false");
}

static void describe_table(buf *out, const option_table *table) {
    if (table->title[0] != 0) buf_add_format(out, "\n## `%s`\n\n", table->title);
    buf_add_str(out, "| option | values | default | |\n|---|---|---|---|\n");
    for (size_t i = 0; i < table->n; i++) {
        const option *o = &table->options[i];
        buf_add_format(out, "| `%s` | ", o->name);
        describe_values(out, o);
        buf_add_str(out, " | ");
        describe_default(out, o);
        buf_add_format(out, " | %s |\n", o->about);
    }
    for (size_t i = 0; i < table->n; i++)
        if (table->options[i].table != NULL) describe_table(out, table->options[i].table);
}

void config_describe(buf *out) {
    describe_table(out, &config_table);
}

/* -- questions -- */

/* A model without a name exists only while its configuration is being checked. */
static bool is_name(const char *own, const char *name, size_t n) {
    return own != NULL && strlen(own) == n && memcmp(own, name, n) == 0;
}

int config_find_model(const inferd_config *c, const char *name, size_t n) {
    for (uint32_t i = 0; i < c->n_models; i++) {
        const config_model *m = &c->models[i];
        if (is_name(m->name, name, n)) return (int)i;
        for (uint32_t k = 0; k < m->n_aliases; k++)
            if (is_name(m->aliases[k], name, n)) return (int)i;
    }
    return -1;
}
