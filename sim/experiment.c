/* experiment.c - see experiment.h: one run, its targets, and the output of figures. */
#include "engine_limits.h"
#include "experiment.h"
#include "options.h"

#include <math.h>
#include <string.h>
#include <time.h>

enum {
    CAPACITY_S = 240,       // with an endless queue
    CAPACITY_WARMUP_S = 60, // of that, not counted
    BASE_S_MIN = 600,
    /* For the dedicated device: targets do not change with the daemon's defaults. */
    REFERENCE_TPOT_MS = 25,
    REFERENCE_STEP_TOKENS = 512
};
#define CAPACITY_RATE 200.0 // per second, more than any preset serves
#define BASE_LOAD     0.5
#define BASE_QUANTILE 0.95

static const double QUANTILES[3] = {0.5, 0.95, 0.99};
const char *const experiment_attack_names[EXPERIMENT_ATTACKS] = {"flood", "short", "long", "storm"};
_Static_assert(ATTACK_FLOOD == 1 && ATTACK_SHORT == 2 && ATTACK_LONG == 4 && ATTACK_STORM == 8,
               "bits in the order of the names");

void experiment_init(experiment *e) {
    *e = (experiment){.preset = sim_preset_find("h100-80"),
                      .mix = WORKLOAD_MIX_M,
                      .lengths = LENGTHS_CONV,
                      .n_seeds = FIGURES_SEEDS_MIN,
                      .seed0 = 1,
                      .n_devices = 1,
                      .seconds = 600,
                      .lambda = -1,
                      .zipf = -1,
                      .cv = -1,
                      .rate_factor = 1,
                      .slo_scale = 5,
                      .host_gb = -1,
                      .n_requests = 200000,
                      .models_max = 128,
                      .verify_iterations = WORLD_VERIFY_ITERATIONS,
                      .attacks = ATTACK_ALL};
}

void experiment_deinit(experiment *e) {
    for (uint32_t i = 0; i < e->n_traces; i++) trace_deinit(&e->traces[i]);
    e->n_traces = 0;
    free(e->line);
    e->line = NULL;
}

static double used_s(void) {
    struct timespec ts;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

/* ---- a run ---- */

static void fill_load(const experiment *e, workload_spec *out, uint64_t seed, uint32_t n_models) {
    workload_spec_init(out, e->mix);
    out->seed = seed;
    out->duration_us = (uint64_t)(e->seconds * 1e6);
    if (n_models > 0) out->n_models = n_models;
    if (e->lambda >= 0) out->rate_per_s = e->lambda;
    if (e->zipf >= 0) out->zipf = e->zipf;
    if (e->cv >= 0) out->cv = e->cv;
    if (e->n_tenants > 0) out->n_tenants = e->n_tenants;
    out->attacks = e->attacks;
    if (e->no_backlog) out->pre_backlog = 0;
    out->lengths = e->n_traces > 0 ? LENGTHS_TRACE : e->lengths;
    for (uint32_t i = 0; i < e->n_traces; i++) out->traces[i] = &e->traces[i];
    out->n_traces = e->n_traces;
}

double experiment_seconds(const experiment *e, double rate_factor) {
    if (e->mix != WORKLOAD_TRACE || e->n_traces == 0) return e->seconds;
    double trace_s = trace_period_s(&e->traces[0]) / rate_factor;
    return trace_s > 0 ? fmin(trace_s, e->seconds) : e->seconds;
}

inferd_status experiment_check_load(const experiment *e, inferd_err *err) {
    workload_spec load;
    workload *w = NULL;
    fill_load(e, &load, e->seed0, e->n_models);
    load.rate_factor = e->rate_factor;
    inferd_status st = workload_create(&load, &w, err);
    if (st != INFERD_OK) inferd_context(err, "--mix %s", workload_kind_name(e->mix));
    workload_destroy(w);
    return st;
}

uint32_t experiment_n_models(const experiment *e) {
    workload_spec s;
    workload_spec_init(&s, e->mix);
    return e->n_models > 0 ? e->n_models : s.n_models;
}

/* Model i is on device i mod n; with fewer models than devices, each model has several replicas. */
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
        models[i].device_idx = i % e->n_devices;
        models[i].n_replicas = n < e->n_devices ? e->n_devices / n : 1;
        const sim_shape *shape = e->n_shapes > 0 ? e->shapes[i % e->n_shapes] : e->shape;
        if (sim_model_of(p, shape, &models[i].sim, err) == INFERD_OK) continue;
        free(models);
        return NULL;
    }
    return models;
}

