/* admin_state.c - GET /admin/state: engines, registry and configuration at one moment. */
#include <string.h>
#include <time.h>

#include "admin.h"
#include "app_usage.h"
#include "admission.h"
#include "inferd/clock.h"
#include "json_out.h"
#include "tenant_limits.h"

#define US_PER_S 1e6
#define PPM      1e6
enum { MAPS_WAIT_US = 20000 }; // for all devices together: the loop blocks for that time

static const char *const pin_names[] = {"none", "warm", "hot"};
static const char *const share_names[] = {"besteffort", "burst", "fixed"};
static const char *const cause_names[ENGINE_EVICT_CAUSES] = {"pressure", "class", "turn", "idle",
                                                             "asked"};

const char *admin_class_name(gen_class prio) {
    return gen_class_name(prio);
}

const char *admin_pin_name(model_pin pin) {
    return pin_names[pin];
}

void admin_add_text(buf *out, const char *name, const char *text) {
    buf_add_format(out, ",\"%s\":", name);
    if (text == NULL)
        buf_add_str(out, "null");
    else
        json_add_string(out, text, strlen(text));
}

void admin_add_u64(buf *out, const char *name, uint64_t value) {
    buf_add_format(out, ",\"%s\":%llu", name, (unsigned long long)value);
}

static void add_s(buf *out, const char *name, uint64_t us) {
    buf_add_format(out, ",\"%s\":%.6f", name, (double)us / US_PER_S);
}

void admin_add_lines(buf *out, const char *lines, char separator) {
    bool first = true;
    char ends[2] = {separator, 0};
    buf_add_char(out, '[');
    while (*lines != 0) {
        size_t n = strcspn(lines, ends);
        if (n > 0) {
            if (!first) buf_add_char(out, ',');
            json_add_string(out, lines, n);
            first = false;
        }
        lines += n + (lines[n] != 0);
        while (separator == ',' && *lines == ' ') lines++;
    }
    buf_add_char(out, ']');
}

/* ---- guarantees ---- */

static void add_share(buf *out, const share_spec *s) {
    buf_add_format(out, ",\"share\":{\"policy\":\"%s\"", share_names[s->policy]);
    if (s->percent > 0)
        buf_add_format(out, ",\"percent\":%u,\"devices\":%u", s->percent, u32_max(s->n_devices, 1));
    buf_add_char(out, '}');
}

static void add_policy(buf *out, const model_policy *p) {
    admin_add_text(out, "class", admin_class_name(p->prio));
    admin_add_u64(out, "weight", p->weight);
    admin_add_text(out, "pin", admin_pin_name(p->pin));
    admin_add_u64(out, "min_bytes", p->min_bytes);
    admin_add_u64(out, "max_bytes", p->max_bytes);
    add_share(out, &p->share);
    buf_add_format(out, ",\"slo\":{\"ttft_ms\":%u,\"tpot_ms\":%u}", p->slo_ttft_ms, p->slo_tpot_ms);
    if (p->keep_alive_us == POLICY_NEVER)
        admin_add_text(out, "keep_alive_s", "never");
    else
        add_s(out, "keep_alive_s", p->keep_alive_us);
    buf_add_format(out, ",\"replicas\":{\"min\":%u,\"max\":%u}", p->replicas_min, p->replicas_max);
}

static void add_limits(buf *out, const config_tenant_limits *l) {
    const struct {
        const char *name;
        uint64_t limit;
    } rows[] = {{"requests_per_min", l->requests_per_min},
                {"tokens_per_min", l->tokens_per_min},
                {"concurrent", l->concurrent},
                {"tokens_per_day", l->tokens_per_day},
                {"tokens_per_month", l->tokens_per_month}};
    buf_add_str(out, ",\"limits\":{");
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        buf_add_format(out, "%s\"%s\":", i > 0 ? "," : "", rows[i].name);
        if (rows[i].limit == CONFIG_NO_LIMIT)
            buf_add_str(out, "null");
        else
            buf_add_format(out, "%llu", (unsigned long long)rows[i].limit);
    }
    buf_add_char(out, '}');
}

/* Rates of the last seconds. */
static void add_recent(buf *out, const app_recent *r, const tenant_usage_amounts *use) {
    double window_us = (double)r->window_us;
    double per_s = window_us > 0 ? US_PER_S / window_us : 0;
    buf_add_format(out,
                   ",\"recent\":{\"share\":%.4f,\"prompt_tokens_per_s\":%.2f,"
                   "\"output_tokens_per_s\":%.2f}",
                   window_us > 0 ? (double)use->device_us / window_us : 0.0,
                   (double)use->prompt_tokens * per_s, (double)use->output_tokens * per_s);
}

