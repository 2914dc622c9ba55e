/* metrics_models.c - models: their devices, their memory, the cost of moving them. */
#include "metrics_page.h"

/* One figure of each served model. */
typedef struct info_row {
    const char *name, *type, *help;
    size_t offset;
    bool wide; // uint64_t; else uint32_t
} info_row;

#define INFO(field) offsetof(engine_model_info, field)
static const info_row info_rows[] = {
    {"inferd_model_requests_running", "gauge", "Sequences of the model in the batch.",
     INFO(n_running), false},
    {"inferd_model_requests_waiting", "gauge", "Sequences of the model that wait.", INFO(n_waiting),
     false},
    {"inferd_model_stages_total", "counter", "Times the weights were read and prepared.",
     INFO(n_stages), true},
    {"inferd_model_loads_total", "counter", "Times the model became hot.", INFO(n_loads), true},
    {"inferd_model_failures_total", "counter", "Times the model could not be brought up.",
     INFO(n_failed), true},
    {"inferd_model_kv_saturated_total", "counter",
     "Keys and values that were too large for f16 and were stored as its largest number.",
     INFO(n_saturated), true},
};
static const info_row time_rows[] = {
    {"inferd_model_hot_seconds_total", "counter", "Time the model was hot.", INFO(hot_us), true},
    {"inferd_model_device_seconds_total", "counter", "Time the model's steps took on the device.",
     INFO(device_us), true},
    {"inferd_model_load_device_seconds_total", "counter",
     "Time that loading the model kept the device from steps.", INFO(load_device_us), true},
};

/* "name{model="..", key="value"} " of a served model. */
static void begin_sample(page *p, const char *name, const metrics_model *m, const char *key,
                         const char *value) {
    buf_add_format(p->out, "%s{%s", name, page_model_label(p, m->name_idx, false));
    if (key != NULL) buf_add_format(p->out, ",%s=\"%s\"", key, value);
    buf_add_str(p->out, "} ");
}

#define EACH_SERVED(p, m)                                                                          \
    for (const metrics_model *m = (p)->now->models; m < (p)->now->models + (p)->now->n_models;     \
         m++)                                                                                      \
        if (page_has_name((p), m->name_idx))

static void write_model_rows(page *p) {
    for (size_t i = 0; i < INFERD_COUNT(info_rows); i++) {
        page_family(p, info_rows[i].name, info_rows[i].type, info_rows[i].help);
        EACH_SERVED(p, m) {
            begin_sample(p, info_rows[i].name, m, NULL, NULL);
            buf_add_format(
                p->out, "%llu\n",
                (unsigned long long)page_field(&m->info, info_rows[i].offset, info_rows[i].wide));
        }
    }
    for (size_t i = 0; i < INFERD_COUNT(time_rows); i++) {
        page_family(p, time_rows[i].name, time_rows[i].type, time_rows[i].help);
        EACH_SERVED(p, m) {
            begin_sample(p, time_rows[i].name, m, NULL, NULL);
            json_add_real(
                p->out, (double)page_field(&m->info, time_rows[i].offset, time_rows[i].wide) / 1e6);
            buf_add_char(p->out, '\n');
        }
    }
}

static bool has_experts(const metrics_model *m) {
    return m->m != NULL && model_about(m->m)->n_experts > 0;
}

static void write_experts(page *p) {
    uint64_t rows[BE_EXPERTS_MAX];
    char number[16];
    page_family(p, "inferd_model_expert_rows_total", "counter",
                "Tokens that each expert computed, in all layers.");
    EACH_SERVED(p, m) {
        if (!has_experts(m)) continue;
        model_expert_counts(m->m, rows);
        for (uint32_t i = 0; i < model_about(m->m)->n_experts; i++) {
            snprintf(number, sizeof number, "%u", i);
            begin_sample(p, "inferd_model_expert_rows_total", m, "expert", number);
            buf_add_format(p->out, "%llu\n", (unsigned long long)rows[i]);
        }
    }
    page_family(p, "inferd_model_expert_reads_total", "counter",
                "Times a step read the weights of an expert, in all layers.");
    EACH_SERVED(p, m) {
        if (!has_experts(m)) continue;
        begin_sample(p, "inferd_model_expert_reads_total", m, NULL, NULL);
        buf_add_format(p->out, "%llu\n", (unsigned long long)model_expert_counts(m->m, NULL));
    }
}

