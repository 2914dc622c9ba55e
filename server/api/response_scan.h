/* response_scan.h - the files that are there when the store opens (response_store.h).
 *
 * Of each file only the first line is read.  A file that is damaged is deleted; one that cannot be
 * read now stays, counts, and has its tenant later (`unread`).
 * Thread: front, before the others. */
#ifndef INFERD_RESPONSE_SCAN_H
#define INFERD_RESPONSE_SCAN_H

#include "inferd/status.h"
#include "response_index.h"

inferd_status response_scan(int folder, const char *path, response_index *out, inferd_err *err);

/* Logs that a response is not kept. */
void response_complain(const char *id, const char *problem);

#endif
