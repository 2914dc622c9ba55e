/* audit.c - the books of an engine as one JSON object, checked first. */
#include "engine_private.h"

static const char *state_name(model_state state) {
    switch (state) {
    case MODEL_COLD:
        return "cold";
    case MODEL_LOADING:
        return "loading";
    case MODEL_HOT:
        return "hot";
    case MODEL_DRAINING:
        return "draining";
    case MODEL_FAILED:
        return "failed";
    }
    return "unknown";
}

/* The sentences of verify functions have quotes and control characters in no case but a model's
 * own words may: escape both. */
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

void engine_write_audit(engine *e, buf *json) {
    inferd_err problem = {0};
    sched_counters c;
    backend_stats b = {0};
    bool ok = sched_verify(e->sched, &problem) == INFERD_OK;
    sched_count(e->sched, &c);
    if (atomic_load(&e->opened)) e->device.ops->get_stats(e->device.self, &b);
    buf_add_format(json, "{\"ok\":%s,\"problems\":[", ok ? "true" : "false");
    if (!ok) add_string(json, problem.text);
    buf_add_format(json,
                   "],\"pages\":{\"total\":%u,\"free\":%u,\"weight\":%u,\"kv\":%u,\"cached\":%u,"
                   "\"quarantine\":%u},\"blocks_referenced\":%u",
                   e->pool.n_pages, e->pool.n_in[PAGE_FREE], e->pool.n_in[PAGE_WEIGHT],
                   e->pool.n_in[PAGE_KV] - c.pages_cached, c.pages_cached,
                   e->pool.n_in[PAGE_QUARANTINE], c.blocks_referenced);
    buf_add_format(json,
                   ",\"sequences\":{\"running\":%u,\"waiting\":%u,\"paused\":%u,\"ended\":%u},"
                   "\"steps_in_flight\":%u,\"events_unread\":%u,\"models\":[",
                   c.n_running, c.n_waiting, c.n_paused, c.n_ended, e->n_flight,
                   ring_fill(&e->outbox));
    for (uint32_t i = 0; i < e->models.n; i++) {
        const model_slot *slot = &e->models.slots[i];
        inferd_err why;
        slot_error(slot, &why);
        buf_add_format(json, "%s{\"state\":\"%s\",\"weight_pages\":%u,\"kv_tokens_max\":%u",
                       i > 0 ? "," : "", state_name(slot_state(slot)), slot->n_pages,
                       atomic_load(&slot->kv_tokens_max));
        if (slot_state(slot) == MODEL_FAILED) {
            buf_add_str(json, ",\"error\":");
            add_string(json, why.text);
        }
        buf_add_char(json, '}');
    }
    buf_add_format(json, "],\"backend\":{\"kv_driver_calls\":%llu,\"kv_page_faults\":%llu}}",
                   (unsigned long long)b.n_kv_driver_calls, (unsigned long long)b.n_kv_page_faults);
}
