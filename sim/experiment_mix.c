/* experiment_mix.c - see experiment.h: one workload, and the use of the device by flow.
 *
 * `--load` first searches for a rate: attainment is informative only near the capacity of a device,
 * not far below or above it.  The rate is the one at which the devices compute this part of the
 * time in which requests arrive, with the first seed; the other seeds use the same rate.
 *
 * PRE has no backlog at its start then, only arrivals.
 *
 * ADV runs three times: the victim alone, beside the flood, and beside all attacks, always with the
 * same fixed share; or, if attacks were selected, twice: alone and beside those.  The other
 * workloads run once. */
#include <math.h>
#include <string.h>

#include "experiment.h"

enum {
    VICTIM_PERCENT = 40,                // of the device, fixed
    RATE_STEPS = 24,                    // doublings and halvings
    FLAT_DOUBLINGS = 3,                 // in a row: more requests only make the queue longer
    P99 = 2,                            // index in experiment_quantiles
    CASE_BYTES = FIGURES_TEXT_BYTES / 2 // after "device seconds, "
};
#define LOAD_TOLERANCE 0.01         // part of the devices' time
#define RATE_FIRST     0.125        // low, so that the search does not begin with a flooded device
#define RATE_LEAST     (1.0 / 1024) // below this the load does not follow the rate
#define FLAT_GROWTH    1.1          // a load that follows the rate doubles
#define NARROW         1.01         // two rates that are this close are the same

/* ---- the rate ---- */

/* At twice the rate the devices compute hardly longer.  A light load is small, but it doubles. */
static bool is_flat(double busy, double busy_doubled) {
    return busy_doubled - busy < LOAD_TOLERANCE && busy_doubled < FLAT_GROWTH * busy;
}

/* Doubles or halves the rate until the load is between two, then bisects; `out` was run. */
static inferd_status find_rate(const experiment *e, const slo_targets *t, double *out,
                               inferd_err *err) {
    double want = e->load_percent / 100, lo = 0, hi = 0, busy_lo = 0, rate = RATE_FIRST;
    uint32_t n_flat = 0;
    run_figures r = {0};
    for (int i = 0; i < RATE_STEPS; i++) {
        inferd_status st = experiment_run(e, e->seed0, 0, rate, t->ttft_us, t->tpot_us, &r, err);
        if (st != INFERD_OK) return st;
        *out = rate;
        if (fabs(r.busy - want) <= LOAD_TOLERANCE) break;
        if (r.busy < want) {
            n_flat = is_flat(busy_lo, r.busy) ? n_flat + 1 : 0;
            if (hi == 0 && n_flat == FLAT_DOUBLINGS)
                return inferd_fail(
                    err, INFERD_EINVAL,
                    "--load is %g, devices compute %.1f %% at most, with rate x %.3g",
                    e->load_percent, 100 * r.busy, rate);
            lo = rate, busy_lo = r.busy;
        } else {
            hi = rate;
        }
        if (hi > 0 && hi < RATE_LEAST)
            return inferd_fail(err, INFERD_EINVAL,
                               "--load is %g, devices compute %.1f %% whatever the rate is",
                               e->load_percent, 100 * r.busy);
        if (hi > 0 && lo > 0 && hi / lo < NARROW) break;
        rate = hi == 0 ? 2 * lo : lo == 0 ? hi / 2 : sqrt(lo * hi);
    }
    printf("rate x %.3f: devices compute %.1f %% of the time (seed %llu)\n", *out, 100 * r.busy,
           (unsigned long long)e->seed0);
    return INFERD_OK;
}

/* ---- use of the device ---- */

/* Device seconds while requests arrived, by model or by tenant, beside the entitled seconds. */
static inferd_status set_seconds(figures *f, const char *group, uint32_t seed_idx, world *w,
                                 double seconds, inferd_err *err) {
    uint64_t end_us = w->begin_us + (uint64_t)(seconds * 1e6);
    uint32_t n_models = w->options.n_models, n_tenants = w->options.n_tenants;
    double *sums = calloc(2 * ((size_t)n_models + n_tenants), sizeof *sums);
    inferd_status st = INFERD_OK;
    if (sums == NULL) st = inferd_fail(err, INFERD_ENOMEM, "no memory for %u models", n_models);
    for (uint32_t d = 0; d < w->options.n_devices && st == INFERD_OK; d++) {
        watch_figures x;
        st = watch_sum(w->cores[d].watch, w->begin_us, end_us, w->options.sched.starvation_percent,
                       &x, err);
        if (st != INFERD_OK) break;
        for (uint32_t i = 0; i < n_models * n_tenants; i++) {
            double *of_model = &sums[2 * (i % n_models)];
            double *of_tenant = &sums[2 * (n_models + i / n_models)];
            of_model[0] += x.used_us[i] / 1e6, of_model[1] += x.due_us[i] / 1e6;
            of_tenant[0] += x.used_us[i] / 1e6, of_tenant[1] += x.due_us[i] / 1e6;
        }
        watch_figures_deinit(&x);
    }
    for (uint32_t i = 0; i < n_models + n_tenants && st == INFERD_OK; i++) {
        char name[FIGURES_TEXT_BYTES];
        bool is_model = i < n_models;
        if (!is_model && n_tenants == 1) continue;
        for (int due = 0; due < 2 && st == INFERD_OK; due++) {
            snprintf(name, sizeof name, "%s %u, %s", is_model ? "model" : "tenant",
                     is_model ? i : i - n_models, due ? "due" : "had");
            st = figures_set(f, group, name, "device s", 2, seed_idx, sums[2 * i + (uint32_t)due],
                             err);
        }
    }
    free(sums);
    return st;
}

