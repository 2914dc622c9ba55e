/* test_metrics.c - the page is what a strict reader of the text format takes, and counts right. */
#include "scheduler/kv_disk.h"
#include "test.h"

#include "metrics.h"

static const http_route routes[] = {{"/v1/models", HTTP_GET}, {"/health", HTTP_GET}};

static backend_device_about device; // of the page; kind "": not looked at
static bool device_lost;
static uint32_t n_devices = 1;
static const char *const *all_tenants; // NULL: two
static uint32_t n_all_tenants;

static buf page_of(metrics *m, uint32_t n_models) {
    static const char *const names[] = {"a\"b\\c\nd", "second"};
    const metrics_model models[] = {{.name = names[0],
                                     .desired_replicas = 2,
                                     .info = {.state = MODEL_HOT,
                                              .pages_kv = 7,
                                              .pages_max = UINT32_MAX,
                                              .bytes_used = 5,
                                              .bytes_held = 9,
                                              .bytes_cached = 4,
                                              .pages_swapped = 6,
                                              .bytes_max = UINT64_MAX,
                                              .kv_block_tokens = 16,
                                              .kv_blocks_max = 4096,
                                              .cost_error_ppm = 125000,
                                              .hot_us = 1500000}},
                                    {.name = names[1],
                                     .name_idx = 1,
                                     .info = {.state = MODEL_LOADING,
                                              .n_loads = 4,
                                              .n_evictions = {0, 3},
                                              .n_preempts = {1, 0, 2, 0},
                                              .sum = {.first_us = 250000}}}};
    static const metrics_replica replicas[] = {
        {.state = "serving", .pages_weight = 4, .pages_kv = 3, .pages_swapped = 2}};
    static const metrics_share shares[] = {{.of = "tenant",
                                            .name = "t1",
                                            .used = 0.25,
                                            .entitled = 0.4,
                                            .n_running = 2,
                                            .n_waiting = 5}};
    static const metrics_loop loops[] = {{"front", "", 0}, {"engine", "d\"0", 1250000}};
    static const char *const tenants[] = {"t0", "t1"};
    static const metrics_tenant memory[] = {{"t0", 100, 0, UINT64_MAX, {true, 7, 70}, {0}},
                                            {"t1", 0, 64, 128, {0}, {true, 8, 0}}};
    engine_stats e = {.n_running = 3,
                      .n_waiting = 2,
                      .pages_total = 100,
                      .pages_free = 40,
                      .pages_weight = 20,
                      .pages_kv = 30,
                      .pages_cached = 10,
                      .pages_swapped = 12,
                      .pages_absent = 13,
                      .thrashing = true,
                      .reload_us_window = 2500000,
                      .slices_attainment_ppm = 750000,
                      .prefix_queries_tokens = 50,
                      .prefix_hits_tokens = 20,
                      .charged_us = 2000000,
                      .class_us = {[GEN_HIGH] = 500000, [GEN_BATCH] = 1500000},
                      .class_running = {[GEN_HIGH] = 3},
                      .class_waiting = {[GEN_BATCH] = 2},
                      .class_since_us = {[GEN_BATCH] = 2500000},
                      .waste_us = 500000,
                      .usage_load_us = 250000,
                      .opened_us = 1000000,
                      .usage_until_us = 4000000,
                      .step_us_sum = 3000};
    e.preempts[GEN_PREEMPT_SWAP] = (engine_times){.n = 1, .us = 600, .hist = {0, 1}};
    e.step_us_hist[0] = 2;
    e.step_us_hist[ENGINE_STEP_BUCKETS - 1] = 1;
    e.backend = (backend_stats){.n_launches = 11,
                                .n_graphs = 12,
                                .n_graphs_refused = 13,
                                .n_graph_launches = 14,
                                .n_matmul_gemv = 15,
                                .n_matmul_lt = 16,
                                .load_bytes = 17,
                                .load_us = 2500000,
                                .bus_bytes_per_s = 18};
    metrics_device devices[2] = {
        {.name = "d0", .stats = e, .lost = device_lost, .about = &device},
        {.name = "d1", .stats = {.n_running = 1, .pages_kv = 0}, .about = NULL}};
    static const kv_disk_stats disk = {.n_files = 3, .n_bytes = 70, .n_bad = 2, .n_unread = 5};
    static const metrics_responses responses = {.n = 4, .n_bytes = 90, .n_not_kept = 6};
    static const metrics_spans spans = {
        .n_sent = 11, .n_queued = 2, .n_drops = 1, .drops = {{"queue_full", 3}}};
    metrics_now now = {.disk = &disk,
                       .spans = &spans,
                       .responses = &responses,
                       .devices = devices,
                       .n_devices = n_devices,
                       .replicas = replicas,
                       .n_replicas = 1,
                       .shares = shares,
                       .n_shares = 1,
                       .loops = loops,
                       .n_loops = 2,
                       .watchdog_s = 30,
                       .now_us = 4000000,
                       .cpu_us = 1500000,
                       .resident_bytes = 4096,
                       .memory = memory,
                       .n_memory = 2,
                       .tenants = all_tenants != NULL ? all_tenants : tenants,
                       .n_tenants = all_tenants != NULL ? n_all_tenants : 2,
                       .models = models,
                       .n_models = n_models,
                       .names = names,
                       .n_names = n_models,
                       .now_unix_s = 1700000000,
                       .version = "1"};
    buf out = {0};
    metrics_write(m, &now, &out);
    buf_cstr(&out);
    return out;
}

