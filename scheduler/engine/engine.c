/* engine.c - a core (core.h) on its own thread, and its two rings.
 *
 *   engine_read_inbox   submit, cancel, pause, resume, models become changes in the core
 *   core_iterate        a step
 *   outbox_publish      last events, statistics, one wake of the front
 *
 * Room in the outbox is a resource like pages: a step is planned, and a message read, only while
 * the events they may cause fit beside those of unfinished steps.  Last events wait in sched
 * until there is room.  So a slow front slows the engine down and loses nothing.
 * Thread: the engine's, except for the functions of engine.h, which say theirs. */
#include "engine_private.h"

#include <errno.h>
#include <string.h>

#include "inferd/clock.h"
#include "engine_limits.h"

enum {
    OUTBOX_EVENTS_MIN = 4096,
    INBOX_MESSAGES_MIN = 4096,
    SLOTS_MAX = 4096,
    VIEWS_EVERY_US = 50000 // for view data that changes all the time, or is slow to collect
};

static uint32_t power_of_two(uint32_t at_least) {
    uint32_t n = 1;
    while (n < at_least) n *= 2;
    return n;
}

/* ---- outbox ---- */

static void push_event(void *ctx, const gen_event *event) {
    engine *e = ctx;
    INFERD_CHECK(ring_push(&e->outbox, event)); // room was checked before
    e->events_pushed = true;
}

static uint32_t outbox_free(void *ctx) {
    engine *e = ctx;
    return e->outbox.capacity - ring_fill(&e->outbox);
}

/* Events that fit beside those that unfinished steps may cause. */
static uint32_t outbox_room(engine *e) {
    uint32_t taken = e->core.n_flight * e->core.step_events_max, n_free = outbox_free(e);
    return taken < n_free ? n_free - taken : 0;
}

static void wake_front(engine *e) {
    if (e->wake != NULL) e->wake(e->wake_ctx);
}

/* Also called on its own: time passes while the engine has nothing to do. */
static void publish_usage(engine *e) {
    const core_usage *a = &e->core.usage;
    engine_stats *s = &e->stats;
    s->opened_us = a->opened_us;
    s->usage_step_us = a->step_us;
    s->usage_load_us = a->load_us;
    s->usage_idle_us = a->idle_us;
    s->usage_move_us = a->move_us;
    s->usage_host_us = a->host_us;
    s->usage_until_us = a->until_us;
    board_publish(&e->stats_board, s);
}

/* Walks all sequences: not after each step. */
static void publish_classes(engine *e) {
    sched_class classes[GEN_CLASSES];
    sched_count_classes(e->core.sched, classes);
    for (int c = 0; c < GEN_CLASSES; c++) {
        e->stats.class_running[c] = classes[c].n_running;
        e->stats.class_waiting[c] = classes[c].n_waiting;
        e->stats.class_since_us[c] = classes[c].since_us;
    }
}

static void publish_stats(engine *e) {
    const core *c = &e->core;
    const pool *p = &c->pool;
    sched_counters n;
    sched_count(c->sched, &n);
    engine_stats *s = &e->stats;
    s->n_running = n.n_running;
    s->n_waiting = n.n_waiting;
    s->n_paused = n.n_paused;
    s->pages_total = p->n_pages;
    s->pages_free = p->n_in[PAGE_FREE];
    s->pages_weight = p->n_in[PAGE_WEIGHT];
    s->pages_kv = p->n_in[PAGE_KV] - n.pages_cached;
    s->pages_cached = n.pages_cached;
    s->pages_quarantine = p->n_in[PAGE_QUARANTINE];
    s->one_memory = c->about.one_memory;
    s->pages_warm = p->n_in[PAGE_WARM] + p->n_host_apart;
    s->pages_swapped = p->n_in[PAGE_SWAPPED] + p->n_swapped_apart;
    s->pages_absent = p->n_in[PAGE_ABSENT];
    s->pages_device = p->n_device;
    s->pages_host = p->n_host;
    s->pages_host_free = pool_n_host_free(p);
    s->pages_device_free = pool_n_device_free(p);
    s->pages_tenants_min = c->opened ? sched_tenants_min_pages(c->sched) : 0;
    s->pages_reserved = p->n_reserved;
    s->page_bytes = c->about.page_bytes;
    s->n_preemptions = n.n_preemptions;
    s->n_recomputed_tokens = n.n_recomputed_tokens;
    s->charged_us = n.charged_us;
    memcpy(s->class_us, n.class_us, sizeof s->class_us);
    s->waste_us = n.waste_us;
    s->prefix_queries_tokens = n.prefix_queries_tokens;
    s->prefix_hits_tokens = n.prefix_hits_tokens;
    s->n_drafted = n.n_drafted;
    s->n_drafts_right = n.n_drafts_right;
    s->n_masks = n.n_masks;
    s->n_masks_made = n.n_masks_made;
    s->n_masks_late = n.n_masks_late;
    s->masks_us = n.masks_us;
    s->n_submitted = n.n_submitted;
    memcpy(s->n_finished, n.n_finished, sizeof s->n_finished);
    s->others_us = sched_flow_usage(c->sched)->others.device_us;
    memcpy(s->preempts, n.preempts, sizeof s->preempts);
    s->relief = n.relief;
    s->n_swapped_out = n.n_swapped_out;
    s->n_swapped_in = n.n_swapped_in;
    s->blocks_swapped = n.blocks_swapped;
    s->n_copied_ahead = n.n_copied_ahead;
    s->n_stored = n.n_stored;
    s->n_fetched = n.n_fetched;
    s->n_zeroed_pages = n.n_zeroed_pages;
    s->n_zeroed_slots = n.n_zeroed_slots;
    s->n_slices = c->models.n_slices;
    s->thrashing = c->models.thrashing;
    s->reload_us_window = residency_reload_us(&c->models);
    s->slices_attainment_ppm = c->models.slices_attainment_ppm;
    if (c->opened) c->device.ops->get_stats(c->device.self, &s->backend);
    publish_usage(e);
    atomic_store_explicit(&e->busy_since_us, c->busy_since_us, memory_order_relaxed);
}

