/* queue_slots.h - slots of the queue, and those that are kept free for guaranteed shares.
 *
 * A sequence that runs or waits has a queue slot.  If all slots were open to all, one tenant could
 * fill them, and a guaranteed share of a device would be worth nothing: requests of other tenants
 * would be refused at admission.  So of N slots
 *
 *     N / 4 * percent / (100 * devices)  are kept for each tenant with a share (fixed, burst)
 *     N / 4 * percent / (100 * devices)  for each model with a share, for tenants without one
 *     N / 16                             for requests of the class high
 *
 * each rounded down, and the rest, at least 7/16 of N, is open to all: for these, reservations
 * decide which request is admitted and what Retry-After the others get.  Shares of all tenants are
 * at most 100 percent of all devices together, and so are those of all models (config.h).
 *
 * All slots of one request are of one kind: kept for its share while there are enough, else for its
 * class, else open.  Kept slots are not lent: unlike a page, a slot cannot be taken back from a
 * waiting sequence.
 *
 * When shares change, admitted sequences stay; slots in use beyond the new share count as open.
 *
 * Reservations: when a client that found the open slots full should ask again to be admitted.
 *
 * Slots come free when sequences end.  The holding time is measured: the slots in use, summed up
 * over the time between two ends, are its average (Little's law), whatever part of them is in use.
 * With N slots held for D on average, the k-th missing slot is expected free after
 *
 *     k * D / N * 2 * (N + 2) / N + max(D / 2, G)
 *
 * (with few slots the average is less reliable, hence N + 2).  The second term is for ends that
 * come in bursts: G is the longest recent time without an end.  A reservation is put where this
 * holds for all of them, before others when they leave room, so clients that were refused at the
 * same time do not come back at the same time.
 *
 * A reservation keeps its slots: a new client is admitted when enough slots are free for all
 * reservations, or will be, after G and at a third of the usual pace, by the time they are due.
 * When sequences end later than they used to, a client with a due reservation gets one of n_spare
 * slots that only reservations may use; those have to come free before anything new is reserved.  A
 * client is recognized by its mark (admission_mark: of its address and body).  A client that comes
 * early counts as new, and keeps its reservation when it is refused.  A reservation that is not
 * used within QUEUE_GRACE_US after its time is dropped.  When more clients wait than are served in
 * QUEUE_MAX_S, the rest get a longer time and no reservation: clients do not wait that long, so
 * their slots would stay empty.
 *
 * Pure; the time is passed in.  The front and the simulator run it.  Thread: its owner. */
#ifndef INFERD_QUEUE_SLOTS_H
#define INFERD_QUEUE_SLOTS_H

#include "inferd/base.h"
#include "scheduler/policy.h"

#define QUEUE_NO_TENANT UINT32_MAX // no tenant

typedef enum queue_kind { QUEUE_OPEN, QUEUE_TENANT, QUEUE_MODEL, QUEUE_URGENT } queue_kind;

/* The kind of slot that a sequence has. */
typedef struct queue_slot {
    queue_kind kind;
    uint32_t idx; // of the tenant or the model
} queue_slot;

/* The request that asks. */
typedef struct queue_asker {
    uint32_t tenant_idx, model_idx; // QUEUE_NO_TENANT: no tenant
    gen_class prio;
} queue_asker;

typedef struct queue_owner {
    uint32_t kept, used;
} queue_owner;

/* Zeroed before queue_slots_init. */
typedef struct queue_slots {
    uint32_t n_all, n_spare; // spare: open slots, only for reservations
    uint32_t n_kept;         // sum of all kept
    uint32_t n_used, n_used_kept;
    queue_owner *tenants, *models; // [n_tenants], [n_models] owned
    uint32_t n_tenants, n_models;
    queue_owner urgent;
} queue_slots;

void queue_slots_init(queue_slots *p, uint32_t n_all, uint32_t n_spare);
void queue_slots_deinit(queue_slots *p);
/* Make room for that many; it never shrinks.  False: no memory, and nothing changed. */
bool queue_slots_grow(queue_slots *p, uint32_t n_tenants, uint32_t n_models);
void queue_slots_clear(queue_slots *p);
/* kind: QUEUE_TENANT or QUEUE_MODEL.  n_devices: of the daemon. */
void queue_slots_keep(queue_slots *p, queue_kind kind, uint32_t idx, const share_spec *share,
                      uint32_t n_devices);

