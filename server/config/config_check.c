/* config_check.c - rules for more than one member: one sentence each, with the numbers.
 *
 * Rules for one object come first (`settle`, called by the reader for objects without problems),
 * then rules for the whole.  The latter also run over a configuration that had problems when it was
 * read; invalid values are absent there. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "config_options.h"
#include "devices.h"
#include "fleet.h"
#include "http.h"
#include "tracer.h"

typedef unsigned long long ull;

enum { DEVICE_PERCENT = 100 }; // a share of a whole device

/* -- one object -- */

/* "120", or "120.50" if the division has a remainder: hundredths, truncated. */
static void write_quotient(char out[16], uint32_t a, uint32_t b) {
    uint32_t hundredths = (uint32_t)((uint64_t)a % b * 100 / b);
    if (a % b == 0)
        snprintf(out, 16, "%u", a / b);
    else
        snprintf(out, 16, "%u.%02u", a / b, hundredths);
}

void config_settle_share(void *base, const json_t *v, config_report *r,
                         const config_location *location) {
    share_spec *s = base;
    config_location percent = {.parent = location, .name = "percent"};
    bool some = s->percent > 0;
    if (json_object_get(v, "policy") == NULL) s->policy = some ? SHARE_BURST : SHARE_BESTEFFORT;
    if (s->policy == SHARE_BESTEFFORT && some)
        config_problem(r, &percent,
                       "%u percent for \"besteffort\", which guarantees none: leave it out, or use "
                       "\"burst\" or \"fixed\"",
                       s->percent);
    if (s->policy != SHARE_BESTEFFORT && !some)
        config_problem(r, &percent, "is required for policy \"%s\"",
                       s->policy == SHARE_FIXED ? "fixed" : "burst");
    if (s->percent > DEVICE_PERCENT * s->n_devices) {
        char each[16];
        write_quotient(each, s->percent, s->n_devices);
        config_problem(r, &percent, "%u percent on %u device%s is %s on each, a device has %d",
                       s->percent, s->n_devices, s->n_devices == 1 ? "" : "s", each,
                       DEVICE_PERCENT);
    }
    if (s->percent % s->n_devices != 0)
        config_problem(r, &percent, "%u percent do not divide by %u devices: %u would be left over",
                       s->percent, s->n_devices, s->percent % s->n_devices);
}

void config_settle_replicas(void *base, const json_t *v, config_report *r,
                            const config_location *location) {
    model_policy *p = base;
    config_location min = {.parent = location, .name = "min"};
    if (json_object_get(v, "max") == NULL) p->replicas_max = u32_max(p->replicas_min, 1);
    if (p->replicas_min > p->replicas_max)
        config_problem(r, &min, "%u is more than max (%u)", p->replicas_min, p->replicas_max);
}

static void check_memory(uint64_t min_bytes, uint64_t max_bytes, config_report *r,
                         const config_location *location) {
    config_location min = {.parent = location, .name = "min"};
    if (max_bytes != 0 && min_bytes > max_bytes)
        config_problem(r, &min, "%s is more than max (%s)", config_write_size(min_bytes).text,
                       config_write_size(max_bytes).text);
}

void config_settle_model(void *base, const json_t *v, config_report *r,
                         const config_location *location) {
    const config_model *m = base;
    (void)v;
    check_memory(m->policy.min_bytes, m->policy.max_bytes, r, location);
}

void config_settle_tenant(void *base, const json_t *v, config_report *r,
                          const config_location *location) {
    config_tenant *t = base;
    t->max_class_given = json_object_get(v, "max_class") != NULL;
    t->policy.max_class = t->max_class;
    check_memory(t->policy.min_bytes, t->policy.max_bytes, r, location);
}

/* -- names -- */

typedef struct named {
    const char *name;
    config_location location; // models[i] or tenants[i]
} named;

static int by_name(const void *a, const void *b) {
    const named *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    if (order != 0) return order;
    return x->location.index < y->location.index ? -1 : x->location.index > y->location.index;
}

