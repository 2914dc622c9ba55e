/* workload.c - see workload.h.
 *
 * Internal times are nanoseconds, because traces and the heap of bench/dues.h use them; requests
 * leave with microseconds, rounded down.  A process keeps its time as a double in seconds: after
 * 100 days its resolution is 2 ns. */
#include "workload.h"

#include <math.h>
#include <string.h>

#include "../bench/dues.h"
#include "../bench/rng.h"

static const double NS_PER_S = 1e9;
static const double ON_S = 15, OFF_S = 36; // MIX_B: mean times
static const double VICTIM_EVERY_S = 1, STORM_EVERY_S = 30, STORM_S = 1;
static const double URGENT_EVERY_S = 30, URGENT_JITTER_S = 1;
/* Of each attacker with Poisson arrivals. */
static const double ATTACKS_PER_S[ADV_TENANTS] = {
    [ADV_TENANT_FLOOD] = 2, [ADV_TENANT_SHORT] = 50, [ADV_TENANT_LONG] = 1};

/* Generators of one seed differ by purpose. */
typedef enum purpose { FOR_ARRIVALS = 1, FOR_GROUP, FOR_CONTENT, FOR_EVENT = 5 } purpose;

typedef enum process { POISSON, GAMMA, ONOFF, EVERY, STORM, ROWS } process;
typedef enum draw_model { MODEL_FIXED, MODEL_ZIPF, MODEL_STORM } draw_model;

/* One source of arrivals.  Its size does not depend on how long it runs. */
typedef struct stream {
    process process;
    rng random;
    double at_s;   // of the next arrival
    double rate;   // POISSON, GAMMA, ONOFF while ON: per second
    uint64_t n;    // arrivals so far
    uint32_t left; // POISSON: rest of the backlog

    bool is_on;                     // ONOFF: its state, and its points:
    rng group;                      // the same for all members of the group
    double group_at_s, own_at_s;    // the next ones; INFINITY: none
    double every_s, jitter_s;       // EVERY, STORM
    double storm_at;                // STORM: of the last arrival, as a part of the storm [0, 1)
    draw_model draw_model;          // how its requests are drawn:
    uint32_t model_idx, tenant_idx; // MODEL_FIXED; the first model of MODEL_STORM
    bool draws_tenant;              // false: tenant_idx
    gen_class prio;
    uint32_t fixed_prompt, fixed_output; // 0: drawn
} stream;

struct workload {
    workload_spec spec;
    stream *streams; // [n_streams] owned
    uint32_t n_streams;
    dues dues;    // one entry per stream that has not ended
    double *zipf; // [n_models] owned; sums of the weights up to each model
    uint64_t n;   // requests so far
};

static rng rng_for(const workload_spec *spec, purpose what, uint32_t entity_idx, uint64_t idx) {
    return rng_make(spec->seed, (uint64_t)what << 32 | entity_idx, idx);
}

/* ---- names and defaults ---- */

typedef struct kind_row {
    const char *name;
    double rate_per_s;
    uint32_t n_models, models_min, n_tenants;
} kind_row;

static const kind_row KINDS[WORKLOAD_KINDS] = {
    [WORKLOAD_MIX_Z] = {"mix-z", 5.5, 16, 1, 1},
    [WORKLOAD_MIX_M] = {"mix-m", 0.037, 16, 1, 1},
    [WORKLOAD_MIX_B] = {"mix-b", 0.5, 24, 1, 1},
    [WORKLOAD_MIX_G] = {"mix-g", 0.5, 8, 1, 1},
    [WORKLOAD_ADV] = {"adv", 1, 1 + WORKLOAD_STORM_MODELS, 1 + WORKLOAD_STORM_MODELS, ADV_TENANTS},
    [WORKLOAD_PRE] = {"pre", 20, PRE_MODELS, PRE_MODELS, PRE_MODELS},
    [WORKLOAD_TRACE] = {"trace", 1, 1, 1, 1},
};

