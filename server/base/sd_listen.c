/* sd_listen.c - see sd_listen.h. */
#include "sd_listen.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ADMIN_NAME "admin"

/* Digits only, from 1 to max; false: no such number. */
static bool read_count(const char *text, uint64_t max, uint64_t *out) {
    char *end = NULL;
    if (*text < '0' || *text > '9') return false;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return errno == 0 && *end == 0 && *out >= 1 && *out <= max;
}

static bool option_of(int fd, int option, int *out) {
    socklen_t n = sizeof *out;
    return getsockopt(fd, SOL_SOCKET, option, out, &n) == 0;
}

static inferd_status check_socket(int fd, bool admin, inferd_err *err) {
    int type = 0, listens = 0, family = 0;
    if (!option_of(fd, SO_TYPE, &type) || !option_of(fd, SO_ACCEPTCONN, &listens) ||
        !option_of(fd, SO_DOMAIN, &family))
        return inferd_fail(err, INFERD_EINVAL, "it is not a socket: %s", strerror(errno));
    if (type != SOCK_STREAM || listens == 0)
        return inferd_fail(err, INFERD_EINVAL,
                           "it is not a listening stream socket (ListenStream=, Accept=no)");
    if (admin && family != AF_UNIX)
        return inferd_fail(err, INFERD_EINVAL,
                           "the socket of administrators must be a socket file: its permissions "
                           "control access");
    if (family != AF_UNIX && family != AF_INET && family != AF_INET6)
        return inferd_fail(err, INFERD_EINVAL, "address family %d, expected IPv4, IPv6 or a file",
                           family);
    return INFERD_OK;
}

static inferd_status prepare(int fd, bool admin, inferd_err *err) {
    inferd_status st = check_socket(fd, admin, err);
    if (st != INFERD_OK) return st;
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 ||
        fcntl(fd, F_SETFD, FD_CLOEXEC) != 0)
        return inferd_fail(err, INFERD_EINVAL, "%s", strerror(errno));
    return INFERD_OK;
}

static inferd_status take_one(int fd, const char *name, size_t n, sd_listen_fds *out,
                              inferd_err *err) {
    bool admin = n == strlen(ADMIN_NAME) && memcmp(name, ADMIN_NAME, n) == 0;
    int *place = admin ? &out->admin : &out->requests;
    inferd_status st = prepare(fd, admin, err);
    if (st == INFERD_OK && *place != 0)
        st = inferd_fail(err, INFERD_EINVAL,
                         "there is one socket %s already: descriptor %d (one address is served; "
                         "FileDescriptorName=" ADMIN_NAME " is for administrators)",
                         admin ? "for administrators" : "for requests", *place);
    if (st == INFERD_OK) *place = fd;
    return st;
}

static inferd_status take_all(uint64_t n_fds, const char *names, sd_listen_fds *out,
                              inferd_err *err) {
    for (uint64_t i = 0; i < n_fds; i++) {
        size_t n = strcspn(names, ":");
        int fd = SD_LISTEN_FIRST_FD + (int)i;
        inferd_status st = take_one(fd, names, n, out, err);
        if (st != INFERD_OK)
            return inferd_context(err, "LISTEN_FDS: descriptor %d (%.*s)", fd, (int)n, names), st;
        names += n + (names[n] == ':');
    }
    return INFERD_OK;
}

inferd_status sd_listen_take(sd_listen_fds *out, inferd_err *err) {
    const char *count = getenv("LISTEN_FDS"), *of = getenv("LISTEN_PID");
    const char *names = getenv("LISTEN_FDNAMES");
    uint64_t n_fds, pid;
    inferd_status st = INFERD_OK;
    *out = (sd_listen_fds){0};
    if (count == NULL || of == NULL) return INFERD_OK;
    if (!read_count(of, INT32_MAX, &pid))
        st = inferd_fail(err, INFERD_EINVAL, "LISTEN_PID \"%.40s\": expected a process id", of);
    else if (pid != (uint64_t)getpid())
        return INFERD_OK; // inherited from a parent, which they were for
    else if (!read_count(count, SD_LISTEN_FDS_MAX, &n_fds))
        st = inferd_fail(err, INFERD_EINVAL, "LISTEN_FDS \"%.40s\": expected 1 to %d", count,
                         SD_LISTEN_FDS_MAX);
    else
        st = take_all(n_fds, names != NULL ? names : "", out, err);
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDNAMES");
    return st;
}
