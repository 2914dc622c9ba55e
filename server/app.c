/* app.c - see app.h. */
#include "app.h"

#include <sys/random.h>
#include <time.h>

#include "api.h"
#include "flight.h"
#include "log.h"

static const http_route routes[] = {
    {"/v1/chat/completions", HTTP_POST, HTTP_KEYED, true, true, api_chat},
    {"/v1/completions", HTTP_POST, HTTP_KEYED, true, true, api_completions},
    {"/v1/models", HTTP_GET, HTTP_KEYED, false, false, api_models_list},
    {"/v1/models/*", HTTP_GET, HTTP_KEYED, false, false, api_models_one},
    {"/tokenize", HTTP_POST, HTTP_KEYED, true, true, api_tokenize},
    {"/detokenize", HTTP_POST, HTTP_KEYED, true, true, api_detokenize},
    {"/health", HTTP_GET, HTTP_OPEN, false, false, api_health},
    {"/ready", HTTP_GET, HTTP_OPEN, false, false, api_ready},
    {"/version", HTTP_GET, HTTP_OPEN, false, false, api_version},
    {"/metrics", HTTP_GET, HTTP_KEYED, false, false, api_metrics},
    {"/debug/audit", HTTP_GET, HTTP_KEYED, false, false, api_audit},
};

/* ---- configuration ---- */

app_config *app_config_take(app *a) {
    a->config->n_refs++;
    return a->config;
}

void app_config_drop(app_config *config) {
    if (config == NULL || --config->n_refs > 0) return;
    config_destroy(config->c);
    free(config);
}

static int number_of(const app *a, const char *tenant) {
    for (uint32_t i = 0; i < a->n_tenants; i++)
        if (strcmp(a->tenants[i], tenant) == 0) return (int)i;
    return -1;
}

static bool add_tenants(app *a, const inferd_config *c) {
    if (c->n_tenants == 0) return true;
    char **grown = realloc(a->tenants, ((size_t)a->n_tenants + c->n_tenants) * sizeof *grown);
    if (grown == NULL) return false;
    a->tenants = grown;
    for (uint32_t i = 0; i < c->n_tenants; i++) {
        if (number_of(a, c->tenants[i].name) >= 0) continue;
        char *name = strdup(c->tenants[i].name);
        if (name == NULL) return false;
        a->tenants[a->n_tenants++] = name;
    }
    return true;
}

int app_tenant(const app *a, const inferd_config *c, int number) {
    if (number < 0 || (uint32_t)number >= a->n_tenants) return APP_NO_TENANT;
    for (uint32_t i = 0; i < c->n_tenants; i++)
        if (strcmp(c->tenants[i].name, a->tenants[number]) == 0) return (int)i;
    return APP_TENANT_GONE;
}

bool app_swap_config(app *a, inferd_config *c) {
    app_config *fresh = malloc(sizeof *fresh);
    if (fresh == NULL || !add_tenants(a, c)) {
        free(fresh);
        return false;
    }
    *fresh = (app_config){c, 1};
    app_config_drop(a->config);
    a->config = fresh;
    return true;
}

void app_note_reload(app *a, bool ok) {
    metrics_reload(a->metrics, ok);
}

/* A tenant's list may name the model or any alias; either gives the model, by all its names. */
static bool may_use(const inferd_config *c, int tenant, int idx) {
    if (tenant < 0) return tenant == APP_NO_TENANT;
    const config_tenant *t = &c->tenants[tenant];
    for (uint32_t i = 0; i < t->n_models; i++)
        if (config_find_model(c, t->models[i], strlen(t->models[i])) == idx) return true;
    return t->n_models == 0;
}

int app_find_model(const app *a, const inferd_config *c, int tenant, const char *name, size_t n) {
    int found = config_find_model(c, name, n);
    if (found < 0 || !may_use(c, tenant, found)) return -1;
    /* A newer configuration may list other models; what runs is what was there at the start. */
    for (uint32_t i = 0; i < a->n_models; i++)
        if (strcmp(a->names[i], c->models[found].name) == 0) return (int)i;
    return -1;
}

/* ---- callbacks of the transport ---- */

static int tenant_of_key(void *ctx, bytes key) {
    app *a = ctx;
    const inferd_config *c = a->config->c;
    int i = config_tenant_of_key(c, key);
    return i < 0 ? -1 : number_of(a, c->tenants[i].name);
}

static bool is_overloaded(void *ctx) {
    return app_is_full(ctx, 1);
}

static void on_finished(void *ctx, const http_request *rq) {
    app *a = ctx;
    metrics_http(a->metrics, rq->route, rq->status);
    if (!log_wants(LOG_LEVEL_DEBUG)) return;
    log_line line;
    log_begin(&line, LOG_LEVEL_DEBUG, "http");
    log_str(&line, "id", rq->id);
    log_str(&line, "route", rq->route == NULL ? "none" : rq->route->path);
    log_i64(&line, "status", rq->status);
    log_u64(&line, "sent_bytes", rq->n_sent);
    log_end(&line);
}