/* The daemon's own metering, as a part of what devices computed, until all requests had ended. */
static inferd_status set_metered(figures *f, const char *group, uint32_t seed_idx, const world *w,
                                 inferd_err *err) {
    uint64_t metered_us = 0, computed_us = 0, waste_us = 0;
    for (uint32_t d = 0; d < w->options.n_devices; d++) {
        sched_counters n;
        sched_count(w->cores[d].core.sched, &n);
        metered_us += n.charged_us + n.waste_us;
        waste_us += n.waste_us;
        computed_us += w->cores[d].device->step_us;
    }
    double computed = computed_us > 0 ? (double)computed_us : NAN;
    inferd_status st = figures_set(f, group, "metered by the daemon, of what devices computed", "%",
                                   2, seed_idx, 100 * (double)metered_us / computed, err);
    if (st != INFERD_OK) return st;
    return figures_set(f, group, "computed again after preemptions", "%", 2, seed_idx,
                       100 * (double)waste_us / computed, err);
}

/* ---- PRE ---- */

static inferd_status set_urgent(figures *f, const char *group, uint32_t seed_idx, const world *w,
                                inferd_err *err) {
    uint64_t *steps = malloc(size_max(w->n_records, 1) * sizeof *steps);
    uint64_t *wait_us = malloc(size_max(w->n_records, 1) * sizeof *wait_us);
    inferd_status st = INFERD_OK;
    size_t n = 0, n_never = 0, n_met = 0;
    double s[3], us[3];
    if (steps == NULL || wait_us == NULL)
        st = inferd_fail(err, INFERD_ENOMEM, "no memory for %zu records", w->n_records);
    for (size_t i = 0; i < w->n_records && st == INFERD_OK; i++) {
        const world_record *r = &w->records[i];
        if (r->model_idx != PRE_MODEL_URGENT) continue;
        n_never += r->begun_us == 0;
        n_met += stats_meets(&r->stats);
        if (r->begun_us == 0) continue;
        steps[n] = r->n_steps_before;
        wait_us[n++] = r->begun_us - r->stats.arrival_us;
    }
    if (st == INFERD_OK) {
        experiment_quantiles(steps, n, s);
        experiment_quantiles(wait_us, n, us);
        const experiment_row rows[] = {
            {"urgent requests", "", 0, (double)(n + n_never)},
            {"urgent, never begun", "", 0, (double)n_never},
            {"urgent, attainment", "%", 2, 100 * (double)n_met / (double)(n + n_never)},
            {"urgent, steps of others before its first, median", "", 0, s[0]},
            {"urgent, steps of others before its first, P99", "", 0, s[P99]},
            {"urgent, until its first step begins, median", "ms", 2, us[0] / 1e3},
            {"urgent, until its first step begins, P99", "ms", 2, us[P99] / 1e3},
        };
        st = experiment_set_rows(f, group, seed_idx, rows, INFERD_COUNT(rows), err);
    }
    free(steps);
    free(wait_us);
    return st;
}

/* ---- ADV ---- */

