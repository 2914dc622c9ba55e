/* fleet_private.h - a fleet from inside, for its files: fleet.c (engines, requests, what is seen),
 * fleet_place.c (where replicas are, and how many) and fleet_move.c (from one device to another).
 *
 * Thread: front, but for the atomics. */
#ifndef INFERD_FLEET_PRIVATE_H
#define INFERD_FLEET_PRIVATE_H

#include <stdatomic.h>

#include "fleet.h"
#include "scheduler/scale.h"

enum {
    FLEET_PREFIXES = 8192,   // beginnings of prompts that are remembered
    FLEET_PREFIX_LEVELS = 4, // of each prompt: its first 32, 128, 512 and 2048 tokens
    FLEET_TTFT_SAMPLES = 64, // of which the 95th percentile is looked at
    FLEET_TTFT_FRESH_US = 10000000,
    FLEET_STAGE_US_PER_MIB = 500, // of a model that never came
    FLEET_JOIN_US = 120000000     // one that joins and has not come by then goes again
};

/* What of an engine_model_info only grows. */
typedef struct fleet_counters {
    uint64_t n_stages, n_loads, n_failed, n_evictions[ENGINE_EVICT_CAUSES], n_rungs[GEN_RUNGS];
    uint64_t n_saturated;
    uint64_t hot_us, load_device_us, device_us;
    engine_switch sum;
} fleet_counters;

typedef struct replica {
    fleet_replica_state state;
    uint32_t part;
    uint32_t departures; // of the engine's slot when it came
    uint32_t n_open;     // of requests, not ended
    uint64_t n_done;
    model_policy policy; // its part
    uint64_t joined_us;  // JOINING: first seen then; 0: not seen yet
    fleet_counters last; // LEAVING: as seen last
    /* fleet_move.c: device time, and waiting for its weights, between the two last looks. */
    uint64_t busy_us, switch_us, seen_device_us, seen_switch_us;
} replica;

typedef struct fleet_model {
    bool used, removed; // removed: not served any more
    bool held;          // drained by hand
    bool sized;         // about.weight_bytes is exact
    fleet_model_about about;
    replica at[FLEET_DEVICES_MAX];
    scale_state scale;
    uint32_t ttft_us[FLEET_TTFT_SAMPLES];
    uint64_t ttft_at_us[FLEET_TTFT_SAMPLES];
    uint32_t n_ttft;
    uint64_t device_us;  // of all replicas there ever were, at the last tick
    fleet_counters gone; // of replicas that have left
    uint32_t desired;
    bool lacks;        // a replica is wanted, and no device takes it
    uint64_t moved_us; // its newest move ended; 0: it never moved
    char problem[192];
} fleet_model;

/* A tenant on one device: what was told, so that it is told again when it changed. */
typedef struct fleet_tenant_at {
    uint32_t n_open; // requests that have not ended
    bool told;
    uint32_t percent;
    share_policy policy;
    uint64_t here_bytes;
} fleet_tenant_at;

typedef struct fleet_tenant {
    tenant_policy policy; // of the whole
    uint64_t home;        // devices that have a model of it, as bits
    uint64_t work;        // and those where it has requests
    fleet_tenant_at *at;  // [n_devices] NULL before its first request; owned
    uint64_t turn;        // in which `first` is the device that may have all of max
    uint32_t first;
    bool busy; // in fleet.busy
} fleet_tenant;

/* Requests that began like this went to these devices. */
typedef struct prefix_place {
    uint64_t hash;
    uint64_t devices; // bits
} prefix_place;

