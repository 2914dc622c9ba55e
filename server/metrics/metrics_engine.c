/* metrics_engine.c - devices: sequences, pages, steps, preemptions, state of the hardware. */
#include "metrics_page.h"

/* One figure of the engine, and vLLM's alias if there is one. */
static void engine_value(page *p, const char *name, const char *alias, const char *type,
                         const char *help, uint64_t v) {
    page_scalar(p, name, type, help, v);
    if (alias == NULL) return;
    page_family(p, alias, type, help);
    buf_add_format(p->out, "%s{%s} %llu\n", alias, page_engine_label(p), (unsigned long long)v);
}

#define EACH_DEVICE(p, d)                                                                          \
    for (const metrics_device *d = (p)->now->devices; d < (p)->now->devices + (p)->now->n_devices; \
         d++)

/* One figure of each device; `more` are additional labels. */
typedef struct stat_row {
    const char *more;
    size_t offset;
    bool wide; // uint64_t; else uint32_t
} stat_row;
#define STAT(field) offsetof(engine_stats, field)

static uint64_t sum(const page *p, size_t offset, bool wide) {
    uint64_t total = 0;
    EACH_DEVICE(p, d) total += page_field(&d->stats, offset, wide);
    return total;
}

static void rows_of(page *p, const char *name, const char *type, const char *help,
                    const stat_row *rows, size_t n, bool seconds) {
    page_family(p, name, type, help);
    EACH_DEVICE(p, d)
        for (size_t i = 0; i < n; i++) {
            const char *label = page_device_label(p, d, rows[i].more);
            uint64_t v = page_field(&d->stats, rows[i].offset, rows[i].wide);
            if (seconds)
                page_real(p, name, label, (double)v / 1e6);
            else
                page_u64(p, name, label, v);
        }
}

static void write_pages(page *p) {
    static const stat_row rows[] = {{",state=\"free\"", STAT(pages_free), false},
                                    {",state=\"weight\"", STAT(pages_weight), false},
                                    {",state=\"kv\"", STAT(pages_kv), false},
                                    {",state=\"cached\"", STAT(pages_cached), false},
                                    {",state=\"quarantine\"", STAT(pages_quarantine), false},
                                    {",state=\"warm\"", STAT(pages_warm), false},
                                    {",state=\"parked\"", STAT(pages_swapped), false},
                                    {",state=\"absent\"", STAT(pages_absent), false}};
    static const stat_row all[] = {{"", STAT(pages_total), false}};
    static const stat_row budgets[] = {{",ledger=\"device\"", STAT(pages_device), false},
                                       {",ledger=\"host\"", STAT(pages_host), false}};
    static const stat_row host_free[] = {{"", STAT(pages_host_free), false}};
    static const stat_row bytes_of[] = {{"", STAT(page_bytes), true}};
    rows_of(p, "inferd_pages", "gauge", "Pages of the pool, by state.", rows, INFERD_COUNT(rows),
            false);
    rows_of(p, "inferd_pool_pages", "gauge", "Pages of the pool.", all, 1, false);
    rows_of(p, "inferd_pages_ledger", "gauge",
            "Pages that count for the device budget and the host budget.", budgets,
            INFERD_COUNT(budgets), false);
    rows_of(p, "inferd_pages_host_free", "gauge", "Free pages of the host budget.", host_free, 1,
            false);
    rows_of(p, "inferd_page_bytes", "gauge", "Bytes of a page.", bytes_of, 1, false);
    /* Pages that only the prefix cache uses can be freed at once, so they do not count as used. */
    uint64_t n_used = sum(p, STAT(pages_kv), false);
    uint64_t n_kv = n_used + sum(p, STAT(pages_free), false) + sum(p, STAT(pages_cached), false);
    double used = n_kv == 0 ? 0.0 : (double)n_used / (double)n_kv;
    page_family(p, "inferd_kv_usage_ratio", "gauge",
                "Share of the pages for keys and values in use.");
    page_real(p, "inferd_kv_usage_ratio", "", used);
    page_family(p, "vllm:kv_cache_usage_perc", "gauge", "Share of the KV cache in use, 0 to 1.");
    page_real(p, "vllm:kv_cache_usage_perc", page_engine_label(p), used);
}

