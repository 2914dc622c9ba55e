/* flow_usage.h - the usage table: time and tokens that each tenant used of this device, per model.
 *
 * A row is the usage of one flow: a tenant's work on the model in a slot, for as long as that model
 * A row is the usage of one flow: a tenant's work on the model in a slot, for as long as that model
 * is in it.  Rows only grow.  The scheduler keeps a flow_usage_ref for each tenant and model, so it
 * never searches for a row: the reference names the row, and gets another one when that row has
 *
 * There are ENGINE_FLOWS_MAX rows.  When all are taken, a released row is reused (its model left
 * its slot, or its reference was given up), else the least recently charged one, and its usage is
 * added to `others`.  So nothing that was charged is lost here:
 *
 *     sum of rows + others == all       (flow_usage_verify), of time and of each kind of tokens
 *
 * Readers see the rows, and only the time of `others`: a reader that reads a row before it is
 * reused misses nothing; one that does not still has every microsecond, but not that row's tokens.
 *
 * Each row has a serial number, a new one for each reuse, by which readers with sums of their own
 * notice that a row began anew.
 * Thread: engine. */
#ifndef INFERD_FLOW_USAGE_H
#define INFERD_FLOW_USAGE_H

#include "inferd/list.h"
#include "scheduler/usage.h"

#define FLOW_USAGE_NONE UINT32_MAX

typedef struct flow_usage_row {
    list_node link; // in flow_usage.recent: released rows first, then the least recently charged
    engine_flow is;
    bool let_go;
    bool changed; // in flow_usage.changed
} flow_usage_row;

/* Zeroed: no row yet. */
typedef struct flow_usage_ref {
    uint32_t row, serial;
} flow_usage_ref;

typedef struct flow_usage {
    flow_usage_row *rows; // [ENGINE_FLOWS_MAX] owned; n_rows were used so far
    uint32_t *changed;    // [n_changed] rows that changed since flow_usage_next_changed; owned
    uint32_t n_rows, n_changed, n_serials;
    list_node recent;
    engine_flow others; // of rows that were reused
    engine_flow all;    // all usage ever charged
} flow_usage;

bool flow_usage_init(flow_usage *a); // false: no memory; call flow_usage_deinit all the same
void flow_usage_deinit(flow_usage *a);

/* Add the time and tokens of `use` to the row of this reference, for this tenant and model. */
void flow_usage_charge(flow_usage *a, flow_usage_ref *ref, uint32_t tenant, uint32_t model,
                       const engine_flow *use);
/* Release the row: it is not charged any more.  The reference is zeroed. */
void flow_usage_let_go(flow_usage *a, flow_usage_ref *ref);
/* The model leaves its slot: the next model there gets rows of its own. */
void flow_usage_close_model(flow_usage *a, uint32_t model);
/* A row that changed since it was last returned here; FLOW_USAGE_NONE: none did. */
uint32_t flow_usage_next_changed(flow_usage *a);
bool flow_usage_verify(const flow_usage *a); // the rows and `others` add up to `all`

#endif
