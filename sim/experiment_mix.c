/* experiment_mix.c - see experiment.h: one workload, and the use of the device by flow.
 *
 * `--load` first searches for a rate: attainment is informative only near the capacity of a device,
 * not far below or above it.  The rate is the one at which the devices compute this part of the
 * time in which requests arrive, with the first seed; the other seeds use the same rate.
 *
 * PRE has no backlog at its start then, only arrivals.
 *
 * ADV runs three times: the victim alone, beside the flood, and beside all attacks, always with the
 * same fixed share.  The other workloads run once. */
#include <math.h>
#include <string.h>

#include "experiment.h"

enum {
    VICTIM_PERCENT = 40, // of the device, fixed
    RATE_STEPS = 24,     // doublings and halvings
    FLAT_DOUBLINGS = 3,  // in a row: more requests only make the queue longer
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

/* Doubles or halves the rate until the load is between two, then bisects; it was run with the rate
 * that it leaves in `e`. */
static inferd_status find_rate(experiment *e, figures *f, inferd_err *err) {
    double want = e->load_percent / 100, lo = 0, hi = 0, busy_lo = 0, rate = RATE_FIRST;
    uint32_t n_flat = 0;
    run_figures r = {0};
    for (int i = 0; i < RATE_STEPS; i++) {
        e->rate_factor = rate;
        inferd_status st = experiment_run(e, e->seed0, &r, NULL, err);
        if (st != INFERD_OK) return st;
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
    figures_note(f, "results", "first_seed_computes_percent", figures_number(100 * r.busy));
    return INFERD_OK;
}

/* ---- use of the device ---- */

/* Device seconds of one model, or of one tenant, while requests arrived. */
static void set_part(figures *f, const char *group, uint32_t seed_idx, const watch *of,
                     const char *what, uint32_t idx) {
    char had_name[FIGURES_TEXT_BYTES], due_name[FIGURES_TEXT_BYTES];
    double had_s = 0, due_s = 0;
    for (uint32_t i = 0; i < of->n_flows; i++) {
        uint32_t of_flow = *what == 'm' ? i % of->n_models : i / of->n_models;
        if (of_flow != idx) continue;
        had_s += of->flows[i].used_us / 1e6;
        due_s += of->flows[i].due_us / 1e6;
    }
    snprintf(had_name, sizeof had_name, "%s %u, had", what, idx);
    snprintf(due_name, sizeof due_name, "%s %u, due", what, idx);
    const figure_row rows[] = {{had_name, "device s", 2, had_s}, {due_name, "device s", 2, due_s}};
    figures_set(f, group, seed_idx, rows, INFERD_COUNT(rows));
}

static void set_seconds(figures *f, const char *group, uint32_t seed_idx, const watch *of) {
    for (uint32_t i = 0; i < of->n_models; i++) set_part(f, group, seed_idx, of, "model", i);
    for (uint32_t i = 0; i < of->n_tenants && of->n_tenants > 1; i++)
        set_part(f, group, seed_idx, of, "tenant", i);
}

/* The daemon's own metering, as a part of what the device computed, until all requests had ended.
 */
static void set_metered(figures *f, const char *group, uint32_t seed_idx, const world *w) {
    sched_counters n;
    sched_count(w->core.sched, &n);
    double computed = w->device->step_us > 0 ? (double)w->device->step_us : NAN;
    const figure_row rows[] = {
        {"metered by the daemon, of what devices computed", "%", 2,
         100 * (double)(n.charged_us + n.waste_us) / computed},
        {"computed again after preemptions", "%", 2, 100 * (double)n.waste_us / computed}};
    figures_set(f, group, seed_idx, rows, INFERD_COUNT(rows));
}

/* ---- PRE and ADV ---- */

static inferd_status set_urgent(figures *f, const char *group, uint32_t seed_idx, const world *w,
                                inferd_err *err) {
    request_figures q;
    inferd_status st = experiment_requests(w, SIM_ALL, PRE_MODEL_URGENT, &q, err);
    if (st != INFERD_OK) return st;
    const figure_row rows[] = {
        {"urgent requests", "", 0, (double)q.attained.n_offered},
        {"urgent, never begun", "", 0, (double)(q.attained.n_offered - q.n_begun)},
        {"urgent, attainment", "%", 2, 100 * stats_attainment(&q.attained)},
        {"urgent, steps of others before its first, median", "", 0, q.n_steps[MEDIAN]},
        {"urgent, steps of others before its first, P99", "", 0, q.n_steps[P99]},
        {"urgent, until its first step begins, median", "ms", 2, q.wait_us[MEDIAN] / 1e3},
        {"urgent, until its first step begins, P99", "ms", 2, q.wait_us[P99] / 1e3},
    };
    figures_set(f, group, seed_idx, rows, INFERD_COUNT(rows));
    return INFERD_OK;
}

/* alone_us: P99 of TPOT without attacks; 0: these are the figures without attacks. */
static inferd_status set_victim(figures *f, const char *group, uint32_t seed_idx, const world *w,
                                double *alone_us, inferd_err *err) {
    request_figures q;
    inferd_status st = experiment_requests(w, ADV_TENANT_VICTIM, SIM_ALL, &q, err);
    if (st != INFERD_OK) return st;
    bool is_alone = *alone_us == 0;
    if (is_alone) *alone_us = q.tpot_us[P99];
    const figure_row rows[] = {
        {"victim, done", "%", 1,
         experiment_percent((double)q.attained.n_done, (double)q.attained.n_offered)},
        {"victim, attainment", "%", 2, 100 * stats_attainment(&q.attained)},
        {"victim, TTFT P99", "ms", 1, q.ttft_us[P99] / 1e3},
        {"victim, TPOT median", "ms", 2, q.tpot_us[MEDIAN] / 1e3},
        {"victim, TPOT P99", "ms", 2, q.tpot_us[P99] / 1e3},
        {"victim, TPOT P99, of alone", "", 3, q.tpot_us[P99] / *alone_us},
    };
    figures_set(f, group, seed_idx, rows, INFERD_COUNT(rows) - is_alone);
    return INFERD_OK;
}

/* ---- the command ---- */

static inferd_status run_seed(const experiment *e, figures *f, const char *group,
                              const char *seconds_group, uint32_t seed_idx, double *alone_us,
                              inferd_err *err) {
    run_figures r;
    world *w = NULL;
    inferd_status st = experiment_run(e, e->seed0 + seed_idx, &r, &w, err);
    if (st != INFERD_OK) return st;
    experiment_set(f, group, seed_idx, &r);
    set_metered(f, group, seed_idx, w);
    if (e->mix == WORKLOAD_PRE) st = set_urgent(f, group, seed_idx, w, err);
    if (e->mix == WORKLOAD_ADV) st = set_victim(f, group, seed_idx, w, alone_us, err);
    if (e->world.watched) set_seconds(f, seconds_group, seed_idx, w->watch);
    world_destroy(w);
    return st;
}

static inferd_status run_adv(experiment *e, figures *f, inferd_err *err) {
    static const struct {
        const char *group, *seconds;
        uint32_t attacks;
    } CASES[] = {{"adv, alone", "device seconds, alone", 0},
                 {"adv, flood", "device seconds, flood", ATTACK_FLOOD},
                 {"adv, all attacks", "device seconds, all attacks", ATTACK_ALL}};
    inferd_status st = INFERD_OK;
    for (uint32_t i = 0; i < e->n_seeds; i++) {
        double alone_us = 0;
        for (size_t k = 0; k < INFERD_COUNT(CASES) && st == INFERD_OK; k++) {
            e->attacks = CASES[k].attacks;
            st = run_seed(e, f, CASES[k].group, CASES[k].seconds, i, &alone_us, err);
        }
    }
    return st;
}

inferd_status experiment_mix(const experiment *e, figures *f, inferd_err *err) {
    experiment one = *e;
    tenant_policy tenants[ADV_TENANTS];
    uint32_t n_models = experiment_load_of(e, e->seed0).n_models;
    bool many = e->mix == WORKLOAD_ADV || e->mix == WORKLOAD_PRE;
    one.world.watched = n_models * (many ? ADV_TENANTS : 1) <= WATCH_FLOWS_MAX;
    if (e->load_percent > 0 && !one.world.watched)
        return inferd_fail(err, INFERD_EINVAL, "--load: %u models, at most %d are watched",
                           n_models, WATCH_FLOWS_MAX);
    dedicated base = {0};
    inferd_status st = e->slo_ttft_ms == 0 || e->slo_tpot_ms == 0
                           ? experiment_dedicated(e, f, &base, err)
                           : INFERD_OK;
    experiment_targets(&one, &base);
    experiment_note_targets(&one, f);
    if (e->mix == WORKLOAD_ADV) {
        for (uint32_t i = 0; i < ADV_TENANTS; i++)
            tenants[i] = (tenant_policy){.weight = 1, .max_class = GEN_HIGH};
        tenants[ADV_TENANT_VICTIM].share = (share_spec){SHARE_FIXED, VICTIM_PERCENT, 1};
        one.world.tenants = tenants;
    }
    one.no_backlog = e->load_percent > 0; // the backlog itself would be the load
    if (st == INFERD_OK && e->load_percent > 0) st = find_rate(&one, f, err);
    if (st != INFERD_OK) return st;
    snprintf(f->title, sizeof f->title, "%s x %.3g, %u models on %s, %g s",
             workload_kind_name(e->mix), one.rate_factor, n_models, sim_h100.name,
             experiment_seconds(&one));
    figures_note(f, "results", "rate_factor", figures_number(one.rate_factor));
    if (e->mix == WORKLOAD_ADV) return run_adv(&one, f, err);
    double unused = 0;
    for (uint32_t i = 0; i < e->n_seeds && st == INFERD_OK; i++)
        st = run_seed(&one, f, workload_kind_name(e->mix), "device seconds", i, &unused, err);
    return st;
}
