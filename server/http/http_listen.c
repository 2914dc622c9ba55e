/* http_listen.c - addresses, listening sockets, accepting.
 *
 * "127.0.0.1:8080", "[::1]:0", "localhost:8080", "8080", "unix:/run/inferd.sock".  Names are not
 * resolved: a lookup could block, and the configuration should name the exact address.
 *
 * A socket that a service manager passed is never bound, and its file never removed: during a drain
 * it is only not accepted from, and the manager gives it to the next process.
 *
 * When descriptors run out, accept() fails and the connection stays in the queue, which keeps the
 * socket readable: a loop that only retries would spin.  So one descriptor is kept in reserve: it
 * is closed to accept and close the waiting connection, and accepting pauses for a moment. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "http_internal.h"
#include "log.h"

enum {
    ACCEPTS_MAX = 64, // in one iteration of the loop
    BACKLOG = 4096,
    OTHER_FDS = 64 // the loop, the log, models, what libraries open
};

typedef struct address {
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
        struct sockaddr_un un;
    };
    socklen_t n;
} address;

static inferd_status parse_unix(const char *path, address *out, inferd_err *err) {
    size_t n = strlen(path);
    if (n == 0) return inferd_fail(err, INFERD_EINVAL, "unix: needs a path");
    if (n >= sizeof out->un.sun_path)
        return inferd_fail(err, INFERD_EINVAL,
                           "the socket path has %zu bytes, at most %zu are possible", n,
                           sizeof out->un.sun_path - 1);
    out->un.sun_family = AF_UNIX;
    memcpy(out->un.sun_path, path, n + 1);
    out->n = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n + 1);
    return INFERD_OK;
}

static bool parse_port(const char *text, in_port_t *out) {
    unsigned value = 0;
    size_t n = strlen(text);
    if (n == 0 || n > 5 || strspn(text, "0123456789") != n) return false;
    for (size_t i = 0; i < n; i++) value = value * 10 + (unsigned)(text[i] - '0');
    *out = htons((uint16_t)value);
    return value <= 65535;
}

static bool parse_ip(const char *listen, address *out) {
    char host[64];
    in_port_t port;
    const char *colon = strrchr(listen, ':');
    size_t n = colon == NULL ? 0 : (size_t)(colon - listen);
    if (n >= sizeof host || !parse_port(colon == NULL ? listen : colon + 1, &port)) return false;
    memcpy(host, listen, n);
    host[n] = 0;
    if (n == 0)
        strcpy(host,
               "localhost"); // a port alone: other machines only reach addresses that are named
    if (n > 2 && host[0] == '[' && host[n - 1] == ']') {
        host[n - 1] = 0;
        out->v6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = port};
        out->n = sizeof out->v6;
        return inet_pton(AF_INET6, host + 1, &out->v6.sin6_addr) == 1;
    }
    out->v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = port};
    out->n = sizeof out->v4;
    return inet_pton(AF_INET, strcmp(host, "localhost") == 0 ? "127.0.0.1" : host,
                     &out->v4.sin_addr) == 1;
}

static inferd_status parse_address(const char *listen, address *out, inferd_err *err) {
    memset(out, 0, sizeof *out);
    if (strncmp(listen, "unix:", 5) == 0) return parse_unix(listen + 5, out, err);
    if (parse_ip(listen, out)) return INFERD_OK;
    return inferd_fail(err, INFERD_EINVAL,
                       "\"%.100s\": expected PORT, ADDRESS:PORT with a numeric address or "
                       "localhost, [IPV6]:PORT, or unix:PATH",
                       listen);
}

bool http_is_loopback(const char *listen) {
    address a;
    if (parse_address(listen, &a, NULL) != INFERD_OK) return false;
    if (a.any.sa_family == AF_UNIX) return true;
    if (a.any.sa_family == AF_INET) return ntohl(a.v4.sin_addr.s_addr) >> 24 == 127;
    return IN6_IS_ADDR_LOOPBACK(&a.v6.sin6_addr);
}

inferd_status http_check_listen(const char *listen, bool keyless, inferd_err *err) {
    address a;
    inferd_status status = parse_address(listen, &a, err);
    if (status != INFERD_OK || !keyless || http_is_loopback(listen)) return status;
    return inferd_fail(
        err, INFERD_EINVAL,
        "%s: reachable from other machines, which needs keys: --api-key-file FILE, or "
        "tenants in the configuration",
        listen);
}

/* INFERD_EBUSY: a process listens at the socket file; INFERD_EINVAL: it is another kind of file.
 * `stale`: there is a socket file without a listener. */
