/* engine_limits.h - what the limits of an engine are when nobody said them, and what they mean to a
 * core.
 *
 * Of an engine and of the simulator: both fill the options of a core here, so that what is judged
 * in virtual time is what serves.  Thread: any. */
#ifndef INFERD_ENGINE_LIMITS_H
#define INFERD_ENGINE_LIMITS_H

#include "residency.h"
#include "scheduler.h"
#include "scheduler/engine.h"

/* The same with a default in the place of every 0 that means one, but for step_tokens_max: the
 * device says it when it is opened (core.c). */
engine_limits limits_fill(const engine_limits *given);
/* Of limits that were filled.  The depth is the most there is; the device's own may be less. */
sched_limits limits_of_sched(const engine_limits *l);
/* Time per output token that streams without a target keep beside prompts; 0: the objective's. */
uint64_t limits_pace_us(policy_objective objective, uint32_t tpot_ms);
residency_limits limits_of_models(const engine_limits *l);

#endif
