/* cpu.h - the CPU backend's own struct; cpu.c opens it, ops.c computes.
 *
 * Thread: engine. */
#ifndef INFERD_CPU_CPU_H
#define INFERD_CPU_CPU_H

#include "backend_ops.h"
#include "cpu/arena.h"
#include "cpu/level.h"
#include "cpu/threads.h"

struct act {
    float *data; // [rows_max, dim]; owned
    uint32_t rows_max, dim;
    size_t n_bytes;
};

struct be_window {
    const backend_ops *ops; // first, see be_window_base
    window *w;
};

/* Cosines and sines of the batch's positions, kept from layer to layer of one step. */
typedef struct rope_table {
    float *data; // [n_rows, 2, n_pairs]; owned
    size_t capacity;
    float *inv_freq; // [n_pairs] what the table was made of; owned
    uint32_t n_pairs, n_pairs_max;
    float scale;
    uint64_t step; // of which step it is; 0 = none
} rope_table;

enum {
    ROPE_TABLES = 2,  // models with two kinds of layers have two
    WARM_UP_STEPS = 4 // of which page faults are not counted: tables are made then
};

typedef struct cpu_backend {
    backend be; // first: a cpu_backend is a backend
    const cpu_level *level;
    char name[16];
    pool *threads;
    arena *pages;

    const batch *batch; // of the current step, borrowed
    const kv_layout *kv;
    uint64_t step; // counts be_step_begin
    bool in_step;

    uint32_t rows_max; // of the largest activation ever opened
    rope_table ropes[ROPE_TABLES];
    uint32_t next_rope; // the one to replace

    uint64_t events_us[BE_EVENTS];
    uint64_t step_began_us, step_ended_us;
    const act *wanted;     // whose rows the step's result shows; NULL: none
    long *faults_at_begin; // [n_threads] minor and major faults of each rank; owned
    uint64_t n_kv_page_faults;
} cpu_backend;

static inline cpu_backend *cpu_of(backend *be) {
    return (cpu_backend *)(void *)be;
}
static inline const cpu_backend *cpu_of_const(const backend *be) {
    return (const cpu_backend *)(const void *)be;
}

/* The operations of a step, ops.c. */
void cpu_embed(backend *be, act *out, const weight *table, float scale);
void cpu_rmsnorm(backend *be, act *out, const act *x, const vec *w, uint32_t n, float eps);
void cpu_matmul(backend *be, act *out, const act *x, const weight *w, const vec *bias, uint32_t n);
void cpu_rope(backend *be, act *q, act *k, const rope_spec *r, uint32_t n_heads,
              uint32_t n_kv_heads, uint32_t head_dim);
void cpu_attention(backend *be, act *out, const act *q, const act *k, const act *v,
                   uint32_t layer_idx, const attn_spec *spec);
void cpu_head_norm(backend *be, act *x, const vec *w, uint32_t n, uint32_t n_heads,
                   uint32_t head_dim, float eps);
void cpu_glu(backend *be, act_fn fn, act *out, const act *gate, const act *up, uint32_t n,
             uint32_t dim);
void cpu_add(backend *be, act *x, const act *y, uint32_t n, uint32_t dim);
void cpu_take_logit_rows(backend *be, act *out, const act *x, uint32_t dim);
void cpu_softcap(backend *be, act *x, uint32_t n, uint32_t dim, float cap);

#endif