const char *workload_kind_name(workload_kind kind) {
    INFERD_CHECK(kind < WORKLOAD_KINDS);
    return KINDS[kind].name;
}

void workload_spec_init(workload_spec *spec, workload_kind kind) {
    *spec = (workload_spec){
        .kind = kind,
        .seed = 1,
        .duration_us = (uint64_t)600 * 1000000,
        .n_models = KINDS[kind].n_models,
        .n_tenants = KINDS[kind].n_tenants,
        .rate_per_s = KINDS[kind].rate_per_s,
        .rate_factor = 1,
        .zipf = 1,
        .cv = 4,
        .group_size = 4,
        .correlation = 0.5,
        .attacks = ATTACK_ALL,
        .pre_backlog = 256,
        .prompt_max = 32768,
        .output_max = 4096,
    };
}

/* ---- checks ---- */

/* What a command line can ask for; the other fields have no option. */
static inferd_status check(const workload_spec *s, inferd_err *err) {
    INFERD_CHECK(s->kind < WORKLOAD_KINDS);
    if (s->n_models < KINDS[s->kind].models_min || s->n_models > WORKLOAD_MODELS_MAX)
        return inferd_fail(err, INFERD_EINVAL, "n_models is %u, expected %u to %d", s->n_models,
                           KINDS[s->kind].models_min, WORKLOAD_MODELS_MAX);
    if (s->kind == WORKLOAD_TRACE && (s->rows == NULL || s->rows->n == 0))
        return inferd_fail(err, INFERD_EINVAL, "a workload of kind trace needs a trace");
    return INFERD_OK;
}

/* ---- times ---- */

/* With a rate of 0 there are no points. */
static double gap_s(rng *random, double rate) {
    return rate > 0 ? rng_exp(random) / rate : INFINITY;
}

static double points_per_s(void) {
    return 1 / ON_S + 1 / OFF_S;
}
static double shared_part(const workload_spec *s) { // the correlation is c / (2 - c)
    return 2 * s->correlation / (1 + s->correlation);
}
static bool draw_on(rng *random) {
    return rng_unit(random) <= ON_S / (ON_S + OFF_S);
}

/* The state at time 0 was drawn at the last point before it, of the group or its own; a Poisson
 * process has the same distribution backwards in time. */
static void begin_onoff(stream *st, const workload_spec *s, uint32_t group_idx) {
    double rate = points_per_s(), c = shared_part(s);
    st->group = rng_for(s, FOR_GROUP, group_idx, 0);
    double group_ago_s = gap_s(&st->group, rate * c),
           own_ago_s = gap_s(&st->random, rate * (1 - c));
    bool group_on = draw_on(&st->group), own_on = draw_on(&st->random);
    st->is_on = group_ago_s < own_ago_s ? group_on : own_on;
    st->group_at_s = gap_s(&st->group, rate * c);
    st->own_at_s = gap_s(&st->random, rate * (1 - c));
}

/* An exponential amount of work with mean 1 is used up at the rate, only while ON. */
static bool next_onoff(stream *st, const workload_spec *s, double end_s) {
    double work = rng_exp(&st->random), rate = points_per_s(), c = shared_part(s);
    while (st->at_s < end_s) {
        double until_s = fmin(st->group_at_s, st->own_at_s);
        double on_rate = st->is_on ? st->rate : 0;
        if (on_rate > 0 && st->at_s + work / on_rate <= until_s) {
            st->at_s += work / on_rate;
            return true;
        }
        work -= on_rate * (until_s - st->at_s);
        st->at_s = until_s;
        if (st->group_at_s <= st->own_at_s) {
            st->is_on = draw_on(&st->group);
            st->group_at_s += gap_s(&st->group, rate * c);
        } else {
            st->is_on = draw_on(&st->random);
            st->own_at_s += gap_s(&st->random, rate * (1 - c));
        }
    }
    return false;
}

/* Mean shape x scale, variance shape x scale^2.  The first gap is the rest of the gap around time
 * 0: a random time falls in long gaps more often, which makes the shape one larger. */
