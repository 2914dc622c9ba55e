/* config.c - functions that only walk the option tables, and look-ups.  See config_options.h. */
#include <math.h>
#include <string.h>
#include <strings.h>

#include "config_options.h"
#include "nearest.h"

/* -- walking the tables -- */

const option *config_option(const option_table *table, const char *name) {
    for (size_t i = 0; i < table->n; i++)
        if (strcmp(table->options[i].name, name) == 0 ||
            (table->options[i].also != NULL && strcmp(table->options[i].also, name) == 0))
            return &table->options[i];
    return NULL;
}

const option *config_option_meant(const option_table *table, const char *name, bool *spelt) {
    nearest near = {0};
    *spelt = false;
    for (size_t i = 0; i < table->n_meant; i++)
        if (strcmp(table->meant[i].name, name) == 0)
            return config_option(table, table->meant[i].option);
    for (size_t i = 0; i < table->n; i++) nearest_try(&near, name, table->options[i].name);
    const char *best = nearest_word(&near);
    *spelt = best != NULL;
    return best != NULL ? config_option(table, best) : NULL;
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
        case OPTION_U64:
        case OPTION_BYTES64:
        case OPTION_DURATION:
            *(uint64_t *)at = o->normal;
            break;
        case OPTION_REAL:
            *(double *)at = NAN;
            break;
        case OPTION_BOOL:
            *(bool *)at = o->normal != 0;
            break;
        case OPTION_CHOICE:
            *(int *)at = (int)o->normal;
            break;
        case OPTION_OBJECT:
            config_defaults(o->table, at);
            break;
        default:
            break; // absent: NULL, none
        }
    }
}

static uint32_t count_at(const option *o, const void *base) {
    return *(uint32_t *)option_at(base, o->count_offset);
}

/* The UUID lies behind the number (config_device.gpu). */
static char **gpu_uuid(void *gpu) {
    return &((config_gpu *)gpu)->uuid;
}

