/* fleet_private.h - a fleet from inside, for its two files: fleet.c (engines, requests, what is
 * seen) and fleet_place.c (where replicas are, and how many).
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
    FLEET_PAGE_BYTES = 2 << 20 // before a device says it
};

typedef struct replica {
    fleet_replica_state state;
    uint32_t part;
    uint32_t departures; // of the engine's slot when it came
    uint32_t n_open;     // of requests, not ended
    uint64_t n_done;
    model_policy policy; // its part
} replica;

typedef struct fleet_model {
    bool used, removed; // removed: not served any more
    bool held;          // drained by hand
    fleet_model_about about;
    replica at[FLEET_DEVICES_MAX];
    scale_state scale;
    uint32_t ttft_us[FLEET_TTFT_SAMPLES];
    uint64_t ttft_at_us[FLEET_TTFT_SAMPLES];
    uint32_t n_ttft;
    uint64_t device_us; // of all replicas, at the last tick
    uint32_t desired;
    char problem[192];
} fleet_model;

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
    prefix_place *prefixes; // [FLEET_PREFIXES] owned
    uint64_t n_changes;
    uint64_t tick_us;
};

static inline bool replica_is_here(const replica *r) {
    return r->state == FLEET_JOINING || r->state == FLEET_SERVING;
}

/* -- fleet_place.c -- */
/* Departures, joiners that are ready, lost devices, and once per period the number of replicas. */
void fleet_look(fleet *f, uint64_t now_us);

#endif