static bool has_line(buf *page, const char *line) {
    char text[512];
    snprintf(text, sizeof text, "\n%s\n", line);
    bool found = strstr(buf_cstr(page), text) != NULL;
    if (!found) printf("no line %s\n", line);
    return found;
}

static void what_was_counted_is_written(void) {
    metrics *m = metrics_create(2, routes, 2);
    metrics_request(m, 1, OUTCOME_STOP);
    metrics_request(m, 1, OUTCOME_STOP);
    metrics_token(m, 1);
    metrics_sequence(m, 1, 10, 4, 1);
    metrics_http(m, &routes[1], 200);
    metrics_http(m, NULL, 404);
    metrics_http(m, &routes[1], 299);
    metrics_unknown_fields(m, 3);
    metrics_reload(m, false);
    metrics_change(m, true);
    buf page = page_of(m, 2);
    EXPECT(has_line(&page, "inferd_requests_total{model=\"second\",outcome=\"stop\"} 2"));
    EXPECT(has_line(&page, "inferd_config_reloads_total{result=\"refused\"} 1"));
    EXPECT(has_line(&page, "inferd_config_changes_total{result=\"ok\"} 1"));
    EXPECT(has_line(&page, "inferd_config_changes_total{result=\"refused\"} 0"));
    EXPECT(has_line(&page, "inferd_kv_disk_files 3") && has_line(&page, "inferd_kv_disk_bytes 70"));
    EXPECT(has_line(&page, "inferd_kv_disk_writing 1"));
    EXPECT(has_line(&page, "inferd_responses_kept 4"));
    EXPECT(has_line(&page, "inferd_responses_kept_bytes 90"));
    EXPECT(has_line(&page, "inferd_responses_not_kept_total 6"));
    EXPECT(has_line(&page, "inferd_kv_disk_problems_total{what=\"bad\"} 2"));
    EXPECT(has_line(&page, "inferd_kv_disk_problems_total{what=\"unread\"} 5"));
    EXPECT(has_line(&page, "inferd_requests_total{model=\"a\\\"b\\\\c\\nd\",outcome=\"stop\"} 0"));
    EXPECT(has_line(&page, "vllm:request_success_total{model_name=\"second\",engine=\"0\","
                           "finished_reason=\"stop\"} 2"));
    EXPECT(has_line(&page, "inferd_prompt_tokens_total{model=\"second\"} 10"));
    EXPECT(has_line(&page, "inferd_cached_tokens_total{model=\"second\"} 4"));
    EXPECT(has_line(&page, "vllm:generation_tokens_total{model_name=\"second\",engine=\"0\"} 1"));
    EXPECT(has_line(&page, "inferd_http_responses_total{route=\"/health\",status=\"200\"} 1"));
    EXPECT(has_line(&page, "inferd_http_responses_total{route=\"/health\",status=\"other\"} 1"));
    EXPECT(has_line(&page, "inferd_http_responses_total{route=\"none\",status=\"404\"} 1"));
    EXPECT(has_line(&page, "inferd_unknown_fields_total 3"));
    EXPECT(has_line(&page, "inferd_config_reloads_total{result=\"refused\"} 1"));
    EXPECT(has_line(&page, "inferd_model_state{model=\"second\",state=\"loading\"} 1"));
    EXPECT(has_line(&page, "inferd_model_state{model=\"second\",state=\"hot\"} 0"));
    EXPECT(has_line(&page, "inferd_model_loads_total{model=\"second\"} 4"));
    EXPECT(has_line(&page, "inferd_model_evictions_total{model=\"second\",cause=\"class\"} 3"));
    EXPECT(has_line(&page, "inferd_model_hot_seconds_total{model=\"a\\\"b\\\\c\\nd\"} 1.5"));
    EXPECT(has_line(&page, "inferd_model_pages{model=\"a\\\"b\\\\c\\nd\",kind=\"kv\"} 7"));
    EXPECT(has_line(&page, "inferd_model_pages{model=\"a\\\"b\\\\c\\nd\",kind=\"max\"} +Inf"));
    EXPECT(has_line(&page, "inferd_pages{device=\"d0\",state=\"cached\"} 10"));
    EXPECT(has_line(&page, "inferd_pages{device=\"d0\",state=\"parked\"} 12"));
    EXPECT(has_line(&page, "inferd_pages{device=\"d0\",state=\"absent\"} 13"));
    EXPECT(has_line(&page, "inferd_class_device_seconds_total{device=\"d0\",class=\"high\"} 0.5"));
    EXPECT(has_line(&page, "inferd_class_device_seconds_total{device=\"d0\",class=\"normal\"} 0"));
    EXPECT(has_line(&page, "inferd_class_device_seconds_total{device=\"d0\",class=\"batch\"} 1.5"));
    EXPECT(has_line(&page,
                    "inferd_class_sequences{device=\"d0\",class=\"high\",state=\"running\"} 3"));
    EXPECT(has_line(&page,
                    "inferd_class_sequences{device=\"d0\",class=\"batch\",state=\"waiting\"} 2"));
    EXPECT(has_line(&page, "inferd_class_wait_seconds{device=\"d0\",class=\"batch\"} 1.5"));
    EXPECT(has_line(&page, "inferd_class_wait_seconds{device=\"d0\",class=\"high\"} 0"));
    EXPECT(has_line(&page, "inferd_loop_silent_seconds{loop=\"front\"} 0"));
    EXPECT(has_line(&page, "inferd_loop_silent_seconds{loop=\"engine d\\\"0\"} 1.25"));
    EXPECT(has_line(&page, "inferd_spans_sent_total 11"));
    EXPECT(has_line(&page, "inferd_spans_queued 2"));
    EXPECT(has_line(&page, "inferd_spans_dropped_total{why=\"queue_full\"} 3"));
    EXPECT(has_line(&page, "process_cpu_seconds_total 1.5"));
    EXPECT(has_line(&page, "process_resident_memory_bytes 4096"));
    EXPECT(has_line(&page, "inferd_replica_pages{model=\"a\\\"b\\\\c\\nd\",device=\"d0\","
                           "kind=\"weight\"} 4"));
    EXPECT(has_line(&page, "inferd_watchdog_limit_seconds 30"));
    EXPECT(has_line(&page, "inferd_thrashing{device=\"d0\"} 1"));
    EXPECT(has_line(&page, "inferd_thrash_reload_seconds{device=\"d0\"} 2.5"));
    EXPECT(has_line(&page, "inferd_turns_attainment_ratio{device=\"d0\"} 0.75"));
    EXPECT(has_line(&page, "inferd_kv_usage_ratio 0.375")); // 30 of 30 + 40 + 10
    EXPECT(has_line(&page, "vllm:num_requests_running{engine=\"0\"} 3"));
    EXPECT(has_line(&page, "inferd_step_seconds_bucket{device=\"d0\",le=\"+Inf\"} 3"));
    buf_deinit(&page);
    metrics_destroy(m);
}

