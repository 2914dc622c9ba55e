/* admin.c - see admin.h. */
#include "admin.h"

#include <string.h>

#include "api.h"
#include "app_tell.h"
#include "inferd/clock.h"
#include "inferd/json_whole.h"
#include "json_out.h"
#include "log.h"
#include "viewers.h"

struct admin {
    app *app;
    changer *changer;
    list_node waits;
    viewers *viewers; // owned
};

admin *admin_create(app *a, changer *ch) {
    admin *ad = calloc(1, sizeof *ad);
    if (ad == NULL) return NULL;
    ad->app = a;
    ad->changer = ch;
    list_node_init(&ad->waits);
    ad->viewers = viewers_create(a, ch);
    if (ad->viewers != NULL) return ad;
    free(ad);
    return NULL;
}

void admin_destroy(admin *ad) {
    if (ad == NULL) return;
    INFERD_CHECK(list_empty(&ad->waits));
    viewers_destroy(ad->viewers);
    free(ad);
}

changer *admin_changer(const admin *ad) {
    return ad->changer;
}

/* ---- answers ---- */

enum { RETRY_SOON_S = 1 }; // of 503: memory is short, or a device is starting

void admin_refuse(http_request *rq, int status, const char *code, const char *param,
                  const char *format, ...) {
    char text[INFERD_ERR_TEXT_BYTES];
    const char *type = status == 504   ? "timeout_error"
                       : status == 503 ? "unavailable_error"
                       : status == 409 ? "conflict_error"
                                       : "invalid_request_error";
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    http_answer_error(rq, status, type, code, param, text, status == 503 ? RETRY_SOON_S : 0);
}

void admin_refuse_problems(http_request *rq, const char *problems) {
    buf out = {0};
    buf_add_str(&out, "{\"error\":{\"message\":");
    json_add_string(&out, problems, strcspn(problems, "\n"));
    buf_add_str(&out, ",\"type\":\"conflict_error\",\"param\":null,\"code\":\"config_refused\","
                      "\"problems\":");
    admin_add_lines(&out, problems, '\n');
    buf_add_str(&out, "}}");
    api_answer_json(rq, 409, &out);
}

void admin_busy(http_request *rq, const inferd_err *err) {
    if (err->status == INFERD_EBUSY)
        admin_refuse(rq, 409, "change_under_way", NULL, "%s", err->text);
    else if (err->status == INFERD_EUNSUPPORTED)
        admin_refuse(rq, 409, "no_config_file", NULL, "%s", err->text);
    else
        admin_refuse(rq, 503, "server_overloaded", NULL, "%s", err->text);
}

bool admin_read_body(app *a, http_request *rq, json_t **out) {
    inferd_err err = {0};
    *out = NULL;
    if (rq->body.n == 0) return true;
    if (rq->body.n > ADMIN_BODY_BYTES_MAX) {
        admin_refuse(rq, 413, "request_too_large", NULL, "the body has %zu bytes, the limit is %d",
                     rq->body.n, ADMIN_BODY_BYTES_MAX);
        return false;
    }
    if (json_in_parse(rq->body, &a->config->c->limits.json, out, &err) != INFERD_OK) {
        admin_refuse(rq, 400, NULL, NULL, "the body is not JSON: %s", err.text);
        return false;
    }
    if (json_is_object(*out)) return true;
    json_decref(*out);
    *out = NULL;
    admin_refuse(rq, 400, NULL, NULL, "the body must be a JSON object");
    return false;
}

/* The configuration index of the model with this name or alias; false: the request was refused. */
static bool find_model(app *a, http_request *rq, const char *name, uint32_t *idx) {
    char quoted[API_QUOTE_BYTES];
    int found = config_find_model(a->config->c, name, strlen(name));
    if (found < 0) {
        admin_refuse(rq, 404, "model_not_found", "model", "the model \"%s\" does not exist",
                     api_quote(quoted, name, strlen(name)));
        return false;
    }
    *idx = (uint32_t)found;
    return true;
}