/* The use of its quotas, and its running requests. */
static void add_use(buf *out, const app *a, uint32_t number) {
    limits_usage u;
    if (a->admission == NULL || number >= limits_n_tenants(admission_limits(a->admission))) return;
    limits_get_usage(admission_limits(a->admission), number, (int64_t)time(NULL), &u);
    buf_add_format(out,
                   ",\"use\":{\"tokens_today\":%llu,\"tokens_this_month\":%llu,"
                   "\"tokens_reserved\":%llu,\"running\":%llu}",
                   (unsigned long long)u.used_day, (unsigned long long)u.used_month,
                   (unsigned long long)u.reserved, (unsigned long long)u.running);
}

static void add_tenant(buf *out, const app *a, uint32_t config_idx, const app_recent *recent) {
    const config_tenant *t = &a->config->c->tenants[config_idx];
    uint32_t number = a->config->numbers[config_idx], n_running, n_waiting;
    buf_add_str(out, "{\"name\":");
    json_add_string(out, t->name, strlen(t->name));
    admin_add_text(out, "class", admin_class_name(t->max_class));
    admin_add_u64(out, "weight", t->policy.weight);
    admin_add_u64(out, "used_bytes", fleet_tenant_bytes(a->fleet, number));
    admin_add_u64(out, "min_bytes", t->policy.min_bytes);
    admin_add_u64(out, "max_bytes", t->policy.max_bytes);
    add_share(out, &t->policy.share);
    add_limits(out, &t->limits);
    add_use(out, a, number);
    fleet_tenant_seqs(a->fleet, number, &n_running, &n_waiting);
    buf_add_format(out, ",\"queue\":{\"running\":%u,\"waiting\":%u}", n_running, n_waiting);
    admin_add_u64(out, "refused", recent->refused[number]);
    add_recent(out, recent, &recent->by_tenant[number]);
    buf_add_str(out, ",\"models\":");
    if (t->n_models == 0) buf_add_str(out, "null");
    for (uint32_t i = 0; i < t->n_models; i++) {
        buf_add_char(out, i == 0 ? '[' : ',');
        json_add_string(out, t->models[i], strlen(t->models[i]));
    }
    if (t->n_models > 0) buf_add_char(out, ']');
    admin_add_u64(out, "keys", t->n_keys);
    buf_add_char(out, '}');
}

void admin_add_tenant(buf *out, const app *a, uint32_t config_idx) {
    app_recent recent;
    if (app_recent_init(&recent, a, clock_now_us()))
        add_tenant(out, a, config_idx, &recent);
    else
        out->failed = true;
    app_recent_deinit(&recent);
}

/* ---- models ---- */

static void add_switch(buf *out, const char *name, const engine_switch *s, uint64_t n) {
    buf_add_format(
        out,
        "\"%s\":{\"queue_s\":%.6f,\"reclaim_s\":%.6f,\"stage_s\":%.6f,\"load_s\":%.6f,"
        "\"first_step_s\":%.6f}",
        name, (double)s->queue_us / (double)n / US_PER_S,
        (double)s->reclaim_us / (double)n / US_PER_S, (double)s->stage_us / (double)n / US_PER_S,
        (double)s->load_us / (double)n / US_PER_S, (double)s->first_us / (double)n / US_PER_S);
}

uint64_t admin_idle_us(const engine_model_info *i, uint64_t now_us) {
    bool at_work = i->n_running + i->n_waiting > 0 || i->state == MODEL_NONE;
    return at_work ? i->idle_us : i->idle_us + u64_less(now_us, i->at_us);
}

