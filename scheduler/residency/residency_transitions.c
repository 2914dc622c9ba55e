/* residency_transitions.c - the transitions of residency.h: no other code writes `state`. */
#include "residency_parts.h"

enum {
    STAGED_AGAIN_US = 60000000, // after a cancelled stage: a new one is not cancelled
    FAILURES_DOUBLED_MAX = 16
};

void residency_enter(residency *r, uint32_t i, model_state state) {
    resident *m = &r->slots[i];
    m->state = state;
    m->n_colds += state == MODEL_COLD;
    if (state == MODEL_FAILED) m->evict_next = m->drop_next = false;
    if (state == MODEL_DRAINING) m->evict_next = false;
    r->n_changes++;
}

static void set_hot(residency *r, uint32_t root, bool hot) {
    EACH_MEMBER(r, root, i)
        if (r->slots[i].state != MODEL_FAILED)
            sched_model_hot(r->sched, i, hot, r->slots[root].hot_since_us);
}

static void give_pages(residency *r, resident *m) {
    for (uint32_t i = 0; i < m->n_pages; i++) pool_give(r->pool, m->pages[i], 0);
    m->n_pages = 0;
    m->on_device = false;
}

void residency_give_memory(residency *r, resident *m) {
    give_pages(r, m);
    if (m->host_copy && !r->one_memory) pool_host_give(r->pool, m->about.host_pages);
    m->host_copy = false;
}

/* After one more failure: sets the time of the next attempt. */
static void wait_longer(residency *r, resident *m, uint64_t now_us) {
    uint32_t doubled = u32_min(m->n_failures, FAILURES_DOUBLED_MAX);
    uint64_t wait_us = r->limits.retry_us << doubled;
    if (wait_us > r->limits.retry_max_us) wait_us = r->limits.retry_max_us;
    m->retry_at_us = now_us + wait_us;
    m->n_failures++;
}

inferd_err residency_as_told(const inferd_err *why) {
    inferd_err told = *why;
    if (told.status != INFERD_ELOST && told.status != INFERD_EQUOTA) told.status = INFERD_EMODEL;
    return told;
}

/* ---- notes for people ---- */

static void note(residency *r, const engine_note *n) {
    if (r->note != NULL) r->note(r->note_ctx, n);
}

static uint64_t waited_us(const resident *m, uint64_t now_us) {
    return m->wanted_since_us != 0 ? u64_less(now_us, m->wanted_since_us) : 0;
}

/* Before it gives its pages back. */
static void note_evicted(residency *r, uint32_t root, uint64_t now_us) {
    const resident *m = &r->slots[root];
    uint64_t n_pages = 0;
    EACH_MEMBER(r, root, i) n_pages += pool_held(&r->pool->owners[i]);
    bool for_work = m->left_for != RESIDENCY_NONE;
    note(r, &(engine_note){.kind = ENGINE_NOTE_EVICTED,
                           .at_us = now_us,
                           .model_idx = root,
                           .for_idx = m->left_for,
                           .cause = m->cause,
                           .n_bytes = n_pages * r->page_bytes,
                           .wait_us = for_work ? waited_us(&r->slots[m->left_for], now_us) : 0});
}

static void note_loaded(residency *r, uint32_t root, uint64_t now_us) {
    const resident *m = &r->slots[root];
    note(r, &(engine_note){.kind = ENGINE_NOTE_LOADED,
                           .at_us = now_us,
                           .model_idx = root,
                           .for_idx = ENGINE_NOTE_NO_MODEL,
                           .from_file = m->staged_now,
                           .n_bytes = m->about.weight_bytes,
                           .wait_us = waited_us(m, now_us),
                           .bring_us = m->bring_us});
}

/* STAGING, LOADING -> FAILED: the device has nothing of it any more. */
void residency_fail(residency *r, uint32_t root, const inferd_err *why, uint64_t now_us) {
    resident *m = &r->slots[root];
    residency_give_memory(r, m);
    wait_longer(r, m, now_us);
    if (why->status == INFERD_ELOST) {
        m->retry_at_us = 0;
        r->gone = *why;
    }
    m->n_failed++;
    m->n_tried = 0;
    m->wanted = m->prefetch = false;
    inferd_err told = residency_as_told(why);
    EACH_MEMBER(r, root, i) {
        if (r->slots[i].state == MODEL_FAILED) continue;
        r->slots[i].why = *why;
        r->slots[i].wanted_since_us = 0;
        sched_model_fail(r->sched, i, &told, m->retry_at_us, now_us);
    }
    residency_enter(r, root, MODEL_FAILED);
    residency_tell_pins(r);
    note(r, &(engine_note){.kind = ENGINE_NOTE_FAILED,
                           .at_us = now_us,
                           .model_idx = root,
                           .for_idx = ENGINE_NOTE_NO_MODEL});
}