void app_http_options(app *a, http_options *out) {
    const inferd_config *c = a->config->c;
    bool keys = false;
    for (uint32_t i = 0; i < c->n_tenants; i++) keys = keys || c->tenants[i].n_keys > 0;
    *out = (http_options){.listen = c->listen,
                          .limits = c->limits.http,
                          .routes = routes,
                          .n_routes = INFERD_COUNT(routes),
                          .tenant_of_key = keys ? tenant_of_key : NULL,
                          .overloaded = is_overloaded,
                          .finished = on_finished,
                          .ctx = a};
}

void app_set_http(app *a, http_server *http) {
    a->http = http;
}

/* ---- life ---- */

static uint64_t fnv(uint64_t h, const void *p, size_t n) {
    const unsigned char *b = p;
    for (size_t i = 0; i < n; i++) h = (h ^ b[i]) * 0x100000001b3u;
    return h;
}

/* Two daemons with the same fingerprint serve the same files with the same program. */
static void set_fingerprint(app *a) {
    uint64_t h = fnv(0xcbf29ce484222325u, INFERD_VERSION, strlen(INFERD_VERSION));
    for (uint32_t i = 0; i < a->n_models; i++) {
        const model_info *info = model_about(a->models[i]);
        h = fnv(h, a->names[i], strlen(a->names[i]) + 1);
        h = fnv(h, &info->file_bytes, sizeof info->file_bytes);
        h = fnv(h, &info->n_params, sizeof info->n_params);
    }
    snprintf(a->fingerprint, sizeof a->fingerprint, "fp_%016llx", (unsigned long long)h);
}

static bool copy_names(app *a, const inferd_config *c) {
    a->names = calloc(a->n_models, sizeof *a->names);
    for (uint32_t i = 0; a->names != NULL && i < a->n_models; i++) {
        a->names[i] = strdup(c->models[i].name);
        if (a->names[i] == NULL) return false;
    }
    return a->names != NULL;
}

static bool create_slots(app *a, const engine_limits *l) {
    enum { RUNNING_DEFAULT = 32, QUEUE_DEFAULT = 1024, SLOTS_MAX = 1 << 20 };
    uint64_t n = (uint64_t)(l->running_max == 0 ? RUNNING_DEFAULT : l->running_max) +
                 (l->queue_len_max == 0 ? QUEUE_DEFAULT : l->queue_len_max);
    a->n_slots = (uint32_t)(n < SLOTS_MAX ? n : SLOTS_MAX);
    a->slots = calloc(a->n_slots, sizeof *a->slots);
    for (uint32_t i = 0; a->slots != NULL && i < a->n_slots; i++) a->slots[i].next_free = i + 1;
    return a->slots != NULL;
}

static bool create_parts(app *a, const app_options *o) {
    a->config = malloc(sizeof *a->config);
    if (a->config == NULL) return false;
    *a->config = (app_config){o->config, 1};
    a->metrics = metrics_create(a->n_models, routes, INFERD_COUNT(routes));
    return a->metrics != NULL && copy_names(a, o->config) && add_tenants(a, o->config) &&
           create_slots(a, &o->config->limits.engine);
}

inferd_status app_create(const app_options *options, app **out, inferd_err *err) {
    INFERD_CHECK(options->n_models > 0 && options->n_models == options->config->n_models);
    app *a = calloc(1, sizeof *a);
    if (a == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for the front");
    a->engine = options->engine;
    a->models = options->models;
    a->n_models = options->n_models;
    a->started_unix_s = (int64_t)time(NULL);
    list_node_init(&a->flights);
    list_node_init(&a->dirty);
    inferd_status s = INFERD_OK;
    if (!create_parts(a, options))
        s = inferd_fail(err, INFERD_ENOMEM, "no memory for the front");
    else if (getrandom(a->secret, sizeof a->secret, 0) != (ssize_t)sizeof a->secret)
        s = inferd_fail(err, INFERD_EIO, "getrandom gave no randomness");
    if (s != INFERD_OK) {
        if (a->config != NULL) a->config->c = NULL; // stays the caller's
        app_destroy(a);
        return s;
    }
    set_fingerprint(a);
    *out = a;
    return INFERD_OK;
}

void app_destroy(app *a) {
    if (a == NULL) return;
    INFERD_CHECK(list_empty(&a->flights));
    for (uint32_t i = 0; i < a->n_models && a->names != NULL; i++) free(a->names[i]);
    for (uint32_t i = 0; i < a->n_tenants; i++) free(a->tenants[i]);
    free(a->tenants);
    free(a->names);
    free(a->slots);
    metrics_destroy(a->metrics);
    app_config_drop(a->config);
    free(a);
}

void app_drain(app *a) {
    a->draining = true;
    if (a->http != NULL) http_drain(a->http);
}

uint32_t app_n_running(const app *a) {
    return a->n_flights;
}
