/* admin_plan.h - would a model fit, who would go for it, and how long would it take: the arithmetic
 * of POST /admin/plan over a snapshot of a device.
 *
 * Who goes follows the rule of the scheduler's residency.h as far as it can be seen from outside:
 *
 *     1  idle models, then models whose work is of a lower class than the newcomer's
 *     2  of these the lowest class first
 *     3  and in it the least worth (scheduler/worth.h), but for those who would go in vain
 *
 * never a pinned one, and nobody when all of them were not enough.  What is not looked at: whether
 * a model came too short a time ago to go (policy.min_residency_ms).
 *
 * Pages are the device's.  Thread: any; nothing is kept. */
#ifndef INFERD_ADMIN_PLAN_H
#define INFERD_ADMIN_PLAN_H

#include "inferd/base.h"
#include "scheduler/feasible.h"
#include "scheduler/policy.h"
#include "scheduler/worth.h"

enum {
    /* Of a file's bytes, while no device says better: its weights as they are computed with.  They
     * take as much as in the file, but for types with scales of their own that are unpacked. */
    PLAN_PREPARED_PERCENT = 115,
    PLAN_KV_PAGES = 1, // least keys and values that a model computes with
    PLAN_CHECKS_MAX = 6
};
#define PLAN_BYTES_PER_S UINT64_C(500000000) // of bringing up, where nothing was measured

/* A model: promises are each one's own, also where weights are shared. */
typedef struct plan_member {
    const char *name;
    uint32_t weights_idx;           // in models
    bool owns;                      // the weights count as its own, not as another's
    uint32_t min_pages, held_pages; // held: what counts as its own
    uint32_t cached_pages;          // of held_pages
} plan_member;

/* One set of weights, with all that compute with it. */
typedef struct plan_model {
    const char *name;
    bool hot, pinned; // its weights are on the device; and stay there
    gen_class class;
    uint32_t weight;
    uint32_t weight_pages, kv_pages, cached_pages; // held; cached ones are some of kv_pages
    uint32_t pinned_pages; // that its weights take whatever happens, held or not
    uint32_t n_work;       // sequences that run and wait
    uint64_t idle_us;      // since somebody wanted it
    uint64_t reload_us;    // to have it back, about; > 0
    worth_pauses pauses;
} plan_model;

typedef struct plan_device {
    uint32_t n_pages, n_free; // n_free: nobody's
    uint32_t reserve_pages;   // beside n_pages, for nobody
    uint64_t page_bytes;
    const plan_model *models; // [n_models]
    uint32_t n_models;
    const plan_member *members; // [n_members]
    uint32_t n_members;
    uint32_t tenants_min_pages; // guaranteed to tenants, out of the same pages as to models
    uint32_t reserved_pages;    // of n_free: for those guarantees
    uint32_t share_percent;     // guaranteed there to other models than the wanted one
    /* [n_tasks] what is known of steps there, the wanted one's among them, with its target; names
     * by name_idx.  0: its own step was never measured. */
    const feasible_task *tasks;
    const char *const *task_names;
    uint32_t n_tasks;
} plan_device;

typedef struct plan_wanted {
    const char *name;
    uint32_t idx;        // in models: its weights, or those it would share; UINT32_MAX: new ones
    uint32_t member_idx; // in members: it is one of them; UINT32_MAX: it is not
    gen_class class;
    uint32_t weight_pages;
    uint32_t min_pages, max_pages; // FEASIBLE_UNLIMITED = no ceiling
    uint32_t share_percent;        // guaranteed to it; 0: nothing is
} plan_wanted;

typedef struct plan_check {
    const char *name; // "device", "ceiling", "guarantees", "shares", "targets", "memory"
    bool kept;
    bool percent; // need and have are, of the device's time
    uint64_t need_pages, have_pages;
    char text[FEASIBLE_TEXT_BYTES];
} plan_check;

typedef struct plan_answer {
    plan_check checks[PLAN_CHECKS_MAX]; // "memory" is the last
    uint32_t n_checks;
    bool fits;          // all but "memory"
    bool now;           // and that, too, when the victims have gone
    uint32_t *victims;  // [n_victims] of models, in this order; owned
    uint32_t n_victims; // the first n_idle are idle
    uint32_t n_idle;
    bool turns; // not now, but it would take turns with models of its class
} plan_answer;

/* False: no memory. */
bool plan_model_check(const plan_device *d, const plan_wanted *w, plan_answer *out);
void plan_answer_deinit(plan_answer *p);

/* Rounded up. */
uint32_t plan_pages(uint64_t n_bytes, uint64_t page_bytes);
/* Of a file's weights once they are prepared. */
uint64_t plan_prepared_bytes(uint64_t file_bytes);
/* Does a go before b? */
bool plan_goes_before(const plan_model *a, const plan_model *b);

#endif
