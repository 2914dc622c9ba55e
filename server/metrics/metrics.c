/* metrics.c - see metrics.h: counting, and the order of the page. */
#include "metrics_page.h"

static const bounds bounds_ttft = {22, {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                        1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560}};
static const bounds bounds_itl = {22,
                                  {.0005, .001, .0025, .005, .01, .025, .05, .075, .1, .15, .2,
                                   .3,    .4,   .5,    .75,  1,   2.5,  5,   7.5,  10, 20,  40}};
static const bounds bounds_request = {24,
                                      {.01, .05, .1, .3, .5, .8, 1,   1.5, 2,   2.5, 5,    10,
                                       15,  20,  30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}};
static const bounds bounds_queue = {22,
                                    {.001, .0025, .005, .01, .025, .05, .1,  .2,  .3,  .5,  1,
                                     2.5,  5,     10,   20,  40,   60,  120, 240, 480, 960, 7680}};
static const bounds bounds_tokens = {18,
                                     {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000,
                                      20000, 50000, 100000, 200000, 500000}};
static const bounds bounds_n = {8, {1, 2, 4, 8, 16, 32, 64, 128}};
const bounds metrics_bounds_lag = {10, {.001, .002, .005, .01, .02, .05, .1, .25, 1, 5}};

const hist_row metrics_hist_rows[HISTS] = {
    [HIST_TTFT] = {"inferd_time_to_first_token_seconds", "vllm:time_to_first_token_seconds",
                   "Time from arrival to the first token.", &bounds_ttft},
    [HIST_ITL] = {"inferd_inter_token_seconds", "vllm:inter_token_latency_seconds",
                  "Time between two tokens of one choice.", &bounds_itl},
    [HIST_QUEUE] = {"inferd_queue_seconds", "vllm:request_queue_time_seconds",
                    "Time from arrival to the first step that had the sequence.", &bounds_queue},
    [HIST_PREFILL] = {"inferd_prefill_seconds", "vllm:request_prefill_time_seconds",
                      "Time from the first step that had the sequence to its first token.",
                      &bounds_ttft},
    [HIST_DECODE] = {"inferd_decode_seconds", "vllm:request_decode_time_seconds",
                     "Time from the first token of a sequence to its last.", &bounds_request},
    [HIST_E2E] = {"inferd_request_seconds", "vllm:e2e_request_latency_seconds",
                  "Time from arrival to the end of the answer.", &bounds_request},
    [HIST_PROMPT_TOKENS] = {"inferd_prompt_tokens_per_sequence", "vllm:request_prompt_tokens",
                            "Prompt tokens of a sequence.", &bounds_tokens},
    [HIST_OUTPUT_TOKENS] = {"inferd_output_tokens_per_sequence", "vllm:request_generation_tokens",
                            "Generated tokens of a sequence.", &bounds_tokens},
    [HIST_N] = {"inferd_choices_per_request", "vllm:request_params_n", "Choices asked for.",
                &bounds_n},
};

const char *const metrics_outcome_names[OUTCOMES] = {"stop",    "length", "cancelled",
                                                     "timeout", "error",  "refused"};
const int metrics_statuses[METRICS_STATUSES] = {200, 202, 400, 401, 403, 404, 405, 408, 409,
                                                411, 413, 414, 415, 417, 429, 431, 499, 500,
                                                501, 503, 504, 505, 529, 0}; // 0: any other

/* Rows are found by hash, since a flood of refusals looks them up each time, and never freed. */
static refusal_row *refusal_row_of(metrics *m, int64_t tenant, int64_t name_idx) {
    uint32_t mask = METRICS_REFUSAL_ENTRIES - 1;
    uint32_t i = ((uint32_t)tenant * 2654435761u ^ (uint32_t)name_idx * 40503u) & mask;
    for (; m->refusal_entries[i] != 0; i = (i + 1) & mask) {
        refusal_row *row = &m->refusals[m->refusal_entries[i] - 1];
        if (row->tenant == tenant && row->name_idx == name_idx) return row;
    }
    if (m->n_refusals == METRICS_REFUSAL_ROWS_MAX) return &m->refusals[0];
    refusal_row *row = &m->refusals[m->n_refusals++];
    *row = (refusal_row){.tenant = tenant, .name_idx = name_idx};
    m->refusal_entries[i] = m->n_refusals;
    return row;
}

