/* ctl_client.c - see ctl_client.h. */
#include "ctl_client.h"

#include <errno.h>
#include <netdb.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

/* ---- text ---- */

void ctl_add_segment(buf *out, const char *name) {
    for (; *name != 0; name++) {
        unsigned char c = (unsigned char)*name;
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                     strchr("-._~", c) != NULL;
        if (plain)
            buf_add_char(out, (char)c);
        else
            buf_add_format(out, "%%%02X", c);
    }
}

bool ctl_split_url(const char *url, char host[256], char port[8]) {
    static const char scheme[] = "http://";
    if (strncasecmp(url, scheme, sizeof scheme - 1) != 0) return false;
    const char *p = url + sizeof scheme - 1;
    bool brackets = *p == '[';
    p += brackets;
    size_t n = strcspn(p, brackets ? "]" : ":/");
    if (n == 0 || n >= 256 || (brackets && p[n] != ']')) return false;
    memcpy(host, p, n);
    host[n] = 0;
    p += n + brackets;
    strcpy(port, "80");
    if (*p == ':') {
        n = strspn(++p, "0123456789");
        if (n == 0 || n > 5) return false;
        memcpy(port, p, n);
        port[n] = 0;
        p += n;
    }
    return *p == 0 || strcmp(p, "/") == 0;
}

/* The value of a header in [p, end), or NULL. */
static const char *find_header(const char *p, const char *end, const char *name) {
    size_t n = strlen(name);
    while (p < end) {
        const char *line_end = memchr(p, '\n', (size_t)(end - p));
        if ((size_t)(end - p) > n && strncasecmp(p, name, n) == 0 && p[n] == ':')
            return p + n + 1 + strspn(p + n + 1, " \t");
        if (line_end == NULL) return NULL;
        p = line_end + 1;
    }
    return NULL;
}

static bool read_chunks(const char *p, const char *end, buf *out) {
    for (;;) {
        char *after;
        if (p >= end) return false;
        unsigned long n = strtoul(p, &after, 16);
        const char *line_end = after == p ? NULL : memchr(after, '\n', (size_t)(end - after));
        if (line_end == NULL) return false;
        if (n == 0) return true;
        p = line_end + 1;
        if (n > (size_t)(end - p) || (size_t)(end - p) - n < 2) return false;
        buf_add(out, p, n);
        p += n + 2;
    }
}

/* `text` has a NUL after its n bytes. */
inferd_status ctl_read_answer(bytes text, ctl_answer *out, inferd_err *err) {
    static const char head[] = "HTTP/1.1 ";
    const char *end = text.p + text.n;
    const char *blank = text.n == 0 ? NULL : memmem(text.p, text.n, "\r\n\r\n", 4);
    *out = (ctl_answer){0};
    if (text.n == 0)
        return inferd_fail(err, INFERD_EIO, "the connection was closed without an answer");
    if (blank == NULL || strncmp(text.p, head, sizeof head - 1) != 0)
        return inferd_fail(err, INFERD_EFORMAT, "the answer is not HTTP/1.1");
    out->status = atoi(text.p + sizeof head - 1);
    const char *body = blank + 4, *length = find_header(text.p, blank, "Content-Length");
    const char *coding = find_header(text.p, blank, "Transfer-Encoding");
    buf_init(&out->body, CTL_ANSWER_BYTES_MAX);
    bool whole = true;
    if (coding != NULL && strncasecmp(coding, "chunked", 7) == 0) {
        whole = read_chunks(body, end, &out->body);
    } else {
        uint64_t n = length == NULL ? (uint64_t)(end - body) : strtoull(length, NULL, 10);
        whole = n <= (uint64_t)(end - body);
        if (whole) buf_add(&out->body, body, (size_t)n);
    }
    buf_cstr(&out->body);
    if (whole && !out->body.failed) return INFERD_OK;
    buf_deinit(&out->body);
    return inferd_fail(err, INFERD_EIO, "the answer is incomplete");
}

/* ---- sockets ---- */

/* `type`: SOCK_STREAM and flags. */
static inferd_status connect_file(const char *path, int type, int *fd, inferd_err *err) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof to.sun_path)
        return inferd_fail(err, INFERD_EINVAL,
                           "the socket's path has %zu bytes, at most %zu are "
                           "possible",
                           strlen(path), sizeof to.sun_path - 1);
    strcpy(to.sun_path, path);
    *fd = socket(AF_UNIX, type, 0);
    if (*fd >= 0 && connect(*fd, (struct sockaddr *)&to, sizeof to) == 0) return INFERD_OK;
    return inferd_fail(err, INFERD_EIO, "%s: %s", path, strerror(errno));
}

bool ctl_is_there(const char *socket_path, inferd_err *err) {
    int fd = -1;
    bool there = connect_file(socket_path, SOCK_STREAM | SOCK_CLOEXEC, &fd, err) == INFERD_OK;
    if (fd >= 0) close(fd);
    return there;
}

static inferd_status find_addresses(const char *url, struct addrinfo **out, inferd_err *err) {
    char host[256], port[8];
    struct addrinfo want = {.ai_socktype = SOCK_STREAM};
    *out = NULL;
    if (!ctl_split_url(url, host, port))
        return inferd_fail(err, INFERD_EINVAL, "\"%.100s\": expected http://HOST:PORT", url);
    int rc = getaddrinfo(host, port, &want, out);
    if (rc != 0) return inferd_fail(err, INFERD_ENOTFOUND, "%s: %s", host, gai_strerror(rc));
    return INFERD_OK;
}

