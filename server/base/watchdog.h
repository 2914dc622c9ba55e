/* watchdog.h - ends the process when one of its loops gives no sign of life.
 *
 * A thread of its own checks the pulses (scheduler/pulse.h) of the front and of each engine.  A
 * loop without a beat for its limit is named in one log line, with its position in the code, and
 * the process ends with WATCHDOG_EXIT, so that a supervisor restarts it.  The same thread reports
 * to a service manager that the process is alive (sd_notify.h), which covers a hang of this thread.
 *
 * Silence is the sum of the times between two checks, each counted as at most WATCHDOG_LOOK_US_MAX:
 * the time of a stopped process (SIGSTOP, a debugger, a frozen container) counts as one check.
 *
 *   limit of PULSE_WORK      limits.watchdog_s
 *   limit of PULSE_DEVICE    the same, or step_hang_ms plus WATCHDOG_DEVICE_EXTRA_MS if that is
 *                            longer: the front gives up such a device first and answers its clients
 *
 * Ending takes no lock and allocates nothing.
 * Thread: front, except the check itself. */
#ifndef INFERD_WATCHDOG_H
#define INFERD_WATCHDOG_H

#include <stdatomic.h>

#include "inferd/base.h"
#include "inferd/status.h"
#include "scheduler/pulse.h"

enum {
    WATCHDOG_EXIT = 71,
    WATCHDOG_LOOPS_MAX = 65, // the front, and engines
    WATCHDOG_LOOK_US = 100000,
    WATCHDOG_LOOK_US_MAX = 5 * WATCHDOG_LOOK_US,
    WATCHDOG_DEVICE_EXTRA_MS = 5000,
    WATCHDOG_NONE = -1
};

typedef struct pulses_loop {
    const pulse *pulse;      // borrowed
    const char *kind, *name; // "engine", "gpu0"; name may be ""; borrowed
    unsigned n_beats;        // at the last check
    atomic_ullong silent_us;
} pulses_loop;

/* The logic of a check, without the thread, so that a test can set the time. */
typedef struct pulses {
    pulses_loop loops[WATCHDOG_LOOPS_MAX];
    uint32_t n_loops;
} pulses;

typedef struct pulse_limits {
    uint64_t work_us, device_us; // UINT64_MAX: none
} pulse_limits;

void pulses_add(pulses *w, const pulse *p, const char *kind, const char *name);
/* `elapsed_us` since the last check: the loop that is silent for too long, or WATCHDOG_NONE. */
int pulses_look(pulses *w, const pulse_limits *limits, uint64_t elapsed_us);

typedef struct watchdog watchdog;

typedef struct watchdog_options {
    /* The model in this slot, for the log line; a hanging loop cannot lose it.  NULL: no names. */
    const char *(*model_name)(void *ctx, uint32_t model_idx);
    void *ctx;
} watchdog_options;

inferd_status watchdog_create(const watchdog_options *o, watchdog **out, inferd_err *err);
/* Only before watchdog_start.  Add engines after the front. */
void watchdog_add(watchdog *w, const pulse *p, const char *kind, const char *name);
inferd_status watchdog_start(watchdog *w, inferd_err *err);
/* Both may change at any time.  watchdog_s 0: no loop ends the process; a service manager still
 * gets reports only while all loops are alive. */
void watchdog_set_limits(watchdog *w, uint32_t watchdog_s, uint32_t step_hang_ms);
/* From now on engines may be silent: their device is lost, and the front ends the process. */
void watchdog_forget_engines(watchdog *w);
/* Loop i, and how long it has given no sign of life by the last check; false: there is no such
 * loop. A loop that waits for work is not silent.  Any thread. */
typedef struct watchdog_loop {
    const char *kind, *name; // borrowed
    uint64_t silent_us;
} watchdog_loop;
bool watchdog_get(const watchdog *w, uint32_t i, watchdog_loop *out);
void watchdog_stop(watchdog *w); // joins the thread and frees it; accepts NULL

#endif