struct fleet {
    engine *engines[FLEET_DEVICES_MAX]; // owned, like the names
    char *names[FLEET_DEVICES_MAX];
    uint64_t memory_bytes[FLEET_DEVICES_MAX], reserve_bytes[FLEET_DEVICES_MAX]; // as configured
    bool seen_lost[FLEET_DEVICES_MAX];
    uint32_t n_devices, n_slots, n_used; // n_used: slots from there on were never used
    uint32_t next_device;                // whose events are looked at first
    uint32_t running_max;
    policy_placement placement;
    fleet_model *models;    // [n_slots] owned, like the next two
    atomic_ullong *devices; // [n_slots] bits of replicas that serve or join
    atomic_uint *departures;
    uint64_t *twins;        // [n_slots] devices where another model computes with its weights, as
                            // seen by the last look for a move; owned
    prefix_place *prefixes; // [FLEET_PREFIXES] owned
    fleet_tenant *tenants;  // [n_tenants] by number; owned
    uint32_t *busy;         // [n_busy] of at most n_tenants; owned
    uint32_t n_tenants, n_busy;
    uint64_t turn;       // at the last tick: who is first where not all can be
    fleet_scale *scales; // [n_scales] of at most n_slots, not told yet; owned
    uint32_t n_scales;
    uint64_t n_changes;
    bool settled; // was so at a tick
    uint64_t tick_us;
    fleet_moves moves;
    uint64_t move_from_us; // the move in progress began then; else none begins before
    uint64_t measured_us;  // replicas were looked at last, for moves
    uint32_t next_room;    // the model that is helped to room next, if it needs any
};

static inline bool replica_is_here(const replica *r) {
    return r->state == FLEET_JOINING || r->state == FLEET_SERVING;
}

/* -- fleet.c -- */
/* Remember what a replica that leaves has counted, while its engine still tells. */
void fleet_note_leaver(const fleet *f, uint32_t slot, uint32_t d);
void fleet_add_counters(fleet_counters *sum, const fleet_counters *c);

/* -- fleet_tenants.c -- */
/* A request of this tenant is about to be sent there, or has ended there.  False: no memory, and
 * nothing was counted. */
bool fleet_tenant_begins(fleet *f, uint32_t tenant_idx, uint32_t d);
void fleet_tenant_ends(fleet *f, uint32_t tenant_idx, uint32_t d);
void fleet_look_at_tenants(fleet *f, uint64_t now_us);
void fleet_free_tenants(fleet *f);
/* The k-th of n parts of a share; a percent that is smaller than n goes from one to the next. */
share_spec fleet_share_part(const fleet *f, const share_spec *whole, uint32_t n, uint32_t k);

/* -- fleet_place.c -- */
/* Departures, joiners that are ready, lost devices, and once per period the number of replicas. */
void fleet_look(fleet *f, uint64_t now_us);
/* A device as if no model were there, and as it is.  `lent`: weights that nobody guaranteed count
 * as free. */
void fleet_see_empty(const fleet *f, uint32_t d, place_device *out);
void fleet_see_device(const fleet *f, uint32_t d, bool lent, place_device *out);
/* Sizes and promises of the k-th part; devices that have it, and those it still leaves. */
place_wanted fleet_wanted_of(const fleet *f, const fleet_model *m, uint32_t k, uint64_t page_bytes);
/* The parts of fixed shares, as the replicas are now. */
void fleet_divide_fixed(fleet *f);
/* Does it compute there with weights of another model? */
bool fleet_shares_weights(const fleet *f, const fleet_model *m, uint32_t d);
/* With the k-th part; one that joins is loaded before it serves.  False: no memory. */
bool fleet_add_replica(fleet *f, uint32_t slot, uint32_t d, uint32_t k, bool joins);
void fleet_remove_replica(fleet *f, uint32_t slot, uint32_t d);
/* Reading and preparing so much, about. */
static inline uint64_t fleet_stage_us(uint64_t weight_bytes) {
    return (weight_bytes >> 20) * FLEET_STAGE_US_PER_MIB + 1;
}

/* -- fleet_move.c -- */
/* Go on with the move that began, or look for one. */
void fleet_rebalance(fleet *f, uint64_t now_us);
bool fleet_is_moving(const fleet *f, uint32_t slot);
/* Device d is lost.  True: it was one of the two of this model's move, which has ended. */
bool fleet_move_lost(fleet *f, uint32_t slot, uint32_t d, uint64_t now_us);

#endif
