/* routes.c - see routes.h. */
#include "routes.h"

#include "admin.h"
#include "api.h"
#include "admission.h"
#include "inferd/clock.h"
#include "log.h"
#include "messages.h"

static const http_route routes[] = {
    {"/v1/completions", HTTP_POST, HTTP_KEYED, true, true, api_completions},
    {"/v1/messages", HTTP_POST, HTTP_KEYED, true, true, api_messages, messages_write_error},
    {"/v1/messages/count_tokens", HTTP_POST, HTTP_KEYED, true, true, api_count_tokens,
     messages_write_error},
    {"/v1/responses", HTTP_POST, HTTP_KEYED, true, true, api_responses},
    {"/v1/responses/*", HTTP_GET | HTTP_DELETE, HTTP_KEYED, false, false, api_response_one},
    {"/v1/models/*", HTTP_GET, HTTP_KEYED, false, false, api_models_one},
    {"/tokenize", HTTP_POST, HTTP_KEYED, true, true, api_tokenize},
    {"/detokenize", HTTP_POST, HTTP_KEYED, true, true, api_detokenize},
    /* routes from here on are also on the socket file of administrators */
    {"/v1/chat/completions", HTTP_POST, HTTP_KEYED, true, true, api_chat},
    {"/v1/models", HTTP_GET, HTTP_KEYED, false, false, api_models_list},
    {"/health", HTTP_GET, HTTP_OPEN, false, false, api_health},
    {"/ready", HTTP_GET, HTTP_OPEN, false, false, api_ready},
    {"/version", HTTP_GET, HTTP_OPEN, false, false, api_version},
    {"/openapi.json", HTTP_GET, HTTP_OPEN, false, false, api_openapi},
    {"/", HTTP_GET, HTTP_OPEN, false, false, api_root},
    {"/metrics", HTTP_GET, HTTP_WATCH, false, false, api_metrics},
    {"/debug/audit", HTTP_GET, HTTP_WATCH, false, false, api_audit},
    {"/ui", HTTP_GET, HTTP_OPEN, false, false, admin_page},
    {"/ui/*", HTTP_GET, HTTP_OPEN, false, false, admin_page},
    {"/admin/watch", HTTP_GET, HTTP_ADMIN, false, false, admin_watch},
    {"/admin/state", HTTP_GET, HTTP_ADMIN, false, false, admin_get_state},
    {"/admin/config", HTTP_GET, HTTP_ADMIN, false, false, admin_get_config},
    {"/admin/config", HTTP_PUT, HTTP_ADMIN, true, false, admin_put_config},
    {"/admin/plan", HTTP_POST, HTTP_ADMIN, true, false, admin_plan},
    {"/admin/tenants/*", HTTP_GET, HTTP_ADMIN, false, false, admin_get_tenant},
    {"/admin/tenants/*", HTTP_PATCH, HTTP_ADMIN, true, false, admin_patch_tenant},
    {"/admin/models/*", HTTP_GET, HTTP_ADMIN, false, false, admin_get_model},
    {"/admin/models/*", HTTP_PATCH, HTTP_ADMIN, true, false, admin_patch_model},
    {"/admin/models/*/load", HTTP_POST, HTTP_ADMIN, true, false, admin_command},
    {"/admin/models/*/unload", HTTP_POST, HTTP_ADMIN, true, false, admin_command},
    {"/admin/models/*/drop", HTTP_POST, HTTP_ADMIN, true, false, admin_command},
    {"/admin/models/*/prefetch", HTTP_POST, HTTP_ADMIN, true, false, admin_command},
    {"/admin/models/*/pin", HTTP_POST, HTTP_ADMIN, true, false, admin_command},
    {"/admin/models/*/unpin", HTTP_POST, HTTP_ADMIN, true, false, admin_command},
    {"/admin/models/*/drain", HTTP_POST, HTTP_ADMIN, true, false, admin_command},
    {"/admin/models/*/undrain", HTTP_POST, HTTP_ADMIN, true, false, admin_command},
    {"/admin/devices/*/lose", HTTP_POST, HTTP_ADMIN, false, false, admin_lose_device},
    {"/admin/devices/*/slow", HTTP_POST, HTTP_ADMIN, true, false, admin_slow_device},
    {"/running", HTTP_GET, HTTP_ADMIN, false, false, admin_running},
    {"/unload", HTTP_GET | HTTP_POST, HTTP_ADMIN, false, false, admin_unload_all},
    {"/api/models/unload", HTTP_POST, HTTP_ADMIN, false, false, admin_unload_all},
    {"/api/models/unload/**", HTTP_POST, HTTP_ADMIN, false, false, admin_unload_one},
};
static const char first_admin_route[] = "/v1/chat/completions";