static void write_model_pages(page *p) {
    static const info_row kinds[] = {{"weight", NULL, NULL, INFO(pages_weight), false},
                                     {"warm", NULL, NULL, INFO(pages_warm), false},
                                     {"kv", NULL, NULL, INFO(pages_kv), false},
                                     {"cached", NULL, NULL, INFO(pages_cached), false},
                                     {"parked", NULL, NULL, INFO(pages_swapped), false},
                                     {"min", NULL, NULL, INFO(pages_min), false},
                                     {"max", NULL, NULL, INFO(pages_max), false}};
    page_family(
        p, "inferd_model_pages", "gauge",
        "Pages of a model, each in one kind; guaranteed pages (min); and the ceiling (max).");
    EACH_SERVED(p, m)
        for (size_t k = 0; k < INFERD_COUNT(kinds); k++) {
            uint64_t n = page_field(&m->info, kinds[k].offset, kinds[k].wide);
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
                                     {"load", NULL, NULL, INFO(sum.load_us), true},
                                     {"first", NULL, NULL, INFO(sum.first_us), true}};
    page_family(p, "inferd_model_evictions_total", "counter",
                "Evictions of the model from the device, by cause.");
    EACH_SERVED(p, m)
        for (int c = 0; c < ENGINE_EVICT_CAUSES; c++) {
            begin_sample(p, "inferd_model_evictions_total", m, "cause", causes[c]);
            buf_add_format(p->out, "%llu\n", (unsigned long long)m->info.n_evictions[c]);
        }
    page_family(p, "inferd_model_switch_seconds_total", "counter",
                "Time to bring the model up, by part: waiting, making room, reading and preparing, "
                "mapping and copying, the first step.");
    EACH_SERVED(p, m)
        for (size_t k = 0; k < INFERD_COUNT(parts); k++) {
            begin_sample(p, "inferd_model_switch_seconds_total", m, "part", parts[k].name);
            json_add_real(p->out,
                          (double)page_field(&m->info, parts[k].offset, parts[k].wide) / 1e6);
            buf_add_char(p->out, '\n');
        }
}

/* Memory in bytes: used now, held for that, cached only, guaranteed, ceiling. */
static void write_bytes(page *p) {
    static const info_row kinds[] = {{"used", NULL, NULL, INFO(bytes_used), true},
                                     {"held", NULL, NULL, INFO(bytes_held), true},
                                     {"cached", NULL, NULL, INFO(bytes_cached), true},
                                     {"min", NULL, NULL, INFO(bytes_min), true},
                                     {"max", NULL, NULL, INFO(bytes_max), true}};
    page_family(
        p, "inferd_model_bytes", "gauge",
        "Device memory of a model: used (weights, keys and values that count), held (the "
        "pages of those), cached (pages that only the prefix cache holds), guaranteed (min), "
        "and the ceiling (max).");
    EACH_SERVED(p, m)
        for (size_t k = 0; k < INFERD_COUNT(kinds); k++) {
            begin_sample(p, "inferd_model_bytes", m, "kind", kinds[k].name);
            page_bytes(p, page_field(&m->info, kinds[k].offset, kinds[k].wide));
        }
}

static void write_preemptions(page *p) {
    page_family(p, "inferd_preemptions_total", "counter",
                "Preemptions of the model's sequences, by kind.");
    EACH_SERVED(p, m)
        for (int r = 0; r < GEN_PREEMPTS; r++) {
            begin_sample(p, "inferd_preemptions_total", m, "rung",
                         gen_preempt_name((gen_preempt)r));
            buf_add_format(p->out, "%llu\n", (unsigned long long)m->info.n_preempts[r]);
        }
}

/* Which models have the pages of a device. */
static void write_replica_pages(page *p) {
    page_family(p, "inferd_replica_pages", "gauge",
                "Pages of a model on a device, each in one kind; warm and parked: host memory.");
    for (uint32_t i = 0; i < p->now->n_replicas; i++) {
        const metrics_replica *r = &p->now->replicas[i];
        const metrics_model *m = &p->now->models[r->model];
        const struct {
            const char *kind;
            uint32_t n;
        } rows[] = {{"weight", r->pages_weight},
                    {"kv", r->pages_kv},
                    {"cached", r->pages_cached},
                    {"warm", r->pages_warm},
                    {"parked", r->pages_swapped}};
        for (size_t k = 0; k < INFERD_COUNT(rows) && page_has_name(p, m->name_idx); k++) {
            buf_add_format(p->out, "inferd_replica_pages{%s,device=\"",
                           page_model_label(p, m->name_idx, false));
            page_label_text(p->out, p->now->devices[r->device].name);
            buf_add_format(p->out, "\",kind=\"%s\"} %u\n", rows[k].kind, rows[k].n);
        }
    }
}