static void write_steps(page *p) {
    static const stat_row busy[] = {{"", STAT(device_us_sum), true}};
    static const stat_row rows[] = {{",phase=\"prefill\"", STAT(n_prefill_rows), true},
                                    {",phase=\"decode\"", STAT(n_decode_rows), true}};
    page_family(p, "inferd_step_seconds", "histogram", "Time of one engine step.");
    EACH_DEVICE(p, d)
        page_histogram_us(p, "inferd_step_seconds", page_device_label(p, d, ""),
                          engine_step_us_bounds, ENGINE_STEP_BUCKETS, d->stats.step_us_hist,
                          d->stats.step_us_sum);
    rows_of(p, "inferd_device_busy_seconds_total", "counter", "Time the device computed.", busy, 1,
            true);
    rows_of(p, "inferd_rows_total", "counter", "Tokens computed, by phase.", rows,
            INFERD_COUNT(rows), false);
}

/* The time since the start by use; the parts of a device add up to that time. */
static void write_parts(page *p) {
    static const stat_row parts[] = {{",part=\"requests\"", STAT(charged_us), true},
                                     {",part=\"load\"", STAT(usage_load_us), true},
                                     {",part=\"recompute\"", STAT(waste_us), true},
                                     {",part=\"move\"", STAT(usage_move_us), true},
                                     {",part=\"idle\"", STAT(usage_idle_us), true},
                                     {",part=\"host\"", STAT(usage_host_us), true}};
    rows_of(
        p, "inferd_device_account_seconds_total", "counter",
        "Where the time of a device went: requests (charged to tenants), load (bringing models "
        "up), recompute and move (the cost of preemptions), idle, host (iterations without work).",
        parts, INFERD_COUNT(parts), true);
    static const stat_row classes[] = {{",class=\"system\"", STAT(class_us[GEN_SYSTEM]), true},
                                       {",class=\"high\"", STAT(class_us[GEN_HIGH]), true},
                                       {",class=\"normal\"", STAT(class_us[GEN_NORMAL]), true},
                                       {",class=\"batch\"", STAT(class_us[GEN_BATCH]), true}};
    rows_of(p, "inferd_class_device_seconds_total", "counter",
            "Device time charged to requests, by the class that they ask for.", classes,
            INFERD_COUNT(classes), true);
    page_family(
        p, "inferd_device_wall_seconds_total", "counter",
        "Time since the device was opened, as far as it is accounted for; the sum of the parts.");
    EACH_DEVICE(p, d) {
        const engine_stats *s = &d->stats;
        page_real(p, "inferd_device_wall_seconds_total", page_device_label(p, d, ""),
                  (double)(s->usage_until_us - s->opened_us) / 1e6);
    }
}

/* Which classes have sequences, and whether they get steps. */
static void write_classes(page *p) {
    page_family(
        p, "inferd_class_sequences", "gauge",
        "Sequences by class of the request and state; those that are paused are not in it.");
    EACH_DEVICE(p, d)
        for (int c = 0; c < GEN_CLASSES; c++) {
            const struct {
                const char *state;
                uint32_t n;
            } rows[] = {{"running", d->stats.class_running[c]},
                        {"waiting", d->stats.class_waiting[c]}};
            for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
                char more[64];
                snprintf(more, sizeof more, ",class=\"%s\",state=\"%s\"",
                         gen_class_name((gen_class)c), rows[i].state);
                page_u64(p, "inferd_class_sequences", page_device_label(p, d, more), rows[i].n);
            }
        }
    page_family(p, "inferd_class_wait_seconds", "gauge",
                "Longest time that a sequence of the class has had no step, since its arrival or "
                "its newest step; 0: the class has no sequence.");
    EACH_DEVICE(p, d)
        for (int c = 0; c < GEN_CLASSES; c++) {
            char more[64];
            uint64_t since_us = d->stats.class_since_us[c];
            uint64_t us =
                since_us == 0 || p->now->now_us < since_us ? 0 : p->now->now_us - since_us;
            snprintf(more, sizeof more, ",class=\"%s\"", gen_class_name((gen_class)c));
            page_real(p, "inferd_class_wait_seconds", page_device_label(p, d, more),
                      (double)us / 1e6);
        }
}

static void write_preempts(page *p) {
    page_family(p, "inferd_preemption_seconds", "histogram",
                "Time from a preemption until the sequence continues, by kind.");
    EACH_DEVICE(p, d)
        for (int r = 0; r < GEN_PREEMPTS; r++) {
            const engine_times *t = &d->stats.preempts[r];
            char more[64];
            snprintf(more, sizeof more, ",rung=\"%s\"", gen_preempt_name((gen_preempt)r));
            page_histogram_us(p, "inferd_preemption_seconds", page_device_label(p, d, more),
                              engine_preempt_us_bounds, ENGINE_PREEMPT_BUCKETS, t->hist, t->us);
        }
    page_family(p, "inferd_preemption_relief_seconds", "histogram",
                "Time from the decision to preempt until the pages are free.");
    EACH_DEVICE(p, d)
        page_histogram_us(p, "inferd_preemption_relief_seconds", page_device_label(p, d, ""),
                          engine_preempt_us_bounds, ENGINE_PREEMPT_BUCKETS, d->stats.relief.hist,
                          d->stats.relief.us);
}

