/* app_usage.h - use of the devices, from the engines to the pages that report it.
 *
 *   engines' flows > app_read_usage > tenant_usage (by names) > /metrics, GET /admin/state
 * Thread: front. */
#ifndef INFERD_APP_USAGE_H
#define INFERD_APP_USAGE_H

#include "app.h"
#include "device_recent.h"
#include "inferd/buf.h"
#include "tenant_usage.h"

/* Brings the usage table up to date. */
void app_read_usage(const app *a, uint64_t now_us);
/* The same, but only when its window moves (once a second) and while a model leaves.  Call it at
 * each tick before registry_sweep: until then a slot's use counts under its old model's name. */
void app_watch_usage(const app *a, uint64_t now_us);
/* The use of the last seconds by tenant and by model name, and refusals since the start. */
typedef struct app_recent {
    uint64_t window_us;
    tenant_usage_amounts *by_tenant; // [n_tenants of the app] owned
    tenant_usage_amounts *by_name;   // [names of models] part of by_tenant
    uint64_t *refused;               // [n_tenants] answered 429 or 503; owned
} app_recent;
/* Brings the table up to date.  False: no memory; deinit all the same. */
bool app_recent_init(app_recent *r, const app *a, uint64_t now_us);
void app_recent_deinit(app_recent *r);
/* Appends the page of GET /metrics.  `tenant`: number of the tenant that the page is for, with its
 * rows and models only; -1: all, for an operator, or without keys. */
void app_write_metrics(const app *a, int tenant, buf *out);
/* ,"account" of GET /admin/state: use by each tenant for each model, time of each device by use. */
void app_add_usage(buf *out, const app *a);

#endif
