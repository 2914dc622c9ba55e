/* residency_turns.c - how long a model is served before others of its class may have its place.
 *
 * By itself several times as long as having it back takes.  When coming back takes more than
 * THRASH_PERCENT of all time nevertheless, turns get quotas (feasible_turns_plan), until it takes
 * less than THRASH_ENDS_PERCENT. */
#include "residency_parts.h"
#include "scheduler/feasible.h"

enum {
    TURN_SWITCHES = 10, // a turn is so many times as long as the switch before it,
    TURN_RESTORES = 20, // and so many times as long as having its running work back takes
    TURN_MAX_US = 60000000,
    THRASH_PERCENT = 5, // of all time goes with bringing back who had to make room
    THRASH_ENDS_PERCENT = 2,
    QUOTA_SWITCHES = 4,      // a quota is at least so many times as long as its switch
    TURNS_PLAN_US = 200000,  // between two plans of quotas
    TURN_PERIOD_US = 100000, // per token, where nobody says: about as fast as people read
    TURN_COST_US_MAX = 1 << 30
};

/* It is read again only where the host has no room for it at all. */
uint64_t residency_back_us(const residency *r, uint32_t root) {
    const resident *m = &r->slots[root];
    bool stays = m->about.host_pages <= r->pool->n_host;
    return m->last.load_us + (stays ? 0 : m->last.stage_us);
}

uint64_t residency_turn_us(const residency *r, uint32_t root) {
    const resident *m = &r->slots[root];
    uint64_t turn_us = m->turn_us != 0 ? m->turn_us : TURN_SWITCHES * residency_back_us(r, root);
    turn_us += TURN_RESTORES * group_demand(r, root).again_us;
    if (turn_us > TURN_MAX_US) turn_us = TURN_MAX_US;
    return turn_us > r->limits.turn_us ? turn_us : r->limits.turn_us;
}

uint64_t residency_reload_us(const residency *r) {
    return r->reload_us + r->reload_before_us;
}

/* The window has two parts, so that what was long ago is forgotten. */
static void roll_window(residency *r, uint64_t now_us) {
    uint64_t part_us = RESIDENCY_WINDOW_US / 2, elapsed_us = now_us - r->window_began_us;
    if (elapsed_us < part_us) return;
    r->reload_before_us = elapsed_us < 2 * part_us ? r->reload_us : 0;
    r->reload_us = 0;
    r->window_began_us = now_us;
}

/* Models of this class that want the device and may have to leave it; how many. */
static uint32_t collect_turns(residency *r, gen_class class) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->n_used; i++) {
        const resident *m = &r->slots[i];
        if (!residency_is_root(r, i) || m->state == MODEL_FAILED || group_is_pinned(r, i, PIN_HOT))
            continue;
        sched_demand d = group_demand(r, i);
        gen_class theirs = d.running_class < d.waiting_class ? d.running_class : d.waiting_class;
        if (d.n_waiting + d.n_running == 0 || theirs != class) continue;
        uint64_t cost_us = 0, period_us = 0, switch_us = residency_back_us(r, i);
        EACH_MEMBER(r, i, k) sched_add_task(r->sched, k, &cost_us, &period_us);
        if (period_us == 0) period_us = TURN_PERIOD_US;
        r->turn_slots[n] = i;
        r->turns[n++] = (feasible_turn){
            .cost_us =
                cost_us < TURN_COST_US_MAX ? u32_max((uint32_t)cost_us, 1) : TURN_COST_US_MAX,
            .period_us = period_us < UINT32_MAX ? (uint32_t)period_us : UINT32_MAX,
            .switch_us = switch_us < TURN_COST_US_MAX ? (uint32_t)switch_us : TURN_COST_US_MAX};
    }
    return n;
}

static void plan_turns(residency *r, uint64_t now_us) {
    feasible_turns f;
    r->turns_planned_us = now_us;
    r->turns_attainment_ppm = FEASIBLE_ONE_PPM;
    for (uint32_t i = 0; i < r->n_used; i++) r->slots[i].turn_us = 0;
    for (uint32_t class = 0; class < GEN_CLASSES; class ++) {
        uint32_t n = collect_turns(r, (gen_class) class);
        if (n < 2) continue;
        feasible_turns_plan(r->turns, n, FEASIBLE_ONE_PPM, FEASIBLE_TURN_MAX_US, r->quotas, &f);
        for (uint32_t i = 0; i < n; i++) {
            uint64_t least_us = (uint64_t)QUOTA_SWITCHES * r->turns[i].switch_us;
            r->slots[r->turn_slots[i]].turn_us = least_us > r->quotas[i] ? least_us : r->quotas[i];
        }
        if (f.attainment_ppm < r->turns_attainment_ppm) r->turns_attainment_ppm = f.attainment_ppm;
    }
}

void residency_watch_thrash(residency *r, uint64_t now_us) {
    roll_window(r, now_us);
    uint64_t percent = residency_reload_us(r) * 100 / RESIDENCY_WINDOW_US;
    bool was = r->thrashing;
    if (!was && percent < THRASH_PERCENT) return;
    r->thrashing = percent >= (was ? THRASH_ENDS_PERCENT : THRASH_PERCENT);
    if (!r->thrashing)
        for (uint32_t i = 0; i < r->n_used; i++) r->slots[i].turn_us = 0;
    else if (!was || now_us - r->turns_planned_us >= TURNS_PLAN_US)
        plan_turns(r, now_us);
}
