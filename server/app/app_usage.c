/* app_usage.c - see app_usage.h. */
#include "app_usage.h"

#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "inferd/clock.h"
#include "tenant_usage.h"
#include "log.h"
#include "tracer.h"
#include "watchdog.h"
#include "scheduler/kv_disk.h"
#include "json_out.h"
#include "admission.h"
#include "tenant_limits.h"

#define US_PER_S   1e6
#define PER_TOKENS 1000 // costs are reported per this number of tokens

_Static_assert((int)FLEET_DEVICES_MAX <= (int)METRICS_DEVICES_MAX,
               "the metrics have room for each device");
_Static_assert((int)TRACER_DROPS <= (int)METRICS_DROPS_MAX, "each reason has a place");
_Static_assert((int)LIMITS_TENANTS_MAX <= (int)ENGINE_TENANTS_MAX,
               "the engine reports each tenant's bytes");

/* The slot of a leaving model may get another one soon: its use must be read under the old name. */
static bool is_one_departing(const app *a) {
    for (uint32_t i = 0; i < a->models.n_used; i++)
        if (app_model(a, i)->m != NULL && app_model(a, i)->leaving) return true;
    return false;
}

static void sample_devices(const app *a, uint64_t now_us) {
    engine_stats stats[FLEET_DEVICES_MAX];
    if (!device_recent_is_due(a->device_recent, now_us)) return;
    for (uint32_t d = 0; d < fleet_n_devices(a->fleet); d++)
        engine_get_stats(fleet_engine(a->fleet, d), &stats[d]);
    device_recent_tick(a->device_recent, stats, now_us);
}

void app_watch_usage(const app *a, uint64_t now_us) {
    sample_devices(a, now_us);
    if (tenant_usage_is_due(metrics_tenant_usage(a->metrics), now_us) || is_one_departing(a))
        app_read_usage(a, now_us);
}

void app_read_usage(const app *a, uint64_t now_us) {
    tenant_usage *l = metrics_tenant_usage(a->metrics);
    engine_flow *list = tenant_usage_list(l);
    uint32_t names[REGISTRY_SLOTS];
    for (uint32_t i = 0; i < REGISTRY_SLOTS; i++)
        names[i] = app_model(a, i)->m != NULL ? app_model(a, i)->name_idx : TENANT_USAGE_NONE;
    for (uint32_t d = 0; d < fleet_n_devices(a->fleet); d++) {
        uint32_t n = engine_get_flows(fleet_engine(a->fleet, d), list, ENGINE_FLOWS_MAX);
        tenant_usage_read(l, d, list, n, names, REGISTRY_SLOTS); // without memory: next time
    }
    tenant_usage_tick(l, now_us);
}

/* ---- the last seconds ---- */

bool app_recent_init(app_recent *r, const app *a, uint64_t now_us) {
    const tenant_usage *l = metrics_tenant_usage(a->metrics);
    size_t n = (size_t)a->n_tenants + a->models.n_names + 1;
    *r = (app_recent){.by_tenant = calloc(n, sizeof *r->by_tenant),
                      .refused = calloc((size_t)a->n_tenants + 1, sizeof *r->refused)};
    if (r->by_tenant == NULL || r->refused == NULL) return false;
    r->by_name = r->by_tenant + a->n_tenants;
    app_read_usage(a, now_us);
    tenant_usage_sum_recent(l, r->by_tenant, a->n_tenants, r->by_name, a->models.n_names);
    metrics_sum_refusals(a->metrics, r->refused, a->n_tenants);
    r->window_us = tenant_usage_window_us(l, now_us);
    return true;
}

void app_recent_deinit(app_recent *r) {
    free(r->by_tenant);
    free(r->refused);
}

/* ---- shares ---- */

static double ratio(uint64_t us, uint64_t of_us) {
    return of_us == 0 ? 0.0 : (double)us / (double)of_us;
}

static double entitled(const share_spec *s) {
    enum { WHOLE_PERCENT = 100 };
    return s->policy == SHARE_BESTEFFORT ? 0.0 : (double)s->percent / WHOLE_PERCENT;
}

