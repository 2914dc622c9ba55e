/* api_ops.c - routes for operators: /health, /ready, /version, /openapi.json, /metrics,
 * /debug/audit. */
#include "api.h"
#include "app_usage.h"
#include "admission.h"
#include "json_out.h"
#include "openapi.h"

/* Alive: the loop runs, and a device is left.  Independent of models: a slow load is not killed. */
void api_health(void *ctx, http_request *rq) {
    app *a = ctx;
    buf out = {0};
    if (fleet_is_lost(a->fleet) || a->device_hangs) {
        buf_add_str(&out, "{\"status\":\"device_lost\"}");
        http_answer(rq, 503, "application/json", &out, "Retry-After: 10\n");
        return;
    }
    buf_add_str(&out, "{\"status\":\"ok\"}");
    api_answer_json(rq, 200, &out);
}

/* How many models are in each state, and which, where their names are no secret: this route needs
 * no key, and tenants see only the models they may use. */
static void add_states(const app_config *c, const uint8_t *states, buf *out) {
    uint32_t counts[MODEL_STATES] = {0};
    for (uint32_t i = 0; i < c->c->n_models; i++) counts[states[i]]++;
    buf_add_str(out, ",\"states\":{");
    bool first = true;
    for (uint32_t s = 0; s < MODEL_STATES; s++) {
        if (counts[s] == 0) continue;
        buf_add_format(out, "%s\"%s\":%u", first ? "" : ",", model_state_name(s), counts[s]);
        first = false;
    }
    buf_add_char(out, '}');
    if (c->c->n_tenants > 0) return;
    buf_add_str(out, ",\"models\":{");
    for (uint32_t i = 0; i < c->c->n_models; i++) {
        if (i > 0) buf_add_char(out, ',');
        json_add_string(out, c->c->models[i].name, strlen(c->c->models[i].name));
        buf_add_format(out, ":\"%s\"", model_state_name(states[i]));
    }
    buf_add_char(out, '}');
}

/* Ready for work: the device is open, models that load at the start are loaded (others load at a
 * request), at least one can be served, and the daemon does not drain. */
void api_ready(void *ctx, http_request *rq) {
    app *a = ctx;
    uint32_t n_failed = 0;
    uint8_t states[CONFIG_MODELS_MAX];
    const app_config *c = a->config;
    buf out = {0};
    for (uint32_t i = 0; i < c->c->n_models; i++) {
        states[i] = (uint8_t)fleet_model_state(a->fleet, (uint32_t)c->slots[i]);
        n_failed += states[i] == MODEL_FAILED;
    }
    bool none = c->c->n_models == 0, failed = n_failed == c->c->n_models,
         settled = fleet_is_settled(a->fleet);
    bool ready = !a->draining && settled && !failed;
    const char *status = ready         ? "ready"
                         : a->draining ? "draining"
                         : none        ? "no_models"
                         : failed      ? "failed"
                                       : "loading";
    buf_add_format(&out, "{\"status\":\"%s\"", status);
    add_states(c, states, &out);
    buf_add_char(&out, '}');
    http_answer(rq, ready ? 200 : 503, "application/json", &out, ready ? NULL : "Retry-After: 2\n");
}

void api_version(void *ctx, http_request *rq) {
    (void)ctx;
    buf out = {0};
    buf_add_str(&out, "{\"version\":\"" INFERD_VERSION "\"}");
    api_answer_json(rq, 200, &out);
}

void api_root(void *ctx, http_request *rq) {
    static const char text[] =
        "inferd " INFERD_VERSION ": language models over an OpenAI-compatible API\n"
        "\n"
        "base_url for clients: this address with /v1\n"
        "GET  /v1/models              the models\n"
        "POST /v1/chat/completions    a conversation\n"
        "POST /v1/completions         text as it is\n"
        "GET  /ready                  what is loaded\n"
        "GET  /metrics                figures for Prometheus\n"
        "GET  /openapi.json           all of it, as OpenAPI 3.1\n";
    static const char page[] = "GET  /ui                      a page for administrators\n";
    const app *a = ctx;
    buf out = {0};
    buf_add_str(&out, text);
    if (http_is_trusted(rq) || a->config->c->admin.page) buf_add_str(&out, page);
    http_answer(rq, 200, "text/plain; charset=utf-8", &out, NULL);
}

/* Made for each request: it shows the limits of the present configuration. */
void api_openapi(void *ctx, http_request *rq) {
    const app *a = ctx;
    const inferd_config *c = a->config->c;
    openapi_input in = {.routes = a->routes,
                        .n_routes = a->n_routes,
                        .version = INFERD_VERSION,
                        .admin = c->admin.n_keys > 0 || a->http_admin != NULL};
    buf out = {0};
    for (uint32_t i = 0; i < c->n_tenants; i++) in.keyed = in.keyed || c->tenants[i].n_keys > 0;
    openapi_write(&in, &out);
    api_answer_json(rq, 200, &out);
}

void api_metrics(void *ctx, http_request *rq) {
    buf out = {0};
    app_write_metrics(ctx, rq->tenant, &out);
    http_answer(rq, 200, "text/plain; version=0.0.4; charset=utf-8", &out, NULL);
}

/* Each engine checks its accounting between two steps; the timeout is short: the loop blocks. */
void api_audit(void *ctx, http_request *rq) {
    enum { AUDIT_TIMEOUT_MS = 500 }; // of all engines together
    app *a = ctx;
    buf out = {0};
    inferd_err err = {0};
    if (fleet_audit(a->fleet, AUDIT_TIMEOUT_MS, &out, &err) != INFERD_OK) {
        buf_deinit(&out);
        api_error e = {0};
        api_fail_status(&e, &err, NULL);
        api_answer_error(rq, &e);
        return;
    }
    buf_add_format(&out,
                   ",\"front\":{\"generations\":%u,\"sequences\":%u,\"sequences_max\":%u,"
                   "\"exchanges\":%u}}",
                   a->n_generations, admission_queue_slots(a->admission)->n_used,
                   admission_queue_slots(a->admission)->n_all,
                   a->http == NULL ? 0 : http_n_open(a->http));
    api_answer_json(rq, 200, &out);
}