static inferd_status connect_url(const char *url, int *fd, inferd_err *err) {
    struct addrinfo *found;
    inferd_status st = find_addresses(url, &found, err);
    if (st != INFERD_OK) return st;
    int why = ENOTCONN;
    for (struct addrinfo *a = found; a != NULL && *fd < 0; a = a->ai_next) {
        *fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (*fd >= 0 && connect(*fd, a->ai_addr, a->ai_addrlen) == 0) break;
        why = errno;
        if (*fd >= 0) close(*fd);
        *fd = -1;
    }
    freeaddrinfo(found);
    if (*fd >= 0) return INFERD_OK;
    return inferd_fail(err, INFERD_EIO, "%s: %s", url, strerror(why));
}

inferd_status ctl_connect(const ctl_target *t, uint32_t nth, int *fd, inferd_err *err) {
    enum { TYPE = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK };
    struct addrinfo *found, *a;
    inferd_status st;
    *fd = -1;
    if (t->socket_path != NULL && nth == 0) {
        st = connect_file(t->socket_path, TYPE, fd, err);
        if (st != INFERD_OK && *fd >= 0) close(*fd);
        if (st != INFERD_OK) *fd = -1;
        return st;
    }
    if (t->socket_path != NULL) return inferd_fail(err, INFERD_ENOTFOUND, "no such address");
    st = find_addresses(t->url, &found, err);
    if (st != INFERD_OK) return st;
    for (a = found; a != NULL && nth > 0; nth--) a = a->ai_next;
    if (a == NULL) {
        st = inferd_fail(err, INFERD_ENOTFOUND, "no such address");
    } else {
        *fd = socket(a->ai_family, TYPE, 0);
        bool fine =
            *fd >= 0 && (connect(*fd, a->ai_addr, a->ai_addrlen) == 0 || errno == EINPROGRESS);
        if (!fine) st = inferd_fail(err, INFERD_EIO, "%s: %s", t->url, strerror(errno));
        if (!fine && *fd >= 0) close(*fd);
        if (!fine) *fd = -1;
    }
    freeaddrinfo(found);
    return st;
}

void ctl_write_request(buf *out, const ctl_target *t, const char *method, const char *path,
                       bytes body) {
    char host[256] = "localhost", port[8];
    if (t->socket_path == NULL) ctl_split_url(t->url, host, port);
    bool v6 = strchr(host, ':') != NULL;
    buf_add_format(out, "%s %s HTTP/1.1\r\nHost: %s%s%s\r\nConnection: close\r\n", method, path,
                   v6 ? "[" : "", host, v6 ? "]" : "");
    if (t->key != NULL) buf_add_format(out, "Authorization: Bearer %s\r\n", t->key);
    if (body.p != NULL)
        buf_add_format(out, "Content-Type: application/json\r\nContent-Length: %zu\r\n", body.n);
    buf_add_str(out, "\r\n");
    buf_add(out, body.p, body.n);
}

static inferd_status send_all(int fd, const char *p, size_t n, inferd_err *err) {
    while (n > 0) {
        ssize_t sent = send(fd, p, n, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        /* The daemon may refuse before it has read the body: its answer can still be read. */
        if (sent < 0 && (errno == EPIPE || errno == ECONNRESET)) return INFERD_OK;
        if (sent <= 0) return inferd_fail(err, INFERD_EIO, "sending: %s", strerror(errno));
        p += sent;
        n -= (size_t)sent;
    }
    return INFERD_OK;
}

static inferd_status read_all(int fd, const volatile sig_atomic_t *stop, buf *out,
                              inferd_err *err) {
    for (;;) {
        if (stop != NULL && *stop) return inferd_fail(err, INFERD_ECANCELED, "interrupted");
        char piece[16384];
        ssize_t n = recv(fd, piece, sizeof piece, 0);
        if (n == 0) return INFERD_OK;
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == ECONNRESET && out->n > 0) return INFERD_OK;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return inferd_fail(err, INFERD_ETIMEOUT, "no answer in time");
        if (n < 0) return inferd_fail(err, INFERD_EIO, "reading the answer: %s", strerror(errno));
        buf_add(out, piece, (size_t)n);
        if (out->failed)
            return inferd_fail(err, INFERD_ETOOLONG, "the answer has more than %d bytes",
                               CTL_ANSWER_BYTES_MAX);
    }
}

inferd_status ctl_ask(const ctl_target *t, const char *method, const char *path, bytes body,
                      unsigned timeout_s, ctl_answer *out, inferd_err *err) {
    int fd = -1;
    struct timeval patience = {.tv_sec = (time_t)timeout_s};
    buf head = {0}, text;
    *out = (ctl_answer){0};
    buf_init(&text, CTL_ANSWER_BYTES_MAX);
    inferd_status st = t->socket_path != NULL
                           ? connect_file(t->socket_path, SOCK_STREAM | SOCK_CLOEXEC, &fd, err)
                           : connect_url(t->url, &fd, err);
    ctl_write_request(&head, t, method, path, body);
    if (st == INFERD_OK && head.failed) st = inferd_fail(err, INFERD_ENOMEM, "no memory");
    if (st == INFERD_OK) setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (st == INFERD_OK) st = send_all(fd, head.p, head.n, err);
    if (st == INFERD_OK) st = read_all(fd, t->stop, &text, err);
    if (st == INFERD_OK) {
        buf_cstr(&text);
        st = ctl_read_answer((bytes){text.p, text.n}, out, err);
    }
    if (fd >= 0) close(fd);
    if (head.p != NULL) explicit_bzero(head.p, head.capacity); // it held a key
    buf_deinit(&head);
    buf_deinit(&text);
    return st;
}