/* Bytes of its weights on the device; while they are staged or loaded, the part that is there. */
static uint64_t weight_bytes(const resident *root, uint64_t room_bytes) {
    bool comes = root->state == MODEL_STAGING || root->state == MODEL_LOADING;
    double part =
        comes && root->bytes_total > 0 ? (double)root->bytes_done / (double)root->bytes_total : 1.0;
    uint64_t n_bytes = (uint64_t)((double)root->about.weight_bytes * part);
    return n_bytes < room_bytes ? n_bytes : room_bytes;
}

/* Pages of the model in both memories; where host memory is separate its pages are added. */
static void publish_pages(const core *c, uint32_t idx, engine_model_info *i) {
    const pool_owner *o = &c->pool.owners[idx];
    const resident *m = &c->models.slots[idx];
    i->pages_weight = o->held[PAGE_WEIGHT];
    i->pages_warm = o->held[PAGE_WARM];
    i->pages_kv = o->held[PAGE_KV] - i->pages_cached;
    i->pages_swapped = o->held[PAGE_SWAPPED];
    i->pages_min = o->min;
    i->pages_max = o->max;
    if (c->about.one_memory) return;
    if (m->host_copy) i->pages_warm += m->about.host_pages;
    if (c->host.owners != NULL) i->pages_swapped += c->host.owners[idx].held[PAGE_SWAPPED];
}

static void publish_bytes(const core *c, uint32_t idx, engine_model_info *i) {
    const resident *m = &c->models.slots[idx];
    const kv_layout *kv = &m->about.spec.kv;
    uint64_t page_bytes = c->about.page_bytes;
    i->bytes_used =
        weight_bytes(&c->models.slots[m->weights_of], (uint64_t)i->pages_weight * page_bytes) +
        (uint64_t)i->kv_blocks_used * kv->n_groups * kv->slot_bytes;
    i->bytes_held = ((uint64_t)i->pages_weight + i->pages_kv) * page_bytes;
    i->bytes_cached = (uint64_t)i->pages_cached * page_bytes;
    i->bytes_min = (uint64_t)i->pages_min * page_bytes;
    i->bytes_max = i->pages_max == UINT32_MAX ? UINT64_MAX : (uint64_t)i->pages_max * page_bytes;
}

