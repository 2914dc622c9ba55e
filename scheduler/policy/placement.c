/* placement.c - see placement.h. */
#include "scheduler/placement.h"

#include <inttypes.h>

enum { PERCENT = 100 };
#define TARGET_US_PER_S UINT64_C(1000000)
#define PER_1000S       1000

typedef unsigned __int128 wide;

/* ---- one device ---- */

static uint64_t pages_needed(const placement_device *d, const placement_wanted *w) {
    return (uint64_t)w->need[d->kind].weight_pages + w->need[d->kind].kv_pages;
}

/* Reasons that moving other replicas cannot remove. */
static placement_reason check_kind(const placement_device *d, const placement_wanted *w,
                                   uint32_t n_here, feasible_share *share) {
    INFERD_CHECK(d->kind < PLACEMENT_KINDS_MAX);
    const placement_need *n = &w->need[d->kind];
    if (d->drained) return PLACEMENT_DRAINED;
    if (n->weight_pages == PLACEMENT_NO_WEIGHTS) return PLACEMENT_KIND;
    if (w->distinct && n_here > 0) return PLACEMENT_TAKEN;
    if (w->share_percent == 0) return PLACEMENT_OK;
    bool kept = feasible_share_check(n->cost_us, w->period_us, w->share_percent, share);
    return kept ? PLACEMENT_OK : PLACEMENT_SLOW;
}

/* The inequalities that depend on the other models there. */
enum { N_SUMS = 4 };
typedef struct sums {
    uint64_t need[N_SUMS], have[N_SUMS]; // met when need <= have
    uint64_t sum_ppm;                    // of C/T
} sums;
static const placement_reason sum_reasons[N_SUMS] = {PLACEMENT_MEMORY, PLACEMENT_GUARANTEE,
                                                     PLACEMENT_SHARE, PLACEMENT_DEADLINES};

static sums sums_with(const placement_device *d, const placement_wanted *w) {
    const placement_need *n = &w->need[d->kind];
    feasible_load l = d->load;
    feasible_load_add(&l, n->cost_us, w->period_us);
    uint64_t share_percent =
        w->share_percent > 0 ? (uint64_t)d->share_percent + w->share_percent : 0;
    return (sums){
        .need = {pages_needed(d, w), (uint64_t)d->guaranteed_pages + n->min_pages, share_percent,
                 feasible_ppm(feasible_total_ppb(&l))},
        .have = {d->free_pages, d->capacity_pages, PERCENT, FEASIBLE_ONE_PPM},
        .sum_ppm = feasible_ppm(l.sum_ppb),
    };
}

bool placement_check(const placement_device *d, const placement_wanted *w, uint32_t n_here,
                     placement_why *why) {
    placement_why local;
    if (why == NULL) why = &local;
    *why = (placement_why){.page_bytes = d->page_bytes};
    why->reason = check_kind(d, w, n_here, &why->share);
    if (why->reason != PLACEMENT_OK) return false;
    sums s = sums_with(d, w);
    why->sum_ppm = s.sum_ppm;
    for (int i = 0; i < N_SUMS && why->reason == PLACEMENT_OK; i++) {
        if (s.need[i] <= s.have[i]) continue;
        why->reason = sum_reasons[i];
        why->need = s.need[i], why->have = s.have[i];
    }
    return why->reason == PLACEMENT_OK;
}