/* The kind with n free slots for this request; QUEUE_OPEN: only open ones are possible. */
queue_slot queue_slots_choose(const queue_slots *p, const queue_asker *asker, uint32_t n);
/* The most slots that one such request can ever have. */
uint32_t queue_slots_most(const queue_slots *p, const queue_asker *asker);
/* No request of this tenant can have a kept slot now; max_class: the best class it may ask for. */
bool queue_slots_none_kept(const queue_slots *p, uint32_t tenant_idx, gen_class max_class);
void queue_slots_take(queue_slots *p, queue_slot at);
void queue_slots_give(queue_slots *p, queue_slot at);

/* Open slots, and how many of them are in use. */
uint32_t queue_slots_open(const queue_slots *p);
uint32_t queue_slots_open_used(const queue_slots *p);

/* -- reservations -- */

enum {
    QUEUE_BURSTS_MAX = 64,  // in the ring that the mean is taken over
    QUEUE_BURST_US = 20000, // ends within this time are one burst
    QUEUE_RESERVATIONS_MAX = 1024,
    QUEUE_MIN_S = 1,
    QUEUE_MAX_S = 60,   // of a reservation
    QUEUE_FAR_S = 3600, // the longest Retry-After
    QUEUE_GRACE_US = 1000000
};

typedef struct queue_reservation {
    uint64_t mark, due_us;
    uint32_t n; // queue slots
} queue_reservation;

/* Zeroed at first. */
typedef struct queue_book {
    uint64_t areas_us[QUEUE_BURSTS_MAX]; // slots * time before each of the newest bursts; a ring
    uint32_t n_ends[QUEUE_BURSTS_MAX];   // of each
    uint64_t sum_us, sum_ends;           // of the ring
    uint64_t n_bursts, burst_us;         // count since the start; begin of the newest
    uint64_t area_us;                    // since the newest end
    uint64_t busy_since_us, noted_us;    // a slot has been in use since; area_us reaches to here
    uint64_t ended_us, gap_us;           // newest end; longest time without one, fading
    uint32_t n_used;
    queue_reservation reservations[QUEUE_RESERVATIONS_MAX]; // [n_reservations] by due_us
    uint32_t n_reservations;
} queue_book;

/* n_used slots are in use from now on; `n_ended` have come free just now. */
void queue_note(queue_book *b, uint32_t n_used, uint32_t n_ended, uint64_t now_us);

/* May a client have n of n_max slots?  Those in use are known from queue_note.  False: it should
 * come back in *after_s; up to QUEUE_MAX_S, that is a reservation.  mark 0: it cannot be
 * recognized, and gets no reservation.  first_try: it says that it comes for no reservation. */
bool queue_admit(queue_book *b, uint64_t mark, bool first_try, uint32_t n, uint32_t n_max,
                 uint32_t n_spare, uint64_t now_us, uint32_t *after_s);
/* The client got its slots elsewhere: drops its reservation that is due first. */
void queue_forget(queue_book *b, uint64_t mark);
/* The client is refused: returns its Retry-After; above QUEUE_MAX_S it has no reservation. */
uint32_t queue_refuse(queue_book *b, uint64_t mark, uint32_t n, uint32_t n_max, uint64_t now_us);
/* Average holding time of a slot; a guess before the first end. */
uint64_t queue_held_us(const queue_book *b, uint64_t now_us);

/* -- one request -- */

typedef struct queue_ask {
    queue_asker asker;
    uint32_t n;    // slots: a sequence each
    uint64_t mark; // queue_admit, like the next
    bool first_try;
} queue_ask;

typedef enum queue_verdict {
    QUEUE_HAS_SLOTS, // they are taken: queue_slots_give and queue_note give them back
    QUEUE_FULL,      // come back in *after_s
    QUEUE_NEVER      // more than such a request can ever have
} queue_verdict;

queue_verdict queue_slots_ask(queue_slots *p, queue_book *b, const queue_ask *ask, uint64_t now_us,
                              queue_slot *out, uint32_t *after_s);

#endif