/* FAILED -> COLD. */
void residency_retry(residency *r, uint32_t root) {
    EACH_MEMBER(r, root, i)
        if (!r->slots[i].no_guarantee) sched_model_revive(r->sched, i);
    residency_enter(r, root, MODEL_COLD);
}

void residency_join(residency *r, uint32_t idx) {
    resident *m = &r->slots[idx], *root = &r->slots[m->weights_of];
    if (m == root) return;
    if (root->state == MODEL_HOT) sched_model_hot(r->sched, idx, true, root->hot_since_us);
    if (root->state != MODEL_FAILED || root->retry_at_us == 0) return;
    root->retry_at_us = 0; // its file may differ from the failed one
    residency_retry(r, m->weights_of);
}

/* ---- guarantees that do not fit ---- */

/* COLD -> FAILED, or FAILED again.  Tried again when guarantees of other models have gone, and
 * periodically.  Its weight group goes on without it. */
void residency_fail_guarantee(residency *r, uint32_t idx, const inferd_err *why, uint64_t now_us) {
    resident *m = &r->slots[idx];
    inferd_err told = residency_as_told(why);
    m->no_guarantee = true;
    m->n_min_tried = r->pool->n_min;
    m->why = *why;
    wait_longer(r, m, now_us);
    sched_model_fail(r->sched, idx, &told, m->retry_at_us, now_us);
    residency_enter(r, idx, MODEL_FAILED);
    residency_tell_pins(r);
}

/* FAILED -> COLD. */
void residency_keep_guarantee(residency *r, uint32_t idx) {
    resident *m = &r->slots[idx];
    m->no_guarantee = false;
    m->n_failures = 0;
    sched_model_revive(r->sched, idx);
    residency_enter(r, idx, MODEL_COLD);
    residency_join(r, idx);
}

/* ---- which slot has the weights of a group ---- */

static bool fits_under_max(const residency *r, uint32_t idx, uint32_t root) {
    return r->pool->owners[idx].max > r->slots[root].about.weight_pages;
}

/* The next member in slot order that could have the weights, if possible under its ceiling. */
static uint32_t next_reader(const residency *r, uint32_t root) {
    uint32_t found = RESIDENCY_NONE;
    for (uint32_t n = 1; n < r->n_used && r->slots[root].n_members > 1; n++) {
        uint32_t i = (root + n) % r->n_used;
        const resident *m = &r->slots[i];
        if (m->state != MODEL_COLD || m->weights_of != root || !residency_counts(r, i)) continue;
        if (fits_under_max(r, i, root)) return i;
        if (found == RESIDENCY_NONE) found = i;
    }
    return found;
}

/* Keeps the fields that belong to the name, not to the weights. */
static void keep_name(resident *m, const resident *was) {
    m->served = was->served;
    m->held = was->held;
    m->no_guarantee = was->no_guarantee;
    m->policy = was->policy;
    m->about.spec = was->about.spec;
}

/* The weights, which are not being staged or loaded, move to another slot with their state. */
static void hand_over(residency *r, uint32_t from, uint32_t to) {
    resident *a = &r->slots[from], *b = &r->slots[to], weights = *a, other = *b;
    r->dev->ops->hand_over(r->dev->self, from, to);
    pool_hand_over(r->pool, weights.pages, weights.n_pages, to);
    *a = other;
    *b = weights;
    keep_name(a, &weights);
    keep_name(b, &other);
    for (uint32_t i = 0; i < r->n_used; i++)
        if (r->slots[i].state != MODEL_NONE && r->slots[i].weights_of == from)
            r->slots[i].weights_of = to;
    for (uint32_t i = 0; i < r->n_used; i++)
        if (r->slots[i].away_for == from) r->slots[i].away_for = to;
    r->n_changes++;
    residency_tell_pins(r);
}

bool residency_pass_on(residency *r, uint32_t root) {
    resident *m = &r->slots[root];
    if (m->served || r->dead || r->dev->ops->hand_over == NULL || m->state == MODEL_STAGING ||
        m->state == MODEL_LOADING || m->state == MODEL_DRAINING)
        return false;
    uint32_t to = next_reader(r, root);
    /* Under a ceiling that is too low the work of the old slot could not end. */
    if (to == RESIDENCY_NONE ||
        (!fits_under_max(r, to, root) && sched_model_n_seqs(r->sched, root) > 0))
        return false;
    hand_over(r, root, to);
    m = &r->slots[to];
    if (m->state == MODEL_FAILED && m->retry_at_us != 0) { // another name's file may be readable
        m->retry_at_us = 0;
        residency_retry(r, to);
    }
    return true;
}

