/* model_plan.c - see model_plan.h. */
#include "model_plan.h"

#include "scheduler/guarantee.h"

#include <string.h>

uint32_t plan_pages(uint64_t n_bytes, uint64_t page_bytes) {
    if (page_bytes == 0) return 0;
    uint64_t n = n_bytes / page_bytes + (n_bytes % page_bytes != 0);
    return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX - PLAN_KV_PAGES;
}

uint64_t plan_prepared_bytes(uint64_t file_bytes) {
    return file_bytes / 100 * PLAN_PREPARED_PERCENT + file_bytes % 100;
}

/* ---- victims ---- */

static gen_class lowest_class(const plan_device *d) {
    gen_class lowest = GEN_SYSTEM;
    for (uint32_t i = 0; i < d->n_models; i++)
        if (d->models[i].prio > lowest) lowest = d->models[i].prio;
    return lowest;
}

worth_candidate plan_candidate(const plan_device *d, uint32_t i) {
    const plan_model *m = &d->models[i];
    worth_idle idle = {.weight = m->weight,
                       .reload_us = m->reload_us,
                       .idle_us = m->idle_us,
                       .n_pages = m->weight_pages,
                       .n_above = u32_less(lowest_class(d), m->prio),
                       .pauses = m->pauses};
    return (worth_candidate){i, m->n_work > 0 ? m->prio : GEN_CLASSES, worth_of(&idle)};
}

static bool may_go(const plan_device *d, uint32_t i, const plan_wanted *w) {
    const plan_model *m = &d->models[i];
    return i != w->idx && m->hot && !m->pinned;
}

static uint32_t guaranteed_max(uint64_t to_models, const plan_device *d) {
    if (to_models < d->reserved_pages) return d->reserved_pages;
    return to_models < UINT32_MAX ? (uint32_t)to_models : UINT32_MAX;
}

/* Pages that count for it without cached keys and values.  The wanted weights count as loaded. */
static uint32_t held_without_cached(const plan_member *m, const plan_wanted *w) {
    bool comes = m->owns && m->weights_idx == w->idx;
    uint32_t held = u32_less(m->held_pages, m->cached_pages);
    return comes ? u32_max(held, w->weight_pages) : held;
}

/* The device after some evictions. */
typedef struct room {
    uint64_t freed, unfilled; // pages freed; guarantees of others that are not filled
} room;

/* Cached keys and values are dropped first; no model needs them. */
static room room_without_cached(const plan_device *d, const plan_wanted *w) {
    room r = {0};
    for (uint32_t i = 0; i < d->n_models; i++) r.freed += d->models[i].cached_pages;
    for (uint32_t i = 0; i < d->n_members; i++)
        if (i != w->member_idx)
            r.unfilled += u32_less(d->members[i].min_pages, held_without_cached(&d->members[i], w));
    return r;
}

/* The change by the eviction of this model. */
static room left_by(const plan_device *d, const plan_wanted *w, uint32_t idx) {
    const plan_model *m = &d->models[idx];
    room r = {.freed = m->weight_pages + u32_less(m->kv_pages, m->cached_pages)};
    for (uint32_t i = 0; i < d->n_members; i++)
        if (d->members[i].weights_idx == idx && i != w->member_idx)
            r.unfilled += u32_min(d->members[i].min_pages, held_without_cached(&d->members[i], w));
    return r;
}

static room add(room a, room b) {
    return (room){a.freed + b.freed, a.unfilled + b.unfilled};
}

/* Present unfilled guarantees of others. */
static uint64_t unfilled_pages(const plan_device *d, const plan_wanted *w) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < d->n_members; i++) {
        const plan_member *m = &d->members[i];
        bool comes = m->owns && m->weights_idx == w->idx;
        uint32_t held = comes ? u32_max(m->held_pages, w->weight_pages) : m->held_pages;
        if (i != w->member_idx) n += u32_less(m->min_pages, held);
    }
    return n;
}

/* Pages that the wanted model gains: the guarantee of an evicted model stays reserved for it. */
static uint64_t lent_by(const plan_device *d, const plan_wanted *w, const room *r) {
    return r->freed - (guaranteed_max(r->unfilled, d) - guaranteed_max(unfilled_pages(d, w), d));
}

typedef enum kind {
    KIND_IDLE,
    KIND_LOWER, // its work is of a lower class than the wanted one's
    KIND_EQUAL, // of the same class: they would share time slices
    KIND_ANY
} kind;

