/* cli_serve.c - `inferd serve`: the daemon from start to exit.
 *
 *   options, configuration, models' headers   any problem: exit 2
 *   devices                                   absent: exit 3; not ready for 60 s: exit 75
 *   engines (each opens its device, and loads in the background), listener
 *   loop: engine wakes, ticks, signals
 *       SIGTERM, SIGINT   drain: finish running and waiting work, at most drain_timeout_s; new work
 *                         gets shutting_down; a second signal: end at once
 *       SIGHUP            reopen the log, reload the configuration; an invalid one changes nothing
 *   stop: cut open work, close everything, exit 0
 *   the last device is lost, or a device hangs: answer all clients, exit 70
 *   this loop or an engine's loop hangs: the watchdog's thread reports which, exit 71
 *
 * The front thread is the one that runs this; the loop belongs to libuv. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <uv.h>

#include "admin.h"
#include "app.h"
#include "app_tell.h"
#include "change.h"
#include "cli.h"
#include "config.h"
#include "devices.h"
#include "file_look.h"
#include "generation.h"
#include "host_arena.h"
#include "http.h"
#include "inferd/clock.h"
#include "json_in.h"
#include "kernels/machine.h"
#include "log.h"
#include "model_plan.h"
#include "response_store.h"
#include "routes.h"
#include "scheduler/kv_disk.h"
#include "scheduler/pulse.h"
#include "sd_listen.h"
#include "sd_notify.h"
#include "serve_options.h"
#include "serve_sockets.h"
#include "tracer.h"
#include "watchdog.h"

enum {
    TICK_MS = 100,
    DEVICE_AGAIN_MS = 1000, // between two tries to find a device while its services start
    CUT_GRACE_MS = 2000,
    LAST_CALL_MS = 500,    // after the last work, for requests that arrive late
    END_GRACE_S = 3,       // for closing; a driver that does not answer must not delay the exit
    LOOK_EVERY_MS = 10000, // between two readings of the devices' health
    DISK_TOLD_EVERY_US = 60000000 // between two log lines about the disk
};

typedef struct server_life {
    serve_options options;
    sd_listen_fds passed;      // each until http_open takes it
    inferd_config *config;     // until app_create takes it
    registry_plan plan;        // of the start
    fleet *fleet;              // owned
    app *app;                  // owned
    http_server *http;         // owned
    http_server *http_admin;   // owned; NULL: no socket file of its own
    changer *changer;          // owned
    file_look *files;          // owned
    kv_disk *disk;             // owned; NULL: no disk cache of keys and values
    response_store *responses; // owned; NULL: none are kept
    bool disk_off;             // as last logged
    uint64_t disk_problems;    // n_problems, as last logged
    uint64_t disk_told_us;     // time of that log line; 0: none
    admin *admin;              // owned
    uv_loop_t loop;
    uv_async_t woken; // by the engines
    uv_timer_t tick;
    uv_poll_t signals;
    int signals_fd;      // SIGTERM, SIGINT, SIGHUP: one byte each; open until the process ends
    uv_prepare_t sleeps; // before the loop waits
    uv_check_t wakes;    // after the loop waited
    pulse pulse;         // of this loop
    watchdog *watchdog;  // owned
    tracer *tracer;      // owned; NULL: no traces
    uint64_t extend_due_us, extended_at_done; // of sd_notify_more_time
    uint64_t tick_due_us, drain_from_us, drain_until_us;
    uint64_t last_call_us; // answers to requests that arrive until then are sent; 0: not known yet
    cli_progress bar;
    bool loop_open, announced, draining, cut, failed;
    bool reloading;                       // the service manager was notified of it
    bool closing;                         // the loop runs only to close handles
    uint8_t seen_states[REGISTRY_SLOTS];  // as last logged
    uint64_t seen_stages[REGISTRY_SLOTS]; // logged stages, to log how the last one was read
    bool told_saturated[REGISTRY_SLOTS];  // logged that its keys and values were too large

    devices_found found; // for the health readings; strings are owned once the engines have started
    uv_work_t look;      // reads the devices' health on a thread of the loop's pool
    backend_device_about seen[FLEET_DEVICES_MAX];
    inferd_status saw[FLEET_DEVICES_MAX]; // the results
    inferd_err saw_err[FLEET_DEVICES_MAX];
    bool look_at[FLEET_DEVICES_MAX]; // devices to read: those that are not lost
    bool told_lost[FLEET_DEVICES_MAX];
    be_part_state told_parts[FLEET_DEVICES_MAX][BE_DEVICE_PARTS_MAX]; // as last logged
    bool looking, found_owned;
    bool look_inside; // a device was lost: check the contexts of the others too
    uint64_t look_due_us;
    bool lost, hangs; // all devices are lost; one hangs: its thread never returns
    cli_hang hang;
} server_life;

/* -- configuration -- */

static bool open_models(server_life *s, buf *problems) {
    registry none = {0};
    if (!registry_plan_init(&s->plan, &none, s->config, NULL, 0)) {
        buf_add_str(problems, "inferd: no memory for the list of models\n");
        return false;
    }
    return registry_plan_open(&s->plan, s->options.allow_dummy, problems);
}

/* -- reloading -- */

static void reload(server_life *s) {
    inferd_err err = {0};
    if (s->announced) {
        s->reloading = true;
        sd_notify_reloading();
    }
    if (log_reopen(&err) != INFERD_OK)
        log_text(LOG_LEVEL_ERROR, "log_reopen_failed", "error", err.text);
    changer_reload(s->changer);
    file_look_soon(s->files);
}

