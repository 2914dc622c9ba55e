/* clock_shift.c - a library to preload: the clock of the day is ahead by the seconds in the file
 * $CLOCK_SHIFT (or behind), and changes with it; e2e/test_watch.py sets the clock of a daemon so.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long shift_s(void) {
    const char *path = getenv("CLOCK_SHIFT");
    FILE *f = path != NULL ? fopen(path, "re") : NULL;
    long s = 0;
    if (f == NULL) return 0;
    if (fscanf(f, "%ld", &s) != 1) s = 0;
    fclose(f);
    return s;
}

int clock_gettime(clockid_t id, struct timespec *ts) {
    int rc = (int)syscall(SYS_clock_gettime, id, ts);
    if (rc == 0 && id == CLOCK_REALTIME) ts->tv_sec += shift_s();
    return rc;
}

time_t time(time_t *out) {
    struct timespec ts = {0};
    clock_gettime(CLOCK_REALTIME, &ts);
    if (out != NULL) *out = ts.tv_sec;
    return ts.tv_sec;
}
