/* quota_file.h - the tenants' use of today and this month, on disk: it survives a restart.
 *
 * One JSON file, a line per tenant:
 *
 *   {"version":1,"tenants":{
 *   "alice":{"day":"2026-01-02","day_tokens":5,"month":"2026-01","month_tokens":80,"seen":"2026-01-02"}
 *   }}
 *
 * It is rewritten at most once per QUOTA_FILE_PERIOD_US while there are changes: to PATH.new,
 * synced, renamed over PATH, and the folder synced.  So it is complete at every moment; a killed
 * process loses only the changes of that period and of the write in progress.  Tokens reserved by
 * running requests count as used in it: a killed process never returns tokens.
 *
 *   front    quota_file_due > quota_file_snapshot ............... > quota_file_written
 *   worker                                 quota_file_write
 *
 * An invalid file is an error at the start: quotas in use are never reset silently.  A missing file
 * counts as empty.  Tenants of the file that the configuration does not name stay in it for
 * QUOTA_FILE_KEEP_DAYS, so that a tenant that is added again keeps its use.
 *
 * Thread: front, except quota_file_write: any, one call per path at a time. */
#ifndef INFERD_QUOTA_FILE_H
#define INFERD_QUOTA_FILE_H

#include "inferd/base.h"
#include "inferd/buf.h"
#include "inferd/status.h"
#include "tenant_limits.h"

enum {
    QUOTA_FILE_TENANTS_MAX = LIMITS_TENANTS_MAX, // beyond this, the longest unseen are omitted
    QUOTA_FILE_BYTES_MAX = 128 * 1024 * 1024,
    QUOTA_FILE_KEEP_DAYS = 60,
    QUOTA_FILE_PERIOD_US = 1000000
};

typedef struct quota_file quota_file;

/* INFERD_EIO: cannot be read; INFERD_EFORMAT: is not as above; INFERD_ENOMEM.  The text names the
 * path, the problem and its position. */
inferd_status quota_file_read(const char *path, quota_file **out, inferd_err *err);
void quota_file_destroy(quota_file *q);             // accepts NULL
uint32_t quota_file_n_tenants(const quota_file *q); // of the file as it was read

/* Gives tenant `number`, new in the table, the use stored under its name; false: there is none. */
bool quota_file_restore(const quota_file *q, limits *l, uint32_t number);

/* There are changes, no write is in progress, and the last one began long enough ago. */
bool quota_file_due(const quota_file *q, const limits *l, uint64_t now_us);
/* Writes the text of the file into the cleared `out`; the write is in progress until
 * quota_file_written.  INFERD_ENOMEM begins none; a retry follows after the period. */
inferd_status quota_file_snapshot(quota_file *q, const limits *l, uint64_t now_us, int64_t unix_s,
                                  buf *out, inferd_err *err);
/* INFERD_EIO: the old file is intact; or, if only syncing its folder failed, the new one is
 * complete.  INFERD_EINVAL: the path is too long. */
inferd_status quota_file_write(const char *path, const char *text, size_t n, inferd_err *err);
/* The write has ended; a failed one is retried after the period. */
void quota_file_written(quota_file *q, bool ok);

#endif
