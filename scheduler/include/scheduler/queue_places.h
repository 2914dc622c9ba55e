/* queue_places.h - places of the queue, and those that are kept free for whoever was promised time.
 *
 * A sequence that runs or waits has a place.  If all were for everybody, one tenant could fill
 * them, and a share of a device would be worth nothing to others, who are sent away at the door. So
 * of N
 *
 *     N / 4 * percent / (100 * devices)    are kept for each tenant with a share (fixed, burst),
 *     N / 4 * percent / (100 * devices)    for each model with one, for those whose tenant has
 * none, N / 16                               for requests of the class high,
 *
 * each rounded down, and the rest, at least 7/16 of them, is everybody's: there drain.h decides who
 * comes in and what is told to the others.  Shares of all tenants are at most 100 percent of all
 * devices together, and so are those of all models (config.h).
 *
 * All places of one request are of one kind: those kept for its share while there are enough, else
 * those of its class, else everybody's.  Kept places are not lent: whoever waits cannot be asked to
 * leave, as a page can.
 *
 * When shares change, whoever is in stays.  Who then has more than is kept for him has the rest of
 * it among everybody's.
 *
 * The front runs it, and so does the simulator.  Pure.  Thread: that of its owner. */
#ifndef INFERD_QUEUE_PLACES_H
#define INFERD_QUEUE_PLACES_H

#include "inferd/base.h"
#include "scheduler/policy.h"

#define QUEUE_NOBODY UINT32_MAX // no tenant

typedef enum queue_kind { QUEUE_OPEN, QUEUE_TENANT, QUEUE_MODEL, QUEUE_URGENT } queue_kind;

/* Where a sequence has its place. */
typedef struct queue_place {
    queue_kind kind;
    uint32_t idx; // of the tenant, of the model
} queue_place;

/* Who asks. */
typedef struct queue_asker {
    uint32_t tenant_idx, model_idx; // QUEUE_NOBODY: without a tenant
    gen_class class;
} queue_asker;

typedef struct queue_owner {
    uint32_t kept, used;
} queue_owner;

/* Zeroed before queue_places_init. */
typedef struct queue_places {
    uint32_t n_all, n_spare; // spare: everybody's, for promises only (drain.h)
    uint32_t n_kept;         // of all
    uint32_t n_used, n_used_kept;
    queue_owner *tenants, *models; // [n_tenants], [n_models] owned
    uint32_t n_tenants, n_models;
    queue_owner urgent;
} queue_places;

void queue_places_init(queue_places *p, uint32_t n_all, uint32_t n_spare);
void queue_places_deinit(queue_places *p);
/* Room for so many; it never shrinks.  False: no memory, and nothing changed. */
bool queue_places_grow(queue_places *p, uint32_t n_tenants, uint32_t n_models);
/* From now on nobody has a share. */
void queue_places_clear(queue_places *p);
/* kind: QUEUE_TENANT or QUEUE_MODEL.  n_devices: of the daemon. */
void queue_places_keep(queue_places *p, queue_kind kind, uint32_t idx, const share_spec *share,
                       uint32_t n_devices);

/* Where n places are free for this one; QUEUE_OPEN: only there they may be. */
queue_place queue_places_choose(const queue_places *p, const queue_asker *who, uint32_t n);
/* As many as one request of this one can ever have. */
uint32_t queue_places_most(const queue_places *p, const queue_asker *who);
/* No request of this tenant can have a place that is kept; max_class: the best it may ask for. */
bool queue_places_none_kept(const queue_places *p, uint32_t tenant_idx, gen_class max_class);
void queue_places_take(queue_places *p, queue_place at);
void queue_places_give(queue_places *p, queue_place at);

/* Everybody's places, and how many of them are in use. */
static inline uint32_t queue_places_open(const queue_places *p) {
    return p->n_all - p->n_kept;
}
static inline uint32_t queue_places_open_used(const queue_places *p) {
    return p->n_used - p->n_used_kept;
}

#endif
