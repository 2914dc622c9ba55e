/* routes.h - every address that the daemon answers, and the callbacks of its HTTP servers.
 *
 * Thread: front. */
#ifndef INFERD_ROUTES_H
#define INFERD_ROUTES_H

#include "app.h"

enum { ROUTES = 31 };
extern const http_route routes[ROUTES];

/* The options of http_open: address, limits, routes and callbacks. */
void routes_http_options(app *a, http_options *out);
/* The same for the socket file of administrators; false: none is configured. */
bool routes_admin_options(app *a, http_options *out);

#endif
