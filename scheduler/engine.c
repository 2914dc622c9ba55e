/* engine.c - one token's way through the engine, once per step, in engine_step():
 *
 *   engine_read_inbox   submit, cancel, pause, resume become changes in sched
 *   sched_plan          who computes how many tokens next; pages taken
 *   device launch       model_forward > sample_batch (device_backend.c), or the device works alone
 *   device finish       one id for each row that asked
 *   sched_commit        append, finish or keep, give pages back, write events
 *   outbox_publish      last events, numbers, one wake for the front
 *
 * With a device of depth 2 the next step is planned and launched before the last one is finished.
 *
 * Room in the outbox is a resource like pages: a step is planned, and a message read, only while
 * the events they may cause fit beside those of the steps in flight.  Last events wait in sched
 * until there is room.  So a slow front slows the engine down and loses nothing.
 *
 * Thread: the engine's, except for the functions of engine.h, which say theirs. */
#include "engine_private.h"

#include <errno.h>
#include <string.h>

#include "inferd/clock.h"

enum { OUTBOX_EVENTS_MIN = 4096, INBOX_MESSAGES_MIN = 4096 };

/* ---- limits ---- */

static uint32_t or_default(uint32_t value, uint32_t otherwise) {
    return value != 0 ? value : otherwise;
}

static engine_limits fill_limits(const engine_limits *given) {
    engine_limits l = *given;
    l.running_max = or_default(l.running_max, 32);
    l.step_tokens_max = or_default(l.step_tokens_max, 512);
    l.step_max_ms = or_default(l.step_max_ms, 100);
    l.decode_step_ms = or_default(l.decode_step_ms, 25);
    l.queue_len_max = or_default(l.queue_len_max, 1024);
    l.starvation_ms = or_default(l.starvation_ms, 2000);
    return l;
}

/* Rows with logits per step: one per sequence, and some for prompts that are scored. */
static uint32_t logits_max(const engine_limits *l) {
    return u32_min(l->running_max + 32, l->step_tokens_max);
}

static sched_limits limits_of_sched(const engine_limits *l) {
    return (sched_limits){.depth = ENGINE_DEPTH_MAX,
                          .running_max = l->running_max,
                          .step_tokens_max = l->step_tokens_max,
                          .logits_max = logits_max(l),
                          .queue_len_max = l->queue_len_max,
                          .draft_tokens = l->draft_tokens,
                          .step_max_us = (uint64_t)l->step_max_ms * 1000,
                          .decode_step_us = (uint64_t)l->decode_step_ms * 1000,
                          .starvation_us = (uint64_t)l->starvation_ms * 1000,
                          .no_prefix_cache = l->no_prefix_cache};
}

static uint32_t power_of_two(uint32_t at_least) {
    uint32_t n = 1;
    while (n < at_least) n *= 2;
    return n;
}

/* ---- outbox ---- */

static void push_event(void *ctx, const gen_event *event) {
    engine *e = ctx;
    INFERD_CHECK(ring_push(&e->outbox, event)); // room was looked for before
    e->events_pushed = true;
}

/* Events that fit beside those which the steps in flight may cause. */
static uint32_t outbox_room(const engine *e) {
    uint32_t taken = ring_fill(&e->outbox) + e->n_flight * e->step_events_max;
    return taken < e->outbox.capacity ? e->outbox.capacity - taken : 0;
}

static void wake_front(void *ctx) {
    engine *e = ctx;
    if (e->wake != NULL) e->wake(e->wake_ctx);
}