/* Sorted, so that equal names are neighbours: the start must be fast with ten thousand tenants. */
static void check_unique(named *all, size_t n, config_report *r) {
    if (n > 1) qsort(all, n, sizeof all[0], by_name);
    for (size_t i = 1; i < n; i++)
        if (strcmp(all[i - 1].name, all[i].name) == 0)
            config_problem(r, &all[i].location, "the name \"%s\" is already used by %s[%zu]",
                           all[i].name, all[i - 1].location.parent->name,
                           all[i - 1].location.index);
}

static void no_memory(config_report *r) {
    config_problem(r, NULL, "no memory to check the configuration");
}

static void check_model_names(const inferd_config *c, config_report *r) {
    config_location models = {.name = "models"};
    size_t n = 0, n_all = c->n_models;
    for (uint32_t i = 0; i < c->n_models; i++) n_all += c->models[i].n_aliases;
    named *all = calloc(n_all + 1, sizeof all[0]);
    if (all == NULL) {
        no_memory(r);
        return;
    }
    for (uint32_t i = 0; i < c->n_models; i++) {
        config_location at = {.parent = &models, .index = i};
        if (c->models[i].name != NULL) all[n++] = (named){c->models[i].name, at};
        for (uint32_t k = 0; k < c->models[i].n_aliases; k++)
            all[n++] = (named){c->models[i].aliases[k], at};
    }
    check_unique(all, n, r);
    free(all);
}

static void check_tenant_names(const inferd_config *c, config_report *r) {
    config_location tenants = {.name = "tenants"};
    size_t n = 0;
    named *all = calloc((size_t)c->n_tenants + 1, sizeof all[0]);
    if (all == NULL) {
        no_memory(r);
        return;
    }
    for (uint32_t i = 0; i < c->n_tenants; i++)
        if (c->tenants[i].name != NULL)
            all[n++] = (named){c->tenants[i].name, {.parent = &tenants, .index = i}};
    check_unique(all, n, r);
    free(all);
}

/* -- parts -- */

static void check_tenant(const inferd_config *c, uint32_t i, bool whole, config_report *r) {
    const config_tenant *t = &c->tenants[i];
    config_location tenants = {.name = "tenants"}, at = {.parent = &tenants, .index = i};
    config_location models = {.parent = &at, .name = "models"};
    if (t->n_keys == 0 && whole)
        config_problem(r, &at, "has no key: give key, key_file or key_env");
    if (t->models != NULL && t->n_models == 0)
        config_problem(r, &models, "must not be empty: leave it out to allow all models");
    for (uint32_t k = 0; k < t->n_models; k++) {
        config_location wanted = {.parent = &models, .index = k};
        if (config_find_model(c, t->models[k], strlen(t->models[k])) < 0)
            config_problem(r, &wanted, "there is no model \"%s\"", t->models[k]);
    }
}

static void check_listen(const inferd_config *c, config_report *r) {
    config_location at = {.name = "listen"};
    inferd_err err;
    if (http_check_listen(c->listen, c->n_tenants == 0, &err) != INFERD_OK)
        config_problem(r, &at, "%s", err.text);
}

/* SCHEME://HOST or SCHEME://HOST:PORT, as browsers write it. */
static bool is_origin(const char *text) {
    const char *host = strstr(text, "://");
    if (host == NULL || host == text) return false;
    host += 3;
    return *host != 0 && strpbrk(host, "/?#@ *") == NULL;
}

static void check_cors(const inferd_config *c, config_report *r) {
    config_location cors = {.name = "cors"};
    for (uint32_t i = 0; i < c->n_cors; i++) {
        config_location at = {.parent = &cors, .index = i};
        if (strcmp(c->cors[i], "*") == 0) {
            if (c->n_tenants == 0)
                config_problem(r, &at, "any web page could use this server: \"*\" needs keys");
        } else if (strcmp(c->cors[i], "null") != 0 && !is_origin(c->cors[i])) {
            config_problem(r, &at,
                           "is not an origin: write \"https://HOST\" or \"https://HOST:PORT\", "
                           "without a path, or \"*\"");
        }
    }
}

