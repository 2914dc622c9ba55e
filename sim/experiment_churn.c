/* experiment_churn.c - see experiment.h: is there still room for a large model after an hour?
 *
 * Models come and go on several devices, placed by placement.h: Poisson arrivals, exponential
 * lives, sizes log-uniform between two parts of a device.  A new model is refused while it would
 * fill the devices above a target occupancy; the arrivals are frequent enough to reach it.  Each
 * policy sees the same arrivals.  If a new model fits no device, the policy asks for moves
 * (placement_plan_moves), except with `no moves`.
 *
 * Every minute of the hour, and at its end: the largest model that can be placed, with moves where
 * they are allowed, against the largest possible one.  The latter is at most all free pages of all
 * devices together, at most a device, and at most the room after an optimal repacking of the models
 * there; that is searched exactly, and where the search gives up it counts as possible. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../bench/rng.h"
#include "experiment.h"
#include "scheduler/placement.h"

enum {
    HOUR_S = 3600,
    LOOK_EVERY_S = 60,
    DEVICES = 8, // default; also with --devices 1
    CHURN_MODELS_MAX = 1000,
    LIFE_MEAN_S = 600,
    GRAIN_PARTS = 256, // of a device: the resolution of the largest model
    PACK_STEPS_MAX = 200000,
    TOKENS_PER_1000S_MAX = 1000000, // of a model, for its KV pressure; also the next two
    TOKEN_BYTES = 131072,
    TPOT_US = 50000,
    KV_PARTS = 16 // of its weights: least keys and values of a model
};
_Static_assert((int)CHURN_DEVICES_MAX <= (int)PLACEMENT_DEVICES_MAX, "as placement knows them");
static const double PART_MIN = 1.0 / 64, PART_MAX = 0.4; // of a device
static const uint32_t OCCUPANCY_PERCENT[] = {70, 80, 90};
static const char *const POLICY_NAMES[] = {"balanced"};

typedef struct fleet {
    const experiment *e;
    bool moves;
    uint32_t n_devices, device_pages;
    placement_device empty[PLACEMENT_DEVICES_MAX];
    placement_wanted models[CHURN_MODELS_MAX + 1];
    placement_copy copies[CHURN_MODELS_MAX + 1]; // copy i is of model i
    double ends_s[CHURN_MODELS_MAX + 1];
    uint32_t n;
    uint64_t used_pages;
    uint32_t n_refused, n_placed, n_moves;
} fleet;

static uint64_t pages_of(const placement_wanted *w) {
    return (uint64_t)w->need[0].weight_pages + w->need[0].kv_pages;
}

static placement_wanted model_of(uint32_t n_pages, uint64_t pressure) {
    uint32_t kv_pages = n_pages / KV_PARTS + 1;
    placement_wanted w = {.n_replicas = 1, .distinct = true, .pressure = pressure};
    w.need[0] = (placement_need){.weight_pages = n_pages - kv_pages, .kv_pages = kv_pages};
    return w;
}

static void fleet_init(fleet *f, const experiment *e, bool moves) {
    const sim_preset *p = e->preset;
    *f = (fleet){.e = e, .moves = moves};
    f->n_devices = e->n_devices > 1 ? e->n_devices : DEVICES;
    f->device_pages = (uint32_t)((p->memory_bytes - p->reserve_bytes) / p->page_bytes);
    for (uint32_t i = 0; i < f->n_devices; i++)
        f->empty[i] = (placement_device){.page_bytes = p->page_bytes,
                                         .capacity_pages = f->device_pages,
                                         .free_pages = f->device_pages};
}

static void fill(const fleet *f, placement_device *out) {
    placement_fill(f->empty, f->n_devices, f->models, f->copies, f->n, out);
}

/* The device for model f->n after the moves of the plan, or PLACEMENT_NOWHERE. */
static uint32_t find_placement(const fleet *f, placement_plan *plan) {
    placement_device d[PLACEMENT_DEVICES_MAX];
    uint32_t chosen;
    fill(f, d);
    plan->n_moves = 0;
    if (placement_choose(d, f->n_devices, &f->models[f->n], &chosen, NULL) > 0) return chosen;
    if (!f->moves || !placement_plan_moves(f->empty, f->n_devices, f->models, f->copies, f->n, f->n,
                                           PLACEMENT_TRIES_MAX, plan))
        return PLACEMENT_NOWHERE;
    return plan->device_idx;
}

