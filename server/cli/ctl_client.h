/* ctl_client.h - one HTTP request and its answer, over a socket file or TCP.
 *
 * For `inferd ctl` only: one connection per request, no TLS (a TLS proxy is bypassed).  ctl_ask
 * blocks; `ctl top` has parts of it for connections that do not (top_link.h).
 * Thread: main. */
#ifndef INFERD_CTL_CLIENT_H
#define INFERD_CTL_CLIENT_H

#include <signal.h>

#include "inferd/base.h"
#include "inferd/buf.h"
#include "inferd/status.h"

enum { CTL_ANSWER_BYTES_MAX = 64 * 1024 * 1024 };

typedef struct ctl_target {
    const char *socket_path;           // or NULL: url
    const char *url;                   // "http://host:port"
    const char *key;                   // sent as a bearer token; NULL: none
    const volatile sig_atomic_t *stop; // ctl_ask: a signal sets it, and no wait goes on; or NULL
} ctl_target;

typedef struct ctl_answer {
    int status;
    buf body;
} ctl_answer;

/* EIO: no daemon there, or the connection was cut; EINVAL: invalid URL; ENOTFOUND: unknown host;
 * EFORMAT: not HTTP; ETIMEOUT; ECANCELED: *t->stop was set. */
inferd_status ctl_ask(const ctl_target *t, const char *method, const char *path, bytes body,
                      unsigned timeout_s, ctl_answer *out, inferd_err *err);

/* Can a connection be made to this socket file?  It is closed at once. */
bool ctl_is_there(const char *socket_path, inferd_err *err);

/* -- for connections that do not block -- */
/* Begins to connect to address number `nth` of the target; *fd is then writable when it is
 * connected, or has failed.  ENOTFOUND: the target has no such address; others as ctl_ask. */
inferd_status ctl_connect(const ctl_target *t, uint32_t nth, int *fd, inferd_err *err);
/* Appends the whole request; out->failed: no memory.  It may hold a key. */
void ctl_write_request(buf *out, const ctl_target *t, const char *method, const char *path,
                       bytes body);

/* -- internal; for tests -- */
/* "http://[::1]:80/" -> host "::1", port "80"; false: not such a URL. */
bool ctl_split_url(const char *url, char host[256], char port[8]);
/* Parses a whole answer, read to the end of the connection. */
inferd_status ctl_read_answer(bytes text, ctl_answer *out, inferd_err *err);
/* A segment of a path: all characters except letters, digits and "-._~" as %XX. */
void ctl_add_segment(buf *out, const char *name);

#endif
