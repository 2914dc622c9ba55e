/* app_usage.h - who used the devices, from the engines to the pages that tell it.
 *
 *     engines' principals > app_read_usage > ledger (by names) > /metrics, GET /admin/state
 *
 * Thread: front. */
#ifndef INFERD_APP_USAGE_H
#define INFERD_APP_USAGE_H

#include "app.h"
#include "inferd/buf.h"

/* Bring the ledger up to date. */
void app_read_usage(const app *a, uint64_t now_us);
/* The same when its window moves, which is once a second, and while a model leaves.  At each tick
 * before registry_sweep: a slot that gets another model is told under its old name until then. */
void app_watch_usage(const app *a, uint64_t now_us);
/* The page of GET /metrics, appended.  `tenant`: whose rows and models it has, by its number; -1:
 * everybody's, for an operator, or where there are no keys. */
void app_write_metrics(const app *a, int tenant, buf *out);
/* The member "account" of GET /admin/state, with a comma in front: what each tenant used for each
 * model, and where the time of each device went. */
void app_add_account(buf *out, const app *a);

#endif
