/* residency_evict.c - which model is evicted when pages of the device or of the host are short.
 *
 *     value            what an idle model is worth
 *     victim           may this model be evicted, and on what ground
 *     gain             pages that another model could take then
 *     pick_...         which candidate is first
 *     lower            keys and values of running sequences of a lower class, which go first
 *     room             pages that are free, that come when steps end, and that victims would give
 *     take_back        a model below its guarantee takes pages from models above theirs
 *
 * No eviction in vain: before the first one, room_after says that all candidates together would
 * free enough, and a model stays if all its pages would be kept free for itself. */
#include "residency_parts.h"

/* The most urgent class of a weight group, and the sum of its weights. */
static gen_class class_of(const residency *r, uint32_t root) {
    gen_class prio = GEN_BATCH;
    EACH_MEMBER(r, root, i)
        if (residency_counts(r, i) && r->slots[i].policy.prio < prio)
            prio = r->slots[i].policy.prio;
    return prio;
}

static uint64_t weight_of(const residency *r, uint32_t root) {
    uint64_t sum = 0;
    EACH_MEMBER(r, root, i) sum += residency_counts(r, i) ? r->slots[i].policy.weight : 0;
    return sum;
}

uint64_t resident_reload_us(const resident *m) {
    return m->bring_us > 0 ? m->bring_us : 1000 + (uint64_t)m->about.weight_pages * 1000;
}

/* The lowest class of the device's models. */
static gen_class lowest_class(const residency *r) {
    gen_class lowest = GEN_SYSTEM;
    for (uint32_t i = 0; i < r->n_used; i++)
        if (r->slots[i].state != MODEL_NONE && residency_counts(r, i) &&
            r->slots[i].policy.prio > lowest)
            lowest = r->slots[i].policy.prio;
    return lowest;
}

static uint64_t value_of(const residency *r, uint32_t root, uint64_t now_us) {
    const resident *m = &r->slots[root];
    if (r->worth != NULL) return r->worth(r->worth_ctx, r, root, now_us);
    worth_idle idle = {.weight = weight_of(r, root),
                       .n_above = u32_less(lowest_class(r), class_of(r, root)),
                       .reload_us = resident_reload_us(m),
                       .idle_us = now_us > m->active_us ? now_us - m->active_us : 0,
                       .n_pages = m->about.weight_pages,
                       .pauses = m->pauses};
    return worth_of(&idle);
}

/* The class of its most urgent work; GEN_CLASSES: it has none. */
static gen_class class_of_work(const sched_demand *d) {
    return d->running_class < d->waiting_class ? d->running_class : d->waiting_class;
}

typedef enum victim_kind {
    VICTIM_NONE,
    VICTIM_IDLE,  // no work
    VICTIM_LOWER, // its work is of a lower class
    VICTIM_SLICE, // its work is of the same class, and its time slice has ended
    VICTIM_KINDS
} victim_kind;

/* May this model be evicted for `root` at all? */
static bool may_go(const residency *r, uint32_t v, uint32_t root) {
    const resident *m = &r->slots[v];
    return v != root && residency_is_root(r, v) && m->state == MODEL_HOT &&
           !wgroup_is_pinned(r, v, PIN_HOT);
}

/* May it be evicted for waiting work of this class of `root`, and on what ground? */
static victim_kind victim(const residency *r, uint32_t v, uint32_t root, gen_class prio,
                          uint64_t now_us) {
    const resident *m = &r->slots[v];
    if (!may_go(r, v, root)) return VICTIM_NONE;
    uint64_t served_us = now_us - m->hot_since_us;
    sched_demand d = wgroup_demand(r, v);
    if (d.n_waiting + d.n_running == 0)
        return wgroup_n_steps(r, v) == 0 && !m->wanted ? VICTIM_IDLE : VICTIM_NONE;
    gen_class theirs = class_of_work(&d);
    if (theirs > prio) return VICTIM_LOWER;
    uint64_t slice_us = residency_slice_us(r, v);
    /* A model that is HOT and could begin nothing for a whole time slice waits for memory itself:
     * both would wait for ever.  A model that was idle and got work only now is not stuck. */
    uint64_t blocked_since_us = d.oldest_us > m->hot_since_us ? d.oldest_us : m->hot_since_us;
    bool stuck = d.n_running == 0 && now_us >= blocked_since_us + slice_us;
    return (theirs == prio || stuck) && served_us >= slice_us ? VICTIM_SLICE : VICTIM_NONE;
}

