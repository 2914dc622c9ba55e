/* unknown.h - fields of a request that are not in the table.
 *
 * They are accepted, because clients send fields of other servers, but reported: a misspelt
 * "temprature" would silently sample at the default.  All are counted; the first ones of a request
 * are named in a header of its answer; each name is logged once, with the field probably meant.
 *
 * Names are untrusted: a header has only their letters, digits, '_', '-', '.'; other bytes are %XX.
 * The number of logged names is bounded: a client that invents names cannot fill the log.
 * Thread: unknown_add any, a value; unknown_names front. */
#ifndef INFERD_UNKNOWN_H
#define INFERD_UNKNOWN_H

#include "api_error.h"

enum {
    UNKNOWN_NAMED_MAX = 8,     // names of one request
    UNKNOWN_VALUE_BYTES = 200, // of the header; names that do not fit are only counted
    UNKNOWN_LINE_BYTES = 256,  // of the header with its name
    UNKNOWN_TOLD_MAX = 256     // logged names
};
#define UNKNOWN_HEADER "x-inferd-ignored"

typedef struct unknown_field {
    char name[API_QUOTE_BYTES]; // its first 64 bytes
    const char *meant;          // static; NULL: no known name is near
} unknown_field;

typedef struct unknown_fields {
    uint32_t n;                             // all of them
    unknown_field named[UNKNOWN_NAMED_MAX]; // the first ones
} unknown_fields;

/* NULL: this name is only counted. */
unknown_field *unknown_add(unknown_fields *u, const char *name);
/* "x-inferd-ignored: temprature, foo, +3\n", or "" if there are none. */
void unknown_line(const unknown_fields *u, char out[UNKNOWN_LINE_BYTES]);

typedef enum unknown_news { UNKNOWN_NEW, UNKNOWN_TOLD, UNKNOWN_FULL } unknown_news;

/* The names that were logged. */
typedef struct unknown_names unknown_names;
unknown_names *unknown_names_create(void);        // NULL: no memory
void unknown_names_destroy(unknown_names *names); // accepts NULL
/* UNKNOWN_NEW: log it now.  UNKNOWN_FULL is returned once, for the first name without room; later
 * ones count as logged. */
unknown_news unknown_names_add(unknown_names *u, const char *name);

#endif
