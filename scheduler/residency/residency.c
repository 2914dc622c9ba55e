/* residency.c - see residency.h; the other parts are in residency_parts.h.
 *
 *     residency_decide     changes since the last look: ends of drains, idle models, retries
 *     from outside         slots, policies and commands */
#include "residency_parts.h"
#include "scheduler/feasible.h"

enum {
    KEEP_STAGE_PERCENT = 50, // a stage this far goes on when no request waits any more
    LOOK_LOADS_MAX = 2       // at one look: a step computes one model, and the next look is near
};

inferd_status residency_init(residency *r, uint32_t n_slots, const residency_limits *limits,
                             const device *dev, pool *p, sched *s, inferd_err *err) {
    *r = (residency){.n = n_slots,
                     .limits = *limits,
                     .dev = dev,
                     .pool = p,
                     .sched = s,
                     .staging = RESIDENCY_NONE,
                     .loading = RESIDENCY_NONE,
                     .saving = RESIDENCY_NONE};
    r->slots = calloc(size_max(n_slots, 1), sizeof *r->slots);
    r->demands = calloc(size_max(n_slots, 1), sizeof *r->demands);
    r->departures = calloc(size_max(n_slots, 1), sizeof *r->departures);
    r->slices = calloc(size_max(n_slots, 1), sizeof *r->slices);
    r->slice_slots = calloc(size_max(n_slots, 1), sizeof *r->slice_slots);
    r->quotas = calloc(size_max(n_slots, 1), sizeof *r->quotas);
    r->candidates = calloc(size_max(n_slots, 1), sizeof *r->candidates);
    r->candidate_pages = calloc(size_max(n_slots, 1), sizeof *r->candidate_pages);
    if (r->slices == NULL || r->slice_slots == NULL || r->quotas == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for time slices of %u models", n_slots);
    if (r->slots == NULL || r->demands == NULL || r->departures == NULL || r->candidates == NULL ||
        r->candidate_pages == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for %u models", n_slots);
    return INFERD_OK;
}

void residency_deinit(residency *r) {
    for (uint32_t i = 0; r->slots != NULL && i < r->n; i++) free(r->slots[i].pages);
    free(r->slots);
    free(r->demands);
    free(r->departures);
    free(r->slices);
    free(r->slice_slots);
    free(r->quotas);
    free(r->candidates);
    free(r->candidate_pages);
    *r = (residency){0};
}

/* ---- weight groups ---- */

model_state residency_state(const residency *r, uint32_t idx) {
    const resident *m = &r->slots[idx];
    if (m->state == MODEL_NONE || m->state == MODEL_FAILED) return m->state;
    return r->slots[m->weights_of].state;
}

sched_demand wgroup_demand(const residency *r, uint32_t root) {
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
        if (d->lowest_class > all.lowest_class) all.lowest_class = d->lowest_class;
        if (d->n_waiting == 0 || d->waiting_class > all.waiting_class ||
            (d->waiting_class == all.waiting_class && d->oldest_us >= all.oldest_us))
            continue;
        all.waiting_class = d->waiting_class;
        all.oldest_us = d->oldest_us;
        all.first_pages = d->first_pages;
    }
    return all;
}

uint32_t wgroup_n_steps(const residency *r, uint32_t root) {
    uint32_t n = 0;
    EACH_MEMBER(r, root, i) n += sched_model_n_steps(r->sched, i);
    return n;
}

bool wgroup_is_pinned(const residency *r, uint32_t root, model_pin at_least) {
    EACH_MEMBER(r, root, i)
        if (residency_counts(r, i) && r->slots[i].policy.pin >= at_least) return true;
    return false;
}

/* Pages of its weights that never leave the device.  0: it failed (they may not even fit), or they
 * do not fit beside the weights there: it comes when those left, and ends no request of theirs. */
static uint32_t pinned_pages(const residency *r, uint32_t i) {
    const resident *m = &r->slots[i];
    if (!residency_is_root(r, i) || !wgroup_is_pinned(r, i, PIN_HOT)) return 0;
    uint64_t n = m->about.weight_pages, there = r->pool->n_in[PAGE_WEIGHT];
    bool fails = m->n_failures > 0 || m->state == MODEL_FAILED;
    bool is_there = m->state == MODEL_HOT || m->state == MODEL_DRAINING ||
                    m->state == MODEL_LOADING || m->on_device;
    return is_there || (!fails && n + 1 + there <= r->pool->n_device) ? m->about.weight_pages : 0;
}

void residency_tell_pins(residency *r) {
    for (uint32_t i = 0; i < r->n_used; i++)
        if (r->slots[i].state != MODEL_NONE)
            sched_model_pin(r->sched, i, r->slots[i].weights_of, pinned_pages(r, i));
}

bool wgroup_is_served(const residency *r, uint32_t root) {
    EACH_MEMBER(r, root, i)
        if (r->slots[i].served) return true;
    return false;
}

uint64_t wgroup_keep_alive_us(const residency *r, uint32_t root) {
    uint64_t longest = 0;
    bool any = false;
    EACH_MEMBER(r, root, i) {
        if (!residency_counts(r, i)) continue;
        any = true;
        if (r->slots[i].policy.keep_alive_us > longest) longest = r->slots[i].policy.keep_alive_us;
    }
    return any ? longest : POLICY_NEVER;
}

bool wgroup_is_held(const residency *r, uint32_t root) {
    EACH_MEMBER(r, root, i)
        if (residency_counts(r, i) && !r->slots[i].held) return false;
    return wgroup_is_served(r, root);
}

/* ---- time ---- */

/* The model has work now: a pause is over, unless it had work at the last look, too. */
static void note_use(resident *m, uint64_t now_us) {
    if (!m->busy && m->used)
        worth_note_pause(&m->pauses, now_us - m->active_us, resident_reload_us(m));
    m->used = true;
    m->active_us = m->used_us = now_us;
}

/* Changes of one model that need no other model.  True: something changed. */
static bool look_at(residency *r, uint32_t root, uint64_t now_us) {
    resident *m = &r->slots[root];
    sched_demand d = wgroup_demand(r, root);
    bool wanted = d.n_waiting + d.n_running > 0;
    bool used = wanted || wgroup_n_steps(r, root) > 0;
    if (used) note_use(m, now_us);
    m->busy = used;
    if (d.n_waiting == 0 && d.n_running == 0) m->wanted_since_us = 0;
    if (d.n_waiting > 0 && m->wanted_since_us == 0 && m->state != MODEL_HOT)
        m->wanted_since_us = now_us;
    switch (m->state) {
    case MODEL_FAILED:
        if (m->retry_at_us == 0 || now_us < m->retry_at_us) return false;
        residency_retry(r, root);
        return true;
    case MODEL_DRAINING:
        if (r->saving == root) return false;
        if (!m->leaving && m->cause == ENGINE_EVICT_IDLE && wanted) {
            residency_resume(r, root, now_us);
            return true;
        }
        if (wgroup_n_steps(r, root) > 0) return false;
        /* Running work ends first; if it cannot advance, it is preempted to let others come. */
        if (d.n_running > 0 && !sched_is_blocked(r->sched, now_us)) return false;
        if (m->leaving && r->saving != RESIDENCY_NONE && !m->host_copy) return false; // after it
        residency_release(r, root, RESIDENCY_NONE, now_us);
        return true;
    case MODEL_HOT: {
        if (wanted || wgroup_n_steps(r, root) > 0 || m->wanted) return false;
        uint64_t keep_us = wgroup_keep_alive_us(r, root);
        bool idle = keep_us != POLICY_NEVER && now_us - m->active_us >= keep_us &&
                    !wgroup_is_pinned(r, root, PIN_HOT);
        /* With a lowered ceiling it could compute nothing, yet keep pages above the ceiling. */
        bool fits = m->about.weight_pages < r->pool->owners[root].max;
        if (!idle && fits && !wgroup_is_held(r, root) && !m->evict_next &&
            wgroup_is_served(r, root))
            return false;
        residency_drain(r, root, idle ? ENGINE_EVICT_IDLE : ENGINE_EVICT_ASKED, false, now_us);
        return true;
    }
    case MODEL_STAGING: {
        bool far = m->bytes_done * 100 >= m->bytes_total * KEEP_STAGE_PERCENT;
        residency_want w = residency_want_of(r, root, now_us);
        if (w.kind != WANT_NOTHING || ((far || m->staged_again) && wgroup_is_served(r, root)))
            return false;
        residency_cancel_stage(r, root);
        m->cancelled_us = now_us;
        return true;
    }
    case MODEL_COLD:
        if (!wanted && !m->wanted) m->room_wanted_us = 0;
        return false;
    case MODEL_WARM:
        if (!wanted && !m->wanted) m->room_wanted_us = 0;
        if (wanted || m->wanted || m->on_device || !m->evict_next) return false;
        m->evict_next = false; // it is unused
        if (m->drop_next) residency_drop(r, root);
        return true;
    default:
        return false;
    }
}

/* Empties a slot that requests no longer name and that nothing needs any more. */
static bool let_go(residency *r, uint32_t idx) {
    resident *m = &r->slots[idx];
    if (m->state == MODEL_NONE || m->served) return false;
    if (sched_model_n_steps(r->sched, idx) > 0 || sched_model_n_seqs(r->sched, idx) > 0)
        return false;
    if (m->weights_of == idx) {
        EACH_MEMBER(r, idx, i)
            if (i != idx) return false;
        if (m->state != MODEL_COLD && m->state != MODEL_WARM && m->state != MODEL_FAILED)
            return false;
    }
    residency_detach(r, idx);
    return true;
}

bool residency_let_go(residency *r) {
    bool any = false;
    for (uint32_t i = 0; i < r->n_used; i++) any |= let_go(r, i);
    return any;
}

static uint32_t min_pages(const residency *r, const model_policy *p) {
    uint64_t n = p->min_bytes / r->page_bytes + (p->min_bytes % r->page_bytes != 0);
    return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
}

/* Tries again whether its guarantee fits by now. */
static bool look_at_guarantee(residency *r, uint32_t idx, uint64_t now_us) {
    resident *m = &r->slots[idx];
    inferd_err err = {0};
    bool fits = r->pool->n_min != m->n_min_tried &&
                (uint64_t)min_pages(r, &m->policy) + r->pool->n_min <= r->pool->n_device;
    if (!fits && now_us < m->retry_at_us) return false;
    if (residency_set_policy(r, idx, &m->policy, now_us, &err) != INFERD_OK)
        residency_fail_guarantee(r, idx, &err, now_us);
    return true;
}

/* Not served, and its guarantee does not fit: requests that wait for another attempt fail now. */
static bool refuse_late(residency *r, uint32_t idx, uint64_t now_us) {
    inferd_err told = residency_as_told(&r->slots[idx].why);
    bool any = r->demands[idx].n_waiting + r->demands[idx].n_running > 0;
    if (any) sched_model_fail(r->sched, idx, &told, 0, now_us);
    return any;
}

bool residency_decide(residency *r, uint64_t now_us) {
    bool any = false;
    r->looked_us = now_us;
    sched_make_room(r->sched, GEN_CLASSES);
    sched_demands(r->sched, now_us, r->demands);
    residency_watch_thrash(r, now_us);
    for (uint32_t i = 0; i < r->n_used; i++)
        if (r->slots[i].no_guarantee && r->slots[i].served)
            any |= look_at_guarantee(r, i, now_us);
        else if (r->slots[i].no_guarantee && sched_model_n_seqs(r->sched, i) > 0)
            any |= refuse_late(r, i, now_us);
    bool changed = r->n_changes != r->charged_changes;
    r->charged_changes = r->n_changes;
    for (uint32_t i = 0; i < r->n_used; i++) {
        if (residency_is_root(r, i)) any |= residency_pass_on(r, i);
        if (residency_is_root(r, i) && changed) any |= residency_charge_best(r, i);
        if (residency_is_root(r, i) && !r->slots[i].no_guarantee) any |= look_at(r, i, now_us);
        any |= let_go(r, i);
    }
    any |= residency_settle_staged(r, now_us);
    /* The second pass (owed) is for models below their guarantee: the most wanted model, if it does
     * not fit, must not block them. */
    for (int owed = 0; owed <= (r->pool->n_min > 0); owed++) {
        for (int n = 0; n < LOOK_LOADS_MAX && residency_start_loading(r, owed, now_us); n++)
            any = true;
        while (residency_start_staging(r, owed, now_us)) any = true;
    }
    return any;
}

bool residency_has_work(const residency *r) {
    if (r->loading != RESIDENCY_NONE || r->saving != RESIDENCY_NONE) return true;
    return r->staging != RESIDENCY_NONE &&
           atomic_load_explicit(&r->stage_ready, memory_order_acquire);
}

gen_class residency_waiting_class(const residency *r) {
    uint32_t root = r->loading != RESIDENCY_NONE ? r->loading : r->staging;
    return root != RESIDENCY_NONE ? wgroup_demand(r, root).waiting_class : GEN_CLASSES;
}

gen_class residency_running_class(const residency *r) {
    gen_class most = GEN_CLASSES;
    for (uint32_t i = 0; i < r->n_used; i++)
        if (residency_state(r, i) == MODEL_HOT && r->demands[i].running_class < most)
            most = r->demands[i].running_class;
    return most;
}

/* A failed copy to the host is no loss: it goes COLD, as without room for it. */
static void work_on_save(residency *r, uint64_t budget_us) {
    device_progress p = {0};
    inferd_err err = {0};
    uint32_t root = r->saving;
    inferd_status st = r->dev->ops->save_step(r->dev->self, root, budget_us, &p, &err);
    if (st == INFERD_ELOST) r->gone = err;
    if (st == INFERD_OK && !p.finished) return;
    residency_saved(r, root, st == INFERD_OK);
}

uint64_t residency_work(residency *r, uint64_t budget_us, uint64_t (*clock)(void *), void *ctx) {
    device_progress p = {0};
    inferd_err err = {0};
    const device_ops *ops = r->dev->ops;
    if (r->saving != RESIDENCY_NONE) work_on_save(r, budget_us);
    bool loading = r->loading != RESIDENCY_NONE;
    uint32_t root = loading ? r->loading : r->staging;
    if (root == RESIDENCY_NONE ||
        (!loading && !atomic_load_explicit(&r->stage_ready, memory_order_acquire)))
        return 0;
    resident *m = &r->slots[root];
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
            residency_fail(r, root, &err, now_us);
        } else {
            r->staging = RESIDENCY_NONE;
            residency_fail_stage(r, root, &err, now_us);
        }
    } else if (p.finished && loading) {
        residency_loaded(r, root, now_us);
    } else if (p.finished) {
        residency_staged(r, root, now_us);
    }
    return p.device_us;
}