static worth_candidate candidate(const residency *r, uint32_t v, uint64_t now_us) {
    sched_demand d = wgroup_demand(r, v);
    return (worth_candidate){v, class_of_work(&d), value_of(r, v, now_us)};
}

static bool goes_before(const residency *r, uint32_t a, uint32_t b, uint64_t now_us) {
    worth_candidate x = candidate(r, a, now_us), y = candidate(r, b, now_us);
    return worth_goes_before(&x, &y);
}

/* Pages that come free when it is evicted, besides cached blocks. */
static uint32_t pages_of(const residency *r, uint32_t root) {
    uint32_t n = r->slots[root].n_pages;
    EACH_MEMBER(r, root, i) n += r->pool->owners[i].held[PAGE_KV];
    return n;
}

bool residency_is_owed(const residency *r, uint32_t root, uint32_t n) {
    const pool_owner *o = &r->pool->owners[root];
    return o->min > 0 && (uint64_t)pool_held(o) + n <= o->min;
}

/* Pages that `root` could take once v is gone: pages within v's guarantee stay free for v. */
static uint32_t gain_of(const residency *r, uint32_t v, uint32_t root) {
    const pool *p = r->pool;
    const pool_owner *to = &p->owners[root];
    uint32_t n = pages_of(r, v), kept = 0;
    EACH_MEMBER(r, v, i) kept += u32_min(p->owners[i].min, pool_held(&p->owners[i]));
    uint32_t unfilled = p->unfilled - pool_unfilled(to);
    kept = u32_max(unfilled + kept, p->n_reserved) - u32_max(unfilled, p->n_reserved);
    return n > kept ? n - kept : 0;
}

/* The next victim of this kind when that many pages are missing: the lowest value, none in vain. */
static uint32_t pick_needed(residency *r, victim_kind kind, uint32_t root, gen_class prio,
                            uint64_t missing, uint64_t now_us) {
    uint32_t n = 0;
    for (uint32_t v = 0; v < r->n_used; v++) {
        if (victim(r, v, root, prio, now_us) != kind || gain_of(r, v, root) == 0) continue;
        worth_candidate l = candidate(r, v, now_us);
        uint32_t i = n++;
        for (; i > 0 && worth_goes_before(&l, &r->candidates[i - 1]); i--)
            r->candidates[i] = r->candidates[i - 1];
        r->candidates[i] = l;
    }
    if (n == 0) return RESIDENCY_NONE;
    if (r->worth != NULL && !r->spares) return r->candidates[0].idx;
    for (uint32_t i = 0; i < n; i++) r->candidate_pages[i] = gain_of(r, r->candidates[i].idx, root);
    return r->candidates[worth_first(r->candidate_pages, n, missing)].idx;
}

/* Running sequences of a lower class hold keys and values. */
static bool lower_class_runs(const residency *r, uint32_t root) {
    sched_demand d = wgroup_demand(r, root);
    for (uint32_t i = 0; i < r->n_used; i++)
        if (r->demands[i].lowest_class > class_of_work(&d)) return true;
    return false;
}

/* Running work of `root` preempts its own sequences before it evicts an idle model of a higher
 * class, until that class has aged, and those of a lower class before any idle model. */
