/* world.c - see world.h. */
#include "world.h"

#include <math.h>
#include <string.h>

#include "engine_limits.h"
#include "report.h"
#include "seq.h"
#include "share.h"

enum { WARM_TOKENS = 3 }; // prompts use no ids below this: SIM_TOKEN and its neighbours

void world_options_init(world_options *o, const sim_preset *preset) {
    /* Defaults of the daemon's configuration (server/config/config_tables.c); the rest are the
     * engine's own.  test_sim_world compares all of them with a configuration. */
    engine_limits l = limits_fill(&(engine_limits){.urgent_percent = 5});
    *o = (world_options){.preset = preset,
                         .verify_iterations = WORLD_VERIFY_ITERATIONS,
                         .sched = limits_of_sched(&l),
                         .residency = limits_of_models(&l)};
}

model_policy world_policy(void) {
    return (model_policy){.prio = GEN_NORMAL,
                          .weight = 1,
                          .keep_alive_us = POLICY_NEVER,
                          .replicas_min = 1,
                          .replicas_max = 1};
}

/* ---- callbacks of a core ---- */

static uint64_t read_clock(void *ctx) {
    return ((world *)ctx)->device->clock_us;
}

static uint32_t room(void *ctx) {
    (void)ctx;
    return UINT32_MAX;
}

/* ---- other valuations of idle models ---- */

static uint64_t worth_by_idle_time(void *ctx, const residency *r, uint32_t idx, uint64_t now_us) {
    (void)ctx;
    uint64_t active_us = r->slots[idx].active_us;
    return UINT64_MAX - (now_us > active_us ? now_us - active_us : 0);
}

/* Where arrivals are memoryless, the rate alone counts, however long a model was idle. */
static uint64_t worth_by_rate(void *ctx, const residency *r, uint32_t idx, uint64_t now_us) {
    const world *w = ctx;
    uint64_t n = 0;
    (void)r, (void)now_us;
    for (size_t i = 0; i < w->n_records; i++) n += w->records[i].model_idx == idx;
    return n;
}

/* The time to bring weights back is proportional to their bytes, so only the next use counts: the
 * model needed last goes first. */
static uint64_t worth_by_next_use(void *ctx, const residency *r, uint32_t idx, uint64_t now_us) {
    world *w = ctx;
    const world_record *all = w->records;
    uint64_t at_us = u64_less(now_us, w->begin_us);
    size_t *next = &w->next_arrival[idx], end = w->n_records;
    (void)r;
    while (*next < end && (all[*next].model_idx != idx || all[*next].stats.arrival_us < at_us))
        (*next)++;
    return *next < end ? UINT64_MAX - (all[*next].stats.arrival_us - at_us) : 0;
}

