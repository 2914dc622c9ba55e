/* watchdog.c - see watchdog.h. */
#include "watchdog.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "inferd/clock.h"
#include "log.h"
#include "sd_notify.h"

enum {
    WRITE_S = 3, // for the log line; after that the process ends without it
    US_PER_S = 1000000,
    US_PER_MS = 1000,
    NAME_BYTES = 160
};

/* ---- a check ---- */

void pulses_add(pulses *w, const pulse *p, const char *kind, const char *name) {
    INFERD_CHECK(w->n_loops < WATCHDOG_LOOPS_MAX);
    w->loops[w->n_loops++] = (pulses_loop){.pulse = p, .kind = kind, .name = name};
}

static bool is_over(pulses_loop *l, const pulse_limits *limits, uint64_t elapsed_us) {
    int kind = atomic_load_explicit(&l->pulse->kind, memory_order_acquire); // read before n_beats
    unsigned n_beats = atomic_load_explicit(&l->pulse->n_beats, memory_order_relaxed);
    if (n_beats != l->n_beats || kind == PULSE_REST) {
        l->n_beats = n_beats;
        atomic_store_explicit(&l->silent_us, 0, memory_order_relaxed);
        return false;
    }
    uint64_t silent_us = elapsed_us + atomic_load_explicit(&l->silent_us, memory_order_relaxed);
    atomic_store_explicit(&l->silent_us, silent_us, memory_order_relaxed);
    return silent_us >= (kind == PULSE_DEVICE ? limits->device_us : limits->work_us);
}

/* A silent engine wins over the front, which may only be waiting for it. */
int pulses_look(pulses *w, const pulse_limits *limits, uint64_t elapsed_us) {
    int over = WATCHDOG_NONE;
    if (elapsed_us > WATCHDOG_LOOK_US_MAX) elapsed_us = WATCHDOG_LOOK_US_MAX;
    for (uint32_t i = 0; i < w->n_loops; i++)
        if (is_over(&w->loops[i], limits, elapsed_us)) over = (int)i;
    return over;
}

/* ---- the thread ---- */

struct watchdog {
    watchdog_options options;
    pulses pulses;
    uint32_t n_added; // loops; read by any thread, pulses.n_loops by the watchdog's alone
    pthread_t thread;
    pthread_mutex_t mutex; // for waiting on `ended`
    pthread_cond_t ended;
    bool started, stop;
    atomic_uint watchdog_s, step_hang_ms;
    atomic_bool engines_forgotten;
    uint64_t told_us; // last report to the service manager
};

static void end_at_once(int sig) {
    (void)sig;
    _exit(WATCHDOG_EXIT);
}

/* The loop's position, as "model_forward chat". */
static void describe(const watchdog *w, const pulse *p, char out[NAME_BYTES]) {
    const char *where = atomic_load(&p->where), *object = atomic_load(&p->object);
    uint32_t idx = atomic_load(&p->model_idx);
    if (idx != PULSE_NO_MODEL && w->options.model_name != NULL)
        object = w->options.model_name(w->options.ctx, idx);
    snprintf(out, NAME_BYTES, "%s%s%s", where != NULL ? where : "?", object != NULL ? " " : "",
             object != NULL ? object : "");
}

static _Noreturn void end_process(watchdog *w, const pulses_loop *l) {
    char name[NAME_BYTES], where[NAME_BYTES];
    log_line line;
    signal(SIGALRM, end_at_once); // the log may be on a disk that does not answer
    alarm(WRITE_S);
    snprintf(name, sizeof name, "%s%s%s", l->kind, l->name[0] != 0 ? " " : "", l->name);
    describe(w, l->pulse, where);
    log_begin(&line, LOG_LEVEL_ERROR, "watchdog");
    log_str(&line, "loop", name);
    log_str(&line, "where", where);
    log_u64(&line, "silent_ms", atomic_load(&l->silent_us) / US_PER_MS);
    log_u64(&line, "exit_status", WATCHDOG_EXIT);
    log_end_alone(&line);
    _exit(WATCHDOG_EXIT);
}