void placement_say(const placement_why *why, char *text, size_t text_bytes) {
    uint64_t need_bytes, have_bytes;
    if (__builtin_mul_overflow(why->need, why->page_bytes, &need_bytes)) need_bytes = UINT64_MAX;
    if (__builtin_mul_overflow(why->have, why->page_bytes, &have_bytes)) have_bytes = UINT64_MAX;
    feasible_number need = feasible_mib(need_bytes), have = feasible_mib(have_bytes);
    switch (why->reason) {
    case PLACEMENT_OK:
        snprintf(text, text_bytes, "it fits");
        return;
    case PLACEMENT_DRAINED:
        snprintf(text, text_bytes, "the device is drained");
        return;
    case PLACEMENT_KIND:
        snprintf(text, text_bytes, "the model does not run on this kind of device");
        return;
    case PLACEMENT_TAKEN:
        snprintf(text, text_bytes, "the device already has a replica of it");
        return;
    case PLACEMENT_SLOW:
        feasible_share_say(&why->share, text, text_bytes);
        return;
    case PLACEMENT_MEMORY:
        snprintf(text, text_bytes, "memory: weights and least keys and values %s > %s available",
                 need.text, have.text);
        return;
    case PLACEMENT_GUARANTEE:
        snprintf(text, text_bytes, "guarantees: %s including its own > %s capacity", need.text,
                 have.text);
        return;
    case PLACEMENT_SHARE:
        snprintf(text, text_bytes, "shares: %" PRIu64 " %% including its own > %" PRIu64 " %%",
                 why->need, why->have);
        return;
    case PLACEMENT_DEADLINES:
        /* Six digits always: nothing that is over one may read as one. */
        snprintf(text, text_bytes,
                 "targets per token: %" PRIu64 ".%06" PRIu64 " + %" PRIu64 ".%06" PRIu64
                 " = %" PRIu64 ".%06" PRIu64 " > 1",
                 why->sum_ppm / FEASIBLE_ONE_PPM, why->sum_ppm % FEASIBLE_ONE_PPM,
                 (why->need - why->sum_ppm) / FEASIBLE_ONE_PPM,
                 (why->need - why->sum_ppm) % FEASIBLE_ONE_PPM, why->need / FEASIBLE_ONE_PPM,
                 why->need % FEASIBLE_ONE_PPM);
        return;
    }
    INFERD_CHECK(!"a reason without a text");
}

static uint32_t u32_minus(uint32_t a, uint64_t b) {
    return a > b ? a - (uint32_t)b : 0;
}

/* Saturating: a device that is overcommitted already (its limits were changed) stays full. */
void placement_add(placement_device *d, const placement_wanted *w) {
    const placement_need *n = &w->need[d->kind];
    d->free_pages = u32_minus(d->free_pages, pages_needed(d, w));
    if (__builtin_add_overflow(d->guaranteed_pages, n->min_pages, &d->guaranteed_pages))
        d->guaranteed_pages = UINT32_MAX;
    if (__builtin_add_overflow(d->share_percent, w->share_percent, &d->share_percent))
        d->share_percent = UINT32_MAX;
    if (__builtin_add_overflow(d->pressure, w->pressure, &d->pressure)) d->pressure = UINT64_MAX;
    feasible_load_add(&d->load, n->cost_us, w->period_us);
}

/* ---- scores ---- */

uint64_t placement_pressure(uint64_t tokens_per_1000s, uint64_t token_bytes, uint32_t tpot_us) {
    if (tpot_us == 0) tpot_us = PLACEMENT_CALM_TPOT_US;
    uint64_t bytes_per_1000s;
    if (__builtin_mul_overflow(tokens_per_1000s, token_bytes, &bytes_per_1000s))
        bytes_per_1000s = UINT64_MAX;
    wide p = (wide)bytes_per_1000s * TARGET_US_PER_S / PER_1000S / tpot_us;
    return p < UINT64_MAX ? (uint64_t)p : UINT64_MAX;
}

typedef struct ratio {
    uint64_t pressure, free_bytes;
} ratio;

static ratio ratio_of(const placement_device *d) {
    ratio r = {.pressure = d->pressure};
    if (__builtin_mul_overflow(d->free_pages, d->page_bytes, &r.free_bytes))
        r.free_bytes = UINT64_MAX;
    if (r.free_bytes == 0) { // infinite, unless no model there has pressure
        r.pressure = r.pressure > 0 ? UINT64_MAX : 0;
        r.free_bytes = 1;
    }
    return r;
}

