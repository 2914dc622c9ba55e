/* device_recent.h - the time of each device in the last seconds, by use.
 *
 *   engine_stats, once a second > a ring of DEVICE_RECENT_WINDOW_S samples > differences
 * Thread: front. */
#ifndef INFERD_DEVICE_RECENT_H
#define INFERD_DEVICE_RECENT_H

#include "inferd/base.h"
#include "scheduler/engine.h"

enum { DEVICE_RECENT_WINDOW_S = 10 };

typedef struct device_recent device_recent;

/* Microseconds of a window, of steps, of bringing models up, of waiting for work. */
typedef struct device_times {
    uint64_t window_us, step_us, load_us, idle_us;
} device_times;

device_recent *device_recent_create(uint32_t n_devices); // NULL: no memory
void device_recent_destroy(device_recent *r);            // accepts NULL
/* device_recent_tick would take a sample: a second has passed. */
bool device_recent_is_due(const device_recent *r, uint64_t now_us);
/* `stats` of all devices, [n_devices]. */
void device_recent_tick(device_recent *r, const engine_stats *stats, uint64_t now_us);
/* From the oldest sample to `now`; zeros before the first sample, and while it is not open. */
device_times device_recent_get(const device_recent *r, uint32_t device_idx,
                               const engine_stats *now);

#endif
