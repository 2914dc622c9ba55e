/* queue_places.h - slots of the queue, and those that are kept free for guaranteed shares.
 *
 * A sequence that runs or waits has a queue slot.  If all slots were open to all, one tenant could
 * fill them, and a guaranteed share of a device would be worth nothing: requests of other tenants
 * would be refused at admission.  So of N slots
 *
 *     N / 4 * percent / (100 * devices)  are kept for each tenant with a share (fixed, burst)
 *     N / 4 * percent / (100 * devices)  for each model with a share, for tenants without one
 *     N / 16                             for requests of the class high
 *
 * each rounded down, and the rest, at least 7/16 of N, is open to all: for these, drain.h decides
 * which request is admitted and what Retry-After the others get.  Shares of all tenants are at most
 * 100 percent of all devices together, and so are those of all models (config.h).
 *
 * All slots of one request are of one kind: kept for its share while there are enough, else for its
 * class, else open.  Kept slots are not lent: unlike a page, a slot cannot be taken back from a
 * waiting sequence.
 *
 * When shares change, admitted sequences stay.  Slots in use beyond the new share count as open
 * ones.
 *
 * The front runs it, and so does the simulator.  Pure.  Thread: its owner. */
#ifndef INFERD_QUEUE_PLACES_H
#define INFERD_QUEUE_PLACES_H

#include "inferd/base.h"
#include "scheduler/policy.h"

#define QUEUE_NOBODY UINT32_MAX // no tenant

typedef enum queue_kind { QUEUE_OPEN, QUEUE_TENANT, QUEUE_MODEL, QUEUE_URGENT } queue_kind;

/* The kind of slot that a sequence has. */
typedef struct queue_place {
    queue_kind kind;
    uint32_t idx; // of the tenant or the model
} queue_place;

/* The request that asks. */
typedef struct queue_asker {
    uint32_t tenant_idx, model_idx; // QUEUE_NOBODY: no tenant
    gen_class prio;
} queue_asker;

typedef struct queue_owner {
    uint32_t kept, used;
} queue_owner;

/* Zeroed before queue_places_init. */
typedef struct queue_places {
    uint32_t n_all, n_spare; // spare: open slots, only for reservations (drain.h)
    uint32_t n_kept;         // sum of all kept
    uint32_t n_used, n_used_kept;
    queue_owner *tenants, *models; // [n_tenants], [n_models] owned
    uint32_t n_tenants, n_models;
    queue_owner urgent;
} queue_places;

void queue_places_init(queue_places *p, uint32_t n_all, uint32_t n_spare);
void queue_places_deinit(queue_places *p);
/* Make room for that many; it never shrinks.  False: no memory, and nothing changed. */
bool queue_places_grow(queue_places *p, uint32_t n_tenants, uint32_t n_models);
/* From now on no tenant or model has a share. */
void queue_places_clear(queue_places *p);
/* kind: QUEUE_TENANT or QUEUE_MODEL.  n_devices: of the daemon. */
void queue_places_keep(queue_places *p, queue_kind kind, uint32_t idx, const share_spec *share,
                       uint32_t n_devices);

/* The kind with n free slots for this request; QUEUE_OPEN: only open ones are possible. */
queue_place queue_places_choose(const queue_places *p, const queue_asker *who, uint32_t n);
/* The most slots that one such request can ever have. */
uint32_t queue_places_most(const queue_places *p, const queue_asker *who);
/* No request of this tenant can have a kept slot now; max_class: the best class it may ask for. */
bool queue_places_none_kept(const queue_places *p, uint32_t tenant_idx, gen_class max_class);
void queue_places_take(queue_places *p, queue_place at);
void queue_places_give(queue_places *p, queue_place at);

/* Open slots, and how many of them are in use. */
static inline uint32_t queue_places_open(const queue_places *p) {
    return p->n_all - p->n_kept;
}
static inline uint32_t queue_places_open_used(const queue_places *p) {
    return p->n_used - p->n_used_kept;
}

#endif