static void check_admin(const inferd_config *c, bool whole, config_report *r) {
    config_location admin = {.name = "admin"}, at = {.parent = &admin, .name = "listen"};
    const char *listen = c->admin.listen;
    config_location page = {.parent = &admin, .name = "page"};
    inferd_err err;
    if (c->admin.page && c->admin.n_keys == 0 && whole)
        config_problem(r, &page, "needs a key: set admin.keys, admin.key_file or admin.key_env");
    if (listen == NULL || strcmp(listen, "none") == 0) return;
    if (strncmp(listen, "unix:", 5) != 0)
        config_problem(r, &at,
                       "must be unix:PATH or none: the permissions of that file control access");
    else if (http_check_listen(listen, true, &err) != INFERD_OK)
        config_problem(r, &at, "%s", err.text);
    else if (strcmp(listen, c->listen) == 0)
        config_problem(r, &at, "is the same as listen");
}

/* A limit of 0 needs no counting either. */
static bool is_counted(uint64_t tokens) {
    return tokens > 0 && tokens != CONFIG_NO_LIMIT;
}

/* Without state_dir the counts are lost at a restart. */
static void check_state(const inferd_config *c, bool whole, config_report *r) {
    config_location tenants = {.name = "tenants"}, kv_disk = {.name = "kv_disk"};
    if (c->state_dir != NULL || !whole) return;
    if (c->kv_disk_bytes > 0)
        config_problem(r, &kv_disk, "%s need state_dir, the folder that has them in its folder kv",
                       config_write_size(c->kv_disk_bytes).text);
    for (uint32_t i = 0; i < c->n_tenants; i++) {
        const config_tenant_limits *l = &c->tenants[i].limits;
        config_location tenant = {.parent = &tenants, .index = i};
        config_location limits = {.parent = &tenant, .name = "limits"};
        bool daily = is_counted(l->tokens_per_day);
        config_location at = {.parent = &limits,
                              .name = daily ? "tokens_per_day" : "tokens_per_month"};
        if (!daily && !is_counted(l->tokens_per_month)) continue;
        config_problem(r, &at,
                       "%llu tokens need state_dir, a folder that keeps the counts over restarts",
                       (ull)(daily ? l->tokens_per_day : l->tokens_per_month));
        return; // report one: state_dir is a single setting
    }
}

static void check_counts(const inferd_config *c, bool whole, config_report *r) {
    config_location devices = {.name = "devices"};
    if (c->n_devices == 0 && whole)
        config_problem(r, &devices, "must not be empty: leave it out for one device of kind auto");
}

/* a must not exceed b. */
static void check_order(config_report *r, const char *a_name, uint64_t a, const char *b_name,
                        uint64_t b, const char *why) {
    config_location limits = {.name = "limits"}, at = {.parent = &limits, .name = a_name};
    if (a > b)
        config_problem(r, &at, "%llu is more than %s (%llu): %s", (unsigned long long)a, b_name,
                       (unsigned long long)b, why);
}

static void check_limits(const config_limits *l, config_report *r) {
    if (l->engine.step_tokens_max != 0)
        check_order(r, "running_max", l->engine.running_max, "step_tokens_max",
                    l->engine.step_tokens_max, "each running sequence needs one token of a step");
    check_order(r, "queue_timeout_ms", l->queue_timeout_ms, "total_timeout_ms", l->total_timeout_ms,
                "the time in the queue is part of the total");
}

/* -- devices -- */

static bool is_kind(const config_device *d, const char *kind) {
    return strcmp(d->kind != NULL ? d->kind : "auto", kind) == 0;
}

/* Integer and 32-bit keys and values, and speculative decoding, exist on the CPU only; with "auto"
 * the device reports it when it is opened. */
