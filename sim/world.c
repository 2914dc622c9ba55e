/* world.c - see world.h. */
#include "world.h"

#include <string.h>

#include "engine_limits.h"
#include "report.h"
#include "seq.h"
#include "share.h"

enum { WARM_TOKENS = 3 }; // prompts use no ids below this: SIM_TOKEN and its neighbours

/* Defaults of the daemon's configuration (server/config/config_tables.c); the rest are the engine's
 * own. test_sim_world compares all of them with a configuration. */
static const engine_limits CONFIGURED = {.urgent_percent = 5};

void world_options_init(world_options *o, const sim_preset *preset) {
    engine_limits l = CONFIGURED;
    l.running_max = preset->limits_running_max;
    l = limits_fill(&l);
    *o = (world_options){.preset = preset,
                         .n_devices = 1,
                         .settle = true,
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
    return ((world_core *)ctx)->device->clock_us;
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
    const world_future *f = &((world_core *)ctx)->world->options.future;
    (void)r, (void)now_us;
    return f->begin[idx + 1] - f->begin[idx];
}

/* The time to bring weights back is proportional to their bytes, so only the next use counts: the
 * model needed last goes first. */
static uint64_t worth_by_next_use(void *ctx, const residency *r, uint32_t idx, uint64_t now_us) {
    world_core *c = ctx;
    const world *w = c->world;
    const world_future *f = &w->options.future;
    (void)r;
    uint64_t at_us = now_us > w->begin_us ? now_us - w->begin_us : 0;
    size_t *next = &c->next_arrival[idx], end = f->begin[idx + 1];
    while (*next < end && f->arrivals_us[*next] < at_us) (*next)++;
    return *next < end ? UINT64_MAX - (f->arrivals_us[*next] - at_us) : 0;
}

static inferd_status set_worth(world_core *c, inferd_err *err) {
    const world_options *o = &c->world->options;
    residency *r = &c->core.models;
    if (o->worth == WORLD_WORTH_LRU) r->worth = worth_by_idle_time;
    if (o->worth == WORLD_WORTH_OWN || o->worth == WORLD_WORTH_LRU) return INFERD_OK;
    c->next_arrival = malloc(o->n_models * sizeof *c->next_arrival);
    if (c->next_arrival == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for %u models", o->n_models);
    memcpy(c->next_arrival, o->future.begin, o->n_models * sizeof *c->next_arrival);
    r->worth = o->worth == WORLD_WORTH_RATE ? worth_by_rate : worth_by_next_use;
    r->worth_ctx = c;
    r->spares = true;
    return INFERD_OK;
}

static void fail(world *w, const char *what, const gen_event *e) {
    if (w->failure.status != INFERD_OK) return;
    inferd_fail(&w->failure, INFERD_EINVAL, "request %llu: %s", (unsigned long long)e->id, what);
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

static void end_record(world_core *c, world_record *r, const gen_event *e) {
    world *w = c->world;
    r->is_done = true;
    r->status = e->done.status;
    r->n_preempted = e->done.n_preempted;
    r->stats.n_output = r->n_emitted;
    if (e->done.finish != GEN_ERROR)
        r->stats.end =
            e->done.finish == GEN_LENGTH || e->done.finish == GEN_STOP ? STATS_DONE : STATS_FAILED;
    else
        r->stats.end = r->n_emitted == 0 ? STATS_REFUSED : STATS_FAILED;
    if (e->done.n_output != r->n_emitted) fail(w, "tokens and its last event disagree", e);
    c->n_unfinished--;
    w->n_unfinished--;
    if (c->watch != NULL) watch_leave(c->watch, r->tenant_idx, r->model_idx, c->device->clock_us);
    uint32_t n_open_used = queue_slots_open_used(&w->queue_slots);
    queue_slots_give(&w->queue_slots, r->qslot, 1, true, e->at_us);
    if (w->options.obeys && queue_slots_open_used(&w->queue_slots) < n_open_used)
        note_free_slot(w, e->at_us - w->begin_us);
}

static void on_event(void *ctx, const gen_event *e) {
    world_core *c = ctx;
    world *w = c->world;
    if (e->id == 0 || e->id > w->n_records) {
        fail(w, "never submitted", e);
        return;
    }
    world_record *r = &w->records[e->id - 1];
    if (r->is_done) {
        fail(w, "an event after its last", e);
        return;
    }
    if (e->kind == GEN_EV_DONE) {
        end_record(c, r, e);
        return;
    }
    uint64_t at_us = e->at_us - w->begin_us;
    if (r->n_emitted++ == 0) r->stats.first_us = at_us;
    if (at_us < r->stats.last_us) fail(w, "time goes backwards", e);
    r->stats.last_us = at_us;
}

/* ---- life ---- */

static bool holds(const world_model *m, uint32_t device_idx, uint32_t n_devices) {
    uint32_t behind = (device_idx + n_devices - m->device_idx) % n_devices;
    return behind < m->n_replicas;
}

static inferd_status check_options(const world_options *o, inferd_err *err) {
    if (o->n_devices == 0 || o->n_devices > WORLD_DEVICES_MAX)
        return inferd_fail(err, INFERD_EINVAL, "%u devices, expected 1 to %u", o->n_devices,
                           WORLD_DEVICES_MAX);
    if (o->n_models == 0) return inferd_fail(err, INFERD_EINVAL, "a world without models");
    for (uint32_t i = 0; i < o->n_models; i++) {
        const world_model *m = &o->models[i];
        if (m->device_idx >= o->n_devices || m->n_replicas == 0 || m->n_replicas > o->n_devices)
            return inferd_fail(err, INFERD_EINVAL,
                               "model %u: %u replicas from device %u on, there are %u devices", i,
                               m->n_replicas, m->device_idx, o->n_devices);
    }
    return INFERD_OK;
}

/* ---- watching ---- */

static void on_step(void *ctx, const step *st, uint64_t begin_us, uint64_t end_us) {
    world_core *c = ctx;
    world *w = c->world;
    watch_step(c->watch, st, begin_us, end_us);
    for (uint32_t i = 0; i < st->b.n_seqs; i++) {
        world_record *r = &w->records[st->items[i].q->req->id - 1];
        if (r->begun_us != 0) continue;
        r->begun_us = begin_us - w->begin_us;
        r->n_steps_before =
            (uint32_t)watch_steps_since(c->watch, w->begin_us + r->stats.arrival_us);
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

static inferd_status begin_watch(world_core *c, inferd_err *err) {
    const world_options *o = &c->world->options;
    inferd_status st =
        watch_create(c->world->sims, o->n_models, u32_max(o->n_tenants, 1), &c->watch, err);
    if (st != INFERD_OK) return st;
    for (uint32_t i = 0; i < c->watch->n_flows; i++)
        c->watch->flows[i].terms = terms_of(o, i / o->n_models, i % o->n_models);
    c->watch->floor_percent = o->sched.starvation_percent;
    c->device->on_step = on_step;
    c->device->on_step_ctx = c;
    return INFERD_OK;
}

static void look_at_models(world_core *c) {
    for (uint32_t i = 0; i < c->watch->n_models; i++)
        watch_hot(c->watch, i, c->device->slots[i].hot, c->device->clock_us);
}

static inferd_status set_tenants(world_core *c, inferd_err *err) {
    const world_options *o = &c->world->options;
    inferd_status st = INFERD_OK;
    for (uint32_t i = 0; o->tenants != NULL && i < o->n_tenants && st == INFERD_OK; i++)
        st = sched_set_tenant(c->core.sched, i, &o->tenants[i], c->device->clock_us, err);
    return st;
}

static inferd_status open_core(world *w, uint32_t idx, const sim_model *sims, inferd_err *err) {
    const world_options *o = &w->options;
    world_core *c = &w->cores[idx];
    c->world = w;
    c->device = sim_device_create(o->preset, sims, o->n_models);
    if (c->device == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for a device");
    c->device->clock_us = 1; // 0 means "never" in some fields
    core_options options = {.device = sim_as_device(c->device),
                            .limits = o->sched,
                            .residency = o->residency,
                            .n_slots = o->n_models,
                            .clock = read_clock,
                            .room = room,
                            .emit = on_event,
                            .ctx = c};
    inferd_status st = core_init(&c->core, &options, err);
    if (st == INFERD_OK) st = core_open(&c->core, err);
    if (st == INFERD_OK) st = set_worth(c, err);
    if (st == INFERD_OK) st = set_tenants(c, err);
    if (st == INFERD_OK && o->watched) st = begin_watch(c, err);
    if (st != INFERD_OK) return st;
    for (uint32_t i = 0; i < o->n_models; i++)
        if (holds(&o->models[i], idx, o->n_devices))
            residency_attach(&c->core.models, i, NULL, DEVICE_OWN, &o->models[i].policy,
                             c->device->clock_us);
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
        queue_slots_keep(&w->queue_slots, QUEUE_TENANT, i, &o->tenants[i].share, o->n_devices);
    for (uint32_t i = 0; i < o->n_models; i++)
        queue_slots_keep(&w->queue_slots, QUEUE_MODEL, i, &o->models[i].policy.share, o->n_devices);
    return INFERD_OK;
}

inferd_status world_create(const world_options *options, world **out, inferd_err *err) {
    inferd_status st = check_options(options, err);
    if (st != INFERD_OK) return st;
    world *w = calloc(1, sizeof *w);
    if (w == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for a world");
    w->options = *options;
    w->cores = calloc(options->n_devices, sizeof *w->cores);
    world_model *models = malloc(options->n_models * sizeof *models);
    sim_model *sims = malloc(options->n_models * sizeof *sims);
    w->options.models = models;
    w->sims = sims;
    if (w->cores == NULL || models == NULL || sims == NULL) {
        world_destroy(w);
        return inferd_fail(err, INFERD_ENOMEM, "no memory for %u models", options->n_models);
    }
    memcpy(models, options->models, options->n_models * sizeof *models);
    for (uint32_t i = 0; i < options->n_models; i++) sims[i] = models[i].sim;
    st = set_queue_slots(w, err);
    for (uint32_t i = 0; i < options->n_devices && st == INFERD_OK; i++)
        st = open_core(w, i, sims, err);
    if (st != INFERD_OK) {
        world_destroy(w);
        return st;
    }
    *out = w;
    return INFERD_OK;
}

void world_destroy(world *w) {
    if (w == NULL) return;
    for (uint32_t i = 0; w->cores != NULL && i < w->options.n_devices; i++) {
        core *c = &w->cores[i].core;
        if (c->opened) core_end(c);
        core_deinit(c);
        free(w->cores[i].next_arrival);
        watch_destroy(w->cores[i].watch);
    }
    free(w->cores);
    free(w->records);
    free(w->retries);
    free(w->ends_us);
    free((world_model *)(uintptr_t)w->options.models);
    free(w->sims);
    queue_slots_deinit(&w->queue_slots);
    free(w);
}

/* ---- arrivals ---- */

/* A linear generator is enough: the ids of two prompts only have to differ. */
static tok_id *make_prompt(const workload_request *r) {
    tok_id *ids = malloc((size_t)r->n_prompt * sizeof *ids);
    uint64_t own = r->idx + 1;
    for (uint32_t i = 0; ids != NULL && i < r->n_prompt; i++) {
        own = own * 6364136223846793005u + 1442695040888963407u;
        ids[i] = (tok_id)(WARM_TOKENS + ((own >> 32) * (SIM_VOCAB - WARM_TOKENS) >> 32));
    }
    return ids;
}

static gen_request *make_request(const world *w, const workload_request *r) {
    gen_request *q = calloc(1, sizeof *q);
    if (q == NULL) return NULL;
    *q = (gen_request){.id = r->idx + 1,
                       .model_idx = r->model_idx,
                       .tenant_idx = r->tenant_idx,
                       .prio = (gen_class)r->prio,
                       .n_prompt = r->n_prompt,
                       .max_tokens = r->n_output,
                       .ignore_eos = true,
                       .n_logprobs = -1,
                       .n_prompt_logprobs = -1,
                       .cache_scope = {r->tenant_idx, 0},
                       .no_cache = true,
                       .arrival_us = w->begin_us + r->arrival_us,
                       .ttft_target_ms = w->options.told ? r->slo_ttft_us / 1000 : 0,
                       .tpot_target_ms = w->options.told ? r->slo_tpot_us / 1000 : 0};
    q->sampling.temperature = 0;
    q->prompt = make_prompt(r);
    if (q->prompt != NULL) return q;
    free(q);
    return NULL;
}

static uint32_t choose_device(const world *w, uint32_t model_idx) {
    const world_model *m = &w->options.models[model_idx];
    uint32_t best = m->device_idx;
    for (uint32_t i = 1; i < m->n_replicas; i++) {
        uint32_t d = (m->device_idx + i) % w->options.n_devices;
        if (w->cores[d].n_unfinished < w->cores[best].n_unfinished) best = d;
    }
    return best;
}

static world_record *add_record(world *w, inferd_err *err) {
    if (w->n_records == WORLD_RECORDS_MAX) {
        inferd_fail(err, INFERD_ETOOLONG, "more than %d requests in one run", WORLD_RECORDS_MAX);
        return NULL;
    }
    world_record *grown = array_grow(w->records, w->n_records, &w->capacity, sizeof *grown);
    if (grown == NULL) {
        inferd_fail(err, INFERD_ENOMEM, "no memory for %zu records", w->n_records + 1);
        return NULL;
    }
    w->records = grown;
    return &w->records[w->n_records++];
}

/* ---- clients that come back ---- */

static bool comes_before(const world_retry *a, const world_retry *b) {
    return a->at_us != b->at_us ? a->at_us < b->at_us : a->request.idx < b->request.idx;
}

static inferd_status push_retry(world *w, const workload_request *r, uint64_t at_us,
                                inferd_err *err) {
    world_retry *grown = array_grow(w->retries, w->n_retries, &w->retries_capacity, sizeof *grown);
    if (grown == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for %zu clients", w->n_retries + 1);
    w->retries = grown;
    world_retry new = {at_us, *r};
    size_t i = w->n_retries++;
    for (; i > 0 && comes_before(&new, &w->retries[(i - 1) / 2]); i = (i - 1) / 2)
        w->retries[i] = w->retries[(i - 1) / 2];
    w->retries[i] = new;
    return INFERD_OK;
}

static world_retry pop_retry(world *w) {
    world_retry first = w->retries[0], last = w->retries[--w->n_retries];
    size_t i = 0;
    for (size_t k; (k = 2 * i + 1) < w->n_retries; i = k) {
        if (k + 1 < w->n_retries && comes_before(&w->retries[k + 1], &w->retries[k])) k++;
        if (!comes_before(&w->retries[k], &last)) break;
        w->retries[i] = w->retries[k];
    }
    if (w->n_retries > 0) w->retries[i] = last;
    return first;
}

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

/* Admission by the daemon's front, ahead of the scheduler; *out_enters false: refused. */
static inferd_status enter(world *w, const workload_request *r, uint64_t now_us,
                           world_record *record, bool *out_enters, inferd_err *err) {
    bool obeys = w->options.obeys, again = record->told_ms > 0;
    queue_ask ask = {.asker = {r->tenant_idx, r->model_idx, r->prio},
                     .n = 1,
                     .again = !obeys || (again && !w->options.anonymous)};
    uint32_t after_s;
    if (again) w->n_told_open--;
    *out_enters = queue_slots_ask(&w->queue_slots, &ask, w->begin_us + now_us, &record->qslot,
                                  &after_s) == QUEUE_HAS_SLOTS;
    record->taken_later = again && *out_enters;
    if (*out_enters) return INFERD_OK;
    if (!obeys || again || after_s > QUEUE_MAX_S) { // only one retry
        record->is_done = true;
        record->stats.end = STATS_REFUSED;
        return INFERD_OK;
    }
    note_refusal(w, record, now_us, after_s);
    return push_retry(w, r, now_us + (uint64_t)record->told_ms * 1000, err);
}

/* The request arrives at now_us: for the first time, or again. */
static inferd_status deliver(world *w, const workload_request *r, uint64_t now_us,
                             inferd_err *err) {
    if (r->model_idx >= w->options.n_models)
        return inferd_fail(err, INFERD_EINVAL, "a request for model index %u, there are %u models",
                           r->model_idx, w->options.n_models);
    uint32_t device_idx = choose_device(w, r->model_idx);
    world_core *c = &w->cores[device_idx];
    bool again = r->idx < w->n_records, enters = true;
    world_record *record = again ? &w->records[r->idx] : add_record(w, err);
    if (record == NULL) return err->status;
    INFERD_CHECK(again || r->idx + 1 == w->n_records);
    if (!again)
        *record = (world_record){.stats = {.arrival_us = r->arrival_us,
                                           .n_prompt = r->n_prompt,
                                           .slo_ttft_us = r->slo_ttft_us,
                                           .slo_tpot_us = r->slo_tpot_us,
                                           .end = STATS_UNFINISHED},
                                 .model_idx = r->model_idx,
                                 .tenant_idx = r->tenant_idx,
                                 .prio = r->prio,
                                 .device_idx = device_idx};
    inferd_status st = enter(w, r, now_us, record, &enters, err);
    if (st != INFERD_OK || !enters) return st;
    gen_request *q = make_request(w, r);
    if (q == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for a request");
    record->device_idx = device_idx; // of the attempt that was admitted
    c->n_unfinished++;
    w->n_unfinished++;
    if (c->watch != NULL)
        watch_arrive(c->watch, r->tenant_idx, r->model_idx, (gen_class)r->prio,
                     c->device->clock_us);
    sched_submit(c->core.sched, q, c->device->clock_us);
    return INFERD_OK;
}

/* ---- time ---- */

/* The core with the earliest clock, of those that have work or may get some; NULL: none. */
static world_core *last_in_time(const world *w, bool more) {
    world_core *last = NULL;
    for (uint32_t i = 0; i < w->options.n_devices; i++) {
        world_core *c = &w->cores[i];
        if (!more && c->n_unfinished == 0) continue;
        if (last == NULL || c->device->clock_us < last->device->clock_us) last = c;
    }
    return last;
}

/* Sets all clocks to the latest one; the difference is idle time. */
static uint64_t align_clocks(world *w) {
    uint64_t at_us = 0;
    for (uint32_t i = 0; i < w->options.n_devices; i++)
        if (w->cores[i].device->clock_us > at_us) at_us = w->cores[i].device->clock_us;
    for (uint32_t i = 0; i < w->options.n_devices; i++) {
        world_core *c = &w->cores[i];
        core_idle(&c->core, c->device->clock_us, at_us);
        c->device->clock_us = at_us;
    }
    return at_us;
}

/* Like the engine's sleep: until something can happen, or waiting requests are looked at again. */
static void wait_until(world_core *c, uint64_t next_arrival_us) {
    core *k = &c->core;
    uint64_t from_us = c->device->clock_us, until_us = core_next_us(k);
    uint64_t device_us = sim_device_next_us(c->device);
    sched_counters n;
    sched_count(k->sched, &n);
    if (n.n_running + n.n_waiting > n.n_paused) {
        uint64_t again_us = from_us + k->options.limits.starvation_us;
        uint64_t slice_us = from_us + k->options.residency.slice_us / 4;
        if (again_us < until_us) until_us = again_us;
        if (slice_us < until_us) until_us = slice_us;
    }
    if (device_us < until_us) until_us = device_us;
    if (next_arrival_us < until_us) until_us = next_arrival_us;
    if (until_us <= from_us) until_us = from_us + 1;
    c->device->clock_us = until_us;
    core_idle(k, from_us, until_us);
}

static void verify(world_core *c, inferd_err *err) {
    world *w = c->world;
    if (w->failure.status != INFERD_OK || core_verify(&c->core, err) == INFERD_OK) return;
    inferd_context(err, "device %d, iteration %llu", (int)(c - w->cores),
                   (unsigned long long)c->n_iterations);
    w->failure = *err;
}

static bool iterate(world_core *c, inferd_err *err) {
    uint32_t verify_iterations = c->world->options.verify_iterations;
    sim_device_look(c->device);
    bool any = core_iterate(&c->core);
    if (c->watch != NULL) look_at_models(c);
    sched_flush(c->core.sched, UINT32_MAX);
    c->n_iterations++;
    if (verify_iterations > 0 && c->n_iterations % verify_iterations == 0) verify(c, err);
    return any;
}

/* Eager models come up before the first request. */
static inferd_status settle(world *w, inferd_err *err) {
    uint64_t bound_us = (uint64_t)WORLD_SETTLE_S_MAX * 1000000;
    for (uint32_t i = 0; i < w->options.n_devices; i++) {
        world_core *c = &w->cores[i];
        while (w->options.settle && !c->core.settled && c->device->clock_us < bound_us &&
               w->failure.status == INFERD_OK)
            if (!iterate(c, err) && !c->core.settled) wait_until(c, bound_us);
    }
    w->begin_us = align_clocks(w);
    if (w->failure.status != INFERD_OK) *err = w->failure;
    return w->failure.status;
}

/* On the devices' clocks.  If a returning client and a new one come at the same time, the returning
 * one is first.  UINT64_MAX: no arrival is left. */
static uint64_t next_arrival_us(const world *w, bool more, const workload_request *next) {
    uint64_t at_us = more ? w->begin_us + next->arrival_us : UINT64_MAX;
    if (w->n_retries > 0 && w->begin_us + w->retries[0].at_us < at_us)
        at_us = w->begin_us + w->retries[0].at_us;
    return at_us;
}

inferd_status world_run(world *w, workload *load, inferd_err *err) {
    const uint64_t drain_us = (uint64_t)WORLD_DRAIN_S_MAX * 1000000;
    inferd_status st = settle(w, err);
    if (st != INFERD_OK) return st;
    world_usage before;
    world_sum(w, &before); // everything before begin_us
    w->before = before;
    workload_request next;
    bool more = workload_next(load, &next);
    uint64_t last_us = w->begin_us; // newest arrival
    while (w->failure.status == INFERD_OK) {
        world_core *c = last_in_time(w, more || w->n_retries > 0);
        if (c == NULL) break;
        uint64_t next_us;
        while ((next_us = next_arrival_us(w, more, &next)) <= c->device->clock_us) {
            bool again = w->n_retries > 0 && w->begin_us + w->retries[0].at_us == next_us;
            workload_request r = again ? pop_retry(w).request : next;
            if ((st = deliver(w, &r, next_us - w->begin_us, err)) != INFERD_OK) return st;
            last_us = next_us;
            if (!again) more = workload_next(load, &next);
        }
        if (next_us == UINT64_MAX && c->device->clock_us >= last_us + drain_us) break;
        if (!iterate(c, err)) wait_until(c, next_us != UINT64_MAX ? next_us : last_us + drain_us);
    }
    w->end_us = align_clocks(w);
    for (uint32_t i = 0; i < w->options.n_devices && w->options.verify_iterations > 0; i++)
        verify(&w->cores[i], err);
    if (w->failure.status == INFERD_OK) return INFERD_OK;
    *err = w->failure;
    return err->status;
}

/* ---- figures ---- */

static void add_core(world_usage *out, const world_core *c) {
    const core *k = &c->core;
    sched_counters n;
    sched_count(k->sched, &n);
    out->wall_us += c->device->clock_us - k->usage.opened_us;
    out->step_us += k->usage.step_us;
    out->load_us += k->usage.load_us;
    out->idle_us += k->usage.idle_us;
    out->n_steps += c->device->n_steps;
    out->n_rows += c->device->n_rows;
    out->copied_us += c->device->copied_us;
    out->n_preemptions += n.n_preemptions;
    for (uint32_t i = 0; i < k->models.n; i++) {
        const resident *m = &k->models.slots[i];
        out->n_loads += m->n_loads;
        out->n_stages += m->n_stages;
        out->waited.queue_us += m->parts_sum.queue_us;
        out->waited.reclaim_us += m->parts_sum.reclaim_us;
        out->waited.stage_us += m->parts_sum.stage_us;
        out->waited.load_us += m->parts_sum.load_us;
        for (int e = 0; e < ENGINE_EVICT_CAUSES; e++) out->n_evictions[e] += m->n_evictions[e];
    }
}

/* Every field is a 64-bit counter that only grows. */
static void subtract(world_usage *a, const world_usage *b) {
    uint64_t *x = (uint64_t *)(void *)a;
    const uint64_t *y = (const uint64_t *)(const void *)b;
    for (size_t i = 0; i < sizeof *a / sizeof *x; i++) x[i] -= y[i];
}
_Static_assert(sizeof(world_usage) % sizeof(uint64_t) == 0, "all fields are 64 bits");

void world_sum(const world *w, world_usage *out) {
    *out = (world_usage){0};
    for (uint32_t i = 0; i < w->options.n_devices; i++) add_core(out, &w->cores[i]);
    subtract(out, &w->before);
}

uint32_t world_needed_s(const world *w, const world_record *r) {
    enum { S_US = 1000000 };
    if (r->told_ms == 0 || r->end_idx >= w->n_ends) return 0;
    uint64_t us = w->ends_us[r->end_idx] - r->refused_us;
    return u32_max((uint32_t)((us + S_US - 1) / S_US), QUEUE_MIN_S);
}
