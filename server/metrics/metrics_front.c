/* metrics_front.c - requests, and the transport. */
#include "metrics_page.h"

#define EACH_NAME(p, i)                                                                            \
    for (uint32_t i = 0; i < (p)->now->n_names; i++)                                               \
        if (page_has_name((p), i))

static void write_requests(page *p) {
    page_family(p, "inferd_requests_total", "counter", "Generation requests, by how they ended.");
    EACH_NAME(p, i)
        for (uint32_t o = 0; o < OUTCOMES; o++)
            buf_add_format(p->out, "inferd_requests_total{%s,outcome=\"%s\"} %llu\n",
                           page_model_label(p, i, false), metrics_outcome_names[o],
                           (unsigned long long)p->m->models[i].n_requests[o]);
    page_family(p, "vllm:request_success_total", "counter", "Requests answered, by finish reason.");
    EACH_NAME(p, i)
        for (uint32_t o = OUTCOME_STOP; o <= OUTCOME_LENGTH; o++)
            buf_add_format(p->out, "vllm:request_success_total{%s,finished_reason=\"%s\"} %llu\n",
                           page_model_label(p, i, true), metrics_outcome_names[o],
                           (unsigned long long)p->m->models[i].n_requests[o]);
}

static void model_counter(page *p, const char *name, const char *alias, const char *help,
                          size_t offset) {
    for (int vllm = 0; vllm <= 1; vllm++) {
        const char *n = vllm ? alias : name;
        page_family(p, n, "counter", help);
        EACH_NAME(p, i) {
            uint64_t v;
            memcpy(&v, (const char *)&p->m->models[i] + offset, sizeof v);
            buf_add_format(p->out, "%s{%s} %llu\n", n, page_model_label(p, i, vllm),
                           (unsigned long long)v);
        }
    }
}

static void write_prefixes(page *p) {
    page_family(p, "inferd_prompt_prefixes_total", "counter",
                "Prompts of conversations, by why the part computed before ended.");
    EACH_NAME(p, i)
        for (prefix_cause c = 0; c < PREFIX_CAUSES; c++)
            buf_add_format(p->out, "inferd_prompt_prefixes_total{%s,end=\"%s\"} %llu\n",
                           page_model_label(p, i, false), prefix_cause_name(c),
                           (unsigned long long)p->m->models[i].n_prefixes[c]);
    if (p->now->view != NULL) return; // of all tenants
    page_scalar(p, "inferd_answers_resent_total", "counter",
                "Answers that came back in a later prompt.", p->now->n_resent);
    page_scalar(p, "inferd_answers_retokenised_total", "counter",
                "Of those, with tokens other than their text would have.", p->now->n_retokenised);
    page_scalar(p, "inferd_transcript_bytes", "gauge",
                "Memory for text and tokens of conversations.", p->now->n_transcript_bytes);
}

static void write_histograms(page *p) {
    for (int h = 0; h < HISTS; h++) {
        const hist_row *row = &metrics_hist_rows[h];
        for (int vllm = 0; vllm <= 1; vllm++) {
            const char *name = vllm ? row->alias : row->name;
            page_family(p, name, "histogram", row->help);
            EACH_NAME(p, i)
                page_histogram(p, name, page_model_label(p, i, vllm), row->bounds,
                               &p->m->models[i].hists[h]);
        }
    }
    page_family(p, "inferd_loop_lag_seconds", "histogram", "How late the event loop's tick was.");
    page_histogram(p, "inferd_loop_lag_seconds", "", &metrics_bounds_lag, &p->m->lag);
}

static void write_targets(page *p) {
    static const char *const names[METRIC_TARGETS] = {"ttft", "tpot"};
    page_family(p, "inferd_slo_requests_total", "counter",
                "Answers with a target (ttft: requests, tpot: choices), by whether it was kept.");
    EACH_NAME(p, i)
        for (int t = 0; t < METRIC_TARGETS; t++)
            for (int kept = 0; kept <= 1; kept++)
                buf_add_format(p->out,
                               "inferd_slo_requests_total{%s,target=\"%s\",kept=\"%s\"} %llu\n",
                               page_model_label(p, i, false), names[t], kept ? "true" : "false",
                               (unsigned long long)p->m->models[i].n_targets[t][kept]);
}

static const char *path_of(const metrics *m, uint32_t route) {
    return route < m->n_routes ? m->routes[route].path : "none";
}

/* Answers with this status on routes of that path, from `first` on: several routes, of different
 * methods, may have one path, and a series may be there only once.  An earlier one has them: 0. */
static uint64_t n_answers(const metrics *m, uint32_t first, size_t status) {
    uint64_t n = 0;
    for (uint32_t r = 0; r <= m->n_routes; r++) {
        if (strcmp(path_of(m, r), path_of(m, first)) != 0) continue;
        if (r < first) return 0;
        n += m->http[r][status];
    }
    return n;
}