static inferd_status set_worth(world *w, inferd_err *err) {
    const world_options *o = &w->options;
    residency *r = &w->core.models;
    if (o->worth == WORLD_WORTH_LRU) r->worth = worth_by_idle_time;
    if (o->worth == WORLD_WORTH_OWN || o->worth == WORLD_WORTH_LRU) return INFERD_OK;
    w->next_arrival = calloc(o->n_models, sizeof *w->next_arrival);
    if (w->next_arrival == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for %u models", o->n_models);
    r->worth = o->worth == WORLD_WORTH_RATE ? worth_by_rate : worth_by_next_use;
    r->worth_ctx = w;
    r->spares = true;
    return INFERD_OK;
}

/* An open slot came free. */
static void note_free_slot(world *w, uint64_t at_us) {
    uint64_t *grown = array_grow(w->ends_us, w->n_ends, &w->ends_capacity, sizeof *grown);
    if (grown == NULL) {
        inferd_fail(&w->failure, INFERD_ENOMEM, "no memory for %zu ends", w->n_ends + 1);
        return;
    }
    w->ends_us = grown;
    w->ends_us[w->n_ends++] = at_us;
}

static void end_record(world *w, world_record *r, const gen_event *e) {
    r->is_done = true;
    r->status = e->done.status;
    r->n_preempted = e->done.n_preempted;
    r->stats.n_output = r->n_emitted;
    if (e->done.finish != GEN_ERROR)
        r->stats.end =
            e->done.finish == GEN_LENGTH || e->done.finish == GEN_STOP ? STATS_DONE : STATS_FAILED;
    else
        r->stats.end = r->n_emitted == 0 ? STATS_REFUSED : STATS_FAILED;
    INFERD_CHECK(e->done.n_output == r->n_emitted);
    w->n_unfinished--;
    if (w->watch != NULL) watch_leave(w->watch, r->tenant_idx, r->model_idx, w->device->clock_us);
    uint32_t n_open_used = queue_slots_open_used(&w->queue_slots);
    queue_slots_give(&w->queue_slots, r->qslot, 1, true, e->at_us);
    if (w->options.obeys && queue_slots_open_used(&w->queue_slots) < n_open_used)
        note_free_slot(w, e->at_us - w->begin_us);
}

static void on_event(void *ctx, const gen_event *e) {
    world *w = ctx;
    INFERD_CHECK(e->id > 0 && e->id <= w->n_records);
    world_record *r = &w->records[e->id - 1];
    INFERD_CHECK(!r->is_done);
    if (e->kind == GEN_EV_DONE) {
        end_record(w, r, e);
        return;
    }
    uint64_t at_us = e->at_us - w->begin_us;
    if (r->n_emitted++ == 0) r->stats.first_us = at_us;
    INFERD_CHECK(at_us >= r->stats.last_us);
    r->stats.last_us = at_us;
}

/* ---- watching ---- */

static void on_step(void *ctx, const step *st, uint64_t begin_us, uint64_t end_us) {
    world *w = ctx;
    watch_step(w->watch, st, begin_us, end_us);
    for (uint32_t i = 0; i < st->b.n_seqs; i++) {
        world_record *r = &w->records[st->items[i].q->req->id - 1];
        if (r->begun_us != 0) continue;
        r->begun_us = begin_us - w->begin_us;
        r->n_steps_before =
            (uint32_t)watch_steps_since(w->watch, w->begin_us + r->stats.arrival_us);
    }
}

/* A flow has the share of its tenant, or else that of its model. */
static watch_terms terms_of(const world_options *o, uint32_t tenant_idx, uint32_t model_idx) {
    const model_policy *m = &o->models[model_idx].policy;
    const tenant_policy *t = o->tenants != NULL ? &o->tenants[tenant_idx] : NULL;
    const share_spec *share =
        t != NULL && t->share.policy != SHARE_BESTEFFORT ? &t->share : &m->share;
    return (watch_terms){.policy = share->policy,
                         .percent = share_percent_each(share),
                         .weight = m->weight * (t != NULL ? t->weight : 1),
                         .prio = m->prio};
}

static inferd_status begin_watch(world *w, inferd_err *err) {
    const world_options *o = &w->options;
    inferd_status st = watch_create(w->sims, o->n_models, u32_max(o->n_tenants, 1), &w->watch, err);
    if (st != INFERD_OK) return st;
    for (uint32_t i = 0; i < w->watch->n_flows; i++)
        w->watch->flows[i].terms = terms_of(o, i / o->n_models, i % o->n_models);
    w->watch->floor_percent = o->sched.starvation_percent;
    w->device->on_step = on_step;
    w->device->on_step_ctx = w;
    return INFERD_OK;
}

static inferd_status set_tenants(world *w, inferd_err *err) {
    const world_options *o = &w->options;
    inferd_status st = INFERD_OK;
    for (uint32_t i = 0; o->tenants != NULL && i < o->n_tenants && st == INFERD_OK; i++)
        st = sched_set_tenant(w->core.sched, i, &o->tenants[i], w->device->clock_us, err);
    return st;
}

static inferd_status open_core(world *w, inferd_err *err) {
    const world_options *o = &w->options;
    w->device = sim_device_create(o->preset, w->sims, o->n_models);
    if (w->device == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for a device");
    w->device->clock_us = 1; // 0 means "never" in some fields
    core_options options = {.device = sim_as_device(w->device),
                            .limits = o->sched,
                            .residency = o->residency,
                            .n_slots = o->n_models,
                            .clock = read_clock,
                            .room = room,
                            .emit = on_event,
                            .ctx = w};
    inferd_status st = core_init(&w->core, &options, err);
    if (st == INFERD_OK) st = core_open(&w->core, err);
    if (st == INFERD_OK) st = set_worth(w, err);
    if (st == INFERD_OK) st = set_tenants(w, err);
    if (st == INFERD_OK && o->watched) st = begin_watch(w, err);
    if (st != INFERD_OK) return st;
    for (uint32_t i = 0; i < o->n_models; i++)
        residency_attach(&w->core.models, i, NULL, DEVICE_OWN, &o->models[i].policy,
                         w->device->clock_us);
    return INFERD_OK;
}

/* Counts queue slots as the daemon's front does: their number is that of the queue and the batch
 * together, and the scheduler's queue has room for all of them. */
static inferd_status set_queue_slots(world *w, inferd_err *err) {
    const world_options *o = &w->options;
    sched_limits *l = &w->options.sched;
    uint32_t n_all = l->queue_len_max + l->running_max;
    queue_slots_init(&w->queue_slots, n_all);
    l->queue_len_max = n_all;
    if (!queue_slots_grow(&w->queue_slots, u32_max(o->n_tenants, 1), o->n_models))
        return inferd_fail(err, INFERD_ENOMEM, "no memory for queue slots");
    for (uint32_t i = 0; o->tenants != NULL && i < o->n_tenants; i++)
        queue_slots_keep(&w->queue_slots, QUEUE_TENANT, i, &o->tenants[i].share, 1);
    for (uint32_t i = 0; i < o->n_models; i++)
        queue_slots_keep(&w->queue_slots, QUEUE_MODEL, i, &o->models[i].policy.share, 1);
    return INFERD_OK;
}

inferd_status world_create(const world_options *options, world **out, inferd_err *err) {
    if (options->n_models == 0) return inferd_fail(err, INFERD_EINVAL, "a world without models");
    world *w = calloc(1, sizeof *w);
    if (w == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for a world");
    w->options = *options;
    w->sims = malloc(options->n_models * sizeof *w->sims);
    inferd_status st = w->sims != NULL ? set_queue_slots(w, err)
                                       : inferd_fail(err, INFERD_ENOMEM, "no memory for %u models",
                                                     options->n_models);
    for (uint32_t i = 0; st == INFERD_OK && i < options->n_models; i++)
        w->sims[i] = options->models[i].sim;
    if (st == INFERD_OK) st = open_core(w, err);
    if (st != INFERD_OK) {
        world_destroy(w);
        return st;
    }
    *out = w;
    return INFERD_OK;
}

void world_destroy(world *w) {
    if (w == NULL) return;
    if (w->core.opened) core_end(&w->core);
    core_deinit(&w->core);
    free(w->next_arrival);
    watch_destroy(w->watch);
    free(w->records);
    dues_deinit(&w->retries);
    free(w->ends_us);
    free(w->sims);
    queue_slots_deinit(&w->queue_slots);
    free(w);
}

/* ---- arrivals ---- */

/* A linear generator is enough: the ids of two prompts only have to differ. */
static tok_id *make_prompt(uint64_t id, uint32_t n) {
    tok_id *ids = malloc((size_t)n * sizeof *ids);
    for (uint32_t i = 0; ids != NULL && i < n; i++) {
        id = id * 6364136223846793005u + 1442695040888963407u;
        ids[i] = (tok_id)(WARM_TOKENS + ((id >> 32) * (SIM_VOCAB - WARM_TOKENS) >> 32));
    }
    return ids;
}

static gen_request *make_request(const world *w, const world_record *r) {
    gen_request *q = calloc(1, sizeof *q);
    uint64_t id = (uint64_t)(r - w->records) + 1;
    if (q == NULL) return NULL;
    *q = (gen_request){.id = id,
                       .model_idx = r->model_idx,
                       .tenant_idx = r->tenant_idx,
                       .prio = (gen_class)r->prio,
                       .prompt = make_prompt(id, r->stats.n_prompt),
                       .n_prompt = r->stats.n_prompt,
                       .max_tokens = r->stats.n_output,
                       .ignore_eos = true,
                       .n_logprobs = -1,
                       .n_prompt_logprobs = -1,
                       .cache_scope = {r->tenant_idx, 0},
                       .no_cache = true,
                       .arrival_us = w->begin_us + r->stats.arrival_us,
                       .ttft_target_ms = w->options.told ? r->stats.slo_ttft_us / 1000 : 0,
                       .tpot_target_ms = w->options.told ? r->stats.slo_tpot_us / 1000 : 0};
    q->sampling.temperature = 0;
    if (q->prompt != NULL) return q;
    free(q);
    return NULL;
}

/* Draws all of the workload. */
static inferd_status add_records(world *w, workload *load, inferd_err *err) {
    workload_request r;
    while (workload_next(load, &r)) {
        world_record *grown = array_grow(w->records, w->n_records, &w->capacity, sizeof *grown);
        if (grown == NULL)
            return inferd_fail(err, INFERD_ENOMEM, "no memory for %zu records", w->n_records + 1);
        if (r.model_idx >= w->options.n_models)
            return inferd_fail(err, INFERD_EINVAL,
                               "a request for model index %u, there are %u models", r.model_idx,
                               w->options.n_models);
        w->records = grown;
        w->records[w->n_records++] = (world_record){.stats = {.arrival_us = r.arrival_us,
                                                              .n_prompt = r.n_prompt,
                                                              .n_output = r.n_output,
                                                              .slo_ttft_us = r.slo_ttft_us,
                                                              .slo_tpot_us = r.slo_tpot_us,
                                                              .end = STATS_UNFINISHED},
                                                    .model_idx = r.model_idx,
                                                    .tenant_idx = r.tenant_idx,
                                                    .prio = r.prio};
    }
    if (!dues_init(&w->retries, w->n_records + 1))
        return inferd_fail(err, INFERD_ENOMEM, "no memory for %zu clients", w->n_records);
    return INFERD_OK;
}

/* ---- clients that come back ---- */

/* The end that makes room for it follows from the free slots and the clients ahead of it. */
static void note_refusal(world *w, world_record *record, uint64_t now_us, uint32_t after_s) {
    enum { S_MS = 1000 };
    const queue_slots *p = &w->queue_slots;
    size_t n_free = u32_less(queue_slots_open(p), queue_slots_open_used(p));
    record->told_ms = after_s * S_MS;
    record->refused_us = now_us;
    record->end_idx = w->n_ends + (w->n_told_open > n_free ? w->n_told_open - n_free : 0);
    w->n_told_open++;
}

/* Admission by the daemon's front, ahead of the scheduler; false: refused. */
static bool enter(world *w, world_record *record, uint64_t now_us) {
    bool obeys = w->options.obeys, again = record->told_ms > 0;
    queue_ask ask = {.asker = {record->tenant_idx, record->model_idx, record->prio},
                     .n = 1,
                     .again = !obeys || (again && !w->options.anonymous)};
    uint32_t after_s;
    if (again) w->n_told_open--;
    bool enters = queue_slots_ask(&w->queue_slots, &ask, w->begin_us + now_us, &record->qslot,
                                  &after_s) == QUEUE_HAS_SLOTS;
    record->taken_later = again && enters;
    if (enters) return true;
    if (!obeys || again || after_s > QUEUE_MAX_S) { // only one retry
        record->is_done = true;
        record->stats.end = STATS_REFUSED;
        return false;
    }
    note_refusal(w, record, now_us, after_s);
    dues_push(&w->retries, (due){.at_ns = (now_us + (uint64_t)record->told_ms * 1000) * 1000,
                                 .class_idx = (uint32_t)(record - w->records)});
    return false;
}

/* The request arrives at now_us: for the first time, or again. */
static inferd_status deliver(world *w, world_record *record, uint64_t now_us, inferd_err *err) {
    if (!enter(w, record, now_us)) return INFERD_OK;
    gen_request *q = make_request(w, record);
    if (q == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for a request");
    w->n_unfinished++;
    if (w->watch != NULL)
        watch_arrive(w->watch, record->tenant_idx, record->model_idx, (gen_class)record->prio,
                     w->device->clock_us);
    sched_submit(w->core.sched, q, w->device->clock_us);
    return INFERD_OK;
}

/* ---- time ---- */

/* Like the engine's sleep: until something can happen. */
static void wait_until(world *w, uint64_t next_arrival_us) {
    uint64_t from_us = w->device->clock_us, until_us = core_sleep_until_us(&w->core, from_us);
    until_us = u64_min(until_us, u64_min(sim_device_next_us(w->device), next_arrival_us));
    w->device->clock_us = u64_max(until_us, from_us + 1);
    core_idle(&w->core, from_us, w->device->clock_us);
}

static void verify(world *w, inferd_err *err) {
    if (w->failure.status != INFERD_OK || core_verify(&w->core, err) == INFERD_OK) return;
    inferd_context(err, "iteration %llu", (unsigned long long)w->n_iterations);
    w->failure = *err;
}

static bool iterate(world *w, inferd_err *err) {
    uint32_t verify_iterations = w->options.verify_iterations;
    sim_device_look(w->device);
    bool any = core_iterate(&w->core);
    for (uint32_t i = 0; w->watch != NULL && i < w->options.n_models; i++)
        watch_hot(w->watch, i, w->device->slots[i].hot, w->device->clock_us);
    sched_flush(w->core.sched, UINT32_MAX);
    w->n_iterations++;
    if (verify_iterations > 0 && w->n_iterations % verify_iterations == 0) verify(w, err);
    return any;
}

/* Eager models come up before the first request. */
static inferd_status settle(world *w, inferd_err *err) {
    uint64_t bound_us = (uint64_t)WORLD_SETTLE_S_MAX * 1000000;
    while (!w->core.settled && w->device->clock_us < bound_us && w->failure.status == INFERD_OK)
        if (!iterate(w, err) && !w->core.settled) wait_until(w, bound_us);
    w->begin_us = w->device->clock_us;
    if (w->failure.status != INFERD_OK) *err = w->failure;
    return w->failure.status;
}

/* On the device's clock; UINT64_MAX: no client comes back. */
static uint64_t next_retry_us(const world *w) {
    return w->retries.n > 0 ? w->begin_us + w->retries.items[0].at_ns / 1000 : UINT64_MAX;
}

static uint64_t next_arrival_us(const world *w) {
    bool more = w->n_arrived < w->n_records;
    uint64_t new_us = more ? w->begin_us + w->records[w->n_arrived].stats.arrival_us : UINT64_MAX;
    return u64_min(new_us, next_retry_us(w));
}

inferd_status world_run(world *w, workload *load, inferd_err *err) {
    const uint64_t drain_us = (uint64_t)WORLD_DRAIN_S_MAX * 1000000;
    inferd_status st = add_records(w, load, err);
    if (st == INFERD_OK) st = settle(w, err);
    if (st != INFERD_OK) return st;
    world_usage before;
    world_sum(w, &before); // everything before begin_us
    w->before = before;
    uint64_t last_us = w->begin_us, next_us; // newest and next arrival
    while (w->failure.status == INFERD_OK &&
           (w->n_arrived < w->n_records || w->retries.n + w->n_unfinished > 0)) {
        while ((next_us = next_arrival_us(w)) <= w->device->clock_us) {
            /* At the same time, a returning client is ahead of a new one. */
            size_t idx =
                next_us == next_retry_us(w) ? dues_pop(&w->retries).class_idx : w->n_arrived++;
            if ((st = deliver(w, &w->records[idx], next_us - w->begin_us, err)) != INFERD_OK)
                return st;
            last_us = next_us;
        }
        if (next_us == UINT64_MAX && w->device->clock_us >= last_us + drain_us) break;
        if (!iterate(w, err)) wait_until(w, next_us != UINT64_MAX ? next_us : last_us + drain_us);
    }
    w->end_us = w->device->clock_us;
    if (w->options.verify_iterations > 0) verify(w, err);
    if (w->failure.status == INFERD_OK) return INFERD_OK;
    *err = w->failure;
    return err->status;
}

/* ---- figures ---- */

static bool first_in_time(const stats_request *r) {
    return r->slo_ttft_us == 0 || r->first_us - r->arrival_us <= r->slo_ttft_us;
}

static bool fast_enough(const stats_request *r) {
    if (r->slo_tpot_us == 0 || r->n_output < 2) return true;
    return r->last_us - r->first_us <= (uint64_t)r->slo_tpot_us * (r->n_output - 1);
}

bool stats_meets(const stats_request *r) {
    return r->end == STATS_DONE && first_in_time(r) && fast_enough(r);
}

void stats_count(stats_attained *a, const stats_request *r) {
    a->n_offered++;
    a->n_refused += r->end == STATS_REFUSED;
    a->n_failed += r->end == STATS_FAILED;
    a->n_unfinished += r->end == STATS_UNFINISHED;
    if (r->end != STATS_DONE) return;
    INFERD_CHECK(r->arrival_us <= r->first_us && r->first_us <= r->last_us);
    a->n_done++;
    a->n_output += r->n_output;
    a->n_late_first += !first_in_time(r);
    a->n_slow += !fast_enough(r);
    if (!stats_meets(r)) return;
    a->n_met++;
    a->n_output_met += r->n_output;
}

double stats_attainment(const stats_attained *a) {
    return a->n_offered == 0 ? (double)NAN : (double)a->n_met / (double)a->n_offered;
}

uint64_t stats_quantile(const uint64_t *sorted, size_t n, double q) {
    INFERD_CHECK(n > 0 && q > 0 && q <= 1);
    /* 0.99 * 100 is a little more than 99 as a double: an exact rank must not become the next. */
    double rank = ceil(q * (double)n - 1e-9);
    return sorted[rank < 1 ? 0 : (size_t)rank - 1];
}

/* Every field is a 64-bit counter that only grows. */
static void subtract(world_usage *a, const world_usage *b) {
    uint64_t *x = (uint64_t *)(void *)a;
    const uint64_t *y = (const uint64_t *)(const void *)b;
    for (size_t i = 0; i < sizeof *a / sizeof *x; i++) x[i] -= y[i];
}
_Static_assert(sizeof(world_usage) % sizeof(uint64_t) == 0, "all fields are 64 bits");

void world_sum(const world *w, world_usage *out) {
    const core *k = &w->core;
    sched_counters n;
    sched_count(k->sched, &n);
    *out = (world_usage){.wall_us = w->device->clock_us - k->usage.opened_us,
                         .step_us = k->usage.step_us,
                         .load_us = k->usage.load_us,
                         .idle_us = k->usage.idle_us,
                         .n_steps = w->device->n_steps,
                         .n_rows = w->device->n_rows,
                         .copied_us = w->device->copied_us,
                         .n_preemptions = n.n_preemptions};
    for (uint32_t i = 0; i < k->models.n; i++) {
        const resident *m = &k->models.slots[i];
        out->n_loads += m->n_loads;
        out->n_stages += m->n_stages;
        for (int e = 0; e < ENGINE_EVICT_CAUSES; e++) out->n_evictions[e] += m->n_evictions[e];
    }
    subtract(out, &w->before);
}

uint32_t world_needed_s(const world *w, const world_record *r) {
    enum { S_US = 1000000 };
    if (r->told_ms == 0 || r->end_idx >= w->n_ends) return 0;
    uint64_t us = w->ends_us[r->end_idx] - r->refused_us;
    return u32_max((uint32_t)((us + S_US - 1) / S_US), QUEUE_MIN_S);
}
