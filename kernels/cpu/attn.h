/* attn.h - the layout of keys and values, and the job of attending to them.
 *
 * In a slot, layer after layer of the group; in a layer, head after head; in a head, tile after
 * tile of KV_TILE positions, block_tokens / KV_TILE of them; in a tile, K and then V:
 *
 *     F16 F32    K [head_dim][16]           V [16][width]
 *     BF16       K [head_dim / 2][16][2]    V [8][width][2]     width: head_dim padded to 16
 *     I8 I16     the same,                  the same,
 *                then its scales f32 [16]   then its scales f32 [16]
 *
 * so a lane is a position in K and a feature in V, and neither the scores nor their weighted sum
 * ever add across lanes.  The pairs of BF16, I8 and I16 are what one dot product instruction takes;
 * taken apart they cost one shift or one mask.  An odd head_dim counts as the next even number in
 * K, with a row of zeros.  An element of I8 or I16 is its number times the scale of its token and
 * head:
 *
 *     I8         the largest magnitude / 127
 *     I16   K    the root of the sum of squares / K16_NORM
 *           V    the largest magnitude / V16_MAX
 *
 * Sums of products of 16-bit numbers have to fit 32 bits.  Those of keys do because of the norms:
 * |q . k| <= |q| |k|, and q is scaled like k.  Those of values do because the weights of a chunk
 * are scaled until their sum is at most P16_SUM.
 *
 * Positions are attended to in chunks of ATTN_CHUNK, which begin at multiples of it.  The result of
 * a chunk (the largest score, the sum of weights, the weighted sum of values) depends on the row,
 * the head and the chunk alone; chunks are then joined in ascending order, on any thread.  So a
 * row's result has the same bits for any batch, any division of the work, and any cut of the
 * prompt.
 *
 * Thread: any; ranges of one job do not overlap. */
#ifndef INFERD_CPU_ATTN_H
#define INFERD_CPU_ATTN_H

#include "kernels/backend.h"

enum {
    KV_TILE = 16,
    ATTN_CHUNK = 256, // positions
    HEAD_DIM_MAX = 512
};
/* Sums of I8 fit 32 bits: over the elements of a head, and over the positions of a chunk. */
_Static_assert(127ll * 32767 * HEAD_DIM_MAX <= INT32_MAX, "scores of I8");
_Static_assert(127ll * 32767 * ATTN_CHUNK <= INT32_MAX, "weighted sums of I8");

/* And of I16; rounding moves a norm by at most half the root of HEAD_DIM_MAX, and a sum of weights
 * by at most half a unit for each position. */
enum { K16_NORM = 32767, V16_MAX = 4095, P16_SUM = INT32_MAX / V16_MAX - ATTN_CHUNK };
_Static_assert((K16_NORM + 12ll) * (K16_NORM + 12ll) <= INT32_MAX, "scores of I16");
_Static_assert((P16_SUM + ATTN_CHUNK / 2ll) * V16_MAX <= INT32_MAX, "weighted sums of I16");

struct attn_plan;

typedef struct attn_job {
    float *out; // [n, n_heads * head_dim]
    const float *q, *k, *v;
    const float *sinks; // [n_heads] scores without a value; NULL: none
    const batch *b;
    const kv_layout *kv;
    const attn_spec *spec;
    const struct attn_plan *plan; // of this batch and spec
    unsigned char *arena;
    size_t page_bytes;
    uint32_t layer_idx;
    uint64_t *n_saturated; // see F16_LARGEST; added to by several threads
} attn_job;

/* F16 has no number beyond this.  A key or value that is finite and larger is stored as this, with
 * its sign, and counted; one that is not finite is stored as it is, and the answer is an error. */
#define F16_LARGEST 65504.0f

/* ---- a tile ---- */

