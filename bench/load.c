/* load.c - see load.h.  Its memory: load_memory.c; its progress: load_progress.c.
 *
 * A timer file descriptor wakes the loop, because libuv's own timers have a resolution of one
 * millisecond, which would be visible in the times of short requests. */
#include "load.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "csv.h"
#include "load_state.h"

static void step(load *l);

static void give_up(load *l, inferd_status status, const char *why) {
    if (l->status == INFERD_OK) l->status = inferd_fail(l->err, status, "%s", why);
    l->is_cut = true;
}

/* ---- the clock ---- */

static void alarm_set(load *l, uint64_t at_ns) {
    if (at_ns == l->alarm_ns) return;
    l->alarm_ns = at_ns;
    struct itimerspec spec = {0};
    spec.it_value.tv_sec = (time_t)(at_ns / 1000000000u);
    spec.it_value.tv_nsec = (long)(at_ns % 1000000000u);
    timerfd_settime(l->alarm_fd, TFD_TIMER_ABSTIME, &spec, NULL); // zero disarms it
}

static void on_alarm(uv_poll_t *poll, int status, int events) {
    (void)status, (void)events;
    load *l = poll->data;
    uint64_t n_expired;
    if (read(l->alarm_fd, &n_expired, sizeof n_expired) < 0 && errno != EAGAIN)
        give_up(l, INFERD_EIO, "reading the timer failed");
    l->alarm_ns = 0;
    step(l);
}

/* ---- starting and ending requests ---- */

static stream *stream_take(load *l) {
    if (list_empty(&l->idle)) return stream_create(l->spec);
    stream *s = LIST_ENTRY(l->idle.next, stream, link);
    list_remove(&s->link);
    return s;
}

static void on_drained(uv_timer_t *timer) {
    load *l = timer->data;
    l->is_cut = true;
    step(l);
}

/* Once no class and no conversation starts a request any more, the steady time ends. */
static void end_starts(load *l) {
    uint64_t now_ns = bench_now_ns();
    bool is_over = l->n_talks == 0 || now_ns >= l->stop_ns;
    if (l->has_ended_starts || l->n_exhausted < l->spec->n_classes || !is_over) return;
    l->has_ended_starts = true;
    if (now_ns < l->figures->steady_until_ns) l->figures->steady_until_ns = now_ns;
    if (l->spec->has_drain)
        uv_timer_start(&l->drain, on_drained, (uint64_t)(l->spec->drain_s * 1000), 0);
}

static void drop_talk(load *l, talk *t) {
    if (t == NULL) return;
    l->n_talks--;
    l->talk_bytes -= t->history.n;
    talk_destroy(t);
    end_starts(l);
}

/* Removes all that is due, as no request may start any more. */
static void drop_dues(load *l) {
    for (size_t i = 0; i < l->dues.n; i++) drop_talk(l, l->dues.items[i].talk);
    l->dues.n = 0;
}

static void push_due(load *l, due d) {
    if (dues_push(&l->dues, d)) return;
    drop_talk(l, d.talk);
    give_up(l, INFERD_ENOMEM, "no memory for another conversation");
}

/* Records a request that was never sent. */
static void record_unsent(load *l, waiting w, outcome what, const char *code, const char *text) {
    const bench_class *c = &l->spec->classes[w.class_idx];
    group *groups[GROUPS_PER_REQUEST];
    result r = {.sched_ns = w.sched_ns, .outcome = what, .end_ns = bench_now_ns(), .n_cached = -1};
    r.plan = talk_plan(w.talk, c, l->spec->seed, w.class_idx, w.idx, w.card);
    r.is_counted = w.sched_ns >= l->figures->start_ns;
    snprintf(r.error_code, sizeof r.error_code, "%s", code);
    snprintf(r.error_text, sizeof r.error_text, "%s", text);
    stats_groups(l->figures, &r.plan, groups);
    stats_finish(l->figures, groups, &r);
    if (l->csv != NULL) csv_line(l->csv, l->spec, l->start_ns, &r);
    drop_talk(l, w.talk);
}