static bool find_tenant(app *a, http_request *rq, uint32_t *idx) {
    char quoted[API_QUOTE_BYTES];
    const inferd_config *c = a->config->c;
    for (*idx = 0; *idx < c->n_tenants; ++*idx)
        if (strcmp(c->tenants[*idx].name, rq->tail) == 0) return true;
    admin_refuse(rq, 404, "tenant_not_found", "tenant", "the tenant \"%s\" does not exist",
                 api_quote(quoted, rq->tail, strlen(rq->tail)));
    return false;
}

/* ---- state ---- */

void admin_get_state(void *ctx, http_request *rq) {
    app *a = ctx;
    changer_about about;
    buf out = {0};
    changer_get_about(a->admin->changer, &about);
    admin_add_state(&out, a, &about);
    api_answer_json(rq, 200, &out);
}

void admin_get_model(void *ctx, http_request *rq) {
    app *a = ctx;
    uint32_t idx;
    buf out = {0};
    if (!find_model(a, rq, rq->tail, &idx)) return;
    admin_add_model(&out, a, idx);
    api_answer_json(rq, 200, &out);
}

void admin_get_tenant(void *ctx, http_request *rq) {
    app *a = ctx;
    uint32_t idx;
    buf out = {0};
    if (!find_tenant(a, rq, &idx)) return;
    admin_add_tenant(&out, a, idx);
    api_answer_json(rq, 200, &out);
}

void admin_watch(void *ctx, http_request *rq) {
    app *a = ctx;
    viewers_add(a->admin->viewers, rq);
}

void admin_tick(admin *ad, uint64_t now_us) {
    if (ad != NULL) viewers_tick(ad->viewers, now_us);
}

void admin_end_watches(admin *ad) {
    if (ad != NULL) viewers_end(ad->viewers);
}

/* ---- commands ---- */

typedef enum goal {
    GOAL_NONE,
    GOAL_SERVING, // HOT and not held: while held, another name may keep its weights HOT
    GOAL_HOT,
    GOAL_WARM, // its weights are in host memory or on the device
    GOAL_AWAY, // not on the device
    GOAL_COLD,
    GOAL_DRAINED // it has no work and is not on the device
} goal;

/* An exchange that waits for the state of a model. */
typedef struct wait {
    list_node link; // in admin.waits
    http_request *rq;
    char *name;     // owned
    const model *m; // in `slot`, to detect a replacement
    uint32_t slot;
    goal goal;
    uint64_t deadline_us;
    uint64_t n_failed, devices; // at the beginning; devices: with a replica, as bits
    uint64_t n_left[FLEET_DEVICES_MAX], n_colds[FLEET_DEVICES_MAX]; // per device, at the beginning
    uint32_t timeout_ms;
} wait;

static bool is_away(model_state s) {
    return s != MODEL_HOT && s != MODEL_DRAINING && s != MODEL_LOADING;
}

/* It is away (or cold), or was since the command: another request may have brought it back. */
static bool has_left_one(const wait *w, uint32_t d, const engine_model_info *i) {
    if (w->goal == GOAL_COLD)
        return i->state == MODEL_COLD || i->state == MODEL_FAILED || i->n_colds != w->n_colds[d];
    return is_away(i->state) || i->n_left != w->n_left[d];
}

/* All replicas that got the command have left. */
static bool has_left(const fleet *f, const wait *w) {
    uint64_t left = w->devices & fleet_model_devices(f, w->slot);
    for (; left != 0; left &= left - 1) {
        engine_model_info i;
        uint32_t d = (uint32_t)__builtin_ctzll(left);
        engine_model_get(fleet_engine(f, d), w->slot, &i);
        if (!has_left_one(w, d, &i)) return false;
    }
    return true;
}

/* On each device with a replica: no work, and off it unless its weights stay for another name. */
static bool is_drained(const fleet *f, uint32_t slot) {
    for (uint64_t left = fleet_model_devices(f, slot); left != 0; left &= left - 1) {
        engine_model_info i;
        uint32_t d = (uint32_t)__builtin_ctzll(left);
        engine_model_get(fleet_engine(f, d), slot, &i);
        if (!i.held || i.n_running + i.n_waiting > 0 || (!is_away(i.state) && !i.serves_others))
            return false;
    }
    return true;
}