static bool is_of(const plan_device *d, uint32_t i, const plan_wanted *w, kind k) {
    const plan_model *m = &d->models[i];
    if (!may_go(d, i, w)) return false;
    if (k == KIND_ANY) return true;
    if (m->n_work == 0 || k == KIND_IDLE) return m->n_work == 0 && k == KIND_IDLE;
    return k == KIND_LOWER ? m->prio > w->prio : m->prio == w->prio;
}

static room room_after_kind(const plan_device *d, const plan_wanted *w, room r, kind k) {
    for (uint32_t i = 0; i < d->n_models; i++)
        if (is_of(d, i, w, k)) r = add(r, left_by(d, w, i));
    return r;
}

/* The models of one kind, in order of eviction. */
static uint32_t collect(const plan_device *d, const plan_wanted *w, kind k, uint32_t *out) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < d->n_models; i++) {
        if (!is_of(d, i, w, k)) continue;
        worth_candidate c = plan_candidate(d, i), other;
        uint32_t at = n++;
        for (; at > 0; at--) {
            other = plan_candidate(d, out[at - 1]);
            if (!worth_goes_before(&c, &other)) break;
            out[at] = out[at - 1];
        }
        out[at] = i;
    }
    return n;
}

/* ---- inequalities ---- */

static plan_check *add_check(plan_answer *out, const char *name, uint64_t need, uint64_t have) {
    plan_check *c = &out->checks[out->n_checks++];
    *c = (plan_check){.name = name, .need_pages = need, .have_pages = have, .kept = need <= have};
    return c;
}

static void say_mib(plan_check *c, const char *need, const char *have, uint64_t page_bytes) {
    snprintf(c->text, sizeof c->text, "%s %s %s %s %s", need,
             feasible_mib(c->need_pages * page_bytes).text, c->kept ? "<=" : ">",
             feasible_mib(c->have_pages * page_bytes).text, have);
}

/* Pages that others always keep.  Guarantees of the owner of the wanted weights count beyond these
 * weights. */
static uint64_t kept_by_others(const plan_device *d, const plan_wanted *w) {
    guarantee_sum kept = {0, 0};
    for (uint32_t i = 0; i < d->n_members; i++) {
        const plan_member *m = &d->members[i];
        bool same = m->weights_idx == w->idx;
        uint32_t own = m->owns && !same ? d->models[m->weights_idx].pinned_pages : 0;
        if (i == w->member_idx) continue;
        guarantee_add(&kept, own, m->min_pages, m->owns && same ? w->weight_pages : own);
    }
    return guarantee_kept(&kept, d->tenants_min_pages);
}

static void check_device(const plan_device *d, const plan_wanted *w, plan_answer *out) {
    uint64_t kept = kept_by_others(d, w);
    plan_check *c = add_check(out, "device", (uint64_t)w->weight_pages + PLAN_KV_PAGES,
                              d->n_pages > kept ? d->n_pages - kept : 0);
    say_mib(c, "weights and minimum keys and values", "of the device not reserved by other owners",
            d->page_bytes);
}

/* Shared weights count for their owner. */
static uint32_t own_weight_pages(const plan_device *d, const plan_wanted *w) {
    bool joins = w->member_idx == UINT32_MAX; // it would share weights that another member has
    bool owns = joins ? w->idx == UINT32_MAX : d->members[w->member_idx].owns;
    return owns ? w->weight_pages : 0;
}

static void check_ceiling(const plan_device *d, const plan_wanted *w, plan_answer *out) {
    if (w->max_pages == FEASIBLE_UNLIMITED) return;
    plan_check *c =
        add_check(out, "ceiling", (uint64_t)own_weight_pages(d, w) + PLAN_KV_PAGES, w->max_pages);
    say_mib(c, "weights and minimum keys and values", "that it may have (max)", d->page_bytes);
}

static bool check_mins(const plan_device *d, const plan_wanted *w, plan_answer *out) {
    uint32_t n = 0, *mins = calloc((size_t)d->n_members + 1, sizeof *mins);
    const char **names = calloc((size_t)d->n_members + 1, sizeof *names);
    feasible_mins f;
    bool fine = mins != NULL && names != NULL;
    for (uint32_t i = 0; fine && i < d->n_members; i++) {
        if (i == w->member_idx) continue;
        mins[n] = d->members[i].min_pages;
        names[n++] = d->members[i].name;
    }
    if (fine) {
        mins[n] = w->min_pages;
        names[n++] = w->name;
        feasible_mins_check(mins, n, d->n_pages, d->page_bytes, &f);
        plan_check *c = add_check(out, "guarantees", f.sum_pages, f.room_pages);
        feasible_mins_say(&f, mins, n, names, c->text, sizeof c->text);
    }
    free(names);
    free(mins);
    return fine;
}

