/* view_rows.c - see view_rows.h. */
#include "view_rows.h"

#include <math.h>
#include <string.h>
#include <time.h>

#include "admin.h"
#include "admission.h"
#include "generation.h"
#include "json_out.h"
#include "scheduler/watch.h"
#include "tenant_limits.h"

#define US_PER_S 1e6
typedef unsigned long long ull;

static void add_limit(buf *out, const char *name, uint64_t value, uint64_t none) {
    if (value == none)
        buf_add_format(out, ",\"%s\":null", name);
    else
        admin_add_u64(out, name, value);
}

/* A moment of the clock of the engines, as Unix time in milliseconds. */
static void add_moment(buf *out, const char *name, uint64_t at_us, const view_now *now) {
    buf_add_format(out, ",\"%s\":%lld", name,
                   (long long)(now->offset_ms + (int64_t)(at_us / 1000)));
}

void view_add_daemon(buf *out, const app *a, const changer_about *about, const char *boot,
                     int64_t started_unix_s) {
    buf_add_format(out, "{\"version\":\"" INFERD_VERSION "\",\"boot\":\"%s\",\"started_at\":%lld",
                   boot, (long long)started_unix_s);
    buf_add_format(out, ",\"draining\":%s,\"unsaved\":%u,\"faults\":%s",
                   a->draining ? "true" : "false", about->n_patches,
                   a->allow_faults ? "true" : "false");
    admin_add_text(out, "config", about->path);
    admin_add_u64(out, "tenants", a->config->c->n_tenants);
    buf_add_char(out, '}');
}

/* ---- devices ---- */

static void add_step_seq(buf *out, const app *a, const engine_step_seq *s) {
    const generation *g = generation_of(a, s->id);
    const char *id = g != NULL ? g->rq_id : "";
    buf_add_char(out, '[');
    json_add_string(out, id, strlen(id));
    if (g != NULL && g->tenant >= 0)
        buf_add_format(out, ",%d", g->tenant);
    else
        buf_add_str(out, ",null");
    buf_add_format(out, ",%u,%d]", s->n_rows, s->prefill ? 1 : 0);
}

static void add_step(buf *out, const app *a, const engine *e, const view_now *now) {
    enum { FRESH_US = 200000 };
    engine_step_view v;
    engine_step_get(e, &v);
    if (v.began_us == 0 || (v.ended_us != 0 && now->us > v.ended_us + FRESH_US)) {
        buf_add_str(out, ",\"step\":null");
        return;
    }
    buf_add_format(out, ",\"step\":{\"model\":%u,\"us\":%llu,\"prefill\":%u,\"decode\":%u,\"n\":%u",
                   v.model_idx, (ull)v.last_us, v.n_prefill_rows, v.n_decode_rows, v.n_seqs);
    add_moment(out, "began", v.began_us, now);
    buf_add_str(out, ",\"seqs\":[");
    for (uint32_t i = 0; i < v.n_seqs && i < ENGINE_STEP_SEQS_MAX; i++) {
        if (i > 0) buf_add_char(out, ',');
        add_step_seq(out, a, &v.seqs[i]);
    }
    buf_add_str(out, "]}");
}

static void add_device_pages(buf *out, const engine_stats *s) {
    buf_add_format(out,
                   ",\"pages\":{\"total\":%u,\"device\":%u,\"host\":%u,\"free\":%u,"
                   "\"device_free\":%u,\"host_free\":%u,\"weight\":%u,\"kv\":%u,\"cached\":%u,"
                   "\"warm\":%u,\"parked\":%u,\"quarantine\":%u,\"absent\":%u},\"one_memory\":%s",
                   s->pages_total, s->pages_device, s->pages_host, s->pages_free,
                   s->pages_device_free, s->pages_host_free, s->pages_weight, s->pages_kv,
                   s->pages_cached, s->pages_warm, s->pages_swapped, s->pages_quarantine,
                   s->pages_absent, s->one_memory ? "true" : "false");
}

