/* residency_bring_up.c - bring-up: in which order models come, and onto which pages. */
#include "residency_parts.h"
#include "scheduler/feasible.h"
#include "scheduler/guarantee.h"

enum { EAGER_LEAVES_QUARTERS = 1 }; // quarters of the device's pages that eager models leave free

/* Weights larger than the host budget can never become WARM; wanting that would block others. */
static bool fits_host(const residency *r, uint32_t root) {
    const device_model *about = &r->slots[root].about;
    return (r->one_memory ? about->weight_pages : about->host_pages) <= r->pool->n_host;
}

residency_want residency_want_of(const residency *r, uint32_t root, uint64_t now_us) {
    const resident *m = &r->slots[root];
    sched_demand d = wgroup_demand(r, root);
    if (d.n_waiting > 0 && now_us >= residency_away_until_us(r, root))
        return (residency_want){WANT_WORK, d.waiting_class, d.oldest_us};
    residency_want w = {WANT_NOTHING, GEN_CLASSES, 0};
    if (!wgroup_is_served(r, root)) return w;
    if (wgroup_is_held(r, root)) {
        if (m->prefetch) w.kind = WANT_PREFETCH;
        return w;
    }
    if (m->wanted || wgroup_is_pinned(r, root, PIN_HOT))
        w.kind = WANT_HOT;
    else if (fits_host(r, root) &&
             (m->prefetch || (wgroup_is_pinned(r, root, PIN_WARM) && m->state == MODEL_COLD)))
        w.kind = WANT_PREFETCH;
    else if (r->limits.eager && m->n_stages == 0 && m->n_failures == 0 && !m->dropped)
        w.kind = WANT_EAGER;
    else if (r->limits.eager && m->n_loads == 0 && m->state == MODEL_WARM && !m->dropped)
        w.kind = WANT_EAGER;
    return w;
}

static bool comes_before(const residency_want *a, const residency_want *b) {
    if (a->kind != b->kind) return a->kind > b->kind;
    if (a->prio != b->prio) return a->prio < b->prio;
    return a->since_us < b->since_us;
}

/* The most wanted model in this state, with a want of at most `at_most`; `owed`: only models that
 * have waiting work and need no more for it than their missing guarantee. */
static uint32_t most_wanted(const residency *r, model_state state, bool owed, want_kind at_most,
                            residency_want *out, uint64_t now_us) {
    uint32_t best = RESIDENCY_NONE;
    for (uint32_t i = 0; i < r->n_used; i++) {
        if (!residency_is_root(r, i) || r->slots[i].state != state) continue;
        residency_want w = residency_want_of(r, i, now_us);
        if (w.kind == WANT_NOTHING || w.kind > at_most ||
            (best != RESIDENCY_NONE && !comes_before(&w, out)))
            continue;
        if (owed &&
            (w.kind != WANT_WORK || !residency_is_owed(r, i, r->slots[i].about.weight_pages + 1)))
            continue;
        best = i;
        *out = w;
    }
    return best;
}

uint64_t residency_kept_by_others(const residency *r, uint32_t idx) {
    guarantee_sum kept = {0, 0};
    for (uint32_t i = 0; i < r->n_used; i++) {
        const resident *m = &r->slots[i];
        if (m->state == MODEL_NONE || i == idx) continue;
        bool other = residency_is_root(r, i) && i != r->slots[idx].weights_of;
        bool hot = other && wgroup_is_pinned(r, i, PIN_HOT) && m->state != MODEL_FAILED;
        uint32_t pinned = hot ? m->about.weight_pages : 0;
        guarantee_add(&kept, pinned, r->pool->owners[i].min, pinned);
    }
    return guarantee_kept(&kept, sched_tenants_min_pages(r->sched));
}

/* Pages that a model needs to do anything: its weights, and keys and values for its first waiting
 * request.  With less it would be HOT and idle until its time slice was over. */