static void a_tenant_has_its_usage(void) {
    static const char *const lines[] = {
        "inferd_device_seconds_total{tenant=\"t1\",model=\"second\"} 1.5",
        "inferd_device_seconds_total{tenant=\"none\",model=\"none\"} 0.25",
        "inferd_tokens_total{tenant=\"t1\",model=\"second\",kind=\"prompt\"} 7",
        "inferd_tokens_total{tenant=\"t1\",model=\"second\",kind=\"cached\"} 2",
        "inferd_tokens_total{tenant=\"t1\",model=\"second\",kind=\"output\"} 3",
        "inferd_tenant_preemptions_total{tenant=\"t1\",model=\"second\",rung=\"park\"} 4",
        "inferd_tenant_preemptions_total{tenant=\"t1\",model=\"second\",rung=\"pause\"} 0",
        "inferd_tenant_preempted_seconds_total{tenant=\"t1\",model=\"second\"} 0.75",
        "inferd_share_used_ratio{of=\"tenant\",name=\"t1\"} 0.25",
        "inferd_tenant_bytes{tenant=\"t0\",kind=\"used\"} 100",
        "inferd_tenant_bytes{tenant=\"t0\",kind=\"max\"} +Inf",
        "inferd_tenant_bytes{tenant=\"t1\",kind=\"min\"} 64",
        "inferd_tenant_bytes{tenant=\"t1\",kind=\"max\"} 128",
        "inferd_tenant_quota_tokens{tenant=\"t0\",period=\"day\",kind=\"used\"} 7",
        "inferd_tenant_quota_tokens{tenant=\"t0\",period=\"day\",kind=\"limit\"} 70",
        "inferd_tenant_quota_tokens{tenant=\"t1\",period=\"month\",kind=\"limit\"} 0",
        "inferd_share_entitled_ratio{of=\"tenant\",name=\"t1\"} 0.4",
        "inferd_share_sequences{of=\"tenant\",name=\"t1\",state=\"running\"} 2",
        "inferd_share_sequences{of=\"tenant\",name=\"t1\",state=\"waiting\"} 5",
        "inferd_refusals_total{tenant=\"t1\",model=\"second\",reason=\"request_rate\"} 2",
        "inferd_refusals_total{tenant=\"none\",model=\"none\",reason=\"queue_full\"} 1",
        "inferd_device_account_seconds_total{device=\"d0\",part=\"requests\"} 2",
        "inferd_device_account_seconds_total{device=\"d0\",part=\"recompute\"} 0.5",
        "inferd_device_wall_seconds_total{device=\"d0\"} 3",
        "inferd_preemptions_total{model=\"second\",rung=\"recompute\"} 2",
        "inferd_preemption_seconds_bucket{device=\"d0\",rung=\"park\",le=\"0.0005\"} 0",
        "inferd_preemption_seconds_bucket{device=\"d0\",rung=\"park\",le=\"0.001\"} 1",
        "inferd_model_switch_seconds_total{model=\"second\",part=\"first\"} 0.25",
        "inferd_slo_requests_total{model=\"second\",target=\"ttft\",kept=\"true\"} 1",
        "inferd_slo_requests_total{model=\"second\",target=\"tpot\",kept=\"false\"} 1",
    };
    metrics *m = metrics_create(2, routes, 2);
    uint32_t slots[] = {1};
    engine_flow list[] = {{.tenant = 1,
                           .model = 0,
                           .serial = 1,
                           .device_us = 1500000,
                           .prompt_tokens = 7,
                           .cached_tokens = 2,
                           .output_tokens = 3,
                           .n_preempts = {[GEN_PREEMPT_SWAP] = 4},
                           .away_us = 750000},
                          {.tenant = 1, .model = 9, .serial = 2, .device_us = 250000}};
    buf page = page_of(m, 2);
    buf_deinit(&page);
    EXPECT(tenant_usage_read(metrics_tenant_usage(m), 0, list, 2, slots, 1));
    metrics_refused(m, 1, 1, API_REQUEST_RATE);
    metrics_refused(m, -1, -1, API_OVERLOADED);
    metrics_refused(m, 1, 1, API_REQUEST_RATE);
    metrics_target(m, 1, TARGET_TTFT, true);
    metrics_target(m, 1, TARGET_TPOT, false);
    page = page_of(m, 2);
    for (size_t i = 0; i < INFERD_COUNT(lines); i++) EXPECT(has_line(&page, lines[i]));
    EXPECT(strstr(buf_cstr(&page), "tenant=\"t0\",period=\"month\"") == NULL); // it has none
    EXPECT(strstr(buf_cstr(&page), "part=\"first\"} 0.25") != NULL);
    buf_deinit(&page);
    metrics_destroy(m);
}