static void arrive(fleet *f, uint32_t n_pages, uint64_t pressure, double end_s,
                   uint32_t occupancy_percent) {
    uint64_t all = (uint64_t)f->n_devices * f->device_pages;
    if (f->n == CHURN_MODELS_MAX || (f->used_pages + n_pages) * 100 > all * occupancy_percent)
        return; // not offered to the devices
    placement_plan plan;
    f->models[f->n] = model_of(n_pages, pressure);
    uint32_t device_idx = find_placement(f, &plan);
    if (device_idx == PLACEMENT_NOWHERE) {
        f->n_refused++;
        return;
    }
    for (uint32_t i = 0; i < plan.n_moves; i++)
        f->copies[plan.moves[i].copy_idx].device_idx = plan.moves[i].to;
    f->n_moves += plan.n_moves;
    f->n_placed++;
    f->copies[f->n] = (placement_copy){.model_idx = f->n, .device_idx = device_idx};
    f->ends_s[f->n] = end_s;
    f->used_pages += pages_of(&f->models[f->n]);
    f->n++;
}

static void leave(fleet *f, double now_s) {
    for (uint32_t i = f->n; i-- > 0;) {
        if (f->ends_s[i] > now_s) continue;
        f->used_pages -= pages_of(&f->models[i]);
        f->n--;
        f->models[i] = f->models[f->n];
        f->ends_s[i] = f->ends_s[f->n];
        f->copies[i] = (placement_copy){.model_idx = i, .device_idx = f->copies[f->n].device_idx};
    }
}

/* ---- room ---- */

typedef struct packing {
    uint32_t pages[CHURN_MODELS_MAX + 1], n; // descending
    uint32_t left[PLACEMENT_DEVICES_MAX], n_devices, n_steps;
} packing;

static bool pack_from(packing *p, uint32_t i) {
    if (i == p->n || ++p->n_steps > PACK_STEPS_MAX) return true;
    for (uint32_t g = 0; g < p->n_devices; g++) {
        bool tried = p->left[g] < p->pages[i];
        for (uint32_t k = 0; k < g; k++) tried |= p->left[k] == p->left[g];
        if (tried) continue;
        p->left[g] -= p->pages[i];
        bool packed = pack_from(p, i + 1);
        p->left[g] += p->pages[i];
        if (packed) return true;
    }
    return false;
}

static int descending(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? 1 : -(x > y);
}

static bool could_be_packed(const fleet *f, uint32_t n_pages) {
    packing p = {.n_devices = f->n_devices};
    for (uint32_t i = 0; i < f->n; i++) p.pages[p.n++] = (uint32_t)pages_of(&f->models[i]);
    p.pages[p.n++] = n_pages;
    qsort(p.pages, p.n, sizeof p.pages[0], descending);
    for (uint32_t g = 0; g < p.n_devices; g++) p.left[g] = f->device_pages;
    return pack_from(&p, 0);
}

static bool can_be_placed(fleet *f, uint32_t n_pages) {
    placement_plan plan;
    f->models[f->n] = model_of(n_pages, 0);
    return find_placement(f, &plan) != PLACEMENT_NOWHERE;
}

/* The largest size in [0, high] that fits, to a grain; assumes that smaller ones fit, too. */
static uint32_t largest(fleet *f, uint32_t high, bool possible) {
    uint32_t low = 0, grain = u32_max(f->device_pages / GRAIN_PARTS, 1);
    while (high - low > grain) {
        uint32_t middle = low + (high - low + 1) / 2;
        if (possible ? could_be_packed(f, middle) : can_be_placed(f, middle))
            low = middle;
        else
            high = middle - 1;
    }
    return possible ? high : low; // both are rounded to our disadvantage
}

/* The placeable size as a part of the possible one; NAN: nothing is possible. */
static double look(fleet *f) {
    uint64_t all_free = (uint64_t)f->n_devices * f->device_pages - f->used_pages;
    uint32_t bound = all_free < f->device_pages ? (uint32_t)all_free : f->device_pages;
    uint32_t possible = largest(f, bound, true);
    return possible > 0 ? (double)largest(f, possible, false) / possible : NAN;
}

/* ---- the hour ---- */

typedef struct hour {
    double end, least, occupancy, refused, moves; // percent, but moves: per placed model
} hour;