static void add_drill(buf *out, uint32_t drill) {
    if (drill == ENGINE_DRILL_NONE)
        buf_add_str(out, "\"none\"");
    else if (drill == ENGINE_DRILL_LOSE || drill == ENGINE_DRILL_HANG)
        buf_add_str(out, drill == ENGINE_DRILL_LOSE ? "\"lose\"" : "\"hang\"");
    else
        buf_add_format(out, "\"slow %g\"", (double)drill / ENGINE_DRILL_NONE);
}

void view_add_device(buf *out, const app *a, uint32_t device_idx, const view_now *now) {
    const engine *e = fleet_engine(a->fleet, device_idx);
    engine_stats s;
    engine_get_stats(e, &s);
    buf_add_format(out, "{\"id\":%u", device_idx);
    admin_add_text(out, "name", fleet_device_name(a->fleet, device_idx));
    admin_add_text(out, "kind", a->kinds[device_idx]);
    admin_add_text(out, "about", engine_device_name(e));
    admin_add_u64(out, "page_bytes", s.page_bytes);
    add_device_pages(out, &s);
    device_times t = device_recent_get(a->device_recent, device_idx, &s);
    double window_us = t.window_us > 0 ? (double)t.window_us : 1;
    buf_add_format(out, ",\"recent\":{\"step\":%.3f,\"load\":%.3f,\"idle\":%.3f}",
                   (double)t.step_us / window_us, (double)t.load_us / window_us,
                   (double)t.idle_us / window_us);
    /* Whole seconds of idle time: an idle device is not a change twice a second. */
    buf_add_format(out,
                   ",\"account\":{\"requests\":%.1f,\"load\":%.1f,\"recompute\":%.1f,\"move\":%.1f,"
                   "\"idle\":%.0f,\"host\":%.1f}",
                   (double)s.charged_us / US_PER_S, (double)s.usage_load_us / US_PER_S,
                   (double)s.waste_us / US_PER_S, (double)s.usage_move_us / US_PER_S,
                   (double)s.usage_idle_us / US_PER_S, (double)s.usage_host_us / US_PER_S);
    buf_add_format(out, ",\"lost\":%s,\"thrashing\":%s,\"drill\":",
                   engine_is_lost(e) || a->device_hangs ? "true" : "false",
                   s.thrashing ? "true" : "false");
    add_drill(out, engine_get_drill(e));
    buf_add_format(out, ",\"queue\":{\"running\":%u,\"waiting\":%u,\"paused\":%u}", s.n_running,
                   s.n_waiting, s.n_paused);
    add_step(out, a, e, now);
    buf_add_char(out, '}');
}

/* ---- models ---- */

static void add_share(buf *out, const share_spec *s) {
    static const char *const names[] = {"besteffort", "burst", "fixed"};
    if (s->percent == 0)
        buf_add_str(out, ",\"share\":null");
    else
        buf_add_format(out, ",\"share\":{\"percent\":%u,\"policy\":\"%s\"}", s->percent,
                       names[s->policy]);
}

static uint64_t page_bytes_of(const app *a) {
    engine_stats s;
    engine_get_stats(fleet_engine(a->fleet, 0), &s);
    return s.page_bytes;
}

static void add_bytes(buf *out, const app *a, const engine_model_info *i, uint64_t file_bytes,
                      const model_policy *p) {
    uint64_t page = page_bytes_of(a);
    buf_add_format(out,
                   ",\"bytes\":{\"weight\":%llu,\"kv\":%llu,\"cached\":%llu,\"warm\":%llu,"
                   "\"parked\":%llu",
                   (ull)(i->pages_weight * page), (ull)(i->pages_kv * page),
                   (ull)(i->pages_cached * page), (ull)(i->pages_warm * page),
                   (ull)(i->pages_swapped * page));
    admin_add_u64(out, "file", file_bytes);
    admin_add_u64(out, "min", p->min_bytes);
    add_limit(out, "max", p->max_bytes == UINT64_MAX ? 0 : p->max_bytes, 0);
    buf_add_char(out, '}');
    bool comes = i->state == MODEL_STAGING || i->state == MODEL_LOADING;
    if (comes && i->bytes_total > 0)
        buf_add_format(out, ",\"progress\":%.3f", (double)i->bytes_done / (double)i->bytes_total);
    else
        buf_add_str(out, ",\"progress\":null");
}