static int compare(ratio a, ratio b) {
    wide left = (wide)a.pressure * b.free_bytes, right = (wide)b.pressure * a.free_bytes;
    return left < right ? -1 : left > right;
}

/* Its pressure with one more replica: the smaller, the better. */
static ratio rank_of(const placement_device *d, const placement_wanted *w) {
    placement_device after = *d;
    placement_add(&after, w);
    return ratio_of(&after);
}

/* The best device for one more replica, or PLACEMENT_NOWHERE. */
static uint32_t choose_one(const placement_device *devices, uint32_t n_devices,
                           const placement_wanted *w, const uint8_t *here, placement_why *whys) {
    uint32_t best = PLACEMENT_NOWHERE;
    ratio best_rank = {0};
    for (uint32_t g = 0; g < n_devices; g++) {
        if (!placement_check(&devices[g], w, here[g], whys != NULL ? &whys[g] : NULL)) continue;
        ratio r = rank_of(&devices[g], w);
        if (best != PLACEMENT_NOWHERE && compare(r, best_rank) >= 0) continue;
        best = g, best_rank = r;
    }
    return best;
}

uint32_t placement_choose(const placement_device *devices, uint32_t n_devices,
                          const placement_wanted *w, uint32_t *chosen, placement_why *whys) {
    placement_device after[PLACEMENT_DEVICES_MAX];
    uint8_t here[PLACEMENT_DEVICES_MAX];
    uint32_t n_there = 0, n_chosen = 0;
    INFERD_CHECK(n_devices <= PLACEMENT_DEVICES_MAX && w->n_replicas <= PLACEMENT_REPLICAS_MAX);
    for (uint32_t g = 0; g < n_devices; g++) {
        after[g] = devices[g], here[g] = w->here[g];
        n_there += here[g];
    }
    for (; n_there + n_chosen < w->n_replicas; n_chosen++) {
        uint32_t g = choose_one(after, n_devices, w, here, whys);
        if (g == PLACEMENT_NOWHERE) return w->all ? 0 : n_chosen;
        placement_add(&after[g], w);
        here[g]++;
        chosen[n_chosen] = g;
    }
    return n_chosen;
}

/* ---- a share over several devices ---- */

uint64_t placement_part(uint64_t total, uint64_t granule, uint32_t n, uint32_t k) {
    INFERD_CHECK(granule > 0 && k < n);
    uint64_t granules = total / granule;
    return (granules / n + (k < granules % n)) * granule + (k == 0 ? total % granule : 0);
}

/* ---- moves ---- */

/* The devices while a plan is made. */
typedef struct layout {
    const placement_device *empty;
    uint32_t n_devices;
    const placement_wanted *models;
    const placement_copy *copies;
    uint32_t n_copies;
    uint8_t at[PLACEMENT_COPIES_MAX]; // current device of each copy
    placement_device devices[PLACEMENT_DEVICES_MAX];
    uint64_t missing_ppm[PLACEMENT_COPIES_MAX]; // for the new replica, without this copy
    uint32_t n_tries, n_tries_max;
} layout;

/* The device without copy `but`. */
static placement_device device_without(layout *l, uint32_t g, uint32_t but) {
    placement_device d = l->empty[g];
    l->n_tries++;
    for (uint32_t i = 0; i < l->n_copies; i++)
        if (l->at[i] == g && i != but) placement_add(&d, &l->models[l->copies[i].model_idx]);
    return d;
}

static const placement_wanted *model_of(const layout *l, uint32_t copy) {
    return &l->models[l->copies[copy].model_idx];
}

/* Replicas of a model on a device, without copy `but`. */
static uint32_t count_here(const layout *l, uint32_t model_idx, uint32_t g, uint32_t but) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < l->n_copies; i++)
        n += l->at[i] == g && i != but && l->copies[i].model_idx == model_idx;
    return n;
}

