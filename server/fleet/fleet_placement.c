/* fleet_placement.c - on which devices the replicas of a model are, and how many there are.
 *
 * Placement first counts the weights of every model as if they never left their device, so that
 * models spread over all devices.  Only if no device has room then, it counts weights that could be
 * evicted as free, and spreads the overcommitment evenly.  A model with the same content as another
 * model goes to the device of that model if it may: the weights are there once. */
#include <stdlib.h>
#include <string.h>

#include "fleet_private.h"

enum {
    CALM_TOKENS_PER_1000S = 1000, // of a model before its first request
    WEIGHTS_PER_TOKEN = 1000,     // bytes of weights per byte of a token's keys and values, about
    ALL_PERCENT = 100,
    TTFT_PERCENTILE = 95
};
#define PPM UINT64_C(1000000)

/* ---- parts ---- */

uint32_t fleet_n_parts(const model_policy *p) {
    return u32_max(u32_max(p->share.n_devices, p->replicas_min), 1);
}

model_policy fleet_part_of(const model_policy *whole, uint32_t k) {
    uint32_t n = fleet_n_parts(whole), part = k < n ? k : n - 1;
    model_policy p = *whole;
    p.min_bytes = k < n ? placement_part(whole->min_bytes, FLEET_PAGE_BYTES, n, part) : 0;
    p.max_bytes = placement_part(whole->max_bytes, FLEET_PAGE_BYTES, n, part);
    p.share.percent = (uint32_t)placement_part(whole->share.percent, 1, n, part);
    if (k >= n || (p.share.percent == 0 && p.share.policy == SHARE_BURST)) {
        p.share = (share_spec){.policy = SHARE_BESTEFFORT};
        if (whole->share.policy != SHARE_BESTEFFORT)
            p.weight = u32_max(p.weight, 1); // a weight of 0 is only valid beside a share
    }
    p.share.n_devices = 1;
    return p;
}

static uint32_t n_wanted(const fleet *f, const fleet_model *m) {
    return u32_min(fleet_n_parts(&m->about.policy), f->n_devices);
}

static uint32_t n_here(const fleet *f, const fleet_model *m) {
    uint32_t n = 0;
    for (uint32_t d = 0; d < f->n_devices; d++) n += replica_is_here(&m->at[d]);
    return n;
}

/* It has work, or may get work at any time. */
static bool computes(const replica *r) {
    return r->state == FLEET_SERVING || (r->state == FLEET_LEAVING && r->n_open > 0);
}

/* The first part that no replica has. */
static uint32_t free_part(const fleet *f, const fleet_model *m) {
    for (uint32_t k = 0;; k++) {
        bool taken = false;
        for (uint32_t d = 0; d < f->n_devices; d++)
            taken = taken || (replica_is_here(&m->at[d]) && m->at[d].part == k);
        if (!taken) return k;
    }
}

/* ---- where a model may go ---- */

static uint32_t pages_of(uint64_t n_bytes, uint64_t page_bytes) {
    uint64_t n = n_bytes / page_bytes + (n_bytes % page_bytes != 0);
    return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX - 1;
}

static uint32_t share_of(const model_policy *p) {
    return p->share.policy == SHARE_BESTEFFORT ? 0 : p->share.percent;
}

static uint64_t pressure_of(const fleet_model *m) {
    return placement_pressure(CALM_TOKENS_PER_1000S, m->about.weight_bytes / WEIGHTS_PER_TOKEN + 1,
                              fleet_period_us(&m->about.policy));
}

bool fleet_shares_weights(const fleet *f, const fleet_model *m, uint32_t d) {
    uint32_t same = m->about.same_as;
    return same < f->n_slots && f->models[same].used && replica_is_here(&f->models[same].at[d]);
}

