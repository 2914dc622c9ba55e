/* metrics.c - see metrics.h.
 *
 * A family is HELP, TYPE and its samples, written together and once: strict parsers refuse a
 * family that comes in two pieces.  So each vllm: alias is a family of its own, behind the
 * inferd_ family it repeats. */
#include "metrics.h"

#include "sse.h"

enum { BUCKETS_MAX = 24 };

typedef struct bounds {
    uint32_t n;
    double upper[BUCKETS_MAX];
} bounds;

typedef struct histogram {
    uint64_t counts[BUCKETS_MAX + 1]; // the last is above every bound
    double sum;
} histogram;

static const bounds bounds_ttft = {22, {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                        1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560}};
static const bounds bounds_itl = {
    18, {.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40}};
static const bounds bounds_request = {21, {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                           30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}};
static const bounds bounds_tokens = {18,
                                     {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000,
                                      20000, 50000, 100000, 200000, 500000}};
static const bounds bounds_n = {8, {1, 2, 4, 8, 16, 32, 64, 128}};
static const bounds bounds_lag = {10, {.001, .002, .005, .01, .02, .05, .1, .25, 1, 5}};

typedef struct hist_row {
    const char *name, *alias, *help; // alias NULL: vLLM has none
    const bounds *bounds;
} hist_row;

static const hist_row hist_rows[HISTS] = {
    [HIST_TTFT] = {"inferd_time_to_first_token_seconds", "vllm:time_to_first_token_seconds",
                   "Time from arrival to the first token.", &bounds_ttft},
    [HIST_ITL] = {"inferd_inter_token_seconds", "vllm:inter_token_latency_seconds",
                  "Time between two tokens of one choice.", &bounds_itl},
    [HIST_QUEUE] = {"inferd_queue_seconds", "vllm:request_queue_time_seconds",
                    "Time from arrival to the first step that had the sequence.", &bounds_request},
    [HIST_E2E] = {"inferd_request_seconds", "vllm:e2e_request_latency_seconds",
                  "Time from arrival to the end of the answer.", &bounds_request},
    [HIST_PROMPT_TOKENS] = {"inferd_prompt_tokens_per_sequence", "vllm:request_prompt_tokens",
                            "Prompt tokens of a sequence.", &bounds_tokens},
    [HIST_OUTPUT_TOKENS] = {"inferd_output_tokens_per_sequence", "vllm:request_generation_tokens",
                            "Generated tokens of a sequence.", &bounds_tokens},
    [HIST_N] = {"inferd_choices_per_request", "vllm:request_params_n", "Choices asked for.",
                &bounds_n},
};

static const char *const outcome_names[OUTCOMES] = {"stop",    "length", "cancelled",
                                                    "timeout", "error",  "refused"};
static const int statuses[] = {200, 400, 401, 403, 404, 405, 408, 411, 413, 414, 415,
                               417, 429, 431, 499, 500, 501, 503, 504, 505, 0}; // 0: any other

typedef struct model_metrics {
    uint64_t n_requests[OUTCOMES];
    uint64_t n_prompt, n_cached, n_output;
    histogram hists[HISTS];
} model_metrics;

struct metrics {
    model_metrics *models; // [n_names_max] by number of the name
    uint32_t n_names_max, n_routes;
    const http_route *routes;                 // [n_routes] borrowed
    uint64_t (*http)[INFERD_COUNT(statuses)]; // [n_routes + 1]; the last: no route
    uint64_t n_unknown_fields, n_reloads[2];
    histogram lag;
};

metrics *metrics_create(uint32_t n_names_max, const http_route *routes, uint32_t n_routes) {
    metrics *m = calloc(1, sizeof *m);
    if (m == NULL) return NULL;
    m->models = calloc(n_names_max == 0 ? 1 : n_names_max, sizeof *m->models);
    m->http = calloc((size_t)n_routes + 1, sizeof *m->http);
    m->n_names_max = n_names_max;
    m->routes = routes;
    m->n_routes = n_routes;
    if (m->models == NULL || m->http == NULL) {
        metrics_destroy(m);
        return NULL;
    }
    return m;
}

