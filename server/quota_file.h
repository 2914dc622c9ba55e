/* quota_file.h - what tenants used today and this month, on disk: a restart forgets nothing.
 *
 * One JSON file, a line per tenant:
 *
 *     {"version":1,"tenants":{
 *     "alice":{"day":"2026-01-02","day_tokens":5,"month":"2026-01","month_tokens":80,"seen":"2026-01-02"}
 *     }}
 *
 * It is written anew at most once per QUOTA_FILE_PERIOD_US while something changes: to PATH.new,
 * synced, renamed over PATH, and the folder synced.  So it is whole at every moment, and being
 * killed loses the changes of that period and of the write under way.  Tokens reserved by running
 * requests count as used in it: being killed never gives tokens back.
 *
 *     front   quota_file_due > quota_file_snapshot ............... > quota_file_written
 *     worker                                  quota_file_write
 *
 * A file that is not as it should be is an error at the start: the daemon does not begin anew with
 * quotas somebody has used.  A file that is not there counts as empty.  Tenants of the file that
 * the configuration does not name stay in it for QUOTA_FILE_KEEP_DAYS; one that comes back finds
 * its use.
 *
 * Thread: front, but quota_file_write: any, one call per path at a time. */
#ifndef INFERD_QUOTA_FILE_H
#define INFERD_QUOTA_FILE_H

#include "inferd/base.h"
#include "inferd/buf.h"
#include "inferd/status.h"
#include "tenant_limits.h"

enum {
    QUOTA_FILE_TENANTS_MAX = LIMITS_TENANTS_MAX, // of the longest unseen the rest is left out
    QUOTA_FILE_BYTES_MAX = 128 * 1024 * 1024,
    QUOTA_FILE_KEEP_DAYS = 60,
    QUOTA_FILE_PERIOD_US = 1000000
};

typedef struct quota_file quota_file;

/* INFERD_EIO: cannot be read; INFERD_EFORMAT: is not as above; INFERD_ENOMEM.  The sentence names
 * the path and what is wrong where. */
inferd_status quota_file_read(const char *path, quota_file **out, inferd_err *err);
void quota_file_destroy(quota_file *q);             // accepts NULL
uint32_t quota_file_n_tenants(const quota_file *q); // that it was read with

/* Give tenant `number`, fresh in the table, what the file has under its name; false: nothing. */
bool quota_file_restore(const quota_file *q, limits *l, uint32_t number);

/* Something changed, no write is under way, and the last began long enough ago. */
bool quota_file_due(const quota_file *q, const limits *l, uint64_t now_us);
/* The text of the file, into the cleared `out`; a write is then under way until quota_file_written.
 * INFERD_ENOMEM begins none; it is tried again after the period. */
inferd_status quota_file_snapshot(quota_file *q, const limits *l, uint64_t now_us, int64_t unix_s,
                                  buf *out, inferd_err *err);
/* INFERD_EIO: the file is as it was, or, where only syncing its folder failed, whole and new.
 * INFERD_EINVAL: the path is too long. */
inferd_status quota_file_write(const char *path, const char *text, size_t n, inferd_err *err);
/* The write has ended; one that failed is tried again after the period. */
void quota_file_written(quota_file *q, bool ok);

#endif
