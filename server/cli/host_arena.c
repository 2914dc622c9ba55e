/* host_arena.c - see host_arena.h. */
#include "host_arena.h"

#include "model_plan.h"

enum { MACHINE_PARTS = 4, ROUNDED_BYTES = 4 << 20 };

uint64_t host_arena_model_bytes(uint64_t file_bytes) {
    return plan_prepared_bytes(file_bytes) + ROUNDED_BYTES;
}

uint64_t host_arena_part(const host_arena_room *room) {
    uint64_t unused = u64_less(room->machine, room->pools);
    uint64_t most = u64_min(room->machine / MACHINE_PARTS, unused) / room->n_devices;
    return u64_min(room->models, most);
}

uint64_t host_arena_of(const inferd_config *c, const host_arena_room *room, bool is_cpu) {
    if (c->host_arena_bytes != CONFIG_HOST_ARENA_AUTO) return c->host_arena_bytes / room->n_devices;
    if (c->n_models == 1 && is_cpu) return 0; // its weights never leave the device
    return host_arena_part(room);
}