static void add_switch(buf *out, const engine_model_info *i) {
    const engine_switch *s = &i->last;
    uint64_t us = s->queue_us + s->reclaim_us + s->stage_us + s->load_us;
    uint64_t n = 0;
    for (int k = 0; k < ENGINE_EVICT_CAUSES; k++) n += i->n_evictions[k];
    buf_add_format(out, ",\"loads\":%llu,\"evictions\":%llu", (ull)i->n_loads, (ull)n);
    if (us == 0) // none yet, or on a device that the model has left
        buf_add_str(out, ",\"last_switch_ms\":null");
    else
        buf_add_format(out, ",\"last_switch_ms\":%.1f", (double)us / 1000);
}

static void add_places(buf *out, const app *a, uint32_t slot) {
    bool first = true;
    buf_add_str(out, ",\"devices\":[");
    for (uint32_t d = 0; d < fleet_n_devices(a->fleet); d++) {
        fleet_replica r;
        fleet_get_replica(a->fleet, slot, d, &r);
        if (r.state == FLEET_ABSENT) continue;
        buf_add_format(out, first ? "%u" : ",%u", d);
        first = false;
    }
    buf_add_char(out, ']');
}

/* Use of the last seconds; rounded, so that a steady load is not always another row. */
static void add_rates(buf *out, const app_recent *r, const tenant_usage_amounts *use) {
    double window_us = (double)r->window_us, per_s = window_us > 0 ? US_PER_S / window_us : 0;
    buf_add_format(out, ",\"in\":%.0f,\"out\":%.0f,\"used\":%.3f",
                   (double)use->prompt_tokens * per_s, (double)use->output_tokens * per_s,
                   window_us > 0 ? (double)use->device_us / window_us : 0.0);
}

static void add_last_use(buf *out, const engine_model_info *i, const view_now *now) {
    enum { STILL_US = 500000 }; // of an idle time: the model is in use
    bool used = i->used_us != 0;
    if (i->n_running + i->n_waiting > 0 || (used && u64_less(now->us, i->used_us) < STILL_US))
        buf_add_str(out, ",\"wanted_at\":null");
    else if (used)
        add_moment(out, "wanted_at", i->used_us, now);
    else
        buf_add_str(out, ",\"wanted_at\":0");
}

/* The fleet's sums are of replicas that serve. */
static void tally_leaving(const app *a, uint32_t slot, engine_model_info *out) {
    fleet_model_tally(a->fleet, slot, out);
    out->state = MODEL_DRAINING;
    for (uint32_t d = 0; d < fleet_n_devices(a->fleet); d++) {
        engine_model_info i;
        engine_model_get(fleet_engine(a->fleet, d), slot, &i);
        if (i.state == MODEL_NONE) continue;
        out->n_running += i.n_running;
        out->n_waiting += i.n_waiting;
        out->pages_weight += i.pages_weight;
        out->pages_kv += i.pages_kv;
        out->pages_cached += i.pages_cached;
        out->pages_warm += i.pages_warm;
        out->pages_swapped += i.pages_swapped;
        out->context = i.context;
        out->used_us = u64_max(out->used_us, i.used_us);
    }
}

/* The use of a name is that of the model of the configuration, if there is one. */
static bool has_rates(const app *a, const registry_slot *s, const config_model *m) {
    return m != NULL || config_find_model(a->config->c, s->name, strlen(s->name)) < 0;
}