static bool is_kept_from(const residency *r, uint32_t v, uint32_t root, uint64_t now_us) {
    sched_demand d = wgroup_demand(r, root);
    const resident *m = &r->slots[v];
    worth_idle idle = {.idle_us = now_us > m->active_us ? now_us - m->active_us : 0,
                       .n_above = u32_less(class_of_work(&d), class_of(r, v)),
                       .pauses = m->pauses};
    bool goes_on = d.n_running > 0 || now_us < d.oldest_us + residency_slice_us(r, root);
    if (!goes_on || sched_is_blocked(r->sched, now_us)) return false;
    return lower_class_runs(r, root) || worth_is_urgent(&idle);
}

/* The same without sparing any, for keys and values. */
static uint32_t pick_evicted(const residency *r, victim_kind kind, uint32_t root, gen_class prio,
                             uint64_t now_us) {
    uint32_t best = RESIDENCY_NONE;
    for (uint32_t v = 0; v < r->n_used; v++)
        if (victim(r, v, root, prio, now_us) == kind && gain_of(r, v, root) > 0 &&
            (kind != VICTIM_IDLE || !is_kept_from(r, v, root, now_us)) &&
            (best == RESIDENCY_NONE || goes_before(r, v, best, now_us)))
            best = v;
    return best;
}

/* Free pages that a model which just came needs for its first work, which has not begun.  The
 * weights of another model, unless its waiting work is more urgent, leave them free for one time
 * slice: else two models would be HOT and neither could begin. */
static uint32_t guaranteed_to(const residency *r, uint32_t root, gen_class prio, uint64_t now_us) {
    const resident *m = &r->slots[root];
    if (m->state != MODEL_HOT || !residency_is_root(r, root)) return 0;
    sched_demand d = wgroup_demand(r, root);
    if (d.n_waiting == 0 || d.n_running > 0 || d.waiting_class > prio ||
        now_us - m->hot_since_us >= residency_slice_us(r, root))
        return 0;
    uint32_t guaranteed = pool_unfilled(&r->pool->owners[root]); // kept free by the pool
    return d.first_pages > guaranteed ? d.first_pages - guaranteed : 0;
}

/* The sum over all other models, for n pages of `root`; 0 where its own guarantee covers those. */
static uint32_t guaranteed_to_others(const residency *r, uint32_t root, uint32_t n_pages,
                                     gen_class prio, uint64_t now_us) {
    uint32_t n = 0;
    if (residency_is_owed(r, root, n_pages)) return 0;
    for (uint32_t i = 0; i < r->n_used; i++)
        if (i != root) n += guaranteed_to(r, i, prio, now_us);
    return n;
}

/* Pages of keys and values of member i of another model, that running sequences of a lower class
 * than the work which waits for `root` would give. */
static uint32_t n_lower(const residency *r, uint32_t i, uint32_t root, gen_class prio,
                        uint64_t now_us) {
    if (now_us < r->slots[root].kept_until_us || r->slots[r->slots[i].weights_of].leaving) return 0;
    return sched_n_lower(r->sched, i, root, prio);
}

typedef struct room_sums {
    uint64_t n, n_freed;           // pages; of those, keys and values in use now
    uint64_t guaranteed, unfilled; // pages that others keep, and that their minima lack
} room_sums;

static void add_sums(room_sums *to, const room_sums *more) {
    to->n += more->n;
    to->n_freed += more->n_freed;
    to->guaranteed += more->guaranteed;
    to->unfilled += more->unfilled;
}

/* What a model adds to the room of `root` if it stays, and if it goes. */
static void sum_model(const residency *r, uint32_t v, uint32_t root, gen_class prio,
                      uint64_t now_us, room_sums *stays, room_sums *goes) {
    *stays = (room_sums){.guaranteed = v != root ? guaranteed_to(r, v, prio, now_us) : 0};
    *goes = (room_sums){.n = r->slots[v].n_pages};
    EACH_MEMBER(r, v, i) {
        const pool_owner *o = &r->pool->owners[i];
        uint32_t cached = sched_model_n_cached(r->sched, i), n_kv = o->held[PAGE_KV];
        uint32_t lower = n_lower(r, i, root, prio, now_us), min = i != root ? o->min : 0;
        room_sums stay = {cached + lower, lower, 0, u32_less(min, pool_held(o) - cached)};
        room_sums go = {n_kv, n_kv, 0, min};
        add_sums(stays, &stay);
        add_sums(goes, &go);
    }
}

