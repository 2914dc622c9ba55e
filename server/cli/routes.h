/* routes.h - every address that the daemon answers, and the callbacks of its HTTP servers.
 *
 * Thread: front. */
#ifndef INFERD_ROUTES_H
#define INFERD_ROUTES_H

#include "app.h"

const http_route *routes_all(size_t *n);

/* The options of http_open: address, limits, routes and callbacks. */
void routes_http_options(app *a, http_options *out);
/* The same for the socket file of administrators at `listen` ("unix:PATH"). */
void routes_admin_options(app *a, const char *listen, http_options *out);

#endif
