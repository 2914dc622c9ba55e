/* fleet.c - see fleet.h.
 *
 * Placement counts the weights of a model as if they never left a device, so that models spread
 * over the devices there are; only when that finds no place it counts what could be taken back,
 * too. */
#include "fleet.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "inferd/clock.h"
#include "scheduler/place.h"
#include "scheduler/scale.h"

enum {
    AFFINITY_BUCKETS = 4096, // prompts that are remembered by their beginning
    AFFINITY_TOKENS = 64,    // so many tokens of it
    TTFT_SAMPLES = 64,       // of which the 95th percentile is looked at
    TTFT_FRESH_US = 10000000,
    PREPARED_PERCENT = 130,       // of a file, before a device says it exactly
    PAGE_BYTES_GUESS = 2 << 20,   // likewise
    CALM_TOKENS_PER_1000S = 1000, // of a model nobody asked for yet
    QUEUED_US_GUESS = 100000,     // that one waiting sequence takes
    STAGE_US_PER_PAGE = 1000      // of a model that never came
};

typedef struct replica {
    engine *e;
    bool here;    // added and not removed
    bool leaving; // removed, its departure is waited for
    uint32_t departures;
    model_policy policy; // its part
} replica;

typedef struct fleet_model {
    model *m; // NULL: the slot is empty
    uint32_t same_as;
    model_policy policy;
    replica at[FLEET_DEVICES_MAX];
    scale_state scale;
    uint32_t ttft_us[TTFT_SAMPLES];
    uint64_t ttft_at_us[TTFT_SAMPLES];
    uint32_t n_ttft;
    uint64_t device_us; // of all replicas, at the last tick
    uint32_t desired;
    char problem[160];
} fleet_model;

typedef struct affinity {
    uint64_t hash;
    uint32_t device_idx;
} affinity;

struct fleet {
    engine *engines[FLEET_DEVICES_MAX];
    char *names[FLEET_DEVICES_MAX];
    uint64_t memory_bytes[FLEET_DEVICES_MAX]; // configured; 0: not known yet
    uint64_t reserve_bytes[FLEET_DEVICES_MAX];
    uint32_t n_devices, n_slots, next_device;
    policy_placement placement;
    fleet_model *models;  // [n_slots] owned
    atomic_uint *devices; // [n_slots] bits of replicas; owned
    atomic_uint *departures;
    affinity *known; // [AFFINITY_BUCKETS] owned
    uint64_t tick_us;
};

/* ---- life ---- */

