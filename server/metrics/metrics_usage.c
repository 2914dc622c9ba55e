/* metrics_usage.c - tenants: device time, tokens, shares, refusals.
 *
 * Rows of the usage table, by tenant and model; both are names of the configuration. */
#include "metrics_page.h"

static const char *const fault_names[API_FAULTS] = {
    [API_BAD_JSON] = "bad_json",
    [API_BAD_VALUE] = "bad_value",
    [API_MISSING] = "missing_parameter",
    [API_UNSUPPORTED] = "unsupported_parameter",
    [API_BAD_SCHEMA] = "invalid_schema",
    [API_UNSUPPORTED_SCHEMA] = "unsupported_schema",
    [API_TOO_LONG] = "context_length",
    [API_NO_MODEL] = "model_not_found",
    [API_NO_PREVIOUS] = "previous_response_not_found",
    [API_NO_RESPONSE] = "response_not_found",
    [API_TOO_LARGE] = "request_too_large",
    [API_UNLOADED] = "model_unavailable",
    [API_OVERLOADED] = "queue_full",
    [API_DRAINING] = "shutting_down",
    [API_DEVICE_LOST] = "device_lost",
    [API_DEADLINE] = "deadline",
    [API_INTERNAL] = "internal",
    [API_REQUEST_RATE] = "request_rate",
    [API_TOKEN_RATE] = "token_rate",
    [API_CONCURRENCY] = "concurrency",
    [API_QUOTA] = "quota",
    [API_OVER_LIMIT] = "over_limit",
};

/* 429 and 503 (api_error.h): a later request of the same kind may be served. */
static const bool is_refusal[API_FAULTS] = {
    [API_UNLOADED] = true,    [API_OVERLOADED] = true,   [API_DRAINING] = true,
    [API_DEVICE_LOST] = true, [API_REQUEST_RATE] = true, [API_TOKEN_RATE] = true,
    [API_CONCURRENCY] = true, [API_QUOTA] = true,
};

void metrics_sum_refusals(const metrics *m, uint64_t *by_tenant, uint32_t n_tenants) {
    for (uint32_t i = 0; i < m->n_refusals; i++) {
        const refusal_row *r = &m->refusals[i];
        if (r->tenant < 0 || r->tenant >= n_tenants) continue;
        for (int f = 0; f < API_FAULTS; f++)
            if (is_refusal[f]) by_tenant[r->tenant] += r->n[f];
    }
}

/* The rows of a usage table that the page shows. */
#define EACH_ROW(p, l, i)                                                                          \
    for (uint32_t i = 0; i < tenant_usage_n(l); i++)                                               \
        if (page_has_tenant((p), tenant_usage_at(l, i)->tenant))

static const char *row_label(page *p, const tenant_usage_row *r, const char *more) {
    return page_flow_label(p, r->tenant == TENANT_USAGE_NONE ? -1 : (int64_t)r->tenant,
                           r->name_idx == TENANT_USAGE_NONE ? -1 : (int64_t)r->name_idx, more);
}

static void write_seconds(page *p) {
    const tenant_usage *l = p->m->tenant_usage;
    page_family(p, "inferd_device_seconds_total", "counter",
                "Device time charged to a tenant's requests for a model.");
    EACH_ROW(p, l, i)
        page_real(p, "inferd_device_seconds_total", row_label(p, tenant_usage_at(l, i), ""),
                  (double)tenant_usage_at(l, i)->device_us / 1e6);
}

static void write_tokens(page *p) {
    const tenant_usage *l = p->m->tenant_usage;
    page_family(p, "inferd_tokens_total", "counter",
                "Tokens of a tenant with a model: prompt (computed), cached (prompt tokens found "
                "in caches), output.");
    EACH_ROW(p, l, i) {
        const tenant_usage_row *r = tenant_usage_at(l, i);
        page_u64(p, "inferd_tokens_total", row_label(p, r, ",kind=\"prompt\""), r->prompt_tokens);
        page_u64(p, "inferd_tokens_total", row_label(p, r, ",kind=\"cached\""), r->cached_tokens);
        page_u64(p, "inferd_tokens_total", row_label(p, r, ",kind=\"output\""), r->output_tokens);
    }
}

static void write_preemptions(page *p) {
    const tenant_usage *l = p->m->tenant_usage;
    page_family(p, "inferd_tenant_preemptions_total", "counter",
                "Preemptions of a tenant's sequences with a model, by kind.");
    EACH_ROW(p, l, i)
        for (int r = 0; r < GEN_PREEMPTS; r++) {
            char more[64];
            snprintf(more, sizeof more, ",rung=\"%s\"", gen_preempt_name((gen_preempt)r));
            page_u64(p, "inferd_tenant_preemptions_total",
                     row_label(p, tenant_usage_at(l, i), more),
                     tenant_usage_at(l, i)->n_preempts[r]);
        }
    page_family(p, "inferd_tenant_preempted_seconds_total", "counter",
                "Time that a tenant's sequences with a model were preempted.");
    EACH_ROW(p, l, i)
        page_real(p, "inferd_tenant_preempted_seconds_total",
                  row_label(p, tenant_usage_at(l, i), ""),
                  (double)tenant_usage_at(l, i)->away_us / 1e6);
}