static void publish_stats(engine *e) {
    sched_counters c;
    sched_count(e->sched, &c);
    engine_stats *s = &e->stats;
    s->n_running = c.n_running;
    s->n_waiting = c.n_waiting;
    s->n_paused = c.n_paused;
    s->pages_total = e->pool.n_pages;
    s->pages_free = e->pool.n_in[PAGE_FREE];
    s->pages_weight = e->pool.n_in[PAGE_WEIGHT];
    s->pages_kv = e->pool.n_in[PAGE_KV] - c.pages_cached;
    s->pages_cached = c.pages_cached;
    s->pages_quarantine = e->pool.n_in[PAGE_QUARANTINE];
    s->n_preemptions = c.n_preemptions;
    s->n_recomputed_tokens = c.n_recomputed_tokens;
    s->prefix_queries_tokens = c.prefix_queries_tokens;
    s->prefix_hits_tokens = c.prefix_hits_tokens;
    s->n_drafted = c.n_drafted;
    s->n_drafts_right = c.n_drafts_right;
    s->n_submitted = c.n_submitted;
    memcpy(s->n_finished, c.n_finished, sizeof s->n_finished);
    if (atomic_load(&e->opened)) e->device.ops->get_stats(e->device.self, &s->backend);
    stats_publish(&e->board, s);
}

/* Last events go out, numbers become visible, and the front is woken once. */
static void outbox_publish(engine *e) {
    sched_flush(e->sched, outbox_room(e));
    publish_stats(e);
    if (!e->events_pushed) return;
    e->events_pushed = false;
    wake_front(e);
}

/* ---- inbox ---- */

static void answer_audit(engine *e) {
    pthread_mutex_lock(&e->mutex);
    uint64_t wanted = e->audit_wanted;
    bool asked = wanted != e->audit_done;
    pthread_mutex_unlock(&e->mutex);
    if (!asked) return;
    buf json;
    buf_init(&json, 0);
    engine_write_audit(e, &json);
    pthread_mutex_lock(&e->mutex);
    buf_deinit(&e->audit_json);
    e->audit_json = json;
    e->audit_done = wanted;
    pthread_cond_broadcast(&e->to_front);
    pthread_mutex_unlock(&e->mutex);
}

static void engine_read_inbox(engine *e) {
    engine_message message;
    answer_audit(e);
    /* A submission may be answered at once, so each message needs room for one event. */
    while (outbox_room(e) > 0 && ring_pop(&e->inbox, &message)) {
        uint64_t now_us = clock_now_us();
        switch (message.kind) {
        case ENGINE_SUBMIT:
            sched_submit(e->sched, message.request, now_us);
            break;
        case ENGINE_CANCEL:
            sched_cancel(e->sched, message.id, now_us);
            break;
        case ENGINE_PAUSE:
            sched_pause(e->sched, message.id);
            break;
        case ENGINE_RESUME:
            sched_resume(e->sched, message.id, now_us);
            break;
        }
    }
}

/* ---- steps ---- */

static void count_step(engine *e, const step *st, uint64_t device_us, uint64_t wall_us) {
    engine_stats *s = &e->stats;
    uint32_t bucket = 0;
    while (wall_us > engine_step_us_bounds[bucket] && bucket + 1 < ENGINE_STEP_BUCKETS) bucket++;
    s->n_steps++;
    s->n_rows += st->b.n_rows;
    s->n_prefill_rows += st->n_prefill_rows;
    s->n_decode_rows += st->b.n_rows - st->n_prefill_rows;
    s->step_us_sum += wall_us;
    s->device_us_sum += device_us;
    s->step_us_hist[bucket]++;
    s->last_step_us = device_us;
}

/* Plan and launch until the device has as many steps as it takes. */
static void launch_steps(engine *e) {
    while (e->n_flight < e->depth && outbox_room(e) >= e->step_events_max) {
        uint32_t idx = (e->oldest + e->n_flight) % ENGINE_DEPTH_MAX;
        uint64_t now_us = clock_now_us();
        if (!sched_plan(e->sched, now_us, &e->steps[idx])) return;
        e->step_began_us[idx] = now_us;
        atomic_store_explicit(&e->busy_since_us, now_us, memory_order_relaxed);
        e->device.ops->launch(e->device.self, &e->steps[idx]);
        e->n_flight++;
    }
}

/* The device is gone for this process: nobody is served any more, and whoever waits hears it now.
 */
static void lose_device(engine *e, const inferd_err *why, uint64_t now_us) {
    if (atomic_load(&e->lost)) return;
    models_fail_all(&e->models, e->sched, why, now_us);
    atomic_store(&e->lost, true);
    e->events_pushed = true; // the front must look even if nobody was waiting
}

