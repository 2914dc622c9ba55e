/* sched_state.h - what the files of the scheduler share: its state, and the steps of a sequence's
 * life that more than one of them takes.
 *
 *     sched.c         submission, cancellation, ends, last events
 *     sched_share.c   whose turn it is, and who pays
 *     sched_plan.c    who computes what; admission and preemption
 *     sched_time.c    targets that could not be kept
 *     sched_memory.c  guarantees and ceilings of memory
 *     sched_park.c    cached blocks in host memory
 *     sched_commit.c  what a finished step changed
 *     sched_verify.c  the books
 *
 * Thread: engine. */
#ifndef INFERD_SCHED_STATE_H
#define INFERD_SCHED_STATE_H

#include "rate.h"
#include "scheduler/feasible.h"
#include "scheduler.h"
#include "seq.h"
#include "share.h"

typedef struct sched_model {
    bool open, hot, failed;
    bool closed;          // nobody who waits starts
    inferd_err why;       // failed
    uint64_t retry_at_us; // of that
    sched_model_spec spec;
    struct sched *s; // of which it is one
    kv kv;
    prefix prefix;
    bool parks;          // has the next two
    kv parked_kv;        // blocks in host memory
    prefix parked;       // all of them are cached
    kv_table park_table; // of one block, scratch
    rate rate;
    uint32_t n_seqs;  // waiting and running
    uint32_t n_ended; // whose last event was not sent, or that an unfinished step names
    uint32_t n_running;
    uint32_t n_steps;   // unfinished ones
    uint64_t device_us; // of those finished
    share_account share;
    uint64_t ttft_us, tpot_us; // what its requests wish for; 0: nothing
    uint64_t due_us;           // scratch of sched_choose: its earliest deadline
    uint64_t tried_plan;       // number of the plan that last looked at it,
    uint32_t tried_tiers;      // and for which tiers in vain, as bits
} sched_model;

/* What a tenant may have, and has: time, and keys and values. */
typedef struct sched_tenant {
    share_account share;
    uint64_t used_bytes;           // of blocks that its sequences count on
    uint64_t min_bytes, max_bytes; // guarantee, and ceiling (UINT64_MAX: none)
} sched_tenant;

/* A tenant's work for one model. */
typedef struct principal {
    list_node idle; // in sched.idle_principals or sched.active_principals
    uint32_t tenant, model;
    uint32_t n_seqs;     // waiting and running
    uint32_t next;       // in its bucket
    uint64_t virtual_us; // device time it got, by weight; the smallest goes first among equals
    bool used;
} principal;

#define PRINCIPAL_NONE UINT32_MAX

typedef enum sched_tier { TIER_ENTITLED, TIER_SURPLUS, TIER_NONE } sched_tier;

/* Whose turn it is, and why. */
typedef struct sched_choice {
    sched_model *m;
    sched_tier tier;
    bool floor; // its class got less than its floor
    bool late;
    uint32_t class;
    uint64_t deadline_us; // urgent: of its next token; 0: not urgent
    uint64_t due_us;      // the earliest deadline of anybody, urgent or not; 0: none
    uint64_t virtual_us;
} sched_choice;

struct sched {
    sched_limits limits;
    pool *pool; // borrowed
    sched_emit *emit;
    void *emit_ctx;
    sched_move *move; // NULL: nothing is parked
    void *move_ctx;
    pool *host;             // where parked pages are; the same one where there is one memory
    uint64_t move_us;       // of one block, fading; 0: none was moved yet
    sched_reclaim *reclaim; // NULL: none
    void *reclaim_ctx;
    sched_model *models; // [n_models] owned
    uint32_t n_models;

    seq *seqs; // [n_seqs] all there are; owned
    uint32_t n_seqs;
    list_node free, waiting, running, ended;
    uint32_t n_waiting, n_running, n_ended, n_unsent;
    seq **order; // [n_seqs] scratch of a plan; owned