static double gamma_gap_s(stream *st, double cv) {
    double shape = 1 / (cv * cv), scale = 1 / (shape * st->rate);
    if (st->n > 0) return rng_gamma(&st->random, shape) * scale;
    double found = rng_gamma(&st->random, shape + 1) * scale;
    return found * rng_unit(&st->random);
}

static void next_every(stream *st, const workload_spec *s, uint32_t stream_idx) {
    rng random = rng_for(s, FOR_EVENT, stream_idx, st->n);
    bool at_once = st->jitter_s == 0; // the victim begins with the run
    st->at_s = (double)(st->n + (at_once ? 0 : 1)) * st->every_s;
    if (!at_once) st->at_s += st->jitter_s * (1 - rng_unit(&random));
}

/* The least of k uniform numbers above x is at x + (1 - x) (1 - u^(1/k)). */
static void next_storm(stream *st) {
    uint64_t event = st->n / WORKLOAD_STORM_MODELS, nth = st->n % WORKLOAD_STORM_MODELS;
    if (nth == 0) st->storm_at = 0;
    double k = (double)(WORKLOAD_STORM_MODELS - nth);
    st->storm_at += (1 - st->storm_at) * (1 - pow(rng_unit(&st->random), 1 / k));
    st->at_s = (double)(event + 1) * st->every_s + STORM_S * st->storm_at;
}

/* Moves a stream to its next arrival; false: it has ended. */
static bool advance(workload *w, uint32_t stream_idx) {
    stream *st = &w->streams[stream_idx];
    const workload_spec *s = &w->spec;
    double end_s = (double)s->duration_us / 1e6;
    bool good = true;
    switch (st->process) {
    case POISSON:
        if (st->left > 0)
            st->left--;
        else
            st->at_s += gap_s(&st->random, st->rate);
        break;
    case GAMMA:
        st->at_s += gamma_gap_s(st, s->cv);
        break;
    case ONOFF:
        good = next_onoff(st, s, end_s);
        break;
    case EVERY:
        next_every(st, s, stream_idx);
        break;
    case STORM:
        next_storm(st);
        break;
    case ROWS:
        good = st->n < s->rows->n;
        if (good) st->at_s = (double)s->rows->rows[st->n].at_ns / NS_PER_S / s->rate_factor;
        break;
    }
    st->n++;
    return good && st->at_s < end_s;
}

static void push(workload *w, uint32_t stream_idx) {
    if (!advance(w, stream_idx)) return;
    uint64_t at_ns = (uint64_t)(w->streams[stream_idx].at_s * NS_PER_S + 0.5);
    /* Rounding must not move the last arrival to the end. */
    at_ns = at_ns < w->spec.duration_us * 1000 ? at_ns : w->spec.duration_us * 1000 - 1;
    dues_push(&w->dues, (due){.at_ns = at_ns, .class_idx = stream_idx});
}

/* ---- contents ---- */

static uint32_t log_normal(rng *random, double mu, double sigma, uint32_t max) {
    double value = exp(mu + sigma * rng_normal(random));
    return value >= (double)max ? max : u32_max((uint32_t)(value + 0.5), 1);
}

static uint32_t clamp(uint32_t value, uint32_t max) {
    return u32_min(u32_max(value, 1), max);
}

static void draw_lengths(const workload *w, const stream *st, rng *random, workload_request *r) {
    static const struct {
        double prompt_mu, prompt_sigma, output_mu, output_sigma;
    } FITS[] = {[LENGTHS_CONV] = {6.84933, 0.63602, 5.22526, 0.50437},
                [LENGTHS_CODE] = {7.41766, 0.64325, 2.45437, 1.32184}};
    const workload_spec *s = &w->spec;
    if (st->process == ROWS) {
        const trace_row *row = &s->rows->rows[st->n - 1];
        r->n_prompt = clamp(row->n_prompt, s->prompt_max);
        r->n_output = clamp(row->n_output, s->output_max);
    } else {
        r->n_prompt = log_normal(random, FITS[s->lengths].prompt_mu, FITS[s->lengths].prompt_sigma,
                                 s->prompt_max);
        r->n_output = log_normal(random, FITS[s->lengths].output_mu, FITS[s->lengths].output_sigma,
                                 s->output_max);
    }
    if (st->fixed_prompt > 0) r->n_prompt = u32_min(st->fixed_prompt, s->prompt_max);
    if (st->fixed_output > 0) r->n_output = u32_min(st->fixed_output, s->output_max);
}