void fleet_see_empty(const fleet *f, uint32_t d, placement_device *out) {
    engine_stats s;
    engine_get_stats(f->engines[d], &s);
    uint64_t page = s.page_bytes != 0 ? s.page_bytes : FLEET_PAGE_BYTES;
    *out = (placement_device){.drained = engine_is_lost(f->engines[d]), .page_bytes = page};
    out->free_pages = out->capacity_pages = s.pages_device != 0 ? s.pages_device
                                            : f->memory_bytes[d] != 0
                                                ? pages_of(f->memory_bytes[d], page)
                                                : UINT32_MAX / 2; // known when it is open
}

/* Percent of its device that this replica has, or may have once others of its model have left. */
static uint32_t guaranteed_percent(const fleet_model *m, const replica *r) {
    model_policy part = fleet_part_of(&m->about.policy, r->part);
    return u32_max(share_of(&part), share_of(&r->policy));
}

uint32_t fleet_share_percent(const fleet *f, uint32_t device_idx, uint32_t but) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < f->n_used; i++) {
        const fleet_model *m = &f->models[i];
        if (i != but && m->used && replica_is_here(&m->at[device_idx]))
            sum += guaranteed_percent(m, &m->at[device_idx]);
    }
    return sum;
}

void fleet_see_device(const fleet *f, uint32_t d, bool lent, placement_device *out) {
    fleet_see_empty(f, d, out);
    uint64_t page = out->page_bytes, kept = 0;
    for (uint32_t i = 0; i < f->n_used; i++) {
        const fleet_model *m = &f->models[i];
        if (!m->used || !replica_is_here(&m->at[d])) continue;
        const model_policy *p = &m->at[d].policy;
        uint64_t min = pages_of(p->min_bytes, page);
        uint64_t weights =
            fleet_shares_weights(f, m, d) ? 0 : pages_of(m->about.weight_bytes, page);
        out->guaranteed_pages += (uint32_t)min;
        out->pressure += pressure_of(m);
        if (lent && p->pin != PIN_HOT) weights = 0;
        kept += weights > min ? weights : min;
    }
    out->share_percent = fleet_share_percent(f, d, UINT32_MAX);
    out->free_pages = kept < out->free_pages ? out->free_pages - (uint32_t)kept : 0;
}

placement_wanted fleet_wanted_of(const fleet *f, const fleet_model *m, uint32_t k, uint64_t page) {
    model_policy part = fleet_part_of(&m->about.policy, k);
    placement_wanted w = {.share_percent = share_of(&part),
                          .distinct = true,
                          .pressure = pressure_of(m),
                          .n_replicas = 1};
    uint32_t weights = pages_of(m->about.weight_bytes, page), min = pages_of(part.min_bytes, page);
    w.need[0] = (placement_need){
        .weight_pages = weights, .kv_pages = min > weights ? min - weights : 1, .min_pages = min};
    for (uint32_t d = 0; d < f->n_devices; d++) {
        w.here[d] = m->at[d].state != FLEET_ABSENT;
        w.n_replicas += w.here[d];
    }
    /* A replica beyond the parts of a fixed share gets a part of it as soon as it serves. */
    const share_spec *whole = &m->about.policy.share;
    if (whole->policy == SHARE_FIXED && k >= fleet_n_parts(&m->about.policy))
        w.share_percent = whole->percent / w.n_replicas;
    return w;
}

/* A device with the weights of its twin, a model of the same content, that takes this part too. */
static uint32_t beside_twin(const fleet *f, const fleet_model *m, uint32_t k) {
    for (uint32_t d = 0; d < f->n_devices; d++) {
        placement_device device;
        if (m->at[d].state != FLEET_ABSENT || !fleet_shares_weights(f, m, d)) continue;
        fleet_see_device(f, d, false, &device);
        placement_wanted w = fleet_wanted_of(f, m, k, device.page_bytes);
        w.need[0].weight_pages = 0;
        if (placement_check(&device, &w, 0, NULL)) return d;
    }
    return FLEET_NOWHERE;
}