/* Once the last row was handed out, and then called nobody's: a tenant's series vanished, its count
 * in another's. */
static void refusals_without_a_row_have_no_tenant(void) {
    enum { N = METRICS_REFUSAL_ROWS_MAX + 10 };
    metrics *m = metrics_create(2, routes, 2);
    static char names[N][16];
    static const char *tenants[N];
    metrics_refused(m, -1, 1, API_QUOTA);
    for (int i = 0; i < N; i++) {
        snprintf(names[i], sizeof names[i], "t%d", i);
        tenants[i] = names[i];
        for (int k = 0; k < 2; k++) metrics_refused(m, i, -1, API_QUOTA);
    }
    metrics_refused(m, 0, -1, API_QUOTA);
    all_tenants = tenants;
    n_all_tenants = N;
    buf page = page_of(m, 2);
    all_tenants = NULL;
    char line[128];
    /* One row is nobody's, and one went to a model without a tenant. */
    int n_rows = METRICS_REFUSAL_ROWS_MAX - 2;
    const char *form = "inferd_refusals_total{tenant=\"%.15s\",model=\"none\",reason=\"quota\"} %d";
    for (int i = 0; i < n_rows; i++) {
        snprintf(line, sizeof line, form, names[i], i == 0 ? 3 : 2);
        if (i < 10 || i > n_rows - 10) EXPECT(has_line(&page, line));
    }
    snprintf(line, sizeof line, form, "none", 2 * (N - n_rows));
    EXPECT(has_line(&page, line));
    snprintf(line, sizeof line, "tenant=\"%.15s\"", names[n_rows]);
    EXPECT(strstr(buf_cstr(&page), line) == NULL);
    EXPECT(has_line(&page,
                    "inferd_refusals_total{tenant=\"none\",model=\"second\",reason=\"quota\"} 1"));
    buf_deinit(&page);
    metrics_destroy(m);
}

