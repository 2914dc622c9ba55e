/* fleet_private.h - the internals of a fleet, shared by the files fleet*.c.
 * Thread: front, except the atomics. */
#ifndef INFERD_FLEET_PRIVATE_H
#define INFERD_FLEET_PRIVATE_H

#include <stdatomic.h>

#include "fleet.h"
#include "scheduler/scale.h"

enum {
    FLEET_PREFIXES = 8192,   // remembered beginnings of prompts
    FLEET_PREFIX_LEVELS = 4, // of each prompt: its first 32, 128, 512 and 2048 tokens
    FLEET_TTFT_SAMPLES = 64, // for the 95th percentile
    FLEET_TTFT_FRESH_US = 10000000,
    FLEET_STAGE_US_PER_MIB = 500, // of a model that was never loaded
    FLEET_JOIN_US = 120000000     // a replica that has not joined by then is removed
};

/* The members of an engine_model_info that only grow. */
typedef struct fleet_counters {
    uint64_t n_stages, n_loads, n_failed, n_evictions[ENGINE_EVICT_CAUSES],
        n_preempts[GEN_PREEMPTS];
    uint64_t n_saturated;
    uint64_t hot_us, load_device_us, device_us;
    uint64_t used_us; // the last use: of several the newest counts
    engine_switch sum;
} fleet_counters;

typedef struct replica {
    fleet_replica_state state;
    uint32_t part;
    uint32_t departures; // of the engine's slot when it was added
    uint32_t n_open;     // requests that have not ended
    uint64_t n_done;
    model_policy policy; // of its part
    uint64_t joined_us;  // JOINING: when it was first seen; 0: not seen yet
    fleet_counters last; // LEAVING: as last read
    /* fleet_move.c: device time, and time spent on switches, between the last two measurements. */
    uint64_t busy_us, switch_us, seen_device_us, seen_switch_us;
} replica;

typedef struct fleet_model {
    bool used, removed; // removed: gets no new requests
    bool held;          // taken out of service by an operator
    bool sized;         // about.weight_bytes is exact
    fleet_model_about about;
    replica at[FLEET_DEVICES_MAX];
    scale_state scale;
    uint32_t ttft_us[FLEET_TTFT_SAMPLES];
    uint64_t ttft_at_us[FLEET_TTFT_SAMPLES];
    uint32_t n_ttft;
    uint64_t device_us;  // of all replicas so far, at the last tick
    fleet_counters gone; // of replicas that have left
    uint32_t desired;
    bool lacks;        // a replica is wanted, but no device takes it
    uint64_t moved_us; // its last move ended; 0: it never moved
    char problem[192];
} fleet_model;

/* A tenant on one device: the values last sent to its engine, to detect changes. */
typedef struct fleet_tenant_at {
    uint32_t n_open; // requests that have not ended
    bool told;
    uint32_t percent;
    share_policy policy;
    uint64_t here_bytes;
} fleet_tenant_at;

typedef struct fleet_tenant {
    tenant_policy policy; // of the whole tenant
    uint64_t home;        // devices that have a model of it, as bits
    uint64_t work;        // devices where it has requests, as bits
    fleet_tenant_at *at;  // [n_devices] NULL before its first request; owned
    uint64_t rotation;    // the rotation in which `first` is the device that may use all of max
    uint32_t first;
    bool busy; // in fleet.busy
} fleet_tenant;

/* Devices that served requests with this prefix. */
typedef struct prefix_home {
    uint64_t hash;
    uint64_t devices; // bits
} prefix_home;

