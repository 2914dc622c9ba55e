/* residency_slices.c - time slices: when others of its class may evict a model that is served.
 *
 * By default a time slice is several times as long as bringing the model back.  When bringing
 * models back takes THRASH_PERCENT of all time nevertheless, time slices get quotas
 * (feasible_slices_plan), until it takes less than THRASH_ENDS_PERCENT. */
#include "residency_parts.h"
#include "scheduler/feasible.h"

enum {
    SLICE_SWITCHES = 10, // a time slice is that many times as long as the switch before it,
    SLICE_RESTORES = 20, // plus that many times as long as restoring its running work,
    SLICE_STEPS = 8,     // and at least that many steps of the device
    SLICE_MAX_US = 60000000,
    THRASH_PERCENT = 5, // of all time, spent on bringing evicted models back
    THRASH_ENDS_PERCENT = 2,
    QUOTA_SWITCHES = 4,       // a quota is at least that many times as long as its switch
    SLICES_PLAN_US = 200000,  // between two plans of quotas
    SLICE_PERIOD_US = 100000, // per token, where no request says: about reading speed
    SLICE_COST_US_MAX = 1 << 30
};

/* The file is read again only where the host has no room for the weights at all. */
uint64_t residency_back_us(const residency *r, uint32_t root) {
    const resident *m = &r->slots[root];
    bool stays = m->about.host_pages <= r->pool->n_host;
    return m->last.load_us + (stays ? 0 : m->last.stage_us);
}

uint64_t residency_slice_us(const residency *r, uint32_t root) {
    const resident *m = &r->slots[root];
    uint64_t slice_us =
        m->slice_us != 0 ? m->slice_us : SLICE_SWITCHES * residency_back_us(r, root);
    slice_us += SLICE_RESTORES * wgroup_demand(r, root).again_us;
    /* Where steps are longer than a slice, a model would leave again before it got one. */
    slice_us = u64_max(slice_us, SLICE_STEPS * sched_typical_us(r->sched));
    return u64_max(u64_min(slice_us, SLICE_MAX_US), r->limits.slice_us);
}

uint64_t residency_reload_us(const residency *r) {
    return r->reload_us + r->reload_before_us;
}

/* The window has two halves, so that old times are forgotten. */
static void roll_window(residency *r, uint64_t now_us) {
    uint64_t part_us = RESIDENCY_WINDOW_US / 2, elapsed_us = now_us - r->window_began_us;
    if (elapsed_us < part_us) return;
    r->reload_before_us = elapsed_us < 2 * part_us ? r->reload_us : 0;
    r->reload_us = 0;
    r->window_began_us = now_us;
}

/* Collects the models of this class that have work and may be evicted; returns how many. */
static uint32_t collect_slices(residency *r, gen_class prio) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->n_used; i++) {
        const resident *m = &r->slots[i];
        if (!residency_is_root(r, i) || m->state == MODEL_FAILED || wgroup_is_pinned(r, i, PIN_HOT))
            continue;
        sched_demand d = wgroup_demand(r, i);
        gen_class theirs = d.running_class < d.waiting_class ? d.running_class : d.waiting_class;
        if (d.n_waiting + d.n_running == 0 || theirs != prio) continue;
        uint64_t cost_us = 0, period_us = 0, switch_us = residency_back_us(r, i);
        EACH_MEMBER(r, i, k) sched_add_task(r->sched, k, &cost_us, &period_us);
        if (period_us == 0) period_us = SLICE_PERIOD_US;
        r->slice_slots[n] = i;
        r->slices[n++] = (feasible_slice){
            .cost_us =
                cost_us < SLICE_COST_US_MAX ? u32_max((uint32_t)cost_us, 1) : SLICE_COST_US_MAX,
            .period_us = period_us < UINT32_MAX ? (uint32_t)period_us : UINT32_MAX,
            .switch_us = switch_us < SLICE_COST_US_MAX ? (uint32_t)switch_us : SLICE_COST_US_MAX};
    }
    return n;
}

static void plan_slices(residency *r, uint64_t now_us) {
    feasible_slices f;
    r->slices_planned_us = now_us;
    r->slices_attainment_ppm = FEASIBLE_ONE_PPM;
    for (uint32_t i = 0; i < r->n_used; i++) r->slots[i].slice_us = 0;
    for (uint32_t prio = 0; prio < GEN_CLASSES; prio++) {
        uint32_t n = collect_slices(r, (gen_class)prio);
        if (n < 2) continue;
        feasible_slices_plan(r->slices, n, FEASIBLE_ONE_PPM, FEASIBLE_SLICE_MAX_US, r->quotas, &f);
        for (uint32_t i = 0; i < n; i++) {
            uint64_t least_us = (uint64_t)QUOTA_SWITCHES * r->slices[i].switch_us;
            r->slots[r->slice_slots[i]].slice_us =
                least_us > r->quotas[i] ? least_us : r->quotas[i];
        }
        if (f.attainment_ppm < r->slices_attainment_ppm)
            r->slices_attainment_ppm = f.attainment_ppm;
    }
}

void residency_watch_thrash(residency *r, uint64_t now_us) {
    roll_window(r, now_us);
    uint64_t percent = residency_reload_us(r) * 100 / RESIDENCY_WINDOW_US;
    bool was = r->thrashing;
    if (!was && percent < THRASH_PERCENT) return;
    r->thrashing = percent >= (was ? THRASH_ENDS_PERCENT : THRASH_PERCENT);
    if (!r->thrashing)
        for (uint32_t i = 0; i < r->n_used; i++) r->slots[i].slice_us = 0;
    else if (!was || now_us - r->slices_planned_us >= SLICES_PLAN_US)
        plan_slices(r, now_us);
}
