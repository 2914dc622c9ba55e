/* kv_layout.h - how the keys and values of one model tile the pages of the pool.
 *
 * A *block* is block_tokens consecutive positions of one sequence.  It is stored in n_groups
 * *slots*, one for each group of group_layers consecutive layers, K and V together; slots_per_page
 * slots tile one page of the arena.  Slot numbers count through the arena:
 *
 *   slot s is in page s / slots_per_page, at byte (s % slots_per_page) * slot_bytes
 *
 * The backend defines the order of numbers inside a slot, and layer_bytes.
 * T and G are chosen so that at least 95 % of a page is used (or as near as the shape allows).
 *
 * Thread: any, read-only once chosen. */
#ifndef INFERD_KV_LAYOUT_H
#define INFERD_KV_LAYOUT_H

#include "inferd/base.h"

typedef enum kv_type {
    KV_F16,
    KV_BF16,
    KV_F32,
    KV_I8,  // 8 bits, one scale per token and head for keys and one for values
    KV_I16, // the same with 16 bits
    KV_AUTO // an option, never in a layout: the type that the backend computes best with
} kv_type;

typedef struct kv_layout {
    kv_type type;
    uint32_t n_layers, n_kv_heads, head_dim;
    uint32_t block_tokens;   // T
    uint32_t group_layers;   // G, divides n_layers
    uint32_t n_groups;       // n_layers / G
    uint32_t slots_per_page; // S
    size_t layer_bytes;      // K and V of T tokens of one layer
    size_t slot_bytes;       // G * layer_bytes
} kv_layout;

/* Blocks that hold n_tokens tokens. */
static inline uint32_t kv_blocks_of(const kv_layout *l, uint32_t n_tokens) {
    return (n_tokens + l->block_tokens - 1) / l->block_tokens;
}

#endif