static uint32_t model_of(const workload *w, const stream *st, rng *random) {
    uint64_t nth = st->n - 1;
    switch (st->draw_model) {
    case MODEL_FIXED:
        return st->model_idx;
    case MODEL_STORM: // each storm in a different order
        return st->model_idx +
               (uint32_t)((nth + nth / WORKLOAD_STORM_MODELS) % WORKLOAD_STORM_MODELS);
    case MODEL_ZIPF:
        break;
    }
    uint32_t idx = 0; // the first with a sum of at least x
    double x = rng_unit(random) * w->zipf[w->spec.n_models - 1];
    while (w->zipf[idx] < x) idx++;
    return idx;
}

static workload_request draw_request(const workload *w, uint32_t stream_idx) {
    enum { N_UNUSED = 3 }; // numbers between tenant and lengths
    const workload_spec *s = &w->spec;
    const stream *st = &w->streams[stream_idx];
    rng random = rng_for(s, FOR_CONTENT, stream_idx, st->n - 1);
    workload_request r = {
        .slo_ttft_us = s->slo_ttft_us, .slo_tpot_us = s->slo_tpot_us, .prio = st->prio};
    r.model_idx = model_of(w, st, &random);
    uint32_t tenant_idx = (uint32_t)rng_below(&random, s->n_tenants);
    r.tenant_idx = st->draws_tenant ? tenant_idx : st->tenant_idx;
    for (int i = 0; i < N_UNUSED; i++) rng_next(&random);
    draw_lengths(w, st, &random, &r);
    return r;
}

/* ---- the streams of each kind ---- */

static stream *stream_add(workload *w, process how, double rate) {
    stream *st = &w->streams[w->n_streams];
    *st = (stream){.process = how,
                   .random = rng_for(&w->spec, FOR_ARRIVALS, w->n_streams, 0),
                   .rate = rate * w->spec.rate_factor,
                   .draws_tenant = true,
                   .prio = GEN_NORMAL};
    w->n_streams++;
    return st;
}

static stream *stream_own(stream *st, uint32_t tenant_idx, gen_class prio, uint32_t model_idx) {
    st->draws_tenant = false;
    st->tenant_idx = tenant_idx;
    st->prio = prio;
    st->model_idx = model_idx;
    return st;
}

static void add_per_model(workload *w, process how) {
    const workload_spec *s = &w->spec;
    for (uint32_t i = 0; i < s->n_models; i++) {
        stream *st = stream_add(w, how, s->rate_per_s);
        st->model_idx = i;
        if (how == ONOFF) begin_onoff(st, s, i / s->group_size);
    }
}

/* A stream's generator does not depend on which attacks are enabled, so the victim sends the same
 * requests alone and under attack: the stream's index is its tenant's number. */
static void add_adv(workload *w) {
    const workload_spec *s = &w->spec;
    stream *st = stream_own(stream_add(w, EVERY, 0), ADV_TENANT_VICTIM, GEN_HIGH, 0);
    st->every_s = VICTIM_EVERY_S;
    for (uint32_t i = ADV_TENANT_FLOOD; i <= ADV_TENANT_LONG; i++) {
        st = stream_own(stream_add(w, POISSON, ATTACKS_PER_S[i]), i, GEN_NORMAL, 0);
        if (i == ADV_TENANT_FLOOD) st->fixed_prompt = WORKLOAD_FLOOD_PROMPT;
        if (i == ADV_TENANT_SHORT) st->fixed_output = 1;
        if (i == ADV_TENANT_LONG) st->fixed_output = s->output_max;
    }
    st = stream_own(stream_add(w, STORM, 0), ADV_TENANT_STORM, GEN_NORMAL, 0);
    st->every_s = STORM_EVERY_S;
    st->draw_model = MODEL_STORM;
    if (s->n_models > WORKLOAD_STORM_MODELS) st->model_idx = s->n_models - WORKLOAD_STORM_MODELS;
}