/* Shares of all tenants and models of the configuration, from sums of the window by number. */
static uint32_t write_shares(const app *a, const metrics_view *view, const app_recent *r,
                             metrics_share *list) {
    const inferd_config *c = a->config->c;
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n_tenants; i++) {
        uint32_t number = a->config->numbers[i];
        if (view != NULL && view->tenant != number) continue;
        metrics_share *s = &list[n++];
        *s = (metrics_share){.of = "tenant",
                             .name = c->tenants[i].name,
                             .used = ratio(r->by_tenant[number].device_us, r->window_us),
                             .entitled = entitled(&c->tenants[i].policy.share)};
        fleet_tenant_seqs(a->fleet, number, &s->n_running, &s->n_waiting);
    }
    for (uint32_t i = 0; i < c->n_models; i++) {
        const registry_slot *s = app_model(a, (uint32_t)a->config->slots[i]);
        engine_model_info info;
        if (view != NULL && !view->names[s->name_idx]) continue;
        fleet_model_get(a->fleet, (uint32_t)a->config->slots[i], &info);
        list[n++] = (metrics_share){.of = "model",
                                    .name = s->name,
                                    .used = ratio(r->by_name[s->name_idx].device_us, r->window_us),
                                    .entitled = entitled(&s->policy.share),
                                    .n_running = info.n_running,
                                    .n_waiting = info.n_waiting};
    }
    return n;
}

/* Owned by the caller.  NULL: no memory. */
static metrics_share *list_shares(const app *a, const metrics_view *view, uint64_t now_us,
                                  uint32_t *n) {
    const inferd_config *c = a->config->c;
    metrics_share *list = calloc((size_t)c->n_tenants + c->n_models + 1, sizeof *list);
    app_recent r;
    bool fine = app_recent_init(&r, a, now_us) && list != NULL;
    if (fine) *n = write_shares(a, view, &r, list);
    app_recent_deinit(&r);
    if (fine) return list;
    free(list);
    return NULL;
}

/* ---- the page ---- */

typedef struct lists {
    metrics_tenant *memory;
    metrics_device *devices;
    metrics_model *models;
    metrics_replica *replicas;
    metrics_share *shares;
    metrics_loop loops[WATCHDOG_LOOPS_MAX];
    uint32_t n_devices, n_models, n_replicas, n_shares, n_memory, n_loops;
} lists;

static void list_devices(const app *a, lists *of) {
    for (uint32_t d = 0; d < of->n_devices; d++) {
        metrics_device *m = &of->devices[d];
        m->name = fleet_device_name(a->fleet, d);
        m->about = &a->devices[d];
        m->lost = engine_is_lost(fleet_engine(a->fleet, d)) || a->device_hangs;
        engine_get_stats(fleet_engine(a->fleet, d), &m->stats);
    }
}

static void list_models(const app *a, lists *of) {
    const app_config *c = a->config; // not all slots: a leaving one has a successor of its name
    for (uint32_t k = 0; k < c->c->n_models; k++) {
        uint32_t i = (uint32_t)c->slots[k];
        const registry_slot *s = app_model(a, i);
        uint32_t n = of->n_models++;
        metrics_model *m = &of->models[n];
        *m = (metrics_model){.name = s->name,
                             .name_idx = s->name_idx,
                             .m = s->m,
                             .desired_replicas = fleet_desired_replicas(a->fleet, i)};
        fleet_model_tally(a->fleet, i, &m->info);
        for (uint32_t d = 0; d < of->n_devices; d++) {
            fleet_replica r;
            fleet_get_replica(a->fleet, i, d, &r);
            if (r.state == FLEET_ABSENT) continue;
            engine_model_info here;
            engine_model_get(fleet_engine(a->fleet, d), i, &here);
            of->replicas[of->n_replicas++] =
                (metrics_replica){.model = n,
                                  .device = d,
                                  .state = fleet_replica_state_name(r.state),
                                  .pages_weight = here.pages_weight,
                                  .pages_kv = here.pages_kv,
                                  .pages_cached = here.pages_cached,
                                  .pages_warm = here.pages_warm,
                                  .pages_swapped = here.pages_swapped};
        }
    }
}

static metrics_quota make_quota(uint64_t used, uint64_t limit, bool closed) {
    return (metrics_quota){.any = limit != 0 || closed, .used = used, .limit = limit};
}

static void add_quotas(const app *a, uint32_t number, metrics_tenant *out) {
    const limits *l = admission_limits(a->admission);
    limits_usage u;
    if (number >= limits_n_tenants(l)) return;
    limits_get_usage(l, number, (int64_t)time(NULL), &u);
    out->day = make_quota(u.used_day + u.reserved, u.spec.tokens_per_day,
                          (u.spec.closed & 1u << LIMITS_DAY) != 0);
    out->month = make_quota(u.used_month + u.reserved, u.spec.tokens_per_month,
                            (u.spec.closed & 1u << LIMITS_MONTH) != 0);
}