static void send_request(load *l, waiting w) {
    const bench_class *c = &l->spec->classes[w.class_idx];
    request_plan plan = talk_plan(w.talk, c, l->spec->seed, w.class_idx, w.idx, w.card);
    stream *s = stream_take(l);
    if (s == NULL) {
        drop_talk(l, w.talk);
        give_up(l, INFERD_ENOMEM, "no memory for another stream");
        return;
    }
    struct curl_slist *headers = l->sources[w.class_idx].headers[plan.key];
    bool begun = stream_begin(s, c, plan, w.talk, w.sched_ns, l->urls[c->is_chat], headers,
                              l->is_warming ? NULL : l->figures);
    list_push_back(&l->active, &s->link);
    l->n_active++;
    if (!begun || curl_multi_add_handle(l->curl.multi, s->easy) != CURLM_OK)
        give_up(l, INFERD_ENOMEM, "no memory for another request");
}

static void push_backlog(load *l, waiting w) {
    if (l->n_backlog == BACKLOG_MAX) {
        record_unsent(l, w, OUTCOME_FAILED, "backlog_full", "too many requests wait to be sent");
        return;
    }
    l->backlog[(l->backlog_head + l->n_backlog) % BACKLOG_MAX] = w;
    l->n_backlog++;
}

static waiting pop_backlog(load *l) {
    waiting w = l->backlog[l->backlog_head];
    l->backlog_head = (l->backlog_head + 1) % BACKLOG_MAX;
    l->n_backlog--;
    return w;
}

/* The next turn of a request's conversation; false: there is none. */
static bool talk_next(load *l, stream *s, bool is_cut) {
    talk *t = s->talk;
    const bench_class *c = &l->spec->classes[s->r.plan.class_idx];
    s->talk = NULL;
    if (t == NULL) return false;
    l->talk_bytes -= t->history.n;
    bool goes_on = !is_cut && s->r.outcome == OUTCOME_OK && !s->answer.failed &&
                   talk_answer(t, &s->r.plan, c, buf_cstr(&s->answer), result_n_output(&s->r));
    l->talk_bytes += t->history.n;
    if (l->talk_bytes > TALKS_BYTES_MAX) goes_on = false;
    uint64_t at_ns = s->r.end_ns;
    if (goes_on) at_ns += (uint64_t)(talk_think_s(t, c, l->spec->seed) * 1e9);
    if (goes_on && at_ns < l->stop_ns)
        push_due(l, (due){at_ns, t->class_idx, t});
    else
        drop_talk(l, t);
    return goes_on;
}

static void end_request(load *l, stream *s, CURLcode code, bool is_cut) {
    curl_multi_remove_handle(l->curl.multi, s->easy);
    stream_end(s, code, is_cut);
    list_remove(&s->link);
    list_push_front(&l->idle, &s->link);
    l->n_active--;
    l->n_ended += !l->is_warming;
    const result *r = &s->r;
    if (s->figures != NULL)
        stats_finish(l->figures, s->groups, r);
    else if (r->outcome == OUTCOME_FAILED)
        l->figures->n_warmup_failed++;
    if (l->csv != NULL) csv_line(l->csv, l->spec, l->start_ns, r);
    bool goes_on = talk_next(l, s, is_cut);
    if (l->is_warming || is_cut) return;
    if (stats_missed_too_many(l->figures)) l->is_cut = l->figures->is_stopped = true;
    if (goes_on || l->spec->classes[r->plan.class_idx].arrivals.kind != ARRIVALS_CLOSED) return;
    uint64_t again_ns = r->end_ns;
    // Without this, a server that refuses immediately would turn the closed loop into a flood.
    if (r->outcome == OUTCOME_FAILED) again_ns += (uint64_t)CLOSED_BACKOFF_MS * 1000000u;
    if (again_ns < l->stop_ns && !l->sources[r->plan.class_idx].is_exhausted)
        push_due(l, (due){again_ns, r->plan.class_idx, NULL});
}