static bool fits(layout *l, const placement_device *d, uint32_t g, uint32_t copy, uint32_t but) {
    l->n_tries++;
    return placement_check(d, model_of(l, copy), count_here(l, l->copies[copy].model_idx, g, but),
                           NULL);
}

static void move_copy(layout *l, uint32_t copy, uint32_t to) {
    uint32_t from = l->at[copy];
    l->at[copy] = (uint8_t)to;
    placement_add(&l->devices[to], model_of(l, copy));
    l->devices[from] = device_without(l, from, PLACEMENT_NOWHERE);
}

void placement_fill(const placement_device *empty, uint32_t n_devices,
                    const placement_wanted *models, const placement_copy *copies, uint32_t n_copies,
                    placement_device *out) {
    for (uint32_t g = 0; g < n_devices; g++) out[g] = empty[g];
    for (uint32_t i = 0; i < n_copies; i++) {
        INFERD_CHECK(copies[i].device_idx < n_devices);
        placement_add(&out[copies[i].device_idx], &models[copies[i].model_idx]);
    }
}

/* How much the new replica lacks, in parts of the device; 0: it fits, UINT64_MAX: never. */
static uint64_t missing_ppm(const placement_device *d, const placement_wanted *w, uint32_t n_here) {
    feasible_share share;
    if (check_kind(d, w, n_here, &share) != PLACEMENT_OK) return UINT64_MAX;
    sums s = sums_with(d, w);
    uint64_t unit[N_SUMS] = {d->capacity_pages, d->capacity_pages, PERCENT, FEASIBLE_ONE_PPM};
    uint64_t missing = 0;
    for (int i = 0; i < N_SUMS; i++) {
        if (s.need[i] <= s.have[i]) continue;
        if (unit[i] == 0) return UINT64_MAX;
        /* Rounded up, so that a misfit is never 0. */
        missing +=
            (uint64_t)(((wide)(s.need[i] - s.have[i]) * FEASIBLE_ONE_PPM + unit[i] - 1) / unit[i]);
    }
    return missing;
}

/* One or two moves that reduce the misfit of the new replica on a device. */
typedef struct step {
    uint32_t n_moves;
    uint32_t copy[2], to[2];
    uint64_t missing_ppm; // afterwards
    uint64_t bytes;       // moved
    uint32_t left_pages;  // free after it where the copy arrives: the fewer, the better
} step;

static bool is_better_step(const step *a, const step *b) {
    if (a->missing_ppm != b->missing_ppm) return a->missing_ppm < b->missing_ppm;
    if (a->n_moves != b->n_moves) return a->n_moves < b->n_moves;
    if (a->bytes != b->bytes) return a->bytes < b->bytes;
    return a->left_pages < b->left_pages;
}

static uint64_t weight_bytes(const layout *l, uint32_t copy, uint32_t g) {
    const placement_device *d = &l->empty[g];
    return (uint64_t)model_of(l, copy)->need[d->kind].weight_pages * d->page_bytes;
}

static bool may_move(const layout *l, uint32_t copy) {
    return !l->copies[copy].pinned;
}

typedef struct goal {
    uint32_t device, model_idx;
} goal;

static uint64_t goal_missing(const layout *l, const goal *to, const placement_device *d,
                             uint32_t but) {
    return missing_ppm(d, &l->models[to->model_idx], count_here(l, to->model_idx, to->device, but));
}

/* Copy `x` leaves the goal's device for any other. */
static void try_one(layout *l, const goal *to, uint32_t x, step *best) {
    step s = {.n_moves = 1, .copy = {x}, .missing_ppm = l->missing_ppm[x]};
    for (uint32_t h = 0; h < l->n_devices; h++) {
        const placement_device *d = &l->devices[h];
        if (h == to->device || !fits(l, d, h, x, PLACEMENT_NOWHERE)) continue;
        s.to[0] = h;
        s.bytes = weight_bytes(l, x, h);
        s.left_pages = u32_minus(d->free_pages, pages_needed(d, model_of(l, x)));
        if (is_better_step(&s, best)) *best = s;
    }
}