static int compare_u64(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

void experiment_quantiles(uint64_t *values, size_t n, double out[3]) {
    qsort(values, n, sizeof *values, compare_u64);
    for (int i = 0; i < 3; i++)
        out[i] = n > 0 ? (double)stats_quantile(values, n, QUANTILES[i]) : NAN;
}

/* What the clients were told that obey Retry-After. */
static inferd_status sum_told(const world *w, run_figures *out, inferd_err *err) {
    enum { PARTS = 1000000 };
    uint64_t *parts = malloc(size_max(w->n_records, 1) * sizeof *parts);
    double quantiles[3];
    size_t n = 0;
    if (parts == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for %zu", w->n_records);
    for (size_t i = 0; i < w->n_records; i++) {
        const world_record *x = &w->records[i];
        uint32_t needed_s = world_needed_s(w, x);
        out->n_told += x->told_ms > 0;
        out->n_taken += x->taken_later;
        out->told_ms += x->told_ms;
        if (needed_s > 0) parts[n++] = (uint64_t)x->told_ms * (PARTS / 1000) / needed_s;
    }
    if (out->n_told > 0) out->told_ms /= (double)out->n_told;
    experiment_quantiles(parts, n, quantiles);
    out->told_per_needed = quantiles[0] / PARTS;
    free(parts);
    return INFERD_OK;
}

static inferd_status sum_up(const world *w, double seconds, run_figures *out, inferd_err *err) {
    stats_request *r = world_stats(w);
    uint64_t *ttft = malloc(size_max(w->n_records, 1) * sizeof *ttft);
    uint64_t *tpot = malloc(size_max(w->n_records, 1) * sizeof *tpot);
    size_t n_ttft = 0, n_tpot = 0, n_ttft_met = 0, n_tpot_met = 0;
    uint64_t n_output = 0;
    if (r == NULL || ttft == NULL || tpot == NULL) {
        free(r);
        free(ttft);
        free(tpot);
        return inferd_fail(err, INFERD_ENOMEM, "no memory for %zu records", w->n_records);
    }
    for (size_t i = 0; i < w->n_records; i++) {
        if (r[i].end != STATS_DONE) continue;
        uint64_t ttft_us = r[i].first_us - r[i].arrival_us, tpot_us = 0;
        ttft[n_ttft++] = ttft_us;
        n_output += r[i].n_output;
        if (r[i].n_output > 1)
            tpot[n_tpot++] = tpot_us = (r[i].last_us - r[i].first_us) / (r[i].n_output - 1);
        n_ttft_met += r[i].slo_ttft_us == 0 || ttft_us <= r[i].slo_ttft_us;
        n_tpot_met += r[i].slo_tpot_us == 0 || tpot_us <= r[i].slo_tpot_us;
    }
    inferd_status st = sum_told(w, out, err);
    out->ttft_met = w->n_records > 0 ? (double)n_ttft_met / (double)w->n_records : NAN;
    out->tpot_met = w->n_records > 0 ? (double)n_tpot_met / (double)w->n_records : NAN;
    out->output_per_s =
        (double)n_output * 1e6 / (double)(w->end_us - w->begin_us) / w->options.n_devices;
    experiment_quantiles(ttft, n_ttft, out->ttft_us);
    experiment_quantiles(tpot, n_tpot, out->tpot_us);
    out->attained = stats_attain(r, w->n_records);
    out->attainment = stats_attainment(&out->attained);
    out->offered_s = seconds;
    out->goodput = stats_goodput(&out->attained, seconds) / w->options.n_devices;
    out->goodput_tokens = stats_goodput_tokens(&out->attained, seconds) / w->options.n_devices;
    out->offered_per_s = (double)w->n_records / seconds;
    out->seconds = (double)(w->end_us - w->begin_us) / 1e6;
    world_sum(w, &out->usage);
    out->used =
        out->usage.wall_us > 0 ? (double)out->usage.step_us / (double)out->usage.wall_us : NAN;
    free(r);
    free(ttft);
    free(tpot);
    return st;
}

/* Number of tenants in the requests of this workload. */
static uint32_t tenants_of(const workload_spec *load) {
    if (load->kind == WORKLOAD_ADV) return ADV_TENANTS;
    return load->kind == WORKLOAD_PRE ? PRE_MODELS : load->n_tenants;
}

/* Adds the watched figures of the time in which requests arrived. */
static inferd_status add_watched(const experiment *e, world *w, double seconds, run_figures *out,
                                 inferd_err *err) {
    uint64_t end_us = w->begin_us + (uint64_t)(seconds * 1e6);
    double used_us = 0;
    for (int k = 0; k < STATS_WINDOWS; k++) out->share_points[k] = NAN;
    out->jain_weighted = out->jain_due = out->busy = NAN;
    for (uint32_t d = 0; e->watched && d < w->options.n_devices; d++) {
        watch_figures f;
        const watch *of = w->cores[d].watch;
        inferd_status st = watch_sum(w->cores[d].watch, w->begin_us, end_us,
                                     w->options.sched.starvation_percent, &f, err);
        if (st != INFERD_OK) return st;
        for (int k = 0; k < STATS_WINDOWS; k++)
            if (f.errors[k].is_known)
                out->share_points[k] = fmax(out->share_points[k], f.errors[k].points);
        out->jain_weighted = fmin(out->jain_weighted, f.jain_weighted);
        out->jain_due = fmin(out->jain_due, f.jain_due);
        for (uint32_t i = 0; i < of->n_flows; i++) used_us += f.used_us[i];
        watch_figures_deinit(&f);
    }
    if (e->watched) out->busy = used_us / (seconds * 1e6 * w->options.n_devices);
    return INFERD_OK;
}

/* Draws the same workload once more, sorted by model; the caller frees both arrays. */
static inferd_status look_ahead(const workload_spec *load, world_future *out, inferd_err *err) {
    size_t n_models = load->n_models, n = 0, capacity = 0;
    size_t *begin = calloc(n_models + 2, sizeof *begin);
    uint64_t *arrivals_us = NULL;
    workload_request *all = NULL, r;
    workload *w = NULL;
    inferd_status st = begin != NULL ? workload_create(load, &w, err)
                                     : inferd_fail(err, INFERD_ENOMEM, "no memory for a workload");
    while (st == INFERD_OK && workload_next(w, &r)) {
        if (n == capacity) {
            capacity = capacity == 0 ? 1024 : 2 * capacity;
            workload_request *grown = realloc(all, capacity * sizeof *all);
            if (grown == NULL) st = inferd_fail(err, INFERD_ENOMEM, "no memory for %zu", capacity);
            if (grown == NULL) break;
            all = grown;
        }
        all[n++] = r;
        begin[r.model_idx + 2]++; // shifted by one: it becomes the end of the previous model
    }
    if (st == INFERD_OK && (arrivals_us = malloc(size_max(n, 1) * sizeof *arrivals_us)) == NULL)
        st = inferd_fail(err, INFERD_ENOMEM, "no memory for %zu arrivals", n);
    for (size_t i = 2; st == INFERD_OK && i < n_models + 2; i++) begin[i] += begin[i - 1];
    for (size_t i = 0; st == INFERD_OK && i < n; i++)
        arrivals_us[begin[all[i].model_idx + 1]++] = all[i].arrival_us;
    workload_destroy(w);
    free(all);
    if (st != INFERD_OK) {
        free(begin);
        return st;
    }
    *out = (world_future){arrivals_us, begin};
    return INFERD_OK;
}

/* Runs `load` in a world of its models; *out_world is the caller's then, unless it is NULL. */
static inferd_status run(const experiment *e, const workload_spec *load, run_figures *out,
                         world **out_world, inferd_err *err) {
    *out = (run_figures){0};
    sim_preset preset = *e->preset;
    if (e->host_gb >= 0) preset.host_bytes = (uint64_t)(e->host_gb * 1e9);
    world_model *models = make_models(e, &preset, load->n_models, err);
    if (models == NULL) return err->status;
    world_options o;
    world_options_init(&o, &preset);
    o.n_devices = e->n_devices;
    o.models = models;
    o.n_models = load->n_models;
    o.seed = load->seed;
    o.cache_all = e->cache_all;
    o.verify_iterations = e->verify_iterations;
    o.told = e->told;
    o.obeys = e->obeys;
    o.anonymous = e->anonymous;
    o.watched = e->watched;
    o.n_tenants = tenants_of(load);
    o.tenants = e->tenants;
    if (e->queue_len > 0) o.sched.queue_len_max = e->queue_len;
    o.worth = e->worth;
    if (e->tpot_ms > 0) o.sched.pace_us = (uint64_t)e->tpot_ms * 1000;
    if (e->running_max > 0) {
        o.sched.logits_max += e->running_max - o.sched.running_max;
        o.sched.running_max = e->running_max;
        o.sched.step_tokens_max = u32_max(o.sched.step_tokens_max, 2 * e->running_max);
    }
    if (e->step_tokens > 0) {
        o.sched.step_tokens_max = e->step_tokens;
        o.sched.step_tokens_by_device = false;
    }
    workload *offered = NULL;
    world *w = NULL;
    double began_s = used_s();
    inferd_status st = workload_create(load, &offered, err);
    if (st == INFERD_OK && e->worth >= WORLD_WORTH_RATE) st = look_ahead(load, &o.future, err);
    if (st == INFERD_OK) st = world_create(&o, &w, err);
    if (st == INFERD_OK) st = world_run(w, offered, err);
    if (st == INFERD_OK) st = sum_up(w, (double)load->duration_us / 1e6, out, err);
    if (st == INFERD_OK) st = add_watched(e, w, (double)load->duration_us / 1e6, out, err);
    out->machine_s = used_s() - began_s;
    workload_destroy(offered);
    free((uint64_t *)(uintptr_t)o.future.arrivals_us);
    free((size_t *)(uintptr_t)o.future.begin);
    free(models);
    if (st == INFERD_OK && out_world != NULL)
        *out_world = w;
    else
        world_destroy(w);
    return st;
}

inferd_status experiment_run_world(const experiment *e, uint64_t seed, uint32_t n_models,
                                   double rate_factor, uint32_t slo_ttft_us, uint32_t slo_tpot_us,
                                   run_figures *out, world **out_world, inferd_err *err) {
    workload_spec load;
    fill_load(e, &load, seed, n_models > 0 ? n_models : e->n_models);
    load.rate_factor = rate_factor;
    load.duration_us = (uint64_t)(experiment_seconds(e, rate_factor) * 1e6);
    load.slo_ttft_us = slo_ttft_us;
    load.slo_tpot_us = slo_tpot_us;
    return run(e, &load, out, out_world, err);
}

inferd_status experiment_run(const experiment *e, uint64_t seed, uint32_t n_models,
                             double rate_factor, uint32_t slo_ttft_us, uint32_t slo_tpot_us,
                             run_figures *out, inferd_err *err) {
    return experiment_run_world(e, seed, n_models, rate_factor, slo_ttft_us, slo_tpot_us, out, NULL,
                                err);
}

/* ---- targets ---- */

/* One model, one tenant, no shares. */
static void dedicate(experiment *e) {
    e->mix = WORKLOAD_MIX_M;
    e->tenants = NULL;
    e->n_tenants = 0;
    e->model_shares = NULL;
    e->watched = false;
    e->tpot_ms = REFERENCE_TPOT_MS;
    if (e->step_tokens == 0) e->step_tokens = u32_max(REFERENCE_STEP_TOKENS, 2 * e->running_max);
}

/* Requests per second that one device with one model finishes while it always has work. */
static inferd_status measure_capacity(const experiment *e, double *out, inferd_err *err) {
    experiment one = *e;
    workload_spec load;
    run_figures f;
    world *w;
    one.n_devices = 1;
    dedicate(&one);
    one.lambda = CAPACITY_RATE;
    one.seconds = CAPACITY_S;
    fill_load(&one, &load, e->seed0, 1);
    inferd_status st = run(&one, &load, &f, &w, err);
    if (st != INFERD_OK) return st;
    size_t n = 0;
    for (size_t i = 0; i < w->n_records; i++) {
        const stats_request *r = &w->records[i].stats;
        n += r->end == STATS_DONE && r->last_us >= (uint64_t)CAPACITY_WARMUP_S * 1000000 &&
             r->last_us < (uint64_t)CAPACITY_S * 1000000;
    }
    world_destroy(w);
    *out = (double)n / (CAPACITY_S - CAPACITY_WARMUP_S);
    return n > 0 ? INFERD_OK
                 : inferd_fail(err, INFERD_EINVAL, "%s completes no request of %s", e->preset->name,
                               e->shape->name);
}

inferd_status experiment_base(const experiment *e, slo_base *out, inferd_err *err) {
    inferd_status st = measure_capacity(e, &out->capacity_per_s, err);
    if (st != INFERD_OK) return st;
    experiment one = *e;
    workload_spec load;
    run_figures f;
    one.n_devices = 1;
    dedicate(&one);
    one.lambda = out->rate_per_s = BASE_LOAD * out->capacity_per_s;
    one.seconds = e->seconds > BASE_S_MIN ? e->seconds : BASE_S_MIN;
    fill_load(&one, &load, e->seed0, 1);
    st = run(&one, &load, &f, NULL, err);
    if (st != INFERD_OK) return st;
    if (isnan(f.ttft_us[1]))
        return inferd_fail(err, INFERD_EINVAL, "no request in %g s at %g a second of %s on %s",
                           one.seconds, one.lambda, e->shape->name, e->preset->name);
    out->ttft_us = (uint64_t)f.ttft_us[1];
    out->tpot_us = isnan(f.tpot_us[1]) ? 0 : (uint64_t)f.tpot_us[1];
    return INFERD_OK;
}

/* Fails if the target does not fit 32 bits or is below 1 us. */
static inferd_status scale_target(const char *name, uint64_t base_us, double scale, uint32_t *out,
                                  inferd_err *err) {
    double us = (double)base_us * scale;
    if (us >= 1 && us <= UINT32_MAX) {
        *out = (uint32_t)us;
        return INFERD_OK;
    }
    return inferd_fail(err, INFERD_EINVAL, "--slo-scale is %g: a %s of %g ms, expected 0.001 to %g",
                       scale, name, us / 1e3, (double)UINT32_MAX / 1e3);
}

inferd_status experiment_targets(const experiment *e, bool wants_base, slo_targets *out,
                                 inferd_err *err) {
    bool given = e->slo_ttft_ms != 0 && e->slo_tpot_ms != 0;
    *out = (slo_targets){.ttft_us = e->slo_ttft_ms * 1000, .tpot_us = e->slo_tpot_ms * 1000};
    if (given && !wants_base) return INFERD_OK;
    const slo_base *base = &out->base;
    inferd_status st = experiment_base(e, &out->base, err);
    if (st != INFERD_OK) return st;
    out->has_base = true;
    if (given) return INFERD_OK;
    if (out->ttft_us == 0)
        st = scale_target("TTFT", base->ttft_us, e->slo_scale, &out->ttft_us, err);
    if (st == INFERD_OK && out->tpot_us == 0 && base->tpot_us > 0)
        st = scale_target("TPOT", base->tpot_us, e->slo_scale, &out->tpot_us, err);
    if (st != INFERD_OK) return st;
    printf("dedicated device: completes %.2f requests/s of an endless queue; at %.0f %% of that, "
           "%.2f/s: P95 TTFT %.1f ms, P95 TPOT %.2f ms\n",
           base->capacity_per_s, 100 * BASE_LOAD, base->rate_per_s, (double)base->ttft_us / 1e3,
           (double)base->tpot_us / 1e3);
    printf("targets (times %g): TTFT %.1f ms, TPOT %.2f ms\n", e->slo_scale,
           (double)out->ttft_us / 1e3, (double)out->tpot_us / 1e3);
    return INFERD_OK;
}

/* ---- output ---- */

void experiment_print_constants(const experiment *e) {
    const sim_preset *p = e->preset;
    const sim_shape *s = e->shape;
    sim_cost c = sim_cost_of(p, s);
    double host_gb = e->host_gb >= 0 ? e->host_gb : (double)p->host_bytes / 1e9;
    printf("device %s: %.0f GB less %.0f, host %.0f GB for warm weights, %.0f GB/s read by steps, "
           "%.3g FLOP/s, bus %.1f GB/s, disk %.1f GB/s, %u steps at once\n",
           p->name, (double)p->memory_bytes / 1e9, (double)p->reserve_bytes / 1e9, host_gb,
           p->mem_bytes_per_s / 1e9, p->flops, p->bus_bytes_per_s / 1e9, p->disk_bytes_per_s / 1e9,
           p->depth);
    printf(
        "model %s: %.1f GB, a step %.2f ms + %.1f us a row + %.1f us a draw + %.1f ns a position "
        "kept + %.2f ns a position attended; a load %.0f ms\n",
        s->name, (double)s->weight_bytes / 1e9, (double)c.fixed_ns / 1e6, (double)c.row_ns / 1e3,
        (double)c.draw_ns / 1e3, (double)c.kept_ps / 1e3, (double)c.attended_ps / 1e3,
        (double)sim_load_us(p, s->weight_bytes) / 1e3);
}

inferd_status experiment_write(const char *path, const buf *text, inferd_err *err) {
    if (text->failed) return inferd_fail(err, INFERD_ENOMEM, "no memory for %s", path);
    FILE *f = fopen(path, "wb");
    bool written = f != NULL && fwrite(text->p, 1, text->n, f) == text->n;
    if (f != NULL && fclose(f) != 0) written = false;
    return written ? INFERD_OK : inferd_fail(err, INFERD_EIO, "%s cannot be written", path);
}

typedef struct note {
    const char *section, *name;
    double value;
} note;

static inferd_status add_notes(figures *f, const note *notes, size_t n, inferd_err *err) {
    inferd_status st = INFERD_OK;
    for (size_t i = 0; i < n && st == INFERD_OK; i++)
        st = figures_note(f, notes[i].section, notes[i].name, notes[i].value, err);
    return st;
}

/* Notes what experiment_print_constants prints, and related values. */
static inferd_status note_constants(const experiment *e, figures *f, inferd_err *err) {
    const sim_preset *p = e->preset;
    const note of_device[] = {
        {"device", "memory_gb", (double)p->memory_bytes / 1e9},
        {"device", "reserve_gb", (double)p->reserve_bytes / 1e9},
        {"device", "host_gb", e->host_gb >= 0 ? e->host_gb : (double)p->host_bytes / 1e9},
        {"device", "page_bytes", (double)p->page_bytes},
        {"device", "read_by_steps_gb_per_s", p->mem_bytes_per_s / 1e9},
        {"device", "flops", p->flops},
        {"device", "bus_gb_per_s", p->bus_bytes_per_s / 1e9},
        {"device", "disk_gb_per_s", p->disk_bytes_per_s / 1e9},
        {"device", "steps_at_once", p->depth},
    };
    inferd_status st = figures_note_text(f, "device", "name", p->name, err);
    if (st == INFERD_OK) st = add_notes(f, of_device, INFERD_COUNT(of_device), err);
    if (st != INFERD_OK || e->shape == NULL) return st;
    const sim_shape *s = e->shape;
    sim_cost c = sim_cost_of(p, s);
    const note of_model[] = {
        {"model", "weights_gb", (double)s->weight_bytes / 1e9},
        {"model", "step_ms", (double)c.fixed_ns / 1e6},
        {"model", "row_us", (double)c.row_ns / 1e3},
        {"model", "draw_us", (double)c.draw_ns / 1e3},
        {"model", "position_kept_ns", (double)c.kept_ps / 1e3},
        {"model", "position_attended_ns", (double)c.attended_ps / 1e3},
        {"model", "load_ms", (double)sim_load_us(p, s->weight_bytes) / 1e3},
    };
    st = figures_note_text(f, "model", "name", s->name, err);
    return st == INFERD_OK ? add_notes(f, of_model, INFERD_COUNT(of_model), err) : st;
}

inferd_status experiment_note_targets(figures *f, const slo_targets *t, inferd_err *err) {
    const note notes[] = {
        {"targets", "ttft_ms", t->ttft_us > 0 ? t->ttft_us / 1e3 : NAN},
        {"targets", "tpot_ms", t->tpot_us > 0 ? t->tpot_us / 1e3 : NAN},
        {"targets", "dedicated_ends_per_s", t->base.capacity_per_s},
        {"targets", "dedicated_ttft_p95_ms", (double)t->base.ttft_us / 1e3},
        {"targets", "dedicated_tpot_p95_ms", (double)t->base.tpot_us / 1e3},
    };
    enum { N_GIVEN = 2 }; // without a dedicated device
    return add_notes(f, notes, t->has_base ? INFERD_COUNT(notes) : N_GIVEN, err);
}

inferd_status experiment_figures(const experiment *e, figures *f, const char *title,
                                 inferd_err *err) {
    uint64_t seeds[FIGURES_SEEDS_MAX];
    for (uint32_t i = 0; i < e->n_seeds && i < FIGURES_SEEDS_MAX; i++) seeds[i] = e->seed0 + i;
    inferd_status st = figures_init(f, title, seeds, e->n_seeds, err);
    if (st == INFERD_OK) st = options_note(e, f, err);
    return st == INFERD_OK ? note_constants(e, f, err) : st;
}

inferd_status experiment_tell(const experiment *e, const figures *f, inferd_err *err) {
    buf text = {0}, json = {0};
    figures_text(f, &text);
    figures_json(f, &json);
    inferd_status st =
        text.failed ? inferd_fail(err, INFERD_ENOMEM, "no memory for a table") : INFERD_OK;
    if (st == INFERD_OK) fwrite(text.p, 1, text.n, stdout);
    if (st == INFERD_OK && e->json_path != NULL) st = experiment_write(e->json_path, &json, err);
    buf_deinit(&text);
    buf_deinit(&json);
    return st;
}

/* ---- one run as rows ---- */

inferd_status experiment_set_rows(figures *f, const char *group, uint32_t seed_idx,
                                  const experiment_row *rows, size_t n, inferd_err *err) {
    inferd_status st = INFERD_OK;
    for (size_t i = 0; i < n && st == INFERD_OK; i++)
        st = figures_set(f, group, rows[i].name, rows[i].unit, rows[i].n_digits, seed_idx,
                         rows[i].value, err);
    return st;
}

void experiment_point(const figures *f, const char *group, const char *name, size_t i,
                      double *median, double *lo, double *hi) {
    figure_summary s = figures_summary(f, figures_find(f, group, name));
    median[i] = s.median, lo[i] = s.min, hi[i] = s.max;
}

inferd_status experiment_run_seeds(const experiment *e, uint32_t n_models, double rate_factor,
                                   uint32_t slo_ttft_us, uint32_t slo_tpot_us, figures *f,
                                   const char *group, experiment_set_f *set, inferd_err *err) {
    inferd_status st = INFERD_OK;
    for (uint32_t i = 0; i < e->n_seeds && st == INFERD_OK; i++) {
        run_figures r;
        st = experiment_run(e, e->seed0 + i, n_models, rate_factor, slo_ttft_us, slo_tpot_us, &r,
                            err);
        if (st == INFERD_OK) st = set(f, group, i, &r, err);
    }
    return st;
}

inferd_status experiment_plot(const experiment *e, const plot *p, inferd_err *err) {
    if (e->svg_path == NULL) return INFERD_OK;
    buf svg = {0};
    inferd_status st = plot_svg(p, &svg, err);
    if (st == INFERD_OK) st = experiment_write(e->svg_path, &svg, err);
    buf_deinit(&svg);
    return st;
}

inferd_status experiment_plot_bars(const experiment *e, const plot_labels *labels,
                                   const plot_series *series, uint32_t n_series,
                                   const char *const *bars, uint32_t n_bars, inferd_err *err) {
    plot p = {.title = labels->title,
              .x_label = labels->x,
              .y_label = labels->y,
              .series = series,
              .n_series = n_series,
              .bar_names = bars,
              .n_bars = n_bars};
    return experiment_plot(e, &p, err);
}

static double per(double a, double b) {
    return b > 0 ? a / b : NAN;
}

inferd_status experiment_set(figures *f, const char *group, uint32_t seed_idx, const run_figures *r,
                             inferd_err *err) {
    const world_usage *a = &r->usage;
    const experiment_row rows[] = {
        {"offered", "1/s", 3, r->offered_per_s},
        {"attainment", "%", 2, 100 * r->attainment},
        {"goodput per device", "1/s", 3, r->goodput},
        {"goodput per device, output", "tok/s", 1, r->goodput_tokens},
        {"refused", "requests", 0, (double)r->attained.n_refused},
        {"failed", "requests", 0, (double)r->attained.n_failed},
        {"unfinished", "requests", 0, (double)r->attained.n_unfinished},
        {"first token too late", "requests", 0, (double)r->attained.n_late_first},
        {"too slow", "requests", 0, (double)r->attained.n_slow},
        {"TTFT median", "ms", 1, r->ttft_us[0] / 1e3},
        {"TTFT P95", "ms", 1, r->ttft_us[1] / 1e3},
        {"TTFT P99", "ms", 1, r->ttft_us[2] / 1e3},
        {"TPOT median", "ms", 2, r->tpot_us[0] / 1e3},
        {"TPOT P95", "ms", 2, r->tpot_us[1] / 1e3},
        {"TPOT P99", "ms", 2, r->tpot_us[2] / 1e3},
        {"loads", "1/min", 2, 60 * per((double)a->n_loads, r->seconds)},
        {"stages", "1/min", 2, 60 * per((double)a->n_stages, r->seconds)},
        {"evicted, idle", "1/min", 2,
         60 * per((double)a->n_evictions[ENGINE_EVICT_PRESSURE], r->seconds)},
        {"evicted, lower class", "1/min", 2,
         60 * per((double)a->n_evictions[ENGINE_EVICT_CLASS], r->seconds)},
        {"evicted, turns", "1/min", 2,
         60 * per((double)a->n_evictions[ENGINE_EVICT_SLICE], r->seconds)},
        {"a load waits, queue", "ms", 1, per((double)a->waited.queue_us, (double)a->n_loads) / 1e3},
        {"a load waits, stage", "ms", 1, per((double)a->waited.stage_us, (double)a->n_loads) / 1e3},
        {"a load waits, copy", "ms", 1, per((double)a->waited.load_us, (double)a->n_loads) / 1e3},
        {"preempted", "1/min", 2, 60 * per((double)a->n_preemptions, r->seconds)},
        {"prompt tokens found", "%", 1,
         100 * per((double)a->prefix_hits_tokens, (double)a->prefix_queries_tokens)},
        {"device computes", "%", 1, 100 * r->used},
        {"kept from it by loads", "%", 2, 100 * per((double)a->load_us, (double)a->wall_us)},
        {"idle", "%", 1, 100 * per((double)a->idle_us, (double)a->wall_us)},
        {"rows per step", "", 1, per((double)a->n_rows, (double)a->n_steps)},
    };
    inferd_status st = experiment_set_rows(f, group, seed_idx, rows, INFERD_COUNT(rows), err);
    const experiment_row watched[] = {
        {"device computes while they come", "%", 1, 100 * r->busy},
        {"share error, 1 s", "points", 1, r->share_points[0]},
        {"share error, 10 s", "points", 2, r->share_points[1]},
        {"share error, 60 s", "points", 2, r->share_points[2]},
        {"Jain, service / weight", "", 3, r->jain_weighted},
        {"Jain, service / due", "", 3, r->jain_due},
    };
    if (st == INFERD_OK && !isnan(r->busy))
        st = experiment_set_rows(f, group, seed_idx, watched, INFERD_COUNT(watched), err);
    return st;
}