/* Whether models that were evicted for each other are brought back all the time. */
static void write_thrash(page *p) {
    static const stat_row reloads[] = {{"", STAT(reload_us_window), true}};
    page_family(
        p, "inferd_thrashing", "gauge",
        "1 while reloading evicted models takes much of all time, and time slices have quotas.");
    EACH_DEVICE(p, d)
        page_u64(p, "inferd_thrashing", page_device_label(p, d, ""), d->stats.thrashing);
    rows_of(p, "inferd_thrash_reload_seconds", "gauge",
            "Time of the last 10 seconds that reloading evicted models took.", reloads, 1, true);
    page_family(p, "inferd_turns_attainment_ratio", "gauge",
                "Part of the tokens that is on time with the newest quotas of time slices.");
    EACH_DEVICE(p, d)
        page_real(p, "inferd_turns_attainment_ratio", page_device_label(p, d, ""),
                  (double)d->stats.slices_attainment_ppm / 1e6);
}

static void write_policy(page *p) {
    static const stat_row slices[] = {{"", STAT(n_slices), true}};
    static const stat_row moved[] = {{",to=\"host\"", STAT(n_swapped_out), true},
                                     {",to=\"device\"", STAT(n_swapped_in), true}};
    static const stat_row swapped[] = {{"", STAT(blocks_swapped), false}};
    rows_of(p, "inferd_model_turns_total", "counter",
            "Time slices that ended: a model was evicted because another of its class waited.",
            slices, 1, false);
    write_thrash(p);
    rows_of(p, "inferd_kv_blocks_moved_total", "counter",
            "Blocks of keys and values copied to host memory and back.", moved, INFERD_COUNT(moved),
            false);
    rows_of(p, "inferd_kv_blocks_parked", "gauge", "Blocks swapped out to host memory.", swapped, 1,
            false);
    page_family(
        p, "inferd_slo_predicted_ratio", "gauge",
        "Part of the targets of running requests that can be kept, as steps are predicted.");
    EACH_DEVICE(p, d)
        page_real(p, "inferd_slo_predicted_ratio", page_device_label(p, d, ""),
                  d->stats.attainment_ppm / 1e6);
}

static void device_text(page *p, const char *name, const char *value) {
    buf_add_format(p->out, "%s=\"", name);
    page_label_text(p->out, value);
    buf_add_str(p->out, "\"");
}

/* A family that only some devices report. */
typedef struct health_row {
    const char *name, *type, *help;
    int64_t (*value)(const metrics_device *d); // negative: not reported
} health_row;

static bool is_known(const metrics_device *d) {
    return d->about != NULL && d->about->kind[0] != 0;
}

static bool is_gpu(const metrics_device *d) {
    return is_known(d) && strcmp(d->about->kind, "cuda") == 0;
}

/* Omits families that no device reports. */
static void write_told(page *p, const health_row *rows, size_t n,
                       bool (*has)(const metrics_device *)) {
    for (size_t i = 0; i < n; i++) {
        bool any = false;
        EACH_DEVICE(p, d) any = any || (has(d) && rows[i].value(d) >= 0);
        if (!any) continue;
        page_family(p, rows[i].name, rows[i].type, rows[i].help);
        EACH_DEVICE(p, d) {
            int64_t v = has(d) ? rows[i].value(d) : -1;
            if (v >= 0) page_u64(p, rows[i].name, page_device_label(p, d, ""), (uint64_t)v);
        }
    }
}

#define HEALTH(field)                                                                              \
    static int64_t field(const metrics_device *d) {                                                \
        return d->about->health.known ? (int64_t)d->about->health.field : -1;                      \
    }
HEALTH(temperature_c)
HEALTH(power_w)
HEALTH(utilization_pct)
HEALTH(memory_used_bytes)
HEALTH(ecc_uncorrected)
HEALTH(remapped_rows)
HEALTH(remap_pending)
HEALTH(throttle_thermal)
#define BACKEND(field)                                                                             \
    static int64_t field(const metrics_device *d) {                                                \
        return (int64_t)d->stats.backend.field;                                                    \
    }
