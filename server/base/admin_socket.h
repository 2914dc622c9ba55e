/* admin_socket.h - where the socket file of administrators is by default: the daemon
 * takes the first place with a folder that is there or can be made, and `inferd ctl` looks in the
 * same order.
 *
 *     $XDG_RUNTIME_DIR/inferd/admin.sock   of a logged-in user
 *     /run/inferd/admin.sock               of root, or a service with that runtime folder
 *
 * Thread: any, as getenv. */
#ifndef INFERD_ADMIN_SOCKET_H
#define INFERD_ADMIN_SOCKET_H

#include "inferd/base.h"
#include "inferd/status.h"

enum {
    ADMIN_SOCKET_PLACES = 2,
    ADMIN_SOCKET_BYTES = 108 // sockaddr_un.sun_path
};

/* The paths, the first one to be tried first; returns their number.  A folder of the environment
 * with too long a path is left out. */
uint32_t admin_socket_places(char out[ADMIN_SOCKET_PLACES][ADMIN_SOCKET_BYTES]);
/* Makes the last folder of a place, for its owner only, unless it exists. */
inferd_status admin_socket_make_folder(const char *path, inferd_err *err);

#endif
