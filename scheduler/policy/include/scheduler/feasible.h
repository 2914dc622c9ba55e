/* feasible.h - the inequalities that an operator is shown: would this set of models keep its
 * targets and guarantees on one device, and if not, by how much.
 *
 * A model that decodes is a periodic task: a step costs C, and its tightest target for a token
 * (TPOT) is its period T.  Steps are not interrupted, so a task that is due may have to wait for
 * the longest step.  With the earliest deadline first all are on time when
 *
 *     sum C/T  +  max C / min T  <=  1
 *
 * which is sufficient for periodic and sporadic tasks without preemption (Jeffay, Stanat, Martel
 * 1991): in any interval of L >= min T the work that is due is at most L * sum C/T, and one step
 * that was begun before it.  It is not necessary: a refused set may still be on time.  The step of
 * a model without a target, which has no T, is one more C in the max term.  A task does not wait
 * for itself: where only one has a period, its own C is not in the max.
 *
 * Fractions are parts per billion (ppb) inside and parts per million (ppm) in results, both rounded
 * up, so nothing is admitted that exact numbers would refuse.  The price: a set that misses
 * equality by less than one ppb per task may be refused.
 *
 * Sentences are formatted with integers only: the same numbers give the same bytes everywhere.
 * Text beyond FEASIBLE_TEXT_BYTES is cut.
 * Thread: any; nothing is kept. */
#ifndef INFERD_FEASIBLE_H
#define INFERD_FEASIBLE_H

#include "inferd/base.h"

enum {
    FEASIBLE_TEXT_BYTES = 320,
    FEASIBLE_NAMES_MAX = 4,          // owners that a sentence names; the others are added up
    FEASIBLE_SLICE_MAX_US = 4000000, // longest quota of a time slice
};

#define FEASIBLE_ONE_PPM          UINT64_C(1000000)
#define FEASIBLE_ONE_PPB          UINT64_C(1000000000)
#define FEASIBLE_FRACTION_MAX_PPB (1000 * FEASIBLE_ONE_PPB) // larger ones count as that
#define FEASIBLE_NO_TASK          UINT32_MAX
#define FEASIBLE_UNLIMITED        UINT32_MAX // pages

/* A number with its unit, for a sentence. */
typedef struct feasible_number {
    char text[40];
} feasible_number;

feasible_number feasible_ms(uint64_t us);       // "12.0 ms", "0.25 ms"
feasible_number feasible_mib(uint64_t n_bytes); // "512 MiB", "0.0625 MiB"

/* What the inequality needs to know about the tasks of a device; zeroed: no task. */
typedef struct feasible_load {
    uint64_t sum_ppb;                             // of C/T
    uint32_t n_tasks;                             // that have a period
    uint32_t period_min_us;                       // of those; 0 = there are none
    uint32_t task_cost_max_us, other_cost_max_us; // longest step of those, and of the others
} feasible_load;

/* cost / period, rounded up, at most FEASIBLE_FRACTION_MAX_PPB; 0 without a period. */
uint64_t feasible_fraction_ppb(uint64_t cost_us, uint32_t period_us);
/* Adds a task; period 0: it has no target, and only delays others. */
void feasible_load_add(feasible_load *l, uint32_t cost_us, uint32_t period_us);
/* The left side of the inequality, which holds when this is at most FEASIBLE_ONE_PPB. */
uint64_t feasible_total_ppb(const feasible_load *l);
uint64_t feasible_ppm(uint64_t ppb); // rounded up
/* The part of the targets that will be kept: 1 / left side, at most 1. */
uint64_t feasible_attainment_ppm(const feasible_load *l);

typedef struct feasible_task {
    uint32_t cost_us, period_us; // C; T, 0 = no target
    uint32_t name_idx;           // in the names given to feasible_tasks_say
} feasible_task;

typedef struct feasible_tasks {
    bool kept;
    uint64_t sum_ppm, total_ppm; // of C/T; the left side
    uint64_t attainment_ppm;
    uint32_t block_us; // the longest step that a task with a target may have to wait for,
    uint32_t blocker;  // and the index of its task, or FEASIBLE_NO_TASK
    uint32_t tightest; // largest (C + longest step of another) / T; FEASIBLE_NO_TASK
} feasible_tasks;

