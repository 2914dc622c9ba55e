/* log.h - one line per event, key=value or JSON, without blocking the loop.
 *
 *   log_line line;
 *   log_begin(&line, LOG_LEVEL_INFO, "done");
 *   log_str(&line, "id", rq->id);
 *   log_u64(&line, "new_tokens", n);
 *   log_end(&line);
 *
 * gives ts=2026-01-02T03:04:05.678Z mono_us=81237123 level=info event=done id=req-... new_tokens=40
 *
 * Fields are typed and every value is escaped, so bytes of a client cannot end a line, open a quote
 * or move a terminal's cursor.  Keys and prompts are never passed to this module.
 *
 * Lines go to a non-blocking descriptor: a line that cannot be written at once is dropped and
 * counted, and the next line that fits reports the count (event=log_dropped).  A line longer than
 * LOG_LINE_BYTES is cut at a field and gets cut=true.
 *
 * Before log_open: key=value at level info on standard error.
 * Thread: any, one line at a time; log_open, log_reopen and log_close: front. */
#ifndef INFERD_LOG_H
#define INFERD_LOG_H

#include <time.h>

#include "inferd/base.h"
#include "inferd/status.h"

typedef enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG } log_level;

enum { LOG_LINE_BYTES = 2048, LOG_STAMP_BYTES = 64 };

typedef struct log_line {
    bool wanted, json, cut;
    size_t n;
    char text[LOG_LINE_BYTES];
} log_line;

/* path NULL = standard error.  A new file has mode 0640; a FIFO without a reader is an error. */
inferd_status log_open(const char *path, bool json, log_level level, inferd_err *err);
/* After rotation: opens the same path again.  On failure the old file is still written. */
inferd_status log_reopen(inferd_err *err);
void log_close(void); // back to standard error
bool log_wants(log_level level);
uint64_t log_n_dropped(void); // lines since the start

void log_begin(log_line *line, log_level level, const char *event); // event: a fixed word
void log_str(log_line *line, const char *name, const char *value);  // NULL is shown as ""
void log_bytes(log_line *line, const char *name, bytes value);
void log_u64(log_line *line, const char *name, uint64_t value);
void log_i64(log_line *line, const char *name, int64_t value);
void log_bool(log_line *line, const char *name, bool value);
void log_end(log_line *line);
/* The last line of a hanging process: takes no lock (it may be held), and waits 1 s for a pipe. */
void log_end_alone(log_line *line);

/* "2026-01-02T03:04:05.678Z" */
void log_stamp(char out[LOG_STAMP_BYTES], const struct timespec *at);

/* One line with one text: log_text(LOG_LEVEL_ERROR, "reload_failed", "error", err.text). */
void log_text(log_level level, const char *event, const char *name, const char *value);

#endif
