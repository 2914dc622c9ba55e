/* app_tell.h - from the engines' notes and counters to the journal and the history.
 *
 *   engine_note, preemption counters > app_tell > journal (sentences)
 *   engine_stats, app.totals         > app_tell > history (a row a second)
 * Thread: front. */
#ifndef INFERD_APP_TELL_H
#define INFERD_APP_TELL_H

#include "api_error.h"
#include "app.h"

/* Regularly, from app_tick. */
void app_tell(app *a, uint64_t now_us);
/* A request was refused.  tenant, name_idx: -1: none. */
void app_tell_refusal(app *a, int64_t tenant, int64_t name_idx, const api_error *e);
/* A request that was taken failed.  Those of one model that fail alike are one event. */
void app_tell_failure(app *a, uint32_t name_idx, const api_error *e);
int64_t app_unix_ms(void);
enum { APP_SIZE_BYTES = 32 };
/* "96 MiB", for people. */
const char *app_size(char out[APP_SIZE_BYTES], uint64_t n_bytes);

#endif