void view_add_model(buf *out, const app *a, uint32_t slot, const config_model *m,
                    const app_recent *recent, const view_now *now) {
    const registry_slot *s = app_model(a, slot);
    const tenant_usage_amounts none = {0};
    engine_model_info i;
    if (m == NULL)
        tally_leaving(a, slot, &i);
    else
        fleet_model_tally(a->fleet, slot, &i);
    buf_add_format(out, "{\"id\":%u", slot);
    admin_add_text(out, "name", s->name);
    buf_add_format(out, ",\"leaving\":%s,\"aliases\":[", m == NULL ? "true" : "false");
    for (uint32_t k = 0; m != NULL && k < m->n_aliases; k++) {
        if (k > 0) buf_add_char(out, ',');
        json_add_string(out, m->aliases[k], strlen(m->aliases[k]));
    }
    buf_add_char(out, ']');
    admin_add_text(out, "state", model_state_name(i.state));
    buf_add_format(out, ",\"held\":%s", i.held ? "true" : "false");
    admin_add_text(out, "class", admin_class_name(s->policy.prio));
    admin_add_text(out, "pin", admin_pin_name(s->policy.pin));
    admin_add_u64(out, "weight", s->policy.weight);
    add_share(out, &s->policy.share);
    admin_add_u64(out, "context", i.context);
    buf_add_format(out, ",\"running\":%u,\"waiting\":%u", i.n_running, i.n_waiting);
    add_bytes(out, a, &i, s->m != NULL ? model_about(s->m)->file_bytes : 0, &s->policy);
    add_rates(out, recent, has_rates(a, s, m) ? &recent->by_name[s->name_idx] : &none);
    add_last_use(out, &i, now);
    add_switch(out, &i);
    admin_add_text(out, "error", i.state == MODEL_FAILED ? i.why.text : NULL);
    add_places(out, a, slot);
    buf_add_char(out, '}');
}

/* ---- tenants ---- */

void view_add_tenant(buf *out, const app *a, uint32_t config_idx, const app_recent *recent) {
    const config_tenant *t = &a->config->c->tenants[config_idx];
    uint32_t number = a->config->numbers[config_idx], n_running, n_waiting;
    uint64_t today = 0;
    if (a->admission != NULL && number < limits_n_tenants(admission_limits(a->admission))) {
        limits_usage u;
        limits_get_usage(admission_limits(a->admission), number, (int64_t)time(NULL), &u);
        today = u.used_day;
    }
    buf_add_format(out, "{\"id\":%u", number);
    admin_add_text(out, "name", t->name);
    admin_add_text(out, "class", admin_class_name(t->max_class));
    admin_add_u64(out, "weight", t->policy.weight);
    if (t->policy.share.percent > 0)
        buf_add_format(out, ",\"entitled\":%.2f", t->policy.share.percent / 100.0);
    else
        buf_add_str(out, ",\"entitled\":null");
    admin_add_u64(out, "today", today);
    add_limit(out, "limit_today", t->limits.tokens_per_day, CONFIG_NO_LIMIT);
    fleet_tenant_seqs(a->fleet, number, &n_running, &n_waiting);
    buf_add_format(out, ",\"running\":%u,\"waiting\":%u", n_running, n_waiting);
    admin_add_u64(out, "refused", recent->refused[number]);
    add_rates(out, recent, &recent->by_tenant[number]);
    admin_add_u64(out, "kv", fleet_tenant_bytes(a->fleet, number));
    buf_add_char(out, '}');
}

/* ---- the rest ---- */

void view_add_queue(buf *out, const app *a) {
    fleet_queues q;
    const queue_slots *p = admission_queue_slots(a->admission);
    fleet_get_queues(a->fleet, &q);
    buf_add_format(out,
                   "{\"running\":%u,\"waiting\":%u,\"paused\":%u,\"places\":%u,\"places_used\":%u}",
                   q.n_running, q.n_waiting, q.n_paused, p->n_all, p->n_used);
}

static void add_ms(buf *out, float ms) {
    if (isnan(ms))
        buf_add_str(out, ",null");
    else
        buf_add_format(out, ",%.4g", (double)ms);
}

void view_add_history_row(buf *out, const history_row *row) {
    buf_add_format(out, "[%lld", (long long)row->at_s);
    for (int k = 0; k < HISTORY_LATENCIES; k++) {
        add_ms(out, row->p50_ms[k]);
        add_ms(out, row->p95_ms[k]);
    }
    buf_add_format(out, ",%.0f,%.0f,%u,%u,%u,%.3f]", (double)row->prompt_tokens_per_s,
                   (double)row->output_tokens_per_s, row->preemptions, row->switches, row->refused,
                   (double)row->busy);
}

void view_add_event(buf *out, const journal_event *e) {
    buf_add_format(out, "{\"id\":%llu,\"change\":%llu,\"at\":%lld,\"kind\":\"%s\",\"n\":%u",
                   (ull)e->id, (ull)e->change, (long long)e->at_ms, journal_kind_name(e->kind),
                   e->n);
    admin_add_text(out, "text", e->text);
    buf_add_char(out, '}');
}
