/* queue_slots.c - see scheduler/queue_slots.h. */
#include "scheduler/queue_slots.h"

#include <stdlib.h>
#include <string.h>

#define SECOND_US ((uint64_t)1000000)
#define GUESS_US  (4 * SECOND_US)  // of the holding time, before the first end
#define BURST_US  (SECOND_US / 50) // ends within this time are one burst

enum {
    SHARES_PARTS = 4,  // part of all slots for the shares of tenants; as many for those of models
    URGENT_PARTS = 16, // part for urgent requests
    WHOLE_PERCENT = 100,
    ENDS_KEPT = 32,   // the holding time is that of the last 16 to 32 ends
    GUESS_PARTS = 2,  // a running sequence has run for half of its time
    PACE_PARTS = 4,   // a quarter more than the measured time for each slot: it may be growing
    MARGIN_SLOTS = 2, // before the first of the line
    DUE_S = 2,        // the part of the line that first tries stay behind,
    LATE_S = 1,       // a time is told in whole seconds: so late a client may come
    DUE_PARTS = 4     // at most a quarter of the slots is left for retries, rounded up
};

/* ---- the line ---- */

/* A whole batch may end at once: earlier ends fade when it is over, or it would be all of them. */
static void note_ends(queue_line *l, uint32_t n_ended, uint64_t now_us) {
    if (now_us >= l->burst_us + BURST_US) {
        for (; l->n_ends >= ENDS_KEPT; l->n_ends /= 2) l->sum_us /= 2;
        l->burst_us = now_us;
    }
    l->sum_us += l->area_us;
    l->n_ends += n_ended;
    l->area_us = 0;
}

void queue_line_note(queue_line *l, uint32_t n_used, uint32_t n_ended, uint64_t now_us) {
    if (now_us > l->noted_us) l->area_us += l->n_used * (now_us - l->noted_us);
    if (l->n_used == 0) l->busy_since_us = now_us;
    l->noted_us = now_us;
    l->n_used = n_used;
    if (n_ended > 0) note_ends(l, n_ended, now_us);
}

uint64_t queue_line_held_us(const queue_line *l, uint64_t now_us) {
    uint64_t busy_us = now_us > l->busy_since_us ? now_us - l->busy_since_us : 0;
    if (l->n_ends == 0) return u64_max(GUESS_US, GUESS_PARTS * busy_us);
    return u64_max(l->sum_us / l->n_ends, 1);
}

/* Clients with the same Retry-After come at the same moment: a second serves no more than n_max. */
static uint64_t each_us(const queue_line *l, uint32_t n_max, uint64_t now_us) {
    uint64_t held_us = queue_line_held_us(l, now_us);
    return u64_max(held_us + held_us / PACE_PARTS, SECOND_US) / u32_max(n_max, 1);
}

uint64_t queue_line_next_us(const queue_line *l, uint64_t now_us) {
    return u64_min(u64_less(l->end_us, now_us), DUE_S * SECOND_US);
}

uint64_t queue_line_late_us(const queue_line *l, uint64_t now_us) {
    uint64_t from_us = u64_max(l->begin_us, u64_less(now_us, LATE_S * SECOND_US));
    return u64_less(u64_min(l->end_us, now_us), from_us);
}

uint32_t queue_line_due(const queue_line *l, uint32_t n, uint32_t n_max, uint64_t now_us) {
    uint64_t each = each_us(l, n_max, now_us), us = queue_line_next_us(l, now_us);
    uint32_t most = (n_max + DUE_PARTS - 2) / DUE_PARTS; // none of one slot
    return u32_min((uint32_t)u64_min((us + each - 1) / each, most), u32_less(n_max, n));
}

void queue_line_put_off(queue_line *l, uint64_t end_us, uint64_t now_us) {
    if (l->end_us + LATE_S * SECOND_US <= now_us) l->begin_us = now_us;
    l->end_us = u64_max(l->end_us, end_us);
}

uint64_t queue_line_wait_us(const queue_line *l, uint32_t n, uint32_t n_max, uint64_t now_us) {
    uint64_t each = each_us(l, n_max, now_us);
    return u64_max(l->end_us, now_us + MARGIN_SLOTS * each) + n * each - now_us;
}

uint32_t queue_line_join(queue_line *l, uint32_t n, uint32_t n_max, uint64_t now_us) {
    uint64_t wait_us = queue_line_wait_us(l, n, n_max, now_us);
    uint64_t after_s = (wait_us + SECOND_US - 1) / SECOND_US;
    if (after_s > QUEUE_FAR_S) return QUEUE_FAR_S;
    if (after_s <= QUEUE_MAX_S) queue_line_put_off(l, now_us + wait_us, now_us);
    return u32_max((uint32_t)after_s, QUEUE_MIN_S);
}

/* ---- slots ---- */

void queue_slots_init(queue_slots *p, uint32_t n_all) {
    p->n_all = n_all;
    p->n_kept = p->urgent.kept = n_all / URGENT_PARTS;
}