static void add_numbers(buf *out, const engine_model_info *i) {
    buf_add_format(out,
                   ",\"running\":%u,\"waiting\":%u,\"pages\":{\"weight\":%u,\"warm\":%u,\"kv\":%u,"
                   "\"cached\":%u,\"parked\":%u,\"min\":%u,\"max\":",
                   i->n_running, i->n_waiting, i->pages_weight, i->pages_warm, i->pages_kv,
                   i->pages_cached, i->pages_swapped, i->pages_min);
    if (i->pages_max == UINT32_MAX || i->state == MODEL_NONE)
        buf_add_str(out, "null");
    else
        buf_add_format(out, "%u", i->pages_max);
    buf_add_format(out,
                   "},\"used_bytes\":%llu,\"held_bytes\":%llu,\"cached_bytes\":%llu,"
                   "\"bytes\":{\"loaded\":%llu,\"total\":%llu}",
                   (unsigned long long)i->bytes_used, (unsigned long long)i->bytes_held,
                   (unsigned long long)i->bytes_cached, (unsigned long long)i->bytes_done,
                   (unsigned long long)i->bytes_total);
    admin_add_u64(out, "loads", i->n_loads);
    admin_add_u64(out, "stages", i->n_stages);
    admin_add_u64(out, "failures", i->n_failed);
    for (int k = 0; k < ENGINE_EVICT_CAUSES; k++)
        buf_add_format(out, "%s\"%s\":%llu", k == 0 ? ",\"evictions\":{" : ",", cause_names[k],
                       (unsigned long long)i->n_evictions[k]);
    buf_add_str(out, "},\"switch\":{");
    add_switch(out, "last", &i->last, 1);
    buf_add_char(out, ',');
    add_switch(out, "mean", &i->sum, i->n_loads == 0 ? 1 : i->n_loads);
    buf_add_char(out, '}');
    add_s(out, "hot_s", i->hot_us);
    add_s(out, "device_s", i->device_us);
    add_s(out, "idle_s", admin_idle_us(i, clock_now_us()));
    buf_add_format(out, ",\"held\":%s", i->held ? "true" : "false");
    admin_add_text(out, "error", i->state == MODEL_FAILED ? i->why.text : NULL);
    if (i->state == MODEL_FAILED && i->retry_after_ms > 0)
        admin_add_u64(out, "retry_after_ms", i->retry_after_ms);
    else
        buf_add_str(out, ",\"retry_after_ms\":null");
}

/* Its placements: one object per device that has or still has a replica. */
static void add_replicas(buf *out, const app *a, uint32_t slot) {
    bool first = true;
    buf_add_str(out, ",\"placed\":[");
    for (uint32_t d = 0; d < fleet_n_devices(a->fleet); d++) {
        fleet_replica r;
        engine_model_info i;
        const char *name = fleet_device_name(a->fleet, d);
        fleet_get_replica(a->fleet, slot, d, &r);
        if (r.state == FLEET_ABSENT) continue;
        engine_model_get(fleet_engine(a->fleet, d), slot, &i);
        buf_add_str(out, first ? "{\"device\":" : ",{\"device\":");
        json_add_string(out, name, strlen(name));
        admin_add_text(out, "replica", fleet_replica_state_name(r.state));
        admin_add_text(out, "state", model_state_name(i.state));
        buf_add_format(out,
                       ",\"part\":%u,\"running\":%u,\"waiting\":%u,\"pages\":{\"weight\":%u,"
                       "\"warm\":%u,\"kv\":%u,\"cached\":%u,\"parked\":%u},"
                       "\"min_bytes\":%llu,\"max_bytes\":%llu",
                       r.part, i.n_running, i.n_waiting, i.pages_weight, i.pages_warm, i.pages_kv,
                       i.pages_cached, i.pages_swapped, (unsigned long long)r.policy.min_bytes,
                       (unsigned long long)r.policy.max_bytes);
        add_share(out, &r.policy.share);
        admin_add_text(out, "error", i.state == MODEL_FAILED ? i.why.text : NULL);
        buf_add_char(out, '}');
        first = false;
    }
    buf_add_format(out, "],\"desired_replicas\":%u", fleet_desired_replicas(a->fleet, slot));
    const char *problem = fleet_placement_problem(a->fleet, slot);
    admin_add_text(out, "placement_problem", problem[0] != 0 ? problem : NULL);
}