static inferd_status set_victim(figures *f, const char *group, uint32_t seed_idx, const world *w,
                                double alone_us, double *out_us, inferd_err *err) {
    uint64_t *tpot = malloc(size_max(w->n_records, 1) * sizeof *tpot);
    uint64_t *ttft = malloc(size_max(w->n_records, 1) * sizeof *ttft);
    inferd_status st = INFERD_OK;
    size_t n = 0, n_first = 0, n_all = 0, n_met = 0;
    double q[3], first[3];
    if (tpot == NULL || ttft == NULL)
        st = inferd_fail(err, INFERD_ENOMEM, "no memory for %zu records", w->n_records);
    for (size_t i = 0; i < w->n_records && st == INFERD_OK; i++) {
        const stats_request *r = &w->records[i].stats;
        if (w->records[i].tenant_idx != ADV_TENANT_VICTIM) continue;
        n_all++;
        n_met += stats_meets(r);
        if (r->end != STATS_DONE) continue;
        ttft[n_first++] = r->first_us - r->arrival_us;
        if (r->n_output > 1) tpot[n++] = (r->last_us - r->first_us) / (r->n_output - 1);
    }
    if (st == INFERD_OK) {
        experiment_quantiles(tpot, n, q);
        experiment_quantiles(ttft, n_first, first);
        *out_us = q[P99];
        const experiment_row rows[] = {
            {"victim, done", "%", 1, n_all > 0 ? 100 * (double)n_first / (double)n_all : NAN},
            {"victim, attainment", "%", 2, 100 * (double)n_met / (double)n_all},
            {"victim, TTFT P99", "ms", 1, first[P99] / 1e3},
            {"victim, TPOT median", "ms", 2, q[0] / 1e3},
            {"victim, TPOT P99", "ms", 2, q[P99] / 1e3},
            {"victim, TPOT P99, of alone", "", 3, q[P99] / alone_us},
        };
        size_t n_rows =
            INFERD_COUNT(rows) - (alone_us > 0 ? 0 : 1); // alone: nothing to compare with
        st = experiment_set_rows(f, group, seed_idx, rows, n_rows, err);
    }
    free(tpot);
    free(ttft);
    return st;
}

/* ---- the command ---- */

static inferd_status run_seed(const experiment *e, figures *f, const char *group,
                              const char *seconds_group, uint32_t seed_idx, double rate,
                              const slo_targets *t, double *victim_us, inferd_err *err) {
    run_figures r;
    world *w = NULL;
    inferd_status st =
        experiment_run_world(e, e->seed0 + seed_idx, 0, rate, t->ttft_us, t->tpot_us, &r, &w, err);
    if (st != INFERD_OK) return st;
    st = experiment_set(f, group, seed_idx, &r, err);
    if (st == INFERD_OK) st = set_metered(f, group, seed_idx, w, err);
    if (st == INFERD_OK && e->mix == WORKLOAD_PRE) st = set_urgent(f, group, seed_idx, w, err);
    if (st == INFERD_OK && e->mix == WORKLOAD_ADV) {
        double us = NAN;
        st = set_victim(f, group, seed_idx, w, *victim_us, &us, err);
        if (*victim_us == 0) *victim_us = us;
    }
    if (st == INFERD_OK && e->watched)
        st = set_seconds(f, seconds_group, seed_idx, w, r.offered_s, err);
    world_destroy(w);
    return st;
}

typedef struct adv_case {
    char name[CASE_BYTES];
    uint32_t attacks;
} adv_case;

/* The victim alone, as the reference of the other cases; then the selected attacks, and if these
 * are all, the flood before them. */
static size_t list_cases(const experiment *e, adv_case out[3]) {
    size_t n = 0;
    out[n++] = (adv_case){"alone", 0};
    if (e->attacks == ATTACK_ALL) {
        out[n++] = (adv_case){"flood", ATTACK_FLOOD};
        out[n++] = (adv_case){"all attacks", ATTACK_ALL};
        return n;
    }
    adv_case *asked = &out[n++];
    *asked = (adv_case){"", e->attacks};
    for (uint32_t i = 0; i < EXPERIMENT_ATTACKS; i++) {
        size_t at = strlen(asked->name);
        if ((e->attacks & 1u << i) != 0)
            snprintf(asked->name + at, sizeof asked->name - at, "%s%s", at > 0 ? ", " : "",
                     experiment_attack_names[i]);
    }
    return n;
}

static inferd_status run_adv(const experiment *e, figures *f, double rate, const slo_targets *t,
                             inferd_err *err) {
    adv_case cases[3];
    size_t n_cases = list_cases(e, cases);
    inferd_status st = INFERD_OK;
    for (uint32_t i = 0; i < e->n_seeds; i++) {
        double alone_us = 0;
        for (size_t k = 0; k < n_cases && st == INFERD_OK; k++) {
            char group[FIGURES_TEXT_BYTES], seconds[FIGURES_TEXT_BYTES];
            experiment one = *e;
            one.attacks = cases[k].attacks;
            snprintf(group, sizeof group, "adv, %.*s", CASE_BYTES - 1, cases[k].name);
            snprintf(seconds, sizeof seconds, "device seconds, %.*s", CASE_BYTES - 1,
                     cases[k].name);
            st = run_seed(&one, f, group, seconds, i, rate, t, &alone_us, err);
        }
    }
    return st;
}