void config_table_deinit(const option_table *table, void *base) {
    for (size_t i = 0; i < table->n; i++) {
        const option *o = &table->options[i];
        void *at = option_at(base, o->offset);
        if (o->kind == OPTION_TEXT || o->kind == OPTION_PATH || o->kind == OPTION_CORES) {
            free(*(char **)at);
        } else if (o->kind == OPTION_GPU) {
            free(*gpu_uuid(at));
        } else if (o->kind == OPTION_TEXTS) {
            for (uint32_t k = 0; k < count_at(o, base); k++) free((*(char ***)at)[k]);
            free(*(char ***)at);
        } else if (o->kind == OPTION_KEYS) {
            keys_wipe((key_list){at, option_at(base, o->count_offset)});
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
    keys_index_destroy(c); // points into the keys
    config_table_deinit(&config_table, c);
    free(c->source);
    free(c);
}

/* Limits that follow from others.  Constants are those of http_limits_default and
 * json_limits_default. */
void config_derive(config_limits *l) {
    enum {
        BODIES = 2,                // at least this many of the largest at once
        JSON_BYTES_PER_BYTE = 32,  // of a parsed body: a list of numbers has one for each digit
        BYTES_PER_STRUCTURAL = 4,  // fewer only in a body that is mostly brackets
        HEADER_TIMEOUT_MS = 10000, // headers are small, and before them no client is known
        DEVICE_WATCHDOGS = 2,      // the limit of a step, in limits of a loop
        STEP_HANG_MS = 60000       // without a watchdog
    };
    http_limits *h = &l->http, d = http_limits_default;
    d.connections_max = h->connections_max;
    d.body_bytes_max = h->body_bytes_max;
    d.bodies_bytes_max = u64_max(d.bodies_bytes_max, BODIES * h->body_bytes_max);
    d.header_timeout_ms = u32_min(HEADER_TIMEOUT_MS, l->client_timeout_ms);
    d.body_timeout_ms = d.send_stall_ms = l->client_timeout_ms;
    d.heartbeat_ms = l->client_timeout_ms / 2;
    *h = d;
    l->json = json_limits_default;
    l->json.memory_max = u64_max(l->json.memory_max, JSON_BYTES_PER_BYTE * h->body_bytes_max);
    l->json.structural_max =
        u32_max(l->json.structural_max, (uint32_t)(h->body_bytes_max / BYTES_PER_STRUCTURAL));
    l->step_hang_ms = l->watchdog_s == 0 ? STEP_HANG_MS : DEVICE_WATCHDOGS * 1000 * l->watchdog_s;
}

engine_limits config_engine_limits(const inferd_config *c) {
    engine_limits l = c->limits.engine;
    l.urgent_percent = c->policy.urgent_percent;
    l.tpot_ms = c->policy.tpot_ms;
    l.zero_on_tenant_change = c->policy.zero_on_tenant_change;
    return l;
}

sampling_defaults config_sampling(const config_model *c, const sampling_defaults *of_files) {
    sampling_defaults d = *of_files;
    for (sampling_param p = 0; p < SAMPLING_PARAMS; p++)
        sampling_set(&d, p, c->sampling[p], SAMPLING_CONFIG);
    return d;
}

/* -- differences -- */

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

enum { PREFIX_BYTES = 64 }; // "devices[12]."; names of options are short

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
        char prefix[PREFIX_BYTES];
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
        case OPTION_CORES:
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
        case OPTION_GPU:
            differ = ((config_gpu *)at_a)->index != ((config_gpu *)at_b)->index ||
                     !same_text(*gpu_uuid(at_a), *gpu_uuid(at_b));
            break;
        case OPTION_U64:
        case OPTION_BYTES64:
        case OPTION_DURATION:
            differ = *(uint64_t *)at_a != *(uint64_t *)at_b;
            break;
        case OPTION_REAL: // bits: an absent one is NaN
            differ = memcmp(at_a, at_b, sizeof(double)) != 0;
            break;
        case OPTION_OBJECT: {
            char inner[PREFIX_BYTES];
            snprintf(inner, sizeof inner, "%s%s.", prefix, o->name);
            any |= compare_tables(o->table, at_a, at_b, inner, names);
            break;
        }
        case OPTION_LIST:
            any |= compare_lists(o, a, b, names);
            break;
        case OPTION_KEYS:
        case OPTION_KEY_FILE:
        case OPTION_KEY_ENV:
            break; // keys may always change: only digests are stored and looked up
        }
        if (differ) name_changed(names, prefix, o->name);
        any |= differ;
    }
    return any;
}

bool config_needs_restart(const inferd_config *running, const inferd_config *wanted, buf *names) {
    return compare_tables(&config_table, running, wanted, "", names);
}

/* -- description -- */

enum { TABLES_MAX = 32 };

static void describe_size(buf *out, uint64_t n) {
    buf_add_str(out, config_write_size(n).text);
}