/* Notifies the service manager after a reload, also a refused one: the old configuration serves. */
static void tell_reloaded(server_life *s) {
    changer_about about;
    changer_get_about(s->changer, &about);
    if (!s->reloading || about.busy) return;
    s->reloading = false;
    if (!s->draining) sd_notify_state("READY=1");
}

/* -- the loop -- */

static void lose_device(server_life *s, const char *why); // defined below

static void end_loop(server_life *s) {
    uv_stop(&s->loop);
}

/* Names the devices where it is in that state. */
static void log_devices(log_line *line, const fleet *f, uint32_t slot, model_state state) {
    buf names = {0};
    for (uint32_t d = 0; d < fleet_n_devices(f); d++) {
        if ((fleet_model_devices(f, slot) >> d & 1) == 0 ||
            engine_model_state(fleet_engine(f, d), slot) != state)
            continue;
        if (names.n > 0) buf_add_char(&names, ',');
        buf_add_str(&names, fleet_device_name(f, d));
    }
    if (names.n > 0 && !names.failed) log_str(line, "device", buf_cstr(&names));
    buf_deinit(&names);
}

/* Logs a change of a model's state. */
static void tell_state(server_life *s, uint32_t slot, const engine_model_info *info) {
    log_line line;
    bool failed = info->state == MODEL_FAILED;
    log_begin(&line, failed ? LOG_LEVEL_ERROR : LOG_LEVEL_INFO, "model");
    log_str(&line, "model", app_model(s->app, slot)->name);
    log_str(&line, "state", model_state_name(info->state));
    if (fleet_n_devices(s->fleet) > 1) log_devices(&line, s->fleet, slot, info->state);
    if (info->state == MODEL_HOT) {
        log_u64(&line, "pages", info->pages_weight);
        log_u64(&line, "queue_us", info->last.queue_us);
        log_u64(&line, "stage_us", info->last.stage_us);
        log_u64(&line, "load_us", info->last.load_us);
        if (info->n_loads <= 1 && info->math[0] != 0) log_str(&line, "matrices", info->math);
        if (info->n_loads <= 1 && info->n_unused_tensors > 0)
            log_u64(&line, "unused_tensors", info->n_unused_tensors);
        size_t n_dropped = tok_n_merges_dropped(model_tokenizer(app_model(s->app, slot)->m));
        if (info->n_loads <= 1 && n_dropped > 0) log_u64(&line, "dropped_merges", n_dropped);
    }
    bool staged = info->state == MODEL_HOT || info->state == MODEL_WARM;
    if (staged && info->n_stages != s->seen_stages[slot]) {
        if (info->stage_note[0] != 0) log_str(&line, "weights", info->stage_note);
        s->seen_stages[slot] = info->n_stages;
    }
    if (failed) {
        log_str(&line, "error", info->why.text);
        if (info->retry_after_ms > 0) log_u64(&line, "retry_after_ms", info->retry_after_ms);
    }
    log_end(&line);
}

/* Once for each model: its answers are no longer correct. */
static void tell_saturated(server_life *s, uint32_t slot, const engine_model_info *info) {
    log_line line;
    log_begin(&line, LOG_LEVEL_ERROR, "kv_saturated");
    log_str(&line, "model", app_model(s->app, slot)->name);
    log_u64(&line, "n", info->n_saturated);
    log_str(&line, "hint",
            "keys or values of this model exceed 65504, the largest f16 number, and were stored as "
            "65504: set limits.kv_type to \"int16\", \"bf16\" or \"f32\"");
    log_end(&line);
    s->told_saturated[slot] = true;
}

static void watch_saturated(server_life *s) {
    for (uint32_t i = 0; i < s->app->models.n_used; i++) {
        engine_model_info info;
        if (s->told_saturated[i] || app_model(s->app, i)->m == NULL) continue;
        fleet_model_get(s->fleet, i, &info);
        if (info.n_saturated > 0) tell_saturated(s, i, &info);
    }
}

static void watch_models(server_life *s) {
    for (uint32_t i = 0; i < s->app->models.n_used; i++) {
        if (app_model(s->app, i)->m == NULL) continue;
        if (fleet_model_state(s->fleet, i) == s->seen_states[i]) continue;
        engine_model_info info;
        fleet_model_get(s->fleet, i, &info);
        s->seen_states[i] = (uint8_t)info.state;
        if (info.state == MODEL_NONE) {
            s->seen_stages[i] = 0;
            s->told_saturated[i] = false;
        }
        if (info.state != MODEL_NONE && info.state != MODEL_COLD) tell_state(s, i, &info);
    }
}

/* No model can be served: err has the reason of the first one. */
static bool all_failed(const app *a, inferd_err *err) {
    const app_config *c = a->config;
    if (c->c->n_models == 0) return false; // it waits for a reload that names some
    for (uint32_t i = 0; i < c->c->n_models; i++)
        if (fleet_model_state(a->fleet, (uint32_t)c->slots[i]) != MODEL_FAILED) return false;
    fleet_model_error(a->fleet, (uint32_t)c->slots[0], err);
    return true;
}

