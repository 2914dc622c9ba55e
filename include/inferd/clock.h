/* clock.h - monotonic time in microseconds, and a thread's own.
 *
 * Deadlines and meters use this clock only; wall-clock time appears only in answers and logs.  The
 * scheduler never reads a clock: `now_us` is a parameter, so a test can set any time. */
#ifndef INFERD_CLOCK_H
#define INFERD_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_now_us(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000u + (uint64_t)ts.tv_nsec / 1000u;
}

/* Time that the calling thread computed: bounds of work that must not depend on a busy machine. */
static inline uint64_t clock_thread_us(void) {
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * 1000000u + (uint64_t)ts.tv_nsec / 1000u;
}

#endif
