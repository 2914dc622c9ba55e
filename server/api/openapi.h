/* openapi.h - GET /openapi.json: the description of this interface as OpenAPI 3.1.
 *
 *   routes       the table that the transport matches with (app.routes): paths, methods, keys,
 * which statuses the transport itself can answer operations   a row for each route, here: summary,
 * answers, statuses of the handler bodies       the table of fields (api_schema.h), with the
 * numbers of the present limits answers      openapi_schemas.c: what sse.c, api_models.c,
 * api_ops.c, ... write
 *
 * test_openapi compares routes and rows; tests/e2e/test_openapi.py compares answers and document.
 * Thread: any. */
#ifndef INFERD_OPENAPI_H
#define INFERD_OPENAPI_H

#include "config.h"
#include "http.h"
#include "inferd/buf.h"

typedef struct openapi_input {
    const http_route *routes; // [n_routes]
    size_t n_routes;
    const config_limits *limits;
    const char *version; // of the daemon
    bool keyed;          // tenants have keys
    bool admin;          // routes of administrators can be used, and are listed
} openapi_input;

void openapi_write(const openapi_input *in, buf *out);

/* Is there a row for this route and method? */
bool openapi_has(const char *path, http_method method);
size_t openapi_n_rows(void);

/* A named schema of an answer, in the form of api_schema.h. */
typedef struct openapi_schema {
    const char *name, *text;
} openapi_schema;
const openapi_schema *openapi_schemas(size_t *n);

#endif