/* Pages that `root` would have if all victims up to each kind were evicted.  Cached pages count as
 * free, and so do keys and values of the victims and of sequences of a lower class. */
static void room_after(const residency *r, uint32_t root, uint32_t n_pages, gen_class prio,
                       uint64_t now_us, uint64_t room[VICTIM_KINDS]) {
    bool owed = residency_is_owed(r, root, n_pages);
    uint64_t n_free = pool_n_device_free(r->pool) + r->pool->n_in[PAGE_QUARANTINE];
    uint64_t tenants_min = sched_tenants_min_pages(r->sched);
    room_sums sums[VICTIM_KINDS] = {0}, stays, goes;
    for (uint32_t v = 0; v < r->n_used; v++) {
        if (!residency_is_root(r, v)) continue;
        victim_kind from = victim(r, v, root, prio, now_us);
        if (from == VICTIM_NONE) from = VICTIM_KINDS;
        if (r->slots[v].leaving) from = VICTIM_NONE;
        sum_model(r, v, root, prio, now_us, &stays, &goes);
        for (victim_kind k = VICTIM_NONE; k < VICTIM_KINDS; k++)
            add_sums(&sums[k], k >= from ? &goes : &stays);
    }
    for (victim_kind k = VICTIM_NONE; k < VICTIM_KINDS; k++) {
        const room_sums *sum = &sums[k];
        /* Guarantees that keys and values of the victims filled are kept free instead. */
        uint64_t reserved = u64_min(r->pool->n_reserved + sum->n_freed, tenants_min);
        uint64_t kept = u64_max(reserved, sum->unfilled) + (owed ? 0 : sum->guaranteed);
        room[k] = u64_less(n_free + sum->n, kept);
    }
}

/* Evict it for waiting work of this class of `root`: at once, unless a step of it is on its way.
 * `incoming`: see residency_release.  True: it is gone. */
static bool evict(residency *r, uint32_t v, victim_kind kind, gen_class prio, uint32_t root,
                  uint32_t incoming, uint64_t now_us) {
    static const engine_evict_cause causes[] = {ENGINE_EVICT_PRESSURE, ENGINE_EVICT_PRESSURE,
                                                ENGINE_EVICT_CLASS, ENGINE_EVICT_SLICE};
    resident *m = &r->slots[v];
    if (kind == VICTIM_SLICE) r->n_slices++;
    if (kind != VICTIM_IDLE) {
        m->away_until_us = now_us + r->limits.slice_us;
        m->away_class = wgroup_demand(r, v).n_running == 0 ? GEN_SYSTEM : prio;
        m->away_for = root;
        m->away_for_class = prio;
    }
    residency_drain(r, v, causes[kind], true, now_us);
    m->left_for = root;
    if (wgroup_n_steps(r, v) > 0) return false;
    return residency_release(r, v, incoming, now_us);
}

/* There are n pages for weights of `root` and its first KV, in pieces that weights can use. */
static bool has_room(const residency *r, uint32_t root, uint32_t n, gen_class prio,
                     uint64_t now_us) {
    const pool *p = r->pool;
    return pool_n_takeable(p, root) >= n + guaranteed_to_others(r, root, n, prio, now_us) &&
           (r->one_memory || pool_n_whole_pages(p) >= r->slots[root].about.weight_pages);
}

/* Drop cached keys and values until has_room is true.  Where weights need whole extents, cached
 * blocks that are in their way are dropped even if there are pages enough. */