static void check_gpu_limits(const inferd_config *c, uint32_t i, config_report *r) {
    config_location limits = {.name = "limits"}, at = {.parent = &limits, .name = "kv_type"};
    kv_type type = c->limits.engine.kv;
    if (type == KV_F32 || type == KV_I8 || type == KV_I16)
        config_problem(r, &at,
                       "\"%s\" cannot be stored on a GPU (devices[%u].kind is \"cuda\"): "
                       "\"f16\" or \"bf16\"",
                       type == KV_F32  ? "f32"
                       : type == KV_I8 ? "int8"
                                       : "int16",
                       i);
    at.name = "draft_tokens";
    if (c->limits.engine.draft_tokens > 0)
        config_problem(r, &at,
                       "draft tokens exist on a CPU only (devices[%u].kind is \"cuda\"): set 0", i);
}

static void check_device(const inferd_config *c, uint32_t i, bool whole, config_report *r) {
    const config_device *d = &c->devices[i];
    config_location devices = {.name = "devices"}, device = {.parent = &devices, .index = i};
    config_location kind = {.parent = &device, .name = "kind"};
    config_location cores = {.parent = &device, .name = "cores"};
    if (is_kind(d, "cuda")) {
        check_gpu_limits(c, i, r);
        if (d->cores != NULL)
            config_problem(r, &cores, "%s are CPUs, and the kind is \"cuda\": leave it out",
                           d->cores);
    }
    /* Two devices of the kind "auto" could be the same device. */
    if (c->n_devices > 1 && is_kind(d, "auto") && whole)
        config_problem(r, &kind, "must be \"cpu\" or \"cuda\" where there are %u devices",
                       c->n_devices);
}

static void check_two_cpus(const inferd_config *c, uint32_t first, uint32_t second, bool whole,
                           config_report *r) {
    const char *a = c->devices[first].cores, *b = c->devices[second].cores;
    config_location devices = {.name = "devices"};
    config_location at = {.parent = &devices, .index = b == NULL || a != NULL ? second : first};
    config_location cores = {.parent = &at, .name = "cores"};
    uint64_t set_a[CONFIG_CORES_MAX / 64], set_b[CONFIG_CORES_MAX / 64];
    if (a == NULL || b == NULL) {
        if (whole)
            config_problem(r, &cores,
                           "is required: devices[%u] and devices[%u] are both CPUs, and each needs "
                           "its own",
                           first, second);
        return;
    }
    if (!config_read_cores(a, set_a) || !config_read_cores(b, set_b)) return; // reported when read
    for (uint32_t i = 0; i < CONFIG_CORES_MAX; i++) {
        if ((set_a[i / 64] & set_b[i / 64] & 1ull << i % 64) == 0) continue;
        config_problem(r, &cores, "%s: CPU %u is also in devices[%u].cores (%s)", b, i, first, a);
        return;
    }
}

/* A prefix of the UUID is enough; an index and a UUID are compared when they are opened. */
static void check_two_gpus(const inferd_config *c, uint32_t first, uint32_t second,
                           config_report *r) {
    const config_gpu *a = &c->devices[first].gpu, *b = &c->devices[second].gpu;
    config_location devices = {.name = "devices"}, at = {.parent = &devices, .index = second};
    config_location gpu = {.parent = &at, .name = "gpu"};
    if (a->uuid == NULL && b->uuid == NULL && a->index == b->index)
        config_problem(r, &gpu, "%u is also devices[%u]: each GPU may appear once", b->index,
                       first);
    if (a->uuid != NULL && b->uuid != NULL &&
        strncasecmp(a->uuid, b->uuid, size_min(strlen(a->uuid), strlen(b->uuid))) == 0)
        config_problem(r, &gpu, "\"%s\" is also devices[%u] (\"%s\"): each GPU may appear once",
                       b->uuid, first, a->uuid);
}

static bool is_instance(const config_gpu *d) {
    return d->uuid != NULL && strncasecmp(d->uuid, "MIG-", 4) == 0;
}