static uint32_t pages_to_begin(const residency *r, uint32_t root) {
    uint32_t n = r->slots[root].about.weight_pages;
    uint64_t kept = residency_kept_by_others(r, root);
    uint32_t most = kept < r->pool->n_device ? r->pool->n_device - (uint32_t)kept : 0;
    if (r->pool->owners[root].max < most) most = r->pool->owners[root].max;
    uint32_t wanted = n + u32_max(wgroup_demand(r, root).first_pages, 1);
    return u32_max(u32_min(wanted, most), n + 1);
}

static bool may_take_slice(const residency *r, const residency_want *w, uint64_t now_us) {
    return w->kind == WANT_WORK && now_us >= w->since_us + r->limits.slice_us;
}

/* For all pages that it needs to begin, or at least for the weights. */
static bool make_room_to_begin(residency *r, uint32_t root, const residency_want *w,
                               uint64_t now_us) {
    bool may_slice = may_take_slice(r, w, now_us);
    if (r->slots[root].room_wanted_us == 0) r->slots[root].room_wanted_us = now_us;
    return residency_make_room(r, root, pages_to_begin(r, root), w->prio, may_slice, now_us) ||
           residency_make_room(r, root, r->slots[root].about.weight_pages + 1, w->prio, may_slice,
                               now_us);
}

/* The numbers that matter come first: a client's copy of the sentence may be cut off. */
static void say_size(inferd_err *err, inferd_status status, const char *what, uint64_t has,
                     uint64_t weights, uint64_t kv, uint64_t kept) {
    inferd_fail(err, status, "%s is %s and must be %s or more: %s for the weights", what,
                feasible_mib(has).text, feasible_mib(weights + kv + kept).text,
                feasible_mib(weights).text);
    size_t n = strlen(err->text);
    if (kv > 0)
        n += (size_t)snprintf(err->text + n, sizeof err->text - n, ", %s for keys and values",
                              feasible_mib(kv).text);
    if (kept > 0)
        snprintf(err->text + n, sizeof err->text - n, ", %s guaranteed to others or pinned",
                 feasible_mib(kept).text);
}

/* False: it can never fit, and is FAILED now with the numbers. */
static bool check_size(residency *r, uint32_t root, uint64_t now_us) {
    const resident *m = &r->slots[root];
    const pool *p = r->pool;
    const uint64_t page = r->page_bytes, n = m->about.weight_pages;
    inferd_err err = {0};
    uint64_t kept = residency_kept_by_others(r, root);
    if (n + 1 + kept > p->n_device)
        say_size(&err, INFERD_EMODEL, "the device's memory", p->n_device * page, n * page, page,
                 kept * page);
    else if (n >= p->owners[root].max)
        say_size(&err, INFERD_EQUOTA, "the model's max", p->owners[root].max * page, n * page, page,
                 0);
    else
        return true;
    if (m->state == MODEL_WARM) r->dev->ops->unstage(r->dev->self, root);
    residency_fail(r, root, &err, now_us);
    return false;
}

/* There are free pages for weights that no request waits for.  The spare pages are left for all
 * models, so they do not count for its ceiling. */
static bool fits_eagerly(const residency *r, uint32_t root) {
    const pool *p = r->pool;
    uint32_t spare = p->n_device / 4 * EAGER_LEAVES_QUARTERS;
    uint32_t needed = r->slots[root].about.weight_pages + 1;
    if (p->n_in[PAGE_WEIGHT] == 0) spare = 0; // the first one may have all of it
    return pool_n_takeable(p, root) >= needed && pool_n_device_free(p) >= needed + spare;
}

/* Take pages for the weights in the budget that `state` counts for.  False: too few now. */
static bool take_pages(residency *r, uint32_t root, page_state state) {
    resident *m = &r->slots[root];
    uint32_t n = m->about.weight_pages;
    if (!pool_take_weights(r->pool, root, state, n, m->pages)) return false;
    m->n_pages = n;
    m->on_device = state == PAGE_WEIGHT;
    return true;
}