inferd_status fleet_start(const fleet_options *o, fleet **out, inferd_err *err) {
    INFERD_CHECK(o->n_devices > 0);
    if (o->n_devices > FLEET_DEVICES_MAX)
        return inferd_fail(err, INFERD_EINVAL, "%u devices, at most %d are possible", o->n_devices,
                           FLEET_DEVICES_MAX);
    fleet *f = calloc(1, sizeof *f);
    if (f == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for %u devices", o->n_devices);
    f->n_slots = o->n_slots;
    f->placement = o->placement;
    f->models = calloc(o->n_slots, sizeof *f->models);
    f->devices = calloc(o->n_slots, sizeof *f->devices);
    f->departures = calloc(o->n_slots, sizeof *f->departures);
    f->known = calloc(AFFINITY_BUCKETS, sizeof *f->known);
    inferd_status st = INFERD_OK;
    if (f->models == NULL || f->devices == NULL || f->departures == NULL || f->known == NULL)
        st = inferd_fail(err, INFERD_ENOMEM, "no memory for %u models", o->n_slots);
    for (uint32_t i = 0; i < o->n_devices && st == INFERD_OK; i++) {
        const fleet_device *d = &o->devices[i];
        engine_options eo = {.device = d->backend,
                             .limits = o->limits,
                             .n_slots = o->n_slots,
                             .wake = o->wake,
                             .wake_ctx = o->wake_ctx};
        f->names[i] = strdup(d->name);
        f->memory_bytes[i] = d->backend.memory_bytes;
        f->reserve_bytes[i] = d->backend.reserve_bytes;
        if (f->names[i] == NULL)
            st = inferd_fail(err, INFERD_ENOMEM, "no memory for a device");
        else if ((st = engine_start(&eo, &f->engines[i], err)) == INFERD_OK)
            f->n_devices++;
    }
    if (st != INFERD_OK) {
        fleet_stop(f);
        return st;
    }
    *out = f;
    return INFERD_OK;
}

void fleet_stop(fleet *f) {
    if (f == NULL) return;
    for (uint32_t i = 0; i < FLEET_DEVICES_MAX; i++) {
        engine_stop(f->engines[i]);
        free(f->names[i]);
    }
    free(f->models);
    free(f->devices);
    free(f->departures);
    free(f->known);
    free(f);
}

uint32_t fleet_n_devices(const fleet *f) {
    return f->n_devices;
}
const char *fleet_device_name(const fleet *f, uint32_t device_idx) {
    return f->names[device_idx];
}
const engine *fleet_engine(const fleet *f, uint32_t device_idx) {
    return f->engines[device_idx];
}

/* ---- where a model may go ---- */

static uint64_t bytes_of(const fleet_model *m) {
    return model_about(m->m)->file_bytes / 100 * PREPARED_PERCENT;
}

static uint32_t pages_of(uint64_t n_bytes, uint64_t page_bytes) {
    uint64_t n = (n_bytes + page_bytes - 1) / page_bytes;
    return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX - 1;
}

/* The device as it is with the replicas on it.  `lent`: weights that nobody guaranteed count as
 * free. */
static void look_at_device(const fleet *f, uint32_t d, bool lent, place_device *out) {
    engine_stats s;
    engine_get_stats(f->engines[d], &s);
    uint64_t page = s.page_bytes != 0 ? s.page_bytes : PAGE_BYTES_GUESS;
    *out = (place_device){.kind = 0,
                          .drained = engine_is_lost(f->engines[d]),
                          .page_bytes = page,
                          .capacity_pages = s.pages_device != 0 ? s.pages_device
                                            : f->memory_bytes[d] != 0
                                                ? pages_of(f->memory_bytes[d], page)
                                                : UINT32_MAX / 2,
                          .reserve_pages = pages_of(f->reserve_bytes[d], page)};
    if (out->reserve_pages > out->capacity_pages) out->reserve_pages = out->capacity_pages;
    uint64_t kept = 0;
    for (uint32_t i = 0; i < f->n_slots; i++) {
        const fleet_model *m = &f->models[i];
        if (m->m == NULL || !m->at[d].here) continue;
        uint64_t guaranteed = pages_of(m->at[d].policy.min_bytes, page);
        uint64_t weights = pages_of(bytes_of(m), page);
        out->guaranteed_pages += (uint32_t)guaranteed;
        out->share_percent += m->policy.share.percent / u32_max(m->policy.share.n_devices, 1);
        out->pressure += place_pressure(CALM_TOKENS_PER_1000S, bytes_of(m) / 1000 + 1,
                                        m->policy.slo_tpot_ms * 1000);
        kept += lent && m->policy.pin != PIN_HOT ? guaranteed
                                                 : (weights > guaranteed ? weights : guaranteed);
    }
    out->free_pages = kept < out->capacity_pages ? out->capacity_pages - (uint32_t)kept : 0;
}

/* A device for one replica more, or PLACE_NOWHERE; m->problem says why not. */
static uint32_t find_device(fleet *f, fleet_model *m) {
    place_device devices[FLEET_DEVICES_MAX];
    place_why whys[PLACE_DEVICES_MAX];
    uint32_t chosen[PLACE_REPLICAS_MAX];
    for (int lent = 0; lent <= 1; lent++) {
        uint64_t page = PAGE_BYTES_GUESS;
        uint32_t n_here = 0;
        place_wanted w = {.share_percent =
                              m->policy.share.policy == SHARE_BESTEFFORT
                                  ? 0
                                  : m->policy.share.percent / u32_max(m->policy.share.n_devices, 1),
                          .distinct = true};
        for (uint32_t d = 0; d < f->n_devices; d++) {
            look_at_device(f, d, lent == 1, &devices[d]);
            page = devices[d].page_bytes;
            w.here[d] = m->at[d].here || m->at[d].leaving;
            n_here += w.here[d];
        }
        w.n_replicas = n_here + 1;
        w.need[0] = (place_need){.weight_pages = pages_of(bytes_of(m), page),
                                 .kv_pages = 1,
                                 .min_pages = pages_of(m->policy.min_bytes, page)};
        w.pressure = place_pressure(CALM_TOKENS_PER_1000S, bytes_of(m) / 1000 + 1,
                                    m->policy.slo_tpot_ms * 1000);
        if (place_choose(devices, f->n_devices, &w, f->placement, chosen, whys) > 0) {
            m->problem[0] = 0;
            return chosen[0];
        }
    }
    place_say(&whys[0], m->problem, sizeof m->problem);
    return PLACE_NOWHERE;
}

/* ---- replicas ---- */

static void publish_devices(fleet *f, uint32_t slot) {
    uint32_t bits = 0;
    for (uint32_t d = 0; d < f->n_devices; d++)
        if (f->models[slot].at[d].here) bits |= 1u << d;
    atomic_store(&f->devices[slot], bits);
}

/* A part of what the model may have and is guaranteed. */
static model_policy part_of(const fleet_model *m, uint32_t n, uint32_t k) {
    model_policy p = m->policy;
    if (n <= 1) return p;
    p.min_bytes = m->policy.min_bytes / n + (k == 0 ? m->policy.min_bytes % n : 0);
    p.max_bytes = m->policy.max_bytes / n + (k == 0 ? m->policy.max_bytes % n : 0);
    return p;
}

static bool add_replica(fleet *f, uint32_t slot, uint32_t d, const model_policy *policy) {
    fleet_model *m = &f->models[slot];
    replica *r = &m->at[d];
    bool shared = m->same_as < f->n_slots && f->models[m->same_as].at[d].here;
    *r = (replica){.e = f->engines[d],
                   .here = true,
                   .departures = engine_model_departures(f->engines[d], slot),
                   .policy = *policy};
    if (!engine_model_add(f->engines[d], slot, m->m, shared ? m->same_as : UINT32_MAX, policy)) {
        r->here = false;
        return false;
    }
    publish_devices(f, slot);
    return true;
}

static void remove_replica(fleet *f, uint32_t slot, uint32_t d) {
    replica *r = &f->models[slot].at[d];
    r->here = false;
    r->leaving = true;
    engine_model_remove(f->engines[d], slot);
    publish_devices(f, slot);
}

static uint32_t n_here(const fleet *f, const fleet_model *m) {
    uint32_t n = 0;
    for (uint32_t d = 0; d < f->n_devices; d++) n += m->at[d].here;
    return n;
}

static uint32_t n_wanted(const fleet *f, const fleet_model *m) {
    uint32_t n = u32_max(u32_max(m->policy.replicas_min, m->policy.share.n_devices), 1);
    return u32_min(n, f->n_devices);
}

bool fleet_model_add(fleet *f, uint32_t slot, model *of, uint32_t same_as,
                     const model_policy *policy) {
    fleet_model *m = &f->models[slot];
    INFERD_CHECK(slot < f->n_slots && m->m == NULL);
    *m = (fleet_model){.m = of, .same_as = same_as, .policy = *policy};
    uint32_t n = n_wanted(f, m);
    for (uint32_t k = 0; k < n; k++) {
        uint32_t d = find_device(f, m);
        /* The first is added in any case: its engine then says what is wrong with it. */
        if (d == PLACE_NOWHERE && k > 0) break;
        model_policy part = part_of(m, m->policy.share.n_devices, k);
        if (!add_replica(f, slot, d == PLACE_NOWHERE ? 0 : d, &part)) return false;
    }
    return true;
}

void fleet_model_remove(fleet *f, uint32_t slot) {
    for (uint32_t d = 0; d < f->n_devices; d++)
        if (f->models[slot].at[d].here) remove_replica(f, slot, d);
}

bool fleet_model_set_policy(fleet *f, uint32_t slot, const model_policy *policy) {
    fleet_model *m = &f->models[slot];
    uint32_t k = 0;
    bool fine = true;
    m->policy = *policy;
    for (uint32_t d = 0; d < f->n_devices; d++) {
        if (!m->at[d].here) continue;
        m->at[d].policy = part_of(m, m->policy.share.n_devices, k++);
        fine = engine_model_set_policy(f->engines[d], slot, &m->at[d].policy) && fine;
    }
    return fine;
}

void fleet_model_do(fleet *f, uint32_t slot, engine_command command) {
    for (uint32_t d = 0; d < f->n_devices; d++)
        if (f->models[slot].at[d].here) engine_model_do(f->engines[d], slot, command);
}

/* Replicas that have left; the slot is empty when the last one has. */
static void look_for_departures(fleet *f, uint32_t slot) {
    fleet_model *m = &f->models[slot];
    bool left = false, any = false;
    for (uint32_t d = 0; d < f->n_devices; d++) {
        replica *r = &m->at[d];
        if (r->leaving && engine_model_departures(f->engines[d], slot) != r->departures) {
            r->leaving = false;
            left = true;
        }
        any = any || r->here || r->leaving;
    }
    if (!left || any) return;
    *m = (fleet_model){0};
    atomic_fetch_add(&f->departures[slot], 1);
}

uint32_t fleet_model_departures(const fleet *f, uint32_t slot) {
    return atomic_load(&f->departures[slot]);
}

uint32_t fleet_model_devices(const fleet *f, uint32_t slot) {
    return atomic_load(&f->devices[slot]);
}

uint32_t fleet_desired_replicas(const fleet *f, uint32_t slot) {
    return f->models[slot].desired;
}

const char *fleet_placement_problem(const fleet *f, uint32_t slot) {
    return f->models[slot].problem;
}

bool fleet_set_tenant(fleet *f, uint32_t tenant_idx, const tenant_policy *policy) {
    bool fine = true;
    tenant_policy part = *policy;
    part.min_bytes /= f->n_devices; // its work may be anywhere
    for (uint32_t d = 0; d < f->n_devices; d++)
        fine = engine_set_tenant(f->engines[d], tenant_idx, &part) && fine;
    return fine;
}

void fleet_set_placement(fleet *f, policy_placement placement) {
    f->placement = placement;
}

/* ---- one model, seen from outside ---- */

/* How far along; FAILED only when all are. */
static int rank_of(model_state s) {
    static const int ranks[MODEL_STATES] = {
        [MODEL_NONE] = 0, [MODEL_FAILED] = 1,  [MODEL_COLD] = 2,     [MODEL_STAGING] = 3,
        [MODEL_WARM] = 4, [MODEL_LOADING] = 5, [MODEL_DRAINING] = 6, [MODEL_HOT] = 7};
    return ranks[s];
}

static void add_info(engine_model_info *sum, const engine_model_info *i) {
    uint64_t n_loads = sum->n_loads + i->n_loads, n_stages = sum->n_stages + i->n_stages;
    engine_model_info further = rank_of(i->state) > rank_of(sum->state) ? *i : *sum;
    further.n_running = sum->n_running + i->n_running;
    further.n_waiting = sum->n_waiting + i->n_waiting;
    further.pages_weight = sum->pages_weight + i->pages_weight;
    further.pages_warm = sum->pages_warm + i->pages_warm;
    further.pages_kv = sum->pages_kv + i->pages_kv;
    further.pages_cached = sum->pages_cached + i->pages_cached;
    further.kv_blocks_used = sum->kv_blocks_used + i->kv_blocks_used;
    further.n_loads = n_loads;
    further.n_stages = n_stages;
    further.n_failed = sum->n_failed + i->n_failed;
    for (int c = 0; c < ENGINE_EVICT_CAUSES; c++)
        further.n_evictions[c] = sum->n_evictions[c] + i->n_evictions[c];
    further.hot_us = sum->hot_us + i->hot_us;
    further.load_device_us = sum->load_device_us + i->load_device_us;
    further.device_us = sum->device_us + i->device_us;
    further.sum.queue_us = sum->sum.queue_us + i->sum.queue_us;
    further.sum.reclaim_us = sum->sum.reclaim_us + i->sum.reclaim_us;
    further.sum.stage_us = sum->sum.stage_us + i->sum.stage_us;
    further.sum.load_us = sum->sum.load_us + i->sum.load_us;
    *sum = further;
}

void fleet_model_get(const fleet *f, uint32_t slot, engine_model_info *out) {
    uint32_t bits = fleet_model_devices(f, slot);
    *out = (engine_model_info){.state = MODEL_NONE};
    bool first = true;
    for (uint32_t d = 0; d < f->n_devices; d++) {
        engine_model_info info;
        if ((bits >> d & 1) == 0) continue;
        engine_model_get(f->engines[d], slot, &info);
        if (first)
            *out = info;
        else
            add_info(out, &info);
        first = false;
    }
}

model_state fleet_model_state(const fleet *f, uint32_t slot) {
    uint32_t bits = fleet_model_devices(f, slot);
    model_state best = MODEL_NONE;
    for (uint32_t d = 0; d < f->n_devices; d++) {
        if ((bits >> d & 1) == 0) continue;
        model_state s = engine_model_state(f->engines[d], slot);
        if (rank_of(s) > rank_of(best)) best = s;
    }
    return best;
}

void fleet_model_error(const fleet *f, uint32_t slot, inferd_err *out) {
    engine_model_info info;
    fleet_model_get(f, slot, &info);
    *out = info.state == MODEL_FAILED ? info.why : (inferd_err){.status = INFERD_OK};
}

inferd_status fleet_admit(const fleet *f, uint32_t slot, uint32_t n_prompt, uint32_t max_tokens,
                          inferd_err *err) {
    uint32_t bits = fleet_model_devices(f, slot);
    inferd_status st = INFERD_OK;
    for (uint32_t d = 0; d < f->n_devices; d++) {
        if ((bits >> d & 1) == 0) continue;
        st = engine_admit(f->engines[d], slot, n_prompt, max_tokens, err);
        if (st == INFERD_OK) return st;
    }
    return st;
}

/* ---- routing ---- */

/* Requests whose prompts begin alike, from the same tenant. */
static affinity *affinity_of(const fleet *f, const gen_request *r) {
    uint64_t h = 0xcbf29ce484222325u ^ r->cache_scope[0] ^ (uint64_t)r->model_idx << 32;
    for (uint32_t i = 0; i < r->n_prompt && i < AFFINITY_TOKENS; i++)
        h = (h ^ (uint32_t)r->prompt[i]) * 0x100000001b3u;
    affinity *a = &f->known[h % AFFINITY_BUCKETS];
    if (a->hash == h) return a;
    *a = (affinity){h, FLEET_DEVICES_MAX};
    return a;
}

/* What stands before a new request there, about. */
static uint64_t queue_us(const engine_model_info *i) {
    uint64_t us = (uint64_t)i->n_waiting * QUEUED_US_GUESS;
    if (i->state == MODEL_HOT) return us;
    us += i->last.load_us;
    if (i->state == MODEL_COLD || i->state == MODEL_STAGING || i->state == MODEL_FAILED)
        us += i->last.stage_us != 0
                  ? i->last.stage_us
                  : (uint64_t)i->pages_weight * STAGE_US_PER_PAGE + QUEUED_US_GUESS;
    return us;
}

static uint32_t route(const fleet *f, const gen_request *r) {
    const fleet_model *m = &f->models[r->model_idx];
    place_replica replicas[FLEET_DEVICES_MAX];
    uint32_t n = 0, only = PLACE_NOWHERE;
    affinity *a = affinity_of(f, r);
    for (uint32_t d = 0; d < f->n_devices; d++) {
        engine_model_info info;
        if (!m->at[d].here) continue;
        only = d;
        engine_model_get(f->engines[d], r->model_idx, &info);
        bool serves = info.state != MODEL_FAILED && !engine_is_lost(f->engines[d]);
        replicas[n++] = (place_replica){.device_idx = d,
                                        .prefix_tokens = a->device_idx == d ? r->n_prompt : 0,
                                        .queue_us = queue_us(&info),
                                        .passes_admission = serves,
                                        .draining = false};
    }
    uint32_t target_ms = r->ttft_target_ms != 0 ? r->ttft_target_ms : m->policy.slo_ttft_ms;
    uint32_t i = n > 1 ? place_route(replicas, n, (uint64_t)target_ms * 1000) : PLACE_NOWHERE;
    uint32_t d = i != PLACE_NOWHERE ? replicas[i].device_idx : only;
    if (d != PLACE_NOWHERE) a->device_idx = d;
    return d;
}

bool fleet_submit(fleet *f, gen_request *r, uint32_t *device_idx) {
    uint32_t d = f->n_devices == 1 ? 0 : route(f, r);
    if (d == PLACE_NOWHERE) return false;
    *device_idx = d;
    return engine_submit(f->engines[d], r);
}

void fleet_cancel(fleet *f, uint32_t device_idx, uint64_t id) {
    engine_cancel(f->engines[device_idx], id);
}
void fleet_pause(fleet *f, uint32_t device_idx, uint64_t id) {
    engine_pause(f->engines[device_idx], id);
}
void fleet_resume(fleet *f, uint32_t device_idx, uint64_t id) {
    engine_resume(f->engines[device_idx], id);
}

bool fleet_next_event(fleet *f, gen_event *out) {
    for (uint32_t i = 0; i < f->n_devices; i++) {
        uint32_t d = (f->next_device + i) % f->n_devices;
        if (!engine_next_event(f->engines[d], out)) continue;
        f->next_device = (d + 1) % f->n_devices;
        return true;
    }
    return false;
}

/* ---- as many as needed ---- */

void fleet_note_ttft(fleet *f, uint32_t slot, uint64_t ttft_us) {
    fleet_model *m = &f->models[slot];
    uint32_t i = m->n_ttft++ % TTFT_SAMPLES;
    m->ttft_us[i] = ttft_us < UINT32_MAX ? (uint32_t)ttft_us : UINT32_MAX;
    m->ttft_at_us[i] = clock_now_us();
}

static int by_size(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static uint64_t ttft_p95(const fleet_model *m, uint64_t now_us) {
    uint32_t fresh[TTFT_SAMPLES], n = 0;
    for (uint32_t i = 0; i < u32_min(m->n_ttft, TTFT_SAMPLES); i++)
        if (now_us < m->ttft_at_us[i] + TTFT_FRESH_US) fresh[n++] = m->ttft_us[i];
    if (n == 0) return 0;
    qsort(fresh, n, sizeof fresh[0], by_size);
    return fresh[(uint64_t)(n - 1) * 95 / 100];
}

/* The replica that is missed least: not HOT, else with the least to do. */
static uint32_t least_needed(const fleet *f, uint32_t slot) {
    const fleet_model *m = &f->models[slot];
    uint32_t best = PLACE_NOWHERE;
    uint64_t least = UINT64_MAX;
    for (uint32_t d = 0; d < f->n_devices; d++) {
        engine_model_info info;
        if (!m->at[d].here) continue;
        engine_model_get(f->engines[d], slot, &info);
        uint64_t n = (uint64_t)info.n_running + info.n_waiting + (info.state == MODEL_HOT);
        if (n >= least) continue;
        least = n;
        best = d;
    }
    return best;
}

static void scale_model(fleet *f, uint32_t slot, uint64_t now_us, uint64_t period_us) {
    fleet_model *m = &f->models[slot];
    engine_model_info info;
    fleet_model_get(f, slot, &info);
    uint32_t n = n_here(f, m), n_starting = 0;
    for (uint32_t d = 0; d < f->n_devices; d++) {
        model_state s = m->at[d].here ? engine_model_state(f->engines[d], slot) : MODEL_HOT;
        n_starting += n > 1 && (s == MODEL_NONE || s == MODEL_STAGING || s == MODEL_LOADING);
    }
    uint32_t least = n_wanted(f, m);
    scale_input in = {.now_us = now_us,
                      .ttft_p95_us = ttft_p95(m, now_us),
                      .ttft_max_us = (uint64_t)m->policy.slo_ttft_ms * 1000,
                      .n_replicas = n,
                      .n_starting = n_starting,
                      .n_waiting = info.n_waiting,
                      .n_running = info.n_running,
                      .load_ppm = info.device_us > m->device_us && period_us > 0
                                      ? (info.device_us - m->device_us) * 1000000 / period_us
                                      : 0,
                      .replicas_min = least,
                      .replicas_max = u32_max(m->policy.replicas_max, least),
                      .feasible = n < f->n_devices};
    m->device_us = info.device_us;
    scale_decision d = scale_decide(&m->scale, &in);
    m->desired = d.desired;
    if (d.step > 0) {
        uint32_t to = find_device(f, m);
        model_policy part = part_of(m, m->policy.share.n_devices, n);
        if (to == PLACE_NOWHERE || !add_replica(f, slot, to, &part)) return;
        engine_model_do(f->engines[to], slot, ENGINE_LOAD);
    } else if (d.step < 0) {
        remove_replica(f, slot, least_needed(f, slot));
    }
}

/* Replicas of a lost device serve nobody: they go, and others come where there is room. */
static void leave_lost(fleet *f, uint32_t slot) {
    fleet_model *m = &f->models[slot];
    for (uint32_t d = 0; d < f->n_devices; d++) {
        if (!m->at[d].here || !engine_is_lost(f->engines[d]) || f->n_devices == 1) continue;
        uint32_t to = find_device(f, m);
        if (to == PLACE_NOWHERE) continue;
        model_policy part = m->at[d].policy;
        if (add_replica(f, slot, to, &part)) remove_replica(f, slot, d);
    }
}

void fleet_tick(fleet *f, uint64_t now_us) {
    for (uint32_t i = 0; i < f->n_slots; i++)
        if (f->models[i].m != NULL) look_for_departures(f, i);
    if (now_us < f->tick_us + SCALE_PERIOD_US) return;
    uint64_t period_us = now_us - f->tick_us;
    f->tick_us = now_us;
    for (uint32_t i = 0; i < f->n_slots; i++) {
        if (f->models[i].m == NULL || n_here(f, &f->models[i]) == 0) continue;
        leave_lost(f, i);
        scale_model(f, i, now_us, period_us);
    }
}

/* ---- all devices ---- */

void fleet_get_stats(const fleet *f, engine_stats *out) {
    engine_get_stats(f->engines[0], out);
    for (uint32_t d = 1; d < f->n_devices; d++) {
        engine_stats s;
        engine_get_stats(f->engines[d], &s);
        out->n_running += s.n_running;
        out->n_waiting += s.n_waiting;
        out->n_paused += s.n_paused;
        out->pages_total += s.pages_total;
        out->pages_free += s.pages_free;
        out->pages_weight += s.pages_weight;
        out->pages_kv += s.pages_kv;
        out->pages_cached += s.pages_cached;
        out->pages_quarantine += s.pages_quarantine;
        out->pages_warm += s.pages_warm;
        out->pages_device += s.pages_device;
        out->pages_host += s.pages_host;
        out->pages_host_free += s.pages_host_free;
        out->n_steps += s.n_steps;
        out->n_rows += s.n_rows;
        out->n_prefill_rows += s.n_prefill_rows;
        out->n_decode_rows += s.n_decode_rows;
        out->step_us_sum += s.step_us_sum;
        out->device_us_sum += s.device_us_sum;
        for (int i = 0; i < ENGINE_STEP_BUCKETS; i++) out->step_us_hist[i] += s.step_us_hist[i];
        out->n_preemptions += s.n_preemptions;
        out->n_recomputed_tokens += s.n_recomputed_tokens;
        out->prefix_queries_tokens += s.prefix_queries_tokens;
        out->prefix_hits_tokens += s.prefix_hits_tokens;
        out->n_drafted += s.n_drafted;
        out->n_drafts_right += s.n_drafts_right;
        out->n_submitted += s.n_submitted;
        for (int i = 0; i <= GEN_ERROR; i++) out->n_finished[i] += s.n_finished[i];
        out->charged_us += s.charged_us;
        out->waste_us += s.waste_us;
        out->account_step_us += s.account_step_us;
        out->account_load_us += s.account_load_us;
        out->account_idle_us += s.account_idle_us;
        out->n_turns += s.n_turns;
    }
}

bool fleet_is_settled(const fleet *f) {
    for (uint32_t d = 0; d < f->n_devices; d++)
        if (!engine_is_settled(f->engines[d])) return false;
    return true;
}

bool fleet_is_lost(const fleet *f) {
    for (uint32_t d = 0; d < f->n_devices; d++)
        if (!engine_is_lost(f->engines[d])) return false;
    return true;
}

uint64_t fleet_stuck_us(const fleet *f) {
    uint64_t longest = 0;
    for (uint32_t d = 0; d < f->n_devices; d++) {
        uint64_t us = engine_stuck_us(f->engines[d]);
        if (us > longest) longest = us;
    }
    return longest;
}

void fleet_load_progress(const fleet *f, uint64_t *done, uint64_t *total) {
    *done = *total = 0;
    for (uint32_t d = 0; d < f->n_devices; d++) {
        uint64_t some, all;
        engine_load_progress(f->engines[d], &some, &all);
        *done += some;
        *total += all;
    }
}

inferd_status fleet_audit(fleet *f, uint32_t timeout_ms, buf *json, inferd_err *err) {
    buf_add_char(json, '[');
    for (uint32_t d = 0; d < f->n_devices; d++) {
        buf_add_format(json, "%s{\"device\":\"%s\",\"books\":", d > 0 ? "," : "", f->names[d]);
        inferd_status st = engine_audit(f->engines[d], timeout_ms, json, err);
        if (st != INFERD_OK) return st;
        buf_add_char(json, '}');
    }
    buf_add_char(json, ']');
    return INFERD_OK;
}
