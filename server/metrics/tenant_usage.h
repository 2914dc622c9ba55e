/* tenant_usage.h - the usage table: time and tokens of tenants on all devices, by model name.
 *
 *   engine's list of flows (engine_flow) --tenant_usage_read--> rows by (tenant, name of the model)
 *
 * An engine identifies models by slot and drops the figures of models that left; here a row stays,
 * and only grows.  No use is missed if the lists are read often enough (before a slot gets another
 * model).  There are TENANT_USAGE_ROWS_MAX rows; when they are taken, further use is counted in one
 * more row without tenant and model.
 *
 * The last TENANT_USAGE_WINDOW_S seconds are kept to compute the recent use of a share.
 * Thread: front. */
#ifndef INFERD_TENANT_USAGE_H
#define INFERD_TENANT_USAGE_H

#include "inferd/base.h"
#include "scheduler/usage.h"

enum { TENANT_USAGE_ROWS_MAX = 8192, TENANT_USAGE_WINDOW_S = 10 };
#define TENANT_USAGE_NONE UINT32_MAX // no tenant, no name: the row for the rest

/* The use that rates are computed from. */
typedef struct tenant_usage_amounts {
    uint64_t device_us, prompt_tokens, output_tokens; // prompt: computed
} tenant_usage_amounts;

typedef struct tenant_usage_row {
    uint32_t tenant, name_idx;
    uint64_t device_us, prompt_tokens, cached_tokens, output_tokens;
    uint64_t n_preempts[GEN_PREEMPTS];                    // by kind
    uint64_t away_us;                                     // swapped out or otherwise away
    tenant_usage_amounts then[TENANT_USAGE_WINDOW_S + 1]; // at the last seconds; a ring
} tenant_usage_row;

typedef struct tenant_usage tenant_usage;

tenant_usage *tenant_usage_create(uint32_t n_devices); // NULL: no memory
void tenant_usage_destroy(tenant_usage *l);            // accepts NULL

/* A buffer for one device's list, [ENGINE_FLOWS_MAX], so that frequent reads allocate nothing.
 * Borrowed; its content is undefined after the next call of tenant_usage_read. */
engine_flow *tenant_usage_list(tenant_usage *l);
/* Adds the use since the last read of this device. names: [n_slots] name_idx of the model in each
 * slot; TENANT_USAGE_NONE: no model.  False: no memory; it is added by a later call. */
bool tenant_usage_read(tenant_usage *l, uint32_t device_idx, const engine_flow *list, uint32_t n,
                       const uint32_t *names, uint32_t n_slots);
/* Call it regularly: the window moves once a second. */
void tenant_usage_tick(tenant_usage *l, uint64_t now_us);
bool tenant_usage_is_due(const tenant_usage *l,
                         uint64_t now_us); // tenant_usage_tick would move the window

uint32_t tenant_usage_n(const tenant_usage *l);
const tenant_usage_row *tenant_usage_at(const tenant_usage *l,
                                        uint32_t i); // until the next tenant_usage_read
/* The use of a row in the window, and the window's length; 0 before two ticks. */
tenant_usage_amounts tenant_usage_recent(const tenant_usage *l, uint32_t i);
uint64_t tenant_usage_window_us(const tenant_usage *l, uint64_t now_us);
/* Adds the use of all rows in the window to by_tenant[n_tenants] and by_name[n_names], in one pass;
 * rows with a number beyond these are not added. */
void tenant_usage_sum_recent(const tenant_usage *l, tenant_usage_amounts *by_tenant,
                             uint32_t n_tenants, tenant_usage_amounts *by_name, uint32_t n_names);

#endif