static void finish_oldest(engine *e) {
    step *st = &e->steps[e->oldest];
    inferd_err err = {0};
    uint64_t device_us = 0;
    sched_refresh(e->sched, st);
    inferd_status status = e->device.ops->finish(e->device.self, st, &device_us, &err);
    uint64_t now_us = clock_now_us();
    if (status == INFERD_OK)
        sched_commit(e->sched, st, device_us, now_us);
    else
        sched_fail(e->sched, st, &err, now_us);
    atomic_store_explicit(&e->busy_since_us, e->n_flight > 1 ? now_us : 0, memory_order_relaxed);
    if (status == INFERD_ELOST) lose_device(e, &err, now_us);
    count_step(e, st, device_us, now_us - e->step_began_us[e->oldest]);
    e->oldest = (e->oldest + 1) % ENGINE_DEPTH_MAX;
    e->n_flight--;
}

/* A load is watched like a step: from one piece of it to the next.  What comes after the last piece
 * (measuring algorithms) has bounds of its own. */
static void load_progress(void *ctx) {
    engine *e = ctx;
    uint64_t done, total;
    engine_load_progress(e, &done, &total);
    atomic_store_explicit(&e->busy_since_us, done < total ? clock_now_us() : 0,
                          memory_order_relaxed);
    wake_front(e);
}

/* One turn.  False: there was nothing to do. */
static bool engine_step(engine *e) {
    engine_read_inbox(e);
    models_grow_pool(&e->device, &e->pool);
    bool loaded = models_load_next(&e->models, &e->device, &e->pool, e->sched, load_progress, e,
                                   clock_now_us);
    if (loaded) atomic_store_explicit(&e->busy_since_us, 0, memory_order_relaxed);
    launch_steps(e);
    bool finished = e->n_flight > 0;
    if (finished) finish_oldest(e);
    outbox_publish(e);
    return loaded || finished;
}

/* ---- parking ---- */

/* Until a message, a deadline, or room in the outbox. */
static void park(engine *e) {
    sched_counters c;
    sched_count(e->sched, &c);
    uint64_t until_us = sched_next_deadline(e->sched);
    /* Whoever waits for pages is looked at again when the starvation floor may have moved it. */
    if (c.n_running + c.n_waiting > c.n_paused) {
        uint64_t again_us = clock_now_us() + e->sched_limits.starvation_us;
        if (again_us < until_us) until_us = again_us;
    }
    pthread_mutex_lock(&e->mutex);
    e->outbox_blocked = sched_n_unsent(e->sched) > 0 || outbox_room(e) < e->step_events_max;
    while (!e->signalled &&
           !(e->outbox_blocked && ring_fill(&e->outbox) <= e->outbox.capacity / 2)) {
        if (until_us == UINT64_MAX) {
            pthread_cond_wait(&e->to_engine, &e->mutex);
            continue;
        }
        struct timespec ts = {.tv_sec = (time_t)(until_us / 1000000),
                              .tv_nsec = (long)(until_us % 1000000) * 1000};
        if (pthread_cond_timedwait(&e->to_engine, &e->mutex, &ts) == ETIMEDOUT) break;
    }
    e->signalled = false;
    e->outbox_blocked = false;
    pthread_mutex_unlock(&e->mutex);
}

static void signal_engine(engine *e) {
    pthread_mutex_lock(&e->mutex);
    e->signalled = true;
    pthread_cond_signal(&e->to_engine);
    pthread_mutex_unlock(&e->mutex);
}

/* ---- the thread ---- */

static inferd_status open_device(engine *e, inferd_err *err) {
    device_about about = {0};
    inferd_status status = e->device.ops->open(e->device.self, &about, err);
    if (status != INFERD_OK) {
        inferd_context(err, "opening the device");
        return status;
    }
    status = pool_init_extents(&e->pool, about.n_pages, about.n_ready, about.extent_pages,
                               e->models.n, err);
    if (status != INFERD_OK) return status;
    e->depth = u32_min(u32_max(about.depth, 1), ENGINE_DEPTH_MAX);
    /* Larger steps would gain nothing there and cost memory; who decodes has a row in any case. */
    uint32_t rows_best = u32_max(about.rows_best, 2 * e->limits.running_max);
    if (about.rows_best != 0)
        e->limits.step_tokens_max = u32_min(e->limits.step_tokens_max, rows_best);
    status = sched_set_device(e->sched, e->depth, e->limits.step_tokens_max, err);
    if (status != INFERD_OK) return status;
    memcpy(e->device_name, about.name, sizeof e->device_name);
    e->device_name[sizeof e->device_name - 1] = 0;
    memcpy(e->device_warning, about.warning, sizeof e->device_warning);
    atomic_store_explicit(&e->opened, true, memory_order_release);
    return INFERD_OK;
}