/* The computing devices, for people; several with their names, at most a few. */
static void list_devices(const fleet *f, char *text, size_t text_bytes) {
    enum { SHOWN = 4 };
    uint32_t n = fleet_n_devices(f);
    size_t used = 0;
    text[0] = 0;
    for (uint32_t d = 0; d < n && d < SHOWN && used < text_bytes; d++) {
        const char *about = engine_device_name(fleet_engine(f, d));
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%s%s%s", d > 0 ? "; " : "",
                                 n > 1 ? fleet_device_name(f, d) : "", n > 1 ? ": " : "", about);
    }
    if (n > SHOWN && used < text_bytes)
        snprintf(text + used, text_bytes - used, "; and %u more", n - SHOWN);
}

static void log_warnings(const fleet *f) {
    for (uint32_t d = 0; d < fleet_n_devices(f); d++) {
        log_line line;
        const char *warning = engine_device_warning(fleet_engine(f, d));
        if (warning[0] == 0) continue;
        log_begin(&line, LOG_LEVEL_INFO, "device_warning");
        log_str(&line, "device", fleet_device_name(f, d));
        log_str(&line, "warning", warning);
        log_end(&line);
    }
}

static void log_part(const char *device, const be_device_part *part) {
    log_line line;
    bool bad = part->state == BE_PART_DEGRADED;
    log_begin(&line, bad ? LOG_LEVEL_ERROR : LOG_LEVEL_INFO, "device_part");
    log_str(&line, "device", device);
    log_str(&line, "part", part->name);
    log_str(&line, "state", be_part_state_name(part->state));
    log_str(&line, "why", part->why);
    log_end(&line);
}

/* Logs each change of a part of a GPU's backend, and at first all parts that are not on. */
static void tell_parts(server_life *s) {
    for (uint32_t d = 0; d < fleet_n_devices(s->fleet); d++) {
        engine_stats stats;
        engine_get_stats(fleet_engine(s->fleet, d), &stats);
        for (uint32_t i = 0; i < stats.backend.n_parts; i++) {
            const be_device_part *part = &stats.backend.parts[i];
            if (s->told_parts[d][i] == part->state) continue;
            s->told_parts[d][i] = part->state;
            log_part(fleet_device_name(s->fleet, d), part);
        }
    }
}

/* When the models answer: prints the one line that people wait for. */
static void announce(server_life *s) {
    inferd_err err = {0};
    if (s->announced) return;
    bool failed = all_failed(s->app, &err);
    if (!failed && !fleet_is_settled(s->fleet)) return;
    s->announced = true;
    cli_progress_end(&s->bar);
    if (failed) {
        if (err.status == INFERD_ELOST) {
            lose_device(s, err.text);
            return;
        }
        fprintf(stderr, "inferd: %s\n", err.text);
        log_text(LOG_LEVEL_ERROR, "model_failed", "error", err.text);
        s->failed = true;
        end_loop(s);
        return;
    }
    log_warnings(s->fleet);
    tell_parts(s);
    char names[512], devices[512];
    app_list_models(s->app->config, APP_NO_TENANT, names, sizeof names);
    if (s->app->config->c->n_models == 0) snprintf(names, sizeof names, "no model yet");
    list_devices(s->fleet, devices, sizeof devices);
    const char *address = http_address(s->http);
    bool local = strncmp(address, "unix:", 5) == 0;
    if (local)
        printf("inferd serves %s (%s) on %s: curl --unix-socket %s http://localhost/v1/models\n",
               names, devices, address, address + 5);
    else
        printf("inferd serves %s (%s): base_url=\"http://%s/v1\"\n", names, devices, address);
    const char *key = s->options.page_key;
    if (!local && s->app->config->c->admin.page) {
        bool own = config_is_admin_key(s->app->config->c, (bytes){key, strlen(key)});
        printf("page: http://%s/ui%s%s\n", address, own ? "#key=" : "", own ? key : "");
    }
    fflush(stdout);
    if (!s->draining) sd_notify_state("READY=1");
}

enum { EXTEND_AFTER_S = 30 }; // of a start, before more time is asked for

/* TimeoutStartSec is for a start that gets nowhere, not for one that reads weights. */
static void extend_start(server_life *s, uint64_t done, uint64_t now_us) {
    enum { EVERY_S = 10, MORE_S = 60, US_PER_S = 1000000 };
    if (done == s->extended_at_done || now_us < s->extend_due_us) return;
    sd_notify_more_time(MORE_S);
    s->extended_at_done = done;
    s->extend_due_us = now_us + EVERY_S * US_PER_S;
}

static void begin_drain(server_life *s) {
    enum { EXIT_S = 15 }; // to cut what is left, close devices and write state
    uint32_t seconds = s->app->config->c->limits.drain_timeout_s;
    s->draining = true;
    sd_notify_state("STOPPING=1");
    sd_notify_more_time(seconds + EXIT_S);
    s->drain_from_us = clock_now_us();
    s->drain_until_us = s->drain_from_us + (uint64_t)seconds * 1000000;
    log_line line;
    log_begin(&line, LOG_LEVEL_INFO, "drain");
    log_u64(&line, "running", app_n_running(s->app));
    log_u64(&line, "timeout_s", seconds);
    log_end(&line);
    app_drain(s->app);
}

/* Is every request that arrived before `us` answered, on both listeners? */
static bool is_answered(const server_life *s, uint64_t us) {
    return http_n_due(s->http, us) == 0 &&
           (s->http_admin == NULL || http_n_due(s->http_admin, us) == 0);
}

static bool is_quiet(const server_life *s) {
    return http_is_quiet(s->http) && (s->http_admin == NULL || http_is_quiet(s->http_admin));
}

