/* admin_plan.c - see admin_plan.h. */
#include "admin_plan.h"

#include <string.h>

uint32_t plan_pages(uint64_t n_bytes, uint64_t page_bytes) {
    if (page_bytes == 0) return 0;
    uint64_t n = n_bytes / page_bytes + (n_bytes % page_bytes != 0);
    return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX - PLAN_KV_PAGES;
}

uint64_t plan_prepared_bytes(uint64_t file_bytes) {
    return file_bytes / 100 * PLAN_PREPARED_PERCENT + file_bytes % 100;
}

/* ---- who goes ---- */

static uint64_t value_of(const plan_model *m) {
    worth_idle idle = {.weight = m->weight,
                       .reload_us = m->reload_us,
                       .idle_us = m->idle_us,
                       .n_pages = m->weight_pages,
                       .pauses = m->pauses};
    return worth_of(&idle);
}

bool plan_goes_before(const plan_model *a, const plan_model *b) {
    if (a->class != b->class) return a->class > b->class;
    return value_of(a) < value_of(b);
}

static bool may_go(const plan_device *d, uint32_t i, const plan_wanted *w) {
    const plan_model *m = &d->models[i];
    return i != w->idx && m->hot && !m->pinned;
}

static uint32_t freed_by(const plan_model *m) {
    return m->weight_pages + (m->kv_pages - u32_min(m->kv_pages, m->cached_pages));
}

typedef enum kind {
    KIND_IDLE,
    KIND_LOWER // its work is of a lower class
} kind;

static bool is_of(const plan_device *d, uint32_t i, const plan_wanted *w, kind k) {
    const plan_model *m = &d->models[i];
    if (!may_go(d, i, w)) return false;
    return k == KIND_IDLE ? m->n_work == 0 : m->n_work > 0 && m->class > w->class;
}

static uint64_t pages_of_kind(const plan_device *d, const plan_wanted *w, kind k) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < d->n_models; i++)
        if (is_of(d, i, w, k)) n += freed_by(&d->models[i]);
    return n;
}

