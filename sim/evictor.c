/* evictor.c - see evictor.h.
 *
 * Which activations are refused depends only on which models are active, never on earlier
 * evictions, so it is settled in a first pass.  That is why policies can be compared activation by
 * activation, and why a clairvoyant policy can skip activations that will not be served. */
#include "evictor.h"

#include <math.h>
#include <string.h>

static const double GB = 1e9;
enum { EVICT_PAGE_BYTES = 2 << 20 };
/* Hyper-exponential gaps of mean 1: seven of ten have mean SHORT_MEAN, the others a larger one. */
static const double SHORT_PART = 0.7, SHORT_MEAN = 0.3;

/* ---- policies ---- */

static double lru_value(const evict_candidate *c) {
    return -(double)c->idle_us;
}

static double product_value(const evict_candidate *c) {
    worth_idle idle = {.weight = c->weight,
                       .reload_us = c->reload_us,
                       .idle_us = c->idle_us,
                       .n_pages = c->n_pages,
                       .pauses = c->pauses};
    return (double)worth_of(&idle);
}

/* Value of a byte kept here: its chance per second to be needed, times the wait that it saves. */
static double knowing_value(const evict_candidate *c) {
    return (double)c->weight * (double)c->reload_us * c->hazard_per_s / (double)c->bytes;
}

static double furthest_value(const evict_candidate *c) {
    return -(double)c->next_us; // EVICT_NEVER is further than anything
}

static double furthest_size_value(const evict_candidate *c) {
    return c->next_us == EVICT_NEVER ? -INFINITY : -(double)c->next_us * (double)c->bytes;
}

static uint32_t least(const evict_candidate *c, uint32_t n,
                      double (*value)(const evict_candidate *)) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (value(&c[i]) < value(&c[best])) best = i;
    return best;
}

uint32_t evict_lru(void *ctx, const evict_candidate *c, uint32_t n) {
    (void)ctx;
    return least(c, n, lru_value);
}
uint32_t evict_product(void *ctx, const evict_candidate *c, uint32_t n) {
    (void)ctx;
    return least(c, n, product_value);
}
uint32_t evict_knowing(void *ctx, const evict_candidate *c, uint32_t n) {
    (void)ctx;
    return least(c, n, knowing_value);
}
uint32_t evict_random(void *ctx, const evict_candidate *c, uint32_t n) {
    (void)c;
    return (uint32_t)rng_below(ctx, n);
}
uint32_t evict_furthest(void *ctx, const evict_candidate *c, uint32_t n) {
    (void)ctx;
    return least(c, n, furthest_value);
}
uint32_t evict_furthest_size(void *ctx, const evict_candidate *c, uint32_t n) {
    (void)ctx;
    return least(c, n, furthest_size_value);
}

/* ---- replay ---- */

/* A begin or an end.  At the same time ends come first: their memory is free then. */
typedef struct event {
    uint64_t at_us;
    uint32_t span_idx;
    bool is_begin;
} event;

typedef struct model_past {
    bool is_there, was_loaded, was_active, is_active;
    uint64_t ended_us; // was_active
    worth_pauses pauses;
    uint32_t next_span; // its next served span; UINT32_MAX: none
} model_past;

typedef struct replay {
    const evict_run *run;
    const evict_policy *policy;
    event *events;               // [2 n_spans] owned
    bool *is_served;             // [n_spans] owned
    uint32_t *next_span;         // [n_spans] owned; the next served one of the same model
    model_past *pasts;           // [n_models] owned
    evict_candidate *candidates; // [n_models] owned
    uint64_t used_bytes;         // weights in memory, and what active models need besides
    evict_result *result;
} replay;

static int by_time(const void *a, const void *b) {
    const event *x = a, *y = b;
    if (x->at_us != y->at_us) return x->at_us < y->at_us ? -1 : 1;
    if (x->is_begin != y->is_begin) return x->is_begin ? 1 : -1;
    return (x->span_idx > y->span_idx) - (x->span_idx < y->span_idx);
}

