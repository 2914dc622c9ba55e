/* host_arena.h - how much memory the host arena takes where the configuration says "auto".
 *
 * `serve` and `doctor` ask here, so that the second says what the first does.
 * Thread: any. */
#ifndef INFERD_HOST_ARENA_H
#define INFERD_HOST_ARENA_H

#include "config.h"
#include "inferd/base.h"

/* What the machine has, and what is wanted of it; bytes. */
typedef struct host_arena_room {
    uint64_t machine; // that this process may use (kernels/machine.h)
    uint64_t pools;   // of all CPU devices, which take the same memory
    uint64_t models;  // of all models, host_arena_model_bytes
    uint32_t n_devices;
} host_arena_room;

/* What the weights of a file take there, whole pages. */
uint64_t host_arena_model_bytes(uint64_t file_bytes);

/* One device's part: room for the weights of all models.  All parts together take no more than a
 * quarter of the machine, which other programs may need, nor more than the pools leave. */
uint64_t host_arena_part(const host_arena_room *room);

/* The part of a CPU device, or of another, by the configuration: 0 and less than "auto", too. */
uint64_t host_arena_of(const inferd_config *c, const host_arena_room *room, bool is_cpu);

#endif
