/* admin_drill.c - drills with a device, where `inferd serve --allow-faults` permits them: it seems
 * lost, slow or hanging.  docs/operation.md says what an operator sees.
 *
 * Without the option each order is refused: an administrator's key alone must not end a daemon that
 * serves.
 * Thread: front. */
#include <string.h>

#include "admin.h"
#include "api.h"
#include "json_out.h"
#include "log.h"

enum { TIMES_MAX = 1000 };

/* The device of the path; false: the request was refused. */
static bool find_device(app *a, http_request *rq, uint32_t *idx) {
    char quoted[API_QUOTE_BYTES];
    if (!a->allow_faults) {
        admin_refuse(rq, 403, "faults_not_allowed", NULL,
                     "drills need a daemon that was started with --allow-faults");
        return false;
    }
    for (*idx = 0; *idx < fleet_n_devices(a->fleet); ++*idx)
        if (strcmp(fleet_device_name(a->fleet, *idx), rq->tail) == 0) return true;
    admin_refuse(rq, 404, "device_not_found", "device", "the device \"%s\" does not exist",
                 api_quote(quoted, rq->tail, strlen(rq->tail)));
    return false;
}

void admin_add_drill(buf *out, const engine *e) {
    uint32_t drill = engine_get_drill(e);
    if (drill == ENGINE_DRILL_NONE)
        buf_add_str(out, "null");
    else if (drill == ENGINE_DRILL_LOSE || drill == ENGINE_DRILL_HANG)
        buf_add_str(out, drill == ENGINE_DRILL_LOSE ? "\"lose\"" : "\"hang\"");
    else
        json_add_real(out, (double)drill / ENGINE_DRILL_NONE);
}

static void begin_drill(app *a, http_request *rq, uint32_t device_idx, uint32_t drill) {
    const char *name = fleet_device_name(a->fleet, device_idx);
    buf out = {0}, what = {0};
    log_line line;
    fleet_set_drill(a->fleet, device_idx, drill);
    admin_add_drill(&what, fleet_engine(a->fleet, device_idx));
    log_begin(&line, LOG_LEVEL_INFO, "drill");
    log_str(&line, "device", name);
    log_str(&line, "is", drill == ENGINE_DRILL_NONE ? "over" : buf_cstr(&what));
    log_end(&line);
    buf_add_str(&out, "{\"device\":");
    json_add_string(&out, name, strlen(name));
    buf_add_format(&out, ",\"drill\":%s}", buf_cstr(&what));
    buf_deinit(&what);
    api_answer_json(rq, 200, &out);
}

void admin_lose_device(void *ctx, http_request *rq) {
    uint32_t idx;
    if (find_device(ctx, rq, &idx)) begin_drill(ctx, rq, idx, ENGINE_DRILL_LOSE);
}

/* {"times": 3} or {"times": "hang"}. */
void admin_slow_device(void *ctx, http_request *rq) {
    app *a = ctx;
    json_t *body;
    uint32_t idx, drill = 0;
    if (!find_device(a, rq, &idx) || !admin_read_body(a, rq, &body)) return;
    const json_t *v = json_object_get(body, "times");
    double times = json_number_value(v);
    if (json_is_string(v) && strcmp(json_string_value(v), "hang") == 0)
        drill = ENGINE_DRILL_HANG;
    else if (json_is_number(v) && times >= 1 && times <= TIMES_MAX)
        drill = (uint32_t)(times * ENGINE_DRILL_NONE + 0.5);
    json_decref(body);
    if (drill != 0)
        begin_drill(a, rq, idx, drill);
    else
        admin_refuse(rq, 400, "invalid_value", "times",
                     "times: expected a number from 1 (as usual) to %d, or \"hang\"", TIMES_MAX);
}