/* No work runs, every answer was sent, and a request that arrived meanwhile got a 503 instead of a
 * reset.  The last call is set once, when all requests from before the drain are done: clients that
 * never stop asking, or never end a body, do not delay the exit. */
static bool is_drained(server_life *s, uint64_t now_us) {
    if (app_n_running(s->app) != 0) return false;
    admin_end_watches(s->admin);
    if (s->last_call_us == 0) {
        if (!is_answered(s, s->drain_from_us)) return false;
        s->last_call_us = now_us + LAST_CALL_MS * 1000;
    }
    return now_us < s->last_call_us ? is_quiet(s) : is_answered(s, s->last_call_us);
}

/* When drain_timeout_s is over, open requests are cut, with a moment to send their errors. */
static void watch_drain(server_life *s) {
    uint64_t now = clock_now_us();
    if (is_drained(s, now)) {
        end_loop(s);
    } else if (!s->cut && now >= s->drain_until_us) {
        s->cut = true;
        s->drain_until_us = now + CUT_GRACE_MS * 1000;
        app_cut(s->app);
    } else if (s->cut && now >= s->drain_until_us) {
        end_loop(s);
    }
}

/* -- the device -- */

static void look_at_devices(uv_work_t *work) {
    server_life *s = work->data;
    for (uint32_t d = 0; d < s->found.n; d++)
        if (s->look_at[d])
            s->saw[d] = backend_look(&s->found.devices[d].backend, s->look_inside, &s->seen[d],
                                     &s->saw_err[d]);
}

/* A lost device may have no work, so that no step would report it. */
static void looked_at_devices(uv_work_t *work, int status) {
    server_life *s = work->data;
    s->looking = false;
    for (uint32_t d = 0; d < s->found.n && status == 0 && s->app != NULL; d++) {
        if (!s->look_at[d]) continue;
        if (s->saw[d] == INFERD_OK)
            s->app->devices[d] = s->seen[d];
        else if (s->saw[d] == INFERD_ELOST && !engine_is_lost(fleet_engine(s->fleet, d)))
            fleet_lose(s->fleet, d, &s->saw_err[d]); // without memory: at the next reading
    }
    if (status == 0 && s->app != NULL) tell_parts(s);
}

/* Regularly, and never on the loop: a driver may be slow. */
static void look_when_due(server_life *s, uint64_t now) {
    if (s->looking || s->lost || now < s->look_due_us) return;
    s->look_due_us = now + LOOK_EVERY_MS * 1000;
    s->look.data = s;
    for (uint32_t d = 0; d < s->found.n; d++) s->look_at[d] = !s->told_lost[d];
    s->looking = uv_queue_work(&s->loop, &s->look, look_at_devices, looked_at_devices) == 0;
}

/* No request can be served any more.  Waiting clients get an error and a moment to receive it, and
 * the process ends with a status that asks for a restart. */
static void lose_device(server_life *s, const char *why) {
    if (s->lost) return;
    s->lost = true;
    watchdog_forget_engines(s->watchdog);
    log_text(LOG_LEVEL_ERROR, "device_lost", "error", why);
    fprintf(stderr, "inferd: the device is lost: %s\n", why);
    if (!s->draining) begin_drain(s);
    s->drain_until_us = clock_now_us() + CUT_GRACE_MS * 1000;
    if (s->hangs) {
        s->cut = true;
        app_cut(s->app);
    }
}

/* Logs a lost device while others serve on; its models come up elsewhere.  In CUDA an error that
 * ends one context may also end those of other devices: they are checked now, not by a request. */
static void tell_lost(server_life *s) {
    for (uint32_t d = 0; d < fleet_n_devices(s->fleet); d++) {
        log_line line;
        inferd_err why;
        if (s->told_lost[d] || !engine_is_lost(fleet_engine(s->fleet, d))) continue;
        s->told_lost[d] = s->look_inside = true;
        s->look_due_us = 0;
        fleet_lost_why(s->fleet, d, &why);
        journal_add(s->app->journal, JOURNAL_DEVICE, 1, app_unix_ms(), "the device %s is lost: %s",
                    fleet_device_name(s->fleet, d), why.text);
        log_begin(&line, LOG_LEVEL_ERROR, "device_gone");
        log_str(&line, "device", fleet_device_name(s->fleet, d));
        if (why.text[0] != 0) log_str(&line, "error", why.text);
        log_end(&line);
    }
}

/* Counts ticks, not only time: a process that was stopped for a while does not hang. */
static void watch_device(server_life *s) {
    inferd_err err = {0};
    if (s->lost) return;
    tell_lost(s);
    if (fleet_is_lost(s->fleet)) {
        if (s->app->config->c->n_models > 0)
            fleet_model_error(s->fleet, (uint32_t)s->app->config->slots[0], &err);
        lose_device(s, err.text);
        return;
    }
    uint32_t stuck;
    uint64_t stuck_us = fleet_stuck_us(s->fleet, &stuck),
             limit_ms = s->app->config->c->limits.step_hang_ms;
    if (!cli_hangs(&s->hang, stuck, stuck_us, TICK_MS, limit_ms)) return;
    char why[192];
    snprintf(why, sizeof why,
             "%s: no step or piece of a load was finished for %llu ms (twice limits.watchdog_s)",
             fleet_device_name(s->fleet, stuck), (unsigned long long)(stuck_us / 1000));
    s->hangs = s->app->device_hangs = true;
    journal_add(s->app->journal, JOURNAL_DEVICE, 1, app_unix_ms(), "the device %s", why);
    lose_device(s, why);
}