/* CUDA shows a process either one MIG instance or whole GPUs. */
static void check_instances(const inferd_config *c, uint32_t first, uint32_t second,
                            config_report *r) {
    const config_gpu *a = &c->devices[first].gpu, *b = &c->devices[second].gpu;
    config_location devices = {.name = "devices"}, at = {.parent = &devices, .index = second};
    if (is_instance(a) && is_instance(b))
        config_problem(r, &at,
                       "\"%s\" and devices[%u] (\"%s\") are MIG instances, of which CUDA shows one "
                       "to a process: run one inferd for each",
                       b->uuid, first, a->uuid);
    else if (is_instance(a) || is_instance(b))
        config_problem(
            r, &at,
            "a MIG instance (\"%s\") and a whole GPU (devices[%u]): CUDA shows a process "
            "only one of the two: run one inferd for each",
            is_instance(a) ? a->uuid : b->uuid, is_instance(a) ? second : first);
}

/* Each device is reported once, with the first it conflicts with. */
static void check_device_pairs(const inferd_config *c, bool whole, config_report *r) {
    for (uint32_t i = 1; i < c->n_devices; i++) {
        uint32_t before = r->n;
        for (uint32_t k = 0; k < i && r->n == before; k++) {
            const config_device *a = &c->devices[k], *b = &c->devices[i];
            if (is_kind(a, "cpu") && is_kind(b, "cpu")) check_two_cpus(c, k, i, whole, r);
            if (!is_kind(a, "cuda") || !is_kind(b, "cuda") || !whole) continue;
            check_two_gpus(c, k, i, r);
            if (r->n == before) check_instances(c, k, i, r);
        }
    }
}

static void check_device_names(const inferd_config *c, config_report *r) {
    config_location devices = {.name = "devices"};
    named all[CONFIG_DEVICES_MAX];
    size_t n = 0;
    for (uint32_t i = 0; i < c->n_devices; i++)
        if (c->devices[i].name != NULL)
            all[n++] = (named){c->devices[i].name, {.parent = &devices, .index = i}};
    check_unique(all, n, r);
}

/* -- guarantees, and the memory and time for them -- */

/* Models and tenants have the same guarantees; each kind of owner may have all of the devices. */
typedef struct owners {
    const char *name; // "models", "tenants"
    uint32_t n;
} owners;

static bool are_models(const owners *o) {
    return strcmp(o->name, "models") == 0;
}

static uint64_t min_of(const inferd_config *c, const owners *o, uint32_t i) {
    return are_models(o) ? c->models[i].policy.min_bytes : c->tenants[i].policy.min_bytes;
}

static const share_spec *share_of(const inferd_config *c, const owners *o, uint32_t i) {
    return are_models(o) ? &c->models[i].policy.share : &c->tenants[i].policy.share;
}

/* 0: not known until the device is open. */
static uint64_t memory_of(const config_device *d) {
    return d->memory_bytes == 0 && is_kind(d, "cpu") ? CPU_MEMORY_BYTES : d->memory_bytes;
}

/* Bytes for guarantees, in whole pages; 0: not known yet, or invalid. */
static uint64_t device_room(const config_device *d) {
    return memory_of(d) - memory_of(d) % FLEET_PAGE_BYTES;
}

/* A guarantee is rounded up to whole pages. */
static uint64_t in_pages(uint64_t n_bytes) {
    return (n_bytes + FLEET_PAGE_BYTES - 1) / FLEET_PAGE_BYTES * FLEET_PAGE_BYTES;
}

/* For a model the sum of its parts, each on its own device; a tenant's guarantee has no parts. */
static uint64_t min_in_pages(const inferd_config *c, const owners *o, uint32_t i) {
    uint64_t sum = 0;
    if (!are_models(o)) return c->tenants[i].policy.min_bytes;
    const model_policy *p = &c->models[i].policy;
    for (uint32_t k = 0; k < fleet_n_parts(p); k++) sum += in_pages(fleet_part_of(p, k).min_bytes);
    return sum;
}

/* Only if it makes a difference. */
static const char *say_pages(bool rounded) {
    _Static_assert(FLEET_PAGE_BYTES == 2 << 20, "the text below says 2MiB");
    return rounded ? " in pages of 2MiB" : "";
}

/* Sums of 2^46 bytes and of 2^13 percent over 10^5 owners fit 64 bits.  The culprit is the first
 * owner with which the sum is too large. */