/* What was submitted and never read ends, too. */
static void cancel_unread(engine *e) {
    engine_message message;
    while (outbox_room(e) > 0 && ring_pop(&e->inbox, &message)) {
        if (message.kind != ENGINE_SUBMIT) continue;
        gen_event event = {.id = message.id, .kind = GEN_EV_DONE, .at_us = clock_now_us()};
        event.done.finish = GEN_CANCELLED;
        event.done.stop_id = -1;
        event.done.status = INFERD_ECANCELED;
        event.done.n_prompt = message.request->n_prompt;
        snprintf(event.done.text, sizeof event.done.text, "the engine stops");
        push_event(e, &event);
        gen_request_destroy(message.request);
    }
}

static void end_everything(engine *e) {
    while (e->n_flight > 0) finish_oldest(e);
    sched_cancel_all(e->sched, clock_now_us());
    outbox_publish(e);
    cancel_unread(e);
    models_close(&e->models, &e->device, &e->pool);
}

static void *engine_main(void *arg) {
    engine *e = arg;
    inferd_err err = {0};
    if (open_device(e, &err) == INFERD_OK) {
        device_limits limits = {e->limits.step_tokens_max, e->sched_limits.logits_max,
                                e->limits.kv};
        models_attach(&e->models, &e->device, &limits, &e->pool, e->sched, clock_now_us());
    } else {
        models_fail_all(&e->models, e->sched, &err, clock_now_us());
    }
    publish_stats(e);
    wake_front(e);
    while (!atomic_load_explicit(&e->stop, memory_order_acquire))
        if (!engine_step(e)) park(e);
    end_everything(e);
    return NULL;
}

/* ---- starting and stopping ---- */

static inferd_status init_threads(engine *e, inferd_err *err) {
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    bool ok = pthread_mutex_init(&e->mutex, NULL) == 0 &&
              pthread_cond_init(&e->to_engine, &attr) == 0 &&
              pthread_cond_init(&e->to_front, &attr) == 0;
    pthread_condattr_destroy(&attr);
    return ok ? INFERD_OK : inferd_fail(err, INFERD_ENOMEM, "no memory for a mutex");
}

/* Everything an engine owns; the thread has ended or was never there. */
static void destroy(engine *e) {
    engine_message message;
    while (e->inbox.slots != NULL && ring_pop(&e->inbox, &message))
        gen_request_destroy(message.request);
    if (e->device.ops != NULL) e->device.ops->close(e->device.self);
    sched_destroy(e->sched);
    for (int i = 0; i < ENGINE_DEPTH_MAX; i++) step_deinit(&e->steps[i]);
    pool_deinit(&e->pool);
    models_deinit(&e->models);
    ring_deinit(&e->inbox);
    ring_deinit(&e->outbox);
    buf_deinit(&e->audit_json);
    pthread_cond_destroy(&e->to_front);
    pthread_cond_destroy(&e->to_engine);
    pthread_mutex_destroy(&e->mutex);
    free(e);
}

static inferd_status init_parts(engine *e, uint32_t n_models, inferd_err *err) {
    const engine_limits *l = &e->limits;
    uint32_t n_logits = e->sched_limits.logits_max;
    e->step_events_max = n_logits + l->running_max;
    uint32_t n_events = power_of_two(u32_max(OUTBOX_EVENTS_MIN, 8 * e->step_events_max));
    uint32_t n_messages = power_of_two(u32_max(INBOX_MESSAGES_MIN, 4 * l->queue_len_max));
    inferd_status s = ring_init(&e->inbox, n_messages, sizeof(engine_message), err);
    if (s == INFERD_OK) s = ring_init(&e->outbox, n_events, sizeof(gen_event), err);
    for (int i = 0; i < ENGINE_DEPTH_MAX && s == INFERD_OK; i++)
        s = step_init(&e->steps[i], l->step_tokens_max, l->running_max, n_logits, err);
    if (s == INFERD_OK) s = models_init(&e->models, n_models, err);
    if (s == INFERD_OK)
        s = sched_create(&e->sched_limits, &e->pool, n_models, push_event, e, &e->sched, err);
    return s;
}