/* Do the weights fit the device and this slot's ceiling, beside its KV and the pages of others? */
static bool may_have_them(const residency *r, uint32_t idx, uint32_t root) {
    uint64_t n = r->slots[root].about.weight_pages, kept = residency_kept_by_others(r, idx);
    uint64_t own = idx != root ? pool_held(&r->pool->owners[idx]) : 0;
    own -= own > 0 ? sched_model_n_cached(r->sched, idx) : 0; // these go
    return n + own < r->pool->owners[idx].max && n + kept < r->pool->n_device;
}

bool residency_charge_best(residency *r, uint32_t root) {
    const resident *m = &r->slots[root];
    const pool_owner *owners = r->pool->owners;
    uint32_t best = root;
    bool comes_or_goes = m->state == MODEL_STAGING || m->state == MODEL_LOADING ||
                         m->state == MODEL_DRAINING || m->state == MODEL_FAILED;
    if (m->n_members < 2 || comes_or_goes || m->n_tried > 0 || r->dead ||
        r->dev->ops->hand_over == NULL)
        return false;
    bool may = may_have_them(r, root, root);
    for (uint32_t i = 0; i < r->n_used; i++) {
        if (i == root || r->slots[i].weights_of != root || r->slots[i].state != MODEL_COLD ||
            !residency_counts(r, i))
            continue;
        bool its = may_have_them(r, i, root);
        if (its != may ? may : owners[i].min <= owners[best].min) continue;
        best = i;
        may = its;
    }
    if (best == root) return false;
    hand_over(r, root, best);
    return true;
}

/* STAGING -> FAILED, when no name has a readable file: each is tried once. */
void residency_fail_stage(residency *r, uint32_t root, const inferd_err *why, uint64_t now_us) {
    resident *m = &r->slots[root];
    uint32_t n_names = 0, next = RESIDENCY_NONE;
    EACH_MEMBER(r, root, i) n_names += residency_counts(r, i);
    m->n_tried += m->served;
    if (why->status != INFERD_ELOST && m->n_tried < n_names && r->dev->ops->hand_over != NULL)
        next = next_reader(r, root);
    if (next == RESIDENCY_NONE) {
        residency_fail(r, root, why, now_us);
        return;
    }
    residency_give_memory(r, m);
    residency_enter(r, root, MODEL_COLD); // not by a command: evict_next and drop_next stay
    hand_over(r, root, next);
}

static void wake_stage(void *ctx) {
    residency *r = ctx;
    atomic_store_explicit(&r->stage_ready, true, memory_order_release);
    if (r->wake != NULL) r->wake(r->wake_ctx);
}

/* It has its pages.  Its wait has two parts: until pages were asked for, and then for the pages. */
static void note_waits(resident *m, uint64_t now_us) {
    uint64_t asked_us = m->room_wanted_us != 0 ? m->room_wanted_us : now_us;
    if (!m->staged_now && m->wanted_since_us != 0 && asked_us > m->wanted_since_us)
        m->parts.queue_us = asked_us - m->wanted_since_us;
    m->parts.reclaim_us += now_us - asked_us;
    m->room_wanted_us = 0;
}

/* COLD -> STAGING, with its memory taken; or FAILED. */
void residency_stage(residency *r, uint32_t root, uint64_t now_us) {
    resident *m = &r->slots[root];
    inferd_err err = {0};
    m->begun_us = now_us;
    m->bytes_done = 0;
    m->bytes_total = m->about.stage_bytes;
    m->parts = (engine_switch){0};
    m->staged_now = false;
    note_waits(m, now_us);
    m->staged_again = m->cancelled_us != 0 && now_us - m->cancelled_us < STAGED_AGAIN_US;
    atomic_store_explicit(&r->stage_ready, true, memory_order_relaxed);
    r->staging = root;
    residency_enter(r, root, MODEL_STAGING);
    if (wgroup_is_pinned(r, root, PIN_HOT)) residency_tell_pins(r); // its pages are taken
    if (r->dev->ops->stage_begin(r->dev->self, root, m->n_pages > 0 ? m->pages : NULL, wake_stage,
                                 r, &err) == INFERD_OK)
        return;
    r->staging = RESIDENCY_NONE;
    residency_fail_stage(r, root, &err, now_us);
}