/* Logs a full disk once, and once more at its end; other problems of the disk, such as an invalid
 * file, at intervals, with the counts so far. */
static void watch_disk(server_life *s) {
    kv_disk_stats now;
    log_line line;
    if (s->disk == NULL) return;
    kv_disk_get_stats(s->disk, &now);
    uint64_t now_us = clock_now_us();
    bool turned = now.off != s->disk_off, trouble = now.n_problems != s->disk_problems;
    if (s->disk_told_us != 0 && now_us < s->disk_told_us + DISK_TOLD_EVERY_US) trouble = false;
    if (!turned && !trouble) return;
    s->disk_off = now.off;
    if (now.off || trouble) {
        s->disk_problems = now.n_problems;
        s->disk_told_us = now_us;
    }
    log_begin(&line, now.off || trouble ? LOG_LEVEL_ERROR : LOG_LEVEL_INFO, "kv_disk");
    log_str(&line, "writing", now.off ? "off" : "on");
    if (now.off || trouble) log_str(&line, "error", now.problem);
    log_u64(&line, "failed", now.n_failed);
    log_u64(&line, "bad", now.n_bad);
    log_u64(&line, "missing", now.n_missing);
    log_u64(&line, "unread", now.n_unread);
    log_u64(&line, "bytes", now.n_bytes);
    log_end(&line);
}

static void on_tick(uv_timer_t *timer) {
    server_life *s = timer->data;
    if (s->closing) return;
    pulse_at(PULSE_WORK, "tick");
    const config_limits *limits = &s->app->config->c->limits;
    watchdog_set_limits(s->watchdog, limits->watchdog_s, limits->step_hang_ms);
    watch_disk(s);
    uint64_t now = clock_now_us();
    watch_device(s);
    look_when_due(s, now);
    uint64_t late_us = now > s->tick_due_us ? now - s->tick_due_us : 0;
    s->tick_due_us = now + TICK_MS * 1000;
    app_tick(s->app, late_us);
    if (!s->announced) {
        uint64_t done, total;
        fleet_load_progress(s->fleet, &done, &total);
        cli_progress_draw(&s->bar, done, total);
        if (!s->draining) extend_start(s, done, now);
        announce(s);
    }
    admin_look(s->admin);
    admin_tick(s->admin, now);
    file_look_tick(s->files, now);
    tell_reloaded(s);
    sd_notify_flush();
    watch_saturated(s);
    if (s->draining) watch_drain(s);
}

static void on_woken(uv_async_t *async) {
    server_life *s = async->data;
    if (s->closing) return;
    pulse_at(PULSE_WORK, "app_on_engine_wake");
    app_on_engine_wake(s->app);
    watch_device(s);
    watch_models(s);
    admin_look(s->admin);
    announce(s);
    if (s->draining) watch_drain(s);
}

static void wake_front(void *ctx) {
    server_life *s = ctx;
    uv_async_send(&s->woken);
}

static void on_signal(server_life *s, int sig) {
    pulse_at(PULSE_WORK, "signal");
    if (sig == SIGHUP) {
        if (!s->draining) reload(s);
    } else if (!s->draining) {
        begin_drain(s);
        watch_drain(s);
    } else {
        end_loop(s); // second signal
    }
}

static void on_signals(uv_poll_t *poll, int status, int events) {
    (void)events;
    server_life *s = poll->data;
    unsigned char sig;
    while (status == 0 && !s->closing && read(s->signals_fd, &sig, 1) == 1) on_signal(s, sig);
}

/* Every iteration beats, and a tick comes every TICK_MS. */
static void on_sleep(uv_prepare_t *prepare) {
    (void)prepare;
    pulse_at(PULSE_WORK, "wait for events");
}

static void on_wake(uv_check_t *check) {
    (void)check;
    pulse_at(PULSE_WORK, "events");
}

/* -- start and stop -- */

/* The handler stays until the process has ended: libuv would give a signal of a closed handle back
 * to the system, and a further one would then end a process that is about to exit with 0. */
static int signals_to = -1; // the pipe's end for writing

static void write_signal(int sig) {
    int before = errno;
    unsigned char byte = (unsigned char)sig;
    ssize_t n = write(signals_to, &byte, 1); // fails: 64 KiB of them have not been read
    (void)n;
    errno = before;
}

static inferd_status open_signals(server_life *s, inferd_err *err) {
    static const int wanted[3] = {SIGTERM, SIGINT, SIGHUP};
    struct sigaction action = {.sa_handler = write_signal, .sa_flags = SA_RESTART};
    int ends[2];
    if (pipe2(ends, O_NONBLOCK | O_CLOEXEC) != 0)
        return inferd_fail(err, INFERD_EIO, "signals: %s", strerror(errno));
    s->signals_fd = ends[0];
    signals_to = ends[1];
    for (int i = 0; i < 3; i++) sigaction(wanted[i], &action, NULL);
    int rc = uv_poll_init(&s->loop, &s->signals, s->signals_fd);
    if (rc == 0) rc = uv_poll_start(&s->signals, UV_READABLE, on_signals);
    if (rc != 0) return inferd_fail(err, INFERD_EIO, "signals: %s", uv_strerror(rc));
    s->signals.data = s;
    return INFERD_OK;
}

