/* audit.c - the state of an engine as one JSON object, after a consistency check. */
#include "engine_private.h"

const char *model_state_name(model_state state) {
    static const char *const names[MODEL_STATES] = {"none",    "cold", "staging",  "warm",
                                                    "loading", "hot",  "draining", "failed"};
    return (unsigned)state < MODEL_STATES ? names[state] : "unknown";
}

/* A model's own words may have quotes or control characters: escape both. */
static void add_string(buf *json, const char *text) {
    buf_add_char(json, '"');
    for (const unsigned char *p = (const unsigned char *)text; *p != 0; p++) {
        if (*p == '"' || *p == '\\')
            buf_add_format(json, "\\%c", *p);
        else if (*p < 0x20)
            buf_add_format(json, "\\u%04x", *p);
        else
            buf_add_char(json, (char)*p);
    }
    buf_add_char(json, '"');
}

static void add_model(buf *json, const core *c, uint32_t idx, bool first) {
    const resident *m = &c->models.slots[idx];
    model_state state = residency_state(&c->models, idx);
    sched_model_numbers n;
    sched_count_model(c->sched, idx, &n);
    buf_add_format(json,
                   "%s{\"slot\":%u,\"state\":\"%s\",\"weight_pages\":%u,\"kv_tokens_max\":%u,"
                   "\"running\":%u,\"waiting\":%u,\"cached_pages\":%u",
                   first ? "" : ",", idx, model_state_name(state), m->n_pages,
                   c->opened ? sched_kv_tokens_max(c->sched, idx) : 0, n.n_running, n.n_waiting,
                   n.pages_cached);
    if (state == MODEL_FAILED) {
        buf_add_str(json, ",\"error\":");
        add_string(json, m->why.text);
    }
    buf_add_char(json, '}');
}

/* Where the time since the start went, microseconds.  `error` is the difference to wall time: the
 * iteration that writes this, and any time not accounted for. */
static void add_usage(buf *json, const core *c) {
    const core_usage *a = &c->usage;
    const flow_usage *p = sched_flow_usage(c->sched);
    sched_counters n;
    sched_count(c->sched, &n);
    uint64_t now_us = c->options.clock(c->options.ctx), rows_us = p->others.device_us;
    for (uint32_t i = 0; i < p->n_rows; i++) rows_us += p->rows[i].is.device_us;
    uint64_t wall_us = a->opened_us == 0 || now_us < a->opened_us ? 0 : now_us - a->opened_us;
    uint64_t preempt_us = n.waste_us + a->move_us;
    uint64_t sum_us = rows_us + preempt_us + a->load_us + a->idle_us + a->host_us;
    uint64_t error_us = wall_us > sum_us ? wall_us - sum_us : sum_us - wall_us;
    uint64_t ppm = wall_us > 0 ? error_us * 1000000 / wall_us : 0;
    buf_add_format(json,
                   ",\"account\":{\"wall_us\":%llu,\"principals_us\":%llu,\"others_us\":%llu,"
                   "\"load_us\":%llu,\"preempt_us\":%llu,\"idle_us\":%llu,\"host_us\":%llu,"
                   "\"sum_us\":%llu,\"error_ppm\":%llu,\"n_principals\":%u}",
                   (unsigned long long)wall_us, (unsigned long long)rows_us,
                   (unsigned long long)p->others.device_us, (unsigned long long)a->load_us,
                   (unsigned long long)preempt_us, (unsigned long long)a->idle_us,
                   (unsigned long long)a->host_us, (unsigned long long)sum_us,
                   (unsigned long long)ppm, p->n_rows);
}

void engine_write_audit(engine *e, buf *json) {
    const core *c = &e->core;
    const pool *p = &c->pool;
    inferd_err problem = {0};
    sched_counters n;
    backend_stats b = {0};
    bool ok = core_verify(c, &problem) == INFERD_OK, first = true;
    sched_count(c->sched, &n);
    if (c->opened) c->device.ops->get_stats(c->device.self, &b);
    buf_add_format(json, "{\"ok\":%s,\"problems\":[", ok ? "true" : "false");
    if (!ok) add_string(json, problem.text);
    buf_add_format(json,
                   "],\"pages\":{\"total\":%u,\"free\":%u,\"weight\":%u,\"kv\":%u,\"cached\":%u,"
                   "\"quarantine\":%u,\"warm\":%u,\"parked\":%u,\"device\":%u,\"host\":%u},"
                   "\"blocks_referenced\":%u",
                   p->n_pages, p->n_in[PAGE_FREE], p->n_in[PAGE_WEIGHT],
                   p->n_in[PAGE_KV] - n.pages_cached, n.pages_cached, p->n_in[PAGE_QUARANTINE],
                   p->n_in[PAGE_WARM], p->n_in[PAGE_SWAPPED] + c->host.n_in[PAGE_SWAPPED],
                   p->n_device, p->n_host, n.blocks_referenced);
    buf_add_format(json,
                   ",\"sequences\":{\"running\":%u,\"waiting\":%u,\"paused\":%u,\"ended\":%u},"
                   "\"steps_in_flight\":%u,\"events_unread\":%u,\"models\":[",
                   n.n_running, n.n_waiting, n.n_paused, n.n_ended, c->n_flight,
                   ring_fill(&e->outbox));
    for (uint32_t i = 0; i < c->models.n_used; i++) {
        if (c->models.slots[i].state == MODEL_NONE) continue;
        add_model(json, c, i, first);
        first = false;
    }
    buf_add_char(json, ']');
    add_usage(json, c);
    buf_add_format(json, ",\"backend\":{\"kv_driver_calls\":%llu,\"kv_page_faults\":%llu}}",
                   (unsigned long long)b.n_kv_driver_calls, (unsigned long long)b.n_kv_page_faults);
}
