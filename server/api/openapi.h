/* openapi.h - GET /openapi.json: the description of this interface as OpenAPI 3.1.
 *
 * It is put together from four tables: the routes that the transport matches (app.routes) have
 * paths, methods and keys; openapi.c has a row for each of them, with summary, answers and statuses
 * of its handler; bodies are the fields of api_fields.c (api_schema.h), with the numbers of the
 * present limits; answers are in openapi_schemas.c.
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
