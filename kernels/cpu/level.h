/* level.h - the hot loops of the CPU backend, once per instruction set.
 *
 * A level is a table of functions over ranges: each computes some rows, or some output features, of
 * one operation, and the thread pool hands the ranges out.  The files in simd/ are compiled once
 * for every level; `define` is the same table as plain loops that read as the formulas, and is what
 * tests compare the others with.
 *
 *     define   the formulas                 any machine
 *     base     what the target guarantees   any machine (x86-64: SSE2)
 *     avx2     256 bit, FMA, F16C
 *     avx512   512 bit: F, BW, VL, DQ
 *
 * At one level the value of an output element does not depend on how many rows the batch has, how
 * they are cut into steps, or on the threads: each is one chain of operations in one order.
 *
 * Thread: any; ranges of one job do not overlap. */
#ifndef INFERD_CPU_LEVEL_H
#define INFERD_CPU_LEVEL_H

#include "cpu/threads.h"
#include "kernels/backend.h"

/* Output features come in units of half a panel. */
enum { MATMUL_UNIT = 32 };

typedef struct matmul_job { // range: units of output features
    float *out;             // [n, w->rows]
    const float *x;         // [n, w->cols]
    const weight *w;
    const float *bias; // [w->rows] or NULL
    uint32_t n;
} matmul_job;

typedef struct rmsnorm_job { // range: rows
    float *out;              // [n, dim], may be x
    const float *x;
    const float *w; // [dim]
    uint32_t dim;
    float eps;
} rmsnorm_job;

typedef struct rope_job { // range: rows
    float *q, *k;         // [n, n_heads * head_dim], [n, n_kv_heads * head_dim]
    const float *table;   // [n, 2, n_pairs] cosines and sines of each row
    uint32_t n_pairs, n_heads, n_kv_heads, head_dim;
    bool interleaved;
} rope_job;

/* Elementwise work on flat arrays, in units of FLAT_UNIT floats. */
enum { FLAT_UNIT = 256 };
typedef struct flat_job { // range: units
    float *out;
    const float *a, *b;
    size_t n; // floats
} flat_job;

typedef struct attn_job {
    float *out; // [n, n_heads * head_dim]
    const float *q, *k, *v;
    const batch *b;
    const kv_layout *kv;
    const attn_spec *spec;
    unsigned char *arena;
    size_t page_bytes;
    uint32_t layer_idx;
} attn_job;

typedef struct cpu_level {
    const char *name;
    range_fn *matmul;   // matmul_job
    range_fn *rmsnorm;  // rmsnorm_job
    range_fn *rope;     // rope_job
    range_fn *silu_mul; // flat_job: out = silu(a) * b
    range_fn *gelu_mul; // flat_job: out = gelu(a) * b, the tanh form
    range_fn *add;      // flat_job: out = a + b
    range_fn *kv_store; // attn_job, range: rows
    range_fn *attend;   // attn_job, range: n_rows * n_kv_heads, row first
} cpu_level;

/* The level named by `wanted`, or the best this machine has when it is NULL or "". */
const cpu_level *level_choose(const char *wanted, inferd_err *err); // NULL: failed

enum { HEAD_DIM_MAX = 512 };

/* ---- where keys and values lie ----
 *
 * In a slot, layer after layer of the group; in a layer, head after head:
 *
 *     K [head_dim][block_tokens, padded to 16]   positions side by side: a lane is a position
 *     V [block_tokens][head_dim, padded to 16]   features side by side: a lane is a feature
 *
 * so neither the scores nor their weighted sum ever add across lanes. */
enum { KV_PAD = 16 };

static inline size_t kv_padded(uint32_t n) {
    return ((size_t)n + KV_PAD - 1) / KV_PAD * KV_PAD;
}
static inline size_t kv_elem_bytes(kv_type type) {
    return type == KV_F32 ? 4 : 2;
}
/* Elements of K and of V of one head and layer of a block. */
static inline size_t kv_k_elems(const kv_layout *l) {
    return l->head_dim * kv_padded(l->block_tokens);
}
static inline size_t kv_v_elems(const kv_layout *l) {
    return l->block_tokens * kv_padded(l->head_dim);
}

/* K of `head` in the job's layer of the sequence's block; V follows after kv_k_elems. */
static inline unsigned char *kv_at(const attn_job *j, const batch_seq *s, uint32_t block,
                                   uint32_t head) {
    const kv_layout *l = j->kv;
    uint32_t group = j->layer_idx / l->group_layers;
    uint32_t slot = (uint32_t)s->slots[(size_t)block * l->n_groups + group];
    size_t head_bytes = (kv_k_elems(l) + kv_v_elems(l)) * kv_elem_bytes(l->type);
    return j->arena + slot / l->slots_per_page * j->page_bytes +
           slot % l->slots_per_page * l->slot_bytes +
           j->layer_idx % l->group_layers * l->layer_bytes + head * head_bytes;
}

/* The first position that row `pos` attends to. */
static inline uint32_t attn_begin(const attn_spec *spec, uint32_t pos) {
    return spec->window != 0 && pos >= spec->window ? pos + 1 - spec->window : 0;
}

/* ---- the functions of the levels ---- */

#define CPU_LEVEL_FUNCTIONS(level)                                                                 \
    void matmul_##level(const void *job, uint32_t begin, uint32_t end);                            \
    void rmsnorm_##level(const void *job, uint32_t begin, uint32_t end);                           \
    void rope_##level(const void *job, uint32_t begin, uint32_t end);                              \
    void silu_mul_##level(const void *job, uint32_t begin, uint32_t end);                          \
    void gelu_mul_##level(const void *job, uint32_t begin, uint32_t end);                          \
    void add_##level(const void *job, uint32_t begin, uint32_t end);                               \
    void kv_store_##level(const void *job, uint32_t begin, uint32_t end);                          \
    void attend_##level(const void *job, uint32_t begin, uint32_t end)

CPU_LEVEL_FUNCTIONS(define);
CPU_LEVEL_FUNCTIONS(base);
CPU_LEVEL_FUNCTIONS(avx2);
CPU_LEVEL_FUNCTIONS(avx512);

#endif