/* Same rule as the placement of replicas (placement.h). */
static void check_shares(const plan_device *d, const plan_wanted *w, plan_answer *out) {
    enum { ALL_PERCENT = 100 };
    if (w->share_percent == 0) return;
    plan_check *c =
        add_check(out, "shares", (uint64_t)d->share_percent + w->share_percent, ALL_PERCENT);
    c->percent = true;
    snprintf(c->text, sizeof c->text, "%u %% of other models + its %u %% %s %d %% of the device",
             d->share_percent, w->share_percent, c->kept ? "<=" : ">", ALL_PERCENT);
}

/* The periodic tasks with measured steps. */
static void check_targets(const plan_device *d, plan_answer *out) {
    enum { ALL_PERCENT = 100, PPM_PER_PERCENT = 10000 };
    feasible_tasks f;
    if (d->n_tasks == 0) return;
    feasible_tasks_check(d->tasks, d->n_tasks, &f);
    uint64_t need = f.total_ppm / PPM_PER_PERCENT + (f.total_ppm % PPM_PER_PERCENT != 0);
    plan_check *c = add_check(out, "targets", need, ALL_PERCENT);
    c->percent = true;
    c->kept = f.kept;
    feasible_tasks_say(&f, d->tasks, d->task_names, c->text, sizeof c->text);
}

/* Pages on the device that already count for it: the weights, and its own keys and values. */
static uint32_t held_by_wanted(const plan_device *d, const plan_wanted *w) {
    uint32_t weights = w->idx != UINT32_MAX ? d->models[w->idx].weight_pages : 0;
    if (w->member_idx == UINT32_MAX) return weights;
    const plan_member *m = &d->members[w->member_idx];
    return (m->owns ? 0 : weights) + u32_less(m->held_pages, m->cached_pages);
}

static feasible_owner owner_of(const plan_device *d, const plan_wanted *w, const room *r) {
    uint32_t shared = w->weight_pages - own_weight_pages(d, w); // do not count for its ceiling
    bool limited = w->max_pages < FEASIBLE_UNLIMITED - shared;
    uint64_t lent = lent_by(d, w, r);
    return (feasible_owner){.weight_pages = w->weight_pages,
                            .finish_pages = PLAN_KV_PAGES,
                            .min_pages = w->min_pages,
                            .held_pages = held_by_wanted(d, w),
                            .max_pages = limited ? w->max_pages + shared : FEASIBLE_UNLIMITED,
                            .free_pages = d->n_free,
                            .guaranteed_pages = guaranteed_max(unfilled_pages(d, w), d),
                            .revocable_pages = lent < UINT32_MAX ? (uint32_t)lent : UINT32_MAX,
                            .page_bytes = d->page_bytes};
}

/* May it have enough memory?  Its min is given to it in any case. */
static bool check_pages(const plan_device *d, const plan_wanted *w, const room *r,
                        feasible_owner *o, feasible_pages *f) {
    *o = owner_of(d, w, r);
    return feasible_pages_check(o, f);
}

/* The pages that are missing for its weights and so many pages of keys and values, unless more
 * models are evicted: its min does not free any. */
static uint64_t missing_pages(const plan_device *d, const plan_wanted *w, const room *r,
                              uint32_t kv_pages) {
    feasible_pages f;
    feasible_owner o = owner_of(d, w, r);
    o.finish_pages = kv_pages;
    o.min_pages = 0;
    return feasible_pages_check(&o, &f) ? 0 : f.need_pages - f.may_pages;
}

/* Adds victims of one kind until there is enough memory: each time the next model that cannot be
 * spared.  False: no memory. */
static bool add_victims(const plan_device *d, const plan_wanted *w, kind k, room *r,
                        plan_answer *out) {
    uint32_t *left = calloc(d->n_models + (size_t)1, sizeof *left);
    uint32_t *pages = calloc(d->n_models + (size_t)1, sizeof *pages);
    room *gives = calloc(d->n_models + (size_t)1, sizeof *gives);
    bool fine = left != NULL && pages != NULL && gives != NULL;
    uint64_t missing;
    uint32_t n = fine ? collect(d, w, k, left) : 0;
    for (uint32_t i = 0; i < n; i++) gives[i] = left_by(d, w, left[i]);
    while (n > 0 && (missing = missing_pages(d, w, r, PLAN_KV_PAGES)) > 0) {
        for (uint32_t i = 0; i < n; i++) {
            room then = add(*r, gives[i]);
            pages[i] = (uint32_t)(lent_by(d, w, &then) - lent_by(d, w, r));
        }
        uint32_t next = worth_first(pages, n, missing);
        out->victims[out->n_victims++] = left[next];
        out->n_idle += k == KIND_IDLE;
        *r = add(*r, gives[next]);
        n--;
        memmove(&left[next], &left[next + 1], (n - next) * sizeof left[0]);
        memmove(&gives[next], &gives[next + 1], (n - next) * sizeof gives[0]);
    }
    free(gives);
    free(left);
    free(pages);
    return fine;
}