static void add_model(buf *out, const app *a, uint32_t config_idx, const app_recent *recent) {
    const config_model *m = &a->config->c->models[config_idx];
    uint32_t slot = (uint32_t)a->config->slots[config_idx];
    engine_model_info info;
    fleet_model_tally(a->fleet, slot, &info);
    const registry_slot *root = app_model(a, info.weights_of % REGISTRY_SLOTS);
    bool own = info.state == MODEL_NONE || info.weights_of == slot;
    buf_add_str(out, "{\"name\":");
    json_add_string(out, m->name, strlen(m->name));
    buf_add_str(out, ",\"aliases\":[");
    for (uint32_t i = 0; i < m->n_aliases; i++) {
        if (i > 0) buf_add_char(out, ',');
        json_add_string(out, m->aliases[i], strlen(m->aliases[i]));
    }
    buf_add_char(out, ']');
    admin_add_text(out, "state", model_state_name(info.state));
    admin_add_u64(out, "slot", slot);
    admin_add_text(out, "weights_of", own ? NULL : root->name);
    admin_add_text(out, "path", m->path);
    admin_add_text(out, "file", model_file_name(app_model(a, slot)->file));
    admin_add_u64(out, "context", info.context);
    add_policy(out, &app_model(a, slot)->policy);
    add_numbers(out, &info);
    add_replicas(out, a, slot);
    add_recent(out, recent, &recent->by_name[app_model(a, slot)->name_idx]);
    buf_add_char(out, '}');
}

void admin_add_model(buf *out, const app *a, uint32_t config_idx) {
    app_recent recent;
    if (app_recent_init(&recent, a, clock_now_us()))
        add_model(out, a, config_idx, &recent);
    else
        out->failed = true;
    app_recent_deinit(&recent);
}

/* Models that the configuration no longer names and that finish their work. */
static void add_leaving(buf *out, const app *a) {
    bool first = true;
    buf_add_str(out, ",\"leaving\":[");
    for (uint32_t i = 0; i < REGISTRY_SLOTS; i++) {
        const registry_slot *s = app_model(a, i);
        if (s->m == NULL || !s->leaving) continue;
        buf_add_str(out, first ? "{\"name\":" : ",{\"name\":");
        json_add_string(out, s->name, strlen(s->name));
        admin_add_u64(out, "slot", i);
        admin_add_text(out, "state", model_state_name(fleet_slot_state(a->fleet, i)));
        admin_add_u64(out, "answers", s->n_generations);
        buf_add_char(out, '}');
        first = false;
    }
    buf_add_char(out, ']');
}

/* ---- the devices ---- */

/* An even part of the time left, so that a device in a long step leaves some to others; 0: none. */
static uint32_t map_wait_ms(uint32_t n_left, uint64_t now_us, uint64_t until_us) {
    return now_us < until_us ? (uint32_t)((until_us - now_us) / n_left / 1000) + 1 : 0;
}

static void add_device(buf *out, const app *a, uint32_t device_idx, uint64_t maps_until_us) {
    const engine *e = fleet_engine(a->fleet, device_idx);
    const char *name = fleet_device_name(a->fleet, device_idx);
    uint64_t now_us = clock_now_us();
    engine_stats stats, *s = &stats;
    engine_get_stats(e, s);
    buf_add_str(out, "{\"name\":");
    json_add_string(out, name, strlen(name));
    admin_add_text(out, "kind", a->kinds[device_idx]);
    admin_add_text(out, "about", engine_device_name(e));
    buf_add_format(
        out,
        ",\"pages\":{\"total\":%u,\"device\":%u,\"host\":%u,\"free\":%u,"
        "\"device_free\":%u,\"host_free\":%u,\"weight\":%u,\"kv\":%u,\"cached\":%u,\"warm\":%u,"
        "\"parked\":%u,\"quarantine\":%u,\"absent\":%u},\"one_memory\":%s",
        s->pages_total, s->pages_device, s->pages_host, s->pages_free, s->pages_device_free,
        s->pages_host_free, s->pages_weight, s->pages_kv, s->pages_cached, s->pages_warm,
        s->pages_swapped, s->pages_quarantine, s->pages_absent, s->one_memory ? "true" : "false");
    admin_add_u64(out, "page_bytes", s->page_bytes);
    buf_add_format(
        out, ",\"account\":{\"step_s\":%.6f,\"load_s\":%.6f,\"idle_s\":%.6f,\"wall_s\":%.6f}",
        (double)s->usage_step_us / US_PER_S, (double)s->usage_load_us / US_PER_S,
        (double)s->usage_idle_us / US_PER_S,
        s->opened_us == 0 || now_us < s->opened_us ? 0.0
                                                   : (double)(now_us - s->opened_us) / US_PER_S);
    device_times t = device_recent_get(a->device_recent, device_idx, s);
    double window_us = t.window_us > 0 ? (double)t.window_us : 1;
    buf_add_format(out, ",\"recent\":{\"window_s\":%.3f,\"step\":%.4f,\"load\":%.4f,\"idle\":%.4f}",
                   (double)t.window_us / US_PER_S, (double)t.step_us / window_us,
                   (double)t.load_us / window_us, (double)t.idle_us / window_us);
    admin_add_u64(out, "steps", s->n_steps);
    admin_add_u64(out, "turns", s->n_slices);
    buf_add_format(out,
                   ",\"thrash\":{\"now\":%s,\"reload_s\":%.6f,\"window_s\":%.1f,"
                   "\"attainment\":%.6f}",
                   s->thrashing ? "true" : "false", (double)s->reload_us_window / US_PER_S,
                   ENGINE_THRASH_WINDOW_US / US_PER_S, (double)s->slices_attainment_ppm / PPM);
    buf_add_format(out, ",\"queue\":{\"running\":%u,\"waiting\":%u,\"paused\":%u}", s->n_running,
                   s->n_waiting, s->n_paused);
    buf_add_format(
        out, ",\"lost\":%s,\"drill\":", engine_is_lost(e) || a->device_hangs ? "true" : "false");
    admin_add_drill(out, e);
    /* Between two steps; a device in the middle of a long one gets no map. */
    buf map = {0};
    inferd_err late = {0};
    uint32_t wait_ms = map_wait_ms(fleet_n_devices(a->fleet) - device_idx, now_us, maps_until_us);
    bool fine = fleet_page_map(a->fleet, device_idx, wait_ms, &map, &late) == INFERD_OK;
    buf_add_str(out, ",\"map\":");
    buf_add_str(out, fine ? buf_cstr(&map) : "null");
    buf_deinit(&map);
    buf_add_char(out, '}');
}