static inferd_status look_at_socket(const address *a, bool *stale, inferd_err *err) {
    struct stat st;
    const char *path = a->un.sun_path;
    *stale = false;
    if (lstat(path, &st) != 0) return INFERD_OK;
    if (!S_ISSOCK(st.st_mode))
        return inferd_fail(err, INFERD_EINVAL, "listen unix:%s: exists and is not a socket", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return inferd_fail(err, INFERD_EIO, "socket: %s", strerror(errno));
    /* EAGAIN: a process listens, and its queue is full. */
    bool alive = connect(fd, &a->any, a->n) == 0 || errno != ECONNREFUSED;
    close(fd);
    *stale = !alive;
    if (!alive) return INFERD_OK;
    return inferd_fail(err, INFERD_EBUSY, "listen unix:%s: in use by another process", path);
}

/* Removes a socket file without a listener: its process did not end cleanly.  Without a file there
 * is no unlink: it fails on a read-only file system, and a socket made meanwhile is in use. */
static inferd_status remove_stale(const address *a, inferd_err *err) {
    const char *path = a->un.sun_path;
    bool stale;
    inferd_status s = look_at_socket(a, &stale, err);
    if (s != INFERD_OK || !stale || unlink(path) == 0 || errno == ENOENT) return s;
    return inferd_fail(err, INFERD_EIO, "listen unix:%s: a stale socket that cannot be removed: %s",
                       path, strerror(errno));
}

/* "unix:/path", or "unix:@name" of the abstract namespace; n: bytes of the whole address. */
static void describe_unix(http_server *s, const struct sockaddr_un *un, socklen_t n) {
    size_t at = offsetof(struct sockaddr_un, sun_path);
    bool abstract = n > at && un->sun_path[0] == 0;
    size_t skip = at + abstract, n_name = n > skip ? n - skip : 0;
    snprintf(s->address, sizeof s->address, "unix:%s%.*s", abstract ? "@" : "", (int)n_name,
             un->sun_path + abstract);
}

/* The address that was actually bound, for http_address. */
static void describe(http_server *s) {
    address a;
    char host[INET6_ADDRSTRLEN] = "";
    memset(&a, 0, sizeof a);
    a.n = sizeof a - sizeof a.n;
    if (getsockname(s->fd_listen, &a.any, &a.n) != 0) return;
    s->is_unix = a.any.sa_family == AF_UNIX;
    if (s->is_unix) {
        describe_unix(s, &a.un, a.n);
    } else if (a.any.sa_family == AF_INET) {
        inet_ntop(AF_INET, &a.v4.sin_addr, host, sizeof host);
        snprintf(s->address, sizeof s->address, "%s:%u", host, ntohs(a.v4.sin_port));
    } else {
        inet_ntop(AF_INET6, &a.v6.sin6_addr, host, sizeof host);
        snprintf(s->address, sizeof s->address, "[%s]:%u", host, ntohs(a.v6.sin6_port));
    }
}

static inferd_status say_unbound(const char *listen, inferd_err *err) {
    switch (errno) {
    case EADDRINUSE:
        return inferd_fail(err, INFERD_EBUSY, "listen %s: in use by another process", listen);
    case EACCES:
        return inferd_fail(err, INFERD_EIO,
                           "listen %s: not permitted; ports below 1024 need "
                           "CAP_NET_BIND_SERVICE, a socket file a writable directory",
                           listen);
    case EADDRNOTAVAIL:
        return inferd_fail(err, INFERD_EIO, "listen %s: this machine does not have that address",
                           listen);
    default:
        return inferd_fail(err, INFERD_EIO, "listen %s: %s", listen, strerror(errno));
    }
}

/* fd is -1 if there is no socket.  unix_mode: of a socket file. */
static inferd_status bind_to(const char *listen, const address *a, int unix_mode, int *fd,
                             inferd_err *err) {
    int on = 1;
    *fd = socket(a->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd < 0) return inferd_fail(err, INFERD_EIO, "socket: %s", strerror(errno));
    if (a->any.sa_family != AF_UNIX)
        setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    else
        fchmod(*fd, (mode_t)unix_mode); // before bind: the file never has a wider mode
    return bind(*fd, &a->any, a->n) == 0 ? INFERD_OK : say_unbound(listen, err);
}

inferd_status http_try_listen(const char *listen, inferd_err *err) {
    address a;
    int fd = -1;
    bool stale;
    inferd_status s = parse_address(listen, &a, err);
    if (s != INFERD_OK) return s;
    if (a.any.sa_family == AF_UNIX) return look_at_socket(&a, &stale, err);
    s = bind_to(listen, &a, 0, &fd, err);
    if (fd >= 0) close(fd);
    return s;
}

/* Remembers the inode of the file: at the end no other file is removed. */
static inferd_status own_socket_file(http_server *s, const char *path, inferd_err *err) {
    struct stat st;
    s->unix_path = strdup(path);
    if (s->unix_path == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for %s", path);
    if (chmod(path, (mode_t)s->unix_mode) != 0 || stat(path, &st) != 0)
        return inferd_fail(err, INFERD_EIO, "listen unix:%s: %s", path, strerror(errno));
    s->unix_inode = st.st_ino;
    return INFERD_OK;
}

inferd_status listen_open(http_server *s, const char *listen_at, inferd_err *err) {
    address a;
    inferd_status status = http_check_listen(listen_at, s->keyless, err);
    if (status != INFERD_OK) return inferd_context(err, "listen"), status;
    status = parse_address(listen_at, &a, err);
    if (status == INFERD_OK && a.any.sa_family == AF_UNIX) status = remove_stale(&a, err);
    if (status == INFERD_OK) status = bind_to(listen_at, &a, s->unix_mode, &s->fd_listen, err);
    if (status == INFERD_OK && a.any.sa_family == AF_UNIX)
        status = own_socket_file(s, a.un.sun_path, err);
    if (status != INFERD_OK) return status;
    if (listen(s->fd_listen, BACKLOG) != 0)
        return inferd_fail(err, errno == EADDRINUSE ? INFERD_EBUSY : INFERD_EIO, "listen %s: %s",
                           listen_at,
                           errno == EADDRINUSE ? "in use by another process" : strerror(errno));
    describe(s);
    return INFERD_OK;
}

/* A keyless server on an address that others reach is refused, as in listen_open. */
inferd_status listen_take(http_server *s, int fd, inferd_err *err) {
    s->fd_listen = fd;
    describe(s);
    if (!s->is_unix) {
        inferd_status status = http_check_listen(s->address, s->keyless, err);
        if (status != INFERD_OK) return inferd_context(err, "the passed socket"), status;
    }
    if (listen(fd, BACKLOG) == 0) return INFERD_OK; // a longer queue, as for one of its own
    return inferd_fail(err, INFERD_EIO, "the passed socket %s: listen: %s", s->address,
                       strerror(errno));
}

void listen_close(http_server *s) {
    struct stat st;
    if (s->fd_listen < 0) return;
    if (s->n_handles > 0 && !s->closing) uv_poll_stop(&s->poll_listen);
    deadline_disarm(&s->accept_due);
    s->accept_paused = false;
    close(s->fd_listen);
    s->fd_listen = -1;
    if (s->unix_path != NULL && lstat(s->unix_path, &st) == 0 && st.st_ino == s->unix_inode)
        unlink(s->unix_path);
}

/* -- accepting -- */

static int open_reserve(void) {
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

void listen_pause(http_server *s, bool wait) {
    if (s->accept_paused || s->fd_listen < 0) return;
    s->accept_paused = true;
    uv_poll_stop(&s->poll_listen);
    if (wait) watch_arm(s, &s->accept_due, DEADLINE_ACCEPT);
}

void listen_resume(http_server *s) {
    if (!s->accept_paused || s->fd_listen < 0 || s->closing) return;
    if (s->passed && s->draining) return; // connections wait for the next process
    s->accept_paused = false;
    deadline_disarm(&s->accept_due);
    uv_poll_start(&s->poll_listen, UV_READABLE, s->poll_listen.poll_cb);
}

/* At most once a second: a flood of connections must not become a flood of log lines. */
static void tell_out_of_fds(http_server *s, int reason) {
    uint64_t now_us = server_now_us(s);
    log_line line;
    if (s->accept_told_us != 0 && now_us - s->accept_told_us < 1000000) return;
    s->accept_told_us = now_us;
    log_begin(&line, LOG_LEVEL_ERROR, "accept_failed");
    log_str(&line, "reason", strerror(reason));
    log_u64(&line, "connections", s->n_conns);
    log_end(&line);
}

static void out_of_fds(http_server *s, int reason) {
    tell_out_of_fds(s, reason);
    if (s->fd_reserve >= 0) {
        close(s->fd_reserve);
        int fd = accept4(s->fd_listen, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0) close(fd);
        s->fd_reserve = open_reserve();
    }
    watch_evict(s);
    listen_pause(s, true);
}

static bool accept_one(http_server *s) {
    struct sockaddr_storage from = {0};
    socklen_t n = sizeof from;
    int fd = accept4(s->fd_listen, (struct sockaddr *)&from, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
        if (s->n_conns - s->n_cut >= s->conns_max) watch_evict(s);
        MHD_add_connection(s->daemon, fd, (struct sockaddr *)&from, n); // takes fd in any case
        server_must_run(s);
        return true;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
        out_of_fds(s, errno);
        return false;
    }
    return true; // this connection ended before it was accepted (ECONNABORTED and similar)
}

void listen_some(http_server *s) {
    for (int i = 0; i < ACCEPTS_MAX && s->fd_listen >= 0; i++) {
        /* Connections that were just cut keep their slots until the library runs. */
        if (s->n_conns >= s->n_slots) {
            server_must_run(s);
            if (!watch_evict(s)) listen_pause(s, false); // conn_close resumes
            return;
        }
        if (!accept_one(s)) return;
    }
}

/* One descriptor per connection, and one more for each that lingers. */
inferd_status listen_reserve_fds(http_server *s, inferd_err *err) {
    struct rlimit limit;
    uint64_t others = OTHER_FDS + HTTP_SPARE_CONNECTIONS + HTTP_LINGER_MAX;
    uint64_t wanted = s->limits.connections_max + others;
    s->conns_max = s->limits.connections_max;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return inferd_fail(err, INFERD_EIO, "getrlimit: %s", strerror(errno));
    if (limit.rlim_cur < wanted && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit); // if it fails the old limit stays
        getrlimit(RLIMIT_NOFILE, &limit);
    }
    if (limit.rlim_cur < wanted) {
        if (limit.rlim_cur < others + 16)
            return inferd_fail(err, INFERD_EIO,
                               "%llu file descriptors are allowed (ulimit -n), at least %llu are "
                               "needed, and %llu for connections_max %u",
                               (unsigned long long)limit.rlim_cur, (unsigned long long)others + 16,
                               (unsigned long long)wanted, s->limits.connections_max);
        s->conns_max = (uint32_t)(limit.rlim_cur - others);
        log_line line;
        log_begin(&line, LOG_LEVEL_ERROR, "few_descriptors");
        log_u64(&line, "allowed", limit.rlim_cur);
        log_u64(&line, "needed", wanted);
        log_u64(&line, "connections_max", s->limits.connections_max);
        log_u64(&line, "connections_served", s->conns_max);
        log_end(&line);
    }
    s->fd_reserve = open_reserve();
    if (s->fd_reserve < 0) return inferd_fail(err, INFERD_EIO, "/dev/null: %s", strerror(errno));
    return INFERD_OK;
}
