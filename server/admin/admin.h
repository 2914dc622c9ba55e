/* admin.h - the administration of a running daemon: its state, commands to models, guarantees of
 * models and tenants, the whole configuration, and plans (would this fit?).
 *
 *   admin.c        commands, waiting for them, changes of the configuration
 *   admin_ask.c    plans, by the arithmetic of model_plan.h
 *   admin_state.c  the present state
 *   admin_drill.c  drills: a device that seems lost, slow or hanging
 *   viewers.c      the state as a stream
 *   page.c, page/  the page that shows it
 *   config_edit.c  changes of the configuration's text
 *   change.c       one change at a time, from text to the running daemon
 *
 * The routes answer on a socket file of their own, where every client that can open it is trusted,
 * and elsewhere only to a key of `admin`. docs/admin.md lists them.
 *
 * A command is an order to the engine.  It is answered at once, or when its goal is reached: until
 * then the exchange waits in a list that is checked after every change of a state.
 * Thread: front. */
#ifndef INFERD_ADMIN_H
#define INFERD_ADMIN_H

#include "app.h"
#include "change.h"

typedef struct admin admin;

enum {
    ADMIN_BODY_BYTES_MAX = 64 * 1024, // except for a whole configuration: limits.body_bytes_max
    ADMIN_WAIT_MS = 60000,            // default of `timeout_ms`
    ADMIN_WAIT_MAX_MS = 86400000,
    ADMIN_CONNECTIONS_MAX = 32 // of the socket file
};

admin *admin_create(app *a, changer *ch); // both borrowed; NULL: no memory
void admin_destroy(admin *ad);            // accepts NULL; after http_close
changer *admin_changer(const admin *ad);
/* States may have changed, or time has passed: answers the exchanges that need not wait longer. */
void admin_look(admin *ad);

/* Regularly: sends what viewers have to see.  / Ends their streams: the daemon ends. */
void admin_tick(admin *ad, uint64_t now_us);
void admin_end_watches(admin *ad);

/* -- handlers -- */
void admin_watch(void *ctx, http_request *rq); // viewers.h
void admin_page(void *ctx, http_request *rq);  // page.c: a file of the page
void admin_get_state(void *ctx, http_request *rq);
void admin_get_model(void *ctx, http_request *rq);
void admin_get_tenant(void *ctx, http_request *rq);
void admin_patch_model(void *ctx, http_request *rq);
void admin_patch_tenant(void *ctx, http_request *rq);
void admin_command(void *ctx, http_request *rq); // the last segment of the route names the command
void admin_get_config(void *ctx, http_request *rq);
void admin_put_config(void *ctx, http_request *rq);
void admin_plan(void *ctx, http_request *rq);
void admin_running(void *ctx, http_request *rq);
void admin_unload_all(void *ctx, http_request *rq);
void admin_unload_one(void *ctx, http_request *rq);
void admin_lose_device(void *ctx, http_request *rq); // only with app.allow_faults
void admin_slow_device(void *ctx, http_request *rq); // likewise

/* -- shared by the files of admin -- */

/* null, "lose", "hang", or how many times as long a step takes. */
void admin_add_drill(buf *out, const engine *e);

/* 400 invalid_value and similar: an error answer in inferd's usual form. */
__attribute__((format(printf, 5, 6))) void admin_refuse(http_request *rq, int status,
                                                        const char *code, const char *param,
                                                        const char *format, ...);
/* 409 with the problems, line by line. */
void admin_refuse_problems(http_request *rq, const char *problems);
/* The body as an object, NULL for none.  False: refused. */
bool admin_read_body(app *a, http_request *rq, json_t **out);
void admin_busy(http_request *rq, const inferd_err *err); // answers that changer_begin refused

/* -- admin_state.c: JSON, appended -- */
void admin_add_state(buf *out, const app *a, const changer_about *about);
void admin_add_model(buf *out, const app *a, uint32_t config_idx);
void admin_add_tenant(buf *out, const app *a, uint32_t config_idx);
/* ,"name":"text", null without one; ,"name":12 */
void admin_add_text(buf *out, const char *name, const char *text);
void admin_add_u64(buf *out, const char *name, uint64_t value);
const char *admin_class_name(gen_class prio);
const char *admin_pin_name(model_pin pin);
/* Since the model was last needed: an idle engine published its own figure some time ago. */
uint64_t admin_idle_us(const engine_model_info *i, uint64_t now_us);
void admin_add_lines(buf *out, const char *lines, char separator); // as a list of strings

#endif
