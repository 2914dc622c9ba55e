/* top_link.c - see top_link.h. */
#include "top_link.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

static void close_socket(top_link *l) {
    if (l->fd >= 0) close(l->fd);
    l->fd = -1;
    l->part = TOP_LINK_CLOSED;
}

void top_link_close(top_link *l) {
    close_socket(l);
    if (l->request.p != NULL) explicit_bzero(l->request.p, l->request.capacity);
    buf_deinit(&l->request);
    l->sent = 0;
    l->nth = 0;
}

/* Tries the addresses from l->nth on.  The failure is that of the last one. */
static inferd_status connect_next(top_link *l, inferd_err *err) {
    for (;;) {
        inferd_err why = {0};
        close_socket(l);
        inferd_status st = ctl_connect(l->target, l->nth, &l->fd, &why);
        if (st == INFERD_OK) {
            l->part = TOP_LINK_CONNECTING;
            return st;
        }
        if (st == INFERD_ENOTFOUND && l->nth > 0) return err->status;
        *err = why;
        l->nth++;
        if (st != INFERD_EIO || l->target->url == NULL) return st;
    }
}

inferd_status top_link_open(top_link *l, const ctl_target *target, const char *method,
                            const char *path, bytes body, inferd_err *err) {
    top_link_close(l);
    l->target = target;
    ctl_write_request(&l->request, target, method, path, body);
    inferd_status st =
        l->request.failed ? inferd_fail(err, INFERD_ENOMEM, "no memory") : connect_next(l, err);
    if (st != INFERD_OK) top_link_close(l);
    return st;
}

short top_link_wants(const top_link *l) {
    return l->part == TOP_LINK_READING ? POLLIN : POLLOUT;
}

/* The connection is made, or its failure is known. */
static inferd_status end_connecting(top_link *l, inferd_err *err) {
    int why = 0;
    socklen_t n = sizeof why;
    if (getsockopt(l->fd, SOL_SOCKET, SO_ERROR, &why, &n) != 0) why = errno;
    if (why == 0) {
        l->part = TOP_LINK_SENDING;
        return INFERD_OK;
    }
    inferd_fail(err, INFERD_EIO, "%s: %s",
                l->target->url == NULL ? l->target->socket_path : l->target->url, strerror(why));
    l->nth++;
    return connect_next(l, err);
}

static inferd_status send_some(top_link *l, inferd_err *err) {
    ssize_t n = send(l->fd, l->request.p + l->sent, l->request.n - l->sent, MSG_NOSIGNAL);
    if (n < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK)) return INFERD_OK;
    /* The daemon may refuse before it has read the body: its answer can still be read. */
    if (n < 0 && (errno == EPIPE || errno == ECONNRESET)) n = (ssize_t)(l->request.n - l->sent);
    if (n < 0) return inferd_fail(err, INFERD_EIO, "sending: %s", strerror(errno));
    l->sent += (size_t)n;
    if (l->sent == l->request.n) l->part = TOP_LINK_READING;
    return INFERD_OK;
}

inferd_status top_link_work(top_link *l, char *piece, size_t n_max, size_t *n, bool *ended,
                            inferd_err *err) {
    inferd_status st = INFERD_OK;
    *n = 0;
    *ended = false;
    if (l->part == TOP_LINK_CONNECTING) {
        st = end_connecting(l, err);
    } else if (l->part == TOP_LINK_SENDING) {
        st = send_some(l, err);
    } else if (l->part == TOP_LINK_READING) {
        ssize_t got = recv(l->fd, piece, n_max, 0);
        *ended = got == 0;
        if (got > 0) *n = (size_t)got;
        if (got < 0 && errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK)
            st = inferd_fail(err, INFERD_EIO, "reading the answer: %s", strerror(errno));
    }
    if (st != INFERD_OK) top_link_close(l);
    return st;
}
