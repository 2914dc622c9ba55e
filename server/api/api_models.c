/* api_models.c - GET /v1/models and /v1/models/{id}: the models that a tenant may use.
 *
 * A model comes first, then its aliases with the model as "root".  "sampling" has what a request
 * gets that gives no sampling parameters, and where each value comes from; "tool_format" how the
 * model writes tool calls (models/calls.h). */
#include "api.h"
#include "json_out.h"

static void add_sampling(buf *out, const sampling_defaults *d) {
    buf_add_str(out, ",\"sampling\":{");
    for (sampling_param p = 0; p < SAMPLING_PARAMS; p++) {
        buf_add_format(out, "%s\"%s\":{\"value\":", p > 0 ? "," : "", sampling_about(p)->name);
        json_add_real(out, d->values[p]);
        buf_add_format(out, ",\"from\":\"%s\"}", sampling_source_name(d->from[p]));
    }
    buf_add_char(out, '}');
}

/* How it writes tool calls, and whether it reasons; why its template's calls cannot be used. */
static void add_calls(buf *out, const call_format *f) {
    buf_add_format(out, ",\"tool_format\":\"%s\",\"reasoning\":%s",
                   f == NULL ? "none" : call_format_name(f),
                   f != NULL && call_format_reasons(f) ? "true" : "false");
    if (f == NULL || call_format_why(f)[0] == 0) return;
    buf_add_str(out, ",\"tool_format_refused\":");
    json_add_string(out, call_format_why(f), strlen(call_format_why(f)));
}

static void add_model(buf *out, const app *a, const config_model *m, uint32_t idx, const char *id) {
    const model_info *info = model_about(app_model(a, idx)->m);
    sampling_defaults sampling = config_sampling(m, &info->sampling);
    if (out->n > 0 && out->p[out->n - 1] == '}') buf_add_char(out, ',');
    buf_add_str(out, "{\"id\":");
    json_add_string(out, id, strlen(id));
    buf_add_format(out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"inferd\",\"root\":",
                   (long long)a->started_unix_s);
    json_add_string(out, app_model(a, idx)->name, strlen(app_model(a, idx)->name));
    buf_add_format(out, ",\"parent\":null,\"max_model_len\":%u", info->context);
    add_sampling(out, &sampling);
    add_calls(out, model_call_format(app_model(a, idx)->m));
    buf_add_char(out, '}');
}

void api_models_list(void *ctx, http_request *rq) {
    app *a = ctx;
    const inferd_config *c = a->config->c;
    int tenant = app_tenant(a->config, rq->tenant);
    buf out = {0};
    buf_add_str(&out, "{\"object\":\"list\",\"data\":[");
    for (uint32_t i = 0; i < c->n_models; i++) {
        const config_model *m = &c->models[i];
        int idx = app_find_model(a->config, tenant, m->name, strlen(m->name), NULL);
        if (idx < 0) continue;
        add_model(&out, a, m, (uint32_t)idx, m->name);
        for (uint32_t k = 0; k < m->n_aliases; k++)
            add_model(&out, a, m, (uint32_t)idx, m->aliases[k]);
    }
    buf_add_str(&out, "]}");
    api_answer_json(rq, 200, &out);
}

void api_models_one(void *ctx, http_request *rq) {
    app *a = ctx;
    const char *name = rq->tail; // decoded, including slashes in a name
    size_t n = strlen(name);
    uint32_t at = 0;
    int idx = app_find_model(a->config, app_tenant(a->config, rq->tenant), name, n, &at);
    if (idx < 0) {
        api_error e = {0};
        char quoted[API_QUOTE_BYTES], names[API_NAMES_BYTES];
        app_list_models(a->config, app_tenant(a->config, rq->tenant), names, sizeof names);
        api_fail(&e, API_NO_MODEL, "model", "the model \"%s\" does not exist (served: %s)",
                 api_quote(quoted, name, n), names);
        api_answer_error(rq, &e);
        return;
    }
    buf out = {0};
    add_model(&out, a, &a->config->c->models[at], (uint32_t)idx, name);
    api_answer_json(rq, 200, &out);
}