/* So many that places of the index are fought for. */
static void each_pair_of_tenant_and_model_has_its_refusals(void) {
    enum { TENANTS = 50, NAMES = 81 };
    _Static_assert(TENANTS * NAMES < METRICS_REFUSAL_ROWS_MAX, "nobody's is free");
    metrics *m = metrics_create(2, routes, 2);
    static const char name[] = "t";
    static const char *tenants[TENANTS];
    for (int i = 0; i < TENANTS; i++) {
        tenants[i] = name;
        for (int k = 0; k < NAMES; k++) { // of the names two are known, the others are "none"
            metrics_refused(m, i, k, API_QUOTA);
            if (k == 1) metrics_refused(m, i, k, API_QUOTA);
        }
    }
    all_tenants = tenants;
    n_all_tenants = TENANTS;
    buf page = page_of(m, 2);
    all_tenants = NULL;
    int n_rows = 0;
    for (char *line = strtok(page.p, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        if (strncmp(line, "inferd_refusals_total{", strlen("inferd_refusals_total{")) != 0)
            continue;
        bool second = strstr(line, "model=\"second\"") != NULL;
        EXPECT_EQ(atoi(strrchr(line, ' ')), second ? 2 : 1);
        n_rows++;
    }
    EXPECT_EQ(n_rows, TENANTS * NAMES);
    buf_deinit(&page);
    metrics_destroy(m);
}

static void devices_are_told_apart_and_added_up(void) {
    metrics *m = metrics_create(2, routes, 2);
    n_devices = 2;
    buf page = page_of(m, 2);
    n_devices = 1;
    EXPECT(has_line(&page, "inferd_pages{device=\"d0\",state=\"free\"} 40"));
    EXPECT(has_line(&page, "inferd_pages{device=\"d1\",state=\"free\"} 0"));
    EXPECT(has_line(&page, "inferd_sequences_running 4"));
    EXPECT(has_line(&page, "vllm:num_requests_running{engine=\"0\"} 4"));
    EXPECT(has_line(&page, "inferd_model_desired_replicas{model=\"a\\\"b\\\\c\\nd\"} 2"));
    EXPECT(has_line(&page, "inferd_model_bytes{model=\"a\\\"b\\\\c\\nd\",kind=\"held\"} 9"));
    EXPECT(has_line(&page, "inferd_model_bytes{model=\"a\\\"b\\\\c\\nd\",kind=\"cached\"} 4"));
    EXPECT(has_line(&page, "inferd_model_pages{model=\"a\\\"b\\\\c\\nd\",kind=\"parked\"} 6"));
    EXPECT(has_line(&page, "inferd_model_cost_error_ratio{model=\"a\\\"b\\\\c\\nd\"} 0.125"));
    buf_deinit(&page);
    metrics_destroy(m);
}

/* A picker reads labels: how long a prefix it may count on, and which adapters are there. */
static void an_endpoint_picker_finds_what_it_asks_for(void) {
    metrics *m = metrics_create(2, routes, 2);
    buf page = page_of(m, 2);
    EXPECT(has_line(&page, "vllm:cache_config_info{model_name=\"a\\\"b\\\\c\\nd\",engine=\"0\","
                           "block_size=\"16\",num_gpu_blocks=\"4096\"} 1"));
    EXPECT(strstr(buf_cstr(&page), "vllm:cache_config_info{model_name=\"second") ==
           NULL); // unknown
    EXPECT(has_line(&page, "vllm:lora_requests_info{max_lora=\"0\",running_lora_adapters=\"\","
                           "waiting_lora_adapters=\"\"} 1700000000"));
    EXPECT(has_line(&page, "inferd_pool_pages{device=\"d0\"} 100"));
    buf_deinit(&page);
    metrics_destroy(m);
}

static void buckets_are_cumulative_and_include_their_bound(void) {
    metrics *m = metrics_create(1, routes, 2);
    metrics_observe(m, 0, HIST_TTFT, 0.001); // at the first bound
    metrics_observe(m, 0, HIST_TTFT, 0.002);
    metrics_observe(m, 0, HIST_TTFT, 5000); // above all
    buf page = page_of(m, 1);
    const char *label = "model=\"a\\\"b\\\\c\\nd\"";
    char line[256];
    static const struct {
        const char *le;
        int n;
    } rows[] = {{"0.001", 1}, {"0.005", 2}, {"2560", 2}, {"+Inf", 3}};
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        snprintf(line, sizeof line, "inferd_time_to_first_token_seconds_bucket{%s,le=\"%s\"} %d",
                 label, rows[i].le, rows[i].n);
        EXPECT(has_line(&page, line));
    }
    snprintf(line, sizeof line, "inferd_time_to_first_token_seconds_count{%s} 3", label);
    EXPECT(has_line(&page, line));
    EXPECT(has_line(&page,
                    "vllm:num_requests_running{model_name=\"a\\\"b\\\\c\\nd\",engine=\"0\"} 3"));
    buf_deinit(&page);
    metrics_destroy(m);
}