/* A device for the k-th part, or FLEET_NOWHERE; m->problem then says why. */
static uint32_t find_device(fleet *f, fleet_model *m, uint32_t k) {
    placement_device devices[FLEET_DEVICES_MAX];
    placement_why whys[FLEET_DEVICES_MAX];
    uint32_t chosen[1], d = beside_twin(f, m, k), at = 0;
    m->problem[0] = 0;
    if (d != FLEET_NOWHERE) return d;
    for (int lent = 0; lent <= 1; lent++) {
        for (uint32_t i = 0; i < f->n_devices; i++) fleet_see_device(f, i, lent == 1, &devices[i]);
        placement_wanted w = fleet_wanted_of(f, m, k, devices[0].page_bytes);
        if (placement_choose(devices, f->n_devices, &w, chosen, whys) > 0) return chosen[0];
    }
    while (at + 1 < f->n_devices && whys[at].reason <= PLACEMENT_TAKEN) at++; // a better reason
    int used = snprintf(m->problem, sizeof m->problem, "%s: ", f->names[at]);
    placement_say(&whys[at], m->problem + used, sizeof m->problem - (size_t)used);
    return FLEET_NOWHERE;
}

/* ---- replicas ---- */

static void publish_devices(fleet *f, uint32_t slot) {
    uint64_t bits = 0;
    for (uint32_t d = 0; d < f->n_devices; d++)
        if (replica_is_here(&f->models[slot].at[d])) bits |= UINT64_C(1) << d;
    atomic_store(&f->devices[slot], bits);
    f->n_changes++;
}

bool fleet_add_replica(fleet *f, uint32_t slot, uint32_t d, uint32_t k, bool joins) {
    fleet_model *m = &f->models[slot];
    replica *r = &m->at[d];
    /* A model held by an operator is not loaded, so its replica cannot join. */
    *r = (replica){.state = joins && !m->held ? FLEET_JOINING : FLEET_SERVING,
                   .part = k,
                   .departures = engine_model_departures(f->engines[d], slot),
                   .policy = fleet_part_of(&m->about.policy, k)};
    if (!engine_model_add(f->engines[d], slot, m->about.m,
                          fleet_shares_weights(f, m, d) ? m->about.same_as : UINT32_MAX,
                          &r->policy)) {
        r->state = FLEET_ABSENT;
        return false;
    }
    if (m->held)
        engine_model_do(f->engines[d], slot, ENGINE_DRAIN);
    else if (joins)
        engine_model_do(f->engines[d], slot, ENGINE_LOAD);
    publish_devices(f, slot);
    return true;
}

void fleet_remove_replica(fleet *f, uint32_t slot, uint32_t d) {
    fleet_note_departure(f, slot, d);
    f->models[slot].at[d].state = FLEET_LEAVING;
    engine_model_remove(f->engines[d], slot);
    publish_devices(f, slot);
}

/* The device with the most free memory, used when none has room: its engine reports the lack. */
static uint32_t roomiest(const fleet *f, const fleet_model *m) {
    uint32_t best = 0;
    uint64_t most = 0;
    for (uint32_t d = 0; d < f->n_devices; d++) {
        placement_device device;
        fleet_see_device(f, d, true, &device);
        uint64_t n_bytes = device.drained || m->at[d].state != FLEET_ABSENT
                               ? 0
                               : ((uint64_t)device.free_pages + 1) * device.page_bytes;
        if (n_bytes <= most) continue;
        most = n_bytes;
        best = d;
    }
    return best;
}

/* Until a device is open only the file's size is known. */
static void learn_size(const fleet *f, fleet_model *m) {
    uint32_t n_pages;
    for (uint32_t d = 0; d < f->n_devices && !m->sized; d++)
        m->sized = engine_weigh(f->engines[d], m->about.m, &n_pages, &m->about.weight_bytes);
}