static void forget_weights(residency *r, uint32_t root) {
    resident *m = &r->slots[root];
    r->dev->ops->unstage(r->dev->self, root);
    residency_give_memory(r, m);
    m->evict_next = m->drop_next = false; // it is where the command wanted it
    residency_enter(r, root, MODEL_COLD);
}

/* STAGING -> COLD: nothing wants it any more. */
void residency_cancel_stage(residency *r, uint32_t root) {
    r->staging = RESIDENCY_NONE;
    forget_weights(r, root);
}

/* STAGING -> WARM. */
void residency_staged(residency *r, uint32_t root, uint64_t now_us) {
    resident *m = &r->slots[root];
    r->staging = RESIDENCY_NONE;
    m->n_stages++;
    m->staged_now = true;
    m->staged_ahead = m->wanted_since_us == 0 && !m->wanted;
    m->n_tried = 0;
    m->cancelled_us = 0;
    m->prefetch = false;
    m->parts.stage_us = now_us - m->begun_us;
    residency_enter(r, root, MODEL_WARM);
}

/* WARM -> COLD. */
void residency_drop(residency *r, uint32_t root) {
    forget_weights(r, root);
}

/* LOADING -> HOT. */
void residency_loaded(residency *r, uint32_t root, uint64_t now_us) {
    resident *m = &r->slots[root];
    r->loading = RESIDENCY_NONE;
    m->n_loads++;
    m->n_failures = 0;
    m->wanted = false;
    m->hot_since_us = m->active_us = now_us;
    m->parts.load_us = now_us - m->begun_us;
    m->bring_us = m->parts.stage_us + m->parts.load_us;
    m->parts_sum.queue_us += m->parts.queue_us;
    m->parts_sum.stage_us += m->parts.stage_us;
    m->parts_sum.load_us += m->parts.load_us;
    m->parts_sum.reclaim_us += m->parts.reclaim_us;
    engine_bring_ups *kind = m->staged_now ? &m->from_file : &m->from_host;
    kind->n++;
    kind->us += m->bring_us;
    note_loaded(r, root, now_us);
    m->wanted_since_us = 0;
    if (m->cause <= ENGINE_EVICT_SLICE && m->n_evictions[m->cause] > 0)
        r->reload_us += m->bring_us; // it had been evicted for others
    m->last = m->parts;
    m->parts = (engine_switch){0}; // the next bring-up may start WARM
    m->staged_now = false;
    residency_enter(r, root, MODEL_HOT);
    set_hot(r, root, true);
    if (wgroup_is_pinned(r, root, PIN_HOT)) residency_tell_pins(r);
}

/* WARM -> LOADING, with its pages taken; HOT at once where nothing needs copying. */
void residency_load(residency *r, uint32_t root, uint64_t now_us) {
    resident *m = &r->slots[root];
    inferd_err err = {0};
    /* Reading weights before anything wanted the model is no part of bringing it up now. */
    if (m->staged_ahead && (m->wanted || m->wanted_since_us != 0)) {
        m->parts = (engine_switch){0};
        m->staged_now = false;
    }
    note_waits(m, now_us);
    m->begun_us = now_us;
    r->loading = root;
    residency_enter(r, root, MODEL_LOADING);
    if (wgroup_is_pinned(r, root, PIN_HOT)) residency_tell_pins(r);
    device_progress p = {0};
    inferd_status st = r->dev->ops->load_begin(r->dev->self, root, m->pages, &err);
    if (st == INFERD_OK) st = r->dev->ops->load_step(r->dev->self, root, 0, &p, &err);
    m->load_device_us += p.device_us;
    if (st == INFERD_OK && p.finished) {
        residency_loaded(r, root, now_us);
    } else if (st != INFERD_OK) {
        r->loading = RESIDENCY_NONE;
        r->dev->ops->unstage(r->dev->self, root);
        residency_fail(r, root, &err, now_us);
    }
}

/* HOT -> DRAINING. */
void residency_drain(residency *r, uint32_t root, engine_evict_cause cause, bool leaving,
                     uint64_t now_us) {
    resident *m = &r->slots[root];
    m->cause = cause;
    m->left_for = RESIDENCY_NONE;
    m->leaving = leaving;
    m->n_evictions[cause]++;
    m->hot_us += now_us - m->hot_since_us;
    EACH_MEMBER(r, root, i) {
        if (r->slots[i].state == MODEL_FAILED) continue;
        sched_model_close_window(r->sched, i, true);
        if (leaving) sched_model_preempt(r->sched, i);
    }
    residency_enter(r, root, MODEL_DRAINING);
}

