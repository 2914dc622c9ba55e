/* api_schema.h - JSON schemas (draft 2020-12) of request bodies, made from the rows of
 * api_params.h.
 *
 * A row's range, or the text beside its reader, becomes the schema of its field, so a schema cannot
 * name a field, a type or a bound that the reader does not have (test_api_schema compares them,
 * value by value).  The rules for all rows are in it: an optional field may be null, a refused one
 * has its neutral value or null, a body may have fields that are not in the table.  Rules between
 * fields are not in it.  Schemas in the source are written with ' for ", and @stop_max for that
 * number of api_params.h.
 * Thread: any. */
#ifndef INFERD_API_SCHEMA_H
#define INFERD_API_SCHEMA_H

#include "api_params.h"
#include "inferd/buf.h"

/* Appends such a text as JSON. */
void api_schema_add_text(buf *out, const char *text);
/* Appends the schema of one field of a body of the route. */
void api_schema_add_field(buf *out, const api_field *f, api_route route);
/* Appends the schema of a body. */
void api_schema_add_body(buf *out, api_route route);

#endif