struct fleet {
    engine *engines[FLEET_DEVICES_MAX]; // owned, like the names
    char *names[FLEET_DEVICES_MAX];
    uint64_t memory_bytes[FLEET_DEVICES_MAX]; // as configured
    bool seen_lost[FLEET_DEVICES_MAX];
    uint32_t n_devices, n_slots, n_used; // n_used: slots from n_used on were never used
    uint32_t next_device;                // the device to read events from first
    uint32_t running_max;
    fleet_model *models;    // [n_slots] owned, like the next two
    atomic_ullong *devices; // [n_slots] bits of replicas that serve or join
    atomic_uint *departures;
    uint64_t *twins;       // [n_slots] devices where another model uses its weights, as of the last
                           // search for a move; owned
    prefix_home *prefixes; // [FLEET_PREFIXES] owned
    fleet_tenant *tenants; // [n_tenants] by number; owned
    uint32_t *busy;        // [n_busy] of at most n_tenants; owned
    uint32_t n_tenants, n_busy;
    uint64_t rotation;   // number of the rotation at the last tick (fleet_tenants.c)
    fleet_scale *scales; // [n_scales] of at most n_slots, not read yet; owned
    uint32_t n_scales;
    uint64_t n_changes;
    bool settled; // was settled at a tick
    uint64_t tick_us;
    fleet_moves moves;
    uint64_t move_from_us; // start of the move in progress; else the earliest start of the next
    uint64_t measured_us;  // last measurement of replicas, for moves
    uint32_t next_room;    // slot where the next search for room begins
};

static inline bool replica_is_here(const replica *r) {
    return r->state == FLEET_JOINING || r->state == FLEET_SERVING;
}

/* -- fleet.c -- */
/* Copies the counters of a leaving replica while its engine still has them. */
void fleet_note_departure(const fleet *f, uint32_t slot, uint32_t d);
void fleet_add_counters(fleet_counters *sum, const fleet_counters *c);

/* -- fleet_tenants.c -- */
/* A request of this tenant will be sent, or has ended there.  False: no memory, not counted. */
bool fleet_tenant_begins(fleet *f, uint32_t tenant_idx, uint32_t d);
void fleet_tenant_ends(fleet *f, uint32_t tenant_idx, uint32_t d);
void fleet_look_at_tenants(fleet *f, uint64_t now_us);
void fleet_free_tenants(fleet *f);
/* The k-th of n parts of a share; a percent smaller than n rotates over the parts. */
share_spec fleet_share_part(const fleet *f, const share_spec *whole, uint32_t n, uint32_t k);

/* -- fleet_placement.c -- */
/* Handles departed and ready replicas, lost devices, and once per period the number of replicas. */
void fleet_look(fleet *f, uint64_t now_us);
/* A device as if without models, and as it is.  `lent`: weights without a guarantee are free. */
void fleet_see_empty(const fleet *f, uint32_t d, placement_device *out);
void fleet_see_device(const fleet *f, uint32_t d, bool lent, placement_device *out);
/* Size and guarantees of the k-th part; devices that have the model or are still leaving it. */
placement_wanted fleet_wanted_of(const fleet *f, const fleet_model *m, uint32_t k,
                                 uint64_t page_bytes);
/* Divides fixed shares over the current replicas. */
void fleet_divide_fixed(fleet *f);
/* Does it compute there with weights of another model? */
bool fleet_shares_weights(const fleet *f, const fleet_model *m, uint32_t d);
/* Adds a replica with the k-th part; `joins`: it is loaded before it serves.  False: no memory. */
bool fleet_add_replica(fleet *f, uint32_t slot, uint32_t d, uint32_t k, bool joins);
void fleet_remove_replica(fleet *f, uint32_t slot, uint32_t d);
/* Time to read and prepare that many bytes, about. */
static inline uint64_t fleet_stage_us(uint64_t weight_bytes) {
    return (weight_bytes >> 20) * FLEET_STAGE_US_PER_MIB + 1;
}

/* -- fleet_move.c -- */
/* Continues the move in progress, or looks for one. */
void fleet_rebalance(fleet *f, uint64_t now_us);
bool fleet_is_moving(const fleet *f, uint32_t slot);
/* Device d is lost.  True: it was the source or target of this model's move, which has ended. */
bool fleet_move_lost(fleet *f, uint32_t slot, uint32_t d, uint64_t now_us);

#endif