static void check_sum_of_min(const inferd_config *c, const owners *o, config_report *r) {
    uint64_t room = 0, sum = 0;
    bool rounded = false;
    uint32_t culprit = UINT32_MAX;
    for (uint32_t i = 0; i < c->n_devices; i++) {
        const config_device *d = &c->devices[i];
        if (memory_of(d) == 0) return; // not known yet
        room += device_room(d);
        rounded = rounded || device_room(d) != memory_of(d);
    }
    if (c->n_devices == 0) return;
    for (uint32_t i = 0; i < o->n; i++) {
        uint64_t its = min_in_pages(c, o, i);
        rounded = rounded || its != min_of(c, o, i);
        sum += its;
        if (sum > room && culprit == UINT32_MAX) culprit = i;
    }
    if (culprit == UINT32_MAX) return;
    config_location all = {.name = o->name}, one = {.parent = &all, .index = culprit};
    config_location at = {.parent = &one, .name = "min"};
    config_problem(r, &at, "the %s' min together are %s%s, the devices have %s", o->name,
                   config_write_size(sum).text, say_pages(rounded), config_write_size(room).text);
}

static void check_sum_of_shares(const inferd_config *c, const owners *o, config_report *r) {
    uint64_t sum = 0, most = (uint64_t)DEVICE_PERCENT * c->n_devices;
    uint32_t culprit = UINT32_MAX;
    for (uint32_t i = 0; i < o->n; i++) {
        sum += share_of(c, o, i)->percent;
        if (sum > most && culprit == UINT32_MAX) culprit = i;
    }
    if (culprit == UINT32_MAX || c->n_devices == 0) return;
    const share_spec *too_much = share_of(c, o, culprit);
    if (too_much->percent > DEVICE_PERCENT * too_much->n_devices) return; // reported when read
    config_location all = {.name = o->name}, one = {.parent = &all, .index = culprit};
    config_location share = {.parent = &one, .name = "share"};
    config_location at = {.parent = &share, .name = "percent"};
    config_problem(r, &at, "the %s' shares together are %llu percent, %u device%s %llu", o->name,
                   (ull)sum, c->n_devices, c->n_devices == 1 ? " has" : "s have", (ull)most);
}

static void check_share_devices(const inferd_config *c, const owners *o, config_report *r) {
    config_location all = {.name = o->name};
    for (uint32_t i = 0; i < o->n; i++) {
        config_location one = {.parent = &all, .index = i};
        config_location share = {.parent = &one, .name = "share"};
        config_location at = {.parent = &share, .name = "devices"};
        if (share_of(c, o, i)->n_devices > c->n_devices && c->n_devices > 0)
            config_problem(r, &at, "a share on %u devices, and %u %s configured",
                           share_of(c, o, i)->n_devices, c->n_devices,
                           c->n_devices == 1 ? "is" : "are");
    }
}

/* `max` is a bound: above the number of devices it counts as that number, which is no problem. */
static void check_replicas(const inferd_config *c, uint32_t i, config_report *r) {
    uint32_t min = c->models[i].policy.replicas_min;
    config_location models = {.name = "models"}, at_model = {.parent = &models, .index = i};
    config_location replicas = {.parent = &at_model, .name = "replicas"};
    config_location at = {.parent = &replicas, .name = "min"};
    if (c->n_devices > 0 && min > c->n_devices)
        config_problem(r, &at, "%u replicas on different devices, and %u %s configured", min,
                       c->n_devices, c->n_devices == 1 ? "is" : "are");
}

/* One part of a model's guarantee, of memory or of time, which must be on one device. */
typedef struct min_part {
    uint64_t n_bytes; // whole pages; for time: percent
    uint32_t model;
    bool rounded;
} min_part;

static int largest_first(const void *a, const void *b) {
    const min_part *x = a, *y = b;
    if (x->n_bytes != y->n_bytes) return x->n_bytes > y->n_bytes ? -1 : 1;
    return x->model < y->model ? -1 : x->model > y->model;
}

