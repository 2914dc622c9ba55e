/* tracer_parts.h - between tracer.c and tracer_headers.c.
 * Thread: front. */
#ifndef INFERD_TRACER_PARTS_H
#define INFERD_TRACER_PARTS_H

#include "tracer.h"

typedef struct trace_headers {
    char *lines[TRACER_HEADERS_MAX]; // [n] owned
    uint32_t n;
} trace_headers;

/* Reads the lines of a file, "Name: value" each; empty lines and those that begin with '#' are
 * skipped.  A file that all users may write is refused, and so are the headers that are ours.  On
 * failure *out has none. */
inferd_status trace_headers_read(const char *path, trace_headers *out, inferd_err *err);
/* Zeroes the texts, which may be secrets, and frees them. */
void trace_headers_wipe(trace_headers *h);

#endif