    uint32_t next_drop; // the model whose cached blocks go first next time
    uint64_t plan_no, next_arrival_no;
    uint64_t next_deadline_us; // not later than the earliest deadline of any sequence
    uint64_t relief_epoch;     // newest step that pages of a preempted sequence wait for
    sched_tenant *tenants;     // [n_tenants] by number; owned
    uint64_t unfilled_bytes;   // sum over tenants of max(0, min - used)
    uint64_t page_bytes;       // 0: no tenant has a guarantee
    uint32_t n_tenants;
    principal *principals;       // [n_principals] owned
    uint32_t *principal_buckets; // [n_principals] first of each, by hash; owned
    uint32_t n_principals;
    list_node idle_principals, active_principals; // idle: the one idle for longest first
    share_account floors[GEN_CLASSES];
    uint64_t virtual_us;     // of the principal served last: newcomers start here
    uint64_t typical_us;     // of a step, fading
    uint64_t share_ready_us; // when somebody whose share is used up may go on; UINT64_MAX: never
    uint64_t charged_us, waste_us; // of all steps
    sched_counters counters;       // those that only grow
};

static inline rate_work step_work(const step *st) {
    return (rate_work){st->b.n_rows, st->b.n_logits, st->n_attended};
}

static inline sched_model *seq_model(sched *s, const seq *q) {
    return &s->models[q->model_idx];
}

/* The sequence ends: blocks go back behind its last step, its last event is ready. */
void sched_end_seq(sched *s, seq *q, gen_finish finish, tok_id stop_id, inferd_status status,
                   const char *text, uint64_t now_us);
/* -- sched_share.c -- */
bool sched_init_principals(sched *s); // false: no memory
void sched_join_principal(sched *s, seq *q);
void sched_leave_principal(sched *s, seq *q);
bool sched_choose(sched *s, uint64_t now_us, sched_choice *out);
sched_tier sched_tier_of(sched *s, const seq *q, uint64_t now_us);
void sched_charge(sched *s, const step *st, uint64_t us);

/* -- sched_time.c -- */
/* The tasks that run, with one more (NULL: without). */
void sched_get_load(const sched *s, const seq *newcomer, feasible_load *out);
inferd_status sched_admit_time(const sched *s, const seq *q, inferd_err *err);

/* -- sched_memory.c -- */
void sched_on_live(void *ctx, uint32_t tenant, bool live); // of a sched_model's kv
/* Pages that this sequence's tenant leaves to the guarantees of others are not taken from now on.
 */
void sched_reserve_for(sched *s, const seq *q); // NULL: nobody's
/* The ceiling of its tenant, or of its model, leaves no room for another block. */
bool sched_tenant_is_full(const sched *s, const seq *q, uint32_t n_blocks);
bool sched_model_is_full(const sched *s, const seq *q);
/* Would it ever fit what its tenant may have? */
inferd_status sched_admit_tenant(const sched *s, const seq *q, inferd_err *err);
/* Its tenant, or its model, has less than it was guaranteed. */
bool sched_is_owed(const sched *s, const seq *q);

/* -- sched_park.c -- */
inferd_status sched_open_park(sched *s, sched_model *m, inferd_err *err);
void sched_close_park(sched_model *m);
/* One cached block of the model makes room, parked first where that pays; false: there is none. */
bool sched_evict_block(sched *s, sched_model *m);
/* Bring parked blocks of a running sequence back that has computed whole blocks so far, at most n;
 * how many. */
uint32_t sched_unpark(sched *s, seq *q, uint32_t n);

/* -- sched_plan.c -- */
/* The class it counts as now: one more urgent per starvation_us without a row. */
uint32_t sched_class_now(const sched *s, const seq *q, uint64_t now_us);
/* Pages that its known tokens and the look-ahead of an admission need. */
uint32_t sched_pages_to_start(const sched *s, const seq *q);
/* WAITING and free to go. */
bool sched_can_start(const sched *s, const seq *q);

/* RUNNING -> WAITING: it keeps its tokens and its place in the order. */
void sched_preempt_seq(sched *s, seq *q);

#endif