static void publish_slot(engine *e, uint32_t idx, uint64_t now_us) {
    const core *c = &e->core;
    const resident *m = &c->models.slots[idx], *w = &c->models.slots[m->weights_of];
    slot_view *v = &e->slots[idx];
    uint32_t kv_tokens_max = c->opened ? sched_kv_tokens_max(c->sched, idx) : 0;
    uint32_t kv_tokens_ceiling = c->opened ? sched_kv_tokens_ceiling(c->sched, idx) : INT32_MAX;
    engine_model_info i = {.state = residency_state(&c->models, idx)};
    if (i.state != MODEL_NONE) {
        sched_model_numbers n;
        sched_count_model(c->sched, idx, &n);
        i.held = m->held;
        i.serves_others = residency_serves_others(&c->models, idx);
        i.weights_of = m->weights_of;
        i.context = m->about.spec.context;
        i.n_running = n.n_running;
        i.n_waiting = n.n_waiting;
        if (n.n_waiting > 0) i.waiting_since_us = c->models.demands[idx].unserved_us;
        /* Held by an operator: it finishes its requests, and then it leaves. */
        if (i.held && i.state == MODEL_HOT && n.n_running + n.n_waiting > 0)
            i.state = MODEL_DRAINING;
        i.kv_blocks_used = n.blocks_used;
        i.kv_block_tokens = m->about.spec.kv.block_tokens;
        if (i.kv_block_tokens > 0)
            i.kv_blocks_max = u32_min(kv_tokens_max, kv_tokens_ceiling) / i.kv_block_tokens;
        i.pages_cached = n.pages_cached;
        i.device_us = n.device_us;
        i.decode_us = sched_decode_us(c->sched, idx);
        if (c->opened) publish_pages(c, idx, &i);
        publish_bytes(c, idx, &i);
        i.bytes_done = w->bytes_done;
        i.bytes_total = w->bytes_total;
        i.weight_pages = w->about.weight_pages;
        i.host_pages = c->about.one_memory ? w->about.weight_pages : w->about.host_pages;
        i.n_stages = w->n_stages;
        i.n_loads = w->n_loads;
        i.n_failed = w->n_failed;
        memcpy(i.n_evictions, w->n_evictions, sizeof i.n_evictions);
        i.n_left = w->n_left;
        i.n_colds = w->n_colds;
        i.n_saturated = m->n_saturated;
        i.hot_us = w->hot_us + (w->state == MODEL_HOT ? now_us - w->hot_since_us : 0);
        i.load_device_us = w->load_device_us;
        i.slice_us = w->slice_us;
        i.idle_us = now_us > w->active_us ? now_us - w->active_us : 0;
        i.used_us = w->used_us;
        i.pauses = w->pauses;
        i.reload_us = resident_reload_us(w);
        i.n_unused_tensors = m->about.n_unused_tensors;
        memcpy(i.math, m->about.math, sizeof i.math);
        memcpy(i.stage_note, w->stage_note, sizeof i.stage_note);
        i.last = w->last;
        i.sum = w->parts_sum;
        i.from_file = w->from_file;
        i.from_host = w->from_host;
        i.last.first_us = n.first_us;
        i.sum.first_us = n.first_us_sum;
        memcpy(i.n_preempts, n.n_preempts, sizeof i.n_preempts);
        i.cost_error_ppm = n.cost_error_ppm;
        i.at_us = now_us;
        if (i.state == MODEL_FAILED) {
            i.why = m->why;
            uint64_t at_us = m->no_guarantee ? m->retry_at_us : w->retry_at_us;
            if (at_us > now_us) i.retry_after_ms = (uint32_t)((at_us - now_us + 999) / 1000);
        }
    }
    board_publish(&v->info, &i);
    atomic_store(&v->kv_tokens_max, kv_tokens_max);
    atomic_store(&v->kv_tokens_ceiling, kv_tokens_ceiling);
    atomic_store(&v->context, i.context);
    atomic_store(&v->held, i.held);
    atomic_store(&v->state, (int)i.state); // the numbers above belong to it
    /* Last: the front may now give the slot to another model, which has none of this state. */
    atomic_store(&v->departures, c->models.departures[idx]);
}

/* Publishes the views of the models: after changes, now and then, and before waits (`last`). */
static void publish_slots(engine *e, bool last) {
    const residency *r = &e->core.models;
    uint64_t now_us = clock_now_us();
    bool changed = r->n_changes != e->seen_changes || e->core.settled != atomic_load(&e->settled);
    bool due = now_us >= e->views_us + VIEWS_EVERY_US || (last && e->views_stale);
    e->views_stale = true;
    if (!changed && !due) return;
    e->views_stale = false;
    for (uint32_t i = 0; i < r->n_used; i++) publish_slot(e, i, now_us);
    e->stats.attainment_ppm = sched_attainment_ppm(e->core.sched); // published after this
    publish_classes(e);
    e->seen_changes = r->n_changes;
    e->views_us = now_us;
    atomic_store(&e->n_changes_seen, e->n_changes);
    atomic_store(&e->settled, e->core.settled);
    if (r->dead) atomic_store(&e->lost, r->why.status == INFERD_ELOST);
    e->events_pushed |= changed; // the front has to look at the models
}

static void publish_tenants(engine *e) {
    sched_tenant_use use;
    for (uint32_t i; (i = sched_next_tenant(e->core.sched, &use)) != SCHED_NO_TENANT;) {
        if (i >= ENGINE_TENANTS_MAX) continue;
        uint64_t seqs = (uint64_t)use.n_running << 32 | use.n_waiting;
        atomic_store_explicit(&e->tenant_bytes[i], use.n_bytes, memory_order_relaxed);
        atomic_store_explicit(&e->tenant_seqs[i], seqs, memory_order_relaxed);
    }
}

