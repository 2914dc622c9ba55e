/* engine_limits.c - see engine_limits.h. */
#include "engine_limits.h"

#include "core.h"

enum {
    MS_US = 1000,
    LOGITS_MORE = 32,
    STARVATION_US = 2000000, // a request that waits longer ages by one class
    STARVATION_PERCENT = 2   // of the time that a class waits: its minimum
};

static uint32_t or_default(uint32_t value, uint32_t otherwise) {
    return value != 0 ? value : otherwise;
}

engine_limits limits_fill(const engine_limits *given) {
    engine_limits l = *given;
    l.running_max = or_default(l.running_max, 32);
    l.queue_len_max = or_default(l.queue_len_max, 1024);
    l.tpot_ms = or_default(l.tpot_ms, 40);
    l.slice_ms = or_default(l.slice_ms, 500);
    l.load_retry_ms = or_default(l.load_retry_ms, 1000);
    l.load_retry_max_ms = or_default(l.load_retry_max_ms, 60000);
    return l;
}

sched_limits limits_of_sched(const engine_limits *l) {
    bool by_device = l->step_tokens_max == 0;
    uint32_t most = u32_max(STEP_TOKENS_DEFAULT_MAX, l->running_max);
    uint32_t step_tokens_max = by_device ? most : l->step_tokens_max;
    /* One per sequence, and some for prompts that are scored. */
    uint32_t logits_max = u32_min(l->running_max + LOGITS_MORE, step_tokens_max);
    return (sched_limits){.depth = CORE_DEPTH_MAX,
                          .running_max = l->running_max,
                          .step_tokens_max = step_tokens_max,
                          .step_tokens_by_device = by_device,
                          .logits_max = logits_max,
                          .queue_len_max = l->queue_len_max,
                          .draft_tokens = l->draft_tokens,
                          .pace_us = (uint64_t)l->tpot_ms * MS_US,
                          .starvation_us = STARVATION_US,
                          .starvation_percent = STARVATION_PERCENT,
                          .urgent_percent = l->urgent_percent,
                          .zero_on_tenant_change = l->zero_on_tenant_change};
}

residency_limits limits_of_models(const engine_limits *l) {
    return (residency_limits){.slice_us = (uint64_t)l->slice_ms * MS_US,
                              .retry_us = (uint64_t)l->load_retry_ms * MS_US,
                              .retry_max_us = (uint64_t)l->load_retry_max_ms * MS_US,
                              .eager = !l->lazy};
}