BACKEND(n_launches)
BACKEND(n_graphs)
BACKEND(n_graphs_refused)
BACKEND(n_graph_launches)
BACKEND(load_bytes)
BACKEND(bus_bytes_per_s)
BACKEND(pinned_bytes)

static int64_t health_known(const metrics_device *d) {
    return d->about->health.known;
}
static int64_t memory_bytes(const metrics_device *d) {
    return (int64_t)d->about->memory_bytes;
}
static int64_t n_units(const metrics_device *d) {
    return d->about->n_units;
}

static const health_row device_rows[] = {
    {"inferd_device_memory_bytes", "gauge", "Memory of the device.", memory_bytes},
    {"inferd_device_units", "gauge", "Multiprocessors of a GPU, threads of a CPU.", n_units}};

static const health_row gpu_rows[] = {
    {"inferd_gpu_launches_total", "counter", "Kernels launched one by one.", n_launches},
    {"inferd_gpu_graphs_total", "counter", "Graphs captured.", n_graphs},
    {"inferd_gpu_graphs_refused_total", "counter", "Captures that the device refused.",
     n_graphs_refused},
    {"inferd_gpu_graph_launches_total", "counter", "Steps launched as one graph.",
     n_graph_launches},
    {"inferd_gpu_load_bytes_total", "counter", "Bytes of weights copied to the device.",
     load_bytes},
    {"inferd_gpu_bus_bytes_per_second", "gauge",
     "Copy rate from pinned host memory, measured at start.", bus_bytes_per_s},
    {"inferd_gpu_pinned_bytes", "gauge", "Host memory pinned for copies of weights.", pinned_bytes},
    {"inferd_gpu_health_known", "gauge", "1 when NVML answers for the device.", health_known},
    {"inferd_gpu_temperature_celsius", "gauge", "Temperature.", temperature_c},
    {"inferd_gpu_power_watts", "gauge", "Power drawn.", power_w},
    {"inferd_gpu_utilization_percent", "gauge", "Time that any kernel ran.", utilization_pct},
    {"inferd_gpu_memory_used_bytes", "gauge", "Memory in use, by all processes.",
     memory_used_bytes},
    {"inferd_gpu_ecc_uncorrected_total", "counter",
     "Uncorrected ECC errors since the driver was loaded.", ecc_uncorrected},
    {"inferd_gpu_remapped_rows_total", "counter",
     "Memory rows remapped because of uncorrectable errors.", remapped_rows},
    {"inferd_gpu_remap_pending", "gauge", "1 when a reset must finish a row remapping.",
     remap_pending},
    {"inferd_gpu_throttle_thermal", "gauge", "1 while heat lowers the clocks.", throttle_thermal}};

static void write_gpus(page *p) {
    bool any = false;
    EACH_DEVICE(p, d) any = any || is_gpu(d);
    if (!any) return;
    write_told(p, gpu_rows, INFERD_COUNT(gpu_rows), is_gpu);
    page_family(p, "inferd_gpu_matmuls_total", "counter",
                "Matrix products launched or captured, by path.");
    EACH_DEVICE(p, d) {
        const backend_stats *b = &d->stats.backend;
        const struct {
            const char *more;
            uint64_t n;
        } paths[] = {{",path=\"gemv\"", b->n_matmul_gemv},
                     {",path=\"skinny\"", b->n_matmul_skinny},
                     {",path=\"cublaslt\"", b->n_matmul_lt},
                     {",path=\"expanded\"", b->n_matmul_expanded},
                     {",path=\"skinny_large\"", b->n_matmul_skinny_large}};
        for (size_t i = 0; i < INFERD_COUNT(paths) && is_gpu(d); i++)
            page_u64(p, "inferd_gpu_matmuls_total", page_device_label(p, d, paths[i].more),
                     paths[i].n);
    }
    page_family(p, "inferd_device_part", "gauge",
                "1 for the state that a part of the backend is in: on, off, absent, degraded.");
    EACH_DEVICE(p, d)
        for (uint32_t i = 0; is_gpu(d) && i < d->stats.backend.n_parts; i++) {
            const be_device_part *part = &d->stats.backend.parts[i];
            char more[64];
            snprintf(more, sizeof more, ",part=\"%s\",state=\"%s\"", part->name,
                     be_part_state_name(part->state));
            page_u64(p, "inferd_device_part", page_device_label(p, d, more), 1);
        }
    page_family(p, "inferd_gpu_load_seconds_total", "counter",
                "Time during which weights were copied to the device.");
    EACH_DEVICE(p, d)
        if (is_gpu(d))
            page_real(p, "inferd_gpu_load_seconds_total", page_device_label(p, d, ""),
                      (double)d->stats.backend.load_us / 1e6);
}