static bool is_tighter(const uint64_t *rooms, uint32_t a, uint32_t b) {
    return rooms[a] < rooms[b] || (rooms[a] == rooms[b] && a < b);
}

/* The tightest device that has enough, has no part of the same model, and comes after `last`
 * (UINT32_MAX: any) in the order of tightness. */
static uint32_t next_placement(const inferd_config *c, const uint64_t *rooms, const bool *has,
                               uint64_t n_bytes, uint32_t last) {
    uint32_t best = UINT32_MAX;
    for (uint32_t d = 0; d < c->n_devices; d++) {
        if (rooms[d] < n_bytes || has[d]) continue;
        if (last != UINT32_MAX && !is_tighter(rooms, last, d)) continue;
        if (best == UINT32_MAX || is_tighter(rooms, d, best)) best = d;
    }
    return best;
}

/* A search for devices for all parts. */
typedef struct min_search {
    bool of_time; // of shares; else of memory
    uint64_t rooms[CONFIG_DEVICES_MAX];
    min_part *parts;                 // [n] the largest first; owned, like the next two
    bool (*has)[CONFIG_DEVICES_MAX]; // [n_models]
    uint32_t *at;                    // [n] device, or UINT32_MAX
    uint32_t n;
    uint32_t missed;       // the first part without a device; UINT32_MAX: none
    uint64_t missed_bytes; // the most that a device had left for it
} min_search;

static void note_miss(const inferd_config *c, min_search *s, uint32_t i) {
    const bool *has = s->has[s->parts[i].model];
    if (s->missed != UINT32_MAX) return;
    s->missed = i;
    for (uint32_t d = 0; d < c->n_devices; d++)
        if (!has[d] && s->rooms[d] > s->missed_bytes) s->missed_bytes = s->rooms[d];
}

/* Backtracking: each part goes to the tightest device; if none is left, the part before it moves to
 * its next one.  False: no assignment fits.  After MIN_STEPS_MAX the result is unknown and true: a
 * model that does not fit is reported when it is placed. */
static bool find_placements(const inferd_config *c, min_search *s) {
    enum { MIN_STEPS_MAX = 100000 };
    uint32_t i = 0;
    for (uint32_t n_steps = 0; i < s->n && n_steps < MIN_STEPS_MAX; n_steps++) {
        const min_part *p = &s->parts[i];
        bool *has = s->has[p->model];
        uint32_t last = s->at[i];
        if (last != UINT32_MAX) {
            s->rooms[last] += p->n_bytes;
            has[last] = false;
        }
        uint32_t d = s->at[i] = next_placement(c, s->rooms, has, p->n_bytes, last);
        if (d != UINT32_MAX) {
            s->rooms[d] -= p->n_bytes;
            has[d] = true;
            i++;
            continue;
        }
        note_miss(c, s, i);
        if (i-- == 0) return false;
    }
    return true;
}

static void say_missed(const min_search *s, config_report *r) {
    const min_part *p = &s->parts[s->missed];
    config_location models = {.name = "models"}, its = {.parent = &models, .index = p->model};
    config_location share = {.parent = &its, .name = "share"};
    config_location at = {.parent = s->of_time ? &share : &its,
                          .name = s->of_time ? "percent" : "min"};
    if (s->of_time) {
        config_problem(r, &at,
                       "%llu percent of it must fit on one device; beside larger shares one has at "
                       "most %llu percent",
                       (unsigned long long)p->n_bytes, (unsigned long long)s->missed_bytes);
        return;
    }
    config_problem(r, &at,
                   "%s of it%s must fit on one device; beside larger guarantees one has at most %s",
                   config_write_size(p->n_bytes).text, say_pages(p->rounded),
                   config_write_size(s->missed_bytes).text);
}

/* The guarantee of the k-th part; 0: none. */
static min_part part_of(const inferd_config *c, uint32_t i, uint32_t k, bool of_time) {
    model_policy p = fleet_part_of(&c->models[i].policy, k);
    bool shared = p.share.policy != SHARE_BESTEFFORT && p.share.percent <= DEVICE_PERCENT;
    /* A share of more than 100 percent of a device was reported when read. */
    if (of_time) return (min_part){shared ? p.share.percent : 0, i, false};
    uint64_t whole = in_pages(p.min_bytes);
    return (min_part){whole, i, whole != p.min_bytes};
}