static inferd_status open_loop(server_life *s, inferd_err *err) {
    int rc = uv_loop_init(&s->loop);
    if (rc != 0) return inferd_fail(err, INFERD_EIO, "event loop: %s", uv_strerror(rc));
    s->loop_open = true;
    if ((rc = uv_async_init(&s->loop, &s->woken, on_woken)) != 0 ||
        (rc = uv_timer_init(&s->loop, &s->tick)) != 0)
        return inferd_fail(err, INFERD_EIO, "event loop: %s", uv_strerror(rc));
    s->woken.data = s;
    s->tick.data = s;
    uv_prepare_init(&s->loop, &s->sleeps);
    uv_check_init(&s->loop, &s->wakes);
    uv_prepare_start(&s->sleeps, on_sleep); // the handle started first runs last
    uv_check_start(&s->wakes, on_wake);
    return open_signals(s, err);
}

/* A reload replaces the configuration: copies the device settings that are still needed. */
static void keep_devices(server_life *s) {
    for (uint32_t i = 0; i < s->found.n; i++) {
        backend_options *d = &s->found.devices[i].backend;
        d->uuid = d->uuid != NULL ? strdup(d->uuid) : NULL;
        d->cores = d->cores != NULL ? strdup(d->cores) : NULL;
    }
    s->found_owned = true;
}

static bool is_cpu(const backend_options *o) {
    return strcmp(o->kind, "cpu") == 0;
}

/* A device's part of the host arena. */
static uint64_t host_bytes_of(const server_life *s, uint32_t device_idx) {
    const inferd_config *c = s->config;
    bool cpu = is_cpu(&s->found.devices[device_idx].backend);
    host_arena_room room = {.machine = machine_memory_bytes(), .n_devices = s->found.n};
    for (uint32_t i = 0; i < s->found.n; i++)
        if (is_cpu(&s->found.devices[i].backend))
            room.pools += s->found.devices[i].backend.memory_bytes;
    for (uint32_t i = 0; i < c->n_models; i++)
        room.models += host_arena_model_bytes(model_about(s->plan.opened[i].m)->file_bytes);
    uint64_t n_bytes = host_arena_of(c, &room, cpu);
    return n_bytes == 0 && !cpu ? BE_NO_HOST_BYTES : n_bytes; // 0 of a GPU is all there is
}

/* The instance: the machine and the address, which stay over a restart. */
static inferd_status open_tracer(server_life *s, inferd_err *err) {
    const config_tracing *c = &s->config->tracing;
    char host[128] = "", instance[512];
    if (c->endpoint == NULL) return INFERD_OK;
    if (gethostname(host, sizeof host - 1) != 0) snprintf(host, sizeof host, "localhost");
    snprintf(instance, sizeof instance, "%s %s", host, s->config->listen);
    tracer_options o = {.endpoint = c->endpoint,
                        .headers_file = c->headers_file,
                        .service_name = c->service_name != NULL ? c->service_name : "inferd",
                        .instance_id = instance,
                        .version = INFERD_VERSION,
                        .queue_spans_max = c->queue_spans_max,
                        .timeout_ms = c->timeout_ms};
    inferd_status st = tracer_open(&o, &s->tracer, err);
    if (st != INFERD_OK) inferd_context(err, "tracing");
    return st;
}

static inferd_status open_admin(server_life *s, inferd_err *err) {
    changer_options co = {.app = s->app,
                          .loop = &s->loop,
                          .path = s->options.config,
                          .allow_dummy = s->options.allow_dummy,
                          .adjust = serve_options_adjust,
                          .ctx = &s->options};
    inferd_status st = changer_create(&co, &s->changer, err);
    if (st != INFERD_OK) return st;
    s->admin = admin_create(s->app, s->changer);
    s->files = file_look_create(s->app, &s->loop, s->options.allow_dummy);
    if (s->admin == NULL || s->files == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for the front thread");
    app_set_admin(s->app, s->admin);
    s->app->allow_faults = s->options.allow_faults;
    if (s->app->allow_faults)
        log_text(LOG_LEVEL_ERROR, "faults_allowed", "warning",
                 "administrators may break devices: --allow-faults is for drills");
    return serve_open_admin(s->app, &s->loop, s->passed.admin, &s->http_admin, err);
}

static inferd_status open_disk(server_life *s, inferd_err *err) {
    const inferd_config *c = s->config;
    char *path = NULL;
    if (c->kv_disk_bytes == 0) return INFERD_OK;
    if (mkdir(c->state_dir, 0700) != 0 && errno != EEXIST) // admission.c does the same, later
        return inferd_fail(err, INFERD_EIO, "state_dir %s: %s", c->state_dir, strerror(errno));
    if (asprintf(&path, "%s/kv", c->state_dir) < 0)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for the path of kv_disk");
    kv_disk_options o = {.path = path, .max_bytes = c->kv_disk_bytes};
    inferd_status st = kv_disk_open(&o, &s->disk, err);
    if (st != INFERD_OK) inferd_context(err, "kv_disk");
    free(path);
    return st;
}

/* Behind app_create, which locks the folder. */
static inferd_status open_responses(server_life *s, inferd_err *err) {
    const inferd_config *c = s->app->config->c;
    char *path = NULL;
    if (c->state_dir == NULL || c->limits.responses_max == 0) return INFERD_OK;
    if (asprintf(&path, "%s/responses", c->state_dir) < 0)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for the path of responses");
    response_store_options o = {.folder = path,
                                .n_max = c->limits.responses_max,
                                .bytes_max = c->limits.responses_bytes_max};
    inferd_status st = response_store_open(&o, &s->responses, err);
    if (st != INFERD_OK) inferd_context(err, "state_dir");
    free(path);
    s->app->responses = s->responses;
    s->app->response_stats = response_store_stats;
    return st;
}

/* The hanging engine uses the model of the slot, so the name stays valid. */
static const char *name_of_slot(void *ctx, uint32_t slot) {
    const server_life *s = ctx;
    const char *name = slot < REGISTRY_SLOTS ? app_model(s->app, slot)->name : NULL;
    return name != NULL ? name : "";
}

static inferd_status open_watchdog(server_life *s, inferd_err *err) {
    watchdog_options o = {.model_name = name_of_slot, .ctx = s};
    inferd_status st = watchdog_create(&o, &s->watchdog, err);
    if (st != INFERD_OK) return st;
    watchdog_add(s->watchdog, &s->pulse, "front", "");
    for (uint32_t d = 0; d < fleet_n_devices(s->fleet); d++)
        watchdog_add(s->watchdog, engine_pulse(fleet_engine(s->fleet, d)), "engine",
                     fleet_device_name(s->fleet, d));
    const config_limits *limits = &s->app->config->c->limits;
    watchdog_set_limits(s->watchdog, limits->watchdog_s, limits->step_hang_ms);
    st = watchdog_start(s->watchdog, err);
    if (st == INFERD_OK) app_set_watchdog(s->app, s->watchdog);
    return st;
}

/* The daemon serves even if the service manager cannot be notified. */
static void open_manager(void) {
    inferd_err err = {0};
    if (sd_notify_open(&err) != INFERD_OK)
        log_text(LOG_LEVEL_ERROR, "sd_notify", "error", err.text);
}

/* The opened models, for the size of workspaces; returns their number. */
static uint32_t list_models(const server_life *s, const model *out[REGISTRY_SLOTS]) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->config->n_models && n < REGISTRY_SLOTS; i++)
        if (s->plan.opened[i].m != NULL) out[n++] = s->plan.opened[i].m;
    return n;
}