const http_route *routes_all(size_t *n) {
    *n = INFERD_COUNT(routes);
    return routes;
}

/* ---- callbacks of the transport ---- */

static int tenant_of_key(void *ctx, bytes key) {
    app *a = ctx;
    const inferd_config *c = a->config->c;
    int i = config_tenant_of_key(c, key);
    return i < 0 ? -1 : (int)a->config->numbers[i];
}

/* The socket of administrators needs no key, but refuses the key of a tenant. */
static http_admin admin_on_socket(void *ctx, bytes key) {
    const app *a = ctx;
    const inferd_config *c = a->config->c;
    bool is_tenant = !config_is_admin_key(c, key) && config_tenant_of_key(c, key) >= 0;
    return is_tenant ? HTTP_ADMIN_TENANT : HTTP_ADMIN_YES;
}

static http_admin admin_of_key(void *ctx, bytes key) {
    const app *a = ctx;
    const inferd_config *c = a->config->c;
    bool is_admin = config_is_admin_key(c, key), is_tenant = config_tenant_of_key(c, key) >= 0;
    if (a->admin == NULL || c->admin.n_keys == 0) return HTTP_ADMIN_NO_KEYS;
    return is_admin ? HTTP_ADMIN_YES : is_tenant ? HTTP_ADMIN_TENANT : HTTP_ADMIN_UNKNOWN;
}

static bool allows_origin(void *ctx, bytes origin, bool loopback) {
    const app *a = ctx;
    return config_allows_origin(a->config->c, origin, loopback);
}

static unsigned overloaded_s(void *ctx, int tenant) {
    const app *a = ctx;
    int at = app_tenant(a->config, tenant);
    gen_class best = at >= 0 ? a->config->c->tenants[at].policy.max_class : GEN_HIGH;
    return admission_is_overloaded(a->admission, tenant, best, clock_now_us());
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

/* The x-ratelimit-* headers. */
static void write_lines(void *ctx, const http_request *rq, char out[HTTP_LINES_BYTES]) {
    const app *a = ctx;
    _Static_assert((int)ADMISSION_LINES_BYTES <= (int)HTTP_LINES_BYTES, "they fit");
    if (rq->tenant >= 0)
        admission_write_headers(a->admission, (uint32_t)rq->tenant, clock_now_us(), out);
}

static bool has_keys(const inferd_config *c) {
    for (uint32_t i = 0; i < c->n_tenants; i++)
        if (c->tenants[i].n_keys > 0) return true;
    return false;
}

void routes_http_options(app *a, http_options *out) {
    const inferd_config *c = a->config->c;
    *out = (http_options){.listen = c->listen,
                          .limits = c->limits.http,
                          .routes = routes,
                          .n_routes = INFERD_COUNT(routes),
                          .tenant_of_key = has_keys(c) ? tenant_of_key : NULL,
                          .admin_of_key = admin_of_key,
                          .allows_origin = allows_origin,
                          .overloaded_s = overloaded_s,
                          .finished = on_finished,
                          .reply_lines = write_lines,
                          .ctx = a};
}

void routes_admin_options(app *a, const char *listen, http_options *out) {
    enum { OWNER_ONLY = 0600 };
    const inferd_config *c = a->config->c;
    size_t from = 0;
    while (strcmp(routes[from].path, first_admin_route) != 0) from++;
    *out = (http_options){.listen = listen,
                          .limits = c->limits.http,
                          .routes = routes + from,
                          .n_routes = INFERD_COUNT(routes) - from,
                          .tenant_of_key = has_keys(c) ? tenant_of_key : NULL,
                          .admin_of_key = admin_on_socket,
                          .overloaded_s = overloaded_s,
                          .trusted = true,
                          .unix_mode = OWNER_ONLY,
                          .finished = on_finished,
                          .reply_lines = write_lines,
                          .ctx = a};
    out->limits.connections_max = u32_min(out->limits.connections_max, ADMIN_CONNECTIONS_MAX);
}
