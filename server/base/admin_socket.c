/* admin_socket.c - see admin_socket.h. */
#include "admin_socket.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME "inferd/admin.sock"

uint32_t admin_socket_places(char out[ADMIN_SOCKET_PLACES][ADMIN_SOCKET_BYTES]) {
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    uint32_t n = 0;
    /* The specification of that variable says that a relative path is to be ignored. */
    if (runtime != NULL && runtime[0] == '/') {
        int length = snprintf(out[n], ADMIN_SOCKET_BYTES, "%s/" NAME, runtime);
        n += length > 0 && length < ADMIN_SOCKET_BYTES;
    }
    snprintf(out[n++], ADMIN_SOCKET_BYTES, "/run/" NAME);
    return n;
}

inferd_status admin_socket_make_folder(const char *path, inferd_err *err) {
    enum { OWNER_ONLY = 0700 };
    char folder[ADMIN_SOCKET_BYTES];
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(path, '/') - path), path);
    if (mkdir(folder, OWNER_ONLY) != 0 && errno != EEXIST)
        return inferd_fail(err, INFERD_EIO, "%s: %s", folder, strerror(errno));
    if (access(folder, W_OK | X_OK) != 0)
        return inferd_fail(err, INFERD_EIO, "%s: %s", folder, strerror(errno));
    return INFERD_OK;
}