static inferd_status check(const evict_run *run, inferd_err *err) {
    if (run->n_models == 0 || run->n_models > EVICT_MODELS_MAX)
        return inferd_fail(err, INFERD_EINVAL, "%u models, expected 1 to %d", run->n_models,
                           EVICT_MODELS_MAX);
    if (run->n_spans > EVICT_SPANS_MAX)
        return inferd_fail(err, INFERD_ETOOLONG, "%zu activations, at most %d", run->n_spans,
                           EVICT_SPANS_MAX);
    for (uint32_t i = 0; i < run->n_models; i++)
        if (run->models[i].bytes == 0 || run->models[i].weight == 0)
            return inferd_fail(err, INFERD_EINVAL, "model %u has no bytes or no weight", i);
    for (size_t i = 0; i < run->n_spans; i++) {
        const evict_span *s = &run->spans[i];
        if (s->model_idx >= run->n_models)
            return inferd_fail(err, INFERD_EINVAL,
                               "activation %zu is of model index %u, there are %u models", i,
                               s->model_idx, run->n_models);
        if (s->begin_us >= s->end_us || (i > 0 && s->begin_us < s[-1].begin_us))
            return inferd_fail(err, INFERD_EINVAL,
                               "activation %zu is [%llu, %llu) us: empty, or not in order", i,
                               (unsigned long long)s->begin_us, (unsigned long long)s->end_us);
    }
    return INFERD_OK;
}

static void replay_destroy(replay *r) {
    free(r->events);
    free(r->is_served);
    free(r->next_span);
    free(r->pasts);
    free(r->candidates);
}

static inferd_status replay_create(replay *r, const evict_run *run, const evict_policy *policy,
                                   evict_result *result, inferd_err *err) {
    size_t n = run->n_spans + 1;
    *r = (replay){
        .run = run,
        .policy = policy,
        .events = calloc(2 * n, sizeof *r->events),
        .is_served = calloc(n, sizeof *r->is_served),
        .next_span = calloc(n, sizeof *r->next_span),
        .pasts = calloc(run->n_models, sizeof *r->pasts),
        .candidates = calloc(run->n_models, sizeof *r->candidates),
        .result = result,
    };
    if (r->events == NULL || r->is_served == NULL || r->next_span == NULL || r->pasts == NULL ||
        r->candidates == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory to replay %zu activations", run->n_spans);
    for (uint32_t i = 0; i < run->n_spans; i++) {
        r->events[2 * i] = (event){run->spans[i].begin_us, i, true};
        r->events[2 * i + 1] = (event){run->spans[i].end_us, i, false};
    }
    qsort(r->events, 2 * run->n_spans, sizeof *r->events, by_time);
    return INFERD_OK;
}

static uint64_t active_bytes(const evict_model *m) {
    return m->bytes + m->run_bytes;
}

/* The first pass: which spans are served, and the model's next served span after each. */
static inferd_status settle(replay *r, inferd_err *err) {
    const evict_run *run = r->run;
    uint64_t active = 0;
    for (size_t i = 0; i < 2 * run->n_spans; i++) {
        const event *e = &r->events[i];
        const evict_span *s = &run->spans[e->span_idx];
        uint64_t wanted = active_bytes(&run->models[s->model_idx]);
        model_past *p = &r->pasts[s->model_idx];
        if (!e->is_begin) {
            p->is_active = false;
            if (r->is_served[e->span_idx]) active -= wanted;
            continue;
        }
        if (p->is_active)
            return inferd_fail(err, INFERD_EINVAL, "activation %u of model %u overlaps another",
                               e->span_idx, s->model_idx);
        p->is_active = true;
        r->is_served[e->span_idx] = wanted <= run->memory_bytes - active;
        if (r->is_served[e->span_idx]) active += wanted;
    }
    for (uint32_t i = 0; i < run->n_models; i++) r->pasts[i].next_span = UINT32_MAX;
    for (size_t i = run->n_spans; i-- > 0;) {
        model_past *p = &r->pasts[run->spans[i].model_idx];
        r->next_span[i] = p->next_span;
        if (r->is_served[i]) p->next_span = (uint32_t)i;
    }
    return INFERD_OK;
}

/* For a pause of this mean that has lasted for idle_us. */
static double hazard_per_s(double mean_s, uint64_t idle_us) {
    double idle_s = (double)idle_us / 1e6;
    double long_mean = (1 - SHORT_PART * SHORT_MEAN) / (1 - SHORT_PART);
    double short_left = SHORT_PART * exp(-idle_s / (SHORT_MEAN * mean_s));
    double long_left = (1 - SHORT_PART) * exp(-idle_s / (long_mean * mean_s));
    double ends = short_left / (SHORT_MEAN * mean_s) + long_left / (long_mean * mean_s);
    return short_left + long_left > 0 ? ends / (short_left + long_left) : 1 / (long_mean * mean_s);
}

static uint32_t pages_of(const evict_run *run, uint64_t n_bytes) {
    uint64_t page = run->page_bytes > 0 ? run->page_bytes : 1, n = (n_bytes + page - 1) / page;
    return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
}

/* Idle models with weights in memory, except for the model that needs the room. */
static uint32_t list_candidates(replay *r, uint64_t now_us, uint32_t except) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->run->n_models; i++) {
        const evict_model *m = &r->run->models[i];
        const model_past *p = &r->pasts[i];
        if (!p->is_there || p->is_active || i == except) continue;
        uint64_t next_us = EVICT_NEVER;
        if (r->policy->sees_future && p->next_span != UINT32_MAX)
            next_us = r->run->spans[p->next_span].begin_us - now_us;
        uint64_t idle_us = now_us - p->ended_us;
        r->candidates[n++] = (evict_candidate){
            .model_idx = i,
            .weight = m->weight,
            .bytes = m->bytes,
            .reload_us = m->reload_us,
            .idle_us = idle_us,
            .n_pages = pages_of(r->run, m->bytes),
            .pauses = p->pauses,
            .hazard_per_s = m->off_mean_s > 0 ? hazard_per_s(m->off_mean_s, idle_us) : 0,
            .next_us = next_us};
    }
    return n;
}