/* Emits last events, publishes all numbers, and wakes the front once. */
static void outbox_publish(engine *e) {
    sched_flush(e->core.sched, outbox_room(e));
    /* Before the slots: a reader that sees a slot empty must see what its last model used. */
    flow_views_publish(&e->flows, sched_flow_usage(e->core.sched));
    publish_slots(e, false);
    publish_tenants(e);
    publish_stats(e);
    if (!e->events_pushed) return;
    e->events_pushed = false;
    wake_front(e);
}

/* ---- inbox ---- */

static void answer_audit(engine *e) {
    pthread_mutex_lock(&e->mutex);
    uint64_t wanted = e->audit_wanted;
    bool asked = wanted != e->audit_done, map = e->map_wanted;
    pthread_mutex_unlock(&e->mutex);
    if (!asked) return;
    buf json;
    buf_init(&json, 0);
    if (map)
        engine_write_map(e, &json);
    else
        engine_write_audit(e, &json);
    pthread_mutex_lock(&e->mutex);
    buf_deinit(&e->audit_json);
    e->audit_json = json;
    e->audit_done = wanted;
    pthread_cond_broadcast(&e->to_front);
    pthread_mutex_unlock(&e->mutex);
}

static void set_policy(engine *e, const engine_limits *given) {
    engine_limits l = limits_fill(given);
    sched_limits limits = limits_of_sched(&l);
    core_set_policy(&e->core, &limits);
}

/* Changes that views show.  Limits of tenants change all the time, and are reported elsewhere. */
static bool is_seen(engine_message_kind kind) {
    return kind == ENGINE_MODEL_ADD || kind == ENGINE_MODEL_POLICY || kind == ENGINE_POLICY;
}

/* A change from the front.  The front knows all policies, and has refused one that does not fit;
 * one that still does not fit leaves the old one in place. */
static void change_model(engine *e, const engine_message *m) {
    residency *r = &e->core.models;
    uint32_t idx = (uint32_t)m->id;
    uint64_t now_us = clock_now_us();
    switch (m->kind) {
    case ENGINE_MODEL_ADD:
        pulse_at_model(PULSE_DEVICE, "residency_attach", idx);
        residency_attach(r, idx, m->change->m, m->change->same_as, &m->change->policy, now_us);
        break;
    case ENGINE_MODEL_REMOVE:
        residency_remove(r, idx);
        break;
    case ENGINE_TENANT:
        sched_set_tenant(e->core.sched, idx, &m->change->tenant, now_us, NULL); // failed: no change
        break;
    case ENGINE_MODEL_POLICY:
        /* Its last work may have ended just now: an empty slot has no guarantee. */
        if (residency_state(r, idx) != MODEL_NONE)
            residency_set_policy(r, idx, &m->change->policy, now_us, NULL);
        break;
    case ENGINE_POLICY:
        set_policy(e, &m->change->limits);
        break;
    case ENGINE_LOSE:
        core_lose(&e->core, &m->change->lost);
        break;
    default:
        residency_do(r, idx, m->command, now_us);
        break;
    }
    free(m->change);
    if (!is_seen(m->kind)) return;
    e->n_changes++;
    e->views_us = 0; // they are written at the end of this iteration
}

static void engine_read_inbox(engine *e) {
    sched *s = e->core.sched;
    engine_message message;
    pulse_at(PULSE_WORK, "engine_read_inbox");
    answer_audit(e);
    watch_write_pages(e);
    /* A submission may be answered at once, so each message needs room for one event. */
    while (outbox_room(e) > 0 && ring_pop(&e->inbox, &message)) {
        uint64_t now_us = clock_now_us();
        pulse_at(PULSE_WORK, "engine_read_inbox");
        switch (message.kind) {
        case ENGINE_SUBMIT:
            sched_submit(s, message.request, now_us);
            break;
        case ENGINE_CANCEL:
            sched_cancel(s, message.id, now_us);
            break;
        case ENGINE_PAUSE:
            sched_pause(s, message.id);
            break;
        case ENGINE_RESUME:
            sched_resume(s, message.id, now_us);
            break;
        default:
            change_model(e, &message);
            break;
        }
    }
}

/* ---- steps ---- */

static void count_step(void *ctx, const step *st, uint64_t device_us, uint64_t wall_us) {
    engine *e = ctx;
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
    watch_finished(e, st, wall_us);
}

static uint64_t real_clock(void *ctx) {
    (void)ctx;
    return clock_now_us();
}

static bool engine_step(engine *e) {
    engine_read_inbox(e);
    bool any = core_iterate(&e->core);
    pulse_at(PULSE_WORK, "outbox_publish");
    outbox_publish(e);
    return any;
}

