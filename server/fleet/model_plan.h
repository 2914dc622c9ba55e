/* model_plan.h - would a model fit, which models would be evicted for it, and how long would it
 * take: the arithmetic of POST /admin/plan over a snapshot of a device.
 *
 * The victims are chosen by the scheduler's residency.h, as far as its input is seen from outside:
 *
 *   1  idle models, the least worth first (scheduler/worth.h), except models that the others spare
 *   2  models with work of a lower class than that of the incoming model, the lowest class first,
 *      in a class the least worth first
 *
 * A guarantee (min) that covers the load is given in any case: after the idle models, any model
 * goes that gives it pages, whatever its class and work.  Beyond the load its keys and values fill
 * the min page by page: then idle models and those with work of a lower class go in this order, and
 * none is spared.
 *
 * A pinned model is never evicted, and no model is evicted if all of them were not enough.
 *
 * Pages are the device's.  Thread: any; nothing is kept. */
#ifndef INFERD_MODEL_PLAN_H
#define INFERD_MODEL_PLAN_H

#include "inferd/base.h"
#include "scheduler/feasible.h"
#include "scheduler/policy.h"
#include "scheduler/worth.h"

enum {
    /* Estimate of prepared weights in percent of a file's bytes, until a device reports their size.
     * They take as much as in the file, except types with scales of their own that are unpacked. */
    PLAN_PREPARED_PERCENT = 115,
    PLAN_KV_PAGES = 1, // pages of keys and values that a model needs at least to compute
    PLAN_CHECKS_MAX = 6
};
#define PLAN_BYTES_PER_S UINT64_C(500000000) // speed of bringing up a model, until it is measured

/* A model, with guarantees of its own, even if its weights are shared. */
typedef struct plan_member {
    const char *name;
    uint32_t weights_idx;           // index in models
    bool owns;                      // the weights count for it, not for another member
    uint32_t min_pages, held_pages; // held: all pages that count for it
    uint32_t cached_pages;          // of held_pages
} plan_member;

/* One set of weights, with all members that compute with it. */
typedef struct plan_model {
    const char *name;
    bool hot, pinned; // its weights are on the device; they may not be evicted
    gen_class prio;
    uint32_t weight;
    uint32_t weight_pages, kv_pages, cached_pages; // in use; cached ones are part of kv_pages
    uint32_t pinned_pages; // pages of its weights that are always taken, loaded or not
    uint32_t n_work;       // running and waiting sequences
    uint64_t idle_us;      // since its last demand
    uint64_t reload_us;    // estimated time to bring it back; > 0
    worth_pauses pauses;
} plan_model;

typedef struct plan_device {
    uint32_t n_pages, n_free; // n_free: unused
    uint64_t page_bytes;
    const plan_model *models; // [n_models]
    uint32_t n_models;
    const plan_member *members; // [n_members]
    uint32_t n_members;
    uint32_t tenants_min_pages; // guaranteed to tenants, from the same pages as those of models
    uint32_t reserved_pages;    // pages of n_free kept for the guarantees of tenants
    uint32_t share_percent;     // guaranteed there to all models except the wanted one
    /* [n_tasks] the tasks with measured steps there, including the wanted one with its target;
     * names by name_idx. 0: the step of the wanted one was never measured. */
    const feasible_task *tasks;
    const char *const *task_names;
    uint32_t n_tasks;
} plan_device;

typedef struct plan_wanted {
    const char *name;
    /* Index in models of its weights, or of those it would share; UINT32_MAX: new weights. */
    uint32_t idx;
    uint32_t member_idx; // index in members; UINT32_MAX: not a member yet
    gen_class prio;
    uint32_t weight_pages;
    uint32_t min_pages, max_pages; // FEASIBLE_UNLIMITED = no ceiling
    uint32_t share_percent;        // guaranteed to it; 0: no share
} plan_wanted;

typedef struct plan_check {
    const char *name; // "device", "ceiling", "guarantees", "shares", "targets", "memory"
    bool kept;
    bool percent; // need and have are percent of the device's time
    uint64_t need_pages, have_pages;
    char text[FEASIBLE_TEXT_BYTES];
} plan_check;

typedef struct plan_answer {
    plan_check checks[PLAN_CHECKS_MAX]; // "memory" is the last
    uint32_t n_checks;
    bool fits;          // all checks are kept, apart from "memory"
    bool now;           // and "memory" too, once the victims are evicted
    uint32_t *victims;  // [n_victims] indices in models, in order of eviction; owned
    uint32_t n_victims; // the first n_for_load go at its load, the others once it uses its min
    uint32_t n_idle;    // of the first n_for_load, the first n_idle are idle
    uint32_t n_for_load;
    bool slices; // not now, but it would share time slices with models of its class
} plan_answer;

/* False: no memory. */
bool plan_model_check(const plan_device *d, const plan_wanted *w, plan_answer *out);
void plan_answer_deinit(plan_answer *p);

/* Rounded up. */
uint32_t plan_pages(uint64_t n_bytes, uint64_t page_bytes);
/* Bytes of a file's weights once they are prepared. */
uint64_t plan_prepared_bytes(uint64_t file_bytes);
/* Model i in the order of eviction (worth_goes_before). */
worth_candidate plan_candidate(const plan_device *d, uint32_t i);

#endif