/* Devices that can take copy `y` without further moves, one bit each. */
static uint64_t find_targets(layout *l, uint32_t y) {
    uint64_t targets = 0;
    for (uint32_t k = 0; k < l->n_devices; k++)
        if (k != l->at[y] && fits(l, &l->devices[k], k, y, PLACEMENT_NOWHERE))
            targets |= UINT64_C(1) << k;
    return targets;
}

/* Copy `y` leaves its device for one of the targets, maybe the goal's; then `x` takes its room. */
static void try_pair(layout *l, const goal *to, uint32_t x, uint32_t y, uint64_t targets,
                     const placement_device *after_y, step *best) {
    step s = {.n_moves = 2, .copy = {y, x}, .to = {0, l->at[y]}};
    s.left_pages = u32_minus(after_y->free_pages, pages_needed(after_y, model_of(l, x)));
    for (uint32_t k = 0; k < l->n_devices; k++) {
        if ((targets >> k & 1) == 0) continue;
        s.missing_ppm = l->missing_ppm[x];
        if (k == to->device) { // `x` and `y` are exchanged
            placement_device d = device_without(l, k, x);
            placement_add(&d, model_of(l, y));
            s.missing_ppm = goal_missing(l, to, &d, x);
        }
        s.to[0] = k;
        s.bytes = weight_bytes(l, y, k) + weight_bytes(l, x, s.to[1]);
        if (is_better_step(&s, best)) *best = s;
    }
}

/* The step that leaves the least missing; n_moves 0: none is an improvement. */
static step find_step(layout *l, const goal *to, uint64_t missing_now, uint32_t n_moves_max) {
    step best = {.missing_ppm = missing_now};
    for (uint32_t x = 0; x < l->n_copies; x++) {
        if (l->at[x] != to->device || !may_move(l, x)) continue;
        placement_device d = device_without(l, to->device, x);
        l->missing_ppm[x] = goal_missing(l, to, &d, x);
        if (l->missing_ppm[x] < missing_now) try_one(l, to, x, &best);
    }
    if (n_moves_max < 2) return best;
    for (uint32_t y = 0; y < l->n_copies && l->n_tries < l->n_tries_max; y++) {
        if (l->at[y] == to->device || !may_move(l, y)) continue;
        uint64_t targets = find_targets(l, y);
        if (targets == 0) continue;
        placement_device after_y = device_without(l, l->at[y], y);
        for (uint32_t x = 0; x < l->n_copies; x++) {
            if (l->at[x] != to->device || !may_move(l, x)) continue;
            /* With `y` coming here at least as much is missing as without `x` alone. */
            if (l->missing_ppm[x] > best.missing_ppm || l->missing_ppm[x] >= missing_now) continue;
            if (best.n_moves == 1 && l->missing_ppm[x] == best.missing_ppm) continue;
            if (fits(l, &after_y, l->at[y], x, y)) try_pair(l, to, x, y, targets, &after_y, &best);
        }
    }
    return best;
}

/* Make room on one device.  Changes the layout. */
static bool plan_for(layout *l, const goal *to, placement_plan *plan) {
    uint64_t missing = goal_missing(l, to, &l->devices[to->device], PLACEMENT_NOWHERE);
    *plan = (placement_plan){.device_idx = to->device};
    while (missing > 0) {
        if (missing == UINT64_MAX || l->n_tries >= l->n_tries_max) return false;
        step s = find_step(l, to, missing, PLACEMENT_MOVES_MAX - plan->n_moves);
        if (s.n_moves == 0 || plan->n_moves + s.n_moves > PLACEMENT_MOVES_MAX) return false;
        for (uint32_t i = 0; i < s.n_moves; i++) {
            plan->moves[plan->n_moves++] = (placement_move){s.copy[i], l->at[s.copy[i]], s.to[i]};
            move_copy(l, s.copy[i], s.to[i]);
        }
        plan->moved_bytes += s.bytes;
        missing = s.missing_ppm;
    }
    return true;
}