/* GET and PUT of one path are two routes: the page had the same series twice, and Prometheus
 * refuses that. */
static void answers_of_one_path_are_one_series(void) {
    static const http_route all[] = {
        {"/admin/config", HTTP_GET}, {"/health", HTTP_GET}, {"/admin/config", HTTP_PUT}};
    metrics *m = metrics_create(1, all, 3);
    metrics_http(m, &all[0], 401);
    metrics_http(m, &all[2], 401);
    metrics_http(m, &all[2], 409);
    buf page = page_of(m, 1);
    EXPECT(
        has_line(&page, "inferd_http_responses_total{route=\"/admin/config\",status=\"401\"} 2"));
    EXPECT(
        has_line(&page, "inferd_http_responses_total{route=\"/admin/config\",status=\"409\"} 1"));
    int n = 0;
    for (const char *s = buf_cstr(&page); (s = strstr(s, "route=\"/admin/config\"")) != NULL; s++)
        n++;
    EXPECT_EQ(n, 2);
    buf_deinit(&page);
    metrics_destroy(m);
}

/* Both under our name and under vLLM's. */
static void prefill_and_decode_have_histograms(void) {
    static const char *const lines[] = {
        "inferd_prefill_seconds_bucket{model=\"second\",le=\"0.02\"} 1",
        "inferd_prefill_seconds_sum{model=\"second\"} 0.515",
        "inferd_prefill_seconds_count{model=\"second\"} 2",
        "inferd_decode_seconds_bucket{model=\"second\",le=\"2\"} 0",
        "inferd_decode_seconds_bucket{model=\"second\",le=\"2.5\"} 1",
        "vllm:request_prefill_time_seconds_count{model_name=\"second\",engine=\"0\"} 2",
        "vllm:request_decode_time_seconds_sum{model_name=\"second\",engine=\"0\"} 2.25"};
    metrics *m = metrics_create(2, routes, 2);
    metrics_observe(m, 1, HIST_PREFILL, 0.015);
    metrics_observe(m, 1, HIST_PREFILL, 0.5);
    metrics_observe(m, 1, HIST_DECODE, 2.25);
    buf page = page_of(m, 2);
    for (size_t i = 0; i < INFERD_COUNT(lines); i++)
        if (!has_line(&page, lines[i])) {
            printf("no line %s\n", lines[i]);
            test_failures++;
        }
    buf_deinit(&page);
    metrics_destroy(m);
}