/* Returns kept. */
bool feasible_tasks_check(const feasible_task *tasks, uint32_t n, feasible_tasks *out);
/* "0.60 + 0.20 = 0.80 <= 1", or with the tightest task in front. */
void feasible_tasks_say(const feasible_tasks *f, const feasible_task *tasks,
                        const char *const *names, char *text, size_t text_bytes);

/* A model that gets `percent` of a device's time needs C * 100 / percent for a step. */
typedef struct feasible_share {
    bool kept;
    uint32_t cost_us, period_us, percent; // period 0: no target, always kept
    uint64_t step_us;                     // of a step at this share; 0 at no share
    uint64_t percent_needed; // the least that is enough; over 100: no device is fast enough
} feasible_share;

bool feasible_share_check(uint32_t cost_us, uint32_t period_us, uint32_t percent,
                          feasible_share *out);
void feasible_share_say(const feasible_share *f, char *text, size_t text_bytes);

/* Memory: what an owner needs to finish, against what it may have.  All in pages. */
typedef struct feasible_owner {
    uint32_t weight_pages, finish_pages; // needed in all, those it holds included
    uint32_t held_pages;
    uint32_t min_pages, max_pages;        // guarantee; ceiling, FEASIBLE_UNLIMITED = none
    uint32_t free_pages, revocable_pages; // free; lent to others, and revocable
    uint32_t guaranteed_pages;            // of those: unfilled guarantees of others
    uint64_t page_bytes;
} feasible_owner;

typedef struct feasible_pages {
    bool kept;
    uint64_t need_pages;
    uint64_t may_pages; // held + free + revocable - guaranteed, but from min to max
    uint64_t page_bytes;
} feasible_pages;

bool feasible_pages_check(const feasible_owner *o, feasible_pages *out);
void feasible_pages_say(const feasible_pages *f, const feasible_owner *o, char *text,
                        size_t text_bytes);

/* The guarantees of all owners of a device, against what it has. */
typedef struct feasible_mins {
    bool kept;
    uint64_t sum_pages, room_pages;
    uint64_t page_bytes;
} feasible_mins;

bool feasible_mins_check(const uint32_t *min_pages, uint32_t n, uint32_t capacity_pages,
                         uint64_t page_bytes, feasible_mins *out);
/* names [n] belong to min_pages. */
void feasible_mins_say(const feasible_mins *f, const uint32_t *min_pages, uint32_t n,
                       const char *const *names, char *text, size_t text_bytes);

/* Time slices: the models do not fit together, so each has the device for a slice, which begins
 * with a switch.
 *
 * With n = T/C a slice of q us makes q/C tokens, which last q/C * T = n q us for a reader that
 * takes one per T.  When each slice makes tokens for the same time P, q = P/n = P C/T, and a round
 * takes
 *
 *      R = c + sum q = c + P S        c = all switches of a round, S = sum C/T
 *
 * No reader runs out of tokens when P >= R.  In general alpha = R/P = c/P + S: the part min(1,
 * 1/alpha) of the tokens is on time.  So alpha > S always, a target below or at S cannot be kept,
 * and
 *
 *      P = c / (alpha - S)            q = c / (n (alpha - S))
 *
 * is the shortest round that keeps the target (a longer one wastes less on switches, but a first
 * token may then take up to R).  P is at least the longest T, so that each slice has a whole step.
 * No quota is above quota_max_us, which bounds P by quota_max_us * min n: all quotas shrink in
 * proportion then, no other model pays for the largest one, and alpha is what follows.  Quotas are
 * kept in the long run: a slice ends with the step that reaches its quota, and the excess is taken
 * from the next slice. */
typedef struct feasible_slice {
    uint32_t cost_us, period_us; // C and T of the model, neither is 0
    uint32_t switch_us;          // to make it hot, in each round
} feasible_slice;

typedef struct feasible_slices {
    bool kept;               // alpha is at most the target
    uint64_t sum_ppm;        // S
    uint64_t alpha_ppm;      // R / P
    uint64_t attainment_ppm; // min(1, 1 / alpha)
    uint64_t switch_us;      // c
    uint64_t round_us;       // R
    uint64_t lasts_us;       // P: so long do the tokens of one slice last
} feasible_slices;

/* quota_us [n]; n >= 1; the quotas are the best possible ones even when the target is not kept. */
bool feasible_slices_plan(const feasible_slice *slices, uint32_t n, uint64_t alpha_max_ppm,
                          uint32_t quota_max_us, uint32_t *quota_us, feasible_slices *out);

#endif