bool placement_plan_moves(const placement_device *empty, uint32_t n_devices,
                          const placement_wanted *models, const placement_copy *copies,
                          uint32_t n_copies, uint32_t model_idx, uint32_t n_tries_max,
                          placement_plan *plan) {
    layout l = {.empty = empty,
                .n_devices = n_devices,
                .models = models,
                .copies = copies,
                .n_copies = n_copies};
    bool found = false;
    INFERD_CHECK(n_devices <= PLACEMENT_DEVICES_MAX && n_copies <= PLACEMENT_COPIES_MAX);
    for (uint32_t g = 0; g < n_devices; g++) {
        placement_plan next;
        goal to = {g, model_idx};
        l.n_tries_max = l.n_tries + n_tries_max / n_devices; // a budget per device
        for (uint32_t i = 0; i < n_copies; i++) l.at[i] = (uint8_t)copies[i].device_idx;
        placement_fill(empty, n_devices, models, copies, n_copies, l.devices);
        if (!plan_for(&l, &to, &next)) continue;
        if (!found || next.moved_bytes < plan->moved_bytes) *plan = next;
        found = true;
    }
    if (!found) *plan = (placement_plan){.device_idx = PLACEMENT_NOWHERE};
    plan->n_tries = l.n_tries;
    return found;
}

/* ---- routing ---- */

static uint64_t ttft_us(const placement_replica *r) {
    uint64_t us;
    return __builtin_add_overflow(r->queue_us, r->prompt_us, &us) ? UINT64_MAX : us;
}

static bool takes(const placement_replica *r) {
    return !r->draining && r->passes_admission;
}

/* The longest prefix among replicas that meet the target; false: none meets it. */
static bool longest_prefix(const placement_replica *replicas, uint32_t n, uint64_t ttft_max_us,
                           uint32_t *tokens) {
    bool found = false;
    *tokens = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (!takes(&replicas[i]) || ttft_us(&replicas[i]) > ttft_max_us) continue;
        found = true;
        *tokens = u32_max(*tokens, replicas[i].prefix_tokens);
    }
    return found;
}

/* Both replicas take requests; if they `meet` the target, they have the same prefix length. */
static bool is_better_replica(const placement_replica *a, const placement_replica *b, bool meet,
                              uint64_t pack_us) {
    bool a_packs = meet && ttft_us(a) <= pack_us, b_packs = meet && ttft_us(b) <= pack_us;
    if (a_packs != b_packs) return a_packs;
    if (a_packs && a->queue_us != b->queue_us) return a->queue_us > b->queue_us;
    if (!a_packs && ttft_us(a) != ttft_us(b)) return ttft_us(a) < ttft_us(b);
    return a->device_idx < b->device_idx;
}

uint32_t placement_route(const placement_replica *replicas, uint32_t n, uint64_t ttft_max_us) {
    uint32_t best = PLACEMENT_NOWHERE, tokens = 0;
    bool meet = ttft_max_us > 0 && longest_prefix(replicas, n, ttft_max_us, &tokens);
    uint64_t pack_us = (uint64_t)((wide)ttft_max_us * PLACEMENT_PACK_PERCENT / PERCENT);
    for (uint32_t i = 0; i < n; i++) {
        const placement_replica *r = &replicas[i];
        if (!takes(r)) continue;
        if (meet && (ttft_us(r) > ttft_max_us || r->prefix_tokens < tokens)) continue;
        if (best == PLACEMENT_NOWHERE || is_better_replica(r, &replicas[best], meet, pack_us))
            best = i;
    }
    return best;
}