static void write_about(page *p) {
    bool any = false;
    EACH_DEVICE(p, d) any = any || is_known(d);
    if (!any) return;
    page_family(p, "inferd_device_info", "gauge", "Always 1; the labels describe the device.");
    EACH_DEVICE(p, d) {
        const backend_device_about *a = d->about;
        if (!is_known(d)) continue;
        buf_add_format(p->out, "inferd_device_info{%s,kind=\"%s\",", page_device_label(p, d, ""),
                       a->kind);
        device_text(p, "name", a->name);
        buf_add_str(p->out, ",");
        device_text(p, "uuid", a->uuid);
        buf_add_format(p->out, ",mig=\"%s\"} 1\n", a->mig ? "true" : "false");
    }
    write_told(p, device_rows, INFERD_COUNT(device_rows), is_known);
}

static void write_device(page *p) {
    static const stat_row calls[] = {{"", STAT(backend.n_kv_driver_calls), true}};
    page_family(p, "inferd_device_lost", "gauge",
                "1 when the device is lost; the process ends when the last one is lost.");
    EACH_DEVICE(p, d) page_u64(p, "inferd_device_lost", page_device_label(p, d, ""), d->lost);
    rows_of(p, "inferd_kv_driver_calls_total", "counter",
            "Driver or system calls for memory made while allocating keys and values; stays 0.",
            calls, 1, false);
    write_about(p);
    write_gpus(p);
}

/* Output that follows a grammar. */
static void write_masks(page *p) {
    engine_value(p, "inferd_grammar_masks_total", NULL, "counter",
                 "Masks for draws under a grammar.", sum(p, STAT(n_masks), true));
    engine_value(p, "inferd_grammar_masks_made_total", NULL, "counter",
                 "Masks that were in no cache.", sum(p, STAT(n_masks_made), true));
    engine_value(p, "inferd_grammar_masks_late_total", NULL, "counter",
                 "Draws that waited a step for their mask.", sum(p, STAT(n_masks_late), true));
    page_family(p, "inferd_grammar_mask_seconds_total", "counter",
                "Time of the threads that make masks.");
    page_real(p, "inferd_grammar_mask_seconds_total", "",
              (double)sum(p, STAT(masks_us), true) / 1e6);
}

void metrics_write_engine(page *p) {
    engine_value(p, "inferd_sequences_running", "vllm:num_requests_running", "gauge",
                 "Sequences in the batch.", sum(p, STAT(n_running), false));
    engine_value(p, "inferd_sequences_waiting", "vllm:num_requests_waiting", "gauge",
                 "Sequences that wait for the batch.", sum(p, STAT(n_waiting), false));
    engine_value(p, "inferd_sequences_paused", NULL, "gauge",
                 "Sequences paused because their client does not read.",
                 sum(p, STAT(n_paused), false));
    engine_value(p, "inferd_sequences_preempted_total", "vllm:num_preemptions_total", "counter",
                 "Sequences that lost their pages to others.", sum(p, STAT(n_preemptions), true));
    engine_value(p, "inferd_recomputed_tokens_total", NULL, "counter",
                 "Tokens computed again after a preemption.",
                 sum(p, STAT(n_recomputed_tokens), true));
    engine_value(p, "inferd_prefix_query_tokens_total", "vllm:prefix_cache_queries_total",
                 "counter", "Prompt tokens looked up in the prefix cache.",
                 sum(p, STAT(prefix_queries_tokens), true));
    engine_value(p, "inferd_prefix_hit_tokens_total", "vllm:prefix_cache_hits_total", "counter",
                 "Prompt tokens found in the prefix cache.",
                 sum(p, STAT(prefix_hits_tokens), true));
    engine_value(p, "inferd_draft_tokens_total", "vllm:spec_decode_num_draft_tokens_total",
                 "counter", "Draft tokens computed.", sum(p, STAT(n_drafted), true));
    engine_value(p, "inferd_draft_tokens_right_total", "vllm:spec_decode_num_accepted_tokens_total",
                 "counter", "Draft tokens accepted.", sum(p, STAT(n_drafts_right), true));
    write_masks(p);
    write_pages(p);
    write_steps(p);
    write_parts(p);
    write_classes(p);
    write_preempts(p);
    write_policy(p);
    write_device(p);
}
