/* sd_notify.c - see sd_notify.h. */
#include "sd_notify.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "inferd/clock.h"

enum { LINES_BYTES = 96, STATES_MAX = 4 };

static struct {
    atomic_int fd; // connected; -1: none
    uint64_t watchdog_us;
    char states[STATES_MAX][LINES_BYTES]; // not sent yet, the oldest first
    uint32_t n_states;
} manager = {.fd = -1};

/* Digits only, above 0; false: no such number. */
static bool read_number(const char *text, uint64_t *out) {
    char *end = NULL;
    if (text == NULL || *text < '0' || *text > '9') return false;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return errno == 0 && *end == 0 && *out > 0;
}

/* WATCHDOG_PID names the process that WATCHDOG_USEC is for: it does not apply to a child. */
static uint64_t read_watchdog(void) {
    uint64_t us, pid;
    const char *of = getenv("WATCHDOG_PID");
    if (!read_number(getenv("WATCHDOG_USEC"), &us)) return 0;
    if (of != NULL && (!read_number(of, &pid) || pid != (uint64_t)getpid())) return 0;
    return us;
}

inferd_status sd_notify_open(inferd_err *err) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    const char *name = getenv("NOTIFY_SOCKET");
    if (name == NULL || *name == 0) return INFERD_OK;
    size_t n = strlen(name);
    if ((name[0] != '/' && name[0] != '@') || n < 2 || n >= sizeof to.sun_path)
        return inferd_fail(err, INFERD_EINVAL,
                           "NOTIFY_SOCKET \"%.120s\": expected a path from / or @NAME of at most "
                           "%zu bytes",
                           name, sizeof to.sun_path - 1);
    memcpy(to.sun_path, name, n);
    if (name[0] == '@') to.sun_path[0] = 0;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&to, length) != 0) {
        inferd_fail(err, INFERD_EIO, "NOTIFY_SOCKET %s: %s", name, strerror(errno));
        if (fd >= 0) close(fd);
        return INFERD_EIO;
    }
    manager.watchdog_us = read_watchdog();
    atomic_store(&manager.fd, fd);
    return INFERD_OK;
}

void sd_notify_close(void) {
    sd_notify_flush();
    int fd = atomic_exchange(&manager.fd, -1);
    manager.watchdog_us = 0;
    manager.n_states = 0;
    if (fd >= 0) close(fd);
}

/* False: the manager's queue is full. */
static bool send_lines(const char *lines) {
    int fd = atomic_load(&manager.fd);
    ssize_t n = 0;
    if (fd < 0) return true;
    do n = send(fd, lines, strlen(lines), MSG_NOSIGNAL | MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    return n >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
}

void sd_notify_flush(void) {
    uint32_t n = 0;
    while (n < manager.n_states && send_lines(manager.states[n])) n++;
    manager.n_states -= n;
    memmove(manager.states, manager.states[n], manager.n_states * sizeof manager.states[0]);
}

/* Beyond STATES_MAX the oldest is dropped: later ones have the present state. */
void sd_notify_state(const char *lines) {
    sd_notify_flush();
    if (manager.n_states == 0 && send_lines(lines)) return;
    if (manager.n_states == STATES_MAX)
        memmove(manager.states, manager.states[1], --manager.n_states * sizeof manager.states[0]);
    snprintf(manager.states[manager.n_states++], LINES_BYTES, "%s", lines);
}

void sd_notify_alive(void) {
    send_lines("WATCHDOG=1");
}

void sd_notify_more_time(uint32_t seconds) {
    char lines[LINES_BYTES];
    snprintf(lines, sizeof lines, "EXTEND_TIMEOUT_USEC=%llu",
             (unsigned long long)seconds * 1000000);
    sd_notify_state(lines);
}

void sd_notify_reloading(void) {
    char lines[LINES_BYTES];
    snprintf(lines, sizeof lines, "RELOADING=1\nMONOTONIC_USEC=%llu",
             (unsigned long long)clock_now_us());
    sd_notify_state(lines);
}

uint64_t sd_notify_watchdog_us(void) {
    return manager.watchdog_us;
}
