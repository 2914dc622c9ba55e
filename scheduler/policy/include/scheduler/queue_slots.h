/* queue_slots.h - slots of the queue, those that are kept for guaranteed shares, and Retry-After.
 *
 * A sequence that runs or waits has a queue slot.  If all slots were open to all, one tenant could
 * fill them, and a guaranteed share of a device would be worth nothing: requests of other tenants
 * would be refused at admission.  So of N slots
 *
 *     N / 4 * percent / (100 * devices)  are kept for each tenant with a share (fixed, burst)
 *     N / 4 * percent / (100 * devices)  for each model with a share, for tenants without one
 *     N / 16                             for requests of the class high
 *
 * each rounded down, and the rest, at least 7/16 of N, is open to all.  Shares of all tenants are
 * at most 100 percent of all devices together, and so are those of all models (config.h).
 *
 * All slots of one request are of one kind: kept for its share while there are enough, else for its
 * class, else open.  Kept slots are not lent: unlike a page, a slot cannot be taken back from a
 * waiting sequence.  When shares change, admitted sequences stay; slots in use beyond the new share
 * count as open.
 *
 * Retry-After is an estimate.  The holding time D of a slot is measured: the slots in use, summed
 * up over time, per end (Little's law).  N open slots then serve a refused request every D / N.
 * Refused requests form a line, of which only the end is known: one number, a time.  Each refusal
 * puts it off by D / N a slot and a quarter of that, and tells the client to come then:
 *
 *     now ......|..|..|..|..|..|..end_us      each | is a refused client that comes back
 *
 * Nothing is stored about a client, and no slot is kept for it.  First tries stay behind the line:
 * they leave as many free slots as come back in the next two seconds, at most a quarter.  A request
 * that says that it is a retry may have any open slot.  A line of more than QUEUE_MAX_S takes no
 * more requests: they get a longer time.
 *
 * Pure; the time is passed in.  The front and the simulator run it.  Thread: its owner. */
#ifndef INFERD_QUEUE_SLOTS_H
#define INFERD_QUEUE_SLOTS_H

#include "inferd/base.h"
#include "scheduler/policy.h"

#define QUEUE_NO_TENANT UINT32_MAX // no tenant

enum {
    QUEUE_MIN_S = 1,
    QUEUE_MAX_S = 60,  // of a request in the line
    QUEUE_FAR_S = 3600 // the longest Retry-After
};

/* -- the line -- */

/* Zeroed at first. */
typedef struct queue_line {
    uint64_t begin_us, end_us;        // the last refused request comes back at end_us
    uint64_t sum_us, n_ends;          // slots * time until the newest end, per ends; the older fade
    uint64_t area_us, noted_us;       // slots * time since the newest end, up to noted_us
    uint64_t burst_us, busy_since_us; // the newest burst of ends; a slot has been in use since
    uint32_t n_used;
} queue_line;

/* n_used slots are in use from now on; `n_ended` have come free just now. */
void queue_line_note(queue_line *l, uint32_t n_used, uint32_t n_ended, uint64_t now_us);
/* Average holding time of a slot; a guess before the first end. */
uint64_t queue_line_held_us(const queue_line *l, uint64_t now_us);
/* The part of the line that comes soon: first tries stay behind it. */
uint64_t queue_line_next_us(const queue_line *l, uint64_t now_us);
/* The part with places in the last second: those clients may not have come, because times are told
 * in whole seconds. */
uint64_t queue_line_late_us(const queue_line *l, uint64_t now_us);
/* Of n_max slots, those that a first try for n of them leaves free. */
uint32_t queue_line_due(const queue_line *l, uint32_t n, uint32_t n_max, uint64_t now_us);
/* In how many microseconds a request for n slots behind the line should come. */
uint64_t queue_line_wait_us(const queue_line *l, uint32_t n, uint32_t n_max, uint64_t now_us);
/* A refused request comes back at end_us, if the line does not end later already. */
void queue_line_put_off(queue_line *l, uint64_t end_us, uint64_t now_us);
/* A request for n slots is refused: its Retry-After.  Above QUEUE_MAX_S it is not in the line. */
uint32_t queue_line_join(queue_line *l, uint32_t n, uint32_t n_max, uint64_t now_us);

/* -- slots -- */

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
    uint32_t n_all, n_kept; // n_kept: sum of all kept
    uint32_t n_used, n_used_kept;
    queue_owner *tenants, *models; // [n_tenants], [n_models] owned
    uint32_t n_tenants, n_models;
    queue_owner urgent;
    queue_line line; // for the open slots
} queue_slots;

void queue_slots_init(queue_slots *p, uint32_t n_all);
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
/* Open slots, and how many of them are in use. */
uint32_t queue_slots_open(const queue_slots *p);
uint32_t queue_slots_open_used(const queue_slots *p);

typedef struct queue_ask {
    queue_asker asker;
    uint32_t n; // slots: a sequence each
    bool again; // it says that it is a retry
} queue_ask;

typedef enum queue_verdict {
    QUEUE_HAS_SLOTS, // they are taken: queue_slots_give gives them back
    QUEUE_FULL,      // come back in *after_s
    QUEUE_NEVER      // more than such a request can ever have
} queue_verdict;

queue_verdict queue_slots_ask(queue_slots *p, const queue_ask *ask, uint64_t now_us,
                              queue_slot *out, uint32_t *after_s);
/* n slots of a kind; false: their sequences never ran, and say nothing about the holding time. */
void queue_slots_give(queue_slots *p, queue_slot at, uint32_t n, bool ended, uint64_t now_us);

#endif