uint64_t residency_next_us(const residency *r) {
    uint64_t next_us = UINT64_MAX;
    for (uint32_t i = 0; i < r->n_used; i++) {
        const resident *m = &r->slots[i];
        uint64_t at_us = UINT64_MAX;
        if (!residency_is_root(r, i) && !m->no_guarantee) continue;
        uint64_t keep_us = wgroup_keep_alive_us(r, i);
        if (m->state == MODEL_FAILED && m->served && m->retry_at_us != 0) at_us = m->retry_at_us;
        uint64_t back_us = residency_away_until_us(r, i);
        if (back_us > r->looked_us && wgroup_demand(r, i).n_waiting > 0) at_us = back_us;
        if (m->state == MODEL_HOT && keep_us != POLICY_NEVER && !m->wanted &&
            !wgroup_is_pinned(r, i, PIN_HOT))
            at_us = m->active_us + keep_us;
        if (at_us < next_us) next_us = at_us;
    }
    return next_us;
}

/* ---- from outside ---- */

/* From bytes to pages: a guarantee is rounded up, a ceiling down (min_pages). */
inferd_status residency_set_policy(residency *r, uint32_t idx, const model_policy *policy,
                                   uint64_t now_us, inferd_err *err) {
    resident *m = &r->slots[idx];
    if (r->dead) { // its pool, if it ever had one, is out of use
        m->policy = *policy;
        return INFERD_OK;
    }
    uint64_t max = policy->max_bytes / r->page_bytes;
    uint32_t min = min_pages(r, policy);
    if (policy->max_bytes == 0 || max > UINT32_MAX) max = UINT32_MAX;
    if (max < min && policy->min_bytes <= policy->max_bytes) max = min; // both are in one page
    inferd_status st = pool_set_limits(r->pool, idx, min, (uint32_t)max, err);
    if (st != INFERD_OK && m->no_guarantee) m->policy = *policy; // the next attempt takes this one
    if (st != INFERD_OK) return st;
    m->policy = *policy;
    if (m->no_guarantee) residency_keep_guarantee(r, idx);
    resident *root = &r->slots[m->weights_of];
    if (root->state == MODEL_FAILED && root->why.status == INFERD_EQUOTA)
        root->retry_at_us = now_us; // its ceiling may have changed
    r->n_changes++;
    sched_set_model_policy(r->sched, idx, policy, now_us);
    residency_tell_pins(r);
    return INFERD_OK;
}