static void add_pre(workload *w) {
    const workload_spec *s = &w->spec;
    stream *st = stream_own(stream_add(w, POISSON, s->rate_per_s), 0, GEN_BATCH, PRE_MODEL_BATCH);
    st->left = s->pre_backlog;
    st = stream_own(stream_add(w, EVERY, 0), 1, GEN_HIGH, PRE_MODEL_URGENT);
    st->every_s = URGENT_EVERY_S;
    st->jitter_s = URGENT_JITTER_S;
}

static void add_streams(workload *w) {
    const workload_spec *s = &w->spec;
    switch (s->kind) {
    case WORKLOAD_MIX_Z:
        stream_add(w, POISSON, s->rate_per_s)->draw_model = MODEL_ZIPF;
        break;
    case WORKLOAD_MIX_M:
        add_per_model(w, POISSON);
        break;
    case WORKLOAD_MIX_B:
        add_per_model(w, ONOFF);
        break;
    case WORKLOAD_MIX_G:
        add_per_model(w, GAMMA);
        break;
    case WORKLOAD_ADV:
        add_adv(w);
        break;
    case WORKLOAD_PRE:
        add_pre(w);
        break;
    case WORKLOAD_TRACE:
        stream_add(w, ROWS, 0)->draw_model = s->n_models > 1 ? MODEL_ZIPF : MODEL_FIXED;
        break;
    case WORKLOAD_KINDS:
        break;
    }
}

/* Attacks that are not enabled have a stream that never begins. */
static bool is_silent(const workload *w, uint32_t stream_idx) {
    return w->spec.kind == WORKLOAD_ADV && stream_idx > 0 &&
           (w->spec.attacks & 1u << (stream_idx - 1)) == 0;
}

inferd_status workload_create(const workload_spec *spec, workload **out, inferd_err *err) {
    *out = NULL;
    inferd_status status = check(spec, err);
    if (status != INFERD_OK) {
        inferd_context(err, "workload");
        return status;
    }
    uint32_t n_max = u32_max(spec->n_models, ADV_TENANTS);
    workload *w = calloc(1, sizeof *w);
    if (w != NULL) {
        w->spec = *spec;
        w->streams = calloc(n_max, sizeof *w->streams);
        w->zipf = calloc(spec->n_models, sizeof *w->zipf);
    }
    if (w == NULL || w->streams == NULL || w->zipf == NULL || !dues_init(&w->dues, n_max)) {
        workload_destroy(w);
        return inferd_fail(err, INFERD_ENOMEM, "no memory for a workload of %u streams", n_max);
    }
    double sum = 0;
    for (uint32_t i = 0; i < spec->n_models; i++)
        w->zipf[i] = sum += pow((double)i + 1, -spec->zipf);
    add_streams(w);
    for (uint32_t i = 0; i < w->n_streams; i++)
        if (!is_silent(w, i)) push(w, i);
    *out = w;
    return INFERD_OK;
}

void workload_destroy(workload *w) {
    if (w == NULL) return;
    free(w->streams);
    free(w->zipf);
    dues_deinit(&w->dues);
    free(w);
}

bool workload_next(workload *w, workload_request *out) {
    if (w->dues.n == 0) return false;
    due first = dues_pop(&w->dues);
    *out = draw_request(w, first.class_idx);
    out->arrival_us = first.at_ns / 1000;
    out->idx = w->n++;
    push(w, first.class_idx);
    return true;
}
