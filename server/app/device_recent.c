/* device_recent.c - see device_recent.h. */
#include "device_recent.h"

#define SECOND_US ((uint64_t)1000000)

enum { SAMPLES = DEVICE_RECENT_WINDOW_S + 1 };

typedef struct sample {
    uint64_t until_us, step_us, load_us, idle_us;
} sample;

struct device_recent {
    sample *samples; // [n_devices][SAMPLES] rings; owned
    uint32_t n_devices, n_ticks;
    uint64_t last_us;
};

device_recent *device_recent_create(uint32_t n_devices) {
    device_recent *r = calloc(1, sizeof *r);
    if (r == NULL) return NULL;
    r->n_devices = n_devices;
    r->samples = calloc((size_t)n_devices * SAMPLES, sizeof *r->samples);
    if (r->samples != NULL) return r;
    device_recent_destroy(r);
    return NULL;
}

void device_recent_destroy(device_recent *r) {
    if (r == NULL) return;
    free(r->samples);
    free(r);
}

bool device_recent_is_due(const device_recent *r, uint64_t now_us) {
    return r->n_ticks == 0 || now_us >= r->last_us + SECOND_US;
}

static sample sample_of(const engine_stats *s) {
    return (sample){s->usage_until_us, s->usage_step_us, s->usage_load_us, s->usage_idle_us};
}

void device_recent_tick(device_recent *r, const engine_stats *stats, uint64_t now_us) {
    if (!device_recent_is_due(r, now_us)) return;
    r->last_us = now_us;
    uint32_t at = r->n_ticks++ % SAMPLES;
    for (uint32_t d = 0; d < r->n_devices; d++)
        r->samples[(size_t)d * SAMPLES + at] = sample_of(&stats[d]);
}

device_times device_recent_get(const device_recent *r, uint32_t device_idx,
                               const engine_stats *now) {
    INFERD_CHECK(device_idx < r->n_devices);
    if (r->n_ticks == 0 || now->opened_us == 0) return (device_times){0};
    uint32_t oldest = r->n_ticks > SAMPLES ? r->n_ticks % SAMPLES : 0;
    const sample *then = &r->samples[(size_t)device_idx * SAMPLES + oldest];
    /* A sample from before the device was open has no times: the window begins with the device. */
    uint64_t from_us = then->until_us > now->opened_us ? then->until_us : now->opened_us;
    if (now->usage_until_us <= from_us) return (device_times){0};
    return (device_times){.window_us = now->usage_until_us - from_us,
                          .step_us = now->usage_step_us - then->step_us,
                          .load_us = now->usage_load_us - then->load_us,
                          .idle_us = now->usage_idle_us - then->idle_us};
}