bool fleet_model_add(fleet *f, uint32_t slot, const fleet_model_about *about) {
    fleet_model *m = &f->models[slot];
    INFERD_CHECK(slot < f->n_slots && !m->used);
    *m = (fleet_model){.used = true, .about = *about, .held = about->held};
    if (f->n_devices > 1) learn_size(f, m);
    f->n_used = u32_max(f->n_used, slot + 1);
    uint32_t n = n_wanted(f, m);
    m->desired = n;
    for (uint32_t k = 0; k < n; k++) {
        uint32_t d = f->n_devices > 1 ? find_device(f, m, k) : 0;
        if (d == FLEET_NOWHERE && k > 0) break; // added when there is room
        if (fleet_add_replica(f, slot, d == FLEET_NOWHERE ? roomiest(f, m) : d, k, false)) continue;
        if (k > 0) break; // scaling adds the others
        *m = (fleet_model){0};
        return false;
    }
    return true;
}

void fleet_model_remove(fleet *f, uint32_t slot) {
    fleet_model *m = &f->models[slot];
    m->removed = true;
    for (uint32_t d = 0; d < f->n_devices; d++)
        if (replica_is_here(&m->at[d])) fleet_remove_replica(f, slot, d);
}

static void divide_fixed(fleet *f, uint32_t slot); // defined below

bool fleet_model_set_policy(fleet *f, uint32_t slot, const model_policy *policy) {
    fleet_model *m = &f->models[slot];
    bool fine = true;
    if (!m->used) return true;
    m->about.policy = *policy;
    for (uint32_t d = 0; d < f->n_devices; d++) {
        replica *r = &m->at[d];
        if (!replica_is_here(r)) continue;
        r->policy = fleet_part_of(policy, r->part);
        fine = engine_model_set_policy(f->engines[d], slot, &r->policy) && fine;
    }
    divide_fixed(f, slot);
    return fine;
}

bool fleet_model_is_held(const fleet *f, uint32_t slot) {
    return f->models[slot].used && f->models[slot].held;
}

void fleet_model_do(fleet *f, uint32_t slot, engine_command command) {
    fleet_model *m = &f->models[slot];
    if (command == ENGINE_DRAIN) m->held = true;
    if (command == ENGINE_LOAD) m->held = false;
    for (uint32_t d = 0; d < f->n_devices; d++)
        if (replica_is_here(&m->at[d])) engine_model_do(f->engines[d], slot, command);
}

/* A fixed share is a ceiling, so it is divided over all replicas that compute, including those
 * beyond the parts and those that only finish their work. */
static void divide_fixed(fleet *f, uint32_t slot) {
    fleet_model *m = &f->models[slot];
    const share_spec *whole = &m->about.policy.share;
    if (whole->policy != SHARE_FIXED || f->n_devices == 1) return;
    uint32_t n = 0, k = 0;
    for (uint32_t d = 0; d < f->n_devices; d++) n += computes(&m->at[d]);
    n = u32_max(n, u32_min(fleet_n_parts(&m->about.policy), f->n_devices));
    for (uint32_t d = 0; d < f->n_devices; d++) {
        replica *r = &m->at[d];
        if (!computes(r)) continue;
        share_spec part = fleet_share_part(f, whole, n, k++);
        if (r->policy.share.policy == SHARE_FIXED && r->policy.share.percent == part.percent)
            continue;
        model_policy changed = r->policy;
        changed.share = part;
        if (r->state == FLEET_LEAVING) changed.min_bytes = 0; // its guarantee has ended
        if (engine_model_set_policy(f->engines[d], slot, &changed)) r->policy = changed;
    }
}

void fleet_divide_fixed(fleet *f) {
    for (uint32_t i = 0; i < f->n_used; i++)
        if (f->models[i].used) divide_fixed(f, i);
}

/* ---- number of replicas ---- */

