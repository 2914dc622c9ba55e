/* queue_slots.c - see scheduler/queue_slots.h. */
#include "scheduler/queue_slots.h"

#include <stdlib.h>
#include <string.h>

#define SECOND_US ((uint64_t)1000000)
#define FADE_ONE  ((uint64_t)1024)
#define GUESS_US  (4 * SECOND_US) // ... and at least that: a guess before the first end

enum {
    MARGIN_TOP = 2, // 2 / 1: a margin on the time for k ends
    MARGIN_BOTTOM = 1,
    MARGIN_SLOTS = 2, // as if that many more slots had to come free
    BURST_PARTS = 2,  // and half of the holding time, for bursts
    GUESS_PARTS = 2,  // a running sequence has run for half of its time ...
    FADE_PARTS = 4,   // a gap is forgotten after that many holding times
    PACE_DIVISOR = 3  // new clients count on a third of the usual pace
};
enum {
    SHARES_PARTS = 4,  // part of all slots for the shares of tenants; as many for those of models
    URGENT_PARTS = 16, // part for urgent requests
    WHOLE_PERCENT = 100
};

void queue_slots_init(queue_slots *p, uint32_t n_all, uint32_t n_spare) {
    p->n_all = n_all;
    p->n_spare = n_spare;
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
    return o != NULL && (uint64_t)o->used + n <= o->kept &&
           (uint64_t)p->n_used + n <= p->n_all + p->n_spare;
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

void queue_slots_take(queue_slots *p, queue_slot at) {
    queue_owner *o = owner_at(p, at);
    p->n_used++;
    if (o == NULL) return;
    p->n_used_kept -= used_kept(o);
    o->used++;
    p->n_used_kept += used_kept(o);
}

void queue_slots_give(queue_slots *p, queue_slot at) {
    queue_owner *o = owner_at(p, at);
    p->n_used--;
    if (o == NULL) return;
    p->n_used_kept -= used_kept(o);
    o->used--;
    p->n_used_kept += used_kept(o);
}

/* ---- when to come back ---- */

static void note_gap(queue_book *b, uint64_t now_us);

/* A whole batch may end at once: its ends count as one burst, or they would fill the ring. */
static void note_ends(queue_book *b, uint32_t n_ended, uint64_t now_us) {
    if (b->n_bursts == 0 || now_us >= b->burst_us + QUEUE_BURST_US) {
        uint32_t oldest = (uint32_t)(b->n_bursts++ % QUEUE_BURSTS_MAX);
        b->sum_us -= b->areas_us[oldest];
        b->sum_ends -= b->n_ends[oldest];
        b->areas_us[oldest] = 0;
        b->n_ends[oldest] = 0;
        b->burst_us = now_us;
    }
    uint32_t newest = (uint32_t)((b->n_bursts - 1) % QUEUE_BURSTS_MAX);
    b->sum_us += b->area_us;
    b->sum_ends += n_ended;
    b->areas_us[newest] += b->area_us;
    b->n_ends[newest] += n_ended;
    b->area_us = 0;
}

void queue_note(queue_book *b, uint32_t n_used, uint32_t n_ended, uint64_t now_us) {
    if (now_us > b->noted_us) b->area_us += b->n_used * (now_us - b->noted_us);
    if (n_ended > 0) note_gap(b, now_us);
    if (b->n_used == 0) b->busy_since_us = now_us;
    b->noted_us = now_us;
    b->n_used = n_used;
    if (n_ended > 0) note_ends(b, n_ended, now_us);
}

/* ---- time ---- */

uint64_t queue_held_us(const queue_book *b, uint64_t now_us) {
    uint64_t busy_us = now_us > b->busy_since_us ? now_us - b->busy_since_us : 0;
    uint64_t us = b->sum_ends > 0 ? b->sum_us / b->sum_ends : GUESS_US;
    if (b->sum_ends == 0 && GUESS_PARTS * busy_us > us) us = GUESS_PARTS * busy_us;
    return us > 0 ? us : 1;
}

/* A time without an end is over; ends at the same moment leave no gap. */
static void note_gap(queue_book *b, uint64_t now_us) {
    uint64_t from_us = b->ended_us > b->busy_since_us ? b->ended_us : b->busy_since_us;
    uint64_t us = now_us > from_us ? now_us - from_us : 0;
    uint64_t parts = us * FADE_ONE / (FADE_PARTS * queue_held_us(b, now_us));
    b->gap_us = parts < FADE_ONE ? b->gap_us - b->gap_us / FADE_ONE * parts : 0;
    if (us > b->gap_us) b->gap_us = us;
    b->ended_us = now_us;
}

/* ---- reservations ---- */

static void forget(queue_book *b, uint32_t i) {
    b->n_reservations--;
    memmove(&b->reservations[i], &b->reservations[i + 1],
            (b->n_reservations - i) * sizeof b->reservations[0]);
}

static void forget_old(queue_book *b, uint64_t now_us) {
    uint32_t n = 0;
    while (n < b->n_reservations && b->reservations[n].due_us + QUEUE_GRACE_US < now_us) n++;
    b->n_reservations -= n;
    memmove(&b->reservations[0], &b->reservations[n],
            b->n_reservations * sizeof b->reservations[0]);
}

static void reserve(queue_book *b, uint64_t mark, uint32_t n, uint64_t due_us) {
    uint32_t i = b->n_reservations++;
    for (; i > 0 && b->reservations[i - 1].due_us > due_us; i--)
        b->reservations[i] = b->reservations[i - 1];
    b->reservations[i] = (queue_reservation){mark, due_us, n};
}

static uint32_t seconds_of(uint64_t us) {
    uint64_t s = (us + SECOND_US - 1) / SECOND_US;
    return s < QUEUE_MIN_S ? QUEUE_MIN_S : s > QUEUE_FAR_S ? QUEUE_FAR_S : (uint32_t)s;
}

static uint32_t n_free_of(const queue_book *b, uint32_t n_max) {
    return b->n_used < n_max ? n_max - b->n_used : 0;
}

/* When will n more slots be free, beside those of the reservations before and after?
 *
 *     slots free now + (time - max(D/2, G)) / (D/N * 2 * (N+2)/N)  >=  slots reserved until then
 *
 * holds for all reservations with the new one in front of them.  Spare slots in use have to come
 * free before any other does. */
static uint64_t due_of(const queue_book *b, uint32_t n, uint32_t n_max, uint64_t now_us) {
    uint64_t held_us = queue_held_us(b, now_us), n_free = n_free_of(b, n_max);
    uint64_t alone = n + (b->n_used > n_max ? b->n_used - n_max : 0), wanted = alone;
    uint64_t each_us = held_us * MARGIN_TOP / MARGIN_BOTTOM / n_max;
    each_us += each_us * MARGIN_SLOTS / n_max;
    uint64_t burst_us = held_us / BURST_PARTS > b->gap_us ? held_us / BURST_PARTS : b->gap_us;
    uint64_t from_us = now_us + burst_us, due_us = from_us;
    for (uint32_t i = 0; i < b->n_reservations; i++) {
        const queue_reservation *p = &b->reservations[i];
        wanted += p->n;
        uint64_t all_us = from_us + (wanted > n_free ? (wanted - n_free) * each_us : 0);
        /* Not before a reservation that would then be late, but behind it, after both. */
        if (p->due_us < all_us || p->due_us <= due_us) due_us = all_us;
    }
    uint64_t alone_us = from_us + (alone > n_free ? (alone - n_free) * each_us : 0);
    return due_us > alone_us ? due_us : alone_us;
}

/* Clients with the same time come at the same moment, and then there are n_max slots, however short
 * each is held.  Returns the first second from after_s at which no more than that come so close
 * together that none of them has ended. */
static uint32_t avoid_crowds(const queue_book *b, uint32_t after_s, uint32_t n, uint32_t n_max,
                             uint64_t now_us) {
    uint64_t held_us = queue_held_us(b, now_us),
             near_us = held_us < SECOND_US ? held_us : SECOND_US;
    uint32_t first = 0;
    for (; after_s <= QUEUE_MAX_S; after_s++) {
        uint64_t at_us = now_us + after_s * SECOND_US, together = n;
        while (first < b->n_reservations && b->reservations[first].due_us + near_us <= at_us)
            first++;
        for (uint32_t i = first;
             i < b->n_reservations && b->reservations[i].due_us < at_us + near_us; i++)
            together += b->reservations[i].n;
        if (together <= n_max || together == n) return after_s;
    }
    return after_s;
}

uint32_t queue_refuse(queue_book *b, uint64_t mark, uint32_t n, uint32_t n_max, uint64_t now_us) {
    forget_old(b, now_us);
    uint32_t after_s = seconds_of(due_of(b, n, n_max, now_us) - now_us);
    after_s = avoid_crowds(b, after_s, n, n_max, now_us);
    if (after_s > QUEUE_MAX_S) return after_s;
    if (b->n_reservations == QUEUE_RESERVATIONS_MAX) return QUEUE_MAX_S + 1;
    if (mark != 0) reserve(b, mark, n, now_us + after_s * SECOND_US);
    return after_s;
}

/* Are there slots for n now, and for all reservations when due, at a third of the usual pace? */
static bool leaves_enough(const queue_book *b, uint32_t n, uint32_t n_max, uint64_t now_us) {
    uint64_t wanted = n, each_us = PACE_DIVISOR * queue_held_us(b, now_us) / n_max + 1;
    uint32_t n_free = n_free_of(b, n_max);
    if (n > n_free) return false;
    for (uint32_t i = 0; i < b->n_reservations; i++) {
        const queue_reservation *p = &b->reservations[i];
        uint64_t until_us = p->due_us > now_us + b->gap_us ? p->due_us - now_us - b->gap_us : 0;
        wanted += p->n;
        if (wanted > n_free + until_us / each_us) return false;
    }
    return true;
}

/* The reservation of this client that is due first; n_reservations: it has none. */
static uint32_t reservation_of(const queue_book *b, uint64_t mark) {
    uint32_t i = 0;
    while (i < b->n_reservations && (mark == 0 || b->reservations[i].mark != mark)) i++;
    return i;
}

void queue_forget(queue_book *b, uint64_t mark) {
    uint32_t i = reservation_of(b, mark);
    if (i < b->n_reservations) forget(b, i);
}

bool queue_admit(queue_book *b, uint64_t mark, bool first_try, uint32_t n, uint32_t n_max,
                 uint32_t n_spare, uint64_t now_us, uint32_t *after_s) {
    forget_old(b, now_us);
    uint32_t own = first_try ? b->n_reservations : reservation_of(b, mark);
    if (own == b->n_reservations) {
        if (leaves_enough(b, n, n_max, now_us)) return true;
        *after_s = queue_refuse(b, mark, n, n_max, now_us);
        return false;
    }
    queue_reservation kept = b->reservations[own];
    forget(b, own);
    if (kept.due_us <= now_us ? n <= n_free_of(b, n_max + n_spare)
                              : leaves_enough(b, n, n_max, now_us))
        return true;
    if (kept.due_us > now_us) { // early
        reserve(b, kept.mark, kept.n, kept.due_us);
        *after_s = seconds_of(kept.due_us - now_us);
        return false;
    }
    *after_s = queue_refuse(b, mark, n, n_max, now_us);
    return false;
}

/* ---- one request ---- */

queue_verdict queue_slots_ask(queue_slots *p, queue_book *b, const queue_ask *ask, uint64_t now_us,
                              queue_slot *out, uint32_t *after_s) {
    if (ask->n > queue_slots_most(p, &ask->asker)) return QUEUE_NEVER;
    *out = queue_slots_choose(p, &ask->asker, ask->n);
    if (out->kind != QUEUE_OPEN) {
        if (!ask->first_try) queue_forget(b, ask->mark);
    } else if (!queue_admit(b, ask->mark, ask->first_try, ask->n, queue_slots_open(p), p->n_spare,
                            now_us, after_s)) {
        return QUEUE_FULL;
    }
    for (uint32_t i = 0; i < ask->n; i++) queue_slots_take(p, *out);
    queue_note(b, queue_slots_open_used(p), 0, now_us);
    return QUEUE_HAS_SLOTS;
}