static inline size_t kv_even(uint32_t n) {
    return ((size_t)n + 1) / 2 * 2;
}
static inline size_t kv_padded(uint32_t n) {
    return ((size_t)n + KV_TILE - 1) / KV_TILE * KV_TILE;
}
static inline size_t kv_elem_bytes(kv_type type) {
    return type == KV_F32 ? 4 : type == KV_I8 ? 1 : 2;
}
static inline bool kv_in_pairs(kv_type type) {
    return type == KV_BF16 || type == KV_I8 || type == KV_I16;
}
/* Integers with a scale per token and head? */
static inline bool kv_is_scaled(kv_type type) {
    return type == KV_I8 || type == KV_I16;
}
/* Bytes of the scales of K, and of those of V. */
static inline size_t kv_scale_bytes(kv_type type) {
    return kv_is_scaled(type) ? KV_TILE * sizeof(float) : 0;
}
/* Bytes of K and of V of a tile, with their scales, which are at the end. */
static inline size_t kv_k_bytes(kv_type type, uint32_t head_dim) {
    return kv_even(head_dim) * KV_TILE * kv_elem_bytes(type) + kv_scale_bytes(type);
}
static inline size_t kv_v_bytes(kv_type type, uint32_t head_dim) {
    return KV_TILE * kv_padded(head_dim) * kv_elem_bytes(type) + kv_scale_bytes(type);
}
static inline size_t kv_tile_bytes(kv_type type, uint32_t head_dim) {
    return kv_k_bytes(type, head_dim) + kv_v_bytes(type, head_dim);
}
/* Where feature d of position t of the tile is, in elements. */
static inline size_t kv_k_index(kv_type type, size_t d, size_t t) {
    return kv_in_pairs(type) ? (d / 2 * KV_TILE + t) * 2 + d % 2 : d * KV_TILE + t;
}
static inline size_t kv_v_index(kv_type type, uint32_t head_dim, size_t d, size_t t) {
    size_t width = kv_padded(head_dim);
    return kv_in_pairs(type) ? (t / 2 * width + d) * 2 + t % 2 : t * width + d;
}
static inline float *kv_k_scales(kv_type type, uint32_t head_dim, const unsigned char *k) {
    return (float *)(void *)(uintptr_t)(k + kv_k_bytes(type, head_dim) - kv_scale_bytes(type));
}
static inline float *kv_v_scales(kv_type type, uint32_t head_dim, const unsigned char *v) {
    return (float *)(void *)(uintptr_t)(v + kv_v_bytes(type, head_dim) - kv_scale_bytes(type));
}

/* Bytes of a layer of a block; 0: blocks are whole tiles, and this one is not. */
static inline size_t kv_layer_bytes_of(kv_type type, uint32_t n_kv_heads, uint32_t head_dim,
                                       uint32_t block_tokens) {
    if (block_tokens % KV_TILE != 0) return 0;
    size_t n = (size_t)block_tokens / KV_TILE * n_kv_heads * kv_tile_bytes(type, head_dim);
    return (n + 63) / 64 * 64;
}

/* K of `kv_head` in the tile of position `pos`, in the job's layer. */
static inline unsigned char *kv_at(const attn_job *j, const batch_seq *s, uint32_t pos,
                                   uint32_t kv_head) {
    const kv_layout *l = j->kv;
    uint32_t group = j->layer_idx / l->group_layers, block = pos / l->block_tokens;
    uint32_t tiles = l->block_tokens / KV_TILE, tile = pos % l->block_tokens / KV_TILE;
    uint32_t slot = (uint32_t)s->slots[(size_t)block * l->n_groups + group];
    return j->arena + slot / l->slots_per_page * j->page_bytes +
           slot % l->slots_per_page * l->slot_bytes +
           j->layer_idx % l->group_layers * l->layer_bytes +
           ((size_t)kv_head * tiles + tile) * kv_tile_bytes(l->type, l->head_dim);
}

/* ---- a row ---- */

/* The first position that row `pos` attends to. */
static inline uint32_t attn_begin(const attn_spec *spec, uint32_t pos) {
    return spec->window != 0 && pos >= spec->window ? pos + 1 - spec->window : 0;
}

#endif