/* What `now` says is never older than the decision: it is answered with it. */
static bool is_reached(const fleet *f, const wait *w, engine_model_info *now) {
    bool left = (w->goal == GOAL_AWAY || w->goal == GOAL_COLD) && has_left(f, w);
    bool drained = w->goal == GOAL_DRAINED && is_drained(f, w->slot);
    fleet_model_get(f, w->slot, now);
    switch (w->goal) {
    case GOAL_NONE:
        break;
    case GOAL_SERVING:
        return now->state == MODEL_HOT && !now->held;
    case GOAL_HOT:
        return now->state == MODEL_HOT;
    case GOAL_WARM:
        return now->state == MODEL_WARM || now->state == MODEL_LOADING || now->state == MODEL_HOT;
    case GOAL_AWAY:
    case GOAL_COLD:
        return left;
    case GOAL_DRAINED:
        return drained;
    }
    return true;
}

/* It failed since the command, or failed for good; the command retries an earlier failure. */
static bool is_hopeless(goal g, const engine_model_info *i, uint64_t n_failed) {
    return (g == GOAL_SERVING || g == GOAL_HOT || g == GOAL_WARM) && i->state == MODEL_FAILED &&
           (i->n_failed > n_failed || i->retry_after_ms == 0);
}

static void answer_state(http_request *rq, int status, const char *name, model_state state) {
    buf out = {0};
    buf_add_str(&out, "{\"model\":");
    json_add_string(&out, name, strlen(name));
    buf_add_format(&out, ",\"state\":\"%s\"}", model_state_name(state));
    api_answer_json(rq, status, &out);
}

static void free_wait(wait *w) {
    list_remove(&w->link);
    free(w->name);
    free(w);
}

static void on_waiter_gone(http_request *rq) {
    free_wait(rq->user);
}

static void fail_wait(wait *w, const engine_model_info *i) {
    unsigned retry_s = (i->retry_after_ms + 999) / 1000;
    http_answer_error(w->rq, 503, "unavailable_error", "model_unavailable", "model", i->why.text,
                      retry_s);
    free_wait(w);
}

/* Answers and frees the wait if it is over. */
static void look_at(const app *a, wait *w, uint64_t now_us) {
    engine_model_info info;
    const registry_slot *slot = app_model(a, w->slot);
    bool reached = is_reached(a->fleet, w, &info);
    if (slot->m != w->m || slot->leaving) {
        admin_refuse(w->rq, 409, "model_gone", "model",
                     "the configuration was changed meanwhile: the model was removed or replaced");
        free_wait(w);
    } else if (reached) {
        answer_state(w->rq, 200, w->name, info.state);
        free_wait(w);
    } else if (is_hopeless(w->goal, &info, w->n_failed)) {
        fail_wait(w, &info);
    } else if (now_us >= w->deadline_us) {
        admin_refuse(w->rq, 504, "deadline_exceeded", "timeout_ms",
                     "the model is %s after %u ms; the command goes on",
                     model_state_name(info.state), w->timeout_ms);
        free_wait(w);
    }
}

void admin_look(admin *ad) {
    if (ad == NULL || list_empty(&ad->waits)) return;
    uint64_t now_us = clock_now_us();
    LIST_EACH_SAFE(node, next, &ad->waits) look_at(ad->app, LIST_ENTRY(node, wait, link), now_us);
}

typedef struct command {
    const char *name; // last segment of the route
    engine_command order;
    goal goal;
    bool pins; // changes the pin by a PATCH instead
} command;

static const command commands[] = {
    {"load", ENGINE_LOAD, GOAL_SERVING, false},
    {"undrain", ENGINE_LOAD, GOAL_SERVING, false},
    {"prefetch", ENGINE_PREFETCH, GOAL_WARM, false},
    {"unload", ENGINE_UNLOAD, GOAL_AWAY, false},
    {"drop", ENGINE_DROP, GOAL_COLD, false},
    {"drain", ENGINE_DRAIN, GOAL_DRAINED, false},
    {"pin", ENGINE_LOAD, GOAL_HOT, true},
    {"unpin", ENGINE_LOAD, GOAL_NONE, true},
};

