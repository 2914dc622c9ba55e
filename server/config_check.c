/* config_check.c - rules that need the whole configuration: one sentence each, with the numbers.
 *
 * They also run over one that had problems when it was read, so what was wrong there is absent. */
#include <string.h>

#include "config_options.h"

/* -- names -- */

typedef struct named {
    const char *name;
    config_place place; // models[i] or tenants[i]
} named;

static int by_name(const void *a, const void *b) {
    const named *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    if (order != 0) return order;
    return x->place.index < y->place.index ? -1 : x->place.index > y->place.index;
}

/* Sorted, equal names are neighbours: ten thousand tenants are no reason for a slow start. */
static void check_unique(named *all, size_t n, config_report *r) {
    if (n > 1) qsort(all, n, sizeof all[0], by_name);
    for (size_t i = 1; i < n; i++)
        if (strcmp(all[i - 1].name, all[i].name) == 0)
            config_problem(r, &all[i].place, "the name \"%s\" is taken by %s[%zu]", all[i].name,
                           all[i - 1].place.parent->name, all[i - 1].place.index);
}

static void no_memory(config_report *r) {
    config_problem(r, NULL, "no memory to check the configuration");
}

static void check_model_names(const inferd_config *c, config_report *r) {
    config_place models = {.name = "models"};
    size_t n = 0, n_all = c->n_models;
    for (uint32_t i = 0; i < c->n_models; i++) n_all += c->models[i].n_aliases;
    named *all = calloc(n_all + 1, sizeof all[0]);
    if (all == NULL) {
        no_memory(r);
        return;
    }
    for (uint32_t i = 0; i < c->n_models; i++) {
        config_place at = {.parent = &models, .index = i};
        if (c->models[i].name != NULL) all[n++] = (named){c->models[i].name, at};
        for (uint32_t k = 0; k < c->models[i].n_aliases; k++)
            all[n++] = (named){c->models[i].aliases[k], at};
    }
    check_unique(all, n, r);
    free(all);
}

static void check_tenant_names(const inferd_config *c, config_report *r) {
    config_place tenants = {.name = "tenants"};
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
    config_place tenants = {.name = "tenants"}, at = {.parent = &tenants, .index = i};
    config_place models = {.parent = &at, .name = "models"};
    if (t->n_keys == 0 && whole)
        config_problem(r, &at, "has no key: give keys, key_file or key_env");
    if (t->models != NULL && t->n_models == 0)
        config_problem(r, &models, "must not be empty: leave it out to allow all models");
    for (uint32_t k = 0; k < t->n_models; k++) {
        config_place wanted = {.parent = &models, .index = k};
        if (config_find_model(c, t->models[k], strlen(t->models[k])) < 0)
            config_problem(r, &wanted, "there is no model \"%s\"", t->models[k]);
    }
}

static void check_listen(const inferd_config *c, config_report *r) {
    config_place at = {.name = "listen"};
    inferd_err err;
    if (http_check_listen(c->listen, c->n_tenants == 0, &err) != INFERD_OK)
        config_problem(r, &at, "%s", err.text);
}

/* What this version can do with what the format can say. */
static void check_counts(const inferd_config *c, bool whole, config_report *r) {
    config_place devices = {.name = "devices"}, models = {.name = "models"};
    if (c->n_devices != 1)
        config_problem(r, &devices, "this version computes on one device; %u are configured",
                       c->n_devices);
    if (c->n_models > 1 || (c->n_models == 0 && whole))
        config_problem(r, &models, "this version serves one model; %u are configured", c->n_models);
}

/* a must not exceed b. */
static void check_order(config_report *r, const char *a_name, uint64_t a, const char *b_name,
                        uint64_t b, const char *why) {
    config_place limits = {.name = "limits"}, at = {.parent = &limits, .name = a_name};
    if (a > b)
        config_problem(r, &at, "%llu is more than %s (%llu): %s", (unsigned long long)a, b_name,
                       (unsigned long long)b, why);
}

static void check_limits(const config_limits *l, config_report *r) {
    check_order(r, "body_bytes_max", l->http.body_bytes_max, "bodies_bytes_max",
                l->http.bodies_bytes_max, "such a body could never be held");
    check_order(r, "body_bytes_max", l->http.body_bytes_max, "json_memory_max", l->json.memory_max,
                "such a body could never be parsed");
    check_order(r, "stream_soft_bytes", l->http.stream_soft_bytes, "stream_hard_bytes",
                l->http.stream_hard_bytes, "a stream would be cut before it is paused");
    check_order(r, "decode_step_ms", l->engine.decode_step_ms, "step_max_ms", l->engine.step_max_ms,
                "no step is longer than that");
    check_order(r, "running_max", l->engine.running_max, "step_tokens_max",
                l->engine.step_tokens_max, "each running sequence needs one token of a step");
    check_order(r, "queue_timeout_ms", l->queue_timeout_ms, "total_timeout_ms", l->total_timeout_ms,
                "waiting is part of the whole");
}

/* Keys and values of 32 bits and of 8, and guessed tokens, exist on the CPU only; with "auto" the
 * device says so when it is opened. */
static void check_device(const inferd_config *c, uint32_t i, config_report *r) {
    const char *kind = c->devices[i].kind;
    config_place limits = {.name = "limits"}, at = {.parent = &limits, .name = "kv_type"};
    kv_type type = c->limits.engine.kv;
    if (kind != NULL && strcmp(kind, "cuda") == 0 && (type == KV_F32 || type == KV_I8))
        config_problem(r, &at,
                       "\"%s\" cannot be stored on a GPU (devices[%u].kind is \"cuda\"): "
                       "\"f16\" or \"bf16\"",
                       type == KV_F32 ? "f32" : "int8", i);
    at.name = "draft_tokens";
    if (kind != NULL && strcmp(kind, "cuda") == 0 && c->limits.engine.draft_tokens > 0)
        config_problem(
            r, &at, "tokens are guessed ahead on a CPU only (devices[%u].kind is \"cuda\"): 0", i);
}

void config_check_all(const inferd_config *c, config_report *r) {
    bool whole = r->n == 0; // else a key may be missing because it was refused
    check_listen(c, r);
    check_counts(c, whole, r);
    check_model_names(c, r);
    check_tenant_names(c, r);
    for (uint32_t i = 0; i < c->n_tenants; i++) check_tenant(c, i, whole, r);
    for (uint32_t i = 0; i < c->n_devices; i++) check_device(c, i, r);
    check_limits(&c->limits, r);
}

bool config_check(const inferd_config *c, buf *problems) {
    config_report r = {.problems = problems, .source = c->source};
    config_check_all(c, &r);
    return r.n == 0;
}