static void describe_values(buf *out, const option *o) {
    switch (o->kind) {
    case OPTION_TEXT:
    case OPTION_CHOICE:
        if (o->choices == NULL) buf_add_str(out, "text");
        for (size_t i = 0; o->choices != NULL && o->choices[i] != NULL; i++)
            buf_add_format(out, "%s`\"%s\"`", i > 0 ? ", " : "", o->choices[i]);
        if (o->booleans != NULL)
            buf_add_format(out, "; true: `\"%s\"`, false: `\"%s\"`", o->booleans[true],
                           o->booleans[false]);
        break;
    case OPTION_PATH:
    case OPTION_KEY_FILE:
        buf_add_str(out, "a path");
        break;
    case OPTION_TEXTS:
        buf_add_str(out, "a list of texts");
        break;
    case OPTION_KEYS:
        buf_add_str(out, "text, or a list of texts");
        break;
    case OPTION_GPU:
        buf_add_format(out, "%llu to %llu, or text", (unsigned long long)o->min,
                       (unsigned long long)o->max);
        break;
    case OPTION_KEY_ENV:
        buf_add_str(out, "text");
        break;
    case OPTION_BOOL:
        buf_add_str(out, "true, false");
        break;
    case OPTION_U32:
    case OPTION_U64:
    case OPTION_THREADS:
        buf_add_format(out, "%llu to %llu%s", (unsigned long long)o->min,
                       (unsigned long long)o->max, o->nullable ? ", null" : "");
        break;
    case OPTION_BYTES32:
    case OPTION_BYTES64:
        describe_size(out, o->min);
        buf_add_str(out, " to ");
        describe_size(out, o->max);
        break;
    case OPTION_DURATION:
        buf_add_format(out, "a time up to %d days", CONFIG_DURATION_DAYS_MAX);
        break;
    case OPTION_REAL:
        buf_add_format(out, "%s%.10g to %.10g", o->above_min ? "above " : "", o->real_min,
                       o->real_max);
        break;
    case OPTION_CORES:
        buf_add_str(out, "a list of CPUs, `\"0-3,8\"`");
        break;
    case OPTION_OBJECT:
        buf_add_str(out, "an object");
        if (o->short_for != NULL) buf_add_format(out, ", or a number: its `%s`", o->short_for);
        break;
    case OPTION_LIST:
        buf_add_str(out, "a list of objects");
        break;
    }
}

/* A default outside of the range means that there is none. */
static void describe_default(buf *out, const option *o) {
    bool inside = o->normal >= o->min && o->normal <= o->max;
    if (o->required)
        buf_add_str(out, "required");
    else if (o->nullable)
        buf_add_str(out, "null");
    else if ((o->kind == OPTION_U32 || o->kind == OPTION_U64 || o->kind == OPTION_GPU) && inside)
        buf_add_format(out, "%llu", (unsigned long long)o->normal);
    else if ((o->kind == OPTION_BYTES32 || o->kind == OPTION_BYTES64) && inside)
        describe_size(out, o->normal);
    else if (o->kind == OPTION_TEXT && o->choices != NULL)
        buf_add_format(out, "`\"%s\"`", o->choices[0]);
    else if (o->kind == OPTION_CHOICE)
        buf_add_format(out, "`\"%s\"`", o->choices[o->normal]);
    else if (o->kind == OPTION_THREADS)
        buf_add_str(out, "`\"auto\"`");
    else if (o->kind == OPTION_DURATION && o->normal == POLICY_NEVER)
        buf_add_str(out, "`\"never\"`");
    else if (o->kind == OPTION_DURATION)
        buf_add_format(out, "`\"%lluus\"`", (unsigned long long)o->normal);
    else if (o->kind == OPTION_BOOL)
        buf_add_str(out, o->normal ? "true" : "false");
}

/* Its options, then those of the tables in it; `described` has the tables so far. */
static void describe_table(buf *out, const option_table *table, const option_table **described,
                           size_t *n) {
    for (size_t i = 0; i < *n; i++)
        if (described[i] == table) return; // of several options
    if (table->elsewhere) return;
    INFERD_CHECK(*n < TABLES_MAX);
    described[(*n)++] = table;
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
        if (table->options[i].table != NULL)
            describe_table(out, table->options[i].table, described, n);
}

void config_describe(buf *out) {
    const option_table *described[TABLES_MAX];
    size_t n = 0;
    describe_table(out, &config_table, described, &n);
}

/* -- look-ups -- */

bool config_allows_origin(const inferd_config *c, bytes origin, bool loopback) {
    if (c->cors == NULL) return loopback;
    if (c->n_cors > 0 && loopback) return true;
    for (uint32_t i = 0; i < c->n_cors; i++) {
        const char *allowed = c->cors[i];
        if (strcmp(allowed, "*") == 0) return true;
        if (strlen(allowed) == origin.n && strncasecmp(allowed, origin.p, origin.n) == 0)
            return true;
    }
    return false;
}

/* A model has no name only while its configuration is being checked. */
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