void metrics_destroy(metrics *m) {
    if (m == NULL) return;
    free(m->models);
    free(m->http);
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
    observe(&m->models[model_idx].hists[hist], hist_rows[hist].bounds, value);
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

void metrics_http(metrics *m, const http_route *route, int status) {
    size_t r = m->n_routes, k = 0;
    if (route != NULL && route >= m->routes && route < m->routes + m->n_routes)
        r = (size_t)(route - m->routes);
    while (k + 1 < INFERD_COUNT(statuses) && statuses[k] != status) k++;
    m->http[r][k]++;
}

void metrics_unknown_fields(metrics *m, uint32_t n) {
    m->n_unknown_fields += n;
}
void metrics_loop_lag(metrics *m, double seconds) {
    observe(&m->lag, &bounds_lag, seconds);
}
void metrics_reload(metrics *m, bool ok) {
    m->n_reloads[ok]++;
}

/* ---- the page ---- */

static void family(buf *out, const char *name, const char *type, const char *help) {
    buf_add_format(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* A label's value: backslash, quote and newline are escaped. */
static void add_label_text(buf *out, const char *s) {
    for (; *s != 0; s++) {
        if (*s == '\n') {
            buf_add_str(out, "\\n");
            continue;
        }
        if (*s == '\\' || *s == '"') buf_add_char(out, '\\');
        buf_add_char(out, *s);
    }
}

static void sample_u64(buf *out, const char *name, const char *labels, uint64_t v) {
    buf_add_format(out, "%s%s %llu\n", name, labels, (unsigned long long)v);
}

static void sample_real(buf *out, const char *name, const char *labels, double v) {
    buf_add_format(out, "%s%s ", name, labels);
    json_add_real(out, v);
    buf_add_char(out, '\n');
}

static void scalar(buf *out, const char *name, const char *type, const char *help, uint64_t v) {
    family(out, name, type, help);
    sample_u64(out, name, "", v);
}

/* name_bucket{labels,le="..."}; `labels` has no braces and may be empty. */
static void add_histogram(buf *out, const char *name, const char *labels, const bounds *b,
                          const histogram *h) {
    uint64_t total = 0;
    const char *comma = labels[0] == 0 ? "" : ",";
    for (uint32_t i = 0; i <= b->n; i++) {
        total += h->counts[i];
        buf_add_format(out, "%s_bucket{%s%sle=\"", name, labels, comma);
        if (i < b->n)
            json_add_real(out, b->upper[i]);
        else
            buf_add_str(out, "+Inf");
        buf_add_format(out, "\"} %llu\n", (unsigned long long)total);
    }
    const char *open = labels[0] == 0 ? "" : "{", *close = labels[0] == 0 ? "" : "}";
    buf_add_format(out, "%s_sum%s%s%s ", name, open, labels, close);
    json_add_real(out, h->sum);
    buf_add_format(out, "\n%s_count%s%s%s %llu\n", name, open, labels, close,
                   (unsigned long long)total);
}

typedef struct page {
    const metrics *m;
    const metrics_now *now;
    buf *out;
    buf label; // scratch
} page;

/* model="x", or as vLLM says it; valid until the next call. */
static const char *model_label(page *p, uint32_t model_idx, bool vllm) {
    buf_clear(&p->label);
    buf_add_str(&p->label, vllm ? "model_name=\"" : "model=\"");
    add_label_text(&p->label, p->now->names[model_idx]);
    buf_add_str(&p->label, vllm ? "\",engine=\"0\"" : "\"");
    if (p->label.failed) p->out->failed = true;
    return buf_cstr(&p->label);
}

/* The engine serves all models: with one, its figures carry that model's name; with several,
 * none. */
static const char *engine_label(page *p) {
    return p->now->n_names == 1 ? model_label(p, 0, true) : "engine=\"0\"";
}

static void write_requests(page *p) {
    family(p->out, "inferd_requests_total", "counter", "Generation requests, by how they ended.");
    for (uint32_t i = 0; i < p->now->n_names; i++)
        for (uint32_t o = 0; o < OUTCOMES; o++)
            buf_add_format(p->out, "inferd_requests_total{%s,outcome=\"%s\"} %llu\n",
                           model_label(p, i, false), outcome_names[o],
                           (unsigned long long)p->m->models[i].n_requests[o]);
    family(p->out, "vllm:request_success_total", "counter", "Requests answered, by finish reason.");
    for (uint32_t i = 0; i < p->now->n_names; i++)
        for (uint32_t o = OUTCOME_STOP; o <= OUTCOME_LENGTH; o++)
            buf_add_format(p->out, "vllm:request_success_total{%s,finished_reason=\"%s\"} %llu\n",
                           model_label(p, i, true), outcome_names[o],
                           (unsigned long long)p->m->models[i].n_requests[o]);
}

static void model_counter(page *p, const char *name, const char *alias, const char *help,
                          size_t offset) {
    for (int vllm = 0; vllm <= 1; vllm++) {
        const char *n = vllm ? alias : name;
        family(p->out, n, "counter", help);
        for (uint32_t i = 0; i < p->now->n_names; i++) {
            uint64_t v;
            memcpy(&v, (const char *)&p->m->models[i] + offset, sizeof v);
            buf_add_format(p->out, "%s{%s} %llu\n", n, model_label(p, i, vllm),
                           (unsigned long long)v);
        }
    }
}

static void write_histograms(page *p) {
    for (int h = 0; h < HISTS; h++) {
        const hist_row *row = &hist_rows[h];
        for (int vllm = 0; vllm <= 1; vllm++) {
            const char *name = vllm ? row->alias : row->name;
            family(p->out, name, "histogram", row->help);
            for (uint32_t i = 0; i < p->now->n_names; i++)
                add_histogram(p->out, name, model_label(p, i, vllm), row->bounds,
                              &p->m->models[i].hists[h]);
        }
    }
    family(p->out, "inferd_loop_lag_seconds", "histogram", "How late the event loop's tick was.");
    add_histogram(p->out, "inferd_loop_lag_seconds", "", &bounds_lag, &p->m->lag);
}

static void write_http(page *p) {
    family(p->out, "inferd_http_responses_total", "counter", "HTTP answers, by route and status.");
    for (uint32_t r = 0; r <= p->m->n_routes; r++)
        for (size_t k = 0; k < INFERD_COUNT(statuses); k++) {
            if (p->m->http[r][k] == 0) continue;
            const char *path = r < p->m->n_routes ? p->m->routes[r].path : "none";
            char status[16];
            snprintf(status, sizeof status, "%d", statuses[k]);
            buf_add_format(p->out, "inferd_http_responses_total{route=\"%s\",status=\"%s\"} %llu\n",
                           path, statuses[k] == 0 ? "other" : status,
                           (unsigned long long)p->m->http[r][k]);
        }
    scalar(p->out, "inferd_http_exchanges", "gauge", "HTTP exchanges that are not finished.",
           p->now->n_http_open);
    scalar(p->out, "inferd_generations", "gauge", "Requests being generated or waiting.",
           p->now->n_flights);
    scalar(p->out, "inferd_unknown_fields_total", "counter",
           "Request fields that were accepted and not known.", p->m->n_unknown_fields);
    scalar(p->out, "inferd_log_lines_dropped_total", "counter", "Log lines that found no room.",
           p->now->log_lines_dropped);
    family(p->out, "inferd_config_reloads_total", "counter", "Configuration reloads.");
    sample_u64(p->out, "inferd_config_reloads_total", "{result=\"ok\"}", p->m->n_reloads[1]);
    sample_u64(p->out, "inferd_config_reloads_total", "{result=\"refused\"}", p->m->n_reloads[0]);
}

/* One figure of each model that is served. */
typedef struct info_row {
    const char *name, *type, *help;
    size_t offset;
    bool wide; // uint64_t; else uint32_t
} info_row;

#define INFO(field) offsetof(engine_model_info, field)
static const info_row info_rows[] = {
    {"inferd_model_requests_running", "gauge", "Sequences that are computed.", INFO(n_running),
     false},
    {"inferd_model_requests_waiting", "gauge", "Sequences that wait.", INFO(n_waiting), false},
    {"inferd_model_stages_total", "counter", "Times the weights were read and prepared.",
     INFO(n_stages), true},
    {"inferd_model_loads_total", "counter", "Times the model became hot.", INFO(n_loads), true},
    {"inferd_model_failures_total", "counter", "Times it could not be brought up.", INFO(n_failed),
     true},
};
static const info_row time_rows[] = {
    {"inferd_model_hot_seconds_total", "counter", "Time it was hot.", INFO(hot_us), true},
    {"inferd_model_device_seconds_total", "counter", "Time its steps took on the device.",
     INFO(device_us), true},
    {"inferd_model_load_device_seconds_total", "counter",
     "Time that bringing it up kept the device from steps.", INFO(load_device_us), true},
};

static uint64_t info_value(const engine_model_info *info, const info_row *row) {
    const char *at = (const char *)info + row->offset;
    uint64_t wide;
    uint32_t narrow;
    if (row->wide) {
        memcpy(&wide, at, sizeof wide);
        return wide;
    }
    memcpy(&narrow, at, sizeof narrow);
    return narrow;
}

/* "name{model="..", key="value"} " of a served model. */
static void begin_sample(page *p, const char *name, const metrics_model *m, const char *key,
                         const char *value) {
    buf_add_format(p->out, "%s{%s", name, model_label(p, m->name_idx, false));
    if (key != NULL) buf_add_format(p->out, ",%s=\"%s\"", key, value);
    buf_add_str(p->out, "} ");
}

#define EACH_SERVED(p, m)                                                                          \
    for (const metrics_model *m = (p)->now->models; m < (p)->now->models + (p)->now->n_models; m++)

static void write_model_rows(page *p) {
    for (size_t i = 0; i < INFERD_COUNT(info_rows); i++) {
        family(p->out, info_rows[i].name, info_rows[i].type, info_rows[i].help);
        EACH_SERVED(p, m) {
            begin_sample(p, info_rows[i].name, m, NULL, NULL);
            buf_add_format(p->out, "%llu\n",
                           (unsigned long long)info_value(&m->info, &info_rows[i]));
        }
    }
    for (size_t i = 0; i < INFERD_COUNT(time_rows); i++) {
        family(p->out, time_rows[i].name, time_rows[i].type, time_rows[i].help);
        EACH_SERVED(p, m) {
            begin_sample(p, time_rows[i].name, m, NULL, NULL);
            json_add_real(p->out, (double)info_value(&m->info, &time_rows[i]) / 1e6);
            buf_add_char(p->out, '\n');
        }
    }
}

static void write_model_pages(page *p) {
    static const info_row kinds[] = {{"weight", NULL, NULL, INFO(pages_weight), false},
                                     {"warm", NULL, NULL, INFO(pages_warm), false},
                                     {"kv", NULL, NULL, INFO(pages_kv), false},
                                     {"cached", NULL, NULL, INFO(pages_cached), false},
                                     {"min", NULL, NULL, INFO(pages_min), false},
                                     {"max", NULL, NULL, INFO(pages_max), false}};
    family(
        p->out, "inferd_model_pages", "gauge",
        "Pages that a model holds (kv has cached in it), is guaranteed (min) and may hold (max).");
    EACH_SERVED(p, m)
    for (size_t k = 0; k < INFERD_COUNT(kinds); k++) {
        uint64_t n = info_value(&m->info, &kinds[k]);
        begin_sample(p, "inferd_model_pages", m, "kind", kinds[k].name);
        if (n == UINT32_MAX)
            buf_add_str(p->out, "+Inf\n");
        else
            buf_add_format(p->out, "%llu\n", (unsigned long long)n);
    }
}

static void write_switches(page *p) {
    static const char *const causes[ENGINE_EVICT_CAUSES] = {"pressure", "class", "turn", "idle",
                                                            "asked"};
    static const info_row parts[] = {{"queue", NULL, NULL, INFO(sum.queue_us), true},
                                     {"reclaim", NULL, NULL, INFO(sum.reclaim_us), true},
                                     {"stage", NULL, NULL, INFO(sum.stage_us), true},
                                     {"load", NULL, NULL, INFO(sum.load_us), true}};
    family(p->out, "inferd_model_evictions_total", "counter",
           "Times it left the device, by cause.");
    EACH_SERVED(p, m)
    for (int c = 0; c < ENGINE_EVICT_CAUSES; c++) {
        begin_sample(p, "inferd_model_evictions_total", m, "cause", causes[c]);
        buf_add_format(p->out, "%llu\n", (unsigned long long)m->info.n_evictions[c]);
    }
    family(p->out, "inferd_model_switch_seconds_total", "counter",
           "Time it took to bring it up, by part: waiting, making room, reading and preparing, "
           "mapping and copying.");
    EACH_SERVED(p, m)
    for (size_t k = 0; k < INFERD_COUNT(parts); k++) {
        begin_sample(p, "inferd_model_switch_seconds_total", m, "part", parts[k].name);
        json_add_real(p->out, (double)info_value(&m->info, &parts[k]) / 1e6);
        buf_add_char(p->out, '\n');
    }
}

static void write_models(page *p) {
    family(p->out, "inferd_model_state", "gauge", "1 for the state that a model is in.");
    EACH_SERVED(p, m)
    for (uint32_t s = MODEL_COLD; s < MODEL_STATES; s++) {
        begin_sample(p, "inferd_model_state", m, "state", model_state_name((model_state)s));
        buf_add_format(p->out, "%d\n", m->info.state == s);
    }
    write_model_rows(p);
    write_model_pages(p);
    write_switches(p);
    scalar(p->out, "inferd_model_turns_total", "counter",
           "Times a model left because another of its class waited.", p->now->engine->n_turns);
    scalar(p->out, "inferd_draining", "gauge", "1 while the daemon finishes and takes nothing new.",
           p->now->draining);
    scalar(p->out, "inferd_start_time_seconds", "gauge", "When the daemon started, unix time.",
           p->now->started_unix_s);
    family(p->out, "inferd_build_info", "gauge", "Always 1; the label says which build.");
    buf_add_format(p->out, "inferd_build_info{version=\"%s\"} 1\n", p->now->version);
}

/* One figure of the engine, and its alias when vLLM has it. */
static void engine_value(page *p, const char *name, const char *alias, const char *type,
                         const char *help, uint64_t v) {
    scalar(p->out, name, type, help, v);
    if (alias == NULL) return;
    family(p->out, alias, type, help);
    buf_add_format(p->out, "%s{%s} %llu\n", alias, engine_label(p), (unsigned long long)v);
}

static void write_pages(page *p) {
    const engine_stats *e = p->now->engine;
    const struct {
        const char *state;
        uint32_t n;
    } rows[] = {
        {"free", e->pages_free},     {"weight", e->pages_weight},         {"kv", e->pages_kv},
        {"cached", e->pages_cached}, {"quarantine", e->pages_quarantine}, {"warm", e->pages_warm}};
    family(p->out, "inferd_pages", "gauge", "Pages of the pool, by what holds them.");
    for (size_t i = 0; i < INFERD_COUNT(rows); i++)
        buf_add_format(p->out, "inferd_pages{state=\"%s\"} %u\n", rows[i].state, rows[i].n);
    scalar(p->out, "inferd_pages_total", "gauge", "Pages of the pool.", e->pages_total);
    /* Pages that only the prefix cache holds can be had at once, so they do not count as used. */
    uint64_t n_kv = (uint64_t)e->pages_kv + e->pages_free + e->pages_cached;
    double used = n_kv == 0 ? 0.0 : (double)e->pages_kv / (double)n_kv;
    family(p->out, "inferd_kv_usage_ratio", "gauge",
           "Share of the pages for keys and values in use.");
    sample_real(p->out, "inferd_kv_usage_ratio", "", used);
    family(p->out, "vllm:kv_cache_usage_perc", "gauge", "Share of the KV cache in use, 0 to 1.");
    buf_add_format(p->out, "vllm:kv_cache_usage_perc{%s} ", engine_label(p));
    json_add_real(p->out, used);
    buf_add_char(p->out, '\n');
}

static void write_steps(page *p) {
    const engine_stats *e = p->now->engine;
    uint64_t total = 0;
    family(p->out, "inferd_step_seconds", "histogram", "Time of one engine step.");
    for (uint32_t i = 0; i < ENGINE_STEP_BUCKETS; i++) {
        total += e->step_us_hist[i];
        buf_add_str(p->out, "inferd_step_seconds_bucket{le=\"");
        if (i + 1 < ENGINE_STEP_BUCKETS)
            json_add_real(p->out, engine_step_us_bounds[i] / 1e6);
        else
            buf_add_str(p->out, "+Inf");
        buf_add_format(p->out, "\"} %llu\n", (unsigned long long)total);
    }
    sample_real(p->out, "inferd_step_seconds_sum", "", (double)e->step_us_sum / 1e6);
    sample_u64(p->out, "inferd_step_seconds_count", "", total);
    family(p->out, "inferd_device_seconds_total", "counter", "Time the device computed.");
    sample_real(p->out, "inferd_device_seconds_total", "", (double)e->device_us_sum / 1e6);
    family(p->out, "inferd_rows_total", "counter", "Tokens computed, by phase.");
    sample_u64(p->out, "inferd_rows_total", "{phase=\"prefill\"}", e->n_prefill_rows);
    sample_u64(p->out, "inferd_rows_total", "{phase=\"decode\"}", e->n_decode_rows);
}

static void device_text(page *p, const char *name, const char *value) {
    buf_add_format(p->out, "%s=\"", name);
    add_label_text(p->out, value);
    buf_add_str(p->out, "\"");
}

static void device_known(page *p, const char *name, const char *type, const char *help, int64_t v) {
    if (v >= 0) scalar(p->out, name, type, help, (uint64_t)v);
}

static void write_health(page *p, const backend_device_about *d) {
    scalar(p->out, "inferd_gpu_health_known", "gauge", "1 when NVML answers for the device.",
           d->health.known);
    if (!d->health.known) return;
    device_known(p, "inferd_gpu_temperature_celsius", "gauge", "Temperature.",
                 d->health.temperature_c);
    device_known(p, "inferd_gpu_power_watts", "gauge", "Power drawn.", d->health.power_w);
    device_known(p, "inferd_gpu_utilization_percent", "gauge", "Time that any kernel ran.",
                 d->health.utilization_pct);
    device_known(p, "inferd_gpu_memory_used_bytes", "gauge", "Memory in use, by all processes.",
                 d->health.memory_used_bytes);
    device_known(p, "inferd_gpu_ecc_uncorrected_total", "counter",
                 "Uncorrected ECC errors since the driver was loaded.", d->health.ecc_uncorrected);
    device_known(p, "inferd_gpu_remapped_rows_total", "counter",
                 "Memory rows remapped because of uncorrectable errors.", d->health.remapped_rows);
    device_known(p, "inferd_gpu_remap_pending", "gauge",
                 "1 when a reset must finish a row remapping.", d->health.remap_pending);
    device_known(p, "inferd_gpu_throttle_thermal", "gauge", "1 while heat lowers the clocks.",
                 d->health.throttle_thermal);
}

/* What only a GPU has. */
static void write_gpu(page *p, const backend_device_about *d) {
    const backend_stats *b = &p->now->engine->backend;
    const struct {
        const char *path;
        uint64_t n;
    } paths[] = {{"gemv", b->n_matmul_gemv},
                 {"skinny", b->n_matmul_skinny},
                 {"cublaslt", b->n_matmul_lt},
                 {"expanded", b->n_matmul_expanded},
                 {"skinny_large", b->n_matmul_skinny_large}};
    scalar(p->out, "inferd_gpu_launches_total", "counter", "Kernels launched one by one.",
           b->n_launches);
    scalar(p->out, "inferd_gpu_graphs_total", "counter", "Graphs captured.", b->n_graphs);
    scalar(p->out, "inferd_gpu_graphs_refused_total", "counter",
           "Captures that the device refused.", b->n_graphs_refused);
    scalar(p->out, "inferd_gpu_graph_launches_total", "counter", "Steps that were one graph.",
           b->n_graph_launches);
    family(p->out, "inferd_gpu_matmuls_total", "counter",
           "Matrix products launched or captured, by path.");
    for (size_t i = 0; i < INFERD_COUNT(paths); i++)
        buf_add_format(p->out, "inferd_gpu_matmuls_total{path=\"%s\"} %llu\n", paths[i].path,
                       (unsigned long long)paths[i].n);
    scalar(p->out, "inferd_gpu_load_bytes_total", "counter",
           "Bytes of weights copied to the device.", b->load_bytes);
    family(p->out, "inferd_gpu_load_seconds_total", "counter",
           "Time with such copies on their way.");
    sample_real(p->out, "inferd_gpu_load_seconds_total", "", (double)b->load_us / 1e6);
    scalar(p->out, "inferd_gpu_bus_bytes_per_second", "gauge",
           "Copy rate from pinned host memory, measured at start.", b->bus_bytes_per_s);
    scalar(p->out, "inferd_gpu_pinned_bytes", "gauge", "Host memory pinned for copies of weights.",
           b->pinned_bytes);
    write_health(p, d);
}

static void write_device(page *p) {
    const backend_device_about *d = p->now->device;
    scalar(p->out, "inferd_device_lost", "gauge", "1 when the device is gone and the process ends.",
           p->now->device_lost);
    scalar(p->out, "inferd_kv_driver_calls_total", "counter",
           "Driver or system calls for memory made on the way of keys and values; stays 0.",
           p->now->engine->backend.n_kv_driver_calls);
    if (d == NULL || d->kind[0] == 0) return;
    bool gpu = strcmp(d->kind, "cuda") == 0;
    family(p->out, "inferd_device_info", "gauge", "Always 1; the labels say what computes.");
    buf_add_format(p->out, "inferd_device_info{kind=\"%s\",", d->kind);
    device_text(p, "name", d->name);
    buf_add_str(p->out, ",");
    device_text(p, "uuid", d->uuid);
    buf_add_format(p->out, ",mig=\"%s\"} 1\n", d->mig ? "true" : "false");
    scalar(p->out, "inferd_device_memory_bytes", "gauge", "Memory of the device.", d->memory_bytes);
    scalar(p->out, "inferd_device_units", "gauge", "Multiprocessors of a GPU, threads of a CPU.",
           d->n_units);
    if (gpu) write_gpu(p, d);
}

static void write_engine(page *p) {
    const engine_stats *e = p->now->engine;
    engine_value(p, "inferd_sequences_running", "vllm:num_requests_running", "gauge",
                 "Sequences in the batch.", e->n_running);
    engine_value(p, "inferd_sequences_waiting", "vllm:num_requests_waiting", "gauge",
                 "Sequences that wait for the batch.", e->n_waiting);
    engine_value(p, "inferd_sequences_paused", NULL, "gauge",
                 "Sequences whose client does not read.", e->n_paused);
    engine_value(p, "inferd_preemptions_total", "vllm:num_preemptions_total", "counter",
                 "Sequences that lost their pages to others.", e->n_preemptions);
    engine_value(p, "inferd_recomputed_tokens_total", NULL, "counter",
                 "Tokens computed again after a preemption.", e->n_recomputed_tokens);
    engine_value(p, "inferd_prefix_query_tokens_total", "vllm:prefix_cache_queries_total",
                 "counter", "Prompt tokens looked up in the prefix cache.",
                 e->prefix_queries_tokens);
    engine_value(p, "inferd_prefix_hit_tokens_total", "vllm:prefix_cache_hits_total", "counter",
                 "Prompt tokens found in the prefix cache.", e->prefix_hits_tokens);
    engine_value(p, "inferd_draft_tokens_total", "vllm:spec_decode_num_draft_tokens_total",
                 "counter", "Tokens guessed ahead and computed.", e->n_drafted);
    engine_value(p, "inferd_draft_tokens_right_total", "vllm:spec_decode_num_accepted_tokens_total",
                 "counter", "Guessed tokens that were the ones drawn.", e->n_drafts_right);
    write_pages(p);
    write_steps(p);
    write_device(p);
}

void metrics_write(const metrics *m, const metrics_now *now, buf *out) {
    page p = {.m = m, .now = now, .out = out};
    write_requests(&p);
    model_counter(&p, "inferd_prompt_tokens_total", "vllm:prompt_tokens_total",
                  "Prompt tokens of ended sequences.", offsetof(model_metrics, n_prompt));
    model_counter(&p, "inferd_cached_tokens_total", "vllm:prompt_tokens_cached_total",
                  "Prompt tokens that were not computed again.", offsetof(model_metrics, n_cached));
    model_counter(&p, "inferd_output_tokens_total", "vllm:generation_tokens_total",
                  "Generated tokens.", offsetof(model_metrics, n_output));
    write_histograms(&p);
    write_http(&p);
    write_models(&p);
    write_engine(&p);
    buf_deinit(&p.label);
}
