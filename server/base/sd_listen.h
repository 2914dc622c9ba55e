/* sd_listen.h - the listening sockets that a service manager passes, by systemd's protocol:
 * LISTEN_FDS descriptors from 3 on, for the process LISTEN_PID, with the names LISTEN_FDNAMES
 * ("web:admin").
 *
 * The name "admin" (FileDescriptorName= of a socket unit) is for the socket of administrators; a
 * socket with any other name, or without one, is for requests.  One of each kind at most.
 * Thread: main, before there are others: the variables are removed from the environment. */
#ifndef INFERD_SD_LISTEN_H
#define INFERD_SD_LISTEN_H

#include "inferd/base.h"
#include "inferd/status.h"

enum { SD_LISTEN_FIRST_FD = 3, SD_LISTEN_FDS_MAX = 16 };

typedef struct sd_listen_fds {
    int requests, admin; // close-on-exec, non-blocking; 0: none was passed
} sd_listen_fds;

/* EINVAL: the variables are not of this form, or a descriptor is not a listening stream socket of
 * an address family that inferd serves.  Without LISTEN_FDS, or with the LISTEN_PID of another
 * process, it is OK and there are none.  The caller owns the descriptors. */
inferd_status sd_listen_take(sd_listen_fds *out, inferd_err *err);

#endif
