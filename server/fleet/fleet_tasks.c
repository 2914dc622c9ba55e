/* fleet_tasks.c - could the devices keep the targets per token of all their models together?
 *
 * A model with slo.tpot_ms is a periodic task of each device that has a replica of it
 * (scheduler/feasible.h): C is its decode step as measured there, T the target.  A model without a
 * target only delays others.  A model that was never measured is left out: a guess refuses nothing.
 * Thread: front. */
#include "fleet_private.h"
#include "scheduler/feasible.h"

enum { US_PER_MS = 1000 };

uint32_t fleet_period_us(const model_policy *p) {
    return p->slo_tpot_ms < UINT32_MAX / US_PER_MS ? p->slo_tpot_ms * US_PER_MS : UINT32_MAX;
}

uint32_t fleet_list_tasks(const fleet *f, uint32_t device_idx, const fleet_guarantee *all,
                          uint32_t n, feasible_task *out) {
    uint32_t n_tasks = 0;
    for (uint32_t i = 0; i < n; i++) {
        const fleet_model *m = &f->models[all[i].slot];
        engine_model_info info;
        if (!m->used || !replica_is_here(&m->at[device_idx])) continue;
        engine_model_get(f->engines[device_idx], all[i].slot, &info);
        if (info.decode_us == 0) continue;
        out[n_tasks++] = (feasible_task){info.decode_us, fleet_period_us(all[i].policy), i};
    }
    return n_tasks;
}

/* A target that existed before is no reason to refuse another change. */
static bool got_tighter(const fleet *f, uint32_t device_idx, const fleet_guarantee *all,
                        uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        const fleet_model *m = &f->models[all[i].slot];
        uint32_t was = m->about.policy.slo_tpot_ms, now = all[i].policy->slo_tpot_ms;
        if (m->used && replica_is_here(&m->at[device_idx]) && now != 0 && (was == 0 || now < was))
            return true;
    }
    return false;
}

inferd_status fleet_check_targets(const fleet *f, const fleet_guarantee *all, uint32_t n,
                                  inferd_err *err) {
    feasible_task *tasks = calloc((size_t)n + 1, sizeof *tasks);
    const char **names = calloc((size_t)n + 1, sizeof *names);
    inferd_status s = INFERD_OK;
    if (tasks == NULL || names == NULL)
        s = inferd_fail(err, INFERD_ENOMEM, "no memory to check the targets");
    for (uint32_t i = 0; s == INFERD_OK && i < n; i++) names[i] = all[i].name;
    for (uint32_t d = 0; s == INFERD_OK && d < f->n_devices; d++) {
        char text[FEASIBLE_TEXT_BYTES];
        feasible_tasks sums;
        if (!got_tighter(f, d, all, n)) continue;
        uint32_t n_tasks = fleet_list_tasks(f, d, all, n, tasks);
        if (feasible_tasks_check(tasks, n_tasks, &sums)) continue;
        feasible_tasks_say(&sums, tasks, names, text, sizeof text);
        s = inferd_fail(err, INFERD_EINVAL,
                        "the targets (slo.tpot_ms) on %s could not be kept together: %s",
                        f->names[d], text);
    }
    free(names);
    free(tasks);
    return s;
}
