/* queue_places.c - see scheduler/queue_places.h. */
#include "scheduler/queue_places.h"

#include <stdlib.h>
#include <string.h>

enum {
    SHARES_PARTS = 4,  // part of all slots for the shares of tenants; as many for those of models
    URGENT_PARTS = 16, // part for urgent requests
    WHOLE_PERCENT = 100
};

void queue_places_init(queue_places *p, uint32_t n_all, uint32_t n_spare) {
    p->n_all = n_all;
    p->n_spare = n_spare;
    p->n_kept = p->urgent.kept = n_all / URGENT_PARTS;
}

void queue_places_deinit(queue_places *p) {
    free(p->tenants);
    free(p->models);
    *p = (queue_places){0};
}

static bool grow(queue_owner **owners, uint32_t *n, uint32_t n_wanted) {
    if (n_wanted <= *n) return true;
    queue_owner *more = realloc(*owners, n_wanted * sizeof *more);
    if (more == NULL) return false;
    memset(more + *n, 0, (n_wanted - *n) * sizeof *more);
    *owners = more;
    *n = n_wanted;
    return true;
}

bool queue_places_grow(queue_places *p, uint32_t n_tenants, uint32_t n_models) {
    return grow(&p->tenants, &p->n_tenants, n_tenants) && grow(&p->models, &p->n_models, n_models);
}

static uint32_t used_kept(const queue_owner *o) {
    return u32_min(o->used, o->kept);
}

static void keep(queue_places *p, queue_owner *o, uint32_t n) {
    p->n_kept -= o->kept;
    p->n_used_kept -= used_kept(o);
    o->kept = n;
    p->n_kept += o->kept;
    p->n_used_kept += used_kept(o);
}

void queue_places_clear(queue_places *p) {
    for (uint32_t i = 0; i < p->n_tenants; i++) keep(p, &p->tenants[i], 0);
    for (uint32_t i = 0; i < p->n_models; i++) keep(p, &p->models[i], 0);
}

/* NULL: the open slots. */
static queue_owner *owner_at(const queue_places *p, queue_place at) {
    switch (at.kind) {
    case QUEUE_TENANT:
        return &p->tenants[at.idx];
    case QUEUE_MODEL:
        return &p->models[at.idx];
    case QUEUE_URGENT:
        return (queue_owner *)&p->urgent;
    case QUEUE_OPEN:
        break;
    }
    return NULL;
}

void queue_places_keep(queue_places *p, queue_kind kind, uint32_t idx, const share_spec *share,
                       uint32_t n_devices) {
    uint64_t n = share->policy == SHARE_BESTEFFORT ? 0 : share->percent;
    n = n * p->n_all / ((uint64_t)SHARES_PARTS * WHOLE_PERCENT * u32_max(n_devices, 1));
    keep(p, owner_at(p, (queue_place){kind, idx}), (uint32_t)n);
}

/* The slots of its share: the tenant's, or else the model's.  QUEUE_OPEN: it has no share. */
static queue_place place_of_share(const queue_places *p, const queue_asker *who) {
    if (who->tenant_idx < p->n_tenants && p->tenants[who->tenant_idx].kept > 0)
        return (queue_place){QUEUE_TENANT, who->tenant_idx};
    if (who->model_idx < p->n_models && p->models[who->model_idx].kept > 0)
        return (queue_place){QUEUE_MODEL, who->model_idx};
    return (queue_place){QUEUE_OPEN, 0};
}

/* A share that grew while all slots are in use has to wait until a sequence ends. */
static bool has(const queue_places *p, const queue_owner *o, uint32_t n) {
    return o != NULL && (uint64_t)o->used + n <= o->kept &&
           (uint64_t)p->n_used + n <= p->n_all + p->n_spare;
}

queue_place queue_places_choose(const queue_places *p, const queue_asker *who, uint32_t n) {
    queue_place at = place_of_share(p, who);
    if (has(p, owner_at(p, at), n)) return at;
    if (who->prio <= GEN_HIGH && has(p, &p->urgent, n)) return (queue_place){QUEUE_URGENT, 0};
    return (queue_place){QUEUE_OPEN, 0};
}

uint32_t queue_places_most(const queue_places *p, const queue_asker *who) {
    const queue_owner *o = owner_at(p, place_of_share(p, who));
    uint32_t n = queue_places_open(p);
    if (o != NULL) n = u32_max(n, o->kept);
    if (who->prio <= GEN_HIGH) n = u32_max(n, p->urgent.kept);
    return n;
}

bool queue_places_none_kept(const queue_places *p, uint32_t tenant_idx, gen_class max_class) {
    queue_asker who = {tenant_idx, QUEUE_NOBODY, max_class};
    if (queue_places_choose(p, &who, 1).kind != QUEUE_OPEN) return false;
    if (place_of_share(p, &who).kind == QUEUE_TENANT) return true; // and it uses no slots of models
    for (uint32_t i = 0; i < p->n_models; i++)
        if (has(p, &p->models[i], 1)) return false;
    return true;
}

void queue_places_take(queue_places *p, queue_place at) {
    queue_owner *o = owner_at(p, at);
    p->n_used++;
    if (o == NULL) return;
    p->n_used_kept -= used_kept(o);
    o->used++;
    p->n_used_kept += used_kept(o);
}

void queue_places_give(queue_places *p, queue_place at) {
    queue_owner *o = owner_at(p, at);
    p->n_used--;
    if (o == NULL) return;
    p->n_used_kept -= used_kept(o);
    o->used--;
    p->n_used_kept += used_kept(o);
}
