/* experiment.c - see experiment.h: one run, its targets, and the output of figures. */
#include "experiment.h"

#include <math.h>
#include <string.h>

enum {
    CAPACITY_S = 240,       // with an endless queue
    CAPACITY_WARMUP_S = 60, // of that, not counted
    BASE_S_MIN = 600,
    SLO_SCALE = 5, // times the dedicated device: targets of requests
    /* For the dedicated device: targets do not change with the daemon's defaults. */
    REFERENCE_PACE_MS = 25,
    REFERENCE_STEP_TOKENS = 512
};
#define CAPACITY_RATE 200.0 // per second, more than the device serves
#define BASE_LOAD     0.5

static const double QUANTILE_OF[QUANTILES] = {0.5, 0.95, 0.99};

static const struct {
    const char *name;
    experiment_f *run;
} EXPERIMENT[EXPERIMENTS] = {
    {"mix", experiment_mix},   {"shares", experiment_shares}, {"models", experiment_models},
    {"load", experiment_load}, {"evict", experiment_evict},   {"retry", experiment_retry},
};

const char *experiment_name(int kind) {
    return EXPERIMENT[kind].name;
}

void experiment_init(experiment *e, experiment_kind kind) {
    *e = (experiment){.kind = kind,
                      .mix = WORKLOAD_MIX_M,
                      .lengths = LENGTHS_CONV,
                      .n_seeds = FIGURES_SEEDS_MIN,
                      .seed0 = 1,
                      .seconds = 600,
                      .lambda = -1,
                      .rate_factor = 1,
                      .host_gb = -1,
                      .attacks = ATTACK_ALL};
    world_options_init(&e->world, &sim_h100);
}

void experiment_deinit(experiment *e) {
    trace_deinit(&e->rows);
    free(e->line);
    e->line = NULL;
}

double experiment_percent(double a, double b) {
    return b > 0 ? 100 * (a / b) : NAN;
}

/* ---- a run ---- */

double experiment_seconds(const experiment *e) {
    if (e->mix != WORKLOAD_TRACE || e->rows.n == 0) return e->seconds;
    double trace_s = trace_period_s(&e->rows) / e->rate_factor;
    return trace_s > 0 ? fmin(trace_s, e->seconds) : e->seconds;
}

workload_spec experiment_load_of(const experiment *e, uint64_t seed) {
    workload_spec s;
    workload_spec_init(&s, e->mix);
    s.seed = seed;
    s.duration_us = (uint64_t)(experiment_seconds(e) * 1e6);
    s.rate_factor = e->rate_factor;
    s.slo_ttft_us = e->ttft_us;
    s.slo_tpot_us = e->tpot_us;
    if (e->n_models > 0) s.n_models = e->n_models;
    if (e->lambda >= 0) s.rate_per_s = e->lambda;
    if (e->world.n_tenants > 0) s.n_tenants = e->world.n_tenants;
    s.attacks = e->attacks;
    if (e->no_backlog) s.pre_backlog = 0;
    s.lengths = e->lengths;
    s.rows = &e->rows;
    return s;
}

inferd_status experiment_check_load(const experiment *e, inferd_err *err) {
    workload_spec load = experiment_load_of(e, e->seed0);
    workload *w = NULL;
    inferd_status st = workload_create(&load, &w, err);
    if (st != INFERD_OK) inferd_context(err, "--mix %s", workload_kind_name(e->mix));
    workload_destroy(w);
    return st;
}

static world_model *make_models(const experiment *e, const sim_preset *p, uint32_t n,
                                inferd_err *err) {
    world_model *models = calloc(n, sizeof *models);
    if (models == NULL) {
        inferd_fail(err, INFERD_ENOMEM, "no memory for %u models", n);
        return NULL;
    }
    for (uint32_t i = 0; i < n; i++) {
        models[i].policy = world_policy();
        if (e->model_shares != NULL) models[i].policy.share = e->model_shares[i];
        models[i].sim = sim_model_of(p, &sim_shapes[e->mixed ? i % SIM_SHAPES : 0]);
    }
    return models;
}