metrics *metrics_create(uint32_t n_names_max, const http_route *routes, uint32_t n_routes) {
    metrics *m = calloc(1, sizeof *m);
    if (m == NULL) return NULL;
    m->models = calloc(n_names_max == 0 ? 1 : n_names_max, sizeof *m->models);
    m->http = calloc((size_t)n_routes + 1, sizeof *m->http);
    m->n_names_max = n_names_max;
    m->routes = routes;
    m->n_routes = n_routes;
    m->refusals = calloc(METRICS_REFUSAL_ROWS_MAX, sizeof *m->refusals);
    m->refusal_entries = calloc(METRICS_REFUSAL_ENTRIES, sizeof *m->refusal_entries);
    m->tenant_usage = tenant_usage_create(METRICS_DEVICES_MAX);
    if (m->models == NULL || m->http == NULL || m->refusals == NULL || m->refusal_entries == NULL ||
        m->tenant_usage == NULL) {
        metrics_destroy(m);
        return NULL;
    }
    refusal_row_of(m, -1, -1); // the first row, for refusals without a row of their own
    return m;
}

void metrics_destroy(metrics *m) {
    if (m == NULL) return;
    free(m->models);
    free(m->http);
    free(m->refusals);
    free(m->refusal_entries);
    tenant_usage_destroy(m->tenant_usage);
    free(m);
}

/* ---- counting ---- */

static void observe(histogram *h, const bounds *b, double value) {
    uint32_t i = 0;
    while (i < b->n && value > b->upper[i]) i++;
    h->counts[i]++;
    h->sum += value;
}

void metrics_observe(metrics *m, uint32_t model_idx, metric_hist hist, double value) {
    INFERD_CHECK(model_idx < m->n_names_max && hist < HISTS);
    observe(&m->models[model_idx].hists[hist], metrics_hist_rows[hist].bounds, value);
}

void metrics_request(metrics *m, uint32_t model_idx, metric_outcome outcome) {
    INFERD_CHECK(model_idx < m->n_names_max && outcome < OUTCOMES);
    m->models[model_idx].n_requests[outcome]++;
}

void metrics_token(metrics *m, uint32_t model_idx) {
    INFERD_CHECK(model_idx < m->n_names_max);
    m->models[model_idx].n_output++;
}

void metrics_sequence(metrics *m, uint32_t model_idx, uint32_t n_prompt, uint32_t n_cached,
                      uint32_t n_output) {
    INFERD_CHECK(model_idx < m->n_names_max);
    model_metrics *mm = &m->models[model_idx];
    mm->n_prompt += n_prompt;
    mm->n_cached += n_cached;
    observe(&mm->hists[HIST_PROMPT_TOKENS], &bounds_tokens, n_prompt);
    observe(&mm->hists[HIST_OUTPUT_TOKENS], &bounds_tokens, n_output);
}

void metrics_target(metrics *m, uint32_t model_idx, metric_target target, bool kept) {
    INFERD_CHECK(model_idx < m->n_names_max && target < METRIC_TARGETS);
    m->models[model_idx].n_targets[target][kept]++;
}

void metrics_prefix(metrics *m, uint32_t model_idx, prefix_cause cause) {
    INFERD_CHECK(model_idx < m->n_names_max && cause < PREFIX_CAUSES);
    m->models[model_idx].n_prefixes[cause]++;
}

void metrics_refused(metrics *m, int64_t tenant, int64_t name_idx, api_fault fault) {
    INFERD_CHECK(fault > API_OK && fault < API_FAULTS);
    refusal_row_of(m, tenant, name_idx)->n[fault]++;
}

tenant_usage *metrics_tenant_usage(metrics *m) {
    return m->tenant_usage;
}

void metrics_http(metrics *m, const http_route *route, int status) {
    size_t r = m->n_routes, k = 0;
    if (route != NULL && route >= m->routes && route < m->routes + m->n_routes)
        r = (size_t)(route - m->routes);
    while (k + 1 < METRICS_STATUSES && metrics_statuses[k] != status) k++;
    m->http[r][k]++;
}

void metrics_unknown_fields(metrics *m, uint32_t n) {
    m->n_unknown_fields += n;
}
void metrics_loop_lag(metrics *m, double seconds) {
    observe(&m->lag, &metrics_bounds_lag, seconds);
}
void metrics_reload(metrics *m, bool ok) {
    m->n_reloads[ok]++;
}

void metrics_change(metrics *m, bool ok) {
    m->n_changes[ok]++;
}

void metrics_write(const metrics *m, const metrics_now *now, buf *out) {
    page p = {.m = m, .now = now, .out = out};
    metrics_write_front(&p);
    metrics_write_models(&p);
    metrics_write_engine(&p);
    metrics_write_disk(&p);
    metrics_write_usage(&p);
    buf_deinit(&p.label);
}
