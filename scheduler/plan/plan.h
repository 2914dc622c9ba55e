/* plan.h - the state of one plan, and what its files give each other.
 *
 *     plan.c      expire > trim cache > choose model > admit > order > rows
 *     order.c     the order of sequences, and the rule by which one takes memory of another
 *     admit.c     which waiting sequences begin
 *     preempt.c   which running ones give up pages
 *     rows.c      how many tokens each sequence computes
 *
 * A plan is for one model and one tier.  A sequence is in a plan at most once.  A sequence that
 * this plan preempted, had no page for, or held back for the blocks of another, is not looked at
 * again before the next plan (planned_plan, refused_plan, held_plan). Thread: engine. */
#ifndef INFERD_PLAN_H
#define INFERD_PLAN_H

#include "sched_state.h"

enum { FLOOR_PARTS = 8 };        // of running_max: sequences of a step by rule 2 of order.c
enum { PREEMPTIONS_SPARED = 3 }; // a sequence preempted so often is chosen last in its class

/* The admission window of a plan.  The first waiting sequence that finds no batch slot closes it.
 * The first that finds no pages leaves it open for claimants only: sequences that ask for no more
 * than their guarantee.  A tenant at its own ceiling does not change it. */
typedef struct window {
    bool closed, claimants_only;
    seq *shut_by;       // the first that was refused
    uint32_t n_refused; // claimants refused, at most CLAIMS_TRIED
} window;

/* Flows of the largest weight in a class, and the least virtual time among them. */
typedef struct heaviest {
    uint32_t weight; // 0: the class has no sequence that could compute
    uint64_t virtual_us;
} heaviest;

typedef struct plan {
    sched *s;
    sched_model *m;
    step *st;
    uint64_t now_us;
    sched_tier tier;                // of all sequences in the step
    uint32_t n_active[GEN_CLASSES]; // running sequences of this model and tier, readers paused not
    heaviest heaviest[GEN_CLASSES];
    uint64_t due_us; // the earliest deadline of any sequence, of any model; 0: none
    window window;
} plan;

/* -- order.c -- */
/* Counts the running sequences of the model, after it was chosen. */
void plan_count_active(plan *p);
/* It may be in this step: its tier is that of the plan. */
bool plan_may_join(const plan *p, const seq *q);
/* Its flow is ahead of a heavier one by more than a step, and lets it catch up. */
bool plan_yields(const plan *p, const seq *q);
/* Sequences of a step by rule 2. */
uint32_t plan_floor_max(const plan *p);
/* The running sequences that could compute, in order, into sched.order; those owed a step first.
 * At most running_max are returned; those behind them are displaced. */
uint32_t plan_order_running(plan *p);
/* May q take pages of v?  `claims`: sched_may_claim of q, which is the same for all v. */
bool plan_may_take(const sched *s, const seq *q, bool claims, const seq *v);
/* Does running `a` give up its pages before `b`, to a q that claims its guarantee or not? */
bool plan_gives_before(const sched *s, bool claims, const seq *a, const seq *b);
/* May q take memory for its guarantee? */
bool plan_claims(const sched *s, const seq *q);

/* -- admit.c -- */
/* How many of its first blocks a prefix hit may serve. */
uint32_t plan_blocks_findable(const seq *q, const kv_layout *l);
/* Admits waiting sequences that take pages or batch slots of less urgent ones, before any sequence
 * has rows, and one of each class that is below its floor. */
void plan_admit_first(plan *p);
/* The next waiting sequence to admit; NULL: none, or the window is closed. */
seq *plan_window_next(const plan *p);
bool plan_window_try(plan *p, seq *q); // true: q was admitted

/* -- preempt.c -- */
/* Preempts a sequence for its pages, where q may take them; false: none, or pages come free soon.
 * `own_tenant`: q's tenant is at its ceiling, so only its own sequences help. */
bool plan_preempt_for_pages(plan *p, seq *q, bool own_tenant);
/* Reclaims unused weights, or those of models with work that deserves less than `waiting` (NULL:
 * only unused ones), where the pages may go to this model at all. */
bool plan_reclaim_weights(const plan *p, sched_model *m, const seq *waiting);
/* Has the model computed nothing for want of pages? */
bool plan_is_short(const plan *p, const sched_model *m);
/* Appends a block to q's table; with `must`, preempts others if nothing else helps. */
bool plan_take_block(plan *p, seq *q, bool must);
void plan_trim_caches(sched *s);

/* -- rows.c -- */
/* Fills the step: p->st. */
void plan_fill(plan *p);

#endif