/* Those of one kind, in the order in which they would go. */
static uint32_t collect(const plan_device *d, const plan_wanted *w, kind k, uint32_t *out) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < d->n_models; i++) {
        if (!is_of(d, i, w, k)) continue;
        uint32_t at = n++;
        for (; at > 0 && plan_goes_before(&d->models[i], &d->models[out[at - 1]]); at--)
            out[at] = out[at - 1];
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

/* What others keep whatever happens: guarantees, and weights that are pinned there. */
static void check_device(const plan_device *d, const plan_wanted *w, plan_answer *out) {
    uint64_t kept = 0;
    for (uint32_t i = 0; i < d->n_models; i++) {
        const plan_model *m = &d->models[i];
        if (i != w->idx) kept += u32_max(m->pinned ? m->weight_pages : 0, m->min_pages);
    }
    plan_check *c = add_check(out, "device", (uint64_t)w->weight_pages + PLAN_KV_PAGES,
                              d->n_pages > kept ? d->n_pages - kept : 0);
    say_mib(c, "weights and least keys and values", "of the device that others do not keep",
            d->page_bytes);
}

static void check_ceiling(const plan_device *d, const plan_wanted *w, plan_answer *out) {
    if (w->max_pages == FEASIBLE_UNLIMITED) return;
    plan_check *c =
        add_check(out, "ceiling", (uint64_t)w->weight_pages + PLAN_KV_PAGES, w->max_pages);
    say_mib(c, "weights and least keys and values", "that it may have (max)", d->page_bytes);
}

static bool check_mins(const plan_device *d, const plan_wanted *w, plan_answer *out) {
    uint32_t n = 0, *mins = calloc((size_t)d->n_models + 1, sizeof *mins);
    const char **names = calloc((size_t)d->n_models + 1, sizeof *names);
    feasible_mins f;
    bool fine = mins != NULL && names != NULL;
    for (uint32_t i = 0; fine && i < d->n_models; i++) {
        if (i == w->idx) continue;
        mins[n] = d->models[i].min_pages;
        names[n++] = d->models[i].name;
    }
    if (fine) {
        mins[n] = w->min_pages;
        names[n++] = w->name;
        feasible_mins_check(mins, n, d->n_pages, 0, d->page_bytes, &f);
        plan_check *c = add_check(out, "guarantees", f.sum_pages, f.room_pages);
        feasible_mins_say(&f, mins, n, d->n_pages, 0, names, c->text, sizeof c->text);
    }
    free(names);
    free(mins);
    return fine;
}

/* Room for it now, with `lent` pages of others. */
static bool check_pages(const plan_device *d, const plan_wanted *w, uint64_t lent,
                        feasible_owner *o, feasible_pages *f) {
    uint64_t promised = 0;
    *o = (feasible_owner){.weight_pages = w->weight_pages,
                          .finish_pages = PLAN_KV_PAGES,
                          .min_pages = w->min_pages,
                          .max_pages = w->max_pages,
                          .free_pages = d->n_free,
                          .page_bytes = d->page_bytes};
    for (uint32_t i = 0; i < d->n_models; i++) {
        const plan_model *m = &d->models[i];
        uint32_t held = m->weight_pages + m->kv_pages;
        if (i == w->idx)
            o->held_pages = held;
        else
            promised += m->min_pages > held ? m->min_pages - held : 0;
    }
    o->promised_pages = promised < UINT32_MAX ? (uint32_t)promised : UINT32_MAX;
    o->revocable_pages = lent < UINT32_MAX ? (uint32_t)lent : UINT32_MAX;
    return feasible_pages_check(o, f);
}

/* Of one kind, until there is room: each time the next who has to go, as long as any has to. False:
 * no memory. */
static bool add_victims(const plan_device *d, const plan_wanted *w, kind k, uint64_t *lent,
                        plan_answer *out) {
    uint32_t *left = calloc(d->n_models + (size_t)1, sizeof *left);
    uint32_t *pages = calloc(d->n_models + (size_t)1, sizeof *pages);
    bool fine = left != NULL && pages != NULL;
    feasible_owner o;
    feasible_pages f;
    uint32_t n = fine ? collect(d, w, k, left) : 0;
    while (n > 0 && !check_pages(d, w, *lent, &o, &f)) {
        for (uint32_t i = 0; i < n; i++) pages[i] = freed_by(&d->models[left[i]]);
        uint32_t next = worth_first(pages, n, f.need_pages - f.may_pages);
        out->victims[out->n_victims++] = left[next];
        out->n_idle += k == KIND_IDLE;
        *lent += pages[next];
        n--;
        memmove(&left[next], &left[next + 1], (n - next) * sizeof left[0]);
    }
    free(left);
    free(pages);
    return fine;
}

/* Same class, and at work. */
static uint64_t pages_of_turns(const plan_device *d, const plan_wanted *w) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < d->n_models; i++) {
        const plan_model *m = &d->models[i];
        if (may_go(d, i, w) && m->n_work > 0 && m->class == w->class) n += freed_by(m);
    }
    return n;
}

bool plan_model_check(const plan_device *d, const plan_wanted *w, plan_answer *out) {
    feasible_owner o;
    feasible_pages f;
    uint64_t lent = 0;
    *out = (plan_answer){.victims = calloc((size_t)d->n_models + 1, sizeof *out->victims)};
    if (out->victims == NULL) return false;
    check_device(d, w, out);
    check_ceiling(d, w, out);
    if (!check_mins(d, w, out)) {
        plan_answer_deinit(out);
        return false;
    }
    out->fits = true;
    for (uint32_t i = 0; i < out->n_checks; i++) out->fits = out->fits && out->checks[i].kept;

    /* Cached keys and values go first, and cost nobody anything. */
    for (uint32_t i = 0; i < d->n_models; i++) lent += d->models[i].cached_pages;
    uint64_t idle = pages_of_kind(d, w, KIND_IDLE), lower = pages_of_kind(d, w, KIND_LOWER);
    bool by_idle = check_pages(d, w, lent + idle, &o, &f);
    bool enough = by_idle || check_pages(d, w, lent + idle + lower, &o, &f);
    if (!enough) { // nobody goes in vain
        lent += idle + lower;
    } else if (!add_victims(d, w, KIND_IDLE, &lent, out) ||
               (!by_idle && !add_victims(d, w, KIND_LOWER, &lent, out))) {
        plan_answer_deinit(out);
        return false;
    }
    check_pages(d, w, lent, &o, &f);
    plan_check *c = add_check(out, "memory", f.need_pages, f.may_pages);
    feasible_pages_say(&f, &o, c->text, sizeof c->text);
    out->now = out->fits && enough;
    out->turns = out->fits && !enough && check_pages(d, w, lent + pages_of_turns(d, w), &o, &f);
    return true;
}

void plan_answer_deinit(plan_answer *p) {
    free(p->victims);
    *p = (plan_answer){0};
}