static void write_replicas(page *p) {
    page_family(p, "inferd_model_desired_replicas", "gauge",
                "Replicas that the model's load needs, whether or not there are devices for them.");
    EACH_SERVED(p, m) {
        begin_sample(p, "inferd_model_desired_replicas", m, NULL, NULL);
        buf_add_format(p->out, "%u\n", m->desired_replicas);
    }
    page_family(p, "inferd_model_replica", "gauge", "1 for each replica of a model.");
    for (uint32_t i = 0; i < p->now->n_replicas; i++) {
        const metrics_replica *r = &p->now->replicas[i];
        if (!page_has_name(p, p->now->models[r->model].name_idx)) continue;
        buf_add_format(p->out, "inferd_model_replica{%s,device=\"",
                       page_model_label(p, p->now->models[r->model].name_idx, false));
        page_label_text(p->out, p->now->devices[r->device].name);
        buf_add_format(p->out, "\",state=\"%s\"} 1\n", r->state);
    }
    write_replica_pages(p);
}

static void write_moves(page *p) {
    const fleet_moves *moves = p->now->moves;
    if (moves == NULL) return;
    page_family(p, "inferd_fleet_moves_total", "counter",
                "Replicas that moved to another device, by reason.");
    for (int i = 0; i < FLEET_MOVE_WHYS; i++)
        buf_add_format(p->out, "inferd_fleet_moves_total{why=\"%s\"} %llu\n",
                       fleet_move_why_name((fleet_move_why)i),
                       (unsigned long long)moves->n_done[i]);
    page_scalar(p, "inferd_fleet_moves_failed_total", "counter",
                "Moves that were given up; the replica stayed on its device.", moves->n_failed);
}

static void write_states(page *p) {
    page_family(p, "inferd_model_state", "gauge", "1 for the state that a model is in.");
    EACH_SERVED(p, m)
        for (uint32_t s = MODEL_COLD; s < MODEL_STATES; s++) {
            begin_sample(p, "inferd_model_state", m, "state", model_state_name((model_state)s));
            buf_add_format(p->out, "%d\n", m->info.state == s);
        }
}

/* Families of vLLM's page that the endpoint picker of a Kubernetes gateway needs, and that repeat
 * no family of ours: the size of the prefix cache, and that there are no adapters. */
static void write_for_pickers(page *p) {
    page_family(p, "vllm:cache_config_info", "gauge",
                "Always 1; the labels say how many blocks of keys and values there are.");
    EACH_SERVED(p, m)
        if (m->info.kv_block_tokens > 0 && m->info.kv_blocks_max > 0)
            buf_add_format(p->out,
                           "vllm:cache_config_info{%s,block_size=\"%u\",num_gpu_blocks=\"%u\"} 1\n",
                           page_model_label(p, m->name_idx, true), m->info.kv_block_tokens,
                           m->info.kv_blocks_max);
    page_family(p, "vllm:lora_requests_info", "gauge",
                "Unix time of the page; the labels list adapters, of which there are none.");
    page_u64(p, "vllm:lora_requests_info",
             "max_lora=\"0\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"",
             p->now->now_unix_s);
}

void metrics_write_models(page *p) {
    write_states(p);
    write_model_rows(p);
    write_experts(p);
    write_model_pages(p);
    write_bytes(p);
    write_switches(p);
    write_preemptions(p);
    write_replicas(p);
    write_moves(p);
    write_for_pickers(p);
    page_family(p, "inferd_model_cost_error_ratio", "gauge",
                "Mean error of the predicted time of the model's steps, as a part of that time.");
    EACH_SERVED(p, m) {
        begin_sample(p, "inferd_model_cost_error_ratio", m, NULL, NULL);
        json_add_real(p->out, m->info.cost_error_ppm / 1e6);
        buf_add_char(p->out, '\n');
    }
    page_scalar(p, "inferd_draining", "gauge",
                "1 while the daemon shuts down and admits no requests.", p->now->draining);
    page_scalar(p, "inferd_start_time_seconds", "gauge", "When the daemon started, unix time.",
                p->now->started_unix_s);
    page_family(p, "inferd_build_info", "gauge", "Always 1; the label is the version.");
    buf_add_format(p->out, "inferd_build_info{version=\"%s\"} 1\n", p->now->version);
}