static void write_answers(page *p) {
    page_family(p, "inferd_http_responses_total", "counter", "HTTP answers, by route and status.");
    for (uint32_t r = 0; r <= p->m->n_routes; r++)
        for (size_t k = 0; k < METRICS_STATUSES; k++) {
            uint64_t n = n_answers(p->m, r, k);
            if (n == 0) continue;
            char status[16];
            snprintf(status, sizeof status, "%d", metrics_statuses[k]);
            buf_add_format(p->out, "inferd_http_responses_total{route=\"%s\",status=\"%s\"} %llu\n",
                           path_of(p->m, r), metrics_statuses[k] == 0 ? "other" : status,
                           (unsigned long long)n);
        }
}

static void write_responses(page *p) {
    const metrics_responses *r = p->now->responses;
    if (r == NULL) return;
    page_scalar(p, "inferd_responses_kept", "gauge", "Responses that are kept.", r->n);
    page_scalar(p, "inferd_responses_kept_bytes", "gauge", "Bytes of the files of kept responses.",
                r->n_bytes);
    page_scalar(p, "inferd_responses_not_kept_total", "counter",
                "Responses that could not be kept.", r->n_not_kept);
}

static void write_http(page *p) {
    write_answers(p);
    page_scalar(p, "inferd_http_exchanges", "gauge", "HTTP exchanges that are not finished.",
                p->now->n_http_open);
    page_scalar(p, "inferd_generations", "gauge", "Requests being generated or waiting.",
                p->now->n_generations);
    page_scalar(p, "inferd_unknown_fields_total", "counter",
                "Request fields that are not known, and have no effect.", p->m->n_unknown_fields);
    page_scalar(p, "inferd_log_lines_dropped_total", "counter",
                "Log lines dropped because they could not be written at once.",
                p->now->log_lines_dropped);
    page_family(p, "inferd_config_reloads_total", "counter", "Configuration reloads.");
    page_u64(p, "inferd_config_reloads_total", "result=\"ok\"", p->m->n_reloads[1]);
    page_u64(p, "inferd_config_reloads_total", "result=\"refused\"", p->m->n_reloads[0]);
    page_family(p, "inferd_config_changes_total", "counter",
                "Configuration changes over the admin API.");
    page_u64(p, "inferd_config_changes_total", "result=\"ok\"", p->m->n_changes[1]);
    page_u64(p, "inferd_config_changes_total", "result=\"refused\"", p->m->n_changes[0]);
}

/* The watchdog ends the process when one of these reaches its limit. */
static void write_loops(page *p) {
    page_family(p, "inferd_loop_silent_seconds", "gauge",
                "Time that a working loop has given no sign of life; 0: it waits for work.");
    for (uint32_t i = 0; i < p->now->n_loops; i++) {
        const metrics_loop *l = &p->now->loops[i];
        buf_add_format(p->out, "inferd_loop_silent_seconds{loop=\"%s%s", l->kind,
                       l->name[0] != 0 ? " " : "");
        page_label_text(p->out, l->name);
        buf_add_str(p->out, "\"} ");
        json_add_real(p->out, (double)l->silent_us / 1e6);
        buf_add_char(p->out, '\n');
    }
    page_scalar(p, "inferd_watchdog_limit_seconds", "gauge",
                "Silence of a loop after which the process ends; 0: never.", p->now->watchdog_s);
}

static void write_spans(page *p) {
    const metrics_spans *s = p->now->spans;
    if (s == NULL) return;
    page_scalar(p, "inferd_spans_sent_total", "counter", "Spans that the collector took.",
                s->n_sent);
    page_scalar(p, "inferd_spans_queued", "gauge", "Spans that wait to be sent.", s->n_queued);
    page_family(p, "inferd_spans_dropped_total", "counter",
                "Spans that were not delivered, by reason.");
    for (uint32_t i = 0; i < s->n_drops; i++)
        buf_add_format(p->out, "inferd_spans_dropped_total{why=\"%s\"} %llu\n", s->drops[i].why,
                       (unsigned long long)s->drops[i].n);
}

/* Under the names that Prometheus' own libraries give these figures. */
static void write_process(page *p) {
    if (p->now->cpu_us == 0 && p->now->resident_bytes == 0) return;
    page_family(p, "process_cpu_seconds_total", "counter", "Processor time of the process.");
    page_real(p, "process_cpu_seconds_total", "", (double)p->now->cpu_us / 1e6);
    page_scalar(p, "process_resident_memory_bytes", "gauge", "Resident memory of the process.",
                p->now->resident_bytes);
}

void metrics_write_front(page *p) {
    write_requests(p);
    model_counter(p, "inferd_prompt_tokens_total", "vllm:prompt_tokens_total",
                  "Prompt tokens of ended sequences.", offsetof(model_metrics, n_prompt));
    model_counter(p, "inferd_cached_tokens_total", "vllm:prompt_tokens_cached_total",
                  "Prompt tokens that were not computed again.", offsetof(model_metrics, n_cached));
    model_counter(p, "inferd_output_tokens_total", "vllm:generation_tokens_total",
                  "Generated tokens.", offsetof(model_metrics, n_output));
    write_prefixes(p);
    write_histograms(p);
    write_targets(p);
    write_responses(p);
    write_http(p);
    write_loops(p);
    write_process(p);
    write_spans(p);
}
