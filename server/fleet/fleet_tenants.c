/* fleet_tenants.c - a tenant's policy, divided over the devices where it has work.
 *
 *   share   evenly over the devices where it has open requests, on serving or leaving replicas; one
 *           such device has the whole.  A percent smaller than their number rotates over them, so
 *           that no device waits for ever
 *   max     a request is admitted if it fits the whole.  The devices are in an order: each may use
 *           what those before it leave, so the first may use all of max, and others give memory
 *           back until it does.  The first device rotates, so that two devices that need more than
 *           half each both finish
 *   min     evenly over the devices that have a model of the tenant, with or without work
 *
 * A device gets its new part before the request that changed it.  When the last request on a device
 * ends, the others get their new parts at the next tick; changes of used memory are passed at the
 * next tick as well.  So all devices together exceed a max by no more than they take between two
 * ticks.  Where a tenant has no work its last part stays: no request uses it.
 *
 * With one device the part is always the whole, and nothing is counted.
 *
 * Always: every tenant with open requests is in f->busy. */
#include <stdlib.h>
#include <string.h>

#include "fleet_private.h"

enum {
    TENANTS_GROW = 16,
    ROTATION_US = 5000000, // length of a rotation: at one percent a bucket fills in that time
    HERE_NOTHING = 1       // 1 byte: no block fits
};

static uint32_t count_bits(uint64_t bits) {
    return (uint32_t)__builtin_popcountll(bits);
}

static uint64_t all_devices(const fleet *f) {
    return f->n_devices < FLEET_DEVICES_MAX ? (UINT64_C(1) << f->n_devices) - 1 : UINT64_MAX;
}

static uint64_t devices_or_all(const fleet *f, uint64_t devices) {
    uint64_t all = all_devices(f);
    return (devices & all) != 0 ? devices & all : all;
}

share_spec fleet_share_part(const fleet *f, const share_spec *whole, uint32_t n, uint32_t k) {
    uint64_t rotation = whole->percent < n ? f->rotation : 0;
    share_spec part = {
        .policy = whole->policy,
        .percent = (uint32_t)placement_part(whole->percent, 1, n, (uint32_t)((k + rotation) % n)),
        .n_devices = 1};
    /* A part of 0 percent: a fixed share waits for its rotation. */
    if (part.percent == 0 && part.policy == SHARE_BURST) part.policy = SHARE_BESTEFFORT;
    return part;
}

/* The bytes of its max that its requests may use on each of these devices: [n_devices], 0: all. */
static void divide_max(fleet *f, uint32_t tenant_idx, uint64_t devices, uint64_t *here) {
    fleet_tenant *t = &f->tenants[tenant_idx];
    uint64_t max = t->policy.max_bytes, before = 0;
    memset(here, 0, f->n_devices * sizeof *here);
    if (max == 0 || count_bits(devices) < 2) return;
    if (t->rotation != f->rotation) t->first++;
    t->rotation = f->rotation;
    t->first %= f->n_devices;
    while ((devices >> t->first & 1) == 0) t->first = (t->first + 1) % f->n_devices;
    for (uint32_t i = 0; i < f->n_devices; i++) {
        uint32_t d = (t->first + i) % f->n_devices;
        if ((devices >> d & 1) == 0) continue;
        if (i > 0) here[d] = before < max ? max - before : HERE_NOTHING;
        before += engine_tenant_bytes(f->engines[d], tenant_idx);
    }
}