static bool is_victim(const plan_answer *p, uint32_t idx) {
    for (uint32_t i = 0; i < p->n_victims; i++)
        if (p->victims[i] == idx) return true;
    return false;
}

/* Adds models of one kind in order of eviction, of those that give it pages, until so many pages of
 * keys and values have room.  False: no memory. */
static bool add_in_order(const plan_device *d, const plan_wanted *w, kind k, uint32_t kv_pages,
                         room *r, plan_answer *out) {
    uint32_t *left = calloc(d->n_models + (size_t)1, sizeof *left);
    uint32_t n = left != NULL ? collect(d, w, k, left) : 0;
    for (uint32_t i = 0; i < n && missing_pages(d, w, r, kv_pages) > 0; i++) {
        room more = left_by(d, w, left[i]), then = add(*r, more);
        if (is_victim(out, left[i]) || lent_by(d, w, &then) <= lent_by(d, w, r)) continue;
        out->victims[out->n_victims++] = left[i];
        *r = then;
    }
    free(left);
    return left != NULL;
}

/* Within its min it takes pages of any model that has more than its own. */
static bool is_owed(const plan_device *d, const plan_wanted *w) {
    return own_weight_pages(d, w) == w->weight_pages &&
           w->min_pages >= w->weight_pages + PLAN_KV_PAGES;
}

/* The models that go for its load, then those that go while its keys and values fill its min. */
static bool list_victims(const plan_device *d, const plan_wanted *w, room r, plan_answer *out) {
    uint32_t kv_pages = u32_less(w->min_pages, own_weight_pages(d, w));
    if (!add_victims(d, w, KIND_IDLE, &r, out)) return false;
    if (!is_owed(d, w) && !add_victims(d, w, KIND_LOWER, &r, out)) return false;
    if (is_owed(d, w) && !add_in_order(d, w, KIND_ANY, PLAN_KV_PAGES, &r, out)) return false;
    out->n_for_load = out->n_victims;
    return add_in_order(d, w, KIND_IDLE, kv_pages, &r, out) &&
           add_in_order(d, w, KIND_LOWER, kv_pages, &r, out);
}

bool plan_model_check(const plan_device *d, const plan_wanted *w, plan_answer *out) {
    feasible_owner o;
    feasible_pages f;
    *out = (plan_answer){.victims = calloc((size_t)d->n_models + 1, sizeof *out->victims)};
    if (out->victims == NULL) return false;
    check_device(d, w, out);
    check_ceiling(d, w, out);
    if (!check_mins(d, w, out)) {
        plan_answer_deinit(out);
        return false;
    }
    check_shares(d, w, out);
    check_targets(d, out);
    out->fits = true;
    for (uint32_t i = 0; i < out->n_checks; i++) out->fits = out->fits && out->checks[i].kept;

    room r = room_without_cached(d, w), all = room_after_kind(d, w, r, KIND_IDLE);
    all = room_after_kind(d, w, all, KIND_LOWER);
    bool enough = check_pages(d, w, &all, &o, &f);
    /* Evict no model if all are not enough. */
    if (enough && !list_victims(d, w, r, out)) {
        plan_answer_deinit(out);
        return false;
    }
    if (!enough) r = all;
    for (uint32_t i = 0; i < out->n_for_load; i++) r = add(r, left_by(d, w, out->victims[i]));
    check_pages(d, w, &r, &o, &f);
    plan_check *c = add_check(out, "memory", f.need_pages, f.may_pages);
    feasible_pages_say(&f, &o, c->text, sizeof c->text);
    out->now = out->fits && enough;
    all = room_after_kind(d, w, all, KIND_EQUAL);
    out->slices = out->fits && !enough && check_pages(d, w, &all, &o, &f);
    return true;
}

void plan_answer_deinit(plan_answer *p) {
    free(p->victims);
    *p = (plan_answer){0};
}
