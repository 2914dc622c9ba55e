/* serve_sockets.c - see serve_sockets.h. */
#include "serve_sockets.h"

#include <stdio.h>
#include <string.h>

#include "admin_socket.h"
#include "config.h"
#include "log.h"
#include "routes.h"

/* Logs a passed socket, and what the configuration says instead of its address. */
static void log_passed(const char *what, const http_server *h, const char *configured) {
    log_line line;
    if (!http_is_passed(h)) return;
    log_begin(&line, LOG_LEVEL_INFO, "socket_passed");
    log_str(&line, "for", what);
    log_str(&line, "address", http_address(h));
    if (configured != NULL && strcmp(configured, http_address(h)) != 0)
        log_str(&line, "instead_of", configured);
    log_end(&line);
}

inferd_status serve_open_listener(app *a, void *loop, int fd_passed, http_server **out,
                                  inferd_err *err) {
    http_options ho;
    routes_http_options(a, &ho);
    ho.fd_passed = fd_passed;
    inferd_status st = http_open(&ho, loop, out, err);
    if (st != INFERD_OK) return st;
    log_passed("requests", *out, ho.listen);
    app_set_http(a, *out);
    return INFERD_OK;
}

static inferd_status open_admin(app *a, void *loop, const char *listen, int fd_passed,
                                http_server **out, inferd_err *err) {
    http_options ho;
    routes_admin_options(a, listen, &ho);
    ho.fd_passed = fd_passed;
    inferd_status st = http_open(&ho, loop, out, err);
    if (st != INFERD_OK) return st;
    log_passed("administrators", *out, a->config->c->admin.listen);
    app_set_http_admin(a, *out);
    return INFERD_OK;
}

/* For `inferd ctl` without a word of configuration.  The daemon serves without it, too: another one
 * may have it, or there may be no folder that this user can write. */
static void open_default(app *a, void *loop, http_server **out) {
    char places[ADMIN_SOCKET_PLACES][ADMIN_SOCKET_BYTES], listen[ADMIN_SOCKET_BYTES + 8];
    uint32_t n = admin_socket_places(places);
    for (uint32_t i = 0; i < n; i++) {
        inferd_err err = {0};
        bool folder = admin_socket_make_folder(places[i], &err) == INFERD_OK;
        snprintf(listen, sizeof listen, "unix:%.*s", ADMIN_SOCKET_BYTES - 1, places[i]);
        if (folder && open_admin(a, loop, listen, 0, out, &err) == INFERD_OK) return;
        if (!folder && i + 1 < n) continue;
        log_line line;
        log_begin(&line, LOG_LEVEL_INFO, "no_admin_socket");
        log_str(&line, "error", err.text);
        log_str(&line, "hint", "inferd ctl reaches this daemon by admin.listen or an admin key");
        log_end(&line);
        return;
    }
}

inferd_status serve_open_admin(app *a, void *loop, int fd_passed, http_server **out,
                               inferd_err *err) {
    const char *listen = a->config->c->admin.listen;
    bool none = listen != NULL && strcmp(listen, "none") == 0;
    /* Clients of a socket that is passed and not served would wait forever. */
    if (none && fd_passed != 0)
        return inferd_fail(err, INFERD_EINVAL,
                           "admin.listen is none, and the service manager passes a socket for "
                           "administrators: disable its unit, or leave admin.listen out");
    if (none) return INFERD_OK;
    if (fd_passed != 0) return open_admin(a, loop, "", fd_passed, out, err);
    if (listen != NULL) return open_admin(a, loop, listen, 0, out, err);
    open_default(a, loop, out);
    return INFERD_OK;
}