/* DRAINING -> HOT: new work came before it left. */
void residency_resume(residency *r, uint32_t root, uint64_t now_us) {
    resident *m = &r->slots[root];
    m->hot_since_us = now_us;
    EACH_MEMBER(r, root, i)
        if (r->slots[i].state != MODEL_FAILED) sched_model_close_window(r->sched, i, false);
    set_hot(r, root, true); // for members that joined meanwhile
    residency_enter(r, root, MODEL_HOT);
}

/* The copy to the host is complete, or failed: DRAINING -> WARM, COLD. */
void residency_saved(residency *r, uint32_t root, bool complete) {
    resident *m = &r->slots[root];
    bool drop = m->drop_next || !complete;
    r->saving = RESIDENCY_NONE;
    m->leaving = m->drop_next = false;
    m->n_left++;
    if (drop) {
        residency_drop(r, root);
        return;
    }
    r->dev->ops->unload(r->dev->self, root);
    residency_enter(r, root, MODEL_WARM);
    give_pages(r, m);
}

void residency_drop_copy(residency *r, uint32_t root) {
    resident *m = &r->slots[root];
    r->dev->ops->drop_copy(r->dev->self, root);
    pool_host_give(r->pool, m->about.host_pages);
    m->host_copy = false;
    r->n_changes++;
}

/* Host memory apart, and there is no copy: one is made if there is room.  False: it need not or
 * cannot be made. */
static bool begin_save(residency *r, uint32_t root, uint32_t incoming, uint64_t now_us) {
    resident *m = &r->slots[root];
    inferd_err err = {0};
    if (r->one_memory || m->host_copy || m->drop_next || r->saving != RESIDENCY_NONE ||
        !residency_make_host_room(r, root, m->about.host_pages, incoming, false, now_us) ||
        r->dev->ops->save_begin(r->dev->self, root, &err) != INFERD_OK)
        return false;
    INFERD_CHECK(pool_host_take(r->pool, m->about.host_pages));
    m->host_copy = true;
    r->saving = root;
    return true;
}

/* DRAINING -> WARM, COLD. */
bool residency_release(residency *r, uint32_t root, uint32_t incoming, uint64_t now_us) {
    resident *m = &r->slots[root];
    note_evicted(r, root, now_us);
    /* Paused sequences stop running, too: they wait, and bring the model back when they go on. */
    EACH_MEMBER(r, root, i)
        if (r->slots[i].state != MODEL_FAILED) sched_model_preempt(r->sched, i);
    set_hot(r, root, false);
    EACH_MEMBER(r, root, i)
        if (r->slots[i].state != MODEL_FAILED) sched_model_close_window(r->sched, i, false);
    if (begin_save(r, root, incoming, now_us)) return false;
    m->leaving = false;
    m->n_left++;
    if (!r->one_memory && !m->host_copy) {
        residency_drop(r, root);
        return true;
    }
    r->dev->ops->unload(r->dev->self, root);
    residency_enter(r, root, MODEL_WARM);
    if (!r->one_memory) {
        give_pages(r, m);
    } else if (residency_make_host_room(r, root, m->n_pages, incoming, false, now_us) &&
               pool_convert(r->pool, m->pages, m->n_pages, PAGE_WARM)) {
        m->on_device = false;
    } else if (incoming != RESIDENCY_NONE && r->slots[incoming].state == MODEL_WARM &&
               !r->slots[incoming].on_device &&
               pool_exchange(r->pool, m->pages, m->n_pages, r->slots[incoming].pages,
                             r->slots[incoming].n_pages)) {
        m->on_device = false;
        r->slots[incoming].on_device = true;
    } else {
        residency_drop(r, root);
    }
    if (m->drop_next && m->state == MODEL_WARM) residency_drop(r, root);
    m->drop_next = false;
    return true;
}

/* any -> NONE. */
void residency_detach(residency *r, uint32_t idx) {
    resident *m = &r->slots[idx];
    if (r->staging == idx) r->staging = RESIDENCY_NONE;
    if (r->loading == idx) r->loading = RESIDENCY_NONE;
    if (r->saving == idx) r->saving = RESIDENCY_NONE;
    sched_model_close(r->sched, idx);
    r->dev->ops->detach(r->dev->self, idx); // on a dead device, too: it names the model
    residency_give_memory(r, m);
    if (!r->dead) pool_set_limits(r->pool, idx, 0, UINT32_MAX, NULL);
    free(m->pages);
    if (m->weights_of != idx) r->slots[m->weights_of].n_members--;
    *m = (resident){.state = MODEL_NONE};
    r->departures[idx]++;
    r->n_changes++;
    residency_tell_pins(r);
}