void queue_slots_deinit(queue_slots *p) {
    free(p->tenants);
    free(p->models);
    *p = (queue_slots){0};
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

bool queue_slots_grow(queue_slots *p, uint32_t n_tenants, uint32_t n_models) {
    return grow(&p->tenants, &p->n_tenants, n_tenants) && grow(&p->models, &p->n_models, n_models);
}

uint32_t queue_slots_open(const queue_slots *p) {
    return p->n_all - p->n_kept;
}

uint32_t queue_slots_open_used(const queue_slots *p) {
    return p->n_used - p->n_used_kept;
}

static uint32_t used_kept(const queue_owner *o) {
    return u32_min(o->used, o->kept);
}

static void keep(queue_slots *p, queue_owner *o, uint32_t n) {
    p->n_kept -= o->kept;
    p->n_used_kept -= used_kept(o);
    o->kept = n;
    p->n_kept += o->kept;
    p->n_used_kept += used_kept(o);
}

void queue_slots_clear(queue_slots *p) {
    for (uint32_t i = 0; i < p->n_tenants; i++) keep(p, &p->tenants[i], 0);
    for (uint32_t i = 0; i < p->n_models; i++) keep(p, &p->models[i], 0);
}

/* NULL: the open slots. */
static queue_owner *owner_at(const queue_slots *p, queue_slot at) {
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

void queue_slots_keep(queue_slots *p, queue_kind kind, uint32_t idx, const share_spec *share,
                      uint32_t n_devices) {
    uint64_t n = share->policy == SHARE_BESTEFFORT ? 0 : share->percent;
    n = n * p->n_all / ((uint64_t)SHARES_PARTS * WHOLE_PERCENT * u32_max(n_devices, 1));
    keep(p, owner_at(p, (queue_slot){kind, idx}), (uint32_t)n);
}

/* The slots of its share: the tenant's, or else the model's.  QUEUE_OPEN: it has no share. */
static queue_slot slot_of_share(const queue_slots *p, const queue_asker *asker) {
    if (asker->tenant_idx < p->n_tenants && p->tenants[asker->tenant_idx].kept > 0)
        return (queue_slot){QUEUE_TENANT, asker->tenant_idx};
    if (asker->model_idx < p->n_models && p->models[asker->model_idx].kept > 0)
        return (queue_slot){QUEUE_MODEL, asker->model_idx};
    return (queue_slot){QUEUE_OPEN, 0};
}

/* A share that grew while all slots are in use has to wait until a sequence ends. */
static bool has(const queue_slots *p, const queue_owner *o, uint32_t n) {
    return o != NULL && (uint64_t)o->used + n <= o->kept && (uint64_t)p->n_used + n <= p->n_all;
}

queue_slot queue_slots_choose(const queue_slots *p, const queue_asker *asker, uint32_t n) {
    queue_slot at = slot_of_share(p, asker);
    if (has(p, owner_at(p, at), n)) return at;
    if (asker->prio <= GEN_HIGH && has(p, &p->urgent, n)) return (queue_slot){QUEUE_URGENT, 0};
    return (queue_slot){QUEUE_OPEN, 0};
}

uint32_t queue_slots_most(const queue_slots *p, const queue_asker *asker) {
    const queue_owner *o = owner_at(p, slot_of_share(p, asker));
    uint32_t n = queue_slots_open(p);
    if (o != NULL) n = u32_max(n, o->kept);
    if (asker->prio <= GEN_HIGH) n = u32_max(n, p->urgent.kept);
    return n;
}

bool queue_slots_none_kept(const queue_slots *p, uint32_t tenant_idx, gen_class max_class) {
    queue_asker asker = {tenant_idx, QUEUE_NO_TENANT, max_class};
    if (queue_slots_choose(p, &asker, 1).kind != QUEUE_OPEN) return false;
    if (slot_of_share(p, &asker).kind == QUEUE_TENANT)
        return true; // and it uses no slots of models
    for (uint32_t i = 0; i < p->n_models; i++)
        if (has(p, &p->models[i], 1)) return false;
    return true;
}

static void use(queue_slots *p, queue_slot at, int32_t by) {
    queue_owner *o = owner_at(p, at);
    p->n_used += (uint32_t)by;
    if (o == NULL) return;
    p->n_used_kept -= used_kept(o);
    o->used += (uint32_t)by;
    p->n_used_kept += used_kept(o);
}

static bool has_open(const queue_slots *p, const queue_ask *ask, uint64_t now_us) {
    uint32_t n_open = queue_slots_open(p);
    uint64_t n = queue_slots_open_used(p) + (uint64_t)ask->n;
    if (!ask->again) n += queue_line_due(&p->line, ask->n, n_open, now_us);
    return n <= n_open;
}

queue_verdict queue_slots_ask(queue_slots *p, const queue_ask *ask, uint64_t now_us,
                              queue_slot *out, uint32_t *after_s) {
    if (ask->n > queue_slots_most(p, &ask->asker)) return QUEUE_NEVER;
    *out = queue_slots_choose(p, &ask->asker, ask->n);
    if (out->kind == QUEUE_OPEN && !has_open(p, ask, now_us)) {
        *after_s = queue_line_join(&p->line, ask->n, queue_slots_open(p), now_us);
        return QUEUE_FULL;
    }
    use(p, *out, (int32_t)ask->n);
    queue_line_note(&p->line, queue_slots_open_used(p), 0, now_us);
    return QUEUE_HAS_SLOTS;
}

void queue_slots_give(queue_slots *p, queue_slot at, uint32_t n, bool ended, uint64_t now_us) {
    uint32_t n_before = queue_slots_open_used(p);
    use(p, at, -(int32_t)n);
    uint32_t n_left = queue_slots_open_used(p);
    queue_line_note(&p->line, n_left, ended ? n_before - n_left : 0, now_us);
}