/* Moves the policy's order, as far as needed to free `missing`, to the front of the candidates; the
 * others stay ascending. */
static inferd_status order_candidates(replay *r, uint32_t n, uint64_t missing, uint32_t *out_n,
                                      inferd_err *err) {
    evict_candidate *c = r->candidates;
    uint64_t sum = 0;
    for (*out_n = 0; sum < missing; (*out_n)++) {
        uint32_t begin = *out_n;
        INFERD_CHECK(begin < n); // settle() found room without idle models
        uint32_t chosen = r->policy->choose(r->policy->ctx, c + begin, n - begin);
        if (chosen >= n - begin)
            return inferd_fail(err, INFERD_EINVAL, "policy %s chose %u of %u candidates",
                               r->policy->name, chosen, n - begin);
        evict_candidate next = c[begin + chosen];
        memmove(&c[begin + 1], &c[begin], chosen * sizeof *c);
        c[begin] = next;
        sum += next.bytes;
    }
    return INFERD_OK;
}

static inferd_status make_room(replay *r, uint64_t now_us, uint32_t model_idx, uint64_t wanted,
                               inferd_err *err) {
    uint64_t n_free = r->run->memory_bytes - r->used_bytes, sum = 0;
    uint32_t n = 0;
    if (wanted <= n_free) return INFERD_OK;
    uint64_t missing = wanted - n_free;
    inferd_status s = order_candidates(r, list_candidates(r, now_us, model_idx), missing, &n, err);
    if (s != INFERD_OK) return s;
    for (uint32_t i = 0; i < n; i++) sum += r->candidates[i].bytes;
    for (uint32_t i = n; i-- > 0;) {
        const evict_candidate *c = &r->candidates[i];
        if (r->policy->spares && sum - c->bytes >= missing) {
            sum -= c->bytes;
            continue;
        }
        r->pasts[c->model_idx].is_there = false;
        r->used_bytes -= c->bytes;
        r->result->n_evicted++;
    }
    return INFERD_OK;
}

static void learn_pause(model_past *p, uint64_t now_us, uint64_t reload_us) {
    if (p->was_active) worth_note_pause(&p->pauses, now_us - p->ended_us, reload_us);
}

static inferd_status begin(replay *r, const event *e, inferd_err *err) {
    uint32_t model_idx = r->run->spans[e->span_idx].model_idx;
    const evict_model *m = &r->run->models[model_idx];
    model_past *p = &r->pasts[model_idx];
    learn_pause(p, e->at_us, m->reload_us);
    if (!r->is_served[e->span_idx]) {
        r->result->n_refused++;
        return INFERD_OK;
    }
    inferd_status s =
        make_room(r, e->at_us, model_idx, m->run_bytes + (p->is_there ? 0 : m->bytes), err);
    if (s != INFERD_OK) return s;
    r->result->n_served++;
    if (!p->is_there) {
        r->result->n_loads++;
        r->result->load_us += m->reload_us;
        r->result->weighted_us += m->reload_us * m->weight;
        if (!p->was_loaded) r->result->first_us += m->reload_us;
        r->used_bytes += m->bytes;
    }
    p->is_there = p->was_loaded = p->is_active = true;
    p->next_span = r->next_span[e->span_idx];
    r->used_bytes += m->run_bytes;
    return INFERD_OK;
}

