/* inspect_memory.c - what a model takes on a device: its prepared weights, and its keys and values
 * for each type they can have.
 *
 * Keys and values are counted as they are allocated: in blocks of tokens, with the end of a page
 * that no block fills.  Layers with a window keep those of all positions. */
#include "inspect_report.h"

enum { TOKENS = 1000 };

static uint64_t kv_bytes(const backend *be, const kv_layout *l, uint64_t n_tokens) {
    uint64_t blocks = (n_tokens + l->block_tokens - 1) / l->block_tokens;
    return blocks * l->n_groups * be_page_bytes(be) / l->slots_per_page;
}

static json_t *tell_kv(report *r, kv_type type, const char *name, uint32_t context) {
    kv_layout l = {.block_tokens = 1};
    inferd_err err = {0};
    json_t *o = json_object();
    bool fine = kv_layout_choose(r->be, &r->m->spec, type, &l, &err) == INFERD_OK;
    uint64_t token = fine ? l.n_layers * (uint64_t)l.layer_bytes / l.block_tokens : 0;
    uint64_t thousand = fine ? kv_bytes(r->be, &l, TOKENS) : 0;
    uint64_t whole = fine ? kv_bytes(r->be, &l, context) : 0;
    report_put(r, o, "type", json_string(name));
    report_put(r, o, "default", json_boolean(be_kv_preferred(r->be) == type));
    report_put(r, o, "why_not",
               fine ? json_null() : report_text((bytes){err.text, strlen(err.text)}));
    report_put(r, o, "bytes_per_token", report_number(token));
    report_put(r, o, "bytes_per_1000_tokens", report_number(thousand));
    report_put(r, o, "bytes_of_context", report_number(whole));
    report_put(r, o, "block_tokens", fine ? report_number(l.block_tokens) : json_null());
    return o;
}

void report_memory(report *r) {
    static const struct {
        kv_type type;
        const char *name;
    } types[] = {
        {KV_I16, "int16"}, {KV_F16, "f16"}, {KV_BF16, "bf16"}, {KV_I8, "int8"}, {KV_F32, "f32"}};
    if (r->be == NULL || !r->described) {
        report_put(r, r->root, "memory", json_null());
        return;
    }
    inferd_err ignored;
    uint32_t n_pages = 0;
    uint64_t n_bytes = 0;
    uint32_t context = (uint32_t)json_integer_value(json_object_get(r->root, "context"));
    json_t *memory = json_object(), *kv = json_array();
    if (r->is_whole && model_weigh(r->m, r->be, &n_pages, &n_bytes, &ignored) != INFERD_OK)
        n_bytes = 0;
    for (size_t i = 0; i < INFERD_COUNT(types); i++)
        report_add(r, kv, tell_kv(r, types[i].type, types[i].name, context));
    report_put(r, memory, "device", json_string("cpu"));
    report_put(r, memory, "weights_bytes", report_number(n_bytes));
    report_put(r, memory, "kv", kv);
    report_put(r, r->root, "memory", memory);
}