static void use_gpu(bool health) {
    device = (backend_device_about){.kind = "cuda",
                                    .name = "NVIDIA \"X\"",
                                    .uuid = "GPU-1",
                                    .n_units = 132,
                                    .memory_bytes = 1000,
                                    .mig = true};
    device.health.known = health;
    device.health.temperature_c = 41;
    device.health.power_w = -1; // unknown
    device.health.ecc_uncorrected = 0;
    device.health.remap_pending = 1;
    device.health.utilization_pct = 3;
}

static void a_gpu_has_its_figures(void) {
    static const char *const lines[] = {
        ("inferd_device_info{device=\"d0\",kind=\"cuda\",name=\"NVIDIA "
         "\\\"X\\\"\",uuid=\"GPU-1\",mig=\"true\"} 1"),
        "inferd_device_units{device=\"d0\"} 132",
        "inferd_device_memory_bytes{device=\"d0\"} 1000",
        "inferd_device_lost{device=\"d0\"} 1",
        "inferd_kv_driver_calls_total{device=\"d0\"} 0",
        "inferd_gpu_launches_total{device=\"d0\"} 11",
        "inferd_gpu_graphs_total{device=\"d0\"} 12",
        "inferd_gpu_graphs_refused_total{device=\"d0\"} 13",
        "inferd_gpu_graph_launches_total{device=\"d0\"} 14",
        "inferd_gpu_matmuls_total{device=\"d0\",path=\"gemv\"} 15",
        "inferd_gpu_matmuls_total{device=\"d0\",path=\"cublaslt\"} 16",
        "inferd_gpu_load_bytes_total{device=\"d0\"} 17",
        "inferd_gpu_load_seconds_total{device=\"d0\"} 2.5",
        "inferd_gpu_bus_bytes_per_second{device=\"d0\"} 18",
        "inferd_gpu_health_known{device=\"d0\"} 1",
        "inferd_gpu_temperature_celsius{device=\"d0\"} 41",
        "inferd_gpu_ecc_uncorrected_total{device=\"d0\"} 0",
        "inferd_gpu_remap_pending{device=\"d0\"} 1",
    };
    metrics *m = metrics_create(1, routes, 2);
    use_gpu(true);
    device_lost = true;
    buf page = page_of(m, 1);
    for (size_t i = 0; i < INFERD_COUNT(lines); i++) EXPECT(has_line(&page, lines[i]));
    EXPECT(strstr(buf_cstr(&page), "inferd_gpu_power_watts") == NULL); // better than a wrong 0
    buf_deinit(&page);
    metrics_destroy(m);
    device_lost = false;
}

static void what_is_not_known_of_a_device_is_left_out(void) {
    metrics *m = metrics_create(1, routes, 2);
    use_gpu(false);
    buf page = page_of(m, 1);
    EXPECT(has_line(&page, "inferd_gpu_health_known{device=\"d0\"} 0"));
    EXPECT(strstr(buf_cstr(&page), "inferd_gpu_temperature") == NULL);
    EXPECT(strstr(buf_cstr(&page), "inferd_gpu_ecc") == NULL);
    buf_deinit(&page);
    device = (backend_device_about){.kind = "cpu", .name = "cpu avx2", .n_units = 2};
    page = page_of(m, 1);
    EXPECT(has_line(&page, "inferd_device_info{device=\"d0\",kind=\"cpu\",name=\"cpu "
                           "avx2\",uuid=\"\",mig=\"false\"} 1"));
    EXPECT(strstr(buf_cstr(&page), "inferd_gpu_") == NULL);
    buf_deinit(&page);
    device = (backend_device_about){0}; // nobody has looked yet
    page = page_of(m, 1);
    EXPECT(strstr(buf_cstr(&page), "inferd_device_info") == NULL);
    EXPECT(has_line(&page, "inferd_device_lost{device=\"d0\"} 0"));
    buf_deinit(&page);
    metrics_destroy(m);
}

