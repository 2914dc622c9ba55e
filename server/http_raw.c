/* http_raw.c - was the header block written the way it was understood?
 *
 * libmicrohttpd 0.9.75 forgives in silence: bare LF ends a line, NUL ends a value, a folded line
 * is glued to a *name*, and a line that begins with a colon ends the whole header block, so that
 * the headers behind it become the next request.  None of this can be seen in the values it
 * reports.  But it parses in place: what lies between the method and the body still is the block,
 * with a NUL written over each CR, LF and first colon.
 *
 *     POST\0/v1/echo\0HTTP/1.1\0\0Host\0 x\0\0Content-Length\0 2\0\0\0\0{}
 *     ^ method                    ^ name  ^ value                      ^ method + header_size
 *
 * So the request line and the reported names and values must tile the block exactly, each line
 * ended by two NULs and the block by two more.  Other versions parse differently (from 1.0 on
 * strictly): they are recognised by their version and this check leaves them alone. */
#include <string.h>

#include "http_internal.h"

typedef struct walk {
    const char *at, *end;
    bool exact;
} walk;

/* The text at w->at has n bytes and ends its line. */
static void end_line(walk *w, size_t n) {
    if ((size_t)(w->end - w->at) < n + 2 || w->at[n] != 0 || w->at[n + 1] != 0) {
        w->exact = false;
        return;
    }
    w->at += n + 2;
}

static enum MHD_Result walk_header(void *cls, enum MHD_ValueKind kind, const char *name,
                                   size_t name_n, const char *value, size_t value_n) {
    walk *w = cls;
    (void)kind;
    if (name != w->at || value == NULL || (size_t)(w->end - w->at) < name_n + 1 ||
        value < name + name_n + 1 || value > w->end) {
        w->exact = false;
        return MHD_NO;
    }
    for (w->at += name_n + 1; w->at < value; w->at++) // behind the colon
        if (*w->at != ' ' && *w->at != '\t') w->exact = false;
    end_line(w, value_n);
    return w->exact ? MHD_YES : MHD_NO;
}

bool raw_is_known(void) {
    return strcmp(MHD_get_version(), "0.9.75") == 0;
}

bool raw_is_exact(struct MHD_Connection *mhd, const char *method, const char *target,
                  size_t target_n, const char *version) {
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    if (info == NULL) return false;
    walk w = {.at = version, .end = method + info->header_size, .exact = true};
    /* One space, one space; a NUL in a method or target would leave a gap. */
    if (target != method + strlen(method) + 1 || version != target + target_n + 1) return false;
    if (version > w.end) return false;
    end_line(&w, strlen(version));
    if (w.exact) MHD_get_connection_values_n(mhd, MHD_HEADER_KIND, walk_header, &w);
    if (w.exact) end_line(&w, 0); // the empty line
    return w.exact && w.at == w.end;
}
