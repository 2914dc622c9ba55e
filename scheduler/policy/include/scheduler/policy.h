/* policy.h - what an operator configures for models and tenants, as plain numbers.
 *
 * The configuration is read into these; the scheduler, the placement and the simulator take them as
 * they are.  All of it may change while the daemon runs, between two steps.
 *
 * A share is device time: 100 percent is one device.  `fixed` never gets more than its share;
 * `burst` gets at least its share, and by its weight a part of what is left; `besteffort` only the
 * latter.  Memory below `min` is guaranteed, above `max` refused, and lent in between. */
#ifndef INFERD_POLICY_H
#define INFERD_POLICY_H

#include "scheduler/gen.h"

typedef enum share_policy { SHARE_BESTEFFORT, SHARE_BURST, SHARE_FIXED } share_policy;

typedef struct share_spec {
    share_policy policy;
    uint32_t percent;   // of one device, over all of them: 240 on 3 devices are 80 on each
    uint32_t n_devices; // that it is spread over; 0 = 1
} share_spec;

typedef enum model_pin { PIN_NONE, PIN_WARM, PIN_HOT } model_pin;

#define POLICY_NEVER UINT64_MAX

typedef struct model_policy {
    uint64_t min_bytes, max_bytes; // of weights, keys and values; max 0 = no ceiling
    gen_class prio;                // of requests without one
    uint32_t weight;               // of its part of the surplus; 0 = paused
    share_spec share;
    uint32_t slo_ttft_ms, slo_tpot_ms; // targets; 0 = none
    model_pin pin;
    uint64_t keep_alive_us; // idle for so long: HOT -> WARM; POLICY_NEVER
    uint32_t replicas_min, replicas_max;
} model_policy;

typedef struct tenant_policy {
    uint64_t min_bytes, max_bytes; // of keys and values; max 0 = no ceiling
    uint64_t here_bytes;           // of max, on this device for now; 0 = all of it
    uint32_t weight;
    gen_class max_class;
    share_spec share;
} tenant_policy;

#endif