static int compare_u64(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void find_quantiles(uint64_t *values, size_t n, double out[QUANTILES]) {
    qsort(values, n, sizeof *values, compare_u64);
    for (int i = 0; i < QUANTILES; i++)
        out[i] = n > 0 ? (double)stats_quantile(values, n, QUANTILE_OF[i]) : NAN;
}

inferd_status experiment_requests(const world *w, uint32_t tenant_idx, uint32_t model_idx,
                                  request_figures *out, inferd_err *err) {
    enum { ARRAYS = 5, WHOLE = 1000000 };
    uint64_t *all = malloc((ARRAYS * w->n_records + 1) * sizeof *all);
    if (all == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for %zu records", w->n_records);
    uint64_t *ttft = all, *tpot = ttft + w->n_records, *wait = tpot + w->n_records;
    uint64_t *n_steps = wait + w->n_records, *told = n_steps + w->n_records;
    size_t n_tpot = 0, n_told = 0;
    double parts[QUANTILES];
    *out = (request_figures){0};
    for (size_t i = 0; i < w->n_records; i++) {
        const world_record *x = &w->records[i];
        const stats_request *r = &x->stats;
        if (tenant_idx != SIM_ALL && x->tenant_idx != tenant_idx) continue;
        if (model_idx != SIM_ALL && x->model_idx != model_idx) continue;
        out->n_told += x->told_ms > 0;
        out->n_taken += x->taken_later;
        out->told_ms += x->told_ms;
        uint32_t needed_s = world_needed_s(w, x);
        if (needed_s > 0) told[n_told++] = (uint64_t)x->told_ms * (WHOLE / 1000) / needed_s;
        if (x->begun_us != 0) {
            n_steps[out->n_begun] = x->n_steps_before;
            wait[out->n_begun++] = x->begun_us - r->arrival_us;
        }
        if (r->end == STATS_DONE) ttft[out->attained.n_done] = r->first_us - r->arrival_us;
        if (r->end == STATS_DONE && r->n_output > 1)
            tpot[n_tpot++] = (r->last_us - r->first_us) / (r->n_output - 1);
        stats_count(&out->attained, r);
    }
    if (out->n_told > 0) out->told_ms /= (double)out->n_told;
    find_quantiles(ttft, out->attained.n_done, out->ttft_us);
    find_quantiles(tpot, n_tpot, out->tpot_us);
    find_quantiles(wait, out->n_begun, out->wait_us);
    find_quantiles(n_steps, out->n_begun, out->n_steps);
    find_quantiles(told, n_told, parts);
    out->told_per_needed = parts[MEDIAN] / WHOLE;
    free(all);
    return INFERD_OK;
}

/* Adds the watched figures of the time in which requests arrived. */
static inferd_status add_watched(world *w, run_figures *out, inferd_err *err) {
    uint64_t end_us = w->begin_us + (uint64_t)(out->offered_s * 1e6);
    double used_us = 0;
    out->busy = NAN;
    if (w->watch == NULL) return INFERD_OK;
    inferd_status st = watch_sum(w->watch, w->begin_us, end_us, &out->watched, err);
    for (uint32_t i = 0; i < w->watch->n_flows; i++) used_us += w->watch->flows[i].used_us;
    out->busy = used_us / (out->offered_s * 1e6);
    return st;
}

/* What the command line says of the daemon's limits. */
static void fill_world(const experiment *e, const workload_spec *load, world_options *o) {
    *o = e->world;
    o->n_models = load->n_models;
    o->n_tenants = load->n_tenants;
    if (e->queue_len > 0) o->sched.queue_len_max = e->queue_len;
    if (e->pace_ms > 0) o->sched.pace_us = (uint64_t)e->pace_ms * 1000;
    if (e->running_max > 0) {
        o->sched.logits_max += e->running_max - o->sched.running_max;
        o->sched.running_max = e->running_max;
        o->sched.step_tokens_max = u32_max(o->sched.step_tokens_max, 2 * e->running_max);
    }
    if (e->step_tokens > 0) {
        o->sched.step_tokens_max = e->step_tokens;
        o->sched.step_tokens_by_device = false;
    }
}

inferd_status experiment_run(const experiment *e, uint64_t seed, run_figures *out,
                             world **out_world, inferd_err *err) {
    workload_spec load = experiment_load_of(e, seed);
    world_options o;
    workload *offered = NULL;
    world *w = NULL;
    sim_preset preset = sim_h100;
    *out = (run_figures){.offered_s = (double)load.duration_us / 1e6};
    if (e->host_gb >= 0) preset.host_bytes = (uint64_t)(e->host_gb * 1e9);
    world_model *models = make_models(e, &preset, load.n_models, err);
    if (models == NULL) return err->status;
    fill_world(e, &load, &o);
    o.preset = &preset;
    o.models = models;
    inferd_status st = workload_create(&load, &offered, err);
    if (st == INFERD_OK) st = world_create(&o, &w, err);
    if (st == INFERD_OK) st = world_run(w, offered, err);
    if (st == INFERD_OK) st = experiment_requests(w, SIM_ALL, SIM_ALL, &out->all, err);
    if (st == INFERD_OK) st = add_watched(w, out, err);
    if (st == INFERD_OK) {
        world_sum(w, &out->usage);
        out->seconds = (double)(w->end_us - w->begin_us) / 1e6;
    }
    workload_destroy(offered);
    free(models);
    if (st == INFERD_OK && out_world != NULL)
        *out_world = w;
    else
        world_destroy(w);
    return st;
}

/* ---- targets ---- */

/* Requests per second that a device finishes while it always has work. */
static inferd_status measure_capacity(const experiment *one, double *out, inferd_err *err) {
    experiment flooded = *one;
    run_figures r;
    world *w;
    flooded.lambda = CAPACITY_RATE;
    flooded.seconds = CAPACITY_S;
    inferd_status st = experiment_run(&flooded, one->seed0, &r, &w, err);
    if (st != INFERD_OK) return st;
    size_t n = 0;
    for (size_t i = 0; i < w->n_records; i++) {
        const stats_request *x = &w->records[i].stats;
        n += x->end == STATS_DONE && x->last_us >= (uint64_t)CAPACITY_WARMUP_S * 1000000 &&
             x->last_us < (uint64_t)CAPACITY_S * 1000000;
    }
    world_destroy(w);
    *out = (double)n / (CAPACITY_S - CAPACITY_WARMUP_S);
    return n > 0 ? INFERD_OK
                 : inferd_fail(err, INFERD_EINVAL, "%s completes no request of %s", sim_h100.name,
                               sim_shapes[0].name);
}

inferd_status experiment_dedicated(const experiment *e, figures *f, dedicated *out,
                                   inferd_err *err) {
    /* One model, one tenant, no shares; what the command line says stays. */
    experiment one = *e;
    run_figures r;
    one.n_models = 1;
    one.mix = WORKLOAD_MIX_M;
    world_options_init(&one.world, &sim_h100);
    one.world.verify_iterations = e->world.verify_iterations;
    one.model_shares = NULL;
    one.rate_factor = 1;
    one.pace_ms = REFERENCE_PACE_MS;
    if (one.step_tokens == 0) one.step_tokens = u32_max(REFERENCE_STEP_TOKENS, 2 * e->running_max);
    inferd_status st = measure_capacity(&one, &out->capacity_per_s, err);
    if (st != INFERD_OK) return st;
    one.lambda = BASE_LOAD * out->capacity_per_s;
    one.seconds = fmax(e->seconds, BASE_S_MIN);
    st = experiment_run(&one, e->seed0, &r, NULL, err);
    if (st != INFERD_OK) return st;
    if (r.all.attained.n_done == 0)
        return inferd_fail(err, INFERD_EINVAL, "no request in %g s at %g a second of %s on %s",
                           one.seconds, one.lambda, sim_shapes[0].name, sim_h100.name);
    out->ttft_us = (uint64_t)r.all.ttft_us[P95];
    out->tpot_us = isnan(r.all.tpot_us[P95]) ? 0 : (uint64_t)r.all.tpot_us[P95];
    figures_note(f, "targets", "dedicated_ends_per_s", figures_number(out->capacity_per_s));
    figures_note(f, "targets", "dedicated_ttft_p95_ms", figures_number((double)out->ttft_us / 1e3));
    figures_note(f, "targets", "dedicated_tpot_p95_ms", figures_number((double)out->tpot_us / 1e3));
    return INFERD_OK;
}

void experiment_targets(experiment *e, const dedicated *base) {
    e->ttft_us = e->slo_ttft_ms > 0 ? e->slo_ttft_ms * 1000 : SLO_SCALE * (uint32_t)base->ttft_us;
    e->tpot_us = e->slo_tpot_ms > 0 ? e->slo_tpot_ms * 1000 : SLO_SCALE * (uint32_t)base->tpot_us;
}

void experiment_note_targets(const experiment *e, figures *f) {
    figures_note(f, "targets", "ttft_ms", figures_number(e->ttft_us / 1e3));
    figures_note(f, "targets", "tpot_ms", figures_number(e->tpot_us > 0 ? e->tpot_us / 1e3 : NAN));
}

/* ---- output ---- */

static void note_constants(const experiment *e, figures *f) {
    const sim_preset *p = &sim_h100;
    const sim_shape *s = &sim_shapes[0];
    sim_cost c = sim_cost_of(p, s);
    const struct {
        const char *section, *name;
        double value;
    } rows[] = {
        {"device", "memory_gb", (double)p->memory_bytes / 1e9},
        {"device", "reserve_gb", (double)p->reserve_bytes / 1e9},
        {"device", "host_gb", e->host_gb >= 0 ? e->host_gb : (double)p->host_bytes / 1e9},
        {"device", "page_bytes", (double)p->page_bytes},
        {"device", "read_by_steps_gb_per_s", p->mem_bytes_per_s / 1e9},
        {"device", "flops", p->flops},
        {"device", "bus_gb_per_s", p->bus_bytes_per_s / 1e9},
        {"device", "disk_gb_per_s", p->disk_bytes_per_s / 1e9},
        {"device", "steps_at_once", p->depth},
        {"model", "weights_gb", (double)s->weight_bytes / 1e9},
        {"model", "step_ms", (double)c.fixed_ns / 1e6},
        {"model", "row_us", (double)c.row_ns / 1e3},
        {"model", "draw_us", (double)c.draw_ns / 1e3},
        {"model", "position_kept_ns", (double)c.kept_ps / 1e3},
        {"model", "position_attended_ns", (double)c.attended_ps / 1e3},
        {"model", "load_ms", (double)sim_load_us(p, s->weight_bytes) / 1e3},
    };
    figures_note(f, "device", "name", json_string(p->name));
    figures_note(f, "model", "name", json_string(s->name));
    for (size_t i = 0; i < INFERD_COUNT(rows); i++)
        figures_note(f, rows[i].section, rows[i].name, figures_number(rows[i].value));
}

inferd_status experiment_do(const experiment *e, inferd_err *err) {
    figures f;
    figures_init(&f, e->seed0, e->n_seeds);
    options_note(e, &f);
    note_constants(e, &f);
    inferd_status st = EXPERIMENT[e->kind].run(e, &f, err);
    json_t *json = st == INFERD_OK ? figures_json(&f) : NULL;
    if (st == INFERD_OK && json == NULL)
        st = inferd_fail(err, INFERD_ENOMEM, "no memory for the figures");
    if (st == INFERD_OK) figures_print(&f, stdout);
    if (st == INFERD_OK && e->json_path != NULL &&
        json_dump_file(json, e->json_path, JSON_INDENT(1)) != 0)
        st = inferd_fail(err, INFERD_EIO, "%s cannot be written", e->json_path);
    json_decref(json);
    figures_deinit(&f);
    return st;
}

/* ---- one run as rows ---- */

static double per_min(uint64_t n, const run_figures *r) {
    return 60 * ((double)n / r->seconds);
}

double experiment_error(const run_figures *r, int window) {
    return r->watched.errors[window].is_known ? r->watched.errors[window].points : NAN;
}

void experiment_set(figures *f, const char *group, uint32_t seed_idx, const run_figures *r) {
    const world_usage *a = &r->usage;
    const request_figures *q = &r->all;
    const stats_attained *n = &q->attained;
    double wall_us = (double)a->wall_us;
    const figure_row rows[] = {
        {"offered", "1/s", 3, (double)n->n_offered / r->offered_s},
        {"attainment", "%", 2, 100 * stats_attainment(n)},
        {"goodput per device", "1/s", 3, (double)n->n_met / r->offered_s},
        {"goodput per device, output", "tok/s", 1, (double)n->n_output_met / r->offered_s},
        {"throughput per device, output", "tok/s", 1, (double)n->n_output * 1e6 / wall_us},
        {"refused", "requests", 0, (double)n->n_refused},
        {"failed", "requests", 0, (double)n->n_failed},
        {"unfinished", "requests", 0, (double)n->n_unfinished},
        {"first token too late", "requests", 0, (double)n->n_late_first},
        {"too slow", "requests", 0, (double)n->n_slow},
        {"TTFT median", "ms", 1, q->ttft_us[MEDIAN] / 1e3},
        {"TTFT P95", "ms", 1, q->ttft_us[P95] / 1e3},
        {"TTFT P99", "ms", 1, q->ttft_us[P99] / 1e3},
        {"TPOT median", "ms", 2, q->tpot_us[MEDIAN] / 1e3},
        {"TPOT P95", "ms", 2, q->tpot_us[P95] / 1e3},
        {"TPOT P99", "ms", 2, q->tpot_us[P99] / 1e3},
        {"loads", "1/min", 2, per_min(a->n_loads, r)},
        {"stages", "1/min", 2, per_min(a->n_stages, r)},
        {"evicted, idle", "1/min", 2, per_min(a->n_evictions[ENGINE_EVICT_PRESSURE], r)},
        {"evicted, lower class", "1/min", 2, per_min(a->n_evictions[ENGINE_EVICT_CLASS], r)},
        {"evicted, turns", "1/min", 2, per_min(a->n_evictions[ENGINE_EVICT_SLICE], r)},
        {"preempted", "1/min", 2, per_min(a->n_preemptions, r)},
        {"device computes", "%", 1, experiment_percent((double)a->step_us, wall_us)},
        {"kept from it by loads", "%", 2, experiment_percent((double)a->load_us, wall_us)},
        {"idle", "%", 1, experiment_percent((double)a->idle_us, wall_us)},
        {"rows per step", "", 1, (double)a->n_rows / (double)a->n_steps},
    };
    const figure_row watched[] = {
        {"device computes while they come", "%", 1, 100 * r->busy},
        {"share error, 1 s", "points", 1, experiment_error(r, 0)},
        {"share error, 10 s", "points", 2, experiment_error(r, 1)},
        {"share error, 60 s", "points", 2, experiment_error(r, 2)},
        {"Jain, service / weight", "", 3, r->watched.jain_weighted},
        {"Jain, service / due", "", 3, r->watched.jain_due},
    };
    figures_set(f, group, seed_idx, rows, INFERD_COUNT(rows));
    if (!isnan(r->busy)) figures_set(f, group, seed_idx, watched, INFERD_COUNT(watched));
}