/* Name of the family that a sample line belongs to, given its TYPE's name. */
static bool belongs(const char *line, const char *family, bool histogram) {
    size_t n = strlen(family);
    if (strncmp(line, family, n) != 0) return false;
    line += n;
    if (histogram) {
        static const char *const tails[] = {"_bucket", "_sum", "_count"};
        for (int i = 0; i < 3; i++)
            if (strncmp(line, tails[i], strlen(tails[i])) == 0) {
                line += strlen(tails[i]);
                return *line == '{' || *line == ' ';
            }
        return false;
    }
    return *line == '{' || *line == ' ';
}

static void each_family_is_one_block_with_help_and_type(void) {
    metrics *m = metrics_create(2, routes, 2);
    metrics_http(m, &routes[0], 200);
    use_gpu(true);
    device.health.power_w = 1; // all of them
    buf page = page_of(m, 2);
    char family[128] = "", type[32] = "", seen[16384] = "";
    int n_families = 0;
    for (char *line = strtok(page.p, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        if (strncmp(line, "# HELP ", 7) == 0) {
            char key[140];
            EXPECT(sscanf(line + 7, "%127s", family) == 1);
            snprintf(key, sizeof key, " %s ", family);
            EXPECT(strstr(seen, key) == NULL); // a family comes once
            EXPECT(strlen(seen) + strlen(key) < sizeof seen);
            strcat(seen, key);
            n_families++;
        } else if (strncmp(line, "# TYPE ", 7) == 0) {
            char name[128];
            EXPECT(sscanf(line + 7, "%127s %31s", name, type) == 2);
            EXPECT_STR(name, family);
            /* promtool's rule: inferd_pages_total was a gauge. */
            size_t n = strlen(name);
            bool total = n > 6 && strcmp(name + n - 6, "_total") == 0;
            if (total != (strcmp(type, "counter") == 0)) printf("%s is a %s\n", name, type);
            EXPECT_EQ(total, strcmp(type, "counter") == 0);
        } else {
            EXPECT(belongs(line, family, strcmp(type, "histogram") == 0));
        }
    }
    EXPECT(n_families > 65);
    buf_deinit(&page);
    metrics_destroy(m);
}

/* docs/metrics.md names every family. */
static void the_page_of_the_manual_names_every_family(void) {
    FILE *file = fopen(INFERD_SOURCE_DIR "/docs/metrics.md", "rb");
    static char manual[1 << 16];
    EXPECT(file != NULL);
    if (file == NULL) return;
    manual[fread(manual, 1, sizeof manual - 1, file)] = 0;
    fclose(file);
    metrics *m = metrics_create(1, routes, 2);
    use_gpu(true);
    device.health.power_w = 1;
    buf page = page_of(m, 1);
    for (char *line = strtok(page.p, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        char name[128], quoted[140];
        if (sscanf(line, "# HELP %127s", name) != 1) continue;
        snprintf(quoted, sizeof quoted, "`%s`", name);
        if (strstr(manual, quoted) == NULL) {
            printf("docs/metrics.md lacks %s\n", quoted);
            test_failures++;
        }
    }
    buf_deinit(&page);
    metrics_destroy(m);
}

static const test_case cases[] = {
    TEST(what_was_counted_is_written),
    TEST(a_tenant_has_its_usage),
    TEST(each_pair_of_tenant_and_model_has_its_refusals),
    TEST(refusals_without_a_row_have_no_tenant),
    TEST(devices_are_told_apart_and_added_up),
    TEST(an_endpoint_picker_finds_what_it_asks_for),
    TEST(answers_of_one_path_are_one_series),
    TEST(prefill_and_decode_have_histograms),
    TEST(buckets_are_cumulative_and_include_their_bound),
    TEST(a_gpu_has_its_figures),
    TEST(what_is_not_known_of_a_device_is_left_out),
    TEST(each_family_is_one_block_with_help_and_type),
    TEST(the_page_of_the_manual_names_every_family),
};
TEST_MAIN(cases)
