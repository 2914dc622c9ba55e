/* fleet_guarantees.c - would the guarantees leave room for the models that are served?
 *
 * The check uses the running devices, not those of a configuration that waits for a restart.  A
 * device that is not open yet refuses nothing; nor does a state that was as bad before the change.
 * Thread: front. */
#include <stdlib.h>

#include "fleet_private.h"

enum { WHOLE_PERCENT = 100 };

typedef unsigned long long ull; // for printing

/* A weight group: the largest guarantee of its models includes the weights. */
typedef struct wgroup {
    uint64_t most_told, most_wanted; // pages: largest guarantee now, and with the change
} wgroup;

/* Pages of one device. */
typedef struct guaranteed {
    uint64_t device, page_bytes;
    uint64_t told, wanted; // of all models: now, and with the change
    uint64_t tenants_told, tenants_wanted;
    wgroup *wgroups; // [n_slots] by the slot that owns the weights
} guaranteed;

static uint64_t pages_of(uint64_t n_bytes, uint64_t page_bytes) {
    return n_bytes / page_bytes + (n_bytes % page_bytes != 0);
}

static uint64_t min_pages(const fleet *f, uint32_t d, uint32_t slot, const model_policy *whole,
                          uint64_t page_bytes) {
    model_policy part = fleet_part_of(whole, f->models[slot].at[d].part);
    return pages_of(part.min_bytes, page_bytes);
}

static bool is_here(const fleet *f, uint32_t d, uint32_t slot) {
    return f->models[slot].used && replica_is_here(&f->models[slot].at[d]);
}

/* The weight group of a model. */
static wgroup *wgroup_of(const fleet *f, const guaranteed *p, uint32_t d, uint32_t slot,
                         engine_model_info *info) {
    engine_model_get(f->engines[d], slot, info);
    return &p->wgroups[info->weights_of < f->n_slots ? info->weights_of : slot];
}

static void add_told(const fleet *f, uint32_t d, guaranteed *p) {
    for (uint32_t i = 0; i < f->n_used; i++) {
        engine_model_info info;
        if (!is_here(f, d, i)) continue;
        wgroup *g = wgroup_of(f, p, d, i, &info);
        uint64_t n = min_pages(f, d, i, &f->models[i].about.policy, p->page_bytes);
        p->told += n;
        g->most_told = u64_max(g->most_told, n);
    }
}

static void add_wanted(const fleet *f, uint32_t d, const fleet_guarantee *all, uint32_t n_all,
                       guaranteed *p) {
    for (uint32_t i = 0; i < n_all; i++) {
        engine_model_info info;
        if (!is_here(f, d, all[i].slot)) continue;
        wgroup *g = wgroup_of(f, p, d, all[i].slot, &info);
        uint64_t n = min_pages(f, d, all[i].slot, all[i].policy, p->page_bytes);
        p->wanted += n;
        g->most_wanted = u64_max(g->most_wanted, n);
    }
}

/* Do this model's weights fit beside the guarantees of others, or was that no better before? */
static bool fits(const fleet *f, uint32_t d, const fleet_guarantee *one, const guaranteed *p,
                 inferd_err *err) {
    engine_model_info info;
    if (!is_here(f, d, one->slot)) return true;
    const wgroup *g = wgroup_of(f, p, d, one->slot, &info);
    uint64_t least = (uint64_t)info.weight_pages + 1, page_mib = p->page_bytes >> 20;
    uint64_t was = u64_max(p->told - g->most_told, p->tenants_told);
    uint64_t is = u64_max(p->wanted - g->most_wanted, p->tenants_wanted);
    if (info.weight_pages == 0 || is <= was || least + is <= p->device || least + was > p->device)
        return true;
    inferd_fail(err, INFERD_EINVAL,
                "the weights of %s with a page of keys and values need %llu MiB on %s; with %llu "
                "MiB guaranteed (min) to others this exceeds the device's %llu MiB",
                one->name, (ull)(least * page_mib), f->names[d], (ull)(is * page_mib),
                (ull)(p->device * page_mib));
    return false;
}

static uint64_t tenants_told(const fleet *f) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < f->n_tenants; i++) sum += f->tenants[i].policy.min_bytes;
    return sum;
}

inferd_status fleet_check_weights(const fleet *f, const fleet_guarantee *all, uint32_t n,
                                  uint64_t new_min, uint64_t tenants_min, inferd_err *err) {
    bool fine = true;
    for (uint32_t d = 0; d < f->n_devices && fine; d++) {
        engine_stats s;
        engine_get_stats(f->engines[d], &s);
        guaranteed p = {.device = s.pages_device, .page_bytes = s.page_bytes};
        if (s.pages_device == 0) continue;
        p.wgroups = calloc(f->n_slots, sizeof *p.wgroups);
        if (p.wgroups == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for a check");
        add_told(f, d, &p);
        add_wanted(f, d, all, n, &p);
        if (f->n_devices == 1) { // else their devices are not known
            p.wanted += pages_of(new_min, p.page_bytes);
            p.tenants_told = pages_of(tenants_told(f), p.page_bytes);
            p.tenants_wanted = pages_of(tenants_min, p.page_bytes);
        }
        for (uint32_t i = 0; i < n && fine; i++) fine = fits(f, d, &all[i], &p, err);
        free(p.wgroups);
    }
    return fine ? INFERD_OK : err->status;
}

inferd_status fleet_check_tenants(const fleet *f, uint64_t min_bytes, uint64_t percent,
                                  inferd_err *err) {
    uint64_t room = 0, percent_told = 0, most = (uint64_t)WHOLE_PERCENT * f->n_devices;
    bool known = true;
    for (uint32_t d = 0; d < f->n_devices; d++) {
        engine_stats s;
        engine_get_stats(f->engines[d], &s);
        known = known && s.pages_device > 0;
        room += s.pages_device * s.page_bytes;
    }
    for (uint32_t i = 0; i < f->n_tenants; i++) {
        const share_spec *share = &f->tenants[i].policy.share;
        percent_told += share->policy == SHARE_BESTEFFORT ? 0 : share->percent;
    }
    if (known && min_bytes > room && min_bytes > tenants_told(f))
        return inferd_fail(err, INFERD_EINVAL,
                           "the tenants' min together are %llu MiB > %llu MiB that the devices "
                           "have",
                           (ull)(min_bytes >> 20), (ull)(room >> 20));
    if (percent > most && percent > percent_told)
        return inferd_fail(err, INFERD_EINVAL,
                           "the tenants' shares together are %llu percent > %llu percent",
                           (ull)percent, (ull)most);
    return INFERD_OK;
}
