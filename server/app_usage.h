/* app_usage.h - who used the devices, from the engines to the pages that tell it.
 *
 *     engines' principals > app_read_usage > ledger (by names) > /metrics, GET /admin/state
 *
 * Thread: front. */
#ifndef INFERD_APP_USAGE_H
#define INFERD_APP_USAGE_H

#include "app.h"
#include "inferd/buf.h"

/* Bring the ledger up to date.  Before registry_sweep: a slot that gets another model is told
 * under its old name until then. */
void app_read_usage(const app *a, uint64_t now_us);
/* The page of GET /metrics, appended. */
void app_write_metrics(const app *a, buf *out);
/* The member "account" of GET /admin/state, with a comma in front: what each tenant used for each
 * model, and where the time of each device went. */
void app_add_account(buf *out, const app *a);

#endif
