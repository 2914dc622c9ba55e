/* top_link.h - an HTTP connection of `inferd ctl top` that never waits: it sends one request and
 * gives the bytes of the answer as they come.
 *
 *     CLOSED > CONNECTING > SENDING > READING > CLOSED (the end, a failure, or top_link_close)
 *
 * The owner polls link->fd for top_link_wants() and calls top_link_work() when there is something.
 * Thread: main. */
#ifndef INFERD_TOP_LINK_H
#define INFERD_TOP_LINK_H

#include "ctl_client.h"

typedef enum top_link_part {
    TOP_LINK_CLOSED,
    TOP_LINK_CONNECTING,
    TOP_LINK_SENDING,
    TOP_LINK_READING
} top_link_part;

typedef struct top_link {
    top_link_part part;
    int fd;                   // -1: closed; owned
    const ctl_target *target; // borrowed
    uint32_t nth;             // address of the target
    buf request;              // may hold a key
    size_t sent;
} top_link;

#define TOP_LINK_NONE ((top_link){.fd = -1})

/* `target` is borrowed until the link is closed.  The errors of ctl_ask. */
inferd_status top_link_open(top_link *l, const ctl_target *target, const char *method,
                            const char *path, bytes body, inferd_err *err);
void top_link_close(top_link *l);        // also a closed one
short top_link_wants(const top_link *l); // events for poll
/* Does what is possible now; bytes of the answer come into `piece`, *n of them.  *ended: the daemon
 * ended the connection.  A failure: the link is closed. */
inferd_status top_link_work(top_link *l, char *piece, size_t n_max, size_t *n, bool *ended,
                            inferd_err *err);

#endif
