/* flow_usage.c - see flow_usage.h. */
#include "flow_usage.h"

#include <stdlib.h>

enum { ROWS = ENGINE_FLOWS_MAX };

bool flow_usage_init(flow_usage *a) {
    *a = (flow_usage){0};
    list_node_init(&a->recent);
    a->rows = calloc(ROWS, sizeof *a->rows);
    a->changed = malloc(ROWS * sizeof *a->changed);
    return a->rows != NULL && a->changed != NULL;
}

void flow_usage_deinit(flow_usage *a) {
    free(a->rows);
    free(a->changed);
    *a = (flow_usage){0};
}

static void add(engine_flow *to, const engine_flow *from) {
    to->device_us += from->device_us;
    to->prompt_tokens += from->prompt_tokens;
    to->cached_tokens += from->cached_tokens;
    to->output_tokens += from->output_tokens;
    for (int r = 0; r < GEN_PREEMPTS; r++) to->n_preempts[r] += from->n_preempts[r];
    to->away_us += from->away_us;
}

static void note_change(flow_usage *a, flow_usage_row *row) {
    if (row->changed) return;
    row->changed = true;
    a->changed[a->n_changed++] = (uint32_t)(row - a->rows);
}

/* Rows that were released are in front, so they are reused first. */
static flow_usage_row *take_row(flow_usage *a) {
    if (a->n_rows < ROWS) return &a->rows[a->n_rows++];
    flow_usage_row *row = LIST_ENTRY(a->recent.next, flow_usage_row, link);
    list_remove(&row->link);
    add(&a->others, &row->is);
    return row;
}

static flow_usage_row *begin_row(flow_usage *a, flow_usage_ref *ref, uint32_t tenant,
                                 uint32_t model) {
    flow_usage_row *row = take_row(a);
    bool changed = row->changed;
    *row = (flow_usage_row){.changed = changed,
                            .is = {.tenant = tenant, .model = model, .serial = ++a->n_serials}};
    list_node_init(&row->link);
    *ref = (flow_usage_ref){.row = (uint32_t)(row - a->rows), .serial = row->is.serial};
    return row;
}

/* The row, if it is still that of the reference. */
static flow_usage_row *row_of(flow_usage *a, const flow_usage_ref *ref) {
    flow_usage_row *row = &a->rows[ref->row];
    return ref->serial != 0 && row->is.serial == ref->serial && !row->let_go ? row : NULL;
}

void flow_usage_charge(flow_usage *a, flow_usage_ref *ref, uint32_t tenant, uint32_t model,
                       const engine_flow *use) {
    flow_usage_row *row = row_of(a, ref);
    if (row == NULL)
        row = begin_row(a, ref, tenant, model);
    else
        list_remove(&row->link);
    list_push_back(&a->recent, &row->link);
    add(&row->is, use);
    add(&a->all, use);
    note_change(a, row);
}

static void let_go(flow_usage *a, flow_usage_row *row) {
    row->let_go = true;
    list_remove(&row->link);
    list_push_front(&a->recent, &row->link);
}

void flow_usage_let_go(flow_usage *a, flow_usage_ref *ref) {
    flow_usage_row *row = row_of(a, ref);
    if (row != NULL) let_go(a, row);
    *ref = (flow_usage_ref){0};
}

void flow_usage_close_model(flow_usage *a, uint32_t model) {
    LIST_EACH_SAFE(node, next, &a->recent) {
        flow_usage_row *row = LIST_ENTRY(node, flow_usage_row, link);
        if (!row->let_go && row->is.model == model) let_go(a, row);
    }
}

uint32_t flow_usage_next_changed(flow_usage *a) {
    if (a->n_changed == 0) return FLOW_USAGE_NONE;
    uint32_t i = a->changed[--a->n_changed];
    a->rows[i].changed = false;
    return i;
}

bool flow_usage_verify(const flow_usage *a) {
    engine_flow sum = a->others;
    for (uint32_t i = 0; i < a->n_rows; i++) add(&sum, &a->rows[i].is);
    return sum.device_us == a->all.device_us && sum.prompt_tokens == a->all.prompt_tokens &&
           sum.cached_tokens == a->all.cached_tokens && sum.output_tokens == a->all.output_tokens &&
           sum.away_us == a->all.away_us;
}
