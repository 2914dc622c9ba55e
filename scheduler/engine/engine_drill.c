/* engine_drill.c - drills: a device that is well seems slow, hanging or lost, for an operator to
 * see what that looks like.
 *
 * The drill begins behind the device, where its finished step is reported, so everything above it
 * (the scheduler's estimates, the front's limit for a step, the watchdog) sees what it would see of
 * a real device.  Results stay correct: a slow step is only late.
 *
 * engine.drill is a number of thousandths, or one of ENGINE_DRILL_*: one word, so that the front
 * changes it while the engine waits in a step.
 * Thread: engine; engine_set_drill and engine_get_drill: any. */
#include <unistd.h>

#include "engine_private.h"
#include "inferd/clock.h"

enum { LOOK_US = 5000 }; // between two looks at the drill during a wait

static uint32_t drill_of(engine *e) {
    return atomic_load_explicit(&e->drill, memory_order_relaxed);
}

/* A hang ends only with its drill, as a real one does not end with the process's wish to stop.  The
 * front sees the wait as a step that goes on, also of a CPU: its steps are over when the engine
 * publishes its figures. */
static void wait_for_end(engine *e, uint32_t drill, uint64_t until_us) {
    atomic_store(&e->busy_since_us, clock_now_us());
    while (drill_of(e) == drill && clock_now_us() < until_us &&
           (drill == ENGINE_DRILL_HANG || !atomic_load(&e->stop)))
        usleep(LOOK_US);
}

inferd_status engine_drill_step(void *ctx, uint64_t *device_us, inferd_err *err) {
    engine *e = ctx;
    uint32_t drill = drill_of(e);
    if (drill == ENGINE_DRILL_NONE) return INFERD_OK;
    if (drill == ENGINE_DRILL_HANG) wait_for_end(e, drill, UINT64_MAX);
    if (drill_of(e) == ENGINE_DRILL_LOSE)
        return inferd_fail(err, INFERD_ELOST, "a drill: the device was lost on request");
    if (drill == ENGINE_DRILL_HANG || drill == ENGINE_DRILL_LOSE) return INFERD_OK; // it was ended
    uint64_t more_us = *device_us * (drill - ENGINE_DRILL_NONE) / ENGINE_DRILL_NONE;
    uint64_t from_us = clock_now_us();
    wait_for_end(e, drill, from_us + more_us);
    *device_us += clock_now_us() - from_us;
    return INFERD_OK;
}

void engine_set_drill(engine *e, uint32_t drill) {
    INFERD_CHECK(drill >= ENGINE_DRILL_NONE);
    atomic_store(&e->drill, drill);
}

uint32_t engine_get_drill(const engine *e) {
    return atomic_load(&e->drill);
}