static bool drop_cached_for(residency *r, uint32_t root, uint32_t n, gen_class prio,
                            uint64_t now_us) {
    const pool *p = r->pool;
    while (!has_room(r, root, n, prio, now_us)) {
        uint32_t n_free = pool_n_device_free(p), takeable = pool_n_takeable(p, root);
        uint32_t wanted = n + guaranteed_to_others(r, root, n, prio, now_us);
        uint32_t missing = takeable < wanted ? wanted - takeable : 1;
        if (sched_drop_cached(r->sched, n_free + missing) == n_free) return false;
    }
    return true;
}

/* Pages for `root` of models that leave as soon as their steps have ended. */
static uint32_t n_leaving(const residency *r, uint32_t root) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->n_used; i++)
        if (residency_is_root(r, i) && r->slots[i].leaving) n += gain_of(r, i, root);
    return n;
}

/* Of the n pages for `root`, those that are neither there nor on their way. */
static uint64_t n_missing(const residency *r, uint32_t root, uint32_t n, gen_class prio,
                          uint64_t now_us) {
    uint64_t wanted = (uint64_t)n + guaranteed_to_others(r, root, n, prio, now_us);
    uint64_t there = (uint64_t)pool_n_takeable(r->pool, root) + n_leaving(r, root);
    return wanted > there ? wanted - there : 0;
}

static uint32_t pick_lent(const residency *r, uint32_t root, uint64_t now_us) {
    uint32_t best = RESIDENCY_NONE;
    for (uint32_t v = 0; v < r->n_used; v++)
        if (may_go(r, v, root) && gain_of(r, v, root) > 0 &&
            (best == RESIDENCY_NONE || goes_before(r, v, best, now_us)))
            best = v;
    return best;
}

/* Take n pages within the guarantee of `root` from models above theirs, of any class: running
 * sequences are preempted, then weights are evicted.  The freed pages are reserved for `root`, so
 * none is freed in vain.  False: not yet. */
static bool take_back(residency *r, uint32_t root, uint32_t n, gen_class prio, uint64_t now_us) {
    for (;;) {
        if (drop_cached_for(r, root, n, prio, now_us)) return true;
        uint32_t there = pool_n_takeable(r->pool, root), leaving = n_leaving(r, root), v;
        bool pending = leaving > 0 || r->pool->n_in[PAGE_QUARANTINE] > 0;
        if (there + leaving >= n && pending) return false;
        uint32_t wanted = there < n ? n - leaving : there + 1; // else not in whole extents
        if (sched_take_back(r->sched, root, wanted)) {
            if (drop_cached_for(r, root, n, prio, now_us)) return true;
            if (pool_n_takeable(r->pool, root) < wanted) return false; // when steps end
        } else if ((v = pick_lent(r, root, now_us)) != RESIDENCY_NONE) {
            evict(r, v, VICTIM_LOWER, prio, root, root, now_us);
            if (r->slots[root].on_device) return true; // their pages were exchanged
        } else {
            return false;
        }
    }
}

typedef enum room {
    ROOM_NONE,
    ROOM_COMING, // when steps have ended
    ROOM_THERE
} room;

/* Pages of running sequences of a lower class, and of those preempted a moment ago. */
static uint64_t n_from_lower(const residency *r, uint32_t root, gen_class prio, uint64_t now_us) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < r->n_used; i++) n += n_lower(r, i, root, prio, now_us);
    if (n > 0 || sched_relief_is_coming(r->sched)) n += r->pool->n_in[PAGE_QUARANTINE];
    return n;
}

/* Preempt running sequences of a lower class, the least deserving first, for n pages of `root`. */
static room take_lower(residency *r, uint32_t root, uint32_t n, gen_class prio, uint64_t now_us) {
    for (;;) {
        if (drop_cached_for(r, root, n, prio, now_us)) return ROOM_THERE;
        uint32_t wanted = n + guaranteed_to_others(r, root, n, prio, now_us);
        uint32_t leaving = n_leaving(r, root), there = pool_n_takeable(r->pool, root) + leaving;
        bool enough = sched_may_have(r->sched, root, u32_less(wanted, leaving));
        /* If they are there, but not in whole extents, one more sequence is preempted. */
        if (enough && (there < wanted || leaving > 0 || sched_relief_is_coming(r->sched)))
            return ROOM_COMING;
        if (!sched_preempt_lower(r->sched, root, prio)) return ROOM_NONE;
    }
}

