/* view_rows.h - what GET /admin/watch shows, as rows of JSON that are compared as text: a row that
 * changed is sent again as a whole.  docs/page.md has their members.
 *
 * A row holds no number that changes while nothing happens: times are moments, not ages.
 * Thread: front. */
#ifndef INFERD_VIEW_ROWS_H
#define INFERD_VIEW_ROWS_H

#include "app.h"
#include "app_usage.h"
#include "change.h"

/* One moment, by the clock of people and by that of the engines. */
typedef struct view_now {
    int64_t unix_ms;
    uint64_t us;
    int64_t offset_ms; // Unix time less that of the engines, kept, so that a moment does not change
} view_now;

/* One object each, appended. */
void view_add_daemon(buf *out, const app *a, const changer_about *about, const char *boot,
                     int64_t started_unix_s);
void view_add_device(buf *out, const app *a, uint32_t device_idx, const view_now *now);
/* m: NULL for a model that leaves: no configuration has it, and its answers end. */
void view_add_model(buf *out, const app *a, uint32_t slot, const config_model *m,
                    const app_recent *recent, const view_now *now);
void view_add_tenant(buf *out, const app *a, uint32_t config_idx, const app_recent *recent);
void view_add_queue(buf *out, const app *a);
void view_add_history_row(buf *out, const history_row *row);
void view_add_event(buf *out, const journal_event *e);

#endif