/* ---- due requests ---- */

static void exhaust(load *l, uint32_t class_idx) {
    if (l->sources[class_idx].is_exhausted) return;
    l->sources[class_idx].is_exhausted = true;
    l->n_exhausted++;
    end_starts(l);
}

/* Puts the next arrival of an open loop into the heap. */
static void schedule_next(load *l, uint32_t class_idx) {
    const bench_class *c = &l->spec->classes[class_idx];
    source *src = &l->sources[class_idx];
    uint64_t after_ns;
    bool allowed = c->n_requests == 0 || src->n_started < c->n_requests;
    if (!allowed || !arrivals_next(&src->arrivals, &after_ns)) {
        exhaust(l, class_idx);
        return;
    }
    uint64_t at_ns = l->start_ns + (uint64_t)(c->start_s * 1e9) + after_ns;
    if (at_ns >= l->stop_ns)
        exhaust(l, class_idx);
    else
        push_due(l, (due){at_ns, class_idx, NULL});
}

/* Gives a request its card, or in a class with turns its conversation; false: there are TALKS_MAX,
 * or no memory. */
static bool cards_take(load *l, waiting *w, const bench_class *c) {
    bool is_talk = c->turns.hi > 1 && l->n_talks < TALKS_MAX;
    if (!is_talk) {
        w->card = decks_take(l->decks, w->class_idx);
        return c->turns.hi <= 1;
    }
    w->talk = talk_create(c, l->spec->seed, w->class_idx, w->idx, l->decks);
    l->n_talks += w->talk != NULL;
    if (w->talk == NULL) give_up(l, INFERD_ENOMEM, "no memory for another conversation");
    return w->talk != NULL;
}

static void count_due(load *l, uint64_t at_ns) {
    if (l->n_due++ == l->spec->n_skip && l->spec->n_skip > 0)
        l->figures->start_ns = l->figures->steady_from_ns = at_ns;
}

static void start_due(load *l, due d) {
    if (d.talk != NULL) {
        count_due(l, d.at_ns);
        push_backlog(l, (waiting){.idx = d.talk->idx,
                                  .sched_ns = d.at_ns,
                                  .class_idx = d.class_idx,
                                  .talk = d.talk});
        return;
    }
    const bench_class *c = &l->spec->classes[d.class_idx];
    source *src = &l->sources[d.class_idx];
    bool is_closed = c->arrivals.kind == ARRIVALS_CLOSED;
    if (is_closed && c->n_requests > 0 && src->n_started == c->n_requests) {
        exhaust(l, d.class_idx);
        return;
    }
    count_due(l, d.at_ns);
    waiting w = {.idx = src->n_started, .sched_ns = d.at_ns, .class_idx = d.class_idx};
    bool fits = cards_take(l, &w, c);
    src->n_started++;
    if (fits)
        push_backlog(l, w);
    else
        record_unsent(l, w, OUTCOME_FAILED, "backlog_full", "too many conversations at once");
    if (!is_closed)
        schedule_next(l, d.class_idx);
    else if (src->n_started == c->n_requests)
        exhaust(l, d.class_idx);
}

static void start_all_due(load *l) {
    uint64_t now_ns = bench_now_ns();
    while (l->dues.n > 0 && l->dues.items[0].at_ns <= now_ns) start_due(l, dues_pop(&l->dues));
    if (now_ns >= l->stop_ns) {
        drop_dues(l); // closed-loop streams in their backoff, conversations that think
        for (uint32_t i = 0; i < l->spec->n_classes; i++) exhaust(l, i);
        end_starts(l);
    }
    while (l->n_backlog > 0 && l->n_active < l->spec->inflight_max && !l->is_cut)
        send_request(l, pop_backlog(l));
}

