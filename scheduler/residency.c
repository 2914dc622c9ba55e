/* residency.c - see residency.h.
 *
 *     the arrows           one function each, and nothing else writes `state`
 *     who comes            order, staging, loading
 *     residency_decide     what changed since the last look: ends of drains, idle models, retries
 *
 * Who has to go is residency_evict.c, and how long a turn is residency_turns.c. */
#include "residency_parts.h"
#include "scheduler/feasible.h"

enum {
    EAGER_LEAVES_QUARTERS = 1,  // of the device's pages free of weights nobody asked for
    KEEP_STAGE_PERCENT = 50,    // a stage this far goes on when nobody waits any more,
    STAGED_AGAIN_US = 60000000, // and one that was cancelled so short a time before
    FAILURES_DOUBLED_MAX = 16
};

typedef unsigned long long ull; // for printing

inferd_status residency_init(residency *r, uint32_t n_slots, const residency_limits *limits,
                             const device *dev, pool *p, sched *s, inferd_err *err) {
    *r = (residency){.n = n_slots,
                     .limits = *limits,
                     .dev = dev,
                     .pool = p,
                     .sched = s,
                     .staging = RESIDENCY_NONE,
                     .loading = RESIDENCY_NONE};
    r->slots = calloc(size_max(n_slots, 1), sizeof *r->slots);
    r->demands = calloc(size_max(n_slots, 1), sizeof *r->demands);
    r->departures = calloc(size_max(n_slots, 1), sizeof *r->departures);
    r->turns = calloc(size_max(n_slots, 1), sizeof *r->turns);
    r->turn_slots = calloc(size_max(n_slots, 1), sizeof *r->turn_slots);
    r->quotas = calloc(size_max(n_slots, 1), sizeof *r->quotas);
    r->leavers = calloc(size_max(n_slots, 1), sizeof *r->leavers);
    r->leaver_pages = calloc(size_max(n_slots, 1), sizeof *r->leaver_pages);
    if (r->turns == NULL || r->turn_slots == NULL || r->quotas == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for turns of %u models", n_slots);
    if (r->slots == NULL || r->demands == NULL || r->departures == NULL || r->leavers == NULL ||
        r->leaver_pages == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for %u models", n_slots);
    return INFERD_OK;
}

void residency_deinit(residency *r) {
    for (uint32_t i = 0; r->slots != NULL && i < r->n; i++) free(r->slots[i].pages);
    free(r->slots);
    free(r->demands);
    free(r->departures);
    free(r->turns);
    free(r->turn_slots);
    free(r->quotas);
    free(r->leavers);
    free(r->leaver_pages);
    *r = (residency){0};
}

/* ---- those who share one set of weights ---- */

model_state residency_state(const residency *r, uint32_t idx) {
    const resident *m = &r->slots[idx];
    if (m->state == MODEL_NONE || m->state == MODEL_FAILED) return m->state;
    return r->slots[m->weights_of].state;
}

sched_demand group_demand(const residency *r, uint32_t root) {
    sched_demand all = r->demands[root];
    if (r->slots[root].n_members == 1) return all;
    EACH_MEMBER(r, root, i) {
        const sched_demand *d = &r->demands[i];
        if (i == root) continue;
        all.n_waiting += d->n_waiting;
        all.n_running += d->n_running;
        all.n_steps += d->n_steps;
        all.again_us += d->again_us;
        if (d->running_class < all.running_class) all.running_class = d->running_class;
        if (d->n_waiting == 0 || d->waiting_class > all.waiting_class ||
            (d->waiting_class == all.waiting_class && d->oldest_us >= all.oldest_us))
            continue;
        all.waiting_class = d->waiting_class;
        all.oldest_us = d->oldest_us;
        all.first_pages = d->first_pages;
    }
    return all;
}

uint32_t group_n_steps(const residency *r, uint32_t root) {
    uint32_t n = 0;
    EACH_MEMBER(r, root, i) n += sched_model_n_steps(r->sched, i);
    return n;
}

bool group_is_pinned(const residency *r, uint32_t root, model_pin at_least) {
    EACH_MEMBER(r, root, i)
    if (residency_counts(r, i) && r->slots[i].policy.pin >= at_least) return true;
    return false;
}

/* Pages of its weights that never leave the device.  Those of a model that failed may not even fit.
 */
static uint32_t pinned_pages(const residency *r, uint32_t i) {
    const resident *m = &r->slots[i];
    if (!residency_is_root(r, i) || !group_is_pinned(r, i, PIN_HOT)) return 0;
    bool comes = m->n_failures == 0 && m->state != MODEL_FAILED;
    return comes || m->state == MODEL_HOT ? m->about.weight_pages : 0;
}

/* Who is let in has to know what never goes, and who was let in may not fit any more. */
static void tell_pins(residency *r) {
    for (uint32_t i = 0; i < r->n_used; i++)
        if (r->slots[i].state != MODEL_NONE)
            sched_model_pin(r->sched, i, r->slots[i].weights_of, pinned_pages(r, i));
}

static bool is_served(const residency *r, uint32_t root) {
    EACH_MEMBER(r, root, i) if (r->slots[i].served) return true;
    return false;
}

static uint64_t keep_alive_of(const residency *r, uint32_t root) {
    uint64_t longest = 0;
    bool any = false;
    EACH_MEMBER(r, root, i) {
        if (!residency_counts(r, i)) continue;
        any = true;
        if (r->slots[i].policy.keep_alive_us > longest) longest = r->slots[i].policy.keep_alive_us;
    }
    return any ? longest : POLICY_NEVER;
}

/* Every name was taken out by hand. */
static bool is_held(const residency *r, uint32_t root) {
    EACH_MEMBER(r, root, i) if (residency_counts(r, i) && !r->slots[i].held) return false;
    return is_served(r, root);
}

/* ---- the arrows ---- */

static void enter(residency *r, uint32_t i, model_state state) {
    r->slots[i].state = state;
    resident *m = &r->slots[i];
    if (state == MODEL_COLD || state == MODEL_FAILED) m->leave_next = m->drop_next = false;
    if (state == MODEL_DRAINING) m->leave_next = false;
    r->n_changes++;
}

static void set_hot(residency *r, uint32_t root, bool hot) {
    EACH_MEMBER(r, root, i)
    if (r->slots[i].state != MODEL_FAILED) sched_model_hot(r->sched, i, hot);
}

static void give_pages(residency *r, resident *m) {
    for (uint32_t i = 0; i < m->n_pages; i++) pool_give(r->pool, m->pages[i], 0);
    m->n_pages = 0;
    m->on_device = false;
}

static void give_host(residency *r, resident *m) {
    if (m->host_copy && !r->one_memory) pool_host_give(r->pool, m->about.host_pages);
    m->host_copy = false;
}

/* Once more in vain: when it is tried again. */
static void wait_longer(residency *r, resident *m, uint64_t now_us) {
    uint32_t doubled = u32_min(m->n_failures, FAILURES_DOUBLED_MAX);
    uint64_t wait_us = r->limits.retry_us << doubled;
    if (wait_us > r->limits.retry_max_us) wait_us = r->limits.retry_max_us;
    m->retry_at_us = now_us + wait_us;
    m->n_failures++;
}

/* What requests are told. */
static inferd_err as_told(const inferd_err *why) {
    inferd_err told = *why;
    if (told.status != INFERD_ELOST && told.status != INFERD_EQUOTA) told.status = INFERD_EMODEL;
    return told;
}

/* STAGING, LOADING -> FAILED: the device holds nothing of it any more. */
static void fail(residency *r, uint32_t root, const inferd_err *why, uint64_t now_us) {
    resident *m = &r->slots[root];
    give_pages(r, m);
    give_host(r, m);
    wait_longer(r, m, now_us);
    if (why->status == INFERD_ELOST) m->retry_at_us = 0;
    m->n_failed++;
    m->n_tried = 0;
    m->wanted = m->prefetch = false;
    inferd_err told = as_told(why);
    EACH_MEMBER(r, root, i) {
        if (r->slots[i].state == MODEL_FAILED) continue;
        r->slots[i].why = *why;
        r->slots[i].wanted_since_us = 0;
        sched_model_fail(r->sched, i, &told, m->retry_at_us, now_us);
    }
    enter(r, root, MODEL_FAILED);
    tell_pins(r);
}

/* FAILED -> COLD. */
static void retry(residency *r, uint32_t root) {
    EACH_MEMBER(r, root, i) if (!r->slots[i].unpromised) sched_model_revive(r->sched, i);
    enter(r, root, MODEL_COLD);
}

/* Of a slot that is COLD itself: it takes part in what its group is. */
static void join(residency *r, uint32_t idx) {
    resident *m = &r->slots[idx], *root = &r->slots[m->weights_of];
    if (m == root) return;
    if (root->state == MODEL_HOT) sched_model_hot(r->sched, idx, true);
    if (root->state != MODEL_FAILED || root->retry_at_us == 0) return;
    root->retry_at_us = 0; // its file may be another one
    retry(r, m->weights_of);
}

/* ---- what was promised, and does not fit ---- */

static uint32_t min_pages(const residency *r, const model_policy *p) {
    uint64_t n = p->min_bytes / r->page_bytes + (p->min_bytes % r->page_bytes != 0);
    return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
}

/* COLD -> FAILED, or once more: tried again when guarantees of others went, and now and then.  Its
 * group does without it. */
static void fail_promise(residency *r, uint32_t idx, const inferd_err *why, uint64_t now_us) {
    resident *m = &r->slots[idx];
    inferd_err told = as_told(why);
    m->unpromised = true;
    m->n_min_tried = r->pool->n_min;
    m->why = *why;
    wait_longer(r, m, now_us);
    sched_model_fail(r->sched, idx, &told, m->retry_at_us, now_us);
    enter(r, idx, MODEL_FAILED);
    tell_pins(r);
}

/* FAILED -> COLD. */
static void keep_promise(residency *r, uint32_t idx) {
    resident *m = &r->slots[idx];
    m->unpromised = false;
    m->n_failures = 0;
    sched_model_revive(r->sched, idx);
    enter(r, idx, MODEL_COLD);
    join(r, idx);
}

/* ---- whose the weights of a group are ---- */

static bool fits_under_max(const residency *r, uint32_t idx, uint32_t root) {
    return r->pool->owners[idx].max > r->slots[root].about.weight_pages;
}

/* One who could have them next, and after him the others in their order; rather one whose ceiling
 * they fit under. */
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

/* The name's, not the weights'. */
static void keep_name(resident *m, const resident *was) {
    m->served = was->served;
    m->held = was->held;
    m->unpromised = was->unpromised;
    m->policy = was->policy;
    m->about.spec = was->about.spec;
}

/* The weights are another's, with all that is known of them; they are not being staged or loaded.
 */
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
    tell_pins(r);
}

/* The names that are served go on with what is another's no more.  True: it was so. */
static bool pass_on(residency *r, uint32_t root) {
    resident *m = &r->slots[root];
    if (m->served || r->dead || r->dev->ops->hand_over == NULL || m->state == MODEL_STAGING ||
        m->state == MODEL_LOADING || m->state == MODEL_DRAINING)
        return false;
    uint32_t to = next_reader(r, root);
    /* Under a ceiling that is too low its own work could not end. */
    if (to == RESIDENCY_NONE ||
        (!fits_under_max(r, to, root) && sched_model_n_seqs(r->sched, root) > 0))
        return false;
    hand_over(r, root, to);
    m = &r->slots[to];
    if (m->state == MODEL_FAILED && m->retry_at_us != 0) { // of another name it may not
        m->retry_at_us = 0;
        retry(r, to);
    }
    return true;
}

/* STAGING -> FAILED, when no name has a file that can be read: each is tried once. */
static void fail_stage(residency *r, uint32_t root, const inferd_err *why, uint64_t now_us) {
    resident *m = &r->slots[root];
    uint32_t n_names = 0, next = RESIDENCY_NONE;
    EACH_MEMBER(r, root, i) n_names += residency_counts(r, i);
    m->n_tried += m->served;
    if (why->status != INFERD_ELOST && m->n_tried < n_names && r->dev->ops->hand_over != NULL)
        next = next_reader(r, root);
    if (next == RESIDENCY_NONE) {
        fail(r, root, why, now_us);
        return;
    }
    give_pages(r, m);
    give_host(r, m);
    bool leaves = m->leave_next, drops = m->drop_next;
    enter(r, root, MODEL_COLD);
    m->leave_next = leaves;
    m->drop_next = drops;
    hand_over(r, root, next);
}

static void wake_stage(void *ctx) {
    residency *r = ctx;
    atomic_store_explicit(&r->stage_ready, true, memory_order_release);
    if (r->wake != NULL) r->wake(r->wake_ctx);
}

/* Pages for the weights in the ledger that `state` counts for.  False: there are not enough now. */
static bool take_pages(residency *r, uint32_t root, page_state state) {
    resident *m = &r->slots[root];
    uint32_t n = m->about.weight_pages;
    if (!pool_take_weights(r->pool, root, state, n, m->pages)) return false;
    m->n_pages = n;
    m->on_device = state == PAGE_WEIGHT;
    return true;
}

/* It has its pages: until they were asked for it waited for its turn, and then for them. */
static void note_waits(resident *m, uint64_t now_us) {
    uint64_t asked_us = m->room_wanted_us != 0 ? m->room_wanted_us : now_us;
    if (m->parts.stage_us == 0 && m->wanted_since_us != 0 && asked_us > m->wanted_since_us)
        m->parts.queue_us = asked_us - m->wanted_since_us;
    m->parts.reclaim_us += now_us - asked_us;
    m->room_wanted_us = 0;
}

/* COLD -> STAGING, with its memory taken; or FAILED. */
static void stage(residency *r, uint32_t root, uint64_t now_us) {
    resident *m = &r->slots[root];
    inferd_err err = {0};
    m->begun_us = now_us;
    m->bytes_done = 0;
    m->bytes_total = m->about.stage_bytes;
    m->parts = (engine_switch){0};
    note_waits(m, now_us);
    m->staged_again = m->cancelled_us != 0 && now_us - m->cancelled_us < STAGED_AGAIN_US;
    atomic_store_explicit(&r->stage_ready, true, memory_order_relaxed);
    r->staging = root;
    enter(r, root, MODEL_STAGING);
    if (r->dev->ops->stage_begin(r->dev->self, root, r->one_memory ? m->pages : NULL, wake_stage, r,
                                 &err) == INFERD_OK)
        return;
    r->staging = RESIDENCY_NONE;
    fail_stage(r, root, &err, now_us);
}

/* STAGING -> COLD: nobody wants it any more. */
static void cancel_stage(residency *r, uint32_t root) {
    resident *m = &r->slots[root];
    r->dev->ops->unstage(r->dev->self, root);
    r->staging = RESIDENCY_NONE;
    give_pages(r, m);
    give_host(r, m);
    enter(r, root, MODEL_COLD);
}

/* STAGING -> WARM. */
static void staged(residency *r, uint32_t root, uint64_t now_us) {
    resident *m = &r->slots[root];
    r->staging = RESIDENCY_NONE;
    m->n_stages++;
    m->n_tried = 0;
    m->cancelled_us = 0;
    m->prefetch = false;
    m->parts.stage_us = now_us - m->begun_us;
    enter(r, root, MODEL_WARM);
}

/* WARM -> COLD. */
void residency_drop(residency *r, uint32_t root) {
    resident *m = &r->slots[root];
    r->dev->ops->unstage(r->dev->self, root);
    give_pages(r, m);
    give_host(r, m);
    enter(r, root, MODEL_COLD);
}

/* LOADING -> HOT. */
static void loaded(residency *r, uint32_t root, uint64_t now_us) {
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
    m->wanted_since_us = 0;
    if (m->cause <= ENGINE_EVICT_TURN && m->n_evictions[m->cause] > 0)
        r->reload_us += m->bring_us; // it had to make room
    m->last = m->parts;
    m->parts = (engine_switch){0}; // the next time may find it WARM
    enter(r, root, MODEL_HOT);
    set_hot(r, root, true);
    if (group_is_pinned(r, root, PIN_HOT)) tell_pins(r);
}

/* WARM -> LOADING, with its pages taken; HOT at once where nothing needs copying. */
static void load(residency *r, uint32_t root, uint64_t now_us) {
    resident *m = &r->slots[root];
    inferd_err err = {0};
    note_waits(m, now_us);
    m->begun_us = now_us;
    r->loading = root;
    enter(r, root, MODEL_LOADING);
    device_progress p = {0};
    inferd_status st = r->dev->ops->load_begin(r->dev->self, root, m->pages, &err);
    if (st == INFERD_OK) st = r->dev->ops->load_step(r->dev->self, root, 0, &p, &err);
    m->load_device_us += p.device_us;
    if (st == INFERD_OK && p.finished) {
        loaded(r, root, now_us);
    } else if (st != INFERD_OK) {
        r->loading = RESIDENCY_NONE;
        r->dev->ops->unstage(r->dev->self, root);
        fail(r, root, &err, now_us);
    }
}

/* HOT -> DRAINING. */
void residency_drain(residency *r, uint32_t root, engine_evict_cause cause, bool leaving,
                     uint64_t now_us) {
    resident *m = &r->slots[root];
    m->cause = cause;
    m->leaving = leaving;
    m->n_evictions[cause]++;
    m->hot_us += now_us - m->hot_since_us;
    EACH_MEMBER(r, root, i) {
        if (r->slots[i].state == MODEL_FAILED) continue;
        sched_model_close_door(r->sched, i, true);
        if (leaving) sched_model_preempt(r->sched, i);
    }
    enter(r, root, MODEL_DRAINING);
}

/* DRAINING -> HOT: somebody wants it before it left. */
static void resume(residency *r, uint32_t root, uint64_t now_us) {
    resident *m = &r->slots[root];
    m->hot_since_us = now_us;
    EACH_MEMBER(r, root, i)
    if (r->slots[i].state != MODEL_FAILED) sched_model_close_door(r->sched, i, false);
    set_hot(r, root, true); // those who joined meanwhile
    enter(r, root, MODEL_HOT);
}

/* DRAINING -> WARM, COLD. */
void residency_release(residency *r, uint32_t root, uint32_t comer, uint64_t now_us) {
    resident *m = &r->slots[root];
    /* Those that are paused run no longer either: they wait, and bring it back when they go on. */
    EACH_MEMBER(r, root, i)
    if (r->slots[i].state != MODEL_FAILED) sched_model_preempt(r->sched, i);
    set_hot(r, root, false);
    EACH_MEMBER(r, root, i)
    if (r->slots[i].state != MODEL_FAILED) sched_model_close_door(r->sched, i, false);
    m->leaving = false;
    m->n_left++;
    r->dev->ops->unload(r->dev->self, root);
    enter(r, root, MODEL_WARM);
    if (!r->one_memory) {
        give_pages(r, m);
    } else if (residency_make_host_room(r, root, m->n_pages, comer, false, now_us) &&
               pool_turn(r->pool, m->pages, m->n_pages, PAGE_WARM)) {
        m->on_device = false;
    } else if (comer != RESIDENCY_NONE && r->slots[comer].state == MODEL_WARM &&
               !r->slots[comer].on_device &&
               pool_exchange(r->pool, m->pages, m->n_pages, r->slots[comer].pages,
                             r->slots[comer].n_pages)) {
        m->on_device = false;
        r->slots[comer].on_device = true;
    } else {
        residency_drop(r, root);
    }
    if (m->drop_next && m->state == MODEL_WARM) residency_drop(r, root);
    m->drop_next = false;
}

/* any -> NONE.  It has no sequence, nobody shares its weights, and no step is on its way. */
static void detach(residency *r, uint32_t idx) {
    resident *m = &r->slots[idx];
    if (r->staging == idx) r->staging = RESIDENCY_NONE;
    if (r->loading == idx) r->loading = RESIDENCY_NONE;
    sched_model_close(r->sched, idx);
    r->dev->ops->detach(r->dev->self, idx); // of a dead device, too: it names the model
    give_pages(r, m);
    give_host(r, m);
    if (!r->dead) pool_set_limits(r->pool, idx, 0, UINT32_MAX, NULL);
    free(m->pages);
    if (m->weights_of != idx) r->slots[m->weights_of].n_members--;
    *m = (resident){.state = MODEL_NONE};
    r->departures[idx]++;
    r->n_changes++;
    tell_pins(r);
}

/* ---- who comes ---- */

typedef enum want_kind {
    WANT_NOTHING,
    WANT_EAGER,    // comes while pages are free
    WANT_PREFETCH, // by hand, or pinned WARM
    WANT_HOT,      // by hand, or pinned HOT
    WANT_WORK      // somebody waits
} want_kind;

typedef struct want {
    want_kind kind;
    gen_class class;
    uint64_t since_us;
} want;

/* What never will is wanted in vain, and must not be in the way of others. */
static bool fits_host(const residency *r, uint32_t root) {
    const device_model *about = &r->slots[root].about;
    return (r->one_memory ? about->weight_pages : about->host_pages) <= r->pool->n_host;
}

static want want_of(const residency *r, uint32_t root, uint64_t now_us) {
    const resident *m = &r->slots[root];
    sched_demand d = group_demand(r, root);
    if (d.n_waiting > 0 && now_us >= residency_away_until_us(r, root))
        return (want){WANT_WORK, d.waiting_class, d.oldest_us};
    want w = {WANT_NOTHING, GEN_CLASSES, 0};
    if (!is_served(r, root)) return w;
    if (is_held(r, root)) {
        if (m->prefetch) w.kind = WANT_PREFETCH;
        return w;
    }
    if (m->wanted || group_is_pinned(r, root, PIN_HOT))
        w.kind = WANT_HOT;
    else if (fits_host(r, root) &&
             (m->prefetch || (group_is_pinned(r, root, PIN_WARM) && m->state == MODEL_COLD)))
        w.kind = WANT_PREFETCH;
    else if (r->limits.eager && m->n_stages == 0 && m->n_failures == 0 && !m->dropped)
        w.kind = WANT_EAGER;
    else if (r->limits.eager && m->n_loads == 0 && m->state == MODEL_WARM && !m->dropped)
        w.kind = WANT_EAGER;
    return w;
}

static bool comes_before(const want *a, const want *b) {
    if (a->kind != b->kind) return a->kind > b->kind;
    if (a->class != b->class) return a->class < b->class;
    return a->since_us < b->since_us;
}

/* The model in this state that is wanted most; `owed`: of those with work for whom what they were
 * guaranteed and have not got is enough. */
static uint32_t most_wanted(const residency *r, model_state state, bool owed, want *out,
                            uint64_t now_us) {
    uint32_t best = RESIDENCY_NONE;
    for (uint32_t i = 0; i < r->n_used; i++) {
        if (!residency_is_root(r, i) || r->slots[i].state != state) continue;
        want w = want_of(r, i, now_us);
        if (w.kind == WANT_NOTHING || (best != RESIDENCY_NONE && !comes_before(&w, out))) continue;
        if (owed &&
            (w.kind != WANT_WORK || !residency_is_owed(r, i, r->slots[i].about.weight_pages + 1)))
            continue;
        best = i;
        *out = w;
    }
    return best;
}

/* Pages that others keep whatever happens: guarantees of models, or of tenants where those are
 * more, and weights that are pinned HOT; on the host copies of what is pinned. */
static uint64_t kept_by_others(const residency *r, uint32_t root, bool host) {
    uint64_t n = 0, promised = 0, reserved = sched_tenants_min_pages(r->sched);
    for (uint32_t i = 0; i < r->n_used; i++) {
        const resident *m = &r->slots[i];
        if (m->state == MODEL_NONE || i == root) continue;
        bool hot =
            residency_is_root(r, i) && group_is_pinned(r, i, PIN_HOT) && m->state != MODEL_FAILED;
        bool warm = residency_is_root(r, i) && group_is_pinned(r, i, PIN_WARM) && m->host_copy;
        uint32_t pinned = hot ? m->about.weight_pages : 0, min = r->pool->owners[i].min;
        if (host)
            n += warm ? m->about.host_pages : 0;
        else
            n += pinned;
        if (min > pinned) promised += min - pinned;
    }
    if (host) return n;
    return n + (promised > reserved ? promised : reserved); // as the pool keeps them free
}

/* Pages that a model needs to do anything: its weights, and keys and values for the first who
 * waits. Without those it would be HOT and wait, until its turn was over. */
static uint32_t pages_to_begin(const residency *r, uint32_t root) {
    uint32_t n = r->slots[root].about.weight_pages;
    uint64_t kept = kept_by_others(r, root, false);
    uint32_t most = kept < r->pool->n_device ? r->pool->n_device - (uint32_t)kept : 0;
    if (r->pool->owners[root].max < most) most = r->pool->owners[root].max;
    uint32_t wanted = n + u32_max(group_demand(r, root).first_pages, 1);
    return u32_max(u32_min(wanted, most), n + 1);
}

/* Somebody has waited long enough for models to take turns. */
static bool may_turn(const residency *r, const want *w, uint64_t now_us) {
    return w->kind == WANT_WORK && now_us >= w->since_us + r->limits.turn_us;
}

/* For all of that, or at least for the weights. */
static bool make_room_to_begin(residency *r, uint32_t root, const want *w, uint64_t now_us) {
    bool turn = may_turn(r, w, now_us);
    if (r->slots[root].room_wanted_us == 0) r->slots[root].room_wanted_us = now_us;
    return residency_make_room(r, root, pages_to_begin(r, root), w->class, turn, now_us) ||
           residency_make_room(r, root, r->slots[root].about.weight_pages + 1, w->class, turn,
                               now_us);
}

/* More than what would fit can never come. */
static bool check_size(residency *r, uint32_t root, uint64_t now_us) {
    const resident *m = &r->slots[root];
    const pool *p = r->pool;
    inferd_err err = {0};
    uint32_t n = m->about.weight_pages;
    uint64_t kept = kept_by_others(r, root, false), host_kept = kept_by_others(r, root, true);
    if (n + 1 + kept > p->n_device)
        inferd_fail(&err, INFERD_EMODEL,
                    "the weights need %u pages and keys and values at least one; the device has "
                    "%u, of which %llu are guaranteed to other models or pinned",
                    n, p->n_device, (ull)kept);
    else if (n >= p->owners[root].max)
        inferd_fail(&err, INFERD_EQUOTA,
                    "the weights need %u pages and keys and values at least one; the model may "
                    "have %u (max)",
                    n, p->owners[root].max);
    else if (!r->one_memory && m->about.host_pages + host_kept > p->n_host)
        inferd_fail(&err, INFERD_EMODEL,
                    "the weights need %u pages of host memory; host_arena has %u, of which %llu "
                    "are pinned",
                    m->about.host_pages, p->n_host, (ull)host_kept);
    else
        return true;
    if (m->state == MODEL_WARM) r->dev->ops->unstage(r->dev->self, root);
    fail(r, root, &err, now_us);
    return false;
}

/* Free pages that weights nobody asked for may take.  What is spared is for all, so it counts for
 * no ceiling. */
static bool fits_eagerly(const residency *r, uint32_t root) {
    const pool *p = r->pool;
    uint32_t spare = p->n_device / 4 * EAGER_LEAVES_QUARTERS;
    uint32_t needed = r->slots[root].about.weight_pages + 1;
    if (p->n_in[PAGE_WEIGHT] == 0) spare = 0; // the first one may have all of it
    return pool_n_takeable(p, root) >= needed && pool_n_device_free(p) >= needed + spare;
}

/* One memory: straight to the device's ledger when it is wanted HOT, else to the host's. */
static bool begin_stage_here(residency *r, uint32_t root, const want *w, uint64_t now_us) {
    resident *m = &r->slots[root];
    uint32_t n = m->about.weight_pages;
    bool hot = w->kind >= WANT_HOT || (w->kind == WANT_EAGER && fits_eagerly(r, root));
    if (hot && w->kind != WANT_EAGER && !make_room_to_begin(r, root, w, now_us)) return false;
    if (!hot && (w->kind == WANT_EAGER
                     ? pool_n_host_free(r->pool) < n
                     : !residency_make_host_room(r, root, n, RESIDENCY_NONE, false, now_us)))
        return false;
    return take_pages(r, root, hot ? PAGE_WEIGHT : PAGE_WARM);
}

/* Host memory apart. */
static bool begin_stage_apart(residency *r, uint32_t root, const want *w, uint64_t now_us) {
    resident *m = &r->slots[root];
    uint32_t n = m->about.host_pages;
    bool room = pool_n_host_free(r->pool) >= n;
    if (!room && w->kind == WANT_PREFETCH)
        room = residency_make_host_room(r, root, n, RESIDENCY_NONE, false, now_us);
    if (!room && w->kind >= WANT_HOT)
        room = residency_make_host_room_apart(r, root, w->class, may_turn(r, w, now_us), now_us);
    if (!room || !pool_host_take(r->pool, n)) return false;
    m->host_copy = true;
    return true;
}

static bool start_staging(residency *r, bool owed, uint64_t now_us) {
    want w;
    uint32_t root = most_wanted(r, MODEL_COLD, owed, &w, now_us);
    if (root == RESIDENCY_NONE || r->staging != RESIDENCY_NONE) return false;
    if (!check_size(r, root, now_us)) return true;
    bool ready = r->one_memory ? begin_stage_here(r, root, &w, now_us)
                               : begin_stage_apart(r, root, &w, now_us);
    if (ready) stage(r, root, now_us);
    /* What does not fit now is tried again when something changed; who comes for nothing does not
     * stand in the way. */
    if (!ready && w.kind == WANT_EAGER) r->slots[root].dropped = true;
    return ready || w.kind == WANT_EAGER;
}

static bool start_loading(residency *r, bool owed, uint64_t now_us) {
    want w;
    uint32_t root = most_wanted(r, MODEL_WARM, owed, &w, now_us);
    if (root == RESIDENCY_NONE || r->loading != RESIDENCY_NONE || w.kind == WANT_PREFETCH)
        return false;
    resident *m = &r->slots[root];
    if (!check_size(r, root, now_us)) return true;
    if (w.kind == WANT_EAGER) {
        m->dropped = !fits_eagerly(r, root);
        if (m->dropped) return true;
    } else if (!make_room_to_begin(r, root, &w, now_us)) {
        return false;
    }
    if (r->one_memory) {
        if (!m->on_device && !pool_turn(r->pool, m->pages, m->n_pages, PAGE_WEIGHT)) return false;
        m->on_device = true;
    } else if (!take_pages(r, root, PAGE_WEIGHT)) {
        return false;
    }
    load(r, root, now_us);
    return true;
}

/* WARM on the device's ledger: it was staged there for somebody.  Its pages are paid for, so it is
 * loaded; or, when nobody wants it now, they count for the host again, or are free. */
static bool settle_staged(residency *r, uint64_t now_us) {
    bool any = false;
    for (uint32_t i = 0; i < r->n_used; i++) {
        resident *m = &r->slots[i];
        if (!residency_is_root(r, i) || m->state != MODEL_WARM || !m->on_device) continue;
        want w = want_of(r, i, now_us);
        if (w.kind >= WANT_HOT || w.kind == WANT_EAGER) {
            load(r, i, now_us);
        } else if (residency_make_host_room(r, i, m->n_pages, RESIDENCY_NONE, false, now_us) &&
                   pool_turn(r->pool, m->pages, m->n_pages, PAGE_WARM)) {
            m->on_device = false;
            r->n_changes++;
        } else if (now_us >= residency_away_until_us(r, i)) {
            load(r, i, now_us); // idle and HOT it leaves as soon as its pages are wanted
        } else {
            residency_drop(r, i);
        }
        any = true;
    }
    return any;
}

/* ---- time ---- */

/* Somebody wants it: a pause is over, unless he wanted it at the last look, too. */
static void note_use(resident *m, uint64_t now_us) {
    if (!m->busy && m->used)
        worth_note_pause(&m->pauses, now_us - m->active_us, resident_reload_us(m));
    m->used = true;
    m->active_us = now_us;
}

/* What one model does by itself.  True: something changed. */
static bool look_at(residency *r, uint32_t root, uint64_t now_us) {
    resident *m = &r->slots[root];
    sched_demand d = group_demand(r, root);
    bool wanted = d.n_waiting + d.n_running > 0;
    bool used = wanted || group_n_steps(r, root) > 0;
    if (used) note_use(m, now_us);
    m->busy = used;
    if (d.n_waiting == 0 && d.n_running == 0) m->wanted_since_us = 0;
    if (d.n_waiting > 0 && m->wanted_since_us == 0 && m->state != MODEL_HOT)
        m->wanted_since_us = now_us;
    switch (m->state) {
    case MODEL_FAILED:
        if (m->retry_at_us == 0 || now_us < m->retry_at_us) return false;
        retry(r, root);
        return true;
    case MODEL_DRAINING:
        if (!m->leaving && m->cause == ENGINE_EVICT_IDLE && wanted) {
            resume(r, root, now_us);
            return true;
        }
        if (group_n_steps(r, root) > 0) return false;
        /* What runs ends first, unless it cannot end here: then it waits again, so that others may
         * come. */
        if (d.n_running > 0 && !sched_is_blocked(r->sched, now_us)) return false;
        residency_release(r, root, RESIDENCY_NONE, now_us);
        return true;
    case MODEL_HOT: {
        if (wanted || group_n_steps(r, root) > 0 || m->wanted) return false;
        uint64_t keep_us = keep_alive_of(r, root);
        bool idle = keep_us != POLICY_NEVER && now_us - m->active_us >= keep_us &&
                    !group_is_pinned(r, root, PIN_HOT);
        /* A ceiling that was lowered: it could compute nothing, and keeps what it may not have. */
        bool fits = m->about.weight_pages < r->pool->owners[root].max;
        if (!idle && fits && !is_held(r, root) && !m->leave_next && is_served(r, root))
            return false;
        residency_drain(r, root, idle ? ENGINE_EVICT_IDLE : ENGINE_EVICT_ASKED, false, now_us);
        return true;
    }
    case MODEL_STAGING: {
        bool far = m->bytes_done * 100 >= m->bytes_total * KEEP_STAGE_PERCENT;
        want w = want_of(r, root, now_us);
        if (w.kind != WANT_NOTHING || ((far || m->staged_again) && is_served(r, root)))
            return false;
        cancel_stage(r, root);
        m->cancelled_us = now_us;
        return true;
    }
    case MODEL_COLD:
        if (!wanted && !m->wanted) m->room_wanted_us = 0;
        return false;
    case MODEL_WARM:
        if (!wanted && !m->wanted) m->room_wanted_us = 0;
        if (wanted || m->wanted || m->on_device || !m->leave_next) return false;
        m->leave_next = false; // nobody uses it
        if (m->drop_next) residency_drop(r, root);
        return true;
    default:
        return false;
    }
}

/* Slots that requests no longer name, and that nothing needs any more. */
static bool let_go(residency *r, uint32_t idx) {
    resident *m = &r->slots[idx];
    if (m->state == MODEL_NONE || m->served) return false;
    if (sched_model_n_steps(r->sched, idx) > 0 || sched_model_n_seqs(r->sched, idx) > 0)
        return false;
    if (m->weights_of == idx) {
        EACH_MEMBER(r, idx, i) if (i != idx) return false;
        if (m->state != MODEL_COLD && m->state != MODEL_WARM && m->state != MODEL_FAILED)
            return false;
    }
    detach(r, idx);
    return true;
}

bool residency_let_go(residency *r) {
    bool any = false;
    for (uint32_t i = 0; i < r->n_used; i++) any |= let_go(r, i);
    return any;
}

/* Is there room for what was promised to it by now? */
static bool look_at_promise(residency *r, uint32_t idx, uint64_t now_us) {
    resident *m = &r->slots[idx];
    inferd_err err = {0};
    bool fits = r->pool->n_min != m->n_min_tried &&
                (uint64_t)min_pages(r, &m->policy) + r->pool->n_min <= r->pool->n_device;
    if (!fits && now_us < m->retry_at_us) return false;
    if (residency_set_policy(r, idx, &m->policy, now_us, &err) != INFERD_OK)
        fail_promise(r, idx, &err, now_us);
    return true;
}

/* Its slot was taken away while somebody was let in who came to try again. */
static bool refuse_late(residency *r, uint32_t idx, uint64_t now_us) {
    inferd_err told = as_told(&r->slots[idx].why);
    bool any = r->demands[idx].n_waiting + r->demands[idx].n_running > 0;
    if (any) sched_model_fail(r->sched, idx, &told, 0, now_us);
    return any;
}

bool residency_decide(residency *r, uint64_t now_us) {
    bool any = false;
    r->looked_us = now_us;
    sched_demands(r->sched, now_us, r->demands);
    residency_watch_thrash(r, now_us);
    for (uint32_t i = 0; i < r->n_used; i++)
        if (r->slots[i].unpromised && r->slots[i].served)
            any |= look_at_promise(r, i, now_us);
        else if (r->slots[i].unpromised && sched_model_n_seqs(r->sched, i) > 0)
            any |= refuse_late(r, i, now_us);
    for (uint32_t i = 0; i < r->n_used; i++) {
        if (residency_is_root(r, i)) any |= pass_on(r, i);
        if (residency_is_root(r, i) && !r->slots[i].unpromised) any |= look_at(r, i, now_us);
        any |= let_go(r, i);
    }
    any |= settle_staged(r, now_us);
    /* Whoever is wanted most and finds no room stands in nobody's way who is owed his. */
    for (int owed = 0; owed <= (r->pool->n_min > 0); owed++) {
        while (start_loading(r, owed, now_us)) any = true;
        while (start_staging(r, owed, now_us)) any = true;
    }
    return any;
}

bool residency_has_work(const residency *r) {
    if (r->loading != RESIDENCY_NONE) return true;
    return r->staging != RESIDENCY_NONE &&
           atomic_load_explicit(&r->stage_ready, memory_order_acquire);
}

uint64_t residency_work(residency *r, uint64_t budget_us, uint64_t (*clock)(void *), void *ctx) {
    device_progress p = {0};
    inferd_err err = {0};
    uint32_t root = r->loading != RESIDENCY_NONE ? r->loading : r->staging;
    if (root == RESIDENCY_NONE) return 0;
    resident *m = &r->slots[root];
    const device_ops *ops = r->dev->ops;
    bool loading = m->state == MODEL_LOADING;
    if (!loading) atomic_store_explicit(&r->stage_ready, false, memory_order_relaxed);
    inferd_status st = loading ? ops->load_step(r->dev->self, root, budget_us, &p, &err)
                               : ops->stage_step(r->dev->self, root, budget_us, &p, &err);
    uint64_t now_us = clock(ctx);
    m->bytes_done = p.done;
    m->bytes_total = p.total;
    m->load_device_us += p.device_us;
    if (!loading && p.finished)
        snprintf(m->stage_note, sizeof m->stage_note, "%s", p.note != NULL ? p.note : "");
    if (!loading && !p.waiting) atomic_store_explicit(&r->stage_ready, true, memory_order_release);
    if (st != INFERD_OK) {
        if (loading) {
            ops->unstage(r->dev->self, root);
            r->loading = RESIDENCY_NONE;
            fail(r, root, &err, now_us);
        } else {
            r->staging = RESIDENCY_NONE;
            fail_stage(r, root, &err, now_us);
        }
    } else if (p.finished && loading) {
        loaded(r, root, now_us);
    } else if (p.finished) {
        staged(r, root, now_us);
    }
    return p.device_us;
}

uint64_t residency_next_us(const residency *r) {
    uint64_t next_us = UINT64_MAX;
    for (uint32_t i = 0; i < r->n_used; i++) {
        const resident *m = &r->slots[i];
        uint64_t at_us = UINT64_MAX;
        if (!residency_is_root(r, i) && !m->unpromised) continue;
        uint64_t keep_us = keep_alive_of(r, i);
        if (m->state == MODEL_FAILED && m->served && m->retry_at_us != 0) at_us = m->retry_at_us;
        uint64_t back_us = residency_away_until_us(r, i);
        if (back_us > r->looked_us && group_demand(r, i).n_waiting > 0) at_us = back_us;
        if (m->state == MODEL_HOT && keep_us != POLICY_NEVER && !m->wanted &&
            !group_is_pinned(r, i, PIN_HOT))
            at_us = m->active_us + keep_us;
        if (at_us < next_us) next_us = at_us;
    }
    return next_us;
}

/* ---- from outside ---- */

/* Bytes as pages: what is guaranteed is rounded up, a ceiling down (min_pages). */
inferd_status residency_set_policy(residency *r, uint32_t idx, const model_policy *policy,
                                   uint64_t now_us, inferd_err *err) {
    resident *m = &r->slots[idx];
    if (r->dead) { // and its pool, if it ever had one, serves nobody
        m->policy = *policy;
        return INFERD_OK;
    }
    uint64_t max = policy->max_bytes / r->page_bytes;
    uint32_t min = min_pages(r, policy);
    if (policy->max_bytes == 0 || max > UINT32_MAX) max = UINT32_MAX;
    if (max < min && policy->min_bytes <= policy->max_bytes) max = min; // both are in one page
    inferd_status st = pool_set_limits(r->pool, idx, min, (uint32_t)max, err);
    if (st != INFERD_OK && m->unpromised) m->policy = *policy; // it is tried with this one
    if (st != INFERD_OK) return st;
    m->policy = *policy;
    if (m->unpromised) keep_promise(r, idx);
    resident *root = &r->slots[m->weights_of];
    if (root->state == MODEL_FAILED && root->why.status == INFERD_EQUOTA)
        root->retry_at_us = now_us; // its ceiling may be another now
    r->n_changes++;
    sched_set_model_policy(r->sched, idx, policy, now_us);
    tell_pins(r);
    return INFERD_OK;
}

void residency_attach(residency *r, uint32_t idx, struct model *of, uint32_t same_as,
                      const model_policy *policy, uint64_t now_us) {
    resident *m = &r->slots[idx];
    inferd_err err = {0};
    INFERD_CHECK(idx < r->n && m->state == MODEL_NONE);
    *m = (resident){.served = true, .policy = *policy, .weights_of = idx, .active_us = now_us};
    /* Weights of a slot that failed, or leaves, are nobody's to share. */
    if (same_as != DEVICE_OWN && r->slots[same_as].state != MODEL_NONE &&
        r->slots[same_as].state != MODEL_FAILED && r->slots[same_as].served)
        m->weights_of = r->slots[same_as].weights_of;
    r->n_used = u32_max(r->n_used, idx + 1);
    bool own = m->weights_of == idx;
    inferd_status st =
        r->dead ? inferd_fail(&err, r->why.status, "%s", r->why.text)
                : r->dev->ops->attach(r->dev->self, idx, of, own ? DEVICE_OWN : m->weights_of,
                                      &r->limits.device, &m->about, &err);
    if (st == INFERD_OK) {
        /* Weights of another slot take their pages there, too. */
        m->about.spec.weight_pages = r->slots[m->weights_of].about.weight_pages;
        m->pages = own ? calloc(size_max(m->about.weight_pages, 1), sizeof *m->pages) : NULL;
        if (own && m->pages == NULL)
            st = inferd_fail(&err, INFERD_ENOMEM, "no memory for a list of %u pages",
                             m->about.weight_pages);
        if (st == INFERD_OK) st = sched_model_open(r->sched, idx, &m->about.spec, &err);
        if (st != INFERD_OK) r->dev->ops->detach(r->dev->self, idx); // it uses nobody's weights
    }
    if (st != INFERD_OK) { // for good
        inferd_err told = as_told(&err);
        m->weights_of = idx;
        m->n_members = 1;
        m->why = err;
        m->n_failures = 1;
        sched_model_fail(r->sched, idx, &told, 0, now_us);
        enter(r, idx, MODEL_FAILED);
        return;
    }
    enter(r, idx, MODEL_COLD);
    r->slots[m->weights_of].n_members++;
    if (residency_set_policy(r, idx, policy, now_us, &err) == INFERD_OK)
        join(r, idx);
    else
        fail_promise(r, idx, &err, now_us);
}

void residency_remove(residency *r, uint32_t idx) {
    resident *m = &r->slots[idx];
    m->served = false;
    /* What it was promised is another's, though its pages may go on. */
    if (!r->dead && m->state != MODEL_NONE)
        pool_set_limits(r->pool, idx, 0, r->pool->owners[idx].max, NULL);
    r->n_changes++;
    tell_pins(r);
}

/* By hand: in the end it is WARM, or COLD.  One that somebody waits for comes first, and goes when
 * nobody uses it any more. */
static void send_away(residency *r, uint32_t root, bool drop, uint64_t now_us) {
    resident *m = &r->slots[root];
    switch (m->state) {
    case MODEL_HOT:
        residency_drain(r, root, ENGINE_EVICT_ASKED, false, now_us);
        break;
    case MODEL_DRAINING:
        if (m->cause == ENGINE_EVICT_IDLE) m->cause = ENGINE_EVICT_ASKED; // it does not turn back
        break;
    case MODEL_STAGING:
        m->leave_next = group_demand(r, root).n_waiting > 0;
        if (!m->leave_next) cancel_stage(r, root);
        break;
    case MODEL_WARM:
        m->leave_next = true;
        if (drop && !m->on_device) residency_drop(r, root);
        break;
    case MODEL_LOADING:
        m->leave_next = true;
        break;
    default:
        return;
    }
    m->drop_next = drop && m->state != MODEL_COLD;
}

bool residency_serves_others(const residency *r, uint32_t idx) {
    EACH_MEMBER(r, r->slots[idx].weights_of, i)
    if (i != idx && residency_counts(r, i) && !r->slots[i].held) return true;
    return false;
}

void residency_do(residency *r, uint32_t idx, engine_command c, uint64_t now_us) {
    uint32_t root = r->slots[idx].weights_of;
    resident *m = &r->slots[root];
    if (r->slots[idx].state == MODEL_NONE) return;
    switch (c) {
    case ENGINE_LOAD:
        r->slots[idx].held = m->leave_next = m->drop_next = false;
        m->wanted = m->state != MODEL_HOT;
        break;
    case ENGINE_PREFETCH:
        m->prefetch = m->state == MODEL_COLD;
        break;
    case ENGINE_DROP:
    case ENGINE_UNLOAD:
        m->wanted = m->prefetch = false;
        m->dropped = true;
        send_away(r, root, c == ENGINE_DROP, now_us);
        break;
    case ENGINE_DRAIN:
        r->slots[idx].held = true;
        if (!is_held(r, root)) break; // another name of the same weights serves on
        m->wanted = m->prefetch = false;
        m->dropped = true;
        break;
    }
    if (c == ENGINE_LOAD || c == ENGINE_PREFETCH) {
        if (r->slots[idx].unpromised)
            r->slots[idx].retry_at_us = now_us;
        else if (m->state == MODEL_FAILED && m->retry_at_us != 0)
            retry(r, root);
    }
    r->n_changes++;
}

void residency_fail_all(residency *r, const inferd_err *why, uint64_t now_us) {
    r->dead = true;
    r->why = *why;
    for (uint32_t i = 0; i < r->n; i++) {
        resident *m = &r->slots[i];
        if (m->state == MODEL_NONE) continue;
        if (m->state == MODEL_HOT) m->hot_us += now_us - m->hot_since_us;
        m->why = *why;
        m->retry_at_us = 0;
        sched_model_fail(r->sched, i, why, 0, now_us);
        give_pages(r, m); // steps on their way may name them still, and nobody takes them any more
        give_host(r, m);
        enter(r, i, MODEL_FAILED);
    }
    r->staging = r->loading = RESIDENCY_NONE;
}

void residency_close(residency *r) {
    for (int sharing = 1; sharing >= 0; sharing--) // those who share weights before whose they are
        for (uint32_t i = 0; i < r->n; i++)
            if (r->slots[i].state != MODEL_NONE && (r->slots[i].weights_of != i) == sharing)
                r->dev->ops->detach(r->dev->self, i);
    for (uint32_t i = 0; i < r->n; i++) {
        free(r->slots[i].pages);
        r->slots[i] = (resident){.state = MODEL_NONE};
    }
    r->staging = r->loading = RESIDENCY_NONE;
}

/* ---- the books ---- */

inferd_status residency_verify(const residency *r, inferd_err *err) {
    for (uint32_t i = 0; i < r->n; i++) {
        const resident *m = &r->slots[i];
        const pool_owner *o = &r->pool->owners[i];
        uint32_t on_device = o->held[PAGE_WEIGHT], warm = o->held[PAGE_WARM];
        bool has_pages = m->n_pages > 0;
        bool must = m->state == MODEL_HOT || m->state == MODEL_DRAINING ||
                    m->state == MODEL_LOADING ||
                    (r->one_memory && (m->state == MODEL_WARM || m->state == MODEL_STAGING));
        if (m->weights_of != i || m->about.weight_pages == 0) must = has_pages;
        if (has_pages != must)
            return inferd_fail(err, INFERD_EINVAL,
                               "residency: model %u is in state %d and has %u pages", i,
                               (int)m->state, m->n_pages);
        if (on_device + warm != m->n_pages || (m->on_device ? warm : on_device) != 0)
            return inferd_fail(err, INFERD_EINVAL,
                               "residency: model %u has %u pages, the pool says %u on the device "
                               "and %u on the host",
                               i, m->n_pages, on_device, warm);
        if (m->state == MODEL_STAGING ? r->staging != i : r->staging == i)
            return inferd_fail(err, INFERD_EINVAL, "residency: model %u and %u are staged", i,
                               r->staging);
        if (m->state == MODEL_LOADING ? r->loading != i : r->loading == i)
            return inferd_fail(err, INFERD_EINVAL, "residency: model %u and %u are loaded", i,
                               r->loading);
    }
    return INFERD_OK;
}