static void end(replay *r, const event *e) {
    model_past *p = &r->pasts[r->run->spans[e->span_idx].model_idx];
    p->was_active = true;
    p->ended_us = e->at_us;
    if (!r->is_served[e->span_idx]) return;
    p->is_active = false;
    r->used_bytes -= r->run->models[r->run->spans[e->span_idx].model_idx].run_bytes;
}

inferd_status evict_replay(const evict_run *run, const evict_policy *policy, evict_result *out,
                           inferd_err *err) {
    replay r = {0};
    *out = (evict_result){0};
    inferd_status s = check(run, err);
    if (s == INFERD_OK) s = replay_create(&r, run, policy, out, err);
    if (s == INFERD_OK) s = settle(&r, err);
    for (size_t i = 0; i < 2 * run->n_spans && s == INFERD_OK; i++) {
        if (r.events[i].is_begin)
            s = begin(&r, &r.events[i], err);
        else
            end(&r, &r.events[i]);
        INFERD_CHECK(r.used_bytes <= run->memory_bytes);
    }
    replay_destroy(&r);
    return s;
}

inferd_status evict_clairvoyant(const evict_run *run, evict_result *out, inferd_err *err) {
    const evict_policy tries[] = {
        {"furthest", evict_furthest, NULL, true, false},
        {"furthest x size", evict_furthest_size, NULL, true, false},
        {"furthest, sparing", evict_furthest, NULL, true, true},
        {"furthest x size, sparing", evict_furthest_size, NULL, true, true}};
    inferd_status s = INFERD_OK;
    for (size_t i = 0; i < INFERD_COUNT(tries) && s == INFERD_OK; i++) {
        evict_result r;
        s = evict_replay(run, &tries[i], &r, err);
        if (s == INFERD_OK && (i == 0 || r.load_us < out->load_us)) *out = r;
    }
    return s;
}

double evict_seconds(const evict_result *r) {
    return r->n_served == 0 ? (double)NAN : (double)r->load_us / 1e6 / (double)r->n_served;
}

/* ---- scenarios ---- */

void evict_spec_init(evict_spec *spec) {
    *spec = (evict_spec){.n_models = 24,
                         .seconds = 7200,
                         .on_mean_s = 15,
                         .off_median_s = 300,
                         .off_sigma = 1,
                         .size_min_gb = 2,
                         .size_max_gb = 64,
                         .memory_gb = 141,
                         .bandwidth_gb_s = 55,
                         .load_fix_s = 0.005,
                         .run_share = 0.3,
                         .run_gb = 2,
                         .weight_max = 1};
}

static inferd_status check_spec(const evict_spec *s, inferd_err *err) {
    const struct {
        const char *name;
        double value, min, max;
    } fields[] = {
        {"n_models", s->n_models, 1, EVICT_MODELS_MAX},
        {"seconds", s->seconds, 1, 1e7},
        {"on_mean_s", s->on_mean_s, 0.01, 1e6},
        {"off_median_s", s->off_median_s, 0.01, 1e6},
        {"off_sigma", s->off_sigma, 0, 3},
        {"size_min_gb", s->size_min_gb, 0.001, s->size_max_gb},
        {"size_max_gb", s->size_max_gb, s->size_min_gb, 1e5},
        {"memory_gb", s->memory_gb, 0.001, 1e6},
        {"bandwidth_gb_s", s->bandwidth_gb_s, 0.001, 1e6},
        {"load_fix_s", s->load_fix_s, 0, 1e3},
        {"run_share", s->run_share, 0, 100},
        {"run_gb", s->run_gb, 0, 1e5},
        {"weight_max", s->weight_max, 1, 1e6},
    };
    for (size_t i = 0; i < INFERD_COUNT(fields); i++)
        if (!(fields[i].value >= fields[i].min && fields[i].value <= fields[i].max))
            return inferd_fail(err, INFERD_EINVAL, "eviction: %s is %g, expected %g to %g",
                               fields[i].name, fields[i].value, fields[i].min, fields[i].max);
    return INFERD_OK;
}