typedef struct command_body {
    bool wait;
    uint32_t timeout_ms;
    model_pin level; // of pin
} command_body;

static bool read_command(app *a, http_request *rq, const command *c, command_body *out) {
    json_t *body, *v;
    const char *key;
    *out = (command_body){.timeout_ms = ADMIN_WAIT_MS,
                          .level = strcmp(c->name, "pin") == 0 ? PIN_HOT : PIN_NONE};
    if (!admin_read_body(a, rq, &body)) return false;
    const char *bad = NULL, *expected = "";
    json_object_foreach(body, key, v) {
        const char *text = json_string_value(v);
        if (strcmp(key, "wait") == 0) {
            out->wait = json_is_true(v);
            if (!json_is_boolean(v)) bad = "wait", expected = "true or false";
        } else if (strcmp(key, "timeout_ms") == 0) {
            bool fine = json_is_integer(v) && json_integer_value(v) >= 0 &&
                        json_integer_value(v) <= ADMIN_WAIT_MAX_MS;
            if (fine) out->timeout_ms = (uint32_t)json_integer_value(v);
            if (!fine) bad = "timeout_ms", expected = "a whole number from 0 to 86400000";
        } else if (strcmp(key, "level") == 0 && out->level != PIN_NONE) {
            bool warm = text != NULL && strcmp(text, "warm") == 0;
            if (warm)
                out->level = PIN_WARM;
            else if (text == NULL || strcmp(text, "hot") != 0)
                bad = "level", expected = "\"warm\" or \"hot\"";
        } else {
            bad = "body", expected = out->level != PIN_NONE ? "only wait, timeout_ms and level"
                                                            : "only wait and timeout_ms";
        }
    }
    json_decref(body);
    if (bad == NULL) return true;
    admin_refuse(rq, 400, "invalid_value", bad, "%s: expected %s", bad, expected);
    return false;
}

/* Lasts until the configuration's pin changes, or until a restart. */
static bool set_pin(app *a, uint32_t slot, model_pin pin) {
    registry_slot *s = &a->models.slots[slot];
    model_policy policy = s->policy;
    policy.pin = pin;
    if (!fleet_model_set_policy(a->fleet, slot, &policy)) return false;
    s->policy = policy;
    return true;
}

static void log_command(app *a, const http_request *rq, const char *what, const char *name) {
    log_line line;
    log_begin(&line, LOG_LEVEL_INFO, "admin");
    log_str(&line, "id", rq->id);
    log_str(&line, "command", what);
    log_str(&line, "model", name);
    log_end(&line);
    journal_add(a->journal, JOURNAL_ADMIN, 1, app_unix_ms(), "an administrator asked to %s %s",
                what, name);
}

/* Created before the command: else a model that leaves at once is missed.  NULL: no memory. */
static wait *create_wait(const app *a, const char *name, uint32_t slot) {
    engine_model_info info;
    wait *w = calloc(1, sizeof *w);
    if (w != NULL) w->name = strdup(name);
    if (w == NULL || w->name == NULL) {
        free(w);
        return NULL;
    }
    list_node_init(&w->link);
    w->m = app_model(a, slot)->m;
    w->slot = slot;
    fleet_model_get(a->fleet, slot, &info);
    w->n_failed = info.n_failed;
    w->devices = fleet_model_devices(a->fleet, slot);
    for (uint32_t d = 0; d < fleet_n_devices(a->fleet); d++) {
        engine_model_get(fleet_engine(a->fleet, d), slot, &info);
        w->n_left[d] = info.n_left;
        w->n_colds[d] = info.n_colds;
    }
    return w;
}

static void begin_wait(app *a, http_request *rq, wait *w, goal g, uint32_t timeout_ms) {
    w->rq = rq;
    w->goal = g;
    w->timeout_ms = timeout_ms;
    w->deadline_us = clock_now_us() + (uint64_t)timeout_ms * 1000;
    rq->user = w;
    rq->on_gone = on_waiter_gone;
    list_push_back(&a->admin->waits, &w->link);
    look_at(a, w, clock_now_us());
}

/* Does host memory have room for its weights on a device that has the model?  Weights that are on a
 * device need no room, unless they are to stay in host memory.  False: refused. */