void admin_add_state(buf *out, const app *a, const changer_about *about) {
    const inferd_config *c = a->config->c;
    fleet_queues q;
    uint64_t maps_until_us = clock_now_us() + MAPS_WAIT_US;
    fleet_get_queues(a->fleet, &q);
    app_recent recent;
    if (!app_recent_init(&recent, a, clock_now_us())) {
        out->failed = true;
        app_recent_deinit(&recent);
        return;
    }
    buf_add_str(out, "{\"devices\":[");
    for (uint32_t d = 0; d < fleet_n_devices(a->fleet); d++) {
        if (d > 0) buf_add_char(out, ',');
        add_device(out, a, d, maps_until_us);
    }
    buf_add_str(out, "],\"models\":[");
    for (uint32_t i = 0; i < c->n_models; i++) {
        if (i > 0) buf_add_char(out, ',');
        add_model(out, a, i, &recent);
    }
    buf_add_char(out, ']');
    add_leaving(out, a);
    buf_add_str(out, ",\"tenants\":[");
    for (uint32_t i = 0; i < c->n_tenants; i++) {
        if (i > 0) buf_add_char(out, ',');
        add_tenant(out, a, i, &recent);
    }
    buf_add_format(out, "],\"recent\":{\"window_s\":%.3f}", (double)recent.window_us / US_PER_S);
    app_add_usage(out, a);
    app_recent_deinit(&recent);
    buf_add_format(out, ",\"queues\":{\"running\":%u,\"waiting\":%u,\"paused\":%u}", q.n_running,
                   q.n_waiting, q.n_paused);
    const queue_slots *p = admission_queue_slots(a->admission);
    buf_add_format(out,
                   ",\"places\":{\"all\":%u,\"used\":%u,\"kept\":%u,\"kept_used\":%u},\"config\":{",
                   p->n_all, p->n_used, p->n_kept, p->n_used_kept);
    buf_add_str(out, "\"path\":");
    if (about->path == NULL)
        buf_add_str(out, "null");
    else
        json_add_string(out, about->path, strlen(about->path));
    buf_add_format(out,
                   ",\"loaded_at\":%lld,\"reloads\":{\"ok\":%llu,\"refused\":%llu},"
                   "\"changes\":{\"ok\":%llu,\"refused\":%llu},\"unsaved\":%u,\"busy\":%s},"
                   "\"version\":\"" INFERD_VERSION "\",\"started_at\":%lld,\"draining\":%s}",
                   (long long)about->loaded_unix_s, (unsigned long long)about->reloads.n_applied,
                   (unsigned long long)about->reloads.n_refused,
                   (unsigned long long)about->changes.n_applied,
                   (unsigned long long)about->changes.n_refused, about->n_patches,
                   about->busy ? "true" : "false", (long long)a->started_unix_s,
                   a->draining ? "true" : "false");
}
