/* residency.c - see residency.h.
 *
 *     the arrows           one function each, and nothing else writes `state`
 *     who has to go        value, victims, room
 *     who comes            order, staging, loading
 *     residency_decide     what changed since the last look: ends of drains, idle models, retries
 */
#include "residency.h"

#include "scheduler.h"
#include "scheduler/feasible.h"

enum {
    EAGER_LEAVES_QUARTERS = 1, // of the device's pages free of weights nobody asked for
    KEEP_STAGE_PERCENT = 50,   // a stage this far goes on when nobody waits any more
    FAILURES_DOUBLED_MAX = 16,
    TURN_SWITCHES = 10, // a turn is so many times as long as the switch before it,
    TURN_RESTORES = 20, // and so many times as long as having its running work back takes
    TURN_MAX_US = 60000000,
    THRASH_PERCENT = 5, // of all time goes with bringing back who had to make room
    THRASH_ENDS_PERCENT = 2,
    QUOTA_SWITCHES = 4,      // a quota is at least so many times as long as its switch
    TURNS_PLAN_US = 200000,  // between two plans of quotas
    TURN_PERIOD_US = 100000, // per token, where nobody says: about as fast as people read
    TURN_COST_US_MAX = 1 << 30,
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

#define EACH_MEMBER(r, root, i)                                                                    \
    for (uint32_t i = (r)->slots[root].n_members > 1 ? 0 : (root),                                 \
                  i##_end = (r)->slots[root].n_members > 1 ? (r)->n_used : (root) + 1;             \
         i < i##_end; i++)                                                                         \
        if ((r)->slots[i].state != MODEL_NONE && (r)->slots[i].weights_of == (root))

static bool is_root(const residency *r, uint32_t i) {
    return r->slots[i].state != MODEL_NONE && r->slots[i].weights_of == i;
}

model_state residency_state(const residency *r, uint32_t idx) {
    const resident *m = &r->slots[idx];
    if (m->state == MODEL_NONE || m->state == MODEL_FAILED) return m->state;
    return r->slots[m->weights_of].state;
}

/* What all of them are wanted for together, when residency_decide looked last. */
static sched_demand demand_of(const residency *r, uint32_t root) {
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

/* Unfinished steps that use these weights, now. */
static uint32_t steps_of(const residency *r, uint32_t root) {
    uint32_t n = 0;
    EACH_MEMBER(r, root, i) n += sched_model_n_steps(r->sched, i);
    return n;
}

static bool is_pinned(const residency *r, uint32_t root, model_pin at_least) {
    EACH_MEMBER(r, root, i)
    if (r->slots[i].served && r->slots[i].policy.pin >= at_least) return true;
    return false;
}

/* Pages of its weights that never leave the device.  Those of a model that failed may not even fit.
 */
static uint32_t pinned_pages(const residency *r, uint32_t i) {
    const resident *m = &r->slots[i];
    if (!is_root(r, i) || !is_pinned(r, i, PIN_HOT)) return 0;
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

/* The most urgent class of those who share the weights, and their weights together. */
static gen_class class_of(const residency *r, uint32_t root) {
    gen_class class = GEN_BATCH;
    EACH_MEMBER(r, root, i) if (r->slots[i].policy.class < class) class = r->slots[i].policy.class;
    return class;
}

static uint64_t weight_of(const residency *r, uint32_t root) {
    uint64_t sum = 0;
    EACH_MEMBER(r, root, i) sum += r->slots[i].policy.weight;
    return sum;
}

static uint64_t keep_alive_of(const residency *r, uint32_t root) {
    uint64_t longest = 0;
    EACH_MEMBER(r, root, i)
    if (r->slots[i].policy.keep_alive_us > longest) longest = r->slots[i].policy.keep_alive_us;
    return longest;
}

/* ---- the arrows ---- */

static void enter(residency *r, uint32_t i, model_state state) {
    r->slots[i].state = state;
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

/* STAGING, LOADING -> FAILED: the device holds nothing of it any more. */
static void fail(residency *r, uint32_t root, const inferd_err *why, uint64_t now_us) {
    resident *m = &r->slots[root];
    give_pages(r, m);
    give_host(r, m);
    uint32_t doubled = u32_min(m->n_failures, FAILURES_DOUBLED_MAX);
    uint64_t wait_us = r->limits.retry_us << doubled;
    if (wait_us > r->limits.retry_max_us) wait_us = r->limits.retry_max_us;
    m->retry_at_us = why->status == INFERD_ELOST ? 0 : now_us + wait_us;
    m->n_failures++;
    m->n_failed++;
    m->wanted = m->prefetch = false;
    inferd_err told = *why;
    if (told.status != INFERD_ELOST) told.status = INFERD_EMODEL;
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
    EACH_MEMBER(r, root, i) sched_model_revive(r->sched, i);
    enter(r, root, MODEL_COLD);
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

/* COLD -> STAGING, with its memory taken; or FAILED. */
static void stage(residency *r, uint32_t root, uint64_t now_us) {
    resident *m = &r->slots[root];
    inferd_err err = {0};
    m->begun_us = now_us;
    m->bytes_done = 0;
    m->bytes_total = m->about.stage_bytes;
    m->parts = (engine_switch){0};
    if (m->wanted_since_us != 0) m->parts.queue_us = now_us - m->wanted_since_us;
    atomic_store_explicit(&r->stage_ready, true, memory_order_relaxed);
    r->staging = root;
    enter(r, root, MODEL_STAGING);
    if (r->dev->ops->stage_begin(r->dev->self, root, r->one_memory ? m->pages : NULL, wake_stage, r,
                                 &err) == INFERD_OK)
        return;
    r->staging = RESIDENCY_NONE;
    fail(r, root, &err, now_us);
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
    m->prefetch = false;
    m->parts.stage_us = now_us - m->begun_us;
    enter(r, root, MODEL_WARM);
}

/* WARM -> COLD. */
static void drop(residency *r, uint32_t root) {
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
    if (is_pinned(r, root, PIN_HOT)) tell_pins(r);
}

/* WARM -> LOADING, with its pages taken; HOT at once where nothing needs copying. */
static void load(residency *r, uint32_t root, uint64_t now_us) {
    resident *m = &r->slots[root];
    inferd_err err = {0};
    if (m->wanted_since_us != 0 && m->parts.stage_us == 0)
        m->parts.queue_us = now_us - m->wanted_since_us;
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

/* HOT -> DRAINING: what runs ends first, or, to make room, waits again. */
static void drain(residency *r, uint32_t root, engine_evict_cause cause, bool leaving,
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

static bool make_host_room(residency *r, uint32_t root, uint32_t n, uint32_t comer, bool needed,
                           uint64_t now_us);

/* DRAINING -> WARM, or COLD where the host has no room for it.  No step of it is on its way.
 * `comer`: a WARM model that comes instead, whose pages may change places with its, or
 * RESIDENCY_NONE. */
static void release(residency *r, uint32_t root, uint32_t comer, uint64_t now_us) {
    resident *m = &r->slots[root];
    /* Those that are paused run no longer either: they wait, and bring it back when they go on. */
    EACH_MEMBER(r, root, i)
    if (r->slots[i].state != MODEL_FAILED) sched_model_preempt(r->sched, i);
    set_hot(r, root, false);
    EACH_MEMBER(r, root, i)
    if (r->slots[i].state != MODEL_FAILED) sched_model_close_door(r->sched, i, false);
    m->leaving = false;
    r->dev->ops->unload(r->dev->self, root);
    enter(r, root, MODEL_WARM);
    if (!r->one_memory) {
        give_pages(r, m);
    } else if (make_host_room(r, root, m->n_pages, comer, false, now_us) &&
               pool_turn(r->pool, m->pages, m->n_pages, PAGE_WARM)) {
        m->on_device = false;
    } else if (comer != RESIDENCY_NONE && r->slots[comer].state == MODEL_WARM &&
               !r->slots[comer].on_device &&
               pool_exchange(r->pool, m->pages, m->n_pages, r->slots[comer].pages,
                             r->slots[comer].n_pages)) {
        m->on_device = false;
        r->slots[comer].on_device = true;
    } else {
        drop(r, root);
    }
    if (m->drop_next && m->state == MODEL_WARM) drop(r, root);
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

/* ---- who has to go ---- */

uint64_t resident_reload_us(const resident *m) {
    return m->bring_us > 0 ? m->bring_us : 1000 + (uint64_t)m->about.weight_pages * 1000;
}

/* The least worth keeping goes first. */
static uint64_t value_of(const residency *r, uint32_t root, uint64_t now_us) {
    const resident *m = &r->slots[root];
    if (r->worth != NULL) return r->worth(r->worth_ctx, r, root, now_us);
    worth_idle idle = {.weight = weight_of(r, root),
                       .reload_us = resident_reload_us(m),
                       .idle_us = now_us > m->active_us ? now_us - m->active_us : 0,
                       .n_pages = m->about.weight_pages,
                       .pauses = m->pauses};
    return worth_of(&idle);
}

/* What it will take to have it back when it leaves now: it is read again only where the host has no
 * room for it at all. */
static uint64_t back_us(const residency *r, const resident *m) {
    bool stays = m->about.host_pages <= r->pool->n_host;
    return m->last.load_us + (stays ? 0 : m->last.stage_us);
}

/* How long it is served before others of its class may have its place: several times as long as it
 * takes to have it back, with what its running work holds. */
static uint64_t turn_of(const residency *r, uint32_t root) {
    const resident *m = &r->slots[root];
    uint64_t turn_us = m->turn_us != 0 ? m->turn_us : TURN_SWITCHES * back_us(r, m);
    turn_us += TURN_RESTORES * demand_of(r, root).again_us;
    if (turn_us > TURN_MAX_US) turn_us = TURN_MAX_US;
    return turn_us > r->limits.turn_us ? turn_us : r->limits.turn_us;
}

/* ---- quotas of turns ---- */

uint64_t residency_reload_us(const residency *r) {
    return r->reload_us + r->reload_before_us;
}

/* The window has two parts, so that what was long ago is forgotten. */
static void roll_window(residency *r, uint64_t now_us) {
    uint64_t part_us = RESIDENCY_WINDOW_US / 2, elapsed_us = now_us - r->window_began_us;
    if (elapsed_us < part_us) return;
    r->reload_before_us = elapsed_us < 2 * part_us ? r->reload_us : 0;
    r->reload_us = 0;
    r->window_began_us = now_us;
}

/* Models of this class that want the device and may have to leave it; how many. */
static uint32_t collect_turns(residency *r, gen_class class) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->n_used; i++) {
        const resident *m = &r->slots[i];
        if (!is_root(r, i) || m->state == MODEL_FAILED || is_pinned(r, i, PIN_HOT)) continue;
        sched_demand d = demand_of(r, i);
        gen_class theirs = d.running_class < d.waiting_class ? d.running_class : d.waiting_class;
        if (d.n_waiting + d.n_running == 0 || theirs != class) continue;
        uint64_t cost_us = 0, period_us = 0, switch_us = back_us(r, m);
        EACH_MEMBER(r, i, k) sched_add_task(r->sched, k, &cost_us, &period_us);
        if (period_us == 0) period_us = TURN_PERIOD_US;
        r->turn_slots[n] = i;
        r->turns[n++] = (feasible_turn){
            .cost_us =
                cost_us < TURN_COST_US_MAX ? u32_max((uint32_t)cost_us, 1) : TURN_COST_US_MAX,
            .period_us = period_us < UINT32_MAX ? (uint32_t)period_us : UINT32_MAX,
            .switch_us = switch_us < TURN_COST_US_MAX ? (uint32_t)switch_us : TURN_COST_US_MAX};
    }
    return n;
}

static void plan_turns(residency *r, uint64_t now_us) {
    feasible_turns f;
    r->turns_planned_us = now_us;
    r->turns_attainment_ppm = FEASIBLE_ONE_PPM;
    for (uint32_t i = 0; i < r->n_used; i++) r->slots[i].turn_us = 0;
    for (uint32_t class = 0; class < GEN_CLASSES; class ++) {
        uint32_t n = collect_turns(r, (gen_class) class);
        if (n < 2) continue;
        feasible_turns_plan(r->turns, n, FEASIBLE_ONE_PPM, FEASIBLE_TURN_MAX_US, r->quotas, &f);
        for (uint32_t i = 0; i < n; i++) {
            uint64_t least_us = (uint64_t)QUOTA_SWITCHES * r->turns[i].switch_us;
            r->slots[r->turn_slots[i]].turn_us = least_us > r->quotas[i] ? least_us : r->quotas[i];
        }
        if (f.attainment_ppm < r->turns_attainment_ppm) r->turns_attainment_ppm = f.attainment_ppm;
    }
}

/* Does coming back take so much of all time that turns need quotas? */
static void watch_thrash(residency *r, uint64_t now_us) {
    roll_window(r, now_us);
    uint64_t percent = residency_reload_us(r) * 100 / RESIDENCY_WINDOW_US;
    bool was = r->thrashing;
    if (!was && percent < THRASH_PERCENT) return;
    r->thrashing = percent >= (was ? THRASH_ENDS_PERCENT : THRASH_PERCENT);
    if (!r->thrashing)
        for (uint32_t i = 0; i < r->n_used; i++) r->slots[i].turn_us = 0;
    else if (!was || now_us - r->turns_planned_us >= TURNS_PLAN_US)
        plan_turns(r, now_us);
}

typedef enum victim_kind {
    VICTIM_NONE,
    VICTIM_IDLE,  // nobody wants it
    VICTIM_LOWER, // who wants it is of a lower class
    VICTIM_TURN   // of the same class, and it has been served for its turn
} victim_kind;

/* May this model go for `root`, for whom work of this class waits? */
static victim_kind victim(const residency *r, uint32_t v, uint32_t root, gen_class class,
                          uint64_t now_us) {
    const resident *m = &r->slots[v];
    if (v == root || !is_root(r, v) || m->state != MODEL_HOT || is_pinned(r, v, PIN_HOT))
        return VICTIM_NONE;
    uint64_t served_us = now_us - m->hot_since_us;
    sched_demand d = demand_of(r, v);
    if (served_us < r->limits.min_residency_us) return VICTIM_NONE;
    if (d.n_waiting + d.n_running == 0)
        return steps_of(r, v) == 0 && !m->wanted ? VICTIM_IDLE : VICTIM_NONE;
    gen_class theirs = d.running_class < d.waiting_class ? d.running_class : d.waiting_class;
    if (theirs > class) return VICTIM_LOWER;
    uint64_t turn_us = turn_of(r, v);
    /* One that is HOT and could begin nothing for so long waits for memory, too: both would wait
     * for ever.  Who was idle and has work since a moment ago is not stuck. */
    uint64_t blocked_since_us = d.oldest_us > m->hot_since_us ? d.oldest_us : m->hot_since_us;
    bool stuck = d.n_running == 0 && now_us >= blocked_since_us + turn_us;
    return (theirs == class || stuck) && served_us >= turn_us ? VICTIM_TURN : VICTIM_NONE;
}

static bool leaves_before(const residency_leaver *a, const residency_leaver *b) {
    if (a->class != b->class) return a->class > b->class;
    return a->value != b->value ? a->value < b->value : a->idx < b->idx;
}

/* Does a go before b? */
static bool goes_before(const residency *r, uint32_t a, uint32_t b, uint64_t now_us) {
    residency_leaver x = {a, class_of(r, a), value_of(r, a, now_us)};
    residency_leaver y = {b, class_of(r, b), value_of(r, b, now_us)};
    return leaves_before(&x, &y);
}

/* What comes free when it goes, besides cached blocks. */
static uint32_t pages_of(const residency *r, uint32_t root) {
    uint32_t n = r->slots[root].n_pages;
    EACH_MEMBER(r, root, i) n += r->pool->owners[i].held[PAGE_KV];
    return n;
}

/* The next of this kind who has to go, for that many pages more: the least worth keeping, but for
 * those who would go in vain. */
static uint32_t pick_needed(residency *r, victim_kind kind, uint32_t root, gen_class class,
                            uint64_t missing, uint64_t now_us) {
    uint32_t n = 0;
    for (uint32_t v = 0; v < r->n_used; v++) {
        if (victim(r, v, root, class, now_us) != kind) continue;
        residency_leaver l = {v, class_of(r, v), value_of(r, v, now_us)};
        uint32_t i = n++;
        for (; i > 0 && leaves_before(&l, &r->leavers[i - 1]); i--)
            r->leavers[i] = r->leavers[i - 1];
        r->leavers[i] = l;
    }
    if (n == 0) return RESIDENCY_NONE;
    if (r->worth != NULL && !r->spares) return r->leavers[0].idx;
    for (uint32_t i = 0; i < n; i++) r->leaver_pages[i] = pages_of(r, r->leavers[i].idx);
    return r->leavers[worth_first(r->leaver_pages, n, missing)].idx;
}

static uint32_t pick_victim(const residency *r, victim_kind kind, uint32_t root, gen_class class,
                            uint64_t now_us) {
    uint32_t best = RESIDENCY_NONE;
    for (uint32_t v = 0; v < r->n_used; v++)
        if (victim(r, v, root, class, now_us) == kind &&
            (best == RESIDENCY_NONE || goes_before(r, v, best, now_us)))
            best = v;
    return best;
}

/* Free pages that one who came needs for the first of its work, which has not begun.  Weights for
 * whom no more urgent work waits leave them alone for as long as a turn: else two would be HOT and
 * neither could begin. */
static uint32_t promised_to(const residency *r, uint32_t root, gen_class class, uint64_t now_us) {
    const resident *m = &r->slots[root];
    if (m->state != MODEL_HOT || !is_root(r, root)) return 0;
    sched_demand d = demand_of(r, root);
    if (d.n_waiting == 0 || d.n_running > 0 || d.waiting_class > class ||
        now_us - m->hot_since_us >= turn_of(r, root))
        return 0;
    const pool_owner *o = &r->pool->owners[root];
    uint32_t held = o->held[PAGE_WEIGHT] + o->held[PAGE_KV];
    uint32_t guaranteed = o->min > held ? o->min - held : 0; // kept free by the pool
    return d.first_pages > guaranteed ? d.first_pages - guaranteed : 0;
}

static uint32_t promised_to_others(const residency *r, uint32_t root, gen_class class,
                                   uint64_t now_us) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->n_used; i++)
        if (i != root) n += promised_to(r, i, class, now_us);
    return n;
}

/* Pages that would be there for `root` if all victims up to this kind went; cached ones are there
 * already, and keys and values of those who go, too. */
static uint64_t room_after(const residency *r, uint32_t root, gen_class class, victim_kind up_to,
                           uint64_t now_us) {
    uint64_t n = pool_n_device_free(r->pool) + r->pool->n_in[PAGE_QUARANTINE], promised = 0;
    uint64_t n_freed = 0, unfilled = 0; // keys and values of who goes; guarantees of models then
    for (uint32_t v = 0; v < r->n_used; v++) {
        if (!is_root(r, v)) continue;
        victim_kind kind = victim(r, v, root, class, now_us);
        bool goes = r->slots[v].leaving || (kind != VICTIM_NONE && kind <= up_to);
        if (goes) n += r->slots[v].n_pages;
        if (!goes && v != root) promised += promised_to(r, v, class, now_us);
        EACH_MEMBER(r, v, i) {
            const pool_owner *o = &r->pool->owners[i];
            uint32_t held = goes ? 0 : o->held[PAGE_WEIGHT] + o->held[PAGE_KV];
            if (i != root && o->min > held) unfilled += o->min - held;
            if (goes) n_freed += o->held[PAGE_KV];
            n += goes ? o->held[PAGE_KV] : sched_model_n_cached(r->sched, i);
        }
    }
    /* Whose keys and values go has its guarantee kept free instead. */
    uint64_t reserved = r->pool->n_reserved + n_freed, most = sched_tenants_min_pages(r->sched);
    if (reserved > most) reserved = most;
    promised += reserved > unfilled ? reserved : unfilled;
    return n > promised ? n - promised : 0;
}

/* It goes, for work of this class; at once, unless a step of it is on its way.  True: it is gone.
 */
static bool evict(residency *r, uint32_t v, victim_kind kind, gen_class class, uint32_t comer,
                  uint64_t now_us) {
    static const engine_evict_cause causes[] = {ENGINE_EVICT_PRESSURE, ENGINE_EVICT_PRESSURE,
                                                ENGINE_EVICT_CLASS, ENGINE_EVICT_TURN};
    resident *m = &r->slots[v];
    if (kind == VICTIM_TURN) r->n_turns++;
    if (kind != VICTIM_IDLE) {
        m->away_until_us = now_us + r->limits.turn_us;
        m->away_class = demand_of(r, v).n_running == 0 ? GEN_SYSTEM : class;
    }
    drain(r, v, causes[kind], true, now_us);
    if (steps_of(r, v) > 0) return false;
    release(r, v, comer, now_us);
    return true;
}

/* n pages for weights of `root` and one more are there, in pieces that weights can use. */
static bool has_room(const residency *r, uint32_t root, uint32_t n, gen_class class,
                     uint64_t now_us) {
    const pool *p = r->pool;
    return pool_n_takeable(p, root) >= n + promised_to_others(r, root, class, now_us) &&
           (r->one_memory || pool_n_whole_pages(p) >= r->slots[root].about.weight_pages);
}

/* Cached keys and values go until that is so; where weights need whole extents some that are in
 * their way go, too, though there are pages enough. */
static bool drop_cached_for(residency *r, uint32_t root, uint32_t n, gen_class class,
                            uint64_t now_us) {
    const pool *p = r->pool;
    while (!has_room(r, root, n, class, now_us)) {
        uint32_t n_free = pool_n_device_free(p), takeable = pool_n_takeable(p, root);
        uint32_t wanted = n + promised_to_others(r, root, class, now_us);
        uint32_t missing = takeable < wanted ? wanted - takeable : 1;
        if (sched_drop_cached(r->sched, n_free + missing) == n_free) return false;
    }
    return true;
}

/* Weights of models that go as soon as their steps have ended. */
static uint32_t n_leaving(const residency *r) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->n_used; i++)
        if (is_root(r, i) && r->slots[i].leaving) n += pages_of(r, i);
    return n;
}

/* Pages that are not there yet for n of `root`, nor on their way. */
static uint64_t n_missing(const residency *r, uint32_t root, uint32_t n, gen_class class,
                          uint64_t now_us) {
    uint64_t wanted = (uint64_t)n + promised_to_others(r, root, class, now_us);
    uint64_t there = (uint64_t)pool_n_takeable(r->pool, root) + n_leaving(r);
    return wanted > there ? wanted - there : 0;
}

/* Room for n pages of `root`, for whom work of this class waits (GEN_CLASSES: nobody; then only
 * idle ones go).  False: not now, and nobody goes in vain. */
static bool make_room(residency *r, uint32_t root, uint32_t n, gen_class class, bool turn,
                      uint64_t now_us) {
    if (drop_cached_for(r, root, n, class, now_us)) return true;
    victim_kind last = turn ? VICTIM_TURN : VICTIM_LOWER, up_to = VICTIM_IDLE;
    while (up_to < last && room_after(r, root, class, up_to, now_us) < n) up_to++;
    if (room_after(r, root, class, up_to, now_us) < n) return false;
    for (victim_kind k = VICTIM_IDLE; k <= up_to; k++) {
        while (!has_room(r, root, n, class, now_us)) {
            uint64_t missing = n_missing(r, root, n, class, now_us);
            if (missing == 0 && n_leaving(r) > 0) return false; // enough are on their way out
            uint32_t v = pick_needed(r, k, root, class, missing, now_us);
            if (v == RESIDENCY_NONE) break;
            evict(r, v, k, class, root, now_us);
            if (r->slots[root].on_device) return true; // they changed places
            drop_cached_for(r, root, n, class, now_us);
        }
    }
    return has_room(r, root, n, class, now_us);
}

/* The same for host memory, by dropping WARM models: those that are worth less than `root`, and all
 * that nobody waits for when it is `needed`; never `comer`, for whom `root` goes. */
static bool make_host_room(residency *r, uint32_t root, uint32_t n, uint32_t comer, bool needed,
                           uint64_t now_us) {
    sched_drop_parked(r->sched, n);
    while (pool_n_host_free(r->pool) < n) {
        uint32_t best = RESIDENCY_NONE;
        uint64_t n_less = pool_n_host_free(r->pool);
        for (uint32_t v = 0; v < r->n_used; v++) {
            const resident *m = &r->slots[v];
            if (v == root || v == comer || !is_root(r, v) || m->state != MODEL_WARM ||
                m->on_device || is_pinned(r, v, PIN_WARM) || m->wanted_since_us != 0 ||
                (!needed && !goes_before(r, v, root, now_us)))
                continue;
            n_less += m->about.host_pages;
            if (best == RESIDENCY_NONE || goes_before(r, v, best, now_us)) best = v;
        }
        if (best == RESIDENCY_NONE || n_less < n) return false;
        drop(r, best);
    }
    return true;
}

/* Whoever is not more urgent than waiting has made `lifted`: after its turn, or models of one class
 * would put each other out as soon as somebody has waited for long. */
static uint32_t pick_lifted(const residency *r, uint32_t root, gen_class lifted, uint64_t now_us) {
    uint32_t best = RESIDENCY_NONE;
    for (uint32_t v = 0; v < r->n_used; v++)
        if (victim(r, v, root, lifted, now_us) >= VICTIM_LOWER &&
            now_us - r->slots[v].hot_since_us >= turn_of(r, v) &&
            (best == RESIDENCY_NONE || goes_before(r, v, best, now_us)))
            best = v;
    return best;
}

bool residency_reclaim(residency *r, uint32_t idx, gen_class waiting, gen_class lifted,
                       uint64_t since_us, uint64_t now_us) {
    uint32_t root = r->slots[idx].weights_of, v;
    bool turn = waiting != GEN_CLASSES && now_us >= since_us + r->limits.turn_us;
    victim_kind up_to = waiting == GEN_CLASSES ? VICTIM_IDLE : turn ? VICTIM_TURN : VICTIM_LOWER;
    for (victim_kind k = VICTIM_IDLE; k <= up_to; k++) {
        if ((v = pick_victim(r, k, root, waiting, now_us)) == RESIDENCY_NONE) continue;
        return evict(r, v, k, waiting, RESIDENCY_NONE, now_us);
    }
    if (lifted >= waiting || (v = pick_lifted(r, root, lifted, now_us)) == RESIDENCY_NONE)
        return false;
    return evict(r, v, VICTIM_TURN, lifted, RESIDENCY_NONE, now_us);
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

static want want_of(const residency *r, uint32_t root, uint64_t now_us) {
    const resident *m = &r->slots[root];
    sched_demand d = demand_of(r, root);
    bool away = now_us < m->away_until_us && d.waiting_class >= m->away_class;
    if (d.n_waiting > 0 && !away) return (want){WANT_WORK, d.waiting_class, d.oldest_us};
    want w = {WANT_NOTHING, GEN_CLASSES, 0};
    if (m->held || !is_served(r, root)) return w;
    if (m->wanted || is_pinned(r, root, PIN_HOT))
        w.kind = WANT_HOT;
    else if (m->prefetch || (is_pinned(r, root, PIN_WARM) && m->state == MODEL_COLD))
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

/* The model in this state that is wanted most. */
static uint32_t most_wanted(const residency *r, model_state state, want *out, uint64_t now_us) {
    uint32_t best = RESIDENCY_NONE;
    for (uint32_t i = 0; i < r->n_used; i++) {
        if (!is_root(r, i) || r->slots[i].state != state) continue;
        want w = want_of(r, i, now_us);
        if (w.kind == WANT_NOTHING || (best != RESIDENCY_NONE && !comes_before(&w, out))) continue;
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
        bool hot = is_root(r, i) && is_pinned(r, i, PIN_HOT) && m->state != MODEL_FAILED;
        bool warm = is_root(r, i) && is_pinned(r, i, PIN_WARM) && m->host_copy;
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
    uint32_t wanted = n + u32_max(demand_of(r, root).first_pages, 1);
    return u32_max(u32_min(wanted, most), n + 1);
}

/* Somebody has waited long enough for models to take turns. */
static bool may_turn(const residency *r, const want *w, uint64_t now_us) {
    return w->kind == WANT_WORK && now_us >= w->since_us + r->limits.turn_us;
}

/* For all of that, or at least for the weights. */
static bool make_room_to_begin(residency *r, uint32_t root, const want *w, uint64_t now_us) {
    bool turn = may_turn(r, w, now_us);
    return make_room(r, root, pages_to_begin(r, root), w->class, turn, now_us) ||
           make_room(r, root, r->slots[root].about.weight_pages + 1, w->class, turn, now_us);
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
        inferd_fail(&err, INFERD_EMODEL,
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

/* Free pages that weights nobody asked for may take. */
static bool fits_eagerly(const residency *r, uint32_t root) {
    const pool *p = r->pool;
    uint32_t spare = p->n_device / 4 * EAGER_LEAVES_QUARTERS;
    if (p->n_in[PAGE_WEIGHT] == 0) spare = 0; // the first one may have all of it
    return pool_n_takeable(p, root) >= r->slots[root].about.weight_pages + spare + 1;
}

/* One memory: straight to the device's ledger when it is wanted HOT, else to the host's. */
static bool begin_stage_here(residency *r, uint32_t root, const want *w, uint64_t now_us) {
    resident *m = &r->slots[root];
    uint32_t n = m->about.weight_pages;
    bool hot = w->kind >= WANT_HOT || (w->kind == WANT_EAGER && fits_eagerly(r, root));
    if (hot && w->kind != WANT_EAGER) {
        uint64_t began_us = now_us;
        if (!make_room_to_begin(r, root, w, now_us)) return false;
        m->parts.reclaim_us = now_us - began_us;
    }
    if (!hot &&
        (w->kind == WANT_EAGER ? pool_n_host_free(r->pool) < n
                               : !make_host_room(r, root, n, RESIDENCY_NONE, false, now_us)))
        return false;
    return take_pages(r, root, hot ? PAGE_WEIGHT : PAGE_WARM);
}

/* Copies of HOT models go with them, when nothing else helps. */
static bool make_host_room_apart(residency *r, uint32_t root, const want *w, uint64_t now_us) {
    uint32_t n = r->slots[root].about.host_pages;
    if (make_host_room(r, root, n, RESIDENCY_NONE, true, now_us)) return true;
    for (victim_kind k = VICTIM_IDLE; k <= (may_turn(r, w, now_us) ? VICTIM_TURN : VICTIM_LOWER);
         k++) {
        uint32_t v;
        while (pool_n_host_free(r->pool) < n &&
               (v = pick_victim(r, k, root, w->class, now_us)) != RESIDENCY_NONE) {
            r->slots[v].drop_next = true;
            evict(r, v, k, w->class, RESIDENCY_NONE, now_us);
        }
    }
    return pool_n_host_free(r->pool) >= n;
}

/* Host memory apart. */
static bool begin_stage_apart(residency *r, uint32_t root, const want *w, uint64_t now_us) {
    resident *m = &r->slots[root];
    uint32_t n = m->about.host_pages;
    bool room = pool_n_host_free(r->pool) >= n;
    if (!room && w->kind == WANT_PREFETCH)
        room = make_host_room(r, root, n, RESIDENCY_NONE, false, now_us);
    if (!room && w->kind >= WANT_HOT) room = make_host_room_apart(r, root, w, now_us);
    if (!room || !pool_host_take(r->pool, n)) return false;
    m->host_copy = true;
    return true;
}

static bool start_staging(residency *r, uint64_t now_us) {
    want w;
    uint32_t root = most_wanted(r, MODEL_COLD, &w, now_us);
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

static bool start_loading(residency *r, uint64_t now_us) {
    want w;
    uint32_t root = most_wanted(r, MODEL_WARM, &w, now_us);
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
        if (!is_root(r, i) || m->state != MODEL_WARM || !m->on_device) continue;
        want w = want_of(r, i, now_us);
        if (w.kind >= WANT_HOT || w.kind == WANT_EAGER) {
            load(r, i, now_us);
        } else if (make_host_room(r, i, m->n_pages, RESIDENCY_NONE, false, now_us) &&
                   pool_turn(r->pool, m->pages, m->n_pages, PAGE_WARM)) {
            m->on_device = false;
            r->n_changes++;
        } else if (now_us >= m->away_until_us) {
            load(r, i, now_us); // idle and HOT it leaves as soon as its pages are wanted
        } else {
            drop(r, i);
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
    sched_demand d = demand_of(r, root);
    bool wanted = d.n_waiting + d.n_running > 0;
    bool used = wanted || steps_of(r, root) > 0;
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
        if (steps_of(r, root) > 0) return false;
        if (d.n_running > 0) {
            if (!sched_is_blocked(r->sched, now_us)) return false;
            /* What runs cannot end here; it waits again, so that others may come. */
            m->leaving = true;
            EACH_MEMBER(r, root, i)
            if (r->slots[i].state != MODEL_FAILED) sched_model_preempt(r->sched, i);
        }
        release(r, root, RESIDENCY_NONE, now_us);
        return true;
    case MODEL_HOT: {
        if (wanted || steps_of(r, root) > 0 || m->wanted) return false;
        uint64_t keep_us = keep_alive_of(r, root);
        bool idle = keep_us != POLICY_NEVER && now_us - m->active_us >= keep_us &&
                    !is_pinned(r, root, PIN_HOT);
        if (!idle && !m->held && is_served(r, root)) return false;
        drain(r, root, idle ? ENGINE_EVICT_IDLE : ENGINE_EVICT_ASKED, false, now_us);
        return true;
    }
    case MODEL_STAGING: {
        bool far = m->bytes_done * 100 >= m->bytes_total * KEEP_STAGE_PERCENT;
        want w = want_of(r, root, now_us);
        if (w.kind != WANT_NOTHING || (far && is_served(r, root))) return false;
        cancel_stage(r, root);
        return true;
    }
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

bool residency_decide(residency *r, uint64_t now_us) {
    bool any = false;
    sched_demands(r->sched, now_us, r->demands);
    watch_thrash(r, now_us);
    for (uint32_t i = 0; i < r->n_used; i++) {
        if (is_root(r, i)) any |= look_at(r, i, now_us);
        any |= let_go(r, i);
    }
    any |= settle_staged(r, now_us);
    while (start_loading(r, now_us)) any = true;
    while (start_staging(r, now_us)) any = true;
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
    if (!loading && !p.waiting) atomic_store_explicit(&r->stage_ready, true, memory_order_release);
    if (st != INFERD_OK) {
        if (loading) {
            ops->unstage(r->dev->self, root);
            r->loading = RESIDENCY_NONE;
        } else {
            r->staging = RESIDENCY_NONE;
        }
        fail(r, root, &err, now_us);
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
        if (!is_root(r, i)) continue;
        uint64_t keep_us = keep_alive_of(r, i);
        if (m->state == MODEL_FAILED && m->retry_at_us != 0) at_us = m->retry_at_us;
        if (m->state == MODEL_HOT && keep_us != POLICY_NEVER && !m->wanted &&
            !is_pinned(r, i, PIN_HOT))
            at_us = m->active_us + keep_us;
        if (at_us < next_us) next_us = at_us;
    }
    return next_us;
}

/* ---- from outside ---- */

/* Bytes as pages: what is guaranteed is rounded up, a ceiling down. */
inferd_status residency_set_policy(residency *r, uint32_t idx, const model_policy *policy,
                                   uint64_t now_us, inferd_err *err) {
    resident *m = &r->slots[idx];
    uint64_t page = r->page_bytes;
    uint64_t min = (policy->min_bytes + page - 1) / page, max = policy->max_bytes / page;
    if (policy->max_bytes == 0 || max > UINT32_MAX) max = UINT32_MAX;
    if (min > UINT32_MAX) min = UINT32_MAX;
    inferd_status st = pool_set_limits(r->pool, idx, (uint32_t)min, (uint32_t)max, err);
    if (st != INFERD_OK) return st;
    m->policy = *policy;
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
        if ((st = sched_model_open(r->sched, idx, &m->about.spec, &err)) == INFERD_OK)
            st = residency_set_policy(r, idx, policy, now_us, &err);
        if (st == INFERD_OK && own) {
            m->pages = calloc(size_max(m->about.weight_pages, 1), sizeof *m->pages);
            if (m->pages == NULL)
                st = inferd_fail(&err, INFERD_ENOMEM, "no memory for a list of %u pages",
                                 m->about.weight_pages);
        }
    }
    enter(r, idx, MODEL_COLD);
    r->slots[m->weights_of].n_members++;
    if (st != INFERD_OK) {
        inferd_err told = err;
        told.status = st == INFERD_ELOST ? st : INFERD_EMODEL;
        r->slots[m->weights_of].n_members--;
        m->weights_of = idx;
        m->n_members = 1;
        m->why = err;
        m->n_failures = 1;
        sched_model_fail(r->sched, idx, &told, 0, now_us);
        enter(r, idx, MODEL_FAILED);
    } else if (r->slots[m->weights_of].state == MODEL_HOT && !own) {
        sched_model_hot(r->sched, idx, true);
    }
}

void residency_remove(residency *r, uint32_t idx) {
    r->slots[idx].served = false;
    tell_pins(r);
}

void residency_do(residency *r, uint32_t idx, engine_command c, uint64_t now_us) {
    uint32_t root = r->slots[idx].weights_of;
    resident *m = &r->slots[root];
    if (r->slots[idx].state == MODEL_NONE) return;
    m->held = c == ENGINE_DRAIN;
    switch (c) {
    case ENGINE_LOAD:
        m->wanted = m->state != MODEL_HOT;
        break;
    case ENGINE_PREFETCH:
        m->prefetch = m->state == MODEL_COLD;
        break;
    case ENGINE_DROP:
    case ENGINE_UNLOAD:
        m->wanted = m->prefetch = false;
        m->dropped = true;
        m->drop_next = c == ENGINE_DROP;
        if (m->state == MODEL_HOT)
            drain(r, root, ENGINE_EVICT_ASKED, false, now_us);
        else if (m->state == MODEL_WARM && c == ENGINE_DROP && !m->on_device)
            drop(r, root);
        break;
    case ENGINE_DRAIN:
        m->wanted = m->prefetch = false;
        m->dropped = true;
        break;
    }
    if ((c == ENGINE_LOAD || c == ENGINE_PREFETCH) && m->state == MODEL_FAILED &&
        m->retry_at_us != 0)
        retry(r, root);
    r->n_changes++;
}

void residency_fail_all(residency *r, const inferd_err *why, uint64_t now_us) {
    r->dead = true;
    r->why = *why;
    for (uint32_t i = 0; i < r->n; i++) {
        resident *m = &r->slots[i];
        if (m->state == MODEL_NONE) continue;
        m->why = *why;
        m->retry_at_us = 0;
        sched_model_fail(r->sched, i, why, 0, now_us);
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