static bool check_host_room(const app *a, http_request *rq, uint32_t slot, bool stays) {
    engine_model_info info = {0}, i;
    engine_stats stats = {0}, s;
    uint32_t device = UINT32_MAX; // the device without room
    for (uint32_t d = 0; d < fleet_n_devices(a->fleet); d++) {
        if ((fleet_model_devices(a->fleet, slot) >> d & 1) == 0) continue;
        engine_model_get(fleet_engine(a->fleet, d), slot, &i);
        engine_get_stats(fleet_engine(a->fleet, d), &s);
        bool there = i.state == MODEL_HOT || i.state == MODEL_LOADING;
        if (s.pages_device == 0 || i.host_pages <= s.pages_host || (there && !stays))
            return true; // or the room is not known
        device = d, info = i, stats = s;
    }
    if (device == UINT32_MAX) return true;
    admin_refuse(rq, 409, "host_arena_too_small", "model",
                 "its weights need %s of host memory, but host_arena has only %s on %s",
                 feasible_mib(info.host_pages * stats.page_bytes).text,
                 feasible_mib(stats.pages_host * stats.page_bytes).text,
                 fleet_device_name(a->fleet, device));
    return false;
}

void admin_command(void *ctx, http_request *rq) {
    app *a = ctx;
    uint32_t idx;
    command_body body;
    const char *name = strrchr(rq->route->path, '/') + 1;
    const command *c = commands;
    while (strcmp(c->name, name) != 0) c++; // every route of this handler is in the table
    if (!find_model(a, rq, rq->tail, &idx) || !read_command(a, rq, c, &body)) return;
    uint32_t slot = (uint32_t)a->config->slots[idx];
    const char *model_name = a->config->c->models[idx].name;
    goal g = c->pins && body.level == PIN_WARM ? GOAL_WARM : c->goal;
    if (g == GOAL_WARM && !check_host_room(a, rq, slot, c->pins)) return;
    bool waits = body.wait && g != GOAL_NONE;
    wait *w = waits ? create_wait(a, model_name, slot) : NULL;
    log_command(a, rq, c->name, model_name);
    if ((waits && w == NULL) || (c->pins && !set_pin(a, slot, body.level))) {
        if (w != NULL) free_wait(w);
        admin_refuse(rq, 503, "server_overloaded", NULL, "no memory for the command");
        return;
    }
    if (!c->pins) fleet_model_do(a->fleet, slot, c->order);
    if (waits)
        begin_wait(a, rq, w, g, body.timeout_ms);
    else
        answer_state(rq, 202, model_name, fleet_model_state(a->fleet, slot));
}

/* ---- compatible with llama-swap ---- */

static void add_running(buf *out, bool *first, const char *name, const char *state,
                        uint64_t keep_us) {
    buf_add_str(out, *first ? "{\"model\":" : ",{\"model\":");
    *first = false;
    json_add_string(out, name, strlen(name));
    buf_add_format(out, ",\"state\":\"%s\",\"ttl\":%llu}", state,
                   (unsigned long long)(keep_us == POLICY_NEVER ? 0 : keep_us / 1000000));
}

static const char *swap_state(model_state s) {
    if (s == MODEL_HOT) return "ready";
    if (s == MODEL_STAGING || s == MODEL_LOADING) return "starting";
    return s == MODEL_DRAINING ? "stopping" : NULL;
}

void admin_running(void *ctx, http_request *rq) {
    app *a = ctx;
    bool first = true;
    buf out = {0};
    buf_add_str(&out, "{\"running\":[");
    for (uint32_t i = 0; i < a->config->c->n_models; i++) {
        const config_model *m = &a->config->c->models[i];
        uint32_t slot = (uint32_t)a->config->slots[i];
        const char *state = swap_state(fleet_model_state(a->fleet, slot));
        if (state != NULL)
            add_running(&out, &first, m->name, state, app_model(a, slot)->policy.keep_alive_us);
    }
    /* Models that the configuration no longer names and that finish their work. */
    for (uint32_t i = 0; i < REGISTRY_SLOTS; i++) {
        const registry_slot *s = app_model(a, i);
        if (s->m == NULL || !s->leaving || swap_state(fleet_slot_state(a->fleet, i)) == NULL ||
            config_find_model(a->config->c, s->name, strlen(s->name)) >= 0)
            continue; // the name is still configured (its file was replaced): listed above
        add_running(&out, &first, s->name, swap_state(MODEL_DRAINING), s->policy.keep_alive_us);
    }
    buf_add_str(&out, "]}");
    api_answer_json(rq, 200, &out);
}