static void write_shares(page *p) {
    for (int entitled = 0; entitled <= 1; entitled++) {
        const char *name = entitled ? "inferd_share_entitled_ratio" : "inferd_share_used_ratio";
        page_family(p, name, "gauge",
                    entitled ? "Device time that is guaranteed or allowed; 1 is one device."
                             : "Device time of the last 10 seconds; 1 is one device.");
        for (uint32_t i = 0; i < p->now->n_shares; i++) {
            const metrics_share *s = &p->now->shares[i];
            buf_add_format(p->out, "%s{of=\"%s\",name=\"", name, s->of);
            page_label_text(p->out, s->name);
            buf_add_str(p->out, "\"} ");
            json_add_real(p->out, entitled ? s->entitled : s->used);
            buf_add_char(p->out, '\n');
        }
    }
}

static void write_share_sequences(page *p) {
    page_family(p, "inferd_share_sequences", "gauge",
                "Sequences of a tenant or model, by state: running, waiting.");
    for (uint32_t i = 0; i < p->now->n_shares; i++) {
        const metrics_share *s = &p->now->shares[i];
        for (int waits = 0; waits <= 1; waits++) {
            buf_add_format(p->out, "inferd_share_sequences{of=\"%s\",name=\"", s->of);
            page_label_text(p->out, s->name);
            buf_add_format(p->out, "\",state=\"%s\"} %u\n", waits ? "waiting" : "running",
                           waits ? s->n_waiting : s->n_running);
        }
    }
}

static void write_memory(page *p) {
    page_family(p, "inferd_tenant_bytes", "gauge",
                "Bytes of keys and values of a tenant: used by its sequences, guaranteed (min), "
                "and the ceiling (max).");
    for (uint32_t i = 0; i < p->now->n_memory; i++) {
        const metrics_tenant *t = &p->now->memory[i];
        const struct {
            const char *kind;
            uint64_t n_bytes;
        } rows[] = {{"used", t->used_bytes}, {"min", t->min_bytes}, {"max", t->max_bytes}};
        for (size_t k = 0; k < INFERD_COUNT(rows); k++) {
            buf_add_str(p->out, "inferd_tenant_bytes{tenant=\"");
            page_label_text(p->out, t->name);
            buf_add_format(p->out, "\",kind=\"%s\"} ", rows[k].kind);
            page_bytes(p, rows[k].n_bytes);
        }
    }
}

static void quota_rows(page *p, const metrics_tenant *t, const char *period,
                       const metrics_quota *q) {
    for (int limit = 0; limit <= 1 && q->any; limit++) {
        buf_add_str(p->out, "inferd_tenant_quota_tokens{tenant=\"");
        page_label_text(p->out, t->name);
        buf_add_format(p->out, "\",period=\"%s\",kind=\"%s\"} %llu\n", period,
                       limit ? "limit" : "used", (unsigned long long)(limit ? q->limit : q->used));
    }
}

static void write_quotas(page *p) {
    page_family(p, "inferd_tenant_quota_tokens", "gauge",
                "Tokens of a tenant that count for its quota of the day or month (UTC), and the "
                "quota.");
    for (uint32_t i = 0; i < p->now->n_memory; i++) {
        quota_rows(p, &p->now->memory[i], "day", &p->now->memory[i].day);
        quota_rows(p, &p->now->memory[i], "month", &p->now->memory[i].month);
    }
}

static void write_refusals(page *p) {
    page_family(p, "inferd_refusals_total", "counter",
                "Requests refused, or failed before their answer began, by reason.");
    for (uint32_t i = 0; i < p->m->n_refusals; i++)
        for (int f = 0; f < API_FAULTS; f++) {
            const refusal_row *r = &p->m->refusals[i];
            char more[64];
            if (r->n[f] == 0 || !page_has_tenant(p, r->tenant)) continue;
            snprintf(more, sizeof more, ",reason=\"%s\"", fault_names[f]);
            page_u64(p, "inferd_refusals_total", page_flow_label(p, r->tenant, r->name_idx, more),
                     r->n[f]);
        }
}

void metrics_write_usage(page *p) {
    write_seconds(p);
    write_tokens(p);
    write_preemptions(p);
    write_shares(p);
    write_share_sequences(p);
    write_memory(p);
    write_quotas(p);
    write_refusals(p);
}