static evict_model draw_model(const evict_spec *s, rng *random) {
    double gb = s->size_min_gb * pow(s->size_max_gb / s->size_min_gb, rng_unit(random));
    double reload_s = s->load_fix_s + gb / s->bandwidth_gb_s;
    return (evict_model){.bytes = (uint64_t)(gb * GB),
                         .run_bytes = (uint64_t)((gb * s->run_share + s->run_gb) * GB),
                         .reload_us = (uint64_t)(reload_s * 1e6 + 0.5),
                         .weight = 1 + (uint32_t)rng_below(random, s->weight_max)};
}

static double gap_s(double mean_s, rng *random) {
    bool is_short = rng_unit(random) <= SHORT_PART;
    double long_mean = (1 - SHORT_PART * SHORT_MEAN) / (1 - SHORT_PART);
    return mean_s * (is_short ? SHORT_MEAN : long_mean) * rng_exp(random);
}

static int by_begin(const void *a, const void *b) {
    const evict_span *x = a, *y = b;
    if (x->begin_us != y->begin_us) return x->begin_us < y->begin_us ? -1 : 1;
    return (x->model_idx > y->model_idx) - (x->model_idx < y->model_idx);
}

typedef struct span_list {
    evict_span *items;
    size_t n, capacity;
} span_list;

static inferd_status span_add(span_list *l, evict_span span, inferd_err *err) {
    if (l->n == EVICT_SPANS_MAX)
        return inferd_fail(err, INFERD_ETOOLONG, "more than %d activations", EVICT_SPANS_MAX);
    if (l->n == l->capacity) {
        size_t capacity = l->capacity == 0 ? 1024 : l->capacity * 2;
        evict_span *items = realloc(l->items, capacity * sizeof *items);
        if (items == NULL)
            return inferd_fail(err, INFERD_ENOMEM, "no memory for %zu activations", capacity);
        l->items = items;
        l->capacity = capacity;
    }
    l->items[l->n++] = span;
    return INFERD_OK;
}

/* All models begin idle, each at a random point of a gap. */
static inferd_status draw_spans(span_list *l, const evict_spec *s, uint32_t model_idx, rng *random,
                                double *out_off_mean_s, inferd_err *err) {
    double off_mean_s = *out_off_mean_s = s->off_median_s * exp(s->off_sigma * rng_normal(random));
    double t = gap_s(off_mean_s, random) * rng_unit(random);
    while (t < s->seconds) {
        double on_s = s->on_mean_s * rng_exp(random);
        evict_span span = {model_idx, (uint64_t)(t * 1e6), (uint64_t)((t + on_s) * 1e6) + 1};
        inferd_status status = span_add(l, span, err);
        if (status != INFERD_OK) return status;
        t += on_s + gap_s(off_mean_s, random) + 2e-6; // so that rounding causes no overlap
    }
    return INFERD_OK;
}

inferd_status evict_scenario_create(evict_scenario *out, const evict_spec *spec, uint64_t seed,
                                    inferd_err *err) {
    *out = (evict_scenario){0};
    inferd_status s = check_spec(spec, err);
    if (s != INFERD_OK) return s;
    span_list spans = {0};
    out->models = calloc(spec->n_models, sizeof *out->models);
    if (out->models == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for %u models", spec->n_models);
    for (uint32_t i = 0; i < spec->n_models && s == INFERD_OK; i++) {
        rng random = rng_make(seed, i, 0);
        out->models[i] = draw_model(spec, &random);
        s = draw_spans(&spans, spec, i, &random, &out->models[i].off_mean_s, err);
    }
    out->spans = spans.items;
    if (s != INFERD_OK) {
        evict_scenario_destroy(out);
        return s;
    }
    if (spans.n > 0) qsort(spans.items, spans.n, sizeof *spans.items, by_begin);
    out->run = (evict_run){.models = out->models,
                           .n_models = spec->n_models,
                           .spans = out->spans,
                           .n_spans = spans.n,
                           .memory_bytes = (uint64_t)(spec->memory_gb * GB),
                           .page_bytes = EVICT_PAGE_BYTES};
    return INFERD_OK;
}

void evict_scenario_destroy(evict_scenario *s) {
    free(s->models);
    free(s->spans);
    *s = (evict_scenario){0};
}