void residency_attach(residency *r, uint32_t idx, struct model *of, uint32_t same_as,
                      const model_policy *policy, uint64_t now_us) {
    resident *m = &r->slots[idx];
    inferd_err err = {0};
    INFERD_CHECK(idx < r->n && m->state == MODEL_NONE);
    *m = (resident){.served = true, .policy = *policy, .weights_of = idx, .active_us = now_us};
    /* The weights of a slot that failed or is no longer served cannot be shared. */
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
        /* If the weights are another slot's, that slot takes the pages for them. */
        m->about.spec.weight_pages = r->slots[m->weights_of].about.weight_pages;
        m->pages = own ? calloc(size_max(m->about.weight_pages, 1), sizeof *m->pages) : NULL;
        if (own && m->pages == NULL)
            st = inferd_fail(&err, INFERD_ENOMEM, "no memory for a list of %u pages",
                             m->about.weight_pages);
        if (st == INFERD_OK) st = sched_model_open(r->sched, idx, &m->about.spec, &err);
        if (st != INFERD_OK)
            r->dev->ops->detach(r->dev->self, idx); // no other slot uses its weights
    }
    if (st != INFERD_OK) { // for good
        inferd_err told = residency_as_told(&err);
        m->weights_of = idx;
        m->n_members = 1;
        m->why = err;
        m->n_failures = 1;
        sched_model_fail(r->sched, idx, &told, 0, now_us);
        residency_enter(r, idx, MODEL_FAILED);
        return;
    }
    residency_enter(r, idx, MODEL_COLD);
    r->slots[m->weights_of].n_members++;
    if (residency_set_policy(r, idx, policy, now_us, &err) == INFERD_OK)
        residency_join(r, idx);
    else
        residency_fail_guarantee(r, idx, &err, now_us);
}

