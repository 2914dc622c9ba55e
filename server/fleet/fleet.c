/* fleet.c - see fleet.h: the engines, routing of requests, and the state as seen from outside.
 *
 * Functions for any thread read what engines publish, and the atomic `devices` of a model. */
#include <stdlib.h>
#include <string.h>

#include "fleet_private.h"
#include "inferd/clock.h"
#include "inferd/hash.h"
#include "json_out.h"

enum {
    RUNNING_DEFAULT = 32,      // as the engine's limits
    REQUEST_US_GUESS = 100000, // device time of one request, before any has ended
    TOKEN_US_GUESS = 100,      // of a prompt token, before a step was measured
    RUNNING_PARTS = 16         // a new request waits for 1/16 of the time of each running request
};

/* ---- life ---- */

static inferd_status create(const fleet_options *o, fleet **out, inferd_err *err) {
    INFERD_CHECK(o->n_devices > 0);
    *out = NULL;
    if (o->n_devices > FLEET_DEVICES_MAX)
        return inferd_fail(err, INFERD_EINVAL, "%u devices, at most %d are possible", o->n_devices,
                           FLEET_DEVICES_MAX);
    fleet *f = calloc(1, sizeof *f);
    if (f == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for %u devices", o->n_devices);
    f->n_slots = o->n_slots;
    f->running_max = o->limits.running_max != 0 ? o->limits.running_max : RUNNING_DEFAULT;
    f->models = calloc(o->n_slots, sizeof *f->models);
    f->devices = calloc(o->n_slots, sizeof *f->devices);
    f->departures = calloc(o->n_slots, sizeof *f->departures);
    f->twins = calloc(o->n_slots, sizeof *f->twins);
    f->prefixes = calloc(FLEET_PREFIXES, sizeof *f->prefixes);
    f->scales = calloc(o->n_slots, sizeof *f->scales);
    bool fine = f->models != NULL && f->devices != NULL && f->departures != NULL &&
                f->twins != NULL && f->prefixes != NULL && f->scales != NULL;
    for (uint32_t i = 0; i < o->n_devices && fine; i++) {
        f->names[i] = strdup(o->devices[i].name);
        f->memory_bytes[i] = o->devices[i].memory_bytes;
        fine = f->names[i] != NULL;
    }
    if (fine) {
        *out = f;
        return INFERD_OK;
    }
    fleet_stop(f);
    return inferd_fail(err, INFERD_ENOMEM, "no memory for %u models on %u devices", o->n_slots,
                       o->n_devices);
}

inferd_status fleet_start(const fleet_options *o, fleet **out, inferd_err *err) {
    fleet *f;
    *out = NULL;
    inferd_status st = create(o, &f, err);
    for (uint32_t i = 0; i < o->n_devices && st == INFERD_OK; i++) {
        engine_options eo = {.device = o->devices[i].backend,
                             .limits = o->limits,
                             .n_slots = o->n_slots,
                             .wake = o->wake,
                             .wake_ctx = o->wake_ctx};
        st = engine_expect_models(&eo, o->models, o->n_models, err);
        if (st == INFERD_OK) st = engine_start(&eo, &f->engines[i], err);
        if (st == INFERD_OK)
            f->n_devices++;
        else
            inferd_context(err, "%s", f->names[i]);
    }
    if (st == INFERD_OK)
        *out = f;
    else
        fleet_stop(f);
    return st;
}

inferd_status fleet_of_engines(const fleet_options *o, engine *const *engines, fleet **out,
                               inferd_err *err) {
    inferd_status st = create(o, out, err);
    for (uint32_t i = 0; i < o->n_devices; i++) {
        if (st != INFERD_OK)
            engine_stop(engines[i]);
        else
            (*out)->engines[(*out)->n_devices++] = engines[i];
    }
    return st;
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
    free(f->twins);
    free(f->prefixes);
    free(f->scales);
    fleet_free_tenants(f);
    free(f);
}

uint32_t fleet_n_devices(const fleet *f) {
    return f->n_devices;
}

const char *fleet_device_name(const fleet *f, uint32_t device_idx) {
    return f->names[device_idx];
}

engine *fleet_engine_to_watch(fleet *f, uint32_t device_idx) {
    return f->engines[device_idx];
}

const engine *fleet_engine(const fleet *f, uint32_t device_idx) {
    return f->engines[device_idx];
}

/* ---- as configured ---- */

bool fleet_set_policy(fleet *f, const engine_limits *limits) {
    bool fine = true;
    for (uint32_t d = 0; d < f->n_devices; d++)
        fine = engine_set_policy(f->engines[d], limits) && fine;
    return fine;
}

uint64_t fleet_n_changes(const fleet *f) {
    return f->n_changes;
}

/* ---- one model, seen from outside ---- */

uint32_t fleet_model_departures(const fleet *f, uint32_t slot) {
    return atomic_load(&f->departures[slot]);
}

uint64_t fleet_model_devices(const fleet *f, uint32_t slot) {
    return atomic_load(&f->devices[slot]);
}

uint32_t fleet_desired_replicas(const fleet *f, uint32_t slot) {
    return f->models[slot].desired;
}

const char *fleet_placement_problem(const fleet *f, uint32_t slot) {
    return f->models[slot].problem;
}

void fleet_get_replica(const fleet *f, uint32_t slot, uint32_t device_idx, fleet_replica *out) {
    const replica *r = &f->models[slot].at[device_idx];
    *out = (fleet_replica){
        .state = r->state, .part = r->part, .n_open = r->n_open, .policy = r->policy};
}

const char *fleet_replica_state_name(fleet_replica_state state) {
    static const char *const names[] = {"absent", "joining", "serving", "leaving"};
    return names[state];
}

/* How advanced a state is; FAILED wins only if all replicas failed. */
static int rank_of(model_state s) {
    static const int ranks[MODEL_STATES] = {
        [MODEL_NONE] = 0, [MODEL_FAILED] = 1,  [MODEL_COLD] = 2,     [MODEL_STAGING] = 3,
        [MODEL_WARM] = 4, [MODEL_LOADING] = 5, [MODEL_DRAINING] = 6, [MODEL_HOT] = 7};
    return ranks[s];
}

static void add_switch(engine_switch *sum, const engine_switch *s) {
    sum->queue_us += s->queue_us;
    sum->reclaim_us += s->reclaim_us;
    sum->stage_us += s->stage_us;
    sum->load_us += s->load_us;
    sum->first_us += s->first_us;
}

static fleet_counters counters_of(const engine_model_info *i) {
    fleet_counters c = {.n_stages = i->n_stages,
                        .n_loads = i->n_loads,
                        .n_failed = i->n_failed,
                        .n_saturated = i->n_saturated,
                        .hot_us = i->hot_us,
                        .load_device_us = i->load_device_us,
                        .device_us = i->device_us,
                        .used_us = i->used_us,
                        .sum = i->sum};
    memcpy(c.n_evictions, i->n_evictions, sizeof c.n_evictions);
    memcpy(c.n_preempts, i->n_preempts, sizeof c.n_preempts);
    return c;
}

void fleet_add_counters(fleet_counters *sum, const fleet_counters *c) {
    sum->n_stages += c->n_stages;
    sum->n_loads += c->n_loads;
    sum->n_failed += c->n_failed;
    sum->n_saturated += c->n_saturated;
    for (int i = 0; i < ENGINE_EVICT_CAUSES; i++) sum->n_evictions[i] += c->n_evictions[i];
    for (int i = 0; i < GEN_PREEMPTS; i++) sum->n_preempts[i] += c->n_preempts[i];
    sum->hot_us += c->hot_us;
    sum->load_device_us += c->load_device_us;
    sum->device_us += c->device_us;
    sum->used_us = u64_max(sum->used_us, c->used_us);
    add_switch(&sum->sum, &c->sum);
}

static void set_counters(engine_model_info *i, const fleet_counters *c) {
    i->n_stages = c->n_stages;
    i->n_loads = c->n_loads;
    i->n_failed = c->n_failed;
    i->n_saturated = c->n_saturated;
    memcpy(i->n_evictions, c->n_evictions, sizeof i->n_evictions);
    memcpy(i->n_preempts, c->n_preempts, sizeof i->n_preempts);
    i->hot_us = c->hot_us;
    i->load_device_us = c->load_device_us;
    i->device_us = c->device_us;
    i->used_us = c->used_us;
    i->sum = c->sum;
}

/* If one of two ceilings is absent, so is the sum. */
static uint64_t add_ceiling(uint64_t a, uint64_t b, uint64_t none) {
    return a == none || b == none ? none : a + b;
}

/* Counts are summed; other members are those of the more advanced replica. */
static void add_info(engine_model_info *sum, const engine_model_info *i) {
    engine_model_info was = *sum;
    if (rank_of(i->state) > rank_of(sum->state)) *sum = *i;
    const engine_model_info *other = rank_of(i->state) > rank_of(was.state) ? &was : i;
    fleet_counters all = counters_of(sum), its = counters_of(other);
    fleet_add_counters(&all, &its);
    set_counters(sum, &all);
    sum->n_running += other->n_running;
    sum->n_waiting += other->n_waiting;
    sum->pages_weight += other->pages_weight;
    sum->pages_warm += other->pages_warm;
    sum->pages_kv += other->pages_kv;
    sum->pages_cached += other->pages_cached;
    sum->pages_swapped += other->pages_swapped;
    sum->pages_min += other->pages_min;
    sum->pages_max = (uint32_t)add_ceiling(sum->pages_max, other->pages_max, UINT32_MAX);
    sum->kv_blocks_used += other->kv_blocks_used;
    sum->kv_blocks_max += other->kv_blocks_max;
    sum->bytes_used += other->bytes_used;
    sum->bytes_held += other->bytes_held;
    sum->bytes_cached += other->bytes_cached;
    sum->bytes_min += other->bytes_min;
    sum->bytes_max = add_ceiling(sum->bytes_max, other->bytes_max, UINT64_MAX);
    sum->cost_error_ppm = u32_max(sum->cost_error_ppm, other->cost_error_ppm); // the worst
    if (other->idle_us < sum->idle_us) sum->idle_us = other->idle_us;
    if (sum->waiting_since_us == 0 ||
        (other->waiting_since_us != 0 && other->waiting_since_us < sum->waiting_since_us))
        sum->waiting_since_us = other->waiting_since_us;
}

/* Any thread: does it have a replica there? */
static bool is_on(const fleet *f, uint32_t slot, uint32_t d) {
    return (fleet_model_devices(f, slot) >> d & 1) != 0;
}

void fleet_model_get(const fleet *f, uint32_t slot, engine_model_info *out) {
    *out = (engine_model_info){.state = MODEL_NONE};
    bool first = true;
    for (uint32_t d = 0; d < f->n_devices; d++) {
        if (!is_on(f, slot, d)) continue;
        engine_model_info info;
        engine_model_get(f->engines[d], slot, &info);
        if (first)
            *out = info;
        else
            add_info(out, &info);
        first = false;
    }
}

void fleet_note_departure(const fleet *f, uint32_t slot, uint32_t d) {
    replica *r = &f->models[slot].at[d];
    engine_model_info info;
    engine_model_get(f->engines[d], slot, &info);
    bool gone = engine_model_departures(f->engines[d], slot) != r->departures;
    if (info.state != MODEL_NONE && !gone) r->last = counters_of(&info);
}

void fleet_model_tally(const fleet *f, uint32_t slot, engine_model_info *out) {
    const fleet_model *m = &f->models[slot];
    fleet_model_get(f, slot, out);
    fleet_counters all = counters_of(out);
    fleet_add_counters(&all, &m->gone);
    for (uint32_t d = 0; d < f->n_devices; d++) {
        if (m->at[d].state != FLEET_LEAVING) continue;
        fleet_note_departure(f, slot, d);
        fleet_add_counters(&all, &m->at[d].last);
    }
    set_counters(out, &all);
}

model_state fleet_model_state(const fleet *f, uint32_t slot) {
    model_state best = MODEL_NONE;
    for (uint32_t d = 0; d < f->n_devices; d++) {
        if (!is_on(f, slot, d)) continue;
        model_state s = engine_model_state(f->engines[d], slot);
        if (rank_of(s) > rank_of(best)) best = s;
    }
    return best;
}

model_state fleet_slot_state(const fleet *f, uint32_t slot) {
    model_state best = MODEL_NONE;
    for (uint32_t d = 0; d < f->n_devices; d++) {
        model_state s = engine_model_state(f->engines[d], slot);
        if (rank_of(s) > rank_of(best)) best = s;
    }
    return best;
}

uint64_t fleet_tenant_bytes(const fleet *f, uint32_t tenant_idx) {
    uint64_t n_bytes = 0;
    for (uint32_t d = 0; d < f->n_devices; d++)
        n_bytes += engine_tenant_bytes(f->engines[d], tenant_idx);
    return n_bytes;
}

void fleet_tenant_seqs(const fleet *f, uint32_t tenant_idx, uint32_t *n_running,
                       uint32_t *n_waiting) {
    *n_running = *n_waiting = 0;
    for (uint32_t d = 0; d < f->n_devices; d++) {
        uint32_t running, waiting;
        engine_tenant_seqs(f->engines[d], tenant_idx, &running, &waiting);
        *n_running += running;
        *n_waiting += waiting;
    }
}

void fleet_model_error(const fleet *f, uint32_t slot, inferd_err *out) {
    engine_model_info info;
    fleet_model_get(f, slot, &info);
    *out = info.state == MODEL_FAILED ? info.why : (inferd_err){.status = INFERD_OK};
}

bool fleet_model_is_lost(const fleet *f, uint32_t slot) {
    bool any = false;
    for (uint32_t d = 0; d < f->n_devices; d++) {
        if (!is_on(f, slot, d)) continue;
        if (!engine_is_lost(f->engines[d])) return false;
        any = true;
    }
    return any || fleet_is_lost(f);
}

inferd_status fleet_admit(const fleet *f, gen_request *r, uint64_t *devices, inferd_err *err) {
    uint64_t there = fleet_model_devices(f, r->model_idx);
    inferd_status refused = INFERD_OK;
    *devices = 0;
    r->fit_tokens = UINT32_MAX;
    for (uint32_t d = 0; d < f->n_devices; d++) {
        uint32_t fit_tokens;
        if ((there >> d & 1) == 0) continue;
        inferd_status s =
            engine_admit(f->engines[d], r->model_idx, r->n_prompt, r->max_tokens, &fit_tokens, err);
        if (s != INFERD_OK) {
            refused = s;
            continue;
        }
        *devices |= UINT64_C(1) << d;
        r->fit_tokens = u32_min(r->fit_tokens, fit_tokens);
    }
    return *devices != 0 ? INFERD_OK : refused;
}

/* ---- routing ---- */

static const uint32_t prefix_tokens[FLEET_PREFIX_LEVELS] = {32, 128, 512, 2048};

typedef struct prefix_marks {
    prefix_home *at[FLEET_PREFIX_LEVELS];
    uint64_t hashes[FLEET_PREFIX_LEVELS];
    uint32_t n;
} prefix_marks;

/* Hashes of ever longer prefixes of a prompt, for its scope and model. */
static prefix_marks marks_of(const fleet *f, const gen_request *r) {
    prefix_marks m = {.n = 0};
    if (r->no_cache) return m;
    uint64_t h =
        HASH_BEGIN ^ r->cache_scope[0] ^ r->cache_scope[1] * 31 ^ (uint64_t)r->model_idx << 32;
    uint32_t i = 0;
    for (uint32_t k = 0; k < FLEET_PREFIX_LEVELS && r->n_prompt >= prefix_tokens[k]; k++) {
        for (; i < prefix_tokens[k]; i++) h = hash_step(h, (uint32_t)r->prompt[i]);
        m.at[m.n] = &f->prefixes[(h ^ h >> 29) % FLEET_PREFIXES];
        m.hashes[m.n++] = h;
    }
    return m;
}

/* Tokens of the longest prefix of the prompt that was sent there before. */
static uint32_t prefix_on(const prefix_marks *m, uint32_t d) {
    for (uint32_t k = m->n; k > 0; k--)
        if (m->at[k - 1]->hash == m->hashes[k - 1] && (m->at[k - 1]->devices >> d & 1) != 0)
            return prefix_tokens[k - 1];
    return 0;
}

static void leave_marks(const prefix_marks *m, uint32_t d) {
    for (uint32_t k = 0; k < m->n; k++) {
        if (m->at[k]->hash != m->hashes[k]) *m->at[k] = (prefix_home){.hash = m->hashes[k]};
        m->at[k]->devices |= UINT64_C(1) << d;
    }
}

/* Time of the work queued ahead of a new request there, about. */
static uint64_t queue_us(const fleet *f, const fleet_model *m, const replica *r,
                         const engine_model_info *i) {
    uint64_t each_us = r->n_done > 0 ? i->device_us / r->n_done : REQUEST_US_GUESS;
    uint32_t n_running = u32_min(r->n_open, f->running_max), n_waiting = r->n_open - n_running;
    uint64_t us = n_waiting * each_us + n_running * (each_us / RUNNING_PARTS + 1);
    if (i->state == MODEL_HOT) return us;
    us += i->last.load_us;
    bool warm = i->state == MODEL_WARM || i->state == MODEL_LOADING || i->state == MODEL_DRAINING;
    if (warm) return us + 1;
    return us + (i->last.stage_us != 0 ? i->last.stage_us : fleet_stage_us(m->about.weight_bytes));
}

/* Device time per row computed there; 0: nothing was computed yet. */
static uint64_t token_us(const fleet *f, uint32_t d) {
    engine_stats s;
    engine_get_stats(f->engines[d], &s);
    return s.n_rows > 0 ? s.device_us_sum / s.n_rows + 1 : 0;
}

/* A device that has computed nothing counts as fast as the others, or it would never be tried. */
static uint64_t prompt_us(const fleet *f, uint32_t d, uint32_t n_tokens) {
    uint64_t each_us = token_us(f, d);
    for (uint32_t o = 0; o < f->n_devices && each_us == 0; o++) each_us = token_us(f, o);
    return n_tokens * (each_us != 0 ? each_us : TOKEN_US_GUESS);
}

uint32_t fleet_choose(fleet *f, const gen_request *r, uint64_t devices) {
    const fleet_model *m = &f->models[r->model_idx];
    placement_replica replicas[FLEET_DEVICES_MAX];
    uint32_t n = 0, any = FLEET_NOWHERE;
    if (f->n_devices == 1) return m->at[0].state == FLEET_SERVING ? 0 : FLEET_NOWHERE;
    prefix_marks marks = marks_of(f, r);
    for (uint32_t d = 0; d < f->n_devices; d++) {
        engine_model_info info;
        if (!replica_is_here(&m->at[d])) continue;
        any = any == FLEET_NOWHERE || m->at[d].state == FLEET_SERVING ? d : any;
        engine_model_get(f->engines[d], r->model_idx, &info);
        uint32_t known = u32_min(prefix_on(&marks, d), r->n_prompt);
        replicas[n++] = (placement_replica){.device_idx = d,
                                            .prefix_tokens = known,
                                            .queue_us = queue_us(f, m, &m->at[d], &info),
                                            .prompt_us = prompt_us(f, d, r->n_prompt - known),
                                            .passes_admission = info.state != MODEL_FAILED &&
                                                                (devices >> d & 1) != 0,
                                            .draining = m->at[d].state == FLEET_JOINING};
    }
    uint32_t target_ms = r->ttft_target_ms != 0 ? r->ttft_target_ms : m->about.policy.slo_ttft_ms;
    uint32_t i =
        n > 0 ? placement_route(replicas, n, (uint64_t)target_ms * 1000) : PLACEMENT_NOWHERE;
    /* If no replica takes it, the engine of one of them reports why. */
    uint32_t d = i != PLACEMENT_NOWHERE ? replicas[i].device_idx : any;
    if (d != FLEET_NOWHERE) leave_marks(&marks, d);
    return d;
}

bool fleet_submit(fleet *f, uint32_t device_idx, gen_request *r) {
    replica *at = &f->models[r->model_idx].at[device_idx];
    uint32_t tenant_idx = r->tenant_idx;
    bool counts = f->n_devices > 1; // a tenant's policy is divided over the devices of its work
    if (counts && !fleet_tenant_begins(f, tenant_idx, device_idx)) return false;
    if (!engine_submit(f->engines[device_idx], r)) {
        if (counts) fleet_tenant_ends(f, tenant_idx, device_idx);
        return false;
    }
    at->n_open++;
    return true;
}

uint32_t fleet_send(fleet *f, gen_request *r, uint64_t devices) {
    uint32_t d = fleet_choose(f, r, devices);
    return d != FLEET_NOWHERE && fleet_submit(f, d, r) ? d : FLEET_NOWHERE;
}

void fleet_note_done(fleet *f, uint32_t device_idx, uint32_t slot, uint32_t tenant_idx) {
    replica *r = &f->models[slot].at[device_idx];
    if (r->n_open > 0) r->n_open--;
    r->n_done++;
    fleet_tenant_ends(f, tenant_idx, device_idx);
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

/* Round robin, so that a device with many events does not delay the events of others. */
bool fleet_next_event(fleet *f, gen_event *out) {
    for (uint32_t i = 0; i < f->n_devices; i++) {
        uint32_t d = (f->next_device + i) % f->n_devices;
        if (!engine_next_event(f->engines[d], out)) continue;
        f->next_device = (d + 1) % f->n_devices;
        return true;
    }
    return false;
}

void fleet_note_ttft(fleet *f, uint32_t slot, uint64_t ttft_us, uint64_t now_us) {
    fleet_model *m = &f->models[slot];
    uint32_t i = m->n_ttft++ % FLEET_TTFT_SAMPLES;
    m->ttft_us[i] = ttft_us < UINT32_MAX ? (uint32_t)ttft_us : UINT32_MAX;
    m->ttft_at_us[i] = now_us;
}

/* ---- all devices ---- */

void fleet_tick(fleet *f, uint64_t now_us) {
    f->settled = fleet_is_settled(f);
    fleet_look(f, now_us);
    fleet_rebalance(f, now_us);
    fleet_look_at_tenants(f, now_us);
    fleet_divide_fixed(f);
}

void fleet_get_queues(const fleet *f, fleet_queues *out) {
    *out = (fleet_queues){0};
    for (uint32_t d = 0; d < f->n_devices; d++) {
        engine_stats s;
        engine_get_stats(f->engines[d], &s);
        out->n_running += s.n_running;
        out->n_waiting += s.n_waiting;
        out->n_paused += s.n_paused;
    }
}

static bool serves_any(const fleet *f, uint32_t d) {
    for (uint32_t i = 0; i < f->n_used; i++)
        if (f->models[i].used && f->models[i].at[d].state == FLEET_SERVING) return true;
    return false;
}

/* A device without a replica never reports that it is settled.  Once settled, the fleet stays
 * settled: a first replica that joins later does not change that. */
bool fleet_is_settled(const fleet *f) {
    for (uint32_t d = 0; d < f->n_devices && !f->settled; d++)
        if (!engine_is_settled(f->engines[d]) && !engine_is_lost(f->engines[d]) && serves_any(f, d))
            return false;
    return true;
}

bool fleet_lose(fleet *f, uint32_t device_idx, const inferd_err *why) {
    return engine_lose(f->engines[device_idx], why);
}

void fleet_set_drill(fleet *f, uint32_t device_idx, uint32_t drill) {
    engine_set_drill(f->engines[device_idx], drill);
}

void fleet_lost_why(const fleet *f, uint32_t device_idx, inferd_err *out) {
    *out = (inferd_err){0};
    for (uint32_t i = 0; i < f->n_slots && out->status != INFERD_ELOST; i++)
        engine_model_error(f->engines[device_idx], i, out);
}

bool fleet_is_lost(const fleet *f) {
    for (uint32_t d = 0; d < f->n_devices; d++)
        if (!engine_is_lost(f->engines[d])) return false;
    return true;
}

uint64_t fleet_stuck_us(const fleet *f, uint32_t *device_idx) {
    uint64_t longest = 0;
    *device_idx = 0;
    for (uint32_t d = 0; d < f->n_devices; d++) {
        uint64_t us = engine_stuck_us(f->engines[d]);
        if (us <= longest) continue;
        longest = us;
        *device_idx = d;
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

/* The accounting of one engine is a JSON object: its name is inserted before its members. */
static inferd_status add_books(fleet *f, uint32_t d, uint32_t timeout_ms, buf *json, bool *ok,
                               inferd_err *err) {
    static const char good[] = "{\"ok\":true,";
    buf books = {0};
    inferd_status st = engine_audit(f->engines[d], timeout_ms, &books, err);
    if (st == INFERD_OK) {
        *ok = *ok && strncmp(buf_cstr(&books), good, sizeof good - 1) == 0;
        buf_add_str(json, d > 0 ? ",{\"device\":" : "{\"device\":");
        json_add_string(json, f->names[d], strlen(f->names[d]));
        buf_add_char(json, ',');
        buf_add(json, books.p + 1, books.n - 1);
    } else {
        inferd_context(err, "%s", f->names[d]);
    }
    buf_deinit(&books);
    return st;
}

inferd_status fleet_audit(fleet *f, uint32_t timeout_ms, buf *json, inferd_err *err) {
    bool ok = true;
    buf all = {0};
    inferd_status st = INFERD_OK;
    uint64_t now_us = clock_now_us(), until_us = now_us + (uint64_t)timeout_ms * 1000;
    for (uint32_t d = 0; d < f->n_devices && st == INFERD_OK; d++) {
        uint32_t left_ms = now_us < until_us ? (uint32_t)((until_us - now_us) / 1000) : 0;
        st = add_books(f, d, left_ms, &all, &ok, err);
        now_us = clock_now_us();
    }
    if (st == INFERD_OK)
        buf_add_format(json, "{\"ok\":%s,\"devices\":[%s]", ok ? "true" : "false", buf_cstr(&all));
    if (st == INFERD_OK && (all.failed || json->failed))
        st = inferd_fail(err, INFERD_ENOMEM, "no memory for an audit");
    buf_deinit(&all);
    return st;
}

inferd_status fleet_page_map(fleet *f, uint32_t device_idx, uint32_t timeout_ms, buf *json,
                             inferd_err *err) {
    return engine_page_map(f->engines[device_idx], timeout_ms, json, err);
}
