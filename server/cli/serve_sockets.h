/* serve_sockets.h - the two listeners of `inferd serve`: for requests, and for administrators.
 *
 * A socket that the service manager passed (sd_listen.h) is used instead of the address of the
 * configuration, and the log says so.
 * Thread: front. */
#ifndef INFERD_SERVE_SOCKETS_H
#define INFERD_SERVE_SOCKETS_H

#include "app.h"

/* loop: a uv_loop_t; fd_passed: of sd_listen_take, taken, or 0. */
inferd_status serve_open_listener(app *a, void *loop, int fd_passed, http_server **out,
                                  inferd_err *err);
/* Without a passed socket and without admin.listen, the first place of admin_socket.h that can be
 * used; if there is none, *out stays NULL, the log says why, and it is OK. */
inferd_status serve_open_admin(app *a, void *loop, int fd_passed, http_server **out,
                               inferd_err *err);

#endif