inferd_status engine_start_device(const engine_limits *limits, device dev, uint32_t n_models,
                                  void (*wake)(void *ctx), void *wake_ctx, engine **out,
                                  inferd_err *err) {
    engine *e = NULL;
    if (limits->running_max > 1u << 16 || limits->step_tokens_max > 1u << 20 ||
        limits->queue_len_max > 1u << 20) {
        dev.ops->close(dev.self);
        return inferd_fail(err, INFERD_EINVAL,
                           "limits of %u sequences, %u rows and %u waiting requests are too large",
                           limits->running_max, limits->step_tokens_max, limits->queue_len_max);
    }
    if (posix_memalign((void **)&e, 64, sizeof *e) != 0) { // the rings keep their ends apart
        dev.ops->close(dev.self);
        return inferd_fail(err, INFERD_ENOMEM, "no memory for an engine");
    }
    memset(e, 0, sizeof *e);
    e->device = dev;
    e->limits = fill_limits(limits);
    e->sched_limits = limits_of_sched(&e->limits);
    e->wake = wake;
    e->wake_ctx = wake_ctx;
    e->depth = 1;
    inferd_status s = init_threads(e, err);
    if (s == INFERD_OK) s = init_parts(e, n_models, err);
    if (s == INFERD_OK && pthread_create(&e->thread, NULL, engine_main, e) != 0)
        s = inferd_fail(err, INFERD_ENOMEM, "no thread for the engine");
    if (s != INFERD_OK) {
        inferd_context(err, "starting the engine");
        destroy(e);
        return s;
    }
    pthread_setname_np(e->thread, "inferd-engine");
    *out = e;
    return INFERD_OK;
}

inferd_status engine_start(const engine_options *options, engine **out, inferd_err *err) {
    device dev;
    inferd_status s =
        device_backend_create(&options->device, options->models, options->n_models, &dev, err);
    if (s != INFERD_OK) return s;
    return engine_start_device(&options->limits, dev, options->n_models, options->wake,
                               options->wake_ctx, out, err);
}

void engine_halt(engine *e) {
    if (e->joined) return;
    atomic_store_explicit(&e->stop, true, memory_order_release);
    signal_engine(e);
    pthread_join(e->thread, NULL);
    e->joined = true;
}

void engine_stop(engine *e) {
    if (e == NULL) return;
    engine_halt(e);
    destroy(e);
}

/* ---- front ---- */

bool engine_submit(engine *e, gen_request *r) {
    /* The other half stays for messages about what was submitted: those must not be refused. */
    if (ring_fill(&e->inbox) >= e->inbox.capacity / 2) return false;
    engine_message message = {.kind = ENGINE_SUBMIT, .id = r->id, .request = r};
    if (!ring_push(&e->inbox, &message)) return false;
    signal_engine(e);
    return true;
}

/* Half of the inbox full of these while the engine loads a model is hardly possible; then the front
 * waits, because a lost cancel would be worse. */