/* Used and entitled time of each model; of each tenant where there are several. */
static inferd_status draw(const experiment *e, const figures *f, bool by_tenant, inferd_err *err) {
    static const char *const WHAT[2] = {"had", "due"};
    double y[2][PLOT_BARS_MAX], lo[2][PLOT_BARS_MAX], hi[2][PLOT_BARS_MAX];
    char names[PLOT_BARS_MAX][FIGURES_TEXT_BYTES];
    const char *bars[PLOT_BARS_MAX];
    char group[FIGURES_TEXT_BYTES] = "device seconds";
    adv_case cases[3];
    if (e->mix == WORKLOAD_ADV)
        snprintf(group, sizeof group, "device seconds, %.*s", CASE_BYTES - 1,
                 cases[list_cases(e, cases) - 1].name);
    uint32_t n = 0;
    for (; n < PLOT_BARS_MAX; n++) {
        char name[FIGURES_TEXT_BYTES];
        bool there = true;
        for (int k = 0; k < 2 && there; k++) {
            snprintf(name, sizeof name, "%s %u, %s", by_tenant ? "tenant" : "model", n, WHAT[k]);
            const figure *of = figures_find(f, group, name);
            there = of != NULL;
            if (!there) break;
            figure_summary s = figures_summary(f, of);
            y[k][n] = s.median, lo[k][n] = s.min, hi[k][n] = s.max;
        }
        if (!there) break;
        snprintf(names[n], sizeof names[n], "%u", n);
        bars[n] = names[n];
    }
    plot_series series[2];
    for (int k = 0; k < 2; k++)
        series[k] = (plot_series){
            .name = WHAT[k], .mark = PLOT_BAR, .y = y[k], .lo = lo[k], .hi = hi[k], .n = n};
    plot_labels labels = {f->title, by_tenant ? "tenant" : "model", "device seconds"};
    return experiment_plot_bars(e, &labels, series, 2, bars, n, err);
}

inferd_status experiment_mix(const experiment *e, inferd_err *err) {
    figures f = {0};
    char title[FIGURES_TEXT_BYTES];
    slo_targets t;
    experiment one = *e;
    double rate = e->rate_factor;
    tenant_policy tenants[ADV_TENANTS];
    bool many = e->mix == WORKLOAD_ADV || e->mix == WORKLOAD_PRE;
    uint32_t n = experiment_n_models(e) * (many ? ADV_TENANTS : 1);
    one.watched = n <= STATS_FLOWS_MAX;
    if ((e->load_percent > 0 || e->svg_path != NULL) && !one.watched)
        return inferd_fail(err, INFERD_EINVAL, "--load, --svg: %u models, at most %d are watched",
                           experiment_n_models(e), STATS_FLOWS_MAX);
    experiment_print_constants(e);
    inferd_status st = experiment_targets(e, false, &t, err);
    if (st != INFERD_OK) return st;
    if (e->mix == WORKLOAD_ADV) {
        for (uint32_t i = 0; i < ADV_TENANTS; i++)
            tenants[i] = (tenant_policy){.weight = 1, .max_class = GEN_HIGH};
        tenants[ADV_TENANT_VICTIM].share = (share_spec){SHARE_FIXED, VICTIM_PERCENT, 1};
        one.tenants = tenants;
        printf("tenant %d has a fixed share of %d %%, the others share the rest\n",
               ADV_TENANT_VICTIM, VICTIM_PERCENT);
    }
    one.no_backlog = e->load_percent > 0; // the backlog itself would be the load
    if (e->load_percent > 0) st = find_rate(&one, &t, &rate, err);
    if (st != INFERD_OK) return st;
    snprintf(title, sizeof title, "%s x %.3g, %u models on %u x %s, %g s",
             workload_kind_name(e->mix), rate, experiment_n_models(e), e->n_devices,
             e->preset->name, experiment_seconds(e, rate));
    st = experiment_figures(e, &f, title, err);
    if (st == INFERD_OK) st = experiment_note_targets(&f, &t, err);
    if (st == INFERD_OK) st = figures_note(&f, "results", "rate_factor", rate, err);
    if (st == INFERD_OK && e->mix == WORKLOAD_ADV) st = run_adv(&one, &f, rate, &t, err);
    for (uint32_t i = 0; i < e->n_seeds && st == INFERD_OK && e->mix != WORKLOAD_ADV; i++) {
        double unused = 0;
        st = run_seed(&one, &f, workload_kind_name(e->mix), "device seconds", i, rate, &t, &unused,
                      err);
    }
    if (st == INFERD_OK) st = experiment_tell(e, &f, err);
    if (st == INFERD_OK) st = draw(e, &f, many, err);
    figures_deinit(&f);
    return st;
}