static void cut_all(load *l) {
    uint64_t now_ns = bench_now_ns();
    if (now_ns < l->figures->steady_until_ns) l->figures->steady_until_ns = now_ns;
    LIST_EACH_SAFE(node, next, &l->active) {
        end_request(l, LIST_ENTRY(node, stream, link), CURLE_OK, true);
    }
    while (l->n_backlog > 0) record_unsent(l, pop_backlog(l), OUTCOME_CUT, "", "");
    drop_dues(l);
}

/* ---- warm-up ---- */

static uint32_t warm_streams(const load *l) {
    uint32_t n = 0;
    for (size_t i = 0; i < l->spec->n_classes; i++) n += l->spec->classes[i].arrivals.n_streams;
    return u32_min(n == 0 ? WARMUP_STREAMS : n, l->spec->inflight_max);
}

/* True while warm-up requests remain to be sent or are in flight. */
static bool warm(load *l) {
    uint32_t n_streams = warm_streams(l);
    while (l->n_active < n_streams && l->n_warm_started < l->spec->n_warmup && !l->is_cut) {
        uint32_t i = l->n_warm_started++, class_idx = i % (uint32_t)l->spec->n_classes;
        send_request(l, (waiting){.idx = PLAN_WARMUP_IDX + i,
                                  .sched_ns = bench_now_ns(),
                                  .class_idx = class_idx,
                                  .card = decks_take(l->decks, class_idx)});
    }
    return l->n_active > 0;
}

static void start_clock(load *l) {
    const bench_spec *spec = l->spec;
    l->is_warming = false;
    l->start_ns = l->figures->clock_ns = bench_now_ns();
    l->stop_ns = UINT64_MAX;
    if (spec->duration_s > 0) l->stop_ns = l->start_ns + (uint64_t)(spec->duration_s * 1e9);
    l->figures->start_ns = l->start_ns + (uint64_t)(spec->skip_s * 1e9);
    if (spec->n_skip > 0) l->figures->start_ns = UINT64_MAX; // until start_due
    l->figures->steady_from_ns = l->figures->start_ns;
    l->figures->steady_until_ns = l->stop_ns;
    for (uint32_t i = 0; i < spec->n_classes; i++) {
        const bench_class *c = &spec->classes[i];
        uint64_t at_ns = l->start_ns + (uint64_t)(c->start_s * 1e9);
        if (c->arrivals.kind != ARRIVALS_CLOSED)
            schedule_next(l, i);
        else if (at_ns >= l->stop_ns)
            exhaust(l, i);
        else
            for (uint32_t k = 0; k < c->arrivals.n_streams; k++) push_due(l, (due){at_ns, i, NULL});
    }
}

/* ---- the loop ---- */

/* Does all work that can be done now; called after each event. */
static void step(load *l) {
    if (l->curl.err.status != INFERD_OK) give_up(l, l->curl.err.status, l->curl.err.text);
    if (!l->is_cut && l->is_warming) {
        if (warm(l)) return;
        start_clock(l);
    }
    if (!l->is_cut) start_all_due(l);
    if (l->is_cut) cut_all(l);
    uint64_t next_ns = l->dues.n > 0 ? l->dues.items[0].at_ns : 0;
    if (!l->has_ended_starts && l->stop_ns != UINT64_MAX && !l->is_cut)
        next_ns = next_ns == 0 || l->stop_ns < next_ns ? l->stop_ns : next_ns;
    alarm_set(l, next_ns);
    if (l->dues.n == 0 && l->n_backlog == 0 && l->n_active == 0) uv_stop(&l->uv);
}

static void on_done(void *ctx, CURL *easy, CURLcode code) {
    load *l = ctx;
    stream *s = NULL;
    curl_easy_getinfo(easy, CURLINFO_PRIVATE, (char **)&s);
    end_request(l, s, code, false);
}