static void send(engine *e, engine_message_kind kind, uint64_t id) {
    engine_message message = {.kind = kind, .id = id};
    while (!ring_push(&e->inbox, &message)) {
        if (e->joined) return;
        signal_engine(e);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    signal_engine(e);
}

void engine_cancel(engine *e, uint64_t id) {
    send(e, ENGINE_CANCEL, id);
}
void engine_pause(engine *e, uint64_t id) {
    send(e, ENGINE_PAUSE, id);
}
void engine_resume(engine *e, uint64_t id) {
    send(e, ENGINE_RESUME, id);
}

bool engine_next_event(engine *e, gen_event *out) {
    if (!ring_pop(&e->outbox, out)) {
        if (!e->joined) return false;
        sched_flush(e->sched, outbox_room(e)); // halted: nobody else touches these any more
        cancel_unread(e);
        return ring_pop(&e->outbox, out);
    }
    pthread_mutex_lock(&e->mutex);
    bool room = e->outbox_blocked && ring_fill(&e->outbox) <= e->outbox.capacity / 2;
    if (room) {
        e->signalled = true;
        pthread_cond_signal(&e->to_engine);
    }
    pthread_mutex_unlock(&e->mutex);
    return true;
}

/* ---- any thread ---- */

void engine_get_stats(const engine *e, engine_stats *out) {
    stats_read(&e->board, out);
}

model_state engine_model_state(const engine *e, uint32_t model_idx) {
    return model_idx < e->models.n ? slot_state(&e->models.slots[model_idx]) : MODEL_COLD;
}

void engine_model_error(const engine *e, uint32_t model_idx, inferd_err *out) {
    *out = (inferd_err){.status = INFERD_OK};
    if (model_idx < e->models.n) slot_error(&e->models.slots[model_idx], out);
}

bool engine_is_lost(const engine *e) {
    return atomic_load(&e->lost);
}

uint64_t engine_stuck_us(const engine *e) {
    uint64_t since = atomic_load_explicit(&e->busy_since_us, memory_order_relaxed);
    uint64_t now_us = clock_now_us();
    return since != 0 && now_us > since ? now_us - since : 0;
}

const char *engine_device_name(const engine *e) {
    return atomic_load_explicit(&e->opened, memory_order_acquire) ? e->device_name : "";
}

const char *engine_device_warning(const engine *e) {
    return atomic_load_explicit(&e->opened, memory_order_acquire) ? e->device_warning : "";
}

void engine_load_progress(const engine *e, uint64_t *done, uint64_t *total) {
    *done = *total = 0;
    for (uint32_t i = 0; i < e->models.n; i++) {
        *done += atomic_load_explicit(&e->models.slots[i].bytes_done, memory_order_relaxed);
        *total += atomic_load_explicit(&e->models.slots[i].bytes_total, memory_order_relaxed);
    }
}

inferd_status engine_admit(const engine *e, uint32_t model_idx, uint32_t n_prompt,
                           uint32_t max_tokens, inferd_err *err) {
    if (model_idx >= e->models.n)
        return inferd_fail(err, INFERD_ENOTFOUND, "model %u of %u", model_idx, e->models.n);
    const model_slot *slot = &e->models.slots[model_idx];
    model_state state = slot_state(slot);
    if (state == MODEL_FAILED) {
        slot_error(slot, err);
        return slot->why.status;
    }
    if (state == MODEL_COLD) return INFERD_OK; // not known yet; the engine looks again
    return sched_admit(atomic_load(&slot->context), atomic_load(&slot->kv_tokens_max), n_prompt,
                       max_tokens, err);
}

inferd_status engine_audit(engine *e, uint32_t timeout_ms, buf *json, inferd_err *err) {
    uint64_t until_us = clock_now_us() + (uint64_t)timeout_ms * 1000;
    struct timespec ts = {.tv_sec = (time_t)(until_us / 1000000),
                          .tv_nsec = (long)(until_us % 1000000) * 1000};
    pthread_mutex_lock(&e->mutex);
    uint64_t wanted = ++e->audit_wanted;
    e->signalled = true;
    pthread_cond_signal(&e->to_engine);
    int rc = 0;
    while (e->audit_done < wanted && rc == 0)
        rc = pthread_cond_timedwait(&e->to_front, &e->mutex, &ts);
    bool answered = e->audit_done >= wanted;
    bool failed = answered && e->audit_json.failed;
    if (answered && !failed) buf_add(json, e->audit_json.p, e->audit_json.n);
    pthread_mutex_unlock(&e->mutex);
    if (!answered)
        return inferd_fail(err, INFERD_ETIMEOUT, "the engine did not answer within %u ms",
                           timeout_ms);
    if (failed || json->failed) return inferd_fail(err, INFERD_ENOMEM, "no memory for an audit");
    return INFERD_OK;
}