static void list_memory(const app *a, const metrics_view *view, lists *of) {
    const inferd_config *c = a->config->c;
    for (uint32_t i = 0; i < c->n_tenants; i++) {
        const tenant_policy *t = &c->tenants[i].policy;
        uint32_t number = a->config->numbers[i];
        if (view != NULL && view->tenant != number) continue;
        metrics_tenant *m = &of->memory[of->n_memory++];
        *m = (metrics_tenant){.name = c->tenants[i].name,
                              .used_bytes = fleet_tenant_bytes(a->fleet, number),
                              .min_bytes = t->min_bytes,
                              .max_bytes = t->max_bytes != 0 ? t->max_bytes : UINT64_MAX};
        add_quotas(a, number, m);
    }
}

static void list_loops(const app *a, lists *of) {
    watchdog_loop l;
    while (a->watchdog != NULL && watchdog_get(a->watchdog, of->n_loops, &l))
        of->loops[of->n_loops++] = (metrics_loop){l.kind, l.name, l.silent_us};
}

/* Owned by the caller: for each name_idx, may this tenant use the model?  NULL: no memory. */
static bool *names_of_tenant(const app *a, int tenant) {
    const app_config *c = a->config;
    bool *names = calloc((size_t)a->models.n_names + 1, sizeof *names);
    int at = app_tenant(c, tenant);
    for (uint32_t i = 0; i < c->c->n_models && names != NULL; i++)
        if (app_may_use(c, at, i)) names[app_model(a, (uint32_t)c->slots[i])->name_idx] = true;
    return names;
}

static bool take_lists(const app *a, const metrics_view *view, uint64_t now_us, lists *of) {
    uint32_t n = fleet_n_devices(a->fleet), n_models = a->config->c->n_models;
    *of = (lists){.n_devices = n};
    of->devices = calloc(n, sizeof *of->devices);
    of->models = calloc(n_models, sizeof *of->models);
    of->replicas = calloc((size_t)n_models * n, sizeof *of->replicas);
    of->shares = list_shares(a, view, now_us, &of->n_shares);
    of->memory = calloc(size_max(a->config->c->n_tenants, 1), sizeof *of->memory);
    if (of->devices == NULL || of->models == NULL || of->replicas == NULL || of->shares == NULL ||
        of->memory == NULL)
        return false;
    list_devices(a, of);
    list_models(a, of);
    list_memory(a, view, of);
    list_loops(a, of);
    return true;
}

static void free_lists(lists *of) {
    free(of->devices);
    free(of->models);
    free(of->replicas);
    free(of->shares);
    free(of->memory);
}