void residency_remove(residency *r, uint32_t idx) {
    resident *m = &r->slots[idx];
    m->served = false;
    /* Its guarantee is free for others at once, though its pages may go on. */
    if (!r->dead && m->state != MODEL_NONE)
        pool_set_limits(r->pool, idx, 0, r->pool->owners[idx].max, NULL);
    r->n_changes++;
    residency_tell_pins(r);
}

/* Asked for by an operator: in the end it is WARM, or COLD.  A model with waiting requests comes up
 * first, and leaves when it is unused. */
static void send_away(residency *r, uint32_t root, bool drop, uint64_t now_us) {
    resident *m = &r->slots[root];
    switch (m->state) {
    case MODEL_HOT:
        residency_drain(r, root, ENGINE_EVICT_ASKED, false, now_us);
        break;
    case MODEL_DRAINING:
        if (m->cause == ENGINE_EVICT_IDLE)
            m->cause = ENGINE_EVICT_ASKED; // new work does not make it HOT again
        break;
    case MODEL_STAGING:
        m->evict_next = wgroup_demand(r, root).n_waiting > 0;
        if (!m->evict_next) residency_cancel_stage(r, root);
        break;
    case MODEL_WARM:
        m->evict_next = true;
        if (drop && !m->on_device) residency_drop(r, root);
        break;
    case MODEL_LOADING:
        m->evict_next = true;
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
    if (c == ENGINE_LOAD || c == ENGINE_PREFETCH || c == ENGINE_RETRY) {
        if (r->slots[idx].no_guarantee)
            r->slots[idx].retry_at_us = now_us;
        else if (m->state == MODEL_FAILED && m->retry_at_us != 0)
            residency_retry(r, root);
    }
    switch (c) {
    case ENGINE_LOAD:
        r->slots[idx].held = m->evict_next = m->drop_next = false;
        m->wanted = m->state != MODEL_HOT;
        break;
    case ENGINE_PREFETCH:
        m->prefetch = m->state == MODEL_COLD || m->state == MODEL_STAGING;
        break;
    case ENGINE_DROP:
    case ENGINE_UNLOAD:
        m->wanted = m->prefetch = false;
        m->dropped = true;
        send_away(r, root, c == ENGINE_DROP, now_us);
        break;
    case ENGINE_DRAIN:
        r->slots[idx].held = true;
        if (!wgroup_is_held(r, root)) break; // another name of its weight group is in service
        m->wanted = m->prefetch = false;
        m->dropped = true;
        break;
    case ENGINE_RETRY:
        break;
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
        residency_give_memory(r, m); // unfinished steps still name its pages; none is lent again
        residency_enter(r, i, MODEL_FAILED);
    }
    r->staging = r->loading = r->saving = RESIDENCY_NONE;
}

void residency_close(residency *r) {
    for (int sharing = 1; sharing >= 0; sharing--) // members before roots
        for (uint32_t i = 0; i < r->n; i++)
            if (r->slots[i].state != MODEL_NONE && (r->slots[i].weights_of != i) == sharing)
                r->dev->ops->detach(r->dev->self, i);
    for (uint32_t i = 0; i < r->n; i++) {
        free(r->slots[i].pages);
        r->slots[i] = (resident){.state = MODEL_NONE};
    }
    r->staging = r->loading = r->saving = RESIDENCY_NONE;
}

/* ---- consistency check ---- */

inferd_status residency_verify(const residency *r, inferd_err *err) {
    for (uint32_t i = 0; i < r->n; i++) {
        const resident *m = &r->slots[i];
        const pool_owner *o = &r->pool->owners[i];
        uint32_t on_device = o->held[PAGE_WEIGHT], warm = o->held[PAGE_WARM];
        bool has_pages = m->n_pages > 0;
        bool must = m->state == MODEL_HOT || m->state == MODEL_DRAINING ||
                    m->state == MODEL_LOADING ||
                    ((m->state == MODEL_WARM || m->state == MODEL_STAGING) && !m->host_copy);
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
