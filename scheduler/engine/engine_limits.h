/* engine_limits.h - defaults of an engine's limits, and what the limits mean to a core.
 *
 * The engine and the simulator both fill the options of a core here, so that the policy judged in
 * virtual time is the one that serves.  Thread: any. */
#ifndef INFERD_ENGINE_LIMITS_H
#define INFERD_ENGINE_LIMITS_H

#include "residency.h"
#include "scheduler.h"
#include "scheduler/engine.h"

/* The same limits with a default in place of every 0 that means one, except step_tokens_max: the
 * device says it when it is opened (core.c). */
engine_limits limits_fill(const engine_limits *given);
/* From limits that were filled.  The depth is the most there is; the device's own may be less. */
sched_limits limits_of_sched(const engine_limits *l);
residency_limits limits_of_models(const engine_limits *l);

#endif