/* Of the process; 0 where the system does not tell. */
static uint64_t read_cpu_us(void) {
    struct rusage u;
    if (getrusage(RUSAGE_SELF, &u) != 0) return 0;
    return (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000 +
           (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static uint64_t read_resident_bytes(void) {
    unsigned long long n_all, n_resident = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file == NULL) return 0;
    if (fscanf(file, "%llu %llu", &n_all, &n_resident) != 2) n_resident = 0;
    fclose(file);
    return n_resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void count_spans(const app *a, metrics_spans *out) {
    tracer_stats s;
    tracer_get_stats(a->tracer, &s);
    *out = (metrics_spans){.n_sent = s.n_sent, .n_queued = s.n_queued, .n_drops = TRACER_DROPS};
    for (int i = 0; i < TRACER_DROPS; i++) {
        out->drops[i].why = tracer_drop_name((tracer_drop)i);
        out->drops[i].n = s.n_dropped[i];
    }
}

static void write_page(const app *a, const metrics_view *view, buf *out) {
    uint64_t now_us = clock_now_us();
    lists of;
    if (!take_lists(a, view, now_us, &of)) {
        out->failed = true;
        free_lists(&of);
        return;
    }
    fleet_moves moves;
    fleet_get_moves(a->fleet, &moves);
    kv_disk_stats disk;
    if (a->disk != NULL) kv_disk_get_stats(a->disk, &disk);
    metrics_responses responses;
    if (a->responses != NULL) a->response_stats(a->responses, &responses);
    metrics_spans spans;
    if (a->tracer != NULL) count_spans(a, &spans);
    transcripts_stats kept;
    transcripts_get_stats(a->models.transcripts, &kept);
    metrics_now now = {.view = view,
                       .n_resent = kept.n_resent,
                       .n_retokenised = kept.n_retokenised,
                       .n_transcript_bytes = kept.n_bytes,
                       .disk = a->disk != NULL && view == NULL ? &disk : NULL,
                       .responses = a->responses != NULL && view == NULL ? &responses : NULL,
                       .spans = a->tracer != NULL && view == NULL ? &spans : NULL,
                       .moves = &moves,
                       .devices = of.devices,
                       .n_devices = of.n_devices,
                       .models = of.models,
                       .n_models = of.n_models,
                       .replicas = of.replicas,
                       .n_replicas = of.n_replicas,
                       .shares = of.shares,
                       .n_shares = of.n_shares,
                       .memory = of.memory,
                       .n_memory = of.n_memory,
                       .loops = of.loops,
                       .n_loops = of.n_loops,
                       .watchdog_s = a->config->c->limits.watchdog_s,
                       .names = (const char *const *)a->models.names,
                       .n_names = a->models.n_names,
                       .tenants = (const char *const *)a->tenants,
                       .n_tenants = a->n_tenants,
                       .n_http_open = a->http == NULL ? 0 : http_n_open(a->http),
                       .n_generations = a->n_generations,
                       .log_lines_dropped = log_n_dropped(),
                       .now_us = now_us,
                       .cpu_us = view == NULL ? read_cpu_us() : 0,
                       .resident_bytes = view == NULL ? read_resident_bytes() : 0,
                       .started_unix_s = (uint64_t)a->started_unix_s,
                       .now_unix_s = (uint64_t)time(NULL),
                       .draining = a->draining,
                       .version = INFERD_VERSION};
    metrics_write(a->metrics, &now, out);
    free_lists(&of);
}

void app_write_metrics(const app *a, int tenant, buf *out) {
    if (tenant < 0) {
        write_page(a, NULL, out);
        return;
    }
    bool *names = names_of_tenant(a, tenant);
    metrics_view view = {.tenant = tenant, .names = names};
    if (names != NULL)
        write_page(a, &view, out);
    else
        out->failed = true;
    free(names);
}

/* ---- the state ---- */

static void add_flow(buf *out, const app *a, const tenant_usage_row *r) {
    uint64_t n_tokens = r->prompt_tokens + r->cached_tokens + r->output_tokens;
    const char *tenant = r->tenant < a->n_tenants ? a->tenants[r->tenant] : "none";
    const char *name = r->name_idx < a->models.n_names ? a->models.names[r->name_idx] : "none";
    buf_add_str(out, "{\"tenant\":");
    json_add_string(out, tenant, strlen(tenant));
    buf_add_str(out, ",\"model\":");
    json_add_string(out, name, strlen(name));
    buf_add_format(out,
                   ",\"device_s\":%.6f,\"prompt_tokens\":%llu,\"cached_tokens\":%llu,"
                   "\"output_tokens\":%llu",
                   (double)r->device_us / US_PER_S, (unsigned long long)r->prompt_tokens,
                   (unsigned long long)r->cached_tokens, (unsigned long long)r->output_tokens);
    uint64_t tokens = n_tokens > 0 ? n_tokens : 1;
    buf_add_format(out, ",\"device_s_per_1000_tokens\":%.6f}",
                   (double)r->device_us * PER_TOKENS / (double)tokens / US_PER_S);
}

static void add_device(buf *out, const app *a, uint32_t d) {
    engine_stats s;
    const char *name = fleet_device_name(a->fleet, d);
    engine_get_stats(fleet_engine(a->fleet, d), &s);
    uint64_t wall_us = s.usage_until_us - s.opened_us;
    uint64_t sum_us = s.charged_us + s.waste_us + s.usage_move_us + s.usage_load_us +
                      s.usage_idle_us + s.usage_host_us;
    uint64_t error_us = wall_us > sum_us ? wall_us - sum_us : sum_us - wall_us;
    buf_add_str(out, "{\"device\":");
    json_add_string(out, name, strlen(name));
    buf_add_format(out,
                   ",\"principals_s\":%.6f,\"load_s\":%.6f,\"preempt_s\":%.6f,\"idle_s\":%.6f,"
                   "\"host_s\":%.6f,\"wall_s\":%.6f,\"error_ppm\":%llu}",
                   (double)s.charged_us / US_PER_S, (double)s.usage_load_us / US_PER_S,
                   (double)(s.waste_us + s.usage_move_us) / US_PER_S,
                   (double)s.usage_idle_us / US_PER_S, (double)s.usage_host_us / US_PER_S,
                   (double)wall_us / US_PER_S,
                   (unsigned long long)(wall_us > 0 ? error_us * 1000000 / wall_us : 0));
}

void app_add_usage(buf *out, const app *a) {
    const tenant_usage *l = metrics_tenant_usage(a->metrics);
    app_read_usage(a, clock_now_us());
    buf_add_str(out, ",\"account\":{\"principals\":[");
    for (uint32_t i = 0; i < tenant_usage_n(l); i++) {
        if (i > 0) buf_add_char(out, ',');
        add_flow(out, a, tenant_usage_at(l, i));
    }
    buf_add_str(out, "],\"devices\":[");
    for (uint32_t d = 0; d < fleet_n_devices(a->fleet); d++) {
        if (d > 0) buf_add_char(out, ',');
        add_device(out, a, d);
    }
    buf_add_str(out, "]}");
}