/* Sends each device with work its part if it changed; `anew`: to all devices.  False: no memory. */
static bool tell(fleet *f, uint32_t tenant_idx, bool anew) {
    fleet_tenant *t = &f->tenants[tenant_idx];
    uint64_t home = devices_or_all(f, t->home), work = devices_or_all(f, t->work ? t->work : home);
    uint32_t n_home = count_bits(home), n_work = count_bits(work), k_home = 0, k_work = 0;
    uint64_t here[FLEET_DEVICES_MAX];
    bool fine = true;
    divide_max(f, tenant_idx, work, here);
    for (uint32_t d = 0; d < f->n_devices; d++) {
        bool at_home = (home >> d & 1) != 0, works = (work >> d & 1) != 0;
        tenant_policy part = t->policy;
        part.min_bytes = at_home ? placement_part(t->policy.min_bytes, 1, n_home, k_home++) : 0;
        if (!works && !anew) continue;
        part.share = works ? fleet_share_part(f, &t->policy.share, n_work, k_work++)
                           : (share_spec){.policy = SHARE_BESTEFFORT, .n_devices = 1};
        if (part.share.policy != t->policy.share.policy)
            part.weight = u32_max(part.weight, 1); // a weight of 0 is only valid beside a share
        part.here_bytes = here[d];
        fleet_tenant_at *at = t->at != NULL ? &t->at[d] : NULL;
        if (!anew && at != NULL && at->told && at->percent == part.share.percent &&
            at->policy == part.share.policy && at->here_bytes == part.here_bytes)
            continue;
        bool told = engine_set_tenant(f->engines[d], tenant_idx, &part);
        fine = fine && told;
        if (at == NULL) continue;
        at->told = told;
        at->percent = part.share.percent;
        at->policy = part.share.policy;
        at->here_bytes = part.here_bytes;
    }
    return fine;
}

static bool grow(fleet *f, uint32_t n_least) {
    uint32_t n = u32_max(n_least, u32_max(2 * f->n_tenants, TENANTS_GROW));
    fleet_tenant *tenants = realloc(f->tenants, n * sizeof *tenants);
    if (tenants == NULL) return false;
    f->tenants = tenants;
    uint32_t *busy = realloc(f->busy, n * sizeof *busy);
    if (busy == NULL) return false;
    f->busy = busy;
    memset(tenants + f->n_tenants, 0, (n - f->n_tenants) * sizeof *tenants);
    f->n_tenants = n;
    return true;
}

bool fleet_set_tenant(fleet *f, uint32_t tenant_idx, const tenant_policy *policy,
                      uint64_t devices) {
    if (tenant_idx >= f->n_tenants && !grow(f, tenant_idx + 1)) return false;
    fleet_tenant *t = &f->tenants[tenant_idx];
    t->policy = *policy;
    t->home = devices;
    return tell(f, tenant_idx, true);
}

/* NULL: nothing is counted for it. */
static fleet_tenant *find(const fleet *f, uint32_t tenant_idx) {
    return f->n_devices > 1 && tenant_idx < f->n_tenants ? &f->tenants[tenant_idx] : NULL;
}

bool fleet_tenant_begins(fleet *f, uint32_t tenant_idx, uint32_t d) {
    fleet_tenant *t = find(f, tenant_idx);
    if (t == NULL) return true;
    if (t->at == NULL) t->at = calloc(f->n_devices, sizeof *t->at);
    if (t->at == NULL) return false;
    if (!t->busy) f->busy[f->n_busy++] = tenant_idx;
    t->busy = true;
    if (t->at[d].n_open++ > 0) return true;
    t->work |= UINT64_C(1) << d;
    if (tell(f, tenant_idx, false)) return true;
    fleet_tenant_ends(f, tenant_idx, d);
    return false;
}

void fleet_tenant_ends(fleet *f, uint32_t tenant_idx, uint32_t d) {
    fleet_tenant *t = find(f, tenant_idx);
    if (t == NULL || t->at == NULL || t->at[d].n_open == 0) return;
    if (--t->at[d].n_open == 0) t->work &= ~(UINT64_C(1) << d);
}

void fleet_look_at_tenants(fleet *f, uint64_t now_us) {
    f->rotation = now_us / ROTATION_US;
    for (uint32_t i = 0; i < f->n_busy;) {
        fleet_tenant *t = &f->tenants[f->busy[i]];
        if (t->work != 0) {
            tell(f, f->busy[i++], false); // if it fails for lack of memory, the next tick retries
            continue;
        }
        t->busy = false;
        f->busy[i] = f->busy[--f->n_busy];
    }
}

void fleet_free_tenants(fleet *f) {
    for (uint32_t i = 0; i < f->n_tenants; i++) free(f->tenants[i].at);
    free(f->tenants);
    free(f->busy);
}