/* Unloads models without open generations; a model with work stays. */
void admin_unload_all(void *ctx, http_request *rq) {
    app *a = ctx;
    buf out = {0};
    /* No key protects the socket: a link or a picture of a web page must not do anything there. */
    if (http_is_trusted(rq) && rq->method == HTTP_GET) {
        admin_refuse(rq, 405, "method_not_allowed", NULL,
                     "on the socket of administrators only POST /unload unloads");
        return;
    }
    for (uint32_t i = 0; rq->method != HTTP_HEAD && i < a->config->c->n_models; i++) {
        uint32_t slot = (uint32_t)a->config->slots[i];
        if (fleet_model_state(a->fleet, slot) != MODEL_HOT || app_model(a, slot)->n_generations > 0)
            continue;
        log_command(a, rq, "unload", a->config->c->models[i].name);
        fleet_model_do(a->fleet, slot, ENGINE_UNLOAD);
    }
    if (strcmp(rq->route->path, "/unload") == 0) {
        buf_add_str(&out, "OK");
        http_answer(rq, 200, "text/plain; charset=utf-8", &out, NULL);
        return;
    }
    buf_add_str(&out, "{\"msg\":\"ok\"}");
    api_answer_json(rq, 200, &out);
}

void admin_unload_one(void *ctx, http_request *rq) {
    app *a = ctx;
    uint32_t idx;
    buf out = {0};
    if (!find_model(a, rq, rq->tail, &idx)) return;
    log_command(a, rq, "unload", a->config->c->models[idx].name);
    fleet_model_do(a->fleet, (uint32_t)a->config->slots[idx], ENGINE_UNLOAD);
    buf_add_str(&out, "{\"msg\":\"ok\"}");
    api_answer_json(rq, 200, &out);
}

/* ---- changes of the configuration ---- */

/* An exchange that waits for a change. */
typedef struct asking {
    app *app;
    http_request *rq; // NULL: its client left
    edit_section section;
    char *name; // owned; NULL: the whole configuration
    bool persist;
} asking;

static void on_asker_gone(http_request *rq) {
    asking *k = rq->user;
    k->rq = NULL;
}

static void free_asking(asking *k) {
    free(k->name);
    free(k);
}

static void add_element(buf *out, const asking *k) {
    const inferd_config *c = k->app->config->c;
    if (k->section == EDIT_MODELS) {
        int idx = config_find_model(c, k->name, strlen(k->name));
        if (idx >= 0) {
            buf_add_str(out, ",\"model\":");
            admin_add_model(out, k->app, (uint32_t)idx);
        }
        return;
    }
    for (uint32_t i = 0; i < c->n_tenants; i++) {
        if (strcmp(c->tenants[i].name, k->name) != 0) continue;
        buf_add_str(out, ",\"tenant\":");
        admin_add_tenant(out, k->app, i);
    }
}

static void on_changed(void *ctx, const change_result *r) {
    asking *k = ctx;
    buf out = {0};
    if (k->rq != NULL && !r->applied) {
        admin_refuse_problems(k->rq, r->problems);
    } else if (k->rq != NULL) {
        buf_add_format(&out, "{\"applied\":true,\"persisted\":%s,\"needs_restart\":",
                       k->persist ? "true" : "false");
        admin_add_lines(&out, r->restart, ',');
        if (r->warning[0] != 0) {
            buf_add_str(&out, ",\"warning\":");
            json_add_string(&out, r->warning, strlen(r->warning));
        }
        if (k->name != NULL) add_element(&out, k);
        buf_add_char(&out, '}');
        api_answer_json(k->rq, 200, &out);
    }
    free_asking(k);
}