/* In the device budget where it is wanted HOT, else in the host budget.  Host memory apart: a model
 * that is wanted HOT is staged in free host memory, so that models on the device are computed until
 * it can be loaded; without free host memory its pieces go on to the device. */
static bool begin_stage(residency *r, uint32_t root, const residency_want *w, uint64_t now_us) {
    resident *m = &r->slots[root];
    uint32_t n = r->one_memory ? m->about.weight_pages : m->about.host_pages;
    bool free = pool_n_host_free(r->pool) >= n, eager = w->kind == WANT_EAGER;
    bool hot = w->kind >= WANT_HOT || (eager && fits_eagerly(r, root));
    if (hot && (r->one_memory || !free)) {
        if (!eager && !make_room_to_begin(r, root, w, now_us)) return false;
        return take_pages(r, root, PAGE_WEIGHT);
    }
    if (!free && (eager || !residency_make_host_room(r, root, n, RESIDENCY_NONE, false, now_us)))
        return false;
    if (r->one_memory) return take_pages(r, root, PAGE_WARM);
    m->host_copy = pool_host_take(r->pool, n);
    return m->host_copy;
}

bool residency_start_staging(residency *r, bool owed, uint64_t now_us) {
    residency_want w;
    uint32_t root = most_wanted(r, MODEL_COLD, owed, WANT_WORK, &w, now_us);
    if (root == RESIDENCY_NONE || r->staging != RESIDENCY_NONE) return false;
    if (!check_size(r, root, now_us)) return true;
    bool ready = begin_stage(r, root, &w, now_us);
    if (!ready && w.kind == WANT_HOT) {
        /* A model that no request waits for and that finds no room on the device must not block
         * those that need only the host budget. */
        root = most_wanted(r, MODEL_COLD, owed, WANT_PREFETCH, &w, now_us);
        if (root == RESIDENCY_NONE) return false;
        if (!check_size(r, root, now_us)) return true;
        ready = begin_stage(r, root, &w, now_us);
    }
    if (ready) residency_stage(r, root, now_us);
    /* A model that does not fit now is tried again after a change.  A model that no request waits
     * for is not tried again, so that it blocks no other. */
    if (!ready && w.kind == WANT_EAGER) r->slots[root].dropped = true;
    return ready || w.kind == WANT_EAGER;
}

bool residency_start_loading(residency *r, bool owed, uint64_t now_us) {
    residency_want w;
    uint32_t root = most_wanted(r, MODEL_WARM, owed, WANT_WORK, &w, now_us);
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
        if (!m->on_device && !pool_convert(r->pool, m->pages, m->n_pages, PAGE_WEIGHT))
            return false;
        m->on_device = true;
    } else if (!m->on_device && !take_pages(r, root, PAGE_WEIGHT)) {
        return false;
    }
    residency_load(r, root, now_us);
    return true;
}

bool residency_settle_staged(residency *r, uint64_t now_us) {
    bool any = false;
    for (uint32_t i = 0; i < r->n_used; i++) {
        resident *m = &r->slots[i];
        if (!residency_is_root(r, i) || m->state != MODEL_WARM || !m->on_device ||
            r->loading != RESIDENCY_NONE)
            continue;
        residency_want w = residency_want_of(r, i, now_us);
        if (w.kind >= WANT_HOT || w.kind == WANT_EAGER) {
            residency_load(r, i, now_us);
        } else if (r->one_memory &&
                   residency_make_host_room(r, i, m->n_pages, RESIDENCY_NONE, false, now_us) &&
                   pool_convert(r->pool, m->pages, m->n_pages, PAGE_WARM)) {
            m->on_device = false;
            r->n_changes++;
        } else if (now_us >= residency_away_until_us(r, i)) {
            residency_load(r, i, now_us); // idle: it leaves when others need its pages
        } else {
            residency_drop(r, i);
        }
        any = true;
    }
    return any;
}