static int by_size(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static uint64_t ttft_p95(const fleet_model *m, uint64_t now_us) {
    uint32_t fresh[FLEET_TTFT_SAMPLES], n = 0;
    for (uint32_t i = 0; i < u32_min(m->n_ttft, FLEET_TTFT_SAMPLES); i++)
        if (now_us < m->ttft_at_us[i] + FLEET_TTFT_FRESH_US) fresh[n++] = m->ttft_us[i];
    if (n == 0) return 0;
    qsort(fresh, n, sizeof fresh[0], by_size);
    return fresh[(uint64_t)(n - 1) * TTFT_PERCENTILE / ALL_PERCENT];
}

/* The replica to remove first: one that is joining, then one beyond the parts, then the one with
 * the fewest open requests. */
static uint32_t least_needed(const fleet *f, const fleet_model *m) {
    uint32_t best = FLEET_NOWHERE, parts = fleet_n_parts(&m->about.policy);
    uint64_t least = UINT64_MAX;
    for (uint32_t d = 0; d < f->n_devices; d++) {
        const replica *r = &m->at[d];
        if (!replica_is_here(r)) continue;
        uint64_t n = (uint64_t)r->n_open + (r->part < parts ? UINT32_MAX : 0) +
                     (r->state == FLEET_SERVING ? (uint64_t)UINT32_MAX << 1 : 0);
        if (n >= least) continue;
        least = n;
        best = d;
    }
    return best;
}

static scale_input input_of(const fleet *f, fleet_model *m, uint32_t slot, uint64_t now_us,
                            uint64_t period_us) {
    engine_model_info info;
    fleet_model_tally(f, slot, &info);
    uint32_t n = n_here(f, m), n_joining = 0, least = n_wanted(f, m);
    for (uint32_t d = 0; d < f->n_devices; d++) n_joining += m->at[d].state == FLEET_JOINING;
    /* A waiting request has no TTFT yet, but it will be at least its waiting time. */
    uint64_t since_us = info.waiting_since_us;
    uint64_t waited_us = since_us != 0 && now_us > since_us ? now_us - since_us : 0;
    scale_input in = {.now_us = now_us,
                      .ttft_p95_us = u64_max(ttft_p95(m, now_us), waited_us),
                      .ttft_max_us = (uint64_t)m->about.policy.slo_ttft_ms * 1000,
                      .n_replicas = n,
                      .n_starting = n_joining,
                      .n_waiting = info.n_waiting,
                      .n_running = info.n_running,
                      .load_ppm = info.device_us > m->device_us && period_us > 0
                                      ? (info.device_us - m->device_us) * PPM / period_us
                                      : 0,
                      .replicas_min = least,
                      .replicas_max = u32_max(m->about.policy.replicas_max, least),
                      .feasible = n < f->n_devices};
    m->device_us = info.device_us;
    return in;
}

static void note(fleet *f, uint32_t slot, uint32_t d, bool more) {
    if (f->n_scales == f->n_slots) return; // not read since then: drop the record
    f->scales[f->n_scales++] = (fleet_scale){
        .slot = slot, .device_idx = d, .n_replicas = n_here(f, &f->models[slot]), .more = more};
}

bool fleet_next_scale(fleet *f, fleet_scale *out) {
    if (f->n_scales == 0) return false;
    *out = f->scales[--f->n_scales];
    return true;
}

static void scale_model(fleet *f, uint32_t slot, uint64_t now_us, uint64_t period_us) {
    fleet_model *m = &f->models[slot];
    scale_input in = input_of(f, m, slot, now_us, period_us);
    scale_decision d = scale_decide(&m->scale, &in);
    m->desired = d.desired;
    m->lacks = m->lacks && d.desired > in.n_replicas;
    if (d.step > 0) {
        uint32_t k = free_part(f, m), to = find_device(f, m, k);
        m->lacks = to == FLEET_NOWHERE;
        if (to != FLEET_NOWHERE && fleet_add_replica(f, slot, to, k, true)) note(f, slot, to, true);
    } else if (d.step < 0) {
        uint32_t from = least_needed(f, m);
        if (from == FLEET_NOWHERE) return;
        fleet_remove_replica(f, slot, from);
        note(f, slot, from, false);
    }
}

/* ---- changes of replicas ---- */

/* Replicas of a lost device serve no requests.  New ones take over their parts on devices with
 * room, and the old ones are removed.  A model's only replica stays if no other device takes it. */
static void evict_lost(fleet *f, uint32_t d, uint64_t now_us) {
    for (uint32_t i = 0; i < f->n_used; i++) {
        fleet_model *m = &f->models[i];
        if (!m->used || !replica_is_here(&m->at[d]) || fleet_move_lost(f, i, d, now_us)) continue;
        uint32_t k = m->at[d].part, to = find_device(f, m, k);
        if (to == FLEET_NOWHERE && n_here(f, m) == 1) continue;
        if (to != FLEET_NOWHERE && !fleet_add_replica(f, i, to, k, n_here(f, m) > 1)) continue;
        fleet_remove_replica(f, i, d);
    }
}

/* A replica that was HOT once serves, even if it was evicted since: a request brings it back.  A
 * replica that failed or did not load in time is removed, and the next period tries again; a
 * model's only replica stays. */
static void look_at_joiner(fleet *f, uint32_t slot, uint32_t d, uint64_t now_us) {
    fleet_model *m = &f->models[slot];
    replica *r = &m->at[d];
    engine_model_info info;
    engine_model_get(f->engines[d], slot, &info);
    if (r->joined_us == 0) r->joined_us = now_us;
    bool failed = info.state == MODEL_FAILED, late = now_us >= r->joined_us + FLEET_JOIN_US;
    if (info.state != MODEL_NONE && info.n_loads > 0 && !failed)
        r->state = FLEET_SERVING;
    else if ((failed || late) && n_here(f, m) > 1)
        fleet_remove_replica(f, slot, d);
    else if (late)
        r->state = FLEET_SERVING;
}

/* Updates replicas that have left (also from a lost device) and those that may now serve. */
static void look_at_replicas(fleet *f, uint32_t slot, uint64_t now_us) {
    fleet_model *m = &f->models[slot];
    bool any = false;
    for (uint32_t d = 0; d < f->n_devices; d++) {
        replica *r = &m->at[d];
        const engine *e = f->engines[d];
        if (r->state == FLEET_LEAVING && engine_model_departures(e, slot) != r->departures) {
            fleet_add_counters(&m->gone, &r->last);
            *r = (replica){0};
            f->n_changes++;
        } else if (r->state == FLEET_LEAVING) {
            fleet_note_departure(f, slot, d);
        } else if (r->state == FLEET_JOINING) {
            look_at_joiner(f, slot, d, now_us);
        }
        any = any || r->state != FLEET_ABSENT;
    }
    if (any || !m->removed) return;
    *m = (fleet_model){0};
    atomic_fetch_add(&f->departures[slot], 1);
}

/* A model that was placed where it did not fit is HOT there now, because others left. */
static bool came_up(const fleet *f, uint32_t slot) {
    bool any = false;
    for (uint32_t d = 0; d < f->n_devices; d++) {
        if (!replica_is_here(&f->models[slot].at[d])) continue;
        model_state s = engine_model_state(f->engines[d], slot);
        if (s == MODEL_FAILED || fleet_share_percent(f, d, UINT32_MAX) > ALL_PERCENT) return false;
        any = any || s == MODEL_HOT;
    }
    return any;
}

void fleet_look(fleet *f, uint64_t now_us) {
    bool due = now_us >= f->tick_us + SCALE_PERIOD_US;
    for (uint32_t d = 0; d < f->n_devices && f->n_devices > 1; d++) {
        if (!engine_is_lost(f->engines[d]) || (f->seen_lost[d] && !due)) continue;
        f->seen_lost[d] = true;
        evict_lost(f, d, now_us);
    }
    for (uint32_t i = 0; i < f->n_used; i++)
        if (f->models[i].used) look_at_replicas(f, i, now_us);
    if (!due) return;
    uint64_t period_us = f->tick_us == 0 ? 0 : now_us - f->tick_us;
    f->tick_us = now_us;
    for (uint32_t i = 0; i < f->n_used; i++) {
        fleet_model *m = &f->models[i];
        if (m->used && !m->removed && f->n_devices > 1) learn_size(f, m);
        if (m->problem[0] != 0 && !m->lacks && came_up(f, i)) m->problem[0] = 0;
        if (m->used && !m->removed && !m->held && !fleet_is_moving(f, i))
            scale_model(f, i, now_us, period_us);
    }
}

/* ---- guarantees that can be kept ---- */

inferd_status fleet_check_min(const fleet *f, uint32_t slot, const model_policy *policy,
                              uint64_t *sums, inferd_err *err) {
    const fleet_model *m = &f->models[slot];
    for (uint32_t d = 0; d < f->n_devices && m->used; d++) {
        engine_stats s;
        engine_get_stats(f->engines[d], &s);
        if (!replica_is_here(&m->at[d]) || s.pages_device == 0) continue;
        uint64_t min = fleet_part_of(policy, m->at[d].part).min_bytes;
        sums[d] += pages_of(min, s.page_bytes);
        if (min == 0 || sums[d] <= s.pages_device) continue;
        return inferd_fail(err, INFERD_EINVAL,
                           "the guarantees (min) on %s together are %llu MiB > %llu MiB that it "
                           "has",
                           f->names[d], (unsigned long long)(sums[d] * s.page_bytes >> 20),
                           (unsigned long long)(s.pages_device * s.page_bytes >> 20));
    }
    return INFERD_OK;
}

void fleet_add_shares(const fleet *f, uint32_t slot, const model_policy *policy, uint32_t *sums,
                      uint64_t *grew) {
    const fleet_model *m = &f->models[slot];
    for (uint32_t d = 0; d < f->n_devices && m->used; d++) {
        const replica *r = &m->at[d];
        if (!replica_is_here(r)) continue;
        model_policy part = fleet_part_of(policy, r->part),
                     was = fleet_part_of(&m->about.policy, r->part);
        sums[d] += share_of(&part);
        if (share_of(&part) > share_of(&was)) *grew |= UINT64_C(1) << d;
    }
}

inferd_status fleet_check_shares(const fleet *f, const uint32_t *sums, uint64_t grew,
                                 inferd_err *err) {
    for (uint32_t d = 0; d < f->n_devices; d++)
        if ((grew >> d & 1) != 0 && sums[d] > ALL_PERCENT)
            return inferd_fail(err, INFERD_EINVAL,
                               "the guaranteed shares on %s together are %u percent > %d percent",
                               f->names[d], sums[d], ALL_PERCENT);
    return INFERD_OK;
}

bool fleet_is_too_slow(const fleet *f, uint32_t slot, const model_policy *policy, char *text,
                       size_t text_bytes) {
    const fleet_model *m = &f->models[slot];
    for (uint32_t d = 0; d < f->n_devices && m->used; d++) {
        engine_model_info info;
        feasible_share share;
        model_policy part = fleet_part_of(policy, m->at[d].part);
        if (!replica_is_here(&m->at[d]) || share_of(&part) == 0) continue;
        engine_model_get(f->engines[d], slot, &info);
        if (info.decode_us == 0 || part.slo_tpot_ms == 0) continue; // not measured, or no target
        if (feasible_share_check(info.decode_us, fleet_period_us(&part), part.share.percent,
                                 &share))
            continue;
        int used = snprintf(text, text_bytes, "on %s ", f->names[d]);
        if (used > 0 && (size_t)used < text_bytes)
            feasible_share_say(&share, text + used, text_bytes - (size_t)used);
        return true;
    }
    return false;
}