/* Without a limit of ours, a loop silent for half the manager's limit is not reported as alive. */
static pulse_limits limits_of(const watchdog *w, uint64_t manager_us) {
    uint64_t work_us = (uint64_t)atomic_load(&w->watchdog_s) * US_PER_S;
    uint64_t hang_us =
        ((uint64_t)atomic_load(&w->step_hang_ms) + WATCHDOG_DEVICE_EXTRA_MS) * US_PER_MS;
    if (work_us == 0) work_us = manager_us == 0 ? UINT64_MAX : manager_us / 2;
    return (pulse_limits){work_us, hang_us > work_us ? hang_us : work_us};
}

static void look(watchdog *w, uint64_t now_us, uint64_t elapsed_us) {
    uint64_t manager_us = sd_notify_watchdog_us();
    pulse_limits limits = limits_of(w, manager_us);
    if (atomic_load(&w->engines_forgotten)) w->pulses.n_loops = u32_min(w->pulses.n_loops, 1);
    int over = pulses_look(&w->pulses, &limits, elapsed_us);
    if (over != WATCHDOG_NONE && atomic_load(&w->watchdog_s) != 0)
        end_process(w, &w->pulses.loops[over]);
    if (over != WATCHDOG_NONE || manager_us == 0 || now_us < w->told_us + manager_us / 2) return;
    w->told_us = now_us;
    sd_notify_alive();
}

static void *watchdog_main(void *arg) {
    watchdog *w = arg;
    uint64_t last_us = clock_now_us();
    pthread_mutex_lock(&w->mutex);
    while (!w->stop) {
        uint64_t until_us = clock_now_us() + WATCHDOG_LOOK_US;
        struct timespec ts = {.tv_sec = (time_t)(until_us / US_PER_S),
                              .tv_nsec = (long)(until_us % US_PER_S) * 1000};
        pthread_cond_timedwait(&w->ended, &w->mutex, &ts);
        uint64_t now_us = clock_now_us();
        look(w, now_us, now_us - last_us);
        last_us = now_us;
    }
    pthread_mutex_unlock(&w->mutex);
    return NULL;
}

/* ---- interface ---- */

inferd_status watchdog_create(const watchdog_options *o, watchdog **out, inferd_err *err) {
    watchdog *w = calloc(1, sizeof *w);
    pthread_condattr_t attr;
    *out = NULL;
    if (w == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for the watchdog");
    w->options = *o;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    bool fine =
        pthread_mutex_init(&w->mutex, NULL) == 0 && pthread_cond_init(&w->ended, &attr) == 0;
    pthread_condattr_destroy(&attr);
    if (!fine) {
        free(w);
        return inferd_fail(err, INFERD_ENOMEM, "no memory for the watchdog's mutex");
    }
    *out = w;
    return INFERD_OK;
}

void watchdog_add(watchdog *w, const pulse *p, const char *kind, const char *name) {
    INFERD_CHECK(!w->started);
    pulses_add(&w->pulses, p, kind, name);
    w->n_added++;
}

bool watchdog_get(const watchdog *w, uint32_t i, watchdog_loop *out) {
    if (i >= w->n_added || (i > 0 && atomic_load(&w->engines_forgotten))) return false;
    const pulses_loop *l = &w->pulses.loops[i];
    *out = (watchdog_loop){l->kind, l->name,
                           atomic_load_explicit(&l->silent_us, memory_order_relaxed)};
    return true;
}

inferd_status watchdog_start(watchdog *w, inferd_err *err) {
    if (pthread_create(&w->thread, NULL, watchdog_main, w) != 0)
        return inferd_fail(err, INFERD_ENOMEM, "no thread for the watchdog");
    pthread_setname_np(w->thread, "inferd-watchdog");
    w->started = true;
    return INFERD_OK;
}

void watchdog_set_limits(watchdog *w, uint32_t watchdog_s, uint32_t step_hang_ms) {
    atomic_store(&w->watchdog_s, watchdog_s);
    atomic_store(&w->step_hang_ms, step_hang_ms);
}

void watchdog_forget_engines(watchdog *w) {
    atomic_store(&w->engines_forgotten, true);
}

void watchdog_stop(watchdog *w) {
    if (w == NULL) return;
    if (w->started) {
        pthread_mutex_lock(&w->mutex);
        w->stop = true;
        pthread_cond_signal(&w->ended);
        pthread_mutex_unlock(&w->mutex);
        pthread_join(w->thread, NULL);
    }
    pthread_cond_destroy(&w->ended);
    pthread_mutex_destroy(&w->mutex);
    free(w);
}