/* Evict models up to this kind.  Sequences of a lower class give their pages as soon as no more
 * than those is missing: no model is evicted that they can replace, and none of them is preempted
 * for pages that an evicted model gives. */
static room make_room(residency *r, uint32_t root, uint32_t n, gen_class prio, victim_kind up_to,
                      uint64_t now_us) {
    bool tried = false;
    for (victim_kind k = VICTIM_NONE; k <= up_to; k++) {
        while (!has_room(r, root, n, prio, now_us)) {
            uint64_t missing = n_missing(r, root, n, prio, now_us);
            if (missing == 0 && n_leaving(r, root) > 0) return ROOM_COMING; // enough are leaving
            uint64_t lower = tried ? 0 : n_from_lower(r, root, prio, now_us);
            if (lower > 0 && missing <= lower) {
                room got = take_lower(r, root, n, prio, now_us);
                if (got != ROOM_NONE) return got;
                tried = true;
                continue;
            }
            uint32_t v = k == VICTIM_NONE ? RESIDENCY_NONE
                                          : pick_needed(r, k, root, prio, missing - lower, now_us);
            if (v == RESIDENCY_NONE) break;
            evict(r, v, k, prio, root, root, now_us);
            if (r->slots[root].on_device) return ROOM_THERE; // their pages were exchanged
            drop_cached_for(r, root, n, prio, now_us);
        }
    }
    if (has_room(r, root, n, prio, now_us)) return ROOM_THERE;
    /* The pages that were freed are of no use, in pieces or for want of others: not again soon. */
    if (tried) r->slots[root].kept_until_us = now_us + residency_slice_us(r, root);
    return ROOM_NONE;
}

bool residency_make_room(residency *r, uint32_t root, uint32_t n, gen_class prio, bool may_slice,
                         uint64_t now_us) {
    if (drop_cached_for(r, root, n, prio, now_us)) return true;
    bool owed = prio != GEN_CLASSES && residency_is_owed(r, root, n);
    victim_kind last = owed        ? VICTIM_IDLE
                       : may_slice ? VICTIM_SLICE
                                   : VICTIM_LOWER,
                up_to = VICTIM_NONE;
    uint64_t room_at[VICTIM_KINDS];
    room_after(r, root, n, prio, now_us, room_at);
    while (up_to < last && room_at[up_to] < n) up_to++;
    if (!owed && room_at[up_to] < n) return false;
    room got = make_room(r, root, n, prio, up_to, now_us);
    if (got == ROOM_COMING && prio != GEN_CLASSES) sched_make_room(r->sched, prio);
    return got == ROOM_THERE || (got == ROOM_NONE && owed && take_back(r, root, n, prio, now_us));
}

uint64_t residency_away_until_us(const residency *r, uint32_t root) {
    const resident *m = &r->slots[root];
    uint64_t until_us = 0;
    if (m->away_until_us <= r->looked_us) return 0;
    if (wgroup_demand(r, root).waiting_class < m->away_class) return 0;
    for (uint32_t i = 0; i < r->n_used; i++) {
        if (i == root || !residency_is_root(r, i)) continue;
        sched_demand d = wgroup_demand(r, i);
        bool for_it = i == m->away_for, works = d.n_waiting + d.n_running > 0;
        if (for_it ? works
                   : d.n_waiting > 0 && d.waiting_class <= m->away_for_class &&
                         r->slots[i].state != MODEL_HOT)
            return m->away_until_us;
        /* More work may come at once, and leaving for less than a switch takes is of no use. */
        if (for_it) until_us = r->slots[i].active_us + residency_back_us(r, root);
    }
    return until_us < m->away_until_us ? until_us : m->away_until_us;
}

