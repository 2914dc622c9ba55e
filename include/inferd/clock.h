/* clock.h - monotonic time in microseconds.
 *
 * Deadlines and meters use this clock only; wall-clock time appears in answers and logs and
 * nowhere else.  The scheduler never reads it: `now_us` is handed in, so a test can be any time. */
#ifndef INFERD_CLOCK_H
#define INFERD_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_now_us(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000u + (uint64_t)ts.tv_nsec / 1000u;
}

#endif