static inferd_status open_all(server_life *s, inferd_err *err) {
    inferd_config *c = s->config;
    unsigned char scope_secret[16];
    const model *models[REGISTRY_SLOTS];
    for (uint32_t i = 0; i < s->found.n; i++)
        s->found.devices[i].backend.host_bytes = host_bytes_of(s, i);
    inferd_status st = open_loop(s, err);
    if (st == INFERD_OK) st = open_disk(s, err);
    if (st == INFERD_OK) st = open_tracer(s, err);
    if (st != INFERD_OK) return st;
    fleet_options fo = {.devices = s->found.devices,
                        .n_devices = s->found.n,
                        .limits = config_engine_limits(c),
                        .models = models,
                        .n_models = list_models(s, models),
                        .n_slots = REGISTRY_SLOTS,
                        .wake = wake_front,
                        .wake_ctx = s};
    /* The front limits running and waiting requests together.  The engine's queue can hold all of
     * them, because requests that arrive at once wait for a moment before any of them runs. */
    fo.limits.queue_len_max = app_n_slots(&fo.limits);
    fo.limits.disk = s->disk;
    st = fleet_start(&fo, &s->fleet, err);
    keep_devices(s);
    if (st != INFERD_OK) return st;
    app_options ao = {.config = c,
                      .plan = &s->plan,
                      .fleet = s->fleet,
                      .devices = s->found.devices,
                      .disk = s->disk,
                      .tracer = s->tracer};
    ao.routes = routes_all(&ao.n_routes);
    if (s->disk != NULL) {
        kv_disk_secret(s->disk, "scope", scope_secret);
        ao.scope_secret = scope_secret;
    }
    if ((st = app_create(&ao, &s->app, err)) != INFERD_OK) return st;
    s->config = NULL;               // owned by the app now
    registry_plan_deinit(&s->plan); // it points into s->config
    if ((st = open_responses(s, err)) != INFERD_OK) return st;
    if ((st = serve_open_listener(s->app, &s->loop, s->passed.requests, &s->http, err)) !=
        INFERD_OK)
        return st;
    if ((st = open_admin(s, err)) != INFERD_OK) return st;
    cli_progress_init(&s->bar, "loading");
    s->tick_due_us = clock_now_us() + TICK_MS * 1000;
    s->extend_due_us = s->tick_due_us + EXTEND_AFTER_S * (uint64_t)1000000;
    uv_timer_start(&s->tick, on_tick, TICK_MS, TICK_MS);
    return open_watchdog(s, err);
}

static void log_starting(const inferd_err *err, uint32_t wait_s) {
    log_line line;
    log_begin(&line, LOG_LEVEL_INFO, "device_starting");
    log_str(&line, "error", err->text);
    log_u64(&line, "wait_s", wait_s);
    log_end(&line);
}

/* Time that the start waits for the services of a GPU; false: said why not. */
static bool read_wait(uint32_t *out) {
    enum { WAIT_S = 60, WAIT_S_MAX = 86400 };
    const char *text = getenv("INFERD_DEVICE_WAIT_S");
    double s = WAIT_S;
    if (text != NULL && !cli_number("INFERD_DEVICE_WAIT_S", text, 0, WAIT_S_MAX, &s)) return false;
    *out = (uint32_t)s;
    return true;
}

/* Runs first: a configured GPU that is absent or does not match ends the process.  If the GPU
 * services are still starting, as after a boot, it waits: a supervisor that restarts the process
 * each second would soon give up. 0, or the exit status; SIGTERM ends the wait. */