/* The sum may fit where single guarantees do not. */
static void check_placements(const inferd_config *c, bool of_time, config_report *r) {
    min_search s = {.of_time = of_time, .missed = UINT32_MAX};
    for (uint32_t d = 0; d < c->n_devices; d++) {
        s.rooms[d] = of_time ? DEVICE_PERCENT : device_room(&c->devices[d]);
        if (s.rooms[d] == 0) return; // not known yet
    }
    size_t n_most = (size_t)c->n_models * CONFIG_DEVICES_MAX + 1;
    s.parts = calloc(n_most, sizeof *s.parts);
    s.at = calloc(n_most, sizeof *s.at);
    s.has = calloc((size_t)c->n_models + 1, sizeof *s.has);
    bool fine = s.parts != NULL && s.at != NULL && s.has != NULL;
    for (uint32_t i = 0; i < c->n_models && fine; i++) {
        const model_policy *p = &c->models[i].policy;
        uint32_t n_parts = u32_min(fleet_n_parts(p), c->n_devices);
        for (uint32_t k = 0; k < n_parts; k++) {
            min_part part = part_of(c, i, k, of_time);
            if (k == 0 && part.n_bytes == 0) break; // the first is the largest
            s.at[s.n] = UINT32_MAX;
            s.parts[s.n++] = part;
        }
    }
    if (!fine) no_memory(r);
    if (s.n > 1) qsort(s.parts, s.n, sizeof *s.parts, largest_first);
    if (fine && !find_placements(c, &s)) say_missed(&s, r);
    free(s.parts);
    free(s.at);
    free(s.has);
}

static void check_guarantees(const inferd_config *c, config_report *r) {
    uint32_t before = r->n;
    const owners both[] = {{"models", c->n_models}, {"tenants", c->n_tenants}};
    for (size_t i = 0; i < INFERD_COUNT(both); i++) {
        check_sum_of_min(c, &both[i], r);
        check_sum_of_shares(c, &both[i], r);
        check_share_devices(c, &both[i], r);
    }
    for (uint32_t i = 0; i < c->n_models; i++) check_replicas(c, i, r);
    if (r->n != before) return;
    check_placements(c, false, r);
    check_placements(c, true, r);
}

/* The file is read again when the traces begin: here its problems are told with all others. */
static void check_tracing(const config_tracing *t, config_report *r) {
    config_location base = {NULL, "tracing", 0};
    config_location endpoint = {&base, "endpoint", 0}, file = {&base, "headers_file", 0};
    inferd_err err = {0};
    if (t->endpoint != NULL && !tracer_check_endpoint(t->endpoint, &err))
        config_problem(r, &endpoint, "%s", err.text);
    if (t->headers_file != NULL && !tracer_check_headers(t->headers_file, &err))
        config_problem(r, &file, "%s", err.text);
}

void config_check_all(const inferd_config *c, config_report *r) {
    bool whole = r->n == 0; // otherwise a key may be missing because it was refused
    check_listen(c, r);
    check_counts(c, whole, r);
    check_model_names(c, r);
    check_tenant_names(c, r);
    for (uint32_t i = 0; i < c->n_tenants; i++) check_tenant(c, i, whole, r);
    check_admin(c, whole, r);
    check_cors(c, r);
    check_state(c, whole, r);
    for (uint32_t i = 0; i < c->n_devices; i++) check_device(c, i, whole, r);
    check_device_names(c, r);
    check_device_pairs(c, whole, r);
    check_guarantees(c, r);
    check_limits(&c->limits, r);
    check_tracing(&c->tracing, r);
}

bool config_check(const inferd_config *c, buf *problems) {
    config_report r = {.problems = problems, .source = c->source};
    config_check_all(c, &r);
    return r.n == 0;
}