static void begin_change(app *a, http_request *rq, change_request *change) {
    inferd_err err = {0};
    asking *k = calloc(1, sizeof *k);
    bool fine = k != NULL && (change->name == NULL || (k->name = strdup(change->name)) != NULL);
    if (!fine) inferd_fail(&err, INFERD_ENOMEM, "no memory for the change");
    if (fine) {
        k->app = a;
        k->rq = rq;
        k->section = change->section;
        k->persist = change->persist;
        change->done = on_changed;
        change->ctx = k;
        fine = changer_begin(a->admin->changer, change, &err) == INFERD_OK;
    }
    if (!fine) {
        if (k != NULL) free_asking(k);
        admin_busy(rq, &err);
        return;
    }
    rq->user = k;
    rq->on_gone = on_asker_gone;
}

/* `?persist`, =1, =true; =0, =false.  False: refused. */
static bool read_persist(http_request *rq, bool *out) {
    const char *text = http_query(rq, "persist");
    *out = text != NULL && (*text == 0 || strcmp(text, "1") == 0 || strcmp(text, "true") == 0);
    if (*out || text == NULL || strcmp(text, "0") == 0 || strcmp(text, "false") == 0) return true;
    admin_refuse(rq, 400, "invalid_value", "persist", "persist: expected true or false");
    return false;
}

/* `persist` is removed from the body. */
static bool read_patch(app *a, http_request *rq, edit_section section, char **text, bool *persist) {
    json_t *body, *v;
    inferd_err err = {0};
    if (!read_persist(rq, persist) || !admin_read_body(a, rq, &body)) return false;
    if ((v = json_object_get(body, "persist")) != NULL) {
        if (!json_is_boolean(v)) {
            json_decref(body);
            admin_refuse(rq, 400, "invalid_value", "persist", "persist: expected true or false");
            return false;
        }
        *persist = *persist || json_is_true(v);
        json_object_del(body, "persist");
    }
    if (edit_check_patch(section, body, &err) != INFERD_OK) {
        json_decref(body);
        admin_refuse(rq, 400, "invalid_value", NULL, "%s", err.text);
        return false;
    }
    *text = json_dumps_whole(body, JSON_COMPACT);
    json_decref(body);
    if (*text == NULL) admin_refuse(rq, 503, "server_overloaded", NULL, "no memory");
    return *text != NULL;
}

static void patch_element(app *a, http_request *rq, edit_section section, const char *name) {
    char *text = NULL;
    bool persist;
    if (!read_patch(a, rq, section, &text, &persist)) return;
    change_request change = {.kind = CHANGE_PATCH,
                             .section = section,
                             .name = name,
                             .text = {text, strlen(text)},
                             .persist = persist};
    begin_change(a, rq, &change);
    free(text);
}

void admin_patch_model(void *ctx, http_request *rq) {
    app *a = ctx;
    uint32_t idx;
    if (find_model(a, rq, rq->tail, &idx))
        patch_element(a, rq, EDIT_MODELS, a->config->c->models[idx].name);
}

void admin_patch_tenant(void *ctx, http_request *rq) {
    app *a = ctx;
    uint32_t idx;
    if (find_tenant(a, rq, &idx))
        patch_element(a, rq, EDIT_TENANTS, a->config->c->tenants[idx].name);
}

void admin_get_config(void *ctx, http_request *rq) {
    app *a = ctx;
    buf out = {0};
    bytes text = changer_text(a->admin->changer);
    inferd_err err = {.status = INFERD_EUNSUPPORTED,
                      .text = "there is no configuration file: the daemon was started with "
                              "--model"};
    if (text.n == 0) {
        admin_busy(rq, &err);
        return;
    }
    buf_add(&out, text.p, text.n);
    api_answer_json(rq, 200, &out);
}

void admin_put_config(void *ctx, http_request *rq) {
    change_request change = {.kind = CHANGE_WHOLE, .text = rq->body, .persist = true};
    if (rq->body.n == 0) {
        admin_refuse(rq, 400, NULL, NULL, "the body must be a complete configuration");
        return;
    }
    begin_change(ctx, rq, &change);
    explicit_bzero((void *)(uintptr_t)rq->body.p, rq->body.n); // it holds keys, and was copied
}
