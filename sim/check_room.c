/* check_room.c - see check_yard.h: pages for weights that waiting work needs come from sequences of
 * a lower class before they come from an idle model. */
#include "check_yard.h"

/* Pages of keys and values of a model that runs sequences of a lower class only; else 0. */
static uint32_t n_lower(const yard *y, uint32_t idx, gen_class prio) {
    const sched_model *m = &y->core.sched->models[idx];
    if (!m->open || !m->hot) return 0;
    LIST_EACH(node, &m->running)
        if (LIST_ENTRY(node, seq, mine)->req->prio <= prio) return 0;
    return u32_less(y->core.pool.owners[idx].held[PAGE_KV], m->kv.n_idle_pages);
}

static uint64_t n_preempted(const yard *y) {
    uint64_t n = 0;
    LIST_EACH(node, &y->core.sched->running) n += LIST_ENTRY(node, seq, link)->n_preempted;
    LIST_EACH(node, &y->core.sched->waiting) n += LIST_ENTRY(node, seq, link)->n_preempted;
    return n;
}

void yard_note_room(yard *y) {
    y->plan_before = y->core.sched->plan_no;
    y->preempted_before = n_preempted(y);
    for (uint32_t i = 0; i < y->n_models; i++)
        for (int c = 0; c < GEN_CLASSES; c++) y->slots[i].n_lower[c] = n_lower(y, i, (gen_class)c);
}

/* residency_decide may have made room for it. */
static bool wanted_room(const yard *y, uint32_t i) {
    const slot *s = &y->slots[i];
    const resident *m = &y->core.models.slots[i];
    if (!s->used || s->before.state == MODEL_NONE || s->before.state == MODEL_HOT ||
        s->before.on_device)
        return false;
    return m->on_device || m->room_wanted_us != 0 || m->n_loads != s->before.n_loads;
}

/* The class of work that it made room for; GEN_CLASSES: of none, of several models, since their
 * loads may have evicted each other, or of a model that may have less than the others would give.
 */
static gen_class class_of_room(const yard *y) {
    gen_class prio = GEN_CLASSES;
    for (uint32_t i = 0; i < y->n_models; i++) {
        const slot *s = &y->slots[i];
        const sched_demand *d = &y->core.models.demands[i];
        if (!wanted_room(y, i)) continue;
        if (prio != GEN_CLASSES || d->n_waiting == 0 || s->policy.max_bytes != 0 ||
            s->policy.min_bytes != 0 ||
            y->core.models.slots[i].kept_until_us >= y->iteration_began_us)
            return GEN_CLASSES;
        prio = d->waiting_class;
    }
    return prio;
}

/* A model with work was evicted, too: then no sequence need give what it gives. */
static bool others_left(const yard *y) {
    for (uint32_t i = 0; i < y->n_models; i++) {
        const uint64_t *n = y->core.models.slots[i].n_evictions;
        const uint64_t *before = y->slots[i].before.n_evictions;
        if (n[ENGINE_EVICT_CLASS] != before[ENGINE_EVICT_CLASS] ||
            n[ENGINE_EVICT_SLICE] != before[ENGINE_EVICT_SLICE])
            return true;
    }
    return false;
}

/* Idle model v was evicted: would running sequences of a lower class have given as much, which
 * still have it?  Guarantees and whole extents may keep pages of these from the model that comes.
 */
void yard_check_room(yard *y, uint32_t v) {
    const slot *s = &y->slots[v];
    uint64_t n = 0;
    if (s->unload_plan != y->plan_before || s->before.state != MODEL_HOT || y->extent_pages > 1 ||
        s->policy.min_bytes != 0 || sched_tenants_min_pages(y->core.sched) > 0 || others_left(y) ||
        n_preempted(y) != y->preempted_before)
        return; // or it left in a plan, for keys and values; or sequences gave what it lacked
    gen_class prio = class_of_room(y);
    for (uint32_t i = 0; i < y->n_models && prio < GEN_CLASSES; i++) {
        const slot *w = &y->slots[i];
        if (i != v && w->used && w->before.state == MODEL_HOT && w->policy.min_bytes == 0)
            n += u32_min(w->n_lower[prio], n_lower(y, i, prio));
    }
    yard_fail_if(y, n > 0 && n >= s->held, CHECK_EVICTION,
                 "model %u with %u pages was evicted, and sequences of a lower class than %d have "
                 "%llu",
                 v, s->held, (int)prio, (ull)n);
}

bool yard_is_spared(const yard *y, uint32_t w, uint32_t v) {
    gen_class lowest = GEN_SYSTEM;
    for (uint32_t i = 0; i < y->n_models; i++) {
        const sched_demand *d = &y->core.models.demands[i];
        if (d->lowest_class > lowest) lowest = d->lowest_class;
        if (d->n_waiting > 0 && d->waiting_class > lowest) lowest = d->waiting_class;
    }
    return y->slots[v].unload_plan != y->plan_before && y->slots[w].policy.prio < lowest;
}