/* ---- waiting ---- */

/* Waits for a message, a deadline, or room in the outbox. */
static void wait_for_work(engine *e) {
    core *k = &e->core;
    uint64_t from_us = clock_now_us(), until_us = core_sleep_until_us(k, from_us);
    core_idle(k, from_us, from_us);
    publish_slots(e, true);
    publish_usage(e);
    atomic_store(&e->idle_since_us, k->usage.until_us);
    pulse_at(PULSE_REST, "park");
    pthread_mutex_lock(&e->mutex);
    e->outbox_blocked = sched_n_unsent(k->sched) > 0 || outbox_room(e) < k->step_events_max;
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
    pulse_at(PULSE_WORK, "park");
    core_idle(k, from_us, clock_now_us());
    publish_usage(e);
}

static void signal_engine(engine *e) {
    pthread_mutex_lock(&e->mutex);
    e->signalled = true;
    pthread_cond_signal(&e->to_engine);
    pthread_mutex_unlock(&e->mutex);
}

/* ---- the thread ---- */

/* Requests that were submitted but never read end, too. */
static void cancel_unread(engine *e) {
    engine_message message;
    while (outbox_room(e) > 0 && ring_pop(&e->inbox, &message)) {
        free(message.change);
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
    core_end(&e->core);
    outbox_publish(e);
    cancel_unread(e);
}

static void open_device(engine *e) {
    inferd_err err = {0};
    const device_about *about = &e->core.about;
    if (core_open(&e->core, &err) != INFERD_OK) {
        core_lose(&e->core, &err);
        return;
    }
    memcpy(e->device_name, about->name, sizeof e->device_name);
    e->device_name[sizeof e->device_name - 1] = 0;
    memcpy(e->device_warning, about->warning, sizeof e->device_warning);
    atomic_store_explicit(&e->opened, true, memory_order_release);
}

static void *engine_main(void *arg) {
    engine *e = arg;
    pulse_join(&e->pulse);
    pulse_at(PULSE_REST, "open_device"); // a driver may take its time at the start
    open_device(e);
    publish_stats(e);
    wake_front(e);
    while (!atomic_load_explicit(&e->stop, memory_order_acquire))
        if (!engine_step(e)) wait_for_work(e);
    pulse_at(PULSE_REST, "end_everything"); // the end has a bound of its own
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

/* Frees everything an engine owns; the thread has ended or was never there. */
static void destroy(engine *e) {
    engine_message message;
    while (e->inbox.slots != NULL && ring_pop(&e->inbox, &message)) {
        gen_request_destroy(message.request);
        free(message.change);
    }
    core_deinit(&e->core);
    for (uint32_t i = 0; e->slots != NULL && i < e->n_slots; i++) board_deinit(&e->slots[i].info);
    free(e->slots);
    board_deinit(&e->stats_board);
    watch_deinit(&e->watch);
    flow_views_deinit(&e->flows);
    free(e->tenant_bytes);
    free(e->tenant_seqs);
    ring_deinit(&e->inbox);
    ring_deinit(&e->outbox);
    buf_deinit(&e->audit_json);
    pthread_cond_destroy(&e->to_front);
    pthread_cond_destroy(&e->to_engine);
    pthread_mutex_destroy(&e->mutex);
    free(e);
}

static void wake_engine(void *ctx) {
    signal_engine(ctx);
}

static inferd_status init_views(engine *e, uint32_t n_slots, inferd_err *err) {
    inferd_status s = board_init(&e->stats_board, sizeof(engine_stats), err);
    if (s == INFERD_OK) s = flow_views_init(&e->flows, err);
    if (s == INFERD_OK) s = watch_init(&e->watch, err);
    if (s != INFERD_OK) return s;
    e->tenant_bytes = calloc(ENGINE_TENANTS_MAX, sizeof *e->tenant_bytes);
    e->tenant_seqs = calloc(ENGINE_TENANTS_MAX, sizeof *e->tenant_seqs);
    if (e->tenant_bytes == NULL || e->tenant_seqs == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for the bytes of %d tenants",
                           ENGINE_TENANTS_MAX);
    e->slots = calloc(size_max(n_slots, 1), sizeof *e->slots);
    if (e->slots == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for %u slots", n_slots);
    e->n_slots = n_slots;
    for (uint32_t i = 0; i < n_slots && s == INFERD_OK; i++)
        s = board_init(&e->slots[i].info, sizeof(engine_model_info), err);
    return s;
}

/* The core takes the device, also on failure. */
static inferd_status init_parts(engine *e, device dev, uint32_t n_slots, inferd_err *err) {
    const engine_limits *l = &e->limits;
    core_options o = {.device = dev,
                      .limits = limits_of_sched(l),
                      .residency = limits_of_models(l),
                      .kv = l->kv,
                      .disk_ops = l->disk != NULL ? &kv_disk_files : NULL,
                      .disk = l->disk,
                      .n_slots = n_slots,
                      .clock = real_clock,
                      .room = outbox_free,
                      .emit = push_event,
                      .wake = wake_engine,
                      .on_launch = watch_launched,
                      .on_step = count_step,
                      .note = watch_note,
                      .drill = engine_drill_step,
                      .ctx = e};
    inferd_status s = core_init(&e->core, &o, err);
    if (s != INFERD_OK) return s;
    uint32_t n_events = power_of_two(u32_max(OUTBOX_EVENTS_MIN, 8 * e->core.step_events_max));
    uint32_t n_messages = power_of_two(u32_max(INBOX_MESSAGES_MIN, 4 * l->queue_len_max));
    s = ring_init(&e->inbox, n_messages, sizeof(engine_message), err);
    if (s == INFERD_OK) s = ring_init(&e->outbox, n_events, sizeof(gen_event), err);
    return s == INFERD_OK ? init_views(e, n_slots, err) : s;
}

inferd_status engine_start_device(const engine_limits *limits, device dev, uint32_t n_slots,
                                  void (*wake)(void *ctx), void *wake_ctx, engine **out,
                                  inferd_err *err) {
    engine *e = NULL;
    if (limits->running_max > 1u << 16 || limits->step_tokens_max > 1u << 20 ||
        limits->queue_len_max > 1u << 21 || n_slots > SLOTS_MAX) {
        dev.ops->close(dev.self);
        return inferd_fail(err, INFERD_EINVAL,
                           "limits of %u sequences, %u rows, %u waiting requests and %u models are "
                           "too large",
                           limits->running_max, limits->step_tokens_max, limits->queue_len_max,
                           n_slots);
    }
    if (posix_memalign((void **)&e, 64, sizeof *e) != 0) { // ring ends have their own cache lines
        dev.ops->close(dev.self);
        return inferd_fail(err, INFERD_ENOMEM, "no memory for an engine");
    }
    memset(e, 0, sizeof *e);
    e->limits = limits_fill(limits);
    e->drill = ENGINE_DRILL_NONE;
    e->wake = wake;
    e->wake_ctx = wake_ctx;
    inferd_status s = init_parts(e, dev, n_slots, err);
    if (s == INFERD_OK) s = init_threads(e, err);
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

/* A device that chooses how many rows a step has chooses fewer where memory is small. */
inferd_status engine_expect_models(engine_options *options, const model *const *models, uint32_t n,
                                   inferd_err *err) {
    engine_limits l = limits_fill(&options->limits);
    sched_limits of = limits_of_sched(&l);
    model_limits each = {.rows_max = of.step_tokens_max, .logits_max = of.logits_max, .kv = l.kv};
    backend_options *o = &options->device;
    inferd_status s = models_workspace_bytes(models, n, o, &each, &o->workspace_least, err);
    bool small = o->memory_bytes != 0 && o->workspace_least > o->memory_bytes / 4;
    if (s != INFERD_OK || !of.step_tokens_by_device || !small) return s;
    each.rows_max = u32_max(STEP_TOKENS_DEFAULT, of.running_max);
    each.logits_max = u32_min(each.logits_max, each.rows_max);
    return models_workspace_bytes(models, n, o, &each, &o->workspace_least, err);
}

inferd_status engine_start(const engine_options *options, engine **out, inferd_err *err) {
    device dev;
    inferd_status s = device_backend_create(&options->device, options->n_slots, &dev, err);
    if (s != INFERD_OK) return s;
    return engine_start_device(&options->limits, dev, options->n_slots, options->wake,
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
    /* The other half is for messages about submitted requests: those must not be refused. */
    if (ring_fill(&e->inbox) >= e->inbox.capacity / 2) return false;
    engine_message message = {.kind = ENGINE_SUBMIT, .id = r->id, .request = r};
    if (!ring_push(&e->inbox, &message)) return false;
    signal_engine(e);
    return true;
}

/* Half of the inbox full of these while the engine loads a model is hardly possible.  The front
 * waits then, because a lost cancel would be worse. */
static void send_message(engine *e, engine_message message) {
    while (!ring_push(&e->inbox, &message)) {
        if (e->joined) {
            free(message.change);
            return;
        }
        signal_engine(e);
        pulse_at(PULSE_WORK, "wait for an engine's inbox"); // the engine has its own pulse
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    signal_engine(e);
}

static void send(engine *e, engine_message_kind kind, uint64_t id) {
    send_message(e, (engine_message){.kind = kind, .id = id});
}

/* Until the views contain this change, they do not show what will be admitted. */
static bool send_change(engine *e, engine_message_kind kind, uint32_t idx,
                        const engine_model_change *given) {
    engine_model_change *change = malloc(sizeof *change);
    if (change == NULL) return false;
    *change = *given;
    if (is_seen(kind)) atomic_fetch_add(&e->n_changes_sent, 1);
    send_message(e, (engine_message){.kind = kind, .id = idx, .change = change});
    return true;
}

bool engine_model_add(engine *e, uint32_t model_idx, model *m, uint32_t same_as,
                      const model_policy *policy) {
    INFERD_CHECK(model_idx < e->n_slots);
    engine_model_change change = {.m = m, .same_as = same_as, .policy = *policy};
    return send_change(e, ENGINE_MODEL_ADD, model_idx, &change);
}

bool engine_model_set_policy(engine *e, uint32_t model_idx, const model_policy *policy) {
    INFERD_CHECK(model_idx < e->n_slots);
    engine_model_change change = {.policy = *policy};
    return send_change(e, ENGINE_MODEL_POLICY, model_idx, &change);
}

bool engine_set_tenant(engine *e, uint32_t tenant_idx, const tenant_policy *policy) {
    engine_model_change change = {.tenant = *policy};
    return send_change(e, ENGINE_TENANT, tenant_idx, &change);
}

bool engine_set_policy(engine *e, const engine_limits *limits) {
    engine_model_change change = {.limits = *limits};
    return send_change(e, ENGINE_POLICY, 0, &change);
}

bool engine_lose(engine *e, const inferd_err *why) {
    engine_model_change change = {.lost = *why};
    INFERD_CHECK(why->status == INFERD_ELOST);
    return send_change(e, ENGINE_LOSE, 0, &change);
}

void engine_model_remove(engine *e, uint32_t model_idx) {
    INFERD_CHECK(model_idx < e->n_slots);
    send(e, ENGINE_MODEL_REMOVE, model_idx);
}

void engine_model_do(engine *e, uint32_t model_idx, engine_command command) {
    INFERD_CHECK(model_idx < e->n_slots);
    send_message(e, (engine_message){.kind = ENGINE_MODEL_DO, .id = model_idx, .command = command});
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
        sched_flush(e->core.sched, outbox_room(e)); // halted: no other thread uses these any more
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
    board_read(&e->stats_board, out);
    if (engine_is_lost(e)) return; // its time ends: it is not idle
    /* The engine has been idle since then, and does not write meanwhile. */
    uint64_t now_us = clock_now_us();
    if (out->usage_until_us == 0 || atomic_load(&e->idle_since_us) != out->usage_until_us ||
        now_us < out->usage_until_us)
        return;
    out->usage_idle_us += now_us - out->usage_until_us;
    out->usage_until_us = now_us;
}

uint64_t engine_tenant_bytes(const engine *e, uint32_t tenant_idx) {
    return tenant_idx < ENGINE_TENANTS_MAX
               ? atomic_load_explicit(&e->tenant_bytes[tenant_idx], memory_order_relaxed)
               : 0;
}

void engine_tenant_seqs(const engine *e, uint32_t tenant_idx, uint32_t *n_running,
                        uint32_t *n_waiting) {
    uint64_t seqs = tenant_idx < ENGINE_TENANTS_MAX
                        ? atomic_load_explicit(&e->tenant_seqs[tenant_idx], memory_order_relaxed)
                        : 0;
    *n_running = (uint32_t)(seqs >> 32);
    *n_waiting = (uint32_t)seqs;
}

model_state engine_model_state(const engine *e, uint32_t model_idx) {
    return model_idx < e->n_slots ? (model_state)atomic_load(&e->slots[model_idx].state)
                                  : MODEL_NONE;
}

void engine_model_get(const engine *e, uint32_t model_idx, engine_model_info *out) {
    *out = (engine_model_info){.state = MODEL_NONE};
    if (model_idx < e->n_slots) board_read(&e->slots[model_idx].info, out);
    uint64_t now_us = clock_now_us();
    if (out->state == MODEL_NONE || now_us < out->at_us) return;
    if (out->state == MODEL_HOT) out->hot_us += now_us - out->at_us;
    if (out->idle_us > 0) out->idle_us += now_us - out->at_us;
    uint64_t elapsed_ms = (now_us - out->at_us) / 1000;
    if (out->state == MODEL_FAILED && out->retry_after_ms > 0) {
        if (elapsed_ms < out->retry_after_ms)
            out->retry_after_ms -= (uint32_t)elapsed_ms;
        else
            out->state = MODEL_COLD; // the engine is about to notice
    }
    out->at_us = now_us;
}

uint32_t engine_model_departures(const engine *e, uint32_t model_idx) {
    return model_idx < e->n_slots ? atomic_load(&e->slots[model_idx].departures) : 0;
}

void engine_model_error(const engine *e, uint32_t model_idx, inferd_err *out) {
    engine_model_info info;
    engine_model_get(e, model_idx, &info);
    *out = info.state == MODEL_FAILED ? info.why : (inferd_err){.status = INFERD_OK};
}

bool engine_is_settled(const engine *e) {
    return atomic_load(&e->settled);
}

bool engine_is_lost(const engine *e) {
    return atomic_load(&e->lost);
}

uint64_t engine_stuck_us(const engine *e) {
    uint64_t since = atomic_load_explicit(&e->busy_since_us, memory_order_relaxed);
    uint64_t now_us = clock_now_us();
    return since != 0 && now_us > since ? now_us - since : 0;
}

const pulse *engine_pulse(const engine *e) {
    return &e->pulse;
}

const char *engine_device_name(const engine *e) {
    return atomic_load_explicit(&e->opened, memory_order_acquire) ? e->device_name : "";
}

const char *engine_device_warning(const engine *e) {
    return atomic_load_explicit(&e->opened, memory_order_acquire) ? e->device_warning : "";
}

bool engine_weigh(const engine *e, const model *m, uint32_t *n_pages, uint64_t *n_bytes) {
    const device *d = &e->core.device; // not written again once it is open
    inferd_err unsaid = {0};
    return atomic_load_explicit(&e->opened, memory_order_acquire) && d->ops->weigh != NULL &&
           d->ops->weigh(d->self, m, n_pages, n_bytes, &unsaid) == INFERD_OK;
}

void engine_load_progress(const engine *e, uint64_t *done, uint64_t *total) {
    *done = *total = 0;
    for (uint32_t i = 0; i < e->n_slots; i++) {
        engine_model_info info;
        model_state state = engine_model_state(e, i);
        if (state != MODEL_STAGING && state != MODEL_LOADING) continue;
        engine_model_get(e, i, &info);
        *done += info.bytes_done;
        *total += info.bytes_total;
    }
}

inferd_status engine_admit(const engine *e, uint32_t model_idx, uint32_t n_prompt,
                           uint32_t max_tokens, uint32_t *fit_tokens, inferd_err *err) {
    uint32_t ignored;
    if (fit_tokens == NULL) fit_tokens = &ignored;
    *fit_tokens = 0;
    if (model_idx >= e->n_slots)
        return inferd_fail(err, INFERD_ENOTFOUND, "model index %u, there are %u models", model_idx,
                           e->n_slots);
    const slot_view *v = &e->slots[model_idx];
    model_state state = engine_model_state(e, model_idx);
    if (state == MODEL_NONE) return INFERD_OK; // not known yet; the engine checks again
    if (atomic_load(&v->held))
        return inferd_fail(err, INFERD_EMODEL,
                           "the model was taken out of service by the operator");
    /* The views may still lack a policy change, such as a raised ceiling. */
    if (atomic_load(&e->n_changes_seen) != atomic_load(&e->n_changes_sent)) return INFERD_OK;
    if (state == MODEL_FAILED) {
        engine_model_error(e, model_idx, err);
        bool told = err->status == INFERD_ELOST || err->status == INFERD_EQUOTA;
        if (err->status != INFERD_OK && !told) err->status = INFERD_EMODEL;
        if (err->status != INFERD_OK) return err->status; // else it was just revived
    }
    uint32_t room = atomic_load(&v->kv_tokens_max), ceiling = atomic_load(&v->kv_tokens_ceiling);
    *fit_tokens = u32_min(room, ceiling);
    return sched_admit(atomic_load(&v->context), room, ceiling, n_prompt, max_tokens, err);
}

static inferd_status ask_for_json(engine *e, bool map, uint32_t timeout_ms, buf *json,
                                  inferd_err *err) {
    uint64_t until_us = clock_now_us() + (uint64_t)timeout_ms * 1000;
    struct timespec ts = {.tv_sec = (time_t)(until_us / 1000000),
                          .tv_nsec = (long)(until_us % 1000000) * 1000};
    pthread_mutex_lock(&e->mutex);
    uint64_t wanted = ++e->audit_wanted;
    e->map_wanted = map;
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

inferd_status engine_audit(engine *e, uint32_t timeout_ms, buf *json, inferd_err *err) {
    return ask_for_json(e, false, timeout_ms, json, err);
}

inferd_status engine_page_map(engine *e, uint32_t timeout_ms, buf *json, inferd_err *err) {
    return ask_for_json(e, true, timeout_ms, json, err);
}
