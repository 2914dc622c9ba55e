/* usage.h - figures of device usage, as plain values that cross threads.
 *
 * Thread: any; copies. */
#ifndef INFERD_USAGE_H
#define INFERD_USAGE_H

#include "inferd/base.h"
#include "scheduler/gen.h"

/* Times of one kind: how many, their sum, and a count per bucket. */
enum { ENGINE_PREEMPT_BUCKETS = 14 };
extern const uint32_t
    engine_preempt_us_bounds[ENGINE_PREEMPT_BUCKETS]; // upper bounds; the last is UINT32_MAX
typedef struct engine_times {
    uint64_t n, us, hist[ENGINE_PREEMPT_BUCKETS];
} engine_times;

/* Tenants with reported bytes: numbers below this. */
enum { ENGINE_TENANTS_MAX = 200000 };

/* A flow: what a tenant used of this device for the model in a slot. */
enum { ENGINE_FLOWS_MAX = 4096 };
typedef struct engine_flow {
    uint32_t tenant, model; // gen_request.tenant_idx; the slot
    uint32_t serial;        // changes whenever this row gets another flow
    uint64_t device_us;     // of steps, without computing again after preemptions
    /* Tokens, each counted once: of prompts, computed, and found in caches; and drawn. */
    uint64_t prompt_tokens, cached_tokens, output_tokens;
    uint64_t n_preempts[GEN_PREEMPTS], away_us; // preemptions; how long its sequences were away
} engine_flow;

#endif