/* May v give up its host memory for `root`, and as what? */
static bool may_give_host(const residency *r, uint32_t v, uint32_t root, uint32_t incoming,
                          bool needed, uint64_t now_us) {
    const resident *m = &r->slots[v];
    if (v == root || v == incoming || !residency_is_root(r, v) || wgroup_is_pinned(r, v, PIN_WARM))
        return false;
    if (m->state == MODEL_HOT) return m->host_copy && m->about.host_pages > 0;
    return m->state == MODEL_WARM && !m->on_device && m->wanted_since_us == 0 &&
           (needed || goes_before(r, v, root, now_us));
}

/* Copies of HOT models first, that of the most valuable one before others, because it is needed
 * last; then WARM models, the least valuable first. */
static bool gives_host_before(const residency *r, uint32_t a, uint32_t b, uint64_t now_us) {
    bool copy_a = r->slots[a].state == MODEL_HOT, copy_b = r->slots[b].state == MODEL_HOT;
    if (copy_a != copy_b) return copy_a;
    return copy_a ? goes_before(r, b, a, now_us) : goes_before(r, a, b, now_us);
}

bool residency_make_host_room(residency *r, uint32_t root, uint32_t n, uint32_t incoming,
                              bool needed, uint64_t now_us) {
    /* Models pinned WARM, or asked for by an operator, go before models that are only cached. */
    if (r->slots[root].prefetch || wgroup_is_pinned(r, root, PIN_WARM)) needed = true;
    sched_drop_swapped(r->sched, n);
    while (pool_n_host_free(r->pool) < n) {
        uint32_t best = RESIDENCY_NONE;
        uint64_t n_less = pool_n_host_free(r->pool);
        for (uint32_t v = 0; v < r->n_used; v++) {
            if (!may_give_host(r, v, root, incoming, needed, now_us)) continue;
            n_less += r->slots[v].about.host_pages;
            if (best == RESIDENCY_NONE || gives_host_before(r, v, best, now_us)) best = v;
        }
        if (best == RESIDENCY_NONE || n_less < n) return false;
        if (r->slots[best].state == MODEL_HOT)
            residency_drop_copy(r, best);
        else
            residency_drop(r, best);
    }
    return true;
}

/* A victim for work that has aged to `aged`: a model that is not more urgent, after its time slice.
 * Without that, models of one class would evict each other as soon as their work has aged. */
static uint32_t pick_for_aged(const residency *r, uint32_t root, gen_class aged, uint64_t now_us) {
    uint32_t best = RESIDENCY_NONE;
    for (uint32_t v = 0; v < r->n_used; v++)
        if (victim(r, v, root, aged, now_us) >= VICTIM_LOWER &&
            now_us - r->slots[v].hot_since_us >= residency_slice_us(r, v) &&
            gain_of(r, v, root) > 0 && (best == RESIDENCY_NONE || goes_before(r, v, best, now_us)))
            best = v;
    return best;
}

bool residency_reclaim(residency *r, uint32_t idx, gen_class waiting, gen_class aged,
                       uint64_t since_us, uint64_t now_us) {
    uint32_t root = r->slots[idx].weights_of, v;
    bool may_slice = waiting != GEN_CLASSES && now_us >= since_us + r->limits.slice_us;
    victim_kind up_to = waiting == GEN_CLASSES ? VICTIM_IDLE
                        : may_slice            ? VICTIM_SLICE
                                               : VICTIM_LOWER;
    if (r->saving != RESIDENCY_NONE) return false; // its pages come
    for (victim_kind k = VICTIM_IDLE; k <= up_to; k++) {
        if ((v = pick_evicted(r, k, root, waiting, now_us)) == RESIDENCY_NONE) continue;
        return evict(r, v, k, waiting, root, RESIDENCY_NONE, now_us);
    }
    if (aged >= waiting || (v = pick_for_aged(r, root, aged, now_us)) == RESIDENCY_NONE)
        return false;
    return evict(r, v, VICTIM_SLICE, aged, root, RESIDENCY_NONE, now_us);
}