static void on_idle(void *ctx) {
    step(ctx);
}

static void on_signal(uv_signal_t *handle, int number) {
    (void)number;
    load *l = handle->data;
    l->figures->is_interrupted = true;
    l->is_cut = true;
    step(l);
}

/* ---- setup and teardown ---- */

static inferd_status loop_init(load *l, inferd_err *err) {
    static const int SIGNALS[] = {SIGINT, SIGTERM};
    l->alarm_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (l->alarm_fd < 0) return inferd_fail(err, INFERD_EIO, "no timer: %s", strerror(errno));
    if (uv_loop_init(&l->uv) != 0) {
        close(l->alarm_fd);
        return inferd_fail(err, INFERD_EIO, "no event loop: %s", strerror(errno));
    }
    inferd_status s = curl_loop_init(&l->curl, &l->uv, (long)l->spec->inflight_max, err);
    if (s != INFERD_OK) {
        uv_loop_close(&l->uv);
        close(l->alarm_fd);
        return s;
    }
    l->curl.on_done = on_done;
    l->curl.on_idle = on_idle;
    l->curl.ctx = l;
    uv_poll_init(&l->uv, &l->alarm, l->alarm_fd);
    l->alarm.data = l;
    uv_poll_start(&l->alarm, UV_READABLE, on_alarm);
    for (size_t i = 0; i < INFERD_COUNT(SIGNALS); i++) {
        uv_signal_init(&l->uv, &l->signals[i]);
        l->signals[i].data = l;
        uv_signal_start(&l->signals[i], on_signal, SIGNALS[i]);
    }
    uv_timer_init(&l->uv, &l->drain);
    uv_timer_init(&l->uv, &l->progress);
    l->drain.data = l->progress.data = l;
    l->shown = progress_of_stderr(l->spec->progress, l->spec->quiet);
    uint64_t every_ms = (uint64_t)l->shown.every_s * 1000;
    if (every_ms > 0) uv_timer_start(&l->progress, load_on_progress, every_ms, every_ms);
    return INFERD_OK;
}

static void loop_deinit(load *l) {
    curl_loop_deinit(&l->curl);
    uv_close((uv_handle_t *)&l->alarm, NULL);
    for (size_t i = 0; i < INFERD_COUNT(l->signals); i++)
        uv_close((uv_handle_t *)&l->signals[i], NULL);
    uv_close((uv_handle_t *)&l->drain, NULL);
    uv_close((uv_handle_t *)&l->progress, NULL);
    uv_run(&l->uv, UV_RUN_DEFAULT); // the close callbacks
    INFERD_CHECK(uv_loop_close(&l->uv) == 0);
    close(l->alarm_fd);
}

static double cpu_s(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

inferd_status load_run(const bench_spec *spec, decks *d, stats *figures, FILE *csv,
                       inferd_err *err) {
    load l = {
        .spec = spec, .decks = d, .figures = figures, .csv = csv, .is_warming = true, .err = err};
    list_node_init(&l.active);
    list_node_init(&l.idle);
    inferd_status s = load_memory_init(&l, err);
    if (s == INFERD_OK) s = loop_init(&l, err);
    if (s != INFERD_OK) {
        load_memory_deinit(&l);
        return s;
    }
    l.start_ns = bench_now_ns();
    double cpu_before_s = cpu_s();
    if (csv != NULL) csv_head(csv);
    step(&l);
    bool is_over = l.dues.n == 0 && l.n_backlog == 0 && l.n_active == 0;
    if (!is_over) uv_run(&l.uv, UV_RUN_DEFAULT);
    progress_clear(&l.shown);
    figures->cpu_s = cpu_s() - cpu_before_s;
    figures->cpu_wall_s = (double)(bench_now_ns() - l.start_ns) / 1e9;
    loop_deinit(&l);
    load_memory_deinit(&l);
    return l.status;
}