static hour run_hour(const experiment *e, uint64_t seed, bool moves, uint32_t occupancy_percent) {
    static fleet f; // too large for the stack
    fleet_init(&f, e, moves);
    rng random = rng_make(seed, occupancy_percent, 0);
    double mean_size = (PART_MAX - PART_MIN) / log(PART_MAX / PART_MIN);
    /* 1.5 times the arrivals that would keep this occupancy: refused models do not come again. */
    double gap_s = LIFE_MEAN_S * mean_size / f.n_devices / (occupancy_percent / 100.0) / 1.5;
    double next_s = 0, look_s = LOOK_EVERY_S;
    hour h = {.least = 100};
    while (look_s <= HOUR_S) {
        bool looks = look_s <= next_s;
        double now_s = looks ? look_s : next_s;
        leave(&f, now_s);
        if (looks) {
            h.end = 100 * look(&f);
            if (h.end < h.least) h.least = h.end;
            look_s += LOOK_EVERY_S;
            continue;
        }
        double size = PART_MIN * pow(PART_MAX / PART_MIN, rng_unit(&random));
        double life_s = LIFE_MEAN_S * rng_exp(&random);
        uint64_t rate = 1 + rng_below(&random, TOKENS_PER_1000S_MAX);
        arrive(&f, (uint32_t)(size * f.device_pages),
               placement_pressure(rate, TOKEN_BYTES, TPOT_US), now_s + life_s, occupancy_percent);
        next_s += gap_s * rng_exp(&random);
    }
    h.occupancy = 100 * (double)f.used_pages / ((double)f.n_devices * (double)f.device_pages);
    h.refused = 100 * (double)f.n_refused / (double)(f.n_placed + f.n_refused);
    h.moves = (double)f.n_moves / (double)f.n_placed;
    return h;
}

static inferd_status set(figures *f, const char *group, uint32_t seed_idx, const hour *h,
                         inferd_err *err) {
    const experiment_row rows[] = {
        {"largest of what is possible, at the end", "%", 1, h->end},
        {"least of all minutes", "%", 1, h->least},
        {"in use at the end", "%", 1, h->occupancy},
        {"had no device", "%", 2, h->refused},
        {"moves per model placed", "", 2, h->moves},
    };
    return experiment_set_rows(f, group, seed_idx, rows, INFERD_COUNT(rows), err);
}

static void name_group(char *out, size_t n_bytes, uint32_t percent, int policy, bool moves) {
    snprintf(out, n_bytes, "%u %% in use, %s%s", percent, POLICY_NAMES[policy],
             moves ? "" : ", no moves");
}

static inferd_status draw(const experiment *e, const figures *f, inferd_err *err) {
    enum { N = INFERD_COUNT(POLICY_NAMES), N_SERIES = 2 };
    static const char *const NAMES[N_SERIES] = {"with moves", "without"};
    double y[N_SERIES][N], lo[N_SERIES][N], hi[N_SERIES][N];
    plot_series series[N_SERIES];
    for (int k = 0; k < N_SERIES; k++) {
        for (int i = 0; i < N; i++) {
            char group[FIGURES_TEXT_BYTES];
            name_group(group, sizeof group, OCCUPANCY_PERCENT[INFERD_COUNT(OCCUPANCY_PERCENT) - 1],
                       i, k == 0);
            experiment_point(f, group, "largest of what is possible, at the end", (size_t)i, y[k],
                             lo[k], hi[k]);
        }
        series[k] = (plot_series){
            .name = NAMES[k], .mark = PLOT_BAR, .y = y[k], .lo = lo[k], .hi = hi[k], .n = N};
    }
    plot_labels labels = {"Largest model that can be placed after an hour", "placement",
                          "% of what is possible"};
    return experiment_plot_bars(e, &labels, series, N_SERIES, POLICY_NAMES, N, err);
}

inferd_status experiment_churn(const experiment *e, inferd_err *err) {
    figures f = {0};
    char group[FIGURES_TEXT_BYTES];
    uint32_t n_devices = e->n_devices > 1 ? e->n_devices : DEVICES;
    if (n_devices > CHURN_DEVICES_MAX)
        return inferd_fail(err, INFERD_EINVAL, "%u devices, at most %d", n_devices,
                           CHURN_DEVICES_MAX);
    printf("%u x %s, models of %.1f to %.0f %% of a device (log-uniform) that stay %d s in the "
           "mean, an hour\n",
           n_devices, e->preset->name, 100 * PART_MIN, 100 * PART_MAX, LIFE_MEAN_S);
    experiment one = *e;
    one.n_devices = n_devices;
    inferd_status st = experiment_figures(&one, &f, "models that come and go", err);
    for (size_t o = 0; o < INFERD_COUNT(OCCUPANCY_PERCENT); o++)
        for (int p = 0; p < (int)INFERD_COUNT(POLICY_NAMES); p++)
            for (int moves = 1; moves >= 0; moves--) {
                name_group(group, sizeof group, OCCUPANCY_PERCENT[o], p, moves);
                for (uint32_t i = 0; i < e->n_seeds && st == INFERD_OK; i++) {
                    hour h = run_hour(e, e->seed0 + i, moves, OCCUPANCY_PERCENT[o]);
                    st = set(&f, group, i, &h, err);
                }
            }
    if (st == INFERD_OK) st = experiment_tell(e, &f, err);
    if (st == INFERD_OK) st = draw(e, &f, err);
    figures_deinit(&f);
    return st;
}