static int find_devices(server_life *s) {
    inferd_err err = {0};
    uint32_t wait_s;
    if (!read_wait(&wait_s)) return CLI_WRONG;
    uint64_t until_us = clock_now_us() + (uint64_t)wait_s * 1000000;
    bool told = false;
    inferd_status st;
    while ((st = devices_resolve_all(s->config, NULL, &s->found, &err)) == INFERD_EBUSY &&
           clock_now_us() < until_us) {
        if (!told) log_starting(&err, wait_s);
        told = true;
        nanosleep(&(struct timespec){.tv_sec = DEVICE_AGAIN_MS / 1000}, NULL);
    }
    if (st != INFERD_OK) {
        fprintf(stderr, "inferd: %s\n", err.text);
        return cli_device_status(&err);
    }
    if (s->found.note.text[0] != 0)
        log_text(devices_may_have_gpu() ? LOG_LEVEL_INFO : LOG_LEVEL_DEBUG, "serving_on_cpu",
                 "reason", s->found.note.text);
    return 0;
}

static void close_handle(uv_handle_t *handle, void *ctx) {
    (void)ctx;
    if (!uv_is_closing(handle)) uv_close(handle, NULL);
}

static void *end_anyway(void *status) {
    sleep(END_GRACE_S);
    _exit((int)(intptr_t)status);
}

static void watch_end(int status) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, end_anyway, (void *)(intptr_t)status) == 0)
        pthread_detach(thread);
}

static void close_all(server_life *s) {
    s->closing = true;
    http_close(s->http_admin);
    http_close(s->http);
    response_store_close(s->responses);
    file_look_destroy(s->files);
    changer_destroy(s->changer);
    admin_destroy(s->admin);
    fleet_stop(s->fleet);
    kv_disk_close(s->disk);
    app_destroy(s->app);
    tracer_close(s->tracer);
    s->app = NULL;                  // a reading of the devices may still be in progress
    registry_plan_deinit(&s->plan); // it points into the configuration
    config_destroy(s->config);
    if (!s->loop_open) return;
    uv_walk(&s->loop, close_handle, NULL);
    while (uv_run(&s->loop, UV_RUN_DEFAULT) != 0) {
    }
    uv_loop_close(&s->loop);
    for (uint32_t i = 0; s->found_owned && i < s->found.n; i++) {
        free((char *)(uintptr_t)s->found.devices[i].backend.uuid);
        free((char *)(uintptr_t)s->found.devices[i].backend.cores);
    }
}

/* The compute threads keep all CPUs busy, and a thread that wakes beside them waits for the rest of
 * a time slice, some milliseconds, unless its own slices are shorter.  Best effort: kernels before
 * 6.12 have no custom slices, and a sandbox may forbid the call.  The struct is that of
 * sched_setattr(2); its header conflicts with the C library's. */
static void ask_for_short_slices(void) {
    enum { SLICE_NS = 1000 * 1000 }; // with shorter ones each token would interrupt a step
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period; // ns
    } wish = {.size = sizeof wish, .policy = SCHED_OTHER, .runtime = SLICE_NS};
    errno = 0;
    wish.nice = getpriority(PRIO_PROCESS, 0);
    if (errno == 0) syscall(SYS_sched_setattr, 0, &wish, 0);
}

int cli_serve(int argc, char **argv) {
    server_life *s = calloc(1, sizeof *s);
    if (s == NULL) return fputs("inferd: out of memory\n", stderr), 1;
    int status = serve_options_read(argc, argv, &s->options);
    if (status >= 0) {
        free(s);
        return status;
    }
    signal(SIGPIPE, SIG_IGN);
    json_in_init();
    inferd_err err = {0};
    if (sd_listen_take(&s->passed, &err) != INFERD_OK) {
        fprintf(stderr, "inferd: %s\n", err.text);
        free(s);
        return CLI_WRONG;
    }
    buf problems;
    buf_init(&problems, 1 << 20);
    s->config = serve_options_config(&s->options, &problems);
    if (s->config == NULL || !open_models(s, &problems)) {
        fputs(buf_cstr(&problems), stderr);
        buf_deinit(&problems);
        registry_plan_deinit(&s->plan);
        config_destroy(s->config);
        free(s);
        return CLI_WRONG;
    }
    buf_deinit(&problems);
    const config_log *log = &s->config->log;
    inferd_status st = log_open(log->path, log->json, (log_level)log->level, &err);
    if (st == INFERD_OK && (status = find_devices(s)) != 0) {
        registry_plan_deinit(&s->plan);
        config_destroy(s->config);
        log_close();
        free(s);
        return status;
    }
    if (st == INFERD_OK) {
        open_manager();
        pulse_join(&s->pulse);
        st = open_all(s, &err);
    }
    if (st == INFERD_OK) {
        ask_for_short_slices();
        uv_run(&s->loop, UV_RUN_DEFAULT);
    } else {
        fprintf(stderr, "inferd: %s\n", err.text);
    }
    status = st != INFERD_OK || s->failed ? 1 : s->lost ? CLI_LOST : 0;
    /* Threads may be inside a driver that never answers: exit without waiting for them. */
    if (s->lost) {
        tracer_close(s->tracer);
        log_close();
        fflush(stdout);
        _exit(status);
    }
    watch_end(status);
    if (s->app != NULL) app_set_watchdog(s->app, NULL); // requests are answered until the end
    watchdog_stop(s->watchdog); // after this watch_end bounds the time of the exit
    pulse_join(NULL);
    close_all(s);
    sd_notify_close();
    log_close();
    free(s);
    return status;
}
