/* level.h - the hot loops of the CPU backend, once per instruction set.
 *
 * A level is a table of functions over ranges: each computes some rows, or some output features, of
 * one operation, and the thread pool hands the ranges out.  The files in simd/ are compiled once
 * for every level; `define` is the same table as plain loops that read as the formulas, and tests
 * compare the others with it.  A level that derives from another compiles only the files that its
 * instructions change, and takes the rest from that level (the table in level.c,
 * kernels/CMakeLists.txt).
 *
 *     define       the formulas                 any machine
 *     base         what the target guarantees   any machine (x86-64: SSE2)
 *     avx2         256 bit, FMA, F16C
 *     avxvnni      avx2, and 16-bit products added in one instruction (AVX-VNNI)
 *     avx512       512 bit: F, BW, VL, DQ
 *     avx512vnni   avx512, and the same for 512 bit (AVX512_VNNI)
 *     avx512bf16   avx512vnni, and products of bf16 (AVX512_BF16)
 *     avx512amx    avx512bf16, and products of tiles of bytes (AMX_TILE, AMX_INT8)
 *
 * At one level the value of an output element does not depend on how many rows the batch has, how
 * they are cut into steps, or on the threads: each is one chain of operations in a fixed order.
 *
 * Thread: any; ranges of one job do not overlap. */
#ifndef INFERD_CPU_LEVEL_H
#define INFERD_CPU_LEVEL_H

#include "cpu/attn.h"
#include "cpu/panel.h"
#include "cpu/qact.h"
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
    const float *growth;  // [n] q is multiplied by it afterwards; NULL: it is not
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

typedef struct combine_job { // range: rows
    float *out;              // [n, dim] = sum over i of p[row, i] * parts[slots[row, i]]
    const float *parts;      // [slots, dim]
    const uint32_t *slots;   // [n, n_used]
    const float *p;          // [n, n_used]
    uint32_t n_used, dim;
} combine_job;

typedef struct cpu_level {
    const char *name;
    bool has_bf16;          // products of bf16: quantize, qmatmul and qglu take MATH_BF16
    range_fn *matmul;       // matmul_job
    range_fn *quantize;     // qact_job, range: qact_tiles
    range_fn *qmatmul;      // qmatmul_job
    range_fn *qglu;         // qglu_job
    range_fn *rmsnorm;      // rmsnorm_job
    range_fn *rope;         // rope_job
    range_fn *silu_mul;     // flat_job: out = silu(a) * b
    range_fn *gelu_mul;     // flat_job: out = gelu(a) * b, the tanh form
    range_fn *clamped_mul;  // flat_job: out = ACT_CLAMPED_SWIGLU of a and b
    range_fn *add;          // flat_job: out = a + b
    range_fn *combine;      // combine_job
    range_fn *kv_store;     // attn_job, range: rows
    range_fn *attend;       // attn_job, range: units of the plan (attn_plan.h)
    range_fn *attend_merge; // attn_job, range: merges of the plan
    panel_pack_fn *pack;    // one panel; the same bytes at every level
} cpu_level;

/* How products with weights of `type` are computed: always the same way at one level and mode. */
static inline cpu_math level_math(const cpu_level *level, dtype type, bool exact) {
    if (exact || type == DTYPE_F32 || type == DTYPE_F16) return MATH_F32;
    if (type == DTYPE_BF16) return level->has_bf16 ? MATH_BF16 : MATH_F32;
    return MATH_I16;
}

static inline range_fn *level_gate(const cpu_level *level, act_fn fn) {
    return fn == ACT_SILU             ? level->silu_mul
           : fn == ACT_CLAMPED_SWIGLU ? level->clamped_mul
                                      : level->gelu_mul;
}

/* The level named by `wanted`, or the best this machine has when it is NULL or "". */
const cpu_level *level_choose(const char *wanted, inferd_err *err); // NULL: failed

/* ---- the functions of the levels; a level that derives from another has some of them ---- */

#define CPU_LEVEL_FUNCTIONS(level)                                                                 \
    range_fn matmul_##level, quantize_##level, qmatmul_##level, qglu_##level, rmsnorm_##level,     \
        rope_##level, silu_mul_##level, gelu_mul_##level, clamped_mul_##level, add_##level,        \
        combine_##level, kv_store_##level, attend_##level, attend_merge_##level

/* One unit of the plan (attn_plan.h), for a type of keys and values. */
struct attn_unit;
typedef void attend_unit_fn(const attn_job *j, const struct attn_unit *unit);
#define CPU_LEVEL_ATTEND(level)                                                                    \
    attend_unit_fn attend_F16_##level, attend_F32_##level, attend_BF16_##level, attend_I8_##level, \
        attend_I16_##level

CPU_LEVEL_FUNCTIONS(define);
CPU_LEVEL_FUNCTIONS(base);
CPU_LEVEL_FUNCTIONS(avx2);
CPU_LEVEL_FUNCTIONS(avxvnni);
CPU_LEVEL_FUNCTIONS(avx512);
CPU_LEVEL_FUNCTIONS(avx512vnni);
CPU_LEVEL_FUNCTIONS(avx512bf16);
CPU_LEVEL_FUNCTIONS(avx512amx);
CPU_LEVEL_ATTEND(base);
CPU_LEVEL_ATTEND(avx2);
CPU_LEVEL_ATTEND(avx512);
CPU_LEVEL_ATTEND(avx512bf16);

#endif
